from __future__ import annotations

from logparse import LogReport, parse_lines
from logparse.redact import shortened, shortened_front
from logparse.report.brief import brief
from logparse.report.compare import ComparedRow, compare
from tests.places import DATA

SAMPLE = (DATA / "seed_example10.log").read_text().splitlines()


def changed(*pairs: tuple[str, str]) -> LogReport:
    text = "\n".join(SAMPLE)
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return parse_lines(text.splitlines())


def rows(left: LogReport, right: LogReport) -> dict[str, ComparedRow]:
    return {row.name: row for row in compare(left, right)}


def test_two_equal_starts_differ_in_nothing() -> None:
    found = compare(parse_lines(SAMPLE), parse_lines(SAMPLE))
    assert {row.group for row in found} == {"start", "arguments", "times", "capacity"}
    assert not any(row.differs for row in found)
    assert all(row.left is not None for row in found)


def test_arguments_times_and_capacity_side_by_side() -> None:
    other = changed(
        ("'max_model_len': 32768", "'max_model_len': 16384, 'enforce_eager': True"),
        ("Loading weights took 16.42", "Loading weights took 8.21"),
        ("GPU KV cache size: 40,720", "GPU KV cache size: 81,440"),
    )
    found = rows(parse_lines(SAMPLE), other)
    assert (found["enforce_eager"].left, found["enforce_eager"].right) == (None, "True")
    assert found["load_weights_s"].change == -0.5
    assert found["kv_tokens"].change == 1.0
    assert not found["weights_gib"].differs


def test_a_log_without_values_leaves_them_empty() -> None:
    found = rows(parse_lines(SAMPLE), parse_lines(["nothing"]))
    assert (found["outcome"].left, found["outcome"].right) == ("ready", "not-a-server-log")
    assert found["weights_gib"].right is None
    assert found["weights_gib"].change is None


def test_of_several_ranks_the_least_counts_for_the_change() -> None:
    other = changed(("Model loading took 14.96", "Model loading took 7.48"))
    found = rows(parse_lines(SAMPLE), other)
    assert found["weights_gib"].change == -0.5


def test_three_lines() -> None:
    ready = brief(parse_lines(SAMPLE))
    assert ready[0].endswith("is ready")
    assert "weights 14.96 GiB" in ready[1]
    assert ready[2] == "serving at http://0.0.0.0:8000"

    failed = brief(parse_lines([*SAMPLE[:4], "OSError: [Errno 98] Address already in use"]))
    assert failed[2].startswith("line 5: OSError: [Errno 98] Address already in use; try: ")

    running = brief(parse_lines(SAMPLE[:9]))
    assert running[2].startswith("last line: ")


def test_what_is_cut_is_marked() -> None:
    long = " ".join(["frob"] * 90)
    raised = ["Traceback (most recent call last):", '  File "/v/x.py", line 1, in f']
    second = brief(parse_lines([*SAMPLE[:4], *raised, f"FrobError: {long}"]))[2]
    assert "frob ..." in second
    assert "fro ..." not in second
    assert shortened("a b", 9) == "a b"
    assert len(shortened("x" * 90, 20)) == 20
    assert shortened_front("/a/very/long/path/to/server.log", 16) == "...to/server.log"
