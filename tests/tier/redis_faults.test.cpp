// SPDX-License-Identifier: MIT
// Peers that are not Redis, or a faulty Redis: every fault is a counted miss, and no row is wrong.
#include <kvcache/testing/violations.hpp>
#include <kvcache/tier/redis.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/past_rows.hpp"
#include "fake_redis.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using testing_redis::fake;

kv::tier::redis at(const fake& peer) {
    return {.port = peer.port,
            .connect_timeout = std::chrono::milliseconds(200),
            .timeout = std::chrono::milliseconds(20),
            .retry = std::chrono::minutes(10), // not within a test
            .longest_retry = std::chrono::minutes(10),
            .links = 1,
            .value_bytes = 1 << 20};
}

template <class State>
kv::result<bool> read(State& tier) {
    return tier.read(kv::sha256_digest{}, [](std::span<const std::byte>) {});
}

// A server that damages some of its replies in one place.
class broken {
public:
    explicit broken(std::uint64_t seed) : choose_(seed) {}

    std::optional<std::string> operator()(const fake::command& said) {
        if (auto greeted = fake::greeting(said))
            return greeted;
        std::string right;
        if (said.front() == "SET") {
            content_[said[1]] = said[2];
            right = "+OK\r\n";
        } else if (said.front() == "GET") {
            const auto found = content_.find(said[1]);
            right = found == content_.end()
                        ? "$-1\r\n"
                        : "$" + std::to_string(found->second.size()) + "\r\n" + found->second + "\r\n";
        } else if (said.front() == "DEL") {
            right = ":" + std::to_string(content_.erase(said[1])) + "\r\n";
        } else {
            right = content_.contains(said[1]) ? ":1\r\n" : ":0\r\n";
        }
        if (said.front() != "GET" || right.size() < 10 || choose_.below(4) != 0) // records are stored unchanged
            return right;
        ++faults;
        const auto place = static_cast<std::size_t>(choose_.below(right.size()));
        const std::string before = std::exchange(last_, right);
        switch (choose_.below(8)) {
        case 0: // a truncated reply
            *hang_up = true;
            return choose_.below(2) == 0 ? std::nullopt : std::optional(right.substr(0, place) + "\r\n");
        case 1: // a wrong length
            *hang_up = true;
            return "$" + std::to_string(choose_.bits() >> choose_.below(64)) + right.substr(right.find('\r'));
        case 2: // the previous reply
            return before.empty() ? "$-1\r\n" : before;
        case 3: // the reply twice
            return right + right;
        case 4: // missing bytes
            *hang_up = true;
            return right.erase(place, 1 + choose_.below(20));
        case 5: // an error
            return "-ERR " + std::to_string(place) + "\r\n";
        default: // a flipped bit
            *hang_up = place <= right.find('\n') || place + 2 >= right.size();
            right[place] = static_cast<char>(right[place] ^ (1 << choose_.below(8)));
            return right;
        }
    }

    std::uint64_t faults = 0;
    std::atomic<bool>* hang_up = nullptr; ///< Closes the connection, so that no one waits for missing bytes.

private:
    kv::testing::detail::choices choose_;
    std::map<std::string, std::string> content_;
    std::string last_;
};

// Runs until this many replies were damaged.
void strike(std::uint64_t wanted) {
    using namespace testing_rows;
    std::uint64_t faults = 0, refused = 0, failed = 0;
    for (std::uint64_t seed = 0; faults < wanted; ++seed) {
        broken server(seed);
        std::mutex lock;
        fake peer([&](const fake::command& said) {
            const std::lock_guard guard(lock);
            return server(said);
        });
        server.hang_up = &peer.hang_up;
        auto how = at(peer);
        how.timeout = how.connect_timeout = std::chrono::seconds(2);
        how.retry = how.longest_retry = std::chrono::milliseconds(1);
        auto cache = made(6, how);
        std::mt19937 dice(static_cast<unsigned>(seed));
        const auto struck = [&] {
            const std::lock_guard guard(lock);
            return faults + server.faults;
        };
        for (int round = 0; round < 400 && (round < 40 || round % 8 != 0 || struck() < wanted); ++round) {
            tokens prompt = some(64, static_cast<unsigned>(dice() % 12));
            prompt.resize(33 + dice() % 32);
            prefill(cache, prompt);
            if (round < 40)
                static_cast<void>(cache.tier().flush());
            for (int wait = 0; wait < 20000 && cache.tier().connected() == 0; ++wait)
                std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        static_cast<void>(cache.tier().flush());
        CHECK(cache.check());
        CHECK(cache.stats().in_use == 0);
        const std::lock_guard guard(lock);
        faults += server.faults;
        refused += kv::tier_stats_of(cache).refused;
        failed += cache.tier().counts().failures;
    }
    CHECK(refused > wanted / 10);
    CHECK(failed > wanted / 10);
}

} // namespace

