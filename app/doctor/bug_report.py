"""The text of `stoker report`: versions, what doctor saw, the last log explained, configuration.

Secrets are masked over the whole text at the end, whatever section they got into.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from app import __version__
from app.client.terminal_text import one_line
from app.doctor.facts import DoctorFacts
from app.doctor.report import Check
from app.errors import UsageError
from engine.machine.private_files import open_new
from engine.machine.secrets import is_secret, secret_values

_VARIABLES = re.compile(
    r"(STOKER|VLLM|HF|HUGGING_?FACE|TRANSFORMERS|CUDA|HIP|ROCR|NVIDIA|NCCL|GLOO|TORCH|TORCHINDUCTOR"
    r"|TRITON|PYTORCH|OMP|MKL|SLURM_JOB|LLAMA)_.*|LD_PRELOAD|LD_LIBRARY_PATH|PYTHONPATH|TMPDIR"
)


def report_text(
    facts: DoctorFacts, checks: Sequence[Check], log: Path | None, environ: Mapping[str, str]
) -> str:
    """The whole report in Markdown, safe to publish."""
    sections = (
        ("Versions", _versions(facts)),
        ("Doctor", _checks(checks)),
        ("Last log", _log(log)),
        ("Configuration", _configuration(environ)),
    )
    lines = [
        f"# Stoker {__version__} report",
        "",
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    ]
    for title, body in sections:
        lines += ["", f"## {title}", "", "```", *map(one_line, body), "```"]
    return masked("\n".join(lines) + "\n", environ)


def masked(text: str, environ: Mapping[str, str]) -> str:
    """Without the values of secret variables, without anything that looks like a secret."""
    from logparse import mask_secrets

    for value in secret_values(environ):
        text = text.replace(value, "***")
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    return "\n".join(mask_secrets(line) for line in text.split("\n"))


def write_report(text: str, path: Path) -> None:
    """Write a new file, for its owner only; one that is there stays."""
    try:
        descriptor = open_new(path)
    except FileExistsError as error:
        hint = "give another --output FILE"
        raise UsageError(f"{path} exists", hint=hint) from error
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}",
            hint="give another --output FILE, or - for standard output",
        ) from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def newest_log(folder: Path) -> Path | None:
    """The log of the last start."""
    return max(folder.glob("*.log"), key=lambda path: path.stat().st_mtime, default=None)


def _versions(facts: DoctorFacts) -> Iterator[str]:
    yield f"stoker {__version__}"
    if facts.machine:
        machine = facts.machine
        yield f"python {machine.python} ({machine.implementation})"
        yield f"system {machine.system} {machine.release or ''} {machine.arch}"
    if facts.gpu and facts.gpu.driver:
        yield f"driver {facts.gpu.driver}, CUDA {facts.gpu.cuda}"
    if facts.environment:
        yield from (f"{one.name} {one.version}" for one in facts.environment.distributions)


def _checks(checks: Sequence[Check]) -> Iterator[str]:
    for check in checks:
        yield f"{check.result.value:<8}{check.title}: {check.seen}"
        yield from (f"{'':<8}{line}" for line in check.details)


def _log(log: Path | None) -> list[str]:
    if log is None:
        return ["no log was found"]
    from logparse import LogParser, explain
    from logparse.reading.log_parts import open_log
    from logparse.reading.source import SourceError, decoded_lines

    parser = LogParser()
    try:
        with open_log(log) as stream:
            for line in decoded_lines(stream):
                parser.feed(line)
    except (OSError, SourceError) as error:
        return [f"{log.name} cannot be read: {error}"]
    return [log.name, "", *explain(parser.report()).text().splitlines()]


def _configuration(environ: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(environ):
        if _VARIABLES.fullmatch(name):
            yield f"{name}={'***' if is_secret(name) else environ[name]}"
    from app.registry.server_registry import open_registry

    for record in open_registry().running():
        yield f"running: {record.name}, {record.engine}, {record.model} at {record.url}"
