"""A real server that answers chat requests from a script, for the tests of both chat front ends."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.client.local_server import Answer, Call, LocalServer, serving

DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"delta": fields, "finish_reason": finish_reason}])


def answer(*texts: str, prompt_tokens: int = 7, completion_tokens: int = 3) -> list[bytes]:
    """A whole answer with its counts."""
    return [
        *[delta(content=text) for text in texts],
        delta("stop"),
        usage(prompt_tokens, completion_tokens),
        DONE,
    ]


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event(choices=[], usage=counts)


@dataclass
class ChatServer:
    """Answers each chat or completion request with the next of `answers`; the last one repeats."""

    answers: list[Iterable[bytes] | Answer] = field(default_factory=lambda: [answer("Hello!")])
    cards: list[dict[str, Any]] = field(
        default_factory=lambda: [{"id": "smol", "max_model_len": 8192}]
    )
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    local: LocalServer | None = None
    _may_go_on: threading.Event = field(default_factory=threading.Event)

    def endless(self, *first: bytes) -> Iterator[bytes]:
        """Some events, then nothing until the test says so."""
        yield from first
        self._may_go_on.wait(300)

    def let_go(self) -> None:
        """No answer waits any longer."""
        self._may_go_on.set()

    @property
    def last_texts(self) -> list[str]:
        """The contents of the messages of the last request."""
        return [message["content"] for message in self.bodies[-1]["messages"]]

    def _generate(self, call: Call) -> Answer:
        self.bodies.append(json.loads(call.body))
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return found if isinstance(found, Answer) else Answer(found)

    def _models(self, _call: Call) -> Answer:
        return Answer([json.dumps({"data": self.cards}).encode()])

    @contextlib.contextmanager
    def running(self) -> Iterator[ChatServer]:
        """Listen until the end of the block."""
        routes = {
            "/v1/chat/completions": self._generate,
            "/v1/completions": self._generate,
            "/v1/models": self._models,
        }
        with serving(routes) as self.local:
            self.url = self.local.url
            try:
                yield self
            finally:
                self.let_go()
