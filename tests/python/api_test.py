"""The Python package as a user drives it: config, steps, weights, own batches, errors."""

import gc
import os
import tempfile
import unittest

import numpy as np

import meshfold as mf

CONFIG = """
model: {vocab_size: 64, hidden_size: 32, num_layers: 2, num_heads: 2, num_kv_heads: 1}
moe: {num_experts: 4, top_k: 2, expert_size: 16}
optimizer: {lr: 1e-2}
train: {steps: 20}
runtime: {threads: 1}
"""


def batch(seed=0):
    return {"input_ids": np.random.default_rng(seed).integers(0, 64, (2, 16))}


def trainer(*overrides):
    directory = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
    return mf.Trainer(mf.Config.parse(CONFIG, [f"run.dir={directory}", *overrides]))


class ApiTest(unittest.TestCase):
    def test_own_batches_train_from_any_iterable(self):
        run = trainer()
        losses = [run.step(batch())["loss"] for _ in range(20)]
        self.assertLess(losses[-1], 0.5 * losses[0])
        self.assertEqual(run.current_step, 20)

    def test_micro_batches_sum_to_the_whole_batch(self):
        whole, parts = trainer(), trainer()
        rows = batch()["input_ids"]
        a = whole.step({"input_ids": rows})
        b = parts.step([{"input_ids": rows[:1]}, {"input_ids": rows[1:]}])
        self.assertAlmostEqual(a["lm_loss"], b["lm_loss"], places=5)
        self.assertAlmostEqual(a["grad_norm"], b["grad_norm"], places=4)

    def test_arrays_share_memory_with_the_weights(self):
        state = trainer().state_dict()
        weight = state["embedding.weight"].numpy()
        self.assertEqual(weight.shape, (64, 32))
        again = np.from_dlpack(state["embedding.weight"])
        weight[0, 0] = 123.0
        self.assertEqual(again[0, 0], 123.0)

    def test_arrays_outlive_the_trainer(self):
        run = trainer()
        state = run.state_dict()
        weight = state["embedding.weight"].numpy()
        expected = weight.copy()
        del run, state
        gc.collect()
        np.testing.assert_array_equal(weight, expected)

    def test_state_dict_round_trip_gives_equal_losses(self):
        first, second = trainer("run.seed=1"), trainer("run.seed=2")
        second.load_state_dict({k: np.array(v) for k, v in first.state_dict().items()})
        self.assertEqual(first.step(batch())["loss"], second.step(batch())["loss"])

    def test_checkpoint_resumes_bit_for_bit(self):
        run = trainer()
        run.step(batch(0))
        path = run.save()
        expected = [run.step(batch(i))["loss"] for i in (1, 2)]
        resumed = trainer()
        resumed.load(path)
        self.assertEqual(resumed.current_step, 1)
        self.assertEqual([resumed.step(batch(i))["loss"] for i in (1, 2)], expected)

    def test_errors_are_value_errors_with_the_place(self):
        with self.assertRaisesRegex(ValueError, "optimizer.lrr"):
            mf.Config.parse("optimizer: {lrr: 1}")
        run = trainer()
        with self.assertRaisesRegex(ValueError, "999 out of range"):
            run.step({"input_ids": np.full((1, 4), 999)})
        with self.assertRaisesRegex(ValueError, "missing"):
            run.load_state_dict({})
        with self.assertRaisesRegex(RuntimeError, "data"):
            run.step()


if __name__ == "__main__":
    unittest.main()
