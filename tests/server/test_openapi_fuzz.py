"""schemathesis over /openapi.json against the real engine: no input ends in a server error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, BaseSchema, Case, GenerationMode
from schemathesis.core.result import Ok

from tests.e2e.running_server import (
    Server,
    get_json,
    tiny_server,
    wait_for_gauge,
)

# Cases per operation and mode; raise it for a long run by hand.
EXAMPLES = int(os.environ.get("STOKER_FUZZ_EXAMPLES", "25"))
MAX_MODEL_LEN = 48  # a request without a limit fills it
AnyOperation = APIOperation[Any, Any, Any, Any]
REQUIRED = {"prompt", "messages", "tokens", "input", "lora_name", "lora_path"}
ALSO_REQUIRED = {
    "/v1/messages": {"max_tokens"},
    "/v1/score": {"text_1", "text_2"},
    "/v1/rerank": {"query", "documents"},
    "/v2/rerank": {"query", "documents"},
}
FINE: dict[str, Any] = {  # values that nothing is to be said against
    "prompt": "x",
    "input": "x",
    "messages": [{"role": "user", "content": "x"}],
    "max_tokens": 4,
    "text_1": "x",
    "text_2": "x",
    "query": "x",
    "documents": ["x"],
}
REFUSED = {  # made-up names are those of nothing
    "/v1/models/{name}": 404,
    "/v1/load_lora_adapter": 400,
    "/v1/unload_lora_adapter": 404,
    "/sleep": 400,  # this server was started without --enable-sleep-mode
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model")
    with tiny_server(folder, "--max-model-len", str(MAX_MODEL_LEN), "--enable-lora") as running:
        yield running


def operations(schema: BaseSchema) -> Iterator[AnyOperation]:
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        yield result.ok()


def statuses(operation: AnyOperation, mode: Any) -> set[int]:
    """Call it with generated input; the statuses that came, none of which is a server error."""
    seen: set[int] = set()

    @settings(
        max_examples=EXAMPLES if operation.body else 3,
        deadline=None,
        database=None,
        derandomize="STOKER_FUZZ_EXAMPLES" not in os.environ,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def call(case: Case[Any], data: st.DataObject) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            # Most values of most fields are out of range: with all of them nothing would ever run.
            kept = data.draw(st.sets(st.sampled_from(sorted({*case.body, "prompt"})), max_size=2))
            kept = kept - {"model"} | REQUIRED | ALSO_REQUIRED.get(operation.path, set())
            case.body = {name: value for name, value in case.body.items() if name in kept}
            if data.draw(st.booleans()):  # so that the other fields are what decides
                case.body |= {name: FINE[name] for name in FINE.keys() & case.body.keys()}
        response = case.call(timeout=120)
        seen.add(response.status_code)
        assert response.status_code < 500, (case.as_curl_command(), response.text)

    call()
    return seen


@pytest.mark.slow
def test_valid_and_nearly_valid_input_ends_in_no_server_error(server: Server) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for operation in operations(schema):
        seen = statuses(operation, GenerationMode.POSITIVE)
        expected = REFUSED.get(operation.path, 200)
        assert expected in seen, f"{operation.label}: nothing got through, only {seen}"
    wait_for_gauge(server.url, "vllm:num_requests_running", 0)


@pytest.mark.slow
def test_invalid_input_is_refused_and_ends_in_no_server_error(server: Server) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for operation in operations(schema):
        if operation.body:
            assert 400 in statuses(operation, GenerationMode.NEGATIVE), operation.label


def test_every_route_is_described(server: Server) -> None:
    document: Any = get_json(f"{server.url}/openapi.json")
    routes = set(re.findall(r"Route: (\S+), Methods", server.text.replace(":path}", "}")))
    assert set(document["paths"]) == routes
    bodies = {
        path
        for path, methods in document["paths"].items()
        if "requestBody" in methods.get("post", {})
    }
    assert bodies >= {path for path in routes if path.startswith("/v1/") and "models" not in path}
