from __future__ import annotations

import asyncio
import dataclasses
import itertools

import pytest

from engine.errors import EngineDeadError, GenerationError
from engine.frontend.iteration_stats import ParentRequest
from engine.frontend.output_processor import OutputProcessor, ProcessedStep
from engine.frontend.outputs import Outlet, OutputBox, RequestDelta
from engine.frontend.tokenizer import Tokenizer
from engine.messages import (
    EngineCoreEvent,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EventType,
    FinishReason,
    PrefillStats,
)
from engine.sampling_params import SamplingParams
from tests.tiny_model import EOS


class _Bench:
    """One processor, requests with a prompt of 4 tokens, arrival at wall time 100."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.processor = OutputProcessor(tokenizer)

    def add(
        self,
        name: str = "r",
        parent: ParentRequest | None = None,
        outlet: Outlet | None = None,
        **params: object,
    ) -> OutputBox:
        settings = SamplingParams(**{"max_tokens": 50, **params})  # type: ignore[arg-type]
        request = EngineCoreRequest(name, [10, 11, 12, 13], settings, 100.0, (EOS,))
        return self.processor.add_request(request, parent, outlet)

    def step(
        self,
        text: str,
        *,
        name: str = "r",
        engine_time: float = 0.0,
        now: float = 100.0,
        **more: object,
    ) -> ProcessedStep:
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        output = EngineCoreOutput(name, token_ids, **more)  # type: ignore[arg-type]
        outputs = EngineCoreOutputs(outputs=[output], timestamp=engine_time)
        return self.processor.process(outputs, now)


@pytest.fixture
def bench(byte_tokenizer: Tokenizer) -> _Bench:
    return _Bench(byte_tokenizer)


async def test_a_request_that_fails_raises_where_it_is_awaited(bench: _Bench) -> None:
    box = bench.add()
    step = bench.step("Hel", finish_reason=FinishReason.ERROR)
    assert (step.stats.num_failed, step.stats.finished, step.stopped_ids) == (1, [], [])
    assert bench.processor.num_unfinished == 0
    with pytest.raises(GenerationError, match="could not complete"):
        await box.get()


async def test_outputs_merge_while_nobody_reads(bench: _Bench) -> None:
    box = bench.add()
    bench.step("Hel")
    bench.step("lo")
    bench.step("!", finish_reason=FinishReason.LENGTH)
    output = await box.get()
    assert (output.text, len(output.token_ids)) == ("Hello!", 6)
    assert output.finish_reason is FinishReason.LENGTH
    assert bench.processor.num_unfinished == 0


async def test_stop_string_ends_the_request_and_asks_for_an_abort(bench: _Bench) -> None:
    box = bench.add(stop=("ND",))
    assert bench.step("E").stopped_ids == []
    assert bench.step("ND and more").stopped_ids == ["r"]
    output = await box.get()
    assert (output.text, output.stop_reason) == ("E", "ND")
    assert output.finish_reason is FinishReason.STOP
    # What EngineCore had already made is dropped.
    assert bench.step("late").stats.num_generation_tokens == 0


async def test_stop_string_in_the_last_step_needs_no_abort(bench: _Bench) -> None:
    box = bench.add(stop=("b",))
    step = bench.step("ab", finish_reason=FinishReason.LENGTH)
    assert step.stopped_ids == []
    assert (await box.get()).finish_reason is FinishReason.STOP


async def test_stop_strings_wait_for_min_tokens(bench: _Bench) -> None:
    box = bench.add(stop=("a",), min_tokens=2)
    bench.step("a")
    bench.step("a")
    assert (await box.get()).text == "aa"
    assert bench.step("ba").stopped_ids == ["r"]
    assert (await box.get()).text == "b"


@pytest.mark.parametrize("stop", ["a", "ND", "ND!", "none"])
@pytest.mark.parametrize("cuts", list(itertools.product([False, True], repeat=4)), ids=str)
async def test_the_steps_that_tokens_come_in_change_nothing(
    bench: _Bench, stop: str, cuts: tuple[bool, ...]
) -> None:
    """The last of five tokens ends the request in EngineCore, which may have made it too much."""
    text = "aND!."
    places = [0, *(at for at, is_cut in enumerate(cuts, start=1) if is_cut), len(text)]
    box, counted = bench.add(stop=(stop,)), 0
    for start, end in itertools.pairwise(places):
        reason = FinishReason.STOP if end == len(text) else None
        counted += bench.step(text[start:end], finish_reason=reason).stats.num_generation_tokens
    output = await box.get()
    is_found = stop in text
    num_tokens = text.index(stop) + len(stop) if is_found else len(text)
    assert output.text == (text.partition(stop)[0] if is_found else text[:-1])
    assert (len(output.token_ids), counted) == (num_tokens, num_tokens)
    assert output.stop_reason == (stop if is_found else None)


@pytest.mark.parametrize(("include", "text"), [(False, "hi"), (True, "hi.")])
async def test_stop_token_is_shown_only_when_asked_for(
    bench: _Bench, include: bool, text: str
) -> None:
    box = bench.add(include_stop_str_in_output=include)
    bench.step("hi")
    bench.step(".", finish_reason=FinishReason.STOP, stop_reason=33)
    output = await box.get()
    assert (output.text, output.stop_reason, len(output.token_ids)) == (text, 33, 3)


async def test_failure_reaches_everybody(bench: _Bench) -> None:
    boxes = [bench.add("a"), bench.add("b")]
    bench.step("x", name="a")
    bench.processor.fail_all(EngineDeadError("gone"))
    for box in boxes:
        with pytest.raises(EngineDeadError, match="gone"):
            await box.get()


async def test_intervals_follow_their_definitions(bench: _Bench) -> None:
    bench.add()
    first = bench.step(
        "a",
        engine_time=5.0,
        now=103.0,
        events=[
            EngineCoreEvent(EventType.QUEUED, 1.0),
            EngineCoreEvent(EventType.SCHEDULED, 3.0),
        ],
        prefill_stats=PrefillStats(4, 3),
    ).stats
    assert first.first_token_latencies_s == [3.0]
    assert first.inter_token_latencies_s == []
    assert (first.num_prompt_tokens, first.num_cached_tokens) == (4, 3)
    assert first.num_computed_prompt_tokens == 1
    resumed = [
        EngineCoreEvent(EventType.PREEMPTED, 5.5),
        EngineCoreEvent(EventType.SCHEDULED, 6.0),
    ]
    second = bench.step("b", engine_time=6.5, events=resumed, num_preemptions=1).stats
    assert second.inter_token_latencies_s == [1.5]
    last = bench.step(
        "c", engine_time=9.0, now=108.0, finish_reason=FinishReason.LENGTH, num_preemptions=1
    ).stats
    (finished,) = last.finished
    assert finished.queue_time_s == 2.0
    assert finished.prefill_time_s == 2.0
    assert finished.decode_time_s == 4.0
    assert finished.inference_time_s == 6.0
    assert finished.e2e_latency_s == 8.0
    assert finished.time_per_output_token_s == 2.0
    assert finished.num_preemptions == 1
    assert (finished.num_prompt_tokens, finished.num_generation_tokens) == (4, 3)
    assert (last.n_params, last.max_generation_tokens) == ([1], [3])


async def test_samples_of_one_prompt_report_once(bench: _Bench) -> None:
    parent = ParentRequest(2)
    bench.add("a", parent)
    bench.add("b", parent)
    one = bench.step("xx", name="a", finish_reason=FinishReason.LENGTH).stats
    assert (len(one.finished), one.n_params) == (1, [])
    two = bench.step("x", name="b", finish_reason=FinishReason.LENGTH).stats
    assert (two.n_params, two.max_generation_tokens) == ([2], [2])


async def test_aborts_count_but_give_no_latencies(bench: _Bench) -> None:
    bench.add("a")
    bench.add("b")
    bench.step("x", name="a")
    by_core = bench.step("y", name="a", finish_reason=FinishReason.ABORT).stats
    assert (by_core.num_aborted, by_core.finished) == (1, [])
    by_client = bench.processor.abort(["b", "unknown"], EngineDeadError("left"))
    assert by_client.num_aborted == 1


async def test_box_keeps_order_of_text() -> None:
    box = OutputBox()
    box.put(RequestDelta("r", "a", [1]))
    assert (await box.get()).text == "a"
    box.put(RequestDelta("r", "b", [2]))
    box.put(RequestDelta("r", "c", [3]))
    assert (await box.get()).text == "bc"


class _Taken:
    """An outlet that notes texts while it `is_open`, and with how many tokens they came."""

    def __init__(self) -> None:
        self.is_open = True
        self.texts: list[str] = []
        self.short: list[tuple[str, int]] = []
        self.outlet = Outlet(lambda _: self.is_open, lambda output: self.texts.append(output.text))

    def take_text(self, text: str, num_tokens: int) -> bool:
        if self.is_open:
            self.short.append((text, num_tokens))
        return self.is_open


async def _awaited(box: OutputBox) -> asyncio.Task[RequestDelta]:
    """Somebody who waits for the box already."""
    task = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    return task


async def test_outputs_leave_by_the_outlet_while_their_consumer_sleeps() -> None:
    taken = _Taken()
    box = OutputBox(taken.outlet)
    box.put(RequestDelta("r", "a", [1]))  # nobody waits yet
    assert (await box.get()).text == "a"
    waiting = await _awaited(box)
    for text in "bcd":
        box.put(RequestDelta("r", text, [2]))
        await asyncio.sleep(0)
    assert (taken.texts, waiting.done()) == (["b", "c", "d"], False)
    taken.is_open = False
    box.put(RequestDelta("r", "e", [3]))
    taken.is_open = True
    box.put(RequestDelta("r", "f", [4]))  # what came before it is not out yet
    assert (await waiting).text == "ef"
    waiting = await _awaited(box)
    box.put(RequestDelta("r", "g", [5], finish_reason=FinishReason.STOP))
    assert (await waiting).text == "g"
    assert taken.texts == ["b", "c", "d"]


async def test_an_outlet_that_fails_is_the_failure_of_its_request_alone(bench: _Bench) -> None:
    taken = _Taken()
    boxes = [bench.add("sound", outlet=taken.outlet), bench.add("bad", outlet=_failing())]
    sound, bad = [await _awaited(box) for box in boxes]
    bench.step("x", name="bad")
    bench.step("y", name="sound")
    with pytest.raises(ZeroDivisionError):
        await bad
    assert taken.texts == ["y"]
    sound.cancel()


def _failing() -> Outlet:
    def take(_output: RequestDelta) -> None:
        raise ZeroDivisionError

    return Outlet(lambda _: True, take)


async def test_what_stands_behind_a_change_gets_changed_outputs() -> None:
    taken = _Taken()

    def upper(output: RequestDelta) -> RequestDelta:
        return dataclasses.replace(output, text=output.text.upper())

    box = OutputBox(taken.outlet.behind(upper))
    waiting = await _awaited(box)
    box.put(RequestDelta("r", "a", [1]))
    assert taken.texts == ["A"]
    waiting.cancel()


async def test_more_text_alone_takes_the_short_way(bench: _Bench) -> None:
    taken = _Taken()
    outlet = dataclasses.replace(taken.outlet, take_text=taken.take_text)
    box = bench.add(outlet=outlet)
    waiting = await _awaited(box)
    bench.step("a")  # the first is more than text
    assert (taken.texts, taken.short) == (["a"], [])
    for text in ("b", "cd"):
        bench.step(text)
    assert taken.short == [("b", 1), ("cd", 2)]
    taken.is_open = False
    bench.step("e")
    taken.is_open = True
    stats = bench.step("f").stats  # what came before it is not out yet
    assert stats.num_generation_tokens == 1
    output = await waiting
    assert (output.text, len(output.token_ids)) == ("ef", 2)
    waiting = await _awaited(box)
    bench.step("g", finish_reason=FinishReason.LENGTH)
    assert (await waiting).text == "g"
    assert (taken.texts, taken.short) == (["a"], [("b", 1), ("cd", 2)])


async def test_with_stop_strings_no_text_takes_the_short_way(bench: _Bench) -> None:
    taken = _Taken()
    box = bench.add(
        outlet=dataclasses.replace(taken.outlet, take_text=taken.take_text), stop=("xy",)
    )
    waiting = await _awaited(box)
    for text in "abx":
        bench.step(text)
    assert (taken.texts, taken.short) == (["a", "b", ""], [])
    waiting.cancel()
