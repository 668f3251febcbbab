// SPDX-License-Identifier: MIT
#include <kvcache/eviction/fifo.hpp>
#include <kvcache/session/session_table.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

struct session {
    static inline std::atomic<int> alive = 0;
    int said = 0;
    bool in_use = false;
    session() { ++alive; }
    ~session() { --alive; }
};

const kv::digest model{.low = 1, .high = 0}, other{.low = 2, .high = 0};

const auto fresh = [] { return std::make_unique<session>(); };

template <class Table>
void use(Table& table, const std::string& key, std::size_t bytes = 1, const kv::digest& of = model) {
    auto held = table.acquire(of, key, fresh);
    REQUIRE(held.has_value());
    ++(*held)->said;
    held->set_bytes(bytes);
}

template <class Table>
std::string keys(const Table& table) {
    std::string made;
    for (const auto& each : table.list(model))
        made += each.key + std::to_string(each.uses) + " ";
    return made;
}

} // namespace

TEST_CASE("a session is found by model and key") {
    {
        kv::session_table<session> table;
        use(table, "ann");
        use(table, "bob");
        use(table, "ann");
        use(table, "ann", 1, other);
        CHECK(keys(table) == "ann2 bob1 ");
        CHECK(table.list(other).size() == 1);
        CHECK((*table.acquire(model, "ann", fresh))->said == 2);
        CHECK(table.remove(model, "ann"));
        CHECK_FALSE(table.remove(model, "ann"));
        CHECK((*table.acquire(model, "ann", fresh))->said == 0);
        table.clear();
        CHECK(table.size() == 0);
        CHECK(table.bytes() == 0);
        CHECK(session::alive == 0);
    }
    CHECK(session::alive == 0);
}

TEST_CASE("strays leave before conversations, and those before the more recent") {
    kv::session_table<session> table({.sessions = 3});
    use(table, "ann");
    use(table, "ann");
    use(table, "bob");
    use(table, "bob");
    for (int stray = 0; stray < 10; ++stray)
        use(table, "stray" + std::to_string(stray));
    CHECK(keys(table) == "ann2 bob2 stray91 ");
    use(table, "stray9");
    use(table, "ann");
    use(table, "zoe");
    CHECK(keys(table) == "ann3 stray92 zoe1 "); // bob was the least recently used

    kv::session_table<session, kv::eviction::fifo> queue({.sessions = 2}, kv::eviction::fifo{});
    use(queue, "a");
    use(queue, "b");
    use(queue, "c");
    CHECK(keys(queue) == "b1 c1 ");
}

TEST_CASE("bytes are bounded, and sessions in use never leave") {
    kv::session_table<session> table({.sessions = 2, .bytes = 100});
    use(table, "ann", 60);
    use(table, "bob", 50);
    CHECK(keys(table) == "bob1 ");
    CHECK(table.bytes() == 50);
    {
        const auto one = table.acquire(model, "bob", fresh), two = table.acquire(model, "cat", fresh);
        REQUIRE(one.has_value());
        REQUIRE(two.has_value());
        const auto none = table.acquire(model, "dog", fresh);
        REQUIRE_FALSE(none.has_value());
        CHECK(none.error().field == "sessions");
        CHECK_FALSE(table.evict());
    }
    use(table, "bob", 1000);
    CHECK(table.size() == 0); // it alone exceeds the limit
    CHECK(session::alive == 0);
}

TEST_CASE("a session that cannot be created leaves no trace") {
    kv::session_table<session> table({.sessions = 1});
    for (int time = 0; time < 3; ++time)
        CHECK_THROWS_AS(table.acquire(model, "ann", []() -> std::unique_ptr<session> { throw 1; }), int);
    CHECK(table.size() == 0);
    use(table, "ann");
    CHECK(keys(table) == "ann1 ");
}

