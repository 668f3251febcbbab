// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/little_endian.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// For pages that are blobs of a host: the state of an engine for the tokens of a page, in a form that only the engine
/// knows. A blob has any number of bytes up to `blob_bytes`. A prompt continues a page where its blob ends, and nowhere
/// else. A host writes and reads blobs with cache/blobs.hpp.
struct opaque {
    using role = codec_role;
    std::size_t blob_bytes = 0;            ///< The most bytes of a page's blob.
    std::string layout = "the host's own"; ///< Becomes part of the identity: what a blob holds, and its version.

    /// Bytes of a page for a blob of so many bytes, with the number of bytes before it.
    [[nodiscard]] static constexpr std::size_t page_bytes(std::size_t blob_bytes) noexcept {
        return blob_bytes + sizeof(std::uint64_t);
    }

    class state {
    public:
        state(std::size_t blob_bytes, std::string layout) : bytes_(header + blob_bytes), layout_(std::move(layout)) {}
        [[nodiscard]] std::size_t page_bytes() const noexcept { return bytes_; }
        [[nodiscard]] std::string name() const { return "opaque"; }
        [[nodiscard]] std::string layout_name() const { return layout_; }

        /// Those bytes of a page that are in use: the number of bytes of its blob, and the blob. Fewer than a page
        /// has, even if the number is damaged.
        [[nodiscard]] static std::span<const std::byte> used(std::span<const std::byte> page) noexcept {
            return page.first(header + size(page));
        }
        /// The blob of a page; empty if none was written.
        [[nodiscard]] static std::span<const std::byte> blob(std::span<const std::byte> page) noexcept {
            return used(page).subspan(header);
        }
        /// Memory for a blob of so many bytes. Requires: the page has room for them.
        [[nodiscard]] static std::span<std::byte> begin(std::span<std::byte> page, std::size_t bytes) {
            require(bytes <= page.size() - header, "a blob has no more bytes than its codec says");
            store_little(page, 0, std::uint64_t{bytes});
            return page.subspan(header, bytes);
        }
        /// Makes the page one without a blob.
        static void clear(std::span<std::byte> page) { static_cast<void>(begin(page, 0)); }

    private:
        static constexpr std::size_t header = sizeof(std::uint64_t);

        [[nodiscard]] static std::size_t size(std::span<const std::byte> page) noexcept {
            const auto said = load_little<std::uint64_t>(page, 0);
            return said <= page.size() - header ? static_cast<std::size_t>(said) : 0;
        }

        std::size_t bytes_;
        std::string layout_;
    };

    [[nodiscard]] state open(page_shape) const { return {blob_bytes, layout}; }
};

static_assert(codec_policy<opaque>);

}}} // namespace kvcache::codec
