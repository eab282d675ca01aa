#include "runtime/kv_swap.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "base/test.h"
#include "kv/kv_manager.h"

using namespace plait;

namespace {

constexpr int32_t kNumBlocks = 32;
constexpr int32_t kBlockTokens = 16;
const KvLayout kLayout{2, 1, 16, kBlockTokens, KvDtype::kF16};

// A pool of blocks and what the test says is in them. The test plays the compute thread as well.
struct Rig {
  explicit Rig(KvSwapOptions options)
      : swap(std::make_unique<KvSwap>(storage, kv.versions(), std::move(options), bell)) {}

  size_t block_bytes() const { return kLayout.block_bytes(); }
  // Opens a sequence of `num_tokens` and fills its blocks with what only it has.
  BlockSnapshot start(int64_t seq_id, int32_t num_tokens) {
    kv.open_sequence(seq_id, {}, "", false);
    CHECK(kv.try_grow(seq_id, num_tokens));
    fill(table(seq_id), seq_id);
    kv.commit(seq_id, std::vector<int32_t>(static_cast<size_t>(num_tokens), 1));
    return kv.capture(seq_id);
  }
  void fill(const std::vector<int32_t>& blocks, int64_t seed) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      uint64_t value = static_cast<uint64_t>(seed) * 1000 + i + 1;
      for (size_t at = 0; at < block_bytes(); at += sizeof(value)) {
        value = value * 6364136223846793005 + 1442695040888963407;
        std::memcpy(storage->block(blocks[i]) + at, &value, sizeof(value));
      }
    }
  }
  // Do blocks[i] hold what fill(_, seed) wrote into its block i? Skipped ones count as right.
  bool holds(const std::vector<int32_t>& blocks, int64_t seed) {
    std::vector<std::byte> found(block_bytes());
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] == KvSwap::kSkipBlock) continue;
      uint64_t value = static_cast<uint64_t>(seed) * 1000 + i + 1;
      for (size_t at = 0; at < block_bytes(); at += sizeof(value)) {
        value = value * 6364136223846793005 + 1442695040888963407;
        std::memcpy(found.data() + at, &value, sizeof(value));
      }
      if (std::memcmp(found.data(), storage->block(blocks[i]), block_bytes()) != 0) return false;
    }
    return true;
  }
  std::vector<int32_t> table(int64_t seq_id) const {
    const auto blocks = kv.block_table(seq_id);
    return {blocks.begin(), blocks.end()};
  }
  KvTransfer wait() {
    KvTransfer transfer;
    for (;;) {
      const uint32_t seen = bell->epoch();
      if (swap->try_pop(transfer)) return transfer;
      bell->wait(seen, -1);
    }
  }
  KvTransfer save(int64_t ticket, BlockSnapshot snapshot) {
    CHECK(swap->try_save(ticket, std::move(snapshot)));
    return wait();
  }
  KvTransfer fetch(int64_t ticket, std::vector<int32_t> blocks) {
    CHECK(swap->try_fetch(ticket, std::move(blocks)));
    return wait();
  }

  std::shared_ptr<KvStorage> storage = std::make_shared<KvStorage>(kLayout, kNumBlocks);
  KvManager kv{kNumBlocks, kBlockTokens, "m"};
  std::shared_ptr<Doorbell> bell = std::make_shared<Doorbell>();
  std::unique_ptr<KvSwap> swap;
};

int64_t bytes_of(int32_t num_blocks) { return num_blocks * static_cast<int64_t>(kLayout.block_bytes()); }

// Descriptors of this process that are a swap file. The file has no name any more, but /proc tells.
std::vector<int> swap_file_descriptors() {
  std::vector<int> found;
  DIR* folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    char target[256] = {};
    if (::readlink((std::string("/proc/self/fd/") + entry->d_name).c_str(), target, sizeof(target) - 1) > 0 &&
        std::strstr(target, "/plait-kv-") != nullptr) {
      found.push_back(std::atoi(entry->d_name));
    }
  }
  ::closedir(folder);
  return found;
}

