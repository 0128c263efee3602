"""The processes of one server, where the kernel hides some of them."""

from __future__ import annotations

import os

import psutil
import pytest

from app.supervise.process_tree import ProcessTree


def test_where_children_are_hidden_the_first_process_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hidden(process: psutil.Process, **_: object) -> list[psutil.Process]:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "children", hidden)
    tree = ProcessTree(os.getpid())
    tree.refresh()
    assert os.getpid() in tree.pids()
