"""From a model's name to a configured front end: find it, read it, configure.

Owns the lines that a start writes to the log. Shared by the API server and the offline LLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.args import EngineArgs
from engine.config import EngineConfig
from engine.env import detect_device
from engine.frontend.chat_template import ChatTemplate, load_chat_template
from engine.frontend.daemon_thread import in_daemon_thread
from engine.frontend.input_processor import InputProcessor
from engine.frontend.lora_registry import check_adapters
from engine.frontend.sampling_defaults import SamplingDefaults, load_sampling_defaults
from engine.frontend.tokenizer import Tokenizer
from engine.logger import get_logger
from engine.model_config import ModelConfig

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """All of a model that the front end needs: everything but its weights."""

    config: EngineConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    sampling_defaults: SamplingDefaults

    def input_processor(self, max_model_len: int, max_logprobs: int) -> InputProcessor:
        """What makes requests of prompts; `max_model_len` is the one that fits the KV cache."""
        return InputProcessor(
            vocab_size=self.config.model.vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=_eos_token_ids(self.config, self.tokenizer),
            max_logprobs=max_logprobs,
            default_max_tokens=self.sampling_defaults.max_tokens,
            max_chars_per_token=self.tokenizer.max_chars_per_token,
        )


def log_arguments(model: str, args: EngineArgs) -> None:
    """What was typed, as `explain` makes commands of it; no secret is among it."""
    logger.info("non-default args: %s", {"model_tag": model, "model": model, **args.non_default()})


async def load_model(model: str, args: EngineArgs) -> LoadedModel:
    """Find the model, read it and configure the engine; EngineError says what is wrong with it."""
    return await load_frontend(await load_config(model, args), args)


async def load_config(model: str, args: EngineArgs) -> EngineConfig:
    """Find the model and configure the engine."""
    folder = await in_daemon_thread(lambda: _resolve(model))
    return _create_config(folder, model, args)


async def load_frontend(config: EngineConfig, args: EngineArgs) -> LoadedModel:
    """Read what the front end needs of the model that `config` names."""
    folder = Path(config.model.path)
    defaults = _load_sampling_defaults(folder, args.generation_config)
    tokenizer, chat_template = await in_daemon_thread(
        lambda: _load_tokenizer(folder, args.chat_template)
    )
    return LoadedModel(config, tokenizer, chat_template, defaults)


def _resolve(model: str) -> Path:
    from engine.models.resolve import resolve_model

    return resolve_model(model, on_progress=lambda text: logger.info("%s", text))


def _create_config(folder: Path, model: str, args: EngineArgs) -> EngineConfig:
    name = args.served_model_name or model
    model_config = ModelConfig.from_folder(folder, name, args.model_impl)
    logger.info("Resolved architecture: %s", model_config.architecture)
    config = args.create_engine_config(model_config, detect_device())
    check_adapters(config)
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


def _load_tokenizer(
    folder: Path, template_file: str | None
) -> tuple[Tokenizer, ChatTemplate | None]:
    tokenizer = Tokenizer.from_folder(folder)
    tokenizer.max_chars_per_token  # noqa: B018 - looks through the vocabulary, while others wait
    template = load_chat_template(folder, tokenizer.special_tokens, template_file)
    logger.debug("Tokenizer and chat template are read.")
    return tokenizer, template


def _eos_token_ids(config: EngineConfig, tokenizer: Tokenizer) -> list[int]:
    ids = list(config.model.eos_token_ids)
    return ids if tokenizer.eos_token_id is None else [*ids, tokenizer.eos_token_id]