void comes_back(KvSwapOptions options, bool is_file) {
  Rig rig(std::move(options));
  const BlockSnapshot snapshot = rig.start(1, 40);  // two full blocks and a half
  const KvTransfer saved = rig.save(11, snapshot);
  CHECK_EQ(saved.error, std::string());
  CHECK(saved.ok && saved.kind == KvTransferKind::kSave && saved.ticket == 11);
  CHECK_EQ(saved.is_file, is_file);
  CHECK_EQ(saved.num_blocks, 3);
  CHECK_EQ(saved.num_bytes, bytes_of(3));
  CHECK(saved.begin_ns > 0 && saved.end_ns >= saved.begin_ns);
  CHECK(rig.swap->is_saved(11));
  rig.kv.close_sequence(1);

  rig.start(2, 64);  // others get the blocks
  rig.kv.open_sequence(1, {}, "", false);
  CHECK(rig.kv.try_grow(1, 40));
  std::vector<int32_t> blocks = rig.table(1);
  CHECK(!rig.holds(blocks, 1));
  const KvTransfer fetched = rig.fetch(11, blocks);
  CHECK_EQ(fetched.error, std::string());
  CHECK(fetched.ok && fetched.kind == KvTransferKind::kFetch && fetched.is_file == is_file);
  CHECK_EQ(fetched.num_blocks, 3);
  CHECK(rig.holds(blocks, 1));
  CHECK(rig.holds(rig.table(2), 2));

  // Again, without the first block; then fewer blocks than there are.
  rig.fill(blocks, 9);
  const std::vector<int32_t> some = {KvSwap::kSkipBlock, blocks[1], blocks[2]};
  CHECK_EQ(rig.fetch(11, some).num_blocks, 2);
  CHECK(rig.holds(some, 1) && rig.holds({blocks[0]}, 9));
  rig.fill(blocks, 9);
  CHECK_EQ(rig.fetch(11, {blocks[0]}).num_bytes, bytes_of(1));
  CHECK(rig.holds({blocks[0]}, 1) && !rig.holds(blocks, 1));
  CHECK_EQ(rig.fetch(11, {}).num_blocks, 0);

  KvSwapCounters counters = rig.swap->counters();
  CHECK_EQ(counters.num_saved_blocks, int64_t{3});
  CHECK_EQ(counters.num_saved_bytes, bytes_of(3));
  CHECK_EQ(counters.num_fetched_blocks, int64_t{6});
  CHECK_EQ(counters.num_fetched_bytes, bytes_of(6));
  CHECK_EQ(counters.ram_bytes_used, is_file ? 0 : bytes_of(3));
  CHECK_EQ(counters.file_bytes_used, is_file ? bytes_of(3) : 0);
  rig.swap->drop(11);
  rig.swap->drop(11);
  CHECK(!rig.swap->is_saved(11));
  counters = rig.swap->counters();
  CHECK_EQ(counters.ram_bytes_used + counters.file_bytes_used, int64_t{0});
  CHECK_EQ(counters.num_failures, int64_t{0});
}

}  // namespace

TEST(blocks_come_back_from_memory) { comes_back({bytes_of(8), "", 0}, false); }
TEST(blocks_come_back_from_a_file) { comes_back({0, "/tmp", 0}, true); }

TEST(memory_first_then_the_file_then_nothing) {
  Rig rig({bytes_of(3), "/tmp", bytes_of(4)});
  CHECK(!rig.save(1, rig.start(1, 32)).is_file);
  CHECK(rig.save(2, rig.start(2, 32)).is_file);  // 1 block of memory is left: not enough
  CHECK(!rig.save(3, rig.start(3, 16)).is_file);
  CHECK(rig.save(4, rig.start(4, 17)).is_file);
  const BlockSnapshot fifth = rig.start(5, 16);
  CHECK(!rig.swap->has_room(1));
  CHECK(!rig.swap->try_save(5, fifth));
  CHECK_EQ(rig.swap->num_transfers(), 0);
  rig.swap->drop(2);
  CHECK(rig.swap->has_room(2) && !rig.swap->has_room(3));
  CHECK(rig.save(5, fifth).is_file);
  for (const int64_t ticket : {1, 3, 4, 5}) {
    std::vector<int32_t> blocks = rig.table(ticket);
    rig.fill(blocks, 77);
    CHECK(rig.fetch(ticket, blocks).ok);
    CHECK(rig.holds(blocks, ticket));
    rig.swap->drop(ticket);
  }
  CHECK_EQ(rig.swap->counters().ram_bytes_used, int64_t{0});
  CHECK_EQ(rig.swap->counters().file_bytes_used, int64_t{0});
}

TEST(a_ticket_in_pieces_of_the_file) {
  Rig rig({0, "/tmp", bytes_of(6)});
  for (const int64_t ticket : {1, 2, 3}) CHECK(rig.save(ticket, rig.start(ticket, 32)).ok);
  rig.swap->drop(1);
  rig.swap->drop(3);
  CHECK(rig.save(4, rig.start(4, 64)).ok);
  std::vector<int32_t> blocks = rig.table(4);
  rig.fill(blocks, 77);
  CHECK(rig.fetch(4, blocks).ok);
  CHECK(rig.holds(blocks, 4));
  blocks = rig.table(2);
  rig.fill(blocks, 77);
  CHECK(rig.fetch(2, blocks).ok);
  CHECK(rig.holds(blocks, 2));
}

