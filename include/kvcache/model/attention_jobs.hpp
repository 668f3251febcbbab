// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/batch_attention.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/kernel/team.hpp>
#include <kvcache/model/batch_part.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The attention of a forward pass, planned once for all its layers.
template <class Lease>
class attention_jobs {
public:
    /// `rows`: all rows of the batch side by side, whose position and number are not read.
    /// Requires: the leases, and what `rows` points to, stay as they are while it attends. An object that deals again
    /// uses its memory again.
    void deal(const attention_shape& shape, std::span<const batch_part<Lease>> batch, const query_rows& rows,
              const team& threads) {
        parts_.clear();
        limits_.clear();
        std::size_t scattered = 0;
        for (const auto& part : batch)
            scattered += part.rows.empty() ? 0 : part.tokens.size();
        limits_.reserve(scattered); // so that they stay where they are
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
        attention_.deal(shape, parts_, threads);
    }

    /// Writes the keys and values of a lease's row `to`, which is row `row` of the batch. On any thread.
    void write(const Lease& lease, std::size_t to, std::size_t /*row*/, layer_id layer, std::span<const float> keys,
               std::span<const float> values) const {
        lease.write(layer, to, keys, values);
    }

    /// All rows in one layer, whose keys and values are in the leases.
    void attend(layer_id layer, team& threads) { attention_.attend(layer, threads); }

private:
    template <class Codec, class Storage>
    static batch_attention<Codec, Storage> over(const paged_rows<Codec, Storage>&);
    using attention = decltype(over(std::declval<const Lease&>().pages()));

    std::vector<typename attention::part> parts_;
    std::vector<std::size_t> limits_; // of the rows of parts that are not consecutive
    attention attention_;
};

} // namespace kvcache
