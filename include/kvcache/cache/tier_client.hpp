// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/cache/handle.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/record/page_records.hpp>
#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/run.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A mutex for members of classes that are moved before threads share them: the new object gets a mutex of its own.
class movable_mutex : public std::mutex {
public:
    movable_mutex() = default;
    movable_mutex(movable_mutex&&) noexcept : std::mutex() {}
    movable_mutex& operator=(movable_mutex&&) = delete;
    ~movable_mutex() = default;
};

/// A contiguous part of a run of pages, filled by one thread.
struct placed_part {
    std::size_t first = 0;   ///< First page, counted from the start of the run.
    std::size_t pages = 0;   ///< Number of pages to read.
    std::size_t placed = 0;  ///< Number of leading pages that are in place and sound.
    result<void> read = {};  ///< Error of the tier, if any.
    result<void> sound = {}; ///< Error of the record after those placed, if any.
    std::exception_ptr thrown = {};
};

/// The pages of a cache as records of a tier. Writing: records are named, authenticated and handed over. Reading:
/// records are copied into a lease and verified there.
template <tier_state Tier>
class tier_records {
public:
    tier_records(Tier tier, const identity& id, const std::string& secret)
        : tier_(std::move(tier)), secret_(secret), auth_(secret) {
        set(0, id);
    }

    [[nodiscard]] Tier& tier() noexcept { return tier_; }
    [[nodiscard]] const Tier& tier() const noexcept { return tier_; }
    [[nodiscard]] const record_authenticator& auth() const noexcept { return auth_; }

    /// Sets the identity of a tenant; of the cache itself for 0. Throws: bad_alloc.
    void set(std::size_t tenant, const identity& id) {
        auto names = std::make_unique<record_names>(id, secret_);
        const std::lock_guard guard(lock_);
        names_.resize(std::max(names_.size(), tenant + 1));
        names_[tenant] = std::move(names);
    }
    [[nodiscard]] const record_names& names_of(std::uint32_t tenant) const {
        const std::lock_guard guard(lock_);
        return *names_[tenant];
    }

    /// Hands over a page of a sequence of `end` exact tokens. Errors: the tier's. Throws: bad_alloc.
    template <class Core>
    [[nodiscard]] result<void> hand_over(const Core& core, const page_entry& entry, std::size_t end,
                                         const prompt_page& page, const record_names& names) {
        page_parts<Core> parts(core);
        parts.add(entry, page.index, end, 0);
        const record_writer made({record_kind::page, page.first(), page.tokens, page.before, page.name, parts.parts()},
                                 names, auth_);
        return tier_.put({.name = page.name,
                          .cost = core.prefill_seconds(page.first(), page.tokens.size()),
                          .depth = static_cast<std::uint32_t>(page.index)},
                         made.pieces());
    }

    /// Copies the pages of a run into a lease. A long run is divided among as many threads as the tier can use; each
    /// copies contiguous pages until one is missing or not sound. Throws: bad_alloc.
    template <class Core>
    [[nodiscard]] std::vector<placed_part> place(const open_lease<Core>& lease, const record_names& names,
                                                 const page_run& run) {
        const std::size_t pages = run.pages();
        const std::size_t enough = pages * lease.core.codec().page_bytes() / worth_a_thread;
        const std::size_t count =
            std::clamp<std::size_t>(enough, 1, std::max<std::size_t>(max_parallel_reads(tier_), 1));
        std::vector<placed_part> parts(std::min(count, pages));
        for (std::size_t i = 0; i < parts.size(); ++i) {
            parts[i].first = pages * i / parts.size();
            parts[i].pages = pages * (i + 1) / parts.size() - parts[i].first;
        }
        const auto fill = [&](placed_part& part) noexcept {
            part.thrown = detail::exception_of([&] { place<typename Core::codec_type>(part, lease, names, run); });
        };
        {
            struct joined_threads : std::vector<std::thread> {
                ~joined_threads() {
                    for (std::thread& each : *this)
                        each.join();
                }
            } helpers;
            helpers.reserve(parts.size() - 1);
            bool more = true; // whether more threads can be started
            while (more && helpers.size() + 1 < parts.size())
                more = detail::completes<std::system_error>(
                    [&] { helpers.emplace_back([&fill, &own = parts[helpers.size() + 1]] { fill(own); }); });
            fill(parts.front());
            for (std::size_t i = helpers.size() + 1; i < parts.size(); ++i)
                fill(parts[i]);
        }
        for (const placed_part& part : parts)
            if (part.thrown)
                std::rethrow_exception(part.thrown);
        return parts;
    }

private:
    // Starting a thread takes tens of microseconds; reading and verifying this many bytes takes a millisecond.
    static constexpr std::size_t worth_a_thread = std::size_t{4} << 20;

