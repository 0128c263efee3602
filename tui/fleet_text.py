"""The table of several servers as text for a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from app.client.watch.watched import Scraped
from tui.state.history import MetricHistory
from tui.widgets.fleet.fleet_table import COLUMNS, FleetRow


def table_text(found: Sequence[Scraped]) -> str:
    """The table of one sample each, for a pipe; speeds need two samples and are left out."""
    rows = [_row_of(scraped) for scraped in found]
    columns = [column for column in COLUMNS if column.label not in ("tok/s", "age")]
    cells = [[column.label for column in columns]]
    cells += [[column.text(row) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    reasons = [f"{row.name}: {row.reason}" for row in rows if row.reason]
    return "\n".join([*lines, *reasons])


def _row_of(scraped: Scraped) -> FleetRow:
    history = MetricHistory()
    if scraped.sample is not None:
        history.append(scraped.sample)
    return FleetRow(scraped.server.name, history.snapshot(), reason=scraped.reason)
