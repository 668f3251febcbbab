// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/checkpoint_files.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/model/gguf/config.hpp>
#include <kvcache/model/huggingface/checkpoint.hpp>
#include <kvcache/model/huggingface/config.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/model/packed_file.hpp>
#include <kvcache/model/weights.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Adds every field of a rotation. Fails to compile if one is added and not named here.
KVCACHE_LAZY inline void add_rope(digest_builder& builder, const rope_config& of) {
    const auto& [theta, scaling, factor, low, high, original, fast, slow, truncate, attention, factors, turning] = of;
    for (const double number : {theta, factor, low, high, original, fast, slow, truncate ? 1.0 : 0.0, attention})
        builder.number(bit_cast<std::uint64_t>(number));
    builder.number(static_cast<std::uint64_t>(scaling)).number(factors.size()).number(turning);
    for (const float one : factors)
        builder.number(bit_cast<std::uint32_t>(one));
}

/// Digest of every field of a configuration. Fails to compile if a field is added and not named here.
KVCACHE_LAZY [[nodiscard]] inline digest digest_of(const model_config& config) {
    const auto& [architecture, hidden, inner, layers, heads, kv_heads, head_dim, vocabulary, positions, eps, rope, tied,
                 qkv_bias, output_bias, mlp_bias, qk_norm, bos, eos, norms, gate, gate_alpha, gate_limit, sinks,
                 embedding_scale, score_scale, score_cap, residual_scale, logit_scale, logit_cap, window_rope,
                 rotary_dim, joined_mlp, gated_attention, mixer, recurrence, experts, each_layer, value_norm,
                 layer_scales, per_layer_size] = config;
    digest_builder builder;
    builder.text("kvcache model config 4").text(architecture);
    for (const std::size_t extent : {hidden, inner, layers, heads, kv_heads, head_dim, vocabulary, positions})
        builder.number(extent);
    for (const float number :
         {eps, gate_alpha, gate_limit, embedding_scale, score_scale, score_cap, residual_scale, logit_scale, logit_cap})
        builder.number(bit_cast<std::uint32_t>(number));
    for (const int choice : {int{tied}, int{qkv_bias}, int{output_bias}, int{mlp_bias}, static_cast<int>(qk_norm),
                             static_cast<int>(norms), static_cast<int>(gate), int{joined_mlp}, int{gated_attention},
                             static_cast<int>(mixer), int{sinks}, int{value_norm}, int{layer_scales}})
        builder.number(static_cast<std::uint64_t>(choice));
    for (const auto& ids : {bos, eos}) {
        builder.number(ids.size());
        for (const token_id id : ids)
            builder.number(static_cast<std::uint64_t>(index_of(id)));
    }
    add_rope(builder, rope);
    builder.number(window_rope ? 1 : 0);
    if (window_rope)
        add_rope(builder, *window_rope);
    builder.number(rotary_dim).number(per_layer_size).number(each_layer.size());
    for (const auto& [window, rotates, has_experts, recurrent, dim, heads_kv, wide, same, reads] : each_layer) {
        builder.number(window).number(rotates ? 1 : 0).number(has_experts ? 1 : 0).number(recurrent ? 1 : 0);
        builder.number(dim).number(heads_kv).number(wide).number(same ? 1 : 0).number(reads ? *reads + 1 : 0);
    }
    const auto& [taps, key_heads, value_heads, key_dim, value_dim, conv_biased, joined_heads, joined_rates, tiled] =
        recurrence;
    for (const std::size_t number : {taps, key_heads, value_heads, key_dim, value_dim, std::size_t{conv_biased},
                                     std::size_t{joined_heads}, std::size_t{joined_rates}, std::size_t{tiled}})
        builder.number(number);
    const auto& [count, used, size, shared, scored, biased, normalized] = experts;
    builder.number(count)
        .number(used)
        .number(size)
        .number(shared)
        .number(scored ? 1 : 0)
        .number(biased ? 1 : 0)
        .number(normalized ? 1 : 0);
    return builder.finish();
}

/// The model in the requested number format.
KVCACHE_LAZY [[nodiscard]] inline transformer computing(const load_options& options, transformer stored,
                                                        thread_pool& threads) {
    return options.int8 ? stored.in_int8(threads) : std::move(stored);
}

