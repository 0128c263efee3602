"""StepCosts: what a step of decodes costs by its number of rows, beside one of another size."""

from __future__ import annotations

_TILE_ROWS = 8  # that the kernels' products take together
_PACE = 0.08
_MOST_JUMP = 2.0  # of one step: something else had the cores
_KEPT_STEPS = 400


class StepCosts:
    """Begins with what a CPU usually needs, and learns from the steps that ran.

    What is learnt is each size's share of a pace that all sizes have in common: where other
    programs take the cores for a while, every size gets slower, and none is blamed for it.
    """

    def __init__(self, most_rows: int) -> None:
        """For steps of up to `most_rows` rows; larger ones are not looked at."""
        self._usual = [usual_cost(rows) for rows in range(most_rows + 1)]
        self._factors = [1.0] * (most_rows + 1)  # measured beside usual, of sizes that were seen
        self._nearest = list(range(most_rows + 1))  # the seen size that stands for each
        self._seen_at: dict[int, int] = {}
        self._pace = 0.0  # seconds of a step whose usual cost is 1
        self._num_steps = 0

    def of(self, num_rows: int) -> float:
        """In any unit; a size that was not seen is as far from its usual cost as the nearest."""
        return self._usual[num_rows] * self._factors[self._nearest[num_rows]]

    def note(self, num_rows: int, seconds: float) -> None:
        """A step with nothing but decodes and drafts has run."""
        if num_rows >= len(self._usual):
            return
        measured = seconds / self.of(num_rows)
        self._pace = self._pace or measured
        off = min(max(measured / self._pace, 1 / _MOST_JUMP), _MOST_JUMP)
        self._pace *= 1 + _PACE * (off - 1)
        self._num_steps += 1
        if self._num_steps % _KEPT_STEPS == 0:
            self._forget()
        is_new = num_rows not in self._seen_at
        self._seen_at[num_rows] = self._num_steps
        if is_new:
            self._factors[num_rows] = self._factors[self._nearest[num_rows]]
            self._look_around()
        self._factors[num_rows] *= 1 + _PACE * (off - 1)

    def _forget(self) -> None:
        """Sizes that did not come again: what slow steps said must not stand for ever, since nobody
        would try that size again.
        """
        oldest = self._num_steps - _KEPT_STEPS
        self._seen_at = {rows: at for rows, at in self._seen_at.items() if at > oldest}
        self._look_around()

    def _look_around(self) -> None:
        seen = sorted(self._seen_at)
        for rows in range(len(self._nearest)):
            self._nearest[rows] = min(seen, key=lambda size: (abs(size - rows), size))


def usual_cost(num_rows: int) -> float:
    """Of a small model on a CPU, its step of one row being 8: memory binds while the rows fit into
    one tile of the products, arithmetic from the third tile on.
    """
    tiles = -(-num_rows // _TILE_ROWS)
    beyond_two = max(0, num_rows - 2 * _TILE_ROWS)
    return 7.9 + 0.06 * num_rows + 2.9 * max(0, tiles - 1) + 0.3 * beyond_two