    template <class Codec, class Lease>
    void place(placed_part& part, const Lease& lease, const record_names& names, const page_run& run) {
        const auto read = tier::read_run(tier_, run.names(part.first, part.pages),
                                         [&](std::size_t i, std::span<const std::byte> bytes) {
                                             const std::size_t at = part.first + i;
                                             part.sound = put_in_place<Codec>(lease, at, names, bytes, run.page(at));
                                             part.placed += part.sound.has_value();
                                             return part.sound.has_value();
                                         });
        if (!read)
            part.read = read.error();
    }

    // Copies a record into page `at` of a lease, if it is the record of `page`.
    template <class Codec, class Lease>
    [[nodiscard]] result<void> put_in_place(const Lease& lease, std::size_t at, const record_names& names,
                                            std::span<const std::byte> bytes, const prompt_page& page) const {
        const auto read = record::parse(bytes, auth_);
        if (!read)
            return read.error();
        if (auto own = read->made_under(names); !own)
            return own;
        if (auto right = is_record_of(*read, record_kind::page, page.name, page); !right)
            return right;
        return place_page<Codec>(*read, 0, lease, at, static_cast<std::uint32_t>(page.tokens.size()), auth_);
    }

    Tier tier_;
    std::string secret_;
    record_authenticator auth_;
    mutable movable_mutex lock_;                       // guards names_
    std::vector<std::unique_ptr<record_names>> names_; // by tenant
};

/// The blocks of layer groups as records of a tier: cache/block_records.hpp, which <kvcache/tier.hpp> includes.
template <class Core, tier_state Tier>
class block_records;

/// The tier operations of a core. After a commit, full pages are handed over. If a prompt is not wholly in memory,
/// records are copied into a lease, verified there and committed. A failure is counted, and is a miss. A refused record
/// is erased with those after it in its prompt, which may have the same fault; the prompt's pages are computed then,
/// and handed over anew. A null tier is never called.
template <tier_state Tier>
class tier_client {
public:
    tier_client(Tier tier, const identity& id, const std::string& secret) : records_(std::move(tier), id, secret) {}

    [[nodiscard]] Tier& tier() noexcept { return records_.tier(); }
    [[nodiscard]] const Tier& tier() const noexcept { return records_.tier(); }
    [[nodiscard]] const tier_records<Tier>& records() const noexcept { return records_; }

    /// Sets the identity of a tenant; of the cache itself for 0. Throws: bad_alloc.
    void set(std::size_t tenant, const identity& id) { records_.set(tenant, id); }

    [[nodiscard]] tier_stats stats() const {
        const tier_counts tier = records_.tier().counts();
        const std::lock_guard guard(lock_);
        tier_stats now = stats_;
        now.stored = tier.written;
        now.store_failures = tier.failures;
        return now;
    }

    /// Sets all counters to zero, but for those of the tier itself.
    void reset_stats() {
        const std::lock_guard guard(lock_);
        stats_ = {};
    }

    /// A sequence that shares the cached prefix of a prompt, after loading from the tier the pages that are not in
    /// memory. `plans`: see match_options. Requires: the tier is not null.
    template <class Core>
    [[nodiscard]] typename Core::match find(Core& core, std::uint32_t tenant, std::span<const token_id> tokens,
                                            bool plans) {
        // Layer groups continue where the plan begins, or earlier: what is found depends on it.
        const bool planned = plans && Core::grouped;
        auto known = core.match_in_memory(tenant, tokens, {.plans = planned, .emits = false});
        if (complete(core, known.found.cached_tokens, tokens.size() - (planned && !tokens.empty() ? 1 : 0))) {
            core.complete(known, plans && !planned);
            return known;
        }
        const std::size_t loaded = load_after(core, std::move(known.sequence), tenant, tokens);
        return core.match_in_memory(tenant, tokens, {.plans = plans, .loaded = loaded});
    }

