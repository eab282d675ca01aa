#include "plan/runner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <variant>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/matmul/product_cut.h"

namespace plait {

namespace {

constexpr int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Where everything that a step writes stands in the arena, in bytes.
struct ArenaLayout {
  std::vector<size_t> f32, q8;  // per buffer of the plan
  size_t logits, logit_hidden, logit_f32, logit_q8;
  std::array<size_t, kMostSearchedRows> searched_q8;
  size_t bytes = 0;

  size_t take(size_t size) {
    const size_t offset = bytes;
    bytes += (size + 63) / 64 * 64;
    return offset;
  }
};

ArenaLayout arena_layout(const Plan& plan, int32_t max_tokens) {
  ArenaLayout layout;
  const auto tokens = static_cast<size_t>(max_tokens);
  for (const Buffer& buffer : plan.buffers) {
    const bool is_rows = buffer.kind == BufferKind::kRows;
    const size_t floats = tokens * static_cast<size_t>(buffer.cols) * sizeof(float);
    layout.f32.push_back(layout.take(is_rows || buffer.has_f32 ? floats : 0));
    layout.q8.push_back(
        layout.take(!is_rows && buffer.has_q8 ? acts_q8_bytes(max_tokens, buffer.cols) + kActsSlack : 0));
  }
  const auto hidden = static_cast<size_t>(plan.hidden);
  layout.logits = layout.take(kLogitRows * static_cast<size_t>(plan.vocab) * sizeof(float));
  layout.logit_hidden = layout.take(kLogitRows * hidden * sizeof(float));
  layout.logit_f32 = layout.take(kLogitRows * hidden * sizeof(float));
  layout.logit_q8 = layout.take(acts_q8_bytes(kLogitRows, plan.hidden));
  for (size_t& offset : layout.searched_q8) offset = layout.take(acts_q8_bytes(1, plan.hidden));
  return layout;
}

// By kind of operation.
std::vector<const TraceName*> op_trace_names(const Plan& plan) {
  std::vector<const TraceName*> names(std::variant_size_v<PlanOp>);
  for (const PlanOp& op : plan.ops) {
    names[op.index()] = trace_name(op_name(op), "operation", {"operation", "first_row", "tokens"});
  }
  return names;
}

}  // namespace

Runner::Runner(std::shared_ptr<const Plan> plan, std::shared_ptr<const Weights> weights,
               std::shared_ptr<KvStorage> kv, const KernelTable& kernels, Team& team, RunnerLimits limits,
               Parallelism parallelism)
    : plan_(std::move(plan)),
      weights_(std::move(weights)),
      kv_(std::move(kv)),
      kernels_(kernels),
      team_(team),
      limits_(limits),
      parts_(plan_parts(*plan_)),
      op_trace_names_(op_trace_names(*plan_)) {
  if (parallelism == Parallelism::kPipeline) {
    pipeline_ = std::make_unique<Pipeline>(*plan_, *weights_, team_.num_threads());
  }
  ahead_ = weights_ahead(*plan_, *weights_, team_.num_threads());
  place_buffers();
  int32_t max_group = 1;
  for (const PlanOp& op : plan_->ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op)) {
      max_group = std::max(max_group, attention->num_heads / plan_->kv.num_kv_heads);
      partial_floats_ =
          std::max(partial_floats_, static_cast<size_t>(plan_->kv.num_kv_heads * partial_size(*attention)));
    }
  }
  const size_t head = static_cast<size_t>(plan_->kv.head_dim);
  const size_t tile =
      std::max({static_cast<size_t>(kTokensPerCut) * 2 * std::max<size_t>(head, 2 * kRowsPerCut),
                static_cast<size_t>(kMaxQueriesPerTask) * static_cast<size_t>(max_group) * head,
                static_cast<size_t>(plan_->hidden),
                // a cut of few tokens may have many rows
                static_cast<size_t>(kTileTokens) * 2 * kMaxRowsPerCut});
  members_.resize(static_cast<size_t>(team_.num_threads()));
  for (Member& member : members_) {
    member.tile.resize(tile);
    member.attention = Memory(attention_scratch_bytes(plan_->kv, max_group, kMaxQueriesPerTask));
  }
  slots_.resize(static_cast<size_t>(limits_.max_slots));
}

