"""`python -m logparse FILE` or `... | python -m logparse`: the explanation of one log."""

from __future__ import annotations

import sys
from pathlib import Path

from logparse import Outcome, explain, parse_lines
from logparse.reading.source import decoded_lines

_EXIT_CODES = {Outcome.READY: 0, Outcome.FAILED: 1}
_NOT_ENOUGH_EVIDENCE = 3
_USAGE = 2


def main(arguments: list[str]) -> int:
    """Print the explanation; the exit code of `stoker logs`."""
    if len(arguments) != 1:
        print("usage: python -m logparse FILE   (- for standard input)", file=sys.stderr)
        return _USAGE
    try:
        if arguments[0] == "-":
            report = parse_lines(decoded_lines(sys.stdin.buffer))
        else:
            with Path(arguments[0]).open("rb") as stream:
                report = parse_lines(decoded_lines(stream))
    except OSError as error:
        print(f"cannot read {arguments[0]}: {error.strerror}", file=sys.stderr)
        return _USAGE
    print(explain(report).text(), end="")
    return _EXIT_CODES.get(report.outcome, _NOT_ENOUGH_EVIDENCE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
