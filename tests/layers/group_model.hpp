// SPDX-License-Identifier: MIT
// A host whose layers keep different things, and a naive model of what a cache knows.
#pragma once

#include <kvcache/cache.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/storage/external.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kvcache_test {

/// What the host's blocks hold: a name for each row, that of its token and all tokens before it; of a state the name of
/// its last token. A block that is freed is poisoned.
class group_host {
public:
    static constexpr std::uint64_t poison = 0xdead;

    explicit group_host(kv::cache_layout layout)
        : layout_(std::move(layout)), memory_(layout_.groups.size() + 1) {} // pages without a full group hold nothing

    [[nodiscard]] const kv::cache_layout& layout() const { return layout_; }
    [[nodiscard]] std::uint64_t& row(std::size_t group, std::int32_t block, std::size_t row) {
        auto& rows = memory_[group];
        const std::size_t at = static_cast<std::size_t>(block) * layout_.tokens + row;
        if (rows.size() <= at)
            rows.resize(2 * at + layout_.tokens, poison);
        return rows[at];
    }
    bool copy(std::size_t group, std::uint32_t from, std::uint32_t to, std::size_t rows) {
        if (fails_next && --fails_next == 0)
            return false;
        for (std::size_t i = 0; i < layout_.tokens; ++i) {
            const std::uint64_t name = i < rows ? row(group, static_cast<std::int32_t>(from), i) : poison;
            row(group, static_cast<std::int32_t>(to), i) = name;
        }
        return true;
    }
    void free(std::size_t group, std::uint32_t block) {
        for (std::size_t i = 0; i < layout_.tokens; ++i)
            row(group, static_cast<std::int32_t>(block), i) = poison;
    }

    // As for every host: rows and states by their names. `Cache`, `Lease`: of this host.

    template <class Cache>
    [[nodiscard]] std::uint64_t read(const Cache&, std::size_t group, std::int32_t block, std::size_t at) {
        return row(group, block, at);
    }
    template <class Lease>
    void write(const Lease& lease, std::size_t group, std::size_t at, std::int32_t block, std::uint64_t name) {
        row(group, block, (lease.first() + at) % layout_.tokens) = name;
    }
    template <class Cache, class Lease>
    void write_state(Cache&, const Lease&, std::size_t group, std::uint32_t block, std::uint64_t name) {
        row(group, static_cast<std::int32_t>(block), 0) = name;
    }

    std::size_t fails_next = 0; ///< The copy from now on that fails; 0 for none.

private:
    kv::cache_layout layout_;
    std::vector<std::vector<std::uint64_t>> memory_;
};

/// The policies of a cache over such a host, which outlives it.
inline kv::storage::external pages_of(group_host& host, std::size_t group) {
    return {.copy = [&host,
                     group](kv::page_id from, kv::page_id to,
                            std::size_t rows) { return host.copy(group, kv::index_of(from), kv::index_of(to), rows); },
            .on_evict = [&host, group](kv::page_id page) { host.free(group, kv::index_of(page)); },
            .on_move = [](const kv::moved_entry&) {}};
}
inline kv::layers::grouped groups_of(group_host& host, bool keep = true) {
    return {.layout = host.layout(),
            .keep_released = keep,
            .copy = [&host](std::size_t group, std::uint32_t from, std::uint32_t to,
                            std::size_t rows) { return host.copy(group, from, to, rows); },
            .on_evict = [&host](std::size_t group, std::uint32_t block) { host.free(group, block); }};
}

/// Writes the rows of a lease for tokens that end with those of the lease.
template <class Host, class Lease>
void write_groups(Host& host, const Lease& lease, const past& tokens) {
    const std::size_t size = host.layout().tokens;
    for (std::size_t group = 0; group < host.layout().groups.size(); ++group) {
        if (!host.layout().groups[group].has_rows())
            continue;
        const auto table = lease.blocks(group);
        for (std::size_t row = 0; row < lease.rows(); ++row) {
            const std::size_t at = lease.first() + row;
            if (table[at / size] < 0)
                FAIL("group " << group << " has no block for the row at " << at);
            host.write(lease, group, row, table[at / size], tokens.names[at]);
        }
    }
}

