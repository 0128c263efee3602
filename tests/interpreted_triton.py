"""Triton's interpreter for this test process: imported before any module with kernels.

Which it is, compiler or interpreter, is decided when triton and the kernels are imported. What
another test has imported of triton is put aside: only its Python modules, for the extension can be
loaded once.
"""

from __future__ import annotations

import os
import sys

from engine.kernels.triton.runtime import INTERPRET, is_interpreted, prepare


def use_interpreter() -> None:
    """Import triton, from now on for a CPU; the environment of children stays as it was."""
    before = os.environ.get(INTERPRET)
    if "triton" in sys.modules and not is_interpreted():
        assert not any(name.startswith("engine.kernels.triton.argmax") for name in sys.modules)
        for name in [name for name in sys.modules if _is_python_of_triton(name)]:
            del sys.modules[name]
    try:
        prepare("cpu")
        sys.modules["triton"].knobs.runtime.interpret = True
    finally:
        if before is None:
            os.environ.pop(INTERPRET, None)
        else:
            os.environ[INTERPRET] = before


def _is_python_of_triton(name: str) -> bool:
    return name.partition(".")[0] == "triton" and not name.startswith("triton._C")


use_interpreter()
