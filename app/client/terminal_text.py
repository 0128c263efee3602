"""Makes foreign text (model answers, log lines, names) safe to write to a terminal.

Escape sequences could move the cursor, set the title or the clipboard; text direction marks could
hide words. `strip_escapes` removes both from prose, `EscapeFilter` does so for text that arrives in
pieces; `printable` and `one_line` keep a mark where something was, as names and records need.
"""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, screen
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC up to their terminator
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI as one 8-bit character
    r"|\x1b(?![\[\]PX^_])[ -/]*[0-~]",  # two-character escapes and character sets
    re.DOTALL,
)
_UNFINISHED = re.compile(
    r"(?:\x1b|\x1b\[[0-?]*[ -/]*|\x9b[0-?]*[ -/]*|\x1b[ -/]+|\x1b[\]PX^_][^\x07\x9c]*)\Z", re.DOTALL
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LONGEST_HELD = 4096


def strip_escapes(text: str) -> str:
    """`text` without escape sequences and control characters; newlines and tabs stay."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text))


def printable(text: str) -> str:
    """`text` with U+FFFD for each control character; newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def one_line(text: str) -> str:
    """`printable` for a name or a cell: line ends and tabs are one space each."""
    if text.isprintable():
        return text
    return printable(re.sub(r"\r\n|[\r\n\t\v\f\x85\u2028\u2029]", " ", text))


def clean_word(value: object, limit: int = 80) -> str | None:
    """A short text of a server's, such as a finish reason, in one line; None for none at all."""
    if value is None or value == "":
        return None
    text = " ".join(strip_escapes(str(value)).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def clean_line(line: str) -> str:
    """One log line as a terminal would have left it: the last state of a redrawn progress bar."""
    return strip_escapes(line.rstrip("\r\n").rsplit("\r", 1)[-1]).expandtabs(8)


class EscapeFilter:
    """`strip_escapes` over pieces: an escape sequence may be cut anywhere between two of them."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """The part of the text so far that is safe to write now."""
        text = _SEQUENCE.sub("", self._held + piece)
        match = _UNFINISHED.search(text)
        # A terminator that never comes must not swallow the rest of the answer.
        cut = match.start() if match and len(text) - match.start() <= _LONGEST_HELD else len(text)
        self._held = text[cut:]
        return _CONTROL.sub("", text[:cut])

    def flush(self) -> str:
        """What is left when the text ends, without the escape byte of an unfinished sequence."""
        held, self._held = self._held, ""
        return "" if re.fullmatch(r"[\x1b\x9b].?[0-?]*[ -/]*", held) else strip_escapes(held)
