"""Lines that only our own engine prints; most of its lines have vLLM's words, and vLLM's rules."""

from __future__ import annotations

import functools

from logparse.rules.rule import NUM, SECONDS, Keep, Rule, Take, Unit, known_line

_E = "stoker"
_WHY = Take("reason", Unit.TEXT)
_PATH = Take("path", Unit.TEXT)
_BUILD = "engine/kernels/native/build.py"
_PACKED = "engine/kernels/native/packed_cache.py"
_SELECTION = "engine/kernels/selection.py"
_LAUNCH = "engine/server/launch.py"
_TURN = "engine/core/memory_turn.py"
_CLIENT = "engine/core/client.py"


_line = functools.partial(known_line, engine=_E)
_KERNELS = (
    _line(
        "stoker-native-kernels",
        "Native kernels for ",
        r"(.{1,80}?) are used on this CPU",
        "The compiled kernels of our engine run, with these instructions.",
        _SELECTION,
        2,
        Take("instructions", Unit.TEXT),
    ),
    _line(
        "stoker-kernels-again",
        "CPU kernels are built again: ",
        r"(.{1,400}?)\.?$",
        "The file of an earlier build cannot be trusted, so it was removed.",
        _BUILD,
        2,
        _WHY,
    ),
    _line(
        "stoker-triton-kernels",
        "Triton kernels are used with the tiles of ",
        r"(\w{1,40})\.",
        "The compiled kernels of our engine run, in the sizes for this kind of GPU.",
        _SELECTION,
        2,
        Take("instructions", Unit.TEXT),
    ),
    _line(
        "stoker-triton-interpreted",
        "Triton kernels run in Triton's interpreter",
        "",
        "A CPU computes what GPUs would, for tests: far too slow for anything else.",
        _SELECTION,
        2,
    ),
    _line(
        "stoker-no-triton-kernels",
        "Triton kernels are not used: ",
        r"(.{1,400}?)\.?$",
        "The slower kernels of torch run instead.",
        _SELECTION,
        2,
        _WHY,
    ),
    _line(
        "stoker-no-native-kernels",
        "Native CPU kernels are not used: ",
        r"(.{1,400}?)\.?$",
        "The slower kernels of torch run instead.",
        _SELECTION,
        2,
        _WHY,
    ),
    _line(
        "stoker-reference-kernels",
        "Reference kernels ",
        r"(?:\(torch\) are used|follow --quantization)",
        "The kernels of torch run: slower, and the measure for all others.",
        _SELECTION,
        2,
    ),
    _line(
        "stoker-kernel-build-time",
        "Building CPU kernels took ",
        NUM + " seconds",
        "How long the compiler needed; a second start finds them built.",
        _BUILD,
        2,
        SECONDS,
    ),
    _line(
        "stoker-kernel-build",
        "Building CPU kernels for ",
        r"(.{1,80}?) with (\S{1,200}) \(once\)",
        "The first start on this machine compiles the kernels.",
        _BUILD,
        2,
        Take("instructions", Unit.TEXT),
        Take("compiler", Unit.TEXT, (2,)),
    ),
    _line(
        "stoker-kernel-build-wait",
        "Another start builds the CPU kernels",
        r"",
        "Two servers start at once; this one waits for the other's compiler.",
        _BUILD,
        2,
    ),
    _line(
        "stoker-kernel-build-left",
        "Removing ",
        r"(.{1,300}?), left by a build that was killed",
        "Left over from a start that was killed; harmless.",
        _BUILD,
        2,
        _PATH,
    ),
    _line(
        "stoker-kernels-unusable",
        "CPU kernels ",
        r"(?:in (.{1,300}?) are (?:damaged|not used)|are built for this start only)",
        "The kernels that were kept cannot be used; they are compiled again.",
        _BUILD,
        2,
        _PATH,
    ),
)
_WEIGHTS = (
    _line(
        "stoker-packing",
        "Packing weights ",
        r"\(layers in ([^,]{1,40}), head in ([^)]{1,40})\) took " + NUM + " seconds",
        "The weights were brought into the order in which the kernels read them.",
        "engine/models/decoder_native.py",
        2,
        Take("layers", Unit.TEXT),
        Take("head", Unit.TEXT, (2,)),
        Take("seconds", Unit.SECONDS, (3,)),
    ),
    _line(
        "stoker-packed-read",
        "Reading packed weights (",
        NUM + r" GiB\) took " + NUM + " seconds",
        "The packed weights of an earlier start were read, which is faster.",
        "engine/models/packed_decoder.py",
        2,
        Take("size", Unit.GIB),
        Take("seconds", Unit.SECONDS, (2,)),
    ),
    _line(
        "stoker-packed-kept",
        "Keeping packed weights for the next start took ",
        NUM + " seconds",
        "What a second start need not do again.",
        _PACKED,
        2,
        SECONDS,
    ),
    _line(
        "stoker-packed-removed",
        "Removed packed weights ",
        r"(.{1,300}?): the cache is full",
        "Room was made for newer ones.",
        _PACKED,
        2,
        _PATH,
    ),
    _line(
        "stoker-packed-unused",
        "Packed weights ",
        r"(?:in .{1,300}? )?are not (?:used|kept for the next start): (.{1,400}?)\.?$",
        "The weights are packed anew at each start; only time is lost.",
        _PACKED,
        2,
        _WHY,
    ),
)
_MEMORY = (
    _line(
        "stoker-memory-turn",
        "Waiting for process ",
        r"(\d{1,12}), which measures (?:the free RAM|the memory of the GPU)",
        "Starts on one device measure its memory one after the other; this one goes on when that "
        "one has its KV cache, or has ended.",
        _TURN,
        2,
        takes=(Take("waits_for_pid", Unit.COUNT, keep=Keep.LAST),),
    ),
    _line(
        "stoker-no-memory-turn",
        "Other starts are not waited for while ",
        r"(?:the free RAM|the memory of the GPU) is measured: (.{1,400}?)\.?$",
        "The folder in which starts agree cannot be used: two at once may count the same memory.",
        _TURN,
        2,
        _WHY,
    ),
)
_FILES = (
    _line(
        "stoker-converting",
        "Converting ",
        r"(\S{1,300}?)(?: to safetensors, once|: (\d{1,3})% \()",
        "A GGUF file is brought into the form that our engine reads; kept for the next start.",
        "engine/models/resolve.py",
        1,
        _PATH,
    ),
    _line(
        "stoker-downloading",
        "Downloading ",
        r"(\S{1,200}?)(?: from the Hugging Face hub|: (\d{1,3})% \()",
        "The model is fetched; without a network this is where a start waits.",
        "engine/models/resolve.py",
        1,
        Take("model", Unit.TEXT),
    ),
)
_SERVING = (
    _line(
        "stoker-no-key",
        "Listening on ",
        r"(\S{1,200}) without an API key",
        "Anyone who reaches the address can use the model.",
        _LAUNCH,
        5,
        Take("address", Unit.TEXT),
    ),
    _line(
        "stoker-engine-died",
        "EngineCore died: ",
        r"(.{1,400})",
        "The engine process is gone; its own lines say why.",
        "engine/frontend/async_llm.py",
        None,
        _WHY,
    ),
    _line(
        "stoker-output-handler",
        "AsyncLLM output handler failed.",
        r"",
        "The part that reads the engine's answers stopped, and the server with it.",
        "engine/frontend/async_llm.py",
        None,
    ),
    _line(
        "stoker-engine-killed",
        "[shutdown] MPClient: EngineCore still running; sending SIGKILL",
        r"",
        "The engine did not end in time and was killed.",
        _CLIENT,
        None,
    ),
    _line(
        "stoker-parser",
        "Parser of ",
        r"(thoughts|tool calls): (\S{1,40}) \((.{1,200})\)",
        "How thoughts or tool calls are told from the text, and why so.",
        "engine/server/startup.py",
        1,
        Take("of", Unit.TEXT),
        Take("parser", Unit.TEXT, (2,)),
        Take("reason", Unit.TEXT, (3,)),
    ),
    _line(
        "stoker-ray-rank",
        "Worker",
        r"(_\S{1,60}|) \(node (\S{1,60}), (\S{1,40}), pid (\d{1,10})\) is an actor of Ray",
        "Which machine of the Ray cluster runs this rank.",
        "engine/worker/ray_executor.py",
        2,
        Take("rank", Unit.TEXT),
        Take("node", Unit.TEXT, (2,)),
    ),
    _line(
        "stoker-replica",
        "Replica ",
        r"(\S{1,60})(?: \(pid \S{1,10}\))? (died: .{1,400}|did not start: .{1,400}"
        r"|is (?:not )?started again.{1,60}|serves again)",
        "One of several copies of the engine ended or came back; the others go on.",
        "engine/core/replicas.py",
        None,
        Take("replica", Unit.TEXT),
        Take("what", Unit.TEXT, (2,)),
    ),
    _line(
        "stoker-few-files",
        "This process may open ",
        r"(\d{1,12}) files, which is enough for (\d{1,12}) connections",
        "Each connection needs a descriptor; more clients than that are refused.",
        "engine/server/http/connections.py",
        1,
        Take("files", Unit.COUNT),
        Take("connections", Unit.COUNT, (2,)),
    ),
    _line(
        "stoker-no-numbers",
        "The logits of request ",
        r"(\S{1,120}) are NaN",
        "The model's output was no number, so this request ended; the others go on.",
        "engine/sched/scheduler.py",
        None,
        Take("request", Unit.TEXT),
    ),
    _line(
        "stoker-grammar-process",
        "The process that compiles grammars ended with code ",
        r"(-?\d{1,4})",
        "It is started again for the next schema; the requests that waited are refused.",
        "engine/core/grammar_checker.py",
        None,
        Take("code", Unit.COUNT),
    ),
    _line(
        "stoker-grammar",
        "Grammar of ",
        r"(?:request )?(\S{1,120}) (?:failed|is unusable): (.{1,400})",
        "The schema of one request cannot be followed; the others go on.",
        "engine/core/structured_output.py",
        None,
        Take("request", Unit.TEXT),
        Take("reason", Unit.TEXT, (2,)),
    ),
)

