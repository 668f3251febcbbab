// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/gguf_value.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/shown.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Description of one tensor in a GGUF header.
struct gguf_tensor {
    std::string_view name = {};          ///< Viewed in the file.
    std::vector<std::size_t> shape = {}; ///< Outermost first; the file has the innermost first.
    std::uint32_t type = 0;              ///< Number of its block format.
    std::uint64_t offset = 0;            ///< First byte, relative to gguf_header::data.
};

/// The checked header of a GGUF file, version 2 or 3, little-endian:
///
///     "GGUF", version u32, tensors u64, keys u64
///     for each key: its name (length u64, bytes), type u32, value
///     for each tensor: its name, dimensions u32, extents u64 (innermost first), type u32, offset u64
///     padding up to `general.alignment` (32 without the key), then the tensors' data, each padded too
///
/// Names and values are viewed in the bytes of the file, which must outlive the header.
class gguf_header {
public:
    using values = std::map<std::string_view, gguf_value>;

    /// Most keys of a file, and most tensors: far above those of published files, and few enough to index.
    static constexpr std::uint64_t most_keys = 1u << 16, most_tensors = 1u << 18;

    /// Returns whether the bytes begin like a GGUF file of any version.
    [[nodiscard]] static bool begins(std::span<const std::byte> file) noexcept {
        return file.size() >= 4 && load_little<std::uint32_t>(file, 0) == magic;
    }

    /// Checks the header of `file`; `name` is its name in errors. The data of the tensors is not looked at. Errors:
    /// truncated; malformed, for a key or tensor that is there twice, a length, count or offset that does not fit;
    /// unsupported, for another version or byte order. The error names the key or the tensor. Cost: O(keys + tensors +
    /// strings); memory for the index of keys and tensors only.
    KVCACHE_LAZY [[nodiscard]] static result<gguf_header> parse(std::span<const std::byte> file,
                                                                const std::string& name) {
        reader from{file, name};
        gguf_header made;
        from.read(made);
        if (from.problem)
            return *std::move(from.problem);
        return made;
    }

