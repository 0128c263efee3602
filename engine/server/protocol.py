"""Request bodies of the OpenAI API: fields, types, and what is refused instead of ignored.

Unknown fields are ignored. A field that is known but not supported is refused unless its value
changes nothing: an answer that silently lacks what was asked for is worse than an error.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine.errors import RequestError
from engine.frontend.chat_template import ReadContent, image_url, plain_text
from engine.frontend.input_processor import InputProcessor
from engine.sampling_params import SamplingParams
from engine.server.errors import ApiError
from engine.server.http.body_limits import MAX_MESSAGES, MAX_TOOLS, CheckedList
from engine.server.structured import StructuredFields, structured_outputs_of
from engine.server.tool_fields import MessageToolCall, ToolDefinition

MAX_CHOICES = 128
"""Most samples (`n` times prompts) of one API request."""

# Field -> values that ask for nothing beyond what this server does anyway.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "length_penalty": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "logprob_token_ids": ([],),
    "guided_whitespace_pattern": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "use_beam_search": (False,),
    "suffix": ("",),
    "prompt_embeds": (),
    "chat_template": (),
    "reasoning_effort": ("none",),  # of a text completion; a chat has it
    "thinking_token_budget": (),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "return_prompt_text": (False,),
    "spaces_between_special_tokens": (True,),
    "repetition_detection": (),
    "kv_transfer_params": (),
    "mm_processor_kwargs": ({},),
}

# Fields that reach SamplingParams as they are; those left out keep the model's defaults.
_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "prompt_logprobs",
)

Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
_SCALAR_BRANCHES = ("str", "int", "float", "bool", "constrained-str", "constrained-int")
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
_TokenId = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]  # strict: `true` is no token
TokenIds = CheckedList[_TokenId]
"""Token ids of a request; whether the vocabulary has them is checked later."""

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model should think; which of these its template knows is the template's business."""

PromptLimit = Annotated[int, Field(ge=-1, le=2**31 - 1)]
"""`truncate_prompt_tokens`: most tokens of a prompt; -1 is what fits beside the answer."""


class Body(BaseModel):
    """What all request bodies share."""

    model_config = ConfigDict(extra="ignore")

    UNSUPPORTED: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Known fields that are refused, with the values that ask for nothing."""

    # Of these two, the last one is the first to run.
    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, raw: Any) -> Any:
        if isinstance(raw, dict):
            for name in raw.keys() & (cls.UNSUPPORTED.keys() - cls.model_fields.keys()):
                _require_neutral(name, raw[name], cls.UNSUPPORTED[name])
        return raw

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, raw: Any) -> Any:
        return {k: v for k, v in raw.items() if v is not None} if isinstance(raw, dict) else raw


class StreamOptions(Body):
    """`stream_options`: when a stream carries token counts."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(Body, StructuredFields):
    """Fields that chat and text completions share."""

    model: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Int32 = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[Count, float] = Field(default_factory=dict)
    allowed_token_ids: TokenIds = Field(default_factory=list, min_length=1)
    bad_words: CheckedList[str] = Field(default_factory=list)
    prompt_logprobs: Int32 | None = None
    seed: int | None = None
    n: Int32 = 1
    stop: str | CheckedList[str] = Field(default_factory=list)
    stop_token_ids: TokenIds = Field(default_factory=list)
    min_tokens: Int32 = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Int32 = 0
    cache_salt: str | None = None
    best_of: Int32 | None = None
    truncate_prompt_tokens: PromptLimit | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    UNSUPPORTED: ClassVar[Mapping[str, tuple[object, ...]]] = _UNSUPPORTED

    def sampling_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """Checked sampling settings; RequestError names what is out of range.

        `defaults` are the model's own, for fields that the request leaves out.
        """
        asked = {name: getattr(self, name) for name in _SAMPLING_FIELDS if self._has(name)}
        settings: dict[str, Any] = {**defaults, **asked, **self._own_settings()}
        params = SamplingParams(
            **settings,
            n=self.n,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            logit_bias=tuple(self.logit_bias.items()),
            allowed_token_ids=tuple(self.allowed_token_ids),
            bad_words=tuple(self.bad_words),
            structured_outputs=structured_outputs_of(self),
        ).validate()
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError(
                "prompt_logprobs cannot be streamed; send stream=false.", param="prompt_logprobs"
            )
        return params

    def _own_settings(self) -> dict[str, int | None]:
        """Settings whose fields differ between the endpoints."""
        return {}

    def _has(self, name: str) -> bool:
        return name in self.model_fields_set

    def check_choices(self, num_prompts: int) -> None:
        """Refuse more samples than one request may ask for, or none at all."""
        if num_prompts < 1:
            raise RequestError("The prompt is empty; give at least one.", param="prompt")
        if self.n < 1 or self.n * num_prompts > MAX_CHOICES:
            raise RequestError(
                f"{num_prompts} prompt(s) with n={self.n} make {self.n * num_prompts} samples; one "
                f"request may ask for 1 to {MAX_CHOICES}.",
                param="n",
            )
        if self.best_of not in (None, self.n):
            raise RequestError(
                f"best_of={self.best_of} with n={self.n} asks for answers that are thrown away, "
                "which this server does not do; leave best_of out.",
                param="best_of",
                code="unsupported",
            )
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream=true.", param="stream_options")


