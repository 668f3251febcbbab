// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <mutex>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A mutex for members of classes that are moved before threads share them: the new object gets a mutex of its own.
class movable_mutex : public std::mutex {
public:
    movable_mutex() = default;
    movable_mutex(movable_mutex&&) noexcept : std::mutex() {}
    movable_mutex& operator=(movable_mutex&&) = delete;
    ~movable_mutex() = default;
};

}} // namespace kvcache
