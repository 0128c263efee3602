"""Headers of safetensors files: what the library refuses is refused, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import deserialize

from engine.errors import CorruptModelError
from engine.model_files.checkpoint import checkpoint_headers, index_files
from engine.model_files.safetensors_header import parse_header, read_header
from tests.engine.model_files.refusals import refusal_of

Document = dict[str, dict[str, Any]]
GOOD: Document = {
    "embed": {"dtype": "BF16", "shape": [4, 2], "data_offsets": [0, 16]},
    "norm": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]},
    "empty": {"dtype": "I64", "shape": [0, 3], "data_offsets": [24, 24]},
    "one": {"dtype": "U8", "shape": [], "data_offsets": [24, 25]},
}
DATA_BYTES = 25


def as_file(document: object) -> bytes:
    text = json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text + bytes(DATA_BYTES)


def test_a_whole_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(as_file({"__metadata__": {"format": "pt"}, **GOOD}))
    header = read_header(path)

    assert header["embed"].shape == (4, 2)
    assert (header["embed"].num_values, header["embed"].num_bytes) == (8, 16)
    assert sum(entry.num_bytes for entry in header.values()) == DATA_BYTES
    assert list(checkpoint_headers(tmp_path)) == [path]


def changed(name: str, **changes: Any) -> Document:
    return {**GOOD, name: {**GOOD[name], **changes}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "holds list, not an object"),
        ({"embed": []}, r"tensor 'embed' is \[\], not an object"),
        (changed("embed", shape=[-4, 2]), "shape is -4; it can be from 0"),
        (changed("embed", shape=[4, 2.5]), "shape is 2.5, not a whole number"),
        (changed("embed", shape=4), "shape is 4, not a list"),
        (changed("embed", dtype=7), "dtype is 7, not a word"),
        (changed("embed", data_offsets=[0, -16]), "data_offsets is -16"),
        (changed("embed", data_offsets=[0]), "exactly 2 are possible"),
        (changed("embed", shape=[4, 4]), "takes 16 bytes, but .* of BF16 take 32"),
        (changed("norm", data_offsets=[8, 16]), "lies from byte 8 to 16, where the one before"),
        (changed("norm", data_offsets=[24, 32]), "promises|lies from byte"),
        (changed("one", data_offsets=[25, 24]), "takes -1 bytes"),
        (changed("one", data_offsets=[10**30, 10**30 + 1]), "data_offsets is a number of 100 bits"),
        (changed("embed", shape=[1] * 17), "17 dimensions"),
        ({"a": GOOD["embed"]}, "it has 25 bytes of tensors where its header promises 16"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, document: object, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(as_file(document))
    with pytest.raises(CorruptModelError, match=message):
        read_header(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has 0 bytes"),
        (b"\xff" * 8, "its header does not fit into 8 bytes"),
        (b"\0" * 8 + b"{}", "its header would have 0 bytes"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "nested too deep"),
    ],
)
def test_files_without_a_header(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CorruptModelError, match=message):
        read_header(path)


def test_an_index_names_files_of_its_folder_only() -> None:
    for name in ("../other.safetensors", "/etc/passwd", "a/b.safetensors", "", "a\nb", 7):
        with pytest.raises(CorruptModelError, match="weight_map"):
            index_files(json.dumps({"weight_map": {"w": name}}).encode(), "index")
    assert index_files(b'{"weight_map": {"w": "b", "v": "a", "u": "b"}}', "index") == ["a", "b"]


NUMBERS = st.sampled_from([0, 1, 2, 4, 8, 16, 24, 25, -1, 2**40, 10**30, 2.0, 1.5, True, None, "4"])


@st.composite
def mutated(draw: st.DrawFn) -> Document:
    document: Document = json.loads(json.dumps(GOOD))
    for _ in range(draw(st.integers(1, 2))):
        entry = document[draw(st.sampled_from(sorted(GOOD)))]
        key = draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        if key == "dtype":
            entry[key] = draw(st.sampled_from(["F32", "F16", "BOOL", "F4", "nothing", 3, None]))
        elif isinstance(entry[key], list) and entry[key] and draw(st.booleans()):
            place = draw(st.integers(0, len(entry[key]) - 1))
            entry[key] = [*entry[key][:place], draw(NUMBERS), *entry[key][place + 1 :]]
        else:
            entry[key] = draw(st.lists(NUMBERS, max_size=3) | NUMBERS)
    return document


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_no_more_is_let_through_than_the_library_lets(document: Document) -> None:
    content = as_file(document)
    text = content[8:-DATA_BYTES]
    if refusal_of(lambda: parse_header(text, "file", DATA_BYTES)) is not None:
        return
    if any(isinstance(n, float) for entry in document.values() for n in entry["shape"]):
        return  # 2.0 is no whole number for the library
    kinds = {entry["dtype"] for entry in document.values()}
    if "nothing" in kinds:  # a dtype that we do not know is the loader's business
        return
    deserialize(content)  # type: ignore[no-untyped-call]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_flipped_bytes_end_with_an_answer_or_one_error(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(as_file(GOOD))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refusal = refusal_of(lambda: read_header(path))
    assert refusal is None or len(str(refusal)) < 2000
