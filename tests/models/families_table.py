"""The table of decoder families in docs/models.md, made by running a tiny model of each.

`python -m tests.models.families_table` writes docs/models.md anew (some minutes); with names of
families it prints their rows.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.args import EngineArgs
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.errors import EngineError
from engine.messages import EngineCoreRequest
from engine.model_config import ModelConfig
from engine.sampling_params import SamplingParams
from tests.models.decoder_families import decoder_families, tiny_decoder
from tests.places import ROOT
from tests.worker.greedy import tokens_without_cache

DOCUMENT = ROOT / "docs" / "models.md"
HEADER = "| family | architecture | runs in | whole | chunked | preempted | batch and alone |"
_RULE = "|---|---|---|---|---|---|---|"
_LONGEST = 64
_NUM_TOKENS = 16
_PROMPTS = [
    [(7 * i * i + step * i) % 120 + 3 for i in range(n)] for n, step in ((30, 1), (44, 3), (9, 5))
]
_REFUSED = "refused"
KINDS = {
    (False, "stoker"): "native, reference",
    (False, "transformers"): "fallback, paged",
    (True, "transformers"): "fallback, own cache",
}
"""By whether transformers' cache is used, and whose code runs."""


@dataclass(frozen=True)
class Row:
    """What one family came to; `equal` is whole, chunked, preempted, batch and alone."""

    family: str
    architecture: str
    kind: str
    equal: tuple[bool, ...] = ()
    reason: str = ""

    @property
    def line(self) -> str:
        """As the table has it."""
        words = ["equal" if equal else "**differs**" for equal in self.equal] or ["-"] * 4
        cells = (self.family, f"`{self.architecture}`", self.kind, *words)
        return f"| {' | '.join(cells)} |"


def row_of(family: str) -> Row:
    """Serve a tiny model of `family` in every way, and compare with transformers alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        oracle = save_family(family, folder)
        architecture = str(oracle.config.architectures[0])
        try:
            core = _start(folder)
        except EngineError as error:
            return Row(family, architecture, _REFUSED, reason=str(error))
        wanted = [tokens_without_cache(oracle, prompt, _NUM_TOKENS) for prompt in _PROMPTS]
        whole, _ = _run(core, _PROMPTS)
        core.reset_prefix_cache()
        alone = [_run(core, [prompt])[0][0] for prompt in _PROMPTS]
        model = core.config.model
        core.shutdown()
        core = _start(folder, max_num_batched_tokens=20)
        chunked, _ = _run(core, _PROMPTS)
        blocks = core.spec.blocks_per_request(_LONGEST)
        core.shutdown()
        core = _start(folder, max_num_batched_tokens=20, num_gpu_blocks_override=blocks + 2)
        core.scheduler.config = dataclasses.replace(core.scheduler.config, reserve_full_isl=False)
        preempted, was_preempted = _run(core, _PROMPTS)
        core.shutdown()
        assert was_preempted, f"{family}: nothing was preempted"
        equal = (whole == wanted, chunked == wanted, preempted == wanted, alone == whole)
        return Row(family, architecture, KINDS[model.keeps_own_cache, model.implementation], equal)


def save_family(family: str, folder: Path) -> Any:
    """The model in `folder`, with weights large enough that its tokens differ."""
    known = CONFIG_MAPPING[family]().to_dict()
    changes = {"initializer_range": 0.15} if "initializer_range" in known else {}
    oracle = tiny_decoder(family, **changes)
    oracle.save_pretrained(folder)
    return oracle


def _start(folder: Path, **flags: Any) -> EngineCore:
    args = EngineArgs(
        dtype="float32",
        kernels="reference",
        kv_cache_memory_bytes=1 << 26,
        max_model_len=_LONGEST,
        num_threads=1,
        **flags,
    )
    model = ModelConfig.from_folder(folder, "tiny")
    return EngineCore(args.create_engine_config(model, HostDevice("cpu", "cpu", None)))


def _run(core: EngineCore, prompts: Sequence[list[int]]) -> tuple[list[list[int]], bool]:
    """Tokens of all prompts at once, and whether one of them was preempted."""
    params = SamplingParams(temperature=0.0, max_tokens=_NUM_TOKENS, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        core.add_request(EngineCoreRequest(str(number), prompt, params, arrival_time=0.0))
    tokens: list[list[int]] = [[] for _ in prompts]
    was_preempted = False
    while not core.is_idle:
        for output in core.step().outputs:
            tokens[int(output.request_id)] += output.new_token_ids
            was_preempted |= output.num_preemptions > 0
    return tokens, was_preempted


def documented_rows() -> dict[str, str]:
    """Family to its line in docs/models.md."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = lines.index(HEADER) + 2
    rows = [line for line in lines[start:] if line.startswith("| ")]
    return {line.split("|")[1].strip(): line for line in rows if line.count("|") == 8}


def main(asked: Sequence[str]) -> None:
    """Print rows, or write all of them into the document."""
    rows = []
    for family in asked or decoder_families():
        row = row_of(family)
        print(row.line, row.reason, flush=True)
        rows.append(row)
    if asked:
        return
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = lines.index(HEADER)
    end = next(n for n in range(start, len(lines)) if not lines[n].startswith("|"))
    lines[start:end] = [HEADER, _RULE, *(row.line for row in rows)]
    DOCUMENT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
