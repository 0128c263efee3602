"""`stoker batch`: reads the command line, shows progress, says how a batch ended."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.shared_options import ApiKeyFile

if TYPE_CHECKING:
    from app.batch.files import BatchRequest
    from app.batch.run import Progress
    from app.errors import ExitCode

_SLURM_END = "SLURM_JOB_END_TIME"
_SLURM_RESERVE_S = 30.0  # to end before the job is ended
_TELL_EVERY_S = 30.0


def batch(
    requests: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help="Requests in OpenAI's batch format.")
    ],
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="[SERVER|MODEL]",
            help="Name, pid, :port or URL; or a model: a server is started for the batch. "
            "Default: $STOKER_URL, else the one that runs here.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT.jsonl", help="Answers; a run that ended goes on there."
        ),
    ] = Path("out.jsonl"),
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 32,
    retries: Annotated[int, typer.Option(min=0, help="Tries after a failure of the server.")] = 5,
    time_limit: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="SECONDS", help=f"End in time. Default: the job's end (${_SLURM_END})."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds of one request.")] = 3600.0,
    api_key_file: ApiKeyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="How it ended, as JSON.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="How it ended, name and number with a tab between.")
    ] = False,
) -> int:
    """Answer a file of requests; a batch that was ended goes on where it stopped.

    \b
    Examples:
      stoker batch in.jsonl -o out.jsonl
      stoker batch in.jsonl :8000 -o out.jsonl --concurrency 64
      stoker batch in.jsonl smollm2-135m -o out.jsonl
    """

    from app import output as out
    from app.batch.files import read_requests
    from app.errors import ExitCode

    out.require_one_form(as_json, plain)
    entries = read_requests(requests)
    deadline_s = _deadline(time_limit)
    work = _Batch(entries, output, concurrency, retries, timeout, deadline_s)
    model = _model_of(server)
    if model is not None:
        progress, code = _answer_by_own_server(model, work)
    else:
        progress, code = _answer_by(server, api_key_file, work), ExitCode.OK
    if progress is None:
        return code
    return _report(progress, output, is_ended=work.is_ended, as_json=as_json, plain=plain)


@dataclass(slots=True)
class _Batch:
    """A batch and how it is to be sent."""

    entries: Sequence[BatchRequest]
    output: Path
    concurrency: int
    retries: int
    timeout_s: float
    deadline_s: float | None
    is_ended: bool = False  # before its time

    def finished(self) -> Progress | None:
        """How it stands where nothing is left to be sent. A file that cannot be gone on with is
        refused here, before a model is loaded.
        """
        from app.batch.files import open_answers
        from app.batch.run import Progress

        if not self.output.exists():
            return None
        total = len(self.entries)
        with open_answers(self.output, {entry.custom_id for entry in self.entries}) as answers:
            if len(answers.done) < total:
                return None
            return Progress(total, total, total, answers.num_failed)

    def send(self, url: str, key: str | None, stop: threading.Event) -> Progress:
        """What has no answer yet."""
        from app import output as out
        from app.batch.files import open_answers
        from app.batch.run import BatchPlan, ServerGone, run_batch
        from app.errors import ExitCode, StokerError

        plan = BatchPlan(
            url=url,
            api_key=key,
            requests=self.entries,
            concurrency=self.concurrency,
            retries=self.retries,
            timeout_s=self.timeout_s,
            deadline_s=self.deadline_s,
            stop=stop,
        )
        total = len(self.entries)
        with open_answers(self.output, {entry.custom_id for entry in self.entries}) as answers:
            if answers.done:
                out.say(f"{len(answers.done)} of {total} are answered in {self.output}")
            try:
                with _shown() as on_progress:
                    progress = run_batch(plan, answers, on_progress)
            except ServerGone as error:
                raise StokerError(
                    f"{url} does not answer ({error}); {len(answers.done)} of {total} are answered "
                    f"in {self.output}",
                    hint="the same command goes on once the server is there",
                    exit_code=ExitCode.UNREACHABLE,
                ) from error
        self.is_ended = stop.is_set()
        return progress


def _model_of(word: str | None) -> str | None:
    """The model that the word names, where it names none of the servers."""
    from app.targets.servers import is_server_word
    from engine.errors import ModelNotFoundError
    from engine.model_store.catalogue import require_model_name

    if not word:
        return None
    is_path = os.path.exists(os.path.expanduser(word))
    if is_server_word(word) and not is_path:
        return None
    try:
        require_model_name(word)
    except ModelNotFoundError:
        return None
    return word


def _answer_by(word: str | None, key_file: Path | None, work: _Batch) -> Progress:
    """By a server that runs."""
    from app.client.served_model import served_model
    from app.targets.server_errors import client_errors
    from app.targets.servers import find_target

    target = find_target(word)
    key = target.api_key(key_file)
    with client_errors(key):
        served_model(target.url, None, api_key=key)  # that it is there, and knows the key
    return work.send(target.url, key, threading.Event())


def _answer_by_own_server(model: str, work: _Batch) -> tuple[Progress | None, ExitCode]:
    """By a server that is there for this batch alone; and how that server ended."""
    from app.commands.batch_server import OwnServer, served_name_of, with_own_server
    from app.errors import ExitCode

    if (finished := work.finished()) is not None:
        return finished, ExitCode.OK
    names = {str(entry.body["model"]) for entry in work.entries if entry.body.get("model")}
    own = OwnServer(model, served_name_of(names), work.deadline_s)
    code, progress = with_own_server(own, lambda url, stop: work.send(url, None, stop))
    return progress, code


def _report(
    progress: Progress, path: Path, *, is_ended: bool, as_json: bool, plain: bool
) -> ExitCode:
    from app import output as out
    from app.errors import ExitCode

    spent = time.monotonic() - progress.begun_s
    figures: dict[str, int | float] = {
        "total": progress.total,
        "answered": progress.num_done,
        "failed": progress.num_failed,
        "answered_before": progress.num_before,
        "retried": progress.num_retried,
        "seconds": round(spent, 3),
    }
    if as_json:
        out.print_json("stoker.batch", {**figures, "output": str(path)})
    elif plain:
        out.print_plain(figures.items())
    failed = f", {progress.num_failed} of them with an error" if progress.num_failed else ""
    out.say(f"{progress.num_done} of {progress.total} are answered in {path}{failed}")
    if progress.num_done < progress.total:
        why = "it was ended" if is_ended else "the time was up"
        out.say(f"{why}; the same command goes on with the rest")
        return ExitCode.INTERRUPTED if is_ended else ExitCode.NOT_ENOUGH_EVIDENCE
    return ExitCode.NO if progress.num_failed else ExitCode.OK


def _deadline(time_limit: float | None) -> float | None:
    """When to end, by the monotonic clock."""
    if time_limit is not None:
        return time.monotonic() + time_limit
    end = os.environ.get(_SLURM_END, "")
    if not end.isdigit():
        return None
    return time.monotonic() + int(end) - time.time() - _SLURM_RESERVE_S


@contextlib.contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal; elsewhere a line on stderr now and then."""
    from app.output import say, talk_console

    if not sys.stderr.isatty():
        told_s = time.monotonic()

        def tell(progress: Progress) -> None:
            nonlocal told_s
            if time.monotonic() - told_s >= _TELL_EVERY_S:
                told_s = time.monotonic()
                say(_line(progress))

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=talk_console(), transient=True, refresh_per_second=2) as bar:
        task = bar.add_task("", total=None)

        def draw(progress: Progress) -> None:
            bar.update(
                task,
                description=_forecast(progress).removeprefix(", "),
                completed=progress.num_done,
                total=progress.total,
            )

        yield draw


def _line(progress: Progress) -> str:
    return f"{progress.num_done} of {progress.total}{_forecast(progress)}"


def _forecast(progress: Progress) -> str:
    failed = f", {progress.num_failed} failed" if progress.num_failed else ""
    rate, left = progress.rate, progress.seconds_left
    if rate is None or left is None:
        return failed
    end = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
    return f"{failed}, {rate:.2f}/s, done at about {end}"
