#include "train/verify.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "parallel/gather_whole.h"

namespace meshfold::train {
namespace {

double RelativeDifference(double a, double b) {
  if (a == b) return 0.0;
  return b == 0.0 || std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::infinity()
                                                    : std::abs(a - b) / std::abs(b);
}

// Infinite for shapes that differ and for anything that is not a number.
double RelativeDifference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return std::numeric_limits<double>::infinity();
  const std::vector<double> x = ToVector<double>(a), y = ToVector<double>(b);
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  if (difference == 0.0) return 0.0;
  const double relative = std::sqrt(difference / norm);
  return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
}

// Remembers the largest difference of a kind, and the first of all that is too large.
class Differences {
 public:
  void Add(const std::string& what, double difference, double bound) {
    if (difference >= largest_) {
      largest_ = difference;
      largest_at_ = what;
    }
    if (!first_.empty() || difference <= bound) return;  // NaN is infinite by now
    first_ =
        absl::StrFormat("%s differs by %.3g (at most %.3g are allowed)", what, difference, bound);
  }
  // "largest relative difference 1e-7 (the loss of step 1)", from there on anew.
  std::string TakeLargest() {
    const std::string text =
        absl::StrFormat("largest relative difference %.3g (%s)", largest_, largest_at_);
    largest_ = -1.0;
    return text;
  }
  const std::string& first() const { return first_; }

 private:
  double largest_ = -1.0;
  std::string largest_at_, first_;
};

void CompareSteps(const StepsTrace& ranks, const StepsTrace& alone,
                  const VerifyTolerance& tolerance, Differences& differences) {
  for (size_t i = 0; i < alone.steps.size(); ++i) {
    const StepMetrics &a = ranks.steps[i], &b = alone.steps[i];
    const double bound = i == 0 ? tolerance.first_step : tolerance.later_loss;
    const auto add = [&](const char* what, double x, double y) {
      differences.Add(absl::StrCat("the ", what, " of step ", b.step), RelativeDifference(x, y),
                      bound);
    };
    add("loss", a.loss, b.loss);
    if (i > 0) continue;
    add("balance loss", a.aux_loss, b.aux_loss);
    add("number of tokens", static_cast<double>(a.tokens), static_cast<double>(b.tokens));
    add("gradient norm", a.grad_norm, b.grad_norm);
  }
}

}  // namespace

absl::StatusOr<StepsTrace> TraceSteps(Trainer& trainer, int64_t num_steps) {
  StepsTrace trace;
  for (int64_t i = 0; i < num_steps; ++i) {
    MF_ASSIGN_OR_RETURN(StepMetrics metrics, trainer.Step());
    trace.steps.push_back(metrics);
    if (i > 0) continue;
    std::vector<parallel::GatherInput> parts;
    trainer.model().layers->VisitParameters([&](Parameter& parameter) {
      if (!parameter.trained) return;
      parts.push_back({parameter.name, &parameter, parameter.value.grad().tensor()});
    });
    const parallel::Meshes& meshes = trainer.meshes();
    MF_ASSIGN_OR_RETURN(const auto wholes,
                        parallel::GatherWhole({*meshes.dense.world(), meshes.ranks}, parts));
    if (meshes.rank() != 0) continue;
    for (const parallel::GatherInput& part : parts) {
      trace.gradients.emplace_back(part.name, wholes.at(part.name));
    }
  }
  return trace;
}

VerifyResult CompareTraces(const StepsTrace& ranks, const StepsTrace& alone,
                           const VerifyTolerance& tolerance) {
  Differences differences;
  CompareSteps(ranks, alone, tolerance, differences);
  std::string text = absl::StrCat("losses and norm of ", alone.steps.size(),
                                  " steps: ", differences.TakeLargest(), "\n");
  for (size_t i = 0; i < alone.gradients.size(); ++i) {
    const auto& [name, gradient] = alone.gradients[i];
    differences.Add(absl::StrCat("the gradient of ", name),
                    RelativeDifference(ranks.gradients[i].second, gradient), tolerance.first_step);
  }
  absl::StrAppend(&text, alone.gradients.size(), " gradients of step ", alone.steps[0].step, ": ",
                  differences.TakeLargest(), "\n");
  const bool equal = differences.first().empty();
  absl::StrAppend(&text, equal ? "equal" : "different: " + differences.first(), "\n");
  return {equal, text};
}

}  // namespace meshfold::train
