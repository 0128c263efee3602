"""The installed command `stoker`: runs the packages that lie beside this file, and no others.

`app`, `engine`, `tui` and `logparse` are plain names: a project's own folder of such a name comes
first on PYTHONPATH. Here the four are found beside the launcher before the module path is asked.
Started by path it does the same, so that a process of ours can start the command.
"""

from __future__ import annotations

import os
import sys

# Nothing slow before `main`, which takes Ctrl-C without a traceback; mypy knows the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import NoReturn

OWN_PACKAGES = ("app", "engine", "tui", "logparse")
_HERE = os.path.dirname(os.path.abspath(__file__))
_INTERRUPTED = 130


class BesideFinder:
    """Finds Stoker's packages in one folder, whatever the module path holds."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for every name but ours; modules inside our packages follow from their package."""
        if name not in OWN_PACKAGES:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [_HERE], target)


def main() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    try:
        sys.meta_path.insert(0, BesideFinder)
        from app.cli import main as run

        run()
    except KeyboardInterrupt:  # before a command has begun, or after it has ended
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    if os.path.abspath(sys.path[0]) == _HERE:  # in an installation every package lies here
        del sys.path[0]
    main()
