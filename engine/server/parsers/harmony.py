"""Harmony, the form that gpt-oss answers in: messages with a channel, a recipient where one is
called, and marks around all of it.

The prompt ends with `<|start|>assistant`, so that an answer begins with a message's head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engine.server.parsers.marks import num_begun

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ANALYSIS, FINAL = "analysis", "final"
FUNCTIONS = "functions."

_ENDS = (END, CALL, RETURN)
_MARKS = (START, CHANNEL, MESSAGE, *_ENDS)
_ANY = re.compile("|".join(map(re.escape, _MARKS)))
_ADDRESS = "to="
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_LONGEST_HEAD = 512


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before a message; text without a head is the answer."""

    channel: str = FINAL
    recipient: str | None = None

    @property
    def function(self) -> str | None:
        """The function that the message calls."""
        name = (self.recipient or "").removeprefix(FUNCTIONS)
        return name if name and name != self.recipient else None

    @property
    def is_thought(self) -> bool:
        return self.channel == ANALYSIS and self.function is None


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of a message; the first and the last one say so. Each may be empty."""

    head: Head
    text: str
    is_first: bool = False
    is_last: bool = False

    def written(self) -> str:
        """As the model would write it."""
        head = f"{CHANNEL}{self.head.channel} to={self.head.recipient}{MESSAGE}"
        return f"{head * self.is_first}{self.text}{CALL * self.is_last}"


class HarmonyScanner:
    """Takes an answer apart into pieces of messages; they depend on the text alone."""

    def __init__(self, head: Head | None = None) -> None:
        """`head` is that of a message which the prompt has begun."""
        self._held = ""
        self._head = head
        self._is_in_head = False  # behind `<|start|>` or `<|channel|>`
        self._is_new = True  # nothing was said yet: a recipient may stand there without a mark

    @property
    def head(self) -> Head | None:
        """That of the message which goes on."""
        return self._head

    def feed(self, text: str) -> list[Piece]:
        """Take the next piece of text."""
        self._held += text
        return list(self._pieces(is_last=False))

    def finish(self) -> list[Piece]:
        """The text has ended: what was held back comes out."""
        return list(self._pieces(is_last=True))

    def _pieces(self, *, is_last: bool) -> Iterator[Piece]:
        while True:
            if self._head is None and self._is_in_head:
                found = self._read_head(is_last=is_last)
            elif self._head is None:
                found = self._read_between(is_last=is_last)
            else:
                found = self._read_body(self._head, is_last=is_last)
            if found is None:
                return
            yield from found

    def _read_head(self, *, is_last: bool) -> list[Piece] | None:
        """What stands before `<|message|>`; like all that is read, None while more is needed."""
        at = self._held.find(MESSAGE, 0, _LONGEST_HEAD)
        if at >= 0:
            words, self._held = self._held[:at], self._held[at + len(MESSAGE) :]
            channel, recipient = _CHANNEL_NAME.search(words), _RECIPIENT.search(words)
            return self._begin(
                Head(channel[1] if channel else FINAL, recipient[1] if recipient else None)
            )
        if len(self._held) >= _LONGEST_HEAD:  # no head at all
            self._held = self._held.removeprefix(CHANNEL)
            return self._begin(Head())
        if is_last:
            self._held = ""  # cut off before anything was said
        return None

    def _read_between(self, *, is_last: bool) -> list[Piece] | None:
        """Behind a message, or at the beginning, where a head follows; or plain text."""
        mark = _ANY.match(self._held)
        if mark is not None:
            self._is_new = False
            self._is_in_head = mark[0] not in _ENDS
            is_of_head = mark[0] in (CHANNEL, MESSAGE)
            self._held = self._held[0 if is_of_head else mark.end() :]
            return []
        rest = self._held.lstrip()
        if self._is_new and rest.startswith(_ADDRESS):
            self._is_new, self._is_in_head = False, True
            return []
        if not rest or num_begun(rest, _MARKS) == len(rest) or self._may_be_address(rest):
            if not is_last:
                return None
            if not rest:
                self._held = ""
                return None
        mark = _ANY.match(rest)
        if mark is not None:
            self._held = rest
            return []
        self._held = self._held if self._is_new else rest
        return self._begin(Head())

    def _may_be_address(self, rest: str) -> bool:
        return self._is_new and _ADDRESS.startswith(rest)

    def _begin(self, head: Head) -> list[Piece]:
        self._head, self._is_in_head, self._is_new = head, False, False
        return [Piece(head, "", is_first=True)]

    def _read_body(self, head: Head, *, is_last: bool) -> list[Piece] | None:
        mark = _ANY.search(self._held)
        if mark is None:
            end = len(self._held) - (0 if is_last else num_begun(self._held, _MARKS))
            text, self._held = self._held[:end], self._held[end:]
            if is_last:
                self._head = None
                return [Piece(head, text, is_last=True)]
            return [Piece(head, text)] if text else None
        text, self._held = self._held[: mark.start()], self._held[mark.start() :]
        self._head = None
        return [Piece(head, text, is_last=True)]
