"""Which rank has which part of a model, and which sizes are refused."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.args import EngineArgs
from engine.config import ParallelConfig
from engine.env import HostDevice
from engine.errors import ConfigError
from engine.model_config import ModelConfig
from engine.node_key import NODE_KEY_VARIABLE, read_node_key
from engine.rank_layout import (
    RankPlace,
    layers_of,
    model_of_rank,
    rank_places,
    require_devices,
    require_layout_fits,
    require_nodes_fit,
    tensor_sizes,
)
from tests.tiny_model import write_tiny_llama

_CPU = HostDevice("cpu", "cpu", None)


def layout(tensor: int, stages: int = 1) -> ParallelConfig:
    return ParallelConfig(
        executor_backend="mp", tensor_parallel_size=tensor, pipeline_parallel_size=stages
    )


def model(folder: Path, **changes: int) -> ModelConfig:
    return ModelConfig.from_folder(write_tiny_llama(folder, **changes), "tiny")


@pytest.mark.parametrize(
    ("tensor", "stages", "names"),
    [
        (1, 1, ["Worker"]),
        (2, 1, ["Worker_TP0", "Worker_TP1"]),
        (1, 2, ["Worker_PP0", "Worker_PP1"]),
        (2, 2, ["Worker_PP0_TP0", "Worker_PP0_TP1", "Worker_PP1_TP0", "Worker_PP1_TP1"]),
    ],
)
def test_ranks_have_the_names_of_vllms_workers(tensor: int, stages: int, names: list[str]) -> None:
    places = rank_places(layout(tensor, stages))
    assert [place.name for place in places] == names
    assert [place.rank for place in places] == list(range(tensor * stages))


def test_the_first_rank_of_the_last_stage_samples() -> None:
    assert [place.is_output for place in rank_places(layout(2, 2))] == [False, False, True, False]


@given(size=st.integers(1, 5000), tensor=st.integers(1, 12))
def test_spans_cover_everything_once(size: int, tensor: int) -> None:
    spans = [RankPlace(rank, tensor).span(size) for rank in range(tensor)]
    assert [item for span in spans for item in span] == list(range(size))
    lengths = RankPlace(0, tensor).span_lengths(size)
    assert lengths == [len(span) for span in spans]
    assert max(lengths) - min(lengths) <= 1


@given(group=st.integers(1, 8), kv=st.integers(1, 8), tensor=st.integers(1, 8))
def test_each_rank_has_the_kv_heads_of_its_query_heads(group: int, kv: int, tensor: int) -> None:
    heads = group * kv
    if heads % tensor or (kv % tensor and tensor % kv):
        return
    for rank in range(tensor):
        place = RankPlace(rank, tensor)
        needed = {head // group for head in place.span(heads)}
        assert needed == set(place.kv_heads(kv))


def test_a_rank_has_its_share_of_a_model(tmp_path: Path) -> None:
    whole = model(tmp_path, num_hidden_layers=5)
    places = rank_places(layout(4, 2))
    parts = [model_of_rank(whole, place) for place in places]
    assert {part.num_attention_heads for part in parts} == {1}
    assert {part.num_key_value_heads for part in parts} == {1}  # two ranks have the same one
    assert {part.intermediate_size for part in parts} == {12}
    assert [layers_of(whole, place) for place in (places[0], places[4])] == [range(3), range(3, 5)]
    assert [part.num_hidden_layers for part in (parts[0], parts[4])] == [3, 2]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tensor_parallel_size": 3}, "4 attention heads .* Sizes that do: 1, 2, 4"),
        ({"pipeline_parallel_size": 3}, "more than the 2 layers"),
        ({"tensor_parallel_size": 0}, "--tensor-parallel-size 0 is out of range"),
        (
            {"distributed_executor_backend": "uni", "tensor_parallel_size": 2},
            "uni runs one rank, and 2 are asked for",
        ),
    ],
)
def test_a_layout_that_cannot_work_is_refused(
    tmp_path: Path, flags: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineArgs(**flags).create_engine_config(model(tmp_path), _CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, [1, 2, 4]),
        ({"num_key_value_heads": 4, "intermediate_size": 50}, [1, 2]),
        ({"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 36}, [1, 3, 6]),
    ],
)
def test_sizes_divide_heads_kv_heads_and_inner_size(
    tmp_path: Path, changes: dict[str, int], sizes: list[int]
) -> None:
    found = model(tmp_path, **changes)
    assert tensor_sizes(found) == sizes
    for size in sizes:
        require_layout_fits(found, layout(size))


def test_one_rank_needs_no_process_of_its_own(tmp_path: Path) -> None:
    config = EngineArgs().create_engine_config(model(tmp_path), _CPU)
    assert config.parallel.executor_backend == "uni"
    config = EngineArgs(tensor_parallel_size=2).create_engine_config(config.model, _CPU)
    assert config.parallel.executor_backend == "mp"


def test_a_rank_without_a_device_is_refused() -> None:
    require_devices(layout(2, 2), 3, 4)
    with pytest.raises(ConfigError) as refusal:
        require_devices(layout(2, 2), 2, 2)
    for words in (
        "--tensor-parallel-size 2 and --pipeline-parallel-size 2 need 4 GPUs",
        "and 2 can be seen",
        "at most 2",
        "CUDA_VISIBLE_DEVICES",
        "several machines: --nnodes",
    ):
        assert words in str(refusal.value)


def test_a_copy_without_devices_is_told_how_many_all_copies_need() -> None:
    parallel = dataclasses.replace(layout(2), data_parallel_size=3, data_parallel_rank=1)
    require_devices(parallel, 1, 2)
    with pytest.raises(ConfigError) as refusal:
        require_devices(parallel, 0, 0)
    assert str(refusal.value) == (
        "--data-parallel-size 3 with 2 GPUs for each copy needs 6 GPUs, and copy 1 sees 0 of its "
        "own. Use fewer copies, or let CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES on ROCm) name "
        "more."
    )


@pytest.mark.parametrize(
    ("changes", "is_headless", "words"),
    [
        ({"nnodes": 1, "node_rank": 1}, False, "--node-rank 1 is for one of several machines"),
        ({"nnodes": 1}, True, "--headless is for one of several machines"),
        ({}, True, "--headless is for the nodes behind the first one"),
        ({"executor_backend": "ray"}, False, "there is one command for all machines"),
        ({"data_parallel_size": 2}, False, "--data-parallel-size is 2"),
        ({"nnodes": 3}, False, "Numbers that do: 1, 2, 4."),
        ({"node_key_file": None}, False, "--nnodes needs a secret that all nodes share"),
        ({"node_key_file": "short.key"}, False, "short.key holds 5 bytes, and a secret has 16"),
        ({"node_key_file": "none.key"}, False, "--node-key-file none.key cannot be read"),
        ({"node_key_file": "~nobody-here/key"}, False, "~nobody-here/key cannot be read"),
        ({"master_addr": "0.0.0.0"}, False, "'0.0.0.0' is not the address of one machine"),
        ({"master_addr": ""}, False, "--master-addr '' is not the address"),
        ({"master_addr": "a..b"}, False, "--master-addr 'a..b' is not the address"),
    ],
)
def test_nodes_that_cannot_work_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    is_headless: bool,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(NODE_KEY_VARIABLE, raising=False)
    (tmp_path / "short.key").write_text("short")
    (tmp_path / "node.key").write_text("0123456789abcdef")
    right: dict[str, Any] = {"executor_backend": "mp", "nnodes": 2, "node_key_file": "node.key"}
    require_nodes_fit(dataclasses.replace(layout(2, 2), **right), is_headless=False)
    with pytest.raises(ConfigError) as refusal:
        require_nodes_fit(
            dataclasses.replace(layout(2, 2), **{**right, **changes}), is_headless=is_headless
        )
    assert words in str(refusal.value)


def test_a_secret_may_be_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NODE_KEY_VARIABLE, os.fsdecode(b"\xff" * 16))
    assert read_node_key(None) == b"\xff" * 16


def test_ranks_are_numbered_node_by_node() -> None:
    parallel = dataclasses.replace(layout(2, 3), nnodes=2, node_rank=1)
    assert parallel.local_ranks == range(3, 6)
    assert parallel.ranks_of_node(0) == range(3)
