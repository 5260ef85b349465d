#include "train/config_keys.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "optim/lr_schedule.h"

namespace meshfold::train {
namespace {

// Bounds that keep products of sizes within 64 bits; no real model comes near them.
constexpr double kMaxSize = 1 << 24;
constexpr double kMaxLayers = 100000;
constexpr double kMaxSteps = 1e12;

// Words that are stored as they are written.
std::vector<std::pair<std::string, std::string>> Words(const std::vector<std::string>& words) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& word : words) pairs.emplace_back(word, word);
  return pairs;
}

Key& Size(Schema& s, std::string name, int64_t* field, std::string sentence) {
  return s.Int(std::move(name), field, std::move(sentence)).AtLeast(1).AtMost(kMaxSize);
}

Key& Steps(Schema& s, std::string name, int64_t* field, std::string sentence) {
  return s.Int(std::move(name), field, std::move(sentence))
      .AtLeast(0)
      .AtMost(kMaxSteps)
      .Unit("steps");
}

void DeclareRun(Schema& s, RunSection& c) {
  s.Section("run", "Where a run writes and what it draws its numbers from.");
  s.String("name", &c.name, "Names the run; the config file's own name unless given.");
  s.String("dir", &c.dir, "Directory for everything the run writes; empty means runs/<name>.")
      .Synonyms({"output_dir", "save_dir"});
  s.Int("seed", &c.seed, "Seed of initial weights and data order.").AtLeast(0);
}

void DeclareModel(Schema& s, ModelSection& c) {
  s.Section("model", "The architecture.");
  s.String("hf", &c.hf,
           "Hugging Face directory to take architecture and weights from; of this section only "
           "dtype is then used besides.");
  s.Choice<DType>("dtype", &c.dtype, {{"f32", DType::kF32}, {"bf16", DType::kBF16}},
                  "Storage of the weights; bf16 keeps f32 masters in the optimizer.");
  s.String("family", &c.family, "Model family: block layout and Hugging Face names.")
      .Names({"llama", "mixtral", "qwen3_moe", "olmoe"});
  s.Int("vocab_size", &c.vocab_size, "Vocabulary; 0 takes that of the data.")
      .AtLeast(0)
      .AtMost(kMaxSize)
      .Unit("ids");
  Size(s, "hidden_size", &c.hidden_size, "Width of the residual stream.");
  Size(s, "num_layers", &c.num_layers, "Decoder blocks.").AtMost(kMaxLayers);
  Size(s, "num_heads", &c.num_heads, "Query heads.").Synonyms({"num_attention_heads"});
  Size(s, "num_kv_heads", &c.num_kv_heads, "Key and value heads; divides num_heads.")
      .Synonyms({"num_key_value_heads"});
  s.Int("head_dim", &c.head_dim, "Width of a head; 0 means hidden_size / num_heads.")
      .AtLeast(0)
      .AtMost(kMaxSize);
  Size(s, "intermediate_size", &c.intermediate_size, "Hidden width of dense MLPs.");
  Size(s, "max_position", &c.max_position, "Longest document.")
      .Unit("tokens")
      .Synonyms({"max_position_embeddings"});
  s.Float("norm_eps", &c.norm_eps, "Added to the mean square in RMSNorm.")
      .Above(0)
      .Synonyms({"rms_norm_eps"});
  s.Bool("tie_embeddings", &c.tie_embeddings, "Whether the head shares the embedding's weights.")
      .Synonyms({"tie_word_embeddings"});
  s.Int("sliding_window", &c.sliding_window, "Keys that a query sees; 0 means all earlier ones.")
      .AtLeast(0)
      .Unit("tokens");
  s.Choice<std::string>("qk_norm", &c.qk_norm,
                        Words({"auto", "none", "per_head", "per_projection"}),
                        "RMSNorm on queries and keys; auto is what the family has.");
  s.Float("clip_qkv", &c.clip_qkv, "Bound on q, k and v elements; 0 is off.").AtLeast(0);
  s.Bool("attention_bias", &c.attention_bias, "Biases on the attention projections.");
  s.Bool("mlp_bias", &c.mlp_bias, "Biases in dense MLPs.");
  s.IntList("dense_layers", &c.dense_layers,
            "Layers, counted from 0, that have a dense MLP instead of experts.")
      .AtLeast(0)
      .AtMost(kMaxLayers);
  s.Float("initializer_range", &c.initializer_range, "Standard deviation of initial weights.")
      .AtLeast(0);
}

