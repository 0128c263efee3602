"""A GraphDevice on a CPU that records operations, repeats them on the same tensors, and counts.

Like a real graph a recorded one keeps addresses and numbers: what the host computes while it is
recorded stays as it was. Operations of torch and Triton's interpreted kernels are both seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.kernels.step_batch import IntArray
from engine.kernels.triton.runtime import launch
from engine.kernels.triton.step_inputs import Packed

_ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "lift_fresh", "detach")


@dataclass
class RecordedGraph:
    """Operations in order; `device` counts the replays."""

    device: RecordingDevice
    operations: list[Callable[[], None]] = field(default_factory=list)

    def replay(self) -> None:
        self.device.replays += 1
        with self.device.unseen():
            for operation in self.operations:
                operation()


@dataclass
class RecordedDownload:
    """Tokens as they were when their copy was started; nobody sees them before `wait`."""

    device: RecordingDevice
    tokens: Tensor

    def wait(self) -> IntArray:
        self.device.traffic.append("wait")
        found: IntArray = self.tokens.numpy()
        return found


class RecordingDevice:
    """Hand `launch` to TritonKernels, and run steps inside of `watched`.

    A recorded graph takes `scale` times the memory of the tensors that it makes.
    """

    def __init__(self, scale: int = 1) -> None:
        self._scale = scale
        self.kernels: list[str] = []  # every launch outside of replays, in order
        self.num_bytes = 0  # that those launches read and wrote
        self.replays = 0
        self.traffic: list[str] = []  # upload, download, and wait, in the order of the calls
        self.pool_bytes = 0
        self.graph_sizes: list[int] = []  # operations in each recorded graph
        self._recording: RecordedGraph | None = None
        self._is_unseen = False

    def launch(self, kernel: Any, grid: Sequence[int], *args: Any, **constants: Any) -> None:
        """Interpret the kernel now, and again in each replay."""
        if not all(grid):
            return
        if not self._is_unseen:
            self.kernels.append(kernel.fn.__name__)
        if self._recording is not None:
            self._recording.operations.append(lambda: launch(kernel, grid, *args, **constants))
        with self._counted_loads(), self.unseen():
            launch(kernel, grid, *args, **constants)

    def release_unused(self) -> None:
        """The memory of graphs is never taken back here."""

    def record(self, run: Callable[[], Tensor]) -> RecordedGraph:
        graph = self._recording = RecordedGraph(self)
        try:
            with self.watched():
                run()
        finally:
            self._recording = None
        self.graph_sizes.append(len(graph.operations))
        return graph

    def used_bytes(self) -> int:
        return self.pool_bytes

    def synchronize(self) -> None:
        """Nothing runs beside the host."""

    def upload(self, numbers: Packed, buffer: Tensor) -> None:
        self.traffic.append("upload")
        with self.unseen():
            buffer[: len(numbers)].copy_(torch.from_numpy(numbers))

    def send(self, tensor: Tensor) -> Tensor:
        with self.unseen():
            return tensor.clone()

    def download(self, tokens: Tensor) -> RecordedDownload:
        self.traffic.append("download")
        with self.unseen():
            return RecordedDownload(self, tokens.clone())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See torch's operations too."""
        with _Operations(self):
            yield

    @contextmanager
    def unseen(self) -> Iterator[None]:
        before, self._is_unseen = self._is_unseen, True
        try:
            yield
        finally:
            self._is_unseen = before

    def saw(self, operation: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operation of torch that starts work."""
        if self._is_unseen:
            return
        self.kernels.append(str(operation))
        inputs, outputs = _tensors((args, kwargs)), _tensors(result)
        places = {tensor.data_ptr(): tensor.nbytes for tensor in (*inputs, *outputs)}
        self.num_bytes += sum(places.values())
        if self._recording is None:
            return
        self.pool_bytes += self._scale * sum(tensor.nbytes for tensor in outputs)

        def repeat() -> None:
            for kept, new in zip(outputs, _tensors(operation(*args, **kwargs)), strict=True):
                if new is not kept:
                    kept.copy_(new)

        self._recording.operations.append(repeat)

    @contextmanager
    def _counted_loads(self) -> Iterator[None]:
        from triton.runtime.interpreter import InterpreterBuilder

        originals = {
            name: getattr(InterpreterBuilder, name)
            for name in ("create_masked_load", "create_masked_store")
        }

        def counted(name: str, place_of_mask: int) -> Callable[..., Any]:
            def method(builder: Any, pointers: Any, *rest: Any) -> Any:
                size = pointers.get_element_ty().primitive_bitwidth // 8
                self.num_bytes += int(rest[place_of_mask].data.sum()) * max(size, 1)
                return originals[name](builder, pointers, *rest)

            return method

        InterpreterBuilder.create_masked_load = counted("create_masked_load", 0)
        InterpreterBuilder.create_masked_store = counted("create_masked_store", 1)
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(InterpreterBuilder, name, original)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, device: RecordingDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _starts_work(func):
            self._device.saw(func, args, kwargs or {}, result)
        return result


def _starts_work(operation: Any) -> bool:
    """False for views and for what only takes memory."""
    name = operation._schema.name.partition("::")[2]
    if name in (*_ALLOCATIONS, "_unsafe_view"):
        return False
    aliases = [entry.alias_info for entry in operation._schema.returns]
    return not any(alias is not None and not alias.is_write for alias in aliases)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in _tensors(each)]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in _tensors(each)]
    return []
