"""PoolingParams: how the hidden states of one prompt become one vector, and vLLM's name for it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from engine.errors import ConfigError

POOLING_TYPES = ("LAST", "MEAN", "CLS", "MAX", "MEAN_SQRT_LEN", "WEIGHTED_MEAN")
_TYPE_KEYS = ("pooling_type", "seq_pooling_type")
# These change nothing at these values; vLLM's other keys belong to other kinds of models.
_NEUTRAL = {"task": ("embed",), "use_activation": (True,), "normalize": (True,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """LAST takes the last token's hidden state, CLS the first one's, MEAN the average over all
    tokens, WEIGHTED_MEAN with the weights 1, 2, 3 and so on, MEAN_SQRT_LEN the sum over the root of
    their number, MAX the largest of each entry. The vector then gets length 1 (L2).

    The first `num_left_out` tokens are not pooled.
    """

    pooling_type: str = "LAST"
    num_left_out: int = 0

    def __post_init__(self) -> None:
        if self.pooling_type not in POOLING_TYPES:
            raise ConfigError(
                f"pooling_type {self.pooling_type!r} is not known; use one of "
                f"{', '.join(POOLING_TYPES)}."
            )

    @property
    def needs_every_token(self) -> bool:
        """True when cached tokens must be computed again, since only their KV is kept."""
        return self.pooling_type != "LAST"


def parse_pooler_config(text: str | None, of_model: str = "LAST") -> PoolingParams:
    """The value of --pooler-config, `{"pooling_type": "MEAN"}`; ConfigError names what is wrong.

    `of_model` is the model's own way, for a value that names none.
    """
    try:
        values = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(f"--pooler-config {text!r} is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"--pooler-config {text!r} is not an object like " + '{"pooling_type": "MEAN"}.'
        )
    pooling_type = of_model
    for key, value in values.items():
        if key in _TYPE_KEYS:
            pooling_type = str(value).upper()
        elif value is not None and value not in _NEUTRAL.get(key, ()):
            raise ConfigError(
                f"--pooler-config: {key}={json.dumps(value)} is not supported; the key that this "
                f"engine knows is pooling_type (one of {', '.join(POOLING_TYPES)})."
            )
    return PoolingParams(pooling_type=pooling_type)
