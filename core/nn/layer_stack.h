// LayerStack: the model as a list of layers, the unit that pipeline stages cut.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/nn/module.h"

namespace meshfold {

// First the embedding (ignores its input and reads the tokens of the context), then blocks, last
// the loss head (returns the loss, f32 [1], or an undefined Variable when the batch has no
// targets).
class LayerStack : public Module {
 public:
  struct Entry {
    std::string name;  // "embedding", "layers.3", "head"
    std::unique_ptr<Module> module;
  };

  void Add(std::string name, std::unique_ptr<Module> module) {
    entries_.push_back({std::move(name), std::move(module)});
  }
  std::vector<Entry>& entries() { return entries_; }

  // The module called `name`; a check failure when there is none.
  Module& Get(const std::string& name);

  void VisitParameters(ParameterVisitor visit) override;
  void VisitModules(ModuleVisitor visit) override;
  void OnStepEnd(absl::Span<const std::unique_ptr<StepContext>> contexts) override;

 protected:
  Variable Forward(const Variable& x, StepContext& context) override;

 private:
  std::vector<Entry> entries_;
};

}  // namespace meshfold
