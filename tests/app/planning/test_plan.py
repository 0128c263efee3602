"""Shapes, weights, sizes: counted right or refused by name."""

from __future__ import annotations

import dataclasses
import json
import os
import urllib.request
from email.message import Message
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import StokerError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.planning.builtin_shapes import BUILTIN_SHAPES
from app.planning.gguf_shape import read_gguf
from app.planning.gpu_catalogue import PlannedGpu, find_gpu, gpu_of_reading
from app.planning.hub_files import _KeepTokenHome
from app.planning.log_comparison import compare_capacity, kv_memory_interval
from app.planning.memory_estimates import GivenGib
from app.planning.model_shapes import ModelShape
from app.planning.plan import MemoryPlan, cpu_process_bytes, make_plan
from app.planning.plan_models import PlannedModel, find_planned_model, shape_by_model_name
from app.planning.plan_request import PlanRequest, parallel_sizes, planned_step_budget
from app.planning.process_layout import processes
from app.planning.shape_reading import read_shape
from app.planning.start_commands import start_commands
from app.planning.weight_counts import count_weights
from app.planning.weight_sizes import device_bytes
from engine.errors import CorruptModelError
from engine.machine.gpus import Gpu, GpuReading
from engine.machine.ram_shares import PROCESS_BYTES
from engine.machine.sizes import GIB
from logparse import Facts, LogReport, parse_lines
from tests.default_model import default_gguf

PARAMETERS = {  # as the checkpoints' safetensors headers add up
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.3-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-3-270m": 268_098_176,
    "embeddinggemma-300m": 302_863_104,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 4_300_079_472,
    "gemma-3-12b": 12_187_325_040,
    "gemma-3-27b": 27_432_406_640,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "phi-4": 14_659_507_200,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "smollm2-135m": 134_515_008,
}
GIVEN = GivenGib(0.60, 1.20, 0.35)
GPU = PlannedGpu("24GiB", 24 * GIB)


def shape_of(name: str) -> ModelShape:
    return read_shape(BUILTIN_SHAPES[name].config, name)


def plan_of(name: str, **changes: Any) -> MemoryPlan:
    shape = shape_of(name)
    request = dataclasses.replace(PlanRequest(gpu=GPU, given=GIVEN), **changes)
    return make_plan(shape, count_weights(shape), request)


def llama_config(**changes: Any) -> dict[str, Any]:
    return {**BUILTIN_SHAPES["smollm2-135m"].config, **changes}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """A header, and a hole where its data would be: name -> (dtype, shape, bytes)."""
    header, end = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + end)


@pytest.mark.parametrize("name", PARAMETERS)
def test_built_in_shapes_add_up_to_their_checkpoints(name: str) -> None:
    assert count_weights(shape_of(name)).parameters == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen3-30b-a3b", 3.35), ("mixtral-8x7b", 12.88), ("deepseek-v3", 37.55)]
)
def test_active_parameters_of_experts(name: str, billions: float) -> None:
    shape = shape_of(name)
    active = count_weights(shape).active_parameters(shape.experts)

    assert active is not None
    assert round(active / 1e9, 2) == billions


def test_a_latent_cache_is_the_same_on_every_rank() -> None:
    one, eight = (
        plan_of("deepseek-v3", gpu=find_gpu("h200"), tensor_parallel_size=size, max_model_len=32768)
        for size in (1, 8)
    )

    assert one.tightest.spec.bytes_per_block == eight.tightest.spec.bytes_per_block
    assert one.tightest.spec.bytes_per_block == 61 * 16 * 576 * 2


def test_kv_heads_are_split_until_one_is_left() -> None:
    shape = shape_of("qwen2.5-7b")  # 4 KV heads
    weights = count_weights(shape)
    bytes_by_size = {n: device_bytes(weights, shape, n, range(28)) for n in (1, 4, 14)}
    keys = 28 * 2 * 3584 * 4 * 128 * 2
    split = (7_615_616_512 - 2 * 28 * 3584 - 3584) * 2 - keys  # all but the norms

    assert bytes_by_size[1] == 7_615_616_512 * 2
    assert bytes_by_size[14] == pytest.approx(
        split / 14 + keys / 4 + (2 * 28 * 3584 + 3584) * 2, rel=1e-6
    )
    assert plan_of("llama-3.3-70b", tensor_parallel_size=16).tightest.spec.num_kv_heads == 1


