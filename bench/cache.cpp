// SPDX-License-Identifier: MIT
//
// The cost of the cache itself, without a model: nanoseconds per operation, or per token for operations that walk
// tokens, in trees of several sizes. Pages are small, so that their contents cost nothing. The limit of an operation
// that walks a prompt's tokens is a copy of those tokens.

#include <kvcache/kvcache.hpp>
#include <kvcache/storage/external.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "support/machine.hpp"
#include "support/suite.hpp"

namespace kv = kvcache;

namespace {

constexpr kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 16, .tokens = 64};

using tokens = std::vector<kv::token_id>;

// Returns a distinct prompt after `common` tokens that all prompts share.
tokens prompt(std::size_t number, std::size_t length, std::size_t common) {
    tokens made(length);
    std::uint32_t x = static_cast<std::uint32_t>(number) * 2654435761u + 1;
    for (std::size_t i = 0; i < length; ++i) {
        x = x * 1664525u + 1013904223u;
        made[i] = kv::token_id{static_cast<std::int32_t>(i < common ? i : x >> 16)};
    }
    return made;
}

// A cache that owns its pages, or one whose pages are the host's.
template <class... Policies>
kv::cache<Policies...> cache_of(std::size_t pages, Policies... policies) {
    constexpr bool external = (std::same_as<Policies, kv::storage::external> || ...);
    return kv::make_cache({.shape = shape, .limit = {.pages = pages}, .merge_equal_pages = !external}, policies...);
}
const kv::storage::external host{.copy = [](kv::page_id, kv::page_id) { return true; }};

// A cache that holds `prompts` prompts of `length` tokens, half of each shared by all. Its capacity is two prompts more
// than all prompts take without sharing.
template <class... Policies>
struct basic_tree {
    std::size_t prompts, length;
    kv::cache<Policies...> cache;
    std::vector<tokens> asked;
    std::size_t strangers = 0; // new prompts stored since

    basic_tree(std::size_t number_of_prompts, std::size_t tokens_each, Policies... policies)
        : prompts(number_of_prompts),
          length(tokens_each),
          cache(cache_of((prompts + 2) * (length / shape.tokens), policies...)) {
        for (std::size_t number = 0; number < prompts; ++number) {
            asked.push_back(prompt(number, length, length / 2));
            auto got = cache.acquire(asked.back());
            got->lease.declare_written();
            got->lease.commit(std::span(asked.back()).subspan(got->lease.first()));
        }
    }
};

using tree = basic_tree<>;
using external_tree = basic_tree<kv::storage::external>;

// The tree of a size and a use, built once.
template <class Tree, class... Policies>
Tree& tree_of(std::size_t prompts, std::size_t length, const char* use, Policies... policies) {
    static std::map<std::tuple<std::size_t, std::size_t, std::string>, std::unique_ptr<Tree>> trees;
    auto& made = trees[{prompts, length, use}];
    if (!made)
        made = std::make_unique<Tree>(prompts, length, policies...);
    return *made;
}

constexpr std::size_t calls = 32; // per sample

template <class Tree>
bench::sample per_token(const Tree& t, double seconds) {
    return {seconds * 1e9 / static_cast<double>(calls * t.length)};
}
bench::sample per_call(double seconds) {
    return {seconds * 1e9 / calls};
}

// Copies the tokens of a prompt.
bench::sample copy(tree& t) {
    const bench::stopwatch watch;
    for (std::size_t i = 0; i < calls; ++i) {
        const tokens copied = t.asked[i * 7 % t.prompts];
        benchmark::DoNotOptimize(copied.data());
    }
    return per_token(t, watch.seconds());
}

// Matches cached prompts, and releases the matches.
template <class Tree>
bench::sample match(Tree& t) {
    const bench::stopwatch watch;
    for (std::size_t i = 0; i < calls; ++i)
        static_cast<void>(t.cache.core().find(0, t.asked[i * 7 % t.prompts], false));
    return per_token(t, watch.seconds());
}

// Matches a prompt that is unknown from its first token.
bench::sample miss(tree& t) {
    static const auto unknown = prompt(1u << 20, 1u << 16, 0);
    const std::span wanted(unknown.data(), t.length);
    const bench::stopwatch watch;
    for (std::size_t i = 0; i < calls; ++i)
        static_cast<void>(t.cache.core().find(0, wanted, false));
    return per_call(watch.seconds());
}

// Opens sequences from matches, without the last token.
bench::sample open(tree& t) {
    double seconds = 0.0;
    for (std::size_t i = 0; i < calls; ++i) {
        auto found = t.cache.core().find(0, t.asked[i * 7 % t.prompts], false).sequence;
        const bench::stopwatch watch;
        found.truncate(found.size() - 1);
        const auto sequence = std::move(found);
        seconds += watch.seconds();
    }
    return per_call(seconds);
}

