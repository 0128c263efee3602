"""docs/models.md names every decoder family; rows of all kinds are made again here."""

from __future__ import annotations

import pytest

from tests.models.decoder_families import decoder_families, documented_release
from tests.models.families_table import documented_rows, row_of

SAMPLE = ("llama", "gemma4_text", "gpt_oss", "deepseek_v3", "jamba", "bloom", "dory")


@documented_release
def test_every_family_has_a_row_and_none_differs() -> None:
    rows = documented_rows()
    assert sorted(rows) == sorted(decoder_families())
    assert [name for name, line in rows.items() if "differs" in line] == []


@documented_release
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("family", SAMPLE)
def test_a_row_is_what_serving_the_family_gives(family: str) -> None:
    assert row_of(family).line == documented_rows()[family]
