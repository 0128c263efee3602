"""Which server a chat talks to, and which words are the question."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from app.errors import ExitCode, StokerError

# host:port, :port, a dotted name or number, localhost: what nobody asks a model.
_ADDRESS = re.compile(
    r"(\S+://\S+|[\w.-]*:\d+(/\S*)?|\[[0-9a-fA-F:]+\](:\d+)?(/\S*)?|localhost(/\S*)?"
    r"|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(/\S*)?|\d{2,5})"
)


def split_words(words: Sequence[str], *, has_message: bool) -> tuple[str | None, str | None]:
    """`[URL|NAME] [PROMPT]` taken apart; with a message from elsewhere the one word is a server."""
    from app.ops.find_server import managed_url

    if len(words) > 1 + (not has_message):
        raise StokerError(
            f"{len(words)} arguments, but at most a server and a question fit",
            hint='put the question into quotes: stoker chat "how do I ..."',
            exit_code=ExitCode.USAGE,
        )
    if not words:
        return None, None
    if len(words) == 2:
        return words[0], words[1]
    word = words[0]
    if has_message or _ADDRESS.fullmatch(word) or managed_url(word):
        return word, None
    if word != "-" and not any(char.isspace() for char in word) and sys.stdin.isatty():
        # A mistyped name must not become a question to another server.
        raise StokerError(
            f"no server is called {word}",
            hint=f"`stoker ps` lists servers; to ask it as a question: stoker chat -m {word}",
            exit_code=ExitCode.UNREACHABLE,
        )
    return None, word


def find_target(word: str | None, api_key_file: Path | None) -> tuple[str, str | None]:
    """The server's base URL and the key for it; `word` is an address or a managed server's name."""
    from app.ops.find_server import api_key_from, base_url_of

    return base_url_of(word), api_key_from(api_key_file)


def read_stdin() -> str:
    """What is piped in, as text."""
    # Python lets any byte pass through stdin in some locales; a model gets none of that.
    raw = getattr(sys.stdin, "buffer", None)
    try:
        return sys.stdin.read() if raw is None else str(raw.read(), "utf-8")
    except UnicodeDecodeError as error:
        raise StokerError(
            "the input is not text in UTF-8",
            hint="convert it first, for example with iconv",
            exit_code=ExitCode.USAGE,
        ) from error
