"""`stoker plan` and `stoker choose` as a user runs them: streams, exit codes, printed figures."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.paths import MEMORY_LEDGER
from app.planning.builtin_shapes import BUILTIN_SHAPES
from app.planning.calibration import shape_key
from app.planning.memory_ledger import Figures, LedgerEntry, MemoryLedger
from app.planning.plan_models import find_planned_model
from engine.machine.sizes import GIB
from tests.default_model import default_gguf, default_model_folder
from tests.gemma_model import gemma_folder
from tests.loaded_modules import HEAVY, loaded_by, top_level
from tests.places import DATA
from tests.stoker_command import run_stoker

EXAMPLES = json.loads((DATA / "seed_plan_examples.json").read_text())
READY_LOGS = {  # logs whose model shape is known; those that the log does not name, by argument
    "002-v066-v0-single-gpu": (),
    "005-v084-tp2-interleaved": (),
    "007-v085-cpu-shell-transcript": (),
    "011-v0100-bars-on-own-lines": (),
    "015-v0101-tp2-vllmworker": (),
    "016-v0102-wsl-fails-then-ready": ("llama-2-7b",),  # the decoder of LLaVA 1.5
    "019-v0110-rocm-docker-compose": (),
    "021-v0112-negative-graph-memory": (),
    "022-v0120-ready-then-engine-dies": (),
    "030-v0151-tiktoken-after-engine-init": (),
    "037-v0171-sagemaker-debug-noise": (),
    "043-v0220-embedding-8b": (),
    "044-v0221rc-cpu-macos-prompt": (),
    "058-v0271-pp2-no-timestamps": ("qwen3-32b", "--pp", "2"),
    "070-sglang-single-gpu": (),
    "078-llamacpp-cuda-client-errors": (),
    "cap-vllm030-cpu-ready-and-stop": ("smollm2-135m",),
}


def stoker(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_stoker(*words, variables=variables)


def plan_json(*arguments: str) -> dict[str, Any]:
    done = stoker("plan", *arguments, "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "stoker.plan"
    return document


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["example"])
def test_examples_of_the_lesson_to_the_digit(example: dict[str, Any]) -> None:
    done = stoker("plan", *example["args"])
    lines = done.stdout.splitlines()

    assert done.returncode == example["exit_code"], done.stderr
    start = lines.index(example["lines"][0])
    wanted = [line for line in lines[start:] if line in example["lines"]]
    assert wanted == example["lines"]


def test_example_6_in_json_and_plain() -> None:
    flags = ("--non-torch-gib", "0.60", "--peak-gib", "1.20", "--graph-gib", "0.35")
    arguments = ("llama-3.1-8b", "--gpu", "24GiB", "--max-model-len", "32768", *flags)
    document = plan_json(*arguments)
    plain = dict(
        line.split("\t", 1) for line in stoker("plan", *arguments, "--plain").stdout.splitlines()
    )

    assert document["parameters"] == 8_030_261_248
    assert (document["bytes_per_block"], document["page_bytes"]) == (2048 << 10, 65_536)
    assert (document["kv_blocks"], document["kv_tokens"]) == (2545, 40_720)
    assert document["max_concurrency"] == pytest.approx(2545 / 2048, abs=1e-4)
    assert plain["kv_blocks"] == "2545"
    assert plain["fits"] == "True"


def test_example_11_to_the_digit() -> None:
    done = stoker("choose", "--needs", str(DATA / "seed_example11_needs.json"))

    assert done.returncode == 0
    assert done.stdout == (DATA / "seed_example11_answers.txt").read_text()


@pytest.fixture
def refused_checkpoint(tmp_path: Path) -> str:
    """A folder with the config.json of experts in a format that ours reads of gpt-oss alone."""
    config = BUILTIN_SHAPES["mixtral-8x7b"].config
    text = json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}})
    (tmp_path / "config.json").write_text(text)
    return str(tmp_path)


def test_choose_advises_nothing_that_does_not_exist(refused_checkpoint: str) -> None:
    unknown = stoker("choose", "nope")
    known = stoker(
        "choose", "llama-3.1-8b", "--host", str(DATA / "hosts" / "platform-4-cpu-build.json")
    )
    quantised = stoker(
        "choose", refused_checkpoint, "--host", str(DATA / "hosts" / "platform-4-cpu-build.json")
    )

    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no such model: nope" in unknown.stderr
    assert "stoker serve meta-llama/Llama-3.1-8B-Instruct --max-model-len auto\n" in known.stdout
    assert "stoker serve" not in quantised.stdout


def test_a_hub_id_of_a_built_in_shape_needs_no_hub() -> None:
    document = plan_json("meta-llama/Llama-3.1-8B-Instruct", "--gpu", "24GiB")

    assert document["parameters"] == 8_030_261_248
    assert document["weights_basis"] == "counted from the shape"


def test_a_checkpoint_that_serve_refuses_gets_no_serve_command(refused_checkpoint: str) -> None:
    commands = plan_json(refused_checkpoint, "--gpu", "h100")["commands"]

    assert commands["vllm"] == f"vllm serve {refused_checkpoint}"
    assert commands["stoker"] is None
    assert plan_json("gpt-oss-20b", "--gpu", "h200")["commands"]["stoker"] is not None


def test_figures_of_a_cpu_add_up_and_the_bar_draws_them() -> None:
    done = stoker("plan", "smollm2-135m", "--gpu", "cpu", "--no-calibration")
    (bar,) = (line for line in done.stdout.splitlines() if line.startswith("["))
    found = dict(re.findall(r"^(free RAM|weights) += ([\d.]+) GiB", done.stdout, re.MULTILINE))

    assert done.stdout.startswith("It fits.")
    assert float(found["free RAM"]) > float(found["weights"])
    assert re.fullmatch(r"\[#*\+*=+\.*\] [\d.]+ GiB", bar)
    assert bar.endswith(f"] {found['free RAM']} GiB")


def test_choose_explains_itself_for_this_machine() -> None:
    for rules, engines in (("all", ("Stoker", "vLLM")), ("seed", ("vLLM", "llama.cpp"))):
        done = stoker("choose", "llama-3.1-8b", "--users", "20", "--rules", rules, "--json")
        choice = json.loads(done.stdout)["choices"][0]

        assert done.returncode == 0
        assert choice["engine"] in engines
        assert choice["facts"]["concurrent_users"] == 20
        starts = ("stoker serve meta-llama/", "vllm serve meta-llama/", "llama-server")
        assert choice["command"].startswith(starts)


@pytest.mark.parametrize(
    "flags", [("--start",), ("nope", "--rules", "best"), ("m", "--start", "--needs", "f.json")]
)
def test_choose_refuses_what_it_cannot_do(flags: tuple[str, ...]) -> None:
    assert stoker("choose", *flags).returncode == 2


@pytest.mark.parametrize("name", READY_LOGS)
def test_capacity_of_real_starts_follows_from_their_kv_memory(
    name: str, shared_folder: Path
) -> None:
    log = shared_folder / "logs" / f"{name}.log"
    done = stoker("plan", *READY_LOGS[name], "--from-log", str(log), "--json")
    document = json.loads(done.stdout)
    capacity = [value for value in document["values"] if not value["is_estimate"]]

    assert capacity
    assert all(value["agrees"] for value in capacity), capacity
    assert done.returncode == 0
    # The prediction is sharp: a rounded GiB leaves a part in a hundred, or one block, open.
    for value in capacity:
        assert value["high"] - value["low"] <= max(0.01 * value["high"], 16)


def test_a_log_of_another_model_differs(shared_folder: Path) -> None:
    log = shared_folder / "logs" / "022-v0120-ready-then-engine-dies.log"
    done = stoker("plan", "llama-3.1-8b", "--from-log", str(log))

    assert done.returncode == 1
    assert re.search(r"kv_tokens +logged +198,288 .* differs", done.stdout)


def test_a_log_without_capacity_is_not_enough(shared_folder: Path) -> None:
    log = shared_folder / "logs" / "024-v0130-oom-loading-weights.log"

    assert stoker("plan", "--from-log", str(log)).returncode == 3


def test_what_does_not_fit_says_what_would() -> None:
    done = stoker("plan", "llama-3.3-70b", "--gpu", "h100")
    document = plan_json("llama-3.3-70b", "--gpu", "h100")

    assert done.returncode == 1
    assert done.stdout.startswith("It does not fit.")
    assert "what would, each alone: --tensor-parallel-size 4" in done.stdout
    assert document["least_tensor_parallel"] == 4
    assert document["commands"]["vllm"].endswith(" --tensor-parallel-size 4")
    assert plan_json("llama-3.3-70b", "--gpu", "h100", "--tp", "4")["fits"] is True
    assert plan_json("llama-3.3-70b", "--gpu", "h100", "--tp", "2")["fits"] is False


def test_the_longest_length_is_the_longest() -> None:
    arguments = ("llama-3.1-8b", "--gpu", "24GiB", "--max-model-len")
    longest = plan_json(*arguments, "8192")["longest_model_len"]

    assert plan_json(*arguments, str(longest))["fits"] is True
    assert plan_json(*arguments, str(longest + 1))["fits"] is False
    assert plan_json(*arguments, "auto")["max_model_len"] == longest


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "MODEL is missing"),
        (("lama-3.1-8b", "--gpu", "24GiB"), 2, "did you mean llama-3.1-8b?"),
        (("qwen3-8b", "--gpu", "rtx490"), 2, "did you mean rtx4090?"),
        (("qwen3-8b", "--gpu", "24GiB", "--tp", "3"), 2, "sizes that do: 1, 2, 4, 8, 16"),
        (("qwen3-8b", "--gpu", "24GiB", "--max-model-len", "1M"), 2, "use 40960 or less"),
        (("qwen3-8b", "--gpu", "24GiB", "--quantization", "awq"), 2, "fp8 can be planned there"),
        (("qwen3-8b", "--gpu", "24GiB", "--kv-cache-dtype", "int3"), 2, "'int3' is not known"),
        (("a/b", "--gpu", "24GiB"), 4, "HF_HUB_OFFLINE forbids"),
        (("--from-log", "/no/such.log"), 2, "cannot read /no/such.log"),
    ],
)
def test_errors_say_what_to_type(arguments: tuple[str, ...], code: int, message: str) -> None:
    done = stoker("plan", *arguments)

    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


def start_of(log: Path) -> LedgerEntry:
    """A start of the default model by vLLM on a card of 24 GiB that took 2 GiB for itself."""
    return LedgerEntry(
        at=1.0,
        server="one",
        engine="vllm",
        engine_version="0.30.0",
        model="org/one",
        shape=shape_key(find_planned_model("smollm2-135m").shape),
        device="24GiB",
        tensor_parallel_size=1,
        max_model_len=8192,
        predicted=Figures(weights_bytes=GIB // 4, kv_bytes=19 * GIB, kv_tokens=885_000),
        actual=Figures(weights_bytes=GIB // 4, kv_bytes=20 * GIB, other_bytes=2 * GIB),
        estimated_other_bytes=GIB,
        log_path=str(log),
        model_path="smollm2-135m",
    )


@pytest.fixture
def ledger(tmp_path: Path) -> MemoryLedger:
    """The ledger that the command reads."""
    return MemoryLedger(tmp_path / "state" / MEMORY_LEDGER)


def test_earlier_starts_calibrate_and_say_so(ledger: MemoryLedger, tmp_path: Path) -> None:
    arguments = ("smollm2-135m", "--gpu", "24GiB", "--engine", "vllm")
    before = plan_json(*arguments)
    for _ in range(3):
        ledger.add(start_of(tmp_path / "one.log"))
    after, text = plan_json(*arguments), stoker("plan", *arguments).stdout

    assert before["calibration"] is None
    assert (after["calibration"]["starts"], after["calibration"]["likely"]) == (3, 2.0)
    estimates = [sum(a["bytes"] for a in plan["assumptions"]) for plan in (before, after)]
    assert estimates[1] == 2 * estimates[0]
    assert "times 2.00 (2.00 to 2.00), calibrated by 3 earlier starts of this model on" in text
    assert plan_json(*arguments, "--no-calibration") == before
    assert plan_json(*arguments, "--peak-gib", "1")["calibration"] is None
    assert plan_json("smollm2-135m", "--gpu", "12GiB", "--engine", "vllm")["calibration"] is None


def test_history_shows_planned_measured_and_error(ledger: MemoryLedger, tmp_path: Path) -> None:
    empty = stoker("plan", "--history")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "no start is recorded" in empty.stderr

    ledger.add(start_of(tmp_path / "one.log"))
    with (tmp_path / "state" / MEMORY_LEDGER).open("a") as file:
        file.write("{half a li\n")
    text, plain = stoker("plan", "--history"), stoker("plan", "--history", "--plain").stdout
    document = json.loads(stoker("plan", "--history", "--json").stdout)

    line = "  KV memory   planned    19.00 GiB  measured    20.00 GiB  error   -5.0%"
    assert line in text.stdout.splitlines()
    assert "1 damaged line(s)" in text.stderr
    assert (document["schema"], document["damaged_lines"]) == ("stoker.plan.history", 1)
    assert document["starts"][0]["error"]["kv_bytes"] == pytest.approx(-0.05)
    assert document["starts"][0]["error"]["kv_tokens"] is None
    assert f"one\tvllm\torg/one\t24GiB\tKV memory\t{19 * GIB}\t{20 * GIB}\t-0.05" in plain
    assert stoker("plan", "smollm2-135m", "--history").stdout == text.stdout
    assert stoker("plan", "qwen3-8b", "--history").stdout == ""


def test_verify_takes_a_log_and_knows_its_model(ledger: MemoryLedger, tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text((DATA / "own_engine_start.log").read_text().replace("smollm2-135m", "mine"))
    unknown = stoker("plan", "verify", str(log))
    assert (unknown.returncode, unknown.stdout) == (2, "")

    ledger.add(start_of(log))
    done = stoker("plan", "verify", str(log))
    assert "weights_gib" in done.stdout, done.stderr
    assert done.stdout == stoker("plan", "verify", str(log), "smollm2-135m").stdout
    assert done.stdout == stoker("plan", "smollm2-135m", "--from-log", str(log)).stdout
    for words in (("verify",), ("verify", "none.log")):
        assert stoker("plan", *words).returncode == 2


def test_plan_loads_nothing_heavy() -> None:
    words = ["plan", "llama-3.1-8b", "--gpu", "24GiB", "--max-model-len", "8192"]
    modules = loaded_by(f"from app.cli import main; main({words!r})")

    assert top_level(modules) & set(HEAVY) == set()


class Hub(BaseHTTPRequestHandler):
    """A hub that serves one folder by range; `org/gated` is closed, everything else unknown."""

    folder: Path
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(f"{self.path} {self.headers.get('Range')}")
        if self.path.startswith("/org/gated/"):
            return self._answer(401, b"", {"X-Error-Code": "GatedRepo"})
        file = self.folder / self.path.rsplit("/", 1)[-1]
        if not self.path.startswith("/org/model/resolve/main/") or not file.is_file():
            return self._answer(404, b"", {})
        content = file.read_bytes()
        if self.headers.get("Range"):
            end = int(self.headers["Range"].rpartition("-")[2])
            return self._answer(206, content[: end + 1], {})
        return self._answer(200, content, {})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    seen: list[str] = []
    handler = type("OneHub", (Hub,), {"folder": default_model_folder(), "seen": seen})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_on_the_hub_by_range_request(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    url, seen = hub
    environment = {
        "HF_ENDPOINT": url,
        "HF_HUB_OFFLINE": "",
        "HF_HUB_CACHE": str(tmp_path),
        "no_proxy": "127.0.0.1",
        "NO_PROXY": "127.0.0.1",
    }
    done = stoker("plan", "org/model", "--gpu", "4GiB", "--json", **environment)
    document = json.loads(done.stdout)

    assert document["parameters"] == 134_515_008
    assert document["weights_basis"] == "headers of 1 safetensors file(s) on the hub"
    assert [line for line in seen if ".safetensors " in line] == [
        "/org/model/resolve/main/model.safetensors bytes=0-262143"
    ]
    gated = stoker("plan", "org/gated", "--gpu", "4GiB", **environment)
    assert gated.returncode == 4
    assert "org/gated is gated" in gated.stderr
    assert "HF_TOKEN" in gated.stderr
    unknown = stoker("plan", "org/none", "--gpu", "4GiB", **environment)
    assert unknown.returncode == 1
    assert "check the spelling" in unknown.stderr


def test_a_gguf_file_is_planned_for_llama_cpp() -> None:
    document = plan_json(str(default_gguf()), "--gpu", "4GiB")

    assert document["engine"] == "llama.cpp"
    assert document["parameters"] == 134_515_008
    assert document["weights_bytes_by_dtype"] == {
        "Q4_1": 66_355_200,
        "Q8_0": 30_081_024,
        "F32": 140_544,
    }
    assert document["bytes_per_block"] == 30 * 3 * 64 * 2 * 2
    assert document["commands"]["vllm"] is None
    assert document["commands"]["llama.cpp"].startswith("llama-server --model ")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("model_folder", "flags"),
    [
        (default_model_folder, ("--max-model-len", "2048")),
        (default_model_folder, ("--kv-cache-memory-bytes", "1G", "--kv-cache-dtype", "fp8")),
        (gemma_folder, ("--max-model-len", "8192")),
    ],
)
def test_our_engine_logs_what_was_planned(
    model_folder: Callable[[], Path], flags: tuple[str, ...], tmp_path: Path
) -> None:
    folder = str(model_folder())
    planned = plan_json(folder, "--gpu", "cpu", *flags)
    log = tmp_path / "engine.log"
    command = [sys.executable, "-m", "engine", "serve", folder, "--port", "0", *flags]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    try:
        logged = _logged_tokens(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)

    assert planned["kv_tokens"] == pytest.approx(logged, rel=0.02)
    compared = stoker("plan", folder, "--gpu", "cpu", *flags, "--from-log", str(log))
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert re.search(r"kv_tokens .* agrees", compared.stdout)


def _logged_tokens(process: subprocess.Popen[bytes], log: Path) -> int:
    while True:
        has_ended = process.poll() is not None
        found = re.search(r"KV cache size: ([\d,]+) tokens", log.read_text())
        if found is not None:
            return int(found[1].replace(",", ""))
        assert not has_ended, log.read_text()
        time.sleep(0.1)


def test_a_command_line_of_serve_can_be_planned() -> None:
    words = ["--name", "it", "--port", "9000", "--trust-remote-code", "--drain", "5", "-d"]
    done = stoker("plan", "llama-3.1-8b", "--gpu", "24GiB", "--max-model-len", "8192", *words)

    assert done.returncode == 0, done.stderr
    assert "not part of a plan: --detach, --drain, --name, --trust-remote-code" in (done.stderr)


def joint(*arguments: str) -> dict[str, Any]:
    done = stoker("plan", *arguments, "--json")
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert (document["schema"], document["schema_version"]) == ("stoker.plan.joint", 1)
    return document


@pytest.mark.parametrize(
    "words",
    [
        ("gemma-3-270m", "qwen3-0.6b", "--max-model-len", "2048", "--gpu", "8GiB"),
        (
            "qwen3-4b",
            *["--max-model-len", "8k", "+", "qwen3-0.6b", "--port", "9001", "--gpu", "rtx4090"],
        ),
        ("smollm2-135m", "gemma-3-270m", "--gpu", "cpu", "--max-model-len", "512"),
    ],
)
def test_the_commands_of_several_servers_can_be_planned_as_they_are(words: tuple[str, ...]) -> None:
    document = joint(*words)
    device = words[words.index("--gpu") + 1]
    commands = [server["command"] for server in document["servers"]]
    typed = " + ".join(command.removeprefix("stoker serve --detach ") for command in commands)
    again = joint(*typed.split(), "--gpu", device)

    assert document["fits"]
    assert again["fits"]
    assert [one["plan"]["fits"] for one in again["servers"]] == [True, True]
    assert [one["port"] for one in again["servers"]] == [s["port"] for s in document["servers"]]
    for command in commands:
        alone = command.removeprefix("stoker serve --detach ").split()
        assert stoker("plan", *alone, "--gpu", device).returncode == 0


def test_several_servers_are_shown_with_their_shares_and_commands() -> None:
    done = stoker("plan", "gemma-3-270m", "+", "qwen3-0.6b", "--gpu", "rtx4090")
    lines = done.stdout.splitlines()

    assert done.returncode == 0
    assert lines[0].startswith("They fit together on rtx4090")
    assert lines[3].split()[:2] == ["A", "gemma-3-270m"]
    assert 0 < float(lines[3].split()[2]) < 1
    assert lines[-2].startswith(
        "  stoker serve --detach --engine vllm google/gemma-3-270m-it --port 8000 "
    )
    assert "--port 8001" in lines[-1]
    plain = stoker("plan", "gemma-3-270m", "+", "qwen3-0.6b", "--gpu", "rtx4090", "--plain").stdout
    assert [line.split("\t")[1] for line in plain.splitlines()] == ["8000", "8001"]


def test_servers_that_do_not_fit_say_what_would() -> None:
    document = joint("qwen3-8b", "+", "qwen3-4b", "--gpu", "rtx4090")

    assert not document["fits"]
    assert document["shortfall"].startswith("Together they need at least")
    assert document["advice"]
    assert stoker("plan", "qwen3-8b", "qwen3-4b", "--gpu", "rtx4090").returncode == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("qwen3-0.6b", "+"), "a model is missing beside +"),
        (("+", "qwen3-0.6b"), "a model is missing beside +"),
        (("qwen3-0.6b", "+", "--port", "9000"), "a model is missing beside +"),
        (("qwen3-0.6b", "--gpu", "8GiB", "+", "qwen3-0.6b", "--gpu", "cpu"), "one device"),
        (("qwen3-0.6b", "qwen3-4b", "--port", "9000"), "--port is one server's"),
        (("qwen3-0.6b", "--port", "9000", "+", "qwen3-4b", "--port", "9000"), "on one port"),
        (("qwen3-0.6b", "+", "qwen3-4b", "--tp", "2", "--gpu", "h200"), "on one device"),
        (("verify", "x.log", "+", "qwen3-4b"), "one model at a time"),
        (("qwen3-0.6b", "+", "qwen3-4b", "--history"), "one model at a time"),
    ],
)
def test_what_several_servers_cannot_have_is_refused(words: tuple[str, ...], said: str) -> None:
    done = stoker("plan", *words)

    assert done.returncode == 2
    assert said in done.stderr


def test_each_machine_needs_room_for_its_own_ranks() -> None:
    """Those of one machine share its RAM, and have nothing of what other machines hold."""
    one, stages, tensors = (
        plan_json("llama-3.1-8b", "--gpu", "cpu", "--engine", "stoker", *layout)
        for layout in (
            ("--tp", "2", "--pp", "2"),
            ("--tp", "2", "--pp", "2", "--nnodes", "2"),
            ("--tp", "4", "--nnodes", "2"),
        )
    )
    for several in (stages, tensors):
        assert 0.49 < several["weights_bytes"] / one["weights_bytes"] < 0.6
        assert several["bytes_per_block"] * 2 == one["bytes_per_block"]


def test_machines_have_a_command_each() -> None:
    layout = ("--tp", "2", "--pp", "2", "--nnodes", "2")
    document = plan_json("llama-3.1-8b", "--gpu", "24GiB", *layout, "--engine", "stoker")
    processes = [line.strip() for line in document["processes"]]
    assert processes[4:] == [
        "Node_1  starts the workers of node 1 and speaks with node 0",
        "Worker_PP1_TP0  model runner on GPU 0, node 1",
        "Worker_PP1_TP1  model runner on GPU 1, node 1",
    ]
    commands = document["node_commands"]
    assert commands["stoker"][0] == document["commands"]["stoker"]
    for number, (ours, theirs) in enumerate(zip(commands["stoker"], commands["vllm"], strict=True)):
        assert f"--node-rank {number}" in ours
        assert f"--node-rank {number}" in theirs
        assert theirs.endswith("--headless") == (number == 1)
    refused = stoker("plan", "llama-3.1-8b", "--gpu", "24GiB", "--tp", "2", "--nnodes", "3")
    assert refused.returncode == 2
    assert "--nnodes 3 does not divide the 2 ranks" in refused.stderr
