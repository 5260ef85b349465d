// How fast the matrix kernels of the CPU backend run, as a share of oneDNN's 1024^3 sgemm measured
// in the same seconds on the same number of threads. Configs M and S are the sizes of the project's
// two reference models (docs). Usage: matrix_bench [rounds [filter [threads]]]
//
// Every item runs between two measurements of the reference and is divided by their mean, since a
// shared machine changes its speed by the second; the table shows quartiles over the rounds, and
// the best rate of the item over the best of the reference.
#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend/backend.h"
#include "core/base/exec_context.h"
#include "core/base/status_macros.h"
#include "memory/caching_allocator.h"

namespace meshfold {
namespace {

struct Item {
  std::string name;
  double gflop;
  std::function<void()> run;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double RateOf(const Item& item, double seconds) {
  int runs = 0;
  const double start = Seconds();
  double elapsed = 0;
  do {
    item.run();
    ++runs;
    elapsed = Seconds() - start;
  } while (elapsed < seconds);
  return item.gflop * runs / elapsed;
}

Item Reference() {
  constexpr int64_t n = 1024;
  const Tensor a = Tensor::Contiguous({n, n}), b = Tensor::Contiguous({n, n}),
               c = Tensor::Contiguous({n, n});
  std::fill_n(a.data<float>(), n * n, 1.0f);
  std::fill_n(b.data<float>(), n * n, 1.0f);
  return {"reference", 2e-9 * n * n * n, [=] {
            dnnl_sgemm('N', 'N', n, n, n, 1.0f, a.data<float>(), n, b.data<float>(), n, 0.0f,
                       c.data<float>(), n);
          }};
}

// Uniform values in rows with the pitch that training tensors have.
Tensor RandomTensor(const Shape& shape, float width = 1) {
  const Tensor tensor = Tensor::Empty(shape);
  uint32_t state = 1;
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    float* row = tensor.row<float>(r);
    for (int64_t c = 0; c < tensor.cols(); ++c) {
      state = state * 1664525u + 1013904223u;
      row[c] = width * (static_cast<float>(state >> 8) * 0x1p-23f - 1);
    }
  }
  return tensor;
}

// What to measure: items whose name contains the filter.
class Items {
 public:
  explicit Items(std::string filter) : filter_(std::move(filter)) {}
  // False when no item can match whose name starts with `prefix`.
  bool Wants(const std::string& prefix) const {
    return prefix.find(filter_) != std::string::npos || filter_.find(prefix) != std::string::npos ||
           filter_.find(' ') == std::string::npos;
  }
  void Add(const Item& item) {
    if (item.name.find(filter_) != std::string::npos) items_.push_back(item);
  }
  const std::vector<Item>& items() const { return items_; }

