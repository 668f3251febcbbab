// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/cuda/device.hpp>
#include <kvcache/cuda/device_storage.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Two-level page storage: every page has a place in host storage over pinned memory (`heap{.resource = &pinned}`), and
/// pages in use have a place on the device. Pages are fetched to the device and evicted by an eviction policy of the
/// library. A page that the device did not change is evicted without a copy.
template <device Device, class Host, class Eviction>
struct tiered {
    Device* device = nullptr;     ///< Requires: it outlives the state.
    Host host = {};               ///< A storage policy whose pages are in pinned memory.
    Eviction eviction = {};       ///< Policy that selects pages to evict from the device.
    std::size_t device_pages = 0; ///< Capacity of the device in pages.
    std::uint32_t layers = 1;     ///< Equal parts of a page, which arrive one after another.
    class state;
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

/// Copies run in a stream of their own, concurrent with computation. A fetched page stays on the device until it is
/// released as often as fetched. An error loses nothing: a page that could not be moved is where it was.
template <device Device, class Host, class Eviction>
class tiered<Device, Host, Eviction>::state {
public:
    state(const tiered& options, std::size_t pages, std::size_t page_bytes)
        : device_((expects(options.device != nullptr && options.device_pages > 0, "a tiered storage has a device"),
                   options.device)),
          storage_(device_storage<Device>{.device = options.device}.open(options.device_pages, page_bytes)),
          host_(options.host.open(pages, page_bytes)),
          policy_(options.eviction.open({.slots = pages, .bytes = options.device_pages * page_bytes})),
          layers_(options.layers),
          page_bytes_(page_bytes),
          pages_(pages) {
        expects(layers_ > 0 && page_bytes % layers_ == 0, "a page is of whole layers");
        for (std::size_t slot = options.device_pages; slot > 0; --slot)
            free_.push_back(static_cast<std::uint32_t>(slot - 1));
    }
    state(const state&) = delete;
    state& operator=(const state&) = delete;
    ~state() {
        if (copies_) { // the host's pages are freed only when no copy uses them
            (void)device_->synchronise(*copies_);
            device_->close(*copies_);
        }
        if (used_)
            device_->close(*used_);
        for (const event_id event : arrived_)
            device_->close(event);
    }

    /// Makes a page usable. Its content is undefined at first. Returns false if the host is out of memory.
    [[nodiscard]] bool acquire(page_id page) {
        info& own = pages_[index_of(page)];
        if (!own.usable && !host_.acquire(page))
            return false;
        own.usable = true;
        return true;
    }
    /// Requires: the page is not held.
    void release(page_id page) noexcept {
        info& own = pages_[index_of(page)];
        if (own.slot != none) {
            policy_.erase(slot_id{index_of(page)});
            free_.push_back(own.slot);
        }
        own = {};
        host_.release(page);
    }

    /// Starts to copy pages to the device, layer by layer, and holds them there: one batch of copies a layer for all
    /// pages. `await` waits for a layer. Errors: out_of_memory, if too many places are held, or if the device is out of
    /// memory; nothing has changed then; io.
    [[nodiscard]] result<void> fetch(std::span<const page_id> pages) {
        if (auto ready = open(); !ready)
            return ready;
        coming_.clear();
        for (const page_id page : pages) {
            info& own = pages_[index_of(page)];
            expects(own.usable, "a page is acquired before it is fetched");
            if (own.holds++ == 0 && own.slot == none)
                coming_.push_back(page);
        }
        result<void> room = make_room(), done = room ? bring() : room;
        if (!done) {
            for (const page_id page : pages)
                --pages_[index_of(page)].holds;
            return done;
        }
        for (const page_id page : pages)
            policy_.touch(slot_id{index_of(page)});
        return {};
    }

    /// Makes `stream` wait until a layer of all pages fetched so far has arrived. Errors: io.
    [[nodiscard]] result<void> await(stream_id stream, std::uint32_t layer) {
        expects(layer < layers_, "a layer is of the pages");
        if (auto ready = open(); !ready)
            return ready;
        return device_->wait(stream, arrived_[layer]);
    }

    /// Releases fetched pages, which work already in `stream` may still use: eviction waits for that work. `written`:
    /// that work changes the pages. Errors: io; the pages are still held then.
    [[nodiscard]] result<void> let_go(stream_id stream, std::span<const page_id> pages, bool written) {
        if (auto ready = open(); !ready)
            return ready;
        if (auto put = device_->record(*used_, stream); !put)
            return put;
        if (auto put = device_->wait(*copies_, *used_); !put)
            return put;
        for (const page_id page : pages) {
            info& own = pages_[index_of(page)];
            expects(own.holds > 0, "only a page that is held is released");
            own.changed = own.changed || written;
            if (--own.holds == 0)
                if constexpr (requires { policy_.on_released(slot_id{}); })
                    policy_.on_released(slot_id{index_of(page)});
        }
        return {};
    }

    /// Copies pages that the device changed and that are not held to the host, so that they can be evicted at once.
    /// Errors: io.
    [[nodiscard]] result<void> write_back() {
        if (auto ready = open(); !ready)
            return ready;
        leaving_.clear();
        for (std::uint32_t page = 0; page < pages_.size(); ++page)
            if (pages_[page].slot != none && pages_[page].holds == 0)
                leaving_.push_back(page_id{page});
        return save();
    }

