// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include <zlib.h>
#include <zstd.h>

namespace bench {

/// Decompresses gzip incrementally, including files with several members.
class gzip_decoder {
public:
    /// Throws: bad_alloc.
    gzip_decoder() : stream_(new z_stream{}) {
        constexpr int window = 15, with_gzip_header = 16; // constants of zlib.h
        if (inflateInit2(stream_.get(), window + with_gzip_header) != Z_OK)
            throw std::bad_alloc();
    }

    /// Returns whether `begin` is the start of a gzip file: the magic bytes and the only compression method.
    [[nodiscard]] static bool recognises(std::span<const char> begin) noexcept {
        return begin.size() >= 3 && begin[0] == '\x1f' && begin[1] == '\x8b' && begin[2] == '\x08';
    }

    /// Consumes the front of `in`, which it shortens, and writes to `out`. Returns: the number of bytes written.
    /// Errors: malformed, without a position.
    [[nodiscard]] kvcache::result<std::size_t> decode(std::span<const char>& in, std::span<char> out) {
        constexpr std::size_t most = std::numeric_limits<uInt>::max();
        if (whole_ && !in.empty()) {
            inflateReset(stream_.get());
            whole_ = false;
        }
        if (whole_)
            return std::size_t{0};
        const auto taken = static_cast<uInt>(in.size() < most ? in.size() : most);
        const auto room = static_cast<uInt>(out.size() < most ? out.size() : most);
        // zlib takes a non-const pointer but does not write through it.
        stream_->next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
        stream_->avail_in = taken;
        stream_->next_out = reinterpret_cast<Bytef*>(out.data());
        stream_->avail_out = room;
        const int said = inflate(stream_.get(), Z_NO_FLUSH);
        in = in.subspan(taken - stream_->avail_in);
        if (said == Z_STREAM_END)
            whole_ = true;
        else if (said == Z_MEM_ERROR)
            throw std::bad_alloc();
        else if (said != Z_OK && said != Z_BUF_ERROR)
            return kvcache::error{kvcache::error_code::malformed, "gzip",
                                  std::string("gzip data are damaged: ") +
                                      (stream_->msg != nullptr ? stream_->msg : "a preset dictionary is asked for")};
        return std::size_t{room - stream_->avail_out};
    }

    /// Returns whether the input so far ends at the end of a member.
    [[nodiscard]] bool whole() const noexcept { return whole_; }

private:
    struct close {
        void operator()(z_stream* stream) const noexcept {
            inflateEnd(stream);
            delete stream;
        }
    };

    std::unique_ptr<z_stream, close> stream_; // zlib keeps the address of the stream
    bool whole_ = true;
};

/// Decompresses zstd incrementally, including files with several frames. A frame with a window over 128 MiB is
/// refused, so that memory is bounded.
class zstd_decoder {
public:
    /// Throws: bad_alloc.
    zstd_decoder() : stream_(ZSTD_createDStream()) {
        if (!stream_)
            throw std::bad_alloc();
    }

    /// Returns whether `begin` is the start of a zstd file.
    [[nodiscard]] static bool recognises(std::span<const char> begin) noexcept {
        return begin.size() >= 4 && begin[0] == '\x28' && begin[1] == '\xb5' && begin[2] == '\x2f' &&
               begin[3] == '\xfd';
    }

    /// Consumes the front of `in`, which it shortens, and writes to `out`. Returns: the number of bytes written.
    /// Errors: malformed or unsupported, without a position.
    [[nodiscard]] kvcache::result<std::size_t> decode(std::span<const char>& in, std::span<char> out) {
        if (whole_ && in.empty())
            return std::size_t{0};
        ZSTD_inBuffer from{in.data(), in.size(), 0};
        ZSTD_outBuffer to{out.data(), out.size(), 0};
        const std::size_t said = ZSTD_decompressStream(stream_.get(), &to, &from);
        in = in.subspan(from.pos);
        if (ZSTD_isError(said) != 0) {
            const std::string words = ZSTD_getErrorName(said);
            const bool large =
                words.find("memory") != std::string::npos; // "Frame requires too much memory for decoding"
            return kvcache::error{large ? kvcache::error_code::unsupported : kvcache::error_code::malformed, "zstd",
                                  "zstd data are damaged or need too much memory: " + words};
        }
        whole_ = said == 0;
        return to.pos;
    }

    /// Returns whether the input so far ends at the end of a frame.
    [[nodiscard]] bool whole() const noexcept { return whole_; }

private:
    struct close {
        void operator()(ZSTD_DStream* stream) const noexcept { ZSTD_freeDStream(stream); }
    };

