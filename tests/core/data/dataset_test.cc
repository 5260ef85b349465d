#include "core/data/dataset.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/data/indexed_dataset.h"
#include "core/data/text_corpus.h"
#include "core/data/token_file.h"
#include "tests/core/data/memory_dataset.h"
#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

constexpr char kGoldens[] = "tests/core/data/testdata/";

using DatasetTest = ScratchTest;

TEST(DatasetHelpersTest, CountAndReadTokens) {
  MemoryDataset dataset({{1, 2}, {}, {3}});
  EXPECT_EQ(NumTokens(dataset), 3);
  EXPECT_EQ(*ReadDocument(dataset, 0), std::vector<int32_t>({1, 2}));
  EXPECT_EQ(*ReadDocument(dataset, 1), std::vector<int32_t>());
}

TEST_F(DatasetTest, OpensBySourceName) {
  auto opens_as = [](const std::string& source, auto* type) {
    auto dataset = OpenDataset(source);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() && dynamic_cast<decltype(type)>(dataset->get()) != nullptr;
  };
  const IndexedDataset* indexed = nullptr;
  EXPECT_TRUE(opens_as(absl::StrCat(kGoldens, "small"), indexed));
  EXPECT_TRUE(opens_as(absl::StrCat(kGoldens, "small.idx"), indexed));
  EXPECT_TRUE(opens_as(absl::StrCat(kGoldens, "small.bin"), indexed));
  const TokenFile* token_file = nullptr;
  EXPECT_TRUE(opens_as(absl::StrCat(kGoldens, "u16.npy"), token_file));
  const TextCorpus* text = nullptr;
  EXPECT_TRUE(opens_as(Put("a.txt", "text"), text));
  EXPECT_TRUE(opens_as(Path("*.txt"), text));
}

TEST_F(DatasetTest, MissingSourcesAreNamed) {
  EXPECT_TRUE(FailsWith(OpenDataset(Path("x")), absl::StatusCode::kNotFound, Path("x")));
  EXPECT_TRUE(FailsWith(OpenDataset(Path("x.npy")), absl::StatusCode::kNotFound, Path("x.npy")));
  EXPECT_TRUE(FailsWith(OpenDataset(Path("x.bin")), absl::StatusCode::kNotFound, Path("x.idx")));
  EXPECT_TRUE(FailsWith(OpenDataset(Path("x.safetensors")), absl::StatusCode::kNotFound,
                        Path("x.safetensors")));
}

}  // namespace
}  // namespace meshfold
