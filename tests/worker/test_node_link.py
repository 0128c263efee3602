"""Nothing is read as an object that does not come from a node with the secret, as it was sent."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.worker import node_link
from engine.worker.node_link import NodeLink, StrangerError
from engine.worker.rank_memory import PeerGoneError

_SECRET = b"0123456789abcdef"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        there = socket.create_connection(door.getsockname())
        here, _ = door.accept()
    with here, there:
        yield here, there


def joined(
    pair: tuple[socket.socket, socket.socket], secret: bytes = _SECRET
) -> tuple[NodeLink, NodeLink]:
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(NodeLink.accepted, pair[0], _SECRET)
        try:
            connected = NodeLink.connected(pair[1], secret)
        finally:
            error = accepted.exception(60)
    if error is not None:
        raise error
    return accepted.result(), connected


def test_both_sides_get_what_was_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    node_0, other = joined(pair)
    other.send({"rank": 1})
    other.send("second")
    assert node_0.receive_one(60) == {"rank": 1}  # and not a byte of what follows
    assert list(node_0.receive()) == ["second"]
    node_0.send(b"x" * 1000)
    assert other.receive_one(60) == b"x" * 1000
    other.finish(0.0)
    with pytest.raises(PeerGoneError):
        node_0.receive_one(60)


def test_addresses_are_known_after_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    node_0, other = joined(pair)
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()  # which resets the connection
    with pytest.raises(PeerGoneError):
        node_0.receive_one(60)
    assert (node_0.local_host, node_0.peer_host) == ("127.0.0.1", "127.0.0.1")


def test_who_has_another_secret_is_a_stranger(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(StrangerError):
        joined(pair, b"another secret..")


def test_a_stranger_that_says_nothing_is_not_waited_for(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "_PROOF_S", 0.1)
    with pytest.raises(StrangerError, match="timed out"):
        NodeLink.accepted(pair[0], _SECRET)


class _Trap:
    """What a pickle can do to its reader."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("an object of a stranger was read",)


@pytest.mark.parametrize("what", ["changed", "repeated", "made up"])
def test_a_frame_that_was_not_sent_so_is_not_read(
    pair: tuple[socket.socket, socket.socket], what: str
) -> None:
    node_0, other = joined(pair)
    other.send("word")
    frame = pair[0].recv(1 << 16, socket.MSG_PEEK)
    if what == "changed":
        pair[0].recv(1 << 16)
        pair[1].sendall(frame[:-1] + bytes([frame[-1] ^ 1]))
    elif what == "repeated":
        assert node_0.receive_one(60) == "word"
        pair[1].sendall(frame)
    else:
        assert node_0.receive_one(60) == "word"
        payload = pickle.dumps(_Trap())
        pair[1].sendall(struct.pack("<Q", len(payload)) + bytes(32) + payload)
    with pytest.raises(PeerGoneError, match="changed on its way"):
        node_0.receive_one(60)
