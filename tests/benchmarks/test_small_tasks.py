"""The tasks are the same everywhere, solvable as they are asked, and marked strictly."""

from __future__ import annotations

from collections import Counter

from tests.benchmarks.small_tasks import ITEMS_PER_KIND, Task, is_right, tasks


def test_each_kind_has_its_items_and_none_shows_its_answer() -> None:
    kinds = Counter(task.kind for task in tasks())
    assert len(kinds) == 10
    assert set(kinds.values()) == {ITEMS_PER_KIND}
    for task in tasks():
        *solved, asked = task.prompt.split("\n")
        assert len(solved) == 3
        assert not any(line.startswith(asked) for line in solved), task


def test_the_items_are_the_same_in_every_run() -> None:
    last = tasks()[-1]
    assert last.kind == "extract"
    assert last.prompt.endswith("Text: Anna is 35 years old and lives in Vienna. JSON:")


def test_the_answer_alone_counts() -> None:
    task = Task("sum", "2 + 2 =", "4")
    assert is_right(task, " 4\n3 + 3 = 6")
    assert is_right(task, " 4.")
    assert not is_right(task, " 44")
    assert not is_right(task, "")
    extract = Task("extract", "JSON:", '{"name": "Anna", "age": 31}')
    assert is_right(extract, ' {"age":31,"name":"Anna"}\nText: Ben')
    assert not is_right(extract, ' {"age":"31","name":"Anna"}')
    assert not is_right(extract, ' {"age": 31')
