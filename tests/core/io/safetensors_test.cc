#include "core/io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <string>
#include <vector>

#include "core/base/exec_context.h"
#include "core/tensor/allocator.h"
#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

constexpr char kHfGolden[] = "tests/core/io/testdata/hf.safetensors";
constexpr char kForeignGolden[] = "tests/core/io/testdata/foreign.safetensors";

class SafetensorsTest : public ScratchTest {
 protected:
  SafetensorsTest() : scope_(context_) {}

  template <typename T>
  static Tensor From(const std::vector<T>& values, const Shape& shape) {
    return TensorFromVector<T>(values, shape);
  }

  // The tensors of make_golden.py, in its order.
  static std::vector<NamedTensor> GoldenTensors() {
    std::vector<NamedTensor> tensors = {
        {"z.bytes", From<uint8_t>({0, 127, 255}, {3})},
        {"model.layers.0.weight", From<float>({1.5f, -2.0f, 0.25f, 3.0f}, {2, 2})},
        {"b.half", Convert({0.5f, -65504.0f}, {2}, DType::kF16)},
        {"a.brain", Convert({1, 2, 3, -4, 0.5f, 1e30f}, {2, 3}, DType::kBF16)},
        {"ids", From<int64_t>({0, -1, int64_t{1} << 40}, {3})},
        {"steps", From<int32_t>({7}, {})},
        {"moments", Tensor::Empty({2}, DType::kF64)},
        {"empty", Tensor::Empty({0, 4})},
        {"odd \"name\"\n\u00e9", From<float>({9.0f}, {1})},
    };
    tensors[6].tensor.data<double>()[0] = 1e-300;
    tensors[6].tensor.data<double>()[1] = 3.0;
    return tensors;
  }

  static Tensor Convert(const std::vector<float>& values, const Shape& shape, DType dtype) {
    Tensor tensor = Tensor::Contiguous(shape, dtype);
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF16) tensor.data<F16>()[i] = ToF16(values[i]);
      if (dtype == DType::kBF16) tensor.data<BF16>()[i] = ToBF16(values[i]);
    }
    return tensor;
  }

 private:
  ExecContext context_{.allocator = &SystemHostAllocator()};
  ScopedExecContext scope_;
};

TEST_F(SafetensorsTest, ReadsAFileOfTheReferenceLibrary) {
  auto file = SafetensorsFile::Open(kHfGolden);
  MF_ASSERT_OK(file);
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
  ASSERT_EQ((*file)->names().size(), 9u);
  for (const NamedTensor& expected : GoldenTensors()) {
    absl::StatusOr<Tensor> tensor = (*file)->Read(expected.name);
    MF_ASSERT_OK(tensor);
    EXPECT_EQ(tensor->shape(), expected.tensor.shape()) << expected.name;
    EXPECT_EQ(tensor->dtype(), expected.tensor.dtype()) << expected.name;
    EXPECT_EQ(ToVector<double>(*tensor), ToVector<double>(expected.tensor)) << expected.name;
  }
}

TEST_F(SafetensorsTest, WritesTheBytesOfTheReferenceLibrary) {
  std::string path = Path("x.safetensors");
  MF_ASSERT_OK(WriteSafetensors(path, GoldenTensors()));
  EXPECT_EQ(*ReadFile(path), *ReadFile(kHfGolden));
}

TEST_F(SafetensorsTest, ReadsTypesThatTensorsDoNotHave) {
  auto opened = SafetensorsFile::Open(kForeignGolden);
  MF_ASSERT_OK(opened);
  const SafetensorsFile& file = **opened;
  auto values = [&](absl::string_view name) { return ToVector<int64_t>(*file.Read(name)); };
  EXPECT_EQ(values("bool"), std::vector<int64_t>({1, 0, 1}));
  EXPECT_EQ(values("i8"), std::vector<int64_t>({-128, 127}));
  EXPECT_EQ(values("i16"), std::vector<int64_t>({-32768, 32767}));
  EXPECT_EQ(values("u16"), std::vector<int64_t>({0, 65535}));
  EXPECT_EQ(values("u32"), std::vector<int64_t>({0, 4294967295}));
  EXPECT_TRUE(FailsWith(file.Read("u64"), absl::StatusCode::kOutOfRange, "9223372036854775813"));
  // Refused only where asked for, by name; the bytes are there.
  EXPECT_TRUE(FailsWith(file.Read("f8"), absl::StatusCode::kUnimplemented, "'f8' of '"));
  EXPECT_TRUE(FailsWith(file.Read("complex"), absl::StatusCode::kUnimplemented, "C64"));
  ASSERT_EQ(file.bytes("f8")->size(), 2u);
  EXPECT_EQ((*file.bytes("f8"))[0], 0x38);
}

TEST_F(SafetensorsTest, ReadsIntoPaddedTensorsOfAnotherType) {
  constexpr int64_t kRows = 3, kCols = 512;
  std::vector<float> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 200) - 100.0f;
  std::string path = Path("x.safetensors");
  std::vector<NamedTensor> tensors = {{"w", From(values, {kRows, kCols})}};
  ASSERT_FALSE(tensors[0].tensor.IsContiguous());
  MF_ASSERT_OK(WriteSafetensors(path, tensors));
  auto file = SafetensorsFile::Open(path);
  MF_ASSERT_OK(file);
  Tensor bf16 = Tensor::Empty({kRows, kCols}, DType::kBF16);
  ASSERT_FALSE(bf16.IsContiguous());
  MF_ASSERT_OK((*file)->Read("w", bf16));
  EXPECT_EQ(ToVector<float>(bf16), values) << "small integers are exact in bf16";
  Tensor part = Tensor::Empty({2, 256});
  MF_ASSERT_OK((*file)->ReadRange("w", 700, part));
  EXPECT_EQ(ToVector<float>(part), std::vector<float>(values.begin() + 700, values.begin() + 1212));
  EXPECT_TRUE(FailsWith((*file)->ReadRange("w", kRows * kCols - 511, part),
                        absl::StatusCode::kOutOfRange, "'w'"));
  EXPECT_TRUE(FailsWith((*file)->ReadRange("w", -1, part), absl::StatusCode::kOutOfRange, "-1"));
}

