#include "core/base/exec_context.h"

#include <gtest/gtest.h>

#include <thread>

namespace meshfold {
namespace {

TEST(ExecContextTest, ScopesNest) {
  EXPECT_FALSE(HasCurrentContext());
  ExecContext outer, inner;
  outer.num_threads = 2;
  inner.num_threads = 3;
  {
    ScopedExecContext outer_scope(outer);
    EXPECT_EQ(CurrentContext().num_threads, 2);
    {
      ScopedExecContext inner_scope(inner);
      EXPECT_EQ(CurrentContext().num_threads, 3);
    }
    EXPECT_EQ(&CurrentContext(), &outer);
  }
  EXPECT_FALSE(HasCurrentContext());
}

TEST(ExecContextTest, GradModeScopeKeepsTheRest) {
  ExecContext context;
  context.rank_tag = "rank 1";
  ScopedExecContext scope(context);
  EXPECT_EQ(CurrentContext().grad_mode, GradMode::kRecord);
  {
    ScopedGradMode no_grad(GradMode::kNoGrad);
    EXPECT_EQ(CurrentContext().grad_mode, GradMode::kNoGrad);
    EXPECT_EQ(CurrentContext().rank_tag, "rank 1");
  }
  EXPECT_EQ(CurrentContext().grad_mode, GradMode::kRecord);
}

TEST(ExecContextTest, BelongsToOneThread) {
  ExecContext context;
  ScopedExecContext scope(context);
  bool seen_elsewhere = true;
  std::thread([&] { seen_elsewhere = HasCurrentContext(); }).join();
  EXPECT_FALSE(seen_elsewhere);
}

TEST(ExecContextTest, ExchangeSwapsThePointer) {
  ExecContext first, second;
  ScopedExecContext scope(first);
  EXPECT_EQ(ExchangeCurrentContext(&second), &first);
  EXPECT_EQ(&CurrentContext(), &second);
  EXPECT_EQ(ExchangeCurrentContext(&first), &second);
}

TEST(ExecContextTest, OutsideAnyScopeIsABug) { EXPECT_DEATH(CurrentContext(), "no ExecContext"); }

}  // namespace
}  // namespace meshfold
