"""OutputProcessor: EngineCore's tokens become text, per request, and reach whoever waits for it.

Owns the state of every request in flight, stop strings included. Does not talk to EngineCore: it
returns the ids that must be aborted there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import EngineAsleepError, EngineError, GenerationError
from engine.frontend.detokenizer import IncrementalDetokenizer
from engine.frontend.iteration_stats import (
    FinishedRequestStats,
    IterationStats,
    ParentRequest,
    RequestTimes,
)
from engine.frontend.logprobs import LogprobsList
from engine.frontend.outputs import Outlet, OutputBox, RequestDelta
from engine.frontend.stop_strings import StopStringMatcher
from engine.frontend.tokenizer import Tokenizer
from engine.frontend.traffic_recorder import TrafficRecorder
from engine.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason

_FAILED = "The engine could not complete this request; the server's log says why."


@dataclass(slots=True)
class _RequestState:
    request: EngineCoreRequest
    parent: ParentRequest
    box: OutputBox
    detokenizer: IncrementalDetokenizer
    stops: StopStringMatcher
    times: RequestTimes
    has_stops: bool
    num_generation_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @property
    def has_begun(self) -> bool:
        """Whether it has an output."""
        return self.num_generation_tokens > 0


@dataclass(frozen=True, slots=True)
class ProcessedStep:
    """What the caller still has to do after one step."""

    stopped_ids: list[str]
    stats: IterationStats


class OutputProcessor:
    """All requests in flight, by id; the recorder is told of each that comes and ends."""

    def __init__(self, tokenizer: Tokenizer, recorder: TrafficRecorder | None = None) -> None:
        self._tokenizer = tokenizer
        self._recorder = recorder
        self._states: dict[str, _RequestState] = {}

    @property
    def num_unfinished(self) -> int:
        return len(self._states)

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the requests that have no output yet."""
        states = self._states.values()
        return sum(len(state.request.prompt_token_ids) for state in states if not state.has_begun)

    @property
    def unfinished_ids(self) -> list[str]:
        """Ids of the requests that go on, oldest first."""
        return list(self._states)

    def add_request(
        self,
        request: EngineCoreRequest,
        parent: ParentRequest | None = None,
        outlet: Outlet | None = None,
    ) -> OutputBox:
        """Start following a request; its outputs will appear in the returned box, or leave by the
        outlet.
        """
        assert request.request_id not in self._states, f"{request.request_id} is in flight"
        params = request.sampling_params
        if self._recorder is not None:
            self._recorder.note_arrival(request)
        box = OutputBox(outlet)
        self._states[request.request_id] = _RequestState(
            request=request,
            parent=parent or ParentRequest(1),
            box=box,
            detokenizer=IncrementalDetokenizer(
                self._tokenizer,
                request.prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
            ),
            stops=StopStringMatcher(params.stop, include_stop=params.include_stop_str_in_output),
            times=RequestTimes(request.arrival_time),
            has_stops=bool(params.stop),
        )
        return box

    def process(self, outputs: EngineCoreOutputs, now: float) -> ProcessedStep:
        """Deliver one step. `now` is wall clock. Outputs of requests that are gone are dropped."""
        step = ProcessedStep([], IterationStats())
        for output in outputs.outputs:
            state = self._states.get(output.request_id)
            if state is None:
                continue
            if _is_plain(state, output):
                _deliver_plain(state, output, outputs.timestamp, step.stats)
                continue
            _note_progress(state, output, outputs.timestamp, now, step.stats)
            if output.finish_reason is FinishReason.ERROR:
                self._forget(output.request_id)
                step.stats.num_failed += 1
                state.box.fail(GenerationError(output.error or _FAILED))
                continue
            if output.finish_reason is FinishReason.ABORT and output.error is not None:
                self._forget(output.request_id)
                step.stats.num_aborted += 1
                state.box.fail(EngineAsleepError(output.error))
                continue
            result = _to_delta(state, output)
            num_dropped = len(output.new_token_ids) - len(result.token_ids)
            if num_dropped:  # of several tokens one ended the text
                state.num_generation_tokens -= num_dropped
                step.stats.num_generation_tokens -= num_dropped
                if output.logprobs is not None:
                    del output.logprobs[len(result.token_ids) :]
            if output.logprobs is not None:
                result.logprobs = LogprobsList.of_tokens(self._tokenizer, output.logprobs)
            if output.prompt_logprobs is not None:
                first = state.request.prompt_token_ids[0]
                result.prompt_logprobs = LogprobsList.of_prompt(
                    self._tokenizer, first, output.prompt_logprobs
                )
            if result.is_finished:
                self._forget(output.request_id)
                _note_finish(state, result, now, step.stats)
                if output.finish_reason is None:
                    step.stopped_ids.append(output.request_id)
            state.box.put(result)
        return step

    def abort(self, request_ids: Sequence[str], error: EngineError) -> IterationStats:
        """Stop following requests; whoever still waits for one of them gets `error`."""
        stats = IterationStats()
        for request_id in request_ids:
            state = self._forget(request_id)
            if state is not None:
                stats.num_aborted += 1
                state.box.fail(error)
        return stats

    def fail_all(self, error: EngineError) -> None:
        """EngineCore is gone: everybody who waits gets `error` now."""
        for request_id in self.unfinished_ids:
            state = self._forget(request_id)
            if state is not None:
                state.box.fail(error)

    def _forget(self, request_id: str) -> _RequestState | None:
        """Stop following a request; None for one that is not known."""
        state = self._states.pop(request_id, None)
        if state is not None and self._recorder is not None:
            self._recorder.note_end(state.request, state.num_generation_tokens)
        return state


