// The grouped SwiGLU expert op: one node for all experts of a rank, own weights and travelled
// copies side by side.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/op_check.h"
#include "core/autograd/ops.h"

namespace meshfold {
namespace {

// Where the inputs of the node stand: x, row_weights, then all gate_up and all down.
constexpr int kX = 0, kRowWeights = 1, kFirstWeight = 2;

// What the backward function knows beside its saved slots.
struct ExpertsPlan {
  RowCounts rows;
  int64_t d = 0, f = 0;
  int x_slot = 0, row_weights_slot = 0, hidden_slot = 0;
  std::vector<int> gate_up_slots, down_slots;      // one a parameter
  std::vector<Shape> gate_up_shapes, down_shapes;  // of the parameters
  int first_down() const { return kFirstWeight + static_cast<int>(gate_up_slots.size()); }
};

// One [rows, cols] matrix per group out of `tensors`: either a tensor a group, or one tensor
// [E, ...] for all.
std::vector<Tensor> PerGroup(const std::vector<Tensor>& tensors, int64_t num_groups, int64_t rows,
                             int64_t cols) {
  std::vector<Tensor> matrices;
  matrices.reserve(static_cast<size_t>(num_groups));
  int64_t groups_each = tensors.size() == 1 ? num_groups : 1;
  for (const Tensor& tensor : tensors) {
    Tensor stacked = tensor.Reshape({groups_each, rows, cols});
    for (int64_t g = 0; g < groups_each; ++g) matrices.push_back(stacked.Select(g));
  }
  return matrices;
}

std::vector<Tensor> DataOf(absl::Span<const Variable> variables) {
  std::vector<Tensor> tensors;
  for (const Variable& variable : variables) tensors.push_back(variable.data());
  return tensors;
}

std::vector<Tensor> SavedIn(BackwardCall& call, const std::vector<int>& slots) {
  std::vector<Tensor> tensors;
  for (int slot : slots) tensors.push_back(call.saved(slot));
  return tensors;
}

// `parameters` hold `num_groups` matrices [rows, cols], whole ones and as many each.
bool HoldsMatrices(absl::Span<const Variable> parameters, int64_t num_groups, int64_t rows,
                   int64_t cols) {
  int64_t groups_each = parameters.size() == 1 ? num_groups : 1;
  if (groups_each * static_cast<int64_t>(parameters.size()) != num_groups) return false;
  return std::all_of(parameters.begin(), parameters.end(), [&](const Variable& parameter) {
    return parameter.shape().cols() == cols && parameter.shape().rows() == groups_each * rows;
  });
}

void CheckExperts(const Variable& x, const RowCounts& rows, absl::Span<const Variable> gate_up,
                  absl::Span<const Variable> down, const Variable& row_weights) {
  CheckF32("Experts", "x", x);
  if (rows.total() != x.shape().rows()) {
    ThrowInvalidArgument(absl::StrCat("[Experts] x has ", x.shape().rows(),
                                      " rows, the counts sum to ", rows.total()));
  }
  if (row_weights.defined()) {
    CheckF32("Experts", "row_weights", row_weights);
    CheckShape("Experts", "row_weights", row_weights, {rows.total()});
  }
  if (gate_up.empty() || down.empty()) ThrowInvalidArgument("[Experts] no weights");
  for (const Variable& w : gate_up) CheckWeightDType("Experts", "gate_up", w);
  for (const Variable& w : down) CheckWeightDType("Experts", "down", w);
  int64_t d = x.shape().cols(), f = down[0].shape().cols();
  if (HoldsMatrices(gate_up, rows.num_groups(), 2 * f, d) &&
      HoldsMatrices(down, rows.num_groups(), d, f)) {
    return;
  }
  ThrowInvalidArgument(absl::StrCat("[Experts] ", gate_up.size(), " gate_up ",
                                    gate_up[0].shape().ToString(), " and ", down.size(), " down ",
                                    down[0].shape().ToString(), " do not fit ", rows.num_groups(),
                                    " groups of x ", x.shape().ToString()));
}

// Destinations of the weight gradients of one call. The kernel adds to all of them or to none, and
// writes all matrices of a kind or none; where parameters differ (one a leaf, another gathered or
// frozen), a tensor of its own stands in, and Settle adds it up or drops it.
class WeightGrads {
 public:
  WeightGrads(BackwardCall& call, const ExpertsPlan& plan)
      : gate_up_(Ask(call, kFirstWeight, plan.gate_up_shapes)),
        down_(Ask(call, plan.first_down(), plan.down_shapes)) {
    accumulate_ = AllAccumulate(gate_up_) && AllAccumulate(down_) && wanted();
    StandIn(gate_up_, plan.gate_up_shapes);
    StandIn(down_, plan.down_shapes);
  }

