#include "core/data/tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

TEST(ByteTokenizerTest, RoundTripsEveryByte) {
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  ByteTokenizer tokenizer;
  std::vector<int32_t> ids = tokenizer.Encode(text);
  ASSERT_EQ(ids.size(), 256u);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(ids[i], i);
  EXPECT_EQ(*tokenizer.Decode(ids), text);
}

TEST(ByteTokenizerTest, SeparatorIsAnIdOfTheVocabulary) {
  ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 256);
  ASSERT_TRUE(tokenizer.eos().has_value());
  EXPECT_EQ(*tokenizer.eos(), 0);
}

TEST(ByteTokenizerTest, RefusesIdsOutsideTheVocabulary) {
  ByteTokenizer tokenizer;
  EXPECT_TRUE(FailsWith(tokenizer.Decode({65, 256}), absl::StatusCode::kOutOfRange,
                        "id 256 out of range [0, 256) at position 1"));
  EXPECT_TRUE(FailsWith(tokenizer.Decode({-1}), absl::StatusCode::kOutOfRange, "id -1"));
}

}  // namespace
}  // namespace meshfold
