"""Sleep and wake of a server over HTTP: vLLM's development endpoints, which our engine has too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.client.errors import BadAnswer, status_error
from app.client.transport import DEFAULT_TIMEOUT_S, connection_errors, open_client

if TYPE_CHECKING:
    import httpx

LONGEST_S = 3600.0
"""For the requests that are waited for, or for weights that are read again."""


def put_to_sleep(
    base_url: str,
    level: int,
    mode: str,
    *,
    api_key: str | None = None,
    transport: httpx.BaseTransport | None = None,
) -> None:
    """Returns when the memory is free. `mode` is what becomes of its requests."""
    query = {"level": str(level), "mode": mode}
    _ask(base_url, "POST", "/sleep", query, api_key, LONGEST_S, transport)


def wake_up(
    base_url: str, *, api_key: str | None = None, transport: httpx.BaseTransport | None = None
) -> None:
    """Returns when it serves again."""
    _ask(base_url, "POST", "/wake_up", {}, api_key, LONGEST_S, transport)


def is_sleeping(
    base_url: str, *, api_key: str | None = None, transport: httpx.BaseTransport | None = None
) -> bool:
    """BadStatus where the server has no such endpoint; vLLM has it in its development mode."""
    return sleep_level(base_url, api_key=api_key, transport=transport) != 0


def sleep_level(
    base_url: str, *, api_key: str | None = None, transport: httpx.BaseTransport | None = None
) -> int | None:
    """0 when it is awake, None when it sleeps and does not say how deep, as vLLM; otherwise as
    `is_sleeping`.
    """
    answer = _ask(base_url, "GET", "/is_sleeping", {}, api_key, DEFAULT_TIMEOUT_S, transport)
    try:
        document = answer.json()
        if not document["is_sleeping"]:
            return 0
        level = document.get("level")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadAnswer(f"{answer.url} does not say whether it sleeps") from error
    return level if isinstance(level, int) else None


def _ask(
    base_url: str,
    method: str,
    path: str,
    query: dict[str, str],
    api_key: str | None,
    timeout_s: float,
    transport: httpx.BaseTransport | None,
) -> httpx.Response:
    client = open_client(base_url, api_key=api_key, timeout_s=timeout_s, transport=transport)
    with connection_errors(base_url), client:
        answer = client.request(method, path, params=query)
    if answer.is_error:
        raise status_error(str(answer.url), answer.status_code, answer.text)
    return answer
