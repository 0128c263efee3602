"""Scheduler: one token budget per step, running requests first, then waiting ones. No torch.

There is no prefill phase and no decode phase: each step hands out tokens so that every request's
num_computed_tokens catches up with its token count. Rules of vLLM's v1/core/sched/scheduler.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from engine.config import CacheConfig, SchedulerConfig
from engine.kv_sizing import FULL_ATTENTION, KVCacheGroup
from engine.logger import get_logger
from engine.messages import (
    EngineCoreOutput,
    EventType,
    FinishReason,
    GraphStats,
    PrefillStats,
    SchedulerStats,
)
from engine.sched.adapter_turns import AdapterTurns
from engine.sched.drafts import Drafter
from engine.sched.grammar import Grammar
from engine.sched.joint_prefill import JointPrefill
from engine.sched.kv_cache_manager import KVCacheManager
from engine.sched.logprobs_budget import LogprobsBudget
from engine.sched.prefix_history import PrefixHistory
from engine.sched.request import Request, RequestStatus
from engine.sched.request_queue import create_request_queue
from engine.sched.scheduler_output import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from engine.sched.step_images import StepImages

logger = get_logger(__name__)

_NO_NUMBERS = (
    "The model computed no numbers (NaN) for this request, so it was ended; the others go on. A "
    "weight, config.json or the data type (--dtype, --kv-cache-dtype) may be wrong."
)
_GRAMMAR_FAILED = (
    "The request's grammar could not be followed further: it is too ambiguous or too large for the "
    "time that one token may take."
)


class Scheduler:
    """Decides who computes how many tokens in each step, and who must give blocks back.

    `num_blocks` includes the null block. Not thread-safe: EngineCore's busy loop is its only
    caller.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        num_blocks: int,
        groups: Sequence[KVCacheGroup] = FULL_ATTENTION,
        *,
        num_micro_batches: int = 1,
        is_async: bool = False,
        max_loras: int | None = None,
        most_rows: int | None = None,
    ) -> None:
        """With several micro-batches that many steps are under way at once, one per pipeline stage,
        and each takes its share of the running requests. `is_async` plans a step before the tokens
        of the last one are known. With drafts, `most_rows` positions of a step may ask for a token,
        without it as many as requests may run.
        """
        self.config = config
        self.num_taking_turns = 0
        """Waiting requests, as of the last plan, that only other prompts of a step hold up."""
        self.block_size = cache.block_size
        self.kv_cache_manager = KVCacheManager(
            num_blocks,
            cache.block_size,
            enable_caching=cache.enable_prefix_caching,
            groups=groups,
            in_flight_tokens=config.max_num_batched_tokens,
        )
        self.requests: dict[str, Request] = {}
        self.waiting = create_request_queue(config.policy)
        self.running: list[Request] = []
        self._compiling: list[Request] = []  # WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self._structured: dict[str, Request] = {}  # every live request with a grammar
        self._rejected: list[EngineCoreOutput] = []
        self._finished_req_ids: list[str] = []
        self._num_micro_batches = num_micro_batches
        self._is_async = is_async
        self._has_overlap = is_async or num_micro_batches > 1
        self._adapters = AdapterTurns(max_loras)
        self._num_in_flight: Counter[str] = Counter()  # steps under way that a request is in
        self._logprobs_budget = LogprobsBudget()
        self._images = StepImages(config.max_step_images)
        self._prefill = JointPrefill(config.max_joint_prefill_tokens, config.max_num_batched_tokens)
        self._prefix_history = PrefixHistory(cache.block_size)
        self._drafter = (
            Drafter(config.speculative, most_rows or config.max_num_seqs)
            if config.speculative
            else None
        )
        self._num_added = 0
        self._num_preemptions = 0
        self._num_queries = 0
        self._num_hits = 0
        self._graphs: GraphStats | None = None

    # ---- requests ------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        request.record_event(EventType.QUEUED)
        self._num_added += 1
        request.place = self._num_added
        self.requests[request.request_id] = request
        if request.grammar is None:
            self.waiting.add(request)
            return
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self._structured[request.request_id] = request
        self._compiling.append(request)

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus) -> list[Request]:
        """End requests from outside (abort, error); unknown and finished ids are ignored."""
        ended = []
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is None:
                continue
            if request.status == RequestStatus.RUNNING:
                self.running.remove(request)
            elif request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
                self._compiling.remove(request)
            else:
                self.waiting.remove(request)
            self._finish(request, status)
            ended.append(request)
        return ended

    def has_unfinished_requests(self) -> bool:
        """True while anything waits, runs or was rejected and has to be told so."""
        return bool(self.requests or self._rejected)

    def used_adapters(self) -> set[int]:
        """The LoRA adapters of all living requests."""
        return {request.lora_id for request in self.requests.values() if request.lora_id}

    def has_rejected(self) -> bool:
        """True while some were rejected or ended that have to be told so."""
        return bool(self._rejected)

    def reject(
        self, request_id: str, error: str, reason: FinishReason = FinishReason.ERROR
    ) -> None:
        """The client of a request that cannot be added learns why."""
        self._rejected.append(EngineCoreOutput(request_id, [], finish_reason=reason, error=error))

    def is_waiting_for_grammars(self) -> bool:
        """True while grammars are being compiled and nothing else could be scheduled."""
        return bool(self._compiling) and len(self._compiling) == len(self.requests)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False while blocks are in use."""
        is_done = self.kv_cache_manager.reset_prefix_cache()
        if is_done:
            self._prefix_history.note_emptied()
        return is_done

    def end_all(self, error: str) -> None:
        """End every request, whose client learns why; no request's own fault."""
        for request in list(self.requests.values()):
            request.error = error
            self.finish_requests([request.request_id], RequestStatus.FINISHED_ABORTED)
            self._rejected.append(self._output(request, [], is_first=False))

    def preempt_all(self) -> None:
        """Put back all that run, to be computed anew; no step is under way."""
        while self.running:
            self._preempt(self.running[-1])

    # ---- one step ------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Plan one step and advance every scheduled request's num_computed_tokens."""
        if self._compiling:
            self._admit_compiled()
        output = SchedulerOutput([], CachedRequestData(), {}, 0, [])
        self._logprobs_budget.begin(self.requests.values())
        self._images.begin()
        self._prefill.begin()
        budget = self._plan(output, self.config.max_num_batched_tokens)
        if self._prefill.holds_decodes and not output.num_scheduled_tokens:
            self._prefill.release_decodes()
            budget = self._plan(output, budget)
        output.total_num_scheduled_tokens = self.config.max_num_batched_tokens - budget
        if output.total_num_scheduled_tokens:  # an empty step is not run, so nobody would hear them
            output.finished_req_ids, self._finished_req_ids = self._finished_req_ids, []
        for request_id, count in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            request.num_computed_tokens += count
            if self._is_async and request.pooling is None:
                known = request.num_tokens + request.num_output_placeholders
                request.num_output_placeholders += request.num_computed_tokens == known
        if self._has_overlap:
            self._num_in_flight.update(output.num_scheduled_tokens.keys())
        return output

    def _plan(self, output: SchedulerOutput, budget: int) -> int:
        """Both phases; returns the budget that is left."""
        budget, has_preempted = self._schedule_running(output, budget)
        if not has_preempted:
            budget = self._schedule_waiting(output, budget)
        self.num_taking_turns = 0 if has_preempted else self._num_held_back()
        return budget

    def _schedule_running(self, output: SchedulerOutput, budget: int) -> tuple[int, bool]:
        """Phase 1, in admission order. Returns the budget left and whether anyone was preempted."""
        manager, cached = self.kv_cache_manager, output.cached_requests
        threshold = self.config.long_prefill_token_threshold
        max_model_len = self.config.max_model_len
        has_preempted = False
        holds_decodes = self._prefill.holds_decodes
        drafter = None if holds_decodes else self._drafter
        drafts = drafter.propose(self.running) if drafter else {}
        share = -(-len(self.running) // self._num_micro_batches)
        index = 0
        while index < len(self.running) and budget > 0 and len(cached.req_ids) < share:
            request = self.running[index]
            draft = drafts.get(request.request_id, [])
            known = self._num_to_compute(request)
            if holds_decodes and known <= 1:
                index += 1
                continue
            count = known + len(draft)
            if 0 < threshold < count:
                count = threshold
            # The last position is never computed, only sampled, unless it is pooled.
            end = max_model_len if request.pooling else max_model_len - 1
            count = min(count, budget, end - request.num_computed_tokens)
            if not self._prefill.has_room(count - len(draft)):
                count = 0
            if request.asks_logprobs and count > 0:
                count = self._cap_logprobs(request, count)
            if request.images and count > 0:
                start = request.num_computed_tokens
                count = request.without_cut_images(start, count, budget)
                count = self._images.fitted(request, start, count)
            if count <= 0:
                index += 1
                continue
            new_blocks = manager.allocate_slots(request, count)
            if new_blocks is None and draft:  # nobody has to go for the sake of a guess
                count, draft = 1, []
                new_blocks = manager.allocate_slots(request, count)
            while new_blocks is None:
                has_preempted = True
                victim = self._victim()
                if victim is None:  # some step under way may end a request
                    return budget, True
                victim_index = self.running.index(victim)
                budget += self._unschedule(output, victim)
                self._preempt(victim)
                if victim is request:
                    return budget, True
                if victim_index < index:
                    index -= 1
                new_blocks = manager.allocate_slots(request, count)
            cached.req_ids.append(request.request_id)
            cached.new_block_ids.append(new_blocks)
            cached.num_computed_tokens.append(request.num_computed_tokens)
            output.num_scheduled_tokens[request.request_id] = count
            if request.images:
                self._images.note(request, request.num_computed_tokens, count)
            if count >= known:
                self._prefill.note(count, len(draft))
            if draft and count > 1:
                output.draft_token_ids[request.request_id] = draft[: count - 1]
            budget -= count
            index += 1
        return budget, has_preempted

    def _num_to_compute(self, request: Request) -> int:
        """Tokens that are known, or will be when the step runs, and have no KV yet."""
        pending = request.num_output_placeholders
        if pending and request.num_output_tokens + pending >= request.max_tokens:
            return 0  # it ends with what is under way
        return len(request.token_ids) + pending - request.num_computed_tokens

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> int:
        """Phase 2: admit from the head of the queue until something does not fit.

        Who waits for its share of something that others do not need is skipped, and keeps its
        place.
        """
        manager, threshold = self.kv_cache_manager, self.config.long_prefill_token_threshold
        skipped: list[Request] = []
        self._adapters.begin(self.running)
        while budget > 0 and len(self.waiting) and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.peek()
            if not self._adapters.has_room(request):
                skipped.append(self.waiting.pop())
                continue
            hits = None if request.needs_whole_prompt else manager.get_computed_blocks(request)
            num_hit_tokens = len(hits[0]) * self.block_size if hits else 0
            count = request.num_tokens - num_hit_tokens
            if 0 < threshold < count:
                count = threshold
            if count > budget and not self.config.enable_chunked_prefill:
                break
            count = min(count, budget)
            if not self._prefill.has_room(count):
                break
            if request.asks_logprobs:
                count = self._cap_logprobs(request, count)
            if count == 0:  # the step's share of log probabilities is taken: others need none
                skipped.append(self.waiting.pop())
                continue
            if request.images:
                count = request.without_cut_images(num_hit_tokens, count, budget)
                if count == 0:  # the next step has room for an image, or one soon
                    break
                count = self._images.fitted(request, num_hit_tokens, count)
                if count == 0:  # others need no place for an image
                    skipped.append(self.waiting.pop())
                    continue
            must_fit = request.num_tokens if self.config.reserve_full_isl else 0
            if manager.allocate_slots(request, count, hits, must_fit_tokens=must_fit) is None:
                break
            self.waiting.pop()
            self._adapters.note_admitted(request)
            self._images.note(request, num_hit_tokens, count)
            if num_hit_tokens + count == request.num_tokens:
                self._prefill.note(count)
            self._admit(request, num_hit_tokens)
            output.new_requests.append(self._new_request_data(request))
            output.num_scheduled_tokens[request.request_id] = count
            budget -= count
        for request in reversed(skipped):
            self.waiting.put_back(request)
        return budget

    def _num_held_back(self) -> int:
        if not self._prefill.has_held_back:
            return 0
        return min(len(self.waiting), self.config.max_num_seqs - len(self.running))

    def _cap_logprobs(self, request: Request, count: int) -> int:
        """Fewer tokens, or none, for a request whose log probabilities exceed the step's share."""
        is_split = self.config.enable_chunked_prefill
        return self._logprobs_budget.take(request, count, is_split=is_split)

    def _admit(self, request: Request, num_hit_tokens: int) -> None:
        if request.num_cached_tokens is None:
            # Counted once, at first admission; a request that returns from preemption is left out.
            request.num_cached_tokens = num_hit_tokens
            request.record_event(EventType.SCHEDULED)
            if self.kv_cache_manager.enable_caching and not request.needs_whole_prompt:
                self._num_queries += request.num_tokens
                self._num_hits += num_hit_tokens
                request.prefix_miss = self._prefix_history.admit(request, num_hit_tokens)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_hit_tokens
        self.running.append(request)

    def _new_request_data(self, request: Request) -> NewRequestData:
        return NewRequestData(
            req_id=request.request_id,
            token_ids=list(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            block_ids=self.kv_cache_manager.get_block_ids(request.request_id),
            num_computed_tokens=request.num_computed_tokens,
            sampling_params=request.sampling_params,
            eos_token_ids=request.eos_token_ids,
            pooling=request.pooling,
            lora_id=request.lora_id,
            images=tuple(
                image for image in request.images if image.end > request.num_computed_tokens
            ),
        )

    # ---- structured output ---------------------------------------------------------------------

    def _admit_compiled(self) -> None:
        """Queue requests whose grammar is ready; the others hold nobody up.

        They take the place that their arrival gives them: before later ones, never before earlier
        ones, who would starve behind a stream of structured requests.
        """
        waiting, self._compiling = self._compiling, []
        for request in waiting:
            grammar = request.grammar
            assert grammar is not None, "only requests with a grammar wait for one"
            if not grammar.is_ready:
                self._compiling.append(request)
            elif grammar.error is not None:
                logger.error("Grammar of %s is unusable: %s", request.request_id, grammar.error)
                request.error = f"The request's grammar cannot be used: {grammar.error}"
                self._finish(request, RequestStatus.FINISHED_ERROR)
                self._rejected.append(self._output(request, [], is_first=False))
            else:
                request.status = RequestStatus.WAITING
                self.waiting.add(request)

    def take_rejected(self) -> list[EngineCoreOutput]:
        """Last outputs of requests that ended without running, since the previous call."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def sampling_grammars(self, output: SchedulerOutput) -> dict[str, Grammar]:
        """Grammars of the requests that get a token in this step."""
        return {
            request_id: request.grammar
            for request_id, request in self._structured.items()
            if request_id in output.num_scheduled_tokens
            and request.num_computed_tokens
            == request.num_tokens + len(output.draft_token_ids.get(request_id, ()))
            and request.grammar is not None
        }

    # ---- preemption ----------------------------------------------------------------------------

    def _victim(self) -> Request | None:
        """Who gives blocks back: the latest admitted, or the least urgent under `priority`.

        None while all are in steps under way, whose tokens are still to come.
        """
        candidates = [item for item in self.running if item.request_id not in self._num_in_flight]
        if not candidates:
            return None
        if self.config.policy == "priority":
            return max(candidates, key=lambda item: item.sort_key)
        return candidates[-1]

    def _preempt(self, request: Request) -> None:
        """Recompute later: all blocks go back and num_computed_tokens starts again at 0."""
        self.running.remove(request)
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.record_event(EventType.PREEMPTED)
        self._num_preemptions += 1
        self._finished_req_ids.append(request.request_id)
        self.waiting.put_back(request)

    def _unschedule(self, output: SchedulerOutput, request: Request) -> int:
        """Take a victim out of the step that is being planned; returns its tokens to the budget."""
        count = output.num_scheduled_tokens.pop(request.request_id, 0)
        draft = output.draft_token_ids.pop(request.request_id, ())
        if count:
            if count >= self._num_to_compute(request):
                self._prefill.take_back(count, len(draft))
            self.kv_cache_manager.forget_uncomputed(request)
            cached = output.cached_requests
            index = cached.req_ids.index(request.request_id)
            del (
                cached.req_ids[index],
                cached.new_block_ids[index],
                cached.num_computed_tokens[index],
            )
        return count

    # ---- results -------------------------------------------------------------------------------

    def update_from_output(
        self, scheduled: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Append the sampled tokens, end what must end, and say what each client gets."""
        outputs: list[EngineCoreOutput] = []
        has_finished = False
        self._graphs = result.graphs
        if self._has_overlap:
            self._num_in_flight -= Counter(scheduled.num_scheduled_tokens.keys())
        for request_id, sampled in zip(result.req_ids, result.sampled_token_ids, strict=True):
            request = self.requests.get(request_id)
            if request is None or not sampled:
                continue  # ended while the step ran, or its prompt is not complete yet
            draft = scheduled.draft_token_ids.get(request_id)
            if draft:
                self._take_back_draft(request, draft, sampled)
            is_first = request.num_output_tokens == 0
            if request.num_output_placeholders:
                request.num_output_placeholders -= 1
            tokens, status = self._accept(request, sampled)
            if draft and status is not RequestStatus.FINISHED_ERROR:  # NaN must not be found
                self.kv_cache_manager.register_computed(request)
            if status is not None:
                self._finish(request, status)
                has_finished = True
            output = self._output(request, tokens, is_first)
            if result.logprobs and request_id in result.logprobs:
                output.logprobs = result.logprobs[request_id][: len(tokens)]
            if result.prompt_logprobs:
                output.prompt_logprobs = result.prompt_logprobs.get(request_id)
            outputs.append(output)
        outputs += self._finish_pooled(result.pooled)
        if has_finished or result.pooled:
            self.running = [item for item in self.running if not item.status.is_finished]
        return outputs

    def _take_back_draft(self, request: Request, draft: list[int], sampled: list[int]) -> None:
        """What the model did not keep is not computed; the next step writes over it."""
        assert self._drafter is not None, "no other drafts"
        num_accepted = len(sampled) - 1
        request.num_computed_tokens -= len(draft) - num_accepted
        self._drafter.note(request.request_id, len(draft), num_accepted)

    def note_step(self, scheduled: SchedulerOutput, seconds: float) -> None:
        """How long a step took: whether drafts are worth their rows is learnt from that."""
        if self._drafter is None:
            return
        drafts = scheduled.draft_token_ids
        counts = scheduled.num_scheduled_tokens
        if all(count == 1 + len(drafts.get(key, ())) for key, count in counts.items()):
            self._drafter.note_step(scheduled.total_num_scheduled_tokens, seconds)

    def _finish_pooled(self, pooled: Mapping[str, bytes]) -> list[EngineCoreOutput]:
        """A pooling request ends with its vector; the caller takes it out of `running`."""
        outputs = []
        for request_id, vector in pooled.items():
            request = self.requests.get(request_id)
            if request is None:
                continue  # ended while the step ran
            status = RequestStatus.FINISHED_STOPPED
            if not vector:
                status = self._fail_without_numbers(request)
            self._finish(request, status)
            output = self._output(request, [], is_first=True)
            output.pooling_output = vector or None
            outputs.append(output)
        return outputs

    def _accept(
        self, request: Request, sampled: list[int]
    ) -> tuple[list[int], RequestStatus | None]:
        """Append tokens up to the one that ends the request; later ones are dropped."""
        for number, token in enumerate(sampled, start=1):
            status = self._accept_one(request, token)
            if status is not None:
                return sampled[: number if token >= 0 else number - 1], status
        return sampled, None

    def _accept_one(self, request: Request, token: int) -> RequestStatus | None:
        params, grammar = request.sampling_params, request.grammar
        if token < 0:
            return self._fail_without_numbers(request)
        request.append_output(token)
        if grammar is not None and not grammar.accept(token):
            request.error = _GRAMMAR_FAILED
            return RequestStatus.FINISHED_ERROR
        num_tokens = len(request.token_ids)
        num_output = num_tokens - request.num_prompt_tokens
        if num_output >= params.min_tokens:
            if token in request.eos_token_ids:
                return RequestStatus.FINISHED_STOPPED
            if token in params.stop_token_ids:
                request.stop_reason = token
                return RequestStatus.FINISHED_STOPPED
        if grammar is not None and grammar.is_terminated:
            return RequestStatus.FINISHED_STOPPED
        if num_output >= request.max_tokens or num_tokens >= self.config.max_model_len:
            return RequestStatus.FINISHED_LENGTH_CAPPED
        return None

    def _fail_without_numbers(self, request: Request) -> RequestStatus:
        """The model made no token; what it computed for the request must serve no other one."""
        logger.error("The logits of request %s are NaN; it ends.", request.request_id)
        request.error = _NO_NUMBERS
        self.kv_cache_manager.forget(request)
        return RequestStatus.FINISHED_ERROR

    def _finish(self, request: Request, status: RequestStatus) -> None:
        was_running = request.status == RequestStatus.RUNNING
        request.status = status
        self.kv_cache_manager.free(request)
        self._prefix_history.end(request)
        if self._drafter is not None:
            self._drafter.end(request)
        del self.requests[request.request_id]
        self._structured.pop(request.request_id, None)
        if was_running:
            self._finished_req_ids.append(request.request_id)

    def _output(self, request: Request, tokens: list[int], is_first: bool) -> EngineCoreOutput:
        reason = request.status.finish_reason
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=tokens,
            finish_reason=reason,
            stop_reason=request.stop_reason,
            events=request.take_events(),
            prefill_stats=(
                PrefillStats(
                    request.num_prompt_tokens, request.num_cached_tokens or 0, request.prefix_miss
                )
                if is_first
                else None
            ),
            num_preemptions=request.num_preemptions if reason is not None else 0,
            error=request.error,
        )

    def make_stats(self, num_scheduled_tokens: int = 0, sleep_level: int = 0) -> SchedulerStats:
        """Snapshot for /metrics; the counters since the last call are taken and set back."""
        pool = self.kv_cache_manager.block_pool
        stats = SchedulerStats(
            num_running_reqs=len(self.running),
            num_waiting_reqs=len(self.waiting) + len(self._compiling),
            kv_cache_usage=pool.usage,
            num_free_blocks=pool.num_free_blocks,
            num_cached_blocks=pool.num_cached_blocks,
            num_preemptions_delta=self._num_preemptions,
            prefix_cache_queries_delta=self._num_queries,
            prefix_cache_hits_delta=self._num_hits,
            num_scheduled_tokens=num_scheduled_tokens,
            drafts=self._drafter.take_stats() if self._drafter else None,
            graphs=self._graphs,
            sleep_level=sleep_level,
            num_taking_turns=self.num_taking_turns,
        )
        self._graphs = None
        self._num_preemptions = self._num_queries = self._num_hits = 0
        return stats
