// SPDX-License-Identifier: MIT
// flags: -march=native -DKVCACHE_COMPILED=1
// limit: 4
#include "../../examples/01_hello.cpp"
