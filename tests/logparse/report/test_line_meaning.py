from __future__ import annotations

from logparse.report.line_meaning import ErrorLines, PhaseLines, explain_line

KV = "(EngineCore pid=7) INFO 10-03 12:00:01 [gpu_worker.py:1] Available KV cache memory: 4.97 GiB"


def test_a_known_line_with_wrappers_and_colours() -> None:
    line = explain_line(f"vllm-1  | \x1b[0;36m{KV}\x1b[0;0m\n")
    assert (line.process, line.pid, line.level) == ("EngineCore", 7, "INFO")
    (meaning,) = line.meanings
    assert meaning.rule_id == "kv-memory"
    assert meaning.values == {"kv_memory_gib": 4.97}
    assert meaning.phase == "memory and graphs"
    assert meaning.source == "v1/worker/gpu_worker.py"


def test_an_unknown_line_has_parts_and_no_meaning() -> None:
    line = explain_line("WARNING 10-03 12:00:01 [x.py:1] token hf_abcdefghijklmnop")
    assert line.meanings == ()
    assert line.level == "WARNING"
    assert line.message == "token ***"


def test_of_a_traceback_only_the_end_is_listed() -> None:
    errors = ErrorLines()
    head = "(EngineCore pid=7) ERROR 10-03 12:00:01 [core.py:1] "
    lines = [
        KV,
        f"{head}EngineCore failed to start.",
        f"{head}Traceback (most recent call last):",
        f'{head}  File "x.py", line 1, in f',
        f"{head}ValueError: no",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "ValueError: no",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "ValueError: no",
    ]
    for number, line in enumerate(lines, start=1):
        errors.take(number, line)
    assert [(e.number, e.process, e.kind, e.text, e.count) for e in errors.lines.values()] == [
        (2, "EngineCore", "error", "EngineCore failed to start.", 1),
        (5, "EngineCore", "exception", "ValueError: no", 1),
        (8, None, "exception", "ValueError: no", 2),
    ]


def test_ten_thousand_failing_lines_are_all_counted() -> None:
    errors = ErrorLines()
    for number in range(1, 10_001):
        errors.take(number, "ERROR 10-03 12:00:01 [core.py:1] same again")
    (line,) = errors.lines.values()
    assert line.count == 10_000


def test_lines_of_one_phase() -> None:
    phase = PhaseLines("memory and graphs")
    for number, line in enumerate(("nothing", KV, KV.replace("pid=7", "pid=8")), start=1):
        phase.take(number, line)
    (line_,) = phase.lines.values()
    assert (line_.number, line_.kind, line_.count) == (2, "kv-memory", 2)