/// Checks all that the next query of a sequence with these tokens reads.
template <class Host, class Cache>
void read_groups(Host& host, const Cache& cache, const typename Cache::sequence& sequence, const past& tokens,
                 bool state_is_live) {
    const std::size_t size = host.layout().tokens, n = tokens.size();
    REQUIRE(sequence.size() == n);
    for (std::size_t group = 0; group < host.layout().groups.size(); ++group) {
        const std::size_t keeper = host.layout().groups[group].alias_of.value_or(static_cast<std::uint32_t>(group));
        const kv::layer_group& of = host.layout().groups[keeper];
        const auto table = sequence.blocks(group);
        INFO("group " << group << " of " << n << " tokens");
        if (of.kind() == kv::group_kind::state) {
            if (n > 0 && !state_is_live) {
                REQUIRE(n % size == 0);
                REQUIRE(table[n / size - 1] >= 0);
                REQUIRE(host.read(cache, group, table[n / size - 1], 0) == tokens.names.back());
            }
            continue;
        }
        for (std::size_t at = of.window == 0 || n < of.window ? 0 : n + 1 - of.window; at < n; ++at)
            if (table[at / size] < 0 || host.read(cache, keeper, table[at / size], at % size) != tokens.names[at])
                FAIL("the row at " << at << " is wrong, of block " << table[at / size]);
    }
}

inline kv::layer_group full(std::uint32_t layers = 1) {
    return {.layers = layers, .kv_heads = 1, .head_dim = 8};
}
inline kv::layer_group window(std::uint32_t of, std::uint32_t layers = 2) {
    return {.layers = layers, .kv_heads = 1, .head_dim = 8, .window = of};
}
inline kv::layer_group state(std::size_t bytes = 600) {
    return {.layers = 3, .state_bytes = bytes};
}

inline kv::cache_layout layout_of(seeded& random) {
    kv::cache_layout made{.tokens = static_cast<std::uint32_t>(std::vector{1, 4, 16}[random(3)])};
    const std::size_t count = 1 + random(4);
    for (std::size_t group = 0; group < count; ++group)
        switch (random(4)) {
        case 0:
            made.groups.push_back(full(static_cast<std::uint32_t>(1 + random(3))));
            break;
        case 1:
            made.groups.push_back(window(static_cast<std::uint32_t>(1 + random(40))));
            break;
        case 2:
            if (random(3) == 0)
                made.groups.push_back({.layers = 3, .opaque = true});
            else
                made.groups.push_back(state(100 + 100 * random(10)));
            break;
        default:
            if (group > 0 && made.groups[0].has_rows())
                made.groups.push_back({.layers = 1, .alias_of = 0});
            else
                made.groups.push_back(full());
        }
    return made;
}

/// What a campaign met.
struct outcome {
    std::size_t hits = 0, refused = 0;
};

/// A cache, its host, and sequences with the tokens that they must have.
template <class Cache, class Host = group_host>
struct campaign {
    struct live {
        typename Cache::sequence sequence;
        past tokens;
        bool state_is_live = true; // the host has the state after the last token
    };
    seeded& random;
    Host& host;
    Cache& cache;
    std::size_t most;
    std::vector<live> sequences = {};
    std::vector<past> seen = {};
    std::size_t hits = 0, refused = 0;
    // Where nothing is evicted: the names of all tokens that were committed, and of those with a snapshot, by group.
    bool evicts = true;
    std::set<std::uint64_t> known = {};
    std::map<std::size_t, std::set<std::uint64_t>> snapshots = {};

    past prompt() {
        past made;
        if (!seen.empty() && random(4) > 0) {
            const past& old = seen[random(seen.size())];
            made = old.first(random(old.size() + 1));
        }
        for (std::size_t more = random(2) ? random(5) : random(most); more > 0 && made.size() < most; --more)
            made.push(kv::token_id{static_cast<std::int32_t>(random(3))});
        if (made.size() == 0)
            made.push(kv::token_id{1});
        return made;
    }

