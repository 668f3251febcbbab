// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/kernel/packed_matrix.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/checkpoint_files.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Origin of packed weights.
struct packed_origin {
    digest config = {};  ///< Digest of the model's configuration.
    digest layout = {};  ///< Digest of every tensor's offset and format.
    digest weights = {}; ///< Digest of the checkpoint's names, dtypes, shapes and bytes.
    digest files = {};   ///< Digest of the checkpoint files' metadata; zero if untrusted.
};

/// A file of packed weights, mapped read-only:
///
///     512 words of 8 bytes: magic, version, byte order, strip width, numeric contract, payload bytes, 3 zeros; the
///     digests of config, layout, weights, files and payload; zeros; a digest of all words before it
///     the payload: an image of the weights, every part on a cache line
///
/// Words have the byte order of the machine that wrote the file; other machines reject it.
class packed_file {
public:
    /// Revision of the format and of the order of packed weights.
    static constexpr std::uint64_t version = 2;

    /// Maps `file` and checks that it is complete, that its header is intact, and that it matches this build,
    /// `expected.config` and `expected.layout`. origin() identifies the weights; check_payload() verifies the payload.
    /// Errors: those of mapped_file::open; truncated, malformed, unsupported, mismatched, with the name of the field.
    /// Cost: reads the header.
    [[nodiscard]] static result<packed_file> open(const std::filesystem::path& file, const packed_origin& expected,
                                                  std::size_t payload_bytes);

    /// Writes a file for open(): to a temporary name in the same directory, flushed to the disk, then renamed, so that
    /// the final name never has partial content. Errors: those of write_file. Cost: reads the payload twice, writes it
    /// once, and waits for the disk.
    [[nodiscard]] static result<void> write(const std::filesystem::path& file, const packed_origin& origin,
                                            std::span<const std::byte> payload, thread_pool& threads);

    [[nodiscard]] const packed_origin& origin() const noexcept { return origin_; }

    /// The image; it keeps the mapping alive.
    [[nodiscard]] std::shared_ptr<const std::byte> payload() const {
        return {file_, file_->bytes().data() + header_bytes};
    }

    /// Verifies the payload's digest. Errors: truncated, when the file shrank; malformed. Cost: reads the payload once,
    /// with all threads.
    [[nodiscard]] result<void> check_payload(thread_pool& threads) const {
        if (auto whole = file_->intact(); !whole)
            return whole;
        if (tree_hash(file_->bytes().subspan(header_bytes), threads) != payload_digest_)
            return refusal(error_code::malformed, file_->path(), "payload",
                           "its bytes are not those that were written");
        return {};
    }

private:
    static constexpr std::size_t header_bytes = 4096;
    static constexpr std::size_t number_count = 9;
    using header = std::array<std::uint64_t, header_bytes / 8>;

    packed_file() = default;

    struct number_field {
        const char* name;
        std::uint64_t value;
        error_code when_other;
    };

    // Header fields that this build writes, in order.
    [[nodiscard]] static std::array<number_field, number_count> numbers(std::uint64_t payload_bytes) {
        return {{{"magic", 0x314b434150564b89, error_code::malformed},
                 {"version", version, error_code::unsupported},
                 {"byte_order", 0x0102030405060708, error_code::unsupported},
                 {"strip_width", packed_matrix<float>::strip_width, error_code::mismatched},
                 {"numeric_contract", numeric_contract_revision, error_code::mismatched},
                 {"payload_bytes", payload_bytes, error_code::mismatched},
                 {"reserved", 0, error_code::unsupported},
                 {"reserved", 0, error_code::unsupported},
                 {"reserved", 0, error_code::unsupported}}};
    }

    [[nodiscard]] static digest digest_at(const header& words, std::size_t index) {
        return {words[number_count + 2 * index], words[number_count + 2 * index + 1]};
    }
    static void put(header& words, std::size_t index, const digest& d) {
        words[number_count + 2 * index] = d.low;
        words[number_count + 2 * index + 1] = d.high;
    }

