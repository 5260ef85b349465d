#!/usr/bin/env python3
"""Turns text into token files that Meshfold trains on.

    tools/prepare.py --tokenizer tokenizer.json --output data/corpus --append-eos *.txt *.jsonl.gz

reads files of text (one document a file) and of JSON lines (one document a line, names that end in
.jsonl or .json), plain or as .gz, and writes

    data/corpus.bin, data/corpus.idx   Megatron's format (--format indexed, the default), or
    data/corpus.safetensors            "tokens" I32 [T] and "cu_seqlens" I64 [documents + 1]
    data/corpus.meta.json              vocabulary size, end-of-text id, counts

Needs `pip install tokenizers`. Files appear under their names when they are whole.
"""

import argparse
import array
import gzip
import json
import os
import struct
import sys
import time

# Megatron stores smaller vocabularies in 16 bits.
SMALL_VOCAB = 65500
BATCH_DOCUMENTS = 512
EOS_CANDIDATES = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[EOS]"]


def load_tokenizer(path):
    try:
        import tokenizers
    except ImportError:
        sys.exit("prepare.py needs the package 'tokenizers': pip install tokenizers")
    if not os.path.isfile(path):
        sys.exit(f"prepare.py: no tokenizer file '{path}' (a tokenizer.json is wanted)")
    return tokenizers.Tokenizer.from_file(path)


