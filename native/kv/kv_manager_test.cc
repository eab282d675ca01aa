#include "kv/kv_manager.h"

#include <numeric>
#include <thread>

#include "base/test.h"

using plait::KvManager;

namespace {

constexpr int32_t kBlockTokens = 4;

std::vector<int32_t> iota(int32_t num, int32_t first = 0) {
  std::vector<int32_t> tokens(num);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<int32_t> table(const KvManager& kv, int64_t seq_id) {
  const auto blocks = kv.block_table(seq_id);
  return {blocks.begin(), blocks.end()};
}

// Opens and computes a whole prompt, as one step; returns the cached tokens.
int32_t run_prompt(KvManager& kv, int64_t seq_id, const std::vector<int32_t>& tokens,
                   const char* salt = "t") {
  const int32_t num_cached = kv.open_sequence(seq_id, tokens, salt, true);
  CHECK(kv.try_grow(seq_id, static_cast<int32_t>(tokens.size())));
  kv.commit(seq_id, std::span(tokens).subspan(num_cached));
  kv.check_consistency();
  return num_cached;
}

}  // namespace

TEST(reuses_full_blocks_but_never_the_whole_prompt) {
  KvManager kv(16, kBlockTokens, "m");
  CHECK_EQ(run_prompt(kv, 1, iota(12)), 0);
  CHECK_EQ(run_prompt(kv, 2, iota(12)), 8);  // 12 = 3 blocks, the last one is computed again
  CHECK_EQ(run_prompt(kv, 3, iota(13)), 12);
  CHECK_EQ(run_prompt(kv, 4, iota(4)), 0);
  CHECK_EQ(run_prompt(kv, 5, iota(5)), 4);
  CHECK_EQ(run_prompt(kv, 6, {0, 1, 2, 3, 9, 5, 6, 7, 8}), 4);
  CHECK_EQ(run_prompt(kv, 7, iota(13), "other tenant"), 0);
  CHECK_EQ(kv.counters().num_hit_tokens, uint64_t{8 + 12 + 4 + 4});
  CHECK_EQ(kv.counters().num_lookup_tokens, uint64_t{12 + 12 + 13 + 4 + 5 + 9 + 13});
  for (int64_t seq_id = 1; seq_id <= 7; ++seq_id) kv.close_sequence(seq_id);
  kv.check_consistency();
  CHECK_EQ(kv.num_free_blocks(), 16);
  CHECK_EQ(kv.num_sequences(), 0);
}

TEST(equal_blocks_computed_at_once_are_merged) {
  KvManager kv(8, kBlockTokens, "m");
  kv.open_sequence(1, iota(8), "", true);
  kv.open_sequence(2, iota(8), "", true);
  CHECK(kv.try_grow(1, 8) && kv.try_grow(2, 8));
  const plait::BlockTable before = kv.snapshot(2);
  CHECK_EQ(kv.num_free_blocks(), 4);
  kv.commit(1, iota(8));
  kv.commit(2, iota(8));
  CHECK_EQ(kv.num_free_blocks(), 6);
  CHECK(table(kv, 1) == table(kv, 2));
  CHECK(*before != table(kv, 2));  // a snapshot never changes
  CHECK_EQ(kv.counters().num_merged_blocks, uint64_t{2});
  kv.check_consistency();
}

TEST(without_cache_nothing_is_taken_or_published) {
  KvManager kv(8, kBlockTokens, "m");
  run_prompt(kv, 1, iota(9));
  CHECK_EQ(kv.open_sequence(2, iota(9), "t", false), 0);
  CHECK(kv.try_grow(2, 9));
  kv.commit(2, iota(9));
  kv.close_sequence(1);
  kv.reset_cache();
  kv.close_sequence(2);
  CHECK_EQ(kv.num_cached_blocks(), 0);
  CHECK_EQ(kv.num_free_blocks(), 8);
  kv.check_consistency();
}

TEST(grow_is_all_or_nothing_and_evicts) {
  KvManager kv(4, kBlockTokens, "m");
  run_prompt(kv, 1, iota(8));
  kv.close_sequence(1);
  CHECK_EQ(kv.num_cached_blocks(), 2);
  CHECK_EQ(kv.num_free_blocks(), 4);
  kv.open_sequence(2, iota(20, 100), "t", true);
  CHECK(!kv.try_grow(2, 17));
  CHECK_EQ(kv.num_cached_blocks(), 2);
  CHECK_EQ(kv.block_table(2).size(), size_t{0});
  CHECK_EQ(kv.counters().num_evictions, uint64_t{0});
  CHECK(kv.try_grow(2, 12));
  CHECK_EQ(kv.counters().num_evictions, uint64_t{1});
  // The last block went first, so the first one is still found.
  CHECK_EQ(kv.open_sequence(3, iota(8), "t", true), 4);
  CHECK(!kv.try_grow(3, 8));
  kv.close_sequence(3);
  CHECK(kv.try_grow(2, 16));
  CHECK_EQ(kv.open_sequence(4, iota(8), "t", true), 0);
  kv.check_consistency();
}

TEST(each_writer_of_a_shared_block_copies_once) {
  KvManager kv(16, kBlockTokens, "m");
  run_prompt(kv, 1, iota(6));  // one full block, two positions in the second
  kv.fork(1, 2);
  kv.fork(1, 3);
  const int32_t shared = kv.block_table(1)[1];
  CHECK_EQ(kv.num_refs(shared), 3);
  CHECK(kv.take_copies().empty());
  for (int32_t num_tokens = 7; num_tokens <= 8; ++num_tokens) {
    for (const int64_t seq_id : {1, 2, 3}) {
      CHECK(kv.try_grow(seq_id, num_tokens));
      kv.commit(seq_id, std::vector<int32_t>{static_cast<int32_t>(100 * seq_id)});
    }
  }
  const auto copies = kv.take_copies();
  CHECK_EQ(copies.size(), size_t{2});  // the last of three owns the block alone
  if (copies.size() != 2) return;
  for (const plait::BlockCopy& copy : copies) CHECK_EQ(copy.src, shared);
  CHECK_EQ(copies[0].dst, kv.block_table(1)[1]);
  CHECK_EQ(copies[1].dst, kv.block_table(2)[1]);
  CHECK_EQ(kv.block_table(3)[1], shared);
  CHECK_EQ(kv.num_refs(kv.block_table(1)[0]), 3);
  CHECK_EQ(kv.counters().num_copies, uint64_t{2});
  kv.check_consistency();
  for (const int64_t seq_id : {1, 2, 3}) kv.close_sequence(seq_id);
  CHECK_EQ(kv.num_free_blocks(), 16);
  CHECK_EQ(kv.num_cached_blocks(), 4);
}

TEST(a_copy_that_finds_no_block_changes_nothing) {
  KvManager kv(2, kBlockTokens, "m");
  run_prompt(kv, 1, iota(6));
  kv.fork(1, 2);
  const plait::BlockTable before = kv.snapshot(1);
  CHECK(!kv.try_grow(1, 7));
  CHECK(table(kv, 1) == *before && table(kv, 2) == *before);
  CHECK(kv.take_copies().empty());
  kv.close_sequence(2);
  CHECK(kv.try_grow(1, 7));  // now the sole owner
  CHECK(!kv.try_grow(1, 9));
  CHECK(kv.snapshot(1) == before);
  kv.check_consistency();
}

TEST(a_snapshot_follows_growth) {
  KvManager kv(4, kBlockTokens, "m");
  run_prompt(kv, 1, iota(2));
  const plait::BlockTable before = kv.snapshot(1);
  CHECK(kv.snapshot(1) == before);
  CHECK(kv.try_grow(1, 5));
  CHECK_EQ(before->size(), size_t{1});
  CHECK(*kv.snapshot(1) == table(kv, 1));
}

TEST(fork_with_a_prompt_in_flight) {
  KvManager kv(16, kBlockTokens, "m");
  kv.open_sequence(1, iota(10), "t", true);
  CHECK(kv.try_grow(1, 10));
  kv.fork(1, 2);  // the step that computes the prompt has not come back
  CHECK(kv.try_grow(1, 11, 10));
  CHECK(kv.try_grow(2, 11, 10));
  const auto copies = kv.take_copies();
  CHECK_EQ(copies.size(), size_t{1});
  if (copies.size() != 1) return;
  CHECK_EQ(copies[0].src, kv.block_table(2)[2]);
  CHECK_EQ(copies[0].dst, kv.block_table(1)[2]);
  kv.commit(1, iota(10));
  kv.commit(2, iota(10));
  CHECK_EQ(kv.counters().num_merged_blocks, uint64_t{0});
  CHECK_EQ(kv.block_table(1)[1], kv.block_table(2)[1]);
  kv.check_consistency();
}

TEST(a_block_written_from_its_start_needs_no_copy) {
  KvManager kv(16, kBlockTokens, "m");
  run_prompt(kv, 1, iota(4));
  CHECK(kv.try_grow(1, 8));
  kv.fork(1, 2);
  CHECK(kv.try_grow(2, 8));
  CHECK(kv.take_copies().empty());
  CHECK(kv.block_table(1)[1] != kv.block_table(2)[1]);
  CHECK(!kv.try_grow(2, 65));
  kv.check_consistency();
}

TEST(a_published_block_is_never_written) {
  KvManager kv(8, kBlockTokens, "m");
  kv.open_sequence(1, iota(4), "t", true);
  CHECK(kv.try_grow(1, 4));
  kv.fork(1, 2);
  kv.commit(1, iota(4));  // publishes the block that 2 still counts as in flight
  kv.close_sequence(1);
  CHECK(kv.try_grow(2, 4));  // 2 writes it again: nobody may find it meanwhile
  CHECK_EQ(kv.open_sequence(3, iota(5), "t", true), 0);
  kv.commit(2, iota(4));
  CHECK_EQ(kv.open_sequence(4, iota(5), "t", true), 4);
  kv.check_consistency();
}

TEST(versions_rise_with_each_grant) {
  KvManager kv(4, kBlockTokens, "m");
  kv.open_sequence(1, iota(8), "t", true);
  CHECK(kv.try_grow(1, 3));
  const int32_t first = kv.block_table(1)[0];
  const uint64_t version = kv.block_version(first);
  kv.commit(1, iota(3));
  CHECK(kv.try_grow(1, 8));
  CHECK(kv.block_version(first) > version);
  const uint64_t full = kv.block_version(first);
  kv.commit(1, iota(5, 3));
  CHECK(kv.try_grow(1, 9));
  CHECK_EQ(kv.block_version(first), full);
}

TEST(reset_forgets_everything_cached) {
  KvManager kv(8, kBlockTokens, "m");
  run_prompt(kv, 1, iota(9));
  run_prompt(kv, 2, iota(9, 50));
  kv.close_sequence(1);
  kv.reset_cache();
  CHECK_EQ(kv.num_cached_blocks(), 0);
  CHECK_EQ(kv.open_sequence(3, iota(9), "t", true), 0);
  CHECK(kv.try_grow(2, 16));
  kv.commit(2, iota(7, 59));
  CHECK_EQ(kv.open_sequence(4, iota(16, 50), "t", true), 0);
  kv.check_consistency();
  for (const int64_t seq_id : {2, 3, 4}) kv.close_sequence(seq_id);
  CHECK_EQ(kv.num_free_blocks(), 8);
}

TEST(misuse_is_refused) {
  CHECK_THROWS(KvManager(0, 16, "m"));
  CHECK_THROWS(KvManager(4, 0, "m"));
  CHECK_THROWS(KvManager(4, KvManager::kMaxBlockTokens + 1, "m"));
  KvManager kv(4, kBlockTokens, "m");
  CHECK_EQ(kv.open_sequence(1, {}, "", true), 0);
  CHECK_THROWS(kv.open_sequence(1, iota(3), "", true));
  CHECK_THROWS(kv.close_sequence(2));
  CHECK_THROWS(kv.try_grow(2, 1));
  CHECK_THROWS(kv.fork(2, 3));
  CHECK_THROWS(kv.fork(1, 1));
  CHECK_THROWS(kv.commit(1, iota(1)));
  CHECK_THROWS(kv.try_grow(1, 9, 5));  // a gap
  CHECK(kv.try_grow(1, 4));
  kv.commit(1, iota(4));
  CHECK_THROWS(kv.try_grow(1, 5, 3));
  CHECK_THROWS(kv.commit(1, iota(1)));
  CHECK(kv.try_grow(1, 4));
  CHECK(kv.try_grow(1, -5));
  CHECK(!kv.try_grow(1, INT32_MAX));
  CHECK_THROWS(kv.num_refs(4));
  CHECK_THROWS(kv.block_version(-1));
  kv.check_consistency();
}

// Readers on another thread see whole snapshots and versions that only rise, while the owner works on.
TEST(snapshots_are_read_from_another_thread) {
  KvManager kv(64, kBlockTokens, "m");
  plait::BlockTable shared;
  std::atomic<int> turn{0};  // even: the owner's, odd: the reader's
  std::atomic<int> num_wrong{0};
  constexpr int kNumTurns = 200;
  std::thread reader([&] {
    for (int i = 1; i < 2 * kNumTurns; i += 2) {
      while (turn.load(std::memory_order_acquire) != i) std::this_thread::yield();
      const plait::BlockTable mine = shared;
      turn.store(i + 1, std::memory_order_release);
      const std::vector<int32_t> copy = *mine;
      for (const int32_t block : copy) {
        const uint64_t version = kv.block_version(block);
        if (kv.block_version(block) < version) ++num_wrong;
      }
      if (copy != *mine) ++num_wrong;
    }
  });
  kv.open_sequence(1, {}, "", true);
  for (int i = 0; i < kNumTurns; ++i) {
    CHECK(kv.try_grow(1, i + 1));
    shared = kv.snapshot(1);
    turn.store(2 * i + 1, std::memory_order_release);
    kv.commit(1, std::vector<int32_t>{i});
    while (turn.load(std::memory_order_acquire) != 2 * i + 2) std::this_thread::yield();
  }
  reader.join();
  CHECK_EQ(num_wrong.load(), 0);
}

TEST_MAIN()