TEST_F(SafetensorsTest, MessagesNameTensorAndFile) {
  auto file = SafetensorsFile::Open(kHfGolden);
  MF_ASSERT_OK(file);
  EXPECT_TRUE(FailsWith((*file)->Read("nope"), absl::StatusCode::kNotFound, "'nope'"));
  EXPECT_TRUE(FailsWith((*file)->info("nope"), absl::StatusCode::kNotFound, kHfGolden));
  absl::Status wrong_shape = (*file)->Read("a.brain", Tensor::Empty({3, 2}));
  EXPECT_TRUE(FailsWith(wrong_shape, absl::StatusCode::kInvalidArgument, "[2, 3]"));
  EXPECT_TRUE(FailsWith(wrong_shape, absl::StatusCode::kInvalidArgument, "[3, 2]"));
  EXPECT_TRUE(FailsWith((*file)->Read("a.brain", Tensor::Empty({2, 3}, DType::kI32)),
                        absl::StatusCode::kInvalidArgument, "'a.brain'"));
}

TEST_F(SafetensorsTest, RefusesATruncatedFile) {
  std::string bytes = *ReadFile(kHfGolden);
  std::string path = Put("cut.safetensors", absl::string_view(bytes).substr(0, bytes.size() - 1));
  EXPECT_TRUE(FailsWith(SafetensorsFile::Open(path), absl::StatusCode::kInvalidArgument, path));
  EXPECT_TRUE(FailsWith(SafetensorsFile::Open(Path("absent")), absl::StatusCode::kNotFound,
                        Path("absent")));
}

TEST_F(SafetensorsTest, WriterTakesTensorsInPiecesAndConverts) {
  std::string path = Path("x.safetensors");
  SafetensorsWriterOptions options{.metadata = {}, .sort = false};
  auto created = SafetensorsWriter::Create(path,
                                           {{"raw", FileDType::kF8E4M3, {4}},
                                            {"none", FileDType::kF32, {0}},
                                            {"bf16", FileDType::kBF16, {2}}},
                                           options);
  MF_ASSERT_OK(created);
  SafetensorsWriter& writer = **created;
  MF_ASSERT_OK(writer.AppendBytes("raw", std::string("ab")));
  EXPECT_TRUE(FailsWith(writer.AppendBytes("raw", std::string("cde")),
                        absl::StatusCode::kInvalidArgument, "2 more bytes and gets 3"));
  EXPECT_TRUE(FailsWith(writer.Close(), absl::StatusCode::kFailedPrecondition,
                        "2 bytes before the end of 'raw'"));
  MF_ASSERT_OK(writer.AppendBytes("raw", std::string("cd")));
  EXPECT_TRUE(FailsWith(writer.Append("raw", From<float>({1}, {1})),
                        absl::StatusCode::kInvalidArgument, "'bf16' is due"));
  EXPECT_TRUE(FailsWith(writer.Append("bf16", From<float>({1}, {1})),
                        absl::StatusCode::kInvalidArgument, "[2]"));
  MF_ASSERT_OK(writer.Append("bf16", From<float>({1, -2}, {2})));
  EXPECT_TRUE(FailsWith(writer.Append("bf16", From<float>({1, -2}, {2})),
                        absl::StatusCode::kInvalidArgument, "the end is due"));
  EXPECT_FALSE(FileExists(path));
  MF_ASSERT_OK(writer.Close());
  auto file = SafetensorsFile::Open(path);
  MF_ASSERT_OK(file);
  EXPECT_TRUE((*file)->metadata().empty());
  EXPECT_EQ(std::string((*file)->bytes("raw")->data(), 4), "abcd");
  EXPECT_EQ((*file)->info("bf16")->begin, 4);
  EXPECT_EQ(ToVector<float>(*(*file)->Read("bf16")), std::vector<float>({1, -2}));
}

TEST_F(SafetensorsTest, FullDiskIsAnErrorAndLeavesTheOldFile) {
  std::string path = Put("x.safetensors", "old");
  auto previous_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit previous;
  getrlimit(RLIMIT_FSIZE, &previous);
  rlimit limit = {1 << 20, previous.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  std::vector<NamedTensor> tensors = {{"w", Tensor::Contiguous({1 << 20}, DType::kF32)}};
  absl::Status status = WriteSafetensors(path, tensors);
  setrlimit(RLIMIT_FSIZE, &previous);
  std::signal(SIGXFSZ, previous_handler);
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kResourceExhausted, path));
  EXPECT_EQ(*ReadFile(path), "old");
  EXPECT_EQ(ListDirectory(directory())->size(), 1u);
}

// A pool that gives nothing.
class EmptyPool : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    return absl::ResourceExhaustedError(absl::StrCat("pool 'device' has no ", bytes, " bytes"));
  }
  void Free(void*, int64_t) override {}
  AllocatorStats stats() const override { return {}; }
  DeviceKind device() const override { return DeviceKind::kHost; }
};

TEST_F(SafetensorsTest, FullPoolIsAStatus) {
  auto file = SafetensorsFile::Open(kHfGolden);
  MF_ASSERT_OK(file);
  EmptyPool pool;
  EXPECT_TRUE(
      FailsWith((*file)->Read("a.brain", pool), absl::StatusCode::kResourceExhausted, "12 bytes"));
}

}  // namespace
}  // namespace meshfold
