// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/traces/byte_source.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The lines of a source, without their line ends (LF or CR LF). Memory: the longest line.
class line_reader {
public:
    /// Maximum length of a line.
    static constexpr std::size_t longest = std::size_t{16} << 20;

    explicit line_reader(byte_source source) : source_(std::move(source)) {}

    /// Reads the next line, which is valid until the next call. Returns: false at the end. Errors: those of the
    /// source; malformed, for a NUL byte; out_of_range, for a line longer than `longest`.
    [[nodiscard]] result<bool> next(std::string_view& line) {
        ++number_;
        for (std::size_t searched = begin_;;) {
            const std::string_view rest = std::string_view(buffer_).substr(searched, end_ - searched);
            if (const std::size_t at = rest.find('\n'); at != std::string_view::npos)
                return give(searched + at, searched + at + 1, line);
            searched = end_;
            if (searched - begin_ > longest)
                return failure(error_code::out_of_range, "the line is longer than 16 MiB");
            const std::size_t moved = begin_;
            const auto more = grow();
            if (!more)
                return more.error();
            searched -= moved;
            if (!*more)
                return begin_ == end_ ? result<bool>(false) : give(end_, end_, line);
        }
    }

    /// The number of the last line read, from 1.
    [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

    /// Returns an error of that line.
    [[nodiscard]] kvcache::error failure(error_code code, const std::string& words) const {
        return {code, source_.name(), source_.name() + ", line " + std::to_string(number_) + ": " + words};
    }

    [[nodiscard]] const byte_source& source() const noexcept { return source_; }

private:
    result<bool> give(std::size_t end, std::size_t next, std::string_view& line) {
        line = std::string_view(buffer_).substr(begin_, end - begin_);
        begin_ = next;
        if (line.find('\0') != std::string_view::npos)
            return failure(error_code::malformed, "the line has a NUL byte");
        if (!line.empty() && line.back() == '\r')
            line.remove_suffix(1);
        return true;
    }

    // Moves the unread bytes to the front and reads more after them. Returns false at the end.
    result<bool> grow() {
        constexpr std::size_t least = std::size_t{64} << 10;
        std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
        if (buffer_.size() - end_ < least)
            buffer_.resize(2 * buffer_.size() + least);
        const auto got = source_.read(std::span(buffer_).subspan(end_));
        if (!got)
            return got.error();
        end_ += *got;
        return *got > 0;
    }

    byte_source source_;
    std::string buffer_; // bytes read but not yet returned are from begin_ to end_
    std::size_t begin_ = 0, end_ = 0;
    std::uint64_t number_ = 0;
};

}} // namespace kvcache
