"""One chat as both front ends drive it: the conversation, what is pending, asking and keeping.

Owns no screen. A change is saved at once; when saving fails the chat goes on and says so once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.client.chat.attachments import read_attachment
from app.client.chat.context_use import ContextUse, context_use
from app.client.chat.conversations import ConversationEntry, ConversationStore, StoreError
from app.client.chat.stream import ChatDelta, stream_chat, stream_chat_async
from app.client.chat.turns import Attachment, Conversation, Turn
from app.client.served_model import ServedModel
from app.client.terminal_text import strip_escapes


class ChatError(Exception):
    """What was asked of the chat cannot be done now; `str()` is one line."""


@dataclass(frozen=True, slots=True)
class ChatTarget:
    """Where questions go. `tools` are the API's tool definitions."""

    url: str
    model: ServedModel
    api_key: str | None = field(default=None, repr=False)
    tools: tuple[dict[str, Any], ...] = ()


class ChatSession:
    """The state of one chat; `store` is None when nothing is to be saved."""

    def __init__(
        self,
        target: ChatTarget,
        store: ConversationStore | None = None,
        conversation: Conversation | None = None,
    ) -> None:
        self.target = target
        self.conversation = conversation or Conversation()
        self.attachments: list[Attachment] = []
        self.editing: int | None = None  # index of the turn that the next question replaces
        self.save_problem = ""
        self._store = store
        self._replaced: Turn | None = None

    # -- asking --------------------------------------------------------------

    def ask(self, text: str) -> None:
        """Add a question; in place of the one that is being edited, if there is one."""
        if self.editing is not None:
            self._cut(self.editing)
        turn = Turn("user", strip_escapes(text), attachments=tuple(self.attachments))
        self.attachments, self.editing = [], None
        self._add(turn)

    def answer_tool_call(self, text: str) -> None:
        """Give the model the result of the first call that has none."""
        call = self.conversation.open_call()
        if call is None:
            raise ChatError("no tool call waits for a result")
        self._add(Turn("tool", strip_escapes(text), tool_call_id=call.id))

    def ask_again(self) -> None:
        """Drop the last answer so that it can be made anew."""
        turns = self.conversation.turns
        if not turns:
            raise ChatError("there is no question yet")
        if turns[-1].role == "assistant":
            self._replaced = turns[-1]
            self.conversation = replace(self.conversation, turns=turns[:-1])

    def edit(self, number: int | None = None) -> str:
        """Start to edit a question (the last one without a number); its text comes back."""
        questions = [i for i, turn in enumerate(self.conversation.turns) if turn.role == "user"]
        if not questions:
            raise ChatError("there is no question yet")
        if number is not None and not 1 <= number <= len(questions):
            raise ChatError(f"there is no question {number}; there are {len(questions)}")
        self.editing = questions[-1 if number is None else number - 1]
        turn = self.conversation.turns[self.editing]
        self.attachments = list(turn.attachments)
        return turn.text

    def cancel_edit(self) -> None:
        """Leave the conversation as it is."""
        self.editing, self.attachments = None, []

    def stream(self) -> Generator[ChatDelta, None, None]:
        """The answer to the conversation as it stands."""
        return stream_chat(
            self.target.url,
            self.conversation.messages(),
            model=self.target.model.id,
            api_key=self.target.api_key,
            **self._body_fields(),
        )

    def stream_async(self) -> AsyncGenerator[ChatDelta, None]:
        """The asynchronous twin of `stream`."""
        return stream_chat_async(
            self.target.url,
            self.conversation.messages(),
            model=self.target.model.id,
            api_key=self.target.api_key,
            **self._body_fields(),
        )

    def keep(self, answer: Turn) -> Turn:
        """Add the answer, whole or not; one that never began does not replace another."""
        replaced, self._replaced = self._replaced, None
        kept = replaced if answer.is_empty and replaced else answer
        self._add(kept)
        return kept

    def _body_fields(self) -> dict[str, Any]:
        tools = list(self.target.tools) or None
        return {**self.conversation.parameters.body_fields(), "tools": tools}

    # -- the conversation ----------------------------------------------------

    def new(self) -> None:
        """Another conversation with the same system prompt and parameters."""
        old = self.conversation
        self.conversation = Conversation(system=old.system, parameters=old.parameters)
        self.cancel_edit()

    def change(self, **changes: Any) -> None:
        """Change fields of the conversation."""
        self.conversation = replace(self.conversation, **changes)
        if self.conversation.turns:
            self.save()

    def open(self, conversation_id: int) -> None:
        """Go on with a saved conversation."""
        self.conversation = self._saved().load(conversation_id)
        self.cancel_edit()

    def delete(self, conversation_id: int) -> None:
        """Forget a saved conversation; the one on screen becomes an unsaved one."""
        self._saved().delete(conversation_id)
        if self.conversation.id == conversation_id:
            self.new()

    def saved_title(self, conversation_id: int) -> str:
        """What a saved conversation is called; StoreError when there is none of this number."""
        return self._saved().title(conversation_id)

    def entries(self, search: str = "") -> list[ConversationEntry]:
        """Saved conversations, the latest first."""
        return self._saved().list(search)

    def attach(self, path: Path) -> Attachment:
        """Send a file along with the next question."""
        attachment = read_attachment(path)
        self.attachments.append(attachment)
        return attachment

    def use_model(self, name: str) -> None:
        """Ask another model of the same server from now on."""
        known = self.target.model.all_ids
        if known and name not in known:
            raise ChatError(f"the server has no model {name}; it has {', '.join(known)}")
        # What is known of one model's context says nothing about another's.
        length = self.target.model.max_model_len if name == self.target.model.id else None
        self.target = replace(self.target, model=ServedModel(name, length, known))

    def context(self, draft: str = "") -> ContextUse:
        """What the context holds, with `draft` and the pending files added."""
        conversation = self.conversation
        if self.editing is not None:
            conversation = replace(conversation, turns=conversation.turns[: self.editing])
        files = "".join(attachment.text for attachment in self.attachments)
        num_images = sum(attachment.is_image for attachment in self.attachments)
        limit = self.target.model.max_model_len
        return context_use(conversation, draft + files, limit, num_images)

    def save(self) -> None:
        """Write the conversation; a failure is kept in `save_problem`."""
        if self._store is None:
            return
        named = replace(self.conversation, model=self.target.model.id)
        try:
            self.conversation = self._store.save(named)
        except StoreError as error:
            self.save_problem, self._store = str(error), None

    @property
    def is_saving(self) -> bool:
        """True while conversations are kept in a file."""
        return self._store is not None

    def _saved(self) -> ConversationStore:
        if self._store is None:
            raise ChatError(self.save_problem or "conversations are not saved (--no-save)")
        return self._store

    def _cut(self, index: int) -> None:
        """Drop the turns from `index` on; what would be lost stays as a conversation of its own."""
        turns = self.conversation.turns
        is_last = not any(turn.role == "user" for turn in turns[index + 1 :])
        kept = replace(self.conversation, turns=turns[:index])
        self.conversation = kept if is_last else replace(kept, id=None, title="")

    def _add(self, turn: Turn) -> None:
        turns = (*self.conversation.turns, turn)
        self.conversation = replace(self.conversation, turns=turns)
        self.save()
