// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Thread block on a device, as a kernel's body sees it. emulated_block.hpp documents the members.
class cuda_block {
public:
    template <class T>
    class registers {
    public:
        [[nodiscard]] __device__ __forceinline__ T& operator[](unsigned) { return own_; }

    private:
        T own_ = {};
    };

    [[nodiscard]] __device__ __forceinline__ std::uint64_t block() const { return blockIdx.x; }
    [[nodiscard]] __device__ __forceinline__ unsigned threads() const { return blockDim.x; }

    template <class T>
    [[nodiscard]] __device__ __forceinline__ registers<T> own() const {
        return {};
    }
    template <class T>
    [[nodiscard]] __device__ __forceinline__ T* shared(std::size_t offset, std::size_t) const {
        extern __shared__ uint4 kvcache_shared_memory[];
        return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(kvcache_shared_memory) + offset);
    }

    template <class Phase>
    __device__ __forceinline__ void each(Phase&& phase) const {
        phase(threadIdx.x);
        __syncthreads();
    }
    template <class Phase>
    __device__ __forceinline__ void alone(Phase&& phase) const {
        phase(threadIdx.x);
    }
    __device__ __forceinline__ void barrier() const { __syncthreads(); }

    __device__ __forceinline__ void copy_async(void* to, const void* from, bool whole) const {
        const auto target = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(from), "r"(whole ? 16 : 0)
                     : "memory");
    }
    __device__ __forceinline__ void commit() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
    template <int Left>
    __device__ __forceinline__ void arrive() const {
        asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
        __syncthreads();
    }
};

namespace detail {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::threads) run_kernel(const __grid_constant__ Kernel kernel) {
    cuda_block group;
    kernel(group);
}

} // namespace detail

}}} // namespace kvcache::cuda
