"""The other nodes of an engine, as EngineCore on node 0 holds them, and how they come together.

Node 0 listens at --master-addr alone, until every node is there. A node has to prove that it has
the nodes' secret, then that it was started with the same flags.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.config import EngineConfig, ParallelConfig
from engine.errors import ConfigError, EngineError
from engine.logger import get_logger
from engine.machine.ports import listen_at
from engine.node_key import read_node_key
from engine.version import __version__
from engine.worker.node_link import NodeLink, StrangerError
from engine.worker.node_messages import End, Join, Looks, Refused, Welcome
from engine.worker.rank_memory import PeerGoneError
from engine.worker.standstill import LOOK_S, STILL_LOOKS, ProcessLook
from engine.worker.worker_messages import Meeting

logger = get_logger(__name__)

_SAY_EVERY_S = 10.0
_JOIN_S = 5.0
_FINISH_S = 3.0
_MOST_GREETINGS = 64
# What may differ from node to node: where things lie, and what only node 0 does.
_OWN_SETTINGS = frozenset(
    {
        *("parallel.node_rank", "parallel.node_key_file", "parallel.master_addr"),
        *("parallel.distributed_timeout_s", "device.num_threads", "model.path", "lora.modules"),
        *("observability", "shutdown_timeout_s", "model.served_name"),
    }
)


@dataclass(slots=True)
class RemoteNode:
    """One of them. `looks` are the last that it told; `unanswered` counts questions since."""

    number: int
    link: NodeLink
    host: str
    ranks: range
    looks: Mapping[int, ProcessLook] = field(default_factory=dict)
    unanswered: int = 0
    rooms: list[int] = field(default_factory=list)  # RAM for its KV cache, as it has answered

    def __str__(self) -> str:
        return f"node {self.number} ({self.host})"

    def note_looks(self, looks: Looks) -> None:
        self.looks, self.unanswered = looks.by_rank, 0

    @property
    def is_silent(self) -> bool:
        """Whether it has not answered for as long as a rank may stand still."""
        return self.unanswered >= STILL_LOOKS

    @property
    def silent_s(self) -> float:
        return self.unanswered * LOOK_S

    def tell_end(self, reason: str | None) -> None:
        """Have it end; nothing happens when it is gone."""
        with contextlib.suppress(PeerGoneError):
            self.link.send(End(reason))


def end_nodes(
    nodes: Sequence[RemoteNode],
    reason: str | None,
    *,
    meanwhile: Callable[[], object] = lambda: None,
    timeout_s: float = _FINISH_S,
) -> None:
    """Have all of them end, call `meanwhile`, and wait for so long, together, until they have.

    `reason` is None where that is wanted. One that is silent is not waited for.
    """
    for node in nodes:
        node.tell_end(reason)
    meanwhile()
    deadline = time.monotonic() + timeout_s
    for node in nodes:
        node.link.finish(0.0 if node.is_silent else deadline - time.monotonic())


def settings_of(config: EngineConfig) -> dict[str, Any]:
    """The configuration as plain data, without what is each node's own."""
    found = msgspec.to_builtins(config)
    for name in _OWN_SETTINGS:
        *path, last = name.split(".")
        section = found
        for part in path:
            section = section.get(part) or {}
        section.pop(last, None)
    return dict(found)


def open_store(host: str) -> socket.socket:
    """A listening socket on any free port, for the store in which the ranks find each other."""
    return _listener(host, 0)


def gather_nodes(config: EngineConfig) -> list[RemoteNode]:
    """Wait for all other nodes, in order; ConfigError names those that did not come, and says what
    to type there. Empty where all ranks are on this machine.
    """
    parallel = config.parallel
    if parallel.nnodes == 1:
        return []
    secret = read_node_key(parallel.node_key_file)
    with _listen(parallel) as listener:
        logger.info(
            "Waiting for %d other nodes at %s:%d.",
            parallel.nnodes - 1,
            *listener.getsockname()[:2],
        )
        return _Gathering(config, secret, listener).wait()


def welcome_nodes(nodes: Sequence[RemoteNode], meeting: Meeting) -> None:
    """All are there: they start their ranks."""
    for node in nodes:
        try:
            node.link.send(Welcome(meeting))
        except PeerGoneError as error:
            raise EngineError(f"{node} is gone before the start.") from error


def how_to_join(parallel: ParallelConfig, number: int) -> str:
    """What to type on that node."""
    return (
        f"type the command of this node there, with --node-rank {number} --master-addr "
        f"{parallel.master_addr} --master-port {parallel.master_port} and the same secret"
    )


