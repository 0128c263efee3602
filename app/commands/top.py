"""`stoker top`: the dashboard of a running server, or one sample of it as text, JSON or fields.

The only door to the TUI: `stoker serve` uses `open_dashboard`, `stoker logs` `open_log_view`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.client.histograms import Histogram
    from app.client.metrics import MetricsSample

SCHEMA = "stoker.metrics"
_FRACTIONS = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


def top(
    url: Annotated[
        str | None,
        typer.Argument(help="Server address. Default: $STOKER_URL, else http://127.0.0.1:8000."),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.1, max=60.0, help="Seconds between two samples.")
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one sample instead of the dashboard.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One sample as a JSON document; unknown is null.")
    ] = False,
    as_plain: Annotated[
        bool, typer.Option("--plain", help="One sample as KEY<TAB>VALUE lines; unknown is -.")
    ] = False,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the API key. Default: $STOKER_API_KEY.")
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="The dashboard cancels no request.")
    ] = False,
) -> None:
    """Watch a running server: cache, requests, tokens per second, latency.

    Works with Stoker's engine, vLLM, and as far as they expose numbers SGLang and llama-server.
    Without a terminal it prints one sample and ends.
    """
    from app.client.credentials import find_api_key
    from app.client.errors import InvalidKeyFile, InvalidUrl
    from app.client.transport import DEFAULT_URL, normalise_base_url
    from app.errors import ExitCode, StokerError

    if as_json and as_plain:
        raise StokerError("choose one of --json and --plain", exit_code=ExitCode.USAGE)
    try:
        base_url = normalise_base_url(url or os.environ.get("STOKER_URL") or DEFAULT_URL)
        api_key = find_api_key(api_key_file, os.environ)
    except (InvalidUrl, InvalidKeyFile) as error:
        raise StokerError(str(error), exit_code=ExitCode.USAGE) from error
    if as_json or as_plain:
        _print_sample(base_url, api_key, _write_json if as_json else _write_plain)
    elif once or not has_screen():
        _print_sample(base_url, api_key, _write_text)
    else:
        open_dashboard(base_url, api_key=api_key, interval_s=interval, is_read_only=read_only)


def has_screen() -> bool:
    """Whether this terminal can show a TUI."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def open_dashboard(
    url: str,
    *,
    api_key: str | None = None,
    interval_s: float = 1.0,
    log_path: Path | None = None,
    server_alive: Callable[[], bool] | None = None,
    is_read_only: bool = False,
) -> str:
    """Run the dashboard: "quit", or "server-gone" when `server_alive()` turned False."""
    from tui.app import run_dashboard

    return run_dashboard(
        url,
        api_key=api_key,
        interval_s=interval_s,
        log_path=log_path,
        server_alive=server_alive,
        is_read_only=is_read_only,
    )


def open_log_view(path: Path, title: str) -> bool:
    """Look at a log until the user quits; False when the view failed, which it has printed."""
    from tui.log_app import run_log_view

    return run_log_view(path, title)


def _print_sample(
    url: str, api_key: str | None, write: Callable[[str, MetricsSample], None]
) -> None:
    from app.client.errors import ClientError, Unauthorized
    from app.client.server import scrape_metrics
    from app.errors import ExitCode, StokerError

    try:
        sample = scrape_metrics(url, api_key=api_key)
    except ClientError as error:
        hint = "start a server with `stoker serve`, or name one: stoker top http://HOST:PORT"
        if isinstance(error, Unauthorized):
            hint = "put the API key into STOKER_API_KEY, or into a file for --api-key-file"
        raise StokerError(str(error), hint=hint, exit_code=ExitCode.UNREACHABLE) from error
    write(url, sample)


def _write_json(url: str, sample: MetricsSample) -> None:
    from app.output import print_json

    record = _record(url, sample)
    reasons = {key: _reason(key, sample) for key, value in _flat(record) if value is None}
    print_json(SCHEMA, {**record, "reasons": reasons})


def _write_plain(url: str, sample: MetricsSample) -> None:
    from app.output import print_plain

    print_plain(_flat(_record(url, sample)))


def _write_text(url: str, sample: MetricsSample) -> None:
    typer.echo(_text(url, sample))


def _text(url: str, sample: MetricsSample) -> str:
    from tui import formatting as fmt

    blocks = f"{fmt.count(sample.kv_blocks_used)} / {fmt.count(sample.kv_blocks_total)} blocks"
    rows = [
        ("server", "  ".join(part for part in (url, sample.engine, sample.model) if part)),
        ("requests", f"{fmt.count(sample.running)} running, {fmt.count(sample.waiting)} waiting"),
        ("KV cache", f"{fmt.percent(sample.kv_usage)} used, {blocks}"),
        ("cached", fmt.percent(sample.kv_cached_share)),
        ("prefix hits", fmt.percent(sample.prefix_hit_rate)),
        ("preemptions", fmt.count(sample.preemptions)),
        ("prompt", f"{fmt.count(sample.prompt_tokens)} tokens since start"),
        ("generation", f"{fmt.count(sample.generation_tokens)} tokens since start"),
        ("first token", _percentiles_text(sample.ttft)),
        ("inter-token", _percentiles_text(sample.itl)),
        ("end to end", _percentiles_text(sample.e2e)),
    ]
    return "\n".join(f"{label:<12}  {value}" for label, value in rows)


def _percentiles_text(histogram: Histogram | None) -> str:
    from tui import formatting as fmt

    parts = []
    for name, fraction in _FRACTIONS:
        found = histogram.percentile(fraction) if histogram else None
        parts.append(f"{name} {fmt.percentile(found):<9}")
    return f"{'  '.join(parts)}  n {fmt.count(histogram.n if histogram else None)}"


def _record(url: str, sample: MetricsSample) -> dict[str, object]:
    return {
        "url": url,
        "engine": sample.engine,
        "model": sample.model,
        "requests_running": sample.running,
        "requests_waiting": sample.waiting,
        "requests_finished_total": sample.finished,
        "kv_usage": sample.kv_usage,
        "kv_blocks_used": sample.kv_blocks_used,
        "kv_blocks_total": sample.kv_blocks_total,
        "kv_cached_share": sample.kv_cached_share,
        "kv_block_size_tokens": sample.block_size,
        "kv_capacity_tokens": sample.kv_capacity_tokens,
        "preemptions_total": sample.preemptions,
        "prefix_hit_rate": sample.prefix_hit_rate,
        "prompt_tokens_total": sample.prompt_tokens,
        "generation_tokens_total": sample.generation_tokens,
        "time_to_first_token_s": _percentiles(sample.ttft),
        "inter_token_latency_s": _percentiles(sample.itl),
        "e2e_latency_s": _percentiles(sample.e2e),
    }


def _percentiles(histogram: Histogram | None) -> dict[str, object] | None:
    """`value` is interpolated inside the bucket (lower, upper]; the last has no upper bound."""
    if histogram is None:
        return None
    document: dict[str, object] = {"n": histogram.n}
    for name, fraction in _FRACTIONS:
        found = histogram.percentile(fraction)
        document[name] = found and {
            "value": None if math.isinf(found.upper) else round(found.value, 6),
            "lower": found.lower,
            "upper": None if math.isinf(found.upper) else found.upper,
        }
    return document


def _flat(record: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _reason(key: str, sample: MetricsSample) -> str:
    if key.endswith((".value", ".upper")):
        return "above the last bound of the server's histogram"
    if key.rpartition(".")[2] in dict(_FRACTIONS):
        return "no observations yet"
    if key == "prefix_hit_rate" and sample.prefix_queries is not None:
        return "no observations yet"
    return "this server does not expose it"
