// Filling, copying and drawing: kernels that only move bytes.
#include <algorithm>
#include <cstring>

#include "core/backend/cpu/convert.h"
#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"
#include "core/base/parallel_for.h"

namespace meshfold {
namespace {

// Host copies are done when they return.
class ReadyCompletion : public Completion {
 public:
  bool Done() override { return true; }
  absl::Status HostWait(absl::Duration /*deadline*/) override { return absl::OkStatus(); }
  void WaitOn(Stream& /*stream*/) override {}
};

void CopyBytes(const void* from, void* to, int64_t bytes) {
  ParallelFor(bytes, 4 * cpu::kMinElementsPerThread, cpu::NumThreads(),
              [&](int64_t begin, int64_t end) {
                std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                            static_cast<size_t>(end - begin));
              });
}

template <typename T>
void FillRuns(double value, const Tensor& out) {
  T element;
  cpu::ConvertScalar(value, DTypeOf<T>::value, &element);
  T* data = out.data<T>();
  cpu::ParallelRuns({out}, [&](const cpu::RunOffsets& at, int64_t count) {
    std::fill_n(data + at.at(0), count, element);
  });
}

// Normals of the flat interval [begin, end) in a 16-bit type, through a small f32 buffer.
struct NormalDraw {
  RngKey key;
  uint64_t first_index;
  float mean, stddev;

  void Draw(int64_t index, float* out, int64_t count) const {
    FillNormal(key, first_index + static_cast<uint64_t>(index), mean, stddev,
               absl::MakeSpan(out, static_cast<size_t>(count)));
  }

  template <typename T>
  void DrawRounded(const Tensor& out, int64_t begin, int64_t end) const {
    ForEachPiece<T>(out, begin, end, [&](T* piece, int64_t first, int64_t count) {
      constexpr int64_t kBuffer = 1024;
      float buffer[kBuffer];
      for (int64_t i = 0; i < count; i += kBuffer) {
        const int64_t n = std::min(kBuffer, count - i);
        Draw(first + i, buffer, n);
        cpu::ConvertRun(DType::kF32, buffer, out.dtype(), piece + i, n);
      }
    });
  }
};

}  // namespace

void CpuBackend::Fill(double value, const Tensor& out) {
  switch (out.dtype()) {
    case DType::kF32:
      return FillRuns<float>(value, out);
    case DType::kBF16:
      return FillRuns<BF16>(value, out);
    case DType::kF16:
      return FillRuns<F16>(value, out);
    case DType::kF64:
      return FillRuns<double>(value, out);
    case DType::kI32:
      return FillRuns<int32_t>(value, out);
    case DType::kI64:
      return FillRuns<int64_t>(value, out);
    case DType::kU8:
      return FillRuns<uint8_t>(value, out);
  }
}

void CpuBackend::Copy(const Tensor& x, const Tensor& out) {
  const int64_t x_size = SizeOf(x.dtype()), out_size = SizeOf(out.dtype());
  const char* from = static_cast<const char*>(x.raw());
  char* to = static_cast<char*>(out.raw());
  cpu::ParallelRuns({x, out}, [&](const cpu::RunOffsets& at, int64_t count) {
    cpu::ConvertRun(x.dtype(), from + at.at(0) * x_size, out.dtype(), to + at.at(1) * out_size,
                    count);
  });
}

std::unique_ptr<Completion> CpuBackend::CopyToHost(const Tensor& x, void* host) {
  MF_CHECK(x.IsContiguous()) << " " << x.ToString();
  CopyBytes(x.raw(), host, x.nbytes());
  return std::make_unique<ReadyCompletion>();
}

std::unique_ptr<Completion> CpuBackend::CopyFromHost(const void* host, const Tensor& out) {
  MF_CHECK(out.IsContiguous()) << " " << out.ToString();
  CopyBytes(host, out.raw(), out.nbytes());
  return std::make_unique<ReadyCompletion>();
}

void CpuBackend::RandomNormal(RngKey key, uint64_t first_index, double mean, double stddev,
                              const Tensor& out) {
  const NormalDraw draw = {key, first_index, static_cast<float>(mean), static_cast<float>(stddev)};
  constexpr int64_t kGrain = 4096;  // a draw costs some 20 times a copied element
  ParallelFor(out.numel(), kGrain, cpu::NumThreads(), [&](int64_t begin, int64_t end) {
    if (out.dtype() == DType::kBF16) return draw.DrawRounded<BF16>(out, begin, end);
    if (out.dtype() == DType::kF16) return draw.DrawRounded<F16>(out, begin, end);
    ForEachPiece<float>(out, begin, end, [&](float* piece, int64_t first, int64_t count) {
      draw.Draw(first, piece, count);
    });
  });
}

}  // namespace meshfold
