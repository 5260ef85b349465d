#!/usr/bin/env python3
"""Generate the golden values in tests/goldens/hf from Hugging Face transformers.

For every case in CASES this writes tests/goldens/hf/<name>/ with

  hf/                  what save_pretrained writes: config.json and the weights, experts split
  hf_fused/            (some) the same weights with the experts fused, as transformers holds them
  config_legacy.json   (some) the same config with the keys of checkpoints older than transformers 5
  golden.safetensors   one batch: tokens, labels, logits, loss, the gradient of every parameter
  packed.safetensors   (some) documents run apart and laid end to end, with gradients
  generate.json        (some) a prompt and its greedy continuation
  train3.safetensors   (some) three steps of clipped AdamW
  aux.safetensors      (some) the load-balancing loss and its gradients

and tests/goldens/hf/manifest.json, which documents the keys of these files and the tolerances.

Every parameter is random, so that no weight hides a fault by being one or zero. A seed is taken
only if no routing decision, clamp or argmax is close to a tie. Every golden is compared with the
same model run in float64, and every written directory is loaded back. Needs torch, transformers
and safetensors (the manifest names the versions); the tests that read the files need neither.

    python tools/hf_goldens.py                   # rewrite all of tests/goldens/hf
    python tools/hf_goldens.py --only olmoe_mha_raw
    python tools/hf_goldens.py --list
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import json
import math
import pathlib
import shutil

import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from torch.overrides import TorchFunctionMode
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM),
}
# A pad token would silence the gradient of its embedding row, an end token would stop generation.
COMMON = dict(
    use_cache=False,
    attention_dropout=0.0,
    max_position_embeddings=256,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
TOLERANCE = 2e-5
FINAL_TOLERANCE = 1e-4
GRADIENT_FLOOR = 1e-2  # gradients below this are compared absolutely: some are exactly zero
MIN_ROUTING_GAP = 1e-4
MIN_CLIP_GAP = 1e-5
MIN_ARGMAX_GAP = 1e-3
MAX_SEEDS = 2000
IGNORED = -100


@dataclasses.dataclass(frozen=True)
class Case:
    """One tiny model and what is computed with it."""

    name: str
    family: str
    features: str
    size: dict
    config: dict
    shard_size: str | None = None
    fused: bool = False
    legacy_type_key: str | None = None
    documents: tuple[int, ...] = ()
    generate: bool = False
    train3: bool = False
    aux: bool = False
    idle_expert: bool = False


def shape(vocab, hidden, ffn, layers, heads, kv_heads, head_dim=None, **others) -> dict:
    """Config keys that all families share; `others` are taken as they are."""
    keys = dict(vocab_size=vocab, hidden_size=hidden, intermediate_size=ffn)
    keys |= dict(num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads)
    return keys | ({"head_dim": head_dim} if head_dim else {}) | others


def rope(theta: float, kind: str = "default", **scaling) -> dict:
    return {"rope_type": kind, "rope_theta": theta} | scaling


def yarn(factor: float, **others) -> dict:
    """A ramp that touches the first, the second and none of the other frequencies."""
    ramp = dict(beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=64)
    return rope(1000.0, "yarn", factor=factor) | ramp | others


LLAMA3 = dict(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
DOCUMENTS = (5, 1, 13, 2, 9)

CASES = [
    Case(
        "llama_gqa",
        "llama",
        "GQA 4:2, untied, head_dim * heads = hidden, rms_norm_eps 1e-2, sharded file",
        dict(batch=3, seq=13),
        shape(97, 40, 52, 2, 4, 2, rms_norm_eps=1e-2, rope_parameters=rope(1e4)),
        shard_size="30KB",
        documents=DOCUMENTS,
        generate=True,
    ),
    Case(
        "llama_mqa_tied",
        "llama",
        "MQA 3:1, head_dim 10 so that head_dim * heads = 30 != hidden 24, tied",
        dict(batch=2, seq=33),
        shape(61, 24, 45, 3, 3, 1, 10, tie_word_embeddings=True, rope_parameters=rope(100.0)),
    ),
    Case(
        "llama_llama3_rope",
        "llama",
        "MHA, head_dim 12 so that head_dim * heads = 48 != hidden 32, llama3 rope with kept, "
        "blended and divided frequencies, untied",
        dict(batch=2, seq=33),
        shape(97, 32, 36, 2, 4, 4, 12) | dict(rope_parameters=rope(500.0, "llama3", **LLAMA3)),
        legacy_type_key="rope_type",
    ),
    Case(
        "llama_yarn",
        "llama",
        "GQA 6:2, head_dim 10 so that head_dim * heads = 60 != hidden 36, yarn rope with the "
        "default attention factor 0.1 ln(4) + 1, tied",
        dict(batch=3, seq=13),
        shape(61, 36, 40, 2, 6, 2, 10, tie_word_embeddings=True, rope_parameters=yarn(4.0)),
        legacy_type_key="type",
    ),
    Case(
        "mixtral_gqa",
        "mixtral",
        "GQA 4:2, E 4, k 2, untied, router_aux_loss_coef 0.02, also with fused experts",
        dict(batch=2, seq=13),
        shape(97, 32, 14, 2, 4, 2, num_local_experts=4, num_experts_per_tok=2)
        | dict(router_aux_loss_coef=0.02, rope_parameters=rope(1e6)),
        fused=True,
        generate=True,
        aux=True,
    ),
    Case(
        "mixtral_window5",
        "mixtral",
        "MQA 4:1, head_dim 8 so that head_dim * heads = 32 != hidden 24, sliding window 5, E 5, "
        "k 3, rms_norm_eps 1e-2, tied",
        dict(batch=2, seq=33),
        shape(61, 24, 11, 3, 4, 1, 8, num_local_experts=5, num_experts_per_tok=3)
        | dict(sliding_window=5, tie_word_embeddings=True, rms_norm_eps=1e-2)
        | dict(rope_parameters=rope(1e4)),
    ),
    Case(
        "mixtral_k1_idle",
        "mixtral",
        "MHA, head_dim 14 so that head_dim * heads = 28 != hidden 32, E 7, k 1 (weights are 1, the "
        "router gradient is zero up to rounding), at least one idle expert, untied",
        dict(batch=2, seq=13),
        shape(97, 32, 9, 2, 2, 2, 14, num_local_experts=7, num_experts_per_tok=1)
        | dict(rope_parameters=rope(1e4)),
        idle_expert=True,
    ),
    Case(
        "qwen3_moe_norm_k3",
        "qwen3_moe",
        "GQA 4:2, head_dim 12 so that head_dim * heads = 48 != hidden 32, E 8, k 3, "
        "norm_topk_prob true, untied, sharded file, also with fused experts",
        dict(batch=3, seq=13),
        shape(97, 32, 20, 2, 4, 2, 12, moe_intermediate_size=10, num_experts=8)
        | dict(num_experts_per_tok=3, norm_topk_prob=True, rope_parameters=rope(1e6)),
        shard_size="50KB",
        fused=True,
        generate=True,
        documents=DOCUMENTS,
    ),
    Case(
        "qwen3_moe_sparse_step2",
        "qwen3_moe",
        "MHA, head_dim * heads = hidden, decoder_sparse_step 2: layers dense, MoE, dense; E 6, "
        "k 2, norm_topk_prob false, rms_norm_eps 1e-2, tied",
        dict(batch=2, seq=33),
        shape(61, 24, 35, 3, 4, 4, 6, moe_intermediate_size=13, num_experts=6)
        | dict(num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=2)
        | dict(tie_word_embeddings=True, rms_norm_eps=1e-2, rope_parameters=rope(1e4)),
    ),
    Case(
        "qwen3_moe_mlp_only",
        "qwen3_moe",
        "MQA 3:1, head_dim 14 so that head_dim * heads = 42 != hidden 28, mlp_only_layers [1]: "
        "layers MoE, dense, MoE; E 5, k 1, norm_topk_prob false, untied",
        dict(batch=2, seq=13),
        shape(61, 28, 27, 3, 3, 1, 14, moe_intermediate_size=9, num_experts=5)
        | dict(num_experts_per_tok=1, norm_topk_prob=False, mlp_only_layers=[1])
        | dict(rope_parameters=rope(1e4)),
        train3=True,
    ),
    Case(
        "qwen3_moe_window_yarn",
        "qwen3_moe",
        "GQA 6:3, head_dim 8 so that head_dim * heads = 48 != hidden 24, use_sliding_window with "
        "window 7, yarn rope with attention_factor 1.25, E 4, k 2, norm_topk_prob true, tied",
        dict(batch=2, seq=33),
        shape(61, 24, 20, 2, 6, 3, 8, moe_intermediate_size=10, num_experts=4)
        | dict(num_experts_per_tok=2, norm_topk_prob=True, tie_word_embeddings=True)
        | dict(use_sliding_window=True, sliding_window=7)
        | dict(rope_parameters=yarn(8.0, attention_factor=1.25)),
        legacy_type_key="rope_type",
    ),
    Case(
        "olmoe_mha_raw",
        "olmoe",
        "MHA, E 8, k 3, norm_topk_prob false, clip_qkv null, untied",
        dict(batch=2, seq=13),
        shape(61, 36, 7, 2, 3, 3, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False)
        | dict(rope_parameters=rope(1e4)),
    ),
    Case(
        "olmoe_gqa_clip",
        "olmoe",
        "GQA 4:2, clip_qkv 0.5, E 6, k 2, norm_topk_prob true, rms_norm_eps 1e-2, tied",
        dict(batch=2, seq=33),
        shape(97, 40, 9, 2, 4, 2, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True)
        | dict(clip_qkv=0.5, tie_word_embeddings=True, rms_norm_eps=1e-2)
        | dict(rope_parameters=rope(1e4)),
    ),
    Case(
        "olmoe_mqa_k1",
        "olmoe",
        "MQA 4:1, E 5, k 1, norm_topk_prob false, clip_qkv null, untied",
        dict(batch=3, seq=7),
        shape(61, 24, 13, 3, 4, 1, num_experts=5, num_experts_per_tok=1, norm_topk_prob=False)
        | dict(rope_parameters=rope(100.0)),
    ),
]

DOCUMENTATION = {
    "names": "Parameter names are the names in the split checkpoint (hf/). Tied models have no "
    "lm_head; model.embed_tokens.weight carries the sum of both gradients.",
    "tolerance": f"A tensor a agrees with its golden b if max|a-b| <= {TOLERANCE} * max|b|; for "
    f"gradients and moments max|b| is replaced by max(max|b|, {GRADIENT_FLOOR}). train3 final "
    f"weights: norm(a-b) <= {FINAL_TOLERANCE} * norm(b), because Adam turns the rounding of a "
    "gradient near zero into a visible step.",
    "float64_error": "Largest error of the float32 golden against the same model in float64, in "
    "the measure above: what an exact implementation would see.",
    "golden.safetensors": "input_ids i64 [B,S]; labels i64 [B,S], -100 ignored, labels[t] is "
    "compared with the logits at t-1 and labels[:,0] is not used; logits f32 [B,S,V]; loss f32 "
    "[1], the mean over the counted labels without auxiliary loss; grad.<name> f32.",
    "packed.safetensors": "Documents run apart, then concatenated: input_ids i64 [T]; cu_seqlens "
    "i32; targets i64 [T], already shifted, -100 at document ends and at some others; logits f32 "
    "[T,V]; loss f32 [1], the mean over the counted targets of all documents; grad.<name> f32.",
    "generate.json": "prompt: token ids; generated: the greedy continuation.",
    "train3.safetensors": "Three steps from the weights in hf/: input_ids and labels i64 [3,B,S], "
    "one batch a step; losses f32 [3]; grad_norms f32 [3], before clipping; final.<name>, "
    "exp_avg.<name>, exp_avg_sq.<name> f32 after the third step. AdamW with lr 1e-2, betas 0.9 "
    "and 0.95, eps 1e-8, decoupled weight decay 0.1 on all but norm weights; gradients are scaled "
    "by min(1, 1 / (norm + 1e-6)).",
    "aux.safetensors": "load_balancing_loss_func of the batch in golden.safetensors: aux_loss f32 "
    "[1], E * sum_e(n_e / R * sum(p_e) / R) with the R = layers * tokens rows of all layers "
    "pooled, not multiplied by router_aux_loss_coef; router_logits.<layer> f32 [B*S,E]; "
    "grad_router_logits.<layer>: derivative by these logits alone, everything else fixed; "
    "grad_aux.<name>: derivative by a parameter through the whole model (parameters that the "
    "routers do not depend on are absent). A training loss with the auxiliary loss has gradient "
    "grad.<name> + router_aux_loss_coef * grad_aux.<name>.",
}


class Unsuitable(Exception):
    """This seed has a decision that rounding could flip, or is badly conditioned."""


class Float64Mode(TorchFunctionMode):
    """Turns every explicit cast to float32 into one to float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()
        args = [torch.float64 if a is torch.float32 else a for a in args]
        kwargs = {k: torch.float64 if a is torch.float32 else a for k, a in (kwargs or {}).items()}
        return func(*args, **kwargs)


