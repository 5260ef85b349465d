#include "core/autograd/op_check.h"

namespace meshfold {

void CheckF32(const char* op, const char* what, const Variable& value) {
  if (value.data().dtype() == DType::kF32) return;
  ThrowInvalidArgument(
      absl::StrCat("[", op, "] ", what, " must be f32, is ", value.data().ToString()));
}

void CheckWeightDType(const char* op, const char* what, const Variable& weight) {
  DType dtype = weight.data().dtype();
  if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16) return;
  ThrowInvalidArgument(absl::StrCat("[", op, "] ", what, " must be f32, bf16 or f16, is ",
                                    weight.data().ToString()));
}

void CheckSameShape(const char* op, const Variable& a, const Variable& b) {
  if (a.shape() == b.shape()) return;
  ThrowInvalidArgument(absl::StrCat("[", op, "] shapes differ: ", a.shape().ToString(), " and ",
                                    b.shape().ToString()));
}

void CheckShape(const char* op, const char* what, const Variable& value, const Shape& wanted) {
  if (value.shape() == wanted) return;
  ThrowInvalidArgument(absl::StrCat("[", op, "] ", what, " has shape ", value.shape().ToString(),
                                    ", wanted ", wanted.ToString()));
}

void CheckIndex(const char* op, const char* what, const Tensor& index) {
  if (index.dtype() == DType::kI32) return;
  ThrowInvalidArgument(absl::StrCat("[", op, "] ", what, " must be i32, is ", index.ToString()));
}

void CheckIds(const char* op, const char* what, const Tensor& ids, int64_t bound,
              bool negative_ok) {
  CheckIndex(op, what, ids);
  if (ids.device() != DeviceKind::kHost) return;  // checked where they were loaded
  for (int64_t r = 0; r < ids.rows(); ++r) {
    const int32_t* row = ids.row<int32_t>(r);
    for (int64_t c = 0; c < ids.cols(); ++c) {
      if (row[c] < bound && (row[c] >= 0 || negative_ok)) continue;
      ThrowInvalidArgument(absl::StrCat("[", op, "] ", what, " ", row[c], " at position ",
                                        r * ids.cols() + c, " out of range [0, ", bound, ")"));
    }
  }
}

void CheckValid(const char* op, const Tensor& valid, int64_t rows) {
  if (!valid.defined()) return;
  if (valid.dtype() == DType::kU8 && valid.numel() == rows) return;
  ThrowInvalidArgument(
      absl::StrCat("[", op, "] valid must be u8 [", rows, "], is ", valid.ToString()));
}

}  // namespace meshfold
