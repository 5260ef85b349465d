// Arguments of vector kernels that take more than a few pointers. A header of their own, since the
// kernels' .cc files are included once for each instruction set.
#pragma once

#include <cstdint>

namespace meshfold::cpu {

// One contiguous run: out[i] = f(a[i], b[i]; s, t). Members that f does not use stay empty.
struct MapRun {
  const float* a = nullptr;
  const float* b = nullptr;
  float* out = nullptr;
  int64_t n = 0;
  float s = 0, t = 0;
};

// One slice of n elements that is normed alone; `weight` already holds 1 + w where zero-centred.
struct NormSlice {
  const float* x = nullptr;
  const float* residual = nullptr;  // or null
  const float* weight = nullptr;
  float* sum = nullptr;  // x + residual; written only with a residual
  float* y = nullptr;
  int64_t n = 0;
  double eps = 0;
};

struct NormBackwardSlice {
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* dy = nullptr;
  const float* dsum = nullptr;  // or null
  float* dx = nullptr;          // or null
  float* dweight = nullptr;     // added to, or null
  int64_t n = 0;
  float rstd = 0;
};

// Factors of one AdamW step; see AdamW in optimizer_step.cc.
struct AdamWFactors {
  float decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_root, eps;
  float grad_scale;
};

struct AdamWRun {
  float* param = nullptr;  // the f32 parameter or its f32 master
  const float* grad = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  int64_t n = 0;
};

struct SgdRun {
  float* param = nullptr;
  const float* grad = nullptr;
  float* momentum_buffer = nullptr;  // or null
  int64_t n = 0;
  float decay = 1, momentum = 0, lr = 0, grad_scale = 1;
};

// How one token chooses its experts (SelectExpertsArgs). The limits bound a kernel's stack.
inline constexpr int64_t kMaxExperts = 4096;
inline constexpr int64_t kMaxGroups = 256;

struct Selection {
  const float* bias = nullptr;  // [num_experts] or null
  int64_t num_experts = 0, top_k = 0;
  int64_t num_groups = 1, top_k_groups = 1;
};

}  // namespace meshfold::cpu