  bool wanted() const { return !gate_up_.empty() || !down_.empty(); }
  bool accumulate() const { return accumulate_; }
  std::vector<Tensor> gate_up() const { return Written(gate_up_); }
  std::vector<Tensor> down() const { return Written(down_); }

  void Settle() const {
    for (const std::vector<Place>* places : {&gate_up_, &down_}) {
      for (const Place& place : *places) {
        if (!place.add_later) continue;
        CurrentBackend().Add(place.target.tensor, place.written, place.target.tensor);
      }
    }
  }

 private:
  struct Place {
    LeafGrad::Target target;  // undefined when not asked for
    Tensor written;           // where the kernel writes
    bool add_later = false;
  };

  // Empty when none of them is needed.
  static std::vector<Place> Ask(BackwardCall& call, int first, const std::vector<Shape>& shapes) {
    std::vector<Place> places(shapes.size());
    bool any = false;
    for (size_t i = 0; i < shapes.size(); ++i) {
      int input = first + static_cast<int>(i);
      if (!call.needs(input)) continue;
      places[i].target = call.Target(input, shapes[i]);
      any = true;
    }
    if (!any) places.clear();
    return places;
  }

  static bool AllAccumulate(const std::vector<Place>& places) {
    return std::all_of(places.begin(), places.end(),
                       [](const Place& place) { return place.target.accumulate; });
  }

  void StandIn(std::vector<Place>& places, const std::vector<Shape>& shapes) const {
    for (size_t i = 0; i < places.size(); ++i) {
      Place& place = places[i];
      place.add_later = place.target.accumulate && !accumulate_;
      bool direct = place.target.tensor.defined() && !place.add_later;
      place.written = direct ? place.target.tensor : Tensor::Empty(shapes[i]);
    }
  }

  static std::vector<Tensor> Written(const std::vector<Place>& places) {
    std::vector<Tensor> tensors;
    for (const Place& place : places) tensors.push_back(place.written);
    return tensors;
  }

