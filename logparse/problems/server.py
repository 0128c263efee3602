"""Causes of families F, G and S: command line, address, life of processes, our own engine."""

from __future__ import annotations

import difflib
import functools

from logparse.problems.flags import GONE_FLAGS, VLLM_FLAGS
from logparse.problems.problem import ASK_CLI, MORE_TIME, WHO_STOPS, ProblemRule, Values, patterns


def _nearest_flag(values: Values) -> Values:
    given = values.get("arguments", "").split()
    flag = next((word.split("=")[0] for word in given if word.startswith("-")), "")
    if not flag:
        return {}
    found: Values = {"flag": flag}
    if flag in GONE_FLAGS:
        found["gone_flag"] = flag
        rest = given[given.index(flag) + 1 :] if flag in given else []
        value = rest[0] if rest and not rest[0].startswith("-") else None
        if replacement := GONE_FLAGS[flag].replacement(value):
            found["replacement"] = replacement
        return found
    meant = _close_to(flag[:80])
    if meant is not None and meant != flag:
        found["meant"] = meant
        rest = given[given.index(flag) + 1 :] if flag in given else []
        value = rest[0] if rest and not rest[0].startswith("-") else ""
        found["meant_with_value"] = f"{meant} {value}".strip()
    return found


@functools.lru_cache(maxsize=32)  # a cause is asked for again and again while a log is read
def _close_to(flag: str) -> str | None:
    close = difflib.get_close_matches(flag, VLLM_FLAGS, n=1, cutoff=0.75)
    return close[0] if close else None


def _first_sentence(values: Values) -> Values:
    """Our own messages go on with what to change; the line itself is shown below the title."""
    detail = values.get("detail", "")
    return {"detail": detail.partition(". ")[0].rstrip(".")} if detail else {}


