"""Decoders that transformers' own code runs over our paged cache, against transformers alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from engine.args import EngineArgs
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.errors import ConfigError, CorruptModelError, ModelError
from engine.kernels.kernel_set import create_kernel_set
from engine.kv_sizing import KVCacheSpec
from engine.messages import EngineCoreRequest
from engine.model_config import ModelConfig
from engine.models.transformers_attention import ATTENTION_NAME, register_paged_attention
from engine.models.transformers_check import require_equal_logits
from engine.models.transformers_config import with_transformers_facts
from engine.models.transformers_fallback import TransformersModel, load_transformers_model
from engine.sampling_params import SamplingParams
from engine.worker.kv_cache import cache_spec
from tests.kernels.paged_sequences import PagedSequences, in_chunks
from tests.models.tiny_models import save_tiny_llama, save_tiny_model
from tests.worker.driver import engine_config
from tests.worker.greedy import engine_tokens, generated

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
GEMMA4: dict[str, Any] = {
    "family": "Gemma4",
    "head_dim": 16,
    "global_head_dim": 32,
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 9,
    "vocab_size_per_layer_input": 199,
    "hidden_size_per_layer_input": 8,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"family": "Llama"},
    "phi3": {"family": "Phi3", "pad_token_id": 0},
    "phi3 with a window": {"family": "Phi3", "pad_token_id": 0, "sliding_window": 11},
    "gpt-neox": {"family": "GPTNeoX", "num_key_value_heads": 4},
    "olmo2": {"family": "Olmo2"},
    "stablelm": {"family": "StableLm"},
    "granite": {
        "family": "Granite",
        "attention_multiplier": 0.3,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.7,
    },
    "gpt-bigcode": {"family": "GPTBigCode", "num_key_value_heads": 4, "multi_query": True},
    "mixtral": {"family": "Mixtral", "num_local_experts": 4},
    "cohere2": {
        "family": "Cohere2",
        "num_hidden_layers": 4,
        "sliding_window": 9,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
    },
    "gemma3": {"family": "Gemma3", "head_dim": 24, "sliding_window": 9, "num_hidden_layers": 6},
    "phi3 with a window of everything": {
        "family": "Phi3",
        "pad_token_id": 0,
        "sliding_window": 256,
    },
    "phi": {"family": "Phi"},
    "gemma2 (soft caps)": {"family": "Gemma2", "head_dim": 16, "sliding_window": 9},
    "gpt-oss (sinks)": {
        "family": "GptOss",
        "head_dim": 16,
        "num_local_experts": 4,
        "sliding_window": 8,
    },
    "deepseek-v3 (values narrower than keys)": {
        "family": "DeepseekV3",
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    "gemma4 (shared keys and values, embeddings per layer)": GEMMA4,
    "gemma4 (values that are keys, other heads)": {
        **GEMMA4,
        "num_kv_shared_layers": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    },
    "gemma3n": {
        "family": "Gemma3n",
        "head_dim": 16,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 9,
        "vocab_size_per_layer_input": 199,
        "hidden_size_per_layer_input": 8,
    },
    "starcoder2": {"family": "Starcoder2"},
}


def save_tiny_gpt2(folder: Path) -> Any:
    torch.manual_seed(7)
    config = transformers.GPT2Config(
        vocab_size=199,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=256,
        initializer_range=0.15,
        eos_token_id=2,
        bos_token_id=2,
    )
    model = transformers.GPT2LMHeadModel(config).train(False)
    model.save_pretrained(folder)
    return model


def load(
    folder: Path, block_size: int = 16, dtype: str = "float32", max_model_len: int = 256
) -> tuple[TransformersModel, KVCacheSpec]:
    config = engine_config(folder, block_size=block_size, dtype=dtype)
    first = ModelConfig.from_folder(folder, "tiny", "transformers")
    model = with_transformers_facts(first, max_model_len)
    spec = cache_spec(dataclasses.replace(config, model=model))
    kernels = create_kernel_set("reference")
    step = load_transformers_model(
        model, kernels, spec, CPU, getattr(torch, dtype), lambda done, total: None
    )
    return step, spec


@pytest.mark.parametrize("variant", [*VARIANTS, "gpt2"])
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    oracle = (
        save_tiny_gpt2(tmp_path)
        if variant == "gpt2"
        else save_tiny_model(tmp_path, **VARIANTS[variant])
    )
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 199, n).tolist() for n in (1, 37, 70, 21)]
    with torch.inference_mode():
        expected = [oracle(torch.tensor([prompt])).logits[0] for prompt in prompts]
    model, spec = load(tmp_path, block_size=4)
    windows = [group.sliding_window for group in spec.groups]
    for chunk in (1, 13, 200):
        paged = PagedSequences(model, prompts, 4, windows=windows)
        for result, wanted in zip(paged.run(in_chunks(prompts, chunk)), expected, strict=True):
            torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
    (alone,) = PagedSequences(model, prompts[1:2], 4, windows=windows).run([[37]])
    torch.testing.assert_close(alone, expected[1], rtol=1e-4, atol=1e-4)


def start(folder: Path, **flags: Any) -> EngineCore:
    args = EngineArgs(
        **{
            "dtype": "float32",
            "kv_cache_memory_bytes": 1 << 22,
            "max_model_len": 256,
            "num_threads": 1,
            **flags,
        }
    )
    model = ModelConfig.from_folder(folder, "tiny", args.model_impl)
    return EngineCore(args.create_engine_config(model, HostDevice("cpu", "cpu", None)))


@pytest.mark.parametrize("wrapped", [False, True], ids=["text", "with towers"])
def test_gemma4_whole_chunked_preempted_cached_in_batches_and_alone(
    wrapped: bool, tmp_path: Path
) -> None:
    oracle = save_tiny_model(tmp_path, **{**GEMMA4, "tie_word_embeddings": True})
    if wrapped:
        save_seeing_gemma4(tmp_path, oracle)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 199, n).tolist() for n in (5, 70, 33, 48)]
    oracle.generation_config.eos_token_id = None
    wanted = [generated(oracle, [prompt], 12)[0] for prompt in prompts]
    core = start(tmp_path, kv_cache_memory_bytes=1 << 24)
    assert core.config.model.implementation == "transformers"
    assert engine_run(core, prompts, 12) == Run(wanted)
    assert engine_run(core, prompts, 12) == Run(wanted, num_cached=64 + 32 + 32)
    core.shutdown()
    for flags in ({"max_num_batched_tokens": 24}, {"max_num_seqs": 1}):
        core = start(tmp_path, kv_cache_memory_bytes=1 << 24, **flags)
        assert engine_run(core, prompts, 12) == Run(wanted)
        core.shutdown()
    core = start(tmp_path, max_model_len=96, num_gpu_blocks_override=16, max_num_batched_tokens=24)
    core.scheduler.config = dataclasses.replace(core.scheduler.config, reserve_full_isl=False)
    preempted = engine_run(core, prompts, 12)
    assert (preempted.tokens, preempted.was_preempted) == (wanted, True)
    core.shutdown()


@dataclasses.dataclass
class Run:
    """What several requests came to."""

    tokens: list[list[int]]
    num_cached: int = 0
    was_preempted: bool = False


def engine_run(core: EngineCore, prompts: list[list[int]], num_tokens: int) -> Run:
    """All prompts at once, greedily."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        core.add_request(EngineCoreRequest(str(number), prompt, params, arrival_time=0.0))
    run = Run([[] for _ in prompts])
    while not core.is_idle:
        for output in core.step().outputs:
            run.tokens[int(output.request_id)] += output.new_token_ids
            run.was_preempted |= output.num_preemptions > 0
            if output.prefill_stats is not None and not output.num_preemptions:
                run.num_cached += output.prefill_stats.num_cached_tokens
    return run