    [[nodiscard]] static digest checksum(const header& words) {
        return digest_builder().bytes(std::as_bytes(std::span(words)).first(header_bytes - 16)).finish();
    }

    [[nodiscard]] static error refusal(error_code code, const std::filesystem::path& file, const std::string& field,
                                       const std::string& what) {
        return {code, field, file.string() + ": " + field + ": " + what};
    }

    std::shared_ptr<const mapped_file> file_;
    packed_origin origin_;
    digest payload_digest_;
};

inline result<packed_file> packed_file::open(const std::filesystem::path& file, const packed_origin& expected,
                                             std::size_t payload_bytes) {
    auto mapped = mapped_file::open(file);
    if (!mapped)
        return mapped.error();
    const std::span<const std::byte> bytes = mapped->bytes();
    const auto refuse = [&](error_code code, const std::string& field, const std::string& what) {
        return refusal(code, file, field, what);
    };
    header words = {};
    if (bytes.size() < header_bytes)
        return refuse(error_code::truncated, "header",
                      "the file has " + std::to_string(bytes.size()) + " bytes and a header alone has " +
                          std::to_string(header_bytes));
    std::memcpy(words.data(), bytes.data(), header_bytes);

    // First detect foreign or older files, then damage, then files made for something else.
    const auto fields = numbers(payload_bytes);
    const auto check = [&](std::size_t i) -> result<void> {
        if (words[i] == fields[i].value)
            return {};
        return refuse(fields[i].when_other, fields[i].name,
                      "it is " + std::to_string(words[i]) + "; " + std::to_string(fields[i].value) + " is needed");
    };
    constexpr std::size_t telling = 3;
    for (std::size_t i = 0; i < telling; ++i)
        if (auto fine = check(i); !fine)
            return fine.error();
    if (checksum(words) != digest{words[words.size() - 2], words[words.size() - 1]})
        return refuse(error_code::malformed, "header", "it is damaged: its checksum is that of other bytes");
    for (std::size_t i = telling; i < number_count; ++i)
        if (auto fine = check(i); !fine)
            return fine.error();

    packed_file opened;
    opened.origin_ = {digest_at(words, 0), digest_at(words, 1), digest_at(words, 2), digest_at(words, 3)};
    opened.payload_digest_ = digest_at(words, 4);
    if (opened.origin_.config != expected.config)
        return refuse(error_code::mismatched, "config", "the weights were packed for another configuration");
    if (opened.origin_.layout != expected.layout)
        return refuse(error_code::mismatched, "layout", "the weights were packed in other formats or another order");
    if (bytes.size() != header_bytes + payload_bytes)
        return refuse(bytes.size() < header_bytes + payload_bytes ? error_code::truncated : error_code::malformed,
                      "payload",
                      "the file has " + std::to_string(bytes.size()) + " bytes; " +
                          std::to_string(header_bytes + payload_bytes) + " are needed");
    mapped->read_ahead();
    opened.file_ = std::make_shared<const mapped_file>(*std::move(mapped));
    return opened;
}

inline result<void> packed_file::write(const std::filesystem::path& file, const packed_origin& origin,
                                       std::span<const std::byte> payload, thread_pool& threads) {
    header words = {};
    const auto fields = numbers(payload.size());
    for (std::size_t i = 0; i < number_count; ++i)
        words[i] = fields[i].value;
    std::size_t index = 0;
    for (const digest& d : {origin.config, origin.layout, origin.weights, origin.files, tree_hash(payload, threads)})
        put(words, index++, d);
    const digest sum = checksum(words);
    words[words.size() - 2] = sum.low;
    words[words.size() - 1] = sum.high;
    const std::span<const std::byte> parts[] = {std::as_bytes(std::span(words)), payload};
    return write_file(file, parts);
}

}} // namespace kvcache
