"""Images in prompts: never cut by a chunk, part of the hash of each block that they touch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import ImageInput
from engine.sched.scheduler import Scheduler
from engine.sched.scheduler_output import SchedulerOutput
from tests.sched.workload import Run, check_integrity, make_request, make_scheduler, picture

SIZE = 6  # tokens of an image
IMAGE = 500


def prompt_of(parts: list[int], names: list[str]) -> tuple[list[int], tuple[ImageInput, ...]]:
    """Texts of `parts` tokens with an image between any two of them."""
    tokens: list[int] = []
    images: list[ImageInput] = []
    for number, length in enumerate(parts):
        tokens += range(len(tokens), len(tokens) + length)
        if number + 1 < len(parts):
            images.append(picture(len(tokens), SIZE, names[number % len(names)]))
            tokens += [IMAGE] * SIZE
    return tokens, tuple(images)


def chunks(scheduler: Scheduler, planned: SchedulerOutput) -> list[tuple[str, int, int]]:
    """Request, first token and end of what each computes in the step."""
    found = []
    for request_id, count in planned.num_scheduled_tokens.items():
        end = scheduler.requests[request_id].num_computed_tokens
        found.append((request_id, end - count, end))
    return found


@settings(max_examples=150, deadline=None)
@given(
    work=st.lists(
        st.tuples(
            st.lists(st.integers(1, 9), min_size=1, max_size=4),
            st.lists(st.sampled_from("abc"), min_size=1, max_size=2),
            st.integers(1, 6),  # output tokens
            st.integers(0, 5),  # arrives before this step
        ),
        min_size=1,
        max_size=8,
    ),
    limits=st.fixed_dictionaries(
        {
            "tokens": st.integers(SIZE, 24),
            "seqs": st.integers(1, 4),
            "threshold": st.sampled_from([0, 2, 5, 8]),
            "caching": st.booleans(),
            "num_blocks": st.sampled_from([20, 24, 200]),
            "reserve": st.booleans(),
            "step_images": st.sampled_from([None, 1, 2]),
        }
    ),
)
def test_no_chunk_cuts_an_image(
    work: list[tuple[list[int], list[str], int, int]], limits: dict[str, Any]
) -> None:
    scheduler = make_scheduler(block_size=4, max_model_len=70, **limits)
    plan = Scheduler.schedule
    run, step = Run(scheduler), 0
    spans: dict[str, tuple[ImageInput, ...]] = {}
    seen: list[tuple[str, int, int]] = []

    def schedule() -> SchedulerOutput:
        planned = plan(scheduler)
        found = chunks(scheduler, planned)
        seen.extend(found)
        encoded = {
            image.digest
            for request_id, first, end in found
            for image in spans[request_id]
            if first < image.end and image.offset < end
        }
        assert len(encoded) <= (limits["step_images"] or len(encoded))
        for new in planned.new_requests:
            computed = scheduler.requests[new.req_id].num_computed_tokens
            first = computed - planned.num_scheduled_tokens[new.req_id]
            wanted = [image for image in spans[new.req_id] if image.end > first]
            assert list(new.images) == wanted
        return planned

    scheduler.schedule = schedule  # type: ignore[method-assign]
    while step <= 5 or scheduler.has_unfinished_requests():
        for number, (parts, names, output, arrival) in enumerate(work):
            if arrival == step:
                tokens, images = prompt_of(parts, names)
                spans[str(number)] = images
                scheduler.add_request(
                    make_request(scheduler, str(number), tokens, output, images=images)
                )
        run.step()
        check_integrity(scheduler)
        step += 1
        assert step < 3000, "no progress"
    assert run.reasons.keys() == spans.keys()
    for request_id, first, end in seen:
        for image in spans[request_id]:
            assert not image.offset < end < image.end, (first, end, image)


def test_a_chunk_ends_before_an_image_that_it_has_no_room_for() -> None:
    scheduler = make_scheduler(tokens=8)
    tokens, images = prompt_of([5, 7, 3], ["a"])
    request = make_request(scheduler, "r", tokens, 2, images=images)
    scheduler.add_request(request)
    run = Run(scheduler)
    ends = []
    while request.num_output_tokens == 0:
        run.step()
        ends.append(request.num_computed_tokens)
    # 5 of text and no room for the image; it and 2 of text; 5 and no room; it and 2; the last.
    assert ends == [5, 13, 18, 26, 27]


def test_an_image_may_exceed_the_share_of_a_long_prompt() -> None:
    scheduler = make_scheduler(threshold=4)
    tokens, images = prompt_of([2, 3], ["a"])
    request = make_request(scheduler, "r", tokens, 2, images=images)
    scheduler.add_request(request)
    run = Run(scheduler)
    ends = []
    while request.num_output_tokens == 0:
        run.step()
        ends.append(request.num_computed_tokens)
    assert ends == [2, 8, 11]


def test_a_step_takes_so_many_images_and_equal_ones_once() -> None:
    scheduler = make_scheduler(step_images=1)
    prompts = {"ab": [1, 2, 3], "ba": [2, 2, 2], "text": [4]}
    for name, parts in prompts.items():
        tokens, images = prompt_of(parts, list(name))
        scheduler.add_request(make_request(scheduler, name, tokens, 9, images=images))
    run = Run(scheduler)
    steps = [dict(run.step()[0].num_scheduled_tokens) for _ in range(4)]
    # a and its like; the rest with b, which both want now; text is held up by neither.
    assert steps[0] == {"ab": 1 + SIZE + 2, "ba": 2, "text": 4}
    assert steps[1] == {"ab": SIZE + 3, "ba": SIZE + 2, "text": 1}
    assert steps[2] == {"ab": 1, "ba": SIZE + 2, "text": 1}
    assert steps[3] == {"ab": 1, "ba": 1, "text": 1}


def test_who_waits_for_an_image_is_passed_by_others() -> None:
    """Of its prompt all up to the image is in the prefix cache."""
    scheduler = make_scheduler(step_images=1, caching=True, block_size=4)
    run = Run(scheduler)
    for name, pictures in (("first", "a"), ("again", "b"), ("image", "c"), ("text", "")):
        tokens, images = prompt_of([4, 3], [pictures]) if pictures else ([7, 8, 9], ())
        scheduler.add_request(make_request(scheduler, name, tokens, 2, images=images))
        if name == "first":
            run.finish()
    assert run.step()[0].num_scheduled_tokens.keys() == {"again", "text"}
    assert run.step()[0].num_scheduled_tokens.keys() == {"again", "text", "image"}


def cached_tokens(first: list[str], second: list[str], shift: int = 0) -> int:
    """What a prompt with the images of `second` finds of the same one with those of `first`."""
    scheduler = make_scheduler(caching=True, block_size=4)
    run = Run(scheduler)
    for name, names in (("one", first), ("two", second)):
        tokens, images = prompt_of([5, 7, 9], names)
        if name == "two" and shift:
            moved = [picture(image.offset + shift, SIZE, "a") for image in images]
            images = tuple(moved)
        request = make_request(scheduler, name, tokens, 3, images=images)
        scheduler.add_request(request)
        run.finish()
    found = request.num_cached_tokens
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("first", "second", "shift", "found"),
    [
        (["a"], ["a"], 0, 32),  # of 33 tokens all full blocks
        (["a", "b"], ["a", "b"], 0, 32),
        (["a", "b"], ["c", "b"], 0, 4),  # the block before the first image's first token
        (["a", "b"], ["a", "c"], 0, 16),  # up to the second image, which begins at 18
        (["a", "b"], ["b", "a"], 0, 4),
        (["a"], ["a"], 1, 4),  # the same image at another place
    ],
)
def test_only_the_same_images_at_the_same_places_are_found(
    first: list[str], second: list[str], shift: int, found: int
) -> None:
    assert cached_tokens(first, second, shift) == found


def test_a_hit_may_end_inside_an_image() -> None:
    """What is left of it is computed in one step again."""
    scheduler = make_scheduler(caching=True, block_size=4)
    run = Run(scheduler)
    tokens, images = prompt_of([5, 1], ["a"])  # the image is 5..11
    for name in ("one", "two"):
        request = make_request(scheduler, name, tokens, 2, images=images)
        scheduler.add_request(request)
        planned, _ = run.step()
        run.finish()
    assert request.num_cached_tokens == 8
    assert planned.num_scheduled_tokens == {"two": 4}
    assert planned.new_requests[0].images == images
