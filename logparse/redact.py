"""Makes text of a log safe to show: secrets masked, no control characters.

Every piece of a log that leaves logparse goes through `safe_text`.
"""

from __future__ import annotations

import functools
import re

MASK = "***"

_ANSI = re.compile(
    r"\x1b(?:\[[0-9;:?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\^_])"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,40}m")  # nearly all of them

# Those of vLLM's prefixes, old and new: a plain replacement costs a tenth of the pattern.
_USUAL_COLOURS = ("\x1b[0;0m", "\x1b[0;36m", "\x1b[1;36m", "\x1b[0m")

_SECRET_NAME = (
    r"(?:(?:\w{1,20}_)?(?:api[_-]?keys?|secret|password)"
    r"|(?:hf|auth|access|api|bearer|refresh|github)[_-]token|token)"
)
_IS_QUOTED = r"['\"]?\s{0,2}[:=]\s{0,2}['\"\[]"


def _hints(*sources: str) -> tuple[re.Pattern[str], ...]:
    """One pattern each: one that begins with letters is looked for many times faster."""
    return tuple(map(re.compile, sources))


# (what stands in the folded text if there is such a secret, the secret): the first is cheap to look
# for. Of the second, group 1 is kept and the rest dropped.
_SECRETS = (
    (
        _hints(r"hf_[a-z0-9]{10}", r"sk-[a-z0-9_-]{8}", r"gh[pousr]_[a-z0-9]{16}"),
        re.compile(r"()\b(?:hf_[A-Za-z0-9]{10,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{16,})"),
    ),
    (
        _hints(r"bearer\s"),
        re.compile(r"(\bBearer\s{1,3})[A-Za-z0-9._~+/=-]{4,}", re.IGNORECASE),
    ),
    (
        _hints("--api-key", "--hf-token", "--admin-api-key"),
        re.compile(r"(--(?:api-key|hf-token|admin-api-key)[ =]{1,3})[^\s'\",]+"),
    ),
    # A dict or Namespace of arguments: the value is quoted, or a list of quoted values.
    (
        _hints(*(word + _IS_QUOTED for word in ("keys?", "secret", "password", "token"))),
        re.compile(
            rf"(['\"]?\b{_SECRET_NAME}['\"]?\s{{0,2}}[:=]\s{{0,2}})"
            r"(?:\[[^\]]{0,2000}\]|'[^']{1,500}'|\"[^\"]{1,500}\")",
            re.IGNORECASE,
        ),
    ),
    # An environment variable or header: upper case, the value is one word.
    (
        _hints("token=", "api_key=", "secret=", "password="),
        re.compile(r"(\b[A-Z][A-Z0-9_]{0,40}(?:TOKEN|API_KEY|SECRET|PASSWORD)=)[^\s'\"]+"),
    ),
    (
        _hints("api_key=", "access_token=", "token=", "key="),
        re.compile(r"([?&](?:api_key|access_token|token|key)=)[^&\s'\"]+"),
    ),
    (_hints("://"), re.compile(r"(://[^/\s:@]{1,80}:)[^/\s@]{1,200}(?=@)")),
)
_SHORT = 100
_SECRET_WORDS = ("hf_", "sk-", "gh", "bearer", "key", "secret", "password", "token", "://")


def strip_ansi(text: str) -> str:
    """Without terminal colours and titles."""
    if "\x1b" in text:
        for colour in _USUAL_COLOURS:
            text = text.replace(colour, "")
            if "\x1b" not in text:
                return text
        text = _COLOUR.sub("", text)
        if "\x1b" in text:
            text = _ANSI.sub("", text)
    return text


def mask_secrets(text: str) -> str:
    """Tokens, keys and passwords become ***."""
    folded = text.casefold()
    for word in _SECRET_WORDS:
        if word in folded:
            break
    else:
        return text
    for hints, pattern in _SECRETS:
        for hint in hints:
            if hint.search(folded):
                text = pattern.sub(_masked, text)
                break
    return text


def _masked(match: re.Match[str]) -> str:
    return f"{match[1]}{MASK}"


def safe_text(text: str, limit: int = 4000) -> str:
    """Text that may be printed: masked, one line, no control characters, `limit` long."""
    cut = text[: 8 * limit]
    # Masked before it is cut, so that the cut cannot leave half a secret unrecognised.
    safe = _safe_again(cut) if len(cut) < _SHORT else _safe(cut)
    return safe[:limit].rstrip()


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, cut between words; what was cut away is marked."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 4]
    head, space, _ = kept.rpartition(" ")
    return f"{head if space and len(head) > limit // 2 else kept} ..."


def shortened_front(text: str, limit: int) -> str:
    """The end of a path or a name, with a mark where its beginning was cut away."""
    return text if len(text) <= limit else f"...{text[3 - limit :]}"


def _safe(text: str) -> str:
    return mask_secrets(printable(strip_ansi(text)))


# Names and versions come again with each rank and each start.
_safe_again = functools.lru_cache(maxsize=256)(_safe)


def printable(text: str) -> str:
    """On one line and without control characters."""
    if text.isprintable():
        return text
    return "".join(char for char in text.replace("\t", " ") if char.isprintable())
