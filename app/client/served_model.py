"""Which model answers and how long its context is, over the engines' different ways to say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.client.errors import BadAnswer
from app.client.server import models_error, shown_name
from app.client.transport import DEFAULT_TIMEOUT_S, connection_errors, open_client

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`max_model_len` is None where the server does not tell."""

    id: str
    max_model_len: int | None
    all_ids: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        """The id as a screen shows it."""
        return shown_name(self.id)


def served_model(
    base_url: str,
    model: str | None = None,
    *,
    api_key: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    transport: httpx.BaseTransport | None = None,
) -> ServedModel:
    """The model called `model`, else the first that GET /v1/models lists.

    A name that is not listed is kept: some gateways list nothing.
    """
    client = open_client(base_url, api_key=api_key, timeout_s=timeout_s, transport=transport)
    with connection_errors(base_url), client:
        response = client.get("/v1/models")
        if response.is_error and not (model and response.status_code == 404):
            raise models_error(base_url, response, " If it is, name a model with --model")
        cards = [] if response.is_error else _cards(response)
        ids = tuple(str(card["id"]) for card in cards)
        if model is None and not ids:
            raise BadAnswer(f"{base_url} lists no model; name one with --model")
        name = model or ids[0]
        card = next((card for card in cards if card["id"] == name), {})
        return ServedModel(name, _length(card.get("max_model_len")) or _slot_length(client), ids)


def _cards(response: httpx.Response) -> list[dict[str, Any]]:
    try:
        return [dict(entry) for entry in response.json()["data"] if entry["id"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BadAnswer(f"{response.url} did not answer with a list of models") from error


def _slot_length(client: httpx.Client) -> int | None:
    """llama-server's way; a server without /props leaves it unknown."""
    response = client.get("/props")
    try:
        document = {} if response.is_error else response.json()
        return _length(document["default_generation_settings"]["n_ctx"])
    except (ValueError, KeyError, TypeError):
        return None


def _length(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
