"""What is started: the argument list, environment and address of one server.

Flags are checked here against `engine.args`, before any process exists; `vllm_spec` and
`llama_spec` translate them for the other engines. A secret is in `secrets` and the child's
environment only, never in the argument list.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from app.errors import ExitCode, StokerError, UsageError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.launch.flag_answers import FlagReader, Version, require_switches, value_of
from engine.args import EngineArgs, with_dashes
from engine.env import detect_device
from engine.errors import ConfigError, ModelError, ModelNotFoundError
from engine.machine.addresses import is_loopback, outward_host, url_host
from engine.machine.children import engine_command
from engine.machine.ports import is_port_free, is_uds_served
from engine.machine.secrets import HUB_SECRETS, child_environment
from engine.model_config import ModelConfig
from engine.model_store.catalogue import DEFAULT_MODEL, require_model_name
from engine.node_key import NODE_KEY_VARIABLE

ENGINES = (STOKER, VLLM, LLAMA_CPP)
API_KEY_VARIABLE = "STOKER_API_KEY"
_ALIASES = {"llamacpp": LLAMA_CPP, "llama-cpp": LLAMA_CPP, "llama-server": LLAMA_CPP}
_END_OF_FLAGS = "--"
_SECRET_FLAGS = ("--api-key", "--hf-token", "-hft")  # other users can read an argument list
# What a value is, where its type does not say it.
_FLAG_WORDS = {
    "host": "ADDRESS",
    "port": "PORT",
    "uds": "FILE",
    "api_key": "KEY",
    "master_addr": "ADDRESS",
    "node_key_file": "FILE",
    "distributed_timeout_seconds": "SECONDS",
    "max_model_len": "N|auto",
    "kv_cache_memory_bytes": "SIZE",
    "cudagraph_capture_sizes": "N...",
    "limit_mm_per_prompt": "JSON",
    "pooler_config": "JSON",
    **dict.fromkeys(("allowed_origins", "allowed_methods", "allowed_headers"), "JSON"),
    "allowed_hosts": "JSON",
    "allowed_media_domains": "HOST...",
    "chat_template": "FILE",
    "record_traffic": "FILE",
    "record_traffic_max_bytes": "SIZE",
    "generation_config": "auto|vllm|FOLDER",
    "shutdown_timeout": "SECONDS",
}
_WATCHED_FLAGS = ("--host", "--port", "--uds")  # the server would be where nobody looks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """The checked command line of `stoker serve`; an API key that stood there is kept apart.

    `engine_words` stood behind `--` and reach the engine as they are.
    """

    model: str
    args: EngineArgs
    engine: str = STOKER
    engine_words: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)

    @property
    def served_name(self) -> str:
        return self.args.served_model_name or self.model

    @property
    def uds(self) -> str | None:
        """The whole path of the socket file, in place of host and port."""
        uds = self.args.uds
        return os.path.abspath(os.path.expanduser(uds)) if uds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One server that can be started; `repr` shows no secret."""

    engine: str
    argv: tuple[str, ...]
    model: str
    host: str
    port: int
    shutdown_timeout_s: float
    uds: str | None = None  # the socket file, in place of host and port
    served_name: str | None = None  # the name clients use; None: the server's own choice
    variables: dict[str, str] = field(default_factory=dict)  # added to the child's environment
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # variable -> value
    needed_secrets: tuple[str, ...] = ()  # names of those of our environment that it inherits
    notes: tuple[str, ...] = ()  # what was chosen for the user, who should know
    node_rank: int = 0  # above 0: ranks of a server on node 0, whose host and port these are

    @property
    def is_headless(self) -> bool:
        """Whether it only has ranks of a server on another machine, and listens nowhere."""
        return self.node_rank > 0

    @property
    def url(self) -> str:
        """Where a client on this machine finds the server."""
        if self.uds is not None:
            return f"unix:{self.uds}"
        return f"http://{url_host(self.host)}:{self.port}"

    @property
    def place(self) -> str:
        """Where it listens, in words."""
        return f"socket {self.uds}" if self.uds is not None else f"port {self.port}"

    def is_place_free(self) -> bool:
        """Whether nobody listens where it listened."""
        if self.is_headless:
            return True
        if self.uds is not None:
            return not is_uds_served(self.uds)
        return is_port_free(self.host, self.port)

    @property
    def death_signal(self) -> signal.Signals:
        """What the kernel sends to the first process when the supervisor dies.

        Our engine and llama-server end with it, cores too. Others' processes may hide from whoever
        looks for them, unless their server stands still.
        """
        ends_whole = self.engine in (STOKER, LLAMA_CPP)
        return signal.SIGKILL if ends_whole else signal.SIGSTOP

    @property
    def outside_url(self) -> str | None:
        """Where other machines find it; None when it is open to this one alone."""
        host = None if self.uds or self.is_headless else outward_host(self.host)
        return f"http://{host}:{self.port}" if host else None

    @property
    def addresses(self) -> str:
        """What is printed of it: the URL, and the one for other machines where there is another."""
        if self.is_headless:
            return f"node 0 ({self.host})"
        outside = self.outside_url
        return self.url if outside in (None, self.url) else f"{self.url} (others: {outside})"

    @property
    def api_key(self) -> str | None:
        """The key that clients must bring."""
        return next(iter(self.secrets.values()), None)

    def environment(self) -> dict[str, str]:
        """The child's environment: ours with the secrets it needs, output unbuffered."""
        ours = child_environment(*self.needed_secrets)
        return {**ours, "PYTHONUNBUFFERED": "1", **self.variables, **self.secrets}


