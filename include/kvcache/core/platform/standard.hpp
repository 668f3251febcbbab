// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <version>

namespace kvcache { inline namespace KVCACHE_ABI {

#if defined(__cpp_lib_bit_cast)
using std::bit_cast;
#else
/// As std::bit_cast, which libc++ has since version 14.
template <class To, class From>
[[nodiscard]] constexpr To bit_cast(const From& from) noexcept {
    return __builtin_bit_cast(To, from);
}
#endif

/// Sets bits of a number that other threads may change too. libc++ has std::atomic_ref since version 19.
inline void atomic_or(std::uint64_t& number, std::uint64_t bits) noexcept {
#if defined(__cpp_lib_atomic_ref)
    std::atomic_ref(number).fetch_or(bits, std::memory_order_relaxed);
#else
    __atomic_fetch_or(&number, bits, __ATOMIC_RELAXED);
#endif
}

}} // namespace kvcache

// The algorithms of std::ranges that this library uses, as kvcache::ranges. libc++ has them since version 15.

#if defined(__cpp_lib_ranges)

namespace kvcache { inline namespace KVCACHE_ABI {
namespace ranges = std::ranges;
}} // namespace kvcache

#else

#include <cstddef>
#include <functional>
#include <iterator>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace ranges {

/// Two iterators: where `mismatch` ended.
template <class I1, class I2>
struct in_in_result {
    I1 in1;
    I2 in2;
};

template <class R, class O>
constexpr O copy(R&& from, O to) {
    return std::copy(std::begin(from), std::end(from), to);
}
template <class R, class T>
constexpr void fill(R&& range, const T& value) {
    std::fill(std::begin(range), std::end(range), value);
}
template <class R, class F>
constexpr void generate(R&& range, F make) {
    std::generate(std::begin(range), std::end(range), std::ref(make));
}
template <class R, class O, class F>
constexpr O transform(R&& from, O to, F change) {
    return std::transform(std::begin(from), std::end(from), to, std::ref(change));
}
template <class R>
constexpr void reverse(R&& range) {
    std::reverse(std::begin(range), std::end(range));
}

template <class R, class F, class P = std::identity>
constexpr auto find_if(R&& range, F holds, P of = {}) {
    return std::find_if(std::begin(range), std::end(range),
                        [&](auto&& one) -> bool { return std::invoke(holds, std::invoke(of, one)); });
}
template <class R, class T, class P = std::identity>
constexpr auto find(R&& range, const T& value, P of = {}) {
    return std::find_if(std::begin(range), std::end(range), [&](auto&& one) { return std::invoke(of, one) == value; });
}
template <class R, class F, class P = std::identity>
constexpr auto count_if(R&& range, F holds, P of = {}) {
    return std::count_if(std::begin(range), std::end(range),
                         [&](auto&& one) -> bool { return std::invoke(holds, std::invoke(of, one)); });
}
template <class R, class T, class P = std::identity>
constexpr auto count(R&& range, const T& value, P of = {}) {
    return std::count_if(std::begin(range), std::end(range), [&](auto&& one) { return std::invoke(of, one) == value; });
}
template <class R, class F, class P = std::identity>
constexpr bool any_of(R&& range, F holds, P of = {}) {
    return ranges::find_if(range, holds, of) != std::end(range);
}
template <class R, class F, class P = std::identity>
constexpr bool all_of(R&& range, F holds, P of = {}) {
    return ranges::find_if(range, [&](auto&& one) { return !std::invoke(holds, std::invoke(of, one)); }) ==
           std::end(range);
}
template <class R, class F, class P = std::identity>
constexpr bool none_of(R&& range, F holds, P of = {}) {
    return ranges::find_if(range, holds, of) == std::end(range);
}
template <class A, class B, class F = std::equal_to<>>
constexpr bool equal(A&& a, B&& b, F same = {}) {
    return std::equal(std::begin(a), std::end(a), std::begin(b), std::end(b), same);
}
template <class A, class B>
constexpr auto mismatch(A&& a, B&& b) {
    const auto [in1, in2] = std::mismatch(std::begin(a), std::end(a), std::begin(b), std::end(b));
    return in_in_result<decltype(std::begin(a)), decltype(std::begin(b))>{in1, in2};
}
template <class R>
constexpr auto adjacent_find(R&& range) {
    return std::adjacent_find(std::begin(range), std::end(range));
}

namespace detail {

template <class F, class P>
constexpr auto compared(F& less, P& of) {
    return [&](auto&& a, auto&& b) -> bool { return std::invoke(less, std::invoke(of, a), std::invoke(of, b)); };
}

} // namespace detail

template <class R, class F = std::less<>, class P = std::identity>
constexpr auto max_element(R&& range, F less = {}, P of = {}) {
    return std::max_element(std::begin(range), std::end(range), detail::compared(less, of));
}
template <class R, class F = std::less<>, class P = std::identity>
constexpr void sort(R&& range, F less = {}, P of = {}) {
    std::sort(std::begin(range), std::end(range), detail::compared(less, of));
}
template <class R, class F = std::less<>, class P = std::identity>
constexpr void stable_sort(R&& range, F less = {}, P of = {}) {
    std::stable_sort(std::begin(range), std::end(range), detail::compared(less, of));
}
template <class R, class F = std::less<>, class P = std::identity>
constexpr bool is_sorted(R&& range, F less = {}, P of = {}) {
    return std::is_sorted(std::begin(range), std::end(range), detail::compared(less, of));
}
template <class R, class T>
constexpr bool binary_search(R&& range, const T& value) {
    return std::binary_search(std::begin(range), std::end(range), value);
}
template <class R, class F = std::less<>>
constexpr void make_heap(R&& range, F less = {}) {
    std::make_heap(std::begin(range), std::end(range), less);
}
template <class R, class F = std::less<>>
constexpr void push_heap(R&& range, F less = {}) {
    std::push_heap(std::begin(range), std::end(range), less);
}
template <class R, class F = std::less<>>
constexpr void pop_heap(R&& range, F less = {}) {
    std::pop_heap(std::begin(range), std::end(range), less);
}

}}} // namespace kvcache::ranges

#endif
