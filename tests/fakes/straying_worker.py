"""A worker process of which the second tensor rank goes astray, as a fault might make it.

`straying_worker.py KIND --name NAME --control DESCRIPTOR`, where KIND is `tokens` or `blocks`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.worker.model_runner import ModelRunner
from engine.worker.worker import Worker
from engine.worker.worker_proc import main

_append_sampled = ModelRunner.append_sampled
_initialize_kv_cache = Worker.initialize_kv_cache


def hears_other_tokens(self: ModelRunner, sampled: Sequence[tuple[str, int]]) -> None:
    _append_sampled(self, [(req_id, token ^ 1) for req_id, token in sampled])


def has_a_block_less(self: Worker, num_blocks: int) -> int:
    return _initialize_kv_cache(self, num_blocks - 1)


if __name__ == "__main__":
    kind, _, name, _, control = sys.argv[1:]
    if name.endswith("TP1"):
        if kind == "tokens":
            ModelRunner.append_sampled = hears_other_tokens  # type: ignore[method-assign]
        else:
            Worker.initialize_kv_cache = has_a_block_less  # type: ignore[method-assign]
    sys.exit(main(name, int(control)))
