#include "fileio/io_pool.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/test.h"
#include "fileio/descriptor.h"

using namespace plait;

namespace {

Descriptor temporary_file() {
  char path[] = "/tmp/plait-io-test-XXXXXX";
  Descriptor file(::mkostemp(path, O_CLOEXEC));
  ::unlink(path);
  return file;
}

std::vector<std::byte> pattern(size_t size, uint32_t seed) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<std::byte>(seed >> 24);
  }
  return bytes;
}

// Submits, whatever it takes, and waits for the result.
IoResult wait_for(IoPool& pool, std::vector<IoOp> ops, int32_t lane = 0,
                  std::shared_ptr<const std::atomic<bool>> cancelled = nullptr) {
  IoResult result;
  std::atomic<bool> is_done{false};
  IoJob job;
  job.ops = std::move(ops);
  job.cancelled = std::move(cancelled);
  job.done = [&](const IoResult& got) {
    result = got;
    is_done.store(true, std::memory_order_release);
    is_done.notify_one();
  };
  while (!pool.try_submit(std::move(job), lane)) std::this_thread::yield();
  is_done.wait(false, std::memory_order_acquire);
  return result;
}

}  // namespace

TEST(what_is_written_is_read) {
  IoPool pool(1);
  const Descriptor file = temporary_file();
  // Neighbours that become one call, a gap, more pieces than one call takes, and more bytes than one call
  // moves.
  const std::vector<std::byte> bytes = pattern((size_t{20} << 20) + 17, 1);
  std::vector<IoOp> writes;
  const std::vector<size_t> sizes = {1, 4096, 100'000, 17, size_t{17} << 20};
  size_t at = 0;
  for (const size_t size : sizes) {
    writes.push_back(IoOp::write(file.get(), static_cast<int64_t>(at), std::span(bytes).subspan(at, size)));
    at += size;
  }
  for (int i = 0; i < 200; ++i, at += 100) {
    writes.push_back(IoOp::write(file.get(), static_cast<int64_t>(at), std::span(bytes).subspan(at, 100)));
  }
  const size_t gap = 5000;
  writes.push_back(
      IoOp::write(file.get(), static_cast<int64_t>(at + gap), std::span(bytes).subspan(at + gap, 100)));
  writes.push_back(IoOp::sync(file.get()));
  const size_t total = at + 100;
  const IoResult written = wait_for(pool, std::move(writes));
  CHECK_EQ(written.error, std::string());
  CHECK_EQ(written.num_bytes, static_cast<int64_t>(total));
  CHECK(written.begin_ns > 0 && written.end_ns >= written.begin_ns);

  std::vector<std::byte> read(at + gap + 100, std::byte{9});
  std::vector<IoOp> reads;
  for (size_t from = 0; from < read.size();) {
    const size_t part = std::min<size_t>(read.size() - from, 777'777);
    reads.push_back(IoOp::read(file.get(), static_cast<int64_t>(from), std::span(read).subspan(from, part)));
    from += part;
  }
  const IoResult got = wait_for(pool, std::move(reads));
  CHECK_EQ(got.error, std::string());
  CHECK_EQ(got.num_bytes, static_cast<int64_t>(read.size()));
  CHECK(std::memcmp(read.data(), bytes.data(), at) == 0);
  for (size_t i = at; i < at + gap; ++i) CHECK(read[i] == std::byte{0});
  CHECK(std::memcmp(read.data() + at + gap, bytes.data() + at + gap, 100) == 0);
}

TEST(errors_are_values_and_end_the_job) {
  IoPool pool(1);
  const Descriptor file = temporary_file();
  std::vector<std::byte> bytes(100, std::byte{1});
  CHECK_EQ(wait_for(pool, {IoOp::write(file.get(), 0, bytes)}).error, std::string());
  bool was_run = false;
  IoResult result = wait_for(pool, {IoOp::read(file.get(), 50, bytes), IoOp::run([&] { was_run = true; })});
  CHECK_EQ(result.error_number, ENODATA);
  CHECK_EQ(result.error, std::string("cannot read 100 bytes at 50: the file ends before"));
  CHECK(!was_run);
  result = wait_for(pool, {IoOp::write(-1, 0, bytes)});
  CHECK_EQ(result.error_number, EBADF);
  CHECK_EQ(wait_for(pool, {IoOp::sync(-1)}).error_number, EBADF);
  CHECK_EQ(wait_for(pool, {IoOp::reserve(-1, 0, 1)}).error_number, EBADF);
  result = wait_for(pool, {IoOp::run([] { throw std::runtime_error("no"); })});
  CHECK_EQ(result.error, std::string("no"));
  CHECK_EQ(result.error_number, 0);
  CHECK_EQ(wait_for(pool, {}).error, std::string());
}

TEST(a_full_disk_is_an_error) {
  IoPool pool(1);
  const Descriptor full(::open("/dev/full", O_RDWR | O_CLOEXEC));
  const std::vector<std::byte> bytes(4096, std::byte{1});
  const IoResult result = wait_for(pool, {IoOp::write(full.get(), 0, bytes)});
  CHECK_EQ(result.error_number, ENOSPC);
  CHECK_EQ(result.num_bytes, int64_t{0});
}

TEST(room_is_reserved_and_given_back) {
  IoPool pool(1);
  const Descriptor file = temporary_file();
  const auto blocks = [&] {
    struct stat info{};
    ::fstat(file.get(), &info);
    return info.st_blocks;
  };
  std::vector<std::byte> bytes = pattern(1 << 20, 3);
  CHECK_EQ(wait_for(pool, {IoOp::reserve(file.get(), 0, 1 << 20), IoOp::write(file.get(), 0, bytes)}).error,
           std::string());
  CHECK(blocks() * 512 >= 1 << 20);
  CHECK_EQ(wait_for(pool, {IoOp::punch(file.get(), 0, 1 << 19)}).error, std::string());
  CHECK_EQ(wait_for(pool, {IoOp::read(file.get(), 0, bytes)}).error, std::string());
  const std::vector<std::byte> before = pattern(1 << 20, 3);
  CHECK(std::memcmp(bytes.data() + (1 << 19), before.data() + (1 << 19), 1 << 19) == 0);
  // Where the file system has no holes, nothing happened; else the range reads as zeros and is off the disk.
  if (bytes[0] != before[0] || bytes[1] != before[1]) {
    for (size_t i = 0; i < 1 << 19; ++i) CHECK(bytes[i] == std::byte{0});
    CHECK(blocks() * 512 < 1 << 20);
  }
}

TEST(a_cancelled_job_ends_before_its_next_operation) {
  IoPool pool(1);
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  int num_run = 0;
  const auto count = [&] { ++num_run; };
  const IoResult result = wait_for(
      pool, {IoOp::run(count), IoOp::run([&] { cancelled->store(true); }), IoOp::run(count)}, 0, cancelled);
  CHECK(result.is_cancelled);
  CHECK_EQ(result.error, std::string("cancelled"));
  CHECK_EQ(num_run, 1);
}

TEST(a_lane_keeps_order_and_lanes_run_side_by_side) {
  IoPool pool(2);
  // Lane 0 waits until lane 1 has run something: that would never end in one thread.
  std::atomic<bool> is_open{false};
  std::vector<int> order;  // of lane 0 only
  IoJob blocker;
  blocker.ops.push_back(IoOp::run([&] {
    is_open.wait(false);
    order.push_back(0);
  }));
  CHECK(pool.try_submit(std::move(blocker), 0));
  for (int i = 1; i <= 20; ++i) {
    IoJob job;
    job.ops.push_back(IoOp::run([&order, i] { order.push_back(i); }));
    CHECK(pool.try_submit(std::move(job), 0));
  }
  const IoResult result = wait_for(pool, {IoOp::run([&] {
                                     is_open.store(true);
                                     is_open.notify_one();
                                   })},
                                   1);
  CHECK_EQ(result.error, std::string());
  wait_for(pool, {}, 0);
  CHECK_EQ(order.size(), size_t{21});
  for (size_t i = 0; i < order.size(); ++i) CHECK_EQ(order[i], static_cast<int>(i));
}

TEST(a_full_lane_refuses_and_keeps_the_job) {
  IoPool pool(1, 4);
  std::atomic<bool> is_open{false};
  std::atomic<int> num_run{0};
  int num_accepted = 0;
  for (;;) {
    IoJob job;
    job.ops.push_back(IoOp::run([&] {
      is_open.wait(false);
      ++num_run;
    }));
    if (!pool.try_submit(std::move(job))) {
      CHECK_EQ(job.ops.size(), size_t{1});
      break;
    }
    ++num_accepted;
  }
  CHECK(num_accepted == 4 || num_accepted == 5);  // the thread may have taken one
  is_open.store(true);
  is_open.notify_all();
  wait_for(pool, {});
  CHECK_EQ(num_run.load(), num_accepted);
}

TEST(many_threads_submit) {
  constexpr int kNumThreads = 3;
  constexpr int kNumJobs = 2000;
  std::atomic<int64_t> num_done{0};
  std::vector<std::byte> block(512, std::byte{7});
  const Descriptor file = temporary_file();
  {
    IoPool pool(2, 16);
    std::vector<std::thread> threads;
    for (int t = 0; t < kNumThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kNumJobs; ++i) {
          IoJob job;
          job.ops.push_back(IoOp::write(file.get(), (t * kNumJobs + i) * 512, block));
          job.done = [&](const IoResult& result) { num_done += result.error.empty() ? 1 : 0; };
          while (!pool.try_submit(std::move(job), i % 2)) std::this_thread::yield();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }  // the end of the pool runs what is left
  CHECK_EQ(num_done.load(), int64_t{kNumThreads} * kNumJobs);
  struct stat info{};
  ::fstat(file.get(), &info);
  CHECK_EQ(info.st_size, off_t{kNumThreads} * kNumJobs * 512);
}

TEST(misuse_is_refused) {
  CHECK_THROWS(IoPool(0));
  CHECK_THROWS(IoPool(IoPool::kMaxThreads + 1));
  CHECK_THROWS(IoPool(1, 0));
  IoPool pool(1);
  CHECK_THROWS(pool.try_submit({}, 1));
  CHECK_THROWS(pool.try_submit({}, -1));
}

TEST_MAIN()
