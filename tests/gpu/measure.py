"""What a GPU must show: parity, greedy tokens, graphs, and rates against the memory's bandwidth.

    python -m tests.gpu.measure [--dry] --out FOLDER

Writes figures.json after each part, so that what a time limit cuts off leaves the rest. With
--dry all parts run on a CPU, under Triton's interpreter, in tiny sizes; times mean nothing then.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.kernels.triton.runtime import launch, prepare

_FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "Qwen3ForCausalLM": {},
    "Gemma3ForCausalLM": {"sliding_window": 24, "query_pre_attn_scalar": 64},
}
_LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
}
_TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 256,
}
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one run: on a GPU, or dry."""

    device: torch.device
    dtype: torch.dtype
    shape: dict[str, int]  # of the model whose rates are measured
    streams: tuple[int, ...]
    context: int
    prompt: int
    repeats: int
    copy_bytes: int


GPU = Sizes(
    torch.device("cuda"), torch.bfloat16, _LLAMA_8B, (1, 8, 64, 256), 1000, 2048, 20, 1 << 30
)
DRY = Sizes(torch.device("cpu"), torch.float32, _TINY, (1, 2), 20, 24, 1, 1 << 20)


class Measurement:
    """All parts in order. Kernels are imported in here: `prepare` has to come first."""

    def __init__(self, sizes: Sizes, out: Path) -> None:
        self._sizes = sizes
        self._out = out
        self.figures: dict[str, Any] = {"device": _device_name(sizes.device)}

    def run(self) -> None:
        for part in (
            self.parity,
            self.sampling,
            self.greedy_match,
            self.copy_bandwidth,
            self.decode_rates,
            self.weight_products,
            self.prefill_rate,
        ):
            start = time.perf_counter()
            self.figures[part.__name__] = part()
            print(f"{part.__name__}: {time.perf_counter() - start:.1f} s", flush=True)
            (self._out / "figures.json").write_text(json.dumps(self.figures, indent=1))

    def parity(self) -> dict[str, float]:
        """Of each family the relative error of logits to the reference set, in float32."""
        from engine.models.decoder import DecoderModel
        from engine.models.decoder_triton import TritonDecoder
        from tests.kernels.paged_sequences import PagedSequences

        errors = {}
        prompts = np.random.default_rng(0).integers(0, 256, (3, 40)).tolist()
        prompts = [prompt[:length] for prompt, length in zip(prompts, (22, 4, 9), strict=True)]
        steps = [[20, 0, 2], [1, 2, 5], [1, 1, 1], [0, 1, 1]]
        for family, changes in _FAMILIES.items():
            config = _config(family, {**_TINY, **changes})
            windows = [group.sliding_window for group in _spec(config, torch.float32).groups]
            kernels = _kernels(self._sizes.device)
            ours = self._model(TritonDecoder, config, kernels, torch.float32)
            plain = self._model(DecoderModel, config, _reference(), torch.float32)
            pairs = zip(
                PagedSequences(ours, prompts, _BLOCK, windows=windows).run(steps),
                PagedSequences(plain, prompts, _BLOCK, windows=windows).run(steps),
                strict=True,
            )
            errors[family] = max(float((a - b).norm() / b.norm()) for a, b in pairs)
            assert errors[family] < 1e-3, (family, errors[family])
        return errors

    def sampling(self) -> dict[str, float]:
        """Share of rows whose token is that of the torch sampler; the rest differ by rounding."""
        from engine.kernels.triton.sampling import sample
        from engine.worker.sampler import SamplingBatch
        from engine.worker.sampler import sample as torch_sample

        rows, draw = 16, np.random.default_rng(3)
        logits = torch.randn(rows, self._sizes.shape["vocab_size"], device=self._sizes.device) * 3
        batch = SamplingBatch(
            temperature=draw.choice([0.0, 0.7, 1.0], rows).astype(np.float32),
            top_k=draw.choice([0, 5, 50], rows),
            top_p=draw.choice([0.5, 0.9, 1.0], rows).astype(np.float32),
            min_p=np.zeros(rows, np.float32),
            uniforms=draw.random(rows, dtype=np.float32),
        )
        columns = [
            torch.from_numpy(column).to(self._sizes.device)
            for column in (
                batch.temperature,
                batch.top_k.astype(np.int32),
                batch.top_p,
                batch.min_p,
                batch.uniforms,
            )
        ]
        tokens = torch.empty(rows, dtype=torch.int64, device=self._sizes.device)
        temperature, top_k, top_p, min_p, uniforms = columns
        sample(
            launch, tokens, logits, temperature, top_k, top_p, min_p, uniforms, block=1024, warps=4
        )
        same = float((tokens.cpu().numpy() == torch_sample(logits.clone(), batch)).mean())
        assert same > 0.9, same
        return {"same": same}

    def greedy_match(self) -> dict[str, float]:
        """Share of greedy tokens that are transformers' own, for a model that it made."""
        from engine.models.decoder_triton import TritonDecoder
        from engine.models.registry import load_weights
        from tests.kernels.paged_sequences import PagedSequences
        from tests.models.tiny_models import save_tiny_model

        with tempfile.TemporaryDirectory() as name:
            oracle = save_tiny_model(Path(name), "Llama").to(self._sizes.device)
            config = _config_in(Path(name))
            weights = load_weights(config, torch.float32, self._sizes.device, lambda *state: None)
        model = TritonDecoder(
            config, weights, _kernels(self._sizes.device), 256, _spec(config, torch.float32)
        )
        tokens = [5, 17, 101, 42]
        for _ in range(5):
            (logits,) = PagedSequences(model, [tokens], _BLOCK).run([[len(tokens)]])
            tokens.append(int(logits[-1].argmax()))
        with torch.inference_mode():
            expected = oracle(torch.tensor([tokens], device=self._sizes.device)).logits[0]
        wanted = expected.argmax(-1)[3:-1].tolist()
        same = sum(a == b for a, b in zip(tokens[4:], wanted, strict=True)) / len(wanted)
        assert same == 1.0, (tokens[4:], wanted)
        return {"same": same}

    def copy_bandwidth(self) -> dict[str, float]:
        """GB/s that a copy inside the device's memory reads and writes."""
        source = torch.zeros(self._sizes.copy_bytes, dtype=torch.uint8, device=self._sizes.device)
        target = torch.empty_like(source)
        seconds = self._time(lambda: target.copy_(source))
        return {"gb_per_s": 2 * self._sizes.copy_bytes / seconds / 1e9}

    def decode_rates(self) -> list[dict[str, float]]:
        """Tokens/s with and without graphs, and the share of the copy's bandwidth."""
        from engine.cuda_graph_sizes import GraphPlan
        from engine.models.decoder_triton import TritonDecoder
        from engine.worker.cuda_graphs import GraphedDecoder

        sizes, recorder = self._sizes, _recorder(self._sizes.device)
        config = _config("LlamaForCausalLM", sizes.shape)
        kernels = _kernels(sizes.device, recorder)
        model = self._model(TritonDecoder, config, kernels, sizes.dtype)
        spec = _spec(config, sizes.dtype)
        width = spec.blocks_for(sizes.context + 1)
        cache = model.create_kv_cache(max(sizes.streams) * width + 1)
        plan = GraphPlan((), sizes.streams)
        graphed = GraphedDecoder(model, recorder, plan, max(sizes.streams) * (width + 16) + 64)
        graphed.capture(cache)
        copied = self.figures["copy_bandwidth"]["gb_per_s"]
        head_and_layers = (
            model.weight_bytes
            - sizes.shape["vocab_size"] * sizes.shape["hidden_size"] * sizes.dtype.itemsize
        )
        rates = []
        for streams in sizes.streams:
            batch = _decodes(streams, sizes.context, width)
            assert (
                graphed.greedy_tokens(batch, cache).tolist()
                == model.greedy_tokens(batch, cache).tolist()
            )
            with_graphs = self._time(partial(graphed.greedy_tokens, batch, cache))
            without = self._time(partial(model.greedy_tokens, batch, cache))
            kv = spec.bytes_per_block // _BLOCK * (sizes.context + 1) * streams
            gb_per_s = (head_and_layers + kv) / with_graphs / 1e9
            rates.append(
                {
                    "streams": streams,
                    "tokens_per_s": streams / with_graphs,
                    "tokens_per_s_ahead": streams / self._step_ahead_s(graphed, batch, cache),
                    "tokens_per_s_without_graphs": streams / without,
                    "gb_per_s": gb_per_s,
                    "share_of_copy": gb_per_s / copied,
                }
            )
        return rates

    def _step_ahead_s(self, graphed: Any, batch: Any, cache: Any) -> float:
        """Seconds of a step when each is launched before the last one's tokens are waited for.

        Its tokens are those of steps that wait, although the second reads the first one's there.
        """
        waited = graphed.greedy_tokens(batch, cache)
        known = dataclasses.replace(batch, token_ids=waited)
        unknown = dataclasses.replace(batch, token_ids=-1 - np.arange(len(waited)))
        first = _started(graphed, batch, cache)
        second = _started(graphed, unknown, cache)
        assert first.wait().tolist() == waited.tolist()
        assert second.wait().tolist() == graphed.greedy_tokens(known, cache).tolist()
        under_way: deque[Any] = deque()

        def step() -> None:
            under_way.append(_started(graphed, batch, cache))
            if len(under_way) == 2:
                under_way.popleft().wait()

        return self._time(step)

    def weight_products(self) -> dict[str, dict[str, float]]:
        """Of each format of 8 bits: error to the plain-torch twin, GB/s of weights with one token,
        TFLOP/s with many, beside torch's product in 16 bit.
        """
        from engine.kernels.scaled_weights import product, scaled_weight
        from engine.kernels.triton.kernels import TritonKernels
        from engine.kernels.weight_formats import weight_formats

        sizes, shape = self._sizes, self._sizes.shape
        width, depth = 2 * shape["intermediate_size"], shape["hidden_size"]
        weight = torch.randn(width, depth, device=sizes.device, dtype=sizes.dtype) * 0.05
        one = torch.randn(1, depth, device=sizes.device, dtype=sizes.dtype)
        many = torch.randn(sizes.prompt, depth, device=sizes.device, dtype=sizes.dtype)
        flops = 2 * sizes.prompt * width * depth
        found = {}
        for name in ("none", "int8", "fp8", "fp8_per_block"):
            formats = weight_formats(name)
            kernels = TritonKernels(_kernels(sizes.device).target, formats=formats)
            linear = kernels.pack_linear(weight, None)
            if name == "none":
                wanted = many.float() @ weight.float().t()
            else:
                wanted = product(many, scaled_weight(weight, formats.layers))
            error = float((linear.run(many).float() - wanted).norm() / wanted.norm())
            assert error < 0.01, (name, error)
            found[name] = {
                "error": error,
                "gb_per_s": linear.num_bytes / self._time(partial(linear.run, one)) / 1e9,
                "tflop_per_s": flops / self._time(partial(linear.run, many)) / 1e12,
            }
        return found

    def prefill_rate(self) -> dict[str, float]:
        """TFLOP/s of the products of one prompt, attention's included."""
        from engine.models.decoder_triton import TritonDecoder
        from engine.worker.model_runner import dummy_batch

        sizes, shape = self._sizes, self._sizes.shape
        config = _config("LlamaForCausalLM", shape)
        model = self._model(TritonDecoder, config, _kernels(sizes.device), sizes.dtype)
        cache = model.create_kv_cache(2)
        batch = dummy_batch(sizes.prompt, 1, _BLOCK, 1)
        seconds = self._time(lambda: model.greedy_tokens(batch, cache))
        embedding = shape["vocab_size"] * shape["hidden_size"]
        in_layers = model.weight_bytes // sizes.dtype.itemsize - 2 * embedding
        attention = 2 * shape["num_hidden_layers"] * sizes.prompt**2
        attention *= shape["num_attention_heads"] * shape["head_dim"]
        flops = 2 * in_layers * sizes.prompt + attention
        return {"tokens_per_s": sizes.prompt / seconds, "tflop_per_s": flops / seconds / 1e12}

    def _model(self, build: Any, config: Any, kernels: Any, dtype: torch.dtype) -> Any:
        weights = _random_weights(config, dtype, self._sizes.device)
        return build(config, weights, kernels, 4096, _spec(config, dtype))

    def _time(self, work: Callable[[], Any]) -> float:
        """Seconds of one run, of several after one that is not counted."""
        work()
        self._synchronize()
        start = time.perf_counter()
        for _ in range(self._sizes.repeats):
            work()
        self._synchronize()
        return (time.perf_counter() - start) / self._sizes.repeats

    def _synchronize(self) -> None:
        if self._sizes.device.type == "cuda":
            torch.cuda.synchronize()


