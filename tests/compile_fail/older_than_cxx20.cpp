// SPDX-License-Identifier: MIT
// message: C\+\+20 is needed
// flags: -std=c++17
#include <kvcache/cache.hpp>
