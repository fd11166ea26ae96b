// A test framework of one page: TEST registers, CHECK fails the test and goes on, main runs everything or
// what its arguments name. CHECK may be used from any thread.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline std::atomic<int> failures{0};

struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

inline void fail(const char* file, int line, const std::string& what) {
  failures.fetch_add(1);
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

template <class A, class B>
void equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream what;
  what << text << ": " << a << " is not " << b;
  fail(file, line, what.str());
}

}  // namespace check

#define TEST(name)                                           \
  static void name();                                        \
  static const check::Register register_##name(#name, name); \
  static void name()

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) check::fail(__FILE__, __LINE__, "not true: " #condition); \
  } while (false)

#define CHECK_EQ(a, b) check::equal(__FILE__, __LINE__, #a " == " #b, (a), (b))

// For a ring::Status: shows the message.
#define CHECK_OK(expression)                                                                              \
  do {                                                                                                    \
    const auto& check_status_ = (expression);                                                             \
    if (!check_status_.ok()) check::fail(__FILE__, __LINE__, #expression ": " + check_status_.message()); \
  } while (false)

#define CHECK_CONTAINS(text, part)                                                                \
  do {                                                                                            \
    const std::string check_text_ = (text);                                                       \
    if (check_text_.find(part) == std::string::npos)                                              \
      check::fail(__FILE__, __LINE__, "'" + check_text_ + "' does not contain '" + (part) + "'"); \
  } while (false)

int main(int argc, char** argv) {
  int ran = 0;
  for (const auto& test : check::tests()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strcmp(argv[i], test.name) == 0;
    if (!wanted) continue;
    const int before = check::failures.load();
    test.run();
    ++ran;
    std::printf("%s %s\n", check::failures.load() == before ? "ok  " : "FAIL", test.name);
    std::fflush(stdout);
  }
  return ran == 0 || check::failures.load() > 0 ? 1 : 0;
}
