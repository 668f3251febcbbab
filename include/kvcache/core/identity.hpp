// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>

#include <cstdint>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The revision of the numeric contract: the order of every reduction, the polynomials, the tile and split lengths. It
/// changes whenever the same inputs may give different bits. It is part of a cache's identity.
inline constexpr unsigned numeric_contract_revision = 1;

/// The revision of the record format of snapshots and tiers (docs/format.md). It changes whenever the meaning of any
/// byte changes. It is part of a cache's identity, so records of another revision are not found.
inline constexpr unsigned record_format_revision = 2;

/// Everything besides the tokens that determines the bits of a cached page. Two caches may exchange pages if and only
/// if every field is equal. A new field must be named in for_each_field, which does not compile otherwise; `digest_of`
/// then hashes it.
struct identity {
    digest weights = {};            ///< Digest of the checkpoint's names, dtypes, shapes and bytes.
    std::string adapter = {};       ///< Name and version of the LoRA adapter; empty for none.
    digest tokenizer = {};          ///< Digest of tokenizer.json.
    std::string config = {};        ///< Architecture and extents, as canonical text.
    std::string rope = {};          ///< RoPE parameters: base, scaling, frequencies.
    std::string codec = {};         ///< The page codec and its options.
    std::string layout = {};        ///< The layout of a page.
    std::uint64_t page_tokens = 0;  ///< Tokens per page.
    std::string weight_format = {}; ///< Format of the weights that the GEMMs read: "f32", "bf16", "Q4_K".
    std::uint64_t numeric_contract = numeric_contract_revision;
    std::string backend = "cpu";   ///< The backend and its kernel revision.
    std::string lineage = "exact"; ///< "exact", or "approximate" for pages that attended to an inexact page.
    std::uint64_t format = record_format_revision;
    std::string tenant = {}; ///< A salt that keeps tenants apart.

    friend bool operator==(const identity&, const identity&) = default;
};

namespace detail {

inline void append_field(digest_builder& to, const digest& field) {
    to.nested(field);
}
inline void append_field(digest_builder& to, const std::string& field) {
    to.text(field);
}
inline void append_field(digest_builder& to, std::uint64_t field) {
    to.number(field);
}

} // namespace detail

/// Calls visit(name, field) for every field, in order.
template <class Visit>
void for_each_field(const identity& id, Visit visit) {
    // A structured binding: a field that is added and not named here does not compile.
    const auto& [weights, adapter, tokenizer, config, rope, codec, layout, page_tokens, weight_format, numeric_contract,
                 backend, lineage, format, tenant] = id;
    visit("weights", weights);
    visit("adapter", adapter);
    visit("tokenizer", tokenizer);
    visit("config", config);
    visit("rope", rope);
    visit("codec", codec);
    visit("layout", layout);
    visit("page_tokens", page_tokens);
    visit("weight_format", weight_format);
    visit("numeric_contract", numeric_contract);
    visit("backend", backend);
    visit("lineage", lineage);
    visit("format", format);
    visit("tenant", tenant);
}

/// The digest of an identity: domain-separated, every field preceded by its name, length-prefixed.
[[nodiscard]] inline digest digest_of(const identity& id) {
    digest_builder builder;
    builder.text("kvcache identity 3");
    for_each_field(id, [&](const char* name, const auto& field) {
        builder.text(name);
        detail::append_field(builder, field);
    });
    return builder.finish();
}

}} // namespace kvcache
