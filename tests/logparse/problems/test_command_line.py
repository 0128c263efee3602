"""What an advice makes of the command line that started a server."""

from __future__ import annotations

import pytest

from logparse import parse_lines
from logparse.problems.command_line import given_flags, typed_command
from logparse.records import Fix
from tests.logparse.vllm_lines import CORE

TRACEBACK = ["Traceback (most recent call last):", '  File "/v/x.py", line 3, in load_model']


def fixes(args: str, error: str) -> tuple[Fix, ...]:
    report = parse_lines(
        [
            "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.9.1",
            f"INFO 10-03 12:00:00 [a.py:1] non-default args: {args}",
            *(CORE + line for line in (*TRACEBACK, error)),
        ]
    )
    assert report.problem is not None
    return report.problem.fixes


def commands(args: str, error: str) -> list[str]:
    return [fix.command or fix.text for fix in fixes(args, error)]


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
TOO_SMALL = (
    "ValueError: To serve at least one request with the models's max seq len (9000), (4.5 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (2.5 GiB). Based on the "
    "available memory, the estimated maximum model length is 5000."
)


def test_the_users_flags_stay() -> None:
    args = (
        "{'model_tag': 'o/m', 'model': 'o/m', 'port': 9001, 'api_key': ['***'], "
        "'enable_prefix_caching': False, 'served_model_name': ['a', 'b c'], "
        "'limit_mm_per_prompt': {'image': 2}, 'trust_remote_code': True}"
    )
    kept = (
        "vllm serve o/m --port 9001 --no-enable-prefix-caching --served-model-name a 'b c' "
        "--limit-mm-per-prompt '{\"image\": 2}' --trust-remote-code"
    )
    assert f"{kept} --quantization fp8" in commands(args, OUT_OF_MEMORY)


def test_a_flag_that_is_given_anew_replaces_the_old_one() -> None:
    found = commands("{'model': 'o/m', 'max_model_len': 9000, 'seed': 1}", TOO_SMALL)
    assert found[0] == "vllm serve o/m --seed 1 --max-model-len 5000"
    assert "vllm serve o/m --max-model-len 9000 --seed 1 --kv-cache-dtype fp8" in found


def test_a_flag_that_the_advice_drops_is_not_there() -> None:
    found = commands(
        "{'model': 'o/m', 'quantization': 'frob', 'dtype': 'half'}",
        "ValueError: Unknown quantization method: frob",
    )
    assert found[0] == "vllm serve o/m --dtype half"


def test_what_cannot_be_typed_is_left_out() -> None:
    flags = given_flags(
        "{'model': 'o/m', 'a': FrobConfig(x=1), 'lora_modules': [LoRAModulePath(name='l', "
        "path='/l 1', base_model_name=None)], 'hf_token': 'hf_x', 'b': 3}"
    )
    assert [str(flag) for flag in flags] == ["--lora-modules 'l=/l 1'", "--b 3"]


def test_of_sglangs_arguments_only_what_was_given() -> None:
    flags = given_flags(
        "ServerArgs(model_path='o/m', tokenizer_path='o/m', host='0.0.0.0', port=8000, tp_size=8, "
        "dp_size=1, mem_fraction_static=0.85, trust_remote_code=True, api_key='***', "
        "chunked_prefill_size=4096, max_running_requests=None, context_length=None)"
    )
    assert [str(flag) for flag in flags] == [
        "--host 0.0.0.0", "--port 8000", "--tp-size 8", "--mem-fraction-static 0.85",
        "--trust-remote-code",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "command"),
    [
        ("{serve} 2>&1 | tee server.log", "go m --a 1 --no-b 2>&1 | tee server.log"),
        ("A=1 {serve} --c", "A=1 go m --a 1 --no-b --c"),
        ("{serve} --b", "go m --a 1 --b"),
        ("{serve} ~--a ~--b", "go m"),
        ("{serve} --x '{\"a\": 1}' --y -1", "go m --a 1 --no-b --x '{\"a\": 1}' --y -1"),
    ],
)
def test_a_template(template: str, command: str) -> None:
    given = given_flags("{'model': 'm', 'a': 1, 'b': False}")
    assert typed_command(template, "go m", given) == command


def test_our_own_refusal_names_the_start_without_the_flag() -> None:
    report = parse_lines(
        [
            "(APIServer pid=70) INFO 10-03 12:00:00 [l.py:1] Stoker server version 0.1, serving m",
            "(APIServer pid=70) INFO 10-03 12:00:00 [l.py:1] non-default args: {'model': 'm', "
            "'kv_cache_dtype': 'fp8', 'seed': 7}",
            "(APIServer pid=70) ERROR 10-03 12:00:01 [l.py:1] ConfigError: --kv-cache-dtype fp8 "
            "does not go with it; leave it out.",
        ]
    )
    assert report.problem is not None
    assert report.problem.fixes[0].command == "stoker serve m --seed 7"