/// Opens the packed weights that an earlier start wrote. Errors: those of packed_file; mismatched, if they belong to
/// another checkpoint.
template <class Checkpoint>
[[nodiscard]] result<packed_file> open_packed(const load_options& options, const Checkpoint& files,
                                              const packed_origin& origin, std::size_t bytes, thread_pool& threads) {
    auto kept = packed_file::open(*options.packed, origin, bytes);
    if (!kept)
        return kept;
    const bool same = options.trust_description && origin.files != digest{} && kept->origin().files == origin.files;
    if (!same) {
        const auto now = files.digest(threads, {});
        if (!now)
            return now.error();
        if (*now != kept->origin().weights)
            return error{
                error_code::mismatched, "weights",
                detail::joined({options.packed->string(), ": weights: they were packed from another checkpoint"})};
    }
    if (options.check_payload)
        if (auto sound = kept->check_payload(threads); !sound)
            return sound.error();
    return kept;
}

/// Loads an opened checkpoint of this configuration.
template <class Checkpoint>
[[nodiscard]] result<loaded_model> load_from(model_config config, const Checkpoint& files, const load_options& options,
                                             const std::function<void(std::size_t, std::size_t)>& progress) {
    thread_pool threads = open_threads(options.threads);

    load_report report;
    packed_origin origin;
    if (options.packed) {
        auto layout = weight_layout::plan(weight_groups(config), files);
        if (!layout)
            return layout.error();
        origin.config = detail::digest_of(config);
        origin.layout = layout->digest();
        origin.files = files.description(std::chrono::system_clock::now()).value_or(digest{});
        const auto kept = detail::open_packed(options, files, origin, layout->bytes(), threads);
        if (kept) {
            report.reused = true;
            auto weights = weights_in(config, weight_image(*std::move(layout), kept->payload()));
            return loaded_model{detail::computing(options, transformer(std::move(config), std::move(weights)), threads),
                                kept->origin().weights, report};
        }
        if (kept.error().code != error_code::not_found)
            report.refused = kept.error();
    }

    if (auto fits = files.holds(config); !fits)
        return fits.error();
    files.read_ahead();
    // Hashes a tensor while it is in the processor's caches, then drops its pages.
    typename Checkpoint::contents contents;
    const auto packed = [&](const weight_group& group, std::span<const tensor_view> views) {
        for (std::size_t i = 0; i < views.size(); ++i) {
            contents.emplace(group.parts[i].name, tree_hash(views[i].bytes, threads));
            files.forget(views[i]);
        }
    };
    const auto image =
        pack_image(config, files, options.memory, threads, packed, [&](std::size_t done, std::size_t of) {
            if (progress)
                progress(done, of);
        });
    if (!image)
        return image.error();
    const auto weights = files.digest(threads, contents);
    if (!weights)
        return weights.error();
    if (options.packed) {
        origin.weights = *weights;
        if (files.description(std::chrono::system_clock::now()).value_or(digest{}) != origin.files)
            origin.files = {}; // the files are being modified
        if (auto kept = packed_file::write(*options.packed, origin, image->bytes(), threads); kept)
            report.kept = true;
        else
            report.not_kept = kept.error();
    }
    auto loaded = weights_in(config, *image);
    return loaded_model{detail::computing(options, transformer(std::move(config), std::move(loaded)), threads),
                        *weights, report};
}

} // namespace detail

KVCACHE_BODY result<loaded_model> detail::load_and_tell(const std::filesystem::path& path, const load_options& options,
                                                        const std::function<void(std::size_t, std::size_t)>& progress) {
    if (is_gguf_path(path)) {
        const auto file = gguf_checkpoint::open(path);
        if (!file)
            return file.error();
        auto config = read_model_config(*file);
        if (!config)
            return config.error();
        return load_from(*std::move(config), *file, options, progress);
    }
    auto config = read_model_config(path);
    if (!config)
        return config.error();
    const auto files = checkpoint::open(path);
    if (!files)
        return files.error();
    return load_from(*std::move(config), *files, options, progress);
}

}} // namespace kvcache
