// System calls that change files, counted, and made to kill the process or to fail at a chosen one.
// Linking failing_system_calls.cc replaces these calls for the whole program: a test can stop a
// writer before each of its steps, one after the other, without sleeping or guessing.
#pragma once

#include <string>
#include <vector>

namespace meshfold::testing {

// Safe with several threads that call; none may while a plan is made or the trace is read.
// From now on: forgets the trace; before call number `kill_at` (counted from 1; 0: never) the
// process kills itself, and call number `fail_at` fails with `error` and changes nothing.
struct SystemCallPlan {
  int kill_at = 0;
  int fail_at = 0;
  int error = 0;
  std::string only;  // counts calls whose text holds this alone; empty: all
};
void PlanSystemCalls(const SystemCallPlan& plan);

// What was called since: "rename a b", "fsync path", "write path", ... in order.
const std::vector<std::string>& SystemCallTrace();

}  // namespace meshfold::testing
