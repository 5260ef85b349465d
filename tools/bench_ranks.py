#!/usr/bin/env python3
"""Times two ranks of Meshfold against one, and against PyTorch DDP and FSDP2 on two processes.

    ./run bench ranks [--rounds 5] [--steps 2] [--variants one dp ep ddp fsdp2]

The programs stay alive and take turns on the same two cores, a few training steps each, round by
round; every rank has one thread, and all train on a global batch of the same size (shape M, 4 x 512
tokens, cut over the data ranks). Ratios are taken in each round; the tables have their median.

    one     Meshfold, one rank
    dp      Meshfold, two ranks, data parallel
    ep      Meshfold, two ranks, data parallel with the experts dealt out (parallel.expert=2)
    ddp     PyTorch DistributedDataParallel, two processes over gloo (tools/peer_torch_ranks.py)
    fsdp2   PyTorch fully_shard, likewise

A variant that its program refuses is reported and left out. While one program computes the others
sleep: PyTorch's processes read from pipes, Meshfold's ranks under mpirun are stopped between
commands, since a rank that waits for a message looks for it every half millisecond.

All five programs together need about 22 GB of memory; --variants takes fewer. The peer's packages
go into a virtual environment of their own (--venv, default .venv-peer). Results are printed as
Markdown tables and written as JSON (--out).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import statistics
import sys

from bench_programs import (
    PROGRAMS,
    ROOT,
    Program,
    ProgramError,
    ensure_venv,
    mpi_environment,
    mpirun,
    unwind_on_signals,
)

RANKS = 2
VARIANTS = ["one", "dp", "ep", "ddp", "fsdp2"]
NAMES = {
    "one": "Meshfold, 1 rank",
    "dp": "Meshfold, 2 ranks, data parallel",
    "ep": "Meshfold, 2 ranks, expert parallel",
    "ddp": "PyTorch DDP, 2 processes",
    "fsdp2": "PyTorch FSDP2, 2 processes",
}
# How many times the second's rate the first is to reach.
AIMS = {
    ("dp", "one"): 1.7,
    ("ep", "one"): 1.75,
    ("dp", "ddp"): 1.45,
    ("ep", "ddp"): 1.5,
    ("dp", "fsdp2"): 3.0,
    ("ep", "fsdp2"): 3.0,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--shape", default="M", choices=["M", "S"], help="the aims are for M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of each program in a round")
    parser.add_argument("--tuned", action="store_true", help="peers keep freed memory")
    parser.add_argument("--venv", type=pathlib.Path, default=ROOT / ".venv-peer")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/bench_ranks.json")
    return parser.parse_args()


def start_meshfold(arguments: argparse.Namespace, ranks: int, *overrides: str) -> Program:
    command = [str(PROGRAMS / "training_bench"), arguments.shape, "1", *overrides]
    if ranks == 1:
        return Program(command, threads=1)
    return Program(
        mpirun(ranks) + command, threads=1, stopped_between=True, environment=mpi_environment()
    )


def start_peer(arguments: argparse.Namespace, strategy: str) -> Program:
    command = [ensure_venv(arguments.venv), str(ROOT / "tools/peer_torch_ranks.py")]
    command += ["--strategy", strategy, "--ranks", str(RANKS), "--shape", arguments.shape]
    command += ["--malloc", "keep" if arguments.tuned else "default"]
    return Program(command, threads=1, waits_for_ready=True)


def start(arguments: argparse.Namespace, variant: str) -> Program:
    if variant == "one":
        return start_meshfold(arguments, 1)
    if variant == "dp":
        return start_meshfold(arguments, RANKS)
    if variant == "ep":
        return start_meshfold(arguments, RANKS, "parallel.expert=2")
    return start_peer(arguments, variant)


def start_all(
    arguments: argparse.Namespace, stack: contextlib.ExitStack
) -> tuple[dict[str, Program], dict[str, str]]:
    """The variants that run, warm, and why the others do not."""
    programs, refused = {}, {}
    for variant in arguments.variants:
        try:
            program = stack.enter_context(start(arguments, variant))
            program.ask("step 1")
            programs[variant] = program
        except ProgramError as error:
            refused[variant] = str(error)
            print(f"{NAMES[variant]}: {error}", file=sys.stderr)
    return programs, refused


def measure(arguments: argparse.Namespace) -> dict:
    rounds = []
    with contextlib.ExitStack() as stack:
        programs, refused = start_all(arguments, stack)
        for _ in range(arguments.rounds):
            answers = {v: p.ask(f"step {arguments.steps}") for v, p in programs.items()}
            rounds.append(answers)
            rates = {v: round(a["tokens_per_second"], 1) for v, a in answers.items()}
            print(json.dumps(rates), file=sys.stderr)
    return {"shape": arguments.shape, "ranks": RANKS, "refused": refused, "rounds": rounds}


def summarize(results: dict) -> None:
    """Adds medians over the rounds and ratios with their aims to the results."""
    rounds = results["rounds"]
    results["programs"] = {
        variant: {
            "tokens_per_second": statistics.median(r[variant]["tokens_per_second"] for r in rounds),
            "peak_rss_bytes": max(r[variant]["peak_rss_bytes"] for r in rounds),
        }
        for variant in rounds[0]
    }
    results["ratios"] = []
    for (ours, other), aim in AIMS.items():
        if ours not in rounds[0] or other not in rounds[0]:
            continue
        values = [r[ours]["tokens_per_second"] / r[other]["tokens_per_second"] for r in rounds]
        ratio = {"of": ours, "to": other, "aim": aim, "median": statistics.median(values)}
        results["ratios"].append({**ratio, "lowest": min(values), "highest": max(values)})


def print_tables(results: dict) -> None:
    print("| program | tokens/s | peak memory, all processes |")
    print("|---|---|---|")
    for variant, program in results["programs"].items():
        memory = program["peak_rss_bytes"] / 1e9
        print(f"| {NAMES[variant]} | {program['tokens_per_second']:.0f} | {memory:.2f} GB |")
    for variant, reason in results["refused"].items():
        print(f"| {NAMES[variant]} | refused: {reason} | |")
    print()
    print("| ratio of tokens/s | median | range | aim | |")
    print("|---|---|---|---|---|")
    for r in results["ratios"]:
        verdict = "met" if r["median"] >= r["aim"] else "missed"
        print(
            f"| {NAMES[r['of']]} / {NAMES[r['to']]} | {r['median']:.2f} "
            f"| {r['lowest']:.2f} to {r['highest']:.2f} | {r['aim']:.2f} | {verdict} |"
        )


def main() -> None:
    arguments = parse_arguments()
    unwind_on_signals()
    results = measure(arguments)
    if not results["rounds"] or not results["rounds"][0]:
        sys.exit("bench ranks: nothing was measured")
    summarize(results)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print_tables(results)


if __name__ == "__main__":
    main()
