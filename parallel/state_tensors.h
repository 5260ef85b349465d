// The tensors of a model and its optimizer, by their names in a checkpoint, with the parameters
// that say which part of which whole each is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/nn/module.h"
#include "core/tensor/tensor.h"
#include "optim/optimizer.h"
#include "parallel/sharding_context.h"

namespace meshfold::parallel {

inline constexpr char kModelPrefix[] = "model/";
inline constexpr char kOptimizerPrefix[] = "optimizer/";

// A parameter's value, a moment or a master of it: all have the shape of parameter->part.
struct StateTensor {
  std::string name;  // "model/head.weight", "optimizer/m/head.weight"
  Tensor tensor;     // undefined for a parameter without a value
  const Parameter* parameter = nullptr;
};

// All of them, in a fixed order; `optimizer` null: the model's alone. InvalidArgument, naming it,
// for a tensor that has not the shape of its parameter's part and for state that belongs to no
// parameter.
absl::StatusOr<std::vector<StateTensor>> StateTensorsOf(Module& model, optim::Optimizer* optimizer);

// The tensor itself when it is on the host, else a copy there. Throws StatusError.
Tensor ToHost(const Tensor& tensor);

// Whether the copies of `parameter` that pipeline stage `stage` holds count in checkpoints and
// gathers: those of the first of its stages do, of stage 0 where it names none.
bool IsFirstStage(const Parameter& parameter, int64_t stage);

// Whether parameter.part is what the layout gives this rank, as the other ranks count on.
// InvalidArgument ("is the part ..., its layout says ..."); errors as of LocalBox.
absl::Status CheckPartOf(const Parameter& parameter, const ShardingContext& sharding);

}  // namespace meshfold::parallel
