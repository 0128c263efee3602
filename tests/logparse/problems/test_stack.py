"""Causes that public reports of the last years show, each in a sentence of the same shape."""

from __future__ import annotations

import pytest

from logparse import LogReport, Outcome, parse_lines
from tests.logparse.vllm_lines import CORE


def failed(error: str, *, start: tuple[str, ...] = (), function: str = "f") -> LogReport:
    lines = ["Traceback (most recent call last):", f'  File "/v/x.py", line 3, in {function}']
    report = parse_lines(
        [
            "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.11.0",
            "INFO 10-03 12:00:00 [a.py:1] non-default args: {'model': 'o/m', 'seed': 7}",
            *start,
            *(CORE + line for line in (*lines, error)),
        ]
    )
    assert report.outcome is Outcome.FAILED
    return report


@pytest.mark.parametrize(
    ("id", "error", "title", "command"),
    [
        ("E22", "RuntimeError: SM 13.x requires CUDA >= 14.1.", "SM 13.x", "CUDA_HOME=/usr/local/cu"
         "da vllm serve o/m --seed 7"),
        ("E5", "RuntimeError: HIP error: invalid device function", "no code for this GPU",
         "stoker doctor"),
        ("E5", "RuntimeError: Frob failed with error no kernel image is available", "no code",
         "stoker doctor"),
        ("E24", "RuntimeError: operator torchfrob::nms does not exist", "torchfrob::nms",
         "pip check"),
        ("E24", "AttributeError: module 'torch' has no attribute 'float3_frob'", "mixed",
         "pip check"),
        ("E24", "ImportError: libfrob.so: undefined symbol: frobCommInit", "frobCommInit",
         "pip check"),
        ("C22", "AttributeError: 'FrobTokenizerFast' object has no attribute 'frobs'",
         "FrobTokenizerFast lacks frobs", "pip install --force-reinstall vllm"),
        ("C22", "ImportError: cannot import name 'FROB' from 'transformers.frob' (/x.py)",
         "transformers.frob lacks FROB", "pip install -U vllm transformers"),
        ("C22", "ValueError: Tokenizer class FrobTokenizer does not exist or is not imported.",
         "FrobTokenizer", "pip check"),
        ("C25", "AttributeError: FrobTokenizer has no attribute all_special_tokens_extended. Did "
         "you mean: 'num_special_tokens_to_add'?", "too new for this vLLM (FrobTokenizer lacks all"
         "_special_tokens_extended)", "pip install 'transformers<5'"),
        ("C6", "ValueError: No model architectures are specified", "names no architecture",
         "head -c 600 o/m/config.json"),
        ("C21", "RuntimeError: No compiled frob_scaled_mm for CUDA device capability: 137.",
         "frob_scaled_mm", "pip install -U vllm"),
        ("C21", "RuntimeError: torch._scaled_mm is only supported on frobs", "needs frobs",
         "stoker doctor"),
        ("C12", "ValueError: Found unknown quantization_method=frob4. Must be one of x", "frob4",
         "vllm serve o/m --seed 7"),
        ("C23", "KeyError: 'rope_type'", "rope_type", "pip install -U vllm transformers"),
        ("C16", "ValueError: Head size 77 is not supported by FrobAttention. Supported: [1]",
         "heads of 77 values", "vllm serve o/m --seed 7 --attention-backend TRITON_ATTN"),
        ("E25", "ValueError: invalid literal for int() with base 10: 'MIG-12ab'", "MIG-12ab",
         "CUDA_VISIBLE_DEVICES=0 vllm serve o/m --seed 7"),
        ("E26", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not "
         "yet initialized", "not ready", "sudo systemctl start nvidia-fabricmanager"),
        ("E28", "NotImplementedError: Could not run '_C::frob' with arguments from the 'CPU' "
         "backend.", "_C::frob is not built for CPU", "stoker doctor"),
        ("E16", "RuntimeError: Assertion error (/x/csrc/jit/frob.hpp:3): frob", "DeepGEMM",
         "VLLM_USE_DEEP_GEMM=0 vllm serve o/m --seed 7"),
        ("B12", "requests.exceptions.SSLError: certificate verify failed: odd", "not trusted",
         "HF_HUB_OFFLINE=1 vllm serve o/m --seed 7"),
        ("C24", "ValueError: GPU memory utilization must be less than 1.0. Got 3.5.", "3.5",
         "vllm serve o/m --seed 7 --gpu-memory-utilization 0.9"),
        ("C15", "NotImplementedError: Speculative decoding with frobs is not supported yet.",
         "with frobs", "vllm serve o/m --seed 7"),
        ("C15", "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_output"
         "s was requested", "by EAGLE3", "vllm serve o/m --seed 7"),
        ("C15", "ValueError: eagle3 is only supported for ['frob'] models. Got x='glm4_moe'",
         "by eagle3", "vllm serve o/m --seed 7"),
        ("D12", "AssertionError: DCP requires attention impls to return the softmax lse for decode"
         ", but the impl FrobImpl does not return the softmax lse for decode.", "FrobImpl",
         "vllm serve o/m --seed 7 --attention-backend FLASH_ATTN"),
        ("D12", "AssertionError: DCP requires attention implementations to return the softmax LSE "
         "during decode, but FrobImpl does not. Try a different backend", "FrobImpl",
         "vllm serve o/m --seed 7"),
        ("G13", "ValueError: Connector FrobConnector does not support HMA but HMA is enabled. "
         "Please set `--disable-hybrid-kv-cache-manager`.", "FrobConnector",
         "vllm serve o/m --seed 7 --disable-hybrid-kv-cache-manager"),
        ("F10", "ValueError: FrobForCausalLM does not support LoRA yet.",
         "FrobForCausalLM takes no adapters", None),
        ("F10", "ValueError: base.lm_head.weight is unsupported LoRA weight",
         "does not adapt: base.lm_head.weight", None),
        ("F10", "ValueError: Call to add_lora but LoRA is not enabled", "not switched on", None),
        ("B1", "huggingface_hub.errors.HfHubHTTPError: 403 Forbidden: None.", "gated",
         "hf auth login"),
        ("B10", "OSError: [Errno 30] Read-only file system: '/frob/x'", "/frob/x", None),
        ("C13", "ValueError: Weight frob = 7 is not divisible by min_thread_n = 64.", "slices",
         "vllm serve o/m --seed 7 --pipeline-parallel-size 2"),
        ("F4", "KeyError: \"Reasoning parser 'frob' not found. Available: x\"", "frob", None),
        ("A12", "RuntimeError: Rank 3 scheduler died during initialization (exit code: -9). If x",
         "killed from outside", None),
        ("G4", "RuntimeError: Rank 3 scheduler died during initialization (exit code: 1).",
         "Rank 3 scheduler", None),
    ],
)  # fmt: skip
def test_a_cause_of_the_stack(id: str, error: str, title: str, command: str | None) -> None:
    problem = failed(error).problem
    assert problem is not None
    assert (problem.id, problem.key_line) == (id, error)
    assert title in problem.title
    assert command is None or command in [fix.command for fix in problem.fixes]


