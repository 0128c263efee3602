"""Stoker's inference engine.

The facade (this module, `args`, `config`, `model_config`, `kv_sizing`, `sampling_params`, `errors`)
is standard library only, so planning code can import it without torch. Everything else is imported
late.
"""

from engine.version import __version__

__all__ = ["__version__"]
