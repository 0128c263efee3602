"""From a model's name to a running engine: find it, read it, configure, start EngineCore.

Owns the start-up lines of the API server's log. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.args import EngineArgs
from engine.config import EngineConfig
from engine.env import detect_device
from engine.errors import ConfigError
from engine.frontend.async_llm import AsyncLLM, EngineCoreClient
from engine.frontend.chat_template import ChatTemplate, load_chat_template
from engine.frontend.input_processor import InputProcessor
from engine.frontend.iteration_stats import StatSink
from engine.frontend.sampling_defaults import load_sampling_defaults
from engine.frontend.tokenizer import Tokenizer
from engine.logger import get_logger
from engine.messages import HandshakeReady
from engine.model_config import ModelConfig
from engine.server.metrics import EngineMetrics
from engine.server.stat_logger import StatLogger
from engine.server.state import ServerState, Services

logger = get_logger(__name__)

T = TypeVar("T")
ClientFactory = Callable[[EngineConfig], EngineCoreClient]


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that can generate, and what belongs to it."""

    client: EngineCoreClient
    llm: AsyncLLM
    services: Services
    stat_logger: StatLogger | None
    stats_interval_s: float


def real_client(config: EngineConfig) -> EngineCoreClient:
    """The client that starts an EngineCore process."""
    from engine.core.client import AsyncMPClient

    return AsyncMPClient(config)


async def start_engine(
    model: str, args: EngineArgs, state: ServerState, client_factory: ClientFactory
) -> RunningEngine:
    """Everything up to the engine's ready message; raises the EngineError that ended the start.

    A cancellation leaves no process behind.
    """
    folder = await _in_daemon_thread(lambda: _resolve(model))
    config = _create_config(folder, model, args)
    sampling_defaults = _load_sampling_defaults(folder)
    tokenizer, chat_template = await _in_daemon_thread(
        lambda: _load_frontend(folder, args.chat_template)
    )
    client = client_factory(config)
    try:
        ready = await client.start()
    except BaseException:
        await client.shutdown(0.0)
        raise
    sinks = _create_sinks(config, state, ready)
    llm = AsyncLLM(client, tokenizer, _create_input_processor(config, tokenizer, ready), sinks)
    llm.start()
    return RunningEngine(
        client=client,
        llm=llm,
        services=Services(
            llm=llm,
            chat_template=chat_template,
            model_name=config.model.served_name,
            root=model,
            created=int(time.time()),
            log_requests=args.enable_log_requests,
            sampling_defaults=sampling_defaults,
        ),
        stat_logger=next((sink for sink in sinks if isinstance(sink, StatLogger)), None),
        stats_interval_s=_stats_interval(config),
    )


def _resolve(model: str) -> Path:
    from engine.models.resolve import resolve_model

    return resolve_model(model, on_progress=lambda text: logger.info("%s", text))


def _create_config(folder: Path, model: str, args: EngineArgs) -> EngineConfig:
    model_config = ModelConfig.from_folder(folder, args.served_model_name or model)
    logger.info("Resolved architecture: %s", model_config.architecture)
    config = args.create_engine_config(model_config, detect_device())
    _stats_interval(config)  # a wrong value is told before the model loads
    logger.info("Using max model len %d", config.scheduler.max_model_len)
    if config.scheduler.enable_chunked_prefill:
        logger.info(
            "Chunked prefill is enabled with max_num_batched_tokens=%d.",
            config.scheduler.max_num_batched_tokens,
        )
    return config


def _load_sampling_defaults(folder: Path) -> dict[str, float]:
    defaults = load_sampling_defaults(folder)
    if defaults:
        logger.warning(
            "Default sampling parameters have been overridden by the model's "
            "`generation_config.json`: `%s`. If this is not intended, send the fields you want "
            "with each request.",
            defaults,
        )
    return defaults


def _load_frontend(
    folder: Path, template_file: str | None
) -> tuple[Tokenizer, ChatTemplate | None]:
    tokenizer = Tokenizer.from_folder(folder)
    return tokenizer, load_chat_template(folder, tokenizer.special_tokens, template_file)


def _create_input_processor(
    config: EngineConfig, tokenizer: Tokenizer, ready: HandshakeReady
) -> InputProcessor:
    eos = list(config.model.eos_token_ids)
    if tokenizer.eos_token_id is not None:
        eos.append(tokenizer.eos_token_id)
    return InputProcessor(
        vocab_size=config.model.vocab_size,
        max_model_len=ready.max_model_len,
        eos_token_ids=eos,
    )


def _create_sinks(
    config: EngineConfig, state: ServerState, ready: HandshakeReady
) -> list[StatSink]:
    if not config.observability.log_stats:
        return []
    device = "CPU" if config.device.device == "cpu" else "GPU"
    metrics = EngineMetrics(state.registry, config.model.served_name, config.cache, ready)
    return [metrics, StatLogger(device)]


def _stats_interval(config: EngineConfig) -> float:
    text = os.environ.get("STOKER_LOG_STATS_INTERVAL")
    if text is None:
        return config.observability.log_stats_interval_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"STOKER_LOG_STATS_INTERVAL={text!r} is not a number of seconds above 0.")
    return seconds


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """Like asyncio.to_thread, but a stop need not wait for a download that is under way."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=body, daemon=True, name="startup").start()
    return await future
