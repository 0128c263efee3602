"""How kernels are started: compiled on a GPU, interpreted on a CPU. Imports no kernel itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from engine.errors import ConfigError

INTERPRET = "TRITON_INTERPRET"
_CONTRACTION = "TRITON_DEFAULT_FP_FUSION"


class Launch(Protocol):
    """Starts one kernel over a grid; a recording one counts and repeats what it was given."""

    def __call__(self, kernel: Any, grid: Sequence[int], *args: Any, **constants: Any) -> None: ...


def launch(kernel: Any, grid: Sequence[int], *args: Any, **constants: Any) -> None:
    """Start `kernel` now, on the current stream; an empty grid is nothing to do."""
    if all(grid):
        kernel[tuple(grid)](*args, **constants)


def prepare(device_type: str) -> None:
    """Make this process ready to import kernels for `device_type`.

    Raises ConfigError where triton was imported in the other way before.
    """
    # Multiplications and additions are fused as before Triton 3.10; saying so spares its warning.
    os.environ.setdefault(_CONTRACTION, "1")
    wanted = device_type == "cpu"
    if "triton" not in sys.modules:
        os.environ[INTERPRET] = "1" if wanted else "0"
    if is_interpreted() != wanted:
        raise ConfigError(
            f"--kernels triton cannot be used on {device_type}: triton was imported before with "
            f"{INTERPRET}={int(not wanted)}. Start with {INTERPRET}={int(wanted)}."
        )
    if wanted:
        _patch_language_once()


def _patch_language_once() -> None:
    """The interpreter replaces triton.language's functions anew for each call of a helper, which
    takes most of its time. Here they are replaced once, for the whole process.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    replace = getattr(interpreter, "_patch_lang", None)
    nothing_to_restore = getattr(interpreter, "_LangPatchScope", None)
    if replace is None or nothing_to_restore is None or replace.__name__ != "_patch_lang":
        return  # another version of triton, or done before

    class Languages:
        """Stands for a function from whose module both names are seen."""

        __globals__: ClassVar[dict[str, Any]] = {"tl": tl, "core": tl.core}

    replace(Languages)

    def replaced_already(function: Any) -> Any:
        return nothing_to_restore()

    interpreter._patch_lang = replaced_already


def is_interpreted() -> bool:
    """Whether kernels of this process run in Triton's interpreter; imports triton."""
    import triton
    import triton.language as tl

    return not isinstance(tl.sum, triton.runtime.JITFunction)
