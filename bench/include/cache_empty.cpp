// SPDX-License-Identifier: MIT
// limit: 1.2
#include <kvcache/cache.hpp>

int main() {}
