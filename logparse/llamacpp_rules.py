"""The lines of llama-server (llama.cpp): bare before 2026, now with a clock and a level letter."""

from __future__ import annotations

from logparse.rules import Keep, Mark, Rule, Take, Unit, rule

_NUM = r"\s{1,40}([\d.]{1,20})"
_E = "llama.cpp"

LLAMACPP_RULES: tuple[Rule, ...] = (
    rule(
        "llama-build",
        "build: ",
        r"(\d{1,9}) \(",
        "The build number; releases are tagged b<number>.",
        engine=_E,
        takes=(Take("engine_version", Unit.TEXT, keep=Keep.FIRST, prefix="b"),),
        phase=1,
        mark=Mark.VERSION,
    ),
    rule(
        "llama-begin",
        "srv ",
        r"\s{0,20}llama_server: initializing",
        "llama-server starts.",
        engine=_E,
        phase=1,
        mark=Mark.VERSION,
    ),
    rule(
        "llama-load",
        "srv ",
        r"\s{0,20}load_model: loading model '([^']{1,400})'",
        "The weights are read.",
        engine=_E,
        takes=(Take("model", Unit.TEXT, keep=Keep.FIRST),),
        phase=2,
    ),
    rule(
        "llama-weights",
        "load_tensors: ",
        r"\s{0,40}[\w ]{1,40} model buffer size =" + _NUM + " MiB",
        "Weights on one device.",
        engine=_E,
        takes=(Take("weights_gib", Unit.MIB),),
        phase=2,
        ends_phase=True,
    ),
    rule(
        "llama-context",
        (
            "llama_context: n_ctx ",
            "llama_new_context_with_model: n_ctx ",
            "llama_init_from_model: n_ctx ",
        ),
        r"\s{0,40}=\s{1,10}(\d{1,12})",
        "Cells of the KV cache, shared by all slots.",
        engine=_E,
        takes=(Take("max_model_len", Unit.COUNT, keep=Keep.LAST),),
        phase=4,
    ),
    rule(
        "llama-kv",
        ("llama_kv_cache: size =", "llama_kv_cache_unified: size ="),
        _NUM + r" MiB \(\s{0,20}(\d{1,12}) cells",
        "Memory and cells of the KV cache.",
        engine=_E,
        takes=(Take("kv_memory_gib", Unit.MIB), Take("kv_tokens", Unit.COUNT, (2,))),
        phase=4,
    ),
    rule(
        "llama-slots",
        "srv ",
        r"\s{0,20}load_model: initializing(?: slots)?, n_slots",
        "Slots are made: requests that run at once.",
        engine=_E,
        phase=4,
    ),
    rule(
        "llama-loaded",
        ("main: model loaded", "srv  llama_server: model loaded"),
        r"",
        "Everything is in memory.",
        engine=_E,
        phase=4,
        ends_phase=True,
    ),
    rule(
        "llama-ready",
        (
            "main: server is listening on ",
            "srv  llama_server: listening on ",
            "srv  llama_server: server is listening on ",
        ),
        r"(\w{2,8}://[^\s,]{1,300})",
        "Ready.",
        engine=_E,
        takes=(Take("server_url", Unit.TEXT, keep=Keep.LAST, rank=2),),
        phase=5,
        mark=Mark.READY,
    ),
    rule(
        "llama-metadata",
        "llama_model_loader: ",
        r"",
        "Metadata of the GGUF file.",
        engine=_E,
        phase=2,
    ),
    rule("llama-info", "print_info: ", r"", "The model's shape.", engine=_E, phase=2),
    rule(
        "llama-stop",
        "srv ",
        r"\s{0,20}(?:operator\(\): ){1,2}cleaning up before exit",
        "llama-server ends.",
        engine=_E,
        mark=Mark.STOPPED,
    ),
)
