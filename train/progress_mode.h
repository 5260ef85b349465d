// When a run shows progress.
#pragma once

namespace meshfold::train {

// kAuto, kOn: a line that rewrites itself on a terminal, sparse plain lines elsewhere; kOff:
// nothing.
enum class ProgressMode { kAuto, kOn, kOff };

}  // namespace meshfold::train
