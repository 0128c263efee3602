"""The log view: a real start-up log, failures, filters, search, following, hostile text."""

from __future__ import annotations

import fcntl
import gzip
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.places import DATA
from tests.tui.scripted import URL, ScriptedSource, screen_text, settled, until
from tui.app import DashboardApp
from tui.log_app import LogApp
from tui.screens.help import HelpScreen
from tui.screens.logs import LogScreen
from tui.state.log_index import LineFilter, LogIndex
from tui.state.log_text import LogLevel
from tui.widgets.logs.log_view import LogView
from tui.widgets.logs.phase_list import PhaseList

STOKER = Path(sys.executable).with_name("stoker")
SAMPLE = DATA / "seed_example10.log"
SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
FAILED = """\
(APIServer pid=7) INFO 10-03 12:00:00 [utils.py:1] vLLM API server version 0.11.0
(EngineCore_DP0 pid=9) INFO 10-03 12:00:04 [core.py:77] Initializing a V1 LLM engine (v0.11.0) \
with config: model='org/m'
(EngineCore_DP0 pid=9) WARNING 10-03 12:00:05 [x.py:1] Using a slow tokenizer.
(EngineCore_DP0 pid=9) ERROR 10-03 12:00:06 [core.py:708] EngineCore failed to start.
(EngineCore_DP0 pid=9) ERROR 10-03 12:00:06 [core.py:708] ValueError: No available memory for \
the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/x/api_server.py", line 3, in main
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.
"""
CAUSE = 5  # counted from 1


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    path = tmp_path / "failed.log"
    path.write_text(FAILED)
    return path


def screen(app: LogApp) -> LogScreen:
    found = app.screen_stack[1]
    assert isinstance(found, LogScreen)
    return found


def cursor(app: LogApp) -> int:
    """The number of the line under the cursor, from 1."""
    line = screen(app).query_one(LogView).line
    assert line is not None
    return line + 1


def notices(app: LogApp) -> str:
    return "\n".join(notice.message for notice in app._notifications)


def status(app: LogApp) -> str:
    return str(screen(app)._status())


async def has_read(pilot: Pilot[str], app: LogApp, lines: int) -> None:
    await until(pilot, lambda: app.index.num_lines == lines and "reading" not in status(app))
    await settled(pilot)


@SIZES
async def test_a_real_log_with_its_phases(size: tuple[int, int]) -> None:
    app = LogApp(SAMPLE, "seed")
    async with app.run_test(size=size) as pilot:
        await has_read(pilot, app, len(SAMPLE.read_text().splitlines()))
        text = screen_text(app)
        assert "1✓ configuration" in text
        assert re.search(r"2✓ engine start.* \d+ s", text)
        assert "vLLM server version 0.30.0"[: size[0] - 70] in text
        assert f"1 of {app.index.num_lines}" in text
        assert "The server's version" in text  # what the first line means
        assert not [row for row in text.split("\n") if len(row) > size[0]]


@SIZES
async def test_the_cause_is_one_key_away(failed: Path, size: tuple[int, int]) -> None:
    app = LogApp(failed, "failed")
    async with app.run_test(size=size) as pilot:
        await has_read(pilot, app, 8)
        assert cursor(app) == 1
        await pilot.press("c")
        await settled(pilot)
        assert cursor(app) == CAUSE
        text = screen_text(app)
        assert "5▸12:00:06 E EngineCore_DP0 ValueError: No" in text
        assert "(EngineCore_DP0 pid=9) ERROR" in text  # the whole line is shown below
        await until(pilot, lambda: "✗" in screen_text(app))


async def test_the_cause_is_found_behind_a_filter(failed: Path) -> None:
    app = LogApp(failed, "failed")
    async with app.run_test(size=(80, 24)) as pilot:
        await has_read(pilot, app, 8)
        await pilot.press("p", "c")
        assert cursor(app) == CAUSE
        assert "APIServer" not in status(app)


async def test_a_log_without_a_failure_says_so() -> None:
    app = LogApp(SAMPLE, "seed")
    async with app.run_test(size=(80, 24)) as pilot:
        await has_read(pilot, app, len(SAMPLE.read_text().splitlines()))
        await pilot.press("c")
        await until(pilot, lambda: "no cause of a failure" in notices(app))
        assert cursor(app) == 1


