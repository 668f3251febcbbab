// SPDX-License-Identifier: MIT
// message: a storage and a codec of one kind
#include <kvcache/cache/compose.hpp>
#include <kvcache/cuda/device_storage.hpp>
#include <kvcache/cuda/emulated_device.hpp>
#include <kvcache/device/device_rows.hpp>

namespace cuda = kvcache::cuda;

#ifdef KVCACHE_MUST_FAIL
using mine = kvcache::cache<cuda::device_rows>; // over the heap
#else
using mine = kvcache::cache<cuda::device_rows, cuda::device_storage<cuda::emulated_device>>;
#endif

static_assert(!mine::has_tier);
