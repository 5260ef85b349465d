// Byte sizes as users write and read them, and the hard limits of the named memory pools.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace meshfold::memory {

// Hard limits per rank, in bytes; 0: none. The pools are where tensors can live: `device` computes,
// `host` and `nvme` receive what is offloaded.
struct PoolLimits {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;
};

// "1024", "4GiB", "1.5 GiB", "250MB" as bytes: a number, then B, kB, MB, GB, TB (powers of 1000) or
// KiB, MiB, GiB, TiB (powers of 1024). InvalidArgument with the text when it is anything else,
// negative, not a whole number of bytes or above 2^62.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

// The shortest text that ParseBytes reads back exactly: "4GiB", "1536MiB", "1000".
std::string BytesToText(int64_t bytes);

// For messages: "1.50 GiB", "12 B". Rounded.
std::string BytesForHumans(int64_t bytes);

}  // namespace meshfold::memory
