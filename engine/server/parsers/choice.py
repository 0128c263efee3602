"""Which parsers of thoughts and tool calls a server uses: those asked for, or what the chat
template shows the model to write.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.frontend.chat_template import ChatTemplate

AUTO, NONE = "auto", "none"

# First match wins. All words of a row stand in the templates of that family.
_REASONING_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kimi_k2", ("◁think▷",)),
    ("mistral", ("[THINK]",)),
    ("seed_oss", ("<seed:think>",)),
    ("gemma4", ("<|channel>",)),
    ("glm45", ("<think>", "[gMASK]")),
    ("minimax_m2", ("<think>", "]~b]")),
    ("deepseek_v3", ("<think>", "<｜Assistant｜>", "thinking")),
    ("deepseek_r1", ("</think>", "<｜Assistant｜>")),
    ("qwen3", ("<think>",)),
)
_TOOL_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("<tool_call>", "<function=")),  # written as XML, which no parser here reads
    ("", ("<tool_call>", "<arg_key>")),
    ("hermes", ("<tool_call>",)),
    ("llama3_json", ("tools", "ipython", '"parameters"')),
)


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """A parser's name, None where there is none, and the reason for the log."""

    name: str | None
    reason: str


def choose_reasoning_parser(asked: str, template: ChatTemplate | None) -> ParserChoice:
    """What --reasoning-parser means for this model."""
    return _choose(asked, template, _REASONING_SIGNS)


def choose_tool_parser(asked: str, template: ChatTemplate | None) -> ParserChoice:
    """What --tool-call-parser means for this model."""
    return _choose(asked, template, _TOOL_SIGNS)


def _choose(
    asked: str, template: ChatTemplate | None, signs: tuple[tuple[str, tuple[str, ...]], ...]
) -> ParserChoice:
    if asked == NONE:
        return ParserChoice(None, "as asked for")
    if asked != AUTO:
        return ParserChoice(asked, "as asked for")
    if template is None:
        return ParserChoice(None, "the model has no chat template")
    for name, words in signs:
        if all(word in template.source for word in words):
            return ParserChoice(name or None, f"the chat template has {' and '.join(words)}")
    return ParserChoice(None, "the chat template shows no marks of any")