@contextlib.contextmanager
def float64():
    """Everything built and run inside computes in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        with Float64Mode():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def build_model(case: Case) -> torch.nn.Module:
    """The model of a case in the current default dtype, with reference code paths only."""
    config_class, model_class = FAMILIES[case.family]
    implementations = dict(attn_implementation="eager", experts_implementation="eager")
    config = config_class(**COMMON, **case.config, **implementations)
    return model_class(config).eval()


def randomize(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Norm weights around one, everything else normal and wide enough for distinct logits."""
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_((0.35 if "gate.weight" in name else 0.25) * noise)


class Watcher:
    """Hooks that raise Unsuitable on near-ties and remember what was routed."""

    def __init__(self, model: torch.nn.Module):
        self.min_gap = math.inf
        self.idle_experts = 0
        for name, module in model.named_modules():
            if type(module).__name__.endswith("TopKRouter"):
                module.register_forward_hook(self._watch_router)
            elif getattr(model.config, "clip_qkv", None) and name.endswith(
                ("q_norm", "k_norm", "v_proj")
            ):
                module.register_forward_hook(
                    functools.partial(self._watch_clip, model.config.clip_qkv)
                )

    def _watch_router(self, module, _inputs, outputs):
        probabilities = outputs[0].detach().float().softmax(-1).sort(-1, descending=True).values
        gaps = probabilities[:, module.top_k - 1] - probabilities[:, module.top_k]
        self.min_gap = min(self.min_gap, gaps.min().item())
        self.idle_experts += module.num_experts - outputs[2].unique().numel()
        if self.min_gap < MIN_ROUTING_GAP:
            raise Unsuitable

    @staticmethod
    def _watch_clip(limit, _module, _inputs, output):
        if (output.detach().abs() - limit).abs().min() < MIN_CLIP_GAP:
            raise Unsuitable