def vocab_size_of(tokenizer):
    """One more than the largest id: vocabularies may have gaps."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def find_eos(tokenizer, tokenizer_path, name):
    """The end-of-text token: the one given, or of tokenizer_config.json, or a usual one."""
    if name is not None:
        if tokenizer.token_to_id(name) is None:
            sys.exit(f"prepare.py: the tokenizer has no token '{name}' (--eos)")
        return name
    config = os.path.join(os.path.dirname(tokenizer_path), "tokenizer_config.json")
    candidates = list(EOS_CANDIDATES)
    if os.path.isfile(config):
        with open(config, encoding="utf-8") as file:
            eos = json.load(file).get("eos_token")
        if isinstance(eos, dict):
            eos = eos.get("content")
        if eos:
            candidates.insert(0, eos)
    for candidate in candidates:
        if tokenizer.token_to_id(candidate) is not None:
            return candidate
    sys.exit("prepare.py: cannot tell the end-of-text token of the tokenizer; name it with --eos")


def open_text(path):
    if path.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8")
    return open(path, encoding="utf-8")


def documents_of(path, key):
    """The texts of one file."""
    name = path[:-3] if path.endswith(".gz") else path
    with open_text(path) as file:
        if not name.endswith((".jsonl", ".json")):
            yield file.read()
            return
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[key]
            except (ValueError, TypeError, KeyError) as error:
                sys.exit(f"prepare.py: '{path}' line {number}: no text under '{key}': {error!r}")
            if not isinstance(text, str):
                sys.exit(f"prepare.py: '{path}' line {number}: '{key}' is not a string")
            yield text


def batches(items, size):
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


class Progress:
    """One line on stderr, rewritten twice a second on a terminal."""

    def __init__(self):
        self.start = self.last = time.monotonic()
        self.documents = self.tokens = 0

    def line(self):
        seconds = max(time.monotonic() - self.start, 1e-9)
        return (
            f"{self.documents:,} documents, {self.tokens:,} tokens, "
            f"{self.tokens / seconds:,.0f} tokens/s"
        )

    def add(self, tokens):
        self.documents += 1
        self.tokens += tokens
        if sys.stderr.isatty() and time.monotonic() - self.last > 0.5:
            self.last = time.monotonic()
            print("\r" + self.line(), end="", file=sys.stderr, flush=True)

    def finish(self):
        print(("\r" if sys.stderr.isatty() else "") + self.line(), file=sys.stderr)


class DurableFile:
    """A file that appears under its name when it is whole and on disk."""

    def __init__(self, path):
        self.path = path
        self.temporary = f"{path}.tmp{os.getpid()}"
        self.file = open(self.temporary, "w+b")

    def close(self):
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.temporary, self.path)

    def discard(self):
        self.file.close()
        if os.path.exists(self.temporary):
            os.remove(self.temporary)


def little_endian(code, values):
    data = array.array(code, values)
    if sys.byteorder == "big":
        data.byteswap()
    return data.tobytes()


class IndexedWriter:
    """PREFIX.bin and PREFIX.idx, byte for byte as Megatron writes them."""

    def __init__(self, prefix, vocab_size):
        self.prefix = prefix
        small = vocab_size < SMALL_VOCAB
        self.code, self.size, self.type_code = ("H", 2, 8) if small else ("i", 4, 4)
        self.bin = DurableFile(prefix + ".bin")
        self.lengths = []

    def add(self, ids):
        self.bin.file.write(little_endian(self.code, ids))
        self.lengths.append(len(ids))

    def close(self):
        offsets, at = [], 0
        for length in self.lengths:
            offsets.append(at)
            at += length * self.size
        count = len(self.lengths)
        # No old .idx may stand beside a new .bin.
        if os.path.exists(self.prefix + ".idx"):
            os.remove(self.prefix + ".idx")
        self.bin.close()
        idx = DurableFile(self.prefix + ".idx")
        idx.file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, self.type_code, count, count + 1))
        idx.file.write(little_endian("i", self.lengths))
        idx.file.write(little_endian("q", offsets))
        idx.file.write(little_endian("q", range(count + 1)))
        idx.close()
        return [self.prefix + ".bin", self.prefix + ".idx"]

    def discard(self):
        self.bin.discard()


class SafetensorsWriter:
    """PREFIX.safetensors; the tokens wait in a file beside it: the header needs their number."""

    def __init__(self, prefix, vocab_size):
        self.path = prefix + ".safetensors"
        self.tokens = DurableFile(self.path + ".tokens")
        self.borders = [0]

    def add(self, ids):
        self.tokens.file.write(little_endian("i", ids))
        self.borders.append(self.borders[-1] + len(ids))

    def close(self):
        split, total = 8 * len(self.borders), self.borders[-1]
        end, count = split + 4 * total, len(self.borders)
        header = {
            "cu_seqlens": {"dtype": "I64", "shape": [count], "data_offsets": [0, split]},
            "tokens": {"dtype": "I32", "shape": [total], "data_offsets": [split, end]},
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        out = DurableFile(self.path)
        out.file.write(struct.pack("<Q", len(text)) + text + little_endian("q", self.borders))
        self.tokens.file.seek(0)
        while chunk := self.tokens.file.read(1 << 20):
            out.file.write(chunk)
        out.close()
        self.tokens.discard()
        return [self.path]

    def discard(self):
        self.tokens.discard()


def prepare(arguments):
    tokenizer = load_tokenizer(arguments.tokenizer)
    vocab_size = vocab_size_of(tokenizer)
    eos = find_eos(tokenizer, arguments.tokenizer, arguments.eos) if arguments.append_eos else None
    eos_id = None if eos is None else tokenizer.token_to_id(eos)
    os.makedirs(os.path.dirname(arguments.output) or ".", exist_ok=True)
    writer_class = IndexedWriter if arguments.format == "indexed" else SafetensorsWriter
    writer = writer_class(arguments.output, vocab_size)
    progress = Progress()
    try:
        texts = (text for path in arguments.files for text in documents_of(path, arguments.key))
        for batch in batches(texts, BATCH_DOCUMENTS):
            for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
                ids = list(encoding.ids)
                if eos_id is not None:
                    ids.append(eos_id)
                if ids:
                    writer.add(ids)
                    progress.add(len(ids))
        written = writer.close()
    except BaseException:
        writer.discard()
        raise
    progress.finish()
    meta = {
        "vocab_size": vocab_size,
        "eos_token": eos,
        "eos_id": eos_id,
        "documents": progress.documents,
        "tokens": progress.tokens,
        "format": arguments.format,
        "tokenizer": os.path.basename(arguments.tokenizer),
    }
    file = DurableFile(arguments.output + ".meta.json")
    file.file.write((json.dumps(meta, indent=2) + "\n").encode())
    file.close()
    return written + [file.path]


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="text or JSON lines, plain or .gz")
    parser.add_argument("--tokenizer", required=True, help="Hugging Face tokenizer.json")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="path without suffix")
    parser.add_argument("--format", choices=["indexed", "safetensors"], default="indexed")
    parser.add_argument("--append-eos", action="store_true", help="end each document with a token")
    parser.add_argument("--eos", metavar="TOKEN", help="that token, where it cannot be guessed")
    parser.add_argument("--key", default="text", help="field of a JSON line (default: text)")
    for path in prepare(parser.parse_args(argv)):
        print(path)


if __name__ == "__main__":
    main()
