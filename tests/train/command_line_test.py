"""Every command as a user types it: help, mistakes, what comes out, and nothing else."""

import json
import os
import pty
import re
import unittest

import numpy as np

from meshfold_command import Workplace, read_safetensors, write_safetensors

COMMANDS = ["train", "eval", "generate", "convert", "plan", "config", "inspect", "doctor"]


class CommandLineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace()
        trained = cls.place.run("train", "c.yaml")
        assert trained.status == 0, trained.err
        cls.train_err, cls.train_out = trained.err, trained.out

    def fails(self, status, sentence, *args):
        """The command ends with `status` and one line on stderr that holds `sentence`."""
        run = self.place.run(*args)
        self.assertEqual(run.status, status, run.err)
        self.assertRegex(run.err, r"\Ameshfold: [^\n]*\n\Z")
        self.assertIn(sentence, run.err)
        self.assertEqual(run.out, "")

    def test_help_of_every_command(self):
        everything = self.place.run("--help")
        self.assertEqual(everything.status, 0)
        for command in COMMANDS:
            self.assertIn(command, everything.out)
            run = self.place.run(command, "--help")
            self.assertEqual((run.status, run.err), (0, ""), command)
            self.assertIn(f"Usage: meshfold {command}", run.out)
            # Each option says what it is for; after a long one that stands in the next line.
            options = re.sub(r"\n {20,}", "  ", run.out.split("Options:")[1])
            for line in options.strip().splitlines():
                self.assertRegex(line, r"^ *-\S+.* {2,}\w", command)

    def test_wrong_command_lines_exit_with_2(self):
        self.fails(2, "give a command: train, eval")
        self.fails(2, "there is no 'trian'; the nearest command is 'train'", "trian", "c.yaml")
        self.fails(2, "config is required (meshfold train --help", "train")
        self.fails(2, "--nonsense", "train", "c.yaml", "--nonsense")
        self.fails(2, "--tokens is required", "eval", "--checkpoint", "runs/c")
        self.fails(2, "many", "generate", "--checkpoint", "runs/c", "--max-new-tokens", "many")

    def test_wrong_configs_exit_with_1(self):
        def train(sentence, *settings):
            self.fails(1, sentence, "train", "c.yaml", *(f"--set={s}" for s in settings))

        train("unknown key 'train.stepz'; the nearest valid key is 'train.steps'", "train.stepz=3")
        train("moe.top_k 9 is outside [1, moe.num_experts = 4]", "moe.top_k=9")
        train("model.hidden_size is -4; it must be at least 1", "model.hidden_size=-4")
        train(
            "num_heads 4 is not a multiple of num_kv_heads 3",
            "model.num_heads=4",
            "model.num_kv_heads=3",
        )
        train("no file matches 'nowhere*.txt'", "data.source=nowhere*.txt")
        train("set data.source", "data.source=")
        train("c.yaml", "run.dir=c.yaml/run")
        self.place.write("bad.yaml", "moe:\n  expert_paralel_size: 4\n")
        self.fails(1, "bad.yaml:2: unknown key 'moe.expert_paralel_size'", "train", "bad.yaml")
        self.fails(1, "'missing.yaml'", "train", "missing.yaml")

    def test_wrong_arguments_exit_with_1(self):
        self.fails(1, "exactly one of --checkpoint DIR and --hf DIR", "generate")
        self.fails(1, "'nowhere'", "generate", "--checkpoint", "nowhere")
        generate = ["generate", "--checkpoint", "runs/c"]
        self.fails(1, "exceed the model's 64", *generate, "--prompt", "x" * 60)
        self.fails(1, "negative", *generate, "--prompt", "x", "--temperature", "-1")
        self.fails(1, "--prompt and --prompt-ids", *generate, "--prompt", "x", "--prompt-ids", "1")
        self.fails(1, "256", *generate, "--prompt-ids", "256", "--max-new-tokens", "1")
        self.fails(1, "'xx'; hf or meshfold", "convert", "--to", "xx", "runs/c", "out")
        self.fails(1, "config.json", "convert", "--to", "meshfold", "runs/c", "out")
        self.fails(1, "'nowhere'", "inspect", "nowhere")
        self.fails(1, "one of --doc, --schema", "config", "--doc", "--schema")
        self.fails(1, "nowhere", "train", "c.yaml", "--resume", "nowhere")

    def test_training_is_quiet_without_a_terminal(self):
        self.assertEqual(self.train_out, "")
        self.assertNotRegex(self.train_err, r"[\r\x1b]")
        steps = [line for line in self.train_err.splitlines() if line.startswith("step ")]
        self.assertEqual([line.split()[1] for line in steps], ["1/6", "6/6"])
        off = self.place.run("train", "c.yaml", "--set=run.dir=off", "--set=monitor.progress=off")
        self.assertNotIn("\nstep ", off.err)

    def test_training_rewrites_one_line_on_a_terminal(self):
        ours, theirs = pty.openpty()
        process = self.place.start("train", "c.yaml", "--set=run.dir=terminal", stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        self.assertEqual(process.wait(), 0)
        self.assertEqual(shown.count(b"\r\x1b[Kstep "), 6)

    def test_a_finished_run_has_nothing_to_do(self):
        run = self.place.run("train", "c.yaml")
        self.assertEqual(run.status, 0)
        self.assertIn("nothing to do: runs/c has all 6 steps", run.err)

    def test_config_prints_what_can_be_read_again(self):
        resolved = self.place.run("config", "--resolve", "c.yaml", "--set", "optimizer.lr=2e-5")
        self.assertIn("  lr: 2e-05\n", resolved.out)
        self.place.write("resolved.yaml", resolved.out)
        again = self.place.run("config", "--resolve", "resolved.yaml")
        self.assertEqual(again.out, resolved.out)
        json.loads(self.place.run("config", "--schema").out)
        self.assertIn("optimizer", self.place.run("config", "--doc").out)

    def test_plan_prints_the_groups(self):
        layout = ["--set", "parallel.tensor=2", "--set", "parallel.expert=4"]
        run = self.place.run("plan", "c.yaml", "--world", "8", *layout)
        self.assertEqual((run.status, run.err), (0, ""))
        self.assertEqual(
            run.out.splitlines(),
            [
                "8 ranks: pp 1 x dp 4 x cp 1 x ulysses 1 x tp 2",
                "experts: pp 1 x edp 2 x ep 4 x etp 1",
                "",
                "group     ranks  groups  members",
                "dp            4       2  {0,2,4,6} {1,3,5,7}",
                "tp            2       4  {0,1} {2,3} {4,5} {6,7}",
                "edp           2       4  {0,4} {1,5} {2,6} {3,7}",
                "ep            4       2  {0,1,2,3} {4,5,6,7}",
            ],
        )
        run = self.place.run("plan", "c.yaml", "--world", "100000", "--set", "parallel.tensor=8")
        self.assertIn("dp        12500       8  {0,8,..,99992} {1,9,..,99993}", run.out)
        self.assertEqual(self.place.run("plan", "c.yaml").out.splitlines()[0][:7], "1 rank:")
        tensor = ["--set", "parallel.tensor=3"]
        self.fails(1, "tensor 3 x pipeline 1", "plan", "c.yaml", "--world", "8", *tensor)
        self.fails(1, "does not make 1 rank", "train", "c.yaml", *tensor)
        self.fails(1, "does not make 1 rank", "generate", "--checkpoint", "runs/c", *tensor)
        self.fails(1, "--world -2", "plan", "c.yaml", "--world", "-2")

    def test_generate_repeats_itself_by_seed(self):
        def text(*args):
            run = self.place.run("generate", "--checkpoint", "runs/c", *args)
            self.assertEqual((run.status, run.err), (0, ""))
            return run.out

        sample = ["--prompt", "line", "--max-new-tokens", "12", "--temperature", "1"]
        self.assertTrue(text(*sample).startswith("line"))
        self.assertEqual(text(*sample, "--seed", "3"), text(*sample, "--seed", "3"))
        self.assertNotEqual(text(*sample, "--seed", "3"), text(*sample, "--seed", "4"))
        ids = text("--prompt-ids", "1,2", "--max-new-tokens", "5").split()
        self.assertEqual(len(ids), 5)

    def test_generate_stops_at_an_end_of_the_model(self):
        export = ["convert", "--to", "hf", "runs/c", "hf"]
        self.assertEqual(self.place.run(*export).status, 0)
        command = ["generate", "--hf", "hf", "--prompt-ids", "1,2", "--max-new-tokens", "5"]
        ids = self.place.run(*command).out.split()
        self.assertEqual(len(ids), 5)
        path = self.place.path("hf/config.json")
        with open(path) as file:
            config = json.load(file)
        config["eos_token_id"] = [250, int(ids[2])]
        with open(path, "w") as file:
            json.dump(config, file)
        self.assertEqual(self.place.run(*command).out.split(), ids[: ids.index(ids[2]) + 1])

    def test_eval_writes_loss_logits_and_gradients(self):
        ids = np.random.default_rng(0).integers(0, 256, (2, 9))
        write_safetensors(self.place.path("tokens.safetensors"), {"input_ids": ids})
        evaluate = ["eval", "--checkpoint", "runs/c", "--tokens", "tokens.safetensors"]
        run = self.place.run(*evaluate, "--out", "out.safetensors")
        self.assertEqual((run.status, run.err), (0, ""))
        line = json.loads(run.out)
        self.assertEqual(set(line), {"loss", "tokens"})
        self.assertEqual(line["tokens"], 16)
        out = read_safetensors(self.place.path("out.safetensors"))
        logits = out["logits"][:, :-1].astype(np.float64)
        peak = logits.max(-1, keepdims=True)
        log_sum = np.log(np.exp(logits - peak).sum(-1)) + peak[..., 0]
        right = np.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
        self.assertAlmostEqual(line["loss"], (log_sum - right).mean(), places=5)
        self.assertAlmostEqual(line["loss"], out["loss"][0], places=6)
        self.assertEqual(out["grad.model.layers.1.mlp.experts.3.up_proj.weight"].shape, (8, 16))
        # The checkpoint was trained with an auxiliary loss; it counts when it is asked for.
        more = json.loads(self.place.run(*evaluate, "--set", "moe.aux_loss=1").out)
        self.assertGreater(more["loss"], line["loss"] + 1)

    def test_eval_refuses_what_is_no_batch(self):
        def refuses(sentence, **arrays):
            write_safetensors(self.place.path("bad.safetensors"), arrays)
            tokens = ["--tokens", "bad.safetensors"]
            self.fails(1, sentence, "eval", "--checkpoint", "runs/c", *tokens)

        refuses("holds id 256 at row 0, column 2", input_ids=np.array([[1, 2, 256]]))
        refuses("input_ids", tokens=np.array([[1, 2]]))
        refuses("labels", input_ids=np.array([[1, 2]]), labels=np.array([[1]]))
        refuses("64", input_ids=np.zeros((1, 65), np.int64))

    def test_convert_there_and_back_keeps_the_loss(self):
        ids = np.random.default_rng(1).integers(0, 256, (1, 12))
        write_safetensors(self.place.path("ids.safetensors"), {"input_ids": ids})

        def loss(*source):
            run = self.place.run("eval", *source, "--tokens", "ids.safetensors")
            self.assertEqual(run.status, 0, run.err)
            return json.loads(run.out)["loss"]

        hf = self.place.run("convert", "--to", "hf", "runs/c", "hf")
        self.assertEqual((hf.status, hf.out, hf.err), (0, "wrote hf\n", ""))
        self.assertEqual(self.place.run("convert", "--to", "meshfold", "hf", "back").status, 0)
        expected = loss("--checkpoint", "runs/c")
        self.assertEqual(loss("--hf", "hf"), expected)
        self.assertEqual(loss("--checkpoint", "back"), expected)
        # And training starts from it.
        run = self.place.run("train", "c.yaml", "--resume", "back", "--set", "run.dir=second")
        self.assertEqual(run.status, 0, run.err)
        start = "starting at step 0 from the weights of back/step_00000000, with a fresh optimizer"
        self.assertIn(start, run.err)
        self.assertIn(start, self.place.read("second/log.txt"))
        self.assertEqual([m["step"] for m in self.place.metrics("second")], [1, 2, 3, 4, 5, 6])

    def test_inspect_lists_tensors(self):
        run = self.place.run("inspect", "runs/c")
        self.assertEqual((run.status, run.err), (0, ""))
        self.assertIn("step 6", run.out)
        self.assertRegex(run.out, r"model/layers\.1\.\S+ +f32 +\[")

    def test_doctor_reports_the_machine(self):
        run = self.place.run("doctor")
        self.assertEqual((run.status, run.err), (0, ""))
        self.assertRegex(run.out, r"GEMM, 1 thread +[0-9.]+ GFLOP/s")


if __name__ == "__main__":
    unittest.main()