class Message(BaseModel):
    """One chat message; further fields reach the chat template as they are."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | CheckedList[dict[str, Any]] | None = None
    tool_calls: CheckedList[MessageToolCall] | None = None

    def for_template(self, read_content: ReadContent = plain_text) -> dict[str, Any]:
        """With plain text as content, which is what templates of text models expect, or with what
        `read_content` makes of it. Of a system message many templates read the first part alone.

        Templates ask whether `tool_calls` is there, so a list without calls is left out.
        """
        content = read_content(self.content)
        if self.role == "system" and isinstance(content, list) and not self.image_urls():
            content = [{"type": "text", "text": plain_text(self.content)}]
        message = {**self._extra(), "role": self.role, "content": content}
        if "reasoning" in message:  # of an earlier answer; templates know it by its older name
            message.setdefault("reasoning_content", message["reasoning"])
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump(exclude_none=True) for call in self.tool_calls]
        return message

    def image_urls(self) -> list[str]:
        """Where the images of its content are, in their order."""
        parts = self.content if isinstance(self.content, list) else []
        return [url for part in parts if (url := image_url(part)) is not None]

    def digest(self) -> bytes:
        """The same for the same message, and for hardly any other."""
        text = repr(self.model_dump(exclude_none=True))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()

    def _extra(self) -> dict[str, Any]:
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}


class PromptEnd(BaseModel):
    """How a rendered chat ends: with the beginning of a new message, or inside the last one."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def adds_generation_prompt(self) -> bool:
        """Whether the model begins a new message; False where it goes on with the last one."""
        is_asked = self.add_generation_prompt and "add_generation_prompt" in self.model_fields_set
        if self.continue_final_message and is_asked:
            raise RequestError(
                "continue_final_message goes on with the last message, add_generation_prompt "
                "begins a new one; send one of them.",
                param="continue_final_message",
            )
        return self.add_generation_prompt and not self.continue_final_message


