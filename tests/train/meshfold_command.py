"""Runs `meshfold` as a user does, and reads what it writes."""

import json
import os
import struct
import subprocess
import tempfile

import numpy as np

MESHFOLD = os.path.abspath("train/meshfold")

CONFIG = """
model: {hidden_size: 16, num_layers: 2, num_heads: 2, num_kv_heads: 1, max_position: 64}
moe: {num_experts: 4, top_k: 2, expert_size: 8, aux_loss: 0.01}
data: {source: text.txt, sequence_length: 16}
train: {steps: 6, global_batch_size: 4}
runtime: {threads: 1}
"""


class Run:
    """A finished command: status, out, err."""

    def __init__(self, process):
        self.status = process.returncode
        self.out = process.stdout.decode(errors="replace")
        self.err = process.stderr.decode(errors="replace")


class Workplace:
    """A folder with a text and a config, in which commands run."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.write("c.yaml", CONFIG)
        self.write("text.txt", "".join(f"line {i} of a short text.\n" for i in range(24)))

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def start(self, *args, **kwargs):
        kwargs = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **kwargs}
        return subprocess.Popen([MESHFOLD, *args], cwd=self.folder, **kwargs)

    def run(self, *args, **kwargs):
        return Run(
            subprocess.run(
                [MESHFOLD, *args],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=200,
                **kwargs,
            )
        )

    def metrics(self, folder):
        return [json.loads(line) for line in self.read(f"{folder}/metrics.jsonl").splitlines()]


def write_safetensors(path, arrays):
    header, data = {}, b""
    for name, array in arrays.items():
        kind = {"int64": "I64", "int32": "I32", "float32": "F32"}[array.dtype.name]
        ends = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": ends}
        data += array.tobytes()
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    with open(path, "rb") as file:
        content = file.read()
    size = struct.unpack("<Q", content[:8])[0]
    arrays = {}
    for name, info in json.loads(content[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        assert info["dtype"] == "F32", info
        begin, end = info["data_offsets"]
        data = content[8 + size + begin : 8 + size + end]
        arrays[name] = np.frombuffer(data, np.float32).reshape(info["shape"])
    return arrays
