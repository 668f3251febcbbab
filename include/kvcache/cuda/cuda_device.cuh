// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/cuda/batched_copy.hpp>
#include <kvcache/cuda/device.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Thread block on a device, as a kernel's body sees it. testing::emulated_block documents the members.
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

/// Options of a CUDA device.
struct cuda_options {
    int ordinal = 0; ///< Index of the device in the machine.
    /// Pieces smaller than this are copied in batches of 128 by a kernel, larger ones by the copy engines,
    /// whose overhead of some microseconds a piece determines the threshold.
    std::size_t engine_bytes = std::size_t{2} << 20;
};

/// A device of the CUDA runtime. Requires: calls come from one thread at a time.
class cuda_device {
public:
    /// Errors: io, without the device or a driver; unsupported, below compute capability 8.0.
    [[nodiscard]] static result<cuda_device> open(cuda_options options = {}) {
        int count = 0;
        if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess)
            return failure(code, "cuda device");
        if (options.ordinal < 0 || options.ordinal >= count)
            return error{error_code::io, "cuda device",
                         "device " + std::to_string(options.ordinal) + " of " + std::to_string(count)};
        cudaDeviceProp properties{};
        if (const cudaError_t code = cudaGetDeviceProperties(&properties, options.ordinal); code != cudaSuccess)
            return failure(code, "cuda device");
        if (properties.major < 8)
            return error{error_code::unsupported, "compute capability",
                         std::string(properties.name) + " has compute capability " + std::to_string(properties.major) +
                             "." + std::to_string(properties.minor) + "; 8.0 is the least"};
        if (const cudaError_t code = cudaSetDevice(options.ordinal); code != cudaSuccess)
            return failure(code, "cuda device");
        return cuda_device(options, properties);
    }

    cuda_device(cuda_device&& other) noexcept
        : options_(other.options_),
          name_(std::move(other.name_)),
          shared_bytes_(other.shared_bytes_),
          streams_(std::exchange(other.streams_, {})),
          events_(std::exchange(other.events_, {})),
          pinned_(std::exchange(other.pinned_, {})) {}
    cuda_device& operator=(cuda_device&&) = delete;
    ~cuda_device() {
        for (const event_id event : all<event_id>(events_.size()))
            close(event);
        for (const stream_id stream : all<stream_id>(streams_.size()))
            close(stream);
    }

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] cudaStream_t native(stream_id stream) const { return streams_[static_cast<std::size_t>(stream)]; }
    [[nodiscard]] cudaEvent_t native(event_id event) const { return events_[static_cast<std::size_t>(event)]; }

    [[nodiscard]] result<std::byte*> allocate(std::size_t bytes) {
        void* memory = nullptr;
        if (const cudaError_t code = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)); code != cudaSuccess)
            return failure(code, "device memory", bytes);
        return static_cast<std::byte*>(memory);
    }
    [[nodiscard]] result<std::byte*> allocate_pinned(std::size_t bytes) {
        void* memory = nullptr;
        if (const cudaError_t code = cudaHostAlloc(&memory, std::max<std::size_t>(bytes, 1), cudaHostAllocDefault);
            code != cudaSuccess)
            return failure(code, "pinned memory", bytes);
        pinned_.emplace(static_cast<std::byte*>(memory), bytes);
        return static_cast<std::byte*>(memory);
    }
    void deallocate(std::byte* memory) noexcept {
        if (memory != nullptr)
            (void)cudaFree(memory);
    }
    /// Waits for the whole device first, since its kernels may still use the memory.
    void deallocate_pinned(std::byte* memory) noexcept {
        if (memory == nullptr)
            return;
        (void)cudaDeviceSynchronize();
        pinned_.erase(memory);
        (void)cudaFreeHost(memory);
    }

    [[nodiscard]] result<stream_id> open_stream() {
        cudaStream_t stream = nullptr;
        if (const cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); code != cudaSuccess)
            return failure(code, "stream");
        streams_.push_back(stream);
        return stream_id{static_cast<std::uint32_t>(streams_.size() - 1)};
    }
    [[nodiscard]] result<event_id> open_event() {
        cudaEvent_t event = nullptr;
        if (const cudaError_t code = cudaEventCreateWithFlags(&event, cudaEventDisableTiming); code != cudaSuccess)
            return failure(code, "event");
        events_.push_back(event);
        return event_id{static_cast<std::uint32_t>(events_.size() - 1)};
    }
    void close(stream_id stream) noexcept {
        if (cudaStream_t& own = streams_[static_cast<std::size_t>(stream)]; own != nullptr)
            (void)cudaStreamDestroy(std::exchange(own, nullptr));
    }
    void close(event_id event) noexcept {
        if (cudaEvent_t& own = events_[static_cast<std::size_t>(event)]; own != nullptr)
            (void)cudaEventDestroy(std::exchange(own, nullptr));
    }

    [[nodiscard]] result<void> record(event_id event, stream_id stream) {
        return checked(cudaEventRecord(native(event), native(stream)), "event");
    }
    [[nodiscard]] result<void> wait(stream_id stream, event_id event) {
        return checked(cudaStreamWaitEvent(native(stream), native(event), 0), "event");
    }
    [[nodiscard]] result<void> synchronise(stream_id stream) {
        return checked(cudaStreamSynchronize(native(stream)), "stream");
    }
    [[nodiscard]] result<void> synchronise(event_id event) {
        return checked(cudaEventSynchronize(native(event)), "event");
    }
    [[nodiscard]] result<bool> done(event_id event) {
        const cudaError_t code = cudaEventQuery(native(event));
        if (code == cudaErrorNotReady)
            return false;
        if (code != cudaSuccess)
            return failure(code, "event");
        return true;
    }

    /// Unpinned host memory is copied by the runtime, which may block the caller. Small pieces of pinned memory
    /// are copied by a kernel instead of the copy engines.
    [[nodiscard]] result<void> copy(stream_id stream, copy_way way, std::span<const copy_piece> pieces) {
        small_.clear();
        for (const copy_piece& piece : pieces) {
            if (piece.bytes == 0)
                continue;
            if (piece.bytes < options_.engine_bytes && batched_copy::takes(piece) && reaches(way, piece)) {
                small_.push_back(piece);
                if (small_.size() == batched_copy::most)
                    if (auto put = flush(stream); !put)
                        return put;
                continue;
            }
            if (auto put =
                    checked(cudaMemcpyAsync(piece.to, piece.from, piece.bytes, kind(way), native(stream)), "copy");
                !put)
                return put;
        }
        return flush(stream);
    }
    [[nodiscard]] result<void> fill(stream_id stream, std::byte* to, std::byte with, std::size_t bytes) {
        return checked(cudaMemsetAsync(to, std::to_integer<int>(with), bytes, native(stream)), "fill");
    }

    template <class Kernel>
    [[nodiscard]] result<void> launch(stream_id stream, const Kernel& kernel) {
        const std::uint64_t blocks = kernel.blocks();
        const std::size_t shared = kernel.shared_bytes();
        if (blocks == 0)
            return {};
        if (blocks > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()))
            return error{error_code::out_of_range, "launch", std::to_string(blocks) + " blocks are more than 2^31"};
        if (shared > shared_bytes_)
            return error{error_code::unsupported, "launch",
                         "a block wants " + std::to_string(shared) + " bytes of shared memory, the device has " +
                             std::to_string(shared_bytes_)};
        if (shared > 48 * 1024)
            if (auto set =
                    checked(cudaFuncSetAttribute(detail::run_kernel<Kernel>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
                            "launch");
                !set)
                return set;
        detail::run_kernel<Kernel><<<static_cast<unsigned>(blocks), Kernel::threads, shared, native(stream)>>>(kernel);
        return checked(cudaGetLastError(), "launch");
    }

