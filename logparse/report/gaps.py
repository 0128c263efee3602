"""Where a start spent its time: stretches without a line, named by what was being done.

A name comes from the line that ended the stretch, since servers report when something is over, and
else from the line before it.
"""

from __future__ import annotations

from logparse.reading.line import seconds_between, stamp_seconds
from logparse.records import Facts, Measured, TimePart
from logparse.redact import safe_text, shortened

SHORTEST_S = 5.0
_MAX_PARTS = 32
_MAX_UNNAMED = 64
_NAMED_AFTER = 400  # characters that are made safe: more than a name, and a secret in it

_WEIGHTS = "weights from disk"
_DOWNLOAD = "download of the weights"
_COMPILING = "compiling"
_TRIAL = "trial run to measure memory"
_GRAPHS = "CUDA graphs"

# (what the line that ends the stretch begins with, name)
_ENDED_BY = (
    ("Loading weights took", _WEIGHTS),
    ("Model loading took", _WEIGHTS),
    ("Loading model weights took", _WEIGHTS),
    ("Load weight end", _WEIGHTS),
    ("Time spent downloading", _DOWNLOAD),
    ("Dynamo bytecode", _COMPILING),
    ("Compiling a graph", _COMPILING),
    ("Cache the graph", _COMPILING),
    ("torch.compile", _COMPILING),
    ("saved AOT", _COMPILING),
    ("Warming up done", _COMPILING),
    ("Directly load", "reading the compile cache"),
    ("Initial profiling/warmup", "first run after compiling"),
    ("Available KV cache memory", _TRIAL),
    ("Memory profiling takes", _TRIAL),
    ("model weights take", _TRIAL),
    ("GPU KV cache size", _TRIAL),
    ("# GPU blocks", _TRIAL),
    ("# cuda blocks", _TRIAL),
    ("Graph capturing finished", _GRAPHS),
    ("Capture cuda graph end", _GRAPHS),
    ("CUDA graph pool memory", _GRAPHS),
    ("JIT kernel warmup finished", "first use of kernels"),
    ("init engine", "warm-up"),
    ("Initializing a", "start of the engine process (imports)"),
    ("Resolved architecture", "reading the model's configuration"),
    ("This model supports", "reading the model's configuration"),
    ("Using max model len", "reading the model's configuration"),
    ("Starting to load model", "setting up the devices"),
    ("Loading model from scratch", "setting up the devices"),
    ("rank ", "setting up the devices"),
    ("vLLM is using nccl", "connecting the GPUs"),
    ("Custom allreduce", "connecting the GPUs"),
    ("Supported", "setting up the API"),
    ("Starting vLLM", "setting up the API"),
    ("non-default args", "imports"),
    ("args: Namespace", "imports"),
)
# (what the line before the stretch begins with, name)
_BEGUN_BY = (
    ("vLLM is using nccl", "connecting the GPUs"),
    ("Starting to load model", _WEIGHTS),
    ("Loading model from scratch", _WEIGHTS),
    ("Load weight begin", _WEIGHTS),
    ("Using cache directory", _COMPILING),
    ("Capture cuda graph begin", _GRAPHS),
    ("Capturing", _GRAPHS),
    ("Encoder cache will be initialized", _TRIAL),
    ("Available KV cache memory", "warm-up"),
    ("Maximum concurrency", "warm-up"),
    ("Automatically detected platform", "imports"),
)


_Starts = tuple[tuple[str, str], ...]
_HEAD = 4  # letters; no start in the tables is shorter


def _by_head(table: _Starts) -> dict[str, _Starts]:
    heads: dict[str, _Starts] = {}
    for entry in table:
        heads[entry[0][:_HEAD]] = (*heads.get(entry[0][:_HEAD], ()), entry)
    return heads


_ENDED_BY_HEAD = _by_head(_ENDED_BY)
_BEGUN_BY_HEAD = _by_head(_BEGUN_BY)


class GapTracker:
    """Fed with the log's clock when it moves by more than a second, until the server is ready."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[float, int]] = {}  # seconds, the last line
        # What was noted and not yet named: of most starts in a log nobody asks.
        self._unnamed: list[tuple[str, str, str | None, str, int]] = []

    def note(self, last: str, stamp: str, before: str | None, after: str, line_number: int) -> None:
        """The clock moved from `last` to `stamp`; `before` and `after` are the messages there."""
        self._unnamed.append((last, stamp, before, after, line_number))
        if len(self._unnamed) > _MAX_UNNAMED:
            self._name_all()

    def _name_all(self) -> None:
        for noted in self._unnamed:
            self._add(*noted)
        self._unnamed.clear()

    def _add(self, last: str, stamp: str, before: str | None, after: str, line_number: int) -> None:
        start, end = stamp_seconds(last), stamp_seconds(stamp)
        if start is None or end is None:
            return
        seconds = seconds_between(start, end)
        if not 1 < seconds < 86400:  # one second is the clock's own step
            return
        name = _name(before, after)
        known = self._parts.get(name)
        if known is not None:
            self._parts[name] = (seconds + known[0], line_number)
        elif len(self._parts) < _MAX_PARTS:
            self._parts[name] = (seconds, line_number)

    def parts(self, facts: Facts) -> tuple[TimePart, ...]:
        """Those that took long, in order; the server's own figures where it printed some."""
        self._name_all()
        measured = {
            _WEIGHTS: _weights_s(facts),
            _DOWNLOAD: facts.download_s,
            _COMPILING: _most(facts.compile_s),
            _GRAPHS: _most(facts.graph_capture_s),
        }
        found = []
        for name, (total, line_number) in self._parts.items():
            known = measured.get(name)
            seconds = total if known is None else known
            if seconds > SHORTEST_S:
                title = name + _rate(name, seconds, facts)
                found.append(TimePart(title, seconds, line_number))
        return tuple(sorted(found, key=lambda part: part.line_number))


def _name(before: str | None, after: str) -> str:
    for start, name in _ENDED_BY_HEAD.get(after[:_HEAD], ()):
        if after.startswith(start):
            return name
    if before is not None:
        for start, name in _BEGUN_BY_HEAD.get(before[:_HEAD], ()):
            if before.startswith(start):
                return name
    if not before:
        return "before the first line"
    return f"after: {shortened(safe_text(before, _NAMED_AFTER), 60)}"


def _weights_s(facts: Facts) -> float | None:
    """Reading them. What the server calls loading holds the download too, if there was one."""
    reading, loading = _most(facts.load_weights_s), _most(facts.model_load_s)
    if facts.download_s is None:
        return loading or reading
    return reading or (max(loading - facts.download_s, 0.0) if loading is not None else None)


def _most(value: Measured | None) -> float | None:
    return max(value) if isinstance(value, tuple) else value


def _rate(name: str, seconds: float, facts: Facts) -> str:
    """How fast the weights came, by what one rank holds or what lies on the disk."""
    if name not in (_WEIGHTS, _DOWNLOAD):
        return ""
    size = facts.checkpoint_gib or _most(facts.weights_gib)
    return f": {size * 1.073741824 / seconds:.1f} GB/s" if size else ""