SERVER_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "F1",
        patterns(
            r"\[Errno (?:98|48)\][^\n]{0,120}?(?:address \('[^']{0,100}', (?P<port>\d{1,5})|"
            r"[Aa]ddress already in use)",
            r"[Pp]ort (?P<port>\d{1,5}) is (?:already )?(?:in use|taken)",
            r"couldn't bind HTTP server socket, hostname: \S{1,100}, port: (?P<port>\d{1,5})",
        ),
        (
            "port {port} is already in use by another process",
            "the port is already in use by another process",
        ),
        "Something listens there, often an older server that is still running.",
        (
            ("see who it is", "ss -ltnp | grep :{port}"),
            ("use another port", "{serve} --port {next_port}"),
            (
                "find an old server that still runs",
                "pgrep -af 'VLLM::|vllm serve|llama-server|engine serve'",
            ),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "F1",
        patterns(r"\[Errno (?:99|49)\] [^\n]{0,40}requested address"),
        ("this machine does not have the address given by --host",),
        "A server can only listen on an address of its own machine.",
        (("listen on this machine only", "{serve} --host 127.0.0.1"),),
        is_fatal=True,
    ),
    ProblemRule(
        "F2",
        patterns(
            r": error: unrecognized arguments: "
            r"(?P<words>(?!-)\S{1,200}(?: {1,4}(?!-)\S{1,200}){0,40})\s{0,4}$"
        ),
        ("the command line holds words that belong to no flag: {words}",),
        "A value with a space lost its quotes, a flag lost its dashes, or a line was broken "
        "without a backslash at its end.",
        (ASK_CLI,),
    ),
    ProblemRule(
        "F2",
        patterns(r": error: unrecognized arguments: (?P<arguments>[^\n]{1,400})"),
        (
            "unknown flag {flag} (meant {meant}?)",
            "the flag {gone_flag} no longer exists",
            "unknown flag {flag}",
            "unknown arguments: {arguments}",
        ),
        "The command line holds a flag that this version does not know.",
        (
            ("spell it {meant_with_value}", None),
            ("use {replacement} instead", None),
            ("leave {gone_flag} out", None),
            ASK_CLI,
        ),
        derive=_nearest_flag,
    ),
    ProblemRule(
        "F2",
        patterns(
            r": error: argument (?P<flag>[\w/, -]{1,100}): invalid choice: "
            r"(?P<value>[^(\n]{1,100}?)\s{0,3}\(choose from (?P<choices>[^)\n]{1,600})",
            r": error: argument (?P<flag>[\w/, -]{1,100}): (?P<detail>[^\n]{1,300})",
            r": error: (?P<detail>[^\n]{1,300})",
        ),
        (
            "{flag} does not take {value}; it takes {choices}",
            "{flag}: {detail}",
            "the command line is not valid: {detail}",
        ),
        "The value given to a flag is not one that it accepts, or an argument is missing.",
        (ASK_CLI,),
        is_of_usage=True,
    ),
    ProblemRule(
        "F4",
        patterns(
            r"--enable-auto-tool-choice requires --tool-call-parser",
            r"invalid tool call parser: (?P<parser>\S{1,60})",
            r"tool (?:call )?parser '(?P<parser>[^'\n]{1,60})' (?:is not available|not found)",
        ),
        ("tool calling needs a parser that fits the model",),
        "Each model family writes tool calls in its own way.",
        (("name it", "{serve} --enable-auto-tool-choice --tool-call-parser hermes"),),
    ),
    ProblemRule(
        "F8",
        patterns(
            r"chat template path doesn't exist",
            r"chat template string \([^\n]{0,300}appears path-like",
        ),
        ("the chat template file does not exist",),
        "The path is relative to where the server was started (in Docker: inside the container).",
        (("give the whole path", "{serve} --chat-template /path/to/template.jinja"),),
    ),
    ProblemRule(
        "F9",
        patterns(r"invalid tiktoken vocab file", r"error downloading or loading vocab file"),
        ("the tiktoken vocabulary file that the model needs is broken or missing",),
        "gpt-oss models read it when the API starts, after the engine is up; an empty or blocked "
        "download "
        "leaves a broken file behind.",
        (
            (
                "delete the cached file and start again",
                "rm -rf /tmp/data-gym-cache ~/.cache/tiktoken-rs-cache",
            ),
            ("point to good files", "TIKTOKEN_ENCODINGS_BASE=/path/to/encodings {serve}"),
        ),
    ),
    ProblemRule(
        "F9",
        patterns(
            r"Can't load tokenizer for '(?P<repo>[^']{1,300})'",
            r"Couldn't instantiate the backend tokenizer",
            r"data did not match any variant of untagged enum ModelWrapper",
            r"No tokenizer registered for tokenizer_mode",
        ),
        ("the tokenizer cannot be loaded",),
        "Its files are not in the folder, or need a package that is missing or too old.",
        (
            ("take the base model's", "{serve} --tokenizer <org/base-model>"),
            (
                "install what it needs",
                "pip install -U sentencepiece tiktoken tokenizers transformers",
            ),
        ),
    ),
    ProblemRule(
        "G2",
        patterns(
            r"Timed out waiting for engine core processes to start",
            r"Did not receive response from front-end process",
        ),
        ("the engine did not get ready in time",),
        "Loading took longer than the limit, or a process hangs.",
        (
            ("allow more time", "VLLM_ENGINE_READY_TIMEOUT_S=3600 {serve}"),
            ("copy the model to a local disk", None),
            ("look for a hang", "NCCL_DEBUG=INFO {serve}"),
        ),
    ),
    ProblemRule(
        "G3",
        patterns(
            r"(?:^|\d |Fatal Python error: )Segmentation fault",
            r"Failed core proc\(s\): \{[^}]{0,300}: (?:-11|139)\b",
            r"exit code: -11\)|status=11/SEGV|exited with code 139\b",
        ),
        ("a process crashed with a segmentation fault",),
        "Compiled code failed: usually a driver, a library built for another torch, or NCCL.",
        (
            ("find the place", "PYTHONFAULTHANDLER=1 {serve}"),
            ("see which build fits this machine", "stoker doctor"),
        ),
    ),
    ProblemRule(
        "G12",
        patterns(
            r"failed (?P<probe>startup|liveness) probe, will be restarted",
            r"(?P<probe>[Ss]tartup|[Ll]iveness) probe failed",
        ),
        ("Kubernetes stopped the server because its {probe} probe gave up",),
        "The probe asks from the first second on and stops a server that does not answer within "
        "failureThreshold times periodSeconds (30 s unless set); loading a model takes longer.",
        (
            MORE_TIME,
            (
                "for example, half an hour: startupProbe with periodSeconds: 10 and "
                "failureThreshold: 180",
                None,
            ),
        ),
        is_fatal=True,
    ),
    ProblemRule(
        "G10",
        patterns(r"^Terminated|\d Terminated\b"),
        ("the start was interrupted from outside",),
        WHO_STOPS,
        (MORE_TIME, ("start it again", "{serve}")),
    ),
    ProblemRule(
        "G3",
        patterns(
            r"terminate called after throwing an instance of '(?P<what>[^'\n]{1,200})'",
            r"^\s{0,8}what\(\): {1,4}(?P<what>[^\n]{1,200})",
            r"Fatal Python error: (?P<what>[^\n]{1,100})",
            r"^(?P<what>double free or corruption|free\(\): invalid|malloc\(\): |corrupted size)",
            r"(?:^|\d )(?P<what>Aborted)",
            r"Failed core proc\(s\): \{[^}]{0,300}: (?:-6|134)\b",
            r"status=6/ABRT|exited with code 134\b",
        ),
        ("compiled code gave up ({what})", "compiled code gave up (SIGABRT)"),
        "An error that no Python code could catch: NCCL's watchdog, a driver, a library built for "
        "another torch.",
        (
            ("find the place", "PYTHONFAULTHANDLER=1 {serve}"),
            ("let NCCL say why", "NCCL_DEBUG=INFO {serve}"),
            ("see which build fits this machine", "stoker doctor"),
        ),
    ),
    ProblemRule(
        "E18",
        patterns(
            r"(?:^|\d )Illegal instruction|status=4/ILL|exited with code 132\b",
            r"Failed core proc\(s\): \{[^}]{0,300}: (?:-4|132)\b",
        ),
        ("the processor lacks an instruction that this build uses",),
        "CPU builds need at least AVX2, many AVX-512.",
        (("see which build fits this machine", "stoker doctor"),),
    ),
    ProblemRule(
        "G4",
        patterns(
            r"Engine core proc (?P<name>.{1,80}?) died unexpectedly",
            r"engine core exited unexpectedly(?: \(exit code (?P<code>-?\d{1,4})\))?",
            r"Worker proc (?P<name>.{1,80}?) died unexpectedly",
            r"(?P<name>Rank \d{1,5} scheduler) died during initialization \(exit code: "
            r"(?P<code>-?\d{1,4})\)",
        ),
        (
            "the process {name} died without a message",
            "the engine process died without a message (exit code {code})",
            "the engine process died without a message",
        ),
        "Something outside of Python ended it: the kernel (out of memory), a kill, or a crash of "
        "compiled code.",
        (
            ("see whether the kernel did it", "dmesg | tail -50"),
            ("start it again", "{serve}"),
        ),
    ),
)

