// SPDX-License-Identifier: MIT
// A hostile model directory costs bounded work and memory. A separate program, because it replaces the C library's
// allocator.
#include <kvcache/text/chat_template.hpp>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <text/goldens.hpp>

namespace kv = kvcache;

#if defined(__GLIBC__)

#include <malloc.h>

namespace {

std::atomic<std::size_t> live{0}; // bytes, by any thread, through new or malloc
std::atomic<std::size_t> peak{0};

void* counted(void* memory) noexcept {
    if (memory == nullptr)
        return nullptr;
    const std::size_t now = live.fetch_add(malloc_usable_size(memory)) + malloc_usable_size(memory);
    for (std::size_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {
    }
    return memory;
}
void uncounted(void* memory) noexcept {
    live -= memory != nullptr ? malloc_usable_size(memory) : 0;
}

} // namespace

extern "C" {
void* __libc_malloc(std::size_t) noexcept;
void* __libc_calloc(std::size_t, std::size_t) noexcept;
void* __libc_realloc(void*, std::size_t) noexcept;
void __libc_free(void*) noexcept;

void* malloc(std::size_t size) noexcept {
    return counted(__libc_malloc(size));
}
void* calloc(std::size_t count, std::size_t size) noexcept {
    return counted(__libc_calloc(count, size));
}
void* realloc(void* memory, std::size_t size) noexcept {
    uncounted(memory);
    void* const made = __libc_realloc(memory, size);
    return counted(made != nullptr || size == 0 ? made : memory);
}
void free(void* memory) noexcept {
    uncounted(memory);
    __libc_free(memory);
}
}

namespace {

/// Calls `body`. Returns the most bytes that it had allocated at once.
template <class Body>
std::size_t peak_of(Body body) {
    const std::size_t before = live;
    peak = before;
    body();
    return peak - before;
}

std::string looped(const std::string& count, const std::string& body) {
    return "{% for i in range(" + count + ") %}" + body + "{% endfor %}";
}

} // namespace

TEST_CASE("a hostile template ends in an error that names its limit, with bounded memory") {
    const std::string long_text =
        "{% set n = namespace(s='aaaaaaaaaaaaaaaa', l=[]) %}" + looped("20", "{% set n.s = n.s ~ n.s %}"); // 16 MiB
    const std::string list = "{% set l = range(100000) | list %}";
    const std::string lists = looped("100000", list + list + list + list);
    const std::string deep =
        "{% set n = namespace(l=[1, 2, 3, 4, 5, 6, 7, 8]) %}" + looped("20", "{% set n.l = [n.l, n.l] %}");
    std::string long_name(200'000, 'x');
    const std::vector<std::string> sources{
        list + looped("100000", "{% if -1 in l %}{% endif %}"),
        list + looped("100000", looped("100000", "{% if l[-1] in l %}{% endif %}")),
        list + looped("100000", "{% if l == l %}{% endif %}"),
        list + looped("100000", "{{ l | length }}{{ l[1:] | length }}"),
        list + looped("100000", "{% set x = l + l %}"),
        list + looped("100000", "{% set x = l | reverse %}"),
        list + looped("100000", "{% set x = l | map('string') %}"),
        list + looped("100000", "{% set x = l | select('odd') | list %}"),
        list + looped("100000", "{{ l.index(99999) }}{{ l.count(1) }}"),
        list + "{% set x = l | unique %}",
        list + looped("100000", "{% set x = l | join(',') %}"),
        list + looped("100000", "{% set x = l | tojson %}"),
        list + looped("100000", "{% set x = l | string %}"),
        lists,
        deep + "{% if n.l == n.l %}{% endif %}" + looped("1000", "{{ n.l | tojson(indent=64) | length }}"),
        "{% set n = namespace(l=[]) %}" + looped("100000", "{% set n.l = n.l + [loop] %}"),
        "{% set n = namespace(l=[]) %}" + looped("100000", "{% set n.l = n.l + [i ~ 'x' * 0] %}"),
        "{% set n = namespace(l=[]) %}" + looped("100000", "{% macro m() %}{% endmacro %}{% set n.l = [n.l, m] %}"),
        "{% set n = namespace(l=[" + long_name + "]) %}" + looped("25", "{% set n.l = n.l + n.l %}"),
        "{% set n = namespace(l=[]) %}" + looped("100000", "{% set n.l = n.l + [{}." + long_name + "] %}"),
        "{% set n = namespace(s='') %}" + looped("100000", "{% set n.s = n.s ~ i %}") +
            looped("100000", "{{ n.s | length }}"),
        "{% set n = namespace() %}" + looped("100000", looped("100000", "{% set x = dict(n, a=1) %}{{ x }}")),
        long_text + looped("100000", "{% set n.l = n.l + [n.s ~ i] %}"),
        long_text + looped("100000", "{{ n.s }}"),
        long_text + looped("100000", "{% set x = n.s | upper %}"),
        long_text + looped("100000", "{% set x = n.s.strip(n.s) %}"),
        long_text + looped("100000", "{% set x = n.s.replace('a', 'b') %}"),
        long_text + looped("100000", "{% set x = n.s.split('a') %}"),
        long_text + looped("100000", "{% set x = n.s.rsplit('a') %}"),
        long_text + looped("100000", "{% set x = n.s.find(n.s ~ 'b') %}"),
        long_text + looped("100000", "{% set x = (n.s[1:] ~ 'b') in n.s %}"),
        long_text + looped("100000", "{% set x = n.s.count('aaaaaaab') %}"),
        long_text + looped("100000", "{% set x = n.s.rsplit(n.s[:1000] ~ 'b') %}"),
        long_text + looped("100000", "{% set x = n.s < n.s ~ 'b' %}"),
        long_text + looped("100000", "{% set x = n.s[1::2] %}"),
        long_text + looped("100000", "{% set x = n.s[-1] %}"),
        long_text + looped("100000", "{% set x = n.s | indent(1024, true) %}"),
        long_text + looped("100000", "{% for c in n.s %}{% endfor %}"),
        long_text + "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}" + looped("100000", "{% set x = m(m(n.s)) %}"),
        list + looped("100000", "{% set x = l | sort(reverse=true) %}{% set x = l | groupby('x', 1) %}"),
        list + looped("100000", "{% set x = l | batch(1) | list %}{% set x = l * 99 %}"),
        list + looped("100000", "{% set x = '%s' % [l] %}{% set x = loop.changed(l) %}"),
        list + looped("100000", "{{ '{:4000}'.format(i) }}{{ '%.4000f' % 1.5 }}"),
        list + "{% macro m() %}{{ varargs | length }}{% endmacro %}" + looped("100000", "{{ m(*l) }}"),
        "{% macro n() %}{{ caller() }}{% endmacro %}" +
            looped("100000", "{% call n() %}{% filter upper %}{{ 'x' * 9999 }}{% endfilter %}{% endcall %}"),
        long_text + looped("100000", "{% set x = (n.s | safe) + n.s %}"),
        long_text + looped("100000", "{% set x = [n.s] | tojson(ensure_ascii=true) %}"),
        long_text + looped("100000", "{% set x = n.s.replace('', n.s) %}"),
        long_text + looped("100000", "{% set x = n.s.partition('b') %}{% set x = n.s.splitlines() %}"),
        long_text + looped("100000", "{% set x = {n.s: 1}[n.s] %}{% set x = n.s.format(1) %}"),
        looped("100000", looped("100000", looped("100000", ""))),
        looped("100000", looped("100000", "{% set x = range(100000) %}")),
        std::string(300, '(') + "1" + std::string(300, ')'),
    };
    for (const std::string& source : sources) {
        INFO(source.substr(0, 400));
        std::string message;
        const std::size_t most = peak_of([&] {
            const auto chat = kv::chat_template::parse(source, {});
            if (!chat) {
                message = chat.error().message;
                return;
            }
            const auto rendered = chat->render(kv::json::array(), {});
            message = rendered ? "it was rendered" : rendered.error().message;
        });
        INFO(message);
        CHECK((message.find("more than ") != message.npos || message.find("has no value") != message.npos ||
               source[0] == '('));
        CHECK(most < 400u << 20);
    }
}

TEST_CASE("a template's memory for marked text is bounded as well") {
    const auto messages = kv::json::array({{{"role", "user"}, {"content", std::string(1000, 'u')}}});
    for (const char* body : {"{% set n.s = n.s ~ n.s %}", "{% set n.s = n.s | join('x') %}",
                             "{% set n.s = n.s.replace('u', 'ux') %}", "{% set n.s = n.s | tojson %}"}) {
        const auto chat = kv::chat_template::parse(
            "{% set n = namespace(s=messages[0].content) %}" + looped("30", body) + "{{ n.s }}", {});
        REQUIRE(chat);
        std::string message;
        const std::size_t most = peak_of([&] {
            const auto rendered = chat->render(messages, {});
            message = rendered ? "it was rendered" : rendered.error().message;
        });
        INFO(body << ": " << message << ", " << most << " bytes");
        CHECK(most < 400u << 20);
    }
}

TEST_CASE("a hostile tokenizer ends in an error, with memory in proportion to the text") {
    const auto many = [](const std::string& one, int count) {
        std::string all = one;
        for (int i = 1; i < count; ++i)
            all += ", " + one;
        return all;
    };
    const std::string doubling = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
    const std::string to_long =
        R"({"type": "Replace", "pattern": {"Regex": "."}, "content": ")" + std::string(1'000'000, 'a') + "\"}";
    const std::string bytes = R"({"type": "ByteLevel", "use_regex": false})";
    for (const std::string& rules :
         {R"("normalizer": {"type": "Sequence", "normalizers": [)" + many(doubling, 40),
          R"("normalizer": {"type": "Sequence", "normalizers": [)" + many(doubling, 32),
          R"("normalizer": {"type": "Sequence", "normalizers": [)" + many(to_long, 32),
          R"("normalizer": {"type": "Sequence", "normalizers": [)" + many(R"({"type": "ByteLevel"})", 32),
          R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [)" + many(bytes, 2000),
          R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [)" + many(bytes, 16)}) {
        bool refused = false;
        std::string text;
        for (int i = 0; i < 500'000; ++i)
            text += "a\u00e9";
        const std::size_t most = peak_of([&] {
            const auto words =
                kv::tokenizer::parse("{" + rules + R"(]}, "model": {"vocab": {"a": 0}, "merges": []}})", {});
            refused = !words || !words->encode(text, {});
        });
        INFO(rules.substr(0, 150) << ": " << most << " bytes");
        CHECK(refused);
        CHECK(most < 50 * (text.size() + rules.size()));
    }
}

TEST_CASE("a long conversation fits the limits of every real template") {
    const auto path = text_tests::shared / "chat-templates" / "llamacpp_chat_cases.json";
    if (!text_tests::have(path))
        return;
    kv::json messages = kv::json::array();
    for (int i = 0; i < 20001; ++i)
        messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", "Message " + std::to_string(i)}});
    std::size_t rendered = 0;
    const auto file = text_tests::read(path);
    for (const auto& c : file["cases"]) {
        INFO(c["name"].get<std::string>());
        const auto chat = kv::chat_template::parse(
            c["template"].get<std::string>(),
            {{"bos_token", c["bos_token"].get<std::string>()}, {"eos_token", c["eos_token"].get<std::string>()}});
        REQUIRE(chat);
        const auto got = chat->render(messages, {});
        if (!got) // a template may want a system message, or further variables
            CHECK(got.error().message.find("more than") == std::string::npos);
        rendered += got.has_value();
    }
    CHECK(rendered >= 30);
}

#endif
