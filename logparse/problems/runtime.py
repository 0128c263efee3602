"""Causes that end a server which was ready: memory under load, hanging ranks, lost GPUs."""

from __future__ import annotations

from logparse.problems.problem import ProblemRule, patterns

_STEP = frozenset({"execute_model", "sample_tokens", "_process_engine_step", "run_busy_loop"})
_START = frozenset(
    {
        "profile_run",
        "_dummy_run",
        "determine_available_memory",
        "determine_num_available_blocks",
        "load_model",
        "capture_model",
        "_dummy_sampler_run",
        "compile_or_warm_up_model",
    }
)

RUNTIME_MEMORY_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "A9",
        patterns(
            r"CUDA out of memory\. Tried to allocate (?P<wanted>[\d.]{1,12} [KMG]iB)"
            r"(?:[^\n]{0,120}? of which (?P<free>[\d.]{1,12} [KMG]iB) is free)?",
            r"(?:torch|cuda)\.OutOfMemoryError|CUDA error: out of memory|HIP out of memory",
        ),
        (
            "GPU memory ran out while serving (another {wanted} were wanted, {free} were free)",
            "GPU memory ran out while serving (another {wanted} were wanted)",
            "GPU memory ran out while serving",
        ),
        "The share is so large that fragmentation, another process, or a request for many logprobs "
        "or large images finds nothing left.",
        (
            ("leave more memory free", "{serve} --gpu-memory-utilization {share_down}"),
            ("avoid fragmentation", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {serve}"),
            ("make a step smaller", "{serve} --max-num-batched-tokens {budget_half}"),
            ("have it started again when it dies", "{supervised} {model}"),
        ),
        functions=_STEP,
        not_functions=_START,
    ),
)

RUNTIME_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "A14",
        patterns(
            r"Sleep mode is not supported on current platform",
            r"incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments",
            r"Expandable segments are not compatible with memory pool",
        ),
        ("the memory allocator does not go with sleep mode or the KV connector",),
        "Both need a memory pool of their own, which expandable segments cannot give.",
        (
            ("unset the variable", "unset PYTORCH_CUDA_ALLOC_CONF"),
            ("do without sleep mode", "{serve} ~--enable-sleep-mode"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "G6",
        patterns(
            r"Watchdog caught collective operation timeout: WorkNCCL\([^\n]{0,120}?OpType="
            r"(?P<operation>\w{1,40})(?:[^\n]{0,200}?Timeout\(ms\)=(?P<ms>\d{1,12}))?",
            r"Watchdog caught collective operation timeout",
        ),
        (
            "the GPUs waited {ms} ms for one of them ({operation}, NCCL watchdog)",
            "the GPUs waited too long for one of them (NCCL watchdog)",
        ),
        "One rank hangs or is gone: a kernel, a broken link, or a GPU that the driver lost.",
        (
            ("see whether the driver lost a GPU", "dmesg | grep -i xid"),
            ("let NCCL say why", "NCCL_DEBUG=INFO {serve}"),
            ("do without peer access", "NCCL_P2P_DISABLE=1 {serve} --disable-custom-all-reduce"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "G5",
        patterns(
            r"RPC call to (?P<call>\w{1,60}) timed out",
            r"TimeoutError: [^\n]{0,60}(?P<call>execute_model|sample_tokens)",
        ),
        ("a worker did not answer in time ({call})",),
        "One rank hangs: NCCL, a kernel that is compiled inside a request, a debugger, a lost GPU.",
        (
            ("see where it hangs", "py-spy dump --pid $(pgrep -f VLLM::Worker | head -1)"),
            ("let NCCL say why", "NCCL_DEBUG=INFO {serve}"),
            ("do without the direct all-reduce", "{serve} --disable-custom-all-reduce"),
            (
                "if it really compiles, wait longer",
                "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1200 {serve}",
            ),
        ),
        is_fatal=True,
    ),
)
