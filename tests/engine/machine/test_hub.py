"""Paths, token and offline mode against the installed huggingface_hub itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from engine.machine import hub

# The library computes them when it is imported; a fresh import for each environment.
_ASK = """
import importlib, json, os, sys
from huggingface_hub import constants
from huggingface_hub.utils import _auth
answers = []
for environ in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(environ)
    importlib.reload(constants)
    token = _auth._get_token_from_environment() or _auth._get_token_from_file()
    places = constants.HF_HOME, constants.HF_HUB_CACHE, constants.HF_TOKEN_PATH
    answers.append([*places, token, constants.HF_HUB_OFFLINE, constants.ENDPOINT])
print(json.dumps(answers))
"""


def environments(home: Path) -> list[dict[str, str]]:
    base = {"HOME": str(home), "WHERE": str(home / "elsewhere")}
    changes: list[dict[str, str]] = [
        {},
        {"XDG_CACHE_HOME": str(home / "xdg")},
        {"XDG_CACHE_HOME": "~/xdg", "HUGGINGFACE_HUB_CACHE": "~/old"},
        {"HF_HOME": "~/hf"},
        {"HF_HOME": "$WHERE/hf", "XDG_CACHE_HOME": "/x"},
        {"HF_HOME": "${WHERE}/hf", "HUGGINGFACE_HUB_CACHE": "$WHERE/old"},
        {"HF_HUB_CACHE": "~/cache", "HUGGINGFACE_HUB_CACHE": "/old"},
        {"HF_HOME": "$NOWHERE/hf"},
        {"HF_TOKEN_PATH": "~/my-token"},
        {"HF_TOKEN": " hf_one \n"},
        {"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "hf_old"},
        {"HF_TOKEN": "  ", "HUGGING_FACE_HUB_TOKEN": "hf_old"},
        {"HUGGINGFACE_HUB_TOKEN": "hf_nobody_reads_this"},
        {"HF_HUB_OFFLINE": "yes"},
        {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1"},
        {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "on"},
        {"HF_ENDPOINT": "https://mirror.example/"},
    ]
    return [{**base, **change} for change in changes]


def test_the_rule_is_the_librarys(tmp_path: Path) -> None:
    (tmp_path / "my-token").write_text("hf_mine\r\n")
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text("hf_login\n")
    asked = environments(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        input=json.dumps(asked),
        env={**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    for environ, theirs in zip(asked, json.loads(done.stdout), strict=True):
        places = (hub.hub_home(environ), hub.hub_cache(environ), hub.token_path(environ))
        token = hub.hub_token(environ)
        ours = [
            *map(str, places),
            None if token is None else token.text,
            hub.offline_variable(environ) is not None,
            hub.hub_endpoint(environ),
        ]
        # A variable with blanks alone hides the file for them, and so does it for us.
        assert ours == theirs or (ours[3] is None and environ["HF_TOKEN"].isspace()), environ


def test_a_token_is_not_in_its_repr() -> None:
    assert "hf_one" not in repr(hub.hub_token({"HF_TOKEN": "hf_one"}))
