#include "fileio/gguf.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/test.h"
#include "fileio/utf8.h"

namespace plait {
namespace {

// Builds a file byte by byte; the counts are whatever the test says.
class Builder {
 public:
  Builder(uint64_t num_tensors, uint64_t num_keys, uint32_t version = 3) {
    bytes_ = "GGUF";
    number(version);
    number(num_tensors);
    number(num_keys);
  }
  template <typename T>
  Builder& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Builder& text(std::string_view value) {
    number(static_cast<uint64_t>(value.size()));
    bytes_.append(value);
    return *this;
  }
  Builder& key(std::string_view name, GgufValueType type) {
    return text(name).number(static_cast<uint32_t>(type));
  }
  Builder& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    text(name).number(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) number(dim);
    return number(type).number(offset);
  }
  Builder& data(size_t num_bytes, size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    for (size_t i = 0; i < num_bytes; ++i) bytes_ += static_cast<char>(i);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// The bytes in a heap block of their exact size, so that a sanitizer sees a read behind them.
class ExactBytes {
 public:
  explicit ExactBytes(std::string_view text) : bytes_(text.size()) {
    if (!text.empty()) std::memcpy(bytes_.data(), text.data(), text.size());
  }
  std::span<const std::byte> span() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

std::string error_of(std::string_view bytes) {
  const ExactBytes exact(bytes);
  try {
    GgufFile::parse(exact.span());
  } catch (const Error& error) {
    return error.what();
  }
  return "parsed";
}

bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "'%s' lacks '%s'\n", text.c_str(), part.c_str());
  return false;
}

Builder small_file() {
  Builder builder(2, 6);
  builder.key("general.architecture", GgufValueType::kString).text("llama");
  builder.key("llama.block_count", GgufValueType::kUint32).number(uint32_t{30});
  builder.key("eps", GgufValueType::kFloat32).number(0.5f);
  builder.key("flag", GgufValueType::kBool).number(uint8_t{1});
  builder.key("tokens", GgufValueType::kArray).number(uint32_t{8}).number(uint64_t{2}).text("a").text("bc");
  builder.key("negative", GgufValueType::kInt8).number(int8_t{-3});
  builder.tensor("norm", {8}, 0, 0).tensor("weight", {64, 3}, 8, 32);
  return builder.data(32 + 2 * 3 * 34);
}

TEST(reads_metadata_and_tensors) {
  const Builder builder = small_file();
  const ExactBytes exact(builder.bytes());
  const GgufFile file = GgufFile::parse(exact.span());
  CHECK_EQ(file.version(), 3u);
  CHECK_EQ(file.alignment(), 32u);
  CHECK_EQ(file.metadata().size(), 6u);
  CHECK(file.get_string("general.architecture") == std::string_view("llama"));
  CHECK(file.get_int("llama.block_count") == 30);
  CHECK(file.get_int("negative") == -3);
  CHECK(file.get_float("eps") == 0.5);
  CHECK(file.get_float("llama.block_count") == 30.0);
  CHECK(file.get_bool("flag") == true);
  CHECK(!file.get_int("absent").has_value());
  const GgufValue* tokens = file.find_value("tokens");
  CHECK(tokens != nullptr && tokens->type == GgufValueType::kArray && tokens->count == 2 &&
        tokens->element_type == GgufValueType::kString);
  CHECK_EQ(file.tensors().size(), 2u);
  const TensorInfo* weight = file.find_tensor("weight");
  CHECK(weight != nullptr);
  CHECK_EQ(weight->columns(), 64);
  CHECK_EQ(weight->rows(), 3);
  CHECK_EQ(weight->num_bytes, 204u);
  CHECK_EQ(weight->offset, file.data_offset() + 32);
  CHECK_EQ(std::to_integer<int>(*file.tensor_data(*weight)), 32);
  CHECK(file.find_tensor("weigh") == nullptr);
  CHECK(file.find_tensor("") == nullptr);
}

TEST(wrong_kind_is_an_error_that_names_the_key) {
  const Builder builder = small_file();
  const ExactBytes exact(builder.bytes());
  const GgufFile file = GgufFile::parse(exact.span());
  CHECK_THROWS(file.get_int("eps"));
  CHECK_THROWS(file.get_bool("negative"));
  CHECK_THROWS(file.get_float("tokens"));
  try {
    file.get_string("llama.block_count");
    CHECK(false);
  } catch (const Error& error) {
    CHECK(contains(error.what(), "'llama.block_count' is of type uint32, not a string"));
    CHECK(error.code() == ErrorCode::kInvalidFile);
  }
}

TEST(uint64_above_int64_is_not_an_integer) {
  Builder builder(0, 1);
  builder.key("k", GgufValueType::kUint64).number(UINT64_MAX);
  const ExactBytes exact(builder.bytes());
  const GgufFile file = GgufFile::parse(exact.span());
  CHECK_THROWS(file.get_int("k"));
}

TEST(every_prefix_is_refused) {
  const std::string bytes = small_file().bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    if (error_of(std::string_view(bytes).substr(0, size)) == "parsed") {
      test::fail(__FILE__, __LINE__, "a prefix of " + std::to_string(size) + " bytes parsed");
    }
  }
  CHECK_EQ(error_of(bytes), "parsed");
}

TEST(every_byte_flip_parses_or_throws) {
  const std::string bytes = small_file().bytes();
  int num_refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      num_refused += error_of(flipped) != "parsed";
    }
  }
  CHECK(num_refused > 500);
}

