"""What a check says, and which checks there are. Each check only looks; nothing is changed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class Result(enum.Enum):
    """How a check came out. Only PROBLEM makes `stoker doctor` end with exit code 1."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report: what was seen, and what to type or do about it."""

    id: str
    title: str
    result: Result
    seen: str
    todo: str | None = None


def run_checks() -> tuple[Check, ...]:
    """Every check on this machine, in the order of the report."""
    from app.doctor.extras import check_engine_extra
    from app.doctor.gpu import check_gpu, read_gpus
    from app.doctor.host import (
        check_disk,
        check_port,
        check_python,
        check_shared_memory,
        check_system,
    )
    from app.doctor.platform import check_vllm_platform
    from app.doctor.wheel import check_vllm_wheel

    gpus = read_gpus()
    checks: Sequence[Callable[[], Check]] = (
        check_python,
        check_system,
        check_engine_extra,
        lambda: check_gpu(gpus),
        check_vllm_wheel,
        lambda: check_vllm_platform(gpus),
        check_port,
        check_disk,
        check_shared_memory,
    )
    return tuple(check() for check in checks)


def worst_result(checks: Sequence[Check]) -> Result:
    """PROBLEM before WARNING before OK; skipped checks do not count."""
    results = {check.result for check in checks}
    for result in (Result.PROBLEM, Result.WARNING):
        if result in results:
            return result
    return Result.OK


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """The payload of `stoker doctor --json`."""
    return {
        "result": worst_result(checks).value,
        "checks": [
            {
                "id": check.id,
                "title": check.title,
                "result": check.result.value,
                "seen": check.seen,
                "todo": check.todo,
            }
            for check in checks
        ],
    }
