"""Names of keys as they are printed on keyboards, and the command palette that is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.screen import Screen

_NAMES = {
    "question_mark": "?",
    "space": "Space",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "slash": "/",
    "colon": ":",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "escape": "Esc",
}
_REPLACED = ("Quit", "Keys")  # Textual's, for which a binding of ours stands


def key_text(keys: str) -> str:
    """`q,ctrl+c,f10` as `q, Ctrl-C, F10`."""
    return ", ".join(_one(key) for key in keys.split(","))


def _one(key: str) -> str:
    *modifiers, name = key.strip().split("+")
    words = [modifier.capitalize() for modifier in modifiers]
    if name in _NAMES:
        return "-".join([*words, _NAMES[name]])
    is_single_small = len(name) == 1 and not words
    return "-".join([*words, name if is_single_small else name.capitalize()])


def usable_bindings(app: App[str]) -> list[Binding]:
    """The application's own keys that do something now, those of the most special class first."""
    return [
        binding
        for kind in type(app).__mro__
        for binding in vars(kind).get("BINDINGS", ())
        if isinstance(binding, Binding)
        and binding.id is not None
        and app.check_action(binding.action, ()) is not False
    ]


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
