"""`mpirun -n N meshfold train`: the same numbers, files written once, and failures that end all."""

import os
import unittest

import numpy as np
from meshfold_command import Workplace, write_safetensors
from mpi_ranks import run_on

class ManyRanksTest(unittest.TestCase):
    def setUp(self):
        self.place = Workplace()

    def train_on(self, ranks, *args):
        return run_on(ranks, self.place, "train", "c.yaml", *args)

    def test_two_ranks_report_what_one_does(self):
        alone = self.place.run("train", "c.yaml", "--set=run.dir=one")
        self.assertEqual(alone.status, 0, alone.err)
        both = self.train_on(2, "--set=run.dir=two")
        self.assertEqual(both.status, 0, both.err)
        for one, two in zip(self.place.metrics("one"), self.place.metrics("two"), strict=True):
            self.assertEqual(one["step"], two["step"])
            self.assertEqual(one["tokens"], two["tokens"])
            # Adam turns the rounding of small gradients into whole steps, so not 1e-5 to the end.
            tolerance = 1e-5 if one["step"] <= 2 else 1e-3
            for name in ["loss", "aux_loss", "grad_norm"]:
                self.assertLessEqual(abs(one[name] - two[name]), tolerance * one[name], name)
        self.assertIn("2 ranks, 2 on this machine: pp 1 x dp 2", both.err)
        self.assertEqual(both.err.count("saved two/checkpoints/step_00000006"), 1)
        self.assertEqual(os.listdir(self.place.path("two/checkpoints")).count("step_00000006"), 1)
        # What two ranks saved, one resumes, and the other way round.
        more = self.place.run("train", "c.yaml", "--set=run.dir=two", "--set=train.steps=8")
        self.assertEqual(more.status, 0, more.err)
        self.assertIn("resumed from two/checkpoints/step_00000006 at step 6", more.err)
        more = self.train_on(4, "--set=run.dir=two", "--set=train.steps=10")
        self.assertEqual(more.status, 0, more.err)
        self.assertEqual([line["step"] for line in self.place.metrics("two")], list(range(1, 11)))

    def test_a_failing_rank_ends_all_with_one_sentence(self):
        tokens = np.ones(100, np.int32)
        tokens[55] = 99  # in the fourth sequence of 16: the second rank's
        borders = np.array([0, 100], np.int64)
        write_safetensors(self.place.path("t.safetensors"), {"tokens": tokens, "cu_seqlens": borders})
        sets = ["data.source=t.safetensors", "data.shuffle=false", "model.vocab_size=64"]
        run = self.train_on(2, *(f"--set={s}" for s in sets))
        self.assertNotEqual(run.status, 0)
        self.assertEqual(run.err.count("id 99 out of range"), 1, run.err)
        self.assertIn("meshfold: rank 1: ", run.err)

    def test_a_layout_that_does_not_fit_names_both_numbers(self):
        run = self.train_on(2, "--set=parallel.data=4")
        self.assertNotEqual(run.status, 0)
        self.assertIn("data 4 x tensor 1", run.err)
        self.assertIn("does not make 2 ranks", run.err)


if __name__ == "__main__":
    unittest.main()
