#include "models/hf_names.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/check.h"

namespace meshfold::models {
namespace {

// Parameters that are one tensor there too: our name inside a layer to theirs.
const std::map<std::string, std::string>& PlainLayerNames() {
  static const auto* names = new std::map<std::string, std::string>{
      {"input_norm.weight", "input_layernorm.weight"},
      {"post_attention_norm.weight", "post_attention_layernorm.weight"},
      {"attention.q.weight", "self_attn.q_proj.weight"},
      {"attention.k.weight", "self_attn.k_proj.weight"},
      {"attention.v.weight", "self_attn.v_proj.weight"},
      {"attention.o.weight", "self_attn.o_proj.weight"},
      {"attention.q.bias", "self_attn.q_proj.bias"},
      {"attention.k.bias", "self_attn.k_proj.bias"},
      {"attention.v.bias", "self_attn.v_proj.bias"},
      {"attention.o.bias", "self_attn.o_proj.bias"},
      {"attention.q_norm.weight", "self_attn.q_norm.weight"},
      {"attention.k_norm.weight", "self_attn.k_norm.weight"},
      {"mlp.down.weight", "mlp.down_proj.weight"},
      {"mlp.down.bias", "mlp.down_proj.bias"},
  };
  return *names;
}

// [2, F, D] as gate and up, each [F, D].
std::vector<HfTensor> SplitGateUp(const std::string& prefix, const Tensor& tensor) {
  return {{absl::StrCat(prefix, "gate_proj.weight"), tensor.Select(0)},
          {absl::StrCat(prefix, "up_proj.weight"), tensor.Select(1)}};
}

std::vector<HfTensor> SplitGateUpBias(const std::string& prefix, const Tensor& tensor) {
  return {{absl::StrCat(prefix, "gate_proj.bias"), tensor.Select(0)},
          {absl::StrCat(prefix, "up_proj.bias"), tensor.Select(1)}};
}

// Experts: gate_up [E, 2, F, D], down [E, D, F].
std::vector<HfTensor> ExpertTensors(const HfMoeNames& names, const std::string& prefix,
                                    const Tensor& tensor, bool is_gate_up, HfExpertForm form) {
  std::vector<HfTensor> out;
  if (form == HfExpertForm::kFused) {
    if (!is_gate_up) return {{absl::StrCat(prefix, "mlp.experts.down_proj"), tensor}};
    Shape fused({tensor.dim(0), 2 * tensor.dim(2), tensor.dim(3)});
    return {{absl::StrCat(prefix, "mlp.experts.gate_up_proj"), tensor.Reshape(fused)}};
  }
  for (int64_t e = 0; e < tensor.dim(0); ++e) {
    std::string expert = absl::StrCat(prefix, names.block, ".experts.", e, ".");
    Tensor own = tensor.Select(e);
    if (!is_gate_up) {
      out.push_back({absl::StrCat(expert, names.down, ".weight"), own});
      continue;
    }
    out.push_back({absl::StrCat(expert, names.gate, ".weight"), own.Select(0)});
    out.push_back({absl::StrCat(expert, names.up, ".weight"), own.Select(1)});
  }
  return out;
}

std::vector<HfTensor> MoeTensors(const HfMoeNames& names, const std::string& prefix,
                                 const std::string& rest, const Tensor& tensor, HfExpertForm form) {
  // The fused form is that of memory, where every family calls the block "mlp".
  std::string block = absl::StrCat(prefix, form == HfExpertForm::kFused ? "mlp" : names.block, ".");
  if (rest == "gate.weight") return {{absl::StrCat(block, "gate.weight"), tensor}};
  if (rest == "gate.score_correction_bias") {
    return {{absl::StrCat(block, "gate.e_score_correction_bias"), tensor}};
  }
  if (rest == "shared_experts.gate_up.weight") {
    return SplitGateUp(absl::StrCat(block, "shared_experts."), tensor);
  }
  if (rest == "shared_experts.down.weight") {
    return {{absl::StrCat(block, "shared_experts.down_proj.weight"), tensor}};
  }
  if (rest == "experts.gate_up") return ExpertTensors(names, prefix, tensor, true, form);
  if (rest == "experts.down") return ExpertTensors(names, prefix, tensor, false, form);
  return {};
}

std::vector<HfTensor> LayerTensors(const Family& family, const std::string& layer,
                                   const std::string& rest, const Tensor& tensor,
                                   HfExpertForm form) {
  std::string prefix = absl::StrCat("model.layers.", layer, ".");
  auto plain = PlainLayerNames().find(rest);
  if (plain != PlainLayerNames().end()) {
    return {{absl::StrCat(prefix, plain->second), tensor}};
  }
  if (rest == "mlp.gate_up.weight") return SplitGateUp(absl::StrCat(prefix, "mlp."), tensor);
  if (rest == "mlp.gate_up.bias") return SplitGateUpBias(absl::StrCat(prefix, "mlp."), tensor);
  absl::string_view moe = rest;
  if (!absl::ConsumePrefix(&moe, "moe.")) return {};
  return MoeTensors(family.moe_names, prefix, std::string(moe), tensor, form);
}

}  // namespace

std::vector<HfTensor> HfTensorsOf(const Family& family, const std::string& parameter_name,
                                  const Tensor& tensor, HfExpertForm form) {
  if (parameter_name == "embedding.weight") return {{"model.embed_tokens.weight", tensor}};
  if (parameter_name == "norm.weight") return {{"model.norm.weight", tensor}};
  if (parameter_name == "head.weight") return {{"lm_head.weight", tensor}};
  absl::string_view rest = parameter_name;
  std::vector<HfTensor> out;
  if (absl::ConsumePrefix(&rest, "layers.")) {
    size_t dot = rest.find('.');
    MF_CHECK(dot != absl::string_view::npos) << " " << parameter_name;
    out = LayerTensors(family, std::string(rest.substr(0, dot)), std::string(rest.substr(dot + 1)),
                       tensor, form);
  }
  MF_CHECK(!out.empty()) << " parameter '" << parameter_name << "' has no Hugging Face name";
  return out;
}

}  // namespace meshfold::models