def test_tied_embeddings_lie_on_both_ends_of_a_pipeline() -> None:
    shape = shape_of("qwen2.5-1.5b")
    weights = count_weights(shape)
    table = shape.vocab_size * shape.hidden_size * 2
    first, last = (device_bytes(weights, shape, 1, layers) for layers in (range(14), range(14, 28)))

    assert weights.num_bytes == 1_543_714_304 * 2
    assert first + last == weights.num_bytes + table


def test_stages_of_unequal_size_take_the_least_number_of_blocks() -> None:
    plan = plan_of("deepseek-v3", gpu=PlannedGpu("big", 500 * GIB), pipeline_parallel_size=2)

    assert [len(stage.layers) for stage in plan.stages] == [31, 30]
    blocks = [s.available_bytes // s.spec.bytes_per_block for s in plan.stages]
    assert plan.capacity.num_blocks == min(blocks)


def test_fp8_shrinks_linear_layers_only() -> None:
    shape = shape_of("llama-3.1-8b")
    plain, small = count_weights(shape), count_weights(shape).as_fp8()
    tables = 2 * 128_256 * 4096
    norms = (2 * 32 + 1) * 4096

    assert plain.num_bytes - small.num_bytes == 8_030_261_248 - tables - norms
    assert small.as_fp8() == dataclasses.replace(
        small, basis=small.basis + ", linear layers in fp8"
    )


def test_native_weights_are_what_the_engine_keeps() -> None:
    """MiB that the engine logs for the default model in each format, its embedding included."""
    shape = shape_of("smollm2-135m")
    weights = count_weights(shape)
    sizes = {q: weights.as_native(shape, q).num_bytes / (1 << 20) for q in (None, "int8", "int4")}

    assert sizes == pytest.approx({None: 311, "int8": 187, "int4": 145}, abs=1.5)
    assert weights.as_native(shape, "int8").parameters == weights.parameters == 134_515_008


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["FooForCausalLM"]}, "is a FooForCausalLM, whose memory"),
        (
            {"layer_types": ["linear_attention"] * 30},
            "kind (linear attention of a kind that is not",
        ),
        ({"layer_types": ["looped_attention"] * 30}, "layers of a kind (looped_attention)"),
        ({"is_encoder_decoder": True}, "has an encoder"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised by bitsandbytes"),
        ({"num_hidden_layers": None}, "incomplete or damaged"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StokerError) as caught:
        read_shape(llama_config(**changes), "org/model")
    assert message in str(caught.value)


def test_windows_of_a_checkpoint() -> None:
    every = read_shape(
        {**llama_config(), "architectures": ["MistralForCausalLM"], "sliding_window": 4096}, "m"
    )
    assert set(every.layer_windows) == {4096}
    assert shape_of("gpt-oss-20b").layer_windows[:4] == (128, None, 128, None)
    assert shape_of("gemma-3-27b").layer_windows.count(None) == 10
    assert set(shape_of("qwen3-8b").layer_windows) == {None}


def awq_folder(folder: Path) -> Path:
    layer = "model.layers.0."
    config = llama_config(
        num_hidden_layers=1, quantization_config={"quant_method": "awq", "bits": 4}
    )
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(
        folder / "model.safetensors",
        {
            "model.embed_tokens.weight": ("F16", [49152, 576], 49152 * 576 * 2),
            layer + "self_attn.q_proj.qweight": ("I32", [576, 72], 576 * 72 * 4),
            layer + "self_attn.q_proj.scales": ("F16", [4, 576], 4 * 576 * 2),
            layer + "self_attn.k_proj.qweight": ("I32", [576, 24], 576 * 24 * 4),
            layer + "input_layernorm.weight": ("F16", [576], 576 * 2),
            "model.layers.1.self_attn.q_proj.qweight": ("I32", [576, 72], 576 * 72 * 4),
            "model.norm.weight": ("F16", [576], 576 * 2),
            "lm_head.weight": ("F16", [49152, 576], 49152 * 576 * 2),
        },
    )
    return folder


def test_a_packed_checkpoint_is_counted_from_its_headers(tmp_path: Path) -> None:
    model = find_planned_model(str(awq_folder(tmp_path)))

    assert model.shape.quantization == "awq"
    assert model.weights.parameters is None
    # Tied: the second table is not kept; the layer beyond the last is the speculator's.
    expected = 49152 * 576 * 2 + 576 * 72 * 4 + 4 * 576 * 2 + 576 * 24 * 4 + 2 * 576 * 2
    assert model.weights.num_bytes == expected
    on_one_of_three = device_bytes(model.weights, model.shape, 3, range(1))
    assert on_one_of_three == (expected - 4 * 576) // 3 + 4 * 576
    with pytest.raises(StokerError, match="quantised already"):
        make_plan(model.shape, model.weights, PlanRequest(gpu=GPU, quantization="fp8"))
    plan = make_plan(model.shape, model.weights, PlanRequest(gpu=GPU, max_model_len=8192))
    own = start_commands(model, plan)[1].command
    assert own is not None
    assert own.startswith("stoker serve")


def test_our_engine_keeps_a_packed_checkpoint_as_plain_numbers(tmp_path: Path) -> None:
    packed = find_planned_model(str(awq_folder(tmp_path)))
    request = PlanRequest(engine=STOKER, gpu=GPU, max_model_len=8192)
    planned = make_plan(packed.shape, packed.weights, request).weights

    plain = count_weights(dataclasses.replace(packed.shape, quantization=None))
    assert planned.num_bytes == plain.loaded_as("float16").num_bytes
    assert "dequantised while loading" in planned.basis


def test_a_checkpoint_may_declare_its_cache_format() -> None:
    quantization = {
        "quant_method": "compressed-tensors",
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }
    shape = read_shape(llama_config(quantization_config=quantization), "m")
    weights = count_weights(shape_of("smollm2-135m"))

    assert make_plan(shape, weights, PlanRequest(gpu=GPU)).tightest.spec.dtype_bytes == 1
    asked = PlanRequest(gpu=GPU, kv_cache_dtype="bfloat16")
    assert make_plan(shape, weights, asked).tightest.spec.dtype_bytes == 2
    with pytest.raises(StokerError, match="only the files tell"):
        count_weights(shape)


def test_plain_numbers_are_counted_in_the_format_that_runs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config(torch_dtype="float32")))
    tensors = {
        "model.embed_tokens.weight": ("F32", [2, 8], 64),
        "model.norm.weight": ("F32", [8], 32),
    }
    write_safetensors(tmp_path / "model.safetensors", tensors)
    model = find_planned_model(str(tmp_path))

    on_gpu = make_plan(model.shape, model.weights, PlanRequest(gpu=GPU))
    assert (model.weights.num_bytes, on_gpu.weights.num_bytes) == (96, 48)
    assert on_gpu.tightest.spec.dtype_bytes == 2


def test_an_unknown_tower_needs_headers() -> None:
    config = llama_config(architectures=["LlavaForConditionalGeneration"], vision_config={"a": 1})

    with pytest.raises(StokerError, match="known only from the files"):
        count_weights(read_shape(config, "llava"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no config.json"),
        (
            {
                "config.json": json.dumps(llama_config()),
                "model.safetensors.index.json": '{"weight_map": {"a": "x.safetensors"}}',
            },
            r"no \*\.safetensors file",
        ),
        (
            {"config.json": json.dumps(llama_config()), "model.safetensors": "short"},
            "model.safetensors is damaged: it has 5 bytes",
        ),
        ({"config.json": "{"}, "not valid JSON"),
    ],
)
def test_folders_that_are_no_models(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(StokerError, match=message):
        find_planned_model(str(tmp_path))


def test_a_second_copy_of_the_weights_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config()))
    for name in ("model.safetensors", "consolidated.safetensors"):
        write_safetensors(tmp_path / name, {"model.embed_tokens.weight": ("BF16", [2, 8], 32)})

    assert find_planned_model(str(tmp_path)).weights.num_bytes == 32


def test_a_cut_gguf_is_damaged_wherever_it_is_cut(tmp_path: Path) -> None:
    content = default_gguf().read_bytes()[: 2 << 20]
    path = tmp_path / "cut.gguf"
    for length in (0, 3, 4, 12, 24, 40, 100, 1000, 50_000, 900_000):
        path.write_bytes(content[:length])
        with pytest.raises(CorruptModelError, match="damaged or cut off"):
            read_gguf(path)


@given(st.binary(max_size=200))
def test_noise_after_the_magic_is_an_error_never_a_crash(noise: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(b"GGUF\x03\x00\x00\x00" + noise)
        file.flush()
        with pytest.raises((StokerError, CorruptModelError)):
            read_gguf(Path(file.name))


@pytest.mark.parametrize(
    ("gpu", "tokens", "seqs"),
    [
        ("rtx4090", 2048, 256),
        ("a100-80gb", 2048, 256),
        ("h100", 8192, 1024),
        ("b200", 16384, 1024),
        ("mi300x", 16384, 1024),
    ],
)
def test_scheduler_defaults_of_a_gpu(gpu: str, tokens: int, seqs: int) -> None:
    found = planned_step_budget(PlanRequest(gpu=find_gpu(gpu)), 131_072)

    assert (found.max_num_batched_tokens, found.max_num_seqs) == (tokens, seqs)


def test_scheduler_defaults_stay_within_each_other() -> None:
    few = planned_step_budget(PlanRequest(gpu=GPU, max_num_seqs=4), 100)
    small = planned_step_budget(PlanRequest(gpu=GPU, max_num_batched_tokens=64), 8192)

    assert few.max_num_batched_tokens == 400
    assert small.max_num_seqs == 64


def test_data_centre_blackwell_captures_more_sizes() -> None:
    assert len(plan_of("qwen3-8b", gpu=find_gpu("b200")).graphs.piecewise_sizes) == 83
    assert plan_of("qwen3-8b", enforce_eager=True).graphs.captures == ()


def test_processes_with_copies_of_the_model() -> None:
    plan = plan_of("llama-3.1-8b", tensor_parallel_size=2, data_parallel_size=2)
    names = [line.split()[0] for line in processes(plan.request)]

    assert names == [
        *("vllm", "ApiServer_0", "ApiServer_1", "DPCoordinator"),
        *("EngineCore_DP0", "Worker_DP0_TP0", "Worker_DP0_TP1"),
        *("EngineCore_DP1", "Worker_DP1_TP0", "Worker_DP1_TP1"),
    ]
    assert processes(plan.request)[-1].endswith("GPU 3")
    assert plan.world_size == 4


@pytest.mark.parametrize(
    ("engine", "copies", "servers", "names"),
    [
        (VLLM, 2, 1, "APIServer DPCoordinator EngineCore_DP0 EngineCore_DP1"),
        (VLLM, 1, 2, "vllm ApiServer_0 ApiServer_1 EngineCore"),
        (STOKER, 2, 1, "APIServer EngineCore_DP0 EngineCore_DP1"),
        (STOKER, 1, 2, "APIServer ApiServer_0 ApiServer_1 DPCoordinator EngineCore"),
        (
            *(STOKER, 2, None),
            "APIServer ApiServer_0 ApiServer_1 DPCoordinator EngineCore_DP0 EngineCore_DP1",
        ),
    ],
)
def test_processes_with_several_api_servers(
    engine: str, copies: int, servers: int | None, names: str
) -> None:
    changes = {"engine": engine, "data_parallel_size": copies, "api_server_count": servers}
    request = plan_of("llama-3.1-8b", **changes).request

    assert [line.split()[0] for line in processes(request)] == names.split()


@given(st.integers(1, 131_072), st.integers(16, 80))
def test_more_memory_and_shorter_requests_never_hold_less(length: int, gib: int) -> None:
    small = plan_of("llama-3.1-8b", gpu=PlannedGpu("a", gib * GIB), max_model_len=length)
    large = plan_of("llama-3.1-8b", gpu=PlannedGpu("b", (gib + 1) * GIB), max_model_len=length)

    assert large.capacity.num_blocks >= small.capacity.num_blocks
    assert small.requests_of(length) >= small.requests_of(min(131_072, length + 16))
    assert small.kv_low <= small.tightest.available_bytes <= small.kv_high


def test_a_window_is_cut_at_the_request_before_its_edge_block() -> None:
    """The start of log 019: 7 groups, 4,096 tokens, 89,997 blocks, 50.05 requests."""
    spec = plan_of("gemma-3-27b", gpu=find_gpu("mi300x"), max_model_len=4096).tightest.spec

    assert len(spec.groups) == 7
    assert spec.blocks_per_request(4096) == 256 + 6 * 257


def test_our_engine_on_a_cpu_takes_four_gib_at_most() -> None:
    shape = shape_of("smollm2-135m")
    request = PlanRequest(gpu=None, engine=STOKER, free_ram_bytes=20 * GIB)
    plan = make_plan(shape, count_weights(shape), request)
    wide = make_plan(shape, count_weights(shape), dataclasses.replace(request, cpu_dtype="float32"))

    assert plan.tightest.available_bytes == 4 * GIB
    assert wide.tightest.spec.bytes_per_block == 2 * plan.tightest.spec.bytes_per_block
    assert plan.assumptions == ()
    assert wide.weights.num_bytes == 2 * count_weights(shape).num_bytes  # packed in bf16 alone
    tight = make_plan(
        shape,
        count_weights(shape),
        dataclasses.replace(request, free_ram_bytes=2 * GIB, gpu_memory_utilization=0.5),
    )
    left = 2 * GIB - plan.weights.num_bytes - PROCESS_BYTES
    assert tight.tightest.available_bytes == int(left * 0.5)


def test_replicas_on_a_cpu_share_its_memory() -> None:
    shape = shape_of("smollm2-135m")
    weights = count_weights(shape)
    request = PlanRequest(
        gpu=None,
        engine=STOKER,
        free_ram_bytes=3 * GIB,
        gpu_memory_utilization=0.5,
        data_parallel_size=2,
    )
    plan = make_plan(shape, weights, request)

    left = 3 * GIB - 2 * (plan.weights.num_bytes + PROCESS_BYTES)
    assert plan.tightest.available_bytes == int(left * 0.25)
    assert cpu_process_bytes(plan, plan.tightest.available_bytes) == pytest.approx(
        PROCESS_BYTES, abs=8
    )
    ranks = make_plan(
        shape, weights, dataclasses.replace(request, data_parallel_size=1, pipeline_parallel_size=2)
    )
    assert cpu_process_bytes(ranks, 1) is None, "two caches, of which a log tells one"
    engines = [line.split()[0] for line in processes(request)][-2:]
    assert engines == ["EngineCore_DP0", "EngineCore_DP1"]
    with pytest.raises(StokerError, match="one copy"):
        make_plan(shape, weights, dataclasses.replace(request, engine=LLAMA_CPP))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("/home/user/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-Embedding-8B", "qwen3-8b"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", None),
        ("Qwen/Qwen3-Next-80B", None),
        ("google/gemma-3n-E4B-it", None),
        ("google/gemma-4-E4b-it", "gemma-4-e4b"),
        ("google/gemma-4-12b-it", None),
        ("microsoft/Phi-4-mini-instruct", "phi-4-mini"),
        ("microsoft/Phi-4-mini-flash-reasoning", None),
        ("microsoft/Phi-4-multimodal-instruct", None),
        ("mistralai/Mistral-7B-Instruct-v0.1", None),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", None),
        ("", None),
    ],
)
def test_a_servers_model_name_stands_for_a_shape_only_when_certain(
    name: str, shape: str | None
) -> None:
    found = shape_by_model_name(name)
    assert (found.name if found else None) == shape


