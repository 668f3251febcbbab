// SPDX-License-Identifier: MIT
#include <kvcache/cache/invariants.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/index/radix.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

[[nodiscard]] std::string wrong_with(const kv::index::radix::state& index, const kv::sequence_state& state) {
    kv::invariant_checker counted(index, 16, 4);
    const auto sound = counted.count(state);
    return sound ? "" : sound.error().message;
}

} // namespace

TEST_CASE("an audit finds what is wrong with a sequence") {
    auto index = kv::index::radix{}.open({.tokens = 16}, 4);
    const std::vector<kv::token_id> run(16, kv::token_id{3});
    (void)index.insert({}, run, kv::page_id{1});

    kv::sequence_state sound;
    const std::vector<kv::token_id> twenty(20, kv::token_id{3});
    sound.tokens.assign(twenty);
    sound.table = {{.page = kv::page_id{1}, .count = 16}, {.page = kv::page_id{2}, .count = 4}};
    sound.published_pages = 1;
    CHECK(wrong_with(index, sound).empty());

    auto state = sound;
    state.tokens.truncate(19);
    CHECK(wrong_with(index, state) == "a sequence has 20 rows for 19 tokens and 0 reserved ones");
    state = sound;
    state.table[0].count = 15;
    CHECK(wrong_with(index, state) == "a sequence has a page in its middle that is not full");
    state = sound;
    auto other = twenty;
    other[7] = kv::token_id{4};
    state.tokens.assign(other);
    CHECK(wrong_with(index, state) == "a sequence and the index disagree about the tokens of page 1");
    state = sound;
    state.published_pages = 2;
    CHECK(wrong_with(index, state) == "a sequence counts on a page in the index that is not there");
}

TEST_CASE("an audit counts every holder") {
    const auto index = kv::index::radix{}.open({.tokens = 16}, 4);
    kv::invariant_checker counted(index, 16, 4);
    kv::sequence_state state;
    state.tokens.assign(std::vector<kv::token_id>(20, kv::token_id{3}));
    state.table = {{.page = kv::page_id{1}, .count = 16}, {.page = kv::page_id{2}, .count = 5}};
    state.lease.rows = 1;
    state.lease.pages_before = 2;
    state.lease.tail_before =
        kv::page_entry{.page = kv::page_id{3}, .count = 4}; // copied by the lease, and still referenced
    CHECK(counted.count(state));
    CHECK(counted.count(state));
    CHECK(kvcache::ranges::equal(counted.held(), std::vector<std::uint32_t>{0, 2, 2, 2}));
}
