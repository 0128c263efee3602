from __future__ import annotations

from pathlib import Path

from tui.widgets.logs.log_pane import LogPane


def test_lines_are_safe_for_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"\x1b]0;x\x07a\x1b[2J\tb \xff\nbar  0%\rbar 99%\n")
    pane = LogPane(log)
    assert pane.read_new() == ["a       b �", "bar 99%"]
    pane.on_unmount()
