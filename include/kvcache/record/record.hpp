// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/sha256_builder.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The kinds of records.
enum class record_kind : std::uint32_t {
    page = 1,     ///< One full page of a chain.
    sequence = 2, ///< A whole sequence, from its first token.
    chunk = 3,    ///< Where a chunk lies: all tokens up to its end, and the rows after their last full page.
    block = 4,    ///< The block that a layer group has of one full page of a chain.
};

/// The kinds of parts of a record.
enum class part_kind : std::uint32_t {
    page = 1,             ///< A page as its codec keeps it; rows after those in use are zero.
    exact = 2,            ///< The exact rows of that page, as the plain codec keeps them.
    generation_state = 3, ///< How an answer was being said (session/snapshot.hpp).
    block = 16, ///< The block of layer group 0 for that page: keys and values, or a state. Group g has kind 16 + g.
};
inline constexpr std::uint32_t most_part_groups = 64; ///< Layer groups whose blocks have part kinds.

/// The kind of a part with the block of a layer group.
[[nodiscard]] constexpr part_kind group_part(std::size_t group) noexcept {
    return static_cast<part_kind>(static_cast<std::uint32_t>(part_kind::block) + static_cast<std::uint32_t>(group));
}
/// The name of a part's kind, for errors.
[[nodiscard]] constexpr const char* name_of(part_kind kind) noexcept {
    constexpr const char* names[] = {"part", "page", "exact", "speaking"};
    return kind >= part_kind::block ? "block" : names[static_cast<std::uint32_t>(kind)];
}

/// The offsets of a record's fields (docs/format.md). A record has exactly one valid form. Every offset follows from
/// the counts, but is stored too, so that a reader can find a part without computing the layout.
namespace record_layout {

/// The first bytes of every record.
inline constexpr std::array<unsigned char, 8> magic = {0x89, 'k', 'v', 'c', 0x0d, 0x0a, 0x1a, 0x0a};

inline constexpr std::size_t alignment = 64;    ///< Alignment of the payload and of every part.
inline constexpr std::size_t fixed_bytes = 256; ///< Size of the fields below; the table of the parts follows.
inline constexpr std::size_t part_bytes = 64;   ///< Size of an entry in the table of the parts.

/// Offsets in the header, in bytes.
/// @{
inline constexpr std::size_t format = 8, kind = 12, checksum_kind = 16, parts = 20, header_bytes = 24, total_bytes = 32,
                             first_token = 40, tokens = 48, tokens_offset = 56, identity_offset = 64,
                             identity_bytes = 72, parts_offset = 80, reserved = 88, identity = 96, before = 128,
                             name = 160, more_reserved = 192, checksum = 224;
/// @}

/// Offsets in an entry of the table of the parts, in bytes.
/// @{
inline constexpr std::size_t part_kind = 0, part_index = 4, part_offset = 8, part_size = 16, part_rows = 24,
                             part_reserved = 28, part_checksum = 32;
/// @}

/// Returns n rounded up to the alignment.
[[nodiscard]] constexpr std::uint64_t aligned(std::uint64_t n) noexcept {
    return (n + alignment - 1) / alignment * alignment;
}

} // namespace record_layout

/// The integrity check of a record.
enum class authenticator_kind : std::uint32_t {
    xxh3 = 1, ///< XXH3-128, the low half first, then 16 zeros; detects accidental damage.
    hmac = 2, ///< HMAC-SHA-256 under a secret; also detects forgery.
};

/// Computes the checksums of a record's parts and header.
class record_authenticator {
public:
    /// XXH3-128 without a secret, HMAC-SHA-256 with one.
    explicit record_authenticator(std::string_view secret)
        : kind_(secret.empty() ? authenticator_kind::xxh3 : authenticator_kind::hmac),
          keyed_(hmac_builder(text_bytes(secret)).text("kvcache seal").finish().bytes) {}

    [[nodiscard]] authenticator_kind kind() const noexcept { return kind_; }

    /// Returns the checksum of the concatenated bytes. Cost: 0.1 ns per byte, or about 5 ns with a secret.
    [[nodiscard]] sha256_digest of(std::span<const std::byte> bytes, std::span<const std::byte> more = {}) const {
        if (kind_ == authenticator_kind::hmac)
            return hmac_builder(keyed_).bytes(bytes).bytes(more).finish();
        const digest sum = digest_builder().bytes(bytes).bytes(more).finish();
        sha256_digest made;
        store_little(made.bytes, 0, sum.low);
        store_little(made.bytes, 8, sum.high);
        return made;
    }

private:
    authenticator_kind kind_;
    hmac_builder keyed_;
};

