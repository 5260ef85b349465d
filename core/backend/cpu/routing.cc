// Which experts a token takes: the best scores by repeated vector maxima.
#include <algorithm>
#include <limits>

#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/kernel_args.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/routing.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

using IntTag = hn::RebindToSigned<FloatTag>;
using IntVec = hn::Vec<IntTag>;

// Scores are compared as integers of the same order. NaN counts as the lowest score, -infinity;
// below it stands kTaken, so that every choice is a new expert whatever the scores.
constexpr int32_t kTaken = std::numeric_limits<int32_t>::min();

HWY_INLINE IntVec KeysOf(FloatVec scores) {
  const FloatTag d;
  const IntTag di;
  const FloatVec lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  // Adding zero makes -0 equal to 0.
  const FloatVec number = hn::Add(hn::IfThenElse(hn::IsNaN(scores), lowest, scores), hn::Zero(d));
  const IntVec bits = hn::BitCast(di, number);
  return hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 0x7fffffff)));
}

HWY_INLINE float ScoreOf(int32_t key) {
  const int32_t bits = key ^ ((key >> 31) & 0x7fffffff);
  float score;
  std::memcpy(&score, &bits, sizeof(score));
  return score;
}

// Keys of n scores, kTaken up to a whole vector.
HWY_INLINE void MakeKeys(const float* scores, const float* bias, int64_t n, int32_t* keys) {
  const IntTag di;
  VectorLoop(n, [&](int64_t i, auto step) HWY_ATTR {
    FloatVec score = step.Load(scores + i);
    if (bias != nullptr) score = hn::Add(score, step.Load(bias + i));
    hn::StoreU(KeysOf(score), di, keys + i);
  });
  for (int64_t i = n; i % kFloatLanes != 0; ++i) keys[i] = kTaken;
}

// Takes the largest of n keys, the first of equals; returns its index. n is a multiple of a vector.
HWY_INLINE int32_t TakeLargest(int32_t* keys, int64_t n) {
  const IntTag d;
  IntVec max = hn::LoadU(d, keys);
  for (int64_t i = kFloatLanes; i < n; i += kFloatLanes) max = hn::Max(max, hn::LoadU(d, keys + i));
  max = hn::MaxOfLanes(d, max);
  for (int64_t i = 0; i < n; i += kFloatLanes) {
    const intptr_t lane = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, keys + i), max));
    if (lane < 0) continue;
    keys[i + lane] = kTaken;
    return static_cast<int32_t>(i + lane);
  }
  return 0;  // never: the maximum is among the keys
}

// The sum of the two largest scores of a group, or its only one.
HWY_INLINE float GroupScore(const int32_t* keys, int64_t n) {
  const IntTag d;
  const IntVec taken = hn::Set(d, kTaken);
  // The two largest of each lane.
  IntVec best = taken, second = taken;
  int64_t i = 0;
  for (; i + kFloatLanes <= n; i += kFloatLanes) {
    const IntVec key = hn::LoadU(d, keys + i);
    second = hn::Max(second, hn::Min(best, key));
    best = hn::Max(best, key);
  }
  if (i < n) {
    int32_t rest[kFloatLanes];
    std::fill_n(rest, kFloatLanes, kTaken);
    std::memcpy(rest, keys + i, static_cast<size_t>(n - i) * sizeof(int32_t));
    const IntVec key = hn::LoadU(d, rest);
    second = hn::Max(second, hn::Min(best, key));
    best = hn::Max(best, key);
  }
  // In the lane of the overall best, the second best takes its place.
  const IntVec max = hn::MaxOfLanes(d, best);
  const intptr_t lane = hn::FindFirstTrue(d, hn::Eq(best, max));
  const auto is_lane = hn::Eq(hn::Iota(d, 0), hn::Set(d, static_cast<int32_t>(lane)));
  const IntVec next = hn::MaxOfLanes(d, hn::IfThenElse(is_lane, second, best));
  return n == 1 ? ScoreOf(hn::GetLane(max))
                : ScoreOf(hn::GetLane(max)) + ScoreOf(hn::GetLane(next));
}

// Marks all experts outside the best groups as taken.
HWY_INLINE void KeepBestGroups(const cpu::Selection& selection, int32_t* keys) {
  float scores[cpu::kMaxGroups];
  int32_t group_keys[cpu::kMaxGroups + kFloatLanes];
  const int64_t groups = selection.num_groups, size = selection.num_experts / groups;
  for (int64_t g = 0; g < groups; ++g) scores[g] = GroupScore(keys + g * size, size);
  MakeKeys(scores, nullptr, groups, group_keys);
  const int64_t padded = (groups + kFloatLanes - 1) / kFloatLanes * kFloatLanes;
  for (int64_t i = 0; i < selection.top_k_groups; ++i) TakeLargest(group_keys, padded);
  for (int64_t g = 0; g < groups; ++g) {
    if (group_keys[g] != kTaken) std::fill_n(keys + g * size, size, kTaken);
  }
}

void SelectToken(const cpu::Selection& selection, const float* scores, int32_t* ids) {
  int32_t keys[cpu::kMaxExperts + kFloatLanes];
  MakeKeys(scores, selection.bias, selection.num_experts, keys);
  if (selection.num_groups > 1) KeepBestGroups(selection, keys);
  const int64_t padded = (selection.num_experts + kFloatLanes - 1) / kFloatLanes * kFloatLanes;
  for (int64_t k = 0; k < selection.top_k; ++k) ids[k] = TakeLargest(keys, padded);
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {

HWY_EXPORT(SelectToken);

void CpuBackend::SelectExperts(const SelectExpertsArgs& args) {
  cpu::Selection selection;
  selection.bias = args.bias.defined() ? args.bias.span<float>().data() : nullptr;
  selection.num_experts = args.scores.cols();
  selection.top_k = args.ids.cols();
  selection.num_groups = args.num_groups;
  selection.top_k_groups = args.num_groups > 1 ? args.top_k_groups : 1;
  MF_CHECK_EQ(selection.num_experts % selection.num_groups, 0);
  MF_CHECK_LE(selection.top_k_groups, selection.num_groups);
  MF_CHECK_LE(selection.top_k,
              selection.top_k_groups * (selection.num_experts / selection.num_groups));
  MF_CHECK_LE(selection.num_experts, cpu::kMaxExperts);
  MF_CHECK_LE(selection.num_groups, cpu::kMaxGroups);
  const auto kernel = HWY_DYNAMIC_DISPATCH(SelectToken);
  const cpu::Rows<float> scores_rows(args.scores);
  const cpu::Rows<int32_t> ids_rows(args.ids);
  // A token costs about as much as copying its scores once for each choice.
  const int64_t cost = selection.num_experts * (selection.top_k + 2);
  cpu::ParallelRows(args.scores.rows(), cost, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) kernel(selection, scores_rows[row], ids_rows[row]);
  });
}

}  // namespace meshfold
#endif  // HWY_ONCE
