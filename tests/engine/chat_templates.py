"""Short chat templates with what is typical of each family's: marks, roles, how calls are written.

They are no copies: a family's own template has the same marks and a hundred lines more.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A template, and the parsers that fit it; `others` are names that vLLM alone has."""

    source: str
    reasoning: str | None = None
    tools: str | None = None
    model_type: str | None = None
    others: tuple[str, ...] = ()


_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}{% if m.tool_calls %}"
    "@{% endif %}{{ '<|im_end|>' }}{% endfor %}"
)
_JSON_CALL = "{{ '<tool_call>\\n' + m.tool_calls[0].function | tojson + '\\n</tool_call>' }}"
_XML_CALL = "{{ '<tool_call>\\n<function=' + c.name + '>\\n<parameter=' + k + '>\\n' }}"
_THINK = (
    "{% if enable_thinking %}{{ '<think>\\n' }}{% else %}{{ '<think>\\n\\n</think>' }}{% endif %}"
)
_LLAMA = (
    "{% if tools is not none %}{{ 'Environment: ipython' }}{{ 'Answer with {\"name\": f, "
    '"parameters": {}}\' }}{% endif %}<|start_header_id|>{{ messages[0].role }}<|end_header_id|>'
)
_DEEPSEEK = "{{ '<｜User｜>' + messages[0].content + '<｜Assistant｜>' }}"
_DEEPSEEK_CALLS = "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' }}"


def _chatml(call: str) -> str:
    return _CHATML.replace("@", call)