  std::vector<Place> gate_up_, down_;
  bool accumulate_ = false;
};

// One call of the backward: inputs and weights together, or in two calls between which the gradient
// of the hidden activations is kept.
void ExpertsBackward(BackwardCall& call, const ExpertsPlan& plan) {
  int64_t groups = plan.rows.num_groups(), f = plan.f, d = plan.d;
  std::vector<Tensor> gate_up = PerGroup(SavedIn(call, plan.gate_up_slots), groups, 2 * f, d);
  std::vector<Tensor> down = PerGroup(SavedIn(call, plan.down_slots), groups, d, f);
  ExpertsArgs args{.x = call.saved(plan.x_slot),
                   .rows = plan.rows,
                   .gate_up = gate_up,
                   .down = down,
                   .row_weights = call.saved(plan.row_weights_slot)};
  ExpertsBackwardArgs out;
  out.hidden = call.saved(plan.hidden_slot);
  out.dy = call.grad_out();
  WeightGrads weights(call, plan);
  std::vector<Tensor> dgate_up = PerGroup(weights.gate_up(), groups, 2 * f, d);
  std::vector<Tensor> ddown = PerGroup(weights.down(), groups, d, f);
  out.dgate_up = dgate_up;
  out.ddown = ddown;
  out.accumulate_weights = weights.accumulate();
  if (!call.stash().empty()) {
    out.dhidden = call.stash()[0];
    out.dhidden_is_input = true;
  } else if (call.second_call_follows()) {
    out.dhidden = Tensor::Empty({plan.rows.total(), 2 * f});
    call.stash().push_back(out.dhidden);
  }
  if (call.needs(kX)) call.Set(kX, out.dx = Tensor::Empty({plan.rows.total(), d}));
  if (call.needs(kRowWeights)) {
    call.Set(kRowWeights, out.drow_weights = Tensor::Empty({plan.rows.total()}));
  }
  CurrentBackend().ExpertsBackward(args, out);
  weights.Settle();
}

ExpertsPlan Save(const Variable& x, const RowCounts& rows, absl::Span<const Variable> gate_up,
                 absl::Span<const Variable> down, const Variable& row_weights, const Tensor& hidden,
                 Saved& saved) {
  ExpertsPlan plan;
  plan.rows = rows;
  plan.d = x.shape().cols();
  plan.f = down[0].shape().cols();
  plan.x_slot = saved.Input("x", x);
  plan.row_weights_slot = saved.Input("row_weights", row_weights);
  plan.hidden_slot = saved.Activation("hidden", hidden);
  for (const Variable& w : gate_up) {
    plan.gate_up_slots.push_back(saved.Input("gate_up", w));
    plan.gate_up_shapes.push_back(w.shape());
  }
  for (const Variable& w : down) {
    plan.down_slots.push_back(saved.Input("down", w));
    plan.down_shapes.push_back(w.shape());
  }
  return plan;
}

}  // namespace

Variable Experts(const Variable& x, const RowCounts& rows, absl::Span<const Variable> gate_up,
                 absl::Span<const Variable> down, const Variable& row_weights) {
  CheckExperts(x, rows, gate_up, down, row_weights);
  int64_t d = x.shape().cols(), f = down[0].shape().cols(), groups = rows.num_groups();
  Tensor hidden = Tensor::Empty({rows.total(), 2 * f}), y = Tensor::Empty({rows.total(), d});
  std::vector<Tensor> gate_up_e = PerGroup(DataOf(gate_up), groups, 2 * f, d);
  std::vector<Tensor> down_e = PerGroup(DataOf(down), groups, d, f);
  ExpertsArgs args{.x = x.data(),
                   .rows = rows,
                   .gate_up = gate_up_e,
                   .down = down_e,
                   .row_weights = row_weights.defined() ? row_weights.data() : Tensor()};
  CurrentBackend().ExpertsForward(args, hidden, y);

  std::vector<Variable> inputs = {x, row_weights};
  inputs.insert(inputs.end(), gate_up.begin(), gate_up.end());
  inputs.insert(inputs.end(), down.begin(), down.end());
  if (!ShouldRecord(inputs)) return Variable(y);
  Saved saved;
  ExpertsPlan plan = Save(x, rows, gate_up, down, row_weights, hidden, saved);
  RecordOptions options;
  for (int i = kFirstWeight; i < static_cast<int>(inputs.size()); ++i) {
    options.deferrable.push_back(i);
  }
  auto backward = [plan = std::move(plan)](BackwardCall& call) { ExpertsBackward(call, plan); };
  return Record("Experts", {y}, inputs, std::move(saved), std::move(backward),
                std::move(options))[0];
}

Variable Experts(const Variable& x, const RowCounts& rows, const Variable& gate_up,
                 const Variable& down, const Variable& row_weights) {
  return Experts(x, rows, absl::MakeConstSpan(&gate_up, 1), absl::MakeConstSpan(&down, 1),
                 row_weights);
}

}  // namespace meshfold
