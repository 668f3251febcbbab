// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/memory.hpp>
#include <kvcache/formats/gguf.hpp>
#include <kvcache/model/transformer.hpp>

#include <concepts>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Options of loading a model.
struct load_options {
    std::size_t threads = 0; ///< Threads that read and pack; 0: all hardware threads. They end after loading.

    /// File that caches the packed weights for the next start; none: they are packed at every start. packed_path() is
    /// the usual location.
    std::optional<std::filesystem::path> packed = std::nullopt;

    /// Whether the digest of cached weights is verified before use, which reads all of them.
    bool check_payload = true;

    /// Whether files with the same metadata as when the weights were packed (device, inode, size, times) count as
    /// unchanged. Otherwise, and wherever the metadata differs, the content is read and compared.
    bool trust_description = true;

    /// Whether to compute in int8 (transformer::in_int8), which is another, approximate model. Otherwise products are
    /// exact, those of quantised blocks (GGUF) too.
    bool int8 = false;

    pmr::memory_resource* memory = nullptr; ///< Memory of newly packed weights; null: new and delete.
};

/// Usual location of the packed weights of a model: inside its directory, or next to its GGUF file.
KVCACHE_LAZY [[nodiscard]] inline std::filesystem::path packed_path(const std::filesystem::path& model) {
    if (detail::is_gguf_path(model))
        return std::filesystem::path(model) += ".kvcache-packed";
    return model / "model.kvcache-packed";
}

/// Outcome of load_options::packed.
struct load_report {
    bool reused = false;                          ///< The weights were packed by an earlier start and are mapped.
    bool kept = false;                            ///< The weights were packed now and written for the next start.
    std::optional<error> refused = std::nullopt;  ///< Why an existing file was not used.
    std::optional<error> not_kept = std::nullopt; ///< Why newly packed weights were not written.
};

/// A loaded model and the digest that identifies its weights.
struct loaded_model {
    transformer model;
    digest weights; ///< Digest of the checkpoint's names, dtypes, shapes and bytes.
    load_report report = {};
};

namespace detail {

/// Implementation of load_model(); `progress` may be empty.
KVCACHE_ONCE [[nodiscard]] result<loaded_model>
load_and_tell(const std::filesystem::path& path, const load_options& options,
              const std::function<void(std::size_t, std::size_t)>& progress);

} // namespace detail

/// Opens a model: a Hugging Face directory (config.json and model.safetensors, or shards with an index), or a GGUF file
/// (the first part if it is split). Weights are mapped, packed once with all threads, and the files closed. If an
/// earlier start wrote packed weights that still match the model, they are mapped directly. Packed weights that do not
/// match are packed again and replaced, and the report gives the reason. `progress(done, of)` is called after each
/// layer that is packed. Errors: unsupported configurations, by the name of the field or key; missing, truncated or
/// inconsistent files; out_of_memory.
template <std::invocable<std::size_t, std::size_t> Progress>
[[nodiscard]] result<loaded_model> load_model(const std::filesystem::path& path, const load_options& options,
                                              Progress progress) {
    return detail::load_and_tell(path, options, [&](std::size_t done, std::size_t of) { progress(done, of); });
}

/// Loads without a report of progress.
KVCACHE_LAZY [[nodiscard]] inline result<loaded_model> load_model(const std::filesystem::path& path,
                                                                  const load_options& options) {
    return detail::load_and_tell(path, options, {});
}

/// Loads with the default options.
template <std::invocable<std::size_t, std::size_t> Progress>
[[nodiscard]] result<loaded_model> load_model(const std::filesystem::path& path, Progress progress) {
    return load_model(path, load_options{}, std::move(progress));
}

/// Loads with the default options and without a report of progress.
KVCACHE_LAZY [[nodiscard]] inline result<loaded_model> load_model(const std::filesystem::path& path) {
    return load_model(path, load_options{});
}

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/impl/load.hpp>
#endif
