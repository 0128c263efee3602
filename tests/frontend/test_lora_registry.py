"""Names of adapters: what may be loaded, what an engine refuses, the checks of a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.args import EngineArgs
from engine.config import LoraConfig
from engine.env import HostDevice
from engine.errors import ConfigError, RequestError
from engine.frontend.lora_registry import LoraRegistry, check_adapters
from engine.lora_adapters import LoraRequest
from engine.model_config import ModelConfig
from tests.tiny_model import write_tiny_llama


class Engine:
    """Remembers its adapters; `error` is what is in the way of the next one."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.loaded: list[tuple[str, int]] = []
        self.unloaded: list[int] = []

    async def load(self, request: LoraRequest) -> str | None:
        self.loaded.append((request.name, request.lora_id))
        return self.error

    async def unload(self, lora_id: int) -> None:
        self.unloaded.append(lora_id)


def registry(engine: Engine, **limits: int) -> LoraRegistry:
    config = LoraConfig(modules=(LoraRequest("a", 1, "/a"),), **limits)
    return LoraRegistry(config, "base", engine.load, engine.unload)


def names(found: LoraRegistry) -> list[str]:
    return [adapter.name for adapter in found.adapters]


async def test_each_load_has_a_number_of_its_own() -> None:
    engine = Engine()
    found = registry(engine)
    await found.load("b", "/b")
    assert await found.unload("b")
    await found.load("b", "/c")
    assert engine.loaded == [("b", 2), ("b", 3)]
    assert engine.unloaded == [2]
    assert names(found) == ["a", "b"]
    assert found.adapters[1].path == "/c"
    assert not await found.unload("x")


@pytest.mark.parametrize(
    ("name", "reason"), [("a", "is loaded already"), ("base", "is the model's own")]
)
async def test_a_name_is_one_model(name: str, reason: str) -> None:
    engine = Engine()
    with pytest.raises(RequestError, match=reason):
        await registry(engine).load(name, "/b")
    assert not engine.loaded


async def test_no_more_than_may_be_held() -> None:
    with pytest.raises(RequestError, match=r"--max-cpu-loras is 1; .*loaded are `a`"):
        await registry(Engine(), max_cpu_loras=1).load("b", "/b")


async def test_what_an_engine_refuses_is_held_by_none() -> None:
    engine = Engine()
    engine.error = "it does not fit"
    found = registry(engine)
    with pytest.raises(RequestError, match="it does not fit"):
        await found.load("b", "/b")
    assert engine.unloaded == [2]
    assert names(found) == ["a"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"lora_modules": ("tiny=/x",)}, "tiny is the name of the model itself"),
        ({"lora_modules": ("a=/no/such",)}, r"--lora-modules a: No such adapter folder: /no/such"),
        ({"lora_modules": ("a=/x", "a=/y")}, "names a twice"),
        ({"enable_lora": False, "lora_modules": ("a=/x",)}, "needs --enable-lora"),
        ({"max_lora_rank": 513}, r"--max-lora-rank 513 .* from 1 to 512"),
        ({"max_loras": 4, "max_cpu_loras": 3}, "--max-cpu-loras 3 is below --max-loras 4"),
    ],
)
def test_the_flags_of_a_start(words: dict[str, object], reason: str, tmp_path: Path) -> None:
    model = ModelConfig.from_folder(write_tiny_llama(tmp_path), "tiny")
    settings: dict[str, object] = {"enable_lora": True, **words}
    args = EngineArgs(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=reason):
        check_adapters(args.create_engine_config(model, HostDevice("cpu", "cpu", None)))