_EXECUTOR = "engine/worker/multiproc_executor.py"
_RANKS = (
    _line(
        "stoker-last-lines",
        "last lines of ",
        r"(\S{1,40}): (.{0,400})",
        "What the process said before it ended.",
        _EXECUTOR,
        None,
        Take("process", Unit.TEXT),
    ),
    _line(
        "stoker-rank-lost",
        "Another rank is gone: ",
        r"(.{0,400})",
        "A worker process waits for one that has ended; the engine says which.",
        "engine/worker/worker_proc.py",
        None,
        _WHY,
    ),
    _line(
        "stoker-rank-still",
        "Worker proc ",
        r"(.{1,200}?) has not moved for ([\d.]{1,9}) s",
        "A worker process does nothing while the others wait for it, so the engine ends.",
        _EXECUTOR,
        None,
        Take("process", Unit.TEXT),
        Take("seconds", Unit.SECONDS, (2,)),
    ),
    _line(
        "stoker-rank-disagrees",
        "Worker proc ",
        r"(.{1,200}?) disagrees with (.{1,400}?):",
        "A worker process computed something else than the others, so the engine ends.",
        _EXECUTOR,
        None,
        Take("process", Unit.TEXT),
        Take("others", Unit.TEXT, (2,)),
    ),
)

STOKER_RULES: tuple[Rule, ...] = (*_KERNELS, *_WEIGHTS, *_MEMORY, *_FILES, *_SERVING, *_RANKS)
