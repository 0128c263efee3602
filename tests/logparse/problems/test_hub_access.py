"""What a start of our own engine is told that cannot get its model: commands that Stoker has."""

from __future__ import annotations

import pytest

from logparse import parse_lines

START = (
    "(APIServer pid=1) INFO 10-03 12:00:00 [launch.py:1] Stoker server version 0.1.0, serving "
    "model o/m"
)
ERROR = "(APIServer pid=1) ERROR 10-03 12:00:01 [launch.py:73] "


@pytest.mark.parametrize(
    ("error", "title", "command"),
    [
        (
            "GatedModelError: o/m is gated: its owners ask everyone to accept terms first.",
            "gated",
            "stoker models login",
        ),
        (
            "OfflineError: o/m is not in the local cache and the Hugging Face hub cannot be "
            "reached. Check the network.",
            "cannot be reached",
            "stoker models pull o/m",
        ),
        (
            "ModelStoreError: o/m needs 16.06 GiB of disk; /home/me/.cache/huggingface/hub has "
            "2.50 GiB free; free some space, or name another disk by HF_HOME=FOLDER",
            "o/m needs 16.06 GiB of disk, and /home/me/.cache/huggingface/hub has 2.50 GiB free",
            "HF_HOME=/big/disk stoker serve o/m",
        ),
    ],
)
def test_the_commands_are_ours(error: str, title: str, command: str) -> None:
    problem = parse_lines([START, ERROR + error]).problem

    assert problem is not None
    assert title in problem.title
    assert command in [fix.command for fix in problem.fixes]
    assert not any((fix.command or "").startswith("hf ") for fix in problem.fixes[:2])
