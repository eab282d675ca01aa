// Times the attention kernels over a paged KV cache. Knows: sequences of one length. Must not know: models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory.h"
#include "bench/rig.h"
#include "kernels/attention/attention.h"

namespace plait {

struct AttentionShape {
  int32_t group = 1;    // query heads of one kv head
  int32_t context = 0;  // positions of a sequence, the queries' included
  int32_t num_queries = 1;
  int32_t window = 0;
  float scale = 1.0F;
  float softcap = 0.0F;
};

class AttentionTimer {
 public:
  // Fills KV of `layout`, with fewer layers or more sequences until it takes about `cold_bytes`.
  // Throws Error(kInvalidArgument) for sizes that the kernels do not take, Error(kOutOfMemory).
  AttentionTimer(Rig& rig, const KvLayout& layout, const AttentionShape& shape, size_t cold_bytes);

  // Of one unit, which is one layer of one sequence: multiply-adds, and the bytes of KV that are seen.
  double macs() const;
  double kv_bytes() const;

  // Compares the first and the last unit with the scalar kernels, then times all heads of all queries, cut
  // for the team as a step of the engine cuts them.
  Timing run(int32_t repeats);

 private:
  struct Sequence {
    std::vector<int32_t> blocks;
  };
  bool is_split() const { return shape_.num_queries == 1 && shape_.context > kPartition; }
  int32_t num_tiles() const { return (shape_.num_queries + kMaxQueriesPerTask - 1) / kMaxQueriesPerTask; }
  int32_t num_partitions() const { return (shape_.context + kPartition - 1) / kPartition; }
  int64_t partial_size() const { return int64_t{shape_.group} * (2 + layout_.head_dim); }
  int64_t num_units() const { return static_cast<int64_t>(sequences_.size()) * layout_.num_layers; }

  void fill();
  AttentionArgs args_of(int64_t unit, int32_t head, int32_t tile) const;
  // Units first .. first + count - 1; `out` ([queries][heads * head_dim], for one unit) null: into tiles.
  void attend(int64_t first, int64_t count, float* out);
  std::string check(int64_t unit);

  Rig& rig_;
  KvLayout layout_;
  AttentionShape shape_;
  Memory pool_;
  std::vector<Sequence> sequences_;
  std::vector<float> q_;
  std::vector<float> partials_;
  struct Member {
    std::vector<float> tile;
    Memory scratch;
  };
  std::vector<Member> members_;
};

}  // namespace plait
