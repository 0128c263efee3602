"""Causes of family F beside address and spelling: flags that need others, files, adapters."""

from __future__ import annotations

from logparse.problems.problem import ASK_CLI, ProblemRule, patterns

OPTION_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "F1",
        patterns(
            r"PermissionError: \[Errno 13\] Permission denied$",
            r"\[Errno 13\] error while attempting to bind on address \('[^']{0,100}', "
            r"(?P<low_port>\d{1,5})",
        ),
        (
            "port {low_port} is only for the administrator",
            "ports below 1024 are only for the administrator",
        ),
        "Ordinary users cannot listen below port 1024.",
        (("use another port", "{serve} --port 8000"),),
        is_fatal=True,
    ),
    ProblemRule(
        "F3",
        patterns(
            r"argument (?P<flag>[\w/, -]{1,100}): Value (?P<value>[^\n]{1,200}?) cannot be "
            r"converted to",
            r"argument (?P<flag>[\w/, -]{1,100}): Invalid JSON[^\n]{0,200}",
        ),
        ("{flag} takes JSON, and the shell spoilt it: {value}", "{flag} takes JSON"),
        "Without single quotes the shell removes the double quotes and splits at spaces.",
        (
            ("put single quotes around it", "{serve} {flag} '{{\"key\": 1}}'"),
            ("or name the parts", "{serve} {flag}.key 1"),
        ),
    ),
    ProblemRule(
        "F4",
        patterns(
            r"invalid reasoning parser: (?P<parser>[^\s'\"(]{1,60})",
            r"[Rr]easoning parser '(?P<parser>[^'\n]{1,60})' not found",
            r"Unsupported reasoning parser: (?P<parser>[^\s'\"(]{1,60})",
        ),
        ("there is no reasoning parser {parser}",),
        "The message lists those that this version has.",
        (("name one that fits the model", "{serve} --reasoning-parser qwen3"), ASK_CLI),
    ),
    ProblemRule(
        "F12",
        patterns(
            r"think_(?:start|end)_token '(?P<token>[^'\n]{1,40})' must encode to exactly one token",
            r"(?P<parser>\w{1,60}) reasoning parser could not locate (?:the )?(?P<token>think "
            r"start/end tokens?)",
            r"could not locate (?:the )?(?P<token>think start/end tokens?|\S{1,40} tokens?) in the "
            r"tokenizer",
            r"(?P<parser>\w{1,60}) (?:tool )?parser could not locate tool call",
        ),
        (
            "the parser {parser} does not fit the model: its tokenizer lacks the {token}",
            "the reasoning parser does not fit: {token} is not one token of the tokenizer",
            "the parser {parser} does not fit the model's tokenizer",
        ),
        "A parser looks for the tokens that its model family uses; another family writes others.",
        (
            ("leave the parser out", "{serve} ~--reasoning-parser ~--tool-call-parser"),
            ("name the one of the model's family (its card says which)", None),
            ASK_CLI,
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "F5",
        patterns(
            r"(?P<flag>--enable-log-outputs) requires (?P<other>--enable-log-requests)",
            r"(?P<flag>--enable-per-request-metrics) requires engine statistics",
            r"(?P<flag>--api-server-count)=\S{1,20} cannot be used with (?P<without>--headless)",
            r"VLLM_ALLOW_RUNTIME_LORA_UPDATING cannot be used with api_server_count",
            r"OpenTelemetry is not available",
            r"torch_profiler_dir must be set",
        ),
        (
            "{flag} needs {other}",
            "{flag} does not go with {without}",
            "{flag} needs the statistics that another flag switches off",
            "two flags contradict each other, or one needs another",
        ),
        "Some flags only work together with another one.",
        (
            ("give both", "{serve} {flag} {other}"),
            ("leave {flag} out", "{serve} ~{flag}"),
            ASK_CLI,
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "F6",
        patterns(
            r"\[SSL[^\]]{0,40}\] (?P<detail>[^\n]{1,120})",
            r"KEY_VALUES_MISMATCH",
            r"Could not load logging config\. File does not exist[^\n]{0,20}?'(?P<file>/?[\w./-]"
            r"{2,300})'",
            r"VLLM_CONFIGURE_LOGGING evaluated to false",
            r"FileNotFoundError: [^\n]{0,80}?'?(?P<file>[^'\n]{1,200}\.(?:pem|crt|key|cert))'?",
        ),
        (
            "the file {file} does not exist",
            "the certificate and its key cannot be used: {detail}",
            "the settings for TLS or logging cannot be used",
        ),
        "The path is wrong where the server runs, or certificate and key are no pair.",
        (
            ("look whether it is there", "ls -l {file}"),
            (
                "compare certificate and key",
                "openssl x509 -noout -modulus -in cert.pem | md5sum; "
                "openssl rsa -noout -modulus -in key.pem | md5sum",
            ),
            ("let logging be configured", "unset VLLM_CONFIGURE_LOGGING VLLM_LOGGING_CONFIG_PATH"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "F6",
        patterns(r"^(?:FileNotFoundError: \[Errno 2\]|ssl\.SSLError)"),
        ("a file for TLS is missing or damaged",),
        "The paths of --ssl-certfile and --ssl-keyfile must exist where the server runs.",
        (("look whether they are there", "ls -l cert.pem key.pem"),),
        functions=frozenset({"load_cert_chain", "create_ssl_context"}),
    ),
    ProblemRule(
        "F7",
        patterns(r"\[Errno 24\] Too many open files|\(os error 24\)"),
        ("the process may not open more files",),
        "Every connection and weight file needs a descriptor; the default limit is 1024.",
        (
            ("raise the limit in this shell", "ulimit -n 65535 && {serve}"),
            ("in Docker", "docker run --ulimit nofile=65535 ..."),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "F9",
        patterns(r"Cannot use the fast tokenizer in slow tokenizer mode"),
        ("the slow tokenizer was asked for and the model has only a fast one",),
        "--tokenizer-mode slow is for old models.",
        (("let the server choose", "{serve} --tokenizer-mode auto"),),
    ),
    ProblemRule(
        "F10",
        patterns(
            r"max_cpu_loras \((?P<cpu>\d{1,6})\) must be >= max_loras \((?P<loras>\d{1,6})\)",
            r"LoRA rank (?P<rank>\d{1,6}) is greater than max_lora_rank (?P<limit>\d{1,6})",
            r"Model (?P<model_class>\w{1,120}) is not supported for LoRA",
            r"(?P<model_class>[A-Z]\w{1,120}) does not support LoRA",
            r"(?P<modules>\S{1,200}) is unsupported LoRA weight",
            r"expected target modules in [^\n]{0,300} but received (?P<modules>[^\n]{1,200})",
            r"(?P<folder>\S{1,300}) doesn't contain tensors",
            r"Loading lora (?P<name>\S{1,100}) failed: (?P<detail>[^\n]{1,200})",
            r"but (?P<off>LoRA) is not enabled|does not support LoRA",
        ),
        (
            "the adapter has rank {rank}, the server takes {limit}",
            "--max-cpu-loras {cpu} is below --max-loras {loras}",
            "the model {model_class} takes no adapters",
            "the adapter {name} cannot be loaded: {detail}",
            "the folder {folder} holds no adapter",
            "the LoRA adapter changes parts that the server does not adapt: {modules}",
            "{off} is not switched on",
            "the model takes no adapters",
        ),
        "An adapter must be made for this model and stay within the server's limits.",
        (
            ("allow its rank", "{serve} --enable-lora --max-lora-rank {rank}"),
            ("keep as many in main memory", "{serve} --enable-lora --max-cpu-loras {loras}"),
            ("look into the folder (adapter_config.json, adapter_model.safetensors)", None),
            ("switch adapters on", "{serve} --enable-lora --lora-modules name=/path"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "F11",
        patterns(
            r"Please install (?P<package>[\w\[\]. -]{1,60}?) (?:for|to|via|with)\b",
            r"gRPC mode requires (?P<package>[\w-]{1,60})",
            r"needs (?P<package>modelscope)>=",
            r"'(?P<package>hf_transfer)' package is not available",
            r"(?P<package>Arctic Inference) is required",
            r"lease install (?:it )?(?:via|with|using) `?pip install (?P<package>[\w\[\]-]{1,60})",
        ),
        ("the optional package {package} is not installed",),
        "A flag or a variable asks for something that is not part of the normal install.",
        (
            ("install it", "pip install '{package}'"),
            ("for a variable, unset it", "unset HF_HUB_ENABLE_HF_TRANSFER VLLM_USE_MODELSCOPE"),
        ),
    ),
    ProblemRule(
        "G13",
        patterns(
            r"Connector (?P<connector>\w{1,80}) does not support HMA but HMA is enabled",
            r"HMA should not be enabled unless all sub-connectors support it",
        ),
        (
            "the KV connector {connector} does not go with the hybrid KV cache manager",
            "one of the KV connectors does not go with the hybrid KV cache manager",
        ),
        "The hybrid manager keeps a cache of its own for each kind of layer, and this connector "
        "moves one kind only.",
        (
            ("give all layers one kind of cache", "{serve} --disable-hybrid-kv-cache-manager"),
            ("do without the connector", "{serve} ~--kv-transfer-config"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "G8",
        patterns(
            r"Please specify kv_role when kv_connector is set",
            r"Unsupported kv_role: (?P<role>\S{1,60})",
            r"Failing (?P<requests>\d{1,9}) request\(s\) due to KV load failure",
            r"Unsupported (?:kv )?connector(?: type)?: (?P<connector>\S{1,60})",
        ),
        (
            "there is no kv_role {role}",
            "there is no KV connector {connector}",
            "{requests} requests failed because their KV cache could not be fetched",
            "--kv-transfer-config is not complete",
        ),
        "KV transfer needs connector and role, and the same block size and parallel sizes on both "
        "sides.",
        (
            (
                "give both",
                '{serve} --kv-transfer-config \'{{"kv_connector":"NixlConnector",'
                '"kv_role":"kv_both"}}\'',
            ),
            ("do without it", "{serve} ~--kv-transfer-config"),
        ),
        is_fatal=True,
    ),
)
