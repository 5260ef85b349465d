// The load-balancing loss and its gradient in every parameter against Hugging Face's.
//
// There the layers are pooled: E * sum_e(n_e / R * sum(p_e) / R) over the R = L * T rows of all L
// layers, k when all is equal. Here each layer has its own loss, 1 when all is equal. The two are
// one where each layer is told the counts of all layers and weighs k / L: the seam for ranks that
// share a micro-batch serves to tell it.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/io/safetensors.h"
#include "gtest/gtest.h"
#include "models/block.h"
#include "models/decoder.h"
#include "models/hf_io.h"
#include "moe/moe_layer.h"
#include "tests/core/io/scratch.h"
#include "tests/testing/scoped_test_context.h"
#include "train/evaluation.h"

namespace meshfold::train {
namespace {

constexpr char kCase[] = "tests/goldens/hf/mixtral_gqa/";

// As in hf_parity_test.cc: two f32 programs that sum in different orders differ by a few 1e-6.
constexpr double kTolerance = 2e-5;

// Answers with the rows of all layers, whatever this one has.
class PooledCounts : public moe::CountExchange {
 public:
  explicit PooledCounts(std::vector<int64_t> counts_E) : counts_E_(std::move(counts_E)) {}
  moe::SharedCounts Share(const std::vector<int64_t>& routed_E) override {
    return {.group_RE = {routed_E}, .micro_batch_E = counts_E_};
  }
  std::vector<int64_t> SumOverRanks(std::vector<int64_t> load_E) override { return load_E; }

 private:
  std::vector<int64_t> counts_E_;
};

class HfBalanceLossTest : public ::testing::Test {
 protected:
  static std::shared_ptr<const SafetensorsFile> Open(const std::string& file) {
    return SafetensorsFile::Open(kCase + file).value();
  }
  static std::vector<double> Values(const SafetensorsFile& file, const std::string& name) {
    return ToVector<double>(file.Read(name).value());
  }

  // How often each expert is among the top k of a row of the golden router logits.
  std::vector<int64_t> CountRows(const models::ModelConfig& config) const {
    const int64_t experts = config.moe.num_experts;
    std::vector<int64_t> counts_E(static_cast<size_t>(experts), 0);
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      std::vector<double> logits = Values(*aux_, absl::StrCat("router_logits.", layer));
      for (auto row = logits.begin(); row != logits.end(); row += experts) {
        std::vector<int64_t> order(static_cast<size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(),
                  [&](int64_t a, int64_t b) { return row[a] > row[b]; });
        for (int64_t k = 0; k < config.moe.top_k; ++k) ++counts_E[static_cast<size_t>(order[k])];
      }
    }
    return counts_E;
  }

  // Evaluates the golden batch with Hugging Face's loss times `coefficient`.
  EvalResult Evaluate(double coefficient, bool with_labels) {
    models::HfDirectory directory = models::OpenHf(absl::StrCat(kCase, "hf")).value();
    models::ModelConfig config = directory.config;
    config.moe.aux_loss_coefficient = coefficient * static_cast<double>(config.moe.top_k) /
                                      static_cast<double>(config.num_layers);
    std::unique_ptr<LayerStack> layers = models::BuildDecoder(config).value();
    MF_EXPECT_OK(models::LoadHfWeights(directory, *layers, models::HfDType::kOfFile));
    for (LayerStack::Entry& entry : layers->entries()) {
      auto* block = dynamic_cast<models::DecoderBlock*>(entry.module.get());
      if (block == nullptr) continue;
      dynamic_cast<moe::MoeLayer&>(block->ffn())
          .set_count_exchange(std::make_unique<PooledCounts>(CountRows(config)));
    }
    EvalBatch batch =
        ReadEvalBatch(absl::StrCat(kCase, "golden.safetensors"), config.vocab_size).value();
    if (!with_labels) std::fill(batch.labels.begin(), batch.labels.end(), -100);
    return EvaluateBatch(*layers, directory.family, batch, true).value();
  }

  std::shared_ptr<const SafetensorsFile> aux_ = Open("aux.safetensors");
  std::shared_ptr<const SafetensorsFile> golden_ = Open("golden.safetensors");
  testing::ScopedTestContext context_;
};

// Fails unless `actual` is within kTolerance of `expected`'s largest value.
void ExpectAgrees(const std::string& name, const std::vector<double>& actual,
                  const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  double worst = 0.0, largest = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    worst = std::max(worst, std::fabs(actual[i] - expected[i]));
    largest = std::max(largest, std::fabs(expected[i]));
  }
  EXPECT_LE(worst, kTolerance * largest) << name << ", largest value " << largest;
}

// Without labels all else is zero: the loss and its gradients stand alone. Parameters behind the
// last router have none.
TEST_F(HfBalanceLossTest, ValueAndGradientsAgree) {
  EvalResult result = Evaluate(1.0, /*with_labels=*/false);
  double expected = Values(*aux_, "aux_loss")[0];
  EXPECT_NEAR(result.loss, expected, 1e-6 * expected);
  size_t compared = 0;
  for (const NamedTensor& named : result.tensors) {
    if (!absl::StartsWith(named.name, "grad.")) continue;
    std::string name = absl::StrCat("grad_aux.", named.name.substr(5));
    std::vector<double> actual = ToVector<double>(named.tensor);
    std::vector<double> zeros(actual.size(), 0.0);
    ExpectAgrees(name, actual, aux_->Has(name) ? Values(*aux_, name) : zeros);
    compared += aux_->Has(name) ? 1 : 0;
  }
  size_t in_golden = 0;
  for (const std::string& name : aux_->names()) {
    in_golden += absl::StartsWith(name, "grad_aux.") ? 1 : 0;
  }
  EXPECT_EQ(compared, in_golden);
  EXPECT_GT(compared, 20u);
}

// In training both losses go back at once.
TEST_F(HfBalanceLossTest, AddsToTheLossOfTheLanguageModel) {
  constexpr double kCoefficient = 0.02;  // of the golden config
  EvalResult result = Evaluate(kCoefficient, /*with_labels=*/true);
  double expected = Values(*golden_, "loss")[0] + kCoefficient * Values(*aux_, "aux_loss")[0];
  EXPECT_NEAR(result.loss, expected, 1e-6 * expected);
  for (const NamedTensor& named : result.tensors) {
    if (!absl::StartsWith(named.name, "grad.")) continue;
    std::vector<double> sum = Values(*golden_, named.name);
    std::string aux_name = absl::StrCat("grad_aux.", named.name.substr(5));
    if (aux_->Has(aux_name)) {
      std::vector<double> aux = Values(*aux_, aux_name);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += kCoefficient * aux[i];
    }
    ExpectAgrees(named.name, ToVector<double>(named.tensor), sum);
  }
}

}  // namespace
}  // namespace meshfold::train
