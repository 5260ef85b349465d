// An MoE layer spread over ranks by the expert axis, against the same layer in one process:
// outputs, every gradient, losses, counts and the bias update.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "comm/thread_world.h"
#include "core/base/status_macros.h"
#include "core/nn/layer_stack.h"
#include "parallel/axis.h"
#include "parallel/sharding.h"
#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

using parallel::Interval;
using parallel::ParallelSizes;
using reference::MoeProblem;
using ::testing::Each;
using ::testing::HasSubstr;

using Values = std::vector<double>;

std::string NameOf(const ParallelSizes& s, bool sequence) {
  return absl::StrCat("data ", s.data, " tensor ", s.tensor, " expert ", s.expert,
                      " expert_tensor ", s.expert_tensor, sequence ? " sequence" : "");
}
int WorldOf(const ParallelSizes& s) { return static_cast<int>(s.data * s.tensor); }

// What one rank had in the end.
struct RankResult {
  Interval tokens;  // of the whole micro-batch: those of its data part, or with sequence its own
  Values y_TD, dx_TD, bias_E;
  std::vector<int64_t> routed_E, kept_E;
  std::map<std::string, double> losses;
  struct Gradient {
    Box part;
    Layout layout;  // of the gradient
    Values values;
  };
  std::map<std::string, Gradient> gradients;
  int64_t num_operations = 0;
};

struct Setting {
  ParallelSizes sizes;
  bool sequence = true;
};

Values RowsOf(const Values& values_TD, Interval rows, int64_t cols) {
  return Values(values_TD.begin() + rows.begin * cols,
                values_TD.begin() + (rows.begin + rows.count) * cols);
}

// One rank of a layer under the axis.
class Rank {
 public:
  Rank(const MoeProblem& problem, const Setting& setting, parallel::Meshes meshes)
      : problem_(problem), setting_(setting), meshes_(std::move(meshes)) {
    auto layer = std::make_unique<MoeLayer>("moe", problem.options);
    layer_ = layer.get();
    layers_.Add("moe", std::move(layer));
  }

  absl::Status Apply() {
    MF_RETURN_IF_ERROR(parallel::ApplyAxes({layers_, meshes_, {.sequence = setting_.sequence}}));
    const std::unique_ptr<MoeLayer> whole = MakeLayer(problem_);
    std::map<std::string, Tensor> values;
    whole->VisitParameters(
        [&](Parameter& parameter) { values[parameter.name] = parameter.value.data(); });
    layer_->VisitParameters([&](Parameter& parameter) {
      Tensor part = Tensor::Empty(parameter.part.shape());
      CopyFromWhole(values[parameter.name], parameter.part, part);
      parameter.value.SetData(part);
      // As the data axis will.
      if (parameter.layout.view == "dense") {
        parameter.grad_layout.placements.push_back(
            {.axis = "dp", .kind = Placement::Kind::kPartial});
      }
    });
    return absl::OkStatus();
  }

  RankResult Run(const Values& dy_TD) {
    const comm::RankGrid& grid = meshes_.ranks.dense;
    const int64_t d = problem_.options.hidden_size, rank = meshes_.rank();
    const Interval batch =
        parallel::PartOf(problem_.num_tokens, grid.size("dp"), grid.coordinate(rank, "dp"));
    RankResult result{.tokens = batch};
    if (setting_.sequence) {
      const Interval own =
          parallel::PartOf(batch.count, grid.size("tp"), grid.coordinate(rank, "tp"));
      result.tokens = {batch.begin + own.begin, own.count};
    }
    std::vector<std::unique_ptr<StepContext>> contexts;
    contexts.push_back(MakeContext(PartOfProblem(batch)));
    const Shape shape = {result.tokens.count, d};
    Variable x_TD =
        Variable::Leaf(testing::MakeTensor(RowsOf(problem_.tensors.x_TD, result.tokens, d), shape));
    const int64_t before = Operations();
    Variable y_TD = layers_(x_TD, *contexts[0]);
    BackwardOptions options{.leaves = {x_TD}};
    for (Parameter* parameter : ParametersOf(layers_)) {
      if (!parameter->trained) continue;
      parameter->value.grad().Reset();
      options.leaves.push_back(parameter->value);
    }
    Backward({Root{y_TD, testing::MakeTensor(RowsOf(dy_TD, result.tokens, d), shape)}}, options);
    layers_.OnStepEnd(contexts);
    result.num_operations = Operations() - before;
    result.y_TD = ToVector<double>(y_TD.data());
    result.dx_TD = ToVector<double>(x_TD.grad().tensor());
    Collect(*contexts[0], result);
    return result;
  }

