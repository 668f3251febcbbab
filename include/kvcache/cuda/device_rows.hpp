// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/role.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/cuda/page_layout.hpp>

#include <cstddef>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Revision of the device arithmetic: its order of sums, splits and powers of two. It changes whenever the same inputs
/// may give other bits, and is part of a cache's identity.
inline constexpr unsigned device_revision = 1;

/// Codec of a cache whose pages are on a device, for use with `device_storage`. It defines the storage format of rows,
/// which only the device's kernels write and read. Its cache never shares an identity with a host cache: the backend is
/// `cuda` with the revision, since a device's sums differ from the host's.
struct device_rows {
    using role = codec_role;
    row_format format = row_format::f32; ///< f32 is lossless; int4_hadamard is not supported by attention.
    kv_layout order = kv_layout::nhd;

    class state {
    public:
        explicit state(const page_layout& layout) : layout_(layout) {
            expects(layout.valid() && layout.format != row_format::int4_hadamard,
                    "rows on a device are whole vectors of 16 bytes, of a format that is attended");
        }

        [[nodiscard]] std::size_t page_bytes() const noexcept { return layout_.page_bytes(); }
        [[nodiscard]] std::string name() const {
            static constexpr const char* names[] = {"f32", "f16", "bf16", "int8", "int4 turned"};
            return std::string("device ") + names[static_cast<std::size_t>(layout_.format)];
        }
        [[nodiscard]] std::string layout_name() const {
            return std::string(layout_.order == kv_layout::nhd ? "nhd" : "hnd") + ", codes and then scales; " +
                   std::to_string(layout_.shape.layers) + " layers, " + std::to_string(layout_.shape.kv_heads) +
                   " KV heads of " + std::to_string(layout_.shape.head_dim);
        }
        [[nodiscard]] std::string backend() const { return "cuda " + std::to_string(device_revision); }

        [[nodiscard]] const page_layout& layout() const noexcept { return layout_; }

    private:
        page_layout layout_;
    };

    [[nodiscard]] state open(page_shape shape) const { return state({shape, order, format}); }
};

static_assert(codec_policy<device_rows>);

}}} // namespace kvcache::cuda
