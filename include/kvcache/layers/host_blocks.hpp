// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace layers {

/// The blocks of a group.
struct block_extent {
    std::size_t blocks = 0;   ///< Number of blocks.
    std::size_t bytes = 0;    ///< Of a block.
    std::uint32_t tokens = 0; ///< Rows of a block with keys and values.
};

/// Blocks of the host's own memory: it copies them, and learns which are freed. `pool` counts the groups with blocks.
class host_blocks {
public:
    static constexpr bool owned = false;
    using copy_function = std::function<bool(std::size_t group, std::uint32_t from, std::uint32_t to, std::size_t)>;
    using evict_function = std::function<void(std::size_t group, std::uint32_t block)>;

    host_blocks(copy_function copy, evict_function on_evict) : copy_(std::move(copy)), on_evict_(std::move(on_evict)) {}

    void add(std::size_t group, const layer_group&, const block_extent&) { groups_.push_back(group); }
    [[nodiscard]] static constexpr bool acquire(std::size_t, std::uint32_t, std::size_t) noexcept { return true; }
    void release(std::size_t pool, std::uint32_t block) const {
        if (on_evict_)
            detail::ignore_exceptions([&] { on_evict_(groups_[pool], block); });
    }
    /// Returns false if the host fails.
    [[nodiscard]] bool copy(std::size_t pool, std::uint32_t from, std::uint32_t to, std::size_t rows) const {
        bool copied = false;
        detail::ignore_exceptions([&] { copied = copy_(groups_[pool], from, to, rows); });
        return copied;
    }

private:
    copy_function copy_;
    evict_function on_evict_;
    std::vector<std::size_t> groups_; // by pool
};

}}} // namespace kvcache::layers
