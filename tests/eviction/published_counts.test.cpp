// SPDX-License-Identifier: MIT
// Misses on a disk trace, as published with libCacheSim (test/test_evictionAlgo.c at aa0fc409).
#include <kvcache/eviction/all.hpp>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <unordered_map>
#include <vector>

#include "support/folders.hpp"
#include <catch2/catch.hpp>
#include <zlib.h>

namespace kv = kvcache;

namespace {

struct request {
    std::uint64_t key;
    std::uint32_t bytes;
};

/// Requests in little-endian records of {u32 time, u64 object, u32 bytes, i64 next use}.
const std::vector<request>& trace() {
    static const std::vector<request> requests = [] {
        std::vector<request> read;
        const auto path = test_folders::data() / "traces" / "cloudPhysicsIO.oracleGeneral.bin.gz";
        if (const gzFile file = gzopen(path.c_str(), "rb")) {
            std::array<char, 24> record{};
            while (gzread(file, record.data(), record.size()) == static_cast<int>(record.size())) {
                request one{};
                std::memcpy(&one.key, record.data() + 4, sizeof(one.key));
                std::memcpy(&one.bytes, record.data() + 12, sizeof(one.bytes));
                read.push_back(one);
            }
            gzclose(file);
        }
        return read;
    }();
    return requests;
}

/// The misses at one capacity.
template <kv::eviction_policy Policy>
std::size_t misses(const Policy& policy, std::size_t capacity, double cost) {
    constexpr std::size_t slots = 50'000; // more than the trace has objects
    auto state = policy.open({.slots = slots, .bytes = capacity});
    std::unordered_map<std::uint64_t, kv::slot_id> present;
    std::vector<request> content(slots);
    std::vector<kv::slot_id> free;
    for (std::uint32_t slot = slots; slot > 0; --slot)
        free.push_back(kv::slot_id{slot - 1});
    std::size_t bytes = 0, missed = 0;
    const auto make_room = [&](auto&& wanted) {
        while (wanted()) {
            const std::optional<kv::slot_id> gone = state.victim([](kv::slot_id) { return true; });
            if (!gone)
                FAIL("nothing may leave");
            kv::evict(state, *gone);
            bytes -= content[index_of(*gone)].bytes;
            present.erase(content[index_of(*gone)].key);
            free.push_back(*gone);
        }
    };
    const auto crowded = [&] {
        if constexpr (requires { state.crowded(); })
            return state.crowded();
        else
            return false;
    };
    for (const request& one : trace()) {
        if (const auto at = present.find(one.key); at != present.end()) {
            state.touch(at->second);
            make_room(crowded);
            continue;
        }
        ++missed;
        if (one.bytes > capacity)
            continue;
        const kv::eviction_entry newcomer{.key = one.key, .bytes = one.bytes, .cost = cost};
        kv::on_miss(state, newcomer);
        make_room([&] { return crowded() || bytes + one.bytes > capacity; });
        const kv::slot_id slot = free.back();
        free.pop_back();
        state.admit(slot, newcomer);
        make_room(crowded);
        content[index_of(slot)] = one;
        present.emplace(one.key, slot);
        bytes += one.bytes;
    }
    return missed;
}

using row = std::array<std::size_t, 8>; // for 128, 256 ... 1024 MiB

template <kv::eviction_policy Policy>
row measured(const Policy& policy, double cost = 1.0) {
    row found{};
    for (std::size_t i = 0; i < found.size(); ++i)
        found[i] = misses(policy, (i + 1) * (std::size_t{128} << 20), cost);
    return found;
}

bool absent() {
    if (trace().empty())
        std::cout << "SKIPPED: no traces/cloudPhysicsIO.oracleGeneral.bin.gz in " << test_folders::data() << "\n";
    return trace().empty();
}

} // namespace

TEST_CASE("the queues miss as often as published") {
    if (absent())
        return;
    REQUIRE(trace().size() == 113'872);
    CHECK(measured(kv::eviction::lru{}) == row{93374, 89783, 83572, 81722, 72494, 72104, 71972, 71704});
    CHECK(measured(kv::eviction::fifo{}) == row{93403, 89386, 84387, 84025, 72498, 72228, 72182, 72140});
    CHECK(measured(kv::eviction::clock{}) == row{93313, 89775, 83411, 81328, 74815, 72283, 71927, 64456});
    CHECK(measured(kv::eviction::sieve{}) == row{91699, 86720, 78578, 76707, 69945, 66221, 64445, 64376});
    CHECK(measured(kv::eviction::s3_fifo{}) == row{89307, 82387, 77041, 76791, 71300, 70343, 70455, 70355});
    CHECK(measured(kv::eviction::slru{.segments = 5}) == row{89624, 86725, 82781, 80203, 75388, 65645, 59035, 56063});
}

TEST_CASE("arc misses as often as published") {
    if (absent())
        return;
    // libCacheSim moves the target by single bytes on a ghost hit.
    CHECK(measured(kv::eviction::arc{.step = 1}) == row{90252, 85861, 78168, 74297, 67381, 65685, 64439, 64772});
}

TEST_CASE("gdsf misses as often as published") {
    if (absent())
        return;
    CHECK(measured(kv::eviction::gdsf{}, 1e6) == row{89068, 84750, 74853, 70488, 67919, 64180, 61029, 58721});
}

TEST_CASE("lirs misses as often as published") {
    if (absent())
        return;
    CHECK(measured(kv::eviction::lirs{.eager_demotion = true}) ==
          row{89819, 79237, 73143, 70363, 68405, 64494, 58640, 53924});
}

TEST_CASE("lhd misses within a hundredth of what is published") {
    if (absent())
        return;
    const row published{90500, 86928, 82211, 77256, 71259, 67001, 63734, 61237};
    const row found = measured(kv::eviction::lhd{});
    for (std::size_t i = 0; i < found.size(); ++i) {
        INFO("capacity " << 128 * (i + 1) << " MiB");
        CHECK(static_cast<double>(found[i]) == Approx(static_cast<double>(published[i])).epsilon(0.01));
    }
}
