"""What real starts of vLLM reported, beside what a plan says of them.

The rows of ../shared/facts/plan-truth.md are read in place; the table is printed by
`python -m tests.app.planning.test_plan_truth`. The figures of other starts below are from public
logs.
"""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.planning.gpu_catalogue import find_gpu
from app.planning.lora_weights import LoraSlots
from app.planning.plan import MemoryPlan, make_plan
from app.planning.plan_models import find_planned_model
from app.planning.plan_request import PlanRequest
from app.planning.vllm_versions import parse_version
from engine.machine.sizes import GIB
from tests.places import SHARED

TRUTH = SHARED / "facts" / "plan-truth.md"


@dataclass(frozen=True)
class Row:
    """One start: its flags as the page has them, and the version that ran it."""

    id: str
    model: str
    gpu: str
    version: str
    flags: dict[str, Any] = field(default_factory=dict)


ROWS = (
    Row(
        "P01",
        "qwen3-8b",
        "t4",
        "0.22.0",
        {
            "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.85,
            "max_model_len": 8192,
            "max_num_batched_tokens": 8192,
            "enforce_eager": True,
            "lora": LoraSlots(),
        },
    ),
    Row(
        "P03",
        "llama-3.1-8b",
        "l4",
        "0.11.0",
        {"max_model_len": 32000, "max_num_batched_tokens": 2048, "max_num_seqs": 128},
    ),
    Row(
        "P06",
        "llama-3.1-8b",
        "a100-40gb",
        "0.11.0",
        {"gpu_memory_utilization": 0.9, "max_model_len": 4096},
    ),
    Row(
        "P08",
        "qwen2.5-32b",
        "rtx3090",
        "0.18.1",
        {
            "tensor_parallel_size": 4,
            "gpu_memory_utilization": 0.88,
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 1,
            "enforce_eager": True,
        },
    ),
    Row(
        "P10",
        "gpt-oss-120b",
        "h100",
        "0.11.0",
        {"gpu_memory_utilization": 0.95, "max_num_batched_tokens": 1024},
    ),
    Row(
        "P12",
        "qwen2.5-1.5b",
        "a6000",
        "0.9.2",
        {"gpu_memory_utilization": 0.4, "max_model_len": 1536, "max_num_batched_tokens": 8192},
    ),
    Row("P16", "gpt-oss-20b", "rtx3090", "0.10.0", {}),
    Row("P18", "gpt-oss-120b", "h100", "0.14.1", {"max_num_batched_tokens": 5120}),
    Row(
        "P20",
        "qwen3-30b-a3b",
        "h100",
        "0.10.2",
        {
            "gpu_memory_utilization": 0.9,
            "max_model_len": 6144,
            "max_num_batched_tokens": 8192,
        },
    ),
)
_INFERRED = ("P08", "P10", "P12")  # card, share or emptiness is a guess of who read the log


def planned(row: Row, *, with_version: bool) -> MemoryPlan:
    model = find_planned_model(row.model)
    request = PlanRequest(gpu=find_gpu(row.gpu), **row.flags)
    if with_version:
        request = dataclasses.replace(request, vllm_version=parse_version(row.version))
    return make_plan(model.shape, model.weights, request)


def measured() -> dict[str, tuple[float | None, float | None]]:
    """(weights GiB, KV GiB) by row."""
    found = {}
    for line in TRUTH.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith("P") and cells[0][1:].isdigit():
            weights, kv = (None if cell == "-" else float(cell) for cell in cells[5:7])
            found[cells[0]] = (weights, kv)
    return found


needs_truth = pytest.mark.skipif(not TRUTH.is_file(), reason="the measured rows are not here")


@needs_truth
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
@pytest.mark.parametrize("with_version", [True, False])
def test_every_measured_cache_lies_inside_the_printed_range(row: Row, with_version: bool) -> None:
    _, kv = measured()[row.id]
    plan = planned(row, with_version=with_version)

    assert kv is None or plan.kv_low <= kv * GIB <= plan.kv_high


@needs_truth
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_weights_are_within_one_percent(row: Row) -> None:
    weights, _ = measured()[row.id]
    plan = planned(row, with_version=True)

    assert weights is None or plan.tightest.weights_bytes == pytest.approx(weights * GIB, rel=0.01)


@needs_truth
@pytest.mark.parametrize("with_version", [True, False])
def test_the_median_error_of_the_cache_is_small(with_version: bool) -> None:
    assert statistics.median(errors(with_version=with_version).values()) <= 0.05


def errors(*, with_version: bool) -> dict[str, float]:
    """Error of the KV memory by row, as a share of the real one."""
    real = measured()
    return {
        row.id: abs(planned(row, with_version=with_version).tightest.available_bytes / GIB / kv - 1)
        for row in ROWS
        if (kv := real[row.id][1]) is not None
    }


