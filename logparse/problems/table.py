"""Known causes of failure as one table: how the line looks, why it happens, what to type.

Templates name groups of the pattern or facts of the log ({model}, {serve}, {program}, {port});
one whose values are missing is left out. Fixes are in order of likelihood. The letter of an id is
its family: A memory, B access to the model, C its configuration, D parallelism, E platform, F
server, G processes, S our own engine. The first rule that matches counts.
"""

from __future__ import annotations

from logparse.problems.config import CONFIG_PROBLEMS
from logparse.problems.distributed import DISTRIBUTED_PROBLEMS
from logparse.problems.general import GENERAL_PROBLEMS
from logparse.problems.library import LIBRARY_PROBLEMS
from logparse.problems.memory import MEMORY_PROBLEMS
from logparse.problems.model import MODEL_ACCESS_PROBLEMS, MODEL_CONFIG_PROBLEMS
from logparse.problems.option import OPTION_PROBLEMS
from logparse.problems.other_engine import (
    LLAMACPP_LOADER_PROBLEMS,
    LLAMACPP_PROBLEMS,
    SGLANG_PROBLEMS,
)
from logparse.problems.platform import PARALLEL_PROBLEMS, PLATFORM_PROBLEMS
from logparse.problems.problem import MORE_TIME, WHO_STOPS, ProblemRule, patterns
from logparse.problems.runtime import RUNTIME_MEMORY_PROBLEMS, RUNTIME_PROBLEMS
from logparse.problems.server import OWN_ENGINE_PROBLEMS, SERVER_PROBLEMS
from logparse.problems.stack import STACK_PROBLEMS

PROBLEM_RULES: tuple[ProblemRule, ...] = (
    *SGLANG_PROBLEMS,
    *LLAMACPP_LOADER_PROBLEMS,
    *RUNTIME_MEMORY_PROBLEMS,
    *RUNTIME_PROBLEMS,
    *MEMORY_PROBLEMS,
    *MODEL_ACCESS_PROBLEMS,
    *CONFIG_PROBLEMS,
    *MODEL_CONFIG_PROBLEMS,
    *STACK_PROBLEMS,
    *PARALLEL_PROBLEMS,
    *DISTRIBUTED_PROBLEMS,
    *PLATFORM_PROBLEMS,
    *LIBRARY_PROBLEMS,
    *OPTION_PROBLEMS,
    *SERVER_PROBLEMS,
    *OWN_ENGINE_PROBLEMS,
    *LLAMACPP_PROBLEMS,
    *GENERAL_PROBLEMS,
)

# For logs that hold nothing but wrappers.
LAST_RESORTS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "G10",
        patterns(r"KeyboardInterrupt", r"Failed core proc\(s\): \{[^}]{0,300}: (?:-15|143)\b"),
        ("the start was interrupted from outside",),
        "Ctrl-C, or a" + WHO_STOPS[1:],
        (MORE_TIME, ("start it again", "{serve}")),
    ),
    ProblemRule(
        "G11",
        patterns(r"CANCELLED AT \S{1,40} DUE TO (?P<limit>[A-Z ]{1,40})", r"\bCANCELLED\b"),
        ("Slurm ended the job: {limit}", "the job was cancelled"),
        "The server did not end by itself.",
        (
            (
                "see what the job was allowed and used",
                "sacct -j <job> --format=State,Elapsed,MaxRSS",
            ),
        ),
    ),
    ProblemRule(
        "G1",
        patterns(
            r"Engine core initialization failed|Frontend process failed during engine core",
            r"Engine process failed to start|WorkerProc initialization failed",
            r"(?:EngineCore|WorkerProc) (?:failed to start|encountered a fatal error)",
            r"for the root cause|Engine core is dead|EngineDeadError",
            r"Initialization failed\. Please see|Received sigquit from a child|scheduler is dead",
        ),
        ("the engine process failed, and this log does not show why",),
        "This line only says that another process failed. That process wrote its reason to "
        "standard error, or earlier in the log than this part begins.",
        (
            ("keep both outputs in the log", "{serve} 2>&1 | tee server.log"),
            ("start again with every message shown", "VLLM_LOGGING_LEVEL=DEBUG {serve}"),
        ),
    ),
)
