"""What a fresh interpreter has loaded after some code, and which of it is heavy or not ours."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    *("torch", "triton", "transformers", "tokenizers", "fastapi", "uvicorn", "starlette"),
    *("pydantic", "textual", "httpx", "zmq", "numpy", "msgspec", "safetensors", "gguf"),
    *("huggingface_hub", "prometheus_client", "rich", "openai"),
)
OURS = ("app", "engine", "tui", "logparse")
_DUMP = "print('\\n'.join(sys.modules), file=sys.stderr)"


def loaded_by(code: str) -> set[str]:
    """Names of the modules in a fresh interpreter after `code`."""
    before = _modules("pass")
    return _modules(code) - before


def _modules(code: str) -> set[str]:
    script = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code\n{_DUMP}"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.split())


def top_level(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def third_party(modules: set[str]) -> set[str]:
    """Top-level names that are neither ours nor the standard library's."""
    standard = {*sys.stdlib_module_names, "__main__", "__mp_main__"}
    return {name for name in top_level(modules) - standard - set(OURS) if not name.startswith("_")}
