"""A machine that does not let a process see its children."""

from __future__ import annotations

import psutil
import pytest


def hide_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil refuses to name any process's children."""

    def hidden(process: psutil.Process, **_: object) -> list[psutil.Process]:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "children", hidden)