    [[nodiscard]] std::uint32_t version() const noexcept { return version_; }
    /// Bytes to which the data of every tensor is aligned; a power of two.
    [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
    /// Offset of the tensors' data in the file.
    [[nodiscard]] std::size_t data() const noexcept { return data_; }
    [[nodiscard]] const values& metadata() const noexcept { return metadata_; }
    /// In the order of the file.
    [[nodiscard]] std::span<const gguf_tensor> tensors() const noexcept { return tensors_; }

    /// Returns the value of a key, or null.
    [[nodiscard]] const gguf_value* find(std::string_view key) const {
        const auto at = metadata_.find(key);
        return at == metadata_.end() ? nullptr : &at->second;
    }

private:
    static constexpr std::uint32_t magic = 0x46554747; // "GGUF"

    struct reader {
        std::span<const std::byte> file;
        const std::string& name;
        std::size_t at = 0;
        std::optional<error> problem = std::nullopt;

        void refuse(error_code code, const std::string& field, std::initializer_list<std::string_view> words) {
            if (!problem)
                problem = error{code, field, detail::joined({name, ": ", field, ": ", detail::joined(words)})};
        }

        template <class N>
        [[nodiscard]] N number(const std::string& field) {
            if (problem || file.size() - at < sizeof(N)) {
                refuse(error_code::truncated, field, {"the file ends inside it"});
                return 0;
            }
            at += sizeof(N);
            return load_little<N>(file, at - sizeof(N));
        }

        [[nodiscard]] std::string_view text(const std::string& field, std::size_t most) {
            const auto length = number<std::uint64_t>(field);
            if (!problem && length > most)
                refuse(error_code::malformed, field,
                       {"it has ", std::to_string(length), " bytes; ", std::to_string(most), " are allowed"});
            if (!problem && length > file.size() - at)
                refuse(error_code::truncated, field,
                       {"it has ", std::to_string(length), " bytes, but only ", std::to_string(file.size() - at),
                        " follow"});
            if (problem)
                return {};
            at += static_cast<std::size_t>(length);
            return {reinterpret_cast<const char*>(file.data()) + at - length, static_cast<std::size_t>(length)};
        }

        // A number of items that have at least `least` bytes each.
        [[nodiscard]] std::size_t count(const std::string& field, std::uint64_t most, std::size_t least) {
            const auto n = number<std::uint64_t>(field);
            if (!problem && n > most)
                refuse(error_code::malformed, field,
                       {"it is ", std::to_string(n), "; at most ", std::to_string(most), " are read"});
            if (!problem && n > (file.size() - at) / least)
                refuse(error_code::truncated, field,
                       {"it is ", std::to_string(n), ", more than fit into the ", std::to_string(file.size() - at),
                        " bytes that follow"});
            return problem ? 0 : static_cast<std::size_t>(n);
        }

        void read(gguf_header& made) {
            if (!begins(file))
                return refuse(error_code::malformed, "magic", {"the file does not begin with \"GGUF\""});
            at = 4;
            made.version_ = number<std::uint32_t>("version");
            if (!problem && made.version_ != 2 && made.version_ != 3)
                return refuse(error_code::unsupported, "version",
                              {(made.version_ & 0xffff) == 0 && made.version_ != 0
                                   ? std::string("the file is big-endian")
                                   : "it is " + std::to_string(made.version_),
                               "; little-endian files of versions 2 and 3 are read"});
            // The counts come before what they count, so both are checked against the same bytes.
            const std::size_t tensors = count("tensor_count", most_tensors, 4 + 8 + 12);
            const std::size_t keys = count("metadata_kv_count", most_keys, 8 + 4 + 1);
            for (std::size_t i = 0; i < keys && !problem; ++i)
                read_key(made, i);
            if (!problem)
                read_alignment(made);
            for (std::size_t i = 0; i < tensors && !problem; ++i)
                read_tensor(made, i);
            if (problem)
                return;
            const std::size_t padding = (made.alignment_ - at % made.alignment_) % made.alignment_;
            if (padding > file.size() - at && tensors != 0)
                return refuse(error_code::truncated, "data", {"the file ends before the data of its tensors"});
            made.data_ = std::min(at + padding, file.size());
            check_names(made);
        }

        void read_key(gguf_header& made, std::size_t index) {
            constexpr std::size_t longest = 65535;
            const std::string_view key = text("key " + std::to_string(index), longest);
            const std::string field = detail::shown(key);
            const auto type = static_cast<gguf_type>(number<std::uint32_t>(field));
            if (problem)
                return;
            if (name_of(type) == "?")
                return refuse(error_code::malformed, field,
                              {"its type is ", std::to_string(static_cast<std::uint32_t>(type)),
                               ", which the format does not define"});
            const auto end = detail::gguf_end(file, at, type);
            if (!end)
                return refuse(error_code::malformed, field,
                              {"its value, of type ", name_of(type),
                               ", has a length after the end of the file, an unknown type of elements, or too many "
                               "arrays inside each other"});
            if (!made.metadata_.try_emplace(key, type, file.subspan(at, *end - at)).second)
                return refuse(error_code::malformed, field, {"the key is there twice"});
            at = *end;
        }

        void read_alignment(gguf_header& made) {
            const gguf_value* stated = made.find("general.alignment");
            if (stated == nullptr)
                return;
            const auto bytes = stated->count();
            constexpr std::uint64_t most = 1u << 24;
            if (!bytes || !std::has_single_bit(*bytes) || *bytes > most)
                return refuse(error_code::malformed, "general.alignment",
                              {"it must be a power of two up to ", std::to_string(most)});
            made.alignment_ = static_cast<std::size_t>(*bytes);
        }

        void read_tensor(gguf_header& made, std::size_t index) {
            constexpr std::size_t longest = 64, most_dimensions = 4;
            gguf_tensor one;
            one.name = text("tensor " + std::to_string(index), longest);
            const std::string field = detail::shown(one.name);
            const auto dimensions = number<std::uint32_t>(field);
            if (!problem && (dimensions == 0 || dimensions > most_dimensions))
                return refuse(error_code::malformed, field,
                              {"it has ", std::to_string(dimensions), " dimensions; 1 to 4 are allowed"});
            std::uint64_t product = 1;
            for (std::size_t i = 0; i < dimensions && !problem; ++i) {
                const auto extent = number<std::uint64_t>(field);
                constexpr std::uint64_t most = std::uint64_t{1} << 56;
                if (!problem && (extent == 0 || extent > most / product))
                    return refuse(error_code::malformed, field,
                                  {"its extents do not multiply to a number from 1 to 2^56"});
                product *= extent;
                one.shape.insert(one.shape.begin(), static_cast<std::size_t>(extent));
            }
            one.type = number<std::uint32_t>(field);
            one.offset = number<std::uint64_t>(field);
            if (!problem && one.offset % made.alignment_ != 0)
                return refuse(error_code::malformed, field,
                              {"its offset ", std::to_string(one.offset), " is not a multiple of the alignment ",
                               std::to_string(made.alignment_)});
            made.tensors_.push_back(std::move(one));
        }

        void check_names(const gguf_header& made) {
            std::vector<std::string_view> names;
            names.reserve(made.tensors_.size());
            for (const gguf_tensor& one : made.tensors_)
                names.push_back(one.name);
            std::ranges::sort(names);
            if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
                refuse(error_code::malformed, detail::shown(*twice), {"the tensor is there twice"});
        }
    };

    std::uint32_t version_ = 0;
    std::size_t alignment_ = 32;
    std::size_t data_ = 0;
    values metadata_;
    std::vector<gguf_tensor> tensors_;
};

}} // namespace kvcache
