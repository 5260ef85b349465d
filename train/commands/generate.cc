#include <cstdio>

#include "absl/strings/str_cat.h"
#include "comm/wait.h"
#include "core/base/status_macros.h"
#include "core/data/tokenizer.h"
#include "core/tensor/allocator.h"
#include "train/commands/commands.h"
#include "train/commands/launched_world.h"
#include "train/commands/loaded_model.h"
#include "train/generation.h"

namespace meshfold::train {

namespace {

// Every rank gets rank 0's token.
int32_t TokenOfFirstRank(comm::Communicator& world, int32_t token) {
  const Tensor shared = Tensor::Contiguous({1}, DType::kI32, SystemHostAllocator());
  shared.data<int32_t>()[0] = token;
  ThrowIfError(comm::WaitFor(world.Broadcast(shared, 0), world));
  return shared.data<int32_t>()[0];
}

// Every rank generates the same; the first one prints.
absl::Status GenerateOn(const World& world, const GenerateCommandOptions& options) {
  MF_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(options.source, world));
  ScopedExecContext scope(loaded.runtime->context());
  const bool prints = world.communicator->rank() == 0;
  GenerateOptions generate;
  if (world.communicator->size() > 1) {
    generate.agree = [&](int32_t token) { return TokenOfFirstRank(*world.communicator, token); };
  }
  generate.max_new_tokens = options.max_new_tokens;
  generate.temperature = options.temperature;
  generate.top_k = options.top_k;
  generate.seed = options.seed;
  generate.max_position = loaded.model.config.max_position;
  if (!options.prompt_ids.empty()) {
    // Ids in, ids out: the model's tokenizer lives elsewhere.
    const std::vector<int64_t>& ends = loaded.model.config.special_tokens.eos;
    generate.eos.assign(ends.begin(), ends.end());
    auto emit = [prints](int32_t id) {
      if (!prints) return;
      std::printf("%d ", id);
      std::fflush(stdout);
    };
    MF_RETURN_IF_ERROR(Generate(*loaded.model.layers, options.prompt_ids, generate, emit).status());
    if (prints) std::printf("\n");
    return absl::OkStatus();
  }
  ByteTokenizer tokenizer;
  if (loaded.model.config.vocab_size != tokenizer.vocab_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's vocabulary has ", loaded.model.config.vocab_size,
                     " ids, not the 256 of bytes: tokenize elsewhere and give --prompt-ids"));
  }
  std::vector<int32_t> prompt = tokenizer.Encode(options.prompt);
  const int32_t end = *tokenizer.eos();
  generate.eos = {end};
  if (prompt.empty()) prompt = {end};
  bool shown = false;
  auto show_prompt = [&] {  // once it is known to fit
    if (!shown && prints) std::printf("%s", options.prompt.c_str());
    shown = true;
  };
  auto emit = [&](int32_t id) {
    show_prompt();
    if (id == end || !prints) return;
    std::fputc(id, stdout);
    std::fflush(stdout);
  };
  MF_RETURN_IF_ERROR(Generate(*loaded.model.layers, prompt, generate, emit).status());
  show_prompt();
  if (prints) std::printf("\n");
  return absl::OkStatus();
}

}  // namespace

absl::Status RunGenerate(const GenerateCommandOptions& options) {
  if (!options.prompt.empty() && !options.prompt_ids.empty()) {
    return absl::InvalidArgumentError("give one of --prompt and --prompt-ids");
  }
  return RunInLaunchedWorld([&](const World& world) { return GenerateOn(world, options); });
}

}  // namespace meshfold::train
