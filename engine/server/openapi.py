"""The OpenAPI document of the routes that an application has; bodies are those of `protocol`.

Written here and not by FastAPI: the routes read their bodies themselves, to refuse them in OpenAI's
words, so FastAPI does not know them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute, Route

from engine.server.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from engine.server.protocol_messages import CountTokensBody, MessagesBody
from engine.server.protocol_responses import ResponsesBody
from engine.server.routes.embeddings import EmbeddingBody
from engine.server.routes.lora import LoadAdapterBody, UnloadAdapterBody
from engine.server.routes.score import RerankBody, ScoreBody
from engine.version import __version__

_BODIES = {
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/embeddings": EmbeddingBody,
    "/v1/score": ScoreBody,
    "/v1/rerank": RerankBody,
    "/v2/rerank": RerankBody,
    "/v1/load_lora_adapter": LoadAdapterBody,
    "/v1/unload_lora_adapter": UnloadAdapterBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountTokensBody,
}
_ANSWERS = {
    "200": "the answer",
    "4XX": "refused; `error.message` says why, `error.param` names the field",
    "503": "the model is loading, or the engine sleeps or is gone",
}
_REF = "#/components/schemas/{model}"


def openapi_document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    bodies = [(body, "validation") for body in _BODIES.values()]
    _, schemas = models_json_schema(bodies, ref_template=_REF)  # type: ignore[arg-type]
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, Route):
            methods = paths.setdefault(route.path_format, {})
            for method in sorted(route.methods or ()):
                methods[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stoker", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _operation(route: Route, method: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.name}_{method.lower()}",
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in route.param_convertors
        ],
        "responses": {status: {"description": text} for status, text in _ANSWERS.items()},
    }
    body = _BODIES.get(route.path)
    if body is not None:
        schema = {"$ref": _REF.format(model=body.__name__)}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation
