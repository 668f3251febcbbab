// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/platform/standard.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Types of metadata values in a GGUF file, with the numbers of the format.
enum class gguf_type : std::uint32_t {
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7, ///< One byte, 0 or 1.
    string = 8,  ///< A length in 8 bytes, then that many bytes.
    array = 9,   ///< The type of the elements in 4 bytes, their number in 8, then the elements.
    u64 = 10,
    i64 = 11,
    f64 = 12,
};

/// Name of a type: "u32", "string".
[[nodiscard]] constexpr std::string_view name_of(gguf_type type) noexcept {
    constexpr std::string_view names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                          "bool", "string", "array", "u64", "i64", "f64"};
    const auto index = static_cast<std::uint32_t>(type);
    return index < std::size(names) ? names[index] : "?";
}

/// Bytes of a number or a bool; 0 for strings, arrays and unknown types.
[[nodiscard]] constexpr std::size_t gguf_bytes(gguf_type type) noexcept {
    constexpr std::uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    const auto index = static_cast<std::uint32_t>(type);
    return index < std::size(bytes) ? bytes[index] : 0;
}

namespace detail {

/// Arrays inside arrays, at most.
inline constexpr int gguf_depth = 8;

/// End of the value of this type at `at`; none if it is not complete, has an unknown type or is nested too deeply.
/// Requires: at <= file.size(). Cost: O(1) for numbers and arrays of numbers, else one step for each string.
KVCACHE_LAZY [[nodiscard]] inline std::optional<std::size_t> gguf_end(std::span<const std::byte> file, std::size_t at,
                                                                      gguf_type type, int depth = 0) {
    const std::size_t left = file.size() - at;
    if (type == gguf_type::string) {
        if (left < 8)
            return std::nullopt;
        const auto length = load_little<std::uint64_t>(file, at);
        return length > left - 8 ? std::nullopt : std::optional(at + 8 + static_cast<std::size_t>(length));
    }
    if (type != gguf_type::array) {
        const std::size_t bytes = gguf_bytes(type);
        return bytes == 0 || bytes > left ? std::nullopt : std::optional(at + bytes);
    }
    if (left < 12 || depth == gguf_depth)
        return std::nullopt;
    const auto element = static_cast<gguf_type>(load_little<std::uint32_t>(file, at));
    const auto count = load_little<std::uint64_t>(file, at + 4);
    at += 12;
    if (const std::size_t bytes = gguf_bytes(element); bytes != 0)
        return count > (file.size() - at) / bytes ? std::nullopt
                                                  : std::optional(at + static_cast<std::size_t>(count) * bytes);
    if (element != gguf_type::string && element != gguf_type::array)
        return std::nullopt;
    for (std::uint64_t i = 0; i < count; ++i) { // ends early: every element has 8 bytes or more
        const auto end = gguf_end(file, at, element, depth + 1);
        if (!end)
            return std::nullopt;
        at = *end;
    }
    return at;
}

} // namespace detail

/// A metadata value, viewed in the bytes of the file, which must outlive it.
class gguf_value {
public:
    gguf_value() = default;

    /// Views the value in its whole encoding. Requires: it is complete (gguf_header::parse checks it).
    gguf_value(gguf_type type, std::span<const std::byte> bytes) noexcept : type_(type), bytes_(bytes) {}

    [[nodiscard]] gguf_type type() const noexcept { return type_; }

    /// Its encoding in the file.
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

    /// An integer of any width; none for other types and for negative numbers.
    [[nodiscard]] std::optional<std::uint64_t> count() const noexcept {
        const auto number = integer();
        return number && (type_ == gguf_type::u64 || *number >= 0) ? std::optional(static_cast<std::uint64_t>(*number))
                                                                   : std::nullopt;
    }

    /// An integer or a floating-point number; none for other types.
    [[nodiscard]] std::optional<double> number() const noexcept {
        if (type_ == gguf_type::f32)
            return static_cast<double>(bit_cast<float>(load_little<std::uint32_t>(bytes_, 0)));
        if (type_ == gguf_type::f64)
            return bit_cast<double>(load_little<std::uint64_t>(bytes_, 0));
        const auto whole = integer();
        if (!whole)
            return std::nullopt;
        return type_ == gguf_type::u64 ? static_cast<double>(static_cast<std::uint64_t>(*whole))
                                       : static_cast<double>(*whole);
    }

