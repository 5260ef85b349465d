#include "core/backend/cpu/attention_kernel.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/attention_kernel.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/matrix_kernel_exp-inl.h"
#include "core/backend/cpu/matrix_kernel_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

// One vector of columns of a SoftmaxBlock.
class ColumnVector {
 public:
  ColumnVector(const cpu::SoftmaxBlock& block, int64_t column)
      : block_(block),
        scores_(block.scores + column),
        weights_(block.weights + column / kTileRows * kTileRows * block.keys + column % kTileRows),
        scale_(hn::Set(FloatTag(), block.scale)),
        first_distance_(block.key_minus_position - column) {
    // Keys at or before the first lane's position, and after the last lane's oldest.
    const int64_t end = 1 - first_distance_;
    const int64_t begin = block.window > 0 ? kFloatLanes - block.window - first_distance_ : 0;
    whole_end_ = std::clamp<int64_t>(end, 0, block.keys);
    whole_begin_ = std::clamp<int64_t>(begin, 0, whole_end_);
  }

  FloatVec Max(FloatVec max) const {
    for (int64_t j = 0; j < whole_begin_; ++j) max = hn::Max(max, MaskedScore(j));
    // Two chains, since a maximum waits four cycles for the one before.
    FloatVec other = max;
    int64_t j = whole_begin_;
    for (; j + 2 <= whole_end_; j += 2) {
      max = hn::Max(max, Score(j));
      other = hn::Max(other, Score(j + 1));
    }
    if (j < whole_end_) max = hn::Max(max, Score(j));
    for (j = whole_end_; j < block_.keys; ++j) max = hn::Max(max, MaskedScore(j));
    return hn::Max(max, other);
  }

  // Writes the exponentials and returns their sum.
  FloatVec Exponentiate(FloatVec shift) const {
    FloatVec sum = hn::Zero(FloatTag());
    for (int64_t j = 0; j < block_.keys; ++j) {
      const bool whole = whole_begin_ <= j && j < whole_end_;
      const FloatVec e = ShortExp(hn::Sub(whole ? Score(j) : MaskedScore(j), shift));
      sum = hn::Add(sum, e);
      StoreWeights(e, j);
    }
    return sum;
  }

 private:
  HWY_INLINE void StoreWeights(FloatVec e, int64_t j) const {
    float* out = weights_ + j * kTileRows;
#if HWY_TARGET == HWY_SCALAR
    *out = hn::GetLane(e);
#else
    static_assert(kFloatLanes == 2 * kTileRows);
    const hn::Half<FloatTag> half;
    hn::StoreU(hn::LowerHalf(half, e), half, out);
    hn::StoreU(hn::UpperHalf(half, e), half, out + kTileRows * block_.keys);
#endif
  }
  HWY_INLINE FloatVec Score(int64_t j) const {
    return hn::Mul(hn::LoadU(FloatTag(), scores_ + j * block_.pitch), scale_);
  }
  // -infinity in the lanes that do not see key j.
  HWY_INLINE FloatVec MaskedScore(int64_t j) const {
    const FloatTag d;
    const FloatVec lane = hn::Iota(d, 0.0f);
    const float first = static_cast<float>(first_distance_ + j);
    auto sees = hn::Ge(lane, hn::Set(d, first));
    if (block_.window > 0) {
      const float last = static_cast<float>(first_distance_ + j + block_.window);
      sees = hn::And(sees, hn::Lt(lane, hn::Set(d, last)));
    }
    return hn::IfThenElse(sees, Score(j), hn::Set(d, -std::numeric_limits<float>::infinity()));
  }

  const cpu::SoftmaxBlock& block_;
  const float* const scores_;
  float* const weights_;
  const FloatVec scale_;
  const int64_t first_distance_;             // key 0 minus the position of lane 0
  int64_t whole_begin_ = 0, whole_end_ = 0;  // keys that every lane sees
};

void SoftmaxColumns(const cpu::SoftmaxBlock& block) {
  const FloatTag d;
  const FloatVec lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t c = 0; c < block.columns; c += kFloatLanes) {
    const ColumnVector column(block, c);
    const FloatVec old_max = hn::LoadU(d, block.max + c);
    const FloatVec max = column.Max(old_max);
    // A column that has seen no key yet: any finite shift keeps its exponentials 0 and not NaN.
    const FloatVec shift = hn::IfThenElse(hn::Eq(max, lowest), hn::Zero(d), max);
    const FloatVec rescale = ShortExp(hn::Sub(old_max, shift));
    const FloatVec sum = column.Exponentiate(shift);
    hn::StoreU(max, d, block.max + c);
    hn::StoreU(rescale, d, block.rescale + c);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, block.sum + c), rescale, sum), d, block.sum + c);
  }
}

