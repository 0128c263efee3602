"""Reads start-up logs of vLLM, our own engine, llama-server and SGLang: one line in, events out.

Standard library only. `LogParser` streams, `parse_lines` reads a whole log, `explain` puts a
report into words, `to_document` into JSON values.
"""

from __future__ import annotations

from logparse.document import to_document
from logparse.explain import Explanation, explain
from logparse.parser import LogParser, parse_lines
from logparse.phases import PHASE_NAMES
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
