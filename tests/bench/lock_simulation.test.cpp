// SPDX-License-Identifier: MIT
#include "../../bench/locking/lock_simulation.hpp"

#include <cstddef>
#include <vector>

#include <catch2/catch.hpp>

namespace {

using steps = std::vector<bench::simulated_step>;

} // namespace

TEST_CASE("one thread does one thing after another, whatever the locks") {
    const std::vector<steps> requests = {{{3.0, 1.0}, {2.0, 1.0}}, {}, {{0.0, 5.0, true}}};
    for (const std::size_t locks : {1u, 2u, 8u})
        CHECK(bench::simulate_locks(requests, 1, locks) == 12.0);
}

TEST_CASE("threads wait for a lock in the order in which they ask for it") {
    // Both ask at 1; the first works under the lock until 4 and ends; the second from 4 to 7, and again from 8 to 9.
    const std::vector<steps> requests = {{{1.0, 3.0}}, {{1.0, 3.0}, {1.0, 1.0}}};
    CHECK(bench::simulate_locks(requests, 2, 1) == 9.0);
    CHECK(bench::simulate_locks(requests, 2, 2) == 6.0); // a lock for each
}

TEST_CASE("shared work is done at the same time, exclusive work waits for it and makes it wait") {
    const std::vector<steps> readers(4, steps{{0.0, 2.0, true}});
    CHECK(bench::simulate_locks(readers, 4, 1) == 2.0);
    CHECK(bench::simulate_locks(readers, 2, 1) == 4.0);
    // A reader from 0 to 2; a writer that asks at 1 works from 2 to 5; a reader that asks at 1.5 works from 5 to 6.
    const std::vector<steps> mixed = {{{0.0, 2.0, true}}, {{1.0, 3.0}}, {{1.5, 1.0, true}}};
    CHECK(bench::simulate_locks(mixed, 3, 1) == 6.0);
}

TEST_CASE("a free thread takes the next request") {
    const std::vector<steps> requests = {{{10.0, 0.0}}, {{1.0, 0.0}}, {{1.0, 0.0}}, {{1.0, 0.0}}};
    CHECK(bench::simulate_locks(requests, 2, 1) == 10.0);
    CHECK(bench::simulate_locks(requests, 8, 1) == 10.0);
    CHECK(bench::simulate_locks({}, 2, 1) == 0.0);
}
