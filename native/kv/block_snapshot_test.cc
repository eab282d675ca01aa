// Readers copy blocks while their owner lets them be written as fast as it can.
#include "kv/block_snapshot.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/test.h"
#include "kv/kv_manager.h"

using namespace plait;

namespace {

constexpr int64_t kNumTries = 1'000'000;
constexpr int32_t kNumReaders = 2;
constexpr int32_t kBlockTokens = 4;
constexpr int32_t kNumBlocks = 16;
constexpr int32_t kTriesPerCapture = 4;
constexpr size_t kCellWords = 32;  // one position
constexpr size_t kBlockWords = kBlockTokens * kCellWords;

// Blocks of words. Written by the writer with relaxed stores, read with copy_block_bytes.
struct Bytes {
  std::vector<uint64_t> words = std::vector<uint64_t>(kNumBlocks * kBlockWords);

  uint64_t* block(int32_t block) { return words.data() + static_cast<size_t>(block) * kBlockWords; }
  const std::byte* bytes(int32_t block) const {
    return reinterpret_cast<const std::byte*>(words.data() + static_cast<size_t>(block) * kBlockWords);
  }
  void write_cell(int32_t block_id, int32_t offset, uint64_t value) {
    uint64_t* cell = block(block_id) + static_cast<size_t>(offset) * kCellWords;
    for (size_t i = 0; i < kCellWords; ++i) __atomic_store_n(cell + i, value + i, __ATOMIC_RELAXED);
  }
  void copy(BlockCopy copy) {
    const uint64_t* source = block(copy.src);
    uint64_t* target = block(copy.dst);
    for (size_t i = 0; i < kBlockWords; ++i) __atomic_store_n(target + i, source[i], __ATOMIC_RELAXED);
  }
};

// A captured sequence and what each of its positions holds.
struct Captured {
  BlockSnapshot snapshot;
  std::vector<uint64_t> values;
};

// Hands the newest capture to the readers.
class Board {
 public:
  void post(Captured captured) {
    const std::lock_guard lock(mutex_);
    newest_ = std::move(captured);
    ++num_posted_;
  }
  Captured read() {
    const std::lock_guard lock(mutex_);
    return newest_;
  }
  int64_t num_posted() {
    const std::lock_guard lock(mutex_);
    return num_posted_;
  }

 private:
  std::mutex mutex_;
  Captured newest_;
  int64_t num_posted_ = 0;
};

struct Tally {
  std::atomic<int64_t> num_tries{0};
  std::atomic<int64_t> num_accepted{0};
  std::atomic<int64_t> num_rejected{0};
  std::atomic<int64_t> num_torn{0};   // rejected, and rightly: the bytes were others
  std::atomic<int64_t> num_wrong{0};  // accepted, but the bytes were others
};

bool holds(const std::vector<uint64_t>& words, const Captured& captured) {
  for (size_t position = 0; position < captured.values.size(); ++position) {
    for (size_t i = 0; i < kCellWords; ++i) {
      if (words[position * kCellWords + i] != captured.values[position] + i) return false;
    }
  }
  return true;
}

// The owner and the writer, in one thread: sequence ids, what is in them, and the bytes.
class Writer {
 public:
  Writer(Bytes& bytes, Board& board) : bytes_(bytes), board_(board) {}

  const KvManager& kv() const { return kv_; }

  // A prompt, then `num_forks` writers of its last block, of which each adds `num_added` tokens.
  void round(int32_t num_prompt, int32_t num_forks, int32_t num_added) {
    std::vector<std::vector<uint64_t>> values(1);
    kv_.open_sequence(0, {}, "", false);
    add(0, num_prompt, values[0]);
    for (int32_t fork = 1; fork < num_forks; ++fork) {
      kv_.fork(0, fork);
      values.push_back(values[0]);
    }
    const uint64_t before = kv_.counters().num_copies;
    for (int32_t i = 0; i < num_added; ++i) {
      for (int32_t fork = 0; fork < num_forks; ++fork) add(fork, 1, values[static_cast<size_t>(fork)]);
    }
    const bool is_shared = num_prompt % kBlockTokens != 0;
    CHECK_EQ(kv_.counters().num_copies - before, static_cast<uint64_t>(is_shared ? num_forks - 1 : 0));
    CHECK_EQ(num_copied_, kv_.counters().num_copies);
    for (int32_t fork = 0; fork < num_forks; ++fork) kv_.close_sequence(fork);
    CHECK_EQ(kv_.num_free_blocks(), kNumBlocks);
  }

