from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders
from tokenizers.models import BPE

from engine.frontend.detokenizer import IncrementalDetokenizer
from engine.frontend.tokenizer import Tokenizer
from tests.tiny_model import EOS

_BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.fixture(scope="module")
def fallback_tokenizer() -> Tokenizer:
    """Llama 2's kind: words with a mark for the space, bytes for everything else."""
    words = ["<unk>", "▁", "▁hello", "▁world", "a", "b", *_BYTE_TOKENS]
    fast = FastTokenizer(
        BPE(
            vocab={word: i for i, word in enumerate(words)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    fast.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return Tokenizer(fast, {})


def _pieces(tokenizer: Tokenizer, prompt: list[int], token_ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=True)
    return [detokenizer.feed([token_id]) for token_id in token_ids]


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")))
def test_no_piece_holds_half_a_character(byte_tokenizer: Tokenizer, text: str) -> None:
    token_ids = byte_tokenizer.encode(text, add_special_tokens=False)
    prompt = byte_tokenizer.encode("Ask: ", add_special_tokens=False)
    pieces = _pieces(byte_tokenizer, prompt, token_ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_emoji_appears_with_its_last_byte(byte_tokenizer: Tokenizer) -> None:
    token_ids = byte_tokenizer.encode("a🗼b", add_special_tokens=False)
    assert _pieces(byte_tokenizer, [], token_ids) == ["a", "", "", "", "🗼", "b"]


def test_prompt_that_ends_inside_a_character(byte_tokenizer: Tokenizer) -> None:
    token_ids = byte_tokenizer.encode("日本", add_special_tokens=False)
    assert "".join(_pieces(byte_tokenizer, token_ids[:1], token_ids[1:])) == "日本"


def test_incomplete_character_at_the_end_is_not_shown(byte_tokenizer: Tokenizer) -> None:
    token_ids = byte_tokenizer.encode("a日", add_special_tokens=False)[:-1]
    assert "".join(_pieces(byte_tokenizer, [], token_ids)) == "a"


def test_invalid_bytes_do_not_stop_the_text(byte_tokenizer: Tokenizer) -> None:
    lone = byte_tokenizer.encode("日", add_special_tokens=False)[1]
    tail = byte_tokenizer.encode("ok", add_special_tokens=False)
    assert "".join(_pieces(byte_tokenizer, [], [lone, *tail])) == "\ufffdok"
    # A model that writes nothing but invalid bytes is shown as such, in bounded time.
    endless = "".join(_pieces(byte_tokenizer, [], [lone] * 500))
    assert set(endless) == {"\ufffd"}
    assert len(endless) > 480


def test_special_tokens_are_left_out_or_shown(byte_tokenizer: Tokenizer) -> None:
    hidden = IncrementalDetokenizer(byte_tokenizer, [], skip_special_tokens=True)
    shown = IncrementalDetokenizer(byte_tokenizer, [], skip_special_tokens=False)
    assert hidden.feed([EOS]) == ""
    assert shown.feed([EOS]) == "</s>"


def test_spaces_survive_in_every_window(fallback_tokenizer: Tokenizer) -> None:
    hello, world = 2, 3
    token_ids = [hello, world] * 60
    text = "".join(_pieces(fallback_tokenizer, [hello], token_ids))
    assert text == " hello world" * 60


@settings(deadline=None)
@given(text=st.text(st.sampled_from("é日🗼ñ"), min_size=1, max_size=40))
def test_byte_fallback_characters_are_whole(fallback_tokenizer: Tokenizer, text: str) -> None:
    first_byte = 6
    token_ids = [first_byte + byte for byte in text.encode()]
    pieces = _pieces(fallback_tokenizer, [4], token_ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("kind", ["byte_tokenizer", "fallback_tokenizer"])
def test_looked_up_tokens_give_the_pieces_of_decoded_windows(
    kind: str, skips: bool, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    assert tokenizer.pieces(skip_special_tokens=skips) is not None
    token = st.integers(0, tokenizer.vocab_size + 1)
    words = st.sampled_from(tokenizer.encode("hello world a日b", add_special_tokens=False))

    def pieces(prompt: list[int], token_ids: list[int]) -> list[str]:
        detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skips)
        return [detokenizer.feed([token_id]) for token_id in token_ids]

    @settings(deadline=None, max_examples=150)
    @given(
        prompt=st.lists(st.one_of(token, words), max_size=12),
        token_ids=st.lists(st.one_of(token, words, words), max_size=60),
    )
    def check(prompt: list[int], token_ids: list[int]) -> None:
        looked_up = pieces(prompt, token_ids)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tokenizer, "pieces", lambda **_: None)
            assert pieces(prompt, token_ids) == looked_up

    check()


def test_decoders_that_look_at_neighbours_have_no_table() -> None:
    fast = FastTokenizer(BPE(vocab={"a": 0}, merges=[]))
    looking = (
        decoders.WordPiece(),
        decoders.Metaspace(),
        decoders.CTC(),
        decoders.Strip(content=" ", left=2, right=0),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
    )
    for decoder in looking:
        fast.decoder = decoder
        assert Tokenizer(fast, {}).pieces(skip_special_tokens=True) is None
