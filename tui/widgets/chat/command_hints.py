"""The slash commands that begin with what is being typed, above the input while it is typed."""

from __future__ import annotations

from textual.widgets import Static

from app.client.chat.commands import COMMANDS, Command

_MOST_ROWS = 8


class CommandHints(Static):
    """Hidden unless the input begins with a slash."""

    DEFAULT_CSS = """
    CommandHints {
        display: none; height: auto; padding: 0 1; background: $surface;
        color: $foreground 80%; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, markup=False)
        self.commands: tuple[Command, ...] = ()

    def show(self, draft: str) -> None:
        """Draw those that `draft` may become."""
        self.commands = matching(draft)
        self.display = bool(self.commands)
        shown = self.commands[:_MOST_ROWS]
        width = max((len(_usage(one)) for one in shown), default=0)
        rows = [f"{_usage(one):<{width}}  {one.meaning}" for one in shown]
        if len(self.commands) > len(shown):
            rows[-1] = f"and {len(self.commands) - len(shown) + 1} more; F1 lists them all"
        self.update("\n".join(rows))


def matching(draft: str) -> tuple[Command, ...]:
    """The commands that a draft may become, by any of their names."""
    if not draft.startswith("/") or "\n" in draft:
        return ()
    name, blank, _ = draft[1:].partition(" ")
    if blank:
        return tuple(one for one in COMMANDS if name in (one.name, *one.other_names))
    return tuple(
        one for one in COMMANDS if any(n.startswith(name) for n in (one.name, *one.other_names))
    )


def _usage(command: Command) -> str:
    return f"/{command.name} {command.arguments}".rstrip()
