"""The offline LLM on a real EngineCore process with a tiny random model."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import engine
from engine import LLM, AsyncLLM, SamplingParams
from engine.args import EngineArgs
from engine.errors import (
    ConfigError,
    EngineAsleepError,
    EngineDeadError,
    MemoryBudgetError,
    ModelNotFoundError,
    RequestError,
)
from engine.frontend.chat_template import ChatMessage
from engine.frontend.offline_inputs import parse_engine_args
from tests.tiny_model import EOS, write_tiny_llama
from tests.waiting import wait_for

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
LETTERS = list(range(32, 58))  # A to Z in the tiny model's vocabulary
SMALL: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": "2M"}


def cores(of: int | None = None) -> list[psutil.Process]:
    """EngineCore processes below a process (default: this one)."""
    found = []
    for child in psutil.Process(of).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends just now
            if "--handshake" in child.cmdline():
                found.append(child)
    return found


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def llm(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(str(tiny_folder), **SMALL) as made:
        yield made


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"prompt {number} " * (number + 1) for number in range(12)]
    together = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in together] == prompts
    assert all(output.finished for output in together)
    assert len({output.request_id for output in together}) == 12
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = llm.generate(prompt, GREEDY)
        assert alone.outputs == output.outputs
        assert alone.prompt_token_ids == output.prompt_token_ids
        (answer,) = output.outputs
        assert len(answer.token_ids) == 8
        assert (answer.index, answer.finish_reason, answer.stop_reason) == (0, "length", None)


def test_token_ids_are_prompts_too(llm: LLM) -> None:
    (text,) = llm.generate("Hello", GREEDY)
    ids = text.prompt_token_ids
    for prompts in (ids, [ids], {"prompt_token_ids": ids}, [{"prompt_token_ids": ids}]):
        (output,) = llm.generate(prompts, GREEDY)
        assert output.outputs == text.outputs
        assert output.prompt is None
    (output,) = llm.generate({"prompt": "Hello"}, GREEDY)
    assert output.prompt == "Hello"
    assert llm.generate([]) == []


def test_samples_and_their_seeds(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=12)
    first, second = (llm.generate("samples", params)[0] for _ in range(2))
    assert [answer.index for answer in first.outputs] == [0, 1, 2]
    assert len({answer.text for answer in first.outputs}) == 3
    assert first.outputs == second.outputs


def test_one_setting_per_prompt(llm: LLM) -> None:
    settings = [SamplingParams(temperature=0.0, max_tokens=length) for length in (1, 5, 9)]
    results = llm.generate(["a", "b", "c"], settings)
    assert [len(result.outputs[0].token_ids) for result in results] == [1, 5, 9]
    with pytest.raises(RequestError, match="3 prompts came with 2"):
        llm.generate(["a", "b", "c"], settings[:2])


def test_logprobs_are_vllms_dicts(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=0, ignore_eos=True
    )
    (result,) = llm.generate("logprobs", params)
    (answer,) = result.outputs
    assert answer.logprobs
    chosen = [
        position[token] for position, token in zip(answer.logprobs, answer.token_ids, strict=True)
    ]
    assert [item.rank for item in chosen] == [1] * 4  # greedy
    assert answer.cumulative_logprob == pytest.approx(sum(item.logprob or 0 for item in chosen))
    assert all(len(position) == 2 for position in answer.logprobs)
    assert result.prompt_logprobs
    assert result.prompt_logprobs[0] is None
    assert [list(entry or ()) for entry in result.prompt_logprobs[1:]] == [
        [token] for token in result.prompt_token_ids[1:]
    ]
    assert llm.generate("logprobs", GREEDY)[0].outputs[0].logprobs is None


def test_stop_strings_and_bias_as_untyped_code_writes_them(llm: LLM) -> None:
    loose: dict[str, Any] = {"logit_bias": {EOS: 100.0}, "temperature": 0.0}
    (result,) = llm.generate("x", SamplingParams(**loose))
    assert result.outputs[0].token_ids == [EOS]
    assert (result.outputs[0].text, result.outputs[0].finish_reason) == ("", "stop")
    loose = {"temperature": 0.0, "max_tokens": 8, "allowed_token_ids": LETTERS}
    full = llm.generate("stop here", SamplingParams(**loose))[0].outputs[0].text
    loose["stop"] = full[2]
    (stopped,) = llm.generate("stop here", SamplingParams(**loose))
    assert stopped.outputs[0].text == full[: full.index(full[2])]
    assert stopped.outputs[0].stop_reason == full[2]


def test_chat_renders_the_template(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    message: ChatMessage = {"role": "user", "content": "Hi"}
    parts: ChatMessage = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    (plain,) = llm.chat([message], GREEDY, use_tqdm=True)
    assert plain.prompt == "<s>user: Hi</s><s>assistant: "
    both = llm.chat([[message], [parts, message]], GREEDY)
    assert both[0].outputs == plain.outputs
    assert both[1].prompt == "<s>user: Hi</s><s>user: Hi</s><s>assistant: "
    (other,) = llm.chat([message], GREEDY, add_generation_prompt=False)
    assert other.prompt == "<s>user: Hi</s>"
    shown = capsys.readouterr()
    assert shown.err == "\rPrompts done: 1/1\n"
    assert shown.out == ""


def test_a_wrong_prompt_refuses_the_batch_before_it_starts(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"prompt 1: .*512 tokens.*600 input tokens") as caught:
        llm.generate(["fine", "x" * 600], GREEDY)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(RequestError, match="out of vocabulary"):
        llm.generate([[5, 999]], GREEDY)
    wrong: Any = [[5, "a"]]
    with pytest.raises(RequestError, match="token ids"):
        llm.generate(wrong, GREEDY)
    with pytest.raises(RequestError, match="temperature"):
        llm.generate("x", SamplingParams(temperature=9))
    assert llm.reset_prefix_cache() is True


def test_the_same_prefix_twice_is_cached(llm: LLM) -> None:
    prompt = "a shared beginning of more than thirty-two tokens"
    llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 48
    llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0


async def test_it_works_where_an_event_loop_runs_already(llm: LLM) -> None:
    assert asyncio.get_running_loop().is_running()
    assert len(llm.generate("notebook", GREEDY)[0].outputs[0].token_ids) == 8


def test_threads_may_share_it(llm: LLM) -> None:
    results: list[str] = []

    def ask() -> None:
        results.append(llm.generate("threads", GREEDY)[0].outputs[0].text)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [results[0]] * 4


def test_an_interrupted_wait_aborts_the_requests(llm: LLM) -> None:
    """Ctrl-C reaches the main thread while it waits; blocks are free again afterwards."""
    main = threading.main_thread().ident
    assert main is not None
    long = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True)
    prompts = ["x" * number for number in range(1, 9)]

    def interrupt() -> None:
        while llm._engine.llm.num_unfinished == 0:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts * 20, long)
    thread.join()
    deadline = time.monotonic() + 60
    while not llm.reset_prefix_cache():
        assert time.monotonic() < deadline, "blocks stay in use"


def test_shutdown_leaves_no_process(tiny_folder: Path) -> None:
    before = cores()
    with LLM(str(tiny_folder), **SMALL) as llm:
        (core,) = [process for process in cores() if process not in before]
        llm.generate("x", GREEDY)
    assert gone(core)
    with pytest.raises(EngineDeadError, match="shut down"):
        llm.generate("x", GREEDY)
    llm.shutdown()
    forgotten = LLM(str(tiny_folder), **SMALL)
    (core,) = [process for process in cores() if process not in before]
    del forgotten
    gc.collect()
    assert gone(core)


def test_starts_that_fail_raise_what_ended_them(tiny_folder: Path, tmp_path: Path) -> None:
    before, threads = cores(), set(threading.enumerate())
    with pytest.raises(MemoryBudgetError):
        LLM(str(tiny_folder), dtype="float32", kv_cache_memory_bytes=1000)
    with pytest.raises(ModelNotFoundError, match="no-such-model does not exist"):
        LLM("no-such-model")
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        LLM(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="9999"):
        LLM(str(tiny_folder), max_model_len=9999)
    assert cores() == before
    wait_for(lambda: set(threading.enumerate()) <= threads)


def test_a_built_in_model_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    write_tiny_llama(tmp_path / "models" / "tiny-135m")
    with LLM("tiny-135m", **SMALL) as llm:
        assert len(llm.generate("x", GREEDY)[0].outputs[0].token_ids) == 8


def test_generation_config_gives_the_default_settings(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    text = '{"temperature": 0.5, "top_k": 1, "max_new_tokens": 7}'
    (folder / "generation_config.json").write_text(text)
    with LLM(str(folder), **SMALL) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5, top_k=1)
        first, second = llm.generate(["defaults"] * 2)
        assert first.outputs == second.outputs  # top_k 1 is greedy
        assert len(first.outputs[0].token_ids) == 7


def test_arguments_are_the_flags_of_serve() -> None:
    args = parse_engine_args({"max_model_len": "auto", "kv_cache_memory_bytes": "2G", "seed": 3})
    assert args == EngineArgs(max_model_len=-1, kv_cache_memory_bytes=2 << 30, seed=3)
    for values, message in (
        ({"max_modellen": 5}, "did you mean max_model_len"),
        ({"port": 80}, "takes no argument port"),
        ({"dtype": "int3"}, "use one of auto, bfloat16"),
        ({"kv_cache_memory_bytes": "much"}, "'much' is not a number"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_engine_args(values)


SCRIPT = """
import sys
from engine import LLM, SamplingParams
llm = LLM(sys.argv[1], dtype="float32", kv_cache_memory_bytes="2M")
text = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=3))[0].outputs[0].text
assert not {"torch", "transformers", "fastapi"} & set(sys.modules)
print("pid", __import__("psutil").Process().children(recursive=True)[0].pid)
"""


def test_a_script_from_stdin_ends_with_its_process(tiny_folder: Path) -> None:
    """No `if __name__` guard and no file, as the second seed starts it."""
    done = subprocess.run(
        [sys.executable, "-", str(tiny_folder)],
        input=SCRIPT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("pid ")]
    assert not psutil.pid_exists(int(line.split()[1]))
    assert "Traceback" not in done.stderr
    assert "LLM pid=" in done.stderr


async def test_async_llm_runs_without_a_server(tiny_folder: Path) -> None:
    before = cores()
    args = EngineArgs(dtype="float32", kv_cache_memory_bytes=2 << 20)
    async with AsyncLLM.running(str(tiny_folder), args) as llm:
        request = llm.input_processor.process("r", [1, 2, 3], GREEDY, arrival_time=time.time())
        tokens = [token async for output in llm.generate(request) for token in output.token_ids]
        assert len(tokens) == 8
    assert cores() == before


def test_the_names_of_the_facade() -> None:
    for name in engine.__all__:
        assert getattr(engine, name)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        engine.Nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("level", [1, 2, True])
def test_it_sleeps_and_answers_as_before_when_it_is_awake(llm: LLM, level: int) -> None:
    def text() -> str:
        return llm.generate("ABC", GREEDY)[0].outputs[0].text

    wanted = text()
    llm.sleep(level)
    with pytest.raises(EngineAsleepError, match="sleeps and generates nothing"):
        text()
    llm.wake_up(["weights"])
    with pytest.raises(EngineAsleepError):
        text()
    llm.wake_up(["kv_cache"])
    assert text() == wanted


def test_a_sleep_that_is_none_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="level=3 is not known; use 1 or 2"):
        llm.sleep(3)
    with pytest.raises(RequestError, match="mode=now is not known; use abort, wait or keep"):
        llm.sleep(1, "now")
    with pytest.raises(RequestError, match="tags=all is not known; use weights or kv_cache"):
        llm.wake_up(["all"])