def save_seeing_gemma4(folder: Path, text: Any) -> None:
    """The checkpoint as it is published: the text decoder beside a vision tower."""
    tower = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    config = transformers.Gemma4Config(text_config=text.config, vision_config=tower)
    model = transformers.Gemma4ForConditionalGeneration(config)
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.save_pretrained(folder)


def write_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("family", ["Olmo2", "Cohere2"])
def test_the_engine_gives_the_text_of_generate(family: str, tmp_path: Path) -> None:
    oracle = save_tiny_model(tmp_path, **{"family": family, **VARIANTS[family.lower()]})
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 199, n).tolist() for n in (5, 40, 33)]
    core = start(tmp_path, max_num_batched_tokens=24, max_num_seqs=4)
    ours = engine_tokens(core, prompts, 16)
    core.shutdown()
    oracle.generation_config.eos_token_id = None
    for prompt, tokens in zip(prompts, ours, strict=True):
        out = oracle.generate(
            torch.tensor([prompt]), max_new_tokens=16, do_sample=False, pad_token_id=0
        )
        assert tokens == out[0, len(prompt) :].tolist()


def test_a_family_of_ours_that_ours_does_not_run_is_served_with_the_text_of_generate(
    tmp_path: Path,
) -> None:
    save_tiny_llama(tmp_path)
    write_config(tmp_path, hidden_act="gelu")
    prompts = [list(range(3, 100)), list(range(50, 60))]
    core = start(tmp_path, max_num_batched_tokens=24)
    ours = engine_tokens(core, prompts, 12)
    core.shutdown()
    oracle = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    oracle.generation_config.eos_token_id = None
    for prompt, tokens in zip(prompts, ours, strict=True):
        out = oracle.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        assert tokens == out[0, len(prompt) :].tolist()


