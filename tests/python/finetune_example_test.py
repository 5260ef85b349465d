"""examples/finetune_hf.py as a user runs it: the loss falls, and the directory it writes loads."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import meshfold as mf

MODEL = "tests/goldens/hf/mixtral_gqa/hf"
VOCAB_SIZE = 31


class FinetuneExampleTest(unittest.TestCase):
    def test_loss_falls_and_the_result_loads(self):
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        tokens = os.path.join(folder, "tokens.npy")
        np.save(tokens, (np.arange(4000) * 7 % VOCAB_SIZE).astype(np.int32))
        output = os.path.join(folder, "out")
        command = [sys.executable, "examples/finetune_hf.py", "--model", MODEL, "--data", tokens]
        command += ["--output", output, "--steps", "20", "--batch-size", "4"]
        command += ["--sequence-length", "32", "--set", "optimizer.lr=1e-2"]
        command += ["--set", "runtime.threads=1"]
        result = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        before, after = map(float, re.findall(r"validation loss \w+ ([\d.]+)", result.stdout))
        self.assertLess(after, 0.5 * before)

        tuned = mf.Trainer(
            mf.Config.parse(
                "data: {validation_fraction: 0.1, validation_by: block, sequence_length: 32}",
                [f"model.hf={output}", f"data.source={tokens}", "runtime.threads=1"],
            )
        )
        self.assertAlmostEqual(tuned.evaluate()["loss"], after, places=3)


if __name__ == "__main__":
    unittest.main()
