"""Binary sizes: their units, and the one form in which people read them."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def human_bytes(count: float | None) -> str:
    """A size with its unit, e.g. `256.6 MiB`; `-` when unknown."""
    if count is None:
        return "-"
    if count >= GIB:
        return f"{count / GIB:.2f} GiB"
    if count >= MIB:
        return f"{count / MIB:.1f} MiB"
    return f"{count / KIB:.1f} KiB" if count >= KIB else f"{count:.0f} B"
