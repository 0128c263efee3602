"""Every command that is printed as a fix can be typed: the program is one that people have, a shell
reads it, our own parser takes what begins with `stoker`, and an engine knows the flags that it is
given. Checked for each rule with made-up values, and for what the collected logs are told.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from app.cli import COMMANDS, load_command
from engine.args import EngineArgs
from logparse.problems.candidate import Candidate, Cause
from logparse.problems.command_line import given_flags
from logparse.problems.fitting import weights_gib
from logparse.problems.hangs import HANGS
from logparse.problems.request_errors import REQUEST_ERRORS
from logparse.problems.table import LAST_RESORTS, PROBLEM_RULES
from logparse.problems.text import filled_fixes, to_problem
from logparse.problems.unknown import KINDS
from logparse.problems.warnings import WARNING_RULES
from logparse.records import Facts, Fix
from tests.engine_flags import own_flags
from tests.logparse.shared_logs import LOGS, MORE_LOGS, report_of
from tests.places import SHARED

ENGINES = ("vllm", "stoker", "sglang", "llama.cpp", None)
FACTS_PAGES = sorted((SHARED / "facts").glob("vllm-*.md"))
# Flags of the other engines, by their own documentation.
_SGLANG_TEXT = """
--model-path --context-length --mem-fraction-static --tp-size --pp-size --dp-size --log-level
--max-running-requests --chunked-prefill-size --disable-cuda-graph --cuda-graph-max-bs
--disable-custom-all-reduce --trust-remote-code --quantization --dtype --port --host --revision
--attention-backend --sampling-backend --tokenizer-path --tokenizer-mode --load-format
--kv-cache-dtype --model-impl --served-model-name --chat-template --help --reasoning-parser
--tool-call-parser --json-model-override-args --disable-radix-cache
"""
SGLANG_FLAGS = frozenset(_SGLANG_TEXT.split())
_LLAMA_TEXT = """
-m -hf --ctx-size --n-gpu-layers --port --host --flash-attn --cache-type-k --cache-type-v
--verbose --help --version --list-devices --no-mmproj --parallel --batch-size --jinja
--chat-template
"""
LLAMA_FLAGS = frozenset(_LLAMA_TEXT.split())
_PROGRAM_TEXT = """
vllm stoker python llama-server nvidia-smi nvcc pip uv docker df ls dmesg sudo ss pgrep py-spy ps
hf unset export echo rm cd ulimit curl aws openssl git head sacct ldconfig ray wsl ip tee grep
tail md5sum apt env kubectl ldd rocm-smi npu-smi hl-smi xpu-smi
"""
PROGRAMS = frozenset(_PROGRAM_TEXT.split())
# Of a user, in a template.
_SAMPLE: dict[str, str] = {
    "adapters": "a", "address": "10.0.0.1", "archs": "gfx1151", "bytes": "1", "path": "/m/x",
    "file": "/m/x.gguf", "flag": "--enable-log-outputs", "other": "--enable-lora", "kind": "image",
    "packages": "einops", "package": "vllm", "missing": "einops", "flashinfer": "0.2.1",
    "limit": "4096", "fit": "4096", "asked": "9000", "need": "5", "have": "4", "free": "20.5",
    "total": "80.0", "share": "0.9", "tp": "4", "heads": "32", "gpus": "2", "world": "4",
    "port": "8000", "length": "4096", "budget": "256", "seqs": "300", "predict": "3",
    "rank": "64", "loras": "4", "dcp": "4", "convert": "embed", "meant": "--max-model-len",
    "library": "frob", "driver": "cuda", "larger_share": "0.50", "repo": "o/m",
    "meant_with_value": "--max-model-len 3", "replacement": "--runner", "gone_flag": "--task",
    "divisor": "2", "location": "/x", "weights": "26.1", "tool": "ninja", "parser": "frob",
}  # fmt: skip
FACTS = Facts(
    model="o/m-3B",
    non_default_args="{'model': 'o/m-3B', 'seed': 7, 'max_num_seqs': 64, 'quantization': 'awq'}",
    max_model_len=8192,
    tensor_parallel_size=2,
)
SGLANG_FACTS = Facts(
    model="o/m-3B",
    non_default_args="ServerArgs(model_path='o/m-3B', port=30001, tp_size=2)",
    max_model_len=8192,
)


OWN_FACTS = Facts(model="o/m-3B", non_default_args="{'model': 'o/m-3B', 'seed': 7}")
LLAMA_FACTS = Facts(model="/m/x.gguf", max_model_len=8192)


def facts_of(engine: str | None) -> Facts:
    own = {"sglang": SGLANG_FACTS, "llama.cpp": LLAMA_FACTS, "stoker": OWN_FACTS}
    return own.get(engine or "", FACTS)


def fixes_of_rules() -> Iterator[tuple[str, str | None, Fix]]:
    for rule in (*PROBLEM_RULES, *LAST_RESORTS):
        for engine in ENGINES if not rule.engine else (rule.engine,):
            cause = Cause(Candidate(1, None, None, "x", "plain"), rule, dict(_SAMPLE), _line())
            for fix in to_problem(cause, facts_of(engine), engine).fixes:
                yield rule.id, engine, fix
    for entry in (*WARNING_RULES, *REQUEST_ERRORS):
        for engine in ENGINES if not entry.engine else (entry.engine,):
            own = bool(entry.engine)
            for fix in filled_fixes(entry.fixes, facts_of(engine), engine, is_own=own):
                yield entry.id, engine, fix
    for _, text, command in HANGS:
        for engine in ENGINES:
            for fix in filled_fixes(((text, command),), facts_of(engine), engine):
                yield "hang", engine, fix
    for kind in KINDS:
        for engine in ENGINES:
            for fix in filled_fixes(kind.fixes, facts_of(engine), engine):
                yield kind.name, engine, fix


def _line() -> Candidate:
    return Candidate(1, None, None, "x", "plain")


def without_given(fix: Fix, given: frozenset[str]) -> Fix:
    """Without the flags that the user gave, which that release knew."""
    if fix.command is None:
        return fix
    words = fix.command.split(" ")
    kept = [word for word in words if word not in given]
    return Fix(fix.text, " ".join(kept))


def fixes_of_logs() -> Iterator[tuple[str, str | None, Fix]]:
    for path in sorted((*LOGS.glob("*.log"), *MORE_LOGS.glob("*.log"))):
        report = report_of(path)
        found = report.problem.fixes if report.problem is not None else ()
        for fix in (*found, *(f for w in report.insight.warnings for f in w.fixes)):
            given = frozenset(flag.name for flag in given_flags(report.facts.non_default_args))
            yield path.name, report.engine, without_given(fix, given)


@pytest.fixture(scope="module")
def vllm_flags() -> frozenset[str]:
    if not FACTS_PAGES:
        pytest.skip("the pages of vLLM's flags are not here")
    text = "\n".join(page.read_text() for page in FACTS_PAGES)
    found = set(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", text))
    short = {"-tp": "tensor", "-pp": "pipeline", "-dp": "data", "-dcp": "decode-context"}
    found |= {f"--{name}-parallel-size" for flag, name in short.items() if flag in found}
    return frozenset(found | {"--help"})


def unfit(command: str, flags: dict[str, frozenset[str]]) -> str | None:
    """What is wrong with a command, None if it can be typed."""
    if re.search(r"\{\w+\}|(?<=\s)~-|\x00|\x01", command):
        return "a template that was not filled in"
    shell = subprocess.run(["bash", "-n", "-c", _typed(command)], capture_output=True, check=False)
    if shell.returncode:
        return f"no shell reads it: {shell.stderr.decode()[:100]}"
    for words in _calls(command):
        if wrong := _unfit_call(words, flags):
            return wrong
    return None


def _typed(command: str) -> str:
    """With a word in place of what the reader fills in (<ip>, ...)."""
    plain = re.sub(r"<[\w /.-]{1,40}>", "7", command)
    return plain.replace(" ...", "").replace(" 2>&1", "")


def _calls(command: str) -> Iterator[list[str]]:
    """Each program with its words; variables in front are left out."""
    lexer = shlex.shlex(_typed(command), posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set("|&;"):
            if words:
                yield words
            words = []
        elif words or not re.match(r"\w+=", word):
            words.append(word)


def _unfit_call(words: list[str], flags: dict[str, frozenset[str]]) -> str | None:
    program, rest = words[0], words[1:]
    if program.startswith(("https://", "-", "if")):
        return None  # an address to open, a flag to spell, a line of Python
    if program not in PROGRAMS:
        return f"there is no program {program}"
    if program == "stoker":
        return _unfit_for_stoker(rest, flags["stoker"])
    if program == "vllm":
        return _unknown_flag(rest, flags["vllm"])
    if program == "llama-server":
        return _unknown_flag(rest, LLAMA_FLAGS)
    if words[:3] == ["python", "-m", "sglang.launch_server"]:
        return _unknown_flag(words[3:], SGLANG_FLAGS)
    return None


def _unknown_flag(words: list[str], known: frozenset[str]) -> str | None:
    for word in words:
        flag = word.partition("=")[0].partition(".")[0]
        if not re.match(r"--?[a-zA-Z]", flag) or flag in known:
            continue
        if not (flag.startswith("--no-") and f"--{flag[5:]}" in known):
            return f"the engine has no flag {flag}"
    return None


def _unfit_for_stoker(words: list[str], own: frozenset[str]) -> str | None:
    name, rest = words[0], words[1:]
    entry = next((entry for entry in COMMANDS if entry.name == name), None)
    if entry is None:
        return f"there is no command stoker {name}"
    if "--help" in rest:
        return None
    command: Any = load_command(entry)
    try:
        context = command.make_context(f"stoker {name}", list(rest))
    except (Exception, SystemExit) as error:
        return f"stoker {name} does not take it: {error}"
    with context:
        left = list(context.args)
    if wrong := _unknown_flag([word for word in left if word.startswith("--")], own):
        return wrong
    parser = argparse.ArgumentParser(exit_on_error=False)
    EngineArgs.add_cli_args(parser)
    try:
        parser.parse_known_args(left if name == "serve" and "--engine" not in rest else [])
    except (argparse.ArgumentError, SystemExit) as error:
        return f"our engine does not take the value: {error}"
    return None


@pytest.fixture(scope="module")
def flags(vllm_flags: frozenset[str]) -> dict[str, frozenset[str]]:
    return {"vllm": vllm_flags, "stoker": own_flags()}


def check(found: list[tuple[str, str | None, Fix]], flags: dict[str, frozenset[str]]) -> int:
    seen: dict[str, str | None] = {}
    wrong = []
    for where, engine, fix in found:
        if fix.command is not None and fix.command not in seen:
            seen[fix.command] = unfit(fix.command, flags)
        if fix.command is not None and (reason := seen[fix.command]):
            wrong.append(f"{where} ({engine}): {fix.command}: {reason}")
    assert not wrong, "\n".join(sorted(set(wrong)))
    return len(seen)


def test_what_the_rules_print(
    flags: dict[str, frozenset[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    number = check(list(fixes_of_rules()), flags)
    with capsys.disabled():
        print(f"\n  {number} commands of the rules checked")
    assert number > 300


@pytest.mark.skipif(not MORE_LOGS.is_dir(), reason="the collected logs are not here")
def test_what_the_logs_are_told(
    flags: dict[str, frozenset[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    number = check(list(fixes_of_logs()), flags)
    with capsys.disabled():
        print(f"\n  {number} commands of the collected logs checked")
    assert number > 50


@pytest.mark.parametrize(
    "command",
    ["stoker deploy --help", "stoker logs --frob", "vllm serve m --frob 3", "frob --help",
     "vllm serve m --max-model-len {fit}", "vllm serve 'm", "vllm serve m ~--dtype",
     "stoker serve --frob 1"],
)  # fmt: skip
def test_the_check_finds_what_cannot_be_typed(
    command: str, flags: dict[str, frozenset[str]]
) -> None:
    assert unfit(command, flags) is not None


def test_each_rule_prints_something_for_someone() -> None:
    told = {where for where, _, _ in fixes_of_rules()}
    assert {rule.id for rule in PROBLEM_RULES} <= told


_FREE = re.compile(r"Free memory on device[^(]*\(([\d.]+)/([\d.]+) GiB\)")


@pytest.mark.skipif(not MORE_LOGS.is_dir(), reason="the collected logs are not here")
def test_values_fit_the_numbers_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """A share holds the weights and is free; a length and a step are shorter than what failed."""
    checked = 0
    for path in sorted((*LOGS.glob("*.log"), *MORE_LOGS.glob("*.log"))):
        report = report_of(path)
        if report.problem is None:
            continue
        facts, held = report.facts, _FREE.search(report.problem.key_line)
        weights = weights_gib(facts)
        free, total = (float(held[1]), float(held[2])) if held else (None, facts.gpu_total_gib)
        for fix in report.problem.fixes:
            if "CUDA_VISIBLE_DEVICES" in (fix.command or ""):
                continue  # of another GPU nothing is known
            for name, text in re.findall(r"(--[\w-]+) (\d+(?:\.\d+)?)(?!\S)", fix.command or ""):
                value = float(text)
                if name == "--gpu-memory-utilization" and total is not None:
                    checked += 1
                    assert free is None or value * total <= free, (path.name, fix)
                    assert weights is None or value * total > weights, (path.name, fix)
                asked = facts.requested_max_model_len or facts.max_model_len
                if name == "--max-model-len" and asked is not None:
                    checked += 1
                    assert value <= asked, (path.name, fix)
    with capsys.disabled():
        print(f"\n  {checked} values checked")
    assert checked
