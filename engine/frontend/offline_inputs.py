"""What people hand to the offline LLM, in the forms that vLLM takes, made uniform and checked."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from engine.args import EngineArgs
from engine.errors import ConfigError, RequestError
from engine.frontend.chat_template import ChatMessage
from engine.sampling_params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's `{"prompt": text}` and `{"prompt_token_ids": ids}`."""
Prompts = Prompt | Sequence[Prompt]
Settings = SamplingParams | Sequence[SamplingParams] | None

# EngineArgs that mean something to an HTTP server only.
_SERVER_ARGS = ("host", "port", "api_key", "disable_uvicorn_access_log", "shutdown_timeout")


def parse_engine_args(values: Mapping[str, Any]) -> EngineArgs:
    """EngineArgs of Python values or of text as on a command line; ConfigError names the wrong."""
    fields = {entry.name: entry for entry in dataclasses.fields(EngineArgs)}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields or name in _SERVER_ARGS:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"; did you mean {near[0]}?" if near and near[0] != name else "."
            raise ConfigError(f"LLM takes no argument {name}{hint}")
        parse, choices = fields[name].metadata["parse"], fields[name].metadata["choices"]
        try:
            parsed[name] = parse(value) if parse and isinstance(value, str) else value
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{name}: {error}") from error
        if choices and value not in choices:
            raise ConfigError(f"{name}={value!r} is not known; use one of {', '.join(choices)}.")
    return EngineArgs(**parsed)


def as_list(prompts: Prompts) -> list[Prompt]:
    """The prompts, even if there is only one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    entries: list[Any] = list(prompts)
    return [entries] if entries and isinstance(entries[0], int) else entries


def text_or_ids(prompt: Prompt) -> str | list[int]:
    """The text of a prompt, or its token ids."""
    if isinstance(prompt, Mapping):
        ids = prompt.get("prompt_token_ids")
        prompt = prompt.get("prompt", "") if ids is None else ids
    if isinstance(prompt, str):
        return prompt
    entries: list[Any] = list(prompt)
    if not all(type(entry) is int for entry in entries):
        raise RequestError(
            "A prompt is a string or a list of token ids (whole numbers).", param="prompts"
        )
    return entries


def uniform_params(params: SamplingParams) -> SamplingParams:
    """One stop string alone, lists, and a bias as a mapping, which untyped code may bring."""
    stop: Any = params.stop
    bias: Any = params.logit_bias
    return dataclasses.replace(
        params,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        stop_token_ids=tuple(params.stop_token_ids or ()),
        logit_bias=tuple(bias.items() if isinstance(bias, Mapping) else bias or ()),
        allowed_token_ids=tuple(params.allowed_token_ids or ()),
        bad_words=tuple(params.bad_words or ()),
    )


def as_conversations(
    messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
) -> list[Sequence[ChatMessage]]:
    """The conversations, even if there is only one."""
    entries: list[Any] = list(messages)
    return [entries] if entries and isinstance(entries[0], Mapping) else entries
