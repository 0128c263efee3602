"""Flags that were dropped, or belong to another engine: what is answered, for every release."""

from __future__ import annotations

import re

import pytest

from app.errors import UsageError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.launch.flag_answers import release
from app.launch.launch_specs import engine_flags, models_of_plan, parse_serve_request
from logparse.problems.flags import (
    FIRST_RELEASES,
    GONE_FLAGS,
    OWN_ANSWERS,
    OWN_FLAGS,
    VLLM_FLAGS,
    VLLM_SWITCHES,
    Version,
    knows_flag,
    version_of,
)

RELEASES = sorted({*FIRST_RELEASES.values(), *(one.since for one in GONE_FLAGS.values())})
ALL = (None, (0, 5, 0), *RELEASES)
NOT_OURS = [flag for flag in GONE_FLAGS if flag not in OWN_FLAGS]


def refusal(*words: str, engine: str = STOKER, version: Version | None = None) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        parse_serve_request(["org/name", *words], engine, version)
    return str(caught.value), str(caught.value.hint)


@pytest.mark.parametrize("version", ALL)
def test_no_hint_sends_a_flag_to_a_release_that_refuses_it(version: Version | None) -> None:
    for flag, gone in GONE_FLAGS.items():
        if flag in OWN_FLAGS:
            continue
        _, hint = refusal(flag, "1", engine=VLLM, version=version)
        advised = re.findall(r"(?:what took its place: |-- )(--[\w-]+)", hint)
        if gone.is_gone(version):
            assert flag not in advised, (flag, hint)
            assert "vLLM has removed it" in hint
        for one in advised:
            assert knows_flag(one, version), (flag, hint)
            assert one not in GONE_FLAGS or not GONE_FLAGS[one].is_gone(version), hint


@pytest.mark.parametrize("version", RELEASES)
def test_a_flag_of_a_later_release_is_refused_before_the_start(version: Version) -> None:
    typed = {"--runner": "pooling", "--kv-cache-memory-bytes": "2G", "--pooler-config": "{}"}
    for flag, value in typed.items():
        if knows_flag(flag, version):
            assert parse_serve_request(["org/name", flag, value], VLLM, version)
        else:
            _, hint = refusal(flag, value, engine=VLLM, version=version)
            assert f"vLLM {release(version)} does not have it" in hint


def test_a_release_that_still_has_a_flag_gets_it_behind_the_dashes() -> None:
    _, hint = refusal("--task", "embed", engine=VLLM, version=(0, 9, 0))
    assert hint == "flags of vllm alone go to the end, behind `--`: -- --task embed"
    _, hint = refusal("--task", "embed", engine=VLLM, version=(0, 13, 0))
    assert hint.endswith("what took its place: --runner pooling")


def test_all_flags_are_answered_at_once() -> None:
    message, hint = refusal(
        *("--swap-space", "2", "--download-dir=/opt/m", "--trust-remote-code", "--seed", "1")
    )
    assert message == "no such flags: --swap-space, --download-dir, --trust-remote-code"
    lines = [line.strip() for line in hint.splitlines() if line]
    assert [line.partition(":")[0] for line in lines] == [
        *("--swap-space", "--download-dir", "--trust-remote-code")
    ]
    assert lines[0].endswith("leave it out")
    assert lines[1].endswith("HF_HUB_CACHE=/opt/m")


def test_flags_that_join_machines_are_those_of_vllm() -> None:
    words = ("-n", "2", "-r", "1", "--master-addr", "10.0.0.1", "--master-port=29500", "--headless")
    args = parse_serve_request(["org/name", *words], STOKER).args
    assert (args.nnodes, args.node_rank, args.is_headless) == (2, 1, True)
    assert (args.master_addr, args.master_port) == ("10.0.0.1", 29500)


def test_every_flag_of_vllm_has_an_answer_of_our_engine_and_of_llama_cpp() -> None:
    for flag in {*VLLM_FLAGS, *NOT_OURS, *OWN_ANSWERS} - OWN_FLAGS - {"--data-parallel-size"}:
        for engine in (STOKER, LLAMA_CPP):
            _, hint = refusal(flag, engine=engine)
            assert "did you mean" not in hint, (flag, hint)
            assert "--help" not in hint, (flag, hint)
    assert set(VLLM_FLAGS) >= VLLM_SWITCHES


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--enable-chunked-prefill=False"], "--no-enable-chunked-prefill alone"),
        (["--enable-chunked-prefill", "false"], "--no-enable-chunked-prefill alone"),
        (["--enable_chunked_prefill", "True"], "--enable-chunked-prefill alone"),
        (["--enforce-eager=1"], "--enforce-eager alone"),
        (["--no-enable-prefix-caching=true"], "--no-enable-prefix-caching alone"),
    ],
)
def test_a_switch_with_a_value_is_answered_with_its_form(words: list[str], hint: str) -> None:
    message, found = refusal(*words)
    assert "is a switch and takes no value" in message
    assert found == hint
    assert parse_serve_request(["org/name", *hint.split()[:1]])


def test_a_plan_passes_over_what_it_does_not_depend_on() -> None:
    words = ["org/name", "--host", "0.0.0.0", "--trust-remote-code", "--download-dir", "/m"]
    assert models_of_plan(words, VLLM, None, ["--gpu"]) == (
        ["org/name"],
        ["--download-dir", "--host", "--trust-remote-code"],
    )
    with pytest.raises(UsageError, match="no such flag: --gpux") as caught:
        models_of_plan(["m", "--gpux", "4"], VLLM, None, ["--gpu"])
    assert caught.value.hint == "did you mean --gpu?"
    with pytest.raises(UsageError, match="no such flag: --swap-space"):
        models_of_plan(["m", "--swap-space", "4"], VLLM, None, [])
    assert models_of_plan(["m", "--swap-space", "4"], VLLM, (0, 17, 0), []) == (
        ["m"],
        ["--swap-space"],
    )


@pytest.mark.parametrize("engine", [STOKER, VLLM, LLAMA_CPP])
def test_a_token_is_never_repeated(engine: str) -> None:
    for words in (["--hf-token", "hf_secret"], ["--hf-token=hf_secret"], ["-hft", "hf_secret"]):
        message, hint = refusal(*words, engine=engine)
        assert "hf_secret" not in message + hint
        assert "stoker models login" in hint


def test_releases() -> None:
    assert version_of("v0.8.5.post1") == (0, 8, 5)
    assert version_of("0.30") == (0, 30, 0)
    assert version_of("nightly") is None
    assert [release(one) for one in ((0, 18, 0), (0, 10, 1), (0, 30))] == ["0.18", "0.10.1", "0.30"]
    assert {flag.name for flag in engine_flags()} <= OWN_FLAGS
