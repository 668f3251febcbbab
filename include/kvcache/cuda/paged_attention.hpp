// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/cuda/attention_table.hpp>
#include <kvcache/cuda/decode_attention.hpp>
#include <kvcache/cuda/device_math.hpp>
#include <kvcache/cuda/device_memory.hpp>
#include <kvcache/cuda/page_layout.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Cosine and sine of an angle.
struct turn {
    double cosine = 1.0;
    double sine = 0.0;
};

/// RoPE angles as tables that the host computes once: angles of positions 0 to 255 and of every 256th position. Complex
/// multiplication of two entries gives any angle, accurate to the last bits of a double. A device's own sine gives
/// different bits. (Su et al. 2021, RoPE)
struct rope_table {
    static constexpr std::uint32_t fine = 256;

    const turn* turns = nullptr; ///< (fine + coarse, half): the fine ones first; null: no rotation
    std::uint32_t half = 0;      ///< Rotated pairs: elements (i, i + half).
    std::uint32_t coarse = 0;

    /// Computes the table for rotations by up to `most` positions in either direction. (fine + coarse, half)
    [[nodiscard]] static std::vector<turn> make(std::span<const double> frequencies, std::uint32_t most) {
        return make(frequencies, most, [](double angle) { return turn{std::cos(angle), std::sin(angle)}; });
    }
    /// The same from `cosine_sine`, which gives the cosine and sine of an angle: those above are the C library's, whose
    /// last bits another machine need not have.
    template <class CosineSine>
    [[nodiscard]] static std::vector<turn> make(std::span<const double> frequencies, std::uint32_t most,
                                                CosineSine cosine_sine) {
        std::vector<turn> all;
        all.reserve((fine + rows(most)) * frequencies.size());
        const auto add = [&](std::uint64_t position) {
            for (const double frequency : frequencies)
                all.push_back(cosine_sine(static_cast<double>(position) * frequency));
        };
        for (std::uint32_t step = 0; step < fine; ++step)
            add(step);
        for (std::uint32_t step = 0; step < rows(most); ++step)
            add(std::uint64_t{step} * fine);
        return all;
    }
    /// Coarse rows of a table for rotations by up to `most`.
    [[nodiscard]] static constexpr std::uint32_t rows(std::uint32_t most) noexcept { return most / fine + 1; }
    /// Largest rotation in either direction.
    [[nodiscard]] constexpr std::uint64_t reach() const noexcept {
        return turns == nullptr ? std::numeric_limits<std::uint64_t>::max() : std::uint64_t{coarse} * fine - 1;
    }

    /// Cosine and sine of pair `i` for a rotation by `positions`, in either direction.
    [[nodiscard]] KVCACHE_HOST_DEVICE turn at(std::int32_t positions, std::uint32_t i) const noexcept {
        const std::uint32_t size =
            positions < 0 ? 0u - static_cast<std::uint32_t>(positions) : static_cast<std::uint32_t>(positions);
        const turn near = turns[size % fine * half + i], far = turns[(fine + size / fine) * half + i];
        const double cosine = fused(near.cosine, far.cosine, -times_exactly(near.sine, far.sine));
        const double sine = fused(near.sine, far.cosine, times_exactly(near.cosine, far.sine));
        return {cosine, positions < 0 ? -sine : sine};
    }

private:
    // Rounds the product before the sum that it feeds, by a fused multiply-add with zero, which cannot be contracted.
    [[nodiscard]] KVCACHE_HOST_DEVICE static double times_exactly(double x, double y) noexcept {
        return fused(x, y, 0.0);
    }
};

/// Rotates each query by its position minus the base of the keys that it reads, once for each run of entries with one
/// base, and scales it for attention. For int8 keys it also writes the query as int16 with a scale; a query that
/// contains NaN gets a NaN scale. A block processes one query head of one run.
struct prepare_queries {
    static constexpr unsigned threads = 64;

