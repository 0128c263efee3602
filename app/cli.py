"""The command `stoker`: a lazy table of commands and the one funnel from errors to exit codes.

A command's module is imported when it is invoked or asked for its own help; the root's `--help` and
`--version` import nothing of it. Each module offers a typer app or function, named in the table.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from app import __version__
from app.errors import EXIT_CODE_MEANINGS, ExitCode, StokerError, UsageError, told_by_engine

if TYPE_CHECKING:
    from app.command_line import CommandLineError
    from app.settings.sources import Settings


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One line of the help and where the command lives, as `module:function`."""

    name: str
    group: str
    summary: str
    target: str


COMMANDS = (
    CommandEntry("serve", "Run", "Serve a model and watch it.", "app.commands.serve:app"),
    CommandEntry("chat", "Run", "Chat with a running server.", "app.commands.chat:chat"),
    CommandEntry("complete", "Run", "Continue a raw text.", "app.commands.complete:complete"),
    CommandEntry("models", "Run", "List, get, check models; log in.", "app.commands.models:app"),
    CommandEntry("plan", "Run", "Predict what fits before a start.", "app.commands.plan:app"),
    CommandEntry("choose", "Run", "Say which engine to use here.", "app.commands.choose:choose"),
    CommandEntry("bench", "Run", "Measure a server under load.", "app.commands.bench:bench"),
    CommandEntry("connect", "Run", "Settings of a coding agent.", "app.commands.connect:connect"),
    CommandEntry("batch", "Run", "Answer a file of requests.", "app.commands.batch:batch"),
    CommandEntry(
        "unit", "Run", "Deploy: systemd, Slurm, Kubernetes, compose.", "app.commands.unit:app"
    ),
    CommandEntry("ps", "Servers", "List servers and their states.", "app.commands.servers:ps"),
    CommandEntry("status", "Servers", "Say how one server is.", "app.commands.servers:status"),
    CommandEntry("stop", "Servers", "Stop servers.", "app.commands.servers:stop"),
    CommandEntry("restart", "Servers", "Stop and serve again.", "app.commands.servers:restart"),
    CommandEntry("sleep", "Servers", "Free a server's memory for now.", "app.commands.sleep:sleep"),
    CommandEntry("wake", "Servers", "Wake a server that sleeps.", "app.commands.sleep:wake"),
    CommandEntry("attach", "Servers", "Dashboard of a server.", "app.commands.servers:attach"),
    CommandEntry("top", "Watch", "Live dashboard of a running server.", "app.commands.top:top"),
    CommandEntry("logs", "Watch", "Explain a server's log.", "app.commands.logs:logs"),
    CommandEntry("trace", "Watch", "Follow one request hop by hop.", "app.commands.trace:trace"),
    CommandEntry("doctor", "Watch", "Check what this machine can run.", "app.commands.doctor:app"),
    CommandEntry(
        "selftest", "Watch", "Try starts and stops on this machine.", "app.commands.selftest:app"
    ),
    CommandEntry("report", "Watch", "Write a file for a bug report.", "app.commands.report:report"),
    CommandEntry(
        "completion", "Watch", "For bash, zsh, fish.", "app.commands.completion:completion"
    ),
    CommandEntry("paths", "Watch", "Where Stoker keeps its files.", "app.commands.paths:paths"),
    CommandEntry("config", "Watch", "Settings, and where they are.", "app.commands.config:app"),
)
_COMPLETER = "app.completion.answers:print_answers"

# What docker, ollama and their like call it.
_MODELS = "`stoker models list` lists models, `stoker ps` servers"
_PULL = "`stoker models pull NAME` gets a model"
_REMOVE = "`stoker models rm NAME` deletes a model from Stoker's cache"
_SHOW = "`stoker models show NAME` shows a model, `stoker status` a server"
_SERVE = "`stoker serve MODEL` starts a server, `stoker chat` talks to it"
_STOP = "`stoker stop NAME` ends a server"
_TOP = "`stoker top` watches a server"
_ELSEWHERE = {
    **dict.fromkeys(("list", "ls", "images"), _MODELS),
    **dict.fromkeys(("pull", "download", "get"), _PULL),
    **dict.fromkeys(("rm", "remove", "delete"), _REMOVE),
    **dict.fromkeys(("show", "inspect", "info"), _SHOW),
    **dict.fromkeys(("run", "start", "launch", "up"), _SERVE),
    **dict.fromkeys(("kill", "end", "down", "shutdown"), _STOP),
    **dict.fromkeys(("watch", "monitor", "dashboard"), _TOP),
    "ask": "`stoker chat` asks a server",
    "generate": "`stoker complete` continues a text",
    "version": "`stoker --version` prints it",
    "collect-env": "`stoker report` writes a file for a bug report",
}
_ENDING = ("stop", "restart", "sleep")

