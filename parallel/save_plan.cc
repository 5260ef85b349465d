#include "parallel/save_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/tensor/box.h"
#include "parallel/sharding.h"

namespace meshfold::parallel {
namespace {

using Holders = std::vector<std::shared_ptr<const std::vector<int64_t>>>;

std::string KeyOf(const Layout& layout) {
  std::string key = layout.view;
  for (const Placement& p : layout.placements) {
    absl::StrAppend(&key, "|", p.axis, " ", static_cast<int>(p.kind), " ", p.dim, " ", p.parts);
  }
  return key;
}

// The ranks of `rank`'s pipeline stage, grouped by what they hold.
Holders HoldersOf(const Layout& layout, const RankLayout& ranks, int64_t rank) {
  Holders holders;
  const Layout replicated{layout.view, {}};
  std::set<int64_t> seen;
  for (int64_t other : CopiesOf(replicated, ranks, rank)) {
    if (seen.count(other) > 0) continue;
    std::vector<int64_t> copies = CopiesOf(layout, ranks, other);
    seen.insert(copies.begin(), copies.end());
    holders.push_back(std::make_shared<const std::vector<int64_t>>(std::move(copies)));
  }
  return holders;
}

}  // namespace

std::vector<int64_t> AssignWriters(absl::Span<const Copies> boxes) {
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const bool a_shared = boxes[a].holders->size() > 1, b_shared = boxes[b].holders->size() > 1;
    if (a_shared != b_shared) return b_shared;
    return boxes[a].bytes > boxes[b].bytes;
  });
  std::vector<int64_t> writers(boxes.size());
  std::map<int64_t, int64_t> bytes;  // by rank
  for (size_t i : order) {
    const std::vector<int64_t>& holders = *boxes[i].holders;
    writers[i] = *std::min_element(holders.begin(), holders.end(),
                                   [&](int64_t a, int64_t b) { return bytes[a] < bytes[b]; });
    bytes[writers[i]] += boxes[i].bytes;
  }
  return writers;
}

absl::StatusOr<std::vector<bool>> PlanSave(absl::Span<const SavedTensor> tensors,
                                           const RankLayout& ranks, int64_t rank) {
  std::map<std::string, Holders> holders_of_layout;
  std::vector<Copies> boxes;
  std::vector<size_t> tensor_of_box;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const SavedTensor& tensor = tensors[i];
    MF_RETURN_IF_ERROR(LocalBox(tensor.shape, tensor.layout, ranks, rank).status());
    Holders& holders = holders_of_layout[KeyOf(tensor.layout)];
    if (holders.empty()) holders = HoldersOf(tensor.layout, ranks, rank);
    const bool is_empty = tensor.shape.numel() == 0;
    for (size_t h = 0; h < (is_empty ? 1 : holders.size()); ++h) {
      MF_ASSIGN_OR_RETURN(const Box box,
                          LocalBox(tensor.shape, tensor.layout, ranks, holders[h]->front()));
      const int64_t count = box.shape().numel();
      if (count == 0 && !is_empty) continue;
      boxes.push_back({holders[h], count * tensor.element_bytes});
      tensor_of_box.push_back(i);
    }
  }
  const std::vector<int64_t> writers = AssignWriters(boxes);
  std::vector<bool> writes(tensors.size(), false);
  for (size_t b = 0; b < boxes.size(); ++b) {
    if (writers[b] == rank) writes[tensor_of_box[b]] = true;
  }
  return writes;
}

}  // namespace meshfold::parallel
