// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/formats/gguf_fields.hpp>
#include <kvcache/model/checkpoint_files.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/model/shared_layers.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

KVCACHE_BODY result<std::vector<gguf_entry>>
gguf_file::entries(const gguf_header& header, std::span<const std::byte> file, const std::string& name) {
    const auto refuse = [&](error_code code, std::string_view tensor, std::initializer_list<std::string_view> words) {
        const std::string field = detail::shown(tensor);
        return error{code, field, detail::joined({name, ": ", field, ": ", detail::joined(words)})};
    };
    const auto data = file.subspan(header.data());
    std::vector<gguf_entry> all;
    all.reserve(header.tensors().size());
    for (const gguf_tensor& tensor : header.tensors()) {
        const auto format = block_format_of(tensor.type);
        if (!format)
            return refuse(error_code::unsupported, tensor.name,
                          {"its type ", std::to_string(tensor.type),
                           " is not read; F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS "
                           "and MXFP4 are"});
        const block_shape block = shape_of(*format);
        if (tensor.shape.back() % block.weights != 0)
            return refuse(error_code::malformed, tensor.name,
                          {"its rows of ", std::to_string(tensor.shape.back()), " weights are not whole blocks of ",
                           name_of(*format), ", ", std::to_string(block.weights), " each"});
        std::size_t blocks = 1; // at most 2^56 weights, so that no product overflows
        for (const std::size_t extent : tensor.shape)
            blocks *= extent;
        blocks /= block.weights;
        if (tensor.offset > data.size() || blocks > (data.size() - tensor.offset) / block.bytes)
            return refuse(error_code::truncated, tensor.name,
                          {"its ", std::to_string(blocks), " blocks of ", std::to_string(block.bytes), " bytes at ",
                           std::to_string(tensor.offset), " end after the ", std::to_string(data.size()),
                           " bytes of data"});
        all.push_back({tensor.name, tensor.shape, *format,
                       data.subspan(static_cast<std::size_t>(tensor.offset), blocks * block.bytes)});
    }
    std::vector<const gguf_entry*> order;
    order.reserve(all.size());
    for (const gguf_entry& entry : all)
        order.push_back(&entry);
    ranges::sort(order, {}, [](const gguf_entry* entry) { return entry->bytes.data(); });
    for (std::size_t i = 1; i < order.size(); ++i)
        if (order[i]->bytes.data() < order[i - 1]->bytes.data() + order[i - 1]->bytes.size())
            return refuse(error_code::malformed, order[i]->name,
                          {"its data overlaps that of ", detail::shown(order[i - 1]->name)});
    return all;
}

KVCACHE_BODY result<gguf_file> gguf_file::open(const std::filesystem::path& file) {
    auto mapped = mapped_file::open(file);
    if (!mapped)
        return mapped.error();
    auto header = gguf_header::parse(mapped->bytes(), mapped->name());
    if (!header)
        return header.error();
    auto all = entries(*header, mapped->bytes(), mapped->name());
    if (!all)
        return all.error();
    return gguf_file(*std::move(mapped), *std::move(header), *std::move(all));
}

namespace detail {

/// Name of a part of a split model: "model-00002-of-00003.gguf".
struct gguf_part_name {
    std::string stem = {}; ///< "model"
    std::size_t number = 0;
    std::size_t count = 0;

    /// Five digits, as the format writes them.
    KVCACHE_LAZY [[nodiscard]] static std::string digits(std::size_t number) {
        const std::string text = std::to_string(number);
        return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
    }
    KVCACHE_LAZY [[nodiscard]] std::string text() const {
        return joined({stem, "-", digits(number), "-of-", digits(count), ".gguf"});
    }
    /// Reads a name; count is 0 if it is not one of a part.
    KVCACHE_LAZY [[nodiscard]] static gguf_part_name of(const std::string& name) {
        constexpr std::size_t tail = std::string_view("-00001-of-00003.gguf").size();
        gguf_part_name made;
        if (name.size() < tail)
            return made;
        const char* at = name.data() + name.size() - tail;
        std::from_chars(at + 1, at + 6, made.number);
        std::from_chars(at + 10, at + 15, made.count);
        made.stem = name.substr(0, name.size() - tail);
        return made.text() == name ? made : gguf_part_name{};
    }
};

/// Rows of a head of q and k if the architecture stores them interleaved; else, and without the keys, 0.
KVCACHE_LAZY [[nodiscard]] inline std::size_t gguf_head_rows(const gguf_header& header) {
    gguf_fields fields(header, "");
    const architecture* known = find_architecture(fields.text("general.architecture"));
    if (known == nullptr || !known->interleaved)
        return 0;
    const auto key = [&](std::string_view name) { return joined({known->name, name}); };
    const std::size_t heads = fields.count(key(".attention.head_count"), 0);
    const std::size_t shared = heads == 0 ? 0 : fields.count(key(".embedding_length"), 0) / heads;
    return fields.count(key(".attention.key_length"), shared);
}

} // namespace detail

