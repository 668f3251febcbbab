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

namespace kvcache::inline KVCACHE_ABI {

/// Decompresses gzip, member after member, as far as input and room reach.
class gzip_decoder {
public:
    /// Throws: bad_alloc.
    gzip_decoder() : stream_(new z_stream{}) {
        constexpr int window = 15, with_gzip_header = 16; // as zlib.h says
        if (inflateInit2(stream_.get(), window + with_gzip_header) != Z_OK)
            throw std::bad_alloc();
    }

    /// Whether `begin` opens a gzip file: the magic and the only method there is.
    [[nodiscard]] static bool recognises(std::span<const char> begin) noexcept {
        return begin.size() >= 3 && begin[0] == '\x1f' && begin[1] == '\x8b' && begin[2] == '\x08';
    }

    /// Takes from the front of `in`, which it shortens, and writes to `out`. Returns: how many bytes were written.
    /// Errors: malformed, without a place.
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
        // zlib reads through a pointer that is not const and does not write.
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

    /// Whether the input so far ends where a member does.
    [[nodiscard]] bool whole() const noexcept { return whole_; }

private:
    struct close {
        void operator()(z_stream* stream) const noexcept {
            inflateEnd(stream);
            delete stream;
        }
    };

    std::unique_ptr<z_stream, close> stream_; // zlib keeps its address
    bool whole_ = true;
};

} // namespace kvcache
