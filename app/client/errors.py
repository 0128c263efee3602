"""What can go wrong between this machine and an inference server.

ClientError
├── InvalidUrl      the address cannot be understood; nothing was sent
├── InvalidKeyFile  the API key file cannot be read; nothing was sent
├── InvalidRecording  a recording cannot be written or read
├── Unreachable     no connection, a time-out, or the connection broke
├── BadStatus       an answer with an HTTP error status
│   ├── Unauthorized  401 or 403: the API key is missing or wrong
│   ├── ServerLoading  503: it is there and does not serve yet; waiting helps
│   ├── EngineInStep  503: the engine has not ended a step for so long that it could not answer
│   ├── ModelNotNamed  400: a router of several models wants to know which
│   ├── ModelNotServed  404: the server has another model than the one that was named
│   └── RequestForgotten  404: the engine keeps nothing of this request, or has never seen it
└── BadAnswer       an answer that is not what the endpoint promises, or an error inside a stream
"""

from __future__ import annotations

import json

from app.client.terminal_text import strip_escapes


class ClientError(Exception):
    """Base of the tree; `str()` is one line fit for the screen."""


class InvalidUrl(ClientError):
    """The address cannot be understood."""


class InvalidKeyFile(ClientError):
    """The API key file cannot be read or is empty."""


class InvalidRecording(ClientError):
    """A file that is no recording, or cannot become one."""


class Unreachable(ClientError):
    """Nothing answered at the address."""


class BadStatus(ClientError):
    """The server answered with an error status; `detail` is the text of its error body."""

    def __init__(self, url: str, status: int, detail: str) -> None:
        super().__init__(f"{url} answered {status}" + (f": {detail}" if detail else ""))
        self.url = url
        self.status = status
        self.detail = detail

    @property
    def is_refusal(self) -> bool:
        """The server is there and will not tell, now or later."""
        return self.status in (401, 403, 404, 405)


class Unauthorized(BadStatus):
    """The server wants an API key, or another one."""


class ServerLoading(BadStatus):
    """The server is starting: its model is being loaded."""


class EngineInStep(BadStatus):
    """The server answers, and its engine has been in one step for long."""


class ModelNotNamed(BadStatus):
    """A router serves several models, and the question is about one."""


class ModelNotServed(BadStatus):
    """The question named a model, and the server has others."""


class RequestForgotten(BadStatus):
    """The engine tells of its newest requests, and this one is not among them."""


class BadAnswer(ClientError):
    """The server's answer breaks the protocol, or carries an error of its own."""


def status_error(url: str, status: int, body: str) -> BadStatus:
    """The error for an answer with `status`, with the message taken out of its body."""
    detail = error_text(body)
    return _kind(status, error_code(body), detail.lower())(url, status, detail)


def error_code(body: str) -> str | None:
    """The `code` of an error body where it is a word; our engine's words are the errors' kinds."""
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = document.get("error") if isinstance(document, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else None


def _kind(status: int, code: str | None, words: str) -> type[BadStatus]:
    """Other engines have no codes: of theirs the words decide, here and nowhere else."""
    if status in (401, 403):
        return Unauthorized
    if status == 503 and code == "engine_in_step":
        return EngineInStep
    # llama-server says "Loading model" while it loads; our /health says "starting".
    is_loading = any(word in words for word in ("loading", "starting", "not ready"))
    if status == 503 and (code == "server_starting" or (code is None and is_loading)):
        return ServerLoading
    if status == 400 and "model" in words and ("missing" in words or "required" in words):
        return ModelNotNamed
    if status == 404 and code == "request_not_found":
        return RequestForgotten
    if status == 404 and (code == "model_not_found" or (code is None and "model" in words)):
        return ModelNotServed
    return BadStatus


def error_text(body: str, limit: int = 300) -> str:
    """The message of an error body: nested (OpenAI), flat, FastAPI's `detail`, or plain text."""
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        document = body
    text = " ".join(strip_escapes(_message(document)).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _message(document: object) -> str:
    if not isinstance(document, dict):
        return str(document)
    for key in ("error", "message", "detail"):
        if document.get(key):
            return _message(document[key])
    return json.dumps(document)
