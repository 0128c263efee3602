from __future__ import annotations

import pytest

from app.client.errors import (
    BadAnswer,
    ClientError,
    InvalidKeyFile,
    InvalidRecording,
    InvalidUrl,
    Unreachable,
    status_error,
)
from app.errors import ExitCode, StokerError
from app.targets.server_errors import client_errors, explained

SERVER = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("error", "exit_code", "hint"),
    [
        (InvalidUrl("x"), ExitCode.USAGE, ""),
        (InvalidKeyFile("x"), ExitCode.USAGE, ""),
        (InvalidRecording("x"), ExitCode.USAGE, ""),
        (Unreachable("x"), ExitCode.UNREACHABLE, "`stoker serve`"),
        (status_error(SERVER, 401, ""), ExitCode.UNREACHABLE, "put the API key into STOKER_API"),
        (status_error(SERVER, 400, ""), ExitCode.NO, ""),
        (status_error(f"{SERVER}/metrics", 501, ""), ExitCode.UNREACHABLE, "--metrics"),
        (BadAnswer("x"), ExitCode.NO, ""),
    ],
)
def test_each_error_has_one_exit_code_and_hint(
    error: ClientError, exit_code: ExitCode, hint: str
) -> None:
    with pytest.raises(StokerError) as caught, client_errors():
        raise error

    assert str(caught.value) == str(error)
    assert caught.value.exit_code == exit_code
    assert hint in (caught.value.hint or "")
    assert bool(hint) == bool(caught.value.hint)


def test_a_key_that_is_refused_and_another_secret() -> None:
    refused = status_error(SERVER, 403, "")

    assert str(explained(refused, "sk-1").hint).startswith("this one is refused; put the right API")
    assert explained(refused, None, key="token into X").hint == "put the token into X"
