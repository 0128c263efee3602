"""Drafts change how many tokens a step gives, and never which: real engines, with and without."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from engine.core.engine_core import EngineCore
from engine.messages import EngineCoreRequest, FinishReason, TokenLogprobs
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from engine.sched import drafts, step_costs
from engine.speculative_config import NO_DRAFTS
from tests.core.conftest import engine_config
from tests.core.core_runs import assert_same_texts, engine, run
from tests.kernels.native_models import native_library
from tests.worker.kernel_choices import KernelChoice

NGRAM = json.dumps(
    {
        "method": "ngram",
        "num_speculative_tokens": 6,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 8,
    }
)
FORCED = r"\{\"temperature of the sea\": [0-9]{2}, \"colour\": \"(blue|green)\"\}"
PRESSED = {"max_num_batched_tokens": 48, "num_gpu_blocks_override": 14, "max_model_len": 192}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every guess is tried, whatever it costs."""
    monkeypatch.setattr(drafts, "_LEAST_GAIN", 0.0)
    monkeypatch.setattr(step_costs.StepCosts, "of", lambda _costs, _rows: 1.0)
    monkeypatch.setattr(drafts, "_LEAST_CHANCE", 0.0)


def asked(name: str, prompt: list[int], **settings: object) -> EngineCoreRequest:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 60, **settings})  # type: ignore[arg-type]
    return EngineCoreRequest(name, prompt, params, arrival_time=0.0)


def requests() -> list[EngineCoreRequest]:
    """Prompts that say things twice, so that there is something to guess; every kind of setting."""
    phrase = [(11 * i) % 90 for i in range(20)]
    twice = [*phrase, 7, 8, *phrase, 9]
    return [
        asked("twice", twice),
        asked("long", [*twice, *twice], max_tokens=50),
        asked("alone", [3]),
        asked("seeded", twice, temperature=0.9, seed=5, top_k=4),
        asked("random", phrase * 2, temperature=1.3, seed=6, top_p=0.8, min_p=0.02),
        asked("penalised", twice, repetition_penalty=1.3, presence_penalty=0.5),
        asked("edited", twice, logit_bias=((5, 2.0),), min_tokens=3),
        asked("kept apart", twice, bad_words_token_ids=((7, 8), (9,), (4,)), min_tokens=20),
        asked("often said", twice, temperature=0.8, seed=9, frequency_penalty=0.4),
        asked("digits", phrase, structured_outputs=StructuredOutputsParams(regex="[0-9]{12}")),
        asked("forced", phrase, structured_outputs=StructuredOutputsParams(regex=FORCED)),
        asked(
            "seeded and forced",
            twice,
            temperature=1.0,
            seed=3,
            structured_outputs=StructuredOutputsParams(regex=FORCED),
        ),
    ]


@pytest.mark.parametrize("flags", [{}, PRESSED], ids=["with room", "pressed"])
def test_drafts_change_no_token(
    wider_folder: Path, choice: KernelChoice, flags: dict[str, object]
) -> None:
    every = requests()
    plain = EngineCore(engine_config(wider_folder, **choice.flags, **flags))
    try:
        wanted = run(plain, every)
        core = EngineCore(
            engine_config(wider_folder, speculative_config=NGRAM, **choice.flags, **flags)
        )
        try:
            found = run(core, every)
            again = run(core, every)  # from cached prefixes, and from the answers remembered
        finally:
            core.shutdown()
        if flags:
            assert found.num_preemptions
        assert again.num_cached_tokens
        # Where rounding may swap tokens, no probe tells what a seed or a grammar would have chosen.
        exact = [
            item
            for item in every
            if not choice.tie
            or (item.sampling_params.is_greedy and item.sampling_params.structured_outputs is None)
        ]
        for texts in (found.texts, again.texts):
            some = {item.request_id: texts[item.request_id] for item in exact}
            same = {item.request_id: wanted.texts[item.request_id] for item in exact}
            assert_same_texts(choice, some, same, exact, plain)
    finally:
        plain.shutdown()


def test_drafts_save_steps_and_are_counted(tiny_folder: Path) -> None:
    core = EngineCore(engine_config(tiny_folder, speculative_config=NGRAM))
    answer = run(core, [asked("a", [5, 6, 7] * 6, max_tokens=100)]).texts["a"]
    core.add_request(asked("b", [5, 6, 7] * 6, max_tokens=100))
    num_steps = tried = kept = num_drafts = 0
    by_place: list[int] = []
    tokens = []
    while not core.is_idle:
        message = core.step()
        num_steps += 1
        tokens += [token for output in message.outputs for token in output.new_token_ids]
        stats = message.scheduler_stats
        assert stats is not None
        assert stats.drafts is not None
        num_drafts += stats.drafts.num_drafts
        tried += stats.drafts.num_draft_tokens
        kept += stats.drafts.num_accepted_tokens
        by_place += stats.drafts.accepted_by_place
    core.shutdown()
    assert tokens == answer
    assert num_steps < 40  # the answer before is the draft
    assert 0 < kept <= tried <= 6 * num_drafts
    assert sum(by_place) == kept
    assert len(tokens) == kept + num_steps


