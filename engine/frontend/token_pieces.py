"""TokenPieces: the text of single tokens, for vocabularies whose texts are put one behind another.

With it a token becomes text by a look into a table, where its neighbours decide nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

REPLACEMENT = "\ufffd"
"""What decoders write for bytes that are no character, or not one yet."""

BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


class TokenPieces(dict[int, "str | None"]):
    """Token id to what it adds to a text that ends with a whole character; filled as it is asked.

    None for a token that may be a part of a character only.
    """

    def __init__(self, fast: FastTokenizer, *, skip_special_tokens: bool) -> None:
        super().__init__()
        self._fast = fast
        self._skip_special_tokens = skip_special_tokens

    def __missing__(self, token_id: int) -> str | None:
        self[token_id] = piece = self._read(token_id)
        return piece

    def _read(self, token_id: int) -> str | None:
        if BYTE_TOKEN.fullmatch(self._fast.id_to_token(token_id) or ""):
            return None
        # Behind itself: the first token of a text may lose its space.
        alone, twice = (
            self._fast.decode([token_id] * count, skip_special_tokens=self._skip_special_tokens)
            for count in (1, 2)
        )
        return None if REPLACEMENT in twice else twice[len(alone) :]


def token_pieces(fast: FastTokenizer, *, skip_special_tokens: bool) -> TokenPieces | None:
    """The table of a vocabulary; None where a token's text depends on its neighbours."""
    if fast.decoder is None or not _puts_together(json.loads(fast.decoder.__getstate__())):
        return None
    return TokenPieces(fast, skip_special_tokens=skip_special_tokens)


def _puts_together(decoder: dict[str, Any]) -> bool:
    """Whether the text of tokens is that of each, but for the first one's space and for bytes."""
    match decoder["type"]:
        case "ByteLevel" | "ByteFallback" | "Fuse":
            return True
        case "Replace":  # a longer pattern could lie across two tokens
            return len(decoder["pattern"].get("String", "")) == 1
        case "Strip":
            return int(decoder["start"]) <= 1 and int(decoder["stop"]) == 0
        case "Sequence":
            parts = decoder["decoders"]
            is_alone = len(parts) == 1 or all(part["type"] != "ByteLevel" for part in parts)
            return is_alone and all(map(_puts_together, parts))
    return False
