"""Is a started server ready: /health says so, and then one token has really been generated.

A server without text generation (embeddings only) is ready with /health; it refuses the question.
"""

from __future__ import annotations

import http.client
import threading
from urllib.parse import urlsplit

from app.client.errors import ClientError
from app.client.transport import connection_errors, open_client
from app.launch.launch_specs import LaunchSpec

_HEALTH_TIMEOUT_S = 1.0
_TOKEN_TIMEOUT_S = 60.0  # the first step may compile, on a CPU for a while
_MOMENT_S = 0.1
_NO_SUCH_METHOD = 501


class ReadyProbe:
    """Ask `is_ready` again and again; a thread waits for the token, the caller a moment at most."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._has_answered = False
        self._asking: threading.Thread | None = None

    def is_ready(self) -> bool:
        """True from the first token on, as long as /health agrees."""
        if not _is_healthy(self._spec):
            return False
        if not self._has_answered and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, name="ready-probe", daemon=True)
            self._asking.start()
            self._asking.join(_MOMENT_S)
        return self._has_answered

    def _ask(self) -> None:
        self._has_answered = answers_one_token(self._spec)


def _is_healthy(spec: LaunchSpec) -> bool:
    """Asked ten times a second while the server wants every core: no client is set up for it."""
    parts = urlsplit(spec.url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=_HEALTH_TIMEOUT_S
    )
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def answers_one_token(spec: LaunchSpec, timeout_s: float = _TOKEN_TIMEOUT_S) -> bool:
    """True when one token came, or when this server generates no text at all."""
    body: dict[str, object] = {"prompt": "Hello", "max_tokens": 1, "temperature": 0}
    if spec.served_name is not None:
        body["model"] = spec.served_name
    client = open_client(spec.url, api_key=spec.api_key, timeout_s=timeout_s)
    try:
        with connection_errors(spec.url), client:
            response = client.post("/v1/completions", json=body)
    except ClientError:
        return False
    return response.status_code < 500 or response.status_code == _NO_SUCH_METHOD
