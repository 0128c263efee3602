"""Planted misses of the prefix cache: each cause is named, with the token at which it begins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.lora_adapters import LoraRequest
from engine.messages import MissCause, PrefixMiss
from engine.sched import prefix_history
from engine.sched.prefix_history import PrefixHistory
from engine.sched.request import Request
from engine.sched.scheduler import Scheduler
from tests.sched.workload import Run, make_request, make_scheduler, picture

SIZE = 4


def caching(num_blocks: int = 1000, tokens: int = 2048) -> Scheduler:
    return make_scheduler(caching=True, block_size=SIZE, num_blocks=num_blocks, tokens=tokens)


def served(run: Run, name: str, prompt: list[int], salt: str | None = None) -> Request:
    """The request after it has run alone to its end, four tokens later."""
    request = make_request(run.scheduler, name, prompt, 4, salt=salt)
    run.scheduler.add_request(request)
    run.finish()
    return request


def test_the_first_request_has_nobody_before_it() -> None:
    request = served(Run(caching()), "a", [1, 2, 3])
    assert request.prefix_miss == PrefixMiss(MissCause.NO_PREDECESSOR, 0, 0)


def test_other_text() -> None:
    run = Run(caching())
    served(run, "a", list(range(50)))
    prompt = [*range(37), 999, *range(38, 50)]
    assert served(run, "b", prompt).prefix_miss == PrefixMiss(MissCause.OTHER_TEXT, 37, 1)


def test_another_image() -> None:
    """The tokens of all images are the same; the place is where the image begins."""
    run = Run(caching())
    prompt = [*range(9), *[500] * 6, *range(9, 20)]

    def seen(name: str, image: str) -> Request:
        request = make_request(run.scheduler, name, prompt, 4, images=(picture(9, 6, image),))
        run.scheduler.add_request(request)
        run.finish()
        return request

    seen("a", "cat")
    other = seen("b", "dog")
    assert other.prefix_miss == PrefixMiss(MissCause.OTHER_IMAGE, 9, 1)
    assert other.num_cached_tokens == 8
    # Of the two before it the one with the same image is the nearest.
    assert seen("c", "cat").prefix_miss == PrefixMiss(MissCause.PARTIAL_BLOCK, 26, 2)
    text = served(run, "d", prompt)
    assert text.prefix_miss == PrefixMiss(MissCause.OTHER_TEXT, 9, 1)


def test_an_answer_that_comes_back_in_other_tokens() -> None:
    run = Run(caching())
    first = served(run, "a", list(range(18)))
    prompt = [*first.token_ids[:20], 999, 5, 6]
    assert served(run, "b", prompt).prefix_miss == PrefixMiss(MissCause.REWRITTEN_ANSWER, 20, 0)


def test_the_same_chat_that_the_template_writes_anew() -> None:
    run = Run(caching())
    chat = (b"system", b"question")

    def chatted(name: str, prompt: list[int], messages: tuple[bytes, ...]) -> Request:
        request = make_request(run.scheduler, name, prompt, 4)
        request.message_digests = messages
        run.scheduler.add_request(request)
        run.finish()
        return request

    chatted("a", list(range(40)), chat)
    again = [*range(21), 999, *range(22, 60)]
    anew = chatted("b", again, (*chat, b"answer", b"second"))
    assert anew.prefix_miss == PrefixMiss(MissCause.RENDERED_ANEW, 21, 1)
    other = chatted("c", [*range(21), 998, *range(22, 60)], (b"system", b"another"))
    assert other.prefix_miss == PrefixMiss(MissCause.OTHER_TEXT, 21, 1)


def test_a_block_that_was_not_full() -> None:
    run = Run(caching())
    first = served(run, "a", list(range(18)))  # 22 tokens with its answer
    prompt = [*first.token_ids, 7, 8, 9]
    assert served(run, "b", prompt).prefix_miss == PrefixMiss(MissCause.PARTIAL_BLOCK, 22, 2)


def test_the_same_prompt_again_computes_its_last_block() -> None:
    run = Run(caching())
    served(run, "a", list(range(16)))
    again = served(run, "b", list(range(16)))
    assert again.num_cached_tokens == 12
    assert again.prefix_miss == PrefixMiss(MissCause.PARTIAL_BLOCK, 16, 4)


def test_nothing_is_lost_where_all_blocks_were_found() -> None:
    history, scheduler = PrefixHistory(SIZE), caching()
    history.admit(make_request(scheduler, "a", list(range(8)), 4), 0)
    assert history.admit(make_request(scheduler, "b", list(range(12)), 4), 8) is None


def test_evicted() -> None:
    run = Run(caching(num_blocks=16))  # 60 tokens
    served(run, "a", list(range(32)))
    served(run, "b", list(range(100, 152)))  # of the first one's blocks one is left
    assert served(run, "c", list(range(32))).prefix_miss == PrefixMiss(MissCause.EVICTED, 32, 28)


def test_another_salt() -> None:
    run = Run(caching())
    served(run, "a", list(range(32)), "red")
    request = served(run, "b", list(range(32)), "blue")
    assert request.prefix_miss == PrefixMiss(MissCause.OTHER_SALT, 32, 32)
    # Of two that match as far, the one of the same salt is the nearest.
    assert served(run, "c", list(range(32)), "red").prefix_miss == PrefixMiss(
        MissCause.PARTIAL_BLOCK, 32, 4
    )


def test_another_adapter() -> None:
    run = Run(caching())
    served(run, "a", list(range(32)))
    lora = LoraRequest("x", 1, "/x")
    run.scheduler.add_request(
        request := make_request(run.scheduler, "b", list(range(32)), 4, lora=lora)
    )
    run.finish()
    assert request.prefix_miss == PrefixMiss(MissCause.OTHER_ADAPTER, 32, 32)


def test_an_earlier_request_that_is_not_that_far() -> None:
    run = Run(caching(tokens=16))
    run.scheduler.add_request(make_request(run.scheduler, "a", list(range(64)), 4))
    run.step()
    history, scheduler = PrefixHistory(SIZE), run.scheduler
    history.admit(scheduler.requests["a"], 0)
    other = make_request(scheduler, "b", list(range(64)), 4)
    assert history.admit(other, 16) == PrefixMiss(MissCause.NOT_COMPUTED, 64, 48)


def test_a_request_that_returns_is_not_counted_again() -> None:
    run = Run(caching(num_blocks=12, tokens=64))
    requests = [
        make_request(run.scheduler, name, list(range(base, base + 12)), 16)
        for name, base in (("a", 0), ("b", 100), ("c", 200))
    ]
    for request in requests:
        run.scheduler.add_request(request)
    run.finish()
    assert any(request.num_preemptions for request in requests)
    causes = [request.prefix_miss.cause for request in requests if request.prefix_miss]
    assert causes == [MissCause.NO_PREDECESSOR] * 3


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=20)
)
def test_the_nearest_is_the_one_that_shares_most(prompts: list[list[int]]) -> None:
    history, before = PrefixHistory(SIZE), list[list[int]]()
    for number, prompt in enumerate(prompts):
        request = make_request(caching(), f"r{number}", prompt, 4)
        miss = history.admit(request, 0)
        longest = max((_num_shared(prompt, other) for other in before), default=0)
        if miss is None:
            assert longest in (0, len(prompt))
        else:
            assert miss.num_matched_tokens == miss.num_lost_tokens == longest
        before.append(prompt)


def _num_shared(left: list[int], right: list[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def test_what_is_remembered_is_bounded() -> None:
    history, scheduler = PrefixHistory(SIZE), caching()
    for number in range(200):
        history.admit(make_request(scheduler, f"r{number}", [number] * 3, 4), 0)
    assert len(history._earlier) == prefix_history.MAX_REQUESTS
    half = prefix_history.MAX_TOKENS // 2
    for number in range(3):
        request = make_request(scheduler, f"long{number}", [number] * half, 4)
        history.admit(request, 0)
        history.end(request)
    assert list(history._earlier) == ["long1", "long2"]
    assert history._num_tokens == 2 * half


def test_emptied_and_computed_anew() -> None:
    run = Run(caching())
    served(run, "a", list(range(32)))
    assert run.scheduler.reset_prefix_cache()
    assert served(run, "b", list(range(32))).prefix_miss == PrefixMiss(MissCause.EMPTIED, 32, 32)
    assert served(run, "c", list(range(32))).prefix_miss == PrefixMiss(
        MissCause.PARTIAL_BLOCK, 32, 4
    )
