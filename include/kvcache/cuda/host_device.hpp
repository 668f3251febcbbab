// SPDX-License-Identifier: MIT
#pragma once

/// Qualifiers for functions that run on the host and, under nvcc, on the device: arithmetic and kernel bodies. With
/// other compilers they are just `inline`. KVCACHE_DEVICE_UNROLL marks loops whose arrays have to stay in registers.
#if defined(__CUDACC__)
#define KVCACHE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define KVCACHE_HOST_DEVICE inline
#endif

#if defined(__CUDA_ARCH__)
#define KVCACHE_DEVICE_UNROLL _Pragma("unroll")
#define KVCACHE_DEVICE_UNROLL_4 _Pragma("unroll 4")
#else
#define KVCACHE_DEVICE_UNROLL
#define KVCACHE_DEVICE_UNROLL_4
#endif
