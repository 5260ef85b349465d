// The layout never changes the result: every legal layout of 2, 4 and 8 ranks (as threads) against
// one process, for each family: loss, gradients, norm, weights after three steps of SGD, moments.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "tests/train/rank_runs.h"

namespace meshfold::train {
namespace {

struct RanksOfLayout {
  int size = 1;
  std::vector<std::string> keys;  // "parallel.tensor=2", ...
};

// All sizes of the axes that make `size` ranks. `most_tensor` and `most_experts` bound what the
// model can be cut into.
std::vector<RanksOfLayout> LayoutsOf(int size, int most_tensor, int most_experts) {
  std::vector<RanksOfLayout> layouts;
  for (int tensor = 1; tensor <= std::min(size, most_tensor); tensor *= 2) {
    for (bool sequence : {false, true}) {
      if (sequence && tensor == 1) continue;
      for (int expert = 1; expert <= std::min(size, most_experts); expert *= 2) {
        for (int etp = 1; expert * etp <= size && (etp == 1 || most_experts > 1); etp *= 2) {
          layouts.push_back({size,
                             {absl::StrCat("parallel.tensor=", tensor),
                              absl::StrCat("parallel.sequence=", sequence ? "true" : "false"),
                              absl::StrCat("parallel.expert=", expert),
                              absl::StrCat("parallel.expert_tensor=", etp)}});
        }
      }
    }
  }
  return layouts;
}

// Eight experts of eight columns, two for a token, both auxiliary losses.
constexpr char kMoe[] =
    "moe: {num_experts: 8, top_k: 2, expert_size: 8, aux_loss: 0.01, z_loss: 0.001}\n";
// A shared expert, groups and a bias that moves.
constexpr char kSharedMoe[] =
    "moe: {router: sigmoid_group_bias, num_experts: 8, top_k: 2, expert_size: 8, num_groups: 2,\n"
    "      num_shared_experts: 1, bias_update_rate: 0.05}\n";

class LayoutInvarianceTest : public RankRunsTest {
 protected:
  // Eight heads of four columns on 67 ids: nothing but the heads divides evenly.
  Config MakeConfig(const std::string& moe, std::vector<std::string> keys) const {
    keys.insert(keys.end(), {"model.num_heads=8", "model.head_dim=4", "model.vocab_size=67",
                             "train.global_batch_size=8"});
    return SmallConfig(moe, keys);
  }

