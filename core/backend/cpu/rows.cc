// Kernels that move whole rows: token permutation, its weighted sum back, embeddings.
#include <algorithm>
#include <cstring>

#include "core/backend/cpu/convert.h"
#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"
#include "core/base/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/rows.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

// out = (((base + rows[0]) + rows[1]) + ...); `base` may be null (then it is left out) or `out`.
void SumRows(const float* base, const float* const* rows, int64_t num_rows, float* out, int64_t n) {
  VectorLoop(n, [&](int64_t i, auto step) HWY_ATTR {
    FloatVec sum = step.Load((base != nullptr ? base : rows[0]) + i);
    for (int64_t k = base != nullptr ? 0 : 1; k < num_rows; ++k) {
      sum = hn::Add(sum, step.Load(rows[k] + i));
    }
    step.Store(sum, out + i);
  });
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {

HWY_EXPORT(SumRows);

namespace {

// Collects rows and adds them to `out` in order, some at a time so that `out` is rarely touched.
class RowAdder {
 public:
  // Starts from zero, or from what `out` holds.
  RowAdder(float* out, int64_t n, bool accumulate) : out_(out), n_(n), started_(accumulate) {}
  void Add(const float* row) {
    rows_[count_++] = row;
    if (count_ == kBatch) Flush();
  }
  void Finish() {
    if (count_ > 0) Flush();
    if (!started_) std::fill_n(out_, n_, 0.0f);
  }

 private:
  static constexpr int64_t kBatch = 16;
  void Flush() {
    HWY_DYNAMIC_DISPATCH(SumRows)(started_ ? out_ : nullptr, rows_, count_, out_, n_);
    started_ = true;
    count_ = 0;
  }

  float* out_;
  int64_t n_;
  bool started_;
  const float* rows_[kBatch];
  int64_t count_ = 0;
};

}  // namespace

void CpuBackend::GatherRows(const Tensor& x, const Tensor& index, int64_t divisor,
                            const Tensor& out) {
  MF_CHECK(x.dtype() == out.dtype() && x.cols() == out.cols());
  const int32_t* source = index.span<int32_t>().data();
  const int64_t size = SizeOf(x.dtype()), bytes = x.cols() * size;
  const char* from = static_cast<const char*>(x.raw());
  char* to = static_cast<char*>(out.raw());
  cpu::ParallelRows(out.rows(), out.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      char* to_row = to + row * out.pitch() * size;
      if (source[row] < 0) {
        std::memset(to_row, 0, static_cast<size_t>(bytes));
        continue;
      }
      const int64_t from_row = source[row] / divisor;
      MF_CHECK_LT(from_row, x.rows());
      std::memcpy(to_row, from + from_row * x.pitch() * size, static_cast<size_t>(bytes));
    }
  });
}

void CpuBackend::CombineRows(const Tensor& y, const Tensor& token_rows, const Tensor& out) {
  const cpu::Rows<float> y_rows(y), out_rows(out);
  const cpu::Rows<int32_t> row_ids(token_rows);
  const int64_t top_k = token_rows.cols();
  cpu::ParallelRows(out.rows(), (top_k + 1) * out.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int32_t* rows = row_ids[token];
      RowAdder sum(out_rows[token], out.cols(), /*accumulate=*/false);
      for (int64_t k = 0; k < top_k; ++k) {
        if (rows[k] < 0) continue;
        MF_CHECK_LT(rows[k], y.rows());
        sum.Add(y_rows[rows[k]]);
      }
      sum.Finish();
    }
  });
}

void CpuBackend::Embedding(const Tensor& table, const Tensor& ids, const Tensor& out) {
  MF_CHECK_EQ(table.cols(), out.cols());
  const int32_t* id = ids.span<int32_t>().data();
  const char* from = static_cast<const char*>(table.raw());
  const cpu::Rows<float> out_rows(out);
  const int64_t row_bytes = table.pitch() * SizeOf(table.dtype());
  cpu::ParallelRows(out.rows(), out.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      MF_CHECK_LT(id[token], table.rows()) << " id";
      if (id[token] < 0) {
        std::fill_n(out_rows[token], out.cols(), 0.0f);
        continue;
      }
      cpu::ConvertRun(table.dtype(), from + id[token] * row_bytes, DType::kF32, out_rows[token],
                      out.cols());
    }
  });
}

// Each table row has a chain of its tokens, ascending; blocks of table rows go to threads as these
// become free, since few ids own most tokens.
void CpuBackend::EmbeddingBackward(const Tensor& ids, const Tensor& dy, bool accumulate,
                                   const Tensor& dtable) {
  constexpr int64_t kBlockRows = 256;
  const int64_t vocabulary = dtable.rows(), cols = dtable.cols(), tokens = ids.numel();
  const int32_t* id = ids.span<int32_t>().data();
  const cpu::Rows<float> dy_rows(dy), dtable_rows(dtable);
  const Tensor chains = Tensor::Contiguous({vocabulary + tokens}, DType::kI32);
  int32_t* first = chains.data<int32_t>();
  int32_t* next = first + vocabulary;
  std::fill_n(first, vocabulary, -1);
  for (int64_t token = tokens - 1; token >= 0; --token) {
    MF_CHECK_LT(id[token], vocabulary) << " id";
    if (id[token] < 0) continue;
    next[token] = first[id[token]];
    first[id[token]] = static_cast<int32_t>(token);
  }
  const int64_t blocks = (vocabulary + kBlockRows - 1) / kBlockRows;
  ParallelForDynamic(blocks, cpu::NumThreads(), [&](int64_t block) {
    const int64_t end = std::min(vocabulary, (block + 1) * kBlockRows);
    for (int64_t row = block * kBlockRows; row < end; ++row) {
      RowAdder sum(dtable_rows[row], cols, accumulate);
      for (int32_t token = first[row]; token >= 0; token = next[token]) {
        sum.Add(dy_rows[token]);
      }
      sum.Finish();
    }
  });
}

}  // namespace meshfold
#endif  // HWY_ONCE