class ChatBody(GenerationBody, PromptEnd):
    """POST /v1/chat/completions. `max_tokens` is the old name of `max_completion_tokens`.

    The internal form of a chat, too: the bodies of the Responses and Messages APIs become one.
    """

    ID_PREFIX: ClassVar[str] = "chatcmpl-"
    PROMPT_PARAM: ClassVar[str] = "messages"

    messages: CheckedList[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Count = 0
    echo: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool = True
    thinking_token_budget: Count | None = None
    tools: CheckedList[ToolDefinition] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True

    @property
    def token_limit(self) -> int | None:
        """The newer field wins; None is the rest of the context."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def answer_role(self) -> str:
        """Who speaks: the assistant, or whoever wrote the message that goes on."""
        return "assistant" if self.adds_generation_prompt else self.messages[-1].role

    @property
    def echoed_text(self) -> str:
        """What the answer begins with: with `echo`, the texts of a message that it goes on with."""
        if not (self.echo and self.messages[-1].role == self.answer_role):
            return ""
        content = self.messages[-1].content
        if isinstance(content, list):
            content = [part for part in content if image_url(part) is None]
        return plain_text(content)

    @property
    def template_args(self) -> dict[str, Any]:
        """Variables of the chat template beside the messages.

        Templates ask for the effort under its own name, or whether to think at all.
        """
        effort: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            effort["enable_thinking"] = self.reasoning_effort != "none"
            effort["reasoning_effort"] = self.reasoning_effort
        return {"documents": self.documents, **effort, **self.chat_template_kwargs}

    def fitted(
        self, params: SamplingParams, _processor: InputProcessor, _num_prompt_tokens: int
    ) -> SamplingParams:
        """`params` for a prompt of this length; a limit that is too high stays, and is refused."""
        return params

    def _own_settings(self) -> dict[str, int | None]:
        if self.top_logprobs and not self.logprobs:
            raise RequestError(
                f"top_logprobs={self.top_logprobs} needs logprobs=true.", param="top_logprobs"
            )
        return {
            "max_tokens": self.token_limit,
            "logprobs": self.top_logprobs if self.logprobs else None,
        }


class AgentChat(ChatBody):
    """A chat of an API whose clients ask for as long an answer as their own models can give: a
    limit above what the context has left is lowered to that.
    """

    def fitted(
        self, params: SamplingParams, processor: InputProcessor, num_prompt_tokens: int
    ) -> SamplingParams:
        return processor.within_context(params, num_prompt_tokens)


class CompletionBody(GenerationBody):
    """Body of POST /v1/completions: one prompt or several, as text or token ids."""

    prompt: str | CheckedList[str] | TokenIds | CheckedList[TokenIds]
    max_tokens: int = 16
    logprobs: Int32 | None = None
    echo: bool = False
    add_special_tokens: bool = True

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts as a list, whatever form they came in."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt and isinstance(prompt[0], int):
            return [[token for token in prompt if isinstance(token, int)]]
        return [entry for entry in prompt if not isinstance(entry, int)]

    @property
    def is_prompt_only(self) -> bool:
        """True for `echo` with `max_tokens` 0: the prompt comes back and nothing after it."""
        return self.echo and self.max_tokens == 0

    def _own_settings(self) -> dict[str, int | None]:
        settings = {
            "max_tokens": 1 if self.is_prompt_only else self.max_tokens,
            "logprobs": self.logprobs,
        }
        if self.echo and self.prompt_logprobs is None:
            settings["prompt_logprobs"] = self.logprobs
        return settings


class TokenizeBody(Body, PromptEnd):
    """POST /tokenize: a text or a chat. The last one: vLLM's field, at the value without effect."""

    model: str | None = None
    prompt: str | None = None
    messages: CheckedList[Message] | None = Field(None, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: CheckedList[ToolDefinition] = Field(default_factory=list, max_length=MAX_TOOLS)
    return_token_strs: bool = False
    chat_template: None = None

    @property
    def template_args(self) -> dict[str, Any]:
        """Variables of the chat template beside the messages."""
        return self.chat_template_kwargs


class DetokenizeBody(Body):
    """Body of POST /detokenize: the ids whose text is wanted."""

    model: str | None = None
    tokens: TokenIds


BodyT = TypeVar("BodyT", bound=Body)


def parse_body(kind: type[BodyT], raw: bytes) -> BodyT:
    """Parse and check a JSON body; 400 says which field is wrong and how."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _refusal(error) from error


def make_body(kind: type[BodyT], fields: dict[str, Any]) -> BodyT:
    """A body of the fields that another API's body came to; refused as if it had been sent."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error) from error


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is not valid JSON: {first['msg']}.")
    path = _field_path(first["loc"])
    return ApiError(400, f"{path or 'body'}: {first['msg']}.", param=path)


def _field_path(location: tuple[int | str, ...]) -> str | None:
    """`messages.0.content` of pydantic's location, which goes on with the branch of a union."""

    def is_field(step: int | str) -> bool:
        return isinstance(step, int) or (step.isidentifier() and step not in _SCALAR_BRANCHES)

    steps = itertools.takewhile(is_field, location)
    return ".".join(str(step) for step in steps) or None


def _require_neutral(name: str, value: object, neutral: tuple[object, ...]) -> None:
    if value not in neutral:
        accepted = " or ".join(repr(entry) for entry in neutral)
        hint = f"leave it out or send {accepted}" if accepted else "leave it out"
        raise RequestError(
            f"`{name}` is not supported by this server; {hint}.", param=name, code="unsupported"
        )
