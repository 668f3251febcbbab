// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/observer/concept.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Returns the name of an event kind.
[[nodiscard]] constexpr std::string_view name_of(event_kind kind) noexcept {
    switch (kind) {
    case event_kind::matched:
        return "matched";
    case event_kind::spliced:
        return "spliced";
    case event_kind::stored:
        return "stored";
    case event_kind::published:
        return "published";
    case event_kind::copied:
        return "copied";
    case event_kind::evicted:
        return "evicted";
    case event_kind::refused:
        break;
    }
    return "refused";
}

/// Writes every event to a Chrome trace (JSON array format, read by chrome://tracing and Perfetto): an instant event
/// with its extent, and a counter of the findable pages. The array is closed when the cache is destroyed.
struct tracing {
    using role = observer_role;
    std::function<void(std::string_view)> write = {}; ///< Receives the text, piece by piece; optional.
    std::function<std::uint64_t()> microseconds = {}; ///< Time source; default: the steady clock.
    class state;
    [[nodiscard]] state open() const;
};

class tracing::state {
public:
    explicit state(const tracing& how) : how_(how) {
        if (how_.write)
            how_.write("[");
    }
    /// The array is closed by the object that was moved to.
    state(state&& other) noexcept
        : how_(std::exchange(other.how_, {})), separator_(std::move(other.separator_)), found_(other.found_) {}
    state& operator=(state&&) = delete;
    ~state() {
        detail::ignore_exceptions([&] { // a trace without its closing bracket is readable
            if (how_.write)
                how_.write("\n]\n");
        });
    }

    void on(const event& what) {
        if (!how_.write)
            return;
        found_ += what.kind == event_kind::published && what.pages > 0;
        found_ -= what.kind == event_kind::evicted && what.tokens == what.page_tokens && found_ > 0;
        const std::string when = std::to_string(how_.microseconds ? how_.microseconds() : now());
        std::string text = std::exchange(separator_, ",\n");
        text += R"({"name":")" + std::string(name_of(what.kind)) + R"(","cat":"kvcache","ph":"i","s":"p","ts":)" + when;
        text += R"(,"pid":1,"tid":1,"args":{"tokens":)" + std::to_string(what.tokens);
        text += R"(,"of":)" + std::to_string(what.of) + R"(,"pages":)" + std::to_string(what.pages) + "}}";
        if (what.kind == event_kind::published || what.kind == event_kind::evicted)
            text += ",\n"
                    R"({"name":"full pages known","cat":"kvcache","ph":"C","ts":)" +
                    when + R"(,"pid":1,"args":{"pages":)" + std::to_string(found_) + "}}";
        how_.write(text);
    }

private:
    [[nodiscard]] static std::uint64_t now() {
        const auto since = std::chrono::steady_clock::now().time_since_epoch();
        return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(since).count());
    }

    tracing how_;
    std::string separator_ = "\n";
    std::uint64_t found_ = 0;
};

inline tracing::state tracing::open() const {
    return state(*this);
}

static_assert(observer_policy<tracing>);

}}} // namespace kvcache::observer
