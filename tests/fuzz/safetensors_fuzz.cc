// Fuzzes the safetensors header parser: whatever the bytes are, it must refuse them or return
// tensors that lie inside them, each of its own size, without hole or overlap.
#include <cstdint>
#include <map>

#include "core/base/check.h"
#include "core/io/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::Span<const char> file(reinterpret_cast<const char*>(data), size);
  auto header = meshfold::ParseSafetensorsHeader(file, size, "fuzz");
  if (!header.ok()) {
    MF_CHECK(!header.status().message().empty());
    return 0;
  }
  int64_t data_bytes = static_cast<int64_t>(size) - header->data_begin;
  MF_CHECK_GE(data_bytes, 0);
  int64_t covered = 0;
  volatile char sink = 0;
  for (const auto& entry : header->tensors) {
    const meshfold::SafetensorsInfo& info = entry.second;
    MF_CHECK(0 <= info.begin && info.begin <= info.end && info.end <= data_bytes);
    auto bytes = meshfold::TensorBytes(info.dtype, info.shape);
    MF_CHECK(bytes.ok());
    MF_CHECK_EQ(*bytes, info.end - info.begin);
    covered += *bytes;
    for (int64_t i = info.begin; i < info.end; ++i) sink = file[header->data_begin + i];
  }
  (void)sink;
  MF_CHECK_EQ(covered, data_bytes);
  return 0;
}
