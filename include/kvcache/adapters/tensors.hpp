// SPDX-License-Identifier: MIT
#pragma once

// Rows of a cache in the tensors of a runtime that names keys and values by layer, such as `past_key_values.N.key` and
// `present.N.key` of ONNX Runtime, or a VariableState of OpenVINO. It includes no header of a runtime.

#include <kvcache/adapters/tensors/layer_tensors.hpp>
#include <kvcache/cache/handle.hpp>
#include <kvcache/cache/table_rows.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/layout.hpp>
#include <kvcache/core/number_format.hpp>
#include <kvcache/core/shape.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

// Not a concept where it is asserted: a compiler would print every requirement.
template <class Codec>
inline constexpr bool has_single_rows = page_reader<Codec>&& row_writer<Codec>;

/// What table_rows reads of a cache.
template <class Codec, class Storage>
struct rows_source {
    using codec_type = Codec;
    const Codec& of;
    const Storage& memory;
    page_shape extents;
    [[nodiscard]] const Codec& codec() const noexcept { return of; }
    [[nodiscard]] const Storage& storage() const noexcept { return memory; }
    [[nodiscard]] const page_shape& shape() const noexcept { return extents; }
};

/// The layout of a lease's cache; of one without layer groups, its one group.
template <class Core>
[[nodiscard]] cache_layout layout_of(const basic_lease<Core>& lease) {
    if constexpr (Core::grouped)
        return lease.opened().core.pages().blocks().layout();
    else
        return cache_layout::of(lease.shape());
}

/// The entries of the rows [begin, end) of a page table. Errors: unsupported, not_found. Throws: bad_alloc.
[[nodiscard]] inline result<std::vector<page_entry>> entries_of(std::span<const page_entry> table, std::size_t begin,
                                                                std::size_t end) {
    std::vector<page_entry> made;
    std::size_t position = 0;
    for (page_entry entry : table) {
        const std::size_t low = std::max(begin, position), high = std::min(end, position + entry.count);
        if (low < high) {
            if (entry.base != 0)
                return error{error_code::unsupported, "base", "keys that moved to another position are not rotated"};
            if (entry.page == page_id{static_cast<std::uint32_t>(-1)}) // group_leases::no_block
                return error{error_code::not_found, "group", joined({"row ", std::to_string(low), " has no block"})};
            made.push_back({.page = entry.page,
                            .first = entry.first + static_cast<std::uint32_t>(low - position),
                            .count = static_cast<std::uint32_t>(high - low)});
        }
        position += entry.count;
    }
    return made;
}

/// Copies the rows of page-table entries, of which the first one is at `begin`, to tensors.
template <weight_format Number, class Source>
void copy_rows(const Source& source, std::span<const page_entry> table, layer_id layer, const past_tensors& to,
               std::size_t begin) {
    const std::size_t dim = source.shape().head_dim;
    const auto put = [&](const auto* key, const auto* value, std::size_t position, std::uint32_t head) {
        const std::size_t at = row_bytes<Number>(to, position, head);
        put_numbers<Number>(key, dim, static_cast<std::byte*>(to.keys) + at);
        put_numbers<Number>(value, dim, static_cast<std::byte*>(to.values) + at);
    };
    std::vector<float> keys, values; // of an entry
    for (const page_entry& entry : table) {
        const table_rows<Source> rows(source, {&entry, 1}, entry.count);
        for (std::uint32_t head = 0; head < source.shape().kv_heads; ++head)
            if constexpr (row_major_codec<typename Source::codec_type>) {
                rows.for_each_run(layer, head_id{head}, [&](const auto& run) {
                    for (std::size_t i = 0; i < run.rows; ++i)
                        put(run.keys + i * run.stride, run.values + i * run.stride, begin + i, head);
                });
            } else {
                keys.resize(entry.count * dim);
                values.resize(keys.size());
                rows.gather(layer, head_id{head}, keys, values);
                for (std::size_t i = 0; i < entry.count; ++i)
                    put(keys.data() + i * dim, values.data() + i * dim, begin + i, head);
            }
        begin += entry.count;
    }
}

/// The shape of a group's pages. Errors: out_of_range, if the cache does not have the layer in it.
[[nodiscard]] inline result<page_shape> shape_of_layer(const cache_layout& layout, std::size_t group, layer_id layer) {
    if (group >= layout.groups.size() || !layout.groups[group].has_rows())
        return error{error_code::out_of_range, "group",
                     joined({"group ", std::to_string(group), " keeps no keys and values of its own"})};
    if (index_of(layer) >= layout.groups[group].layers)
        return error{error_code::out_of_range, "layer",
                     joined({"layer ", std::to_string(index_of(layer)), " is not one of the group's ",
                             std::to_string(layout.groups[group].layers)})};
    return layout.shape(group);
}

} // namespace detail