def test_what_a_grammar_forces_takes_few_steps(tiny_folder: Path) -> None:
    steps, texts = [], []
    for config in (None, NGRAM):
        core = EngineCore(engine_config(tiny_folder, speculative_config=config))
        structure = StructuredOutputsParams(regex=FORCED)
        core.add_request(asked("a", [5, 6, 7], structured_outputs=structure))
        count, tokens = 0, []
        while not core.is_idle:
            message = core.step()
            count += message.scheduler_stats is not None and bool(
                message.scheduler_stats.num_scheduled_tokens
            )
            tokens += [token for output in message.outputs for token in output.new_token_ids]
        core.shutdown()
        steps.append(count)
        texts.append(tokens)
    assert texts[1] == texts[0]
    assert steps[1] < 0.7 * steps[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.05},
        {"frequency_penalty": 0.01, "presence_penalty": 0.02},
        {"logit_bias": ((5, 0.5),)},
        {"min_tokens": 30},
        {"bad_words_token_ids": ((95, 96),)},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_changes_logits_is_drafted_too(tiny_folder: Path, settings: dict[str, object]) -> None:
    plain = EngineCore(engine_config(tiny_folder))
    prompt = [5, 6, 7] * 6
    wanted = run(plain, [asked("a", prompt, **settings)]).texts["a"]
    plain.shutdown()
    core = EngineCore(engine_config(tiny_folder, speculative_config=NGRAM))
    for name in ("a", "b"):  # the second one is guessed from the first one's answer
        core.add_request(asked(name, prompt, **settings))
        steps, tokens = 0, []
        while not core.is_idle:
            steps += 1
            tokens += [token for output in core.step().outputs for token in output.new_token_ids]
        assert tokens == wanted
    core.shutdown()
    assert steps < 0.7 * len(wanted)


def test_log_probabilities_belong_to_the_tokens_that_were_kept(tiny_folder: Path) -> None:
    found = []
    for config in (None, NGRAM):
        core = EngineCore(engine_config(tiny_folder, speculative_config=config))
        core.add_request(asked("a", [5, 6, 7] * 6, logprobs=3, prompt_logprobs=1))
        entries: list[tuple[int, TokenLogprobs]] = []
        while not core.is_idle:
            for output in core.step().outputs:
                assert output.logprobs is not None
                assert len(output.logprobs) == len(output.new_token_ids)
                entries += zip(output.new_token_ids, output.logprobs, strict=True)
        core.shutdown()
        found.append(entries)
    for (token, entry), (wanted, other) in zip(*found, strict=True):
        assert token == wanted == entry.token_ids[0]
        assert entry.token_ids == other.token_ids
        assert entry.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_an_end_inside_a_draft_ends_the_request_there(tiny_folder: Path) -> None:
    plain = EngineCore(engine_config(tiny_folder))
    prompt = [5, 6, 7] * 6
    texts = run(plain, [asked("a", prompt)]).texts["a"]
    plain.shutdown()
    stop = texts[40]
    first = texts.index(stop)
    core = EngineCore(engine_config(tiny_folder, speculative_config=NGRAM))
    for name in ("a", "b"):  # the second one is guessed from the first one's answer
        request = asked(name, prompt)
        core.add_request(msgspec.structs.replace(request, eos_token_ids=(stop,)))
        tokens, reasons = [], []
        while not core.is_idle:
            for output in core.step().outputs:
                tokens += output.new_token_ids
                reasons.append(output.finish_reason)
        assert tokens == texts[: first + 1]
        assert reasons[-1] is FinishReason.STOP
        assert core.scheduler.kv_cache_manager.usage == 0
    core.shutdown()


def test_a_server_of_one_request_drafts_too(tiny_folder: Path) -> None:
    request = asked("a", [5, 6, 7] * 6)
    with engine(tiny_folder) as plain:
        wanted = run(plain, [request]).texts
    with engine(tiny_folder, speculative_config=NGRAM, max_num_seqs=1) as core:
        first = run(core, [request, msgspec.structs.replace(request, request_id="b")])
        num_steps = 0
        core.add_request(msgspec.structs.replace(request, request_id="c"))
        while not core.is_idle:
            core.step()
            num_steps += 1
    assert first.texts == {"a": wanted["a"], "b": wanted["a"]}
    assert num_steps < 0.5 * len(wanted["a"])


@pytest.mark.parametrize(
    ("flags", "is_drafting"),
    [
        ({}, True),
        ({"distributed_executor_backend": "mp"}, True),
        ({"speculative_config": NO_DRAFTS}, False),
        ({"block_size": 8}, False),  # too small for the native kernels
        ({"block_size": 8, "speculative_config": NGRAM}, True),
    ],
    ids=str,
)
def test_drafts_by_default_are_those_of_native_kernels(
    wider_folder: Path,
    flags: dict[str, object],
    is_drafting: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    native_library()
    with caplog.at_level("INFO", logger="engine"):
        flags = {"dtype": "bfloat16", "speculative_config": None, **flags}
        core = EngineCore(engine_config(wider_folder, **flags))
    try:
        stats = core.stats_message().scheduler_stats
    finally:
        core.shutdown()
    assert stats is not None
    assert (stats.drafts is not None) == is_drafting
    assert ("Drafts (n-gram lookup) are on" in caplog.text) == is_drafting
