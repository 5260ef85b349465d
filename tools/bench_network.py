#!/usr/bin/env python3
"""Measures how well data parallelism hides the sum of gradients behind the backward on a slow link.

    ./run bench network [--rate 200] [--rounds 5] [--documents N]

Makes two network namespaces joined by a veth pair of limited rate (tbf), runs two ranks over it
with mpirun and TCP, one in each, and takes the namespaces away again. This needs root, and a
container that may make namespaces. In turn, round by round, it measures

    compute    a step of one rank alone on half of the batch: no communication
    both       the same with two such ranks at once, unconnected: what sharing the machine costs
    step       a step of the two ranks on the whole batch, over the link
    wire       the bytes that a rank sends in a step, by the link's counters, over the rate

and prints medians and step / max(compute, wire), which is 1 where the shorter of the two is wholly
hidden. The bytes are compared with the closed form: an all-reduce of n bytes over 2 ranks sends n
from each, n being 4 bytes for each parameter with the padding of rows.

Results are printed as Markdown tables and written as JSON (--out).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys

from bench_programs import (
    PROGRAMS,
    ROOT,
    Program,
    ProgramError,
    mpi_environment,
    mpirun,
    unwind_on_signals,
)

# A bucket (8 MiB or a little more) leaves when its last gradient is there. With N equal buckets, a
# compute time C of which the backward is 2/3, and a wire time W, the last bucket arrives no sooner
# than C/3 + 2C/(3N) + W, and no sooner than C + W/N. Both are below 1.15 C only where W is at most
# 0.7 C and N at least 4: W = C would be 1.5 however good the overlap. So the shape is S with four
# layers of 8 wide experts, 9 MB of gradients a layer, which is a bucket each and a small last one,
# and documents of 256 tokens, as many as make C about 1.6 W on this machine: two of eight experts
# meet a token, so that there are many bytes for few FLOPs, and tokens are what adds the FLOPs.
SHAPE = ["S", "1", "moe.num_experts=8", "moe.expert_size=352", "data.sequence_length=256"]
COMPUTE_OVER_WIRE = 1.6
TRIAL_DOCUMENTS = 16
AIM = 1.15
# Headers, acknowledgements, the scalars of a step and of the protocol.
MAX_BYTES_OVER_CLOSED_FORM = 1.08
ADDRESSES = ["10.0.0.1", "10.0.0.2"]  # within the namespaces: these see no other network
SUBNET = "10.0.0.0/24"
DEVICE = "link0"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s, in each direction")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of each measurement in a round")
    parser.add_argument("--documents", type=int, default=0, help="of a rank; 0: by a trial")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/bench_network.json")
    return parser.parse_args()


class LinkError(RuntimeError):
    """Network namespaces cannot be made here."""


def run_ip(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise LinkError(f"{words[0]} is missing (package iproute2)") from error
    except subprocess.CalledProcessError as error:
        raise LinkError(f"'{' '.join(words)}' failed: {error.stderr.strip()}") from error
    return done.stdout


class Link:
    """Two namespaces and the link between them, for as long as it is entered."""

    def __init__(self, megabits: float):
        self.megabits = megabits
        self.names = [f"meshfold-{os.getpid()}-{end}" for end in "ab"]

    def __enter__(self) -> Link:
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind, value, traceback) -> None:
        self.remove()

    def make(self) -> None:
        first, second = self.names
        for name in self.names:
            run_ip("ip", "netns", "add", name)
        pair = ["type", "veth", "peer", "name", DEVICE, "netns", second]
        run_ip("ip", "-n", first, "link", "add", DEVICE, *pair)
        for name, address in zip(self.names, ADDRESSES):
            run_ip("ip", "-n", name, "addr", "add", f"{address}/24", "dev", DEVICE)
            run_ip("ip", "-n", name, "link", "set", "lo", "up")
            run_ip("ip", "-n", name, "link", "set", DEVICE, "up")
            # A burst below the 64 KB of a segment would cost the sender much CPU time.
            limit = ["rate", f"{self.megabits:g}mbit", "burst", "128kb", "limit", "16mb"]
            run_ip("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", "tbf", *limit)

    def remove(self) -> None:
        for name in self.names:
            with contextlib.suppress(LinkError):
                for pid in run_ip("ip", "netns", "pids", name).split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                run_ip("ip", "netns", "del", name)

    def sent_bytes(self) -> list[int]:
        """Bytes that have left each end since the link was made, as its rate limit counts them: the
        device's own counter takes the headers of up to 64 KB of segments for one (4 % less)."""
        show = ["-s", "-j", "qdisc", "show", "dev", DEVICE]
        counters = [json.loads(run_ip("tc", "-n", name, *show)) for name in self.names]
        return [counter[0]["bytes"] for counter in counters]

    def seconds(self, sent: float) -> float:
        return sent * 8 / (self.megabits * 1e6)


def training_bench(documents: int) -> list[str]:
    batch = f"train.global_batch_size={documents}"
    return [str(PROGRAMS / "training_bench"), *SHAPE, batch]


