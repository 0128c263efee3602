"""Reads start-up logs of vLLM, our own engine, llama-server and SGLang: one line in, events out.

Standard library only. `LogParser` streams, `parse_lines` reads a whole log, `explain` puts a
report into words, `to_document` into JSON values. All of them are imported at their first use:
who asks for a table of flags alone does not wait for the parser.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logparse.parser import LogParser, parse_lines
    from logparse.records import (
        Event,
        FactFound,
        Facts,
        LogReport,
        Outcome,
        Phase,
        PhaseFinished,
        PhaseStarted,
        Problem,
        ProblemFound,
        ProgressMade,
        ServerReady,
        ServerStopped,
        StartRepeated,
    )
    from logparse.redact import mask_secrets, safe_text
    from logparse.report.document import to_document
    from logparse.report.explain import Explanation, explain
    from logparse.report.phases import PHASE_NAMES

__all__ = [
    "PHASE_NAMES",
    "Event",
    "Explanation",
    "FactFound",
    "Facts",
    "LogParser",
    "LogReport",
    "Outcome",
    "Phase",
    "PhaseFinished",
    "PhaseStarted",
    "Problem",
    "ProblemFound",
    "ProgressMade",
    "ServerReady",
    "ServerStopped",
    "StartRepeated",
    "explain",
    "mask_secrets",
    "parse_lines",
    "safe_text",
    "to_document",
]

_HOMES = {
    "LogParser": "parser",
    "parse_lines": "parser",
    "mask_secrets": "redact",
    "safe_text": "redact",
    "to_document": "report.document",
    "Explanation": "report.explain",
    "explain": "report.explain",
    "PHASE_NAMES": "report.phases",
}

if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'records')}")
        value = globals()[name] = getattr(home, name)
        return value
