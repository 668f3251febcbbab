// SPDX-License-Identifier: MIT
#include <kvcache/testing/tier_conformance.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/redis.hpp>
#include <kvcache/tier/run.hpp>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/past_rows.hpp"
#include "redis_server.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace conformance = kvcache::testing::detail;

namespace {

using answer = conformance::tier_answer;
using testing_redis::soon;

kv::tier::redis at(const testing_redis::server& server) {
    return {.port = server.port(),
            .connect_timeout = std::chrono::seconds(5),
            .timeout = std::chrono::seconds(5),
            .retry = std::chrono::milliseconds(5),
            .longest_retry = std::chrono::milliseconds(50)};
}

// Returns how many of the records [0, count) are right; none may be wrong.
std::size_t right(kv::tier::redis::state& tier, std::uint64_t count) {
    std::size_t made = 0;
    for (std::uint64_t n = 0; n < count; ++n) {
        const auto read = conformance::read_record(tier, n);
        CHECK(read != answer::wrong);
        made += read == answer::right;
    }
    return made;
}

void fill(kv::tier::redis::state& tier, std::uint64_t count) {
    for (std::uint64_t n = 0; n < count; ++n)
        REQUIRE(conformance::put_record(tier, n));
}

std::vector<kv::sha256_digest> names(std::uint64_t count) {
    std::vector<kv::sha256_digest> made;
    for (std::uint64_t n = 0; n < count; ++n)
        made.push_back(conformance::tier_name(n).name);
    return made;
}

} // namespace

TEST_CASE("a Redis server passes the conformance tests of a tier, with a password and without") {
    if (testing_redis::missing())
        return;
    const testing_redis::server open, locked({"--requirepass", "a b\r\nc"}, testing_redis::free_port(), "a b\r\nc");
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        auto how = at(open);
        how.prefix = "conformance" + std::to_string(seed) + ":";
        how.links = 1 + seed;
        CHECK(kv::testing::tier_conformance(how, seed).empty());
    }
    auto how = at(locked);
    how.ttl = {};
    how.password = "a b\r\nc";
    CHECK(kv::testing::tier_conformance(how, 9).empty());
    how.user = "default";
    how.prefix = "again:";
    CHECK(kv::testing::tier_conformance(how, 9).empty());

    for (const char* wrong : {"", "wrong"}) {
        how.password = wrong;
        auto tier = how.open();
        REQUIRE_FALSE(tier.status());
        CHECK(tier.status().error().message.find(*wrong == 0 ? "NOAUTH" : "WRONGPASS") != std::string::npos);
        CHECK(conformance::read_record(tier, 1) == answer::failed);
        CHECK(tier.count_prefix_hits(names(3)) == 0);
        CHECK(conformance::put_record(tier, 1));
        CHECK_FALSE(tier.flush());
        CHECK(tier.counts().dropped == 1);
        CHECK(tier.counts().failures == 3);
    }
}

TEST_CASE("records have a time to live, another host sees them, and they are not sent twice") {
    if (testing_redis::missing())
        return;
    const testing_redis::server server;
    auto one = at(server).open(), other = at(server).open();
    fill(one, 40);
    REQUIRE(one.flush());
    CHECK(one.counts().written == 40);
    const std::string key = "kvcache:" + kv::to_string(conformance::tier_name(7).name);
    CHECK(server.ask({"PTTL", key}).size() >= 7);
    CHECK(server.ask({"STRLEN", key}) == std::to_string(conformance::tier_record(7).size()));

    CHECK(other.count_prefix_hits(names(60)) == 40);
    std::uint64_t next = 0;
    const auto all = names(60);
    const auto read = other.read_run(all, [&](std::size_t i, std::span<const std::byte> bytes) {
        CHECK(i == next++);
        CHECK(std::ranges::equal(bytes, conformance::tier_record(i)));
        return i != 37;
    });
    REQUIRE(read);
    CHECK(*read == 38);
    CHECK(right(other, 40) == 40);
    fill(other, 40);
    REQUIRE(other.flush());
    CHECK(other.counts().written == 0);
    CHECK(other.counts().dropped == 40);
    CHECK(server.ask({"FLUSHALL"}) == "OK");
    CHECK(right(other, 40) == 0);
    CHECK(other.counts().failures == 0);
}

