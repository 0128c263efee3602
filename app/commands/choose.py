"""`stoker choose`: reads the command line and prints what app.planning.choosing decides."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.shared_options import AsJson

if TYPE_CHECKING:
    from app.doctor.facts import DoctorFacts
    from app.planning.choosing import EngineChoice, Need
    from app.planning.plan_models import PlannedModel


def choose(
    model: Annotated[
        str | None, typer.Argument(help="What is to be served.", metavar="MODEL")
    ] = None,
    users: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 1,
    many_users: Annotated[
        int, typer.Option(min=1, help="From how many users on they count as many.")
    ] = 8,
    several_gpus: Annotated[
        bool | None,
        typer.Option(
            "--several-gpus/--one-gpu",
            help="Whether the model is to be split over GPUs; else what MODEL needs here.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="A machine from a file of `stoker doctor --dump`, not this one.",
            metavar="FACTS.json",
        ),
    ] = None,
    needs: Annotated[
        str | None,
        typer.Option(help="Machines and workloads from this JSON file.", metavar="FILE"),
    ] = None,
    rules: Annotated[
        str,
        typer.Option(
            help="all: the model's files and cache are asked about too, and Stoker's own engine "
            "and SGLang may be the answer. seed: the six rules of the lesson, vLLM or llama.cpp.",
            metavar="all|seed",
        ),
    ] = "all",
    start: Annotated[
        bool, typer.Option("--start", help="Start what was chosen, as stoker serve would.")
    ] = False,
    as_json: AsJson = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Name, engine, rule, reason with tabs between.")
    ] = False,
) -> int:
    """Say which engine should serve a model on this machine, and by which rule.

    \b
    Examples:
      stoker choose
      stoker choose llama-3.1-8b --users 20
      stoker choose Qwen/Qwen2.5-7B-Instruct --start
      stoker choose --needs machines.json --plain
    """
    from app import output
    from app.errors import ExitCode
    from app.planning.choosing import choose_engine, host_need, model_traits, read_needs

    _require_possible(rules, start, model, needs or host)
    found = None if model is None else _known_model(model)
    start_here = _Start(model, found)
    traits = None
    if needs is not None:
        asked = read_needs(Path(needs))
    else:
        facts = _facts(host)
        asked = (host_need(facts, model, users, several_gpus, found),)
        start_here = _start_on(facts, start_here, asked[0], is_elsewhere=host is not None)
        if rules == "all" and found is not None:
            traits = model_traits(found, fits_here=start_here.fits_own)
    choices = [choose_engine(need, many_users, traits) for need in asked]
    if as_json:
        documents = [_document(choice, start_here) for choice in choices]
        output.print_json("stoker.choose", {"choices": documents})
    elif plain:
        output.print_plain((c.need.name, c.engine, c.rule, c.reason) for c in choices)
    else:
        for choice in choices:
            print(output.printable(_line(choice)))
            if needs is None:
                print(output.printable(_details(choice, start_here)))
    return _start(choices[0], start_here) if start else ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Start:
    """What is to be started, and on what; `facts` None where needs come from a file."""

    model: str | None
    found: PlannedModel | None
    size: int | None = None
    facts: DoctorFacts | None = None
    fits_own: bool = True

    def obstacle(self, choice: EngineChoice) -> str | None:
        """Why the engine that was chosen cannot start the model there."""
        from app.planning.choosing import too_few_gpus

        if self.facts is None:
            return None
        return too_few_gpus(choice, self.facts, self.found, self.size)

    def command(self, choice: EngineChoice) -> str | None:
        """What to type; None where nothing would start it."""
        from app.planning.choosing import start_command

        if self.obstacle(choice) is not None:
            return None
        return start_command(choice, self.model, self.size, self.found)


def _start_on(facts: DoctorFacts, asked: _Start, need: Need, *, is_elsewhere: bool) -> _Start:
    """With what the machine has for the model."""
    from app.commands.plan_options import free_ram
    from app.planning.choosing import fits_own_engine, gpus_needed

    found = asked.found
    if found is None:
        return dataclasses.replace(asked, facts=facts)
    size = gpus_needed(facts, found, at_least=2 if need.needs_several_gpus else 1)
    fits = fits_own_engine(found, facts, None if is_elsewhere else free_ram())
    return dataclasses.replace(asked, facts=facts, size=size, fits_own=fits)


def _require_possible(rules: str, start: bool, model: str | None, elsewhere: str | None) -> None:
    from app.errors import UsageError

    if rules not in ("all", "seed"):
        raise UsageError(f"--rules {rules} is neither all nor seed", hint="use --rules seed")
    if start and (model is None or elsewhere is not None):
        raise UsageError(
            "--start starts a MODEL on this machine",
            hint="as in: stoker choose MODEL --start, without --needs and --host",
        )


def _start(choice: EngineChoice, asked: _Start) -> int:
    """Become `stoker serve` with the engine that was chosen."""
    import os
    import sys

    from app.errors import UsageError
    from app.planning.choosing import serve_words

    assert asked.model is not None
    if (reason := asked.obstacle(choice)) is not None:
        raise UsageError(
            f"{choice.engine} cannot start {asked.model} on this machine: {reason}",
            hint="use a smaller or quantised model, or a machine with more or larger GPUs",
        )
    program = str(Path(sys.executable).with_name("stoker"))
    words = serve_words(choice, asked.model, asked.size, asked.found)
    sys.stdout.flush()
    os.execv(program, [program, *words])


def _facts(host: str | None) -> DoctorFacts:
    """What doctor's probes see here, or saw elsewhere."""
    from app.doctor.facts_file import read_facts
    from app.doctor.gather import Question, gather

    return gather(Question(families=("gpu",))) if host is None else read_facts(Path(host))


