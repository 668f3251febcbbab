// SPDX-License-Identifier: MIT
#include <cstddef>

extern "C" {
bool checked_checks();
bool unchecked_checks();
std::size_t checked_lanes();
std::size_t unchecked_lanes();
}

// Whether each of two objects, of which one is linked first, keeps its own behaviour.
int main() {
    return checked_checks() && !unchecked_checks() && checked_lanes() == 8 && unchecked_lanes() == LANES ? 0 : 1;
}
