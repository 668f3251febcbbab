// SPDX-License-Identifier: MIT
#pragma once

#include "cases.hpp"

namespace cuda_cases {

/// Parameters of an attention test.
struct attention_case {
    std::uint32_t kv_heads = 2;
    std::uint32_t group = 4; ///< Query heads for each KV head.
    cuda::kv_layout order = cuda::kv_layout::nhd;
    std::uint32_t page_tokens = 16;
    std::uint32_t layers = 2;
    std::vector<std::uint32_t> rows = {}; ///< Rows of each sequence.
    bool turned = false;                  ///< Queries are rotated by the kernel.
    bool ragged = false;                  ///< Entries begin and end inside pages, with several bases.
    row_format query_format = row_format::f32;
    std::size_t slabs = 1;
    std::uint32_t seed = 1;
};

/// Sequences with tables over one pool of random pages.
struct attention_batch {
    cuda::page_layout layout = {};
    std::vector<std::vector<std::byte>> pages = {};
    std::vector<std::vector<kvcache::page_entry>> tables = {};
    std::vector<std::int64_t> positions = {};
    rows_outside queries = {}; ///< (sequences, heads, head_dim)
};

template <row_format Format>
[[nodiscard]] attention_batch make_batch(const attention_case& of, std::uint32_t dim) {
    noise random(of.seed);
    attention_batch batch;
    batch.layout = {
        {.layers = of.layers, .kv_heads = of.kv_heads, .head_dim = dim, .tokens = of.page_tokens}, of.order, Format};
    std::uint32_t count = 0;
    for (const std::uint32_t rows : of.rows) {
        std::vector<kvcache::page_entry> table;
        std::int64_t base = 0;
        for (std::uint32_t left = rows; left > 0;) {
            kvcache::page_entry entry{.page = kvcache::page_id{count++}, .base = base};
            entry.first = of.ragged ? random.below(of.page_tokens) : 0;
            entry.count = of.page_tokens - entry.first;
            if (of.ragged)
                entry.count = 1 + random.below(entry.count);
            entry.count = std::min(entry.count, left);
            left -= entry.count;
            table.push_back(entry);
            if (of.ragged && random.below(6) == 0)
                base += static_cast<std::int64_t>(random.below(600)) - 200;
        }
        // Pages in random order.
        for (std::size_t i = table.size(); i > 1; --i)
            std::swap(table[i - 1].page, table[random.below(static_cast<std::uint32_t>(i))].page);
        batch.tables.push_back(std::move(table));
        batch.positions.push_back(rows == 0 ? 0 : rows - 1);
    }
    for (std::uint32_t page = 0; page < count; ++page) {
        std::vector<std::byte> bytes(batch.layout.page_bytes());
        const std::uint64_t rows = batch.layout.side_rows();
        for (std::uint32_t side = 0; side < 2 * of.layers; ++side) {
            std::byte* const at = bytes.data() + side * batch.layout.side_bytes();
            if constexpr (Format == row_format::int8) {
                for (std::uint64_t i = 0; i < rows * dim; ++i)
                    at[i] = static_cast<std::byte>(static_cast<std::int8_t>(static_cast<int>(random.below(255)) - 127));
                for (std::uint64_t i = 0; i < rows; ++i) {
                    const std::uint16_t scale = cuda::to_f16((1.0f + std::abs(random())) / 127.0f);
                    std::memcpy(at + rows * dim + 2 * i, &scale, 2);
                }
            } else {
                const auto numbers = random_rows(Format, rows * dim, random);
                std::memcpy(at, numbers.bytes.data(), numbers.bytes.size());
            }
        }
        batch.pages.push_back(std::move(bytes));
    }
    batch.queries = random_rows(of.query_format, of.rows.size() * of.kv_heads * of.group * dim, random);
    return batch;
}

[[nodiscard]] inline double frequency(std::size_t pair, std::size_t half) {
    return std::pow(10000.0, -static_cast<double>(pair) / static_cast<double>(half));
}

/// Straightforward attention of one sequence in double precision. (heads, head_dim)
[[nodiscard]] inline std::vector<double> attended(const attention_batch& batch, const attention_case& of,
                                                  std::size_t sequence, std::uint32_t layer, double scale) {
    const std::size_t dim = batch.layout.shape.head_dim, heads = std::size_t{of.kv_heads} * of.group, half = dim / 2;
    std::vector<double> out(heads * dim);
    for (std::size_t head = 0; head < heads; ++head) {
        std::vector<double> scores;
        std::vector<std::vector<double>> values;
        for (const kvcache::page_entry& entry : batch.tables[sequence]) {
            std::vector<double> query(
                batch.queries.numbers.begin() + static_cast<std::ptrdiff_t>((sequence * heads + head) * dim),
                batch.queries.numbers.begin() + static_cast<std::ptrdiff_t>((sequence * heads + head + 1) * dim));
            for (std::size_t i = 0; i < half && of.turned; ++i) {
                const double angle = static_cast<double>(batch.positions[sequence] - entry.base) * frequency(i, half);
                const double x = query[i], y = query[i + half];
                query[i] = x * std::cos(angle) - y * std::sin(angle);
                query[i + half] = y * std::cos(angle) + x * std::sin(angle);
            }
            for (std::uint32_t row = entry.first; row < entry.first + entry.count; ++row) {
                const auto& page = batch.pages[index_of(entry.page)];
                double score = 0;
                values.emplace_back(dim);
                for (std::size_t d = 0; d < dim; ++d) {
                    score += query[d] * page_number(batch.layout, page, layer, false, row, head / of.group, d);
                    values.back()[d] = page_number(batch.layout, page, layer, true, row, head / of.group, d);
                }
                scores.push_back(score * scale);
            }
        }
        if (scores.empty())
            continue;
        const double largest = *std::max_element(scores.begin(), scores.end());
        double total = 0;
        for (std::size_t i = 0; i < scores.size(); ++i) {
            const double weight = std::exp(scores[i] - largest);
            total += weight;
            for (std::size_t d = 0; d < dim; ++d)
                out[head * dim + d] += weight * values[i][d];
        }
        for (std::size_t d = 0; d < dim; ++d)
            out[head * dim + d] /= total;
    }
    return out;
}

/// Device results for the given sequences, in that order. (sequences, heads, head_dim)
template <row_format Format, unsigned Dim, unsigned Queries, class Device>
[[nodiscard]] std::vector<float> attend_on(Device& device, outcome& out, const attention_batch& batch,
                                           const attention_case& of, const std::vector<std::size_t>& sequences,
                                           std::uint32_t layer) {
    const cuda::stream_id stream = *device.open_stream();
    const std::uint32_t heads = of.kv_heads * of.group;
    const std::size_t pages = batch.pages.size();
    auto storage =
        cuda::device_storage<Device>{
            .device = &device, .slab_bytes = of.slabs == 1 ? 0 : (pages / of.slabs + 1) * batch.layout.page_bytes()}
            .open(pages, batch.layout.page_bytes());
    std::vector<std::vector<std::byte>> sent = batch.pages;
    std::vector<cuda::page_part> parts;
    for (std::uint32_t page = 0; page < pages; ++page) {
        out.expect(storage.acquire(kvcache::page_id{page}), "a page is acquired");
        parts.push_back({kvcache::page_id{page}, 0, sent[page]});
    }
    done(out, storage.send(stream, parts));

    cuda::attention_table table;
    std::vector<std::byte> asked;
    const std::size_t query_bytes = batch.queries.bytes.size() / batch.tables.size();
    for (const std::size_t sequence : sequences) {
        done(out, table.add(batch.tables[sequence], batch.positions[sequence]));
        const auto at = batch.queries.bytes.begin() + static_cast<std::ptrdiff_t>(sequence * query_bytes);
        asked.insert(asked.end(), at, at + static_cast<std::ptrdiff_t>(query_bytes));
    }
    std::vector<double> frequencies;
    for (std::size_t i = 0; i < Dim / 2; ++i)
        frequencies.push_back(frequency(i, Dim / 2));
    constexpr std::uint32_t reach = 4000;
    device_copy<cuda::turn, Device> turns(device, cuda::rope_table::make(frequencies, reach));
    cuda::attention_options options{
        .layout = batch.layout, .heads = heads, .scale = 1.0f / std::sqrt(static_cast<float>(Dim)), .steps = {}};
    if (of.turned)
        options.steps = {turns.data(), Dim / 2, cuda::rope_table::rows(reach)};
    cuda::paged_attention<Device, Format, Dim, Queries> attention(device, options);
    done(out, attention.plan(stream, table));
    device_copy<std::byte, Device> queries(device, asked);
    device_copy<float, Device> given(device, std::vector<float>(sequences.size() * heads * Dim, -1.0f));
    done(out, attention.run(stream, storage.pool(), layer, queries.bytes(), of.query_format, given.data()));
    auto fetched = given.fetch(stream, out);
    device.close(stream);
    return fetched;
}

/// Checks that attention is near its oracle for every sequence of the batch, and that a sequence's bits do not depend
/// on the others: the same alone, in the batch, and in reverse order.
template <row_format Format, unsigned Dim, unsigned Queries, class Device>
[[nodiscard]] outcome attention_is_right(Device& device, const attention_case& of) {
    outcome out;
    const attention_batch batch = make_batch<Format>(of, Dim);
    const std::size_t count = of.rows.size(), width = std::size_t{of.kv_heads} * of.group * Dim;
    const std::uint32_t layer = of.layers - 1;
    std::vector<std::size_t> all, back;
    for (std::size_t i = 0; i < count; ++i) {
        all.push_back(i);
        back.insert(back.begin(), i);
    }
    const auto together = attend_on<Format, Dim, Queries>(device, out, batch, of, all, layer);
    out.keep(together);
    const double scale = static_cast<double>(1.0f / std::sqrt(static_cast<float>(Dim)));
    const double allowed = Format == row_format::int8 ? 1e-4 : 2e-6; // quantized queries are int16
    double worst = 0;
    for (std::size_t sequence = 0; sequence < count; ++sequence) {
        const auto wanted = attended(batch, of, sequence, layer, scale);
        for (std::size_t i = 0; i < width; ++i)
            worst = std::max(worst, std::abs(static_cast<double>(together[sequence * width + i]) - wanted[i]));
        for (std::size_t i = 0; i < width; ++i)
            if (std::isnan(together[sequence * width + i]))
                out.expect(false, "sequence " + std::to_string(sequence) + " has a number that is none");
    }
    out.expect(worst <= allowed, "attention is off by " + std::to_string(worst * 1e6) + "e-6");

    const auto same = [&](const std::vector<float>& part, std::size_t at, std::size_t sequence) {
        out.expect(std::memcmp(part.data() + at * width, together.data() + sequence * width, width * sizeof(float)) ==
                       0,
                   "the bits of sequence " + std::to_string(sequence) + " depend on its batch");
    };
    const auto reversed = attend_on<Format, Dim, Queries>(device, out, batch, of, back, layer);
    for (std::size_t i = 0; i < count; ++i)
        same(reversed, i, back[i]);
    for (const std::size_t sequence : {std::size_t{0}, count - 1})
        same(attend_on<Format, Dim, Queries>(device, out, batch, of, {sequence}, layer), 0, sequence);
    return out;
}

} // namespace cuda_cases
