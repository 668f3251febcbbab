// SPDX-License-Identifier: MIT
#pragma once

/// For what runs on the host and, under nvcc, on the device: the arithmetic and the bodies of kernels. Under another
/// compiler both are empty. KVCACHE_HOST_DEVICE_BODY stands before the `template` of a body that is handed a group of
/// either side, so that nvcc does not ask the other side's group for it.
#if defined(__CUDACC__)
#define KVCACHE_HOST_DEVICE __host__ __device__ __forceinline__
#define KVCACHE_HOST_DEVICE_BODY _Pragma("nv_exec_check_disable")
#define KVCACHE_UNROLL _Pragma("unroll")
#define KVCACHE_UNROLL_4 _Pragma("unroll 4")
#else
#define KVCACHE_HOST_DEVICE inline
#define KVCACHE_HOST_DEVICE_BODY
#define KVCACHE_UNROLL
#define KVCACHE_UNROLL_4
#endif