void DeclareRope(Schema& s, models::RopeConfig& c) {
  using Scaling = models::RopeConfig::Scaling;
  s.Section("model.rope", "Rotary position embeddings.");
  s.Float("theta", &c.theta, "Base of the frequencies.").Above(0).Synonyms({"rope_theta"});
  s.Choice<Scaling>("scaling", &c.scaling,
                    {{"none", Scaling::kNone},
                     {"linear", Scaling::kLinear},
                     {"llama3", Scaling::kLlama3},
                     {"yarn", Scaling::kYarn}},
                    "How the frequencies are stretched for longer contexts.")
      .Synonyms({"rope_scaling"});
  s.Float("factor", &c.factor, "Stretch of the context.").Above(0);
  s.Float("low_freq_factor", &c.low_freq_factor,
          "llama3: wavelengths above the original context / this are stretched by factor.")
      .Above(0);
  s.Float("high_freq_factor", &c.high_freq_factor,
          "llama3: wavelengths below the original context / this stay.")
      .Above(0);
  s.Int("original_max_position", &c.original_max_position,
        "llama3, yarn: context before stretching; 0 means max_position.")
      .AtLeast(0)
      .Unit("tokens");
  s.Float("beta_fast", &c.beta_fast, "yarn: turns in the original context above which dims stay.")
      .Above(0);
  s.Float("beta_slow", &c.beta_slow, "yarn: turns below which dims are stretched by factor.")
      .Above(0);
  s.Float("mscale", &c.mscale, "yarn: coefficient of the factor on cosines and sines; 0 is unset.")
      .AtLeast(0);
  s.Float("mscale_all_dim", &c.mscale_all_dim,
          "yarn: the coefficient it is divided by; 0 is unset.")
      .AtLeast(0);
  s.Float("attention_factor", &c.attention_factor,
          "yarn: the factor on cosines and sines itself; 0 derives it.")
      .AtLeast(0);
  s.Bool("truncate", &c.truncate, "yarn: round the correction range to whole dims.");
}

void DeclareSpecialTokens(Schema& s, models::SpecialTokens& c) {
  s.Section("model.special_tokens",
            "Ids that a Hugging Face export names; training and generation do not use them.");
  s.Int("bos", &c.bos, "Begins a text; -1 is none.").AtLeast(-1).Synonyms({"bos_token_id"});
  s.Int("pad", &c.pad, "Fills a batch; -1 is none.").AtLeast(-1).Synonyms({"pad_token_id"});
  s.IntList("eos", &c.eos, "Each of them ends a text.").AtLeast(0).Synonyms({"eos_token_id"});
}

void DeclareExperts(Schema& s, MoeSection& section) {
  models::MoeConfig& c = section.options;
  s.Section("moe", "The mixture of experts.");
  s.Int("num_experts", &c.num_experts, "Experts a layer; 0 is a dense model.")
      .AtLeast(0)
      .AtMost(kMaxSize);
  s.Int("top_k", &c.top_k, "Experts that a token is sent to.")
      .AtLeast(0)
      .AtMost(kMaxSize)
      .Synonyms({"num_experts_per_tok"});
  s.Int("expert_size", &c.expert_size, "Hidden width of one expert.")
      .AtLeast(0)
      .AtMost(kMaxSize)
      .Synonyms({"moe_intermediate_size"});
  s.Int("num_shared_experts", &c.num_shared_experts,
        "Experts that every token passes, as one SwiGLU of their joint width.")
      .AtLeast(0)
      .AtMost(kMaxSize);
  s.String("router", &c.router, "How experts are chosen.")
      .Names({"softmax_top_k", "sigmoid_group_bias"});
  s.Bool("renormalize", &c.renormalize,
         "Whether the chosen weights are divided by their sum. Where it is not given, top_k 1 goes "
         "without (but in mixtral): one weight over itself is 1 and teaches the router nothing.")
      .Synonyms({"norm_topk_prob"});
  s.Float("routed_scaling", &c.routed_scaling, "Factor on the chosen weights.").Above(0);
  s.Int("num_groups", &c.num_groups, "Groups of experts (sigmoid_group_bias).").AtLeast(1);
  s.Int("top_k_groups", &c.top_k_groups, "Groups that a token may use (sigmoid_group_bias).")
      .AtLeast(1);
  s.String("dispatcher", &c.dispatcher,
           "How tokens reach experts; auto: local where a rank has all of them, else all_to_all.")
      .Names({"auto", "local", "all_to_all", "all_gather"});
  s.String("planner", &section.planner, "Which rank computes which expert.").Names({"static_ep"});
}

