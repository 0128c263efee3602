"""Conversion of GGUF files: values, tokenizers, damage, and what a killed conversion leaves."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engine.errors import CorruptModelError, ModelError, ModelNotFoundError, ModelStoreError
from engine.model_config import ModelConfig
from engine.model_store.file_hashes import NOTED, file_sha256, noted_hashes
from engine.models.gguf_convert import convert_gguf
from engine.models.gguf_file import GGUFFile
from engine.models.gguf_weights import to_bfloat16, write_weights
from tests.models.gguf_file_maker import (
    byte_tokens,
    gemma_tokens,
    sentencepiece_tokens,
    write_gguf,
)
from tests.models.tiny_models import LINEAR_ROPE, save_tiny_llama, save_tiny_model

QUANTIZATIONS = ("F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1")
K_QUANTIZATIONS = ("Q4_K", "Q5_K", "Q6_K", "Q3_K", "Q2_K")
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"family": "Llama", "attention_bias": True, "mlp_bias": True},
    "llama, linear rope": {"family": "Llama", "rope_parameters": LINEAR_ROPE},
    "mistral": {"family": "Mistral", "sliding_window": 11},
    "qwen2": {"family": "Qwen2", "tie_word_embeddings": True},
    "qwen3": {"family": "Qwen3", "head_dim": 32},
    "gemma3": {
        "family": "Gemma3",
        "num_hidden_layers": 7,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 9,
        "tie_word_embeddings": True,
    },
    "gemma3, linear rope": {
        "family": "Gemma3",
        "num_hidden_layers": 6,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 9,
        "rope_parameters": GEMMA3_ROPE,
    },
}


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
    tolerance = {
        "Q8_0": 0.01,
        "Q5_0": 0.1,
        "Q5_1": 0.08,
        "Q4_0": 0.2,
        "Q4_1": 0.15,
    }.get(quantization, 0.004)
    for name, weight in expected.items():
        assert weights[name].dtype == torch.bfloat16
        error = (weights[name].float() - weight).norm() / weight.norm()
        assert error < tolerance, name


@pytest.mark.parametrize("quantization", K_QUANTIZATIONS)
def test_k_quantised_weights_are_those_of_two_other_readers(
    quantization: str, tmp_path: Path
) -> None:
    """The gguf library cannot write these types, so the blocks are random bytes."""
    from transformers.integrations.gguf.dequant import dequantize

    kind = gguf.GGMLQuantizationType[quantization]
    oracle = save_tiny_llama(tmp_path / "o", vocab_size=len(byte_tokens()), hidden_size=256)
    blocks = random_blocks(kind, rows=len(byte_tokens()))
    source = write_gguf(tmp_path / "m.gguf", oracle, replaced={"token_embd.weight": (blocks, kind)})
    convert_gguf(source, tmp_path / "out", quiet)
    weight = load_file(tmp_path / "out" / "model.safetensors")["model.embed_tokens.weight"]
    values = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    assert values.abs().max() > 0.1
    assert torch.equal(weight, values.to(torch.bfloat16))
    other = dequantize(torch.from_numpy(blocks), kind)
    torch.testing.assert_close(other.reshape(values.shape).float(), values)


def random_blocks(kind: gguf.GGMLQuantizationType, rows: int) -> Any:
    """One block a row: random bits with sane scales, which are the block's halves in float16."""
    rng = np.random.default_rng(5)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (rows, size), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.02, (rows, 2)).astype(np.float16).view(np.uint8)
    places = {"Q4_K": slice(0, 4), "Q5_K": slice(0, 4), "Q2_K": slice(80, 84)}
    place = places.get(kind.name, slice(size - 2, size))
    blocks[:, place] = scales[:, : place.stop - place.start]
    return blocks


