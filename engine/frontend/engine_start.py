"""From a model's name to an AsyncLLM: find it, read it, configure, start EngineCore.

Owns the lines that a start writes to the log. Shared by the API server and the offline LLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.args import EngineArgs
from engine.config import EngineConfig
from engine.env import detect_device, user_cache_dir
from engine.errors import EngineDeadError
from engine.frontend.async_llm import AsyncLLM, EngineCoreClient
from engine.frontend.builtin_model import fetch_builtin
from engine.frontend.chat_template import ChatTemplate, load_chat_template
from engine.frontend.daemon_thread import in_daemon_thread
from engine.frontend.input_processor import InputProcessor
from engine.frontend.iteration_stats import StatSink
from engine.frontend.request_traces import FrontendTraces
from engine.frontend.sampling_defaults import SamplingDefaults, load_sampling_defaults
from engine.frontend.tokenizer import Tokenizer
from engine.logger import get_logger
from engine.messages import HandshakeReady
from engine.model_config import ModelConfig

logger = get_logger(__name__)

ClientFactory = Callable[[EngineConfig], EngineCoreClient]
MakeSinks = Callable[[EngineConfig, HandshakeReady], Sequence[StatSink]]


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine that can generate; `sampling_defaults` are the model's own."""

    client: EngineCoreClient
    llm: AsyncLLM
    config: EngineConfig
    chat_template: ChatTemplate | None
    sampling_defaults: Mapping[str, float]

    async def shutdown(self) -> None:
        """End everything; requests in flight are cut off. Returns when the process is gone."""
        await self.llm.shutdown(EngineDeadError("The engine was shut down."))
        await self.client.shutdown(0.0)


def real_client(config: EngineConfig) -> EngineCoreClient:
    """The client that starts an EngineCore process."""
    from engine.core.client import AsyncMPClient

    return AsyncMPClient(config)


async def start_async_llm(
    model: str,
    args: EngineArgs,
    *,
    client_factory: ClientFactory = real_client,
    make_sinks: MakeSinks | None = None,
) -> StartedEngine:
    """Everything up to the engine's ready message; raises the EngineError that ended the start.

    A cancellation leaves no process behind.
    """
    folder = await in_daemon_thread(lambda: _resolve(model))
    config = _create_config(folder, model, args)
    defaults = _load_sampling_defaults(folder, args.generation_config)
    tokenizer, chat_template = await in_daemon_thread(
        lambda: _load_frontend(folder, args.chat_template)
    )
    client = client_factory(config)
    try:
        ready = await client.start()
    except BaseException:
        await client.shutdown(0.0)
        raise
    processor = InputProcessor(
        vocab_size=config.model.vocab_size,
        max_model_len=ready.max_model_len,
        eos_token_ids=_eos_token_ids(config, tokenizer),
        max_logprobs=args.max_logprobs,
        default_max_tokens=defaults.max_tokens,
        max_chars_per_token=tokenizer.max_chars_per_token,
    )
    llm = AsyncLLM(
        client,
        tokenizer,
        processor,
        make_sinks(config, ready) if make_sinks else (),
        FrontendTraces(keeps_prompts=config.observability.show_prompts)
        if config.observability.debug_endpoints
        else None,
    )
    llm.start()
    return StartedEngine(client, llm, config, chat_template, defaults.settings)


def _resolve(model: str) -> Path:
    from engine.models.resolve import resolve_model

    if not Path(model).expanduser().exists() and "/" not in model and not model.endswith(".gguf"):
        return _stored(model)
    return resolve_model(model, on_progress=lambda text: logger.info("%s", text))


def _stored(name: str) -> Path:
    """The folder that the command `stoker` makes of a built-in model."""
    folder = user_cache_dir() / "models" / name
    if not (folder / "config.json").is_file():
        fetch_builtin(name, lambda line: logger.info("%s", line))
    from engine.models.resolve import resolve_model

    return resolve_model(str(folder))


def _create_config(folder: Path, model: str, args: EngineArgs) -> EngineConfig:
    name = args.served_model_name or model
    model_config = ModelConfig.from_folder(folder, name, args.model_impl)
    logger.info("Resolved architecture: %s", model_config.architecture)
    config = args.create_engine_config(model_config, detect_device())
    logger.info("Using max model len %d", config.scheduler.max_model_len)
    if config.scheduler.enable_chunked_prefill:
        logger.info(
            "Chunked prefill is enabled with max_num_batched_tokens=%d.",
            config.scheduler.max_num_batched_tokens,
        )
    return config


def _load_sampling_defaults(folder: Path, source: str) -> SamplingDefaults:
    defaults = load_sampling_defaults(folder, source)
    if defaults.as_dict():
        where = "the model's" if source == "auto" else f"{source}'s"
        logger.warning(
            "Default sampling parameters have been overridden by %s `generation_config.json`: "
            "`%s`. If this is not intended, start with `--generation-config vllm`.",
            where,
            defaults.as_dict(),
        )
    return defaults


def _load_frontend(
    folder: Path, template_file: str | None
) -> tuple[Tokenizer, ChatTemplate | None]:
    tokenizer = Tokenizer.from_folder(folder)
    tokenizer.max_chars_per_token  # noqa: B018 - looks through the vocabulary, while others wait
    return tokenizer, load_chat_template(folder, tokenizer.special_tokens, template_file)


def _eos_token_ids(config: EngineConfig, tokenizer: Tokenizer) -> list[int]:
    ids = list(config.model.eos_token_ids)
    return ids if tokenizer.eos_token_id is None else [*ids, tokenizer.eos_token_id]
