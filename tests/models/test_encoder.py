"""Encoders and models without a head, against sentence-transformers: the same vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from engine.args import EngineArgs
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.errors import ConfigError, CorruptModelError, ModelError
from engine.frontend.embeddings import TextPrompt
from engine.frontend.tokenizer import Tokenizer
from engine.messages import EngineCoreRequest
from engine.model_config import ModelConfig
from engine.sampling_params import SamplingParams
from engine.server.prompts import truncated
from tests.models.sentence_models import (
    GEMMA,
    save_encoder,
    save_with_tokenizer,
    sentence_transformer,
)

pytest.importorskip("sentence_transformers")

from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
)

TEXTS = [
    "hello there",
    "a",
    "the quick brown fox, 27 of them, jumps over the lazy dog",
    "x y z " * 12,
    "Mixed Case: ONE | two",
]
PROMPTS = {"query": "task: search | query: ", "document": "title: none | text: "}

pytestmark = pytest.mark.usefixtures("one_thread")


def start(folder: Path, **flags: Any) -> EngineCore:
    args = EngineArgs(**{"num_threads": 1, "dtype": "float32", **flags})
    model = ModelConfig.from_folder(folder, "tiny", args.model_impl)
    return EngineCore(args.create_engine_config(model, HostDevice("cpu", "cpu", None)))


def embed(
    core: EngineCore, folder: Path, texts: list[str], prompt_name: str | None = None
) -> NDArray[np.float32]:
    """All texts at once, through the scheduler; cut to what the model can read."""
    tokenizer = Tokenizer.from_folder(folder)
    model, tasks = core.config.model, core.config.tasks
    before = TextPrompt.named(model.sentence, prompt_name, tokenizer, tasks.pooling)
    for number, text in enumerate(texts):
        ids = tokenizer.encode(before.before(text), add_special_tokens=True)
        length = core.config.scheduler.max_model_len
        ids = truncated(ids, -1, length, keeps_end=False, end=tokenizer.end_tokens)
        request = EngineCoreRequest(str(number), ids, SamplingParams(), 0.0, pooling=before.pooling)
        core.add_request(request)
    vectors = {}
    while not core.is_idle:
        for output in core.step().outputs:
            assert output.pooling_output is not None
            vectors[int(output.request_id)] = np.frombuffer(output.pooling_output, "<f4")
    return np.array([vectors[number] for number in range(len(texts))])


def cosines(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> list[float]:
    norms = np.linalg.norm(theirs, axis=1, keepdims=True)
    found: list[float] = (ours * (theirs / norms)).sum(1).tolist()
    return found


def dense(inner: int, out: int, activation: Any, **options: Any) -> Any:
    torch.manual_seed(5)
    return Dense(inner, out, activation_function=activation, **options)


MODULES: dict[str, Callable[[], list[Any]]] = {
    "mean": lambda: [Pooling(64, "mean"), Normalize()],
    "cls and a dense layer": lambda: [Pooling(64, "cls"), dense(64, 24, torch.nn.Tanh())],
    "two dense layers": lambda: [
        Pooling(64, "mean"),
        dense(64, 128, torch.nn.Identity(), bias=False),
        dense(128, 64, torch.nn.Identity(), bias=False),
        Normalize(),
    ],
    "last": lambda: [Pooling(64, "lasttoken")],
    "max": lambda: [Pooling(64, "max")],
    "weighted": lambda: [Pooling(64, "weightedmean", include_prompt=False)],
    "root of the length": lambda: [
        Pooling(64, "mean_sqrt_len_tokens"),
        dense(64, 32, torch.nn.GELU(), use_residual=True),
    ],
}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("Gemma3TextConfig", dict(GEMMA), "two dense layers"),
    ("BertConfig", {}, "mean"),
    ("BertConfig", {}, "cls and a dense layer"),
    ("BertConfig", {}, "last"),
    ("BertConfig", {}, "max"),
    ("BertConfig", {}, "weighted"),
    ("BertConfig", {}, "root of the length"),
    ("XLMRobertaConfig", {"max_position_embeddings": 120, "pad_token_id": 0}, "mean"),
    ("ModernBertConfig", {"local_attention": 16, "global_attn_every_n_layers": 2}, "mean"),
    ("DistilBertConfig", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96}, "mean"),
    ("MPNetConfig", {"max_position_embeddings": 120, "pad_token_id": 0}, "mean"),
    ("DebertaV2Config", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, "mean"),
    ("AlbertConfig", {"embedding_size": 32}, "mean"),
]


@pytest.mark.parametrize(
    ("config", "changes", "modules"), CASES, ids=[f"{c[0]} {c[2]}" for c in CASES]
)
def test_vectors_are_those_of_sentence_transformers(
    config: str, changes: dict[str, Any], modules: str, tmp_path: Path
) -> None:
    folder = tmp_path / "st"
    save_encoder(tmp_path / "plain", config, **changes)
    oracle = sentence_transformer(
        tmp_path / "plain", folder, *MODULES[modules](), prompts=dict(PROMPTS)
    )
    core = start(folder)
    for name in (None, "query", "document"):
        theirs = oracle.encode(TEXTS, prompt_name=name)
        together = embed(core, folder, TEXTS, name)
        assert min(cosines(together, theirs)) >= 0.99999
        alone = np.concatenate([embed(core, folder, [text], name) for text in TEXTS])
        np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-5 * np.abs(together).max())
    core.shutdown()


def test_many_texts_take_several_steps_of_several_widths(tmp_path: Path) -> None:
    save_encoder(tmp_path / "plain", "BertConfig")
    oracle = sentence_transformer(tmp_path / "plain", tmp_path / "st", Pooling(64, "mean"))
    texts = ["ab " * (1 + 7 * n % 40) for n in range(70)]
    core = start(tmp_path / "st", max_num_batched_tokens=200, max_num_seqs=16)
    assert min(cosines(embed(core, tmp_path / "st", texts), oracle.encode(texts))) >= 0.99999
    core.shutdown()


def test_without_files_of_sentence_transformers_the_mean_is_taken(tmp_path: Path) -> None:
    save_encoder(tmp_path, "BertConfig")
    core = start(tmp_path)
    oracle = sentence_transformer(tmp_path, tmp_path / "st", Pooling(64, "mean"))
    assert min(cosines(embed(core, tmp_path, TEXTS), oracle.encode(TEXTS))) >= 0.99999
    asked = start(tmp_path, pooler_config='{"pooling_type": "CLS"}')
    oracle = sentence_transformer(tmp_path, tmp_path / "cls", Pooling(64, "cls"))
    assert min(cosines(embed(asked, tmp_path, TEXTS), oracle.encode(TEXTS))) >= 0.99999


def test_a_checkpoint_with_a_head_for_masks_is_read_without_it(tmp_path: Path) -> None:
    save_encoder(tmp_path / "plain", "BertConfig")
    settings = transformers.BertConfig.from_pretrained(tmp_path / "plain")
    torch.manual_seed(9)
    save_with_tokenizer(tmp_path / "head", transformers.BertForMaskedLM(settings))
    oracle = sentence_transformer(tmp_path / "head", tmp_path / "st", Pooling(64, "mean"))
    core = start(tmp_path / "head")
    assert core.config.model.architecture == "BertForMaskedLM"
    assert min(cosines(embed(core, tmp_path / "head", TEXTS), oracle.encode(TEXTS))) >= 0.99999


@pytest.mark.parametrize(
    ("config", "implementation"),
    [("Qwen3Config", "auto"), ("Gemma3TextConfig", "auto"), ("Qwen3Config", "transformers")],
)
def test_a_decoder_without_its_head_makes_vectors(
    config: str, implementation: str, tmp_path: Path
) -> None:
    changes = {"num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16}
    save_encoder(tmp_path / "plain", config, **changes)
    modules = [Pooling(64, "lasttoken"), Normalize()]
    oracle = sentence_transformer(tmp_path / "plain", tmp_path / "st", *modules)
    core = start(tmp_path / "st", model_impl=implementation, max_num_batched_tokens=20)
    assert core.config.tasks.names == ("embed",)
    assert min(cosines(embed(core, tmp_path / "st", TEXTS), oracle.encode(TEXTS))) >= 0.9999
    core.shutdown()


def test_limits_of_an_encoder(tmp_path: Path) -> None:
    changes = {"max_position_embeddings": 66, "pad_token_id": 1}
    save_encoder(tmp_path, "XLMRobertaConfig", **changes)
    model = ModelConfig.from_folder(tmp_path, "tiny")
    assert (model.max_position_embeddings, model.is_encoder, model.dtype) == (64, True, "float32")
    config = EngineArgs(dtype="auto").create_engine_config(model, HostDevice("cpu", "cpu", None))
    assert (config.device.dtype, config.scheduler.enable_chunked_prefill) == ("float32", False)
    assert not config.cache.enable_prefix_caching
    for flags, message in (
        ({"runner": "generate"}, "--runner generate cannot be had.*embeddings only"),
        ({"convert": "none"}, "--convert none cannot be had"),
        ({"max_num_batched_tokens": 63}, "63 is below the 64 tokens of --max-model-len"),
        ({"tensor_parallel_size": 2}, "XLMRobertaModel runs in transformers'"),
    ):
        with pytest.raises(ConfigError, match=message):
            EngineArgs(**flags).create_engine_config(model, HostDevice("cpu", "cpu", None))


def test_the_longest_text_is_read_whole(tmp_path: Path) -> None:
    save_encoder(tmp_path / "plain", "XLMRobertaConfig", max_position_embeddings=70, pad_token_id=0)
    oracle = sentence_transformer(tmp_path / "plain", tmp_path / "st", Pooling(64, "mean"))
    text = "q " * 67
    core = start(tmp_path / "st")
    assert core.config.scheduler.max_model_len == 69
    assert min(cosines(embed(core, tmp_path / "st", [text]), oracle.encode([text]))) >= 0.99999


def test_a_text_that_is_cut_keeps_its_last_special_token(tmp_path: Path) -> None:
    save_encoder(tmp_path / "plain", "BertConfig")
    oracle = sentence_transformer(tmp_path / "plain", tmp_path / "st", Pooling(64, "lasttoken"))
    texts = ["r s " * 200, "t"]
    core = start(tmp_path / "st")
    assert min(cosines(embed(core, tmp_path / "st", texts), oracle.encode(texts))) >= 0.99999


def test_a_missing_parameter_is_no_random_one(tmp_path: Path) -> None:
    save_encoder(tmp_path, "BertConfig")
    config = tmp_path / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    with pytest.raises(CorruptModelError, match=r"lacks 16 parameters.*layer\.3"):
        start(tmp_path)


@pytest.mark.parametrize(
    ("config", "model_class", "message"),
    [
        ("BertConfig", "BertForSequenceClassification", "has a head for something else"),
        ("DistilBertConfig", "DistilBertForQuestionAnswering", "has a head for something else"),
    ],
)
def test_a_head_that_gives_something_else_is_named(
    config: str, model_class: str, message: str, tmp_path: Path
) -> None:
    save_encoder(tmp_path, config)
    path = tmp_path / "config.json"
    plain = "BertModel" if config == "BertConfig" else "DistilBertModel"
    path.write_text(path.read_text().replace(f'"{plain}"', f'"{model_class}"'))
    with pytest.raises(ModelError, match=message):
        start(tmp_path)
