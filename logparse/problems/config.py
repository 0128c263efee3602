"""Causes of family C beside the model's own files: options that do not go with it or each other."""

from __future__ import annotations

from logparse.problems.problem import ASK_CLI, NEWER_PACKAGES, ProblemRule, patterns

CONFIG_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "C8",
        patterns(
            r"argument --max-model-len(?:/[\w-]{1,40})?: (?P<detail>[^\n]{1,300})",
            r"max_model_len must be a positive integer",
            r"(?P<detail>Input should be[^\n\[]{1,100})[^\n]{0,400}\nfor max_model_len$",
        ),
        ("--max-model-len is not a number: {detail}", "--max-model-len is not a positive number"),
        "It takes a whole number, or one with a unit: 32k is 32000, 32K is 32768; a decimal point "
        "goes with small letters only (1.5k).",
        (
            ("write the number out", "{serve} --max-model-len 32768"),
            ("leave it out: the model's own limit is used", "{serve} ~--max-model-len"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C9",
        patterns(
            r"max_num_batched_tokens \((?P<budget>\d{1,12})\) must be greater than or equal to "
            r"max_num_seqs \((?P<seqs>\d{1,9})\)"
        ),
        ("a step of {budget} tokens is too small for {seqs} requests at once",),
        "Each running request needs at least one token of every step.",
        (
            ("allow fewer requests at once", "{serve} --max-num-seqs {budget}"),
            ("allow larger steps", "{serve} --max-num-batched-tokens {seqs}"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C9",
        patterns(
            r"long_prefill_token_threshold \((?P<given>\d{1,12})\) cannot be greater than the "
            r"max_model_len \((?P<length>\d{1,12})\)"
        ),
        ("--long-prefill-token-threshold {given} is above the maximum length {length}",),
        "No prompt can be that long.",
        (("lower it", "{serve} --long-prefill-token-threshold {length}"),),
        is_fatal=True,
    ),
    ProblemRule(
        "C10",
        patterns(
            r"This model does not support `?--runner (?P<runner>\w{1,30})`?"
            r"(?:[^\n]{0,80}?--convert (?P<convert>\w{1,30}))?",
            r"(?:Embedding|Pooling|[Gg]eneration) models do not support `?--runner "
            r"(?P<runner>\w{1,30})",
            r"[Tt]his model does not support the '?(?P<runner>\w{1,30})'? task",
        ),
        ("the model cannot be run as --runner {runner}",),
        "Generation needs a language model's head, pooling (embeddings, scores) a pooler.",
        (
            ("let the server choose", "{serve} --runner auto"),
            ("convert it", "{serve} --runner pooling --convert {convert}"),
            ("for embeddings", "{serve} --runner pooling --convert embed"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C11",
        patterns(
            r"The model type '(?P<type>[^']{1,80})' does not support float16",
            r"Unknown dtype: '?(?P<dtype>[\w.]{1,40})",
            r"(?P<dtype>(?:torch\.)?\w{1,30}) is not supported for quantization method "
            r"(?P<method>[\w-]{1,60})",
        ),
        (
            "models of type {type} cannot be computed in float16",
            "{dtype} does not go with the quantisation {method}",
            "there is no dtype {dtype}",
        ),
        "The number format must suit the model, its quantisation and the device.",
        (
            ("let the server choose", "{serve} --dtype auto"),
            ("the largest format always works", "{serve} --dtype float32"),
            ("AWQ on older GPUs wants float16", "{serve} --dtype float16"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C14",
        patterns(
            r"You must set `?--enable-mm-embeds`?",
            r"Attempted to assign [^\n]{1,60} multimodal tokens to (?P<places>\d{1,9}) placeholder",
            r"max_tokens_per_mm_item \((?P<items>\d{1,9})\) is larger than max_num_batched_tokens "
            r"\((?P<cache>\d{1,9})\)",
            r"At most (?P<limit>\d{1,6}) (?P<kind>\w{1,20})\(s\) may be provided in one prompt",
            r"prompt contains an? \(?n?\)? ?(?P<kind>\w{1,20}) item with (?P<items>\d{1,9}) "
            r"embedding tokens, which exceeds the pre-allocated encoder cache size "
            r"(?P<cache>\d{1,9})",
            r"(?P<library>libGL\.so\.1): cannot open shared object",
        ),
        (
            "an image of {items} tokens does not fit into the encoder cache of {cache}",
            "one prompt may hold {limit} {kind}(s)",
            "the tokens of an image have no place in the prompt ({places} placeholders)",
            "the library {library} for images is missing",
            "inputs that are already embeddings are switched off",
        ),
        "Images, audio and video have limits of their own, set at the start.",
        (
            ("allow more per prompt", "{serve} --limit-mm-per-prompt '{{\"{kind}\":4}}'"),
            ("allow larger items", "{serve} --max-num-batched-tokens 8192"),
            ("install the library", "sudo apt install libgl1 libglib2.0-0"),
            ("take embeddings as input", "{serve} --enable-mm-embeds"),
        ),
    ),
    ProblemRule(
        "C15",
        patterns(
            r"num_speculative_tokens:? ?(?P<tokens>\d{1,6}) must be divisible by "
            r"n_predict=(?P<predict>\d{1,6})",
            r"speculative model was provided, but `?num_speculative_tokens`? was not provided",
            r"num_speculative_tokens was provided but without speculative",
            r"Unsupported speculative method: '?(?P<method>[\w-]{1,60})",
            r"Either prompt_lookup_max or prompt_lookup_min must be provided",
            r"max_num_scheduled_tokens is set to (?P<budget>-?\d{1,9}) based on the speculative",
        ),
        (
            "{tokens} speculative tokens cannot be made in groups of {predict}",
            "there is no speculative method {method}",
            "the step budget leaves no room for speculative tokens ({budget})",
            "the speculative configuration is not complete",
        ),
        "Speculative decoding needs a method, a draft (model or prompt lookup) and how many tokens "
        "it guesses.",
        (
            (
                "guess a multiple of {predict}",
                "{serve} --speculative-config '{{\"num_speculative_tokens\": {predict} }}'",
            ),
            (
                "give all three",
                '{serve} --speculative-config \'{{"method":"ngram",'
                '"num_speculative_tokens":3,"prompt_lookup_max":4}}\'',
            ),
            ("allow larger steps", "{serve} --max-num-batched-tokens 8192"),
            ("do without it", "{serve} ~--speculative-config"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C17",
        patterns(
            r"CUDAGraphMode\.(?P<mode>\w{1,40}) is not supported with (?P<backend>\w{1,60})",
            r"piecewise CUDA graphs \(cudagraph_mode=[^)]{1,60}\) unavailable",
            r"customized max_cudagraph_capture_size\(?=?(?P<given>\d{0,9})\)? should be "
            r"consistent with",
            r"cudagraph_capture_sizes? [^\n]{0,80}are mutually exclusive",
        ),
        (
            "the graph mode {mode} does not go with {backend}",
            "--max-cudagraph-capture-size and --cudagraph-capture-sizes contradict each other",
            "this combination of CUDA graph options cannot be used",
        ),
        "The attention backend decides which CUDA graphs are possible.",
        (
            ("use graphs of pieces", "{serve} -cc.cudagraph_mode=PIECEWISE"),
            ("do without CUDA graphs", "{serve} --enforce-eager"),
            ("give only one of --max-cudagraph-capture-size and --cudagraph-capture-sizes", None),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C18",
        patterns(
            r"argument --block-size: (?P<detail>[^\n]{1,200})",
            r"(?P<dtype>\w{1,20}) KV cache is not supported with MLA",
            r"Invalid prefix_match_unit",
            r"KV cache layout (?P<layout>\w{1,20}) cannot express",
            r"Hybrid KV cache manager was explicitly enabled but is not supported",
            r"Hybrid KV cache manager is disabled but failed to convert",
        ),
        (
            "--block-size: {detail}",
            "this model's attention (MLA) cannot keep its KV cache as {dtype}",
            "an option of the KV cache does not go with this model",
        ),
        "Block size, layout and number format of the KV cache depend on the attention backend.",
        (
            ("leave the option out", "{serve} ~--block-size ~--kv-cache-dtype"),
            ("store the KV cache in 8 bits", "{serve} --kv-cache-dtype fp8"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C2",
        patterns(
            r"Model architectures \[?'?(?P<architecture>\w{1,120})'?(?:, [^\]\n]{1,300})?\]? "
            r"failed to be inspected",
            r"Error in inspecting model architecture '(?P<architecture>\w{1,120})'",
        ),
        ("the code of {architecture} cannot be imported",),
        "The model is known, but a process that only imports its class failed: a broken library, a "
        "missing package, or no GPU in sight. The traceback above names it.",
        (
            ("see which build fits this machine", "stoker doctor"),
            (
                "install into a fresh environment",
                "uv venv && uv pip install {package} --torch-backend=auto",
            ),
            NEWER_PACKAGES,
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C16",
        patterns(
            r"Invalid attention backend for (?P<device>\w{1,20})",
            r"No common block size for (?P<size>\d{1,9})",
            r"Unknown attention backend: '?(?P<backend>\w{1,60})",
        ),
        (
            "there is no attention backend {backend}",
            "no block size suits all of the model's attention backends",
            "this attention backend is not for {device}",
        ),
        "The names and the limits of the backends depend on release and device.",
        (("let the server choose", "{serve} ~--attention-backend ~--block-size"), ASK_CLI),
        is_fatal=True,
    ),
)
