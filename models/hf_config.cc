#include "models/hf_config.h"

#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"

namespace meshfold::models {
namespace {

using Json = nlohmann::json;

absl::Status ReadRopeScaling(const Json& rope, RopeConfig* out) {
  MF_ASSIGN_OR_RETURN(std::string old_name, HfValue<std::string>(rope, "type", "default"));
  MF_ASSIGN_OR_RETURN(std::string type, HfValue<std::string>(rope, "rope_type", old_name));
  if (type == "default") return absl::OkStatus();
  if (type == "linear") {
    out->scaling = RopeConfig::Scaling::kLinear;
  } else if (type == "llama3") {
    out->scaling = RopeConfig::Scaling::kLlama3;
  } else if (type == "yarn") {
    out->scaling = RopeConfig::Scaling::kYarn;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("config.json: rope_type '", type,
                                                   "' is not supported (default, linear, llama3, "
                                                   "yarn are)"));
  }
  MF_ASSIGN_OR_RETURN(out->factor, HfValue<double>(rope, "factor", 1.0));
  MF_ASSIGN_OR_RETURN(out->low_freq_factor, HfValue<double>(rope, "low_freq_factor", 1.0));
  MF_ASSIGN_OR_RETURN(out->high_freq_factor, HfValue<double>(rope, "high_freq_factor", 4.0));
  MF_ASSIGN_OR_RETURN(out->original_max_position,
                      HfValue<int64_t>(rope, "original_max_position_embeddings", 0));
  MF_ASSIGN_OR_RETURN(out->beta_fast, HfValue<double>(rope, "beta_fast", 32.0));
  MF_ASSIGN_OR_RETURN(out->beta_slow, HfValue<double>(rope, "beta_slow", 1.0));
  MF_ASSIGN_OR_RETURN(out->mscale, HfValue<double>(rope, "mscale", 0.0));
  MF_ASSIGN_OR_RETURN(out->mscale_all_dim, HfValue<double>(rope, "mscale_all_dim", 0.0));
  MF_ASSIGN_OR_RETURN(out->attention_factor, HfValue<double>(rope, "attention_factor", 0.0));
  MF_ASSIGN_OR_RETURN(out->truncate, HfValue<bool>(rope, "truncate", true));
  return absl::OkStatus();
}

// Rotating a part of each head only would be another model.
absl::Status CheckWholeRotation(const Json& config) {
  MF_ASSIGN_OR_RETURN(double part, HfValue<double>(config, "partial_rotary_factor", 1.0));
  if (part == 1.0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("config.json: partial_rotary_factor ", part, " is not supported (1 is)"));
}

absl::Status ReadRope(const Json& config, RopeConfig* out) {
  MF_ASSIGN_OR_RETURN(out->theta, HfValue<double>(config, "rope_theta", out->theta));
  MF_RETURN_IF_ERROR(CheckWholeRotation(config));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    auto it = config.find(key);
    if (it == config.end() || it->is_null()) continue;
    if (!it->is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat("config.json: '", key, "' is ", ShowJson(*it), ", not an object"));
    }
    MF_RETURN_IF_ERROR(CheckWholeRotation(*it));
    MF_ASSIGN_OR_RETURN(out->theta, HfValue<double>(*it, "rope_theta", out->theta));
    MF_RETURN_IF_ERROR(ReadRopeScaling(*it, out));
  }
  return absl::OkStatus();
}

Json WriteRope(const RopeConfig& rope) {
  Json out = {{"rope_theta", rope.theta}, {"rope_type", "default"}};
  if (rope.scaling == RopeConfig::Scaling::kNone) return out;
  out["factor"] = rope.factor;
  if (rope.original_max_position > 0) {
    out["original_max_position_embeddings"] = rope.original_max_position;
  }
  switch (rope.scaling) {
    case RopeConfig::Scaling::kNone:
      break;
    case RopeConfig::Scaling::kLinear:
      out["rope_type"] = "linear";
      break;
    case RopeConfig::Scaling::kLlama3:
      out["rope_type"] = "llama3";
      out["low_freq_factor"] = rope.low_freq_factor;
      out["high_freq_factor"] = rope.high_freq_factor;
      break;
    case RopeConfig::Scaling::kYarn:
      out["rope_type"] = "yarn";
      out["beta_fast"] = rope.beta_fast;
      out["beta_slow"] = rope.beta_slow;
      out["truncate"] = rope.truncate;
      if (rope.mscale != 0.0) out["mscale"] = rope.mscale;
      if (rope.mscale_all_dim != 0.0) out["mscale_all_dim"] = rope.mscale_all_dim;
      if (rope.attention_factor != 0.0) out["attention_factor"] = rope.attention_factor;
      break;
  }
  return out;
}

absl::Status ReadSpecialTokens(const Json& config, SpecialTokens* out) {
  MF_ASSIGN_OR_RETURN(out->bos, HfValue<int64_t>(config, "bos_token_id", -1));
  MF_ASSIGN_OR_RETURN(out->pad, HfValue<int64_t>(config, "pad_token_id", -1));
  out->bos = std::max(out->bos, int64_t{-1});  // old configs say -1, too, for none
  out->pad = std::max(out->pad, int64_t{-1});
  auto eos = config.find("eos_token_id");
  if (eos == config.end() || eos->is_null()) return absl::OkStatus();
  for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
    if (!IsInt64(id)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "config.json: 'eos_token_id' is ", ShowJson(*eos), ", not an id or a list of ids"));
    }
    if (id.get<int64_t>() >= 0) out->eos.push_back(id.get<int64_t>());
  }
  return absl::OkStatus();
}

