"""The grammars of the engine core, over a byte tokenizer whose ids are easy to name."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import msgspec
import numpy as np
import pytest

from engine.core.engine_core import EngineCore
from engine.core.grammar import grammar_error, load_tokenizer
from engine.core.structured_output import RequestGrammar, StructuredOutputManager
from engine.frontend.tokenizer import Tokenizer
from engine.messages import EngineCoreRequest, FinishReason
from engine.model_config import ModelConfig
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from tests.core.conftest import engine_config
from tests.random_schemas import random_schema
from tests.tiny_model import EOS, VOCAB, write_tiny_llama
from tests.worker.kernel_choices import KernelChoice

PADDED = VOCAB + 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with logits for more ids than its tokenizer has tokens."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), vocab_size=PADDED)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture
def manager(folder: Path) -> Iterator[StructuredOutputManager]:
    made = StructuredOutputManager(ModelConfig.from_folder(folder, "tiny"))
    yield made
    made.shutdown()


def compiled(manager: StructuredOutputManager, spec: StructuredOutputsParams) -> RequestGrammar:
    grammar = manager.start("r", spec)
    while not grammar.is_ready:
        manager.wait(1.0)
    return grammar


def allowed(manager: StructuredOutputManager, grammar: RequestGrammar) -> list[int]:
    mask = manager.bitmask([grammar])
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    return [int(token) for token in np.flatnonzero(bits[0])]


def texts(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return b"".join(tokenizer.token_bytes(token) for token in tokens).decode()


@pytest.mark.parametrize(
    ("spec", "text", "first"),
    [
        (StructuredOutputsParams(regex="[ab]c"), "bc", "ab"),
        (StructuredOutputsParams(choice=("yes", "no")), "no", "ny"),
        (StructuredOutputsParams(grammar='start: "x" | "y" start'), "yyx", "xy"),
        (StructuredOutputsParams(grammar='root ::= "x" | "y" root'), "yyx", "xy"),
        (StructuredOutputsParams(grammar='?start: "x" | "y" start'), "yyx", "xy"),
        (StructuredOutputsParams(grammar='# no.\nroot::= word-1\nword-1 ::= "::="'), "::=", ":"),
        (StructuredOutputsParams(grammar='start: word\n?word: "x"\n  | "::="'), "::=", "x:"),
        (
            StructuredOutputsParams(grammar='{"grammars": [{"lark_grammar": "start: /[xy]/"}]}'),
            "x",
            "xy",
        ),
        (StructuredOutputsParams(json='{"enum": [7, true]}'), "true", "7t"),
        (StructuredOutputsParams(json_object=True), '{"a": [1]}', "{"),
    ],
)
def test_only_what_the_grammar_allows_may_come_and_then_the_end(
    manager: StructuredOutputManager,
    tokenizer: Tokenizer,
    spec: StructuredOutputsParams,
    text: str,
    first: str,
) -> None:
    grammar = compiled(manager, spec)
    assert grammar.error is None
    assert sorted(texts(tokenizer, allowed(manager, grammar))) == sorted(first)
    for token in tokenizer.encode(text, add_special_tokens=False):
        assert token in allowed(manager, grammar)
        assert grammar.accept(token)
        assert not grammar.is_terminated
    assert allowed(manager, grammar) == [EOS]
    assert grammar.accept(EOS)
    assert grammar.is_terminated


def test_the_end_may_come_wherever_the_text_is_complete(
    manager: StructuredOutputManager, tokenizer: Tokenizer
) -> None:
    grammar = compiled(manager, StructuredOutputsParams(regex="a+"))
    (a,) = tokenizer.encode("a", add_special_tokens=False)
    assert allowed(manager, grammar) == [a]
    assert grammar.accept(a)
    assert allowed(manager, grammar) == sorted([a, EOS])
    assert grammar.accept(EOS)
    assert grammar.is_terminated


def test_ids_that_the_tokenizer_lacks_are_never_allowed(manager: StructuredOutputManager) -> None:
    grammar = compiled(manager, StructuredOutputsParams(regex="(?s:.)*"))
    assert manager.bitmask([grammar]).shape == (1, -(-PADDED // 32))
    tokens = allowed(manager, grammar)
    assert max(tokens) == EOS
    assert len(tokens) > 128


def test_a_tokenizer_larger_than_the_logits_is_read_whole(folder: Path) -> None:
    config = dataclasses.replace(ModelConfig.from_folder(folder, "tiny"), vocab_size=200)
    manager = StructuredOutputManager(config)
    grammar = compiled(manager, StructuredOutputsParams(regex="a"))
    assert manager.bitmask([grammar]).shape == (1, -(-VOCAB // 32))
    manager.shutdown()


def test_equal_specs_share_a_compilation_and_not_a_place(
    manager: StructuredOutputManager, tokenizer: Tokenizer
) -> None:
    spec = StructuredOutputsParams(regex="ab")
    first, second = compiled(manager, spec), compiled(manager, dataclasses.replace(spec))
    a, b = tokenizer.encode("ab", add_special_tokens=False)
    assert first.accept(a)
    mask = manager.bitmask([first, second])
    assert [
        int(row[token // 32]) >> token % 32 & 1 for row, token in zip(mask, (b, a), strict=True)
    ]
    assert (mask[0] != mask[1]).any()
    assert len(manager._compiled) == 1


def test_a_token_outside_the_grammar_is_an_error_and_no_exception(
    manager: StructuredOutputManager, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    grammar = compiled(manager, StructuredOutputsParams(regex="secret[0-9]"))
    (z,) = tokenizer.encode("z", add_special_tokens=False)
    assert not grammar.accept(z)
    assert grammar.error
    assert not grammar.accept(z)
    assert not grammar.accept(EOS)  # all that its row of the bitmask allows now
    assert not grammar.is_terminated
    assert "request r failed" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "spec",
    [
        StructuredOutputsParams(regex="(a"),
        StructuredOutputsParams(grammar="start: nothing"),
        StructuredOutputsParams(json='{"type": "x"}'),
        StructuredOutputsParams(json="{"),
        StructuredOutputsParams(),
    ],
)
def test_a_spec_that_cannot_be_compiled_is_named(
    manager: StructuredOutputManager, spec: StructuredOutputsParams
) -> None:
    assert compiled(manager, spec).error
    assert grammar_error(load_tokenizer(manager._model), spec)


def test_a_panic_inside_llguidance_fails_the_request_only(
    manager: StructuredOutputManager,
) -> None:
    schema = {"patternProperties": "é" * 100}
    assert compiled(manager, StructuredOutputsParams(json=json.dumps(schema))).error
    assert compiled(manager, StructuredOutputsParams(regex="a")).error is None


def test_a_damaged_tokenizer_fails_the_request_only(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    config = dataclasses.replace(ModelConfig.from_folder(folder, "tiny"), path=str(tmp_path))
    manager = StructuredOutputManager(config)
    assert "tokenizer" in (compiled(manager, StructuredOutputsParams(regex="a")).error or "")
    manager.shutdown()


def test_old_grammars_are_forgotten(manager: StructuredOutputManager) -> None:
    for number in range(140):
        manager.start("r", StructuredOutputsParams(regex=f"a{{{number}}}"))
    assert len(manager._compiled) == 128
    assert StructuredOutputsParams(regex="a{139}") in manager._compiled


def test_kept_grammars_have_a_bound_in_bytes(manager: StructuredOutputManager) -> None:
    for number in range(12):
        spec = StructuredOutputsParams(regex=f"a{{{number}}}", compiled_bytes=50 << 20)
        manager.start("r", spec)
    assert len(manager._compiled) == 5
    assert manager._num_bytes == 250 << 20


def test_a_grammar_that_cannot_be_compiled_keeps_nothing_but_its_reason(
    manager: StructuredOutputManager,
) -> None:
    spec = StructuredOutputsParams(regex="(a")
    compiled(manager, spec)
    assert isinstance(manager._compiled[spec].result(), str)


def test_json_has_no_room_for_endless_blanks(
    manager: StructuredOutputManager, tokenizer: Tokenizer
) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    spec = StructuredOutputsParams(json=json.dumps(schema))
    for text, fits in (('{"a":1}', True), ('{\n  "a": 1\n}', True), ('{  "a":1}', False)):
        grammar = compiled(manager, spec)
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert all(grammar.accept(token) for token in tokens) is fits


def test_grammars_need_no_torch_and_nothing_until_the_first_is_asked_for() -> None:
    code = (
        "import sys, engine.core.structured_output\n"
        "assert 'llguidance' not in sys.modules\n"
        "from engine.core.grammar import grammar_of\n"
        "from engine.sampling_params import StructuredOutputsParams\n"
        "assert grammar_of(StructuredOutputsParams(regex='a'))\n"
        "import llguidance.numpy\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


SCHEMA = json.dumps(random_schema(1))
SPECS = (
    StructuredOutputsParams(json=SCHEMA),
    None,
    StructuredOutputsParams(regex="[a-z]{30}(-[0-9]{20}){2}"),
    StructuredOutputsParams(choice=("a long choice of words" * 2, "another choice" * 3)),
    None,
    StructuredOutputsParams(json=SCHEMA),
)


def requests() -> list[EngineCoreRequest]:
    """With sampled tokens, so that a random model's text is as odd as can be."""
    return [
        EngineCoreRequest(
            request_id=str(number),
            prompt_token_ids=[(7 * number + j * j) % 250 for j in range(5 + 9 * number)],
            sampling_params=SamplingParams(
                seed=number, max_tokens=60 if spec is None else 300, structured_outputs=spec
            ),
            arrival_time=0.0,
            eos_token_ids=() if spec is None else (EOS,),
        )
        for number, spec in enumerate(SPECS)
    ]


