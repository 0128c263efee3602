"""HTTP errors in OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`, or under
/v1/messages in Anthropic's, `{"type": "error", "error": {"type", "message"}}`.

ApiError
|- status 400, 401, 404, 405, 409, 413   the client's fault
|- status 429                       the queue is full; carries Retry-After
|- status 500                       a request failed while it ran
`- status 503                       the engine starts, stops, sleeps or is dead; carries Retry-After

RequestError (400), GenerationError (500), EngineDeadError and EngineAsleepError (503) of the
engine's tree are translated here.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import (
    CONTEXT_CODE,
    EngineAsleepError,
    EngineDeadError,
    EngineError,
    GenerationError,
    RequestError,
)

# The words of vLLM's error bodies.
_TYPES = {
    HTTPStatus.BAD_REQUEST: "BadRequestError",
    HTTPStatus.UNAUTHORIZED: "AuthenticationError",
    HTTPStatus.NOT_FOUND: "NotFoundError",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowedError",
    HTTPStatus.CONFLICT: "ConflictError",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "RequestTooLargeError",
    HTTPStatus.TOO_MANY_REQUESTS: "RateLimitError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}
_MESSAGES_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}
ASLEEP_CODE = "server_asleep"
_MESSAGES_PATH = "/v1/messages"
_RETRY_AFTER_S = 2


class ApiError(Exception):
    """An answer other than 200, decided by the server itself."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers or {}


def to_api_error(error: EngineError) -> ApiError:
    """The HTTP meaning of an engine error."""
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, GenerationError):
        return ApiError(500, str(error))
    if isinstance(error, EngineDeadError):
        return unavailable(f"The engine is dead: {error}", code="engine_dead")
    if isinstance(error, EngineAsleepError):
        return unavailable(str(error), code=ASLEEP_CODE)
    return unavailable(str(error))


def unavailable(message: str, *, code: str | None = None) -> ApiError:
    """503 with the header that tells clients to come back."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(_RETRY_AFTER_S)})


def error_body(error: ApiError) -> bytes:
    """OpenAI's JSON document of an error; also used inside a stream."""
    return msgspec.json.encode(
        {
            "error": {
                "message": str(error),
                "type": _TYPES.get(HTTPStatus(error.status), "InternalServerError"),
                "param": error.param,
                "code": error.code or error.status,
            }
        }
    )


def messages_error_body(error: ApiError) -> bytes:
    """Anthropic's. Its clients know a prompt that is too long by the first words of the message,
    and make it shorter.
    """
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    is_too_long = error.code == CONTEXT_CODE and error.param == "messages"
    return msgspec.json.encode(
        {
            "type": "error",
            "error": {
                "type": _MESSAGES_TYPES.get(HTTPStatus(error.status), kind),
                "message": f"prompt is too long: {error}" if is_too_long else str(error),
            },
        }
    )


def error_response(error: ApiError) -> Response:
    return _ErrorResponse(error)


class _ErrorResponse(Response):
    """Takes the shape of the API that the request's path belongs to."""

    media_type = "application/json"

    def __init__(self, error: ApiError) -> None:
        super().__init__(error_body(error), status_code=error.status, headers=error.headers)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; under /v1/messages with Anthropic's body."""
        if scope["path"].startswith(_MESSAGES_PATH):
            self.body = messages_error_body(self._error)
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)
