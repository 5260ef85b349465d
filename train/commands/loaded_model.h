// A model for commands that use one: from a checkpoint or a Hugging Face directory.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "parallel/axis.h"
#include "train/commands/commands.h"
#include "train/config.h"
#include "train/runtime.h"
#include "train/setup.h"
#include "train/world.h"

namespace meshfold::train {

struct LoadedModel {
  // The saved run's without its layout, or the defaults with model.hf set; then the overrides.
  Config config;
  std::unique_ptr<Runtime> runtime;  // outlives the model
  parallel::Meshes meshes;           // how the world is arranged
  BuiltModel model;                  // this rank's part
};

// InvalidArgument unless exactly one source is given. Collective over the world: every rank loads
// its part of the same model.
absl::StatusOr<LoadedModel> LoadModel(const ModelSource& source, const World& world);

}  // namespace meshfold::train
