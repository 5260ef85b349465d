// The `meshfold` command: parses arguments and runs a subcommand (train/commands). Exit status: 0
// done, 1 it failed, 2 the command line is wrong; then with one sentence on stderr.
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "train/commands/commands.h"
#include "train/schema_suggest.h"

namespace meshfold::train {
namespace {

using Runner = std::function<absl::Status()>;

void AddSource(CLI::App* command, ModelSource& source) {
  command->add_option("--checkpoint", source.checkpoint,
                      "checkpoint, or a run directory (its newest checkpoint)");
  command->add_option("--hf", source.hf, "Hugging Face model directory");
  command->add_option("--set", source.overrides, "override a config key: section.key=value")
      ->allow_extra_args(false);
}

void AddTrain(CLI::App& app, Runner& run) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "train a model as a config describes");
  command->add_option("config", options->config_path, "YAML file")->required();
  command->add_option("--set", options->overrides, "override a config key: section.key=value")
      ->allow_extra_args(false);
  command->add_option("--resume", options->resume, "auto, none, or a checkpoint or run directory")
      ->capture_default_str();
  command->callback([&run, options] { run = [options] { return RunTrain(*options); }; });
}

void AddEval(CLI::App& app, Runner& run) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = app.add_subcommand("eval", "loss, logits and gradients on given tokens");
  AddSource(command, options->source);
  command->add_option("--tokens", options->tokens_path, "safetensors with input_ids, labels")
      ->required();
  command->add_option("--out", options->out_path, "safetensors to write logits and gradients to");
  command->callback([&run, options] { run = [options] { return RunEval(*options); }; });
}

void AddGenerate(CLI::App& app, Runner& run) {
  auto options = std::make_shared<GenerateCommandOptions>();
  CLI::App* command = app.add_subcommand("generate", "continue a text");
  AddSource(command, options->source);
  command->add_option("--prompt", options->prompt, "text to continue");
  command->add_option("--prompt-ids", options->prompt_ids, "token ids instead of a text")
      ->delimiter(',');
  command->add_option("--max-new-tokens", options->max_new_tokens, "tokens to add at most")
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: the most likely token")
      ->capture_default_str();
  command->add_option("--top-k", options->top_k, "sample among the k most likely; 0: all")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "the same seed draws the same tokens")
      ->capture_default_str();
  command->callback([&run, options] { run = [options] { return RunGenerate(*options); }; });
}

void AddConvert(CLI::App& app, Runner& run) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command = app.add_subcommand("convert", "between checkpoints and Hugging Face");
  command->add_option("--to", options->to, "hf or meshfold")->required();
  command->add_option("in", options->in_dir, "directory to read")->required();
  command->add_option("out", options->out_dir, "directory to write")->required();
  command->add_option("--experts", options->expert_form, "split or fused (hf)")
      ->capture_default_str();
  command->add_option("--max-shard-bytes", options->max_shard_bytes, "size of one file (hf)")
      ->capture_default_str();
  command->callback([&run, options] { run = [options] { return RunConvert(*options); }; });
}

void AddConfig(CLI::App& app, Runner& run) {
  auto options = std::make_shared<ConfigOptions>();
  CLI::App* command = app.add_subcommand("config", "the config's keys, schema and resolved form");
  command->add_flag("--doc", options->doc, "every key with type, default and meaning (Markdown)");
  command->add_flag("--schema", options->schema, "JSON Schema for editors");
  command->add_option("--resolve", options->resolve_path, "print a config with all defaults");
  command->add_option("--set", options->overrides, "override a config key: section.key=value")
      ->allow_extra_args(false);
  command->callback([&run, options] { run = [options] { return RunConfig(*options); }; });
}

void AddPlan(CLI::App& app, Runner& run) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "which rank is in which group; trains nothing");
  command->add_option("config", options->config_path, "YAML file")->required();
  command->add_option("--world", options->world, "number of ranks (default: as few as possible)");
  command->add_option("--set", options->overrides, "override a config key: section.key=value")
      ->allow_extra_args(false);
  command->callback([&run, options] { run = [options] { return RunPlan(*options); }; });
}

void AddVerify(CLI::App& app, Runner& run) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = app.add_subcommand("verify", "the ranks of a config against one process");
  command->add_option("config", options->config_path, "YAML file")->required();
  command->add_option("--steps", options->steps, "steps to take")->capture_default_str();
  command->add_option("--set", options->overrides, "override a config key: section.key=value")
      ->allow_extra_args(false);
  command->callback([&run, options] { run = [options] { return RunVerify(*options); }; });
}

void AddInspect(CLI::App& app, Runner& run) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "what a checkpoint, model or file holds");
  command->add_option("path", options->path, "directory or .safetensors file")->required();
  command->callback([&run, options] { run = [options] { return RunInspect(*options); }; });
}

void AddDoctor(CLI::App& app, Runner& run) {
  CLI::App* command = app.add_subcommand("doctor", "what this machine is and how fast");
  command->callback([&run] { run = [] { return RunDoctor(); }; });
}

constexpr int kFailed = 1, kUsage = 2;

int Fail(int exit_status, const std::string& sentence) {
  std::fflush(stdout);
  std::fprintf(stderr, "meshfold: %s\n", sentence.c_str());
  return exit_status;
}

int FailToParse(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  if (!app.get_subcommands().empty()) {
    std::string command = app.get_subcommands().front()->get_name();
    return Fail(kUsage, absl::StrCat(error.what(), " (meshfold ", command, " --help shows how)"));
  }
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
  if (argc < 2) {
    return Fail(kUsage, absl::StrCat("give a command: ", absl::StrJoin(known, ", "),
                                     " (meshfold --help tells more)"));
  }
  return Fail(kUsage, absl::StrCat("there is no '", argv[1], "'; the nearest command is '",
                                   NearestName(argv[1], known), "' (meshfold --help shows all)"));
}

int Main(int argc, char** argv) {
  CLI::App app("meshfold: distributed training of mixture-of-experts language models", "meshfold");
  app.require_subcommand(1);
  Runner run;
  AddTrain(app, run);
  AddEval(app, run);
  AddGenerate(app, run);
  AddConvert(app, run);
  AddPlan(app, run);
  AddVerify(app, run);
  AddConfig(app, run);
  AddInspect(app, run);
  AddDoctor(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return FailToParse(app, error, argc, argv);
  }
  try {
    absl::Status status = run();
    if (status.ok()) return 0;
    if (status.message().empty()) return kFailed;  // said before, here or by another rank
    return Fail(kFailed, std::string(status.message()));
  } catch (const std::exception& error) {  // a StatusError, or the system is out of memory
    return Fail(kFailed, error.what());
  }
}

}  // namespace
}  // namespace meshfold::train

int main(int argc, char** argv) { return meshfold::train::Main(argc, argv); }