TEST_CASE("one request holds a session at a time, however threads open, remove and evict") {
    kv::session_table<session> table({.sessions = 6, .bytes = 40});
    std::atomic<int> clashes = 0, refused = 0;
    {
        std::vector<std::jthread> users;
        for (unsigned user = 0; user < 6; ++user)
            users.emplace_back([&, user] {
                std::mt19937 dice(user);
                for (int i = 0; i < 2000; ++i) {
                    const std::string key(1, static_cast<char>('a' + dice() % 9));
                    const auto what = dice() % 20;
                    if (what == 0)
                        (void)table.remove(model, key);
                    else if (what == 1)
                        (void)table.evict();
                    else if (auto held = table.acquire(model, key, fresh)) {
                        clashes += std::exchange((*held)->in_use, true);
                        ++(*held)->said;
                        held->set_bytes(dice() % 16);
                        clashes += !std::exchange((*held)->in_use, false);
                    } else
                        ++refused;
                }
            });
    }
    CHECK(clashes == 0);
    CHECK(table.bytes() <= 40);
    CHECK(table.size() <= 6);
    table.clear();
    CHECK(table.bytes() == 0);
    CHECK(session::alive == 0);
}

TEST_CASE("those who wait for a session have it in the order they came") {
    kv::session_table<session> table;
    std::vector<int> order;
    std::vector<std::jthread> users;
    {
        auto first = table.acquire(model, "ann", fresh);
        REQUIRE(first.has_value());
        for (int user = 0; user < 5; ++user) {
            users.emplace_back([&, user] {
                auto held = table.acquire(model, "ann", fresh);
                order.push_back(user); // guarded by the session
            });
            while (table.list(model)[0].uses < static_cast<std::size_t>(user) + 2)
                std::this_thread::yield(); // until it is queued
        }
    }
    users.clear();
    CHECK(order == std::vector{0, 1, 2, 3, 4});
}

TEST_CASE("who gives up waiting for a session leaves the line, and the others keep their order") {
    kv::session_table<session> table({.sessions = 2});
    std::mutex lock;
    std::string order;
    std::atomic<int> waiting = 0;
    std::atomic<bool> leaves = false;
    auto first = table.acquire(model, "a", fresh);
    REQUIRE(first);
    std::vector<std::jthread> others;
    for (int i = 0; i < 6; ++i) {
        others.emplace_back([&, i] {
            auto held = table.acquire(model, "a", fresh, [&, i, told = false]() mutable {
                waiting += !std::exchange(told, true);
                return i % 2 == 1 && leaves;
            });
            const std::lock_guard guard(lock);
            order += held ? std::to_string(i) : held.error().code == kv::error_code::cancelled ? "-" : "?";
        });
        while (waiting <= i) // each is in line before the next one comes
            std::this_thread::yield();
    }
    leaves = true;
    for (bool gone = false; !gone;) {
        const std::lock_guard guard(lock);
        gone = order == "---";
    }
    CHECK_FALSE(table.remove(model, "a", [] { return true; }));
    CHECK(table.list(model)[0].in_use);
    first = *table.acquire(model, "b", fresh); // releases "a"
    others.clear();
    CHECK(order == "---024");
    CHECK(table.remove(model, "a"));
    CHECK(session::alive == 1);
}

namespace {

const auto never_gives_up = [] { return false; };

template <class Table>
void use_as(Table& table, std::uint64_t client, const std::string& key, std::size_t bytes = 1, bool is_kept = true) {
    auto held = table.acquire(model, key, client, fresh, never_gives_up);
    REQUIRE(held.has_value());
    held->set_bytes(bytes);
    held->set_kept(is_kept);
}

} // namespace

