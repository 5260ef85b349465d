// The vector loops of attention over one block of scores; the products around them are
// matrix_kernel.h's.
#pragma once

#include <cstdint>

namespace meshfold::cpu {

// Scores of a block of keys (rows) against a tile of queries (columns, whole vectors). Column c
// stands at position p + c and row j at key k + j, `key_minus_position` being k - p: a score counts
// when 0 <= p + c - k - j < window (window 0: no upper bound).
struct SoftmaxBlock {
  const float* scores = nullptr;  // q . k
  int64_t pitch = 0;
  // Out: e^(scale q . k - max), 0 where a score does not count, as PackLeft lays out a matrix of
  // `columns` rows and `keys` columns.
  float* weights = nullptr;
  int64_t keys = 0;
  int64_t columns = 0;
  int64_t key_minus_position = 0;
  int64_t window = 0;
  float scale = 1;
  // Running statistics of each column over the blocks so far, updated (Milakov and Gimelshein
  // 2018): max starts at -infinity, sum at 0. Sums of earlier blocks are to be multiplied by
  // `rescale`.
  float* max = nullptr;
  float* sum = nullptr;
  float* rescale = nullptr;
};

// A column's bits depend on the scores that count alone.
void SoftmaxOfColumns(const SoftmaxBlock& block);

// One query's scores against a block of keys, of which [begin, end) count.
struct SoftmaxGradientRow {
  float* scores = nullptr;     // in: q . k; out: p = e^(scale q . k - lse)
  float* gradients = nullptr;  // in: dout . v; out: scale p (dout . v - delta)
  int64_t begin = 0, end = 0;
  int64_t keys = 0;  // outputs are 0 in the rest of [0, keys)
  float scale = 1, lse = 0, delta = 0;
};

void SoftmaxGradientOfRow(const SoftmaxGradientRow& row);

// sum of a[i] b[i].
float Dot(const float* a, const float* b, int64_t n);

}  // namespace meshfold::cpu
