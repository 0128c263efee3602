"""NVML for the length of one question: found, started, asked, and let go whatever happens."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")


def import_nvml() -> Any | None:
    """The module pynvml; None when it is not installed."""
    try:
        with warnings.catch_warnings():
            # The package called pynvml warns that its successor should be installed instead.
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml
    except ImportError:
        return None
    return pynvml


@contextlib.contextmanager
def started(nvml: Any) -> Iterator[Any]:
    """`nvml` between its start and its end; NVMLError when it does not start."""
    nvml.nvmlInit()
    try:
        yield nvml
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def ask_nvml(question: Callable[[Any], _T], otherwise: _T, nvml: Any | None = None) -> _T:
    """What `question` gets from NVML; `otherwise` where there is none, or it gives no answer."""
    nvml = nvml or import_nvml()
    if nvml is None:
        return otherwise
    try:
        with started(nvml):
            return question(nvml)
    except nvml.NVMLError:
        return otherwise


def optional(nvml: Any, read: Callable[..., Any]) -> Any:
    """What `read` returns, or None where this card, driver or pynvml cannot tell."""
    try:
        return read()
    except (nvml.NVMLError, AttributeError):
        return None
