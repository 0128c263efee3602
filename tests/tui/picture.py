"""Compares a screen with a stored picture: its cells as text, and its SVG in a form that is stable.

`STOKER_REWRITE_SNAPSHOTS=1` writes the files anew; look at the difference before it is committed.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from textual.app import App
from textual.pilot import Pilot

from tests.tui.scripted import settled, until_right

FOLDER = Path(__file__).parent / "snapshots"
REWRITE = "STOKER_REWRITE_SNAPSHOTS"
_UNIQUE = re.compile(r"terminal-\d+")
_STYLE = re.compile(r"\.(stable-r\d+) \{ ([^}]*) \}")
_TEXT = re.compile(r'<text class="(stable-r\d+)"[^>]*>(.*?)</text>')
_RECT = re.compile(r'<rect fill="(#[0-9a-f]+)" x="[\d.]+" y="[\d.]+" width="([\d.]+)"')


async def check_picture(pilot: Pilot[str], name: str) -> None:
    """The screen comes to equal `snapshots/NAME.txt`, or the test fails with the difference."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get(REWRITE):
        await pilot.pause(0.5)
        await settled(pilot)
        FOLDER.mkdir(exist_ok=True)
        path.write_text(picture_of(pilot.app), encoding="utf-8")
        return
    assert path.exists(), f"there is no {path.name}; make it with {REWRITE}=1"
    stored = path.read_text(encoding="utf-8")
    await until_right(pilot, lambda: _difference(stored, picture_of(pilot.app)))


def _difference(stored: str, found: str) -> str:
    pair = (stored.splitlines(), found.splitlines())
    lines = difflib.unified_diff(*pair, "stored", "on screen", lineterm="")
    return "" if stored == found else "\n".join(lines)


def picture_of(app: App[str]) -> str:
    """Rows of the screen, then every style of its SVG with the texts that are drawn in it."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    rows = [strip.text[:width].rstrip() for strip in strips[:height]]
    return "\n".join([*rows, "", *_styles(app.export_screenshot()), ""])


def _styles(svg: str) -> list[str]:
    """`style: texts`, sorted; ids and numbers of classes differ from run to run."""
    stable = _UNIQUE.sub("stable", svg)
    styles = dict(_STYLE.findall(stable))
    texts: dict[str, list[str]] = {}
    for name, text in _TEXT.findall(stable):
        drawn = text.replace("&#160;", " ").strip(" ─│╭╮╰╯")
        if drawn:
            texts.setdefault(styles.get(name, ""), []).append(drawn)
    lines = [f"{style} {' | '.join(drawn)}" for style, drawn in texts.items()]
    fills: dict[str, float] = {}
    for fill, size in _RECT.findall(stable):
        fills[fill] = fills.get(fill, 0.0) + float(size)
    lines += [f"background {fill}: {size / 12.2:.0f} cells" for fill, size in fills.items()]
    return sorted(lines)
