"""What images take of a plan: tokens of requests, the tower among the weights, memory to encode."""

from __future__ import annotations

from dataclasses import dataclass

from app.errors import UsageError
from app.planning.model_shapes import VisionTower
from app.planning.plan import MemoryPlan
from app.planning.weight_sizes import TOWER

_VALUE = 2  # bytes of an activation
_PIXEL = 4  # bytes of each of three values, as they come to the tower


@dataclass(frozen=True, slots=True)
class ImageShare:
    """Of a model whose images are all as many tokens. `num_images` are those of one request.

    `kv_bytes` is the KV cache of one image, `encoder_bytes` what encoding one takes for a moment.
    """

    num_images: int
    tokens_per_image: int
    kv_bytes: int
    tower_bytes: int
    encoder_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens that the images add to a request."""
        return self.num_images * self.tokens_per_image


def image_share(plan: MemoryPlan, num_images: int) -> ImageShare | None:
    """The share of `num_images` in each request; None for a model that the plan knows none of.

    UsageError for images that such a model does not take, or that fill its context.
    """
    vision = plan.shape.vision
    if vision is None:
        if num_images:
            raise UsageError(
                f"--images {num_images}: how many tokens {plan.shape.name} makes of an image is "
                "not known here, or it takes none",
                hint="leave --images out, and add the tokens to --request-len",
            )
        return None
    tokens, spec = vision.tokens_per_image, plan.tightest.spec
    share = ImageShare(
        num_images=num_images,
        tokens_per_image=tokens,
        kv_bytes=spec.blocks_per_request(tokens) * spec.bytes_per_block,
        tower_bytes=round(sum(p.num_bytes for p in plan.weights.parts if p.place == TOWER)),
        encoder_bytes=_encoder_bytes(vision),
    )
    if share.num_tokens >= plan.max_model_len:
        raise UsageError(
            f"--images {num_images} are {share.num_tokens:,} tokens, and a request has room for "
            f"{plan.max_model_len:,}",
            hint=f"at most {(plan.max_model_len - 1) // tokens} fit beside a token of text",
        )
    return share


def _encoder_bytes(vision: VisionTower) -> int:
    """Of one layer over all patches: the residual stream, attention, the feed-forward part."""
    width = 5 * vision.hidden_size + 2 * vision.intermediate_size
    return vision.num_patches * width * _VALUE + 3 * vision.image_size**2 * _PIXEL
