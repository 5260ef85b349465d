// How CPU kernels split work: over threads by rows or flat runs, and over fixed chunks of rows
// where rows are summed, so that a sum has the same bits for any number of threads.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace meshfold::cpu {

// Elements a thread should have before waking it pays (a wake-up costs about 20 us).
inline constexpr int64_t kMinElementsPerThread = 32768;

// Threads of the current context.
int NumThreads();

// Row addresses with the checks of Tensor::row done once; null rows for an undefined tensor.
template <typename T>
class Rows {
 public:
  explicit Rows(const Tensor& tensor)
      : data_(tensor.defined() ? tensor.data<T>() : nullptr), pitch_(tensor.pitch()) {}
  explicit operator bool() const { return data_ != nullptr; }
  T* operator[](int64_t row) const { return data_ == nullptr ? nullptr : data_ + row * pitch_; }

 private:
  T* data_;
  int64_t pitch_;
};

// Whether row `row` counts: `valid` is u8 [T], or undefined: all do.
class ValidRows {
 public:
  explicit ValidRows(const Tensor& valid)
      : valid_(valid.defined() ? valid.span<uint8_t>().data() : nullptr) {}
  bool operator[](int64_t row) const { return valid_ == nullptr || valid_[row] != 0; }

 private:
  const uint8_t* valid_;
};

// Calls body(begin_row, end_row) over rows of `cols` elements, split over the threads.
void ParallelRows(int64_t rows, int64_t cols, absl::FunctionRef<void(int64_t, int64_t)> body);

// One contiguous run of elements that several tensors share: run.at(i) is the first element of the
// run in tensor i.
class RunOffsets {
 public:
  explicit RunOffsets(absl::Span<const Tensor> tensors) : tensors_(tensors) {}
  void Set(int64_t row, int64_t col) { row_ = row, col_ = col; }
  int64_t at(size_t i) const { return row_ * tensors_[i].pitch() + col_; }

 private:
  absl::Span<const Tensor> tensors_;
  int64_t row_ = 0, col_ = 0;
};

// Calls body(offsets, count) for runs that cover all elements of `tensors`, which agree in rows and
// columns, split over the threads: whole rows, or longer flat runs when no tensor has padding.
void ParallelRuns(absl::Span<const Tensor> tensors,
                  absl::FunctionRef<void(const RunOffsets&, int64_t count)> body);

// Rows summed together before chunks are added in ascending order.
inline constexpr int64_t kRowsPerChunk = 64;
int64_t NumRowChunks(int64_t rows);

// Calls body(chunk, begin_row, end_row) for every chunk of kRowsPerChunk rows of `cols` elements.
void ParallelRowChunks(int64_t rows, int64_t cols,
                       absl::FunctionRef<void(int64_t, int64_t, int64_t)> body);

}  // namespace meshfold::cpu
