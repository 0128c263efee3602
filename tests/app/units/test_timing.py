"""Whatever the numbers of a server are, all kinds of units get them from the same place."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.units.deployment import PRE_STOP_S, Deployment, Timing
from app.units.kinds import KINDS, KindChoices
from app.units.slurm import SlurmChoices

_CHOICES = KindChoices(SlurmChoices(), is_user_unit=False, version="1.2.3")
_SERVER = Deployment(
    name="it",
    engine="stoker",
    program="/opt/stoker/bin/stoker",
    python="/opt/stoker/bin/python",
    command=("serve", "smollm2-135m"),
    engine_words=(),
    image="stoker:1.2.3",
    container_args=("serve", "smollm2-135m"),
    is_supervised=True,
    port=8000,
    status_port=9000,
    timing=Timing(0),
    is_open=False,
    needs_hub_token=False,
    gpus=0,
)
drains = st.one_of(st.integers(0, 7200), st.floats(0, 7200))
stalls = st.floats(1, 3600)
starts = st.one_of(st.none(), st.floats(0, 36_000))


@dataclasses.dataclass(frozen=True)
class Written:
    """What each kind of unit says of the times, in seconds."""

    stop: dict[str, int]
    start: dict[str, int]
    watchdog: int
    pre_stop: int


def written(timing: Timing) -> Written:
    server = dataclasses.replace(_SERVER, timing=timing)
    texts = {kind: write(server, _CHOICES).files[0].text for kind, write in KINDS.items()}
    unit = dict(re.findall(r"^(\w+Sec)=(\d+)$", texts["systemd"], re.MULTILINE))
    lead = re.search(r"--signal=B:TERM@(\d+)$", texts["slurm"], re.MULTILINE)
    objects = yaml.safe_load_all(texts["kubernetes"])
    pods = next(one for one in objects if one["kind"] == "Deployment")["spec"]
    pod = pods["template"]["spec"]
    container: dict[str, Any] = pod["containers"][0]
    service = yaml.safe_load(texts["compose"])["services"]["server"]
    assert lead is not None
    probe = container["startupProbe"]
    return Written(
        stop={
            "systemd": int(unit["TimeoutStopSec"]),
            "slurm": int(lead[1]),
            "kubernetes": pod["terminationGracePeriodSeconds"],
            "compose": int(service["stop_grace_period"].removesuffix("s")),
        },
        start={
            "systemd": int(unit["TimeoutStartSec"]),
            "kubernetes": probe["failureThreshold"] * probe["periodSeconds"],
            "progress": pods["progressDeadlineSeconds"],
            "compose": int(service["healthcheck"]["start_period"].removesuffix("s")),
        },
        watchdog=int(unit["WatchdogSec"]),
        pre_stop=int(container["lifecycle"]["preStop"]["exec"]["command"][1]),
    )


@settings(max_examples=25)
@given(drains, drains, stalls, starts)
def test_a_drain_moves_the_end_in_all_of_them_and_nothing_else(
    one: float, other: float, stall_s: float, usual_s: float | None
) -> None:
    before, after = written(Timing(one, stall_s, usual_s)), written(Timing(other, stall_s, usual_s))
    change = math.ceil(other) - math.ceil(one)
    assert {kind: after.stop[kind] - before.stop[kind] for kind in KINDS} == dict.fromkeys(
        KINDS, change
    )
    assert dataclasses.replace(after, stop={}) == dataclasses.replace(before, stop={})


@settings(max_examples=25)
@given(drains, stalls, starts)
def test_every_end_has_room_for_its_drain(
    drain_s: float, stall_s: float, usual_s: float | None
) -> None:
    found = written(Timing(drain_s, stall_s, usual_s))
    assert all(stop_s > drain_s for stop_s in found.stop.values())
    in_the_pod_s = found.stop["kubernetes"] - found.pre_stop
    assert in_the_pod_s == found.stop["systemd"], "the wait before the signal is not the drain's"
    assert found.pre_stop == PRE_STOP_S


@settings(max_examples=25)
@given(stalls, starts)
def test_a_start_that_took_long_gets_long_in_all_of_them(
    stall_s: float, usual_s: float | None
) -> None:
    found = written(Timing(5, stall_s, usual_s))
    assert min(found.start.values()) >= max(600, 5 * (usual_s or 0))
    assert max(found.start.values()) - min(found.start.values()) <= 60 + 9, "rounded to a probe"
    assert found.watchdog > stall_s, "the supervisor judges first"