def test_a_type_that_cannot_be_read_is_named(oracle: Any, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_1
    blocks = np.zeros((len(byte_tokens()), 2 * 40), np.uint8)
    source = write_gguf(tmp_path / "m.gguf", oracle, replaced={"token_embd.weight": (blocks, kind)})
    with pytest.raises(ModelError, match=r"token_embd.weight is stored as Q8_1"):
        convert_gguf(source, tmp_path / "out", quiet)


@pytest.mark.parametrize("variant", FAMILIES)
def test_transformers_reads_the_folder_and_agrees(variant: str, tmp_path: Path) -> None:
    settings = {"vocab_size": len(byte_tokens()), **FAMILIES[variant]}
    original = save_tiny_model(tmp_path / "original", **settings)
    convert_gguf(write_gguf(tmp_path / "m.gguf", original), tmp_path / "out", quiet)
    converted = type(original).from_pretrained(tmp_path / "out", dtype=torch.float32)
    for parameter in original.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    tokens = torch.arange(40)[None]
    with torch.inference_mode():
        torch.testing.assert_close(converted(tokens).logits, original(tokens).logits)


@pytest.mark.parametrize("variant", FAMILIES)
def test_the_engine_reads_the_same_configuration(variant: str, tmp_path: Path) -> None:
    settings = {"vocab_size": len(byte_tokens()), **FAMILIES[variant]}
    original = save_tiny_model(tmp_path / "original", **settings)
    convert_gguf(write_gguf(tmp_path / "m.gguf", original), tmp_path / "out", quiet)
    expected = ModelConfig.from_folder(tmp_path / "original", "m")
    ours = ModelConfig.from_folder(tmp_path / "out", "m")
    differing = {"path", "dtype", "eos_token_ids"}  # the oracle knows no tokenizer
    for field in dataclasses.fields(ModelConfig):
        if field.name not in differing:
            value = getattr(expected, field.name)
            assert getattr(ours, field.name) == approximately(value), field.name


def approximately(value: Any) -> Any:
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


def test_every_end_token_is_named(oracle: Any, source: Path, tmp_path: Path) -> None:
    convert_gguf(source, tmp_path / "one", quiet)
    convert_gguf(write_gguf(tmp_path / "e.gguf", oracle, eot=1), tmp_path / "two", quiet)
    gemma = save_tiny_model(tmp_path / "o", "Gemma3", vocab_size=len(gemma_tokens()))
    source = write_gguf(tmp_path / "g.gguf", gemma, tokenizer="gemma")
    convert_gguf(source, tmp_path / "gemma", quiet)
    configs = [
        json.loads((tmp_path / name / "generation_config.json").read_text())
        for name in ("one", "two", "gemma")
    ]
    assert configs == [
        {"bos_token_id": 1, "eos_token_id": [0]},
        {"bos_token_id": 1, "eos_token_id": [0, 1]},
        {"bos_token_id": 2, "eos_token_id": [1, 5]},  # <end_of_turn>, which no metadata names
    ]
    assert ModelConfig.from_folder(tmp_path / "gemma", "m").eos_token_ids == (1, 5)


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
    from engine.model_files.checkpoint import checkpoint_files
    from engine.models.gguf_config import checkpoint_config

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


def test_gemma_chats_have_the_ids_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from engine.frontend.chat_template import load_chat_template
    from engine.frontend.tokenizer import Tokenizer as EngineTokenizer

    oracle = save_tiny_model(tmp_path / "o", "Gemma3", vocab_size=len(gemma_tokens()))
    source = write_gguf(tmp_path / "m.gguf", oracle, tokenizer="gemma")
    convert_gguf(source, tmp_path / "out", quiet)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="m.gguf")
    ours = EngineTokenizer.from_folder(tmp_path / "out")
    template = load_chat_template(tmp_path / "out", ours.special_tokens)
    assert template is not None
    for text in ("hello", "  hello   hello\n\n", "é😀\t\t", "<image> hello<end_of_turn>", ""):
        assert ours.encode(text, add_special_tokens=True) == theirs(text)["input_ids"]
        messages = [{"role": "user", "content": text}]
        expected: Any = theirs.apply_chat_template(messages, return_dict=False)
        prompt = template.render(messages)
        assert ours.encode(prompt, add_special_tokens=False) == expected
        assert expected.count(2) == 1  # one <bos>


def test_an_unknown_pre_tokenizer_is_named(oracle: Any, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", oracle, pre="tekken")
    with pytest.raises(ModelError, match=r"pre-tokenizer 'tekken' is not known"):
        convert_gguf(source, tmp_path / "out", quiet)
    assert not (tmp_path / "out").exists()


def test_what_is_not_supported_is_named(oracle: Any, tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        r"tokenizer 't5' is not supported": {"tokenizer": "t5"},
        r"architecture phi3 is not supported; llama, qwen2, qwen3, gemma3 are": {
            "architecture": "phi3"
        },
        r"lacks 6 tensors, first blk\.0\.attn_q_norm\.weight": {"architecture": "qwen3"},
        r"holds the tensor extra\.weight, which a plain llama model does not have": {
            "replaced": {"extra.weight": (np.zeros(4, np.float32), None)}
        },
    }
    for number, (words, fields) in enumerate(cases.items()):
        source = write_gguf(tmp_path / f"{number}.gguf", oracle, **fields)
        with pytest.raises(ModelError, match=words):
            convert_gguf(source, tmp_path / "out", quiet)
        assert not (tmp_path / "out").exists()


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
    with pytest.raises(CorruptModelError, match="is no GGUF file"):
        convert_gguf(path, tmp_path / "out", quiet)
    with pytest.raises(ModelNotFoundError, match="No such GGUF file"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "out", quiet)


_SLOW_CONVERSION = """
import sys
from pathlib import Path
from engine.models.gguf_convert import convert_gguf

def slow(done, total, what):
    if done == total // 2:
        print("half", flush=True)
        sys.stdin.readline()

convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]), slow)
"""


def test_a_killed_conversion_leaves_nothing_under_the_final_name(
    source: Path, tmp_path: Path, repo_root: Path
) -> None:
    target = tmp_path / "out"
    child = subprocess.Popen(
        [sys.executable, "-c", _SLOW_CONVERSION, str(source), str(target)],
        stdin=subprocess.PIPE,
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
    child = subprocess.Popen(
        [sys.executable, "-c", _SLOW_CONVERSION, str(source), str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=repo_root,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        calls: list[int] = []
        second = threading.Thread(
            target=convert_gguf,
            args=(source, target, lambda done, total, what: calls.append(done)),
        )
        second.start()
        second.join(0.5)
        assert second.is_alive()
        child.communicate("go on\n")
        second.join()
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


def test_too_little_room_is_said_before_the_conversion(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))

    with pytest.raises(
        ModelStoreError, match=r"converting .*\.gguf needs .* 1000 B free"
    ) as caught:
        convert_gguf(source, tmp_path / "cache" / "m", lambda done, total, what: None)

    assert "STOKER_CACHE_DIR" in str(caught.value.hint)
    assert not (tmp_path / "cache" / "m").exists()


def test_the_hashes_of_a_conversion_are_written_down(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "m"
    convert_gguf(source, folder, lambda done, total, what: None)

    names = {path.name for path in folder.iterdir()} - {NOTED}
    assert noted_hashes(folder) == {name: file_sha256(folder / name) for name in names}
    assert "model.safetensors" in names
