"""Gemma 3 with images through the whole engine: the logits are transformers', however it is run."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from engine.core.engine_core import EngineCore
from engine.errors import CorruptModelError
from engine.messages import EngineCoreRequest, ImageInput, MissCause, PrefillStats
from engine.sampling_params import SamplingParams
from tests.core.conftest import engine_config
from tests.core.core_runs import answers_of
from tests.kernels.native_models import native_library
from tests.models.tiny_models import save_seeing_gemma

VOCAB, IMAGE = 199, 198
TOKENS, SIDE = 16, 56  # of an image
WINDOW = 9  # an image does not fit into it
NUM_ANSWERS = 5

TEXT: dict[str, Any] = {
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "layer_types": [*["sliding_attention"] * 2, "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 16,
    "tie_word_embeddings": True,
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seeing")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return save_seeing_gemma(
        folder,
        image_size=SIDE,
        tokens_per_image=TOKENS,
        head_dim=16,
        **TEXT,
    )


def image(offset: int, seed: int) -> ImageInput:
    pixels = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    data = pixels.numpy().tobytes()
    return ImageInput(offset, TOKENS, hashlib.sha256(data).digest(), data, (3, SIDE, SIDE))


def prompt_of(*parts: int, seeds: tuple[int, ...] = (1, 2), name: str = "r") -> EngineCoreRequest:
    """Texts of so many tokens, with an image between any two of them."""
    tokens: list[int] = []
    images: list[ImageInput] = []
    for number, length in enumerate(parts):
        tokens += [(11 * len(tokens) + 7 * place) % 190 + 3 for place in range(length)]
        if number + 1 < len(parts):
            images.append(image(len(tokens), seeds[number]))
            tokens += [IMAGE] * TOKENS
    params = SamplingParams(
        temperature=0.0, max_tokens=NUM_ANSWERS, ignore_eos=True, logprobs=VOCAB
    )
    return EngineCoreRequest(name, tokens, params, 0.0, images=tuple(images))


def renamed(request: EngineCoreRequest, name: str, **changes: Any) -> EngineCoreRequest:
    return msgspec.structs.replace(request, request_id=name, **changes)


class Answers:
    """What a core answers to requests, and how it came to it."""

    def __init__(self, core: EngineCore, requests: list[EngineCoreRequest]) -> None:
        self.requests = {request.request_id: request for request in requests}
        self.tokens: dict[str, list[int]] = {name: [] for name in self.requests}
        self.logprobs: dict[str, list[Tensor]] = {name: [] for name in self.requests}
        self.prefill: dict[str, PrefillStats] = {}
        self.errors: dict[str, str] = {}
        self.num_preemptions = 0
        for request in requests:
            core.add_request(request)
        while not core.is_idle:
            step = core.step()
            assert step.scheduler_stats is not None
            self.num_preemptions += step.scheduler_stats.num_preemptions_delta
            for output in step.outputs:
                name = output.request_id
                self.tokens[name] += output.new_token_ids
                self.logprobs[name] += [
                    dense(entry.token_ids[1:], entry.logprobs[1:])
                    for entry in output.logprobs or []
                ]
                if output.prefill_stats is not None:
                    self.prefill[name] = output.prefill_stats
                if output.error is not None:
                    self.errors[name] = output.error

    def assert_like(self, oracle: Any) -> None:
        for name, request in self.requests.items():
            tokens = self.tokens[name]
            assert len(tokens) == NUM_ANSWERS, self.errors
            wanted = logits_of(oracle, request, tokens[:-1])[-NUM_ANSWERS:].log_softmax(-1)
            found = torch.stack(self.logprobs[name])
            assert (found - wanted).abs().max() < 1e-3, name
            assert tokens == wanted.argmax(-1).tolist()


def dense(token_ids: list[int], values: list[float]) -> Tensor:
    row = torch.full((VOCAB,), float("nan"))
    row[torch.tensor(token_ids)] = torch.tensor(values)
    return row


@torch.inference_mode()
def logits_of(oracle: Any, request: EngineCoreRequest, answer: list[int]) -> Tensor:
    """transformers' logits [T, vocabulary] of the prompt and a part of the answer, without a cache
    and in one piece.
    """
    tokens = torch.tensor([[*request.prompt_token_ids, *answer]])
    extra: dict[str, Tensor] = {}
    if request.images:
        pixels = [
            torch.frombuffer(bytearray(one.pixels), dtype=torch.float32).view(one.shape)
            for one in request.images
        ]
        extra = {"pixel_values": torch.stack(pixels), "token_type_ids": (tokens == IMAGE).int()}
    logits: Tensor = oracle(input_ids=tokens, use_cache=False, **extra).logits[0]
    return logits


def start(folder: Path, **flags: Any) -> EngineCore:
    return EngineCore(engine_config(folder, **{"max_model_len": 128, **flags}))


def test_what_an_image_shows_and_how_it_is_seen_matters(oracle: Any) -> None:
    """Else the comparisons below would say little."""
    request = prompt_of(6, 11, seeds=(1,))
    right = logits_of(oracle, request, [])[-1]
    other = logits_of(oracle, prompt_of(6, 11, seeds=(5,)), [])[-1]
    tokens = torch.tensor([request.prompt_token_ids])
    pixels = torch.frombuffer(bytearray(request.images[0].pixels), dtype=torch.float32)
    with torch.inference_mode():
        causal = oracle(
            input_ids=tokens, pixel_values=pixels.view(1, 3, SIDE, SIDE), use_cache=False
        ).logits[0, -1]
    assert (right - other).abs().max() > 0.05
    assert (right - causal).abs().max() > 0.05


REQUESTS = [
    prompt_of(23, name="text"),
    prompt_of(6, 11, name="one"),
    prompt_of(3, 5, 9, name="two"),
    prompt_of(1, 30, seeds=(2,), name="at the beginning"),
    prompt_of(40, 1, seeds=(3,), name="at the end"),
]


@pytest.mark.parametrize("budget", [16, 2048])
def test_logits_in_one_batch_whole_and_in_chunks(folder: Path, oracle: Any, budget: int) -> None:
    core = start(folder, max_num_batched_tokens=budget)
    Answers(core, REQUESTS).assert_like(oracle)
    core.shutdown()


def test_logits_after_preemptions(folder: Path, oracle: Any) -> None:
    core = start(
        folder,
        max_model_len=64,
        num_gpu_blocks_override=38,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        block_size=8,
    )
    answers = Answers(core, [prompt_of(6, 9, seeds=(n,), name=str(n)) for n in range(7)])
    assert answers.num_preemptions > 0
    answers.assert_like(oracle)
    core.shutdown()


def test_the_same_image_is_found_again_and_another_one_is_not(folder: Path, oracle: Any) -> None:
    core = start(folder)
    first = prompt_of(12, 20, name="first")
    Answers(core, [first])
    again = renamed(first, "again")
    found = Answers(core, [again])
    found.assert_like(oracle)
    assert found.prefill["again"].num_cached_tokens == 32  # of 48, the last block not being asked
    other = prompt_of(12, 20, seeds=(9,), name="other")
    found = Answers(core, [other])
    found.assert_like(oracle)
    miss = found.prefill["other"].miss
    assert found.prefill["other"].num_cached_tokens == 0
    assert miss is not None
    assert (miss.cause, miss.num_matched_tokens) == (MissCause.OTHER_IMAGE, 12)
    core.shutdown()


def test_logits_behind_a_hit_that_ends_inside_an_image(folder: Path, oracle: Any) -> None:
    core = start(folder)
    first = prompt_of(12, 3, name="first")  # of its 31 tokens a block of 16 can be found
    Answers(core, [first])
    found = Answers(core, [renamed(first, "again"), REQUESTS[1]])
    assert found.prefill["again"].num_cached_tokens == 16
    found.assert_like(oracle)
    core.shutdown()


def test_log_probabilities_of_a_prompt_with_images(folder: Path, oracle: Any) -> None:
    """Of which a step that others wait for takes few: never a part of an image."""
    core = start(folder)
    asking = prompt_of(40, 30, 9, name="asking")
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    answers = answers_of(core, [renamed(asking, "asking", sampling_params=params), REQUESTS[1]])
    wanted = logits_of(oracle, asking, []).log_softmax(-1)
    following = torch.tensor(asking.prompt_token_ids[1:])
    found = torch.tensor(answers["asking"].all_prompt_logprobs())
    assert (found - wanted[:-1].gather(1, following.unsqueeze(1))[:, 0]).abs().max() < 1e-3
    core.shutdown()


def test_native_kernels_come_close(tmp_path: Path) -> None:
    """Everything in bf16, the tower too."""
    native_library()
    oracle = save_seeing_gemma(
        tmp_path, image_size=SIDE, tokens_per_image=TOKENS, head_dim=32, **TEXT
    )
    copy.deepcopy(oracle).to(torch.bfloat16).save_pretrained(tmp_path)
    for parameter in oracle.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    core = start(tmp_path, dtype="bfloat16", kernels="native", max_num_batched_tokens=40)
    found = Answers(core, REQUESTS)
    for request in REQUESTS:
        wanted = logits_of(oracle, request, [])[-1].log_softmax(-1)
        first = found.logprobs[request.request_id][0]
        assert (first - wanted).norm() / wanted.norm() < 0.02, request.request_id
    core.shutdown()


def test_drafts_change_no_token(folder: Path, oracle: Any) -> None:
    core = start(folder, speculative_config='{"method": "ngram", "prompt_lookup_min": 1}')
    requests = [
        renamed(
            one,
            one.request_id,
            sampling_params=SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True),
        )
        for one in REQUESTS[1:3]
    ]
    found = Answers(core, requests).tokens
    core.shutdown()
    plain = start(folder)
    assert found == Answers(plain, requests).tokens
    plain.shutdown()


def test_without_images_the_tower_is_not_loaded(folder: Path, oracle: Any) -> None:
    core = start(folder, limit_mm_per_prompt='{"image": 0}')
    assert core.executor._worker._tower is None  # type: ignore[attr-defined]
    answers = Answers(core, [REQUESTS[0]])
    answers.assert_like(oracle)
    refused = Answers(core, [REQUESTS[1]])
    assert refused.errors == {"one": "tiny takes no images here."}
    core.shutdown()


def test_a_tower_that_is_not_whole_is_named(folder: Path, oracle: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if "mm_input_projection" in name)
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CorruptModelError, match=r"mm_input_projection.*limit-mm-per-prompt"):
        start(tmp_path)
