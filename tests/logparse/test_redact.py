from __future__ import annotations

import pytest

from logparse import explain, mask_secrets, parse_lines, safe_text

SECRET = "Zq8vTn3LwX0pRk5"


@pytest.mark.parametrize(
    "text",
    [
        f"hf_{SECRET}",
        f"sk-{SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"vllm serve m --api-key {SECRET} --port 1",
        f"--api-key={SECRET}",
        f"{{'model': 'm', 'api_key': '{SECRET}', 'port': 1}}",
        f"{{'api_key': ['{SECRET}', 'b']}}",
        f"Namespace(api_key='{SECRET}', hf_token=\"{SECRET}\")",
        f"HF_TOKEN={SECRET} vllm serve m",
        f"export AWS_SECRET={SECRET}",
        f"http://user:{SECRET}@proxy:3128",
        f"GET /v1/models?api_key={SECRET}&x=1",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    masked = mask_secrets(text)
    assert SECRET not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "text",
    [
        "tokenizer='o/m', skip_tokenizer_init=False, tokenizer_mode=auto",
        "eos_token='</s>', max_tokens=7, 'max_num_batched_tokens': 8192",
        "Using max model len 32768",
        "ask-me-anything-now",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert mask_secrets(text) == text


def test_safe_text_has_no_control_characters_and_a_length() -> None:
    assert safe_text("a\x1b[31mb\x1b]0;title\x07c\x00d\te\u202ef") == "abcd ef"
    assert safe_text("x" * 50, 10) == "x" * 10


def test_a_cut_does_not_leave_half_a_secret() -> None:
    assert SECRET[:4] not in safe_text(f"key hf_{SECRET}", 12)


def test_nothing_of_a_report_shows_a_secret() -> None:
    report = parse_lines(
        [
            f"(APIServer pid=1) INFO 10-03 12:00:01 [a.py:2] non-default args: {{'model': 'o/m', "
            f"'api_key': '{SECRET}', 'hf_token': 'hf_{SECRET}'}}",
            f"(APIServer pid=1) ValueError: bad header \x1b[31mBearer {SECRET}\x07",
        ]
    )
    shown = explain(report).text() + str(report)
    assert SECRET not in shown
    assert "\x1b" not in shown
