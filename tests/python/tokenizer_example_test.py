"""prepare.py and examples/train_from_tokenizer.py with the real 'tokenizers' package."""

import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import tokenizers

import meshfold as mf

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the quick dog\n" * 200


class TokenizerExampleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("a.txt", "b.txt"):
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(TEXT)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def run_script(self, *command):
        result = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def train(self):
        return self.run_script(
            *["examples/train_from_tokenizer.py", "--text", self.path("*.txt")],
            *["--tokenizer", self.path("tokenizer.json"), "--output", self.path("run")],
            *["--vocab-size", "300", "--steps", "20", "--batch-size", "2"],
            *["--sequence-length", "32"],
        )

    def test_learns_tokens_and_trains(self):
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", self.train())]
        self.assertLess(losses[-1], 0.6 * losses[0])
        self.assertTrue(os.path.exists(self.path("tokenizer.json")))
        self.assertEqual(len(glob.glob(self.path("run", "checkpoints", "step_*"))), 1)

    def test_prepared_files_hold_the_tokenizers_ids(self):
        self.train()
        tokenizer = tokenizers.Tokenizer.from_file(self.path("tokenizer.json"))
        self.run_script(
            *["tools/prepare.py", "--tokenizer", self.path("tokenizer.json")],
            *["--output", self.path("corpus"), "--append-eos", self.path("a.txt")],
        )
        expected = [*tokenizer.encode(TEXT).ids, tokenizer.token_to_id("<|endoftext|>")]
        ids = np.fromfile(self.path("corpus.bin"), dtype=np.uint16)
        np.testing.assert_array_equal(ids, expected)

        overrides = [f"data.source={self.path('corpus')}", f"run.dir={self.path('own')}"]
        config = """
model: {hidden_size: 32, num_layers: 1, num_heads: 2, num_kv_heads: 1}
moe: {num_experts: 2, top_k: 1, expert_size: 16}
data: {sequence_length: 32}
"""
        trainer = mf.Trainer(mf.Config.parse(config, overrides))
        self.assertGreater(trainer.step()["loss"], 0)
        self.assertEqual(len(trainer.state_dict()["embedding.weight"]), 300)


if __name__ == "__main__":
    unittest.main()
