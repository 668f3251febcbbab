// SPDX-License-Identifier: MIT
#include <kvcache/eviction/fifo.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/s3_fifo.hpp>
#include <kvcache/testing/tier_conformance.hpp>
#include <kvcache/tier/lmdb.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "model/huggingface/files.hpp"
#include <catch2/catch.hpp>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kv = kvcache;
namespace conformance = kvcache::testing::detail;

namespace {

using testing_files::temporary_directory;

template <class Eviction = kv::eviction::lru>
kv::tier::lmdb<Eviction> small(const std::filesystem::path& directory) {
    return {.directory = directory,
            .bytes = std::size_t{1} << 20,
            .records = 200,
            .queue_bytes = std::size_t{1} << 20,
            .sync = kv::tier::sync_policy::by_the_system,
            .gather = std::chrono::milliseconds(1)};
}

// A writer process that runs until it is killed.
template <class Work>
::pid_t begin(Work work) {
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        work();
        ::_exit(0);
    }
    return child;
}

void end(::pid_t child, int signal) {
    if (signal != 0)
        ::kill(child, signal);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (signal == 0)
        REQUIRE(status == 0);
    else
        REQUIRE(WIFSIGNALED(status)); // otherwise it ended by itself after a failure
}

// Kills two writers and a reader of one store at random moments, and checks the store.
void kill_writers(int rounds) {
    const temporary_directory directory;
    const auto how = small(directory.path());
    std::mt19937 dice(5);
    for (int round = 0; round < rounds; ++round) {
        const auto work = [&](std::uint64_t seed, bool writes) {
            return begin([&, seed, writes] {
                auto tier = how.open();
                conformance::choices choose(seed);
                for (;;) {
                    if (writes)
                        static_cast<void>(conformance::put_record(tier, choose.below(400)));
                    if (conformance::read_record(tier, choose.below(400)) == conformance::tier_answer::wrong)
                        ::_exit(1);
                    if (writes && choose.below(3) == 0)
                        static_cast<void>(tier.flush());
                }
            });
        };
        const auto first = static_cast<std::uint64_t>(3 * round);
        const ::pid_t children[] = {work(first, true), work(first + 1, true), work(first + 2, false)};
        std::this_thread::sleep_for(std::chrono::microseconds(dice() % 60000));
        for (const ::pid_t child : children)
            end(child, SIGKILL);
        auto tier = how.open();
        REQUIRE(tier.status());
        REQUIRE_FALSE(tier.damage());
        for (std::uint64_t n = 0; n < 400; n += 7) {
            const auto answer = conformance::read_record(tier, n);
            CHECK((answer == conformance::tier_answer::right || answer == conformance::tier_answer::miss));
        }
        REQUIRE(conformance::put_record(tier, 500 + first));
        REQUIRE(tier.flush());
        CHECK(tier.contains(conformance::tier_name(500 + first).name));
    }
}

} // namespace

TEST_CASE("a tier on the disk passes the conformance tests under every eviction, durability and budget") {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        const temporary_directory a, b, c, d;
        CHECK(kv::testing::tier_conformance(small(a.path()), seed).empty());
        auto safe = small<kv::eviction::s3_fifo>(b.path());
        safe.sync = kv::tier::sync_policy::every_commit;
        safe.bytes = 40000;
        CHECK(kv::testing::tier_conformance(safe, seed).empty());
        auto few = small<kv::eviction::fifo>(c.path());
        few.records = 3;
        few.sync = kv::tier::sync_policy::all_but_last;
        CHECK(kv::testing::tier_conformance(few, seed).empty());
        auto none = small(d.path());
        none.records = 0;
        CHECK(kv::testing::tier_conformance(none, seed).empty());
    }
}

TEST_CASE("records and their order of use survive a restart") {
    const temporary_directory directory;
    auto how = small(directory.path());
    how.bytes = 5 * kv::tier::lmdb_weight(9016);
    const auto fits = [&](std::uint64_t n) { return kv::tier::lmdb_weight(conformance::tier_record(n).size()); };
    std::size_t used = 0;
    std::uint64_t count = 0;
    {
        auto tier = how.open();
        for (; used + fits(count) <= how.bytes; used += fits(count++))
            REQUIRE(conformance::put_record(tier, count));
        REQUIRE(tier.flush());
        CHECK(tier.counts().records == count);
        CHECK(tier.counts().bytes == used);
        CHECK(conformance::read_record(tier, 0) == conformance::tier_answer::right); // now the most recently used
        REQUIRE(tier.flush());
    }
    auto tier = how.open();
    REQUIRE(conformance::put_record(tier, count));
    REQUIRE(tier.flush());
    CHECK(tier.counts().evicted >= 1);
    CHECK(tier.counts().bytes <= how.bytes);
    CHECK(tier.contains(conformance::tier_name(0).name));
    CHECK_FALSE(tier.contains(conformance::tier_name(1).name));
    for (std::uint64_t n = 0; n <= count; ++n)
        if (tier.contains(conformance::tier_name(n).name))
            CHECK(conformance::read_record(tier, n) == conformance::tier_answer::right);
}

TEST_CASE("processes share a store, see one another's records and keep one budget") {
    const temporary_directory directory;
    auto how = small(directory.path());
    how.bytes = 200000;
    std::vector<::pid_t> writers;
    for (std::uint64_t w = 0; w < 3; ++w)
        writers.push_back(begin([&] {
            auto tier = how.open();
            conformance::choices choose(w);
            bool right = tier.status().has_value();
            for (int i = 0; i < 150 && right; ++i) {
                const std::uint64_t n = choose.below(60);
                if (choose.below(3) == 0)
                    right = conformance::read_record(tier, n) != conformance::tier_answer::wrong;
                else
                    right = conformance::put_record(tier, n) && (i % 10 != 0 || tier.flush());
            }
            if (!right || !tier.flush())
                ::_exit(1);
        }));
    for (const ::pid_t writer : writers)
        end(writer, 0);
    auto tier = how.open();
    REQUIRE(conformance::put_record(tier, 1000));
    REQUIRE(tier.flush());
    const auto now = tier.counts();
    CHECK(now.bytes <= how.bytes);
    CHECK(now.records > 5);
    std::size_t there = 0;
    for (std::uint64_t n = 0; n < 60; ++n) {
        const auto answer = conformance::read_record(tier, n);
        CHECK((answer == conformance::tier_answer::right || answer == conformance::tier_answer::miss));
        there += answer == conformance::tier_answer::right;
    }
    CHECK(there + 1 == now.records);
}

TEST_CASE("a store whose users are killed opens, and every record in it is whole") {
    kill_writers(12);
}

TEST_CASE("a store whose users are killed five hundred times opens, and every record in it is whole", "[.long]") {
    kill_writers(500);
}

TEST_CASE("a store that cannot be opened misses, and reports why") {
    const temporary_directory directory;
    directory.write("taken", "a file");
    auto tier = small(directory.path() / "taken").open();
    REQUIRE_FALSE(tier.status());
    CHECK(tier.status().error().code == kv::error_code::io);
    CHECK_FALSE(conformance::put_record(tier, 1));
    CHECK(conformance::read_record(tier, 1) == conformance::tier_answer::failed);
    CHECK_FALSE(tier.contains(conformance::tier_name(1).name));
    CHECK_FALSE(tier.flush());
    CHECK(tier.counts().failures == 2);
}

TEST_CASE("a file that is no LMDB store is set aside under the first free name, and an empty store takes its place") {
    const temporary_directory directory;
    for (const char* name : {"data.mdb.damaged-1", "data.mdb.damaged-2"}) {
        const std::string foreign(8192, 'x');
        directory.write("data.mdb", foreign);
        auto tier = small(directory.path()).open();
        REQUIRE(tier.status());
        REQUIRE(tier.damage());
        CHECK(tier.damage()->code == kv::error_code::malformed);
        CHECK(tier.damage()->message.ends_with((directory.path() / name).string()));
        std::ifstream aside(directory.path() / name, std::ios::binary);
        CHECK(std::string(std::istreambuf_iterator<char>(aside), {}) == foreign);
        REQUIRE(conformance::put_record(tier, 1));
        REQUIRE(tier.flush());
        CHECK(conformance::read_record(tier, 1) == conformance::tier_answer::right);
    }
    auto tier = small(directory.path()).open();
    CHECK_FALSE(tier.damage());
    CHECK(tier.counts().records == 1);
}

TEST_CASE("a link or a pipe in place of a file of a store is refused, and its target unchanged") {
    for (const std::string name : {"data.mdb", "lock.mdb"}) {
        const temporary_directory directory, other;
        other.write("target", "precious");
        std::filesystem::create_symlink(other.path() / "target", directory.path() / name);
        auto tier = small(directory.path()).open();
        REQUIRE_FALSE(tier.status());
        CHECK(tier.status().error().field == name);
        CHECK(std::filesystem::file_size(other.path() / "target") == 8);
        CHECK_FALSE(conformance::put_record(tier, 1));

        std::filesystem::remove(directory.path() / name);
        REQUIRE(::mkfifo((directory.path() / name).c_str(), 0600) == 0);
        auto again = small(directory.path()).open();
        REQUIRE_FALSE(again.status());
        CHECK(again.status().error().field == name);
    }
}

TEST_CASE("a store is not checked while a process has it open, and its directory is its owner's") {
    const temporary_directory directory;
    const auto place = directory.path() / "store";
    auto tier = small(place).open();
    REQUIRE(tier.status());
    CHECK((std::filesystem::status(place).permissions() & std::filesystem::perms(0077)) ==
          std::filesystem::perms::none);
    REQUIRE(conformance::put_record(tier, 1));
    REQUIRE(tier.flush());
    { // damages a meta page
        std::fstream file(place / "data.mdb", std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(16);
        file.put('x');
    }
    end(begin([&] {
            auto other = small(place).open();
            if (other.damage())
                ::_exit(1);
        }),
        0);
    CHECK_FALSE(std::filesystem::exists(place / "data.mdb.damaged-1"));
}

TEST_CASE("records that find the queue full are dropped and counted") {
    const temporary_directory directory;
    auto how = small(directory.path());
    how.queue_bytes = 10;
    auto tier = how.open();
    CHECK(conformance::put_record(tier, 1));
    REQUIRE(tier.flush());
    CHECK(tier.counts().dropped == 1);
    CHECK(tier.counts().records == 0);
}
