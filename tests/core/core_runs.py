"""Requests that an EngineCore works off in this process, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from engine.core.engine_core import EngineCore
from engine.messages import EngineCoreRequest, TokenLogprobs
from engine.sampling_params import SamplingParams
from tests.core.conftest import engine_config
from tests.worker.kernel_choices import KernelChoice, Probe


@contextmanager
def engine(folder: Path, **flags: object) -> Iterator[EngineCore]:
    """One that ends with the block, with the reference kernels unless `flags` say other ones."""
    core = EngineCore(engine_config(folder, **{"kernels": "reference", **flags}))
    try:
        yield core
    finally:
        core.shutdown()


def request(request_id: str, prompt: list[int], max_tokens: int) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        arrival_time=0.0,
    )


@dataclass
class Results:
    """What happened while a core worked off its requests."""

    texts: dict[str, list[int]]
    num_preemptions: int = 0
    num_cached_tokens: int = 0


def run(core: EngineCore, requests: list[EngineCoreRequest]) -> Results:
    for item in requests:
        core.add_request(item)
    results = Results({item.request_id: [] for item in requests})
    while not core.is_idle:
        message = core.step()
        assert message.scheduler_stats is not None
        results.num_preemptions += message.scheduler_stats.num_preemptions_delta
        results.num_cached_tokens += message.scheduler_stats.prefix_cache_hits_delta
        for output in message.outputs:
            results.texts[output.request_id] += output.new_token_ids
    return results


def run_all(core: EngineCore, requests: list[EngineCoreRequest]) -> dict[str, list[int]]:
    return run(core, requests).texts


@dataclass
class Answer:
    """All that a request gets."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    vector: bytes = b""

    def first_logprobs(self) -> dict[int, float]:
        """Of the best tokens behind the prompt: the first one of the list was drawn."""
        entry = self.logprobs[0]
        return dict(sorted(zip(entry.token_ids[1:], entry.logprobs[1:], strict=True)))

    def all_prompt_logprobs(self) -> list[float]:
        """Of the prompt's own tokens."""
        return [entry.logprobs[0] for entry in self.prompt_logprobs]


def answers_of(core: EngineCore, requests: list[EngineCoreRequest]) -> dict[str, Answer]:
    for item in requests:
        core.add_request(item)
    answers = {item.request_id: Answer() for item in requests}
    while not core.is_idle:
        for output in core.step().outputs:
            answer = answers.setdefault(output.request_id, Answer())
            answer.tokens += output.new_token_ids
            answer.logprobs += output.logprobs or []
            answer.prompt_logprobs += output.prompt_logprobs or []
            answer.vector += output.pooling_output or b""
    return answers


def probe(core: EngineCore) -> Probe:
    def what_follows(tokens: list[int]) -> TokenLogprobs:
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=50)
        core.add_request(EngineCoreRequest("probe", tokens, params, arrival_time=0.0))
        while not (outputs := core.step().outputs):
            pass
        assert outputs[0].logprobs is not None
        return outputs[0].logprobs[0]

    return what_follows


def assert_same_texts(
    choice: KernelChoice,
    found: dict[str, list[int]],
    wanted: dict[str, list[int]],
    requests: list[EngineCoreRequest],
    core: EngineCore,
) -> None:
    """Of two arrangements; `core` is an idle one with room."""
    assert found.keys() == wanted.keys()
    for item in requests:
        name = item.request_id
        choice.assert_same(found[name], wanted[name], item.prompt_token_ids, probe(core))


def prompts() -> list[EngineCoreRequest]:
    return [
        request(str(i), [(7 * i + j * j) % 250 for j in range(5 + 9 * i)], 40) for i in range(6)
    ]
