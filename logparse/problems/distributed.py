"""Causes of family D beyond one machine's GPUs: pipelines, Ray, rendezvous, data parallelism."""

from __future__ import annotations

from logparse.problems.problem import ProblemRule, patterns

_REACHABLE = ("name the address that the others can reach", "VLLM_HOST_IP=<ip> {serve}")

DISTRIBUTED_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "D1",
        patterns(
            r"AssertionError: (?P<size>\d{1,9}) is not divisible by (?P<tp>\d{1,6})",
            r"(?P<size>\d{1,9}) is not divisible by (?P<tp>\d{1,6})$",
        ),
        ("{size} rows cannot be divided among {tp} GPUs",),
        "Tensor parallelism gives every GPU the same slice of each matrix.",
        (
            ("use fewer slices", "{serve} --tensor-parallel-size 1"),
            ("split by layers instead", "{serve} --pipeline-parallel-size {tp}"),
        ),
    ),
    ProblemRule(
        "D2",
        patterns(
            r"--device-ids index (?P<index>\d{1,6}) is out of range",
        ),
        ("there is no GPU number {index}",),
        "--device-ids counts among the GPUs that CUDA_VISIBLE_DEVICES leaves.",
        (("see which GPUs are visible", "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES"),),
        is_fatal=True,
    ),
    ProblemRule(
        "D3",
        patterns(r"[Pp]ipeline parallelism (?:is not|is only) supported (?:for|through|with)"),
        ("this model cannot be split by layers (pipeline parallelism)",),
        "The model's code does not pass its state from one group of layers to the next.",
        (
            ("split every layer instead", "{serve} --tensor-parallel-size {pp}"),
            ("run on one GPU", "{serve} --pipeline-parallel-size 1"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "D4",
        patterns(
            r"[Dd]ecode context parallel\w{0,3} for GQA/MQA requires",
            r"tp_size=(?P<tp>\d{1,6}) must be divisible by dcp_size=(?P<dcp>\d{1,6})",
            r"decode_context_parallel_size[^\n]{0,60} must ",
        ),
        (
            "{tp} tensor slices cannot be shared by {dcp} context slices",
            "decode context parallelism does not go with this tensor parallel size",
        ),
        "Context slices are made out of the tensor parallel GPUs.",
        (
            ("do without it", "{serve} --decode-context-parallel-size 1"),
            ("use a multiple of {dcp}", "{serve} --tensor-parallel-size {dcp}"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "D5",
        patterns(
            r"Failed to import Ray",
            r"Cannot provide a placement group requiring (?P<gpus>\d{1,6})",
            r"Cannot provide a placement group of",
            r"Current node has no GPU available|Ray does not allocate any GPUs",
            r"number of required GPUs exceeds the total number of available GPUs in the placement",
            r"Every node should have a unique IP address\. Got (?P<nodes>\d{1,6}) nodes",
            r"driver node id \S{1,80} is not included in a placement group",
            r"No available node types can fulfill resource request",
            r"(?:Failed to connect to|Could not find any running) Ray (?:cluster|instance)",
            r"ray\.exceptions\.\w{0,30}ActorDiedError|(?<!\()The actor died unexpectedly",
        ),
        (
            "Ray cannot give {gpus} GPUs",
            "several of the {nodes} Ray nodes have the same address",
            "the Ray cluster cannot run the workers",
        ),
        "Ray is not installed or running, has too few GPUs, or its nodes share an address.",
        (
            ("see what the cluster has", "ray status"),
            ("start the nodes with their GPUs", "ray start --address=<head>:6379 --num-gpus=8"),
            ("give each node an address of its own", "export VLLM_HOST_IP=<ip of this node>"),
            ("do without Ray", "{serve} --distributed-executor-backend mp"),
            ("install it", "pip install ray"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "D6",
        patterns(
            r"Failed to load NCCL library from (?P<library>\S{1,300})",
            r"nccl\w{0,30}Error: ",
        ),
        ("the NCCL library {library} cannot be loaded", "NCCL failed"),
        "The library is missing, or belongs to another CUDA than torch's.",
        (
            ("name a library that fits", "VLLM_NCCL_SO_PATH=/path/libnccl.so.2 {serve}"),
            ("let NCCL say why", "NCCL_DEBUG=INFO {serve}"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "D8",
        patterns(r"custom_all_reduce\.cuh:\d{1,6}(?:[^'\n]{0,20}'(?P<detail>[^'\n]{1,80}))?"),
        (
            "the direct all-reduce between the GPUs failed ({detail})",
            "the direct all-reduce between the GPUs failed",
        ),
        "Peer access between the GPUs is announced but does not work here.",
        (
            ("use NCCL instead", "{serve} --disable-custom-all-reduce"),
            ("have peer access tested", "VLLM_SKIP_P2P_CHECK=0 {serve}"),
        ),
    ),
    ProblemRule(
        "D9",
        patterns(
            r"Timed out waiting \d{1,9} ?ms for (?:recv|send) operation",
            r"gloo[^\n]{0,200}[Tt]imed out",
            r"The server socket has failed to listen on any local network address"
            r"(?:[^\n]{0,200}?port: (?P<inner_port>\d{1,5}))?",
            r"(?P<joined>\d{1,6}/\d{1,6}) clients joined",
            r"DistNetworkError|DistStoreError",
            r"Address already in use \(addr='(?P<address>[^']{1,200})'\)",
            r"zmq\.error\.ZMQError: No such device \(addr='(?P<nowhere>[^']{1,200})'\)",
            r"DP Coordinator process failed to report ZMQ addresses",
            r"ConnectionRefusedError: \[Errno 111\]|\[Errno 111\] Connection refused",
            r"Gloo connectFullMesh failed|gloo[^\n]{0,160}[Cc]onnection refused",
            r"Unable to find address for: (?P<interface>\S{1,40})",
        ),
        (
            "the processes could not meet: {joined} came",
            "the processes could not meet: port {inner_port} between them is taken",
            "the processes could not meet: {address} is taken",
            "the processes could not meet: this machine has no address {nowhere}",
            "there is no network interface {interface}",
            "the processes could not reach each other",
        ),
        "Ranks find each other by an address and a port: it is taken, not reachable, or one rank "
        "never started.",
        (
            ("end older servers", "pgrep -af 'VLLM::|vllm serve'"),
            ("use another port between the processes", "VLLM_PORT=29511 {serve}"),
            _REACHABLE,
            ("stay on this machine", "VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo {serve}"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "D9",
        patterns(
            r"\[Gloo\] Rank (?P<rank>\d{1,6}) is NOT connected to:? ?(?P<others>[^\n]{0,100})"
        ),
        ("the processes could not meet: rank {rank} is not connected to {others}",),
        "Ranks find each other by an address and a port: the network interface is the wrong one, a "
        "firewall is between them, or one rank never started.",
        (
            ("name the interface that joins them", "GLOO_SOCKET_IFNAME=<interface> {serve}"),
            _REACHABLE,
            ("see which interfaces there are", "ip -br address"),
        ),
    ),
    ProblemRule(
        "D10",
        patterns(
            r"Configuration mismatch detected for engine (?P<engine>\d{1,6})",
            r"Remote engine (?P<engine>\d{1,6}) must (?:not )?use --headless",
            r"Invalid data-parallel launch options: (?P<detail>[^\n]{1,200})",
            r"Non-MoE models do not support external data parallel mode",
        ),
        (
            "the engine {engine} was started with other options than the first",
            "the data parallel options contradict each other: {detail}",
            "a dense model cannot be run in external data parallel mode",
        ),
        "All data parallel engines need the same command line; --headless is for the others than "
        "the first.",
        (
            ("give every node the same command line", None),
            ("for a dense model, start independent servers", "{serve} --data-parallel-size 1"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "D11",
        patterns(
            r"enable_expert_parallel must be True to use EPLB",
            r"Number of experts in the model must be greater than 0",
            r"No module named '(?P<module>deep_ep|pplx_kernels|nixl_ep)'",
        ),
        (
            "the package {module} for expert parallelism is missing",
            "expert parallelism does not go with this model or these options",
        ),
        "Only mixture-of-experts models have experts to share out.",
        (
            ("leave the flag out", "{serve} ~--enable-expert-parallel ~--enable-eplb"),
            ("use what is always there", "{serve} --all2all-backend allgather_reducescatter"),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "D12",
        patterns(
            r"DCP requires attention imp\w{2,20} to return the softmax (?:lse|LSE)[^\n]{0,40}?, "
            r"but (?:the impl )?(?P<backend>\w{1,80}) does not",
            r"PCP requires attention imp\w{2,20}'? support, but (?:the impl )?"
            r"(?P<backend>\w{1,80}) does not",
        ),
        ("context parallelism does not go with the attention of {backend}",),
        "The parts of a long context are put together by weights that only some attention backends "
        "return.",
        (
            ("use one that returns them", "{serve} --attention-backend FLASH_ATTN"),
            ("for a model with MLA", "{serve} --attention-backend FLASHMLA"),
            ("do without it", "{serve} ~--decode-context-parallel-size"),
        ),
        is_fatal=True,
    ),
)
