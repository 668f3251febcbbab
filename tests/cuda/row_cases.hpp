// SPDX-License-Identifier: MIT
#pragma once

#include "cases.hpp"

namespace cuda_cases {

/// A row transformed by the Hadamard matrix by definition: signs are parities of common bits.
[[nodiscard]] inline std::vector<double> turned(std::span<const double> row) {
    const std::size_t block = row.size() & (~row.size() + 1);
    std::vector<double> out(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < block; ++j)
            sum += (std::popcount(i % block & j) % 2 == 0 ? 1.0 : -1.0) * row[i / block * block + j];
        out[i] = sum / std::sqrt(static_cast<double>(block));
    }
    return out;
}

/// Error bound of a row in a page, by its format and its largest value: half a step, and the rounding of the scale.
[[nodiscard]] inline double allowed(row_format format, double largest) {
    switch (format) {
    case row_format::f32:
        return 0.0;
    case row_format::f16:
        return largest * 0x1p-11;
    case row_format::bf16:
        return largest * 0x1p-8;
    case row_format::int8:
        return largest * (0.5 / 127 + 0x1p-11) + 1e-7;
    case row_format::int4_hadamard:
        return largest * (1.0 / 8 + 0x1p-10) + 1e-6;
    }
    return 0.0;
}

/// Rows are written into pages and read back, by `copy_rows` or, encoded, by `quantize_rows`: slots in any order over
/// several pages and slabs, some skipped. All other bytes of the pages stay unchanged.
template <row_format Format, class Device>
[[nodiscard]] outcome rows_come_back(Device& device, const cuda::page_layout& layout, row_format outside,
                                     std::uint32_t tokens, std::uint32_t seed) {
    outcome out;
    noise random(seed);
    const cuda::stream_id stream = *device.open_stream();
    const std::uint32_t page_tokens = layout.shape.tokens, pages = tokens / page_tokens + 3,
                        heads = layout.shape.kv_heads, dim = layout.shape.head_dim, layer = layout.shape.layers - 1;
    auto storage = cuda::device_storage<Device>{.device = &device, .slab_bytes = 2 * layout.page_bytes()}.open(
        pages, layout.page_bytes());
    std::vector<std::vector<std::byte>> before(pages, std::vector<std::byte>(layout.page_bytes()));
    std::vector<cuda::page_part> parts;
    for (std::uint32_t page = 0; page < pages; ++page) {
        out.expect(storage.acquire(kvcache::page_id{page}), "a page is acquired");
        for (std::byte& byte : before[page])
            byte = static_cast<std::byte>(random.below(256));
        parts.push_back({kvcache::page_id{page}, 0, before[page]});
    }
    done(out, storage.send(stream, parts));

    std::vector<cuda::row_slot> slots;
    for (std::uint32_t row = 0; row < pages * page_tokens; ++row)
        slots.push_back({row / page_tokens, row % page_tokens});
    for (std::size_t i = slots.size(); i > 1; --i)
        std::swap(slots[i - 1], slots[random.below(static_cast<std::uint32_t>(i))]);
    slots.resize(tokens);
    for (std::uint32_t i = 3; i < tokens; i += 7)
        slots[i].page = cuda::row_slot::none;

    const std::size_t count = std::size_t{tokens} * heads * dim;
    rows_outside given[] = {random_rows(outside, count, random), random_rows(outside, count, random)};
    device_copy<std::byte, Device> keys(device, given[0].bytes), values(device, given[1].bytes);
    device_copy<cuda::row_slot, Device> table(device, slots);
    const cuda::token_rows rows{keys.bytes(), values.bytes(), outside};
    constexpr auto in = cuda::row_way::into_pages, back = cuda::row_way::out_of_pages;
    const bool plain = outside == Format;
    if (plain)
        done(out,
             device.launch(stream, cuda::copy_rows<in>{layout, storage.pool(), layer, tokens, table.data(), rows}));
    else
        done(out, device.launch(stream, cuda::quantize_rows<in, Format>::make(layout, storage.pool(), layer, tokens,
                                                                              table.data(), rows)));

    std::vector<std::vector<std::byte>> after(pages, std::vector<std::byte>(layout.page_bytes()));
    for (std::uint32_t page = 0; page < pages; ++page)
        parts[page].here = after[page];
    done(out, storage.bring(stream, parts));
    for (const auto& page : after)
        out.keep(page);

    // Every value of every row is in its place and near the original.
    auto untouched = before;
    for (std::uint32_t token = 0; token < tokens; ++token)
        for (std::uint32_t head = 0; head < heads && slots[token].page != cuda::row_slot::none; ++head)
            for (int side = 0; side < 2; ++side) {
                const std::size_t at = (std::size_t{token} * heads + head) * dim;
                std::vector<double> row(given[side].numbers.begin() + static_cast<std::ptrdiff_t>(at),
                                        given[side].numbers.begin() + static_cast<std::ptrdiff_t>(at + dim));
                if (Format == row_format::int4_hadamard)
                    row = turned(row);
                double largest = 0;
                for (const double x : row)
                    largest = std::max(largest, std::abs(x));
                for (std::size_t d = 0; d < dim; ++d) {
                    const double is =
                        page_number(layout, after[slots[token].page], layer, side == 1, slots[token].row, head, d);
                    out.expect(std::abs(is - row[d]) <= allowed(Format, largest),
                               "token " + std::to_string(token) + " head " + std::to_string(head) + " number " +
                                   std::to_string(d) + " is " + std::to_string(is) + ", given " +
                                   std::to_string(row[d]));
                }
                const auto place = layout.row(slots[token].row, head);
                const auto begin = layout.side(layer, side == 1 ? cuda::row_side::values : cuda::row_side::keys);
                for (std::size_t i = 0; i < layout.row_bytes(); ++i)
                    untouched[slots[token].page][begin + layout.codes(place) + i] =
                        after[slots[token].page][begin + layout.codes(place) + i];
                for (std::size_t i = 0; i < 2 * layout.row_scales(); ++i)
                    untouched[slots[token].page][begin + layout.scales(place) + i] =
                        after[slots[token].page][begin + layout.scales(place) + i];
            }
    out.expect(untouched == after, "bytes that belong to no row given stay");

    // Reads the rows back; skipped rows stay unchanged.
    const std::vector<std::byte> blank(given[0].bytes.size(), std::byte{0x11});
    device_copy<std::byte, Device> keys_back(device, blank), values_back(device, blank);
    const cuda::token_rows target{keys_back.bytes(), values_back.bytes(), outside};
    if (plain)
        done(out,
             device.launch(stream, cuda::copy_rows<back>{layout, storage.pool(), layer, tokens, table.data(), target}));
    else
        done(out, device.launch(stream, cuda::quantize_rows<back, Format>::make(layout, storage.pool(), layer, tokens,
                                                                                table.data(), target)));
    const std::vector<std::byte> fetched[] = {keys_back.fetch(stream, out), values_back.fetch(stream, out)};
    const std::size_t bytes = outside == row_format::f32 ? 4 : 2, row_bytes = dim * bytes;
    for (std::uint32_t row = 0; row < tokens * heads; ++row)
        for (int side = 0; side < 2; ++side) {
            const std::byte* const is = fetched[side].data() + row * row_bytes;
            const bool passed = slots[row / heads].page == cuda::row_slot::none;
            if (passed || plain) {
                out.expect(std::memcmp(is, (passed ? blank : given[side].bytes).data() + row * row_bytes, row_bytes) ==
                               0,
                           "row " + std::to_string(row) + " comes back as it was");
                continue;
            }
            double largest = 0;
            for (std::size_t d = 0; d < dim; ++d)
                largest = std::max(largest, std::abs(given[side].numbers[row * dim + d]));
            // The transform spreads the errors of a row: none exceeds all of them together.
            const double off = Format == row_format::int4_hadamard
                                   ? largest * std::sqrt(static_cast<double>(dim)) * 0.5
                                   : allowed(Format, largest) + allowed(outside, largest);
            double square = 0;
            for (std::size_t d = 0; d < dim; ++d) {
                double number = 0;
                if (bytes == 4) {
                    float wide = 0;
                    std::memcpy(&wide, is + d * 4, 4);
                    number = static_cast<double>(wide);
                } else {
                    std::uint16_t narrow = 0;
                    std::memcpy(&narrow, is + d * 2, 2);
                    number = number_of(narrow, outside == row_format::bf16);
                }
                const double error = number - given[side].numbers[row * dim + d];
                square += error * error;
                out.expect(std::abs(error) <= off, "row " + std::to_string(row) + " comes back near what it was");
            }
            out.expect(Format != row_format::int4_hadamard ||
                           square <= static_cast<double>(dim) * largest * largest * 0.02,
                       "a turned row comes back near what it was");
        }
    out.keep(fetched[0]);
    out.keep(fetched[1]);
    device.close(stream);
    return out;
}

} // namespace cuda_cases
