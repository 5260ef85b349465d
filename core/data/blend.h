// Mixing datasets by weight: which dataset gives sample k, and which of its samples it is.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace meshfold {

// Sample `sample` (counted from 0, without end) of dataset `dataset`.
struct BlendedSample {
  int dataset = 0;
  int64_t sample = 0;
  friend bool operator==(const BlendedSample& a, const BlendedSample& b) {
    return a.dataset == b.dataset && a.sample == b.sample;
  }
};

// Sample k comes from the dataset with the largest deficit w_j * max(k, 1) - count_j, ties to the
// lowest j: after any number of samples each dataset has its share to within one sample or so (the
// rule of Megatron's build_blending_indices, in the same f64 arithmetic). A pure function of
// (weights, k); this class only remembers how far it has counted, so asking in ascending order
// costs O(datasets) each, going back at most kStride steps more, and the first jump to k (a resume)
// k steps, about a second for 100 million. Memory grows by one count a dataset every kStride
// samples. Single-threaded.
class Blend {
 public:
  static constexpr int64_t kStride = 1 << 16;

  // Weights are divided by their sum. InvalidArgument when there is none, or one is not a positive
  // finite number.
  static absl::StatusOr<Blend> Create(absl::Span<const double> weights);

  BlendedSample At(int64_t k);
  const std::vector<double>& weights() const { return weights_; }

 private:
  explicit Blend(std::vector<double> weights);
  int Choose() const;

  std::vector<double> weights_;
  int64_t next_ = 0;                         // samples counted so far
  std::vector<int64_t> counts_;              // of those, from each dataset
  std::vector<std::vector<int64_t>> saved_;  // counts_ at multiples of kStride
};

}  // namespace meshfold
