// Modules against f64 references.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/nn/module.h"
#include "core/nn/step_context.h"

namespace meshfold::testing {

// Allocates every parameter of `module` and fills it with normal values around `mean` (norm weights
// and biases too: zeros and ones hide bugs), a function of its name.
void FillRandom(Module& module, double stddev = 0.4, DType dtype = DType::kF32);

// Values and gradients of a module's parameters by name, as f64.
std::map<std::string, std::vector<double>> ValuesOf(Module& module);
std::vector<double> GradientOf(Module& module, const std::string& name);

// The parameter called `name`; a gtest failure when there is none.
Parameter& ParameterNamed(Module& module, const std::string& name);

// A batch of `total` tokens cut into documents, with random tokens and targets of `vocab` ids.
PackedBatch RandomBatch(const std::vector<int32_t>& cu_seqlens, int32_t vocab = 11);

// Runs `module` on x, checks the output, and the gradients of x and of every parameter for random
// dy, against `reference`: a function of x and of the parameters by name. Within `rel_of_max` of
// the largest element of each.
using ModuleReference = std::function<std::vector<double>(
    const std::vector<double>& x, const std::map<std::string, std::vector<double>>& parameters)>;
void ExpectModule(Module& module, const Tensor& x, const PackedBatch& batch,
                  const ModuleReference& reference, double rel_of_max);

}  // namespace meshfold::testing
