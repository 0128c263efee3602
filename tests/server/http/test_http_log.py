"""The access log shows no token, wherever in the address it stands."""

from __future__ import annotations

import io
import logging

import pytest

from engine.server.http.http_log import setup_http_logging


def test_words_that_look_like_tokens_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stdout", written)
    setup_http_logging("APIServer", secrets=("topsecret",))
    paths = ("/v1/models/hf_abcdefghijkl", "/?api_key=word", "/sk-abcdefghij", "/topsecret")
    for path in paths:
        logging.getLogger("uvicorn.access").info(
            '%s - "%s %s HTTP/%s" %d', "127.0.0.1:5", "GET", path, "1.1", 404
        )

    lines = written.getvalue().splitlines()
    assert [line.split()[6] for line in lines] == [
        *("/v1/models/***", "/?api_key=***", "/***", "/***"),
    ]
