// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/mapped_file.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/kernel/piecewise_digest.hpp>
#include <kvcache/kernel/team.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/safetensors.hpp>
#include <kvcache/model/huggingface/shard_index.hpp>
#include <kvcache/model/tensor_view.hpp>
#include <kvcache/model/weight_names.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache {

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
    [[nodiscard]] static result<checkpoint> open(const std::filesystem::path& directory);

    /// The names of all tensors, in order.
    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> all;
        all.reserve(shard_of_.size());
        for (const auto& [name, shard] : shard_of_)
            all.push_back(name);
        return all;
    }

    [[nodiscard]] bool contains(std::string_view name) const { return shard_of_.find(name) != shard_of_.end(); }

    /// The tensor `name`, which must have this shape, outermost first, and be F32, F16 or BF16.
    /// Errors: not_found; mismatched, for the shape; unsupported, for the dtype; truncated, when the file shrank.
    [[nodiscard]] result<tensor_view> tensor(std::string_view name, std::span<const std::size_t> shape) const {
        const auto at = shard_of_.find(name);
        if (at == shard_of_.end())
            return error{error_code::not_found, detail::shown(name),
                         directory_.string() + ": " + detail::shown(name) + ": the tensor is not in the checkpoint"};
        return shards_[at->second].tensor(name, shape);
    }
    [[nodiscard]] result<tensor_view> tensor(std::string_view name, std::initializer_list<std::size_t> shape) const {
        return tensor(name, std::span<const std::size_t>(shape.begin(), shape.size()));
    }

    /// Whether these are exactly the weights of `config`: each there, of its shape and of a dtype that is read, and
    /// none beside them, since a bias or norm that nobody asks for would be left out in silence. Two kinds more are
    /// allowed: rotary_emb.inv_freq, which follows from the configuration, and a tied head whose bytes are the
    /// embedding's. Errors: tensor()'s; mismatched, for a tensor too many or a tied head that differs. Cost: no weight
    /// is read, except the two of a tied head.
    [[nodiscard]] result<void> holds(const model_config& config) const;

    /// Digests of tensors' bytes, by name.
    using contents = std::map<std::string, kvcache::digest, std::less<>>;

    /// XXH3-128 over every tensor's name, dtype, shape and piecewise_digest() of its bytes, in the order of names; each
    /// part length-prefixed. The split into shards, the metadata and the order inside the files do not count. Whoever
    /// reads tensors anyway takes their piecewise digests meanwhile and gives them as `known`.
    /// Errors: truncated, when a file shrank. Cost: reads every weight that is not known once, by all threads.
    [[nodiscard]] result<kvcache::digest> digest(team& threads, const contents& known) const;
    [[nodiscard]] result<kvcache::digest> digest() const {
        team alone;
        return digest(alone, {});
    }

    /// Of what the system says of the files, mapped_file::description(); none if it does not know of one.
    /// Cost: no weight is read.
    [[nodiscard]] std::optional<kvcache::digest> description(std::chrono::system_clock::time_point now) const {
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
    void read_ahead() const noexcept {
        for (const safetensors_file& shard : shards_)
            shard.file().read_ahead();
    }

    /// Takes a tensor that has been read out of this process's memory: mapped_file::forget().
    void forget(const tensor_view& tensor) const noexcept {
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

inline result<checkpoint> checkpoint::open(const std::filesystem::path& directory) {
    const char* const single = "model.safetensors";
    const char* const index_name = "model.safetensors.index.json";

    checkpoint opened;
    opened.directory_ = directory;
    std::vector<std::string> files;
    shard_index index;
    std::error_code ignored;
    if (std::filesystem::exists(directory / single, ignored)) {
        files.emplace_back(single);
    } else if (std::filesystem::exists(directory / index_name, ignored)) {
        auto read = shard_index::read(directory / index_name);
        if (!read)
            return read.error();
        index = *std::move(read);
        files = index.shards();
    } else {
        return error{error_code::not_found, single,
                     directory.string() + " has neither " + single + " nor " + index_name +
                         "; other weight formats are not read"};
    }

    for (const std::string& file : files) {
        auto shard = safetensors_file::open(directory / file);
        if (!shard)
            return shard.error();
        for (const auto& [name, entry] : shard->header().entries) {
            const auto [at, added] = opened.shard_of_.emplace(name, opened.shards_.size());
            if (!added)
                return error{error_code::malformed, detail::shown(name),
                             file + ": " + detail::shown(name) + ": the tensor is in " + files[at->second] + " too"};
        }
        opened.shards_.push_back(*std::move(shard));
    }
    for (const auto& [name, file] : index.shard_of) {
        const auto at = opened.shard_of_.find(name);
        if (at == opened.shard_of_.end() || files[at->second] != file)
            return error{error_code::not_found, detail::shown(name),
                         std::string(index_name) + ": " + detail::shown(name) + ": the tensor is not in " +
                             detail::shown(file) + ", where the index has it"};
    }
    return opened;
}

inline result<void> checkpoint::holds(const model_config& config) const {
    std::set<std::string, std::less<>> needed;
    for (weight_name& weight : weights_of(config)) {
        if (auto found = tensor(weight.name, weight.shape); !found)
            return found.error();
        needed.insert(std::move(weight.name));
    }
    for (const auto& item : shard_of_) { // no structured binding: Clang 14 cannot capture one
        const std::string& name = item.first;
        if (needed.contains(name) || name.ends_with(".rotary_emb.inv_freq"))
            continue;
        const auto refuse = [&](const std::string& what) {
            return error{error_code::mismatched, detail::shown(name),
                         shards_[item.second].file().name() + ": " + detail::shown(name) + ": " + what};
        };
        if (!config.tied_head || name != head_name)
            return refuse("the configuration has no use for this tensor");
        const std::size_t shape[] = {config.vocabulary, config.hidden_size};
        const auto head = tensor(head_name, shape);
        const auto embedding = tensor(embedding_name, shape);
        if (!head)
            return head.error();
        if (!embedding)
            return embedding.error();
        if (head->dtype != embedding->dtype || !std::ranges::equal(head->bytes, embedding->bytes))
            return refuse("the configuration ties it to the embedding, but the two differ");
    }
    return {};
}

inline result<kvcache::digest> checkpoint::digest(team& threads, const contents& known) const {
    for (const safetensors_file& shard : shards_)
        if (auto whole = shard.file().intact(); !whole)
            return whole.error();
    digest_builder builder;
    builder.text("kvcache weights 2").number(shard_of_.size());
    for (const auto& [name, shard] : shard_of_) {
        const safetensors_entry& entry = shards_[shard].header().entries.find(name)->second;
        builder.text(name).text(entry.dtype).number(entry.shape.size());
        for (const std::size_t extent : entry.shape)
            builder.number(extent);
        const auto bytes = shards_[shard].bytes(entry);
        const auto read = known.find(name);
        builder.nested(read != known.end() ? read->second : piecewise_digest(bytes, threads));
    }
    return builder.finish();
}

} // namespace kvcache
