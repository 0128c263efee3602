"""POST /sleep and /wake_up, GET /is_sleeping, with the parameters of vLLM's development server.

What a sleeping engine keeps and what becomes of its requests: `EngineCore.fall_asleep`.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import QueryParams
from starlette.responses import Response

from engine.messages import SLEEP_LEVELS, SLEEP_MODES, SLEEP_TAGS
from engine.server.errors import ApiError
from engine.server.routes.introspection import json_response
from engine.server.state import Services


async def sleep(services: Services, query: QueryParams) -> Response:
    """Free memory until /wake_up: `level` 1 or 2, `mode` abort, wait or keep."""
    services.require_sleep_mode()
    levels = [str(level) for level in SLEEP_LEVELS]
    level = _one_of("level", query.get("level", "1"), levels)
    mode = _one_of("mode", query.get("mode", SLEEP_MODES[0]), SLEEP_MODES)
    await services.llm.sleep(int(level), mode)
    return Response()


async def wake_up(services: Services, query: QueryParams) -> Response:
    """Bring back what `tags` name, all where there are none; requests are taken once all is."""
    services.require_sleep_mode()
    tags = [_one_of("tags", tag, SLEEP_TAGS) for tag in query.getlist("tags")]
    await services.llm.wake_up(tags)
    return Response()


async def is_sleeping(services: Services) -> Response:
    """Whether something is missing still, and how deep the sleep was asked for."""
    level = await services.llm.sleep_level()
    return json_response({"is_sleeping": level > 0, "level": level})


def _one_of(name: str, value: str, known: Sequence[str]) -> str:
    if value in known:
        return value
    choice = f"{', '.join(known[:-1])} or {known[-1]}"
    raise ApiError(400, f"{name}={value[:40]} is not known; use {choice}.", param=name)
