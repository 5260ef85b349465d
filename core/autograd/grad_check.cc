#include "core/autograd/grad_check.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/rng.h"

namespace meshfold {
namespace {

using Op = absl::FunctionRef<Variable(absl::Span<const Variable>)>;

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> Normals(uint64_t seed, uint64_t stream, size_t count) {
  RngKey key = FoldIn(MakeRngKey(seed, "grad_check"), stream);
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = NormalAt(key, i);
  return values;
}

// One op at one point, as a scalar function: sum of weights times output.
class Checker {
 public:
  Checker(Op op, absl::Span<const Tensor> inputs, const GradCheckOptions& options)
      : op_(op), inputs_(inputs.begin(), inputs.end()), options_(options) {}

  absl::Status Run() {
    std::vector<Variable> leaves;
    for (const Tensor& input : inputs_) leaves.push_back(Variable::Leaf(input));
    Variable out = op_(leaves);
    if (!out.requires_grad()) {
      return absl::UnimplementedError("[CheckGradients] the op recorded no gradient");
    }
    weights_ = Normals(options_.seed, 0, static_cast<size_t>(out.shape().numel()));
    std::vector<float> weights_f32(weights_.begin(), weights_.end());
    weights_.assign(weights_f32.begin(), weights_f32.end());
    Backward({Root{out, TensorFromVector(weights_f32, out.shape())}}, {.leaves = leaves});
    for (size_t i = 0; i < leaves.size(); ++i) {
      analytic_ = ToVector<double>(leaves[i].grad().tensor());
      absl::Status status = CheckInput(i);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckInput(size_t input) {
    size_t n = analytic_.size();
    double squares = 0.0;
    for (double value : ToVector<double>(inputs_[input])) squares += value * value;
    double rms = std::sqrt(squares / static_cast<double>(std::max<size_t>(n, 1)));
    step_ = options_.step * (rms > 0.0 ? rms : 1.0);
    double typical =
        std::sqrt(Dot(analytic_, analytic_) / static_cast<double>(std::max<size_t>(n, 1)));
    for (int d = 0; d < options_.num_directions; ++d) {
      uint64_t stream = 1 + input * static_cast<uint64_t>(options_.num_directions) + d;
      std::vector<double> direction = Normals(options_.seed, stream, n);
      double analytic = Dot(analytic_, direction), numeric = Numeric(input, direction);
      double scale = std::max(
          {typical * std::sqrt(Dot(direction, direction)), std::abs(analytic), std::abs(numeric)});
      // Written so that NaN fails.
      if (std::abs(analytic - numeric) <= options_.tolerance * scale) continue;
      return Explain(input, std::move(direction));
    }
    return absl::OkStatus();
  }

  // Central difference along `direction`.
  double Numeric(size_t input, const std::vector<double>& direction) const {
    return (Value(input, direction, step_) - Value(input, direction, -step_)) / (2.0 * step_);
  }

  double Value(size_t input, const std::vector<double>& direction, double step) const {
    std::vector<float> moved = ToVector<float>(inputs_[input]);
    for (size_t i = 0; i < moved.size(); ++i) {
      moved[i] = static_cast<float>(moved[i] + step * direction[i]);
    }
    std::vector<Variable> variables;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      bool is_moved = i == input;
      variables.emplace_back(is_moved ? TensorFromVector(moved, inputs_[i].shape()) : inputs_[i]);
    }
    ScopedGradMode no_grad(GradMode::kNoGrad);
    return Dot(weights_, ToVector<double>(op_(variables).data()));
  }

  // Follows the larger error of the two halves of `direction` down to one element.
  absl::Status Explain(size_t input, std::vector<double> direction) const {
    size_t begin = 0, end = direction.size();
    while (end - begin > 1) {
      size_t middle = begin + (end - begin) / 2;
      std::vector<double> low = Restricted(direction, begin, middle);
      std::vector<double> high = Restricted(direction, middle, end);
      bool go_low = !(Error(input, low) < Error(input, high));
      (go_low ? end : begin) = middle;
    }
    std::vector<double> unit(direction.size(), 0.0);
    unit[begin] = 1.0;
    return absl::InvalidArgumentError(absl::StrCat(
        "[CheckGradients] input ", input, " ", inputs_[input].ToString(), ", element ", begin,
        ": gradient ", analytic_[begin], ", finite difference ", Numeric(input, unit)));
  }

  double Error(size_t input, const std::vector<double>& direction) const {
    return std::abs(Dot(analytic_, direction) - Numeric(input, direction));
  }

  static std::vector<double> Restricted(std::vector<double> direction, size_t begin, size_t end) {
    for (size_t i = 0; i < direction.size(); ++i) {
      if (i < begin || i >= end) direction[i] = 0.0;
    }
    return direction;
  }

  Op op_;
  std::vector<Tensor> inputs_;
  GradCheckOptions options_;
  std::vector<double> weights_;   // of the output's elements
  std::vector<double> analytic_;  // gradient of the input at hand
  double step_ = 0.0;
};

}  // namespace

absl::Status CheckGradients(Op op, absl::Span<const Tensor> inputs,
                            const GradCheckOptions& options) {
  return Checker(op, inputs, options).Run();
}

}  // namespace meshfold
