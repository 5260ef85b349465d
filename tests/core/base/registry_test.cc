#include "core/base/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshfold {
namespace {

using ::testing::ElementsAre;
using MakeNumber = int (*)();

Registry<MakeNumber>& NumberRegistry() {
  static auto* registry = new Registry<MakeNumber>("number");
  return *registry;
}

MF_REGISTER(NumberRegistry(), "two", [] { return 2; });
MF_REGISTER(NumberRegistry(), "one", [] { return 1; });

TEST(RegistryTest, FindsWhatWasRegisteredBeforeMain) {
  EXPECT_EQ((*NumberRegistry().Find("one"))(), 1);
  EXPECT_EQ((*NumberRegistry().Find("two"))(), 2);
}

TEST(RegistryTest, ListsNamesInOrder) {
  EXPECT_THAT(NumberRegistry().Names(), ElementsAre("one", "two"));
}

TEST(RegistryTest, UnknownNameListsTheKnownOnes) {
  const absl::Status status = NumberRegistry().Find("three").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "unknown number 'three'; known: one, two");
}

TEST(RegistryTest, RepeatedNameIsABug) {
  Registry<int> registry("colour");
  registry.Add("red", 1);
  EXPECT_DEATH(registry.Add("red", 2), "colour 'red' is registered twice");
}

}  // namespace
}  // namespace meshfold
