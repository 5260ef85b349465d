// What the families share in reading and writing Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "models/model_config.h"
#include "nlohmann/json.hpp"

namespace meshfold::models {

// True for an integer that int64_t holds.
bool IsInt64(const nlohmann::json& value);

// A value as a message shows it: cut where it is long.
std::string ShowJson(const nlohmann::json& value);

// The value of `key`, or `fallback` when the key is absent or null. InvalidArgument names key and
// value when it has another type or does not fit. T: int64_t, double, bool, std::string.
template <typename T>
absl::StatusOr<T> HfValue(const nlohmann::json& config, const std::string& key, T fallback) {
  auto it = config.find(key);
  if (it == config.end() || it->is_null()) return fallback;
  bool fits = std::is_same_v<T, bool>      ? it->is_boolean()
              : std::is_same_v<T, int64_t> ? IsInt64(*it)
              : std::is_same_v<T, double>  ? it->is_number()
                                           : it->is_string();
  if (fits) return it->get<T>();
  const char* wanted = std::is_same_v<T, bool>      ? "a boolean"
                       : std::is_same_v<T, int64_t> ? "a 64-bit integer"
                       : std::is_same_v<T, double>  ? "a number"
                                                    : "a string";
  return absl::InvalidArgumentError(
      absl::StrCat("config.json: '", key, "' is ", ShowJson(*it), ", not ", wanted));
}

// Fills what every decoder has: sizes, norms, rotary embedding (rope_parameters, or rope_theta and
// rope_scaling), tying, biases, special tokens.
absl::Status ReadCommonHf(const nlohmann::json& config, ModelConfig* model);

// The same in transformers' form; `base` gives model_type, architectures and family keys.
nlohmann::json WriteCommonHf(const ModelConfig& model, nlohmann::json base);

// InvalidArgument "family 'x' cannot express <what>" when `cannot` holds.
absl::Status RefuseIf(bool cannot, const ModelConfig& model, absl::string_view what);

// Refuses what no family of Hugging Face expresses through a softmax router: sigmoid routers,
// shared experts, scaled weights.
absl::Status CheckPlainSoftmaxMoe(const ModelConfig& model);

}  // namespace meshfold::models