def split_names(case: Case, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under in-memory names (experts fused) -> under the names of the checkpoint."""
    mixtral = case.family == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    result = {}
    for name, tensor in tensors.items():
        if mixtral:
            name = name.replace(".mlp.", ".block_sparse_moe.")
        base, _, last = name.rpartition(".")
        if not base.endswith(".experts"):
            result[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            if last == "down_proj":
                result[f"{base}.{expert}.{down}.weight"] = matrix
            else:
                halves = matrix.chunk(2)
                result[f"{base}.{expert}.{gate}.weight"] = halves[0]
                result[f"{base}.{expert}.{up}.weight"] = halves[1]
    return {name: tensor.detach().clone().contiguous() for name, tensor in result.items()}


def take_gradients(case: Case, model: torch.nn.Module, prefix: str) -> dict[str, torch.Tensor]:
    """The gradients under checkpoint names with a prefix; clears them."""
    named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {prefix + name: grad for name, grad in split_names(case, named).items()}


def random_ids(case: Case, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(case.config["vocab_size"], shape, generator=generator)


def random_labels(case: Case, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Labels unrelated to the tokens (an evaluation that uses the tokens shows), some ignored."""
    labels = random_ids(case, shape, generator)
    return labels.masked_fill(torch.rand(shape, generator=generator) < 0.2, IGNORED)


def run_batch(case: Case, model: torch.nn.Module, inputs: dict) -> dict[str, torch.Tensor]:
    """golden.safetensors: one forward and backward pass."""
    output = model(input_ids=inputs["input_ids"], labels=inputs["labels"])
    output.loss.backward()
    result = {"logits": output.logits.detach(), "loss": output.loss.detach().reshape(1)}
    return result | take_gradients(case, model, "grad.")


def run_packed(case: Case, model: torch.nn.Module, inputs: dict) -> dict[str, torch.Tensor]:
    """packed.safetensors: each document by itself, one loss over all."""
    ends = inputs["cu_seqlens"].tolist()
    documents = [inputs["input_ids"][a:b] for a, b in zip(ends, ends[1:])]
    logits = torch.cat([model(input_ids=ids[None]).logits[0] for ids in documents])
    loss = F.cross_entropy(logits, inputs["targets"], ignore_index=IGNORED)
    loss.backward()
    result = {"logits": logits.detach(), "loss": loss.detach().reshape(1)}
    return result | take_gradients(case, model, "grad.")


def run_aux(case: Case, model: torch.nn.Module, inputs: dict) -> dict[str, torch.Tensor]:
    """aux.safetensors: the load-balancing loss alone."""
    output = model(input_ids=inputs["input_ids"], output_router_logits=True)
    output.aux_loss.backward()
    result = {"aux_loss": output.aux_loss.detach().reshape(1)}
    result |= take_gradients(case, model, "grad_aux.")
    leaves = tuple(logits.detach().requires_grad_() for logits in output.router_logits)
    load_balancing_loss_func(
        leaves, case.config["num_local_experts"], case.config["num_experts_per_tok"]
    ).backward()
    for layer, leaf in enumerate(leaves):
        result[f"router_logits.{layer}"] = leaf.detach()
        result[f"grad_router_logits.{layer}"] = leaf.grad
    return result


def run_train3(case: Case, model: torch.nn.Module, inputs: dict) -> dict[str, torch.Tensor]:
    """train3.safetensors: three steps of AdamW. Changes the weights of the model."""
    named = dict(model.named_parameters())
    decay = [p for n, p in named.items() if p.dim() >= 2]
    no_decay = [p for n, p in named.items() if p.dim() < 2]
    assert all("norm" in n for n, p in named.items() if p.dim() < 2)
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
        eps=1e-8,
        foreach=False,
    )
    losses, norms = [], []
    for input_ids, labels in zip(inputs["input_ids"], inputs["labels"]):
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    result = {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)}
    result |= {"final." + n: t for n, t in split_names(case, named).items()}
    for moment in ("exp_avg", "exp_avg_sq"):
        state = {n: optimizer.state[p][moment] for n, p in named.items()}
        result |= {f"{moment}.{n}": t for n, t in split_names(case, state).items()}
    return result


