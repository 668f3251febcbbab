// SPDX-License-Identifier: MIT
#include <kvcache/index/all.hpp>
#include <kvcache/testing/index_conformance.hpp>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

enum class fault { none, whole_pages_only, silent_end, hides_who_left, forgets_parents };

/// The radix index, with a fault.
template <fault Fault>
struct faulty {
    using role = kv::index_role;
    struct state {
        kv::index::radix::state inner;
        std::size_t page_tokens;
        [[nodiscard]] kv::index_match match(std::span<const kv::token_id> tokens) const {
            auto found = inner.match(tokens);
            if (Fault == fault::whole_pages_only && found.tokens % page_tokens != 0) {
                found.tokens -= found.tokens % page_tokens;
                found.pages.pop_back();
            }
            if (Fault == fault::silent_end)
                found.stored.reset();
            return found;
        }
        kv::insertion insert(std::optional<kv::page_id> parent, std::span<const kv::token_id> run, kv::page_id page) {
            auto done = inner.insert(parent, run, page);
            if (Fault == fault::hides_who_left && done.what == kv::insertion::outcome::inserted)
                done.other.reset();
            return done;
        }
        void erase(kv::page_id page) { inner.erase(page); }
        [[nodiscard]] bool contains(kv::page_id page) const { return inner.contains(page); }
        [[nodiscard]] bool leaf(kv::page_id page) const { return inner.leaf(page); }
        [[nodiscard]] std::optional<kv::page_id> parent(kv::page_id page) const {
            return Fault == fault::forgets_parents ? std::nullopt : inner.parent(page);
        }
        [[nodiscard]] std::span<const kv::token_id> run(kv::page_id page) const { return inner.run(page); }
    };
    [[nodiscard]] state open(kv::page_shape shape, std::size_t pages) const {
        return {kv::index::radix{}.open(shape, pages), shape.tokens};
    }
};

} // namespace

TEMPLATE_LIST_TEST_CASE("index policies pass the conformance tests", "", kv::index_policies) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        INFO("seed " << seed);
        CHECK(kv::testing::index_conformance(TestType{}, seed) == kv::testing::violations{});
    }
}

TEST_CASE("the conformance tests of an index find faults") {
    CHECK(kv::testing::index_conformance(faulty<fault::none>{}, 1).empty());
    CHECK_FALSE(kv::testing::index_conformance(faulty<fault::whole_pages_only>{}, 1).empty());
    CHECK_FALSE(kv::testing::index_conformance(faulty<fault::silent_end>{}, 1).empty());
    CHECK_FALSE(kv::testing::index_conformance(faulty<fault::hides_who_left>{}, 1).empty());
    CHECK_FALSE(kv::testing::index_conformance(faulty<fault::forgets_parents>{}, 1).empty());
}