def test_transformers_5_is_named_where_it_changed_a_type() -> None:
    error = "TypeError: unsupported operand type(s) for |: 'list' and 'set'"
    problem = failed(error, function="convert_rope_params_to_dict").problem
    assert problem is not None
    assert (problem.id, problem.fixes[0].command) == ("C25", "pip install 'transformers<5'")
    elsewhere = failed(error).problem
    assert elsewhere is not None
    assert elsewhere.id == "unknown"


def test_the_assembler_says_it_not_its_wrapper() -> None:
    own = "ptxas fatal   : Value 'sm_137a' is not defined for option 'gpu-name'"
    report = parse_lines(
        [
            "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.11.0",
            "(EngineCore pid=2) Traceback (most recent call last):",
            '(EngineCore pid=2)   File "/v/triton/x.py", line 3, in make_cubin',
            "(EngineCore pid=2) triton.frob.PTXASError: PTXAS error: Internal Triton PTX codegen er"
            "ror",
            "(EngineCore pid=2) `ptxas` stderr:",
            f"(EngineCore pid=2) {own}",
        ]
    )
    assert report.problem is not None
    assert (report.problem.id, report.problem.key_line) == ("E23", own)
    assert "sm_137a" in report.problem.title
    assert report.problem.fixes[0].command == (
        "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas vllm serve MODEL"
    )