    const std::byte* queries = nullptr;  ///< (sequences, heads, head_dim), of `format`
    row_format format = row_format::f32; ///< f32, f16 or bf16
    const rotation_run* runs = nullptr;  ///< (runs)
    rope_table steps = {};
    std::uint32_t run_count = 0;
    std::uint32_t heads = 1;
    std::uint32_t head_dim = 0;
    float multiplier = 1.0f;       ///< The scale of scores, over log(2).
    float* transformed = nullptr;  ///< (runs, heads, head_dim)
    std::int16_t* codes = nullptr; ///< The same, or null
    float* scales = nullptr;       ///< (runs, heads), or null

    [[nodiscard]] std::uint64_t blocks() const noexcept { return std::uint64_t{run_count} * heads; }
    [[nodiscard]] std::size_t shared_bytes() const noexcept { return (head_dim + threads) * sizeof(float); }

    /// Largest integer of a quantized query: head_dim products of 127 and it fit an int32.
    [[nodiscard]] static KVCACHE_HOST_DEVICE float largest_code(std::uint32_t head_dim) noexcept {
        const std::uint32_t fits = 2147483647u / 127u / (head_dim + 1);
        return static_cast<float>(fits < 32767u ? fits : 32767u);
    }

    template <class Group>
    KVCACHE_HOST_DEVICE void operator()(Group& group) const {
        const std::uint64_t row = group.block(); // index of the rotated query
        const rotation_run run = runs[row / heads];
        const std::uint64_t from = (std::uint64_t{run.sequence} * heads + row % heads) * head_dim;
        float* const own = group.template shared<float>(0, head_dim);
        float* const most = group.template shared<float>(head_dim * sizeof(float), threads);

        group.each([&](unsigned thread) {
            float largest = 0.0f;
            const std::uint32_t pairs = steps.turns == nullptr ? 0 : steps.half;
            for (std::uint32_t i = thread; i < head_dim; i += threads) {
                if (i >= pairs && i < 2 * pairs)
                    continue; // rotated with its partner
                const float x = number(from + i);
                if (i >= pairs) {
                    own[i] = times(x, multiplier);
                } else {
                    const turn by = steps.at(run.turn, i);
                    const float y = number(from + i + pairs);
                    const auto cosine = static_cast<float>(by.cosine), sine = static_cast<float>(by.sine);
                    own[i] = times(fused(x, cosine, -times(y, sine)), multiplier);
                    own[i + pairs] = times(fused(y, cosine, times(x, sine)), multiplier);
                    largest = larger_or_none(size_of(own[i + pairs]), largest);
                }
                largest = larger_or_none(size_of(own[i]), largest);
            }
            most[thread] = largest;
        });

        group.alone([&](unsigned thread) {
            for (std::uint32_t i = thread; i < head_dim; i += threads)
                transformed[row * head_dim + i] = own[i];
            if (codes == nullptr)
                return;
            float largest = 0.0f;
            for (unsigned i = 0; i < threads; ++i)
                largest = larger_or_none(most[i], largest);
            const float whole = largest_code(head_dim);
            const float inverse = largest > 1e-30f ? divided(whole, largest) : 0.0f; // smaller magnitudes count as zero
            for (std::uint32_t i = thread; i < head_dim; i += threads) {
                const float code = nearest(times(own[i], inverse));
                codes[row * head_dim + i] =
                    code >= -whole && code <= whole ? static_cast<std::int16_t>(code) : std::int16_t{0};
            }
            if (thread == 0)
                scales[row] = divided(largest, whole);
        });
    }

private:
    [[nodiscard]] KVCACHE_HOST_DEVICE float number(std::uint64_t at) const noexcept {
        if (format == row_format::f32)
            return reinterpret_cast<const float*>(queries)[at];
        const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(queries)[at];
        return format == row_format::bf16 ? from_bf16(bits) : from_f16(bits);
    }
};

/// Merges the splits of each query in ascending order: weighted sums divided by the sum of the weights. A sequence
/// without rows gets zeros. A block processes one query head of one sequence.
struct merge_splits {
    static constexpr unsigned threads = 128;