# Activation peaks in GiB that starts on an H100 reported (8192 tokens, 1024 requests), and those of
# the sampler before 0.17.
PEAKS = (
    ("llama-3.1-8b", 1, "0.19.0", 1.89),
    ("llama-3.1-8b", 4, "0.19.0", 1.89),
    ("qwen2.5-7b", 2, "0.19.0", 2.21),
    ("qwen2.5-72b", 2, "0.19.0", 2.29),
    ("qwen3-8b", 1, "0.19.0", 2.21),
    ("qwen3-14b", 1, "0.17.0", 2.23),
    ("qwen3-14b", 1, "0.16.0", 5.64),
    ("phi-4", 1, "0.19.0", 1.52),
    ("qwen3-30b-a3b", 1, "0.19.0", 2.68),
    ("qwen3-30b-a3b", 1, "0.10.2", 5.58),
    ("mixtral-8x7b", 2, "0.19.0", 1.21),
    ("gpt-oss-20b", 2, "0.19.0", 2.87),
)


@pytest.mark.parametrize(("model", "ranks", "version", "gib"), PEAKS)
def test_the_peak_is_that_of_forward_pass_and_sampling(
    model: str, ranks: int, version: str, gib: float
) -> None:
    row = Row("", model, "h100", version, {"tensor_parallel_size": ranks, "max_model_len": 8192})
    peak = planned(row, with_version=True).assumptions[1]

    assert peak.num_bytes == pytest.approx(gib * GIB, rel=0.06)
    assert peak.low <= gib * GIB <= peak.high


@pytest.mark.parametrize(
    ("model", "gpu", "ranks", "version", "gib"),
    [
        ("gpt-oss-120b", "h100", 1, "0.14.1", 64.38),  # Triton
        ("gpt-oss-120b", "h100", 1, "0.10.1", 65.97),  # Marlin, the other not being there
        ("gpt-oss-20b", "h100", 2, "0.19.0", 7.01),
        ("gpt-oss-20b", "a100-80gb", 1, "0.11.0", 13.72),  # Marlin
        ("gpt-oss-120b", "a100-80gb", 1, "0.11.0", 65.97),
        ("gpt-oss-20b", "rtx3090", 1, "0.10.0", 12.88),  # not padded then
    ],
)
def test_experts_are_padded_as_the_kernels_of_the_gpu_want_it(
    model: str, gpu: str, ranks: int, version: str, gib: float
) -> None:
    row = Row("", model, gpu, version, {"tensor_parallel_size": ranks})
    plan = planned(row, with_version=True)

    assert plan.tightest.weights_bytes == pytest.approx(gib * GIB, rel=0.01)


@pytest.mark.parametrize(
    ("model", "gpu", "version", "share", "flags", "gib"),
    [
        ("llama-3.1-8b", "h100", "0.19.0", 0.95, {"max_model_len": 8192}, 58.11),
        ("qwen2.5-7b", "h100", "0.19.0", 0.95, {"max_model_len": 8192}, 58.53),
        ("qwen3-14b", "h100", "0.16.0", 0.95, {"max_model_len": 8192}, 41.94),
        ("llama-3.1-8b", "a100-80gb", "0.31.0", 0.92, {}, 56.21),
        ("qwen2.5-0.5b", "a100-40gb", "0.24.0", 0.92, {"enforce_eager": True}, 34.70),
    ],
)
def test_the_cache_of_public_starts(
    model: str, gpu: str, version: str, share: float, flags: dict[str, Any], gib: float
) -> None:
    row = Row("", model, gpu, version, {"gpu_memory_utilization": share, **flags})
    for with_version in (True, False):
        plan = planned(row, with_version=with_version)

        assert plan.kv_low <= gib * GIB <= plan.kv_high
        assert plan.tightest.available_bytes == pytest.approx(gib * GIB, rel=0.10)
    assert planned(row, with_version=True).tightest.available_bytes == pytest.approx(
        gib * GIB, rel=0.025
    )


def main() -> None:
    """Print the table."""
    real = measured()
    for with_version in (True, False):
        print(f"\n{'with' if with_version else 'without'} --vllm-version")
        print(
            "row   model          gpu        weights real   | KV low   plan    high    real   error"
        )
        for row in ROWS:
            plan, (weights, kv) = planned(row, with_version=with_version), real[row.id]
            stage = plan.tightest
            low, likely, high = (
                size / GIB for size in (plan.kv_low, stage.available_bytes, plan.kv_high)
            )
            line = f"{row.id:<5} {row.model:<14} {row.gpu:<10} {stage.weights_bytes / GIB:7.2f} "
            line += f"{weights or '-':<7}| {low:7.2f} {likely:7.2f} {high:7.2f} "
            if kv is not None:
                inside = "inside" if low <= kv <= high else "OUTSIDE"
                line += f"{kv:7.2f} {likely / kv - 1:+7.1%} {inside}"
            print(line + (" (card or share inferred)" if row.id in _INFERRED else ""))
        median = statistics.median(errors(with_version=with_version).values())
        print(f"median error of KV memory: {median:.1%}")


if __name__ == "__main__":
    main()
