// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/attention_worker.hpp>
#include <kvcache/attention/softmax_state.hpp>
#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Causal attention of a batch: query rows of many sequences over their pages, on all threads. Pages that sequences
/// share are read once. The result of a row is bit-identical to the result it has alone on one thread.
template <codec_state Codec, storage_state Storage>
class batch_attention {
public:
    using part = attention_part<Codec, Storage>;

    /// Plans the attention of a batch, for any number of layers. Reuses the memory of earlier batches. Requires: all
    /// parts have one codec and one storage, since pages are shared by their ids; page tables and the objects that the
    /// parts point to stay unchanged until the next `plan`.
    void plan(const attention_shape& shape, std::span<const part> parts, const thread_pool& threads) {
        expects(std::ranges::all_of(parts,
                                    [&](const part& one) {
                                        return one.pages.codec == parts.front().pages.codec &&
                                               one.pages.storage == parts.front().pages.storage;
                                    }),
                "the parts of a batch have one codec and one storage");
        shape_ = shape;
        parts_.assign(parts.begin(), parts.end());
        planned_.clear();
        work_ = 0;
        for (const part& one : parts_) {
            planned_.push_back(
                {one.pages.table, one.asked.position, one.asked.rows, one.asked.positions, one.pages.spliced});
            const std::size_t seen = one.asked.rows > 0 ? one.asked.position_of(one.asked.rows - 1) + 1 : 0;
            work_ += one.asked.rows * seen * shape.heads * shape.head_dim;
        }
        const bool alone = work_ < thread_pool::min_parallel_work;
        plan_.build(planned_, shape.group(), shape.kv_heads, alone ? 1 : threads.threads());
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
        const auto jobs = plan_.jobs();
        threads.parallel_for_worker(
            jobs.size() * shape_.kv_heads, work_, [&](std::size_t worker, std::size_t begin, std::size_t end) {
                detail::attention_worker<Codec, Storage> walk(shape_, parts_, plan_.runs(), scratch_[worker]);
                for (std::size_t j = begin; j < end; ++j) {
                    const std::size_t head = j % shape_.kv_heads;
                    walk.run(jobs[j / shape_.kv_heads], plan_.segments(), layer,
                             head_id{static_cast<std::uint32_t>(head)}, partials_of(head));
                }
            });
        if (plan_.partials() > 0)
            threads.parallel_for(plan_.runs().size() * shape_.kv_heads, partials_.size(),
                                 [&](std::size_t begin, std::size_t end) {
                                     for (std::size_t j = begin; j < end; ++j)
                                         merge(plan_.runs()[j / shape_.kv_heads], j % shape_.kv_heads);
                                 });
    }

private:
    [[nodiscard]] std::size_t width() const noexcept { return padded_head_dim(shape_.head_dim); }
    [[nodiscard]] std::size_t state() const noexcept { return softmax_state::numbers(width()); }
    [[nodiscard]] float* partials_of(std::size_t head) { return partials_.data() + head * plan_.partials() * state(); }

    // Merges the partials of work items over several splits, in ascending order.
    void merge(const query_group& run, std::size_t kv_head) {
        if (run.partials == query_group::none)
            return;
        const query_rows& asked = parts_[run.part].asked;
        const std::size_t group = shape_.group(), splits = attention_plan::splits(run.end);
        for (std::size_t i = 0; i < run.rows * group; ++i) {
            float* partials = partials_of(kv_head) + (run.partials + i * splits) * state();
            const softmax_state all(partials, width());
            for (std::size_t s = 1; s < splits; ++s)
                all.merge({partials + s * state(), width()});
            float* const out = asked.out + (run.first + i / group) * asked.out_stride +
                               (kv_head * group + i % group) * shape_.head_dim;
            all.finish(shape_.head_dim, out);
            if constexpr (page_writer<Codec>)
                parts_.front().pages.codec->inverse_transform({out, shape_.head_dim});
        }
    }

    attention_shape shape_;
    std::vector<part> parts_;
    std::vector<planned_queries> planned_;
    attention_plan plan_;
    std::size_t work_ = 0; // approximate number of multiply-adds
    std::size_t head_dim_ = 0;
    std::vector<attention_scratch> scratch_; // by thread
    aligned_vector<float> partials_;         // (kv_heads, queries and their splits, state)
};

} // namespace kvcache