async def test_filters_by_level_process_and_phase(failed: Path) -> None:
    app = LogApp(failed, "failed")
    async with app.run_test(size=(120, 40)) as pilot:
        await has_read(pilot, app, 8)
        view = screen(app).query_one(LogView)

        async def rows_after(*keys: str) -> int:
            await pilot.press(*keys)
            await settled(pilot)
            return view.num_rows

        assert await rows_after("w") == 6  # a warning, two errors, a traceback of three lines
        await until(pilot, lambda: "warnings and errors" in screen_text(app))
        assert await rows_after("w") == 5
        assert await rows_after("p") == 3
        assert "APIServer" in status(app)
        assert await rows_after("0") == 8
        assert await rows_after("1") == 1
        assert await rows_after("2") == 7
        assert await rows_after("2") == 8
        assert await rows_after("4") == 0
        await until(pilot, lambda: "no line" in screen_text(app))
        assert await rows_after("escape") == 8


async def test_a_click_on_a_phase_shows_its_lines(failed: Path) -> None:
    app = LogApp(failed, "failed")
    async with app.run_test(size=(120, 40)) as pilot:
        await has_read(pilot, app, 8)
        await pilot.click(PhaseList, offset=(4, 2))
        await until(pilot, lambda: "phase 2" in status(app))
        assert screen(app).query_one(LogView).num_rows == 7


async def test_search_forwards_backwards_and_around(failed: Path) -> None:
    app = LogApp(failed, "failed")
    async with app.run_test(size=(80, 24)) as pilot:
        await has_read(pilot, app, 8)
        await pilot.press("slash", *"failed", "enter")
        found = [cursor(app)]
        for key in ("n", "n", "N"):
            await pilot.press(key)
            found.append(cursor(app))
        assert found == [4, 8, 4, 8]
        assert "search: failed" in status(app)


async def test_search_for_what_is_not_there(failed: Path) -> None:
    app = LogApp(failed, "failed")
    async with app.run_test(size=(80, 24)) as pilot:
        await has_read(pilot, app, 8)
        await pilot.press("slash", *"zebra", "enter")
        await until(pilot, lambda: "not in these lines: zebra" in notices(app))
        await pilot.press("slash", "escape", "q")


async def test_keys_of_a_pager(failed: Path) -> None:
    app = LogApp(failed, "failed")
    async with app.run_test(size=(80, 24)) as pilot:
        await has_read(pilot, app, 8)
        places = []
        for key in ("G", "k", "up", "home", "j", "pagedown", "g"):
            await pilot.press(key)
            places.append(cursor(app))
        assert places == [8, 7, 6, 1, 2, 8, 1]


async def test_following_a_log_that_grows_is_cut_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "live.log"
    path.write_text(FAILED)
    app = LogApp(path, "live")
    async with app.run_test(size=(80, 24)) as pilot:
        await has_read(pilot, app, 8)
        await pilot.press("f")
        await until(pilot, lambda: "following" in status(app))
        with path.open("a") as file:
            file.write("one more\nhalf a line")
        await until(pilot, lambda: app.index.num_lines == 9 and cursor(app) == 9)
        await until(pilot, lambda: "one more" in screen_text(app))
        assert "half a line" not in screen_text(app)
        await pilot.press("up")
        assert "following" not in status(app)
        path.write_text("begun anew\n")
        await until(pilot, lambda: app.index.num_lines == 1 and cursor(app) == 1)
        other = tmp_path / "other"
        other.write_text("rotated\nfile\n")
        os.replace(other, path)
        await until(pilot, lambda: app.index.num_lines == 2 and "rotated" in screen_text(app))


