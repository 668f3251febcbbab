// SPDX-License-Identifier: MIT
//
// Feeds arbitrary bytes to the readers of GGUF files, and reads all that they give out: keys, tensors, the tokenizer,
// and the configuration and weights of a model:
//
//     clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iinclude tests/fuzz/gguf.cpp -o fuzz -lpcre2-8
//     -lutf8proc -lxxhash
//     ./fuzz -max_len=16384 -max_total_time=60 -timeout=5 -rss_limit_mb=4096 corpus/ tests/fuzz/corpus/gguf

#include <kvcache/model/config.hpp>
#include <kvcache/model/gguf/checkpoint.hpp>
#include <kvcache/model/gguf/config.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace {

template <class Result>
bool opened(const Result& result) {
    if (!result && (result.error().field.empty() || result.error().message.empty()))
        std::abort();
    return static_cast<bool>(result);
}

/// Touches all that a value says.
std::size_t read(const kvcache::gguf_value& value) {
    std::size_t sum = value.text().value_or("").size() + (value.flag().value_or(false) ? 1 : 0);
    sum += value.number().value_or(0.0) > 1.0 ? 1 : 0;
    for (const std::byte b : value.bytes())
        sum += std::to_integer<std::size_t>(b);
    value.each([&](const kvcache::gguf_value& element) { sum += read(element); });
    return sum;
}

void read_tokenizer(const kvcache::gguf_header& header) {
    const auto words = kvcache::tokenizer::parse(header, "fuzz");
    if (!opened(words))
        return;
    const auto tokens = words->encode("ab  \xc3\xa9 12<s>'s\n<|im_end|>", {});
    if (opened(tokens))
        (void)words->decode(*tokens, {});
}

void read_model(const std::string& path) {
    const auto file = kvcache::gguf_checkpoint::open(path);
    if (!opened(file))
        return;
    const auto config = kvcache::read_model_config(*file);
    if (!opened(config) || !opened(file->holds(*config)))
        return;
    for (const auto& [name, shape, heads] : kvcache::weights_of(*config)) {
        const auto tensor = file->tensor(name, shape);
        if (!opened(tensor))
            std::abort(); // holds() has seen it
        std::vector<float> numbers(std::min<std::size_t>(tensor->size(), 4096));
        tensor->read(tensor->size() - numbers.size(), numbers);
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    const auto header = kvcache::gguf_header::parse(bytes, "fuzz");
    if (!opened(header))
        return 0;
    std::size_t sum = 0;
    for (const auto& [key, value] : header->metadata())
        sum += key.size() + read(value);
    if (const auto entries = kvcache::gguf_file::entries(*header, bytes, "fuzz"); opened(entries))
        for (const auto& entry : *entries)
            for (const std::byte b : entry.bytes)
                sum += std::to_integer<std::size_t>(b);
    if (sum > 1024 * size) // each byte is in one tensor, or in a few levels of an array
        std::abort();
    read_tokenizer(*header);

    const int descriptor = ::memfd_create("fuzz", 0);
    if (descriptor < 0 || ::write(descriptor, data, size) != static_cast<::ssize_t>(size))
        std::abort();
    read_model("/proc/self/fd/" + std::to_string(descriptor));
    ::close(descriptor);
    return 0;
}
