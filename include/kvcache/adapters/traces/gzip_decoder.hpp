// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>

#include <zlib.h>

namespace kvcache { inline namespace KVCACHE_ABI {

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
    [[nodiscard]] result<std::size_t> decode(std::span<const char>& in, std::span<char> out) {
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
            return error{error_code::malformed, "gzip",
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

}} // namespace kvcache
