// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>

#include <zstd.h>

namespace kvcache { inline namespace KVCACHE_ABI {

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
    [[nodiscard]] result<std::size_t> decode(std::span<const char>& in, std::span<char> out) {
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
            return error{large ? error_code::unsupported : error_code::malformed, "zstd",
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

}} // namespace kvcache
