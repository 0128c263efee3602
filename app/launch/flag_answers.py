"""What is said of flags that an engine does not take: their successor, the reason, a near name.

The tables are logparse's: a log that ends with such a flag is explained by the same ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.errors import UsageError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM

_TOKEN_FLAGS = ("--hf-token", "-hft")
Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlagReader:
    """Who reads the flags: the engine, the release of vLLM (None: the newest), what it takes."""

    engine: str
    version: Version | None
    known: tuple[str, ...]
    command: str = "serve"

    def refusal(self, words: Sequence[str], unknown: Iterable[str]) -> UsageError:
        """One error for all `unknown` flags of `words`, each with its answer; those with the same
        one share it.
        """
        flags = list(dict.fromkeys(word.partition("=")[0] for word in unknown))
        by_answer: dict[str, list[str]] = {}
        for flag in flags:
            by_answer.setdefault(self.answer(flag, value_of(flag, words)), []).append(flag)
        if len(flags) == 1:
            return UsageError(f"no such flag: {flags[0]}", hint=next(iter(by_answer)))
        lines = (f"{', '.join(alike)}: {answer}" for answer, alike in by_answer.items())
        return UsageError(f"no such flags: {', '.join(flags)}", hint="\n  ".join(("", *lines)))

    def answer(self, flag: str, value: str | None) -> str:
        """What to do instead of giving `flag`."""
        from logparse.problems.flags import GONE_FLAGS, OWN_ANSWERS, VLLM_FLAGS

        if flag in _TOKEN_FLAGS:  # its value is for nobody to see, behind `--` neither
            return OWN_ANSWERS[_TOKEN_FLAGS[0]]
        gone = GONE_FLAGS.get(flag)
        if self.engine == LLAMA_CPP and (gone or flag in VLLM_FLAGS):
            return "a flag of vLLM that llama-server has no equal of: leave it out"
        if gone is not None and (self.engine == STOKER or gone.is_gone(self.version)):
            return self._gone(flag, value)
        if self.engine == STOKER and flag in OWN_ANSWERS:
            return OWN_ANSWERS[flag].replace("{value}", value or "FOLDER")
        if self.engine == STOKER and flag in VLLM_FLAGS:
            return (
                "a flag of vLLM that Stoker's own engine does not have: leave it out, or choose "
                f"--engine vllm and put it behind the other flags: -- {flag}"
            )
        if self.engine == VLLM and (gone or flag in VLLM_FLAGS or self.lacks(flag)):
            return self._vllms_own(flag, value)
        return self._near(flag)

    def lacks(self, flag: str) -> bool:
        """Whether it is vLLM's, but came with a later release than the one that will run."""
        from logparse.problems.flags import knows_flag

        return self.engine == VLLM and not knows_flag(flag, self.version)

    def is_vllms(self, flag: str) -> bool:
        """Whether the vLLM that will run takes it, whatever we know of its meaning."""
        from logparse.problems.flags import GONE_FLAGS, VLLM_FLAGS

        gone = GONE_FLAGS.get(flag)
        is_there = flag in VLLM_FLAGS if gone is None else not gone.is_gone(self.version)
        return self.engine == VLLM and is_there and not self.lacks(flag)

    def _gone(self, flag: str, value: str | None) -> str:
        """It works nowhere, behind `--` neither."""
        from logparse.problems.flags import GONE_FLAGS

        gone = GONE_FLAGS[flag]
        version = self.version if self.engine == VLLM else None
        successor = gone.replacement(value, version)
        removed = f"vLLM has removed it ({release(gone.since)}): {gone.reason}"
        if successor is None:
            return f"{removed}; leave it out"
        if successor.split()[0] in self.known:
            return f"{removed}; what took its place: {successor}"
        engine = "" if self.engine == VLLM else ", with --engine vllm"
        return f"{removed}; what took its place: -- {successor}, behind the other flags{engine}"

    def _vllms_own(self, flag: str, value: str | None) -> str:
        from logparse.problems.flags import FIRST_RELEASES

        if self.lacks(flag):
            first = release(FIRST_RELEASES[flag])
            return f"vLLM {release(self.version or ())} does not have it, it came with {first}"
        said = f"{flag} {value}" if value else flag
        return f"flags of vllm alone go to the end, behind `--`: -- {said}"

    def _near(self, flag: str) -> str:
        near = difflib.get_close_matches(flag, self.known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"`stoker {self.command} --help` lists them"
        if self.engine == STOKER or self.command == "plan":
            return hint
        return f"{hint}; flags of {self.engine} alone go to the end, behind `--`: -- {flag}"


def value_of(flag: str, words: Sequence[str]) -> str | None:
    """What stands behind the flag, or in it; None for a switch, and for none."""
    from logparse.problems.flags import GONE_FLAGS, VLLM_SWITCHES

    gone = GONE_FLAGS.get(flag)
    if flag in VLLM_SWITCHES or (gone is not None and gone.is_switch):
        return None
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == flag:
            behind = words[number + 1 : number + 2]
            return value if equals else next((one for one in behind if one[:1] != "-"), None)
    return None


def release(version: Version) -> str:
    """As people say it: 0.18, 0.10.1."""
    return ".".join(map(str, version[:2] if version[2:] in ((), (0,)) else version))


def require_switches(words: Sequence[str], switches: Iterable[str]) -> None:
    """UsageError for `--enable-chunked-prefill False` and its like, as older vLLMs took them."""
    known = set(switches)
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        said = value if equals else next(iter(words[number + 1 : number + 2]), "")
        if flag not in known or (not equals and said.lower() not in ("true", "false")):
            continue
        is_on = said.lower() in ("true", "1") and not flag.startswith("--no-")
        name = flag.removeprefix("--").removeprefix("no-")
        raise UsageError(
            f"{flag} is a switch and takes no value ({said})",
            hint=f"{'--' if is_on else '--no-'}{name} alone",
        )
