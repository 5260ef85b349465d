// What this machine is and whether it is fit to train on: the first thing to run when something is
// slow or missing.
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "train/commands/commands.h"
#include "train/runtime.h"

namespace meshfold::train {
namespace {

void Print(const char* what, const std::string& value) {
  std::printf("%-22s %s\n", what, value.c_str());
}

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (absl::StartsWith(line, "model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// The vector units that kernels choose among at run time.
std::string VectorUnits() {
  std::string units;
  auto add = [&](bool has, const char* name) {
    if (has) absl::StrAppend(&units, units.empty() ? "" : ", ", name);
  };
#if defined(__x86_64__)
  add(__builtin_cpu_supports("avx2"), "AVX2");
  add(__builtin_cpu_supports("fma"), "FMA");
  add(__builtin_cpu_supports("avx512f"), "AVX-512");
#endif
  return units.empty() ? "none known" : units;
}

std::string FreeMemory() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return "unknown";
  double unit = static_cast<double>(info.mem_unit) / (1 << 30);
  return absl::StrFormat("%.1f GiB, %.1f GiB free", unit * static_cast<double>(info.totalram),
                         unit * static_cast<double>(info.freeram + info.bufferram));
}

std::string FreeDisk() {
  struct statvfs info {};
  if (statvfs(".", &info) != 0) return "unknown";
  return absl::StrFormat("%.1f GiB free here", static_cast<double>(info.f_bavail) *
                                                   static_cast<double>(info.f_frsize) / (1 << 30));
}

std::string OnPath(const char* program) {
  std::string command = absl::StrCat("command -v ", program, " >/dev/null 2>&1");
  return std::system(command.c_str()) == 0 ? "found" : "missing";
}

absl::Status PrintGemmRate(int threads) {
  MF_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Create({.threads = threads}));
  Print(
      absl::StrFormat("GEMM, %d thread%s", threads, threads == 1 ? "" : "s").c_str(),
      absl::StrFormat("%.1f GFLOP/s (f32, 1024 x 1024 x 1024)", runtime->MeasureGemmRate() * 1e-9));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDoctor() {
  Print("CPU", CpuModel());
  Print("vector units", VectorUnits());
  Print("usable cores", absl::StrCat(NumUsableCores()));
  Print("memory", FreeMemory());
  Print("disk", FreeDisk());
  Print("mpirun", OnPath("mpirun"));
  Print("python3", OnPath("python3"));
  Print("backends", absl::StrJoin(BackendRegistry().Names(), ", "));
  MF_RETURN_IF_ERROR(PrintGemmRate(1));
  if (NumUsableCores() > 1) MF_RETURN_IF_ERROR(PrintGemmRate(NumUsableCores()));
  return absl::OkStatus();
}

}  // namespace meshfold::train
