"""The colours, as one Textual theme: ember on dark slate. Colour never carries meaning alone."""

from __future__ import annotations

from textual.theme import Theme

STOKER_THEME = Theme(
    name="stoker",
    primary="#ff9e3b",
    secondary="#7fb4ca",
    accent="#ff9e3b",
    foreground="#d8dee9",
    background="#12151b",
    surface="#171b23",
    panel="#1f2530",
    success="#98bb6c",
    warning="#e6c384",
    error="#e46876",
    dark=True,
    variables={
        "footer-key-foreground": "#ff9e3b",
        "footer-description-foreground": "#a7b0c0",
        "footer-background": "#171b23",
        "border": "#3b4454",
        "border-blurred": "#3b4454",
    },
)
