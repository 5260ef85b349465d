"""Writes the golden files of this folder with Megatron-Core and NumPy (pip: megatron-core, torch).

Run by hand in this folder when a case is added; the tests need only the files.
"""

import json

import numpy
import torch
from megatron.core.datasets import helpers_cpp
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder


def write_documents(prefix, documents, vocab_size):
    """One sequence a document."""
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=DType.optimal_dtype(vocab_size))
    for document in documents:
        builder.add_document(torch.tensor(document, dtype=torch.int64), [len(document)])
    builder.finalize(prefix + ".idx")


write_documents("small", [[5, 0, 7, 0], [65498], [1, 2, 3]], 65499)
write_documents("large", [[70000, 4464], [119546, 0, 1]], 119547)

# Documents of several sequences: [1, 2], [3] and [4, 5, 6].
builder = IndexedDatasetBuilder("sequences.bin", dtype=numpy.int32)
builder.add_document(torch.tensor([1, 2, 3]), [2, 1])
builder.add_document(torch.tensor([4, 5, 6]), [3])
builder.finalize("sequences.idx")

blends = []
for weights in ([1.0], [0.5, 0.5], [0.7, 0.2, 0.1], [3, 3, 4], [0.05, 0.95]):
    size = 60
    datasets = numpy.zeros(size, dtype=numpy.int16)
    samples = numpy.zeros(size, dtype=numpy.int64)
    shares = numpy.array(weights) / numpy.sum(weights)
    helpers_cpp.build_blending_indices(datasets, samples, shares, len(shares), size, False)
    blends.append(
        {"weights": weights, "datasets": datasets.tolist(), "samples": samples.tolist()}
    )
with open("blends.json", "w") as file:
    json.dump(blends, file)
    file.write("\n")

numpy.save("u16.npy", numpy.array([[1, 2, 65535], [4, 5, 6]], dtype=numpy.uint16))
numpy.save("i64.npy", numpy.array([7, 70000, 0], dtype=numpy.int64))