 private:
  void add(int64_t seq_id, int32_t num_added, std::vector<uint64_t>& values) {
    const auto first = static_cast<int32_t>(values.size());
    CHECK(kv_.try_grow(seq_id, first + num_added));
    begin_block_writes();
    for (const BlockCopy& copy : kv_.take_copies()) {
      bytes_.copy(copy);
      ++num_copied_;
    }
    const auto table = kv_.block_table(seq_id);
    for (int32_t position = first; position < first + num_added; ++position) {
      next_value_ += kCellWords;
      bytes_.write_cell(table[static_cast<size_t>(position / kBlockTokens)], position % kBlockTokens,
                        next_value_);
      values.push_back(next_value_);
    }
    kv_.commit(seq_id, std::vector<int32_t>(static_cast<size_t>(num_added), 7));
    board_.post({kv_.capture(seq_id), values});
  }

  KvManager kv_{kNumBlocks, kBlockTokens, "m"};
  Bytes& bytes_;
  Board& board_;
  uint64_t num_copied_ = 0;
  uint64_t next_value_ = 0;
};

void read_until(const std::atomic<bool>& is_done, const Bytes& bytes, const BlockVersions& versions,
                Board& board, Tally& tally) {
  std::vector<uint64_t> words(kNumBlocks * kBlockWords);
  Captured captured;
  for (int64_t i = 0; !is_done.load(std::memory_order_relaxed); ++i) {
    if (i % kTriesPerCapture == 0) captured = board.read();
    if (captured.snapshot.blocks.empty()) continue;
    for (size_t k = 0; k < captured.snapshot.blocks.size(); ++k) {
      copy_block_bytes(reinterpret_cast<std::byte*>(words.data() + k * kBlockWords),
                       bytes.bytes(captured.snapshot.blocks[k]), kBlockWords * sizeof(uint64_t));
    }
    const bool is_accepted = is_unchanged(versions, captured.snapshot);
    const bool is_right = holds(words, captured);
    ++(is_accepted ? tally.num_accepted : tally.num_rejected);
    if (!is_right) ++(is_accepted ? tally.num_wrong : tally.num_torn);
    ++tally.num_tries;
  }
}

}  // namespace

TEST(no_torn_copy_is_accepted) {
  Bytes bytes;
  Board board;
  Tally tally;
  Writer writer(bytes, board);
  std::atomic<bool> is_done{false};
  std::vector<std::thread> readers;
  const auto versions = writer.kv().versions();
  for (int32_t i = 0; i < kNumReaders; ++i) {
    readers.emplace_back([&] { read_until(is_done, bytes, *versions, board, tally); });
  }
  // Goes on until all three happened, so that the test cannot pass by luck of the scheduler. The bound is for
  // a reader or a protocol that makes one of them impossible.
  const auto is_enough = [&] {
    return tally.num_wrong > 0 ||
           (tally.num_tries >= kNumTries && tally.num_accepted > 0 && tally.num_torn > 0);
  };
  for (int32_t round = 0; !is_enough() && tally.num_tries < 50 * kNumTries; ++round) {
    writer.round(1 + round % 7, 1 + round % 5, 1 + round % 4);
  }
  is_done.store(true, std::memory_order_relaxed);
  for (std::thread& reader : readers) reader.join();
  CHECK_EQ(tally.num_wrong.load(), int64_t{0});
  CHECK(tally.num_tries >= kNumTries);
  CHECK(tally.num_accepted > 0);
  CHECK(tally.num_rejected > 0);
  CHECK(tally.num_torn > 0);  // without the comparison, copies would have been wrong
  std::printf("  %lld tries, %lld accepted, %lld rejected, %lld of them torn; %lld captures, %llu copies\n",
              static_cast<long long>(tally.num_tries), static_cast<long long>(tally.num_accepted),
              static_cast<long long>(tally.num_rejected), static_cast<long long>(tally.num_torn),
              static_cast<long long>(board.num_posted()),
              static_cast<unsigned long long>(writer.kv().counters().num_copies));
}

