// SPDX-License-Identifier: MIT
// A stranger's eviction policy, hash and storage, each in fewer than 25 lines: they pass the conformance tests and make
// a cache.
#include <kvcache/kvcache.hpp>
#include <kvcache/testing.hpp>

namespace mine {

/// The entry that was used last leaves first.
struct most_recent {
    using role = kvcache::eviction_role;
    struct state {
        kvcache::eviction::slot_lists queue;
        void admit(kvcache::slot_id slot, const kvcache::eviction_entry&) { queue.push_front(slot, 0); }
        void touch(kvcache::slot_id slot) { queue.move_to_front(slot, 0); }
        void erase(kvcache::slot_id slot) { queue.remove(slot); }
        template <class IsEvictable>
        std::optional<kvcache::slot_id> victim(IsEvictable&& is_evictable) {
            std::optional<kvcache::slot_id> newest;
            if (!queue.empty(0))
                for (auto slot = queue.back(0); !queue.ends(slot); slot = queue.newer(slot))
                    if (is_evictable(slot))
                        newest = slot;
            return newest;
        }
    };
    [[nodiscard]] state open(kvcache::eviction_capacity capacity) const { return {{capacity.slots, 1}}; }
};

/// FNV-1a over the tokens, one for each half of a name.
struct fnv {
    using role = kvcache::hash_role;
    struct state {
        kvcache::digest start;
        [[nodiscard]] kvcache::digest root() const { return start; }
        [[nodiscard]] kvcache::digest chain(kvcache::digest name, std::span<const kvcache::token_id> run) const {
            for (const std::byte one : std::as_bytes(run)) {
                name.low = (name.low ^ static_cast<std::uint64_t>(one)) * 0x100000001b3;
                name.high = (name.high ^ (name.low >> 32)) * 0x100000001b3;
            }
            return name;
        }
    };
    [[nodiscard]] state open(const kvcache::identity& id) const { return {digest_of(id)}; }
};

/// Memory for each page by itself, and only while it is used.
struct one_by_one {
    using role = kvcache::storage_role;
    struct state {
        std::size_t size;
        std::vector<kvcache::aligned_vector<std::byte>> pages;
        [[nodiscard]] bool acquire(kvcache::page_id page) {
            pages[index_of(page)].resize(size);
            return true;
        }
        void release(kvcache::page_id page) noexcept { pages[index_of(page)] = {}; }
        [[nodiscard]] std::span<std::byte> bytes(kvcache::page_id page) const {
            const auto& own = pages[index_of(page)];
            return {const_cast<std::byte*>(own.data()), own.size()};
        }
    };
    [[nodiscard]] state open(std::size_t pages, std::size_t bytes) const {
        return {bytes, std::vector<kvcache::aligned_vector<std::byte>>(pages)};
    }
};

} // namespace mine

int main() {
    namespace testing = kvcache::testing;
    std::size_t broken = testing::eviction_conformance(mine::most_recent{}, 1).size();
    broken += testing::hash_conformance(mine::fnv{}, 1).size();
    broken += testing::storage_conformance(mine::one_by_one{}, 1).size();

    constexpr kvcache::page_shape shape{.layers = 2, .kv_heads = 2, .head_dim = 32, .tokens = 16};
    auto cache = kvcache::make_cache({.shape = shape, .limit = {.bytes = 1 << 20}}, mine::one_by_one{},
                                     mine::most_recent{}, mine::fnv{});
    const auto sequence = cache.open();
    return broken == 0 && cache.check() ? 0 : 1;
}
