// SPDX-License-Identifier: MIT
//
// The cost of the hash, index and storage policies alone: hashes of 16-token blocks, matches of 16-token pages in a
// tree of 100,000 sequences, and pages acquired and released.

#include <kvcache/hash/all.hpp>
#include <kvcache/hash/sha256.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/storage/all.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "support/machine.hpp"
#include "support/suite.hpp"

namespace kv = kvcache;

namespace {

constexpr std::size_t block = 16, sequences = 100'000, shared = 4, own = 4; // pages per sequence

template <class Hash>
void add_hash(bench::suite& suite, const char* name, const Hash& hash) {
    suite.add({.name = std::string("chain_") + name, .unit = "ns", .take = [state = hash.open({})] {
                   constexpr std::size_t blocks = 2000;
                   const std::vector<kv::token_id> run(block, kv::token_id{7});
                   kv::digest at = state.root();
                   const bench::stopwatch watch;
                   for (std::size_t i = 0; i < blocks; ++i)
                       at = state.chain(at, run);
                   benchmark::DoNotOptimize(at);
                   return bench::sample{watch.seconds() * 1e9 / blocks};
               }});
}

// Returns a prompt of eight pages, the first four of which it shares with 99 others.
std::vector<kv::token_id> prompt(std::size_t number) {
    std::vector<kv::token_id> made((shared + own) * block);
    for (std::size_t i = 0; i < made.size(); ++i)
        made[i] = kv::token_id{static_cast<std::int32_t>((i < shared * block ? number / 100 : number) * 31 + i)};
    return made;
}

/// The baseline without an index: a map from a page's tokens and its parent page to the page.
struct map_chain {
    struct key {
        std::uint32_t last = ~std::uint32_t{0};
        std::array<kv::token_id, block> tokens = {};
        bool operator==(const key&) const = default;
    };
    struct hash {
        std::size_t operator()(const key& of) const {
            return kv::seeded_hash(of.last, std::as_bytes(std::span(of.tokens)));
        }
    };
    struct state {
        std::unordered_map<key, kv::page_id, hash> pages = {};

        [[nodiscard]] kv::index_match match(std::span<const kv::token_id> tokens) const {
            kv::index_match found;
            for (key next; tokens.size() >= block; tokens = tokens.subspan(block)) {
                std::copy_n(tokens.begin(), block, next.tokens.begin());
                const auto page = pages.find(next);
                if (page == pages.end())
                    break;
                found.pages.push_back(page->second);
                found.tokens += block;
                next.last = index_of(page->second);
            }
            return found;
        }
        void insert(std::optional<kv::page_id> parent, std::span<const kv::token_id> tokens, kv::page_id page) {
            key of;
            if (parent)
                of.last = index_of(*parent);
            std::copy_n(tokens.begin(), block, of.tokens.begin());
            pages.emplace(of, page);
        }
    };
    [[nodiscard]] state open(kv::page_shape, std::size_t) const { return {}; }
};

template <class Index>
struct tree {
    decltype(std::declval<const Index&>().open({}, 0)) state;

    tree() : state(Index{}.open({.tokens = block}, sequences * (shared + own))) {
        std::uint32_t next = 0;
        for (std::size_t number = 0; number < sequences; ++number) {
            const auto tokens = prompt(number);
            const auto found = state.match(tokens);
            std::optional<kv::page_id> parent;
            for (std::size_t page = 0; page < shared + own; ++page)
                if (page < found.tokens / block)
                    parent = found.pages[page];
                else {
                    const kv::page_id fresh{next++};
                    state.insert(parent, std::span(tokens).subspan(page * block, block), fresh);
                    parent = fresh;
                }
        }
    }
};

template <class Index>
void add_index(bench::suite& suite, const char* name) {
    auto known = std::make_shared<std::unique_ptr<tree<Index>>>();
    suite.add({.name = std::string("match_") + name + "_a_page",
               .unit = "ns",
               .take =
                   [known] {
                       constexpr std::size_t calls = 200;
                       static std::size_t number = 0;
                       std::vector<std::vector<kv::token_id>> asked;
                       for (std::size_t i = 0; i < calls; ++i)
                           asked.push_back(prompt((number = (number + 7919) % sequences)));
                       const bench::stopwatch watch;
                       for (const auto& tokens : asked) {
                           const auto found = (*known)->state.match(tokens);
                           benchmark::DoNotOptimize(found.tokens);
                       }
                       return bench::sample{watch.seconds() * 1e9 / (calls * (shared + own))};
                   },
               .open = [known] { *known = std::make_unique<tree<Index>>(); }});
}

template <class Storage>
void add_storage(bench::suite& suite, const char* name) {
    constexpr std::uint32_t pages = 1000;
    auto state = std::make_shared<decltype(Storage{}.open(0, 0))>(Storage{}.open(pages, 4096));
    suite.add({.name = std::string("acquire_") + name, .unit = "ns", .take = [state] {
                   const bench::stopwatch watch;
                   for (std::uint32_t page = 0; page < pages; ++page) {
                       benchmark::DoNotOptimize(state->acquire(kv::page_id{page}));
                       state->release(kv::page_id{page});
                   }
                   return bench::sample{watch.seconds() * 1e9 / pages};
               }});
}

int program(int count, char** words) {
    bench::suite suite("roles", count, words);
    add_hash(suite, "xxh3", kv::hash::xxh3{});
    add_hash(suite, "sha256", kv::hash::sha256{.key = "a key"});
    add_index<kv::index::radix>(suite, "radix");
    add_index<kv::index::hash_chain>(suite, "hash_chain");
    add_index<map_chain>(suite, "unordered_map");
    add_storage<kv::storage::heap>(suite, "heap");
    add_storage<kv::storage::huge_pages>(suite, "huge_pages");
    add_storage<kv::storage::mapped>(suite, "mapped");
    add_storage<kv::storage::zero_on_release<>>(suite, "zero_on_release");
    return suite.run();
}

} // namespace

int main(int count, char** words) {
    return support::guarded("roles", [&] { return program(count, words); });
}
