"""Tokenizer: text to token ids and back, over the `tokenizers` library (tokenizer.json).

Also reads the special tokens of tokenizer_config.json. Chat templates are `chat_template`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from engine.errors import CorruptModelError
from engine.frontend.token_pieces import BYTE_TOKEN, TokenPieces, token_pieces
from engine.model_files.json_objects import read_optional_json

_SPACE_MARK = "\u2581"  # SentencePiece's underscore
_SPECIAL_TOKEN_KEYS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class Tokenizer:
    """One model's tokenizer. Safe to call from several threads: only tables grow after loading."""

    def __init__(self, fast: FastTokenizer, special_tokens: dict[str, str]) -> None:
        # A tokenizer.json may carry the truncation and padding of its training run.
        fast.no_truncation()
        fast.no_padding()
        self._fast = fast
        self.special_tokens = special_tokens
        self.vocab_size: int = fast.get_vocab_size(with_added_tokens=True)
        self._added_tokens: dict[int, str] = {
            token_id: token.content for token_id, token in fast.get_added_tokens_decoder().items()
        }
        is_byte_level = fast.decoder is not None and b'"ByteLevel"' in fast.decoder.__getstate__()
        self._byte_of = _byte_level_alphabet() if is_byte_level else {}
        self._pieces = {
            skips: token_pieces(fast, skip_special_tokens=skips) for skips in (False, True)
        }

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json; CorruptModelError when it is missing or damaged."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CorruptModelError(
                f"{folder} holds no tokenizer.json; without it text cannot be turned into tokens. "
                "Add the file (it lies beside the weights in the model's repository)."
            )
        try:
            fast = FastTokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises the bare class and nothing narrower
            raise CorruptModelError(f"{path} cannot be read as a tokenizer: {error}.") from error
        return cls(fast, _special_tokens(read_tokenizer_config(folder)))

    @property
    def eos_token_id(self) -> int | None:
        """Id of tokenizer_config.json's end-of-sequence token, None when it names none."""
        token = self.special_tokens.get("eos_token")
        return None if token is None else self._fast.token_to_id(token)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens written in the text are recognised."""
        return self._fast.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_long(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """The same for long texts, in a thread: unlike `encode` it lets other threads run."""
        found = self._fast.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in found]

    @cached_property
    def end_tokens(self) -> list[int]:
        """What is put behind every text that gets special tokens, such as [SEP]."""
        encoding = self._fast.encode("a", add_special_tokens=True)
        count = 0
        while count < len(encoding) and encoding.special_tokens_mask[-1 - count]:
            count += 1
        return encoding.ids[len(encoding) - count :]

    @cached_property
    def max_chars_per_token(self) -> int:
        """Length of the vocabulary's longest token: so much text a token stands for at most."""
        return max(map(len, self._fast.get_vocab(with_added_tokens=True)), default=1)

    def decode_long(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """As `decode`, in a thread: it lets other threads run."""
        found = self._fast.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return found[0]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of `token_ids`; ids that the vocabulary lacks give nothing."""
        return self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def pieces(self, *, skip_special_tokens: bool) -> TokenPieces | None:
        """What each token adds to a text; None where that depends on its neighbours."""
        return self._pieces[skip_special_tokens]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for, which need not be a whole character; empty for an id
        that the vocabulary lacks.
        """
        if token_id in self._added_tokens:
            return self._added_tokens[token_id].encode()
        spelling = self._fast.id_to_token(token_id) or ""
        if self._byte_of:
            return b"".join([self._byte_of.get(char) or char.encode() for char in spelling])
        if BYTE_TOKEN.fullmatch(spelling):
            return bytes([int(spelling[3:5], 16)])
        return spelling.replace(_SPACE_MARK, " ").encode()

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it (`Ġthe`)."""
        return [self._fast.id_to_token(token_id) or "" for token_id in token_ids]


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json of a model folder; empty when there is none."""
    return read_optional_json(folder / "tokenizer_config.json")


def token_text(value: object) -> str | None:
    """The text of a special token: files write it as a string or as an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _byte_level_alphabet() -> dict[str, bytes]:
    """Byte-level BPE writes printable Latin-1 as itself, the other bytes from U+0100 upwards."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(shown))
    return {chr(byte): bytes([byte]) for byte in shown} | {
        chr(0x100 + number): bytes([byte]) for number, byte in enumerate(hidden)
    }


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    found = {key: token_text(config.get(key)) for key in _SPECIAL_TOKEN_KEYS}
    return {key: text for key, text in found.items() if text is not None}
