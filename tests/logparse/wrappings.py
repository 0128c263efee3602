"""What programs around a server do to its lines, as functions of all lines of a log.

Each keeps one physical line for each line, unless its name is in `MOVES_LINES`.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable

# Values of a report that no wrapping may change.
KEYS = (
    "outcome", "engine", "engine_version", "model", "arguments", "weights_gib", "kv_memory_gib",
    "kv_tokens", "kv_blocks", "max_concurrency", "max_model_len", "requested_max_model_len",
    "compile_s", "graph_gib", "engine_init_s", "ready_url", "processes", "cause_id", "root_cause",
    "key_line",
)  # fmt: skip

Wrapping = Callable[[list[str]], list[str]]
Change = Callable[[int, str], str]


def _clock(n: int) -> str:
    return f"{3 + n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}"


def _iso(n: int) -> str:
    return f"2026-01-02T{_clock(n)}"


def _day(n: int) -> str:
    return f"2026-01-02 {_clock(n)}"


def _each(change: Change) -> Wrapping:
    return lambda lines: [change(n, line) for n, line in enumerate(lines)]


def _octal(line: str) -> str:
    return line.replace("\x1b", "#033").replace("\t", "#011") + "#015"


def _csv_row(*fields: str) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


def _all_quoted(*fields: str) -> str:
    return ",".join('"' + field.replace('"', '""') + '"' for field in fields)


def _json(**fields: object) -> str:
    return json.dumps(fields)


def _level(line: str) -> str:
    return next((level for level in ("ERROR", "WARNING") if level in line), "INFO")


def _pretty(lines: list[str]) -> list[str]:
    events = [{"timestamp": 1756144012376 + n, "message": line} for n, line in enumerate(lines)]
    return json.dumps({"events": events, "nextForwardToken": "f/1"}, indent=4).split("\n")


def _notebook(lines: list[str]) -> list[str]:
    stream = {"name": "stdout", "output_type": "stream", "text": [line + "\n" for line in lines]}
    cell = {"cell_type": "code", "outputs": [stream], "source": ["!vllm serve model\n"]}
    return json.dumps({"cells": [cell], "nbformat": 4}, indent=1).split("\n")


def _one_document(lines: list[str]) -> list[str]:
    events = [{"timestamp": 1756144012376 + n, "message": line} for n, line in enumerate(lines)]
    return [json.dumps({"events": events})]


def _fenced(lines: list[str]) -> list[str]:
    return ["The server says:", "", "```text", *lines, "```", ""]


def _fenced_in_a_list(lines: list[str]) -> list[str]:
    return ["1. Start it:", "", "   ```", *(f"   {line}" for line in lines), "   ```"]


def _first_lines_only(lines: list[str]) -> list[str]:
    """A launcher's logging that heads each message, not each line of it."""
    shown = []
    for n, line in enumerate(lines):
        goes_on = line.startswith((" ", "\t")) or not line or line[:1].isspace()
        shown.append(line if goes_on else f"{_day(n)},123 | INFO | runner | {line}")
    return shown


