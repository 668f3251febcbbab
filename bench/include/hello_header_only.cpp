// SPDX-License-Identifier: MIT
// flags: -march=native
// limit: 15
#include "../../examples/01_hello.cpp"
