"""Runs that are killed, or whose disk is full, and what they leave."""

import os
import resource
import signal
import unittest

from meshfold_command import Workplace

# What must not depend on where a run was cut.
NUMBERS = ["step", "loss", "lm_loss", "aux_loss", "grad_norm", "lr", "tokens", "expert_load"]


def numbers(metrics):
    return [[line[name] for name in NUMBERS] for line in metrics]


class TrainCommandTest(unittest.TestCase):
    def setUp(self):
        self.place = Workplace()

    def train(self, folder, steps, *settings, resume="auto", **kwargs):
        sets = [f"run.dir={folder}", f"train.steps={steps}", "schedule.name=constant", *settings]
        args = [f"--resume={resume}", *(f"--set={s}" for s in sets)]
        return self.place.run("train", "c.yaml", *args, **kwargs)

    def checkpoints(self, folder):
        return sorted(os.listdir(self.place.path(f"{folder}/checkpoints")))

    def test_a_killed_run_goes_on_as_if_nothing_had_happened(self):
        settings = ["train.micro_batch_size=2", "checkpoint.interval=3", "train.log_interval=1"]
        self.assertEqual(self.train("straight", 14, *settings).status, 0)
        sets = ["run.dir=killed", "train.steps=1000000", "schedule.name=constant", *settings]
        process = self.place.start("train", "c.yaml", *(f"--set={s}" for s in sets))
        for line in process.stderr:
            if line.startswith(b"step 8/"):  # beyond the checkpoint at 6
                process.send_signal(signal.SIGKILL)
                break
        process.stderr.close()
        process.wait()
        with open(self.place.path("killed/metrics.jsonl"), "a") as file:
            file.write('{"step": 9, "lo')  # as a kill inside of a write leaves it
        resumed = self.train("killed", 14, *settings)
        self.assertEqual(resumed.status, 0, resumed.err)
        self.assertRegex(resumed.err, "resumed from killed/checkpoints/step_0000[0-9]+ at step")
        self.assertEqual(
            numbers(self.place.metrics("killed")), numbers(self.place.metrics("straight"))
        )

    def test_metrics_hold_each_step_once_whatever_is_resumed(self):
        def steps(folder):
            return [line["step"] for line in self.place.metrics(folder)]

        self.train("run", 4, "checkpoint.interval=2")
        self.train("run", 7)
        self.assertEqual(steps("run"), [1, 2, 3, 4, 5, 6, 7])
        # From an earlier checkpoint: its later steps are of a past that is no more.
        self.assertEqual(self.train("run", 3, resume="run/checkpoints/step_00000002").status, 0)
        self.assertEqual(steps("run"), [1, 2, 3])
        self.assertEqual(self.train("run", 2, resume="none").status, 0)
        self.assertEqual(steps("run"), [1, 2])
        # Into another directory: it holds its own steps only.
        self.assertEqual(self.train("other", 6, resume="run/checkpoints/step_00000004").status, 0)
        self.assertEqual(steps("other"), [5, 6])

    def test_a_full_disk_leaves_the_earlier_checkpoint(self):
        self.assertEqual(self.train("run", 4).status, 0)
        before = self.checkpoints("run")

        def small_files_only():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else the kernel kills
            resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))

        # A checkpoint has about 150 KB.
        full = self.train("run", 8, preexec_fn=small_files_only, restore_signals=False)
        self.assertEqual(full.status, 1)
        last = full.err.splitlines()[-1]
        self.assertRegex(
            last, r"^meshfold: .*cannot write 'run/checkpoints/step_00000008\S*': File too large$"
        )
        self.assertEqual(self.checkpoints("run"), before)
        self.assertEqual(self.place.read("run/checkpoints/latest"), "step_00000004\n")
        again = self.train("run", 8)
        self.assertEqual(again.status, 0, again.err)
        self.assertIn("resumed from run/checkpoints/step_00000004 at step 4", again.err)
        self.train("straight", 8)
        self.assertEqual(
            numbers(self.place.metrics("run")), numbers(self.place.metrics("straight"))
        )

    def test_places_that_cannot_be_written_are_found_before_training(self):
        for setting, path in [
            ("run.dir=c.yaml/run", "c.yaml"),
            ("checkpoint.dir=c.yaml/checkpoints", "c.yaml"),
            ("checkpoint.dir=/proc", "/proc/latest"),
        ]:
            run = self.train("run", 3, setting)
            self.assertEqual(run.status, 1, setting)
            self.assertIn(f"'{path}'", run.err)
            self.assertNotIn("step 1/", run.err)

    def test_ranks_that_would_write_the_same_files_are_refused(self):
        ranks = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
        run = self.place.run("convert", "--to=hf", "x", "y", env={**os.environ, **ranks})
        self.assertEqual(run.status, 1)
        self.assertEqual(
            run.err, "meshfold: 2 ranks were started; meshfold convert runs on one in this version\n"
        )

    def test_a_corpus_without_text_is_an_error(self):
        self.place.write("empty.txt", "")
        run = self.train("run", 3, "data.source=empty.txt")
        self.assertEqual(run.status, 1)
        self.assertIn("'empty.txt' has too little training data", run.err)


if __name__ == "__main__":
    unittest.main()
