"""What a wheel must carry besides Python files, and what every package must hold for it."""

from __future__ import annotations

import pytest

from tests.places import ROOT


@pytest.mark.parametrize("package", ["app", "engine", "tui", "logparse"])
def test_type_hints_are_offered_to_others(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
