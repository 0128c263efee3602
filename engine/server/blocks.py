"""One answer as a row of blocks, each a thought, a text or a call: what the Responses and Messages
APIs are made of.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.server.generation import Choice
from engine.server.parsers.tool_calls.base import Parsed
from engine.server.tool_answer import ToolAnswer
from engine.server.tools import ToolPlan


class BlockKind(enum.Enum):
    """What a block of an answer can hold."""

    THOUGHT = "thought"
    TEXT = "text"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """A part of an answer that may still grow; `text` of a call is its arguments as JSON."""

    index: int
    kind: BlockKind
    name: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class StepKind(enum.Enum):
    """What happened to a block."""

    OPENED = "opened"
    GREW = "grew"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one block; `text` is what it grew by."""

    kind: StepKind
    block: Block
    text: str = ""


class BlockReader:
    """Reads one answer, in pieces of any size. One block is open at a time, and none is empty but
    for a call without arguments.
    """

    def __init__(self, plan: ToolPlan) -> None:
        self._tools = ToolAnswer(plan) if plan.make_parser else None
        self.blocks: list[Block] = []
        self._is_open = False

    @classmethod
    def of_whole(cls, plan: ToolPlan, choice: Choice) -> BlockReader:
        """The reader of an answer that is complete."""
        reader = cls(plan)
        list(reader.feed("".join(choice.reasonings), "".join(choice.texts)))
        list(reader.finish())
        return reader

    @property
    def num_calls(self) -> int:
        return sum(block.kind is BlockKind.CALL for block in self.blocks)

    def feed(self, reasoning: str, text: str) -> Iterator[Step]:
        """What the next piece of thought and answer changes."""
        if reasoning:
            yield from self._grow(BlockKind.THOUGHT, reasoning)
        if text:
            yield from self._read(self._tools.read(text) if self._tools else Parsed([text]))

    def finish(self) -> Iterator[Step]:
        """What the end of the answer lets out, and the last block closed."""
        if self._tools:
            yield from self._read(self._tools.read_end())
        yield from self._close()

    def _read(self, parsed: Parsed) -> Iterator[Step]:
        for part in parsed.parts:
            if isinstance(part, str):
                yield from self._grow(BlockKind.TEXT, part)
                continue
            if part.name is not None:
                yield from self._open(BlockKind.CALL, part.name)
            if part.arguments:
                yield from self._grow(BlockKind.CALL, part.arguments)

    def _grow(self, kind: BlockKind, text: str) -> Iterator[Step]:
        if not self._is_open or self.blocks[-1].kind is not kind:
            yield from self._open(kind)
        self.blocks[-1].pieces.append(text)
        yield Step(StepKind.GREW, self.blocks[-1], text)

    def _open(self, kind: BlockKind, name: str = "") -> Iterator[Step]:
        yield from self._close()
        self.blocks.append(Block(len(self.blocks), kind, name))
        self._is_open = True
        yield Step(StepKind.OPENED, self.blocks[-1])

    def _close(self) -> Iterator[Step]:
        if self._is_open:
            self._is_open = False
            yield Step(StepKind.CLOSED, self.blocks[-1])
