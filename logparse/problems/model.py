"""Causes of families B and C: getting the model, and its configuration."""

from __future__ import annotations

from logparse.problems.problem import NEWER_PACKAGES, ProblemRule, Values, patterns

# One name, or a list of which the first is the checkpoint's own.
_ARCHITECTURE = r"Model architectures? \[?'?(?P<architecture>\w{1,120})'?(?:, [^\]\n]{1,300})?\]? "


def _whole_limit(values: Values) -> Values:
    limit = values.get("limit", "")
    return {"limit": limit.split(".")[0]} if limit else {}


MODEL_ACCESS_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "B1",
        patterns(
            r"Access to model (?P<repo>[\w.-]{1,100}/[\w.-]{1,100}) is restricted",
            r"GatedRepoError|GatedModelError|gated repo",
            r"HfHubHTTPError: 40[13]|40[13] (?:Client Error|Forbidden)",
        ),
        ("the model's repository is gated and this token may not read it",),
        "The licence is not accepted by the account of the token, or no token is set.",
        (
            (
                "accept the licence with the account of the token",
                "https://huggingface.co/{repo_id}",
            ),
            ("log in (or set HF_TOKEN in the environment)", "{hub_login}"),
            ("in Docker, hand the variable on", "docker run -e HF_TOKEN ..."),
        ),
    ),
    ProblemRule(
        "B3",
        patterns(
            r"LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled|"
            r"offline mode is enabled|OfflineError: ",
            r"couldn't connect to 'https://huggingface\.co'",
            r"Max retries exceeded with url|Temporary failure in name resolution|Name or service "
            r"not known",
        ),
        ("the model is not in the local cache and the hub cannot be reached",),
        "Either offline mode is set, or this machine has no way to the network.",
        (
            ("allow the network again", "unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE"),
            ("download first, where there is a network", "{hub_download} {repo_id}"),
            ("set a proxy or a mirror", "export HTTPS_PROXY=http://proxy:3128"),
            ("serve a local folder", "{program} /path/to/model"),
        ),
    ),
    ProblemRule(
        "B2",
        patterns(
            r"(?P<repo>\S{1,300}) is not a local folder and is not a valid model identifier",
            r"Invalid repository ID or local directory specified: '(?P<repo>[^']{1,300})'",
            r"RepositoryNotFoundError|Repository Not Found for url",
            r"Repo id must be in the form[^\n]{0,60}?: '(?P<repo>[^']{1,300})'",
            r"No such model folder: (?P<repo>\S{1,300})\.",
            r"(?P<repo>\S{1,300}) holds no config\.json",
            r"ModelNotFoundError: (?P<repo>\S{1,300}) does not exist\. Give a folder",
            r"ModelNotFoundError: ",
        ),
        ("there is no model {repo}", "the model was not found"),
        "The name is neither a folder here nor a repository that this token can see.",
        (
            (
                "check the spelling: org/name, or an absolute path to a folder with config.json",
                None,
            ),
            ("list what is in the cache", "stoker models list"),
            ("for a private repository, log in", "{hub_login}"),
            ("in Docker, use the path inside the container", None),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "B4",
        patterns(r"429 Client Error|Too Many Requests"),
        ("the hub refuses further downloads for now (too many requests)",),
        "Downloads without a token are limited most strictly.",
        (("log in", "{hub_login}"), ("download once, then serve", "{hub_download} {repo_id}")),
    ),
    ProblemRule(
        "B5",
        patterns(
            r"ModelStoreError: (?P<model_name>\S{1,200}) needs (?P<size>[\d.]{1,12} \w{1,4}) of "
            r"disk; (?P<place>\S{1,300}) has (?P<free_disk>[\d.]{1,12} \w{1,4}) free",
            r"No space left on device",
            r"Not enough free disk space to download",
        ),
        (
            "{model_name} needs {size} of disk, and {place} has {free_disk} free",
            "the disk is full",
        ),
        "The download, the compile cache or /dev/shm ran out of space.",
        (
            ("see which one is full", "df -h ~ /tmp /dev/shm"),
            ("put the model cache elsewhere", "HF_HOME=/big/disk {serve}"),
            ("delete models that are not used", "hf cache"),
        ),
    ),
    ProblemRule(
        "S4",
        patterns(r"RefusedFormatError: "),
        ("the weights come only as pickle files, which are never loaded",),
        "Loading a pickle runs whatever code is inside it.",
        (
            ("use the model's safetensors version, or a .gguf file of it", None),
            ("look what the folder holds", "ls -lh {model}"),
            ("convert it with transformers' save_pretrained on a machine you can spare", None),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "S5",
        patterns(
            r"CorruptModelError: [^\n]{0,500}?holds no (?P<file>tokenizer\.json)",
            r"CorruptModelError: [^\n]{0,500}?holds no (?P<file>\*\.safetensors) file",
        ),
        ("the model folder holds no {file}",),
        "The folder is incomplete, or not a model's folder.",
        (
            ("look what is there", "ls -lh {model}"),
            ("copy the missing file from the model's repository", None),
            ("download the whole model", "{hub_download} {repo_id}"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "S6",
        patterns(
            r"CorruptModelError: Parameter (?P<parameter>\S{1,300}) has shape",
            r"CorruptModelError: The checkpoint in [^\n]{0,400}? lacks (?P<count>\d{1,9}) param",
            r"CorruptModelError: The checkpoint in [^\n]{0,400}?(?:does not use)",
        ),
        (
            "config.json and the weights do not belong together ({parameter} has another shape)",
            "config.json and the weights do not belong together ({count} parameters are missing)",
            "config.json and the weights do not belong together",
        ),
        "config.json was edited or comes from another model, or a weight file is missing.",
        (
            ("take config.json and all weight files from the same place", None),
            ("download the whole model", "hf download --force-download {repo_id}"),
            ("use the built-in model", "{program}"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "B6",
        patterns(
            r"Error while deserializing header: (?P<detail>[^\n]{1,120})",
            r"SafetensorError: (?P<detail>[^\n]{1,120})",
            r"PytorchStreamReader failed reading zip archive",
            r"Weight files referenced in index but missing",
            r"CorruptModelError: ",
            r"(?P<detail>Expecting value: line \d{1,6} column \d{1,6})",
            r"Unable to load weights from pytorch checkpoint",
            r"is incomplete or damaged: (?P<detail>[^\n]{1,200})|is not valid JSON: ",
        ),
        (
            "a weight file is damaged or incomplete ({detail})",
            "a file of the model is damaged or incomplete",
        ),
        "The download or copy broke off, or the file is a git-lfs pointer instead of weights.",
        (
            ("download it again", "hf download --force-download {repo_id}"),
            ("if it came by git, fetch the real files", "git lfs pull"),
            ("check the free space before", "df -h"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "B7",
        patterns(
            r"Cannot find any model weights with `(?P<path>[^`]{1,400})`",
            r"Error no file named [^\n]{1,200}? found in directory (?P<path>[^\s.]\S{0,300}?)\.?$",
            r"Error no file named \S{1,100}",
        ),
        ("there are no weight files in {path}", "there are no weight files"),
        "The folder holds no *.safetensors, or only another format (GGUF, ONNX, adapters).",
        (
            ("look what is there", "ls -lh {path}"),
            ("choose a repository with safetensors", None),
            ("name the format", "{serve} --load-format safetensors"),
        ),
    ),
    ProblemRule(
        "B8",
        patterns(r"Unknown quantization method: gguf", r"Load format `?gguf`? is not supported"),
        ("this vLLM does not read GGUF",),
        "GGUF support left vLLM before 0.30.",
        (
            ("serve the file with our own engine", "stoker serve {model}"),
            ("use the safetensors original of the model", None),
        ),
    ),
    ProblemRule(
        "B9",
        patterns(
            r"There is no module or parameter named '(?P<parameter>[^']{1,300})' in "
            r"(?P<architecture>\w{1,120})",
            r"Following weights were not initialized from checkpoint",
            r"Attempted to load weight \([^)]{0,80}\)[^\n]{0,40} into parameter",
            r"(?:KeyError: )'(?P<parameter>(?:model\.)?layers\.\d[^']{0,300})'",
        ),
        (
            "the checkpoint's parameter {parameter} has no place in the model",
            "the checkpoint does not match the model's code",
        ),
        "Quantisation method, model class or format of the checkpoint is another than the "
        "one chosen.",
        (
            (
                "drop --quantization (it is read from the checkpoint), or use a checkpoint "
                "made for it",
                "{serve} ~--quantization",
            ),
            NEWER_PACKAGES,
            ("make sure that the download is complete", "{hub_download} {repo_id}"),
        ),
    ),
    ProblemRule(
        "B9",
        patterns(
            r"^AssertionError",
            r"The size of tensor a \((?P<have>\d{1,9})\) must match the size of tensor b "
            r"\((?P<want>\d{1,9})\)",
            r"^RuntimeError: (?:start \(|shape|narrow)",
        ),
        (
            "a parameter of the checkpoint has another size ({have}) than the model ({want})",
            "a parameter of the checkpoint does not fit into the model",
        ),
        "The checkpoint was saved by other code, with another vocabulary, or for another "
        "quantisation.",
        (
            NEWER_PACKAGES,
            ("make sure that the download is complete", "{hub_download} {repo_id}"),
            (
                "for files in Mistral's format",
                "{serve} --tokenizer-mode mistral --config-format mistral --load-format mistral",
            ),
        ),
        functions=frozenset({"weight_loader", "load_weights", "default_weight_loader"}),
    ),
    ProblemRule(
        "B11",
        patterns(r"To load a model from object storage[^\n]{0,40}"),
        ("a model in object storage needs a loader of its own",),
        "Names like s3://bucket/model are read by a streaming loader only.",
        (
            ("name it", "{serve} --load-format runai_streamer"),
            ("or copy the model here first", "aws s3 sync {model} ./model"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "B10",
        patterns(
            r"PermissionError: \[Errno 13\][^\n]{0,40}: '(?P<path>/[^']{1,300})'",
            r"\[Errno 30\] Read-only file system: '(?P<path>/[^']{1,300})'",
        ),
        ("{path} cannot be read or written",),
        "A container user without a home directory, or a file or volume of another owner.",
        (
            ("see whose it is", "ls -ld {path}"),
            (
                "use folders that can be written",
                "HOME=/tmp HF_HOME=/tmp/hf VLLM_CACHE_ROOT=/tmp/vllm {serve}",
            ),
        ),
    ),
)

MODEL_CONFIG_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "C3",
        patterns(
            r"model type `(?P<type>[^`]{1,100})` but Transformers does not recognize this "
            r"architecture",
            r"Support for Transformers v\d is deprecated and was removed",
        ),
        (
            "the model type {type} is unknown to the installed Transformers",
            "the installed Transformers is too old for this {server}",
        ),
        "The model is newer than the installed packages (or the name in config.json is wrong).",
        (NEWER_PACKAGES, ("choose a supported model", None)),
    ),
    ProblemRule(
        "C3",
        patterns(r"KeyError: '(?P<type>[a-z][\w-]{1,60})'$"),
        ("the model type {type} is unknown to the installed Transformers",),
        "The model is newer than the installed packages (or the name in config.json is wrong).",
        (NEWER_PACKAGES, ("choose a supported model", None)),
        functions=frozenset({"from_pretrained", "get_config"}),
    ),
    ProblemRule(
        "C1",
        patterns(
            _ARCHITECTURE + r"(?:are not supported for now|is not supported; |are not supported)",
            _ARCHITECTURE + r"(?:was|were) supported in vLLM until",
            _ARCHITECTURE + r"(?:is|are) not supported in-tree anymore",
            r"The Transformers implementation of '?(?P<architecture>\w{1,120})'? is not compatible"
            r"(?! with Stoker)",
            r"Cannot find model module",
        ),
        (
            "the architecture {architecture} is not supported",
            "the model's architecture is not supported",
        ),
        "No implementation of this model class is in the installed release.",
        (
            NEWER_PACKAGES,
            ("try Transformers' own implementation", "{serve} --model-impl transformers"),
            ("choose a supported model", None),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C4",
        patterns(
            r"setting `?trust_remote_code=True`?|requires you to execute the \w{1,20} file in that",
            r"contains custom code which must be executed",
            r"Failed to load the (?:model config|tokenizer)\. If the",
        ),
        ("the model needs code from its own repository",),
        "Such code runs with your rights; nothing of it is run unless you say so.",
        (
            (
                "read the code, then allow it for one revision",
                "{serve} --trust-remote-code --revision <sha>",
            ),
            ("a newer release may know the model itself", "pip install -U {package} transformers"),
        ),
    ),
    ProblemRule(
        "C5",
        patterns(
            r"requires the following packages that were not found in your environment: "
            r"(?P<packages>[\w, .-]{1,300})"
        ),
        ("the model's own code needs packages that are not installed: {packages}",),
        "Code in the model's repository imports them.",
        (
            ("install them", "pip install {packages}"),
            ("choose a model that is supported natively", None),
        ),
    ),
    ProblemRule(
        "C6",
        patterns(
            r"Could not detect config format for no config file found",
            r"does not appear to have a file named config\.json",
            r"No supported config format found in",
            r"Should have a `?model_type`? key in its config\.json",
        ),
        ("the folder has no config.json",),
        "It is not a model folder, or the parent of one.",
        (
            ("look what is there", "ls {model}"),
            ("use the folder below snapshots/ that holds config.json", None),
        ),
    ),
    ProblemRule(
        "C7",
        patterns(
            r"User-specified max_model_len \((?P<asked>\d{1,12})\) is greater than the derived "
            r"max_model_len "
            r"\((?P<key>\w{1,60})=(?P<limit>[\d.]{1,14})",
            r"--max-model-len (?P<asked>\d{1,12}) is above the (?P<limit>\d{1,12}) positions",
        ),
        ("--max-model-len {asked} is larger than the {limit} positions of the model",),
        "The model was trained for fewer positions; beyond them its answers fall apart.",
        (
            ("use the model's limit, or leave the flag out", "{serve} --max-model-len {limit}"),
            (
                "extend the model with rope scaling, if its card says how",
                "{serve} --hf-overrides '{{...}}'",
            ),
        ),
        is_fatal=True,
        derive=_whole_limit,
    ),
    ProblemRule(
        "C9",
        patterns(
            r"max_num_batched_tokens \((?P<budget>\d{1,12})\) is smaller than max_model_len "
            r"\((?P<length>\d{1,12})\)",
            r"--max-num-batched-tokens (?P<budget>\d{1,12}) is below --max-model-len "
            r"(?P<length>\d{1,12})",
        ),
        (
            "a step of {budget} tokens cannot take a prompt of {length} while chunked "
            "prefill is off",
        ),
        "Without chunked prefill a whole prompt goes through in one step.",
        (
            ("leave chunked prefill on", "{serve} --enable-chunked-prefill"),
            ("allow larger steps", "{serve} --max-num-batched-tokens {length}"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C11",
        patterns(r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0"),
        ("this GPU cannot compute in bfloat16",),
        "bfloat16 needs compute capability 8.0 (Ampere) or newer.",
        (("use float16", "{serve} --dtype float16"),),
    ),
    ProblemRule(
        "C12",
        patterns(
            r"Cannot find the config file for (?P<method>[\w-]{1,60})",
            r"Quantization method specified in the model config \((?P<found>[\w-]{1,60})\) does "
            r"not match the "
            r"quantization method specified in the `quantization` argument "
            r"\((?P<method>[\w-]{1,60})\)",
            r"Unknown quantization method: (?P<method>[\w-]{1,60})",
            r"The quantization method (?P<method>[\w-]{1,60}) is not supported for the current GPU",
            r"(?P<method>[\w-]{1,60}) quantization is currently not supported",
            r"Found multiple config files for (?P<method>[\w-]{1,60})",
            r"[Tt]he quantization method (?P<method>[\w-]{1,60}) is deprecated and will be removed",
            r"Quantised checkpoints \((?P<method>[\w-]{1,60})\) are not supported",
        ),
        ("the checkpoint or device does not go with the quantisation {method}",),
        "The method is given by the checkpoint itself; forcing another one, or one that the "
        "device lacks, "
        "cannot work.",
        (
            ("leave --quantization out", "{serve} ~--quantization"),
            ("use a checkpoint made for {method}", None),
            ("quantise a bf16 checkpoint while loading", "{serve} --quantization fp8"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "C13",
        patterns(
            r"is not divisible by (?:min_thread_[kn]|weight quantization block_n)",
            r"not aligned with the quantized weight shape",
        ),
        ("the slices of tensor parallelism are smaller than a quantisation group",),
        "Each GPU gets a slice of every matrix; a quantised one can only be cut between groups.",
        (
            ("use fewer slices", "{serve} --tensor-parallel-size 1"),
            ("split by layers instead", "{serve} --pipeline-parallel-size 2"),
        ),
    ),
    ProblemRule(
        "C16",
        patterns(
            r"No valid attention backend found",
            r"Selected backend \S{1,80} is not valid",
            r"Unknown attention backend",
        ),
        ("no attention backend fits this model and device",),
        "The reasons are in the message, one per backend.",
        (
            ("let the server choose", "{serve} ~--attention-backend"),
            ("use the most general one", "{serve} --attention-backend TRITON_ATTN"),
            ("keep the KV cache in the model's type", "{serve} --kv-cache-dtype auto"),
        ),
    ),
)
