// Runs a fuzz target without libFuzzer.
//
//   fuzz_X [--seconds S] [--seed N]   mutate the seeds for S seconds, the same mutations for the same N
//   fuzz_X FILE...                    run these inputs, as libFuzzer does
//
// Mutations: flip bits, overwrite with interesting numbers of 1 to 8 bytes, cut off, insert, repeat, and
// splice two inputs. Without coverage to steer by, an input stays close to the seeds: one to six mutations of
// a seed or of one of the last inputs. An input that ends the process, or does not end within 20 seconds, is
// written to crash.bin in the working directory and shown.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "base/clock.h"
#include "fuzz.h"

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

constexpr size_t kLongest = 4096;
constexpr size_t kKept = 64;
constexpr unsigned kSlowSeconds = 20;

ring::Bytes current;

void report() {
  if (FILE* file = std::fopen("crash.bin", "wb")) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
  }
  std::fprintf(stderr, "the input, %zu bytes (crash.bin):", current.size());
  for (const std::byte byte : current) std::fprintf(stderr, " %02x", static_cast<unsigned>(byte));
  std::fprintf(stderr, "\n");
}

void on_signal(int number) {
  report();
  std::fprintf(stderr, "%s\n", number == SIGALRM ? "it did not end in time" : "it ended the process");
  ::signal(number, SIG_DFL);
  if (number == SIGALRM) ::_exit(1);
  ::raise(number);
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  ring::Bytes next(const std::vector<ring::Bytes>& from) {
    ring::Bytes input = from[below(from.size())];
    const size_t count = 1 + below(6);
    for (size_t i = 0; i < count; ++i) mutate(input, from);
    if (input.size() > kLongest) input.resize(kLongest);
    return input;
  }
  size_t below(size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(random_() % limit); }

 private:
  void mutate(ring::Bytes& input, const std::vector<ring::Bytes>& from) {
    const size_t at = below(input.size() + 1);
    const auto place = input.begin() + static_cast<ptrdiff_t>(at);
    switch (below(7)) {
      case 0:  // a bit
        if (at < input.size()) input[at] ^= std::byte(1u << below(8));
        return;
      case 1:  // a byte
        if (at < input.size()) input[at] = std::byte(below(256));
        return;
      case 2: {  // a number, most often where one may be
        static constexpr int64_t kNumbers[] = {0,
                                               1,
                                               -1,
                                               2,
                                               16,
                                               64,
                                               255,
                                               65535,
                                               65536,
                                               1 << 20,
                                               INT32_MAX,
                                               INT32_MIN,
                                               UINT32_MAX,
                                               INT64_MAX,
                                               INT64_MIN,
                                               1LL << 26,
                                               1LL << 32,
                                               1LL << 40,
                                               (1LL << 26) + 1};
        const int64_t number = kNumbers[below(std::size(kNumbers))];
        const size_t width = size_t{1} << below(4);
        const size_t aligned = below(4) > 0 ? at / 4 * 4 : at;
        if (aligned + width <= input.size()) std::memcpy(input.data() + aligned, &number, width);
        return;
      }
      case 3:  // cut off
        input.resize(at);
        return;
      case 4: {  // insert
        ring::Bytes more(below(24));
        for (std::byte& byte : more) byte = std::byte(below(256));
        input.insert(place, more.begin(), more.end());
        return;
      }
      case 5: {  // repeat a part
        const ring::Bytes part(place, input.begin() + static_cast<ptrdiff_t>(at + below(input.size() - at)));
        input.insert(input.end(), part.begin(), part.end());
        return;
      }
      default: {  // go on as another input
        const ring::Bytes& other = from[below(from.size())];
        const size_t tail = below(other.size() + 1);
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<ptrdiff_t>(tail), other.end());
        return;
      }
    }
  }

  std::mt19937_64 random_;
};

void run(const ring::Bytes& input) {
  current = input;
  // A copy of exactly this size, so that a sanitizer sees a read beyond its end.
  const std::vector<uint8_t> exact(reinterpret_cast<const uint8_t*>(input.data()),
                                   reinterpret_cast<const uint8_t*>(input.data()) + input.size());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 2;
  uint64_t seed = 1;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (argument == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      files.push_back(argument);
    }
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(report);
  ::signal(SIGALRM, on_signal);
  ::signal(SIGABRT, on_signal);
  ::alarm(kSlowSeconds);
  for (const std::string& file : files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) {
      std::fprintf(stderr, "%s cannot be read\n", file.c_str());
      return 1;
    }
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    run(ring::Bytes(bytes.begin(), bytes.end()));
  }
  if (!files.empty()) return 0;

  std::vector<ring::Bytes> from = fuzz::seeds();
  if (from.empty()) {
    std::fprintf(stderr, "no seeds\n");
    return 1;
  }
  const size_t given = from.size();
  for (size_t i = 0; i < given; ++i) run(ring::Bytes(from[i]));
  Mutator mutator(seed);
  const ring::Deadline deadline = ring::Deadline::after(seconds);
  uint64_t runs = given;
  for (; runs % 16 != 0 || !deadline.expired(); ++runs) {
    ring::Bytes input = mutator.next(from);
    if (runs % 16 == 0) ::alarm(kSlowSeconds);
    run(input);
    if (mutator.below(8) > 0) continue;
    if (from.size() < given + kKept) {
      from.push_back(std::move(input));
    } else {
      from[given + mutator.below(kKept)] = std::move(input);
    }
  }
  std::printf("%llu inputs in %.3g s, none did harm\n", static_cast<unsigned long long>(runs), seconds);
  return 0;
}
