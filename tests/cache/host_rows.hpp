// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/platform/standard.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model.hpp"

namespace kvcache_test {

/// A host's tensor: in place of the keys and values of a row, the name of its prefix.
struct host_tensor {
    static constexpr std::size_t page_tokens = 16; // unless another number is given

    explicit host_tensor(std::size_t pages, std::size_t tokens = page_tokens) : rows(pages * tokens), stride(tokens) {}
    std::vector<std::uint64_t> rows;
    std::size_t stride;
    std::vector<kv::page_id> evicted = {};
    std::vector<kv::moved_entry> moved = {};

    std::uint64_t& at(kv::page_id page, std::size_t row) { return rows[kv::index_of(page) * stride + row]; }
    void copy(kv::page_id from, kv::page_id to) { std::copy_n(&at(from, 0), stride, &at(to, 0)); }

    [[nodiscard]] kv::storage::external blocks() {
        return {.copy =
                    [this](kv::page_id from, kv::page_id to) {
                        copy(from, to);
                        return true;
                    },
                .on_evict = [this](kv::page_id page) { evicted.push_back(page); },
                .on_move = [this](const kv::moved_entry& entry) { moved.push_back(entry); }};
    }
};

/// What the random model writes and reads.
struct host_rows {
    host_tensor* host;
    bool merge;

    template <class Lease>
    void write(const Lease& lease, const kv::page_shape&, std::size_t row, std::uint64_t name) const {
        const auto to = lease.slot_of(row);
        host->at(to.page, to.row) = name;
    }
    template <class Cache>
    [[nodiscard]] bool hold(const Cache&, std::span<const kv::page_entry> table,
                            std::span<const std::uint64_t> names) const {
        std::size_t position = 0;
        for (const kv::page_entry& entry : table)
            for (std::uint32_t row = entry.first; row < entry.first + entry.count && position < names.size(); ++row)
                if (host->at(entry.page, row) != names[position++])
                    return false;
        return position == names.size();
    }
    /// The pages stay, unless a merge is reported.
    [[nodiscard]] bool may_become(std::span<const kv::page_entry> before, std::span<const kv::page_entry> after) const {
        std::vector<kv::page_id> expected;
        for (std::size_t i = 0; i < after.size(); ++i)
            expected.push_back(before[i].page);
        if (merge)
            for (const kv::moved_entry& moved : std::exchange(host->moved, {})) {
                if (expected[moved.entry] != moved.from)
                    return false;
                expected[moved.entry] = moved.to;
            }
        return host->moved.empty() &&
               kvcache::ranges::equal(expected, after,
                                      [](kv::page_id page, const kv::page_entry& entry) { return page == entry.page; });
    }
};

} // namespace kvcache_test
