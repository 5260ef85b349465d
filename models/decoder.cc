#include "models/decoder.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/nn/layers.h"
#include "models/block.h"
#include "models/rope.h"

namespace meshfold::models {

absl::StatusOr<std::unique_ptr<LayerStack>> BuildDecoder(const ModelConfig& config) {
  MF_RETURN_IF_ERROR(Validate(config));
  try {
    auto stack = std::make_unique<LayerStack>();
    auto embedding = std::make_unique<EmbeddingLayer>("embedding", config.vocab_size,
                                                      config.hidden_size, config.initializer_range);
    Variable tied = config.tie_embeddings ? embedding->weight().value : Variable();
    stack->Add("embedding", std::move(embedding));
    auto rope = std::make_shared<const RopeTable>(
        MakeRopeTable(config.rope, config.head_dim, config.max_position));
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      std::string name = absl::StrCat("layers.", layer);
      stack->Add(name, std::make_unique<DecoderBlock>(name, config, layer, rope));
    }
    OutputLayer::Options head{.vocab_size = config.vocab_size,
                              .hidden_size = config.hidden_size,
                              .norm_eps = config.norm_eps,
                              .init_stddev = config.initializer_range};
    stack->Add("head", std::make_unique<OutputLayer>("norm", "head", head, tied));
    return stack;
  } catch (const StatusError& error) {
    return error.status();
  }
}

}  // namespace meshfold::models
