"""tools/prepare.py against Megatron's own files; a tokenizer of numbers stands for the package."""

import contextlib
import gzip
import io
import json
import os
import struct
import sys
import tempfile
import types
import unittest

from tools import prepare

GOLDENS = "tests/core/data/testdata/"


class NumberTokenizer:
    """Text is numbers: "5 0 7" are the ids 5, 0 and 7."""

    vocab_size = 0

    def get_vocab(self, with_added_tokens):
        return {"a": 0, "</s>": 2, "z": NumberTokenizer.vocab_size - 1}

    def token_to_id(self, token):
        return {"</s>": 2, "<end>": 3}.get(token)

    def encode_batch(self, texts, add_special_tokens):
        assert not add_special_tokens
        return [types.SimpleNamespace(ids=[int(part) for part in text.split()]) for text in texts]


class PrepareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        fake = types.ModuleType("tokenizers")
        fake.Tokenizer = types.SimpleNamespace(from_file=lambda path: NumberTokenizer())
        sys.modules["tokenizers"] = fake
        self.addCleanup(sys.modules.pop, "tokenizers", None)
        self.put("tokenizer.json", "{}")

    def put(self, name, text):
        path = os.path.join(self.folder, name)
        opener = gzip.open if name.endswith(".gz") else open
        with opener(path, "wt", encoding="utf-8") as file:
            file.write(text)
        return path

    def read(self, name):
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()

    def run_main(self, vocab_size, files, *options):
        NumberTokenizer.vocab_size = vocab_size
        arguments = ["--tokenizer", os.path.join(self.folder, "tokenizer.json")]
        arguments += ["--output", os.path.join(self.folder, "out"), *options, *files]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            prepare.main(arguments)

    def golden(self, name):
        with open(GOLDENS + name, "rb") as file:
            return file.read()

    def test_writes_the_bytes_of_megatron(self):
        lines = '{"text": "65498"}\n\n{"text": "1 2 3"}'
        self.run_main(65499, [self.put("a.txt", "5 0 7 0"), self.put("b.jsonl", lines)])
        self.assertEqual(self.read("out.bin"), self.golden("small.bin"))
        self.assertEqual(self.read("out.idx"), self.golden("small.idx"))
        meta = json.loads(self.read("out.meta.json"))
        self.assertEqual((meta["vocab_size"], meta["documents"], meta["tokens"]), (65499, 3, 8))

    def test_large_vocabularies_do_not_wrap(self):
        files = [self.put("a.jsonl.gz", '{"t": "70000 4464"}\n{"t": "119546 0 1"}\n')]
        self.run_main(119547, files, "--key", "t")
        self.assertEqual(self.read("out.bin"), self.golden("large.bin"))
        self.assertEqual(self.read("out.idx"), self.golden("large.idx"))

    def test_ids_beyond_the_type_are_an_error_and_leave_nothing(self):
        with self.assertRaises(OverflowError):
            self.run_main(100, [self.put("a.txt", "70000")])
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.txt", "tokenizer.json"])

    def test_appends_the_end_of_text(self):
        path = self.put("a.txt", "1")
        self.run_main(10, [path], "--append-eos")
        self.assertEqual(self.read("out.bin"), struct.pack("<2H", 1, 2))
        self.run_main(10, [path], "--append-eos", "--eos", "<end>")
        self.assertEqual(self.read("out.bin"), struct.pack("<2H", 1, 3))
        self.put("tokenizer_config.json", '{"eos_token": {"content": "<end>"}}')
        self.run_main(10, [path], "--append-eos")
        self.assertEqual(self.read("out.bin"), struct.pack("<2H", 1, 3))
        with self.assertRaisesRegex(SystemExit, "no token '<none>'"):
            self.run_main(10, [path], "--append-eos", "--eos", "<none>")

    def test_writes_safetensors(self):
        files = [self.put("a.txt", "1 2"), self.put("b.txt", "3")]
        self.run_main(10, files, "--format", "safetensors")
        data = self.read("out.safetensors")
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        self.assertEqual(length % 8, 0)
        self.assertEqual(header["tokens"], {"dtype": "I32", "shape": [3], "data_offsets": [24, 36]})
        self.assertEqual(struct.unpack("<3q3i", data[8 + length :]), (0, 2, 3, 1, 2, 3))
        self.assertFalse([name for name in os.listdir(self.folder) if "tmp" in name])

    def test_bad_lines_are_named(self):
        for line in ('{"body": "1"}', "[1]", "{", '{"text": 3}'):
            path = self.put("a.jsonl", '{"text": "1"}\n' + line)
            with self.assertRaisesRegex(SystemExit, "a.jsonl' line 2"):
                self.run_main(10, [path])

    def test_missing_package_is_explained(self):
        sys.modules["tokenizers"] = None
        with self.assertRaisesRegex(SystemExit, "pip install tokenizers"):
            self.run_main(10, [self.put("a.txt", "1")])


if __name__ == "__main__":
    unittest.main()
