"""One request: what is known of it, and its walk through the 13 hops with measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from app.client import formatting
from app.client.debug.documents import LiveRequest
from app.client.debug.trace import NOT_MEASURED, Hop, Trace, walk
from app.client.errors import BadStatus, ClientError

_REFRESH_S = 1.0
_WIDE = 110


@runtime_checkable
class TraceSource(Protocol):
    """Where the times come from (app.client.debug.documents.DebugSource, or a script in tests)."""

    async def trace(self, request_id: str) -> Trace:
        """When what was done for one request, or ClientError."""


class RequestScreen(ModalScreen[None]):
    """Reads on until the request has ended; the last state stays on screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "Back", id="request.close"),
    ]

    def __init__(
        self,
        request_id: str,
        source: TraceSource | None,
        find: Callable[[str], LiveRequest | None],
    ) -> None:
        super().__init__()
        self._request_id = request_id
        self._source = source
        self._find = find
        self._live: LiveRequest | None = None
        self._trace: Trace | None = None
        self._reason = "" if source else "a recording holds no times of requests"

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="request") as box:
            box.border_title = "Request"
            box.border_subtitle = "Esc closes"
            yield Static(id="request-facts")
            yield Static(id="request-hops")

    def on_mount(self) -> None:
        """Draw what is known, then ask."""
        self._draw()
        if self._source is not None:
            self.run_worker(self._ask(self._source), name="trace", exclusive=True)
            self.set_interval(_REFRESH_S, self._ask_again)

    def on_resize(self) -> None:
        """File names are shortened to the new width."""
        self._draw()

    def _ask_again(self) -> None:
        if self._source is not None and not self._is_over():
            self.run_worker(self._ask(self._source), name="trace", exclusive=True)

    async def _ask(self, source: TraceSource) -> None:
        try:
            self._trace, self._reason = await source.trace(self._request_id), ""
        except ClientError as error:
            self._reason = error.detail if isinstance(error, BadStatus) else str(error)
        self._draw()

    def _is_over(self) -> bool:
        states = self._trace.states if self._trace else ()
        return bool(states) and states[-1][0].startswith("FINISHED")

    def _draw(self) -> None:
        self._live = self._find(self._request_id) or self._live
        hops = walk(self._trace)
        self.query_one("#request-facts", Static).update(self._facts())
        self.query_one("#request-hops", Static).update(_hop_table(hops, self.size.width >= _WIDE))

    def _facts(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for label, value in self._rows():
            table.add_row(label, Text(value))
        return table

    def _rows(self) -> Sequence[tuple[str, str]]:
        live, trace = self._live, self._trace
        rows = [("id", self._request_id)]
        if live is not None:
            cached = "n/a" if live.cached_tokens is None else f"{live.cached_tokens:,} cached"
            prompt = f"{live.prompt_tokens_done:,} of {live.prompt_tokens:,} tokens, {cached}"
            output = f"{live.output_tokens:,} of at most {live.max_tokens:,} tokens"
            state = f"{live.state}, {formatting.age(live.age_s)} old"
            rows += [
                ("state", f"ended; seen last as {state}" if self._is_over() else state),
                ("prompt", prompt),
                ("output", output),
                ("blocks", f"{live.blocks:,}, preempted {live.preemptions} times"),
            ]
        miss = trace.prefix_miss if trace else live.prefix_miss if live else None
        if miss is not None:
            rows.append(("cache", miss.sentence()))
        client = (trace.client if trace else None) or (live.client if live else None)
        rows.append(("client", client or "n/a: the server does not tell"))
        if trace is not None and trace.prompt is not None:
            rows.append(("text", trace.prompt + (" …" if trace.is_prompt_cut else "")))
        if trace is not None and trace.states:
            rows.append(("states", " > ".join(name for name, _ in trace.states)))
            rows.append(("steps", f"{trace.num_steps:,}; hops 6 to 11 are walked in each"))
        if trace is None:
            rows.append(("times", f"not measured: {self._reason or 'not asked yet'}"))
        return rows


def _hop_table(hops: Sequence[Hop], has_room: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=False)
    table.add_column("hop", justify="right", no_wrap=True)
    table.add_column("where", no_wrap=True)
    for name in ("at", "took", "later"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what")
    for hop in hops:
        note = f"; {hop.note}" if hop.note not in ("", NOT_MEASURED) else ""  # the dashes say it
        file = f" ({hop.file})" if has_room else ""
        table.add_row(
            str(hop.number),
            hop.process,
            formatting.seconds(hop.start_s),
            formatting.seconds(hop.duration_s),
            formatting.seconds(hop.later_mean_s),
            Text(f"{hop.what}{note}{file}"),
        )
    return table
