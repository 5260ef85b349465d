#include "moe/dispatcher.h"

namespace meshfold::moe {

Registry<DispatcherFactory>& DispatcherRegistry() {
  static auto* registry = new Registry<DispatcherFactory>("dispatcher");
  return *registry;
}

}  // namespace meshfold::moe
