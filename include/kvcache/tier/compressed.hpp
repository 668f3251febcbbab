// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/sha256_builder.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/memory.hpp>
#include <kvcache/tier/record_eviction.hpp>
#include <kvcache/tier/run.hpp>
#include <kvcache/tier/shuffled_huffman.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// A lossless code of bytes. `name` names the code and its revision: what is written under one name is read by no
/// other code. `encode` returns the code of some bytes. `decode` replaces its second argument by the bytes of a code,
/// and returns false for what is no code. It is given damaged bytes too: it must reject them or make other bytes of
/// them, of a size that the code bounds. Only memory may run out (bad_alloc).
template <class C>
concept byte_code = std::copyable<C> &&
    requires(const C code, std::span<const std::byte> bytes, std::vector<std::byte>& to) {
    { code.name() } -> std::same_as<std::string>;
    { code.encode(bytes) } -> std::same_as<std::vector<std::byte>>;
    { code.decode(bytes, to) } -> std::same_as<bool>;
};

static_assert(byte_code<shuffled_huffman>);

/// A tier that tells what was wrong with a store that it set aside, such as lmdb.
template <class S>
concept tells_damage = requires(const S tier) {
    tier.damage();
};

/// Wraps a tier, and compresses its records, which come back bit for bit. The inner tier's limits and counts are of
/// compressed bytes. Its records have names of their own, made of the record's name and the code's, so compressed and
/// plain records can share a store. A record that is damaged, or is none of the code, is passed on as it is stored,
/// and its reader refuses it. `put` compresses before it returns, 1 to 3 ns a byte; reading decompresses, 0.3 to 1 ns
/// a byte (lab/tiers.md).
template <tier_policy Inner = memory<>, byte_code Code = shuffled_huffman>
struct compressed {
    using role = tier_role;
    Inner inner = {};
    Code code = {}; ///< Makes records smaller.
    class state;
    [[nodiscard]] state open() const { return state(*this); }
};

template <tier_policy Inner>
compressed(Inner) -> compressed<Inner>;
template <tier_policy Inner, byte_code Code>
compressed(Inner, Code) -> compressed<Inner, Code>;

template <tier_policy Inner, byte_code Code>
class compressed<Inner, Code>::state {
    using inner_state = decltype(std::declval<const Inner&>().open());

public:
    explicit state(const compressed& how) : held_(std::make_unique<held>(how.code)), inner_(how.inner.open()) {}

    template <class Use>
    [[nodiscard]] result<bool> read(const sha256_digest& name, Use&& use) {
        std::vector<std::byte> bytes;
        return inner_.read(held_->name_of(name),
                           [&](std::span<const std::byte> stored) { use(held_->decoded(stored, bytes)); });
    }
    template <class Use>
    [[nodiscard]] result<std::size_t> read_run(std::span<const sha256_digest> names, Use&& use) {
        std::vector<std::byte> bytes; // for one record after the other
        return tier::read_run(inner_, names_of(names), [&](std::size_t i, std::span<const std::byte> stored) {
            return use(i, held_->decoded(stored, bytes));
        });
    }
    [[nodiscard]] std::size_t count_prefix_hits(std::span<const sha256_digest> names) {
        return tier::count_prefix_hits(inner_, names_of(names));
    }
    [[nodiscard]] std::vector<bool> present(std::span<const sha256_digest> names) {
        return tier::present(inner_, names_of(names));
    }
    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        std::vector<std::byte> made;
        if (!kvcache::detail::completes<std::bad_alloc>([&] { made = held_->code.encode(joined(pieces)); })) {
            ++held_->failures;
            return error{error_code::out_of_memory, "compressed", "there is no memory for a record"};
        }
        tier_entry own = entry;
        own.name = held_->name_of(entry.name);
        const std::span<const std::byte> whole[] = {made};
        return inner_.put(own, whole);
    }
    [[nodiscard]] bool contains(const sha256_digest& name) { return inner_.contains(held_->name_of(name)); }
    [[nodiscard]] result<void> erase(const sha256_digest& name) { return inner_.erase(held_->name_of(name)); }
    [[nodiscard]] result<void> flush() { return inner_.flush(); }
    [[nodiscard]] result<void> status() const { return inner_.status(); }
    /// Returns the counts of the inner tier: bytes are compressed bytes.
    [[nodiscard]] tier_counts counts() const {
        tier_counts all = inner_.counts();
        all.failures += held_->failures;
        return all;
    }
    [[nodiscard]] bool is_null() const noexcept { return kvcache::is_null(inner_); }
    [[nodiscard]] std::size_t parallel_reads() const noexcept { return max_parallel_reads(inner_); }

    /// Returns the damage of a store that was set aside, where the inner tier tells it.
    [[nodiscard]] auto damage() const requires tells_damage<inner_state> { return inner_.damage(); }

    [[nodiscard]] auto& inner() noexcept { return inner_; }
    [[nodiscard]] const auto& inner() const noexcept { return inner_; }

private:
    struct held {
        explicit held(const Code& how)
            : code(how), names(sha256_builder().text("kvcache compressed").text(how.name())) {}

        [[nodiscard]] sha256_digest name_of(const sha256_digest& name) const noexcept {
            return sha256_builder(names).nested(name).finish();
        }
        // The bytes of a record, kept in `to`, or the code itself if it is damaged.
        [[nodiscard]] std::span<const std::byte> decoded(std::span<const std::byte> from,
                                                         std::vector<std::byte>& to) const {
            return code.decode(from, to) ? std::span<const std::byte>(to) : from;
        }

        const Code code;
        const sha256_builder names;
        std::atomic<std::uint64_t> failures{0};
    };

    [[nodiscard]] std::vector<sha256_digest> names_of(std::span<const sha256_digest> names) const {
        std::vector<sha256_digest> own;
        own.reserve(names.size());
        for (const sha256_digest& name : names)
            own.push_back(held_->name_of(name));
        return own;
    }

    std::unique_ptr<held> held_;
    inner_state inner_;
};

static_assert(tier_policy<compressed<>>);

}}} // namespace kvcache::tier
