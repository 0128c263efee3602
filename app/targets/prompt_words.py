"""Which of the words of `chat`, `complete` and `trace` is the server and which the question."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from app.errors import ExitCode, StokerError, UsageError
from app.targets.servers import is_server_word


def server_and_text(words: Sequence[str]) -> tuple[str | None, str | None]:
    """`[SERVER] [TEXT]` taken apart; of two words the server may also come last."""
    if len(words) > 2:
        raise _too_many(words)
    if len(words) == 2:
        first, second = words
        is_turned = is_server_word(second) and not is_server_word(first)
        return (second, first) if is_turned else (first, second)
    if not words:
        return None, None
    return (words[0], None) if is_server_word(words[0]) else (None, words[0])


def chat_words(words: Sequence[str], *, has_message: bool) -> tuple[str | None, str | None]:
    """The same for a chat; with a message from elsewhere the one word is a server."""
    if has_message:
        if len(words) > 1:
            raise _too_many(words)
        return (words[0] if words else None), None
    server, text = server_and_text(words)
    is_word = text is not None and text != "-" and not any(char.isspace() for char in text)
    if is_word and server is None and sys.stdin.isatty():
        # A mistyped name must not become a question to another server.
        raise StokerError(
            f"no server is called {text}",
            hint=f"`stoker ps` lists servers; to ask it as a question: stoker chat -m {text}",
            exit_code=ExitCode.UNREACHABLE,
        )
    return server, text


def _too_many(words: Sequence[str]) -> StokerError:
    return UsageError(
        f"{len(words)} arguments, but at most a server and a question fit",
        hint='put the question into quotes: stoker chat "how do I ..."',
    )


def read_stdin() -> str:
    """What is piped in, as text."""
    # Python lets any byte pass through stdin in some locales; a model gets none of that.
    raw = getattr(sys.stdin, "buffer", None)
    try:
        return sys.stdin.read() if raw is None else str(raw.read(), "utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            "the input is not text in UTF-8", hint="convert it first, for example with iconv"
        ) from error
