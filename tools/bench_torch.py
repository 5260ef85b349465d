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
import contextlib
import json
import pathlib
import statistics
import sys

from bench_programs import PROGRAMS, ROOT, Program, ensure_venv, unwind_on_signals

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


def peer_command(arguments: argparse.Namespace, python: str, shape: str, threads: int) -> list[str]:
    command = [python, str(ROOT / "tools/peer_torch_train.py"), "--serve"]
    command += ["--shape", shape, "--threads", str(threads)]
    return command if arguments.tuned else command + ["--compile", "off", "--malloc", "default"]


def measure_rounds(
    arguments: argparse.Namespace, python: str, shape: str, threads: int
) -> list[tuple[dict, float, dict]]:
    """Meshfold's answer, the GEMM rate around it, and the peer's answer, for every round."""
    steps = STEPS_PER_ROUND[shape]
    rows = []
    with contextlib.ExitStack() as programs:
        start = lambda command, **how: programs.enter_context(Program(command, threads, **how))
        ours = start([str(PROGRAMS / "training_bench"), shape, str(threads)])
        sgemm = start([str(PROGRAMS / "sgemm_bench"), str(threads)])
        peer = start(peer_command(arguments, python, shape, threads), waits_for_ready=True)
        ours.ask("step 1")  # warm-up
        for _ in range(arguments.rounds):
            before = sgemm.ask("gemm")
            mine = ours.ask(f"step {steps}")
            after = sgemm.ask("gemm")
            theirs = peer.ask(f"step {steps}")
            gemm = 0.5 * (before["gflops_per_second"] + after["gflops_per_second"])
            rows.append((mine, gemm, theirs))
    return rows


def measure(arguments: argparse.Namespace, python: str, shape: str, threads: int) -> dict:
    rows = measure_rounds(arguments, python, shape, threads)
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
    unwind_on_signals()
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
