// SPDX-License-Identifier: MIT
#include <kvcache/testing/violations.hpp>
#include <kvcache/tier/resp.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using kind = kv::tier::resp_value::kind;
using state = kv::tier::resp_read::state;

kv::tier::resp_read read(std::string_view text, const kv::tier::resp_limits& limits = {}) {
    return kv::tier::read_resp(std::as_bytes(std::span(text)), limits);
}

// Returns a random reply, and its parsed value.
std::string written(kv::testing::detail::choices& choose, kv::tier::resp_value& value, int depth) {
    switch (choose.below(depth < 3 ? 6 : 5)) {
    case 0:
        value.what = kind::text;
        return "+fine\r\n";
    case 1:
        value.what = kind::error;
        return "-ERR it is not\r\n";
    case 2:
        value.what = kind::number;
        value.number = static_cast<std::int64_t>(choose.bits());
        return ":" + std::to_string(value.number) + "\r\n";
    case 3:
        value.what = kind::nothing;
        return choose.below(2) == 0 ? "$-1\r\n" : "*-1\r\n";
    case 4: {
        value.what = kind::bytes;
        std::string body;
        for (std::uint64_t n = choose.below(40); n > 0; --n)
            body += "\r\n$*a\0"[choose.below(6)];
        value.number = static_cast<std::int64_t>(body.size());
        return "$" + std::to_string(body.size()) + "\r\n" + body + "\r\n";
    }
    default: {
        value.what = kind::array;
        const auto count = choose.below(5);
        std::string text = "*" + std::to_string(count) + "\r\n";
        for (std::uint64_t i = 0; i < count; ++i)
            text += written(choose, value.items.emplace_back(), depth + 1);
        return text;
    }
    }
}

bool same(const kv::tier::resp_value& a, const kv::tier::resp_value& b) {
    if (a.what != b.what || a.items.size() != b.items.size() || (a.what == kind::number && a.number != b.number) ||
        (a.what == kind::bytes && a.words.size() != static_cast<std::size_t>(b.number)))
        return false;
    for (std::size_t i = 0; i < a.items.size(); ++i)
        if (!same(a.items[i], b.items[i]))
            return false;
    return true;
}

} // namespace

TEST_CASE("a reply is read whole, and no beginning of it is taken for one") {
    kv::testing::detail::choices choose(4);
    for (int round = 0; round < 300; ++round) {
        kv::tier::resp_value wanted;
        const std::string text = written(choose, wanted, 0);
        const auto whole = read(text + ":1\r\n");
        REQUIRE(whole.now == state::whole);
        CHECK(whole.used == text.size());
        CHECK(same(whole.value, wanted));
        for (std::size_t size = 0; size < text.size(); ++size) {
            const auto part = read(std::string_view(text).substr(0, size));
            REQUIRE(part.now == state::more);
            CHECK((part.wanted > size && part.wanted <= text.size()));
        }
    }
}

TEST_CASE("what is no reply is refused, whatever it promises") {
    for (const char* text :
         {"?1\r\n", "\r\n", "$\r\n", "$x\r\n", "$-2\r\n", "*-2\r\n", "$3\r\nabcd\r\n", ":1 \r\n", ":\r\n", "+a\rb",
          "$99999999999999999999\r\n", "$9223372036854775807\r\n", "*1000000000\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
          "*2\r\n:1\r\n?\r\n", "HTTP/1.1 400\r\n"})
        CHECK(read(text).now == state::wrong);
    CHECK(read("$5\r\n", {.bytes = 4}).now == state::wrong);
    CHECK(read(std::string(100, 'a'), {.line = 100}).now == state::wrong);
    CHECK(read(std::string(99, '+'), {.line = 100}).now == state::more);
    CHECK(read("*3\r\n:1\r\n:2\r\n:3\r\n", {.items = 3}).now == state::wrong);
    CHECK(read("*2\r\n:1\r\n:2\r\n", {.items = 3}).now == state::whole);
}

TEST_CASE("commands are written in the protocol's format") {
    std::string text;
    kv::tier::write_command(text, {"SET", "a b", ""});
    CHECK(text == "*3\r\n$3\r\nSET\r\n$3\r\na b\r\n$0\r\n\r\n");
}

TEST_CASE("keys fall into the slots that a cluster counts") {
    CHECK(kv::tier::redis_slot("123456789") == 12739); // the specification's example
    CHECK(kv::tier::redis_slot("foo") == 12182);
    CHECK(kv::tier::redis_slot("{user1000}.following") == kv::tier::redis_slot("{user1000}.followers"));
    CHECK(kv::tier::redis_slot("foo{}{bar}") == kv::tier::detail::crc16("foo{}{bar}") % 16384);
    CHECK(kv::tier::redis_slot("foo{{bar}}zap") == kv::tier::redis_slot("{bar"));
    CHECK(kv::tier::redis_slot("foo{bar}{zap}") == kv::tier::redis_slot("bar"));
}

TEST_CASE("a redirection is parsed, and other errors are not taken for one") {
    const auto moved = kv::tier::redirect_in("MOVED 3999 127.0.0.1:6381");
    REQUIRE(moved);
    CHECK_FALSE(moved->once);
    CHECK(moved->slot == 3999);
    CHECK(moved->to == kv::tier::redis_address{"127.0.0.1", 6381});
    CHECK(kv::tier::redirect_in("ASK 1 ::1:7000")->to == kv::tier::redis_address{"::1", 7000});
    CHECK(kv::tier::redirect_in("ASK 1 :7000")->to == kv::tier::redis_address{"", 7000});
    for (const char* words : {"", "MOVED", "MOVED ", "MOVED 1", "MOVED x 1:1", "MOVED 16384 a:1", "MOVED 1 a:0",
                              "MOVED 1 a:70000", "ERR MOVED 1 a:1", "MOVED -1 a:1"})
        CHECK_FALSE(kv::tier::redirect_in(words));
}
