// SPDX-License-Identifier: MIT
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/prioritised.hpp>
#include <kvcache/eviction/s3_fifo.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

struct by_key {
    std::uint32_t operator()(const kv::eviction_entry& newcomer) const {
        return static_cast<std::uint32_t>(newcomer.key % 4);
    }
};

struct plain_prioritised {
    std::vector<queue> levels = std::vector<queue>(3);

    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        levels[std::min<std::size_t>(newcomer.key % 4, 2)].push_front(slot);
    }
    void touch(kv::slot_id slot) {
        for (queue& level : levels)
            if (in(level, slot))
                to_front(level, slot);
    }
    void on_released(kv::slot_id slot) { touch(slot); }
    void erase(kv::slot_id slot) {
        for (queue& level : levels)
            level.remove(slot);
    }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        for (queue& level : levels)
            if (const auto found = oldest(level, is_evictable))
                return found;
        return std::nullopt;
    }
};

} // namespace

TEST_CASE("prioritised is a policy for each level") {
    same_victims(kv::eviction::prioritised<kv::eviction::lru, by_key>{.levels = 3},
                 [](kv::eviction_capacity) { return plain_prioritised{}; });
}

TEST_CASE("the first pages of every prompt can be kept longest") {
    auto state =
        kv::eviction::prioritised<kv::eviction::s3_fifo>{.rule = {{{{.first = 0, .count = 2, .level = 1}}}}}.open(
            {.slots = 4, .bytes = 4});
    for (std::uint32_t depth = 0; depth < 4; ++depth)
        state.admit(kv::slot_id{depth}, {.key = depth, .bytes = 1, .depth = depth});
    for (const std::uint32_t next : {2u, 3u, 0u, 1u}) {
        const auto found = state.victim([](kv::slot_id) { return true; });
        REQUIRE(found == kv::slot_id{next});
        kv::evict(state, *found);
    }
}
