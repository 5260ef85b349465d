#!/usr/bin/env python3
"""Times training steps of Meshfold and of PyTorch with Hugging Face transformers in turn.

    ./run bench torch [--shapes M S] [--threads 1 2] [--rounds 5] [--tuned]

The programs stay alive and take turns on the same cores: a round is a measurement of oneDNN's sgemm,
a few steps of Meshfold, the sgemm again, a few steps of the peer. A ratio is taken in each round; the
table has the median over the rounds. The share of the GEMM rate divides the FLOPs of a training step
(6 for every weight that a token meets, and the attention core over the keys that a query sees) by
the time of the whole step, clipping and optimizer included, and by the sgemm rate. The peer
(tools/peer_torch_train.py) runs with grouped_mm experts, sdpa attention and fused AdamW; with
--tuned also with torch.compile where that helps and a malloc that keeps freed memory.

The peer's packages go into a virtual environment of their own (--venv, default .venv-peer).
Results are printed as a Markdown table and written as JSON (--out).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

PACKAGES = ["torch==2.15.0", "transformers==5.24.0", "numpy"]
ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "bazel-bin/tests/bench"
STEPS_PER_ROUND = {"M": 2, "S": 8}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["M", "S"], choices=["M", "S"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tuned", action="store_true", help="the peer at its best")
    parser.add_argument("--venv", type=pathlib.Path, default=ROOT / ".venv-peer")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/bench_torch.json")
    return parser.parse_args()


def ensure_venv(venv: pathlib.Path) -> str:
    """Returns the interpreter of the peer's environment, making it when it is not there."""
    python = venv / "bin/python"
    check = "import torch, transformers"
    if python.exists() and subprocess.run([python, "-c", check], capture_output=True).returncode == 0:
        return str(python)
    print(f"installing {', '.join(PACKAGES)} into {venv}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "--quiet", *PACKAGES], check=True)
    return str(python)


class Program:
    """A program that answers a line of commands with a line of JSON."""

    def __init__(self, command: list[str], threads: int, waits_for_ready: bool = False):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        if waits_for_ready:
            self.read()

    def read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[0]} ended without an answer")
        return json.loads(line)

    def ask(self, command: str) -> dict:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.read()

    def quit(self) -> None:
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        self.process.wait(timeout=60)


def measure(arguments: argparse.Namespace, python: str, shape: str, threads: int) -> dict:
    ours = Program([str(PROGRAMS / "training_bench"), shape, str(threads)], threads)
    sgemm = Program([str(PROGRAMS / "sgemm_bench"), str(threads)], threads)
    peer_command = [python, str(ROOT / "tools/peer_torch_train.py"), "--serve"]
    peer_command += ["--shape", shape, "--threads", str(threads)]
    if not arguments.tuned:
        peer_command += ["--compile", "off", "--malloc", "default"]
    peer = Program(peer_command, threads, waits_for_ready=True)
    steps = STEPS_PER_ROUND[shape]
    ours.ask("step 1")  # warm-up
    rows = []
    for _ in range(arguments.rounds):
        before = sgemm.ask("gemm")
        mine = ours.ask(f"step {steps}")
        after = sgemm.ask("gemm")
        theirs = peer.ask(f"step {steps}")
        gemm = 0.5 * (before["gflops_per_second"] + after["gflops_per_second"])
        rows.append((mine, gemm, theirs))
    for program in (ours, sgemm, peer):
        program.quit()
    median = lambda values: statistics.median(list(values))
    mine_rate = median(r[0]["tokens_per_second"] for r in rows)
    peer_rate = median(r[2]["tokens_per_second"] for r in rows)
    gemm_rate = median(r[1] for r in rows)
    share = median(r[0]["gflops_per_second"] / r[1] for r in rows)
    return {
        "shape": shape,
        "threads": threads,
        "meshfold_tokens_per_second": mine_rate,
        "peer_tokens_per_second": peer_rate,
        "ratio": median(
            r[0]["tokens_per_second"] / r[2]["tokens_per_second"] for r in rows
        ),
        "gemm_gflops_per_second": gemm_rate,
        "gemm_share": share,
        "meshfold_peak_rss_bytes": max(r[0]["peak_rss_bytes"] for r in rows),
        "peer_peak_rss_bytes": max(r[2]["peak_rss_bytes"] for r in rows),
    }


def print_table(results: list[dict]) -> None:
    print("| shape | threads | Meshfold tokens/s | peer tokens/s | ratio | GEMM GFLOP/s | share of "
          "GEMM | peak memory ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for r in results:
        memory = r["meshfold_peak_rss_bytes"] / r["peer_peak_rss_bytes"]
        print(
            f"| {r['shape']} | {r['threads']} | {r['meshfold_tokens_per_second']:.0f} "
            f"| {r['peer_tokens_per_second']:.0f} | {r['ratio']:.2f} "
            f"| {r['gemm_gflops_per_second']:.1f} | {100 * r['gemm_share']:.0f} % "
            f"| {memory:.2f} ({r['meshfold_peak_rss_bytes'] / 1e9:.2f} GB "
            f"of {r['peer_peak_rss_bytes'] / 1e9:.2f} GB) |"
        )


def main() -> None:
    arguments = parse_arguments()
    python = ensure_venv(arguments.venv)
    results = []
    for shape in arguments.shapes:
        for threads in arguments.threads:
            results.append(measure(arguments, python, shape, threads))
            print(json.dumps(results[-1]), file=sys.stderr)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print_table(results)


if __name__ == "__main__":
    main()