void DeclareBalance(Schema& s, models::MoeConfig& c) {
  s.Float("aux_loss", &c.aux_loss_coefficient,
          "Coefficient of the balance loss, which is 1 a layer when experts are used evenly.")
      .AtLeast(0)
      .Synonyms({"router_aux_loss_coef"});
  s.Float("z_loss", &c.z_loss_coefficient,
          "Coefficient of the mean squared log-sum-exp of the router's logits.")
      .AtLeast(0);
  s.Float("bias_update_rate", &c.bias_update_rate,
          "Step of the balancing bias (sigmoid_group_bias).")
      .AtLeast(0);
  s.Float("capacity_factor", &c.capacity_factor,
          "An expert takes at most this times its even share of a micro-batch; 0 is no limit.")
      .AtLeast(0);
}

void DeclareSource(DataSource& source, Schema& s) {
  s.String("path", &source.path, "As data.source.");
  s.Float("weight", &source.weight, "Share of the samples, relative to the other sources.")
      .Above(0);
}

void DeclareData(Schema& s, DataSection& c) {
  s.Section("data", "The corpus and how it is cut into sequences.");
  s.String(
      "source", &c.source,
      "A pattern of text files, an .idx/.bin prefix, a .safetensors or .npy file of tokens, or "
      "python:stdlib, the sources of Python's standard library.");
  s.Records<DataSource>("sources", &c.sources, DeclareSource,
                        "Several sources, mixed by weight, instead of source.");
  s.Choice<std::string>("tokenizer", &c.tokenizer, Words({"byte"}),
                        "Tokenizer of text sources; others' tokens come ready-made, see "
                        "tools/prepare.py.");
  Size(s, "sequence_length", &c.sequence_length, "Length of a sequence.")
      .Unit("tokens")
      .Synonyms({"seq_length", "seq_len", "max_seq_len", "block_size", "context_length"});
  s.Bool("document_mask", &c.document_mask,
         "Whether documents packed into one sequence are hidden from each other.");
  s.Choice<std::string>("packing", &c.packing, Words({"stream", "document"}),
                        "stream cuts the shuffled corpus every sequence_length tokens; document "
                        "packs whole documents and pads.");
  s.Float("validation_fraction", &c.validation_fraction,
          "Share of the documents kept for validation.")
      .AtLeast(0)
      .Below(1);
  s.Choice<std::string>("validation_by", &c.validation_by, Words({"document", "block"}),
                        "What is kept for validation: whole documents, or blocks of every source, "
                        "for sources of few long documents.");
  s.Bool("shuffle", &c.shuffle, "Whether documents and samples are shuffled in each epoch.");
}

void DeclareTrain(Schema& s, TrainSection& c) {
  s.Section("train", "The length of the run and the size of its steps.");
  Steps(s, "steps", &c.steps, "Optimizer steps of the whole run.")
      .AtLeast(1)
      .Synonyms({"max_steps", "train_iters", "num_steps"});
  Size(s, "global_batch_size", &c.global_batch_size,
       "Sequences a step, over all ranks and micro-batches.")
      .Unit("sequences")
      .Synonyms({"batch_size", "train_batch_size"});
  s.Int("micro_batch_size", &c.micro_batch_size,
        "Sequences of one micro-batch over all ranks; 0 means the whole batch.")
      .AtLeast(0)
      .AtMost(kMaxSize)
      .Unit("sequences");
  Steps(s, "eval_interval", &c.eval_interval,
        "Steps between validations; 0 validates only at the end.");
  s.Int("eval_batches", &c.eval_batches, "Batches of a validation; 0 means the whole split.")
      .AtLeast(0)
      .Unit("batches");
  Steps(s, "log_interval", &c.log_interval,
        "Steps between progress lines where there is no terminal.")
      .AtLeast(1);
}

void DeclareOptimizer(Schema& s, OptimizerSection& c) {
  s.Section("optimizer", "The update rule.");
  s.String("name", &c.name, "Update rule.").Names({"adamw", "sgd"});
  s.Float("lr", &c.lr, "Peak learning rate.").AtLeast(0).Synonyms({"learning_rate", "max_lr"});
  s.Float("beta1", &c.beta1, "Decay of Adam's first moment.").AtLeast(0).Below(1);
  s.Float("beta2", &c.beta2, "Decay of Adam's second moment.").AtLeast(0).Below(1);
  s.Float("eps", &c.eps, "Added to the root of Adam's second moment.").AtLeast(0);
  s.Float("weight_decay", &c.weight_decay,
          "Decoupled decay of matrices; norms and biases do not decay.")
      .AtLeast(0);
  s.Float("momentum", &c.momentum, "Momentum of sgd.").AtLeast(0).Below(1);
  s.Float("clip_norm", &c.clip_norm, "Largest gradient norm; 0 is off.")
      .AtLeast(0)
      .Synonyms({"max_grad_norm", "grad_clip", "clip_grad"});
  s.Bool("master_weights", &c.master_weights, "Keep f32 masters of 16-bit weights.");
}

