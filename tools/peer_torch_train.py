#!/usr/bin/env python3
"""The PyTorch peer of `./run bench torch`: trains one MoE model with Hugging Face transformers.

tools/peer_torch_ranks.py runs the same on several processes.

The model is Qwen3MoeForCausalLM with random weights in float32, the batch is random and fixed by
the seed. A step is forward, backward, clip_grad_norm_(1.0), AdamW and zero_grad(set_to_none).

Defaults are what measured fastest, so that the peer is as fast as it fairly can be: grouped_mm
experts, sdpa attention, fused AdamW, and a malloc that keeps freed memory instead of faulting it
in again every step. Whether torch.compile helps depends on the machine, so it is tried first
(--compile auto); --malloc default gives the smaller memory footprint of an untuned process.
OpenMP threads wait passively unless OMP_WAIT_POLICY says otherwise: on a machine with other load
spinning made steps several times slower; alone on a machine, try OMP_WAIT_POLICY=active too.

Each group of steps prints one JSON line on stdout: tokens_per_second, seconds_per_step (one entry
a step), elapsed_seconds, peak_rss_bytes (since the warm-up, start-up and trials left out),
gflops_per_second, the loss of the last step, and whether the model was compiled.

    python tools/peer_torch_train.py --shape M --threads 2 --warmup 1 --steps 4
    python tools/peer_torch_train.py --shape S --serve      # driven from stdin, see below

With --serve the program warms up, prints {"ready": true, ...} and then answers each line "step K"
on stdin with the JSON line of K steps, until "quit" or the end of stdin. Between commands it
sleeps, so that another program can be timed in turn with it under the same load of the machine.

FLOPs of a token, a multiplication and an addition counted as two:
    6 * P + L * 3 * 2 * heads * 2 * head_dim * (S + 1) / 2
P are the parameters that multiply a token: projections, router, the top-k of the experts and the
head, without the embedding lookup; 6 is 2 for the forward and 4 for the backward pass. The second
term is the attention core, QK^T and PV over the (S + 1) / 2 keys that a causal query sees on
average. Recomputation and work on masked keys do not count.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import resource
import sys
import time

SHAPES = {
    "M": dict(
        batch=4,
        seq=512,
        vocab=8192,
        hidden=512,
        heads=8,
        kv_heads=4,
        experts=32,
        top_k=4,
        width=512,
    ),
    "S": dict(
        batch=8, seq=128, vocab=256, hidden=256, heads=4, kv_heads=2, experts=16, top_k=2, width=256
    ),
}
LAYERS = 4
HEAD_DIM = 64
TRIAL_STEPS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a peer of one process and one of several have in common."""
    parser.add_argument("--shape", choices=sorted(SHAPES), default="S")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=1, help="steps before the first group")
    parser.add_argument("--experts", choices=["eager", "grouped_mm"], default="grouped_mm")
    parser.add_argument("--attention", choices=["eager", "sdpa"], default="sdpa")
    parser.add_argument("--optimizer", choices=["fused", "foreach"], default="fused")
    parser.add_argument("--malloc", choices=["keep", "default"], default="keep")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a group")
    parser.add_argument("--groups", type=int, default=1, help="groups, one JSON line each")
    parser.add_argument(
        "--compile",
        choices=["off", "on", "auto"],
        default="auto",
        help="auto: if faster in a trial",
    )
    parser.add_argument("--serve", action="store_true", help="take commands from stdin")
    return parser.parse_args()


def flops_per_token(shape: dict) -> float:
    """See the formula at the top of the file."""
    hidden, heads = shape["hidden"], shape["heads"]
    attention = hidden * HEAD_DIM * (2 * heads + 2 * shape["kv_heads"])
    experts = shape["top_k"] * 3 * hidden * shape["width"]
    layer = attention + hidden * shape["experts"] + experts
    active = LAYERS * layer + hidden * shape["vocab"]
    core = 3 * 2 * heads * 2 * HEAD_DIM * (shape["seq"] + 1) / 2
    return 6 * active + LAYERS * core


def keep_freed_memory() -> None:
    """Makes glibc serve big blocks from a heap that never shrinks; elsewhere does nothing."""
    m_trim_threshold, m_mmap_max = -1, -4
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(m_trim_threshold, 2**31 - 1)
        mallopt(m_mmap_max, 0)


def reset_peak_rss() -> None:
    """Gives back what start-up and trials left in the heap, then restarts the kernel's peak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        print("peak_rss_bytes includes start-up: cannot reset it here", file=sys.stderr)


def peak_rss_bytes() -> int:
    """The largest resident set since reset_peak_rss, or of the whole process where unsupported."""
    try:
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def prepare_process(arguments: argparse.Namespace) -> None:
    """Before torch is loaded: it reads the environment."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if arguments.malloc == "keep":
        keep_freed_memory()


