"""Conversion of GGUF files: values, tokenizers, damage, and what a killed conversion leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engine.errors import CorruptModelError, ModelError, ModelNotFoundError
from engine.models.gguf_convert import convert_gguf
from engine.models.gguf_file import GGUFFile
from engine.models.gguf_weights import to_bfloat16, write_weights
from tests.models.gguf_file_maker import byte_tokens, sentencepiece_tokens, write_gguf
from tests.models.tiny_models import save_tiny_llama

QUANTIZATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


def quiet(done: int, total: int, what: str) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("oracle")
    return save_tiny_llama(folder, vocab_size=len(byte_tokens()), tie_word_embeddings=True)


@pytest.fixture
def source(oracle: Any, tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", oracle)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_weights_are_the_original_ones_in_bf16(
    quantization: str, oracle: Any, tmp_path: Path
) -> None:
    kind = gguf.GGMLQuantizationType[quantization]
    convert_gguf(write_gguf(tmp_path / "m.gguf", oracle, kind), tmp_path / "out", quiet)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    expected = {k: v for k, v in oracle.state_dict().items() if k != "lm_head.weight"}
    assert weights.keys() == expected.keys()
    tolerance = {"Q8_0": 0.01, "Q4_0": 0.2, "Q4_1": 0.15}.get(quantization, 0.004)
    for name, weight in expected.items():
        assert weights[name].dtype == torch.bfloat16
        error = (weights[name].float() - weight).norm() / weight.norm()
        assert error < tolerance, name


def test_transformers_reads_the_folder_and_agrees(
    oracle: Any, source: Path, tmp_path: Path
) -> None:
    from transformers import LlamaForCausalLM

    convert_gguf(source, tmp_path / "out", quiet)
    model = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    rounded = save_tiny_llama(
        tmp_path / "same", vocab_size=len(byte_tokens()), tie_word_embeddings=True
    )
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    tokens = torch.arange(30)[None]
    with torch.inference_mode():
        torch.testing.assert_close(model(tokens).logits, rounded(tokens).logits)
    config = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert config == {"bos_token_id": 1, "eos_token_id": [0]}


def test_rounding_is_to_nearest_even() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    edges = np.array([0x3F808000, 0x3F818000, 0x7F800000, 0xFF800000, 0, 0x80000000], np.uint32)
    values = np.concatenate([bits, edges]).view(np.float32)
    ours = torch.from_numpy(to_bfloat16(values).view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(
        ours, torch.from_numpy(values).to(torch.bfloat16), rtol=0, atol=0, equal_nan=True
    )


def test_large_models_are_sharded_with_an_index(source: Path, tmp_path: Path) -> None:
    from engine.models.gguf_weights import checkpoint_config
    from engine.models.safetensors_files import checkpoint_files

    file = GGUFFile.open(source)
    config = checkpoint_config(file)
    write_weights(file, config, tmp_path, quiet, shard_bytes=60_000)
    (tmp_path / "config.json").write_text(json.dumps(config))
    files = checkpoint_files(tmp_path)
    assert len(files) > 2
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    names = []
    for path in files:
        with safe_open(path, framework="pt") as shard:
            names += [(name, path.name) for name in shard.keys()]  # noqa: SIM118
    assert dict(names) == index["weight_map"]
    files[1].unlink()
    with pytest.raises(CorruptModelError, match=r"lacks 1 of the \d+ files.*00002"):
        checkpoint_files(tmp_path)


def test_progress_ends_at_the_total(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert_gguf(source, tmp_path / "out", lambda done, total, what: seen.append((done, total)))
    total = seen[0][1]
    assert seen == [(done, total) for done in range(total + 1)]


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("smollm", "ab 12", ["a", "b", "Ġ", "1", "2"]),
        ("gpt-2", "hello hello", ["hello", "Ġhello"]),
        ("llama-bpe", "hello\n\n1234", ["hello", "Ċ", "Ċ", "1", "2", "3", "4"]),
        ("qwen2", "hello é", ["hello", "Ġ", "Ã", "©"]),
    ],
)
def test_tokenizers_by_name_of_the_pre_tokenizer(
    pre: str, text: str, words: list[str], oracle: Any, tmp_path: Path
) -> None:
    convert_gguf(write_gguf(tmp_path / "m.gguf", oracle, pre=pre), tmp_path / "out", quiet)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    encoded = tokenizer.encode(text)
    assert encoded.tokens[int(pre == "llama-bpe") :] == words
    assert (encoded.ids[0] == 1) == (pre == "llama-bpe")  # it begins with <|start|>
    assert tokenizer.decode(encoded.ids) == text
    special = tokenizer.encode("<|end|>hello", add_special_tokens=False)
    assert special.tokens == ["<|end|>", "hello"]
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|end|>"
    assert config["chat_template"] == "{{ messages[0].content }}"


def test_sentencepiece_goes_through_transformers(tmp_path: Path) -> None:
    oracle = save_tiny_llama(tmp_path / "o", vocab_size=len(sentencepiece_tokens()))
    source = write_gguf(tmp_path / "m.gguf", oracle, tokenizer="llama")
    convert_gguf(source, tmp_path / "out", quiet)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    encoded = tokenizer.encode("hello é")
    assert encoded.tokens == ["<s>", "▁hello", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(encoded.ids) == "hello é"


def test_an_unknown_pre_tokenizer_is_named(oracle: Any, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", oracle, pre="tekken")
    with pytest.raises(ModelError, match=r"pre-tokenizer 'tekken' is not known"):
        convert_gguf(source, tmp_path / "out", quiet)
    assert not (tmp_path / "out").exists()


def test_other_architectures_and_tokenizers_are_named(oracle: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer 't5' is not supported"):
        convert_gguf(
            write_gguf(tmp_path / "a.gguf", oracle, tokenizer="t5"), tmp_path / "out", quiet
        )


@pytest.mark.parametrize("keep", [3, 30, 2000, 0.5, 0.97])
def test_a_cut_off_file_is_corrupt(keep: float, source: Path, tmp_path: Path) -> None:
    data = source.read_bytes()
    source.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(CorruptModelError, match=r"tiny\.gguf"):
        convert_gguf(source, tmp_path / "out", quiet)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out.tmp-*"))


def test_other_files_are_not_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(1000))
    with pytest.raises(CorruptModelError, match="is not a GGUF file"):
        convert_gguf(path, tmp_path / "out", quiet)
    with pytest.raises(ModelNotFoundError, match="No such GGUF file"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "out", quiet)


_SLOW_CONVERSION = """
import sys, time
from pathlib import Path
from engine.models.gguf_convert import convert_gguf

