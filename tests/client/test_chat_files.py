"""What goes into the chat from files and out of it, and which model answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pytest

from app.client.chat.attachments import AttachmentError, read_attachment
from app.client.chat.completions import stream_completion
from app.client.chat.export import as_markdown, free_name, write_export
from app.client.chat.parameters import ChatParameters
from app.client.chat.turns import AnswerStats, Conversation, ToolCall, Turn
from app.client.errors import BadAnswer, Unauthorized
from app.client.served_model import ServedModel, served_model
from tests.client.chat_server import DONE, ChatServer, event, usage

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


def test_a_text_file_is_read_without_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\x1b[31mtwo\n")
    attachment = read_attachment(path)
    assert (attachment.name, attachment.text) == ("a.txt", "one\ntwo")


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"a\x00b", "not a text file"), (b"\xff\xfe", "not a text file"), (b"x" * 21, "the limit")],
)
def test_what_is_no_text_or_too_long_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(AttachmentError, match=said):
        read_attachment(path, limit_bytes=20)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "not a file"), ("", "not a file"), ("none", "No such file")):
        with pytest.raises(AttachmentError, match=said):
            read_attachment(tmp_path / name)


def test_markdown_holds_everything() -> None:
    assert as_markdown(CONVERSATION) == (
        "# Why?\n\n- model: smol\n- parameters: seed 3\n\n## System prompt\n\nBe brief.\n\n"
        "## You\n\nWhy?\n\n## Model\n\n> hm\n> well\n\nSo.\n\nCalls `f`:\n\n"
        '```json\n{"a": 1}\n```\n\n'
        "*7 prompt + 3 tokens · first token 250 ms · stop · stopped by you*\n"
    )


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


def models(**answers: tuple[int, object]) -> httpx.MockTransport:
    def handle(request: httpx.Request) -> httpx.Response:
        status, document = answers.get(request.url.path.rpartition("/")[2], (404, {}))
        return httpx.Response(status, json=document)

    return httpx.MockTransport(handle)


def test_length_of_the_context_from_each_engine() -> None:
    cards = {"data": [{"id": "a", "max_model_len": 10}, {"id": "b", "max_model_len": 20}]}
    vllm = models(models=(200, cards))
    assert served_model("http://h", transport=vllm) == ServedModel("a", 10, ("a", "b"))
    assert served_model("http://h", "b", transport=vllm).max_model_len == 20
    props = {"default_generation_settings": {"n_ctx": 4096}}
    llama = models(models=(200, {"data": [{"id": "x.gguf"}]}), props=(200, props))
    assert served_model("http://h", transport=llama).max_model_len == 4096
    other = models(models=(200, {"data": [{"id": "gpt"}]}))
    assert served_model("http://h", transport=other).max_model_len is None


def test_a_server_without_a_list_answers_for_a_named_model() -> None:
    assert served_model("http://h", "gpt", transport=models()) == ServedModel("gpt", None, ())
    empty = models(models=(200, {"data": []}))
    with pytest.raises(BadAnswer, match="--model"):
        served_model("http://h", transport=empty)
    with pytest.raises(Unauthorized):
        served_model("http://h", "gpt", transport=models(models=(401, {})))


def test_completion_of_a_raw_prompt() -> None:
    events = [
        event(choices=[{"text": " upon"}]),
        event(choices=[{"text": " a", "finish_reason": "length"}]),
        usage(1, 2),
        DONE,
    ]
    with ChatServer([events]).running() as server:
        deltas = list(stream_completion(server.url, "Once", model="m", max_tokens=2, seed=None))
    assert "".join(delta.text for delta in deltas) == " upon a"
    assert deltas[1].finish_reason == "length"
    assert server.bodies == [
        {
            "model": "m",
            "prompt": "Once",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 2,
        }
    ]
