"""What other programs put in front of a line: compose, kubectl, syslog, Slurm, JSON, Markdown.

Knows the shapes of the wrappers, and nothing of what is inside.
"""

from __future__ import annotations

import json
import re

_DATE = r"\d{4}-\d\d-\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_ZONE = r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_UNIT = r"[\w./@:-]{1,80}(?:\[\d{1,9}\])?: "  # vllm[88]:
_SYSLOG_UNIT = r"[\w./@:-]{1,80}\[\d{1,9}\]: "
_HEAD = r"(?=[(\[{]|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|Traceback)\b|$)"

_ISO = (
    rf"\[?(?:{_DATE}T{_CLOCK}{_ZONE}\]?(?: |$)"
    rf"(?:std(?:out|err) [FP] |\S{{1,80}} {_SYSLOG_UNIT})?"
    rf"|(?<!\[){_DATE} {_CLOCK}{_ZONE}"
    rf"(?:(?: \||:)? {_HEAD}| - [\w.-]{{1,80}} - [A-Z]{{4,8}} - {_HEAD}))"
)
_NUMBER = rf"\s{{0,8}}\d{{1,7}}(?:: |:$|\t|:{_HEAD}|\s{{1,4}}(?=\([A-Z]))"
_CLOCK_ONLY = rf"\[?{_CLOCK}\]? {_HEAD}"
_EPOCH = rf"\d{{10,19}}(?:\.\d{{1,9}})? {_HEAD}"
_SYSLOG = re.compile(rf"[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{{1,9}})? \S{{1,80}} {_UNIT}")
_COMPOSE = re.compile(r"[\w./-]{1,80}\s{0,20}\|(?: |$)")
_POD = (
    rf"\[(?:pod/[^\]\s]{{1,200}}\] |\d{{1,6}}\] {_HEAD}|\d{{1,6}},\d{{1,6}}\]<std(?:out|err)>: ?)"
)
_PRIORITY = re.compile(
    rf"<\d{{1,3}}>(?:1 {_DATE}T\S{{8,30}} \S{{1,80}} \S{{1,80}} \S{{1,80}} \S{{1,80}} - )?"
)
_LABELS = re.compile(r'\{[\w.]{1,80}="[^{}]{0,2000}\} ')  # Loki's, behind its time
_BARS = ">\u258e\u258f\u258c\u2502\u2503\u2551\u00bb"  # of quotations, in mails and on pages
_QUOTE = re.compile(rf"(?:[{_BARS}] ?){{1,5}}")
_FENCE = re.compile(r"(?:```|~~~)[\w+-]{0,20}\s*")
_SPACED = r"\s{1,40}(?=\([^()]{1,60} pid=\d|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d )"


def _any_of(*wrappers: str) -> re.Pattern[str]:
    """The first that fits; at half the price of one after the other."""
    return re.compile("|".join(f"(?:{wrapper})" for wrapper in wrappers))


_COUNTED = _any_of(_ISO, _NUMBER, _CLOCK_ONLY, _EPOCH)
_INDENTED = _any_of(_NUMBER, _SPACED)
# By the first character of the line.
_BY_FIRST: dict[str, re.Pattern[str]] = {
    **dict.fromkeys("0123456789", _COUNTED),
    " ": _INDENTED,
    "\t": _INDENTED,
    "[": re.compile(rf"(?=\[[\dp])(?:{_ISO}|{_POD}|{_CLOCK_ONLY})"),
    "<": _PRIORITY,
    **dict.fromkeys(_BARS, _QUOTE),
    "`": _FENCE,
    "~": _FENCE,
    **dict.fromkeys("ADFJMNOS", _SYSLOG),  # January to December
}
# A colour whose escape character was lost in copying, or made visible.
_LOST_ESCAPE = re.compile(r"(?:\^\[|\u241b)?\[\d{1,2}(?:;\d{1,3}){0,5}m")
_LOST_FIRSTS = frozenset("[^\u241b")
WRAPPER_FIRSTS = frozenset((*_BY_FIRST, *_LOST_FIRSTS, "{"))
INDENTED_FIRSTS = frozenset("0123456789(DIWEC")
MESSAGE_KEYS = (
    "message", "msg", "log", "MESSAGE", "line", "textPayload", "body", "Body", "text", "event",
)  # fmt: skip
_NESTED_KEYS = ("jsonPayload", "fields", "record", "value")
_LONGEST_JSON = 1 << 20


def peel(text: str) -> str:
    """`text` without its outermost wrapper; the same object when it has none."""
    first = text[:1]
    if first == " " and text.lstrip()[:1] not in INDENTED_FIRSTS:
        first = ""
    wrapper = _BY_FIRST.get(first)
    if wrapper is not None and (match := wrapper.match(text)):
        return text[match.end() :]
    if first == "{":
        return _peel_json(text)
    if first in _LOST_FIRSTS and (match := _LOST_ESCAPE.match(text)):
        return _LOST_ESCAPE.sub("", text)
    if "|" in text and (match := _COMPOSE.match(text)):
        return text[match.end() :]
    return text


def _peel_json(text: str) -> str:
    if match := _LABELS.match(text):
        return text[match.end() :]
    message = json_message(text)
    return text if message is None else message


def json_message(text: str) -> str | None:
    """The message of a log line that is a JSON object; None when it is none or has no message."""
    if not text.rstrip().endswith("}") or len(text) > _LONGEST_JSON:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    message = _message_of(document)
    if message is None:
        for key in _NESTED_KEYS:
            message = message or _message_of(document.get(key))
    return message.rstrip("\r\n") if message is not None else None


def _message_of(document: object) -> str | None:
    if not isinstance(document, dict):
        return None
    for key in MESSAGE_KEYS:
        value = document.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and all(_is_byte(part) for part in value):
            return bytes(value).decode("utf-8", "replace")  # journald, for a line with escapes
    return None


def _is_byte(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 256
