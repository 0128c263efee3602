from __future__ import annotations

from engine.messages import EventType, PackedLogprobs, TokenLogprobs
from engine.sampling_params import SamplingParams
from engine.sched.request import RequestStatus
from engine.sched.scheduler_output import ModelRunnerOutput
from tests.sched.workload import Run, make_request, make_scheduler, next_token


def test_a_cached_prefix_is_not_computed_again_but_its_last_token_is() -> None:
    scheduler = make_scheduler(block_size=4, caching=True)
    run = Run(scheduler)
    prompt = list(range(8))
    scheduler.add_request(make_request(scheduler, "one", prompt, 1))
    run.finish()
    scheduler.add_request(make_request(scheduler, "two", prompt, 1))
    planned, outputs = run.step()
    # Two full blocks are cached, but the second holds the last token, so it is computed again.
    assert planned.num_scheduled_tokens == {"two": 4}
    assert outputs[0].prefill_stats is not None
    assert outputs[0].prefill_stats.num_cached_tokens == 4
    assert outputs[0].new_token_ids == run.outputs["one"]


def test_another_salt_does_not_see_the_cache() -> None:
    scheduler = make_scheduler(block_size=4, caching=True)
    run = Run(scheduler)
    scheduler.add_request(make_request(scheduler, "one", list(range(9)), 1, salt="a"))
    run.finish()
    scheduler.add_request(make_request(scheduler, "two", list(range(9)), 1, salt="b"))
    assert run.step()[0].num_scheduled_tokens == {"two": 9}


def test_generated_text_is_cached_too() -> None:
    scheduler = make_scheduler(block_size=4, caching=True)
    run = Run(scheduler)
    scheduler.add_request(make_request(scheduler, "one", list(range(4)), 5))
    run.finish()
    follow_up = list(range(4)) + run.outputs["one"] + [5]
    scheduler.add_request(make_request(scheduler, "two", follow_up, 1))
    # 4 + 5 tokens were made, the last of them never computed: two full blocks are there.
    assert run.step()[0].num_scheduled_tokens == {"two": 2}


def test_fcfs_preempts_the_latest_admitted() -> None:
    scheduler = make_scheduler(num_blocks=6, block_size=4, reserve=False)
    first, second = (make_request(scheduler, name, 8, 6) for name in ("first", "second"))
    scheduler.add_request(first)
    scheduler.add_request(second)
    run = Run(scheduler)
    while not second.num_preemptions:
        run.step()
    assert first.num_preemptions == 0
    assert second.status == RequestStatus.PREEMPTED
    assert second.num_computed_tokens == 0
    assert scheduler.waiting.peek() is second


def test_priority_preempts_the_least_urgent_and_admits_the_most_urgent() -> None:
    scheduler = make_scheduler(num_blocks=6, block_size=4, policy="priority", reserve=False)
    urgent = make_request(scheduler, "urgent", 8, 6, priority=0, arrival=2.0)
    casual = make_request(scheduler, "casual", 8, 6, priority=5, arrival=1.0)
    scheduler.add_request(casual)
    scheduler.add_request(urgent)
    run = Run(scheduler)
    planned, _ = run.step()
    assert list(planned.num_scheduled_tokens) == ["urgent", "casual"]
    run.finish()
    assert casual.num_preemptions >= 1
    assert urgent.num_preemptions == 0


def test_output_does_not_depend_on_preemption() -> None:
    texts = []
    for num_blocks in (7, 200):
        scheduler = make_scheduler(num_blocks=num_blocks, block_size=4, reserve=False)
        run = Run(scheduler)
        requests = [make_request(scheduler, name, 6, 12) for name in "ABCD"]
        for request in requests:
            scheduler.add_request(request)
        run.finish()
        texts.append(run.outputs)
        if num_blocks == 7:
            assert sum(request.num_preemptions for request in requests) > 0
    assert texts[0] == texts[1]


def test_admission_waits_until_the_whole_prompt_fits() -> None:
    scheduler = make_scheduler(num_blocks=7, block_size=4, tokens=8)
    run = Run(scheduler)
    scheduler.add_request(make_request(scheduler, "small", 8, 4))
    run.step()
    scheduler.add_request(make_request(scheduler, "large", 20, 2))
    planned, _ = run.step()
    # The first chunk of 7 tokens would fit, the whole prompt of five blocks does not.
    assert list(planned.num_scheduled_tokens) == ["small"]
    run.finish()
    assert run.reasons == {"small": "length", "large": "length"}


