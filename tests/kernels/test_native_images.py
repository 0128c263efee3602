"""The native set with images: close to the plain-torch twin, and the same in every arrangement."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.kernels.kernel_set import ModelStep
from engine.kernels.native.model_step import NativeModelStep
from tests.kernels.native_models import (
    GEMMA3,
    assert_same,
    group_windows,
    native_model,
    random_prompts,
    reference_model,
    relative_error,
    save_rounded,
)
from tests.kernels.seeing_sequences import SeeingSequences

HIDDEN = 64
LENGTHS = (1, 37, 200, 64, 150)
# Inside a block, over several, longer than the window, at both ends, over a tile of 128 keys.
IMAGES: tuple[list[range], ...] = (
    [],
    [range(3, 9)],
    [range(40), range(41, 44), range(100, 160)],
    [range(20, 64)],
    [range(90, 150)],
)
STEPS = [  # none of which cuts an image
    [1, 9, 40, 0, 20],
    [0, 5, 1, 20, 0],
    [0, 1, 3, 44, 30],
    [0, 0, 56, 0, 39],
    [0, 22, 100, 0, 61],
]

pytestmark = pytest.mark.usefixtures("native_set")


@pytest.fixture(scope="module", params=[9, 70])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp(f"window-{request.param}")
    save_rounded(target, **{**GEMMA3, "sliding_window": request.param})
    return target


def run(
    folder: Path,
    model: ModelStep,
    steps: list[list[int]],
    block_size: int = 16,
    fill: float | None = None,
) -> list[Tensor]:
    if fill is None:
        fill = float("nan") if isinstance(model, NativeModelStep) else 0.0
    return SeeingSequences(
        model,
        random_prompts(*LENGTHS),
        IMAGES,
        HIDDEN,
        block_size,
        fill,
        group_windows(folder),
    ).run(steps)


def test_logits_are_close_to_the_twin_and_the_same_in_every_arrangement(folder: Path) -> None:
    whole = [[*LENGTHS]]
    wanted = run(folder, reference_model(folder), whole)
    model = native_model(folder)
    found = run(folder, model, whole)
    for result, reference in zip(found, wanted, strict=True):
        assert relative_error(result, reference) < 0.02
    assert_same(run(folder, model, STEPS), found)
    larger = native_model(folder, block_size=48, num_threads=1)
    assert_same(run(folder, larger, whole, 48), found)
    split = native_model(folder, num_threads=4)
    alone = [
        [count if n == number else 0 for n, count in enumerate(LENGTHS)] for number in range(5)
    ]
    assert_same(run(folder, split, alone), found)


def test_an_fp8_cache_holds_images_like_text(folder: Path) -> None:
    whole, model = [[*LENGTHS]], native_model(folder, cache_dtype="fp8")
    twin = reference_model(folder, cache_dtype="fp8")
    found = run(folder, model, whole, fill=0.0)
    for result, reference in zip(found, run(folder, twin, whole), strict=True):
        assert relative_error(result, reference) < 0.06
    assert_same(run(folder, model, STEPS, fill=0.0), found)


def test_an_image_changes_what_stands_before_its_last_token(folder: Path) -> None:
    """Without its end its tokens would see less: the twin's mask is no causal one."""
    model, prompts = reference_model(folder), random_prompts(*LENGTHS)
    windows = group_windows(folder)
    seeing = SeeingSequences(model, prompts, IMAGES, HIDDEN, 16, 0.0, windows)
    step = seeing.batch([(0, length) for length in LENGTHS])
    assert step.images is not None
    causal = dataclasses.replace(step.images, key_ends=step.positions + 1)
    bidirectional = model.forward(step, seeing.cache)
    plain = model.forward(dataclasses.replace(step, images=causal), seeing.cache)
    text_before = 1 + 3  # the first sequence, and what stands before the second one's image
    assert torch.equal(bidirectional[:text_before], plain[:text_before])
    assert (bidirectional[text_before] - plain[text_before]).abs().max() > 1e-3


def test_a_step_that_cuts_an_image_is_refused(folder: Path) -> None:
    model, prompts = native_model(folder), random_prompts(*LENGTHS)
    seeing = SeeingSequences(model, prompts, IMAGES, HIDDEN, 16, 0.0, group_windows(folder))
    step = seeing.batch([(0, length) for length in LENGTHS])
    assert step.images is not None
    wide = step.images.key_ends.copy()
    wide[1 + 5] = LENGTHS[1] + 1
    bad = dataclasses.replace(step, images=dataclasses.replace(step.images, key_ends=wide))
    with pytest.raises(IndexError, match="sees keys that the step does not have"):
        model.forward(bad, seeing.cache)
    few = dataclasses.replace(step.images, embeddings=step.images.embeddings[:-1])
    with pytest.raises(IndexError, match="an embedding that the step does not bring"):
        model.forward(dataclasses.replace(step, images=few), seeing.cache)
