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

from engine.kernels.step_batch import StepBatch

_PAGE = 4096
_WORD = 8
# Words of the memory: what stands before the notes, and then the words of each note.
_BEGUN, _ENDED, _DEVICE_BYTES, _HEAD = 0, 1, 2, 8
_FINGERPRINT, _SECONDS, _WAITED, _NOTE = 1, 2, 3, 4
_NUM_NOTES = (_PAGE // _WORD - _HEAD) // _NOTE  # more than steps can be under way
_COUNTED = 1 << 32  # a fingerprint's upper half counts the batches in it


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
        return self.fingerprint // _COUNTED


class Progress:
    """Written by one rank, read by others when they miss an answer, compare or are asked."""

    NUM_BYTES = _PAGE

    def __init__(self, memory: memoryview | bytearray) -> None:
        self._words = memoryview(memory).cast("Q")
        self._start_s = 0.0

    def begin_step(self) -> None:
        words = self._words
        number = words[_BEGUN] + 1
        place = _place_of(number)
        words[place + _FINGERPRINT] = words[place + _SECONDS] = words[place + _WAITED] = 0
        words[place] = number
        words[_BEGUN] = number
        self._start_s = time.monotonic()

    def note_batch(self, batch: StepBatch) -> None:
        """Before it is computed: what, so that all ranks can be seen to compute the same."""
        place = _place_of(self._words[_BEGUN]) + _FINGERPRINT
        count, found = divmod(self._words[place], _COUNTED)
        for array in (batch.token_ids, batch.positions, batch.slot_mapping, batch.num_computed):
            found = zlib.crc32(array.tobytes(), found)
        self._words[place] = (count + 1) * _COUNTED + found

    def end_step(self, waited_s: float) -> None:
        place = _place_of(self._words[_BEGUN])
        self._words[place + _SECONDS] = int((time.monotonic() - self._start_s) * 1e9)
        self._words[place + _WAITED] = int(waited_s * 1e9)
        self._words[_ENDED] += 1

    @property
    def steps(self) -> tuple[int, int]:
        """How many steps the rank has begun, and how many ended."""
        return self._words[_BEGUN], self._words[_ENDED]

    @property
    def device_bytes(self) -> int:
        """What it holds of a GPU's memory, as it last said; 0 on a CPU."""
        return self._words[_DEVICE_BYTES]

    @device_bytes.setter
    def device_bytes(self, num_bytes: int) -> None:
        self._words[_DEVICE_BYTES] = num_bytes

    def note(self, number: int) -> StepNote | None:
        """Of that step, counted from 1; None before it begins and long after."""
        place = _place_of(number)
        found, fingerprint, nanoseconds, waited = self._words[place : place + _NOTE]
        if found != number:
            return None
        return StepNote(number, fingerprint, nanoseconds / 1e9, waited / 1e9)

    def latest(self, most: int) -> list[StepNote]:
        """Of up to so many steps that have ended, the newest last."""
        ended = self._words[_ENDED]
        numbers = range(max(1, ended - min(most, _NUM_NOTES - 1) + 1), ended + 1)
        return [note for note in map(self.note, numbers) if note is not None]


def _place_of(number: int) -> int:
    """Where the note of that step begins."""
    return _HEAD + number % _NUM_NOTES * _NOTE


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
    if len(counts) == 1:
        return []
    most = max(counts.values())
    right = (
        reference.fingerprint
        if counts[reference.fingerprint] == most
        else counts.most_common(1)[0][0]
    )
    return [rank for rank, fingerprint in known.items() if fingerprint != right]
