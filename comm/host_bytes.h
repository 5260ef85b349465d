// Bytes of contiguous host tensors: what the transports copy and send.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/tensor/tensor.h"

namespace meshfold::comm {

inline char* Bytes(const Tensor& tensor) { return static_cast<char*>(tensor.raw()); }

// Of one entry of dim 0.
inline int64_t RowBytes(const Tensor& tensor) {
  int64_t bytes = SizeOf(tensor.dtype());
  for (int64_t extent : tensor.shape().dims().subspan(1)) bytes *= extent;
  return bytes;
}

// Nothing when both are the same place.
inline void CopyBytes(const void* from, void* to, int64_t bytes) {
  if (bytes > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace meshfold::comm