def engine_called(name: str) -> str:
    """The one name of an engine that users spell in several ways; StokerError if there is none."""
    engine = _ALIASES.get(name.lower(), name.lower())
    if engine in ENGINES:
        return engine
    raise UsageError(f"no such engine: {name}", hint=f"known engines: {', '.join(ENGINES)}")


def parse_serve_request(
    words: Sequence[str], engine: str = STOKER, vllm_version: Version | None = None
) -> ServeRequest:
    """Check MODEL and engine flags; StokerError with exit code 2 says what to do instead of those
    that are not known, for the vLLM that will run (None: the newest).
    """
    _require_text(words)
    own, engine_words = _split_at_end_of_flags(words)
    _require_harmless(engine_words)
    namespace, rest, known = _read_engine_flags(own)
    reader = FlagReader(engine, vllm_version, known)
    unknown = [word for word in rest if word.startswith("-")]
    unknown += [word for word in map(with_dashes, own) if reader.lacks(word.partition("=")[0])]
    if unknown:
        raise reader.refusal(own, unknown)
    if len(rest) > 1:
        raise UsageError(f"one model is served, but {len(rest)} were named: {' '.join(rest)}")
    model = rest[0] if rest else DEFAULT_MODEL
    try:
        require_model_name(model)
    except ModelNotFoundError as error:
        raise UsageError(str(error), hint=error.hint) from error
    args = EngineArgs.from_cli(namespace)
    if args.api_key == "":
        raise UsageError("--api-key is empty", hint="leave it out to serve without a key")
    if not 1 <= args.port <= 65535:
        raise UsageError(
            f"--port {args.port} is out of range", hint="use a port from 1024 to 65535"
        )
    return ServeRequest(
        model=model,
        args=dataclasses.replace(args, api_key=None),
        engine=engine,
        engine_words=engine_words,
        api_key=args.api_key,
    )