// Absent ids are written as null: without the key transformers takes its class's default, whose
// padding id silences the gradient of one embedding row and whose end token stops generation.
void WriteSpecialTokens(const SpecialTokens& tokens, Json* out) {
  const auto or_null = [](int64_t id) { return id >= 0 ? Json(id) : Json(); };
  (*out)["bos_token_id"] = or_null(tokens.bos);
  (*out)["pad_token_id"] = or_null(tokens.pad);
  Json eos = tokens.eos.empty() ? Json() : Json(tokens.eos);
  (*out)["eos_token_id"] = tokens.eos.size() == 1 ? Json(tokens.eos.front()) : eos;
}

}  // namespace

bool IsInt64(const Json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
}

std::string ShowJson(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : absl::StrCat(text.substr(0, 80), "...");
}

absl::Status ReadCommonHf(const Json& config, ModelConfig* model) {
  MF_ASSIGN_OR_RETURN(std::string act, HfValue<std::string>(config, "hidden_act", "silu"));
  if (act != "silu") {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: hidden_act '", act, "' is not supported (silu is)"));
  }
  MF_ASSIGN_OR_RETURN(model->vocab_size, HfValue<int64_t>(config, "vocab_size", 32000));
  MF_ASSIGN_OR_RETURN(model->hidden_size, HfValue<int64_t>(config, "hidden_size", 4096));
  MF_ASSIGN_OR_RETURN(model->num_layers, HfValue<int64_t>(config, "num_hidden_layers", 32));
  MF_ASSIGN_OR_RETURN(model->num_heads, HfValue<int64_t>(config, "num_attention_heads", 32));
  MF_ASSIGN_OR_RETURN(model->num_kv_heads,
                      HfValue<int64_t>(config, "num_key_value_heads", model->num_heads));
  // The readers divide by the one and loop over the other before Validate sees them.
  if (model->num_heads <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: num_attention_heads is ",
                                                   model->num_heads, "; it must be at least 1"));
  }
  if (model->num_layers <= 0 || model->num_layers > kMaxModelLayers) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: num_hidden_layers is ",
                                                   model->num_layers, ", outside [1, ",
                                                   kMaxModelLayers, "]"));
  }
  MF_ASSIGN_OR_RETURN(model->head_dim,
                      HfValue<int64_t>(config, "head_dim", model->hidden_size / model->num_heads));
  MF_ASSIGN_OR_RETURN(model->intermediate_size,
                      HfValue<int64_t>(config, "intermediate_size", 11008));
  MF_ASSIGN_OR_RETURN(model->max_position,
                      HfValue<int64_t>(config, "max_position_embeddings", 4096));
  MF_ASSIGN_OR_RETURN(model->norm_eps, HfValue<double>(config, "rms_norm_eps", model->norm_eps));
  MF_ASSIGN_OR_RETURN(model->tie_embeddings, HfValue<bool>(config, "tie_word_embeddings", false));
  MF_ASSIGN_OR_RETURN(model->attention_bias, HfValue<bool>(config, "attention_bias", false));
  MF_ASSIGN_OR_RETURN(model->initializer_range, HfValue<double>(config, "initializer_range", 0.02));
  MF_RETURN_IF_ERROR(ReadSpecialTokens(config, &model->special_tokens));
  return ReadRope(config, &model->rope);
}

Json WriteCommonHf(const ModelConfig& model, Json base) {
  base["hidden_act"] = "silu";
  base["vocab_size"] = model.vocab_size;
  base["hidden_size"] = model.hidden_size;
  base["num_hidden_layers"] = model.num_layers;
  base["num_attention_heads"] = model.num_heads;
  base["num_key_value_heads"] = model.num_kv_heads;
  base["head_dim"] = model.head_dim;
  base["intermediate_size"] = model.intermediate_size;
  base["max_position_embeddings"] = model.max_position;
  base["rms_norm_eps"] = model.norm_eps;
  base["tie_word_embeddings"] = model.tie_embeddings;
  base["attention_bias"] = model.attention_bias;
  base["attention_dropout"] = 0.0;
  base["initializer_range"] = model.initializer_range;
  base["rope_parameters"] = WriteRope(model.rope);
  base["use_cache"] = true;
  WriteSpecialTokens(model.special_tokens, &base);
  return base;
}

absl::Status RefuseIf(bool cannot, const ModelConfig& model, absl::string_view what) {
  if (!cannot) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("family '", model.family, "' cannot express ", what, " in Hugging Face's form"));
}

absl::Status CheckPlainSoftmaxMoe(const ModelConfig& model) {
  MF_RETURN_IF_ERROR(RefuseIf(model.moe.num_experts == 0, model, "a model without experts"));
  MF_RETURN_IF_ERROR(RefuseIf(model.moe.router != "softmax_top_k", model,
                              absl::StrCat("router '", model.moe.router, "'")));
  MF_RETURN_IF_ERROR(RefuseIf(model.moe.num_shared_experts > 0, model, "shared experts"));
  MF_RETURN_IF_ERROR(RefuseIf(model.moe.routed_scaling != 1.0, model, "scaled routing weights"));
  return RefuseIf(model.moe.capacity_factor != 0.0, model, "an expert capacity");
}

}  // namespace meshfold::models