TEST_CASE("a server that is killed is missed at once, and found again") {
    if (testing_redis::missing())
        return;
    testing_redis::server server;
    auto tier = at(server).open();
    fill(tier, 10);
    REQUIRE(tier.flush());
    server.kill();
    CHECK(conformance::read_record(tier, 1) == answer::failed); // the broken connection is detected
    CHECK(tier.connected() == 0);
    CHECK(right(tier, 10) == 0);
    CHECK(tier.count_prefix_hits(names(10)) == 0);
    fill(tier, 10);
    CHECK_FALSE(tier.flush());
    CHECK(tier.counts().dropped >= 10);
    server.start();
    REQUIRE(soon([&] { return tier.connected() == 1; }));
    CHECK(tier.status());
    CHECK(right(tier, 10) == 0);
    fill(tier, 10);
    REQUIRE(tier.flush());
    CHECK(right(tier, 10) == 10);
}

TEST_CASE("a server that stands still is waited for once") {
    if (testing_redis::missing())
        return;
    testing_redis::server server;
    auto how = at(server);
    how.timeout = how.connect_timeout = std::chrono::milliseconds(50);
    how.retry = how.longest_retry = std::chrono::minutes(10); // not within this test
    auto tier = how.open();
    REQUIRE(tier.status());
    fill(tier, 10);
    REQUIRE(tier.flush());
    server.signal(SIGSTOP);
    CHECK(conformance::read_record(tier, 1) == answer::failed);
    CHECK(tier.status().error().message.find("receiving") != std::string::npos);
    for (int i = 0; i < 1000; ++i) {
        const auto name = conformance::tier_name(1).name;
        const auto read = tier.read(name, [](std::span<const std::byte>) {});
        REQUIRE_FALSE(read);
        REQUIRE(read.error().message == "redis: the server is not connected"); // no request was sent
    }
    CHECK(tier.attempts() == 1);
    CHECK(tier.counts().failures == 1001);
    server.signal(SIGCONT);
}