async def test_hostile_text_and_secrets(tmp_path: Path) -> None:
    path = tmp_path / "hostile.log"
    path.write_bytes(
        b"\x1b[2J\x1b]0;title\x07INFO a\x00b\tc \x9b31m [red]markup[/]\n"
        b"bar 1%\rbar 100%\n\xff\xfe broken\nkey: 'api_key': 'hf_abcdefghijklmnop'\n"
        + "wide 漢字 \u202eevil".encode()
        + b"\n" + b"x" * 100_000 + b"\n"
    )  # fmt: skip
    app = LogApp(path, "hostile")
    async with app.run_test(size=(80, 24)) as pilot:
        await has_read(pilot, app, 6)
        for _ in range(6):
            await pilot.press("down")
        await settled(pilot)
        text = screen_text(app)
        assert "[red]markup[/]" in text
        assert "bar 100%" in text
        assert "bar 1%" not in text
        assert "hf_abc" not in text
        assert not {char for char in text if not char.isprintable()} - {"\n"}
        assert "\u202e" not in text
        await pilot.press("end", "right", "right")
        await settled(pilot)
        await until(pilot, lambda: "xxx" in screen_text(app))


async def test_help_names_the_keys(failed: Path) -> None:
    app = LogApp(failed, "failed")
    async with app.run_test(size=(80, 24)) as pilot:
        await has_read(pilot, app, 8)
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await until(pilot, lambda: "go to the line that failed" in screen_text(app))
        await pilot.press("escape", "q")
    assert app.return_code == 0


