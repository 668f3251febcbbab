// SPDX-License-Identifier: MIT
// message: tenant_salt
#include <kvcache/cache/tenant.hpp>

// Words are no salt until somebody says that they are.
#ifdef KVCACHE_MUST_FAIL
const kvcache::tenant_salt salt = "mine";
#else
const kvcache::tenant_salt salt("mine");
#endif
