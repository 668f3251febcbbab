// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/compose.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cache/matching.hpp"

namespace kvcache_test {

namespace kv = kvcache;

/// Bits mixed so that rows after different prefixes differ (splitmix64).
inline std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/// Seeded random choices.
class seeded {
public:
    explicit seeded(std::uint64_t seed) : state_(mix(seed)) {}
    std::size_t operator()(std::size_t bound) {
        return bound == 0 ? 0 : static_cast<std::size_t>((state_ = mix(state_)) % bound);
    }
    [[nodiscard]] bool done() const { return false; }

private:
    std::uint64_t state_;
};

/// Tokens, each with a name of itself and all tokens before it. In a correct cache a row is a function of its name.
struct past {
    std::vector<kv::token_id> tokens = {};
    std::vector<std::uint64_t> names = {};

    void push(kv::token_id token) {
        const std::uint64_t before = names.empty() ? 1 : names.back();
        tokens.push_back(token);
        names.push_back(mix(before ^ mix(static_cast<std::uint64_t>(kv::index_of(token)) + 7)));
    }
    void resize(std::size_t n) {
        tokens.resize(n);
        names.resize(n);
    }
    [[nodiscard]] std::size_t size() const { return tokens.size(); }
    [[nodiscard]] past first(std::size_t n) const {
        past cut = *this;
        cut.resize(n);
        return cut;
    }
};

inline float number_of(std::uint64_t name, std::size_t layer, std::size_t head, std::size_t d, bool value) {
    const std::uint64_t bits =
        (name ^ (layer * 0x9e37u + head * 0x85ebu + d * 0xc2b2u + (value ? 0x27d4u : 0u))) * 0x9fb21c651e98df25ull;
    return static_cast<float>(static_cast<std::int32_t>(bits >> 40)) * 0x1p-20f;
}

/// Writes a row of a lease for a prefix that ends with the row's token.
template <class Lease>
void write_row(const Lease& lease, const kv::page_shape& shape, std::size_t row, std::uint64_t name) {
    std::vector<float> keys(std::size_t{shape.kv_heads} * shape.head_dim), values(keys.size());
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
        for (std::size_t head = 0; head < shape.kv_heads; ++head)
            for (std::size_t d = 0; d < shape.head_dim; ++d) {
                keys[head * shape.head_dim + d] = number_of(name, layer, head, d, false);
                values[head * shape.head_dim + d] = number_of(name, layer, head, d, true);
            }
        lease.write(kv::layer_id{layer}, row, keys, values);
    }
}

/// Returns whether the rows of a table match these names, read through the codec's tiles as attention reads them.
template <class Cache>
[[nodiscard]] bool rows_hold(const Cache& cache, std::span<const kv::page_entry> table,
                             std::span<const std::uint64_t> names) {
    const kv::page_shape& shape = cache.shape();
    const std::size_t width = kv::padded_head_dim(shape.head_dim);
    std::vector<float> key_scratch(std::size_t{shape.head_dim} * 16), value_scratch(16 * width);
    std::size_t position = 0;
    for (const kv::page_entry& entry : table)
        for (std::uint32_t row = entry.first; row < entry.first + entry.count && position < names.size(); ++row) {
            const auto bytes = cache.storage().bytes(entry.page);
            for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
                for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
                    const kv::page_tile tile{kv::layer_id{layer}, kv::head_id{head}, row / 16};
                    const float* keys = cache.codec().keys(bytes, tile, key_scratch);
                    const float* values = cache.codec().values(bytes, tile, value_scratch);
                    for (std::size_t d = 0; d < shape.head_dim; ++d)
                        if (keys[d * 16 + row % 16] != number_of(names[position], layer, head, d, false) ||
                            values[row % 16 * width + d] != number_of(names[position], layer, head, d, true))
                            return false;
                }
            ++position;
        }
    return position == names.size();
}

/// Appends tokens with all their rows. Returns false if there was no room.
template <class Cache>
[[nodiscard]] bool append(Cache& cache, typename Cache::sequence& sequence, past& known,
                          std::span<const kv::token_id> tokens) {
    auto lease = cache.reserve(sequence, tokens.size());
    if (!lease)
        return false;
    const std::size_t before = known.size();
    for (std::size_t row = 0; row < tokens.size(); ++row) {
        known.push(tokens[row]);
        write_row(*lease, cache.shape(), row, known.names[before + row]);
    }
    lease->commit(tokens);
    return true;
}

