"""A server as it is found to be."""

from __future__ import annotations

from typing import Any

from app.client.abilities import ServerAbilities
from app.client.served_model import ServedModel

MODEL = 'org/"quoted" 模型'


def server(**changes: Any) -> ServerAbilities:
    values: dict[str, Any] = {
        "url": "http://h:1",
        "model": ServedModel(MODEL, 40_000),
        "tools_refusal": None,
        "has_messages": True,
        "has_responses": True,
        "needs_key": False,
        "shows_thoughts": False,
        "caches_prefixes": True,
    }
    return ServerAbilities(**{**values, **changes})
