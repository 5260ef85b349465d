#include "core/backend/cpu/row_loop.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/parallel_for.h"

namespace meshfold::cpu {

int NumThreads() { return CurrentContext().num_threads; }

void ParallelRows(int64_t rows, int64_t cols, absl::FunctionRef<void(int64_t, int64_t)> body) {
  const int64_t grain = std::max<int64_t>(1, kMinElementsPerThread / std::max<int64_t>(1, cols));
  ParallelFor(rows, grain, NumThreads(), body);
}

void ParallelRuns(absl::Span<const Tensor> tensors,
                  absl::FunctionRef<void(const RunOffsets&, int64_t)> body) {
  const Tensor& first = tensors[0];
  bool flat = true;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    MF_CHECK_EQ(tensor.numel(), first.numel());
    MF_CHECK_EQ(tensor.cols(), first.cols());
    flat = flat && tensor.IsContiguous();
  }
  if (flat) {
    ParallelFor(first.numel(), kMinElementsPerThread, NumThreads(),
                [&](int64_t begin, int64_t end) {
                  RunOffsets offsets(tensors);
                  offsets.Set(0, begin);
                  body(offsets, end - begin);
                });
    return;
  }
  ParallelRows(first.rows(), first.cols(), [&](int64_t begin, int64_t end) {
    RunOffsets offsets(tensors);
    for (int64_t row = begin; row < end; ++row) {
      offsets.Set(row, 0);
      body(offsets, first.cols());
    }
  });
}

int64_t NumRowChunks(int64_t rows) { return (rows + kRowsPerChunk - 1) / kRowsPerChunk; }

void ParallelRowChunks(int64_t rows, int64_t cols,
                       absl::FunctionRef<void(int64_t, int64_t, int64_t)> body) {
  ParallelRows(NumRowChunks(rows), kRowsPerChunk * cols, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kRowsPerChunk;
      body(chunk, first, std::min(rows, first + kRowsPerChunk));
    }
  });
}

}  // namespace meshfold::cpu
