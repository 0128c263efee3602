"""The rules of `stoker choose`, and the file they can be asked with."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from app.cli import run
from app.doctor.facts import AcceleratorFacts, DoctorFacts, MachineFacts
from app.doctor.facts_file import write_facts
from app.errors import ExitCode, StokerError, UsageError
from app.planning.choosing import (
    MODEL_RULES,
    RULES,
    ModelTraits,
    Need,
    choose_engine,
    fits_own_engine,
    gpus_needed,
    host_need,
    model_traits,
    own_command,
    read_needs,
    serve_words,
    start_command,
)
from app.planning.plan_models import find_planned_model
from engine.machine.gpus import Gpu, GpuReading
from engine.machine.sizes import GIB

NEED = Need(
    name="box",
    has_gpu=True,
    is_linux=True,
    concurrent_users=20,
    is_gguf_only=False,
    is_cpu_or_apple_only=False,
    needs_several_gpus=False,
)


@pytest.mark.parametrize(
    ("changes", "engine", "rule"),
    [
        ({}, "vLLM", "many-users"),
        ({"concurrent_users": 8}, "vLLM", "many-users"),
        ({"concurrent_users": 7}, "llama.cpp", "few-users"),
        ({"concurrent_users": 1, "needs_several_gpus": True}, "vLLM", "several-gpus"),
        ({"is_gguf_only": True, "needs_several_gpus": True}, "llama.cpp", "gguf-only"),
        ({"is_linux": False, "is_gguf_only": True}, "llama.cpp", "not-linux"),
        ({"is_linux": False, "is_cpu_or_apple_only": True}, "llama.cpp", "cpu-or-apple"),
        ({"has_gpu": False}, "llama.cpp", "few-users"),
    ],
)
def test_the_first_rule_that_holds_decides(
    changes: dict[str, bool | int], engine: str, rule: str
) -> None:
    need = dataclasses.replace(NEED, **changes)  # type: ignore[arg-type]
    choice = choose_engine(need)

    assert (choice.engine, choice.rule) == (engine, rule)
    passed = [known.id for known in RULES][: len(choice.passed_over)]
    assert list(choice.passed_over) == passed


def test_every_need_has_an_answer_and_every_rule_decides_one() -> None:
    deciding = set()
    for flags in itertools.product((False, True), repeat=5):
        for users in (1, 20):
            names = ("has_gpu", "is_linux", "is_gguf_only", "is_cpu_or_apple_only")
            given = dict(zip((*names, "needs_several_gpus"), flags, strict=True))
            need = Need(name="", concurrent_users=users, **given)
            deciding.add(choose_engine(need).rule)
    assert deciding == {rule.id for rule in RULES}


def test_the_threshold_is_the_users_to_set() -> None:
    assert choose_engine(NEED, many_users=21).engine == "llama.cpp"


def test_commands_name_the_model() -> None:
    several = dataclasses.replace(NEED, is_gguf_only=True)

    assert start_command(choose_engine(NEED), "qwen3-8b") == (
        "vllm serve Qwen/Qwen3-8B --max-model-len auto"
    )
    assert start_command(choose_engine(NEED), None) == "vllm serve MODEL --max-model-len auto"
    assert start_command(choose_engine(several), "my model.gguf") == (
        "llama-server --model 'my model.gguf' --n-gpu-layers 999"
    )


def h100s(number: int) -> DoctorFacts:
    gpu = Gpu(
        name="NVIDIA H100 80GB HBM3",
        memory_bytes=84_930_000_000,
        memory_used_bytes=0,
        compute_capability=(9, 0),
    )
    machine = MachineFacts(system="linux", arch="x86_64", python="3.12.3")
    return DoctorFacts(name="lab", machine=machine, gpu=GpuReading(gpus=(gpu,) * number))


@pytest.mark.parametrize(
    ("number", "model", "users", "rule", "size"),
    [
        (4, "llama-3.3-70b", 1, "several-gpus", 2),
        (4, "llama-3.1-8b", 1, "few-users", 1),
        (4, "llama-3.1-8b", 20, "many-users", 1),
        (1, "llama-3.3-70b", 20, "many-users", 2),
        (4, "model.gguf", 20, "gguf-only", None),
        (0, "llama-3.1-8b", 20, "cpu-or-apple", None),
    ],
)
def test_a_machine_as_doctor_saw_it(
    number: int, model: str, users: int, rule: str, size: int | None
) -> None:
    facts = h100s(number)
    found = None if model.endswith(".gguf") else find_planned_model(model)

    assert choose_engine(host_need(facts, model, users, None, found)).rule == rule
    assert gpus_needed(facts, found) == size


def test_several_gpus_are_needed_when_the_user_says_so() -> None:
    assert host_need(h100s(4), "llama-3.1-8b", 1, True).needs_several_gpus
    assert not host_need(h100s(4), "llama-3.3-70b", 1, False).needs_several_gpus
    found = find_planned_model("llama-3.3-70b")
    choice = choose_engine(host_need(h100s(4), "llama-3.3-70b", 1, None, found))
    assert start_command(choice, "llama-3.3-70b", 4) == (
        "vllm serve meta-llama/Llama-3.3-70B-Instruct --max-model-len auto --tensor-parallel-size 4"
    )


def test_a_rocm_machine_has_a_gpu_and_a_mac_is_no_linux() -> None:
    amd = DoctorFacts(accelerators=AcceleratorFacts(has_kfd=True))
    mac = DoctorFacts(machine=MachineFacts(system="macos", arch="arm64", python="3.12.3"))

    assert host_need(amd, None, 20, None).has_gpu
    assert choose_engine(host_need(mac, None, 20, None)).rule == "cpu-or-apple"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no valid JSON"),
        ('{"name": "x"}', "exactly the keys"),
        (json.dumps({**dataclasses.asdict(NEED), "is_linux": 1}), "is_linux is 1, not a bool"),
        (json.dumps({**dataclasses.asdict(NEED), "cores": 1}), "exactly the keys"),
        ("3", "exactly the keys"),
    ],
)
def test_a_wrong_file_is_a_usage_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "needs.json"
    path.write_text(content)
    with pytest.raises(StokerError, match=message) as caught:
        read_needs(path)
    assert caught.value.exit_code == ExitCode.USAGE


def test_one_need_alone_is_a_list_of_one(tmp_path: Path) -> None:
    path = tmp_path / "needs.json"
    path.write_text(json.dumps(dataclasses.asdict(NEED)))

    assert read_needs(path) == (NEED,)
    with pytest.raises(StokerError, match="cannot read"):
        read_needs(tmp_path / "none.json")


ON_CPU = dataclasses.replace(NEED, has_gpu=False, is_cpu_or_apple_only=True)
SERVED = ModelTraits(is_served_here=True, is_latent=False, is_gguf=False)


def test_a_model_that_our_engine_serves_needs_no_gguf_file_on_a_cpu() -> None:
    choice = choose_engine(ON_CPU, traits=SERVED)
    found = find_planned_model("qwen2.5-7b")

    assert (choice.engine, choice.rule) == ("Stoker", "own-cpu")
    command = start_command(choice, "qwen2.5-7b", found=found)
    assert command == "stoker serve Qwen/Qwen2.5-7B-Instruct --max-model-len auto"
    assert serve_words(choice, "qwen2.5-7b", found=found) == (
        "serve",
        "Qwen/Qwen2.5-7B-Instruct",
        "--max-model-len",
        "auto",
    )


@pytest.mark.parametrize("changes", [{"is_served_here": False}, {"is_gguf": True}])
def test_what_our_engine_does_not_serve_is_left_to_the_lessons_rules(
    changes: dict[str, bool],
) -> None:
    traits = dataclasses.replace(SERVED, **changes)
    choice = choose_engine(ON_CPU, traits=traits)

    assert (choice.engine, choice.rule) == ("llama.cpp", "cpu-or-apple")
    assert choice.passed_over == tuple(rule.id for rule in MODEL_RULES)
    assert choose_engine(ON_CPU).passed_over == ()


def test_latent_attention_over_several_gpus_for_many_users_is_sglangs() -> None:
    traits = model_traits(find_planned_model("deepseek-v3"))
    need = dataclasses.replace(NEED, needs_several_gpus=True)
    choice = choose_engine(need, traits=traits)

    assert (choice.engine, choice.rule) == ("SGLang", "latent-many-users")
    assert start_command(choice, "deepseek-v3", 8) == (
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 "
        "--dp-size 8 --enable-dp-attention"
    )
    with pytest.raises(UsageError, match="does not start SGLang"):
        serve_words(choice, "deepseek-v3", 8)
    assert choose_engine(need).engine == "vLLM"


def test_words_that_start_other_engines() -> None:
    vllm = choose_engine(dataclasses.replace(NEED, needs_several_gpus=True))
    few = choose_engine(dataclasses.replace(NEED, concurrent_users=1))

    assert serve_words(vllm, "qwen3-8b", 2) == (
        *("serve", "Qwen/Qwen3-8B", "--engine", "vllm", "--max-model-len", "auto"),
        *("--tensor-parallel-size", "2"),
    )
    assert serve_words(few, "m.gguf") == ("serve", "m.gguf", "--engine", "llama.cpp")
    with pytest.raises(UsageError, match="as a GGUF file"):
        serve_words(few, "qwen3-8b")


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """The facts of a machine with four GPUs."""
    path = tmp_path / "lab.json"
    write_facts(h100s(4), path)
    return path


def test_a_model_that_has_no_room_on_the_cpu_is_not_started_there() -> None:
    here, found = DoctorFacts(), find_planned_model("qwen2.5-7b")

    assert fits_own_engine(found, here, 64 * GIB)
    assert not fits_own_engine(found, here, 4 * GIB)
    assert fits_own_engine(found, here, None)
    assert fits_own_engine(found, h100s(1), None)
    small = model_traits(found, fits_here=False)
    assert choose_engine(ON_CPU, traits=small).engine == "llama.cpp"


def test_an_encoder_is_started_at_its_own_length() -> None:
    found = find_planned_model("embeddinggemma-300m")

    assert own_command(found) == "stoker serve google/embeddinggemma-300m"
    assert fits_own_engine(found, DoctorFacts(), 16 * GIB)


def test_several_gpus_are_at_least_two() -> None:
    found = find_planned_model("llama-3.1-8b")

    assert gpus_needed(h100s(4), found) == 1
    assert gpus_needed(h100s(4), found, at_least=2) == 2


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("qwen3-235b-a22b", "it needs 8 of these GPUs, and 4 are here"),
        ("qwen3.5-397b-a17b", "it needs 16 of these GPUs, and 4 are here"),
    ],
)
def test_more_gpus_than_there_are_get_no_command(
    model: str, words: str, lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["choose", model, "--users", "20", "--host", str(lab)]) == ExitCode.OK
    printed = capsys.readouterr().out

    assert f"cannot start it here: {words}" in printed
    assert "vllm serve" not in printed
    assert run(["choose", model, "--users", "20", "--host", str(lab), "--json"]) == ExitCode.OK
    (choice,) = json.loads(capsys.readouterr().out)["choices"]
    assert (choice["command"], choice["obstacle"]) == (None, words)


def test_nothing_is_started_on_too_few_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.commands.choose._facts", lambda host: h100s(1))

    assert run(["choose", "llama-3.3-70b", "--users", "20", "--start"]) == ExitCode.USAGE
    assert "it needs 2 of these GPUs, and 1 is here" in capsys.readouterr().err


def test_a_model_that_the_hub_cannot_tell_is_chosen_for_on_several_gpus(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run(["choose", "nobody/Nothing-3B", "--users", "20", "--host", str(lab)]) == ExitCode.OK
    printed = capsys.readouterr()

    assert "start it: vllm serve nobody/Nothing-3B" in printed.out
    assert "not looked at" in printed.err


def test_names_are_those_that_engines_take_however_they_are_typed(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["choose", "Qwen3-8B", "--several-gpus", "--host", str(lab)]
    assert run(words) == ExitCode.OK
    command = "start it: vllm serve Qwen/Qwen3-8B --max-model-len auto --tensor-parallel-size 2"
    assert command in capsys.readouterr().out