 private:
  int64_t Operations() const {
    int64_t sum = 0;
    for (const comm::DeviceMesh* mesh : {&meshes_.dense, &meshes_.expert}) {
      for (const std::string& name : mesh->names()) {
        sum += mesh->group(name).communicator->sequence();
      }
    }
    return sum;
  }

  // The tokens of a data part, weighed by their share.
  MoeProblem PartOfProblem(Interval batch) const {
    MoeProblem part = problem_;
    part.num_tokens = batch.count;
    if (!part.valid_T.empty()) {
      const auto begin = problem_.valid_T.begin() + batch.begin;
      part.valid_T.assign(begin, begin + batch.count);
    }
    // Without tokens an empty valid_T would mean the same.
    part.token_weight = static_cast<double>(part.num_valid()) /
                        static_cast<double>(std::max<int64_t>(1, problem_.num_valid()));
    return part;
  }

  void Collect(const StepContext& context, RankResult& result) {
    layer_->VisitParameters([&](Parameter& parameter) {
      if (parameter.trained) {
        result.gradients[parameter.name] = {parameter.part, parameter.grad_layout,
                                            ToVector<double>(parameter.value.grad().tensor())};
      } else {
        result.bias_E = ToVector<double>(parameter.value.data());
      }
    });
    result.routed_E = ToVector<int64_t>(context.expert_counts().at(0).routed);
    result.kept_E = ToVector<int64_t>(context.expert_counts().at(0).kept);
    for (const StepContext::AttachedLoss& loss : context.attached_losses()) {
      result.losses[loss.name] += ToVector<double>(loss.value)[0];
    }
  }

  const MoeProblem& problem_;
  const Setting setting_;
  const parallel::Meshes meshes_;
  LayerStack layers_;
  MoeLayer* layer_;
};

absl::StatusOr<std::vector<RankResult>> RunOnRanks(const MoeProblem& problem,
                                                   const Setting& setting, const Values& dy_TD) {
  const int size = WorldOf(setting.sizes);
  std::vector<RankResult> results(static_cast<size_t>(size));
  MF_RETURN_IF_ERROR(comm::RunThreadWorld(
      {.size = size, .deadline = absl::Seconds(60)}, [&](comm::Communicator& end) -> absl::Status {
        const std::shared_ptr<comm::Communicator> world(&end, [](comm::Communicator*) {});
        MF_ASSIGN_OR_RETURN(const parallel::RankLayout ranks,
                            parallel::PlanRanks(setting.sizes, world->size()));
        MF_ASSIGN_OR_RETURN(parallel::Meshes meshes, parallel::Meshes::Create(world, ranks));
        Rank rank(problem, setting, std::move(meshes));
        MF_RETURN_IF_ERROR(rank.Apply());
        results[static_cast<size_t>(end.rank())] = rank.Run(dy_TD);
        return absl::OkStatus();
      }));
  return results;
}

// What `rank` holds of the gradient once it is summed over the ranks that its layout names.
Values SummedGradient(const std::vector<RankResult>& results, const std::string& name,
                      const parallel::RankLayout& ranks, size_t rank) {
  const Layout& layout = results[rank].gradients.at(name).layout;
  Values sum(results[rank].gradients.at(name).values.size(), 0.0);
  for (int64_t other : parallel::SummingRanks(layout, ranks, static_cast<int64_t>(rank))) {
    const Values& values = results[static_cast<size_t>(other)].gradients.at(name).values;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values.at(i);
  }
  return sum;
}

class ExpertAxisTest : public MoeTest {
 protected:
  std::vector<RankResult> Results(const MoeProblem& problem, const Setting& setting,
                                  const Values& dy_TD) {
    auto results = RunOnRanks(problem, setting, dy_TD);
    EXPECT_TRUE(results.ok()) << results.status();
    return results.ok() ? *std::move(results) : std::vector<RankResult>();
  }

  void ExpectSums(const std::vector<RankResult>& results, LayerRun& alone) {
    std::map<std::string, double> losses;
    std::vector<int64_t> routed(alone.routed().size(), 0), kept = routed;
    for (const RankResult& result : results) {
      for (const auto& [name, value] : result.losses) losses[name] += value;
      for (size_t e = 0; e < routed.size(); ++e) {
        routed[e] += result.routed_E[e];
        kept[e] += result.kept_E[e];
      }
    }
    EXPECT_EQ(losses.size(), alone.losses.size());
    for (const auto& [name, value] : alone.losses) {
      EXPECT_NEAR(losses[name], value, 1e-5 * std::abs(value)) << name;
    }
    EXPECT_EQ(routed, alone.routed());
    EXPECT_EQ(kept, alone.kept());
  }

