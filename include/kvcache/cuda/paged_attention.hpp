// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/cuda/attention_table.hpp>
#include <kvcache/cuda/decode_attention.hpp>
#include <kvcache/cuda/device_array.hpp>
#include <kvcache/cuda/merge_splits.hpp>
#include <kvcache/cuda/prepare_queries.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

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
