// SPDX-License-Identifier: MIT
// flags: -march=native
#include <kvcache/attention.hpp>

int main() {}
