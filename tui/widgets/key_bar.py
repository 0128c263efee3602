"""The keys at the bottom: Help and Quit first, so that a narrow screen cuts the others."""

from __future__ import annotations

import re
from collections.abc import Iterable

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding
from textual.keys import format_key, key_to_character
from textual.widgets import Footer, Input, TextArea
from textual.widgets._footer import FooterKey

_FUNCTION_KEY = re.compile(r"f\d{1,2}")
_FIRST = ("help", "panel_help", "log_help", "leave", "quit", "close", "dismiss")


class KeyBar(Footer):
    """Where text is typed it offers no key that would be typed."""

    def __init__(self) -> None:
        super().__init__(show_command_palette=False, compact=True)

    def compose(self) -> ComposeResult:
        """A key for each action of what has the keys now."""
        if not self._bindings_ready:
            return
        is_typing = isinstance(self.screen.focused, Input | TextArea)
        chosen = _by_action(self.screen.active_bindings.values(), is_typing)
        self.styles.grid_size_columns = len(chosen)
        for active in sorted(chosen, key=_place):
            binding = active.binding
            yield FooterKey(
                binding.key,
                _key_text(binding, is_typing, self.app.get_key_display(binding)),
                binding.description,
                binding.action,
                disabled=not active.enabled,
                tooltip=active.tooltip,
            ).data_bind(compact=Footer.compact)


def _by_action(bindings: Iterable[ActiveBinding], is_typing: bool) -> list[ActiveBinding]:
    """The first key of each action that is shown and can be pressed."""
    found: dict[str, ActiveBinding] = {}
    for active in bindings:
        binding = active.binding
        if binding.show and not (is_typing and _is_typed(binding.key)):
            found.setdefault(binding.action, active)
    return list(found.values())


def _is_typed(key: str) -> bool:
    character = key_to_character(key)
    return character is not None and character.isprintable()


def _key_text(binding: Binding, is_typing: bool, usual: str) -> str:
    """The display of a binding names its first key, which may be one that is typed."""
    shown = format_key(binding.key) if is_typing and len(usual) == 1 else usual
    return shown.upper() if _FUNCTION_KEY.fullmatch(shown) else shown


def _place(active: ActiveBinding) -> int:
    name = active.binding.action.rpartition(".")[2].partition("(")[0]
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)
