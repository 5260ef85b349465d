#include "train/config.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace meshfold::train {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const absl::StatusOr<Config> config = ParseConfig(yaml, "my.yaml", overrides);
  EXPECT_FALSE(config.ok()) << yaml << " was taken";
  return std::string(config.status().message());
}

Config Parse(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const absl::StatusOr<Config> config = ParseConfig(yaml, "my.yaml", overrides);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : Config();
}

const char kSmallMoe[] = R"(
run: {name: small}
model:
  family: qwen3_moe
  hidden_size: 64
  num_layers: 3
  num_heads: 4
  dense_layers: [0]
  rope: {theta: 1e6, scaling: yarn, factor: 4}
moe: {num_experts: 8, top_k: 2, expert_size: 32, aux_loss: 0.01}
data:
  sources:
    - path: python:stdlib
    - {path: "texts/*.txt", weight: 2.5}
optimizer: {lr: 2e-5, eps: 1e-8}
schedule: {warmup_steps: 10}
memory: {device_limit: 4GiB}
monitor: {progress: off}
)";

TEST(ConfigTest, ReadsASmallMoe) {
  const Config config = Parse(kSmallMoe, {"train.steps=50", "optimizer.beta2=0.99"});
  EXPECT_EQ(config.run.name, "small");
  EXPECT_EQ(config.run.dir, "runs/small");
  EXPECT_EQ(config.run.seed, 1234);
  EXPECT_EQ(config.model.rope.theta, 1e6);
  EXPECT_EQ(config.model.rope.scaling, models::RopeConfig::Scaling::kYarn);
  EXPECT_EQ(config.moe.options.aux_loss_coefficient, 0.01);
  ASSERT_EQ(config.data.sources.size(), 2u);
  EXPECT_EQ(config.data.sources[0].path, "python:stdlib");
  EXPECT_EQ(config.data.sources[1].weight, 2.5);
  EXPECT_EQ(config.optimizer.lr, 2e-5);
  EXPECT_EQ(config.optimizer.beta2, 0.99);
  EXPECT_EQ(config.train.steps, 50);
  EXPECT_EQ(config.memory.device_limit, int64_t{4} << 30);
  EXPECT_EQ(config.monitor.progress, ProgressMode::kOff);
}

TEST(ConfigTest, DefaultsAreValid) {
  const Config config = Parse("");
  EXPECT_EQ(config.run.dir, "runs/run");
  EXPECT_EQ(config.parallel.data, 0);
}

TEST(ConfigTest, ResolvedYamlIsAFixedPoint) {
  for (const char* yaml : {"", kSmallMoe}) {
    const std::string resolved = ResolvedYaml(Parse(yaml));
    EXPECT_EQ(ResolvedYaml(Parse(resolved)), resolved);
  }
  const std::string resolved = ResolvedYaml(Parse(kSmallMoe));
  EXPECT_THAT(resolved, HasSubstr("  lr: 2e-05\n"));
  EXPECT_THAT(resolved, HasSubstr("  eps: 1e-08\n"));
  EXPECT_THAT(resolved, HasSubstr("  device_limit: 4GiB\n"));
  EXPECT_THAT(resolved, HasSubstr("  rope:\n    theta: 1e+06\n    scaling: yarn\n"));
  EXPECT_THAT(resolved, HasSubstr("  zero:\n    stage: 0\n"));
  EXPECT_THAT(resolved, HasSubstr("  data: auto\n"));
}

// The same spellings through the file and through --set.
TEST(ConfigTest, LearningRatesInEverySpelling) {
  const std::vector<std::pair<std::string, double>> spellings = {
      {"2e-5", 2e-5}, {"1e-3", 1e-3}, {"1E-4", 1e-4}, {"2.0e-5", 2e-5}};
  for (const auto& [text, value] : spellings) {
    EXPECT_EQ(Parse("optimizer: {lr: " + text + ", eps: 1e-8}").optimizer.lr, value);
    EXPECT_EQ(Parse("", {"optimizer.lr=" + text}).optimizer.lr, value);
  }
  EXPECT_EQ(ErrorOf("optimizer:\n  eps: 1e-8\n  lr: 2e-5 per step"),
            "my.yaml:3: optimizer.lr is '2e-5 per step'; expected number, such as 2e-5");
}

