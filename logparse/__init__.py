"""Reads start-up logs of vLLM, our own engine, llama-server and SGLang: one line in, events out.

Standard library only. `LogParser` streams, `parse_lines` reads a whole log, `explain` puts a
report into words, `to_document` into JSON values.
"""

from __future__ import annotations

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
