// SPDX-License-Identifier: MIT
// message: KVCACHE_TARGET is for the cache alone
// flags: -DKVCACHE_TARGET=host
#include <kvcache/kernel/native.hpp>