  void ExpectSame(const MoeProblem& problem, const Setting& setting) {
    SCOPED_TRACE(absl::StrCat(NameOf(setting.sizes, setting.sequence), " ",
                              problem.options.dispatcher, " ", problem.num_tokens, " tokens"));
    const Values dy_TD = TestGradient(problem);
    MoeProblem one_process = problem;
    one_process.options.dispatcher = "local";
    std::unique_ptr<MoeLayer> layer = MakeLayer(one_process);
    LayerRun alone = RunLayer(*layer, one_process, dy_TD);
    const std::vector<RankResult> results = Results(problem, setting, dy_TD);
    ASSERT_EQ(results.size(), static_cast<size_t>(WorldOf(setting.sizes)));
    ExpectSums(results, alone);

    std::vector<std::unique_ptr<StepContext>> contexts;
    contexts.push_back(std::move(alone.context));
    layer->OnStepEnd(contexts);
    const parallel::RankLayout ranks =
        parallel::PlanRanks(setting.sizes, WorldOf(setting.sizes)).value();
    for (size_t rank = 0; rank < results.size(); ++rank) {
      SCOPED_TRACE(absl::StrCat("rank ", rank));
      const RankResult& result = results[rank];
      const int64_t d = problem.options.hidden_size;
      ExpectClose(result.y_TD, RowsOf(alone.y_TD, result.tokens, d));
      ExpectClose(result.dx_TD, RowsOf(alone.grads["x"], result.tokens, d));
      EXPECT_EQ(result.num_operations, results[0].num_operations);
      layer->VisitParameters([&](Parameter& parameter) {
        SCOPED_TRACE(parameter.name);
        if (!parameter.trained) {
          EXPECT_EQ(result.bias_E, ToVector<double>(parameter.value.data()));
          return;
        }
        const Box& part = result.gradients.at(parameter.name).part;
        Tensor want = Tensor::Empty(part.shape());
        CopyFromWhole(parameter.value.grad().tensor(), part, want);
        ExpectClose(SummedGradient(results, parameter.name, ranks, rank), ToVector<double>(want));
      });
    }
  }
};

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  const ParallelSizes sizes[] = {{.data = 2},
                                 {.data = 1, .tensor = 2},
                                 {.data = 2, .expert = 2},
                                 {.data = 4, .expert = 4},
                                 {.data = 4, .expert = 2},  // edp 2
                                 {.data = 2, .expert_tensor = 2},
                                 {.data = 4, .expert = 2, .expert_tensor = 2},
                                 {.data = 1, .tensor = 2, .expert = 2},  // folded over tp
                                 {.data = 2, .tensor = 2},
                                 {.data = 2, .tensor = 2, .expert = 4},
                                 {.data = 2, .tensor = 2, .expert = 2, .expert_tensor = 2},
                                 {.data = 1, .tensor = 4, .expert = 2},
                                 {.data = 3, .expert = 1, .expert_tensor = 3}};
  for (const ParallelSizes& s : sizes) {
    settings.push_back({s, true});
    if (s.tensor > 1) settings.push_back({s, false});
  }
  return settings;
}

TEST_F(ExpertAxisTest, SoftmaxLayerWithSharedExpertsEqualsOneProcess) {
  MoeOptions options = BaseOptions();
  options.num_shared_experts = 2;
  // 5 and 1 tokens leave ranks with none.
  for (int64_t num_tokens : {13, 5, 1}) {
    const MoeProblem problem = SafeProblem(options, num_tokens);
    for (const Setting& setting : Settings()) ExpectSame(problem, setting);
  }
}

TEST_F(ExpertAxisTest, PaddingCountsInNoLoss) {
  const MoeProblem problem =
      SafeProblem(BaseOptions(), 14, {1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0});
  for (const Setting& setting : Settings()) ExpectSame(problem, setting);
}

TEST_F(ExpertAxisTest, BalancingBiasMovesByTheLoadOfAllRanks) {
  MoeOptions options = BaseOptions();
  options.router = "sigmoid_group_bias";
  options.num_groups = 4;
  options.top_k_groups = 2;
  options.top_k = 4;
  options.routed_scaling = 2.5;
  options.bias_update_rate = 0.125;
  const MoeProblem problem = SafeProblem(options, 13);
  for (const Setting& setting : Settings()) ExpectSame(problem, setting);
}

