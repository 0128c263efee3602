"""The lines of an SGLang server, as far as capacity and readiness need them. It prints GB and
means GiB.
"""

from __future__ import annotations

from logparse.rules.rule import NUM, Keep, Mark, Rule, Take, Unit, rule

_E = "sglang"

SGLANG_RULES: tuple[Rule, ...] = (
    rule(
        "sglang-args",
        "server_args=",
        r"(ServerArgs\(model_path='([^']{1,400})'.{0,20000})",
        "All arguments, also those that nobody gave.",
        engine=_E,
        takes=(
            Take("model", Unit.TEXT, (2,), Keep.FIRST),
            Take("non_default_args", Unit.TEXT, keep=Keep.FIRST),
        ),
        phase=1,
        mark=Mark.VERSION,
        source="sglang/srt/entrypoints/engine.py",
    ),
    rule(
        "sglang-args-dict",
        "server_args=",
        r"(\{'model_path': '([^']{1,400})'.{0,20000})",
        "All arguments, as newer releases print them.",
        engine=_E,
        takes=(
            Take("model", Unit.TEXT, (2,), Keep.FIRST),
            Take("non_default_args", Unit.TEXT, keep=Keep.FIRST, prefix="ServerArgs"),
        ),
        phase=1,
        mark=Mark.VERSION,
        source="sglang/srt/entrypoints/engine.py",
        versions="2026",
    ),
    rule(
        "sglang-distributed",
        "Init torch distributed begin",
        r"",
        "A scheduler starts.",
        engine=_E,
        phase=2,
        source="sglang/srt/model_executor/model_runner.py",
    ),
    rule(
        "sglang-load",
        "Load weight begin",
        r"",
        "The weights are read.",
        engine=_E,
        phase=2,
        source="sglang/srt/model_executor/model_runner.py",
    ),
    rule(
        "sglang-weights",
        "Load weight end.",
        r"(?: elapsed=" + NUM + r" s,)?.{0,300}?\bmem usage=" + NUM + " GB",
        "Time (in newer releases) and memory of the weights.",
        engine=_E,
        takes=(Take("model_load_s", Unit.SECONDS), Take("weights_gib", Unit.GIB, (2,))),
        phase=2,
        ends_phase=True,
        source="sglang/srt/model_executor/model_runner.py",
    ),
    rule(
        "sglang-kv",
        "KV Cache is allocated.",
        r"(?:.{0,80}?#tokens: (\d{1,12}),)?.{0,80}?\bK size: "
        + NUM
        + " GB, V size: "
        + NUM
        + " GB",
        "Token slots and memory (keys and values) of the KV cache.",
        engine=_E,
        takes=(Take("kv_tokens", Unit.COUNT), Take("kv_memory_gib", Unit.GIB, (2, 3))),
        phase=4,
        source="sglang/srt/mem_cache/memory_pool.py",
    ),
    rule(
        "sglang-kv-latent",
        "KV Cache is allocated.",
        r"(?:.{0,80}?#tokens: (\d{1,12}),)?.{0,80}?\bKV size: " + NUM + " GB",
        "As above, of a model whose keys and values share one latent vector.",
        engine=_E,
        takes=(Take("kv_tokens", Unit.COUNT), Take("kv_memory_gib", Unit.GIB, (2,))),
        phase=4,
        source="sglang/srt/mem_cache/memory_pool.py",
    ),
    rule(
        "sglang-graphs",
        (
            "Capture cuda graph end.",
            "Capture piecewise CUDA graph end.",
            "Capture npu graph end.",
            "Capture cpu graph end.",
        ),
        r" Time elapsed: " + NUM + r" s\.(?:.{0,80}?\bmem usage=" + NUM + " GB)?",
        "CUDA graphs: plain, then piecewise.",
        engine=_E,
        takes=(Take("graph_capture_s", Unit.SECONDS), Take("graph_gib", Unit.GIB, (2,))),
        phase=4,
        source="sglang/srt/model_executor/model_runner.py",
    ),
    rule(
        "sglang-capacity",
        "max_total_num_tokens=",
        r"\d{1,12},.{0,300}? context_len=(\d{1,12})",
        "Capacity and the longest sequence.",
        engine=_E,
        takes=(Take("max_model_len", Unit.COUNT, keep=Keep.LAST, rank=2),),
        phase=4,
        ends_phase=True,
        source="sglang/srt/managers/scheduler.py",
    ),
    rule(
        "sglang-ready",
        "The server is fired up and ready to roll!",
        r"",
        "Ready.",
        engine=_E,
        phase=5,
        mark=Mark.READY,
        source="sglang/srt/entrypoints/http_server.py",
    ),
    rule(
        "sglang-decode",
        ("Decode batch",),
        r"[^#]{0,40}#running-req: (\d{1,9}),.{0,200}?token usage: ([\d.]{1,12}),"
        r".{0,200}?gen throughput \(token/s\): ([\d.]{1,14})(?:.{0,80}?#queue-req: (\d{1,9}))?",
        "The periodic line of a server that generates.",
        engine=_E,
        takes=(
            Take("num_running", Unit.COUNT, (1,), Keep.LAST),
            Take("generation_tokens_per_s", Unit.NUMBER, (3,), Keep.LAST),
            Take("num_waiting", Unit.COUNT, (4,), Keep.LAST),
        ),
        mark=Mark.SERVING,
        about=5,
        source="sglang/srt/managers/scheduler_metrics_mixin.py",
    ),
    rule(
        "sglang-prefill",
        ("Prefill batch",),
        r"",
        "Prompts are computed; the first is the warm-up's.",
        engine=_E,
        about=5,
        source="sglang/srt/managers/scheduler_metrics_mixin.py",
    ),
    rule(
        "sglang-child-died",
        "Received sigquit from a child proces",
        r"",
        "A scheduler is gone, and the server with it; why is in the traceback before.",
        engine=_E,
        mark=Mark.DIED,
        source="sglang/srt/entrypoints/engine.py",
    ),
    rule(
        "sglang-stop",
        "SIGTERM received.",
        r"",
        "SGLang was asked to stop.",
        engine=_E,
        mark=Mark.STOPPING,
        source="sglang/srt/managers/tokenizer_manager.py",
    ),
)