/// The fields of an identity in readable form.
using identity_text = std::vector<std::pair<std::string, std::string>>;

/// The names of records outside the process. The name of a run of tokens depends on the run, on all tokens before it,
/// on the identity, and on a secret, which may be empty. Equal identities, secrets and tokens have equal names on
/// every machine. Without the secret a name cannot be computed, nor the tenant of a record determined.
///
///     identity     = HMAC(secret, "kvcache identity" | format | name and value of every field)
///     tenant's key = HMAC(secret, "kvcache tenant" | tenant)
///     name         = HMAC(tenant's key, name before, the identity at first | tokens | run)
///     chunk's name = HMAC(tenant's key, "kvcache chunk" | identity | place | tokens | first tokens of the chunk)
///     block's name = HMAC(tenant's key, "kvcache block" | name of its page | layer group)
///
/// Texts and runs are preceded by their length. Integers have 8 bytes, tokens 4, in little-endian order.
class record_names {
public:
    record_names(const identity& id, std::string_view secret)
        : run_(key_of(hmac_builder(text_bytes(secret)).text("kvcache tenant").text(id.tenant).finish())) {
        const hmac_builder keyed(text_bytes(secret));
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
        return finish(more.nested(before), run);
    }

    /// Returns the name of all tokens of a prompt: a chain of its pages, the last of which may be short.
    [[nodiscard]] sha256_digest of(std::span<const token_id> tokens, std::size_t page_tokens) const noexcept {
        sha256_digest name = root_;
        for (; !tokens.empty(); tokens = tokens.subspan(std::min(tokens.size(), page_tokens)))
            name = chain(name, tokens.first(std::min(tokens.size(), page_tokens)));
        return name;
    }

    /// Returns the name of a chunk by its first tokens. Chunks that begin alike are at places 0, 1, ... Cost: as chain.
    [[nodiscard]] sha256_digest chunk(std::size_t place, std::span<const token_id> begin) const noexcept {
        hmac_builder more = run_;
        return finish(more.text("kvcache chunk").nested(root_).number(place), begin);
    }

    /// Returns the name of the block that a layer group has of a page. Cost: about 1 us.
    [[nodiscard]] sha256_digest block(const sha256_digest& page, std::size_t group) const noexcept {
        hmac_builder more = run_;
        return more.text("kvcache block").nested(page).number(group).finish();
    }

private:
    [[nodiscard]] static sha256_digest finish(hmac_builder& more, std::span<const token_id> run) noexcept {
        more.number(run.size());
        for (const token_id token : run) {
            std::byte little[4];
            store_little(little, 0, static_cast<std::uint32_t>(index_of(token)));
            more.bytes(little);
        }
        return more.finish();
    }

    [[nodiscard]] static hmac_builder key_of(const sha256_digest& key) noexcept { return hmac_builder(key.bytes); }

    [[nodiscard]] static std::string words(const digest& field) { return to_string(field); }
    [[nodiscard]] static std::string words(const std::string& field) { return field; }
    [[nodiscard]] static std::string words(std::uint64_t field) { return std::to_string(field); }

    hmac_builder run_;
    identity_text fields_;
    sha256_digest root_;
};

/// A part of a record, in place. Its bytes are verified by checking a private copy against the checksum; see sound().
struct record_part {
    part_kind kind = part_kind::page;
    std::uint32_t index = 0;
    std::uint32_t rows = 0;
    std::span<const std::byte> bytes = {};
    sha256_digest checksum = {};
};

/// A record in memory, in place: its header, fully checked, and its parts, not yet read.
class record {
public:
    /// Parses untrusted bytes. A record has exactly one valid form: any other header byte, or any missing or extra
    /// byte, is rejected. Errors: truncated, malformed, unsupported (another format), mismatched (another kind of
    /// checksum), with the field's name. Cost: O(header).
    [[nodiscard]] static result<record> parse(std::span<const std::byte> bytes, const record_authenticator& auth) {
        record made;
        for (const auto step : {&record::take_fixed, &record::take_places, &record::take_checked, &record::take_parts,
                                &record::take_identity, &record::take_tokens})
            if (auto fine = (made.*step)(bytes, auth); !fine)
                return fine.error();
        return made;
    }

