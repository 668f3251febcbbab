// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/compressed.hpp>
#include <kvcache/tier/none.hpp>
#if EXAMPLE_HAS_LMDB
#include <kvcache/tier/lmdb.hpp>
#endif
#if EXAMPLE_HAS_REDIS
#include <kvcache/tier/redis.hpp>
#endif

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "flags.hpp"
#include <CLI/CLI.hpp>

namespace support {

/// The value of `--tier`: lmdb:DIRECTORY or redis:HOST:PORT, where HOST is any node of a cluster. An IPv6 address is
/// in brackets. After "compressed+", records are compressed.
struct tier_choice {
    enum class kind { none, lmdb, redis } where = kind::none;
    std::string directory = {}; ///< lmdb
    std::string host = {};      ///< redis
    std::uint16_t port = 0;
    bool compressed = false; ///< Whether records are compressed.
};

/// Parses the value of `--tier`; "" is no tier. Errors: malformed.
inline kvcache::result<tier_choice> read_tier(std::string_view flag, std::string_view text) {
    const auto wrong = [&](const char* why) {
        return kvcache::error{kvcache::error_code::malformed, std::string(flag),
                              std::string(flag) +
                                  " takes lmdb:DIRECTORY or redis:HOST:PORT, both also after compressed+; \"" +
                                  std::string(text) + "\" " + why};
    };
    if (text.empty())
        return tier_choice{};
    constexpr std::string_view mark = "compressed+";
    const bool compressed = text.starts_with(mark);
    const std::string_view where = compressed ? text.substr(mark.size()) : text;
    if (where.starts_with("lmdb:")) {
        if (where.size() == 5)
            return wrong("names no directory");
        return tier_choice{tier_choice::kind::lmdb, std::string(where.substr(5)), {}, 0, compressed};
    }
    if (!where.starts_with("redis:"))
        return wrong("is neither");
    const std::string_view rest = where.substr(6);
    const std::size_t colon = rest.rfind(':');
    if (colon == std::string_view::npos)
        return wrong("has no port");
    std::string_view host = rest.substr(0, colon);
    const auto port = number_in<std::uint16_t>(rest.substr(colon + 1));
    if (!port || *port == 0)
        return wrong("has no port from 1 to 65535");
    if (host.starts_with('[') && host.ends_with(']'))
        host = host.substr(1, host.size() - 2);
    else if (host.find(':') != std::string_view::npos)
        return wrong("has a host with a colon outside of brackets");
    if (host.empty())
        return wrong("names no host");
    if (host.find('/') != std::string_view::npos)
        return wrong("has a slash in its host: it is no URL");
    return tier_choice{tier_choice::kind::redis, {}, std::string(host), *port, compressed};
}

inline CLI::Validator tier_text() {
    return CLI::Validator(
        [](std::string& text) {
            const auto read = read_tier("--tier", text);
            return read ? std::string() : read.error().message;
        },
        "TIER");
}

/// Adds the option `--tier`, whose value is stored in `text`.
inline CLI::Option* add_tier_flag(CLI::App& app, std::string& text) {
    return app
        .add_option("--tier", text,
                    "Where pages stay between runs: lmdb:DIRECTORY or redis:HOST:PORT (its password: REDISCLI_AUTH), "
                    "compressed after compressed+")
        ->check(tier_text());
}

/// Runs `use(policy)` with the tier that the text names, `kvcache::tier::none` if it is empty, and returns its
/// result. If the text is not a tier, or the program was built without it, reports that and returns exit status 1.
template <class Use>
int with_tier(std::string_view program, std::string_view text, Use use) {
    const auto choice = read_tier("--tier", text);
    if (!choice)
        return report(program, choice.error());
    [[maybe_unused]] const auto chosen = [&](auto tier) {
        if (choice->compressed)
            return use(kvcache::tier::compressed<decltype(tier)>{.inner = std::move(tier)});
        return use(std::move(tier));
    };
    switch (choice->where) {
    case tier_choice::kind::none:
        return use(kvcache::tier::none{});
    case tier_choice::kind::lmdb:
#if EXAMPLE_HAS_LMDB
        return chosen(kvcache::tier::lmdb<>{.directory = choice->directory});
#else
        return report(program, {kvcache::error_code::unsupported, "--tier", "--tier: built without LMDB"});
#endif
    case tier_choice::kind::redis:
#if EXAMPLE_HAS_REDIS
    {
        const char* password = std::getenv("REDISCLI_AUTH");
        return chosen(kvcache::tier::redis{
            .host = choice->host, .port = choice->port, .password = password != nullptr ? password : std::string()});
    }
#else
        return report(program, {kvcache::error_code::unsupported, "--tier", "--tier: built without Redis"});
#endif
    }
    return 1;
}

} // namespace support