    /// Loads the part of a prompt that the tier has and memory lacks. Returns the number of tokens, whose pages are
    /// then evictable.
    template <class Core>
    std::size_t prefetch(Core& core, std::uint32_t tenant, std::span<const token_id> tokens) {
        if (is_null(tier()))
            return 0;
        return load_after(core, core.match_in_memory(tenant, tokens, {.emits = false}).sequence, tenant, tokens);
    }

    /// Hands over the pages that a sequence has published since the last call, which are full and exact, unless the
    /// tier has them. If memory runs out, the rest waits for a later call.
    template <class Core>
    void store(Core& core, sequence_state& state) noexcept {
        if (state.offloaded.pages < state.published_pages && !is_null(tier()))
            hand_over(core, state);
    }

    /// Calls `change` with the counters.
    template <class Change>
    void note(Change change) {
        const std::lock_guard guard(lock_);
        change(stats_);
    }
    /// Counts a call of the tier that failed.
    void fail(error why) {
        note([&](tier_stats& s) { ++s.failed, s.last = std::move(why); });
    }
    /// Counts a record that is not sound, and erases it.
    void refuse(const sha256_digest& name, const error& why) {
        note([&](tier_stats& s) { ++s.refused, s.last = why; });
        erase(name);
    }

private:
    void erase(const sha256_digest& name) {
        if (auto erased = tier().erase(name); !erased)
            fail(erased.error());
    }

    template <class Core>
    void hand_over(Core& core, sequence_state& state) noexcept {
        const record_names& names = records_.names_of(state.tenant);
        const std::size_t page_tokens = core.shape().tokens;
        [[maybe_unused]] std::vector<sha256_digest> chain; // names of the prefixes before the pages, and of the last
        const bool done = detail::completes<std::bad_alloc>([&] {
            for (; state.offloaded.pages < state.published_pages; ++state.offloaded.pages) {
                prompt_page page{.index = state.offloaded.pages};
                page.tokens = std::span<const token_id>(state.tokens).subspan(page.index * page_tokens, page_tokens);
                page.before = page.index == 0 ? names.root() : state.offloaded.record;
                page.name = names.chain(page.before, page.tokens);
                if constexpr (Core::grouped) {
                    if (chain.empty())
                        chain.push_back(page.before);
                    chain.push_back(page.name);
                }
                if (!tier().contains(page.name)) {
                    const auto taken =
                        records_.hand_over(core, state.table[page.index], state.tokens.size(), page, names);
                    if (!taken)
                        fail(taken.error());
                    else
                        note([](tier_stats& s) { ++s.handed_over; });
                }
                state.offloaded.record = page.name;
            }
            if constexpr (Core::grouped)
                block_records<Core, Tier>(core, records_, names)
                    .hand_over(state, chain, [&](const result<void>& taken) {
                        if (!taken)
                            fail(taken.error());
                        else
                            note([](tier_stats& s) { ++s.handed_over; });
                    });
        });
        if (!done)
            note([](tier_stats& s) { ++s.failed; });
    }

    // Whether all whole pages of a prompt are in memory.
    template <class Core>
    [[nodiscard]] static bool complete(const Core& core, std::size_t known, std::size_t tokens) {
        return known / core.shape().tokens == tokens / core.shape().tokens;
    }

    // The tokens of a prompt whose pages are of use: a state after the last one is not, since that token is computed.
    template <class Core>
    [[nodiscard]] static std::size_t loadable(const Core& core, std::size_t tokens) {
        if constexpr (Core::grouped)
            return tokens - (core.pages().blocks().has_states() && tokens > 0 ? 1 : 0);
        else
            return tokens;
    }

    template <class Core>
    [[nodiscard]] std::size_t load_after(Core& core, typename Core::sequence known, std::uint32_t tenant,
                                         std::span<const token_id> tokens) {
        const std::size_t page_tokens = core.shape().tokens;
        known.truncate(known.size() / page_tokens * page_tokens);
        return load(core, known, tenant, tokens) * page_tokens;
    }

