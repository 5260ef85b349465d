#include "core/nn/init.h"

#include "core/backend/backend.h"
#include "core/base/rng.h"

namespace meshfold {

void Allocate(Parameter& parameter) {
  parameter.value.SetData(Tensor::Empty(parameter.part.shape(), parameter.dtype));
}

void Initialize(Parameter& parameter, uint64_t seed) {
  Allocate(parameter);
  const Tensor& data = parameter.value.data();
  if (parameter.init.kind == InitSpec::Kind::kConstant) {
    CurrentBackend().Fill(parameter.init.value, data);
    return;
  }
  // 16-bit parameters are rounded from the f32 draw, so that they equal f32 masters rounded.
  Tensor drawn = data.dtype() == DType::kF32 ? data : Tensor::Empty(data.shape());
  RngKey key = MakeRngKey(seed, parameter.name);
  const Tensor rows = drawn.AsMatrix();
  ForEachRun(parameter.part, parameter.shape, [&](int64_t global, int64_t local, int64_t count) {
    CurrentBackend().RandomNormal(key, static_cast<uint64_t>(global), 0.0, parameter.init.value,
                                  rows.Narrow(local / rows.cols(), count / rows.cols()));
  });
  if (data.dtype() != DType::kF32) CurrentBackend().Copy(drawn, data);
}

void Initialize(Module& module, uint64_t seed) {
  module.VisitParameters([seed](Parameter& parameter) { Initialize(parameter, seed); });
}

}  // namespace meshfold
