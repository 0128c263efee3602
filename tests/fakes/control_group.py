"""A real control group below ours whose memory is limited, for tests that need a small machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.machine.control_groups import group_folders
from tests.waiting import wait_for


@dataclass(frozen=True, slots=True)
class LimitedGroup:
    folder: Path

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command, run in the group."""
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh", *words]


@contextmanager
def limited_group(limit_bytes: int) -> Iterator[LimitedGroup]:
    """Skips the test where no such group can be made; all processes in it have to end in time."""
    own = next(iter(group_folders("memory")), None)
    if own is None:
        pytest.skip("no memory control group here")
    folder = own / f"stoker-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        names = ("memory.max", "memory.limit_in_bytes")
        file = next((folder / name for name in names if (folder / name).exists()), None)
        if file is None:
            pytest.skip("the memory controller is not handed on to groups below ours")
        file.write_text(str(limit_bytes))
        yield LimitedGroup(folder)
    finally:
        procs = folder / "cgroup.procs"
        wait_for(lambda: not procs.exists() or not procs.read_text().strip())
        folder.rmdir()
