"""Shapes of typical work, so that two people who say "chat" measure the same.

Lengths of chat and code are around the means of Azure's LLM inference traces of 2023 (1,155 prompt
and 211 output tokens in conversations, 2,048 and 28 in coding); agents are those of Mooncake's
tool and agent trace (8,596 and 182 tokens, 59 % of the prompt in the prefix cache), halved so that
they fit servers of 8,192 tokens. Retrieval is five passages of some 500 tokens below instructions
that all share.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.bench.prompts import LengthRange
from app.errors import UsageError


@dataclass(frozen=True, slots=True)
class Preset:
    """Lengths in tokens, the share that all prompts begin with, and turns over one beginning."""

    prompt_tokens: LengthRange
    output_tokens: LengthRange
    prefix_share: float = 0.0
    turns: int = 1
    is_chat: bool = True


PRESETS = {
    "chat": Preset(LengthRange(500, 1800), LengthRange(100, 320)),
    "rag": Preset(LengthRange(2400, 3200), LengthRange(100, 300), prefix_share=0.1),
    "code": Preset(LengthRange(1000, 3100), LengthRange(10, 46), is_chat=False),
    "agent": Preset(LengthRange(3000, 5600), LengthRange(60, 300), prefix_share=0.25, turns=5),
}

_PLAIN = Preset(LengthRange(60, 60), LengthRange(128, 128), is_chat=False)


def find_preset(name: str | None) -> Preset:
    """The shape called `name`; without one the short prompts that engines are compared by."""
    if name is None:
        return _PLAIN
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise UsageError(f"--preset {name}: there are {known}", hint="--preset chat")
    return PRESETS[name]
