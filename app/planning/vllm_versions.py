"""How vLLM's releases differ in what they count and allocate: one place for every such rule.

A plan is for the newest one unless another is asked for; a log says which one wrote it. The
figures are what start logs of those releases report.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.errors import UsageError

Version = tuple[int, ...]
NEWEST = "0.30.0"
NEWEST_VERSION: Version = (0, 30, 0)

_FIRST_WITH_GROUPS = (0, 9, 2)  # before, a window was kept like full attention
_FIRST_PADDED_EXPERTS = (0, 10, 1)  # before, MXFP4 experts were as large as in the file
_FIRST_WITH_TRITON_EXPERTS = (0, 12)  # before, their kernels had to be installed apart
_FIRST_KEPT_WORKSPACE = (0, 12)  # before, the work space of experts was free again at the peak
_FIRST_LEAN_SAMPLER = (0, 17)  # before, top-k and top-p sorted every row of the logits
_FIRST_LARGE_CONTEXT = (0, 18)  # before, the forward pass left less memory outside of torch
_FIRST_TOKENS_BY_CONCURRENCY = (0, 20)  # before: blocks / groups * block size
_FIRST_ASYNC = (0, 20)  # before, one step was in flight
_FIRST_092_SHARE = (0, 20)  # before, the default share was 0.90
_FIRST_WITHOUT_GRAPHS = (0, 21)  # before, graphs came on top of the share, not out of it
_FIRST_SECOND_RUNNER = (0, 30)  # its sampler was measured on one card only

_LEAN, _SORTING = (12.0, 14.5, 18.0), (32.0, 38.0, 40.0)
_SECOND_RUNNER = (9.0, 14.5, 40.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRules:
    """What one release of vLLM does with memory.

    `logit_bytes` are (least, likely, most) bytes that sampling takes at its peak for each value of
    the logits. `takes_graphs_from_share` is None where that depends on a release not named.
    """

    has_groups: bool = True
    has_tokens_by_concurrency: bool = True
    has_async_scheduling: bool = True
    takes_graphs_from_share: bool | None = True
    pads_experts: bool = True
    has_triton_experts: bool = True
    keeps_expert_workspace: bool = True
    has_large_context: bool = True
    logit_bytes: tuple[float, float, float] = _SECOND_RUNNER
    default_utilization: float = 0.92


def version_rules(version: Version | None) -> VersionRules:
    """The rules of `version`; None is the newest, with the spread of all that are in use."""
    if version is None:
        return VersionRules(takes_graphs_from_share=None, logit_bytes=(9.0, 14.5, 40.0))
    return VersionRules(
        has_groups=version >= _FIRST_WITH_GROUPS,
        has_tokens_by_concurrency=version >= _FIRST_TOKENS_BY_CONCURRENCY,
        has_async_scheduling=version >= _FIRST_ASYNC,
        takes_graphs_from_share=version >= _FIRST_WITHOUT_GRAPHS,
        pads_experts=version >= _FIRST_PADDED_EXPERTS,
        has_triton_experts=version >= _FIRST_WITH_TRITON_EXPERTS,
        keeps_expert_workspace=version >= _FIRST_KEPT_WORKSPACE,
        has_large_context=version >= _FIRST_LARGE_CONTEXT,
        logit_bytes=_logit_bytes(version),
        default_utilization=0.92 if version >= _FIRST_092_SHARE else 0.90,
    )


def parse_version(text: str) -> Version:
    """`0.11.0`, `v0.30` or `0.10.2rc1` as numbers; StokerError (2) for anything else."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise UsageError(
            f"--vllm-version {text} is no version of vLLM", hint=f"as in --vllm-version {NEWEST}"
        )
    return tuple(int(part or 0) for part in match.groups())


def _logit_bytes(version: Version) -> tuple[float, float, float]:
    if version < _FIRST_LEAN_SAMPLER:
        return _SORTING
    return _LEAN if version < _FIRST_SECOND_RUNNER else _SECOND_RUNNER
