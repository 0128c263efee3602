"""`stoker serve` on two nodes with two stages of two ranks: its processes, its tokens, its end."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
from tokenizers import Tokenizer

from engine.machine.ports import free_port
from engine.machine.processes import role_of
from tests.core.core_runs import engine, request, run_all
from tests.e2e.running_server import (
    STOKER,
    Server,
    planned_processes,
    started,
    wait_until_supervised,
)
from tests.tiny_model import write_tiny_llama
from tests.waiting import is_running, wait_for

_LAYOUT = ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2", "--nnodes", "2")
_PROMPT = list(range(90))
HALF = "\ufffd"  # a character whose other bytes have not come


def expected_text(model: Path) -> str:
    """Of one process."""
    with engine(model) as core:
        tokens = run_all(core, [request("one", _PROMPT, 12)])["one"]
    text = str(Tokenizer.from_file(str(model / "tokenizer.json")).decode(tokens))
    return text.rstrip(HALF)


def roles_of(server: Server) -> list[str]:
    found = [role_of(process.cmdline()) for process in server.tree()]
    return [role for role in found if role]


def test_two_nodes_serve_as_one_and_end_together(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    secret = "0123456789abcdef"
    (tmp_path / "node.key").write_text(secret)
    by_file = {"STOKER_SERVE__NODE_KEY_FILE": "node.key"}
    by_variable = {"STOKER_NODE_KEY": secret}
    port, master = free_port(), free_port()
    words = [str(STOKER), "serve", str(model), "--no-tui", "--port", str(port), *_LAYOUT]
    words += ["--dtype", "float32", "--kv-cache-memory-bytes", "8M"]
    words += ["--master-port", str(master)]
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                started(
                    [*words, "--node-rank", str(rank), "--name", f"node-{rank}"],
                    port,
                    cwd=tmp_path,
                    env={**env, **key},
                    wait=False,
                )
            )
            for rank, key in ((1, by_file), (0, by_variable))
        ]
        other, first = nodes
        wait_until_supervised(first)
        wait_for(lambda: "ready: this node serves node 0" in other.text)
        here, there = roles_of(first), roles_of(other)
        assert sorted(here + there) == sorted(planned_processes(model, _LAYOUT))
        assert sorted(there) == ["Node_1", "Worker_PP1_TP0", "Worker_PP1_TP1"]
        for process in (*first.tree(), *other.tree()):
            assert secret not in " ".join(process.cmdline())
            if role_of(process.cmdline()).startswith("Worker"):
                assert secret not in process.environ().values()
        body = {"prompt": _PROMPT, "max_tokens": 12, "temperature": 0}
        answer = httpx.post(f"{first.url}/v1/completions", json=body, timeout=60)
        assert answer.json()["choices"][0]["text"].rstrip(HALF) == expected_text(model)
        tree = [*first.tree(), *other.tree()]
        assert other.stop() == 0
        assert first.process.wait(60) != 0
        wait_for(lambda: not any(map(is_running, tree)))
    reason = "node 1 (127.0.0.1) is gone: it was ended there (SIGTERM)"  # its supervisor asks so
    assert f"the server died (exit status 1): {reason}" in first.text, first.text
