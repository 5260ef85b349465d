// `./run goldens`: trains the convergence cases and shows how their losses differ from the
// committed ones; with --update it then commits the new ones.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/train/convergence.h"

namespace meshfold::train {
namespace {

// Prints the largest relative difference and where it is.
void Report(const std::string& name, const std::vector<double>& losses) {
  absl::StatusOr<std::vector<double>> committed = ReadConvergence(name);
  if (!committed.ok() || committed->size() != losses.size()) {
    std::printf("%-20s new: loss %.6f to %.6f\n", name.c_str(), losses.front(), losses.back());
    return;
  }
  double worst = 0.0;
  size_t where = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    double difference = std::fabs(losses[i] / (*committed)[i] - 1.0);
    if (difference > worst) {
      worst = difference;
      where = i;
    }
  }
  std::printf("%-20s largest relative difference %.3g at step %zu (%.6f, committed %.6f)\n",
              name.c_str(), worst, where + 1, losses[where], (*committed)[where]);
}

int Main(bool update) {
  const char* temp = std::getenv("TMPDIR");
  std::string tokens =
      std::string(temp == nullptr ? "/tmp" : temp) + "/meshfold_jargon.safetensors";
  absl::Status status = WriteConvergenceTokens(tokens);
  for (const std::string& name : ConvergenceCases()) {
    if (!status.ok()) break;
    absl::StatusOr<std::vector<double>> losses = RunConvergence(name, tokens, 60);
    status = losses.status();
    if (!status.ok()) break;
    Report(name, *losses);
    if (update) status = WriteConvergence(name, *losses);
  }
  std::remove(tokens.c_str());
  if (status.ok()) return 0;
  std::fprintf(stderr, "convergence_goldens: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace meshfold::train

// Runs in the root of the source tree.
int main(int argc, char** argv) {
  return meshfold::train::Main(argc > 1 && std::strcmp(argv[1], "--update") == 0);
}