    std::unique_ptr<ZSTD_DStream, close> stream_;
    bool whole_ = true;
};

/// The bytes of a file in order, decompressed if its first bytes are those of gzip or zstd; the file name does not
/// matter. Memory: 256 KiB, and zstd's window of at most 128 MiB, for a file of any size.
class byte_source {
public:
    /// Opens `file`. Errors: not_found; io, also for a directory.
    [[nodiscard]] static kvcache::result<byte_source> open(const std::filesystem::path& file) {
        std::error_code failed;
        const auto status = std::filesystem::status(file, failed);
        if (!std::filesystem::exists(status))
            return kvcache::error{kvcache::error_code::not_found, file.filename().string(),
                                  file.string() + " is not there"};
        if (std::filesystem::is_directory(status))
            return kvcache::error{kvcache::error_code::io, file.filename().string(), file.string() + " is a directory"};
        byte_source source;
        source.name_ = file.filename().string();
        source.file_.open(file, std::ios::binary);
        if (!source.file_)
            return kvcache::error{kvcache::error_code::io, source.name_, file.string() + " cannot be opened"};
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
    [[nodiscard]] kvcache::result<std::size_t> read(std::span<char> into) {
        kvcache::expects(!into.empty(), "bytes are read into something");
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
                return whole() ? kvcache::result<std::size_t>(std::size_t{0})
                               : failure(kvcache::error_code::truncated, "the compressed data end in the middle");
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

    [[nodiscard]] kvcache::error failure(kvcache::error_code code, const std::string& words) const {
        return {code, name_, name_ + ", byte " + std::to_string(consumed_) + " of the file: " + words};
    }

    [[nodiscard]] kvcache::result<void> fill() {
        if (in_memory_)
            return {};
        constexpr std::size_t chunk = std::size_t{128} << 10;
        buffer_.resize(chunk);
        file_.read(buffer_.data(), static_cast<std::streamsize>(chunk));
        if (file_.bad())
            return failure(kvcache::error_code::io, "the file cannot be read");
        in_begin_ = 0;
        in_end_ = static_cast<std::size_t>(file_.gcount());
        return {};
    }

    [[nodiscard]] kvcache::result<void> sniff() {
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

    [[nodiscard]] kvcache::result<std::size_t> decode(std::span<const char>& in, std::span<char> out) {
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

/// Opens a trace of the format that `Trace` reads. Errors: those of byte_source::open.
template <class Trace>
[[nodiscard]] kvcache::result<Trace> open_trace(const std::filesystem::path& file) {
    auto source = byte_source::open(file);
    if (!source)
        return source.error();
    return Trace(*std::move(source));
}

/// The lines of a source, without their line ends (LF or CR LF). Memory: the longest line.
class line_reader {
public:
    /// Maximum length of a line.
    static constexpr std::size_t longest = std::size_t{16} << 20;

    explicit line_reader(byte_source source) : source_(std::move(source)) {}

    /// Reads the next line, which is valid until the next call. Returns: false at the end. Errors: those of the
    /// source; malformed, for a NUL byte; out_of_range, for a line longer than `longest`.
    [[nodiscard]] kvcache::result<bool> next(std::string_view& line) {
        ++number_;
        for (std::size_t searched = begin_;;) {
            const std::string_view rest = std::string_view(buffer_).substr(searched, end_ - searched);
            if (const std::size_t at = rest.find('\n'); at != std::string_view::npos)
                return give(searched + at, searched + at + 1, line);
            searched = end_;
            if (searched - begin_ > longest)
                return failure(kvcache::error_code::out_of_range, "the line is longer than 16 MiB");
            const std::size_t moved = begin_;
            const auto more = grow();
            if (!more)
                return more.error();
            searched -= moved;
            if (!*more)
                return begin_ == end_ ? kvcache::result<bool>(false) : give(end_, end_, line);
        }
    }

    /// The number of the last line read, from 1.
    [[nodiscard]] std::uint64_t number() const noexcept { return number_; }

    /// Returns an error of that line.
    [[nodiscard]] kvcache::error failure(kvcache::error_code code, const std::string& words) const {
        return {code, source_.name(), source_.name() + ", line " + std::to_string(number_) + ": " + words};
    }

    [[nodiscard]] const byte_source& source() const noexcept { return source_; }

private:
    kvcache::result<bool> give(std::size_t end, std::size_t next, std::string_view& line) {
        line = std::string_view(buffer_).substr(begin_, end - begin_);
        begin_ = next;
        if (line.find('\0') != std::string_view::npos)
            return failure(kvcache::error_code::malformed, "the line has a NUL byte");
        if (!line.empty() && line.back() == '\r')
            line.remove_suffix(1);
        return true;
    }

    // Moves the unread bytes to the front and reads more after them. Returns false at the end.
    kvcache::result<bool> grow() {
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

} // namespace bench
