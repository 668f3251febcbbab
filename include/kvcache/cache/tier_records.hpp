// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/cache_access.hpp>
#include <kvcache/cache/page_parts.hpp>
#include <kvcache/cache/prompt_page.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/movable_mutex.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/sha256_digest.hpp>
#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

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
        : tier_(std::move(tier)), secret_(secret), seal_(secret) {
        set(0, id);
    }

    [[nodiscard]] Tier& tier() noexcept { return tier_; }
    [[nodiscard]] const Tier& tier() const noexcept { return tier_; }

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
    template <class Cache>
    [[nodiscard]] result<void> hand_over(const Cache& cache, const page_entry& entry, std::size_t end,
                                         const prompt_page& page, const record_names& names) {
        page_parts<Cache> parts(cache);
        parts.add(entry, page.index, end, 0);
        const record_writer made({record_kind::page, page.first(), page.tokens, page.before, page.name, parts.parts()},
                                 names, seal_);
        return tier_.put({.name = page.name,
                          .cost = cache_access::prefill_seconds(cache, page.first(), page.tokens.size()),
                          .depth = static_cast<std::uint32_t>(page.index)},
                         made.pieces());
    }

    /// Copies the pages of a run into a lease. A long run is divided among as many threads as the tier can use; each
    /// copies contiguous pages until one is missing or not sound. Throws: bad_alloc.
    template <class Lease, class Cache>
    [[nodiscard]] std::vector<placed_part> place(const Lease& lease, const Cache& cache, const record_names& names,
                                                 const page_run& run) {
        const std::size_t pages = run.pages();
        const std::size_t enough = pages * cache.codec().page_bytes() / worth_a_thread;
        const std::size_t count =
            std::clamp<std::size_t>(enough, 1, std::max<std::size_t>(max_parallel_reads(tier_), 1));
        std::vector<placed_part> parts(std::min(count, pages));
        for (std::size_t i = 0; i < parts.size(); ++i) {
            parts[i].first = pages * i / parts.size();
            parts[i].pages = pages * (i + 1) / parts.size() - parts[i].first;
        }
        const auto fill = [&](placed_part& part) noexcept {
            part.thrown = detail::exception_of([&] { place<typename Cache::codec_type>(part, lease, names, run); });
        };
        {
            std::vector<std::jthread> helpers;
            helpers.reserve(parts.size() - 1);
            bool more = true; // whether more threads can be started
            while (more && helpers.size() + 1 < parts.size())
                more = detail::completes<std::system_error>(
                    [&] { helpers.emplace_back([&fill, &part = parts[helpers.size() + 1]] { fill(part); }); });
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
        const auto read = record::parse(bytes, seal_);
        if (!read)
            return read.error();
        if (auto own = read->made_under(names); !own)
            return own;
        const struct {
            const char* field;
            bool holds;
        } facts[] = {{"kind", read->kind() == record_kind::page},
                     {"name", read->name() == page.name},
                     {"before", read->before() == page.before},
                     {"first_token", read->first() == page.first()},
                     {"tokens", std::ranges::equal(read->tokens(), page.tokens)}};
        for (const auto& [field, holds] : facts)
            if (!holds)
                return error{error_code::mismatched, field,
                             std::string(field) + ": the record is not the one that was asked for"};
        return place_page<Codec>(*read, 0, lease, at, static_cast<std::uint32_t>(page.tokens.size()), seal_);
    }

    Tier tier_;
    std::string secret_;
    record_authenticator seal_;
    mutable movable_mutex lock_;                       // guards names_
    std::vector<std::unique_ptr<record_names>> names_; // by tenant
};

}} // namespace kvcache