TEST(ConfigTest, MisspeltKeysAreRefusedWithTheNearest) {
  EXPECT_EQ(ErrorOf("optimizer:\n  beta: 0.9"),
            "my.yaml:2: unknown key 'optimizer.beta'; the nearest valid key is 'optimizer.beta1'");
  EXPECT_EQ(ErrorOf("parallel:\n  expert_paralel_size: 4"),
            "my.yaml:2: unknown key 'parallel.expert_paralel_size'; the nearest valid key is "
            "'parallel.expert'");
  EXPECT_EQ(ErrorOf("expert_paralel_size: 4"),
            "my.yaml:1: unknown key 'expert_paralel_size'; the nearest valid key is "
            "'parallel.expert'");
  EXPECT_EQ(ErrorOf("train:\n  lr: 1e-3"),
            "my.yaml:2: unknown key 'train.lr'; 'lr' belongs to section 'optimizer'");
  EXPECT_EQ(ErrorOf("", {"train.lr=1e-3"}),
            "--set: unknown key 'train.lr'; 'lr' belongs to section 'optimizer'");
  EXPECT_THAT(ErrorOf("optimizer: {learning_rate: 1}"), HasSubstr("'optimizer.lr'"));
  EXPECT_THAT(ErrorOf("train: {seq_len: 1}"), HasSubstr("'data.sequence_length'"));
  EXPECT_THAT(ErrorOf("parallel: {zero_stage: 1}"), HasSubstr("'parallel.zero.stage'"));
  EXPECT_THAT(ErrorOf("train: {gradient_accumulation: 2}"), HasSubstr("my.yaml:1: unknown key"));
}

TEST(ConfigTest, KeysThatDoNotFitTogetherNameBothValues) {
  const std::string moe = "moe: {num_experts: 4, top_k: 2, expert_size: 8}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"train: {global_batch_size: 8, micro_batch_size: 3}",
       "train.global_batch_size 8 is not a multiple of train.micro_batch_size 3"},
      {"train: {steps: 10}\nschedule: {warmup_steps: 11}",
       "schedule.warmup_steps 11 is above train.steps 10"},
      {"train: {steps: 10}\nschedule: {warmup_steps: 5, decay_steps: 6}",
       "schedule.decay_steps 6 is above the 5 steps"},
      {"data: {source: a, sources: [{path: b}]}", "data.source and data.sources are both set"},
      {"data: {sources: [{weight: 2}]}", "data.sources[0] has no path"},
      {"data: {packing: document, document_mask: false}", "needs data.document_mask true"},
      {"data: {sequence_length: 8192}",
       "data.sequence_length 8192 is above model.max_position 4096"},
      {"model: {hidden_size: 100, num_heads: 8}",
       "model.hidden_size 100 is not a multiple of model.num_heads 8"},
      {"model: {num_heads: 4, num_kv_heads: 3}", "num_heads 4 is not a multiple of num_kv_heads 3"},
      {moe + "model: {num_layers: 4, dense_layers: [4]}",
       "model.dense_layers names layer 4, model.num_layers is 4"},
      {moe + "model: {dense_layers: [1, 1]}", "model.dense_layers names layer 1 twice"},
      {"model: {dense_layers: [0, 2]}", "model.dense_layers names 2 layers, but every layer"},
      {"moe: {num_experts: 4, top_k: 5, expert_size: 8}",
       "moe.top_k 5 is outside [1, moe.num_experts = 4]"},
  };
  for (const auto& [yaml, message] : cases) {
    EXPECT_THAT(ErrorOf(yaml), HasSubstr(message)) << yaml;
    EXPECT_THAT(ErrorOf(yaml), ::testing::StartsWith("my.yaml: ")) << yaml;
  }
}

