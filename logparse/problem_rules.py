"""Known causes of failure as one table: how the line looks, why it happens, what to type.

Templates name groups of the pattern or facts of the log ({model}, {serve}, {program}, {port});
one whose values are missing is left out. Fixes are in order of likelihood. The letter of an id is
its family: A memory, B access to the model, C its configuration, D parallelism, E platform, F
server, G processes, S our own engine. The first rule that matches counts.
"""

from __future__ import annotations

from logparse.memory_problems import MEMORY_PROBLEMS
from logparse.model_problems import MODEL_ACCESS_PROBLEMS, MODEL_CONFIG_PROBLEMS
from logparse.platform_problems import PARALLEL_PROBLEMS, PLATFORM_PROBLEMS
from logparse.problems import ProblemRule
from logparse.server_problems import OWN_ENGINE_PROBLEMS, SERVER_PROBLEMS

PROBLEM_RULES: tuple[ProblemRule, ...] = (
    *MEMORY_PROBLEMS,
    *MODEL_ACCESS_PROBLEMS,
    *MODEL_CONFIG_PROBLEMS,
    *PARALLEL_PROBLEMS,
    *PLATFORM_PROBLEMS,
    *SERVER_PROBLEMS,
    *OWN_ENGINE_PROBLEMS,
)
