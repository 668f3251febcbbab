// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/recompute/blend.hpp>
#include <kvcache/recompute/chunk_boundary.hpp>
#include <kvcache/recompute/chunk_head.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/full.hpp>
#include <kvcache/recompute/gradual_blend.hpp>
#include <kvcache/recompute/none.hpp>

#include <charconv>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A recompute policy that is chosen at run time, for requests that choose their own. The default is recompute::none.
class any_recompute {
    using choice = std::variant<recompute::none, recompute::chunk_head, recompute::chunk_boundary, recompute::blend,
                                recompute::gradual_blend, recompute::full>;

public:
    using role = recompute_role;

    any_recompute() = default;
    template <class Policy>
        requires std::constructible_from<choice, Policy> any_recompute(Policy policy) // NOLINT: a policy is one
            : which_(std::move(policy)) {}

        /// Reads a policy: none, full, head:ROWS or boundary:ROWS (the first or last rows of a chunk, 16 if not given),
        /// blend:PERCENT or gradual:PERCENT (of the tokens of all chunks, 15 if not given). Errors: malformed.
        [[nodiscard]] static result<any_recompute> named(std::string_view text);

        class state;
        [[nodiscard]] state open(page_shape shape) const;

    private:
        choice which_ = {};
};

/// Selects as the chosen policy does. Whether that needs deviations is known at run time: see `judges`.
class any_recompute::state : public recompute::exact_prefix::state {
    template <class Policy>
    using opened = decltype(std::declval<const Policy&>().open(page_shape{}));
    using choice =
        std::variant<opened<recompute::none>, opened<recompute::chunk_head>, opened<recompute::chunk_boundary>,
                     opened<recompute::blend>, opened<recompute::gradual_blend>, opened<recompute::full>>;

    template <class F>
    decltype(auto) ask(F&& f) const {
        return std::visit(std::forward<F>(f), of_);
    }

public:
    template <class State>
        requires std::constructible_from<choice, State>
    explicit state(State of) : of_(std::move(of)) {}

    /// Whether it selects by deviation. Only then may the functions on deviations be called, and else only the others.
    [[nodiscard]] bool judges() const {
        return ask([]<class S>(const S&) { return deviation_recompute_state<S>; });
    }

    void select(std::span<const reused_span> runs, std::vector<std::size_t>& positions) const {
        ask([&]<class S>(const S& own) {
            if constexpr (chunk_recompute_state<S>)
                own.select(runs, positions);
        });
    }

    void select(std::span<const reused_span> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        ask([&]<class S>(const S& own) {
            if constexpr (deviation_recompute_state<S>)
                own.select(runs, deviations, positions);
        });
    }
    [[nodiscard]] deviation_metric compared() const {
        return ask([]<class S>(const S& own) {
            if constexpr (deviation_recompute_state<S>)
                return own.compared();
            else
                return deviation_metric::keys;
        });
    }
    [[nodiscard]] std::size_t check_layer() const {
        return ask([]<class S>(const S& own) -> std::size_t {
            if constexpr (deviation_recompute_state<S>)
                return own.check_layer();
            else
                return 0;
        });
    }
    [[nodiscard]] std::size_t filters() const {
        return ask([]<class S>(const S& own) -> std::size_t {
            if constexpr (filtering_recompute_state<S>)
                return own.filters();
            else
                return 0;
        });
    }
    void filter(std::size_t number, std::span<const reused_span> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        ask([&]<class S>(const S& own) {
            if constexpr (filtering_recompute_state<S>)
                own.filter(number, runs, deviations, positions);
        });
    }

private:
    choice of_;
};

inline any_recompute::state any_recompute::open(page_shape shape) const {
    return std::visit([&](const auto& policy) { return state(policy.open(shape)); }, which_);
}

inline result<any_recompute> any_recompute::named(std::string_view text) {
    const std::size_t colon = text.find(':');
    const std::string_view name = text.substr(0, colon);
    std::size_t number = name == "blend" || name == "gradual" ? 15 : 16;
    bool reads = true;
    if (colon != text.npos) {
        const char* const end = text.data() + text.size();
        const auto read = std::from_chars(text.data() + colon + 1, end, number);
        reads = read.ec == std::errc() && read.ptr == end && number > 0 && number <= 65536;
    }
    const double fraction = static_cast<double>(number) / 100.0;
    if (colon == text.npos && name == "none")
        return any_recompute();
    if (colon == text.npos && name == "full")
        return any_recompute(recompute::full{});
    if (reads && name == "head")
        return any_recompute(recompute::chunk_head{.rows = number, .page_aligned = false});
    if (reads && name == "boundary")
        return any_recompute(recompute::chunk_boundary{.rows = number});
    if (reads && number <= 100 && name == "blend")
        return any_recompute(recompute::blend{.fraction = fraction});
    if (reads && number <= 100 && name == "gradual")
        return any_recompute(recompute::gradual_blend{.fraction = fraction});
    return error{error_code::malformed, "recompute",
                 "recompute is none, head:ROWS, boundary:ROWS, blend:PERCENT, gradual:PERCENT or full"};
}

static_assert(recompute_policy<any_recompute> && filtering_recompute_state<any_recompute::state> &&
              chunk_recompute_state<any_recompute::state>);

}} // namespace kvcache
