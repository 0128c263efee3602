"""The API server's engine: an AsyncLLM with metrics and throughput lines, ready to be served. Knows
nothing of HTTP.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from engine.args import EngineArgs
from engine.config import EngineConfig, ObservabilityConfig
from engine.core.grammar import GrammarModel
from engine.core.grammar_checker import GrammarChecker
from engine.errors import ConfigError
from engine.frontend.async_llm import (
    AsyncLLM,
    ClientFactory,
    EngineCoreClient,
    StartedEngine,
    start_async_llm,
)
from engine.frontend.iteration_stats import StatSink
from engine.frontend.lora_registry import LoraRegistry
from engine.frontend.tokenizer import read_tokenizer_config
from engine.logger import get_logger
from engine.messages import HandshakeReady
from engine.model_files.json_objects import read_optional_json
from engine.parser_choice import ModelSigns, choose_reasoning_parser, choose_tool_parser
from engine.server.admission import Admission, QueueLimits
from engine.server.images import image_inputs
from engine.server.metrics import EngineMetrics
from engine.server.parsers.thinking import thought_marks
from engine.server.peers import NO_PEERS, Peers
from engine.server.stat_logger import StatLogger
from engine.server.state import ApiState, Services

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that can generate, and what belongs to it."""

    client: EngineCoreClient
    llm: AsyncLLM
    services: Services
    stat_logger: StatLogger | None
    stats_interval_s: float


async def start_engine(
    model: str, args: EngineArgs, state: ApiState, client_factory: ClientFactory
) -> RunningEngine:
    """Start the engine and make what serves it; raises the EngineError that ended the start.

    A cancellation leaves no process behind.
    """
    interval_s = stats_interval()  # a wrong value is told before the model loads
    sinks: list[StatSink] = []
    admission = Admission()

    def make_sinks(config: EngineConfig, readies: Sequence[HandshakeReady]) -> Sequence[StatSink]:
        sinks.extend(create_sinks(config, state.registry, readies))
        return [*sinks, admission]

    started = await start_async_llm(
        model, args, client_factory=client_factory, make_sinks=make_sinks
    )
    stat_logger = next((sink for sink in sinks if isinstance(sink, StatLogger)), None)
    return running_engine(model, args, started, admission, stat_logger, interval_s)


def running_engine(
    model: str,
    args: EngineArgs,
    started: StartedEngine,
    admission: Admission,
    stat_logger: StatLogger | None = None,
    stats_interval_s: float = 0.0,
    *,
    created: int | None = None,
    peers: Peers = NO_PEERS,
) -> RunningEngine:
    """What serves a started engine; without a `stat_logger` it writes no throughput lines.

    `admission` has been told of every step. `created` is unix time, now if it is left out.
    """
    admission.open(_queue_limits(args, started), started.llm)
    signs = _signs_of(started)
    reasoning = choose_reasoning_parser(args.reasoning_parser, signs)
    tools = choose_tool_parser(args.tool_call_parser, signs)
    if started.config.tasks.can_generate:
        logger.info("Parser of thoughts: %s (%s).", reasoning.name, reasoning.reason)
        logger.info("Parser of tool calls: %s (%s).", tools.name, tools.reason)
    return RunningEngine(
        client=started.client,
        llm=started.llm,
        services=Services(
            llm=started.llm,
            admission=admission,
            grammars=GrammarChecker(GrammarModel.of(started.config.model)),
            chat_template=started.chat_template,
            model_name=started.config.model.served_name,
            root=model,
            created=int(time.time()) if created is None else created,
            embedding_size=started.config.model.embedding_size,
            sentence=started.config.model.sentence,
            log_requests=args.enable_log_requests,
            sampling_defaults=started.sampling_defaults,
            tool_call_parser=tools.name,
            thought_marks=thought_marks(reasoning.name, started.llm.tokenizer),
            tasks=started.config.tasks,
            peers=peers,
            images=image_inputs(
                started.config,
                started.chat_template,
                started.llm.tokenizer,
                args.allowed_media_domains,
                args.num_api_servers,
            ),
            loras=_lora_registry(started),
            has_sleep_mode=args.enable_sleep_mode,
            tokenizer_info=_tokenizer_info(started) if args.enable_tokenizer_info_endpoint else {},
        ),
        stat_logger=stat_logger,
        stats_interval_s=stats_interval_s,
    )


def _signs_of(started: StartedEngine) -> ModelSigns:
    """What tells how the model writes thoughts and tool calls."""
    template = started.chat_template
    config = read_optional_json(Path(started.config.model.path) / "config.json")
    model_type = config.get("model_type")
    return ModelSigns(
        template=None if template is None else template.source,
        tool_template=None if template is None else template.tool_source,
        model_type=model_type if isinstance(model_type, str) else None,
    )


def _queue_limits(args: EngineArgs, started: StartedEngine) -> QueueLimits:
    scheduler, target_ms = started.config.scheduler, args.ttft_target_ms
    return QueueLimits(
        max_reqs=args.max_num_queued_reqs,
        max_tokens=args.max_num_queued_tokens,
        num_places=scheduler.max_num_seqs * started.llm.num_engines,
        ttft_target_s=None if target_ms is None else target_ms / 1e3,
        step_tokens=scheduler.max_num_batched_tokens,
        joint_tokens=started.max_joint_prefill_tokens,
    )


def _lora_registry(started: StartedEngine) -> LoraRegistry | None:
    if started.config.lora is None:
        return None
    llm, name = started.llm, started.config.model.served_name
    return LoraRegistry(started.config.lora, name, llm.load_adapter, llm.unload_adapter)


def _tokenizer_info(started: StartedEngine) -> dict[str, object]:
    """What lm-eval and others ask a server for; vLLM's /tokenizer_info."""
    info: dict[str, object] = read_tokenizer_config(Path(started.config.model.path))
    info.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    if started.chat_template is not None:
        info["chat_template"] = started.chat_template.source
    return info


def create_sinks(
    config: EngineConfig, registry: CollectorRegistry, readies: Sequence[HandshakeReady]
) -> list[StatSink]:
    """What the steps of all engines are told to: metrics and throughput lines, unless off."""
    if not config.observability.log_stats:
        return []
    device = "CPU" if config.device.device == "cpu" else "GPU"
    metrics = EngineMetrics(registry, config.model.served_name, config.cache, readies)
    metrics.begin(readies)
    return [metrics, StatLogger(device, len(readies))]


def stats_interval() -> float:
    """Seconds between throughput lines; ConfigError for a value that is none."""
    text = os.environ.get("STOKER_LOG_STATS_INTERVAL")
    if text is None:
        return ObservabilityConfig().log_stats_interval_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"STOKER_LOG_STATS_INTERVAL={text!r} is not a number of seconds above 0.")
    return seconds
