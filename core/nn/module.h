// Module: a part of a model with named parameters; boundaries are the seams where axes step in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/autograd/variable.h"
#include "core/nn/layout.h"
#include "core/nn/step_context.h"
#include "core/tensor/box.h"
#include "core/tensor/dtype.h"

namespace meshfold {

// How a parameter starts.
struct InitSpec {
  enum class Kind { kNormal, kConstant };
  Kind kind = Kind::kNormal;
  double value = 0.02;  // stddev of kNormal (mean 0), or the constant
};

// A trained tensor. `value` is a leaf Variable; its tensor is undefined until Initialize or a load.
struct Parameter {
  std::string name;           // "layers.0.attention.q.weight": unique, independent of layout
  Shape shape;                // global shape
  Box part;                   // of it that this rank holds: the shape of `value`; at first all
  DType dtype = DType::kF32;  // storage; f32, bf16 or f16
  Variable value;
  Layout layout;            // where the value lives
  Layout grad_layout;       // over which axes a fresh gradient is still partial
  std::vector<int> stages;  // pipeline stages that hold it; empty: all
  InitSpec init;
  bool decay = true;    // weight decay applies (matrices yes; norms, biases no)
  bool trained = true;  // false: a buffer that is saved with the model but has no gradient
};

// A new parameter: a leaf that requires a gradient, with an undefined tensor.
Parameter MakeParameter(std::string name, Shape shape, InitSpec init, bool decay = true);

class Module;
using ParameterVisitor = absl::FunctionRef<void(Parameter&)>;
using ModuleVisitor = absl::FunctionRef<void(Module&)>;

class Module {
 public:
  // Runs before or after Forward, on the activation: where axes gather, scatter or reduce.
  using Boundary = std::function<Variable(const Variable& x, StepContext& context)>;

  virtual ~Module() = default;

  // pre-boundary, Forward, post-boundary. x [T, D]; throws StatusError.
  Variable operator()(const Variable& x, StepContext& context);

  // Every parameter of this module and its children, once, in a fixed order. Shared (tied)
  // parameters are visited by their owner only.
  virtual void VisitParameters(ParameterVisitor visit) = 0;

  // This module, then those inside it: how axes find the layers that they change.
  virtual void VisitModules(ModuleVisitor visit) { visit(*this); }

  // After the optimizer step, outside the graph: balancing biases move here. The span holds the
  // contexts of the step's micro-batches.
  virtual void OnStepEnd(absl::Span<const std::unique_ptr<StepContext>> contexts) {
    (void)contexts;
  }

  void set_pre_boundary(Boundary boundary) { pre_boundary_ = std::move(boundary); }
  void set_post_boundary(Boundary boundary) { post_boundary_ = std::move(boundary); }

 protected:
  virtual Variable Forward(const Variable& x, StepContext& context) = 0;

 private:
  Boundary pre_boundary_, post_boundary_;
};

// All parameters of `module`, in VisitParameters order.
std::vector<Parameter*> ParametersOf(Module& module);

}  // namespace meshfold
