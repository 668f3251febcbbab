// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/none.hpp>
#include <kvcache/tier/run.hpp>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "../support/tier_flag.hpp"
#include "../support/tier_secret.hpp"

namespace server {

/// The tier selected by --tier at startup.
struct chosen_tier {
    using role = kvcache::tier_role;
    std::variant<kvcache::tier::none
#if EXAMPLE_HAS_LMDB
                 ,
                 kvcache::tier::lmdb<>, kvcache::tier::compressed<kvcache::tier::lmdb<>>
#endif
#if EXAMPLE_HAS_REDIS
                 ,
                 kvcache::tier::redis, kvcache::tier::compressed<kvcache::tier::redis>
#endif
                 >
        which = {};
    std::string secret = {}; ///< Names and seals the pages; empty: none.
    class state;
    [[nodiscard]] state open() const;
};

class chosen_tier::state {
public:
    explicit state(const chosen_tier& from)
        : of_(std::visit([](const auto& policy) -> any { return policy.open(); }, from.which)) {}

    template <class Use>
    [[nodiscard]] kvcache::result<bool> read(const kvcache::sha256_digest& name, Use&& use) {
        return std::visit([&](auto& tier) { return tier.read(name, use); }, of_);
    }
    [[nodiscard]] std::size_t count_prefix_hits(std::span<const kvcache::sha256_digest> names) {
        return std::visit([&](auto& tier) { return kvcache::tier::count_prefix_hits(tier, names); }, of_);
    }
    [[nodiscard]] std::vector<bool> present(std::span<const kvcache::sha256_digest> names) {
        return std::visit([&](auto& tier) { return kvcache::tier::present(tier, names); }, of_);
    }
    template <class Use>
    [[nodiscard]] kvcache::result<std::size_t> read_run(std::span<const kvcache::sha256_digest> names, Use&& use) {
        return std::visit([&](auto& tier) { return kvcache::tier::read_run(tier, names, use); }, of_);
    }
    [[nodiscard]] kvcache::result<void> put(const kvcache::tier_entry& entry,
                                            std::span<const std::span<const std::byte>> pieces) {
        return std::visit([&](auto& tier) { return tier.put(entry, pieces); }, of_);
    }
    [[nodiscard]] bool contains(const kvcache::sha256_digest& name) {
        return std::visit([&](auto& tier) { return tier.contains(name); }, of_);
    }
    [[nodiscard]] kvcache::result<void> erase(const kvcache::sha256_digest& name) {
        return std::visit([&](auto& tier) { return tier.erase(name); }, of_);
    }
    [[nodiscard]] kvcache::result<void> flush() {
        return std::visit([](auto& tier) { return tier.flush(); }, of_);
    }
    [[nodiscard]] kvcache::result<void> status() const {
        return std::visit([](const auto& tier) { return tier.status(); }, of_);
    }
    [[nodiscard]] kvcache::tier_counts counts() const {
        return std::visit([](const auto& tier) { return tier.counts(); }, of_);
    }
    /// Returns why the store cannot be used now, if the server can run without it: it is damaged and cannot be set
    /// aside, or is not connected, or its disk is full. Another fault is one of the flag `--tier`.
    [[nodiscard]] std::optional<kvcache::error> passing_fault() const {
        const auto usable = status();
        if (usable)
            return std::nullopt;
        const kvcache::error& why = usable.error();
        const bool passes = why.code != kvcache::error_code::io || why.field == "redis" || why.field == "lmdb";
        return passes ? std::optional(why) : std::nullopt;
    }
    /// Returns the damage of a store that was set aside.
    [[nodiscard]] std::optional<kvcache::error> damage() const {
        return std::visit(
            [](const auto& tier) -> std::optional<kvcache::error> {
                if constexpr (requires { tier.damage(); })
                    return tier.damage();
                else
                    return std::nullopt;
            },
            of_);
    }
    [[nodiscard]] bool is_null() const noexcept {
        return std::visit([](const auto& tier) { return kvcache::is_null(tier); }, of_);
    }
    [[nodiscard]] std::size_t parallel_reads() const noexcept {
        return std::visit([](const auto& tier) { return kvcache::max_parallel_reads(tier); }, of_);
    }

private:
    using any = std::variant<kvcache::tier::none::state
#if EXAMPLE_HAS_LMDB
                             ,
                             kvcache::tier::lmdb<>::state, kvcache::tier::compressed<kvcache::tier::lmdb<>>::state
#endif
#if EXAMPLE_HAS_REDIS
                             ,
                             kvcache::tier::redis::state, kvcache::tier::compressed<kvcache::tier::redis>::state
#endif
                             >;
    any of_;
};

/// Says on standard error how a tier's store was damaged, or why it cannot be used now. Errors: those of a store that
/// the flag `--tier` should not name.
[[nodiscard]] inline kvcache::result<void> say_faults(const chosen_tier::state& tier) {
    if (const auto damage = tier.damage())
        std::fprintf(stderr, "warning: %s\n", damage->message.c_str());
    if (const auto fault = tier.passing_fault()) {
        std::fprintf(stderr, "warning: the tier is not used now: %s\n", fault->message.c_str());
        return {};
    }
    return tier.status();
}

/// Parses the tier of a flag and reads its secret. Says on standard error if it needs one and has none. Errors: those
/// of read_tier and read_tier_secret; unsupported, for a tier that this program was built without.
[[nodiscard]] inline kvcache::result<chosen_tier> read_chosen_tier(const std::string& text,
                                                                   const std::string& secret_file) {
    const auto read = support::read_tier("--tier", text);
    if (!read)
        return read.error();
    const auto secret = support::read_tier_secret(secret_file);
    if (!secret)
        return secret.error();
    if (const auto warning = support::needs_secret(*read); warning && secret->empty())
        std::fprintf(stderr, "warning: %s\n", warning->c_str());
    using kind = support::tier_choice::kind;
    [[maybe_unused]] const auto chosen = [&](auto tier) {
        if (read->compressed)
            return chosen_tier{kvcache::tier::compressed<decltype(tier)>{.inner = std::move(tier)}, *secret};
        return chosen_tier{std::move(tier), *secret};
    };
#if EXAMPLE_HAS_LMDB
    if (read->where == kind::lmdb)
        return chosen(kvcache::tier::lmdb<>{.directory = read->directory});
#endif
#if EXAMPLE_HAS_REDIS
    if (read->where == kind::redis) {
        const char* password = std::getenv("REDISCLI_AUTH");
        return chosen(kvcache::tier::redis{
            .host = read->host, .port = read->port, .password = password != nullptr ? password : std::string()});
    }
#endif
    if (read->where != kind::none)
        return kvcache::error{kvcache::error_code::unsupported, "--tier", "--tier: built without " + text};
    return chosen_tier{};
}

inline chosen_tier::state chosen_tier::open() const {
    return state(*this);
}

static_assert(kvcache::tier_policy<chosen_tier>);

} // namespace server
