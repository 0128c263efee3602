"""Where the built-in recording is that `stoker top --mock` plays."""

from __future__ import annotations

from pathlib import Path

DEMO = Path(__file__).with_name("demo.jsonl.gz")
