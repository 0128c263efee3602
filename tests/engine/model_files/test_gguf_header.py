"""Headers of GGUF files, written by the gguf library and then damaged."""

from __future__ import annotations

import resource
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import StokerError
from app.planning.plan_models import find_planned_model
from engine.errors import CorruptModelError, ModelError, ModelNotFoundError
from engine.model_files.gguf_header import read_gguf_header
from engine.models.gguf_convert import convert_gguf
from tests.engine.model_files.refusals import refusal_of


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_context_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_token_list(["a", "b", "c"])
    writer.add_array("nested", [1, 2, 3])
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((32, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def file_of(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


def test_a_whole_header_is_read(tmp_path: Path, whole: bytes) -> None:
    header = read_gguf_header(file_of(tmp_path, whole))

    assert header.architecture == "llama"
    assert header.count("attention.head_count") == 4
    assert header.count("expert_count", 0) == 0
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "b", "c"]
    assert [(one.name, one.sizes, one.num_bytes) for one in header.tensors] == [
        ("token_embd.weight", (32, 3), 384),
        ("blk.0.attn_q.weight", (32, 32), 2048),
    ]
    with pytest.raises(CorruptModelError, match=r"lacks the metadata field llama\.vocab_size"):
        header.count("vocab_size")
    with pytest.raises(ModelNotFoundError):
        read_gguf_header(tmp_path / "none.gguf")


def start(num_tensors: int = 0, num_fields: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_fields)


def field(kind: int, value: bytes) -> bytes:
    return start(0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + value


NESTED = struct.pack("<IQ", 9, 1) * 50 + struct.pack("<IQ", 0, 0)
TENSOR = struct.pack("<Q", 1) + b"t" + struct.pack("<I", 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04", "is no GGUF file"),
        (start(1 << 60, 0), "promises 1,152,921,504,606,846,976 tensors"),
        (start(0, 1 << 40), "fields"),
        (start(5, 0), "goes beyond its end"),
        (field(8, struct.pack("<Q", 1 << 62)), "goes beyond its end"),
        (field(9, struct.pack("<IQ", 0, 1 << 62)), "a list of .* values does not fit"),
        # Of nothing, which takes no bytes of the file, and of lists of nothing.
        (field(9, struct.pack("<IQ", 9, 1 << 23)), "does not fit"),
        (field(9, struct.pack("<IQ", 8, 1 << 22)), "does not fit"),
        (field(9, NESTED), "does not fit"),
        (field(77, b""), "the type 77, which is not known"),
        (start(1) + TENSOR + struct.pack("<QIQ", 1 << 61, 0, 0), "cannot be|ends at byte"),
        (start(1) + TENSOR + struct.pack("<QIQ", 4, 0, 1 << 50), "the file at"),
        (start(1) + struct.pack("<Q", 1) + b"t" + struct.pack("<I", 1 << 31), "dimensions"),
    ],
)
def test_promises_that_the_file_cannot_hold(tmp_path: Path, content: bytes, message: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptModelError, match=message):
        read_gguf_header(file_of(tmp_path, content))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_settings_are_checked(tmp_path: Path, whole: bytes) -> None:
    name = b"llama.block_count" + struct.pack("<I", 4)
    assert whole.count(name) == 1
    place = whole.index(name) + len(name)
    path = file_of(tmp_path, whole[:place] + struct.pack("<I", 1 << 30) + whole[place + 4 :])

    with pytest.raises(CorruptModelError, match=r"llama\.block_count is 1,073,741,824; it can be"):
        read_gguf_header(path).count("block_count")
    with pytest.raises(StokerError) as refused:
        find_planned_model(str(path))
    assert refused.value.exit_code == 2
    with pytest.raises(ModelError, match="block_count"):
        convert_gguf(path, tmp_path / "converted", lambda done, total, what: None)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damage_ends_with_an_answer_or_one_error(
    tmp_path: Path, whole: bytes, data: st.DataObject
) -> None:
    content = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    end = min(len(content), 700)  # the header
    for _ in range(data.draw(st.integers(0, 6)) if end else 0):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path = file_of(tmp_path, bytes(content))
    refusal = refusal_of(lambda: read_gguf_header(path))
    assert refusal is None or len(str(refusal)) < 2000
    refusal = refusal_of(lambda: find_planned_model(str(path)))
    assert refusal is None or getattr(refusal, "exit_code", None) == 2
