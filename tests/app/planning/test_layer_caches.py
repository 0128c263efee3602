"""What a plan counts of every decoder family is what transformers' own model and cache hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.errors import StokerError
from app.planning.shape_reading import read_shape
from app.planning.weight_headers import folder_weights
from tests.models.cache_table import (
    NOT_COUNTED,
    bytes_of,
    documented_rows,
    kept_values,
    planned_values,
)
from tests.models.decoder_families import decoder_families, documented_release, tiny_decoder

_DOCUMENTED = {row.split("|")[1].strip() for row in documented_rows()}


@pytest.mark.parametrize("family", [name for name in decoder_families() if name in _DOCUMENTED])
def test_cache_and_weights_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = tiny_decoder(family)
    model.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    if family in NOT_COUNTED:
        with pytest.raises(StokerError, match="whose memory `stoker plan` cannot count"):
            read_shape(raw, "tiny")
        return
    shape = read_shape(raw, "tiny")

    assert planned_values(shape.layer_caches) == kept_values(model)
    assert folder_weights(tmp_path, shape).num_bytes == bytes_of(model)


@documented_release
def test_the_documented_table_is_that_of_the_installed_transformers() -> None:
    rows = documented_rows()

    assert [row.split("|")[1].strip() for row in rows] == decoder_families()
    for row in rows:
        _, _, planned, kept, state, kept_state, _ = (cell.strip() for cell in row.split("|"))
        assert planned.startswith("refused") or (planned, state) == (kept, kept_state)
