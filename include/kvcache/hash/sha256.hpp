// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/hash/concept.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <openssl/sha.h>

namespace kvcache::inline KVCACHE_ABI {

/// Chained SHA-256 under a secret key: for names that leave the process, or that tenants must not be able to make
/// collide. Every name begins with one block that holds its purpose and the digest of the key; what follows is
/// length-prefixed. A name is the first 128 bits, so none can be continued without the key, and without the key nobody
/// can look for two runs of one name. FIPS 180-4; the key as a prefix block: RFC 6151's reasons do not apply to a
/// truncated digest (as SHA-512/256).
///
///     name(past, run) = SHA-256( "kvcache chain 1" 0.. | SHA-256(key) || past | tokens | run )[0, 16)
///
/// Without a key the names are still those of a cryptographic hash, and anybody can compute them.
struct sha256 {
    using role = hash_role;
    std::string key = {}; ///< Secret bytes, at best 32 of /dev/urandom. Equal keys give equal names.
    class state;
    [[nodiscard]] state open(const identity& id) const;
};

// The block functions of libcrypto itself: an EVP context is allocated and looked up, which costs more than the two
// blocks of a page. OpenSSL 3 advises against them and keeps them.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

class sha256::state {
public:
    state(std::string_view key, const identity& id) {
        static_assert(std::endian::native == std::endian::little, "runs are hashed as they lie, the lowest byte first");
        const hash_bytes key_digest = message().text("kvcache key 1").text(key).finish();
        chain_ = message("kvcache chain 1", key_digest);
        message fields("kvcache identity 2", key_digest);
        for_each_field(id, [&](const char* name, const auto& field) {
            fields.text(name);
            feed(fields, field);
        });
        root_ = name_of(fields.finish());
    }

    [[nodiscard]] digest root() const noexcept { return root_; }

    /// Cost: a block for every 16 tokens and one or two more, each about 40 ns with SHA instructions.
    [[nodiscard]] digest chain(digest before, std::span<const token_id> run) const {
        message more = chain_;
        more.nested(before).number(run.size()).bytes(std::as_bytes(run));
        return name_of(more.finish());
    }

private:
    using hash_bytes = std::array<std::uint8_t, SHA256_DIGEST_LENGTH>;

    // A message of length-prefixed parts.
    class message {
    public:
        message() noexcept { ::SHA256_Init(&state_); }
        // The block that all messages of one purpose and key begin with.
        message(std::string_view purpose, const hash_bytes& key) : message() {
            std::array<char, 32> padded = {};
            purpose.copy(padded.data(), padded.size());
            bytes(std::as_bytes(std::span(padded))).bytes(std::as_bytes(std::span(key)));
        }

        message& bytes(std::span<const std::byte> data) noexcept {
            ::SHA256_Update(&state_, data.data(), data.size());
            return *this;
        }
        message& number(std::uint64_t n) noexcept { return bytes(std::as_bytes(std::span(&n, 1))); }
        message& text(std::string_view words) noexcept {
            return number(words.size()).bytes(std::as_bytes(std::span(words)));
        }
        message& nested(const digest& d) noexcept {
            return number(reversed(d.high)).number(reversed(d.low)); // the first bytes of its SHA-256, in order
        }
        [[nodiscard]] hash_bytes finish() noexcept {
            hash_bytes made;
            ::SHA256_Final(made.data(), &state_);
            return made;
        }

    private:
        ::SHA256_CTX state_;
    };

    static void feed(message& to, const digest& field) { to.nested(field); }
    static void feed(message& to, const std::string& field) { to.text(field); }
    static void feed(message& to, std::uint64_t field) { to.number(field); }

    [[nodiscard]] static constexpr std::uint64_t reversed(std::uint64_t n) noexcept {
        std::uint64_t made = 0;
        for (int i = 0; i < 8; ++i, n >>= 8)
            made = made << 8 | (n & 0xff);
        return made;
    }

    // Its 32 letters are the first of the SHA-256 in hexadecimal.
    [[nodiscard]] static digest name_of(const hash_bytes& whole) noexcept {
        digest name;
        for (std::size_t i = 0; i < 8; ++i) {
            name.high = name.high << 8 | whole[i];
            name.low = name.low << 8 | whole[i + 8];
        }
        return name;
    }

    message chain_; // after its first block
    digest root_;
};

#pragma GCC diagnostic pop

inline sha256::state sha256::open(const identity& id) const {
    return {key, id};
}

static_assert(hash_policy<sha256>);

} // namespace kvcache
