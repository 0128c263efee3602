"""`python -m engine serve MODEL`, or the same with this file's path: the engine's command line.

Started by path, it loads the package `engine` from its own folder and from nowhere else, so that a
folder of that name in the current directory or on PYTHONPATH is never imported instead.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.args import EngineArgs
    from engine.config import EngineConfig

_HERE = Path(__file__).resolve().parent
_WITHOUT_FLAGS = (["core"], ["worker"])
"""Parts that a start waits for; they do not import the flags of `serve`."""


def _load_own_package() -> None:
    # Python puts a script's folder first; `errors`, `logger` and others would be top-level modules.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    spec = importlib.util.spec_from_file_location(
        "engine", _HERE / "__init__.py", submodule_search_locations=[str(_HERE)]
    )
    assert spec is not None, _HERE
    assert spec.loader is not None, _HERE
    package = importlib.util.module_from_spec(spec)
    sys.modules["engine"] = package
    spec.loader.exec_module(package)


def main(argv: list[str]) -> int:
    """Run one subcommand; returns the exit code."""
    import argparse

    from engine.version import __version__

    parser = argparse.ArgumentParser(prog="python -m engine", description="Stoker's engine.")
    parser.add_argument("--version", action="version", version=f"stoker engine {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve a model over HTTP")
    if argv[:1] not in _WITHOUT_FLAGS:
        from engine.args import EngineArgs, with_dashes

        serve.add_argument("model", help="model folder, .gguf file, or name")
        EngineArgs.add_cli_args(serve)
        argv = [with_dashes(word) for word in argv]
    core = commands.add_parser("core", help="the engine process (started by `serve`)")
    core.add_argument("--handshake", required=True, metavar="ADDRESS")
    core.add_argument("--parent", required=True, type=int, metavar="PID")
    core.add_argument("--name", default="EngineCore", help="stands before its log lines")
    core.add_argument("--executor", default="uni", metavar="NAME")
    worker = commands.add_parser("worker", help="one rank of a model (started by `core`)")
    worker.add_argument("--name", required=True, help="stands before its log lines")
    worker.add_argument("--control", required=True, type=int, metavar="DESCRIPTOR")
    for name, text in (
        ("api-server", "one of several API servers (started by `serve`)"),
        ("coordinator", "the process that tells them the engines' queues (started by `serve`)"),
    ):
        part = commands.add_parser(name, help=text)
        part.add_argument("--name", required=True, help="stands before its log lines")
        part.add_argument("--control", required=True, metavar="ADDRESS")
        part.add_argument("--parent", required=True, type=int, metavar="PID")
        if name == "api-server":
            part.add_argument("--listener", required=True, type=int, metavar="DESCRIPTOR")
    commands.add_parser("grammars", help="the process that tries grammars (started by `serve`)")
    commands.add_parser("images", help="the process that unpacks images (started by `serve`)")
    convert = commands.add_parser("convert", help="convert a .gguf file to a safetensors folder")
    convert.add_argument("source", type=Path, metavar="GGUF")
    convert.add_argument("target", type=Path, metavar="FOLDER")
    resolve = commands.add_parser("resolve", help="find or download a model; prints its folder")
    resolve.add_argument("model")
    namespace = parser.parse_args(argv)
    if namespace.command == "core":
        from engine.core.engine_core_proc import main as core_main

        return core_main(namespace.handshake, namespace.parent, namespace.name, namespace.executor)
    if namespace.command == "worker":
        from engine.worker.worker_proc import main as worker_main

        return worker_main(namespace.name, namespace.control)
    if namespace.command == "api-server":
        from engine.quick_imports import no_collections

        with no_collections():
            from engine.server.api_servers.api_server import main as api_server_main

        return api_server_main(
            namespace.name, namespace.control, namespace.parent, namespace.listener
        )
    if namespace.command == "coordinator":
        from engine.server.api_servers.coordinator import main as coordinator_main

        return coordinator_main(namespace.name, namespace.control, namespace.parent)
    if namespace.command == "grammars":
        from engine.core.grammar_worker import main as grammars_main

        return grammars_main()
    if namespace.command == "images":
        from engine.images.worker import main as images_main

        return images_main()
    if namespace.command == "convert":
        return _convert(namespace.source, namespace.target)
    if namespace.command == "resolve":
        return _resolve(namespace.model)
    return _serve(namespace.model, EngineArgs.from_cli(namespace))


def _serve(model: str, args: object) -> int:
    import dataclasses

    from engine.args import MOST_REPLICAS, EngineArgs
    from engine.core.core_process import start_processes
    from engine.env import COUNTS_VARIABLE, device_starts
    from engine.quick_imports import no_collections

    assert isinstance(args, EngineArgs)
    # Taken out of the environment, so that no child process inherits it.
    key = os.environ.pop("STOKER_API_KEY", None)
    if args.api_key is None and key:
        args = dataclasses.replace(args, api_key=key)
    # One that was meant for other programs: several API servers get a folder of their own.
    os.environ.pop(COUNTS_VARIABLE, None)
    if args.is_headless:
        return _serve_headless(model, args)
    is_possible = 1 <= args.data_parallel_size <= MOST_REPLICAS  # else the start will say so
    processes = start_processes(args.likely_parallel) if is_possible else []
    starts = device_starts("cpu")
    starts.announce()  # before torch is loaded: whose memory that will be
    try:
        _start_build(args)
        with no_collections():  # takes half a second, while the processes import torch
            from engine.server.launch import run
        return run(model, args, processes=processes)
    finally:
        for process in processes:
            process.discard()
        starts.leave()


def _serve_headless(model: str, args: EngineArgs) -> int:
    """The ranks of another node than 0, which node 0 uses."""
    import asyncio

    from engine.env import device_starts
    from engine.frontend.engine_start import load_config, log_arguments
    from engine.worker.headless import run_node

    def configure() -> EngineConfig:
        log_arguments(model, args)
        return asyncio.run(load_config(model, args))

    starts = device_starts("cpu")
    starts.announce()
    try:
        return run_node(args.node_rank, configure)
    finally:
        starts.leave()


def _start_build(args: EngineArgs) -> None:
    """The compiler takes longest, and what a CPU most likely needs is known before the model is."""
    from engine.env import detect_device
    from engine.kernels.native.build import Formats, start_build
    from engine.logger import setup_logging

    device = detect_device().kind if args.device == "auto" else args.device
    is_wanted = args.kernels in ("auto", "native") and args.dtype in ("auto", "bfloat16")
    if device == "cpu" and is_wanted and args.model_impl != "transformers":
        setup_logging("APIServer", secrets=(args.api_key or "",))
        cache_bytes = 2 if args.kv_cache_dtype == "auto" else 1
        start_build(Formats.needed(args.quantization, cache_bytes))


def _convert(source: Path, target: Path) -> int:
    """Progress on stdout as `PROGRESS done total name`; failures as one line on stderr."""
    from engine.errors import EngineError
    from engine.models.gguf_convert import convert_gguf

    def on_progress(done: int, total: int, name: str) -> None:
        print(f"PROGRESS {done} {total} {name}", flush=True)

    try:
        convert_gguf(source, target, on_progress)
    except (EngineError, OSError) as error:
        return _fail(error)
    return 0


def _resolve(model: str) -> int:
    """Talk on stderr; the folder is the last line of stdout."""
    from engine.errors import EngineError
    from engine.models.resolve import resolve_model

    def on_progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        print(resolve_model(model, on_progress=on_progress))
    except (EngineError, OSError) as error:
        return _fail(error)
    return 0


def _fail(error: Exception) -> int:
    """1, or 2 as for any other mistake of the command line: the word names no model."""
    from engine.errors import ModelNotFoundError

    print(f"error: {error}", file=sys.stderr)
    return 2 if isinstance(error, ModelNotFoundError) else 1


if __name__ == "__main__":
    if not __package__:
        _load_own_package()
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # Ctrl-C before the server took the signal over
        sys.exit(130)
