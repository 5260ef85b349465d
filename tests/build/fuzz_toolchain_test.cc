// Proves that mf_fuzz_test builds and runs: LZ4 must survive any bytes and give back its own.
#include <lz4.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const char* bytes = reinterpret_cast<const char*>(data);
  const int length = static_cast<int>(size);
  std::string plain(1 << 16, '\0');
  LZ4_decompress_safe(bytes, plain.data(), length, static_cast<int>(plain.size()));

  std::string packed(LZ4_compressBound(length), '\0');
  const int packed_length =
      LZ4_compress_default(bytes, packed.data(), length, static_cast<int>(packed.size()));
  const int back = LZ4_decompress_safe(packed.data(), plain.data(), packed_length,
                                       static_cast<int>(plain.size()));
  if (back != length || plain.compare(0, size, bytes, size) != 0) std::abort();
  return 0;
}
