"""Random requests and limits for the properties of the scheduler."""

from __future__ import annotations

from hypothesis import strategies as st

from engine.kv_sizing import FULL_ATTENTION, KVCacheGroup

REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 40),  # prompt tokens
        st.integers(1, 24),  # output tokens
        st.integers(0, 12),  # arrives before this step
        st.integers(0, 2),  # prompt family: equal families share a prefix
        st.integers(0, 3),  # priority
    ),
    min_size=1,
    max_size=12,
)
LIMITS = st.fixed_dictionaries(
    {
        "blocks_per_group": st.integers(18, 60),
        "tokens": st.integers(1, 64),
        "seqs": st.integers(1, 6),
        "caching": st.booleans(),
        "reserve": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "threshold": st.sampled_from([0, 0, 5]),
        "joint": st.sampled_from([None, 1, 20]),
        "groups": st.sampled_from(
            [
                FULL_ATTENTION,
                (KVCacheGroup((0,), 10),),
                (KVCacheGroup((0,)), KVCacheGroup((1,), 7), KVCacheGroup((2,), 7)),
                (KVCacheGroup((0,), 1), KVCacheGroup((1,), 17)),
            ]
        ),
    }
)
