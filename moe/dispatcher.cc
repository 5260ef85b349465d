#include "moe/dispatcher.h"

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace meshfold::moe {

Registry<DispatcherFactory>& DispatcherRegistry() {
  static auto* registry = new Registry<DispatcherFactory>("dispatcher");
  return *registry;
}

absl::StatusOr<std::unique_ptr<Dispatcher>> MakeDispatcher(const std::string& name,
                                                           const DispatcherOptions& options) {
  const int64_t size = options.group_size();
  if (options.expert_tensor < 1 || size % options.expert_tensor != 0) {
    return absl::InvalidArgumentError(absl::StrCat("[Dispatcher] expert_tensor ",
                                                   options.expert_tensor, " does not divide the ",
                                                   size, " ranks of the expert group"));
  }
  const std::string automatic = size == 1 ? "local" : "all_to_all";
  MF_ASSIGN_OR_RETURN(DispatcherFactory make,
                      DispatcherRegistry().Find(name == "auto" ? automatic : name));
  return make(options);
}

}  // namespace meshfold::moe
