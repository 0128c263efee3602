"""The secret that the nodes of an engine share: who does not have it cannot join them.

It comes from a file or from the environment, never from a command line.
"""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import ConfigError

NODE_KEY_VARIABLE = "STOKER_NODE_KEY"
_LEAST_BYTES = 16
_HOW_TO = (
    "(umask 077; head -c 32 /dev/urandom | base64 > node.key), copy it to every node, and give "
    "--node-key-file node.key on each"
)


def read_node_key(path: str | None) -> bytes:
    """The secret of the file, else of the environment; ConfigError where there is none or it is
    too short to keep anybody out.
    """
    key, where = os.fsencode(os.environ.get(NODE_KEY_VARIABLE, "")).strip(), NODE_KEY_VARIABLE
    if path is not None:
        where = f"--node-key-file {path}"
        try:
            key = Path(path).expanduser().read_bytes().strip()
        except (OSError, RuntimeError) as error:  # the latter: ~USER of nobody
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{where} cannot be read: {why}. Type {_HOW_TO}.") from error
    elif not key:
        raise ConfigError(f"--nnodes needs a secret that all nodes share. Type {_HOW_TO}.")
    if len(key) < _LEAST_BYTES:
        raise ConfigError(
            f"{where} holds {len(key)} bytes, and a secret has {_LEAST_BYTES} at least. Type "
            f"{_HOW_TO}."
        )
    return key