void DeclareSchedule(Schema& s, ScheduleSection& c) {
  s.Section("schedule", "The learning rate over the run.");
  s.Choice<std::string>("name", &c.name, Words(optim::ScheduleRegistry().Names()),
                        "Shape after warm-up.");
  Steps(s, "warmup_steps", &c.warmup_steps, "Linear warm-up from 0.");
  Steps(s, "decay_steps", &c.decay_steps, "Final decay of wsd.");
  s.Float("min_lr_ratio", &c.min_lr_ratio, "Last learning rate over the peak.")
      .AtLeast(0)
      .AtMost(1);
}

void DeclareParallel(Schema& s, ParallelSection& c) {
  const auto ranks = [&s](std::string name, int64_t* field, std::string sentence) -> Key& {
    return Size(s, std::move(name), field, std::move(sentence)).Unit("ranks");
  };
  s.Section("parallel", "The layout: sizes multiply to the number of ranks.");
  s.Int("data", &c.data, "Data-parallel replicas; auto fills up the ranks.")
      .AtLeast(1)
      .AtMost(kMaxSize)
      .Unit("ranks")
      .Word("auto");
  ranks("tensor", &c.tensor, "Tensor parallelism.");
  s.Bool("sequence", &c.sequence, "Sequence parallelism inside the tensor groups.");
  ranks("expert", &c.expert, "Expert parallelism, over the ranks of a pipeline stage.");
  ranks("expert_tensor", &c.expert_tensor, "Tensor parallelism inside an expert.");
  ranks("pipeline", &c.pipeline, "Pipeline stages.");
  ranks("context", &c.context, "Context parallelism.");
  ranks("ulysses", &c.ulysses, "Ulysses sequence parallelism.");
  s.Section("parallel.zero", "Sharding of what data-parallel ranks would each hold in full.");
  s.Int("stage", &c.zero_stage,
        "0 nothing, 1 optimizer state, 2 gradients besides, 3 parameters besides.")
      .AtLeast(0)
      .AtMost(3);
}

void DeclareRest(Schema& s, Config& c) {
  s.Section("memory", "Limits of memory pools.");
  s.Bytes("device_limit", &c.memory.device_limit, "Limit of tensor memory a rank; 0 is none.");
  s.Section("checkpoint", "Saving.");
  s.String("dir", &c.checkpoint.dir, "Directory of checkpoints; empty means run.dir/checkpoints.");
  Steps(s, "interval", &c.checkpoint.interval,
        "Steps between checkpoints; 0 saves only at the end.");
  s.Int("keep", &c.checkpoint.keep, "Newest checkpoints that are kept; 0 keeps all.").AtLeast(0);
  s.Section("monitor", "What a run shows.");
  s.Choice<ProgressMode>(
      "progress", &c.monitor.progress,
      {{"auto", ProgressMode::kAuto}, {"on", ProgressMode::kOn}, {"off", ProgressMode::kOff}},
      "Progress: a rewritten line on a terminal, sparse lines elsewhere.");
  s.Section("runtime", "How the machine is used.");
  s.Int("threads", &c.runtime.threads,
        "Threads a rank; 0 means an equal share of the cores for the ranks of a machine. The same "
        "number gives the same bits.")
      .AtLeast(0)
      .AtMost(1024)
      .Unit("threads");
}

}  // namespace

void DeclareConfig(Config& config, Schema& schema) {
  DeclareRun(schema, config.run);
  DeclareModel(schema, config.model);
  DeclareRope(schema, config.model.rope);
  DeclareSpecialTokens(schema, config.model.special_tokens);
  DeclareExperts(schema, config.moe);
  DeclareBalance(schema, config.moe.options);
  DeclareData(schema, config.data);
  DeclareTrain(schema, config.train);
  DeclareOptimizer(schema, config.optimizer);
  DeclareSchedule(schema, config.schedule);
  DeclareParallel(schema, config.parallel);
  DeclareRest(schema, config);
}

}  // namespace meshfold::train
