"""The job that `stoker unit slurm` writes, on a Slurm cluster of one node and a tiny model."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.one_node import OneNodeCluster, why_not
from tests.tiny_model import write_tiny_llama
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
_STOKER = str(Path(sys.executable).with_name("stoker"))
_PATIENCE_S = 120.0
_DONE = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNodeCluster]:
    if reason := why_not():
        pytest.skip(f"no Slurm here: {reason}")
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(
                OneNodeCluster(tmp_path_factory.mktemp("slurm") / "cluster")
            )
        except RuntimeError as error:
            pytest.skip(f"Slurm does not come up here: {error}")
        yield found


class Job:
    """A generated job in a home of its own, as the user's on all nodes of a cluster."""

    def __init__(self, cluster: OneNodeCluster, home: Path, *flags: str, minutes: int = 10) -> None:
        self._cluster = cluster
        scratch = home.parent / "scratch"  # compiled kernels are kept from job to job
        self.home = home
        self.environment = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        for name in ("STOKER_API_KEY", "VLLM_API_KEY", "STOKER_STATE_DIR", "STOKER_URL"):
            self.environment.pop(name, None)
        model = write_tiny_llama(home / "tiny")
        words = ["unit", "slurm", str(model), "--name", "tiny", "-o", str(home / "job"), *flags]
        words += ["--gpus", "0", "--cpus", "1", "--memory", "1", "--job-time", str(minutes)]
        words += ["--scratch", str(scratch)]
        assert self.stoker(*words).returncode == 0
        shared = f"HOME={home},XDG_STATE_HOME={home / 'state'},PATH={os.environ['PATH']}"
        script = home / "job" / "stoker-tiny.sbatch"
        self.log = home / "job.log"
        submit = ["sbatch", "--parsable", f"--export={shared}", f"--output={self.log}"]
        self.number = cluster.run(*submit, str(script)).strip()

    def stoker(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [_STOKER, *words],
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
            timeout=_PATIENCE_S,
        )

    @property
    def endpoint(self) -> Path:
        return self.home / "state" / "stoker" / "jobs" / f"{self.number}.json"

    def state(self) -> str:
        return self._cluster.job_field(self.number, "JobState")

    def signal(self) -> None:
        """What the time limit sends: SIGTERM to the batch shell, which the server has replaced."""
        self._cluster.run("scancel", "--batch", "--signal=TERM", self.number)

    def wait_until_it_serves(self) -> None:
        wait_for(lambda: self.endpoint.exists() or self.state() in _DONE, _PATIENCE_S)
        assert self.endpoint.exists(), self.log.read_text()

    def wait_for_the_end(self) -> str:
        wait_for(lambda: self.state() in _DONE, _PATIENCE_S)
        return self.state()


def test_slurm_finds_no_fault(cluster: OneNodeCluster) -> None:
    words = ["unit", "slurm", "smollm2-135m", "--gpus", "0", "--cpus", "1", "--memory", "1"]
    done = subprocess.run(
        [_STOKER, *words, "--check"],
        capture_output=True,
        text=True,
        env=cluster.environment,
        check=False,
        timeout=_PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout
    assert "good         stoker-smollm2-135m.sbatch: sbatch\n" in done.stdout


def test_a_job_serves_is_found_drains_and_ends(cluster: OneNodeCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "--drain", "20")
    job.wait_until_it_serves()
    endpoint = json.loads(job.endpoint.read_text())
    key = Path(endpoint["key_file"])
    assert key.stat().st_mode & 0o777 == 0o600

    answer = job.stoker("chat", f"job:{job.number}", "-m", "hello", "--max-tokens", "4")
    assert answer.returncode == 0, answer.stderr
    assert "token limit" in answer.stderr, "a random model's four tokens need not be printable"
    assert key.read_text().strip() not in job.log.read_text()

    job.signal()
    assert job.wait_for_the_end() == "COMPLETED"
    assert "stopped: " in job.log.read_text()
    assert "port" in job.log.read_text()
    assert not job.endpoint.exists()
    absent = job.stoker("chat", f"job:{job.number}", "-m", "hello")
    assert absent.returncode == 4
    assert "does not serve" in absent.stderr


def test_a_job_that_nobody_asks_ends_by_itself(cluster: OneNodeCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "--exit-when-idle", "0.05")
    job.wait_until_it_serves()
    assert job.wait_for_the_end() == "COMPLETED"
    assert "--exit-when-idle" in job.log.read_text()
    assert not job.endpoint.exists()
