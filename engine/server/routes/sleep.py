"""POST /sleep and /wake_up, GET /is_sleeping, with the parameters of vLLM's development server.

What a sleeping engine keeps and what becomes of its requests: `EngineCore.fall_asleep`.
"""

from __future__ import annotations

from starlette.datastructures import QueryParams
from starlette.responses import Response

from engine.errors import RequestError
from engine.server.routes.introspection import json_response
from engine.server.state import Services


async def sleep(services: Services, query: QueryParams) -> Response:
    """Free memory until /wake_up: `level` 1 or 2, `mode` abort, wait or keep."""
    services.require_sleep_mode()
    text = query.get("level", "1")
    if len(text) != 1 or not text.isdecimal():
        raise RequestError(f"level={text[:40]} is not known; use 1 or 2.", param="level")
    await services.llm.sleep(int(text), query.get("mode", "abort"))
    return Response()


async def wake_up(services: Services, query: QueryParams) -> Response:
    """Bring back what `tags` name, all where there are none; requests are taken once all is. One
    that is awake stays so, and a sleep that waits for requests is given up.
    """
    await services.llm.wake_up(query.getlist("tags"))
    return Response()


async def is_sleeping(services: Services) -> Response:
    """Whether something is missing still, and how deep the sleep was asked for."""
    level = await services.llm.sleep_level()
    return json_response({"is_sleeping": level > 0, "level": level})
