#include "tests/train/small_run.h"

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/io/safetensors.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/tensors.h"

namespace meshfold::train {

void SmallRunTest::SetUp() {
  ScratchTest::SetUp();
  // 181 tokens in documents of 1 to 37: 11 sequences of 16, the targets shifted by one.
  std::vector<int64_t> borders = {0, 1, 20, 57, 70, 104, 140, 181};
  std::vector<int32_t> tokens;
  const RngKey key = MakeRngKey(7, "tokens");
  for (uint64_t i = 0; i < 181; ++i) {
    tokens.push_back(static_cast<int32_t>(UniformAt(key, i) * kSmallVocab));
  }
  corpus_ = PutTokens("corpus.safetensors", tokens, borders);
}

std::string SmallRunTest::PutTokens(const std::string& name, const std::vector<int32_t>& tokens,
                                    const std::vector<int64_t>& borders) const {
  std::string path = Path(name);
  MF_EXPECT_OK(WriteSafetensors(
      path, {{"tokens", TensorFromVector(tokens, {static_cast<int64_t>(tokens.size())})},
             {"cu_seqlens", TensorFromVector(borders, {static_cast<int64_t>(borders.size())})}}));
  return path;
}

Config SmallRunTest::SmallConfig(const std::string& lines,
                                 const std::vector<std::string>& overrides) const {
  std::string yaml =
      absl::StrCat("run: {dir: ", Path("run"), "}\n", "model: {vocab_size: ", kSmallVocab,
                   ", hidden_size: 16, num_layers: 2, num_heads: 2,\n",
                   "        num_kv_heads: 1, intermediate_size: 24, max_position: 32}\n",
                   "data: {source: ", corpus_, ", sequence_length: 16}\n",
                   "train: {steps: 8, global_batch_size: 4}\n", "optimizer: {lr: 0.01}\n",
                   "monitor: {progress: off}\n", "runtime: {threads: 1}\n", lines);
  absl::StatusOr<Config> config = ParseConfig(yaml, "small.yaml", overrides);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value();
}

std::unique_ptr<Trainer> SmallRunTest::MakeTrainer(const Config& config, const std::string& from) {
  absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(config, {from}, logger_);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return std::move(trainer).value();
}

StepMetrics SmallRunTest::Step(Trainer& trainer) {
  absl::StatusOr<StepMetrics> metrics = trainer.Step();
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  return metrics.value();
}

std::map<std::string, Tensor> SmallRunTest::StateOf(Trainer& trainer) {
  std::map<std::string, Tensor> state;
  const auto copy = [&](const std::string& name, const Tensor& tensor) {
    state[name] = testing::WithPadding(tensor, testing::Padding::kNone);
  };
  trainer.model().layers->VisitParameters(
      [&](Parameter& p) { copy("model/" + p.name, p.value.data()); });
  trainer.optimizer().VisitState(
      [&](const std::string& name, const Tensor& t) { copy("optimizer/" + name, t); });
  return state;
}

void SmallRunTest::ExpectEqualStates(const std::map<std::string, Tensor>& a,
                                     const std::map<std::string, Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_EQ(b.count(name), 1u) << name;
    testing::ExpectBitEqual(tensor, b.at(name), name);
  }
}

}  // namespace meshfold::train
