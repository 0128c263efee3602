"""Reads a log while it is written, and learns from its lines what other programs did to them.

As `parse_lines`, which waits for the first lines before it reads one. Here each is read at once, as
what is known by then says; where more lines tell otherwise, the first ones are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logparse.parser import LogParser
from logparse.reading.restore import LOOKED_AT, Restoration, learnt
from logparse.reading.wraps import Joiner
from logparse.records import Event, LogReport

_FIRST_LOOK = 2  # lines; then at twice as many each time, up to LOOKED_AT

OnRead = Callable[[LogParser, int], None]


class LiveReader:
    """Feed it the lines of a log as they come; when all were fed, and `rest` was called, its report
    is the one of `parse_lines`. Memory does not grow with the log.
    """

    def __init__(
        self,
        *,
        tells_events: bool = True,
        on_read: OnRead | None = None,
        on_again: Callable[[], None] | None = None,
    ) -> None:
        """`on_read` is told the parser behind each line and how many physical lines that was;
        `on_again`, that the log is read again from its first line.
        """
        self._tells_events = tells_events
        self._on_read, self._on_again = on_read, on_again
        self._head: list[str] | None = []  # the lines as they came, None once nothing is learnt
        self._read: list[str] = []  # the same lines as they were read
        self._told: list[Event] = []  # of these lines
        self._num_learnt = 0
        self._next_look = _FIRST_LOOK
        self._use(Restoration((), None))
        self._parser = LogParser(tells_events=tells_events)

    def _use(self, restoration: Restoration) -> None:
        self._undo = restoration.undo if restoration.layers else None
        self._joiner = None if restoration.width is None else Joiner(restoration.width)

    def feed(self, line: str) -> tuple[Event, ...]:
        """Take one physical line; what it told, and what the lines before it now tell."""
        if self._head is None:
            return self._feed_all(self._restored(line))
        self._head.append(line)
        if len(self._head) >= self._next_look:
            self._next_look = min(2 * self._next_look, LOOKED_AT)
            return self._look()
        restored = list(self._restored(line))
        self._read += restored
        events = self._feed_all(restored)
        self._told += events
        return events

    def rest(self) -> tuple[Event, ...]:
        """No line has come for a while: read the one that waited for its next piece."""
        events: tuple[Event, ...] = ()
        if self._head is not None and len(self._head) > self._num_learnt:
            events = self._look()
        waiting = list(self._joiner.rest()) if self._joiner is not None else []
        if self._head is not None:
            self._read += waiting
        return events + self._feed_all(waiting)

    def report(self) -> LogReport:
        """All that is known now."""
        return self._parser.report()

    @property
    def num_lines(self) -> int:
        """Physical lines read so far."""
        return self._parser.num_lines

    def _restored(self, line: str) -> Iterable[str]:
        if self._undo is not None:
            line = self._undo(line)
        return (line,) if self._joiner is None else self._joiner.add(line)

    def _feed_all(self, lines: Iterable[str]) -> tuple[Event, ...]:
        parser, events = self._parser, list[Event]()
        for line in lines:
            before = parser.num_lines
            events += parser.feed(line)
            if self._on_read is not None:
                self._on_read(parser, parser.num_lines - before)
        return tuple(events)

    def _look(self) -> tuple[Event, ...]:
        """Learn from the lines so far; where they should have been read otherwise, do it."""
        assert self._head is not None
        restoration, head = learnt(self._head)
        self._num_learnt = len(self._head)
        self._use(restoration)
        joiner = self._joiner
        restored = head if joiner is None else [one for line in head for one in joiner.add(line)]
        if restored[: len(self._read)] == self._read:
            events = self._feed_all(restored[len(self._read) :])
        else:
            if self._on_again is not None:
                self._on_again()
            self._parser = LogParser(tells_events=self._tells_events)
            events = tuple(e for e in self._feed_all(restored) if e not in self._told)
        self._read = restored
        self._told += events
        if self._num_learnt >= LOOKED_AT:
            self._head, self._read, self._told = None, [], []
        return events