def run_generate(case: Case, model: torch.nn.Module, generator: torch.Generator) -> dict:
    """generate.json: twelve greedy tokens, each ahead of the runner-up."""
    prompt = random_ids(case, (1, 7), generator)
    with torch.no_grad():
        full = model.generate(prompt, max_new_tokens=12, do_sample=False, use_cache=False)
        best = model(input_ids=full[:, :-1]).logits[0, prompt.shape[1] - 1 :].topk(2)
    generated = full[0, prompt.shape[1] :].tolist()
    assert best.indices[:, 0].tolist() == generated and len(generated) == 12
    if (best.values[:, 0] - best.values[:, 1]).min() < MIN_ARGMAX_GAP:
        raise Unsuitable
    return {"prompt": prompt[0].tolist(), "generated": generated}


RUNNERS = {
    "golden.safetensors": run_batch,
    "packed.safetensors": run_packed,
    "aux.safetensors": run_aux,
    "train3.safetensors": run_train3,
}


def make_inputs(case: Case, generator: torch.Generator) -> dict[str, dict]:
    """The inputs of every file of a case; those of aux are those of golden."""
    size = (case.size["batch"], case.size["seq"])
    batch = {
        "input_ids": random_ids(case, size, generator),
        "labels": random_labels(case, size, generator),
    }
    inputs = {"golden.safetensors": batch}
    if case.documents:
        total = sum(case.documents)
        ends = torch.tensor((0,) + case.documents).cumsum(0)
        targets = random_labels(case, (total,), generator)
        targets[ends[1:] - 1] = IGNORED
        inputs["packed.safetensors"] = {
            "input_ids": random_ids(case, (total,), generator),
            "cu_seqlens": ends.to(torch.int32),
            "targets": targets,
        }
    if case.aux:
        inputs["aux.safetensors"] = batch
    if case.train3:
        inputs["train3.safetensors"] = {
            "input_ids": random_ids(case, (3, *size), generator),
            "labels": random_labels(case, (3, *size), generator),
        }
    return inputs