// Forks a sequence, and releases the forks.
std::pair<bench::sample, bench::sample> fork_and_release(tree& t) {
    const auto from = t.cache.core().find(0, t.asked[0], false).sequence;
    std::vector<kv::cache<>::sequence> forks;
    forks.reserve(calls);
    const bench::stopwatch forking;
    for (std::size_t i = 0; i < calls; ++i)
        forks.push_back(from.fork(from.size()));
    const double forked = forking.seconds();
    const bench::stopwatch releasing;
    forks.clear();
    return {per_call(forked), per_call(releasing.seconds())};
}

// Reserves pages for a new prompt, then commits the prompt. Once the free pages are used up, every page is evicted.
template <class Tree>
std::pair<bench::sample, bench::sample> evict_and_commit(Tree& t) {
    double evicting = 0.0, committing = 0.0;
    for (std::size_t i = 0; i < calls; ++i) {
        const tokens wanted = prompt((1u << 21) + t.strangers++, t.length, 0);
        auto sequence = t.cache.open();
        const bench::stopwatch reserve;
        auto lease = t.cache.reserve(sequence, t.length);
        evicting += reserve.seconds();
        lease->declare_written();
        const bench::stopwatch commit;
        lease->commit(wanted);
        committing += commit.seconds();
    }
    return {per_token(t, evicting), per_token(t, committing)};
}

// Reserves free pages for a prompt, and returns them.
bench::sample reserve(tree& t) {
    auto sequence = t.cache.open();
    const bench::stopwatch watch;
    for (std::size_t i = 0; i < calls; ++i)
        static_cast<void>(t.cache.reserve(sequence, t.length));
    return per_token(t, watch.seconds());
}

// Appends one token at a time after a prompt, as generation does.
bench::sample generate(tree& t) {
    auto sequence = t.cache.open(t.asked[0]);
    const bench::stopwatch watch;
    for (std::size_t i = 0; i < calls; ++i) {
        const kv::token_id next{static_cast<std::int32_t>(i)};
        auto lease = t.cache.reserve(sequence, 1);
        lease->declare_written();
        lease->commit({&next, 1});
    }
    return per_call(watch.seconds());
}

void add(bench::suite& suite, std::size_t prompts, std::size_t length) {
    const std::string of = "_" + std::to_string(prompts) + "x" + std::to_string(length);
    const auto row = [&](const char* name, const char* unit, auto take, const char* use, bool limited) {
        suite.add({.name = name + of,
                   .unit = unit,
                   .take = [=] { return take(tree_of<tree>(prompts, length, use)); },
                   .limited_by = limited ? "copy" + of : "",
                   .scored = limited,
                   .seconds = 0.01});
    };
    row("copy", "ns/token", copy, "", false);
    row("match", "ns/token", match<tree>, "", true);
    row("miss", "ns", miss, "", false);
    row("open", "ns", open, "", false);
    row(
        "fork", "ns", [](tree& t) { return fork_and_release(t).first; }, "", false);
    row(
        "release", "ns", [](tree& t) { return fork_and_release(t).second; }, "", false);
    row("reserve", "ns/token", reserve, "reserve", false);
    row(
        "evict", "ns/token", [](tree& t) { return evict_and_commit(t).first; }, "evict", false);
    row(
        "commit", "ns/token", [](tree& t) { return evict_and_commit(t).second; }, "evict", true);
    row("generate", "ns/token", generate, "generate", false);

    // External memory compared with owned memory, in turn within each sample.
    const auto external = [&](const char* name, auto take, const char* use, double aim) {
        suite.add({.name = std::string(name) + "_external" + of,
                   .unit = "ns/token",
                   .take =
                       [=] {
                           const double value = take(tree_of<external_tree>(prompts, length, use, host)).value;
                           return bench::sample{value, take(tree_of<tree>(prompts, length, use)).value};
                       },
                   .aim = aim,
                   .seconds = 0.01});
    };
    external(
        "match", [](auto& t) { return match(t); }, "external", 1 / 1.05);
    external(
        "commit", [](auto& t) { return evict_and_commit(t).second; }, "external evict", 1.0);
}

int program(int count, char** words) {
    bench::suite suite("cache", count, words);
    for (const std::size_t length : {128u, 1024u, 8192u})
        for (const std::size_t prompts : {1u, 16u, 256u})
            if (prompts * length <= std::size_t{1} << 20)
                add(suite, prompts, length);
    return suite.run();
}

} // namespace

int main(int count, char** words) {
    return support::guarded("cache", [&] { return program(count, words); });
}