/// Consecutive tokens from a first one.
[[nodiscard]] inline std::vector<kv::token_id> counted(std::int32_t first, std::size_t n) {
    std::vector<kv::token_id> tokens;
    for (std::size_t i = 0; i < n; ++i)
        tokens.push_back(kv::token_id{first + static_cast<std::int32_t>(i)});
    return tokens;
}

struct model_broken : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Rows in pages that the cache owns.
struct owned_rows {
    template <class Lease>
    void write(const Lease& lease, const kv::page_shape& shape, std::size_t row, std::uint64_t name) const {
        write_row(lease, shape, row, name);
    }
    template <class Cache>
    [[nodiscard]] bool hold(const Cache& cache, std::span<const kv::page_entry> table,
                            std::span<const std::uint64_t> names) const {
        return rows_hold(cache, table, names);
    }
    /// Whether a commit may turn the table of a lease into the one of its sequence.
    [[nodiscard]] bool may_become(std::span<const kv::page_entry>, std::span<const kv::page_entry>) const {
        return true;
    }
};

/// Drives a cache at random, and compares it with a naive model: each live sequence is a vector of tokens, and every
/// row that it can see is a function of the tokens up to it. Throws model_broken if the cache differs.
template <class Cache, class Choices, class Rows = owned_rows>
class cache_model {
public:
    struct options {
        std::size_t vocabulary = 2;
        std::size_t longest = 60;    ///< Maximum rows of one append.
        std::size_t live = 6;        ///< Maximum number of sequences, and of matches.
        bool storage_fails = false;  ///< The storage can refuse pages, and idle pages are then evicted in vain.
        bool nothing_leaves = false; // as with the policy `never`
        bool forgets = false;        ///< The index or the eviction policy runs out of memory now and then.
    };

    cache_model(Cache& cache, Choices choices, options how, Rows rows = {})
        : cache_(cache), choose_(std::move(choices)), how_(how), rows_(std::move(rows)) {}

    void run(std::size_t rounds) {
        for (round_ = 0; round_ < rounds && !choose_.done(); ++round_) {
            step();
            sound();
        }
        finish();
    }

    /// The number of refused appends, and of reused tokens.
    [[nodiscard]] std::size_t refused() const { return refused_; }
    [[nodiscard]] std::size_t reused() const { return reused_; }

private:
    using sequence = typename Cache::sequence;
    using lease = typename Cache::lease;

    struct live_sequence {
        sequence pages;
        past known = {};
        std::optional<lease> open = {};
        past ahead = {}; // cached, and the rows that the open lease has written
    };
    struct pinned {
        pinned_match<Cache> match;
        past known = {};
    };

    void step() {
        switch (choose_(16)) {
        case 0:
        case 1:
        case 2:
        case 3:
            prompt();
            break;
        case 4:
        case 5:
        case 6:
            begin(pick(), choose_(4) == 0 ? choose_(3) : choose_(how_.longest + 1));
            break;
        case 7:
        case 8:
        case 9:
            end(pick());
            break;
        case 10:
            fork(pick());
            break;
        case 11:
            truncate(pick());
            break;
        case 12:
        case 13:
            release();
            break;
        case 14:
            pin();
            break;
        case 15:
            move();
            break;
        default:
            break;
        }
    }

    live_sequence* pick() { return sequences_.empty() ? nullptr : &sequences_[choose_(sequences_.size())]; }

    std::vector<kv::token_id> random_tokens() {
        std::vector<kv::token_id> tokens;
        if (!sequences_.empty() && choose_(3) != 0) {
            const auto& like = pick()->known.tokens;
            tokens.assign(like.begin(), like.begin() + static_cast<std::ptrdiff_t>(choose_(like.size() + 1)));
        }
        for (std::size_t n = choose_(how_.longest + 1); n > 0; --n)
            tokens.push_back(kv::token_id{static_cast<std::int32_t>(choose_(how_.vocabulary))});
        return tokens;
    }

    [[nodiscard]] static past past_of(std::span<const kv::token_id> tokens) {
        past known;
        for (const kv::token_id token : tokens)
            known.push(token);
        return known;
    }

