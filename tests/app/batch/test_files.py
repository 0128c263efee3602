"""The files of a batch: what is refused, and what a killed run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.batch.files import open_answers, read_requests
from app.errors import UsageError

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
ANSWER: dict[str, Any] = {"id": "1", "response": {"status_code": 200, "body": {}}, "error": None}


def written(path: Path, *entries: Any) -> Path:
    path.write_text("".join((e if isinstance(e, str) else json.dumps(e)) + "\n" for e in entries))
    return path


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], "holds no requests"),
        ([GOOD, "{"], "line 2 is not JSON"),
        ([{**GOOD, "body": {"prompt": "\udfff"}}], "line 1 is not JSON"),
        ([[1]], "no JSON object"),
        ([{**GOOD, "custom_id": 7}], "custom_id"),
        ([GOOD, {**GOOD}], "line 2: custom_id 'a' is there twice"),
        ([{**GOOD, "url": "/v1/files"}], "POST to /v1/chat/completions"),
        ([{**GOOD, "method": "GET"}], "POST to"),
        ([{**GOOD, "body": None}], "body must be an object"),
        ([{**GOOD, "body": {"stream": True}}], "streams nothing"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, entries: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_requests(written(tmp_path / "in.jsonl", *entries))


@pytest.mark.parametrize("cut", [1, 5, 13, 14, 20, 60])
def test_a_line_that_was_cut_off_is_written_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    with open_answers(path, {"a", "b"}) as answers:
        answers.append("a", ANSWER)
        answers.append("b", {"response": {"status_code": 400, "body": {}}, "error": None})
        assert answers.num_failed == 1
    content = path.read_bytes()
    first_end = content.index(b"\n") + 1
    path.write_bytes(content[: first_end + cut])
    with open_answers(path, {"a", "b"}) as answers:
        assert (answers.done, answers.num_failed) == ({"a"}, 0)
        answers.append("b", ANSWER)
    assert [json.loads(line)["custom_id"] for line in path.read_text().splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    "entries",
    [
        ["notes"],
        [{"custom_id": "c", **ANSWER}],
        [{"custom_id": "a", **ANSWER}] * 2,
        [{"custom_id": "a", **ANSWER}, "x"],
        [GOOD],
    ],
)
def test_another_file_is_left_as_it_is(tmp_path: Path, entries: list[Any]) -> None:
    path = written(tmp_path / "out.jsonl", *entries)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="no answer to a request"), open_answers(path, {"a"}):
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["notes", '{"other": 1', json.dumps(GOOD), '"response"'])
def test_another_file_without_a_whole_line_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError), open_answers(path, {"a"}):
        pass
    assert path.read_text() == content


def test_what_no_encoding_has_is_written_as_an_escape(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    odd = {**ANSWER, "response": {"status_code": 200, "body": "half \ud83d of a pair"}}
    with open_answers(path, {"a"}) as answers:
        answers.append("a", odd)
    assert json.loads(path.read_text()) == {"custom_id": "a", **odd}
    with open_answers(path, {"a"}) as answers:
        assert answers.done == {"a"}


def test_one_batch_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with (
        open_answers(path, {"a"}),
        pytest.raises(UsageError, match="another `stoker batch`"),
        open_answers(path, {"a"}),
    ):
        pass


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="cannot be written"),
        open_answers(tmp_path / "no" / "out.jsonl", {"a"}),
    ):
        pass
