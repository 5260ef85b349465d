#include "core/data/blend.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace meshfold {

Blend::Blend(std::vector<double> weights)
    : weights_(std::move(weights)), counts_(weights_.size()), saved_({counts_}) {}

absl::StatusOr<Blend> Blend::Create(absl::Span<const double> weights) {
  if (weights.empty()) return absl::InvalidArgumentError("[Blend] no dataset is given");
  double sum = 0;
  for (size_t j = 0; j < weights.size(); ++j) {
    if (!(weights[j] > 0) || !std::isfinite(weights[j])) {
      return absl::InvalidArgumentError(absl::StrCat("[Blend] the weight of dataset ", j, " is ",
                                                     weights[j], ", not a positive number"));
    }
    sum += weights[j];
  }
  if (!std::isfinite(sum)) return absl::InvalidArgumentError("[Blend] the weights' sum overflows");
  std::vector<double> shares;
  for (double weight : weights) shares.push_back(weight / sum);
  return Blend(std::move(shares));
}

int Blend::Choose() const {
  double scale = static_cast<double>(std::max<int64_t>(next_, 1));
  int best = 0;
  double best_deficit = weights_[0] * scale - static_cast<double>(counts_[0]);
  for (size_t j = 1; j < weights_.size(); ++j) {
    double deficit = weights_[j] * scale - static_cast<double>(counts_[j]);
    if (deficit > best_deficit) {
      best = static_cast<int>(j);
      best_deficit = deficit;
    }
  }
  return best;
}

BlendedSample Blend::At(int64_t k) {
  MF_CHECK_GE(k, 0);
  if (weights_.size() == 1) return {0, k};
  if (k < next_) {
    size_t stride = k / kStride;
    next_ = static_cast<int64_t>(stride) * kStride;
    counts_ = saved_[stride];
  }
  while (true) {
    int dataset = Choose();
    BlendedSample result = {dataset, counts_[dataset]};
    ++counts_[dataset];
    ++next_;
    if (next_ % kStride == 0 && static_cast<size_t>(next_ / kStride) == saved_.size()) {
      saved_.push_back(counts_);
    }
    if (next_ == k + 1) return result;
  }
}

}  // namespace meshfold