WRAPPINGS: dict[str, Wrapping] = {
    # containers
    "docker logs -t": _each(lambda n, line: f"{_iso(n)}.678901234Z {line}"),
    "docker compose": _each(lambda n, line: f"vllm-1  | {line}"),
    "docker compose v1": _each(lambda n, line: f"vllm_server_1  | {line}"),
    "docker compose, colours": _each(lambda n, line: f"\x1b[36mvllm-1  | \x1b[0m{line}"),
    "docker compose, two names": _each(
        lambda n, line: f"{'vllm-openai-1' if n % 3 else 'vllm-2       '}  | {line}"
    ),
    "Docker Desktop": _each(lambda n, line: f"{_day(n)}.678 | {line}"),
    "docker's json-file": _each(
        lambda n, line: _json(log=line + "\n", stream="stderr", time=_iso(n))
    ),
    "podman journald": _each(lambda n, line: f"Jan 02 {_clock(n)} gpu-01 vllm[88]: {line}"),
    "CRI": _each(lambda n, line: f"{_iso(n)}.678901234+01:00 stderr F {line}"),
    "kubectl --prefix": _each(lambda n, line: f"[pod/vllm-7f9c5-x2x/vllm] {line}"),
    "kubectl --prefix --timestamps": _each(
        lambda n, line: f"[pod/vllm-7f9c5-x2x/vllm] {_iso(n)}.678901234Z {line}"
    ),
    "kubectl --prefix of two pods": _each(
        lambda n, line: f"[pod/vllm-{'7f9c5-x2x' if n % 2 else '8a0d6-bcd'}/vllm] {line}"
    ),
    "stern": _each(lambda n, line: f"vllm-7f9c5-x2x vllm {line}"),
    "stern of two pods": _each(
        lambda n, line: f"vllm-{'8a0d6-bcd' if n % 5 == 4 else '7f9c5-x2x'} vllm {line}"
    ),
    "stern, colours": _each(lambda n, line: f"\x1b[32mvllm-7f9\x1b[0m › \x1b[33mv\x1b[0m {line}"),
    "kubetail": _each(lambda n, line: f"[vllm-7f9c5-x2x vllm] {line}"),
    "k9s export": _each(lambda n, line: f"{_iso(n)}.678901234Z vllm {line}"),
    "a container's name": _each(lambda n, line: f"kserve-container {line}"),
    # system logs
    "journald short": _each(lambda n, line: f"Jan  2 {_clock(n)} gpu-01 vllm[88]: {line}"),
    "journald short-precise": _each(
        lambda n, line: f"Jan 02 {_clock(n)}.123456 gpu-01 vllm[88]: {line}"
    ),
    "journald short-iso": _each(lambda n, line: f"{_iso(n)}+0100 gpu-01 vllm[88]: {line}"),
    "journald short-full": _each(lambda n, line: f"Fri {_day(n)} CET gpu-01 vllm[88]: {line}"),
    "journald in Russian": _each(lambda n, line: f"янв 02 {_clock(n)} gpu-01 vllm[88]: {line}"),
    "journald in German": _each(lambda n, line: f"Dez 02 {_clock(n)} gpu-01 run.sh[88]: {line}"),
    "journald in Chinese": _each(lambda n, line: f"1月 02 {_clock(n)} gpu-01 vllm[88]: {line}"),
    "journald in French": _each(lambda n, line: f"févr. 02 {_clock(n)} gpu-01 vllm[88]: {line}"),
    "journald cat with priority": _each(lambda n, line: f"<6>{line}"),
    "journald monotonic": _each(lambda n, line: f"[ {5000 + n}.123456] gpu-01 vllm[88]: {line}"),
    "journald json": _each(
        lambda n, line: _json(
            __REALTIME_TIMESTAMP="1767323045123", PRIORITY="6", _PID="88", MESSAGE=line
        )
    ),
    "syslog RFC 3164": _each(lambda n, line: f"<134>Jan  2 {_clock(n)} gpu-01 vllm[88]: {line}"),
    "syslog RFC 5424": _each(lambda n, line: f"<134>1 {_iso(n)}Z gpu-01 vllm 88 - - {line}"),
    "rsyslog with octal escapes": _each(
        lambda n, line: f"Jan  2 {_clock(n)} gpu-01 vllm[88]: {_octal(line)}"
    ),
    "supervisord": _each(lambda n, line: f"{_day(n)},123 DEBG 'vllm' stdout output: {line}"),
    "pm2": _each(lambda n, line: f"0|vllm     | {line}"),
    "pm2 with a time": _each(lambda n, line: f"0|vllm  | {_day(n)} +01:00: {line}"),
    "runit's svlogd": _each(lambda n, line: f"2026-01-02_{_clock(n)}.12345 {line}"),
    "daemontools' TAI64N": _each(lambda n, line: f"@4000000065a1b2c3{n:08x} {line}"),
    # clouds
    "CloudWatch csv": lambda lines: [
        "timestamp,message",
        *(_csv_row(str(1756144012376 + n), line) for n, line in enumerate(lines)),
    ],
    "CloudWatch csv with octal escapes": _each(
        lambda n, line: _csv_row(str(1756144012376 + n), _octal(line))
    ),
    "a csv of quoted fields": _each(
        lambda n, line: _all_quoted(f"{_iso(n)}Z", "vllm-0", _level(line), line)
    ),
    "a csv with the message in the middle": _each(
        lambda n, line: _all_quoted(f"{_iso(n)}Z", line, "gpu-01", "stdout")
    ),
    "aws logs tail": _each(
        lambda n, line: f"{_iso(n)}.678000+00:00 ecs/vllm/0f1e2d3c4b5a697886 {line}"
    ),
    "SageMaker": _each(lambda n, line: f"{_iso(n)}.678Z [algo-1] {line}"),
    "Google Cloud json": _each(
        lambda n, line: _json(
            insertId="1x2y", severity="ERROR", textPayload=line, timestamp=f"{_iso(n)}Z"
        )
    ),
    "Google Cloud jsonPayload": _each(
        lambda n, line: _json(severity="INFO", jsonPayload={"message": line, "pid": 88})
    ),
    "gcloud logging read": _each(lambda n, line: f"INFO {_iso(n)}.678Z {line}"),
    "Azure": _each(lambda n, line: f"{_iso(n)}.6789012Z {line}"),
    "Heroku": _each(lambda n, line: f"{_iso(n)}.678901+00:00 app[web.1]: {line}"),
    "Fly": _each(lambda n, line: f"{_iso(n)}Z app[148e21a4] ord [info]{line}"),
    "RunPod": _each(lambda n, line: f"{_day(n)}.678 | info | 4x1a9b8c7d6e5f | {line}"),
    # collectors
    "Loki's logcli": _each(lambda n, line: f'{_iso(n)}Z {{app="vllm", pod="vllm-0"}} {line}'),
    "Grafana's download": _each(
        lambda n, line: f"{1767323045123456789 + n}\t{_iso(n)}.123Z\t{line}"
    ),
    "Loki json": _each(
        lambda n, line: _json(line=line, timestamp=f"{_iso(n)}Z", fields={"app": "vllm"})
    ),
    "Datadog": _each(
        lambda n, line: _json(
            id="AQ1", content={"timestamp": _iso(n), "host": "gpu-01", "message": line}
        )
    ),
    "fluentd": _each(lambda n, line: f"{_day(n)}.000000000 +0000 kube.vllm: {_json(log=line)}"),
    "fluent-bit": _each(
        lambda n, line: f'[{n}] kube.vllm: [{1767323045 + n}.123, {{"log"=>{json.dumps(line)}}}]'
    ),
    "vector": _each(
        lambda n, line: _json(
            file="/var/log/vllm.log", host="gpu-01", message=line, source_type="file"
        )
    ),
    "a json of unusual keys": _each(
        lambda n, line: _json(ts=n, lvl="info", src="stderr", payload=line, trace="0f1e2d3c")
    ),
    "a json within a json": _each(
        lambda n, line: _json(time=_iso(n), log=_json(level="info", msg=line))
    ),
    "elastic": _each(
        lambda n, line: _json(_index="logs", _source={"@timestamp": _iso(n), "message": line})
    ),
    "logfmt": _each(
        lambda n, line: f"time={_iso(n)}Z level=info source=run.go:12 msg={json.dumps(line)}"
    ),
    # jobs
    "ts": _each(lambda n, line: f"Jan 02 {_clock(n)} {line}"),
    "ts -s": _each(lambda n, line: f"00:{n // 60:02}:{n % 60:02} {line}"),
    "ts -i in fractions": _each(lambda n, line: f"0.{n:06} {line}"),
    "Kaggle": _each(lambda n, line: f"{n * 7 / 10:.1f}s {n + 1} {line}"),
    "GitHub Actions": _each(lambda n, line: f"{_iso(n)}.6789012Z {line}"),
    "GitHub Actions, downloaded": _each(
        lambda n, line: f"build\tStart the server\t{_iso(n)}.6789012Z {line}"
    ),
    "GitLab": _each(lambda n, line: f"{_iso(n)}.678901Z 01O {line}"),
    "Jenkins": _each(lambda n, line: f"[{_iso(n)}.678Z] {line}"),
    "Jenkins, parallel": _each(lambda n, line: f"[gpu-tests] {line}"),
    "Buildkite": _each(lambda n, line: f"\x1b_bk;t={1767323045123 + n}\x07{line}"),
    "srun -l": _each(lambda n, line: f"0: {line}"),
    "srun -l of two nodes": _each(lambda n, line: f"{n % 2}: {line}"),
    "mpirun --tag-output": _each(lambda n, line: f"[1,0]<stderr>:{line}"),
    "mpirun --timestamp-output": _each(
        lambda n, line: f"Fri Jan  2 {_clock(n)} 2026[1,0]<stdout>:{line}"
    ),
    "torchrun --tee": _each(lambda n, line: f"[default0]:{line}"),
    "pdsh": _each(lambda n, line: f"gpu-01: {line}"),
    "ansible": _each(lambda n, line: f'        "{line}",' if '"' not in line and "\\" not in line
                     and "\x1b" not in line else f"        {json.dumps(line)},"),
    "parallel --tag": _each(lambda n, line: f"model-a\t{line}"),
    "honcho": _each(lambda n, line: f"{_clock(n)} vllm.1  | {line}"),
    "concurrently": _each(lambda n, line: f"[vllm] {line}"),
    "turbo": _each(lambda n, line: f"@acme/llm:serve: {line}"),
    "a shell's name in brackets": _each(lambda n, line: f"[{_day(n)}] [/bin/sh]: {line}"),
    # logging of a launcher
    "logging": _each(lambda n, line: f"{_day(n)},123 - runner - {_level(line)} - {line}"),
    "logging, without a name": _each(lambda n, line: f"{_day(n)},123 {_level(line)} {line}"),
    "logging, the default": _each(lambda n, line: f"{_level(line)}:vllm_runner:{line}"),
    "logging in brackets": _each(
        lambda n, line: f"[{_day(n)},123][{_level(line)}][runner.py:77] {line}"
    ),
    "logging, process and thread": _each(
        lambda n, line: f"{_day(n)},123 [88:MainThread] {_level(line):8} runner: {line}"
    ),
    "loguru": _each(
        lambda n, line: f"{_day(n)}.678 | {_level(line):8} | runner:pump:{10 + n % 3} - {line}"
    ),
    "structlog": _each(
        lambda n, line: f"{_day(n)} [{_level(line).lower():9}] {line}"
    ),
    "structlog json": _each(
        lambda n, line: _json(event=line, level="info", timestamp=f"{_iso(n)}Z", logger="runner")
    ),
    "python-json-logger": _each(
        lambda n, line: _json(asctime=_day(n), name="runner", levelname="INFO", message=line)
    ),
    "glog": _each(lambda n, line: f"I0102 {_clock(n)}.678901    88 runner.cc:77] {line}"),
    "log4j": _each(lambda n, line: f"{_day(n)},123 INFO  [main] c.a.Runner - {line}"),
    "slf4j of a Java launcher": _each(
        lambda n, line: f"{_clock(n)}.678 [pool-1-thread-2] INFO c.a.llm.Runner -- {line}"
    ),
    "Rust's tracing": _each(lambda n, line: f"{_iso(n)}.678901Z  INFO dynamo_run::pump: {line}"),
    "Go's zap": _each(lambda n, line: f"{_iso(n)}.678Z\tINFO\tpump/run.go:77\t{line}"),
    "Go's log": _each(lambda n, line: f"2026/01/02 {_clock(n)} {line}"),
    "a launcher's headed messages": _first_lines_only,
    "Ray": _each(lambda n, line: f"(ServeReplica:llm:VLLM pid=99, ip=10.0.0.1) {line}"),
    "Ray, colours": _each(lambda n, line: f"\x1b[36m(VLLMDeployment pid=99)\x1b[0m {line}"),
    "LiteLLM": _each(lambda n, line: f"{_clock(n)} - LiteLLM:{_level(line)}: run.py:77 - {line}"),
    # copies
    "a web page": _each(lambda n, line: html.escape(line)),
    "a web page in spans": _each(
        lambda n, line: f'<span class="line">{html.escape(line)}</span>'
    ),
    "a Markdown quotation": _each(lambda n, line: f"> {line}".rstrip()),
    "a twice quoted mail": _each(lambda n, line: f"> > {line}".rstrip()),
    "a fence": _fenced,
    "a fence in a list": _fenced_in_a_list,
    "indented by four": _each(lambda n, line: f"    {line}"),
    "a table": _each(lambda n, line: f"| {line} |"),
    "numbered lines": _each(lambda n, line: f"{n + 1:6}\t{line}"),
    "numbered lines of a page": _each(lambda n, line: f"{n + 1} {line}"),
    "grep -n of two files": _each(lambda n, line: f"logs/server.log:{n + 1}:{line}"),
    "Windows": _each(lambda n, line: f"{line}\r"),
    "a typescript": lambda lines: [
        "Script started on 2026-01-02 03:04:05+01:00 [TERM=\"xterm\"]",
        *(f"\x1b[?2004l{line}\x1b[K\r" for line in lines),
    ],
    "visible escapes": _each(lambda n, line: line.replace("\x1b", "\\x1b")),
    "a repr of each line": _each(lambda n, line: f"{line!r}"),
    "a repr of bytes": _each(lambda n, line: f"{(line + chr(10)).encode()!r}"),
    "blank lines between": lambda lines: [part for line in lines for part in (line, "")],
    # documents
    "json, printed over lines": _pretty,
    "json in one line": _one_document,
    "a notebook": _notebook,
}  # fmt: skip
MOVES_LINES = frozenset(
    {"CloudWatch csv", "a fence", "a fence in a list", "a typescript", "blank lines between",
     "json, printed over lines", "json in one line", "a notebook"}
)  # fmt: skip
