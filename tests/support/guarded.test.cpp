// SPDX-License-Identifier: MIT
#include "../../examples/support/guarded.hpp"

#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>

#include <catch2/catch.hpp>
#include <unistd.h>

namespace {

/// Returns what `body` writes to standard error.
template <class Body>
std::string error_output(Body body) {
    std::FILE* const file = std::tmpfile();
    REQUIRE(file != nullptr);
    std::fflush(stderr);
    const int before = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    body();
    std::fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    std::rewind(file);
    std::string text(200, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    return text;
}

} // namespace

TEST_CASE("no exception leaves a program") {
    int status = 0;
    CHECK(error_output([&] { status = support::guarded("one", [] { return 3; }); }).empty());
    CHECK(status == 3);
    CHECK(error_output([&] { status = support::guarded("one", []() -> int { throw std::bad_alloc(); }); }) ==
          "one: out of memory\n");
    CHECK(status == 1);
    CHECK(error_output([&] { status = support::guarded("one", []() -> int { throw std::range_error("far"); }); }) ==
          "one: far\n");
    CHECK(status == 1);
    CHECK(error_output([&] { status = support::guarded("one", []() -> int { throw 7; }); }) ==
          "one: an exception of no known type\n");
    CHECK(status == 1);
}
