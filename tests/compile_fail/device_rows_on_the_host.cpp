// SPDX-License-Identifier: MIT
// message: a storage and a codec of one kind
#include <kvcache/cache/compose.hpp>
#include <kvcache/cuda/device_rows.hpp>
#include <kvcache/cuda/device_storage.hpp>
#include <kvcache/testing/emulated_device.hpp>

namespace cuda = kvcache::cuda;
namespace testing = kvcache::testing;

#ifdef KVCACHE_MUST_FAIL
using mine = kvcache::cache<cuda::device_rows>; // over the heap
#else
using mine = kvcache::cache<cuda::device_rows, cuda::device_storage<testing::emulated_device>>;
#endif

static_assert(!mine::has_tier);
