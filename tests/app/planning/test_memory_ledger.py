"""The memory ledger: what is written is read again, damage is counted, plans learn from it."""

from __future__ import annotations

import dataclasses
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.launch.engines import VLLM
from app.launch.launch_specs import LaunchSpec, parse_serve_request
from app.paths import MEMORY_LEDGER
from app.planning.calibration import calibrate, shape_key
from app.planning.gpu_catalogue import PlannedGpu, find_gpu
from app.planning.memory_before import MemoryBefore
from app.planning.memory_estimates import Calibration
from app.planning.memory_ledger import _MOST_BYTES, Figures, LedgerEntry, MemoryLedger
from app.planning.plan import MemoryPlan, make_plan
from app.planning.plan_models import PlannedModel, find_planned_model
from app.planning.plan_request import PlanRequest
from app.planning.start_record import plan_request, record_start
from engine.machine.ram_shares import PROCESS_BYTES
from engine.machine.sizes import GIB
from logparse import parse_lines
from tests.default_model import default_model_folder

COUNTS = st.none() | st.integers(0, 1 << 50)
FIGURES = st.builds(
    Figures,
    weights_bytes=COUNTS,
    kv_bytes=COUNTS,
    other_bytes=COUNTS,
    kv_tokens=COUNTS,
    max_concurrency=st.none() | st.floats(0, 1e6),
)
ENTRIES = st.builds(
    LedgerEntry,
    at=st.floats(0, 1e10),
    server=st.text(),
    engine=st.sampled_from(["stoker", "vllm"]),
    engine_version=st.none() | st.text(),
    model=st.text(),
    shape=st.text(),
    device=st.text(),
    tensor_parallel_size=st.integers(1, 8),
    max_model_len=COUNTS,
    predicted=FIGURES,
    actual=FIGURES,
    estimated_other_bytes=COUNTS,
    process_bytes=COUNTS,
    calibrated_by=st.integers(0, 20),
    log_path=st.text(),
    model_path=st.none() | st.text(),
)
ENTRY = LedgerEntry(
    at=1.0,
    server="one",
    engine="vllm",
    engine_version="0.30.0",
    model="org/one",
    shape="",
    device="NVIDIA X",
    tensor_parallel_size=1,
    max_model_len=4096,
    predicted=Figures(weights_bytes=10, kv_bytes=50),
    actual=Figures(weights_bytes=10, kv_bytes=40, other_bytes=30),
    estimated_other_bytes=20,
)
# As vLLM 0.30 prints them: 24 GiB x 0.92 - 0.25 - 19.03 leaves 2.8 GiB for everything else.
START = """\
(EngineCore pid=8) INFO 10-03 12:00:01 [core.py:123] Initializing a V1 LLM engine (v0.30.0) with \
config: model='/m', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1
(EngineCore pid=8) INFO 10-03 12:00:02 [gpu_model_runner.py:1] Model loading took 0.25 GiB memory \
and 0.4 seconds
(EngineCore pid=8) INFO 10-03 12:00:04 [gpu_worker.py:1] Available KV cache memory: 19.03 GiB
(EngineCore pid=8) INFO 10-03 12:00:04 [kv_cache_utils.py:1] GPU KV cache size: 886,832 tokens
(APIServer pid=7) INFO:     Application startup complete.
"""


@pytest.fixture
def ledger(tmp_path: Path) -> MemoryLedger:
    return MemoryLedger(tmp_path / "state" / MEMORY_LEDGER)


@given(entries=st.lists(ENTRIES, max_size=4))
def test_what_is_added_is_read(
    entries: list[LedgerEntry], tmp_path_factory: pytest.TempPathFactory
) -> None:
    ledger = MemoryLedger(tmp_path_factory.mktemp("ledger") / MEMORY_LEDGER)
    for entry in entries:
        ledger.add(entry)

    assert ledger.read() == (tuple(entries), 0)