/// Fills a layer's past tensors with the rows that are cached for a lease: those of the tokens from `tensors.first` to
/// lease.first(). Of a window, rows that the lease's first query does not read become zero. Later memory stays as it
/// is. Numbers of the codec's own type keep their bits. Where the tensors' type has fewer bits, numbers are rounded to
/// nearest even, and infinities saturate. `layer`: counted within the group. Only with a codec that writes single rows.
/// Errors: out_of_range, for a wrong group, layer, first token or stride, or too few tokens; malformed, for a null
/// pointer; unsupported, for a type that is not known, and for keys that moved to another position (erase_range, chunk
/// reuse); not_found, if a row is not kept. Nothing is written then. Throws: bad_alloc. Requires: the lease has not
/// ended. Cost: O(numbers).
template <class Core>
[[nodiscard]] result<void> read_rows(const basic_lease<Core>& lease, std::size_t group, layer_id layer,
                                     const past_tensors& tensors) {
    static_assert(detail::has_single_rows<typename Core::codec_type>,
                  "read_rows needs a codec that writes single rows (codec/f32.hpp, codec/row_major.hpp)");
    const cache_layout layout = detail::layout_of(lease);
    const auto shape = detail::shape_of_layer(layout, group, layer);
    if (!shape)
        return shape.error();
    const std::size_t first = tensors.first, end = lease.first();
    if (auto right = detail::check_tensors(tensors, *shape, std::min(first, end), end); !right)
        return right;
    const std::size_t begin = std::clamp(layout.groups[group].first_read(end), first, end);
    std::vector<page_entry> table;
    if constexpr (Core::grouped)
        (void)lease.pages(group, table);
    else
        table.assign(lease.pages().table.begin(), lease.pages().table.end());
    const auto entries = detail::entries_of(table, begin, end);
    if (!entries)
        return entries.error();
    const auto read = [&](const auto& codec, const auto& storage) {
        using codec_type = std::remove_cvref_t<decltype(codec)>;
        if constexpr (detail::has_single_rows<codec_type>)
            detail::with_number_of(tensors.layout.type, [&]<class Number>(Number) {
                for (std::uint32_t head = 0; head < shape->kv_heads; ++head)
                    for (std::size_t position = first; position < begin; ++position)
                        for (void* const side : {tensors.keys, tensors.values})
                            std::memset(static_cast<std::byte*>(side) +
                                            detail::row_bytes<Number>(tensors, position, head),
                                        0, shape->head_dim * sizeof(Number));
                using source = detail::rows_source<codec_type, std::remove_cvref_t<decltype(storage)>>;
                detail::copy_rows<Number>(source{codec, storage, *shape}, *entries, layer, tensors, begin);
            });
    };
    if constexpr (Core::grouped)
        lease.with_source(group, read);
    else
        read(lease.codec(), lease.storage());
    return {};
}
/// The same for a cache without layer groups.
template <class Core>
[[nodiscard]] result<void> read_rows(const basic_lease<Core>& lease, layer_id layer,
                                     const past_tensors& tensors) requires(!Core::grouped) {
    return read_rows(lease, 0, layer, tensors);
}

/// Writes a layer's rows of a lease, those of the tokens from lease.first() on, from tensors that have all of them:
/// the `present` tensors of a run, which begin with the past (`first` is 0), or the new rows alone (`first` is
/// lease.first()). The codec rounds numbers as it does those of basic_lease::write: infinities saturate in 16 bits,
/// every finite number of the codec's own type keeps its bits. `layer`: counted within the group. Errors: out_of_range,
/// malformed and unsupported, as for read_rows; unsupported for a spliced lease; nothing is written then. Throws:
/// bad_alloc. Requires: the lease has not ended. Cost: O(numbers).
template <class Core>
[[nodiscard]] result<void> write_rows(const basic_lease<Core>& lease, std::size_t group, layer_id layer,
                                      const present_tensors& tensors) {
    const auto shape = detail::shape_of_layer(detail::layout_of(lease), group, layer);
    if (!shape)
        return shape.error();
    if (!lease.opened().spliced().empty())
        return error{error_code::unsupported, "lease", "the rows of a spliced lease are not all written"};
    const std::size_t begin = lease.first(), dim = shape->head_dim;
    if (auto right = detail::check_tensors(tensors, *shape, begin, begin + lease.rows()); !right)
        return right;
    std::vector<float> keys(shape->kv_heads * dim), values(keys.size()); // (kv_heads, head_dim)
    detail::with_number_of(tensors.layout.type, [&]<class Number>(Number) {
        for (std::size_t row = 0; row < lease.rows(); ++row) {
            for (std::uint32_t head = 0; head < shape->kv_heads; ++head) {
                const std::size_t at = detail::row_bytes<Number>(tensors, begin + row, head);
                detail::get_numbers<Number>(static_cast<const std::byte*>(tensors.keys) + at, dim, &keys[head * dim]);
                detail::get_numbers<Number>(static_cast<const std::byte*>(tensors.values) + at, dim,
                                            &values[head * dim]);
            }
            if constexpr (Core::grouped)
                lease.write(group, layer, row, keys, values);
            else
                lease.write(layer, row, keys, values);
        }
    });
    return {};
}
/// The same for a cache without layer groups.
template <class Core>
[[nodiscard]] result<void> write_rows(const basic_lease<Core>& lease, layer_id layer,
                                      const present_tensors& tensors) requires(!Core::grouped) {
    return write_rows(lease, 0, layer, tensors);
}

