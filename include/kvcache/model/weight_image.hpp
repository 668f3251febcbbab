// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/linear.hpp>
#include <kvcache/model/tensor_view.hpp>
#include <kvcache/model/weight_names.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Source of weights: returns a tensor by its Hugging Face name with the required shape, or an error.
template <class S>
concept weight_source = requires(const S s, std::string_view name, std::initializer_list<std::size_t> shape) {
    { s.tensor(name, shape) } -> std::same_as<result<tensor_view>>;
};

/// Location of a group in the image of a model's weights.
struct weight_place {
    matrix_format format = {};
    std::size_t outputs = 0;
    std::size_t inputs = 0; ///< 0 for a vector of `outputs` floats.
    std::size_t offset = 0; ///< In bytes, a multiple of a cache line.
    std::size_t bytes = 0;
};

/// Layout of all packed weights of a model in one block of memory or the payload of a file. It depends only on the
/// groups and their stored formats.
class weight_layout {
public:
    /// Plans the layout from the shapes and formats of all tensors, without reading their bytes. Errors: those of the
    /// source, with the tensor's name.
    template <weight_source Source>
    [[nodiscard]] static result<weight_layout> plan(std::vector<weight_group> groups, const Source& source) {
        weight_layout made;
        for (const weight_group& group : groups) {
            auto views = views_of(group, source);
            if (!views)
                return views.error();
            weight_place place{.offset = made.bytes_};
            for (const tensor_view& view : *views)
                place.outputs += view.shape.size() == 2 ? view.shape[0] : view.size();
            if (views->front().shape.size() == 2) {
                place.format = packed_format(*views);
                place.inputs = views->front().shape[1];
                place.bytes = packed_bytes(place.format, place.outputs, place.inputs);
            } else {
                place.bytes = place.outputs * sizeof(float);
            }
            made.bytes_ += (place.bytes + line_bytes - 1) / line_bytes * line_bytes;
            made.places_.push_back(std::move(place));
        }
        made.groups_ = std::move(groups);
        return made;
    }

    [[nodiscard]] std::span<const weight_group> groups() const noexcept { return groups_; }
    [[nodiscard]] std::span<const weight_place> places() const noexcept { return places_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    /// Digest of every group's tensors and location.
    [[nodiscard]] kvcache::digest digest() const {
        digest_builder builder;
        builder.text("kvcache weight layout 1").number(places_.size());
        for (std::size_t i = 0; i < places_.size(); ++i) {
            builder.number(groups_[i].parts.size());
            for (const weight_name& part : groups_[i].parts) {
                builder.text(part.name).number(part.shape.size());
                for (const std::size_t extent : part.shape)
                    builder.number(extent);
            }
            const weight_place& at = places_[i];
            builder.text(name_of(at.format.numbers));
            for (const block_part& part : at.format.blocks)
                builder.text(name_of(part.format)).number(part.outputs);
            builder.number(at.outputs).number(at.inputs).number(at.offset).number(at.bytes);
        }
        return builder.finish();
    }

    /// Tensors of a group. Errors: those of the source.
    template <weight_source Source>
    [[nodiscard]] static result<std::vector<tensor_view>> views_of(const weight_group& group, const Source& source) {
        std::vector<tensor_view> views;
        for (const weight_name& part : group.parts) {
            auto view = part.shape.size() == 1   ? source.tensor(part.name, {part.shape[0]})
                        : part.shape.size() == 2 ? source.tensor(part.name, {part.shape[0], part.shape[1]})
                                                 : source.tensor(part.name, {part.shape[0], 1, part.shape[2]});
            if (!view)
                return view.error();
            view->heads = part.heads;
            views.push_back(std::move(*view));
        }
        return views;
    }

private:
    std::vector<weight_group> groups_;
    std::vector<weight_place> places_;
    std::size_t bytes_ = 0;
};

/// Whether a source has weights in the forms of checkpoints of Hugging Face: see stored_form.
template <class Source>
inline constexpr bool has_stored_forms = requires {
    requires Source::stored_forms;
};

/// The weights that a checkpoint of Hugging Face stores in a form.
inline void undo_form(stored_form form, std::span<float> numbers) {
    for (float& number : numbers)
        number = form == stored_form::less_one ? number + 1.0F
                 : form == stored_form::log_of_negative
                     ? static_cast<float>(-portable_math::exp(std::clamp(static_cast<double>(number), -80.0, 80.0)))
                     : number;
}

/// Packs all weights of a layout into `image`: layout.bytes() on a cache line. `packed(group, views)` is called for
/// each group and its tensors once they are packed, in order. Errors: those of the source. Cost: reads and writes every
/// weight once, with all threads.
template <weight_source Source, class Packed>
[[nodiscard]] result<void> pack_weights(const weight_layout& layout, const Source& source, std::span<std::byte> image,
                                        thread_pool& threads, Packed packed) {
    expects(image.size() == layout.bytes(), "an image is as long as its layout says");
    for (std::size_t i = 0; i < layout.places().size(); ++i) {
        const weight_place& place = layout.places()[i];
        const auto views = weight_layout::views_of(layout.groups()[i], source);
        if (!views)
            return views.error();
        std::byte* to = image.data() + place.offset;
        if (place.inputs != 0) {
            pack_rows(*views, place.format, to, threads);
        } else {
            for (const tensor_view& view : *views) {
                const std::span<float> numbers(reinterpret_cast<float*>(to), view.size());
                view.read(0, numbers);
                if (has_stored_forms<Source>)
                    undo_form(layout.groups()[i].form, numbers);
                to += view.size() * sizeof(float);
            }
            // Zero the padding up to the next cache line, so that equal weights give equal images.
            const std::size_t end = (place.offset + place.bytes + line_bytes - 1) / line_bytes * line_bytes;
            std::memset(to, 0, end - (place.offset + place.bytes));
        }
        packed(layout.groups()[i], std::span<const tensor_view>(*views));
    }
    return {};
}

/// The packed weights of a model in one block, in memory or in a mapped file, with its layout.
class weight_image {
public:
    weight_image(weight_layout layout, std::shared_ptr<const std::byte> memory)
        : layout_(std::move(layout)), memory_(std::move(memory)) {}

    [[nodiscard]] const weight_layout& layout() const noexcept { return layout_; }
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {memory_.get(), layout_.bytes()}; }

    /// Copy of group `index`. Requires: it is a group of vectors.
    [[nodiscard]] std::vector<float> vector(std::size_t index) const {
        const weight_place& place = layout_.places()[index];
        expects(place.inputs == 0, "a vector is read from a group of vectors");
        std::vector<float> numbers(place.outputs);
        std::memcpy(numbers.data(), memory_.get() + place.offset, place.bytes);
        return numbers;
    }

    /// Linear map of group `index`, which keeps the block alive. Requires: it is a group of matrices.
    [[nodiscard]] linear product(std::size_t index) const {
        const weight_place& place = layout_.places()[index];
        expects(place.inputs != 0, "a product is made from a group of matrices");
        return linear::packed(place.format, place.outputs, place.inputs,
                              std::shared_ptr<const std::byte>(memory_, memory_.get() + place.offset));
    }

private:
    weight_layout layout_;
    std::shared_ptr<const std::byte> memory_;
};

}} // namespace kvcache