def test_both_implementations_of_one_model_give_the_same_text(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    prompts = [list(range(3, 40)), list(range(50, 60))]
    texts = []
    for model_impl in ("stoker", "transformers"):
        core = start(tmp_path, model_impl=model_impl)
        texts.append(engine_tokens(core, prompts, 20))
        core.shutdown()
    assert texts[0] == texts[1]


def test_hidden_states_are_those_below_the_head(tmp_path: Path) -> None:
    oracle = save_tiny_model(tmp_path, "Olmo2")
    model, _ = load(tmp_path)
    prompt = list(range(20))
    paged = PagedSequences(model, [prompt], 16)
    batch = dataclasses.replace(paged.batch([(0, 20)]), logits_rows=np.array([3, 19]))
    with torch.inference_mode():
        expected = oracle.model(torch.tensor([prompt])).last_hidden_state[0, [3, 19]]
    torch.testing.assert_close(
        model.hidden_states(batch, paged.cache), expected, rtol=1e-4, atol=1e-4
    )
    assert model.forward(batch, paged.cache).shape == (2, 199)


def test_weight_bytes_are_those_of_the_parameters(tmp_path: Path) -> None:
    oracle = save_tiny_model(tmp_path, "Olmo2", tie_word_embeddings=True)
    parameters = sum(p.nbytes for p in oracle.parameters())
    tables = sum(b.nbytes for b in oracle.buffers())
    assert 0 < tables < parameters // 100
    assert load(tmp_path)[0].weight_bytes == parameters + tables


def test_bfloat16_and_an_fp8_cache(tmp_path: Path) -> None:
    oracle = save_tiny_model(tmp_path, "Olmo2", initializer_range=0.05)
    prompt = list(range(3, 60))
    with torch.inference_mode():
        wanted = oracle(torch.tensor([prompt])).logits[0]
    model, spec = load(tmp_path, dtype="bfloat16")
    (exact,) = PagedSequences(model, [prompt], 16).run([[57]])
    assert exact.dtype == torch.float32
    assert (exact - wanted).norm() < 0.03 * wanted.norm()
    core = start(tmp_path, dtype="bfloat16", kv_cache_dtype="fp8")
    assert core.spec.bytes_per_block * 2 == spec.bytes_per_block
    assert len(engine_tokens(core, [prompt], 8)[0]) == 8
    core.shutdown()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "alibi": ({"family": "Bloom", "n_head": 4}, "BloomForCausalLM.*cannot be replaced"),
    "far positions": (
        {
            "family": "Phi3",
            "pad_token_id": 0,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 64,
            },
        },
        "Phi3ForCausalLM.*Give --max-model-len 64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_would_come_out_wrong_is_refused(case: str, tmp_path: Path) -> None:
    settings, message = REFUSED[case]
    save_tiny_model(tmp_path, **settings)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


class MeanOfTokens(torch.nn.Module):
    """Mixes tokens, of other requests too, outside of any attention."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


def test_a_model_that_mixes_tokens_in_other_ways_is_found_out(tmp_path: Path) -> None:
    register_paged_attention()
    save_tiny_model(tmp_path, "Olmo2")
    config = engine_config(tmp_path).model
    spec = KVCacheSpec(16, 2, 16, 3, 4)
    model = transformers.Olmo2ForCausalLM.from_pretrained(
        tmp_path, attn_implementation=ATTENTION_NAME
    )
    kernels = create_kernel_set("reference")
    require_equal_logits(TransformersModel(config, model, kernels, spec), model, spec)
    model.model.layers[1].mlp = MeanOfTokens()
    step = TransformersModel(config, model, kernels, spec)
    with pytest.raises(ModelError, match=r"differ by 0\.\d+ from those of its own attention"):
        require_equal_logits(step, model, spec)


def test_near_positions_of_longrope_are_served(tmp_path: Path) -> None:
    oracle = save_tiny_model(tmp_path, **REFUSED["far positions"][0])
    prompt = list(range(3, 60))
    with torch.inference_mode():
        wanted = oracle(torch.tensor([prompt])).logits[0]
    model, _ = load(tmp_path, max_model_len=64)
    (logits,) = PagedSequences(model, [prompt], 16).run([[57]])
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.T5Config(), "T5ForConditionalGeneration.*encoder"),
        (
            transformers.RecurrentGemmaConfig(),
            "RecurrentGemmaForCausalLM.*no max_position_embeddings",
        ),
        (transformers.BertConfig(), "BertForQuestionAnswering has a head for something else"),
        (transformers.Glm4vConfig(), "Glm4vForConditionalGeneration.*no decoder"),
        (transformers.LlamaConfig(), "FooForCausalLM is not supported.*never run"),
    ],
)
def test_what_is_no_plain_decoder_is_named_before_its_weights_are_read(
    config: Any, message: str, tmp_path: Path
) -> None:
    config.architectures = [message.split()[0].partition(".")[0]]
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=message):
        start(tmp_path)


def test_a_missing_parameter_is_no_random_one(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "Olmo2")
    write_config(tmp_path, num_hidden_layers=4)
    with pytest.raises(CorruptModelError, match=r"lacks 11 parameters.*layers\.3"):
        load(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "Olmo2")
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CorruptModelError, match="is damaged"):
        load(tmp_path)


def test_code_in_the_folder_is_never_run(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "Olmo2")
    (tmp_path / "evil.py").write_text("raise SystemExit('code of the repository was run')")
    write_config(
        tmp_path,
        auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    )
    load(tmp_path)


def test_who_runs_a_model_is_decided_by_its_architecture(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    assert [
        ModelConfig.from_folder(tmp_path, "tiny", impl).implementation
        for impl in ("auto", "stoker", "transformers")
    ] == ["stoker", "stoker", "transformers"]
    save_tiny_model(tmp_path, "Olmo2")
    assert ModelConfig.from_folder(tmp_path, "tiny").implementation == "transformers"
    with pytest.raises(ModelError, match=r"Olmo2ForCausalLM is not supported.*Llama"):
        ModelConfig.from_folder(tmp_path, "tiny", "stoker")
    write_config(tmp_path, quantization_config={"quant_method": "hqq"})
    with pytest.raises(ModelError, match=r"Quantised checkpoints \(hqq\)"):
        ModelConfig.from_folder(tmp_path, "tiny")


def test_older_words_are_read_without_transformers(tmp_path: Path) -> None:
    save_tiny_gpt2(tmp_path)
    config = ModelConfig.from_folder(tmp_path, "tiny")
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 3, 4)
    assert (config.max_position_embeddings, config.head_dim) == (256, 16)
    assert config.eos_token_ids == (2,)


def test_native_kernels_cannot_run_it(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "Olmo2")
    with pytest.raises(ConfigError, match="no code for this architecture"):
        start(tmp_path, dtype="bfloat16", kernels="native")
