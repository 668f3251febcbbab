// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/int4.hpp>
#include <kvcache/codec/quantized_pages.hpp>
#include <kvcache/kernel/hadamard.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

namespace detail {

/// Coder of rows that are transformed by a Hadamard matrix.
template <side_coder Inner>
class hadamard_coder : public Inner {
public:
    explicit hadamard_coder(Inner inner) : Inner(std::move(inner)) {}

    [[nodiscard]] std::string name() const { return "rotated " + Inner::name(); }
    void transform(std::span<float> row) const noexcept { hadamard(row); }
    void inverse_transform(std::span<float> row) const noexcept { hadamard(row); }
};

} // namespace detail

/// Transforms rows by a Hadamard matrix before another codec quantizes them. The matrix spreads a large channel over
/// all values of its block, which is the largest power of two that divides head_dim. Keys and queries are transformed
/// after RoPE; the attention output is transformed back for the values. (Ashkboos et al. 2024, QuaRot)
template <sided_codec Inner = int4>
struct hadamard {
    using role = codec_role;
    Inner inner = {};

    [[nodiscard]] auto coder(kv_kind side, page_shape shape) const {
        return detail::hadamard_coder(inner.coder(side, shape));
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

template <class Inner>
hadamard(Inner) -> hadamard<Inner>;

static_assert(codec_policy<hadamard<int4>>);

}}} // namespace kvcache::codec
