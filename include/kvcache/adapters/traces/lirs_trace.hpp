// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/replay/object_access.hpp>
#include <kvcache/adapters/traces/line_reader.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Accesses in the format of the LIRS authors' traces: one block number per line. Blank lines, and a `*` between the
/// parts of a trace, are skipped. The size of a block is 1; the time of an access is its number.
class lirs_trace {
public:
    explicit lirs_trace(byte_source source) : lines_(std::move(source)) {}

    /// Opens a trace. Errors: those of byte_source::open.
    [[nodiscard]] static result<lirs_trace> open(const std::filesystem::path& file) {
        auto source = byte_source::open(file);
        if (!source)
            return source.error();
        return lirs_trace(*std::move(source));
    }

    /// Reads the next access. Returns: false at the end. Errors: those of the source; malformed, for anything but an
    /// integer of at most 64 bits, with file and line.
    [[nodiscard]] result<bool> next(object_access& access) {
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
                return lines_.failure(error_code::malformed, "this is no block number from 0 to 2^64 - 1");
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

}} // namespace kvcache
