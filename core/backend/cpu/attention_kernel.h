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

// The end of a tile: row i of `out` is row i of `sums` / sum[i], and lse[i] = max[i] + ln sum[i].
struct NormalizedRows {
  const float* sums = nullptr;
  int64_t sums_pitch = 0;
  const float* max = nullptr;
  const float* sum = nullptr;
  int64_t count = 0, dim = 0;
  float* out = nullptr;
  int64_t out_pitch = 0;
  float* lse = nullptr;
  int64_t lse_pitch = 0;
};

void NormalizeRows(const NormalizedRows& rows);

// Multiplies row i of `x` by factors[i], `count` rows of `dim` elements.
void ScaleRows(const float* factors, float* x, int64_t pitch, int64_t count, int64_t dim);

// Queries' scores against a block of keys. Row r stands at position r + first_position, counted
// from the block's first key, and sees the keys c with 0 <= r + first_position - c < window
// (window 0: no upper bound).
struct SoftmaxGradientBlock {
  float* scores = nullptr;     // in: q . k; out: p = e^(scale q . k - lse)
  float* gradients = nullptr;  // in: dout . v; out: scale p (dout . v - delta)
  int64_t pitch = 0;           // of both
  int64_t rows = 0, keys = 0;  // outputs are 0 where a row does not see one of `keys` keys
  int64_t first_position = 0;
  int64_t window = 0;
  float scale = 1;
  const float* lse = nullptr;
  int64_t lse_pitch = 0;
  const float* delta = nullptr;
};

void SoftmaxGradientOfBlock(const SoftmaxGradientBlock& block);

// out[i] = the sum over j < dim of a[i a_pitch + j] b[i b_pitch + j], for `count` rows.
void DotRows(const float* a, int64_t a_pitch, const float* b, int64_t b_pitch, int64_t count,
             int64_t dim, float* out);

}  // namespace meshfold::cpu