def _line(choice: EngineChoice) -> str:
    return f"{choice.need.name:<36} -> {choice.engine:<9} [{choice.reason}]"


def _known_model(name: str) -> PlannedModel | None:
    """The model; None where the hub would have to be asked and cannot be."""
    from app.errors import ExitCode, StokerError
    from app.output import say
    from app.planning.plan_models import find_planned_model

    try:
        return find_planned_model(name)
    except StokerError as error:
        if error.exit_code == ExitCode.UNREACHABLE:
            say(f"warning: {error}; so its size and family are not looked at")
            return None
        raise


def _details(choice: EngineChoice, asked: _Start) -> str:
    from app.planning.choosing import own_command

    need, command = choice.need, asked.command(choice)
    lines = [
        f"  GPU: {'yes' if need.has_gpu else 'no'}; Linux: {'yes' if need.is_linux else 'no'}; "
        f"users at the same time: {need.concurrent_users}; GGUF file: "
        f"{'yes' if need.is_gguf_only else 'no'}; several GPUs needed: "
        f"{'yes' if need.needs_several_gpus else 'no'}",
        f"  decided by the rule {choice.rule}; before it these did not hold: "
        f"{', '.join(choice.passed_over) or 'none'}",
        f"  cannot start it here: {asked.obstacle(choice)}"
        if command is None
        else f"  start it: {command}",
    ]
    own = "stoker serve" if asked.model is None else own_command(asked.found)
    if choice.engine == "llama.cpp" and own is not None and asked.fits_own:
        lines.append(f"  or with Stoker's own engine: {own}")
    return "\n".join(lines).rstrip()


def _document(choice: EngineChoice, asked: _Start) -> dict[str, object]:
    return {
        "name": choice.need.name,
        "engine": choice.engine,
        "rule": choice.rule,
        "reason": choice.reason,
        "passed_over": list(choice.passed_over),
        "command": asked.command(choice),
        "obstacle": asked.obstacle(choice),
        "facts": dataclasses.asdict(choice.need),
    }