    std::size_t* fails_at = nullptr; // counts down to the allocation that fails

    // Calls `f`, in some rounds with an allocation or a copy that fails.
    template <class F>
    auto with_faults(F&& f) -> std::optional<decltype(f())> {
        if (fails_at != nullptr && random(3) == 0)
            *fails_at = 1 + random(8);
        if (fails_at != nullptr && random(8) == 0)
            host.fails_next = 1 + random(2);
        std::optional<decltype(f())> made;
        try {
            made.emplace(f());
        } catch (const std::bad_alloc&) {
            ++refused;
        }
        if (fails_at != nullptr)
            *fails_at = 0;
        host.fails_next = 0;
        return made;
    }

    // The bytes of the next snapshot of a group, if it is opaque.
    std::size_t blob_bytes(std::size_t group) { return host.layout().groups[group].opaque ? 8 + random(1500) : 0; }

    // The longest prefix that every group can continue, where nothing is evicted.
    std::size_t longest(const past& all) {
        std::size_t n = 0;
        while (n + 1 < all.size() && known.contains(all.names[n]))
            ++n;
        const auto has_states = [&] {
            for (std::size_t group = 0; group < host.layout().groups.size(); ++group)
                if (host.layout().groups[group].kind() == kv::group_kind::state &&
                    !snapshots[group].contains(all.names[n - 1]))
                    return false;
            return true;
        };
        while (n > 0 && !has_states())
            --n;
        return n;
    }

    // Computes the rows of a lease, some of them in vain; then commits, or rolls back.
    template <class Lease>
    void compute(Lease& lease, past all, past& tokens) {
        write_groups(host, lease, all);
        const std::size_t size = host.layout().tokens;
        std::vector<std::pair<std::size_t, std::size_t>> made;
        for (std::size_t group = 0; group < host.layout().groups.size(); ++group)
            if (host.layout().groups[group].kind() == kv::group_kind::state)
                for (std::size_t at = lease.first() / size * size + size; at <= all.size(); at += size)
                    if (random(2) == 0)
                        if (const auto block =
                                with_faults([&] { return lease.snapshot(group, at, blob_bytes(group)); });
                            block && *block) {
                            host.write_state(cache, lease, group, **block, all.names[at - 1]);
                            made.emplace_back(group, at);
                        }
        const std::size_t rows = lease.rows();
        const std::size_t kept = random(4) == 0 ? random(rows + 1) : rows;
        if (random(8) == 0) {
            lease.rollback();
            return;
        }
        with_faults([&] {
            lease.commit(std::span(all.tokens).subspan(tokens.size(), kept));
            return true;
        });
        tokens = all.first(tokens.size() + kept);
        known.insert(tokens.names.begin(), tokens.names.end());
        for (const auto& [group, at] : made)
            if (at <= tokens.size())
                snapshots[group].insert(tokens.names[at - 1]);
    }

