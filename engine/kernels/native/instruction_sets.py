"""Which instructions the C++ is compiled for: the best that this CPU has, or those asked for.

`STOKER_NATIVE_ISA` names one of INSTRUCTION_SETS (for tests, and to find out what is to blame).
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from engine.env import cpu_flags
from engine.errors import ConfigError

VARIABLE = "STOKER_NATIVE_ISA"

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """`flags` are for the compiler; `needs` are words of /proc/cpuinfo.

    `quick` optimises bf16 as well as -O3 does, in less time.
    """

    name: str
    title: str
    flags: tuple[str, ...]
    needs: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("-O3",)

    def missing(self) -> list[str]:
        """What this CPU lacks of it."""
        if not self.needs:
            return []
        if platform.machine() not in ("x86_64", "AMD64"):
            return ["x86-64"]
        return sorted(set(self.needs) - cpu_flags())


def _options(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("-m" + word.replace("_", "") for word in words)


# Their vectors are written out, one register each; the others' are structs to see through.
_AVX512_QUICK = ("-O2", "-fno-tree-vectorize")

INSTRUCTION_SETS = (  # the best first
    InstructionSet(
        "avx512_bf16",
        "AVX512-BF16",
        ("-march=native",),
        (*_AVX512, "avx512_bf16"),
        _AVX512_QUICK,
    ),
    InstructionSet(
        "avx512_vnni",
        "AVX512-VNNI",
        _options((*_AVX512, "avx512_vnni", "fma")),
        (*_AVX512, "avx512_vnni", "fma"),
        _AVX512_QUICK,
    ),
    InstructionSet("avx2", "AVX2", _options(("avx2", "fma")), ("avx2", "fma")),
    InstructionSet("portable", "any CPU", ()),
)


def choose_instruction_set() -> InstructionSet:
    """The one in STOKER_NATIVE_ISA, refused where the CPU lacks it; else the best one."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return next(known for known in INSTRUCTION_SETS if not known.missing())
    names = [known.name for known in INSTRUCTION_SETS]
    if asked not in names:
        raise ConfigError(f"{VARIABLE}={asked} is not known; use one of {', '.join(names)}.")
    chosen = INSTRUCTION_SETS[names.index(asked)]
    if missing := chosen.missing():
        able = ", ".join(known.name for known in INSTRUCTION_SETS if not known.missing())
        raise ConfigError(
            f"{VARIABLE}={asked} cannot run: this CPU has no {', '.join(missing)}. Use {able}, or "
            f"unset {VARIABLE} to get the best of them."
        )
    return chosen
