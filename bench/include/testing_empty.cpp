// SPDX-License-Identifier: MIT
// flags: -march=native
#include <kvcache/testing.hpp>

int main() {}