def models_of_plan(
    words: Sequence[str], engine: str, vllm_version: Version | None, options: Sequence[str]
) -> tuple[list[str], list[str]]:
    """(MODELs, flags of `serve` that no plan depends on) of what `plan` does not know itself.

    StokerError as in `serve` for flags that `engine` does not take; `options` are plan's own.
    """
    own, engine_words = _split_at_end_of_flags(words)
    _, rest, known = _read_engine_flags(own)
    reader = FlagReader(engine, vllm_version, (*options, *known), "plan")
    passing: list[str] = [word for word in engine_words if word.startswith("--")]
    refused: list[str] = []
    for word in (one for one in rest if one.startswith("-")):
        flag = word.partition("=")[0]
        (passing if reader.is_vllms(flag) else refused).append(flag)
    if refused:
        raise reader.refusal(own, refused)
    values = [value_of(flag, rest) for flag in passing]
    models = [word for word in rest if not word.startswith("-") and word not in values]
    given = {with_dashes(word).partition("=")[0] for word in own if word.startswith("-")}
    return models, sorted({*passing, *(given & set(known))})


def _read_engine_flags(
    words: Sequence[str],
) -> tuple[argparse.Namespace, list[str], tuple[str, ...]]:
    """The flags that our engine knows, the words that are none of them, and their names."""
    parser = _EngineFlagParser(prog="stoker serve", add_help=False)
    EngineArgs.add_cli_args(parser)
    dashed = [with_dashes(word) for word in words]
    switches = [
        name
        for action in parser._actions
        if isinstance(action, argparse.BooleanOptionalAction)
        for name in action.option_strings
    ]
    require_switches(dashed, switches)
    namespace, rest = parser.parse_known_args(dashed)
    return namespace, rest, tuple(parser._option_string_actions)


def with_debug_endpoints(
    request: ServeRequest, words: Sequence[str], api_key: str | None
) -> ServeRequest:
    """For whoever watches this server, now or later: /debug, unless it is refused or the port is
    open to others (other machines reach it without a key).
    """
    is_refused = "--no-enable-debug-endpoints" in map(with_dashes, words)
    is_open = api_key is None and not request.args.uds and not is_loopback(request.args.host)
    if request.engine != STOKER or is_refused or is_open:
        return request
    args = dataclasses.replace(request.args, enable_debug_endpoints=True)
    return dataclasses.replace(request, args=args)


def check_fits_model(request: ServeRequest, folder: Path) -> None:
    """Check the flags against the model in `folder` as the engine will, without starting it."""
    try:
        config = ModelConfig.from_folder(folder, request.served_name, request.args.model_impl)
        request.args.create_engine_config(config, detect_device())
    except (ConfigError, ModelNotFoundError) as error:  # as a name that is no model
        raise UsageError(str(error).rstrip(".")) from error
    except ModelError as error:
        # The same code as when the engine finds it, a second later.
        raise StokerError(
            str(error).rstrip("."), exit_code=ExitCode.ENGINE_FAILED_TO_START
        ) from error


def stoker_spec(request: ServeRequest, model_path: str, api_key: str | None) -> LaunchSpec:
    """Our own engine on `model_path` (a folder, a file, or an id that the engine finds itself)."""
    args = dataclasses.replace(request.args, served_model_name=request.served_name, uds=request.uds)
    return LaunchSpec(
        engine=STOKER,
        argv=engine_command("serve", model_path, *as_flags(args), *request.engine_words),
        model=request.model,
        served_name=request.served_name,
        host=args.master_addr if args.is_headless else args.host,
        port=args.port,
        uds=None if args.is_headless else args.uds,
        shutdown_timeout_s=args.shutdown_timeout,
        secrets={API_KEY_VARIABLE: api_key} if api_key and not args.is_headless else {},
        needed_secrets=(*download_secrets(model_path), *node_secrets(args)),
        node_rank=args.node_rank if args.is_headless else 0,
    )


def download_secrets(model_path: str) -> tuple[str, ...]:
    """What a server needs that fetches its own model: nothing when that lies on this machine."""
    return () if Path(model_path).exists() else HUB_SECRETS


def node_secrets(args: EngineArgs) -> tuple[str, ...]:
    """What a server needs whose ranks are on several machines."""
    return (NODE_KEY_VARIABLE,) if args.nnodes > 1 else ()


