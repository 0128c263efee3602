"""Values that an advice names: they help by the log's own numbers, or are not named."""

from __future__ import annotations

import pytest

from logparse import parse_lines
from logparse.problems.fitting import tuned, weights_gib
from logparse.records import Facts


def given(printed: str, **facts: object) -> Facts:
    return Facts(non_default_args=printed, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "quantization", "low", "high"),
    [
        ("o/Foo-14B", None, 25, 28),
        ("o/foo-0.6b-instruct", None, 1.0, 1.3),
        ("o/Foo-8x7B-v1", None, 100, 110),
        ("o/Foo-30B-A3B-FP8", None, 27, 29),
        ("o/Foo-14B", "awq", 6, 9),
    ],
)
def test_weights_by_the_name(model: str, quantization: str | None, low: float, high: float) -> None:
    found = weights_gib(Facts(model=model, quantization=quantization))
    assert found is not None
    assert low < found < high


@pytest.mark.parametrize("model", ["o/m", "gpt2", "/models/v2/b", "o/Mistral-A3B"])
def test_names_that_promise_nothing(model: str) -> None:
    assert weights_gib(Facts(model=model)) is None


def test_weights_are_those_of_one_rank() -> None:
    whole, half = Facts(model="o/x-14B"), Facts(model="o/x-14B", tensor_parallel_size=2)
    assert weights_gib(half) == pytest.approx((weights_gib(whole) or 0) / 2)
    assert weights_gib(Facts(model="o/x-14B", weights_gib=(3.0, 4.0))) == 4.0


def test_what_a_held_gpu_leaves_must_hold_the_weights() -> None:
    numbers = {"free": "16.0", "total": "80.0"}
    assert tuned(Facts(model="o/x-3B"), numbers)["fitting_share"] == "0.19"
    held = tuned(Facts(model="o/x-14B"), numbers)
    assert "fitting_share" not in held
    assert held["weights"] == "26.1"


def test_a_larger_share_must_bring_what_lacks() -> None:
    facts = given("{'gpu_memory_utilization': 0.9}")
    assert tuned(facts, {"need": "5", "have": "4", "total": "80"})["share_up"] == "0.95"
    assert tuned(facts, {"need": "9", "have": "4", "total": "80"})["share_up"] == "0.98"
    assert "share_up" not in tuned(facts, {"need": "19", "have": "4", "total": "80"})
    assert "share_up" not in tuned(given("{'gpu_memory_utilization': 0.99}"), {})


def test_a_smaller_share_must_still_hold_the_weights() -> None:
    facts = given("{'gpu_memory_utilization': 0.5}", weights_gib=30.0, gpu_total_gib=80.0)
    assert tuned(facts, {})["share_down"] == "0.45"
    facts = given("{'gpu_memory_utilization': 0.4}", weights_gib=30.0, gpu_total_gib=80.0)
    assert "share_down" not in tuned(facts, {})


def test_smaller_steps() -> None:
    facts = given("{'max_num_batched_tokens': 4096, 'max_num_seqs': 64}")
    assert tuned(facts, {})["budget_half"] == "2048"
    assert tuned(facts, {})["seqs_half"] == "32"
    least = tuned(given("{'max_num_batched_tokens': 256, 'max_num_seqs': 1}"), {})
    assert "budget_half" not in least
    assert "seqs_half" not in least
    whole = given(
        "{'enable_chunked_prefill': False, 'max_num_batched_tokens': 4096}", max_model_len=4096
    )
    assert "budget_half" not in tuned(whole, {})


def test_a_shorter_length_is_shorter() -> None:
    assert tuned(Facts(max_model_len=2048), {})["len_half"] == "1024"
    assert "len_half" not in tuned(Facts(max_model_len=300), {})


def test_the_cache_fits_into_what_is_free() -> None:
    assert tuned(Facts(), {})["kv_bytes"] == "4G"
    assert tuned(Facts(), {"free": "3.5"})["kv_bytes"] == "2G"
    assert "kv_bytes" not in tuned(Facts(), {"free": "1.5"})


def test_sglangs_fraction() -> None:
    facts = given("ServerArgs(model_path='o/m', mem_fraction_static=0.9)")
    assert tuned(facts, {})["fraction_up"] == "0.95"
    assert tuned(facts, {})["fraction_down"] == "0.82"
    assert "fraction_up" not in tuned(given("ServerArgs(x=1, mem_fraction_static=0.95)"), {})


@pytest.mark.parametrize("flag", ["num_gpu_blocks_override", "kv_cache_memory_bytes"])
def test_a_share_is_no_lever_where_a_flag_says_the_size(flag: str) -> None:
    values = tuned(given(f"{{'{flag}': 40, 'gpu_memory_utilization': 0.5}}"), {})
    assert "share_up" not in values
    assert values["fixed_cache"] == "--" + flag.replace("_", "-")
    assert "fixed_cache" not in tuned(given("{'gpu_memory_utilization': 0.5}"), {})


@pytest.mark.parametrize("flag", ["num_gpu_blocks_override", "kv_cache_memory_bytes"])
def test_the_advice_of_a_fixed_cache_takes_the_flag_away(flag: str) -> None:
    failed = (
        "ValueError: To serve at least one request with the model's max seq len (8192), "
        "(1.0 GiB KV cache is needed, which is larger than the available KV cache memory (0.1 GiB)"
    )
    lines = [
        "(APIServer pid=7) INFO 10-03 12:00:00 [utils.py:1] non-default args: "
        f"{{'model_tag': 'o/m', 'model': 'o/m', '{flag}': 40}}",
        f"(EngineCore_DP0 pid=9) ERROR 10-03 12:00:06 [core.py:708] {failed}",
    ]
    problem = parse_lines(lines).problem
    assert problem is not None
    commands = [fix.command for fix in problem.fixes if fix.command]
    assert "vllm serve o/m" in commands
    assert not any("--gpu-memory-utilization" in command for command in commands)
