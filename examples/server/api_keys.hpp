// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/sha256_builder.hpp>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../support/small_file.hpp"
#include "http_message.hpp"
#include "options.hpp"

namespace server {

/// The API keys of a server, kept as digests. Without keys it accepts every request.
class api_keys {
public:
    /// Reads the keys of --api-key, of --api-key-file (one on each line) and of the environment variable
    /// KVCACHE_API_KEYS (separated by commas). Errors: io, malformed.
    [[nodiscard]] static kvcache::result<api_keys> read(const options& with) {
        api_keys made;
        for (const std::string& each : with.api_keys)
            made.add(each);
        if (const char* listed = std::getenv("KVCACHE_API_KEYS"); listed != nullptr && !made.add_all(listed, ','))
            return kvcache::error{kvcache::error_code::malformed, "KVCACHE_API_KEYS", "KVCACHE_API_KEYS has no key"};
        if (with.api_key_file.empty())
            return made;
        const auto text = support::read_small_file("--api-key-file", with.api_key_file);
        if (!text)
            return text.error();
        if (!made.add_all(*text, '\n'))
            return kvcache::error{kvcache::error_code::malformed, "--api-key-file",
                                  "--api-key-file: " + with.api_key_file + " has no key"};
        return made;
    }

    [[nodiscard]] bool empty() const noexcept { return keys_.empty(); }

    /// Returns the digest of the key that a request has; none if that is not one of these. Cost: O(keys), the same for
    /// every key.
    [[nodiscard]] std::optional<kvcache::sha256_digest> of(const http_request& in) const {
        const kvcache::sha256_digest sent = digest_of(token_of(in.header("Authorization")));
        bool known = false;
        for (const auto& each : keys_)
            known |= kvcache::same_in_constant_time(each, sent);
        return known ? std::optional(sent) : std::nullopt;
    }

private:
    [[nodiscard]] static kvcache::sha256_digest digest_of(std::string_view key) {
        kvcache::sha256_builder made;
        made.bytes(std::as_bytes(std::span(key)));
        return made.finish();
    }

    void add(std::string_view key) { keys_.push_back(digest_of(key)); }

    // Adds the nonempty parts of a text, without spaces around them. Returns whether there is one.
    bool add_all(std::string_view text, char separator) {
        const std::size_t before = keys_.size();
        while (!text.empty()) {
            std::string_view part = text.substr(0, text.find(separator));
            text.remove_prefix(std::min(part.size() + 1, text.size()));
            const auto first = part.find_first_not_of(" \t\r");
            if (first != part.npos)
                add(part.substr(first, part.find_last_not_of(" \t\r") + 1 - first));
        }
        return keys_.size() > before;
    }

    // Returns the token of an Authorization header; the name of the scheme is in any case (RFC 9110, 11.1).
    [[nodiscard]] static std::string token_of(const std::string& header) {
        constexpr std::string_view scheme = "bearer ";
        const bool named = header.size() >= scheme.size() &&
                           std::equal(scheme.begin(), scheme.end(), header.begin(), [](char wanted, char sent) {
                               return wanted == (sent >= 'A' && sent <= 'Z' ? sent - 'A' + 'a' : sent);
                           });
        const std::size_t start = named ? header.find_first_not_of(' ', scheme.size()) : header.npos;
        return start == header.npos ? std::string() : header.substr(start);
    }

    std::vector<kvcache::sha256_digest> keys_;
};

} // namespace server
