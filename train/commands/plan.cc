#include <algorithm>
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "train/commands/commands.h"
#include "train/config.h"

namespace meshfold::train {
namespace {

// The fewest ranks that the sizes allow.
absl::StatusOr<int64_t> SmallestWorld(const ParallelSection& p) {
  int64_t world = 1;
  for (int64_t size : {std::max<int64_t>(p.data, 1), p.tensor, p.pipeline, p.context, p.ulysses}) {
    if (__builtin_mul_overflow(world, size, &world) || world > std::numeric_limits<int>::max()) {
      return absl::InvalidArgumentError(
          "the sizes of the parallel section multiply to more ranks "
          "than can be numbered");
    }
  }
  return world;
}

// "0,1" or, of more than four ranks at equal distances, "0,2,..,14".
std::string MembersText(const std::vector<int64_t>& members) {
  const size_t n = members.size();
  if (n <= 4) return absl::StrJoin(members, ",");
  const int64_t step = members[1] - members[0];
  for (size_t i = 1; i < n; ++i) {
    if (members[i] - members[i - 1] != step) return absl::StrJoin(members, ",");
  }
  return absl::StrCat(members[0], ",", members[1], ",..,", members[n - 1]);
}

void PrintGroups(const comm::RankGrid& grid, const std::string& axis) {
  constexpr size_t kShown = 4;
  if (grid.size(axis) == 1) return;
  const std::vector<std::vector<int64_t>> groups = grid.Groups({axis});
  std::string line = absl::StrFormat("%-8s %6d %7d ", axis, grid.size(axis), groups.size());
  for (size_t i = 0; i < std::min(groups.size(), kShown); ++i) {
    absl::StrAppend(&line, " {", MembersText(groups[i]), "}");
  }
  std::printf("%s%s\n", line.c_str(), groups.size() > kShown ? " ..." : "");
}

}  // namespace

absl::Status RunPlan(const PlanOptions& options) {
  MF_ASSIGN_OR_RETURN(const Config config, LoadConfig(options.config_path, options.overrides));
  int64_t world = options.world;
  if (world == 0) {
    MF_ASSIGN_OR_RETURN(world, SmallestWorld(config.parallel));
  }
  if (world < 1 || world > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("--world ", world, " is not a number of ranks"));
  }
  MF_ASSIGN_OR_RETURN(const parallel::RankLayout layout, LayoutOf(config, world));
  const bool has_experts = config.moe.options.num_experts > 0;
  std::printf("%d rank%s: %s\n", static_cast<int>(world), world == 1 ? "" : "s",
              layout.dense.ToString().c_str());
  if (has_experts) std::printf("experts: %s\n", layout.expert.ToString().c_str());
  if (world == 1) return absl::OkStatus();
  std::printf("\n%-8s %6s %7s  %s\n", "group", "ranks", "groups", "members");
  for (const comm::MeshAxis& axis : layout.dense.axes()) PrintGroups(layout.dense, axis.name);
  for (const comm::MeshAxis& axis : layout.expert.axes()) {
    if (has_experts && !layout.dense.HasAxis(axis.name)) PrintGroups(layout.expert, axis.name);
  }
  return absl::OkStatus();
}

}  // namespace meshfold::train
