#include "core/tensor/box.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/check.h"

namespace meshfold {
namespace {

// Calls body(whole_row_address, part_row_address) for each row of the box.
template <typename Body>
void ForEachRow(const Tensor& whole, const Box& box, const Tensor& part, Body body) {
  MF_CHECK(part.shape() == box.shape()) << " " << part.ToString() << " for " << box.ToString();
  MF_CHECK(part.dtype() == whole.dtype()) << " " << part.ToString() << ", " << whole.ToString();
  const int64_t size = SizeOf(part.dtype());
  auto address = [size](const Tensor& tensor, int64_t flat) {
    const int64_t cols = tensor.cols();
    return static_cast<char*>(tensor.raw()) + (flat / cols * tensor.pitch() + flat % cols) * size;
  };
  ForEachRun(box, whole.shape(), [&](int64_t in_whole, int64_t in_part, int64_t count) {
    for (int64_t done = 0; done < count; done += part.cols()) {
      body(address(whole, in_whole + done), address(part, in_part + done));
    }
  });
}

}  // namespace

Box Box::Whole(const Shape& shape) {
  Box box;
  box.start.assign(static_cast<size_t>(shape.rank()), 0);
  box.extent.assign(shape.dims().begin(), shape.dims().end());
  return box;
}

std::string Box::ToString() const {
  std::vector<std::string> dims;
  for (size_t d = 0; d < start.size(); ++d) {
    dims.push_back(absl::StrCat(start[d], ":", start[d] + extent[d]));
  }
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

void ForEachRun(const Box& box, const Shape& whole, RunVisitor copy) {
  ForEachRun(box, 0, box.shape().numel(), whole, copy);
}

void ForEachRun(const Box& box, int64_t begin, int64_t end, const Shape& whole, RunVisitor copy) {
  if (begin >= end) return;
  if (whole.rank() == 0) return copy(0, 0, 1);
  auto start = [&](int d) { return box.start[static_cast<size_t>(d)]; };
  auto extent = [&](int d) { return box.extent[static_cast<size_t>(d)]; };
  // Dims that the box spans whole join the one before them: dims [inner, rank) make up a run.
  int inner = whole.rank() - 1;
  int64_t inner_stride = 1;
  for (; inner > 0 && extent(inner) == whole[inner]; --inner) inner_stride *= whole[inner];
  const int64_t run = extent(inner) * inner_stride;
  for (int64_t at = begin; at < end;) {
    const int64_t in_run = at % run;
    int64_t rest = at / run;
    int64_t in_whole = start(inner) * inner_stride + in_run, stride = inner_stride;
    for (int d = inner - 1; d >= 0; --d) {
      stride *= whole[d + 1];
      in_whole += (start(d) + rest % extent(d)) * stride;
      rest /= extent(d);
    }
    const int64_t count = std::min(run - in_run, end - at);
    copy(in_whole, at, count);
    at += count;
  }
}

void CopyFromWhole(const Tensor& whole, const Box& box, const Tensor& part) {
  const size_t bytes = static_cast<size_t>(part.cols() * SizeOf(part.dtype()));
  ForEachRow(whole, box, part,
             [bytes](const char* from, char* to) { std::memcpy(to, from, bytes); });
}

void CopyIntoWhole(const Tensor& part, const Box& box, const Tensor& whole) {
  const size_t bytes = static_cast<size_t>(part.cols() * SizeOf(part.dtype()));
  ForEachRow(whole, box, part,
             [bytes](char* to, const char* from) { std::memcpy(to, from, bytes); });
}

}  // namespace meshfold
