"""What a larger step costs beside one row, however busy the machine is."""

from __future__ import annotations

import pytest

from engine.sched.step_costs import StepCosts, usual_cost


def test_rows_of_one_tile_cost_little_and_the_next_tile_more() -> None:
    costs = StepCosts(64)
    assert costs.of(8) < 1.1 * costs.of(1)
    assert costs.of(9) > 1.2 * costs.of(8)
    assert costs.of(64) > 4 * costs.of(8)


def test_sizes_are_learnt_and_stand_for_their_neighbours() -> None:
    costs = StepCosts(64)
    for _ in range(300):
        costs.note(1, 1.0)
        costs.note(8, 3.0)
        costs.note(12, 3.0)
    assert costs.of(8) / costs.of(1) == pytest.approx(3.0, rel=0.05)
    assert costs.of(12) == pytest.approx(costs.of(8), rel=0.05)
    beside = usual_cost(40) / usual_cost(12)
    assert costs.of(40) / costs.of(12) == pytest.approx(beside)


def test_a_busy_machine_blames_no_size() -> None:
    costs = StepCosts(64)
    for step in range(2000):
        slow = 3.0 if step // 200 % 2 else 1.0  # other programs come and go
        size = 8 if slow > 1 else 1
        for rows in (1, 1, 1, size):
            costs.note(rows, slow * usual_cost(rows))
    assert costs.of(8) / costs.of(1) == pytest.approx(usual_cost(8) / usual_cost(1), rel=0.2)


def test_one_slow_step_says_little_and_is_forgotten() -> None:
    costs = StepCosts(64)
    costs.note(1, 1.0)
    costs.note(6, 1000.0)
    assert costs.of(6) < 1.3 * costs.of(1)
    for _ in range(20):
        costs.note(6, 1000.0)
    for _ in range(2000):
        costs.note(1, 1.0)
    assert costs.of(6) == pytest.approx(costs.of(1) * usual_cost(6) / usual_cost(1), rel=0.01)


def test_steps_beyond_the_largest_are_left_out() -> None:
    costs = StepCosts(4)
    costs.note(400, 1.0)
    assert costs.of(4) == pytest.approx(usual_cost(4))