 private:
  std::string filter_;
  std::vector<Item> items_;
};

struct ModelSize {
  std::string name;
  int64_t tokens, docs, dim, experts, top_k, hidden, heads, kv_heads, head_dim, vocab;
};
const ModelSize kM = {"M", 2048, 4, 512, 32, 4, 512, 8, 4, 64, 8192};
const ModelSize kS = {"S", 1024, 8, 256, 16, 2, 256, 4, 2, 64, 256};

void AddGemm(Items& items, const std::string& name, int64_t rows, int64_t in, int64_t out) {
  if (!items.Wants(name)) return;
  const Tensor x = RandomTensor({rows, in}), w = RandomTensor({out, in});
  const Tensor y = Tensor::Empty({rows, out}), dy = RandomTensor({rows, out});
  const Tensor dx = Tensor::Empty({rows, in}), dw = Tensor::Empty({out, in});
  const double gflop = 2e-9 * rows * in * out;
  items.Add({name + " y = x w^T", gflop, [=] { CurrentBackend().Gemm({x, w, y, false, true}); }});
  items.Add({name + " dx = dy w", gflop, [=] { CurrentBackend().Gemm({dy, w, dx}); }});
  items.Add({name + " dw = dy^T x", gflop, [=] {
               CurrentBackend().Gemm({dy, x, dw, true, false});
             }});
}

// Rows per expert: even, or as random as routing is (a few experts with most tokens).
RowCounts MakeRows(const ModelSize& s, bool skewed) {
  RowCounts rows;
  const int64_t total = s.tokens * s.top_k;
  for (int64_t e = 1; e <= s.experts; ++e) {
    const double part = static_cast<double>(e) / static_cast<double>(s.experts);
    rows.offsets.push_back(skewed ? static_cast<int64_t>(part * part * static_cast<double>(total))
                                  : total * e / s.experts);
  }
  return rows;
}

struct ExpertTensors {
  ExpertsArgs args;
  ExpertsBackwardArgs backward;
  Tensor hidden, y;
  std::vector<Tensor> gate_up, down, dgate_up, ddown;
};

void AddExperts(Items& items, const ModelSize& s, bool skewed) {
  const std::string name = s.name + " experts" + (skewed ? ", skewed" : "");
  if (!items.Wants(name)) return;
  auto t = std::make_shared<ExpertTensors>();
  const int64_t rows = s.tokens * s.top_k;
  t->args.rows = MakeRows(s, skewed);
  t->args.x = RandomTensor({rows, s.dim});
  t->args.row_weights = RandomTensor({rows});
  t->hidden = Tensor::Empty({rows, 2 * s.hidden});
  t->y = Tensor::Empty({rows, s.dim});
  for (int64_t e = 0; e < s.experts; ++e) {
    t->gate_up.push_back(RandomTensor({2 * s.hidden, s.dim}, 0.1f));
    t->down.push_back(RandomTensor({s.dim, s.hidden}, 0.1f));
    t->dgate_up.push_back(RandomTensor({2 * s.hidden, s.dim}));
    t->ddown.push_back(RandomTensor({s.dim, s.hidden}));
  }
  t->args.gate_up = t->gate_up;
  t->args.down = t->down;
  t->backward.hidden = t->hidden;
  t->backward.dy = RandomTensor({rows, s.dim});
  t->backward.dx = Tensor::Empty({rows, s.dim});
  t->backward.drow_weights = Tensor::Empty({rows});
  t->backward.dgate_up = t->dgate_up;
  t->backward.ddown = t->ddown;
  const double gflop = 6e-9 * static_cast<double>(rows * s.dim * s.hidden);
  items.Add({name + " forward", gflop,
             [t] { CurrentBackend().ExpertsForward(t->args, t->hidden, t->y); }});
  items.Add({name + " backward", 2 * gflop,
             [t] { CurrentBackend().ExpertsBackward(t->args, t->backward); }});
  items.Add({name + " both", 3 * gflop, [t] {
               CurrentBackend().ExpertsForward(t->args, t->hidden, t->y);
               CurrentBackend().ExpertsBackward(t->args, t->backward);
             }});
}

void AddAttention(Items& items, const ModelSize& s) {
  if (!items.Wants(s.name + " attention")) return;
  const auto cu_seqlens = std::make_shared<std::vector<int32_t>>();
  const int64_t length = s.tokens / s.docs;
  for (int64_t n = 0; n <= s.docs; ++n) cu_seqlens->push_back(static_cast<int32_t>(n * length));
  AttentionArgs args;
  args.q = RandomTensor({s.tokens, s.heads * s.head_dim});
  args.k = RandomTensor({s.tokens, s.kv_heads * s.head_dim});
  args.v = RandomTensor({s.tokens, s.kv_heads * s.head_dim});
  args.cu_seqlens_q = args.cu_seqlens_k = *cu_seqlens;
  args.num_heads = s.heads;
  args.num_kv_heads = s.kv_heads;
  args.head_dim = args.value_dim = s.head_dim;
  args.scale = 0.125;
  const Tensor out = Tensor::Empty(args.q.shape()), lse = Tensor::Empty({s.tokens, s.heads});
  const Tensor dout = RandomTensor(args.q.shape()), dq = Tensor::Empty(args.q.shape());
  const Tensor dk = Tensor::Empty(args.k.shape()), dv = Tensor::Empty(args.v.shape());
  // Exact causal work: two products forward, five backward.
  const double product = 1e-9 * static_cast<double>(s.tokens * s.heads * s.head_dim * (length + 1));
  items.Add({s.name + " attention forward", 2 * product, [=] {
               (void)cu_seqlens;  // held
               CurrentBackend().Attention(args, out, lse);
             }});
  items.Add({s.name + " attention backward", 5 * product, [=] {
               (void)cu_seqlens;
               CurrentBackend().AttentionBackward(args, out, lse, dout, dq, dk, dv);
             }});
}

void AddCrossEntropy(Items& items, const ModelSize& s) {
  if (!items.Wants(s.name + " loss head")) return;
  LinearCrossEntropyArgs args;
  args.x = RandomTensor({s.tokens, s.dim});
  args.weight = RandomTensor({s.vocab, s.dim}, 0.1f);
  args.targets = Tensor::Contiguous({s.tokens}, DType::kI32);
  for (int64_t t = 0; t < s.tokens; ++t) {
    args.targets.data<int32_t>()[t] = static_cast<int32_t>(t * 7919 % s.vocab);
  }
  args.loss = Tensor::Empty({1});
  args.scale = 1e-3;
  const double gflop = 2e-9 * static_cast<double>(s.tokens * s.dim * s.vocab);
  items.Add({s.name + " loss head forward", gflop,
             [args] { CurrentBackend().LinearCrossEntropy(args); }});
  args.dx = Tensor::Empty(args.x.shape());
  args.dweight = Tensor::Empty(args.weight.shape());
  items.Add({s.name + " loss head both", 3 * gflop,
             [args] { CurrentBackend().LinearCrossEntropy(args); }});
}

void Report(const std::vector<Item>& items, int rounds) {
  const Item reference = Reference();
  constexpr double kReferenceSeconds = 0.02, kItemSeconds = 0.03;
  std::vector<std::vector<double>> ratios(items.size());
  std::vector<double> best(items.size());
  double best_reference = 0;
  for (const Item& item : items) item.run();
  double before = RateOf(reference, kReferenceSeconds);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < items.size(); ++i) {
      const double rate = RateOf(items[i], kItemSeconds);
      const double after = RateOf(reference, kReferenceSeconds);
      ratios[i].push_back(rate / (0.5 * (before + after)));
      best[i] = std::max(best[i], rate);
      best_reference = std::max(best_reference, after);
      before = after;
    }
  }
  std::printf("  reference %.1f GFLOP/s at best\n", best_reference);
  for (size_t i = 0; i < items.size(); ++i) {
    std::vector<double>& r = ratios[i];
    std::sort(r.begin(), r.end());
    std::printf("  %-32s %5.1f %5.1f %5.1f %%   best %5.1f %%, %.1f GFLOP/s\n",
                items[i].name.c_str(), 100 * r[r.size() / 4], 100 * r[r.size() / 2],
                100 * r[r.size() * 3 / 4], 100 * best[i] / best_reference, best[i]);
  }
}

