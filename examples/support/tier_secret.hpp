// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "small_file.hpp"
#include "tier_flag.hpp"
#include <CLI/CLI.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace support {

/// Adds the option `--tier-secret-file`, whose value is stored in `file`.
inline CLI::Option* add_tier_secret_flag(CLI::App& app, std::string& file) {
    return app.add_option(
        "--tier-secret-file", file,
        "File with the secret that seals pages in the tier, or else KVCACHE_TIER_SECRET in the environment");
}

/// Reads the secret of a tier: the content of `file` without its last newline, or else the environment variable
/// KVCACHE_TIER_SECRET; empty if there is neither. Errors: io; malformed, if it has fewer than 16 or more than 4096
/// bytes.
inline kvcache::result<std::string> read_tier_secret(const std::string& file) {
    std::string secret;
    const std::string from = file.empty() ? "KVCACHE_TIER_SECRET" : "--tier-secret-file";
    if (!file.empty()) {
        auto text = read_small_file(from, file);
        if (!text)
            return text.error();
        secret = std::move(*text);
        if (secret.ends_with('\n'))
            secret.pop_back();
    } else if (const char* said = std::getenv("KVCACHE_TIER_SECRET")) {
        secret = said;
    } else {
        return secret;
    }
    if (secret.size() < 16 || secret.size() > 4096)
        return kvcache::error{kvcache::error_code::malformed, from,
                              from + ": a secret has 16 to 4096 bytes, and this one has " +
                                  std::to_string(secret.size())};
    return secret;
}

/// Returns why a tier needs a secret: users other than this one can write to it. None for a tier that is this user's.
inline std::optional<std::string> needs_secret(const tier_choice& tier) {
    const std::string advice = " can forge pages; set --tier-secret-file or KVCACHE_TIER_SECRET";
    if (tier.where == tier_choice::kind::redis)
        return "anyone who can write to " + tier.host + ':' + std::to_string(tier.port) + advice;
    struct ::stat status = {};
    if (tier.where != tier_choice::kind::lmdb || ::stat(tier.directory.c_str(), &status) != 0)
        return std::nullopt; // a new directory is its owner's
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) == 0 && (status.st_uid == ::geteuid() || status.st_uid == 0))
        return std::nullopt;
    return "anyone who can write to " + tier.directory + advice;
}

} // namespace support
