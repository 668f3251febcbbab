// SPDX-License-Identifier: MIT
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/record/record.hpp>
#include <kvcache/testing/role_conformance.hpp>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "record/records.hpp"
#include "support/folders.hpp"
#include <catch2/catch.hpp>

using namespace record_tests;

namespace {

// Parses a record and checks every part, as a reader does. Returns the name of the failing field, or "".
std::string fault(std::span<const std::byte> all, const std::string& secret) {
    const kv::record_authenticator auth(secret);
    const auto read = kv::record::parse(all, auth);
    if (!read) {
        CHECK(read.error().message.starts_with(read.error().field + ": "));
        return read.error().field;
    }
    for (const auto& part : read->parts())
        if (auto sound = kv::record::sound(part, part.bytes, auth); !sound)
            return sound.error().field;
    if (auto own = read->made_under(kv::record_names(golden_identity(), secret)); !own)
        return own.error().field;
    return {};
}

bytes golden(const char* name) {
    std::ifstream in(test_folders::project() / "tests/golden" / name, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const auto all = std::as_bytes(std::span(text));
    return {all.begin(), all.end()};
}

} // namespace

// tools/goldens/record.py wrote the files from docs/format.md alone.
TEST_CASE("records are, byte for byte, those that another implementation writes") {
    CHECK(page_record("a secret") == golden("page.record"));
    CHECK(sequence_record("a secret") == golden("sequence.record"));
    CHECK(chunk_record("a secret") == golden("chunk.record"));
    CHECK(block_record("a secret") == golden("block.record"));
}

TEST_CASE("what was written is what is read") {
    for (const std::string secret : {"", "a secret"}) {
        const kv::record_names names(golden_identity(), secret);
        const kv::record_authenticator auth(secret);
        const bytes all = sequence_record(secret);
        CHECK(fault(all, secret).empty());
        const auto read = kv::record::parse(all, auth);
        REQUIRE(read);
        CHECK(read->kind() == kv::record_kind::sequence);
        CHECK(read->first() == 0);
        CHECK(read->tokens().size() == 17);
        CHECK(kvcache::ranges::equal(golden_run(), std::span(read->tokens()).first(16)));
        CHECK(read->tokens().back() == kv::token_id{5});
        CHECK(read->before() == names.root());
        CHECK(read->identity() == names.fields());
        REQUIRE(read->parts().size() == 4);
        CHECK(kvcache::ranges::equal(read->part(kv::part_kind::page, 0)->bytes, golden_page()));
        CHECK(read->part(kv::part_kind::exact, 1)->rows == 1);
        CHECK(read->part(kv::part_kind::exact, 0) == nullptr);
        for (const auto& part : read->parts())
            CHECK((part.bytes.data() - all.data()) % 64 == 0);
        CHECK(kv::record::parse(page_record(secret), auth)->first() == 16);
    }
}

TEST_CASE("a record of the first format is refused by name") {
    bytes all = page_record("");
    kv::store_little<std::uint32_t>(all, kv::record_layout::format, 1);
    const auto read = kv::record::parse(all, kv::record_authenticator(""));
    REQUIRE_FALSE(read.has_value());
    CHECK(read.error().code == kv::error_code::unsupported);
    CHECK(read.error().message == "format: the record is of format 1, and this build reads format 2");
}

TEST_CASE("every flipped bit is refused by name") {
    for (const std::string secret : {"", "a secret"})
        for (bytes all : {page_record(secret), sequence_record(secret), chunk_record(secret), block_record(secret)}) {
            std::set<std::string> named;
            for (std::size_t bit = 0; bit < 8 * all.size(); ++bit) {
                all[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
                const std::string field = fault(all, secret);
                if (field.empty())
                    FAIL("bit " << bit << " may be flipped");
                named.insert(field);
                all[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
            }
            for (const char* field : {"magic", "format", "kind", "seal", "parts", "header_bytes", "total_bytes",
                                      "tokens_offset", "identity_offset", "parts_offset", "header"})
                CHECK(named.contains(field));
            CHECK((named.contains("page") || named.contains("block")));
        }
}

TEST_CASE("every truncation and every byte more is refused by name") {
    for (bytes all : {page_record(""), sequence_record(""), chunk_record(""), block_record("")}) {
        for (std::size_t size = 0; size < all.size(); ++size) {
            const bytes part(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size)); // a copy, for the sanitizer
            const std::string field = fault(part, "");
            if (field != (size < 256 ? "header" : "total_bytes"))
                FAIL("cut to " << size << " bytes it is refused by " << field);
        }
        all.push_back({});
        CHECK(fault(all, "") == "total_bytes");
    }
}

TEST_CASE("a record of another identity is refused by the field that differs") {
    std::size_t differing = 0;
    for (const std::string secret : {"", "a secret"}) {
        const kv::record_names own(kv::identity{}, secret);
        for (const auto& [field, id] : kv::testing::changed_identities()) {
            const auto read = kv::record::parse(page_record(secret, id), kv::record_authenticator(secret));
            REQUIRE(read);
            const auto refused = read->made_under(own);
            REQUIRE_FALSE(refused);
            CHECK(refused.error().code == kv::error_code::mismatched);
            CHECK(refused.error().field == field);
            CHECK(read->made_under(kv::record_names(id, secret)));
            ++differing;
        }
    }
    std::size_t fields = 0;
    kv::for_each_field(kv::identity{}, [&](const char*, const auto&) { ++fields; });
    CHECK(differing == 2 * fields);
}

TEST_CASE("a record under another key, or under none, is refused") {
    CHECK(fault(page_record("a secret"), "") == "seal");
    CHECK(fault(page_record(""), "a secret") == "seal");
    CHECK(fault(page_record("a secret"), "another") == "header");
    const auto read = kv::record::parse(page_record("a secret"), kv::record_authenticator("a secret"));
    REQUIRE(read);
    CHECK(read->made_under(kv::record_names(golden_identity(), "another")).error().field == "tenant");
    auto nobodys = golden_identity();
    nobodys.tenant.clear();
    const auto other = kv::record::parse(page_record("", nobodys), kv::record_authenticator(""));
    CHECK(other->made_under(kv::record_names(nobodys, "a secret")).error().field == "tenant");
}

TEST_CASE("a salt cannot be read in a record, and names depend on all that comes before") {
    const bytes all = page_record("a secret");
    const std::string salt = "alice";
    const auto found = std::search(all.begin(), all.end(), salt.begin(), salt.end(),
                                   [](std::byte b, char c) { return b == static_cast<std::byte>(c); });
    CHECK(found == all.end());

    const kv::record_names names(golden_identity(), "k"), other(golden_identity(), "l");
    const auto run = golden_run();
    const auto first = names.chain(names.root(), run);
    CHECK(first != other.chain(names.root(), run));
    CHECK(first != names.chain(other.root(), run));
    CHECK(first != names.chain(names.root(), std::span(run).first(15)));
    CHECK(names.chain(first, run) != first);
    CHECK(names.chunk(0, run) != names.chunk(1, run));
    CHECK(names.chunk(0, run) != other.chunk(0, run));
    CHECK(names.chunk(0, run) != first);
    CHECK(names.of(run, 16) == first);
}
