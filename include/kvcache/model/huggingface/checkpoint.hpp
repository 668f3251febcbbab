// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/kernel/team.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/safetensors.hpp>
#include <kvcache/model/huggingface/shown.hpp>
#include <kvcache/model/tensor_view.hpp>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// The weights of a Hugging Face model directory: model.safetensors, or the shards that model.safetensors.index.json
/// names. Move-only; the views it gives last as long as it does.
///
///     auto weights = kvcache::checkpoint::open("SmolLM2-135M");
///     auto norm = weights->tensor("model.norm.weight", {config.hidden_size});
class checkpoint {
public:
    /// Maps the files of `directory` and checks their headers, and the index against them. A lone model.safetensors
    /// goes before an index.
    /// Errors: not_found, for a missing file or a tensor that its shard lacks; malformed, for a shard name that leaves
    /// the directory or a tensor found in two shards; and those of safetensors_file::open.
    /// Cost: the headers'; no weight is read.
    KVCACHE_ONCE [[nodiscard]] static result<checkpoint> open(const std::filesystem::path& directory);

    /// The names of all tensors, in order.
    KVCACHE_LAZY [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> all;
        all.reserve(shard_of_.size());
        for (const auto& [name, shard] : shard_of_)
            all.push_back(name);
        return all;
    }

    [[nodiscard]] bool contains(std::string_view name) const { return shard_of_.find(name) != shard_of_.end(); }

    /// The tensor `name`, which must have this shape, outermost first, and be F32, F16 or BF16.
    /// Errors: not_found; mismatched, for the shape; unsupported, for the dtype; truncated, when the file shrank.
    KVCACHE_LAZY [[nodiscard]] result<tensor_view> tensor(std::string_view name,
                                                          std::span<const std::size_t> shape) const {
        const auto at = shard_of_.find(name);
        if (at == shard_of_.end())
            return error{error_code::not_found, detail::shown(name),
                         detail::joined({directory_.string(), ": ", detail::shown(name),
                                         ": the tensor is not in the checkpoint"})};
        return shards_[at->second].tensor(name, shape);
    }
    KVCACHE_LAZY [[nodiscard]] result<tensor_view> tensor(std::string_view name,
                                                          std::initializer_list<std::size_t> shape) const {
        return tensor(name, std::span<const std::size_t>(shape.begin(), shape.size()));
    }

    /// Whether these are exactly the weights of `config`: each there, of its shape and of a dtype that is read, and
    /// none beside them, since a bias or norm that nobody asks for would be left out in silence. Two kinds more are
    /// allowed: rotary_emb.inv_freq, which follows from the configuration, and a tied head whose bytes are the
    /// embedding's. Errors: tensor()'s; mismatched, for a tensor too many or a tied head that differs. Cost: no weight
    /// is read, except the two of a tied head.
    KVCACHE_ONCE [[nodiscard]] result<void> holds(const model_config& config) const;

    /// Digests of tensors' bytes, by name.
    using contents = std::map<std::string, kvcache::digest, std::less<>>;

    /// XXH3-128 over every tensor's name, dtype, shape and piecewise_digest() of its bytes, in the order of names; each
    /// part length-prefixed. The split into shards, the metadata and the order inside the files do not count. Whoever
    /// reads tensors anyway takes their piecewise digests meanwhile and gives them as `known`.
    /// Errors: truncated, when a file shrank. Cost: reads every weight that is not known once, by all threads.
    KVCACHE_ONCE [[nodiscard]] result<kvcache::digest> digest(team& threads, const contents& known) const;
    KVCACHE_LAZY [[nodiscard]] result<kvcache::digest> digest() const {
        team alone;
        return digest(alone, {});
    }

    /// Of what the system says of the files, mapped_file::description(); none if it does not know of one.
    /// Cost: no weight is read.
    KVCACHE_LAZY [[nodiscard]] std::optional<kvcache::digest>
    description(std::chrono::system_clock::time_point now) const {
        digest_builder builder;
        builder.text("kvcache files 1").number(shards_.size());
        for (const safetensors_file& shard : shards_) {
            const auto described = shard.file().description(now);
            if (!described)
                return std::nullopt;
            builder.nested(*described);
        }
        return builder.finish();
    }

    /// Begins to read all files from the disk; returns at once.
    KVCACHE_LAZY void read_ahead() const noexcept {
        for (const safetensors_file& shard : shards_)
            shard.file().read_ahead();
    }

    /// Takes a tensor that has been read out of this process's memory: mapped_file::forget().
    KVCACHE_LAZY void forget(const tensor_view& tensor) const noexcept {
        for (const safetensors_file& shard : shards_) {
            const std::span<const std::byte> all = shard.file().bytes();
            if (!std::less<>()(tensor.bytes.data(), all.data()) &&
                std::less<>()(tensor.bytes.data(), all.data() + all.size()))
                shard.file().forget(tensor.bytes);
        }
    }

private:
    checkpoint() = default;

    std::filesystem::path directory_;
    std::vector<safetensors_file> shards_;
    std::map<std::string, std::size_t, std::less<>> shard_of_;
};

} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/checkpoint.hpp>
#endif
