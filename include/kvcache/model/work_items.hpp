// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/batch_attention.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/batch_slice.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// Attention of a forward pass, planned once for all layers.
template <class Lease>
class work_items {
public:
    /// Plans the attention of a batch. `rows`: all rows of the batch together; its position and row count are ignored.
    /// Requires: the leases and the memory that `rows` points to stay unchanged while it runs. Planning again reuses
    /// memory.
    void plan(const attention_shape& shape, std::span<const batch_slice<Lease>> batch, const query_rows& rows,
              const thread_pool& threads) {
        parts_.clear();
        limits_.clear();
        std::size_t scattered = 0;
        for (const auto& part : batch)
            scattered += part.rows.empty() ? 0 : part.tokens.size();
        limits_.reserve(scattered); // so that pointers into it stay valid
        query_rows asked = rows;
        for (const auto& part : batch) {
            asked.position = part.position(0);
            asked.rows = part.tokens.size();
            asked.positions = part.rows.empty() ? nullptr : limits_.data() + limits_.size();
            for (std::size_t i = 0; i < part.rows.size(); ++i)
                limits_.push_back(part.limit(i));
            parts_.push_back({part.lease->pages(), asked});
            asked.queries += asked.rows * asked.stride;
            asked.rotations += asked.rows * shape.head_dim;
            asked.out += asked.rows * asked.out_stride;
        }
        attention_.plan(shape, parts_, threads);
    }

    /// Writes the keys and values of a lease's row `to`, which is row `row` of the batch. Thread-safe.
    void write(const Lease& lease, std::size_t to, std::size_t /*row*/, layer_id layer, std::span<const float> keys,
               std::span<const float> values) const {
        lease.write(layer, to, keys, values);
    }

    /// Computes all rows in one layer. Requires: their keys and values are in the leases.
    void run(layer_id layer, thread_pool& threads) { attention_.run(layer, threads); }

private:
    template <class Codec, class Storage>
    static batch_attention<Codec, Storage> over(const paged_rows<Codec, Storage>&);
    using attention = decltype(over(std::declval<const Lease&>().pages()));

    std::vector<typename attention::part> parts_;
    std::vector<std::size_t> limits_; // last visible positions, for slices whose rows are not consecutive
    attention attention_;
};

} // namespace kvcache
