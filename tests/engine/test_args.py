from __future__ import annotations

import argparse
import dataclasses

import pytest

from engine.args import EngineArgs, human_readable_int
from engine.config import CompilationConfig
from engine.env import HostDevice
from engine.errors import ConfigError
from engine.machine.sizes import GIB
from tests.engine.dense_model import MODEL

CPU = HostDevice("cpu", "cpu", None)


def parse(*words: str) -> EngineArgs:
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    return EngineArgs.from_cli(parser.parse_args(words))


def gpu(gib: int, name: str = "NVIDIA H100") -> HostDevice:
    return HostDevice("cuda", name, gib * GIB)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("4k", 4000),
        ("4K", 4096),
        ("25.6k", 25_600),
        ("2G", 2 * GIB),
        ("1GiB", GIB),
        ("9007199254740993", (1 << 53) + 1),
    ],
)
def test_numbers_with_units(text: str, value: int) -> None:
    assert human_readable_int(text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "4X", "1.5K", "-3", "9" * 25, "9" * 400, "1." + "0" * 400 + "k"]
)
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        human_readable_int(text)


def test_every_flag_has_help_and_a_default_that_is_not_reported() -> None:
    assert all(entry.metadata["help"] for entry in dataclasses.fields(EngineArgs))
    assert parse().non_default() == {}


def test_flags_are_spelled_as_vllm_spells_them_and_the_key_is_masked() -> None:
    args = parse(
        "--max-model-len", "2K", "--no-enable-prefix-caching", "--api-key", "s3cret", "--port", "9"
    )
    assert args.non_default() == {
        "max_model_len": 2048,
        "enable_prefix_caching": False,
        "api_key": "***",
        "port": 9,
    }


@pytest.mark.parametrize(
    ("host", "tokens", "seqs"),
    [
        (CPU, 2048, 128),
        (gpu(24), 2048, 256),
        (gpu(80), 8192, 1024),
        (gpu(80, "NVIDIA A100"), 2048, 256),
        (gpu(180), 16_384, 1024),
    ],
)
def test_defaults_follow_the_device(host: HostDevice, tokens: int, seqs: int) -> None:
    config = parse().create_engine_config(MODEL, host)
    assert config.scheduler.max_num_batched_tokens == tokens
    assert config.scheduler.max_num_seqs == seqs
    assert config.scheduler.max_model_len == 4096
    assert config.device.device == host.kind


def test_without_chunked_prefill_a_step_holds_a_whole_prompt() -> None:
    config = parse("--no-enable-chunked-prefill").create_engine_config(MODEL, CPU)
    assert config.scheduler.max_num_batched_tokens == 4096


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--max-model-len", "8192"), "--max-model-len 8192 is above the 4096 positions"),
        (("--port", "70000"), "--port 70000 is out of range"),
        (("--gpu-memory-utilization", "1.5"), r"1.5 is not in \(0, 1\]"),
        (("--max-logprobs", "-2"), "--max-logprobs -2 is out of range; it must be at least -1"),
        (("--max-num-seqs", "0"), "--max-num-seqs 0 is out of range"),
        (("--max-num-queued-reqs", "-1"), "--max-num-queued-reqs -1 is out of range"),
        (("--max-num-queued-tokens", "0"), "--max-num-queued-tokens 0 is out of range"),
        (("--ttft-target-ms", "0"), "--ttft-target-ms 0.0 is out of range; it must be at least 1"),
        (("--ttft-target-ms", "nan"), "--ttft-target-ms nan is out of range"),
        (("--ttft-target-ms", "200", "-dp", "2"), "add --api-server-count 1"),
        (("--api-server-count", "0"), "--api-server-count 0 is out of range"),
        (("-dp", "2", "-asc", "300"), "300 is out of range; it must be from 1 to 256"),
        (
            ("--data-parallel-routing", "prefix", "--no-enable-prefix-caching"),
            "prefix needs the prefix cache",
        ),
        (("--max-num-seqs", str(10**20)), "out of range; it must be from 1 to 1048576"),
        (("--seed", "-1"), "--seed -1 is out of range; it must be at least 0"),
        (("--seed", str(10**21)), "out of range; it must be from 0 to 9223372036854775807"),
        (("--kv-cache-memory-bytes", str(10**21)), "out of range; it must be from 1 to"),
        (("--max-model-len", "1"), "--max-model-len 1 is out of range; it must be at least 2"),
        (("--shutdown-timeout", "nan"), "--shutdown-timeout nan is out of range"),
        (("-O4",), "--optimization-level 4 is out of range; it must be from 0 to 3"),
        (("--max-cudagraph-capture-size", "0"), "--max-cudagraph-capture-size 0 is out of range"),
        (("--cudagraph-capture-sizes", "4", "0"), "sizes are tokens, at least 1"),
        (
            ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "100"),
            "raise the first, lower the second",
        ),
    ],
)
def test_values_that_cannot_work_are_refused_with_their_limit(
    words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(*words).create_engine_config(MODEL, CPU)


def test_there_are_as_many_api_servers_as_copies_unless_a_number_is_asked_for() -> None:
    words = ((), ("-dp", "3"), ("-dp", "3", "-asc", "1"), ("-asc", "2"))
    assert [parse(*flags).num_api_servers for flags in words] == [1, 3, 1, 2]


def test_cuda_graph_flags_land_in_their_section() -> None:
    words = ("--enforce-eager", "-O1", "--cudagraph-capture-sizes", "1", "2", "8")
    args = parse(*words, "--max-cudagraph-capture-size", "8")

    assert args.create_engine_config(MODEL, CPU).compilation == CompilationConfig(
        enforce_eager=True,
        optimization_level=1,
        cudagraph_capture_sizes=(1, 2, 8),
        max_cudagraph_capture_size=8,
    )
    assert parse().create_engine_config(MODEL, CPU).compilation == CompilationConfig()


def test_auto_length_starts_from_the_models_own() -> None:
    config = parse("--max-model-len", "auto").create_engine_config(MODEL, CPU)
    assert config.scheduler.max_model_len == 4096
    assert config.scheduler.auto_fit_max_model_len
