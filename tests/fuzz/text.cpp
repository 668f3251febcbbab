// SPDX-License-Identifier: MIT
//
// Feeds arbitrary files of a model directory: a chat template, or a tokenizer.json and, after a zero byte, a text. Each
// opens or is refused, and each use ends in a result or an error within the limits of time and memory:
//
//     clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iinclude tests/fuzz/text.cpp -o fuzz -lpcre2-8
//     -lutf8proc
//     ./fuzz -max_len=4096 -max_total_time=60 -timeout=20 -rss_limit_mb=4096 corpus/

#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>

namespace {

template <class Result>
void named(const Result& result) {
    if (!result && (result.error().field.empty() || result.error().message.empty()))
        std::abort();
}

void render(std::string_view source) {
    const auto chat = kvcache::chat_template::parse(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    named(chat);
    if (!chat)
        return;
    const auto messages = kvcache::json::array({{{"role", "system"}, {"content", "Be brief."}},
                                                {{"role", "user"}, {"content", " <s> a\nb 'c' \xc3\xa9 "}},
                                                {{"role", "assistant"}, {"content", ""}}});
    named(chat->render(messages, {}));
    const auto call =
        kvcache::json::parse(R"({"id": "1", "function": {"name": "f", "arguments": {"a": [1.5, null]}}})");
    auto talk = messages;
    talk[2]["tool_calls"] = kvcache::json::array({call});
    talk.push_back({{"role", "tool"}, {"content", "1e3"}, {"tool_call_id", "1"}});
    kvcache::chat_options options{.now = std::tm{}, .tools = kvcache::json::array({call})};
    named(chat->render(talk, options));
}

void encode(std::string_view file, std::string_view text) {
    const auto words = kvcache::tokenizer::parse(file, {});
    named(words);
    if (!words)
        return;
    const auto tokens = words->encode(text, {});
    named(tokens);
    if (tokens)
        (void)words->decode(*tokens, {.clean_up_spaces = true});
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view all(reinterpret_cast<const char*>(data), size);
    if (!all.starts_with("{\"")) {
        render(all);
        return 0;
    }
    const std::size_t end = std::min(all.find('\0'), all.size());
    encode(all.substr(0, end), all.substr(std::min(end + 1, all.size())));
    return 0;
}