    const std::uint32_t* split_begin = nullptr; ///< (sequences + 1), in splits
    const float* sums = nullptr;                ///< (splits, heads, head_dim)
    const float* largest = nullptr;             ///< (splits, heads)
    const float* totals = nullptr;              ///< (splits, heads)
    std::uint32_t sequences = 0;
    std::uint32_t heads = 1;
    std::uint32_t head_dim = 0;
    float* out = nullptr; ///< (sequences, heads, head_dim)

    [[nodiscard]] std::uint64_t blocks() const noexcept { return std::uint64_t{sequences} * heads; }
    [[nodiscard]] std::size_t shared_bytes() const noexcept { return 0; }

    template <class Group>
    KVCACHE_HOST_DEVICE void operator()(Group& group) const {
        const std::uint64_t sequence = group.block() / heads, head = group.block() % heads;
        const std::uint32_t begin = split_begin[sequence], end = split_begin[sequence + 1];
        group.alone([&](unsigned thread) {
            float most = -INFINITY;
            for (std::uint32_t split = begin; split < end; ++split)
                most = larger_or_none(largest[std::uint64_t{split} * heads + head], most);
            for (std::uint32_t d = thread; d < head_dim; d += threads) {
                float total = 0.0f, sum = 0.0f;
                for (std::uint32_t split = begin; split < end; ++split) {
                    const std::uint64_t at = std::uint64_t{split} * heads + head;
                    const float weight = power_of_two(plus(largest[at], -most));
                    total = fused(weight, totals[at], total);
                    sum = fused(weight, sums[at * head_dim + d], sum);
                }
                out[group.block() * head_dim + d] = begin == end ? 0.0f : divided(sum, total);
            }
        });
    }
};

/// Options of attention over a device's pages.
struct attention_options {
    page_layout layout = {};
    std::uint32_t heads = 1; ///< Query heads, a multiple of the key heads.
    float scale = 1.0f;      ///< Of scores: usually one over the root of head_dim.
    rope_table steps = {};   ///< On the device; without them queries come turned, and every base is zero.
};

/// Decode attention over the pages of a device: one query a sequence, the same tables for every layer. The bits of a
/// sequence's output depend only on its own rows, bases and query. `Queries`: query heads of a KV head that a block
/// processes, which is the group size or the power of two above it, at most 8.
template <device Device, row_format Format, unsigned Dim, unsigned Queries>
class paged_attention {
public:
    paged_attention(Device& device, const attention_options& options)
        : device_(&device),
          options_(options),
          entries_(device),
          entry_begin_(device),
          rows_(device),
          runs_(device),
          splits_(device),
          split_begin_(device),
          transformed_(device),
          query_scales_(device),
          codes_(device),
          sums_(device),
          largest_(device),
          totals_(device) {
        expects(options.layout.valid() && options.layout.format == Format && options.layout.shape.head_dim == Dim,
                "the layout is of the format and head_dim that attention was made for");
        expects(options.heads > 0 && options.heads % options.layout.shape.kv_heads == 0,
                "query heads share key heads evenly");
        expects(options.steps.turns == nullptr || 2 * options.steps.half <= Dim, "a head has the pairs that turn");
    }

