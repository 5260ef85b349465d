#include "tests/testing/kernel_variants.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "hwy/highway.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::testing {
namespace {

// Pins Highway's run-time choice.
class ScopedTarget {
 public:
  explicit ScopedTarget(int64_t target) { hwy::GetChosenTarget().Update(target); }
  ~ScopedTarget() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
};

std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  for (int64_t target : {HWY_AVX3, HWY_AVX2}) {
    if ((hwy::SupportedTargets() & target) != 0) targets.push_back(target);
  }
  targets.push_back(HWY_STATIC_TARGET);  // what any machine runs
  return targets;
}

}  // namespace

void ForEachVariant(const KernelRun& run,
                    const std::function<void(const std::vector<Tensor>&)>& check) {
  for (int64_t target : Targets()) {
    ScopedTarget scoped_target(target);
    SCOPED_TRACE(hwy::TargetName(target));
    ScopedTestContext context;
    const std::vector<Tensor> outputs = run(Padding::kNone);
    check(outputs);
    for (int num_threads : {1, 2, 3}) {
      context.context().num_threads = num_threads;
      for (Padding padding : {Padding::kNone, Padding::kGuarded}) {
        const std::vector<Tensor> others = run(padding);
        for (size_t i = 0; i < outputs.size(); ++i) {
          const std::string what = absl::StrCat("output ", i, " with ", num_threads, " threads",
                                                padding == Padding::kGuarded ? ", guarded" : "");
          ExpectBitEqual(others[i], outputs[i], what);
          EXPECT_TRUE(GuardIsIntact(others[i])) << what;
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace meshfold::testing