@dataclasses.dataclass
class Result:
    """All that one seed gives for a case."""

    seed: int
    model: torch.nn.Module
    watcher: Watcher
    inputs: dict[str, dict]
    outputs: dict[str, dict]
    generate: dict | None
    errors: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)


def compute(case: Case, seed: int) -> Result:
    """Runs everything for one seed; raises Unsuitable if the seed is no good."""
    generator = torch.Generator().manual_seed(seed)
    model = build_model(case)
    randomize(model, generator)
    watcher = Watcher(model)
    inputs = make_inputs(case, generator)
    outputs = {"golden.safetensors": run_batch(case, model, inputs["golden.safetensors"])}
    if case.idle_expert and watcher.idle_experts == 0:
        raise Unsuitable
    generate = run_generate(case, model, generator) if case.generate else None
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for file, values in list(inputs.items())[1:]:
        outputs[file] = RUNNERS[file](case, model, values)
        model.load_state_dict(initial)
    return Result(seed, model, watcher, inputs, outputs, generate)


def find_seed(case: Case) -> Result:
    for seed in range(1, MAX_SEEDS):
        try:
            result = compute(case, seed)
            result.errors = float64_errors(case, result)
            return result
        except Unsuitable:
            continue
    raise RuntimeError(f"[{case.name}] no seed below {MAX_SEEDS} is suitable")


