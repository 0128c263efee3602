"""A Ray cluster of two nodes on this machine, by Ray's own cluster utility.

Prints its address; the line `remove` on stdin takes the second node away, and the end of stdin ends
all of it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from typing import Any

_NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20}


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets in it: its path must be short
    # Where it notes its newest cluster, too: for others' programs that would be in /tmp/ray, which
    # it does not make.
    os.environ["RAY_TMPDIR"] = folder
    os.mkdir(os.path.join(folder, "ray"))
    try:
        head = {**_NODE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        second = cluster.add_node(**_NODE)
        print(f"address {cluster.address}", flush=True)
        for line in sys.stdin:
            if line == "remove\n":
                cluster.remove_node(second)
                print("removed", flush=True)
        cluster.shutdown()  # type: ignore[no-untyped-call]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
