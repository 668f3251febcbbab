// SPDX-License-Identifier: MIT
#include <kvcache/session/chat_session.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "support/folders.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

const kv::chat_format& form() {
    static const kv::chat_format made = [] {
        const auto directory = test_folders::project() / "examples" / "models" / "worlds-2m";
        auto words = kv::tokenizer::open(directory);
        REQUIRE(words.has_value());
        auto writes = kv::chat_template::open(*words, "default");
        REQUIRE(writes.has_value());
        return kv::chat_format{*words, *writes};
    }();
    return made;
}

using messages = std::vector<kv::chat_message>;

// Counts how often it is asked for shorter messages.
struct counting_slide : kv::slide_overflow {
    std::size_t* renderings;
    [[nodiscard]] messages without_turns(std::span<const kv::chat_message> all, std::size_t turns) const {
        ++*renderings;
        return slide_overflow::without_turns(all, turns);
    }
};

// The reference: erases the oldest turn, one after another, until the rest fits.
messages dropped_one_by_one(messages all, std::size_t most) {
    const kv::chat_transcript nothing;
    const kv::chat_renderer measure(form(), nothing, kv::refuse_overflow{}, most);
    while (!measure.fits(*measure.fit(all))) {
        const auto first = std::ranges::find_if(all, [](const auto& m) { return m.role != "system"; });
        const auto next = first == all.end()
                              ? first
                              : std::find_if(first + 1, all.end(), [](const auto& m) { return m.role == "user"; });
        if (next == all.end())
            break;
        all.erase(first, next);
    }
    return all;
}

bool same(const messages& a, const messages& b) {
    return std::ranges::equal(a, b,
                              [](const auto& x, const auto& y) { return x.role == y.role && x.content == y.content; });
}

} // namespace

TEST_CASE("a long conversation drops as many turns as one by one, in few renderings") {
    const unsigned seed = std::random_device()();
    INFO("seed " << seed);
    std::mt19937 dice(seed);
    const auto up_to = [&](std::size_t n) { return dice() % (n + 1); };
    const kv::chat_transcript nothing;
    for (int round = 0; round < 200; ++round) {
        messages all;
        if (up_to(1) == 0)
            all.push_back({.role = "system", .content = "Be brief."});
        for (std::size_t left = up_to(60); left > 0; --left) {
            const std::size_t kind = up_to(9);
            all.push_back({.role = kind < 5 ? "user" : kind < 9 ? "assistant" : "system"});
            for (std::size_t words = up_to(12); words > 0; --words)
                all.back().content += "library ";
        }
        if (all.empty())
            continue;
        const std::size_t most = up_to(300);
        std::size_t renderings = 0;
        const counting_slide overflow{{}, &renderings};
        const kv::chat_renderer renderer(form(), nothing, overflow, most);
        const auto made = renderer.fit(all);
        REQUIRE(made.has_value());
        CHECK(same(made->messages, dropped_one_by_one(all, most)));
        CHECK(renderings <= 14);
    }
}

TEST_CASE("twenty thousand messages are fitted into a context in few renderings") {
    messages all{{.role = "system", .content = "Be brief."}};
    for (int i = 0; i < 20'000; ++i)
        all.push_back({.role = i % 2 == 0 ? "user" : "assistant", .content = "Message " + std::to_string(i)});
    const kv::chat_transcript nothing;
    std::size_t renderings = 0;
    const counting_slide overflow{{}, &renderings};
    const kv::chat_renderer renderer(form(), nothing, overflow, 500);
    const auto made = renderer.fit(all);
    REQUIRE(made.has_value());
    CHECK(renderer.fits(*made));
    CHECK(made->tokens.ids.size() > 400);
    CHECK(made->messages.front().content == "Be brief.");
    CHECK(made->messages.back().content == all.back().content);
    CHECK(renderings < 32);
}
