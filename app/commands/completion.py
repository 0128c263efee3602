"""`stoker completion bash|zsh|fish`: a script that completes commands, options and their values."""

from __future__ import annotations

from typing import Annotated

import typer


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="Whose script.")],
) -> None:
    """Print a script that completes commands, options, values, servers, models and profiles.

    Names of servers, models and profiles are looked up as you type, by the stoker on your line.

    \b
    Examples:
      stoker completion bash > ~/.local/share/bash-completion/completions/stoker
      stoker completion zsh > ~/.zfunc/_stoker     (a folder of $fpath, before compinit)
      stoker completion fish > ~/.config/fish/completions/stoker.fish
    """
    from app.completion import scripts
    from app.completion.table import places
    from app.errors import UsageError

    makers = {
        "bash": scripts.bash_script,
        "zsh": scripts.zsh_script,
        "fish": scripts.fish_script,
    }
    if shell not in makers:
        raise UsageError(f"no completion for {shell}", hint="use bash, zsh or fish")
    print(makers[shell](places()), end="")
