// SPDX-License-Identifier: MIT
// A host of layer groups whose pages and blocks are in the cache's own memory, which is counted.
#pragma once

#include <kvcache/cache.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/tier.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "layers/group_model.hpp"
#include <catch2/catch.hpp>

namespace kvcache_test {

/// A host that writes the names of rows as eight numbers, which every number format has exactly.
class owned_host {
public:
    explicit owned_host(kv::cache_layout layout) : layout_(std::move(layout)) {}

    [[nodiscard]] const kv::cache_layout& layout() const { return layout_; }

    template <class Cache>
    [[nodiscard]] std::uint64_t read(const Cache& cache, std::size_t group, std::int32_t block, std::size_t row) {
        const auto& blocks = cache.core().pages().blocks();
        const auto number = static_cast<std::uint32_t>(block);
        if (group == blocks.paged())
            return name_at(cache.codec(), cache.storage().bytes(kv::page_id{number}), row);
        const std::size_t pool = blocks.pool_of(group);
        const std::span<const std::byte> bytes = blocks.memory().bytes(pool, number);
        if (layout_.groups[group].has_rows())
            return name_at(blocks.memory().codec(pool), bytes, row);
        std::uint64_t name = 0;
        std::memcpy(&name, bytes.data(), sizeof name);
        return name;
    }
    template <class Lease>
    void write(const Lease& lease, std::size_t group, std::size_t row, std::int32_t, std::uint64_t name) {
        std::array<float, 8> keys = {}, values = {};
        for (std::size_t i = 0; i < keys.size(); ++i) {
            keys[i] = static_cast<float>(name >> (8 * i) & 0xff);
            values[i] = -keys[i];
        }
        for (std::uint32_t layer = 0; layer < layout_.groups[group].layers; ++layer)
            lease.write(group, kv::layer_id{layer}, row, keys, values);
    }
    template <class Cache, class Lease>
    void write_state(Cache&, const Lease& lease, std::size_t group, std::uint32_t block, std::uint64_t name) {
        const std::span<std::byte> bytes = lease.state_of(group, block);
        REQUIRE((layout_.groups[group].opaque || bytes.size() == layout_.groups[group].state_bytes));
        std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
        std::memcpy(bytes.data(), &name, sizeof name);
    }

    std::size_t fails_next = 0;

private:
    template <class Codec>
    [[nodiscard]] static std::uint64_t name_at(const Codec& codec, std::span<const std::byte> bytes, std::size_t row) {
        const kv::page_row at{kv::layer_id{0}, kv::head_id{0}, static_cast<std::uint32_t>(row)};
        const auto *keys = codec.key_row(bytes, at), *values = codec.value_row(bytes, at);
        std::uint64_t name = 0;
        for (std::size_t i = 0; i < 8; ++i) {
            if (kv::widen(values[i]) != -kv::widen(keys[i]))
                return 0;
            name |= static_cast<std::uint64_t>(kv::widen(keys[i])) << (8 * i);
        }
        return name;
    }

    kv::cache_layout layout_;
};

/// Counts the bytes that are allocated from it.
class counting_resource : public kv::pmr::memory_resource {
public:
    std::size_t bytes = 0, most = 0;

private:
    void* do_allocate(std::size_t size, std::size_t alignment) override {
        void* const made = kv::pmr::new_delete_resource()->allocate(size, alignment);
        most = std::max(most, bytes += size);
        std::memset(made, 0xff, size); // not a number in every format
        return made;
    }
    void do_deallocate(void* memory, std::size_t size, std::size_t alignment) override {
        bytes -= size;
        kv::pmr::new_delete_resource()->deallocate(memory, size, alignment);
    }
    [[nodiscard]] bool do_is_equal(const kv::pmr::memory_resource& other) const noexcept override {
        return this == &other;
    }
};

/// A campaign over memory of the cache, which counts it. `loaded` grows by the tokens that came from the tier.
template <class Codec, class Tier = kv::tier::none>
outcome play_owned(std::uint64_t seed, Codec codec, Tier tier = {}, std::size_t* loaded = nullptr,
                   std::size_t* fails_at = nullptr) {
    seeded random(seed);
    owned_host host(layout_of(random));
    while (!host.layout().check())
        host = owned_host(layout_of(random));
    INFO("seed " << seed << "\n" << host.layout().describe());
    counting_resource memory;
    outcome met;
    const std::size_t bytes = (1 + random(12)) * 8192;
    {
        auto cache = kv::open_cache(
            {.limit = {.bytes = bytes}, .id = {.rope = "none"}, .merge_equal_pages = random(3) > 0},
            kv::storage::heap{.resource = &memory}, codec,
            kv::layers::grouped{.layout = host.layout(), .keep_released = random(4) > 0}, kv::eviction::lru{}, tier);
        if (!cache)
            return met; // less than one page
        campaign<std::remove_reference_t<decltype(*cache)>, owned_host> all{random, host, *cache, 20 + random(100)};
        all.fails_at = fails_at;
        met = all.play(100);
        CHECK(memory.bytes == 0); // all is evicted, and freed
        if constexpr (!std::is_same_v<Tier, kv::tier::none>) {
            const kv::tier_stats stats = kv::tier_stats_of(*cache);
            CHECK(stats.refused == 0);
            CHECK((fails_at != nullptr || stats.failed == 0));
            *loaded += stats.loaded_tokens;
        }
    }
    CHECK(memory.most <= bytes);
    return met;
}

} // namespace kvcache_test
