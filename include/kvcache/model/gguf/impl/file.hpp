// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/core/shown.hpp>
#include <kvcache/model/gguf/file.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
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
    std::ranges::sort(order, {}, [](const gguf_entry* entry) { return entry->bytes.data(); });
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

}} // namespace kvcache