TEST(a_block_granted_to_a_writer_fails_the_save) {
  for (const bool is_file : {false, true}) {
    Rig rig(is_file ? KvSwapOptions{0, "/tmp", 0} : KvSwapOptions{bytes_of(8), "", 0});
    BlockSnapshot snapshot = rig.start(1, 24);
    CHECK(rig.kv.try_grow(1, 25));
    const KvTransfer transfer = rig.save(7, snapshot);
    CHECK(!transfer.ok);
    CHECK(transfer.error.find("given to a writer") != std::string::npos);
    CHECK_EQ(transfer.num_blocks, 0);
    CHECK_EQ(transfer.is_file, is_file);
    CHECK(!rig.swap->is_saved(7));
    CHECK_THROWS(rig.swap->try_fetch(7, {0}));
    // What is complete can be saved under the same number, and the room is back.
    const KvSwapCounters counters = rig.swap->counters();
    CHECK_EQ(counters.ram_bytes_used + counters.file_bytes_used, int64_t{0});
    CHECK_EQ(counters.num_failures, int64_t{1});
    CHECK_EQ(rig.swap->last_error(), transfer.error);
    snapshot = rig.kv.capture(1);
    CHECK_EQ(snapshot.num_tokens, 16);
    CHECK(rig.save(7, snapshot).ok);
  }
}

TEST(damage_in_the_file_fails_the_fetch) {
  Rig rig({0, "/tmp", 0});
  CHECK(rig.save(1, rig.start(1, 48)).ok);
  CHECK(rig.save(2, rig.start(2, 48)).ok);
  const std::vector<int> files = swap_file_descriptors();
  CHECK_EQ(files.size(), size_t{1});
  if (files.size() != 1) return;
  char byte = 0;
  CHECK_EQ(::pread(files[0], &byte, 1, bytes_of(1) + 5), ssize_t{1});
  byte = static_cast<char>(byte ^ 1);
  CHECK_EQ(::pwrite(files[0], &byte, 1, bytes_of(1) + 5), ssize_t{1});
  const KvTransfer transfer = rig.fetch(1, rig.table(1));
  CHECK(!transfer.ok);
  CHECK(transfer.error.find("/tmp") != std::string::npos);
  CHECK(transfer.error.find("the checksum of block 1 differs") != std::string::npos);
  CHECK(rig.fetch(1, {rig.table(1)[0]}).ok);  // the block before is sound
  CHECK(rig.fetch(2, rig.table(2)).ok);
  CHECK(rig.holds(rig.table(2), 2));
  CHECK_EQ(rig.swap->counters().num_failures, int64_t{1});
  // A file that ends before, as after a lost disk.
  CHECK_EQ(::ftruncate(files[0], bytes_of(4)), 0);
  CHECK(rig.fetch(2, rig.table(2)).error.find("the file ends before") != std::string::npos);
  rig.swap.reset();
  CHECK(swap_file_descriptors().empty());
}