    [[nodiscard]] record_kind kind() const noexcept { return kind_; }
    /// The position of the first token.
    [[nodiscard]] std::uint64_t first() const noexcept { return first_; }
    [[nodiscard]] const std::vector<token_id>& tokens() const noexcept { return tokens_; }
    /// The names of the tokens before the record, and of all tokens up to its end.
    [[nodiscard]] const sha256_digest& before() const noexcept { return before_; }
    [[nodiscard]] const sha256_digest& name() const noexcept { return name_; }
    [[nodiscard]] const std::vector<record_part>& parts() const noexcept { return parts_; }
    [[nodiscard]] const identity_text& identity() const noexcept { return fields_; }

    /// Returns the part of this kind of a page, or null.
    [[nodiscard]] const record_part* part(part_kind kind, std::uint32_t index) const noexcept {
        const auto found =
            ranges::find_if(parts_, [&](const record_part& p) { return p.kind == kind && p.index == index; });
        return found == parts_.end() ? nullptr : &*found;
    }

    /// Checks that the record was made under this identity and secret. Errors: mismatched, with the first differing
    /// field and both its values, or "key" if only the secret differs.
    [[nodiscard]] result<void> made_under(const record_names& own) const {
        if (identity_ == own.root())
            return {};
        for (std::size_t i = 0; i < own.fields().size(); ++i) {
            const auto& [name, value] = own.fields()[i];
            if (i >= fields_.size() || fields_[i].first != name)
                return refused(error_code::mismatched, name, "the record does not say it");
            if (fields_[i].second != value)
                return refused(error_code::mismatched, name,
                               "the record was made with \"" + fields_[i].second + "\", and this cache has \"" + value +
                                   "\"");
        }
        return refused(error_code::mismatched, "key", "the record was named under another key");
    }

    /// Checks a copy of a part's bytes against its checksum. Requires: no other thread changes the copy. Errors:
    /// malformed.
    [[nodiscard]] static result<void> sound(const record_part& part, std::span<const std::byte> copy,
                                            const record_authenticator& auth) {
        if (copy.size() == part.bytes.size() && same_in_constant_time(auth.of(copy), part.checksum))
            return {};
        return refused(error_code::malformed, name_of(part.kind),
                       "the bytes of page " + std::to_string(part.index) + " are not those that were written");
    }

private:
    record() = default;

    [[nodiscard]] static error refused(error_code code, std::string field, const std::string& what) {
        std::string words = field + ": " + what;
        return {code, std::move(field), std::move(words)};
    }

    // Each step parses a section of the header, in this order, and relies on the checks of the steps before it.
    [[nodiscard]] result<void> take_fixed(std::span<const std::byte> bytes, const record_authenticator& auth);
    [[nodiscard]] result<void> take_places(std::span<const std::byte> bytes, const record_authenticator& auth);
    [[nodiscard]] result<void> take_checked(std::span<const std::byte> bytes, const record_authenticator& auth);
    [[nodiscard]] result<void> take_parts(std::span<const std::byte> bytes, const record_authenticator& auth);
    [[nodiscard]] result<void> take_identity(std::span<const std::byte> bytes, const record_authenticator& auth);
    [[nodiscard]] result<void> take_tokens(std::span<const std::byte> bytes, const record_authenticator& auth);

    [[nodiscard]] static sha256_digest digest_at(std::span<const std::byte> bytes, std::size_t at) {
        sha256_digest made;
        ranges::copy(bytes.subspan(at, made.bytes.size()), made.bytes.begin());
        return made;
    }
    [[nodiscard]] static bool zero(std::span<const std::byte> bytes) noexcept {
        return ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; });
    }

    record_kind kind_ = record_kind::page;
    std::uint64_t first_ = 0;
    std::uint64_t header_ = 0, token_count_ = 0, tokens_at_ = 0, identity_bytes_ = 0;
    std::uint32_t part_count_ = 0;
    sha256_digest identity_, before_, name_;
    identity_text fields_;
    std::vector<token_id> tokens_;
    std::vector<record_part> parts_;
};

