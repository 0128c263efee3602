"""ImageRoom: what the images of all requests may take together, and whose share is free again."""

from __future__ import annotations

import pytest

from engine.errors import RequestError
from engine.server.errors import ApiError
from engine.server.image_room import MOST_BYTES, ImageRoom


def test_shares_fill_the_room_and_are_given_back() -> None:
    room = ImageRoom(100)
    first, second = room.take(60, "messages"), room.take(40, "messages")
    with pytest.raises(ApiError, match="images of other requests") as refusal:
        room.take(1, "messages")
    assert (refusal.value.status, room.num_bytes) == (429, 100)
    second.num_bytes = 10
    assert room.take(30, "messages").num_bytes == 30
    first.leave()
    first.leave()
    assert room.num_bytes == 10


def test_a_share_that_is_forgotten_is_free() -> None:
    room = ImageRoom(100)
    share = room.take(100, "messages")
    del share
    assert room.num_bytes == 0


def test_what_alone_is_too_much_never_gets_in() -> None:
    room = ImageRoom(5 << 20)
    with pytest.raises(RequestError, match=r"take 6 MiB .* has 5 MiB") as refusal:
        room.take(6 << 20, "input")
    assert refusal.value.param == "input"


def test_the_machine_has_room_for_one_request_and_no_more_than_the_most() -> None:
    assert ImageRoom.of_machine(64, MOST_BYTES + 5).take(MOST_BYTES + 5, "x")
    with pytest.raises(RequestError):
        ImageRoom.of_machine(1, 1).take(MOST_BYTES + 1, "x")
