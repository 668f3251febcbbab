// SPDX-License-Identifier: MIT
// Files with one fault, and calls that fail while they are read: each is refused with its field's name, and no row of
// a cache is wrong.
#include <kvcache/session/snapshot.hpp>
#include <kvcache/testing/fault_injecting.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cache/past_rows.hpp"
#include "model/huggingface/files.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using namespace testing_rows;

std::string saved(const tokens& said) {
    auto cache = made(8);
    auto sequence = cache.open();
    REQUIRE(extend(cache, sequence, said));
    std::string all;
    REQUIRE(kv::write_snapshot(cache, sequence, {.next = 1, .pending = {kv::token_id{3}}}, "",
                               [&](auto pieces) -> kv::result<void> {
                                   for (const auto piece : pieces)
                                       all.append(reinterpret_cast<const char*>(piece.data()), piece.size());
                                   return {};
                               }));
    return all;
}

// A stream that ends early, like a pipe whose writer died, or that fails.
class breaking : public std::stringbuf {
public:
    breaking(const std::string& all, std::size_t good) : std::stringbuf(all), good_(good) {}

protected:
    std::streamsize xsgetn(char* to, std::streamsize count) override {
        const auto left = static_cast<std::streamsize>(good_);
        if (count > left)
            throw std::ios_base::failure("it cannot be read"); // sets badbit
        good_ -= static_cast<std::size_t>(count);
        return std::stringbuf::xsgetn(to, count);
    }
    int_type underflow() override { throw std::ios_base::failure("it cannot be read"); }

private:
    std::size_t good_;
};

// Reads files with one fault each, `faults` times. The seed selects the part with the fault.
void strike(std::uint64_t faults) {
    const testing_files::temporary_directory directory;
    const auto file = directory.path() / "saved";
    const tokens said = some(45, 1); // two pages and a part
    const std::string sound = saved(said), others = saved(some(45, 2));
    auto cache = made(6);
    auto short_of = made(6, kv::testing::fault_injecting_storage<>{.every = 2});
    kv::testing::detail::choices choose(11);
    std::map<std::string, std::uint64_t> refused;
    const auto before = cache.stats();
    std::uint64_t struck = 0, harmless = 0;
    while (struck < faults) {
        std::string bad = sound;
        const auto place = static_cast<std::size_t>(choose.below(sound.size()));
        const auto kind = choose.below(10);
        bool streamed = false, fails = false;
        if (kind < 3) { // any bit of the header and the table, or of the file
            const std::size_t at = kind == 0 ? place % 512 : place;
            bad[at] = static_cast<char>(bad[at] ^ (1 << choose.below(8)));
        } else if (kind == 3) {
            bad.resize(place);
        } else if (kind == 4) {
            bad.append(1 + choose.below(300), static_cast<char>(choose.below(256)));
        } else if (kind == 5) { // a disk block that was not written, or belongs to another file
            const std::size_t from = place / 64 * 64, size = std::min<std::size_t>(64, sound.size() - from);
            if (choose.below(2) == 0)
                std::fill_n(bad.begin() + static_cast<std::ptrdiff_t>(from), size, '\0');
            else
                bad.replace(from, size, others, from, size);
        } else if (kind == 6) { // two swapped blocks
            const std::size_t a = place / 64 * 64, b = choose.below(sound.size() / 64) * 64;
            if (a + 64 <= sound.size())
                std::swap_ranges(bad.begin() + static_cast<std::ptrdiff_t>(a),
                                 bad.begin() + static_cast<std::ptrdiff_t>(a) + 64,
                                 bad.begin() + static_cast<std::ptrdiff_t>(b));
        } else if (kind == 7) {
            bad.erase(place, 1 + choose.below(100));
        } else if (kind == 8) {
            streamed = fails = true;
        } else {
            fails = true;
        }
        if (!fails && bad == sound) { // the swapped blocks were equal
            ++harmless;
            continue;
        }
        ++struck;
        const auto tell = [&](const auto& read) {
            REQUIRE_FALSE(read.has_value());
            REQUIRE_FALSE(read.error().field.empty());
            REQUIRE_FALSE(read.error().message.empty());
            ++refused[read.error().field];
        };
        if (streamed) {
            breaking broken(sound, place);
            std::istream from(&broken);
            tell(kv::load_snapshot(cache, from, std::size_t{1} << 20));
        } else if (fails) {
            if (choose.below(2) == 0) {
                tell(kv::load_snapshot(cache, directory.path() / "not there"));
            } else {
                directory.write("saved", sound);
                tell(kv::load_snapshot(short_of, file));
                REQUIRE(short_of.stats().in_use == 0);
            }
        } else {
            directory.write("saved", bad);
            tell(kv::load_snapshot(cache, file));
        }
        REQUIRE(cache.stats() == before);
        if (struck % 100 == 0) {
            REQUIRE(cache.check());
            REQUIRE(short_of.check());
        }
    }
    std::uint64_t all = 0;
    for (const auto& [field, count] : refused) {
        UNSCOPED_INFO(field << ": " << count);
        all += count;
    }
    CHECK(all == faults);
    CHECK(refused.size() > 10); // for many reasons
    CHECK(harmless < faults / 10);
    directory.write("saved", sound);
    const auto read = kv::load_snapshot(cache, file);
    REQUIRE(read);
    CHECK(std::ranges::equal(read->sequence.tokens(), said));
    CHECK(right(cache, read->sequence));
    CHECK(cache.check());
}

} // namespace

TEST_CASE("single faults of files are refused by name, and change nothing") {
    strike(1000);
}

TEST_CASE("ten thousand single faults of files are refused by name, and change nothing", "[.long]") {
    strike(10000);
}
