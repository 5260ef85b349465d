// Attention over all earlier positions of the document, or a window of them, on one rank.
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/nn/attention.h"

namespace meshfold {
namespace {

// The cache holds one sequence, as constants: what goes through it has no gradient.
void CheckCacheUse(const Variable& k, const Variable& v, const std::vector<int32_t>& cu_seqlens) {
  if (cu_seqlens.size() != 2) {
    ThrowInvalidArgument(absl::StrCat("[Attention] a KV cache serves one document, the batch has ",
                                      cu_seqlens.size() - 1));
  }
  if (ShouldRecord({k, v})) {
    ThrowInvalidArgument("[Attention] a KV cache gives no gradient: generate under kNoGrad");
  }
}

class DenseAttention : public AttentionCore {
 public:
  explicit DenseAttention(const AttentionOptions& options) : options_(options) {}

  Variable Compute(const Variable& q, const Variable& k, const Variable& v, int64_t layer,
                   StepContext& context) override {
    const std::vector<int32_t>& cu_seqlens = context.batch().cu_seqlens;
    KvCache* cache = context.options().kv_cache;
    if (cache == nullptr) return Attention(q, k, v, cu_seqlens, cu_seqlens, options_);
    CheckCacheUse(k, v, cu_seqlens);
    auto [keys, values] = cache->Append(layer, k.data(), v.data());
    std::vector<int32_t> cu_seqlens_k = {0, static_cast<int32_t>(keys.rows())};
    return Attention(q, Variable(keys), Variable(values), cu_seqlens, cu_seqlens_k, options_);
  }

 private:
  AttentionOptions options_;
};

std::unique_ptr<AttentionCore> MakeDense(const AttentionOptions& options) {
  return std::make_unique<DenseAttention>(options);
}

MF_REGISTER(AttentionCoreRegistry(), "dense", MakeDense);

}  // namespace
}  // namespace meshfold