def test_on_amd_nobody_is_sent_to_nvidias_tools() -> None:
    start = ("INFO 10-03 12:00:01 [x.py:1] Using frob on ROCm.",)
    for error in ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB",
                  "RuntimeError: HIP error: invalid device function",
                  "RuntimeError: No CUDA GPUs are available"):  # fmt: skip
        report = failed(error, start=start)
        assert report.problem is not None
        commands = [fix.command or "" for fix in report.problem.fixes]
        assert not any("nvidia-smi" in command or "--gpus" in command for command in commands)
    assert "rocm-smi" in commands


@pytest.mark.parametrize(
    ("id", "line"),
    [
        ("L10", "llama_init_from_model: failed to initialize the context: quantized V cache was "
         "requested, but this requires Flash Attention"),
        ("L11", "error: built without CURL, cannot download model from internet"),
        ("L11", "error from HF API, response code: 401, data: {}"),
        ("L12", "error: the supplied chat template is not supported: frob"),
        ("L13", "0.00.410.123 E llama_prepare_model_devices: invalid value for main_gpu: 3 "
         "(available devices: 1)"),
        ("L6", "llama-server: error while loading shared libraries: libfrob.so.0: cannot open "
         "shared object file: No such file or directory"),
    ],
)  # fmt: skip
def test_llama_server(id: str, line: str) -> None:
    report = parse_lines([line])
    assert report.problem is not None
    assert (report.outcome, report.engine, report.problem.id) == (Outcome.FAILED, "llama.cpp", id)
    assert line.endswith(report.problem.key_line)


def test_what_failed_first_not_that_loading_failed() -> None:
    report = parse_lines(
        [
            "0.00.400.000 I cmn  common_param: common_params_print_info: verbosity = 3",
            "0.00.410.123 E llama_frob: no frob in this file",
            "0.00.410.200 E llama_model_load_from_file_impl: failed to load model",
            "0.00.410.300 E srv  llama_server: exiting due to model loading error",
        ]
    )
    assert report.problem is not None
    assert report.problem.key_line == "llama_frob: no frob in this file"


def test_sglang_by_its_words_alone() -> None:
    report = parse_lines(
        [
            "Scheduler hit an exception: Traceback (most recent call last):",
            '  File ".../scheduler.py", line 3, in f',
            "RuntimeError: FlashAttention on Frob cards only supports frobs",
        ]
    )
    assert (report.outcome, report.engine) == (Outcome.FAILED, "sglang")
    assert report.problem is not None
    assert "python -m sglang.launch_server --model-path MODEL --attention-backend triton" in [
        fix.command for fix in report.problem.fixes
    ]


def test_what_a_kernel_library_said_before_the_worker_was_gone() -> None:
    own = "[TM][FATAL] kernels/frob.cu(83): Check failed: status == cudaSuccess an illegal memory "
    report = parse_lines(
        [
            "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.11.0",
            own + "access was encountered",
            CORE + "Worker proc VllmWorker-3 died unexpectedly, shutting down executor.",
        ]
    )
    assert report.outcome is Outcome.FAILED
    assert report.problem is not None
    assert (report.problem.id, report.problem.key_line.startswith(own)) == ("E12", True)


def test_a_rank_on_another_machine_is_named_however_ray_puts_its_end() -> None:
    for words in (
        "The actor died unexpectedly before finishing this task.",
        "The actor died because its node has died. Node Id: 0a1b",
    ):
        rank = "Worker_PP0 (node 10.0.0.2, 0a1b, pid 12)"
        report = parse_lines(
            [
                "INFO 10-03 12:00:00 [launch.py:90] Stoker server version 0.1.0, serving model m",
                CORE + f"Worker proc {rank} died unexpectedly ({words}), shutting down executor.",
            ]
        )
        assert report.problem is not None
        assert (report.problem.id, rank in report.problem.title) == ("G4", True), words
    other = failed("ray.exceptions.ActorDiedError: The actor died unexpectedly").problem
    assert other is not None
    assert other.id == "D5"


def test_a_script_from_standard_input() -> None:
    problem = failed("FileNotFoundError: [Errno 2] No such file or directory: '/x/<stdin>'").problem
    assert problem is not None
    assert (problem.id, "standard input" in problem.title) == ("E14", True)
