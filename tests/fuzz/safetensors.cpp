// SPDX-License-Identifier: MIT
//
// Feeds arbitrary bytes to the safetensors header parser and reads all that it gives out:
//
//     clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iinclude tests/fuzz/safetensors.cpp -o fuzz
//     ./fuzz -max_len=4096 -max_total_time=60 corpus/

#include <kvcache/model/huggingface/safetensors.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto file = std::as_bytes(std::span(data, size));
    const auto header = kvcache::safetensors_header::parse(file, "fuzz");
    if (!header) {
        if (header.error().field.empty() || header.error().message.empty())
            std::abort();
        return 0;
    }
    std::size_t covered = 0;
    unsigned sum = 0;
    for (const auto& [name, entry] : header->entries) {
        const auto bytes = file.subspan(header->buffer).subspan(entry.begin, entry.end - entry.begin);
        covered += bytes.size();
        for (const std::byte b : bytes)
            sum += std::to_integer<unsigned>(b);
    }
    // Without holes and overlaps the tensors are the buffer.
    if (covered != file.size() - header->buffer || sum > 255u * covered)
        std::abort();
    return 0;
}
