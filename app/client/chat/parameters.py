"""The sampling parameters of a chat: their limits, how a person types them, how they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any


class ParameterError(ValueError):
    """A value that the parameter cannot have; `str()` says what it can."""


@dataclass(frozen=True, slots=True)
class ParameterRule:
    """What values a parameter takes."""

    name: str
    is_whole: bool
    low: float
    high: float | None
    meaning: str

    def read(self, text: str) -> float | int | None:
        """The value that `text` stands for; empty or `default` leaves it to the server."""
        text = text.strip()
        if text in ("", "default", "-"):
            return None
        try:
            value = int(text) if self.is_whole else float(text)
        except ValueError:
            raise ParameterError(self._refusal(text)) from None
        if not self.low <= value <= (self.high if self.high is not None else value):
            raise ParameterError(self._refusal(text))
        return value

    def range_text(self) -> str:
        kind = "a whole number" if self.is_whole else "a number"
        if self.high is None:
            return f"{kind} from {self.low:g} up"
        return f"{kind} from {self.low:g} to {self.high:g}"

    def _refusal(self, text: str) -> str:
        return f"{self.name} must be {self.range_text()} or `default`, not {text[:40]!r}"


RULES = (
    ParameterRule("temperature", False, 0, 2, "0 always takes the likeliest token"),
    ParameterRule("top_p", False, 0, 1, "only the likeliest tokens with this share together"),
    ParameterRule("max_tokens", True, 1, None, "longest answer in tokens"),
    ParameterRule("seed", True, 0, 2**63 - 1, "same seed, same answer, where the server can"),
    ParameterRule("top_k", True, -1, None, "only this many likeliest tokens; not in every server"),
    ParameterRule("min_p", False, 0, 1, "drop tokens below this share of the likeliest one's"),
    ParameterRule("presence_penalty", False, -2, 2, "against tokens that have been used"),
    ParameterRule("frequency_penalty", False, -2, 2, "against tokens by how often they were used"),
)


@dataclass(frozen=True, slots=True)
class ChatParameters:
    """None leaves a parameter to the server. `response_format` is the API's object."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: Mapping[str, object] | None = None

    @property
    def is_json(self) -> bool:
        """True when the answer is asked for as JSON."""
        return self.response_format is not None

    def body_fields(self) -> dict[str, Any]:
        """What is set, as fields of the request."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def with_text(self, name: str, text: str) -> ChatParameters:
        """A copy with one parameter as it was typed."""
        rule = find_rule(name)
        changes: dict[str, Any] = {rule.name: rule.read(text)}
        return replace(self, **changes)

    def text_of(self, name: str) -> str:
        """The value as it would be typed; empty for the server's default."""
        value = getattr(self, name)
        return "" if value is None else f"{value}"

    def summary(self) -> str:
        """What is set, in one line."""
        parts = [f"{rule.name} {self.text_of(rule.name)}" for rule in RULES]
        parts = [part for part in parts if not part.endswith(" ")]
        return ", ".join([*parts, *(["JSON"] if self.is_json else [])])


def find_rule(name: str) -> ParameterRule:
    """The rule of the parameter called `name`, with dashes or underscores."""
    rule = next((rule for rule in RULES if rule.name == name.replace("-", "_")), None)
    if rule is None:
        known = ", ".join(rule.name for rule in RULES)
        raise ParameterError(f"there is no parameter {name[:40]!r}; there are {known}")
    return rule


def parameters_from_document(document: Mapping[str, Any]) -> ChatParameters:
    """The reverse of `body_fields`, without what a later version may have added."""
    known = {field.name for field in fields(ChatParameters)}
    return ChatParameters(**{name: value for name, value in document.items() if name in known})
