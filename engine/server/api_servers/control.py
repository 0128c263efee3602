"""What the process that was started with `serve` says to its API servers and the DPCoordinator.

A conversation over one socket for each start of a child: hello, configuration, loaded, go, serving;
from then on only news of engines.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import zmq
import zmq.asyncio

from engine.args import EngineArgs
from engine.config import EngineConfig
from engine.core.handshake import error_from_name
from engine.errors import EngineError
from engine.messages import HandshakeReady


class Hello(msgspec.Struct, tag=True, frozen=True):
    """Child -> parent: I am up and want my configuration."""

    pid: int


class Setup(msgspec.Struct, tag=True, frozen=True):
    """Parent -> child: what is served, by how many API servers; `server` is this one's number.

    `args` hold the API key, so the coordinator gets none; nor does it get the `traffic_key`, which
    is the same for all API servers. `created` is unix time.
    """

    model: str
    config: EngineConfig
    folder: str
    num_servers: int
    server: int = 0
    args: EngineArgs | None = None
    created: int = 0
    traffic_key: bytes | None = None


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """Child -> parent: all is read, only the engines are missing."""


class Go(msgspec.Struct, tag=True, frozen=True):
    """Parent -> child: the engines are ready; `are_up` says which are there at this moment."""

    readies: tuple[HandshakeReady, ...]
    are_up: tuple[bool, ...]


class Serving(msgspec.Struct, tag=True, frozen=True):
    """Child -> parent: requests are answered from now on."""


class Worked(msgspec.Struct, tag=True, frozen=True):
    """Child -> parent, once: I have done something, so that my start was of use."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Child -> parent: the start has failed; `kind` is the error class, `message` its text."""

    kind: str
    message: str


class EngineDown(msgspec.Struct, tag=True, frozen=True):
    """Parent -> child: an engine is gone."""

    rank: int


class EngineUp(msgspec.Struct, tag=True, frozen=True):
    """Parent -> child: an engine serves again."""

    rank: int


class ClientDown(msgspec.Struct, tag=True, frozen=True):
    """Parent -> coordinator: an API server is gone."""

    client_index: int


class CoordinatorDown(msgspec.Struct, tag=True, frozen=True):
    """Parent -> API server: nobody tells of the others until a new coordinator does."""


class EnginesDead(msgspec.Struct, tag=True, frozen=True):
    """Parent -> child: no engine is left."""

    message: str


Message = (
    Hello
    | Setup
    | Loaded
    | Go
    | Serving
    | Worked
    | Failed
    | EngineDown
    | EngineUp
    | ClientDown
    | CoordinatorDown
    | EnginesDead
)

_Wanted = TypeVar("_Wanted")


class Control:
    """One end of the conversation."""

    def __init__(self, context: zmq.asyncio.Context, address: str, *, binds: bool) -> None:
        self._socket = context.socket(zmq.PAIR)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Message).decode
        if binds:
            self._socket.bind(address)
        else:
            self._socket.connect(address)

    async def send(self, message: Message) -> None:
        """Nothing happens where the other end is gone."""
        try:
            await self._socket.send(self._encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return

    async def receive(self) -> Message:
        """The next message, whatever it is."""
        message: Message = self._decode(await self._socket.recv())
        return message

    async def expect(self, kind: type[_Wanted]) -> _Wanted:
        """The next message, of this kind; raises the EngineError that the other end failed with."""
        message = await self.receive()
        if isinstance(message, Failed):
            raise error_from_name(message.kind, message.message)
        if not isinstance(message, kind):
            raise EngineError(f"{kind.__name__} was due, and {message!r} came.")
        return message

    def close(self) -> None:
        """What was not sent yet is dropped."""
        self._socket.close(linger=0)
