"""Each build of the native set that this CPU can run: forced, refused, and computing the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.core.engine_core import EngineCore
from engine.errors import ConfigError
from engine.kernels.native import instruction_sets
from engine.kernels.native.instruction_sets import INSTRUCTION_SETS, choose_instruction_set
from tests.benchmarks.bench_kernel_accuracy import (
    compare,
    forced_logits,
    loaded_step,
    text_tokens,
)
from tests.core.conftest import engine_config
from tests.core.core_runs import prompts, run
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
from tests.worker.kernel_choices import KernelChoice

NAMES = [isa.name for isa in INSTRUCTION_SETS]
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "avx2"}
TITLES = {
    "avx512_bf16": "AVX512-BF16",
    "avx512_vnni": "AVX512-VNNI",
    "avx2": "AVX2",
    "portable": "any CPU",
}
# Against float32 with the same weights: the logits' error, and the share of equal argmaxes.
LIMITS = {"none": (0.02, 0.96), "int8": (0.08, 0.92)}
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


@pytest.mark.parametrize("quantization", LIMITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_alone_together_and_chunked_are_the_same_bits(
    family: str, quantization: str, isa: str, tmp_path: Path
) -> None:
    save_rounded(tmp_path, **FAMILIES[family])
    windows = group_windows(tmp_path)
    prompts = [list(range(3, 3 + length)) for length in (1, 37, 150, 64)]
    twin = reference_model(tmp_path, quantization=quantization)
    wanted = PagedSequences(twin, prompts, 16, windows=windows).run(in_chunks(prompts, 50))
    model = native_model(tmp_path, quantization=quantization)
    whole = PagedSequences(model, prompts, 16, float("nan"), windows).run(in_chunks(prompts, 256))
    for result, reference in zip(whole, wanted, strict=True):
        assert (result - reference).norm() / reference.norm() < LIMITS[quantization][0]
    chunked = PagedSequences(model, prompts, 16, float("nan"), windows).run(in_chunks(prompts, 13))
    (alone,) = PagedSequences(model, prompts[2:3], 16, float("nan"), windows).run([[150]])
    assert all(torch.equal(a, b) for a, b in zip(chunked, whole, strict=True))
    assert torch.equal(alone, whole[2])


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_greedy_tokens_are_the_first_of_the_largest_logits(
    quantization: str, isa: str, tmp_path: Path
) -> None:
    oracle = save_rounded(tmp_path, hidden_size=66, num_attention_heads=6, vocab_size=203)
    head = oracle.lm_head.weight.data
    head[100:] = head[:103].clone()  # most logits are there twice
    oracle.to(torch.bfloat16).save_pretrained(tmp_path)
    model = native_model(tmp_path, num_threads=3, quantization=quantization)
    sequences = PagedSequences(model, [list(range(150))], 16)
    batch = sequences.batch([(0, 150)])
    logits = model.forward(batch, sequences.cache)
    assert (logits == logits.amax(-1, keepdim=True)).sum(-1).max() > 1
    for rows in ([], [149], [3, 5, 8], list(range(150))):
        asked = dataclasses.replace(batch, logits_rows=np.array(rows, dtype=np.int64))
        tokens = model.greedy_tokens(asked, sequences.cache)
        assert tokens.tolist() == logits[rows].numpy().argmax(-1).tolist()


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_preemption_and_chunks_change_no_token(quantization: str, isa: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", hidden_size=128)
    flags = {**KernelChoice("native", "bfloat16", quantization).flags, "max_model_len": 128}
    tight = {"num_gpu_blocks_override": 13, "max_num_batched_tokens": 9}
    wanted = run(EngineCore(engine_config(folder, **flags)), prompts())
    found = run(EngineCore(engine_config(folder, **tight, **flags)), prompts())
    assert (wanted.num_preemptions, found.num_preemptions > 0) == (0, True)
    assert found.texts == wanted.texts
    assert len({tuple(tokens) for tokens in wanted.texts.values()}) == 6


@pytest.fixture(scope="module")
def real_text(repo_root: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(default_model_folder() / "tokenizer.json"))
    return text_tokens(tokenizer, (repo_root / "LICENSE").read_text(), 1, 200)


@pytest.fixture(scope="module", params=LIMITS)
def exact_logits(
    request: pytest.FixtureRequest, real_text: list[list[int]]
) -> tuple[str, list[Tensor]]:
    """A format of the weights, and what float32 makes of it."""
    quantization: str = request.param
    exact = loaded_step(default_model_folder(), "float32", "reference", quantization)
    return quantization, forced_logits(exact, real_text)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_model_agrees_with_float32_on_real_text(
    isa: str, real_text: list[list[int]], exact_logits: tuple[str, list[Tensor]]
) -> None:
    quantization, exact = exact_logits
    native = loaded_step(default_model_folder(), "bfloat16", "native", quantization)
    found = compare(forced_logits(native, real_text), exact, real_text)
    print(f"{quantization} {isa}: {found}")
    error, same_argmax = LIMITS[quantization]
    assert found.relative_error < error
    assert found.same_argmax >= same_argmax
