"""The arguments that a start printed: `non-default args: {...}` and the older Namespace line.

Owns reading them and telling which differ from the defaults; never runs anything of the text.
"""

from __future__ import annotations

import ast
import functools
import re
import types
import warnings
from collections.abc import Mapping

from logparse.redact import printable

# What the Namespace line of 0.6 to 0.9 holds when nothing was asked for. It prints all flags, so
# these (and None, False, empty) are left out.
_OLD_DEFAULTS = {
    "host": "None",
    "port": "8000",
    "uvicorn_log_level": "'info'",
    "allow_credentials": "False",
    "allowed_origins": "['*']",
    "allowed_methods": "['*']",
    "allowed_headers": "['*']",
    "chat_template_content_format": "'auto'",
    "response_role": "'assistant'",
    "tokenizer_mode": "'auto'",
    "load_format": "'auto'",
    "config_format": "'auto'",
    "dtype": "'auto'",
    "kv_cache_dtype": "'auto'",
    "guided_decoding_backend": "'auto'",
    "pipeline_parallel_size": "1",
    "tensor_parallel_size": "1",
    "data_parallel_size": "1",
    "gpu_memory_utilization": "0.9",
    "swap_space": "4",
    "cpu_offload_gb": "0",
    "seed": "0",
    "max_logprobs": "20",
    "max_loras": "1",
    "max_lora_rank": "16",
    "lora_dtype": "'auto'",
    "device": "'auto'",
    "num_scheduler_steps": "1",
    "scheduling_policy": "'fcfs'",
    "root_path": "None",
    "task": "'auto'",
    "model_impl": "'auto'",
    "multi_step_stream_outputs": "True",
    "use_async_output_proc": "True",
    "subparser": "'serve'",
    "config": "''",
    "distributed_executor_backend": "None",
    "scheduler_delay_factor": "0.0",
    "lora_extra_vocab_size": "256",
    "generation_config": "'auto'",
    "worker_cls": "'auto'",
    "worker_extension_cls": "''",
    "block_size": "None",
    "spec_decoding_acceptance_method": "'rejection_sampler'",
    "ssl_cert_reqs": "0",
    "preemption_mode": "None",
    "max_parallel_loading_workers": "None",
    "scheduler_cls": "'vllm.core.scheduler.Scheduler'",
    "collect_detailed_traces": "None",
    "max_seq_len_to_capture": "8192",
    "max_num_partial_prefills": "1",
    "max_long_partial_prefills": "1",
    "long_prefill_token_threshold": "0",
    "api_server_count": "1",
    "ngram_prompt_lookup_max": "None",
    "fully_sharded_loras": "False",
    "use_tqdm_on_load": "True",
    "prefix_caching_hash_algo": "'builtin'",
    "use_v2_block_manager": "True",
    "num_lookahead_slots": "0",
    "tokenizer_pool_size": "0",
    "tokenizer_pool_type": "'ray'",
    "max_prompt_adapters": "1",
    "max_prompt_adapter_token": "0",
    "data_parallel_rpc_port": "29550",
}
# Of SGLang's ServerArgs, which prints all of them and some as it settled them: what a user gives,
# and the value when nobody gave one.
_SGLANG_DEFAULTS = {
    "host": "'127.0.0.1'", "port": "30000", "tp_size": "1", "dp_size": "1", "pp_size": "1",
    "ep_size": "1", "nnodes": "1", "node_rank": "0", "dist_init_addr": "None",
    "context_length": "None", "mem_fraction_static": "None", "dtype": "'auto'",
    "quantization": "None", "kv_cache_dtype": "'auto'", "load_format": "'auto'",
    "trust_remote_code": "False", "revision": "None", "reasoning_parser": "None",
    "tool_call_parser": "None", "chat_template": "None", "is_embedding": "False",
    "enable_dp_attention": "False", "enable_ep_moe": "False", "moe_a2a_backend": "'none'",
    "disable_cuda_graph": "False", "disable_radix_cache": "False", "enable_metrics": "False",
    "enable_torch_compile": "False", "speculative_algorithm": "None",
    "speculative_draft_model_path": "None", "enable_lora": "None", "lora_paths": "None",
}  # fmt: skip
_EMPTY = frozenset({"None", "False", "''", "[]", "{}"})
_ITEM = re.compile(r"[ ({,]'?(\w{1,60})'?(?:=|: )('[^']{0,400}'|\[[^\]]{0,400}\]|[^,\s)}]{1,200})")
_MASKED = re.compile(r"(?<=: )\*{3}(?=[,}])")  # a secret, of which the quotes went too
_MAX_ITEMS = 600


@functools.lru_cache(maxsize=16)  # each part of a report asks for those of its start
def differing_arguments(printed: str) -> Mapping[str, str]:
    """Names (with underscores) and values as text, in the order in which they were printed."""
    is_sglang = printed.startswith("ServerArgs")
    text = printed.removeprefix("ServerArgs")
    pairs = _dict_items(text) if text.startswith("{") else None
    if pairs is None:
        found = _ITEM.findall(f" {printed[:20000]}")[:_MAX_ITEMS]
        pairs = {name: value for name, value in found if name != "Namespace"}
    if is_sglang:
        given = _SGLANG_DEFAULTS
        pairs = {n: v for n, v in pairs.items() if n in given and v not in (given[n], "None")}
    if printed.startswith("Namespace("):
        pairs = {n: v for n, v in pairs.items() if v not in _EMPTY and _OLD_DEFAULTS.get(n) != v}
    pairs = {name: value for name, value in pairs.items() if not value.startswith("<")}
    if pairs.get("model") == pairs.get("model_tag"):
        pairs.pop("model_tag", None)
    return types.MappingProxyType({name: value.strip("'") for name, value in pairs.items()})


def _dict_items(printed: str) -> dict[str, str] | None:
    """None when the text is no dict of plain values, for instance because it was cut."""
    try:
        with warnings.catch_warnings():  # of escapes that are none
            warnings.simplefilter("ignore")
            value = ast.literal_eval(_MASKED.sub("'***'", printed))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
    if type(value) is not dict:
        return None
    return {printable(str(key)): repr(item) for key, item in value.items()}


def as_flag(name: str, value: str) -> str:
    """`--max-model-len 32768`; a switch without its True."""
    flag = f"--{name.replace('_', '-')}"
    if name == "model_tag" or name == "model":
        return value
    if value == "True":
        return flag
    return f"--no-{flag[2:]}" if value == "False" else f"{flag} {value}"
