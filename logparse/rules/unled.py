"""Lines that begin with a name or a number, so that no first word finds their rule.

Asked for only when a single line is to be explained; nothing is taken from them.
"""

from __future__ import annotations

from logparse.rules.rule import Rule, Take, Unit, known_line

UNLED_RULES: tuple[Rule, ...] = (
    known_line(
        "stoker-transformers",
        "",
        r"\S{1,200} runs in the Transformers implementation",
        "No code of our own for this architecture: slower, and with less choice of options.",
        "engine/worker/worker.py",
        2,
        engine="stoker",
    ),
    known_line(
        "stoker-unused-tensors",
        "",
        r"(\d{1,7}) tensors of the checkpoint are not used",
        "Parts of the checkpoint that text generation does not need, or of another model.",
        "engine/models/transformers_fallback.py",
        2,
        Take("tensors", Unit.COUNT),
        engine="stoker",
    ),
    known_line(
        "stoker-route-failed",
        "",
        r"(?:GET|POST|PUT|DELETE|PATCH|HEAD|OPTIONS) (\S{1,300}) failed\.$",
        "One request met a fault of the server; the traceback follows. It got status 500.",
        "engine/server/api.py",
        None,
        Take("path", Unit.TEXT),
        engine="stoker",
    ),
    known_line(
        "access",
        "",
        r"\S{1,80} - \"(\w{1,10}) (\S{1,2000}) HTTP/[\d.]{1,3}\" (\d{3})",
        "One request and the status of its answer: 2xx answered, 4xx the request was refused, "
        "5xx the server failed or was busy.",
        "uvicorn/protocols/http",
        5,
        Take("method", Unit.TEXT),
        Take("path", Unit.TEXT, (2,)),
        Take("status", Unit.COUNT, (3,)),
        engine="",
    ),
    known_line(
        "cache-config-info-all",
        "",
        r"\d{1,4} Engines: vllm cache_config_info with initialization after num_gpu_blocks is: "
        r"(\d{1,12})",
        "How many KV blocks all engines have together.",
        "v1/metrics/loggers.py",
        5,
        Take("blocks", Unit.COUNT),
    ),
)