TEST(each_of_n_forks_copies_once) {
  Bytes bytes;
  Board board;
  Writer writer(bytes, board);
  // The rounds check themselves: n - 1 copies for n writers of a block that has content, none otherwise.
  for (int32_t num_prompt = 1; num_prompt <= 5; ++num_prompt) {
    for (int32_t num_forks = 1; num_forks <= 5; ++num_forks) writer.round(num_prompt, num_forks, 3);
  }
  CHECK_EQ(writer.kv().counters().num_copies, uint64_t{4 * (0 + 1 + 2 + 3 + 4)});
}

TEST(only_complete_blocks_are_captured) {
  KvManager kv(8, 4, "m");
  const std::vector<int32_t> tokens(11, 3);
  kv.open_sequence(1, {}, "", false);
  CHECK(kv.capture(1).blocks.empty());
  CHECK(kv.try_grow(1, 6));
  CHECK_EQ(kv.capture(1).num_tokens, 0);  // nothing has come back
  kv.commit(1, std::span(tokens).first(6));
  BlockSnapshot captured = kv.capture(1);
  CHECK_EQ(captured.num_tokens, 6);
  CHECK_EQ(captured.blocks.size(), size_t{2});
  CHECK(is_unchanged(*kv.versions(), captured));
  CHECK(kv.try_grow(1, 7));  // the second block may be written from here on
  CHECK(!is_unchanged(*kv.versions(), captured));
  captured = kv.capture(1);
  CHECK_EQ(captured.num_tokens, 4);
  CHECK_EQ(captured.blocks.size(), size_t{1});
  CHECK(kv.try_grow(1, 11, 7));  // a second step in flight
  kv.commit(1, std::span(tokens).first(1));
  CHECK_EQ(kv.capture(1).num_tokens, 4);
  CHECK(is_unchanged(*kv.versions(), captured));
  kv.commit(1, std::span(tokens).first(4));
  CHECK_EQ(kv.capture(1).num_tokens, 11);
  CHECK_EQ(kv.counters().num_versions, uint64_t{2 + 1 + 2});
  kv.check_consistency();
}

TEST(a_fork_is_captured_without_what_is_in_flight) {
  KvManager kv(8, 4, "m");
  kv.open_sequence(1, {}, "", false);
  CHECK(kv.try_grow(1, 6));
  kv.fork(1, 2);
  CHECK_EQ(kv.capture(2).num_tokens, 0);
  kv.commit(2, std::vector<int32_t>(6, 1));
  CHECK_EQ(kv.capture(2).num_tokens, 6);
  CHECK_EQ(kv.capture(1).num_tokens, 0);
}

// A block that is given back and handed out again is no longer what was captured, also when nothing is
// written to it yet: the grant counts.
TEST(a_block_in_other_hands_is_changed) {
  KvManager kv(1, 4, "m");
  kv.open_sequence(1, {}, "", false);
  CHECK(kv.try_grow(1, 2));
  kv.commit(1, std::vector<int32_t>(2, 1));
  const BlockSnapshot captured = kv.capture(1);
  kv.close_sequence(1);
  CHECK(is_unchanged(*kv.versions(), captured));
  kv.open_sequence(2, {}, "", false);
  CHECK(kv.try_grow(2, 1));
  CHECK(!is_unchanged(*kv.versions(), captured));
}

TEST_MAIN()
