"""What happened to a log as a whole on its way here, and can only be told from many of its lines.

Undoes it, layer by layer: fields of JSON or CSV, a prefix on every line, control characters made
visible, entities and tags of a web page, lines cut at the width of a terminal. A log that met none
of it passes through untouched.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from logparse.reading.prefixes import ESCAPES, common_prefix
from logparse.reading.wraps import joined, wrap_width

LOOKED_AT = 400  # lines; what is done to a log is learnt from its first
_FEWEST = 3
_FIRST_LINES = 8
_MAX_LAYERS = 6
_STAMPED = re.compile(
    r"(?:\([\w .=-]{1,60} pid=\d{1,9}\) )?(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) "
    r"\d\d-\d\d \d\d:\d\d:\d\d "
)
_LONGEST_RUN = 20_000
_ENTITY = re.compile(r"&(?:#39|#x27|quot|lt|gt);")
_TAG = re.compile(r"</?(?:span|div|p|td|tr|li|code|pre|font|b|br|a)\b[^<>]{0,300}>")
_RAW = re.compile(r"[<>\"']")
# Escape characters as other programs write them, in front of a colour or a command.
_VISIBLE = re.compile(rf"{ESCAPES}(?=[\[(][0-9;?]{{0,20}}[A-Za-z])")
_VISIBLE_END = re.compile(r"(?:#015|#012|\\r|\\n|\^M)+(?=[\"']?[\r\n]*$)")
_VISIBLE_STARTS = ("#0", "\\", "\u241b", "<ESC>")
_VISIBLE_MARKS = ("#033", "#015", "\\033", "\\x1b", "\\x1B", "\\u001b", "\\e[", "\u241b", "<ESC>")
_CUT_HEAD = re.compile(
    r"(?!INFO|ERROR|DEBUG|[WC])[A-Z]{0,7} ?(\d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,60}:\d+\] )"
)
# What a copy left of a colour around a process.
_HALF_COLOUR = re.compile(r"^(?:\d;)?\d{1,2}m(?=\(\w[^()]{0,60} pid=\d)|(?<=\d\))(?:0;)?0m(?= )")
# Process and pid of a changed vLLM, which has another form for them.
_OTHER_OWNER = re.compile(r"[\[<](\w[\w.-]{0,40})(?:\]\[|[ :,]{1,2})pid[=: ](\d{1,9})[\]>] ?")
_BAR_END = re.compile(r" {1,200}\|\s*$")

_VALUE_FIRSTS = frozenset("{\"'")
_VALUE_MARKS = frozenset("{}[]\"'b0123456789")
_OWNER_FIRSTS = ("[", "<")

Layer = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Restoration:
    """What undoes all that was done to a log: the layers from the outermost on, and the width that
    its lines were cut at, if they were.
    """

    layers: tuple[Layer, ...]
    width: int | None

    def undo(self, line: str) -> str:
        """One line without its layers."""
        for layer in self.layers:
            line = layer(line)
        return line


def learnt(head: list[str]) -> tuple[Restoration, list[str]]:
    """What was done to a log that begins with these lines, and the lines with its layers undone."""
    head = [*map(_with_head, head[:_FIRST_LINES]), *head[_FIRST_LINES:]]
    layers: list[Layer] = []
    for _ in range(_MAX_LAYERS):
        layer = _outermost(head)
        if layer is None:
            break
        layers.append(layer)
        head = list(map(layer, head))
    if any(map(_is_run_together, head)):
        layers.append(_apart)
        head = list(map(_apart, head))
    return Restoration(tuple(layers), wrap_width(head)), head


def restored_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines as the server wrote them; of a joined line, `wraps.WRAP` marks the cuts."""
    rest = iter(lines)
    restoration, head = learnt(list(itertools.islice(rest, LOOKED_AT)))
    through = map(restoration.undo, rest) if restoration.layers else rest
    everything = itertools.chain(head, through)
    return everything if restoration.width is None else joined(everything, restoration.width)


def _with_head(line: str) -> str:
    """A line of a copy's beginning, with the level that was cut off its header."""
    return _CUT_HEAD.sub(r"INFO \1", line) if _CUT_HEAD.match(line) else line


