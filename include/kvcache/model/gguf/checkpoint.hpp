// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/formats/gguf.hpp>
#include <kvcache/kernel/block_format.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/checkpoint_files.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/tensor_view.hpp>
#include <kvcache/model/weight_names.hpp>

#include <algorithm>
#include <charconv>
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
#include <system_error>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Where a GGUF file has a weight: the name of a tensor, and which part of it for a weight of one expert.
struct gguf_weight {
    std::string name = {}; ///< Empty for a name that weight_names.hpp does not give.
    std::optional<std::size_t> expert = std::nullopt;
};

/// Where a GGUF file has an architecture's weight with this Hugging Face name: "blk.3.attn_q.weight" for
/// "model.layers.3.self_attn.q_proj.weight".
KVCACHE_LAZY [[nodiscard]] inline gguf_weight gguf_weight_of(const architecture& of, std::string_view name) {
    std::string before;
    constexpr std::string_view layers = "model.layers.";
    if (name.starts_with(layers)) {
        const std::size_t dot = name.find('.', layers.size());
        if (dot == name.npos)
            return {};
        before = detail::joined({"blk.", name.substr(layers.size(), dot - layers.size()), "."});
        name.remove_prefix(dot + 1);
    }
    const std::size_t end = std::min(name.rfind('.'), name.size());
    const std::string_view suffix = name.substr(end);
    std::string part(name.substr(0, end));
    gguf_weight made;
    constexpr std::string_view experts = ".experts.";
    if (const std::size_t at = part.find(experts); at != part.npos) {
        const char* first = part.data() + at + experts.size();
        std::size_t number = 0;
        const auto read = std::from_chars(first, part.data() + part.size(), number);
        if (read.ec != std::errc())
            return {};
        made.expert = number;
        part.replace(at + experts.size(), static_cast<std::size_t>(read.ptr - first), "*");
    }
    const std::string whole = detail::joined({part, suffix});
    for (const auto names : {of.names, std::span<const weight_naming>(common_names)})
        for (const weight_naming& one : names)
            if (made.name.empty() && one.huggingface == (one.whole ? whole : part) &&
                of.naming(one.role).huggingface == one.huggingface)
                made.name = detail::joined({before, one.gguf, one.whole ? "" : suffix});
    return made;
}

/// The same, the name alone.
KVCACHE_LAZY [[nodiscard]] inline std::string gguf_name(const architecture& of, std::string_view name) {
    return gguf_weight_of(of, name).name;
}

/// Place of a tensor's data in a GGUF file.
struct gguf_entry {
    std::string_view name = {};          ///< Viewed in the file.
    std::vector<std::size_t> shape = {}; ///< Outermost first.
    block_format format = block_format::f32;
    std::span<const std::byte> bytes = {}; ///< Whole rows of whole blocks, viewed in the file.
};

/// A GGUF file, mapped read-only, with a checked header and checked places of its tensors. Movable; its views
/// are of the mapping, which a move does not relocate.
class gguf_file {
public:
    /// Maps `file` and checks it. Errors: those of mapped_file::open, gguf_header::parse and entries(). Cost: reads the
    /// header, no weights.
    KVCACHE_ONCE [[nodiscard]] static result<gguf_file> open(const std::filesystem::path& file);

    /// Places of the tensors of `header`, which was parsed from `file`; `name` is its name in errors. Errors:
    /// unsupported, for a type that is not one of block_formats; malformed, for a row that is not whole blocks or data
    /// that overlaps another tensor's; truncated, for data after the end of the file. The error names the tensor.
    KVCACHE_ONCE [[nodiscard]] static result<std::vector<gguf_entry>>
    entries(const gguf_header& header, std::span<const std::byte> file, const std::string& name);

    [[nodiscard]] const mapped_file& file() const noexcept { return file_; }
    [[nodiscard]] const gguf_header& header() const noexcept { return header_; }
    /// In the order of the file.
    [[nodiscard]] std::span<const gguf_entry> entries() const noexcept { return entries_; }

private:
    gguf_file(mapped_file file, gguf_header header, std::vector<gguf_entry> entries)
        : file_(std::move(file)), header_(std::move(header)), entries_(std::move(entries)) {}

    mapped_file file_;
    gguf_header header_;
    std::vector<gguf_entry> entries_;
};

