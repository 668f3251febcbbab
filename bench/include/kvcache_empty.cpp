// SPDX-License-Identifier: MIT
// flags: -march=native
// limit: 2.5
#include <kvcache/kvcache.hpp>

int main() {}