  void ExpectEveryLayout(const std::string& moe, const std::vector<std::string>& keys,
                         int most_tensor) {
    for (const char* optimizer : {"sgd", "adamw"}) {
      std::vector<std::string> all = keys;
      all.push_back(absl::StrCat("optimizer.name=", optimizer));
      const RunResult alone = TrainAlone(MakeConfig(moe, all));
      for (int size : {2, 4, 8}) {
        if (optimizer[0] == 'a' && size != 4) continue;  // moments: one size shows them
        for (const RanksOfLayout& layout : LayoutsOf(size, most_tensor, moe.empty() ? 1 : 8)) {
          SCOPED_TRACE(
              absl::StrCat(optimizer, " on ", size, " ranks: ", absl::StrJoin(layout.keys, " ")));
          std::vector<std::string> of_layout = all;
          of_layout.insert(of_layout.end(), layout.keys.begin(), layout.keys.end());
          ExpectSame(MakeConfig(moe, of_layout), alone, size);
          if (HasFailure()) return;
        }
      }
    }
  }
};

TEST_F(LayoutInvarianceTest, Llama) {
  ExpectEveryLayout("", {"model.family=llama", "model.num_kv_heads=2"}, 8);
}

TEST_F(LayoutInvarianceTest, LlamaTiedWithBiases) {
  ExpectEveryLayout("",
                    {"model.family=llama", "model.num_kv_heads=4", "model.tie_embeddings=true",
                     "model.attention_bias=true", "model.mlp_bias=true"},
                    8);
}

TEST_F(LayoutInvarianceTest, Mixtral) {
  ExpectEveryLayout(kMoe, {"model.family=mixtral", "model.num_kv_heads=4"}, 8);
}

TEST_F(LayoutInvarianceTest, Qwen3Moe) {
  ExpectEveryLayout(kMoe, {"model.family=qwen3_moe", "model.num_kv_heads=2"}, 8);
}

TEST_F(LayoutInvarianceTest, Olmoe) {
  ExpectEveryLayout(kMoe, {"model.family=olmoe", "model.num_kv_heads=8"}, 8);
}

TEST_F(LayoutInvarianceTest, SigmoidRouterWithSharedExpertAndBias) {
  ExpectEveryLayout(
      kSharedMoe, {"model.family=qwen3_moe", "model.num_kv_heads=2", "model.dense_layers=[0]"}, 4);
}

TEST_F(LayoutInvarianceTest, DocumentsAndMicroBatches) {
  const std::vector<std::string> keys = {"model.family=qwen3_moe",  "model.num_kv_heads=2",
                                         "optimizer.name=sgd",      "data.packing=document",
                                         "data.document_mask=true", "train.micro_batch_size=4",
                                         "data.sequence_length=15"};
  const RunResult alone = TrainAlone(MakeConfig(kMoe, keys));
  for (const RanksOfLayout& layout : LayoutsOf(4, 4, 4)) {
    SCOPED_TRACE(absl::StrJoin(layout.keys, " "));
    std::vector<std::string> of_layout = keys;
    of_layout.insert(of_layout.end(), layout.keys.begin(), layout.keys.end());
    ExpectSame(MakeConfig(kMoe, of_layout), alone, 4);
  }
}

// Which rows are dropped depends on the tokens of all ranks.
TEST_F(LayoutInvarianceTest, CapacityCountsTheTokensOfAllRanks) {
  const std::vector<std::string> keys = {"model.family=qwen3_moe", "model.num_kv_heads=2",
                                         "optimizer.name=sgd", "moe.capacity_factor=0.8"};
  const RunResult alone = TrainAlone(MakeConfig(kMoe, keys));
  EXPECT_GT(alone.steps[0].dropped_tokens, 0);
  for (const RanksOfLayout& layout : LayoutsOf(4, 4, 4)) {
    SCOPED_TRACE(absl::StrJoin(layout.keys, " "));
    std::vector<std::string> of_layout = keys;
    of_layout.insert(of_layout.end(), layout.keys.begin(), layout.keys.end());
    ExpectSame(MakeConfig(kMoe, of_layout), alone, 4);
  }
}

// One run through many layouts, two steps on each: no sample twice or skipped, what was saved comes
// back bit for bit, and the losses are those of one process that never stopped.
TEST_F(LayoutInvarianceTest, ARunGoesOnUnderAnyLayout) {
  const std::vector<std::string> keys = {"model.family=qwen3_moe", "model.num_kv_heads=2",
                                         "optimizer.name=adamw", "optimizer.lr=0.0001"};
  const std::vector<RanksOfLayout> layouts = {
      {2, {"parallel.expert=2"}},
      {1, {}},
      {2, {"parallel.expert=2"}},
      {4, {"parallel.expert=4"}},
      {4, {"parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2"}},
      {2, {"parallel.tensor=2"}},
      {4, {"parallel.expert=2", "parallel.expert_tensor=2"}},
      {8, {"parallel.tensor=4", "parallel.expert=8"}},
  };
  std::unique_ptr<Trainer> straight = MakeTrainer(MakeConfig(kMoe, keys));
  State saved;
  int64_t steps = 0;
  for (const RanksOfLayout& layout : layouts) {
    SCOPED_TRACE(absl::StrCat("after ", steps, " steps: ", absl::StrJoin(layout.keys, " ")));
    std::vector<std::string> all = keys;
    all.insert(all.end(), layout.keys.begin(), layout.keys.end());
    const Config config = MakeConfig(kMoe, all);
    const StepMetrics expected[] = {Step(*straight), Step(*straight)};
    WholeState before, after;
    OnRanks(layout.size, [&](const World& world) -> absl::Status {
      MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                          Trainer::Create(config, {"auto"}, logger_, world));
      EXPECT_EQ(trainer->step(), steps);
      EXPECT_EQ(trainer->loader()->state().consumed_samples, 8 * steps);
      AddWholeState(*trainer, before);
      for (const StepMetrics& of_one : expected) {
        EXPECT_NEAR(Step(*trainer).loss, of_one.loss, 1e-4 * of_one.loss);
      }
      AddWholeState(*trainer, after);
      return trainer->Save().status();
    });
    if (steps > 0) ExpectEqualStates(before.Take(), saved);
    saved = after.Take();
    steps += 2;
  }
}

}  // namespace
}  // namespace meshfold::train
