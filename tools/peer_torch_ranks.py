#!/usr/bin/env python3
"""The PyTorch peers of `./run bench ranks`: peer_torch_train.py's training on several processes.

    python tools/peer_torch_ranks.py --strategy ddp --shape M --ranks 2

starts that many processes on this machine, joined by gloo over loopback, and answers "step K" on
stdin with a line of JSON as peer_torch_train.py --serve does: tokens_per_second is of the global
batch, peak_rss_bytes the sum over the processes, loss their mean. Each process trains on its part
of the documents.

    ddp     DistributedDataParallel; gradients are views of its buckets, which saves a copy
    fsdp2   fully_shard of every decoder layer and of the rest

Every process reads commands from a pipe of its own, so that none polls a socket between commands.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys

from peer_torch_train import Peer, add_arguments, prepare_process, serve


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--strategy", choices=["ddp", "fsdp2"], required=True)
    parser.add_argument("--ranks", type=int, default=2)
    return parser.parse_args()


class RankPeer(Peer):
    """One process of several: the process group must have been made."""

    def __init__(self, arguments: argparse.Namespace):
        import torch.distributed

        self.strategy = arguments.strategy
        self.dist = torch.distributed
        self.rank, self.ranks = self.dist.get_rank(), self.dist.get_world_size()
        super().__init__(arguments)

    def distribute(self, model):
        if self.strategy == "ddp":
            return self.torch.nn.parallel.DistributedDataParallel(
                model, gradient_as_bucket_view=True, forward_sync_buffers=False
            )
        mesh = self.dist.device_mesh.init_device_mesh("cpu", (self.ranks,))
        for layer in model.model.layers:
            self.dist.fsdp.fully_shard(layer, mesh=mesh)
        return self.dist.fsdp.fully_shard(model, mesh=mesh)

    def own_part(self, batch):
        if len(batch) % self.ranks:
            raise SystemExit(f"{len(batch)} documents do not divide over {self.ranks} ranks")
        return batch.chunk(self.ranks)[self.rank]

    def meet(self) -> None:
        self.dist.barrier()

    def over_processes(self, loss: float, peak_bytes: int) -> tuple[float, int]:
        sums = self.torch.tensor([loss, float(peak_bytes)], dtype=self.torch.float64)
        self.dist.all_reduce(sums)
        return sums[0].item() / self.ranks, int(sums[1].item())

    def say(self, answer: dict) -> None:
        if self.rank == 0:
            super().say(answer)


def run_rank(arguments: argparse.Namespace) -> None:
    prepare_process(arguments)
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    peer = RankPeer(arguments)
    peer.warm_up(arguments.warmup)
    serve(peer)
    torch.distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_ranks(arguments: argparse.Namespace) -> list[subprocess.Popen]:
    environment = {
        "GLOO_SOCKET_IFNAME": "lo",
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(arguments.ranks),
        "OMP_NUM_THREADS": str(arguments.threads),
    }
    return [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:]],
            stdin=subprocess.PIPE,
            text=True,
            env={**environment, "RANK": str(rank)},
        )
        for rank in range(arguments.ranks)
    ]


def kill_and_exit(ranks: list[subprocess.Popen], status: int) -> None:
    for rank in ranks:
        rank.kill()
    sys.exit(status)


def launch(arguments: argparse.Namespace) -> int:
    """Hands every command to all processes; the status of the first that failed."""
    ranks = start_ranks(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: kill_and_exit(ranks, 128 + number))
    # Rank 0 has standard output to itself, so that it closes when rank 0 ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        for line in sys.stdin:
            for rank in ranks:
                rank.stdin.write(line)
                rank.stdin.flush()
    except BrokenPipeError:
        pass  # one has ended; its status tells
    for rank in ranks:
        try:
            rank.stdin.close()
        except BrokenPipeError:
            pass
    return max(abs(rank.wait()) for rank in ranks)


def main() -> None:
    arguments = parse_arguments()
    if "RANK" in os.environ:
        run_rank(arguments)
    else:
        sys.exit(launch(arguments))


if __name__ == "__main__":
    main()
