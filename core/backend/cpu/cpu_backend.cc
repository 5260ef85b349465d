#include "core/backend/cpu/cpu_backend.h"

namespace meshfold {
namespace {

class CpuStream : public Stream {
 public:
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend() { return std::make_unique<CpuBackend>(); }

}  // namespace

CpuBackend::CpuBackend() : stream_(std::make_unique<CpuStream>()) {}
CpuBackend::~CpuBackend() = default;

std::string CpuBackend::name() const { return "cpu"; }
Stream& CpuBackend::default_stream() { return *stream_; }

MF_REGISTER(BackendRegistry(), "cpu", MakeCpuBackend);

}  // namespace meshfold
