// A training run of seconds: a corpus of a few hundred tokens, a config, and all that training
// moves.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/tensor/tensor.h"
#include "tests/core/io/scratch.h"
#include "tests/testing/scoped_test_context.h"
#include "train/trainer.h"

namespace meshfold::train {

inline constexpr int32_t kSmallVocab = 64;

// A fixture with a scratch directory, a corpus in it and a quiet logger.
class SmallRunTest : public ScratchTest {
 protected:
  void SetUp() override;

  // Two layers of width 16 on sequences of 16 tokens, 4 a step; 11 sequences an epoch, so that
  // epochs end inside of steps. `lines` is more YAML (whole sections that are not set here: moe,
  // schedule, checkpoint, memory); `overrides` come last.
  Config SmallConfig(const std::string& lines = "",
                     const std::vector<std::string>& overrides = {}) const;

  // A trainer; `from` as in ResumeOptions.
  std::unique_ptr<Trainer> MakeTrainer(const Config& config, const std::string& from = "none");

  // Takes a step; the test fails when that does.
  static StepMetrics Step(Trainer& trainer);

  // Copies of every weight, buffer and moment: "model/<name>", "optimizer/m/<name>", ...
  std::map<std::string, Tensor> StateOf(Trainer& trainer);
  // The same names and bits.
  static void ExpectEqualStates(const std::map<std::string, Tensor>& a,
                                const std::map<std::string, Tensor>& b);

  // Writes documents of these tokens; the path of the file.
  std::string PutTokens(const std::string& name, const std::vector<int32_t>& tokens,
                        const std::vector<int64_t>& borders) const;

  std::string corpus_;
  Logger logger_{"", LogLevel::kError};

 private:
  testing::ScopedTestContext context_;  // of the copies
};

// Experts by softmax with both auxiliary losses.
inline constexpr char kSoftmaxMoe[] =
    "moe: {num_experts: 4, top_k: 2, expert_size: 8, aux_loss: 0.01, z_loss: 0.001}\n";
// Experts by sigmoid with a bias that moves after each step, and a shared one.
inline constexpr char kSigmoidMoe[] =
    "moe: {router: sigmoid_group_bias, num_experts: 4, top_k: 2, expert_size: 8, num_groups: 2,\n"
    "      num_shared_experts: 1, bias_update_rate: 0.05}\n";

}  // namespace meshfold::train