def test_a_rounded_figure_stands_for_an_interval() -> None:
    low, high = kv_memory_interval(4.97)

    assert round(low / GIB, 2) == round((high - 1) / GIB, 2) == 4.97
    assert (low - 1) / GIB < 4.965 <= low / GIB


def test_a_log_that_says_other_tokens_than_its_memory_differs() -> None:
    report = parse_lines(
        [
            "INFO 10-03 12:00:00 [api_server.py:1] vLLM API server version 0.17.1",
            "INFO 10-03 12:00:00 [gpu_worker.py:1] Available KV cache memory: 4.97 GiB",
            "INFO 10-03 12:00:00 [kv_cache_utils.py:1] GPU KV cache size: 40,000 tokens",
            "INFO 10-03 12:00:00 [kv_cache_utils.py:1] Maximum concurrency for 32,768 tokens per "
            "request: 1.24x",
        ]
    )
    values = compare_capacity(shape_of("llama-3.1-8b"), report, PlanRequest(gpu=None))

    assert [(value.name, value.agrees) for value in values] == [
        ("kv_tokens", False),
        ("max_concurrency", True),
    ]


def test_a_gpu_split_by_mig_is_not_taken_whole() -> None:
    gpu = Gpu(
        name="NVIDIA H100",
        memory_bytes=80 * GIB,
        memory_used_bytes=GIB,
        compute_capability=(9, 0),
        mig=True,
    )
    whole = gpu_of_reading(GpuReading(gpus=(dataclasses.replace(gpu, mig=False),)))

    assert whole == PlannedGpu("NVIDIA H100", 80 * GIB, (9, 0), GIB)
    assert gpu_of_reading(GpuReading()) is None
    with pytest.raises(StokerError, match="split into MIG instances"):
        gpu_of_reading(GpuReading(gpus=(gpu,)))


