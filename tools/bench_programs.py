"""Programs that benchmarks time in turn, and the environment of the PyTorch peers.

A program stays alive and answers a line on its standard input ("step 2") with a line of JSON.
Between commands it must not use the cores that the others are measured on.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "bazel-bin/tests/bench"
PEER_PACKAGES = ["torch==2.15.0", "transformers==5.24.0", "numpy"]
SECONDS_TO_QUIT = 60
SECONDS_TO_TERMINATE = 10


def ensure_venv(venv: pathlib.Path) -> str:
    """Returns the interpreter of the peer's environment, making it when it is not there."""
    python = venv / "bin/python"
    check = [python, "-c", "import torch, transformers"]
    if python.exists() and subprocess.run(check, capture_output=True).returncode == 0:
        return str(python)
    print(f"installing {', '.join(PEER_PACKAGES)} into {venv}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "--quiet", *PEER_PACKAGES], check=True)
    return str(python)


def mpirun(ranks: int, *flags: str) -> list[str]:
    """What stands before a command so that it runs on several ranks of this machine."""
    return ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *flags]


def mpi_environment() -> dict[str, str]:
    """Open MPI refuses to run as root, as containers do, unless told twice."""
    if os.geteuid() != 0:
        return {}
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def unwind_on_signals() -> None:
    """Lets SIGTERM and Ctrl-C end this by an exception, so that what was made is taken away."""

    def unwind(caught: int, _) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # the taking away is not to be cut short
        sys.exit(128 + caught)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, unwind)


class ProgramError(RuntimeError):
    """A program refused its arguments or ended without an answer."""


def descendants(pid: int) -> list[int]:
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            for child in task.read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


class Program:
    """A running program. `stopped_between`: its processes may poll while they wait for a command,
    as ranks of an MPI world do that wait for rank 0, so they are stopped (SIGSTOP) until asked."""

    def __init__(
        self,
        command: list[str],
        threads: int,
        waits_for_ready: bool = False,
        stopped_between: bool = False,
        environment: dict[str, str] | None = None,
    ):
        self.stopped_between = stopped_between
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **(environment or {})},
        )
        if waits_for_ready:
            try:
                self.read()
            except BaseException:
                self.end()
                raise

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind, value, traceback) -> None:
        if kind is None:
            self.quit()
        else:
            self.end()

    def read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise ProgramError(self.complaint())
        answer = json.loads(line)
        if "error" in answer:
            raise ProgramError(answer["error"])
        return answer

    def tell(self, command: str) -> None:
        self.signal_ranks(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()

    def ask(self, command: str) -> dict:
        self.tell(command)
        answer = self.read()
        self.signal_ranks(signal.SIGSTOP)
        return answer

    def complaint(self) -> str:
        """Why it ended: what a program of this project said, else the end of what was said."""
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if line.strip()]
        own = [line for line in lines if line.startswith(("meshfold: ", "training_bench: "))]
        return (own or [" | ".join(lines[-3:]) or f"{self.process.args[0]} gave no answer"])[0]

    def signal_ranks(self, number: int) -> None:
        if not self.stopped_between:
            return
        for pid in descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def quit(self) -> None:
        """Asks it to end; makes it, if it does not."""
        self.tell("quit")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_TO_QUIT)
        self.end()

    def end(self) -> None:
        """Makes it end now, unless it has."""
        self.signal_ranks(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(SECONDS_TO_TERMINATE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()
