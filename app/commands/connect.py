"""`stoker connect AGENT [SERVER]`: the settings with which a coding agent uses a server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.shared_options import ApiKeyFile, AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.agents.check import Problem
    from app.agents.settings import AgentSettings
    from app.client.abilities import ServerAbilities

SCHEMA = "stoker.connect"


def connect(
    agent: Annotated[
        str,
        typer.Argument(
            metavar="claude|codex|opencode|aider|continue|llm",
            help="The agent to set up.",
            show_default=False,
        ),
    ],
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="SERVER",
            help="Server (name, pid, :port or URL). Default: $STOKER_URL, else the one that runs "
            "here.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model, where the server has several.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Put them into files of the project.")
    ] = False,
    project: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The project's folder; default: this one.")
    ] = Path(),
    api_key_file: ApiKeyFile = None,
    as_json: AsJson = False,
) -> int:
    """Print what a coding agent needs to use a server, and say what will not work.

    The server is asked first: how long its context is, whether it takes tools, tells thoughts from
    answers and keeps prefixes, and whether it wants a key. No key is printed or written.
    """
    from app.agents.check import NEEDS, problems_of
    from app.agents.files import write_settings
    from app.agents.settings import AGENTS, Connection
    from app.client.abilities import server_abilities
    from app.errors import ExitCode, UsageError
    from app.output import say
    from app.targets.server_errors import client_errors
    from app.targets.servers import find_target

    if agent not in AGENTS:
        raise UsageError(f"no agent is called {agent!r} here", hint=f"one of {', '.join(AGENTS)}")
    target = find_target(server)
    api_key = target.api_key(api_key_file)
    with client_errors(api_key):
        abilities = server_abilities(target.url, model, api_key=api_key)
    settings = AGENTS[agent](
        Connection(
            abilities,
            **_key_place(target.key_source(api_key_file)),
            project=None if project == Path() else project,
        )
    )
    problems = problems_of(NEEDS[agent], abilities)
    written = write_settings(project, settings.files) if write else []
    if as_json:
        _print_json(agent, abilities, settings, problems, written)
    else:
        say(_looked_at(abilities))
        for path in written:
            say(f"wrote {path}")
        print("\n".join(_lines(settings, has_files=not write)))
        for problem in problems:
            kind = "will not work" if problem.is_fatal else "warning"
            say(f"{kind}: {problem.text}\n  hint: {problem.hint}")
    return ExitCode.NO if any(one.is_fatal for one in problems) else ExitCode.OK


def _key_place(source: Path | str | None) -> dict[str, Any]:
    """The fields of a Connection that say where the key is."""
    if isinstance(source, Path):
        return {"key_file": source.expanduser().absolute()}
    return {"key_variable": source} if source else {}


def _looked_at(server: ServerAbilities) -> str:
    def word(is_so: bool | None) -> str:
        return {True: "yes", False: "no", None: "not told"}[is_so]

    length = server.model.max_model_len
    return (
        f"{server.url}, {server.model.shown_name}: context {length or 'not told'}, tools "
        f"{word(server.tools_refusal is None)}, /v1/messages {word(server.has_messages)}, "
        f"/v1/responses {word(server.has_responses)}, prefix cache "
        f"{word(server.caches_prefixes)}, key {'needed' if server.needs_key else 'not needed'}"
    )


def _lines(settings: AgentSettings, *, has_files: bool) -> list[str]:
    lines = []
    for file in settings.files if has_files else ():
        lines += [f"# {file.path}", *file.content().rstrip("\n").split("\n"), ""]
    if has_files:
        lines.append("# in a shell")
    lines += [f"export {name}={word}" for name, word in settings.exports.items()]
    return [*lines, settings.command]


def _print_json(
    agent: str,
    server: ServerAbilities,
    settings: AgentSettings,
    problems: Sequence[Problem],
    written: Sequence[Path],
) -> None:
    from app.output import print_json

    looked_at: dict[str, Any] = asdict(server)
    payload = {
        "agent": agent,
        "server": looked_at,
        "files": [{"path": file.path, "content": file.content()} for file in settings.files],
        "written": [str(path) for path in written],
        "exports": dict(settings.exports),
        "command": settings.command,
        "problems": [asdict(problem) for problem in problems],
    }
    print_json(SCHEMA, payload)