OWN_ENGINE_PROBLEMS: tuple[ProblemRule, ...] = (
    ProblemRule(
        "G5",
        patterns(r"Worker proc (?P<name>.{1,200}?) has not moved for (?P<seconds>[\d.]{1,9}) s"),
        ("the process {name} stood still, and the others waited for it",),
        "A signal or a debugger stopped it, or it waits for something that does not come.",
        (("start it again", "{serve}"),),
    ),
    ProblemRule(
        "G14",
        patterns(
            r"Worker proc (?P<name>.{1,200}?) disagrees with (?P<others>.{1,400}?): "
            r"(?P<what>[^\n]{1,200}?), shutting"
        ),
        ("the process {name} disagrees with {others}: {what}",),
        "Ranks of one model have to do the same: its tokens would have been wrong. Faulty memory "
        "or another version of Stoker on one machine can be why.",
        (("start it again", "{serve}"), ("see what this machine says of itself", "stoker doctor")),
    ),
    ProblemRule(
        "G15",
        patterns(
            r"Node (?P<name>\d{1,4} (?:at \S{1,80}|\([^)\n]{1,80}\))) "
            r"(?P<what>is gone(?:: [^,\n]{1,200})?|has not answered for [\d.]{1,9} s)"
        ),
        ("node {name} {what}",),
        "One of the machines that the model is spread over has ended, was ended, or cannot be "
        "reached any more; its own log says which. All nodes end then.",
        (("start it again, on every node", "{serve}"),),
    ),
    ProblemRule(
        "S1",
        patterns(r"MemoryBudgetError: (?P<detail>[^\n]{1,500})"),
        ("{detail}",),
        "The weights or one full-length request do not fit into the memory budget.",
        (
            ("serve shorter sequences", "{serve} --max-model-len {len_half}"),
            ("set the cache's size", "{serve} --kv-cache-memory-bytes 1G"),
        ),
        is_fatal=True,
        derive=_first_sentence,
    ),
    ProblemRule(
        "S2",
        patterns(
            r"ConfigError: (?P<detail>(?P<flag>--[a-z][\w-]{1,60})[^\n]{1,450})",
            r"ConfigError: (?P<detail>[^\n]{1,500})",
        ),
        ("{detail}",),
        "A flag's value, or the combination of flags, cannot work.",
        (("leave {flag} out", "{serve} ~{flag}"), ASK_CLI),
        is_fatal=True,
        derive=_first_sentence,
    ),
    ProblemRule(
        "S7",
        patterns(r"ModelError: (?P<detail>[^\n]{0,400}\.gguf: [^\n]{1,300})"),
        ("{detail}",),
        "The file is not one that this engine converts; llama.cpp reads GGUF files as they are.",
        (
            ("serve it with llama.cpp", "stoker serve {model} --engine llama.cpp"),
            ("see how much of it fits", "stoker plan {model}"),
        ),
        is_fatal=True,
        derive=_first_sentence,
    ),
    ProblemRule(
        "S3",
        patterns(r"ModelError: (?P<detail>[^\n]{1,500})"),
        ("{detail}",),
        "The model is not one that this engine runs.",
        (
            ("serve it with vLLM, on a GPU", "stoker serve {model} --engine vllm"),
            ("serve a GGUF file of it", "stoker serve MODEL.gguf --engine llama.cpp"),
            ("list what is in the cache", "stoker models list"),
        ),
        is_fatal=True,
        derive=_first_sentence,
    ),
)
