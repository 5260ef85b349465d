#include <cstdio>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/tokenizer.h"
#include "train/commands/commands.h"
#include "train/commands/launched_world.h"
#include "train/commands/loaded_model.h"
#include "train/generation.h"

namespace meshfold::train {

absl::Status RunGenerate(const GenerateCommandOptions& options) {
  if (!options.prompt.empty() && !options.prompt_ids.empty()) {
    return absl::InvalidArgumentError("give one of --prompt and --prompt-ids");
  }
  MF_RETURN_IF_ERROR(RefuseSeveralRanks("generate"));
  MF_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(options.source));
  ScopedExecContext scope(loaded.runtime->context());
  GenerateOptions generate;
  generate.max_new_tokens = options.max_new_tokens;
  generate.temperature = options.temperature;
  generate.top_k = options.top_k;
  generate.seed = options.seed;
  generate.max_position = loaded.model.config.max_position;
  if (!options.prompt_ids.empty()) {
    // Ids in, ids out: the model's tokenizer lives elsewhere.
    const std::vector<int64_t>& ends = loaded.model.config.special_tokens.eos;
    generate.eos.assign(ends.begin(), ends.end());
    auto emit = [](int32_t id) {
      std::printf("%d ", id);
      std::fflush(stdout);
    };
    MF_RETURN_IF_ERROR(Generate(*loaded.model.layers, options.prompt_ids, generate, emit).status());
    std::printf("\n");
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
    if (!shown) std::printf("%s", options.prompt.c_str());
    shown = true;
  };
  auto emit = [&](int32_t id) {
    show_prompt();
    if (id == end) return;
    std::fputc(id, stdout);
    std::fflush(stdout);
  };
  MF_RETURN_IF_ERROR(Generate(*loaded.model.layers, prompt, generate, emit).status());
  show_prompt();
  std::printf("\n");
  return absl::OkStatus();
}

}  // namespace meshfold::train