KVCACHE_BODY result<void> gguf_checkpoint::add(gguf_file part) {
    for (const gguf_entry& entry : part.entries())
        if (!tensors_.emplace(entry.name, &entry).second)
            return error{error_code::malformed, detail::shown(entry.name),
                         detail::joined({part.file().name(), ": ", detail::shown(entry.name),
                                         ": the tensor is in another part too"})};
    parts_.push_back(std::move(part));
    return {};
}

KVCACHE_BODY result<gguf_checkpoint> gguf_checkpoint::open(const std::filesystem::path& file) {
    auto first = gguf_file::open(file);
    if (!first)
        return first.error();
    const std::string name = first->file().name();
    const auto refuse = [&](error_code code, const std::string& part, const std::string& field,
                            std::initializer_list<std::string_view> words) {
        return error{code, field, detail::joined({part, ": ", field, ": ", detail::joined(words)})};
    };
    detail::gguf_fields fields(first->header(), name);
    const std::size_t count = fields.count("split.count", 0), number = fields.count("split.no", 0);
    const std::size_t tensors = fields.count("split.tensors.count", 0);
    if (fields.problem())
        return *fields.problem();

    gguf_checkpoint opened;
    opened.head_rows_ = detail::gguf_head_rows(first->header());
    auto part_name = detail::gguf_part_name::of(name);
    if (count > 1) {
        if (part_name.count != count || part_name.number != number + 1)
            return refuse(error_code::mismatched, name, "split.no",
                          {"the file says that it is part ", std::to_string(number + 1), " of ", std::to_string(count),
                           ", but its name does not"});
        if (number != 0) {
            part_name.number = 1;
            return refuse(error_code::mismatched, name, "split.no",
                          {"it is a later part of a split model; open ", part_name.text()});
        }
    }
    if (auto added = opened.add(*std::move(first)); !added)
        return added.error();
    for (std::size_t i = 1; i < count; ++i) {
        part_name.number = i + 1;
        auto part = gguf_file::open(file.parent_path() / part_name.text());
        if (!part)
            return part.error();
        detail::gguf_fields said(part->header(), part_name.text());
        if (said.count("split.count", 0) != count || said.count("split.no", 0) != i)
            return refuse(
                error_code::mismatched, part_name.text(), "split.no",
                {"the file does not say that it is part ", std::to_string(i + 1), " of ", std::to_string(count)});
        if (auto added = opened.add(*std::move(part)); !added)
            return added.error();
    }
    if (count > 1 && tensors != opened.tensors_.size())
        return refuse(error_code::mismatched, name, "split.tensors.count",
                      {"it is ", std::to_string(tensors), "; the parts have ", std::to_string(opened.tensors_.size()),
                       " tensors"});
    return opened;
}

