"""Parameters as they are typed, and as they are sent."""

from __future__ import annotations

import pytest

from app.client.chat.parameters import ChatParameters, ParameterError


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("temperature", "3", "from 0 to 2"),
        ("temperature", "nan", "from 0 to 2"),
        ("max_tokens", "1.5", "a whole number from 1 up"),
        ("seed", "x", "seed must be"),
        ("warmth", "1", "there is no parameter 'warmth'"),
    ],
)
def test_wrong_parameters_say_what_is_right(name: str, text: str, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        ChatParameters().with_text(name, text)


def test_parameters_as_typed_and_as_sent() -> None:
    parameters = ChatParameters().with_text("top-p", " 0.9 ").with_text("max_tokens", "5")
    assert parameters.body_fields() == {"top_p": 0.9, "max_tokens": 5}
    assert parameters.summary() == "top_p 0.9, max_tokens 5"
    assert parameters.with_text("top_p", "default").body_fields() == {"max_tokens": 5}
