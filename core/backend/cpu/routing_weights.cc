// Small kernels on routing weights: elements and columns picked by index, rows scaled to a sum.
#include <algorithm>

#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"

namespace meshfold {
namespace {

// Addresses of flat logical indices in rows that may be padded.
class FlatElements {
 public:
  explicit FlatElements(const Tensor& tensor)
      : data_(tensor.data<float>()),
        numel_(tensor.numel()),
        cols_(tensor.IsContiguous() ? std::max<int64_t>(1, tensor.numel()) : tensor.cols()),
        pitch_(tensor.pitch()) {}
  float& operator[](int64_t i) const {
    MF_CHECK_LT(i, numel_);
    return i < cols_ ? data_[i] : data_[i / cols_ * pitch_ + i % cols_];
  }

 private:
  float* data_;
  int64_t numel_, cols_, pitch_;
};

float SumOfRow(const float* row, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += row[i];
  return static_cast<float>(sum);
}

}  // namespace

void CpuBackend::GatherElements(const Tensor& x, const Tensor& index, const Tensor& out) {
  const FlatElements from(x), to(out);
  const int32_t* source = index.span<int32_t>().data();
  cpu::ParallelRows(index.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = source[i] < 0 ? 0.0f : from[source[i]];
  });
}

void CpuBackend::ScatterElements(const Tensor& x, const Tensor& index, const Tensor& out) {
  Fill(0, out);
  const FlatElements from(x), to(out);
  const int32_t* target = index.span<int32_t>().data();
  cpu::ParallelRows(index.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (target[i] >= 0) to[target[i]] = from[i];
    }
  });
}

void CpuBackend::GatherCols(const Tensor& scores, const Tensor& ids, const Tensor& out) {
  const int64_t top_k = ids.cols(), cols = scores.cols();
  const cpu::Rows<float> scores_rows(scores), out_rows(out);
  const cpu::Rows<int32_t> id_rows(ids);
  cpu::ParallelRows(ids.rows(), top_k, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = scores_rows[row];
      const int32_t* id = id_rows[row];
      float* to = out_rows[row];
      for (int64_t k = 0; k < top_k; ++k) {
        MF_CHECK_LT(id[k], cols);
        to[k] = id[k] < 0 ? 0.0f : from[id[k]];
      }
    }
  });
}

void CpuBackend::GatherColsBackward(const Tensor& ids, const Tensor& dout, const Tensor& dscores) {
  const int64_t top_k = ids.cols(), cols = dscores.cols();
  const cpu::Rows<float> dout_rows(dout), dscores_rows(dscores);
  const cpu::Rows<int32_t> id_rows(ids);
  cpu::ParallelRows(ids.rows(), cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t* id = id_rows[row];
      const float* from = dout_rows[row];
      float* to = dscores_rows[row];
      std::fill_n(to, cols, 0.0f);
      for (int64_t k = 0; k < top_k; ++k) {
        MF_CHECK_LT(id[k], cols);
        if (id[k] >= 0) to[id[k]] += from[k];
      }
    }
  });
}

void CpuBackend::NormalizeRows(const Tensor& w, double eps, double scale, const Tensor& out) {
  const int64_t cols = w.cols();
  const cpu::Rows<float> w_rows(w), out_rows(out);
  cpu::ParallelRows(w.rows(), cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = w_rows[row];
      float* to = out_rows[row];
      const float factor = static_cast<float>(scale / (SumOfRow(from, cols) + eps));
      for (int64_t i = 0; i < cols; ++i) to[i] = factor * from[i];
    }
  });
}

// With s = rowsum(w) + eps: dw_i = scale / s (dout_i - sum_j(dout_j w_j) / s).
void CpuBackend::NormalizeRowsBackward(const Tensor& w, double eps, double scale,
                                       const Tensor& dout, const Tensor& dw) {
  const int64_t cols = w.cols();
  const cpu::Rows<float> w_rows(w), dout_rows(dout), dw_rows(dw);
  cpu::ParallelRows(w.rows(), 2 * cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = w_rows[row];
      const float* gradient = dout_rows[row];
      float* to = dw_rows[row];
      const double sum = SumOfRow(from, cols) + eps;
      double dot = 0;
      for (int64_t i = 0; i < cols; ++i) dot += static_cast<double>(gradient[i]) * from[i];
      const float factor = static_cast<float>(scale / sum), mean = static_cast<float>(dot / sum);
      for (int64_t i = 0; i < cols; ++i) to[i] = factor * (gradient[i] - mean);
    }
  });
}

}  // namespace meshfold
