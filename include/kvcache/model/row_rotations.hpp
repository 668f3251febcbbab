// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/model/model_parts.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The rotations of the rows of a batch, for each kind of layers that has RoPE.
class row_rotations {
public:
    /// Requires: the model outlives it.
    explicit row_rotations(const model_parts& model) : model_(model), rotations_(model.kinds.size()) {}

    /// Ensures memory for `rows` rows. Allocates only if it grows.
    void make_room(std::size_t rows) {
        for (std::size_t kind = 0; kind < rotations_.size(); ++kind)
            if (has(kind) && rotations_[kind].size() < rows * dim(kind))
                rotations_[kind] = aligned_vector<float>(rows * dim(kind));
    }

    /// Whether layers of a kind have RoPE.
    [[nodiscard]] bool has(std::size_t kind) const { return model_.kinds[kind].shape.rotation != nullptr; }
    /// Those of all rows; null if there are none. (rows, 2, head_dim / 2)
    [[nodiscard]] const float* data(std::size_t kind) const { return has(kind) ? rotations_[kind].data() : nullptr; }
    [[nodiscard]] std::span<float> of(std::size_t kind, std::size_t row) {
        return {rotations_[kind].data() + row * dim(kind), dim(kind)};
    }

    /// Fills those of a row at a position, for all kinds.
    void fill(std::size_t row, std::size_t position) {
        for (std::size_t kind = 0; kind < rotations_.size(); ++kind)
            if (has(kind))
                fill(kind, row, position);
    }

private:
    [[nodiscard]] std::size_t dim(std::size_t kind) const { return model_.kinds[kind].shape.head_dim; }

    void fill(std::size_t kind, std::size_t row, std::size_t position) {
        const auto made = of(kind, row);
        model_.kinds[kind].shape.rotation->fill(static_cast<std::int64_t>(position), made);
        const float factor = model_.kinds[kind].rotation_scale;
        if (factor == 1.0F)
            return;
        const std::size_t half = made.size() / 2, turned = model_.config.rotated() / 2;
        for (const std::size_t begin : {std::size_t{0}, half})
            scale(made.subspan(begin, turned), factor, made.subspan(begin, turned));
    }

    model_parts model_;
    std::vector<aligned_vector<float>> rotations_; // by kind
};

}} // namespace kvcache
