"""The lookup of earlier places against a search through the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.sched.ngram_index import NgramIndex, continuation

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def agreement(tokens: list[int], place: int, text: list[int], most: int) -> int:
    count = 0
    while count < min(most, place, len(text)) and tokens[place - 1 - count] == text[-1 - count]:
        count += 1
    return count


@given(tokens=TEXTS, cuts=st.lists(st.integers(0, 60), max_size=4), least=st.integers(1, 5))
def test_the_place_found_agrees_as_far_as_it_says(
    tokens: list[int], cuts: list[int], least: int
) -> None:
    index = NgramIndex(least, 8)
    for end in sorted(min(cut, len(tokens)) for cut in cuts):
        index.extend(tokens[:end])
    index.extend(tokens)
    place, agreed = index.find(tokens, tokens)
    possible = [agreement(tokens, at, tokens, 8) for at in range(1, len(tokens))]
    if agreed:
        assert 0 < place < len(tokens)
        assert agreed == agreement(tokens, place, tokens, 8) >= least
    else:  # the newest places alone are compared, so a longer one further back may be missed
        assert max(possible, default=0) < least or least > 3


@given(tokens=TEXTS, text=TEXTS)
def test_another_text_is_looked_up_too(tokens: list[int], text: list[int]) -> None:
    index = NgramIndex(2, 8)
    index.extend(tokens)
    place, agreed = index.find(tokens, text)
    if agreed:
        assert tokens[place - agreed : place] == text[len(text) - agreed :]
        assert place < len(tokens)


def test_the_longest_agreement_wins_and_then_the_newest() -> None:
    tokens = [9, 1, 2, 3, 7, 1, 2, 3, 8, 9, 1, 2, 3]
    index = NgramIndex(2, 8)
    index.extend(tokens)
    assert index.find(tokens, tokens) == (4, 4)
    assert index.find(tokens, [5, 1, 2, 3]) == (8, 3)


def test_a_long_agreement_is_found_behind_many_short_ones() -> None:
    tokens = [5, 6, 7, 8, *[7, 0, 7, 1] * 20]
    index = NgramIndex(1, 8)
    index.extend(tokens)
    assert index.find(tokens, [5, 6, 7]) == (3, 3)
    assert index.find(tokens, [2, 2, 7])[1] == 1


def test_what_ends_early_goes_round() -> None:
    assert continuation([1, 2, 3, 4], 2, 5) == [3, 4, 3, 4, 3]
    assert continuation([1, 2, 3, 4], 1, 2) == [2, 3]