def _outermost(lines: list[str]) -> Layer | None:
    """What undoes the last thing that was done to all of these; None when nothing was."""
    if any(map(_may_be_a_value, lines[:20])) and _are_mostly_values(lines):
        from logparse.reading.envelopes import envelope_of  # most logs are none

        if (envelope := envelope_of(lines)) is not None:
            return envelope
    if _is_from_a_page(lines):
        return _from_a_page
    prefix = common_prefix(lines)
    if prefix is not None:
        return lambda line: _without(prefix, line)
    if _has_visible_escapes(lines):
        return _with_escapes
    coloured = [line for line in lines if ")0" in line or ("m(" in line and line[0].isdigit())]
    if sum(_HALF_COLOUR.search(line) is not None for line in coloured) >= _FEWEST:
        return _without_half_colours
    bracketed = [line for line in lines if line[:1] in _OWNER_FIRSTS]
    if sum(_OTHER_OWNER.match(line) is not None for line in bracketed) >= _FEWEST:
        return _with_usual_owner
    return _without_bar if _is_in_a_table(lines) else None


def _may_be_a_value(line: str) -> bool:
    """Whether the line begins like JSON, a row of cells, `key=value` or a quoted string."""
    start = line.strip()[:40]
    if start[:1] in _VALUE_FIRSTS or start == "[" or start.startswith(("[{", "b'", 'b"')):
        return True
    if start[:1].isdigit():
        return "," in start
    key, equals, _ = start.partition("=")
    return bool(equals) and " " not in key


def _are_mostly_values(lines: list[str]) -> bool:
    """A cheap test, with what closes a value: each envelope is on four fifths of the lines."""
    texts = [start for line in lines if (start := line.strip()[:200])]
    marked = sum(text[0] in _VALUE_MARKS or _may_be_a_value(text) for text in texts)
    return 2 * marked >= len(texts)


def _is_run_together(line: str) -> bool:
    """Whether newlines were lost in copying, and many lines became one."""
    num_levels = line.count("INFO ") + line.count("ERROR ") + line.count("WARNING ")
    return num_levels >= _FEWEST and len(_STAMPED.findall(line, 0, _LONGEST_RUN)) >= _FEWEST


def _apart(line: str) -> str:
    """What was one line again in pieces that all have its number, as bars that overwrite."""
    return _STAMPED.sub(r"\r\g<0>", line).lstrip("\r") if _is_run_together(line) else line


def _is_from_a_page(lines: list[str]) -> bool:
    """Entities, hard spaces or tags; few are enough where what they stand for is nowhere."""
    marked = [
        line
        for line in lines
        if "\xa0" in line
        or ("&" in line and _ENTITY.search(line))
        or ("<" in line and _TAG.search(line))
    ]
    return (
        len(marked) >= _FEWEST
        or 1 < len(marked) == len(lines)
        or (any(_ENTITY.search(line) for line in marked) and not any(map(_RAW.search, lines)))
    )


def _from_a_page(line: str) -> str:
    import html  # its table of entities is large, and most logs have none

    if "<" in line:
        line = _TAG.sub("", line)
    return html.unescape(line).replace("\xa0", " ") if "&" in line else line.replace("\xa0", " ")


def _has_visible_escapes(lines: list[str]) -> bool:
    text = "\n".join(lines)
    if not any(start in text for start in _VISIBLE_STARTS):
        return False
    marks = [mark for mark in _VISIBLE_MARKS if mark in text]
    return bool(marks) and any(
        any(mark in line for mark in marks) and (_VISIBLE.search(line) or _VISIBLE_END.search(line))
        for line in lines
    )


def _with_escapes(line: str) -> str:
    return _VISIBLE_END.sub("", _VISIBLE.sub("\x1b", line)).replace("#011", "\t")


def _without_half_colours(line: str) -> str:
    return _HALF_COLOUR.sub("", line)


def _with_usual_owner(line: str) -> str:
    return _OTHER_OWNER.sub(r"(\1 pid=\2) ", line)


def _is_in_a_table(lines: list[str]) -> bool:
    texts = [line for line in lines if line.strip()]
    return len(texts) >= 2 and all(_BAR_END.search(line[-202:]) for line in texts)


def _without_bar(line: str) -> str:
    return _BAR_END.sub("", line)


def _without(prefix: re.Pattern[str], line: str) -> str:
    match = prefix.match(line)
    return line[match.end() :] if match is not None else line


__all__ = ["common_prefix", "restored_lines"]