    /// Returns a page's bytes on the host, once all enqueued copies have completed. Errors: io; unsupported, for a page
    /// that the device changed and that is not written back.
    [[nodiscard]] result<std::span<std::byte>> bytes(page_id page) {
        if (pages_[index_of(page)].changed)
            return error{error_code::unsupported, "page",
                         "page " + std::to_string(index_of(page)) + " was changed on the device"};
        if (copies_)
            if (auto passed = device_->synchronise(*copies_); !passed)
                return passed.error();
        return host_.bytes(page);
    }

    [[nodiscard]] bool on_device(page_id page) const { return pages_[index_of(page)].slot != none; }
    /// Device page of a page. Requires: it is on the device.
    [[nodiscard]] page_id place(page_id page) const {
        expects(on_device(page), "a page is on the device");
        return page_id{pages_[index_of(page)].slot};
    }
    /// Storage of the device's pages.
    [[nodiscard]] const typename device_storage<Device>::state& storage() const noexcept { return storage_; }

private:
    static constexpr std::uint32_t none = ~std::uint32_t{};
    struct info {
        std::uint32_t slot = none; // on the device
        std::uint32_t holds = 0;
        bool usable = false;
        bool changed = false; // on the device but not on the host
        bool leaves = false;  // selected for eviction by make_room
    };

    [[nodiscard]] result<void> open() {
        if (!copies_) {
            auto stream = device_->open_stream();
            if (!stream)
                return stream.error();
            copies_ = *stream;
        }
        if (!used_) {
            auto event = device_->open_event();
            if (!event)
                return event.error();
            used_ = *event;
        }
        while (arrived_.size() < layers_) {
            auto event = device_->open_event();
            if (!event)
                return event.error();
            arrived_.push_back(*event);
        }
        if (!storage_.acquire(page_id{0})) // one slab: all of them
            return storage_.status().error();
        return {};
    }

    // Frees places for all pages in coming_.
    [[nodiscard]] result<void> make_room() {
        leaving_.clear();
        const auto is_evictable = [&](slot_id slot) {
            if (index_of(slot) >= pages_.size())
                return false;
            const info& page = pages_[index_of(slot)];
            return page.slot != none && page.holds == 0 && !page.leaves;
        };
        while (free_.size() + leaving_.size() < coming_.size()) {
            const std::optional<slot_id> victim = policy_.victim(is_evictable);
            if (!victim)
                break;
            require(is_evictable(*victim), "an eviction policy's victim is evictable");
            pages_[index_of(*victim)].leaves = true;
            leaving_.push_back(page_id{index_of(*victim)});
        }
        for (const page_id page : leaving_)
            pages_[index_of(page)].leaves = false;
        if (free_.size() + leaving_.size() < coming_.size())
            return error{error_code::out_of_memory, "device pages",
                         std::to_string(coming_.size()) + " pages are to come, " +
                             std::to_string(free_.size() + leaving_.size()) + " places are not held"};
        if (auto saved = save(); !saved)
            return saved;
        for (const page_id page : leaving_) {
            if constexpr (requires { policy_.evict(slot_id{}); })
                policy_.evict(slot_id{index_of(page)});
            else
                policy_.erase(slot_id{index_of(page)});
            free_.push_back(std::exchange(pages_[index_of(page)].slot, none));
        }
        return {};
    }

    // Writes the changed pages of leaving_ to the host.
    [[nodiscard]] result<void> save() {
        parts_.clear();
        for (const page_id page : leaving_)
            if (pages_[index_of(page)].changed)
                parts_.push_back({place(page), 0, host_.bytes(page)});
        if (parts_.empty())
            return {};
        if (auto put = storage_.store(*copies_, parts_); !put)
            return put;
        for (const page_id page : leaving_)
            pages_[index_of(page)].changed = false;
        return {};
    }

    // Copies the pages of coming_, layer by layer. Places are taken once all copies are enqueued.
    [[nodiscard]] result<void> bring() {
        const std::size_t layer_bytes = page_bytes_ / layers_;
        for (std::uint32_t layer = 0; layer < layers_; ++layer) {
            parts_.clear();
            for (std::size_t i = 0; i < coming_.size(); ++i)
                parts_.push_back({page_id{free_[free_.size() - 1 - i]}, layer * layer_bytes,
                                  host_.bytes(coming_[i]).subspan(layer * layer_bytes, layer_bytes)});
            if (!parts_.empty())
                if (auto put = storage_.load(*copies_, parts_); !put)
                    return put;
            if (auto put = device_->record(arrived_[layer], *copies_); !put)
                return put;
        }
        for (const page_id page : coming_) {
            if constexpr (requires { policy_.on_miss({}); })
                policy_.on_miss({.key = index_of(page), .bytes = page_bytes_});
            policy_.admit(slot_id{index_of(page)}, {.key = index_of(page), .bytes = page_bytes_});
            pages_[index_of(page)].slot = free_.back();
            free_.pop_back();
        }
        return {};
    }

    Device* device_;
    typename device_storage<Device>::state storage_;
    decltype(std::declval<const Host&>().open(0, 0)) host_;
    decltype(std::declval<const Eviction&>().open({})) policy_;
    std::uint32_t layers_;
    std::size_t page_bytes_;
    std::vector<info> pages_;
    std::vector<std::uint32_t> free_; // places on the device
    std::optional<stream_id> copies_;
    std::optional<event_id> used_;
    std::vector<event_id> arrived_; // by layer
    std::vector<page_id> coming_, leaving_;
    std::vector<page_part> parts_;
};

template <device Device, class Host, class Eviction>
typename tiered<Device, Host, Eviction>::state tiered<Device, Host, Eviction>::open(std::size_t pages,
                                                                                    std::size_t page_bytes) const {
    return {*this, pages, page_bytes};
}

}}} // namespace kvcache::cuda