private:
    cuda_device(cuda_options options, const cudaDeviceProp& properties)
        : options_(options), name_(properties.name), shared_bytes_(properties.sharedMemPerBlockOptin) {}

    [[nodiscard]] result<void> flush(stream_id stream) {
        if (small_.empty())
            return {};
        const auto kernel = batched_copy::make(small_);
        small_.clear();
        return launch(stream, kernel);
    }

    // Whether a kernel can access the host memory: it was pinned here, or pinned elsewhere and mapped to the device
    // at the same address.
    [[nodiscard]] bool reaches(copy_way way, const copy_piece& piece) const {
        if (way == copy_way::within_device)
            return true;
        const std::byte* const host = way == copy_way::to_device ? piece.from : piece.to;
        if (auto above = pinned_.upper_bound(host); above != pinned_.begin())
            if (const auto& [begin, bytes] = *--above; host + piece.bytes <= begin + bytes)
                return true;
        cudaPointerAttributes attributes{};
        if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
            (void)cudaGetLastError();
            return false;
        }
        return attributes.type == cudaMemoryTypeHost && attributes.devicePointer == host;
    }
    [[nodiscard]] static cudaMemcpyKind kind(copy_way way) noexcept {
        return way == copy_way::to_device ? cudaMemcpyHostToDevice
               : way == copy_way::to_host ? cudaMemcpyDeviceToHost
                                          : cudaMemcpyDeviceToDevice;
    }
    template <class Id>
    [[nodiscard]] static std::vector<Id> all(std::size_t count) {
        std::vector<Id> ids;
        for (std::size_t i = 0; i < count; ++i)
            ids.push_back(Id{static_cast<std::uint32_t>(i)});
        return ids;
    }

    [[nodiscard]] static error failure(cudaError_t code, const char* field, std::size_t bytes = 0) {
        (void)cudaGetLastError(); // clear it, so that no later call reports it again
        std::string words = std::string(cudaGetErrorName(code)) + ": " + cudaGetErrorString(code);
        if (bytes != 0)
            words += ", asked for " + std::to_string(bytes) + " bytes";
        return {code == cudaErrorMemoryAllocation ? error_code::out_of_memory : error_code::io, field,
                std::move(words)};
    }
    [[nodiscard]] static result<void> checked(cudaError_t code, const char* field) {
        if (code != cudaSuccess)
            return failure(code, field);
        return {};
    }

    cuda_options options_;
    std::string name_;
    std::size_t shared_bytes_;
    std::vector<cudaStream_t> streams_;
    std::vector<cudaEvent_t> events_;
    std::map<const std::byte*, std::size_t> pinned_;
    std::vector<copy_piece> small_;
};

static_assert(device<cuda_device>);

}}} // namespace kvcache::cuda