/// Weights and metadata of a model in GGUF: one file, or the parts of a split one (model-00001-of-00003.gguf). Weights
/// are asked for by their Hugging Face names. Move-only; the views that it returns are valid as long as it lives.
///
///     auto weights = kvcache::gguf_checkpoint::open("SmolLM2-135M-Q4_1.gguf");
///     auto norm = weights->tensor("model.norm.weight", {config.hidden_size});
class gguf_checkpoint {
public:
    /// Maps `file`, and the other parts if it is the first of a split model, and checks them. Errors: those of
    /// gguf_file::open; mismatched, for a part that is not the first, whose name does not say its number, or that
    /// disagrees with the first one; not_found, for a missing part; malformed, for a tensor in two parts. Cost: reads
    /// the headers, no weights.
    KVCACHE_ONCE [[nodiscard]] static result<gguf_checkpoint> open(const std::filesystem::path& file);

    /// Keys of the (first) file.
    [[nodiscard]] const gguf_header& header() const noexcept { return parts_.front().header(); }
    /// Name of the (first) file, as used in errors.
    KVCACHE_LAZY [[nodiscard]] std::string name() const { return parts_.front().file().name(); }

    /// The architecture whose names the tensors have: the one that the file says, or Llama's if it is not known.
    KVCACHE_LAZY [[nodiscard]] const architecture& kind() const {
        const gguf_value* stated = header().find("general.architecture");
        const architecture* known = stated == nullptr ? nullptr : find_architecture(stated->text().value_or(""));
        return known != nullptr ? *known : known_architectures[0];
    }

    /// Number of tensors, of all parts.
    [[nodiscard]] std::size_t size() const noexcept { return tensors_.size(); }

    /// Returns the tensor with this GGUF name, or null.
    [[nodiscard]] const gguf_entry* find(std::string_view stored) const {
        const auto at = tensors_.find(stored);
        return at == tensors_.end() ? nullptr : at->second;
    }

    /// Returns the tensor with this Hugging Face name. It must have this shape, outermost first. Rows of q and k that
    /// the llama architecture stores interleaved are in the order of Hugging Face (tensor_view::head_rows). Errors:
    /// not_found; mismatched, for the shape; truncated, when the file shrank.
    KVCACHE_ONCE [[nodiscard]] result<tensor_view> tensor(std::string_view name,
                                                          std::span<const std::size_t> shape) const;
    KVCACHE_LAZY [[nodiscard]] result<tensor_view> tensor(std::string_view name,
                                                          std::initializer_list<std::size_t> shape) const {
        return tensor(name, std::span<const std::size_t>(shape.begin(), shape.size()));
    }

    /// Checks that these are exactly the weights of `config`: every weight is present with its shape, and there are no
    /// others, since an unknown bias, norm or scale would be ignored silently. Errors: those of tensor(); mismatched,
    /// for an extra tensor.
    KVCACHE_ONCE [[nodiscard]] result<void> holds(const model_config& config) const;

    /// Digests of tensors' bytes, by Hugging Face name.
    using contents = std::map<std::string, kvcache::digest, std::less<>>;

    /// Digest of the weights: XXH3-128 over every tensor's GGUF name, format, shape and tree_hash() of its bytes, in
    /// the order of names. Independent of the split into parts, the metadata and the order inside the files. `known`:
    /// tree hashes already computed. Errors: truncated, when a file shrank. Cost: reads every weight that is not in
    /// `known` once, with all threads.
    KVCACHE_ONCE [[nodiscard]] result<kvcache::digest> digest(thread_pool& threads, const contents& known) const;

    /// Digest of the files' metadata (mapped_file::description()); none if it is unknown for a file. Cost: reads no
    /// weights.
    KVCACHE_LAZY [[nodiscard]] std::optional<kvcache::digest>
    description(std::chrono::system_clock::time_point now) const {
        return detail::description_of(parts_, now);
    }

    /// Starts reading all files from the disk; returns at once.
    KVCACHE_LAZY void read_ahead() const noexcept { detail::read_ahead(parts_); }

    /// Drops the pages of a tensor that has been read from this process's memory: mapped_file::forget().
    KVCACHE_LAZY void forget(const tensor_view& tensor) const noexcept { detail::forget(parts_, tensor.bytes); }

private:
    gguf_checkpoint() = default;

    /// Adds a part. Errors: malformed, for a tensor that another part has.
    KVCACHE_ONCE [[nodiscard]] result<void> add(gguf_file part);

    std::vector<gguf_file> parts_;
    std::map<std::string_view, const gguf_entry*> tensors_; // into parts_, whose vectors keep their buffers
    std::size_t head_rows_ = 0;                             // of q and k, if they are interleaved
};

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/gguf/impl/checkpoint.hpp>
#endif