    // Appends the pages of `tokens` that the tier has to a sequence that is a prefix of them and ends at a page
    // boundary. Whole pages only. Returns the number of pages.
    template <class Core>
    [[nodiscard]] std::size_t load(Core& core, typename Core::sequence& after, std::uint32_t tenant,
                                   std::span<const token_id> tokens) {
        const std::size_t page_tokens = core.shape().tokens;
        const std::size_t first = after.size() / page_tokens, most = loadable(core, tokens.size()) / page_tokens;
        if (first >= most)
            return 0;
        note([](tier_stats& s) { ++s.asked; });
        std::size_t loaded = 0;
        if (!detail::completes<std::bad_alloc>([&] { loaded = load_run(core, after, tenant, tokens, first, most); }))
            note([](tier_stats& s) { ++s.failed; });
        return loaded;
    }

    // The same for pages [first, most).
    template <class Core>
    [[nodiscard]] std::size_t load_run(Core& core, typename Core::sequence& after, std::uint32_t tenant,
                                       std::span<const token_id> tokens, std::size_t first, std::size_t most) {
        const std::size_t page_tokens = core.shape().tokens;
        const record_names& names = records_.names_of(tenant);
        std::vector<sha256_digest> chain = {names.root()}; // by page: the name of the prefix before it
        for (std::size_t page = 0; page < most; ++page)
            chain.push_back(names.chain(chain.back(), tokens.subspan(page * page_tokens, page_tokens)));
        std::size_t pages = tier::count_prefix_hits(tier(), std::span<const sha256_digest>(chain).subspan(first + 1));
        if (pages > 0 && !worth_loading(pages, core.prefill_seconds(first * page_tokens, pages * page_tokens))) {
            note([](tier_stats& s) { ++s.slower; });
            return 0;
        }
        const auto blocks = block_records_of(core, names);
        if constexpr (Core::grouped)
            blocks->look(first, chain, pages);
        while (pages > 0) {
            if constexpr (Core::grouped)
                if ((pages = blocks->longest(pages)) == 0)
                    break;
            const auto run = tokens.subspan(first * page_tokens, pages * page_tokens);
            const page_run wanted{first, page_tokens, run, chain};
            const auto began = std::chrono::steady_clock::now();
            auto lease = core.reserve(after.state_in(core), run.size(), {.max_batch_tokens = 1, .whole = true});
            if (!lease) {
                note([](tier_stats& s) { ++s.no_room; });
                pages /= 2;
                continue;
            }
            const std::size_t placed = record_results(records_.place(lease->opened(), names, wanted),
                                                      std::span<const sha256_digest>(chain).subspan(first + 1, pages));
            if (placed < pages) {
                pages = placed; // the residual rows of a shorter run differ, so it is read again
                continue;
            }
            if constexpr (Core::grouped)
                if (!blocks->place(
                        lease->opened(), wanted, [&](const auto& name, const error& why) { refuse(name, why); },
                        [&](const error& why) { fail(why); }))
                    continue;
            lease->opened().commit_in_place(run);
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
            if constexpr (requires { tier().took(pages, took.count()); })
                tier().took(pages, took.count());
            note([&](tier_stats& s) { ++s.hits, s.loaded_tokens += run.size(); });
            return pages;
        }
        return 0;
    }

    // The records of blocks, where there are layer groups.
    template <class Core>
    [[nodiscard]] auto block_records_of(Core& core, const record_names& names) {
        if constexpr (Core::grouped)
            return std::make_unique<block_records<Core, Tier>>(core, records_, names);
        else
            return nullptr;
    }

    // Counts refused and failed records, and erases the first refused one and those after it. `names` are the records
    // of the run. Returns the number of leading pages that are in place.
    [[nodiscard]] std::size_t record_results(std::span<const placed_part> parts, std::span<const sha256_digest> names) {
        std::size_t leading = 0, bad = names.size();
        for (const placed_part& part : parts) {
            if (leading == part.first)
                leading += part.placed;
            if (!part.read)
                fail(part.read.error());
            if (part.sound)
                continue;
            note([&](tier_stats& s) { ++s.refused, s.last = part.sound.error(); });
            bad = std::min(bad, part.first + part.placed);
        }
        for (const sha256_digest& name : names.subspan(bad))
            erase(name);
        return leading;
    }

    // Whether the tier estimates that reading `pages` pages is faster than computing them.
    [[nodiscard]] bool worth_loading(std::size_t pages, double prefill_seconds) {
        if constexpr (requires { tier().worth(pages, prefill_seconds); })
            return tier().worth(pages, prefill_seconds);
        else
            return true;
    }

    tier_records<Tier> records_;
    mutable movable_mutex lock_; // guards stats_
    tier_stats stats_;
};

}} // namespace kvcache
