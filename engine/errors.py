"""The engine's error tree. A message says what was asked, the limit, and what to change.

EngineError
|- ConfigError            flags or model configuration that cannot work (exit 2)
|- ModelError             the model cannot be found, downloaded, read or is not supported (exit 1)
|  |- ModelNotFoundError
|  |- GatedModelError
|  |- OfflineError
|  |- ModelStoreError     it cannot be made, or not be deleted, in Stoker's own cache
|  |- RefusedFormatError
|  `- CorruptModelError
|- MemoryBudgetError      weights or KV cache do not fit (exit 1)
|- EngineDeadError        EngineCore is gone; every waiting request fails with it (HTTP 503)
|- EngineAsleepError      the engine sleeps; a request is refused or was ended by that (HTTP 503)
|- ReplicaDownError       one of several engines is gone, for good or until it is started again
|- GenerationError        one request failed while it ran (HTTP 500)
`- RequestError           one request is refused (HTTP 4xx); carries the OpenAI `param`
"""

from __future__ import annotations

CONTEXT_CODE = "context_length_exceeded"
"""`code` of a RequestError about more tokens than the model's context holds."""


class EngineError(Exception):
    """Base of every error that the engine raises on purpose.

    `hint` is what to type, where the message does not say it.
    """

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(EngineError):
    """A flag value or a model's config.json cannot work."""


class ModelError(EngineError):
    """The model cannot be served."""


class ModelNotFoundError(ModelError):
    """No such folder, file or repository."""


class GatedModelError(ModelError):
    """The repository exists, but this token (or no token) may not read it."""


class OfflineError(ModelError):
    """The hub cannot be reached and the cache does not hold the model."""


class ModelStoreError(ModelError):
    """Stoker's own cache cannot make a model, or cannot delete it."""


class RefusedFormatError(ModelError):
    """The weights come only in a format whose loading can run code (pickle)."""


class CorruptModelError(ModelError):
    """Files are missing, truncated, or do not belong together."""


class MemoryBudgetError(EngineError):
    """The weights or one full-length request do not fit into the memory budget."""


class EngineDeadError(EngineError):
    """EngineCore is dead; nothing can be generated until the server is started again."""


class EngineAsleepError(EngineError):
    """The engine sleeps, and generates again once it has been woken."""


class ReplicaDownError(EngineError):
    """One of several engines cannot be asked; the others serve."""


class GenerationError(EngineError):
    """One request failed while it ran; the others go on."""


class RequestError(EngineError):
    """One request is refused. `param` names the field, `code` is a stable word or None."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
