#include "core/nn/kv_cache.h"

#include "absl/strings/str_cat.h"
#include "core/backend/backend.h"
#include "core/base/check.h"

namespace meshfold {

std::pair<Tensor, Tensor> KvCache::Append(int64_t layer, const Tensor& k, const Tensor& v) {
  Layer& entry = layers_[static_cast<size_t>(layer)];
  int64_t count = k.rows(), end = entry.length + count;
  if (end > capacity_) {
    throw StatusError(absl::OutOfRangeError(
        absl::StrCat("[KvCache] position ", end, " exceeds the cache's ", capacity_)));
  }
  if (!entry.k.defined()) {
    entry.k = Tensor::Empty({capacity_, k.cols()});
    entry.v = Tensor::Empty({capacity_, v.cols()});
  }
  CurrentBackend().Copy(k, entry.k.Narrow(entry.length, count));
  CurrentBackend().Copy(v, entry.v.Narrow(entry.length, count));
  entry.length = end;
  return {entry.k.Narrow(0, end), entry.v.Narrow(0, end)};
}

}  // namespace meshfold