TEST_CASE("a peer that violates the Redis protocol is refused, and not asked again") {
    const struct {
        std::string reply;
        kv::error_code code;
    } cases[] = {{"HTTP/1.1 400 Bad Request\r\n\r\n", kv::error_code::malformed},
                 {"$-7\r\n", kv::error_code::malformed},
                 {"$999999999999\r\nabc", kv::error_code::malformed},
                 {"$3\r\nabcdef", kv::error_code::malformed},
                 {"*100000000\r\n", kv::error_code::malformed},
                 {std::string(70000, 'a'), kv::error_code::malformed},
                 {std::string("\0\0\0\0\r\n", 6), kv::error_code::malformed},
                 {"$100\r\nabc", kv::error_code::io},
                 {"+no end", kv::error_code::io},
                 {"", kv::error_code::io}};
    for (const auto& [reply, code] : cases) {
        CAPTURE(reply.substr(0, 40));
        const fake peer([&, text = reply](const fake::command& said) {
            auto greeted = fake::greeting(said);
            return greeted ? greeted : text;
        });
        auto tier = at(peer).open();
        REQUIRE(tier.status());
        const auto before = peer.commands.load();
        for (int i = 0; i < 50; ++i) {
            const auto found = read(tier);
            REQUIRE_FALSE(found);
            CHECK(found.error().code == (i == 0 ? code : kv::error_code::io));
        }
        CHECK(peer.commands == before + 1); // of fifty
        CHECK(peer.connections == 1);
        CHECK(tier.counts().failures == 50);
    }
}

TEST_CASE("an error or an unexpected reply is a miss, and the server stays in use") {
    for (const char* reply : {"-LOADING Redis is loading the dataset in memory\r\n", "-ERR no\r\n", ":1\r\n", "*0\r\n",
                              "-MOVED x y\r\n", "+text\r\n"}) {
        const fake peer([&](const fake::command& said) {
            auto greeted = fake::greeting(said);
            return greeted ? greeted : std::optional<std::string>(reply);
        });
        auto tier = at(peer).open();
        for (int i = 0; i < 3; ++i) {
            const auto found = read(tier);
            REQUIRE(found);
            CHECK_FALSE(*found);
        }
        CHECK(tier.counts().failures == 3);
        CHECK(tier.status());
    }
}

TEST_CASE("a cluster that sends its readers in circles loses them") {
    fake* self = nullptr;
    fake peer([&](const fake::command& said) -> std::optional<std::string> {
        if (said.front() == "PING" || said.front() == "ASKING")
            return "+OK\r\n";
        const std::string here = "127.0.0.1:" + std::to_string(self->port);
        if (said.front() == "CLUSTER")
            return "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:" + std::to_string(self->port) + "\r\n";
        return (said.front() == "GET" ? "-MOVED 1 " : "-ASK 1 ") + here + "\r\n";
    });
    self = &peer;
    auto tier = at(peer).open();
    REQUIRE(tier.status());
    const auto found = read(tier);
    REQUIRE_FALSE(found);
    CHECK(found.error().message == "redis: the cluster sends its readers astray");
    const kv::sha256_digest name;
    CHECK(tier.count_prefix_hits({&name, 1}) == 0);
}

TEST_CASE("a peer that does not greet is not used") {
    for (const char* reply : {"-NOAUTH Authentication required.\r\n", ":1\r\n", "x", ""}) {
        const fake peer([&](const fake::command&) { return std::optional<std::string>(reply); });
        auto tier = at(peer).open();
        CHECK_FALSE(tier.status());
        CHECK_FALSE(read(tier));
        CHECK(tier.attempts() == 1);
    }
    const fake closing([](const fake::command&) { return std::nullopt; });
    auto tier = at(closing).open();
    REQUIRE_FALSE(tier.status());
    CHECK(tier.status().error().message.find("closed") != std::string::npos);
}

TEST_CASE("faults of Redis replies are no wrong row and no lost page") {
    strike(60);
}

TEST_CASE("ten thousand faults of Redis replies are no wrong row and no lost page", "[.long]") {
    strike(10000);
}
