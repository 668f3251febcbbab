// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_part.hpp>
#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/attention_worker.hpp>
#include <kvcache/attention/softmax_state.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Causal attention of a batch: query rows of many sequences over their pages, on all threads. Pages that sequences
/// share are read once. The result of a row is bit-identical to the result it has alone on one thread.
template <codec_state Codec, storage_state Storage>
class batch_attention {
public:
    /// Plans the attention of a batch, for any number of layers. Reuses the memory of earlier batches. Requires: the
    /// codec, the storage, the page tables and the memory that the parts point to stay unchanged until the next `plan`.
    void plan(const attention_shape& shape, page_source<Codec, Storage> source, std::span<const attention_part> parts,
              const thread_pool& threads) {
        shape_ = shape;
        source_ = source;
        parts_.assign(parts.begin(), parts.end());
        work_ = 0;
        for (const attention_part& one : parts_) {
            const std::size_t seen = one.queries.rows > 0 ? one.queries.position_of(one.queries.rows - 1) + 1 : 0;
            work_ += one.queries.rows * (shape.window == 0 ? seen : std::min<std::size_t>(seen, shape.window)) *
                     shape.heads * shape.head_dim;
        }
        const bool alone = work_ < thread_pool::min_parallel_work;
        plan_.build(parts_, shape, alone ? 1 : threads.threads());
        partials_.resize(plan_.partials() * shape.kv_heads * state());
        const std::size_t capacity = attention_plan::capacity(shape.group());
        if (head_dim_ != shape.head_dim || (!scratch_.empty() && scratch_.front().block.capacity() < capacity))
            scratch_.clear();
        head_dim_ = shape.head_dim;
        while (scratch_.size() < threads.threads())
            scratch_.emplace_back(shape.head_dim, capacity);
    }

    /// Computes all rows of the batch in one layer. Requires: their keys and values are in the pages.
    void run(layer_id layer, thread_pool& threads) {
        const std::size_t items = plan_.work_items().size() * shape_.kv_heads;
        threads.parallel_for_worker(items, work_, [&](std::size_t thread, std::size_t begin, std::size_t end) {
            run_items(layer, begin, end, scratch_[thread]);
        });
        if (plan_.partials() > 0)
            threads.parallel_for(plan_.query_tiles().size() * shape_.kv_heads, partials_.size(),
                                 [&](std::size_t begin, std::size_t end) {
                                     for (std::size_t j = begin; j < end; ++j)
                                         merge(layer, plan_.query_tiles()[j / shape_.kv_heads], j % shape_.kv_heads);
                                 });
    }

private:
    [[nodiscard]] std::size_t width() const noexcept { return padded_head_dim(shape_.head_dim); }
    [[nodiscard]] std::size_t state() const noexcept { return softmax_state::numbers(width()); }
    [[nodiscard]] float* partials_of(std::size_t head) { return partials_.data() + head * plan_.partials() * state(); }

    // The work items of each KV head, [begin, end) of them.
    void run_items(layer_id layer, std::size_t begin, std::size_t end, attention_scratch& scratch) {
        detail::attention_worker<Codec, Storage> worker(shape_, source_, parts_, plan_.query_tiles(), scratch);
        for (std::size_t i = begin; i < end; ++i) {
            const std::size_t head = i % shape_.kv_heads;
            worker.run(plan_.work_items()[i / shape_.kv_heads], plan_.page_ranges(), layer,
                       head_id{static_cast<std::uint32_t>(head)}, partials_of(head));
        }
    }

    // Merges the partials of work items over several splits, in ascending order.
    void merge(layer_id layer, const query_tile& tile, std::size_t kv_head) {
        if (tile.partials == query_tile::none)
            return;
        const query_rows& queries = parts_[tile.part].queries;
        const std::size_t group = shape_.group(), splits = attention_plan::splits(tile.end);
        for (std::size_t i = 0; i < tile.rows * group; ++i) {
            float* partials = partials_of(kv_head) + (tile.partials + i * splits) * state();
            const softmax_state all(partials, width());
            for (std::size_t s = 1; s < splits; ++s)
                all.merge({partials + s * state(), width()});
            const std::size_t head = kv_head * group + i % group;
            if (shape_.sinks != nullptr)
                all.add_sink(shape_.sinks[std::size_t{index_of(layer)} * shape_.heads + head]);
            float* const out = queries.out + (tile.first + i / group) * queries.out_stride + head * shape_.head_dim;
            all.finish(shape_.head_dim, out);
            if constexpr (page_writer<Codec>)
                source_.codec->inverse_transform({out, shape_.head_dim});
        }
    }

    attention_shape shape_;
    page_source<Codec, Storage> source_;
    std::vector<attention_part> parts_;
    attention_plan plan_;
    std::size_t work_ = 0; // approximate number of multiply-adds
    std::size_t head_dim_ = 0;
    std::vector<attention_scratch> scratch_; // by thread
    aligned_vector<float> partials_;         // (kv_heads, queries and their splits, state)
};

}} // namespace kvcache
