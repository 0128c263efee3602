"""How `stoker plan A + B` prints: the verdict, a line for each server, the commands; and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from app.launch.engines import LLAMA_CPP
from app.output import printable
from app.planning.joint_plan import JointMember, JointPlan
from app.planning.plan_answers import answer
from app.views.plan import plan_document
from engine.machine.sizes import GIB

_BAR_WIDTH = 60
_MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def joint_text(joint: JointPlan) -> str:
    lines = [*_verdict(joint), "", *_table(joint)]
    if joint.shortfall is None:
        lines += ["", *_bar(joint), "", *_commands(joint)]
    return printable("\n".join(lines))


def _verdict(joint: JointPlan) -> Iterator[str]:
    if joint.shortfall is not None:
        yield f"They do not fit together on {_device(joint)}. {joint.shortfall}"
        yield f"  what would, each alone: {'; or '.join(joint.advice)}"
        return
    worst = "" if joint.fits_at_worst else " At the high end of the estimates they would not."
    yield f"They fit together on {_device(joint)}.{worst}"


def _device(joint: JointPlan) -> str:
    gpu = joint.members[0].plan.request.gpu
    size = f"{joint.total_bytes / GIB:.2f} GiB"
    return f"{size} of free RAM" if gpu is None else f"{gpu.name} ({size})"


def _table(joint: JointPlan) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        ("", "model", "share", "GiB", "weights", "KV cache", "tokens", "at once")
    ]
    rows += [_row(number, member, joint) for number, member in enumerate(joint.members)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        left = "  ".join(cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False))
        right = "  ".join(
            cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)
        )
        yield f"{left}  {right}"


def _row(number: int, member: JointMember, joint: JointPlan) -> tuple[str, ...]:
    plan = member.plan
    fits = joint.shortfall is None
    length = f"{plan.capacity.max_concurrency:.1f} of {plan.max_model_len:,}"
    return (
        _mark(number),
        plan.shape.name,
        _share(member) if fits else "-",
        f"{member.held_bytes / GIB:.2f}",
        f"{plan.tightest.weights_bytes / GIB:.2f}",
        f"{plan.tightest.available_bytes / GIB:.2f}" if fits else "-",
        f"{plan.capacity.num_tokens:,}" if fits else "-",
        length if fits else f"- of {plan.max_model_len:,}",
    )


def _mark(number: int) -> str:
    return _MARKS[number % len(_MARKS)]


def _share(member: JointMember) -> str:
    request = member.plan.request
    has_share = request.gpu is not None and request.engine != LLAMA_CPP
    return f"{request.gpu_memory_utilization:g}" if has_share else "-"


def _bar(joint: JointPlan) -> Iterator[str]:
    bar, end = "", 0
    for number, member in enumerate(joint.members):
        end += member.held_bytes
        bar += _mark(number) * (round(end / joint.total_bytes * _BAR_WIDTH) - len(bar))
    yield f"[{bar[:_BAR_WIDTH]:.<{_BAR_WIDTH}}] {joint.total_bytes / GIB:.2f} GiB"
    where = "free" if joint.members[0].plan.request.gpu is None else "free, and for the driver"
    yield f"  . {where}: {joint.left_bytes / GIB:.2f} GiB"


def _commands(joint: JointPlan) -> Iterator[str]:
    yield "start them in this order, each when the one before is ready (--detach returns then):"
    for member in joint.members:
        found = member.command
        assert found is not None
        note = f"  ({found.note})" if found.note and found.command else ""
        yield f"  {found.command or f'no command: {found.note}'}{note}"


def joint_document(joint: JointPlan, lengths: Sequence[int]) -> dict[str, Any]:
    """The payload of `--json`; sizes are bytes, servers stand in the order of their starts."""
    gpu = joint.members[0].plan.request.gpu
    return {
        "gpu": None if gpu is None else gpu.name,
        "memory_bytes": joint.total_bytes,
        "fits": joint.shortfall is None,
        "fits_at_worst": joint.fits_at_worst,
        "shortfall": joint.shortfall,
        "advice": list(joint.advice),
        "left_bytes": joint.left_bytes,
        "servers": [_server_document(member, lengths) for member in joint.members],
    }


def _server_document(member: JointMember, lengths: Sequence[int]) -> dict[str, Any]:
    plan, found = member.plan, member.command
    request = plan.request
    has_share = request.gpu is not None and request.engine != LLAMA_CPP
    answers = answer(plan, member.start.model, tuple(lengths))
    return {
        "port": member.port,
        "held_bytes": member.held_bytes,
        "gpu_memory_utilization": request.gpu_memory_utilization if has_share else None,
        "kv_cache_memory_bytes": request.kv_memory_bytes,
        "command": None if found is None else found.command,
        "note": None if found is None else found.note,
        "plan": plan_document(plan, answers, ()),
    }


def joint_rows(joint: JointPlan) -> Iterator[tuple[object, ...]]:
    """For `--plain`: a server on each line."""
    for member in joint.members:
        plan = member.plan
        yield (
            plan.shape.name,
            member.port,
            _share(member),
            member.held_bytes,
            plan.tightest.weights_bytes,
            plan.tightest.available_bytes,
            plan.capacity.num_tokens,
            (member.command.command if member.command else None) or "-",
        )
