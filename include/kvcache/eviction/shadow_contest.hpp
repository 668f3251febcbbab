// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/mixed_bits.hpp>
#include <kvcache/eviction/shadow_cache.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

namespace kvcache::inline KVCACHE_ABI {

/// Which of several policies would have the most hits here of late: each keeps a shadow of the cache over the same
/// sample of the keys, smaller than the cache in the same proportion (Waldspurger et al., "Efficient MRC construction
/// with SHARDS", FAST 2015). Two are compared by the uses that one had and the other had not, halved from time to time;
/// another leads once it is ahead by more than chance.
///
/// Cost: a hash a use, and for a use in the sample one of each shadow.
template <eviction_policy... Policies>
class shadow_contest {
public:
    static constexpr std::size_t policies = sizeof...(Policies);

    /// Shadows of so many slots, at most those of the room. None: nothing is in the sample.
    shadow_contest(eviction_room room, std::size_t slots)
        : shadows_(shadow_cache<Policies>(Policies{}, part(room, slots))...),
          sampled_(room.slots == 0 ? 0 : (std::uint64_t{slots} << 32) / room.slots) {}

    /// Whether a key is in the sample.
    [[nodiscard]] bool samples(std::uint64_t key) const noexcept {
        return mixed_bits(key ^ 0x9e3779b97f4a7c15u) >> 32 < sampled_; // not the bits that shadows know keys by
    }

    /// An entry is used. `gone(policy, mark)` is called for those with a mark that leave a shadow for it.
    template <class Gone>
    void use(const entry& used, Gone&& gone) {
        if (!samples(used.key))
            return;
        const std::array<bool, policies> had = each([&](std::size_t policy, auto& shadow) {
            return shadow.use(used, [&](std::uint32_t mark) { gone(policy, mark); });
        });
        for (std::size_t a = 0; a < policies; ++a)
            for (std::size_t b = 0; b < policies; ++b)
                ahead_[a][b] += had[a] && !had[b] ? 1.0 : 0.0;
        if (++uses_ < 6 * std::max<std::size_t>(std::get<0>(shadows_).size(), 200))
            return;
        uses_ = 0;
        for (auto& row : ahead_)
            for (double& uses : row)
                uses *= 0.5;
    }
    void use(const entry& used) {
        use(used, [](std::size_t, std::uint32_t) {});
    }

    /// Marks an entry in all shadows, as shadow_cache does. Returns: by policy, whether it would be present.
    std::array<bool, policies> mark(std::uint64_t key, std::uint32_t with) {
        return each([&](std::size_t, auto& shadow) { return shadow.mark(key, with); });
    }

    /// The last holder of an entry lets go.
    void settle(std::uint64_t key) {
        if (samples(key))
            each([&](std::size_t, auto& shadow) { return shadow.settle(key), true; });
    }

    /// Who leads, after this one did. `cost(a)` is how many uses a change to another costs: it is to be ahead by these,
    /// too.
    template <class Cost>
    [[nodiscard]] std::size_t leader(std::size_t before, Cost&& cost) const {
        std::size_t next = before;
        double most = 0.0;
        for (std::size_t a = 0; a < policies; ++a) {
            const double won = ahead_[a][before], lost = ahead_[before][a];
            if (won - lost > most && won - lost > 1.5 * std::sqrt(won + lost) + 2.0 + cost(a)) {
                most = won - lost;
                next = a;
            }
        }
        return next;
    }
    [[nodiscard]] std::size_t leader(std::size_t before) const {
        return leader(before, [](std::size_t) { return 0.0; });
    }

private:
    [[nodiscard]] static eviction_room part(eviction_room room, std::size_t slots) {
        const double share = room.slots == 0 ? 0.0 : static_cast<double>(slots) / static_cast<double>(room.slots);
        return {slots, static_cast<std::size_t>(static_cast<double>(room.bytes) * share), false};
    }

    template <class Use>
    std::array<bool, policies> each(Use&& use) {
        std::size_t policy = 0;
        return std::apply([&](auto&... shadows) { return std::array<bool, policies>{use(policy++, shadows)...}; },
                          shadows_);
    }

    std::tuple<shadow_cache<Policies>...> shadows_;
    std::array<std::array<double, policies>, policies> ahead_ = {}; // uses that a had and b had not
    std::uint64_t sampled_;                                         // of 2^32
    std::size_t uses_ = 0;                                          // since they were last halved
};

} // namespace kvcache
