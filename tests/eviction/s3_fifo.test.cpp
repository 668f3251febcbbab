// SPDX-License-Identifier: MIT
#include <kvcache/eviction/s3_fifo.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

struct plain_s3_fifo {
    kv::eviction::s3_fifo policy;
    kv::eviction_capacity capacity;
    queue small = {}, main = {};
    std::map<kv::slot_id, int> uses = {};
    std::map<kv::slot_id, kv::eviction_entry> entries = {};
    std::set<kv::slot_id> settled = {};
    ghosts left = {};
    bool returns = false;

    void on_miss(const kv::eviction_entry& newcomer) { returns = left.take(newcomer.key); }
    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        entries[slot] = newcomer;
        uses[slot] = 0;
        settled.erase(slot);
        (returns ? main : small).push_front(slot);
        if (returns)
            settled.insert(slot);
    }
    void touch(kv::slot_id slot) { uses[slot] = std::min(uses[slot] + 1, 3); }
    void on_released(kv::slot_id slot) {
        if (settled.insert(slot).second)
            to_front(in(small, slot) ? small : main, slot);
    }
    void erase(kv::slot_id slot) {
        small.remove(slot);
        main.remove(slot);
    }
    void evict(kv::slot_id slot) {
        const std::size_t most = static_cast<std::size_t>(static_cast<double>(capacity.bytes) * policy.ghost_fraction);
        const kv::eviction_entry& gone = entries[slot];
        if (in(small, slot) && gone.bytes <= most) {
            while (left.bytes() + gone.bytes > most)
                left.keys.pop_back();
            left.keys.emplace_front(gone.key, gone.bytes);
        }
        erase(slot);
    }
    [[nodiscard]] bool main_is_full() const {
        std::size_t bytes = 0;
        for (const kv::slot_id slot : main)
            bytes += entries.at(slot).bytes;
        return bytes >
               capacity.bytes - static_cast<std::size_t>(static_cast<double>(capacity.bytes) * policy.small_fraction);
    }
    std::optional<kv::slot_id> victim(const auto&) {
        while (!small.empty() || !main.empty()) {
            if (main_is_full() || small.empty()) {
                const kv::slot_id slot = main.back();
                if (uses[slot]-- == 0)
                    return uses[slot] = 0, slot;
                to_front(main, slot);
            } else {
                const kv::slot_id slot = small.back();
                if (uses[slot] < static_cast<int>(policy.threshold))
                    return slot;
                uses[slot] = 0;
                settled.insert(slot);
                small.pop_back();
                main.push_front(slot);
            }
        }
        return std::nullopt;
    }
};

} // namespace

TEST_CASE("s3_fifo is two queues and a list of ghosts") {
    for (const kv::eviction::s3_fifo policy :
         {kv::eviction::s3_fifo{},
          kv::eviction::s3_fifo{.small_fraction = 0.4, .ghost_fraction = 0.5, .threshold = 1}}) {
        same_victims(policy,
                     [&](kv::eviction_capacity capacity) {
                         return plain_s3_fifo{policy, capacity};
                     },
                     {.who = holders::none});
        says_what_a_caller_does_wrong(policy);
    }
}

TEST_CASE("s3_fifo looks in both queues for one that may leave") {
    auto state = kv::eviction::s3_fifo{}.open({.slots = 10, .bytes = 100});
    for (std::uint32_t slot = 0; slot < 10; ++slot) {
        state.admit(kv::slot_id{slot}, {.key = slot, .bytes = 10});
        state.touch(kv::slot_id{slot});
        if (slot < 5)
            state.touch(kv::slot_id{slot});
    }
    for (std::uint32_t only = 0; only < 10; ++only)
        CHECK(state.victim([&](kv::slot_id slot) { return index_of(slot) == only; }) == kv::slot_id{only});
    CHECK_FALSE(state.victim([](kv::slot_id) { return false; }));
}