TEST_CASE("a session is evicted from the client that has the most") {
    kv::session_table<session> table({.sessions = 6, .bytes = 100});
    use_as(table, 1, "a1");
    use_as(table, 1, "a2");
    for (int n = 0; n < 10; ++n)
        use_as(table, 2, "b" + std::to_string(n));
    CHECK(keys(table) == "a11 a21 b61 b71 b81 b91 ");
    for (int n = 3; n < 10; ++n)
        use_as(table, 1, "a" + std::to_string(n)); // evicts sessions of b, until both have three
    CHECK(keys(table) == "a71 a81 a91 b71 b81 b91 ");
    use_as(table, 3, "c", 90); // takes more bytes than all others
    CHECK(keys(table).find("c1 ") != std::string::npos);
    CHECK(table.size() == 6);
    use_as(table, 1, "a9", 10); // 104 bytes: the client with the most gives up
    CHECK(keys(table).find("c1 ") == std::string::npos);
    CHECK(table.size() == 5);
    use_as(table, 2, "b9", 30);
    CHECK(table.evict());
    CHECK(keys(table).find("b") != std::string::npos);
    CHECK(keys(table).find("a9") != std::string::npos);
    table.clear();
    CHECK(session::alive == 0);
}

TEST_CASE("however clients come and go, none loses a session to one with at least as many") {
    const unsigned seed = 5;
    CAPTURE(seed);
    std::mt19937 dice(seed);
    kv::session_table<session> table({.sessions = 12});
    const auto count = [&] {
        std::map<char, std::size_t> made;
        for (const auto& each : table.list(model))
            ++made[each.key[0]];
        return made;
    };
    for (int i = 0; i < 5000; ++i) {
        const auto client = static_cast<char>('a' + std::min(dice() % 5, dice() % 5));
        const std::string key = std::string(1, client) + std::to_string(dice() % 20);
        auto before = count();
        const auto was = table.size();
        use_as(table, static_cast<std::uint64_t>(client), key, 1, dice() % 4 != 0);
        const auto now = count();
        for (const auto& [whose, had] : before) {
            const auto found = now.find(whose);
            if (whose != client && (found == now.end() || found->second < had)) {
                REQUIRE(was == 12);
                REQUIRE(had >= before[client] + 1); // it had more than the one that came in its place
            }
        }
        REQUIRE(table.size() <= 12);
        if (dice() % 50 == 0)
            (void)table.remove(model, key);
    }
    table.clear();
    CHECK(session::alive == 0);
}

TEST_CASE("a client whose sessions are all in use displaces none of another one that has fewer") {
    kv::session_table<session> table({.sessions = 6});
    std::vector<decltype(table)::hold> held;
    const auto open = [&](std::uint64_t client, const std::string& key) {
        auto got = table.acquire(model, key, client, fresh, never_gives_up);
        if (got)
            held.push_back(std::move(*got));
        return got.has_value();
    };
    for (const char* key : {"a1", "a2", "a3", "a4"})
        REQUIRE(open(1, key));
    use_as(table, 2, "b1");
    use_as(table, 2, "b2");
    CHECK_FALSE(open(1, "a5"));
    CHECK(table.size() == 6);
    CHECK(open(3, "c1")); // has none yet
    CHECK(keys(table).find("b1") == std::string::npos);
    held.erase(held.begin()); // a1 is idle
    CHECK(open(1, "a5"));     // in its own place
    CHECK(keys(table).find("a1") == std::string::npos);
    CHECK(keys(table).find("b2") != std::string::npos);
    held.clear();
}

TEST_CASE("a session that is not kept is gone after its release, and a waiting request gets a new one") {
    kv::session_table<session> table({.sessions = 2});
    use(table, "ann", 5);
    use_as(table, 0, "bob", 5, false);
    CHECK(keys(table) == "ann1 ");
    CHECK(table.bytes() == 5);
    std::jthread next;
    {
        auto first = table.acquire(model, "ann", fresh);
        (*first)->said = 7;
        first->set_kept(false);
        next = std::jthread([&] {
            auto held = table.acquire(model, "ann", fresh);
            CHECK((*held)->said == 0);
            held->set_bytes(3);
        });
        while (table.list(model)[0].uses < 3)
            std::this_thread::yield(); // until it is queued
    }
    next.join();
    CHECK(keys(table) == "ann3 ");
    CHECK(table.bytes() == 3);
    CHECK(session::alive == 1);
}
