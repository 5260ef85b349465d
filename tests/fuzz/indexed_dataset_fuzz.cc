// Fuzzes the .idx parser: the first two bytes are the size of the .bin file, the rest is the .idx.
// Whatever they are, it must refuse them or return sequences that lie inside the .bin.
#include <cstdint>
#include <string>

#include "core/base/check.h"
#include "core/data/indexed_dataset.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string bin(data[0] + 256 * data[1], 'x');
  absl::Span<const char> idx(reinterpret_cast<const char*>(data) + 2, size - 2);
  auto index = meshfold::TokenIndex::Parse(idx, bin.size(), "fuzz");
  if (!index.ok()) {
    MF_CHECK(!index.status().message().empty());
    return 0;
  }
  volatile char sink = 0;
  int64_t sequences = 0;
  for (int64_t d = 0; d < index->num_documents(); ++d) {
    for (int64_t s = index->document_begin(d); s < index->document_begin(d + 1); ++s) {
      MF_CHECK_EQ(s, sequences++);
      int64_t bytes = index->sequence_length(s) * SizeOf(index->type());
      for (int64_t i = 0; i < bytes; ++i) sink = bin.at(index->sequence_offset(s) + i);
    }
  }
  (void)sink;
  MF_CHECK_EQ(sequences, index->num_sequences());
  return 0;
}
