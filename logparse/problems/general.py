"""Causes that only the kind of an exception tells. They are asked for last, and a later line of the
same process that names its cause exactly wins over them.
"""

from __future__ import annotations

from logparse.problems.problem import (
    ASK_CLI,
    FREE_GPU,
    MORE_GPUS,
    NEWER_PACKAGES,
    OUT_OF_MEMORY,
    QUANTISE,
    ProblemRule,
    patterns,
)

GENERAL_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "A5",
        patterns(*OUT_OF_MEMORY),
        (
            "GPU memory ran out during the start (another {wanted} were wanted, {free} were free)",
            "GPU memory ran out during the start (another {wanted} were wanted)",
            "GPU memory ran out during the start",
        ),
        "Weights, the activations of one step and the KV cache together are larger than the "
        "memory that is free.",
        (
            FREE_GPU,
            ("make a step smaller", "{serve} --max-num-batched-tokens {budget_half}"),
            ("leave more memory free", "{serve} --gpu-memory-utilization {share_down}"),
            QUANTISE,
            MORE_GPUS,
        ),
        is_fatal=True,
        is_general=True,
    ),
    ProblemRule(
        "A5",
        patterns(
            r"RESOURCE_EXHAUSTED[^\n]{0,200}?Used (?P<used>[\d.]{1,12}[KMG]) of "
            r"(?P<limit>[\d.]{1,12}[KMG]) hbm",
            r"RESOURCE_EXHAUSTED[^\n]{0,200}?(?:memory|hbm|HBM|allocat)",
        ),
        (
            "the model and one step need {used} of the chip's memory, it has {limit}",
            "the memory of the chip is used up",
        ),
        "Weights, KV cache and the activations of one compiled step must fit together.",
        (
            ("serve shorter sequences", "{serve} --max-model-len {len_half}"),
            (
                "make a step smaller",
                "{serve} --max-num-batched-tokens {budget_half} --max-num-seqs {seqs_half}",
            ),
            ("leave more memory free", "{serve} --gpu-memory-utilization {share_down}"),
            (
                "spread the model over {more_gpus} chips",
                "{serve} --tensor-parallel-size {more_gpus}",
            ),
        ),
        is_general=True,
    ),
    ProblemRule(
        "C20",
        patterns(
            r"^(?!Value error)(?P<detail>[^\n]{1,200}?) \[type=\w{1,60}, input_value=(?P<given>"
            r"[^\n]{1,80}?), input_type=[^\n]{0,200}\nfor (?P<field>\S{1,200})",
            r"^(?!Value error)(?P<detail>[^\n]{1,200}?) \[type=\w{1,60}, input_value=(?P<given>"
            r"[^\n]{1,80}?), input_type=",
        ),
        ("{field}: {detail}, not {given}", "a setting is not valid: {detail}, not {given}"),
        "A flag, or an entry of the model's configuration, has another type than the setting.",
        (ASK_CLI, NEWER_PACKAGES),
        is_general=True,
    ),
    ProblemRule(
        "B9",
        patterns(r"^KeyError: '(?P<parameter>[\w.-]{1,300})'"),
        ("the checkpoint's parameter {parameter} has no place in the model",),
        "Quantisation method, model class or format of the checkpoint is another than the one "
        "that this release expects.",
        (
            NEWER_PACKAGES,
            ("drop --quantization (it is read from the checkpoint)", "{serve} ~--quantization"),
            ("make sure that the download is complete", "{hub_download} {repo_id}"),
        ),
        functions=frozenset({"load_weights", "_load_module", "weight_loader"}),
        is_general=True,
    ),
    ProblemRule(
        "E1",
        patterns(r"^NotImplementedError\s{0,3}$"),
        ("no device was found that this build of {server} can use",),
        "Nothing recognised the device, so its questions have no answer: a CUDA build on a machine "
        "without a visible GPU, or a build for another platform.",
        (
            ("see whether the GPU is visible here", "nvidia-smi"),
            ("in Docker, hand the GPUs on", "docker run --gpus all ..."),
            ("see which build fits this machine", "stoker doctor"),
        ),
        place="platforms/interface.py",
        is_general=True,
    ),
    ProblemRule(
        "C19",
        patterns(r"^NotImplementedError(?:: (?P<detail>[^\n]{1,200}))?"),
        (
            "this release does not do what was asked: {detail}",
            "this release lacks a part that the model or an option needs",
        ),
        "The code says itself that it is not written: for this model, device or option.",
        (
            ("leave out the options that are not needed", None),
            NEWER_PACKAGES,
            ("try Transformers' own implementation", "{serve} --model-impl transformers"),
        ),
        is_general=True,
    ),
    ProblemRule(
        "E20",
        patterns(
            r"cannot import name '(?P<name>\w{1,80})' from (?:partially initialized module )?"
            r"'(?P<module>[\w.]{1,120})'",
            r"No module named '(?P<missing>[\w.]{1,120})'",
            r"Unable to import|(?:ImportError|ModuleNotFoundError): (?P<detail>[^\n]{1,200})",
        ),
        (
            "the Python package {missing} is not installed",
            "the installed {module} is of another version than this release needs ({name} is not "
            "in it)",
            "a package cannot be imported: {detail}",
        ),
        "Packages were added, removed or updated after the server was installed, or the model's "
        "own code wants more of them.",
        (
            ("install what is missing", "pip install {missing}"),
            ("see what does not fit together", "pip check"),
            (
                "install into a fresh environment",
                "uv venv && uv pip install {package} --torch-backend=auto",
            ),
        ),
        is_general=True,
    ),
    ProblemRule(
        "E12",
        patterns(
            r"(?:CUDA|HIP) error: (?P<what>[^\n]{1,100})",
            r"(?P<what>Aicore kernel execute failed|vector core exception|EZ\d{4}: [^\n]{1,80}|"
            r"The Inner error is reported as above)",
            r"(?P<what>(?:cuda|hip|CU|UR)[A-Z_][A-Za-z_]{0,10}(?:Error|ERROR|RESULT_ERROR)_?\w{1,60})",
        ),
        ("a computation on the device failed ({what})",),
        "A fault in a kernel, a driver that does not fit, or broken hardware. It may be reported "
        "later than it happened.",
        (
            ("find the place", "CUDA_LAUNCH_BLOCKING=1 {serve} --enforce-eager"),
            ("ask the driver", "dmesg | tail -50"),
            ("see which build fits this machine", "stoker doctor"),
        ),
        is_general=True,
    ),
    ProblemRule(
        "B5",
        patterns(r"^OSError: \[Errno 122\]|Disk quota exceeded"),
        ("the disk quota is used up",),
        "The download, the compile cache or a temporary file went over it.",
        (("put the caches elsewhere", "HF_HOME=/big/disk VLLM_CACHE_ROOT=/big/disk/vllm {serve}"),),
        is_general=True,
    ),
)