def slow(done, total, what):
    if done == total // 2:
        print("half", flush=True)
        time.sleep(60)

convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]), slow)
"""


def test_a_killed_conversion_leaves_nothing_under_the_final_name(
    source: Path, tmp_path: Path, repo_root: Path
) -> None:
    target = tmp_path / "out"
    child = subprocess.Popen(
        [sys.executable, "-c", _SLOW_CONVERSION, str(source), str(target)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=repo_root,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        os.kill(child.pid, signal.SIGKILL)
    assert not target.exists()
    assert len(list(tmp_path.glob(".out.tmp-*"))) == 1
    convert_gguf(source, target, quiet)
    assert (target / "model.safetensors").is_file()
    assert not list(tmp_path.glob(".out.tmp-*"))


def test_a_second_conversion_waits_for_the_first(
    source: Path, tmp_path: Path, repo_root: Path
) -> None:
    target = tmp_path / "out"
    script = _SLOW_CONVERSION.replace("time.sleep(60)", "time.sleep(1)")
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(source), str(target)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=repo_root,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        calls: list[int] = []
        start = time.monotonic()
        convert_gguf(source, target, lambda done, total, what: calls.append(done))
        assert time.monotonic() - start > 0.5
    assert child.returncode == 0
    assert calls == []  # the folder was there when the lock was free


def test_nothing_heavy_is_imported(repo_root: Path, source: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; import engine.models.resolve as r\n"
        "assert not {'numpy', 'gguf', 'huggingface_hub', 'torch'} & set(sys.modules)\n"
        "r.resolve_model(sys.argv[1], cache_dir=Path(sys.argv[2]))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(source), str(tmp_path / "cache")],
        check=True,
        cwd=repo_root,
    )
