// Packed files: what is written is read back; damage anywhere, foreign files and killed writers do no harm.
#include "fileio/packed_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/test.h"
#include "fileio/checksum.h"
#include "fileio/packed_writer.h"

using plait::Error;
using plait::ErrorCode;
using plait::PackedFile;
using plait::PackedMemory;
using plait::PackedSpec;
using plait::PackedWriter;

namespace {

const std::string kName = "weights.packed";
const std::string kTemporary = kName + plait::kPackedTemporarySuffix;

// A folder of its own, removed with what is in it.
class Folder {
 public:
  Folder() {
    char path[] = "/tmp/plait-packed-XXXXXX";
    path_ = ::mkdtemp(path);
    fd_ = plait::Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~Folder() {
    for (const std::string& name : names()) ::unlink((path_ + "/" + name).c_str());
    ::rmdir(path_.c_str());
  }
  int fd() const { return fd_.get(); }
  std::string path(const std::string& name = kName) const { return path_ + "/" + name; }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    DIR* dir = ::opendir(path_.c_str());
    while (const dirent* entry = ::readdir(dir)) {
      if (entry->d_name[0] != '.') found.emplace_back(entry->d_name);
    }
    ::closedir(dir);
    return found;
  }

 private:
  std::string path_;
  plait::Descriptor fd_;
};

std::vector<std::byte> random_bytes(size_t size, uint64_t seed = 1) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(seed >> 56);
  }
  return bytes;
}

// Two whole chunks and a part.
const std::vector<std::byte>& data() {
  static const std::vector<std::byte> bytes = random_bytes(2 * plait::kPackedChunkBytes + 12345);
  return bytes;
}
PackedSpec spec() { return {"made from a test\n", data().size()}; }

bool write(int folder, std::span<const std::byte> bytes = data()) {
  const auto writer = PackedWriter::try_create(folder, kName, {spec().key, bytes.size()});
  if (writer == nullptr) return false;
  // Pieces that do not end where chunks do.
  const size_t half = bytes.size() / 2 + 1;
  writer->append(bytes.subspan(0, half));
  writer->append(bytes.subspan(half));
  writer->publish();
  return true;
}

std::shared_ptr<const PackedFile> open(const Folder& folder, PackedMemory memory = PackedMemory::kShared) {
  return PackedFile::open(folder.fd(), kName, spec(), 2, memory);
}

bool holds_data(const std::shared_ptr<const PackedFile>& file) {
  return file != nullptr && file->data().size() == data().size() &&
         std::memcmp(file->data().data(), data().data(), data().size()) == 0;
}

// The code of the Error that `run` throws; kInternal when it throws none.
ErrorCode code_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.code();
  }
  return ErrorCode::kInternal;
}
bool is_refused(const Folder& folder) {
  return code_of([&] { open(folder); }) == ErrorCode::kInvalidFile &&
         code_of([&] { open(folder, PackedMemory::kPrivate); }) == ErrorCode::kInvalidFile;
}

void flip_bit(const std::string& path, size_t at, int bit) {
  const plait::Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  unsigned char byte = 0;
  CHECK_EQ(::pread(file.get(), &byte, 1, static_cast<off_t>(at)), 1);
  byte ^= static_cast<unsigned char>(1 << bit);
  CHECK_EQ(::pwrite(file.get(), &byte, 1, static_cast<off_t>(at)), 1);
}

bool child_succeeds(const std::function<bool()>& run) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(run() ? 0 : 1);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST(checksum_is_as_drawn) {
  // Recomputed from the definition in the header, word by word.
  const auto mix = [](uint64_t h) {
    h *= 0x9E3779B97F4A7C15;
    return h ^ (h >> 32);
  };
  for (const size_t size : {0, 1, 7, 8, 63, 64, 65, 1000}) {
    const auto bytes = random_bytes(size);
    uint64_t lanes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const size_t num_words = (size + 63) / 64 * 8;
    for (size_t i = 0; i < num_words; ++i) {
      uint64_t word = 0;
      for (size_t b = 0; b < 8 && i * 8 + b < size; ++b) {
        word |= static_cast<uint64_t>(bytes[i * 8 + b]) << (8 * b);
      }
      lanes[i % 8] = mix(lanes[i % 8] ^ word);
    }
    uint64_t expected = size;
    for (const uint64_t lane : lanes) expected = mix(expected ^ lane);
    CHECK_EQ(plait::checksum64(bytes), expected);
  }
}

