"""Which engine gets a request, without any engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.routing import AFFINITY_SLACK, PrefixAffinity, Router
from engine.messages import EngineCoreRequest, ImageInput
from engine.sampling_params import SamplingParams
from engine.sched.request import Request

BLOCK = 4


def request(
    name: str, tokens: Sequence[int] = (1, 2, 3), salt: str | None = None
) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=1)
    return EngineCoreRequest(name, list(tokens), params, 0.0, cache_salt=salt)


def prompt(conversation: int, num_blocks: int = 2) -> list[int]:
    """`num_blocks` blocks that belong to one conversation, and a token behind them."""
    return [conversation] * (BLOCK * num_blocks) + [0]


def test_a_waiting_request_counts_four_times_a_running_one() -> None:
    router = Router(2)
    for name in ("a", "b", "c", "d", "e"):
        router.place(request(name))
    assert [router.num_requests(rank) for rank in (0, 1)] == [3, 2]
    router.note_running(0, 3)  # none of its three waits any more
    assert [router.load(rank) for rank in (0, 1)] == [3, 8]
    assert router.place(request("f")) == 0
    assert [router.load(rank) for rank in (0, 1)] == [4 + 3, 8]


def test_what_others_sent_counts_too() -> None:
    router = Router(2)
    router.note_elsewhere(0, 5)
    assert [router.place(request(name)) for name in "abcde"] == [1] * 5
    router.note_elsewhere(0, 0)
    assert router.place(request("f")) == 0


@pytest.mark.parametrize("first", range(3))
def test_equally_loaded_ones_take_turns(first: int) -> None:
    router = Router(3, first=first)
    assert [router.place(request(name)) for name in "abc"] == [
        (first + step) % 3 for step in range(3)
    ]


def test_a_dead_engine_loses_its_requests_and_gets_none() -> None:
    router = Router(2)
    for name in "abcd":
        router.place(request(name))
    assert router.note_down(1) == ["b", "d"]
    assert router.rank_of("b") is None
    assert [router.place(request(name)) for name in "ef"] == [0, 0]
    assert router.note_down(0) == ["a", "c", "e", "f"]
    assert router.num_up == 0
    assert router.place(request("g")) is None
    router.note_up(1)
    assert router.place(request("h")) == 1


def test_a_conversation_goes_back_to_the_engine_that_knows_it() -> None:
    router = Router(3, PrefixAffinity(BLOCK))
    first = {talk: router.place(request(f"{talk}-0", prompt(talk))) for talk in range(1, 7)}
    assert Counter(first.values()) == {0: 2, 1: 2, 2: 2}
    for talk in first:
        router.forget(f"{talk}-0")
    for turn in range(1, 4):
        for talk, rank in first.items():
            longer = prompt(talk, 2 + turn)
            assert router.place(request(f"{talk}-{turn}", longer)) == rank
            router.forget(f"{talk}-{turn}")


def test_the_longest_known_beginning_decides() -> None:
    router = Router(2, PrefixAffinity(BLOCK))
    system = [9] * BLOCK
    assert router.place(request("a", system + [1] * BLOCK)) == 0
    router.note_elsewhere(0, 100)
    assert router.place(request("b", system + [2] * BLOCK)) == 1
    router.note_elsewhere(0, 0)
    router.forget("b")
    router.forget("a")
    assert router.place(request("c", system + [2] * BLOCK)) == 1
    assert router.place(request("d", system + [1] * BLOCK)) == 0


def test_a_short_prompt_a_salt_and_a_lost_cache_have_no_affinity() -> None:
    affinity = PrefixAffinity(BLOCK)
    assert affinity.hashes(request("a", [1] * (BLOCK - 1))) == []
    plain, salted = request("a", prompt(1)), request("b", prompt(1), "salt")
    affinity.note(affinity.hashes(plain), 1)
    assert affinity.ranks(affinity.hashes(plain)) == {1}
    assert affinity.ranks(affinity.hashes(salted)) == frozenset()
    affinity.forget(1)
    assert affinity.ranks(affinity.hashes(plain)) == frozenset()


def test_another_image_is_another_beginning() -> None:
    affinity = PrefixAffinity(BLOCK)
    image = ImageInput(2, BLOCK, bytes(32), b"", (3, 0, 0))
    cat = msgspec.structs.replace(request("a", prompt(7)), images=(image,))
    dog = msgspec.structs.replace(
        cat, images=(msgspec.structs.replace(image, digest=bytes([1] * 32)),)
    )
    affinity.note(affinity.hashes(cat), 1)
    assert affinity.ranks(affinity.hashes(cat)) == {1}
    assert not affinity.ranks(affinity.hashes(dog))
    known = Request(cat, BLOCK, hash_blocks=True).block_hashes
    assert affinity.hashes(cat) == known


def test_what_one_has_learnt_another_can_know() -> None:
    here, there = PrefixAffinity(BLOCK), PrefixAffinity(BLOCK)
    hashes = here.hashes(request("a", prompt(1)))
    here.note(hashes, 2)
    here.note(hashes, 2)
    news = here.take_news()
    assert len(news) == 2, "each block is told once"
    assert here.take_news() == []
    there.learn(news)
    assert there.ranks(hashes) == {2}
    assert there.take_news() == [], "it is no news of its own"


@given(
    size=st.integers(2, 4),
    talks=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=120),
)
def test_load_bounds_affinity(size: int, talks: list[tuple[int, bool, bool]]) -> None:
    router = Router(size, PrefixAffinity(BLOCK))
    unfinished: list[str] = []
    for number, (talk, ends, runs) in enumerate(talks):
        loads = [router.load(rank) for rank in range(size)]
        name = str(number)
        rank = router.place(request(name, prompt(talk)))
        assert rank is not None
        assert loads[rank] <= min(loads) + AFFINITY_SLACK
        unfinished.append(name)
        if runs:
            router.note_running(rank, router.num_requests(rank))
        if ends:
            router.forget(unfinished.pop(0))


@given(talks=st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_one_request_at_a_time_always_finds_its_cache(talks: list[int]) -> None:
    router = Router(3, PrefixAffinity(BLOCK))
    served: dict[int, int] = {}
    for number, talk in enumerate(talks):
        rank = router.place(request(str(number), prompt(talk)))
        assert rank is not None
        assert served.setdefault(talk, rank) == rank
        router.forget(str(number))
