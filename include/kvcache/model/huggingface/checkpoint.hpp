// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/checkpoint_files.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/safetensors.hpp>
#include <kvcache/model/huggingface/stacked_experts.hpp>
#include <kvcache/model/tensor_view.hpp>
#include <kvcache/model/weight_names.hpp>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A model.safetensors.index.json: the shard of each tensor.
struct shard_index {
    std::map<std::string, std::string, std::less<>> shard_of = {}; ///< File name by tensor name, in the same directory.

    /// Distinct file names, in order.
    KVCACHE_LAZY [[nodiscard]] std::vector<std::string> shards() const {
        std::set<std::string> distinct;
        for (const auto& [tensor, file] : shard_of)
            distinct.insert(file);
        return {distinct.begin(), distinct.end()};
    }

    /// Reads and checks an index. Errors: those of mapped_file::open; malformed, for invalid JSON, a missing or empty
    /// "weight_map", a duplicate key, or a file name with a path. The field is "weight_map.<tensor>" or similar.
    KVCACHE_ONCE [[nodiscard]] static result<shard_index> read(const std::filesystem::path& file);
};

/// Weights of a Hugging Face model directory: model.safetensors, or the shards listed in model.safetensors.index.json.
/// Move-only; the views that it returns are valid as long as it lives.
///
///     auto weights = kvcache::checkpoint::open("SmolLM2-135M");
///     auto norm = weights->tensor("model.norm.weight", {config.hidden_size});
class checkpoint {
public:
    /// Weights are as stored: see stored_form.
    static constexpr bool stored_forms = true;

    /// Maps the files of `directory` and checks their headers, and the index against them. A single model.safetensors
    /// takes precedence over an index. Errors: not_found, for a missing file or a tensor missing in its shard;
    /// malformed, for a shard name outside the directory or a tensor found in two shards; and those of
    /// safetensors_file::open. Cost: reads the headers, no weights.
    KVCACHE_ONCE [[nodiscard]] static result<checkpoint> open(const std::filesystem::path& directory);

    /// Names of all tensors, in order.
    KVCACHE_LAZY [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> all;
        all.reserve(shard_of_.size());
        for (const auto& [name, shard] : shard_of_)
            all.push_back(name);
        return all;
    }

    [[nodiscard]] bool contains(std::string_view name) const { return shard_of_.find(name) != shard_of_.end(); }

    /// Returns the tensor `name`. It must have this shape, outermost first, and be F32, F16 or BF16. The embedding of a
    /// checkpoint that has only lm_head is that: the two are tied, or holds() refuses it. A checkpoint of a multimodal
    /// model has the names of its text model with a prefix. Errors: not_found;
    /// mismatched, for the shape; unsupported, for the dtype; truncated, when the file shrank.
    KVCACHE_LAZY [[nodiscard]] result<tensor_view> tensor(std::string_view name,
                                                          std::span<const std::size_t> shape) const {
        const auto at = shard_of_.find(stored_name(name));
        if (at == shard_of_.end())
            if (auto stacked = detail::stacked_expert::of(name)) {
                if (contains(stored_name(stacked->name)))
                    return one_expert(*std::move(stacked), shape);
                if (contains(stored_name(stacked->name + "_blocks")))
                    return one_mxfp4_expert(*std::move(stacked), shape);
            }
        if (at == shard_of_.end())
            return error{error_code::not_found, detail::shown(name),
                         detail::joined({directory_.string(), ": ", detail::shown(name),
                                         ": the tensor is not in the checkpoint"})};
        return shards_[at->second].tensor(at->first, shape);
    }
    KVCACHE_LAZY [[nodiscard]] result<tensor_view> tensor(std::string_view name,
                                                          std::initializer_list<std::size_t> shape) const {
        return tensor(name, std::span<const std::size_t>(shape.begin(), shape.size()));
    }

    /// Checks that these are exactly the weights of `config`: every weight is present, with its shape and a supported
    /// dtype, and there are no others, since an unknown bias or norm would be ignored silently. Exceptions are
    /// allowed: rotary_emb.inv_freq, which follows from the configuration; a tied head whose bytes equal the
    /// embedding's; a tied head that is stored alone, without the embedding; and parts for images, sounds and
    /// multi-token prediction, by their names. Errors: those of tensor(); mismatched,
    /// for an extra tensor or a tied head that differs. Cost: reads no weights except the two of a tied head.
    KVCACHE_ONCE [[nodiscard]] result<void> holds(const model_config& config) const;

    /// Digests of tensors' bytes, by tensor name.
    using contents = std::map<std::string, kvcache::digest, std::less<>>;

    /// Digest of the checkpoint: XXH3-128 over every tensor's name, dtype, shape and tree_hash() of its bytes, in the
    /// order of names, each part length-prefixed. Independent of the split into shards, the metadata and the order
    /// inside the files. `known`: tree hashes already computed, for callers that read the tensors anyway. Errors:
    /// truncated, when a file shrank. Cost: reads every weight that is not in `known` once, with all threads.
    KVCACHE_ONCE [[nodiscard]] result<kvcache::digest> digest(thread_pool& threads, const contents& known) const;
    KVCACHE_LAZY [[nodiscard]] result<kvcache::digest> digest() const {
        thread_pool alone;
        return digest(alone, {});
    }

    /// Digest of the files' metadata (mapped_file::description()); none if it is unknown for a file. Cost: reads no
    /// weights.
    KVCACHE_LAZY [[nodiscard]] std::optional<kvcache::digest>
    description(std::chrono::system_clock::time_point now) const {
        return detail::description_of(shards_, now);
    }

    /// Starts reading all files from the disk; returns at once.
    KVCACHE_LAZY void read_ahead() const noexcept { detail::read_ahead(shards_); }

    /// Drops the pages of a tensor that has been read from this process's memory: mapped_file::forget().
    KVCACHE_LAZY void forget(const tensor_view& tensor) const noexcept { detail::forget(shards_, tensor.bytes); }

private:
    checkpoint() = default;

    /// A weight of one expert out of the tensor of all. Errors: those of tensor().
    KVCACHE_ONCE [[nodiscard]] result<tensor_view> one_expert(detail::stacked_expert stacked,
                                                              std::span<const std::size_t> shape) const;

    /// The same out of the two tensors of all experts in MXFP4.
    KVCACHE_ONCE [[nodiscard]] result<tensor_view> one_mxfp4_expert(detail::stacked_expert stacked,
                                                                    std::span<const std::size_t> shape) const;

    /// Name of the tensor that is returned for `name`, which is that if there is none.
    KVCACHE_LAZY [[nodiscard]] std::string_view stored_name(std::string_view name) const {
        if (contains(name))
            return name;
        constexpr std::string_view whole = "model.";
        if (name.starts_with(whole))
            if (const auto at = shard_of_.find(detail::joined({"model.language_model.", name.substr(whole.size())}));
                at != shard_of_.end())
                return at->first;
        if (const auto at = shard_of_.find(detail::joined({"language_model.", name})); at != shard_of_.end())
            return at->first;
        return name == embedding_name && contains(head_name) ? head_name : name;
    }

    std::filesystem::path directory_;
    std::vector<safetensors_file> shards_;
    std::map<std::string, std::size_t, std::less<>> shard_of_;
};

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/checkpoint.hpp>
#endif
