// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/chain_copies.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/memory.hpp>
#include <kvcache/tier/run.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// When the second tier of a chain gets a record.
enum class chain_write {
    through,      ///< With the first tier.
    back,         ///< Later, copied from the first tier in the background: after a delay, at a flush and at the end.
    second_touch, ///< In the background, after its first read from the first tier.
};

/// Two tiers, read in order: for example a disk before a server. A record found only in the second is put into the
/// first when it is read. A tier that fails is skipped. Longer chains nest: chain{memory<>{}, chain{lmdb<>{},
/// redis{}}}.
template <tier_policy First = memory<>, tier_policy Second = memory<>>
struct chain {
    using role = tier_role;
    First first = {};
    Second second = {};
    chain_write write = chain_write::through;
    std::chrono::milliseconds delay = std::chrono::seconds(1); ///< `back`: delay before a record is copied.
    std::size_t waiting = 4096; ///< Maximum records that wait for the second tier; more are dropped.
    class state;
    [[nodiscard]] state open() const { return state(*this); }
};

template <tier_policy First, tier_policy Second>
chain(First, Second) -> chain<First, Second>;
template <tier_policy First, tier_policy Second>
chain(First, Second, chain_write) -> chain<First, Second>;

template <tier_policy First, tier_policy Second>
class chain<First, Second>::state {
public:
    explicit state(const chain& how) : held_(std::make_unique<held>(how)) {}

    template <class Use>
    [[nodiscard]] result<bool> read(const sha256_digest& name, Use&& use) {
        const auto given = read_run(std::span(&name, 1), [&](std::size_t, std::span<const std::byte> bytes) {
            use(bytes);
            return true;
        });
        if (!given)
            return given.error();
        return *given == 1;
    }

    /// Like read_run of a run tier; each record may be in either tier. Errors: the error of the tier that failed
    /// last, if neither passed a record.
    template <class Use>
    [[nodiscard]] result<std::size_t> read_run(std::span<const sha256_digest> names, Use&& use) {
        std::size_t at = 0;
        bool more = true;
        result<void> fault;
        const auto go_on = [&](auto& tier, bool first) {
            const std::size_t there = tier::count_prefix_hits(tier, names.subspan(at));
            const auto given =
                tier::read_run(tier, names.subspan(at, there), [&](std::size_t i, std::span<const std::byte> bytes) {
                    more = use(at + i, bytes);
                    if (first)
                        held_->copies.touch(names[at + i]);
                    else
                        promote(names[at + i], bytes);
                    return more;
                });
            if (!given)
                fault = given.error();
            at += given ? *given : 0;
            return more && at < names.size();
        };
        for (std::size_t before = names.size(); before != at;) {
            before = at;
            if (!go_on(held_->first, true) || !go_on(held_->second, false))
                break;
        }
        held_->hits += at;
        held_->misses += more && at < names.size();
        if (at == 0 && !fault)
            return fault.error();
        return at;
    }
    [[nodiscard]] std::size_t count_prefix_hits(std::span<const sha256_digest> names) {
        std::size_t at = 0;
        for (std::size_t before = names.size(); before != at && at < names.size();) {
            before = at;
            at += tier::count_prefix_hits(held_->first, names.subspan(at));
            at += tier::count_prefix_hits(held_->second, names.subspan(at));
        }
        return at;
    }

    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        const auto first = held_->first.put(entry, pieces);
        if (held_->how.write != chain_write::through) {
            held_->copies.put(entry);
            return first;
        }
        const auto second = held_->second.put(entry, pieces);
        return first ? second : first;
    }
    [[nodiscard]] bool contains(const sha256_digest& name) {
        return held_->first.contains(name) || held_->second.contains(name);
    }
    [[nodiscard]] result<void> erase(const sha256_digest& name) {
        held_->copies.forget(name);
        const auto first = held_->first.erase(name), second = held_->second.erase(name);
        return first ? second : first;
    }
    [[nodiscard]] result<void> flush() {
        const auto first = held_->first.flush();
        held_->copies.flush();
        const auto second = held_->second.flush();
        return first ? second : first;
    }
    /// Returns what is wrong if neither tier can be used.
    [[nodiscard]] result<void> status() const {
        const auto first = held_->first.status();
        return first ? first : held_->second.status();
    }
    /// Returns the sums of both tiers, except for hits and misses, which are those of the chain; see first() and
    /// second().
    [[nodiscard]] tier_counts counts() const {
        tier_counts all = held_->first.counts();
        const tier_counts more = held_->second.counts();
        all.records += more.records, all.bytes += more.bytes;
        all.hits = held_->hits, all.misses = held_->misses;
        all.written += more.written, all.bytes_written += more.bytes_written;
        all.evicted += more.evicted, all.dropped += more.dropped + held_->copies.dropped();
        all.failures += more.failures;
        return all;
    }

    [[nodiscard]] bool is_null() const noexcept {
        return kvcache::is_null(held_->first) && kvcache::is_null(held_->second);
    }
    [[nodiscard]] std::size_t parallel_reads() const noexcept {
        return std::min(max_parallel_reads(held_->first), max_parallel_reads(held_->second));
    }

    [[nodiscard]] auto& first() noexcept { return held_->first; }
    [[nodiscard]] auto& second() noexcept { return held_->second; }

private:
    using first_state = decltype(std::declval<const First&>().open());
    using second_state = decltype(std::declval<const Second&>().open());

    // Copies a record of the second tier to the first.
    void promote(const sha256_digest& name, std::span<const std::byte> bytes) {
        const std::span<const std::byte> pieces[] = {bytes};
        static_cast<void>(held_->first.put(held_->copies.entry_of(name), pieces)); // the first tier counts rejections
    }

    struct held {
        explicit held(const chain& options)
            : how(options),
              first(options.first.open()),
              second(options.second.open()),
              copies(first, second, options.write == chain_write::through ? 0 : options.waiting,
                     options.write == chain_write::back ? options.delay : std::chrono::milliseconds(0),
                     options.write == chain_write::second_touch) {}
        const chain how;
        first_state first;
        second_state second;
        std::atomic<std::uint64_t> hits{0}, misses{0};
        chain_copies<first_state, second_state> copies;
    };
    std::unique_ptr<held> held_;
};

static_assert(tier_policy<chain<>>);

}}} // namespace kvcache::tier
