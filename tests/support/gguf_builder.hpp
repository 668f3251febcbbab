// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/formats/gguf.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace testing_files {

/// Writes a GGUF file in memory, from keys and tensors in the order given.
class gguf_builder {
public:
    std::uint32_t version = 3;
    std::size_t alignment = 32; ///< Of the data; the key general.alignment is the caller's.

    /// The number of type N in GGUF.
    template <class N>
    [[nodiscard]] static constexpr kvcache::gguf_type type_of() {
        using enum kvcache::gguf_type;
        if constexpr (std::same_as<N, bool>)
            return boolean;
        else if constexpr (std::is_floating_point_v<N>)
            return sizeof(N) == 4 ? f32 : f64;
        else if constexpr (std::is_signed_v<N>)
            return sizeof(N) == 1 ? i8 : sizeof(N) == 2 ? i16 : sizeof(N) == 4 ? i32 : i64;
        else
            return sizeof(N) == 1 ? u8 : sizeof(N) == 2 ? u16 : sizeof(N) == 4 ? u32 : u64;
    }

    template <class N>
        requires std::is_arithmetic_v<N>
    [[nodiscard]] static std::string encoded(N value) {
        std::string bytes(sizeof(N), '\0');
        std::memcpy(bytes.data(), &value, sizeof(N));
        if constexpr (std::endian::native == std::endian::big)
            bytes = std::string(bytes.rbegin(), bytes.rend());
        return bytes;
    }
    [[nodiscard]] static std::string encoded(std::string_view text) {
        return encoded(std::uint64_t{text.size()}) + std::string(text);
    }

    /// A key with the encoded value.
    gguf_builder& raw(std::string_view key, kvcache::gguf_type type, const std::string& value) {
        keys_ += encoded(key) + encoded(static_cast<std::uint32_t>(type)) + value;
        ++key_count_;
        return *this;
    }
    template <class N>
    gguf_builder& number(std::string_view key, N value) {
        return raw(key, type_of<N>(), encoded(value));
    }
    gguf_builder& text(std::string_view key, std::string_view value) {
        return raw(key, kvcache::gguf_type::string, encoded(value));
    }
    template <class N>
    gguf_builder& numbers(std::string_view key, const std::vector<N>& values) {
        std::string body;
        for (const N value : values)
            body += encoded(value);
        return raw(key, kvcache::gguf_type::array, array_head(type_of<N>(), values.size()) + body);
    }
    gguf_builder& texts(std::string_view key, const std::vector<std::string>& values) {
        std::string body;
        for (const std::string& value : values)
            body += encoded(std::string_view(value));
        return raw(key, kvcache::gguf_type::array, array_head(kvcache::gguf_type::string, values.size()) + body);
    }
    gguf_builder& flags(std::string_view key, const std::vector<bool>& values) {
        std::string body;
        for (const bool value : values)
            body += value ? '\1' : '\0';
        return raw(key, kvcache::gguf_type::array, array_head(kvcache::gguf_type::boolean, values.size()) + body);
    }
    [[nodiscard]] static std::string array_head(kvcache::gguf_type element, std::uint64_t count) {
        return encoded(static_cast<std::uint32_t>(element)) + encoded(count);
    }

    /// A tensor; its shape is given outermost first. Its data follows the one before, aligned.
    gguf_builder& tensor(std::string_view name, const std::vector<std::size_t>& shape, std::uint32_t type,
                         std::string_view data) {
        data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
        describe(name, shape, type, data_.size());
        data_ += data;
        return *this;
    }
    /// The description of a tensor alone.
    gguf_builder& describe(std::string_view name, const std::vector<std::size_t>& shape, std::uint32_t type,
                           std::uint64_t offset) {
        tensors_ += encoded(name) + encoded(static_cast<std::uint32_t>(shape.size()));
        for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent)
            tensors_ += encoded(std::uint64_t{*extent});
        tensors_ += encoded(type) + encoded(offset);
        ++tensor_count_;
        return *this;
    }

    [[nodiscard]] std::string file() const {
        std::string made = "GGUF" + encoded(version) + encoded(tensor_count_) + encoded(key_count_) + keys_ + tensors_;
        made.resize((made.size() + alignment - 1) / alignment * alignment, '\0');
        return made + data_;
    }

private:
    std::string keys_;
    std::string tensors_;
    std::string data_;
    std::uint64_t key_count_ = 0;
    std::uint64_t tensor_count_ = 0;
};

} // namespace testing_files
