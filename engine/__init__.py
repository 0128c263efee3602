"""Stoker's inference engine.

The facade (this module, `args`, `config`, `model_config`, `model_support`, `kv_sizing`,
`step_budget`, `sampling_params`, `errors`, `machine`, `model_files`, `model_store`) is standard
library only, so planning code can import it without torch. Everything else is imported late; so are
the names of the offline API, at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.version import __version__

if TYPE_CHECKING:
    from engine.frontend.async_llm import AsyncLLM
    from engine.frontend.llm import LLM
    from engine.frontend.offline_outputs import CompletionOutput, RequestOutput
    from engine.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_HOMES = {
    "LLM": "engine.frontend.llm",
    "AsyncLLM": "engine.frontend.async_llm",
    "CompletionOutput": "engine.frontend.offline_outputs",
    "RequestOutput": "engine.frontend.offline_outputs",
    "SamplingParams": "engine.sampling_params",
}

if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
