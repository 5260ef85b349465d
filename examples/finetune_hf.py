#!/usr/bin/env python3
"""Fine-tunes a Hugging Face model directory on a corpus and writes one back.

    tools/prepare.py --tokenizer DIR/tokenizer.json --output data/corpus texts/*.txt
    PYTHONPATH=bazel-bin/python/site python3 examples/finetune_hf.py \\
        --model DIR --data data/corpus --output out

The corpus is anything that data.source takes (prepared tokens, as above; `meshfold config --doc`).
A tenth of it is kept for validation; its loss before and after is printed. Tokenizer files are
copied, so that transformers and serving programs load the result as they load the original.
"""

import argparse
import pathlib
import shutil

import meshfold as mf

CONFIG = """
data: {validation_fraction: 0.1, validation_by: block}
optimizer: {lr: 1e-4, weight_decay: 0.01, clip_norm: 1.0}
schedule: {name: linear, warmup_steps: 5}
"""


def copy_tokenizer(source, target):
    for pattern in ("tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt"):
        for file in pathlib.Path(source).glob(pattern):
            shutil.copy(file, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory of a Hugging Face model")
    parser.add_argument("--data", required=True, help="prepared tokens, as data.source takes them")
    parser.add_argument("--output", required=True, help="Hugging Face directory to write")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--set", action="append", default=[], help="override a config key")
    arguments = parser.parse_args()

    config = mf.Config.parse(
        CONFIG,
        [
            f"model.hf={arguments.model}",
            f"data.source={arguments.data}",
            f"data.sequence_length={arguments.sequence_length}",
            f"train.steps={arguments.steps}",
            f"train.global_batch_size={arguments.batch_size}",
            f"run.dir={arguments.output}.run",
            *arguments.set,
        ],
    )
    trainer = mf.Trainer(config)
    print(f"validation loss before {trainer.evaluate()['loss']:.4f}", flush=True)
    for _ in range(arguments.steps):
        metrics = trainer.step()
        if metrics["step"] % 10 == 0 or metrics["step"] == 1:
            print(f"step {metrics['step']}  loss {metrics['loss']:.4f}", flush=True)
    print(f"validation loss after {trainer.evaluate()['loss']:.4f}")
    trainer.save_hf(arguments.output)
    copy_tokenizer(arguments.model, arguments.output)
    print("saved", arguments.output)


if __name__ == "__main__":
    main()
