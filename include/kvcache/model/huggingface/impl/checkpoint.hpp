// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/model/checkpoint_files.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/huggingface/checkpoint.hpp>
#include <kvcache/model/huggingface/json.hpp>
#include <kvcache/model/shared_layers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Handler that reads the top-level "weight_map", an object of strings, and skips all other fields.
template <class...>
class shard_index_events final : public sax_events<> {
public:
    explicit shard_index_events(shard_index& index) : index_(index) {}

    [[nodiscard]] bool found() const noexcept { return found_; }

    bool on_start_object() override {
        ++depth_;
        if (inside_)
            return refuse_type("an object");
        if (depth_ == 2 && key_ == "weight_map")
            inside_ = true;
        return true;
    }
    bool on_end_object() override {
        inside_ = false;
        --depth_;
        return true;
    }
    bool on_key(std::string& key) override {
        key_ = std::move(key);
        if (depth_ == 1 && key_ == "weight_map" && std::exchange(found_, true))
            return fail(error_code::malformed, "weight_map", "the key is there twice");
        return true;
    }
    bool on_string(std::string& text) override {
        if (!inside_)
            return on_other("a text");
        const std::string field = "weight_map." + shown(key_);
        // Only a plain file name in the same directory: no separator, no parent, not empty, no NUL.
        if (text.empty() || text == "." || text == ".." ||
            text.find_first_of(std::string_view("/\\\0", 3)) != text.npos)
            return fail(error_code::malformed, field,
                        detail::joined({"\"", shown(text), "\" is not the name of a file next to the index"}));
        return index_.shard_of.emplace(std::move(key_), std::move(text)).second ||
               fail(error_code::malformed, field, "the tensor is there twice");
    }
    bool on_start_array() override {
        const bool fits = on_other("an array");
        ++depth_;
        return fits;
    }
    bool on_end_array() override {
        --depth_;
        return true;
    }
    bool on_unsigned(std::uint64_t) override { return on_other("a number"); }
    bool on_other(std::string_view what) override {
        const bool skipped = depth_ > 1 || (depth_ == 1 && key_ != "weight_map");
        return (skipped && !inside_) || refuse_type(what);
    }

private:
    bool refuse_type(std::string_view what) {
        return fail(error_code::malformed,
                    inside_       ? "weight_map." + shown(key_)
                    : depth_ == 0 ? "JSON"
                                  : "weight_map",
                    detail::joined({what, " does not belong there"}));
    }

    shard_index& index_;
    std::string key_;
    std::size_t depth_ = 0;
    bool inside_ = false;
    bool found_ = false;
};

/// Whether a tensor is of a part that a text does not use: of images, sounds, or multi-token prediction.
KVCACHE_LAZY [[nodiscard]] inline bool is_other_part(std::string_view name) {
    constexpr std::string_view parts[] = {"mtp.",          "visual.",      "vision_tower.",
                                          "vision_model.", "audio_tower.", "multi_modal_projector.",
                                          "embed_vision.", "embed_audio."};
    if (name.starts_with("model."))
        name.remove_prefix(6);
    return ranges::any_of(parts, [&](std::string_view part) { return name.starts_with(part); });
}

} // namespace detail

KVCACHE_BODY result<shard_index> shard_index::read(const std::filesystem::path& file) {
    const auto mapped = mapped_file::open(file);
    if (!mapped)
        return mapped.error();
    shard_index index;
    detail::shard_index_events<> events(index);
    if (auto parsed = events.parse(mapped->bytes(), mapped->name()); !parsed)
        return parsed.error();
    if (index.shard_of.empty())
        return error{error_code::malformed, "weight_map",
                     detail::joined({mapped->name(), ": weight_map: ",
                                     events.found() ? "it names no tensor" : "the field is missing"})};
    return index;
}

KVCACHE_BODY result<checkpoint> checkpoint::open(const std::filesystem::path& directory) {
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
                     detail::joined({directory.string(), " has neither ", single, " nor ", index_name,
                                     "; other weight formats are not read"})};
    }

    for (const std::string& file : files) {
        auto shard = safetensors_file::open(directory / file);
        if (!shard)
            return shard.error();
        for (const auto& [name, entry] : shard->header().entries) {
            const auto [at, added] = opened.shard_of_.emplace(name, opened.shards_.size());
            if (!added)
                return error{error_code::malformed, detail::shown(name),
                             detail::joined(
                                 {file, ": ", detail::shown(name), ": the tensor is in ", files[at->second], " too"})};
        }
        opened.shards_.push_back(*std::move(shard));
    }
    for (const auto& [name, file] : index.shard_of) {
        const auto at = opened.shard_of_.find(name);
        if (at == opened.shard_of_.end() || files[at->second] != file)
            return error{error_code::not_found, detail::shown(name),
                         detail::joined({index_name, ": ", detail::shown(name), ": the tensor is not in ",
                                         detail::shown(file), ", where the index has it"})};
    }
    return opened;
}

