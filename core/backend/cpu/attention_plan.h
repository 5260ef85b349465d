// What the forward and the backward of attention share: which work an item is, and its scratch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/backend/backend.h"
#include "core/backend/cpu/matrix_kernel.h"

namespace meshfold::cpu {

// One document of a packed batch. Query i stands at key position offset() + i.
struct AttentionDocument {
  int64_t first_query = 0, queries = 0;
  int64_t first_key = 0, keys = 0;
  int64_t offset() const { return keys - queries; }
};

// The documents that have queries.
std::vector<AttentionDocument> DocumentsOf(const AttentionArgs& args);

// Head `head` of rows [first, first + ...) of q, k, v or a like tensor, as a matrix operand.
inline MatrixOperand HeadRows(const Tensor& x, int64_t first, int64_t head, int64_t head_dim,
                              bool transpose = false) {
  return {x.row<float>(first) + head * head_dim, x.pitch(), transpose};
}

// Hands out parts of one block of scratch: first all sizes are asked for, then the block is made.
class ScratchLayout {
 public:
  // The offset of `floats` floats, aligned to 64 bytes.
  int64_t Add(int64_t floats) {
    const int64_t at = size_;
    size_ += (floats + 15) / 16 * 16;
    return at;
  }
  int64_t size() const { return size_; }

 private:
  int64_t size_ = 0;
};

}  // namespace meshfold::cpu
