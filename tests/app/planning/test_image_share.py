"""Images in a plan: their tokens, the tower, and requests that have some."""

from __future__ import annotations

import dataclasses

import pytest

from app.cli import run
from app.errors import UsageError
from app.planning.gpu_catalogue import find_gpu
from app.planning.image_share import image_share
from app.planning.plan import MemoryPlan, make_plan
from app.planning.plan_answers import answer
from app.planning.plan_models import find_planned_model
from app.planning.plan_request import PlanRequest
from app.planning.weight_sizes import TOWER

GEMMA = find_planned_model("gemma-3-4b-it")


def plan_of(name: str = "gemma-3-4b-it") -> MemoryPlan:
    model = find_planned_model(name)
    request = PlanRequest(gpu=find_gpu("rtx4090"), max_model_len=8192)
    return make_plan(model.shape, model.weights, request)


def test_the_share_of_the_images_of_gemma_3() -> None:
    plan = plan_of()
    share = image_share(plan, 4)
    assert share is not None
    assert (share.tokens_per_image, share.num_tokens) == (256, 1024)
    spec = plan.tightest.spec
    assert share.kv_bytes == spec.blocks_per_request(256) * spec.bytes_per_block
    (tower,) = (part for part in plan.weights.parts if part.place == TOWER)
    assert share.tower_bytes == tower.num_bytes == 839_632_608
    # 4096 patches through one layer: 1152 wide outside, 4304 inside.
    assert share.encoder_bytes == 4096 * (5 * 1152 + 2 * 4304) * 2 + 3 * 896 * 896 * 4


def test_requests_hold_their_images_beside_their_text() -> None:
    plan = plan_of()
    without = answer(plan, GEMMA, (1024, 2048))
    having = answer(plan, GEMMA, (1024,), 4)
    assert having.requests == (without.requests[1],)
    assert without.images is not None  # told without being asked for


def test_a_tower_of_other_sizes_is_read_from_its_config() -> None:
    tower = GEMMA.shape.vision
    assert tower is not None
    small = dataclasses.replace(tower, tokens_per_image=64, image_size=448)
    plan = dataclasses.replace(plan_of(), shape=dataclasses.replace(GEMMA.shape, vision=small))
    share = image_share(plan, 1)
    assert share is not None
    assert share.num_tokens == 64
    assert small.num_patches == 1024


def test_images_that_are_not_known_or_too_many_are_refused() -> None:
    assert image_share(plan_of("qwen3-4b"), 0) is None
    with pytest.raises(UsageError, match="qwen3-4b makes of an image is not known here"):
        image_share(plan_of("qwen3-4b"), 2)
    with pytest.raises(UsageError, match="8,192 tokens, and a request has room for 8,192"):
        image_share(plan_of(), 32)
    assert image_share(plan_of(), 31) is not None


@pytest.mark.parametrize("name", ["gemma-3-4b-it", "google/gemma-3-4b-it", "Gemma-3-4B"])
def test_the_command_tells_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", name, "--gpu", "rtx4090", "--images", "2", "--request-len", "2k"]
    assert run([*words, "--no-calibration"]) == 0
    out = capsys.readouterr().out
    assert "  images: 256 tokens each, 36.9 MiB of KV cache; the tower is 0.78 GiB" in out
    assert "requests of 2,512 tokens (512 of 2 images) at once: " in out
