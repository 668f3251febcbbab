// SPDX-License-Identifier: MIT
#include <kvcache/eviction/slru.hpp>

#include "model.hpp"

using namespace eviction_model;

namespace {

struct plain_slru {
    std::size_t share;
    std::vector<queue> segments;
    std::map<kv::slot_id, std::size_t> bytes = {};

    [[nodiscard]] std::size_t filled(const queue& segment) const {
        std::size_t sum = 0;
        for (const kv::slot_id slot : segment)
            sum += bytes.at(slot);
        return sum;
    }
    void admit(kv::slot_id slot, const kv::eviction_entry& newcomer) {
        bytes[slot] = newcomer.bytes;
        for (queue& segment : segments)
            if (filled(segment) + newcomer.bytes <= share)
                return segment.push_front(slot);
        segments[0].push_front(slot);
    }
    void touch(kv::slot_id slot) {
        std::size_t at = 0;
        while (!in(segments[at], slot))
            ++at;
        if (at + 1 == segments.size())
            return to_front(segments[at], slot);
        segments[at].remove(slot);
        segments[at + 1].push_front(slot);
        for (std::size_t s = at + 1; s > 0; --s)
            while (filled(segments[s]) > share) {
                segments[s - 1].push_front(segments[s].back());
                segments[s].pop_back();
            }
    }
    void on_released(kv::slot_id slot) {
        for (queue& segment : segments)
            if (in(segment, slot))
                to_front(segment, slot);
    }
    void erase(kv::slot_id slot) {
        for (queue& segment : segments)
            segment.remove(slot);
    }
    std::optional<kv::slot_id> victim(const auto& is_evictable) {
        for (queue& segment : segments)
            if (const auto found = oldest(segment, is_evictable))
                return found;
        return std::nullopt;
    }
};

} // namespace

TEST_CASE("slru is a stack of lists of one share") {
    for (const std::uint32_t segments : {1u, 2u, 4u})
        same_victims(kv::eviction::slru{.segments = segments}, [&](kv::eviction_capacity capacity) {
            return plain_slru{capacity.bytes / segments, std::vector<queue>(segments)};
        });
    says_what_a_caller_does_wrong(kv::eviction::slru{});
}
