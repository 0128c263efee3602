"""The native set against transformers in float32, and against itself in every other arrangement.

A row's logits must not depend on its company, the chunks, the threads or the blocks: these
comparisons are bit for bit.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.native.model_step import NativeModelStep
from engine.kernels.step_batch import IntArray
from tests.kernels.native_models import (
    VARIANTS,
    VOCAB,
    assert_same,
    native_model,
    random_prompts,
    relative_error,
    save_rounded,
)
from tests.kernels.paged_sequences import PagedSequences, draw_steps, in_chunks
from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("native_set")


@pytest.mark.parametrize("block_size", [16, 32, 48])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_close_to_float32(variant: str, block_size: int, tmp_path: Path) -> None:
    oracle = save_rounded(tmp_path, **VARIANTS[variant])
    prompts = random_prompts(1, 37, 200, 64, 130)
    with torch.inference_mode():
        wanted = [oracle(torch.tensor([prompt])).logits[0] for prompt in prompts]
    model = native_model(tmp_path, block_size=block_size)
    whole = PagedSequences(model, prompts, block_size).run(in_chunks(prompts, 256))
    for result, reference in zip(whole, wanted, strict=True):
        assert relative_error(result, reference) < 0.02
    chunked = PagedSequences(model, prompts, block_size).run(in_chunks(prompts, 13))
    assert_same(chunked, whole)
    (alone,) = PagedSequences(model, prompts[2:3], block_size).run([[200]])
    assert torch.equal(alone, whole[2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("native")
    save_rounded(target, hidden_size=66, num_attention_heads=6, max_position_embeddings=2048)
    return target


@pytest.fixture(scope="module")
def model(folder: Path) -> NativeModelStep:
    return native_model(folder, num_positions=2048)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_schedule_gives_the_same_logits(model: NativeModelStep, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=6))
    prompts = random_prompts(*lengths)
    steps = draw_steps(data, lengths, 60)
    scheduled = PagedSequences(model, prompts, 16, fill=float("nan")).run(steps)
    for prompt, result in zip(prompts, scheduled, strict=True):
        (alone,) = PagedSequences(model, [prompt], 16).run([[len(prompt)]])
        assert torch.equal(result, alone)


@pytest.mark.parametrize("num_threads", [1, 3, 8])
def test_threads_do_not_change_the_result(
    num_threads: int, folder: Path, model: NativeModelStep
) -> None:
    prompts = random_prompts(5, 129, 77)
    steps = [[5, 100, 1], [0, 28, 75], [0, 1, 1]]
    other = native_model(folder, num_threads=num_threads, num_positions=2048)
    results = PagedSequences(other, prompts, 16).run(steps)
    assert_same(results, PagedSequences(model, prompts, 16).run(steps))
    other.close()


def test_long_contexts_that_threads_share(folder: Path, model: NativeModelStep) -> None:
    """With one thread a context stays in one piece; with more, one sequence is split."""
    prompts = random_prompts(1403)
    steps = [[1000], [400], [1], [1], [1]]
    single = native_model(folder, num_threads=1, num_positions=2048)
    whole = PagedSequences(single, prompts, 16).run([[1403]])
    assert_same(PagedSequences(single, prompts, 16).run(steps), whole)
    assert_same(PagedSequences(model, prompts, 16).run(steps), whole)
    assert_same(PagedSequences(model, prompts, 16).run([[1398], [5]]), whole)


def test_unused_slots_are_never_read(model: NativeModelStep) -> None:
    prompts = random_prompts(1, 33, 150)
    steps = [[1, 20, 149], [0, 13, 1]]
    results = PagedSequences(model, prompts, 16, fill=float("nan")).run(steps)
    assert_same(results, PagedSequences(model, prompts, 16).run(steps))


def test_blocks_of_other_sequences_are_untouched(model: NativeModelStep) -> None:
    sequences = PagedSequences(model, random_prompts(20, 20), 16)
    sequences.step([(0, 20), (0, 0)])
    mine = sorted(set(sequences.batch([(0, 20), (0, 0)]).block_table[0, 0].tolist()))
    for layer in sequences.cache:
        others = [block for block in range(len(layer)) if block not in mine]
        assert not layer[others].any()
        assert layer[mine].flatten(1).any(-1).all()


def test_only_the_rows_asked_for_get_logits(model: NativeModelStep) -> None:
    sequences = PagedSequences(model, random_prompts(10), 16)
    batch = sequences.batch([(0, 10)])
    everything = model.forward(batch, sequences.cache)
    for rows in ([], [9], [2, 9]):
        asked = dataclasses.replace(batch, logits_rows=np.array(rows, dtype=np.int64))
        logits = model.forward(asked, sequences.cache)
        assert logits.shape == (len(rows), VOCAB)
        assert logits.dtype == torch.float32
        assert torch.equal(logits, everything[rows])


def test_hidden_states_are_those_before_the_head(tmp_path: Path) -> None:
    oracle = save_rounded(tmp_path)
    model = native_model(tmp_path)
    sequences = PagedSequences(model, random_prompts(40), 16)
    batch = sequences.batch([(0, 40)])
    hidden = model.hidden_states(batch, sequences.cache)
    with torch.inference_mode():
        wanted = oracle.model(torch.tensor(random_prompts(40))).last_hidden_state[0]
        logits = oracle.lm_head(hidden)
    assert hidden.dtype == torch.float32
    assert relative_error(hidden, wanted) < 0.02
    assert relative_error(model.forward(batch, sequences.cache), logits) < 0.01
    last = dataclasses.replace(batch, logits_rows=np.array([39]))
    assert torch.equal(model.hidden_states(last, sequences.cache), hidden[39:])


def with_value(name: str, value: int) -> Callable[[dict[str, IntArray]], None]:
    def change(arrays: dict[str, IntArray]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name].flat[-1] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_value("token_ids", VOCAB), f"vocabulary of {VOCAB}"),
        (with_value("token_ids", -1), f"vocabulary of {VOCAB}"),
        (with_value("positions", 2048), "2048 positions"),
        (with_value("slot_mapping", 32), "cache of 2 blocks"),
        (with_value("slot_mapping", -1), "cache of 2 blocks"),
        (with_value("block_table", 2), "cache of 2 blocks"),
        (with_value("query_start_loc", 11), "query_start_loc"),
        (with_value("query_start_loc", 9), "query_start_loc"),
        (with_value("num_computed", 7), "block table is too short"),
        (with_value("num_computed", -1), "2048 positions"),
        (with_value("logits_rows", 10), "logits row"),
    ],
)
def test_indices_out_of_range_are_refused(
    change: Callable[[dict[str, IntArray]], None], message: str, model: NativeModelStep
) -> None:
    sequences = PagedSequences(model, random_prompts(10), 16)
    batch = sequences.batch([(0, 10)])
    arrays = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    change(arrays)
    with pytest.raises(IndexError, match=message):
        model.forward(dataclasses.replace(batch, **arrays), sequences.cache)
    model.forward(batch, sequences.cache)


def test_weight_bytes_are_the_packed_and_the_embedding(folder: Path) -> None:
    model = native_model(folder)
    hidden, inner, q_size, kv_size = 66, 96, 6 * 32, 2 * 32

    def panels(outputs: int, inputs: int) -> int:
        return -(-outputs // 48) * 48 * inputs * 2

    norm = -(-hidden * 4 // 64) * 64  # float32, on cache lines
    layer = panels(q_size + 2 * kv_size, hidden) + panels(hidden, q_size)
    layer += panels(2 * inner, hidden) + panels(hidden, inner) + 2 * norm
    ends = panels(VOCAB, hidden) + norm + VOCAB * hidden * 2
    assert model.weight_bytes == 3 * layer + ends


# In a process of its own: the threads of the test runner come and go.
OPEN_AND_CLOSE = """
import sys
from pathlib import Path
import psutil
from tests.kernels.native_models import native_model
from tests.waiting import wait_for

def threads_are(wanted):
    # The kernel still counts a thread for a moment after it was joined.
    wait_for(lambda: process.num_threads() == wanted, else_say=lambda: str(process.num_threads()))

process, folder = psutil.Process(), Path(sys.argv[1])
native_model(folder, num_threads=1).close()  # whatever else starts threads has done so
before = process.num_threads()
model = native_model(folder, num_threads=5)
threads_are(before + 4)
model.close()
model.close()
threads_are(before)
native_model(folder, num_threads=5)  # dropped at once
threads_are(before)
"""


def test_closing_ends_the_threads(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", OPEN_AND_CLOSE, str(folder)], check=True, cwd=ROOT)