class _Gathering:
    """Connections are greeted side by side: one that says nothing keeps nobody waiting."""

    def __init__(self, config: EngineConfig, secret: bytes, listener: socket.socket) -> None:
        self._config = config
        self._secret = secret
        self._listener = listener
        self._settings = settings_of(config)
        self._greeted: queue.SimpleQueue[tuple[NodeLink, Join]] = queue.SimpleQueue()
        self._greetings: list[threading.Thread] = []
        self._nodes: dict[int, RemoteNode] = {}

    def wait(self) -> list[RemoteNode]:
        parallel = self._config.parallel
        deadline = time.monotonic() + parallel.distributed_timeout_s
        say_at = time.monotonic() + _SAY_EVERY_S
        try:
            while missing := self._missing():
                if time.monotonic() >= deadline:
                    raise ConfigError(self._nobody_came(missing))
                if time.monotonic() >= say_at:
                    say_at += _SAY_EVERY_S
                    logger.info(
                        "Waiting for node %d: %s.", missing[0], how_to_join(parallel, missing[0])
                    )
                self._look()
        except BaseException as error:
            end_nodes(list(self._nodes.values()), str(error))
            raise
        return [self._nodes[number] for number in sorted(self._nodes)]

    def _missing(self) -> list[int]:
        return [n for n in range(1, self._config.parallel.nnodes) if n not in self._nodes]

    def _nobody_came(self, missing: Sequence[int]) -> str:
        parallel = self._config.parallel
        names = ", ".join(f"node {number}" for number in missing)
        verb = "has" if len(missing) == 1 else "have"
        return (
            f"{names} of {parallel.nnodes} {verb} not come within "
            f"{parallel.distributed_timeout_s:g} s (--distributed-timeout-seconds): "
            f"{how_to_join(parallel, missing[0])}. That machine must reach "
            f"{parallel.master_addr}:{parallel.master_port} of this one."
        )

    def _look(self) -> None:
        """Take whoever has come, and notice who has gone again."""
        links = {node.link.fileno(): node for node in self._nodes.values()}
        door = self._listener.fileno()
        ready, _, _ = select.select([door, *links], [], [], LOOK_S / 5)
        if door in ready:
            self._greet()
        for descriptor in links.keys() & set(ready):
            self._drop(links[descriptor])
        with contextlib.suppress(queue.Empty):
            while True:
                self._admit(*self._greeted.get_nowait())

    def _greet(self) -> None:
        connection, (host, *_) = self._listener.accept()
        self._greetings = [one for one in self._greetings if one.is_alive()]
        if len(self._greetings) >= _MOST_GREETINGS:
            connection.close()
            return
        greeting = threading.Thread(
            target=self._hear, args=(connection, host), name="node-greeting", daemon=True
        )
        self._greetings.append(greeting)
        greeting.start()

    def _hear(self, connection: socket.socket, host: str) -> None:
        try:
            link = NodeLink.accepted(connection, self._secret)
            join = link.receive_one(_JOIN_S)
        except (StrangerError, PeerGoneError) as error:
            logger.warning("Somebody at %s could not join as a node: %s.", host, error)
            connection.close()
            return
        assert isinstance(join, Join), join
        self._greeted.put((link, join))

    def _admit(self, link: NodeLink, join: Join) -> None:
        reason = self._obstacle(join)
        if reason is not None:
            logger.warning("Node %d at %s is refused: %s", join.node_rank, link.peer_host, reason)
            with contextlib.suppress(PeerGoneError):
                link.send(Refused(reason))
            link.finish(LOOK_S)
            return
        ranks = self._config.parallel.ranks_of_node(join.node_rank)
        node = RemoteNode(join.node_rank, link, link.peer_host, ranks)
        self._nodes[node.number] = node
        logger.info("%s has joined.", str(node).capitalize())

    def _obstacle(self, join: Join) -> str | None:
        number, nnodes = join.node_rank, self._config.parallel.nnodes
        if join.version != __version__:
            return f"it has version {join.version} of Stoker and node 0 {__version__}."
        if differing := list(_differences(join.settings, self._settings)):
            return (
                f"it was started with other flags than node 0: {'; '.join(differing)}. Give both "
                "the same command but for --node-rank."
            )
        if (known := self._nodes.get(number)) is not None:
            return f"there is a {known} already; give each node a --node-rank of its own."
        if not 1 <= number < nnodes:
            return f"--node-rank {number} is not from 1 to {nnodes - 1}."
        return None

    def _drop(self, node: RemoteNode) -> None:
        """Nodes say nothing before they are welcomed: this one has ended."""
        logger.warning("%s has gone again.", str(node).capitalize())
        node.link.close()
        del self._nodes[node.number]


def _differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """In words: what is not the same in two configurations."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in sorted({*there, *here}):
            yield from _differences(there.get(key), here.get(key), f"{name}.{key}".lstrip("."))
    elif there != here:
        yield f"{name} is {there!r} there and {here!r} here"


@contextlib.contextmanager
def _listen(parallel: ParallelConfig) -> Iterator[socket.socket]:
    """At --master-addr alone; ConfigError where that is not possible."""
    host, port = parallel.master_addr, parallel.master_port
    try:
        listener = _listener(host, port)
    except OSError as error:
        raise ConfigError(_cannot_listen(host, port, error)) from error
    with listener:
        yield listener


def _listener(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return listen_at(family, address, _MOST_GREETINGS)


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--master-port {port} is in use on {host}; give all nodes another one."
    if error.errno == errno.EACCES:
        return (
            f"--master-port {port} may not be used by this user; give all nodes one from 1024 on."
        )
    return (
        f"--master-addr {host} is no address of this machine, where node 0 waits for the others "
        f"({error.strerror or error}); `ip -brief address` lists those it has."
    )