EXAMPLES = (
    ("stoker serve", "serve the built-in model on http://127.0.0.1:8000"),
    ("stoker serve ./my-model --port 9000", "serve a folder with safetensors files"),
    ('echo "Why is the sky blue?" | stoker chat', "ask it"),
    ("stoker top http://gpu-host:8000", "watch any vLLM-compatible server"),
    ("stoker logs server.log", "what a start did, how long, and what went wrong"),
)

GLOBAL_OPTIONS = (
    ("--version", "Print the version."),
    ("--help, -h", "This text; `stoker COMMAND --help` for a command's, `stoker help exit-codes`."),
    ("--debug", "Show the traceback of an error."),
    ("--color auto|always|never", "Colour; auto follows the terminal and NO_COLOR."),
)


_ROOM = "STOKER_STATE_DIR and STOKER_CACHE_DIR move Stoker's files; `stoker paths` lists them"


@dataclass(frozen=True, slots=True)
class _Invocation:
    """The command line after the global options are taken out."""

    args: tuple[str, ...]
    debug: bool
    color: str | None


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point: run the command line and exit with its code."""
    code = run(list(sys.argv[1:] if argv is None else argv))
    sys.exit(_flush(code))


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code."""
    return exit_code_of(lambda: _dispatch(_split_global_options(argv)), debug="--debug" in argv)


def exit_code_of(action: Callable[[], int], *, debug: bool) -> int:
    """The funnel: every error becomes a line or two on stderr and an exit code."""
    try:
        return action()
    except StokerError as error:
        return _report(error, debug)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return _silence_stdout()
    except OSError as error:
        return _report_unusable(error, debug)
    except Exception as error:  # nothing may end in a bare traceback
        from engine.errors import EngineError

        if isinstance(error, EngineError):
            return _report(told_by_engine(error), debug)
        return _report_unexpected(error, debug)


def root_help() -> str:
    """Text of `stoker --help`: examples first, then the commands by group."""
    lines = ["Usage: stoker COMMAND [OPTIONS]", ""]
    lines += ["Run and watch LLM inference servers from the terminal.", "", "Examples:"]
    width = max(len(command) for command, _ in EXAMPLES)
    lines += [f"  {command:<{width}}  {meaning}" for command, meaning in EXAMPLES]
    for group in dict.fromkeys(entry.group for entry in COMMANDS):
        lines += ["", f"{group}:"]
        lines += [f"  {e.name:<10}  {e.summary}" for e in COMMANDS if e.group == group]
    width = max(len(option) for option, _ in GLOBAL_OPTIONS)
    lines += ["", "Options:"]
    lines += [f"  {option:<{width}}  {meaning}" for option, meaning in GLOBAL_OPTIONS]
    return "\n".join(lines)


def _split_global_options(argv: list[str]) -> _Invocation:
    """Take `--debug` and `--color` out, wherever they stand before a `--`."""
    end = argv.index("--") if "--" in argv else len(argv)
    rest: list[str] = []
    color = None
    words = iter(argv[:end])
    for word in words:
        if word == "--debug":
            continue
        if word == "--color":
            color = next(words, "")
        elif word.startswith("--color="):
            color = word.partition("=")[2]
        else:
            rest.append(word)
    if color is not None:
        _require_color("--color", color)
    return _Invocation((*rest, *argv[end:]), "--debug" in argv[:end], color)


def _dispatch(invocation: _Invocation) -> int:
    args = invocation.args
    if not args or args[0] in ("--help", "-h") or args == ("help",):
        print(root_help())
        return ExitCode.OK
    if args[0] in ("--version", "-V"):
        print(f"stoker {__version__}")
        return ExitCode.OK
    if args == ("help", "exit-codes"):
        print("\n".join(f"{code:>13}  {meaning}" for code, meaning in EXIT_CODE_MEANINGS))
        return ExitCode.OK
    if args[0] == "__complete":  # asked by the shells' scripts at a key press
        return int(_load(_COMPLETER)(args[1:]))
    if args[0] == "help":
        args = (*args[1:], "--help")
    entry = _find_command(args[0])
    settings = _settings(entry, args[1:])
    from app.output import apply_color_choice

    color = os.environ.get("STOKER_COLOR") or "auto"
    _require_color("STOKER_COLOR, or color of a settings file,", color)
    apply_color_choice(invocation.color or color)
    return _invoke(entry, args[1:], settings)


