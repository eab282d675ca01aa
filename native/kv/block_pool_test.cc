#include "kv/block_pool.h"

#include <thread>

#include "base/test.h"

using plait::BlockPool;

TEST(allocates_each_block_once) {
  BlockPool pool(5);
  std::vector<bool> is_taken(5, false);
  for (int i = 0; i < 5; ++i) {
    const int32_t block = pool.try_allocate();
    CHECK(block >= 0 && block < 5 && !is_taken[block]);
    is_taken[block] = true;
    CHECK_EQ(pool.num_refs(block), 1);
  }
  CHECK_EQ(pool.try_allocate(), BlockPool::kNoBlock);
  CHECK_EQ(pool.num_available(), 0);
  pool.check_consistency();
}

TEST(last_reference_frees_or_caches) {
  BlockPool pool(2);
  const int32_t a = pool.try_allocate();
  const int32_t b = pool.try_allocate();
  pool.acquire(a);
  pool.release(a, true);
  CHECK_EQ(pool.num_available(), 0);
  pool.release(a, true);
  pool.release(b, false);
  CHECK(pool.is_cached(a) && !pool.is_cached(b));
  CHECK_EQ(pool.num_free(), 1);
  CHECK_EQ(pool.num_cached(), 1);
  pool.acquire(a);
  CHECK(!pool.is_cached(a));
  CHECK_EQ(pool.num_refs(a), 1);
  pool.check_consistency();
}

TEST(misuse_is_refused) {
  CHECK_THROWS(BlockPool(0));
  CHECK_THROWS(BlockPool(-3));
  BlockPool pool(2);
  CHECK_THROWS(pool.release(0, false));  // a double free
  CHECK_THROWS(pool.acquire(0));
  CHECK_THROWS(pool.drop_cached(0));
  CHECK_THROWS(pool.num_refs(2));
  CHECK_THROWS(pool.version(-1));
  const int32_t block = pool.try_allocate();
  pool.acquire(block);
  CHECK_THROWS(pool.grant_write(block));  // shared
  pool.check_consistency();
}

TEST(evicts_oldest_first) {
  BlockPool pool(4);
  for (int i = 0; i < 4; ++i) pool.try_allocate();
  for (const int32_t block : {2, 0, 3, 1}) pool.release(block, true);
  pool.acquire(0);  // used again: newest afterwards
  pool.release(0, true);
  pool.drop_cached(3);
  pool.check_consistency();
  CHECK_EQ(pool.try_evict(), 2);
  CHECK_EQ(pool.try_evict(), 1);
  CHECK_EQ(pool.try_evict(), 0);
  CHECK_EQ(pool.try_evict(), BlockPool::kNoBlock);
  CHECK_EQ(pool.num_free(), 4);
  pool.check_consistency();
}

TEST(versions_rise_and_are_read_from_another_thread) {
  BlockPool pool(3);
  const int32_t block = pool.try_allocate();
  std::atomic<bool> is_backwards{false};
  std::thread reader([&] {
    uint64_t last = 0;
    while (last < 20'000) {
      const uint64_t now = pool.version(block);
      if (now < last) is_backwards.store(true);
      last = now;
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    const int32_t other = pool.try_allocate();
    pool.grant_write(block);
    pool.release(other, i % 2 == 0);
    if (i % 2 == 0) pool.try_evict();
  }
  reader.join();
  CHECK(!is_backwards.load());
  CHECK_EQ(pool.version(block), uint64_t{20'000});
}

TEST_MAIN()
