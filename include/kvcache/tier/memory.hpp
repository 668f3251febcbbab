// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/record_eviction.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// Records in the memory of this process, written at once. It replaces a disk in tests, and gives pages evicted from
/// a small cache a second chance.
template <eviction_policy Eviction = eviction::lru>
struct memory {
    using role = tier_role;
    std::size_t bytes = std::size_t{64} << 20; ///< Maximum bytes of all records.
    std::size_t records = 1024;                ///< Maximum number of records.
    Eviction eviction = {};                    ///< Selects the record to evict when room is needed.
    std::size_t parallel_reads = 2;            ///< Threads that read one long prompt.

    class state {
    public:
        explicit state(const memory& how) : held_(std::make_unique<held>(how)) {}

        template <class Use>
        [[nodiscard]] result<bool> read(const sha256_digest& name, Use&& use) {
            std::shared_ptr<const std::vector<std::byte>> found;
            {
                const std::lock_guard guard(held_->lock);
                const auto at = held_->content.find(name);
                ++(at == held_->content.end() ? held_->counts.misses : held_->counts.hits);
                if (at == held_->content.end())
                    return false;
                held_->ranks.touch(name);
                found = at->second;
            }
            use(std::span<const std::byte>(*found));
            return true;
        }

        [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
            const std::size_t size = total_bytes(pieces);
            const std::lock_guard guard(held_->lock);
            if (!held_->ranks.fits(size) || held_->ranks.contains(entry.name)) {
                ++held_->counts.dropped;
                return {};
            }
            const bool stored = kvcache::detail::completes<std::bad_alloc>([&] {
                auto whole = std::make_shared<const std::vector<std::byte>>(joined(pieces));
                while (const auto victim = held_->ranks.victim_for(entry, size)) {
                    held_->ranks.remove(*victim, true);
                    held_->content.erase(*victim);
                    ++held_->counts.evicted;
                }
                const auto at = held_->content.emplace(entry.name, std::move(whole)).first;
                kvcache::detail::scope_guard undo([&] { held_->content.erase(at); });
                held_->ranks.admit(entry, size);
                undo.dismiss();
            });
            if (!stored) {
                ++held_->counts.failures;
                return error{error_code::out_of_memory, "memory", "there is no memory for a record"};
            }
            ++held_->counts.written;
            held_->counts.bytes_written += size;
            return {};
        }

        [[nodiscard]] bool contains(const sha256_digest& name) const {
            const std::lock_guard guard(held_->lock);
            return held_->ranks.contains(name);
        }

        [[nodiscard]] result<void> erase(const sha256_digest& name) {
            const std::lock_guard guard(held_->lock);
            held_->ranks.remove(name, false);
            held_->content.erase(name);
            return {};
        }

        [[nodiscard]] result<void> flush() { return {}; }
        [[nodiscard]] result<void> status() const { return {}; }
        [[nodiscard]] std::size_t parallel_reads() const noexcept { return held_->parallel_reads; }
        [[nodiscard]] tier_counts counts() const {
            const std::lock_guard guard(held_->lock);
            tier_counts now = held_->counts;
            now.records = held_->ranks.size();
            now.bytes = held_->ranks.bytes();
            return now;
        }

    private:
        struct held {
            explicit held(const memory& how)
                : parallel_reads(how.parallel_reads), ranks(how.eviction, how.records, how.bytes) {}

            const std::size_t parallel_reads;
            std::mutex lock;
            record_eviction<Eviction> ranks;
            std::unordered_map<sha256_digest, std::shared_ptr<const std::vector<std::byte>>, name_hash> content;
            tier_counts counts;
        };
        std::unique_ptr<held> held_;
    };

    [[nodiscard]] state open() const { return state(*this); }
};

static_assert(tier_policy<memory<>>);

}}} // namespace kvcache::tier