def tensor_error(key: str, value: torch.Tensor, reference: torch.Tensor) -> float:
    """The measure that the manifest defines."""
    difference = value.double() - reference
    if key.startswith("final."):
        return (difference.norm() / reference.norm()).item()
    scale = reference.abs().max().item()
    if key.startswith(("grad", "exp_avg")):
        scale = max(scale, GRADIENT_FLOOR)
    return difference.abs().max().item() / scale


def float64_errors(case: Case, result: Result) -> dict[str, dict[str, float]]:
    """Per file and kind of tensor, the largest error; raises Unsuitable if near the tolerance."""
    errors = {}
    for file, outputs in result.outputs.items():
        with float64():
            model = build_model(case)
            model.load_state_dict(result.model.state_dict())
            exact = RUNNERS[file](case, model, result.inputs[file])
        assert exact.keys() == outputs.keys()
        kinds = errors.setdefault(file, {})
        for key, value in outputs.items():
            assert exact[key].dtype == torch.float64 and value.dtype == torch.float32, key
            error = tensor_error(key, value, exact[key])
            if error > (FINAL_TOLERANCE if key.startswith("final.") else TOLERANCE) / 4:
                raise Unsuitable
            kind = key.partition(".")[0]
            kinds[kind] = max(kinds.get(kind, 0.0), float(f"{error:.0e}"))
    return errors


def legacy_config(case: Case, config: dict) -> dict:
    """The config with the keys of older checkpoints: rope_theta, rope_scaling and so on."""
    config = copy.deepcopy(config)
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = {case.legacy_type_key: scaling.pop("rope_type")} | scaling
    config["torch_dtype"] = config.pop("dtype")
    if case.family == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    config["transformers_version"] = "4.51.0"
    return config


