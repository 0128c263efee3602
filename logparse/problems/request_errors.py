"""Requests that a running server refused or lost, as a table: what the line holds, why, what to do.

They say nothing about the start, and never are its cause.
"""

from __future__ import annotations

from logparse.problems.warnings import WarningRule

_SEE_REQUEST = ("look at what the client sends", None)

REQUEST_ERRORS: tuple[WarningRule, ...] = (
    WarningRule(
        "metal-out-of-memory",
        1,
        ("kIOGPUCommandBufferCallbackErrorOutOfMemory", "error: Insufficient Memory ("),
        "Metal ran out of GPU memory (Insufficient Memory) while it computed",
        "Weights, KV cache and work space together are above what macOS lets the GPU take; what "
        "was computed is lost.",
        (
            ("use a shorter context", "{serve} --ctx-size {len_half}"),
            ("store the KV cache in 8 bits", "{serve} --cache-type-k q8_0 --cache-type-v q8_0"),
        ),
        engine="llama.cpp",
    ),
    WarningRule(
        "request-too-long",
        3,
        (
            "maximum context length", "exceeds the available context size",
            "is longer than the maximum model length", "longer than the model's context length",
            "exceeds the maximum allowed length",
        ),
        "requests were longer than the model's length here",
        "Prompt and answer together must fit into the maximum model length; such requests get 400.",
        (
            ("allow longer requests, if the KV cache holds them", "{serve} --max-model-len auto"),
            ("send less, or ask for fewer tokens (max_tokens)", None),
        ),
    ),
    WarningRule(
        "request-unknown-model",
        3,
        ("The model `", "model does not exist", "Model not found"),
        "requests named a model that is not served here",
        "The name in the request must be one of those that GET /v1/models lists; others get 404.",
        (
            ("serve it under that name too", "{serve} --served-model-name NAME"),
            ("or use a name that is listed", None),
        ),
    ),
    WarningRule(
        "request-no-template",
        3,
        ("default chat template is no longer allowed", "Chat template rejected the request",
         "does not support Chat Completions", "Conversation roles must alternate"),
        "chat requests cannot be answered as they are",
        "The model has no chat template, or its template refuses the order of roles.",
        (
            ("give a template", "{serve} --chat-template ./template.jinja"),
            ("or use /v1/completions, which needs none", None),
        ),
    ),
    WarningRule(
        "request-tools",
        3,
        ('"auto" tool choice requires', "`tools` must be set", "tool_choice"),
        "requests asked for tool calls that this server is not set up for",
        "Tools need a parser for the model's way of calling them; such requests get 400.",
        (("name the parser of this model",
          "{serve} --enable-auto-tool-choice --tool-call-parser hermes"),),
    ),
    WarningRule(
        "request-media",
        3,
        ("may be provided in one prompt", "pre-allocated encoder cache", "enable-mm-embeds",
         "Failed to load image", "Error loading image", "UnidentifiedImageError"),
        "requests with images or sound were refused",
        "More, larger or other media than this start allows, or a file that cannot be fetched.",
        (("allow more in one prompt", "{serve} --limit-mm-per-prompt '{{\"image\":4}}'"),),
    ),
    WarningRule(
        "request-schema",
        3,
        ("Grammar of ", "Failed to compile grammar", "kind of constraints for structured",
         "The provided JSON schema contains features not supported", "Invalid grammar"),
        "requests asked for an output form that cannot be followed",
        "The schema or grammar of the request is not supported or not valid.",
        (("simplify the schema", None),),
    ),
    WarningRule(
        "request-lora",
        3,
        ("but LoRA is not enabled", "No adapter found for"),
        "requests named a LoRA adapter that is not loaded",
        "Adapters must be switched on and named at the start.",
        (("load it at the start", "{serve} --enable-lora --lora-modules NAME=PATH"),),
    ),
    WarningRule(
        "request-parameter",
        4,
        ("temperature must be", "top_p must be", "top_k must be", "max_tokens must be",
         "Requested sample logprobs", "Requested prompt logprobs", "n must be 1 when",
         "Stream options can only", "is out of vocabulary", "prompt cannot be empty",
         "presence_penalty must", "frequency_penalty must", "min_p must be"),
        "requests had values that are not allowed",
        "A sampling parameter is out of its range; such requests get 400.",
        (_SEE_REQUEST,),
    ),
    WarningRule(
        "request-unauthorized",
        3,
        ('HTTP/1.1" 401',),
        "requests came without the right key (401)",
        "The server was started with a key, and each request must carry it.",
        (("send the header `Authorization: Bearer KEY`", None),),
    ),
    WarningRule(
        "request-refused",
        4,
        ('HTTP/1.1" 400', 'HTTP/1.1" 422', 'HTTP/1.1" 415', 'HTTP/1.1" 413'),
        "requests were refused (400)",
        "Too long, a value out of range, or JSON of another form; the answer's body says which.",
        (_SEE_REQUEST,),
    ),
    WarningRule(
        "request-no-route",
        4,
        ('HTTP/1.1" 404', 'HTTP/1.1" 405', 'HTTP/1.1" 501'),
        "requests asked for what is not there (404, 405 or 501)",
        "A path that this server does not have, or the name of a model that it does not serve.",
        (("see what is served", "curl http://127.0.0.1:8000/v1/models"),),
    ),
    WarningRule(
        "request-busy",
        2,
        ('HTTP/1.1" 503', 'HTTP/1.1" 429'),
        "requests were turned away because the server was busy or not ready (503)",
        "The queue is full, or the engine is gone.",
        (("let clients try again later, or start a second server", None),),
    ),
    WarningRule(
        "request-server-fault",
        1,
        ('HTTP/1.1" 500', 'HTTP/1.1" 502', 'HTTP/1.1" 504'),
        "requests failed inside the server (500)",
        "A fault of the server or of the engine; the first traceback before it says which.",
        (("list what failed", "stoker logs --errors FILE"),),
    ),
)  # fmt: skip