void Main(int rounds, const std::string& filter, const std::vector<int>& threads) {
  memory::CachingAllocator allocator("bench", DeviceKind::kHost, SystemHostAllocator(), 0);
  const std::unique_ptr<Backend> backend = ValueOrThrow(MakeBackend("cpu"));
  ExecContext context;
  context.backend = backend.get();
  context.allocator = &allocator;
  context.stream = &backend->default_stream();
  ScopedExecContext scope(context);
  Items items(filter);
  for (const ModelSize* s : {&kM, &kS}) {
    for (bool skewed : {false, true}) AddExperts(items, *s, skewed);
    AddAttention(items, *s);
    AddCrossEntropy(items, *s);
    AddGemm(items, s->name + " q", s->tokens, s->dim, s->heads * s->head_dim);
    AddGemm(items, s->name + " k", s->tokens, s->dim, s->kv_heads * s->head_dim);
    AddGemm(items, s->name + " router", s->tokens, s->dim, s->experts);
  }
  AddGemm(items, "one token", 1, 512, 1024);
  AddGemm(items, "eight tokens", 8, 512, 1024);
  for (int num_threads : threads) {
    context.num_threads = num_threads;
    omp_set_num_threads(num_threads);
    std::printf("%d thread%s\n", num_threads, num_threads == 1 ? "" : "s");
    Report(items.items(), rounds);
  }
}

}  // namespace
}  // namespace meshfold

int main(int argc, char** argv) {
  const std::vector<int> threads =
      argc > 3 ? std::vector<int>{std::atoi(argv[3])} : std::vector<int>{1, 2};
  meshfold::Main(argc > 1 ? std::atoi(argv[1]) : 9, argc > 2 ? argv[2] : "", threads);
}