void Runner::place_buffers() {
  const ArenaLayout layout = arena_layout(*plan_, limits_.max_tokens);
  arena_ = Memory(layout.bytes);
  const auto floats = [&](size_t offset) { return reinterpret_cast<float*>(arena_.data() + offset); };
  for (size_t i = 0; i < plan_->buffers.size(); ++i) {
    const Buffer& buffer = plan_->buffers[i];
    buffers_.rows.push_back(buffer.kind == BufferKind::kRows ? floats(layout.f32[i]) : nullptr);
    Acts acts;
    acts.cols = buffer.cols;
    if (buffer.has_f32) acts.f32 = floats(layout.f32[i]);
    if (buffer.has_q8) acts.q8 = arena_.data() + layout.q8[i];
    buffers_.acts.push_back(acts);
  }
  logits_ = floats(layout.logits);
  logit_hidden_ = floats(layout.logit_hidden);
  logit_acts_.cols = plan_->hidden;
  logit_acts_.f32 = floats(layout.logit_f32);
  logit_acts_.q8 = arena_.data() + layout.logit_q8;
  for (size_t i = 0; i < searched_acts_.size(); ++i) {
    searched_acts_[i] = {arena_.data() + layout.searched_q8[i], nullptr, 1, plan_->hidden};
  }
}

size_t Runner::arena_bytes(const Plan& plan, int32_t max_tokens) {
  return arena_layout(plan, max_tokens).bytes;
}

void Runner::run(const StepInput& step, StepResult& result, float* capture) {
  result_ = &result;
  capture_ = capture;
  sample_ns_ = 0;
  was_skipped_.store(false, std::memory_order_relaxed);
  result.step_id = step.step_id;
  result.begin_ns = monotonic_ns();
  begin(step);
  // Halves are made for a pipeline only.
  const bool has_halves = halves_[1].num_tokens > 0;
  for (size_t begin = 0; begin < parts_.size();) {
    size_t end = begin + 1;
    if (parts_[begin].stage == Stage::kWhole || !has_halves) {
      run_part(parts_[begin], whole_, team_.crew());
    } else {
      while (end < parts_.size() && parts_[end].stage != Stage::kWhole) ++end;
      run_pipeline(begin, end);
    }
    begin = end;
  }
  result.was_skipped = was_skipped_.load(std::memory_order_relaxed);
  result.num_tokens = whole_.num_tokens;
  result.end_ns = monotonic_ns();
  result.forward_ns = result.end_ns - result.begin_ns - sample_ns_;
}

void Runner::run_part(const PlanPart& part, MicroBatch& batch, Crew& crew) {
  // Leaders of stages may hear of it at different parts: those that one of them leaves mean nothing to
  // anybody.
  if (step_->is_unwanted != nullptr && step_->is_unwanted->load(std::memory_order_relaxed)) {
    was_skipped_.store(true, std::memory_order_relaxed);
    return;
  }
  for (int32_t i = part.begin; i < part.end; ++i) {
    const PlanOp& op = plan_->ops[static_cast<size_t>(i)];
    if (&crew == &team_.crew()) set_ahead(static_cast<size_t>(i), crew);
    const TraceScope trace(*op_trace_names_[op.index()], {i, batch.first_row, batch.num_tokens});
    std::visit([&](const auto& typed) { run_op(typed, batch, crew); }, op);
  }
}

void Runner::set_ahead(size_t i, Crew& crew) {
  const std::vector<WeightRun>& runs = ahead_[i];
  for (size_t member = 0; member < runs.size(); ++member) {
    crew.set_ahead(static_cast<int32_t>(member), runs[member].begin, runs[member].num_bytes);
  }
}

void Runner::run_pipeline(size_t begin, size_t end) {
  pipeline_->begin(static_cast<int32_t>(end - begin));
  team_.run_each([&](int32_t member) {
    if (pipeline_->is_leader(member)) lead_stage(pipeline_->stage_of(member), begin, end, member);
    pipeline_->help(member);
  });
}

