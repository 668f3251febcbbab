// SPDX-License-Identifier: MIT
//
// The cost of the eviction policies alone, with a million slots: touches with Zipf and uniform distributions, and the
// replacement of a victim. The limit is a plain LRU of std::list and std::unordered_map, measured in the same run. Also
// the cost of allocating and releasing a page.

#include <kvcache/cache/compose.hpp>
#include <kvcache/cache/page_manager.hpp>
#include <kvcache/core/type_name.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/hash/all.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/observer/all.hpp>
#include <kvcache/storage/all.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "support/machine.hpp"
#include "support/suite.hpp"

namespace kv = kvcache;

namespace {

constexpr std::size_t slots = 1'000'000, bytes = 4096; // per page
constexpr std::size_t calls = 250'000;                 // per sample
constexpr double aim = 1.5;                            // times the speed of the plain LRU
const std::string everyday = "list_and_map";

// SplitMix64, since keys are digests.
std::uint64_t key_of(std::uint64_t number) {
    std::uint64_t x = number * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
double fraction_of(std::uint64_t number) {
    return static_cast<double>(key_of(number) >> 11) * 0x1p-53;
}

// The slots to touch, new ones for each sample: a repeated order would find neighboring entries adjacent in memory.
class asked {
public:
    asked() : order_(calls), slot_of_rank_(slots) {
        std::iota(slot_of_rank_.begin(), slot_of_rank_.end(), 0u);
        for (std::size_t i = slots; i > 1; --i)
            std::swap(slot_of_rank_[i - 1], slot_of_rank_[key_of(i) % i]);
    }

    [[nodiscard]] const std::vector<std::uint32_t>& uniform() {
        for (std::uint32_t& slot : order_)
            slot = static_cast<std::uint32_t>(key_of(++drawn_) % slots);
        return order_;
    }

    /// Zipf with exponent 1, by inversion of its integral: rank r has probability ln((r + 1) / r) / ln(slots + 1).
    [[nodiscard]] const std::vector<std::uint32_t>& zipf() {
        for (std::uint32_t& slot : order_) {
            const double rank = std::exp(fraction_of(++drawn_) * std::log(slots + 1.0));
            slot = slot_of_rank_[std::min(static_cast<std::size_t>(rank), slots) - 1];
        }
        return order_;
    }

private:
    std::vector<std::uint32_t> order_, slot_of_rank_;
    std::uint64_t drawn_ = 0;
};

/// A plain LRU: a list of keys by recency, and a map from keys to list nodes.
class list_and_map {
public:
    list_and_map() : keys_(slots) {
        places_.reserve(slots);
        for (std::uint32_t slot = 0; slot < slots; ++slot)
            enter(keys_[slot] = key_of(next_++));
    }

    void touch(std::uint32_t slot) { list_.splice(list_.begin(), list_, places_.find(keys_[slot])->second); }

    /// Evicts the least recent key, and admits a new one.
    void churn() {
        places_.erase(list_.back());
        list_.pop_back();
        enter(key_of(next_++));
    }

private:
    void enter(std::uint64_t key) {
        list_.push_front(key);
        places_.emplace(key, list_.begin());
    }

    std::list<std::uint64_t> list_;
    std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> places_;
    std::vector<std::uint64_t> keys_; // keys to touch, valid before the first eviction
    std::uint64_t next_ = 1;
};

/// A policy state with every slot in use.
template <kv::eviction_policy Policy>
class full {
public:
    full() : state_(Policy{}.open({.slots = slots, .bytes = slots * bytes})) {
        for (std::uint32_t slot = 0; slot < slots; ++slot)
            enter(kv::slot_id{slot});
    }

    void touch(std::uint32_t slot) { state_.touch(kv::slot_id{slot}); }

    /// Evicts a victim, and admits a new entry in its slot.
    void churn() {
        const kv::eviction_entry newcomer = next();
        kv::on_miss(state_, newcomer);
        const std::optional<kv::slot_id> slot = state_.victim([](kv::slot_id) { return true; });
        kv::evict(state_, *slot);
        state_.admit(*slot, newcomer);
        kv::on_released(state_, *slot);
    }

private:
    [[nodiscard]] kv::eviction_entry next() {
        return {.key = key_of(next_++), .bytes = bytes, .cost = 1.0, .length = 1};
    }

    void enter(kv::slot_id slot) {
        const kv::eviction_entry newcomer = next();
        kv::on_miss(state_, newcomer);
        state_.admit(slot, newcomer);
        kv::on_released(state_, slot);
    }

    decltype(Policy{}.open({})) state_;
    std::uint64_t next_ = 1;
};

template <class Filled>
bench::sample touches(Filled& filled, const std::vector<std::uint32_t>& order) {
    const bench::stopwatch watch;
    for (const std::uint32_t slot : order) {
        filled.touch(slot);
        benchmark::ClobberMemory(); // keeps the call to a policy whose touch does nothing
    }
    return {calls / watch.seconds() * 1e-6};
}

template <class Filled>
bench::sample churns(Filled& filled) {
    constexpr std::size_t newcomers = calls / 5;
    const bench::stopwatch watch;
    for (std::size_t i = 0; i < newcomers; ++i)
        filled.churn();
    return {newcomers / watch.seconds() * 1e-6};
}

template <class Filled>
void add_rows(bench::suite& suite, const std::shared_ptr<asked>& order, const std::string& name, bool lru_class) {
    struct shared {
        std::unique_ptr<Filled> touched, churned;
    };
    const auto of = std::make_shared<shared>();
    const auto add = [&](const std::string& what, auto open, auto take, double least) {
        suite.add({.name = what + name,
                   .unit = "M/s",
                   .take = take,
                   .open = open,
                   .limited_by = name == everyday ? "" : what + everyday,
                   .aim = lru_class ? least : 0.0,
                   .scored = lru_class});
    };
    const auto open = [of] {
        if (!of->touched)
            of->touched = std::make_unique<Filled>();
    };
    add(
        "touch_zipf_", open, [of, order] { return touches(*of->touched, order->zipf()); }, aim);
    add(
        "touch_uniform_", open, [of, order] { return touches(*of->touched, order->uniform()); }, aim);
    if (name == kv::type_name<kv::eviction::never>())
        return;
    add(
        "churn_",
        [of] {
            of->churned = std::make_unique<Filled>();
            for (std::size_t i = 0; i < 2 * slots; ++i) // until the ghost entries are full
                of->churned->churn();
        },
        [of] { return churns(*of->churned); }, 1.0);
}

template <class Policy>
constexpr bool lru_class = (std::same_as<Policy, kv::eviction::lru> || std::same_as<Policy, kv::eviction::fifo> ||
                            std::same_as<Policy, kv::eviction::clock> || std::same_as<Policy, kv::eviction::sieve> ||
                            std::same_as<Policy, kv::eviction::slru> || std::same_as<Policy, kv::eviction::s3_fifo>);

// Measures a page allocated and released, by the page pool alone and by the page manager over it. All pages are in use
// between the two.
void add_pages(bench::suite& suite) {
    constexpr kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 16, .tokens = 16};
    constexpr std::size_t pages = 10'000, most_ns = 50;
    using heap = decltype(kv::storage::heap{}.open(0, 0));
    auto pool = std::make_shared<kv::page_pool<heap>>(pages, kv::storage::heap{}.open(pages, bytes));
    suite.add({.name = "page_pool",
               .unit = "ns",
               .take =
                   [pool, held = std::vector<kv::page_id>(pages)]() mutable {
                       const bench::stopwatch watch;
                       for (kv::page_id& page : held)
                           page = *pool->take();
                       for (const kv::page_id page : held) {
                           pool->drop(page);
                           pool->reclaim(page);
                       }
                       return bench::sample{watch.seconds() * 1e9 / pages};
                   },
               .limit = most_ns,
               .aim = 1.0,
               .scored = true});

    using manager =
        kv::page_manager<heap, decltype(kv::hash::xxh3{}.open({})), decltype(kv::index::radix{}.open(shape, 0)),
                         decltype(kv::eviction::lru{}.open({})), decltype(kv::observer::none{}.open()),
                         kv::page_content::rows>;
    auto kept = std::make_shared<manager>(kv::pool_config{shape, pages, bytes, 1}, kv::identity{},
                                          kv::detail::compose<kv::eviction::lru>::policies{});
    suite.add({.name = "page_manager",
               .unit = "ns",
               .take =
                   [kept, held = std::vector<kv::page_id>(pages)]() mutable {
                       const bench::stopwatch watch;
                       for (kv::page_id& page : held)
                           page = *kept->allocate(0);
                       for (const kv::page_id page : held)
                           kept->drop(page);
                       return bench::sample{watch.seconds() * 1e9 / pages};
                   },
               .limit = most_ns,
               .aim = 1.0,
               .scored = true});
}

int program(int count, char** words) {
    bench::suite suite("policies", count, words);
    const auto order = std::make_shared<asked>();
    add_rows<list_and_map>(suite, order, everyday, false);
    [&]<class... Policies>(std::tuple<Policies...>*) {
        (add_rows<full<Policies>>(suite, order, kv::type_name<Policies>(), lru_class<Policies>), ...);
    }(static_cast<kv::eviction_policies*>(nullptr));
    add_pages(suite);
    return suite.run();
}

} // namespace

int main(int count, char** words) {
    return support::guarded("policies", [&] { return program(count, words); });
}
