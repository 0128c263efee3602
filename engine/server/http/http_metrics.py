"""HTTP counts and times under the names that vLLM's boards read (`http_requests_total`, ...)."""

from __future__ import annotations

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator import Instrumentator

_NOT_COUNTED = ["/metrics", "/health", "/load", "/ping", "/version"]
"""What probes and dashboards ask all the time; vLLM leaves the same ones out."""


def count_http_requests(app: FastAPI, registry: CollectorRegistry) -> None:
    """Count the requests of `app` by method, status class and route into `registry`."""
    Instrumentator(excluded_handlers=_NOT_COUNTED, registry=registry).add().instrument(app)
