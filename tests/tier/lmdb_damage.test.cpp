// SPDX-License-Identifier: MIT
// Damage to the file of an LMDB store between two runs: no crash, no hang, no wrong row, and the tier serves
// afterwards.
#include <kvcache/testing/violations.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/lmdb.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cache/past_rows.hpp"
#include "model/huggingface/files.hpp"
#include <catch2/catch.hpp>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kv = kvcache;

namespace {

using namespace testing_rows;
using testing_files::temporary_directory;

constexpr unsigned prompts = 90;
constexpr std::size_t pages_each = 3, whole = 16 * pages_each;

kv::tier::lmdb<> damaged_store(const std::filesystem::path& directory) {
    return {.directory = directory,
            .bytes = std::size_t{4} << 20,
            .records = 200, // fewer than are written, so that there are free pages
            .queue_bytes = std::size_t{4} << 20,
            .sync = kv::tier::sync_policy::by_the_system,
            .gather = std::chrono::milliseconds(0)};
}

std::string content_of(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// A store of several transactions.
std::string sound_store() {
    const temporary_directory directory;
    {
        auto cache = made(8, damaged_store(directory.path()));
        for (unsigned i = 0; i < prompts; ++i) {
            prefill(cache, some(whole + 5, i));
            if (i % 7 == 0)
                REQUIRE(cache.tier().flush());
        }
        REQUIRE(cache.tier().flush());
        REQUIRE(cache.tier().counts().evicted > 0);
    }
    return content_of(directory.path() / "data.mdb");
}

// A changed byte of the format's number is another format, which is refused by name.
struct other_format {};

// Uses a store as a new process does. Returns whether it was damaged; throws for a wrong row, and for another format.
bool use_store(const std::filesystem::path& directory, std::uint64_t seed) {
    auto cache = made(8, damaged_store(directory));
    const auto open = cache.tier().status();
    if (!open && open.error().code == kv::error_code::unsupported && open.error().field == "format")
        throw other_format{};
    REQUIRE((open ? std::string() : open.error().message) == "");
    kv::testing::detail::choices choose(seed);
    for (int i = 0; i < 6; ++i) // most are in the store, some were evicted
        prefill(cache, some(whole + 5, static_cast<unsigned>(choose.below(prompts))));
    const tokens last = some(whole + 5, 1000 + static_cast<unsigned>(choose.below(3)));
    prefill(cache, last);
    REQUIRE(cache.tier().flush());
    REQUIRE(cache.check());
    REQUIRE(kv::tier_stats_of(cache).failed == 0);
    return cache.tier().damage().has_value();
}

enum class served { yes, set_aside, no };

// Lets a new process use the store twice. A process that takes longer than five seconds is killed.
served use_in_child(const std::filesystem::path& directory, std::uint64_t seed) {
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(5);
        try {
            const bool damaged = use_store(directory, seed);
            ::_exit(use_store(directory, seed + 1) ? 3 : damaged ? 2 : 0); // what was written to is sound
        } catch (const other_format&) {
            ::_exit(4);
        } catch (...) {
            ::_exit(1);
        }
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    UNSCOPED_INFO("the process ended with status " << status);
    return !WIFEXITED(status) || WEXITSTATUS(status) % 2 != 0 ? served::no
           : WEXITSTATUS(status) == 2                         ? served::set_aside
                                                              : served::yes;
}

// The offsets of the pages that LMDB itself reads: all but those of records.
std::vector<std::size_t> pages_of_trees(const std::string& store) {
    std::vector<std::size_t> found;
    for (std::size_t at = 0; at + 4096 <= store.size(); at += 4096) {
        const auto flags = static_cast<unsigned char>(store[at + 10]);
        if (flags == 1 || flags == 2 || flags == 8)
            found.push_back(at);
    }
    return found;
}

// A third of the changes are anywhere, a third in the pages of trees, a third in the used parts of those.
void damage_store(std::uint64_t changes, std::uint64_t truncations) {
    const std::string sound = sound_store();
    const auto trees = pages_of_trees(sound);
    REQUIRE(trees.size() > 10);
    std::uint64_t set_aside = 0;
    for (std::uint64_t i = 0; i < changes + truncations; ++i) {
        kv::testing::detail::choices choose(i);
        std::string bad = sound;
        std::size_t at = static_cast<std::size_t>(choose.below(sound.size()));
        if (i < changes) {
            const std::size_t page = trees[static_cast<std::size_t>(choose.below(trees.size()))];
            if (i % 3 == 1)
                at = page + choose.below(4096);
            if (i % 3 == 2)
                at = page + choose.below(160);
            bad[at] = static_cast<char>(bad[at] ^ static_cast<char>(1 + choose.below(255)));
        } else {
            bad.resize(at);
        }
        CAPTURE(i, at, sound.size());
        const temporary_directory directory;
        directory.write("data.mdb", bad);
        const served now = use_in_child(directory.path(), i);
        REQUIRE(now != served::no);
        set_aside += now == served::set_aside;
        REQUIRE(std::filesystem::exists(directory.path() / "data.mdb.damaged-1") == (now == served::set_aside));
    }
    CHECK(set_aside > truncations / 2);
    CHECK(set_aside < changes + truncations); // damage of a record or of a free page is none of the store
}

} // namespace

TEST_CASE("a sound LMDB store is not taken for a damaged one") {
    const temporary_directory directory;
    directory.write("data.mdb", sound_store());
    CHECK(use_in_child(directory.path(), 1) == served::yes);
}

TEST_CASE("an LMDB store whose format's number is changed is refused by name, or set aside") {
    const std::string sound = sound_store(), number = std::string("format\1", 7) + std::string(7, '\0');
    std::size_t places = 0;
    for (std::size_t at = sound.find(number); at != std::string::npos; at = sound.find(number, at + 1), ++places)
        for (std::size_t byte = 0; byte < 8; ++byte) {
            CAPTURE(at, byte);
            std::string bad = sound;
            bad[at + 6 + byte] = static_cast<char>(bad[at + 6 + byte] ^ 16);
            const temporary_directory directory;
            directory.write("data.mdb", bad);
            CHECK(use_in_child(directory.path(), 1) != served::no);
        }
    CHECK(places > 0);
}

TEST_CASE(
    "a thousand changed bytes and two hundred truncations of an LMDB file are no crash, no hang and no wrong row") {
    damage_store(1000, 200);
}

TEST_CASE("twenty thousand changed bytes of an LMDB file are no crash, no hang and no wrong row", "[.long]") {
    damage_store(20000, 1000);
}

TEST_CASE("an LMDB file that is truncated while it is open is counted as failing, and not read") {
    const temporary_directory directory;
    auto cache = made(8, damaged_store(directory.path()));
    for (unsigned i = 0; i < 10; ++i)
        prefill(cache, some(whole + 5, i));
    REQUIRE(cache.tier().flush());
    std::filesystem::resize_file(directory.path() / "data.mdb", 0);
    for (unsigned i = 0; i < 10; ++i)
        prefill(cache, some(whole + 5, i));
    CHECK_FALSE(cache.tier().flush());
    CHECK(cache.tier().counts().failures > 0);
    CHECK(cache.check());
}

TEST_CASE("a lock.mdb that is truncated while it is open is counted as failing, and not used") {
    for (const std::uintmax_t bytes : {std::uintmax_t{0}, std::uintmax_t{4096}}) {
        const temporary_directory directory;
        const ::pid_t child = ::fork(); // without the guard the system kills it
        REQUIRE(child >= 0);
        if (child == 0) {
            ::alarm(20);
            try {
                {
                    auto cache = made(8, damaged_store(directory.path()));
                    for (unsigned i = 0; i < 10; ++i)
                        prefill(cache, some(whole + 5, i));
                    REQUIRE(cache.tier().flush());
                    REQUIRE(cache.tier().status());
                    std::filesystem::resize_file(directory.path() / "lock.mdb", bytes);
                    for (unsigned i = 5; i < 15; ++i)
                        prefill(cache, some(whole + 5, i));
                    REQUIRE_FALSE(cache.tier().flush());
                    REQUIRE(cache.tier().status().error().message.find("lock.mdb") != std::string::npos);
                    REQUIRE(kv::tier_stats_of(cache).store_failures > 0);
                    REQUIRE(cache.check());
                }                                              // which closes the store
                REQUIRE_FALSE(use_store(directory.path(), 1)); // the next process finds a sound one
            } catch (...) {
                ::_exit(1);
            }
            ::_exit(0);
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CAPTURE(bytes);
        CHECK(status == 0);
    }
}

TEST_CASE("records for an LMDB directory that was renamed or removed fail, and nothing counts as stored") {
    for (const bool returns : {true, false}) {
        const temporary_directory parent;
        const auto directory = parent.path() / "store", other = parent.path() / "other";
        auto cache = made(8, damaged_store(directory));
        const auto store = [&](unsigned first) {
            const auto before = kv::tier_stats_of(cache);
            for (unsigned i = first; i < first + 10; ++i)
                prefill(cache, some(whole + 5, i));
            const bool fine = cache.tier().flush().has_value();
            const auto now = kv::tier_stats_of(cache);
            CHECK(fine == cache.tier().status().has_value());
            CHECK(fine == (now.store_failures == before.store_failures));
            return now.stored - before.stored;
        };
        CHECK(store(0) == 10 * pages_each);
        if (returns)
            std::filesystem::rename(directory, other);
        else
            std::filesystem::remove_all(directory);
        CHECK(store(20) == 0);
        CHECK(cache.tier().status().error().message.find("removed or renamed") != std::string::npos);
        CHECK(store(0) == 0); // nor records that it has
        if (returns) {
            std::filesystem::rename(other, directory);
            CHECK(store(40) == 10 * pages_each);
            const auto before = kv::tier_stats_of(cache);
            prefill(cache, some(whole + 5, 0));
            CHECK(kv::tier_stats_of(cache).loaded_tokens == before.loaded_tokens + whole);
        }
        CHECK(cache.check());
    }
}

TEST_CASE(
    "a full disk costs records, which are counted; the store stays sound, and is written again once there is room") {
    const temporary_directory directory;
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::signal(SIGXFSZ, SIG_IGN); // a file at its limit fails as on a full disk
        ::rlimit limit = {};
        ::getrlimit(RLIMIT_FSIZE, &limit);
        try {
            auto cache = made(8, damaged_store(directory.path()));
            const auto store = [&](unsigned first, ::rlim_t bytes) {
                limit.rlim_cur = bytes;
                REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
                const auto before = kv::tier_stats_of(cache);
                bool fine = true;
                for (unsigned i = first; i < first + 20; ++i) {
                    prefill(cache, some(whole + 5, i));
                    fine = cache.tier().flush().has_value() && fine;
                }
                const auto now = kv::tier_stats_of(cache);
                REQUIRE(now.handed_over - before.handed_over == 20 * pages_each);
                REQUIRE(now.stored - before.stored + now.store_failures - before.store_failures == 20 * pages_each);
                REQUIRE(fine == (now.store_failures == before.store_failures));
                return fine;
            };
            REQUIRE_FALSE(store(0, 300000));
            const auto full = kv::tier_stats_of(cache);
            REQUIRE(full.stored > 0);
            REQUIRE(store(100, limit.rlim_max));
            REQUIRE(cache.check());
        } catch (...) {
            ::_exit(1);
        }
        ::_exit(use_store(directory.path(), 1) ? 2 : 0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

namespace {

// Mounts a file system of 256 KiB over a directory, seen by this process only. Returns whether the system lets it.
bool mount_small_disk(const std::filesystem::path& directory) {
    const auto user = std::to_string(::geteuid()), group = std::to_string(::getegid());
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 " + user + " 1";
    std::ofstream("/proc/self/gid_map") << "0 " + group + " 1";
    return ::mount("small", directory.c_str(), "tmpfs", 0, "size=256k") == 0;
}

} // namespace

TEST_CASE("a store opens on a disk without room if it exists, and else fails without a crash") {
    const temporary_directory directory;
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        if (!mount_small_disk(directory.path()))
            ::_exit(77);
        const auto fill = directory.path() / "fill";
        const auto fill_disk = [&] { std::ofstream(fill, std::ios::binary) << std::string(1 << 20, 'x'); };
        try {
            fill_disk();
            {
                auto tier = damaged_store(directory.path() / "store").open();
                REQUIRE_FALSE(tier.status());
                REQUIRE(tier.status().error().field == "lmdb");
            }
            std::filesystem::remove(fill);
            {
                auto cache = made(8, damaged_store(directory.path() / "store"));
                prefill(cache, some(whole + 5, 1));
                REQUIRE(cache.tier().flush());
            }
            fill_disk();
            auto cache = made(8, damaged_store(directory.path() / "store"));
            REQUIRE(prefill(cache, some(whole + 5, 1)).loaded == whole);
            for (unsigned i = 2; i < 60; ++i)
                prefill(cache, some(whole + 5, i));
            REQUIRE_FALSE(cache.tier().flush());
            REQUIRE(kv::tier_stats_of(cache).store_failures > 0);
            REQUIRE(cache.check());
        } catch (...) {
            ::_exit(1);
        }
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        WARN("SKIPPED: this user cannot mount a small disk");
    else
        CHECK(status == 0);
}