def run(core: EngineCore) -> tuple[dict[str, list[int]], dict[str, FinishReason | None], int]:
    """Outputs, why they ended, and the number of preemptions."""
    outputs: dict[str, list[int]] = {}
    reasons: dict[str, FinishReason | None] = {}
    preemptions = 0
    while not core.is_idle:
        message = core.step()
        assert message.scheduler_stats is not None
        preemptions += message.scheduler_stats.num_preemptions_delta
        for output in message.outputs:
            outputs.setdefault(output.request_id, []).extend(output.new_token_ids)
            reasons[output.request_id] = output.finish_reason
    return outputs, reasons, preemptions


def test_preemption_changes_no_structured_output(wider_folder: Path, choice: KernelChoice) -> None:
    flags = {"max_model_len": 368, "kv_cache_memory_bytes": 8 << 20, **choice.flags}
    roomy = EngineCore(engine_config(wider_folder, **flags))
    tight = EngineCore(engine_config(wider_folder, num_gpu_blocks_override=24, **flags))
    for core in (roomy, tight):
        for request in requests():
            core.add_request(request)
    expected = run(roomy)[0]
    actual, reasons, preemptions = run(tight)
    assert preemptions > 0
    if not choice.tie:
        assert actual == expected
    tokenizer = Tokenizer.from_folder(wider_folder)
    for number, spec in enumerate(SPECS):
        text = texts(tokenizer, actual[str(number)][:-1]) if spec else ""
        assert reasons[str(number)] == (FinishReason.STOP if spec else FinishReason.LENGTH)
        if spec and spec.json:
            jsonschema_rs.validate(json.loads(SCHEMA), json.loads(text))
        elif spec and spec.regex:
            assert re.fullmatch(spec.regex, text)
        elif spec and spec.choice:
            assert text in spec.choice
    for core in (roomy, tight):
        core.shutdown()


