// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace server {

/// Memory that all requests share. Any thread may use it.
class byte_budget {
public:
    /// A part of a budget. Its destructor returns it.
    class share {
    public:
        share() = default;
        share(share&& other) noexcept : of_(std::move(other.of_)), bytes_(std::exchange(other.bytes_, 0)) {}
        share& operator=(share&& other) noexcept {
            share taken(std::move(other));
            std::swap(of_, taken.of_);
            std::swap(bytes_, taken.bytes_);
            return *this;
        }
        ~share() {
            if (of_ != nullptr)
                of_->give_back(bytes_);
        }

    private:
        friend byte_budget;
        share(std::shared_ptr<byte_budget> of, std::size_t bytes) : of_(std::move(of)), bytes_(bytes) {}

        std::shared_ptr<byte_budget> of_;
        std::size_t bytes_ = 0;
    };

    explicit byte_budget(std::size_t bytes) : left_(bytes) {}

    /// Takes a part; none if less is left.
    [[nodiscard]] static std::optional<share> take(const std::shared_ptr<byte_budget>& from, std::size_t bytes) {
        const std::lock_guard guard(from->lock_);
        if (bytes > from->left_)
            return std::nullopt;
        from->left_ -= bytes;
        return share(from, bytes);
    }

private:
    void give_back(std::size_t bytes) {
        const std::lock_guard guard(lock_);
        left_ += bytes;
    }

    std::mutex lock_;
    std::size_t left_;
};

} // namespace server
