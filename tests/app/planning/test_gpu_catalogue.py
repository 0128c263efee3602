"""Cards by name: as people, drivers and shops write them."""

from __future__ import annotations

import pytest

from app.errors import ExitCode, StokerError
from app.planning.gpu_catalogue import find_gpu, known_gpus
from engine.machine.sizes import GIB


def test_every_card_is_found_by_its_own_name() -> None:
    known = list(known_gpus())

    assert len(known) > 120
    assert [find_gpu(gpu.name) for gpu in known] == known


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gb10", "gb10"),
        ("DGX Spark", "gb10"),
        ("rtx3080", "rtx3080"),
        ("rtx 5060 ti 16gb", "rtx5060ti-16gb"),
        ("l20", "l20"),
        ("NVIDIA H800", "h800"),
        ("mi355x", "mi355x"),
        ("b300", "b300"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("a100-40gb", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H100 NVL 94GB", "h100-94gb"),
        ("NVIDIA H100 NVL", "h100-94gb"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx4090laptop"),
        ("rtx 3080 ti laptop", "rtx3080tilaptop"),
        ("Apple M4 Max 64GB", "m4max-64gb"),
        ("m2-ultra-192gb", "m2ultra-192gb"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtxpro6000"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("Tesla T4", "t4"),
        ("Intel Arc B580 Graphics", "arcb580"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_spellings(text: str, name: str) -> None:
    assert find_gpu(text).name == name


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a100", "a100-40gb or a100-80gb"),
        ("a800", "a800-40gb or a800-80gb"),
        ("rtx5060ti", "rtx5060ti-8gb or rtx5060ti-16gb"),
        ("a100-24gb", "a100-40gb, a100-80gb"),
        ("mi300", "mi300"),
        ("Apple M3 Ultra", "m3ultra-64gb"),
        ("nothing", "stoker plan --gpus"),
    ],
)
def test_what_is_not_one_card_is_asked_for(text: str, hint: str) -> None:
    with pytest.raises(StokerError) as caught:
        find_gpu(text)

    assert hint in (caught.value.hint or "")
    assert caught.value.exit_code == ExitCode.USAGE


def test_memory_in_another_unit_is_no_misspelt_card() -> None:
    with pytest.raises(StokerError, match="24GB") as caught:
        find_gpu("24GB")

    assert (caught.value.hint or "").startswith("give the memory instead (24GiB)")
    with pytest.raises(StokerError) as caught:
        find_gpu("rtx4091")
    assert (caught.value.hint or "").startswith("did you mean rtx409")


def test_memory_that_is_given_is_exact_and_a_cards_is_not() -> None:
    assert find_gpu("24GiB").memory_tolerance == 0.0
    assert find_gpu("24GiB").memory_bytes == 24 * GIB
    assert 0.0 < find_gpu("l4").memory_tolerance < find_gpu("gb10").memory_tolerance
    assert find_gpu("gb10").is_unified
    assert find_gpu("mi300x").is_rocm


@pytest.mark.parametrize(
    ("name", "cache", "weights"),
    [
        ("v100-32gb", False, False),
        ("t4", False, True),
        ("a10", True, True),
        ("mi250", False, False),
        ("mi300x", True, True),
        ("24GiB", True, True),
    ],
)
def test_fp8_is_advised_where_it_works(name: str, cache: bool, weights: bool) -> None:
    gpu = find_gpu(name)

    assert (gpu.has_fp8_cache, gpu.has_fp8_weights) == (cache, weights)
