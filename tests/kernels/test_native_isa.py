"""Each build of the native set that this CPU can run: forced, refused, and computing the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.args import EngineArgs
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.errors import ConfigError
from engine.kernels.native import instruction_sets
from engine.kernels.native.instruction_sets import INSTRUCTION_SETS, choose_instruction_set
from engine.messages import EngineCoreRequest
from engine.model_config import ModelConfig
from engine.sampling_params import SamplingParams
from tests.benchmarks.bench_kernel_accuracy import (
    compare,
    forced_logits,
    loaded_step,
    text_tokens,
)
from tests.default_model import default_model_folder
from tests.kernels.native_models import (
    group_windows,
    native_library,
    native_model,
    reference_model,
    save_rounded,
)
from tests.kernels.paged_sequences import PagedSequences, in_chunks
from tests.tiny_model import write_tiny_llama

NAMES = [isa.name for isa in INSTRUCTION_SETS]
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "avx2"}
TITLES = {
    "avx512_bf16": "AVX512-BF16",
    "avx512_vnni": "AVX512-VNNI",
    "avx2": "AVX2",
    "portable": "any CPU",
}
FAMILIES: dict[str, dict[str, Any]] = {
    "odd sizes": {
        "hidden_size": 77,
        "intermediate_size": 101,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "attention_bias": True,
    },
    "gemma3": {
        "family": "Gemma3",
        "sliding_window": 24,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


@pytest.fixture(params=NAMES)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    (known,) = (known for known in INSTRUCTION_SETS if known.name == name)
    if missing := known.missing():
        pytest.skip(f"this CPU has no {', '.join(missing)}")
    monkeypatch.setenv("STOKER_NATIVE_ISA", name)
    native_library()
    return name


@pytest.mark.parametrize(
    ("flags", "machine", "name"),
    [
        (AVX512 | {"avx512_bf16", "avx512_vnni"}, "x86_64", "avx512_bf16"),
        (AVX512 | {"avx512_vnni"}, "x86_64", "avx512_vnni"),
        (AVX512, "x86_64", "avx2"),
        ({"avx2", "fma"}, "x86_64", "avx2"),
        ({"avx2"}, "x86_64", "portable"),
        ({"sse2"}, "x86_64", "portable"),
        ({"asimd", "bf16"}, "aarch64", "portable"),
    ],
)
def test_the_best_that_the_cpu_has_is_taken(
    flags: set[str], machine: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOKER_NATIVE_ISA", raising=False)
    monkeypatch.setattr(instruction_sets, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert choose_instruction_set().name == name


def test_what_the_cpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_sets, "cpu_flags", lambda: frozenset({"avx2", "fma"}))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("STOKER_NATIVE_ISA", "avx512_bf16")
    with pytest.raises(ConfigError, match=r"no avx512_bf16, avx512bw.*Use avx2, portable, "):
        choose_instruction_set()
    monkeypatch.setenv("STOKER_NATIVE_ISA", "sse")
    with pytest.raises(ConfigError, match=r"STOKER_NATIVE_ISA=sse is not known.*avx512_bf16, "):
        choose_instruction_set()
    monkeypatch.setenv("STOKER_NATIVE_ISA", "portable")
    assert choose_instruction_set().name == "portable"


def test_the_library_knows_what_it_was_built_for(isa: str) -> None:
    assert native_library().stoker_instructions().decode() == TITLES[isa]


@pytest.mark.parametrize("family", FAMILIES)
def test_alone_together_and_chunked_are_the_same_bits(
    family: str, isa: str, tmp_path: Path
) -> None:
    save_rounded(tmp_path, **FAMILIES[family])
    windows = group_windows(tmp_path)
    prompts = [list(range(3, 3 + length)) for length in (1, 37, 150, 64)]
    twin = reference_model(tmp_path)
    wanted = PagedSequences(twin, prompts, 16, windows=windows).run(in_chunks(prompts, 50))
    model = native_model(tmp_path)
    whole = PagedSequences(model, prompts, 16, float("nan"), windows).run(in_chunks(prompts, 256))
    for result, reference in zip(whole, wanted, strict=True):
        assert (result - reference).norm() / reference.norm() < 0.02
    chunked = PagedSequences(model, prompts, 16, float("nan"), windows).run(in_chunks(prompts, 13))
    (alone,) = PagedSequences(model, prompts[2:3], 16, float("nan"), windows).run([[150]])
    assert all(torch.equal(a, b) for a, b in zip(chunked, whole, strict=True))
    assert torch.equal(alone, whole[2])


def tokens_of(folder: Path, **args: Any) -> tuple[list[list[int]], int]:
    """Greedy tokens of six requests together, and how often one was preempted."""
    model = ModelConfig.from_folder(folder, "tiny")
    known = EngineArgs(dtype="bfloat16", kernels="native", max_model_len=128, **args)
    core = EngineCore(known.create_engine_config(model, HostDevice("cpu", "cpu", None)))
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    for number in range(6):
        prompt = list(range(5 + number, 12 + 9 * number))
        core.add_request(EngineCoreRequest(str(number), prompt, params, arrival_time=0.0))
    tokens: list[list[int]] = [[] for _ in range(6)]
    preemptions = 0
    while not core.is_idle:
        message = core.step()
        assert message.scheduler_stats is not None
        preemptions += message.scheduler_stats.num_preemptions_delta
        for output in message.outputs:
            tokens[int(output.request_id)] += output.new_token_ids
    return tokens, preemptions


def test_preemption_and_chunks_change_no_token(isa: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", hidden_size=128)
    roomy, none = tokens_of(folder, num_gpu_blocks_override=100)
    tight, some = tokens_of(folder, num_gpu_blocks_override=13, max_num_batched_tokens=9)
    assert (none, some > 0) == (0, True)
    assert tight == roomy
    assert len({tuple(tokens) for tokens in roomy}) > 1


@pytest.fixture(scope="module")
def real_text(repo_root: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(default_model_folder() / "tokenizer.json"))
    return text_tokens(tokenizer, (repo_root / "LICENSE").read_text(), 1, 200)


@pytest.fixture(scope="module")
def exact_logits(real_text: list[list[int]]) -> list[Tensor]:
    return forced_logits(loaded_step(default_model_folder(), "float32", "reference"), real_text)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_model_agrees_with_float32_on_real_text(
    isa: str,
    real_text: list[list[int]],
    exact_logits: list[Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STOKER_PACKED_CACHE_GIB", "0")
    native = loaded_step(default_model_folder(), "bfloat16", "native")
    found = compare(forced_logits(native, real_text), exact_logits, real_text)
    assert found.same_argmax >= 0.96
    assert found.relative_error < 0.02
