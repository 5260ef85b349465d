// The rate of oneDNN's sgemm, what training steps are measured against in `./run bench torch`: a
// program of its own, so that the memory of the steps' program is the steps'. It reads commands
// from standard input: "gemm" measures and answers with a line of JSON, "quit" ends.
//
// Usage: sgemm_bench THREADS
#include <dnnl.h>
#include <omp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// FLOPs per second of a 1024 x 1024 x 1024 product: the mean over half a second, as a step is the
// mean over its own time, since a shared machine slows both.
double SgemmRate() {
  constexpr int64_t n = 1024;
  constexpr double kSeconds = 0.5;
  static const std::vector<float> a(n * n, 1.0f), b(n * n, 1.0f);
  static std::vector<float> c(n * n);
  const auto run = [] {
    dnnl_sgemm('N', 'N', n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(), n);
  };
  run();  // generates the kernel, wakes the threads
  int64_t runs = 0;
  const Clock::time_point start = Clock::now();
  for (; SecondsSince(start) < kSeconds; ++runs) run();
  return 2.0 * n * n * n * static_cast<double>(runs) / SecondsSince(start);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc == 2 ? std::atoi(argv[1]) : 0;
  if (threads < 1) {
    std::fprintf(stderr, "usage: sgemm_bench THREADS\n");
    return 2;
  }
  omp_set_num_threads(threads);
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    std::printf("{\"gflops_per_second\": %.3f}\n", SgemmRate() * 1e-9);
    std::fflush(stdout);
  }
  return 0;
}
