"""`stoker completion bash|zsh|fish`: a script that completes commands and options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

_BASH = """\
_stoker() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} words
    case "${{COMP_WORDS[*]:1:COMP_CWORD-1}} " in
{cases}
        *) words="{commands} help --help --version --debug --color" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _stoker stoker
"""


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="Whose script.")],
) -> None:
    """Print a script that completes commands and options; it starts nothing of Stoker.

    \b
    Examples:
      stoker completion bash > ~/.local/share/bash-completion/completions/stoker
      stoker completion zsh >> ~/.zshrc
      stoker completion fish > ~/.config/fish/completions/stoker.fish
    """
    from app.errors import ExitCode, StokerError

    if shell not in ("bash", "zsh", "fish"):
        raise StokerError(
            f"no completion for {shell}", hint="use bash, zsh or fish", exit_code=ExitCode.USAGE
        )
    table = dict(_words())
    if shell == "fish":
        print("\n".join(_fish(table)))
        return
    if shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    # Of `models` and `models list` the longer one is asked first.
    cases = "\n".join(
        f'        "{name} "*) words="{" ".join(words)}" ;;'
        for name, words in sorted(table.items(), reverse=True)
    )
    commands = " ".join(name for name in table if " " not in name)
    print(_BASH.format(cases=cases, commands=commands), end="")


def _fish(table: dict[str, list[str]]) -> Iterator[str]:
    yield "complete -c stoker -n __fish_use_subcommand -f"
    for name, words in table.items():
        command, _, below = name.partition(" ")
        if not below:
            yield f"complete -c stoker -n __fish_use_subcommand -a {command}"
        seen = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        for word in words:
            what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            yield f"complete -c stoker -n '{seen}' {what}"


def _words() -> Iterator[tuple[str, list[str]]]:
    """Each command, and the names or options that may follow."""
    from app.cli import COMMANDS, load_command
    from app.option_settings import leaf_commands, options_by_key

    for entry in COMMANDS:
        command = load_command(entry)
        if below := getattr(command, "commands", None):
            yield entry.name, [*below, "--help"]
        for path, leaf in leaf_commands(command, (entry.name,)):
            known = [*options_by_key(leaf), *getattr(leaf, "flag_names", ())]
            options = [f"--{key.replace('_', '-')}" for key in known]
            yield " ".join(path), [*options, "--help"]
