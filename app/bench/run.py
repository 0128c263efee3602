"""`stoker bench`: rounds of load on one server or two that take turns, and what came of them.

Owns the order of things: lengths, warm-up, rounds, sweep, checks. What it returns is the JSON
document; printing belongs to the command.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.bench.checks import Expected, Finding, findings_of, notes_of, unequal_work
from app.bench.prompts import (
    DatasetPrompts,
    LengthRange,
    Prompt,
    PromptMaker,
    Prompts,
    WordCosts,
    measure_words,
    read_dataset,
)
from app.bench.report import ratio_documents, result_document
from app.bench.round import Amount, BenchTarget, Link, Load, Loader, Round
from app.bench.saved import require_same_work, saved_result, write_result
from app.bench.server import fingerprint, token_counter
from app.bench.trace import Trace, TracePrompts
from app.errors import ExitCode, StokerError, UsageError

# Shares of the saturated request rate; the knee lies between them for any server.
_SWEEP = (0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 1.15)
_SWEEP_STREAMS = 32
_WARMUP_STREAMS = 8
_KNEE_SHARE = 0.9  # of the requests within --slo
_KNEE_GROWTH = 2.0  # of the median end-to-end latency, without --slo

OnProgress = Callable[[str, int, int | None], None]
PromptSource = PromptMaker | DatasetPrompts | TracePrompts


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What was asked. No loads means a sweep of rates; `save` is written after each load."""

    targets: tuple[BenchTarget, ...]
    loads: tuple[Load, ...]
    amount: Amount
    repeats: int
    warmup: int
    seed: int
    prompt_tokens: LengthRange
    output_tokens: LengthRange
    dataset: Path | None = None
    prefix_share: float = 0.0
    turns: int = 1
    preset: str | None = None
    trace: Trace | None = None
    save: Path | None = None
    slo: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The document, and why it cannot be taken as it stands, if so."""

    document: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> ExitCode:
        """1 when nothing was answered, 3 with findings."""
        if not any(result["completed"] for result in self.document["results"]):
            return ExitCode.NO
        return ExitCode.NOT_ENOUGH_EVIDENCE if self.findings else ExitCode.OK


def run_bench(plan: BenchPlan, on_progress: OnProgress) -> BenchResult:
    return asyncio.run(_Bench(plan, on_progress).run())


def parse_loads(concurrency: str | None, rate: str | None) -> tuple[Load, ...]:
    """The loads of `--concurrency 1,8,32` or `--rate 2,4.5`; none for `--rate sweep`."""
    if concurrency and rate:
        raise UsageError(
            "--concurrency and --rate exclude each other",
            hint="--concurrency keeps N requests running; --rate sends R a second",
        )
    if rate == "sweep":
        return ()
    if rate:
        return tuple(Load("rate", value) for value in _numbers("--rate", rate))
    values = _numbers("--concurrency", concurrency or "1,8,32")
    if any(value != int(value) for value in values):
        raise _no_number("--concurrency", str(concurrency))
    return tuple(Load("concurrency", value) for value in values)


def _numbers(flag: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise _no_number(flag, text) from error
    if not all(0 < value < float("inf") for value in values):
        raise _no_number(flag, text)
    return values


def _no_number(flag: str, text: str) -> StokerError:
    kind = "requests per second, or sweep" if flag == "--rate" else "whole numbers from 1"
    return UsageError(
        f"{flag} {text}: give {kind}, with commas between several",
        hint=f"for example: {flag} {'2,4,8' if flag == '--rate' else '1,8,32'}",
    )


class _Bench:
    def __init__(self, plan: BenchPlan, on_progress: OnProgress) -> None:
        self._plan = plan
        self._on_progress = on_progress
        self._findings: list[Finding] = []
        self._notes: list[str] = []
        self._results: list[dict[str, Any]] = []
        self._ratios: list[dict[str, Any]] = []
        self._links = {target: Link(target) for target in plan.targets}
        self._contents = read_dataset(plan.dataset) if plan.dataset else None
        self._dataset_hash = _content_hash(self._contents)
        self._costs = WordCosts({}, {}, 0, False)
        self._is_sweep = not plan.loads
        self._loads: tuple[Load, ...] = plan.loads
        self._num_resumed = 0

    async def run(self) -> BenchResult:
        try:
            return await self._run()
        finally:
            for link in self._links.values():
                await link.client.aclose()

    async def _run(self) -> BenchResult:
        plan = self._plan
        environment = fingerprint(plan.targets)
        if self._contents is None:
            self._costs = self._measure()
        if plan.save and (saved := saved_result(plan.save)):
            self._go_on(plan.save, saved)
        done = {result["load"] for result in self._results}
        if self._loads and all(str(load) in done for load in self._loads):
            return self._result(environment, is_complete=True)
        self._note_busy(environment)
        self._source = self._make_source(environment)
        for target in plan.targets:
            await self._warm_up(target)
        self._loads = self._loads or await self._sweep_loads()
        for load in self._loads:
            if str(load) in done:
                continue
            await self._measure_load(load)
            self._write(environment, is_complete=False)
            if self._is_sweep and is_saturated(self._results, bool(plan.slo)):
                self._note_saturated(load)
                break
        self._note_refused()
        return self._result(environment, is_complete=True)

    def _go_on(self, path: Path, saved: dict[str, Any]) -> None:
        """Take over what was measured before; its loads are not measured again."""
        require_same_work(path, saved, self._workload())
        self._results, self._ratios = saved["results"], saved["ratios"]
        self._findings = [Finding(item["id"], item["text"]) for item in saved["findings"]]
        self._notes = list(saved["notes"])
        self._num_resumed = saved.get("resumed", 0) + 1
        self._loads = tuple(Load(kind, value) for kind, value in saved["loads"])
        if saved.get("is_complete"):
            known = {result["load"] for result in self._results}
            self._loads = tuple(load for load in self._loads if str(load) in known)

    def _result(self, environment: dict[str, Any], *, is_complete: bool) -> BenchResult:
        self._write(environment, is_complete=is_complete)
        return BenchResult(self._document(environment), tuple(self._findings))

    def _document(self, environment: dict[str, Any]) -> dict[str, Any]:
        knees = find_knees(self._results, bool(self._plan.slo)) if self._is_sweep else []
        return {
            "fingerprint": environment,
            "workload": self._workload(),
            "results": self._results,
            "knees": knees,
            "ratios": self._ratios,
            "findings": [{"id": item.id, "text": item.text} for item in self._findings],
            "notes": list(dict.fromkeys(self._notes)),
        }

    def _write(self, environment: dict[str, Any], *, is_complete: bool) -> None:
        if self._plan.save:
            progress = {
                "loads": [(load.kind, load.value) for load in self._loads],
                "resumed": self._num_resumed,
                "is_complete": is_complete,
            }
            write_result(self._plan.save, {**self._document(environment), **progress})

    def _note_saturated(self, last: Load) -> None:
        if left := self._loads[self._loads.index(last) + 1 :]:
            text = (
                f"the sweep ended at {last}: more requests a second were not answered, only later"
            )
            self._notes.append(f"{text} ({', '.join(map(str, left))} left out)")

    def _note_busy(self, environment: dict[str, Any]) -> None:
        load = environment["load_average"]
        if load and load[0] > environment["cores"]:
            text = f"this machine was busy before the start: load {load[0]:.1f} on "
            self._notes.append(f"{text}{environment['cores']} cores")

    def _note_refused(self) -> None:
        for link in self._links.values():
            if "ignore_eos" in link.refused:
                text = "refuses ignore_eos: answers end where the model ends them"
                self._notes.append(f"{link.target.url} {text}")
            if "stream_options" in link.refused:
                text = "refuses stream_options: tokens are counted by the chunks that came"
                self._notes.append(f"{link.target.url} {text}")

    def _measure(self) -> WordCosts:
        self._on_progress("token counts of words", 0, None)
        with token_counter(self._plan.targets[0]) as count:
            costs = measure_words(count)
        if not costs.is_measured:
            self._notes.append(
                "the server has no /tokenize: prompts are that many words, not tokens"
            )
        return costs

    def _make_source(self, environment: dict[str, Any]) -> PromptSource:
        plan = self._plan
        # A run that goes on must not send again what the server may have in its cache.
        seed = f"{plan.seed}" + (f" {self._num_resumed}" if self._num_resumed else "")
        lengths, outputs = plan.prompt_tokens, plan.output_tokens
        if self._contents is not None:
            return DatasetPrompts(self._contents, outputs, plan.prefix_share, seed)
        if plan.trace is not None:
            return self._replayed(plan.trace, environment, seed)
        self._require_room(_shortest_context(environment))
        streams = [int(load.value) for load in plan.loads if load.kind == "concurrency"]
        sessions = max(streams, default=_WARMUP_STREAMS)
        return PromptMaker(
            self._costs, lengths, outputs, plan.prefix_share, seed, plan.turns, sessions
        )

    def _require_room(self, limit: int | None) -> None:
        """Raise UsageError for lengths that the servers refuse."""
        lengths, outputs = self._plan.prompt_tokens, self._plan.output_tokens
        if limit is not None and lengths.high + outputs.high > limit:
            raise UsageError(
                f"prompts of {lengths} tokens with answers of {outputs} need more than the "
                f"{limit:,} tokens of the server",
                hint="ask for less with --prompt-tokens and --output-tokens, or serve with a "
                "larger --max-model-len",
            )

    def _replayed(self, trace: Trace, environment: dict[str, Any], seed: str) -> TracePrompts:
        limit = _shortest_context(environment)
        prompts = TracePrompts(trace, self._costs, limit, seed)
        if prompts.num_too_long:
            text = f"{prompts.num_too_long} of {len(trace.requests)} requests of {trace.name} need "
            self._notes.append(f"{text}more than {limit:,} tokens and were left out")
        return prompts

    async def _warm_up(self, target: BenchTarget) -> None:
        if self._plan.warmup:
            load = Load("concurrency", min(self._plan.warmup, _WARMUP_STREAMS))
            prompts = self._source.take(self._plan.warmup)
            await self._round(f"warm-up of {target.url}", target, load, prompts, "warm-up")

    async def _sweep_loads(self) -> tuple[Load, ...]:
        """Rates around what the first server answers when it never runs out of requests."""
        target, load = self._plan.targets[0], Load("concurrency", _SWEEP_STREAMS)
        prompts = self._source.take(3 * _SWEEP_STREAMS)
        round_ = await self._round("saturation", target, load, prompts, "saturation")
        completed = sum(outcome.error is None for outcome in round_.outcomes)
        if not completed:
            kinds = {outcome.error for outcome in round_.outcomes}
            raise StokerError(f"no request was answered ({', '.join(map(str, kinds))})")
        rate = completed / round_.duration_s
        return tuple(Load("rate", float(f"{rate * share:.3g}")) for share in _SWEEP)

    async def _measure_load(self, load: Load) -> None:
        """All rounds of one load; with two servers they take turns, in turn the first."""
        rounds: list[list[Round]] = [[] for _ in self._plan.targets]
        for number in range(self._plan.repeats):
            num = self._plan.amount.num_for(load)
            prompts = None if num is None else self._source.take(num)
            order = list(enumerate(self._plan.targets))
            for index, target in order if number % 2 == 0 else reversed(order):
                title = f"{load}, round {number + 1} of {self._plan.repeats}"
                if len(order) > 1:
                    title += f", {target.url}"
                seed = f"{self._plan.seed} {load} {number}"
                limit = self._plan.amount.duration_s
                round_ = await self._round(title, target, load, prompts, seed, limit)
                rounds[index].append(round_)
        self._conclude(load, rounds)

    async def _round(
        self,
        title: str,
        target: BenchTarget,
        load: Load,
        prompts: Prompts | None,
        seed: str,
        duration_s: float | None = None,
    ) -> Round:
        total, done = None if prompts is None else len(prompts), 0

        def count() -> None:
            nonlocal done
            done += 1
            self._on_progress(title, done, total)

        self._on_progress(title, 0, total)
        stream = self._endless() if prompts is None else iter(prompts)
        return await Loader(self._links[target], count).run(load, stream, duration_s, seed)

    def _endless(self) -> Iterator[Prompt]:
        while True:
            yield from self._source.take(1)

    def _conclude(self, load: Load, rounds: list[list[Round]]) -> None:
        expected = Expected(self._expected_share(), self._source.num_repeated)
        results = [result_document(part, self._plan.slo) for part in rounds]
        self._results += results
        for part in rounds:
            self._findings += findings_of(part, expected)
            self._notes += notes_of(part)
        if len(rounds) > 1:
            self._findings += unequal_work(rounds[0], rounds[1])
            ratios = ratio_documents(results[0], results[1])
            self._ratios.append({"load": str(load), **ratios})

    def _expected_share(self) -> float:
        trace = self._plan.trace
        lengths = [one.input_tokens for one in trace.requests] if trace else ()
        shortest = min(lengths, default=self._plan.prompt_tokens.low)
        return min(1.0, self._source.repeated_share + self._costs.template_tokens / shortest)

    def _workload(self) -> dict[str, Any]:
        plan, trace = self._plan, self._plan.trace
        is_made_up = plan.dataset is None and trace is None
        return {
            "endpoint": plan.targets[0].path,
            "preset": plan.preset,
            "prompt_tokens": str(plan.prompt_tokens) if is_made_up else None,
            "are_lengths_measured": self._costs.is_measured,
            "output_tokens": str(plan.output_tokens) if trace is None else None,
            "prefix_share": plan.prefix_share,
            "turns": plan.turns,
            "dataset": plan.dataset.name if plan.dataset else None,
            "dataset_sha256": self._dataset_hash,
            "trace": trace.name if trace else None,
            "trace_sha256": trace.sha256 if trace else None,
            "num_prompts": plan.amount.num_prompts,
            "duration_s": plan.amount.duration_s,
            "seed": plan.seed,
            "repeats": plan.repeats,
            "warmup": plan.warmup,
            "slo_ms": plan.slo,
            "servers": [target.url for target in plan.targets],
            "models": [target.model for target in plan.targets],
            "asked": [str(load) for load in plan.loads] or "sweep",
        }


def _shortest_context(environment: dict[str, Any]) -> int | None:
    """The least --max-model-len of the servers that say theirs."""
    known = [server["max_model_len"] for server in environment["servers"]]
    return min((one for one in known if isinstance(one, int) and one > 0), default=None)


def is_saturated(results: list[dict[str, Any]], has_slo: bool) -> bool:
    """Whether more requests a second bring no server more answers, only later ones.

    The last two rates must lie behind the knee, and the last one's throughput must not be above
    the interval of the one before.
    """
    return all(_is_flat(results, server, has_slo) for server in _servers(results))


def _is_flat(results: list[dict[str, Any]], server: str, has_slo: bool) -> bool:
    points = [result for result in results if result["server"] == server]
    if len(points) < 3 or any(_is_before_knee(one, points[0], has_slo) for one in points[-2:]):
        return False
    interval = points[-2]["intervals"]["request_throughput"] or {}
    limit = interval.get("high") or points[-2]["request_throughput"]
    return bool(points[-1]["request_throughput"] <= limit)


def _servers(results: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(result["server"] for result in results))


def find_knees(results: list[dict[str, Any]], has_slo: bool) -> list[dict[str, Any]]:
    """For each server of a sweep, the highest rate before latency grows out of hand."""
    knees = []
    for server in _servers(results):
        points = sorted(
            (result for result in results if result["server"] == server),
            key=lambda result: float(result["request_rate"]),
        )
        good = []
        for point in points:
            if not _is_before_knee(point, points[0], has_slo):
                break
            good.append(point)
        rate = good[-1]["request_rate"] if good else None
        # With every rate good, the knee lies somewhere above.
        knees.append(
            {"server": server, "request_rate": rate, "is_beyond": len(good) == len(points)}
        )
    return knees


def _is_before_knee(point: dict[str, Any], first: dict[str, Any], has_slo: bool) -> bool:
    if point["failed"] or point["refused"] or not point["completed"]:
        return False
    if has_slo:
        return bool(point["request_goodput"] >= _KNEE_SHARE * point["request_throughput"])
    unloaded_ms = first["median_e2el_ms"]  # None where nothing was answered at the first rate
    return bool(unloaded_ms is None or point["median_e2el_ms"] <= _KNEE_GROWTH * unloaded_ms)


def _content_hash(contents: list[Any] | None) -> str | None:
    if contents is None:
        return None
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()
