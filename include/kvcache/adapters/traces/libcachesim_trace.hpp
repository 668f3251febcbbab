// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/replay/object_access.hpp>
#include <kvcache/adapters/traces/byte_source.hpp>
#include <kvcache/core/result.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Accesses in libCacheSim's format oracleGeneral: records of 24 bytes, little-endian,
///
///     u32 time in seconds, u64 object, u32 size in bytes, i64 next access (unused: a replay computes it)
///
/// Accesses to objects of zero bytes are skipped, as libCacheSim does.
class libcachesim_trace {
public:
    explicit libcachesim_trace(byte_source source) : source_(std::move(source)) {}

    /// Opens a trace. Errors: those of byte_source::open.
    [[nodiscard]] static result<libcachesim_trace> open(const std::filesystem::path& file) {
        auto source = byte_source::open(file);
        if (!source)
            return source.error();
        return libcachesim_trace(*std::move(source));
    }

    /// Reads the next access. Returns: false at the end. Errors: those of the source; truncated, for a file that ends
    /// inside a record.
    [[nodiscard]] result<bool> next(object_access& access) {
        do {
            if (end_ - begin_ < record_size) {
                const auto more = refill();
                if (!more || !*more)
                    return more;
            }
            const char* record = buffer_.data() + begin_;
            begin_ += record_size;
            access = {static_cast<double>(little_endian(record, 4)), little_endian(record + 4, 8),
                      little_endian(record + 12, 4)};
        } while (access.bytes == 0);
        return true;
    }

    /// Returns the fraction of the file that has been read, from 0 to 1.
    [[nodiscard]] double share() const noexcept { return source_.share(); }

private:
    static constexpr std::size_t record_size = 24;

    [[nodiscard]] static std::uint64_t little_endian(const char* from, std::size_t bytes) noexcept {
        std::uint64_t value = 0;
        for (std::size_t i = bytes; i > 0; --i)
            value = value << 8 | static_cast<unsigned char>(from[i - 1]);
        return value;
    }

    // Reads until a whole record is buffered. Returns false at the end.
    [[nodiscard]] result<bool> refill() {
        std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
                  buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
        end_ -= begin_;
        begin_ = 0;
        while (end_ < record_size) {
            const auto got = source_.read(std::span(buffer_).subspan(end_));
            if (!got)
                return got.error();
            if (*got == 0 && end_ > 0)
                return error{error_code::truncated, source_.name(),
                             source_.name() + ", byte " + std::to_string(source_.produced() - end_) +
                                 " of the trace: " + std::to_string(end_) +
                                 " bytes are left, and a record of oracleGeneral has 24"};
            if (*got == 0)
                return false;
            end_ += *got;
        }
        return true;
    }

    byte_source source_;
    std::array<char, 2048 * record_size> buffer_ = {};
    std::size_t begin_ = 0, end_ = 0; // records not yet returned
};

}} // namespace kvcache
