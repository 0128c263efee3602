"""What a sleeping worker on a CPU gives back to the system, seen from outside of its process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.kernels.native_models import native_library
from tests.places import ROOT
from tests.tiny_model import write_tiny_llama

MIB = 1 << 20
CACHE_BYTES = 96 * MIB
PROGRAM = """
import json, os, sys
from pathlib import Path
from engine.machine.processes import rss_bytes
from engine.worker.uniproc_executor import UniProcExecutor
from tests.worker.driver import Driver, engine_config

def held():
    return rss_bytes(os.getpid())

def tokens():
    driver = Driver(executor, 16)
    driver.add("a", list(range(60)))
    return driver.generate(["a"], 8)[0]

cache_bytes = int(sys.argv[2])
config = engine_config(Path(sys.argv[1]), dtype="bfloat16", kernels="native", num_threads=1)
executor = UniProcExecutor(config)
executor.load_model()
executor.determine_available_memory()
executor.initialize_kv_cache(cache_bytes // executor.get_kv_cache_spec().bytes_per_block)
found = {"weights": executor._worker._model.weight_bytes, "tokens": [tokens()], "held": []}
for level in (1, 2):
    [page.fill_(0) for page in executor._worker._kv_cache]  # every page has been written
    found["held"].append(held())
    executor.call_workers("sleep", level)
    found["held"].append(held())
    executor.call_workers("wake_up", ["weights", "kv_cache"])
    found["tokens"].append(tokens())
print(json.dumps(found))
"""


def test_the_cache_goes_at_level_1_the_weights_too_at_level_2(tmp_path: Path) -> None:
    native_library()
    model = write_tiny_llama(
        tmp_path / "model", hidden_size=512, intermediate_size=4096, num_hidden_layers=3
    )
    words = [str(model), str(CACHE_BYTES)]
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=240,
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    first, second, third = found["tokens"]
    assert first == second == third
    before_1, at_1, before_2, at_2 = found["held"]
    weights = found["weights"]
    assert weights > 32 * MIB
    assert before_1 - at_1 > 0.9 * CACHE_BYTES
    assert before_2 - at_2 > 0.9 * (CACHE_BYTES + weights)
