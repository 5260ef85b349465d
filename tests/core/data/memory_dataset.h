// A dataset of tokens given in the test.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/data/dataset.h"

namespace meshfold {

class MemoryDataset : public Dataset {
 public:
  explicit MemoryDataset(std::vector<std::vector<int32_t>> documents, std::string name = "memory")
      : documents_(std::move(documents)), name_(std::move(name)) {}

  int64_t num_documents() const override { return static_cast<int64_t>(documents_.size()); }
  int64_t document_length(int64_t i) const override {
    return static_cast<int64_t>(documents_[i].size());
  }
  absl::Status Read(int64_t i, int64_t begin, int64_t count, int32_t* out) const override {
    MF_CHECK(begin >= 0 && count >= 0 && begin + count <= document_length(i));
    std::copy_n(documents_[i].begin() + begin, count, out);
    return absl::OkStatus();
  }
  int64_t vocab_bound() const override { return int64_t{1} << 31; }
  const std::string& name() const override { return name_; }

 private:
  std::vector<std::vector<int32_t>> documents_;
  std::string name_;
};

// Documents of the given lengths whose tokens are 0, 1, 2, ... through all of them: a token tells
// where it comes from.
inline std::shared_ptr<MemoryDataset> CountingDataset(const std::vector<int64_t>& lengths,
                                                      std::string name = "memory") {
  std::vector<std::vector<int32_t>> documents;
  int32_t next = 0;
  for (int64_t length : lengths) {
    documents.emplace_back();
    for (int64_t t = 0; t < length; ++t) documents.back().push_back(next++);
  }
  return std::make_shared<MemoryDataset>(std::move(documents), std::move(name));
}

}  // namespace meshfold
