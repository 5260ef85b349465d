"""Writes the golden files of this folder with Hugging Face's safetensors (pip: safetensors, torch).

Run by hand in this folder when a case is added; the tests need only the files.
"""

import torch
from safetensors.torch import save_file

# Every dtype that Meshfold has, in an order that differs from the sorted one.
save_file(
    {
        "z.bytes": torch.tensor([0, 127, 255], dtype=torch.uint8),
        "model.layers.0.weight": torch.tensor([[1.5, -2.0], [0.25, 3.0]], dtype=torch.float32),
        "b.half": torch.tensor([0.5, -65504.0], dtype=torch.float16),
        "a.brain": torch.tensor([[1.0, 2.0, 3.0], [-4.0, 0.5, 1e30]], dtype=torch.bfloat16),
        "ids": torch.tensor([0, -1, 2**40], dtype=torch.int64),
        "steps": torch.tensor(7, dtype=torch.int32),
        "moments": torch.tensor([1e-300, 3.0], dtype=torch.float64),
        "empty": torch.zeros(0, 4),
        'odd "name"\n\u00e9': torch.tensor([9.0]),
    },
    "hf.safetensors",
    metadata={"format": "pt"},
)

# Types that are only read.
save_file(
    {
        "bool": torch.tensor([True, False, True]),
        "i8": torch.tensor([-128, 127], dtype=torch.int8),
        "i16": torch.tensor([-32768, 32767], dtype=torch.int16),
        "u16": torch.tensor([0, 65535], dtype=torch.uint16),
        "u32": torch.tensor([0, 4294967295], dtype=torch.uint32),
        "u64": torch.tensor([1, 2**63 + 5], dtype=torch.uint64),
        "f8": torch.tensor([1.0, 2.0], dtype=torch.float8_e4m3fn),
        "complex": torch.tensor([1 + 2j], dtype=torch.complex64),
    },
    "foreign.safetensors",
)
