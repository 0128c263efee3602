"""`stoker bench`: reads the command line, shows progress, prints what app.bench.run measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.bench.run import BenchPlan

_LOAD, _CONTENT, _OUTPUT = "Load", "What is sent", "Output"


def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SERVER] | compare A.json B.json",
            help="Server under test: name, pid, :port or URL. "
            "Default: $STOKER_URL, else the one that runs here.",
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="Closed loop with this many streams, e.g. 1,8,32 (the default).",
            metavar="N,...",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            help="Open loop: Poisson arrivals a second; `sweep` finds the knee.",
            metavar="R,...|sweep",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Requests of a round.", rich_help_panel=_LOAD)
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Seconds in which a round sends new requests.", rich_help_panel=_LOAD
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="Open loop with recorded arrivals and lengths: serve --record-traffic, "
            "Mooncake's JSONL, Azure's CSV.",
            metavar="TRACE",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    speed: Annotated[
        float,
        typer.Option(min=0.001, help="How much faster --replay is.", rich_help_panel=_LOAD),
    ] = 1.0,
    repeat: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rounds of each load. Default: 3, of a replay 1.", rich_help_panel=_LOAD
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, help="Requests before the first round.", rich_help_panel=_LOAD)
    ] = 8,
    vs: Annotated[
        str | None,
        typer.Option(
            help="A second server: rounds alternate, the ratio is printed.",
            metavar="SERVER",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Lengths, shared beginnings and turns of typical work.",
            metavar="chat|rag|code|agent",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(
            help="Length of the prompts. Default: 60.", metavar="N|A:B", rich_help_panel=_CONTENT
        ),
    ] = None,
    output_tokens: Annotated[
        str | None,
        typer.Option(
            help="Length of the answers. Default: 128.", metavar="N|A:B", rich_help_panel=_CONTENT
        ),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            help='Lines of {"prompt": ...} or {"messages": ...} instead of made-up prompts.',
            metavar="FILE.jsonl",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    prefix_share: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.95,
            help="Share that all prompts begin with. Default: 0.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    turns: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompts of a session, each beginning with the one before. Default: 1.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of prompts and arrivals. Default: a new one, printed.", rich_help_panel=_CONTENT
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Ask /v1/chat/completions.", rich_help_panel=_CONTENT),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Default: the first that each server lists.", rich_help_panel=_CONTENT),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="Count only requests within these milliseconds as goodput.",
            metavar="ttft:500,tpot:50",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write the result load by load; the same command goes on where it stopped.",
            metavar="FILE.json",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, help="compare: the loss that is accepted.", rich_help_panel=_OUTPUT),
    ] = 0.05,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds of one request.", rich_help_panel=_OUTPUT)
    ] = 600.0,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the API key. Default: $STOKER_API_KEY, $VLLM_API_KEY.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document.", rich_help_panel=_OUTPUT)
    ] = False,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Server, load, figure, value, interval with tabs between.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
) -> int:
    """Measure a server under load, and say when the figures cannot be trusted.

    \b
    Examples:
      stoker bench --concurrency 1,8,32
      stoker bench :8000 --vs :8001 --repeat 5
      stoker bench --rate sweep --slo ttft:500,tpot:50 --save sweep.json
      stoker bench --preset agent --concurrency 4
      stoker bench --replay conversation_trace.jsonl --speed 0.1
      stoker bench --json > A.json
      stoker bench compare A.json B.json
    """

    words = what or []
    if words[:1] == ["compare"]:
        return _compare(words[1:], tolerance, as_json, plain)
    from app.bench.presets import find_preset
    from app.bench.prompts import parse_range
    from app.bench.report import parse_slo
    from app.bench.round import Amount, Load
    from app.bench.run import BenchPlan, parse_loads
    from app.bench.saved import saved_result
    from app.bench.server import proved_target
    from app.bench.trace import read_trace
    from app.targets.servers import find_target

    given = {
        "--replay": replay,
        "--dataset": dataset,
        "--preset": preset,
        "--prompt-tokens": prompt_tokens,
        "--output-tokens": output_tokens,
        "--prefix-share": prefix_share,
        "--turns": turns,
        "--concurrency or --rate": concurrency or rate,
    }
    _require_one_source([name for name, value in given.items() if value is not None], speed)
    shape = find_preset(preset)
    found = [find_target(word) for word in (_one_word(words), *([vs] if vs else []))]
    loads, limits = parse_loads(concurrency, rate), parse_slo(slo)
    lengths, outputs = shape.prompt_tokens, shape.output_tokens
    if prompt_tokens is not None:
        lengths = parse_range("--prompt-tokens", prompt_tokens)
    if output_tokens is not None:
        outputs = parse_range("--output-tokens", output_tokens)
    trace = read_trace(replay) if replay else None
    is_chat = chat or shape.is_chat or (dataset is not None and _holds_messages(dataset))
    if save and seed is None and (begun := saved_result(save)):
        seed = begun["workload"]["seed"]
    plan = BenchPlan(
        targets=tuple(
            proved_target(one.url, model, one.api_key(api_key_file), is_chat, timeout)
            for one in found
        ),
        loads=(Load("replay", speed),) if trace else loads,
        amount=Amount(num_prompts, duration),
        repeats=repeat or (1 if trace else 3),
        warmup=warmup,
        seed=int.from_bytes(os.urandom(3), "big") if seed is None else seed,
        prompt_tokens=lengths,
        output_tokens=outputs,
        dataset=dataset,
        prefix_share=shape.prefix_share if prefix_share is None else prefix_share,
        turns=turns or shape.turns,
        preset=preset,
        trace=trace,
        save=save,
        slo=limits,
    )
    return _measure(plan, as_json, plain)


def _require_one_source(named: Sequence[str], speed: float) -> None:
    """Raise UsageError for options that say twice what is sent, or when."""
    from app.errors import UsageError

    if "--replay" not in named and speed != 1.0:
        raise UsageError(
            "--speed is how much faster a trace is replayed, and there is none",
            hint="name one with --replay; --rate says how many requests a second come",
        )
    if "--replay" in named and len(named) > 1:
        raise UsageError(
            f"--replay says when and how long requests are; {named[1]} says it too",
            hint="leave one of them out; --speed makes a replay faster or slower",
        )
    if "--dataset" in named and (others := {"--preset", "--prompt-tokens", "--turns"} & {*named}):
        raise UsageError(
            f"--dataset brings its own prompts; {min(others)} describes made-up ones",
            hint="leave one of them out",
        )


def _measure(plan: BenchPlan, as_json: bool, plain: bool) -> int:
    from app import output
    from app.bench.compare import SCHEMA
    from app.bench.run import run_bench
    from app.bench.table import plain_rows, text_report

    with _progress() as on_progress:
        result = run_bench(plan, on_progress)
    if as_json:
        output.print_json(SCHEMA, result.document)
    elif plain:
        output.print_plain(plain_rows(result.document))
    else:
        print(output.printable(text_report(result.document)))
    if as_json or plain:
        for finding in result.findings:
            output.say(f"finding: {finding.text}")
    return result.exit_code


def _compare(files: list[str], tolerance: float, as_json: bool, plain: bool) -> int:
    from app import output
    from app.bench.compare import compare_files
    from app.bench.table import comparison_text
    from app.errors import UsageError

    if len(files) != 2:
        raise UsageError("compare needs two results", hint="stoker bench compare A.json B.json")
    report = compare_files(files[0], files[1], tolerance)
    items = [item.document() for item in report.comparisons]
    if as_json:
        payload = {
            "comparisons": items,
            "obstacles": list(report.obstacles),
            "notes": list(report.notes),
        }
        output.print_json("stoker.bench.compare", payload)
    elif plain:
        output.print_plain(
            (
                item.load,
                item.figure,
                item.ratio.value,
                item.ratio.low,
                item.ratio.high,
                item.verdict,
            )
            for item in report.comparisons
        )
    else:
        print(output.printable(comparison_text(report)))
    return report.exit_code


def _one_word(words: list[str]) -> str | None:
    from app.errors import UsageError

    if len(words) > 1:
        raise UsageError(
            f"one server is measured, not {len(words)}",
            hint=f"for two that take turns: stoker bench {words[0]} --vs {words[1]}",
        )
    return words[0] if words else None


def _holds_messages(dataset: Path) -> bool:
    from app.bench.prompts import read_dataset

    return isinstance(read_dataset(dataset)[0], list)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on a terminal; elsewhere one line on stderr for each round."""
    from app.output import say, talk_console

    shown = ""
    if not sys.stderr.isatty():

        def tell(title: str, _done: int, _total: int | None) -> None:
            nonlocal shown
            if title != shown:
                shown = title
                say(title)

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # Drawn twice a second: the bar must not cost what is measured.
    with Progress(*columns, console=talk_console(), transient=True, refresh_per_second=2) as bar:
        task = bar.add_task("", total=None)

        def draw(title: str, done: int, total: int | None) -> None:
            bar.update(task, description=title, completed=done, total=total)

        yield draw
