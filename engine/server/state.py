"""ApiState: which phase the server is in, and what it serves once it is ready."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from engine.config import TaskConfig
from engine.core.grammar_checker import GrammarChecker
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.chat_template import ChatTemplate
from engine.frontend.lora_registry import LoraRegistry
from engine.lora_adapters import LoraRequest
from engine.model_files.sentence_files import SentenceFiles
from engine.server.admission import Admission
from engine.server.errors import ApiError, unavailable
from engine.server.images import ImageInputs
from engine.server.parsers.thinking import ThoughtMarks
from engine.server.peers import NO_PEERS, Peers
from engine.server.rendering import Rendering


class ServerPhase(enum.Enum):
    """Life of the server; `value` is the word that /health answers."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What request handlers need. `created` is unix time, `root` the model as it was asked for.

    `embedding_size` is how long embeddings are; `sentence` names the prompts for their texts.
    `sampling_defaults` are the model's own, for requests that leave a field out. Without a
    `tool_call_parser` the model cannot be left to choose whether it calls a tool; without
    `reasoning` its thoughts are part of its answers.
    """

    llm: AsyncLLM
    admission: Admission = field(default_factory=Admission)
    grammars: GrammarChecker
    chat_template: ChatTemplate | None
    model_name: str
    root: str
    created: int
    embedding_size: int
    sentence: SentenceFiles = field(default_factory=SentenceFiles)
    log_requests: bool = False
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    tool_call_parser: str | None = None
    thought_marks: ThoughtMarks | None = None
    tokenizer_info: Mapping[str, object] = field(default_factory=dict)
    tasks: TaskConfig = field(default_factory=TaskConfig)
    rendering: Rendering = field(default_factory=Rendering)
    images: ImageInputs = field(default_factory=ImageInputs)
    peers: Peers = NO_PEERS
    loras: LoraRegistry | None = None
    has_sleep_mode: bool = False

    def require_generation(self) -> None:
        """404 where only embeddings are served."""
        if not self.tasks.has_text_model:
            raise ApiError(
                404,
                f"{self.model_name} has no head for text: it answers /v1/embeddings alone.",
                code="task_not_served",
            )
        if not self.tasks.can_generate:
            raise ApiError(
                404,
                "This server was started with --runner pooling: it answers /v1/embeddings and "
                "generates no text. Start it without --runner pooling for both.",
                code="task_not_served",
            )

    def require_embeddings(self) -> None:
        """404 where embeddings are turned off."""
        if not self.tasks.can_embed:
            raise ApiError(
                404,
                "This server was started with --convert none: it makes no embeddings. Start it "
                "without that flag.",
                code="task_not_served",
            )

    def require_adapters(self) -> LoraRegistry:
        """The LoRA adapters; 400 where none are served."""
        if self.loras is None:
            raise ApiError(
                400,
                "This server was started without --enable-lora, so it serves no LoRA adapters.",
                code="lora_not_enabled",
            )
        if self.peers.sockets:
            raise ApiError(
                400,
                "Several API servers share this port, and each would know only its own adapters. "
                "Give all with --lora-modules, or start with --api-server-count 1.",
                code="several_api_servers",
            )
        return self.loras

    def require_sleep_mode(self) -> None:
        """400 where nobody may put the server to sleep."""
        if not self.has_sleep_mode:
            raise ApiError(
                400,
                "This server was started without --enable-sleep-mode, so it never sleeps. Start "
                "it with that flag.",
                code="sleep_mode_not_enabled",
            )

    def check_model(self, name: str | None) -> None:
        """404 for another model than those served; leaving it out is fine."""
        self.adapter_of(name)

    def adapter_of(self, name: str | None) -> LoraRequest | None:
        """The LoRA adapter that a request names; None for the model itself, 404 for neither."""
        if name in (None, self.model_name):
            return None
        adapters = {one.name: one for one in self.loras.adapters} if self.loras else {}
        adapter = adapters.get(name or "")
        if adapter is None:
            names = ", ".join(f"`{one}`" for one in (self.model_name, *adapters))
            raise ApiError(
                404,
                f"The model `{name}` does not exist; this server serves {names}.",
                param="model",
                code="model_not_found",
            )
        return adapter


class ApiState:
    """The one mutable object behind the HTTP handlers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.phase = ServerPhase.STARTING
        self._services: Services | None = None

    def become_ready(self, services: Services) -> None:
        """Requests are served from now on."""
        self._services = services
        self.phase = ServerPhase.READY

    @property
    def num_unfinished(self) -> int:
        return self._services.llm.num_unfinished if self._services else 0

    @property
    def admission(self) -> Admission | None:
        """Who decides on newcomers; None in every phase in which none are served."""
        if self.phase is not ServerPhase.READY or self._services is None:
            return None
        return self._services.admission

    @property
    def peers(self) -> Peers:
        """The other API servers, once there are any."""
        return self._services.peers if self._services else NO_PEERS

    def require_ready(self) -> Services:
        """What handlers work with; 503 in every other phase."""
        if self.phase is ServerPhase.READY:
            assert self._services is not None, "set before the phase"
            return self._services
        raise unavailable(_UNAVAILABLE[self.phase], code=f"server_{self.phase.value}")


_UNAVAILABLE = {
    ServerPhase.STARTING: "The model is still loading; /health answers 200 once it is ready.",
    ServerPhase.STOPPING: "The server is shutting down and takes no new requests.",
    ServerPhase.DEAD: "The engine is dead; the server must be started again.",
}
