// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/traces/gzip_decoder.hpp>
#include <kvcache/adapters/traces/zstd_decoder.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/result.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <variant>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The bytes of a file in order, decompressed if its first bytes are those of gzip or zstd; the file name does not
/// matter. Memory: 256 KiB, and zstd's window of at most 128 MiB, for a file of any size.
class byte_source {
public:
    /// Opens `file`. Errors: not_found; io, also for a directory.
    [[nodiscard]] static result<byte_source> open(const std::filesystem::path& file) {
        std::error_code failed;
        const auto status = std::filesystem::status(file, failed);
        if (!std::filesystem::exists(status))
            return kvcache::error{error_code::not_found, file.filename().string(), file.string() + " is not there"};
        if (std::filesystem::is_directory(status))
            return kvcache::error{error_code::io, file.filename().string(), file.string() + " is a directory"};
        byte_source source;
        source.name_ = file.filename().string();
        source.file_.open(file, std::ios::binary);
        if (!source.file_)
            return kvcache::error{error_code::io, source.name_, file.string() + " cannot be opened"};
        const auto size = std::filesystem::file_size(file, failed);
        source.size_ = failed ? 0 : size;
        return source;
    }

    /// A source over bytes in memory; errors use `name`.
    [[nodiscard]] static byte_source over(std::string bytes, std::string name) {
        byte_source source;
        source.name_ = std::move(name);
        source.size_ = bytes.size();
        source.buffer_ = std::move(bytes);
        source.in_end_ = source.buffer_.size();
        source.in_memory_ = true;
        return source;
    }

    /// Fills the front of `into`. Returns: the number of bytes, 0 only at the end. Requires: into is not empty.
    /// Errors: io; truncated or malformed, for compressed data.
    [[nodiscard]] result<std::size_t> read(std::span<char> into) {
        expects(!into.empty(), "bytes are read into something");
        if (!sniffed_)
            if (const auto begun = sniff(); !begun)
                return begun.error();
        for (;;) {
            if (in_begin_ == in_end_)
                if (const auto filled = fill(); !filled)
                    return filled.error();
            std::span<const char> in(buffer_.data() + in_begin_, in_end_ - in_begin_);
            const bool last = in.empty();
            const auto written = decode(in, into);
            if (!written)
                return failure(written.error().code, written.error().message);
            consumed_ += in_end_ - in_begin_ - in.size();
            in_begin_ = in_end_ - in.size();
            if (*written > 0) {
                produced_ += *written;
                return *written;
            }
            if (last)
                return whole() ? result<std::size_t>(std::size_t{0})
                               : failure(error_code::truncated, "the compressed data end in the middle");
        }
    }

    [[nodiscard]] const std::string& name() const noexcept { return name_; }

    /// Number of bytes returned so far, after decompression.
    [[nodiscard]] std::uint64_t produced() const noexcept { return produced_; }

    /// Returns the fraction of the file that has been read, from 0 to 1; 0 if its size is unknown.
    [[nodiscard]] double share() const noexcept {
        return size_ == 0 ? 0.0 : std::min(1.0, static_cast<double>(consumed_) / static_cast<double>(size_));
    }

private:
    struct plain {};

    byte_source() = default;

    [[nodiscard]] kvcache::error failure(error_code code, const std::string& words) const {
        return {code, name_, name_ + ", byte " + std::to_string(consumed_) + " of the file: " + words};
    }

    [[nodiscard]] result<void> fill() {
        if (in_memory_)
            return {};
        constexpr std::size_t chunk = std::size_t{128} << 10;
        buffer_.resize(chunk);
        file_.read(buffer_.data(), static_cast<std::streamsize>(chunk));
        if (file_.bad())
            return failure(error_code::io, "the file cannot be read");
        in_begin_ = 0;
        in_end_ = static_cast<std::size_t>(file_.gcount());
        return {};
    }

    [[nodiscard]] result<void> sniff() {
        sniffed_ = true;
        if (in_begin_ == in_end_)
            if (const auto filled = fill(); !filled)
                return filled.error();
        const std::span<const char> in(buffer_.data() + in_begin_, in_end_ - in_begin_);
        if (gzip_decoder::recognises(in))
            decoder_.emplace<gzip_decoder>();
        else if (zstd_decoder::recognises(in))
            decoder_.emplace<zstd_decoder>();
        return {};
    }

    [[nodiscard]] result<std::size_t> decode(std::span<const char>& in, std::span<char> out) {
        if (auto* gzip = std::get_if<gzip_decoder>(&decoder_))
            return gzip->decode(in, out);
        if (auto* zstd = std::get_if<zstd_decoder>(&decoder_))
            return zstd->decode(in, out);
        const std::size_t count = std::min(in.size(), out.size());
        std::copy_n(in.begin(), count, out.begin());
        in = in.subspan(count);
        return count;
    }

    [[nodiscard]] bool whole() const noexcept {
        if (const auto* gzip = std::get_if<gzip_decoder>(&decoder_))
            return gzip->whole();
        if (const auto* zstd = std::get_if<zstd_decoder>(&decoder_))
            return zstd->whole();
        return true;
    }

    std::string name_;
    std::ifstream file_;
    std::string buffer_; // bytes read but not yet decoded are from in_begin_ to in_end_
    std::size_t in_begin_ = 0, in_end_ = 0;
    std::uint64_t size_ = 0, consumed_ = 0, produced_ = 0;
    bool in_memory_ = false, sniffed_ = false;
    std::variant<plain, gzip_decoder, zstd_decoder> decoder_;
};

}} // namespace kvcache
