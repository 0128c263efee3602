from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError, CorruptModelError, RequestError
from engine.frontend.chat_template import ChatTemplate, load_chat_template
from engine.frontend.tokenizer import Tokenizer
from tests.default_model import default_model_folder

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello <b>"}]


def _render(source: str, messages: list[dict[str, Any]] = HELLO, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        messages, **options
    )


def test_variables_filters_and_block_trimming() -> None:
    source = """{{ bos_token }}
{%- for message in messages %}
    {% if message.role == 'skip' %}{% continue %}{% endif %}
[{{ message.role }}] {{ message | tojson }}
{% endfor %}
{% if add_generation_prompt %}>{% endif %}{{ tools }}{{ extra }}"""
    messages = [{"role": "skip", "content": "no"}, *HELLO]
    text = _render(source, messages, template_args={"extra": "!"})
    assert text == '<s>[user] {"role": "user", "content": "Hello <b>"}\n>None!'
    assert _render(source, [], add_generation_prompt=False) == "<s>None"


def test_generation_block_keeps_its_body() -> None:
    assert _render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "Hello <b>"


def test_strftime_now_is_there() -> None:
    assert len(_render("{{ strftime_now('%Y') }}")) == 4


def test_refusal_of_the_template_is_the_clients_error() -> None:
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        _render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.x }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ undefined.attribute }}",
    ],
)
def test_errors_and_escapes_become_request_errors(source: str) -> None:
    with pytest.raises(RequestError):
        _render(source)


def test_broken_template_is_a_corrupt_model() -> None:
    with pytest.raises(CorruptModelError, match="cannot be compiled"):
        ChatTemplate("{% if %}", {})


def _config(folder: Path, template: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def _loaded(folder: Path, override: str | None = None) -> str | None:
    template = load_chat_template(folder, {}, override)
    return None if template is None else template.render(HELLO)


def test_where_the_template_comes_from(tmp_path: Path) -> None:
    assert _loaded(tmp_path) is None
    _config(tmp_path, "from config")
    assert _loaded(tmp_path) == "from config"
    _config(tmp_path, [{"name": "tool_use", "template": "tools"}])
    assert _loaded(tmp_path) is None
    _config(tmp_path, [{"name": "default", "template": "named"}])
    assert _loaded(tmp_path) == "named"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "from json"}')
    assert _loaded(tmp_path) == "from json"
    (tmp_path / "chat_template.jinja").write_text("from file")
    assert _loaded(tmp_path) == "from file"
    (tmp_path / "mine.jinja").write_text("mine")
    assert _loaded(tmp_path, str(tmp_path / "mine.jinja")) == "mine"
    with pytest.raises(ConfigError, match="--chat-template"):
        _loaded(tmp_path, str(tmp_path / "absent"))
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{{")
    with pytest.raises(CorruptModelError, match=r"chat_template\.jinja is not UTF-8"):
        _loaded(tmp_path)


def test_chatml_is_there_by_name(tmp_path: Path) -> None:
    template = load_chat_template(tmp_path, {}, "chatml")
    assert template is not None
    hello = [{"role": "user", "content": "Hi"}]
    assert template.render(hello) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "What is the capital of France?"}],
        [
            {"role": "system", "content": "Be brief. 日本 🗼"},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": "And now?"},
        ],
    ],
)
def test_default_model_equals_transformers(messages: list[dict[str, str]]) -> None:
    from transformers import AutoTokenizer

    folder = default_model_folder()
    ours = Tokenizer.from_folder(folder)
    template = load_chat_template(folder, ours.special_tokens)
    assert template is not None
    theirs = AutoTokenizer.from_pretrained(str(folder))
    begun = [*messages, {"role": "assistant", "content": " Well, "}]
    assert template.render(
        begun, add_generation_prompt=False, continue_final_message=True
    ) == theirs.apply_chat_template(begun, tokenize=False, continue_final_message=True)
    prompt = template.render(messages)
    assert prompt == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    token_ids = ours.encode(prompt, add_special_tokens=False)
    assert token_ids == theirs.encode(prompt, add_special_tokens=False)
    for skip in (True, False):
        assert ours.decode(token_ids, skip_special_tokens=skip) == theirs.decode(
            token_ids, skip_special_tokens=skip
        )


def called(call_id: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": arguments}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"id": call_id, "function": function}]},
        {"role": "tool", "content": "5", "tool_call_id": call_id},
    ]


SHOWN_IDS = (
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls[0].id|length != 9 %}"
    "{{ raise_exception('nine!') }}{% endif %}{{ m.tool_calls[0].id }}"
    "{% else %}={{ m.tool_call_id }}{% endif %}{% endfor %}"
)


def test_ids_of_calls_have_the_length_that_the_template_asks_for() -> None:
    long, short = called("toolu_0123456789", {}), called("a1B2c3D4e", {})
    first, second = _render(SHOWN_IDS, long).split("=")
    assert first == second
    assert len(first) == 9
    assert first.isalnum()
    assert _render(SHOWN_IDS, short) == "a1B2c3D4e=a1B2c3D4e"
    other = SHOWN_IDS.replace("|length != 9", "|length == 0")
    assert _render(other, long) == "toolu_0123456789=toolu_0123456789"


def test_arguments_are_what_the_template_can_write() -> None:
    messages = called("a", {"city": "Köln"})
    text = "{{ 'f' + messages[0].tool_calls[0].function.arguments }}"
    assert _render(text, messages) == 'f{"city": "Köln"}'
    objects = "{{ messages[0].tool_calls[0].function.arguments.city }}"
    assert _render(objects, messages) == "Köln"
    with pytest.raises(RequestError, match="refuses"):
        _render("{{ 'f' + messages }}", messages)


def test_a_thought_before_a_call_has_the_name_that_the_template_knows() -> None:
    source = "{{ messages[0].thinking }}{# message.thinking #}"
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    ]
    assert _render(source, messages) == "Hm."
    assert _render(source, [{**messages[0], "content": "Both"}]) == ""
