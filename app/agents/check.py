"""What of a server will not work with an agent, or not well, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from app.client.abilities import ServerAbilities
from app.client.transport import unix_socket

_ROOM_FOR_ANSWERS = 4096


@dataclass(frozen=True, slots=True)
class AgentNeeds:
    """What an agent asks of a server. `first_prompt` is about how many tokens its first request
    has, instructions and tools; with `has_to_call` it is of no use without tools.
    """

    name: str
    first_prompt: int
    route: str = "/v1/chat/completions"
    has_to_call: bool = False


NEEDS = {
    "claude": AgentNeeds("Claude Code", 24_000, "/v1/messages", has_to_call=True),
    "codex": AgentNeeds("Codex", 14_000, "/v1/responses", has_to_call=True),
    "opencode": AgentNeeds("opencode", 12_000, has_to_call=True),
    "aider": AgentNeeds("aider", 4_000),
    "continue": AgentNeeds("Continue", 4_000),
    "llm": AgentNeeds("llm", 0),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """`is_fatal`: the agent cannot work at all."""

    text: str
    hint: str
    is_fatal: bool = False


def problems_of(needs: AgentNeeds, server: ServerAbilities) -> list[Problem]:
    """All that is wrong, what ends everything first."""
    found = [*_place(needs, server), *_tools(needs, server), *_context(needs, server)]
    if server.shows_thoughts:
        found.append(
            Problem(
                "what the model thinks stands in its answers",
                "serve it with --reasoning-parser NAME, the one of its family",
            )
        )
    if server.caches_prefixes is False and needs.first_prompt:
        found.append(
            Problem(
                "the prefix cache is off: each turn reads the whole conversation again",
                "serve it without --no-enable-prefix-caching",
            )
        )
    return sorted(found, key=lambda problem: not problem.is_fatal)


def _place(needs: AgentNeeds, server: ServerAbilities) -> list[Problem]:
    if unix_socket(server.url) is not None:
        return [
            Problem(
                f"{needs.name} speaks to an address, and this server listens on a socket file",
                "serve it with --port instead of --uds",
                is_fatal=True,
            )
        ]
    has = {"/v1/messages": server.has_messages, "/v1/responses": server.has_responses}
    if has.get(needs.route, True):
        return []
    return [
        Problem(
            f"{needs.name} speaks {needs.route}, which this server does not have",
            "serve the model with --engine stoker, or with a newer release of its engine",
            is_fatal=True,
        )
    ]


def _tools(needs: AgentNeeds, server: ServerAbilities) -> list[Problem]:
    if server.tools_refusal is None or not (needs.has_to_call or needs.first_prompt):
        return []
    return [
        Problem(
            f"the server refuses tools: {server.tools_refusal}",
            "serve it with --tool-call-parser NAME, the one of the model's family (vLLM: with "
            "--enable-auto-tool-choice, too)",
            is_fatal=needs.has_to_call,
        )
    ]


def _context(needs: AgentNeeds, server: ServerAbilities) -> list[Problem]:
    if not needs.first_prompt:
        return []
    length, least = server.model.max_model_len, needs.first_prompt + _ROOM_FOR_ANSWERS
    about = f"{needs.name} begins with about {needs.first_prompt:,} tokens"
    if length is None:
        return [Problem("the server does not say how long its context is", about)]
    if length >= 2 * least:
        return []
    is_fatal = length < least
    words = "too short" if is_fatal else "soon full"
    return [
        Problem(
            f"the context of {length:,} tokens is {words}: {about}",
            f"serve it with --max-model-len {2 * least} or more, where the model can",
            is_fatal=is_fatal,
        )
    ]