TEST_F(ExpertAxisTest, CapacityKeepsTheFirstRowsOfAllRanks) {
  MoeOptions options = BaseOptions();
  options.num_shared_experts = 1;
  for (double factor : {0.75, 0.25}) {
    options.capacity_factor = factor;
    const MoeProblem problem =
        SafeProblem(options, 15, {1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1});
    const reference::MoeForward forward = reference::Forward(problem);
    ASSERT_NE(forward.routed_E, forward.kept_E) << "nothing was dropped";
    for (const Setting& setting : Settings()) ExpectSame(problem, setting);
  }
}

TEST_F(ExpertAxisTest, TopOneEqualsOneProcess) {
  MoeOptions options = BaseOptions();
  options.top_k = 1;
  options.renormalize = false;
  options.z_loss_coefficient = options.aux_loss_coefficient = 0;
  const MoeProblem problem = SafeProblem(options, 11);
  for (const Setting& setting : Settings()) ExpectSame(problem, setting);
}

// Every token goes to the experts of the first rank; those of the others are idle.
TEST_F(ExpertAxisTest, IdleRanksTakePartAndTheirExpertsHaveZeroGradients) {
  MoeOptions options = BaseOptions();
  MoeProblem problem = reference::RandomProblem(options, 9, 1);
  for (double& x : problem.tensors.x_TD) x = std::abs(x);
  for (size_t i = 0; i < problem.tensors.gate_ED.size(); ++i) {
    problem.tensors.gate_ED[i] =
        0.25 / static_cast<double>(1 + static_cast<int64_t>(i) / options.hidden_size);
  }
  const Setting setting{{.data = 4, .expert = 4}};
  ExpectSame(problem, setting);
  const std::vector<RankResult> results = Results(problem, setting, TestGradient(problem));
  for (size_t rank = 1; rank < results.size(); ++rank) {
    for (const char* name : {"moe.experts.gate_up", "moe.experts.down"}) {
      EXPECT_EQ(results[rank].gradients.at(name).part.start[0], static_cast<int64_t>(2 * rank));
      EXPECT_THAT(results[rank].gradients.at(name).values, Each(0.0));
    }
  }
}

void ExpectSameBits(const std::vector<RankResult>& a, const std::vector<RankResult>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t rank = 0; rank < a.size(); ++rank) {
    EXPECT_EQ(a[rank].y_TD, b[rank].y_TD);
    EXPECT_EQ(a[rank].dx_TD, b[rank].dx_TD);
    EXPECT_EQ(a[rank].losses, b[rank].losses);
    for (const auto& [name, gradient] : a[rank].gradients) {
      EXPECT_EQ(gradient.values, b[rank].gradients.at(name).values) << name;
    }
  }
}

TEST_F(ExpertAxisTest, DispatchersAndReplaysGiveTheSameBits) {
  MoeOptions options = BaseOptions();
  options.top_k = 4;
  options.num_shared_experts = 1;
  options.capacity_factor = 1.0;
  MoeProblem problem = SafeProblem(options, 23, {});
  const Values dy_TD = TestGradient(problem);
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(NameOf(setting.sizes, setting.sequence));
    problem.options.dispatcher = "all_to_all";
    const std::vector<RankResult> once = Results(problem, setting, dy_TD);
    ExpectSameBits(Results(problem, setting, dy_TD), once);
    problem.options.dispatcher = "all_gather";
    ExpectSameBits(Results(problem, setting, dy_TD), once);
    ExpectSame(problem, setting);
  }
}

TEST_F(ExpertAxisTest, RefusesSizesThatDoNotFit) {
  const auto fault = [&](const MoeOptions& options, const ParallelSizes& sizes) {
    const MoeProblem problem = reference::RandomProblem(options, 4, 1);
    return std::string(RunOnRanks(problem, {sizes}, TestGradient(problem)).status().message());
  };
  MoeOptions options = BaseOptions();
  EXPECT_THAT(fault(options, {.data = 3, .expert = 3}),
              HasSubstr("moe: parallel.expert 3 does not divide num_experts 8"));
  options.expert_size = 13;
  EXPECT_THAT(fault(options, {.data = 2, .expert_tensor = 2}),
              HasSubstr("moe: parallel.expert_tensor 2 does not divide expert_size 13"));
  options = BaseOptions();
  options.dispatcher = "local";
  EXPECT_THAT(fault(options, {.data = 2, .expert = 2}),
              HasSubstr("'local' serves one rank, the expert group has 2"));
}

}  // namespace
}  // namespace meshfold::moe
