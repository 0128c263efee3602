"""The processes of one server, where the kernel hides some of them."""

from __future__ import annotations

import os

import pytest

from app.supervise.process_tree import ProcessTree
from tests.fakes.hidden_children import hide_children


def test_where_children_are_hidden_the_first_process_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hide_children(monkeypatch)
    tree = ProcessTree(os.getpid())
    tree.refresh()
    assert os.getpid() in tree.pids()