FAMILIES: dict[str, Family] = {
    "qwen2.5": Family(_chatml(_JSON_CALL), None, "hermes", "qwen2"),
    "qwen3": Family(_chatml(_JSON_CALL) + _THINK, "qwen3", "hermes", "qwen3"),
    "qwen3-instruct": Family(_chatml(_JSON_CALL), None, "hermes", "qwen3"),
    "qwen3-coder": Family(_chatml(_XML_CALL), None, "qwen3_coder", "qwen3_moe"),
    "qwen3.5": Family(_chatml(_XML_CALL) + _THINK, "qwen3", "qwen3_coder", "qwen3_5"),
    "qwq": Family(_chatml(_JSON_CALL) + "{{ '<think>\\n' }}", "qwen3", "hermes", "qwen2"),
    "hermes": Family(_chatml(_JSON_CALL), None, "hermes", "llama"),
    "smollm2": Family(_chatml(""), None, None, "llama"),
    "smollm3": Family(_chatml(_JSON_CALL) + _THINK, "qwen3", "hermes", "smollm3"),
    "llama3.1": Family(_LLAMA, None, "llama3_json", "llama"),
    "llama3": Family("<|start_header_id|>{{ messages[0].role }}<|end_header_id|>", None, None),
    "llama3.2-pythonic": Family(
        "{% if tools %}{{ '[func_name1(params_name1=value)]' }}{% endif %}<|start_header_id|>",
        None,
        "pythonic",
        "llama",
    ),
    "llama4": Family(
        '<|header_start|>{% if tools %}{{ \'{"name": f, "parameters": {}}\' }}{% endif %}',
        None,
        "llama4_json",
        "llama4",
    ),
    "llama4-pythonic": Family(
        "<|header_start|>{% if tools %}{{ '[func_name1(a=1)]' }}<|python_start|>{% endif %}",
        None,
        "llama4_pythonic",
        "llama4",
    ),
    "mistral-7b": Family(
        "[INST]{{ messages[0].content }}[/INST]{{ '[TOOL_CALLS] [' }}", None, "mistral", "mistral"
    ),
    "devstral": Family(
        "[INST]{{ '[TOOL_CALLS]' + c.name + '[ARGS]' + a }}[/INST]", None, "mistral", "mistral3"
    ),
    "magistral": Family(
        "[SYSTEM_PROMPT][THINK]{{ '' }}[/THINK][/SYSTEM_PROMPT][TOOL_CALLS]",
        "mistral",
        "mistral",
        "mistral3",
    ),
    "gemma3": Family("<start_of_turn>{{ messages[0].role }}<end_of_turn>", None, None, "gemma3"),
    "gemma4": Family(
        "<|turn>{% if enable_thinking %}<|think|>{% endif %}<|channel>thought\n<channel|>"
        "{{ '<|tool_call>call:' + f.name }}<tool_call|>",
        "gemma4",
        "gemma4",
        "gemma4",
    ),
    "functiongemma": Family(
        "<start_of_turn>developer{{ '<start_function_call>call:' + f.name }}<end_function_call>",
        None,
        "functiongemma",
        "gemma3_text",
    ),
    "deepseek-v3": Family(
        _DEEPSEEK + _DEEPSEEK_CALLS + "{{ '\\n```json\\n' + a + '\\n```' }}",
        None,
        "deepseek_v3",
        "deepseek_v3",
    ),
    "deepseek-r1": Family(
        _DEEPSEEK + _DEEPSEEK_CALLS + "{{ '```json' }}{{ c.split('</think>')[-1] }}<think>\n",
        "deepseek_r1",
        "deepseek_v3",
        "deepseek_v3",
    ),
    "deepseek-v3.1": Family(
        _DEEPSEEK + _DEEPSEEK_CALLS + "{% if thinking %}<think>{% else %}</think>{% endif %}",
        "deepseek_v3",
        "deepseek_v31",
        "deepseek_v3",
    ),
    "deepseek-v3.2": Family(
        _DEEPSEEK + "{% set t = '｜DSML｜' %}<{{ t }}function_calls>{{ thinking }}<think>",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v32",
    ),
    "glm-4.5": Family(
        "[gMASK]<sop>{{ '<tool_call>{function-name}\\n<arg_key>' }}<think></think>",
        "glm45",
        "glm45",
        "glm4_moe",
    ),
    "glm-4.7": Family(
        "[gMASK]<sop>{{ '<tool_call>{function-name}<arg_key>' }}<think></think>",
        "glm45",
        "glm47",
        "glm4_moe",
    ),
    "gpt-oss": Family(
        "<|start|>system<|message|>{{ 'channels: analysis, commentary, final' }}<|end|>"
        "{{ '<|start|>assistant<|channel|>final<|message|>' }}",
        "openai_gptoss",
        "openai",
        "gpt_oss",
    ),
    "kimi-k2": Family(
        "<|im_system|>{{ tools }}<|im_middle|>{{ '<|tool_calls_section_begin|>' }}",
        None,
        "kimi_k2",
        "kimi_k2",
    ),
    "kimi-k2-without-marks": Family(
        "<|im_system|>{{ tools }}<|im_middle|>", None, "kimi_k2", "kimi_k2"
    ),
    "kimi-k2-thinking": Family(
        "<|im_system|><|im_middle|>{{ '<think></think><|tool_calls_section_begin|>' }}",
        "kimi_k2",
        "kimi_k2",
        "kimi_k2",
    ),
    "minimax-m2": Family(
        "]~b]ai\n<think>\n{{ '<minimax:tool_call>' }}",
        "minimax_m2",
        "minimax_m2",
        "minimax_m2",
    ),
    "seed-oss": Family(
        "{{ '<seed:tool_call>\\n<function=' }}<seed:think>", "seed_oss", "seed_oss", "seed_oss"
    ),
    "nemotron-3": Family(
        _chatml(_XML_CALL) + "{% if truncate_history_thinking %}{% endif %}<think>\n",
        "nemotron_v3",
        "qwen3_coder",
        "nemotron_h",
    ),
    "nemotron-nano-2": Family("{{ '<TOOLCALL>[' + tools }}<think>\n", "qwen3", None, "nemotron_h"),
    "granite-3": Family(
        "<|start_of_role|>{{ tools }}{{ '<|tool_call|>[' }}", None, "granite", "granite"
    ),
    "granite-4": Family(
        "<|start_of_role|>{{ tools }}{{ '<tool_call>\\n{' }}", None, "granite4", "granite"
    ),
    "granite-3.3": Family(
        "<|start_of_role|>{{ tools }}{{ '<|tool_call|>[' }}<think></think><response></response>",
        "qwen3",
        "granite",
        "granite",
    ),
    "phi-4-mini": Family(
        "<|system|>{{ '<|tool|>' + tools + '<|/tool|>' }}<|assistant|>", None, None, "phi3"
    ),
    "apriel": Family(
        "<|system|>{{ 'within <tool_call></tool_call>: <tool_calls>[{}]</tool_calls>' }}",
        None,
        None,
    ),
    "hunyuan": Family(
        "<｜hy_User｜>{{ '<tool_calls>[{}]</tool_calls>' }}<think>\n</think>\n<answer>\n",
        "hunyuan_a13b",
        "hunyuan_a13b",
        "hunyuan_v1_moe",
    ),
    "lfm2": Family("<|im_start|>{{ tools }}{{ '<|tool_call_start|>[' }}", None, "lfm2", "lfm2"),
    "command-r": Family(
        "<|START_OF_TURN_TOKEN|>{{ '<|START_THINKING|>' }}{{ '<|START_ACTION|>[' }}",
        None,
        None,
        "cohere2",
        ("cohere_command3",),
    ),
    "longcat": Family(
        "USER: {{ tools }}{{ '<longcat_tool_call>' }}", None, None, "longcat", ("longcat",)
    ),
    "chatml": Family(_chatml(""), None, None),
}
