// Logits, loss and every gradient against Hugging Face transformers (tools/hf_goldens.py), and the
// round trip of weights through our parameters.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "gtest/gtest.h"
#include "models/decoder.h"
#include "models/hf_io.h"
#include "tests/testing/scoped_test_context.h"
#include "train/evaluation.h"

namespace meshfold::train {
namespace {

constexpr char kGoldens[] = "tests/goldens/hf";

// Largest difference over the reference's largest value: what "agrees with HF" means here. Two f32
// programs that sum in different orders differ by a few 1e-6.
constexpr double kTolerance = 2e-5;

std::vector<std::string> Cases() {
  std::vector<std::string> names = ListDirectory(kGoldens).value(), cases;
  for (const std::string& name : names) {
    if (IsDirectory(JoinPath(kGoldens, name))) cases.push_back(name);
  }
  return cases;
}

double MaxAbs(const std::vector<double>& values) {
  double largest = 0.0;
  for (double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// A tensor this much smaller than the largest gradient of its model is rounding noise in the golden
// itself: the true gradient of a top-1 router with renormalised weights is zero, for one.
constexpr double kNoise = 1e-7;

double LargestGradient(const SafetensorsFile& golden) {
  double largest = 0.0;
  for (const std::string& name : golden.names()) {
    if (!absl::StartsWith(name, "grad.")) continue;
    largest = std::max(largest, MaxAbs(ToVector<double>(golden.Read(name).value())));
  }
  return largest;
}

void ExpectAgrees(const std::string& name, const Tensor& actual, const SafetensorsFile& golden,
                  double noise) {
  absl::StatusOr<Tensor> expected = golden.Read(name);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_EQ(actual.shape(), expected->shape()) << name;
  std::vector<double> a = ToVector<double>(actual), b = ToVector<double>(*expected);
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]));
  // An expert without tokens has a gradient of exact zeros on both sides.
  double bound = MaxAbs(b) > 0.0 && MaxAbs(b) < noise ? noise : kTolerance * MaxAbs(b);
  EXPECT_LE(worst, bound) << name << ", largest value " << MaxAbs(b);
}

struct Loaded {
  models::HfDirectory directory;
  std::unique_ptr<LayerStack> layers;
};

Loaded Load(const std::string& path) {
  absl::StatusOr<models::HfDirectory> directory = models::OpenHf(path);
  EXPECT_TRUE(directory.ok()) << directory.status();
  absl::StatusOr<std::unique_ptr<LayerStack>> layers = models::BuildDecoder(directory->config);
  EXPECT_TRUE(layers.ok()) << layers.status();
  absl::Status loaded = models::LoadHfWeights(*directory, **layers, models::HfDType::kOfFile);
  EXPECT_TRUE(loaded.ok()) << loaded;
  return {*directory, std::move(*layers)};
}

class HfParityTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::string Path(const std::string& file) const {
    return JoinPath(JoinPath(kGoldens, GetParam()), file);
  }
  testing::ScopedTestContext context_;
};

TEST_P(HfParityTest, LogitsLossAndEveryGradientAgree) {
  Loaded model = Load(Path("hf"));
  auto golden = SafetensorsFile::Open(Path("golden.safetensors")).value();
  EvalBatch batch =
      ReadEvalBatch(Path("golden.safetensors"), model.directory.config.vocab_size).value();
  absl::StatusOr<EvalResult> result =
      EvaluateBatch(*model.layers, model.directory.family, batch, true);
  ASSERT_TRUE(result.ok()) << result.status();
  size_t gradients = 0;
  double noise = kNoise * LargestGradient(*golden);
  for (const NamedTensor& named : result->tensors) {
    ExpectAgrees(named.name, named.tensor, *golden, noise);
    gradients += absl::StartsWith(named.name, "grad.") ? 1 : 0;
  }
  size_t expected = 0;
  for (const std::string& name : golden->names()) {
    expected += absl::StartsWith(name, "grad.") ? 1 : 0;
  }
  EXPECT_EQ(gradients, expected);
  EXPECT_GT(gradients, 10u);
}

INSTANTIATE_TEST_SUITE_P(Goldens, HfParityTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace meshfold::train
