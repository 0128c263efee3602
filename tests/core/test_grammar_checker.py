"""Grammars are tried in a process of its own, with limits, before a request is queued."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from engine.core.grammar import (
    MAX_GRAMMAR_CHARS,
    GrammarModel,
    compile_grammar,
    load_tokenizer,
)
from engine.core.grammar_checker import GrammarChecker
from engine.core.grammar_worker import LIMIT_CPU_S
from engine.sampling_params import StructuredOutputsParams
from tests.tiny_model import EOS, VOCAB

# What an alternative costs grows with their number.
SLOW = StructuredOutputsParams(grammar="start: " + "|".join(f'"{i:x}"' for i in range(65_000)))
GOOD = StructuredOutputsParams(regex="[a-z]{3}")


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> GrammarModel:
    return GrammarModel(str(tiny_folder), VOCAB, (EOS,))


@pytest.fixture
async def checker(model: GrammarModel) -> AsyncGenerator[GrammarChecker, None]:
    made = GrammarChecker(model)
    yield made
    await made.close()


def as_json(schema: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(json=json.dumps(schema))


CYCLE = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (as_json({"$ref": "#"}), "no text can follow it"),
        (as_json(CYCLE), "no text can follow it"),
        (StructuredOutputsParams(regex="a{1000000}"), "too many"),
        (StructuredOutputsParams(grammar='start: ("ab")~1000000'), "Too many items"),
        (StructuredOutputsParams(grammar='start: "a"\nstart: "b"'), "duplicate rule"),
        (StructuredOutputsParams(choice=("x" * MAX_GRAMMAR_CHARS, "y")), str(MAX_GRAMMAR_CHARS)),
        (as_json({"patternProperties": "é" * 100}), "patternProperties|byte index|char boundary"),
        (StructuredOutputsParams(regex="(a"), "unclosed"),
    ],
)
async def test_what_could_not_be_followed_is_refused_with_the_reason(
    checker: GrammarChecker, spec: StructuredOutputsParams, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        await checker.check(spec)
    assert "backtrace" not in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        GOOD,
        as_json(TREE),
        as_json({"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(400)}}),
        StructuredOutputsParams(choice=tuple(f"city {i}" for i in range(20_000))),
        StructuredOutputsParams(grammar='start: "a" | start "b"'),
        StructuredOutputsParams(json_object=True),
    ],
)
async def test_what_can_be_followed_comes_back_with_its_size(
    checker: GrammarChecker, spec: StructuredOutputsParams
) -> None:
    checked = await checker.check(spec)
    assert 0 <= checked.compiled_bytes < 64 << 20
    assert (checked.json, checked.regex, checked.choice) == (spec.json, spec.regex, spec.choice)


async def test_a_slow_grammar_is_ended_at_its_limit_and_holds_up_nobody(
    checker: GrammarChecker,
) -> None:
    slow = asyncio.create_task(checker.check(SLOW))
    await checker.check(GOOD)
    assert not slow.done()
    with pytest.raises(ValueError, match=f"more than {LIMIT_CPU_S} s"):
        await slow
    with pytest.raises(ValueError, match=f"more than {LIMIT_CPU_S} s"):
        await checker.check(SLOW)  # remembered


async def test_a_queue_of_large_grammars_holds_up_no_small_one(checker: GrammarChecker) -> None:
    large = [StructuredOutputsParams(grammar=f"{SLOW.grammar}|{number}") for number in range(3)]
    slow = [asyncio.create_task(checker.check(spec)) for spec in large]
    await asyncio.sleep(0)
    await checker.check(GOOD)
    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_who_leaves_takes_the_check_along(checker: GrammarChecker) -> None:
    slow = [asyncio.create_task(checker.check(SLOW)) for _ in range(2)]
    others = [StructuredOutputsParams(grammar=f"{SLOW.grammar} | {number}") for number in range(9)]
    slow += [asyncio.create_task(checker.check(spec)) for spec in others]
    await asyncio.sleep(0)
    assert len(checker._checks) == 10
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert not checker._checks
    await checker.check(GOOD)  # all seats would be taken for many times the limit


async def test_equal_grammars_are_checked_once(checker: GrammarChecker) -> None:
    await asyncio.gather(*(checker.check(GOOD) for _ in range(5)))
    await checker.check(GOOD)
    assert next(checker._process._numbers) == 1


async def test_another_process_takes_over_when_one_is_killed(checker: GrammarChecker) -> None:
    await checker.check(GOOD)
    process = checker._process._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await checker.check(StructuredOutputsParams(regex="[0-9]"))


async def test_a_damaged_tokenizer_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    checker = GrammarChecker(GrammarModel(str(tmp_path), VOCAB, (EOS,)))
    with pytest.raises(ValueError, match="tokenizer cannot be used"):
        await checker.check(GOOD)
    await checker.close()


@pytest.mark.parametrize("choices", [("a/b", 'q"', "é\\d", "x\ny"), ("", "a.b*c#d&e~f-g h", "$^|")])
def test_choices_are_taken_as_they_are(model: GrammarModel, choices: tuple[str, ...]) -> None:
    tokenizer = load_tokenizer(model)
    for choice in choices:
        matcher = compile_grammar(tokenizer, StructuredOutputsParams(choice=choices))
        for token in tokenizer.tokenize_str(choice):
            assert matcher.consume_token(token), choice
        assert matcher.is_accepting()
    matcher = compile_grammar(tokenizer, StructuredOutputsParams(choice=choices))
    assert not matcher.consume_token(tokenizer.tokenize_str("Z")[0])


def test_an_ambiguous_grammar_ends_at_the_limit_of_a_token(model: GrammarModel) -> None:
    tokenizer = load_tokenizer(model)
    spec = StructuredOutputsParams(grammar='start: s\ns: s s | s s s | "a" | ""')
    matcher = compile_grammar(tokenizer, spec)
    (a,) = tokenizer.tokenize_str("a")
    for _ in range(400):
        matcher.compute_bitmask()
        if not matcher.consume_token(a):
            break
    assert "Current row" in matcher.get_error()
