"""`stoker bench` whole: on the real engine with the tiny model, and on scripted servers."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from app.bench.table import text_report
from app.cli import run
from tests.client.local_server import Answer, Call, LocalServer, Route, serving
from tests.e2e.running_server import Server, free_port, tiny_server

Capture = pytest.CaptureFixture[str]
OF_A_BUSY_MACHINE = ("client-late", "client-limit")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with tiny_server(tmp_path_factory.mktemp("model")) as running:
        yield running


def bench(capsys: Capture, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document, without what a busy machine adds: a client that comes too late."""
    code = run(["bench", *arguments, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 1 or (code == 3) == bool(document["findings"])
    others = [one for one in document["findings"] if one["id"] not in OF_A_BUSY_MACHINE]
    if code == 3 and not others:
        code = 0
    return code, {**document, "findings": others}


def finding_ids(document: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in document["findings"]]


def test_closed_loops(server: Server, capsys: Capture) -> None:
    code, document = bench(
        capsys,
        *(server.url, "--concurrency", "1,3", "--num-prompts", "6", "--repeat", "2"),
        *("--output-tokens", "5", "--warmup", "1", "--slo", "ttft:60000,tpot:60000"),
    )

    assert (code, document["findings"]) == (0, [])
    assert (document["schema"], document["schema_version"]) == ("stoker.bench", 1)
    assert [result["max_concurrency"] for result in document["results"]] == [1, 3]
    for result in document["results"]:
        assert (result["completed"], result["failed"], result["request_rate"]) == (12, 0, None)
        assert result["total_output_tokens"] == 12 * 5
        assert result["total_input_tokens"] == 12 * 60
        assert result["server_counters"] == {
            "prompt_tokens": 12 * 60,
            "generation_tokens": 12 * 5,
            "prefix_hits": 0,
            "preemptions": 0,
        }
        assert len(result["rounds"]) == 2
        rates = [part["output_throughput"] for part in result["rounds"]]
        assert result["output_throughput"] == pytest.approx(sum(rates) / 2)
        assert result["request_goodput"] == pytest.approx(result["request_throughput"])
        assert 0 < result["median_ttft_ms"] <= result["median_e2el_ms"]
    fingerprint = document["fingerprint"]
    assert fingerprint["servers"][0]["engine"] == "stoker"
    assert fingerprint["servers"][0]["model_id"] == "tiny"
    assert fingerprint["cores"] > 0


def test_an_open_loop_of_chats(server: Server, capsys: Capture) -> None:
    code, document = bench(
        capsys,
        *(server.url, "--rate", "50", "--num-prompts", "5", "--repeat", "1", "--warmup", "0"),
        *("--chat", "--prompt-tokens", "90:100", "--output-tokens", "2:4"),
    )

    result = document["results"][0]
    assert (code, document["findings"]) == (0, [])
    assert (result["request_rate"], result["max_concurrency"]) == (50, None)
    assert result["completed"] == 5
    assert 5 * 90 <= result["total_input_tokens"] <= 5 * 100
    assert 5 * 2 <= result["total_output_tokens"] <= 5 * 4
    assert not any("by the server's count" in note for note in document["notes"])


def test_a_round_by_time(server: Server, capsys: Capture) -> None:
    _, document = bench(
        capsys,
        *(server.url, "--concurrency", "2", "--duration", "0.3", "--repeat", "1"),
        *("--output-tokens", "3", "--warmup", "0"),
    )

    result = document["results"][0]
    assert result["completed"] == result["num_prompts"] >= 2
    assert result["total_output_tokens"] == 3 * result["completed"]


def test_the_same_prompts_again_are_served_by_the_cache_and_refused(
    server: Server, capsys: Capture
) -> None:
    arguments = [server.url, "--seed", "7", "--concurrency", "2", "--num-prompts", "4"]
    arguments += ["--repeat", "1", "--output-tokens", "2"]

    assert bench(capsys, *arguments)[0] == 0
    code, document = bench(capsys, *arguments)

    assert (code, finding_ids(document)) == (3, ["prefix-cache"])
    assert document["results"][0]["server_counters"]["prefix_hits"] > 0


def test_a_shared_prefix_explains_the_cache(server: Server, capsys: Capture) -> None:
    code, document = bench(
        capsys,
        *(server.url, "--prefix-share", "0.8", "--prompt-tokens", "100", "--concurrency", "1"),
        *("--num-prompts", "4", "--repeat", "1", "--output-tokens", "2"),
    )

    assert (code, finding_ids(document)) == (0, [])
    assert document["results"][0]["server_counters"]["prefix_hits"] > 0


def test_a_dataset_of_messages(server: Server, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    lines = [{"messages": [{"role": "user", "content": f"{n} apples?"}]} for n in range(8)]
    path.write_text("\n".join(map(json.dumps, lines)))
    code, document = bench(
        capsys,
        *(server.url, "--dataset", str(path), "--concurrency", "2", "--num-prompts", "6"),
        *("--repeat", "1", "--warmup", "0", "--output-tokens", "3", "--prefix-share", "0.9"),
    )

    assert (code, document["results"][0]["completed"]) == (0, 6)
    assert document["workload"]["endpoint"] == "/v1/chat/completions"
    assert document["workload"]["dataset"] == "chats.jsonl"
    assert re.fullmatch("[0-9a-f]{64}", document["workload"]["dataset_sha256"])


def test_a_replay_sends_a_trace(server: Server, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lengths = [(0, 300), (40, 300), (90, 100), (95, 100_000)]
    records = [
        {"timestamp": at, "input_length": length, "output_length": 3, "hash_ids": [1]}
        for at, length in lengths
    ]
    path.write_text("\n".join(map(json.dumps, records)))

    code, document = bench(capsys, server.url, "--replay", str(path), "--warmup", "0")

    result = document["results"][0]
    assert (code, document["findings"]) == (0, [])
    assert (result["load"], result["completed"]) == ("replay 1x", 3)
    assert result["total_input_tokens"] == 700
    assert result["server_counters"]["prefix_hits"] > 0  # two of them are of the same block
    assert any("1 of 4 requests of trace.jsonl need more than" in n for n in document["notes"])
    assert document["workload"]["trace"] == "trace.jsonl"
    assert "\nthe requests of trace.jsonl, /v1/completions, 1 rounds" in text_report(document)


def test_turns_of_a_session_are_explained_cache_hits(server: Server, capsys: Capture) -> None:
    code, document = bench(
        capsys,
        *(server.url, "--preset", "agent", "--prompt-tokens", "100:400", "--turns", "4"),
        *("--concurrency", "2", "--num-prompts", "8", "--repeat", "1", "--output-tokens", "3"),
    )

    result = document["results"][0]
    assert (code, document["findings"]) == (0, [])
    assert result["total_input_tokens"] == 2 * (100 + 200 + 300 + 400)
    assert result["server_counters"]["prefix_hits"] > 0
    assert document["workload"]["preset"] == "agent"
    assert document["workload"]["endpoint"] == "/v1/chat/completions"


def test_a_run_that_was_stopped_goes_on(server: Server, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    arguments = [server.url, "--concurrency", "1,2", "--num-prompts", "4", "--repeat", "1"]
    arguments += ["--output-tokens", "2", "--warmup", "1", "--save", str(path)]
    bench(capsys, *arguments)
    whole = json.loads(path.read_text())
    stopped = {**whole, "results": whole["results"][:1], "is_complete": False}
    path.write_text(json.dumps(stopped))

    code, document = bench(capsys, *arguments)

    assert (code, document["findings"]) == (0, [])  # nothing was sent again: no cached prompts
    assert document["results"][0] == whole["results"][0]
    assert [result["load"] for result in document["results"]] == ["concurrency 1", "concurrency 2"]
    assert document["results"][1] != whole["results"][1]
    assert document["workload"]["seed"] == whole["workload"]["seed"]
    complete = path.read_text()
    assert bench(capsys, *arguments)[1]["results"] == document["results"]
    assert json.loads(path.read_text())["results"] == json.loads(complete)["results"]
    assert run(["bench", *arguments, "--num-prompts", "5"]) == 2
    assert "its num_prompts is 4, asked is 5" in capsys.readouterr().err
    whole["workload"]["models"] = ["another"]  # was served at this address then
    path.write_text(json.dumps(whole))
    assert run(["bench", *arguments]) == 2
    assert "its models is ['another'], asked is ['tiny']" in capsys.readouterr().err


def test_prompts_that_the_server_has_no_room_for_are_refused(
    server: Server, capsys: Capture
) -> None:
    assert run(["bench", server.url, "--prompt-tokens", "60:999999999"]) == 2
    assert "need more than the" in capsys.readouterr().err


# ---- scripted servers ---------------------------------------------------------------------------


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def answer(call: Call, *, tokens_short: int = 0, extra_prompt: int = 0) -> Answer:
    """As many tokens as asked for, and a word counts as a token."""
    body = json.loads(call.body)
    num = body["max_tokens"] - tokens_short
    usage = {
        "prompt_tokens": len(body["prompt"].split()) + extra_prompt,
        "completion_tokens": num,
    }
    last = [event(choices=[], usage=usage), b"data: [DONE]\n\n"]
    return Answer(itertools.chain(slow_tokens(num), last))


def slow_tokens(num: int) -> Iterator[bytes]:
    """Slower than the client, which shares this process, needs to read them."""
    for _ in range(num):
        time.sleep(0.01)
        yield event(choices=[{"text": "x"}])


def scripted(**behaviour: int) -> dict[str, Any]:
    return {
        "/v1/models": lambda _call: Answer([b'{"data": [{"id": "scripted"}]}']),
        "/v1/completions": lambda call: answer(call, **behaviour),
    }


QUICK = ("--concurrency", "2", "--num-prompts", "4", "--output-tokens", "4", "--warmup", "1")


@pytest.fixture
def two_servers() -> Iterator[tuple[LocalServer, LocalServer]]:
    with ExitStack() as stack:
        yield (
            stack.enter_context(serving(scripted())),
            stack.enter_context(serving(scripted())),
        )


def test_two_servers_take_turns_with_the_same_prompts(
    two_servers: tuple[LocalServer, LocalServer], capsys: Capture
) -> None:
    ours, theirs = two_servers
    code, document = bench(capsys, ours.url, "--vs", theirs.url, *QUICK, "--repeat", "2")

    assert (code, document["findings"]) == (0, [])
    ratio = document["ratios"][0]["output_throughput"]
    pairs = zip(*(result["rounds"] for result in document["results"]), strict=True)
    product = 1.0
    for a, b in pairs:
        product *= a["output_throughput"] / b["output_throughput"]
    assert ratio["value"] == pytest.approx(product**0.5)
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    sent = [
        sorted(json.loads(c.body)["prompt"] for c in server.calls if c.path == "/v1/completions")
        for server in two_servers
    ]
    assert len(sent[0]) == len(sent[1]) == 1 + 2 * 4
    assert len(set(sent[0])) == len(sent[0])
    assert len(set(sent[0]) & set(sent[1])) == 2 * 4  # all but the warm-up's


def test_servers_that_do_other_work_are_refused(capsys: Capture) -> None:
    with serving(scripted()) as ours, serving(scripted(extra_prompt=40)) as theirs:
        code, document = bench(capsys, ours.url, "--vs", theirs.url, *QUICK, "--repeat", "1")

    assert (code, finding_ids(document)) == (3, ["unequal-work"])


def test_short_answers_are_refused(capsys: Capture) -> None:
    with serving(scripted(tokens_short=1)) as server:
        code, document = bench(capsys, server.url, *QUICK, "--repeat", "1")

    assert (code, finding_ids(document)) == (3, ["unequal-work"])
    assert any("no /tokenize" in note for note in document["notes"])


def test_a_sweep_shows_latency_by_rate(capsys: Capture) -> None:
    with serving(scripted()) as server:
        arguments = [server.url, "--rate", "sweep", "--num-prompts", "2", "--repeat", "1"]
        run(["bench", *arguments, "--output-tokens", "2", "--slo", "e2e:60000"])

    out = capsys.readouterr().out
    bars = re.findall(r"^ +[\d.]+/s [█░]+", out, re.MULTILINE)
    assert len(bars) == 7
    assert len(re.findall("<- (?:no knee up to here|knee)", out)) == 1


def test_plain_and_progress(capsys: Capture) -> None:
    with serving(scripted()) as server:
        code = run(["bench", server.url, *QUICK, "--repeat", "1", "--plain"])

    output = capsys.readouterr()
    rows = [line.split("\t") for line in output.out.splitlines()]
    found = {row[2] for row in rows if row[0] == "finding"}
    assert found <= set(OF_A_BUSY_MACHINE)
    assert code == (3 if found else 0)
    assert {len(row) for row in rows} == {6}
    assert [server.url, "concurrency 2", "completed", "4", "-", "-"] in rows
    assert "concurrency 2, round 1 of 1" in output.err


def test_errors_are_counted_by_kind(capsys: Capture) -> None:
    calls = 0

    def failing_sometimes(call: Call) -> Answer:
        nonlocal calls
        calls += 1
        return Answer([b'{"error": {"message": "full"}}'], 503) if calls % 2 else answer(call)

    with serving({**scripted(), "/v1/completions": failing_sometimes}) as server:
        code, document = bench(capsys, server.url, *QUICK, "--repeat", "1", "--warmup", "0")

    assert (code, finding_ids(document)) == (3, ["errors"])
    assert document["results"][0]["errors"] == {"HTTP 503": 2}
    assert "full" in document["findings"][0]["text"]


def test_nothing_answered_is_a_no(capsys: Capture) -> None:
    with serving({**scripted(), "/v1/completions": lambda _call: Answer(status=500)}) as server:
        code, document = bench(capsys, server.url, *QUICK, "--repeat", "1")

    assert (code, document["results"][0]["failed"]) == (1, 4)


def test_no_server(capsys: Capture) -> None:
    assert run(["bench", f"127.0.0.1:{free_port()}"]) == 4
    assert "stoker serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency", "0"],
        ["--concurrency", "1.5"],
        ["--rate", "fast"],
        ["--rate", "1", "--concurrency", "1"],
        ["--prompt-tokens", "0"],
        ["--slo", "speed:1"],
        ["--dataset", "none.jsonl"],
        ["--dataset", "none.jsonl", "--preset", "chat"],
        ["--replay", "none.jsonl"],
        ["--replay", "none.jsonl", "--rate", "2"],
        ["--replay", "none.jsonl", "--output-tokens", "5"],
        ["--replay", "none.jsonl", "--prefix-share", "0.5"],
        ["--speed", "2"],
        ["--slo", "ttft:nan"],
        ["--slo", "ttft:-1"],
        ["--preset", "video"],
        ["--prompt-tokens", "²"],
        ["a:1", "b:2"],
    ],
)
def test_usage_errors(arguments: list[str]) -> None:
    assert run(["bench", *arguments]) == 2


def test_one_client_serves_all_rounds_and_a_refused_field_is_left_out(capsys: Capture) -> None:
    """As `transformers serve` answers: 422 that names what it does not know."""
    bodies: list[dict[str, Any]] = []

    def complete(call: Call) -> Answer:
        body = json.loads(call.body)
        bodies.append(body)
        for name in ("ignore_eos", "stream_options"):
            if name in body:
                detail = {"detail": f"Unexpected keys in the request: {{'{name}'}}"}
                return Answer([json.dumps(detail).encode()], 422, "application/json")
        event = json.dumps({"choices": [{"text": "a", "finish_reason": "stop"}]}).encode()
        return Answer([b"data: " + event + b"\n\n", b"data: [DONE]\n\n"])

    models = json.dumps({"data": [{"id": "m"}]}).encode()
    routes: dict[str, Route] = {
        "/v1/models": lambda _call: Answer([models]),
        "/v1/completions": complete,
    }
    with serving(routes) as server:
        arguments = [server.url, "--concurrency", "1", "--num-prompts", "2", "--repeat", "2"]
        code, document = bench(capsys, *arguments, "--output-tokens", "1", "--warmup", "0")

    assert (code, document["results"][0]["failed"]) == (0, 0)
    assert document["results"][0]["completed"] == 4
    assert len(bodies) == 4 + 2, "each field is refused once"
    notes = " ".join(document["notes"])
    assert "refuses ignore_eos: answers end where the model ends them" in notes
    assert "refuses stream_options" in notes


def test_a_refusal_of_something_else_stays_one(capsys: Capture) -> None:
    def complete(_call: Call) -> Answer:
        return Answer([b'{"error": {"message": "the prompt is too long"}}'], 400)

    models = json.dumps({"data": [{"id": "m"}]}).encode()
    routes: dict[str, Route] = {
        "/v1/models": lambda _call: Answer([models]),
        "/v1/completions": complete,
    }
    with serving(routes) as server:
        arguments = [server.url, "--concurrency", "1", "--num-prompts", "2", "--repeat", "1"]
        code, document = bench(capsys, *arguments, "--warmup", "0")
        calls = [call for call in server.calls if call.path == "/v1/completions"]
    assert (code, len(calls)) == (1, 2)
    assert document["results"][0]["errors"] == {"HTTP 400": 2}
