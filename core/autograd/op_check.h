// Argument checks shared by the ops: each throws StatusError (InvalidArgument) that starts with
// "[Op]" and tells both values.
#pragma once

#include <vector>

#include "absl/strings/str_cat.h"
#include "core/autograd/variable.h"
#include "core/base/check.h"

namespace meshfold {

// Activations are f32.
void CheckF32(const char* op, const char* what, const Variable& value);

// Weights are f32, bf16 or f16.
void CheckWeightDType(const char* op, const char* what, const Variable& weight);

void CheckSameShape(const char* op, const Variable& a, const Variable& b);

void CheckShape(const char* op, const char* what, const Variable& value, const Shape& wanted);

// Ids, rows and positions are i32.
void CheckIndex(const char* op, const char* what, const Tensor& index);

// Ids on the host in [0, bound), or negative when `negative_ok`.
void CheckIds(const char* op, const char* what, const Tensor& ids, int64_t bound, bool negative_ok);

// u8 [rows], or undefined.
void CheckValid(const char* op, const Tensor& valid, int64_t rows);

}  // namespace meshfold