void NormalizeRowsOf(const cpu::NormalizedRows& rows) {
  const FloatTag d;
  HWY_ALIGN float lse[kFloatLanes];
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t lane = i % kFloatLanes;
    if (lane == 0) {
      const FloatVec sum = hn::LoadU(d, rows.sum + i), max = hn::LoadU(d, rows.max + i);
      const FloatVec log = hn::IfThenElse(hn::IsNaN(sum), sum, hn::Log(d, sum));
      hn::Store(hn::Add(max, log), d, lse);
    }
    rows.lse[i * rows.lse_pitch] = lse[lane];
    const FloatVec factor = hn::Set(d, 1.0f / rows.sum[i]);
    const float* sums = rows.sums + i * rows.sums_pitch;
    float* out = rows.out + i * rows.out_pitch;
    VectorLoop(rows.dim, [&](int64_t c, auto step) HWY_ATTR {
      step.Store(hn::Mul(factor, step.Load(sums + c)), out + c);
    });
  }
}

void ScaleRowsOf(const float* factors, float* x, int64_t pitch, int64_t count, int64_t dim) {
  for (int64_t i = 0; i < count; ++i, x += pitch) {
    if (factors[i] == 1.0f) continue;
    const FloatVec factor = hn::Set(FloatTag(), factors[i]);
    VectorLoop(dim, [&](int64_t c, auto step)
                        HWY_ATTR { step.Store(hn::Mul(factor, step.Load(x + c)), x + c); });
  }
}

// One row of a SoftmaxGradientBlock, of whose keys [begin, end) count.
HWY_INLINE void SoftmaxGradientOfRow(float* scores, float* gradients, int64_t begin, int64_t end,
                                     int64_t keys, FloatVec scale, FloatVec lse, FloatVec delta) {
  const auto clear = [](float* x, int64_t from, int64_t to) HWY_ATTR {
    VectorLoop(to - from, [&](int64_t i, auto step)
                              HWY_ATTR { step.Store(hn::Zero(FloatTag()), x + from + i); });
  };
  if (begin > 0) clear(scores, 0, begin), clear(gradients, 0, begin);
  VectorLoop(end - begin, [&](int64_t i, auto step) HWY_ATTR {
    float* score = scores + begin + i;
    float* gradient = gradients + begin + i;
    const FloatVec p = ShortExp(hn::Sub(hn::Mul(step.Load(score), scale), lse));
    step.Store(p, score);
    step.Store(hn::Mul(hn::Mul(p, scale), hn::Sub(step.Load(gradient), delta)), gradient);
  });
  clear(scores, end, keys);
  clear(gradients, end, keys);
}

void SoftmaxGradient(const cpu::SoftmaxGradientBlock& block) {
  const FloatTag d;
  const FloatVec scale = hn::Set(d, block.scale);
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t position = r + block.first_position;
    const int64_t end = std::clamp<int64_t>(position + 1, 0, block.keys);
    const int64_t begin =
        block.window > 0 ? std::clamp<int64_t>(position - block.window + 1, 0, end) : 0;
    SoftmaxGradientOfRow(block.scores + r * block.pitch, block.gradients + r * block.pitch, begin,
                         end, block.keys, scale, hn::Set(d, block.lse[r * block.lse_pitch]),
                         hn::Set(d, block.delta[r]));
  }
}

void DotRowsOf(const float* a, int64_t a_pitch, const float* b, int64_t b_pitch, int64_t count,
               int64_t dim, float* out) {
  for (int64_t i = 0; i < count; ++i, a += a_pitch, b += b_pitch) {
    FloatVec sum = hn::Zero(FloatTag());
    VectorLoop(dim, [&](int64_t c, auto step)
                        HWY_ATTR { sum = hn::MulAdd(step.Load(a + c), step.Load(b + c), sum); });
    out[i] = SumLanes(sum);
  }
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {
namespace {

HWY_EXPORT(SoftmaxColumns);
HWY_EXPORT(NormalizeRowsOf);
HWY_EXPORT(ScaleRowsOf);
HWY_EXPORT(SoftmaxGradient);
HWY_EXPORT(DotRowsOf);

}  // namespace

namespace cpu {

void SoftmaxOfColumns(const SoftmaxBlock& block) { HWY_DYNAMIC_DISPATCH(SoftmaxColumns)(block); }

void NormalizeRows(const NormalizedRows& rows) { HWY_DYNAMIC_DISPATCH(NormalizeRowsOf)(rows); }

void ScaleRows(const float* factors, float* x, int64_t pitch, int64_t count, int64_t dim) {
  HWY_DYNAMIC_DISPATCH(ScaleRowsOf)(factors, x, pitch, count, dim);
}

void SoftmaxGradientOfBlock(const SoftmaxGradientBlock& block) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradient)(block);
}

void DotRows(const float* a, int64_t a_pitch, const float* b, int64_t b_pitch, int64_t count,
             int64_t dim, float* out) {
  HWY_DYNAMIC_DISPATCH(DotRowsOf)(a, a_pitch, b, b_pitch, count, dim, out);
}

}  // namespace cpu
}  // namespace meshfold
#endif  // HWY_ONCE