TEST(a_write_that_the_system_refuses_fails_that_ticket_only) {
  Rig rig({bytes_of(1), "/tmp", 0});
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ::getrlimit(RLIMIT_FSIZE, &old_limit);
  const rlimit small{static_cast<rlim_t>(bytes_of(2)), old_limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  CHECK(rig.save(1, rig.start(1, 32)).ok);
  const KvTransfer transfer = rig.save(2, rig.start(2, 32));
  CHECK(!transfer.ok && transfer.is_file);
  CHECK(transfer.error.find("KV swap, file in /tmp: cannot write") != std::string::npos);
  CHECK(rig.save(3, rig.start(3, 16)).ok);  // in memory
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  ::signal(SIGXFSZ, old_handler);
  CHECK_EQ(rig.swap->counters().file_bytes_used, bytes_of(2));
  CHECK(rig.save(2, rig.kv.capture(2)).ok);
  for (const int64_t ticket : {1, 2, 3}) {
    rig.fill(rig.table(ticket), 77);
    CHECK(rig.fetch(ticket, rig.table(ticket)).ok);
    CHECK(rig.holds(rig.table(ticket), ticket));
  }
}

TEST(drop_cancels_what_is_under_way) {
  for (const bool is_file : {false, true}) {
    Rig rig(is_file ? KvSwapOptions{0, "/tmp", 0} : KvSwapOptions{bytes_of(8), "", 0});
    const BlockSnapshot snapshot = rig.start(1, 100);
    CHECK(rig.swap->try_save(1, snapshot));
    CHECK_THROWS(rig.swap->try_fetch(1, {0}));
    rig.swap->drop(1);
    CHECK_THROWS(rig.swap->try_save(1, snapshot));  // the number is taken until the completion is popped
    KvTransfer transfer = rig.wait();
    CHECK(!transfer.ok);
    CHECK_EQ(transfer.error, std::string("cancelled"));
    CHECK(rig.save(1, snapshot).ok);
    CHECK(rig.swap->try_fetch(1, snapshot.blocks));
    CHECK_THROWS(rig.swap->try_fetch(1, snapshot.blocks));
    rig.swap->drop(1);
    transfer = rig.wait();
    CHECK(!transfer.ok && transfer.kind == KvTransferKind::kFetch);
    CHECK(!rig.swap->is_saved(1));
    CHECK_EQ(rig.swap->num_transfers(), 0);
    const KvSwapCounters counters = rig.swap->counters();
    CHECK_EQ(counters.ram_bytes_used + counters.file_bytes_used, int64_t{0});
    CHECK_EQ(counters.num_failures, int64_t{0});
    CHECK_EQ(counters.num_fetched_blocks, int64_t{0});
  }
}

TEST(too_many_transfers_are_refused) {
  Rig rig({bytes_of(KvSwap::kMaxTransfers + 8), "", 0});
  const BlockSnapshot snapshot = rig.start(1, 16);
  int64_t ticket = 0;
  while (rig.swap->try_save(ticket, snapshot)) ++ticket;
  CHECK_EQ(ticket, int64_t{KvSwap::kMaxTransfers});
  CHECK_EQ(rig.swap->num_transfers(), KvSwap::kMaxTransfers);
  CHECK(!rig.swap->has_room(1));
  for (int32_t i = 0; i < KvSwap::kMaxTransfers; ++i) CHECK(rig.wait().ok);
  for (int64_t t = 0; t < ticket; ++t) CHECK(rig.swap->try_fetch(t, {static_cast<int32_t>(t % kNumBlocks)}));
  CHECK(!rig.swap->try_save(ticket, snapshot));
  for (int32_t i = 0; i < KvSwap::kMaxTransfers; ++i) CHECK(rig.wait().ok);
  CHECK(rig.swap->try_save(ticket, snapshot));
}

TEST(the_end_of_a_swap_cancels_and_joins) {
  for (int i = 0; i < 20; ++i) {
    Rig rig({bytes_of(16), "/tmp", 0});
    const BlockSnapshot snapshot = rig.start(1, 160);
    for (int64_t ticket = 0; ticket < 4; ++ticket) CHECK(rig.swap->try_save(ticket, snapshot));
    rig.swap->drop(2);
    rig.swap.reset();
  }
  CHECK(swap_file_descriptors().empty());
}

TEST(a_trace_shows_transfers) {
  char path[] = "/tmp/plait-swap-trace-XXXXXX";
  const int fd = ::mkstemp(path);
  start_trace(path);
  {
    Rig rig({bytes_of(8), "", 0});
    CHECK(rig.save(31, rig.start(1, 40)).ok);
    CHECK(rig.fetch(31, rig.table(1)).ok);
  }  // joins, so that everything is recorded
  CHECK_EQ(stop_trace().error, std::string());
  std::string text(100'000, ' ');
  const ssize_t size = ::read(fd, text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  ::close(fd);
  ::unlink(path);
  for (const char* part : {"kv save", "kv fetch", "plait-file-0", "plait-file-1", "\"ticket\":31"}) {
    CHECK(text.find(part) != std::string::npos);
  }
}

TEST(misuse_is_refused) {
  const auto storage = std::make_shared<KvStorage>(kLayout, kNumBlocks);
  const auto bell = std::make_shared<Doorbell>();
  const KvManager kv(kNumBlocks, kBlockTokens, "m");
  const KvManager other(kNumBlocks + 1, kBlockTokens, "m");
  CHECK_THROWS(KvSwap(storage, kv.versions(), {-1, "", 0}, bell));
  CHECK_THROWS(KvSwap(storage, kv.versions(), {0, "/tmp", -1}, bell));
  CHECK_THROWS(KvSwap(storage, other.versions(), {0, "", 0}, bell));
  CHECK_THROWS(KvSwap(storage, kv.versions(), {0, "/nowhere/at/all", 0}, bell));
  Rig rig({bytes_of(4), "", 0});
  const BlockSnapshot snapshot = rig.start(1, 32);
  CHECK_THROWS(rig.swap->try_save(1, {}));
  CHECK_THROWS(rig.swap->try_save(1, {{0}, {}, 0}));
  CHECK_THROWS(rig.swap->try_save(1, {{kNumBlocks}, {0}, 0}));
  CHECK_THROWS(rig.swap->try_save(1, {{-1}, {0}, 0}));
  CHECK_THROWS(rig.swap->try_fetch(1, {0}));
  CHECK(rig.save(1, snapshot).ok);
  CHECK_THROWS(rig.swap->try_save(1, snapshot));
  CHECK_THROWS(rig.swap->try_fetch(1, {0, 1, 2}));
  CHECK_THROWS(rig.swap->try_fetch(1, {kNumBlocks}));
  CHECK_THROWS(rig.swap->try_fetch(1, {-2}));
  CHECK(rig.fetch(1, snapshot.blocks).ok);
}

// Sequences are saved, fetched, dropped and torn at random, several at a time, against what they must hold.
TEST(random_use_keeps_content_and_room) {
  Rig rig({bytes_of(10), "/tmp", bytes_of(20)});
  std::mt19937 random(3);
  enum class Phase { kSaving, kSaved, kFetching, kDropping };
  std::map<int64_t, Phase> phases;
  std::map<int64_t, int32_t> sizes;  // in tokens
  int64_t next_id = 1;
  int64_t num_ok = 0, num_cancelled = 0, num_refused = 0, num_in_file = 0;
  const auto pop = [&](const KvTransfer& transfer) {
    const int64_t id = transfer.ticket;
    const Phase phase = phases.at(id);
    num_in_file += transfer.is_file;
    if (phase == Phase::kDropping) {
      CHECK(!transfer.ok);
      ++num_cancelled;
      rig.kv.close_sequence(id);
      phases.erase(id);
    } else if (phase == Phase::kSaving) {
      CHECK(transfer.ok);
      rig.kv.close_sequence(id);  // its blocks are others' now
      phases[id] = Phase::kSaved;
    } else {
      CHECK(transfer.ok);
      CHECK(rig.holds(rig.table(id), id));
      rig.kv.close_sequence(id);
      rig.swap->drop(id);
      phases.erase(id);
      ++num_ok;
    }
  };
  for (int i = 0; i < 6000; ++i) {
    KvTransfer transfer;
    while (rig.swap->try_pop(transfer)) pop(transfer);
    if (rig.swap->num_transfers() > static_cast<int32_t>(random() % 6)) pop(rig.wait());
    const auto num_tokens = static_cast<int32_t>(1 + random() % 80);
    const auto it = phases.empty() ? phases.end() : std::next(phases.begin(), random() % phases.size());
    if (random() % 3 == 0 || it == phases.end()) {
      if (rig.kv.num_free_blocks() < 5) continue;
      const int64_t id = next_id++;
      if (rig.swap->try_save(id, rig.start(id, num_tokens))) {
        phases[id] = Phase::kSaving;
        sizes[id] = num_tokens;
      } else {
        ++num_refused;
        rig.kv.close_sequence(id);
      }
    } else if (it->second == Phase::kSaved) {
      if (random() % 8 == 0) {
        rig.swap->drop(it->first);
        phases.erase(it);
        continue;
      }
      const int64_t id = it->first;
      rig.kv.open_sequence(id, {}, "", false);
      if (rig.kv.try_grow(id, sizes.at(id))) {
        CHECK(rig.swap->try_fetch(id, rig.table(id)));
        it->second = Phase::kFetching;
      } else {
        rig.kv.close_sequence(id);
      }
    } else if (it->second != Phase::kDropping && random() % 4 == 0) {
      rig.swap->drop(it->first);
      it->second = Phase::kDropping;
    }
  }
  while (rig.swap->num_transfers() > 0) pop(rig.wait());
  for (const auto& [id, phase] : phases) rig.swap->drop(id);
  CHECK(num_ok > 100);
  CHECK(num_cancelled > 10);
  CHECK(num_in_file > 50);
  const KvSwapCounters counters = rig.swap->counters();
  CHECK_EQ(counters.ram_bytes_used, int64_t{0});
  CHECK_EQ(counters.file_bytes_used, int64_t{0});
  CHECK_EQ(counters.num_failures, int64_t{0});
  CHECK_EQ(rig.kv.num_free_blocks(), kNumBlocks);
  rig.kv.check_consistency();
  std::printf("  %lld came back, %lld cancelled, %lld refused, %lld in the file\n",
              static_cast<long long>(num_ok), static_cast<long long>(num_cancelled),
              static_cast<long long>(num_refused), static_cast<long long>(num_in_file));
}

TEST_MAIN()
