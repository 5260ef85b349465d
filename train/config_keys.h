// The keys of a config file, each declared once: the file to edit for a new one.
#pragma once

#include "train/config.h"
#include "train/schema.h"

namespace meshfold::train {

// Declares every key and binds it to its field of `config`, which must outlive `schema`.
void DeclareConfig(Config& config, Schema& schema);

}  // namespace meshfold::train
