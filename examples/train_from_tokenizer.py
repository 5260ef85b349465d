#!/usr/bin/env python3
"""Trains a small MoE model on text files with a tokenizer of one's own, batch by batch.

    PYTHONPATH=bazel-bin/python/site python3 examples/train_from_tokenizer.py \\
        --text 'texts/*.txt' --tokenizer tokenizer.json --output runs/my-model

Without a tokenizer.json under that name, byte-pair tokens are learnt from the text and written
there. The script shows the seams: any iterable of {"input_ids": [batch, sequence]} can feed
Trainer.step, so the data loader here is a plain generator. Needs `pip install tokenizers numpy`.
"""

import argparse
import glob
import os

import numpy as np
import tokenizers

import meshfold as mf

CONFIG = """
model: {family: qwen3_moe, hidden_size: 128, num_layers: 4, num_heads: 4, num_kv_heads: 2}
moe: {num_experts: 8, top_k: 2, expert_size: 128, aux_loss: 0.01}
optimizer: {lr: 3e-3, weight_decay: 0.1}
schedule: {name: cosine, warmup_steps: 20}
"""


def load_tokenizer(path, files, vocab_size):
    if not os.path.exists(path):
        tokenizer = tokenizers.ByteLevelBPETokenizer()
        tokenizer.train(files, vocab_size=vocab_size, special_tokens=["<|endoftext|>"])
        tokenizer.save(path)
    return tokenizers.Tokenizer.from_file(path)


def encode(tokenizer, files):
    """All files as one array of ids, an end-of-text token after each."""
    end = tokenizer.token_to_id("<|endoftext|>")
    ids = []
    for name in files:
        with open(name, encoding="utf-8", errors="replace") as file:
            ids += tokenizer.encode(file.read()).ids
        if end is not None:
            ids.append(end)
    return np.array(ids, dtype=np.int64)


def batches(ids, batch_size, length, seed=0):
    """Random windows, for ever."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(ids) - length + 1, batch_size)
        yield {"input_ids": np.stack([ids[start : start + length] for start in starts])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, help="pattern of text files")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json, made if not there")
    parser.add_argument("--output", required=True, help="directory of the run")
    parser.add_argument("--vocab-size", type=int, default=1024, help="of a tokenizer to be made")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sequence-length", type=int, default=128)
    arguments = parser.parse_args()

    files = sorted(glob.glob(arguments.text))
    if not files:
        parser.error(f"no file matches '{arguments.text}'")
    tokenizer = load_tokenizer(arguments.tokenizer, files, arguments.vocab_size)
    ids = encode(tokenizer, files)
    if len(ids) < arguments.sequence_length:
        parser.error(f"{len(ids)} tokens are fewer than one sequence")
    print(f"{len(files)} files, {len(ids)} tokens, vocabulary {tokenizer.get_vocab_size()}")

    config = mf.Config.parse(
        CONFIG,
        [
            f"model.vocab_size={tokenizer.get_vocab_size()}",
            f"train.steps={arguments.steps}",
            f"run.dir={arguments.output}",
        ],
    )
    trainer = mf.Trainer(config)
    feed = batches(ids, arguments.batch_size, arguments.sequence_length)
    for _ in range(arguments.steps):
        metrics = trainer.step(next(feed))
        if metrics["step"] % 10 == 0 or metrics["step"] == 1:
            print(f"step {metrics['step']}  loss {metrics['loss']:.4f}", flush=True)
    print("saved", trainer.save())


if __name__ == "__main__":
    main()
