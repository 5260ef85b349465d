// Drives a libFuzzer target without libFuzzer: replays the given files, then seeded mutations of
// them. It sees no coverage, so it finds less than libFuzzer, but it runs in every build and always
// tries the same inputs.
//
//   target [--runs=N] [--seed=N] [FILE...]
//
// The input that crashes is written to crash-input in the test's output folder or the current one;
// give that file as the only argument, with --runs=0, to repeat it.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kMaxInputBytes = 4096;

using Bytes = std::vector<uint8_t>;

const Bytes* running_input = nullptr;
std::string crash_path;
std::string crash_message;

// Async-signal-safe: the process is already broken when it comes here.
void KeepInputAndDie(int signal) {
  const int file = open(crash_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file >= 0 && running_input != nullptr) {
    const ssize_t kept = write(file, running_input->data(), running_input->size());
    close(file);
    if (kept >= 0 && write(STDERR_FILENO, crash_message.data(), crash_message.size()) < 0) _exit(1);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Run(const Bytes& input) {
  // A copy of the exact size, so that a sanitizer or malloc sees reads past the end.
  const Bytes exact(input.begin(), input.end());
  running_input = &exact;
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  running_input = nullptr;
}

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& corpus, uint64_t seed) : corpus_(corpus), random_(seed) {}

  Bytes Next() {
    Bytes input = corpus_[Below(corpus_.size())];
    for (size_t i = 0, n = 1 + Below(5); i < n; ++i) MutateOnce(input);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    return input;
  }

 private:
  // Not std::uniform_int_distribution, whose values differ between standard libraries.
  size_t Below(size_t n) { return n == 0 ? 0 : random_() % n; }

  void MutateOnce(Bytes& input) {
    const size_t at = Below(input.size() + 1);
    const size_t length = Below(std::min<size_t>(input.size() - at, 16) + 1);
    const auto begin = input.begin() + at;
    switch (Below(8)) {
      case 0:  // flip a bit
        if (at < input.size()) input[at] ^= 1u << Below(8);
        break;
      case 1:  // set a byte
        if (at < input.size()) input[at] = random_();
        break;
      case 2:  // erase a range
        input.erase(begin, begin + length);
        break;
      case 3: {  // repeat a range
        const Bytes range(begin, begin + length);
        input.insert(begin, range.begin(), range.end());
        break;
      }
      case 4:  // cut the tail
        input.resize(at);
        break;
      case 5: {  // overwrite with an integer at the edge of its type, little-endian
        static constexpr uint64_t kEdges[] = {0,
                                              1,
                                              0x7f,
                                              0x80,
                                              0xff,
                                              0x7fff,
                                              0xffff,
                                              0x7fffffff,
                                              0x80000000,
                                              0xffffffff,
                                              0x7fffffffffffffff,
                                              0x8000000000000000,
                                              0xffffffffffffffff};
        uint64_t value = kEdges[Below(std::size(kEdges))];
        const size_t width = std::min<size_t>(size_t{1} << Below(4), input.size() - at);
        for (size_t i = 0; i < width; ++i, value >>= 8) input[at + i] = value & 0xff;
        break;
      }
      case 6: {  // insert a token that text formats give meaning to
        static constexpr const char* kTokens[] = {"{",    "}",    "[",  "]",    "\"", ":",
                                                  ",",    "\\",   "\n", " ",    "-",  "0",
                                                  "1e99", "null", "-1", "true", "//", "\xff"};
        const std::string token = kTokens[Below(std::size(kTokens))];
        input.insert(begin, token.begin(), token.end());
        break;
      }
      case 7: {  // continue as another input
        const Bytes& other = corpus_[Below(corpus_.size())];
        input.resize(at);
        input.insert(input.end(), other.begin() + Below(other.size() + 1), other.end());
        break;
      }
    }
  }

  const std::vector<Bytes>& corpus_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  uint64_t runs = 10000;
  uint64_t seed = 1;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.empty()) continue;
    if (argument.rfind("--runs=", 0) == 0) {
      runs = std::strtoull(argument.c_str() + 7, nullptr, 10);
    } else if (argument.rfind("--seed=", 0) == 0) {
      seed = std::strtoull(argument.c_str() + 7, nullptr, 10);
    } else {
      std::ifstream file(argument, std::ios::binary);
      if (!file) {
        std::fprintf(stderr, "cannot read %s\n", argument.c_str());
        return 1;
      }
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  const size_t num_files = corpus.size();
  if (corpus.empty()) corpus.emplace_back();

  const char* outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  crash_path = std::string(outputs != nullptr ? outputs : ".") + "/crash-input";
  crash_message = "\ncrashed; the input is kept in " + crash_path + "\n";
  for (int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, KeepInputAndDie);
  }

  for (const Bytes& input : corpus) Run(input);
  Mutator mutator(corpus, seed);
  for (uint64_t i = 0; i < runs; ++i) Run(mutator.Next());
  std::printf("%zu corpus files and %llu mutations passed\n", num_files,
              static_cast<unsigned long long>(runs));
  return 0;
}