def test_without_chunked_prefill_a_prompt_waits_for_a_step_of_its_own() -> None:
    scheduler = make_scheduler(tokens=16, max_model_len=16, chunked=False)
    run = Run(scheduler)
    scheduler.add_request(make_request(scheduler, "A", 10, 2))
    scheduler.add_request(make_request(scheduler, "B", 10, 2))
    assert run.step()[0].num_scheduled_tokens == {"A": 10}
    assert run.step()[0].num_scheduled_tokens == {"A": 1, "B": 10}


def test_long_prefills_are_capped_by_the_threshold() -> None:
    scheduler = make_scheduler(tokens=100, threshold=6)
    run = Run(scheduler)
    scheduler.add_request(make_request(scheduler, "A", 14, 1))
    scheduler.add_request(make_request(scheduler, "B", 3, 1))
    assert run.step()[0].num_scheduled_tokens == {"A": 6, "B": 3}
    assert run.step()[0].num_scheduled_tokens == {"A": 6}
    assert run.step()[0].num_scheduled_tokens == {"A": 2}


def test_stop_token_eos_and_length_each_have_their_reason() -> None:
    scheduler = make_scheduler(max_model_len=12)
    run = Run(scheduler, token=lambda request: 50 + request.num_output_tokens)
    stop = SamplingParams(max_tokens=9, stop_token_ids=(51,))
    scheduler.add_request(make_request(scheduler, "eos", 3, 9, eos=(52,)))
    scheduler.add_request(make_request(scheduler, "stop", 3, 9, params=stop))
    scheduler.add_request(make_request(scheduler, "length", 3, 4))
    scheduler.add_request(make_request(scheduler, "context", 9, 99))
    minimum = SamplingParams(max_tokens=9, min_tokens=4)
    scheduler.add_request(make_request(scheduler, "minimum", 3, 9, params=minimum, eos=(52, 54)))
    reasons = {}
    while scheduler.has_unfinished_requests():
        for output in run.step()[1]:
            if output.finish_reason is not None:
                reasons[output.request_id] = (str(output.finish_reason), output.stop_reason)
    assert reasons == {
        "eos": ("stop", None),
        "stop": ("stop", 51),
        "length": ("length", None),
        "context": ("length", None),
        "minimum": ("stop", None),
    }
    assert run.outputs["eos"] == [50, 51, 52]
    assert run.outputs["stop"] == [50, 51]
    assert len(run.outputs["context"]) == 3
    assert run.outputs["minimum"] == [50, 51, 52, 53, 54]


def test_abort_frees_blocks_in_every_state_and_tells_the_runner_once() -> None:
    scheduler = make_scheduler(seqs=1)
    run = Run(scheduler)
    scheduler.add_request(make_request(scheduler, "running", 5, 50))
    scheduler.add_request(make_request(scheduler, "waiting", 5, 50))
    run.step()
    ended = scheduler.finish_requests(
        ["running", "waiting", "unknown"], RequestStatus.FINISHED_ABORTED
    )
    assert [request.request_id for request in ended] == ["running", "waiting"]
    assert scheduler.kv_cache_manager.usage == 0.0
    assert not scheduler.has_unfinished_requests()
    scheduler.add_request(make_request(scheduler, "next", 5, 1))
    assert run.step()[0].finished_req_ids == ["running"]


def test_events_and_stats_tell_what_happened() -> None:
    scheduler = make_scheduler(caching=True)
    run = Run(scheduler)
    scheduler.add_request(make_request(scheduler, "A", 9, 2))
    _, outputs = run.step()
    assert outputs[0].events is not None
    assert [event.type for event in outputs[0].events] == [EventType.QUEUED, EventType.SCHEDULED]
    stats = scheduler.make_stats(9)
    assert (stats.num_running_reqs, stats.num_waiting_reqs) == (1, 0)
    assert (stats.prefix_cache_queries_delta, stats.prefix_cache_hits_delta) == (9, 0)
    assert stats.kv_cache_usage > 0
    run.finish()
    stats = scheduler.make_stats()
    assert (stats.num_running_reqs, stats.kv_cache_usage) == (0, 0.0)
    assert stats.prefix_cache_queries_delta == 0
    assert stats.num_cached_blocks == 2


