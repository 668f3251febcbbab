// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/batch_attention.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/batch_slice.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Attention of a forward pass on the CPU, planned once for all layers.
template <class Lease>
class host_attention {
public:
    /// Plans the attention of a batch. `rows`: all rows of the batch together; its position and row count are ignored.
    /// Requires: the leases are of one cache; they and the memory that `rows` points to stay unchanged while it runs.
    /// Planning again reuses memory.
    void plan(const attention_shape& shape, std::span<const batch_slice<Lease>> batch, const query_rows& rows,
              const thread_pool& threads) {
        expects(std::ranges::all_of(
                    batch, [&](const auto& part) { return &part.lease->storage() == &batch.front().lease->storage(); }),
                "the leases of a batch are of one cache");
        parts_.clear();
        limits_.clear();
        std::size_t scattered = 0;
        for (const auto& part : batch)
            scattered += part.rows.empty() ? 0 : part.tokens.size();
        limits_.reserve(scattered); // so that pointers into it stay valid
        query_rows queries = rows;
        for (const auto& part : batch) {
            queries.position = part.position(0);
            queries.rows = part.tokens.size();
            queries.positions = part.rows.empty() ? nullptr : limits_.data() + limits_.size();
            for (std::size_t i = 0; i < part.rows.size(); ++i)
                limits_.push_back(part.limit(i));
            parts_.push_back({part.lease->pages(), queries});
            queries.data += queries.rows * queries.stride;
            queries.rotations += queries.rows * shape.head_dim;
            queries.out += queries.rows * queries.out_stride;
        }
        attention_.plan(shape, batch.empty() ? source() : source(*batch.front().lease), parts_, threads);
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
    static batch_attention<Codec, Storage> over(const page_source<Codec, Storage>&);
    using source = decltype(page_source(std::declval<const Lease&>()));

    std::vector<attention_part> parts_;
    std::vector<std::size_t> limits_; // last visible positions, for slices whose rows are not consecutive
    decltype(over(std::declval<source>())) attention_;
};

}} // namespace kvcache
