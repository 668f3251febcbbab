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

namespace kvcache { inline namespace KVCACHE_ABI { namespace hash {

// The low-level functions of libcrypto: allocating and fetching an EVP context costs more than the two blocks of a
// page. OpenSSL 3 deprecates them but keeps them.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/// Chained SHA-256 under a secret key, for names that leave the process or that tenants must not be able to make
/// collide. Every message begins with one block that holds its purpose and the digest of the key; the rest is
/// length-prefixed. A name is the first 128 bits of the hash. Truncation prevents length extension, and without the key
/// no one without the key can search for collisions. FIPS 180-4; the key as a prefix block: the objections of RFC 6151
/// do not apply to a truncated digest (as SHA-512/256).
///
///     name(past, run) = SHA-256( "kvcache chain 1" 0.. | SHA-256(key) || past | tokens | run )[0, 16)
///
/// Without a key the names are plain SHA-256 names, which anybody can compute.
struct sha256 {
    using role = hash_role;
    std::string key = {}; ///< Secret bytes, ideally 32 from /dev/urandom. Equal keys give equal names.

    class state {
    public:
        state(std::string_view key, const identity& id) {
            static_assert(std::endian::native == std::endian::little,
                          "runs are hashed as they lie, the lowest byte first");
            const hash_bytes key_digest = message().text("kvcache key 1").text(key).finish();
            chain_ = message("kvcache chain 1", key_digest);
            message fields("kvcache identity 3", key_digest);
            for_each_field(id, [&](const char* name, const auto& field) {
                fields.text(name);
                append_field(fields, field);
            });
            root_ = name_of(fields.finish());
        }

        [[nodiscard]] digest root() const noexcept { return root_; }

        /// Cost: one block for every 16 tokens and one or two more, each about 40 ns with SHA instructions.
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
            // Starts with the block shared by all messages of one purpose and key.
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
            message& text(std::string_view words) noexcept { return number(words.size()).bytes(text_bytes(words)); }
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

        static void append_field(message& to, const digest& field) { to.nested(field); }
        static void append_field(message& to, const std::string& field) { to.text(field); }
        static void append_field(message& to, std::uint64_t field) { to.number(field); }

        [[nodiscard]] static constexpr std::uint64_t reversed(std::uint64_t n) noexcept {
            std::uint64_t made = 0;
            for (int i = 0; i < 8; ++i, n >>= 8)
                made = made << 8 | (n & 0xff);
            return made;
        }

        // The 32 hexadecimal digits of a name are the first of the SHA-256.
        [[nodiscard]] static digest name_of(const hash_bytes& whole) noexcept {
            digest name;
            for (std::size_t i = 0; i < 8; ++i) {
                name.high = name.high << 8 | whole[i];
                name.low = name.low << 8 | whole[i + 8];
            }
            return name;
        }

        message chain_; // state after its first block
        digest root_;
    };

    [[nodiscard]] state open(const identity& id) const { return {key, id}; }
};

#pragma GCC diagnostic pop

static_assert(hash_policy<sha256>);

}}} // namespace kvcache::hash