/// A runtime with a model. For each group and layer that keep keys and values (group 0 in a cache without layer
/// groups), `past(group, layer, tokens)` gives tensors for the first `tokens` tokens, and `present(group, layer)` those
/// that the last run has written. `run(tokens, first)` runs the model on tokens, the first of them at position `first`.
template <class R>
concept tensor_runtime = requires(R& runtime, std::size_t n, layer_id layer, std::span<const token_id> tokens) {
    { runtime.past(n, layer, n) } -> std::same_as<past_tensors>;
    { runtime.run(tokens, n) } -> std::same_as<result<void>>;
    { runtime.present(n, layer) } -> std::same_as<present_tensors>;
};

namespace detail {

/// Calls `f` with each group and layer that keep keys and values, until one fails. Errors: unsupported, for a group
/// that keeps a state.
template <class F>
[[nodiscard]] result<void> for_each_layer(const cache_layout& layout, F&& f) {
    for (std::size_t group = 0; group < layout.groups.size(); ++group) {
        if (layout.groups[group].kind() == group_kind::state)
            return error{error_code::unsupported, "group", "tensors of keys and values have no recurrent state"};
        for (std::uint32_t layer = 0; layout.groups[group].has_rows() && layer < layout.groups[group].layers; ++layer)
            if (auto done = f(group, layer_id{layer}); !done)
                return done;
    }
    return {};
}

} // namespace detail

/// Runs a runtime's model on the tokens of a lease, stores the new rows of its present tensors, and commits them. For
/// the tokens of an answer: the runtime has their past from its last run. Errors: out_of_range, unless there is a token
/// for each row; unsupported, for layers with a state; those of the run and of write_rows. Throws: bad_alloc.
template <class Core, tensor_runtime Runtime>
[[nodiscard]] result<void> run_tokens(basic_lease<Core>& lease, std::span<const token_id> tokens, Runtime& runtime) {
    if (tokens.size() != lease.rows())
        return error{error_code::out_of_range, "tokens",
                     detail::joined({std::to_string(tokens.size()), " tokens do not fit a lease of ",
                                     std::to_string(lease.rows()), " rows"})};
    if (auto ran = runtime.run(tokens, lease.first()); !ran)
        return ran;
    auto stored = detail::for_each_layer(detail::layout_of(lease), [&](std::size_t group, layer_id layer) {
        return write_rows(lease, group, layer, runtime.present(group, layer));
    });
    if (stored)
        lease.commit(tokens);
    return stored;
}

/// Runs a runtime's model on a prompt: fills its past tensors with the rows that are cached, then runs the rest as
/// run_tokens does. Returns the sequence, for the next tokens: reserve, then run_tokens. Errors: those of acquire,
/// read_rows and run_tokens; the cache then has nothing more of the prompt than before. Throws: bad_alloc.
template <class Cache, tensor_runtime Runtime>
[[nodiscard]] result<typename Cache::sequence> run_prompt(Cache& cache, std::span<const token_id> prompt,
                                                          Runtime& runtime) {
    auto request = cache.acquire(prompt);
    if (!request)
        return request.error();
    const std::size_t cached = request->lease.first();
    const auto fill = [&](std::size_t group, layer_id layer) {
        return read_rows(request->lease, group, layer, runtime.past(group, layer, cached));
    };
    if (auto filled = detail::for_each_layer(detail::layout_of(request->lease), fill); !filled)
        return filled.error();
    if (auto ran = run_tokens(request->lease, prompt.subspan(cached), runtime); !ran)
        return ran.error();
    return std::move(request->sequence);
}

}} // namespace kvcache
