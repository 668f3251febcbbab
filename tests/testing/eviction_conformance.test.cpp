// SPDX-License-Identifier: MIT
#include <kvcache/eviction/all.hpp>
#include <kvcache/testing/eviction_conformance.hpp>

#include <cstdint>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

enum class fault { none, keeps_erased, ignores_holders, gives_up, takes_away };

/// Least recently used, with a fault.
template <fault Fault>
struct faulty {
    using role = kv::eviction_role;
    class state {
    public:
        explicit state(std::size_t slots)
            : inner_(kv::eviction::lru{}.open({.slots = slots})), present_(slots, false) {}
        void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
            if (!present_[index_of(slot)])
                inner_.admit(slot, newcomer);
            present_[index_of(slot)] = true;
        }
        void touch(kv::slot_id slot) {
            if (present_[index_of(slot)])
                inner_.touch(slot);
        }
        void erase(kv::slot_id slot) {
            if (Fault == fault::keeps_erased || !present_[index_of(slot)])
                return;
            inner_.erase(slot);
            present_[index_of(slot)] = false;
        }
        std::optional<kv::slot_id> victim(const auto& is_evictable) {
            int asked = 0;
            const auto found = inner_.victim([&](kv::slot_id slot) {
                const bool may = is_evictable(slot) || Fault == fault::ignores_holders;
                return may && (Fault != fault::gives_up || ++asked < 2);
            });
            if (Fault == fault::gives_up && found && index_of(*found) % 3 == 2)
                return std::nullopt;
            if (Fault == fault::takes_away && found)
                erase(*found);
            return found;
        }

    private:
        kv::eviction::lru::state inner_;
        std::vector<bool> present_;
    };
    [[nodiscard]] state open(kv::eviction_capacity capacity) const { return state(capacity.slots); }
};

/// Evicts nothing.
struct lasting {
    using role = kv::eviction_role;
    struct state {
        void admit(kv::slot_id, const kv::eviction_entry&) {}
        void touch(kv::slot_id) {}
        void erase(kv::slot_id) {}
        std::optional<kv::slot_id> victim(const auto&) { return std::nullopt; }
    };
    [[nodiscard]] state open(kv::eviction_capacity) const { return {}; }
};

/// A clock that advances when it is read.
struct counted_time {
    mutable std::uint64_t now = 0;
    std::uint64_t operator()() const { return now++ / 8; }
};

} // namespace

TEMPLATE_LIST_TEST_CASE("eviction policies pass the conformance tests", "", kv::eviction_policies) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        INFO("seed " << seed);
        CHECK(kv::testing::eviction_conformance(TestType{}, seed) == kv::testing::violations{});
    }
}

TEST_CASE("eviction policies pass the conformance tests with other options") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        INFO("seed " << seed);
        CHECK(kv::testing::eviction_conformance(kv::eviction::clock{.bits = 3}, seed).empty());
        CHECK(kv::testing::eviction_conformance(kv::eviction::slru{.segments = 1}, seed).empty());
        CHECK(kv::testing::eviction_conformance(
                  kv::eviction::s3_fifo{.small_fraction = 0.5, .ghost_fraction = 0.0, .threshold = 1}, seed)
                  .empty());
        CHECK(kv::testing::eviction_conformance(kv::eviction::arc{.step = 1}, seed).empty());
        CHECK(kv::testing::eviction_conformance(kv::eviction::lfu{.history = 2.0}, seed).empty());
        CHECK(
            kv::testing::eviction_conformance(kv::eviction::lirs{.passing_fraction = 0.5, .eager_demotion = true}, seed)
                .empty());
        CHECK(kv::testing::eviction_conformance(kv::eviction::w_tiny_lfu{.window = 0.5, .adaptive = false}, seed)
                  .empty());
        CHECK(
            kv::testing::eviction_conformance(kv::eviction::tail_safe_lru{.budget = 3, .next_turn = 1}, seed).empty());
        CHECK(kv::testing::eviction_conformance(
                  kv::eviction::prioritised<kv::eviction::s3_fifo>{.rule = {{{{.first = 1, .count = 2, .level = 1}}}}},
                  seed)
                  .empty());
        CHECK(kv::testing::eviction_conformance(
                  kv::eviction::expiring<kv::eviction::sieve, counted_time>{.time_to_live =
                                                                                std::chrono::milliseconds(50)},
                  seed)
                  .empty());
    }
}

TEST_CASE("the conformance tests of eviction find faults") {
    CHECK(kv::testing::eviction_conformance(faulty<fault::none>{}, 1).empty());
    CHECK(kv::testing::eviction_conformance(lasting{}, 1).empty());
    CHECK_FALSE(kv::testing::eviction_conformance(faulty<fault::keeps_erased>{}, 1).empty());
    CHECK_FALSE(kv::testing::eviction_conformance(faulty<fault::ignores_holders>{}, 1).empty());
    CHECK_FALSE(kv::testing::eviction_conformance(faulty<fault::gives_up>{}, 1).empty());
    CHECK_FALSE(kv::testing::eviction_conformance(faulty<fault::takes_away>{}, 1).empty());
}
