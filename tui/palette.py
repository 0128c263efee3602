"""The command palette's entries: every key binding that works on the current screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from textual.app import App, SystemCommand
from textual.screen import Screen

from tui.keys import key_text

_REPLACED = ("Quit", "Keys")  # Textual's, for which a binding of ours stands


def palette_commands(
    app: App[str], screen: Screen[object], textual_own: Iterable[SystemCommand]
) -> Iterator[SystemCommand]:
    """Our actions first, then Textual's."""
    yield from binding_commands(app, screen)
    yield from (command for command in textual_own if command.title not in _REPLACED)


def binding_commands(app: App[str], screen: Screen[object]) -> Iterator[SystemCommand]:
    """One entry per action that has a description, with its key as the explanation."""
    seen: set[str] = set()
    for active in screen.active_bindings.values():
        binding = active.binding
        is_ours = binding.id is not None and binding.description
        if not is_ours or binding.action in seen:
            continue
        seen.add(binding.action)
        run = partial(app.run_action, binding.action, active.node)
        explanation = f"{binding.tooltip or binding.description} (key {key_text(binding.key)})"
        yield SystemCommand(binding.description, explanation, run)
