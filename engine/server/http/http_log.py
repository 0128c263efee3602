"""uvicorn's lines in vLLM's shape: `(APIServer pid=7) INFO:     127.0.0.1:5 - "GET / ..." 200 OK`.

uvicorn announces itself when the socket opens, long before the model is loaded; so its own start
and stop lines are left out and `http_event` writes them when they are true.
"""

from __future__ import annotations

import logging
import os
import sys
from http import HTTPStatus

from engine.machine.secrets import masked

# Polled every second by dashboards and probes.
_QUIET_PATHS = (
    *("/health", "/metrics", "/ping", "/load"),
    *("/debug/scheduler", "/debug/requests", "/debug/blocks"),
)


class _UvicornFormatter(logging.Formatter):
    """Word, colon, padding, message; the process prefix stands on every physical line."""

    def __init__(self, process_name: str, secrets: tuple[str, ...]) -> None:
        super().__init__()
        self._prefix = f"({process_name} pid={os.getpid()}) "
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname + ':':<10}{record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return "\n".join(self._prefix + line for line in masked(text, self._secrets).split("\n"))


class _AccessFilter(logging.Filter):
    """Adds the status's name and drops paths that are polled."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.args, tuple) or len(record.args) != 5:
            return True
        client, method, path, http_version, status = record.args
        if str(path).partition("?")[0] in _QUIET_PATHS:
            return False
        record.msg = '%s - "%s %s HTTP/%s" %s %s'
        record.args = (client, method, path, http_version, status, _phrase(status))
        return True


def setup_http_logging(process_name: str, *, secrets: tuple[str, ...] = ()) -> None:
    """Install the format for uvicorn's loggers in this process."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_UvicornFormatter(process_name, tuple(s for s in secrets if s)))
    root = logging.getLogger("uvicorn")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    access = logging.getLogger("uvicorn.access")
    access.filters[:] = [_AccessFilter()]


def http_event(message: str) -> None:
    """Write one of uvicorn's start or stop lines."""
    logging.getLogger("uvicorn.lifecycle").info("%s", message)


def _phrase(status: object) -> str:
    return next((known.phrase for known in HTTPStatus if known == status), "")
