"""One answer of /debug/trace, as our engine gives it."""

from __future__ import annotations

from typing import Any

STEP = {
    "start_s": 0.010,
    "planned_s": 0.011,
    "executed_s": 0.061,
    "updated_s": 0.062,
    "blocks_s": 0.0004,
    "forward_s": 0.045,
    "sampler_s": 0.004,
    "num_tokens": 32,
    "num_requests": 3,
}


LAST = {**STEP, "start_s": 0.100, "num_tokens": 1}


DOCUMENT: dict[str, Any] = {
    "object": "trace",
    "id": "chatcmpl-1-0",
    "client": "127.0.0.1:5\x1b[31m",
    "prompt_tokens": 32,
    "num_outputs": 3,
    "num_events": 3,
    "processing_s": 0.005,
    "marks": {
        "received": 0.0,
        "read": 0.001,
        "rendered": 0.003,
        "tokenized": 0.004,
        "built": 0.005,
        "registered": 0.0055,
        "sent": 0.007,
        "first_output": 0.063,
        "first_text": 0.064,
        "first_event": 0.066,
    },
    "core": {
        "queued_s": 0.006,
        "states": [["WAITING", 0.006], ["RUNNING", 0.011], ["FINISHED_STOPPED", 0.2]],
        "num_steps": 3,
        "first_step": STEP,
        "last_step": LAST,
        "totals": {
            "schedule_s": 0.003,
            "blocks_s": 0.001,
            "forward_s": 0.065,
            "sampler_s": 0.006,
            "update_s": 0.003,
        },
        "prefix_miss": {"cause": "other_text", "matched_tokens": 24, "lost_tokens": 8},
    },
}
