// Keys and values of the positions seen so far, for generation of one sequence.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"

namespace meshfold {

class KvCache {
 public:
  // Room for `capacity` positions in each of `num_layers` layers; tensors are made on first use.
  KvCache(int64_t num_layers, int64_t capacity)
      : layers_(static_cast<size_t>(num_layers)), capacity_(capacity) {}

  // Appends k and v [T, *] of `layer` and returns views of everything cached for it, the new rows
  // included. StatusError (OutOfRange) when the capacity is exceeded.
  std::pair<Tensor, Tensor> Append(int64_t layer, const Tensor& k, const Tensor& v);

  // Positions cached in `layer`.
  int64_t length(int64_t layer) const { return layers_[static_cast<size_t>(layer)].length; }
  int64_t capacity() const { return capacity_; }

 private:
  struct Layer {
    Tensor k, v;
    int64_t length = 0;
  };
  std::vector<Layer> layers_;
  int64_t capacity_;
};

}  // namespace meshfold