Config Layout(int64_t num_experts, ParallelSection parallel) {
  Config config;
  config.moe.options.num_experts = num_experts;
  config.parallel = parallel;
  return config;
}

TEST(ConfigTest, LayoutsThatFitAreTaken) {
  EXPECT_TRUE(LayoutOf(Layout(8, {}), 1).ok());
  EXPECT_TRUE(LayoutOf(Layout(0, {}), 6).ok());
  EXPECT_TRUE(LayoutOf(Layout(8, {.expert = 4}), 8).ok());
  EXPECT_TRUE(LayoutOf(Layout(8, {.tensor = 2, .expert = 4, .pipeline = 2}), 8).ok());
  EXPECT_TRUE(LayoutOf(Layout(8, {.data = 2, .tensor = 2, .expert_tensor = 2}), 4).ok());
  EXPECT_TRUE(LayoutOf(Layout(0, {.zero_stage = 3}), 2).ok());
}

TEST(ConfigTest, LayoutsThatDoNotFitNameBothNumbers) {
  const auto error = [](const Config& config, int64_t world) {
    const absl::Status status = LayoutOf(config, world).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error(Layout(9, {.expert = 3}), 8),
            "parallel: expert 3 x expert_tensor 1 does not divide the 8 ranks of a pipeline stage");
  EXPECT_EQ(error(Layout(6, {.expert = 4}), 8),
            "moe.num_experts 6 is not a multiple of parallel.expert 4");
  EXPECT_EQ(
      error(Layout(16, {.expert = 16}), 8),
      "parallel: expert 16 x expert_tensor 1 does not divide the 8 ranks of a pipeline stage");
  EXPECT_EQ(
      error(Layout(0, {.data = 3, .tensor = 2}), 8),
      "parallel: data 3 x tensor 2 x pipeline 1 x context 1 x ulysses 1 does not make 8 ranks");
  EXPECT_EQ(error(Layout(0, {.tensor = 3}), 8),
            "parallel: data auto x tensor 3 x pipeline 1 x context 1 x ulysses 1 does not make 8 "
            "ranks");
  EXPECT_EQ(error(Layout(0, {.context = 2}), 1),
            "parallel: data auto x tensor 1 x pipeline 1 x context 2 x ulysses 1 does not make 1 "
            "rank");
  EXPECT_THAT(error(Layout(0, {.expert = 2}), 2), HasSubstr("parallel.expert 2 has nothing"));
  EXPECT_THAT(error(Layout(0, {.sequence = true}), 2), HasSubstr("parallel.tensor above 1"));
  EXPECT_THAT(error(Layout(0, {.zero_stage = 2}), 1), HasSubstr("parallel.zero.stage 2 needs"));
  const int64_t huge = int64_t{1} << 24;  // products must not overflow
  EXPECT_THAT(error(Layout(0, {.data = huge, .tensor = huge, .pipeline = huge}), 8),
              HasSubstr("does not make 8 ranks"));
}

// A file is read before the number of ranks is known: `meshfold plan` asks for any.
TEST(ConfigTest, ALayoutOfSeveralRanksIsReadByOneProcess) {
  const Config config = Parse("parallel: {tensor: 2}");
  EXPECT_EQ(LayoutOf(config, 6)->dense.ToString(), "pp 1 x dp 3 x cp 1 x ulysses 1 x tp 2");
  EXPECT_THAT(std::string(LayoutOf(config, 1).status().message()),
              HasSubstr("parallel: data auto x tensor 2"));
}