@given(cut=st.integers(1, 200), junk=st.binary(max_size=80))
def test_damaged_lines_are_counted_and_cost_no_other(
    cut: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("ledger") / MEMORY_LEDGER
    ledger = MemoryLedger(path)
    ledger.add(ENTRY)
    whole = path.read_bytes()
    path.write_bytes(whole + junk.replace(b"\n", b"") + b"\n" + whole[:-cut])
    ledger.add(ENTRY)

    entries, num_damaged = ledger.read()
    assert entries[0] == entries[-1] == ENTRY
    assert len(entries) + num_damaged in (3, 4)
    assert num_damaged >= 1 or cut == 1  # without its line feed a line is whole


@pytest.mark.parametrize(
    "change",
    [{"at": "soon"}, {"predicted": 3}, {"actual": {"kv_bytes": "x"}}, {"engine": None}],
)
def test_values_of_another_type_are_damage(change: dict[str, object], ledger: MemoryLedger) -> None:
    ledger.add(ENTRY)
    path = next(iter(ledger_files(ledger)))
    path.write_text(json.dumps({**dataclasses.asdict(ENTRY), **change}) + "\n")
    assert ledger.read() == ((), 1)
    path.write_text(json.dumps({**dataclasses.asdict(ENTRY), "of_later": 1}) + "\n")
    assert ledger.read() == ((ENTRY,), 0)


def ledger_files(ledger: MemoryLedger) -> list[Path]:
    return list(ledger._path.parent.glob("*.jsonl"))


def test_the_file_is_private_and_bounded(ledger: MemoryLedger) -> None:
    long = dataclasses.replace(ENTRY, server="x" * 40_000)
    for number in range(20):
        ledger.add(dataclasses.replace(long, at=float(number)))
    (path,) = ledger_files(ledger)
    entries, num_damaged = ledger.read()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size < _MOST_BYTES + 50_000
    assert num_damaged == 0
    assert [entry.at for entry in entries] == [float(n) for n in range(20)][-len(entries) :]


ADD_MANY = """
import dataclasses, pathlib, sys
from app.planning.memory_ledger import MemoryLedger
first = MemoryLedger(pathlib.Path(sys.argv[1])).read()[0][0]
for number in range(50):
    entry = dataclasses.replace(first, server=sys.argv[2] * 1000)
    MemoryLedger(pathlib.Path(sys.argv[1])).add(entry)
"""


def test_several_processes_lose_nothing(tmp_path: Path, repo_root: Path) -> None:
    path = tmp_path / MEMORY_LEDGER
    MemoryLedger(path).add(ENTRY)
    writers = [
        subprocess.Popen([sys.executable, "-c", ADD_MANY, str(path), name], cwd=repo_root)
        for name in "abc"
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]

    entries, num_damaged = MemoryLedger(path).read()
    assert (len(entries), num_damaged) == (151, 0)
    for name in "abc":
        assert sum(entry.server == name * 1000 for entry in entries) == 50


GPU = PlannedGpu("NVIDIA X", 24 * GIB, (8, 9))


def model() -> PlannedModel:
    return find_planned_model("smollm2-135m")


def planned(calibration: Calibration | None = None) -> MemoryPlan:
    request = PlanRequest(gpu=GPU, calibration=calibration)
    return make_plan(model().shape, model().weights, request)


def record(
    ledger: MemoryLedger,
    tmp_path: Path,
    log: str = START,
    *,
    folder: str | None = None,
    gpu: PlannedGpu | None = GPU,
    flags: tuple[str, ...] = (),
) -> str | None:
    """Note a start of the default model that logged `log`."""
    folder = folder or str(default_model_folder())
    request = parse_serve_request([folder, *flags], VLLM)
    return record_start(
        ledger,
        request,
        LaunchSpec(
            engine=VLLM,
            argv=("vllm", "serve", folder),
            model=request.model,
            host="127.0.0.1",
            port=8000,
            shutdown_timeout_s=1.0,
        ),
        MemoryBefore(gpu, 8 * GIB),
        parse_lines(log.splitlines()),
        server="one",
        log_path=tmp_path / "one.log",
        now=lambda: 5.0,
    )


def test_a_cache_of_a_given_number_of_blocks_is_no_evidence(
    ledger: MemoryLedger, tmp_path: Path
) -> None:
    flags = ("--num-gpu-blocks-override", "97")

    assert "says how large the cache is" in str(record(ledger, tmp_path, flags=flags))
    assert ledger.read() == ((), 0)


def test_a_start_is_recorded_with_plan_and_log(ledger: MemoryLedger, tmp_path: Path) -> None:
    assert record(ledger, tmp_path) is None
    (entry,), _ = ledger.read()
    plan = planned()

    assert (entry.server, entry.engine, entry.engine_version) == ("one", "vllm", "0.30.0")
    assert entry.device == "NVIDIA X"
    assert entry.predicted.kv_bytes == plan.tightest.available_bytes
    assert entry.predicted.kv_tokens == plan.capacity.num_tokens
    assert entry.actual.kv_tokens == 886_832
    assert entry.actual.other_bytes == plan.requested_bytes - round(0.25 * GIB) - round(19.03 * GIB)
    assert entry.estimated_other_bytes == sum(guess.num_bytes for guess in plan.assumptions)


def test_a_plan_after_two_starts_agrees_with_them(ledger: MemoryLedger, tmp_path: Path) -> None:
    record(ledger, tmp_path)
    record(ledger, tmp_path)
    entries, _ = ledger.read()
    calibration = calibrate(entries, model().shape, PlanRequest(gpu=GPU))
    assert calibration is not None
    plan = planned(calibration)
    measured = 19.03 * GIB

    assert calibration.num_starts == 2
    assert "2 earlier starts of this model on this device" in plan.assumptions[0].basis
    assert abs(planned().tightest.available_bytes - measured) > 0.2 * GIB
    assert abs(plan.tightest.available_bytes - measured) < 0.01 * GIB
    assert plan.kv_high - plan.kv_low < 0.01 * GIB
    # The second start was planned with what the first one taught.
    assert entries[1].calibrated_by == 1
    assert abs((entries[1].predicted.kv_bytes or 0) - measured) < 0.01 * GIB
    assert entries[1].estimated_other_bytes == entries[0].estimated_other_bytes


def test_of_vllm_on_a_cpu_capacity_follows_from_the_cache(
    ledger: MemoryLedger, tmp_path: Path, shared_folder: Path
) -> None:
    log = (shared_folder / "logs" / "cap-vllm030-cpu-ready-and-stop.log").read_text()

    assert record(ledger, tmp_path, log, gpu=None) is None
    (entry,), _ = ledger.read()
    assert (entry.device, entry.predicted.kv_bytes, entry.actual.kv_bytes) == ("cpu", None, 2 * GIB)
    assert entry.predicted.kv_tokens == entry.actual.kv_tokens == 93_184
    assert (entry.estimated_other_bytes, entry.process_bytes) == (None, None)


def test_only_starts_of_this_model_on_this_device_count() -> None:
    shape = model().shape
    entry = dataclasses.replace(ENTRY, shape=shape_key(shape))
    request = PlanRequest(gpu=GPU)

    assert calibrate([entry], shape, request) == Calibration(1, 1.5, 1.5, 1.5)
    for other in (
        dataclasses.replace(entry, device="another"),
        dataclasses.replace(entry, engine="stoker"),
        dataclasses.replace(entry, shape="another"),
        dataclasses.replace(entry, tensor_parallel_size=2),
        dataclasses.replace(entry, actual=Figures()),
    ):
        assert calibrate([other], shape, request) is None
    on_another = PlanRequest(gpu=find_gpu("h100"))
    assert calibrate([entry], shape, on_another) is None


@given(st.lists(st.floats(0.2, 4.0), min_size=1, max_size=40))
def test_calibration_stays_within_what_was_seen(ratios: list[float]) -> None:
    shape = model().shape
    entries = [
        dataclasses.replace(
            ENTRY,
            shape=shape_key(shape),
            estimated_other_bytes=1 << 40,
            actual=Figures(other_bytes=int((1 << 40) * ratio)),
        )
        for ratio in ratios
    ]
    found = calibrate(entries, shape, PlanRequest(gpu=GPU))
    assert found is not None
    plan = planned(found)

    assert found.num_starts == min(20, len(ratios))
    assert found.low <= found.likely <= found.high
    assert plan.kv_low <= plan.tightest.available_bytes <= plan.kv_high


def test_on_a_cpu_the_processes_are_counted() -> None:
    request = PlanRequest(gpu=None, engine="stoker", free_ram_bytes=3 * GIB)
    plan = make_plan(model().shape, model().weights, request)
    taken = dataclasses.replace(request, calibration=Calibration(1, GIB, GIB, GIB))
    calibrated = make_plan(model().shape, model().weights, taken)

    difference = plan.tightest.available_bytes - calibrated.tightest.available_bytes
    assert abs(difference - 0.92 * (GIB - PROCESS_BYTES)) < 2


def test_a_start_that_cannot_be_planned_is_said_and_harms_nothing(
    ledger: MemoryLedger, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": []}')

    assert "config.json" in str(record(ledger, tmp_path, folder=str(empty)))
    assert record(ledger, tmp_path, folder=str(odd))
    assert ledger.read() == ((), 0)


def test_flags_of_serve_are_those_of_the_plan() -> None:
    words = ["a/b", "--max-model-len", "4k", "--kv-cache-dtype", "fp8", "--block-size", "32"]
    request = plan_request(parse_serve_request(words), MemoryBefore(None, 7))

    assert (request.max_model_len, request.kv_cache_dtype, request.block_size) == (4000, "fp8", 32)
    assert (request.gpu, request.free_ram_bytes, request.engine) == (None, 7, "stoker")