def start_ranks(link: Link, documents: int) -> Program:
    flags = {
        "plm_rsh_agent": str(ROOT / "tools/netns_agent.sh"),
        "plm_rsh_no_tree_spawn": "1",
        "orte_leave_session_attached": "1",  # else the other end's daemon leaves our tree
        "oob_tcp_if_include": SUBNET,
        "btl_tcp_if_include": SUBNET,
        "pml": "ob1",
        "btl": "tcp,self,vader",
        "mpi_yield_when_idle": "1",
    }
    hosts = ["--host", ",".join(f"{address}:1" for address in ADDRESSES)]
    words = [word for key, value in flags.items() for word in ("--mca", key, value)]
    command = ["ip", "netns", "exec", link.names[0], *mpirun(2, *hosts, *words)]
    return Program(
        command + training_bench(2 * documents),
        threads=1,
        stopped_between=True,
        environment={**mpi_environment(), "MESHFOLD_NETNS": link.names[1]},
    )


def choose_documents(link: Link) -> int:
    """So many for a rank that compute and wire time have the proportion explained above."""
    with Program(training_bench(TRIAL_DOCUMENTS), threads=1) as program:
        program.ask("step 1")
        answers = [program.ask("step 1") for _ in range(3)]
    seconds = statistics.median(a["elapsed_seconds"] for a in answers) / TRIAL_DOCUMENTS
    wire = link.seconds(answers[0]["gradient_bytes"])
    return max(1, round(COMPUTE_OVER_WIRE * wire / seconds))


def measure_round(
    link: Link, steps: int, singles: list[Program], ranks: Program
) -> dict[str, float]:
    """Seconds and bytes of a step."""
    command = f"step {steps}"
    alone = singles[0].ask(command)
    for single in singles:
        single.tell(command)
    both = [single.read() for single in singles]
    before = link.sent_bytes()
    together = ranks.ask(command)
    sent = [(now - then) / steps for now, then in zip(link.sent_bytes(), before)]
    return {
        "compute_seconds": alone["elapsed_seconds"] / steps,
        "both_seconds": max(b["elapsed_seconds"] for b in both) / steps,
        "step_seconds": together["elapsed_seconds"] / steps,
        "wire_seconds": link.seconds(max(sent)),
        "least_sent_bytes": min(sent),
        "most_sent_bytes": max(sent),
        "gradient_bytes": together["gradient_bytes"],
    }


def measure(arguments: argparse.Namespace) -> dict:
    rounds = []
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(Link(arguments.rate))
        documents = arguments.documents or choose_documents(link)
        start_single = lambda: Program(training_bench(documents), threads=1)
        singles = [stack.enter_context(start_single()) for _ in range(2)]
        ranks = stack.enter_context(start_ranks(link, documents))
        for program in (*singles, ranks):
            program.ask("step 1")  # warm-up
        for _ in range(arguments.rounds):
            rounds.append(measure_round(link, arguments.steps, singles, ranks))
            print(json.dumps(rounds[-1]), file=sys.stderr)
    return {"megabits_per_second": arguments.rate, "documents": documents, "rounds": rounds}


def summarize(results: dict) -> None:
    """Adds medians over the rounds and the ratios to the results."""
    rounds = results["rounds"]
    median = lambda value: statistics.median(value(r) for r in rounds)
    results["median"] = {name: median(lambda r: r[name]) for name in rounds[0]}
    results["step_over_longer"] = median(
        lambda r: r["step_seconds"] / max(r["compute_seconds"], r["wire_seconds"])
    )
    results["step_over_longer_of_both"] = median(
        lambda r: r["step_seconds"] / max(r["both_seconds"], r["wire_seconds"])
    )
    of_closed_form = lambda r, name: r[name] / r["gradient_bytes"]
    results["bytes_over_closed_form"] = [
        min(of_closed_form(r, "least_sent_bytes") for r in rounds),
        max(of_closed_form(r, "most_sent_bytes") for r in rounds),
    ]


def print_tables(results: dict) -> None:
    median, ratio = results["median"], results["step_over_longer"]
    least, most = results["bytes_over_closed_form"]
    verdict = "met" if ratio <= AIM else "missed"
    print(f"{results['documents']} documents a rank, {results['megabits_per_second']:g} Mbit/s")
    print()
    print("| of a step | |")
    print("|---|---|")
    print(f"| compute, one rank alone on half the batch | {median['compute_seconds']:.2f} s |")
    print(f"| compute, two such at once | {median['both_seconds']:.2f} s |")
    print(f"| wire | {median['wire_seconds']:.2f} s |")
    print(f"| step | {median['step_seconds']:.2f} s |")
    print(f"| step / max(compute, wire) | {ratio:.2f} (aim: at most {AIM}, {verdict}) |")
    print(f"| step / max(two at once, wire) | {results['step_over_longer_of_both']:.2f} |")
    print(f"| gradients, closed form of the bytes | {median['gradient_bytes'] / 1e6:.2f} MB |")
    print(f"| bytes that a rank sends / closed form | {least:.3f} to {most:.3f} |")


def check_bytes(results: dict) -> None:
    least, most = results["bytes_over_closed_form"]
    if not 1.0 <= least <= most <= MAX_BYTES_OVER_CLOSED_FORM:
        sys.exit(
            f"bench network: a rank sends {least:.3f} to {most:.3f} times the bytes of the closed "
            f"form; 1 to {MAX_BYTES_OVER_CLOSED_FORM} are expected"
        )


def main() -> None:
    arguments = parse_arguments()
    unwind_on_signals()
    try:
        results = measure(arguments)
    except LinkError as error:
        sys.exit(f"bench network: network namespaces with limited rates are refused here: {error}")
    except ProgramError as error:
        sys.exit(f"bench network: {error}")
    summarize(results)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print_tables(results)
    check_bytes(results)


if __name__ == "__main__":
    main()
