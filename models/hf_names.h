// How our parameters appear under Hugging Face's tensor names: fused here, split there.
#pragma once

#include <string>
#include <vector>

#include "core/tensor/tensor.h"
#include "models/family.h"
#include "models/model_config.h"

namespace meshfold::models {

// How experts stand in a file: a tensor for each (the hub's form), or all in one.
enum class HfExpertForm { kSplit, kFused };

// One tensor of a file: a view of (part of) a parameter, in the file's shape.
struct HfTensor {
  std::string name;
  Tensor view;
};

// The tensors that `parameter_name` ("layers.0.moe.experts.gate_up") becomes; `tensor` has the
// parameter's global shape and may hold its value, its gradient or a moment. Views share memory, so
// they serve for reading and for writing. A name that no family knows is a check failure.
std::vector<HfTensor> HfTensorsOf(const Family& family, const std::string& parameter_name,
                                  const Tensor& tensor, HfExpertForm form);

}  // namespace meshfold::models
