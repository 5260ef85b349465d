#include "parallel/gather_whole.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/thread_world.h"
#include "core/base/status_macros.h"
#include "tests/core/io/scratch.h"
#include "tests/parallel/sharded_model.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::parallel {
namespace {

using testing::ShardedTraining;
using testing::WorldCase;
using testing::WorldCases;

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64};

// Whole tensor `name`: random bytes of floats, or where they stand.
Tensor Whole(const std::string& name, const Shape& shape, DType dtype) {
  if (dtype != DType::kI32 && dtype != DType::kI64) {
    return testing::RandomTensor(name, shape, {.dtype = dtype});
  }
  std::vector<double> values;
  for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<double>(i) - 3);
  return testing::MakeTensor(values, shape, dtype);
}

class GatherWholeTest : public ::testing::Test {
 protected:
  // Every parameter's shape in every dtype, rows with guards between them, last first.
  static std::vector<GatherInput> InputsOf(ShardedTraining& training) {
    std::vector<GatherInput> inputs;
    for (Parameter* parameter : ParametersOf(training.model)) {
      for (DType dtype : kDTypes) {
        const std::string name = absl::StrCat(parameter->name, " ", DTypeName(dtype));
        const Tensor part =
            testing::UnwrittenTensor(parameter->part.shape(), dtype, testing::Padding::kGuarded);
        CopyFromWhole(Whole(name, parameter->shape, dtype), parameter->part, part);
        inputs.insert(inputs.begin(), {name, parameter, part});
      }
    }
    return inputs;
  }

  // What all ranks get; rank 0's tensors are compared with the whole ones.
  static void ExpectGathers(const WorldCase& world) {
    const RankLayout ranks = world.ranks(), one = PlanRanks({}, 1).value();
    ShardedTraining all(one);
    std::map<std::string, Tensor> found;
    MF_ASSERT_OK(comm::RunThreadWorld({.size = world.size}, [&](comm::Communicator& end) {
      ShardedTraining training(ranks, end.rank());
      MF_ASSIGN_OR_RETURN(auto gathered, GatherWhole({end, ranks}, InputsOf(training)));
      if (end.rank() == 0) {
        found = std::move(gathered);
      } else {
        EXPECT_TRUE(gathered.empty());
      }
      return absl::OkStatus();
    }));
    EXPECT_EQ(found.size(), ParametersOf(all.model).size() * std::size(kDTypes));
    for (const Parameter* parameter : ParametersOf(all.model)) {
      for (DType dtype : kDTypes) {
        const std::string name = absl::StrCat(parameter->name, " ", DTypeName(dtype));
        ASSERT_EQ(found.count(name), 1u) << name;
        testing::ExpectBitEqual(found[name], Whole(name, parameter->shape, dtype), name);
      }
    }
  }

  testing::ScopedTestContext context_;
};

TEST_F(GatherWholeTest, PutsPartsTogetherOnEveryLayout) {
  for (const WorldCase& world : WorldCases()) {
    SCOPED_TRACE(world.name);
    ExpectGathers(world);
  }
}

TEST_F(GatherWholeTest, TakesTheStagesOfAPipeline) {
  ExpectGathers({"pipeline", 4, {.tensor = 2, .pipeline = 2}});
}

// One rank's mistake is an error on all of them, and the world stays in step.
TEST_F(GatherWholeTest, RefusesOnAllRanksWhatOneRankGetsWrong) {
  const WorldCase world = WorldCases()[5];
  const RankLayout ranks = world.ranks();
  struct Mistake {
    void (*make)(std::vector<GatherInput>& inputs);
    const char* message;
  };
  const Mistake mistakes[] = {
      {[](auto& inputs) { inputs.push_back(inputs[0]); }, "'bias i64' is given twice"},
      {[](auto& inputs) { inputs[0].tensor = GatherInput().tensor; },
       "'bias i64' is not in host memory"},
      {[](auto& inputs) { inputs[0].tensor = testing::UnwrittenTensor({4}); },
       "'bias i64' has shape [4], its part [0:5] another one"},
      {[](auto& inputs) {
         for (auto& input : inputs) {
           if (input.name == "column f32") input.name = "other";
         }
       },
       "tensor 'column f32' has 512 elements in no piece"},
      {[](auto& inputs) {
         for (auto& input : inputs) {
           if (input.name == "column f32")
             input.tensor = testing::UnwrittenTensor({2, 256}, DType::kI32);
         }
       },
       "tensor 'column f32' is f32 [5, 256] on one rank and i32 [5, 256] on another"},
  };
  for (const Mistake& mistake : mistakes) {
    std::vector<absl::Status> results(static_cast<size_t>(world.size));
    MF_EXPECT_OK(comm::RunThreadWorld({.size = world.size}, [&](comm::Communicator& end) {
      ShardedTraining training(ranks, end.rank());
      std::vector<GatherInput> inputs = InputsOf(training);
      if (end.rank() == 1) mistake.make(inputs);
      results[static_cast<size_t>(end.rank())] = GatherWhole({end, ranks}, inputs).status();
      return GatherWhole({end, ranks}, {}).status();
    }));
    for (const absl::Status& result : results) {
      EXPECT_TRUE(FailsWith(result, absl::StatusCode::kInvalidArgument, mistake.message));
      EXPECT_TRUE(FailsWith(result, absl::StatusCode::kInvalidArgument, "[GatherWhole] "));
    }
  }
}

}  // namespace
}  // namespace meshfold::parallel
