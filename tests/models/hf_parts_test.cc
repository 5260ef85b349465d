// Hugging Face directories and models that are spread over ranks: each reads its parts.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor/box.h"
#include "gtest/gtest.h"
#include "models/decoder.h"
#include "models/hf_io.h"
#include "tests/core/io/scratch.h"
#include "tests/models/hf_directories.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::models {
namespace {

class HfPartsTest : public ScratchTest {
 protected:
  testing::ScopedTestContext context_;
};

// Third `index` of every dim that parameters are cut on: rows, and where there are four dims the
// hidden ones of experts too.
Box PartOfThird(const Shape& shape, int64_t index) {
  Box box = Box::Whole(shape);
  for (int d = 0; d < shape.rank(); d += 2) {
    const size_t i = static_cast<size_t>(d);
    const int64_t each = (shape[d] + 2) / 3;
    box.start[i] = std::min(shape[d], index * each);
    box.extent[i] = std::min(shape[d], (index + 1) * each) - box.start[i];
  }
  return box;
}

TEST_F(HfPartsTest, FillsThePartsWithThoseOfTheWhole) {
  for (const std::string name : {"mixtral_gqa", "qwen3_moe_norm_k3"}) {
    for (const char* form : {"hf", "hf_fused"}) {
      absl::StatusOr<HfDirectory> directory = OpenHf(HfGoldenPath(name, form));
      MF_ASSERT_OK(directory);
      auto whole = BuildDecoder(directory->config), part = BuildDecoder(directory->config);
      MF_ASSERT_OK(LoadHfWeights(*directory, **whole, HfDType::kOfFile));
      for (int64_t third = 0; third < 3; ++third) {
        for (Parameter* parameter : ParametersOf(**part)) {
          parameter->part = PartOfThird(parameter->shape, third);
        }
        MF_ASSERT_OK(LoadHfWeights(*directory, **part, HfDType::kOfFile));
        const std::vector<Parameter*> wholes = ParametersOf(**whole), parts = ParametersOf(**part);
        ASSERT_EQ(wholes.size(), parts.size());
        for (size_t i = 0; i < wholes.size(); ++i) {
          const Tensor& all = wholes[i]->value.data();
          const Tensor wanted =
              testing::UnwrittenTensor(parts[i]->part.shape(), parts[i]->value.data().dtype());
          CopyFromWhole(all, parts[i]->part, wanted);
          testing::ExpectBitEqual(
              testing::WithPadding(parts[i]->value.data(), testing::Padding::kNone), wanted,
              parts[i]->name);
        }
      }
    }
  }
}

TEST_F(HfPartsTest, RefusesToWriteParts) {
  absl::StatusOr<HfDirectory> directory = OpenHf(HfGoldenPath("mixtral_gqa", "hf"));
  MF_ASSERT_OK(directory);
  auto model = BuildDecoder(directory->config);
  Parameter& embedding = *ParametersOf(**model).front();
  embedding.part.extent[0] = 7;
  MF_ASSERT_OK(LoadHfWeights(*directory, **model, HfDType::kOfFile));
  const absl::Status status = WriteHf(Path("out"), directory->config, **model, {});
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kInvalidArgument,
                        "holds the part [0:7, 0:" + std::to_string(embedding.shape[1]) + "] of '" +
                            embedding.name + "'"));
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kInvalidArgument, "meshfold convert"));
  EXPECT_FALSE(FileExists(Path("out")));
}

}  // namespace
}  // namespace meshfold::models
