"""What is printed when a server is ready can be typed."""

from __future__ import annotations

import json
import shlex

import pytest

from app.views.serve import embedding_command


@pytest.mark.parametrize("has_key", [False, True])
def test_a_server_of_vectors_is_asked_for_one(has_key: bool) -> None:
    words = shlex.split(embedding_command("http://127.0.0.1:8000", has_key=has_key))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/embeddings"]
    assert json.loads(words[-1]) == {"input": "Hello"}
    assert ("Authorization: Bearer $STOKER_API_KEY" in words) is has_key
