#include "models/rope.h"

#include <algorithm>
#include <cmath>

namespace meshfold::models {
namespace {

constexpr double kPi = 3.14159265358979323846;

int64_t OriginalMaxPosition(const RopeConfig& config, int64_t max_position) {
  return config.original_max_position > 0 ? config.original_max_position : max_position;
}

// Long wavelengths are stretched by `factor`, short ones kept, those between blended.
double Llama3Frequency(const RopeConfig& config, double frequency, double original_max) {
  double wavelength = 2.0 * kPi / frequency;
  if (wavelength > original_max / config.low_freq_factor) return frequency / config.factor;
  if (wavelength < original_max / config.high_freq_factor) return frequency;
  double blend = (original_max / wavelength - config.low_freq_factor) /
                 (config.high_freq_factor - config.low_freq_factor);
  return frequency * ((1.0 - blend) / config.factor + blend);
}

// Ramp over dims between the two correction dims: 1 where the frequency is divided by `factor`.
struct YarnRamp {
  double low, high;
  double At(int64_t i) const {
    return std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  }
};

YarnRamp MakeYarnRamp(const RopeConfig& config, int64_t head_dim, double original_max) {
  auto correction_dim = [&](double rotations) {
    return static_cast<double>(head_dim) * std::log(original_max / (rotations * 2.0 * kPi)) /
           (2.0 * std::log(config.theta));
  };
  double low = correction_dim(config.beta_fast), high = correction_dim(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // no division by zero
  return {low, high};
}

double YarnScale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& config, int64_t head_dim,
                                    int64_t max_position) {
  double original_max = static_cast<double>(OriginalMaxPosition(config, max_position));
  YarnRamp ramp{0.0, 1.0};
  if (config.scaling == RopeConfig::Scaling::kYarn) {
    ramp = MakeYarnRamp(config, head_dim, original_max);
  }
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double f =
        std::pow(config.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    switch (config.scaling) {
      case RopeConfig::Scaling::kNone:
        break;
      case RopeConfig::Scaling::kLinear:
        f /= config.factor;
        break;
      case RopeConfig::Scaling::kLlama3:
        f = Llama3Frequency(config, f, original_max);
        break;
      case RopeConfig::Scaling::kYarn:
        f = f / config.factor * ramp.At(i) + f * (1.0 - ramp.At(i));
        break;
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

double RopeAttentionFactor(const RopeConfig& config) {
  if (config.scaling != RopeConfig::Scaling::kYarn) return 1.0;
  if (config.attention_factor > 0.0) return config.attention_factor;
  if (config.mscale != 0.0 && config.mscale_all_dim != 0.0) {
    return YarnScale(config.factor, config.mscale) /
           YarnScale(config.factor, config.mscale_all_dim);
  }
  return YarnScale(config.factor, 1.0);
}

RopeTable MakeRopeTable(const RopeConfig& config, int64_t head_dim, int64_t max_position) {
  std::vector<double> frequencies = RopeFrequencies(config, head_dim, max_position);
  double scale = RopeAttentionFactor(config);
  std::vector<float> cos_values, sin_values;
  for (int64_t p = 0; p < max_position; ++p) {
    for (double f : frequencies) {
      double angle = static_cast<double>(p) * f;
      cos_values.push_back(static_cast<float>(scale * std::cos(angle)));
      sin_values.push_back(static_cast<float>(scale * std::sin(angle)));
    }
  }
  Shape shape({max_position, head_dim / 2});
  RopeTable table{Tensor::Contiguous(shape), Tensor::Contiguous(shape)};
  AwaitOnHost(*CurrentBackend().CopyFromHost(cos_values.data(), table.cos));
  AwaitOnHost(*CurrentBackend().CopyFromHost(sin_values.data(), table.sin));
  return table;
}

}  // namespace meshfold::models