inline result<void> record::take_fixed(std::span<const std::byte> bytes, const record_authenticator& auth) {
    namespace at = record_layout;
    if (bytes.size() < at::fixed_bytes)
        return refused(error_code::truncated, "header",
                       "there are " + std::to_string(bytes.size()) + " bytes, and its fixed fields alone have " +
                           std::to_string(at::fixed_bytes));
    if (!ranges::equal(bytes.first<at::magic.size()>(), std::as_bytes(std::span(at::magic))))
        return refused(error_code::malformed, "magic", "this is no record of a KV cache");
    if (const auto format = load_little<std::uint32_t>(bytes, at::format); format != record_format_revision)
        return refused(error_code::unsupported, "format",
                       "the record is of format " + std::to_string(format) + ", and this build reads format " +
                           std::to_string(record_format_revision));
    const auto kind = load_little<std::uint32_t>(bytes, at::kind);
    if (kind < static_cast<std::uint32_t>(record_kind::page) || kind > static_cast<std::uint32_t>(record_kind::block))
        return refused(error_code::malformed, "kind", std::to_string(kind) + " is no kind of record");
    kind_ = static_cast<record_kind>(kind);
    const auto sealed = load_little<std::uint32_t>(bytes, at::checksum_kind);
    if (sealed != static_cast<std::uint32_t>(authenticator_kind::xxh3) &&
        sealed != static_cast<std::uint32_t>(authenticator_kind::hmac))
        return refused(error_code::malformed, "seal", std::to_string(sealed) + " is no kind of seal");
    if (sealed != static_cast<std::uint32_t>(auth.kind()))
        return refused(error_code::mismatched, "seal",
                       auth.kind() == authenticator_kind::hmac
                           ? "the record was sealed without a key, and one is asked for"
                           : "the record was sealed with a key, and none is given");
    const auto total = load_little<std::uint64_t>(bytes, at::total_bytes);
    if (total != bytes.size())
        return refused(total > bytes.size() ? error_code::truncated : error_code::malformed, "total_bytes",
                       "the record says it has " + std::to_string(total) + " bytes, and there are " +
                           std::to_string(bytes.size()));
    return {};
}

inline result<void> record::take_places(std::span<const std::byte> bytes, const record_authenticator&) {
    namespace at = record_layout;
    part_count_ = load_little<std::uint32_t>(bytes, at::parts);
    header_ = load_little<std::uint64_t>(bytes, at::header_bytes);
    first_ = load_little<std::uint64_t>(bytes, at::first_token);
    token_count_ = load_little<std::uint64_t>(bytes, at::tokens);
    tokens_at_ = load_little<std::uint64_t>(bytes, at::tokens_offset);
    identity_bytes_ = load_little<std::uint64_t>(bytes, at::identity_bytes);
    // Each term is checked against the size by itself, so that no sum overflows.
    const std::uint64_t all = bytes.size();
    const auto place = [](const char* field, std::uint64_t is, std::uint64_t should) -> result<void> {
        if (is == should)
            return {};
        return refused(error_code::malformed, field,
                       "it is " + std::to_string(is) + ", and " + std::to_string(should) + " by the counts");
    };
    const struct {
        const char* field;
        std::uint64_t count, each;
    } counts[] = {
        {"parts", part_count_, at::part_bytes}, {"tokens", token_count_, 4}, {"identity_bytes", identity_bytes_, 1}};
    for (const auto& [field, count, each] : counts)
        if (count > all / each)
            return refused(error_code::truncated, field,
                           std::to_string(count) + " of them do not fit " + std::to_string(all) + " bytes");
    const std::uint64_t identity_at = at::fixed_bytes + std::uint64_t{part_count_} * at::part_bytes;
    const std::uint64_t tokens_at = (identity_at + identity_bytes_ + 7) / 8 * 8;
    const struct {
        const char* field;
        std::uint64_t is, should;
    } places[] = {{"parts_offset", load_little<std::uint64_t>(bytes, at::parts_offset), at::fixed_bytes},
                  {"identity_offset", load_little<std::uint64_t>(bytes, at::identity_offset), identity_at},
                  {"tokens_offset", tokens_at_, tokens_at},
                  {"header_bytes", header_, at::aligned(tokens_at + 4 * token_count_)}};
    for (const auto& [field, is, should] : places)
        if (auto fine = place(field, is, should); !fine)
            return fine;
    if (header_ > all)
        return refused(error_code::truncated, "header_bytes",
                       "the header has " + std::to_string(header_) + " bytes, and there are " + std::to_string(all));
    return {};
}

inline result<void> record::take_checked(std::span<const std::byte> bytes, const record_authenticator& auth) {
    namespace at = record_layout;
    const auto behind = bytes.first(static_cast<std::size_t>(header_)).subspan(at::fixed_bytes);
    if (!same_in_constant_time(auth.of(bytes.first(at::checksum), behind), digest_at(bytes, at::checksum)))
        return refused(error_code::malformed, "header", "its checksum is that of other bytes, or under another key");
    if (!zero(bytes.subspan(at::reserved, 8)) || !zero(bytes.subspan(at::more_reserved, 32)))
        return refused(error_code::malformed, "reserved", "it is not zero");
    identity_ = digest_at(bytes, at::identity);
    before_ = digest_at(bytes, at::before);
    name_ = digest_at(bytes, at::name);
    return {};
}