    void acquire() {
        const past all = prompt();
        auto reached = with_faults([&] { return cache.acquire(all.tokens); });
        if (!reached || !*reached) {
            refused += reached.has_value();
            return;
        }
        auto& got = *reached;
        past tokens = all.first(got->lease.first());
        REQUIRE(tokens.size() < all.size());
        REQUIRE(got->found.cached_tokens == tokens.size());
        hits += tokens.size();
        if (!evicts)
            REQUIRE(tokens.size() == longest(all));
        read_groups(host, cache, got->sequence, tokens, false);
        compute(got->lease, all, tokens);
        const bool computed = tokens.size() > got->lease.first();
        seen.push_back(tokens.size() > 0 ? tokens : all);
        if (seen.size() > 20)
            seen.erase(seen.begin());
        sequences.push_back({std::move(got->sequence), std::move(tokens), computed});
    }
    void extend() {
        if (sequences.empty())
            return;
        auto& one = sequences[random(sequences.size())];
        past all = one.tokens;
        for (std::size_t more = 1 + random(20); more > 0; --more)
            all.push(kv::token_id{static_cast<std::int32_t>(random(3))});
        auto lease = with_faults([&] { return cache.reserve(one.sequence, all.size() - one.tokens.size()); });
        if (!lease || !*lease) {
            refused += lease.has_value();
            return;
        }
        const std::size_t before = one.tokens.size();
        compute(**lease, all, one.tokens);
        one.state_is_live = one.state_is_live || one.tokens.size() > before;
    }
    void shorten() {
        if (sequences.empty())
            return;
        auto& one = sequences[random(sequences.size())];
        const std::size_t wanted = random(one.tokens.size() + 1);
        with_faults([&] {
            one.sequence.truncate(wanted);
            return true;
        });
        REQUIRE(one.sequence.size() <= wanted);
        if (one.sequence.size() < one.tokens.size()) {
            one.tokens.resize(one.sequence.size());
            one.state_is_live = false;
        }
    }
    void fork() {
        if (sequences.empty() || sequences.size() > 8)
            return;
        const live& one = sequences[random(sequences.size())];
        const std::size_t wanted = random(2) ? one.tokens.size() : random(one.tokens.size() + 1);
        auto made = with_faults([&] { return one.sequence.fork(wanted); });
        if (!made)
            return;
        REQUIRE(made->size() <= wanted);
        past tokens = one.tokens.first(made->size());
        const bool live_state = one.state_is_live && tokens.size() == one.tokens.size();
        sequences.push_back({std::move(*made), std::move(tokens), live_state});
    }
    void end() {
        if (!sequences.empty())
            sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(random(sequences.size())));
    }

    void round() {
        switch (random(10)) {
        case 0:
        case 1:
        case 2:
            acquire();
            break;
        case 3:
        case 4:
            extend();
            break;
        case 5:
            shorten();
            break;
        case 6:
            fork();
            break;
        case 7:
        case 8:
            end();
            break;
        default:
            if (evicts && random(4) == 0)
                static_cast<void>(cache.clear_all());
            else if (evicts && !seen.empty())
                cache.evict(seen[random(seen.size())].tokens);
        }
        if (sequences.size() > 6)
            end();
        const auto sound = cache.check();
        INFO((sound ? "" : sound.error().field + ": " + sound.error().message));
        REQUIRE(sound.has_value());
        std::size_t bytes = 0;
        for (const kv::layer_group_stats& of : cache.group_stats()) {
            REQUIRE(of.in_use + of.evictable <= of.blocks);
            bytes += of.bytes;
        }
        const auto now = cache.stats();
        if (!cache.core().pages().blocks().paged()) // then pages hold next to nothing, and belong to no group
            bytes += (now.pages - now.free) * now.page_bytes;
        REQUIRE(bytes == cache.core().pages().blocks().used());
        for (const live& one : sequences)
            read_groups(host, cache, one.sequence, one.tokens, one.state_is_live);
    }

    outcome play(std::size_t rounds) {
        for (std::size_t i = 0; i < rounds; ++i)
            round();
        sequences.clear();
        REQUIRE(cache.check().has_value());
        REQUIRE(cache.clear_all());
        REQUIRE(cache.check().has_value());
        return {hits, refused};
    }
};

template <class Eviction>
outcome play(std::uint64_t seed, std::size_t rounds, Eviction eviction, bool evicts = true,
             std::size_t* fails_at = nullptr) {
    seeded random(seed);
    group_host host(layout_of(random));
    while (!host.layout().check())
        host = group_host(layout_of(random));
    INFO("seed " << seed << "\n" << host.layout().describe());
    const auto grouped = groups_of(host, !evicts || random(4) > 0);
    const std::size_t bytes = evicts ? (1 + random(12)) * 4096 : std::size_t{1} << 21;
    auto cache =
        kv::open_cache({.limit = {.bytes = bytes}, .merge_equal_pages = random(3) > 0},
                       pages_of(host, grouped.paged().value_or(host.layout().groups.size())), grouped, eviction);
    if (!cache)
        return {}; // less than one page
    campaign<std::remove_reference_t<decltype(*cache)>> all{random, host, *cache, 20 + random(100)};
    all.evicts = evicts;
    all.fails_at = fails_at;
    return all.play(rounds);
}

} // namespace kvcache_test
