"""Values for the usual levers, one step from what a start used, where the log's own numbers say
that they help and fit. One that would not is absent, and with it every advice that needs it.

Sizes are GiB of one rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from logparse.problems.problem import Values
from logparse.records import Facts
from logparse.rules.arguments import differing_arguments

_SHARES = (0.95, 0.98)  # of the memory; above, the driver and fragmentation have no room
_SHARE_STEP = 0.05
_DEFAULT_SHARE = 0.9
_SGLANG_FRACTION = 0.88
_KEPT_FREE_GIB = 0.5
_LEAST_CACHE_GIB = 0.5  # beside the weights a server needs some KV cache and work space
_LEAST_BUDGET = 256
_LEAST_LENGTH = 256
_KV_GIB = 4
_FIXED_SIZES = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
# Parameters in a model's name: `14B`, `8x7B`, `0.6b`; not the active ones of `30B-A3B`.
_PARAMETERS = re.compile(r"(?<![A-Za-z\d.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?)[Bb](?![A-Za-z])")
_BYTES = (
    (re.compile(r"(?i)4bit|int4|w4|awq|gptq|nvfp4|mxfp4|bnb|q4"), 0.55),
    (re.compile(r"(?i)fp8|int8|w8|8bit|q8"), 1.0),
    (re.compile(r"(?i)float32|fp32"), 4.0),
)


def tuned(facts: Facts, values: Values) -> Values:
    """By placeholder; `values` are the numbers in the failing line."""
    given = differing_arguments(facts.non_default_args or "")
    weights = weights_gib(facts)
    return {
        **_share_values(facts, given, values, weights),
        **_held(values, weights),
        **_step_values(facts, given),
        **_length_values(facts, given),
        **_sglang_values(given),
        **_kv_values(values),
        "more_gpus": str(max(2, 2 * (facts.tensor_parallel_size or 1))),
        "pp": str(facts.pipeline_parallel_size or 2),
    }


def weights_gib(facts: Facts) -> float | None:
    """What one rank holds: as the log says, or about what the model's name promises."""
    if facts.weights_gib is not None:
        weights = facts.weights_gib
        return float(max(weights) if isinstance(weights, tuple) else weights)
    ranks = max(1, facts.tensor_parallel_size or 1) * max(1, facts.pipeline_parallel_size or 1)
    if facts.checkpoint_gib is not None:
        return facts.checkpoint_gib / ranks
    promised = _promised_gib(facts)
    return promised / ranks if promised is not None else None


def _promised_gib(facts: Facts) -> float | None:
    name = (facts.model or "").rpartition("/")[2]
    found = _PARAMETERS.search(name)
    if found is None:
        return None
    billions = float(found[2]) * int(found[1] or 1)
    formats = " ".join(text for text in (facts.quantization, name) if text)
    size = next((size for pattern, size in _BYTES if pattern.search(formats)), 2.0)
    return billions * 1e9 * size / 2**30


def _share_values(
    facts: Facts, given: Mapping[str, str], values: Values, weights: float | None
) -> Values:
    share = number(given.get("gpu_memory_utilization")) or facts.gpu_memory_utilization
    share = share if share is not None and share <= 1 else _DEFAULT_SHARE
    total = number(values.get("total")) or facts.gpu_total_gib
    fixed = next((key for key in _FIXED_SIZES if given.get(key, "None") != "None"), None)
    # Where a flag says the cache's size, the share of the memory has no part in it.
    found = {} if fixed is None else {"fixed_cache": "--" + fixed.replace("_", "-")}
    lacking = _lacking(values)
    for higher in _SHARES if fixed is None else ():
        gained = (higher - share) * total if total is not None else None
        if (
            fixed is None
            and higher > share
            and (lacking is None or gained is None or gained >= lacking)
        ):
            found["share_up"] = f"{higher:.2f}"
            break
    lower = share - _SHARE_STEP
    if lower > 0 and (total is None or weights is None or _holds(lower * total, weights)):
        found["share_down"] = f"{lower:.2f}"
    return found


def _lacking(values: Values) -> float | None:
    need, have = number(values.get("need")), signed(values.get("have"))
    return (need or _LEAST_CACHE_GIB) - have if have is not None else None


def _held(values: Values, weights: float | None) -> Values:
    """What another process leaves free, as a share: if it holds the weights."""
    free, total = number(values.get("free")), number(values.get("total"))
    if free is None or total is None:
        return {}
    if weights is not None and not _holds(free - _KEPT_FREE_GIB, weights):
        return {"weights": f"{weights:.1f}"}
    share = math.floor((free - _KEPT_FREE_GIB) / total * 100) / 100
    return {"fitting_share": f"{share:.2f}"} if share > 0 else {}


def _holds(size: float, weights: float) -> bool:
    return size >= weights + _LEAST_CACHE_GIB


def _step_values(facts: Facts, given: Mapping[str, str]) -> Values:
    """A smaller step: a budget below the one used, and above what requests and length need."""
    budget = facts.max_num_batched_tokens or number(given.get("max_num_batched_tokens")) or 8192
    seqs = int(number(given.get("max_num_seqs")) or 256)
    half, fewer = min(int(budget) // 2, 2048), min(seqs // 2, 128)
    least = max(_LEAST_BUDGET, min(seqs, 1024))
    if given.get("enable_chunked_prefill") == "False":
        least = max(least, facts.max_model_len or 0)
    found = {"budget_half": str(half)} if half >= least else {}
    return {**found, "seqs_half": str(fewer)} if fewer >= 1 else found


def _length_values(facts: Facts, given: Mapping[str, str]) -> Values:
    length = facts.max_model_len or facts.requested_max_model_len
    length = length or int(number(given.get("max_model_len")) or 0) or None
    if length is None:
        return {"len_half": "4096"}
    return {"len_half": str(length // 2)} if length // 2 >= _LEAST_LENGTH else {}


def _sglang_values(given: Mapping[str, str]) -> Values:
    fraction = number(given.get("mem_fraction_static")) or _SGLANG_FRACTION
    found = {"fraction_down": f"{fraction - 0.08:.2f}"} if fraction > 0.3 else {}
    higher = min(fraction + 0.05, 0.95)
    return {**found, "fraction_up": f"{higher:.2f}"} if higher > fraction else found


def _kv_values(values: Values) -> Values:
    """A size for the KV cache that what is free holds."""
    free = number(values.get("free"))
    size = _KV_GIB if free is None else min(_KV_GIB, math.floor(free - 1))
    return {"kv_bytes": f"{size}G"} if size >= 1 else {}


def signed(text: str | None) -> float | None:
    """None when it is no number."""
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def number(text: str | None) -> float | None:
    """None when it is no number above zero."""
    value = signed(text)
    return value if value is not None and 0 < value < 1e9 else None