def _is_plain(state: _RequestState, output: EngineCoreOutput) -> bool:
    """Whether it is more tokens and nothing else, as most outputs are, which end no request."""
    return (
        output.finish_reason is None
        and output.logprobs is None
        and output.events is None
        and not state.has_stops
        and state.num_generation_tokens > 0
        and len(output.new_token_ids) > 0
    )


def _deliver_plain(
    state: _RequestState, output: EngineCoreOutput, timestamp: float, stats: IterationStats
) -> None:
    """What `_note_progress` and `_to_delta` come to for a plain output, in a fraction of the time:
    the model has emptied the caches of all that this looks at.
    """
    token_ids = output.new_token_ids
    state.num_generation_tokens += len(token_ids)
    stats.num_generation_tokens += len(token_ids)
    state.times.on_later_tokens(timestamp, stats)
    text = state.detokenizer.feed(token_ids)
    if not state.box.put_text(text, len(token_ids)):
        state.box.put(RequestDelta(output.request_id, text, token_ids, state.num_cached_tokens))


def _to_delta(state: _RequestState, output: EngineCoreOutput) -> RequestDelta:
    result = RequestDelta(
        request_id=output.request_id,
        token_ids=output.new_token_ids,
        num_cached_tokens=state.num_cached_tokens,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        pooling_output=output.pooling_output,
    )
    visible = _visible_tokens(state, output)
    if len(output.new_token_ids) > 1 and state.has_stops:
        return _stopped_within(state, output, visible, result)
    text = state.detokenizer.feed(visible)
    min_tokens = state.request.sampling_params.min_tokens
    if not state.has_stops or state.num_generation_tokens <= min_tokens:
        # No stop string can end the request, or none can yet.
        result.text = text
        return result
    check = state.stops.feed(text)
    result.text = check.text
    if check.stop is not None:
        result.finish_reason = FinishReason.STOP
        result.stop_reason = check.stop
    elif result.is_finished:
        result.text += state.stops.flush()
    return result


def _stopped_within(
    state: _RequestState, output: EngineCoreOutput, visible: list[int], result: RequestDelta
) -> RequestDelta:
    """Several tokens of one step, looked at as if they had come one after the other."""
    first = state.num_generation_tokens - len(output.new_token_ids)
    for count, token in enumerate(visible, start=1):
        text = state.detokenizer.feed([token])
        if first + count <= state.request.sampling_params.min_tokens:
            result.text += text
            continue
        check = state.stops.feed(text)
        result.text += check.text
        if check.stop is not None:
            result.token_ids = output.new_token_ids[:count]
            result.finish_reason, result.stop_reason = FinishReason.STOP, check.stop
            return result
    if result.is_finished:
        result.text += state.stops.flush()
    return result


def _visible_tokens(state: _RequestState, output: EngineCoreOutput) -> list[int]:
    """Without the token that ended the request, unless the client wants to see it."""
    is_stop_token = output.finish_reason is FinishReason.STOP
    if is_stop_token and not state.request.sampling_params.include_stop_str_in_output:
        return output.new_token_ids[:-1]
    return output.new_token_ids


def _note_progress(
    state: _RequestState,
    output: EngineCoreOutput,
    timestamp: float,
    now: float,
    stats: IterationStats,
) -> None:
    if output.events:
        state.times.on_events(output.events)
    if output.prefill_stats is not None:
        state.num_cached_tokens = output.prefill_stats.num_cached_tokens
        stats.num_prompt_tokens += output.prefill_stats.num_prompt_tokens
        stats.num_cached_tokens += output.prefill_stats.num_cached_tokens
        if output.prefill_stats.miss is not None:
            stats.misses.append(output.prefill_stats.miss.cause)
    state.num_preemptions = max(state.num_preemptions, output.num_preemptions)
    if output.new_token_ids:
        state.num_generation_tokens += len(output.new_token_ids)
        stats.num_generation_tokens += len(output.new_token_ids)
        state.times.on_tokens(timestamp, now, stats)
    elif output.pooling_output is not None:
        state.times.on_vector(timestamp)


def _note_finish(
    state: _RequestState, result: RequestDelta, now: float, stats: IterationStats
) -> None:
    assert result.finish_reason is not None
    if result.finish_reason is FinishReason.ABORT:
        # Its intervals would mix cut-off times into the latencies of real answers.
        stats.num_aborted += 1
        return
    times = state.times
    stats.finished.append(
        FinishedRequestStats(
            finish_reason=result.finish_reason,
            e2e_latency_s=max(0.0, now - times.arrival_time),
            queue_time_s=times.scheduled - times.queued,
            prefill_time_s=times.first_token - times.scheduled,
            decode_time_s=times.last_token - times.first_token,
            inference_time_s=times.last_token - times.scheduled,
            num_prompt_tokens=len(state.request.prompt_token_ids),
            num_cached_tokens=state.num_cached_tokens,
            num_generation_tokens=state.num_generation_tokens,
            max_tokens=state.request.sampling_params.max_tokens,
            num_preemptions=state.num_preemptions,
        )
    )
    state.parent.on_child_finished(state.num_generation_tokens, stats)