KVCACHE_BODY result<tensor_view> checkpoint::one_expert(detail::stacked_expert stacked,
                                                        std::span<const std::size_t> shape) const {
    stacked.transposed = contains(stored_name(stacked.name + "_bias")) || stacked.name.ends_with("_bias");
    stacked.name = stored_name(stacked.name);
    const safetensors_file& shard = shards_[shard_of_.find(stacked.name)->second];
    const std::vector<std::size_t>& stored = shard.header().entries.find(stacked.name)->second.shape;
    const std::size_t experts = stored.empty() ? 0 : stored[0];
    const auto all = shard.tensor(stacked.name, stacked.stacked_shape(experts, shape));
    if (!all)
        return all.error();
    if (stacked.expert >= experts)
        return error{error_code::mismatched, stacked.name,
                     detail::joined({shard.file().name(), ": ", stacked.name, ": it has ", std::to_string(experts),
                                     " experts; the configuration needs more"})};
    return stacked.in(*all, shape);
}

KVCACHE_BODY result<tensor_view> checkpoint::one_mxfp4_expert(detail::stacked_expert stacked,
                                                              std::span<const std::size_t> shape) const {
    const std::size_t rows = shape[0], columns = shape.size() == 2 ? shape[1] : 0;
    std::span<const std::byte> parts[2];
    for (std::size_t i = 0; i < 2; ++i) {
        const std::string part = stacked.name + (i == 0 ? "_blocks" : "_scales"), name(stored_name(part));
        const auto at = shard_of_.find(name);
        if (at == shard_of_.end())
            return error{error_code::not_found, name,
                         detail::joined({directory_.string(), ": ", name, ": the tensor is not in the checkpoint"})};
        const safetensors_file& shard = shards_[at->second];
        if (auto whole = shard.file().intact(); !whole)
            return whole.error();
        const safetensors_entry& entry = shard.header().entries.find(name)->second;
        std::vector<std::size_t> wanted{entry.shape.empty() ? 0 : entry.shape[0], stacked.step * rows, columns / 32};
        if (i == 0)
            wanted.push_back(16);
        if (entry.dtype != "U8" || columns == 0 || columns % 32 != 0 || entry.shape != wanted ||
            stacked.expert >= wanted[0])
            return error{error_code::mismatched, name,
                         detail::joined({shard.file().name(), ": ", name, ": it is not the MXFP4 of experts of ",
                                         std::to_string(rows), " x ", std::to_string(columns),
                                         " numbers, as many as the configuration needs"})};
        parts[i] = shard.bytes(entry);
    }
    return stacked.in_mxfp4(parts[0], parts[1], shape);
}

KVCACHE_BODY result<void> checkpoint::holds(const model_config& config) const {
    std::set<std::string, std::less<>> needed;
    if (!config.tied_head && (!contains(stored_name(embedding_name)) || stored_name(embedding_name) == head_name))
        return error{error_code::not_found, std::string(embedding_name),
                     detail::joined({directory_.string(), ": ", embedding_name,
                                     ": the tensor is not in the checkpoint, and the configuration does not tie it to ",
                                     head_name})};
    for (weight_name& weight : weights_of(config)) {
        if (auto found = tensor(weight.name, weight.shape); !found)
            return found.error();
        std::string stored(stored_name(weight.name));
        if (const auto stacked = detail::stacked_expert::of(weight.name); stacked && !contains(stored)) {
            stored = stored_name(stacked->name);
            if (!contains(stored)) {
                needed.insert(std::string(stored_name(stacked->name + "_scales")));
                stored = stored_name(stacked->name + "_blocks");
            }
            if (const auto& entry = shards_[shard_of_.find(stored)->second];
                entry.header().entries.find(stored)->second.shape[0] != config.experts.count)
                return error{error_code::mismatched, stored,
                             detail::joined({entry.file().name(), ": ", stored, ": the configuration needs ",
                                             std::to_string(config.experts.count), " experts"})};
        }
        needed.insert(std::move(stored));
    }
    for (const std::string& spare : detail::spare_weights(config))
        needed.insert(std::string(stored_name(spare)));
    for (const auto& item : shard_of_) { // no structured binding: Clang 14 cannot capture one
        const std::string& name = item.first;
        if (needed.contains(name) || name.ends_with(".rotary_emb.inv_freq") || detail::is_other_part(name))
            continue;
        const auto refuse = [&](const std::string& what) {
            return error{error_code::mismatched, detail::shown(name),
                         detail::joined({shards_[item.second].file().name(), ": ", detail::shown(name), ": ", what})};
        };
        if (!config.tied_head || name != stored_name(head_name))
            return refuse("the configuration has no use for this tensor");
        const std::size_t shape[] = {config.vocabulary, config.hidden_size};
        const auto head = tensor(head_name, shape);
        const auto embedding = tensor(embedding_name, shape);
        if (!head)
            return head.error();
        if (!embedding)
            return embedding.error();
        if (head->dtype != embedding->dtype || !ranges::equal(head->bytes, embedding->bytes))
            return refuse("the configuration ties it to the embedding, but the two differ");
    }
    return {};
}

KVCACHE_BODY result<kvcache::digest> checkpoint::digest(thread_pool& threads, const contents& known) const {
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
        const auto read = known.find(name == stored_name(embedding_name) ? embedding_name : name);
        builder.nested(read != known.end() ? read->second : tree_hash(bytes, threads));
    }
    return builder.finish();
}

}} // namespace kvcache