def _decodes(streams: int, context: int, width: int) -> Any:
    from engine.kernels.step_batch import StepBatch

    table = np.arange(1, 1 + streams * width).reshape(1, streams, width)
    return StepBatch(
        token_ids=np.arange(streams) % 200,
        positions=np.full(streams, context),
        slot_mapping=table[:, :, context // _BLOCK] * _BLOCK + context % _BLOCK,
        query_start_loc=np.arange(streams + 1),
        num_computed=np.full(streams, context),
        block_table=table,
        logits_rows=np.arange(streams),
    )


def _config(architecture: str, shape: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as name:
        facts = {
            "architectures": [architecture],
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": False,
            "hidden_activation": "gelu_pytorch_tanh",
            **shape,
        }
        (Path(name) / "config.json").write_text(json.dumps(facts))
        return _config_in(Path(name))


def _config_in(folder: Path) -> Any:
    from engine.model_config import ModelConfig

    return ModelConfig.from_folder(folder, "measured")


def _spec(config: Any, dtype: torch.dtype) -> Any:
    from engine.kv_sizing import kv_cache_spec

    name = str(dtype).removeprefix("torch.")
    return kv_cache_spec(config, block_size=_BLOCK, cache_dtype=name, in_flight_tokens=2048)


def _random_weights(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    from engine.models.weights import DecoderWeights, LayerWeights, LinearWeight

    generator = torch.Generator(device).manual_seed(0)

    def new(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype) * 0.05

    def linear(out: int, inputs: int) -> LinearWeight:
        return LinearWeight(new(out, inputs), None)

    hidden, head_dim = config.hidden_size, config.head_dim
    q, kv = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    has_head_norms = "Llama" not in config.architecture
    has_output_norms = "Gemma" in config.architecture
    layers = [
        LayerWeights(
            input_norm=new(hidden) + 1,
            qkv=linear(q + 2 * kv, hidden),
            output=linear(hidden, q),
            post_norm=new(hidden) + 1,
            gate_up=linear(2 * config.intermediate_size, hidden),
            down=linear(hidden, config.intermediate_size),
            q_norm=new(head_dim) + 1 if has_head_norms else None,
            k_norm=new(head_dim) + 1 if has_head_norms else None,
            attention_norm=new(hidden) + 1 if has_output_norms else None,
            mlp_norm=new(hidden) + 1 if has_output_norms else None,
        )
        for _ in range(config.num_hidden_layers)
    ]
    vocabulary = config.vocab_size
    return DecoderWeights(new(vocabulary, hidden), layers, new(hidden) + 1, new(vocabulary, hidden))


def _kernels(device: torch.device, recorder: Any = None) -> Any:
    from engine.kernels.triton.kernels import TritonKernels
    from engine.kernels.triton.targets import INTERPRETED, target_named, target_of_capability

    if device.type == "cpu":
        return TritonKernels(INTERPRETED, recorder.launch if recorder else launch)
    if torch.version.hip is not None:
        return TritonKernels(target_named("gfx942"))
    return TritonKernels(target_of_capability(*torch.cuda.get_device_capability()))


def _recorder(device: torch.device) -> Any:
    if device.type == "cpu":
        from tests.fakes.graph_device import RecordingDevice

        return RecordingDevice()
    from engine.worker.graph_device import CudaGraphDevice

    return CudaGraphDevice(device)


def _reference() -> Any:
    from engine.kernels.kernel_set import create_kernel_set

    return create_kernel_set("reference")


def _device_name(device: torch.device) -> str:
    return "CPU, dry" if device.type == "cpu" else torch.cuda.get_device_name(device)


def _started(graphed: Any, batch: Any, cache: Any) -> Any:
    """The greedy tokens of a step, on their way."""
    return graphed.download(graphed.choose_tokens(graphed.start(batch, cache), None))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(words)
    sizes = DRY if asked.dry else GPU
    prepare(sizes.device.type)
    Measurement(sizes, asked.out).run()


if __name__ == "__main__":
    main()
