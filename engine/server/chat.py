"""POST /v1/chat/completions: messages to a job, a job's outputs to OpenAI's chat objects."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import RequestError
from engine.frontend.chat_template import ChatTemplate
from engine.server.generation import Choice, Job, make_job, usage
from engine.server.logprobs import chat_logprobs, prompt_logprobs
from engine.server.prompts import encode
from engine.server.protocol import ChatBody, Message
from engine.server.state import Services
from engine.server.streaming import Delta, encode_json


async def make_chat_job(services: Services, body: ChatBody) -> Job:
    """Render the template, tokenize, check."""
    services.check_model(body.model)
    body.check_supported()
    prompt = render_chat(
        services.chat_template,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        template_args=body.chat_template_kwargs,
    )
    token_ids = await encode(
        services.llm.tokenizer, prompt, add_special_tokens=body.add_special_tokens
    )
    params = body.sampling_params(services.sampling_defaults)
    return make_job(
        services, body, [token_ids], params, id_prefix="chatcmpl", prompt_param="messages"
    )


def render_chat(
    template: ChatTemplate | None,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool,
    template_args: dict[str, object] | None = None,
) -> str:
    """The prompt of a chat; RequestError when the model has no template or it refuses."""
    if template is None:
        raise RequestError(
            "This model has no chat template, so it cannot chat; use /v1/completions, or start the "
            "server with --chat-template FILE.",
            param="messages",
        )
    return template.render(
        [message.for_template() for message in messages],
        add_generation_prompt=add_generation_prompt,
        template_args=template_args,
    )


class ChatFormat:
    """Chat completion objects and chunks of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._head = (
            b'data: {"id":"%s","object":"chat.completion.chunk","created":%d,"model":%s,"choices":['
            % (job.id.encode(), job.created, encode_json(job.model))
        )

    def document(self, choices: Sequence[Choice]) -> bytes:
        """The answer that is not streamed."""
        return encode_json(
            {
                "id": self._job.id,
                "object": "chat.completion",
                "created": self._job.created,
                "model": self._job.model,
                "choices": [
                    {
                        "index": index,
                        "message": {"role": "assistant", "content": "".join(choice.texts)},
                        "logprobs": chat_logprobs(choice.logprobs) if choice.logprobs else None,
                        "finish_reason": choice.finish_reason,
                        "stop_reason": choice.stop_reason,
                    }
                    for index, choice in enumerate(choices)
                ],
                "usage": usage(self._job, choices),
                "prompt_logprobs": prompt_logprobs(choices[0].prompt_logprobs)
                if choices[0].prompt_logprobs
                else None,
            }
        )

    def opening(self, index: int) -> bytes:
        """The chunk that names the role."""
        return self._chunk(index, b'{"role":"assistant","content":""}', Delta(""))

    def event(self, index: int, delta: Delta) -> bytes:
        """A chunk with text."""
        return self._chunk(index, b'{"content":%s}' % encode_json(delta.text), delta)

    def closing(self, index: int, delta: Delta, choice: Choice) -> bytes:
        """The last text, if any, and a chunk with the finish reason."""
        content = b'{"content":%s}' % encode_json(delta.text) if delta.text else b"{}"
        reasons = b'"finish_reason":%s,"stop_reason":%s' % (
            encode_json(choice.finish_reason),
            encode_json(choice.stop_reason),
        )
        return self._chunk(index, content, delta, reasons)

    def usage_event(self, usage: dict[str, object]) -> bytes:
        """The chunk after the last choice."""
        return b'%s],"usage":%s}\n\n' % (self._head, encode_json(usage))

    def _chunk(
        self,
        index: int,
        content: bytes,
        delta: Delta,
        reasons: bytes = b'"finish_reason":null',
    ) -> bytes:
        return b'%s{"index":%d,"delta":%s,"logprobs":%s,%s}]%s}\n\n' % (
            self._head,
            index,
            content,
            encode_json(chat_logprobs(delta.logprobs)) if delta.logprobs else b"null",
            reasons,
            delta.usage_field(),
        )
