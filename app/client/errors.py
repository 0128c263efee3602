"""What can go wrong between this machine and an inference server.

ClientError
├── InvalidUrl      the address cannot be understood; nothing was sent
├── InvalidKeyFile  the API key file cannot be read; nothing was sent
├── InvalidRecording  a recording cannot be written or read
├── Unreachable     no connection, a time-out, or the connection broke
├── BadStatus       an answer with an HTTP error status
│   └── Unauthorized  401 or 403: the API key is missing or wrong
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


class Unauthorized(BadStatus):
    """The server wants an API key, or another one."""


class BadAnswer(ClientError):
    """The server's answer breaks the protocol, or carries an error of its own."""


def status_error(url: str, status: int, body: str) -> BadStatus:
    """The error for an answer with `status`, with the message taken out of its body."""
    kind = Unauthorized if status in (401, 403) else BadStatus
    return kind(url, status, error_text(body))


def error_text(body: str, limit: int = 300) -> str:
    """The message of an error body: nested (OpenAI), flat, FastAPI's `detail`, or plain text."""
    try:
        document: object = json.loads(body)
    except ValueError:
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
