// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <exception>
#include <new>

namespace support {

/// Runs the body of a program. Reports an exception on standard error; the exit status is 1 then.
template <class Body>
int guarded(const char* program, Body body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "%s: out of memory\n", program);
    } catch (const std::exception& fault) {
        std::fprintf(stderr, "%s: %s\n", program, fault.what());
    } catch (...) {
        std::fprintf(stderr, "%s: an exception of no known type\n", program);
    }
    return 1;
}

} // namespace support
