"""A traceback as it is read line by line: who called whom, and in whose code it was raised."""

from __future__ import annotations

from dataclasses import dataclass, field

FRAME = 'File "'
_MAX_NAME = 223


@dataclass(slots=True)
class Traceback:
    """`place` and `own_place` are the frames' lines: the deepest, and the engine's own deepest."""

    line_number: int = 0
    header: str = ""  # its first line that is in the log
    functions: list[str] = field(default_factory=list)
    place: str | None = None
    own_place: str | None = None
    source: str = ""
    is_ignored: bool = False
    num_lines: int = 0
    expects_source: bool = False  # the line behind a frame is source, also if it lost its blanks

    @property
    def last_line(self) -> int:
        """About where it ends: other processes may have written between its lines."""
        return self.line_number + self.num_lines

    def note(self, text: str) -> None:
        """A line of it, without its indentation."""
        self.num_lines += 1
        if not text.startswith(FRAME):
            if not self.source and self.place is not None and text.strip("^~ "):
                self.source = text[:_MAX_NAME]
            return
        _, found, name = text.rpartition(", in ")
        if found and len(self.functions) < 200:
            self.functions.append(name[:80])
        self.place, self.source = text, ""
        if package_of(text) is not None:
            self.own_place = text


def package_of(frame: str) -> str | None:
    """Whose code it is, by a folder in its path."""
    if "/vllm/" in frame:
        return "vllm"
    return "sglang" if "/sglang/" in frame else None


def place_of(frame: str) -> str:
    """`x.py:3 in f` of the frame's line in a traceback."""
    return frame[len(FRAME) : 400].replace('", line ', ":").replace(", in ", " in ")
