"""How far each rank is and what it noted of its last steps, for EngineCore to read.

From it EngineCore learns who stands still, who computes another step than the others, and how long
each rank's part takes. The notes lie in memory that the processes share, or in a rank's own.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.kernels.step_batch import StepBatch

_PAGE = 4096
_WORD = 8
_HEAD = 8  # words before the notes: steps begun, steps ended, bytes of device memory
_NOTE = 4  # words of a note: number, fingerprint, nanoseconds, of these waited
_NUM_NOTES = (_PAGE // _WORD - _HEAD) // _NOTE  # more than steps can be under way
_COUNT_SHIFT = 32  # a fingerprint's upper half counts the batches in it


@dataclass(frozen=True, slots=True)
class StepNote:
    """One step of one rank; `seconds` is 0 until it has ended.

    `fingerprint` is of the tokens, positions and slots that the rank was about to compute, 0 until
    it knows them. `waited_s` of the seconds it waited for other ranks.
    """

    number: int
    fingerprint: int
    seconds: float
    waited_s: float

    @property
    def num_batches(self) -> int:
        """Of how many batches the fingerprint is: a step has one for each kind of request."""
        return self.fingerprint >> _COUNT_SHIFT


class Progress:
    """Written by one rank, read by others when they miss an answer, compare or are asked."""

    NUM_BYTES = _PAGE

    def __init__(self, memory: memoryview | bytearray) -> None:
        words: NDArray[np.uint64] = np.frombuffer(memory, dtype=np.uint64)
        self._head = words[:_HEAD]
        self._notes = words[_HEAD : _HEAD + _NUM_NOTES * _NOTE].reshape(_NUM_NOTES, _NOTE)
        self._start_s = 0.0

    def begin_step(self) -> None:
        number = int(self._head[0]) + 1
        self._notes[number % _NUM_NOTES] = (number, 0, 0, 0)
        self._head[0] = number
        self._start_s = time.monotonic()

    def note_batch(self, batch: StepBatch) -> None:
        """Before it is computed: what, so that all ranks can be seen to compute the same."""
        row = self._notes[int(self._head[0]) % _NUM_NOTES]
        before = int(row[1])
        found = before & 0xFFFFFFFF
        for array in (batch.token_ids, batch.positions, batch.slot_mapping, batch.num_computed):
            found = zlib.crc32(np.ascontiguousarray(array).data, found)
        row[1] = ((before >> _COUNT_SHIFT) + 1 << _COUNT_SHIFT) | found

    def end_step(self, waited_s: float) -> None:
        row = self._notes[int(self._head[0]) % _NUM_NOTES]
        row[2] = int((time.monotonic() - self._start_s) * 1e9)
        row[3] = int(waited_s * 1e9)
        self._head[1] += np.uint64(1)

    @property
    def steps(self) -> tuple[int, int]:
        """How many steps the rank has begun, and how many ended."""
        return int(self._head[0]), int(self._head[1])

    @property
    def device_bytes(self) -> int:
        """What it holds of a GPU's memory, as it last said; 0 on a CPU."""
        return int(self._head[2])

    @device_bytes.setter
    def device_bytes(self, num_bytes: int) -> None:
        self._head[2] = num_bytes

    def note(self, number: int) -> StepNote | None:
        """Of that step, counted from 1; None before it begins and long after."""
        found, fingerprint, nanoseconds, waited = self._notes[number % _NUM_NOTES].tolist()
        if found != number:
            return None
        return StepNote(number, fingerprint, nanoseconds / 1e9, waited / 1e9)

    def latest(self, most: int) -> list[StepNote]:
        """Of up to so many steps that have ended, the newest last."""
        ended = self.steps[1]
        numbers = range(max(1, ended - min(most, _NUM_NOTES - 1) + 1), ended + 1)
        return [note for note in map(self.note, numbers) if note is not None]


def stray_ranks(notes: Mapping[int, StepNote | None], output_rank: int) -> list[int]:
    """Ranks whose step is another one than most ranks'; of as many, the output rank is right.

    Only those are compared that have come as far as the output rank.
    """
    reference = notes.get(output_rank)
    if reference is None or not reference.num_batches:
        return []
    known = {
        rank: note.fingerprint
        for rank, note in notes.items()
        if note is not None and note.num_batches == reference.num_batches
    }
    counts = Counter(known.values())
    most = max(counts.values())
    right = (
        reference.fingerprint
        if counts[reference.fingerprint] == most
        else counts.most_common(1)[0][0]
    )
    return [rank for rank, fingerprint in known.items() if fingerprint != right]
