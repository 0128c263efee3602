"""A Slurm cluster of one node in a folder: munged, slurmctld and slurmd of Debian's packages.

As a program: `python -m tests.slurm.one_node FOLDER` prints the SLURM_CONF to use, until Ctrl-C.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.debian_packages import search_path, why_missing

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
_PACKAGES = ("slurm-wlm", "munge")
_START_S = 60.0


def why_not() -> str | None:
    """Why no cluster can be started here; None where one can, now or after an installation."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    return why_missing(_PROGRAMS, _PACKAGES)


class OneNodeCluster:
    """Context manager; `environment` is for whoever calls sbatch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.environment["PATH"] = search_path()

    def __enter__(self) -> OneNodeCluster:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o755)  # munge refuses a folder that others may write
        for name in ("state", "spool"):
            (self._folder / name).mkdir()
        self._write_config()
        try:
            self._start("munged", *self._munge_words())
            self._wait(lambda: (self._folder / "munge.socket").exists(), "munged")
            self._start("slurmctld", "-D")
            self._start("slurmd", "-D", "-N", _node())
            self._wait(self._has_idle_node, "the node")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.run("scancel", "--user", "root", is_checked=False)
        self._end()

    def run(self, *words: str, is_checked: bool = True) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(
            words,
            env=self.environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if is_checked and done.returncode:
            raise RuntimeError(f"{words}: {done.stderr}")
        return done.stdout

    def job_field(self, job: str, field: str) -> str:
        """One field of `scontrol show job`."""
        words = self.run("scontrol", "show", "job", job).split()
        return next((w.partition("=")[2] for w in words if w.startswith(f"{field}=")), "")

    def _munge_words(self) -> list[str]:
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
        files |= {"seed-file": "munge.seed", "key-file": "munge.key"}
        return ["-F", "--force", *(f"--{k}={self._folder / v}" for k, v in files.items())]

    def _write_config(self) -> None:
        folder, node = self._folder, _node()
        ports = [_free_port(), _free_port()]
        (folder / "slurm.conf").write_text(
            f"""ClusterName=one
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SchedulerParameters=bf_interval=1
KillWait=5
OverTimeLimit=0
NodeName={node} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes={node} Default=YES MaxTime=INFINITE State=UP
"""
        )
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start(self, name: str, *words: str) -> None:
        with (self._folder / f"{name}.out").open("wb") as out:
            self._started.append(
                subprocess.Popen([name, *words], env=self.environment, stdout=out, stderr=out)
            )

    def _has_idle_node(self) -> bool:
        return "idle" in self.run("sinfo", "-h", "-o", "%T", is_checked=False)

    def _wait(self, is_done: object, what: str) -> None:
        deadline = time.monotonic() + _START_S
        assert callable(is_done)
        while not is_done():
            dead = [one.args for one in self._started if one.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise RuntimeError(f"{what} does not come up: {self._last_words()}")
            time.sleep(0.1)

    def _last_words(self) -> str:
        logs = (path for path in self._folder.iterdir() if path.suffix in (".out", ".log"))
        return "\n".join(f"{path.name}: {path.read_text()[-400:]}" for path in logs)

    def _end(self) -> None:
        for process in reversed(self._started):
            process.terminate()
        for process in reversed(self._started):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _node() -> str:
    return socket.gethostname().partition(".")[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    if reason := why_not():
        sys.exit(reason)
    with OneNodeCluster(Path(sys.argv[1]).absolute()) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
        sys.stdin.read()
