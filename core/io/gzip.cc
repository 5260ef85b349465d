#include "core/io/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"

namespace meshfold {
namespace {

// Inflates one member from the stream's input; appends to `text`.
absl::Status InflateMember(z_stream& stream, int64_t max_bytes, const std::string& path,
                           std::string& text) {
  std::string chunk(1 << 16, '\0');
  while (true) {
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = chunk.size();
    int code = inflate(&stream, Z_NO_FLUSH);
    text.append(chunk.data(), chunk.size() - stream.avail_out);
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("[Gzip] '", path, "' holds more than ", max_bytes, " bytes"));
    }
    if (code == Z_STREAM_END) return absl::OkStatus();
    if (code == Z_OK) continue;
    return absl::DataLossError(absl::StrCat("[Gzip] '", path, "' is damaged: ",
                                            stream.msg != nullptr ? stream.msg
                                            : code == Z_BUF_ERROR ? "it ends early"
                                                                  : zError(code)));
  }
}

}  // namespace

bool IsGzipName(absl::string_view path) {
  return absl::EndsWith(path, ".gz") || absl::EndsWith(path, ".dz");
}

absl::StatusOr<std::string> ReadGzipFile(const std::string& path, int64_t max_bytes) {
  MF_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  absl::Span<const char> input = file->bytes();
  if (input.size() > UINT32_MAX) {
    return absl::ResourceExhaustedError(
        absl::StrCat("[Gzip] '", path, "' is ", input.size(), " bytes long, more than 4 GiB"));
  }
  z_stream stream = {};
  constexpr int kGzipOnly = 15 + 16;
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) {
    return absl::ResourceExhaustedError("[Gzip] zlib cannot be initialised");
  }
  auto end_inflate = [](z_stream* s) { inflateEnd(s); };
  std::unique_ptr<z_stream, decltype(end_inflate)> ender(&stream, end_inflate);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
  stream.avail_in = input.size();
  std::string text;
  do {
    MF_RETURN_IF_ERROR(InflateMember(stream, max_bytes, path, text));
    inflateReset(&stream);
  } while (stream.avail_in > 0);
  return text;
}

}  // namespace meshfold
