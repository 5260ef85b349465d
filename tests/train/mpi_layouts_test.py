"""`mpirun -n N meshfold eval --out`: under a dozen layouts the loss, logits and every gradient of one
process, for a Hugging Face directory; `generate` the same text."""

import json
import unittest

import numpy as np
from meshfold_command import Workplace, read_safetensors, write_safetensors
from mpi_ranks import run_on

MODEL = ["model.num_heads=4", "model.num_kv_heads=2", "model.family=qwen3_moe"]
SEQUENCE = ["tensor=2", "sequence=true"]
LAYOUTS = [
    (2, []),
    (2, ["tensor=2"]),
    (2, SEQUENCE),
    (2, ["expert=2"]),
    (2, ["expert_tensor=2"]),
    (4, []),  # one rank has no row
    (4, ["tensor=4"]),
    (4, ["tensor=2", "expert=2"]),
    (4, [*SEQUENCE, "expert=4"]),
    (4, ["expert=2", "expert_tensor=2"]),
    (4, [*SEQUENCE, "expert=2", "expert_tensor=2"]),
    (8, [*SEQUENCE, "expert=4", "expert_tensor=2"]),
]


class MpiLayoutsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace()
        sets = [f"--set={s}" for s in [*MODEL, "train.steps=3", "optimizer.lr=0.02"]]
        run = cls.place.run("train", "c.yaml", "--set=run.dir=run", *sets)
        assert run.status == 0, run.err
        run = cls.place.run("convert", "--to", "hf", "run/checkpoints/step_00000003", "hf")
        assert run.status == 0, run.err
        rng = np.random.default_rng(5)
        ids = rng.integers(0, 256, (3, 13))
        labels = np.where(rng.random(ids.shape) < 0.2, -100, ids)
        write_safetensors(cls.place.path("t.safetensors"), {"input_ids": ids, "labels": labels})

    def evaluate(self, ranks, layout):
        command = ["eval", "--hf=hf", "--tokens=t.safetensors", "--out=out.safetensors"]
        command += [f"--set=parallel.{s}" for s in layout] + ["--set=runtime.threads=1"]
        run = run_on(ranks, self.place, *command) if ranks > 1 else self.place.run(*command)
        self.assertEqual(run.status, 0, run.err)
        return json.loads(run.out), read_safetensors(self.place.path("out.safetensors"))

    def test_layouts_do_not_change_loss_logits_or_gradients(self):
        line, whole = self.evaluate(1, [])
        self.assertGreater(len(whole), 20)
        for ranks, layout in LAYOUTS:
            with self.subTest(ranks=ranks, layout=layout):
                other_line, other = self.evaluate(ranks, layout)
                self.assertEqual(other_line["tokens"], line["tokens"])
                self.assertAlmostEqual(other_line["loss"], line["loss"], delta=1e-5 * line["loss"])
                self.assertEqual(other.keys(), whole.keys())
                for name, array in whole.items():
                    self.assertEqual(other[name].shape, array.shape, name)
                    difference = np.linalg.norm(other[name].astype(np.float64) - array)
                    self.assertLessEqual(difference, 1e-5 * np.linalg.norm(array), name)

    def test_ranks_generate_what_one_process_does(self):
        command = ["generate", "--hf=hf", "--prompt=line 1", "--max-new-tokens=12"]
        alone = self.place.run(*command)
        self.assertEqual(alone.status, 0, alone.err)
        for ranks, layout in [(2, ["tensor=2"]), (2, SEQUENCE), (4, ["tensor=2", "expert=2"])]:
            run = run_on(ranks, self.place, *command, *(f"--set=parallel.{s}" for s in layout))
            self.assertEqual(run.status, 0, run.err)
            self.assertEqual(run.out, alone.out)

    def test_verify_compares_the_ranks_with_one_process(self):
        sets = [f"--set={s}" for s in [*MODEL, "parallel.tensor=2", "parallel.expert=2"]]
        run = run_on(4, self.place, "verify", "c.yaml", *sets)
        self.assertEqual(run.status, 0, run.err)
        self.assertIn("4 ranks (pp 1 x dp 2 x cp 1 x ulysses 1 x tp 2, experts", run.out)
        self.assertEqual(run.out.splitlines()[-1], "equal")

    def test_a_layout_that_the_model_does_not_allow_names_both_numbers(self):
        command = ["eval", "--hf=hf", "--tokens=t.safetensors", "--set=parallel.tensor=3"]
        run = run_on(3, self.place, *command)
        self.assertNotEqual(run.status, 0)
        self.assertIn("parallel.tensor 3 does not divide the model's 4 attention heads", run.err)


if __name__ == "__main__":
    unittest.main()
