"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them."""

from __future__ import annotations

from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from engine.server.errors import ApiError
from engine.server.protocol import Body
from engine.server.state import Services

_LONGEST_NAME, _LONGEST_PATH = 256, 4096


class LoadAdapterBody(Body):
    """A name that requests may use as `model`, and a folder on the server's machine."""

    lora_name: str = Field(min_length=1, max_length=_LONGEST_NAME)
    lora_path: str = Field(min_length=1, max_length=_LONGEST_PATH)


class UnloadAdapterBody(Body):
    """The name of an adapter. vLLM's number of it says nothing more."""

    lora_name: str = Field(min_length=1, max_length=_LONGEST_NAME)
    lora_int_id: int | None = None


async def load_adapter(services: Services, body: LoadAdapterBody) -> Response:
    """Load an adapter beside those that serve; RequestError says what is in the way."""
    loras = services.require_adapters()
    services.admission.require_awake()
    if "\0" in body.lora_path:
        raise ApiError(400, "lora_path holds a NUL character.", param="lora_path")
    await loras.load(body.lora_name, body.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(services: Services, body: UnloadAdapterBody) -> Response:
    """Let an adapter go; 404 for one that is not there."""
    loras = services.require_adapters()
    if not await loras.unload(body.lora_name):
        raise ApiError(
            404,
            f"The LoRA adapter `{body.lora_name}` does not exist; {loras.loaded_names()}.",
            param="lora_name",
            code="adapter_not_found",
        )
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")