    /// Sends a batch's tables, for all calls of `run` until the next plan. Errors: out_of_range, for a query further
    /// from a base than the RoPE table reaches; unsupported, for several bases without a table; out_of_memory, io.
    [[nodiscard]] result<void> plan(stream_id stream, const attention_table& table) {
        sequences_ = split_count_ = run_count_ = 0;
        for (const rotation_run& run : table.runs) {
            const std::uint64_t size = static_cast<std::uint64_t>(run.turn < 0 ? -std::int64_t{run.turn} : run.turn);
            if (size > options_.steps.reach())
                return error{error_code::out_of_range, "rotation",
                             "a query turns by " + std::to_string(run.turn) + " positions, the tables reach " +
                                 std::to_string(options_.steps.reach())};
        }
        if (options_.steps.turns == nullptr)
            for (std::size_t i = 1; i < table.runs.size(); ++i)
                if (table.runs[i].sequence == table.runs[i - 1].sequence)
                    return error{error_code::unsupported, "base",
                                 "keys of several bases need queries that are turned here"};
        const std::size_t heads = options_.heads, transformed = table.runs.size() * heads;
        const std::size_t parts = table.splits.size() * heads;
        for (auto sent :
             {entries_.assign(stream, table.entries), entry_begin_.assign(stream, table.entry_begin),
              rows_.assign(stream, table.rows), runs_.assign(stream, table.runs), splits_.assign(stream, table.splits),
              split_begin_.assign(stream, table.split_begin), transformed_.resize(transformed * Dim),
              query_scales_.resize(integer_scores ? transformed : 0),
              codes_.resize(integer_scores ? transformed * Dim : 0), sums_.resize(parts * Dim), largest_.resize(parts),
              totals_.resize(parts)})
            if (!sent)
                return sent;
        sequences_ = static_cast<std::uint32_t>(table.rows.size());
        split_count_ = static_cast<std::uint32_t>(table.splits.size());
        run_count_ = static_cast<std::uint32_t>(table.runs.size());
        return {};
    }

    /// Attention of one layer. queries: (sequences, heads, head_dim) in f32, f16 or bf16; out: f32 of the same shape;
    /// both on the device. Errors: io.
    [[nodiscard]] result<void> run(stream_id stream, const device_page_pool& pool, std::uint32_t layer,
                                   const std::byte* queries, row_format format, float* out) {
        expects(layer < options_.layout.shape.layers, "a layer is of the pages");
        prepare_queries turn;
        turn.queries = queries;
        turn.format = format;
        turn.runs = runs_.data();
        turn.steps = options_.steps;
        turn.run_count = run_count_;
        turn.heads = options_.heads;
        turn.head_dim = Dim;
        turn.multiplier = options_.scale * 1.44269504f; // scores in log2 units
        turn.transformed = transformed_.data();
        turn.codes = integer_scores ? codes_.data() : nullptr;
        turn.scales = integer_scores ? query_scales_.data() : nullptr;
        if (auto put = device_->launch(stream, turn); !put)
            return put;

        decode_attention<Format, Dim, Queries> decode;
        decode.on = {options_.layout,
                     pool,
                     layer,
                     options_.heads,
                     split_count_,
                     entries_.data(),
                     entry_begin_.data(),
                     rows_.data(),
                     splits_.data(),
                     transformed_.data(),
                     codes_.data(),
                     query_scales_.data(),
                     sums_.data(),
                     largest_.data(),
                     totals_.data()};
        if (auto put = device_->launch(stream, decode); !put)
            return put;

        merge_splits merge;
        merge.split_begin = split_begin_.data();
        merge.sums = sums_.data();
        merge.largest = largest_.data();
        merge.totals = totals_.data();
        merge.sequences = sequences_;
        merge.heads = options_.heads;
        merge.head_dim = Dim;
        merge.out = out;
        return device_->launch(stream, merge);
    }

private:
    static constexpr bool integer_scores = Format == row_format::int8;

    Device* device_;
    attention_options options_;
    std::uint32_t sequences_ = 0;
    std::uint32_t split_count_ = 0;
    std::uint32_t run_count_ = 0;
    device_array<attention_entry, Device> entries_;
    device_array<std::uint32_t, Device> entry_begin_;
    device_array<std::uint32_t, Device> rows_;
    device_array<rotation_run, Device> runs_;
    device_array<attention_split, Device> splits_;
    device_array<std::uint32_t, Device> split_begin_;
    device_array<float, Device> transformed_;
    device_array<float, Device> query_scales_;
    device_array<std::int16_t, Device> codes_;
    device_array<float, Device> sums_;
    device_array<float, Device> largest_;
    device_array<float, Device> totals_;
};

}}} // namespace kvcache::cuda
