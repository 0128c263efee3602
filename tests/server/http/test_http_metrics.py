from __future__ import annotations

from pathlib import Path

from tests.server.fake_core import FakeCore
from tests.server.serving import serving


async def test_requests_are_counted_as_vllms_boards_expect(tiny_folder: Path) -> None:
    async with serving(tiny_folder, FakeCore([65]), in_process=True) as served:
        for prompt in ("a", "b", 7):
            await served.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
        for path in ("/health", "/metrics", "/version"):
            await served.http.get(path)
        text = (await served.http.get("/metrics")).text
        name, path = "http_requests_total", 'handler="/v1/completions",method="POST"'
        assert f'{name}{{{path},status="2xx"}} 2.0' in text
        assert f'{name}{{{path},status="4xx"}} 1.0' in text
        assert "http_request_duration_seconds_bucket" in text
        assert 'handler="/health"' not in text