void Runner::lead_stage(Stage stage, size_t begin, size_t end, int32_t member) {
  for (size_t i = begin; i < end; ++i) {
    if (parts_[i].stage != stage) continue;
    const auto part = static_cast<int32_t>(i - begin);
    for (int32_t half = 0; half < 2; ++half) {
      pipeline_->wait_for(half, part, member);
      run_part(parts_[i], halves_[half], pipeline_->crew(stage));
      pipeline_->finish(half, part);
    }
  }
}

void Runner::begin(const StepInput& step) {
  static constexpr TraceName kTrace = {"begin", "operation"};
  const TraceScope trace(kTrace);
  step_ = &step;
  for (const auto& [source, target] : step.copies) kv_->copy_block(source, target);
  for (const SlotStart& start : step.slot_starts) {
    SlotState& slot = slots_[static_cast<size_t>(start.slot)];
    slot.params = start.params;
    slot.history.start(start.prompt_ids, start.output_ids);
    slot.last_token = start.output_ids.empty() ? start.prompt_ids.back() : start.output_ids.back();
  }
  resolve_rows(step);
  compute_ropes();
  const auto num_rows = static_cast<int32_t>(step.token_ids.size());
  const auto take = [&](int32_t first, int32_t last, MicroBatch& batch) {
    take_rows(*plan_, buffers_, step, rows_, first, last, partial_floats_, batch);
  };
  take(0, num_rows, whole_);
  halves_[1].num_tokens = 0;
  if (const int32_t cut = pipeline_ != nullptr ? cut_row(step) : 0; cut > 0) {
    take(0, cut, halves_[0]);
    take(cut, num_rows, halves_[1]);
  }
  result_->slots = step.sample_slots;
  result_->samples.assign(step.sample_slots.size(), {});
  result_->scores.assign(step.scores.size(), {});
}

void Runner::resolve_rows(const StepInput& step) {
  rows_.tokens = step.token_ids;
  rows_.positions.resize(rows_.tokens.size());
  rows_.blocks.resize(rows_.tokens.size());
  const int32_t block_tokens = plan_->kv.block_tokens;
  for (size_t s = 0; s < step.seq_slots.size(); ++s) {
    const int32_t first = step.query_starts[s];
    const int32_t last = step.query_starts[s + 1];
    for (int32_t row = first; row < last; ++row) {
      const auto r = static_cast<size_t>(row);
      rows_.positions[r] = step.context_lens[s] - (last - row);
      rows_.blocks[r] = step.block_tables[s][static_cast<size_t>(rows_.positions[r] / block_tokens)];
      int32_t& token = rows_.tokens[r];
      if (token < 0) token = slots_[static_cast<size_t>(step.seq_slots[s])].last_token;
    }
  }
}

// cos and sin for the positions of this step, once for all layers. Each value is a function of its position
// alone, so a token's rotation does not depend on the step it is in.
void Runner::compute_ropes() {
  rope_offsets_.clear();
  size_t size = 0;
  for (const RopeTable& rope : plan_->ropes) {
    rope_offsets_.push_back(size);
    size += rope.inverse_freqs.size() * rows_.tokens.size();
  }
  if (rope_cos_.size() < size) {
    rope_cos_.resize(size);
    rope_sin_.resize(size);
  }
  constexpr int32_t kRows = 16;
  const auto num_rows = static_cast<int32_t>(rows_.positions.size());
  team_.run(ceil_div(num_rows, kRows), [&](int32_t chunk, int32_t) {
    const int32_t end = std::min(num_rows, (chunk + 1) * kRows);
    for (int32_t row = chunk * kRows; row < end; ++row) {
      for (size_t i = 0; i < plan_->ropes.size(); ++i) {
        const std::vector<float>& freqs = plan_->ropes[i].inverse_freqs;
        const size_t base = rope_offsets_[i] + static_cast<size_t>(row) * freqs.size();
        for (size_t k = 0; k < freqs.size(); ++k) {
          const float angle = static_cast<float>(rows_.positions[static_cast<size_t>(row)]) * freqs[k];
          rope_cos_[base + k] = std::cos(angle);
          rope_sin_[base + k] = std::sin(angle);
        }
      }
    }
  });
}

}  // namespace plait