    pinned_match<Cache> looked_up(const std::vector<kv::token_id>& tokens) {
        auto found = match_in(cache_, tokens);
        expect(found.found.prompt_tokens == tokens.size() && found.tokens() <= tokens.size(),
               "a match is longer than its prompt");
        expect((found.found.end == kv::match_end::complete) == (found.tokens() == tokens.size()),
               "a match ends wrongly");
        expect((found.found.end == kv::match_end::different) == found.found.differing_token.has_value(),
               "a match stores nothing");
        expect(!found.found.differing_token || *found.found.differing_token != tokens[found.tokens()],
               "the differing token is the same");
        return found;
    }

    void prompt() {
        if (sequences_.size() >= how_.live)
            return;
        const auto tokens = random_tokens();
        auto found = looked_up(tokens);
        const auto plan = plan_of(cache_, found);
        expect(plan.first + plan.count == tokens.size() && (tokens.empty() || plan.count > 0), "a plan runs nothing");
        reused_ += plan.first;
        live_sequence one{open_at(cache_, std::move(found), plan), past_of(std::span(tokens).first(plan.first))};
        expect(rows_.hold(cache_, one.pages.table(), one.known.names), "a matched row is not what its tokens say");
        sequences_.push_back(std::move(one));
        live_sequence& added = sequences_.back();
        begin(&added, plan.count, std::span(tokens).subspan(plan.first));
        if (added.open && choose_(4) != 0)
            end(&added);
    }

    void begin(live_sequence* one, std::size_t rows, std::span<const kv::token_id> wanted = {}) {
        if (one == nullptr || one->open)
            return;
        const std::vector<kv::page_entry> table(one->pages.table().begin(), one->pages.table().end());
        const auto before = cache_.stats();
        auto got = cache_.reserve(one->pages, rows);
        if (!got) {
            ++refused_;
            expect(got.error().code == kv::error_code::out_of_memory, "a refusal has another code");
            expect(kvcache::ranges::equal(table, one->pages.table()) && tokens_agree(*one),
                   "a refusal changed a sequence");
            auto after = cache_.stats();
            if (how_.storage_fails) { // idle pages may have been evicted meanwhile
                after.free -= before.evictable - after.evictable;
                after.evictable = before.evictable;
            } else {
                const std::size_t tokens = cache_.shape().tokens;
                const std::size_t room = table.empty() ? 0 : tokens - table.back().count;
                const std::size_t fresh = rows <= room ? 0 : (rows - room + tokens - 1) / tokens;
                expect(fresh + 1 > before.free + (how_.nothing_leaves ? 0 : before.evictable),
                       "a refusal while there is room");
            }
            expect(after == before, "a refusal changed how full the cache is");
            return;
        }
        expect(got->rows() == rows && got->first() == one->known.size(), "a lease is not what was asked for");
        one->open.emplace(std::move(*got));
        one->ahead = one->known;
        for (std::size_t row = 0; row < rows; ++row) {
            one->ahead.push(row < wanted.size() ? wanted[row]
                                                : kv::token_id{static_cast<std::int32_t>(choose_(how_.vocabulary))});
            rows_.write(*one->open, cache_.shape(), row, one->ahead.names.back());
        }
    }

    void end(live_sequence* one) {
        if (one == nullptr || !one->open)
            return;
        const std::size_t rows = one->open->rows();
        switch (choose_(5)) {
        case 0:
            one->open->rollback();
            break;
        case 1: // fewer rows, as after rejected drafts
            commit(*one, choose_(rows + 1));
            break;
        default:
            commit(*one, rows);
            break;
        }
        one->open.reset();
        expect(one->pages.size() == one->known.size(), "a lease left another size");
    }

    void commit(live_sequence& one, std::size_t rows) {
        const std::size_t first = one.known.size();
        one.known = one.ahead.first(first + rows);
        const auto leased = one.open->pages().table;
        const std::vector<kv::page_entry> before(leased.begin(), leased.end());
        one.open->commit(std::span<const kv::token_id>(one.known.tokens).subspan(first));
        expect(rows == 0 || rows_.may_become(before, one.pages.table()), "a commit changed a block table");
        if (rows > 0 && !how_.forgets)
            expect(cache_.lookup(one.known.tokens).cached_tokens == one.known.size(),
                   "what was committed is not known");
    }

