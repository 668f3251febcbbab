// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/storage/heap.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/memory.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

/// A wrapper that refuses every n-th page of another storage. For tests of error paths.
template <storage_policy Inner = storage::heap>
struct fault_injecting_storage {
    using role = storage_role;
    std::uint64_t every = 1; ///< Every n-th call to acquire fails, counted from one; 0 means none.
    Inner inner = {};        ///< The wrapped storage.

    class state {
    public:
        state(std::uint64_t every, decltype(std::declval<const Inner&>().open(0, 0)) inner)
            : every_(every), inner_(std::move(inner)) {}

        [[nodiscard]] bool acquire(page_id page) {
            ++calls_;
            return (every_ == 0 || calls_ % every_ != 0) && inner_.acquire(page);
        }
        void release(page_id page) noexcept { inner_.release(page); }
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return inner_.bytes(page); }

    private:
        std::uint64_t every_;
        std::uint64_t calls_ = 0;
        decltype(std::declval<const Inner&>().open(0, 0)) inner_;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        return {every, inner.open(pages, page_bytes)};
    }
};

static_assert(storage_policy<fault_injecting_storage<storage::heap>>);

/// Wraps a tier and injects faults, for tests that no fault of a store becomes a wrong token. A fault set to n
/// strikes every n-th call that it applies to, counted from one; 0 means never.
template <tier_policy Inner = tier::memory<>>
struct fault_injecting_tier {
    using role = tier_role;
    std::uint64_t fail = 0;    ///< Calls that fail and do nothing.
    std::uint64_t lose = 0;    ///< Writes that are accepted but lost.
    std::uint64_t repeat = 0;  ///< Writes that are done twice.
    std::uint64_t cut = 0;     ///< Reads that are truncated.
    std::uint64_t flip = 0;    ///< Reads with a flipped bit.
    std::uint64_t confuse = 0; ///< Reads that return the record of the previous read.
    std::uint64_t delay = 0;   ///< Reads that are delayed by `pause`.
    std::chrono::milliseconds pause = std::chrono::milliseconds(1); ///< Delay of a delayed read.
    std::uint64_t disconnect = 0;                                   ///< From this call on, all calls fail.
    std::uint64_t seed = 0;                                         ///< Seed of the positions of flips and truncations.
    Inner inner = {};                                               ///< The tier underneath.
    class state;
    [[nodiscard]] state open() const { return state(*this); }
};

template <tier_policy Inner>
class fault_injecting_tier<Inner>::state {
public:
    explicit state(const fault_injecting_tier& how) : held_(std::make_unique<held>(how)), inner_(how.inner.open()) {}

    template <class Use>
    [[nodiscard]] result<bool> read(const sha256_digest& name, Use&& use) {
        if (auto fine = begin(); !fine)
            return fine.error();
        std::vector<std::byte> copy;
        const auto found =
            inner_.read(name, [&](std::span<const std::byte> bytes) { copy.assign(bytes.begin(), bytes.end()); });
        if (!found || !*found)
            return found;
        bool late = false;
        {
            const std::lock_guard guard(held_->lock);
            const fault_injecting_tier& how = held_->how;
            const std::uint64_t n = ++held_->reads;
            std::vector<std::byte> whole = copy;
            if (strikes(how.confuse, n) && !held_->before.empty())
                copy = held_->before;
            if (strikes(how.cut, n))
                copy.resize(static_cast<std::size_t>(draw() % (copy.size() + 1)));
            if (strikes(how.flip, n) && !copy.empty()) {
                const std::uint64_t bit = draw() % (8 * copy.size());
                copy[static_cast<std::size_t>(bit / 8)] ^= static_cast<std::byte>(1u << bit % 8);
            }
            late = strikes(how.delay, n);
            held_->before = std::move(whole);
        }
        if (late)
            std::this_thread::sleep_for(held_->how.pause);
        use(std::span<const std::byte>(copy));
        return true;
    }

    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        if (auto fine = begin(); !fine)
            return fine;
        std::uint64_t n = 0;
        {
            const std::lock_guard guard(held_->lock);
            n = ++held_->writes;
        }
        if (strikes(held_->how.lose, n))
            return {};
        if (strikes(held_->how.repeat, n))
            if (auto once = inner_.put(entry, pieces); !once)
                return once;
        return inner_.put(entry, pieces);
    }

    [[nodiscard]] bool contains(const sha256_digest& name) { return inner_.contains(name); }
    [[nodiscard]] result<void> erase(const sha256_digest& name) {
        if (auto fine = begin(); !fine)
            return fine;
        return inner_.erase(name);
    }
    [[nodiscard]] result<void> flush() {
        if (auto fine = begin(); !fine)
            return fine;
        return inner_.flush();
    }
    [[nodiscard]] result<void> status() const { return inner_.status(); }
    [[nodiscard]] tier_counts counts() const { return inner_.counts(); }
    [[nodiscard]] bool is_null() const noexcept { return kvcache::is_null(inner_); }
    [[nodiscard]] std::size_t parallel_reads() const noexcept { return max_parallel_reads(inner_); }

private:
    struct held {
        explicit held(const fault_injecting_tier& options) : how(options) {}
        const fault_injecting_tier how;
        std::mutex lock;
        std::uint64_t calls = 0, reads = 0, writes = 0, drawn = 0;
        std::vector<std::byte> before = {};
    };

    [[nodiscard]] static bool strikes(std::uint64_t every, std::uint64_t n) noexcept {
        return every != 0 && n % every == 0;
    }
    [[nodiscard]] std::uint64_t draw() noexcept { return mix64(held_->how.seed * 1000003 + ++held_->drawn); }

    [[nodiscard]] result<void> begin() {
        const std::lock_guard guard(held_->lock);
        const std::uint64_t n = ++held_->calls;
        if (strikes(held_->how.fail, n) || (held_->how.disconnect != 0 && n >= held_->how.disconnect))
            return error{error_code::io, "tier", "a fault that was asked for"};
        return {};
    }

    std::unique_ptr<held> held_;
    decltype(std::declval<const Inner&>().open()) inner_;
};

static_assert(tier_policy<fault_injecting_tier<>>);

}}} // namespace kvcache::testing