KVCACHE_BODY result<tensor_view> gguf_checkpoint::tensor(std::string_view name,
                                                         std::span<const std::size_t> shape) const {
    const gguf_weight at = gguf_weight_of(kind(), name);
    const std::string& stored = at.name; // no structured binding: Clang 14 cannot capture one
    const std::optional<std::size_t> expert = at.expert;
    const auto refuse = [&](error_code code, std::initializer_list<std::string_view> words) {
        return error{code, stored, detail::joined({this->name(), ": ", stored, ": ", detail::joined(words)})};
    };
    const gguf_entry* whole = find(stored);
    if (whole == nullptr)
        return refuse(error_code::not_found, {"the tensor is not in the file"});
    gguf_entry part;
    if (expert) { // the tensor has all experts of its layer, outermost
        if (whole->shape.size() < 2 || *expert >= whole->shape[0])
            return refuse(error_code::mismatched, {"it has no expert ", std::to_string(*expert)});
        part = *whole;
        part.shape.erase(part.shape.begin());
        part.bytes =
            part.bytes.subspan(part.bytes.size() / whole->shape[0] * *expert, part.bytes.size() / whole->shape[0]);
    }
    const gguf_entry* entry = expert ? &part : whole;
    const auto text_of = [](std::span<const std::size_t> extents) {
        std::string text;
        for (const std::size_t extent : extents)
            text += (text.empty() ? "(" : ", ") + std::to_string(extent);
        return text + ")";
    };
    const auto longer = [](std::span<const std::size_t> extents) { // those above 1: a file may have others, or not
        std::vector<std::size_t> made;
        for (const std::size_t extent : extents)
            if (extent != 1)
                made.push_back(extent);
        return made;
    };
    if (longer(entry->shape) != longer(shape))
        return refuse(error_code::mismatched,
                      {"its shape is ", text_of(entry->shape), "; the configuration needs ", text_of(shape)});
    for (const gguf_file& file : parts_)
        if (auto intact = file.file().intact(); !intact)
            return intact.error();
    const bool by_heads = stored.find(".attn_q.") != stored.npos || stored.find(".attn_k.") != stored.npos;
    const std::size_t rows = entry->shape.empty() ? 1 : entry->shape[0];
    if (by_heads && (head_rows_ % 2 != 0 || (head_rows_ != 0 && rows % head_rows_ != 0)))
        return refuse(error_code::mismatched,
                      {"its rows are not whole heads of ", std::to_string(head_rows_), " rows"});
    const bool half_precision = entry->format == block_format::f16, brain = entry->format == block_format::bf16;
    const bool plain = half_precision || brain || entry->format == block_format::f32;
    return tensor_view{.dtype = half_precision ? dtype::f16
                                : brain        ? dtype::bf16
                                               : dtype::f32,
                       .shape = {shape.begin(), shape.end()},
                       .bytes = entry->bytes,
                       .blocks = plain ? std::nullopt : std::optional(entry->format),
                       .head_rows = by_heads ? head_rows_ : 0};
}

KVCACHE_BODY result<void> gguf_checkpoint::holds(const model_config& config) const {
    std::set<std::string, std::less<>> needed;
    for (const weight_name& weight : weights_of(config)) {
        if (auto found = tensor(weight.name, weight.shape); !found)
            return found.error();
        const gguf_weight at = gguf_weight_of(kind(), weight.name);
        if (at.expert && find(at.name)->shape[0] != config.experts.count)
            return error{error_code::mismatched, at.name,
                         detail::joined({name(), ": ", at.name, ": it has ", std::to_string(find(at.name)->shape[0]),
                                         " experts; the configuration needs ", std::to_string(config.experts.count)})};
        needed.insert(at.name);
    }
    for (const std::string& spare : detail::spare_weights(config))
        needed.insert(gguf_name(kind(), spare));
    if (config.rope.scaling == rope_config::kind::factors || config.rope.turning != 0)
        for (const char* factors : {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
            needed.insert(factors);
    for (const auto& item : tensors_)
        if (!needed.contains(item.first))
            return error{error_code::mismatched, detail::shown(item.first),
                         detail::joined({name(), ": ", detail::shown(item.first),
                                         ": the configuration has no use for this tensor"})};
    return {};
}

KVCACHE_BODY result<kvcache::digest> gguf_checkpoint::digest(thread_pool& threads, const contents& known) const {
    for (const gguf_file& part : parts_)
        if (auto whole = part.file().intact(); !whole)
            return whole.error();
    std::map<std::string, kvcache::digest, std::less<>> read;
    for (const auto& [name, hash] : known)
        if (const gguf_weight at = gguf_weight_of(kind(), name); !at.expert)
            read.emplace(at.name, hash);
    digest_builder builder;
    builder.text("kvcache gguf weights 1").number(tensors_.size());
    for (const auto& [name, entry] : tensors_) {
        builder.text(name).text(name_of(entry->format)).number(entry->shape.size());
        for (const std::size_t extent : entry->shape)
            builder.number(extent);
        const auto found = read.find(name);
        builder.nested(found != read.end() ? found->second : tree_hash(entry->bytes, threads));
    }
    return builder.finish();
}

}} // namespace kvcache