class Peer:
    """Model, optimizer and batch. A subclass may spread them over processes."""

    def __init__(self, arguments: argparse.Namespace):
        import torch
        import transformers

        torch.set_num_threads(arguments.threads)
        torch.manual_seed(arguments.seed)
        self.torch = torch
        self.shape = shape = SHAPES[arguments.shape]
        self.tokens_per_step = shape["batch"] * shape["seq"]
        config = transformers.Qwen3MoeConfig(
            vocab_size=shape["vocab"],
            hidden_size=shape["hidden"],
            intermediate_size=shape["width"],
            moe_intermediate_size=shape["width"],
            num_hidden_layers=LAYERS,
            num_attention_heads=shape["heads"],
            num_key_value_heads=shape["kv_heads"],
            head_dim=HEAD_DIM,
            num_experts=shape["experts"],
            num_experts_per_tok=shape["top_k"],
            norm_topk_prob=True,
            output_router_logits=False,
            tie_word_embeddings=False,
            use_cache=False,
            max_position_embeddings=shape["seq"],
            attn_implementation=arguments.attention,
            experts_implementation=arguments.experts,
        )
        self.model = transformers.Qwen3MoeForCausalLM(config).train()
        self.compiled = False
        self.forward = self.distribute(self.model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=arguments.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            fused=arguments.optimizer == "fused",
            foreach=arguments.optimizer == "foreach",
        )
        self.tokens = self.own_part(torch.randint(shape["vocab"], (shape["batch"], shape["seq"])))

    def distribute(self, model):
        """Returns what to call for a forward; may replace the model's parameters."""
        return model

    def own_part(self, batch):
        """The documents of the global batch that this process trains on."""
        return batch

    def meet(self) -> None:
        """Returns once every process is here."""

    def over_processes(self, loss: float, peak_bytes: int) -> tuple[float, int]:
        """The mean of the losses and the sum of the memory."""
        return loss, peak_bytes

    def say(self, answer: dict) -> None:
        print(json.dumps(answer), flush=True)

    def step(self) -> float:
        """One optimizer step; returns its loss."""
        loss = self.forward(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def choose_forward(self, mode: str) -> None:
        """Compiles the model if the mode says so or, with auto, if that makes steps faster."""
        if mode == "off":
            return
        plain, compiled = self.model, self.torch.compile(self.model)
        if mode == "on":
            self.forward, self.compiled = compiled, True
            return
        best = {}
        try:
            for trial in range(1 + TRIAL_STEPS):
                for self.forward in (plain, compiled):
                    seconds = self.group(1)["elapsed_seconds"]
                    if trial > 0:
                        best[self.forward] = min(seconds, best.get(self.forward, seconds))
        except self.torch._dynamo.exc.TorchDynamoException as error:
            print(f"torch.compile failed, running without it: {error}", file=sys.stderr)
            best = {plain: 0.0}
        self.forward = min(best, key=best.get)
        self.compiled = self.forward is compiled

    def warm_up(self, steps: int) -> None:
        reset_peak_rss()
        for _ in range(steps):
            self.step()

    def group(self, steps: int) -> dict:
        """Times `steps` steps."""
        seconds, loss = [], 0.0
        self.meet()
        group_start = time.perf_counter()
        for _ in range(steps):
            start = time.perf_counter()
            loss = self.step()
            seconds.append(time.perf_counter() - start)
        self.meet()
        elapsed = time.perf_counter() - group_start
        rate = steps * self.tokens_per_step / elapsed
        loss, peak_bytes = self.over_processes(loss, peak_rss_bytes())
        return {
            "tokens_per_second": rate,
            "seconds_per_step": seconds,
            "elapsed_seconds": elapsed,
            "peak_rss_bytes": peak_bytes,
            "gflops_per_second": rate * flops_per_token(self.shape) / 1e9,
            "loss": loss,
            "compiled": self.compiled,
        }


def serve(peer: Peer) -> None:
    """Says that it is ready, then answers "step K" lines until "quit"."""
    parameters = sum(p.numel() for p in peer.model.parameters())
    ready = {"ready": True, "tokens_per_step": peer.tokens_per_step, "parameters": parameters}
    peer.say({**ready, "flops_per_token": flops_per_token(peer.shape)})
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            return
        if len(words) != 2 or words[0] != "step" or not words[1].isdigit() or words[1] == "0":
            peer.say({"error": f"expected 'step K' or 'quit', got {line!r}"})
            continue
        peer.say(peer.group(int(words[1])))


def main() -> None:
    arguments = parse_arguments()
    prepare_process(arguments)
    peer = Peer(arguments)
    peer.choose_forward(arguments.compile)
    peer.warm_up(arguments.warmup)
    if arguments.serve:
        serve(peer)
        return
    for _ in range(arguments.groups):
        peer.say(peer.group(arguments.steps))


if __name__ == "__main__":
    main()