TEST(checksum_sees_every_bit) {
  auto bytes = random_bytes(200);
  const uint64_t good = plait::checksum64(bytes);
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] ^= static_cast<std::byte>(1 << (i % 8));
    CHECK(plait::checksum64(bytes) != good);
    bytes[i / 8] ^= static_cast<std::byte>(1 << (i % 8));
  }
  CHECK(plait::checksum64(std::span(bytes).first(199)) != good);
}

TEST(what_is_written_is_read) {
  const Folder folder;
  CHECK(open(folder) == nullptr);
  CHECK(write(folder.fd()));
  for (const PackedMemory memory : {PackedMemory::kAuto, PackedMemory::kShared, PackedMemory::kPrivate}) {
    const auto file = open(folder, memory);
    CHECK(holds_data(file));
    if (memory != PackedMemory::kAuto) CHECK_EQ(file->is_shared(), memory == PackedMemory::kShared);
    if (file->is_shared()) {
      CHECK_EQ(reinterpret_cast<uintptr_t>(file->data().data()) % plait::kPackedAlignment, size_t{0});
    }
  }
  CHECK_EQ(folder.names().size(), size_t{1});
  struct stat status = {};
  CHECK_EQ(::stat(folder.path().c_str(), &status), 0);
  CHECK_EQ(status.st_mode & 07777, mode_t{0600});
}

TEST(sizes_around_a_chunk) {
  for (const size_t size :
       {size_t{1}, plait::kPackedChunkBytes - 1, plait::kPackedChunkBytes, plait::kPackedChunkBytes + 1}) {
    const Folder folder;
    const auto bytes = random_bytes(size);
    CHECK(write(folder.fd(), bytes));
    for (const PackedMemory memory : {PackedMemory::kShared, PackedMemory::kPrivate}) {
      const auto file = PackedFile::open(folder.fd(), kName, {spec().key, size}, 3, memory);
      CHECK(file != nullptr && std::memcmp(file->data().data(), bytes.data(), size) == 0);
    }
  }
}

TEST(a_flipped_bit_anywhere_is_found) {
  const Folder folder;
  CHECK(write(folder.fd()));
  const size_t at_data = plait::packed_data_offset(spec());
  const size_t key = 64, table = key + spec().key.size(), hole = table + 3 * 8;
  const size_t chunk = plait::kPackedChunkBytes;
  std::vector<size_t> places = {key, table - 1, table, hole - 1, hole, at_data - 1, at_data};
  for (size_t i = 0; i < 64; ++i) places.push_back(i);  // every byte of the head's fields
  for (const size_t at : {chunk - 1, chunk, 2 * chunk - 1, 2 * chunk, data().size() - 1}) {
    places.push_back(at_data + at);
  }
  for (const size_t at : places) {
    const int bit = static_cast<int>(at % 8);
    flip_bit(folder.path(), at, bit);
    CHECK(is_refused(folder));
    flip_bit(folder.path(), at, bit);
  }
  CHECK(holds_data(open(folder)));
}

TEST(a_file_of_another_size_is_refused) {
  const Folder folder;
  CHECK(write(folder.fd()));
  const size_t whole = plait::packed_data_offset(spec()) + data().size();
  for (const size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, plait::packed_data_offset(spec()),
                            whole - 1, whole + 1, whole + plait::kPackedChunkBytes}) {
    CHECK_EQ(::truncate(folder.path().c_str(), static_cast<off_t>(size)), 0);
    CHECK(is_refused(folder));
  }
  CHECK(write(folder.fd()));
  CHECK(holds_data(open(folder)));
}