    void fork(live_sequence* one) {
        if (one == nullptr || one->open || sequences_.size() >= how_.live)
            return;
        const std::size_t tokens = choose_(one->known.size() + 1);
        live_sequence twin{one->pages.fork(tokens), one->known.first(tokens)};
        sequences_.push_back(std::move(twin));
    }

    void truncate(live_sequence* one) {
        if (one == nullptr || one->open)
            return;
        one->known.resize(choose_(one->known.size() + 1));
        one->pages.truncate(one->known.size());
    }

    void release() {
        const std::size_t all = sequences_.size() + matches_.size();
        const std::size_t which = choose_(all);
        if (which < sequences_.size()) {
            sequences_[which].open.reset();
            sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(which));
        } else if (which < all) {
            matches_.erase(matches_.begin() + static_cast<std::ptrdiff_t>(which - sequences_.size()));
        }
    }

    void pin() {
        if (matches_.size() >= how_.live)
            return;
        const auto tokens = random_tokens();
        auto found = looked_up(tokens);
        past known = past_of(std::span(tokens).first(found.tokens()));
        matches_.push_back({std::move(found), std::move(known)});
    }

    void move() {
        if (!matches_.empty() && choose_(2) == 0) { // a pinned match becomes a sequence
            pinned kept = std::move(matches_.back());
            matches_.pop_back();
            const std::size_t tokens = choose_(kept.known.size() + 1);
            live_sequence one{open_at(cache_, std::move(kept.match), {tokens, 0}), kept.known.first(tokens)};
            if (sequences_.size() < how_.live)
                sequences_.push_back(std::move(one));
        } else if (sequences_.size() > 1) { // one replaces another
            std::swap(sequences_[choose_(sequences_.size())], sequences_.back());
            live_sequence taken = std::move(sequences_.back());
            sequences_.pop_back();
            live_sequence& victim = sequences_[choose_(sequences_.size())];
            victim.open.reset();
            victim = std::move(taken);
        }
    }

    [[nodiscard]] static bool tokens_agree(const live_sequence& one) {
        return kvcache::ranges::equal(one.pages.tokens(), one.known.tokens);
    }

    void sound() {
        if (const auto books = cache_.check(); !books)
            broken(books.error().field + ": " + books.error().message);
        for (const live_sequence& one : sequences_) {
            expect(tokens_agree(one), "a sequence has other tokens");
            expect(rows_.hold(cache_, one.pages.table(), one.open ? one.ahead.names : one.known.names),
                   "a row is not what its tokens say");
        }
        const auto now = cache_.stats();
        expect(now.sequences == sequences_.size() + matches_.size(), "another number of sequences lives");
        expect(now.free + now.in_use + now.evictable == now.pages, "pages are lost");
        if (live_sequence* one = pick(); one != nullptr && !how_.forgets) {
            const std::size_t tokens = cache_.shape().tokens;
            expect(cache_.lookup(one->known.tokens).cached_tokens >= one->known.size() / tokens * tokens,
                   "a full page of a live sequence is not known");
        }
    }

    void finish() {
        while (!sequences_.empty() || !matches_.empty()) {
            release();
            sound();
        }
        const auto now = cache_.stats();
        expect(now.in_use == 0 && now.sequences == 0 && now.free + now.evictable == now.pages, "pages stay held");
        if (how_.storage_fails || how_.nothing_leaves)
            return;
        auto all = cache_.open();
        auto every = cache_.reserve(all, now.pages * cache_.shape().tokens);
        expect(every.has_value(), "one sequence cannot have every page");
        expect(cache_.stats().in_use == now.pages && cache_.stats().evictable == 0, "an idle page did not leave");
        every->rollback();
        expect(cache_.stats().free == now.pages, "not every page is free at the end");
    }

    void expect(bool holds, const char* what) {
        if (!holds)
            broken(what);
    }
    [[noreturn]] void broken(const std::string& what) {
        throw model_broken("round " + std::to_string(round_) + ": " + what);
    }

    Cache& cache_;
    Choices choose_;
    options how_;
    Rows rows_;
    std::size_t round_ = 0;
    std::size_t refused_ = 0;
    std::size_t reused_ = 0;
    std::vector<live_sequence> sequences_;
    std::vector<pinned> matches_;
};

} // namespace kvcache_test
