from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from engine.frontend.stop_strings import StopStringMatcher


def _feed_all(pieces: list[str], stops: list[str], *, include: bool) -> tuple[str, str | None]:
    matcher, shown = StopStringMatcher(stops, include_stop=include), ""
    for piece in pieces:
        check = matcher.feed(piece)
        shown += check.text
        if check.stop is not None:
            return shown, check.stop
    return shown + matcher.flush(), None


def test_text_passes_through_without_stops() -> None:
    matcher = StopStringMatcher((), include_stop=False)
    assert matcher.feed("abc").text == "abc"
    assert matcher.flush() == ""


def test_possible_beginning_is_held_back_and_released() -> None:
    matcher = StopStringMatcher(["END"], include_stop=False)
    assert matcher.feed("one E").text == "one "
    assert matcher.feed("N").text == ""
    assert matcher.feed("ough").text == "ENough"
    assert matcher.flush() == ""


def test_stop_over_several_pieces_is_cut_off() -> None:
    assert _feed_all(["so E", "N", "D of it"], ["END"], include=False) == ("so ", "END")


def test_stop_is_kept_when_asked_for() -> None:
    assert _feed_all(["so EN", "D of it"], ["END"], include=True) == ("so END", "END")


def test_held_text_comes_out_when_the_request_ends_otherwise() -> None:
    assert _feed_all(["so EN"], ["END"], include=False) == ("so EN", None)


def test_first_complete_stop_wins_however_the_text_is_cut() -> None:
    assert _feed_all(["xabcd"], ["abcd", "bc"], include=False) == ("xa", "bc")
    assert _feed_all(["xa", "bc", "d"], ["abcd", "bc"], include=False) == ("xa", "bc")


def test_longer_stop_wins_when_both_end_together() -> None:
    assert _feed_all(["xabc"], ["bc", "abc"], include=False) == ("x", "abc")


@given(
    text=st.text("abc", max_size=20),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    cuts=st.lists(st.integers(0, 20), max_size=6),
    include=st.booleans(),
)
def test_result_does_not_depend_on_the_pieces(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    shown, stop = _feed_all(pieces, stops, include=include)
    assert (shown, stop) == _feed_all([text], stops, include=include)
    if stop is None:
        assert shown == text
        assert not any(s in text for s in stops)
    else:
        assert text.startswith(shown)
        assert shown.endswith(stop) if include else stop in text
