// Axis: one way of spreading a model over ranks. An axis changes the layers of a model that is not
// allocated yet: it gives parameters their layouts and sets the layers' boundaries and strategies.
// One file in parallel/axes an axis; the expert axis is moe/expert_axis.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/device_mesh.h"
#include "core/base/registry.h"
#include "core/nn/layer_stack.h"
#include "parallel/rank_layout.h"

namespace meshfold::parallel {

// Both arrangements of the ranks of a run, with their groups. Copies share the groups.
struct Meshes {
  RankLayout ranks;
  comm::DeviceMesh dense;   // axes pp, dp, cp, ulysses, tp; combined "dp_tp": all that see tokens
  comm::DeviceMesh expert;  // axes pp, edp, ep, etp; combined "ep_etp": the expert group
  int rank() const { return dense.rank(); }

  // Collective over `world`, of as many ranks as `ranks` arranges. Errors as of DeviceMesh::Create.
  static absl::StatusOr<Meshes> Create(std::shared_ptr<comm::Communicator> world,
                                       const RankLayout& ranks);
};

struct AxisOptions {
  bool sequence = true;  // activations between layers are cut over tp
};

// What an axis works on.
struct AxisInput {
  LayerStack& layers;
  const Meshes& meshes;
  AxisOptions options;
};

struct Axis {
  // Axes are applied in ascending order.
  int order = 0;
  // Does nothing where the axis has one rank. Errors name the sizes that do not fit. Collective
  // over the world: all ranks apply the same axes.
  absl::Status (*apply)(const AxisInput& input) = nullptr;
};

Registry<Axis>& AxisRegistry();

// Applies every registered axis, then sets Parameter::part of all parameters by their layouts.
absl::Status ApplyAxes(const AxisInput& input);

}  // namespace meshfold::parallel
