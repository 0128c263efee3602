"""Values of a command line are converted as typer converts them, without what it loads for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli import COMMANDS, load_command
from app.command_line import build_command
from app.settings.options import leaf_commands

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 7, -3, 0.5, 1e9, Path("/tmp"), (), ("a", "b"), ["1", "2.5"]),
    *("", "word", "0", "1", " 1 ", "007", "-12", "+3", "1_000", "12.0", "0.92", "-1.5", "1e3"),
    *("nan", "inf", "٣", "9" * 15, "9" * 40, "true", "no", "-", "/tmp", "/nowhere/at/all", "a b"),
)


def picky(
    there: Annotated[Path | None, typer.Option(exists=True)] = None,
    file: Annotated[Path | None, typer.Option(dir_okay=False)] = None,
    whole: Annotated[Path | None, typer.Option(resolve_path=True)] = None,
    text: Annotated[Path | None, typer.Option(path_type=str)] = None,
    upper: Annotated[str | None, typer.Option(parser=str.upper)] = None,
    clamped: Annotated[int, typer.Option(min=1, max=3, clamp=True)] = 1,
    numbers: Annotated[list[float] | None, typer.Option(min=0, max=5)] = None,
    pair: Annotated[tuple[int, str], typer.Option()] = (1, "a"),
) -> None:
    """Sorts of parameters that no command declares now."""


def parameters() -> Iterator[tuple[str, Any, Any]]:
    """One parameter of each sort that a command declares, in a context of its command."""
    seen: set[object] = set()
    commands = [(entry.name, load_command(entry)) for entry in COMMANDS]
    for whole_name, whole in [*commands, ("picky", build_command(picky))]:
        for section, command in leaf_commands(whole, (whole_name,)):
            context = command.make_context("stoker", [], resilient_parsing=True)
            for param in command.get_params(context):
                about = param.type_descriptor.parameter_info
                sort = (str(param.type_descriptor.annotation), about.min, about.max, param.nargs,
                        param.multiple, about.exists, about.dir_okay, about.resolve_path,
                        about.path_type, about.parser, about.clamp)  # fmt: skip
                if sort not in seen:
                    seen.add(sort)
                    yield f"{' '.join(section)} {param.name}", param, context


def outcome(conversion: Any, value: Any, param: Any, context: Any) -> str:
    """The value, which shows its type, or the words of the complaint."""
    try:
        return repr(conversion.coerce(value, param=param, ctx=context))
    except typer.BadParameter as error:
        return error.format_message()
    except (TypeError, ValueError) as error:  # a value that no command line has
        return repr(error)


def test_values_are_what_typer_makes_of_them() -> None:
    num_kinds = 0
    for name, param, context in parameters():
        num_kinds += 1
        ours, typers = param.get_runtime_param(), type(param).get_runtime_param(param)
        assert type(ours) is not type(typers), name
        for value in VALUES:
            expected = outcome(typers, value, param, context)
            assert outcome(ours, value, param, context) == expected, (name, value)
    assert num_kinds > 20