def _settings(entry: CommandEntry, args: Sequence[str]) -> Settings | None:
    """Files and variables; None for help, and for the command that looks at broken files too."""
    end = args.index("--") if "--" in args else len(args)
    if entry.name == "config" or {"--help", "-h"} & set(args[:end]):
        return None
    from app.settings.options import say_who_can_write
    from app.settings.sources import read_settings

    settings = read_settings(os.environ)
    settings.require_sections([entry.name for entry in COMMANDS])
    say_who_can_write(settings)
    settings.put_general_into(os.environ)
    return settings


def _require_color(name: str, color: str) -> None:
    if color not in ("auto", "always", "never"):
        raise UsageError(f"{name} {color!r} is not known", hint="use auto, always or never")


def _find_command(name: str) -> CommandEntry:
    for entry in COMMANDS:
        if entry.name == name:
            return entry
    kind = "option" if name.startswith("-") else "command"
    raise UsageError(f"no such {kind}: {name}", hint=_command_hint(name))


def _command_hint(name: str) -> str:
    """What another tool calls it, or a near name; never a near name of what ends a server."""
    import difflib  # for a mistake only: it costs every start some milliseconds

    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    harmless = [entry.name for entry in COMMANDS if entry.name not in _ENDING]
    near = difflib.get_close_matches(name, harmless, n=1, cutoff=0.6)
    return f"did you mean `stoker {near[0]}`?" if near else "`stoker --help` lists the commands"


def _invoke(entry: CommandEntry, args: Sequence[str], settings: Settings | None) -> int:
    from app.command_line import CommandLineError, run_command

    try:
        return run_command(load_command(entry), list(args), f"stoker {entry.name}", settings)
    except CommandLineError as error:
        from app.settings.options import origin_of

        place = f"{origin}: " if (origin := origin_of(error)) else ""
        raise UsageError(
            place + _first_letter_lower(error.format_message().rstrip(".")),
            hint=f"`{_command_path(error, entry)} --help` lists the options",
        ) from error


def load_command(entry: CommandEntry) -> Any:
    """The click command behind a line of the table."""
    from app.command_line import build_command

    return build_command(_load(entry.target))


def _load(target: str) -> Any:
    """What `module:name` says. Commands use this module, which knows them by these names alone."""
    module_name, _, name = target.partition(":")
    return getattr(importlib.import_module(module_name), name)


def _command_path(error: CommandLineError, entry: CommandEntry) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else f"stoker {entry.name}"


def _report(error: StokerError, debug: bool) -> int:
    if debug:
        _print_traceback(error)
    _talk(f"error: {error}")
    if error.hint:
        _talk(f"hint: {error.hint}")
    return error.exit_code


def _report_unusable(error: OSError, debug: bool) -> int:
    """Of a file that nobody had foreseen to fail: a disk is full, a folder was deleted."""
    why = error.strerror or str(error)
    if error.filename is not None:
        return _report(StokerError(f"cannot use {error.filename}: {why}", hint=_ROOM), debug)
    if isinstance(error, FileNotFoundError) and not _has_working_folder():
        gone = StokerError("the working folder was deleted", hint="cd into one that is there")
        return _report(gone, debug)
    if error.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT):
        return _report(StokerError(f"a file cannot be written: {why}", hint=_ROOM), debug)
    return _report_unexpected(error, debug)


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _report_unexpected(error: Exception, debug: bool) -> int:
    if debug:
        _print_traceback(error)
    _talk(f"error: unexpected {type(error).__name__}: {error}")
    if not debug:
        _talk("hint: run again with --debug for the traceback")
    return ExitCode.NO


def _talk(text: str) -> None:
    """A message may quote a model's configuration or a file's name."""
    from app.output import say

    with contextlib.suppress(OSError):  # of a terminal that is gone
        say(text)


def _print_traceback(error: Exception) -> None:
    import traceback

    traceback.print_exception(error)


def _flush(code: int) -> int:
    """Write out what is buffered; a reader that went away is no error to report."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _silence_stdout()
    return code


def _silence_stdout() -> int:
    """After a broken pipe: keep the interpreter's own flush at exit from complaining."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK


def _first_letter_lower(text: str) -> str:
    return text[:1].lower() + text[1:]
