// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cuda/device_storage.hpp>
#include <kvcache/cuda/paged_attention.hpp>
#include <kvcache/cuda/quantize_rows.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// Kernel tests for any device. The unit tests run them on the emulated device, the GPU tests on both, where the bits
/// must also be equal. The oracles compute in double precision and decode pages independently.
namespace cuda_cases {

namespace cuda = kvcache::cuda;
using cuda::row_format;

/// Failures of a case, and all device results.
struct outcome {
    std::vector<std::string> wrong = {};
    std::vector<std::byte> bits = {};

    void expect(bool holds, const std::string& what) {
        if (!holds && wrong.size() < 5)
            wrong.push_back(what);
    }
    template <class T>
    void keep(const std::vector<T>& values) {
        const auto bytes = std::as_bytes(std::span(values));
        bits.insert(bits.end(), bytes.begin(), bytes.end());
    }
};

/// Unwraps a result that must be a success, or records the failure.
template <class T>
void done(outcome& out, const kvcache::result<T>& result) {
    if (!result)
        out.expect(false, result.error().field + ": " + result.error().message);
}

/// RAII device memory with a copy of `values`, or uninitialized.
template <class T, class Device>
class device_copy {
public:
    device_copy(Device& device, const std::vector<T>& values) : device_(device), size_(values.size()) {
        memory_ = *device.allocate(size_ * sizeof(T));
        pinned_ = *device.allocate_pinned(size_ * sizeof(T));
        stream_ = *device.open_stream();
        if (size_ != 0)
            std::memcpy(pinned_, values.data(), size_ * sizeof(T));
        const cuda::copy_piece piece{pinned_, memory_, size_ * sizeof(T)};
        (void)device.copy(stream_, cuda::copy_way::to_device, {&piece, 1});
        (void)device.synchronise(stream_);
    }
    device_copy(const device_copy&) = delete;
    device_copy& operator=(const device_copy&) = delete;
    ~device_copy() {
        device_.deallocate(memory_);
        device_.deallocate_pinned(pinned_);
        device_.close(stream_);
    }

    [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_); }
    [[nodiscard]] std::byte* bytes() const { return memory_; }
    /// The content once the stream has passed.
    [[nodiscard]] std::vector<T> fetch(cuda::stream_id stream, outcome& out) const {
        const cuda::copy_piece piece{memory_, pinned_, size_ * sizeof(T)};
        done(out, device_.copy(stream, cuda::copy_way::to_host, {&piece, 1}));
        done(out, device_.synchronise(stream));
        std::vector<T> values(size_);
        if (size_ != 0)
            std::memcpy(values.data(), pinned_, size_ * sizeof(T));
        return values;
    }

private:
    Device& device_;
    std::size_t size_;
    std::byte* memory_;
    std::byte* pinned_;
    cuda::stream_id stream_;
};

/// Sums of small integers of random bits: nearly normal, and the same on every machine.
class noise {
public:
    explicit noise(std::uint32_t seed) : random_(seed) {}
    [[nodiscard]] float operator()() {
        std::int32_t sum = 0;
        for (int i = 0; i < 4; ++i)
            sum += static_cast<std::int32_t>(random_() >> 20) - 2048;
        return static_cast<float>(sum) / 2048.0f;
    }
    [[nodiscard]] std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }

private:
    std::mt19937 random_;
};

/// The value of 16 bits, by the definition of the format.
[[nodiscard]] inline double number_of(std::uint16_t bits, bool bf16) {
    const int exponent_bits = bf16 ? 8 : 5, fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits & 0x7FFF) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    const double size = exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                                      : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    return (bits & 0x8000) != 0 ? -size : size;
}

/// A value of a page, decoded independently; int4 stays transformed. `page` begins at the page.
[[nodiscard]] inline double page_number(const cuda::page_layout& layout, std::span<const std::byte> page,
                                        std::size_t layer, bool values, std::size_t token, std::size_t head,
                                        std::size_t d) {
    const std::size_t dim = layout.shape.head_dim, heads = layout.shape.kv_heads, tokens = layout.shape.tokens;
    const std::size_t row = layout.order == cuda::kv_layout::nhd ? token * heads + head : head * tokens + token;
    const bool int8 = layout.format == row_format::int8, int4 = layout.format == row_format::int4_hadamard;
    const std::size_t row_bytes = layout.format == row_format::f32 ? dim * 4 : int8 ? dim : int4 ? dim / 2 : dim * 2;
    const std::size_t scales = int8 ? 1 : int4 ? dim / 32 : 0;
    const std::size_t side = (tokens * heads * (row_bytes + 2 * scales) + 15) / 16 * 16;
    const std::byte* const from = page.data() + (2 * layer + (values ? 1 : 0)) * side;
    const std::byte* const codes = from + row * row_bytes;
    const auto sixteen = [](const std::byte* at) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, at, 2);
        return bits;
    };
    const auto scale = [&](std::size_t i) {
        return number_of(sixteen(from + tokens * heads * row_bytes + (row * scales + i) * 2), false);
    };
    if (int8)
        return std::to_integer<std::int8_t>(codes[d]) * scale(0);
    if (int4)
        return ((std::to_integer<int>(codes[d / 2]) >> (d % 2 * 4) & 15) - 8) * scale(d / 32);
    if (layout.format == row_format::f32) {
        float number = 0;
        std::memcpy(&number, codes + d * 4, 4);
        return static_cast<double>(number);
    }
    return number_of(sixteen(codes + d * 2), layout.format == row_format::bf16);
}

/// Rows of `format` as bytes, and their values.
struct rows_outside {
    std::vector<std::byte> bytes = {};
    std::vector<double> numbers = {};
};
[[nodiscard]] inline rows_outside random_rows(row_format format, std::size_t count, noise& random) {
    rows_outside out;
    for (std::size_t i = 0; i < count; ++i) {
        const float x = random();
        const std::uint16_t bits = format == row_format::bf16 ? cuda::to_bf16(x) : cuda::to_f16(x);
        const bool wide = format == row_format::f32;
        const auto* const from =
            wide ? reinterpret_cast<const std::byte*>(&x) : reinterpret_cast<const std::byte*>(&bits);
        out.bytes.insert(out.bytes.end(), from, from + (wide ? 4 : 2));
        out.numbers.push_back(wide ? static_cast<double>(x) : number_of(bits, format == row_format::bf16));
    }
    return out;
}

} // namespace cuda_cases
