// Known fault elsewhere (pytorch/torchtitan#2273): what a dispatch keeps for its backward was never
// let go, and memory climbed from step to step.
#include <gmock/gmock.h>

#include "comm/thread_world.h"
#include "core/base/status_macros.h"
#include "core/nn/init.h"
#include "core/nn/layer_stack.h"
#include "memory/caching_allocator.h"
#include "parallel/axis.h"
#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

class ExpertMemoryTest : public MoeTest {};

// Live bytes after each of `num_steps` steps of one rank, training and evaluating in turn.
std::vector<int64_t> LiveBytes(comm::Communicator& world, const MoeOptions& options,
                               LayerStack& layers, int64_t num_steps) {
  const reference::MoeProblem problem = reference::RandomProblem(options, 9, 1);
  const Shape shape = {9, options.hidden_size};
  std::vector<int64_t> live;
  for (int64_t step = 0; step < num_steps; ++step) {
    {
      const bool training = step % 2 == 0;
      ScopedGradMode mode(training ? GradMode::kRecord : GradMode::kNoGrad);
      std::unique_ptr<StepContext> context = MakeContext(problem, training);
      Variable x_TD = Variable::Leaf(testing::MakeTensor(problem.tensors.x_TD, shape));
      Variable y_TD = layers(x_TD, *context);
      BackwardOptions backward{.leaves = {x_TD}};
      for (Parameter* parameter : ParametersOf(layers)) {
        parameter->value.grad().Reset();
        backward.leaves.push_back(parameter->value);
      }
      if (training) {
        Backward({Root{y_TD, testing::MakeTensor(TestGradient(problem), shape)}}, backward);
      }
    }
    // Until the others are done, an operation of theirs may hold tensors of this rank.
    ThrowIfError(ValueOrThrow(world.Barrier())->HostWait(absl::Seconds(60)));
    live.push_back(CurrentContext().allocator->stats().live_bytes);
  }
  return live;
}

TEST_F(ExpertMemoryTest, StepsLeaveNothingBehind) {
  for (const char* dispatcher : {"all_to_all", "all_gather"}) {
    const absl::Status status = comm::RunThreadWorld(
        {.size = 2, .deadline = absl::Seconds(60)}, [&](comm::Communicator& end) -> absl::Status {
          const std::shared_ptr<comm::Communicator> world(&end, [](comm::Communicator*) {});
          memory::CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
          ExecContext context = CurrentContext();
          context.allocator = &pool;
          ScopedExecContext scope(context);
          MoeOptions options = BaseOptions();
          options.dispatcher = dispatcher;
          options.num_shared_experts = 1;
          MF_ASSIGN_OR_RETURN(const parallel::RankLayout ranks,
                              parallel::PlanRanks({.data = 2, .expert = 2}, world->size()));
          MF_ASSIGN_OR_RETURN(parallel::Meshes meshes, parallel::Meshes::Create(world, ranks));
          LayerStack layers;
          layers.Add("moe", std::make_unique<MoeLayer>("moe", options));
          MF_RETURN_IF_ERROR(parallel::ApplyAxes({layers, meshes, {}}));
          Initialize(layers, 1);
          const std::vector<int64_t> live = LiveBytes(end, options, layers, 40);
          // The first step allocates the gradients, which stay.
          for (size_t step = 1; step < live.size(); ++step) {
            EXPECT_EQ(live[step], live[1]) << dispatcher << ", step " << step;
          }
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace meshfold::moe
