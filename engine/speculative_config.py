"""--speculative-config: drafts without a draft model, as vLLM's JSON for its n-gram method says it.

The rules for the lookup's lengths are those of vLLM's vllm/config/speculative.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError
from engine.json_flags import json_object

MOST_DRAFT_TOKENS = 32
NO_DRAFTS = "null"
"""What turns them off where they are the default: JSON's word, which vLLM's flag takes too."""

_FLAG = "--speculative-config"
_KNOWN = ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
_USUAL_DRAFT_TOKENS = 15  # with the token before them two tiles of the products' rows
_USUAL_LOOKUP = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Drafts are copied from behind an earlier place where the last tokens stood.

    At most `num_speculative_tokens` a step and request; at least `prompt_lookup_min` tokens must be
    equal, and of longer agreements no more than `prompt_lookup_max` are compared. With
    `is_default` nobody asked for them: there are none where the kernels round by what is in a step.
    """

    num_speculative_tokens: int = _USUAL_DRAFT_TOKENS
    prompt_lookup_min: int = _USUAL_LOOKUP
    prompt_lookup_max: int = 16
    is_default: bool = False


def parse_speculative_config(text: str | None) -> SpeculativeConfig | None:
    """The value of --speculative-config; ConfigError names what is wrong. None: none asked for."""
    if text is None or text.strip() == NO_DRAFTS:
        return None
    asked = json_object(_FLAG, text, '{"method": "ngram"}')
    for name in asked:
        if name not in _KNOWN:
            raise ConfigError(f"{_FLAG}: {name!r} is not known here; use {', '.join(_KNOWN)}.")
    if asked.pop("method", None) != "ngram":
        raise ConfigError(
            f'{_FLAG}: the method that this engine has is "ngram", which needs no second model; '
            f'type {_FLAG} \'{{"method": "ngram"}}\'.'
        )
    for name, value in asked.items():
        if type(value) is not int or not 1 <= value <= MOST_DRAFT_TOKENS:
            raise ConfigError(
                f"{_FLAG}: {name} {value!r} is no whole number from 1 to {MOST_DRAFT_TOKENS}."
            )
    least, most = asked.get("prompt_lookup_min"), asked.get("prompt_lookup_max")
    if least is None and most is not None:
        asked["prompt_lookup_min"] = most
    elif least is not None and most is None:
        asked["prompt_lookup_max"] = least
    elif least is not None and most is not None and least > most:
        raise ConfigError(
            f"{_FLAG}: prompt_lookup_min {least} is above prompt_lookup_max {most}; swap them."
        )
    return SpeculativeConfig(**asked)
