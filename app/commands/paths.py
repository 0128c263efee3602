"""`stoker paths`: where Stoker keeps its files on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from app.commands.shared_options import AsJson


def paths(
    as_json: AsJson = False,
    as_plain: Annotated[
        bool, typer.Option("--plain", help="NAME<TAB>PATH<TAB>yes|no (is it there).")
    ] = False,
) -> None:
    """Print where Stoker keeps its files, and which variable moves each; makes none of them."""
    from app import output
    from app.paths import all_places

    output.require_one_form(as_json, as_plain)
    places = [(place, place.path.exists()) for place in all_places()]
    if as_json:
        rows = [
            {
                "name": place.name,
                "path": str(place.path),
                "exists": exists,
                "variable": place.variable or None,
            }
            for place, exists in places
        ]
        output.print_json("stoker.paths", {"paths": rows})
    elif as_plain:
        output.print_plain((p.name, p.path, "yes" if exists else "no") for p, exists in places)
    else:
        for place, exists in places:
            notes = ["" if exists else "not there", place.variable and f"${place.variable}"]
            note = ", ".join(filter(None, notes))
            text = f"{place.name:<24}{place.path}" + (f"  ({note})" if note else "")
            print(output.one_line(text))
