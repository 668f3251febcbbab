// SPDX-License-Identifier: MIT
// flags: -march=native
#include <kvcache/model.hpp>

int main() {}
