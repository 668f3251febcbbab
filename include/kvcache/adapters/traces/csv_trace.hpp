// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/replay/object_access.hpp>
#include <kvcache/adapters/traces/line_reader.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

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

    /// Opens a trace. Errors: those of byte_source::open.
    [[nodiscard]] static result<csv_trace> open(const std::filesystem::path& file) {
        auto source = byte_source::open(file);
        if (!source)
            return source.error();
        return csv_trace(*std::move(source));
    }

    /// Reads the next access. Returns: false at the end. Errors: those of the source; malformed or out_of_range, for
    /// an invalid value, with file and line.
    [[nodiscard]] result<bool> next(object_access& access) {
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
                return lines_.failure(error_code::malformed, "there are " + std::to_string(values_.size()) +
                                                                 " values instead of " + std::to_string(columns_));
            if (!number(value(place_[0]), access.seconds) || !(access.seconds >= 0.0 && access.seconds < 1e15))
                return lines_.failure(error_code::malformed, "the time is no number of seconds since a start");
            if (value(place_[1]).empty())
                return lines_.failure(error_code::malformed, "the key is empty");
            if (!number(value(place_[1]), access.key))
                access.key = hashed(value(place_[1]));
            if (!number(value(place_[2]), access.bytes) || access.bytes > largest)
                return lines_.failure(error_code::out_of_range, "the size is not an integer from 0 to 2^40");
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

    // FNV-1a.
    [[nodiscard]] static std::uint64_t hashed(std::string_view text) noexcept {
        std::uint64_t hash = 0xcbf29ce484222325ull;
        for (const char c : text)
            hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
        return hash;
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

    [[nodiscard]] result<void> read_header() {
        constexpr std::array<std::array<std::string_view, 3>, 3> names = {
            {{"time", "timestamp", "time"}, {"key", "id", "obj_id"}, {"size", "bytes", "obj_size"}}};
        columns_ = values_.size();
        for (std::size_t wanted = 0; wanted < names.size(); ++wanted) {
            const auto at = std::ranges::find_if(
                values_, [&](std::string_view one) { return std::ranges::count(names[wanted], one) > 0; });
            if (at == values_.end())
                return lines_.failure(error_code::not_found,
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

}} // namespace kvcache
