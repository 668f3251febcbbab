// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/hash/concept.hpp>

#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace hash {

/// Chained XXH3-128 (xxhash.com), starting from the identity's digest. Fast; not collision-resistant against an
/// adversary. An index therefore compares tokens on every hit, and data that leaves the process is named by another
/// hash: the names of a tier's records are HMAC-SHA-256 (record/record_names.hpp).
struct xxh3 {
    using role = hash_role;
    std::string key = {}; ///< Secret that names and seals the records of a tier; changes no name in memory.

    class state {
    public:
        explicit state(digest root) : root_(root) {}

        [[nodiscard]] digest root() const noexcept { return root_; }

        /// Cost: about 20 ns plus 0.1 ns a token.
        [[nodiscard]] digest chain(digest before, std::span<const token_id> run) const {
            digest_builder builder;
            builder.nested(before).number(run.size());
            return builder.bytes(std::as_bytes(run)).finish();
        }

    private:
        digest root_;
    };

    [[nodiscard]] state open(const identity& id) const { return state{digest_of(id)}; }
};

static_assert(hash_policy<xxh3>);

}}} // namespace kvcache::hash
