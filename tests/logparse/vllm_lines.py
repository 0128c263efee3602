"""Lines of vLLM that many tests put around their own."""

from __future__ import annotations

VERSION = "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.9.1"
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above."
CORE = "(EngineCore pid=2) ERROR 10-03 12:00:05 [core.py:9] "  # before what the engine's core says
