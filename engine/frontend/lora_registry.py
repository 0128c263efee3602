"""LoraRegistry: the LoRA adapters that requests can name, and loading and unloading them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.config import EngineConfig, LoraConfig
from engine.errors import ConfigError, EngineError, RequestError
from engine.logger import get_logger
from engine.lora_adapters import LoraRequest, absolute_folder, read_adapter, require_fitting

logger = get_logger(__name__)

LoadAdapter = Callable[[LoraRequest], Awaitable[str | None]]
"""Loads an adapter in every engine; what is in the way, or None."""

UnloadAdapter = Callable[[int], Awaitable[None]]


class LoraRegistry:
    """Names of adapters, of which one server has one registry."""

    def __init__(
        self,
        config: LoraConfig,
        model_name: str,
        load: LoadAdapter,
        unload: UnloadAdapter,
    ) -> None:
        self._config = config
        self._model_name = model_name
        self._load = load
        self._unload = unload
        self._adapters = {request.name: request for request in config.modules}
        self._num_loaded = len(config.modules)
        self._turn = asyncio.Lock()

    @property
    def adapters(self) -> list[LoraRequest]:
        """All that can be named, in the order in which they were loaded."""
        return list(self._adapters.values())

    async def load(self, name: str, path: str) -> None:
        """Make `name` a model that can be asked for; RequestError says what is in the way."""
        async with self._turn:
            self._check_new(name)
            self._num_loaded += 1
            request = LoraRequest(name, self._num_loaded, absolute_folder(path))
            error = await self._load(request)
            if error is not None:
                await self._unload(request.lora_id)  # of those engines that have it
                raise RequestError(error, param="lora_path", code="adapter_not_loaded")
            self._adapters[name] = request

    async def unload(self, name: str) -> bool:
        """No request gets it from now on; those that run keep it. False: there is no such one."""
        async with self._turn:
            request = self._adapters.pop(name, None)
            if request is None:
                return False
            await self._unload(request.lora_id)
            logger.info("Unloaded LoRA adapter %s", name)
            return True

    def _check_new(self, name: str) -> None:
        if not name or name == self._model_name or name in self._adapters:
            what = "is the model's own" if name == self._model_name else "is loaded already"
            what = what if name else "is empty"
            raise RequestError(
                f"lora_name `{name}` {what}; choose another name, or unload that adapter first.",
                param="lora_name",
                code="adapter_name_taken",
            )
        limit = self._config.max_cpu_loras
        if limit is not None and len(self._adapters) >= limit:
            raise RequestError(
                f"{len(self._adapters)} LoRA adapters are loaded and --max-cpu-loras is {limit}; "
                f"unload one first ({self.loaded_names()}).",
                param="lora_name",
                code="too_many_adapters",
            )

    def loaded_names(self) -> str:
        """For an error: what can be named."""
        names = ", ".join(f"`{name}`" for name in self._adapters)
        return f"loaded are {names}" if names else "none is loaded"


def check_adapters(config: EngineConfig) -> None:
    """Raise ConfigError for an adapter of the start that cannot be served; reads no weights."""
    for request in config.lora.modules if config.lora else ():
        if request.name == config.model.served_name:
            raise ConfigError(f"--lora-modules: {request.name} is the name of the model itself.")
        try:
            _check_adapter(request, config)
        except EngineError as error:
            raise ConfigError(f"--lora-modules {request.name}: {error}") from error


def _check_adapter(request: LoraRequest, config: EngineConfig) -> None:
    assert config.lora is not None, "it has modules"
    folder = Path(request.path)
    modules = read_adapter(folder, config.lora.max_lora_rank)
    if config.model.implementation == "stoker":
        require_fitting(modules, config.model, folder)
