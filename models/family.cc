#include "models/family.h"

namespace meshfold::models {

Registry<Family>& FamilyRegistry() {
  static auto* registry = new Registry<Family>("model family");
  return *registry;
}

}  // namespace meshfold::models
