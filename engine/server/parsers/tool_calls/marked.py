"""What parsers share whose calls begin with a mark: `<tool_call>`, `[TOOL_CALLS]` and others.

A call goes out when it is complete and valid; all other text is content, its marks included.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from engine.server.parsers.marks import num_begun
from engine.server.parsers.tool_calls.base import (
    JsonExtent,
    NotACallError,
    ParameterSchemas,
    ToolCall,
    ToolParser,
    is_json_object,
)

_LONGEST_HEAD = 512  # characters between an opening mark and the arguments: the name, mostly


class Block(NamedTuple):
    """Calls that were read from the beginning of the held text, up to `end`."""

    calls: Sequence[ToolCall]
    end: int


class MarkedToolParser(ToolParser):
    """Content may stand before, between and after calls."""

    NEEDS_SPECIAL_TOKENS = True
    OPENINGS: ClassVar[tuple[str, ...]]
    DROPPED: ClassVar[tuple[str, ...]] = ()
    """Marks around calls that tell nothing; they are never shown."""

    def __init__(self, schemas: ParameterSchemas | None = None) -> None:
        super().__init__(schemas)
        self._marks = (*self.OPENINGS, *self.DROPPED)
        self._any_mark = re.compile("|".join(map(re.escape, self._marks)))
        self._forget()

    @abstractmethod
    def _read(self, *, is_last: bool) -> Block | None:
        """The block that the held text begins with; None while it goes on. NotACallError for
        anything else.
        """

    def _forget(self) -> None:
        """What was learnt about the held text no longer holds: it begins elsewhere."""
        self._searched: dict[str, int] = {}
        self._candidate = 0

    def _step(self, *, is_last: bool) -> bool:
        mark = self._any_mark.match(self._held)
        if mark is None:
            return self._pass_content(is_last=is_last)
        if mark[0] in self.DROPPED:
            self._blank = self._blank or ""  # blanks between it and a call are no content
            self._drop_held(mark.end())
            return True
        try:
            block = self._read(is_last=is_last)
        except NotACallError:
            return self._take_as_text(mark.end())
        if block is None:
            return self._take_as_text(mark.end()) if is_last else False
        for call in block.calls:
            self._add_call(call)
        self._drop_held(block.end)
        return True

    def _pass_content(self, *, is_last: bool) -> bool:
        """Let out what stands before the next mark; the beginning of a mark stays."""
        mark = self._any_mark.search(self._held)
        if mark is None:
            end = len(self._held) - (0 if is_last else num_begun(self._held, self._marks))
        else:
            end = mark.start()
        if end:
            self._add_content(self._held[:end])
            self._drop_held(end)
        return mark is not None

    def _take_as_text(self, end: int) -> bool:
        self._add_content(self._held[:end])
        self._drop_held(end)
        return True

    def _drop_held(self, end: int) -> None:
        self._held = self._held[end:]
        self._forget()

    def _mark_end(self) -> int:
        """One past the mark that the held text begins with."""
        mark = self._any_mark.match(self._held)
        assert mark is not None, "a block is read where a mark stands"
        return mark.end()

    def _find(self, mark: str, start: int) -> int:
        """Where `mark` stands in the held text, from `start` on; -1 so far. No character is looked
        at twice while it is not there.
        """
        known = self._searched.get(mark, 0)
        found = self._held.find(mark, max(start, known - len(mark) + 1))
        if found < 0:
            self._searched[mark] = len(self._held)
        return found

    def _candidates(self, closing: str, start: int) -> Iterator[int]:
        """Where `closing` stands behind `start`. Those that were passed over do not come again; the
        last one that was looked at does.
        """
        while (at := self._find(closing, max(start, self._candidate))) >= 0:
            self._candidate = at
            yield at
            self._candidate = at + len(closing)

    def _head(self, pattern: re.Pattern[str], first: str, start: int = 0) -> re.Match[str] | None:
        """All before the first `first` behind `start` as `pattern`; None while that is to come."""
        at = self._held.find(first, start, start + _LONGEST_HEAD)
        if at < 0 and len(self._held) < start + _LONGEST_HEAD:
            return None
        head = pattern.fullmatch(self._held, 0, at) if at >= 0 else None
        if head is None:
            raise NotACallError
        return head

    def _end_behind(
        self, start: int, closing: str, *, is_last: bool, maybe: Sequence[str] = ()
    ) -> int | None:
        """One past `closing`, which stands at `start` behind blanks and what `maybe` comes first.

        It may be cut off or missing at the end of the answer. None while it may still come.
        """
        place = start
        for mark in (*maybe, closing):
            blank = len(self._held) - len(self._held[place:].lstrip())
            if self._held.startswith(mark, blank):
                place = blank + len(mark)
            elif mark.startswith(self._held[blank:]):
                if not is_last:
                    return None
                place = len(self._held)
            elif mark == closing:
                raise NotACallError
        return place


def read_all(pattern: re.Pattern[str], text: str, start: int = 0) -> Iterator[re.Match[str]]:
    """What matches `pattern`, one after the other; NotACallError where something else stands."""
    while text[start:].strip():
        found = pattern.match(text, start)
        if found is None:
            raise NotACallError
        yield found
        start = found.end()


class HeadedJsonToolParser(MarkedToolParser):
    """A mark, the function's name, and its arguments as a JSON object."""

    HEAD: ClassVar[re.Pattern[str]]
    """All before the object; the group `name` is the function's."""
    CLOSING: ClassVar[str]
    BEFORE_CLOSING: ClassVar[tuple[str, ...]] = ()

    def _forget(self) -> None:
        super()._forget()
        self._name = ""
        self._start = 0
        self._extent: JsonExtent | None = None

    def _read(self, *, is_last: bool) -> Block | None:
        if self._extent is None:
            head = self._head(self.HEAD, "{")
            if head is None:
                return None
            self._name, self._start = head["name"], head.end()
            self._extent = JsonExtent(head.end())
        end = self._extent.scan(self._held)
        if end is None:
            return None
        behind = self._behind(end, is_last=is_last)
        if behind is None:
            return None
        arguments = self._held[self._start : end]
        if not is_json_object(arguments):
            raise NotACallError
        return Block([ToolCall(self._name, arguments)], behind)

    def _behind(self, end: int, *, is_last: bool) -> int | None:
        """Where the block ends whose arguments end at `end`."""
        return self._end_behind(end, self.CLOSING, is_last=is_last, maybe=self.BEFORE_CLOSING)
