// SPDX-License-Identifier: MIT
#include <kvcache/formats/json.hpp>
#include <kvcache/observer/events.hpp>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cache/matching.hpp"
#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::page_shape small{1, 1, 4, 16};

/// A router's view of the lines: the blocks of a cache, each with its parent and tokens.
struct router {
    struct block {
        kv::json parent;
        std::vector<int> tokens;
    };
    std::map<std::uint64_t, block> blocks = {};
    std::vector<kv::json> others = {};
    bool sound = true;

    void read(std::string_view line) {
        const auto batch = kv::parse_json(line, "line");
        sound = sound && batch && line.ends_with("}\n") && (*batch)["ts"] == 2.5 && (*batch)["data_parallel_rank"] == 3;
        for (const auto& event : (*batch)["events"])
            if (event["type"] == "BlockStored") {
                const bool known = event["parent_block_hash"].is_null() ||
                                   blocks.contains(event["parent_block_hash"].get<std::uint64_t>());
                sound = sound && known && event["block_size"] == 16 && event["medium"] == "CPU" &&
                        blocks
                            .emplace(event["block_hashes"][0].get<std::uint64_t>(),
                                     block{event["parent_block_hash"], event["token_ids"].get<std::vector<int>>()})
                            .second;
            } else if (event["type"] == "BlockRemoved") {
                sound = sound && blocks.erase(event["block_hashes"][0].get<std::uint64_t>()) == 1;
            } else {
                others.push_back(event);
            }
    }
};

kv::observer::events to(router& reader, bool routers_only) {
    return {.write = [&](std::string_view line) { reader.read(line); },
            .seconds = [] { return 2.5; },
            .routers_only = routers_only,
            .rank = 3};
}

} // namespace

TEST_CASE("a router knows the blocks of a cache from its events alone") {
    router reader;
    auto cache = kv::make_cache({small, {8 * kv::codec::f32{}.open(small).page_bytes()}}, to(reader, true));
    for (int round = 0; round < 300; ++round) {
        auto tokens = counted(round % 3, 16 * (1 + static_cast<std::size_t>(round) % 3));
        tokens.push_back(kv::token_id{round});
        auto found = match_in(cache, tokens);
        const auto plan = plan_of(cache, found);
        past known;
        for (std::size_t i = 0; i < plan.first; ++i)
            known.push(tokens[i]);
        auto sequence = open_at(cache, std::move(found), plan);
        REQUIRE(append(cache, sequence, known, std::span(tokens).subspan(plan.first)));
        if (round % 4 == 0) { // the same page from another sequence
            auto twin = cache.open();
            past again;
            if (append(cache, twin, again, tokens))
                CHECK(cache.check());
        }
        REQUIRE(reader.sound);
        for (const auto& [hash, block] : reader.blocks) {
            std::vector<kv::token_id> prompt;
            for (auto at = reader.blocks.find(hash);;) {
                for (auto token = at->second.tokens.rbegin(); token != at->second.tokens.rend(); ++token)
                    prompt.insert(prompt.begin(), kv::token_id{*token});
                if (at->second.parent.is_null())
                    break;
                at = reader.blocks.find(at->second.parent.get<std::uint64_t>());
                REQUIRE(at != reader.blocks.end());
            }
            REQUIRE(cache.lookup(prompt).cached_tokens == prompt.size());
        }
    }
    CHECK(reader.blocks.size() > 3);
    CHECK(reader.others.empty());
}

TEST_CASE("hits and copies are reported to observers that want them") {
    router reader;
    auto cache = kv::make_cache({small, {8 * kv::codec::f32{}.open(small).page_bytes()}}, to(reader, false));
    past known;
    auto sequence = cache.open();
    REQUIRE(append(cache, sequence, known, counted(0, 40)));
    auto fork = sequence.fork(36);
    past forked = known.first(36);
    REQUIRE(append(cache, fork, forked, counted(9, 1)));
    CHECK(match_in(cache, counted(0, 34)).tokens() == 34);
    REQUIRE(reader.others.size() == 2);
    CHECK(reader.others[0]["type"] == "BlockCopied");
    CHECK(reader.others[0]["tokens"] == 4);
    CHECK(reader.others[1]["type"] == "BlockHit");
    CHECK(reader.others[1]["block_hashes"].size() == 2);
    for (const auto& hash : reader.others[1]["block_hashes"])
        CHECK(reader.blocks.contains(hash.get<std::uint64_t>()));
    CHECK(reader.others[1]["of"] == 34);
    CHECK(reader.sound);
}
