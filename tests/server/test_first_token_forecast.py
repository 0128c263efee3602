"""The expected time to the first token: learnt from steps, and kept to under any load.

A simulated engine with a clock of its own; its steps take what those of a real one were seen to.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from engine.frontend.iteration_stats import IterationStats
from engine.messages import SchedulerStats
from engine.server.admission import Admission, QueueLimits
from engine.server.first_token_forecast import FirstTokenForecast, StepTimes

BYTES_OF_A_TOKEN = 5


@dataclass
class Load:
    """Requests a second, prompt tokens and answer tokens of each; steps as the engine takes them:
    seconds for a step, for a running request in it, and for a prompt token.
    """

    rate: float
    prompt_tokens: int = 60
    output_tokens: int = 128
    num_places: int = 256
    step_tokens: int = 2048
    joint_tokens: int | None = None
    step_s: float = 0.008
    running_s: float = 0.0007
    token_s: float = 0.0008

    @property
    def knee(self) -> float:
        """Requests a second with as many running as leave half of a step to prompts."""
        return 1 / (2 * self.prompt_tokens * self.token_s)


@dataclass
class Simulation:
    """What came of a load with a target."""

    load: Load
    target_s: float
    now_s: float = 0.0
    ttfts_s: list[float] = field(default_factory=list)
    num_refused: int = 0

    def __post_init__(self) -> None:
        load = self.load
        self.dice = random.Random(0)
        self.waiting: deque[float] = deque()  # when they came
        self.running: list[int] = []  # tokens that are left of each answer
        self.has_held_back = False
        self.before_decodes = 0  # prompt tokens
        self.admission = Admission(lambda: self.now_s)
        self.admission.open(
            QueueLimits(
                num_places=load.num_places,
                ttft_target_s=self.target_s,
                step_tokens=load.step_tokens,
                joint_tokens=load.joint_tokens,
            ),
            self,  # type: ignore[arg-type]
        )

    input_processor: Any = field(default_factory=lambda: SimpleNamespace(max_model_len=2048))

    @property
    def num_unfinished(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def num_queued_tokens(self) -> int:
        return len(self.waiting) * self.load.prompt_tokens

    def run(self, seconds: float) -> None:
        next_s = 0.0
        while self.now_s < seconds:
            while next_s <= self.now_s:
                self._arrive(next_s)
                next_s += self.dice.expovariate(self.load.rate)
            if not self.num_unfinished:
                self.now_s = next_s
                continue
            end_s = self.now_s + self._begin_step()
            while next_s <= end_s:  # they see the admission as the last step left it
                self.now_s = next_s
                self._arrive(next_s)
                next_s += self.dice.expovariate(self.load.rate)
            self.now_s = end_s
            self._end_step()

    def _arrive(self, came_s: float) -> None:
        if self.admission.refusal(self.load.prompt_tokens * BYTES_OF_A_TOKEN) is None:
            self.waiting.append(came_s)
        else:
            self.num_refused += 1

    def _begin_step(self) -> float:
        load = self.load
        together = min(load.joint_tokens or load.step_tokens, load.step_tokens)
        free = min(load.num_places - len(self.running), len(self.waiting))
        self.starting = min(free, max(1, together // load.prompt_tokens))
        goes_first = (
            bool(load.joint_tokens)
            and self.has_held_back
            and self.before_decodes < load.step_tokens
        )
        self.num_decoded = 0 if goes_first and self.starting else len(self.running)
        self.has_held_back = self.starting < free
        num_tokens = load.prompt_tokens * self.starting
        self.before_decodes = 0 if self.num_decoded else self.before_decodes + num_tokens
        seconds = load.step_s + load.running_s * self.num_decoded + load.token_s * num_tokens
        return seconds * self.dice.uniform(0.8, 1.3)

    def _end_step(self) -> None:
        load, stats = self.load, IterationStats()
        if self.num_decoded:
            self.running = [left - 1 for left in self.running]
        stats.finished = [None] * self.running.count(0)  # type: ignore[list-item]
        self.running = [left for left in self.running if left]
        for _ in range(self.starting):
            came_s = self.waiting.popleft()
            self.ttfts_s.append(self.now_s - came_s)
            self.running.append(load.output_tokens - 1)
        stats.first_token_latencies_s = self.ttfts_s[len(self.ttfts_s) - self.starting :]
        stats.num_prompt_tokens = self.starting * load.prompt_tokens
        stats.num_generation_tokens = self.num_decoded + self.starting
        turns = min(len(self.waiting), load.num_places - len(self.running))
        scheduled = self.num_decoded + stats.num_prompt_tokens
        self.admission.record(
            SchedulerStats(
                len(self.running),
                len(self.waiting),
                num_scheduled_tokens=scheduled,
                num_taking_turns=turns,
            ),
            stats,
        )

    def percentile(self, share: float) -> float:
        return sorted(self.ttfts_s)[int(len(self.ttfts_s) * share)]


@pytest.mark.parametrize("times_the_knee", [1, 3, 10, 40])
@pytest.mark.parametrize(
    "load",
    [
        Load(0),
        Load(0, num_places=16),  # answers hold the places
        Load(0, prompt_tokens=400, output_tokens=16),
        Load(0, step_tokens=128, prompt_tokens=100),
        Load(0, joint_tokens=64),
        Load(0, joint_tokens=64, num_places=16),
        Load(0, joint_tokens=64, prompt_tokens=400, output_tokens=16),
        Load(0, step_s=0.002, running_s=0.00002, token_s=0.00002),  # as on a GPU
    ],
    ids=[
        *("default", "few places", "long prompts", "small steps", "turns", "turns, few places"),
        *("turns, long prompts", "fast"),
    ],
)
def test_accepted_requests_keep_to_the_target_under_any_load(
    load: Load, times_the_knee: int
) -> None:
    load.rate = load.knee * times_the_knee
    alone_s = load.step_s + load.token_s * load.prompt_tokens
    simulation = Simulation(load, target_s=3 * alone_s)
    simulation.run(60.0 if load.knee < 100 else 4.0)
    assert len(simulation.ttfts_s) > 50
    assert simulation.percentile(0.99) <= 2 * simulation.target_s
    if times_the_knee >= 10:
        assert simulation.num_refused > len(simulation.ttfts_s)


def test_below_the_knee_hardly_anybody_is_refused() -> None:
    load = Load(0)
    load.rate = load.knee * 0.2
    simulation = Simulation(load, target_s=0.5)
    simulation.run(120.0)
    assert simulation.num_refused < 0.02 * len(simulation.ttfts_s)


def test_a_line_through_steps() -> None:
    steps, now_s = StepTimes(), 0.0
    steps.note(now_s, 0, goes_on=True)
    for tokens in (0, 120, 0, 0, 60, 240, 0, 30) * 5:
        now_s += 0.01 + 0.001 * tokens
        steps.note(now_s, tokens, goes_on=True)
    assert steps.per_token_s == pytest.approx(0.001)
    assert steps.base_s == pytest.approx(0.01)
    steps.note(now_s + 0.01, 0, goes_on=False)  # idle: a pause is no step
    steps.note(now_s + 100.0, 0, goes_on=True)
    assert steps.base_s == 0.0
    assert steps.per_token_s == pytest.approx(0.001, rel=0.02)


def test_one_request_alone_tells_what_a_token_takes_at_most() -> None:
    steps = StepTimes()
    steps.note(7.0, 100, goes_on=False, longest_s=0.002)
    assert steps.per_token_s == pytest.approx(0.00002)


def test_what_the_prefix_cache_has_is_not_waited_for() -> None:
    stats = SchedulerStats(num_running_reqs=1, num_scheduled_tokens=100)
    plain, cached = FirstTokenForecast(2048), FirstTokenForecast(2048)
    plain.note_step(0, stats, IterationStats(num_prompt_tokens=100), 0.0)
    cached.note_step(0, stats, IterationStats(num_prompt_tokens=1000, num_cached_tokens=900), 0.0)
    assert cached.seconds(1000) == pytest.approx(plain.seconds(100))


def step(forecast: FirstTokenForecast, now_s: float, *, running: int, ended: int = 0) -> None:
    forecast.note_step(0, SchedulerStats(num_running_reqs=running), IterationStats(), now_s)
    forecast.note_ends(now_s, ended)


def test_a_pause_says_nothing_of_how_soon_a_place_is_free() -> None:
    forecast = FirstTokenForecast(2048)
    assert forecast.seconds_to_a_place(0.0, 1) == math.inf
    for begun_s in (0.0, 3600.0):
        for number in range(10):
            step(forecast, begun_s + number, running=4, ended=1)
        step(forecast, begun_s + 10.0, running=0)
    one_a_second = forecast.seconds_to_a_place(3610.0, 1)
    assert one_a_second == pytest.approx(5.0)
    assert forecast.seconds_to_a_place(9000.0, 1) == pytest.approx(one_a_second)


def test_many_that_end_at_once_are_not_the_rate() -> None:
    forecast = FirstTokenForecast(2048)
    for number in range(40):
        step(forecast, float(number), running=256, ended=256 if number % 4 == 3 else 0)
    at_64_a_second = (1 + 2 + 2) / 64
    assert forecast.seconds_to_a_place(39.0, 1) == pytest.approx(at_64_a_second, rel=0.1)


def test_a_request_that_comes_alone_is_let_in() -> None:
    admission = Admission()
    admission._limits = QueueLimits(ttft_target_s=0.001)
    assert admission.refusal(1 << 20) is None
    seat = admission.enter(1 << 20)
    refusal = admission.refusal(4)
    assert refusal is not None
    assert refusal.status == 429
    assert "--ttft-target-ms allows 1" in str(refusal)
    seat.leave()
    assert admission.refusal(4) is None


@pytest.mark.parametrize(
    ("prompt_tokens", "joint_tokens", "num_steps"),
    [
        (60, None, 1),
        (60, 64, 10),  # one after the other
        (20, 64, 10),  # three by three
        (400, 64, 2),  # one alone may be as large as it is
    ],
)
def test_prompts_that_take_turns_take_more_steps(
    prompt_tokens: int, joint_tokens: int | None, num_steps: int
) -> None:
    forecast, now_s = FirstTokenForecast(2048, joint_tokens), 0.0
    for tokens in (0, prompt_tokens) * 40:
        now_s += 0.01 + 0.001 * tokens
        stats = IterationStats(num_prompt_tokens=tokens)
        stats.first_token_latencies_s = [0.1] if tokens else []
        scheduler = SchedulerStats(num_running_reqs=1, num_scheduled_tokens=tokens)
        forecast.note_step(0, scheduler, stats, now_s)
    tokens = 600 if prompt_tokens < 100 else 800
    assert forecast.seconds(tokens) == pytest.approx(
        0.001 * tokens + 0.01 * (num_steps + 1), rel=0.02
    )
