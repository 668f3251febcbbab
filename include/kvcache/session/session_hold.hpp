// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A session in use. Its destructor releases the session to the next request. Requires: the table outlives it.
template <class Table>
class session_hold {
public:
    session_hold(session_hold&& other) noexcept
        : table_(std::exchange(other.table_, nullptr)), slot_(other.slot_), bytes_(other.bytes_) {}
    /// Releases the session it held before.
    session_hold& operator=(session_hold&& other) noexcept {
        session_hold taken(std::move(other));
        std::swap(table_, taken.table_);
        std::swap(slot_, taken.slot_);
        std::swap(bytes_, taken.bytes_);
        return *this;
    }
    ~session_hold() {
        if (table_ != nullptr)
            table_->release(slot_, bytes_);
    }

    [[nodiscard]] auto& operator*() const noexcept { return *slot_->session; }
    [[nodiscard]] auto* operator->() const noexcept { return slot_->session.get(); }

    /// Sets the bytes that the session keeps after its release.
    void set_bytes(std::size_t bytes) noexcept { bytes_ = bytes; }

private:
    friend Table;
    using slot = typename Table::slot;
    session_hold(Table& table, slot& of) : table_(&table), slot_(&of), bytes_(of.bytes) {}

    Table* table_;
    slot* slot_;
    std::size_t bytes_;
};

}} // namespace kvcache
