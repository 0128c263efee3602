"""Options that several commands have, each with one name, one meaning and one line of help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the API key. Default: $STOKER_API_KEY, $VLLM_API_KEY."),
]
TopP = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="Share of the likeliest tokens.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of the sampling.")]
AsciiOnly = Annotated[
    bool, typer.Option("--ascii", help="Draw with ASCII characters only (or $STOKER_ASCII).")
]
