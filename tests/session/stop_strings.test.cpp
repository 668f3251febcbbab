// SPDX-License-Identifier: MIT
#include <kvcache/session/stop_strings.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

struct heard {
    std::string text;
    bool stopped = false;
};

// The expected text: up to the string that is complete first, the longest of equals.
heard naive(const std::string& text, const std::vector<std::string>& stop_strings) {
    for (std::size_t end = 1; end <= text.size(); ++end) {
        std::size_t longest = 0;
        for (const std::string& each : stop_strings)
            if (!each.empty() && text.substr(0, end).ends_with(each))
                longest = std::max(longest, each.size());
        if (longest > 0)
            return {text.substr(0, end - longest), true};
    }
    return {text, false};
}

// The longest suffix of a text that is a proper prefix of a string.
std::size_t doubtful(const std::string& text, const std::vector<std::string>& stop_strings) {
    std::size_t longest = 0;
    for (const std::string& each : stop_strings)
        for (std::size_t n = 1; n < each.size(); ++n)
            if (text.ends_with(each.substr(0, n)))
                longest = std::max(longest, n);
    return longest;
}

} // namespace

TEST_CASE("however a text is cut, it ends at the same place, and only what is doubtful is held back") {
    std::mt19937 dice(11);
    for (int round = 0; round < 3000; ++round) {
        const auto word = [&](std::size_t longest) {
            std::string made(dice() % (longest + 1), 'a');
            for (char& c : made)
                c = static_cast<char>('a' + dice() % 2);
            return made;
        };
        const std::vector<std::string> stop_strings = {word(4), word(5), word(3)};
        const std::string text = word(24);
        const heard wanted = naive(text, stop_strings);
        kv::stop_strings at(stop_strings);
        std::string said, given;
        for (std::size_t i = 0; i < text.size() && !at.stopped();) {
            const std::size_t n = std::min<std::size_t>(1 + dice() % 4, text.size() - i);
            given += text.substr(i, n);
            said += at.push(text.substr(i, n));
            i += n;
            if (!at.stopped())
                REQUIRE(given.size() - said.size() == doubtful(given, stop_strings));
        }
        said += at.flush();
        INFO("round " << round << ": " << text);
        REQUIRE(at.stopped() == wanted.stopped);
        REQUIRE(said == wanted.text);
    }
}

TEST_CASE("a text without stop strings is never held back") {
    kv::stop_strings none;
    CHECK(none.push("all of it") == "all of it");
    CHECK(none.held() == 0);
    CHECK(none.flush().empty());
    CHECK_FALSE(none.stopped());
}

TEST_CASE("text after the end is not reported, and code points are not split") {
    kv::stop_strings at({"\xc3\xa9t\xc3\xa9"}); // "ete" with accents
    CHECK(at.push("\xc3\xa9") == "");
    CHECK(at.push("\xc3\xa8") == "\xc3\xa9\xc3\xa8");
    CHECK(at.push("\xc3\xa9t\xc3\xa9 and more") == "");
    CHECK(at.stopped());
    CHECK(at.push("more") == "");
    CHECK(at.flush() == "");
}
