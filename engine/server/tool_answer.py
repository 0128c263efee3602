"""One choice's text as OpenAI's messages and deltas with tool calls."""

from __future__ import annotations

from engine.server.parsers.tool_calls.base import Parsed, ToolCallDelta
from engine.server.tools import ToolPlan


class ToolAnswer:
    """Reads one choice of a request whose plan has a parser."""

    def __init__(self, plan: ToolPlan) -> None:
        assert plan.make_parser is not None, "without one there is nothing to read"
        self._parser = plan.make_parser()
        self._plan = plan

    def message(self, text: str) -> dict[str, object]:
        content, calls = self._parser.parse(text)
        message: dict[str, object] = {"role": "assistant", "content": content}
        if calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {
                    **self._identity(call.name, index),
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(calls[: self._plan.max_calls])
            ]
        return message

    def feed(self, text: str) -> list[dict[str, object]]:
        """The deltas that a piece of text brings; none while it may be the beginning of a call."""
        return self._deltas(self.read(text))

    def finish(self) -> list[dict[str, object]]:
        """The deltas of what was held back."""
        return self._deltas(self.read_end())

    def read(self, text: str) -> Parsed:
        """What a piece of text brings, of the calls that are kept."""
        return self._kept(self._parser.feed(text))

    def read_end(self) -> Parsed:
        """What was held back because it might have become a call."""
        return self._kept(self._parser.finish())

    def finish_reason(self, reason: str | None) -> str | None:
        """`tool_calls` for an answer that ended by itself with a call that the model chose."""
        if reason == "stop" and self._parser.num_calls and not self._plan.ends_with_stop:
            return "tool_calls"
        return reason

    def _kept(self, parsed: Parsed) -> Parsed:
        limit = self._plan.max_calls
        if limit is None:
            return parsed
        kept = [part for part in parsed.parts if isinstance(part, str) or part.index < limit]
        return Parsed(kept)

    def _deltas(self, parsed: Parsed) -> list[dict[str, object]]:
        return [
            {"content": part} if isinstance(part, str) else {"tool_calls": [self._call_delta(part)]}
            for part in parsed.parts
        ]

    def _call_delta(self, call: ToolCallDelta) -> dict[str, object]:
        if call.name is None:
            return {"index": call.index, "function": {"arguments": call.arguments}}
        function = {"name": call.name, "arguments": call.arguments}
        identity = self._identity(call.name, call.index)
        return {"index": call.index, **identity, "function": function}

    def _identity(self, name: str, index: int) -> dict[str, object]:
        return {"id": self._parser.new_call_id(name, index), "type": "function"}
