#include "parallel/grad_bucket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/thread_world.h"
#include "tests/optim/parameters.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::parallel {
namespace {

// Odd sizes, one row width that gets a padded pitch, one without elements.
const std::vector<Shape>& Shapes() {
  static const auto* shapes =
      new std::vector<Shape>{{3, 70}, {1024}, {5, 2, 512}, {1}, {0, 4}, {7, 3}};
  return *shapes;
}

Tensor Gradient(int rank, size_t i) {
  return testing::RandomTensor(absl::StrCat("gradient of rank ", rank), Shapes()[i]);
}

// What ranks [first, end) must hold: their gradients added in order of rank.
Tensor SumOf(int first, int end, size_t i) {
  std::vector<float> sum = ToVector<float>(Gradient(first, i));
  for (int rank = first + 1; rank < end; ++rank) {
    const std::vector<float> more = ToVector<float>(Gradient(rank, i));
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += more[k];
  }
  return TensorFromVector(sum, Shapes()[i]);
}

std::vector<GradBuckets::Group> ForAll(const std::vector<Parameter*>& parameters,
                                       const GradBuckets::Group& group) {
  return std::vector<GradBuckets::Group>(parameters.size(), group);
}

class GradBucketTest : public ::testing::TestWithParam<int64_t> {
 protected:
  std::vector<Parameter> MakeParameters() const {
    std::vector<Parameter> parameters;
    for (const Shape& shape : Shapes()) {
      const std::string name = "p" + shape.ToString();
      parameters.push_back(testing::ParameterOf(name, testing::RandomTensor(name, shape)));
    }
    return parameters;
  }

  testing::ScopedTestContext context_;
};

// Gradients become ready in another order on every rank; buckets leave in one.
TEST_P(GradBucketTest, SumsInOrderOfRankWhateverTheCutsAndTheOrderOfGradients) {
  const absl::Status status = comm::RunThreadWorld({.size = 3}, [&](comm::Communicator& world) {
    std::vector<Parameter> parameters = MakeParameters();
    std::vector<Parameter*> pointers;
    for (Parameter& parameter : parameters) pointers.push_back(&parameter);
    std::shared_ptr<comm::Communicator> group(&world, [](comm::Communicator*) {});
    GradBuckets buckets(pointers, ForAll(pointers, group), {.bucket_bytes = GetParam()});
    for (int step = 0; step < 2; ++step) {
      buckets.BeginStep();
      for (size_t k = 0; k < parameters.size(); ++k) {
        const size_t i = (k * 5 + static_cast<size_t>(world.rank())) % parameters.size();
        parameters[i].value.grad().Reset();
        testing::SetGradient(parameters[i], Gradient(world.rank(), i));
        parameters[i].value.state()->on_grad();
      }
      const absl::Status finished = buckets.Finish();
      EXPECT_TRUE(finished.ok()) << finished;
      for (size_t i = 0; i < parameters.size(); ++i) {
        testing::ExpectBitEqual(parameters[i].value.grad().tensor(), SumOf(0, world.size(), i),
                                parameters[i].name);
      }
    }
    EXPECT_EQ(world.sequence(), 2 * buckets.num_buckets());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(BucketBytes, GradBucketTest, ::testing::Values(1, 4000, 1 << 20));

class GradBucketStepTest : public GradBucketTest {};

TEST_F(GradBucketStepTest, FrozenParametersHaveNoPlace) {
  std::vector<Parameter> parameters = MakeParameters();
  parameters[1].value.set_requires_grad(false);
  std::vector<Parameter*> pointers;
  for (Parameter& parameter : parameters) pointers.push_back(&parameter);
  const auto ends = comm::MakeThreadWorld({.size = 1});
  GradBuckets buckets(pointers, ForAll(pointers, ends[0]), {.bucket_bytes = 1 << 20});
  EXPECT_EQ(buckets.num_buckets(), 1);
  // 3 x 70, 5 x 2 rows of 512 and 16 more, 1 and 7 x 3 elements, each up to 64 bytes.
  EXPECT_EQ(buckets.bytes(), 4 * (224 + 10 * 528 + 16 + 0 + 32));
  EXPECT_FALSE(parameters[1].value.grad().tensor().defined());
}

TEST_F(GradBucketStepTest, AnAbandonedStepIsLetGo) {
  const absl::Status status = comm::RunThreadWorld({.size = 2}, [&](comm::Communicator& world) {
    std::vector<Parameter> parameters = MakeParameters();
    std::vector<Parameter*> pointers = {&parameters[0], &parameters[3]};
    std::shared_ptr<comm::Communicator> group(&world, [](comm::Communicator*) {});
    GradBuckets buckets(pointers, ForAll(pointers, group), {.bucket_bytes = 1});
    buckets.BeginStep();
    testing::SetGradient(parameters[3], Gradient(world.rank(), 3));
    parameters[3].value.state()->on_grad();  // its reduction is in flight
    buckets.BeginStep();
    for (size_t i : {3, 0}) {
      parameters[i].value.grad().Reset();
      testing::SetGradient(parameters[i], Gradient(world.rank(), i));
      parameters[i].value.state()->on_grad();
    }
    EXPECT_TRUE(buckets.Finish().ok());
    testing::ExpectBitEqual(parameters[0].value.grad().tensor(), SumOf(0, 2, 0), "p");
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

// Every other parameter over all four ranks, the rest over pairs, one over nobody.
TEST_P(GradBucketTest, EachParameterIsSummedOverItsOwnGroup) {
  const absl::Status status = comm::RunThreadWorld({.size = 4}, [&](comm::Communicator& world) {
    std::vector<Parameter> parameters = MakeParameters();
    std::vector<Parameter*> pointers;
    for (Parameter& parameter : parameters) pointers.push_back(&parameter);
    std::shared_ptr<comm::Communicator> all(&world, [](comm::Communicator*) {});
    absl::StatusOr<GradBuckets::Group> pair = world.Split(world.rank() / 2, world.rank(), "pair");
    if (!pair.ok()) return pair.status();
    std::vector<GradBuckets::Group> groups;
    for (size_t i = 0; i < pointers.size(); ++i) groups.push_back(i % 2 == 0 ? all : *pair);
    groups[1] = nullptr;
    GradBuckets buckets(pointers, groups, {.bucket_bytes = GetParam()});
    buckets.BeginStep();
    for (size_t i = parameters.size(); i-- > 0;) {
      testing::SetGradient(parameters[i], Gradient(world.rank(), i));
      if (groups[i] != nullptr) parameters[i].value.state()->on_grad();
    }
    const absl::Status finished = buckets.Finish();
    EXPECT_TRUE(finished.ok()) << finished;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int first = i % 2 == 0 ? 0 : world.rank() / 2 * 2;
      const int end = i % 2 == 0 ? 4 : first + 2;
      const Tensor expected = i == 1 ? Gradient(world.rank(), i) : SumOf(first, end, i);
      testing::ExpectBitEqual(parameters[i].value.grad().tensor(), expected, parameters[i].name);
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace meshfold::parallel
