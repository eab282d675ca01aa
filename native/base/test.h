// A minimal test harness for the _test.cc programs: TEST(name) registers, CHECK* record, main runs all.
// Each program takes an optional name filter (substring) as its first argument.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace plait::test {

struct Case {
  const char* name;
  void (*run)();
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& num_failures() {
  static int count = 0;
  return count;
}
struct Registrar {
  Registrar(const char* name, void (*run)()) { cases().push_back({name, run}); }
};
inline void fail(const char* file, int line, const std::string& what) {
  ++num_failures();
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}
template <typename A, typename B>
void check_eq(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream out;
  out << "CHECK_EQ(" << text << "): " << a << " != " << b;
  fail(file, line, out.str());
}
inline int run_all(int argc, char** argv) {
  int num_run = 0;
  for (const Case& c : cases()) {
    if (argc > 1 && std::strstr(c.name, argv[1]) == nullptr) continue;
    const int before = num_failures();
    try {
      c.run();
    } catch (const std::exception& e) {
      fail(c.name, 0, std::string("uncaught exception: ") + e.what());
    }
    ++num_run;
    std::printf("%s %s\n", num_failures() == before ? "ok  " : "FAIL", c.name);
  }
  std::printf("%d run, %d failed checks\n", num_run, num_failures());
  return num_failures() == 0 && num_run > 0 ? 0 : 1;
}

}  // namespace plait::test

#define TEST(name)                                                      \
  static void test_##name();                                            \
  static ::plait::test::Registrar registrar_##name(#name, test_##name); \
  static void test_##name()
#define CHECK(cond) ((cond) ? (void)0 : ::plait::test::fail(__FILE__, __LINE__, "CHECK(" #cond ")"))
#define CHECK_EQ(a, b) ::plait::test::check_eq((a), (b), #a ", " #b, __FILE__, __LINE__)
#define CHECK_THROWS(expr)                                                         \
  do {                                                                             \
    bool thrown = false;                                                           \
    try {                                                                          \
      (void)(expr);                                                                \
    } catch (const std::exception&) {                                              \
      thrown = true;                                                               \
    }                                                                              \
    if (!thrown) ::plait::test::fail(__FILE__, __LINE__, "did not throw: " #expr); \
  } while (0)
#define TEST_MAIN() \
  int main(int argc, char** argv) { return ::plait::test::run_all(argc, argv); }
