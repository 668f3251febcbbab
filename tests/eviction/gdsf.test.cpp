// SPDX-License-Identifier: MIT
#include <kvcache/eviction/gdsf.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

struct plain_gdsf {
    struct ranked {
        double rank = 0.0;
        int turn = 0;
        double uses = 1.0;
        kv::eviction_entry what = {};
    };
    std::map<kv::slot_id, ranked> entries;
    double clock = 0.0;
    int turn = 0;

    [[nodiscard]] static double worth(const ranked& one) {
        return one.uses * one.what.cost / static_cast<double>(one.what.bytes);
    }
    void rank(kv::slot_id slot, double since) {
        entries[slot].rank = since + worth(entries[slot]);
        entries[slot].turn = ++turn;
    }
    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        entries[slot] = {.what = newcomer};
        rank(slot, clock);
    }
    void touch(kv::slot_id slot) {
        ++entries[slot].uses;
        rank(slot, clock);
    }
    void on_released(kv::slot_id slot) { rank(slot, clock); }
    void erase(kv::slot_id slot) { entries.erase(slot); }
    void evict(kv::slot_id slot) {
        clock = entries[slot].rank;
        entries.erase(slot);
    }
    [[nodiscard]] auto lowest(const auto& among) {
        auto found = entries.end();
        for (auto at = entries.begin(); at != entries.end(); ++at)
            if (among(at->first) && (found == entries.end() || std::pair(at->second.rank, at->second.turn) <
                                                                   std::pair(found->second.rank, found->second.turn)))
                found = at;
        return found;
    }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        for (std::size_t met = 0; met < entries.size(); ++met) {
            const auto at = lowest([](kv::slot_id) { return true; });
            if (is_evictable(at->first))
                return at->first;
            rank(at->first, at->second.rank);
        }
        const auto at = lowest(is_evictable);
        return at == entries.end() ? std::nullopt : std::optional(at->first);
    }
};

} // namespace

TEST_CASE("gdsf ranks by uses, cost and bytes from a clock") {
    same_victims(kv::eviction::gdsf{}, [](kv::eviction_capacity) { return plain_gdsf{}; });
    says_what_a_caller_does_wrong(kv::eviction::gdsf{});
}
