from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cuda_graph_sizes import (
    CaptureRules,
    CUDAGraphMode,
    GraphChoice,
    GraphPlan,
    capture_sizes,
    describe_dispatch,
    graph_mode,
    graph_plan,
)
from engine.errors import ConfigError

SERVER = CaptureRules(max_num_seqs=256, max_num_batched_tokens=2048)

EXAMPLE_7 = """\
51 sizes: [1, 2, 4, 8, 16, 24] ... [232, 240, 248, 256, 272, 288] ... 512
    1 tokens -> graph 1 (+0 padding)
    3 tokens -> graph 4 (+1 padding)
   37 tokens -> graph 40 (+3 padding)
  255 tokens -> graph 256 (+1 padding)
  300 tokens -> graph 304 (+4 padding)
  512 tokens -> graph 512 (+0 padding)
  513 tokens -> no CUDA graph (eager/compiled)
 2048 tokens -> no CUDA graph (eager/compiled)
max_num_seqs=64: 19 sizes up to 128
"""


def test_example_7_to_the_letter() -> None:
    sizes = capture_sizes(SERVER)
    small = capture_sizes(CaptureRules(max_num_seqs=64, max_num_batched_tokens=2048))

    lines = [f"{len(sizes)} sizes: {list(sizes[:6])} ... {list(sizes[31:37])} ... {sizes[-1]}"]
    for num_tokens in (1, 3, 37, 255, 300, 512, 513, 2048):
        lines.append(f"{num_tokens:5} tokens -> {describe_dispatch(sizes, num_tokens)}")
    lines.append(f"max_num_seqs=64: {len(small)} sizes up to {small[-1]}")

    assert "\n".join(lines) + "\n" == EXAMPLE_7


@pytest.mark.parametrize(
    ("capability", "count", "largest"),
    [
        (None, 51, 512),
        ((9, 0), 51, 512),
        ((10, 0), 83, 1024),
        ((10, 3), 83, 1024),
        ((12, 0), 51, 512),
    ],
    ids=["unknown", "H100", "B200", "B300", "RTX 5090"],
)
def test_only_data_centre_blackwell_has_the_higher_cap(
    capability: tuple[int, int] | None, count: int, largest: int
) -> None:
    sizes = capture_sizes(
        CaptureRules(max_num_seqs=1024, max_num_batched_tokens=8192, compute_capability=capability)
    )
    assert (len(sizes), sizes[-1]) == (count, largest)


def rules(**changes: object) -> CaptureRules:
    values: dict[str, object] = {"max_num_seqs": 4, "max_num_batched_tokens": 2048, **changes}
    return CaptureRules(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, (1, 2, 4, 8)),
        ({"max_num_batched_tokens": 7}, (1, 2, 4, 7)),
        ({"max_num_batched_tokens": 8}, (1, 2, 4, 8)),
        ({"max_num_seqs": 1}, (1, 2)),
        ({"max_capture_size": 20}, (1, 2, 4, 8, 16)),
        ({"max_capture_size": 20, "max_num_batched_tokens": 10}, (1, 2, 4, 8, 10)),
        ({"capture_sizes": (7, 3, 7, 4096)}, (3, 7)),
        ({"capture_sizes": (7, 3), "max_capture_size": 7}, (3, 7)),
        ({"capture_sizes": (4096,)}, ()),
        ({"sequence_parallel_size": 4}, (4, 8)),
        ({"sequence_parallel_size": 2, "capture_sizes": (1, 6, 7)}, (6,)),
        ({"performance_mode": "interactivity"}, (1, 2, 3, 4, 5, 6, 7, 8)),
        ({"performance_mode": "interactivity", "max_num_seqs": 20}, (*range(1, 33), 40)),
        # 4 * 3 * 2 = 24 at most; 3, 6, 12, 24 are 1, 2, 4 and 8 requests of three tokens.
        ({"num_speculative_tokens": 2}, (1, 2, 3, 4, 6, 8, 12, 16, 24)),
        # Five requests of three tokens: max_num_seqs itself.
        ({"num_speculative_tokens": 2, "max_num_seqs": 5}, (1, 2, 3, 4, 6, 8, 12, 15, 16, 24)),
    ],
)
def test_each_rule_of_the_list(changes: dict[str, object], sizes: tuple[int, ...]) -> None:
    assert capture_sizes(rules(**changes)) == sizes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capture_sizes": (4, 0)}, "--cudagraph-capture-sizes 4 0: sizes are tokens, at least 1"),
        (
            {"capture_sizes": (4, 16), "max_capture_size": 8},
            "--max-cudagraph-capture-size 8 is not the largest usable size .* 16; drop one",
        ),
    ],
)
def test_sizes_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        capture_sizes(rules(**changes))


def test_optimization_levels() -> None:
    modes = [graph_mode(level) for level in range(4)]

    assert modes == [
        CUDAGraphMode.NONE,
        CUDAGraphMode.PIECEWISE,
        CUDAGraphMode.FULL_AND_PIECEWISE,
        CUDAGraphMode.FULL_AND_PIECEWISE,
    ]
    assert {graph_mode(level, enforce_eager=True) for level in range(4)} == {CUDAGraphMode.NONE}
    assert graph_mode(2, is_pooling=True) is CUDAGraphMode.PIECEWISE
    assert graph_mode(2, is_encoder_decoder=True) is CUDAGraphMode.FULL_DECODE_ONLY
    assert graph_mode(0, is_encoder_decoder=True) is CUDAGraphMode.NONE


