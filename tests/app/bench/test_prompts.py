from __future__ import annotations

from pathlib import Path

import pytest

from app.bench.prompts import (
    DatasetPrompts,
    LengthRange,
    PromptMaker,
    WordCosts,
    measure_words,
    parse_range,
    read_dataset,
)
from app.errors import ExitCode, StokerError

OUTPUTS = LengthRange(4, 4)


def bytes_and_bos(text: str) -> int:
    """A tokenizer that has one token for each byte and one before the prompt."""
    return 1 + len(text)


def words_only(text: str) -> int:
    return len(text.split())


def maker(costs: WordCosts, low: int, high: int | None = None, **changes: object) -> PromptMaker:
    options: dict[str, object] = {"share": 0.0, "seed": "1", **changes}
    return PromptMaker(costs, LengthRange(low, high or low), OUTPUTS, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [bytes_and_bos, words_only])
def test_prompts_have_exactly_the_length_asked_for(count: object) -> None:
    costs = measure_words(count)  # type: ignore[arg-type]

    for length in (12, 13, 14, 15, 60, 257):
        for prompt in maker(costs, length).take(5):
            assert isinstance(prompt.content, str)
            assert count(prompt.content) == length == prompt.num_tokens  # type: ignore[operator]


def test_a_length_that_cannot_be_made_says_what_it_is() -> None:
    costs = measure_words(lambda text: 10 + len(text.split()))

    prompt = maker(costs, 3).take(1)[0]

    assert prompt.num_tokens == 11
    assert costs.template_tokens == 10


def test_prompts_never_repeat_and_follow_the_seed() -> None:
    costs = measure_words(words_only)
    prompts = [prompt.content for prompt in maker(costs, 3).take(500)]

    assert len(set(map(str, prompts))) == 500
    assert [prompt.content for prompt in maker(costs, 3).take(500)] == prompts
    assert [prompt.content for prompt in maker(costs, 3, seed="2").take(500)] != prompts


def test_too_few_different_prompts_are_an_error() -> None:
    costs = measure_words(words_only)

    with pytest.raises(StokerError, match="not enough different prompts of 1 tokens") as caught:
        maker(costs, 1).take(200)
    assert caught.value.exit_code == ExitCode.USAGE


def test_lengths_are_spread_over_the_range() -> None:
    lengths = {prompt.num_tokens for prompt in maker(measure_words(None), 5, 9).take(200)}

    assert lengths == {5, 6, 7, 8, 9}


def test_turns_that_cannot_grow_are_an_error() -> None:
    """The same prompt again would be answered by the prefix cache."""
    costs = measure_words(bytes_and_bos)  # no word is shorter than two
    growing = maker(costs, 20, 28, turns=5).take(5)
    assert [prompt.num_tokens for prompt in growing] == [20, 22, 24, 26, 28]
    for high in (20, 27):
        with pytest.raises(StokerError, match="each of 5 turns is longer"):
            maker(costs, 20, high, turns=5)


def test_a_share_of_each_prompt_is_the_same() -> None:
    prompts = maker(measure_words(words_only), 20, share=0.5).take(30)
    words = [str(prompt.content).split() for prompt in prompts]

    assert len({tuple(part[:10]) for part in words}) == 1
    assert len({part[10] for part in words}) > 1


def test_words_of_unclear_cost_are_not_used() -> None:
    def merging(text: str) -> int:
        """Two "a" in a row become one token."""
        return len(text.replace("a a", "aa").split())

    costs = measure_words(merging)

    assert "a" not in costs.later
    assert "time" in costs.later


def test_a_tokenizer_that_fits_no_word_leaves_lengths_unmeasured() -> None:
    assert not measure_words(lambda _text: 1).is_measured


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "5:3", ":5", "1:x", "²", "9" * 5000])
def test_bad_ranges(text: str) -> None:
    with pytest.raises(StokerError, match="--prompt-tokens"):
        parse_range("--prompt-tokens", text)


def test_ranges() -> None:
    assert parse_range("--prompt-tokens", "60") == LengthRange(60, 60)
    assert str(parse_range("--prompt-tokens", "32:512")) == "32:512"


def test_a_dataset_is_shuffled_and_says_when_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(f'{{"prompt": "p{number}"}}\n' for number in range(9)) + "\n")
    prompts = DatasetPrompts(read_dataset(path), OUTPUTS, 0.0, "1")

    first = [prompt.content for prompt in prompts.take(9)]
    assert sorted(map(str, first)) == [f"p{number}" for number in range(9)]
    assert prompts.num_repeated == 0
    assert [prompt.content for prompt in prompts.take(2)] == first[:2]
    assert prompts.num_repeated == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompt"),
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 has neither"),
        ('{"prompt": 5}', "line 1 has neither"),
        ('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}', "mixes"),
    ],
)
def test_bad_datasets(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(text)

    with pytest.raises(StokerError, match=message):
        read_dataset(path)


def test_a_missing_dataset(tmp_path: Path) -> None:
    with pytest.raises(StokerError, match="cannot be read"):
        read_dataset(tmp_path / "none.jsonl")
