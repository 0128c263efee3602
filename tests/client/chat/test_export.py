"""A conversation written to a file, as Markdown and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.client.chat.export import as_markdown, free_name, write_export
from app.client.chat.parameters import ChatParameters
from app.client.chat.turns import AnswerStats, Attachment, Conversation, ToolCall, Turn

CONVERSATION = Conversation(
    (
        Turn("user", "Why?"),
        Turn(
            "assistant",
            "So.",
            reasoning="hm\nwell",
            tool_calls=(ToolCall("1", "f", '{"a": 1}'),),
            stats=AnswerStats(7, 3, 0.25, None, "stop", "stopped by you"),
        ),
    ),
    system="Be brief.",
    parameters=ChatParameters(seed=3),
    model="smol",
)


def test_markdown_holds_everything() -> None:
    assert as_markdown(CONVERSATION) == (
        "# Why?\n\n- model: smol\n- parameters: seed 3\n\n## System prompt\n\nBe brief.\n\n"
        "## You\n\nWhy?\n\n## Model\n\n> hm\n> well\n\nSo.\n\nCalls `f`:\n\n"
        '```json\n{"a": 1}\n```\n\n'
        "*7 prompt + 3 tokens · first token 250 ms · stop · stopped by you*\n"
    )


def test_an_image_is_named_and_left_out_of_markdown() -> None:
    files = (Attachment("a.md", "x"), Attachment("b.png", "", "image/png", "A" * 4096))
    text = as_markdown(Conversation((Turn("user", "What?", attachments=files),)))
    assert text.endswith('File "a.md":\n```\nx\n```\n\nImage `b.png` (image/png, 3 KiB)\n')
    assert "AAAA" not in text


def test_json_holds_everything_and_no_file_is_replaced(tmp_path: Path) -> None:
    path = write_export(CONVERSATION, tmp_path / "a.json")
    document = json.loads(path.read_text())
    assert document["schema_version"] == 1
    assert document["parameters"] == {"seed": 3}
    assert document["turns"][1]["reasoning"] == "hm\nwell"
    with pytest.raises(FileExistsError):
        write_export(CONVERSATION, path)
    (tmp_path / "why.md").touch()
    assert free_name(tmp_path, CONVERSATION) == tmp_path / "why-2.md"
    assert free_name(tmp_path, Conversation((Turn("user", "../.."),))).name == "conversation.md"
