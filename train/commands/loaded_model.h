// A model for commands that use one: from a checkpoint or a Hugging Face directory.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "train/commands/commands.h"
#include "train/config.h"
#include "train/runtime.h"
#include "train/setup.h"

namespace meshfold::train {

struct LoadedModel {
  Config config;                     // the saved run's, or the defaults with model.hf set
  std::unique_ptr<Runtime> runtime;  // outlives the model
  BuiltModel model;
};

// InvalidArgument unless exactly one source is given.
absl::StatusOr<LoadedModel> LoadModel(const ModelSource& source);

}  // namespace meshfold::train
