"""The side panel with system prompt and parameters; a value is taken when its field is left."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import Checkbox, Input, Static, TextArea

from app.client.chat.parameters import RULES, ChatParameters, ParameterError


class ChatSettings(VerticalScroll):
    """Opened by a key; tells the screen what was set."""

    DEFAULT_CSS = """
    ChatSettings {
        display: none;
        width: 36;
        padding: 0 1;
        border-left: solid $border;
        scrollbar-size-vertical: 1;
    }
    ChatSettings.-open { display: block; }
    ChatSettings .settings-title { color: $foreground 85%; text-style: bold; }
    ChatSettings TextArea, ChatSettings TextArea:focus {
        height: 4; border: none; padding: 0; background: $surface;
    }
    ChatSettings Horizontal { height: 1; }
    ChatSettings .settings-name { width: 18; color: $foreground 65%; }
    ChatSettings Input { width: 1fr; border: none; height: 1; padding: 0; }
    ChatSettings Input.-wrong { background: $error 40%; }
    ChatSettings #settings-note { color: $foreground 65%; margin-top: 1; }
    """

    class SystemChanged(Message):
        """The user typed another system prompt."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class ParametersChanged(Message):
        """The user set other sampling parameters, all of them in here."""

        def __init__(self, parameters: ChatParameters) -> None:
            super().__init__()
            self.parameters = parameters

    class JsonChosen(Message):
        """JSON was switched on or off."""

        def __init__(self, is_on: bool) -> None:
            super().__init__()
            self.is_on = is_on

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, can_focus=False)
        self._parameters = ChatParameters()
        self._system = ""

    def compose(self) -> ComposeResult:
        """The system prompt, then one line for each parameter."""
        yield Static("System prompt", classes="settings-title")
        yield TextArea(id="settings-system", highlight_cursor_line=False)
        yield Static("Parameters", classes="settings-title")
        for rule in RULES:
            with Horizontal():
                yield Static(rule.name, classes="settings-name", markup=False)
                yield Input(placeholder="default", id=f"settings-{rule.name}", compact=True)
        yield Checkbox(id="settings-json", compact=True)
        yield Static(id="settings-note", markup=False)

    def show(self, system: str, parameters: ChatParameters) -> None:
        self._system, self._parameters = system, parameters
        self.query_one("#settings-system", TextArea).load_text(system)
        for rule in RULES:
            field = self._field(rule.name)
            field.value = parameters.text_of(rule.name)
            field.remove_class("-wrong")
        box = self.query_one(Checkbox)
        with self.prevent(Checkbox.Changed):
            box.value = parameters.is_json
        _name_state(box)
        self._note("")

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Say what the field takes."""
        rule = next((r for r in RULES if event.widget.id == f"settings-{r.name}"), None)
        self._note(f"{rule.meaning}\n{rule.range_text()}" if rule else "")

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        if isinstance(event.widget, Input):
            self._take(event.widget)
        elif isinstance(event.widget, TextArea):
            self._take_system()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Take it, and go to the next field."""
        message.stop()
        if self._take(message.input):
            self.screen.focus_next()

    def on_checkbox_changed(self, message: Checkbox.Changed) -> None:
        message.stop()
        _name_state(message.checkbox)
        self.post_message(self.JsonChosen(message.value))

    def _take_system(self) -> None:
        text = self.query_one("#settings-system", TextArea).text.strip()
        if text != self._system:
            self._system = text
            self.post_message(self.SystemChanged(text))

    def _take(self, field: Input) -> bool:
        """False when the value is none that the parameter can have."""
        name = (field.id or "").removeprefix("settings-")
        try:
            parameters = self._parameters.with_text(name, field.value)
        except ParameterError as error:
            field.add_class("-wrong")
            self._note(f"✗ {error}")
            return False
        field.remove_class("-wrong")
        if parameters != self._parameters:
            self._parameters = parameters
            self.post_message(self.ParametersChanged(parameters))
        return True

    def _field(self, name: str) -> Input:
        return self.query_one(f"#settings-{name}", Input)

    def _note(self, text: str) -> None:
        self.query_one("#settings-note", Static).update(text)


def _name_state(box: Checkbox) -> None:
    """In words and with a sign: Textual shows the two states by colour alone."""
    box.BUTTON_INNER = "●" if box.value else "○"
    box.label = f"JSON answers: {'on' if box.value else 'off'}"