def test_nobody_waits_for_the_compilation_of_anothers_grammar(tiny_folder: Path) -> None:
    core = EngineCore(engine_config(tiny_folder))
    may_go_on = threading.Event()
    for _ in range(2):  # every thread of the pool is busy
        core.structured_outputs._pool.submit(may_go_on.wait)
    structured, free = requests()[0], requests()[1]
    core.add_request(structured)
    assert core.step().outputs == []
    core.add_request(free)
    outputs = [output for _ in range(60) for output in core.step().outputs]
    assert {output.request_id for output in outputs} == {"1"}
    assert outputs[-1].finish_reason == FinishReason.LENGTH
    may_go_on.set()
    assert run(core)[1] == {"0": FinishReason.STOP}
    core.shutdown()


def test_a_grammar_that_fails_ends_its_request_only(tiny_folder: Path) -> None:
    core = EngineCore(engine_config(tiny_folder))
    structured, free = requests()[2], requests()[1]
    broken = msgspec.structs.replace(
        structured,
        request_id="broken",
        sampling_params=SamplingParams(
            max_tokens=5, structured_outputs=StructuredOutputsParams(regex="(")
        ),
    )
    for request in (structured, free, broken):
        core.add_request(request)
    reasons: dict[str, FinishReason | None] = {}
    while "2" not in {request.request_id for request in core.scheduler.running}:
        for output in core.step().outputs:
            reasons[output.request_id] = output.finish_reason
    grammar = core.scheduler.requests["2"].grammar
    assert grammar is not None
    assert not grammar.accept(EOS)  # the text is not complete
    reasons |= run(core)[1]
    assert reasons == {
        "1": FinishReason.LENGTH,
        "2": FinishReason.ERROR,
        "broken": FinishReason.ERROR,
    }
    core.shutdown()
