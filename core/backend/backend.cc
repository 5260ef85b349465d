#include "core/backend/backend.h"

#include "core/base/exec_context.h"
#include "core/base/status_macros.h"

namespace meshfold {

Registry<BackendFactory>& BackendRegistry() {
  static Registry<BackendFactory>* registry = new Registry<BackendFactory>("backend");
  return *registry;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(absl::string_view name) {
  MF_ASSIGN_OR_RETURN(BackendFactory factory, BackendRegistry().Find(name));
  return factory();
}

Backend& CurrentBackend() { return *CurrentContext().backend; }

}  // namespace meshfold