def as_flags(args: EngineArgs) -> list[str]:
    """The flags that differ from their defaults, in the engine's spelling; never the API key."""
    flags = []
    for entry in dataclasses.fields(args):
        value = getattr(args, entry.name)
        if value == entry.default or entry.name == "api_key":
            continue
        option = entry.name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, tuple) and entry.metadata["nargs"]:
            flags += [f"--{option}", *map(str, value)]
        elif isinstance(value, tuple):
            flags.append(f"--{option}={json.dumps(value)}")
        else:
            flags.append(f"--{option}={value}")
    return flags


@dataclass(frozen=True, slots=True)
class EngineFlag:
    """A flag of the engine for help and completion; `word` is "" for a switch."""

    name: str
    word: str
    meaning: str
    default: object


def engine_flags() -> tuple[EngineFlag, ...]:
    """Every flag of the engine, in the order of EngineArgs."""
    return tuple(_engine_flag(entry) for entry in dataclasses.fields(EngineArgs))


def engine_flag_help() -> list[tuple[str, str]]:
    """(flag, help) of every engine flag, for `stoker serve --help`."""
    records = []
    for flag in engine_flags():
        option = f"{flag.name} {flag.word}" if flag.word else f"--[no-]{flag.name[2:]}"
        shown = "" if flag.default in (None, ()) else f" [default: {_typed(flag.default)}]"
        records.append((option, flag.meaning + shown))
    return records


def _engine_flag(entry: dataclasses.Field[Any]) -> EngineFlag:
    meta = entry.metadata
    kind = str(entry.type)
    if kind == "bool":
        word = ""
    elif meta["choices"]:
        word = "|".join(meta["choices"])
    else:
        word = _FLAG_WORDS.get(entry.name) or ("N" if "int" in kind else "NUMBER")
        word = "TEXT" if "str" in kind and entry.name not in _FLAG_WORDS else word
    return EngineFlag("--" + entry.name.replace("_", "-"), word, meta["help"], entry.default)


def _typed(value: object) -> object:
    """A default as one would type it."""
    return json.dumps(value) if isinstance(value, tuple) else value


class _EngineFlagParser(argparse.ArgumentParser):
    """Raises StokerError where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))


def _split_at_end_of_flags(words: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    if _END_OF_FLAGS not in words:
        return words, ()
    end = words.index(_END_OF_FLAGS)
    return words[:end], tuple(words[end + 1 :])


def _require_harmless(engine_words: Sequence[str]) -> None:
    """Words for the engine are not looked at, but for secrets and for what we must know ourselves.

    argparse in vLLM takes underscores for dashes.
    """
    for word in engine_words:
        flag = with_dashes(word).partition("=")[0]
        if flag in _SECRET_FLAGS:
            hint = "--api-key-file FILE or STOKER_API_KEY; HF_TOKEN for the hub"
            raise UsageError(
                f"{flag} behind `--` would show a secret in the process list", hint=hint
            )
        if flag in _WATCHED_FLAGS:
            raise UsageError(f"{flag} belongs before `--`, Stoker has to know it")


def _require_text(words: Sequence[str]) -> None:
    """Bytes that are no text in this locale reach us as lone surrogates; no server can use them."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            shown = word.encode("ascii", "backslashreplace").decode()
            hint = "set a UTF-8 locale: export LC_ALL=C.UTF-8"
            raise UsageError(f"{shown} is not valid text", hint=hint) from error


def without_api_key(words: Iterable[str]) -> tuple[str, ...]:
    """Words that may be kept or shown: without `--api-key KEY` or `--api-key=KEY`."""
    kept: list[str] = []
    is_value = False
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if not is_value and flag not in _SECRET_FLAGS:
            kept.append(word)
        is_value = not is_value and word.replace("_", "-") in _SECRET_FLAGS
    return tuple(kept)
