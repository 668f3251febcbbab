// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_plan.hpp>
#include <kvcache/attention/attention_scratch.hpp>
#include <kvcache/attention/paged_rows.hpp>
#include <kvcache/attention/softmax_state.hpp>
#include <kvcache/attention/work_item.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache::inline KVCACHE_ABI::detail {

/// Queries of one work item on one KV head: those of its query groups, in the query block of a thread.
template <codec_state Codec, storage_state Storage>
class job_queries {
public:
    using part = attention_part<Codec, Storage>;

    /// Range of queries, from a row of one query group to before a row of another, for pages with one base.
    struct choice {
        std::size_t first_run = 0, first_row = 0;
        std::size_t last_run = 0, last_row = 0;
        std::int64_t base = 0;
        friend bool operator==(const choice&, const choice&) = default;
    };

    job_queries(const attention_shape& shape, std::span<const part> parts, std::span<const query_group> runs,
                attention_scratch& scratch)
        : shape_(shape), parts_(parts), runs_(runs), scratch_(scratch) {}

    /// Fills the block with the queries of a work item. `partials`: destination of the partials that are merged later.
    /// (query of the head, split, state)
    void take(const work_item& job, head_id kv_head, float* partials) {
        job_ = job;
        head_ = kv_head;
        scratch_.block.clear();
        const std::size_t state = softmax_state::numbers(padded_head_dim(shape_.head_dim));
        for (std::size_t r = job.first_run; r < job.last_run; ++r) {
            const query_group& run = runs_[r];
            const std::size_t splits = attention_plan::splits(run.end);
            for (std::size_t i = 0; i < run.rows * shape_.group(); ++i) {
                float* own = nullptr;
                if (run.partials != query_group::none) {
                    own = partials + (run.partials + i * splits) * state;
                    for (std::size_t s = job.first_split; s < std::min(job.last_split, splits); ++s)
                        softmax_state(own + s * state, padded_head_dim(shape_.head_dim)).clear();
                }
                scratch_.block.add(parts_[run.part].asked.position_of(run.first + i / shape_.group()), own);
            }
        }
    }

    /// Position of the first row of a query group.
    [[nodiscard]] std::size_t position_of(std::size_t run) const noexcept {
        return parts_[runs_[run].part].asked.position_of(runs_[run].first);
    }

    /// Selects the queries that attend next, rotated by (position - base) and scaled. They are rotated to their
    /// positions first, then back by the base.
    void load(const choice& some) {
        const std::size_t group = shape_.group();
        const std::size_t first = query_of(some.first_run) + some.first_row * group;
        const std::size_t last = query_of(some.last_run) + some.last_row * group;
        const bool moved = shape_.rotation != nullptr && some.base != 0;
        scratch_.block.select(first, last);
        if (moved)
            shape_.rotation->fill(-some.base, scratch_.rotation);
        for_queries(
            some.first_run, some.last_run + 1,
            [&](std::size_t q, const query_group& run, std::size_t row, std::size_t head) {
                if (q < first || q >= last)
                    return;
                const query_rows& asked = parts_[run.part].asked;
                const std::span from(asked.queries + row * asked.stride + head * shape_.head_dim, shape_.head_dim);
                if (shape_.rotation == nullptr)
                    std::ranges::copy(from, scratch_.query.begin());
                else
                    rotate_head(from, {asked.rotations + row * shape_.head_dim, shape_.head_dim}, scratch_.query);
                if (moved)
                    rotate_head(scratch_.query, scratch_.rotation, scratch_.query);
                if constexpr (page_writer<Codec>)
                    parts_.front().pages.codec->transform_key(scratch_.query);
                scratch_.block.template place<gives_codes<Codec>>(q, scratch_.query, shape_.scale);
            });
    }

    /// Finishes the queries: writes outputs, or leaves partials for the merge.
    void finish() {
        for_queries(job_.first_run, job_.last_run,
                    [&](std::size_t q, const query_group& run, std::size_t row, std::size_t head) {
                        if (run.partials != query_group::none) {
                            scratch_.block.leave(q);
                            return;
                        }
                        const query_rows& asked = parts_[run.part].asked;
                        float* const out = asked.out + row * asked.out_stride + head * shape_.head_dim;
                        scratch_.block.finish(q, out);
                        if constexpr (page_writer<Codec>)
                            parts_.front().pages.codec->inverse_transform({out, shape_.head_dim});
                    });
    }

private:
    // Calls body(query of the block, query group, row, head).
    template <class Body>
    void for_queries(std::size_t first_run, std::size_t last_run, Body body) {
        const std::size_t group = shape_.group(), first_head = index_of(head_) * group;
        for (std::size_t r = first_run; r < last_run; ++r) {
            const query_group& run = runs_[r];
            std::size_t q = query_of(r);
            for (std::size_t row = run.first; row < run.first + run.rows; ++row)
                for (std::size_t head = first_head; head < first_head + group; ++head)
                    body(q++, run, row, head);
        }
    }

    // First query of a query group, as an index into the block.
    [[nodiscard]] std::size_t query_of(std::size_t run) const noexcept {
        return runs_[run].queries - runs_[job_.first_run].queries;
    }

    const attention_shape& shape_;
    std::span<const part> parts_;
    std::span<const query_group> runs_;
    attention_scratch& scratch_;
    work_item job_;
    head_id head_ = {};
};

} // namespace kvcache::detail