inline result<void> record::take_parts(std::span<const std::byte> bytes, const record_authenticator&) {
    namespace at = record_layout;
    std::uint64_t end = header_;
    for (std::size_t i = 0; i < part_count_; ++i) {
        const std::size_t entry = at::fixed_bytes + i * at::part_bytes;
        const auto wrong = [&](const char* what) {
            return refused(error_code::malformed, "parts", "part " + std::to_string(i) + " " + what);
        };
        const auto kind = load_little<std::uint32_t>(bytes, entry + at::part_kind);
        const auto in = [kind](part_kind first, std::uint32_t count) {
            return kind >= static_cast<std::uint32_t>(first) && kind - static_cast<std::uint32_t>(first) < count;
        };
        if (!in(part_kind::page, 3) && !in(part_kind::block, most_part_groups))
            return wrong("is of no known kind");
        record_part part{.kind = static_cast<part_kind>(kind),
                         .index = load_little<std::uint32_t>(bytes, entry + at::part_index),
                         .rows = load_little<std::uint32_t>(bytes, entry + at::part_rows),
                         .checksum = digest_at(bytes, entry + at::part_checksum)};
        if (!parts_.empty() && std::pair(parts_.back().index, parts_.back().kind) >= std::pair(part.index, part.kind))
            return wrong("is out of order");
        if (!zero(bytes.subspan(entry + at::part_reserved, 4)))
            return wrong("has reserved bytes that are not zero");
        const std::uint64_t begin = at::aligned(end);
        if (load_little<std::uint64_t>(bytes, entry + at::part_offset) != begin)
            return wrong("does not follow the one before it");
        const auto size = load_little<std::uint64_t>(bytes, entry + at::part_size);
        if (begin > bytes.size() || size > bytes.size() - begin)
            return refused(error_code::truncated, "parts", "part " + std::to_string(i) + " ends past the record");
        if (!zero(bytes.subspan(static_cast<std::size_t>(end), static_cast<std::size_t>(begin - end))))
            return refused(error_code::malformed, "padding", "the bytes between parts are not zero");
        part.bytes = bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
        parts_.push_back(part);
        end = begin + size;
    }
    if (end != bytes.size())
        return refused(error_code::malformed, "total_bytes", "there are bytes after the last part");
    return {};
}

inline result<void> record::take_identity(std::span<const std::byte> bytes, const record_authenticator&) {
    namespace at = record_layout;
    const std::size_t begin = at::fixed_bytes + std::size_t{part_count_} * at::part_bytes;
    auto rest = bytes.subspan(begin, static_cast<std::size_t>(identity_bytes_));
    const auto number = [&rest]() -> std::optional<std::uint32_t> {
        if (rest.size() < 4)
            return std::nullopt;
        const auto n = load_little<std::uint32_t>(rest, 0);
        rest = rest.subspan(4);
        return n;
    };
    const auto text = [&]() -> std::optional<std::string> {
        const auto length = number();
        if (!length || *length > rest.size())
            return std::nullopt;
        std::string made(*length, '\0');
        ranges::transform(rest.first(*length), made.begin(), [](std::byte b) { return static_cast<char>(b); });
        rest = rest.subspan(*length);
        return made;
    };
    const error broken = refused(error_code::malformed, "identity", "its texts do not end where it ends");
    const auto count = number();
    if (!count)
        return broken;
    for (std::uint32_t i = 0; i < *count; ++i) {
        auto name = text(), value = name ? text() : std::nullopt;
        if (!value)
            return broken;
        fields_.emplace_back(std::move(*name), std::move(*value));
    }
    const auto gap = bytes.subspan(begin + static_cast<std::size_t>(identity_bytes_),
                                   static_cast<std::size_t>(tokens_at_ - begin - identity_bytes_));
    return rest.empty() && zero(gap) ? result<void>() : result<void>(broken);
}

inline result<void> record::take_tokens(std::span<const std::byte> bytes, const record_authenticator&) {
    const auto all = bytes.first(static_cast<std::size_t>(header_)).subspan(static_cast<std::size_t>(tokens_at_));
    const auto count = static_cast<std::size_t>(token_count_);
    tokens_.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
        tokens_.push_back(token_id{static_cast<std::int32_t>(load_little<std::uint32_t>(all, 4 * i))});
    if (!zero(all.subspan(4 * count)))
        return refused(error_code::malformed, "padding", "the bytes after the tokens are not zero");
    return {};
}

}} // namespace kvcache