async def test_an_empty_log(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.write_bytes(b"")
    app = LogApp(path, "empty")
    async with app.run_test(size=(80, 24)) as pilot:
        for key in ("down", "G", "n", "escape", "c", "f", "slash", "a", "enter"):
            await pilot.press(key)
        assert app.index.num_lines == 0
        path.write_text("first\n")
        await until(pilot, lambda: "first" in screen_text(app))


# -- the command ---------------------------------------------------------------


def terminal_output(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody has the other end open
        return b""


def test_the_command_opens_the_view_in_a_terminal(failed: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        [STOKER, "logs", "--tui", str(failed)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
    ) as process:
        os.close(theirs)
        shown, has_quit = b"", False
        try:
            while select.select([ours], [], [], 60)[0] and (piece := terminal_output(ours)):
                shown += piece
                if b"configuration" in shown and not has_quit:
                    os.write(ours, b"q")
                    has_quit = True
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(ours)
    assert b"Phases" in shown
    assert has_quit


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tui", "FILE"], "--tui needs a terminal"),
        (["--tui", "-"], "cannot read standard input"),
        (["--tui", "FILE", "FILE"], "takes one log"),
        (["--tui", "--json", "FILE"], "--tui has no --json"),
        (["--tui", "--brief", "FILE"], "two ways to show a log"),
    ],
)
def test_what_the_view_cannot_do(failed: Path, arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [STOKER, "logs", *(a.replace("FILE", str(failed)) for a in arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


# -- the index alone -----------------------------------------------------------


def utf16(text: bytes) -> bytes:
    return b"\xff\xfe" + text.decode().encode("utf-16-le")


def indexed(path: Path) -> LogIndex:
    index = LogIndex(path)
    while index.grow():
        pass
    return index


@pytest.mark.parametrize("pack", [gzip.compress, utf16])
def test_packed_logs_are_unpacked(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "packed.log"
    path.write_bytes(pack(FAILED.encode()))
    index = indexed(path)
    assert [index.text(line) for line in range(index.num_lines)] == FAILED.splitlines()
    index.close()


def test_many_lines_over_many_pieces(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    lines = [f"line {number} {'é' * (number % 50)}" for number in range(40_000)]
    lines[39_000] = "(APIServer pid=1) ERROR 10-03 12:00:00 [a.py:1] Needle"
    path.write_text("\n".join(lines) + "\n")
    index = indexed(path)
    shown = index.select(LineFilter())
    assert len(shown) == len(lines) == index.num_lines
    assert [index.text(n) for n in (0, 17, 39_999)] == [lines[n].strip() for n in (0, 17, 39_999)]
    assert index.find("needle", shown, 0, 1) == 39_000
    assert index.find("needle", shown, 39_000, 1) is None
    assert index.find("needle", shown, 39_999, -1) == 39_000
    assert index.find("line 101 ", shown, 39_999, -1) == 101
    assert list(index.select(LineFilter(LogLevel.ERROR))) == [39_000]
    assert list(index.select(LineFilter(process="APIServer"))) == [39_000]
    assert list(index.select(LineFilter(process="nobody"))) == []
    index.close()


@pytest.mark.parametrize("prefix", ["~ gpu-node-7 ~ ", "2026-01-02 03:04:05.678 web/7: "])
def test_what_is_learnt_of_a_log_tells_of_its_first_lines_too(tmp_path: Path, prefix: str) -> None:
    lines = FAILED.splitlines()
    bare, wrapped = tmp_path / "bare.log", tmp_path / "wrapped.log"
    bare.write_text("\n".join(lines) + "\n")
    with wrapped.open("w") as file:
        file.write(f"{prefix}{lines[0]}\n")
        file.flush()
        index = indexed(wrapped)
        file.write("".join(f"{prefix}{line}\n" for line in lines[1:]))
    while index.grow():
        pass
    expected = indexed(bare)
    numbers = range(expected.num_lines)
    assert index.num_lines == len(lines)
    assert [index.level(n) for n in numbers] == [expected.level(n) for n in numbers]
    assert index.processes == expected.processes
    assert index.report() == expected.report()
    assert [index.text(n) for n in numbers] == [prefix + expected.text(n) for n in numbers]
    index.close()
    expected.close()


async def test_all_parts_of_a_rotated_log_are_one(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    (tmp_path / "long.log.head").write_text("INFO the beginning\n")
    (tmp_path / "long.log.gap").write_text("stoker: 9 bytes are left out here\n")
    (tmp_path / "long.log.9").write_text("INFO ninth\nINFO ninth again\n")
    (tmp_path / "long.log.10").write_text("INFO tenth\n")
    path.write_text("INFO the newest\n")
    app = LogApp(path, "long")
    async with app.run_test(size=(80, 24)) as pilot:
        await has_read(pilot, app, 6)
        path.rename(tmp_path / "long.log.11")
        with (tmp_path / "long.log.11").open("a") as old:
            old.write("INFO still the old file\n")
        path.write_text("INFO after the rotation\n")
        await until(pilot, lambda: app.index.num_lines == 8)

        assert [app.index.text(line) for line in range(8)] == [
            "INFO the beginning",
            "stoker: 9 bytes are left out here",
            "INFO ninth",
            "INFO ninth again",
            "INFO tenth",
            "INFO the newest",
            "INFO still the old file",
            "INFO after the rotation",
        ]
        everything = app.index.select(LineFilter())
        assert app.index.find("ninth again", everything, 0, 1) == 3
        assert app.index.find("the rotation", everything, 0, 1) == 7


def test_a_search_in_few_lines_reads_only_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log of gigabytes with few errors a search must not read all that lies between."""
    path = tmp_path / "long.log"
    filler = "INFO 10-03 12:00:00 [a.py:1] " + "x" * 200 + "\n"
    error = "ERROR 10-03 12:00:00 [a.py:1] error {}\n"
    text = "".join(filler * 500 + error.format(number) for number in range(5))
    path.write_text(text)
    index = LogIndex(path)
    while index.grow():
        pass
    shown = index.select(LineFilter(level=LogLevel.ERROR))
    read = 0
    read_bytes = LogIndex._bytes

    def counted(self: LogIndex, at: int, length: int) -> bytes:
        nonlocal read
        read += length
        return read_bytes(self, at, length)

    monkeypatch.setattr(LogIndex, "_bytes", counted)
    assert index.find("error 4", shown, -1, 1) == 4
    assert index.find("error 0", shown, 5, -1) == 0
    assert read < len(text) / 20
    index.close()


async def test_the_whole_log_opens_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_text("".join(f"INFO 10-03 12:00:00 [a.py:1] line {n}\n" for n in range(500)))
    app = DashboardApp(URL, ScriptedSource(), log_path=path)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("L")
        await until(pilot, lambda: "500 of 500 lines" in screen_text(app))
        assert "line 499" in screen_text(app)
        assert "following" in screen_text(app)


async def test_a_failed_log_tells_what_to_do(failed: Path) -> None:
    app = LogApp(failed, "failed")
    async with app.run_test(size=(120, 40)) as pilot:
        await has_read(pilot, app, 8)
        fixes = [fix.text for fix in screen(app)._report.problem.fixes]  # type: ignore[union-attr]
        assert fixes
        await pilot.press("c")
        await until(pilot, lambda: fixes[0][:40] in " ".join(screen_text(app).split()))