TEST_CASE("a server that is full keeps what it has, and drops what comes") {
    if (testing_redis::missing())
        return;
    const testing_redis::server server({"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
    auto tier = at(server).open();
    fill(tier, 1000);
    const auto written = tier.flush();
    REQUIRE_FALSE(written);
    CHECK(written.error().message.find("OOM") != std::string::npos);
    const auto now = tier.counts();
    CHECK(now.dropped > 0);
    CHECK(now.failures == now.dropped);
    CHECK(now.written + now.dropped == 1000);
    CHECK(right(tier, 1000) == now.written);
    CHECK(tier.status());
}

TEST_CASE("values of a wrong type and damaged values are replaced after the first refusal, all of a prompt's") {
    using namespace testing_rows;
    if (testing_redis::missing())
        return;
    const testing_redis::server server;
    const tokens prompt = some(100, 1);
    const auto prefill_anew = [&] {
        auto cache = made(20, at(server));
        const auto found = prefill(cache, prompt);
        REQUIRE(cache.tier().flush());
        REQUIRE(cache.check());
        return std::pair(found.loaded, kv::tier_stats_of(cache));
    };
    for (const bool list : {false, true}) {
        CHECK(server.ask({"FLUSHALL"}) == "OK");
        CHECK(prefill_anew().second.stored == 6);
        const std::string spoil =
            list ? "redis.call('DEL', k) redis.call('RPUSH', k, 'x')" : "redis.call('APPEND', k, 'x')";
        CHECK(
            server.ask({"EVAL",
                        "local all = redis.call('KEYS', '*') for _, k in ipairs(all) do " + spoil + " end return #all",
                        "0"}) == "6");
        const auto [loaded, now] = prefill_anew();
        CHECK(loaded == 0);
        CHECK(now.refused == 1);
        CHECK(now.stored == 6);
        CHECK(now.store_failures == (list ? 1 : 0));
        CHECK(prefill_anew().first == 96);
    }
}

TEST_CASE("records that a server has lost are stored again at the next commit") {
    using namespace testing_rows;
    if (testing_redis::missing())
        return;
    testing_redis::server server;
    auto cache = made(20, at(server));
    const tokens prompt = some(100, 1);
    const auto stored_anew = [&](bool evicted) {
        const auto before = kv::tier_stats_of(cache).stored;
        if (evicted)
            cache.clear();
        prefill(cache, prompt);
        REQUIRE(cache.tier().flush());
        REQUIRE(cache.check());
        return kv::tier_stats_of(cache).stored - before;
    };
    CHECK(stored_anew(true) == 6);
    CHECK(stored_anew(true) == 0);
    CHECK(server.ask({"FLUSHALL"}) == "OK");
    CHECK(stored_anew(true) == 6); // a request finds that they are absent
    // One of six is absent: it alone is written.
    const std::string one = "local all = redis.call('KEYS', '*') table.sort(all) redis.call('DEL', all[3]) return #all";
    CHECK(server.ask({"EVAL", one, "0"}) == "6");
    CHECK(stored_anew(true) == 1);
    // The pages are in memory, so no request asks for them; but the server was lost.
    server.kill();
    server.start();
    static_cast<void>(conformance::read_record(cache.tier(), 1)); // the broken connection is detected
    REQUIRE(soon([&] { return cache.tier().connected() == 1; }));
    CHECK(stored_anew(false) == 6);
    CHECK(stored_anew(false) == 0);
}

TEST_CASE("a cluster's slots move while they are read") {
    if (testing_redis::missing())
        return;
    std::vector<std::unique_ptr<testing_redis::server>> nodes;
    for (int i = 0; i < 3; ++i)
        nodes.push_back(std::make_unique<testing_redis::server>(
            std::vector<std::string>{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port",
                                     std::to_string(testing_redis::free_port())}));
    const char* first[] = {"0", "5461", "10923"};
    const char* last[] = {"5460", "10922", "16383"};
    for (std::size_t i = 0; i < 3; ++i) {
        // Equal epochs are a collision, which a cluster resolves at a time of its own: a slot may then move back.
        REQUIRE(nodes[i]->ask({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)}) == "OK");
        REQUIRE(nodes[i]->ask({"CLUSTER", "ADDSLOTSRANGE", first[i], last[i]}) == "OK");
    }
    const std::string seed = std::to_string(nodes[0]->port());
    // Introduces the first node to the others, with its cluster port.
    const auto myself = nodes[0]->ask({"CLUSTER", "NODES"});
    const auto at_sign = myself.find('@');
    const std::string bus_port = myself.substr(at_sign + 1, myself.find_first_of(" ,", at_sign) - at_sign - 1);
    for (std::size_t i = 1; i < 3; ++i)
        REQUIRE(nodes[i]->ask({"CLUSTER", "MEET", "127.0.0.1", seed, bus_port}) == "OK");
    REQUIRE(soon([&] {
        for (const auto& node : nodes)
            if (node->ask({"CLUSTER", "INFO"}).find("cluster_state:ok") == std::string::npos)
                return false;
        return true;
    }));
    auto tier = at(*nodes[1]).open();
    REQUIRE(soon([&] { return tier.connected() == 3; }));
    fill(tier, 60);
    REQUIRE(tier.flush());
    CHECK(tier.counts().written == 60);
    CHECK(right(tier, 60) == 60);
    CHECK(tier.count_prefix_hits(names(60)) == 60);

    // The slot of record 5 moves to another server, step by step.
    const std::string key = "kvcache:" + kv::to_string(conformance::tier_name(5).name);
    const std::size_t slot = kv::tier::redis_slot(key),
                      owner = slot < 5461    ? 0
                              : slot < 10923 ? 1
                                             : 2,
                      heir = (owner + 1) % 3;
    const std::string which = std::to_string(slot), owner_id = nodes[owner]->ask({"CLUSTER", "MYID"}),
                      heir_id = nodes[heir]->ask({"CLUSTER", "MYID"});
    REQUIRE(nodes[heir]->ask({"CLUSTER", "SETSLOT", which, "IMPORTING", owner_id}) == "OK");
    REQUIRE(nodes[owner]->ask({"CLUSTER", "SETSLOT", which, "MIGRATING", heir_id}) == "OK");
    CHECK(right(tier, 60) == 60);
    REQUIRE(nodes[owner]->ask({"MIGRATE", "127.0.0.1", std::to_string(nodes[heir]->port()), key, "0", "5000"}) == "OK");
    CHECK(right(tier, 60) == 60); // ASK
    CHECK(tier.count_prefix_hits(names(60)) == 60);
    for (const std::size_t i : {heir, owner})
        REQUIRE(nodes[i]->ask({"CLUSTER", "SETSLOT", which, "NODE", heir_id}) == "OK");
    const std::string moved = "MOVED " + which + " 127.0.0.1:" + std::to_string(nodes[heir]->port());
    REQUIRE(soon([&] { return nodes[owner]->ask({"GET", key}).find(moved) != std::string::npos; }));
    REQUIRE(soon([&] { return nodes[heir]->ask({"GET", key}).find("MOVED") == std::string::npos; }));
    CHECK(right(tier, 60) == 60); // MOVED
    CHECK(tier.counts().failures == 0);

    // A server fails: only its records are missed.
    nodes[heir]->kill();
    const std::size_t rest = right(tier, 60);
    CHECK((rest > 0 && rest < 60));
    CHECK(conformance::read_record(tier, 5) == answer::failed);
}