TEST(unknown_tensor_type_is_unsupported) {
  Builder builder(1, 0);
  builder.tensor("odd", {32}, 31, 0).data(64);
  const ExactBytes exact(builder.bytes());
  try {
    GgufFile::parse(exact.span());
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnsupported);
    CHECK(contains(error.what(), "tensor 'odd' has the tensor type 31"));
  }
}

TEST(sizes_that_wrap_are_refused) {
  CHECK(contains(error_of(Builder(1, 0).tensor("t", {1ull << 61, 3}, 0, 0).data(64).bytes()), "overflows"));
  CHECK(contains(error_of(Builder(1, 0).tensor("t", {1ull << 32, 1ull << 32}, 0, 0).data(64).bytes()),
                 "the number of elements overflows"));
  CHECK(
      contains(error_of(Builder(1, 0).tensor("t", {32}, 0, UINT64_MAX - 127).data(64).bytes()), "cut short"));
  Builder array(0, 1);
  array.key("k", GgufValueType::kArray)
      .number(uint32_t{10})
      .number((uint64_t{1} << 61) + 1)
      .number(uint64_t{0});
  CHECK(contains(error_of(array.bytes()), "claims an array"));
  CHECK(contains(error_of(Builder(UINT64_MAX, 0).data(64).bytes()), "tensors but only"));
  CHECK(contains(error_of(Builder(0, UINT64_MAX).data(64).bytes()), "metadata keys but only"));
}

TEST(overlap_and_duplicates_are_refused) {
  CHECK(contains(error_of(Builder(2, 0).tensor("a", {16}, 0, 0).tensor("b", {16}, 0, 32).data(128).bytes()),
                 "tensors 'a' and 'b' overlap"));
  CHECK(contains(error_of(Builder(2, 0).tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).data(128).bytes()),
                 "tensor 'a' occurs twice"));
  CHECK_EQ(error_of(Builder(2, 0).tensor("a", {8}, 0, 32).tensor("b", {8}, 0, 0).data(64).bytes()), "parsed");
}

TEST(utf8) {
  CHECK(is_utf8(""));
  CHECK(is_utf8("plain ASCII that is longer than a word"));
  CHECK(is_utf8("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf"));
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "12345678\xff", "\xc3("}) {
    CHECK(!is_utf8(bad));
  }
  CHECK_EQ(quoted("a'\n\xff"), "'a\\x27\\x0a\\xff'");
  CHECK_EQ(quoted(std::string(65, 'x')), "'" + std::string(64, 'x') + "...'");
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    const char* directory = std::getenv("TMPDIR");
    path_ = std::string(directory != nullptr ? directory : "/tmp") + "/plait-gguf-test-XXXXXX";
    const int fd = ::mkstemp(path_.data());
    CHECK(fd >= 0);
    ::close(fd);
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(opened_file_survives_a_move_and_a_release) {
  const TemporaryFile temporary(small_file().bytes());
  GgufFile first = GgufFile::open(temporary.path());
  const GgufFile file = std::move(first);
  const TensorInfo& weight = *file.find_tensor("weight");
  file.prefetch(weight);
  file.release(weight);
  CHECK_EQ(std::to_integer<int>(*file.tensor_data(weight)), 32);
  CHECK(file.get_string("general.architecture") == std::string_view("llama"));
  CHECK_EQ(file.path(), temporary.path());
}

TEST(mapped_file_refuses_what_is_no_file) {
  CHECK_THROWS(MappedFile::open("/nonexistent/model.gguf"));
  CHECK_THROWS(MappedFile::open("/tmp"));
  CHECK_THROWS(MappedFile::open("/dev/zero"));
  CHECK_THROWS(MappedFile::open(std::string("/etc/passwd\0x", 13)));
  const TemporaryFile temporary("");
  CHECK_EQ(MappedFile::open(temporary.path()).size(), 0u);
  const std::string fifo = temporary.path() + ".fifo";
  CHECK_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  CHECK_THROWS(MappedFile::open(fifo));
  ::unlink(fifo.c_str());
}

TEST(mapped_file_ranges_are_cut_to_the_file) {
  const TemporaryFile temporary(std::string(10000, 'x'));
  const MappedFile file = MappedFile::open(temporary.path());
  file.advise(MappedFile::Access::kSequential, 0, SIZE_MAX);
  file.advise(MappedFile::Access::kRandom, 20000, 1);
  file.release(0, SIZE_MAX);
  file.release(5000, 10);
  file.release(SIZE_MAX, 1);
  CHECK_EQ(static_cast<char>(file.data()[9999]), 'x');
}

}  // namespace
}  // namespace plait

TEST_MAIN()