TEST(ConfigTest, ModelConfigFollowsTheKeys) {
  const models::ModelConfig model = ToModelConfig(Parse(kSmallMoe));
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(model.vocab_size, 0);
  EXPECT_EQ(model.qk_norm, models::QkNorm::kPerHead);
  EXPECT_EQ(model.rope.theta, 1e6);
  EXPECT_EQ(model.moe.num_experts, 8);
  EXPECT_EQ(model.layer_is_moe, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(ToModelConfig(Parse("model: {family: llama}")).qk_norm, models::QkNorm::kNone);
  EXPECT_EQ(ToModelConfig(Parse("model: {family: olmoe}")).qk_norm, models::QkNorm::kPerProjection);
  EXPECT_EQ(ToModelConfig(Parse("model: {family: llama, qk_norm: per_head}")).qk_norm,
            models::QkNorm::kPerHead);
}

TEST(ConfigTest, ModelConfigGoesThereAndBack) {
  models::ModelConfig model = ToModelConfig(Parse(kSmallMoe));
  model.vocab_size = 256;
  Config config = Parse("model: {hf: somewhere}");
  config = WithModel(config, model);
  EXPECT_EQ(config.model.hf, "");
  EXPECT_EQ(config.model.dense_layers, (std::vector<int64_t>{0}));
  const Config read = Parse(ResolvedYaml(config));
  EXPECT_EQ(ResolvedYaml(WithModel(read, ToModelConfig(read))), ResolvedYaml(config));
}

// One weight divided by itself is 1, and the router would learn nothing from the loss.
TEST(ConfigTest, TopOneKeepsItsWeightUnlessToldOtherwise) {
  const auto renormalizes = [](const std::string& yaml) {
    return Parse(yaml).moe.options.renormalize;
  };
  EXPECT_FALSE(renormalizes("moe: {num_experts: 4, top_k: 1, expert_size: 8}"));
  EXPECT_TRUE(renormalizes("moe: {num_experts: 4, top_k: 2, expert_size: 8}"));
  EXPECT_TRUE(renormalizes("moe: {num_experts: 4, top_k: 1, expert_size: 8, renormalize: true}"));
  EXPECT_TRUE(
      renormalizes("model: {family: mixtral}\nmoe: {num_experts: 4, top_k: 1, expert_size: 8}"));
  const std::string resolved =
      ResolvedYaml(Parse("moe: {num_experts: 4, top_k: 1, expert_size: 8}"));
  EXPECT_EQ(ResolvedYaml(Parse(resolved)), resolved);
}

TEST(ConfigTest, FilesNameTheirRuns) {
  const std::string path = ::testing::TempDir() + "/tiny.v2.yaml";
  std::ofstream(path) << "train: {steps: 7}\n";
  absl::StatusOr<Config> config = LoadConfig(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run.name, "tiny.v2");
  EXPECT_EQ(config->run.dir, "runs/tiny.v2");
  EXPECT_EQ(config->train.steps, 7);
  config = LoadConfig(path, std::vector<std::string>{"run.name=other"});
  EXPECT_EQ(config->run.name, "other");
  std::ofstream(path) << "run: {name: given}\ntrain: {stps: 7}\n";
  config = LoadConfig(path);
  EXPECT_THAT(std::string(config.status().message()),
              HasSubstr("tiny.v2.yaml:2: unknown key 'train.stps'"));
  config = LoadConfig(path + ".gone");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("tiny.v2.yaml.gone"));
}

// Every key of the resolved file is in the table and in the JSON Schema.
TEST(ConfigTest, DocumentationIsComplete) {
  const std::string doc = ConfigDoc();
  const nlohmann::json schema = nlohmann::json::parse(ConfigJsonSchema());
  int num_keys = 0;
  for (const auto& [section, info] : schema["properties"].items()) {
    for (const auto& [name, key] : info["properties"].items()) {
      ++num_keys;
      EXPECT_THAT(doc, HasSubstr("`" + section + "." + name)) << name;
      EXPECT_FALSE(key["description"].get<std::string>().empty()) << name;
    }
  }
  EXPECT_GT(num_keys, 70);
  for (const std::string section :
       {"run", "model", "data", "train", "optimizer", "schedule", "parallel", "moe", "memory",
        "checkpoint", "monitor", "runtime"}) {
    EXPECT_TRUE(schema["properties"].contains(section)) << section;
  }
  EXPECT_THAT(doc, HasSubstr("| `optimizer.lr` | number |  | `0.001` | at least 0 | Peak learning "
                             "rate. |"));
}

}  // namespace
}  // namespace meshfold::train
