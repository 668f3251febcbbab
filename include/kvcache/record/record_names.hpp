// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/sha256_builder.hpp>
#include <kvcache/core/sha256_digest.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The fields of an identity in readable form.
using identity_text = std::vector<std::pair<std::string, std::string>>;

/// The names of records outside the process. The name of a run of tokens depends on the run, on all tokens before it,
/// on the identity, and on a secret, which may be empty. Equal identities, secrets and tokens have equal names on
/// every machine. Without the secret a name cannot be computed, nor the tenant of a record determined.
///
///     identity     = HMAC(secret, "kvcache identity" | format | name and value of every field)
///     tenant's key = HMAC(secret, "kvcache tenant" | tenant)
///     name         = HMAC(tenant's key, name before, the identity at first | tokens | run)
///
/// Texts and runs are preceded by their length. Integers have 8 bytes, tokens 4, in little-endian order.
class record_names {
public:
    record_names(const identity& id, std::string_view secret)
        : run_(key_of(hmac_builder(std::as_bytes(std::span(secret))).text("kvcache tenant").text(id.tenant).finish())) {
        const hmac_builder keyed(std::as_bytes(std::span(secret)));
        hmac_builder all = keyed;
        all.text("kvcache identity").number(record_format_revision);
        for_each_field(id, [&](const char* name, const auto& field) {
            std::string value = words(field);
            if (std::string_view(name) == "tenant") // the tenant's salt is secret
                value = to_string(hmac_builder(keyed).text("kvcache salt").text(value).finish());
            all.text(name).text(value);
            fields_.emplace_back(name, std::move(value));
        });
        root_ = all.finish();
    }

    /// The digest of the identity, which takes the place of the name before the first run of a chain.
    [[nodiscard]] const sha256_digest& root() const noexcept { return root_; }

    /// The fields of the identity in order, with the tenant's salt as a digest.
    [[nodiscard]] const identity_text& fields() const noexcept { return fields_; }

    /// Returns the name of a run of tokens that follows the tokens named `before`. Cost: about 200 ns per 16 tokens,
    /// plus 1 us.
    [[nodiscard]] sha256_digest chain(const sha256_digest& before, std::span<const token_id> run) const noexcept {
        hmac_builder more = run_;
        more.nested(before).number(run.size());
        for (const token_id token : run) {
            std::byte little[4];
            store_little(little, 0, static_cast<std::uint32_t>(index_of(token)));
            more.bytes(little);
        }
        return more.finish();
    }

private:
    [[nodiscard]] static hmac_builder key_of(const sha256_digest& key) noexcept { return hmac_builder(key.bytes); }

    [[nodiscard]] static std::string words(const digest& field) { return to_string(field); }
    [[nodiscard]] static std::string words(const std::string& field) { return field; }
    [[nodiscard]] static std::string words(std::uint64_t field) { return std::to_string(field); }

    hmac_builder run_;
    identity_text fields_;
    sha256_digest root_;
};

}} // namespace kvcache
