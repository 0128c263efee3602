"""What a server's error answers are taken for."""

from __future__ import annotations

import json

import pytest

from app.client.errors import BadStatus, EngineInStep, ServerLoading, status_error


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (json.dumps({"error": {"message": "Loading model", "code": 503}}), ServerLoading),
        (json.dumps({"error": {"message": "x", "code": "server_starting"}}), ServerLoading),
        (json.dumps({"status": "starting"}), ServerLoading),
        (json.dumps({"error": {"message": "loading is over", "code": "engine_dead"}}), BadStatus),
        (json.dumps({"error": {"message": "x", "code": "engine_in_step"}}), EngineInStep),
        ("upstream connect error", BadStatus),
    ],
)
def test_kinds_of_503(body: str, kind: type[BadStatus]) -> None:
    assert type(status_error("http://h:1/metrics", 503, body)) is kind
