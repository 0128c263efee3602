"""HTTP errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

ApiError
|- status 400, 401, 404, 405, 409, 413   the client's fault
|- status 500                       a request failed while it ran
`- status 503                       the engine starts, stops or is dead; carries Retry-After

RequestError (400), GenerationError (500) and EngineDeadError (503) of the engine's tree are
translated here.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from engine.errors import EngineDeadError, EngineError, GenerationError, RequestError

# The words of vLLM's error bodies.
_TYPES = {
    HTTPStatus.BAD_REQUEST: "BadRequestError",
    HTTPStatus.UNAUTHORIZED: "AuthenticationError",
    HTTPStatus.NOT_FOUND: "NotFoundError",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowedError",
    HTTPStatus.CONFLICT: "ConflictError",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "RequestTooLargeError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}
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
    return unavailable(str(error))


def unavailable(message: str, *, code: str | None = None) -> ApiError:
    """503 with the header that tells clients to come back."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(_RETRY_AFTER_S)})


def error_body(error: ApiError) -> bytes:
    """The JSON document of an error; also used inside a stream."""
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


def error_response(error: ApiError) -> Response:
    return Response(
        error_body(error),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )
