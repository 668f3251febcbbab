// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/cuda/device.hpp>
#include <kvcache/device/device_attention.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/transformer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// The reference transformer with its pages and attention on a device and its GEMMs on the host. A pipeline uses it
/// like a transformer:
///
///     device_model<cuda_device, row_format::bf16, 64, 4> on_device(model, device);
///     auto cache = make_cache(on_device.id(weights), on_device.shape(16), budget,
///                             device_rows{.format = row_format::bf16},
///                             device_storage<cuda_device>{.device = &device});
///     pipeline generate(cache, on_device, threads);
///
/// `Format` is that of the cache's `device_rows`, `Dim` the model's head_dim, `Queries` as in `paged_attention`.
template <device Device, row_format Format, unsigned Dim, unsigned Queries>
class device_model {
public:
    /// Requires: both outlive it; the model's head_dim is `Dim`.
    device_model(const transformer& model, Device& device) : model_(model), device_(device) {
        expects(model.config().head_dim == Dim, "the model's head_dim is the one that its attention was made for");
    }

    [[nodiscard]] const model_config& config() const noexcept { return model_.config(); }
    [[nodiscard]] std::span<const layer_id> layers() const noexcept { return model_.layers(); }
    [[nodiscard]] std::size_t vocabulary() const noexcept { return model_.vocabulary(); }
    [[nodiscard]] std::size_t max_positions() const noexcept { return model_.max_positions(); }
    [[nodiscard]] page_shape shape(std::uint32_t tokens) const { return model_.shape(tokens); }
    /// As the transformer's identity. The cache adds that its rows come from a device.
    [[nodiscard]] identity id(digest weights) const { return model_.id(weights); }

    template <class Lease>
    [[nodiscard]] auto make_forward_pass(thread_pool& threads) const {
        using attention = device_attention<Lease, Device, Format, Dim, Queries>;
        return model_.template make_forward_pass<Lease>(threads, attention(device_, model_.max_positions()));
    }

private:
    const transformer& model_;
    Device& device_;
};

}}} // namespace kvcache::cuda