def test_full_graphs_stop_at_max_num_seqs() -> None:
    """vLLM's own count for these limits: 51 piecewise graphs, 35 full ones."""
    plan = graph_plan(SERVER, CUDAGraphMode.FULL_AND_PIECEWISE)

    assert (len(plan.piecewise_sizes), len(plan.full_sizes), plan.full_sizes[-1]) == (51, 35, 256)
    assert plan.captures[0] == (CUDAGraphMode.PIECEWISE, 512)
    assert plan.captures[50:52] == ((CUDAGraphMode.PIECEWISE, 1), (CUDAGraphMode.FULL, 256))


@pytest.mark.parametrize(
    ("num_tokens", "is_uniform_decode", "choice"),
    [
        (37, True, GraphChoice(CUDAGraphMode.FULL, 40)),
        (37, False, GraphChoice(CUDAGraphMode.PIECEWISE, 40)),
        # 98 requests decode, but the next size, 104, is more than the 100 that can ever run.
        (98, True, GraphChoice(CUDAGraphMode.PIECEWISE, 104)),
        (201, False, GraphChoice(CUDAGraphMode.NONE, None)),
    ],
)
def test_the_kind_of_batch_decides_the_graph(
    num_tokens: int, is_uniform_decode: bool, choice: GraphChoice
) -> None:
    plan = graph_plan(rules(max_num_seqs=100), CUDAGraphMode.FULL_AND_PIECEWISE)
    assert plan.dispatch(num_tokens, is_uniform_decode=is_uniform_decode) == choice


def test_each_mode_has_its_graphs() -> None:
    decode_only = graph_plan(rules(), CUDAGraphMode.FULL_DECODE_ONLY)

    assert graph_plan(rules(), CUDAGraphMode.NONE) == GraphPlan((), ())
    assert graph_plan(rules(), CUDAGraphMode.PIECEWISE) == GraphPlan((1, 2, 4, 8), ())
    assert decode_only == GraphPlan((), (1, 2, 4))
    assert decode_only.dispatch(2, is_uniform_decode=False).mode is CUDAGraphMode.NONE


RULES = st.builds(
    CaptureRules,
    max_num_seqs=st.integers(1, 2048),
    max_num_batched_tokens=st.integers(1, 20_000),
    num_speculative_tokens=st.integers(0, 8),
    compute_capability=st.sampled_from([None, (8, 0), (10, 0)]),
    max_capture_size=st.none() | st.integers(1, 3000),
    sequence_parallel_size=st.sampled_from([1, 2, 3, 4, 8]),
    performance_mode=st.sampled_from(["balanced", "interactivity", "throughput"]),
)
SETTINGS = st.sampled_from([mode for mode in CUDAGraphMode if mode is not CUDAGraphMode.FULL])
USER_RULES = st.builds(
    CaptureRules,
    max_num_seqs=st.integers(1, 2048),
    max_num_batched_tokens=st.integers(1, 4096),
    capture_sizes=st.lists(st.integers(1, 8192), min_size=1, max_size=40).map(tuple),
    sequence_parallel_size=st.sampled_from([1, 2, 8]),
)


@given(RULES)
def test_default_sizes_keep_every_limit(case: CaptureRules) -> None:
    sizes = capture_sizes(case)
    cap = 1024 if case.compute_capability == (10, 0) else 512
    limit = case.max_capture_size or min(case.max_num_seqs * case.query_len * 2, cap)

    assert list(sizes) == sorted(set(sizes))
    assert all(1 <= size <= min(limit, case.max_num_batched_tokens) for size in sizes)
    assert all(size % case.sequence_parallel_size == 0 for size in sizes)


@given(USER_RULES)
def test_of_the_users_sizes_only_unusable_ones_are_dropped(case: CaptureRules) -> None:
    sizes, asked = capture_sizes(case), set(case.capture_sizes or ())

    assert list(sizes) == sorted(set(sizes))
    assert set(sizes) <= asked
    for size in asked - set(sizes):
        assert size > case.max_num_batched_tokens or size % case.sequence_parallel_size


@given(RULES | USER_RULES, st.integers(1, 4096), SETTINGS, st.booleans())
def test_a_batch_replays_the_smallest_graph_that_holds_it(
    case: CaptureRules, num_tokens: int, mode: CUDAGraphMode, is_uniform_decode: bool
) -> None:
    plan = graph_plan(case, mode)
    choice = plan.dispatch(num_tokens, is_uniform_decode=is_uniform_decode)
    fitting = [
        size
        for size in (*plan.piecewise_sizes, *(plan.full_sizes if is_uniform_decode else ()))
        if size >= num_tokens
    ]

    assert choice.size == min(fitting, default=None)
    assert (choice.mode is CUDAGraphMode.NONE) == (choice.size is None)
    assert all(size <= case.max_num_seqs * case.query_len for size in plan.full_sizes)
