"""The engines that are started and planned for, by their names."""

from __future__ import annotations

STOKER, VLLM, LLAMA_CPP = "stoker", "vllm", "llama.cpp"
