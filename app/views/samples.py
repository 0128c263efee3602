"""Samples of servers as data on stdout: a JSON document, or fields with tabs between them."""

from __future__ import annotations

from collections.abc import Sequence

from app.client.metrics.sample_record import flat, scraped_record, step_records
from app.client.watch.recording import Recording
from app.client.watch.watched import Scraped
from app.output import print_json, print_plain


def print_samples_json(found: Sequence[Scraped], is_list: bool) -> None:
    """One sample of each server; alone it is a document of its own."""
    records = [scraped_record(one, with_reasons=True) for one in found]
    if is_list:
        print_json("stoker.fleet", {"servers": records})
    else:
        print_json("stoker.metrics", records[0])


def print_samples_plain(found: Sequence[Scraped], is_list: bool) -> None:
    """The same, a value to a line, with the server's name first when there can be several."""
    print_plain(
        (*((one.server.name,) if is_list else ()), key, value)
        for one in found
        for key, value in flat(scraped_record(one, with_reasons=False))
    )


def print_steps_json(recording: Recording) -> None:
    """What every recorded scrape says."""
    servers, documents = list(recording.servers), list(step_records(recording))
    print_json("stoker.replay", {"servers": servers, "steps": documents})


def print_steps_plain(recording: Recording) -> None:
    """The same, a value to a line, with the time and the server first."""
    for document in step_records(recording):
        where = (document.pop("time_s"), document.pop("server"))
        print_plain((*where, key, value) for key, value in flat(document))
