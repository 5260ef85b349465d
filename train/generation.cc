#include "train/generation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "core/backend/backend.h"
#include "core/base/exec_context.h"
#include "core/base/rng.h"
#include "core/base/status_macros.h"
#include "parallel/stage.h"

namespace meshfold::train {
namespace {

absl::Status CheckOptions(const GenerateOptions& options) {
  // Written so that NaN is refused too.
  if (options.max_new_tokens >= 0 && options.top_k >= 0 && options.temperature >= 0.0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("[Generate] max-new-tokens ", options.max_new_tokens, ", top-k ", options.top_k,
                   " and temperature ", options.temperature, ": none of them can be negative"));
}

// Logits of the last of `tokens`, which follow the `cached` positions.
std::vector<float> LastLogits(LayerStack& model, const std::vector<int32_t>& tokens, int64_t cached,
                              KvCache& cache) {
  int32_t count = static_cast<int32_t>(tokens.size());
  PackedBatch batch = MakePackedBatch(tokens, {}, {0, count});
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(cached));
  batch.positions = TensorFromVector(positions, {count});
  StepContext::Options options;
  options.training = false;
  options.kv_cache = &cache;
  StepContext context(batch, options);
  model(Variable(), context);
  Tensor last = Tensor::Contiguous({context.logits.cols()});
  CurrentBackend().Copy(context.logits.Select(count - 1), last);
  std::vector<float> host(static_cast<size_t>(last.numel()));
  AwaitOnHost(*CurrentBackend().CopyToHost(last, host.data()));
  return host;
}

}  // namespace

int32_t SampleToken(const std::vector<float>& logits, const GenerateOptions& options,
                    int64_t position) {
  auto best = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (options.temperature <= 0.0) return static_cast<int32_t>(best - logits.begin());
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(ids.size())) {
    std::partial_sort(ids.begin(), ids.begin() + options.top_k, ids.end(),
                      [&](int32_t a, int32_t b) {
                        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                      });
    ids.resize(static_cast<size_t>(options.top_k));
  }
  std::vector<double> weights;
  for (int32_t id : ids) {
    weights.push_back(std::exp((logits[id] - *best) / options.temperature));
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  RngKey key = MakeRngKey(options.seed, "generate");
  double target = UniformAt(key, static_cast<uint64_t>(position)) * total;
  for (size_t i = 0; i < ids.size(); ++i) {
    target -= weights[i];
    if (target < 0.0) return ids[i];
  }
  return ids.back();
}

absl::StatusOr<std::vector<int32_t>> Generate(LayerStack& model, const std::vector<int32_t>& prompt,
                                              const GenerateOptions& options,
                                              const std::function<void(int32_t)>& emit) {
  if (prompt.empty()) return absl::InvalidArgumentError("[Generate] the prompt is empty");
  MF_RETURN_IF_ERROR(CheckOptions(options));
  int64_t length = static_cast<int64_t>(prompt.size()) + options.max_new_tokens;
  if (length > options.max_position) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Generate] ", prompt.size(), " prompt tokens and ", options.max_new_tokens,
                     " new ones exceed the model's ", options.max_position, " positions"));
  }
  std::vector<int32_t> generated;
  absl::Status status = parallel::CatchStatus([&] {
    ScopedGradMode no_grad(GradMode::kNoGrad);
    int64_t num_layers = static_cast<int64_t>(model.entries().size());
    KvCache cache(num_layers, length);
    std::vector<int32_t> next = prompt;
    for (int64_t cached = 0; static_cast<int64_t>(generated.size()) < options.max_new_tokens;) {
      std::vector<float> logits = LastLogits(model, next, cached, cache);
      cached += static_cast<int64_t>(next.size());
      int32_t token = SampleToken(logits, options, cached);
      if (options.agree) token = options.agree(token);
      generated.push_back(token);
      if (emit) emit(token);
      if (absl::c_linear_search(options.eos, token)) break;
      next = {token};
    }
  });
  if (!status.ok()) return status;
  return generated;
}

}  // namespace meshfold::train
