"""Whether a server that ended by itself is started again, and when.

The tables say of each cause that logparse knows whether another start can help. A cause that is not
known may pass by itself; the limit ends what does not.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logparse import Problem

# The same start would end in the same way until a person changes something.
LASTING_CAUSES = frozenset(
    {
        *("A1", "A2", "A5", "A6", "A7", "A8", "A10", "A11", "A14"),  # it does not fit
        *("B1", "B2", "B5", "B6", "B7", "B8", "B9", "B10", "B11", "B12"),  # the model or its place
        *("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10", "C11", "C12", "C13"),
        *(
            "C14",
            "C15",
            "C16",
            "C17",
            "C18",
            "C19",
            "C20",
            "C21",
            "C22",
            "C23",
            "C24",
            "C25",
        ),  # flags and model do not go together
        *("D1", "D2", "D3", "D4", "D7", "D10", "D11", "D12"),  # the number of GPUs, /dev/shm
        *("E1", "E2", "E3", "E4", "E5", "E6", "E7", "E8", "E9", "E10", "E11"),
        *(
            "E13",
            "E14",
            "E15",
            "E16",
            "E17",
            "E18",
            "E19",
            "E20",
            "E21",
            "E22",
            "E23",
            "E24",
            "E25",
            "E28",
            "E40",
        ),  # the platform
        *(
            "F1",
            "F2",
            "F3",
            "F4",
            "F5",
            "F6",
            "F8",
            "F9",
            "F10",
            "F11",
            "F12",
            "G8",
            "G13",
        ),  # flags, the port
        *("L1", "L2", "L3", "L4", "L5", "L6", "L7", "L9", "L10", "L12", "L13"),
        *("Q1", "Q2", "Q4", "Q5", "Q6"),
        *("S1", "S2", "S3", "S4", "S5", "S6", "S7"),
    }
)
_USAGE_STATUSES = frozenset({2, 78})  # argparse's, and sysexits' for a wrong configuration
# Somebody ended it on purpose; systemd's on-failure sees these as clean, too.
_WANTED_ENDS = frozenset({0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Delays double from the first to the longest; serving for `steady_s` makes it begin anew.

    The count of restarts in a row is the limit, not a rate: starts that take minutes would never
    reach a rate.
    """

    is_on: bool = False
    max_restarts: int = 5
    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0
    steady_s: float = 600.0


class RestartCount:
    """The restarts in a row."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.in_a_row = 0

    def next_delay_s(self, served_s: float) -> float | None:
        """Seconds to wait after a server that was ready for `served_s`; None: no more restarts."""
        if served_s >= self._policy.steady_s:
            self.in_a_row = 0
        if self.in_a_row >= self._policy.max_restarts:
            return None
        delay = self._policy.first_delay_s * 2.0 ** min(self.in_a_row, 30)
        self.in_a_row += 1
        return min(delay, self._policy.longest_delay_s)


def why_no_restart(exit_code: int | None, problem: Problem | None) -> str | None:
    """Why another start would be no use, in words; None when it may help.

    `exit_code` is None for a server that had to be stopped, since it was never ready.
    """
    if problem is not None and problem.is_known:
        is_lasting = problem.id in LASTING_CAUSES
        return "another start would fail in the same way" if is_lasting else None
    if exit_code in _USAGE_STATUSES:
        return f"exit status {exit_code} means that the command line or configuration is wrong"
    if exit_code in _WANTED_ENDS:
        return "somebody ended the server on purpose"
    return None
