"""A process that makes the tiny model, so that tests can kill it or run two of it at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from engine.model_store.catalogue import BuiltinModel
from engine.model_store.store import ModelStore


def main() -> None:
    root, entry, command = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    model = BuiltinModel(**entry)

    def convert(gguf: Path, target: Path) -> tuple[str, ...]:
        return tuple(
            {"{gguf}": str(gguf), "{target}": str(target)}.get(word, word) for word in command
        )

    store = ModelStore(Path(root), catalogue=(model,), convert_command=convert)
    store.ensure(model, lambda progress: print(progress.step, flush=True))


if __name__ == "__main__":
    main()
