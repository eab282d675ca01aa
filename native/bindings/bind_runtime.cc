// Plans, steps and what they run on. The GIL is released while logits are evaluated; the other calls take
// microseconds.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <tuple>

#include "base/error.h"
#include "bindings/bindings.h"
#include "plan/kv_storage.h"
#include "plan/runner.h"
#include "runtime/evaluate.h"

namespace plait {

namespace {

using namespace nb::literals;

using Pairs = std::vector<std::pair<int32_t, float>>;
using Scored = std::tuple<float, int32_t, Pairs>;

}  // namespace

Isa isa_of(const std::string& name) {
  for (const Isa isa : supported_isas()) {
    if (name == isa_name(isa)) return isa;
  }
  throw Error(ErrorCode::kUnsupported,
              "instruction set " + name + " is unknown or not supported by this CPU");
}

KvDtype kv_dtype_of(const std::string& name) {
  if (name == "f16") return KvDtype::kF16;
  if (name == "q8") return KvDtype::kQ8;
  throw Error(ErrorCode::kInvalidArgument, "no KV cache dtype " + name + "; use f16 or q8");
}

namespace {

void register_plan(nb::module_& m) {
  nb::class_<KvLayout>(m, "KvLayout")
      .def(
          "__init__",
          [](KvLayout* self, int32_t num_layers, int32_t num_kv_heads, int32_t head_dim, int32_t block_tokens,
             const std::string& dtype) {
            new (self) KvLayout{num_layers, num_kv_heads, head_dim, block_tokens, kv_dtype_of(dtype)};
          },
          "num_layers"_a, "num_kv_heads"_a, "head_dim"_a, "block_tokens"_a, "dtype"_a = "f16",
          "dtype: f16 or q8.")
      .def_prop_ro("block_bytes", &KvLayout::block_bytes)
      .def_ro("block_tokens", &KvLayout::block_tokens);

  nb::class_<Plan>(m, "Plan", "Buffers and fused operations, in the order in which a step runs them.")
      .def(
          "__init__",
          [](Plan* self, int32_t hidden, int32_t vocab, const KvLayout& kv) {
            new (self) Plan();
            self->hidden = hidden;
            self->vocab = vocab;
            self->kv = kv;
          },
          "hidden"_a, "vocab"_a, "kv"_a)
      .def(
          "add_buffer",
          [](Plan& plan, std::string name, int32_t cols, bool is_acts, bool has_q8, bool has_f32) {
            plan.buffers.push_back(
                {std::move(name), is_acts ? BufferKind::kActs : BufferKind::kRows, cols, has_q8, has_f32});
            return static_cast<int32_t>(plan.buffers.size()) - 1;
          },
          "name"_a, "cols"_a, "is_acts"_a, "has_q8"_a = false, "has_f32"_a = false)
      .def(
          "add_rope",
          [](Plan& plan, const std::string& style, std::vector<float> inverse_freqs) {
            if (style != "interleaved" && style != "half")
              throw Error(ErrorCode::kInvalidArgument, "unknown rope style " + style);
            plan.ropes.push_back(
                {style == "half" ? RopeStyle::kHalf : RopeStyle::kInterleaved, std::move(inverse_freqs)});
            return static_cast<int32_t>(plan.ropes.size()) - 1;
          },
          "style"_a, "inverse_freqs"_a)
      .def(
          "add_embed",
          [](Plan& plan, int32_t table, float scale, int32_t out) {
            plan.ops.emplace_back(EmbedOp{table, scale, out});
          },
          "table"_a, "scale"_a, "out"_a)
      .def(
          "add_add_norm",
          [](Plan& plan, int32_t residual, int32_t delta, int32_t post_norm, int32_t norm, float eps,
             int32_t out) { plan.ops.emplace_back(AddNormOp{residual, delta, post_norm, norm, eps, out}); },
          "residual"_a, "delta"_a, "post_norm"_a, "norm"_a, "eps"_a, "out"_a)
      .def(
          "add_qkv",
          [](Plan& plan, int32_t in, const std::tuple<int32_t, int32_t, int32_t>& weights, int32_t num_heads,
             const std::pair<int32_t, int32_t>& norms, float eps, int32_t rope, int32_t layer,
             int32_t out_q) {
            const auto [wq, wk, wv] = weights;
            plan.ops.emplace_back(
                QkvOp{in, wq, wk, wv, num_heads, norms.first, norms.second, eps, rope, layer, out_q});
          },
          "in_"_a, "weights"_a, "num_heads"_a, "norms"_a, "eps"_a, "rope"_a, "layer"_a, "out_q"_a)
      .def(
          "add_attention",
          [](Plan& plan, int32_t q, int32_t layer, int32_t num_heads, int32_t window, float scale,
             float softcap, int32_t out) {
            plan.ops.emplace_back(AttentionOp{q, layer, num_heads, window, scale, softcap, out});
          },
          "q"_a, "layer"_a, "num_heads"_a, "window"_a, "scale"_a, "softcap"_a, "out"_a)
      .def(
          "add_matmul",
          [](Plan& plan, int32_t in, int32_t weight, int32_t out) {
            plan.ops.emplace_back(MatmulOp{in, weight, out});
          },
          "in_"_a, "weight"_a, "out"_a)
      .def(
          "add_gated",
          [](Plan& plan, int32_t in, int32_t gate, int32_t up, const std::string& activation, int32_t out) {
            if (activation != "silu" && activation != "gelu_tanh") {
              throw Error(ErrorCode::kInvalidArgument, "unknown activation " + activation);
            }
            plan.ops.emplace_back(
                GatedOp{in, gate, up, activation == "silu" ? Activation::kSilu : Activation::kGeluTanh, out});
          },
          "in_"_a, "gate"_a, "up"_a, "activation"_a, "out"_a)
      .def(
          "add_logits",
          [](Plan& plan, int32_t residual, int32_t delta, int32_t post_norm, int32_t norm, float eps,
             int32_t head, float softcap) {
            plan.ops.emplace_back(LogitsOp{residual, delta, post_norm, norm, eps, head, softcap});
          },
          "residual"_a, "delta"_a, "post_norm"_a, "norm"_a, "eps"_a, "head"_a, "softcap"_a)
      .def("verify", &verify_plan, "weights"_a,
           "Raise NativeError when an operation does not fit its buffers or weights.")
      .def("arena_bytes", &Runner::arena_bytes, "max_tokens"_a,
           "Bytes that steps of so many tokens write to.")
      .def("describe", &describe_plan, "weights"_a, "One line per operation.");
}

void register_slot_start(nb::module_& m) {
  const auto param = [](auto member) {
    return [member](const SlotStart& start) { return start.params.*member; };
  };
  nb::class_<SlotStart>(m, "SlotStart")
      .def(
          "__init__",
          [](SlotStart* self, int32_t slot, std::vector<int32_t> prompt_ids, std::vector<int32_t> output_ids,
             float temperature, float top_p, int32_t top_k, float min_p, float repetition_penalty,
             float presence_penalty, float frequency_penalty, uint64_t seed, int32_t num_logprobs,
             int32_t min_tokens, std::vector<int32_t> stop_token_ids, Pairs logit_bias) {
            new (self) SlotStart();
            self->slot = slot;
            self->prompt_ids = std::move(prompt_ids);
            self->output_ids = std::move(output_ids);
            SampleParams& p = self->params;
            p.temperature = temperature;
            p.top_p = top_p;
            p.top_k = top_k;
            p.min_p = min_p;
            p.repetition_penalty = repetition_penalty;
            p.presence_penalty = presence_penalty;
            p.frequency_penalty = frequency_penalty;
            p.seed = seed;
            p.num_logprobs = num_logprobs;
            p.min_tokens = min_tokens;
            p.stop_token_ids = std::move(stop_token_ids);
            p.logit_bias = std::move(logit_bias);
          },
          "slot"_a, "prompt_ids"_a, "output_ids"_a = std::vector<int32_t>(), "temperature"_a = 1.0F,
          "top_p"_a = 1.0F, "top_k"_a = 0, "min_p"_a = 0.0F, "repetition_penalty"_a = 1.0F,
          "presence_penalty"_a = 0.0F, "frequency_penalty"_a = 0.0F, "seed"_a = 0, "num_logprobs"_a = -1,
          "min_tokens"_a = 0, "stop_token_ids"_a = std::vector<int32_t>(), "logit_bias"_a = Pairs())
      .def_ro("slot", &SlotStart::slot)
      .def_ro("prompt_ids", &SlotStart::prompt_ids)
      .def_ro("output_ids", &SlotStart::output_ids)
      .def_prop_ro("temperature", param(&SampleParams::temperature))
      .def_prop_ro("top_p", param(&SampleParams::top_p))
      .def_prop_ro("top_k", param(&SampleParams::top_k))
      .def_prop_ro("min_p", param(&SampleParams::min_p))
      .def_prop_ro("repetition_penalty", param(&SampleParams::repetition_penalty))
      .def_prop_ro("presence_penalty", param(&SampleParams::presence_penalty))
      .def_prop_ro("frequency_penalty", param(&SampleParams::frequency_penalty))
      .def_prop_ro("seed", param(&SampleParams::seed))
      .def_prop_ro("num_logprobs", param(&SampleParams::num_logprobs))
      .def_prop_ro("min_tokens", param(&SampleParams::min_tokens))
      .def_prop_ro("stop_token_ids", param(&SampleParams::stop_token_ids))
      .def_prop_ro("logit_bias", param(&SampleParams::logit_bias));
}

void register_step_input(nb::module_& m) {
  nb::class_<StepInput>(m, "StepInput", "One step, see native/plan/step.h.")
      .def(nb::init<>())
      .def_rw("step_id", &StepInput::step_id)
      .def_rw("work_since_ns", &StepInput::work_since_ns)
      .def_prop_ro("num_tokens", [](const StepInput& step) { return step.token_ids.size(); })
      .def_prop_ro("num_sequences", [](const StepInput& step) { return step.seq_slots.size(); })
      .def_prop_ro(
          "is_unwanted",
          [](const StepInput& step) { return step.is_unwanted != nullptr && step.is_unwanted->load(); })
      .def_rw("token_ids", &StepInput::token_ids)
      .def_rw("seq_slots", &StepInput::seq_slots)
      .def_rw("query_starts", &StepInput::query_starts)
      .def_rw("context_lens", &StepInput::context_lens)
      .def_rw("block_tables", &StepInput::block_tables)
      .def_rw("sample_rows", &StepInput::sample_rows)
      .def_rw("sample_slots", &StepInput::sample_slots)
      .def_rw("copies", &StepInput::copies)
      .def_prop_rw(
          "slot_starts", [](const StepInput& step) { return step.slot_starts; },
          [](StepInput& step, std::vector<SlotStart> starts) { step.slot_starts = std::move(starts); })
      .def_prop_rw(
          "scores",
          [](const StepInput& step) {
            std::vector<std::tuple<int32_t, int32_t, int32_t>> scores;
            for (const ScoreRow& s : step.scores) scores.emplace_back(s.row, s.token, s.num_top);
            return scores;
          },
          [](StepInput& step, const std::vector<std::tuple<int32_t, int32_t, int32_t>>& scores) {
            step.scores.clear();
            for (const auto& [row, token, num_top] : scores) step.scores.push_back({row, token, num_top});
          });
}

// The samples of a step from columns; a column may be empty, else it has an entry for each token.
std::vector<Sampled> samples_of(const std::vector<int32_t>& tokens, const std::vector<float>& logprobs,
                                const std::vector<int32_t>& ranks, const std::vector<Pairs>& tops) {
  for (const size_t size : {logprobs.size(), ranks.size(), tops.size()}) {
    if (size != 0 && size != tokens.size()) {
      throw Error(ErrorCode::kInvalidArgument, "columns of a step's result differ in length");
    }
  }
  std::vector<Sampled> samples(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    samples[i].token = tokens[i];
    if (!logprobs.empty()) samples[i].logprob = logprobs[i];
    if (!ranks.empty()) samples[i].rank = ranks[i];
    if (!tops.empty()) samples[i].top = tops[i];
  }
  return samples;
}

void register_step_result(nb::module_& m) {
  const auto column = [](auto member) {
    return [member](const StepResult& result) {
      using Value = std::remove_cvref_t<decltype(std::declval<Sampled>().*member)>;
      std::vector<Value> values;
      values.reserve(result.samples.size());
      for (const Sampled& s : result.samples) values.push_back(s.*member);
      return values;
    };
  };
  nb::class_<StepResult>(m, "StepResult", "What one step gave; error is empty when it ran.")
      .def(
          "__init__",
          [](StepResult* self, int64_t step_id, std::string error, const std::vector<int32_t>& tokens,
             const std::vector<float>& logprobs, const std::vector<int32_t>& ranks,
             const std::vector<Pairs>& tops, const std::vector<Scored>& scores, int64_t begin_ns,
             int64_t end_ns, bool was_skipped) {
            std::vector<Sampled> samples = samples_of(tokens, logprobs, ranks, tops);
            new (self) StepResult();
            self->step_id = step_id;
            self->error = std::move(error);
            self->samples = std::move(samples);
            for (const auto& [logprob, rank, top] : scores) self->scores.push_back({0, logprob, top, rank});
            self->begin_ns = begin_ns;
            self->end_ns = end_ns;
            self->was_skipped = was_skipped;
          },
          "step_id"_a, "error"_a = "", "tokens"_a = std::vector<int32_t>(),
          "logprobs"_a = std::vector<float>(), "ranks"_a = std::vector<int32_t>(),
          "tops"_a = std::vector<Pairs>(), "scores"_a = std::vector<Scored>(), "begin_ns"_a = 0,
          "end_ns"_a = 0, "was_skipped"_a = false,
          "For executors other than ComputeThread. One entry per sample in each column.")
      .def_ro("step_id", &StepResult::step_id)
      .def_ro("error", &StepResult::error)
      .def_ro("slots", &StepResult::slots)
      .def_prop_ro("tokens", column(&Sampled::token))
      .def_prop_ro("logprobs", column(&Sampled::logprob))
      .def_prop_ro("ranks", column(&Sampled::rank))
      .def_prop_ro("tops", column(&Sampled::top))
      .def_prop_ro("scores",
                   [](const StepResult& result) {
                     std::vector<Scored> scores;
                     for (const Sampled& s : result.scores) scores.emplace_back(s.logprob, s.rank, s.top);
                     return scores;
                   })
      .def_ro("was_skipped", &StepResult::was_skipped)
      .def_ro("num_tokens", &StepResult::num_tokens)
      .def_ro("begin_ns", &StepResult::begin_ns)
      .def_ro("end_ns", &StepResult::end_ns)
      .def_ro("forward_ns", &StepResult::forward_ns);
}

void register_storage(nb::module_& m) {
  nb::class_<KvStorage>(m, "KvStorage", "The bytes of the KV cache.")
      .def(nb::init<const KvLayout&, int32_t>(), "layout"_a, "num_blocks"_a)
      .def_prop_ro("num_blocks", &KvStorage::num_blocks)
      .def("prefault", &KvStorage::prefault, "first_block"_a, "num_blocks"_a, "num_threads"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Take the memory of these blocks now, not when they are first written; nothing runs yet. Releases "
           "the GIL.");

  m.def(
      "evaluate_logits",
      [](std::shared_ptr<Plan> plan, std::shared_ptr<Weights> weights, const std::string& isa,
         const std::vector<int32_t>& token_ids, int32_t chunk_tokens, int32_t num_threads) {
        verify_plan(*plan, *weights);
        const size_t size = token_ids.size() * static_cast<size_t>(plan->vocab);
        nb::bytearray out;
        out.resize(size * sizeof(float));
        auto* data = static_cast<float*>(out.data());
        const nb::gil_scoped_release release;
        evaluate_logits(plan, weights, isa_of(isa), token_ids, chunk_tokens, num_threads, data);
        return out;
      },
      "plan"_a, "weights"_a, "isa"_a, "token_ids"_a, "chunk_tokens"_a, "num_threads"_a,
      "Logits after every token as the bytes of float32 [num_tokens][vocab]. Releases the GIL.");
}

}  // namespace

void register_runtime(nb::module_& m) {
  register_plan(m);
  register_slot_start(m);
  register_step_input(m);
  register_step_result(m);
  register_storage(m);
}

}  // namespace plait