def test_two_gpu_spellings_and_sizes() -> None:
    assert find_gpu("RTX 4090") == find_gpu("4090") == find_gpu("rtx4090")
    assert find_gpu("A100_80GB").memory_bytes > 79 * GIB
    assert find_gpu("1.5GiB").memory_bytes == 3 * GIB // 2


def test_the_token_stays_with_the_hub() -> None:
    request = urllib.request.Request("https://hub.example/a", headers={"Authorization": "Bearer x"})
    redirect = _KeepTokenHome().redirect_request
    for url, keeps in (("https://hub.example/b", True), ("https://storage.example/b", False)):
        followed = redirect(request, BytesIO(), 302, "Found", Message(), url)
        assert followed is not None
        assert followed.has_header("Authorization") is keeps


def test_sizes_that_divide_the_heads() -> None:
    assert parallel_sizes(shape_of("llama-3.1-8b")) == (1, 2, 4, 8, 16)
    assert parallel_sizes(shape_of("qwen2.5-7b")) == (1, 2, 4)  # 28 heads, but 4 for keys
    assert parallel_sizes(shape_of("qwen3-14b")) == (1, 2, 4, 8)  # 40 heads, not 5: vocabulary
    assert parallel_sizes(shape_of("phi-4")) == (1, 2)  # 40 heads, 10 for keys


def test_commands_quote_what_a_shell_would_split() -> None:
    shape = shape_of("llama-3.1-8b")
    model = PlannedModel(shape, count_weights(shape), "my model")
    request = PlanRequest(gpu=GPU, tensor_parallel_size=2, kv_cache_dtype="fp8")
    plan = make_plan(shape, model.weights, dataclasses.replace(request, max_model_len=8192))
    vllm, ours, _ = start_commands(model, plan)

    assert vllm.command == (
        "vllm serve 'my model' --max-model-len 8192 --kv-cache-dtype fp8 --tensor-parallel-size 2"
    )
    assert ours.command == vllm.command.replace("vllm", "stoker", 1)


def test_facts_of_other_engines_are_read_as_they_count(shared_folder: Path) -> None:
    log = shared_folder / "logs" / "070-sglang-single-gpu.log"
    report: LogReport = parse_lines(log.read_text(errors="replace").splitlines())

    assert isinstance(report.facts, Facts)
    (tokens,) = compare_capacity(shape_of("qwen2.5-1.5b"), report, PlanRequest(gpu=None))
    assert tokens.agrees


@pytest.mark.parametrize(
    ("quantization", "bytes_of_a_value"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64}, 1 + 3 / 64),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1.0),
    ],
)
def test_a_folder_without_weights_is_counted_by_what_its_config_says(
    quantization: dict[str, Any], bytes_of_a_value: float, tmp_path: Path
) -> None:
    config = llama_config(quantization_config=quantization)
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = find_planned_model(str(tmp_path)).weights
    plain = count_weights(shape_of("smollm2-135m"))
    linear = sum(part.num_values for part in plain.parts if part.is_linear)

    assert weights.parameters == plain.parameters
    rest = plain.num_bytes - 2 * linear
    assert weights.num_bytes == pytest.approx(rest + linear * bytes_of_a_value, abs=2)