TEST(other_data_are_refused) {
  const Folder folder;
  CHECK(write(folder.fd()));
  const auto code = [&](PackedSpec wanted) {
    return code_of([&] { PackedFile::open(folder.fd(), kName, wanted, 2); });
  };
  CHECK(code({"made from a tesT\n", spec().num_bytes}) == ErrorCode::kInvalidFile);
  CHECK(code({"made from a test", spec().num_bytes}) == ErrorCode::kInvalidFile);
  CHECK(code({spec().key, spec().num_bytes - 1}) == ErrorCode::kInvalidFile);
  CHECK(code({spec().key, spec().num_bytes + 1}) == ErrorCode::kInvalidFile);
}

TEST(a_file_that_others_could_have_written_is_refused) {
  const Folder folder;
  CHECK(write(folder.fd()));
  for (const mode_t mode : {0602, 0620, 0666}) {
    CHECK_EQ(::chmod(folder.path().c_str(), mode), 0);
    CHECK(is_refused(folder));
  }
  CHECK_EQ(::chmod(folder.path().c_str(), 0444), 0);
  CHECK(holds_data(open(folder)));
  if (::geteuid() != 0) return;  // only root can give files away
  CHECK_EQ(::chown(folder.path().c_str(), 12345, static_cast<gid_t>(-1)), 0);
  CHECK(is_refused(folder));
}

TEST(only_regular_files_are_opened) {
  const Folder folder;
  CHECK(write(folder.fd()));
  const std::string real = folder.path("real");
  CHECK_EQ(::rename(folder.path().c_str(), real.c_str()), 0);
  CHECK_EQ(::symlink(real.c_str(), folder.path().c_str()), 0);
  CHECK(is_refused(folder));
  // Writing replaces the link, not what it leads to.
  CHECK_EQ(::truncate(real.c_str(), 5), 0);
  CHECK(write(folder.fd()));
  CHECK(holds_data(open(folder)));
  struct stat status = {};
  CHECK_EQ(::stat(real.c_str(), &status), 0);
  CHECK_EQ(status.st_size, off_t{5});
  CHECK_EQ(::unlink(folder.path().c_str()), 0);
  CHECK_EQ(::mkfifo(folder.path().c_str(), 0600), 0);
  CHECK(is_refused(folder));  // and does not hang
  CHECK_EQ(::unlink(folder.path().c_str()), 0);
  CHECK_EQ(::mkdir(folder.path().c_str(), 0700), 0);
  CHECK(is_refused(folder));
  CHECK_EQ(::rmdir(folder.path().c_str()), 0);
}

TEST(without_publish_nothing_is_left) {
  const Folder folder;
  {
    const auto writer = PackedWriter::try_create(folder.fd(), kName, spec());
    writer->append(data());
    CHECK_EQ(folder.names().size(), size_t{1});
  }
  CHECK(folder.names().empty());
}

TEST(a_writer_takes_exactly_what_was_said) {
  const Folder folder;
  const auto writer = PackedWriter::try_create(folder.fd(), kName, {"key", 100});
  writer->append(random_bytes(60));
  CHECK(code_of([&] { writer->publish(); }) == ErrorCode::kInvalidArgument);
  writer->pad(32);
  CHECK_EQ(writer->num_appended(), uint64_t{64});
  CHECK(code_of([&] { writer->append(random_bytes(37)); }) == ErrorCode::kInvalidArgument);
}

TEST(a_link_in_the_place_of_the_temporary_file_is_not_followed) {
  const Folder folder;
  const std::string victim = folder.path("victim");
  CHECK_EQ(::symlink(victim.c_str(), folder.path(kTemporary).c_str()), 0);
  CHECK(code_of([&] { write(folder.fd()); }) == ErrorCode::kSystem);
  CHECK(::access(victim.c_str(), F_OK) != 0);
}

