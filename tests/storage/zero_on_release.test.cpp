// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/storage/mapped.hpp>
#include <kvcache/storage/zero_on_release.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

/// Counts released blocks that contain a nonzero byte.
class suspicious : public kvcache::pmr::memory_resource {
public:
    int dirty = 0, back = 0;

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        return kvcache::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
        const std::span block(static_cast<const std::byte*>(at), bytes);
        dirty += kvcache::ranges::any_of(block, [](std::byte b) { return b != std::byte{}; });
        ++back;
        kvcache::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

[[maybe_unused]] bool zero(std::span<const std::byte> bytes) {
    return kvcache::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; });
}

} // namespace

#if KVCACHE_POSIX

TEST_CASE("released pages hold nothing, neighbours what they held") {
    auto state = kv::storage::zero_on_release<kv::storage::mapped>{}.open(3, 1000);
    for (std::uint32_t page = 0; page < 3; ++page) {
        REQUIRE(state.acquire(kv::page_id{page}));
        kvcache::ranges::fill(state.bytes(kv::page_id{page}), std::byte{9});
    }
    const auto middle = state.bytes(kv::page_id{1});
    state.release(kv::page_id{1});
    CHECK(zero(middle));
    CHECK(state.bytes(kv::page_id{0}).back() == std::byte{9});
    CHECK(state.bytes(kv::page_id{2}).front() == std::byte{9});
}

#endif

TEST_CASE("a storage gives its memory back zeroed, whether closed or moved over") {
    suspicious memory;
    {
        const kv::storage::zero_on_release<> policy{.inner = {.resource = &memory}};
        auto state = policy.open(4, 256), other = policy.open(4, 256);
        for (std::uint32_t page = 0; page < 4; ++page)
            for (auto* one : {&state, &other}) {
                REQUIRE(one->acquire(kv::page_id{page}));
                kvcache::ranges::fill(one->bytes(kv::page_id{page}), std::byte{1});
            }
        state.release(kv::page_id{2});
        auto moved = std::move(state);
        CHECK(moved.bytes(kv::page_id{3}).back() == std::byte{1});
        other = std::move(moved);
        CHECK(other.bytes(kv::page_id{0}).back() == std::byte{1});
    }
    CHECK(memory.back == 8);
    CHECK(memory.dirty == 0);
}