    [[nodiscard]] std::optional<bool> flag() const noexcept {
        return type_ == gguf_type::boolean ? std::optional(bytes_[0] != std::byte{0}) : std::nullopt;
    }

    [[nodiscard]] std::optional<std::string_view> text() const noexcept {
        if (type_ != gguf_type::string)
            return std::nullopt;
        return std::string_view(reinterpret_cast<const char*>(bytes_.data()) + 8, bytes_.size() - 8);
    }

    /// Type of the elements of an array. Requires: type() is array.
    [[nodiscard]] gguf_type element() const {
        expects(type_ == gguf_type::array, "only an array has elements");
        return static_cast<gguf_type>(load_little<std::uint32_t>(bytes_, 0));
    }
    /// Number of elements of an array; 0 for other types.
    [[nodiscard]] std::size_t size() const noexcept {
        return type_ == gguf_type::array ? static_cast<std::size_t>(load_little<std::uint64_t>(bytes_, 4)) : 0;
    }

    /// Calls `use(value)` for each element of an array; does nothing for other types.
    template <class Use>
    void each(Use use) const {
        std::size_t at = 12;
        for (std::size_t i = 0, n = size(); i < n; ++i) {
            const auto end = detail::gguf_end(bytes_, at, element());
            expects(end.has_value(), "the elements of an array were checked when its file was opened");
            use(gguf_value(element(), bytes_.subspan(at, *end - at)));
            at = *end;
        }
    }

private:
    // An unsigned 64-bit number keeps its bits.
    [[nodiscard]] std::optional<std::int64_t> integer() const noexcept {
        switch (type_) {
        case gguf_type::u8:
            return load_little<std::uint8_t>(bytes_, 0);
        case gguf_type::i8:
            return static_cast<std::int8_t>(load_little<std::uint8_t>(bytes_, 0));
        case gguf_type::u16:
            return load_little<std::uint16_t>(bytes_, 0);
        case gguf_type::i16:
            return static_cast<std::int16_t>(load_little<std::uint16_t>(bytes_, 0));
        case gguf_type::u32:
            return load_little<std::uint32_t>(bytes_, 0);
        case gguf_type::i32:
            return static_cast<std::int32_t>(load_little<std::uint32_t>(bytes_, 0));
        case gguf_type::u64:
        case gguf_type::i64:
            return static_cast<std::int64_t>(load_little<std::uint64_t>(bytes_, 0));
        case gguf_type::f32:
        case gguf_type::f64:
        case gguf_type::boolean:
        case gguf_type::string:
        case gguf_type::array:
            break;
        }
        return std::nullopt;
    }

    gguf_type type_ = gguf_type::u8;
    std::span<const std::byte> bytes_ = {};
};

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
            if (key.empty())
                return refuse(error_code::malformed, "key " + std::to_string(index), {"the key has no name"});
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
            ranges::sort(names);
            if (const auto twice = ranges::adjacent_find(names); twice != names.end())
                refuse(error_code::malformed, detail::shown(*twice), {"the tensor is there twice"});
        }
    };

    std::uint32_t version_ = 0;
    std::size_t alignment_ = 32;
    std::size_t data_ = 0;
    values metadata_;
    std::vector<gguf_tensor> tensors_;
};

namespace detail {

/// Returns whether the path of a model is that of a GGUF file, rather than of a directory: a file, or nothing that is
/// there but is named like one.
KVCACHE_LAZY [[nodiscard]] inline bool is_gguf_path(const std::filesystem::path& model) {
    std::error_code ignored;
    const auto kind = std::filesystem::status(model, ignored).type();
    return kind == std::filesystem::file_type::regular ||
           (kind != std::filesystem::file_type::directory && model.extension() == ".gguf");
}

} // namespace detail

}} // namespace kvcache