TEST(a_folder_that_cannot_be_written_to_is_an_error) {
  const Folder folder;
  CHECK_EQ(::chmod(folder.path("").c_str(), 0500), 0);
  // Root may write anywhere: try as somebody else.
  CHECK(child_succeeds([&] {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) return false;
    return code_of([&] { write(folder.fd()); }) == ErrorCode::kSystem;
  }));
  CHECK_EQ(::chmod(folder.path("").c_str(), 0700), 0);
}

TEST(one_of_two_writers_writes) {
  const Folder folder;
  auto first = PackedWriter::try_create(folder.fd(), kName, spec());
  CHECK(PackedWriter::try_create(folder.fd(), kName, spec()) == nullptr);
  CHECK(child_succeeds([&] { return PackedWriter::try_create(folder.fd(), kName, spec()) == nullptr; }));
  first->append(data());
  first->publish();
  // The lock is gone with the name; the next writer begins a file of its own.
  auto second = PackedWriter::try_create(folder.fd(), kName, spec());
  CHECK(second != nullptr);
  CHECK(holds_data(open(folder)));
  second.reset();
  CHECK(holds_data(open(folder)));
}

TEST(a_killed_writer_does_no_harm) {
  const Folder folder;
  int ready[2];
  CHECK_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto writer = PackedWriter::try_create(folder.fd(), kName, spec());
    writer->append(std::span(data()).first(data().size() - 1));
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  CHECK_EQ(::read(ready[0], &byte, 1), ssize_t{1});
  CHECK(open(folder) == nullptr);
  CHECK(PackedWriter::try_create(folder.fd(), kName, spec()) == nullptr);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  CHECK_EQ(folder.names().size(), size_t{1});  // its temporary file, half written
  CHECK(open(folder) == nullptr);
  CHECK(write(folder.fd()));
  CHECK(holds_data(open(folder)));
  CHECK_EQ(folder.names().size(), size_t{1});
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(many_processes_start_at_once) {
  const Folder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const plait::Descriptor own(::open(folder.path("").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      bool is_good = true;
      for (int round = 0; round < 4 && is_good; ++round) {
        // Some write although there is a good file: readers must never see anything but a whole one.
        while ((round + i) % 2 == 0 && !write(own.get())) ::usleep(1000);
        const auto file = PackedFile::open(own.get(), kName, spec(), 1, PackedMemory::kShared);
        is_good = file == nullptr ? (round + i) % 2 != 0 : holds_data(file);
      }
      ::_exit(is_good ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(holds_data(open(folder)));
  CHECK_EQ(folder.names().size(), size_t{1});
}

TEST(a_file_in_use_is_locked) {
  const Folder folder;
  CHECK(write(folder.fd()));
  auto file = open(folder);
  const plait::Descriptor other(::open(folder.path().c_str(), O_RDONLY | O_CLOEXEC));
  CHECK(::flock(other.get(), LOCK_EX | LOCK_NB) != 0);
  file.reset();
  CHECK_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  // Somebody is about to remove it: it can be read all the same.
  CHECK(holds_data(open(folder)));
}

TEST(data_stay_valid_when_the_file_is_removed_or_replaced) {
  const Folder folder;
  CHECK(write(folder.fd()));
  const auto file = open(folder);
  CHECK(write(folder.fd(), random_bytes(1000, 7)));
  CHECK_EQ(::unlink(folder.path().c_str()), 0);
  CHECK(holds_data(file));
}

TEST(huge_pages_are_counted) {
  const size_t size = 4 * plait::kHugePageBytes;
  const plait::Memory memory(size);
  std::memset(memory.data(), 1, size);
  const size_t huge = plait::num_huge_bytes({memory.data(), size});
  CHECK(huge <= size);
  plait::try_collapse({memory.data(), size});
  CHECK(plait::num_huge_bytes({memory.data(), size}) >= huge);
  CHECK(memory.data()[size - 1] == std::byte{1});
}

TEST_MAIN()
