"""Readers of a model's files that trust nothing in them: config.json, safetensors and GGUF headers.

Part of the facade: standard library only. The engine and `stoker plan` read through these, so that
a bad file is one CorruptModelError for both. Tensors stay unread.
"""
