from __future__ import annotations

import asyncio
import sys

import pytest

from engine.server.http import event_loop


async def _loop_module() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_uvloop_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert event_loop.run(_loop_module()).startswith("uvloop")


def test_pythons_own_loop_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert event_loop.run(_loop_module()).startswith("asyncio")