def write_json(path: pathlib.Path, value) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def read_weights(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= safetensors.torch.load_file(file)
    return tensors


def check_folder(case: Case, result: Result, folder: pathlib.Path) -> None:
    """The written directory loads back into a model with the golden logits."""
    model_class = FAMILIES[case.family][1]
    implementations = dict(attn_implementation="eager", experts_implementation="eager")
    model = model_class.from_pretrained(folder, dtype=torch.float32, **implementations).eval()
    with torch.no_grad():
        logits = model(input_ids=result.inputs["golden.safetensors"]["input_ids"]).logits
    assert torch.equal(logits, result.outputs["golden.safetensors"]["logits"]), folder


def write_case(case: Case, result: Result, out: pathlib.Path) -> None:
    """Writes and checks the folder of one case."""
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    shards = {"max_shard_size": case.shard_size} if case.shard_size else {}
    result.model.save_pretrained(folder / "hf", **shards)
    check_folder(case, result, folder / "hf")
    assert (folder / "hf/model.safetensors.index.json").exists() == bool(case.shard_size)
    saved = read_weights(folder / "hf")
    expected = split_names(case, dict(result.model.named_parameters()))
    assert saved.keys() == expected.keys(), saved.keys() ^ expected.keys()
    assert all(torch.equal(saved[name], expected[name]) for name in saved)
    assert {"grad." + n for n in saved} <= result.outputs["golden.safetensors"].keys()

    if case.fused:
        result.model.save_pretrained(folder / "hf_fused", save_original_format=False)
        check_folder(case, result, folder / "hf_fused")
        fused = read_weights(folder / "hf_fused")
        assert any(name.endswith("mlp.experts.gate_up_proj") for name in fused)
    if case.legacy_type_key:
        config = json.loads((folder / "hf/config.json").read_text())
        legacy = legacy_config(case, config)
        parsed = FAMILIES[case.family][0].from_dict(copy.deepcopy(legacy)).to_dict()
        assert config["rope_parameters"].items() <= parsed["rope_parameters"].items()
        assert config.get("num_local_experts") == parsed.get("num_local_experts")
        write_json(folder / "config_legacy.json", legacy)
    for file, outputs in result.outputs.items():
        tensors = ({} if file == "aux.safetensors" else result.inputs[file]) | outputs
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        safetensors.torch.save_file(tensors, folder / file)
    if result.generate:
        write_json(folder / "generate.json", result.generate)


def manifest_entry(case: Case, result: Result, out: pathlib.Path) -> dict:
    folder = out / case.name
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return {
        "name": case.name,
        "family": case.family,
        "features": case.features,
        **case.size,
        "seed": result.seed,
        "min_routing_gap": (
            None if math.isinf(result.watcher.min_gap) else float(f"{result.watcher.min_gap:.1e}")
        ),
        "idle_expert": case.idle_expert,
        "files": files,
        "float64_error": result.errors,
    }


def parse_arguments() -> argparse.Namespace:
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/goldens/hf")
    parser.add_argument("--only", metavar="NAME", action="append", help="only these cases")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.list:
        for case in CASES:
            print(f"{case.name}: {case.features}")
        return
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "manifest.json"
    old = {c["name"]: c for c in json.loads(path.read_text())["cases"]} if path.exists() else {}
    for case in CASES:
        if arguments.only and case.name not in arguments.only:
            continue
        result = find_seed(case)
        write_case(case, result, arguments.out)
        old[case.name] = manifest_entry(case, result, arguments.out)
        loss = result.outputs["golden.safetensors"]["loss"].item()
        print(f"{case.name}: seed {result.seed}, loss {loss:.4f}, {result.errors}", flush=True)
    manifest = {
        "generator": "tools/hf_goldens.py",
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "tolerance": TOLERANCE,
        "gradient_floor": GRADIENT_FLOOR,
        "documentation": DOCUMENTATION,
        "cases": [old[case.name] for case in CASES if case.name in old],
    }
    write_json(path, manifest)


if __name__ == "__main__":
    main()
