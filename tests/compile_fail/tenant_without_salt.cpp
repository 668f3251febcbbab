// SPDX-License-Identifier: MIT
// message: tenant_salt
#include <kvcache/cache/config.hpp>

// A string converts to a salt only explicitly.
#ifdef KVCACHE_MUST_FAIL
const kvcache::tenant_salt salt = "mine";
#else
const kvcache::tenant_salt salt("mine");
#endif
