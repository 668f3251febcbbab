// SPDX-License-Identifier: MIT
#include <kvcache/cache/running_states.hpp>

#include <algorithm>
#include <cstddef>

#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

void write(kv::running_states& to, int value) {
    const auto next = to.next(64);
    std::fill(next.begin(), next.end(), std::byte(value));
}
int last(const kv::running_states& of) {
    return of.last().empty() ? -1 : std::to_integer<int>(of.last()[63]);
}

} // namespace

TEST_CASE("a state is a sequence's once all rows of its lease are committed") {
    kv::running_states one;
    CHECK(last(one) == -1);
    write(one, 1);
    CHECK(last(one) == -1);
    one.rollback();
    one.commit(3, 3); // of a host that did not ask for memory
    CHECK(last(one) == -1);
    write(one, 2);
    one.commit(3, 3);
    CHECK(last(one) == 2);
    write(one, 3);
    one.commit(0, 3);
    CHECK(last(one) == 2);
    write(one, 4);
    one.commit(2, 3);
    CHECK(last(one) == -1);
}

TEST_CASE("two memories serve a sequence, and what another sequence has is not written") {
    kv::running_states one, fork;
    write(one, 1);
    one.commit(1, 1);
    const std::byte* const first = one.last().data();
    write(one, 2);
    one.commit(1, 1);
    write(one, 3);
    one.commit(1, 1);
    CHECK(one.last().data() == first);
    fork.share(one);
    for (int value = 4; value < 8; ++value) {
        write(one, value);
        one.commit(1, 1);
        CHECK(last(fork) == 3);
    }
    write(fork, 9);
    fork.commit(1, 1);
    CHECK(last(one) == 7);
    CHECK(last(fork) == 9);
    one.end();
    CHECK(last(one) == -1);
    CHECK(last(fork) == 9);
}