def test_the_rule_that_stands_in_for_a_model_depends_on_the_whole_sequence() -> None:
    scheduler = make_scheduler()
    tokens = {next_token(make_request(scheduler, "x", [1, 2, last], 1)) for last in range(50)}
    assert len(tokens) == 50


def test_prompt_logprobs_read_no_cached_prefix_but_fill_the_cache() -> None:
    scheduler = make_scheduler(block_size=4, caching=True)
    run = Run(scheduler)
    asking = SamplingParams(max_tokens=1, prompt_logprobs=0)
    for name, params, computed in (("one", None, 9), ("two", asking, 9), ("three", None, 1)):
        scheduler.add_request(make_request(scheduler, name, list(range(9)), 1, params=params))
        assert run.step()[0].num_scheduled_tokens == {name: computed}


def test_prompts_that_want_logprobs_share_a_part_of_the_step() -> None:
    scheduler = make_scheduler(tokens=4096, max_model_len=8192)
    asking = SamplingParams(max_tokens=1, prompt_logprobs=3)
    for name, params in (("a", asking), ("b", asking), ("c", None)):
        scheduler.add_request(make_request(scheduler, name, 700, 1, params=params))
    run = Run(scheduler)
    assert run.step()[0].num_scheduled_tokens == {"a": 32, "c": 700}  # b waits, c need not
    for _ in range(20):
        assert run.step()[0].num_scheduled_tokens == {"a": 32}  # c may have successors
    run.finish()
    assert set(run.reasons) == {"a", "b", "c"}


def test_an_unsplittable_prompt_keeps_its_size_whatever_it_wants() -> None:
    scheduler = make_scheduler(tokens=4096, chunked=False)
    asking = SamplingParams(max_tokens=1, prompt_logprobs=3)
    scheduler.add_request(make_request(scheduler, "a", 700, 1, params=asking))
    assert Run(scheduler).step()[0].num_scheduled_tokens == {"a": 700}


def test_logprobs_end_with_the_tokens_and_reach_their_request() -> None:
    scheduler = make_scheduler()
    for name in ("stops", "goes-on"):
        params = SamplingParams(max_tokens=5, logprobs=0)
        request = make_request(scheduler, name, 4, 5, params=params, eos=(8,))
        scheduler.add_request(request)
    planned = scheduler.schedule()
    entries = [TokenLogprobs([token], [-1.0], 1) for token in (7, 8, 9)]
    packed = PackedLogprobs.pack(entries, 1)
    result = ModelRunnerOutput(
        ["stops", "goes-on"],
        [[7, 8, 9], [7]],
        {"stops": entries, "goes-on": entries[:1]},
        {"goes-on": packed},
    )
    first, second = scheduler.update_from_output(planned, result)
    assert (first.new_token_ids, first.logprobs) == ([7, 8], entries[:2])
    assert (second.logprobs, second.prompt_logprobs) == (entries[:1], packed)
    assert first.prompt_logprobs is None


def test_blocks_that_a_victim_was_about_to_fill_are_not_found_later() -> None:
    scheduler = make_scheduler(
        num_blocks=9, block_size=4, policy="priority", reserve=False, caching=True, threshold=8
    )
    casual = make_request(scheduler, "casual", 28, 1, priority=5)
    urgent = make_request(scheduler, "urgent", 8, 9, priority=0, arrival=1.0)
    run = Run(scheduler)
    scheduler.add_request(casual)
    run.step()
    scheduler.add_request(urgent)
    run.step()
    assert casual.num_computed_tokens == 16
    run.step()  # casual gets its third chunk, then urgent takes the blocks away
    assert casual.num_preemptions == 1
    pool = scheduler.kv_cache_manager.block_pool
    found = [pool.get_cached_block(block_hash) is not None for block_hash in casual.block_hashes]
    assert found == [True] * 4 + [False] * 3
    run.finish()
