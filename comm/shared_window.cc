#include "comm/shared_window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"

namespace meshfold::comm {
namespace {

constexpr int64_t kPage = 4096;
// In front: the nonce, by which a rank knows that it has opened the right file.
constexpr int64_t kFrontBytes = 64;

// A window may take one part in so many of the machine's memory.
constexpr int kMemoryShare = 16;

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

absl::Status SystemError(absl::string_view call, int error) {
  const std::string message = absl::StrCat("shared window: ", call, ": ", std::strerror(error));
  if (error == ENOMEM || error == ENOSPC || error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::UnavailableError(message);
}

}  // namespace

SharedWindow::SharedWindow(const SharedWindowShape& shape)
    : shape_(shape),
      headers_at_(kFrontBytes + shape.num_ranks * static_cast<int64_t>(sizeof(SharedProgress))),
      slots_at_(RoundUp(headers_at_ + shape.num_ranks * shape.num_slots *
                                          static_cast<int64_t>(sizeof(SharedHeader)),
                        kPage)),
      bytes_(slots_at_ + shape.num_ranks * shape.num_slots * shape.slot_bytes) {
  static_assert(std::atomic<int64_t>::is_always_lock_free);  // else it means nothing to others
  MF_CHECK(shape.num_ranks >= 1 && shape.num_slots >= 1 && shape.slot_bytes >= 64 &&
           shape.slot_bytes % 64 == 0);
}

SharedWindow::~SharedWindow() {
  CloseAddress();
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(bytes_));
}

absl::StatusOr<std::shared_ptr<SharedWindow>> SharedWindow::Create(const SharedWindowShape& shape) {
  // Setting memory aside ends where the machine's does, with the end of some process: so not near
  // it. In floating point, where no shape overflows.
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const double wanted = 1.0 * shape.num_ranks * shape.num_slots * shape.slot_bytes;
  if (wanted > memory / kMemoryShare) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shared window: ", wanted, " bytes of the ", memory, " that the machine has"));
  }
  std::shared_ptr<SharedWindow> window(new SharedWindow(shape));
  window->file_ = memfd_create("meshfold_window", MFD_CLOEXEC);
  if (window->file_ < 0) return SystemError("memfd_create", errno);
  // Fresh bytes are zero, which is where all progress begins.
  if (const int error = posix_fallocate(window->file_, 0, window->bytes_); error != 0) {
    return SystemError(absl::StrCat("setting aside ", window->bytes_, " bytes"), error);
  }
  MF_RETURN_IF_ERROR(window->Map(window->file_));
  const int64_t nonce =
      std::chrono::steady_clock::now().time_since_epoch().count() * 65537 + getpid();
  std::memcpy(window->memory_, &nonce, sizeof(nonce));
  return window;
}

absl::StatusOr<std::shared_ptr<SharedWindow>> SharedWindow::Open(const SharedWindowShape& shape,
                                                                 const Address& address) {
  const std::string path = absl::StrCat("/proc/", address.process, "/fd/", address.file);
  // The size first: opening something else that stands there, a pipe say, could wait for ever.
  std::shared_ptr<SharedWindow> window(new SharedWindow(shape));
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return SystemError(path, errno);
  if (!S_ISREG(found.st_mode) || found.st_size != window->bytes_) {
    return absl::UnavailableError(absl::StrCat("shared window: ", path, " is another file"));
  }
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return SystemError(path, errno);
  const absl::Status mapped = window->Map(file);
  close(file);
  MF_RETURN_IF_ERROR(mapped);
  if (window->address().nonce != address.nonce) {
    return absl::UnavailableError(absl::StrCat("shared window: ", path, " is another window"));
  }
  return window;
}

absl::Status SharedWindow::Map(int file) {
  // Populated: the first sums are not to wait for page faults.
  void* memory = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_POPULATE, file, 0);
  if (memory == MAP_FAILED) return SystemError("mmap", errno);
  memory_ = static_cast<char*>(memory);
  return absl::OkStatus();
}

SharedWindow::Address SharedWindow::address() const {
  Address address{getpid(), file_, 0};
  std::memcpy(&address.nonce, memory_, sizeof(address.nonce));
  return address;
}

void SharedWindow::CloseAddress() {
  const int file = std::exchange(file_, -1);
  if (file >= 0) close(file);
}

SharedProgress& SharedWindow::progress(int rank) const {
  return *reinterpret_cast<SharedProgress*>(memory_ + kFrontBytes +
                                            rank * static_cast<int64_t>(sizeof(SharedProgress)));
}

SharedHeader& SharedWindow::header(int rank, int64_t sequence) const {
  return *reinterpret_cast<SharedHeader*>(memory_ + headers_at_ +
                                          SlotIndex(rank, sequence) *
                                              static_cast<int64_t>(sizeof(SharedHeader)));
}

char* SharedWindow::slot(int rank, int64_t sequence) const {
  return memory_ + slots_at_ + SlotIndex(rank, sequence) * shape_.slot_bytes;
}

int64_t SharedWindow::SlotIndex(int rank, int64_t sequence) const {
  return rank * shape_.num_slots + sequence % shape_.num_slots;
}

}  // namespace meshfold::comm
