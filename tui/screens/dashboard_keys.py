"""The dashboard's keys, each with an id by which it can be remapped and a sentence for the help."""

from __future__ import annotations

from textual.binding import Binding

DASHBOARD_KEYS = (
    Binding(
        "p,space",
        "toggle_pause",
        "Pause",
        id="dashboard.pause",
        tooltip="freeze the picture; samples are still collected",
    ),
    Binding(
        "left_square_bracket,left",
        "step(1)",
        "Step back",
        id="dashboard.back",
        show=False,
        tooltip="pause, and one sample back",
    ),
    Binding(
        "right_square_bracket,right",
        "step(-1)",
        "Step forward",
        id="dashboard.forward",
        show=False,
        tooltip="one sample on",
    ),
    Binding(
        "plus,equals_sign",
        "change_rate(-1)",
        "Rate",
        id="dashboard.faster",
        key_display="+/-",
        show=False,
        tooltip="sample more often",
    ),
    Binding(
        "minus",
        "change_rate(1)",
        "Slower",
        id="dashboard.slower",
        show=False,
        tooltip="sample less often",
    ),
    Binding(
        "t",
        "next_window",
        "Window",
        id="dashboard.window",
        tooltip="plots and percentiles over 1 min, 5 min, 15 min or 1 h",
    ),
    Binding(
        "r,f5", "poll_now", "Refresh", id="dashboard.refresh", show=False, tooltip="sample now"
    ),
    Binding(
        "1",
        "show_page(1)",
        "Back",
        id="dashboard.overview",
        tooltip="cache, traffic and latency",
    ),
    Binding(
        "escape",
        "back",
        "Leave",
        id="dashboard.escape",
        show=False,
        tooltip="end and forget the filter, else back to the overview",
    ),
    Binding(
        "2",
        "show_page(2)",
        "Engine",
        id="dashboard.engine",
        tooltip="scheduler, KV blocks and live requests",
    ),
    Binding(
        "3",
        "show_page(3)",
        "Machine",
        id="dashboard.machine",
        show=False,
        tooltip="GPUs, and the server's processes on this machine",
    ),
    Binding("l", "toggle_log", "Log", id="dashboard.log", tooltip="show or hide the server's log"),
    Binding(
        "L",
        "open_log",
        "Whole log",
        id="dashboard.whole-log",
        show=False,
        tooltip="the log with its phases, search and explanations",
    ),
    Binding(
        "P",
        "save_picture",
        "Picture",
        id="dashboard.picture",
        show=False,
        tooltip="save the screen as an SVG file in the current folder",
    ),
    Binding(
        "colon",
        "app.command_palette",
        "Commands",
        id="dashboard.palette",
        show=False,
        tooltip="every command by name",
    ),
    Binding(
        "question_mark,f1,h",
        "panel_help",
        "Help",
        id="dashboard.help",
        key_display="?",
        tooltip="this help; of the panel that Tab has reached, if any",
    ),
)
