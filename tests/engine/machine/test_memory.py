"""Free memory and its limits, in made-up trees of the kernel's files and in a real group."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.machine.memory import free_ram_bytes, memory_limits, tightest_limit
from tests.fakes.control_group import limited_group

MIB = 1 << 20
GIB = 1 << 30
V2 = "30 23 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n"
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(root: Path, groups: dict[str, tuple[str, int, int]], own: str, mount: str = V2) -> Path:
    """Groups with (memory.max, memory.current, inactive_file)."""
    files = {"proc/self/mountinfo": mount, "proc/self/cgroup": f"0::{own}\n"}
    for group, (limit, used, clean) in groups.items():
        folder = f"sys/fs/cgroup{group}"
        files[f"{folder}/memory.max"] = f"{limit}\n"
        files[f"{folder}/memory.current"] = f"{used}\n"
        files[f"{folder}/memory.stat"] = f"anon 5\ninactive_file {clean}\n"
    return lay_out(root, files)


def test_every_group_up_to_the_root_counts(tmp_path: Path) -> None:
    groups = {
        "": ("max", 0, 0),
        "/user.slice": (str(4 * GIB), 3 * GIB, 0),
        "/user.slice/run.scope": (str(2 * GIB), 256 * MIB, 0),
    }
    root = v2(tmp_path, groups, own="/user.slice/run.scope")

    # The scope has the smaller limit, but its neighbours leave less in the slice.
    assert [limit.limit_bytes for limit in memory_limits(root)] == [2 * GIB, 4 * GIB]
    assert (limit := tightest_limit(root)) is not None
    assert (limit.folder.name, limit.free_bytes) == ("user.slice", GIB)
    assert free_ram_bytes(root) == min(GIB, psutil.virtual_memory().available)


def test_clean_page_cache_is_not_used_memory(tmp_path: Path) -> None:
    root = v2(tmp_path, {"/a": (str(1500 * MIB), 1450 * MIB, 1300 * MIB)}, own="/a")

    assert free_ram_bytes(root) == 1350 * MIB


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """Without a namespace of its own the kernel names the host's path, mounted here as the root."""
    mount = V2.replace(" / /sys", " /docker/1a2b /sys")
    inside = v2(tmp_path / "a", {"": (str(GIB), 0, 0)}, own="/docker/1a2b", mount=mount)
    elsewhere = v2(tmp_path / "b", {"": (str(GIB), 0, 0)}, own="/../../host.slice", mount=mount)

    for root in (inside, elsewhere):
        assert free_ram_bytes(root) == min(GIB, psutil.virtual_memory().available)


def test_memory_high_is_a_limit(tmp_path: Path) -> None:
    root = v2(tmp_path, {"/a": ("max", MIB, 0)}, own="/a")
    (root / "sys/fs/cgroup/a/memory.high").write_text(f"{3 * MIB}\n")

    assert free_ram_bytes(root) == 2 * MIB


def test_version_1_with_a_limit_that_is_set_out_of_sight(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/x"
    root = lay_out(
        tmp_path,
        {
            "proc/self/mountinfo": V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
            "proc/self/cgroup": "4:memory:/x\n2:cpu,cpuacct:/\n0::/\n",
            f"{folder}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{folder}/memory.usage_in_bytes": f"{700 * MIB}\n",
            f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {500 * MIB}\n"
            f"hierarchical_memory_limit {GIB}\n",
        },
    )

    assert free_ram_bytes(root) == GIB - 200 * MIB


@pytest.mark.parametrize("limit", ["max", str(1 << 62), "", "soon"])
def test_no_limit(tmp_path: Path, limit: str) -> None:
    root = v2(tmp_path, {"/a": (limit, 5, 0)}, own="/a")

    assert tightest_limit(root) is None
    assert free_ram_bytes(root) > 0


def test_without_mountinfo_the_usual_places_are_looked_at(tmp_path: Path) -> None:
    root = v2(tmp_path, {"/a": (str(MIB), 0, 0)}, own="/a")
    (root / "proc/self/mountinfo").unlink()

    assert free_ram_bytes(root) == MIB


def test_files_that_were_read_twice_are_no_reason_to_refuse_either(tmp_path: Path) -> None:
    root = v2(tmp_path, {"/a": (str(GIB), 700 * MIB, 100 * MIB)}, own="/a")
    stat = root / "sys/fs/cgroup/a/memory.stat"
    stat.write_text(stat.read_text() + f"active_file {200 * MIB}\n")

    assert free_ram_bytes(root) == GIB - 400 * MIB


def test_a_process_in_a_real_group_keeps_below_its_limit() -> None:
    code = "from engine.machine.memory import free_ram_bytes; print(free_ram_bytes())"
    with limited_group(512 * MIB) as group:
        done = subprocess.run(
            group.command([sys.executable, "-c", code]), capture_output=True, text=True, check=True
        )

    assert 400 * MIB < int(done.stdout) < 512 * MIB
