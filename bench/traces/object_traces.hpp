// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../replay/workload.hpp"
#include "byte_source.hpp"

namespace bench {

/// Accesses as comma-separated values. Without a header a line is
///
///     time,key,size
///
/// A header is a first line whose time is not a number. It may name these three columns in any order, and other
/// columns too: time or timestamp; key, id or obj_id; size, bytes or obj_size. The time is in seconds; the size is an
/// integer number of bytes up to 2^40. A key is an integer of at most 64 bits or any other text. Spaces around a
/// value are removed; quotes have no meaning. Blank lines, and accesses to objects of zero bytes, are skipped.
class csv_trace {
public:
    static constexpr std::uint64_t largest = std::uint64_t{1} << 40; // maximum bytes of an object

    explicit csv_trace(byte_source source) : lines_(std::move(source)) {}

    /// Reads the next access. Returns: false at the end. Errors: those of the source; malformed or out_of_range, for
    /// an invalid value, with file and line.
    [[nodiscard]] kvcache::result<bool> next(object_access& access) {
        for (std::string_view line;;) {
            const auto more = lines_.next(line);
            if (!more || !*more)
                return more;
            if (trimmed(line).empty())
                continue;
            split(line);
            if (std::exchange(first_, false) && !number(value(0), access.seconds)) {
                if (const auto found = read_header(); !found)
                    return found.error();
                continue;
            }
            if (values_.size() != columns_)
                return lines_.failure(kvcache::error_code::malformed, "there are " + std::to_string(values_.size()) +
                                                                          " values instead of " +
                                                                          std::to_string(columns_));
            if (!number(value(place_[0]), access.seconds) || !(access.seconds >= 0.0 && access.seconds < 1e15))
                return lines_.failure(kvcache::error_code::malformed, "the time is no number of seconds since a start");
            if (value(place_[1]).empty())
                return lines_.failure(kvcache::error_code::malformed, "the key is empty");
            if (!number(value(place_[1]), access.key))
                access.key = text_key(value(place_[1]));
            if (!number(value(place_[2]), access.bytes) || access.bytes > largest)
                return lines_.failure(kvcache::error_code::out_of_range, "the size is not an integer from 0 to 2^40");
            if (access.bytes > 0)
                return true;
        }
    }

    /// Returns the fraction of the file that has been read, from 0 to 1.
    [[nodiscard]] double share() const noexcept { return lines_.source().share(); }

private:
    [[nodiscard]] static std::string_view trimmed(std::string_view text) noexcept {
        const std::size_t begin = text.find_first_not_of(" \t");
        return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
    }

    template <class T>
    [[nodiscard]] static bool number(std::string_view text, T& into) noexcept {
        const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), into);
        return failed == std::errc{} && end == text.data() + text.size();
    }

    void split(std::string_view line) {
        constexpr std::size_t most = 1024; // maximum columns: limits the memory for a line of commas
        values_.clear();
        for (std::size_t begin = 0; begin <= line.size() && values_.size() <= most;) {
            const std::size_t comma = std::min(line.find(',', begin), line.size());
            values_.push_back(trimmed(line.substr(begin, comma - begin)));
            begin = comma + 1;
        }
    }

    [[nodiscard]] std::string_view value(std::size_t column) const noexcept { return values_[column]; }

    [[nodiscard]] kvcache::result<void> read_header() {
        constexpr std::array<std::array<std::string_view, 3>, 3> names = {
            {{"time", "timestamp", "time"}, {"key", "id", "obj_id"}, {"size", "bytes", "obj_size"}}};
        columns_ = values_.size();
        for (std::size_t wanted = 0; wanted < names.size(); ++wanted) {
            const auto at = std::ranges::find_if(
                values_, [&](std::string_view one) { return std::ranges::count(names[wanted], one) > 0; });
            if (at == values_.end())
                return lines_.failure(kvcache::error_code::not_found,
                                      "the header has no column " + std::string(names[wanted][0]));
            place_[wanted] = static_cast<std::size_t>(at - values_.begin());
        }
        return {};
    }

    line_reader lines_;
    std::vector<std::string_view> values_;         // values of the last line read
    std::array<std::size_t, 3> place_ = {0, 1, 2}; // the columns of time, key and size
    std::size_t columns_ = 3;
    bool first_ = true;
};

/// Accesses in libCacheSim's format oracleGeneral: records of 24 bytes, little-endian,
///
///     u32 time in seconds, u64 object, u32 size in bytes, i64 next access (unused: a replay computes it)
///
/// Accesses to objects of zero bytes are skipped, as libCacheSim does.
class libcachesim_trace {
public:
    explicit libcachesim_trace(byte_source source) : source_(std::move(source)) {}

    /// Reads the next access. Returns: false at the end. Errors: those of the source; truncated, for a file that ends
    /// inside a record.
    [[nodiscard]] kvcache::result<bool> next(object_access& access) {
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
    [[nodiscard]] kvcache::result<bool> refill() {
        std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
                  buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
        end_ -= begin_;
        begin_ = 0;
        while (end_ < record_size) {
            const auto got = source_.read(std::span(buffer_).subspan(end_));
            if (!got)
                return got.error();
            if (*got == 0 && end_ > 0)
                return kvcache::error{kvcache::error_code::truncated, source_.name(),
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

/// Accesses in the format of the LIRS authors' traces: one block number per line. Blank lines, and a `*` between the
/// parts of a trace, are skipped. The size of a block is 1; the time of an access is its number.
class lirs_trace {
public:
    explicit lirs_trace(byte_source source) : lines_(std::move(source)) {}

    /// Reads the next access. Returns: false at the end. Errors: those of the source; malformed, for anything but an
    /// integer of at most 64 bits, with file and line.
    [[nodiscard]] kvcache::result<bool> next(object_access& access) {
        for (std::string_view line;;) {
            const auto more = lines_.next(line);
            if (!more || !*more)
                return more;
            const std::size_t begin = line.find_first_not_of(" \t");
            if (begin == std::string_view::npos)
                continue;
            line = line.substr(begin, line.find_last_not_of(" \t") - begin + 1);
            if (line == "*")
                continue;
            std::uint64_t block = 0;
            const auto [end, failed] = std::from_chars(line.data(), line.data() + line.size(), block);
            if (failed != std::errc{} || end != line.data() + line.size())
                return lines_.failure(kvcache::error_code::malformed, "this is no block number from 0 to 2^64 - 1");
            access = {static_cast<double>(accesses_++), block, 1};
            return true;
        }
    }

    /// Returns the fraction of the file that has been read, from 0 to 1.
    [[nodiscard]] double share() const noexcept { return lines_.source().share(); }

private:
    line_reader lines_;
    std::uint64_t accesses_ = 0;
};

} // namespace bench
