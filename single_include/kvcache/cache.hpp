// SPDX-License-Identifier: MIT
// Made by tools/amalgamate.py from include/kvcache/: edit there.
#pragma once

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#else

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>
#include <version>

// ---- kvcache/core/abi.hpp -----------------------------------------------------------------------------------------

/// The one place where the version lives; CMake reads it from here.
#define KVCACHE_VERSION_MAJOR 0
#define KVCACHE_VERSION_MINOR 1
#define KVCACHE_VERSION_PATCH 0

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#endif

// Contract checks are on in debug builds. Define KVCACHE_CONTRACTS as 1 or 0 to choose.
#if !defined(KVCACHE_CONTRACTS)
#if defined(NDEBUG)
#define KVCACHE_CONTRACTS 0
#else
#define KVCACHE_CONTRACTS 1
#endif
#endif

// KVCACHE_ABI is the inline namespace of the whole library. Its name encodes everything that changes the library's code
// or layout: the version, the instruction set, contract checks and exceptions. Objects that are built differently
// therefore share no function, and passing a type of the library between them is a link error.
//
// A host that builds files for several processors and passes caches between them defines KVCACHE_TARGET, with the same
// name in all files, and ensures that each file runs only on a processor that has its instructions. This works for the
// cache alone: the layout of arithmetic classes depends on the instruction set, so kernel/native.hpp rejects it.
#if defined(KVCACHE_TARGET)
#define KVCACHE_TARGET_IS_SHARED 1
#else
#define KVCACHE_TARGET_IS_SHARED 0
#endif
#if !KVCACHE_TARGET_IS_SHARED
#if defined(__AVX512VNNI__)
#define KVCACHE_TARGET avx512vnni
#elif defined(__AVX512F__)
#define KVCACHE_TARGET avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define KVCACHE_TARGET avx2
#elif defined(__AVX__)
#define KVCACHE_TARGET avx
#elif defined(__SSE4_2__)
#define KVCACHE_TARGET sse4
#else
#define KVCACHE_TARGET base
#endif
#endif
#if KVCACHE_CONTRACTS
#define KVCACHE_ABI_CHECKS checked
#else
#define KVCACHE_ABI_CHECKS unchecked
#endif
#if defined(__cpp_exceptions)
#define KVCACHE_ABI_EXCEPTIONS throwing
#else
#define KVCACHE_ABI_EXCEPTIONS nothrow
#endif
#define KVCACHE_ABI_JOINED(major, minor, patch, target, checks, exceptions)                                            \
    v##major##_##minor##_##patch##_##target##_##checks##_##exceptions
#define KVCACHE_ABI_NAME(major, minor, patch, target, checks, exceptions)                                              \
    KVCACHE_ABI_JOINED(major, minor, patch, target, checks, exceptions)
#define KVCACHE_ABI                                                                                                    \
    KVCACHE_ABI_NAME(KVCACHE_VERSION_MAJOR, KVCACHE_VERSION_MINOR, KVCACHE_VERSION_PATCH, KVCACHE_TARGET,              \
                     KVCACHE_ABI_CHECKS, KVCACHE_ABI_EXCEPTIONS)

// The ABI name as a string literal.
#define KVCACHE_ABI_QUOTED(name) #name
#define KVCACHE_ABI_TEXT_OF(name) KVCACHE_ABI_QUOTED(name)
#define KVCACHE_ABI_TEXT KVCACHE_ABI_TEXT_OF(KVCACHE_ABI)

// ---- kvcache/core/id.hpp ------------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// A page of keys and values in a page pool.
enum class page_id : std::uint32_t {};

/// A slot that an eviction policy ranks: a page, a session or a record of a tier.
enum class slot_id : std::uint32_t {};

/// A token of a tokenizer's vocabulary.
enum class token_id : std::int32_t {};

/// A layer of a model, counted from the input.
enum class layer_id : std::uint32_t {};

/// A KV head.
enum class head_id : std::uint32_t {};

/// The integer value of an identifier.
[[nodiscard]] constexpr std::uint32_t index_of(page_id page) noexcept {
    return static_cast<std::uint32_t>(page);
}
/// The number of a slot.
[[nodiscard]] constexpr std::uint32_t index_of(slot_id slot) noexcept {
    return static_cast<std::uint32_t>(slot);
}
/// The number of a token in its vocabulary.
[[nodiscard]] constexpr std::int32_t index_of(token_id token) noexcept {
    return static_cast<std::int32_t>(token);
}
/// The number of a layer, from 0.
[[nodiscard]] constexpr std::uint32_t index_of(layer_id layer) noexcept {
    return static_cast<std::uint32_t>(layer);
}
/// The number of a head, from 0.
[[nodiscard]] constexpr std::uint32_t index_of(head_id head) noexcept {
    return static_cast<std::uint32_t>(head);
}

/// One entry of a sequence's page table: the rows [first, first + count) of a page, in the sequence's order.
struct page_entry {
    page_id page = {};
    std::int64_t base = 0; ///< RoPE offset: keys are rotated by (position - base); zero for a prefix computed in place.
    std::uint32_t first = 0; ///< First row in use.
    std::uint32_t count = 0; ///< Number of rows in use.

    friend bool operator==(const page_entry&, const page_entry&) = default;
};

/// An entry of a sequence's page table that a commit changed, because another page has the same content.
struct moved_entry {
    std::size_t entry = 0; ///< Index in the page table.
    page_id from = {};
    page_id to = {};

    friend bool operator==(const moved_entry&, const moved_entry&) = default;
};

}} // namespace kvcache

// ---- kvcache/core/role.hpp ----------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

struct codec_role;
struct storage_role;
struct hash_role;
struct index_role;
struct eviction_role;
struct recompute_role;
struct tier_role;
struct observer_role;
struct locking_role;
struct layers_role;

namespace detail {

template <class Role, class... Roles>
inline constexpr bool one_of_roles = (std::same_as<Role, Roles> || ...);

template <class P>
concept names_its_role = requires {
    typename P::role;
};

} // namespace detail

/// The type that a policy's `open` returns for arguments of these types.
template <class P, class... Arguments>
using opened_by = decltype(std::declval<const P&>().open(std::declval<const Arguments&>()...));

/// The role of a policy: `P::role`, unless specialized for a type you do not own.
template <class P>
struct role_of {};

/// The role that a policy names as its member `role`.
template <detail::names_its_role P>
struct role_of<P> {
    using type = typename P::role;
};

/// One of the roles of a cache.
template <class Role>
concept known_role = detail::one_of_roles<Role, codec_role, storage_role, hash_role, index_role, eviction_role,
                                          recompute_role, tier_role, observer_role, locking_role, layers_role>;

/// A type that names the role it plays.
template <class P>
concept policy = known_role<typename role_of<P>::type>;

/// A policy with the given role.
template <class P, class Role>
concept plays = policy<P> && std::same_as<typename role_of<P>::type, Role>;

}} // namespace kvcache

// ---- kvcache/core/platform/machine.hpp ----------------------------------------------------------------------------

// The family of the system: 1 for the one that it is. A system of neither family has what standard C++ has: no memory
// mappings, and files that are read as a whole.
#if defined(_WIN32)
#define KVCACHE_WINDOWS 1
#define KVCACHE_POSIX 0
#elif (defined(__unix__) || defined(__APPLE__)) && !defined(__wasm__)
#define KVCACHE_WINDOWS 0
#define KVCACHE_POSIX 1
#else
#define KVCACHE_WINDOWS 0
#define KVCACHE_POSIX 0
#endif

// GCC 12 reports uninitialized values inside its own AVX-512 intrinsics, wherever a program inlines them. A warning
// belongs to the line it points at, so it is silenced there: include this header before any other header that includes
// the intrinsics.
#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64) || defined(_M_IX86)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h> // a tenth of the lines
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#if !KVCACHE_POSIX
#include <chrono>
#endif

// The extensions of compilers, each with a fallback.

/// Forces inlining. For functions whose sums must stay in the caller's registers, and for functions that only prefetch:
/// GCC considers them free of effects and drops the calls. On a lambda: after its (...).
#if defined(__GNUC__)
#define KVCACHE_INLINE __attribute__((always_inline))
#else
#define KVCACHE_INLINE
#endif

/// Keeps a function out of its callers.
#if defined(__GNUC__)
#define KVCACHE_NOINLINE [[gnu::noinline]]
#elif defined(_MSC_VER)
#define KVCACHE_NOINLINE __declspec(noinline)
#else
#define KVCACHE_NOINLINE
#endif

/// Marks a function that is seldom called. With KVCACHE_NOINLINE.
#if defined(__GNUC__)
#define KVCACHE_COLD [[gnu::cold]]
#else
#define KVCACHE_COLD
#endif

/// Inlines into a function whatever it calls. With KVCACHE_NOINLINE.
#if defined(__GNUC__)
#define KVCACHE_FLATTEN [[gnu::flatten]]
#else
#define KVCACHE_FLATTEN
#endif

/// Fully unrolls the loop that follows, of a constant number of iterations, 64 at most. nvcc rejects the pragma.
#if defined(__CUDACC__)
#define KVCACHE_UNROLL
#elif defined(__clang__)
#define KVCACHE_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define KVCACHE_UNROLL _Pragma("GCC unroll 64")
#else
#define KVCACHE_UNROLL
#endif

namespace kvcache { inline namespace KVCACHE_ABI {

/// Nanoseconds since some moment, by a clock that is never set back.
[[nodiscard]] inline std::int64_t monotonic_nanoseconds() noexcept {
#if KVCACHE_POSIX // <chrono> is 8,000 lines
    std::timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
#else
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
#endif
}

/// The address of element `offset` of `base`. For prefetches only: unlike a pointer, it may lie outside any array.
template <class T>
[[nodiscard]] inline const void* address(const T* base, std::size_t offset) noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the address is not that of an object
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(base) + offset * sizeof(T));
}

/// Prefetches the cache line of element `offset` of `base` for a read soon. Any offset is allowed.
template <class T>
KVCACHE_INLINE inline void prefetch([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 3);
#endif
}

/// Prefetches into the second-level cache, for a line that is read somewhat later.
template <class T>
KVCACHE_INLINE inline void prefetch_soon([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 2);
#endif
}

/// Prefetches a line for a write soon.
template <class T>
KVCACHE_INLINE inline void prefetch_to_write([[maybe_unused]] const T* base,
                                             [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 1, 3);
#endif
}

/// Hints to the processor that this thread is spinning.
inline void spin_pause() noexcept {
#if defined(__SSE2__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    asm volatile("yield");
#endif
}

/// Stores x + y, and returns whether it is past the range of the type; what is stored is then unspecified.
template <std::integral T>
[[nodiscard]] constexpr bool add_overflows(T x, T y, T& sum) noexcept {
#if defined(__GNUC__)
    return __builtin_add_overflow(x, y, &sum);
#else
    using limits = std::numeric_limits<T>;
    if (y < 0 ? x < limits::min() - y : x > limits::max() - y)
        return true;
    sum = static_cast<T>(x + y);
    return false;
#endif
}

/// Stores x - y, and returns whether it is past the range of the type; what is stored is then unspecified.
template <std::integral T>
[[nodiscard]] constexpr bool subtract_overflows(T x, T y, T& difference) noexcept {
#if defined(__GNUC__)
    return __builtin_sub_overflow(x, y, &difference);
#else
    using limits = std::numeric_limits<T>;
    if (y < 0 ? x > limits::max() + y : x < limits::min() + y)
        return true;
    difference = static_cast<T>(x - y);
    return false;
#endif
}

/// Stores x * y, and returns whether it is past the range of the type; what is stored is then unspecified.
template <std::integral T>
[[nodiscard]] constexpr bool multiply_overflows(T x, T y, T& product) noexcept {
#if defined(__GNUC__)
    return __builtin_mul_overflow(x, y, &product);
#else
    using limits = std::numeric_limits<T>;
    if (x != 0 && y != 0) {
        const bool over = x > 0 ? (y > 0 ? x > limits::max() / y : y < limits::min() / x)
                                : (y > 0 ? x < limits::min() / y : x < limits::max() / y);
        if (over)
            return true;
    }
    product = static_cast<T>(x * y);
    return false;
#endif
}

}} // namespace kvcache

// ---- kvcache/core/errors.hpp --------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// A violated precondition.
class contract_violation : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

/// Called with the rule that was broken. It may throw, log, or end the program.
using violation_handler = void (*)(const char* rule);

namespace detail {

inline std::atomic<violation_handler> on_violation{nullptr};

} // namespace detail

/// Installs the function that is called at each contract violation; null for none. Returns the one before. If the
/// function returns, contract_violation is thrown; in a program without exceptions std::terminate is called.
inline violation_handler set_violation_handler(violation_handler handler) noexcept {
    return detail::on_violation.exchange(handler);
}

namespace detail {

/// Calls the violation handler, then throws contract_violation, or ends a program without exceptions.
KVCACHE_NOINLINE KVCACHE_COLD [[noreturn]] inline void violate(const char* what) {
    if (const violation_handler handler = on_violation.load())
        handler(what);
#if defined(__cpp_exceptions)
    throw contract_violation(what);
#else
    std::terminate();
#endif
}

} // namespace detail

/// Checks a precondition in every build: one that guards memory and costs little where it is checked.
/// Throws: contract_violation, with `what` as its message.
constexpr void require(bool holds, const char* what) {
    if (!holds)
        detail::violate(what);
}

/// Checks a precondition. Off in release builds unless KVCACHE_CONTRACTS is 1.
/// Throws: contract_violation, with `what` as its message.
constexpr void expects([[maybe_unused]] bool holds, [[maybe_unused]] const char* what) {
#if KVCACHE_CONTRACTS
    if (!holds)
        detail::violate(what);
#endif
}

namespace detail {

/// Concatenates strings. A chain of string additions takes several times as long to compile.
[[nodiscard]] inline std::string joined(std::initializer_list<std::string_view> pieces) {
    std::string whole;
    for (const std::string_view piece : pieces)
        whole += piece;
    return whole;
}

} // namespace detail

/// The kind of an error.
enum class error_code {
    not_found,     ///< A file, tensor or field does not exist.
    io,            ///< The system refused to open, read, map or write.
    truncated,     ///< The data is shorter than its own header says.
    malformed,     ///< The data is invalid: syntax, offsets, encodings.
    mismatched,    ///< Well formed, but not what was expected: dtype, shape, identity.
    unsupported,   ///< Well formed, but not supported by this library.
    out_of_memory, ///< No page or memory is left, and no page can be evicted.
    out_of_range,  ///< A token, position or length is past its limit.
    pending,       ///< Another lease computes it now; it will be cached.
    cancelled,     ///< Stopped on the caller's request.
};

/// A typed error: its kind, the name of the failing field or file, and a message a user can act on.
struct error {
    error_code code = error_code::malformed;
    std::string field = {};   ///< What failed: "rope_scaling.type", "model.safetensors", "pages".
    std::string message = {}; ///< One sentence, with the values.

    friend bool operator==(const error&, const error&) = default;
};

namespace detail {

/// An error on the heap, or none. Copies are deep.
class maybe_error : public std::unique_ptr<const error> {
public:
    maybe_error() = default;
    maybe_error(error one) : unique_ptr(std::make_unique<const error>(std::move(one))) {}
    maybe_error(const maybe_error& other) : unique_ptr(other ? std::make_unique<const error>(*other) : nullptr) {}
    maybe_error(maybe_error&&) noexcept = default;
    maybe_error& operator=(maybe_error other) noexcept { return swap(other), *this; }
};

} // namespace detail

/// A value, or the error that prevented it.
template <class T>
class [[nodiscard]] result {
public:
    using value_type = T;

    result(T value) : value_(std::in_place, std::move(value)) {}
    result(kvcache::error reason) : reason_(std::move(reason)) {}

    [[nodiscard]] bool has_value() const noexcept { return value_.has_value(); }
    [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

    /// Requires: has_value().
    [[nodiscard]] T& operator*() & { return require(has_value(), no_value), *value_; }
    [[nodiscard]] const T& operator*() const& { return require(has_value(), no_value), *value_; }
    [[nodiscard]] T&& operator*() && { return require(has_value(), no_value), *std::move(value_); }
    [[nodiscard]] T* operator->() { return &**this; }
    [[nodiscard]] const T* operator->() const { return &**this; }

    /// Requires: !has_value().
    [[nodiscard]] const kvcache::error& error() const {
        require(reason_ != nullptr, "a result is asked for its error only when it has no value");
        return *reason_;
    }

private:
    static constexpr const char* no_value = "a result is read only when it has a value";

    // One of the two. A std::variant takes a tenth more time to compile.
    std::optional<T> value_;
    detail::maybe_error reason_;
};

/// Success, or the error that prevented it.
template <>
class [[nodiscard]] result<void> {
public:
    using value_type = void;

    result() = default;
    result(kvcache::error reason) : reason_(std::move(reason)) {}

    [[nodiscard]] bool has_value() const noexcept { return !reason_; }
    [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

    /// Requires: !has_value().
    [[nodiscard]] const kvcache::error& error() const {
        require(reason_ != nullptr, "a result is asked for its error only when it has no value");
        return *reason_;
    }

private:
    detail::maybe_error reason_;
};

// The only header that throws and catches. In a program without exceptions nothing can be caught: a failed allocation
// ends the program in operator new.

namespace detail {

/// Calls `body`. Returns false if it threw an `Exception`; other exceptions propagate.
template <class Exception, class Body>
[[nodiscard]] bool completes(Body&& body) {
#if defined(__cpp_exceptions)
    try {
        body();
        return true;
    } catch (const Exception&) {
        return false;
    }
#else
    body();
    return true;
#endif
}

/// Calls `body` and discards any exception.
template <class Body>
void ignore_exceptions(Body&& body) noexcept {
#if defined(__cpp_exceptions)
    try {
        body();
    } catch (...) {
    }
#else
    body();
#endif
}

/// Calls `body`. Returns the exception it threw; null if none.
template <class Body>
[[nodiscard]] std::exception_ptr exception_of(Body&& body) noexcept {
#if defined(__cpp_exceptions)
    try {
        body();
    } catch (...) {
        return std::current_exception();
    }
#else
    body();
#endif
    return nullptr;
}

/// Throws std::bad_alloc.
[[noreturn]] inline void throw_bad_alloc() {
#if defined(__cpp_exceptions)
    throw std::bad_alloc();
#else
    std::terminate();
#endif
}

/// Calls `undo` when it is destroyed, unless it was dismissed.
template <class Undo>
class [[nodiscard]] scope_guard {
public:
    explicit scope_guard(Undo undo) : undo_(std::move(undo)) {}
    scope_guard(const scope_guard&) = delete;
    scope_guard& operator=(const scope_guard&) = delete;
    ~scope_guard() {
        if (armed_)
            undo_();
    }

    void dismiss() noexcept { armed_ = false; }

private:
    Undo undo_;
    bool armed_ = true;
};

} // namespace detail

}} // namespace kvcache

// ---- kvcache/core/shape.hpp ---------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Tokens of one tile, which is one SIMD vector of scores.
inline constexpr std::uint32_t tile_tokens = 16;

/// The extents of one page of keys and values.
struct page_shape {
    std::uint32_t layers = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    /// Tokens per page. A multiple of 16, unless the codec takes any number: rows in row-major order, and external
    /// memory.
    std::uint32_t tokens = 64;

    friend constexpr bool operator==(const page_shape&, const page_shape&) = default;

    /// The largest extents of a valid shape, far beyond any model, and the most numbers in the keys of a page. They
    /// keep the bytes of a page of any codec below 2^56, and below 2^31 where addresses have 32 bits.
    static constexpr std::uint32_t most_layers = 1u << 16;
    static constexpr std::uint32_t most_kv_heads = 1u << 16;
    static constexpr std::uint32_t most_head_dim = 1u << 14;
    static constexpr std::uint32_t most_tokens = 1u << 16;
    static constexpr std::uint64_t most_numbers = std::uint64_t{1} << (sizeof(std::size_t) > 4 ? 37 : 24);

    /// Whether the shape is valid: no extent is zero or too large.
    [[nodiscard]] constexpr bool valid() const noexcept {
        return layers > 0 && kv_heads > 0 && head_dim > 0 && tokens > 0 && layers <= most_layers &&
               kv_heads <= most_kv_heads && head_dim <= most_head_dim && tokens <= most_tokens &&
               std::uint64_t{layers} * kv_heads * head_dim * tokens <= most_numbers;
    }
    /// Whether a page is whole tiles.
    [[nodiscard]] constexpr bool whole_tiles() const noexcept { return tokens % tile_tokens == 0; }
};

/// The memory limit of a cache's pages, in bytes or in pages; the smaller one, if both are given.
struct cache_limits {
    std::size_t bytes = 0; ///< 0: not given.
    std::size_t pages = 0; ///< 0: not given.

    /// The number of pages. Requires: page_bytes > 0.
    [[nodiscard]] constexpr std::size_t pages_of(std::size_t page_bytes) const noexcept {
        constexpr std::size_t most = std::size_t{1} << 31;
        const std::size_t fit = bytes > 0 || pages == 0 ? bytes / page_bytes : most;
        return std::min({fit, pages > 0 ? pages : most, most});
    }
};

namespace detail {

void these_bytes_are_past_the_addresses_of_this_system(); // a name for the compiler's message

[[nodiscard]] consteval std::size_t shifted(unsigned long long n, unsigned bits) {
    if (n > std::numeric_limits<std::size_t>::max() >> bits)
        these_bytes_are_past_the_addresses_of_this_system();
    return static_cast<std::size_t>(n) << bits;
}

} // namespace detail

inline namespace literals {
/// n * 1024 bytes.
[[nodiscard]] consteval std::size_t operator""_KiB(unsigned long long n) {
    return detail::shifted(n, 10);
}
/// n * 1024^2 bytes.
[[nodiscard]] consteval std::size_t operator""_MiB(unsigned long long n) {
    return detail::shifted(n, 20);
}
/// n * 1024^3 bytes.
[[nodiscard]] consteval std::size_t operator""_GiB(unsigned long long n) {
    return detail::shifted(n, 30);
}
} // namespace literals

}} // namespace kvcache

// ---- kvcache/codec/concept.hpp ------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Position of one row of keys and values inside a page.
struct page_row {
    layer_id layer = {};
    head_id head = {};
    std::uint32_t row = 0;
};

/// Position of a tile of 16 rows inside a page.
struct page_tile {
    layer_id layer = {};
    head_id head = {};
    std::uint32_t tile = 0;
};

/// Pages that a query reads in full precision instead of quantized, in addition to its own page.
struct residual_window {
    std::size_t first = 0;  ///< First pages of the sequence.
    std::size_t recent = 0; ///< Pages directly before the query's own page.

    /// Returns whether a query in page `own` reads page `page` in full precision. True for its own page.
    [[nodiscard]] constexpr bool covers(std::size_t page, std::size_t own) const noexcept {
        return page + recent >= own || page < first;
    }

    friend constexpr bool operator==(const residual_window&, const residual_window&) = default;
};

/// Floats of one row of values in a tile: head_dim, rounded up to whole vectors of 16.
[[nodiscard]] constexpr std::size_t padded_head_dim(std::size_t head_dim) noexcept {
    return (head_dim + 15) / 16 * 16;
}

/// Reader of a page's keys and values in tiles of 16 rows. `keys` and `values` return the tile in place or decoded into
/// `scratch`: keys as (head_dim, 16), values as (16, padded_head_dim(head_dim)).
template <class S>
concept page_reader = requires(const S s, std::span<const std::byte> bytes, page_tile tile, std::span<float> scratch) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    { s.keys(bytes, tile, scratch) } -> std::same_as<const float*>;
    { s.values(bytes, tile, scratch) } -> std::same_as<const float*>;
};

/// Writer of single rows of keys and values into a page. A read returns the written row; each number is rounded by
/// itself at most. `copy` copies the first `rows` rows to another page. It reads no byte of later rows, which another
/// thread may be writing.
template <class S>
concept row_writer = requires(const S s, std::span<std::byte> page, std::span<const std::byte> bytes, page_row row,
                              std::span<const float> numbers, std::size_t rows) {
    s.encode(page, row, numbers, numbers);
    s.copy(bytes, page, rows);
};

/// Codec whose rows a host reads in place: `key_row` and `value_row` point to the head_dim numbers of a row, and
/// the same row of the next token is `row_stride` numbers further.
template <class S>
concept row_major_codec = row_writer<S> && requires(const S s, std::span<const std::byte> page, page_row at) {
    { s.key_row(page, at) } -> std::same_as<const typename S::number*>;
    { s.value_row(page, at) } -> std::same_as<const typename S::number*>;
    { s.row_stride() } -> std::same_as<std::size_t>;
};

/// Writer of whole pages: it quantizes one head of a layer once all rows of the page are present, in the layout of
/// codec::f32. `transform_key` and `transform_value` transform a row before it is stored, in full precision or
/// quantized. Queries are transformed as keys; the output of attention is transformed back by `inverse_transform`. row:
/// (head_dim)
template <class S>
concept page_writer = requires(const S s, std::span<std::byte> page, std::span<const std::byte> rows, layer_id layer,
                               head_id head, std::span<float> row) {
    s.encode(page, layer, head, rows);
    s.transform_key(row);
    s.transform_value(row);
    s.inverse_transform(row);
    { s.window() } -> std::same_as<residual_window>;
    { s.shape() } -> std::same_as<page_shape>;
};

/// Codec whose pages only its own backend reads and writes. The names of the backend and of the layout are part of the
/// cache's identity.
template <class S>
concept device_codec_state = requires(const S s) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    { s.layout_name() } -> std::same_as<std::string>;
    { s.backend() } -> std::same_as<std::string>;
};

/// Codec of pages that are blobs of the host. `begin` gives memory for a blob of so many bytes, `blob` is what was
/// written, `used` the bytes of the page that a record keeps; `clear` makes it a page without a blob.
template <class S>
concept opaque_codec_state = requires(const S s, std::span<std::byte> page, std::span<const std::byte> bytes,
                                      std::size_t size) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    { s.begin(page, size) } -> std::same_as<std::span<std::byte>>;
    { s.blob(bytes) } -> std::same_as<std::span<const std::byte>>;
    { s.used(bytes) } -> std::same_as<std::span<const std::byte>>;
    s.clear(page);
};

/// State of an opened codec.
template <class S>
concept codec_state =
    (page_reader<S> && (row_writer<S> || page_writer<S>)) || device_codec_state<S> || opaque_codec_state<S>;

/// What a page of a codec holds: rows that are written one by one, rows that are encoded together, or one blob.
enum class page_content { rows, encoded, opaque };
/// The content of a codec's pages.
template <codec_state S>
inline constexpr page_content content_of = page_writer<S>          ? page_content::encoded
                                           : opaque_codec_state<S> ? page_content::opaque
                                                                   : page_content::rows;

/// Whether a codec takes pages of any number of tokens. One that stores tiles takes multiples of 16.
template <codec_state S>
inline constexpr bool takes_any_tokens = row_major_codec<S> || device_codec_state<S> || opaque_codec_state<S>;

/// Whether a codec has pages of this shape.
template <codec_state S>
[[nodiscard]] constexpr bool has_pages_of(const page_shape& shape) noexcept {
    return shape.valid() && (takes_any_tokens<S> || shape.whole_tiles());
}

namespace detail {

/// The rule of page shapes, in words.
template <codec_state S>
inline constexpr const char* shape_rule =
    takes_any_tokens<S> ? "a page shape has no extent that is zero or too large"
                        : "a page shape has no extent that is zero or too large, and tokens is a multiple of 16";

/// Whether a codec gives attention the quantized operands of a tile, without decoding it.
template <class Codec>
inline constexpr bool gives_codes = requires(const Codec c, std::span<const std::byte> bytes, page_tile at) {
    c.codes(bytes, at);
};

} // namespace detail

/// Policy for the storage format of keys and values in a page.
template <class P>
concept codec_policy = plays<P, codec_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && codec_state<opened_by<P, page_shape>>;

}} // namespace kvcache

// ---- kvcache/core/digest.hpp --------------------------------------------------------------------------------------

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#if !__has_include(<xxhash.h>)
#error "kvcache: xxhash.h is not found; install xxHash (Debian: libxxhash-dev; vcpkg, Conan and MSYS2 have it too)"
#endif
#include <xxhash.h>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A 128-bit hash of some bytes.
struct digest {
    std::uint64_t low = 0;
    std::uint64_t high = 0;

    friend constexpr bool operator==(const digest&, const digest&) = default;
    friend constexpr auto operator<=>(const digest&, const digest&) = default;
};

/// Returns 32 hexadecimal digits, the high half first.
[[nodiscard]] inline std::string to_string(const digest& d) {
    std::string text;
    for (const std::uint64_t half : {d.high, d.low})
        for (int shift = 60; shift >= 0; shift -= 4)
            text += "0123456789abcdef"[(half >> shift) & 15u];
    return text;
}

/// The bytes of a text.
[[nodiscard]] inline std::span<const std::byte> text_bytes(std::string_view words) noexcept {
    return std::as_bytes(std::span(words.data(), words.size()));
}

/// XXH3-64 of `data`, seeded with the hash of what precedes it. Not collision-resistant against an adversary. Cost:
/// about 10 ns plus 0.1 ns a byte.
[[nodiscard]] inline std::uint64_t seeded_hash(std::uint64_t past, std::span<const std::byte> data) {
    return XXH3_64bits_withSeed(data.data(), data.size(), past);
}

/// XXH3-128 of bytes given piece by piece. Not collision-resistant against an adversary: equal digests are a hint that
/// a comparison of the content must confirm.
class digest_builder {
public:
    digest_builder() noexcept { XXH3_128bits_reset(&state_); }

    digest_builder& bytes(std::span<const std::byte> data) {
        XXH3_128bits_update(&state_, data.data(), data.size());
        return *this;
    }

    /// Appends eight bytes, little-endian.
    digest_builder& number(std::uint64_t n) {
        std::byte little[8];
        for (std::size_t i = 0; i < 8; ++i)
            little[i] = static_cast<std::byte>(n >> (8 * i) & 0xff);
        return bytes(little);
    }

    /// Appends the length, then the bytes, so that consecutive texts are unambiguous.
    digest_builder& text(std::string_view words) {
        number(words.size());
        return bytes(text_bytes(words));
    }

    digest_builder& nested(const digest& d) { return number(d.low).number(d.high); }

    [[nodiscard]] digest finish() const {
        const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
        return {hash.low64, hash.high64};
    }

private:
    XXH3_state_t state_;
};

/// A bijective 64-bit mixer: murmur3's finalizer (Appleby). Every input bit affects every output bit, so tables can use
/// keys that are not hashes.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

/// A SHA-256 value, collision-resistant also against an adversary, in the byte order of FIPS 180-4.
struct sha256_digest {
    std::array<std::byte, 32> bytes = {};

    friend constexpr bool operator==(const sha256_digest&, const sha256_digest&) = default;
    // The type is named for arrays that have only <, as those of libc++ 14.
    friend constexpr std::strong_ordering operator<=>(const sha256_digest&, const sha256_digest&) = default;
};

/// Returns 64 hexadecimal digits.
[[nodiscard]] inline std::string to_string(const sha256_digest& d) {
    std::string text;
    for (const std::byte b : d.bytes)
        for (const int shift : {4, 0})
            text += "0123456789abcdef"[std::to_integer<unsigned>(b) >> shift & 15u];
    return text;
}

/// Compares two digests in constant time, which does not reveal where they differ.
[[nodiscard]] constexpr bool same_in_constant_time(const sha256_digest& a, const sha256_digest& b) noexcept {
    std::byte difference{};
    for (std::size_t i = 0; i < a.bytes.size(); ++i)
        difference |= a.bytes[i] ^ b.bytes[i];
    return difference == std::byte{};
}

}} // namespace kvcache

// ---- kvcache/core/identity.hpp ------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The revision of the numeric contract: the order of every reduction, the polynomials, the tile and split lengths. It
/// changes whenever the same inputs may give different bits. It is part of a cache's identity.
inline constexpr unsigned numeric_contract_revision = 1;

/// The revision of the record format of snapshots and tiers (docs/format.md). It changes whenever the meaning of any
/// byte changes. It is part of a cache's identity, so records of another revision are not found.
inline constexpr unsigned record_format_revision = 2;

/// Everything besides the tokens that determines the bits of a cached page. Two caches may exchange pages if and only
/// if every field is equal. A new field must be named in for_each_field, which does not compile otherwise; `digest_of`
/// then hashes it.
struct identity {
    digest weights = {};            ///< Digest of the checkpoint's names, dtypes, shapes and bytes.
    std::string adapter = {};       ///< Name and version of the LoRA adapter; empty for none.
    digest tokenizer = {};          ///< Digest of tokenizer.json.
    std::string config = {};        ///< Architecture and extents, as canonical text.
    std::string rope = {};          ///< RoPE parameters: base, scaling, frequencies.
    std::string codec = {};         ///< The page codec and its options.
    std::string layout = {};        ///< The layout of a page.
    std::uint64_t page_tokens = 0;  ///< Tokens per page.
    std::string weight_format = {}; ///< Format of the weights that the GEMMs read: "f32", "bf16", "Q4_K".
    std::uint64_t numeric_contract = numeric_contract_revision;
    std::string backend = "cpu";   ///< The backend and its kernel revision.
    std::string lineage = "exact"; ///< "exact", or "approximate" for pages that attended to an inexact page.
    std::uint64_t format = record_format_revision;
    std::string tenant = {}; ///< A salt that keeps tenants apart.

    friend bool operator==(const identity&, const identity&) = default;
};

namespace detail {

inline void append_field(digest_builder& to, const digest& field) {
    to.nested(field);
}
inline void append_field(digest_builder& to, const std::string& field) {
    to.text(field);
}
inline void append_field(digest_builder& to, std::uint64_t field) {
    to.number(field);
}

} // namespace detail

/// Calls visit(name, field) for every field, in order.
template <class Visit>
void for_each_field(const identity& id, Visit visit) {
    // A structured binding: a field that is added and not named here does not compile.
    const auto& [weights, adapter, tokenizer, config, rope, codec, layout, page_tokens, weight_format, numeric_contract,
                 backend, lineage, format, tenant] = id;
    visit("weights", weights);
    visit("adapter", adapter);
    visit("tokenizer", tokenizer);
    visit("config", config);
    visit("rope", rope);
    visit("codec", codec);
    visit("layout", layout);
    visit("page_tokens", page_tokens);
    visit("weight_format", weight_format);
    visit("numeric_contract", numeric_contract);
    visit("backend", backend);
    visit("lineage", lineage);
    visit("format", format);
    visit("tenant", tenant);
}

/// The digest of an identity: domain-separated, every field preceded by its name, length-prefixed.
[[nodiscard]] inline digest digest_of(const identity& id) {
    digest_builder builder;
    builder.text("kvcache identity 3");
    for_each_field(id, [&](const char* name, const auto& field) {
        builder.text(name);
        detail::append_field(builder, field);
    });
    return builder.finish();
}

}} // namespace kvcache

// ---- kvcache/layers/concept.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// What a layers policy is opened for.
struct layers_capacity {
    std::size_t pages = 0;                         ///< Pages of the cache.
    std::size_t bytes = 0;                         ///< Of pages and blocks together, at most.
    std::span<const std::size_t> block_bytes = {}; ///< Bytes of a block, by group of the layout.
};

/// The working state of a layers policy: layers::uniform::state, which keeps nothing, or that of
/// layers::grouped.
template <class S>
concept layers_state = requires {
    { S::several } -> std::convertible_to<bool>;
};

/// A policy that says which layers of a model keep what: all the same, or groups of them.
template <class P>
concept layers_policy = plays<P, layers_role> && requires(const P p, const layers_capacity& capacity) {
    p.open(capacity);
} && layers_state<opened_by<P, layers_capacity>>;

}} // namespace kvcache

// ---- kvcache/layers/uniform.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace layers {

/// All layers keep keys and values of every token, in the pages of the cache's shape. Standard.
struct uniform {
    using role = layers_role;

    /// There are no blocks besides the pages.
    struct state {
        static constexpr bool several = false;
    };
    [[nodiscard]] state open(const layers_capacity&) const { return {}; }
};

static_assert(layers_policy<uniform>);

}}} // namespace kvcache::layers

// ---- kvcache/tier/concept.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Metadata of a record that a tier receives.
struct tier_entry {
    sha256_digest name = {};
    double cost = 0.0;       ///< Seconds that a hit saves; 0 if unknown.
    std::uint32_t depth = 0; ///< Number of records before it in its chain.
};

/// Contents and counters of a tier. If several processes share a store, each counts its own calls.
struct tier_counts {
    std::size_t records = 0;   ///< Records present now.
    std::size_t bytes = 0;     ///< Bytes of the records present now.
    std::uint64_t hits = 0;    ///< Records read.
    std::uint64_t misses = 0;  ///< Records requested but absent.
    std::uint64_t written = 0; ///< Records written.
    std::uint64_t bytes_written = 0;
    std::uint64_t evicted = 0;  ///< Records evicted for other records.
    std::uint64_t dropped = 0;  ///< Records accepted but not written: no room, no time, or already present.
    std::uint64_t failures = 0; ///< Calls that failed because of the store or the system, later writes included.

    friend bool operator==(const tier_counts&, const tier_counts&) = default;
};

/// The callable that `read` calls with a record's bytes, which are valid during the call. It stands for any callable
/// of this form.
struct tier_use {
    void operator()(std::span<const std::byte> bytes) const;
};

/// The working state of a tier: records by name, kept beyond the cache's memory within a limit of their own. A tier
/// guarantees no integrity: a record may come back damaged, and the reader checks it (record/record.hpp).
///
/// `read` calls its argument with the record's bytes and returns whether it did; false is a miss. `put` accepts a
/// record in pieces and copies them before it returns; the record may be written later, or never. `contains` is a
/// cheap hint. `erase` removes a record that its reader has rejected. `flush` returns after everything accepted is
/// written. `status` returns what is wrong with the store, if anything; such a tier only misses. No call throws for a
/// fault of the store, every call may be made by several threads at once, and failed calls are counted. Two members
/// are optional: `is_null()`, if the tier never holds a record, so that none is made for it; `parallel_reads()`, the
/// useful number of threads that read different records, if it is more than one.
template <class S>
concept tier_state = std::movable<S> &&
    requires(S s, const S c, const tier_entry& entry, const sha256_digest& name,
             std::span<const std::span<const std::byte>> pieces, const tier_use& use) {
    { s.read(name, use) } -> std::same_as<result<bool>>;
    { s.put(entry, pieces) } -> std::same_as<result<void>>;
    { s.contains(name) } -> std::same_as<bool>;
    { s.erase(name) } -> std::same_as<result<void>>;
    { s.flush() } -> std::same_as<result<void>>;
    { c.status() } -> std::same_as<result<void>>;
    { c.counts() } -> std::same_as<tier_counts>;
};

/// Returns whether a tier never holds a record. Cost: O(1).
template <tier_state Tier>
[[nodiscard]] bool is_null(const Tier& tier) noexcept {
    if constexpr (requires { tier.is_null(); })
        return tier.is_null();
    else
        return false;
}

/// Returns the useful number of threads that read different records of a tier: one, if the tier does not define it.
template <tier_state Tier>
[[nodiscard]] std::size_t max_parallel_reads(const Tier& tier) noexcept {
    if constexpr (requires { tier.parallel_reads(); })
        return tier.parallel_reads();
    else
        return 1;
}

/// A policy that stores pages after they are evicted from memory.
template <class P>
concept tier_policy = plays<P, tier_role> && requires(const P p) {
    p.open();
} && tier_state<opened_by<P>>;

}} // namespace kvcache

// ---- kvcache/tier/none.hpp ----------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// No tier: pages evicted from memory are lost.
struct none {
    using role = tier_role;

    class state {
    public:
        template <class Use>
        [[nodiscard]] result<bool> read(const sha256_digest&, Use&&) {
            return false;
        }
        [[nodiscard]] result<void> put(const tier_entry&, std::span<const std::span<const std::byte>>) { return {}; }
        [[nodiscard]] bool contains(const sha256_digest&) const noexcept { return false; }
        [[nodiscard]] result<void> erase(const sha256_digest&) { return {}; }
        [[nodiscard]] result<void> flush() { return {}; }
        [[nodiscard]] result<void> status() const { return {}; }
        [[nodiscard]] tier_counts counts() const noexcept { return {}; }
        [[nodiscard]] bool is_null() const noexcept { return true; }
    };

    [[nodiscard]] state open() const { return {}; }
};

static_assert(tier_policy<none>);

}}} // namespace kvcache::tier

// ---- kvcache/cache/config.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// A salt that separates a tenant's prompts from all others, in the index and in every name: a nonempty byte string. It
/// need not be secret to separate tenants within one process; names that leave the process are only as secret as the
/// salt.
class tenant_salt {
public:
    /// Requires: `bytes` is not empty.
    explicit tenant_salt(std::string bytes) : bytes_(std::move(bytes)) {
        require(!bytes_.empty(), "a tenant's salt is not empty");
    }
    [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

private:
    std::string bytes_;
};

/// The page usage of a tenant.
struct tenant_usage {
    std::size_t pages = 0;     ///< Pages of the tenant, in use or evictable.
    std::size_t evictable = 0; ///< Of these, pages without references, cached for its next match.
    std::size_t quota = std::numeric_limits<std::size_t>::max(); ///< Maximum number of pages.

    friend constexpr bool operator==(const tenant_usage&, const tenant_usage&) = default;
};

class tenant_registry;

/// A tenant of a cache, as `open_tenant` returns it. A prompt that is acquired for a tenant finds only what the same
/// tenant has stored. Copies are the same tenant; while one exists, its number is not given to another. The default
/// stands for a cache without tenants. Requires: a copy outlives the tenant's sequences and leases.
class tenant {
public:
    tenant() = default;
    /// The tenant with this number in the cache of the registry. `uses` counts the copies.
    tenant(const tenant_registry& of, std::uint32_t number, std::shared_ptr<const void> uses)
        : of_(&of), number_(number), uses_(std::move(uses)) {}

    /// The number in the cache: 0 for none, 1 for the pages that belong to no tenant.
    [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
    [[nodiscard]] bool belongs_to(const tenant_registry& of) const noexcept { return of_ == &of; }

    friend bool operator==(const tenant&, const tenant&) = default;

private:
    const tenant_registry* of_ = nullptr;
    std::uint32_t number_ = 0;
    std::shared_ptr<const void> uses_;
};

/// The tenants of a cache by salt. Number 1 has no salt: all callers without a salt share it. It stays where it is: its
/// tenants point to it.
class tenant_registry {
public:
    /// For at most `most` tenants with a salt.
    explicit tenant_registry(std::size_t most) : most_(most) {}
    tenant_registry(const tenant_registry&) = delete;
    tenant_registry& operator=(const tenant_registry&) = delete;

    /// The maximum number of tenants with a salt; 0 in a cache without tenants.
    [[nodiscard]] std::size_t most() const noexcept { return most_; }
    /// The number of the tenants, the shared one included; the highest number too.
    [[nodiscard]] std::size_t size() const noexcept { return accounts_.size(); }
    [[nodiscard]] bool full() const noexcept { return size() > most_; }
    [[nodiscard]] const std::string& salt(std::uint32_t number) const { return accounts_[number - 1].salt; }

    /// The tenant of a salt, used now; nullopt if there is none.
    [[nodiscard]] std::optional<tenant> find(const std::string& salt) {
        for (std::uint32_t number = 2; number <= size(); ++number)
            if (accounts_[number - 1].salt == salt)
                return use(number);
        return std::nullopt;
    }

    /// What the registry keeps of one tenant.
    struct account {
        std::string salt = {};
        std::shared_ptr<const std::uint64_t> copies = std::make_shared<const std::uint64_t>(); ///< Counts the copies.
        std::uint64_t used = 0; ///< When it was last opened.
    };
    /// Allocates memory for one more. Throws: bad_alloc; nothing has changed then.
    void reserve() { accounts_.reserve(size() + 1); }
    /// Adds a tenant and returns its number. Requires: `reserve` was called for it.
    std::uint32_t add(account one) noexcept {
        accounts_.push_back(std::move(one));
        return static_cast<std::uint32_t>(size());
    }
    /// Gives a number to another salt.
    void replace(std::uint32_t number, std::string salt) noexcept { accounts_[number - 1].salt = std::move(salt); }
    /// A copy of a tenant, used now.
    [[nodiscard]] tenant use(std::uint32_t number) noexcept {
        accounts_[number - 1].used = ++uses_;
        return {*this, number, accounts_[number - 1].copies};
    }

    /// The tenant to replace: of those without a copy the one with the fewest pages, and of these the one that was not
    /// used for the longest time. `pages_of(number)` is the number of a tenant's pages. Returns 0 if all have copies.
    template <class PagesOf>
    [[nodiscard]] std::uint32_t replaceable(PagesOf&& pages_of) const {
        std::uint32_t found = 0;
        std::pair<std::size_t, std::uint64_t> least;
        for (std::uint32_t number = 2; number <= size(); ++number) {
            const account& one = accounts_[number - 1];
            const std::pair<std::size_t, std::uint64_t> rank(pages_of(number), one.used);
            if (one.copies.use_count() == 1 && (found == 0 || rank < least)) {
                found = number;
                least = rank;
            }
        }
        return found;
    }

    /// The error where all tenants are in use.
    [[nodiscard]] error refuse() const {
        return {error_code::out_of_range, "tenants",
                detail::joined({"there are ", std::to_string(most_), " tenants already, as many as there may be"})};
    }

private:
    std::size_t most_;
    std::vector<account> accounts_; // by number, from 1
    std::uint64_t uses_ = 0;
};

/// What a cache is opened for.
struct cache_config {
    page_shape shape = {};
    cache_limits limit = {};
    identity id = {};        ///< Everything else that determines a page's bits.
    std::size_t tenants = 0; ///< The maximum number of tenants; 0 for a cache without tenants.
    /// Whether a sequence whose page fills takes a cached page with the same content instead, and frees its own. If
    /// not, both keep their pages, no entry of a page table ever changes at a commit, and later prompts share the
    /// first.
    bool merge_equal_pages = true;
    /// Whether pages are evicted from the tenant with the most pages, and for a tenant from none that has no more than
    /// itself (cache/tenant_quotas.hpp). If not, the eviction policy chooses among the pages of all tenants.
    bool fair_tenants = false;
};

/// One policy for each role of a cache, in this order. basic_cache requires that each has its role.
template <class Codec, class Storage, class Hash, class Index, class Eviction, class Recompute, class Tier,
          class Observer, class Locking, class Layers = layers::uniform>
struct cache_policies {
    Codec codec = {};
    Storage storage = {};
    Hash hash = {};
    Index index = {};
    Eviction eviction = {};
    Recompute recompute = {};
    Tier tier = {};
    Observer observer = {};
    Locking locking = {};
    Layers layers = {};
};

/// What acquire does about a prefix of the prompt that another lease computes at the moment, made by acquire too.
enum class pending_prefix {
    compute, ///< Nothing: both compute it.
    refuse,  ///< Returns the error `pending`; acquire again when a lease has ended.
    wait,    ///< Waits until no lease computes more of it than is cached. Needs a locking with `wait`; otherwise it
             ///< refuses.
};

/// How rows are reserved.
struct reserve_options {
    /// Rows that are written and attended at a time, at most, in ascending order. A codec that encodes whole pages
    /// keeps no more of them in full precision.
    std::size_t max_batch_tokens = std::numeric_limits<std::size_t>::max();
    /// Whether all rows are committed, or none: they come from elsewhere. Layer groups then have blocks only for those
    /// that the next query reads.
    bool whole = false;
};

/// How a prompt is acquired.
struct acquire_options {
    kvcache::tenant tenant = {}; ///< Whose prompt it is; required by a cache with tenants.
    pending_prefix pending = pending_prefix::compute;
    std::size_t max_batch_tokens = reserve_options{}.max_batch_tokens; ///< See reserve_options.
    bool load = true; ///< Whether pages that only the tier has are loaded.
    /// Rows that the lease reserves at most, the first to compute. With layer groups a lease has the window blocks of
    /// all its rows, so that a long prompt takes less memory in parts: this one, and reserved ones after it.
    std::size_t rows = std::numeric_limits<std::size_t>::max();
};

/// Rows to reserve for a sequence.
template <class Cache>
struct reservation {
    typename Cache::sequence* to = nullptr;
    std::size_t rows = 0;
    reserve_options options = {};
};

/// The occupancy of a cache. Every page is free, in use or evictable.
struct cache_stats {
    std::size_t pages = 0;      ///< Number of pages within the cache's limit.
    std::size_t free = 0;       ///< Pages that hold nothing: never used, or freed.
    std::size_t in_use = 0;     ///< Pages referenced by live sequences, each counted once however many share it.
    std::size_t evictable = 0;  ///< Pages without references, cached for the next match until space is needed.
    std::size_t page_bytes = 0; ///< Bytes of a page.
    std::size_t sequences = 0;  ///< Live sequences and matches.

    std::size_t residual_pages = 0; ///< Pages with attached full-precision rows, for a codec of whole pages.
    std::size_t residual_bytes = 0; ///< What those take of the budget.

    friend constexpr bool operator==(const cache_stats&, const cache_stats&) = default;
};

/// Counters of a cache's use of its tier.
struct tier_stats {
    std::uint64_t asked = 0;          ///< Prompts with whole pages that were not in memory.
    std::uint64_t hits = 0;           ///< Of these, prompts of which the tier had pages.
    std::uint64_t loaded_tokens = 0;  ///< Tokens loaded, verified and published.
    std::uint64_t refused = 0;        ///< Records that were damaged or not the requested ones; see tier_client.
    std::uint64_t failed = 0;         ///< Tier calls that failed, and loads and hand-overs that ran out of memory.
    std::uint64_t no_room = 0;        ///< Failed attempts to allocate pages for records; one prompt can have several.
    std::uint64_t slower = 0;         ///< Prompts with pages in the tier that are faster to compute.
    std::uint64_t handed_over = 0;    ///< Records given to the tier, which may write them later, or drop them.
    std::uint64_t stored = 0;         ///< Records that the tier has written.
    std::uint64_t chunks = 0;         ///< Chunks of which records were handed over.
    std::uint64_t loaded_chunks = 0;  ///< Chunks that were found in the tier, loaded and verified.
    std::uint64_t store_failures = 0; ///< Failures that the tier counted, those of its later writes included.
    std::optional<error> last = {};   ///< The error of the last refusal or failure.
};

/// The tier operations of a cache: cache/tier_client.hpp, which <kvcache/tier.hpp> includes.
template <tier_state Tier>
class tier_client;

/// The client of a cache without a tier: it makes no records.
template <>
class tier_client<tier::none::state> {
public:
    tier_client(tier::none::state, const identity&, const std::string&) {}

    [[nodiscard]] tier::none::state& tier() noexcept { return none_; }
    [[nodiscard]] const tier::none::state& tier() const noexcept { return none_; }
    [[nodiscard]] tier_stats stats() const { return {}; }

private:
    tier::none::state none_;
};

namespace detail {

// A host's identity with the fields that the cache itself decides: codec, layout, page size, device backend.
// `policies`: those of the cache.
template <class Codec, class Policies>
[[nodiscard]] identity complete_identity(identity id, const Codec& codec, const page_shape& shape,
                                         [[maybe_unused]] const Policies& policies) {
    id.codec = codec.name();
    id.layout = "key tiles of 16, value rows";
    if constexpr (requires { codec.layout_name(); })
        id.layout = codec.layout_name();
    if constexpr (device_codec_state<Codec>)
        id.backend = codec.backend();
    else
        id.layout += joined({"; ", std::to_string(shape.layers), " layers, ", std::to_string(shape.kv_heads),
                             " KV heads of ", std::to_string(shape.head_dim)});
    if constexpr (requires { policies.layers.layout.name(); })
        id.layout += "; groups: " + policies.layers.layout.name();
    if constexpr (requires { policies.codec.blocks; })
        id.layout += "; blocks in " + policies.codec.blocks.open(shape).name();
    id.page_tokens = shape.tokens;
    return id;
}

// The key of a keyed hash policy, which also authenticates records; empty for a hash without a key.
template <class Hash>
[[nodiscard]] std::string secret_of(const Hash& hash) {
    if constexpr (requires { std::string(hash.key); })
        return hash.key;
    else
        return {};
}

} // namespace detail

}} // namespace kvcache

// ---- kvcache/locking/concept.hpp ----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The working state of a locking policy: a lockable, as std::lock_guard requires, that is never moved. With `wait` and
/// `notify` a thread can wait until a lease ends.
template <class S>
concept locking_state = requires(S& s) {
    s.lock();
    s.unlock();
};

/// A locking under which a thread can wait: `wait` unlocks, waits for `notify`, and locks again.
template <class S>
concept waiting_state = locking_state<S> && requires(S& s) {
    s.wait();
    s.notify();
};

/// A policy that defines how threads share a cache.
template <class P>
concept locking_policy =
    plays<P, locking_role> && std::default_initializable<typename P::state> && locking_state<typename P::state>;

}} // namespace kvcache

// ---- kvcache/locking/none.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace locking {

/// Only one thread at a time uses the cache; nothing is locked.
struct none {
    using role = locking_role;
    struct state {
        void lock() noexcept {}
        void unlock() noexcept {}
    };
};

static_assert(locking_policy<none>);

}}} // namespace kvcache::locking

// ---- kvcache/cache/guards.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// A cache without a lock does not call one.
template <class Locking>
struct no_guard {
    explicit no_guard(const Locking&) {}
};
template <class Locking>
using guard_of =
    std::conditional_t<std::same_as<Locking, locking::none::state>, no_guard<Locking>, std::lock_guard<Locking>>;

// Holds the lock. At its end it wakes the threads that wait for the lease of a prompt, if one has ended meanwhile.
template <class Locking, class Sequences>
class ending {
public:
    ending(Locking& lock, const Sequences& sequences)
        : lock_(lock), sequences_(sequences), guard_(lock), before_(sequences.prompts_ended()) {}
    ending(ending&&) = delete;
    ending& operator=(ending&&) = delete;
    ~ending() {
        if constexpr (waiting_state<Locking>)
            if (sequences_.prompts_ended() != before_)
                lock_.notify();
    }

private:
    Locking& lock_;
    const Sequences& sequences_;
    guard_of<Locking> guard_;
    std::uint64_t before_;
};

}}} // namespace kvcache::detail

// ---- kvcache/index/concept.hpp ------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The reason why a match ended.
enum class match_end {
    complete,  ///< Every token was found.
    unknown,   ///< Nothing is stored after the last token found.
    different, ///< A different token is stored there.
};

/// The longest known prefix and its pages, in order. Only the last page may be matched in part.
struct index_match {
    std::vector<page_id> pages = {};
    std::size_t tokens = 0;
    match_end end = match_end::unknown;
    std::optional<token_id> stored = {}; ///< For `different`: the token stored where the match ended.
};

/// The outcome of an insertion.
struct insertion {
    enum class outcome {
        inserted, ///< The page is new in the index.
        extended, ///< The page was in the index with fewer rows.
        covered,  ///< `other` already holds the run, or a longer run that starts with it; nothing changed.
    };
    outcome what = outcome::inserted;
    std::optional<page_id> other = {}; ///< covered: the page with the run; otherwise: the page that was replaced.
};

/// The working state of an index: the tokens of each page and the page that precedes it. A page's run continues its
/// parent's run; a page with children is full and cannot be erased. `insert` may throw bad_alloc and has then changed
/// nothing; `erase` does not throw. A state with `match(tokens, found)` too uses the memory of an earlier match.
template <class S>
concept index_state = requires(S s, const S c, std::span<const token_id> tokens, page_id page,
                               std::optional<page_id> parent) {
    { c.match(tokens) } -> std::same_as<index_match>;
    { s.insert(parent, tokens, page) } -> std::same_as<insertion>;
    s.erase(page);
    { c.contains(page) } -> std::same_as<bool>;
    { c.leaf(page) } -> std::same_as<bool>;
    { c.parent(page) } -> std::same_as<std::optional<page_id>>;
    { c.run(page) } -> std::same_as<std::span<const token_id>>;
};

/// A run of a prompt's tokens that is stored after any prefix.
struct chunk_match {
    std::size_t first = 0; ///< Position in the prompt.
    std::size_t count = 0; ///< Number of tokens.
    page_id last = {};     ///< The page of the last token; the tokens before it are in the page's ancestors.
    std::uint32_t end = 0; ///< Rows of that page up to the end of the chunk.

    friend bool operator==(const chunk_match&, const chunk_match&) = default;
};

/// An index that also finds tokens by content alone, in chunks of `least()` tokens or more. Lookups with one salt do
/// not find chunks of another.
template <class S>
concept chunk_index_state = index_state<S> &&
    requires(S s, const S c, std::span<const token_id> tokens, std::uint64_t salt, page_id page, std::uint32_t end,
             std::size_t count) {
    { s.note(salt, page, end, count) } -> std::same_as<bool>;
    { c.chunks(salt, tokens, count) } -> std::same_as<std::vector<chunk_match>>;
    { c.least() } -> std::same_as<std::size_t>;
};

/// A policy that finds cached tokens.
template <class P>
concept index_policy = plays<P, index_role> && requires(const P p, page_shape shape, std::size_t pages) {
    p.open(shape, pages);
} && index_state<opened_by<P, page_shape, std::size_t>>;

}} // namespace kvcache

// ---- kvcache/cache/lookup_result.hpp ------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// How many tokens of a prompt every layer group can continue.
struct group_limit {
    std::size_t tokens = 0;
    std::size_t others = 0;                  ///< How many the groups without the limiting one could continue.
    std::optional<std::uint32_t> group = {}; ///< The group of the layout that limits them, if one does.
};

/// What a cache knows of a prompt, and where and why that ends. A plain value: it pins no page.
struct lookup_result {
    std::size_t prompt_tokens = 0; ///< Tokens that were looked up.
    std::size_t cached_tokens = 0; ///< Leading tokens that are cached and can be continued.
    std::size_t common_prefix = 0; ///< Leading tokens that equal the stored ones; more than cached_tokens inside a page
                                   ///< that a codec encodes as a whole.
    match_end end = match_end::unknown;
    std::optional<token_id> differing_token = {}; ///< For `different`: the token stored at position common_prefix.
    std::size_t loaded_tokens = 0;                ///< Cached tokens that came from the tier just now.
    std::size_t pending_tokens = 0; ///< By `lookup` alone: leading tokens that will be cached, in whole pages, once the
                                    ///< leases are committed that acquire has given out.
    std::optional<std::uint32_t> limiting_group = {}; ///< With layer groups: the group that can continue no more.
    std::size_t other_groups_tokens = 0;              ///< Tokens that the other groups could continue.

    /// Shortens what is cached to what every layer group can continue. Returns the number of tokens.
    std::size_t limit(const group_limit& of) noexcept {
        limiting_group = of.group;
        other_groups_tokens = of.others;
        return cached_tokens = of.tokens;
    }

    /// Explains the result in one sentence: "37 of 52 tokens known; token 37 differs from the one stored (1189)".
    [[nodiscard]] std::string explain() const {
        std::string words =
            detail::joined({std::to_string(cached_tokens), " of ", std::to_string(prompt_tokens), " tokens known"});
        if (loaded_tokens > 0)
            words += detail::joined({", ", std::to_string(loaded_tokens), " of them from the tier"});
        if (limiting_group)
            words += detail::joined({"; layer group ", std::to_string(*limiting_group),
                                     " can continue no more, the others ", std::to_string(other_groups_tokens)});
        if (end == match_end::unknown)
            words += "; nothing is stored after them";
        if (end == match_end::different)
            words += detail::joined({"; token ", std::to_string(common_prefix), " differs from the one stored (",
                                     std::to_string(index_of(*differing_token)), ")"});
        return words;
    }
};

}} // namespace kvcache

// ---- kvcache/core/platform/memory.hpp -----------------------------------------------------------------------------

#if defined(__cpp_lib_memory_resource)
#include <memory_resource>
#endif
#if KVCACHE_POSIX
#include <sys/mman.h>
#include <unistd.h>
#endif

// Functions of kernel32 that neither C nor C++ has, declared by hand, because windows.h defines thousands of macros.
// The types are those of windows.h, so a file may include both.
#if KVCACHE_WINDOWS
struct _SECURITY_ATTRIBUTES;
struct _MEMORY_BASIC_INFORMATION;

extern "C" {
__declspec(dllimport) void* __stdcall VirtualAlloc(void*, std::size_t, unsigned long, unsigned long);
__declspec(dllimport) int __stdcall VirtualFree(void*, std::size_t, unsigned long);
__declspec(dllimport) std::size_t __stdcall VirtualQuery(const void*, struct _MEMORY_BASIC_INFORMATION*, std::size_t);
__declspec(dllimport) int __stdcall VirtualUnlock(void*, std::size_t);
__declspec(dllimport) int __stdcall GetPhysicallyInstalledSystemMemory(unsigned long long*);
__declspec(dllimport) void* __stdcall CreateFileMappingW(void*, struct _SECURITY_ATTRIBUTES*, unsigned long,
                                                         unsigned long, unsigned long, const wchar_t*);
__declspec(dllimport) void* __stdcall MapViewOfFile(void*, unsigned long, unsigned long, unsigned long, std::size_t);
__declspec(dllimport) int __stdcall UnmapViewOfFile(const void*);
__declspec(dllimport) int __stdcall CloseHandle(void*);
}
#endif

// std::pmr::memory_resource as kvcache::pmr::memory_resource. libc++ has it since version 16, and macOS since 14.

#if defined(__cpp_lib_memory_resource)

namespace kvcache { inline namespace KVCACHE_ABI {
namespace pmr = std::pmr;
}} // namespace kvcache

#else

namespace kvcache { inline namespace KVCACHE_ABI { namespace pmr {

/// As std::pmr::memory_resource.
class memory_resource {
public:
    virtual ~memory_resource() = default;

    [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
        return do_allocate(bytes, alignment);
    }
    void deallocate(void* at, std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
        do_deallocate(at, bytes, alignment);
    }
    [[nodiscard]] bool is_equal(const memory_resource& other) const noexcept { return do_is_equal(other); }

private:
    virtual void* do_allocate(std::size_t bytes, std::size_t alignment) = 0;
    virtual void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) = 0;
    [[nodiscard]] virtual bool do_is_equal(const memory_resource& other) const noexcept = 0;
};

/// As std::pmr::new_delete_resource.
[[nodiscard]] inline memory_resource* new_delete_resource() noexcept {
    class new_delete : public memory_resource {
        void* do_allocate(std::size_t bytes, std::size_t alignment) override {
            return ::operator new (bytes, std::align_val_t{alignment});
        }
        void do_deallocate(void* at, std::size_t, std::size_t alignment) override {
            ::operator delete (at, std::align_val_t{alignment});
        }
        [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
    };
    static new_delete one;
    return &one;
}

}}} // namespace kvcache::pmr

#endif

namespace kvcache { inline namespace KVCACHE_ABI { namespace platform {

/// Bytes of a page of the system's memory, or a guess.
[[nodiscard]] inline std::size_t system_page_bytes() noexcept {
#if KVCACHE_POSIX
    return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
#else
    return 4096;
#endif
}

/// Bytes of the machine's memory; zero where the system does not tell.
[[nodiscard]] inline std::uint64_t machine_bytes() noexcept {
#if KVCACHE_POSIX
    const auto pages = ::sysconf(_SC_PHYS_PAGES);
    return pages < 0 ? 0 : static_cast<std::uint64_t>(pages) * system_page_bytes();
#elif KVCACHE_WINDOWS
    unsigned long long kilobytes = 0;
    return ::GetPhysicallyInstalledSystemMemory(&kilobytes) != 0 ? std::uint64_t{kilobytes} * 1024 : 0;
#else
    return 0;
#endif
}

/// Advises the system to back these bytes with huge pages. Returns whether it accepts the advice.
inline bool advise_huge_pages([[maybe_unused]] std::byte* at, [[maybe_unused]] std::size_t bytes) noexcept {
#if KVCACHE_POSIX && defined(MADV_HUGEPAGE)
    return ::madvise(at, bytes, MADV_HUGEPAGE) == 0;
#else
    return false;
#endif
}

/// Zeroed memory from the system, which clears a page on the first write to it where it can. Returns null if there is
/// none. Requires: `alignment` is a power of two and a multiple of the system's pages, and divides `bytes`; the sum of
/// both can be represented.
[[nodiscard]] inline std::byte* map_zeroed(std::size_t bytes, std::size_t alignment) noexcept {
    [[maybe_unused]] const auto past = [alignment](const void* at) { // the bytes from a boundary to `at`
        return reinterpret_cast<std::uintptr_t>(at) % alignment;
    };
#if KVCACHE_POSIX
    // More by the alignment, so that a boundary lies inside; the excess is unmapped.
    void* const from = ::mmap(nullptr, bytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (from == MAP_FAILED)
        return nullptr;
    auto* const first = static_cast<std::byte*>(from);
    const std::size_t before = past(from) == 0 ? 0 : alignment - past(from);
    if (before > 0)
        ::munmap(first, before);
    ::munmap(first + before + bytes, alignment - before);
    return first + before;
#elif KVCACHE_WINDOWS
    constexpr unsigned long reserve = 0x2000, commit = 0x1000, read_write = 4;
    // An excess cannot be given back here: its addresses stay reserved, without memory.
    auto* const from = static_cast<std::byte*>(::VirtualAlloc(nullptr, bytes + alignment, reserve, read_write));
    if (from == nullptr)
        return nullptr;
    std::byte* const first = from + (past(from) == 0 ? 0 : alignment - past(from));
    if (::VirtualAlloc(first, bytes, commit, read_write) != nullptr)
        return first;
    ::VirtualFree(from, 0, 0x8000);
    return nullptr;
#else
    void* const at = ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
    return at == nullptr ? nullptr : static_cast<std::byte*>(std::memset(at, 0, bytes));
#endif
}

/// Gives memory of map_zeroed back, with the same numbers.
inline void unmap_zeroed(std::byte* at, [[maybe_unused]] std::size_t bytes,
                         [[maybe_unused]] std::size_t alignment) noexcept {
#if KVCACHE_POSIX
    ::munmap(at, bytes);
#elif KVCACHE_WINDOWS
    void* information[8] = {}; // a MEMORY_BASIC_INFORMATION; the second field is where the reservation begins
    if (::VirtualQuery(at, reinterpret_cast<struct _MEMORY_BASIC_INFORMATION*>(information), sizeof information) != 0)
        ::VirtualFree(information[1], 0, 0x8000);
#else
    ::operator delete (at, std::align_val_t{alignment});
#endif
}

#if KVCACHE_POSIX

/// What a mapped range of addresses has.
enum class backing {
    nothing, ///< Addresses alone: an access kills the process.
    lazy,    ///< Memory that is committed where it is touched.
    huge,    ///< Huge pages that the administrator reserved, all of them at once; nothing where a system has none.
};

/// A mapped range of this process's addresses, unmapped on destruction. Movable; a move does not relocate the bytes.
class address_range {
public:
    address_range() = default;
    address_range(address_range&& other) noexcept
        : begin_(std::exchange(other.begin_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    address_range& operator=(address_range&& other) noexcept {
        std::swap(begin_, other.begin_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~address_range() {
        if (begin_ != nullptr)
            ::munmap(begin_, size_);
    }

    /// Maps `size` bytes. Returns an empty range and sets errno if the system refuses. Requires: size > 0.
    [[nodiscard]] static address_range map(std::size_t size, backing of) noexcept {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_HUGETLB) // without MAP_NORESERVE, the system reserves the pages now or fails now
        flags |= of == backing::huge ? MAP_HUGETLB : 0;
#else
        if (of == backing::huge)
            return {};
#endif
#if defined(MAP_NORESERVE)
        flags |= of == backing::huge ? 0 : MAP_NORESERVE;
#endif
        address_range made;
        const int protection = of == backing::nothing ? PROT_NONE : PROT_READ | PROT_WRITE;
        void* const at = ::mmap(nullptr, size, protection, flags, -1, 0);
        if (at != MAP_FAILED) {
            made.begin_ = static_cast<std::byte*>(at);
            made.size_ = size;
        }
        return made;
    }

    [[nodiscard]] bool empty() const noexcept {
        return begin_ == nullptr;
    }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept {
        return {begin_, size_};
    }

private:
    std::byte* begin_ = nullptr;
    std::size_t size_ = 0;
};

#endif

}}} // namespace kvcache::platform

// ---- kvcache/core/memory.hpp --------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The larger page size of most 64-bit systems (2 MiB): one TLB entry instead of 512.
inline constexpr std::size_t huge_page_bytes = std::size_t{1} << 21;

/// Advises the system to back the whole huge pages inside [at, at + bytes) with huge pages: at once for memory not
/// touched yet, gradually for the rest. Returns whether the system accepts the advice; where it does not, nothing
/// happens. bytes_on_huge_pages() reports the outcome.
inline bool want_huge_pages(void* at, std::size_t bytes) noexcept {
    const auto from = reinterpret_cast<std::uintptr_t>(at);
    const std::uintptr_t first = (from + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
    const std::uintptr_t last = (from + bytes) / huge_page_bytes * huge_page_bytes;
    return first < last && platform::advise_huge_pages(static_cast<std::byte*>(at) + (first - from), last - first);
}

/// Bytes of a cache line, and of an AVX-512 vector.
inline constexpr std::size_t line_bytes = 64;

/// The alignment of an allocation of `bytes`: a huge page if it spans at least two of them, a cache line otherwise.
[[nodiscard]] constexpr std::size_t alignment_for(std::size_t bytes) noexcept {
    return bytes >= 2 * huge_page_bytes ? huge_page_bytes : line_bytes;
}

/// An allocator that aligns to cache lines, and puts large allocations on huge pages where the system has them.
template <class T>
struct line_allocator {
    using value_type = T;

    line_allocator() = default;
    template <class U>
    line_allocator(const line_allocator<U>&) noexcept {}

    [[nodiscard]] T* allocate(std::size_t n) {
        const std::size_t bytes = n * sizeof(T), alignment = alignment_for(bytes);
        void* const at = ::operator new (bytes, std::align_val_t{alignment});
        if (alignment == huge_page_bytes)
            want_huge_pages(at, bytes);
        return static_cast<T*>(at);
    }
    void deallocate(T* at, std::size_t n) noexcept {
        ::operator delete (at, std::align_val_t{alignment_for(n * sizeof(T))});
    }

    friend bool operator==(const line_allocator&, const line_allocator&) { return true; }
};

/// A vector whose data begins on a cache line.
template <class T>
using aligned_vector = std::vector<T, line_allocator<T>>;

/// A memory resource whose allocations are zeroed. An allocation aligned to a huge page comes straight from the system
/// (platform::map_zeroed). Other allocations are cleared here. Thread-safe.
class zeroed_memory : public pmr::memory_resource {
public:
    /// The shared instance.
    [[nodiscard]] static zeroed_memory* shared() noexcept {
        static zeroed_memory all;
        return &all;
    }

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        if (alignment != huge_page_bytes)
            return std::memset(pmr::new_delete_resource()->allocate(bytes, alignment), 0, bytes);
        if (bytes > (std::numeric_limits<std::size_t>::max() >> 1))
            detail::throw_bad_alloc();
        std::byte* const at = platform::map_zeroed(mapped(bytes), huge_page_bytes);
        if (at == nullptr)
            detail::throw_bad_alloc();
        return at;
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
        if (alignment != huge_page_bytes)
            pmr::new_delete_resource()->deallocate(at, bytes, alignment);
        else
            platform::unmap_zeroed(static_cast<std::byte*>(at), mapped(bytes), huge_page_bytes);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

    [[nodiscard]] static std::size_t mapped(std::size_t bytes) noexcept {
        return bytes / huge_page_bytes * huge_page_bytes + (bytes % huge_page_bytes > 0 ? huge_page_bytes : 0);
    }
};

}} // namespace kvcache

// ---- kvcache/cache/running_states.hpp -----------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The states of a sequence after its last token, of all state groups one after the other, and memory for those after
/// the rows of its lease. Sequences that end at the same token share theirs; what is shared is not written any more.
class running_states {
public:
    /// The states after the last token; empty if they are not known.
    [[nodiscard]] std::span<const std::byte> last() const noexcept {
        return last_ ? std::span<const std::byte>(*last_) : std::span<const std::byte>();
    }
    /// Memory for the states after the rows of a lease. Its content is that of an earlier call for the same lease, or
    /// undefined. Allocates only the first times. Throws: bad_alloc.
    [[nodiscard]] std::span<std::byte> next(std::size_t bytes) {
        if (!next_ || next_->size() != bytes || next_.use_count() > 1)
            next_ = std::make_shared<aligned_vector<std::byte>>(bytes);
        written_ = true;
        return *next_;
    }

    /// The states are those of another sequence that ends at the same token.
    void share(const running_states& from) noexcept { last_ = from.last_; }
    /// `count` rows of a lease of `rows` were committed: all; or fewer, after which the states are not known; or none.
    void commit(std::size_t count, std::size_t rows) noexcept {
        if (count > 0 && count == rows && written_)
            std::swap(last_, next_);
        else if (count > 0)
            last_.reset();
        written_ = false;
    }
    /// A lease was rolled back.
    void rollback() noexcept { written_ = false; }
    /// The sequence has other tokens now.
    void forget() noexcept { last_.reset(), written_ = false; }
    /// The sequence has ended: all memory is freed, since a state may be larger than all pages of its sequence.
    void end() noexcept {
        forget();
        next_.reset();
    }

private:
    std::shared_ptr<aligned_vector<std::byte>> last_;
    std::shared_ptr<aligned_vector<std::byte>> next_; // of the lease, and memory of earlier states
    bool written_ = false;                            // the lease's states have memory
};

}} // namespace kvcache

// ---- kvcache/codec/f32.hpp ----------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// Stores keys and values as float32, unchanged: reads return the computed values bit for bit. Keys are transposed in
/// tiles of 16 tokens, so that one vector holds 16 scores. Values are row-major, padded with zeros to whole vectors:
///
///     layer, head:  [ keys: (tokens / 16, head_dim, 16) ][ values: (tokens, padded_head_dim) ]
struct f32 {
    using role = codec_role;

    class state {
    public:
        static constexpr bool in_place = true; ///< Tiles are read in place, without decoding.

        explicit state(page_shape shape) : shape_(shape) {}

        [[nodiscard]] std::size_t page_bytes() const noexcept {
            return std::size_t{shape_.layers} * shape_.kv_heads * head_numbers() * sizeof(float);
        }

        [[nodiscard]] std::string name() const { return "float32"; }

        /// Writes one row. key, value: (head_dim)
        void encode(std::span<std::byte> page, page_row at, std::span<const float> key,
                    std::span<const float> value) const {
            float* keys = reinterpret_cast<float*>(page.data()) + offset(at.layer, at.head);
            float* column =
                keys + std::size_t{at.row / tile_tokens} * shape_.head_dim * tile_tokens + at.row % tile_tokens;
            for (std::size_t d = 0; d < shape_.head_dim; ++d)
                column[d * tile_tokens] = key[d];
            float* row = keys + key_numbers() + at.row * padded_head_dim(shape_.head_dim);
            std::memcpy(row, value.data(), shape_.head_dim * sizeof(float));
        }

        /// Copies the first rows to another page: whole tiles at once, the last partial tile lane by lane.
        void copy(std::span<const std::byte> from, std::span<std::byte> to, std::size_t rows) const {
            const std::size_t whole = rows / tile_tokens * tile_tokens, rest = rows % tile_tokens;
            for (std::size_t head = 0; head < std::size_t{shape_.layers} * shape_.kv_heads; ++head) {
                const float* source = reinterpret_cast<const float*>(from.data()) + head * head_numbers();
                float* target = reinterpret_cast<float*>(to.data()) + head * head_numbers();
                std::copy_n(source, whole * shape_.head_dim, target);
                for (std::size_t d = 0; rest > 0 && d < shape_.head_dim; ++d) {
                    const std::size_t lane = whole * shape_.head_dim + d * tile_tokens;
                    std::copy_n(source + lane, rest, target + lane);
                }
                std::copy_n(source + key_numbers(), rows * padded_head_dim(shape_.head_dim), target + key_numbers());
            }
        }

        /// The keys of a tile, in place. (head_dim, 16)
        [[nodiscard]] const float* keys(std::span<const std::byte> page, page_tile at,
                                        std::span<float>) const noexcept {
            return reinterpret_cast<const float*>(page.data()) + offset(at.layer, at.head) +
                   std::size_t{at.tile} * shape_.head_dim * tile_tokens;
        }

        /// The values of a tile, in place. (16, padded_head_dim)
        [[nodiscard]] const float* values(std::span<const std::byte> page, page_tile at,
                                          std::span<float>) const noexcept {
            return reinterpret_cast<const float*>(page.data()) + offset(at.layer, at.head) + key_numbers() +
                   std::size_t{at.tile} * tile_tokens * padded_head_dim(shape_.head_dim);
        }

    private:
        [[nodiscard]] std::size_t key_numbers() const noexcept { return std::size_t{shape_.tokens} * shape_.head_dim; }
        [[nodiscard]] std::size_t head_numbers() const noexcept {
            return key_numbers() + std::size_t{shape_.tokens} * padded_head_dim(shape_.head_dim);
        }
        [[nodiscard]] std::size_t offset(layer_id layer, head_id head) const noexcept {
            return (std::size_t{index_of(layer)} * shape_.kv_heads + index_of(head)) * head_numbers();
        }

        page_shape shape_;
    };

    [[nodiscard]] state open(page_shape shape) const { return state{shape}; }
};

static_assert(codec_policy<f32>);

}}} // namespace kvcache::codec

// ---- kvcache/codec/residual_page.hpp ------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {
namespace codec {

/// Rows of one page in full precision, transformed by its codec. They are kept until the page is quantized and no query
/// reads them any more. `Rows` defines their layout.
template <class Rows>
class basic_residual_page {
public:
    /// Throws: bad_alloc.
    explicit basic_residual_page(page_shape shape)
        : shape_(shape), rows_(shape), bytes_(rows_.page_bytes()), written_(shape.layers) {}

    /// Bytes of one residual page.
    [[nodiscard]] static std::size_t bytes_for(page_shape shape) noexcept { return Rows(shape).page_bytes(); }

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    /// Writable bytes, for rows that were computed elsewhere.
    [[nodiscard]] std::span<std::byte> bytes() noexcept { return bytes_; }

    /// Marks the first `rows` rows as present in all layers, and no others.
    void begin(std::uint32_t rows) noexcept {
        for (auto& written : written_)
            written.store(rows, std::memory_order_relaxed);
    }

    /// Copies the first rows of another residual page.
    void take(const basic_residual_page& other, std::size_t rows) { rows_.copy(other.bytes_, bytes_, rows); }

    /// Writes a row of a layer, and quantizes the layer into `page` when its last missing row arrives. Several threads
    /// may write rows, each row once a layer. keys, values: (kv_heads, head_dim)
    template <page_writer Codec>
    void write(const Codec& codec, std::span<std::byte> page, layer_id layer, std::uint32_t row,
               std::span<const float> keys, std::span<const float> values) {
        const std::size_t dim = shape_.head_dim;
        for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
            const page_tile at{layer, head_id{head}, row / tile_tokens};
            // The memory of the value serves as scratch for transforming the key.
            float* const own =
                const_cast<float*>(rows_.values(bytes_, at, {})) + row % tile_tokens * padded_head_dim(dim);
            float* const column = const_cast<float*>(rows_.keys(bytes_, at, {})) + row % tile_tokens;
            std::copy_n(keys.data() + head * dim, dim, own);
            codec.transform_key({own, dim});
            for (std::size_t d = 0; d < dim; ++d)
                column[d * tile_tokens] = own[d];
            std::copy_n(values.data() + head * dim, dim, own);
            codec.transform_value({own, dim});
        }
        auto& written = written_[index_of(layer)];
        if (written.fetch_add(1, std::memory_order_acq_rel) + 1 < shape_.tokens)
            return;
        for (std::uint32_t head = 0; head < shape_.kv_heads; ++head)
            codec.encode(page, layer, head_id{head}, bytes_);
        written.store(0, std::memory_order_relaxed); // reset for the next page that uses this memory
    }

private:
    page_shape shape_;
    Rows rows_;
    aligned_vector<std::byte> bytes_;
    std::vector<std::atomic<std::uint32_t>> written_; // rows written, by layer
};

/// Residual rows in the layout of the f32 codec.
using residual_page = basic_residual_page<f32::state>;

} // namespace codec

/// The pages of one sequence, as attention reads them.
struct sequence_pages {
    std::span<const page_entry> table = {};
    /// Residual pages by table entry, for a codec of whole pages: the full-precision rows where a query of this
    /// sequence may read them. Null elsewhere; entries past its end count as null.
    std::span<const codec::residual_page* const> residual = {};
    bool spliced = false; ///< Rows of one page may be in several entries, and bases change often (see spliced_tiles).
};

}} // namespace kvcache

// ---- kvcache/core/platform/standard.hpp ---------------------------------------------------------------------------

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

// ---- kvcache/cache/sequence_state.hpp -----------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The tokens of a sequence. Capacity is reserved before tokens are appended, so that appending cannot fail. A span of
/// the tokens stays readable until the `reserve` after an append, even where the tokens have moved.
class token_buffer {
public:
    [[nodiscard]] std::size_t size() const noexcept { return tokens_.size(); }
    [[nodiscard]] const token_id* data() const noexcept { return tokens_.data(); }
    [[nodiscard]] const token_id* begin() const noexcept { return tokens_.data(); }
    [[nodiscard]] const token_id* end() const noexcept { return tokens_.data() + tokens_.size(); }

    /// Replaces the tokens. Throws: bad_alloc.
    void assign(std::span<const token_id> tokens) { tokens_.assign(tokens.data(), tokens.data() + tokens.size()); }

    /// Keeps the first `count` tokens. Requires: count <= size().
    void truncate(std::size_t count) noexcept { tokens_.resize(count); }

    /// Makes room for `more` tokens. Throws: bad_alloc; nothing has changed then.
    void reserve(std::size_t more) {
        const std::size_t needed = tokens_.size() + more;
        const bool grows = needed > tokens_.capacity();
        if (grows && spare_.capacity() >= needed)
            return;
        spare_ = std::vector<token_id>();
        if (grows)
            spare_.reserve(std::max(needed, 2 * tokens_.capacity()));
    }

    /// Appends tokens for which there is room. They may be this buffer's own, or those of another buffer that moved
    /// them after its own `reserve`.
    void append(std::span<const token_id> more) noexcept {
        const std::size_t old = tokens_.size(), needed = old + more.size();
        if (needed > tokens_.capacity()) {
            spare_.assign(tokens_.data(), tokens_.data() + old);
            spare_.swap(tokens_);
        }
        tokens_.resize(needed);
        std::copy(more.begin(), more.end(), tokens_.data() + old);
    }

private:
    std::vector<token_id> tokens_;
    std::vector<token_id> spare_; // where the tokens move as they grow; then where they were, until the next reserve
};

/// Which rows of a lease were written, in each layer: a bit each. Threads may mark different rows at once.
class written_rows {
public:
    /// Begins with `rows` rows, none of them written. Throws: bad_alloc; nothing has changed then.
    void begin(std::size_t rows, std::size_t layers) {
        const std::size_t needed = (rows + 63) / 64 * layers;
        if (bits_.size() < needed)
            bits_.resize(needed);
        layers_ = layers;
        used_ = needed;
        set(0);
    }
    /// All rows are written.
    void fill() noexcept { set(all); }
    void mark(std::size_t layer, std::size_t row) noexcept {
        atomic_or(bits_[row / 64 * layers_ + layer], std::uint64_t{1} << row % 64);
    }

    /// Whether the first `rows` rows are written in every layer. Cost: O(rows * layers / 64).
    [[nodiscard]] bool first(std::size_t rows) const noexcept {
        const std::uint64_t* word = bits_.data();
        for (std::size_t left = rows; left > 0; left -= left < 64 ? left : 64) {
            const std::uint64_t wanted = left < 64 ? (std::uint64_t{1} << left) - 1 : all;
            std::uint64_t written = wanted;
            for (const std::uint64_t* const end = word + layers_; word != end; ++word)
                written &= *word;
            if (written != wanted)
                return false;
        }
        return true;
    }

private:
    static constexpr std::uint64_t all = std::numeric_limits<std::uint64_t>::max();

    void set(std::uint64_t word) noexcept {
        for (std::size_t i = 0; i < used_; ++i)
            bits_[i] = word;
    }

    std::vector<std::uint64_t> bits_; // (blocks of 64 rows, layers), and room for more
    std::size_t layers_ = 0;
    std::size_t used_ = 0;
};

/// The residual rows of the pages that a lease writes. Rows are written in ascending order, with a bounded number at
/// once, so pages that are far enough apart reuse the same buffer. Pages that keep their residual rows have buffers of
/// their own.
struct residual_ring {
    std::vector<std::shared_ptr<codec::residual_page>> places = {};
    std::size_t first = 0; ///< Page-table entry of the first buffer.
    std::size_t own = 0;   ///< Leading entries with a buffer of their own; the others share the buffers after these.

    /// The buffer index of a page-table entry, from `first` on.
    [[nodiscard]] std::size_t place_of(std::size_t entry) const noexcept {
        const std::size_t i = entry - first;
        return i < own ? i : own + (i - own) % (places.size() - own);
    }
    [[nodiscard]] codec::residual_page* at(std::size_t entry) const noexcept { return places[place_of(entry)].get(); }

    /// Returns whether no later entry of the table has reused the buffer of this one.
    [[nodiscard]] bool keeps(std::size_t entry, std::size_t entries) const noexcept {
        const std::size_t i = entry - first;
        return i < own || i + (places.size() - own) >= entries - first;
    }

    [[nodiscard]] std::shared_ptr<codec::residual_page> take(std::size_t entry) noexcept {
        return std::move(places[place_of(entry)]);
    }

    /// The number of buffers for `pages` new pages, of which the first `own` have their own, if the pages of
    /// `max_batch_tokens` consecutive rows and `recent` pages before them are needed together.
    [[nodiscard]] static std::size_t places_for(std::size_t pages, std::size_t own, std::size_t max_batch_tokens,
                                                std::size_t page_tokens, std::size_t recent) noexcept {
        const std::size_t touched = max_batch_tokens == 0 ? 0 : (max_batch_tokens - 1) / page_tokens + 2;
        return std::min(pages, own + touched + recent);
    }
};

struct sequence_state;

/// The location of a row of a spliced lease.
struct spliced_row {
    page_id page = {};
    std::uint32_t row = 0;
    bool kept = false;     ///< Computed elsewhere, and not to be written.
    std::int64_t base = 0; ///< RoPE offset of its keys, as page_entry::base.
};

/// The lease of a sequence: rows after its tokens that are already in its page table, and the state to roll back to.
struct lease_state {
    bool open = false;
    bool whole = false;                ///< See reserve_options.
    sequence_state** holder = nullptr; ///< Where the lease keeps its pointer to this; null once it has ended.
    std::size_t rows = 0;
    std::int64_t began = 0; ///< By monotonic_nanoseconds.
    std::size_t pages_before = 0;
    std::optional<page_entry> tail_before = {}; ///< The last entry before the lease; still referenced if copied.

    std::vector<token_id> prompt = {}; ///< The tokens of its rows, where a prompt was acquired.
    written_rows written = {};         ///< If the cache owns the memory of its pages.

    // For codecs that encode whole pages.
    residual_ring ring = {};                          ///< The residual rows of the pages that the lease adds.
    std::vector<codec::residual_page*> residual = {}; ///< By entry: the residual rows that queries may read.

    // For chunk reuse.
    std::vector<spliced_row> spliced = {}; ///< By row of the lease, if it is spliced.

    /// Returns whether the lease has replaced the last page of its table by a copy.
    [[nodiscard]] bool has_copied_tail(std::span<const page_entry> table) const noexcept {
        return tail_before && tail_before->page != table[pages_before - 1].page;
    }

    /// Begins a lease after the pages of a table. `open_tail`: whether its last page can take more rows.
    void begin(std::size_t row_count, std::span<const page_entry> table, bool open_tail) noexcept {
        open = true;
        rows = row_count;
        began = monotonic_nanoseconds();
        pages_before = table.size();
        tail_before = open_tail ? std::optional(table.back()) : std::nullopt;
    }

    /// Notes where the lease keeps its pointer to this. Out of line: GCC 12 takes the note of a lease that is returned
    /// for a dangling pointer.
    KVCACHE_NOINLINE void hold(sequence_state** place) noexcept { holder = place; }

    /// Ends the lease, which has no state any more; the vectors keep their memory.
    void end() noexcept {
        if (holder != nullptr)
            *std::exchange(holder, nullptr) = nullptr;
        open = false;
        rows = 0;
        tail_before.reset();
        prompt.clear();
        residual.clear();
        spliced.clear();
    }
};

/// The state of one sequence: its tokens, their pages, and its lease. Every live sequence is in a circular list of its
/// cache, so that `check` can recount all references.
struct sequence_state {
    static constexpr std::size_t all = static_cast<std::size_t>(-1);

    token_buffer tokens = {};
    std::vector<page_entry> table = {};
    std::size_t published_pages = 0; ///< Leading pages that are full and in the index.
    std::size_t prompt = 0;          ///< Tokens of the request it was opened for, while it has fewer; 0 if unknown.
    std::uint32_t tenant = 0;        ///< Number of the tenant that owns it; 0 in a cache without tenants.
    std::size_t exact = all;         ///< Leading tokens that attended to nothing approximate; `all` if every one.
    std::size_t cacheable = all;     ///< Leading tokens that may be published.
    bool publishable = true;         ///< False after the index ran out of memory for a page: later pages stay private.

    lease_state lease = {};

    /// Another page of the index with the content of a page of the table.
    struct duplicate {
        std::size_t entry = 0;
        page_id page = {};
    };
    /// Where pages stay in the table although the index has their content in another page: later pages continue that
    /// page in the index. Referenced in addition to the table; entries ascend.
    std::vector<duplicate> duplicates = {};

    // For tiers.
    struct {
        std::size_t pages = 0;     ///< Leading pages that were handed to the tier.
        sha256_digest record = {}; ///< The record name of the last of them.
    } offloaded = {};

    // For chunk reuse: pages referenced in addition to the table, namely those that approximate rows were taken from
    // and their ancestors.
    std::vector<page_id> pinned_sources = {};

    // For layer groups.
    /// The block of a group with rows that approximate rows are to be taken from.
    struct pinned_block {
        std::size_t pool = 0;
        page_id page = {};
    };
    std::vector<pinned_block> pinned_blocks = {}; ///< Used in addition to those of the table.
    /// The state of a group after the last token of an entry.
    struct snapshot {
        std::size_t pool = 0;
        std::size_t entry = 0;
    };
    std::vector<std::size_t> group_first = {}; ///< By group with blocks: the first entry whose block it uses.
    std::vector<snapshot> snapshots = {};      ///< Those that it uses.
    running_states running = {};               ///< Of state groups.

    bool orphaned = false; ///< Its cache was destroyed first.
    sequence_state* previous = nullptr;
    sequence_state* next = nullptr;

    /// The number of rows in use in the last page if it can take more; nullopt if the next row begins a new page.
    [[nodiscard]] std::optional<std::uint32_t> open_rows(std::size_t page_tokens) const noexcept {
        if (table.empty() || table.back().base != 0 || table.back().first + table.back().count == page_tokens)
            return std::nullopt;
        return table.back().first + table.back().count;
    }

    /// The number of leading entries that fill their pages.
    [[nodiscard]] std::size_t full_entries(std::size_t page_tokens) const noexcept {
        return table.size() - (open_rows(page_tokens) ? 1 : 0);
    }

    /// Appends pages with `rows` rows in total, of which all but the last are full.
    void add_pages(std::span<const page_id> pages, std::size_t rows, std::size_t page_tokens) {
        table.reserve(table.size() + pages.size());
        for (const page_id page : pages) {
            const std::size_t count = std::min(rows, page_tokens);
            table.push_back({.page = page, .count = static_cast<std::uint32_t>(count)});
            rows -= count;
        }
    }

    /// The number of leading entries of which each has the tokens of one page; those of a spliced lease follow.
    [[nodiscard]] std::size_t whole_entries(std::size_t page_tokens) const noexcept {
        return exact == all ? all : (exact + page_tokens - 1) / page_tokens;
    }

    /// Shortens the entries to `rows` rows in total. Returns the number of entries that remain; the caller removes the
    /// others.
    [[nodiscard]] std::size_t cut(std::size_t rows) noexcept {
        std::size_t kept = 0;
        for (; kept < table.size() && rows > 0; ++kept) {
            table[kept].count = static_cast<std::uint32_t>(std::min<std::size_t>(table[kept].count, rows));
            rows -= table[kept].count;
        }
        return kept;
    }

    /// Removes all but the first `kept` entries, without releasing their pages.
    void drop_entries(std::size_t kept) noexcept {
        while (table.size() > kept)
            table.pop_back();
    }

    /// The number of leading tokens of a prompt that equal its own and those that its lease computes, if these can be
    /// published.
    [[nodiscard]] std::size_t pending(std::span<const token_id> query) const noexcept {
        const std::size_t own = std::min(tokens.size(), query.size());
        if (lease.prompt.empty() || !publishable || exact != all ||
            !std::equal(tokens.data(), tokens.data() + own, query.data()))
            return 0;
        const auto rest = query.subspan(own);
        const auto end = ranges::mismatch(lease.prompt, rest).in2;
        return std::min(own + static_cast<std::size_t>(end - rest.begin()), cacheable);
    }

    /// The page by which the index knows the content of an entry: its own, or its duplicate. Cost: O(duplicates).
    [[nodiscard]] page_id indexed(std::size_t entry) const noexcept {
        for (std::size_t i = duplicates.size(); i-- > 0 && duplicates[i].entry >= entry;)
            if (duplicates[i].entry == entry)
                return duplicates[i].page;
        return table[entry].page;
    }

    /// Begins with the first `count` tokens and pages of another sequence. Requires: this one is empty.
    void share(const sequence_state& from, std::size_t count, std::size_t page_tokens) {
        tokens.assign({from.tokens.data(), count});
        table.assign(from.table.data(), from.table.data() + from.table.size());
        drop_entries(cut(count));
        published_pages = std::min(from.published_pages, full_entries(page_tokens));
        for (const duplicate& one : from.duplicates)
            if (one.entry < published_pages)
                duplicates.push_back(one);
        tenant = from.tenant;
        cacheable = from.cacheable;
        publishable = from.publishable;
        if (count == from.tokens.size())
            running.share(from.running);
        if (count > from.exact) {
            exact = from.exact;
            pinned_sources = from.pinned_sources;
        }
    }

    /// Makes it the state of a sequence without tokens and pages. Its vectors keep their memory, running states do not.
    void clear() noexcept {
        tokens.truncate(0);
        table.clear();
        duplicates.clear();
        published_pages = prompt = 0;
        tenant = 0;
        exact = cacheable = all;
        publishable = true;
        lease.end();
        offloaded = {};
        pinned_sources.clear();
        snapshots.clear();
        running.end();
    }

    /// Appends the tokens of `from` after the `count` tokens that are left out. Requires: this state is the prefix of
    /// `from` up to `first`. Returns: the locations of their rows, moved down; the table has capacity for as many. From
    /// `first` on the sequence is approximate and private.
    [[nodiscard]] std::vector<page_entry> leave_out(const sequence_state& from, std::size_t first, std::size_t count) {
        std::vector<page_entry> after;
        std::size_t row = 0;
        for (page_entry entry : from.table) {
            const std::size_t skipped = std::clamp(first + count, row, row + entry.count) - row;
            row += entry.count;
            if (skipped == entry.count)
                continue;
            entry.first += static_cast<std::uint32_t>(skipped);
            entry.count -= static_cast<std::uint32_t>(skipped);
            entry.base -= static_cast<std::int64_t>(count);
            after.push_back(entry);
        }
        const auto kept = std::span<const token_id>(from.tokens).subspan(first + count);
        reserve(after.size(), kept.size());
        tokens.append(kept);
        if (!after.empty()) {
            exact = std::min(exact, first);
            publishable = false;
        }
        return after;
    }

    /// Reserves capacity for more pages and tokens, so that adding them cannot fail; with `keeps_duplicates` for a
    /// duplicate of each page too. Throws: bad_alloc; the sequence is then unchanged.
    void reserve(std::size_t pages, std::size_t rows, bool keeps_duplicates = false) {
        if (table.capacity() - table.size() < pages)
            table.reserve(std::max(table.size() + pages, 2 * table.capacity()));
        if (keeps_duplicates)
            duplicates.reserve(table.capacity());
        tokens.reserve(rows);
    }
};

/// States of sequences that have ended, whose memory new sequences use. Together they keep no more page-table entries
/// than the cache has pages.
class spare_sequences {
public:
    explicit spare_sequences(std::size_t pages) : most_(pages) {}

    /// The state of a sequence without tokens and pages. `live`: the sequences that may be kept later. Throws:
    /// bad_alloc.
    [[nodiscard]] std::unique_ptr<sequence_state> take(std::size_t live) {
        if (const std::size_t all = spare_.size() + live + 1; spare_.capacity() < all)
            spare_.reserve(2 * all);
        if (spare_.empty())
            return std::make_unique<sequence_state>();
        auto made = std::move(spare_.back());
        spare_.pop_back();
        entries_ -= made->table.capacity();
        return made;
    }

    /// Keeps or frees a state. Requires: it was taken here.
    void keep(std::unique_ptr<sequence_state> state) noexcept {
        state->clear();
        if (entries_ + state->table.capacity() <= most_) {
            entries_ += state->table.capacity();
            spare_.push_back(std::move(state));
        }
    }

private:
    std::size_t most_;
    std::size_t entries_ = 0;
    std::vector<std::unique_ptr<sequence_state>> spare_;
};

}} // namespace kvcache

// ---- kvcache/cache/opaque_leases.hpp ------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// In place of residual_leases, where a codec writes row by row: every row of a page can be continued.
struct no_residual_leases {
    template <class PageManager>
    no_residual_leases(const PageManager&, std::size_t, residual_window) {}
    template <class Pages>
    static constexpr std::size_t kept(const Pages&, std::size_t tokens) noexcept {
        return tokens;
    }
    static constexpr std::size_t needed(bool, std::size_t, std::size_t, std::size_t) noexcept { return 0; }
    static constexpr bool open(sequence_state&, std::uint32_t, std::size_t) noexcept { return true; }
    static constexpr bool open_spliced(sequence_state&) noexcept { return true; }
    static constexpr codec::residual_page* given(const sequence_state&, std::size_t) noexcept { return nullptr; }
    static std::size_t finalize(const sequence_state& state) noexcept { return state.tokens.size(); }
    static constexpr void end(residual_ring&) noexcept {}
};
/// The same where pages are opaque: a page is continued where its blob ends. `PageManager`: its index knows where.
template <class PageManager>
class opaque_leases : public no_residual_leases {
public:
    opaque_leases(const PageManager& pages, std::size_t page_tokens, residual_window window)
        : no_residual_leases(pages, page_tokens, window), pages_(pages), page_tokens_(page_tokens) {}

    /// The number of the first `tokens` tokens in these pages, page-table entries or page_ids, that end with a blob.
    template <class Pages>
    [[nodiscard]] std::size_t kept(const Pages& pages, std::size_t tokens) const noexcept {
        const std::size_t part = tokens % page_tokens_;
        return part == 0 || run_of(pages[tokens / page_tokens_]) == part ? tokens : tokens - part;
    }
    /// The same of a sequence, which ends with a blob.
    [[nodiscard]] std::size_t kept(const sequence_state& state, std::size_t tokens) const noexcept {
        return tokens == state.tokens.size() ? tokens : kept(state.table, tokens);
    }

private:
    [[nodiscard]] std::size_t run_of(page_id page) const noexcept {
        return pages_.index().contains(page) ? pages_.index().run(page).size() : 0;
    }
    [[nodiscard]] std::size_t run_of(const page_entry& entry) const noexcept { return run_of(entry.page); }

    const PageManager& pages_;
    std::size_t page_tokens_;
};

namespace detail {

// Whether a page has its blob, and those of the windows that it has blocks of.
template <class Core>
[[nodiscard]] bool has_blobs(const Core& core, page_id page) {
    const auto written = [](const auto& codec, std::span<const std::byte> bytes) { return !codec.blob(bytes).empty(); };
    if constexpr (Core::owns_blocks) {
        const auto& blocks = core.pages().blocks();
        for (std::size_t pool = 0; pool < blocks.size(); ++pool)
            if (!blocks.is_state(pool) && blocks.has(pool, page) &&
                !written(blocks.memory().codec(pool), blocks.memory().bytes(pool, blocks.block(pool, page))))
                return false;
        if (!blocks.paged())
            return true;
    }
    return written(core.codec(), core.storage().bytes(page));
}

} // namespace detail

}} // namespace kvcache

// ---- kvcache/core/number_format.hpp -------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// bfloat16 value: the upper half of a binary32.
struct bfloat16 {
    std::uint16_t bits = 0;

    friend bool operator==(const bfloat16&, const bfloat16&) = default;
};

/// IEEE binary16 value: a sign, 5 exponent bits, 10 fraction bits, subnormals.
struct half {
    std::uint16_t bits = 0;

    friend bool operator==(const half&, const half&) = default;
};

/// Number formats of weights and of stored rows. Each widens to float32 exactly.
template <class T>
concept weight_format = std::same_as<T, float> || std::same_as<T, bfloat16> || std::same_as<T, half>;

/// The short name of a number format: f32, bf16 or f16.
template <weight_format Number>
inline constexpr const char* format_name = std::same_as<Number, float>      ? "f32"
                                           : std::same_as<Number, bfloat16> ? "bf16"
                                                                            : "f16";

/// A float as it is.
[[nodiscard]] constexpr float widen(float number) noexcept {
    return number;
}

/// Converts a bfloat16 to float32. Exact for every bit pattern.
[[nodiscard]] constexpr float widen(bfloat16 number) noexcept {
    return bit_cast<float>(static_cast<std::uint32_t>(number.bits) << 16);
}

/// Converts a binary16 to float32. Exact, including zeros, subnormals and infinities; a NaN keeps its sign and payload
/// and becomes quiet, as in hardware conversions.
[[nodiscard]] constexpr float widen(half number) noexcept {
    const std::uint32_t sign = (number.bits & 0x8000u) << 16;
    const std::uint32_t exponent = (number.bits >> 10) & 0x1Fu;
    const std::uint32_t fraction = number.bits & 0x3FFu;
    if (exponent == 31)
        return bit_cast<float>(sign | (fraction == 0 ? 0x7F800000u : 0x7FC00000u) | fraction << 13);
    if (exponent != 0)
        return bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    if (fraction == 0)
        return bit_cast<float>(sign);
    // fraction * 2^-24, normalized: the leading one moves to bit 10 and becomes implicit.
    const auto shift = static_cast<std::uint32_t>(std::countl_zero(fraction)) - 21;
    return bit_cast<float>(sign | (113 - shift) << 23 | ((fraction << shift) & 0x3FFu) << 13);
}

/// Rounds to the nearest bfloat16, ties to even. Larger magnitudes saturate to the largest finite value; NaN stays NaN.
[[nodiscard]] constexpr bfloat16 to_bfloat16(float number) noexcept {
    const auto bits = bit_cast<std::uint32_t>(number);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
    const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    const std::uint32_t size = rounded & 0x7FFFu;
    return {static_cast<std::uint16_t>((rounded & 0x8000u) | (size < 0x7F7Fu ? size : 0x7F7Fu))};
}

/// Rounds to the nearest binary16, ties to even. Larger magnitudes saturate to the largest finite value; NaN stays NaN.
[[nodiscard]] constexpr half to_half(float number) noexcept {
    const auto bits = bit_cast<std::uint32_t>(number);
    const std::uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u)
        return {static_cast<std::uint16_t>(sign | 0x7E00u)};
    if (size >= 0x477FE000u) // 65504
        return {static_cast<std::uint16_t>(sign | 0x7BFFu)};
    if (size < 0x33000000u) // below half of the smallest subnormal
        return {static_cast<std::uint16_t>(sign)};
    // The fraction with its leading one, and the number of its bits to drop.
    const std::uint32_t exponent = size >> 23, fraction = (size & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t shift = exponent >= 113 ? 13 : 126 - exponent;
    const std::uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), middle = 1u << (shift - 1);
    const std::uint32_t up = rest > middle || (rest == middle && (kept & 1u) != 0) ? 1 : 0;
    const std::uint32_t above = exponent >= 113 ? (exponent - 113) << 10 : 0;
    return {static_cast<std::uint16_t>(sign | (above + kept + up))};
}

/// Rounds to a number format as to_bfloat16 and to_half do; a float stays as it is.
template <weight_format Number>
[[nodiscard]] constexpr Number narrow(float number) noexcept {
    if constexpr (std::same_as<Number, bfloat16>)
        return to_bfloat16(number);
    else if constexpr (std::same_as<Number, half>)
        return to_half(number);
    else
        return number;
}

}} // namespace kvcache

// ---- kvcache/cache/table_rows.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Consecutive rows of one layer and KV head in one page, in place. Row i has its key in the head_dim numbers from
/// keys + i * stride on, and its value from values + i * stride on.
template <class Number>
struct row_run {
    const Number* keys = nullptr;
    const Number* values = nullptr;
    std::size_t stride = 0;   ///< Numbers from a row to the next.
    std::size_t rows = 0;     ///< Number of rows, at least one.
    std::size_t position = 0; ///< Position of the first row in the sequence.
    std::int64_t base = 0;    ///< RoPE offset of the keys (see page_entry): zero unless tokens before them were erased
                              ///< or the rows are a reused chunk.
};

namespace detail {

/// The first `rows` rows of a page table, as sequences and leases show them to a host.
template <class Cache>
class table_rows {
    using codec_type = typename Cache::codec_type;
    // Not concepts where they are asserted: a compiler would print every requirement.
    static constexpr bool has_runs = row_major_codec<codec_type>;
    static constexpr bool writes_rows = page_reader<codec_type> && row_writer<codec_type>;

public:
    table_rows(const Cache& cache, std::span<const page_entry> table, std::size_t rows)
        : cache_(cache), table_(table), rows_(rows) {}

    template <class F>
    void for_each_run(layer_id layer, head_id head, F&& f) const {
        static_assert(has_runs,
                      "for_each_run needs a row-major codec (codec/row_major.hpp); gather copies the rows of f32");
        if constexpr (has_runs)
            for_each_entry(layer, head, [&](std::span<const std::byte> page, const page_entry& of, std::size_t first) {
                const auto& codec = cache_.codec();
                const page_row at{layer, head, of.first};
                f(row_run<typename codec_type::number>{codec.key_row(page, at), codec.value_row(page, at),
                                                       codec.row_stride(), of.count, first, of.base});
            });
    }

    void gather(layer_id layer, head_id head, std::span<float> keys, std::span<float> values) const {
        static_assert(writes_rows, "gather needs a codec that writes single rows (codec/f32.hpp, codec/row_major.hpp)");
        const std::size_t dim = cache_.shape().head_dim;
        require(keys.size() == rows_ * dim && values.size() == keys.size(),
                "gathered keys and values are (tokens, head_dim) each");
        if constexpr (has_runs)
            for_each_run(layer, head, [&](const auto& run) {
                for (std::size_t row = 0; row < run.rows; ++row)
                    for (std::size_t d = 0; d < dim; ++d) {
                        keys[(run.position + row) * dim + d] = widen(run.keys[row * run.stride + d]);
                        values[(run.position + row) * dim + d] = widen(run.values[row * run.stride + d]);
                    }
            });
        else if constexpr (writes_rows)
            gather_tiles(layer, head, keys.data(), values.data());
    }

private:
    /// Calls f(page, entry, position of its first row) for each entry with rows, the last one cut to `rows_`.
    template <class F>
    void for_each_entry(layer_id layer, head_id head, F&& f) const {
        require(index_of(layer) < cache_.shape().layers && index_of(head) < cache_.shape().kv_heads,
                "rows that are read are of a layer and a KV head of the page shape");
        std::size_t position = 0;
        for (page_entry entry : table_) {
            entry.count = static_cast<std::uint32_t>(std::min<std::size_t>(entry.count, rows_ - position));
            if (entry.count > 0)
                f(std::span<const std::byte>(cache_.storage().bytes(entry.page)), entry, position);
            position += entry.count;
        }
    }

    void gather_tiles(layer_id layer, head_id head, float* key, float* value) const {
        const std::size_t dim = cache_.shape().head_dim, width = padded_head_dim(dim);
        aligned_vector<float> key_scratch(dim * tile_tokens), value_scratch(width * tile_tokens);
        for_each_entry(layer, head, [&](std::span<const std::byte> page, const page_entry& of, std::size_t) {
            const float *keys = nullptr, *values = nullptr;
            for (std::uint32_t row = of.first; row < of.first + of.count; ++row) {
                const std::uint32_t lane = row % tile_tokens;
                if (row == of.first || lane == 0) {
                    keys = cache_.codec().keys(page, {layer, head, row / tile_tokens}, key_scratch);
                    values = cache_.codec().values(page, {layer, head, row / tile_tokens}, value_scratch);
                }
                for (std::size_t d = 0; d < dim; ++d)
                    *key++ = keys[d * tile_tokens + lane];
                value = std::copy_n(values + lane * width, dim, value);
            }
        });
    }

    const Cache& cache_;
    std::span<const page_entry> table_;
    std::size_t rows_;
};

} // namespace detail

}} // namespace kvcache

// ---- kvcache/cache/handle.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// A run of tokens and the pages that hold their keys and values, shared with other sequences that have the same
/// prefix. Destruction releases its pages, tail first; indexed pages stay cached until space is needed.
/// With locking::mutex several threads may call its const members at once, fork included, while no thread changes it or
/// commits its lease. Requires: the cache outlives it; where it does not, the sequence can only be destroyed or
/// assigned to. `Core`: a cache_core.
template <class Core>
class basic_sequence {
public:
    /// The sequence of a state that `core` has among its sequences.
    basic_sequence(Core& core, std::unique_ptr<sequence_state> state) noexcept
        : core_(&core), state_(std::move(state)) {}
    basic_sequence(basic_sequence&& other) noexcept = default;
    /// Releases the pages it held before.
    basic_sequence& operator=(basic_sequence&& other) noexcept {
        basic_sequence taken(std::move(other));
        std::swap(core_, taken.core_);
        std::swap(state_, taken.state_);
        return *this;
    }
    ~basic_sequence() {
        if (state_ && !state_->orphaned)
            core_->release(std::move(state_));
    }

    /// The number of tokens whose keys and values are cached.
    [[nodiscard]] std::size_t size() const { return state().tokens.size(); }
    [[nodiscard]] std::span<const token_id> tokens() const { return state().tokens; }
    /// The number of leading tokens that are exact: bit-identical to computing every token. Later tokens were computed
    /// after a different prefix, or attended to such tokens; they are never shared with other sequences.
    [[nodiscard]] std::size_t exact() const { return std::min(state().exact, size()); }
    [[nodiscard]] std::span<const page_entry> table() const { return state().table; }

    /// The sequence's pages, reserved rows included, in the form that attention reads. Only if the codec writes row by
    /// row: a codec of whole pages keeps full-precision rows that its lease shows. Valid until the table changes.
    [[nodiscard]] sequence_pages pages() const requires Core::writes_rows {
        return {state().table, {}, state().exact != sequence_state::all};
    }

    /// Calls `f` with a row_run for each run of consecutive rows in one page, in order of position: the rows of the
    /// tokens, not reserved ones. The pointers are valid until the sequence changes or a lease of it is committed. Only
    /// with a row-major codec (codec/row_major.hpp). Cost: O(pages), besides `f`.
    template <class F>
    void for_each_run(layer_id layer, head_id head, F&& f) const {
        rows().for_each_run(layer, head, f);
    }
    /// Copies the keys and values of the tokens, widened to float32. keys, values: (size(), head_dim).
    /// Only with a codec that writes single rows. Throws: bad_alloc, unless the codec is row-major. Cost: O(numbers).
    void gather(layer_id layer, head_id head, std::span<float> keys, std::span<float> values) const {
        rows().gather(layer, head, keys, values);
    }

    /// The blocks of a layer group, by page-table entry: the number of each that the next query reads, and `null` for
    /// the others. Of a state group: the snapshots that it began with. Throws: bad_alloc. Cost: O(pages).
    [[nodiscard]] std::vector<std::int32_t> blocks(std::size_t group,
                                                   std::int32_t null = -1) const requires Core::grouped {
        return core_->groups([&](const auto& groups) { return groups.table(state(), group, null); });
    }
    /// The state of a group after the last token, where the next lease begins: what the last lease wrote into
    /// `state_after`, or a snapshot. Empty if there is none, as for a sequence without tokens, and after a commit of
    /// fewer rows than were reserved. Valid until the sequence changes. Only if the cache owns its memory.
    [[nodiscard]] std::span<const std::byte> state_of(std::size_t group) const requires Core::owns_blocks {
        return core_->groups([&](const auto& groups) { return groups.last_state(state(), group); });
    }

    /// Returns a sequence that shares the first `tokens` tokens. The first write to a partly used shared page copies
    /// it. With a codec that quantizes whole pages, a fork inside a quantized page ends where that page begins:
    /// continue at its size(). Requires: tokens <= size(), no open lease. Cost: O(pages).
    [[nodiscard]] basic_sequence fork(std::size_t tokens) const { return core_->fork(state(), tokens); }

    /// Keeps the first `tokens` tokens, or fewer, as a fork does. Requires: tokens <= size(), no lease under way.
    void truncate(std::size_t tokens) { core_->truncate(state(), tokens); }

    /// Prevents pages after the first `tokens` tokens from being published to other sequences; forks inherit the limit.
    /// Pages that are already published stay so.
    void set_cacheable_limit(std::size_t tokens) { core_->set_cacheable_limit(state(), tokens); }
    /// The maximum number of leading tokens that can be shared.
    [[nodiscard]] std::size_t cacheable_limit() const { return std::min(state().exact, state().cacheable); }

    /// Returns a new sequence without the `count` tokens from `first` on. Later tokens move down with unchanged keys
    /// and values, in pages of their own: from `first` on the sequence is approximate (StreamingLLM, Xiao et al. 2024).
    /// Only if the codec writes row by row. Errors: out_of_memory. Requires: first + count <= size(), no open lease.
    /// Cost: O(bytes of the later tokens).
    [[nodiscard]] result<basic_sequence> erase_range(std::size_t first,
                                                     std::size_t count) const requires Core::writes_rows {
        return core_->erase_range(state(), first, count);
    }

    /// The state, for the library's own use with the cache that it is passed.
    [[nodiscard]] sequence_state& state_in(const Core& core) const {
        require(state_ == nullptr || state_->orphaned || core_ == &core, "a sequence is used with its own cache");
        return state();
    }

private:
    [[nodiscard]] sequence_state& state() const {
        require(state_ != nullptr, "a sequence that was moved from is only destroyed or assigned to");
        require(!state_->orphaned, "a cache outlives its sequences");
        return *state_;
    }
    [[nodiscard]] detail::table_rows<Core> rows() const { return {*core_, state().table, size()}; }

    Core* core_;
    std::unique_ptr<sequence_state> state_;
};

/// The location of a row of a lease: a row of a page, and the index of its page-table entry (if the lease is not
/// spliced).
struct row_slot {
    page_id page = {};
    std::uint32_t row = 0;
    std::size_t entry = 0;
};

/// What the library's own code sees of a lease: the core of its cache and the state of its sequence. It can copy whole
/// pages into the rows that the lease has added.
template <class Core>
struct open_lease {
    Core& core;
    sequence_state& state;

    [[nodiscard]] const page_shape& shape() const noexcept { return core.shape(); }

    /// The number of pages that the lease has allocated, for rows that were computed elsewhere and are copied in as
    /// whole pages, in the codec's format. Requires: the sequence ended at a page boundary.
    [[nodiscard]] std::size_t taken_pages() const {
        expects(!state.lease.tail_before && state.lease.spliced.empty(), "whole pages are put in place");
        return state.table.size() - state.lease.pages_before;
    }
    /// The bytes of one of these pages.
    [[nodiscard]] std::span<std::byte> page_bytes(std::size_t page) const {
        expects(page < taken_pages(), "a page that is put in place was taken");
        return core.storage().bytes(state.table[state.lease.pages_before + page].page);
    }
    /// The memory for the page's residual rows, in the format of the f32 codec; empty if none are kept once all rows
    /// are committed.
    [[nodiscard]] std::span<std::byte> residual_bytes(std::size_t page) const {
        expects(page < taken_pages(), "a page that is put in place was taken");
        auto* rows = core.sequences().residual().given(state, state.lease.pages_before + page);
        return rows != nullptr ? rows->bytes() : std::span<std::byte>();
    }
    /// Commits all rows, as commit does, for rows that were copied in: they do not count as measurements of the prefill
    /// cost.
    void commit_in_place(std::span<const token_id> tokens) const {
        require(tokens.size() == state.lease.rows, "all rows that are put in place are committed");
        core.commit_in_place(state, tokens);
    }

    /// Whether a row is kept as it was computed elsewhere.
    [[nodiscard]] bool keeps(std::size_t row) const noexcept {
        return row < state.lease.spliced.size() && state.lease.spliced[row].kept;
    }
    /// Calls `f` with the codec and the bytes of a page in the group, as basic_lease::with_source does. Requires: the
    /// group has rows of the page.
    template <class F>
    void with_page(std::size_t group, page_id page, F&& f) const requires Core::owns_blocks {
        const auto& blocks = core.pages().blocks();
        if (const std::size_t keeper = blocks.keeper_of(group); keeper != blocks.paged())
            f(blocks.memory().codec(blocks.pool_of(keeper)),
              std::span<const std::byte>(
                  blocks.memory().bytes(blocks.pool_of(keeper), blocks.block(blocks.pool_of(keeper), page))));
        else
            f(core.codec(), std::span<const std::byte>(core.storage().bytes(page)));
    }

    /// The locations of the rows of a spliced lease; empty for other leases.
    [[nodiscard]] std::span<const spliced_row> spliced() const noexcept { return state.lease.spliced; }
};

/// Rows reserved after the end of a sequence, to be written layer by layer and then committed. Destruction without a
/// commit rolls the sequence back. At most one lease a sequence; it ends when its sequence is destroyed. Several
/// threads may write different rows and call const members that read; one thread, after them, ends or moves it.
/// Requires: the cache outlives it. `Core`: a cache_core.
template <class Core>
class basic_lease {
    static constexpr bool whole_pages = page_writer<typename Core::codec_type>;
    // Whether the cache owns the memory of the rows.
    static constexpr bool owns_rows = whole_pages || row_writer<typename Core::codec_type>;

public:
    /// The lease of a state whose rows are reserved.
    basic_lease(Core& core, sequence_state& state) : core_(&core), state_(&state), first_(state.tokens.size()) {
        hold();
    }
    basic_lease(basic_lease&& other) noexcept
        : core_(other.core_),
          state_(std::exchange(other.state_, nullptr)),
          first_(other.first_),
          committed_(other.committed_) {
        hold();
    }
    /// Rolls back the lease that it held before.
    basic_lease& operator=(basic_lease&& other) noexcept {
        basic_lease taken(std::move(other));
        std::swap(core_, taken.core_);
        std::swap(state_, taken.state_);
        std::swap(first_, taken.first_);
        std::swap(committed_, taken.committed_);
        hold();
        taken.hold();
        return *this;
    }
    ~basic_lease() { rollback(); }

    /// The position of the first reserved row.
    [[nodiscard]] std::size_t first() const noexcept { return first_; }
    /// The number of reserved rows; zero once the lease has ended.
    [[nodiscard]] std::size_t rows() const noexcept { return open() ? state_->lease.rows : 0; }

    /// The location of a reserved row.
    [[nodiscard]] row_slot slot_of(std::size_t row) const {
        require(row < rows(), "a row that has a slot was reserved");
        const lease_state& lease = state_->lease;
        if (!lease.spliced.empty())
            return {lease.spliced[row].page, lease.spliced[row].row, 0};
        const std::size_t tokens = core_->shape().tokens;
        const std::size_t tail = lease.pages_before - (lease.tail_before ? 1 : 0);
        const std::size_t used = lease.tail_before ? lease.tail_before->first + lease.tail_before->count : 0;
        const std::size_t entry = tail + (used + row) / tokens;
        return {state_->table[entry].page, static_cast<std::uint32_t>((used + row) % tokens), entry};
    }

    /// Writes the keys (rotated by the position if the model uses RoPE) and values of one row.
    /// keys, values: (kv_heads, head_dim). Several threads may write rows of one lease. If the codec encodes whole
    /// pages, each row is written once per layer, in ascending order except among the rows that run at once.
    void write(layer_id layer, std::size_t row, std::span<const float> keys, std::span<const float> values) const {
        static_assert(owns_rows, "the host writes rows that are in its own memory: slot_of says where");
        const page_shape& shape = core_->shape();
        require(row < rows(), "a written row was reserved");
        require(index_of(layer) < shape.layers, "a written layer is one of the page shape's");
        require(keys.size() == std::size_t{shape.kv_heads} * shape.head_dim && values.size() == keys.size(),
                "a row of keys or values has head_dim numbers for each KV head");
        lease_state& lease = state_->lease;
        expects(lease.spliced.empty() || !lease.spliced[row].kept, "a row that is kept from elsewhere is not written");
        if (lease.spliced.empty())
            lease.written.mark(core_->sequences().first_layer() + index_of(layer), row);
        const row_slot to = slot_of(row);
        if constexpr (whole_pages) {
            auto* const rows = lease.spliced.empty() ? lease.residual[to.entry] : core_->pages().residual().of(to.page);
            rows->write(core_->codec(), core_->storage().bytes(to.page), layer, to.row, keys, values);
        }
        if constexpr (owns_rows && !whole_pages)
            for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
                core_->codec().encode(core_->storage().bytes(to.page), {layer, head_id{head}, to.row},
                                      keys.subspan(std::size_t{head} * shape.head_dim, shape.head_dim),
                                      values.subspan(std::size_t{head} * shape.head_dim, shape.head_dim));
    }

    /// Writes one row of a layer of a group, as above. `layer`: counted within the group. keys, values: (the group's
    /// kv_heads, head_dim). Only if the cache owns its memory.
    void write(std::size_t group, layer_id layer, std::size_t row, std::span<const float> keys,
               std::span<const float> values) const requires Core::owns_blocks {
        const auto& blocks = core_->pages().blocks();
        if (group == blocks.paged())
            return write(layer, row, keys, values);
        require(row < rows(), "a written row was reserved");
        const std::size_t pool = blocks.pool_of(group);
        const auto& of = blocks.layout().groups[group];
        require(of.has_rows() && index_of(layer) < of.layers, "a written layer is one of its group's");
        require(keys.size() == std::size_t{of.kv_heads} * of.head_dim && values.size() == keys.size(),
                "a row of keys or values has head_dim numbers for each KV head");
        const row_slot to = slot_of(row);
        require(blocks.has(pool, to.page), "a whole lease has blocks only for rows that the next query reads");
        if (state_->lease.spliced.empty())
            state_->lease.written.mark(blocks.first_layer(group) + index_of(layer), row);
        const auto bytes = blocks.memory().bytes(pool, blocks.block(pool, to.page));
        for (std::uint32_t head = 0; head < of.kv_heads; ++head)
            blocks.memory().codec(pool).encode(bytes, {layer, head_id{head}, to.row},
                                               keys.subspan(std::size_t{head} * of.head_dim, of.head_dim),
                                               values.subspan(std::size_t{head} * of.head_dim, of.head_dim));
    }

    /// Declares all rows written, by code that writes the pages itself. Not needed where the cache does not own their
    /// memory.
    void declare_written() const {
        require(open(), "a lease has rows until it ends");
        state_->lease.written.fill();
    }

    [[nodiscard]] const page_shape& shape() const { return core("a lease shows its cache until it ends").shape(); }
    /// The codec and the storage of the cache, to read the pages with.
    [[nodiscard]] const auto& codec() const { return core("a lease shows its cache until it ends").codec(); }
    [[nodiscard]] const auto& storage() const { return core("a lease shows its cache until it ends").storage(); }

    /// The sequence's pages, reserved rows included, in the form that attention reads.
    [[nodiscard]] sequence_pages pages() const {
        require(open(), "a lease shows its pages until it ends");
        return {state_->table, state_->lease.residual, state_->exact != sequence_state::all};
    }
    /// Calls `f` with a row_run for each run of consecutive rows in one page, in order of position: the sequence's
    /// rows, then the reserved ones. The pointers are valid until the lease ends. Only with a row-major codec
    /// (codec/row_major.hpp). Cost: O(pages), besides `f`.
    template <class F>
    void for_each_run(layer_id layer, head_id head, F&& f) const {
        all_rows().for_each_run(layer, head, f);
    }
    /// Copies the keys and values of these rows, widened to float32. keys, values: (first() + rows(), head_dim).
    /// Only with a codec that writes single rows. Throws: bad_alloc, unless the codec is row-major. Cost: O(numbers).
    void gather(layer_id layer, head_id head, std::span<float> keys, std::span<float> values) const {
        all_rows().gather(layer, head, keys, values);
    }

    /// The blocks of a layer group, by page-table entry, those of reserved rows included: the number of each that is
    /// read or written, and `null` for the others. Of a state group: the snapshot that the sequence began with, and
    /// those that the lease has made. Throws: bad_alloc. Cost: O(pages).
    [[nodiscard]] std::vector<std::int32_t> blocks(std::size_t group,
                                                   std::int32_t null = -1) const requires Core::grouped {
        return core("a lease shows its blocks until it ends").groups([&](const auto& groups) {
            return groups.table(*state_, group, null);
        });
    }
    /// The sequence's blocks of a layer group, those of reserved rows included, in the form that attention reads:
    /// `entries` becomes their table, and is valid as long as the pages. Entries before the window of the first
    /// reserved row have no block. Only if the cache owns its memory. Throws: bad_alloc. Cost: O(pages).
    [[nodiscard]] sequence_pages pages(std::size_t group,
                                       std::vector<page_entry>& entries) const requires Core::owns_blocks {
        const bool paged = core("a lease shows its blocks until it ends").groups([&](const auto& groups) {
            return groups.entries(*state_, group, entries);
        });
        sequence_pages made{.table = entries, .residual = {}, .spliced = state_->exact != sequence_state::all};
        if (paged)
            made.residual = state_->lease.residual;
        return made;
    }
    /// Calls `f` with the codec and the storage of a layer group's blocks, which have the types of the cache's pages
    /// for the group that has them. Only if the cache owns its memory.
    template <class F>
    void with_source(std::size_t group, F&& f) const requires Core::owns_blocks {
        const Core& of = core("a lease shows its cache until it ends");
        const auto& blocks = of.pages().blocks();
        const std::size_t keeper = blocks.keeper_of(group);
        if (keeper == blocks.paged())
            f(of.codec(), of.storage());
        else
            f(blocks.memory().codec(blocks.pool_of(keeper)), blocks.memory().storage(blocks.pool_of(keeper)));
    }
    /// The memory of the blocks of all groups without pages: owned_blocks, whose types say what reads them.
    [[nodiscard]] const auto& block_memory() const requires Core::owns_blocks {
        return core("a lease shows its cache until it ends").pages().blocks().memory();
    }
    /// A block for the state of a group after the first `tokens` tokens of the sequence, which the lease computes. The
    /// host writes it before it commits; a commit of fewer tokens drops it. `bytes`: of an opaque state, and of no
    /// other. Returns the block's number. Errors: out_of_memory. Throws: bad_alloc. Requires: the group has a state;
    /// the tokens fill their pages and end in the lease.
    [[nodiscard]] result<std::uint32_t> snapshot(std::size_t group, std::size_t tokens,
                                                 std::size_t bytes = 0) const requires Core::grouped {
        Core& of = core("a lease has rows until it ends");
        require(tokens % of.shape().tokens == 0 && tokens > first_ && tokens <= first_ + rows(),
                "a snapshot is taken where a page of the lease ends");
        return of.groups([&](auto& groups) { return groups.snapshot(*state_, group, tokens, bytes); });
    }
    /// The bytes of such a block. Only if the cache owns its memory. Requires: a snapshot that the lease made.
    [[nodiscard]] std::span<std::byte> state_of(std::size_t group,
                                                std::uint32_t block) const requires Core::owns_blocks {
        return core("a lease has rows until it ends").groups([&](const auto& groups) {
            return groups.state_bytes(group, block);
        });
    }

    /// The state of a group before the first row; empty as for the sequence. Valid until the lease ends.
    [[nodiscard]] std::span<const std::byte> state_before(std::size_t group) const requires Core::owns_blocks {
        return core("a lease has rows until it ends").groups([&](const auto& groups) {
            return groups.last_state(*state_, group);
        });
    }
    /// Memory for the state of a group after the last row, which the sequence has once all rows are committed. Further
    /// calls return the same memory. It does not count against the cache's limit: there are two for each live sequence.
    /// Throws: bad_alloc. Requires: the state is not opaque; if one group's state is written, all groups' are.
    [[nodiscard]] std::span<std::byte> state_after(std::size_t group) const requires Core::owns_blocks {
        return core("a lease has rows until it ends").groups([&](const auto& groups) {
            return groups.next_state(*state_, group);
        });
    }

    /// Publishes the first tokens.size() rows as these tokens, releases the others, and ends the lease.
    /// It cannot fail: the lease has already allocated all necessary memory. After a rollback there are no rows, and
    /// committing none has no effect.
    /// Requires: tokens.size() <= rows(), the lease was not committed before, and the rows of these tokens are written
    /// in every layer, if the cache owns the memory of its pages.
    void commit(std::span<const token_id> tokens) {
        require(!committed_, "a lease is committed once");
        require(tokens.size() <= rows(), "no more tokens are committed than rows were reserved");
        if (!open())
            return;
        const lease_state& lease = state_->lease;
        require(!lease.whole || tokens.size() == rows(), "a whole lease is committed with all its rows");
        if constexpr (owns_rows)
            require(!lease.spliced.empty() || lease.written.first(tokens.size()),
                    "rows are written in every layer before they are committed");
        if constexpr (opaque_codec_state<typename Core::codec_type>)
            require(has_blobs(tokens.size()),
                    "opaque pages are committed with a blob each, which holds all rows that were reserved of a page");
        expects(lease.spliced.empty() || tokens.size() == rows(), "a spliced lease is committed whole");
        core_->commit(*state_, tokens);
        committed_ = true;
    }

    /// Cancels the reservation: the sequence is as it was before. No effect if the lease has ended.
    void rollback() noexcept {
        if (open())
            core_->rollback(*state_);
    }

    /// What the library's own code sees of the lease. Requires: it has not ended.
    [[nodiscard]] open_lease<Core> opened() const { return {core("a lease has rows until it ends"), *state_}; }

private:
    // The core, which a lease that has ended may have outlived.
    [[nodiscard]] Core& core(const char* rule) const {
        require(open(), rule);
        return *core_;
    }

    // Whether the pages of the first rows have blobs, which end there.
    [[nodiscard]] bool has_blobs(std::size_t count) const {
        const std::size_t tokens = core_->shape().tokens;
        bool all = count == rows() || (first_ + count) % tokens == 0;
        for (std::size_t row = 0; all && row < count; row += tokens - (first_ + row) % tokens)
            all = detail::has_blobs(*core_, slot_of(row).page);
        return all;
    }

    // Whether it has not ended; it ends with its sequence and with its cache too.
    [[nodiscard]] bool open() const noexcept { return state_ != nullptr; }
    void hold() noexcept {
        if (state_ != nullptr)
            state_->lease.hold(&state_);
    }

    [[nodiscard]] detail::table_rows<Core> all_rows() const {
        return {core("a lease shows its rows until it ends"), state_->table, first_ + state_->lease.rows};
    }

    Core* core_;
    sequence_state* state_; // null once the lease has ended
    std::size_t first_;
    bool committed_ = false;
};

/// A sequence for a prompt, and a lease over the rows of the prompt that have to be computed. The first lease.first()
/// tokens are cached. After the lease is committed the sequence is continued with reserve. For threads it counts as one
/// object with its sequence and its lease. Requires: the cache outlives it.
template <class Core>
struct acquired {
    basic_sequence<Core> sequence;
    basic_lease<Core> lease; ///< Destroyed before the sequence.
    lookup_result found;     ///< What was cached of the prompt.

    acquired(basic_sequence<Core> of, basic_lease<Core> rows, lookup_result known)
        : sequence(std::move(of)), lease(std::move(rows)), found(known) {}
    acquired(acquired&&) noexcept = default;
    acquired& operator=(acquired&& other) noexcept {
        lease = std::move(other.lease); // it rolls back the sequence that is replaced next
        sequence = std::move(other.sequence);
        found = other.found;
        return *this;
    }
    ~acquired() = default;
};

}} // namespace kvcache

// ---- kvcache/eviction/concept.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The capacity of a cache. A policy that partitions its capacity (a tenth for new entries) does so in bytes; for
/// entries of one size this equals counting them.
struct eviction_capacity {
    std::size_t slots = 0; ///< Maximum number of entries; every slot_id is below.
    std::size_t bytes = 0; ///< Maximum total bytes of the entries.
};

/// Attributes of a new entry, for the eviction policy.
struct eviction_entry {
    std::uint64_t key = 0;              ///< Hash of the content, by which a ghost recognizes a returning entry.
    std::size_t bytes = 0;              ///< Size of the entry.
    double cost = 0.0;                  ///< Seconds that a hit saves, provided that the parent is present.
    std::optional<slot_id> parent = {}; ///< The entry that this one continues.
    std::uint32_t depth = 0;            ///< Number of entries before it in its chain.
    std::uint32_t length = 0;           ///< Entries of the request that added it, itself included; 0 if unknown.
};

/// Returns whether a slot is evictable now: it is unreferenced and has no child in the cache. A placeholder for any
/// callable of this form: `victim` is a template over its argument.
struct evictable_check {
    bool operator()(slot_id slot) const;
};

/// The working state of an eviction policy. `admit` adds a new entry, `touch` records a use, `erase` removes an entry
/// (withdrawn). `victim` returns the next entry to evict among those for which its argument is true; it does not remove
/// it. `admit` throws bad_alloc if it lacks memory and has then changed nothing; the other functions do not throw.
///
/// Optional functions are called through the free functions below. `on_miss(entry)` precedes the calls of `victim` that
/// make room for a new entry and its `admit`. `evict(slot)` replaces `erase` for a victim, so that the policy can keep
/// a ghost. `on_released(slot)`: the last reference is gone; this is not a hit. A caller that releases a chain does so
/// tail first, so that children are evicted before parents. `on_child_added(slot)`: the entry gained its first child.
/// `on_last_child_removed(slot)`: it lost its last child. In between it is not evictable and is not erased, and a
/// policy that searches can skip it.
template <class S>
concept eviction_state = requires(S s, slot_id slot, const eviction_entry& newcomer,
                                  const evictable_check& is_evictable) {
    s.admit(slot, newcomer);
    s.touch(slot);
    s.erase(slot);
    { s.victim(is_evictable) } -> std::same_as<std::optional<slot_id>>;
};

/// A policy that selects the entry to evict when space is needed.
template <class P>
concept eviction_policy = plays<P, eviction_role> && requires(const P p, eviction_capacity capacity) {
    p.open(capacity);
} && eviction_state<opened_by<P, eviction_capacity>>;

/// Announces a new entry before space is made for it.
template <eviction_state S>
void on_miss(S& state, const eviction_entry& newcomer) {
    if constexpr (requires { state.on_miss(newcomer); })
        state.on_miss(newcomer);
}

/// Evicts a victim.
template <eviction_state S>
void evict(S& state, slot_id slot) {
    if constexpr (requires { state.evict(slot); })
        state.evict(slot);
    else
        state.erase(slot);
}

/// The last reference to an entry was dropped.
template <eviction_state S>
void on_released(S& state, slot_id slot) {
    if constexpr (requires { state.on_released(slot); })
        state.on_released(slot);
}

/// The entry gained its first child.
template <eviction_state S>
void on_child_added(S& state, slot_id slot) {
    if constexpr (requires { state.on_child_added(slot); })
        state.on_child_added(slot);
}

/// The entry lost its last child.
template <eviction_state S>
void on_last_child_removed(S& state, slot_id slot) {
    if constexpr (requires { state.on_last_child_removed(slot); })
        state.on_last_child_removed(slot);
}

#if KVCACHE_CONTRACTS
/// A state that also checks its caller: an entry is admitted once, and is used and removed only after that. Without
/// contract checks it is the state itself.
template <eviction_state S>
class checked_eviction {
public:
    template <eviction_policy P>
    checked_eviction(const P& policy, eviction_capacity capacity)
        : state_(policy.open(capacity)), present_(capacity.slots) {}

    void on_miss(const eviction_entry& newcomer) { kvcache::on_miss(state_, newcomer); }

    void admit(slot_id slot, const eviction_entry& newcomer) {
        expects(!present_[index_of(slot)], "an entry is admitted once");
        state_.admit(slot, newcomer);
        present_[index_of(slot)] = true;
    }

    void touch(slot_id slot) {
        expects(present_[index_of(slot)], "a touched entry was admitted");
        state_.touch(slot);
    }

    void on_released(slot_id slot) {
        expects(present_[index_of(slot)], "a released entry was admitted");
        kvcache::on_released(state_, slot);
    }

    void on_child_added(slot_id slot) {
        expects(present_[index_of(slot)], "an entry that gains a child was admitted");
        kvcache::on_child_added(state_, slot);
    }

    void on_last_child_removed(slot_id slot) {
        expects(present_[index_of(slot)], "an entry that lost its last child was admitted");
        kvcache::on_last_child_removed(state_, slot);
    }

    void erase(slot_id slot) {
        expects(present_[index_of(slot)], "an erased entry was admitted");
        state_.erase(slot);
        present_[index_of(slot)] = false;
    }

    void evict(slot_id slot) {
        expects(present_[index_of(slot)], "an evicted entry was admitted");
        kvcache::evict(state_, slot);
        present_[index_of(slot)] = false;
    }

    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
        return state_.victim(is_evictable);
    }

private:
    S state_;
    std::vector<bool> present_;
};
#else
/// Without contract checks it is the state itself.
template <eviction_state S>
using checked_eviction = S;
#endif

/// Opens a policy whose callers are checked, in builds with contract checks.
template <eviction_policy P>
[[nodiscard]] auto open_checked(const P& policy, eviction_capacity capacity) {
#if KVCACHE_CONTRACTS
    return checked_eviction<opened_by<P, eviction_capacity>>(policy, capacity);
#else
    return policy.open(capacity);
#endif
}

}} // namespace kvcache

// ---- kvcache/hash/concept.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The working state of a hash. `root` is the digest of the identity, before any token. `chain` is the digest of a
/// preceding digest and the run of tokens after it.
template <class S>
concept hash_state = requires(const S s, digest before, std::span<const token_id> run) {
    { s.root() } -> std::same_as<digest>;
    { s.chain(before, run) } -> std::same_as<digest>;
};

/// A policy that names a run of tokens together with everything before it.
template <class P>
concept hash_policy = plays<P, hash_role> && requires(const P p, const identity& id) {
    p.open(id);
} && hash_state<opened_by<P, identity>>;

}} // namespace kvcache

// ---- kvcache/cache/page_index.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// What the pages of a cache are opened for.
struct pool_config {
    page_shape shape;
    std::size_t pages = 0;
    std::size_t page_bytes = 0;
    std::size_t tenants = 0;       ///< The maximum number of tenants.
    bool merge_equal_pages = true; ///< See cache_config.
    bool fair_tenants = false;     ///< See cache_config.
    std::size_t blocks = 0;        ///< Blocks of layer groups, besides the pages.
    std::size_t bytes = 0;         ///< Of pages and blocks together; 0 for those of the pages.
};

/// A model of the time of a prefill on this machine, fitted to timed prefills. A token costs its projections,
/// independent of its position, and its attention, in proportion to its position. Both are fitted by least squares with
/// decaying weights. Before the first measurement, a token takes 0.1 ms.
///
///     seconds(rows from `first` on) = projections * rows + attention * (sum of their positions)
///
/// Cost: O(1) each.
class prefill_cost {
public:
    /// Records that `rows` rows from position `first` on took `seconds`. Requires: rows > 0 and seconds >= 0.
    void measure(std::size_t first, std::size_t rows, double seconds) {
        expects(rows > 0 && seconds >= 0.0, "a measurement has rows, and a time that is not negative");
        const double n = static_cast<double>(rows), p = positions(first, rows);
        const auto fade = [n](double& sum, double product) { sum = 0.98 * sum + product / n; }; // noise grows with rows
        fade(nn_, n * n);
        fade(np_, n * p);
        fade(pp_, p * p);
        fade(ns_, n * seconds);
        fade(ps_, p * seconds);
        fit();
    }

    /// The estimated time of `rows` rows from position `first` on.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return projections_ * static_cast<double>(rows) + attention_ * positions(first, rows);
    }

private:
    // Positions count from 1: a token attends to itself.
    [[nodiscard]] static double positions(std::size_t first, std::size_t rows) noexcept {
        const double n = static_cast<double>(rows);
        return n * (static_cast<double>(first) + (n + 1.0) / 2.0);
    }

    // The best nonnegative pair; projections alone if all measurements are nearly collinear.
    void fit() noexcept {
        const double independent = nn_ * pp_ - np_ * np_;
        projections_ = ns_ / nn_;
        attention_ = 0.0;
        if (independent <= 1e-6 * nn_ * pp_)
            return;
        const double attention = (nn_ * ps_ - np_ * ns_) / independent;
        const double projections = (pp_ * ns_ - np_ * ps_) / independent;
        if (attention <= 0.0)
            return;
        projections_ = std::max(projections, 0.0);
        attention_ = projections > 0.0 ? attention : ps_ / pp_;
    }

    double projections_ = 1e-4, attention_ = 0.0;                 // seconds per row, and per row and position
    double nn_ = 0.0, np_ = 0.0, pp_ = 0.0, ns_ = 0.0, ps_ = 0.0; // sums over rows, positions and seconds
};

/// An index with a root for each tenant: a full page outside the pool, whose run repeats the tenant's number. A
/// tenant's first pages continue its root, so no sequence of tokens leads from one tenant to another, in any index.
template <index_state Index>
class tenant_index {
public:
    template <class Indexes>
    tenant_index(const Indexes& indexes, page_shape shape, std::size_t pages, std::size_t most_tenants)
        : page_tokens_(shape.tokens), pages_(pages), index_(indexes.open(shape, pages + most_tenants)) {}

    /// The parent of the first page of a tenant's sequence; nullopt in a cache without tenants (number zero).
    [[nodiscard]] std::optional<page_id> root_of(std::uint32_t tenant) const noexcept {
        return tenant == 0 ? std::nullopt : std::optional(page_id{static_cast<std::uint32_t>(pages_ + tenant - 1)});
    }
    /// Throws: bad_alloc; the index is then unchanged.
    void add_root(std::uint32_t tenant) { index_.insert(std::nullopt, run_of(tenant), *root_of(tenant)); }

    /// Makes `found` the longest cached prefix of a tenant's tokens.
    void match(std::uint32_t tenant, std::span<const token_id> tokens, index_match& found) const {
        if (tenant == 0)
            return in_index(tokens, found);
        std::vector<token_id> query = run_of(tenant);
        query.insert(query.end(), tokens.data(), tokens.data() + tokens.size());
        in_index(query, found);
        found.pages.erase(found.pages.begin());
        found.tokens -= page_tokens_;
    }

    /// Chunks that a tenant has registered, if the index supports chunks.
    [[nodiscard]] std::vector<chunk_match> chunks(std::uint32_t tenant, std::span<const token_id> tokens,
                                                  std::size_t known) const requires chunk_index_state<Index> {
        return index_.chunks(tenant, tokens, known);
    }
    [[nodiscard]] std::size_t least() const requires chunk_index_state<Index> { return index_.least(); }
    bool note(std::uint32_t tenant, page_id last, std::uint32_t end,
              std::size_t count) requires chunk_index_state<Index> {
        return index_.note(tenant, last, end, count);
    }

    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        return index_.insert(parent, tokens, page);
    }
    void erase(page_id page) { index_.erase(page); }
    [[nodiscard]] bool contains(page_id page) const { return index_.contains(page); }
    [[nodiscard]] bool leaf(page_id page) const { return index_.leaf(page); }
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return index_.run(page); }

    /// The parent of a page, roots included.
    [[nodiscard]] std::optional<page_id> above(page_id page) const { return index_.parent(page); }
    /// The parent of a page, if it is a page of the pool.
    [[nodiscard]] std::optional<page_id> parent(page_id page) const {
        const auto found = above(page);
        return found && index_of(*found) < pages_ ? found : std::nullopt;
    }

private:
    void in_index(std::span<const token_id> tokens, index_match& found) const {
        if constexpr (requires { index_.match(tokens, found); })
            index_.match(tokens, found);
        else
            found = index_.match(tokens);
    }

    [[nodiscard]] std::vector<token_id> run_of(std::uint32_t tenant) const {
        return std::vector<token_id>(page_tokens_, token_id{static_cast<std::int32_t>(tenant)});
    }

    std::size_t page_tokens_;
    std::size_t pages_; // of the pool
    Index index_;
};

/// Adapts the pages of an index to the eviction policy: their keys, the cost that a hit saves, and their children.
template <hash_state Hash, eviction_state Eviction>
class page_eviction {
public:
    /// Each tenant has a root, a page of the index in addition to those of the pool: it has a name and is never ranked.
    template <class Hashes, class Evictions>
    page_eviction(const pool_config& of, const identity& id, const Hashes& hashes, const Evictions& evictions)
        : page_tokens_(of.shape.tokens),
          page_bytes_(of.page_bytes),
          hash_(hashes.open(id)),
          eviction_(open_checked(
              evictions, {.slots = of.pages + of.blocks, .bytes = of.bytes > 0 ? of.bytes : of.pages * of.page_bytes})),
          prefixes_(of.pages + of.tenants),
          depths_(of.pages),
          flags_(of.pages + of.blocks, 0) {}

    /// By page: the digest of all tokens up to the end of a ranked page, or of a root.
    [[nodiscard]] std::span<const digest> prefixes() const noexcept { return prefixes_; }
    void name_root(page_id root, const digest& name) { prefixes_[index_of(root)] = name; }

    [[nodiscard]] bool ranked(page_id page) const noexcept { return (flags_[index_of(page)] & is_ranked) != 0; }

    /// Records that computing `rows` rows from position `first` on took `seconds`.
    void measure(std::size_t first, std::size_t rows, double seconds) { cost_.measure(first, rows, seconds); }

    /// The estimated time to compute `rows` rows from position `first` on.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return cost_.seconds(first, rows);
    }

    /// Ranks a page of the index that is in use. `length` is the number of pages of its request; if zero, the request
    /// ends with this page. Throws: bad_alloc; the page is then not ranked.
    template <class Index>
    void rank(const Index& index, page_id page, std::size_t length) {
        if (ranked(page))
            return;
        const auto parent = index.parent(page), above = index.above(page);
        const auto run = index.run(page);
        const std::uint32_t depth = parent ? depths_[index_of(*parent)] + 1 : 0;
        depths_[index_of(page)] = depth;
        prefixes_[index_of(page)] = hash_.chain(above ? prefixes_[index_of(*above)] : hash_.root(), run);
        const eviction_entry newcomer{.key = prefixes_[index_of(page)].low,
                                      .bytes = page_bytes_,
                                      .cost = cost_.seconds(depth * page_tokens_, run.size()),
                                      .parent = parent ? std::optional(slot_of(*parent)) : std::nullopt,
                                      .depth = depth,
                                      .length = length > depth ? static_cast<std::uint32_t>(length) : depth + 1};
        on_miss(eviction_, newcomer);
        eviction_.admit(slot_of(page), newcomer);
        flags_[index_of(page)] = is_ranked | in_use;
        follow(index, page);
    }

    /// Ranks the block of a layer group that no sequence uses, as `entry`, a number after those of the pages, by what
    /// it costs to compute the tokens of its page. Throws: bad_alloc; the block is then not ranked.
    template <class Index>
    void rank_block(const Index& index, page_id entry, page_id page, std::size_t group, std::size_t bytes) {
        const auto before = index.parent(page), named = ranked(page) ? std::optional(page) : index.above(page);
        const std::uint32_t depth = before ? depths_[index_of(*before)] + 1 : 0;
        const digest name = named ? prefixes_[index_of(*named)] : hash_.root();
        const eviction_entry newcomer{.key = name.low + 0x9e3779b97f4a7c15u * (group + 1),
                                      .bytes = bytes,
                                      .cost = cost_.seconds(depth * page_tokens_, index.run(page).size()),
                                      .depth = depth,
                                      .length = depth + 1};
        on_miss(eviction_, newcomer);
        eviction_.admit(slot_of(entry), newcomer);
        flags_[index_of(entry)] = is_ranked;
        kvcache::on_released(eviction_, slot_of(entry));
    }

    /// Reports to the policy whether a page has children, after that may have changed.
    template <class Index>
    void follow(const Index& index, std::optional<page_id> page) noexcept {
        if (page && ranked(*page))
            set_has_children(*page, !index.leaf(*page));
    }

    void unrank(page_id page) noexcept {
        if (!ranked(page))
            return;
        set_has_children(page, false);
        eviction_.erase(slot_of(page));
        flags_[index_of(page)] = 0;
    }

    void touch(page_id page) noexcept {
        if (ranked(page))
            eviction_.touch(slot_of(page));
    }

    /// The page is referenced again. Requires: it is ranked, as in the functions below.
    void on_held(page_id page) noexcept { flags_[index_of(page)] |= in_use; }
    /// The last reference to the page is gone.
    void on_released(page_id page) noexcept {
        flags_[index_of(page)] &= static_cast<std::uint8_t>(~in_use);
        kvcache::on_released(eviction_, slot_of(page));
    }

    /// Whether a page is ranked, unreferenced and has no children.
    [[nodiscard]] bool evictable(page_id page) const noexcept { return flags_[index_of(page)] == is_ranked; }

    /// The page to evict among the evictable ones for which `wanted(page)` holds. Throws: contract_violation, in every
    /// build, if the policy names another.
    template <class Wanted>
    [[nodiscard]] std::optional<page_id> victim(const Wanted& wanted) {
        const auto is_victim = [&](slot_id slot) {
            const auto place = static_cast<std::uint32_t>(slot);
            return place < flags_.size() && flags_[place] == is_ranked && wanted(page_id{place});
        };
        const std::optional<slot_id> slot = eviction_.victim(is_victim);
        if (!slot)
            return std::nullopt;
        require(is_victim(*slot), "an eviction policy's victim is evictable");
        return page_id{index_of(*slot)};
    }

    void evict(page_id page) noexcept {
        kvcache::evict(eviction_, slot_of(page));
        flags_[index_of(page)] = 0;
    }

private:
    static constexpr std::uint8_t is_ranked = 1, has_children = 2, in_use = 4;

    [[nodiscard]] static slot_id slot_of(page_id page) noexcept { return slot_id{index_of(page)}; }

    void set_has_children(page_id page, bool covered) noexcept {
        std::uint8_t& flags = flags_[index_of(page)];
        if (covered == ((flags & has_children) != 0))
            return;
        flags ^= has_children;
        if (covered)
            on_child_added(eviction_, slot_of(page));
        else
            on_last_child_removed(eviction_, slot_of(page));
    }

    std::size_t page_tokens_, page_bytes_;
    Hash hash_;
    checked_eviction<Eviction> eviction_;
    prefill_cost cost_;
    std::vector<digest> prefixes_;
    std::vector<std::uint32_t> depths_; // by page: full pages before it
    std::vector<std::uint8_t> flags_;   // by page
};

}} // namespace kvcache

// ---- kvcache/storage/concept.hpp ----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

template <class S>
concept keeps_pages = std::movable<S> && requires(S s, page_id page) {
    { s.acquire(page) } -> std::same_as<bool>;
    { s.release(page) }
    noexcept;
};

// Copies the first rows of a page, or all of it.
template <class S>
auto copy_rows(const S& storage, page_id from, page_id to, std::size_t rows) {
    if constexpr (requires { storage.copy(from, to, rows); })
        return storage.copy(from, to, rows);
    else if constexpr (requires { storage.copy(from, to); })
        return storage.copy(from, to);
}

} // namespace detail

/// A storage whose pages the host can access: `bytes` returns the memory of an acquired page.
template <class S>
concept host_storage_state = detail::keeps_pages<S> && requires(const S c, page_id page) {
    { c.bytes(page) } -> std::same_as<std::span<std::byte>>;
};

/// A storage whose pages the host cannot address. `copy` copies one acquired page to another, or the first rows of it,
/// and returns whether it succeeded. `status` returns the reason of the last refused page or copy.
template <class S>
concept device_storage_state = detail::keeps_pages<S> && !host_storage_state<S> && requires(const S c, page_id page) {
    { detail::copy_rows(c, page, page, 1) } -> std::same_as<bool>;
    { c.status() } -> std::same_as<result<void>>;
};

/// The working state of a storage: the memory of each page. `acquire` makes a page's memory usable and returns whether
/// it succeeded. `release` declares its content no longer needed.
template <class S>
concept storage_state = host_storage_state<S> || device_storage_state<S>;

/// A policy that decides where the bytes of pages live.
template <class P>
concept storage_policy = plays<P, storage_role> && requires(const P p, std::size_t n) {
    p.open(n, n); // pages, bytes a page
} && storage_state<opened_by<P, std::size_t, std::size_t>>;

}} // namespace kvcache

// ---- kvcache/cache/page_budget.hpp --------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

template <class Storage, class Codec>
class owned_blocks; // <kvcache/layer_groups.hpp>

namespace detail {

// The shape of a cache's pages: for layer groups that of the first full one.
template <class Layers>
[[nodiscard]] page_shape shape_of(const page_shape& given, [[maybe_unused]] const Layers& layers) {
    if constexpr (requires { layers.page_shape(); })
        return layers.page_shape();
    else
        return given;
}

// A storage that gives the memory of freed pages back, if it or the one that it wraps has a choice.
template <class Storage>
[[nodiscard]] Storage returning(Storage storage) {
    if constexpr (requires { storage.keep = false; })
        storage.keep = false;
    if constexpr (requires { storage.inner; })
        storage.inner = returning(storage.inner);
    return storage;
}

// The codec of the blocks of layer groups.
template <class Codec>
[[nodiscard]] const auto& blocks_codec(const Codec& codec) noexcept {
    if constexpr (requires { codec.blocks; })
        return codec.blocks;
    else
        return codec;
}

// Opens what a cache keeps of layer groups: blocks of its own, unless its pages are the host's. The memory of freed
// blocks goes back, where the storage can do so: pages and blocks share one limit.
template <class Policies>
[[nodiscard]] auto open_layers(const Policies& policies, const layers_capacity& of) {
    using storage_policy_type = decltype(policies.storage);
    if constexpr (requires { policies.layers.layout; } &&
                  host_storage_state<opened_by<storage_policy_type, std::size_t, std::size_t>>)
        return policies.layers.open(of, owned_blocks(returning(policies.storage), blocks_codec(policies.codec)));
    else
        return policies.layers.open(of);
}

// Whether the codec of blocks in the cache's memory writes single rows, or opaque blobs.
template <class Layers>
inline constexpr bool writes_blocks_by_row = true;
template <class Layers>
    requires requires {
        typename Layers::memory_type::codec_type;
    }
inline constexpr bool writes_blocks_by_row<Layers> = row_writer<typename Layers::memory_type::codec_type> ||
                                                     opaque_codec_state<typename Layers::memory_type::codec_type>;

// Whether a cache of layer groups can be opened. Errors: those of layers::grouped; out_of_range, for a group whose
// blocks its codec cannot have.
template <class Core, class Layers>
[[nodiscard]] result<void> check_layers(const Layers& layers, const cache_limits& limit) {
    using blocks = typename Core::layers_type;
    if (auto right = layers.check(limit, blocks::owned); !right)
        return right;
    for (std::size_t group = 0; group < layers.layout.groups.size(); ++group)
        if constexpr (blocks::owned)
            if (layers.layout.groups[group].has_rows() && group != layers.paged() &&
                !has_pages_of<typename blocks::memory_type::codec_type>(layers.layout.shape(group)))
                return error{error_code::out_of_range, joined({"groups[", std::to_string(group), "]"}),
                             shape_rule<typename blocks::memory_type::codec_type>};
    return {};
}

// By group: the bytes of a block.
template <class Layers, class Codec>
[[nodiscard]] std::vector<std::size_t> block_bytes_of(const Layers& layers, const Codec& codec) {
    std::vector<std::size_t> bytes;
    for (std::size_t group = 0; group < layers.layout.groups.size(); ++group) {
        const auto& of = layers.layout.groups[group];
        const std::size_t own = group < layers.block_bytes.size() ? layers.block_bytes[group] : 0;
        bytes.push_back(own > 0         ? own
                        : of.has_rows() ? blocks_codec(codec).open(layers.layout.shape(group)).page_bytes()
                                        : of.state_bytes);
    }
    return bytes;
}

// The number of pages within a limit. Pages without a full group hold nothing; there are sixteen for each block. An
// opaque state counts as 64 KiB for this.
template <class Layers, class Codec>
[[nodiscard]] std::size_t pages_in(cache_limits limit, [[maybe_unused]] const Layers& layers,
                                   [[maybe_unused]] const Codec& codec, std::size_t page_bytes) {
    if constexpr (requires { layers.layout; }) {
        if (limit.bytes == 0) // layers::grouped::check
            return 0;
        if (!layers.paged()) {
            std::size_t all = page_bytes;
            for (const std::size_t bytes : block_bytes_of(layers, codec))
                all += bytes / 16;
            for (const auto& group : layers.layout.groups)
                all += group.opaque ? 4096 : 0;
            page_bytes = all;
        }
    }
    return limit.pages_of(page_bytes);
}

// Opens the pages of a cache, and the blocks of its layer groups, within its limit. Requires: that is at least one
// page.
template <class Pages, class Policies, class Codec>
[[nodiscard]] Pages open_pages(const cache_config& config, const Policies& policies, const Codec& codec,
                               const page_shape& shape, const identity& id) {
    pool_config of{.shape = shape,
                   .pages = pages_in(config.limit, policies.layers, policies.codec, codec.page_bytes()),
                   .page_bytes = codec.page_bytes(),
                   .tenants = config.tenants == 0 ? 0 : config.tenants + 1,
                   .merge_equal_pages = config.merge_equal_pages,
                   .fair_tenants = config.fair_tenants};
    require(of.pages > 0, "a cache's limit is at least one page");
    if constexpr (Pages::grouped) {
        of.bytes = config.limit.bytes;
        const auto sizes = block_bytes_of(policies.layers, policies.codec);
        auto blocks = open_layers(policies, {.pages = of.pages, .bytes = of.bytes, .block_bytes = sizes});
        of.blocks = blocks.slots() - of.pages;
        Policies shared = policies;
        shared.storage = returning(policies.storage);
        return Pages(of, id, shared, std::move(blocks));
    } else {
        return Pages(of, id, policies);
    }
}

} // namespace detail

}} // namespace kvcache

// ---- kvcache/cache/page_pool.hpp ----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// A fixed number of pages of one storage, each free or reference-counted.
template <storage_state Storage>
class page_pool {
public:
    page_pool(std::size_t pages, Storage storage) : storage_(std::move(storage)), holders_(pages, 0) {
        free_.reserve(pages);
        for (std::size_t page = pages; page > 0; --page)
            free_.push_back(page_id{static_cast<std::uint32_t>(page - 1)});
    }

    [[nodiscard]] std::size_t pages() const noexcept { return holders_.size(); }
    [[nodiscard]] std::span<const page_id> free() const noexcept { return free_; }
    [[nodiscard]] std::uint32_t holders(page_id page) const { return holders_[index_of(page)]; }
    [[nodiscard]] const Storage& storage() const noexcept { return storage_; }
    [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return storage_.bytes(page); }

    /// Copies the first rows of a page to another. Returns false if the storage refuses.
    template <class Codec>
    [[nodiscard]] bool copy(const Codec& codec, page_id from, page_id to, std::size_t rows) const {
        if constexpr (device_storage_state<Storage>)
            return detail::copy_rows(storage_, from, to, rows);
        else if constexpr (row_writer<Codec>)
            codec.copy(bytes(from), bytes(to), rows);
        return true;
    }
    /// Zeroes the page, if the host can write it: rows that are never written are still read, with zero weight.
    void clear(page_id page) const {
        if constexpr (host_storage_state<Storage>)
            ranges::fill(bytes(page), std::byte{});
    }

    /// Allocates a free page with one reference; nullopt if no page is free or the storage refuses.
    [[nodiscard]] std::optional<page_id> take() {
        if (free_.empty() || !storage_.acquire(free_.back()))
            return std::nullopt;
        const page_id page = free_.back();
        free_.pop_back();
        holders_[index_of(page)] = 1;
        return page;
    }

    void hold(page_id page) noexcept { ++holders_[index_of(page)]; }

    /// Releases one reference. Returns the number left. The page stays allocated, even at zero, until `reclaim`.
    std::uint32_t drop(page_id page) {
        expects(holders(page) > 0, "a dropped page was held");
        return --holders_[index_of(page)];
    }

    /// Frees a page. Requires: the page has no references.
    void reclaim(page_id page) {
        expects(holders(page) == 0, "a page that is given back has no holder");
        storage_.release(page);
        free_.push_back(page);
    }

private:
    Storage storage_;
    std::vector<std::uint32_t> holders_;
    std::vector<page_id> free_;
};

/// In place of a residual_pool, where a codec writes row by row: no page has residual rows.
struct no_residual_pool {
    no_residual_pool(page_shape, std::size_t, std::size_t) {}
    static constexpr std::size_t more_aside(std::size_t) noexcept { return 0; }
    static constexpr std::size_t aside() noexcept { return 0; }
    static constexpr std::size_t alive() noexcept { return 0; }
    static constexpr std::size_t bytes() noexcept { return 0; }
    static constexpr codec::residual_page* of(page_id) noexcept { return nullptr; }
    static constexpr void drop(page_id) noexcept {}
    static constexpr void pass_on(page_id, page_id) noexcept {}
    static constexpr bool add_up(std::size_t leased) noexcept { return leased == 0; }
};

}} // namespace kvcache

// ---- kvcache/cache/residual.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The residual rows that a codec of whole pages keeps in addition to the pages: those of each page, and their total
/// size. They count toward the cache's limit: as many pages as they occupy are set aside.
class residual_pool {
public:
    /// Manages the residual rows of `pages` pages of `page_bytes` each.
    residual_pool(page_shape shape, std::size_t pages, std::size_t page_bytes)
        : shape_(shape), page_bytes_(page_bytes), of_page_(pages) {}

    /// Additional pages to set aside for `more` more residual pages.
    [[nodiscard]] std::size_t more_aside(std::size_t more) const noexcept { return weight(alive_ + more) - aside(); }
    /// Pages set aside for the residual rows.
    [[nodiscard]] std::size_t aside() const noexcept { return weight(alive_); }
    [[nodiscard]] std::size_t alive() const noexcept { return alive_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return alive_ * codec::residual_page::bytes_for(shape_); }

    /// The residual rows of a page; null if it has none.
    [[nodiscard]] codec::residual_page* of(page_id page) const noexcept { return of_page_[index_of(page)].get(); }

    /// Throws: bad_alloc.
    [[nodiscard]] std::shared_ptr<codec::residual_page> make() {
        auto made = std::make_shared<codec::residual_page>(shape_);
        ++alive_;
        return made;
    }
    /// Frees residual rows that were given to no page.
    void end(const std::shared_ptr<codec::residual_page>& rows) noexcept { alive_ -= rows != nullptr; }

    void give(page_id page, std::shared_ptr<codec::residual_page> rows) noexcept {
        end(std::exchange(of_page_[index_of(page)], std::move(rows)));
    }
    /// Frees the residual rows of a page, if it has any.
    void drop(page_id page) noexcept { give(page, nullptr); }
    /// Moves the rows of one page to another that holds the same tokens and has no residual rows.
    void pass_on(page_id from, page_id to) noexcept {
        if (of(from) != nullptr && of(to) == nullptr)
            of_page_[index_of(to)] = std::move(of_page_[index_of(from)]);
    }

    /// Returns whether the residual rows of pages and `leased` others account for all that exist.
    [[nodiscard]] bool add_up(std::size_t leased) const noexcept {
        for (const auto& rows : of_page_)
            leased += rows != nullptr;
        return leased == alive_;
    }

private:
    [[nodiscard]] std::size_t weight(std::size_t exact) const noexcept {
        return (exact * codec::residual_page::bytes_for(shape_) + page_bytes_ - 1) / page_bytes_;
    }

    page_shape shape_;
    std::size_t page_bytes_;
    std::vector<std::shared_ptr<codec::residual_page>> of_page_;
    std::size_t alive_ = 0;
};

/// The full-precision rows of sequences and leases, where the codec encodes whole pages. A sequence has rows for its
/// last page while that is not full, and for the first and the last pages that the codec keeps. A lease has rows for
/// the pages that it writes.
template <class PageManager>
class residual_leases {
public:
    /// `window`: what stays in full precision.
    residual_leases(PageManager& pages, std::size_t page_tokens, residual_window window)
        : pages_(pages), page_tokens_(page_tokens), window_(window) {}

    /// The number of the first `tokens` tokens in these pages, page-table entries or page_ids, that can be continued:
    /// up to the last token for which all residual rows that the next query reads are present.
    template <class Pages>
    [[nodiscard]] std::size_t kept(const Pages& pages, std::size_t tokens) const noexcept {
        if (tokens % page_tokens_ != 0 && !has(pages, tokens / page_tokens_))
            tokens -= tokens % page_tokens_;
        while (tokens > 0) {
            const std::size_t page = tokens / page_tokens_;
            bool all = true;
            for (std::size_t i = page - std::min(page, window_.recent); i < page; ++i)
                all = all && has(pages, i);
            if (all)
                break;
            tokens = (tokens - 1) / page_tokens_ * page_tokens_;
        }
        return tokens;
    }

    /// The same of a sequence, whose rows may lie in pages of others: what is kept from elsewhere is read quantized,
    /// and cannot be continued inside a page.
    [[nodiscard]] std::size_t kept(const sequence_state& state, std::size_t tokens) const noexcept {
        while (tokens > state.exact && !goes_on(state, tokens))
            tokens = std::max((tokens - 1) / page_tokens_ * page_tokens_, state.exact);
        return tokens > state.exact ? tokens : kept(state.table, tokens);
    }

    /// The number of residual pages that a lease allocates: for a copied last page, and for `fresh` new ones after
    /// the first `before` pages' worth of tokens.
    [[nodiscard]] std::size_t needed(bool copies, std::size_t before, std::size_t fresh,
                                     std::size_t max_batch_tokens) const {
        return (copies ? 1 : 0) + places(before, fresh, max_batch_tokens);
    }

    /// Allocates the residual rows of a lease whose pages are already in the table. `used` is the number of rows in use
    /// in the last page before the lease. Returns false if there is no memory: allocated rows then belong to the lease
    /// and end with it.
    [[nodiscard]] bool open(sequence_state& state, std::uint32_t used, std::size_t max_batch_tokens) {
        const bool made = detail::completes<std::bad_alloc>([&] {
            if (state.lease.has_copied_tail(state.table)) {
                const page_id own = state.table[state.lease.pages_before - 1].page;
                pages_.residual().give(own, pages_.residual().make());
                pages_.residual().of(own)->take(*pages_.residual().of(state.lease.tail_before->page), used);
            }
            residual_ring& ring = state.lease.ring;
            const std::size_t fresh = state.table.size() - state.lease.pages_before;
            const std::size_t before = (state.tokens.size() + page_tokens_ - 1) / page_tokens_;
            ring.first = state.lease.pages_before;
            ring.own = own_places(before, fresh);
            for (std::size_t n = places(before, fresh, max_batch_tokens); n > 0; --n) {
                ring.places.emplace_back();
                ring.places.back() = pages_.residual().make();
                ring.places.back()->begin(0);
            }
            show(state);
        });
        if (!made) {
            std::erase(state.lease.ring.places, nullptr);
            return false;
        }
        for (std::size_t i = state.lease.pages_before; i < state.table.size(); ++i)
            state.lease.residual[i] = state.lease.ring.at(i);
        if (state.lease.tail_before)
            state.lease.residual[state.lease.pages_before - 1]->begin(used);
        return pages_.keep_free(pages_.residual().aside());
    }

    /// The same for a spliced lease. Each page that it writes has residual rows of its own from the start, in which the
    /// rows that are kept from elsewhere are zero. Returns false if there is no memory; the caller undoes the lease.
    /// Requires: the lease begins at a page boundary.
    [[nodiscard]] bool open_spliced(sequence_state& state) {
        const std::size_t first = state.tokens.size();
        expects(first % page_tokens_ == 0, "rows of codecs of whole pages are spliced at a page boundary");
        return detail::completes<std::bad_alloc>([&] {
                   for_each_entry(state, state.lease.pages_before, [&](std::size_t i, std::size_t block) {
                       const page_id page = state.table[i].page;
                       if (pages_.residual().of(page) != nullptr || !own(state, i, block))
                           return;
                       pages_.residual().give(page, pages_.residual().make());
                       std::uint32_t elsewhere = 0;
                       for (std::size_t row = block * page_tokens_ - first;
                            row < std::min((block + 1) * page_tokens_ - first, state.lease.rows); ++row)
                           elsewhere += state.lease.spliced[row].kept ? 1 : 0;
                       pages_.residual().of(page)->begin(elsewhere);
                   });
                   show(state);
               }) &&
               pages_.keep_free(pages_.residual().aside());
    }

    /// The residual rows that a lease passes to a page when all its rows are committed; null if it passes none.
    [[nodiscard]] codec::residual_page* given(const sequence_state& state, std::size_t entry) const noexcept {
        const std::size_t tokens = state.tokens.size() + state.lease.rows, last = tokens / page_tokens_;
        const bool gives = window_.covers(entry, last) && (entry < last || tokens % page_tokens_ != 0) &&
                           state.lease.ring.keeps(entry, state.table.size());
        return gives ? state.lease.ring.at(entry) : nullptr;
    }

    /// Passes to the pages the residual rows that they keep, and frees the others. Returns the number of tokens that
    /// remain.
    [[nodiscard]] std::size_t finalize(sequence_state& state) noexcept {
        const std::size_t entries = state.table.size(), tokens = state.tokens.size();
        const std::size_t last = tokens / page_tokens_; // the partial page, or the one that would come next
        const bool spliced = !state.lease.spliced.empty();
        const std::size_t before = std::min(state.lease.pages_before, entries);
        if (!spliced)
            for_each_entry(state, before, [&](std::size_t i, std::size_t block) {
                if (window_.covers(block, last) && (block < last || tokens % page_tokens_ != 0) &&
                    state.lease.ring.keeps(i, entries))
                    pages_.residual().give(state.table[i].page, state.lease.ring.take(i));
            });
        end(state.lease.ring);
        const std::size_t stay = kept(state, tokens);
        // Pages that left the residual window. A page that other sequences reference may be in theirs.
        const std::size_t left = state.exact == sequence_state::all ? before - std::min(before, window_.recent + 1) : 0;
        for_each_entry(state, left, [&](std::size_t i, std::size_t block) {
            const page_id page = state.table[i].page;
            if ((spliced || i < before) && block < stay / page_tokens_ && !window_.covers(block, stay / page_tokens_) &&
                pages_.residual().of(page) != nullptr && pages_.pool().holders(page) == 1 && own(state, i, block))
                pages_.residual().drop(page);
        });
        return stay;
    }

    /// Frees the residual rows that belong to a lease and to no page.
    void end(residual_ring& ring) noexcept {
        for (auto& place : ring.places)
            pages_.residual().end(std::move(place));
        ring.places.clear();
    }

private:
    // Calls f(entry, page of the sequence in which its first row is) for the entries from `from` on.
    template <class F>
    void for_each_entry(const sequence_state& state, std::size_t from, const F& f) const {
        std::size_t row = state.exact == sequence_state::all ? from * page_tokens_ : 0;
        for (std::size_t i = 0; state.exact != sequence_state::all && i < from; ++i)
            row += state.table[i].count;
        for (std::size_t i = from; i < state.table.size(); row += state.table[i++].count)
            f(i, row / page_tokens_);
    }

    // Whether a sequence has computed the rows of an entry itself, or shares them as a prefix.
    [[nodiscard]] bool own(const sequence_state& state, std::size_t entry, std::size_t block) const noexcept {
        return block * page_tokens_ < state.exact ||
               ranges::find(state.pinned_sources, state.table[entry].page) == state.pinned_sources.end();
    }

    // Whether all residual rows are there that the query of the next token reads, of those that the sequence computed.
    [[nodiscard]] bool goes_on(const sequence_state& state, std::size_t tokens) const noexcept {
        const std::size_t page = tokens / page_tokens_;
        bool all = true;
        std::size_t row = 0;
        for (std::size_t i = 0; i < state.table.size() && row < tokens; row += state.table[i++].count) {
            const std::size_t block = row / page_tokens_;
            const bool last = row + state.table[i].count >= tokens && tokens % page_tokens_ != 0;
            if (!last && (block == page || block + window_.recent < page))
                continue;
            const bool computed = own(state, i, block);
            all = all && (computed ? has(state.table, i) : !last);
        }
        return all;
    }

    // Sets the residual rows that the queries of a lease may read, by entry.
    void show(sequence_state& state) const {
        state.lease.residual.assign(state.table.size(), nullptr);
        for_each_entry(state, 0, [&](std::size_t i, std::size_t block) {
            codec::residual_page* const rows = pages_.residual().of(state.table[i].page);
            state.lease.residual[i] = rows != nullptr && own(state, i, block) ? rows : nullptr;
        });
    }

    template <class Pages>
    [[nodiscard]] bool has(const Pages& pages, std::size_t i) const noexcept {
        return i < pages.size() && pages_.residual().of(page_of(pages[i])) != nullptr;
    }
    [[nodiscard]] static page_id page_of(page_id page) noexcept { return page; }
    [[nodiscard]] static page_id page_of(const page_entry& entry) noexcept { return entry.page; }

    [[nodiscard]] std::size_t own_places(std::size_t before, std::size_t fresh) const noexcept {
        return std::min(fresh, window_.first - std::min(window_.first, before));
    }
    [[nodiscard]] std::size_t places(std::size_t before, std::size_t fresh,
                                     std::size_t max_batch_tokens) const noexcept {
        return residual_ring::places_for(fresh, own_places(before, fresh), max_batch_tokens, page_tokens_,
                                         window_.recent);
    }

    PageManager& pages_;
    std::size_t page_tokens_;
    residual_window window_;
};

}} // namespace kvcache

// ---- kvcache/cache/tenant_quotas.hpp ------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The owner of each page, and what its tenant may have. Tenants are numbered from one; number zero stands for a cache
/// without tenants.
///
/// With fair tenants, pages are evicted from the tenant that has the most, and a tenant takes none of another one that
/// has no more than itself (max-min fairness), unless no prompt of that one was looked up while sixteen times the
/// cache's pages were taken: what is not used for long is shared.
class tenant_quotas {
public:
    tenant_quotas(std::size_t pages, std::size_t most, bool fair) : owners_(pages, 0), accounts_(1), fair_(fair) {
        accounts_.reserve(most + 1);
        seen_.reserve(most + 1);
        seen_.push_back(0);
    }

    [[nodiscard]] std::size_t size() const noexcept { return accounts_.size() - 1; }
    [[nodiscard]] const tenant_usage& usage(std::uint32_t tenant) const { return accounts_[tenant]; }

    /// Adds a tenant and returns its number. Requires: fewer tenants than the maximum.
    std::uint32_t add(std::size_t quota) {
        expects(accounts_.size() < accounts_.capacity(), "there are fewer tenants than the maximum");
        accounts_.push_back({.quota = quota});
        seen_.push_back(taken_);
        return static_cast<std::uint32_t>(size());
    }
    void set_quota(std::uint32_t tenant, std::size_t quota) { accounts_[tenant].quota = quota; }

    /// A prompt of a tenant is looked up.
    void see(std::uint32_t tenant) noexcept { seen_[tenant] = taken_; }
    void take(page_id page, std::uint32_t tenant) noexcept {
        owners_[index_of(page)] = tenant;
        ++accounts_[tenant].pages;
        ++taken_;
    }
    void reclaim(page_id page) noexcept { --account(page).pages; }
    void mark_evictable(page_id page) noexcept { ++account(page).evictable; }
    void mark_in_use(page_id page) noexcept { --account(page).evictable; }

    /// Returns whether the tenant's quota is used up.
    [[nodiscard]] bool full(std::uint32_t tenant) const noexcept {
        return accounts_[tenant].pages >= accounts_[tenant].quota;
    }
    [[nodiscard]] bool owns(std::uint32_t tenant, page_id page) const noexcept {
        return owners_[index_of(page)] == tenant;
    }

    /// Whose page is evicted for one of a tenant: 0 for anyone's; none, if there is none that it may take. Cost:
    /// O(tenants) with fair tenants, else O(1).
    [[nodiscard]] std::optional<std::uint32_t> source(std::uint32_t tenant) const noexcept {
        if (!fair_ || tenant == 0)
            return 0u;
        std::optional<std::uint32_t> most;
        for (std::uint32_t each = 1; each < accounts_.size(); ++each)
            if (accounts_[each].evictable > 0 && gives(each, tenant, accounts_[tenant].pages) &&
                (!most || accounts_[each].pages > accounts_[*most].pages))
                most = each;
        return most;
    }

    /// The number of pages that the tenant may allocate, of `free` ones and `evictable` ones of all tenants, less those
    /// set `aside`. Its own evictable pages count. Cost: as source, times the logarithm of the pages.
    [[nodiscard]] std::size_t available(std::uint32_t tenant, std::size_t free, std::size_t evictable,
                                        std::size_t aside) const noexcept {
        const tenant_usage& own = accounts_[tenant];
        const std::size_t in_use = own.pages - own.evictable;
        const std::size_t all = fair_ && tenant != 0 ? free + own.evictable + others(tenant, free) : free + evictable;
        return std::min(all - std::min(all, aside), own.quota - std::min(own.quota, in_use));
    }

private:
    [[nodiscard]] tenant_usage& account(page_id page) noexcept { return accounts_[owners_[index_of(page)]]; }

    // Whether pages of a tenant are evicted for another one that has `pages`.
    [[nodiscard]] bool gives(std::uint32_t from, std::uint32_t to, std::size_t pages) const noexcept {
        return from == to || accounts_[from].pages > pages || taken_ - seen_[from] > 16 * owners_.size();
    }

    // The most pages that a tenant can take of others, after `free` ones: those that others give until they have no
    // more than it has.
    [[nodiscard]] std::size_t others(std::uint32_t tenant, std::size_t free) const noexcept {
        const auto given = [&](std::size_t level) { // until the tenant has so many pages
            std::size_t all = 0;
            for (std::uint32_t each = 1; each < accounts_.size(); ++each)
                if (each != tenant && accounts_[each].evictable > 0) {
                    const tenant_usage& its = accounts_[each];
                    const std::size_t over = its.pages >= level ? its.pages + 1 - level : 0;
                    all += gives(each, tenant, its.pages) ? its.evictable : std::min(its.evictable, over);
                }
            return all;
        };
        const std::size_t begin = accounts_[tenant].pages + free;
        std::size_t low = begin, high = owners_.size(); // of the pages that it can have
        while (low < high) {
            const std::size_t level = low + (high - low + 1) / 2;
            if (begin + given(level) >= level)
                low = level;
            else
                high = level - 1;
        }
        return low - begin;
    }

    std::vector<std::uint32_t> owners_; // by page
    std::vector<tenant_usage> accounts_;
    std::vector<std::uint64_t> seen_; // by tenant: the pages taken when it was last seen
    std::uint64_t taken_ = 0;
    bool fair_;
};

}} // namespace kvcache

// ---- kvcache/observer/concept.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The kinds of events in a cache.
enum class event_kind {
    matched,   ///< A prompt was looked up: tokens matched, tokens of the prompt, matched pages.
    spliced,   ///< Chunks computed elsewhere were placed: tokens kept, rows reserved with them, pages they lie in.
    stored,    ///< Tokens were committed.
    published, ///< A full page became findable: its tokens and its parent page.
    copied,    ///< A shared page was copied before a write (copy-on-write): from the first of the pages to the second.
    evicted,   ///< A page was evicted.
    refused,   ///< A reservation failed for lack of pages.
};

/// One event. Its spans are valid during the call only.
struct event {
    event_kind kind = event_kind::matched;
    std::size_t tokens =
        0;              ///< Tokens matched (matched), kept (spliced), committed (stored), or in the page (other kinds).
    std::size_t of = 0; ///< Tokens requested (matched, spliced, refused).
    std::size_t pages = 0; ///< Number of pages concerned.

    std::span<const page_id> which = {}; ///< The pages concerned, in order; empty for spliced, stored and refused.
    std::optional<page_id> parent = {};  ///< The parent of the page (published, evicted).
    std::span<const token_id> run = {};  ///< The tokens of the page (published, evicted).
    std::span<const digest> names = {};  ///< Page names, indexed by page; see name_of.
    std::size_t page_tokens = 0;         ///< Tokens of a full page.

    /// Returns the digest of all tokens up to the end of a page. Requires: the page is full and findable.
    [[nodiscard]] digest name_of(page_id page) const {
        expects(index_of(page) < names.size(), "an event names the pages that it is about");
        return names[index_of(page)];
    }
};

/// The working state of an observer. It receives every event, under the cache's lock. Exceptions that it throws are
/// ignored.
template <class S>
concept observer_state = requires(S s, const event& what) {
    s.on(what);
};

/// A policy that observes the events of a cache.
template <class P>
concept observer_policy = plays<P, observer_role> && requires(const P p) {
    p.open();
} && observer_state<opened_by<P>>;

}} // namespace kvcache

// ---- kvcache/observer/none.hpp ------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// No observer; it has no cost.
struct none {
    using role = observer_role;
    struct state {
        void on(const event&) noexcept {}
    };
    [[nodiscard]] state open() const { return {}; }
};

static_assert(observer_policy<none>);

}}} // namespace kvcache::observer

// ---- kvcache/cache/page_manager.hpp -------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The state of every page: free, in use (referenced by sequences), or evictable (unreferenced, and kept in the index
/// until space is needed). The children of an evictable page are evictable too, because a sequence that references a
/// page references all its ancestors. `Content`: what the codec has in a page. With layer groups, pages have
/// blocks of other groups, each in use or evictable by itself; a page that is freed has none.
template <storage_state Storage, hash_state Hash, index_state Index, eviction_state Eviction, observer_state Observer,
          page_content Content, layers_state Layers = layers::uniform::state>
class page_manager {
public:
    static constexpr bool quantized = Content == page_content::encoded, opaque = Content == page_content::opaque;
    static constexpr bool grouped = Layers::several;
    static constexpr bool observed = !std::same_as<Observer, observer::none::state>;

    /// Opens the storage, hash, index, eviction and observer of `policies`, a cache_policies.
    template <class Policies>
    page_manager(const pool_config& of, const identity& id, const Policies& policies, Layers blocks = {})
        : shape_(of.shape),
          page_bytes_(of.page_bytes),
          residual_(of.shape, of.pages, of.page_bytes),
          pool_(of.pages, policies.storage.open(of.pages, of.page_bytes)),
          index_(policies.index, of.shape, of.pages, of.tenants),
          eviction_(of, id, policies.hash, policies.eviction),
          observer_(policies.observer.open()),
          tenants_(of.pages, of.tenants, of.fair_tenants),
          merges_(of.merge_equal_pages),
          blocks_(std::move(blocks)) {
        if constexpr (requires { pool_.storage().follows_moves(); })
            require(!merges_ || pool_.storage().follows_moves(),
                    "external memory has on_move, or the cache has merge_equal_pages = false");
    }

    [[nodiscard]] const page_pool<Storage>& pool() const noexcept { return pool_; }
    [[nodiscard]] tenant_index<Index>& index() noexcept { return index_; }
    [[nodiscard]] const tenant_index<Index>& index() const noexcept { return index_; }
    /// The longest cached prefix of a tenant's tokens, until the next call.
    [[nodiscard]] const index_match& find(std::uint32_t tenant, std::span<const token_id> tokens) {
        tenants_.see(tenant);
        index_.match(tenant, tokens, found_);
        return found_;
    }
    [[nodiscard]] const Observer& observer() const noexcept { return observer_; }
    [[nodiscard]] std::size_t evictable() const noexcept { return evictable_; }
    /// Whether a page has a rank among those that may be evicted.
    [[nodiscard]] bool ranked(page_id page) const noexcept { return eviction_.ranked(page); }
    [[nodiscard]] bool evictable(page_id page) const noexcept { return eviction_.evictable(page); }

    [[nodiscard]] auto& residual() noexcept { return residual_; }
    [[nodiscard]] const auto& residual() const noexcept { return residual_; }

    /// Pages that can be allocated: free and evictable ones, minus those set aside for residual rows.
    [[nodiscard]] std::size_t available() const noexcept {
        const std::size_t all = pool_.free().size() + evictable_;
        return all - std::min(all, residual_.aside());
    }

    [[nodiscard]] const tenant_quotas& tenants() const noexcept { return tenants_; }
    void set_quota(std::uint32_t tenant, std::size_t quota) { tenants_.set_quota(tenant, quota); }
    /// The number of available pages that a tenant may allocate.
    [[nodiscard]] std::size_t available(std::uint32_t tenant) const noexcept {
        return tenants_.available(tenant, pool_.free().size(), evictable_, residual_.aside());
    }

    /// Evicts the evictable pages of a tenant; of all, for 0. Returns whether no page is left.
    [[nodiscard]] bool clear(std::uint32_t tenant) {
        while (evict_any(tenant)) {
        }
        return tenant == 0 ? pool_.free().size() == pool_.pages() : tenants_.usage(tenant).pages == 0;
    }
    /// Sets the counters of an observer to zero, if it has any.
    void reset_observer() {
        if constexpr (requires { observer_.reset(); })
            observer_.reset();
    }
    /// Evicts those of the pages that are evictable and have no child in the index, the last first. Returns their
    /// number.
    std::size_t evict(std::span<const page_id> pages) {
        std::size_t evicted = 0;
        for (std::size_t i = pages.size(); i-- > 0;)
            if (eviction_.evictable(pages[i])) {
                eviction_.unrank(pages[i]);
                discard(pages[i]);
                ++evicted;
            }
        return evicted;
    }
    /// Gives the number of a tenant without pages to another one.
    void replace_tenant(std::uint32_t tenant, const digest& root, std::size_t quota) {
        expects(tenants_.usage(tenant).pages == 0, "a tenant that is replaced has no pages");
        eviction_.name_root(*index_.root_of(tenant), root);
        tenants_.set_quota(tenant, quota);
        tenants_.see(tenant);
    }

    /// Adds a tenant whose page names derive from `root`. Throws: bad_alloc; no tenant is then added.
    std::uint32_t add_tenant(const digest& root, std::size_t quota) {
        const auto number = static_cast<std::uint32_t>(tenants_.size() + 1);
        index_.add_root(number);
        eviction_.name_root(*index_.root_of(number), root);
        return tenants_.add(quota);
    }

    /// Notifies the observer; its exceptions are ignored.
    void emit([[maybe_unused]] event what) noexcept {
        if constexpr (observed) {
            what.names = eviction_.prefixes();
            what.page_tokens = shape_.tokens;
            detail::ignore_exceptions([&] { observer_.on(what); });
        }
    }

    /// Allocates a page with one reference. Evicts if no page is free, and once more if the storage refuses a free
    /// page: an evicted page already has its memory. A tenant at its quota evicts its own pages. Returns nullopt if
    /// nothing is evictable or the storage refuses again.
    [[nodiscard]] std::optional<page_id> allocate(std::uint32_t tenant) {
        while (tenants_.full(tenant))
            if (!evict_any(tenant))
                return std::nullopt;
        if (!make_free(residual_.aside() + 1, page_bytes_, tenant))
            return std::nullopt;
        auto page = pool_.take();
        if (!page && make_room(tenant))
            page = pool_.take();
        if (page) {
            tenants_.take(*page, tenant);
            if constexpr (grouped)
                blocks_.spend(page_bytes_);
        }
        return page;
    }

    /// Evicts until `pages` pages are free, and what is set aside for residual rows. Returns false if nothing more is
    /// evictable.
    [[nodiscard]] bool keep_free(std::size_t pages) { return make_free(pages, 0, 0); }

    [[nodiscard]] const page_shape& shape() const noexcept { return shape_; }

    /// Whether a page stays in its sequence when it fills and another page has the same content.
    [[nodiscard]] bool keeps_duplicates() const noexcept { return !merges_; }
    /// Tells the storage of an entry that a commit changed, if it wants to know.
    void report_move([[maybe_unused]] const moved_entry& moved) {
        if constexpr (requires { pool_.storage().on_move(moved); })
            pool_.storage().on_move(moved);
    }

    void hold(page_id page) noexcept {
        if (pool_.holders(page) == 0) {
            mark_in_use(page);
            eviction_.on_held(page);
        }
        pool_.hold(page);
    }

    /// Releases one reference. Without references the page becomes evictable if it is in the index, and free otherwise.
    void drop(page_id page) noexcept {
        if (pool_.drop(page) > 0)
            return;
        if (index_.contains(page) && make_evictable(page)) {
            ++evictable_;
            tenants_.mark_evictable(page);
            eviction_.on_released(page);
        } else {
            reclaim(page);
        }
    }

    /// Records a use of a page.
    void touch(page_id page) noexcept { eviction_.touch(page); }

    /// Records that computing `rows` rows from `first` on took `seconds`, from which the cost of pages is learned.
    /// Fewer rows than a page has are decode steps, which do not tell the cost of a prefill, and are ignored.
    void measure(std::size_t first, std::size_t rows, double seconds) {
        if (rows >= shape_.tokens)
            eviction_.measure(first, rows, seconds);
    }

    /// The estimated time to compute `rows` rows from `first` on.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return eviction_.seconds(first, rows);
    }

    /// Returns whether the row may be written in place: the page has one reference, the row is not indexed, and no
    /// other page has a block of it.
    [[nodiscard]] bool writable(page_id page, std::uint32_t row) const {
        if constexpr (grouped)
            for (std::size_t pool = 0; pool < blocks_.size(); ++pool)
                if (blocks_.has(pool, page) && blocks_.sharers(pool, blocks_.block(pool, page)) > 1)
                    return false;
        return pool_.holders(page) == 1 && index_.run(page).size() <= row;
    }

    /// Publishes a page that is in use as `run` after `parent`, of a request of `length` full pages. Returns the page
    /// that represents the run from now on. If another full page already holds the run, the caller's reference moves to
    /// that page, and its own page is released; where pages are not merged, the caller references both. Throws:
    /// bad_alloc, if the index or the eviction policy has no memory; the index entry of the page is then removed or
    /// unchanged.
    /// `groups`: the layer groups whose blocks of the page the caller's sequence uses, a bit each.
    [[nodiscard]] page_id publish(std::optional<page_id> parent, std::span<const token_id> run, page_id page,
                                  std::size_t length, [[maybe_unused]] std::uint64_t groups = 0) {
        const bool full = run.size() == shape_.tokens;
        const insertion done = index_.insert(parent, run, page);
        if (done.what == insertion::outcome::covered) {
            if (!full || *done.other == page)
                return page;
            hold(*done.other);
            touch(*done.other);
            if constexpr (grouped)
                pass_blocks(page, *done.other, groups, merges_);
            if (keeps_duplicates())
                return *done.other;
            residual_.pass_on(page, *done.other);
            if (index_.contains(page) && pool_.holders(page) == 1)
                forget(page);
            drop(page);
            return *done.other;
        }
        if (done.other)
            unlist(*done.other);
        eviction_.unrank(page); // its run has grown, so its name changes
        eviction_.follow(index_, index_.parent(page));
        if (full) {
            detail::scope_guard undo([&] { remove_from_index(page); });
            eviction_.rank(index_, page, length);
            undo.dismiss();
            emit_page_event(event_kind::published, page);
        }
        return page;
    }

    // Blocks of layer groups.

    [[nodiscard]] std::size_t page_bytes() const noexcept { return page_bytes_; }
    [[nodiscard]] const Layers& blocks() const noexcept { return blocks_; }
    /// Bytes that can be had: free ones, and those of evictable pages and blocks, minus those set aside for residual
    /// rows.
    [[nodiscard]] std::size_t available_bytes() const noexcept {
        const std::size_t all = blocks_.budget() - blocks_.used() + evictable_ * page_bytes_ + blocks_.idle();
        return all - std::min(all, residual_.aside() * page_bytes_);
    }
    /// Whether the entry of a block that no sequence uses is ranked.
    [[nodiscard]] bool ranks_block(std::size_t pool, page_id page) const noexcept {
        return eviction_.evictable(blocks_.entry(pool, page));
    }
    /// One more sequence uses the block of a page.
    void cover(std::size_t pool, page_id page) noexcept {
        if (blocks_.cover(pool, page))
            eviction_.unrank(blocks_.entry(pool, page));
    }
    /// One sequence less. Without any the block becomes evictable if it is to stay and its page is in the index, and
    /// free otherwise.
    void uncover(std::size_t pool, page_id page, bool stays) noexcept {
        const std::uint32_t block = blocks_.block(pool, page);
        const bool idle = blocks_.uncover(pool, page);
        const auto owner = blocks_.owner(pool, block);
        if (owner != page && blocks_.covers(pool, page) == 0)
            blocks_.detach(pool, page);
        if (owner && (idle ? !(stays && rank_block(pool, *owner))
                           : blocks_.covers(pool, *owner) == 0 && !index_.contains(*owner)))
            blocks_.detach(pool, *owner);
    }
    void note_branch(page_id page) noexcept { blocks_.note_branch(page); }
    /// A block that no sequence uses is evicted before all others.
    void make_stale(std::size_t pool, page_id page) noexcept {
        if (blocks_.has(pool, page) && ranks_block(pool, page))
            blocks_.make_stale(pool, page);
    }
    /// One sequence less uses a block whose content was never committed: it is not known to others.
    void discard_block(std::size_t pool, page_id page) noexcept {
        static_cast<void>(blocks_.uncover(pool, page));
        if (blocks_.covers(pool, page) == 0)
            blocks_.detach(pool, page);
    }
    /// Gives a page a block of so many bytes that one sequence uses. Evicts if none is free, or its bytes are not.
    /// Returns false if nothing is evictable.
    [[nodiscard]] bool allocate_block(std::size_t pool, page_id page, std::uint32_t tenant, std::size_t bytes) {
        const auto of_pool = [&](page_id entry) {
            return index_of(entry) >= pool_.pages() && blocks_.place_of(entry).pool == pool;
        };
        while (blocks_.free_blocks(pool) == 0)
            if (!make_room(tenant, of_pool))
                return false;
        return make_free(0, bytes, tenant) && blocks_.take(pool, page, bytes);
    }
    /// Copies the first rows of a page's block to that of another page. Returns whether it succeeded.
    [[nodiscard]] bool copy_block(std::size_t pool, page_id from, page_id to, std::size_t rows) const {
        return blocks_.copy(pool, from, to, rows);
    }

private:
    // Whether so many bytes are free, besides those set aside for residual rows.
    [[nodiscard]] bool fits([[maybe_unused]] std::size_t bytes) const noexcept {
        if constexpr (grouped)
            return blocks_.fits(bytes + residual_.aside() * page_bytes_);
        else
            return true;
    }
    void mark_in_use(page_id page) noexcept {
        --evictable_;
        tenants_.mark_in_use(page);
    }
    void reclaim(page_id page) {
        if constexpr (grouped) {
            forget_blocks(page);
            blocks_.forget_branch(page);
            blocks_.refund(page_bytes_);
        }
        residual_.drop(page);
        tenants_.reclaim(page);
        pool_.reclaim(page);
    }

    void emit_page_event([[maybe_unused]] event_kind what, [[maybe_unused]] page_id page) noexcept {
        if constexpr (observed) {
            const auto run = index_.run(page);
            emit({what, run.size(), 0, 1, {&page, 1}, index_.parent(page), run});
        }
    }

    // Whether an indexed page can become evictable: it is ranked, or can be. Otherwise it is removed from the index: a
    // full page is ranked when it is published, so this one is partial, and therefore a leaf.
    [[nodiscard]] bool make_evictable(page_id page) noexcept {
        const bool ranked = detail::completes<std::bad_alloc>([&] { eviction_.rank(index_, page, 0); });
        if (!ranked)
            remove_from_index(page);
        return ranked;
    }

    // Removes a page that is in use from the index.
    void forget(page_id page) {
        eviction_.unrank(page);
        remove_from_index(page);
    }

    void remove_from_index(page_id page) {
        const auto parent = index_.parent(page);
        index_.erase(page);
        eviction_.follow(index_, parent);
        if constexpr (grouped)
            forget_blocks(page);
    }

    // Takes the blocks that no sequence uses from a page that is not in the index any more.
    void forget_blocks(page_id page) noexcept {
        for (std::size_t pool = 0; pool < blocks_.size(); ++pool)
            if (blocks_.has(pool, page) && blocks_.covers(pool, page) == 0) {
                if (blocks_.holders(pool, blocks_.block(pool, page)) == 0)
                    eviction_.unrank(blocks_.entry(pool, page));
                blocks_.detach(pool, page);
            }
    }
    // Ranks a block that no sequence uses any more. Returns false if it cannot stay.
    [[nodiscard]] bool rank_block(std::size_t pool, page_id page) noexcept {
        return index_.contains(page) && detail::completes<std::bad_alloc>([&] {
                   eviction_.rank_block(index_, blocks_.entry(pool, page), page, blocks_.group(pool),
                                        blocks_.bytes_of(pool, blocks_.block(pool, page)));
               });
    }
    // Moves a sequence's use of the blocks in `groups` from its page to another one with the same content, which gets
    // those blocks that it lacks. `moves`: whether the sequence has the other page from now on.
    void pass_blocks(page_id page, page_id other, std::uint64_t groups, bool moves) noexcept {
        for (std::size_t pool = 0; pool < blocks_.size(); ++pool) {
            if (!blocks_.has(pool, page) || blocks_.covers(pool, page) == 0)
                continue;
            const bool had = blocks_.has(pool, other), used = moves && (groups >> pool & 1) != 0;
            if (!had)
                blocks_.share(pool, page, other);
            if (used && had) {
                cover(pool, other);
                uncover(pool, page, true);
            } else if (used) {
                blocks_.pass_on(pool, page, other);
                if (blocks_.covers(pool, page) == 0)
                    blocks_.detach(pool, page);
            }
        }
    }

    // Handles a page that the index has dropped: if unreferenced, it becomes free.
    void unlist(page_id page) {
        if constexpr (grouped)
            forget_blocks(page);
        eviction_.unrank(page);
        if (pool_.holders(page) == 0) {
            mark_in_use(page);
            reclaim(page);
        }
    }

    static constexpr auto any_entry = [](page_id) { return true; };

    // Evicts pages until so many are free, and then anything until so many bytes are.
    [[nodiscard]] bool make_free(std::size_t pages, std::size_t bytes, std::uint32_t tenant) {
        while (pool_.free().size() < pages)
            if (!make_room(tenant, [&](page_id entry) { return !grouped || index_of(entry) < pool_.pages(); }))
                return false;
        while (!fits(bytes))
            if (!make_room(tenant))
                return false;
        return true;
    }
    // Evicts an entry for which `wanted` holds, to make room for one of a tenant; 0 for any.
    template <class Wanted = decltype(any_entry)>
    [[nodiscard]] bool make_room(std::uint32_t tenant, const Wanted& wanted = any_entry) {
        const auto from = tenants_.source(tenant);
        if constexpr (grouped)
            for (std::size_t pool = 0; from && pool < blocks_.size(); ++pool)
                if (const auto stale = blocks_.stalest(pool);
                    stale && wanted(*stale) && (*from == 0 || tenants_.owns(*from, page_of(*stale)))) {
                    evict_entry(*stale);
                    return true;
                }
        return from && evict_any(*from, wanted);
    }

    // Evicts an evictable page, or the evictable block of one; one of this tenant's, if `tenant` is not zero.
    template <class Wanted = decltype(any_entry)>
    [[nodiscard]] bool evict_any(std::uint32_t tenant, const Wanted& wanted = any_entry) {
        const auto entry = eviction_.victim([&](page_id candidate) {
            return wanted(candidate) && (tenant == 0 || tenants_.owns(tenant, page_of(candidate)));
        });
        if (!entry)
            return false;
        evict_entry(*entry);
        return true;
    }
    // The page of an entry of the eviction policy: of a page itself, or of a block.
    [[nodiscard]] page_id page_of(page_id entry) const noexcept {
        if constexpr (grouped)
            if (index_of(entry) >= pool_.pages())
                return blocks_.place_of(entry).page;
        return entry;
    }
    void evict_entry(page_id entry) {
        eviction_.evict(entry);
        if constexpr (grouped)
            if (index_of(entry) >= pool_.pages()) {
                const auto of = blocks_.place_of(entry);
                blocks_.detach(of.pool, of.page);
                return;
            }
        discard(entry);
    }

    // Frees an evictable page that the eviction policy has given up.
    void discard(page_id page) {
        emit_page_event(event_kind::evicted, page);
        remove_from_index(page);
        unlist(page);
        if constexpr (requires { pool_.storage().on_evict(page); })
            pool_.storage().on_evict(page);
    }

    page_shape shape_;
    std::size_t page_bytes_;
    std::conditional_t<quantized, residual_pool, no_residual_pool> residual_;
    page_pool<Storage> pool_;
    tenant_index<Index> index_;
    index_match found_; // of the last `find`
    page_eviction<Hash, Eviction> eviction_;
    Observer observer_;
    tenant_quotas tenants_;
    std::size_t evictable_ = 0;
    bool merges_;
    Layers blocks_;
};

}} // namespace kvcache

// ---- kvcache/cache/invariants.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Recomputes the reference count of every page from the sequences, and compares each sequence with the index.
template <class Index>
class invariant_checker {
public:
    invariant_checker(const Index& index, std::size_t page_tokens, std::size_t pages)
        : index_(index), page_tokens_(page_tokens), held_(pages, 0) {}

    /// By page: the number of references from sequences.
    [[nodiscard]] std::span<const std::uint32_t> held() const noexcept { return held_; }

    /// Counts the references of one sequence. Errors: malformed, with what is wrong with it.
    [[nodiscard]] result<void> count(const sequence_state& state) {
        std::size_t rows = 0;
        for (std::size_t i = 0; i < state.table.size(); ++i) {
            const page_entry& entry = state.table[i];
            ++held_[index_of(entry.page)];
            const bool plain = rows < state.exact; // spliced entries after the exact rows may use any rows of a page
            if (plain && i + 1 < state.table.size() && rows + page_tokens_ <= state.exact &&
                entry.count != page_tokens_)
                return broken("has a page in its middle that is not full");
            if (plain && (entry.base != 0 || entry.first != 0))
                return broken("counts a page as exact that was computed elsewhere");
            if (i < state.published_pages && rows + entry.count > state.exact)
                return broken("has made an approximate page known");
            if (i < state.published_pages && index_.run(state.indexed(i)).size() != page_tokens_)
                return broken("counts on a page in the index that is not there");
            if (!agree(entry, state, rows))
                return broken(detail::joined(
                    {"and the index disagree about the tokens of page ", std::to_string(index_of(entry.page))}));
            rows += entry.count;
        }
        for (const sequence_state::duplicate& duplicate : state.duplicates) {
            ++held_[index_of(duplicate.page)];
            if (duplicate.entry >= state.published_pages || duplicate.page == state.table[duplicate.entry].page ||
                !agree({.page = duplicate.page, .count = static_cast<std::uint32_t>(page_tokens_)}, state,
                       duplicate.entry * page_tokens_))
                return broken("has a duplicate of a page that is not one");
        }
        for (const page_id page : state.pinned_sources)
            ++held_[index_of(page)];
        if (state.lease.has_copied_tail(state.table))
            ++held_[index_of(state.lease.tail_before->page)];
        if (rows != state.tokens.size() + state.lease.rows)
            return broken(
                detail::joined({"has ", std::to_string(rows), " rows for ", std::to_string(state.tokens.size()),
                                " tokens and ", std::to_string(state.lease.rows), " reserved ones"}));
        return {};
    }

private:
    // Whether the sequence and the index agree about the tokens of a page's rows, where both know them.
    [[nodiscard]] bool agree(const page_entry& entry, const sequence_state& state, std::size_t rows) const {
        if (rows >= state.tokens.size())
            return true;
        const auto run = index_.run(entry.page);
        const auto known = run.subspan(std::min<std::size_t>(entry.first, run.size()));
        const auto own = std::span<const token_id>(state.tokens).subspan(rows);
        const std::size_t both = std::min<std::size_t>({known.size(), entry.count, own.size()});
        return std::equal(known.data(), known.data() + both, own.data());
    }

    [[nodiscard]] static error broken(const std::string& how) {
        return {error_code::malformed, "sequence", detail::joined({"a sequence ", how})};
    }

    const Index& index_;
    std::size_t page_tokens_;
    std::vector<std::uint32_t> held_;
};

namespace detail {

[[nodiscard]] inline error broken_page(page_id page, const std::string& how) {
    return {error_code::malformed, joined({"page ", std::to_string(index_of(page))}), joined({"the page ", how})};
}

/// Checks that every page of a page_manager is in exactly one state. `held` is the expected reference count of each
/// page. `page_tokens`: tokens a page. Errors: malformed, with the page. Cost: O(pages + tokens).
template <class Pages>
[[nodiscard]] result<void> check_pages(const Pages& pages, std::span<const std::uint32_t> held,
                                       std::size_t page_tokens) {
    std::vector<bool> free(pages.pool().pages(), false);
    for (const page_id page : pages.pool().free()) {
        if (free[index_of(page)])
            return broken_page(page, "is free twice");
        free[index_of(page)] = true;
    }
    std::size_t evictable = 0;
    for (std::uint32_t i = 0; i < pages.pool().pages(); ++i) {
        const page_id page{i};
        const bool known = pages.index().contains(page);
        if (pages.pool().holders(page) != held[i])
            return broken_page(page, joined({"counts ", std::to_string(pages.pool().holders(page)), " holders and has ",
                                             std::to_string(held[i])}));
        if (free[i] && (known || pages.ranked(page) || held[i] > 0))
            return broken_page(page, "is free and in use");
        if (!free[i] && !known && held[i] == 0)
            return broken_page(page, "is lost: neither free, held nor known");
        if (pages.ranked(page) && !known)
            return broken_page(page, "is ranked for eviction and not in the index");
        if (!known)
            continue;
        evictable += held[i] == 0;
        if (held[i] == 0 && !pages.ranked(page))
            return broken_page(page, "is evictable and can never be evicted");
        if (pages.evictable(page) != (held[i] == 0 && pages.index().leaf(page)))
            return broken_page(page, "is noted as evictable and is not, or the reverse");
        if (pages.index().run(page).empty() || pages.index().run(page).size() > page_tokens)
            return broken_page(page, "has a run that is not of a page");
        if (!pages.index().leaf(page) && pages.index().run(page).size() != page_tokens)
            return broken_page(page, "has children and is not full");
        if (const auto parent = pages.index().parent(page);
            parent && (!pages.index().contains(*parent) || pages.index().leaf(*parent) ||
                       (held[i] > 0 && held[index_of(*parent)] == 0)))
            return broken_page(page, "has a parent that is gone, childless or not held with it");
    }
    if (evictable != pages.evictable())
        return error{error_code::malformed, "pages",
                     joined({std::to_string(evictable), " pages are evictable, the page manager counts ",
                             std::to_string(pages.evictable())})};
    return {};
}

} // namespace detail

}} // namespace kvcache

// ---- kvcache/cache/sequence_manager.hpp ---------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// What a reservation of rows takes.
struct row_demand {
    std::uint32_t used = 0;           ///< Rows of the sequence's last page that are in use.
    std::size_t in_tail = 0;          ///< Rows that go into it.
    bool copies = false;              ///< It is shared, so it is copied first.
    std::size_t fresh = 0;            ///< Pages after it.
    std::size_t max_batch_tokens = 0; ///< Rows that are written and attended at a time.
    std::size_t pages = 0;            ///< Pages in all, with those set aside for residual rows.
    bool whole = false;               ///< See reserve_options.
};

/// The blocks of layer groups that sequences use: cache/group_leases.hpp, which <kvcache/layer_groups.hpp> includes.
template <class PageManager>
class group_leases;

/// In place of group_leases, where all layers keep the same.
struct no_group_leases {
    template <class PageManager>
    no_group_leases(const PageManager&, std::size_t) {}
    static constexpr std::size_t kept(const sequence_state&, std::size_t tokens) noexcept { return tokens; }
};

/// The live sequences of a cache, in a circular list, and the references that they hold on pages. Pages are touched and
/// released tail first, so that a parent was always used more recently than its children.
template <class PageManager>
class sequence_manager {
public:
    /// Whether the codec encodes whole pages: only those are shared then, with the rows that stay in full precision.
    static constexpr bool quantized = PageManager::quantized;
    static constexpr bool grouped = PageManager::grouped;
    static constexpr bool opaque = PageManager::opaque;

    /// `window`: the rows that stay in full precision, if `quantized`. Requires: the page manager outlives it. It
    /// cannot be moved.
    sequence_manager(PageManager& pages, std::size_t page_tokens, residual_window window)
        : pages_(pages),
          page_tokens_(page_tokens),
          residual_(pages, page_tokens, window),
          groups_(pages, page_tokens),
          spare_(pages.pool().pages()) {
        ring_.previous = ring_.next = &ring_;
    }

    sequence_manager(const sequence_manager&) = delete;
    sequence_manager& operator=(const sequence_manager&) = delete;
    /// Sequences that are still alive can only be destroyed or assigned to afterwards.
    ~sequence_manager() {
        for (sequence_state* s = ring_.next; s != &ring_; s = s->next) {
            s->orphaned = true;
            s->lease.end();
        }
    }

    /// The number of live sequences.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    /// The state of a sequence without tokens and pages, with the memory of one that has ended. Throws: bad_alloc.
    [[nodiscard]] std::unique_ptr<sequence_state> fresh() {
        require(pages_.pool().pages() > 0, "a cache that was moved from is only destroyed");
        auto made = spare_.take(size_);
        if constexpr (grouped)
            groups_.prepare(*made);
        return made;
    }

    /// The exact rows that its sequences and leases have.
    [[nodiscard]] auto& residual() noexcept { return residual_; }
    [[nodiscard]] const auto& residual() const noexcept { return residual_; }

    /// The blocks of layer groups that its sequences and leases use.
    [[nodiscard]] auto& groups() noexcept { return groups_; }
    [[nodiscard]] const auto& groups() const noexcept { return groups_; }

    /// Adds a sequence, and references the pages of its table. With `touches`, this is a use of them.
    void add(sequence_state& state, bool touches = true) noexcept {
        for (const page_id page : state.pinned_sources)
            pages_.hold(page);
        for (const page_entry& entry : state.table)
            pages_.hold(entry.page);
        for (const sequence_state::duplicate& duplicate : state.duplicates)
            pages_.hold(duplicate.page);
        std::size_t left = state.duplicates.size();
        for (std::size_t entry = touches ? state.table.size() : 0; entry-- > 0;) {
            const bool has_duplicate = left > 0 && state.duplicates[left - 1].entry == entry;
            pages_.touch(has_duplicate ? state.duplicates[--left].page : state.table[entry].page);
        }
        state.previous = &ring_;
        state.next = std::exchange(ring_.next, &state);
        state.next->previous = &state;
        ++size_;
        if constexpr (grouped)
            groups_.begin(state);
    }

    /// Removes a sequence and releases its pages.
    void remove(std::unique_ptr<sequence_state> state) noexcept {
        undo(*state);
        drop_pages(*state, 0);
        forget_sources(*state);
        state->previous->next = state->next;
        state->next->previous = state->previous;
        --size_;
        spare_.keep(std::move(state));
    }

    /// Keeps the first `tokens` tokens. With layer groups: which every group can continue.
    void truncate(sequence_state& state, std::size_t tokens) noexcept {
        const std::size_t before = state.tokens.size();
        cut(state, tokens);
        if constexpr (grouped)
            if (tokens < before)
                groups_.begin_again(state);
    }

private:
    void cut(sequence_state& state, std::size_t tokens) noexcept {
        state.tokens.truncate(tokens);
        drop_pages(state, state.cut(tokens));
        if (!state.duplicates.empty() && state.duplicates.back().entry >= state.full_entries(page_tokens_))
            drop_duplicate(state); // its page is not full any more
        state.published_pages = std::min(state.published_pages, state.full_entries(page_tokens_));
        if (state.offloaded.pages > state.published_pages)
            state.offloaded.pages = 0; // pages after the cut get other names
        if (tokens <= state.exact && !state.lease.open) {
            state.exact = sequence_state::all; // all approximate rows are gone
            forget_sources(state);
        }
    }

public:
    /// Reserves rows after the tokens of a sequence, as its lease. Errors: out_of_memory, with the pages needed and
    /// available; nothing has changed then. Throws: bad_alloc, likewise. Requires: it has no lease.
    template <class Codec>
    [[nodiscard]] result<void> reserve(sequence_state& state, const Codec& codec, std::size_t rows,
                                       reserve_options options) {
        require(!state.lease.open, "a sequence has one lease at a time");
        const row_demand wanted = demand(state, rows, options);
        if (wanted.pages > pages_.available(state.tenant))
            return refuse(state, rows, wanted.pages, codec.page_bytes());
        if constexpr (grouped)
            if (auto room = groups_.check(state, wanted, state.tokens.size() + rows, codec.page_bytes()); !room) {
                pages_.emit({event_kind::refused, 0, rows, wanted.pages});
                return room;
            }
        state.reserve(wanted.fresh, rows, pages_.keeps_duplicates());
        if constexpr (row_writer<Codec> || page_writer<Codec>)
            state.lease.written.begin(rows, written_layers());
        state.lease.begin(rows, state.table, state.open_rows(page_tokens_).has_value());
        state.lease.whole = options.whole;
        detail::scope_guard undone([&] { undo(state); });
        if (!take(state, codec, wanted, rows) || !residual_.open(state, wanted.used, wanted.max_batch_tokens)) {
            undo(state);
            return refuse_storage(state, rows, wanted.pages, codec.page_bytes());
        }
        undone.dismiss();
        return {};
    }

    /// The number of leases that have ended whose rows were of a prompt.
    [[nodiscard]] std::uint64_t prompts_ended() const noexcept { return prompts_ended_; }

    /// The number of leading tokens of a prompt that will be known, in whole pages, once the open leases of a tenant
    /// are committed that compute prompts. Cost: O(sequences + such leases * tokens).
    [[nodiscard]] std::size_t pending(std::uint32_t tenant, std::span<const token_id> prompt) const noexcept {
        std::size_t most = 0;
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next)
            if (s->lease.open && s->tenant == tenant)
                most = std::max(most, s->pending(prompt));
        return most / page_tokens_ * page_tokens_;
    }

    /// What a reservation of `rows` rows would take now. Cost: O(1).
    [[nodiscard]] row_demand demand(const sequence_state& state, std::size_t rows, reserve_options options) const {
        row_demand made{.whole = options.whole};
        const auto open_rows = state.open_rows(page_tokens_);
        made.used = open_rows.value_or(static_cast<std::uint32_t>(page_tokens_));
        made.copies = // a blob is written anew, and the old one stays until then
            open_rows && rows > 0 && (opaque || !pages_.writable(state.table.back().page, made.used));
        made.in_tail = std::min<std::size_t>(rows, page_tokens_ - made.used);
        const std::size_t in_new = rows - made.in_tail;
        made.fresh = in_new / page_tokens_ + (in_new % page_tokens_ > 0 ? 1 : 0);
        made.max_batch_tokens = std::min(std::max<std::size_t>(options.max_batch_tokens, 1), rows);
        const std::size_t before = (state.tokens.size() + page_tokens_ - 1) / page_tokens_;
        const std::size_t exact = residual_.needed(made.copies, before, made.fresh, made.max_batch_tokens);
        made.pages = made.fresh + (made.copies ? 1 : 0) + pages_.residual().more_aside(exact);
        return made;
    }

    /// Appends copies of rows to a sequence. `entries` are the rows' current locations, and give the rows and RoPE
    /// offsets of the copies. Returns false if the storage refuses, with some rows appended. Requires: the table has
    /// spare capacity for them.
    template <class Codec>
    [[nodiscard]] bool copy_rows(sequence_state& state, const Codec& codec, std::span<const page_entry> entries) {
        for (const page_entry& entry : entries) {
            const auto own = pages_.allocate(state.tenant);
            if (!own)
                return false;
            pages_.pool().clear(*own);
            if (!pages_.pool().copy(codec, entry.page, *own, entry.first + entry.count)) {
                pages_.drop(*own);
                return false;
            }
            const page_id pair[] = {entry.page, *own};
            pages_.emit({event_kind::copied, entry.count, 0, 1, pair});
            state.table.push_back({*own, entry.base, entry.first, entry.count});
        }
        return true;
    }

    /// Reports rows for which there are no pages. Returns the error.
    [[nodiscard]] error refuse(const sequence_state& state, std::size_t rows, std::size_t pages,
                               std::size_t page_bytes) {
        pages_.emit({event_kind::refused, 0, rows, pages});
        const tenant_usage& own = pages_.tenants().usage(state.tenant);
        const std::size_t had = pages_.available(state.tenant);
        const bool short_of_own = had < pages_.available();
        const bool over_quota = short_of_own && had == own.quota - std::min(own.quota, own.pages - own.evictable);
        const std::size_t all = over_quota ? own.quota : pages_.pool().pages();
        return {error_code::out_of_memory,
                over_quota     ? "quota"
                : short_of_own ? "share"
                               : "pages",
                detail::joined({std::to_string(rows), " tokens need ", std::to_string(pages), " pages of ",
                                std::to_string(page_bytes), " bytes; ", std::to_string(had), " of ",
                                std::to_string(all), " can be had"})};
    }

    /// The same where there was room for them, and the storage refused. If it says why, that is the error.
    [[nodiscard]] error refuse_storage(const sequence_state& state, std::size_t rows, std::size_t pages,
                                       std::size_t page_bytes) {
        error full = refuse(state, rows, pages, page_bytes);
        if constexpr (requires { pages_.pool().storage().status(); })
            if (const result<void> stored = pages_.pool().storage().status(); !stored)
                return stored.error();
        return full;
    }

    /// Commits a lease: its first rows are these tokens, the others are released. If the codec encodes whole pages,
    /// rows of a page whose residual buffer was reused are released too. It cannot fail: all necessary memory was
    /// allocated with the lease.
    void commit(sequence_state& state, std::span<const token_id> tokens) {
        const double took = 1e-9 * static_cast<double>(monotonic_nanoseconds() - state.lease.began);
        if (state.lease.spliced.empty()) // otherwise some of the rows were not computed
            pages_.measure(state.tokens.size(), tokens.size(), took);
        commit_unmeasured(state, tokens);
    }

    /// The same for rows that were not computed here.
    void commit_unmeasured(sequence_state& state, std::span<const token_id> tokens) {
        state.tokens.append(tokens);
        if constexpr (grouped) {
            state.running.commit(tokens.size(), state.lease.rows);
            groups_.drop_snapshots(state, state.tokens.size());
            if (state.lease.whole) // before pages without blocks become those of others, which have some
                groups_.follow(state);
        }
        if (state.lease.has_copied_tail(state.table)) {
            if (tokens.empty())
                std::swap(state.lease.tail_before->page, state.table[state.lease.pages_before - 1].page);
            drop_tail(state.lease.tail_before->page);
        }
        const std::size_t kept = residual_.finalize(state);
        if constexpr (grouped)
            if (kept < state.tokens.size())
                state.running.forget();
        end_lease(state);
        cut(state, kept);
        publish(state);
        if constexpr (grouped) {
            if (!tokens.empty())
                groups_.end_snapshots(state, 0);
            groups_.follow(state);
        }
    }

    /// Rolls back an open lease: the sequence is as it was before.
    void undo(sequence_state& state) noexcept {
        if (!state.lease.open)
            return;
        if constexpr (grouped) {
            groups_.drop_snapshots(state, state.tokens.size());
            state.running.rollback();
        }
        drop_pages(state, state.lease.pages_before);
        if (state.lease.has_copied_tail(state.table))
            drop_tail(state.table.back().page);
        if (state.lease.tail_before)
            state.table.back() = *state.lease.tail_before;
        residual_.end(state.lease.ring);
        end_lease(state);
        truncate(state, state.tokens.size());
    }

    /// Checks the consistency of sequences and pages.
    [[nodiscard]] result<void> check() const {
        invariant_checker holders(pages_.index(), page_tokens_, pages_.pool().pages());
        std::size_t leased = 0;
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next) {
            if (auto sound = holders.count(*s); !sound)
                return sound;
            leased += s->lease.ring.places.size();
        }
        if constexpr (grouped) {
            auto users = groups_.no_users();
            for (const sequence_state* s = ring_.next; s != &ring_; s = s->next)
                groups_.count(*s, users);
            if (auto sound = groups_.check(users); !sound)
                return sound;
        }
        if (!pages_.residual().add_up(leased))
            return error{error_code::malformed, "exact rows", "exact rows are kept that no page and no lease has"};
        return detail::check_pages(pages_, holders.held(), page_tokens_);
    }

    /// The first layer of the cache's pages, among the layers whose rows are written.
    [[nodiscard]] std::size_t first_layer() const noexcept {
        if constexpr (grouped)
            return pages_.blocks().first_layer(pages_.blocks().paged().value_or(0));
        else
            return 0;
    }

private:
    [[nodiscard]] std::size_t written_layers() const noexcept {
        if constexpr (grouped)
            return pages_.blocks().first_layer(pages_.blocks().layout().groups.size());
        else
            return pages_.shape().layers;
    }

    // Appends `rows` rows, in the last page and in new ones. If the last page is shared it is copied first. Returns
    // false if the storage refuses, with some pages appended. Requires: the table has capacity for them.
    template <class Codec>
    [[nodiscard]] bool take(sequence_state& state, const Codec& codec, const row_demand& wanted, std::size_t rows) {
        if (wanted.copies && !copy_tail(state, codec, wanted.used))
            return false;
        if (wanted.in_tail > 0)
            state.table.back().count += static_cast<std::uint32_t>(wanted.in_tail);
        for (std::size_t after = rows - wanted.in_tail; after > 0;) {
            const auto page = pages_.allocate(state.tenant);
            if (!page)
                return false;
            const std::size_t count = std::min<std::size_t>(after, page_tokens_);
            state.table.push_back({.page = *page, .count = static_cast<std::uint32_t>(count)});
            after -= count;
            if constexpr (opaque)
                codec.clear(pages_.pool().bytes(*page));
            if constexpr (grouped)
                if (!groups_.extend(state, *page))
                    return false;
        }
        return true;
    }

    template <class Codec>
    [[nodiscard]] bool copy_tail(sequence_state& state, const Codec& codec, std::size_t rows) {
        const auto own = pages_.allocate(state.tenant);
        if (!own)
            return false;
        const page_id shared = std::exchange(state.table.back().page, *own);
        if (!pages_.pool().copy(codec, shared, *own, rows))
            return false;
        if constexpr (opaque)
            codec.clear(pages_.pool().bytes(*own));
        if constexpr (grouped)
            if (!groups_.copy_tail(state, shared, *own, rows))
                return false;
        const page_id pair[] = {shared, *own};
        pages_.emit({event_kind::copied, rows, 0, 1, pair});
        return true;
    }
    // Drops a page that takes no more part in the last entry of a table.
    void drop_tail(page_id page) noexcept {
        if constexpr (grouped)
            groups_.leave_page(page);
        pages_.drop(page);
    }

    // Publishes the pages of a sequence that are not in the index yet. If the index has no memory left, later pages of
    // the sequence stay private, and a later match finds less.
    void publish(sequence_state& state) {
        if (state.tokens.size() >= state.prompt)
            state.prompt = 0;
        const std::size_t length = std::max(state.full_entries(page_tokens_), state.prompt / page_tokens_);
        for (std::size_t i = state.published_pages; state.publishable && i < state.table.size(); ++i) {
            page_entry& entry = state.table[i];
            if (quantized && entry.count < page_tokens_)
                break;
            if (i * page_tokens_ + entry.count > std::min(state.exact, state.cacheable)) // approximate: never published
                return;
            const auto run = std::span<const token_id>(state.tokens).subspan(i * page_tokens_, entry.count);
            const auto parent = i > 0 ? std::optional(state.indexed(i - 1)) : pages_.index().root_of(state.tenant);
            page_id known = entry.page;
            std::uint64_t groups = 0;
            if constexpr (grouped)
                groups = groups_.used(state, i);
            state.publishable = detail::completes<std::bad_alloc>(
                [&] { known = pages_.publish(parent, run, entry.page, length, groups); });
            if (known != entry.page && pages_.keeps_duplicates())
                state.duplicates.push_back({i, known});
            else if (const page_id before = std::exchange(entry.page, known); before != known)
                pages_.report_move({i, before, known});
            if (state.publishable && entry.count == page_tokens_)
                state.published_pages = i + 1;
        }
    }

    // Releases the pages after the first `kept` ones, last first.
    void drop_pages(sequence_state& state, std::size_t kept) noexcept {
        while (state.table.size() > kept) {
            if constexpr (grouped)
                groups_.leave_last(state);
            pages_.drop(state.table.back().page);
            state.table.pop_back();
            if (!state.duplicates.empty() && state.duplicates.back().entry == state.table.size())
                drop_duplicate(state);
        }
    }
    void end_lease(sequence_state& state) noexcept {
        prompts_ended_ += !state.lease.prompt.empty();
        state.lease.end();
    }
    void drop_duplicate(sequence_state& state) noexcept {
        pages_.drop(state.duplicates.back().page);
        state.duplicates.pop_back();
    }

    void forget_sources(sequence_state& state) noexcept {
        if constexpr (grouped)
            groups_.unpin(state);
        for (; !state.pinned_sources.empty(); state.pinned_sources.pop_back())
            pages_.drop(state.pinned_sources.back());
    }

    PageManager& pages_;
    std::size_t page_tokens_;
    std::conditional_t<quantized, residual_leases<PageManager>,
                       std::conditional_t<opaque, opaque_leases<PageManager>, no_residual_leases>>
        residual_;
    std::conditional_t<grouped, group_leases<PageManager>, no_group_leases> groups_;
    sequence_state ring_;
    std::size_t size_ = 0;
    std::uint64_t prompts_ended_ = 0;
    spare_sequences spare_;
};

}} // namespace kvcache

// ---- kvcache/recompute/concept.hpp --------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The tokens of a prompt to compute: [first, first + count). Tokens before `first` are reused.
struct compute_range {
    std::size_t first = 0;
    std::size_t count = 0;
};

/// Tokens of a prompt whose cached keys and values were computed after a different prefix.
struct reused_span {
    std::size_t first = 0; ///< Position in the prompt.
    std::size_t count = 0;
    std::uint32_t row = 0; ///< Row of the first token in its page.

    friend bool operator==(const reused_span&, const reused_span&) = default;
};

/// The working state of a recompute policy. `first_computed(hit, total)` returns the first token to compute, of `total`
/// tokens whose first `hit` are cached.
template <class S>
concept recompute_state = requires(const S s, std::size_t tokens) {
    { s.first_computed(tokens, tokens) } -> std::same_as<std::size_t>; // hit, total
};

/// A state that also reuses chunks cached after other prefixes. `select` appends the positions to recompute, ascending,
/// to `positions`.
template <class S>
concept chunk_recompute_state = recompute_state<S> &&
    requires(const S s, std::span<const reused_span> runs, std::vector<std::size_t>& positions) {
    s.select(runs, positions);
};

/// The vectors compared to measure a reused token's deviation.
enum class deviation_metric { keys, values };

/// A state that selects by deviation: the squared distance between the correct and the cached keys or values of a token
/// in one early layer. `deviations` holds one value per reused token, span by span. All tokens go through the layers
/// before that one.
template <class S>
concept deviation_recompute_state = recompute_state<S> &&
    requires(const S s, std::span<const reused_span> runs, std::span<const float> deviations,
             std::vector<std::size_t>& positions) {
    s.select(runs, deviations, positions);
    { s.compared() } -> std::same_as<deviation_metric>;
    { s.check_layer() } -> std::convertible_to<std::size_t>;
};

/// A state that filters its selection in the layers after the check layer, one layer per filter. `filter` receives the
/// deviation of each of `positions` in that layer, once the selected tokens have been computed up to it, and keeps
/// some.
template <class S>
concept filtering_recompute_state = deviation_recompute_state<S> &&
    requires(const S s, std::size_t number, std::span<const reused_span> runs, std::span<const float> deviations,
             std::vector<std::size_t>& positions) {
    { s.filters() } -> std::convertible_to<std::size_t>;
    s.filter(number, runs, deviations, positions);
};

/// A policy that selects the reused tokens to recompute.
template <class P>
concept recompute_policy = plays<P, recompute_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && recompute_state<opened_by<P, page_shape>>;

}} // namespace kvcache

// ---- kvcache/cache/cache_core.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The shared state of a cache, under one lock: pages, sequences, tenants and the link to the tier. Its sequences and
/// leases point to it. Each function takes the lock, except the accessors, which say what they require. Not for hosts:
/// basic_cache is. `Policies`: a cache_policies.
template <class Policies>
class cache_core {
    // What a policy opens with these arguments.
    template <class Policy, class... Arguments>
    using opened = decltype(std::declval<const Policy&>().open(std::declval<Arguments>()...));

public:
    using index_type = opened<decltype(Policies::index), page_shape, std::size_t>;
    using codec_type = opened<decltype(Policies::codec), page_shape>;
    using storage_type = opened<decltype(Policies::storage), std::size_t, std::size_t>;
    using recompute_type = opened<decltype(Policies::recompute), page_shape>;
    using tier_type = opened<decltype(Policies::tier)>;
    using locking_type = typename decltype(Policies::locking)::state;
    using layers_type = decltype(detail::open_layers(std::declval<const Policies&>(), layers_capacity{}));
    using page_manager_type = page_manager<storage_type, opened<decltype(Policies::hash), identity>, index_type,
                                           opened<decltype(Policies::eviction), eviction_capacity>,
                                           opened<decltype(Policies::observer)>, content_of<codec_type>, layers_type>;
    using sequence = basic_sequence<cache_core>;
    using lease = basic_lease<cache_core>;

    static constexpr bool has_tier = !std::same_as<tier_type, tier::none::state>;
    static constexpr bool writes_rows = row_writer<codec_type> || device_codec_state<codec_type>;
    static constexpr bool grouped = layers_type::several;
    static constexpr bool owns_blocks = grouped && host_storage_state<storage_type>;
    static_assert(
        requires { sizeof(tier_client<tier_type>); }, "a cache with a tier needs <kvcache/tier.hpp>");
    static_assert(device_codec_state<codec_type> == device_storage_state<storage_type>,
                  "pages that the host cannot read have a storage and a codec of one kind (docs/cuda.md)");
    static_assert(host_storage_state<storage_type> || !has_tier, "a tier keeps pages that the host can read");
    static_assert(
        !grouped || host_storage_state<storage_type> || requires(const storage_type memory) { memory.follows_moves(); },
        "layer groups are in memory that the host can read, or in storage::external");
    static_assert(
        detail::writes_blocks_by_row<layers_type>,
        "the blocks of layer groups have a codec that writes row by row: f32 or row_major, or codec::by_group "
        "with one of them for blocks");
    static_assert(
        !grouped || requires { sizeof(group_leases<page_manager_type>); },
        "layer groups need <kvcache/layer_groups.hpp>");

    /// It does not move. Requires: the shape is valid, the limit is at least one page, and a cache with a tier has an
    /// identity.
    cache_core(cache_config config, Policies policies)
        : shape_(checked(detail::shape_of(config.shape, policies.layers))),
          codec_(policies.codec.open(shape_)),
          identity_(detail::complete_identity(checked(std::move(config.id)), codec_, shape_, policies)),
          pages_(detail::open_pages<page_manager_type>(config, policies, codec_, shape_, identity_)),
          hash_(std::move(policies.hash)),
          sequences_(pages_, shape_.tokens, residual_window_of(codec_)),
          recompute_(policies.recompute.open(shape_)),
          tier_(policies.tier.open(), identity_, detail::secret_of(hash_)),
          tenants_(config.tenants) {
        if (config.tenants > 0)
            add_tenant({}, std::numeric_limits<std::size_t>::max());
    }

    // What never changes.

    [[nodiscard]] const page_shape& shape() const noexcept { return shape_; }
    [[nodiscard]] const codec_type& codec() const noexcept { return codec_; }
    [[nodiscard]] const storage_type& storage() const noexcept { return pages_.pool().storage(); }
    [[nodiscard]] const recompute_type& recompute() const noexcept { return recompute_; }
    [[nodiscard]] tier_client<tier_type>& tier() noexcept { return tier_; }
    [[nodiscard]] const tier_client<tier_type>& tier() const noexcept { return tier_; }

    // What the lock guards. Requires: the lock is held.

    [[nodiscard]] locking_type& lock() const noexcept { return lock_; }
    [[nodiscard]] page_manager_type& pages() noexcept { return pages_; }
    [[nodiscard]] const page_manager_type& pages() const noexcept { return pages_; }
    [[nodiscard]] sequence_manager<page_manager_type>& sequences() noexcept { return sequences_; }
    [[nodiscard]] const sequence_manager<page_manager_type>& sequences() const noexcept { return sequences_; }

    // Prompts. `tenant` is a tenant's number, from `number_of`.

    /// How a prompt is matched.
    struct match_options {
        bool plans = false;     ///< Leaves out the tokens that the recompute policy computes again.
        bool emits = true;      ///< Sends the observer the event of the match.
        bool touches = true;    ///< Calls `touch` of the eviction policy.
        std::size_t loaded = 0; ///< Tokens that came from the tier just now.
    };
    /// A sequence that shares the cached prefix of a prompt.
    struct match {
        basic_sequence<cache_core> sequence;
        lookup_result found;
    };

    /// The number of a tenant. Requires: a cache with tenants is used with one of them, and a cache without is not.
    [[nodiscard]] std::uint32_t number_of(const kvcache::tenant& of) const {
        require((of.number() == 0) == (tenants_.most() == 0), "a cache with tenants is used with one of them");
        require(of.number() == 0 || of.belongs_to(tenants_), "a tenant is used with its own cache");
        return of.number();
    }

    /// What is cached of a prompt, and what is being computed. Pins and changes nothing.
    [[nodiscard]] lookup_result lookup(std::uint32_t tenant, std::span<const token_id> tokens) {
        const lock_guard guard(lock_);
        const index_match& found = pages_.find(tenant, tokens);
        lookup_result made = described(found, tokens.size());
        made.cached_tokens = sequences_.residual().kept(found.pages, found.tokens);
        if constexpr (grouped)
            made.limit(sequences_.groups().limit(found.pages, made.cached_tokens));
        made.pending_tokens = sequences_.pending(tenant, tokens);
        return made;
    }

    /// A sequence that shares the longest prefix of a prompt that is in memory.
    [[nodiscard]] match match_in_memory(std::uint32_t tenant, std::span<const token_id> tokens,
                                        const match_options& options) {
        const lock_guard guard(lock_);
        auto known = sequences_.fresh();
        const index_match& found = pages_.find(tenant, tokens);
        lookup_result made = described(found, tokens.size());
        known->tenant = tenant;
        known->prompt = tokens.size();
        known->tokens.assign(tokens.first(found.tokens));
        known->add_pages(found.pages, found.tokens, shape_.tokens);
        std::size_t kept = sequences_.residual().kept(known->table, found.tokens);
        if constexpr (grouped) {
            sequences_.groups().note(found, options.touches);
            if (options.plans)
                kept = sequences_.residual().kept(known->table, first_computed(kept, tokens.size()));
            kept = made.limit(sequences_.groups().limit(found.pages, kept));
        }
        known->tokens.truncate(kept);
        known->drop_entries(known->cut(kept));
        made.cached_tokens = kept;
        made.loaded_tokens = std::min(options.loaded, kept);
        if (options.emits) {
            const auto pages = std::span(found.pages).first(known->table.size());
            pages_.emit({event_kind::matched, kept, tokens.size(), pages.size(), pages});
        }
        const std::size_t first = options.plans ? first_computed(kept, tokens.size()) : kept;
        sequences_.add(*known, options.touches); // after what may throw
        if (options.plans)
            truncate_to(*known, first);
        return {{*this, std::move(known)}, made};
    }

    /// The same, after the pages that only the tier has are loaded, unless `load` is false.
    [[nodiscard]] match find(std::uint32_t tenant, std::span<const token_id> tokens, bool plans, bool load = true) {
        if constexpr (has_tier)
            if (load && !is_null(tier_.tier()))
                return tier_.find(*this, tenant, tokens, plans);
        return match_in_memory(tenant, tokens, {.plans = plans});
    }

    /// Ends a match that was made without an event and a plan.
    void complete(match& found, bool plans) {
        std::vector<page_id> pages;
        for (const page_entry& entry : found.sequence.table())
            pages.push_back(entry.page);
        const lock_guard guard(lock_);
        pages_.emit({event_kind::matched, found.found.cached_tokens, found.found.prompt_tokens, pages.size(), pages});
        sequence_state& state = found.sequence.state_in(*this);
        if (plans)
            truncate_to(state, first_computed(state.tokens.size(), found.found.prompt_tokens));
    }

    /// See basic_cache.
    [[nodiscard]] result<acquired<cache_core>> acquire(std::span<const token_id> tokens,
                                                       const acquire_options& options) {
        const std::uint32_t tenant = number_of(options.tenant);
        while (true) {
            const std::uint64_t ended = options.pending == pending_prefix::compute ? 0 : prompts_ended();
            match known = find(tenant, tokens, true, options.load);
            if (auto rows = reserve_prompt(known.sequence, tokens, options, ended)) {
                if (!*rows)
                    return rows->error();
                return acquired<cache_core>(std::move(known.sequence), std::move(**rows), known.found);
            }
        }
    }

    /// An empty sequence.
    [[nodiscard]] sequence open(std::uint32_t tenant) {
        const lock_guard guard(lock_);
        auto state = sequences_.fresh();
        state->tenant = tenant;
        sequences_.add(*state);
        return {*this, std::move(state)};
    }

    /// See basic_cache.
    std::size_t evict(std::uint32_t tenant, std::span<const token_id> tokens) {
        const lock_guard guard(lock_);
        return pages_.evict(pages_.find(tenant, tokens).pages);
    }
    std::size_t evict(std::span<const page_id> pages) {
        const lock_guard guard(lock_);
        for (const page_id page : pages)
            require(index_of(page) < pages_.pool().pages(), "an evicted page is one of the cache's");
        return pages_.evict(pages);
    }
    [[nodiscard]] bool clear(std::uint32_t tenant) {
        const lock_guard guard(lock_);
        return pages_.clear(tenant);
    }

    /// Expected seconds to compute `rows` rows from position `first` on, from the leases committed so far.
    [[nodiscard]] double prefill_seconds(std::size_t first, std::size_t rows) const {
        const lock_guard guard(lock_);
        return pages_.seconds(first, rows);
    }

    // Tenants.

    /// See basic_cache.
    [[nodiscard]] result<kvcache::tenant> open_tenant(const std::string& salt, std::size_t quota) {
        const lock_guard guard(lock_);
        require(tenants_.most() > 0, "a cache with tenants is opened for a number of them");
        if (salt.empty())
            return tenants_.use(1);
        if (const auto known = tenants_.find(salt)) {
            pages_.set_quota(known->number(), quota);
            return *known;
        }
        if (!tenants_.full())
            return tenants_.use(add_tenant(salt, quota));
        const std::uint32_t number =
            tenants_.replaceable([&](std::uint32_t each) { return pages_.tenants().usage(each).pages; });
        if (number == 0 || !pages_.clear(number))
            return tenants_.refuse();
        const identity own = tenant_identity(salt);
        const digest root = hash_.open(own).root();
        std::string kept = salt;
        if constexpr (has_tier)
            tier_.set(number, own);
        pages_.replace_tenant(number, root, quota);
        tenants_.replace(number, std::move(kept));
        return tenants_.use(number);
    }
    [[nodiscard]] tenant_usage usage(std::uint32_t tenant) const {
        const lock_guard guard(lock_);
        return pages_.tenants().usage(tenant);
    }
    /// The identity of what a tenant stores.
    [[nodiscard]] identity id(std::uint32_t tenant) const {
        const lock_guard guard(lock_);
        return tenant == 0 ? identity_ : tenant_identity(tenants_.salt(tenant));
    }
    [[nodiscard]] const identity& id() const noexcept { return identity_; }

    // Sequences and leases.

    void release(std::unique_ptr<sequence_state> state) noexcept {
        const ending guard(lock_, sequences_);
        sequences_.remove(std::move(state));
    }

    [[nodiscard]] sequence fork(const sequence_state& from, std::size_t tokens) {
        const lock_guard guard(lock_);
        require(tokens <= from.tokens.size() && !from.lease.open, "a fork lies inside a sequence without a lease");
        auto made = sequences_.fresh();
        made->share(from, sequences_.groups().kept(from, sequences_.residual().kept(from, tokens)), shape_.tokens);
        sequences_.add(*made);
        return {*this, std::move(made)};
    }

    void set_cacheable_limit(sequence_state& state, std::size_t tokens) {
        const lock_guard guard(lock_);
        state.cacheable = tokens;
    }

    void truncate(sequence_state& state, std::size_t tokens) {
        const lock_guard guard(lock_);
        require(tokens <= state.tokens.size() && !state.lease.open,
                "a truncation lies inside a sequence without a lease");
        truncate_to(state, tokens);
    }

    [[nodiscard]] result<sequence> erase_range(const sequence_state& from, std::size_t first, std::size_t count) {
        const lock_guard guard(lock_);
        require(first <= from.tokens.size() && count <= from.tokens.size() - first && !from.lease.open,
                "an erased range lies inside a sequence without a lease");
        if constexpr (grouped)
            return error{error_code::unsupported, "groups", "tokens are erased where all layers keep the same"};
        auto kept = sequences_.fresh();
        kept->share(from, first, shape_.tokens);
        const auto after = kept->leave_out(from, first, count);
        sequences_.add(*kept);
        const bool fits = after.size() <= pages_.available(from.tenant);
        if (!fits || !sequences_.copy_rows(*kept, codec_, after)) {
            sequences_.remove(std::move(kept));
            const std::size_t rows = from.tokens.size() - first - count, bytes = codec_.page_bytes();
            return fits ? sequences_.refuse_storage(from, rows, after.size(), bytes)
                        : sequences_.refuse(from, rows, after.size(), bytes);
        }
        return sequence(*this, std::move(kept));
    }

    /// Reserves rows. Errors, exceptions: those of the cache's reserve.
    [[nodiscard]] result<lease> reserve(sequence_state& state, std::size_t rows, reserve_options options) {
        const lock_guard guard(lock_);
        if (auto reserved = sequences_.reserve(state, codec_, rows, options); !reserved)
            return reserved.error();
        return lease(*this, state);
    }

    void commit(sequence_state& state, std::span<const token_id> tokens) {
        {
            const ending guard(lock_, sequences_);
            sequences_.commit(state, tokens);
            pages_.emit({event_kind::stored, tokens.size(), 0, 0});
        }
        if constexpr (has_tier)
            tier_.store(*this, state);
    }
    /// The same for rows that were not computed here; the tier gets none of them.
    void commit_in_place(sequence_state& state, std::span<const token_id> tokens) {
        const ending guard(lock_, sequences_);
        sequences_.commit_unmeasured(state, tokens);
        pages_.emit({event_kind::stored, tokens.size(), 0, 0});
    }
    void rollback(sequence_state& state) noexcept {
        const ending guard(lock_, sequences_);
        sequences_.undo(state);
    }

    // Layer groups.

    /// Calls `f` with the blocks that sequences use.
    template <class F>
    auto groups(F&& f) requires grouped {
        const lock_guard guard(lock_);
        return f(sequences_.groups());
    }

    // The whole cache.

    [[nodiscard]] cache_stats stats() const {
        const lock_guard guard(lock_);
        const auto& pool = pages_.pool();
        const std::size_t free = pool.free().size(), evictable = pages_.evictable();
        return {pool.pages(),
                free,
                pool.pages() - free - evictable,
                evictable,
                codec_.page_bytes(),
                sequences_.size(),
                pages_.residual().alive(),
                pages_.residual().bytes()};
    }
    [[nodiscard]] result<void> check() const {
        const lock_guard guard(lock_);
        return sequences_.check();
    }
    /// Full-precision rows attached to a page that a sequence references; empty if there are none.
    [[nodiscard]] std::span<const std::byte> residual_bytes(page_id page) const {
        const lock_guard guard(lock_);
        const codec::residual_page* rows = pages_.residual().of(page);
        return rows != nullptr ? rows->bytes() : std::span<const std::byte>();
    }

private:
    using lock_guard = detail::guard_of<locking_type>;
    using ending = detail::ending<locking_type, sequence_manager<page_manager_type>>;

    [[nodiscard]] static const page_shape& checked(const page_shape& shape) {
        require(has_pages_of<codec_type>(shape), detail::shape_rule<codec_type>);
        return shape;
    }
    [[nodiscard]] static identity checked(identity id) {
        require(!has_tier || id != identity{}, "a cache with a tier has an identity");
        return id;
    }
    // The rows that stay in full precision, where the codec encodes whole pages.
    [[nodiscard]] static residual_window residual_window_of([[maybe_unused]] const codec_type& codec) {
        if constexpr (page_writer<codec_type>)
            return codec.window();
        else
            return {};
    }

    [[nodiscard]] static lookup_result described(const index_match& found, std::size_t prompt) {
        return {.prompt_tokens = prompt,
                .cached_tokens = found.tokens,
                .common_prefix = found.tokens,
                .end = found.end,
                .differing_token = found.stored};
    }

    // The first token of a prompt that is computed, where `known` tokens are cached.
    [[nodiscard]] std::size_t first_computed(std::size_t known, std::size_t prompt) const {
        const std::size_t first = recompute_.first_computed(known, prompt);
        require(first <= known, "a plan begins inside its match");
        return first;
    }
    // Keeps the first `tokens` tokens, or fewer: those that can be continued.
    void truncate_to(sequence_state& state, std::size_t tokens) noexcept {
        sequences_.truncate(state, sequences_.groups().kept(state, sequences_.residual().kept(state, tokens)));
    }

    [[nodiscard]] std::uint64_t prompts_ended() const {
        const lock_guard guard(lock_);
        return sequences_.prompts_ended();
    }

    // Reserves the rows of a prompt after those that a sequence has, and notes what they are. Returns nullopt if the
    // prompt has to be matched again, because a lease of a prompt has ended since there were `ended`, or this has
    // waited for one. Errors: as reserve; pending.
    [[nodiscard]] std::optional<result<lease>> reserve_prompt(sequence& to, std::span<const token_id> tokens,
                                                              const acquire_options& options, std::uint64_t ended) {
        const lock_guard guard(lock_);
        sequence_state& state = to.state_in(*this);
        const std::size_t known = state.tokens.size();
        if (options.pending != pending_prefix::compute) {
            if (sequences_.prompts_ended() != ended)
                return std::nullopt;
            // The last token is computed in any case.
            const auto shared = tokens.first(tokens.empty() ? 0 : tokens.size() - 1);
            if (const std::size_t soon = sequences_.pending(state.tenant, shared); soon > known) {
                if constexpr (waiting_state<locking_type>)
                    if (options.pending == pending_prefix::wait) {
                        lock_.wait();
                        return std::nullopt;
                    }
                return error{
                    error_code::pending, "tokens",
                    detail::joined({std::to_string(soon), " of ", std::to_string(tokens.size()),
                                    " tokens are being computed, and ", std::to_string(known), " are cached"})};
            }
        }
        const auto rest = tokens.subspan(known, std::min(tokens.size() - known, options.rows));
        state.lease.prompt.reserve(rest.size());
        if (auto reserved = sequences_.reserve(state, codec_, rest.size(), {options.max_batch_tokens}); !reserved)
            return reserved.error();
        state.lease.prompt.assign(rest.begin(), rest.end());
        return lease(*this, state);
    }

    [[nodiscard]] identity tenant_identity(const std::string& salt) const {
        identity own = identity_;
        own.tenant = salt;
        return own;
    }
    // Adds a tenant and returns its number. Requires: there are fewer than the maximum. Throws: bad_alloc; the tenant
    // is then not added.
    std::uint32_t add_tenant(const std::string& salt, std::size_t quota) {
        const identity own = tenant_identity(salt);
        tenant_registry::account account{.salt = salt};
        tenants_.reserve();
        if constexpr (has_tier)
            tier_.set(tenants_.size() + 1, own);
        pages_.add_tenant(hash_.open(own).root(), quota);
        return tenants_.add(std::move(account));
    }

    page_shape shape_;
    codec_type codec_;
    identity identity_;
    page_manager_type pages_;
    decltype(Policies::hash) hash_;
    sequence_manager<page_manager_type> sequences_;
    recompute_type recompute_;
    tier_client<tier_type> tier_;
    tenant_registry tenants_;
    mutable locking_type lock_;
};

}} // namespace kvcache

// ---- kvcache/cache/basic_cache.hpp --------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// A paged KV cache with prefix sharing and copy-on-write; the codec decides how a page stores keys and values.
/// Requires: it outlives its sequences and leases, which stay valid when it is moved. One thread at a time uses it with
/// all of them; with locking::mutex any number, each object under its own rule (docs/threads_and_lifetimes.md).
/// Functions on a prompt take the tenant whose prompt it is, in a cache with tenants. `Policies`: a cache_policies.
template <class Policies>
class basic_cache {
public:
    using core_type = cache_core<Policies>;
    using codec_type = typename core_type::codec_type;
    using storage_type = typename core_type::storage_type;
    using locking_type = typename core_type::locking_type;
    using tier_type = typename core_type::tier_type;
    using sequence = basic_sequence<core_type>;
    using lease = basic_lease<core_type>;
    using acquired = kvcache::acquired<core_type>;

    /// Whether evicted pages can be reloaded from a tier.
    static constexpr bool has_tier = core_type::has_tier;
    /// Whether the codec writes single rows, not whole pages.
    static constexpr bool writes_rows = core_type::writes_rows;

    /// Requires: the shape is valid, the limit is at least one page, and a cache with a tier has an identity.
    basic_cache(cache_config config, Policies policies)
        : core_(std::make_unique<core_type>(std::move(config), std::move(policies))) {}
    basic_cache(basic_cache&&) noexcept = default;
    basic_cache& operator=(basic_cache&&) noexcept = default;
    ~basic_cache() = default;

    /// Returns a sequence that shares the cached prefix of a prompt, with a lease over the rows to compute: those that
    /// are not cached, and those that the recompute policy computes again (the last one at least). Full pages that only
    /// the tier has are loaded, verified and published first. Evicts unreferenced pages if no page is free.
    /// Errors: those of reserve, and pending; nothing has changed then. Cost: O(tokens), plus the tier's reads.
    [[nodiscard]] result<acquired> acquire(std::span<const token_id> prompt, const acquire_options& options = {}) {
        return core().acquire(prompt, options);
    }

    /// An empty sequence.
    [[nodiscard]] sequence open(const tenant& of = {}) { return core().open(core().number_of(of)); }
    /// Returns a sequence that shares the cached prefix of a prompt, up to the first token to compute, as acquire does,
    /// without a lease. Cost: as acquire.
    [[nodiscard]] sequence open(std::span<const token_id> prompt, const tenant& of = {}) {
        return core().find(core().number_of(of), prompt, true).sequence;
    }

    /// Reserves `rows` rows after the tokens of a sequence, and the memory to commit them. Evicts unreferenced pages if
    /// no page is free. Errors: out_of_memory, with the pages needed and available, and the field "quota" where the
    /// tenant has as many as it may, "share" where fair tenants leave it no more, "pages" where the cache is full;
    /// nothing has changed then.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, reserve_options options = {}) {
        return core().reserve(to.state_in(core()), rows, options);
    }
    /// Reserves rows for several sequences, for all or for none. The leases are in the order of the batch. Requires:
    /// the sequences are different ones. Errors: those of reserve, with the index in the batch; no sequence has changed
    /// then, but unreferenced pages may have been evicted. Throws: bad_alloc, likewise.
    [[nodiscard]] result<std::vector<lease>> reserve(std::span<const reservation<basic_cache>> batch) {
        std::vector<lease> made;
        made.reserve(batch.size());
        for (const reservation<basic_cache>& one : batch) {
            require(one.to != nullptr, "a reservation names its sequence");
            auto rows = reserve(*one.to, one.rows, one.options);
            if (!rows) {
                error why = rows.error();
                why.message = detail::joined({"request ", std::to_string(made.size()), " of ",
                                              std::to_string(batch.size()), " of the batch: ", why.message});
                return why;
            }
            made.push_back(std::move(*rows));
        }
        return made;
    }

    /// What memory holds of a prompt, and what leases compute of it. Pins nothing, reads no tier, and is no use to the
    /// eviction policy. Cost: O(tokens + sequences).
    [[nodiscard]] lookup_result lookup(std::span<const token_id> prompt, const tenant& of = {}) const {
        return core().lookup(core().number_of(of), prompt);
    }
    /// Whether every token of a prompt is cached in memory. Cost: as lookup.
    [[nodiscard]] bool contains(std::span<const token_id> prompt, const tenant& of = {}) const {
        return lookup(prompt, of).cached_tokens == prompt.size();
    }

    /// Loads the pages of a prompt that only the tier has, for a later acquire. They stay unpinned. Returns the number
    /// of tokens loaded. Cost: as acquire.
    std::size_t prefetch(std::span<const token_id> prompt, const tenant& of = {}) {
        const std::uint32_t number = core().number_of(of);
        if constexpr (core_type::has_tier)
            return core().tier().prefetch(core(), number, prompt);
        else
            return 0;
    }

    /// Evicts the pages of a prompt from memory, last first, up to a page that a sequence uses or that a longer cached
    /// prompt continues. A tier keeps its records. Returns the number of pages. Cost: O(tokens).
    std::size_t evict(std::span<const token_id> prompt, const tenant& of = {}) {
        return core().evict(core().number_of(of), prompt);
    }
    /// Evicts these pages, last first, where no sequence uses them and no cached page continues them. Returns their
    /// number.
    std::size_t evict(std::span<const page_id> pages) { return core().evict(pages); }
    /// Evicts all pages of a tenant that no sequence uses; in a cache without tenants, all such pages. Returns whether
    /// no page is left. Cost: O(pages of the tenant * pages).
    bool clear(const tenant& of = {}) { return core().clear(core().number_of(of)); }

    /// Evicts all pages that no sequence uses, of every tenant. Pinned content stays (chunk/content_pins.hpp), and so
    /// do a tier's records. Returns whether no page is left. Cost: O(pages).
    bool clear_all() { return core().clear(0); }

    /// Opens the tenant of this salt, with a quota of `quota` pages; an existing tenant gets the new quota. If there
    /// are as many tenants as the configuration allows, it takes the place of one of which no copy is left, the one
    /// with the fewest pages, whose pages are evicted. Errors: out_of_range, if all have copies. Cost: O(tenants), and
    /// for a replaced tenant O(its pages * all pages).
    [[nodiscard]] result<tenant> open_tenant(const tenant_salt& salt, std::size_t quota) {
        return core().open_tenant(salt.bytes(), quota);
    }
    /// The tenant of what belongs to no other: all who use it share what is stored.
    [[nodiscard]] tenant open_tenant() { return *core().open_tenant({}, 0); }

    [[nodiscard]] const page_shape& shape() const { return core().shape(); }
    /// The identity of the cache; of what a tenant stores, for a tenant.
    [[nodiscard]] const identity& id() const { return core().id(); }
    [[nodiscard]] identity id(const tenant& of) const { return core().id(core().number_of(of)); }
    [[nodiscard]] const codec_type& codec() const { return core().codec(); }
    [[nodiscard]] const storage_type& storage() const { return core().storage(); }
    /// The opened tier policy, with its status, counters and flush.
    [[nodiscard]] tier_type& tier() { return core().tier().tier(); }
    [[nodiscard]] const tier_type& tier() const { return core().tier().tier(); }

    /// The occupancy of the cache. In a cache with tenants it is for the operator only: it reveals the activity of all.
    [[nodiscard]] cache_stats stats() const { return core().stats(); }
    /// The occupancy of each layer group, in the layout's order: a vector of layer_group_stats.
    [[nodiscard]] auto group_stats() const requires core_type::grouped {
        const std::lock_guard guard(core().lock());
        return core().sequences().groups().stats();
    }
    /// The pages of a tenant.
    [[nodiscard]] tenant_usage stats(const tenant& of) const { return core().usage(core().number_of(of)); }

    /// Calls `f` with the observer while the cache is locked, so that no event arrives meanwhile. Returns its result.
    template <class F>
    auto with_observer(F&& f) const {
        const std::lock_guard guard(core().lock());
        return f(std::as_const(core().pages()).observer());
    }

    /// Sets the counters of the observer and of the use of the tier to zero; those of the tier itself run on.
    void reset_statistics() {
        if constexpr (has_tier)
            core().tier().reset_stats();
        const std::lock_guard guard(core().lock());
        core().pages().reset_observer();
    }

    /// Checks all invariants: each page is free, referenced or evictable; reference counts match the sequences; the
    /// index and the sequences agree about tokens. Errors: malformed, with the page. Cost: O(pages + tokens). For
    /// tests.
    [[nodiscard]] result<void> check() const { return core().check(); }

    /// The shared state, which sequences and leases point to. For the library's own code.
    [[nodiscard]] core_type& core() const {
        require(core_ != nullptr, "a cache that was moved from is only destroyed");
        return *core_;
    }

private:
    std::unique_ptr<core_type> core_;
};

/// Counters of a cache's use of its tier.
template <class Cache>
[[nodiscard]] tier_stats tier_stats_of(const Cache& cache) {
    return cache.core().tier().stats();
}

/// One paragraph for people: shape, codec, usage, identity.
template <class Cache>
[[nodiscard]] std::string describe(const Cache& cache) {
    const page_shape& shape = cache.shape();
    const cache_stats now = cache.stats();
    const auto count = [](std::size_t n, const char* of) { return std::to_string(n) + of; };
    std::string groups;
    if constexpr (requires { cache.group_stats(); })
        for (const auto& of : cache.group_stats())
            groups += "; " + describe(of);
    return detail::joined({"kvcache: ", count(shape.layers, " layers, "), count(shape.kv_heads, " KV heads of "),
                           count(shape.head_dim, ", pages of "), count(shape.tokens, " tokens and "),
                           count(now.page_bytes, " bytes ("), cache.codec().name(), "); ", count(now.pages, " pages: "),
                           count(now.in_use, " in use by "), count(now.sequences, " sequences, "),
                           count(now.evictable, " evictable, "), count(now.free, " free; identity "),
                           to_string(digest_of(cache.id())), groups});
}

}} // namespace kvcache

// ---- kvcache/codec/external.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// For pages in the host's own memory, which the cache never reads: it says how large one is and how the host lays it
/// out. Standard with storage::external.
struct external {
    using role = codec_role;
    std::size_t page_bytes = 0;            ///< Bytes of a page; 0 means keys and values of the shape in 16 bits.
    std::string layout = "the host's own"; ///< Becomes part of the identity.

    class state {
    public:
        state(std::size_t bytes, std::string layout) : bytes_(bytes), layout_(std::move(layout)) {}
        [[nodiscard]] std::size_t page_bytes() const noexcept { return bytes_; }
        [[nodiscard]] std::string name() const { return "external"; }
        [[nodiscard]] std::string layout_name() const { return layout_; }
        [[nodiscard]] std::string backend() const { return "host"; }

    private:
        std::size_t bytes_;
        std::string layout_;
    };

    [[nodiscard]] state open(page_shape shape) const {
        const std::size_t numbers = std::size_t{2} * shape.layers * shape.kv_heads * shape.head_dim * shape.tokens;
        return {page_bytes > 0 ? page_bytes : 2 * numbers, layout};
    }
};

static_assert(codec_policy<external>);

}}} // namespace kvcache::codec

// ---- kvcache/eviction/slot_lists.hpp ------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// The record of an evicted entry.
struct ghost {
    std::size_t bytes = 0;  ///< Size of the entry, rounded up to the list's grain.
    std::uint32_t mark = 0; ///< A value set by the policy.
};

/// Keys of evicted entries; the oldest is forgotten first. A ring of nodes in order of eviction, chained by hash. A key
/// is identified by 31 bits of its hash, apart from the bits that choose its chain, so about one lookup in 10^9
/// mistakes a new key for a ghost. Holes left by `take` are closed when the ring is full.
///
///     push -> [ newest . . hole . oldest ] -> forgotten        chains_[hash] -> node -> node
///
/// Cost: O(1) amortized. At most 16 bytes a ghost, 21 with marks in addition to bytes, all allocated at construction.
class ghost_list {
public:
    enum class marks { none, kept, instead_of_bytes };

    /// Capacity for `most` ghosts of `most_bytes` in total. Sizes are exact if `most_bytes` is below 4 GiB, and rounded
    /// up to a coarser grain otherwise.
    ghost_list(std::size_t most, std::size_t most_bytes, marks kind = marks::none)
        : nodes_(most == 0 ? 0 : most + most / 8 + 1),
          marks_(kind == marks::kept ? nodes_.size() : 0),
          marks_only_(kind == marks::instead_of_bytes),
          chains_(most / 2 + most / 16 + 1),
          most_(most),
          grain_(std::bit_width(most_bytes) > 32 ? static_cast<int>(std::bit_width(most_bytes)) - 32 : 0) {
        for (std::uint32_t chain = 0; chain < chains_.size(); ++chain)
            chains_[chain] = last | chain;
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_ << grain_; }

    /// Adds a key. A full list forgets its oldest key. A key that is already in the list stays there too; `take` then
    /// returns the newer of the two first.
    void push(std::uint64_t key, ghost what) noexcept {
        if (most_ == 0)
            return;
        if (size_ == most_)
            pop();
        if (used_ == nodes_.size())
            close_holes();
        const std::uint32_t at = (first_ + used_++) % capacity();
        const std::uint64_t hash = mix64(key);
        std::uint32_t& chain = chain_of(hash);
        nodes_[at] = {print(hash), marks_only_ ? what.mark : units(what.bytes), chain};
        if (!marks_.empty())
            marks_[at] = what.mark;
        chain = at;
        bytes_ += marks_only_ ? 0 : nodes_[at].units;
        ++size_;
    }

    /// Prefetches the chain in which a key is looked up.
    KVCACHE_INLINE void prefetch(std::uint64_t key) const noexcept {
        kvcache::prefetch(chains_.data(), chain_at(mix64(key)));
    }

    /// Returns whether the key is in the list.
    [[nodiscard]] bool contains(std::uint64_t key) const noexcept {
        const std::uint64_t hash = mix64(key);
        for (std::uint32_t at = chains_[chain_at(hash)]; (at & last) == 0; at = nodes_[at].next)
            if (nodes_[at].print == print(hash))
                return true;
        return false;
    }

    /// Removes a key.
    std::optional<ghost> take(std::uint64_t key) noexcept {
        const std::uint64_t hash = mix64(key);
        for (std::uint32_t* link = &chain_of(hash); (*link & last) == 0; link = &nodes_[*link].next) {
            const std::uint32_t at = *link;
            if (nodes_[at].print != print(hash))
                continue;
            *link = nodes_[at].next;
            return remove(at);
        }
        return std::nullopt;
    }

    /// The oldest ghost.
    /// Requires: the list is not empty.
    [[nodiscard]] ghost oldest() noexcept {
        trim();
        return at(first_);
    }

    /// Removes the oldest ghost.
    /// Requires: the list is not empty.
    ghost pop() noexcept {
        trim();
        prefetch_oldest();
        link_to(first_) = nodes_[first_].next;
        return remove(first_);
    }

private:
    static constexpr std::uint32_t last = 0x80000000u; // ends a chain; the low bits are its number
    static constexpr std::uint32_t hole = 0;           // no print is zero
    struct node {
        std::uint32_t print = hole;
        std::uint32_t units = 0;   // bytes, in grains; or the mark
        std::uint32_t next = last; // in its chain
    };

    [[nodiscard]] static std::uint32_t print(std::uint64_t hash) noexcept {
        return static_cast<std::uint32_t>(hash >> 32) | 1u;
    }

    [[nodiscard]] std::uint32_t capacity() const noexcept { return static_cast<std::uint32_t>(nodes_.size()); }
    [[nodiscard]] std::uint32_t units(std::size_t bytes) const noexcept {
        return static_cast<std::uint32_t>((bytes + (std::size_t{1} << grain_) - 1) >> grain_);
    }
    [[nodiscard]] ghost at(std::uint32_t index) const noexcept {
        if (marks_only_)
            return {.mark = nodes_[index].units};
        return {std::size_t{nodes_[index].units} << grain_, marks_.empty() ? 0 : marks_[index]};
    }

    // Skips the holes before the oldest ghost.
    void trim() noexcept {
        for (; used_ > 0 && nodes_[first_].print == hole; --used_)
            first_ = (first_ + 1) % capacity();
    }

    // Uses the low half of the hash: the high half is the print.
    [[nodiscard]] std::size_t chain_at(std::uint64_t hash) const noexcept {
        return static_cast<std::size_t>(((hash & 0xffffffffu) * chains_.size()) >> 32);
    }
    [[nodiscard]] std::uint32_t& chain_of(std::uint64_t hash) noexcept { return chains_[chain_at(hash)]; }

    // Prefetches what `pop` will read for ghosts 8 and 16 places ahead: a chain's next node or head.
    KVCACHE_INLINE void prefetch_oldest() const noexcept {
        if (used_ <= 16)
            return;
        const std::uint32_t far = nodes_[(first_ + 16) % capacity()].next,
                            near = nodes_[(first_ + 8) % capacity()].next;
        if ((far & last) == 0)
            kvcache::prefetch(nodes_.data(), far);
        else
            kvcache::prefetch(chains_.data(), far & ~last);
        if ((near & last) != 0 && (chains_[near & ~last] & last) == 0)
            kvcache::prefetch(nodes_.data(), chains_[near & ~last]);
    }

    // The link that points to a node. The end of a chain holds the chain's number, which gives its head.
    [[nodiscard]] std::uint32_t& link_to(std::uint32_t index) noexcept {
        std::uint32_t end = nodes_[index].next;
        while ((end & last) == 0)
            end = nodes_[end].next;
        std::uint32_t* link = &chains_[end & ~last];
        while (*link != index)
            link = &nodes_[*link].next;
        return *link;
    }

    ghost remove(std::uint32_t index) noexcept {
        const ghost removed = at(index);
        bytes_ -= marks_only_ ? 0 : nodes_[index].units;
        nodes_[index] = {};
        --size_;
        return removed;
    }

    void close_holes() noexcept {
        std::uint32_t kept = 0;
        for (std::uint32_t n = 0; n < used_; ++n) {
            const std::uint32_t from = (first_ + n) % capacity(), to = (first_ + kept) % capacity();
            if (nodes_[from].print == hole)
                continue;
            if (from != to) {
                link_to(from) = to;
                nodes_[to] = nodes_[from];
                nodes_[from] = {};
                if (!marks_.empty())
                    marks_[to] = marks_[from];
            }
            ++kept;
        }
        used_ = kept;
    }

    std::vector<node> nodes_;          // a ring of `used_` from `first_` on
    std::vector<std::uint32_t> marks_; // parallel to nodes_
    bool marks_only_;
    std::vector<std::uint32_t> chains_; // by hash
    std::size_t most_;
    std::size_t size_ = 0;
    std::uint32_t used_ = 0;
    std::size_t bytes_ = 0; // in grains
    std::uint32_t first_ = 0;
    int grain_;
};

/// Doubly linked lists of slots, each slot in at most one: rings of 32-bit links through a sentinel for each list.
///
///     front: newest <-> ... <-> oldest :back        newer() leads to the front
///
/// Cost: O(1) each. 8 bytes a slot, and 8 a list.
class slot_lists {
public:
    slot_lists(std::size_t slots, std::size_t queues)
        : links_(slots + queues), slots_(static_cast<std::uint32_t>(slots)) {
        for (std::size_t q = slots; q < links_.size(); ++q)
            links_[q] = {static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(q)};
    }

    [[nodiscard]] std::size_t slots() const noexcept { return slots_; }

    /// Returns whether the slot is in a list.
    [[nodiscard]] bool contains(slot_id slot) const noexcept { return links_[index_of(slot)].newer != nowhere; }
    [[nodiscard]] bool empty(std::uint32_t queue) const noexcept {
        return links_[slots_ + queue].newer == slots_ + queue;
    }

    /// The ends of a list.
    /// Requires: it is not empty.
    [[nodiscard]] slot_id front(std::uint32_t queue) const noexcept { return slot_id{links_[slots_ + queue].older}; }
    [[nodiscard]] slot_id back(std::uint32_t queue) const noexcept { return slot_id{links_[slots_ + queue].newer}; }

    /// The neighbor toward the front, and toward the back. Past either end `ends` is true of the result.
    [[nodiscard]] slot_id newer(slot_id slot) const noexcept { return slot_id{links_[index_of(slot)].newer}; }
    [[nodiscard]] slot_id older(slot_id slot) const noexcept { return slot_id{links_[index_of(slot)].older}; }
    [[nodiscard]] bool ends(slot_id slot) const noexcept { return index_of(slot) >= slots_; }

    /// Prefetches a slot's links, and those of its neighbors.
    KVCACHE_INLINE void prefetch(slot_id slot) const noexcept {
        kvcache::prefetch_to_write(links_.data(), index_of(slot));
    }
    KVCACHE_INLINE void prefetch_neighbours(slot_id slot) const noexcept {
        const auto [newer, older] = links_[index_of(slot)];
        kvcache::prefetch_to_write(links_.data(), newer);
        kvcache::prefetch_to_write(links_.data(), older);
    }

    /// Requires: the slot is in no list.
    void push_front(slot_id slot, std::uint32_t queue) noexcept {
        const std::uint32_t end = slots_ + queue, second = links_[end].older, at = index_of(slot);
        links_[at] = {end, second};
        links_[second].newer = at;
        links_[end].older = at;
    }

    /// Requires: the slot is in a list.
    void remove(slot_id slot) noexcept {
        link& here = links_[index_of(slot)];
        links_[here.newer].older = here.older;
        links_[here.older].newer = here.newer;
        here = {};
    }

    void move_to_front(slot_id slot, std::uint32_t queue) noexcept {
        remove(slot);
        push_front(slot, queue);
    }

    /// The oldest evictable slot of a list. Slots before it move to the front: a slot that is not evictable is in use.
    /// Cost: amortized O(1), while a fixed fraction of the slots is evictable.
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> oldest(std::uint32_t queue, IsEvictable&& is_evictable) {
        return oldest(queue, is_evictable, slots_);
    }

    /// The same among the oldest `most` slots. A later search continues where this one ended.
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> oldest(std::uint32_t queue, IsEvictable&& is_evictable, std::size_t most) {
        if (empty(queue))
            return std::nullopt;
        const slot_id last = front(queue);
        for (bool all = false; !all && most > 0; --most) {
            const slot_id slot = back(queue);
            if (is_evictable(slot))
                return slot;
            all = slot == last;
            move_to_front(slot, queue);
        }
        return std::nullopt;
    }

private:
    static constexpr std::uint32_t nowhere = 0xffffffffu;
    struct link { // a sentinel's `older` is the front, its `newer` the back
        std::uint32_t newer = nowhere;
        std::uint32_t older = nowhere;
    };

    std::vector<link> links_; // the slots, then the sentinels
    std::uint32_t slots_;
};

/// A buffer of the last few touches, for a policy that moves touched entries. Each touch waits while its memory is
/// prefetched, and touches are applied in order. Before any other operation the policy applies the remaining ones.
///
///     touch -> [ fetch: its own links .  .  reach: its neighbors' .  .  apply ]
///
/// Cost: O(1) each. 64 bytes.
class touch_buffer {
public:
    /// Adds a touch of a slot of `lists` that has a record in `entries`. Prefetches the memory of both, and of the
    /// slots next to it once half the ring is newer. `apply(slot)` applies the oldest touch once the ring is full.
    template <class Entries, class Apply>
    void add(slot_id slot, const slot_lists& lists, Entries& entries, Apply&& apply) {
        if (end_ - begin_ == ring_.size())
            apply(ring_[begin_++ % ring_.size()]);
        lists.prefetch(slot);
        prefetch_to_write(entries.data(), index_of(slot));
        ring_[end_++ % ring_.size()] = slot;
        if (end_ - begin_ > ring_.size() / 2)
            lists.prefetch_neighbours(ring_[(end_ - 1 - ring_.size() / 2) % ring_.size()]);
    }

    /// Applies all waiting touches.
    template <class Apply>
    void apply_all(Apply&& apply) {
        while (begin_ != end_)
            apply(ring_[begin_++ % ring_.size()]);
    }

private:
    std::array<slot_id, 16> ring_ = {};
    std::uint32_t begin_ = 0, end_ = 0; // number of touches applied, and added
};

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/learned_reuse.hpp ---------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Reuse ages by class of entries, and the value of keeping an entry of a given age: the expected hits per unit of
/// space and time over the best horizon (Gittins 1979; hit density, Beckmann, Chen and Cidon 2018). Ages are counted in
/// uses of any entry.
///
///     index(age) = max over h of  P(used again in (age, age + h]) / E[time until then, at most h]
///
/// Cost: O(1) to record; `learn` O(classes * bins^2) with two bins to each doubling of the longest age, to be called
/// about once per as many uses as the cache has entries.
template <std::size_t Classes>
class age_histogram {
public:
    /// Records that an entry of a class starts to wait for its next use.
    void begin(std::size_t of) noexcept { begun_[of] += 1.0; }

    /// Records that an entry of a class was used again at an age.
    void use(std::size_t of, std::uint32_t age) noexcept {
        const std::size_t b = bin(age);
        used_[of][b] += 1.0;
        ends_ = std::max(ends_, b + 1);
    }

    /// The value of an entry of a class at an age; zero before the first call of `learn`.
    [[nodiscard]] double worth(std::size_t of, std::uint32_t age) const noexcept { return index_[of][bin(age)]; }

    /// Updates the values from the records, then scales the records by `kept`.
    void learn(double kept) noexcept {
        std::array<double, bins> all{};
        double begun = 0.0;
        for (std::size_t c = 0; c < Classes; ++c) {
            begun += begun_[c];
            for (std::size_t b = 0; b < ends_; ++b)
                all[b] += used_[c][b];
        }
        for (std::size_t c = 0; c < Classes; ++c) {
            std::array<double, bins> chance{}; // a class with few records is close to the average
            for (std::size_t b = 0; b < ends_; ++b)
                chance[b] = (used_[c][b] + (begun > 0.0 ? all[b] / begun : 0.0)) / (begun_[c] + 1.0);
            index(chance, index_[c]);
        }
        for (std::size_t c = 0; c < Classes; ++c) {
            begun_[c] *= kept;
            for (double& used : used_[c])
                used *= kept;
        }
    }

private:
    static constexpr std::size_t bins = 64; // two an octave

    [[nodiscard]] static std::size_t bin(std::uint32_t age) noexcept {
        if (age < 2)
            return 0;
        const auto octave = static_cast<std::size_t>(std::bit_width(age)) - 1;
        return 2 * octave + ((age >> (octave - 1)) & 1);
    }
    [[nodiscard]] static double first_age(std::size_t b) noexcept {
        return static_cast<double>(std::uint64_t{1} << (b / 2)) * (b % 2 == 0 ? 1.0 : 1.5);
    }

    void index(const std::array<double, bins>& chance, std::array<double, bins>& out) const noexcept {
        std::array<double, bins + 1> waiting; // share of entries still waiting at the start of a bin
        waiting[0] = 1.0;
        for (std::size_t b = 0; b < ends_; ++b)
            waiting[b + 1] = std::max(1e-9, waiting[b] - chance[b]);
        for (std::size_t age = 0; age < ends_; ++age) {
            double hits = 0.0, time = 0.0, best = 0.0;
            for (std::size_t b = age; b < ends_; ++b) {
                hits += chance[b];
                time += (first_age(b + 1) - first_age(b)) * (waiting[b] + waiting[b + 1]) / 2.0;
                best = std::max(best, hits / time);
            }
            out[age] = best;
        }
    }

    std::array<double, Classes> begun_{};
    std::array<std::array<double, bins>, Classes> used_{};
    std::array<std::array<double, bins>, Classes> index_{}; // zero from ends_ on
    std::size_t ends_ = 0;                                  // bins that have records, or had some
};

/// Evicts the entry whose next use is worth the least, as learned from the reuse ages of entries with equally many
/// uses. Each class of use counts has its own LRU list. Of the ends of the lists, the entry with the fewest expected
/// hits per byte and time at its age is evicted. Ghosts, several to a slot, record uses after an eviction, so that the
/// learning does not depend on which entries the policy kept. Before anything is learned it is lru; it learns first
/// after as many uses as there are slots, 64 to 2,000.
///
///     used once     [ newest ... oldest ] -+
///     twice         [ newest ... oldest ] -+-> least worth at its age: victim -> ghosts
///     3..4, 5..8, 9 or more times   ...   -+
///
/// The index is that of Gittins 1979 for a hazard learned online; hit density by class and age is from Beckmann, Chen
/// and Cidon, "LHD", NSDI 2018, use counts beyond eviction from "LFU with history". lab/replay.md has its hit ratios.
struct learned_reuse {
    using role = eviction_role;
    std::size_t ghosts_a_slot = 4;

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 32 bytes a slot, 16 a
    /// ghost, 5 KB.
    class state {
    public:
        state(const learned_reuse& policy, eviction_capacity capacity)
            : queues_(capacity.slots, classes),
              entries_(capacity.slots),
              ghosts_(capacity.slots * policy.ghosts_a_slot, 0, ghost_list::marks::instead_of_bytes),
              period_(static_cast<std::uint32_t>(std::clamp<std::size_t>(capacity.slots, shortest, 1u << 24))),
              next_(std::min(period_, sample)) {}

        void admit(slot_id slot, const eviction_entry& newcomer) {
            apply_touches();
            known& one = entries_[index_of(slot)];
            one = {.key = newcomer.key, .bytes = static_cast<float>(std::max<std::size_t>(newcomer.bytes, 1))};
            if (const auto ghost = ghosts_.take(newcomer.key)) {
                const std::uint32_t c = ghost->mark & class_bits;
                one.uses = static_cast<std::uint8_t>(c == 0 ? 1 : (1u << (c - 1)) + 1); // the least of the class
                ages_.use(c, clock_ - (ghost->mark & ~class_bits));
            }
            use(slot);
        }

        void touch(slot_id slot) {
            touches_.add(slot, queues_, entries_, [this](slot_id one) { use_again(one); });
        }

        void on_released(slot_id slot) {
            apply_touches();
            queues_.move_to_front(slot, class_of(entries_[index_of(slot)]));
        }

        void erase(slot_id slot) {
            apply_touches();
            queues_.remove(slot);
        }

        void evict(slot_id slot) {
            apply_touches();
            const known& one = entries_[index_of(slot)];
            ghosts_.push(one.key, {.mark = (one.used & ~class_bits) | class_of(one)});
            erase(slot);
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            apply_touches();
            const auto found = least(is_evictable, patience);
            return found ? found : least(is_evictable, queues_.slots());
        }

    private:
        static constexpr std::uint32_t classes = 5, class_bits = 7;
        static constexpr std::uint32_t shortest = 64; // uses between two learnings
        static constexpr std::uint32_t sample = 2000; // uses after which records fade by a tenth, in a small cache
        static constexpr std::size_t patience = 64;   // entries checked at each end of a list before it is skipped
        struct known {
            std::uint64_t key = 0;
            float bytes = 1.0f;
            std::uint32_t used = 0; // time of the last use
            std::uint8_t uses = 0;  // up to 255
        };

        // Classes: 1, 2, 3 to 4, 5 to 8 and more uses.
        [[nodiscard]] static std::uint32_t class_of(const known& one) noexcept {
            return std::min<std::uint32_t>(static_cast<std::uint32_t>(std::bit_width(std::uint32_t{one.uses} - 1u)),
                                           classes - 1);
        }

        void apply_touches() {
            touches_.apply_all([this](slot_id slot) { use_again(slot); });
        }

        void use_again(slot_id slot) {
            const known& one = entries_[index_of(slot)];
            ages_.use(class_of(one), clock_ - one.used);
            queues_.remove(slot);
            use(slot);
        }

        void use(slot_id slot) {
            known& one = entries_[index_of(slot)];
            one.uses = static_cast<std::uint8_t>(std::min(one.uses + 1, 255));
            one.used = ++clock_;
            ages_.begin(class_of(one));
            queues_.push_front(slot, class_of(one));
            if (++since_learned_ >= next_) { // soon at first, then once per as many uses as slots
                ages_.learn(1.0 - 0.1 * static_cast<double>(since_learned_) / std::max(period_, sample));
                next_ = std::min(2 * next_, period_);
                since_learned_ = 0;
            }
        }

        // The entry of least value among the oldest and the newest evictable entry of each list. The newest wins where
        // all entries return at one age, as in a loop. An entry that is not evictable keeps its place: a parent is
        // evicted after its children.
        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> least(IsEvictable&& is_evictable, std::size_t most_asked) {
            std::optional<slot_id> found;
            double worth = 0.0;
            std::uint32_t age = 0;
            const auto consider_end = [&](std::uint32_t c, slot_id slot, auto next) {
                for (std::size_t asked = 0; !queues_.ends(slot); slot = next(slot), ++asked) {
                    if (asked == most_asked)
                        return;
                    if (!is_evictable(slot))
                        continue;
                    const known& one = entries_[index_of(slot)];
                    const std::uint32_t own_age = clock_ - one.used;
                    const double own = ages_.worth(c, own_age) / static_cast<double>(one.bytes);
                    if (!found || own < worth || (own == worth && own_age > age)) {
                        found = slot;
                        worth = own;
                        age = own_age;
                    }
                    return;
                }
            };
            for (std::uint32_t c = 0; c < classes; ++c) {
                if (queues_.empty(c))
                    continue;
                consider_end(c, queues_.back(c), [this](slot_id slot) { return queues_.newer(slot); });
                consider_end(c, queues_.front(c), [this](slot_id slot) { return queues_.older(slot); });
            }
            return found;
        }

        slot_lists queues_;
        std::vector<known> entries_;
        touch_buffer touches_;
        ghost_list ghosts_;
        age_histogram<classes> ages_;
        std::uint32_t clock_ = 0; // uses of all entries; wraps
        std::uint32_t since_learned_ = 0;
        std::uint32_t period_;
        std::uint32_t next_;
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<learned_reuse>);

}}} // namespace kvcache::eviction

// ---- kvcache/hash/xxh3.hpp ----------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace hash {

/// Chained XXH3-128 (xxhash.com), starting from the identity's digest. Fast; not collision-resistant against an
/// adversary. An index therefore compares tokens on every hit, and data that leaves the process is named by another
/// hash: the names of a tier's records are HMAC-SHA-256 (record/record_names.hpp).
struct xxh3 {
    using role = hash_role;
    std::string key = {}; ///< Secret that names and seals the records of a tier; changes no name in memory.

    class state {
    public:
        explicit state(digest root) : root_(root) {}

        [[nodiscard]] digest root() const noexcept { return root_; }

        /// Cost: about 20 ns plus 0.1 ns a token.
        [[nodiscard]] digest chain(digest before, std::span<const token_id> run) const {
            digest_builder builder;
            builder.nested(before).number(run.size());
            return builder.bytes(std::as_bytes(run)).finish();
        }

    private:
        digest root_;
    };

    [[nodiscard]] state open(const identity& id) const { return state{digest_of(id)}; }
};

static_assert(hash_policy<xxh3>);

}}} // namespace kvcache::hash

// ---- kvcache/index/page_tree.hpp ----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// Many small sets of page numbers in one array. Each page is in at most one set, and each set is ordered by the
/// caller's predicate. A set is a treap whose priorities are mixed page numbers: O(log n) expected for any order of
/// insertion. Nothing is allocated after construction. 8 bytes a page.
class sibling_order {
public:
    static constexpr std::uint32_t none = 0xffffffffu;

    /// A set, represented by the root of its treap.
    struct set {
        std::uint32_t top = none;
        [[nodiscard]] bool empty() const noexcept { return top == none; }
    };

    explicit sibling_order(std::size_t pages) : links_(pages) {}

    /// The last page for which `before(page)` holds and the first for which it does not; `none` where there is no such
    /// page. Requires: the pages for which `before` holds precede all others in the set's order.
    struct neighbours {
        std::uint32_t before = none;
        std::uint32_t after = none;
    };
    template <class Before>
    [[nodiscard]] neighbours around(const set& of, Before&& before) const {
        neighbours found;
        for (std::uint32_t at = of.top; at != none;)
            if (before(at)) {
                found.before = at;
                at = links_[at].right;
            } else {
                found.after = at;
                at = links_[at].left;
            }
        return found;
    }

    /// Inserts a page after all pages for which `before` holds. Requires: the page is in no set.
    template <class Before>
    void insert(set& into, std::uint32_t page, Before&& before) {
        std::uint32_t* at = &into.top;
        while (*at != none && priority(*at) > priority(page))
            at = before(*at) ? &links_[*at].right : &links_[*at].left;
        // The rest is split below the page: pages that sort before it to the left.
        std::uint32_t rest = *at;
        *at = page;
        std::uint32_t *left = &links_[page].left, *right = &links_[page].right;
        while (rest != none)
            if (before(rest)) {
                *left = rest;
                left = &links_[rest].right;
                rest = *left;
            } else {
                *right = rest;
                right = &links_[rest].left;
                rest = *right;
            }
        *left = *right = none;
    }

    /// Removes a page. Requires: the page is in the set, and `before` holds for exactly the pages before it.
    template <class Before>
    void erase(set& from, std::uint32_t page, Before&& before) {
        std::uint32_t* at = &from.top;
        while (*at != page)
            at = before(*at) ? &links_[*at].right : &links_[*at].left;
        std::uint32_t left = links_[page].left, right = links_[page].right;
        while (left != none && right != none)
            if (priority(left) > priority(right)) {
                *at = left;
                at = &links_[left].right;
                left = *at;
            } else {
                *at = right;
                at = &links_[right].left;
                right = *at;
            }
        *at = left != none ? left : right;
        links_[page] = {};
    }

private:
    struct link {
        std::uint32_t left = none;
        std::uint32_t right = none;
    };

    // A mixed page number (a bijection, so no two priorities are equal).
    [[nodiscard]] static constexpr std::uint32_t priority(std::uint32_t page) noexcept {
        page = (page ^ (page >> 16)) * 0x7feb352du;
        page = (page ^ (page >> 15)) * 0x846ca68bu;
        return page ^ (page >> 16);
    }

    std::vector<link> links_;
};

/// A tree of pages, each with the run of tokens it holds and the page that it continues. Siblings are ordered by their
/// runs, so the one that shares most with a query is next to the query's position. Every step is exact at any token,
/// also inside a page, and costs O(log siblings). All memory is allocated at construction: 4 bytes a token, 20 a page.
class page_tree {
public:
    static constexpr std::uint32_t none = sibling_order::none;

    page_tree(page_shape shape, std::size_t pages)
        : page_tokens_(shape.tokens), tokens_(pages * page_tokens_), nodes_(pages), order_(pages) {}

    [[nodiscard]] std::size_t page_tokens() const noexcept { return page_tokens_; }
    [[nodiscard]] bool contains(page_id page) const { return nodes_[index_of(page)].count > 0; }
    [[nodiscard]] bool full(page_id page) const { return nodes_[index_of(page)].count == page_tokens_; }
    [[nodiscard]] bool leaf(page_id page) const { return nodes_[index_of(page)].children.empty(); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const {
        const std::uint32_t above = nodes_[index_of(page)].parent;
        return above == none ? std::nullopt : std::optional(page_id{above});
    }

    /// The tokens of a page; empty for a page that is not in the tree.
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return run_of(index_of(page)); }

    /// Requires: the parent is in the tree and full. The run has 1 to page-tokens tokens; if the page is already in the
    /// tree, one of the two runs is a prefix of the other.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        expects(!tokens.empty() && tokens.size() <= page_tokens_, "a page's run has one to page-size tokens");
        expects(!parent || (contains(*parent) && full(*parent)), "a parent is indexed and full");
        node& own = nodes_[index_of(page)];
        if (own.count >= tokens.size())
            return {insertion::outcome::covered, page};
        const std::uint32_t above = parent ? index_of(*parent) : none;
        const auto near = order_.around(children(above), before(tokens));
        if (near.after != none && starts_with(run_of(near.after), tokens))
            return {insertion::outcome::covered, page_id{near.after}};

        insertion done{own.count > 0 ? insertion::outcome::extended : insertion::outcome::inserted};
        if (own.count > 0) {
            unlink(index_of(page));
        } else if (near.before != none && starts_with(tokens, run_of(near.before))) {
            done.other = page_id{near.before}; // a page with a prefix of the run is replaced
            erase(page_id{near.before});
        }
        order_.insert(children(above), index_of(page), before(tokens));
        std::copy(tokens.begin(), tokens.end(), tokens_.data() + index_of(page) * page_tokens_);
        own.count = static_cast<std::uint32_t>(tokens.size());
        own.parent = above;
        return done;
    }

    /// Requires: the page is a leaf of the tree.
    void erase(page_id page) {
        node& own = nodes_[index_of(page)];
        expects(own.count > 0 && own.children.empty(), "only a leaf leaves the index");
        unlink(index_of(page));
        own = {};
    }

    /// Returns whether a page is in the tree, full, holds exactly this run and has `last` (or none) as its parent.
    [[nodiscard]] bool continues(std::uint32_t page, std::uint32_t last, std::span<const token_id> run) const {
        return nodes_[page].count == page_tokens_ && nodes_[page].parent == last &&
               std::memcmp(tokens_.data() + page * page_tokens_, run.data(), run.size_bytes()) == 0;
    }

    /// Prefetches the memory that `continues` will read.
    void expect(std::uint32_t page) const noexcept {
        prefetch(nodes_.data(), page);
        for (std::size_t i = 0; i < page_tokens_; i += line_bytes / sizeof(token_id))
            prefetch(tokens_.data(), page * page_tokens_ + i);
    }

    /// Extends a match by one page, whole or in part: the child of the last page that shares most with the query, which
    /// has at most a page's length. Returns whether a whole page matched; if not, the match holds the reason.
    bool step(index_match& found, std::span<const token_id> query) const {
        const sibling_order::set& level = found.pages.empty() ? roots_ : nodes_[index_of(found.pages.back())].children;
        if (query.empty())
            found.end = match_end::complete;
        if (query.empty() || level.empty())
            return false;
        // In lexicographic order, no sibling shares more with a query than its two neighbors.
        const auto near = order_.around(level, before(query));
        const auto shared = [&](std::uint32_t page) { return page == none ? 0 : common(run_of(page), query); };
        const std::size_t earlier = shared(near.before), later = shared(near.after);
        const std::uint32_t best = near.after != none && later >= earlier ? near.after : near.before;
        const std::size_t same = std::max(earlier, later);
        if (same > 0) {
            found.pages.push_back(page_id{best});
            found.tokens += same;
        }
        if (same == page_tokens_)
            return true;
        const auto stored = run_of(best);
        found.end = same == query.size()   ? match_end::complete
                    : same < stored.size() ? match_end::different
                                           : match_end::unknown;
        if (found.end == match_end::different)
            found.stored = stored[same];
        return false;
    }

private:
    struct node {
        sibling_order::set children = {};
        std::uint32_t parent = none;
        std::uint32_t count = 0;
    };

    // True for the pages whose runs sort before these tokens.
    struct comes_before {
        const page_tree* tree;
        std::span<const token_id> tokens;
        bool operator()(std::uint32_t page) const {
            const std::span<const token_id> run = tree->run_of(page);
            const std::size_t same = common(run, tokens);
            return same < tokens.size() && (same == run.size() || run[same] < tokens[same]);
        }
    };
    [[nodiscard]] comes_before before(std::span<const token_id> tokens) const { return {this, tokens}; }

    // The length of the common prefix.
    [[nodiscard]] static std::size_t common(std::span<const token_id> a, std::span<const token_id> b) {
        const std::size_t both = std::min(a.size(), b.size());
        std::size_t same = 0;
        while (same < both && a[same] == b[same])
            ++same;
        return same;
    }
    [[nodiscard]] static bool starts_with(std::span<const token_id> whole, std::span<const token_id> start) {
        return common(whole, start) == start.size();
    }

    [[nodiscard]] std::span<const token_id> run_of(std::uint32_t page) const {
        return {tokens_.data() + page * page_tokens_, nodes_[page].count};
    }
    [[nodiscard]] sibling_order::set& children(std::uint32_t above) {
        return above == none ? roots_ : nodes_[above].children;
    }

    void unlink(std::uint32_t page) { order_.erase(children(nodes_[page].parent), page, before(run_of(page))); }

    std::size_t page_tokens_;
    aligned_vector<token_id> tokens_; // (pages, page_tokens)
    aligned_vector<node> nodes_;      // by page
    sibling_order order_;             // children of each page, and the roots
    sibling_order::set roots_;
};

/// A lossy table from hashes to pages. A hash maps to one cache line of eight entries; a page that finds them all taken
/// is not stored, and of two pages under one hash `find` may return either. The caller therefore compares and has a
/// fallback. Nothing is allocated after construction. 16 bytes a page.
class page_hints {
public:
    static constexpr std::uint32_t none = page_tree::none;

    explicit page_hints(std::size_t pages) : lines_(2 * pages / places + 1) {}

    /// A page stored under this hash or under one with the same tag; `none` if there is none.
    [[nodiscard]] std::uint32_t find(std::uint64_t hash) const noexcept {
        const line& at = lines_[home(hash)];
        std::uint32_t found = none; // branch-free: the position is unpredictable
        for (std::size_t i = 0; i < places; ++i)
            found = std::min(found, at.tags[i] == tag(hash) ? at.pages[i] : none);
        return found;
    }

    /// Prefetches the line that `find` will read.
    void expect(std::uint64_t hash) const noexcept { prefetch(lines_.data(), home(hash)); }

    /// Stores a page if there is a free entry. Requires: page != none.
    void insert(std::uint64_t hash, std::uint32_t page) noexcept { replace(hash, none, tag(hash), page); }

    /// Removes a page that may have been stored under this hash.
    void erase(std::uint64_t hash, std::uint32_t page) noexcept { replace(hash, page, 0, none); }

    /// The longest known prefix of a prompt. `chain(past, run)` continues the hash of a prefix by a page.
    template <class Chain>
    void match(const page_tree& tree, const Chain& chain, std::span<const token_id> tokens, index_match& found) const {
        std::uint64_t hash = 0;
        const std::size_t length = tree.page_tokens(), whole = tokens.size() / length;
        for (std::size_t first = 0; first < whole; first += ahead) {
            const std::size_t pages = std::min(ahead, whole - first);
            const auto run = [&](std::size_t i) { return tokens.subspan((first + i) * length, length); };
            std::array<std::uint64_t, ahead> hashes;
            std::array<std::uint32_t, ahead> hints;
            for (std::size_t i = 0; i < pages; ++i) {
                hashes[i] = hash = chain(hash, run(i));
                expect(hash);
            }
            for (std::size_t i = 0; i < pages; ++i)
                if (hints[i] = find(hashes[i]); hints[i] != none)
                    tree.expect(hints[i]);
            if (first == 0 && hints[0] != none)
                found.pages.reserve(whole + 1);
            for (std::size_t i = 0; i < pages; ++i) {
                const std::uint32_t last = found.pages.empty() ? none : index_of(found.pages.back());
                if (hints[i] != none && tree.continues(hints[i], last, run(i))) {
                    found.pages.push_back(page_id{hints[i]});
                    found.tokens += length;
                } else if (!tree.step(found, run(i))) {
                    return;
                }
            }
        }
        tree.step(found, tokens.subspan(whole * length));
    }

private:
    static constexpr std::size_t places = 8;
    static constexpr std::size_t ahead = 16; // pages: about as many as the cache misses a core can have in flight

    struct alignas(line_bytes) line {
        line() { pages.fill(none); }
        std::array<std::uint32_t, places> tags = {};
        std::array<std::uint32_t, places> pages;
    };

    [[nodiscard]] static std::uint32_t tag(std::uint64_t hash) noexcept { return static_cast<std::uint32_t>(hash); }
    [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept {
        return static_cast<std::size_t>((hash >> 32) * lines_.size() >> 32);
    }

    void replace(std::uint64_t hash, std::uint32_t old, std::uint32_t new_tag, std::uint32_t page) noexcept {
        line& at = lines_[home(hash)];
        const auto place =
            static_cast<std::size_t>(std::find(at.pages.begin(), at.pages.end(), old) - at.pages.begin());
        if (place < places) {
            at.tags[place] = new_tag;
            at.pages[place] = page;
        }
    }

    aligned_vector<line> lines_;
};

/// An index of a page tree whose full pages are also found by the chained hash of all tokens up to their end. Equal
/// hashes only make candidates: Lookup compares them with the tree. Lookup holds the pages by hash, with `insert(hash,
/// page)`, `erase(hash, page)` and `match(tree, chain, tokens, found)`, where `chain(past, run)` continues a hash. All
/// memory is allocated at construction: that of the tree and of Lookup, and 8 bytes a page.
template <class Lookup>
class hashed_tree {
public:
    /// `hash_bits`: the bits of a hash that are used; 64 or more for all.
    hashed_tree(unsigned hash_bits, page_shape shape, std::size_t pages)
        : used_bits_(hash_bits >= 64 ? ~std::uint64_t{} : (std::uint64_t{1} << hash_bits) - 1),
          tree_(shape, pages),
          lookup_(pages),
          hashes_(pages) {}

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const {
        index_match found;
        match(tokens, found);
        return found;
    }
    /// The same in the memory of another match.
    void match(std::span<const token_id> tokens, index_match& found) const {
        found.pages.clear();
        found.tokens = 0;
        found.end = match_end::unknown;
        found.stored.reset();
        lookup_.match(
            tree_, [this](std::uint64_t past, std::span<const token_id> run) { return chain(past, run); }, tokens,
            found);
    }

    /// Requires: the parent is in the index and full. The run has 1 to page-tokens tokens; if the page is already in
    /// the index, one of the two runs is a prefix of the other.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        const insertion done = tree_.insert(parent, tokens, page);
        if (done.what != insertion::outcome::covered && tree_.full(page)) {
            const std::uint64_t hash = chain(parent ? hashes_[index_of(*parent)] : 0, tokens);
            hashes_[index_of(page)] = hash;
            lookup_.insert(hash, index_of(page));
        }
        return done;
    }

    /// Requires: the page is a leaf of the index.
    void erase(page_id page) {
        const bool hashed = tree_.full(page);
        tree_.erase(page);
        if (hashed)
            lookup_.erase(hashes_[index_of(page)], index_of(page));
    }

    [[nodiscard]] bool contains(page_id page) const { return tree_.contains(page); }
    [[nodiscard]] bool leaf(page_id page) const { return tree_.leaf(page); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const { return tree_.parent(page); }

    /// The tokens of a page in the index; empty for other pages.
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return tree_.run(page); }

private:
    [[nodiscard]] std::uint64_t chain(std::uint64_t past, std::span<const token_id> run) const {
        return seeded_hash(past, std::as_bytes(run)) & used_bits_;
    }

    std::uint64_t used_bits_;
    page_tree tree_;
    Lookup lookup_;                     // full pages
    std::vector<std::uint64_t> hashes_; // by full page: hash of all tokens up to its end
};

}}} // namespace kvcache::index

// ---- kvcache/index/radix.hpp --------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// A radix tree of pages. A node is a page with the run of tokens it holds; its children continue it, ordered by their
/// runs, so a match is exact at any token, also inside a page. In addition, a hint table maps the chained hash of all
/// tokens up to the end of a full page to that page. A prompt's hashes do not depend on its pages, so the cache lines
/// of 16 steps are prefetched at once. A hint is compared with the tree before it counts; without a hint the tree is
/// searched.
///
///     root -+- [The cat sat on] -+- [the mat .]      a partial page is a leaf
///           |                    +- [the mouse]
///           +- [The dog]                             hints: h(The cat sat on) -> its page
///
/// Cost: match O(n) expected, at most O(n log siblings); insert and erase O(page tokens * log siblings). 4 bytes a
/// token, 44 a page.
struct radix {
    using role = index_role;
    using state = hashed_tree<page_hints>;
    unsigned hash_bits = 64; ///< Bits of a hash that are used; with fewer, more pages are searched in the tree.
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const { return {hash_bits, shape, pages}; }
};

static_assert(index_policy<radix>);

}}} // namespace kvcache::index

// ---- kvcache/recompute/exact_prefix.hpp ---------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Reuses the longest cached prefix and computes the rest. A full hit is shortened by one token, so that logits are
/// always computed. Exact: the result is bit-identical to computing every token.
struct exact_prefix {
    using role = recompute_role;

    class state {
    public:
        [[nodiscard]] std::size_t first_computed(std::size_t hit, std::size_t total) const noexcept {
            return total == 0 ? 0 : std::min(hit, total - 1);
        }
    };

    [[nodiscard]] state open(page_shape) const { return {}; }
};

static_assert(recompute_policy<exact_prefix>);

}}} // namespace kvcache::recompute

// ---- kvcache/storage/heap.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

/// Allocates pages from a memory resource on first use, cache-line aligned and zeroed, and keeps them until the cache
/// closes. A large capacity is allocated in slabs of adjacent pages, on huge pages where the system has them. A slab is
/// at most an eighth of the capacity, so memory that is never needed is never allocated. If a slab cannot be allocated,
/// its pages are allocated one by one. A cache of layer groups gives the memory of each freed page back.
struct heap {
    using role = storage_role;
    pmr::memory_resource* resource = nullptr; ///< Source of the memory; null means zeroed_memory.
    bool zeroed = false; ///< Whether the resource returns zeroed memory, so that pages are not cleared here.
    /// Whether the memory of a freed page is kept for the next one. If not, pages are allocated one by one, and freed.
    bool keep = true;

    class state {
    public:
        /// `how` has a resource.
        state(const heap& how, std::size_t pages, std::size_t page_bytes)
            : resource_(how.resource),
              zeroed_(how.zeroed),
              keep_(how.keep),
              page_bytes_(page_bytes),
              stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes),
              slab_pages_(keep_ ? pages_a_slab(pages, stride_) : 0),
              pages_(pages, nullptr),
              slabs_(slab_pages_ == 0 ? 0 : (pages + slab_pages_ - 1) / slab_pages_) {}

        state(state&& other) noexcept
            : resource_(other.resource_),
              zeroed_(other.zeroed_),
              keep_(other.keep_),
              page_bytes_(other.page_bytes_),
              stride_(other.stride_),
              slab_pages_(other.slab_pages_),
              pages_(std::exchange(other.pages_, {})),
              slabs_(std::exchange(other.slabs_, {})) {}
        state& operator=(state&& other) noexcept {
            std::swap(resource_, other.resource_);
            std::swap(zeroed_, other.zeroed_);
            std::swap(keep_, other.keep_);
            std::swap(page_bytes_, other.page_bytes_);
            std::swap(stride_, other.stride_);
            std::swap(slab_pages_, other.slab_pages_);
            std::swap(pages_, other.pages_);
            std::swap(slabs_, other.slabs_);
            return *this;
        }

        ~state() {
            for (std::size_t page = 0; page < pages_.size(); ++page)
                if (pages_[page] != nullptr && slab_of(page) == nullptr)
                    resource_->deallocate(pages_[page], page_bytes_, line_bytes);
            for (std::size_t i = 0; i < slabs_.size(); ++i)
                if (slabs_[i].memory != nullptr)
                    resource_->deallocate(slabs_[i].memory, slab_bytes(i), huge_page_bytes);
        }

        /// Returns false if the resource is out of memory.
        [[nodiscard]] bool acquire(page_id page) {
            void*& memory = pages_[index_of(page)];
            if (memory != nullptr)
                return true;
            if (!detail::completes<std::bad_alloc>([&] { memory = place(index_of(page)); }))
                return false;
            if (!zeroed_)
                std::memset(memory, 0, page_bytes_);
            return true;
        }

        void release(page_id page) noexcept {
            if (!keep_)
                resource_->deallocate(std::exchange(pages_[index_of(page)], nullptr), page_bytes_, line_bytes);
        }

        [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
            return {static_cast<std::byte*>(pages_[index_of(page)]), page_bytes_};
        }

    private:
        struct slab {
            std::byte* memory = nullptr;
            bool refused = false; // sticky: its pages are then allocated one by one
        };

        // A slab has 16 huge pages, so the part at its end that lies on small pages is at most 1/16. Zero for a
        // capacity so small that a slab would not fill two huge pages.
        [[nodiscard]] static std::size_t pages_a_slab(std::size_t pages, std::size_t stride) noexcept {
            const std::size_t most = 16 * huge_page_bytes / std::max<std::size_t>(stride, 1);
            const std::size_t fit = std::min(std::max<std::size_t>(most, 1), pages / 8);
            return alignment_for(fit * stride) == huge_page_bytes ? fit : 0;
        }

        [[nodiscard]] std::size_t slab_bytes(std::size_t index) const noexcept {
            return std::min(slab_pages_, pages_.size() - index * slab_pages_) * stride_;
        }

        [[nodiscard]] std::byte* slab_of(std::size_t page) const noexcept {
            return slabs_.empty() ? nullptr : slabs_[page / slab_pages_].memory;
        }

        // Throws: std::bad_alloc, if neither a slab nor a page can be allocated.
        [[nodiscard]] void* place(std::size_t page) {
            if (!slabs_.empty()) {
                slab& own = slabs_[page / slab_pages_];
                if (own.memory == nullptr && !own.refused)
                    take(own, slab_bytes(page / slab_pages_));
                if (own.memory != nullptr)
                    return own.memory + page % slab_pages_ * stride_;
            }
            return resource_->allocate(page_bytes_, line_bytes);
        }

        void take(slab& own, std::size_t bytes) {
            own.refused = !detail::completes<std::bad_alloc>([&] {
                own.memory = static_cast<std::byte*>(resource_->allocate(bytes, huge_page_bytes));
                want_huge_pages(own.memory, bytes);
            });
        }

        pmr::memory_resource* resource_;
        bool zeroed_; // whether the resource returns zeroed memory
        bool keep_;   // whether freed pages keep their memory
        std::size_t page_bytes_;
        std::size_t stride_;     // distance between pages of a slab, in bytes
        std::size_t slab_pages_; // 0: pages are allocated one by one
        std::vector<void*> pages_;
        std::vector<slab> slabs_;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        heap how = *this;
        if (resource == nullptr) {
            how.resource = zeroed_memory::shared();
            how.zeroed = true;
        }
        return {how, pages, page_bytes};
    }
};

static_assert(storage_policy<heap>);

}}} // namespace kvcache::storage

// ---- kvcache/cache/compose.hpp ------------------------------------------------------------------------------------

// Policies that cannot be composed, and why, in words. A misuse is the type of the cache that such policies would make.
// It has the members of a standard cache, so that the message is the only error. Compilers print the names of the
// policies as arguments of the misuse, and each static_assert prints the policy again.

namespace kvcache { inline namespace KVCACHE_ABI {
namespace detail {

/// Satisfied if a policy has everything that its role requires.
template <class P>
concept complete_policy =
    codec_policy<P> || storage_policy<P> || hash_policy<P> || index_policy<P> || eviction_policy<P> ||
    recompute_policy<P> || tier_policy<P> || observer_policy<P> || locking_policy<P> || layers_policy<P>;

// The policy among Ps that plays Role, or Standard if none does.
template <class Role, class Standard, class... Ps>
struct slot {
    using type = Standard;
};
template <class Role, class Standard, class P, class... Ps>
struct slot<Role, Standard, P, Ps...> : slot<Role, Standard, Ps...> {};
template <class Role, class Standard, plays<Role> P, class... Ps>
struct slot<Role, Standard, P, Ps...> {
    using type = P;
};

// The standard cache; its argument only delays the lookup.
template <class>
struct standard_cache;

// `Holds`, printed with the names of the policies in question.
template <bool Holds, class... Ps>
inline constexpr bool holds_for = Holds;

// The state that a policy opens, or void.
template <class P, class... Arguments>
struct state_of {
    using type = void;
};
template <class P, class... Arguments>
    requires requires {
        typename opened_by<P, Arguments...>;
    }
struct state_of<P, Arguments...> {
    using type = opened_by<P, Arguments...>;
};

struct
    the_fields_are_shape_of_layers_kv_heads_head_dim_and_tokens_limit_of_pages_and_bytes_id_tenants_merge_equal_pages_and_fair_tenants;

/// Arguments that make_cache does not take.
template <class Fields>
struct unknown_arguments : standard_cache<Fields>::type {
    static_assert(holds_for<false, Fields>, "make_cache takes {.shape = {.layers, .kv_heads, .head_dim, .tokens}, "
                                            ".limit = {.bytes, .pages}, .id, .tenants, "
                                            ".merge_equal_pages, .fair_tenants} and policies");
};

/// A type without a role, or with an unknown one.
template <class P>
struct names_no_role : standard_cache<P>::type {
    static_assert(holds_for<false, P>,
                  "a policy names its role, one of core/role.hpp: using role = kvcache::eviction_role;");
};

/// Two policies for one role.
template <class Role, class A, class B>
struct both_play : standard_cache<A>::type {
    static_assert(holds_for<false, Role, A, B>,
                  "two policies both play the same role; a cache has one policy for each role");
};

/// A policy that lacks a member that its role requires. The first one that is missing is reported.
template <class Role, class P>
struct incomplete;

template <class P>
struct incomplete<codec_role, P> : standard_cache<P>::type {
    using state = typename state_of<P, page_shape>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool sized = opens && requires(const state s) {
        { s.page_bytes() } -> std::same_as<std::size_t>;
        { s.name() } -> std::same_as<std::string>;
    };
    static constexpr bool keys =
        sized && requires(const state s, std::span<const std::byte> page, page_tile at, std::span<float> to) {
        { s.keys(page, at, to) } -> std::same_as<const float*>;
    };
    static constexpr bool values =
        keys && requires(const state s, std::span<const std::byte> page, page_tile at, std::span<float> to) {
        { s.values(page, at, to) } -> std::same_as<const float*>;
    };
    static_assert(holds_for<opens, P>, "a codec needs: state open(page_shape) const");
    static_assert(holds_for < !opens || sized, P >,
                  "a codec's state needs: std::size_t page_bytes() const; std::string name() const");
    static_assert(holds_for < !sized || keys, P >,
                  "a codec's state needs: const float* keys(std::span<const std::byte> "
                  "page, page_tile, std::span<float> scratch) const");
    static_assert(holds_for < !keys || values, P >,
                  "a codec's state needs: const float* values(std::span<const std::byte> "
                  "page, page_tile, std::span<float> scratch) const");
    static_assert(holds_for<!values, P>,
                  "a codec's state needs encode and copy of a row_writer, or all of a page_writer "
                  "(codec/concept.hpp)");
};

template <class P>
struct incomplete<storage_role, P> : standard_cache<P>::type {
    using state = typename state_of<P, std::size_t, std::size_t>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool moves = opens && std::movable<state>;
    static constexpr bool acquires = moves && requires(state s, page_id page) {
        { s.acquire(page) } -> std::same_as<bool>;
    };
    static constexpr bool releases = acquires && requires(state s, page_id page) {
        { s.release(page) }
        noexcept;
    };
    static_assert(holds_for<opens, P>, "a storage needs: state open(std::size_t pages, std::size_t page_bytes) const");
    static_assert(holds_for < !opens || moves, P >, "a storage's state is movable");
    static_assert(holds_for < !moves || acquires, P >, "a storage's state needs: bool acquire(page_id)");
    static_assert(holds_for < !acquires || releases, P >, "a storage's state needs: void release(page_id) noexcept");
    static_assert(holds_for<!releases, P>, "a storage's state needs: std::span<std::byte> bytes(page_id) const");
};

template <class P>
struct incomplete<hash_role, P> : standard_cache<P>::type {
    using state = typename state_of<P, identity>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool roots = opens && requires(const state s) {
        { s.root() } -> std::same_as<digest>;
    };
    static_assert(holds_for<opens, P>, "a hash needs: state open(const identity&) const");
    static_assert(holds_for < !opens || roots, P >, "a hash's state needs: digest root() const");
    static_assert(holds_for<!roots, P>,
                  "a hash's state needs: digest chain(digest before, std::span<const token_id> run) const");
};

template <class P>
struct incomplete<index_role, P> : standard_cache<P>::type {
    using state = typename state_of<P, page_shape, std::size_t>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool matches = opens && requires(const state c, std::span<const token_id> tokens) {
        { c.match(tokens) } -> std::same_as<index_match>;
    };
    static constexpr bool inserts =
        matches && requires(state s, std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        { s.insert(parent, tokens, page) } -> std::same_as<insertion>;
        s.erase(page);
    };
    static constexpr bool looks_up = inserts && requires(const state c, page_id page) {
        { c.contains(page) } -> std::same_as<bool>;
        { c.leaf(page) } -> std::same_as<bool>;
    };
    static constexpr bool has_parents = looks_up && requires(const state c, page_id page) {
        { c.parent(page) } -> std::same_as<std::optional<page_id>>;
    };
    static_assert(holds_for<opens, P>, "an index needs: state open(page_shape, std::size_t pages) const");
    static_assert(holds_for < !opens || matches, P >,
                  "an index's state needs: index_match match(std::span<const token_id>) const");
    static_assert(holds_for < !matches || inserts, P >,
                  "an index's state needs: insertion insert(std::optional<page_id> parent, std::span<const token_id>, "
                  "page_id); void erase(page_id)");
    static_assert(holds_for < !inserts || looks_up, P >,
                  "an index's state needs: bool contains(page_id) const; bool leaf(page_id) const");
    static_assert(holds_for < !looks_up || has_parents, P >,
                  "an index's state needs: std::optional<page_id> parent(page_id) const");
    static_assert(holds_for<!has_parents, P>, "an index's state needs: std::span<const token_id> run(page_id) const");
};

template <class P>
struct incomplete<eviction_role, P> : standard_cache<P>::type {
    using state = typename state_of<P, eviction_capacity>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool admits = opens && requires(state s, slot_id slot, const eviction_entry& entry) {
        s.admit(slot, entry);
    };
    static constexpr bool touches = admits && requires(state s, slot_id slot) { s.touch(slot); };
    static constexpr bool erases = touches && requires(state s, slot_id slot) { s.erase(slot); };
    static_assert(holds_for<opens, P>, "an eviction policy needs: state open(eviction_capacity) const");
    static_assert(holds_for < !opens || admits, P >,
                  "an eviction state needs: void admit(slot_id, const eviction_entry&)");
    static_assert(holds_for < !admits || touches, P >, "an eviction state needs: void touch(slot_id)");
    static_assert(holds_for < !touches || erases, P >, "an eviction state needs: void erase(slot_id)");
    static_assert(holds_for<!erases, P>,
                  "an eviction state needs: std::optional<slot_id> victim(const auto& is_evictable)");
};

template <class P>
struct incomplete<recompute_role, P> : standard_cache<P>::type {
    static constexpr bool opens = !std::is_void_v<typename state_of<P, page_shape>::type>;
    static_assert(holds_for<opens, P>, "a recompute policy needs: state open(page_shape) const");
    static_assert(holds_for<!opens, P>,
                  "a recompute state needs: std::size_t first_computed(std::size_t hit, std::size_t total) const");
};

template <class P>
struct incomplete<tier_role, P> : standard_cache<P>::type {
    using state = typename state_of<P>::type;
    static constexpr bool opens = !std::is_void_v<state>;
    static constexpr bool moves = opens && std::movable<state>;
    static constexpr bool reads = moves && requires(state s, const sha256_digest& name, const tier_use& use) {
        { s.read(name, use) } -> std::same_as<result<bool>>;
        { s.contains(name) } -> std::same_as<bool>;
    };
    static constexpr bool writes = reads && requires(state s, const tier_entry& entry, const sha256_digest& name,
                                                     std::span<const std::span<const std::byte>> pieces) {
        { s.put(entry, pieces) } -> std::same_as<result<void>>;
        { s.erase(name) } -> std::same_as<result<void>>;
        { s.flush() } -> std::same_as<result<void>>;
    };
    static_assert(holds_for<opens, P>, "a tier needs: state open() const");
    static_assert(holds_for < !opens || moves, P >, "a tier's state is movable");
    static_assert(holds_for < !moves || reads, P >,
                  "a tier's state needs: result<bool> read(const sha256_digest&, const auto& use); bool contains(const "
                  "sha256_digest&)");
    static_assert(holds_for < !reads || writes, P >,
                  "a tier's state needs: result<void> put(const tier_entry&, std::span<const std::span<const "
                  "std::byte>>); result<void> erase(const sha256_digest&); result<void> flush()");
    static_assert(holds_for<!writes, P>,
                  "a tier's state needs: result<void> status() const; tier_counts counts() const");
};

template <class P>
struct incomplete<observer_role, P> : standard_cache<P>::type {
    static constexpr bool opens = !std::is_void_v<typename state_of<P>::type>;
    static_assert(holds_for<opens, P>, "an observer needs: state open() const");
    static_assert(holds_for<!opens, P>, "an observer's state needs: void on(const event&)");
};

template <class P>
struct incomplete<layers_role, P> : standard_cache<P>::type {
    static_assert(holds_for<false, P>, "the layers of a cache are layers::uniform or layers::grouped");
};

template <class P>
struct incomplete<locking_role, P> : standard_cache<P>::type {
    static_assert(holds_for<false, P>, "a locking policy needs a type `state` with a default constructor, void lock() "
                                       "and void unlock()");
};

/// The first misuse among the policies. Requires: there is one.
template <class P, class... Ps>
struct first_misuse {
    using type = typename first_misuse<Ps...>::type;
};
template <class P, class... Ps>
    requires(!policy<P>)
struct first_misuse<P, Ps...> {
    using type = names_no_role<P>;
};
template <policy P, class... Ps>
    requires(!complete_policy<P>)
struct first_misuse<P, Ps...> {
    using type = incomplete<typename role_of<P>::type, P>;
};
template <complete_policy P, class... Ps>
    requires(plays<Ps, typename role_of<P>::type> || ...)
struct first_misuse<P, Ps...> {
    using type = both_play<typename role_of<P>::type, P, typename slot<typename role_of<P>::type, void, Ps...>::type>;
};

} // namespace detail

namespace storage {
struct external;
}

namespace detail {

template <class P, class... Ps>
inline constexpr bool alone = (0 + ... + int(plays<Ps, typename role_of<P>::type>)) == 1;

} // namespace detail

/// Satisfied if no two policies play the same role.
template <class... Ps>
concept one_policy_a_role = (detail::alone<Ps, Ps...> && ...);

namespace detail {

// The codec of a cache that is given none.
template <class Storage>
struct standard_codec {
    using type = codec::f32;
};
template <>
struct standard_codec<kvcache::storage::external> {
    using type = codec::external;
};

// Policies that cannot be composed: the type says why.
template <class... Ps>
struct compose : first_misuse<Ps...> {};

template <complete_policy... Ps>
    requires one_policy_a_role<Ps...>
struct compose<Ps...> {
    using storage = typename slot<storage_role, kvcache::storage::heap, Ps...>::type;
    using policies = cache_policies<
        typename slot<codec_role, typename standard_codec<storage>::type, Ps...>::type, storage,
        typename slot<hash_role, hash::xxh3, Ps...>::type, typename slot<index_role, index::radix, Ps...>::type,
        typename slot<eviction_role, eviction::learned_reuse, Ps...>::type,
        typename slot<recompute_role, recompute::exact_prefix, Ps...>::type,
        typename slot<tier_role, tier::none, Ps...>::type, typename slot<observer_role, observer::none, Ps...>::type,
        typename slot<locking_role, locking::none, Ps...>::type,
        typename slot<layers_role, layers::uniform, Ps...>::type>;
    using type = basic_cache<policies>;
};

template <class>
struct standard_cache {
    using type = typename compose<>::type;
};

template <class T, class... Us>
inline constexpr bool one_of = (std::is_same_v<T, Us> || ...);

// The policy of type Wanted among the given ones, or one with its standard options.
template <class Wanted, class... Given>
[[nodiscard]] constexpr Wanted take(const std::tuple<Given...>& given) {
    if constexpr (one_of<Wanted, Given...>)
        return std::get<Wanted>(given);
    else
        return Wanted{};
}

// Checks what a cache is opened for. Errors: those of open_cache, except a failed allocation.
template <class Cache, class Codec, class Storage, class Layers>
[[nodiscard]] result<void> check_config(const cache_config& config, const Codec& codec,
                                        [[maybe_unused]] const Storage& storage, const Layers& layers) {
    if constexpr (requires { layers.layout; })
        if (auto right = check_layers<typename Cache::core_type>(layers, config.limit); !right)
            return right;
    const page_shape shape = shape_of(config.shape, layers);
    if (!has_pages_of<typename Cache::codec_type>(shape))
        return error{error_code::out_of_range, "shape", shape_rule<typename Cache::codec_type>};
    if (Cache::has_tier && config.id == identity{})
        return error{error_code::mismatched, "identity", "a cache with a tier has an identity"};
    const std::size_t page_bytes = codec.open(shape).page_bytes(),
                      pages = pages_in(config.limit, layers, codec, page_bytes);
    if (pages == 0)
        return error{error_code::out_of_range, "limit",
                     joined({"a limit of ", std::to_string(config.limit.bytes),
                             " bytes is less than one page, which has ", std::to_string(page_bytes)})};
    if constexpr (requires { static_cast<bool>(storage.on_move); })
        if (config.merge_equal_pages && !storage.on_move)
            return error{error_code::mismatched, "merge_equal_pages",
                         "external memory has on_move, or the cache has merge_equal_pages = false"};
    constexpr std::size_t records_bytes = 256; // what the cache remembers of a page
    const std::uint64_t known = platform::machine_bytes(), addresses = std::numeric_limits<std::size_t>::max();
    const std::uint64_t machine = known == 0 ? addresses : std::min(known, addresses);
    if (pages > machine / records_bytes)
        return error{error_code::out_of_memory, "limit",
                     joined({"the records of ", std::to_string(pages), " pages do not fit into the machine's ",
                             std::to_string(machine), " bytes"})};
    return {};
}

// Only declared for a misuse.
template <class Cache>
struct opener {
    template <class... Given>
    [[nodiscard]] static Cache open(cache_config config, const std::tuple<Given...>& given);
};
template <class Codec, class Storage, class... Roles>
struct opener<basic_cache<cache_policies<Codec, Storage, Roles...>>> {
    using opened = basic_cache<cache_policies<Codec, Storage, Roles...>>;
    using layers = typename slot<layers_role, layers::uniform, Roles...>::type;

    template <class... Given>
    [[nodiscard]] static result<void> check(const cache_config& config, const std::tuple<Given...>& given) {
        return check_config<opened>(config, take<Codec>(given), take<Storage>(given), take<layers>(given));
    }
    template <class... Given>
    [[nodiscard]] static opened open(cache_config config, const std::tuple<Given...>& given) {
        return {std::move(config), {take<Codec>(given), take<Storage>(given), take<Roles>(given)...}};
    }
};

} // namespace detail

/// Policies that are not in the order of cache_policies. As for every misuse, the members are those of a standard
/// cache.
template <class Codec, class Storage, class Hash, class Index, class Eviction, class Recompute, class Tier,
          class Observer, class Locking, class Layers>
    requires(!(codec_policy<Codec> && storage_policy<Storage> && hash_policy<Hash> && index_policy<Index> &&
               eviction_policy<Eviction> && recompute_policy<Recompute> && tier_policy<Tier> &&
               observer_policy<Observer> && locking_policy<Locking> && layers_policy<Layers>))
class basic_cache<cache_policies<Codec, Storage, Hash, Index, Eviction, Recompute, Tier, Observer, Locking, Layers>>
    : public detail::standard_cache<Codec>::type {
    static_assert(detail::holds_for<codec_policy<Codec>, Codec, codec_role>,
                  "the first of cache_policies is a codec_policy");
    static_assert(detail::holds_for<storage_policy<Storage>, Storage, storage_role>,
                  "the second of cache_policies is a storage_policy");
    static_assert(detail::holds_for<hash_policy<Hash>, Hash, hash_role>,
                  "the third of cache_policies is a hash_policy");
    static_assert(detail::holds_for<index_policy<Index>, Index, index_role>,
                  "the fourth of cache_policies is an index_policy");
    static_assert(detail::holds_for<eviction_policy<Eviction>, Eviction, eviction_role>,
                  "the fifth of cache_policies is an eviction_policy");
    static_assert(detail::holds_for<recompute_policy<Recompute>, Recompute, recompute_role>,
                  "the sixth of cache_policies is a recompute_policy");
    static_assert(detail::holds_for<tier_policy<Tier>, Tier, tier_role>,
                  "the seventh of cache_policies is a tier_policy");
    static_assert(detail::holds_for<observer_policy<Observer>, Observer, observer_role>,
                  "the eighth of cache_policies is an observer_policy");
    static_assert(detail::holds_for<locking_policy<Locking>, Locking, locking_role>,
                  "the ninth of cache_policies is a locking_policy");
    static_assert(detail::holds_for<layers_policy<Layers>, Layers, layers_role>,
                  "the tenth of cache_policies is a layers_policy");

public:
    basic_cache(
        cache_config config,
        cache_policies<Codec, Storage, Hash, Index, Eviction, Recompute, Tier, Observer, Locking, Layers> policies);
};

/// The cache composed of these policies, in any order; an omitted role gets its standard policy.
template <class... Ps>
using cache = typename detail::compose<Ps...>::type;

/// Opens a cache from policies given by value in any order. Errors: out_of_range, for a shape that is not valid or a
/// limit below one page; out_of_memory, if the records of so many pages do not fit into memory; mismatched, for a tier
/// without an identity. The field is "shape", "limit" or "identity".
template <class... Ps>
[[nodiscard]] result<typename detail::compose<Ps...>::type> open_cache(cache_config config, Ps... policies) {
    using opened = cache<Ps...>;
    const std::tuple given(std::move(policies)...);
    if (const auto right = detail::opener<opened>::check(config, given); !right)
        return right.error();
    std::optional<opened> made;
    if (!detail::completes<std::bad_alloc>(
            [&] { made.emplace(detail::opener<opened>::open(std::move(config), given)); }))
        return error{error_code::out_of_memory, "limit", "there is no memory for the records of the cache's pages"};
    return std::move(*made);
}

/// The same for a program that knows its values. Requires: the configuration is one that open_cache takes.
/// Throws: bad_alloc.
template <class... Ps>
[[nodiscard]] typename detail::compose<Ps...>::type make_cache(cache_config config, Ps... policies) {
    return detail::opener<cache<Ps...>>::open(std::move(config), std::tuple(std::move(policies)...));
}

/// Arguments that do not fit, as a field that cache_config or page_shape lacks. GCC converts arguments before it looks
/// at the result's type, and an initializer list has no type; it names a deleted function first.
template <
    class Fields = detail::
        the_fields_are_shape_of_layers_kv_heads_head_dim_and_tokens_limit_of_pages_and_bytes_id_tenants_merge_equal_pages_and_fair_tenants>
[[nodiscard]] detail::unknown_arguments<Fields> make_cache(...)
#ifdef __clang__
    ;
#else
    = delete;
#endif

}} // namespace kvcache

// ---- kvcache/cache.hpp --------------------------------------------------------------------------------------------

// The cache alone, with the standard policy of every role: pages, index, sequences, leases.
// Needs xxHash, and no Eigen, no xsimd, no compiler flag, no exceptions and no RTTI. A policy has a header of its own,
// <kvcache/eviction/s3_fifo.hpp>; all of a role are in <kvcache/eviction/all.hpp>.

// ---- kvcache/cache/block_tables.hpp -------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The block tables of a batch as compressed rows, as FlashInfer's and vLLM's paged attention kernels read them
/// (FlashInfer: paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len). The arrays keep their memory when cleared.
/// They are copies: no sequence has to outlive them. One thread at a time changes them.
class block_tables {
public:
    /// `page_tokens`: the tokens of a page.
    explicit block_tables(std::size_t page_tokens) : page_tokens_(page_tokens) {
        require(page_tokens > 0, "a page has tokens");
    }

    /// Appends a sequence, from its page table: sequence.table(), or lease.pages().table with the reserved rows.
    /// Requires: every page but the last is used from its first row to its last, as in exact sequences. Throws:
    /// bad_alloc. Cost: O(pages).
    void append(std::span<const page_entry> table) {
        for (std::size_t i = 0; i < table.size(); ++i)
            require(table[i].first == 0 && table[i].base == 0 && table[i].count <= page_tokens_ &&
                        (i + 1 == table.size() || table[i].count == page_tokens_),
                    "a block table has full pages, but for the last one");
        for (const page_entry& entry : table)
            indices_.push_back(static_cast<std::int32_t>(index_of(entry.page)));
        indptr_.push_back(static_cast<std::int32_t>(indices_.size()));
        last_page_len_.push_back(table.empty() ? 0 : static_cast<std::int32_t>(table.back().count));
    }

    void clear() noexcept {
        indptr_.resize(1);
        indices_.clear();
        last_page_len_.clear();
    }

    /// Where the pages of each sequence begin in indices(), and the number of all. (sequences + 1)
    [[nodiscard]] std::span<const std::int32_t> indptr() const noexcept { return indptr_; }
    /// The pages of all sequences, in order.
    [[nodiscard]] std::span<const std::int32_t> indices() const noexcept { return indices_; }
    /// The rows in use in the last page of each sequence; 0 for a sequence without rows. (sequences)
    [[nodiscard]] std::span<const std::int32_t> last_page_len() const noexcept { return last_page_len_; }
    /// The pages of one sequence.
    [[nodiscard]] std::span<const std::int32_t> blocks(std::size_t sequence) const {
        require(sequence + 1 < indptr_.size(), "a sequence whose blocks are asked for was appended");
        const auto begin = static_cast<std::size_t>(indptr_[sequence]);
        return indices().subspan(begin, static_cast<std::size_t>(indptr_[sequence + 1]) - begin);
    }

private:
    std::size_t page_tokens_;
    std::vector<std::int32_t> indptr_ = {0};
    std::vector<std::int32_t> indices_;
    std::vector<std::int32_t> last_page_len_;
};

}} // namespace kvcache

// ---- kvcache/core/layout.hpp --------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// What the layers of a group keep of a sequence.
enum class group_kind {
    full,   ///< Keys and values of every token.
    window, ///< Keys and values of the last tokens.
    state,  ///< One state for all tokens so far: a recurrent or convolution state.
    alias,  ///< Nothing: the layers read the keys and values of another group.
};

/// Layers of a model that keep the same things of a sequence, and drop them together.
struct layer_group {
    std::string name = {}; ///< For people; empty for the name of its kind.
    std::uint32_t layers = 0;
    std::uint32_t kv_heads = 0;
    std::uint32_t head_dim = 0;
    std::uint32_t window = 0;    ///< Tokens that a query reads, its own included; 0 for all.
    std::size_t state_bytes = 0; ///< Bytes of a state of all its layers together, for layers that keep one.
    bool opaque = false;         ///< Its state is a blob of bytes, as many as each snapshot says.
    std::optional<std::uint32_t> alias_of = {}; ///< The group whose keys and values its layers read.

    friend bool operator==(const layer_group&, const layer_group&) = default;

    [[nodiscard]] group_kind kind() const noexcept {
        return alias_of                    ? group_kind::alias
               : opaque || state_bytes > 0 ? group_kind::state
               : window > 0                ? group_kind::window
                                           : group_kind::full;
    }
    /// Whether it keeps keys and values.
    [[nodiscard]] bool has_rows() const noexcept { return kind() == group_kind::full || kind() == group_kind::window; }

    /// The first token that a query at position `at` reads.
    [[nodiscard]] std::size_t first_read(std::size_t at) const noexcept {
        return window == 0 || at < window ? 0 : at - (window - 1);
    }
};

/// The occupancy of a layer group. Every block is free, in use or evictable. An alias has none.
struct layer_group_stats {
    std::string name = {};       ///< As cache_layout::name_of has it.
    group_kind kind = {};        ///< Of the first full group the blocks are the cache's pages.
    std::size_t block_bytes = 0; ///< Bytes of a block; 0 for opaque states, whose sizes differ.
    std::size_t blocks = 0;      ///< Number of blocks that the cache may have, if no other group takes their bytes.
    std::size_t in_use = 0;      ///< Blocks that sequences use, each counted once however many share it.
    std::size_t evictable = 0;   ///< Blocks that no sequence uses, cached for the next match.
    std::size_t bytes = 0;       ///< Bytes of both.

    friend bool operator==(const layer_group_stats&, const layer_group_stats&) = default;
};

/// The occupancy of a layer group in one line. An alias has no blocks of its own.
[[nodiscard]] inline std::string describe(const layer_group_stats& of) {
    if (of.kind == group_kind::alias)
        return of.name + ": the blocks of another group";
    return detail::joined({of.name, ": ", std::to_string(of.in_use), " blocks in use, ", std::to_string(of.evictable),
                           " evictable, ", std::to_string(of.bytes), " bytes in all"});
}

/// What the layers of a model keep of a sequence: groups of layers, in pages of equally many tokens.
struct cache_layout {
    std::uint32_t tokens = 64; ///< Tokens per page.
    std::vector<layer_group> groups = {};

    friend bool operator==(const cache_layout&, const cache_layout&) = default;

    /// The layout of one group of full attention.
    [[nodiscard]] static cache_layout of(const page_shape& shape) {
        return {shape.tokens, {{.layers = shape.layers, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim}}};
    }

    /// A group's own name, or that of its kind and its window.
    [[nodiscard]] std::string name_of(std::size_t group) const {
        const layer_group& of = groups[group];
        if (!of.name.empty())
            return of.name;
        switch (of.kind()) {
        case group_kind::full:
            return "full";
        case group_kind::window:
            return detail::joined({"window of ", std::to_string(of.window)});
        case group_kind::state:
            return "state";
        default:
            return detail::joined({"alias of ", name_of(*of.alias_of)});
        }
    }

    /// All groups in one line, for an identity: "3 layers of 1 x 256; 15 layers of 1 x 256, window of 512".
    [[nodiscard]] std::string name() const {
        std::string words;
        for (const layer_group& of : groups) {
            words += detail::joined({words.empty() ? "" : "; ", std::to_string(of.layers), " layers"});
            if (of.has_rows())
                words += detail::joined({" of ", std::to_string(of.kv_heads), " x ", std::to_string(of.head_dim)});
            if (of.window > 0)
                words += detail::joined({", window of ", std::to_string(of.window)});
            if (of.opaque)
                words += ", opaque state";
            if (of.state_bytes > 0)
                words += detail::joined({", state of ", std::to_string(of.state_bytes), " bytes"});
            if (of.alias_of)
                words += detail::joined({", as group ", std::to_string(*of.alias_of)});
        }
        return words;
    }

    /// The shape of a group's pages. Requires: it has rows.
    [[nodiscard]] page_shape shape(std::size_t group) const {
        const layer_group& of = groups[group];
        expects(of.has_rows(), "a group with pages keeps keys and values");
        return {of.layers, of.kv_heads, of.head_dim, tokens};
    }

    /// Whether the layout can be used. Errors: out_of_range, with the group and what is wrong with it.
    [[nodiscard]] result<void> check() const {
        if (groups.empty() || groups.size() > most_groups)
            return wrong("groups", "a layout has 1 to 64 groups");
        if (tokens == 0 || tokens > page_shape::most_tokens)
            return wrong("tokens", "a page has 1 to 65,536 tokens");
        bool keeps = false;
        for (std::size_t i = 0; i < groups.size(); ++i) {
            const layer_group& of = groups[i];
            const std::string field = detail::joined({"groups[", std::to_string(i), "]"});
            if (of.layers == 0)
                return wrong(field, "a group has at least one layer");
            if ((of.alias_of.has_value()) + of.opaque + (of.state_bytes > 0) + (of.window > 0) > 1)
                return wrong(field, "a group has a window, or a state, or an opaque state, or is an alias");
            if (of.alias_of && (*of.alias_of >= i || !groups[*of.alias_of].has_rows()))
                return wrong(field, "an alias names an earlier group that keeps keys and values");
            if (of.has_rows() && !shape(i).valid())
                return wrong(field, "a group that keeps keys and values has KV heads and a head dimension, none of "
                                    "them too large");
            if (!of.has_rows() && of.kv_heads + of.head_dim > 0)
                return wrong(field, "a state and an alias have no KV heads and no head dimension");
            keeps = keeps || of.kind() != group_kind::alias;
        }
        return keeps ? result<void>() : wrong("groups", "at least one group keeps something");
    }

    /// Bytes that a group holds for one sequence of `length` tokens, whole pages, with numbers of `number_bytes` bytes.
    /// A window holds the pages that the next query reads, a state group one state; of an opaque one they are unknown,
    /// and 0 here.
    [[nodiscard]] std::uint64_t bytes(std::size_t group, std::size_t length, std::size_t number_bytes) const {
        const layer_group& of = groups[group];
        if (of.kind() == group_kind::alias)
            return 0;
        if (of.kind() == group_kind::state)
            return of.state_bytes;
        const std::uint64_t pages = (length + tokens - 1) / tokens - std::min(of.first_read(length), length) / tokens;
        return pages * tokens * 2 * of.layers * of.kv_heads * of.head_dim * number_bytes;
    }
    /// The same of all groups.
    [[nodiscard]] std::uint64_t bytes(std::size_t length, std::size_t number_bytes) const {
        std::uint64_t all = 0;
        for (std::size_t group = 0; group < groups.size(); ++group)
            all += bytes(group, length, number_bytes);
        return all;
    }

    /// For people: a line for each group with its layers, what a hit of n tokens needs of it, and the MiB that one
    /// sequence of 8,192 and of 131,072 tokens holds with 16-bit numbers; then a line for all.
    [[nodiscard]] std::string describe() const {
        std::string words = detail::joined({"pages of ", std::to_string(tokens), " tokens\n"});
        for (std::size_t group = 0; group < groups.size(); ++group)
            words +=
                detail::joined({name_of(group), ": ", std::to_string(groups[group].layers), " layers, a hit needs ",
                                needs(groups[group]), ", ", mebibytes(bytes(group, 8192, 2)), " MiB at 8K, ",
                                mebibytes(bytes(group, 131072, 2)), " MiB at 128K\n"});
        return words + detail::joined({"all: ", mebibytes(bytes(8192, 2)), " MiB at 8K, ", mebibytes(bytes(131072, 2)),
                                       " MiB at 128K\n"});
    }

    static constexpr std::size_t most_groups = 64;

private:
    [[nodiscard]] static error wrong(std::string field, std::string words) {
        return {error_code::out_of_range, std::move(field), std::move(words)};
    }
    [[nodiscard]] static std::string needs(const layer_group& of) {
        switch (of.kind()) {
        case group_kind::full:
            return "all pages";
        case group_kind::window:
            return detail::joined({"the last ", std::to_string(of.window - 1), " tokens"});
        case group_kind::state:
            return "a snapshot at its last token";
        default:
            return "nothing";
        }
    }
    // With one decimal.
    [[nodiscard]] static std::string mebibytes(std::uint64_t bytes) {
        const std::uint64_t tenths = (bytes * 10 + (1u << 19)) >> 20;
        return detail::joined({std::to_string(tenths / 10), ".", std::to_string(tenths % 10)});
    }
};

}} // namespace kvcache

// ---- kvcache/cache/group_leases.hpp -------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// The blocks of layer groups that the sequences and leases of a cache use. Of a window group a sequence uses the
/// blocks that its next query reads, and those of its reserved rows. Of a state group it uses the snapshot that it
/// began with, and those that its lease has made, until the next commit: the state after its last token is the host's.
template <class PageManager>
class group_leases {
public:
    group_leases(PageManager& pages, std::size_t page_tokens) : pages_(pages), page_tokens_(page_tokens) {}

    /// How many of the first `tokens` tokens every group can continue. `page_of(entry)` is the page of a page-table
    /// entry. Cost: O(entries * groups).
    template <class PageOf>
    [[nodiscard]] group_limit limit(std::size_t tokens, const PageOf& page_of) const {
        group_limit found{.tokens = tokens, .others = tokens};
        std::size_t last = none;
        found.tokens = longest(tokens, page_of, none, last);
        if (last == none)
            return found;
        found.group = static_cast<std::uint32_t>(blocks().group(last));
        std::size_t other = none;
        found.others = longest(tokens, page_of, last, other);
        return found;
    }
    [[nodiscard]] group_limit limit(std::span<const page_id> pages, std::size_t tokens) const {
        return limit(tokens, [&](std::size_t entry) { return pages[entry]; });
    }
    [[nodiscard]] std::size_t kept(const sequence_state& state, std::size_t tokens) const {
        if (tokens == state.tokens.size() || (tokens > state.exact && has_window(state, tokens)))
            return tokens;
        return limit(std::min(tokens, state.exact), [&](std::size_t entry) { return state.table[entry].page; }).tokens;
    }

    /// Notes where a prompt ends, parts from a cached one, or continues it: later prompts that part there need the
    /// windows. A page known in part is copied when it is filled, so the one before it is noted too. Earlier windows
    /// are touched as the pages are, but for the first ones, which save little where a later prompt parts.
    void note(const index_match& found, bool touches) noexcept {
        if (found.pages.empty())
            return;
        pages_.note_branch(found.pages.back());
        if (found.pages.size() * page_tokens_ != found.tokens && found.pages.size() > 1)
            pages_.note_branch(found.pages[found.pages.size() - 2]);
        for (std::size_t pool = 0; touches && pool < blocks().size(); ++pool)
            for (std::size_t entry = 2 * blocks().stale_distance(pool); entry < found.pages.size(); ++entry)
                if (const page_id page = found.pages[entry];
                    !blocks().is_state(pool) && blocks().has(pool, page) && pages_.ranks_block(pool, page))
                    pages_.touch(blocks().entry(pool, page));
    }

    /// Makes room for what a sequence notes. Throws: bad_alloc.
    void prepare(sequence_state& state) const {
        state.group_first.assign(blocks().size(), 0);
        state.snapshots.reserve(blocks().size());
    }
    /// Uses the blocks of a sequence whose pages are referenced.
    void begin(sequence_state& state) noexcept {
        for (const sequence_state::pinned_block& one : state.pinned_blocks)
            pages_.cover(one.pool, one.page);
        state.group_first.assign(blocks().size(), state.table.size());
        follow(state);
        use_snapshots(state);
    }
    /// The same after the sequence was shortened.
    void begin_again(sequence_state& state) noexcept {
        state.running.forget();
        end_snapshots(state, 0);
        follow(state);
        use_snapshots(state);
    }
    /// Uses the blocks that its next query reads, and no others, after its length has changed.
    void follow(sequence_state& state) noexcept {
        for (std::size_t pool = 0; pool < blocks().size(); ++pool) {
            if (blocks().is_state(pool))
                continue;
            std::size_t& first = state.group_first[pool];
            const std::size_t wanted = first_used(state, pool, state.tokens.size());
            const std::size_t margin = blocks().stale_distance(pool);
            for (; first < wanted; ++first)
                if (first < state.table.size()) {
                    // of a whole lease, it may have no block
                    leave(pool, state.table[first].page, blocks().keeps_released());
                    if (first >= margin && !parts(state, first - margin, first))
                        pages_.make_stale(pool, state.table[first - margin].page);
                }
            for (; first > wanted; --first)
                if (first <= state.table.size())
                    pages_.cover(pool, state.table[first - 1].page);
        }
    }
    /// Stops using the blocks of the last entry of its table, before its page is dropped.
    void leave_last(sequence_state& state) noexcept {
        const std::size_t entry = state.table.size() - 1;
        const page_id page = state.table[entry].page;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (!blocks().is_state(pool) && entry >= state.group_first[pool])
                leave(pool, page);
        end_snapshots(state, entry * page_tokens_);
    }
    /// Stops using the window blocks of a page that takes no more part in the table.
    void leave_page(page_id page) noexcept {
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (!blocks().is_state(pool))
                leave(pool, page);
    }

    /// The bytes and blocks of a reservation, after which the sequence has `tokens` tokens. Errors: out_of_memory, with
    /// what is missing.
    [[nodiscard]] result<void> check(const sequence_state& state, const row_demand& wanted, std::size_t tokens,
                                     std::size_t page_bytes) const {
        std::size_t bytes = wanted.pages * page_bytes;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool) {
            if (blocks().is_state(pool))
                continue;
            const std::size_t end = state.table.size() + wanted.fresh, begin = end - wanted.fresh;
            const std::size_t first = wanted.whole ? std::max(begin, blocks().first_entry(pool, tokens)) : begin;
            const std::size_t fresh = end - std::min(first, end) + (wanted.copies ? 1 : 0);
            bytes += fresh * blocks().block_bytes(pool);
            if (fresh > blocks().available_blocks(pool))
                return error{error_code::out_of_memory,
                             detail::joined({"groups[", std::to_string(blocks().group(pool)), "]"}),
                             detail::joined({std::to_string(fresh), " blocks are needed; ",
                                             std::to_string(blocks().available_blocks(pool)), " of ",
                                             std::to_string(blocks().blocks(pool)), " can be had"})};
        }
        if (bytes > pages_.available_bytes())
            return error{error_code::out_of_memory, "bytes",
                         detail::joined({std::to_string(bytes), " bytes of pages and blocks are needed; ",
                                         std::to_string(pages_.available_bytes()), " of ",
                                         std::to_string(blocks().budget()), " can be had"})};
        return {};
    }
    /// Takes the window blocks of the page that was appended to a table, or copied for its last entry. Returns false if
    /// there is no room.
    [[nodiscard]] bool extend(const sequence_state& state, page_id page) {
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (takes(state, pool, state.table.size() - 1) &&
                !pages_.allocate_block(pool, page, state.tenant, blocks().block_bytes(pool)))
                return false;
        return true;
    }
    /// Copies the window blocks of a shared page to those of its copy. Returns false if there is no room, or the host
    /// could not copy.
    [[nodiscard]] bool copy_tail(const sequence_state& state, page_id shared, page_id own, std::size_t rows) {
        if (!extend(state, own))
            return false;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (!blocks().is_state(pool) && !pages_.copy_block(pool, shared, own, rows))
                return false;
        return true;
    }
    /// The groups whose blocks of an entry the sequence uses, a bit each.
    [[nodiscard]] std::uint64_t used(const sequence_state& state, std::size_t entry) const noexcept {
        std::uint64_t groups = 0;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (!blocks().is_state(pool) && entry >= state.group_first[pool])
                groups |= std::uint64_t{1} << pool;
        for (const sequence_state::snapshot& one : state.snapshots)
            if (one.entry == entry)
                groups |= std::uint64_t{1} << one.pool;
        return groups;
    }

    /// By group of the layout. Throws: bad_alloc.
    [[nodiscard]] std::vector<layer_group_stats> stats() const {
        const cache_layout& layout = blocks().layout();
        std::vector<layer_group_stats> made;
        for (std::size_t group = 0; group < layout.groups.size(); ++group)
            made.push_back({.name = layout.name_of(group), .kind = layout.groups[group].kind()});
        if (const auto group = blocks().paged()) {
            const std::size_t all = pages_.pool().pages(), idle = pages_.evictable();
            layer_group_stats& of = made[*group];
            of.block_bytes = pages_.page_bytes();
            of.blocks = all;
            of.in_use = all - pages_.pool().free().size() - idle;
            of.evictable = idle;
            of.bytes = (of.in_use + idle) * of.block_bytes;
        }
        for (std::size_t pool = 0; pool < blocks().size(); ++pool) {
            layer_group_stats& of = made[blocks().group(pool)];
            of.block_bytes = blocks().block_bytes(pool);
            of.blocks = blocks().blocks(pool);
            of.in_use = of.blocks - blocks().available_blocks(pool);
            of.evictable = blocks().available_blocks(pool) - blocks().free_blocks(pool);
            of.bytes = blocks().held_bytes(pool);
        }
        return made;
    }

    /// By entry: the block of a group that the sequence uses, or `null`.
    [[nodiscard]] std::vector<std::int32_t> table(const sequence_state& state, std::size_t group,
                                                  std::int32_t null) const {
        std::vector<std::int32_t> made(state.table.size(), null);
        const std::size_t kept = blocks().keeper_of(group);
        if (kept == blocks().paged()) {
            for (std::size_t entry = 0; entry < made.size(); ++entry)
                made[entry] = static_cast<std::int32_t>(index_of(state.table[entry].page));
            return made;
        }
        const std::size_t pool = blocks().pool_of(kept);
        const auto show = [&](std::size_t entry) {
            made[entry] = static_cast<std::int32_t>(blocks().block(pool, state.table[entry].page));
        };
        for (std::size_t entry = state.group_first[pool]; entry < made.size(); ++entry)
            if (takes(state, pool, entry))
                show(entry);
        for (const sequence_state::snapshot& one : state.snapshots)
            if (one.pool == pool)
                show(one.entry);
        return made;
    }

    /// The table of a group's blocks, where the cache owns them: an entry without one has the page `no_block`. Returns
    /// whether the blocks are the cache's pages. Throws: bad_alloc.
    [[nodiscard]] bool entries(const sequence_state& state, std::size_t group, std::vector<page_entry>& into) const {
        into.assign(state.table.begin(), state.table.end());
        const std::size_t keeper = blocks().keeper_of(group);
        if (keeper == blocks().paged())
            return true;
        const std::size_t pool = blocks().pool_of(keeper);
        require(!blocks().is_state(pool), "a group that attention reads keeps keys and values");
        for (std::size_t entry = 0; entry < into.size(); ++entry)
            into[entry].page = entry >= state.group_first[pool] && takes(state, pool, entry)
                                   ? page_id{blocks().block(pool, state.table[entry].page)}
                                   : no_block;
        return false;
    }
    static constexpr page_id no_block{static_cast<std::uint32_t>(-1)};

    /// The memory of a state block.
    [[nodiscard]] std::span<std::byte> state_bytes(std::size_t group, std::uint32_t block) const {
        const std::size_t pool = blocks().pool_of(group);
        require(blocks().is_state(pool) && block < blocks().blocks(pool) && blocks().holders(pool, block) > 0,
                "a state is of a group that has one, and of a block that a sequence uses");
        return blocks().memory().bytes(pool, block);
    }
    /// The state of a group after the last token of a sequence: the one that its last lease left, or a snapshot that it
    /// uses; empty if there is neither.
    [[nodiscard]] std::span<const std::byte> last_state(const sequence_state& state, std::size_t group) const {
        const std::size_t pool = blocks().pool_of(group);
        if (const auto running = state.running.last(); !running.empty() && !blocks().description(pool).opaque)
            return running.subspan(running_bytes(pool), blocks().block_bytes(pool));
        for (const sequence_state::snapshot& one : state.snapshots)
            if (one.pool == pool && (one.entry + 1) * page_tokens_ == state.tokens.size())
                return state_bytes(group, blocks().block(pool, state.table[one.entry].page));
        return {};
    }

    /// Memory for the state of a group after the rows of a sequence's lease. Throws: bad_alloc.
    [[nodiscard]] std::span<std::byte> next_state(sequence_state& state, std::size_t group) const {
        const std::size_t pool = blocks().pool_of(group);
        require(blocks().is_state(pool) && !blocks().description(pool).opaque, "a state that runs has a size");
        return state.running.next(running_bytes(blocks().size()))
            .subspan(running_bytes(pool), blocks().block_bytes(pool));
    }

    /// A block for the state of a group after `tokens` tokens, which the open lease of the sequence computes. `bytes`:
    /// of an opaque state. Errors: out_of_memory. Throws: bad_alloc; nothing has changed then. Requires: the tokens end
    /// a page, in the lease.
    [[nodiscard]] result<std::uint32_t> snapshot(sequence_state& state, std::size_t group, std::size_t tokens,
                                                 std::size_t bytes) {
        const std::size_t pool = blocks().pool_of(group);
        require(blocks().is_state(pool), "a snapshot is of a group that has a state");
        require(blocks().description(pool).opaque == (bytes > 0), "a snapshot of an opaque state says its bytes");
        const std::size_t entry = tokens / page_tokens_ - 1;
        const page_id page = state.table[entry].page;
        for (const sequence_state::snapshot& one : state.snapshots)
            if (one.pool == pool && one.entry == entry)
                return blocks().block(pool, page);
        state.snapshots.reserve(state.snapshots.size() + 1);
        const std::size_t wanted = bytes > 0 ? bytes : blocks().block_bytes(pool);
        if (blocks().has(pool, page))
            pages_.cover(pool, page);
        else if (!pages_.allocate_block(pool, page, state.tenant, wanted))
            return error{error_code::out_of_memory,
                         detail::joined({"groups[", std::to_string(blocks().group(pool)), "]"}),
                         detail::joined({"there is no room for a state of ", std::to_string(wanted), " bytes"})};
        state.snapshots.push_back({pool, entry});
        return blocks().block(pool, page);
    }
    /// Removes the snapshots of a lease after more than `tokens` tokens, which were not committed.
    void drop_snapshots(sequence_state& state, std::size_t tokens) noexcept {
        for (std::size_t i = state.snapshots.size(); i-- > 0;)
            if (const auto one = state.snapshots[i]; (one.entry + 1) * page_tokens_ > tokens) {
                pages_.discard_block(one.pool, state.table[one.entry].page);
                state.snapshots.erase(state.snapshots.begin() + static_cast<std::ptrdiff_t>(i));
            }
    }
    /// Stops using snapshots after more than `tokens` tokens; they stay cached.
    void end_snapshots(sequence_state& state, std::size_t tokens) noexcept {
        for (std::size_t i = state.snapshots.size(); i-- > 0;)
            if (const auto one = state.snapshots[i]; (one.entry + 1) * page_tokens_ > tokens) {
                pages_.uncover(one.pool, state.table[one.entry].page, true);
                state.snapshots.erase(state.snapshots.begin() + static_cast<std::ptrdiff_t>(i));
            }
    }

    /// Uses the blocks of pages [first, end) of a sequence that a query after them reads, as snapshots, until `unpin`:
    /// of a state group all. Throws: bad_alloc.
    void pin(sequence_state& state, std::size_t first, std::size_t end) {
        state.snapshots.reserve(state.snapshots.size() + blocks().size() * (end - first));
        for (std::size_t pool = 0; pool < blocks().size(); ++pool) {
            const std::size_t read = blocks().is_state(pool) ? 0 : blocks().first_entry(pool, end * page_tokens_);
            for (std::size_t entry = std::max(first, read); entry < end; ++entry)
                if (blocks().has(pool, state.table[entry].page)) {
                    pages_.cover(pool, state.table[entry].page);
                    state.snapshots.push_back({pool, entry});
                }
        }
    }
    /// Stops using the blocks that are pinned for chunks.
    void unpin(sequence_state& state) noexcept {
        for (; !state.pinned_blocks.empty(); state.pinned_blocks.pop_back())
            leave(state.pinned_blocks.back().pool, state.pinned_blocks.back().page);
    }
    /// Ends the use of all but the first `used` of a sequence's snapshots.
    void unpin(sequence_state& state, std::size_t used) noexcept {
        for (; state.snapshots.size() > used; state.snapshots.pop_back())
            pages_.uncover(state.snapshots.back().pool, state.table[state.snapshots.back().entry].page, true);
    }

    // For invariants.

    /// By group with blocks and page: the sequences that use its block.
    using user_counts = std::vector<std::vector<std::uint32_t>>;
    [[nodiscard]] user_counts no_users() const {
        return user_counts(blocks().size(), std::vector<std::uint32_t>(pages_.pool().pages(), 0));
    }
    /// Counts what a sequence uses.
    void count(const sequence_state& state, user_counts& users) const {
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (!blocks().is_state(pool)) {
                for (std::size_t entry = state.group_first[pool]; entry < state.table.size(); ++entry)
                    if (takes(state, pool, entry))
                        ++users[pool][index_of(state.table[entry].page)];
                if (state.lease.has_copied_tail(state.table))
                    ++users[pool][index_of(state.lease.tail_before->page)];
            }
        for (const sequence_state::snapshot& one : state.snapshots)
            ++users[one.pool][index_of(state.table[one.entry].page)];
        for (const sequence_state::pinned_block& one : state.pinned_blocks)
            ++users[one.pool][index_of(one.page)];
    }
    /// Checks that the blocks are used by so many sequences, that each is free, in use or evictable, and that their
    /// bytes add up. Errors: malformed.
    [[nodiscard]] result<void> check(const user_counts& users) const {
        std::size_t bytes = (pages_.pool().pages() - pages_.pool().free().size()) * pages_.page_bytes(), idle = 0;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool) {
            std::vector<std::uint32_t> holders(blocks().blocks(pool), 0), sharers = holders;
            for (std::uint32_t i = 0; i < pages_.pool().pages(); ++i) {
                const page_id page{i};
                if (blocks().covers(pool, page) != users[pool][i] || (users[pool][i] > 0 && !blocks().has(pool, page)))
                    return broken(pool, page, "is used by other sequences than it counts");
                if (!blocks().has(pool, page))
                    continue;
                const std::uint32_t block = blocks().block(pool, page);
                holders[block] += users[pool][i];
                ++sharers[block];
                if (users[pool][i] == 0 && (blocks().owner(pool, block) != page || !pages_.index().contains(page)))
                    return broken(pool, page, "is kept for a page that is not in the index");
            }
            for (std::uint32_t block = 0; block < holders.size(); ++block) {
                const auto owner = blocks().owner(pool, block);
                const page_id page = owner.value_or(page_id{});
                if (holders[block] != (sharers[block] > 0 ? blocks().holders(pool, block) : 0))
                    return broken(pool, page, "counts other users than it has");
                if (sharers[block] > 0 && holders[block] == 0) {
                    if (!owner || sharers[block] != 1 || !pages_.ranks_block(pool, page))
                        return broken(pool, page, "is not used and can never be evicted");
                    idle += blocks().bytes_of(pool, block);
                }
                bytes += sharers[block] > 0 ? blocks().bytes_of(pool, block) : 0;
            }
            const auto free = static_cast<std::size_t>(std::count(sharers.begin(), sharers.end(), 0u));
            if (free != blocks().free_blocks(pool))
                return broken(pool, {}, "is lost");
        }
        if (bytes != blocks().used() || idle != blocks().idle() || bytes > blocks().budget())
            return error{error_code::malformed, "bytes",
                         detail::joined({std::to_string(bytes), " bytes are in pages and blocks, ",
                                         std::to_string(idle), " of them evictable; the cache counts ",
                                         std::to_string(blocks().used()), " and ", std::to_string(blocks().idle())})};
        return {};
    }

private:
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    // Bytes of the states that run, of the groups before this one.
    [[nodiscard]] std::size_t running_bytes(std::size_t pool) const noexcept {
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < pool; ++i)
            bytes += blocks().is_state(i) ? blocks().block_bytes(i) : 0;
        return bytes;
    }

    [[nodiscard]] const auto& blocks() const noexcept { return pages_.blocks(); }

    [[nodiscard]] error broken(std::size_t pool, page_id page, const char* how) const {
        return {error_code::malformed, detail::joined({"groups[", std::to_string(blocks().group(pool)), "]"}),
                detail::joined({"the block of page ", std::to_string(index_of(page)), " ", how})};
    }

    // The first entry of `tokens` tokens of a sequence whose block it uses. Where rows are spliced in, all are used.
    [[nodiscard]] std::size_t first_used(const sequence_state& state, std::size_t pool, std::size_t tokens) const {
        return std::min(blocks().first_entry(pool, tokens), state.whole_entries(page_tokens_));
    }
    // Whether the query after the first `tokens` tokens finds what it reads before spliced rows.
    [[nodiscard]] bool has_window(const sequence_state& state, std::size_t tokens) const {
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            for (std::size_t entry = first_used(state, pool, tokens); entry < state.whole_entries(page_tokens_);
                 ++entry)
                if (!blocks().has(pool, state.table[entry].page))
                    return false;
        return true;
    }
    // Whether prompts part in the entries [first, last] of a sequence.
    [[nodiscard]] bool parts(const sequence_state& state, std::size_t first, std::size_t last) const noexcept {
        for (std::size_t entry = first; entry <= last; ++entry)
            if (blocks().is_branch(state.table[entry].page))
                return true;
        return false;
    }
    // Whether an entry of a sequence, or of its lease, has a block of a group with rows if it is read at all.
    [[nodiscard]] bool takes(const sequence_state& state, std::size_t pool, std::size_t entry) const noexcept {
        return !blocks().is_state(pool) &&
               (!state.lease.open || !state.lease.whole || entry < state.lease.pages_before ||
                entry >= blocks().first_entry(pool, state.tokens.size() + state.lease.rows));
    }
    // Uses the snapshots after the last token of a sequence, if there are any.
    void use_snapshots(sequence_state& state) noexcept {
        if (state.table.empty() || state.tokens.size() % page_tokens_ != 0)
            return;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (blocks().is_state(pool) && blocks().has(pool, state.table.back().page)) {
                pages_.cover(pool, state.table.back().page);
                state.snapshots.push_back({pool, state.table.size() - 1}); // has room: see prepare
            }
    }
    // `stays`: see page_manager::uncover.
    void leave(std::size_t pool, page_id page, bool stays = true) noexcept {
        if (blocks().has(pool, page) && blocks().covers(pool, page) > 0)
            pages_.uncover(pool, page, stays);
    }

    // The longest prefix that every group but `skipped` can continue. `last`: the group that shortened it last.
    template <class PageOf>
    [[nodiscard]] std::size_t longest(std::size_t tokens, const PageOf& page_of, std::size_t skipped,
                                      std::size_t& last) const {
        for (std::size_t agreed = 0, pool = 0; agreed < blocks().size(); pool = (pool + 1) % blocks().size()) {
            const std::size_t can = pool == skipped           ? tokens
                                    : blocks().is_state(pool) ? last_snapshot(pool, tokens, page_of)
                                                              : last_window(pool, tokens, page_of);
            agreed = can == tokens ? agreed + 1 : 1;
            last = can == tokens ? last : pool;
            tokens = can;
        }
        return tokens;
    }
    template <class PageOf>
    [[nodiscard]] std::size_t last_snapshot(std::size_t pool, std::size_t tokens, const PageOf& page_of) const {
        std::size_t pages = tokens / page_tokens_;
        while (pages > 0 && !blocks().has(pool, page_of(pages - 1)))
            --pages;
        return pages * page_tokens_;
    }
    template <class PageOf>
    [[nodiscard]] std::size_t last_window(std::size_t pool, std::size_t tokens, const PageOf& page_of) const {
        std::size_t first = blocks().first_entry(pool, tokens);
        for (std::size_t entry = (tokens + page_tokens_ - 1) / page_tokens_; entry > first; --entry)
            if (!blocks().has(pool, page_of(entry - 1))) {
                tokens = (entry - 1) * page_tokens_;
                first = blocks().first_entry(pool, tokens);
            }
        return tokens;
    }

    PageManager& pages_;
    std::size_t page_tokens_;
};

}} // namespace kvcache

// ---- kvcache/layers/host_blocks.hpp -------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace layers {

/// The blocks of a group.
struct block_extent {
    std::size_t blocks = 0;   ///< Number of blocks.
    std::size_t bytes = 0;    ///< Of a block.
    std::uint32_t tokens = 0; ///< Rows of a block with keys and values.
};

/// Blocks of the host's own memory: it copies them, and learns which are freed. `pool` counts the groups with blocks.
class host_blocks {
public:
    static constexpr bool owned = false;
    using copy_function = std::function<bool(std::size_t group, std::uint32_t from, std::uint32_t to, std::size_t)>;
    using evict_function = std::function<void(std::size_t group, std::uint32_t block)>;

    host_blocks(copy_function copy, evict_function on_evict) : copy_(std::move(copy)), on_evict_(std::move(on_evict)) {}

    void add(std::size_t group, const layer_group&, const block_extent&) { groups_.push_back(group); }
    [[nodiscard]] static constexpr bool acquire(std::size_t, std::uint32_t, std::size_t) noexcept { return true; }
    void release(std::size_t pool, std::uint32_t block) const {
        if (on_evict_)
            detail::ignore_exceptions([&] { on_evict_(groups_[pool], block); });
    }
    /// Returns false if the host fails.
    [[nodiscard]] bool copy(std::size_t pool, std::uint32_t from, std::uint32_t to, std::size_t rows) const {
        bool copied = false;
        detail::ignore_exceptions([&] { copied = copy_(groups_[pool], from, to, rows); });
        return copied;
    }

private:
    copy_function copy_;
    evict_function on_evict_;
    std::vector<std::size_t> groups_; // by pool
};

}}} // namespace kvcache::layers

// ---- kvcache/cache/owned_blocks.hpp -------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Blocks that the cache has itself: those of each group in a storage of their own, keys and values in the format of a
/// codec that writes row by row, or as opaque blobs. A state has no format: its bytes are the host's, and
/// those of an opaque state are as many as each snapshot says. `Storage`, `Codec`: policies.
template <class Storage, class Codec>
class owned_blocks {
public:
    static constexpr bool owned = true;
    using storage_type = opened_by<Storage, std::size_t, std::size_t>;
    using codec_type = opened_by<Codec, page_shape>;

    owned_blocks(Storage storage, Codec codec) : storage_(std::move(storage)), codec_(std::move(codec)) {}

    void add(std::size_t, const layer_group& group, const layers::block_extent& of) {
        pool_memory made{storage_.open(group.opaque ? 0 : of.blocks, of.bytes)};
        if (group.has_rows())
            made.codec.emplace(codec_.open({group.layers, group.kv_heads, group.head_dim, of.tokens}));
        if (group.opaque)
            made.blobs.resize(of.blocks);
        pools_.push_back(std::move(made));
    }
    /// Returns false if the storage refuses. A block is zeroed: rows that are never written are still read, with zero
    /// weight.
    [[nodiscard]] bool acquire(std::size_t pool, std::uint32_t block, std::size_t size) {
        pool_memory& of = pools_[pool];
        if (!of.blobs.empty())
            of.blobs[block].emplace(storage_.open(1, size));
        const bool taken = of.blobs.empty() ? of.storage.acquire(page_id{block}) : of.blobs[block]->acquire(page_id{0});
        if (!taken)
            return false;
        const auto memory = bytes(pool, block);
        if constexpr (opaque_codec_state<codec_type>)
            if (of.codec) {
                of.codec->clear(memory);
                return true;
            }
        std::fill(memory.begin(), memory.end(), std::byte{});
        return true;
    }
    void release(std::size_t pool, std::uint32_t block) noexcept {
        if (pools_[pool].blobs.empty())
            pools_[pool].storage.release(page_id{block});
        else
            pools_[pool].blobs[block].reset();
    }
    [[nodiscard]] bool copy([[maybe_unused]] std::size_t pool, [[maybe_unused]] std::uint32_t from,
                            [[maybe_unused]] std::uint32_t to, [[maybe_unused]] std::size_t rows) const {
        if constexpr (row_writer<codec_type>)
            codec(pool).copy(bytes(pool, from), bytes(pool, to), rows);
        return true; // opaque blocks are shared whole
    }

    [[nodiscard]] std::span<std::byte> bytes(std::size_t pool, std::uint32_t block) const {
        const pool_memory& of = pools_[pool];
        return of.blobs.empty() ? of.storage.bytes(page_id{block}) : of.blobs[block]->bytes(page_id{0});
    }
    [[nodiscard]] const storage_type& storage(std::size_t pool) const noexcept { return pools_[pool].storage; }
    /// Requires: the group keeps keys and values.
    [[nodiscard]] const codec_type& codec(std::size_t pool) const {
        expects(pools_[pool].codec.has_value(), "a block with rows is of a group that keeps keys and values");
        return *pools_[pool].codec;
    }

private:
    struct pool_memory {
        storage_type storage;
        std::optional<codec_type> codec = {};
        std::vector<std::optional<storage_type>> blobs = {}; // of opaque states: a storage of one page for each
    };

    Storage storage_;
    Codec codec_;
    std::vector<pool_memory> pools_;
};

}} // namespace kvcache

// ---- kvcache/cache/snapshot_places.hpp ----------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Where a prompt leaves snapshots of a recurrent state for later prompts: after how many of its tokens. All are
/// multiples of the page's tokens, and leave at least the last token of the prompt to compute.
struct snapshot_places {
    /// Where the last page ends: for the same prompt again, and for one that continues it.
    bool ends = true;
    /// Where the prompt parts from a cached one that has no snapshot there: for the next prompt that parts there.
    bool branches = true;
    /// So many tokens before the last page ends, in whole pages: for a prompt that parts from this one shortly before
    /// its end, as the turns of chats and agents do; 0 for none.
    std::size_t before_end = 512;
    /// A snapshot each so many pages; 0 for none. An edit then computes at most so many pages again before it.
    std::size_t every = 0;
    /// At the distances of 1, 2, 4, ... pages from the last one: an edit then computes at most twice the tokens from it
    /// to the end, and a page, with O(log pages) snapshots.
    bool doubling = false;
    /// A snapshot each so many pages of what follows a prompt, as an answer; 0 for none.
    std::size_t answers = 4;

    /// The places in a prompt, in ascending order, after those tokens that are known. `found`: that of acquire; lookup
    /// may know the last token too, which is computed in any case. Throws: bad_alloc. Cost: O(places).
    [[nodiscard]] std::vector<std::size_t> of(const lookup_result& found, std::size_t page_tokens) const {
        std::vector<std::size_t> made;
        if (found.prompt_tokens == 0)
            return made;
        const std::size_t last = (found.prompt_tokens - 1) / page_tokens;
        const auto add = [&](std::size_t page) {
            if (page <= last && page * page_tokens > found.cached_tokens)
                made.push_back(page * page_tokens);
        };
        if (ends)
            add(last);
        if (const std::size_t pages = before_end / page_tokens; pages > 0 && pages < last)
            add(last - pages);
        // Not other_groups_tokens: of two groups with states each limits the other.
        if (branches && found.limiting_group)
            add(found.common_prefix / page_tokens);
        for (std::size_t page = every; every > 0 && page <= last; page += every)
            add(page);
        for (std::size_t distance = 1; doubling && distance < last; distance *= 2)
            add(last - distance);
        std::sort(made.begin(), made.end());
        made.erase(std::unique(made.begin(), made.end()), made.end());
        return made;
    }

    /// Whether there is a snapshot after `at` tokens, where a page ends, among rows that follow a prompt: those of
    /// tokens [first, end) of a sequence. Several at once are the next part of a conversation, with an end as a prompt.
    [[nodiscard]] bool after_prompt(std::size_t at, std::size_t first, std::size_t end,
                                    std::size_t page_tokens) const noexcept {
        const std::size_t page = at / page_tokens;
        return (answers > 0 && page % answers == 0) || (ends && end - first > 1 && page == (end - 1) / page_tokens);
    }
};

}} // namespace kvcache

// ---- kvcache/codec/by_group.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace codec {

/// One format for the cache's pages, which are those of the first full group, and another for the blocks of the other
/// layer groups: for example full attention in int8, and windows in float32. Only with layers::grouped. Codecs of
/// blocks write row by row.
template <codec_policy Pages, codec_policy Blocks>
struct by_group {
    using role = codec_role;
    Pages pages = {};   ///< Of the first full group.
    Blocks blocks = {}; ///< Of the others.

    [[nodiscard]] auto open(page_shape shape) const { return pages.open(shape); }
};
template <class Pages, class Blocks>
by_group(Pages, Blocks) -> by_group<Pages, Blocks>;

static_assert(codec_policy<by_group<f32, f32>>);

}}} // namespace kvcache::codec

// ---- kvcache/layers/grouped.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace layers {

/// Groups of layers that keep different things. The first group of full attention has the cache's pages. Every other
/// group has blocks: at most one for each page, for the same tokens. A block of a window is in use while the window of
/// a sequence covers it; a state block is a snapshot after the last token of its page. Pages and blocks share one
/// limit in bytes, and one eviction policy. Blocks are the host's with storage::external; otherwise the cache has them
/// in its storage, in the format of its codec, and `block_bytes`, `blocks` and the functions are not needed. The
/// functions run while the cache is locked and must not call it; a copy that throws has failed.
struct grouped {
    using role = layers_role;

    cache_layout layout = {};
    /// Whether window blocks that no query reads any more stay cached while there is room. If not, they are freed at
    /// once, and a prompt that parts from a cached one before its last window finds nothing. The last window of a
    /// sequence that ends stays in both cases.
    /// Blocks that a sequence has left by another window, or by 512 tokens if that is more, are evicted before all
    /// others, except where prompts have parted.
    bool keep_released = true;
    /// By group: the bytes of a block; 0 or absent for what the codec, or the layout, says. Not of an opaque state.
    std::vector<std::size_t> block_bytes = {};
    /// By group: the number of its blocks, where the host has fewer than the limit in bytes allows; 0 or absent for no
    /// other limit.
    std::vector<std::size_t> blocks = {};
    /// Copies the first rows of a block of a group to another one before the other is written.
    /// Returns whether it succeeded. Required with storage::external.
    std::function<bool(std::size_t group, std::uint32_t from, std::uint32_t to, std::size_t rows)> copy = {};
    /// Called when a block is freed, with what it held.
    std::function<void(std::size_t group, std::uint32_t block)> on_evict = {};

    /// The group whose blocks are the cache's pages, if there is one.
    [[nodiscard]] std::optional<std::size_t> paged() const noexcept {
        for (std::size_t group = 0; group < layout.groups.size(); ++group)
            if (layout.groups[group].kind() == group_kind::full)
                return group;
        return std::nullopt;
    }
    /// The shape of the cache's pages; without a full group they hold next to nothing.
    [[nodiscard]] kvcache::page_shape page_shape() const {
        const auto group = paged();
        return group ? layout.shape(*group) : kvcache::page_shape{1, 1, 1, layout.tokens};
    }

    /// Whether a cache with this limit can be opened, whose blocks are the host's or its own. Errors: out_of_range, for
    /// a layout that cannot be used, or a limit that is not in bytes; mismatched, without the function that copies
    /// blocks of the host.
    [[nodiscard]] result<void> check(const cache_limits& limit, bool owned) const {
        if (auto right = layout.check(); !right)
            return right;
        if (limit.bytes == 0)
            return error{error_code::out_of_range, "limit", "a cache of layer groups has a limit in bytes"};
        if (!owned && !copy)
            return error{error_code::mismatched, "copy", "blocks of layer groups need a function that copies them"};
        return {};
    }

    template <class Memory>
    class blocks_state;
    /// Blocks of the host. Requires: the layout can be used.
    [[nodiscard]] blocks_state<host_blocks> open(const layers_capacity& of) const;
    /// Blocks in memory of the cache. Requires: the layout can be used.
    template <class Memory>
    [[nodiscard]] blocks_state<Memory> open(const layers_capacity& of, Memory memory) const;
};

/// The blocks of all groups but the first full one: which page each belongs to, how many sequences use it, and the
/// bytes of pages and blocks together. Blocks are numbered by group, from 0. `Memory`: host_blocks or owned_blocks.
template <class Memory>
class grouped::blocks_state {
public:
    static constexpr bool several = true;
    static constexpr bool owned = Memory::owned;
    using memory_type = Memory;
    static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

    blocks_state(grouped policy, const layers_capacity& of, Memory memory)
        : policy_(std::move(policy)), memory_(std::move(memory)), branches_(of.pages, false), budget_(of.bytes) {
        const cache_layout& layout = policy_.layout;
        require(layout.check().has_value(), "a layout of layer groups can be used: cache_layout::check says why not");
        std::size_t slots = of.pages;
        for (std::size_t group = 0; group < layout.groups.size(); ++group) {
            const layer_group& its = layout.groups[group];
            block_pool made{.group = group, .first_slot = slots};
            made.state = its.kind() == group_kind::state;
            made.block_bytes = of.block_bytes[group];
            if (paged() != group && its.kind() != group_kind::alias) {
                const std::size_t fit = made.block_bytes == 0 ? of.pages : of.bytes / made.block_bytes;
                const std::size_t own = group < policy_.blocks.size() ? policy_.blocks[group] : 0;
                const std::size_t count = std::min({of.pages, fit, own == 0 ? of.pages : own});
                made.reserve(of.pages, count);
                slots += count;
                memory_.add(group, its, {count, made.block_bytes, layout.tokens});
                pools_.push_back(std::move(made));
            }
        }
        slots_ = slots;
    }

    [[nodiscard]] const cache_layout& layout() const noexcept { return policy_.layout; }
    [[nodiscard]] std::optional<std::size_t> paged() const noexcept { return policy_.paged(); }
    /// The number of layers with keys and values in the groups before this one.
    [[nodiscard]] std::size_t first_layer(std::size_t group) const noexcept {
        std::size_t before = 0;
        for (std::size_t i = 0; i < group; ++i)
            before += layout().groups[i].has_rows() ? layout().groups[i].layers : 0;
        return before;
    }
    /// The number of groups that have blocks of their own. Functions take their numbers, from 0.
    [[nodiscard]] std::size_t size() const noexcept { return pools_.size(); }
    /// The group whose keys and values a group reads: its own, unless it is an alias.
    [[nodiscard]] std::size_t keeper_of(std::size_t group) const {
        require(group < layout().groups.size(), "a group is one of the layout's");
        return layout().groups[group].alias_of.value_or(static_cast<std::uint32_t>(group));
    }
    /// The number of a group that has blocks.
    [[nodiscard]] std::size_t pool_of(std::size_t group) const {
        std::size_t pool = 0;
        while (pool < pools_.size() && pools_[pool].group != group)
            ++pool;
        require(pool < pools_.size(), "a group with blocks is neither the pages' own nor an alias");
        return pool;
    }
    /// The group of the layout.
    [[nodiscard]] std::size_t group(std::size_t pool) const noexcept { return pools_[pool].group; }
    [[nodiscard]] const layer_group& description(std::size_t pool) const noexcept {
        return layout().groups[pools_[pool].group];
    }
    [[nodiscard]] bool is_state(std::size_t pool) const noexcept { return pools_[pool].state; }
    [[nodiscard]] bool has_states() const noexcept {
        return std::any_of(pools_.begin(), pools_.end(), [](const block_pool& of) { return of.state; });
    }
    [[nodiscard]] bool keeps_released() const noexcept { return policy_.keep_released; }
    /// Bytes of each block of a group; 0 for opaque states.
    [[nodiscard]] std::size_t block_bytes(std::size_t pool) const noexcept { return pools_[pool].block_bytes; }
    /// Bytes of a block that a page has.
    [[nodiscard]] std::size_t bytes_of(std::size_t pool, std::uint32_t block) const noexcept {
        return pools_[pool].bytes[block];
    }
    [[nodiscard]] std::size_t blocks(std::size_t pool) const noexcept { return pools_[pool].owner.size(); }
    /// Bytes of all blocks that are not free.
    [[nodiscard]] std::size_t held_bytes(std::size_t pool) const noexcept { return pools_[pool].held; }
    /// Blocks that are free or not in use.
    [[nodiscard]] std::size_t available_blocks(std::size_t pool) const noexcept {
        return pools_[pool].free.size() + pools_[pool].idle;
    }
    [[nodiscard]] std::size_t free_blocks(std::size_t pool) const noexcept { return pools_[pool].free.size(); }

    // Bytes.

    [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
    [[nodiscard]] std::size_t used() const noexcept { return used_; }
    /// Bytes of blocks that no sequence uses.
    [[nodiscard]] std::size_t idle() const noexcept { return idle_; }
    [[nodiscard]] bool fits(std::size_t bytes) const noexcept { return bytes <= budget_ - used_; }
    void spend(std::size_t bytes) noexcept { used_ += bytes; }
    void refund(std::size_t bytes) noexcept { used_ -= bytes; }

    // Entries of the eviction policy: pages, then the blocks of each group.

    [[nodiscard]] std::size_t slots() const noexcept { return slots_; }
    [[nodiscard]] page_id entry(std::size_t pool, page_id page) const noexcept {
        return page_id{static_cast<std::uint32_t>(pools_[pool].first_slot + pools_[pool].of_page[index_of(page)])};
    }
    /// The group and the page of a block's entry.
    struct place {
        std::size_t pool = 0;
        page_id page = {};
    };
    [[nodiscard]] place place_of(page_id entry) const noexcept {
        std::size_t pool = 0;
        while (pool + 1 < pools_.size() && index_of(entry) >= pools_[pool + 1].first_slot)
            ++pool;
        return {pool, page_id{pools_[pool].owner[index_of(entry) - pools_[pool].first_slot]}};
    }

    // Blocks of pages.

    [[nodiscard]] bool has(std::size_t pool, page_id page) const noexcept {
        return pools_[pool].of_page[index_of(page)] != none;
    }
    /// Requires: the page has a block, as in the functions below.
    [[nodiscard]] std::uint32_t block(std::size_t pool, page_id page) const noexcept {
        return pools_[pool].of_page[index_of(page)];
    }
    [[nodiscard]] std::uint32_t covers(std::size_t pool, page_id page) const noexcept {
        return pools_[pool].covers[index_of(page)];
    }
    [[nodiscard]] std::uint32_t holders(std::size_t pool, std::uint32_t block) const noexcept {
        return pools_[pool].holders[block];
    }
    /// The number of pages that have the block.
    [[nodiscard]] std::uint32_t sharers(std::size_t pool, std::uint32_t block) const noexcept {
        return pools_[pool].pages[block];
    }
    /// The page by which the index knows a block; nullopt for one that only pages of sequences have.
    [[nodiscard]] std::optional<page_id> owner(std::size_t pool, std::uint32_t block) const noexcept {
        const std::uint32_t page = pools_[pool].owner[block];
        return page == none ? std::nullopt : std::optional(page_id{page});
    }

    /// Gives a page without one a block that one sequence uses. Returns false if the memory refuses. Requires: a block
    /// is free and fits.
    [[nodiscard]] bool take(std::size_t pool, page_id page, std::size_t bytes) {
        block_pool& of = pools_[pool];
        const std::uint32_t block = of.free.back();
        if (!memory_.acquire(pool, block, bytes))
            return false;
        of.free.pop_back();
        of.bytes[block] = bytes;
        of.of_page[index_of(page)] = block;
        of.owner[block] = index_of(page);
        of.pages[block] = of.holders[block] = of.covers[index_of(page)] = 1;
        of.held += bytes;
        spend(bytes);
        return true;
    }
    /// One more sequence uses the block. Returns whether it is the first.
    bool cover(std::size_t pool, page_id page) noexcept {
        block_pool& of = pools_[pool];
        ++of.covers[index_of(page)];
        const bool first = of.holders[block(pool, page)]++ == 0;
        if (first) {
            change_idle(of, block(pool, page), false);
            of.stale.remove(block(pool, page));
        }
        return first;
    }
    /// One sequence less. Returns whether it was the last.
    bool uncover(std::size_t pool, page_id page) {
        block_pool& of = pools_[pool];
        expects(of.covers[index_of(page)] > 0, "a block that is left was used");
        --of.covers[index_of(page)];
        const bool last = --of.holders[block(pool, page)] == 0;
        if (last)
            change_idle(of, block(pool, page), true);
        return last;
    }
    /// Makes the block that of another page too, without more users.
    void share(std::size_t pool, page_id from, page_id to) noexcept {
        block_pool& of = pools_[pool];
        const std::uint32_t block = of.of_page[index_of(from)];
        of.of_page[index_of(to)] = block;
        of.owner[block] = index_of(to);
        ++of.pages[block];
    }
    /// One user of the block uses it for another page that shares it.
    void pass_on(std::size_t pool, page_id from, page_id to) noexcept {
        --pools_[pool].covers[index_of(from)];
        ++pools_[pool].covers[index_of(to)];
    }
    /// Takes the block from a page whose sequences do not use it. Frees it if it has no other page.
    void detach(std::size_t pool, page_id page) {
        block_pool& of = pools_[pool];
        expects(of.covers[index_of(page)] == 0, "a block that is taken away is not used");
        const std::uint32_t block = std::exchange(of.of_page[index_of(page)], none);
        if (of.owner[block] == index_of(page))
            of.owner[block] = none;
        if (--of.pages[block] > 0)
            return;
        of.free.push_back(block);
        of.stale.remove(block);
        change_idle(of, block, false);
        of.held -= of.bytes[block];
        refund(of.bytes[block]);
        memory_.release(pool, block);
    }
    /// Prompts part in a page: later ones will need the windows there, and its blocks are evicted like others.
    void note_branch(page_id page) noexcept {
        branches_[index_of(page)] = true;
        for (block_pool& of : pools_)
            if (of.of_page[index_of(page)] != none)
                of.stale.remove(of.of_page[index_of(page)]);
    }
    void forget_branch(page_id page) noexcept { branches_[index_of(page)] = false; }
    [[nodiscard]] bool is_branch(page_id page) const noexcept { return branches_[index_of(page)]; }
    /// The block of a page, which no sequence uses, is evicted before all others of the cache.
    void make_stale(std::size_t pool, page_id page) noexcept { pools_[pool].stale.append(block(pool, page)); }
    /// The entry of the block of a group that has been stale for the longest time.
    [[nodiscard]] std::optional<page_id> stalest(std::size_t pool) const noexcept {
        const std::uint32_t block = pools_[pool].stale.first();
        return block == none ? std::nullopt
                             : std::optional(page_id{static_cast<std::uint32_t>(pools_[pool].first_slot + block)});
    }
    /// Copies the first rows of a page's block to that of another page. Returns whether it succeeded.
    [[nodiscard]] bool copy(std::size_t pool, page_id from, page_id to, std::size_t rows) const {
        return memory_.copy(pool, block(pool, from), block(pool, to), rows);
    }
    /// The memory of the blocks.
    [[nodiscard]] const Memory& memory() const noexcept { return memory_; }

    // What a sequence of `tokens` tokens uses of a group, as entries of its page table: [first, end).

    /// The first entry with tokens that the next query reads, or that has rows for more.
    [[nodiscard]] std::size_t first_entry(std::size_t pool, std::size_t tokens) const noexcept {
        const std::size_t size = layout().tokens;
        return std::min(description(pool).first_read(tokens), tokens) / size;
    }

    /// Entries between the window of a sequence and its stale blocks: those of another window, or of 512 tokens if that
    /// is more. Many prompts part from an earlier one shortly before its end, and need its window there.
    [[nodiscard]] std::size_t stale_distance(std::size_t pool) const noexcept {
        return (std::max<std::size_t>(description(pool).window, 512) + layout().tokens - 1) / layout().tokens;
    }

private:
    // Blocks in the order in which they became stale: a list through all of them.
    class stale_blocks {
    public:
        void reserve(std::size_t blocks) { links_.assign(blocks + 1, {none, none}), links_.back() = {end(), end()}; }
        [[nodiscard]] std::uint32_t first() const noexcept {
            return links_.back().next == end() ? none : links_.back().next;
        }
        void append(std::uint32_t block) noexcept {
            remove(block);
            links_[block] = {links_.back().before, end()};
            links_[links_.back().before].next = block;
            links_.back().before = block;
        }
        void remove(std::uint32_t block) noexcept {
            const link one = std::exchange(links_[block], {none, none});
            if (one.next == none)
                return;
            links_[one.before].next = one.next;
            links_[one.next].before = one.before;
        }

    private:
        struct link {
            std::uint32_t before, next;
        };
        [[nodiscard]] std::uint32_t end() const noexcept { return static_cast<std::uint32_t>(links_.size() - 1); }
        std::vector<link> links_; // the last one is of the list itself
    };
    struct block_pool {
        std::size_t group = 0;
        std::size_t first_slot = 0;
        std::size_t block_bytes = 0;
        bool state = false;
        std::vector<std::uint32_t> of_page = {}; // by page: its block
        std::vector<std::uint32_t> covers = {};  // by page: sequences that use its block for it
        std::vector<std::uint32_t> owner = {};   // by block: the page that the index knows it by
        std::vector<std::uint32_t> pages = {};   // by block: the pages that share it
        std::vector<std::uint32_t> holders = {}; // by block: sequences that use it
        std::vector<std::size_t> bytes = {};     // by block
        std::vector<std::uint32_t> free = {};
        stale_blocks stale = {}; // of those that no sequence uses
        std::size_t idle = 0;    // blocks that no sequence uses
        std::size_t held = 0;    // bytes of blocks that are not free

        void reserve(std::size_t page_count, std::size_t blocks) {
            of_page.assign(page_count, none);
            covers.assign(page_count, 0);
            owner.assign(blocks, none);
            pages.assign(blocks, 0);
            holders.assign(blocks, 0);
            bytes.assign(blocks, 0);
            stale.reserve(blocks);
            for (std::size_t block = blocks; block > 0; --block)
                free.push_back(static_cast<std::uint32_t>(block - 1));
        }
    };

    // A block is not used any more, or used again, or freed.
    void change_idle(block_pool& of, std::uint32_t block, bool more) noexcept {
        of.idle += more ? 1 : std::size_t(-1);
        idle_ += more ? of.bytes[block] : std::size_t{} - of.bytes[block];
    }

    grouped policy_;
    Memory memory_;
    std::vector<block_pool> pools_;
    std::vector<bool> branches_; // by page
    std::size_t budget_;
    std::size_t used_ = 0;
    std::size_t idle_ = 0;
    std::size_t slots_ = 0;
};

inline grouped::blocks_state<host_blocks> grouped::open(const layers_capacity& of) const {
    return open(of, host_blocks(copy, on_evict));
}
template <class Memory>
grouped::blocks_state<Memory> grouped::open(const layers_capacity& of, Memory memory) const {
    return {*this, of, std::move(memory)};
}

static_assert(layers_policy<grouped>);

}}} // namespace kvcache::layers

// ---- kvcache/layer_groups.hpp -------------------------------------------------------------------------------------

// Layer groups: layers::grouped, for models whose layers keep different things of a sequence.

// ---- kvcache/eviction/arc.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Adaptive replacement cache (ARC). Two LRU lists, of entries used once and of entries used again, share the capacity
/// according to a target that adapts. A hit on a ghost of the first list raises the target, one of the second lowers
/// it, and the entry joins the second list. The victim is the oldest of the first list while that list exceeds the
/// target, otherwise the oldest of the second. An entry that is not evictable moves to the front of its list.
///
///     admit -> [ once  ] -> victim -> [ ghosts ] -- returns: target + --.
///                 '- touch -.                                           |
///     admit -> [ again ] <--+-> victim -> [ ghosts ] -- returns: - -----'-> again
///
/// Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003.
struct arc {
    using role = eviction_role;
    std::size_t step = 0; ///< Minimum bytes by which a ghost hit moves the target; 0: the size of its entry.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 25 bytes a slot and 16 a
    /// ghost, at most two ghosts a slot.
    class state {
    public:
        state(const arc& policy, eviction_capacity capacity)
            : queues_(capacity.slots, 2),
              entries_(capacity.slots),
              places_(capacity.slots),
              ghosts_{ghost_list(capacity.slots, capacity.bytes), ghost_list(capacity.slots, capacity.bytes)},
              capacity_(capacity.bytes),
              step_(policy.step) {}

        void on_miss(const eviction_entry& newcomer) {
            missed_ = newcomer.key;
            bytes_to_come_ = newcomer.bytes;
            returns_ = nowhere;
            const auto of_once = static_cast<double>(ghosts_[once].bytes());
            const auto of_again = static_cast<double>(ghosts_[again].bytes());
            const auto least = static_cast<double>(step_ > 0 ? step_ : newcomer.bytes);
            if (ghosts_[once].take(newcomer.key)) {
                returns_ = once;
                target_ = std::min(target_ + least * std::max(of_again / std::max(of_once, 1.0), 1.0),
                                   static_cast<double>(capacity_));
            } else if (ghosts_[again].take(newcomer.key)) {
                returns_ = again;
                target_ = std::max(target_ - least * std::max(of_once / std::max(of_again, 1.0), 1.0), 0.0);
            }
        }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            if (missed_ != newcomer.key)
                on_miss(newcomer);
            entries_[index_of(slot)] = {newcomer.key, newcomer.bytes};
            insert(slot, returns_ == nowhere ? once : again);
            missed_.reset();
            returns_ = nowhere;
        }

        void touch(slot_id slot) {
            erase(slot);
            insert(slot, again);
        }

        void on_released(slot_id slot) { queues_.move_to_front(slot, places_[index_of(slot)]); }

        void erase(slot_id slot) {
            queues_.remove(slot);
            bytes_[places_[index_of(slot)]] -= entries_[index_of(slot)].bytes;
        }

        void evict(slot_id slot) {
            const bool without_ghost = places_[index_of(slot)] == once && all_are_once();
            if (returns_ == nowhere) {
                if (first_is_full()) {
                    if (ghosts_[once].size() > 0)
                        ghosts_[once].pop();
                } else if (bytes_[once] + bytes_[again] + ghosts_[once].bytes() + ghosts_[again].bytes() >=
                           2 * capacity_) {
                    if (ghosts_[again].size() > 0)
                        ghosts_[again].pop();
                }
            }
            erase(slot);
            const auto [key, bytes] = entries_[index_of(slot)];
            if (!without_ghost && !ghosts_[once].contains(key) && !ghosts_[again].contains(key))
                ghosts_[places_[index_of(slot)]].push(key, {.bytes = bytes});
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            const auto of_once = static_cast<double>(bytes_[once]);
            const bool from_once =
                !queues_.empty(once) && (all_are_once() || queues_.empty(again) || of_once > target_ ||
                                         (of_once == target_ && returns_ == again));
            if (const auto found = queues_.oldest(from_once ? once : again, is_evictable))
                return found;
            return queues_.oldest(from_once ? again : once, is_evictable);
        }

    private:
        static constexpr std::uint8_t once = 0, again = 1, nowhere = 2;
        struct known {
            std::uint64_t key = 0;
            std::size_t bytes = 0;
        };

        // Whether the first list, its ghosts and the new entry exceed the capacity.
        [[nodiscard]] bool first_is_full() const {
            return bytes_[once] + ghosts_[once].bytes() + bytes_to_come_ > capacity_;
        }
        [[nodiscard]] bool all_are_once() const {
            return returns_ == nowhere && first_is_full() && ghosts_[once].size() == 0;
        }

        void insert(slot_id slot, std::uint8_t queue) {
            queues_.push_front(slot, queue);
            places_[index_of(slot)] = queue;
            bytes_[queue] += entries_[index_of(slot)].bytes;
        }

        slot_lists queues_;
        std::vector<known> entries_;
        std::vector<std::uint8_t> places_;
        ghost_list ghosts_[2];
        std::size_t bytes_[2] = {};
        std::size_t capacity_;
        std::size_t step_;
        double target_ = 0.0; // target size of the first list, in bytes
        std::optional<std::uint64_t> missed_;
        std::size_t bytes_to_come_ = 0;
        std::uint8_t returns_ = nowhere; // the list whose ghost the missed entry was
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<arc>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/clock.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// CLOCK: FIFO with one more round for each use. A touch increments an entry's counter, up to 2^bits - 1. At the end of
/// the queue an entry with a nonzero counter is decremented and goes back to the front; one with a zero counter is
/// evicted. An entry that is not evictable goes back to the front as well.
///
///     admit -> [ newest ... oldest ] -> count 0: victim
///                ^----- count - 1 -----'
///
/// Corbato, "A paging experiment with the Multics system", 1968; with more bits, FIFO-Reinsertion.
struct clock {
    using role = eviction_role;
    std::uint32_t bits = 1; ///< Bits of the counter, 1 to 6.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 9 bytes a slot.
    class state {
    public:
        state(const clock& policy, std::size_t slots)
            : queue_(slots, 1), counts_(slots), most_(static_cast<std::uint8_t>((1u << policy.bits) - 1)) {
            require(policy.bits >= 1 && policy.bits <= 6, "clock counts in 1 to 6 bits");
        }

        void admit(slot_id slot, const eviction_entry&) {
            queue_.push_front(slot, 0);
            counts_[index_of(slot)] = fresh;
        }

        void touch(slot_id slot) {
            std::uint8_t& count = counts_[index_of(slot)];
            if ((count & uses) < most_)
                ++count;
        }

        void on_released(slot_id slot) {
            if ((counts_[index_of(slot)] & fresh) != 0) // its first release: a chain queues tail first
                queue_.move_to_front(slot, 0);
            counts_[index_of(slot)] &= uses;
        }

        void erase(slot_id slot) { queue_.remove(slot); }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            // After most_ rounds every counter is zero, and the next round checks every entry.
            for (std::size_t met = 0; met < queue_.slots() * (most_ + 1u) && !queue_.empty(0); ++met) {
                const slot_id oldest = queue_.back(0);
                std::uint8_t& count = counts_[index_of(oldest)];
                if ((count & uses) == 0 && is_evictable(oldest))
                    return oldest;
                if ((count & uses) != 0)
                    --count;
                queue_.move_to_front(oldest, 0);
            }
            return std::nullopt;
        }

    private:
        static constexpr std::uint8_t fresh = 0x80; // not yet released
        static constexpr std::uint8_t uses = 0x7f;

        slot_lists queue_;
        std::vector<std::uint8_t> counts_;
        std::uint8_t most_;
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity.slots}; }
};

static_assert(eviction_policy<clock>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/greedy_dual.hpp -----------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// A min-heap of slots with changeable ranks; ties go to the slot that has had its rank longest. A binary heap with the
/// position of each slot. A slot can be set aside: it keeps its rank but is not in the heap.
///
/// Cost: O(log n) each. 20 bytes a slot.
class slot_heap {
public:
    explicit slot_heap(std::size_t slots) : heap_(slots), places_(slots, nowhere), ranks_(slots), turns_(slots) {}

    /// The number of slots that are not set aside.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] bool contains(slot_id slot) const noexcept { return places_[index_of(slot)] != nowhere; }
    [[nodiscard]] double rank(slot_id slot) const noexcept { return ranks_[index_of(slot)]; }

    /// The slot at a place of the heap, the lowest at 0. The order of the others is unspecified, but each slot that is
    /// not set aside occurs once. Requires: place < size().
    [[nodiscard]] slot_id at(std::size_t place) const noexcept { return slot_id{heap_[place]}; }

    /// Returns whether `a` comes out before `b`.
    [[nodiscard]] bool before(slot_id a, slot_id b) const noexcept { return before(index_of(a), index_of(b)); }

    /// Adds a slot, or changes its rank.
    void rank(slot_id slot, double rank) noexcept {
        const std::uint32_t at = index_of(slot);
        ranks_[at] = rank;
        turns_[at] = turn_++;
        if (places_[at] == nowhere)
            insert(at);
        else if (places_[at] != aside)
            sink(rise(places_[at]));
    }

    /// Requires: the slot is in the heap.
    void remove(slot_id slot) noexcept {
        if (places_[index_of(slot)] != aside)
            extract(index_of(slot));
        places_[index_of(slot)] = nowhere;
    }

    /// Requires: the slot is in the heap.
    void set_aside(slot_id slot) noexcept {
        if (places_[index_of(slot)] != aside)
            extract(index_of(slot));
        places_[index_of(slot)] = aside;
    }

    /// Returns a slot that was set aside to the heap.
    void put_back(slot_id slot) noexcept {
        if (places_[index_of(slot)] == aside)
            insert(index_of(slot));
    }

private:
    static constexpr std::uint32_t nowhere = 0xffffffffu, aside = 0xfffffffeu;

    void insert(std::uint32_t slot) noexcept {
        heap_[size_] = slot;
        places_[slot] = size_;
        rise(size_++);
    }

    void extract(std::uint32_t slot) noexcept {
        const std::uint32_t place = places_[slot];
        swap(place, --size_);
        if (place < size_)
            sink(rise(place));
    }

    // Turns may wrap: `a` is earlier than `b` if `b` is less than 2^31 turns ahead.
    [[nodiscard]] bool before(std::uint32_t a, std::uint32_t b) const noexcept {
        return ranks_[a] < ranks_[b] ||
               (ranks_[a] == ranks_[b] && static_cast<std::int32_t>(turns_[a] - turns_[b]) < 0);
    }

    void swap(std::uint32_t a, std::uint32_t b) noexcept {
        std::swap(heap_[a], heap_[b]);
        places_[heap_[a]] = a;
        places_[heap_[b]] = b;
    }

    std::uint32_t rise(std::uint32_t place) noexcept {
        for (; place > 0 && before(heap_[place], heap_[(place - 1) / 2]); place = (place - 1) / 2)
            swap(place, (place - 1) / 2);
        return place;
    }

    void sink(std::uint32_t place) noexcept {
        for (;;) {
            std::uint32_t least = place;
            for (std::uint32_t child = 2 * place + 1; child <= 2 * place + 2 && child < size_; ++child)
                if (before(heap_[child], heap_[least]))
                    least = child;
            if (least == place)
                return;
            swap(place, least);
            place = least;
        }
    }

    std::vector<std::uint32_t> heap_;   // slots
    std::vector<std::uint32_t> places_; // by slot: index in the heap
    std::vector<double> ranks_;         // by slot
    std::vector<std::uint32_t> turns_;  // by slot: when it got its rank
    std::uint32_t size_ = 0;
    std::uint32_t turn_ = 0;
};

/// The state of a greedy dual policy: entries ranked by the clock plus a value. The entry of lowest rank is evicted,
/// and the clock advances to its rank. A value that is not renewed therefore loses to new entries in time. An entry
/// with children keeps its rank; searches skip it.
///
/// Worth computes the values: worth(slot), after its `admit(slot, newcomer)`, `touch(slot)` and, if it has one,
/// `evict(slot)` were called.
///
/// Cao and Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997.
///
/// Cost: O(log n) each; a search in which the first candidate is evictable O(1). 20 bytes a slot, and those of Worth.
template <class Worth>
class greedy_dual {
public:
    explicit greedy_dual(std::size_t slots) : heap_(slots), worth_(slots) {}

    [[nodiscard]] const Worth& worth() const noexcept { return worth_; }

    void admit(slot_id slot, const eviction_entry& newcomer) {
        worth_.admit(slot, newcomer);
        on_released(slot);
    }

    void touch(slot_id slot) {
        worth_.touch(slot);
        on_released(slot);
    }

    void on_released(slot_id slot) { heap_.rank(slot, clock_ + worth_(slot)); }
    void on_child_added(slot_id slot) { heap_.set_aside(slot); }
    void on_last_child_removed(slot_id slot) { heap_.put_back(slot); }
    void erase(slot_id slot) { heap_.remove(slot); }

    void evict(slot_id slot) {
        if constexpr (requires { worth_.evict(slot); })
            worth_.evict(slot);
        clock_ = heap_.rank(slot);
        heap_.remove(slot);
    }

    /// The evictable slot of lowest rank. A slot that is not evictable is in use: it is ranked anew, as if the clock
    /// stood at its rank.
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
        for (std::size_t met = 0; met < heap_.size(); ++met) {
            const slot_id lowest = heap_.at(0);
            if (is_evictable(lowest))
                return lowest;
            heap_.rank(lowest, heap_.rank(lowest) + worth_(lowest));
        }
        // Slots of low value may have been checked repeatedly before one of high value was checked at all.
        std::optional<slot_id> found;
        for (std::size_t place = 0; place < heap_.size(); ++place)
            if (const slot_id slot = heap_.at(place); (!found || heap_.before(slot, *found)) && is_evictable(slot))
                found = slot;
        return found;
    }

private:
    slot_heap heap_;
    Worth worth_;
    double clock_ = 0.0;
};

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/cost_aware.hpp ------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Ranks an entry by the time that its next hit is expected to save, per byte. Each hit ranks it anew. A hit saves the
/// entry's cost, provided that its parent is present, so depth as such does not raise the rank. The probability of a
/// hit is learned from the fate of entries with equally many uses, and age lowers the rank as in gdsf. The entry of
/// lowest rank is evicted. An entry that is not evictable is ranked anew, as if it had just been used; an entry with
/// children is skipped.
///
///     rank = clock + probability of a hit after so many uses * cost / bytes
///
/// The caller gives the cost, in seconds on its own machine. Cherkasova's greedy dual size frequency (HP Labs 1998)
/// with the reuse learned per class as in "KVCache cache in the wild", USENIX ATC 2025, and the cost as in Marconi,
/// MLSys 2025.
struct cost_aware {
    using role = eviction_role;

    /// The value of each entry, and the probabilities of a hit. Cost: O(1) each. 5 bytes a slot; with its rank 25.
    class worth {
    public:
        explicit worth(std::size_t slots) : savings_(slots), uses_(slots) { seen_.fill({1.0, 1.0}); }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            uses_[index_of(slot)] = 1;
            savings_[index_of(slot)] =
                static_cast<float>(newcomer.cost / static_cast<double>(std::max<std::size_t>(newcomer.bytes, 1)));
        }

        void touch(slot_id slot) {
            std::uint8_t& uses = uses_[index_of(slot)];
            learn(uses, 1.0, 0.0);
            uses = static_cast<std::uint8_t>(std::min(uses + 1, 255));
        }

        void evict(slot_id slot) { learn(uses_[index_of(slot)], 0.0, 1.0); }

        [[nodiscard]] double operator()(slot_id slot) const {
            return chance_of_hit(uses_[index_of(slot)]) * static_cast<double>(savings_[index_of(slot)]);
        }

        /// The probability that an entry with so many uses is used again before it is evicted.
        [[nodiscard]] double chance_of_hit(std::uint32_t uses) const {
            const outcomes& seen = seen_[group(uses)];
            return seen.hits / (seen.hits + seen.evictions);
        }

    private:
        struct outcomes {
            double hits = 1.0;
            double evictions = 1.0;
        };

        // Groups: 1, 2, 3, 4 to 7, 8 to 15 ... uses.
        [[nodiscard]] static std::size_t group(std::uint32_t uses) {
            return uses < 4 ? uses - 1 : static_cast<std::size_t>(std::bit_width(uses));
        }

        void learn(std::uint32_t uses, double hits, double evictions) {
            outcomes& seen = seen_[group(uses)];
            seen.hits += hits;
            seen.evictions += evictions;
            if (seen.hits + seen.evictions > 4096.0) { // older outcomes decay
                seen.hits *= 0.5;
                seen.evictions = std::max(0.5 * seen.evictions, 1.0);
            }
        }

        std::vector<float> savings_; // seconds a byte
        std::vector<std::uint8_t> uses_;
        std::array<outcomes, 9> seen_ = {}; // by group of uses
    };

    using state = greedy_dual<worth>;
    [[nodiscard]] state open(eviction_capacity capacity) const { return state(capacity.slots); }
};

static_assert(eviction_policy<cost_aware>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/lru.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Evicts the least recently used entry. Admission and every touch move an entry to the front of one LRU list. An entry
/// that is not evictable is in use, so it moves to the front when the search meets it.
///
///     touch, admit -> [ newest ... oldest ] -> victim
struct lru {
    using role = eviction_role;

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 8 bytes a slot.
    class state {
    public:
        explicit state(std::size_t slots) : queue_(slots, 1) {}

        void admit(slot_id slot, const eviction_entry&) { queue_.push_front(slot, 0); }

        void touch(slot_id slot) { queue_.move_to_front(slot, 0); }

        void on_released(slot_id slot) { touch(slot); }

        void erase(slot_id slot) { queue_.remove(slot); }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            return queue_.oldest(0, is_evictable);
        }

    private:
        slot_lists queue_;
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{capacity.slots}; }
};

static_assert(eviction_policy<lru>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/expiring.hpp --------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Milliseconds of the machine's steady clock.
struct steady_milliseconds {
    [[nodiscard]] std::uint64_t operator()() const noexcept {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
    }
};

/// A clock in milliseconds that never goes back.
template <class C>
concept millisecond_clock = requires(const C clock) {
    { clock() } -> std::convertible_to<std::uint64_t>;
};

/// Evicts entries that were not used for a time first; if there are none, another policy decides. `expired` lets a
/// caller remove expired entries before space is needed. An entry that is not evictable is in use: its time restarts
/// when the search meets it.
///
///     touch, release, admit -> [ newest ... oldest ] -> expired: victim
///                              [ Inner             ] -> else its victim
///
///     expiring<s3_fifo>{.time_to_live = std::chrono::minutes(5)}
template <eviction_policy Inner = lru, millisecond_clock Clock = steady_milliseconds>
struct expiring {
    using role = eviction_role;
    Inner inner = {};
    std::chrono::milliseconds time_to_live = std::chrono::minutes(5); ///< As public prompt caches do; below 2^31 ms.
    Clock clock = {};
    class state;
    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

/// Cost: that of Inner, plus O(1) each. Inner's bytes a slot, plus 12.
template <eviction_policy Inner, millisecond_clock Clock>
class expiring<Inner, Clock>::state {
public:
    state(const expiring& policy, eviction_capacity capacity)
        : inner_(policy.inner.open(capacity)),
          clock_(policy.clock),
          queue_(capacity.slots, 1),
          times_(capacity.slots),
          lifetime_(static_cast<std::uint32_t>(policy.time_to_live.count())) {
        require(policy.time_to_live.count() >= 0 && policy.time_to_live.count() < std::int64_t{1} << 31,
                "a time to live is from 0 to 2^31 - 1 milliseconds");
    }

    void on_miss(const eviction_entry& newcomer) { kvcache::on_miss(inner_, newcomer); }

    void admit(slot_id slot, const eviction_entry& newcomer) {
        inner_.admit(slot, newcomer);
        queue_.push_front(slot, 0);
        times_[index_of(slot)] = now();
    }

    void touch(slot_id slot) {
        inner_.touch(slot);
        renew(slot);
    }

    void on_released(slot_id slot) {
        kvcache::on_released(inner_, slot);
        renew(slot);
    }

    void on_child_added(slot_id slot) { kvcache::on_child_added(inner_, slot); }
    void on_last_child_removed(slot_id slot) { kvcache::on_last_child_removed(inner_, slot); }

    void erase(slot_id slot) {
        inner_.erase(slot);
        queue_.remove(slot);
    }

    void evict(slot_id slot) {
        kvcache::evict(inner_, slot);
        queue_.remove(slot);
    }

    /// The next evictable entry whose time has expired.
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> expired(IsEvictable&& is_evictable) {
        for (std::size_t met = 0; met < queue_.slots() && !queue_.empty(0); ++met) {
            const slot_id oldest = queue_.back(0);
            if (now() - times_[index_of(oldest)] < lifetime_)
                return std::nullopt;
            if (is_evictable(oldest))
                return oldest;
            renew(oldest);
        }
        return std::nullopt;
    }

    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
        if (const auto found = expired(is_evictable))
            return found;
        return inner_.victim(is_evictable);
    }

private:
    // The clock wraps; the age of an entry does not while it is below 49 days.
    [[nodiscard]] std::uint32_t now() const { return static_cast<std::uint32_t>(clock_()); }

    void renew(slot_id slot) {
        queue_.move_to_front(slot, 0);
        times_[index_of(slot)] = now();
    }

    opened_by<Inner, eviction_capacity> inner_;
    Clock clock_;
    slot_lists queue_;                 // in order of last use
    std::vector<std::uint32_t> times_; // of last use
    std::uint32_t lifetime_;
};

static_assert(eviction_policy<expiring<lru>>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/fifo.hpp ------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Evicts entries in order of arrival, used or not. An entry arrives when it is first released, so that a chain is
/// queued and evicted tail first. An entry that is not evictable goes back to the front when the search meets it.
///
///     admit, first release -> [ newest ... oldest ] -> victim
struct fifo {
    using role = eviction_role;

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 9 bytes a slot.
    class state {
    public:
        explicit state(std::size_t slots) : queue_(slots, 1), settled_(slots) {}

        void admit(slot_id slot, const eviction_entry&) {
            queue_.push_front(slot, 0);
            settled_[index_of(slot)] = 0;
        }

        void touch([[maybe_unused]] slot_id slot) {}

        void on_released(slot_id slot) {
            if (settled_[index_of(slot)] == 0)
                queue_.move_to_front(slot, 0);
            settled_[index_of(slot)] = 1;
        }

        void erase(slot_id slot) { queue_.remove(slot); }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            return queue_.oldest(0, is_evictable);
        }

    private:
        slot_lists queue_;
        std::vector<std::uint8_t> settled_; // whether it was released once
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{capacity.slots}; }
};

static_assert(eviction_policy<fifo>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/gdsf.hpp ------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Greedy dual size frequency: an entry's value is its uses times its cost, per byte, added to a clock that advances to
/// the rank of each evicted entry. The entry of lowest rank is evicted. An entry that is not evictable is ranked anew,
/// as if it had just arrived with its uses; an entry with children keeps its rank and is skipped.
///
///     rank = clock + uses * cost / bytes
///
/// For equal costs and sizes this is LFU with dynamic aging. Cherkasova, "Improving WWW proxies performance with greedy
/// dual size frequency caching policy", HP Labs 1998.
struct gdsf {
    using role = eviction_role;

    /// The value of each entry. Cost: O(1) each. 12 bytes a slot; with its rank 32.
    class worth {
    public:
        explicit worth(std::size_t slots) : entries_(slots) {}

        void admit(slot_id slot, const eviction_entry& newcomer) {
            entries_[index_of(slot)] = {1, static_cast<float>(newcomer.cost), static_cast<float>(newcomer.bytes)};
        }
        void touch(slot_id slot) { ++entries_[index_of(slot)].uses; }

        [[nodiscard]] double operator()(slot_id slot) const {
            const auto [uses, cost, bytes] = entries_[index_of(slot)];
            return static_cast<double>(uses) * static_cast<double>(cost) / static_cast<double>(bytes);
        }

    private:
        struct known {
            std::uint32_t uses = 0;
            float cost = 0.0f;
            float bytes = 0.0f;
        };
        std::vector<known> entries_;
    };

    using state = greedy_dual<worth>;
    [[nodiscard]] state open(eviction_capacity capacity) const { return state(capacity.slots); }
};

static_assert(eviction_policy<gdsf>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/lfu.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Evicts the least frequently used entry; ties go to the least recently used. Use counts saturate at 255. With a
/// history, a ghost keeps the count of an evicted entry, which resumes when the entry returns. An entry that is not
/// evictable moves to the front of its list.
///
///     admit -> [ used once ] -> victim -> [ ghosts ]
///       touch: [ twice     ]                  |
///              [ ...       ] <-- returns -----'
struct lfu {
    using role = eviction_role;
    double history = 0.0; ///< Number of ghosts per slot.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 9 bytes a slot; with a
    /// history 17, and 21 a ghost.
    class state {
    public:
        state(const lfu& policy, std::size_t slots)
            : queues_(slots, most + 1),
              counts_(slots),
              keys_(policy.history > 0 ? slots : 0),
              ghosts_(static_cast<std::size_t>(static_cast<double>(slots) * policy.history), 0,
                      ghost_list::marks::kept) {}

        void admit(slot_id slot, const eviction_entry& newcomer) {
            std::uint32_t count = 1;
            if (!keys_.empty()) {
                keys_[index_of(slot)] = newcomer.key;
                if (const auto returns = ghosts_.take(newcomer.key))
                    count = std::min(returns->mark + 1, most);
            }
            insert(slot, count);
        }

        void touch(slot_id slot) {
            const std::uint32_t count = counts_[index_of(slot)];
            erase(slot);
            insert(slot, std::min(count + 1, most));
        }

        void on_released(slot_id slot) { queues_.move_to_front(slot, counts_[index_of(slot)]); }

        void erase(slot_id slot) {
            const std::uint32_t count = counts_[index_of(slot)];
            queues_.remove(slot);
            if (queues_.empty(count))
                filled_[count / 64] &= ~(std::uint64_t{1} << count % 64);
        }

        void evict(slot_id slot) {
            erase(slot);
            if (keys_.empty())
                return;
            ghosts_.take(keys_[index_of(slot)]); // of another entry with the same key
            ghosts_.push(keys_[index_of(slot)], {.mark = counts_[index_of(slot)]});
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            for (std::uint32_t word = 0; word < 4; ++word)
                for (std::uint64_t left = filled_[word]; left != 0; left &= left - 1)
                    if (const auto found = queues_.oldest(
                            64 * word + static_cast<std::uint32_t>(std::countr_zero(left)), is_evictable))
                        return found;
            return std::nullopt;
        }

    private:
        static constexpr std::uint32_t most = 255;

        void insert(slot_id slot, std::uint32_t count) {
            counts_[index_of(slot)] = static_cast<std::uint8_t>(count);
            queues_.push_front(slot, count);
            filled_[count / 64] |= std::uint64_t{1} << count % 64;
        }

        slot_lists queues_; // by count
        std::vector<std::uint8_t> counts_;
        std::vector<std::uint64_t> keys_;
        ghost_list ghosts_;            // marked with their counts
        std::uint64_t filled_[4] = {}; // one bit per list
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity.slots}; }
};

static_assert(eviction_policy<lfu>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/lhd.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// The expected hits of an entry per unit of its remaining lifetime, by group and age. Learned from the ages at which
/// entries were hit or evicted, in decaying histograms. Time is counted in uses; ages are in steps of a power of two of
/// uses.
///
///     density(age) = hits at `age` and later / sum over the events at `age` and later of the remaining lifetime
///
/// Beckmann, Chen and Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018.
///
/// Cost: O(1) each, amortized. 192 bytes an age, and an age for 32 slots, at least 256 and at most 4,096.
class hit_density {
public:
    explicit hit_density(std::size_t slots)
        : ages_(static_cast<std::uint32_t>(std::clamp<std::size_t>(slots / 32, 256, 4096))),
          period_(static_cast<std::uint32_t>(std::clamp<std::size_t>(std::bit_ceil(slots) * 16, 1u << 10, 1u << 20))),
          hits_(std::size_t{groups} * ages_),
          evictions_(std::size_t{groups} * ages_),
          densities_(std::size_t{groups} * ages_),
          shift_(steps(slots)) {
        for (std::uint32_t g = 0; g < groups; ++g) // approximates GDSF until something is learned
            for (std::uint32_t a = 0; a < ages_; ++a)
                densities_[g * ages_ + a] = static_cast<float>(groups + g + 1) / static_cast<float>(a + 1);
    }

    /// The number of distinct ages; the last one stands for all greater ages.
    [[nodiscard]] std::uint16_t ages() const noexcept { return static_cast<std::uint16_t>(ages_); }

    /// Returns whether little has been learned yet.
    [[nodiscard]] bool young() const noexcept { return rounds_ < 50; }

    [[nodiscard]] std::uint32_t now() const noexcept { return now_; }

    /// The age of an entry last used at time `then`.
    [[nodiscard]] std::uint16_t age(std::uint32_t then) const noexcept {
        return static_cast<std::uint16_t>(std::min((now_ - then) >> shift_, ages_ - 1));
    }

    /// The group of entries whose last two ages have this sum: by powers of two, the shortest highest.
    [[nodiscard]] std::uint32_t group(std::uint32_t ages) const noexcept {
        if (ages == 0)
            return groups - 1;
        std::uint32_t doublings = 0;
        for (; ages < ages_ && doublings < groups - 1; ages *= 2)
            ++doublings;
        return doublings;
    }

    [[nodiscard]] float at(std::uint32_t group, std::uint16_t age) const noexcept {
        return densities_[group * ages_ + age];
    }

    void hit(std::uint32_t group, std::uint16_t age) noexcept { hits_[group * ages_ + age] += 1.0f; }
    void evicted(std::uint32_t group, std::uint16_t age) noexcept { evictions_[group * ages_ + age] += 1.0f; }

    /// Advances time by one use, with the number of entries present. Learns periodically.
    void pass(std::uint32_t entries) noexcept {
        if (++now_ % period_ != 0)
            return;
        for (float& count : hits_)
            count *= decay;
        for (float& count : evictions_)
            count *= decay;
        // Twice, near the start, once the number of entries that fit is known.
        if (rounds_ == 5 || rounds_ == 25)
            rescale(steps(entries));
        ++rounds_;
        learn();
    }

private:
    static constexpr std::uint32_t groups = 16;
    static constexpr float decay = 0.9f; // the paper's

    // The log2 of the uses in a step, chosen so that all ages together span 32 to 64 uses per entry.
    [[nodiscard]] std::uint32_t steps(std::size_t entries) const noexcept {
        return static_cast<std::uint32_t>(std::bit_width(std::max<std::size_t>(32 * entries / ages_, 1))) - 1;
    }

    void learn() noexcept {
        for (std::uint32_t g = 0; g < groups; ++g) {
            const std::size_t first = std::size_t{g} * ages_;
            float hits = 0.0f, events = 0.0f, time = 0.0f;
            for (std::size_t at = first + ages_; at-- > first;) {
                hits += hits_[at];
                events += hits_[at] + evictions_[at];
                time += events;
                densities_[at] = events > 1e-5f ? hits / time : 0.0f;
            }
        }
    }

    // Changes the step: counts move to the age that now covers theirs.
    void rescale(std::uint32_t shift) noexcept {
        for (std::vector<float>* counts : {&hits_, &evictions_})
            for (std::uint32_t g = 0; g < groups; ++g) {
                float* const row = counts->data() + std::size_t{g} * ages_;
                if (shift > shift_)
                    merge(row, 1u << (shift - shift_));
                else if (shift < shift_)
                    spread(row, 1u << (shift_ - shift));
            }
        shift_ = shift;
    }

    void merge(float* row, std::uint32_t width) const noexcept {
        for (std::uint32_t a = 0; a < ages_; ++a) {
            const float count = row[a];
            row[a] = 0.0f;
            row[a / width] += count;
        }
    }

    void spread(float* row, std::uint32_t width) const noexcept {
        for (std::uint32_t a = ages_; a-- > 0;) {
            const float share = row[a] / static_cast<float>(width);
            row[a] = 0.0f;
            for (std::uint32_t part = 0; part < width; ++part)
                row[std::min(a * width + part, ages_ - 1)] += share;
        }
    }

    std::uint32_t ages_;
    std::uint32_t period_;                            // uses between updates
    std::vector<float> hits_, evictions_, densities_; // (groups, ages)
    std::uint32_t shift_;                             // log2 of the uses in a step
    std::uint32_t now_ = 0;
    std::uint32_t rounds_ = 0;
};

/// Least hit density: of a sample of entries, evicts the one with the fewest expected hits per byte and remaining
/// lifetime. The expectation is learned from the ages at which entries were hit or evicted, by class of their last two
/// reuse ages. A few entries are spared, to learn what would have become of them, and new entries of low density stay
/// in every sample for a while. Entries that are not evictable are skipped; entries with children are not sampled.
///
///     8, later 32 random entries + 8 new entries -> lowest hits / (remaining lifetime * bytes): victim
///
/// Beckmann, Chen and Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018.
struct lhd {
    using role = eviction_role;
    std::uint64_t seed = 1; ///< Seed of the sampling.

    /// Cost: O(1) each, while a fixed fraction of the entries is evictable; O(n) where no entry of a sample is. At most
    /// 32 bytes a slot, plus 50 KB.
    class state {
    public:
        state(const lhd& policy, eviction_capacity capacity)
            : entries_(capacity.slots),
              places_(capacity.slots, nowhere),
              sampled_(capacity.slots),
              densities_(capacity.slots),
              explorer_budget_(static_cast<double>(capacity.bytes) * 0.01), // the paper's
              random_(policy.seed) {}

        void admit(slot_id slot, const eviction_entry& newcomer) {
            add_sample(index_of(slot));
            ++present_;
            entries_[index_of(slot)] = {.bytes = static_cast<float>(newcomer.bytes), .before = densities_.ages()};
            const bool spared = use(slot);
            if (!spared && density(slot) < victims_density_)
                newcomers_[next_newcomer_++ % newcomers_.size()] = slot;
        }

        void touch(slot_id slot) {
            known& one = entries_[index_of(slot)];
            const std::uint16_t age = densities_.age(one.used);
            densities_.hit(group(one), age);
            give_up_sparing(one);
            one.before = one.last;
            one.last = age;
            use(slot);
        }

        void on_child_added(slot_id slot) {
            remove_sample(index_of(slot));
            places_[index_of(slot)] = covered;
        }

        void on_last_child_removed(slot_id slot) {
            if (places_[index_of(slot)] == covered)
                add_sample(index_of(slot));
        }

        void erase(slot_id slot) {
            give_up_sparing(entries_[index_of(slot)]);
            remove_sample(index_of(slot));
            places_[index_of(slot)] = nowhere;
            --present_;
        }

        void evict(slot_id slot) {
            const known& one = entries_[index_of(slot)];
            densities_.evicted(group(one), densities_.age(one.used));
            erase(slot);
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            std::optional<slot_id> found;
            float lowest = std::numeric_limits<float>::max();
            const auto consider = [&](slot_id slot) {
                if (const float here = density(slot); (!found || here < lowest) && is_evictable(slot)) {
                    found = slot;
                    lowest = here;
                }
            };
            const std::uint32_t samples = densities_.young() ? 8 : 32; // few, to learn fast from mistakes
            if (count_ > samples) {
                std::array<std::uint32_t, 32> drawn; // places, then slots: all are prefetched before the first is read
                for (std::uint32_t n = 0; n < samples; ++n)
                    prefetch(sampled_.data(), drawn[n] = static_cast<std::uint32_t>(random() % count_));
                for (std::uint32_t n = 0; n < samples; ++n)
                    prefetch(entries_.data(), drawn[n] = sampled_[drawn[n]]);
                for (std::uint32_t n = 0; n < samples; ++n)
                    consider(slot_id{drawn[n]});
                for (const std::optional<slot_id>& newcomer : newcomers_)
                    if (newcomer && places_[index_of(*newcomer)] < covered)
                        consider(*newcomer);
            }
            if (!found)
                for (std::uint32_t place = 0; place < count_; ++place)
                    consider(slot_id{sampled_[place]});
            if (found)
                victims_density_ = 0.9f * victims_density_ + 0.1f * lowest;
            return found;
        }

    private:
        static constexpr std::uint32_t nowhere = 0xffffffffu, covered = 0xfffffffeu;
        struct known {
            float bytes = 0.0f;
            std::uint32_t used = 0;   // time of the last use
            std::uint16_t last = 0;   // age at the last hit, zero before the first
            std::uint16_t before = 0; // age at the hit before, the greatest age if there was none
            bool spared = false;
        };

        [[nodiscard]] std::uint32_t group(const known& one) const {
            return densities_.group(std::uint32_t{one.last} + one.before);
        }

        [[nodiscard]] float density(slot_id slot) const {
            const known& one = entries_[index_of(slot)];
            const std::uint16_t age = densities_.age(one.used);
            if (age + 1u == densities_.ages())
                return std::numeric_limits<float>::lowest();
            return densities_.at(group(one), age) / one.bytes + (one.spared ? 1.0f : 0.0f);
        }

        // Starts a new age. One use in 32 is drawn; it spares the entry while little is learned and the budget lasts.
        // Returns whether it was drawn.
        bool use(slot_id slot) {
            known& one = entries_[index_of(slot)];
            one.used = densities_.now();
            const bool explores = random() % 32 == 0;
            one.spared = explores && explorer_budget_ > 0.0 && densities_.young();
            if (one.spared)
                explorer_budget_ -= static_cast<double>(one.bytes);
            densities_.pass(present_);
            return explores;
        }

        void add_sample(std::uint32_t slot) {
            places_[slot] = count_;
            sampled_[count_++] = slot;
        }

        void remove_sample(std::uint32_t slot) {
            const std::uint32_t place = places_[slot];
            if (place == covered)
                return;
            sampled_[place] = sampled_[--count_];
            places_[sampled_[place]] = place;
        }

        void give_up_sparing(known& one) {
            if (one.spared)
                explorer_budget_ += static_cast<double>(one.bytes);
            one.spared = false;
        }

        // splitmix64
        [[nodiscard]] std::uint64_t random() {
            std::uint64_t x = random_ += 0x9e3779b97f4a7c15ull;
            x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
            x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
            return x ^ (x >> 31);
        }

        std::vector<known> entries_;
        std::vector<std::uint32_t> places_;  // by slot: index in sampled_, or covered
        std::vector<std::uint32_t> sampled_; // slots, dense
        hit_density densities_;
        std::array<std::optional<slot_id>, 8> newcomers_ = {};
        std::size_t next_newcomer_ = 0;
        float victims_density_ = 0.0f; // decaying mean density of victims
        double explorer_budget_;       // bytes that may be spared
        std::uint64_t random_;
        std::uint32_t count_ = 0;   // size of sampled_
        std::uint32_t present_ = 0; // including entries with children
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<lhd>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/lirs.hpp ------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Low inter-reference recency set (LIRS). Entries with a short reuse interval are kept (LIR); all others pass through
/// a small queue (HIR), whose oldest entry is evicted. An interval is short if the entry's previous use is later than
/// the last use of the longest-idle kept entry. The entry then becomes kept, and the longest-idle kept entries move to
/// the queue. Ghosts of entries evicted from the queue are compared too, until they are older than every kept entry, or
/// the kept entries, the recent ones and the ghosts exceed twice the capacity.
///
///     used twice -> [ kept: newest ... idle ] --.      recent: used since the idle one was
///     admit ------> [ passing: newest ... oldest ] <-' -> victim -> [ ghosts, while recent ]
///     touch, or return, while recent: -> kept
///
/// An entry that is not evictable moves to the front of its queue. Jiang and Zhang, "LIRS: an efficient low
/// inter-reference recency set replacement policy", SIGMETRICS 2002. The paper keeps recent entries in a stack that is
/// pruned from the bottom; here an entry's last use is compared with that of the longest-idle kept entry, which is
/// equivalent.
struct lirs {
    using role = eviction_role;
    double passing_fraction = 0.01; ///< Share of the capacity for the passing queue.
    bool eager_demotion = false;    ///< A touch of an entry that is not recent demotes kept entries, as in libCacheSim.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 29 bytes a slot and 21 a
    /// ghost, at most one ghost a slot.
    class state {
    public:
        state(const lirs& policy, eviction_capacity capacity)
            : queues_(capacity.slots, 2),
              entries_(capacity.slots),
              times_(capacity.slots),
              marks_(capacity.slots),
              ghosts_(capacity.slots + 1, 2 * capacity.bytes, ghost_list::marks::kept),
              first_recent_(slot_id{static_cast<std::uint32_t>(capacity.slots)}),
              capacity_(capacity.bytes),
              passing_share_(
                  std::min(capacity.bytes,
                           std::max<std::size_t>(1, static_cast<std::size_t>(policy.passing_fraction *
                                                                             static_cast<double>(capacity.bytes))))),
              kept_share_(capacity.bytes - passing_share_),
              eager_(policy.eager_demotion) {}

        void on_miss(const eviction_entry& newcomer) {
            missed_ = newcomer.key;
            bytes_to_come_ = newcomer.bytes;
            const std::optional<ghost> known_before = ghosts_.take(newcomer.key);
            returns_ = known_before && !before_all_kept(known_before->mark);
            if (returns_)
                make_room_among_kept(newcomer.bytes);
        }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            if (missed_ != newcomer.key)
                on_miss(newcomer);
            entries_[index_of(slot)] = {newcomer.key, newcomer.bytes};
            insert(slot, returns_ || bytes_[kept] + newcomer.bytes <= kept_share_ ? kept : passing, true);
            missed_.reset();
            returns_ = false;
            prune();
            forget_beyond_the_limit();
        }

        void touch(slot_id slot) {
            const std::size_t bytes = entries_[index_of(slot)].bytes;
            if (is_kept(slot)) {
                renew(slot);
            } else if (is_recent(slot)) {
                unlink(slot);
                make_room_among_kept(bytes);
                insert(slot, kept, true);
                prune();
            } else {
                unlink(slot);
                insert(slot, passing, true);
                if (eager_)
                    make_room_among_kept(bytes);
            }
            forget_beyond_the_limit();
        }

        void on_released(slot_id slot) {
            if (is_kept(slot))
                renew(slot);
            else
                to_front_of_passing(slot);
        }

        void erase(slot_id slot) {
            unlink(slot);
            prune();
        }

        void evict(slot_id slot) {
            const bool leaves_ghost = !is_kept(slot) && is_recent(slot);
            unlink(slot);
            const auto [key, bytes] = entries_[index_of(slot)];
            if (leaves_ghost && !ghosts_.contains(key))
                ghosts_.push(key, {.bytes = bytes, .mark = times_[index_of(slot)]});
            prune();
            forget_beyond_the_limit();
        }

        /// Returns whether the passing queue exceeds its share, including the missed entry if it is to join the queue.
        /// Reference implementations with published byte counts evict in this case, even if the cache is not full.
        [[nodiscard]] bool crowded() const {
            const bool joins = missed_ && !returns_ && bytes_[kept] + bytes_to_come_ > kept_share_;
            return !queues_.empty(passing) && bytes_[passing] + (joins ? bytes_to_come_ : 0) > passing_share_;
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            for (std::size_t left = count_passing_; left > 0; --left) {
                const slot_id oldest = queues_.back(passing);
                if (is_evictable(oldest))
                    return oldest;
                to_front_of_passing(oldest);
            }
            const slot_id last = queues_.empty(kept) ? slot_id{} : queues_.front(kept);
            for (bool all = queues_.empty(kept); !all;) {
                const slot_id idle = queues_.back(kept);
                if (is_evictable(idle))
                    return idle;
                all = idle == last;
                renew(idle);
            }
            return std::nullopt;
        }

    private:
        static constexpr std::uint8_t kept = 0, passing = 1; // queues
        static constexpr std::uint8_t recent = 2;            // marks: recent, queue
        struct known {
            std::uint64_t key = 0;
            std::size_t bytes = 0;
        };

        [[nodiscard]] bool is_kept(slot_id slot) const { return (marks_[index_of(slot)] & passing) == 0; }

        // Whether a time precedes the last use of the longest-idle kept entry. Times may wrap.
        [[nodiscard]] bool before_all_kept(std::uint32_t time) const {
            return !queues_.empty(kept) && static_cast<std::int32_t>(time - times_[index_of(queues_.back(kept))]) < 0;
        }
        [[nodiscard]] bool is_recent(slot_id slot) const {
            return (marks_[index_of(slot)] & recent) != 0 && !before_all_kept(times_[index_of(slot)]);
        }

        void insert(slot_id slot, std::uint8_t queue, bool used) {
            queues_.push_front(slot, queue);
            bytes_[queue] += entries_[index_of(slot)].bytes;
            marks_[index_of(slot)] = queue;
            if (used)
                times_[index_of(slot)] = ++now_;
            if (queue == kept)
                return;
            ++count_passing_;
            if (used)
                mark_recent(slot);
            if (queues_.ends(first_recent_))
                first_recent_ = slot;
        }

        void unlink(slot_id slot) {
            if (!is_kept(slot)) {
                mark_not_recent(slot);
                if (first_recent_ == slot)
                    first_recent_ = queues_.newer(slot);
                --count_passing_;
            }
            queues_.remove(slot);
            bytes_[is_kept(slot) ? kept : passing] -= entries_[index_of(slot)].bytes;
        }

        // Records a use of a kept entry.
        void renew(slot_id slot) {
            queues_.move_to_front(slot, kept);
            times_[index_of(slot)] = ++now_;
            prune();
        }

        void to_front_of_passing(slot_id slot) {
            if (first_recent_ == slot && queues_.front(passing) != slot)
                first_recent_ = queues_.newer(slot);
            queues_.move_to_front(slot, passing);
            if (queues_.ends(first_recent_))
                first_recent_ = slot;
            if (is_recent(slot))
                times_[index_of(slot)] = ++now_;
        }

        void mark_recent(slot_id slot) {
            marks_[index_of(slot)] |= recent;
            recent_bytes_ += entries_[index_of(slot)].bytes;
        }
        void mark_not_recent(slot_id slot) {
            if ((marks_[index_of(slot)] & recent) != 0)
                recent_bytes_ -= entries_[index_of(slot)].bytes;
            marks_[index_of(slot)] &= passing;
        }

        // Demotes the longest-idle kept entries until `bytes` more can be kept.
        void make_room_among_kept(std::size_t bytes) {
            while (!queues_.empty(kept) && bytes_[kept] + bytes > kept_share_) {
                const slot_id idle = queues_.back(kept);
                unlink(idle);
                insert(idle, passing, false);
            }
            prune();
        }

        // Clears the recent mark of entries older than every kept entry, and removes such ghosts. The passing entries
        // and the ghosts are in order of last use, except for entries that were not recent anyway or were not
        // evictable.
        void prune() {
            if (queues_.empty(kept))
                return;
            for (; !queues_.ends(first_recent_) && !is_recent(first_recent_);
                 first_recent_ = queues_.newer(first_recent_))
                mark_not_recent(first_recent_);
            while (ghosts_.size() > 0 && before_all_kept(ghosts_.oldest().mark))
                ghosts_.pop();
        }

        void forget_beyond_the_limit() {
            while (ghosts_.size() > 0 && bytes_[kept] + recent_bytes_ + ghosts_.bytes() > 2 * capacity_)
                ghosts_.pop();
        }

        slot_lists queues_;
        std::vector<known> entries_;
        std::vector<std::uint32_t> times_; // by slot: of the last use
        std::vector<std::uint8_t> marks_;
        ghost_list ghosts_;    // marked with the time of their last use
        slot_id first_recent_; // oldest passing entry that may be recent
        std::size_t capacity_;
        std::size_t passing_share_;
        std::size_t kept_share_;
        bool eager_;
        std::size_t bytes_[2] = {};
        std::size_t recent_bytes_ = 0; // of the passing entries
        std::size_t count_passing_ = 0;
        std::uint32_t now_ = 0; // number of uses
        std::optional<std::uint64_t> missed_;
        std::size_t bytes_to_come_ = 0;
        bool returns_ = false; // the missed entry had a ghost
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<lirs>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/never.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Evicts nothing. A full cache refuses new entries instead, so its entries stay until the owner removes them.
struct never {
    using role = eviction_role;

    /// Cost: O(1) each. 0 bytes a slot.
    class state {
    public:
        void admit(slot_id, const eviction_entry&) {}
        void touch(slot_id) {}
        void erase(slot_id) {}

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&&) {
            return std::nullopt;
        }
    };

    [[nodiscard]] state open(eviction_capacity) const { return {}; }
};

static_assert(eviction_policy<never>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/prioritised.hpp -----------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Priorities by depth in the chain: `count` depths from `first` on have priority `level`; all others have 0.
struct depth_ranges {
    /// `count` depths from `first` on, and their priority.
    struct range {
        std::uint32_t first = 0;
        std::uint32_t count = 0;
        std::uint32_t level = 0;
    };
    std::array<range, 4> ranges = {}; ///< The first range that contains the depth applies.

    [[nodiscard]] constexpr std::uint32_t operator()(const eviction_entry& newcomer) const noexcept {
        for (const range& one : ranges)
            if (newcomer.depth >= one.first && newcomer.depth - one.first < one.count)
                return one.level;
        return 0;
    }
};

/// A rule that assigns an entry its priority: a level from 0 up.
template <class R>
concept priority_rule = requires(const R rule, const eviction_entry& newcomer) {
    { rule(newcomer) } -> std::convertible_to<std::uint32_t>;
};

/// Evicts entries of low priority before those of higher priority. Each level has its own instance of Inner; the lowest
/// level with an evictable entry selects the victim. Priorities come from a rule: the depth in the chain, so that the
/// first pages of each prompt stay, or any other attribute of an entry.
///
///     rule(entry) -> [ level 1: Inner ]
///                    [ level 0: Inner ] -> victim
///
///     prioritised<s3_fifo>{.rule = {{{{.first = 0, .count = 64, .level = 1}}}}}
template <eviction_policy Inner = lru, priority_rule Rule = depth_ranges>
struct prioritised {
    using role = eviction_role;
    Inner inner = {};
    Rule rule = {};
    std::uint32_t levels = 2; ///< 1 to 255; higher results of the rule count as the highest level.
    class state;
    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

/// Cost: that of Inner, O(levels) for a victim. Inner's bytes a slot for each level, plus one.
template <eviction_policy Inner, priority_rule Rule>
class prioritised<Inner, Rule>::state {
public:
    state(const prioritised& policy, eviction_capacity capacity) : rule_(policy.rule), levels_(capacity.slots) {
        require(policy.levels >= 1 && policy.levels <= 255, "there are 1 to 255 levels of priority");
        inner_.reserve(policy.levels);
        for (std::uint32_t level = 0; level < policy.levels; ++level)
            inner_.push_back(policy.inner.open(capacity));
    }

    void on_miss(const eviction_entry& newcomer) { kvcache::on_miss(inner_[level_of(newcomer)], newcomer); }

    void admit(slot_id slot, const eviction_entry& newcomer) {
        const std::uint32_t level = level_of(newcomer);
        inner_[level].admit(slot, newcomer);
        levels_[index_of(slot)] = static_cast<std::uint8_t>(level);
    }

    void touch(slot_id slot) { at(slot).touch(slot); }
    void on_released(slot_id slot) { kvcache::on_released(at(slot), slot); }
    void on_child_added(slot_id slot) { kvcache::on_child_added(at(slot), slot); }
    void on_last_child_removed(slot_id slot) { kvcache::on_last_child_removed(at(slot), slot); }
    void erase(slot_id slot) { at(slot).erase(slot); }
    void evict(slot_id slot) { kvcache::evict(at(slot), slot); }

    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
        for (auto& level : inner_)
            if (const std::optional<slot_id> found = level.victim(is_evictable))
                return found;
        return std::nullopt;
    }

private:
    using inner_state = opened_by<Inner, eviction_capacity>;

    [[nodiscard]] std::uint32_t level_of(const eviction_entry& newcomer) const {
        return std::min(static_cast<std::uint32_t>(rule_(newcomer)), static_cast<std::uint32_t>(inner_.size() - 1));
    }
    [[nodiscard]] inner_state& at(slot_id slot) { return inner_[levels_[index_of(slot)]]; }

    Rule rule_;
    std::vector<inner_state> inner_; // by level
    std::vector<std::uint8_t> levels_;
};

static_assert(eviction_policy<prioritised<lru>>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/s3_fifo.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// S3-FIFO. New entries join a small queue. Those used `threshold` times by its end move to the main queue; the others
/// are evicted and leave a ghost. An entry that returns while its ghost is remembered joins the main queue directly. At
/// the end of the main queue an entry gets another round for each use, at most three. An entry that is not evictable
/// gets another round in either queue.
///
///     admit -> [ small ] -> victim -> [ ghosts ] -.
///                  '- used -> [ main ] -> victim   |
///     admit ------------------^ <-- returns -------'
///
/// Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
struct s3_fifo {
    using role = eviction_role;
    double small_fraction = 0.1; ///< Share of the capacity for the small queue.
    double ghost_fraction = 0.9; ///< Total bytes of the ghosts' entries, relative to the capacity.
    std::uint32_t threshold = 2; ///< Uses in the small queue that promote to the main queue, 1 to 3.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 25 bytes a slot and 16 a
    /// ghost, at most `ghost_fraction` ghosts a slot.
    class state {
    public:
        state(const s3_fifo& policy, eviction_capacity capacity)
            : queues_(capacity.slots, 2),
              entries_(capacity.slots),
              marks_(capacity.slots),
              ghosts_(share(capacity.slots, policy.ghost_fraction) + 1, capacity.bytes),
              ghost_bytes_(share(capacity.bytes, policy.ghost_fraction)),
              main_bytes_(capacity.bytes - std::min(capacity.bytes, share(capacity.bytes, policy.small_fraction))),
              threshold_(policy.threshold) {
            require(policy.threshold >= 1 && policy.threshold <= most, "s3_fifo counts one to three uses");
        }

        void on_miss(const eviction_entry& newcomer) {
            missed_ = newcomer.key;
            returns_ = ghosts_.take(newcomer.key).has_value();
        }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            if (missed_ != newcomer.key)
                on_miss(newcomer);
            entries_[index_of(slot)] = {newcomer.key, newcomer.bytes};
            insert(slot, returns_ ? main : small);
            marks_[index_of(slot)] = returns_ ? main : fresh;
            missed_.reset();
        }

        void touch(slot_id slot) {
            std::uint8_t& marks = marks_[index_of(slot)];
            if (uses(marks) < most)
                marks = static_cast<std::uint8_t>(marks + one_use);
        }

        void on_released(slot_id slot) {
            if ((marks_[index_of(slot)] & fresh) != 0) // its first release: a chain queues tail first
                queues_.move_to_front(slot, queue_of(slot));
            marks_[index_of(slot)] &= static_cast<std::uint8_t>(~fresh);
        }

        void erase(slot_id slot) {
            queues_.remove(slot);
            bytes_[queue_of(slot)] -= entries_[index_of(slot)].bytes;
            --count_[queue_of(slot)];
        }

        void evict(slot_id slot) {
            erase(slot);
            if (count_[small] > 0) // a likely next victim
                ghosts_.prefetch(entries_[index_of(queues_.back(small))].key);
            const auto [key, bytes] = entries_[index_of(slot)];
            if (queue_of(slot) != small || bytes > ghost_bytes_ || ghosts_.contains(key))
                return;
            while (ghosts_.size() > 0 && ghosts_.bytes() + bytes > ghost_bytes_)
                ghosts_.pop();
            ghosts_.push(key, {.bytes = bytes});
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            // One round checks or promotes all of the small queue, and most + 1 rounds check all of the main queue.
            std::size_t small_left = count_[small];
            std::size_t main_left = (count_[main] + count_[small]) * (most + 1);
            while (small_left > 0 || main_left > 0) {
                const bool full = bytes_[main] > main_bytes_ || count_[small] == 0;
                if (count_[main] > 0 && main_left > 0 && (full || small_left == 0)) {
                    --main_left;
                    const slot_id oldest = queues_.back(main);
                    std::uint8_t& marks = marks_[index_of(oldest)];
                    if (uses(marks) == 0 && is_evictable(oldest))
                        return oldest;
                    if (uses(marks) > 0)
                        marks = static_cast<std::uint8_t>(marks - one_use);
                    queues_.move_to_front(oldest, main);
                } else if (count_[small] > 0 && small_left > 0) {
                    --small_left;
                    const slot_id oldest = queues_.back(small);
                    if (uses(marks_[index_of(oldest)]) >= threshold_)
                        promote(oldest);
                    else if (is_evictable(oldest))
                        return oldest;
                    else
                        queues_.move_to_front(oldest, small);
                } else {
                    break;
                }
            }
            return queues_.oldest(main, is_evictable); // entries promoted after its rounds
        }

    private:
        static constexpr std::uint8_t small = 0, main = 1; // queues
        static constexpr std::uint8_t fresh = 2;           // not yet released
        static constexpr std::uint8_t one_use = 4;         // marks: uses, fresh, queue
        static constexpr std::uint32_t most = 3;           // saturation of the use count
        struct known {
            std::uint64_t key = 0;
            std::size_t bytes = 0;
        };

        [[nodiscard]] static std::size_t share(std::size_t whole, double fraction) {
            return static_cast<std::size_t>(static_cast<double>(whole) * fraction);
        }
        [[nodiscard]] static std::uint32_t uses(std::uint8_t marks) { return marks / one_use; }
        [[nodiscard]] std::uint8_t queue_of(slot_id slot) const { return marks_[index_of(slot)] & main; }

        void insert(slot_id slot, std::uint8_t queue) {
            queues_.push_front(slot, queue);
            bytes_[queue] += entries_[index_of(slot)].bytes;
            ++count_[queue];
        }

        void promote(slot_id slot) {
            erase(slot);
            insert(slot, main);
            marks_[index_of(slot)] = main;
        }

        slot_lists queues_;
        std::vector<known> entries_;
        std::vector<std::uint8_t> marks_;
        ghost_list ghosts_;
        std::size_t ghost_bytes_;
        std::size_t main_bytes_; // the main queue's share
        std::uint32_t threshold_;
        std::size_t bytes_[2] = {};
        std::size_t count_[2] = {};
        std::optional<std::uint64_t> missed_;
        bool returns_ = false; // the missed entry had a ghost
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<s3_fifo>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/sieve.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// SIEVE. A hand moves through a FIFO queue from its oldest entry to its newest and around again. It spares an entry
/// that was used since the hand last passed and clears its mark; the first entry without a mark is evicted. Entries do
/// not move: new entries join at the front, where the hand arrives last, and an entry that is not evictable is skipped.
///
///     admit -> [ newest  .  .  used  .  .  oldest ]
///                         <-- hand
///
/// Zhang et al., "SIEVE is simpler than LRU", NSDI 2024.
struct sieve {
    using role = eviction_role;

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. 9 bytes a slot.
    class state {
    public:
        explicit state(std::size_t slots)
            : queue_(slots, 1), marks_(slots), hand_(slot_id{static_cast<std::uint32_t>(slots)}) {}

        void admit(slot_id slot, const eviction_entry&) {
            queue_.push_front(slot, 0);
            marks_[index_of(slot)] = fresh;
        }

        void touch(slot_id slot) { marks_[index_of(slot)] |= used; }

        void on_released(slot_id slot) {
            if ((marks_[index_of(slot)] & fresh) != 0) { // its first release: a chain queues tail first
                step_off(slot);
                queue_.move_to_front(slot, 0);
            }
            marks_[index_of(slot)] &= used;
        }

        void erase(slot_id slot) {
            step_off(slot);
            queue_.remove(slot);
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            // One round clears every mark, the next checks every entry.
            for (std::size_t met = 0; met < 2 * queue_.slots() && !queue_.empty(0); ++met) {
                if (queue_.ends(hand_))
                    hand_ = queue_.back(0);
                std::uint8_t& marks = marks_[index_of(hand_)];
                if ((marks & used) == 0 && is_evictable(hand_))
                    return hand_;
                marks &= fresh;
                hand_ = queue_.newer(hand_);
            }
            return std::nullopt;
        }

    private:
        static constexpr std::uint8_t used = 1;  // since the hand last passed
        static constexpr std::uint8_t fresh = 2; // not yet released

        void step_off(slot_id slot) {
            if (hand_ == slot)
                hand_ = queue_.newer(slot);
        }

        slot_lists queue_;
        std::vector<std::uint8_t> marks_;
        slot_id hand_; // past the front: restarts at the oldest
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{capacity.slots}; }
};

static_assert(eviction_policy<sieve>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/slru.hpp ------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Segmented LRU with segments of equal size. New entries join the lowest segment that has space, and a touch moves an
/// entry to the next segment up. A segment above its share demotes its oldest entries to the front of the one below.
/// The victim is the oldest entry of the lowest segment. An entry that is not evictable moves to the front of its
/// segment.
///
///     admit -> [ lowest ] -> victim      touch: up one,      above its share: down one
///              [  next  ]
///              [ highest]
///
/// Karedla, Love and Wherry, "Caching strategies to improve disk system performance", IEEE Computer 1994.
struct slru {
    using role = eviction_role;
    std::uint32_t segments = 4; ///< 1 to 255; with one this is lru.

    /// Cost: O(segments) each; victim amortized, while a fixed fraction of the entries is evictable. 16 bytes a slot.
    class state {
    public:
        state(const slru& policy, eviction_capacity capacity)
            : queues_(capacity.slots, policy.segments),
              entries_(capacity.slots),
              filled_(policy.segments),
              share_(capacity.bytes / policy.segments) {
            require(policy.segments >= 1 && policy.segments <= 255, "slru has 1 to 255 segments");
        }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            apply_touches();
            expects(std::uint64_t{newcomer.bytes} >> 56 == 0, "an entry is smaller than 2^56 bytes");
            std::uint32_t lowest = 0;
            while (lowest < filled_.size() && filled_[lowest] + newcomer.bytes > share_)
                ++lowest;
            entries_[index_of(slot)].bytes = std::uint64_t{newcomer.bytes} & most_bytes;
            insert(slot, lowest < filled_.size() ? lowest : 0);
            let_down_ = false;
        }

        void touch(slot_id slot) {
            touches_.add(slot, queues_, entries_, [this](slot_id one) { lift(one); });
        }

        void on_released(slot_id slot) {
            apply_touches();
            queues_.move_to_front(slot, segment_of(slot));
        }

        void erase(slot_id slot) {
            apply_touches();
            unlink(slot);
        }

        /// Returns whether the last touch demoted entries into a lowest segment that is now above its share, as entries
        /// of many sizes can. Reference implementations with published byte counts evict in this case, even if the
        /// cache is not full.
        [[nodiscard]] bool crowded() {
            apply_touches();
            return let_down_ && filled_[0] > share_;
        }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            apply_touches();
            for (std::uint32_t s = 0; s < filled_.size(); ++s)
                if (const auto found = queues_.oldest(s, is_evictable))
                    return found;
            return std::nullopt;
        }

    private:
        static constexpr std::uint64_t most_bytes = (std::uint64_t{1} << 56) - 1; // of an entry
        struct known {
            std::uint64_t bytes : 56 = 0;
            std::uint64_t segment : 8 = 0;
        };

        [[nodiscard]] std::uint32_t segment_of(slot_id slot) const {
            return static_cast<std::uint32_t>(entries_[index_of(slot)].segment);
        }

        void apply_touches() {
            touches_.apply_all([this](slot_id slot) { lift(slot); });
        }

        void lift(slot_id slot) {
            const std::uint32_t from = segment_of(slot);
            const bool highest = from + 1u == filled_.size();
            unlink(slot);
            insert(slot, highest ? from : from + 1);
            let_down_ = false;
            for (std::uint32_t s = from + 1; !highest && s > 0; --s) {
                while (filled_[s] > share_) {
                    const slot_id oldest = queues_.back(s);
                    unlink(oldest);
                    insert(oldest, s - 1);
                    let_down_ = s == 1;
                }
                if (const slot_id next = queues_.back(s); !queues_.ends(next)) { // likely demoted by a later touch
                    prefetch_to_write(entries_.data(), index_of(next));
                    queues_.prefetch_neighbours(next);
                }
            }
        }

        void insert(slot_id slot, std::uint32_t segment) {
            queues_.push_front(slot, segment);
            known& one = entries_[index_of(slot)];
            one.segment = segment & 0xffu;
            filled_[segment] += static_cast<std::size_t>(one.bytes);
        }

        void unlink(slot_id slot) {
            queues_.remove(slot);
            const known one = entries_[index_of(slot)];
            filled_[one.segment] -= static_cast<std::size_t>(one.bytes);
        }

        slot_lists queues_; // a list per segment
        std::vector<known> entries_;
        touch_buffer touches_;
        std::vector<std::size_t> filled_; // by segment: bytes
        std::size_t share_;               // of each segment
        bool let_down_ = false;           // by the last touch, into the lowest
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<slru>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/tail_safe_lru.hpp ---------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Keeps only as much of a conversation as its next turn needs to answer in time. The next turn consists of the entries
/// of the last request and `next_turn` new ones, of which `budget` can be computed within the time to first token. The
/// last `budget - next_turn` entries of the last request are therefore safe to evict. Safe entries are evicted first,
/// the least recently used before the others, then the rest. A longer request of the conversation makes its earlier
/// entries needed again.
///
///     conversation: [ needed  needed  needed  needed | safe  safe ] [ next turn ]
///                                                    '------- budget -----------'
///     [ needed: newest ... oldest ]   [ safe: newest ... oldest ] -> victim, and needed ones after them
///
/// An entry that is not evictable moves to the front of its list. "Tail-optimized caching for LLM inference", arXiv
/// 2510.15152.
struct tail_safe_lru {
    using role = eviction_role;
    std::uint32_t budget = 64;    ///< Entries that can be computed within the time to first token.
    std::uint32_t next_turn = 32; ///< Entries that the next turn is expected to add.

    /// Cost: O(1) each, the admission of a request's last entry O(length of the request); victim amortized, while a
    /// fixed fraction of the entries is evictable. 17 bytes a slot.
    class state {
    public:
        state(const tail_safe_lru& policy, std::size_t slots)
            : queues_(slots, 2),
              parents_(slots, nowhere),
              depths_(slots),
              places_(slots),
              losable_(policy.budget > policy.next_turn ? policy.budget - policy.next_turn : 0) {}

        void admit(slot_id slot, const eviction_entry& newcomer) {
            const std::uint32_t at = index_of(slot);
            parents_[at] = newcomer.parent ? index_of(*newcomer.parent) : nowhere;
            depths_[at] = newcomer.depth;
            const bool is_safe = newcomer.length > 0 && std::size_t{newcomer.depth} + losable_ >= newcomer.length;
            places_[at] = is_safe ? safe : needed;
            queues_.push_front(slot, places_[at]);
            if (newcomer.depth + 1 == newcomer.length)
                need_before(slot, newcomer.length);
        }

        void touch(slot_id slot) { queues_.move_to_front(slot, places_[index_of(slot)]); }

        void on_released(slot_id slot) { touch(slot); }

        void erase(slot_id slot) { queues_.remove(slot); }

        /// Returns whether the entry can be evicted without delaying the next turn.
        [[nodiscard]] bool is_safe(slot_id slot) const { return places_[index_of(slot)] == safe; }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            if (const auto found = queues_.oldest(safe, is_evictable))
                return found;
            return queues_.oldest(needed, is_evictable);
        }

    private:
        static constexpr std::uint32_t nowhere = 0xffffffffu;
        static constexpr std::uint8_t needed = 0, safe = 1; // queues

        // Marks the entries of a complete request as needed, except its last ones.
        void need_before(slot_id last, std::uint32_t length) {
            std::uint32_t depth = depths_[index_of(last)];
            for (std::uint32_t at = parents_[index_of(last)]; at != nowhere; at = parents_[at]) {
                if (!queues_.contains(slot_id{at}) || depths_[at] + 1 != depth)
                    return; // the parent's slot was reused
                depth = depths_[at];
                if (std::size_t{depth} + losable_ >= length || places_[at] == needed)
                    continue;
                places_[at] = needed;
                queues_.move_to_front(slot_id{at}, needed);
            }
        }

        slot_lists queues_;
        std::vector<std::uint32_t> parents_; // slots
        std::vector<std::uint32_t> depths_;
        std::vector<std::uint8_t> places_;
        std::size_t losable_; // entries at the end of a conversation
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity.slots}; }
};

static_assert(eviction_policy<tail_safe_lru>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/w_tiny_lfu.hpp ------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace eviction {

/// Approximate recent use counts of keys, at most 16. The first use of a key sets bits of the doorkeeper, a Bloom
/// filter; later uses count in a count-min sketch of four rows of 4-bit counters. After ten uses a slot all counts are
/// halved and the doorkeeper is cleared.
///
/// Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy", ACM Transactions on Storage
/// 2017.
///
/// Cost: O(1) each, amortized. At most 8 + 2 bytes a slot, and at least 40 in total.
class frequency_sketch {
public:
    explicit frequency_sketch(std::size_t slots)
        : words_(std::max<std::size_t>(std::bit_ceil(slots) / 2, 4)),
          door_(std::max<std::size_t>(std::bit_ceil(slots) / 8, 1)),
          period_(std::max<std::size_t>(10 * slots, 40)) {}

    /// Records a use of the key.
    void add(std::uint64_t key) noexcept {
        const std::uint64_t hash = mix64(key);
        if (!pass_door(hash))
            for (std::uint32_t row = 0; row < 4; ++row)
                if (const place at = counter(hash, row); (words_[at.word] >> at.bit & 15) < 15)
                    words_[at.word] += std::uint64_t{1} << at.bit;
        if (++uses_ == period_)
            age();
    }

    /// The estimated uses of a key: at least the number since the last halving, capped at 16.
    [[nodiscard]] std::uint32_t uses(std::uint64_t key) const noexcept {
        const std::uint64_t hash = mix64(key);
        std::uint32_t least = 15;
        for (std::uint32_t row = 0; row < 4; ++row) {
            const place at = counter(hash, row);
            least = std::min(least, static_cast<std::uint32_t>(words_[at.word] >> at.bit & 15));
        }
        return least + (behind_door(hash) ? 1 : 0);
    }

private:
    struct place {
        std::size_t word;
        std::uint32_t bit;
    };

    // Each word holds four counters of each row. A row's hash is the high half of a product with the row's own odd
    // number.
    [[nodiscard]] place counter(std::uint64_t hash, std::uint32_t row) const noexcept {
        const std::uint64_t own = (hash | 1) * (0x9e3779b97f4a7c15ull + 2ull * row * 0xd1b54a32d192ed03ull);
        return {static_cast<std::size_t>(own >> 34 & (words_.size() - 1)),
                16 * row + 4 * static_cast<std::uint32_t>(own >> 32 & 3)};
    }

    [[nodiscard]] std::size_t door_bits() const noexcept { return 64 * door_.size(); }
    [[nodiscard]] std::size_t door_bit(std::uint64_t hash) const noexcept {
        return static_cast<std::size_t>(hash & (door_bits() - 1));
    }
    [[nodiscard]] bool behind_door(std::uint64_t hash) const noexcept {
        const auto a = door_bit(hash), b = door_bit(hash >> 32);
        return (door_[a / 64] >> a % 64 & 1) != 0 && (door_[b / 64] >> b % 64 & 1) != 0;
    }
    // Sets the key's bits. Returns whether this is the key's first use, as far as the Bloom filter can tell.
    [[nodiscard]] bool pass_door(std::uint64_t hash) noexcept {
        if (behind_door(hash))
            return false;
        const auto a = door_bit(hash), b = door_bit(hash >> 32);
        door_[a / 64] |= std::uint64_t{1} << a % 64;
        door_[b / 64] |= std::uint64_t{1} << b % 64;
        return true;
    }

    void age() noexcept {
        for (std::uint64_t& word : words_)
            word = word >> 1 & 0x7777777777777777ull;
        ranges::fill(door_, 0);
        uses_ = 0;
    }

    std::vector<std::uint64_t> words_; // 16 counters each
    std::vector<std::uint64_t> door_;
    std::size_t period_;
    std::size_t uses_ = 0;
};

/// W-TinyLFU. New entries join a window, an LRU list. The oldest entry of the window enters the main part only if it
/// was recently used more often than the main part's victim. The main part is a segmented LRU: a touch moves an entry
/// to the protected segment, which has at most four fifths of the main part. The size of the window adapts by hill
/// climbing on the hit ratio.
///
///     admit -> [ window ] -> oldest --> used more than? --> [ probation ] <-> [ protected ]
///                               '- no: victim   yes: oldest of probation is the victim
///
/// An entry that is not evictable moves to the front of its list. Einziger, Eytan, Friedman and Manes, "Adaptive
/// software cache management", Middleware 2018.
struct w_tiny_lfu {
    using role = eviction_role;
    double window = 0.01; ///< Initial share of the capacity for the window.
    bool adaptive = true; ///< Whether the window's share adapts.

    /// Cost: O(1) each; victim amortized, while a fixed fraction of the entries is evictable. At most 32 bytes a slot:
    /// 22 and the sketch.
    class state {
    public:
        state(const w_tiny_lfu& policy, eviction_capacity capacity)
            : queues_(capacity.slots, 3),
              keys_(capacity.slots),
              sizes_(capacity.slots),
              places_(capacity.slots),
              sketch_(capacity.slots),
              capacity_(capacity.bytes),
              window_share_(static_cast<std::size_t>(static_cast<double>(capacity.bytes) * policy.window)),
              step_(static_cast<double>(capacity.bytes) / 16),
              period_(policy.adaptive ? std::max<std::size_t>(10 * capacity.slots, 40) : 0),
              grain_(std::bit_width(capacity.bytes) > 32 ? static_cast<int>(std::bit_width(capacity.bytes)) - 32 : 0) {}

        void on_miss(const eviction_entry& newcomer) { bytes_to_come_ = newcomer.bytes; }

        void admit(slot_id slot, const eviction_entry& newcomer) {
            bytes_to_come_ = newcomer.bytes;
            keys_[index_of(slot)] = newcomer.key;
            sizes_[index_of(slot)] =
                static_cast<std::uint32_t>((newcomer.bytes + (std::size_t{1} << grain_) - 1) >> grain_);
            insert(slot, window);
            count_use(newcomer.key, false);
        }

        void touch(slot_id slot) {
            if (places_[index_of(slot)] == window) {
                queues_.move_to_front(slot, window);
            } else {
                erase(slot);
                insert(slot, guarded);
                while (bytes_[guarded] > (capacity_ - window_share_) / 5 * 4) {
                    const slot_id oldest = queues_.back(guarded);
                    erase(oldest);
                    insert(oldest, probation);
                }
            }
            count_use(keys_[index_of(slot)], true);
        }

        void on_released(slot_id slot) { queues_.move_to_front(slot, places_[index_of(slot)]); }

        void erase(slot_id slot) {
            queues_.remove(slot);
            bytes_[places_[index_of(slot)]] -= size(slot);
        }

        /// The current share of the window in bytes.
        [[nodiscard]] std::size_t window_share() const noexcept { return window_share_; }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            while (bytes_[window] + bytes_to_come_ > window_share_) {
                const auto candidate = queues_.oldest(window, is_evictable, patience);
                if (!candidate)
                    break;
                if (bytes_[probation] + bytes_[guarded] + size(*candidate) > capacity_ - window_share_) {
                    const auto other = oldest_of_main(is_evictable, patience);
                    if (!other || sketch_.uses(keys_[index_of(*candidate)]) <= sketch_.uses(keys_[index_of(*other)]))
                        return candidate;
                    to_main(*candidate);
                    return other;
                }
                to_main(*candidate);
            }
            if (const auto found = oldest_of_main(is_evictable, patience))
                return found;
            if (const auto found = queues_.oldest(window, is_evictable))
                return found;
            return oldest_of_main(is_evictable, queues_.slots());
        }

    private:
        static constexpr std::uint8_t window = 0, probation = 1, guarded = 2; // queues
        static constexpr std::size_t patience = 64; // entries checked in a list before it is skipped

        [[nodiscard]] std::size_t size(slot_id slot) const { return std::size_t{sizes_[index_of(slot)]} << grain_; }

        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> oldest_of_main(IsEvictable&& is_evictable, std::size_t most) {
            if (const auto found = queues_.oldest(probation, is_evictable, most))
                return found;
            return queues_.oldest(guarded, is_evictable, most);
        }

        void insert(slot_id slot, std::uint8_t queue) {
            queues_.push_front(slot, queue);
            places_[index_of(slot)] = queue;
            bytes_[queue] += size(slot);
        }

        void to_main(slot_id slot) {
            erase(slot);
            insert(slot, probation);
        }

        // After each period the window grows or shrinks as before if the hit ratio rose, and reverses otherwise. The
        // step shrinks by 2 % each time and is reset when the hit ratio changes by at least 0.05, a sign of a new
        // workload (Caffeine's constants).
        void count_use(std::uint64_t key, bool hit) {
            sketch_.add(key);
            hits_ += hit;
            if (period_ == 0 || ++uses_ < period_)
                return;
            const double rate = static_cast<double>(hits_) / static_cast<double>(uses_);
            const double change = rate - last_rate_;
            if (change < 0)
                step_ = -step_;
            const double bytes =
                std::clamp(static_cast<double>(window_share_) + step_, 0.0, 0.8 * static_cast<double>(capacity_));
            window_share_ = static_cast<std::size_t>(bytes);
            const double whole = static_cast<double>(capacity_) / 16;
            step_ = change >= 0.05 || change <= -0.05 ? (step_ < 0 ? -whole : whole) : 0.98 * step_;
            last_rate_ = rate;
            uses_ = hits_ = 0;
        }

        slot_lists queues_;
        std::vector<std::uint64_t> keys_;
        std::vector<std::uint32_t> sizes_; // in grains
        std::vector<std::uint8_t> places_;
        frequency_sketch sketch_;
        std::size_t capacity_;
        std::size_t window_share_;
        double step_; // change of the window's share, in bytes
        std::size_t period_;
        int grain_;
        std::size_t bytes_[3] = {};
        std::size_t bytes_to_come_ = 0;
        std::size_t uses_ = 0, hits_ = 0; // in this period
        double last_rate_ = 0.0;
    };

    [[nodiscard]] state open(eviction_capacity capacity) const { return state{*this, capacity}; }
};

static_assert(eviction_policy<w_tiny_lfu>);

}}} // namespace kvcache::eviction

// ---- kvcache/eviction/all.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every eviction policy of the library, with its standard options; wrappers wrap lru.
using eviction_policies =
    std::tuple<eviction::learned_reuse, eviction::lru, eviction::fifo, eviction::lfu, eviction::slru, eviction::clock,
               eviction::sieve, eviction::s3_fifo, eviction::arc, eviction::lirs, eviction::w_tiny_lfu, eviction::gdsf,
               eviction::lhd, eviction::tail_safe_lru, eviction::cost_aware, eviction::never, eviction::prioritised<>,
               eviction::expiring<>>;

}} // namespace kvcache

// ---- kvcache/hash/all.hpp -----------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every hash policy of the library, with its standard options.
using hash_policies = std::tuple<hash::xxh3>;

}} // namespace kvcache

// ---- kvcache/index/chunk_table.hpp --------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// The hash of any run of a text's tokens, computed from prefix hashes: a polynomial modulo 2^64, then mixed. Not
/// collision-resistant against an adversary: equal hashes are a hint that a comparison of the tokens must confirm.
/// Cost: O(n), then O(1) a run.
class rolling_hash {
public:
    rolling_hash(std::span<const token_id> tokens, std::uint64_t salt)
        : salt_(mix(salt)), sums_(tokens.size() + 1), powers_(tokens.size() + 1) {
        powers_[0] = 1;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            sums_[i + 1] = sums_[i] * factor + mix(static_cast<std::uint64_t>(index_of(tokens[i])));
            powers_[i + 1] = powers_[i] * factor;
        }
    }

    /// The hash of the tokens [first, last).
    [[nodiscard]] std::uint64_t operator()(std::size_t first, std::size_t last) const noexcept {
        return mix((sums_[last] - sums_[first] * powers_[last - first]) ^ salt_);
    }

private:
    static constexpr std::uint64_t factor = 0x9e3779b97f4a7c15u;

    // The finalizer of splitmix64 (Steele, Lea & Flood 2014).
    [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
        x += factor;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }

    std::uint64_t salt_;
    std::vector<std::uint64_t> sums_, powers_;
};

/// Chunks by content: their ends in a tree of pages, by the hash of all their tokens, and their lengths, by the hash of
/// their first tokens. It stores no tokens: those in the tree are compared on every hit.
class chunk_table {
public:
    chunk_table(std::size_t least, std::size_t page_tokens, std::size_t pages)
        : least_(least), page_tokens_(page_tokens), of_page_(pages) {
        expects(least > 0, "the shortest chunk has a token");
    }

    /// Tokens of the shortest chunk.
    [[nodiscard]] std::size_t least() const noexcept { return least_; }

    /// Registers a chunk. Returns whether it is registered now. Throws: bad_alloc; the table is then unchanged.
    template <index_state Tree>
    bool insert(const Tree& tree, std::uint64_t salt, const chunk_match& where) {
        if (where.count < least_ || where.end == 0 || index_of(where.last) >= of_page_.size())
            return false;
        const auto tokens = tokens_of(tree, where);
        if (tokens.empty())
            return false;
        const rolling_hash hashes(tokens, salt);
        const record made{hashes(0, least_), hashes(0, where.count), where};
        auto& own = of_page_[index_of(where.last)];
        for (const record& known : own)
            if (known.content == made.content && known.where.end == where.end && known.where.count == where.count)
                return true;
        own.push_back(made);
        detail::scope_guard undo([&] {
            forget_length(made);
            own.pop_back();
        });
        ++lengths_[made.begin][where.count];
        contents_.emplace(made.content, where);
        undo.dismiss();
        return true;
    }

    /// Forgets the chunks that end in a page.
    void erase(page_id page) noexcept {
        if (index_of(page) >= of_page_.size())
            return;
        for (const record& gone : of_page_[index_of(page)]) {
            forget_length(gone);
            contents_.erase(place(gone));
        }
        of_page_[index_of(page)].clear();
    }

    /// Moves the chunks that end in one page to another, at the same rows.
    void move(page_id from, page_id to) {
        auto records = std::exchange(of_page_[index_of(from)], {});
        for (record& one : records) {
            place(one)->second.last = to;
            one.where.last = to;
        }
        of_page_[index_of(to)] = std::move(records); // the new page is new in the tree, so it has no chunks yet
    }

    template <index_state Tree>
    [[nodiscard]] std::vector<chunk_match> find(const Tree& tree, std::uint64_t salt, std::span<const token_id> tokens,
                                                std::size_t known) const {
        std::vector<chunk_match> found;
        if (contents_.empty() || tokens.size() < least_)
            return found;
        const rolling_hash hashes(tokens, salt);
        std::size_t covered = known; // a chunk may begin before this, not end
        for (std::size_t at = 0; at + least_ <= tokens.size();) {
            const auto begin = lengths_.find(hashes(at, at + least_));
            std::optional<chunk_match> best;
            if (begin != lengths_.end())
                for (auto length = begin->second.rbegin(); !best && length != begin->second.rend(); ++length)
                    if (at + length->first > covered && at + length->first <= tokens.size())
                        best = find_candidate(tree, hashes(at, at + length->first), tokens.subspan(at, length->first),
                                              found.empty() ? nullptr : &found.back());
            if (best) {
                best->first = at;
                found.push_back(*best);
                at = covered = at + best->count;
            } else {
                ++at;
            }
        }
        return found;
    }

private:
    struct record {
        std::uint64_t begin = 0, content = 0; // hashes
        chunk_match where;
    };
    using contents = std::unordered_multimap<std::uint64_t, chunk_match>;

    // A chunk with these tokens, preferably one that continues `before`.
    template <index_state Tree>
    [[nodiscard]] std::optional<chunk_match> find_candidate(const Tree& tree, std::uint64_t hash,
                                                            std::span<const token_id> tokens,
                                                            const chunk_match* before) const {
        std::optional<chunk_match> best;
        const auto [first, last] = contents_.equal_range(hash);
        for (auto one = first; one != last; ++one) {
            if (one->second.count != tokens.size() || !ranges::equal(tokens_of(tree, one->second), tokens))
                continue;
            if (before != nullptr && continues(tree, one->second, *before))
                return one->second;
            best = one->second;
        }
        return best;
    }

    // The tokens of a chunk, read from the tree; empty if there are too few.
    template <index_state Tree>
    [[nodiscard]] std::vector<token_id> tokens_of(const Tree& tree, const chunk_match& where) const {
        std::vector<token_id> tokens(where.count);
        std::optional<page_id> page = where.last;
        std::size_t left = where.count;
        for (std::size_t end = where.end; left > 0; end = page_tokens_, page = tree.parent(*page)) {
            if (!page || tree.run(*page).size() < end)
                return {};
            const std::size_t rows = std::min(end, left);
            left -= rows;
            ranges::copy(tree.run(*page).subspan(end - rows, rows), tokens.begin() + static_cast<std::ptrdiff_t>(left));
            if (left > 0 && !tree.parent(*page))
                return {};
        }
        return tokens;
    }

    // Whether a chunk's first token directly follows the last token of another.
    template <index_state Tree>
    [[nodiscard]] bool continues(const Tree& tree, const chunk_match& chunk, const chunk_match& before) const {
        page_id page = chunk.last;
        std::size_t end = chunk.end, left = chunk.count;
        for (; left > end || (left == end && page != before.last); end = page_tokens_) {
            const auto parent = tree.parent(page);
            if (!parent)
                return false;
            left -= end;
            page = *parent;
            if (left == 0)
                return page == before.last && before.end == page_tokens_;
        }
        return page == before.last && before.end == end - left;
    }

    [[nodiscard]] contents::iterator place(const record& of) noexcept {
        auto [at, last] = contents_.equal_range(of.content);
        return std::find_if(at, last, [&](const auto& one) {
            return one.second.last == of.where.last && one.second.end == of.where.end &&
                   one.second.count == of.where.count;
        });
    }

    void forget_length(const record& of) noexcept {
        const auto begin = lengths_.find(of.begin);
        if (begin == lengths_.end())
            return;
        if (const auto length = begin->second.find(of.where.count);
            length != begin->second.end() && --length->second == 0)
            begin->second.erase(length);
        if (begin->second.empty())
            lengths_.erase(begin);
    }

    std::size_t least_;
    std::size_t page_tokens_;
    std::vector<std::vector<record>> of_page_; // by page: the chunks that end there
    contents contents_;
    std::unordered_map<std::uint64_t, std::map<std::size_t, std::size_t>> lengths_; // counts by first hash, length
};

}}} // namespace kvcache::index

// ---- kvcache/index/chunk.hpp --------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// A radix index that also finds runs of tokens by content alone, after any prefix. A chunk is registered where it
/// lies: at the page of its last token, whose ancestors hold the rest. It is forgotten when that page is erased. Every
/// position of a prompt is looked up, under the rolling hash of as many tokens as the shortest chunk has. A hash only
/// yields candidates, whose tokens are compared (Rabin & Karp 1987).
///
///     cache: [... Norvik lies | near the sea .]     prompt: [Q : | Norvik lies near the sea . | Who ...]
///                  a chunk of two pages                            found, five rows on
struct chunk {
    using role = index_role;
    std::size_t least = 32; ///< Tokens of the shortest chunk.

    /// Cost: as radix; `note` O(chunk tokens); `chunks` O(n), plus, at positions where chunks begin, their lengths.
    class state {
    public:
        state(std::size_t least, page_shape shape, std::size_t pages)
            : tree_(radix{}.open(shape, pages)), table_(least, shape.tokens, pages) {}

        [[nodiscard]] index_match match(std::span<const token_id> tokens) const { return tree_.match(tokens); }
        void match(std::span<const token_id> tokens, index_match& found) const { tree_.match(tokens, found); }

        /// Requires: as radix.
        insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
            const insertion done = tree_.insert(parent, tokens, page);
            if (done.what != insertion::outcome::covered && done.other)
                table_.move(*done.other, page); // its run continues in the new page
            return done;
        }

        /// Requires: the page is a leaf of the index.
        void erase(page_id page) {
            tree_.erase(page);
            table_.erase(page);
        }

        [[nodiscard]] bool contains(page_id page) const { return tree_.contains(page); }
        [[nodiscard]] bool leaf(page_id page) const { return tree_.leaf(page); }
        [[nodiscard]] std::optional<page_id> parent(page_id page) const { return tree_.parent(page); }
        [[nodiscard]] std::span<const token_id> run(page_id page) const { return tree_.run(page); }

        /// Tokens of the shortest chunk.
        [[nodiscard]] std::size_t least() const noexcept { return table_.least(); }

        /// Registers the `count` tokens up to row `end` of page `last` as a chunk, for lookups with the same salt.
        /// Returns whether the chunk is registered now: false if it is shorter than `least`, longer than the tokens
        /// that lie there, or `last` is not in the index. Throws: bad_alloc; the index is then unchanged.
        bool note(std::uint64_t salt, page_id last, std::uint32_t end, std::size_t count) {
            return table_.insert(tree_, salt, {.count = count, .last = last, .end = end});
        }

        /// The chunks of a prompt that end after its first `known` tokens, in order and without overlap. At each
        /// position the longest wins; of several with the same content, one that continues where the previous chunk
        /// ended.
        [[nodiscard]] std::vector<chunk_match> chunks(std::uint64_t salt, std::span<const token_id> tokens,
                                                      std::size_t known) const {
            return table_.find(tree_, salt, tokens, known);
        }

    private:
        radix::state tree_;
        chunk_table table_;
    };

    [[nodiscard]] state open(page_shape shape, std::size_t pages) const { return {least, shape, pages}; }
};

static_assert(index_policy<chunk> && chunk_index_state<chunk::state>);

}}} // namespace kvcache::index

// ---- kvcache/index/hash_chain.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// Page numbers by hash, in one open-addressed table with linear probing, at most half full. Equal hashes only make
/// candidates: the caller compares. Nothing is allocated after construction.
class hash_slots {
public:
    static constexpr std::uint32_t none = page_tree::none;

    explicit hash_slots(std::size_t pages) : slots_(std::bit_ceil(2 * pages + 2)) {}

    /// The first page under this hash for which `is_it(page)` is true; `none` if there is none.
    template <class IsIt>
    [[nodiscard]] std::uint32_t find(std::uint64_t hash, IsIt&& is_it) const {
        const std::uint32_t tag = tag_of(hash);
        for (std::size_t at = home(tag); slots_[at].page != none; at = next(at))
            if (slots_[at].tag == tag && is_it(slots_[at].page))
                return slots_[at].page;
        return none;
    }

    /// Requires: the table holds fewer pages than it was made for.
    void insert(std::uint64_t hash, std::uint32_t page) {
        std::size_t at = home(tag_of(hash));
        while (slots_[at].page != none)
            at = next(at);
        slots_[at] = {tag_of(hash), page};
    }

    /// Requires: the page is in the table under this hash.
    void erase(std::uint64_t hash, std::uint32_t page) {
        std::size_t hole = home(tag_of(hash));
        while (slots_[hole].page != page)
            hole = next(hole);
        // Following slots move up, unless that would put one before its home slot.
        for (std::size_t at = next(hole); slots_[at].page != none; at = next(at))
            if (((at - home(slots_[at].tag)) & mask()) >= ((at - hole) & mask())) {
                slots_[hole] = slots_[at];
                hole = at;
            }
        slots_[hole] = {};
    }

    /// The longest known prefix of a prompt. `chain(past, run)` continues the hash of a prefix by a page.
    template <class Chain>
    void match(const page_tree& tree, const Chain& chain, std::span<const token_id> tokens, index_match& found) const {
        std::uint32_t last = none;
        std::uint64_t hash = 0;
        const std::size_t length = tree.page_tokens();
        auto rest = tokens;
        for (; rest.size() >= length; rest = rest.subspan(length)) {
            hash = chain(hash, rest.first(length));
            const std::uint32_t page =
                find(hash, [&](std::uint32_t one) { return tree.continues(one, last, rest.first(length)); });
            if (page == none)
                break;
            found.pages.push_back(page_id{page});
            found.tokens += length;
            last = page;
        }
        tree.step(found, rest.first(std::min(rest.size(), length)));
    }

private:
    struct slot {
        std::uint32_t tag = 0;
        std::uint32_t page = none;
    };

    [[nodiscard]] static std::uint32_t tag_of(std::uint64_t hash) noexcept { return static_cast<std::uint32_t>(hash); }
    [[nodiscard]] std::size_t mask() const noexcept { return slots_.size() - 1; }
    [[nodiscard]] std::size_t home(std::uint32_t tag) const noexcept { return tag & mask(); }
    [[nodiscard]] std::size_t next(std::size_t at) const noexcept { return (at + 1) & mask(); }

    std::vector<slot> slots_;
};

/// A hash table of full pages, keyed by the chained hash of all tokens up to their end. A page of a long prompt is
/// found with one lookup, however many siblings it has. Parent and tokens are compared on every hit: a match is exact,
/// and no hash is trusted. The rest of a match is searched among the children of the last page, which are ordered by
/// their tokens. All memory is allocated at construction.
///
///     [The cat sat on] -> h1 -> page      h1 [the mat . It] -> h2 -> page      then the tail among the children
///
/// Cost: match O(n + log siblings); insert and erase O(page tokens * log siblings). 4 bytes a token, 44 to 60 a page.
struct hash_chain {
    using role = index_role;
    using state = hashed_tree<hash_slots>;
    unsigned hash_bits = 32; ///< Bits of a hash that are used; fewer yield more candidates whose tokens differ.
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const { return {hash_bits, shape, pages}; }
};

static_assert(index_policy<hash_chain>);

}}} // namespace kvcache::index

// ---- kvcache/index/all.hpp ----------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every index policy of the library, with its standard options.
using index_policies = std::tuple<index::radix, index::hash_chain, index::chunk>;

}} // namespace kvcache

// ---- kvcache/layers/all.hpp ---------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every layers policy of the library, with its default options.
using layers_policies = std::tuple<layers::uniform, layers::grouped>;

}} // namespace kvcache

// ---- kvcache/locking/mutex.hpp ------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace locking {

/// Any number of threads may use the cache. One mutex guards its metadata; pages are written and read outside of the
/// lock.
struct mutex {
    using role = locking_role;
    class state;
};

class mutex::state {
public:
    void lock() { mutex_.lock(); }
    void unlock() noexcept { mutex_.unlock(); }

    /// Unlocks, waits for a `notify`, and locks again. Requires: locked.
    void wait() {
        std::unique_lock held(mutex_, std::adopt_lock);
        changed_.wait(held);
        held.release();
    }
    void notify() noexcept { changed_.notify_all(); }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
};

static_assert(locking_policy<mutex>);

}}} // namespace kvcache::locking

// ---- kvcache/locking/all.hpp --------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every locking policy of the library, with its default options.
using locking_policies = std::tuple<locking::none, locking::mutex>;

}} // namespace kvcache

// ---- kvcache/observer/calling.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Calls functions of the host: for evicted pages, with their tokens and name, for refused reservations, or for every
/// event. A function that is not set is not called. Exceptions are ignored. Cost: a call an event.
struct calling {
    using role = observer_role;
    std::function<void(const event&)> evicted = {}; ///< A page was evicted; its tokens are `run`.
    std::function<void(const event&)> refused = {}; ///< A reservation failed for lack of pages.
    std::function<void(const event&)> any = {};     ///< Any event, these two included.

    class state;
    [[nodiscard]] state open() const;
};

class calling::state {
public:
    explicit state(calling how) : how_(std::move(how)) {}

    void on(const event& what) {
        if (how_.any)
            how_.any(what);
        if (what.kind == event_kind::evicted && how_.evicted)
            how_.evicted(what);
        if (what.kind == event_kind::refused && how_.refused)
            how_.refused(what);
    }

private:
    calling how_;
};

inline calling::state calling::open() const {
    return state(*this);
}

static_assert(observer_policy<calling>);

}}} // namespace kvcache::observer

// ---- kvcache/observer/counting.hpp --------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Event totals of a cache, since it was opened or its statistics were reset.
struct event_counts {
    std::uint64_t lookups = 0;
    std::uint64_t hits = 0;             ///< Lookups that found a prefix, which is exact; the others are misses.
    std::uint64_t approximate_hits = 0; ///< Prompts into which chunks were placed that were computed elsewhere.
    std::uint64_t tokens_looked_up = 0;
    std::uint64_t tokens_found = 0;
    std::uint64_t tokens_spliced = 0; ///< Tokens of these chunks that were kept.
    std::uint64_t tokens_stored = 0;
    std::uint64_t pages_published = 0;
    std::uint64_t pages_copied = 0;
    std::uint64_t pages_evicted = 0;
    std::uint64_t refusals = 0; ///< Reservations that failed for want of pages.

    [[nodiscard]] std::uint64_t misses() const noexcept { return lookups - hits; }
};

/// Counts events. Cost: one to three additions per event.
struct counting {
    using role = observer_role;

    class state {
    public:
        void on(const event& what) noexcept {
            switch (what.kind) {
            case event_kind::matched:
                ++counts_.lookups;
                counts_.hits += what.tokens > 0;
                counts_.tokens_looked_up += what.of;
                counts_.tokens_found += what.tokens;
                break;
            case event_kind::spliced:
                ++counts_.approximate_hits;
                counts_.tokens_spliced += what.tokens;
                break;
            case event_kind::stored:
                counts_.tokens_stored += what.tokens;
                break;
            case event_kind::published:
                counts_.pages_published += what.pages;
                break;
            case event_kind::copied:
                counts_.pages_copied += what.pages;
                break;
            case event_kind::evicted:
                counts_.pages_evicted += what.pages;
                break;
            case event_kind::refused:
                ++counts_.refusals;
                break;
            }
        }

        [[nodiscard]] const event_counts& counts() const noexcept { return counts_; }
        void reset() noexcept { counts_ = {}; }

    private:
        event_counts counts_;
    };

    [[nodiscard]] state open() const { return {}; }
};

static_assert(observer_policy<counting>);

}}} // namespace kvcache::observer

// ---- kvcache/observer/events.hpp ----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Publishes the blocks of a cache to routers, as one JSON object per line in the format of vLLM's KV event batches,
/// which Dynamo's routers read too: BlockStored when a full page becomes findable, BlockRemoved when it is evicted.
/// The hash of a block is the low half of its name; it is the same on every host with an equal identity and hash
/// policy. BlockHit and BlockCopied are not vLLM events; omit them for a reader that rejects unknown events.
struct events {
    using role = observer_role;
    std::function<void(std::string_view)> write = {}; ///< Receives one line, with its newline; optional.
    std::function<double()> seconds = {};             ///< Time source; default: the system clock, since 1970.
    bool routers_only = false;                        ///< Publish only BlockStored and BlockRemoved.
    int rank = 0;                                     ///< Index of this cache among several ("data_parallel_rank").
    std::string medium = "CPU";                       ///< Memory that holds the blocks.
    class state;
    [[nodiscard]] state open() const;
};

class events::state {
public:
    explicit state(events how) : how_(std::move(how)) {}

    void on(const event& what) {
        if (!how_.write)
            return;
        switch (what.kind) {
        case event_kind::published:
            tell(R"("type":"BlockStored","block_hashes":[)" + hash(what, what.which.front()) +
                 R"(],"parent_block_hash":)" + (what.parent ? hash(what, *what.parent) : "null") + R"(,"token_ids":[)" +
                 tokens(what.run) + R"(],"block_size":)" + std::to_string(what.page_tokens) + medium());
            break;
        case event_kind::evicted:
            if (what.tokens == what.page_tokens) // a partial page was never published
                tell(R"("type":"BlockRemoved","block_hashes":[)" + hash(what, what.which.front()) + "]" + medium());
            break;
        case event_kind::matched:
            if (!how_.routers_only)
                tell(R"("type":"BlockHit","block_hashes":[)" + hashes(what) + R"(],"tokens":)" +
                     std::to_string(what.tokens) + R"(,"of":)" + std::to_string(what.of) + medium());
            break;
        case event_kind::copied:
            if (!how_.routers_only)
                tell(R"("type":"BlockCopied","tokens":)" + std::to_string(what.tokens) + medium());
            break;
        case event_kind::spliced:
        case event_kind::stored:
        case event_kind::refused:
            break;
        }
    }

private:
    [[nodiscard]] static std::string hash(const event& what, page_id page) {
        return std::to_string(what.name_of(page).low);
    }

    // Returns the hashes of the full pages that matched, in order.
    [[nodiscard]] static std::string hashes(const event& what) {
        std::string text;
        for (std::size_t i = 0; i < what.tokens / what.page_tokens && i < what.which.size(); ++i)
            text += (i > 0 ? "," : "") + hash(what, what.which[i]);
        return text;
    }

    [[nodiscard]] static std::string tokens(std::span<const token_id> run) {
        std::string text;
        for (std::size_t i = 0; i < run.size(); ++i)
            text += (i > 0 ? "," : "") + std::to_string(index_of(run[i]));
        return text;
    }

    [[nodiscard]] std::string medium() const { return R"(,"medium":")" + how_.medium + '"'; }

    void tell(const std::string& fields) {
        const double now =
            how_.seconds ? how_.seconds()
                         : std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
        how_.write(R"({"ts":)" + std::to_string(now) + R"(,"events":[{)" + fields + R"(}],"data_parallel_rank":)" +
                   std::to_string(how_.rank) + "}\n");
    }

    events how_;
};

inline events::state events::open() const {
    return state(*this);
}

static_assert(observer_policy<events>);

}}} // namespace kvcache::observer

// ---- kvcache/core/compiled.hpp ------------------------------------------------------------------------------------

// The library has two forms. Header-only (the default): every function is defined in a header. Compiled
// (KVCACHE_COMPILED is defined and not 0): functions that are expensive to compile are only declared in their headers
// and defined once, in the objects of the CMake target kvcache::compiled. That target defines KVCACHE_COMPILED for
// itself and for targets that link it. Objects that are built with other flags do not link: their names differ
// (core/abi.hpp).
//
// A program without CMake defines KVCACHE_DECLARATIONS for all its files and compiles the files of src/ with it; or it
// includes single_include/kvcache/kvcache.hpp, and defines KVCACHE_IMPLEMENTATION in one file.
//
//     KVCACHE_ONCE   before a declaration: the compiled form defines this function once
//     KVCACHE_BODY   before its definition, in an impl/ header
//     KVCACHE_LAZY   before an inline function: it is instantiated where it is called
//
// Every file that includes an ordinary inline function compiles it and the functions it calls, used or not; a template
// is compiled only where it is called. A function template with an empty pack is called like an ordinary function.
// Classes with many members are templates with an empty pack for the same reason.
#if !defined(KVCACHE_COMPILED)
#if defined(KVCACHE_DECLARATIONS) || defined(KVCACHE_IMPLEMENTATION)
#define KVCACHE_COMPILED 1
#else
#define KVCACHE_COMPILED 0
#endif
#endif
#define KVCACHE_LAZY template <class...>
#if KVCACHE_COMPILED
#define KVCACHE_ONCE
#define KVCACHE_BODY
#else
#define KVCACHE_ONCE KVCACHE_LAZY
#define KVCACHE_BODY KVCACHE_LAZY
#endif

// ---- kvcache/core/platform/number_text.hpp ------------------------------------------------------------------------

#if !defined(__cpp_lib_to_chars)
#include <cstdio>
#include <locale>
#include <sstream>
#endif

namespace kvcache { inline namespace KVCACHE_ABI {

/// The number that the whole of a text is, in the format of std::from_chars, or nullopt. libc++ parses floating-point
/// numbers by std::from_chars since version 20.
KVCACHE_LAZY [[nodiscard]] inline std::optional<double> parse_double(std::string_view text) {
    double number = 0;
#if defined(__cpp_lib_to_chars)
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
    return problem == std::errc{} && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
#else
    if (text.empty() || text.find_first_not_of("0123456789.eE+-") != text.npos || text.front() == '+')
        return std::nullopt;
    std::istringstream from{std::string(text)};
    from.imbue(std::locale::classic());
    from >> number;
    return !from.fail() && from.peek() == std::istringstream::traits_type::eof() ? std::optional(number) : std::nullopt;
#endif
}

/// The shortest text that std::from_chars reads as this finite number, in any locale. libc++ has it since version 14.
KVCACHE_LAZY [[nodiscard]] inline std::string shortest_text(double number) {
    char digits[40];
#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 14000
    for (int precision = 1; precision <= 17; ++precision) {
        const int size = std::snprintf(digits, sizeof digits, "%.*g", precision, number);
        std::string text(digits, static_cast<std::size_t>(size));
        for (char& c : text)
            c = c == ',' ? '.' : c; // of the locale
        if (precision == 17 || parse_double(text) == number)
            return text;
    }
    return {};
#else
    return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
#endif
}

}} // namespace kvcache

// ---- kvcache/observer/metrics.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Text in Prometheus' exposition format, version 0.0.4: each metric has its help, its type and one sample.
class exposition {
public:
    /// Label names and values. A name consists of letters, digits and underscores; it begins neither with a digit nor
    /// with "__".
    using labels = std::vector<std::pair<std::string, std::string>>;

    explicit exposition(const labels& on_every_sample) {
        for (const auto& [name, value] : on_every_sample) {
            expects(is_name(name), "a label's name has letters, digits and underscores");
            labels_ += (labels_.empty() ? "" : ",") + name + "=\"" + escaped(value, true) + '"';
        }
        if (!labels_.empty())
            labels_ = "{" + labels_ + "}";
    }

    /// Adds a counter, whose value only grows.
    void counter(std::string_view name, std::string_view help, std::integral auto value) {
        sample(name, help, "counter", std::to_string(value));
    }
    /// Adds a gauge, whose value may rise and fall.
    void gauge(std::string_view name, std::string_view help, std::integral auto value) {
        sample(name, help, "gauge", std::to_string(value));
    }
    void gauge(std::string_view name, std::string_view help, double value) {
        sample(name, help, "gauge", number(value));
    }

    [[nodiscard]] const std::string& text() const& noexcept { return text_; }
    [[nodiscard]] std::string text() && noexcept { return std::move(text_); }

    /// Escapes backslashes and newlines, and quotes inside a quoted text.
    [[nodiscard]] static std::string escaped(std::string_view words, bool in_quotes) {
        std::string made;
        for (const char c : words)
            if (c == '\\' || (c == '"' && in_quotes))
                made.append({'\\', c});
            else if (c == '\n')
                made += "\\n";
            else
                made += c;
        return made;
    }

private:
    [[nodiscard]] static bool is_name(std::string_view name) {
        const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
        return !name.empty() && letter(name.front()) && !name.starts_with("__") &&
               ranges::all_of(name, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
    }

    [[nodiscard]] static std::string number(double value) {
        if (std::isnan(value))
            return "NaN";
        if (std::isinf(value))
            return value > 0 ? "+Inf" : "-Inf";
        return shortest_text(value);
    }

    void sample(std::string_view name, std::string_view help, std::string_view type, const std::string& value) {
        text_.append("# HELP ").append(name).append(" ").append(escaped(help, false)).append("\n# TYPE ");
        text_.append(name).append(" ").append(type).append("\n");
        text_.append(name).append(labels_).append(" ").append(value).append("\n");
    }

    std::string labels_;
    std::string text_;
};

/// All Prometheus metrics of a cache with the observer `metrics` below: event counts and current occupancy. Thread-safe
/// if the cache has a mutex.
template <class Cache>
[[nodiscard]] std::string metrics_text(const Cache& cache) {
    exposition::labels labels;
    std::string text;
    cache.with_observer([&](const auto& observer) {
        labels = observer.labels();
        text = observer.text();
    });
    const auto now = cache.stats();
    exposition to(labels);
    to.gauge("kvcache_pages", "Pages that fit the budget.", now.pages);
    to.gauge("kvcache_pages_free", "Pages never used, or given back.", now.free);
    to.gauge("kvcache_pages_in_use", "Pages referenced by live sequences.", now.in_use);
    to.gauge("kvcache_pages_evictable", "Unreferenced pages, cached for the next match.", now.evictable);
    to.gauge("kvcache_page_bytes", "Bytes of a page.", now.page_bytes);
    to.gauge("kvcache_sequences", "Live sequences and matches.", now.sequences);
    return text + to.text();
}

/// Counts events like `counting` and reports them in Prometheus' text format. `cache/metrics_text.hpp` adds the fill
/// level of the cache.
struct metrics {
    using role = observer_role;
    exposition::labels labels = {}; ///< Labels of every sample: {{"model", "llama"}}.

    class state {
    public:
        explicit state(exposition::labels labels) : labels_(std::move(labels)) {}

        void on(const event& what) noexcept { counting_.on(what); }

        [[nodiscard]] const event_counts& counts() const noexcept { return counting_.counts(); }
        void reset() noexcept { counting_.reset(); }
        [[nodiscard]] const exposition::labels& labels() const noexcept { return labels_; }

        /// Returns the counters in Prometheus' text format. Requires: the label names are valid.
        [[nodiscard]] std::string text() const {
            const event_counts& now = counts();
            exposition to(labels_);
            to.counter("kvcache_lookups_total", "Prompts looked up.", now.lookups);
            to.counter("kvcache_hits_total", "Prompts with a cached prefix.", now.hits);
            to.counter("kvcache_approximate_hits_total", "Prompts into which chunks were placed.",
                       now.approximate_hits);
            to.counter("kvcache_tokens_spliced_total", "Tokens of these chunks.", now.tokens_spliced);
            to.counter("kvcache_tokens_looked_up_total", "Tokens of the prompts looked up.", now.tokens_looked_up);
            to.counter("kvcache_tokens_found_total", "Tokens of them that were known.", now.tokens_found);
            to.counter("kvcache_tokens_stored_total", "Tokens committed.", now.tokens_stored);
            to.counter("kvcache_pages_published_total", "Full pages made known.", now.pages_published);
            to.counter("kvcache_pages_copied_total", "Shared pages copied before a write.", now.pages_copied);
            to.counter("kvcache_pages_evicted_total", "Pages that left to make room.", now.pages_evicted);
            to.counter("kvcache_refusals_total", "Reservations that failed for want of pages.", now.refusals);
            const double share = static_cast<double>(now.tokens_found) / static_cast<double>(now.tokens_looked_up);
            if (now.tokens_looked_up > 0)
                to.gauge("kvcache_hit_ratio", "Tokens found, of those looked up, since the start.", share);
            return std::move(to).text();
        }

    private:
        exposition::labels labels_;
        counting::state counting_;
    };

    [[nodiscard]] state open() const { return state(labels); }
};

static_assert(observer_policy<metrics>);

}}} // namespace kvcache::observer

// ---- kvcache/observer/tracing.hpp ---------------------------------------------------------------------------------

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

// ---- kvcache/observer/all.hpp -------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every observer policy of the library, with its default options.
using observer_policies = std::tuple<observer::none, observer::calling, observer::counting, observer::events,
                                     observer::metrics, observer::tracing>;

}} // namespace kvcache

// ---- kvcache/recompute/blend.hpp ----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// The indices of the `most` largest deviations, ascending; ties go to the lower index. Cost: O(n log n).
[[nodiscard]] inline std::vector<std::size_t> top_k_deviations(std::span<const float> deviations, std::size_t most) {
    std::vector<std::size_t> order(deviations.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return deviations[a] > deviations[b]; });
    order.resize(std::min(order.size(), most));
    ranges::sort(order);
    return order;
}

/// The number of tokens in a fraction of `total`, at least one unless the fraction is zero.
[[nodiscard]] inline std::size_t share_of(double fraction, std::size_t total) {
    const auto most = static_cast<std::size_t>(fraction * static_cast<double>(total));
    return std::min(total, std::max<std::size_t>(most, fraction > 0.0 ? 1 : 0));
}

/// Recomputes the reused tokens whose keys or values deviate most in the second layer (CacheBlend, Yao et al. 2025).
/// Keys and values of the first layer depend only on a token and its position. All tokens therefore go through that
/// layer, and its output gives the correct keys and values of the second. Ties go to the earlier token.
struct blend {
    using role = recompute_role;
    double fraction = 0.15;                             ///< Fraction of the reused tokens to recompute.
    deviation_metric compares = deviation_metric::keys; ///< The vectors whose deviation is measured.
    std::size_t layer = 1; ///< The layer they belong to; all tokens go through the layers before it.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class blend::state : public exact_prefix::state {
public:
    explicit state(const blend& options) : options_(options) {}

    [[nodiscard]] deviation_metric compared() const noexcept { return options_.compares; }
    [[nodiscard]] std::size_t check_layer() const noexcept { return options_.layer; }

    void select(std::span<const reused_span> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        const auto order = top_k_deviations(deviations, share_of(options_.fraction, deviations.size()));
        auto next = order.begin();
        std::size_t before = 0; // tokens of the spans before this one
        for (const reused_span& run : runs) {
            for (; next != order.end() && *next < before + run.count; ++next)
                positions.push_back(run.first + *next - before);
            before += run.count;
        }
    }

private:
    blend options_;
};

inline blend::state blend::open(page_shape) const {
    return state(*this);
}

static_assert(recompute_policy<blend> && deviation_recompute_state<blend::state>);

}}} // namespace kvcache::recompute

// ---- kvcache/recompute/chunk_boundary.hpp -------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Recomputes the last tokens of every reused span, those before the boundary to the next span (KVBoost's selective
/// recompute). Which side of a boundary matters depends on the model: `chunk_head` is the other.
struct chunk_boundary {
    using role = recompute_role;
    std::size_t rows = 16; ///< Tokens before each boundary.

    class state : public exact_prefix::state {
    public:
        explicit state(std::size_t rows) : rows_(rows) {}

        void select(std::span<const reused_span> runs, std::vector<std::size_t>& positions) const {
            for (const reused_span& run : runs)
                for (std::size_t left = std::min(rows_, run.count); left > 0; --left)
                    positions.push_back(run.first + run.count - left);
        }

    private:
        std::size_t rows_;
    };

    [[nodiscard]] state open(page_shape) const { return state(rows); }
};

static_assert(recompute_policy<chunk_boundary> && chunk_recompute_state<chunk_boundary::state>);

}}} // namespace kvcache::recompute

// ---- kvcache/recompute/chunk_head.hpp -----------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Recomputes the first tokens of every reused span. Computed without a prefix they became attention sinks, which they
/// are not after other tokens (EPIC's LegoLink, Hu et al. 2025). Recomputation continues to the end of a page, so that
/// the following pages stay whole and shared (MEPIC).
struct chunk_head {
    using role = recompute_role;
    std::size_t rows = 32;    ///< Minimum number of tokens of each span.
    bool page_aligned = true; ///< Continues to the end of the last token's page.

    class state : public exact_prefix::state {
    public:
        state(std::size_t rows, std::size_t page) : rows_(rows), page_(page) {}

        void select(std::span<const reused_span> runs, std::vector<std::size_t>& positions) const {
            for (const reused_span& run : runs) {
                const std::size_t behind = (run.row + rows_ + page_ - 1) / page_ * page_; // first page kept
                const std::size_t count = rows_ == 0 ? 0 : std::min(run.count, behind - run.row);
                for (std::size_t i = 0; i < count; ++i)
                    positions.push_back(run.first + i);
            }
        }

    private:
        std::size_t rows_;
        std::size_t page_; // granularity to which rows are rounded up
    };

    [[nodiscard]] state open(page_shape shape) const { return {rows, page_aligned ? shape.tokens : 1}; }
};

static_assert(recompute_policy<chunk_head> && chunk_recompute_state<chunk_head::state>);

}}} // namespace kvcache::recompute

// ---- kvcache/recompute/full.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Recomputes every inexact token: bit-identical to reusing no chunk, and as slow. For comparisons.
struct full {
    using role = recompute_role;

    class state : public exact_prefix::state {
    public:
        void select(std::span<const reused_span> runs, std::vector<std::size_t>& positions) const {
            for (const reused_span& run : runs)
                for (std::size_t i = 0; i < run.count; ++i)
                    positions.push_back(run.first + i);
        }
    };

    [[nodiscard]] state open(page_shape) const { return {}; }
};

static_assert(recompute_policy<full> && chunk_recompute_state<full::state>);

}}} // namespace kvcache::recompute

// ---- kvcache/recompute/gradual_blend.hpp --------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Selects as `blend` does, but more tokens than `fraction`, then filters them: each of the next layers keeps the
/// tokens that deviate most there (CacheBlend's gradual filtering, Yao et al. 2025). The remaining tokens are
/// recomputed in all layers.
struct gradual_blend {
    using role = recompute_role;
    double fraction = 0.15;  ///< Fraction of the reused tokens kept by the last filter.
    double wider = 2.0;      ///< Size of the first selection, as a multiple of `fraction`.
    std::size_t filters = 2; ///< Number of filtering layers; capped at the layers after `layer`.
    deviation_metric compares = deviation_metric::keys; ///< The vectors whose deviation is measured.
    std::size_t layer = 1; ///< The layer of the first selection; all tokens go through the layers before it.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class gradual_blend::state : public exact_prefix::state {
public:
    state(const gradual_blend& options, std::size_t layers) : options_(options) {
        const std::size_t behind = layers > options.layer + 1 ? layers - options.layer - 1 : 0;
        options_.filters = std::min(options.filters, behind);
    }

    [[nodiscard]] deviation_metric compared() const noexcept { return options_.compares; }
    [[nodiscard]] std::size_t check_layer() const noexcept { return options_.layer; }
    [[nodiscard]] std::size_t filters() const noexcept { return options_.filters; }

    void select(std::span<const reused_span> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        blend{.fraction = fraction_after(0)}.open({}).select(runs, deviations, positions);
    }

    /// Applies filter `number`: keeps those of `positions` that deviate most in the next layer.
    void filter(std::size_t number, std::span<const reused_span> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        std::size_t total = 0;
        for (const reused_span& run : runs)
            total += run.count;
        std::vector<std::size_t> kept;
        for (const std::size_t i : top_k_deviations(deviations, share_of(fraction_after(number + 1), total)))
            kept.push_back(positions[i]);
        positions = std::move(kept);
    }

private:
    // The fraction shrinks geometrically from fraction * wider to fraction.
    [[nodiscard]] double fraction_after(std::size_t done) const {
        const double left = options_.filters == 0
                                ? 0.0
                                : static_cast<double>(options_.filters - done) / static_cast<double>(options_.filters);
        return options_.fraction * std::pow(options_.wider, left);
    }

    gradual_blend options_;
};

inline gradual_blend::state gradual_blend::open(page_shape shape) const {
    return {*this, shape.layers};
}

static_assert(recompute_policy<gradual_blend> && filtering_recompute_state<gradual_blend::state>);

}}} // namespace kvcache::recompute

// ---- kvcache/recompute/none.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace recompute {

/// Reuses every chunk unchanged: its keys are rotated to their new positions, but they never attended to what now
/// precedes them. Approximate; the cheapest policy and the least accurate.
struct none {
    using role = recompute_role;

    class state : public exact_prefix::state {
    public:
        void select(std::span<const reused_span>, std::vector<std::size_t>&) const {}
    };

    [[nodiscard]] state open(page_shape) const { return {}; }
};

static_assert(recompute_policy<none> && chunk_recompute_state<none::state>);

}}} // namespace kvcache::recompute

// ---- kvcache/recompute/all.hpp ------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every recompute policy of the library, with its standard options.
using recompute_policies =
    std::tuple<recompute::exact_prefix, recompute::none, recompute::chunk_boundary, recompute::chunk_head,
               recompute::blend, recompute::gradual_blend, recompute::full>;

}} // namespace kvcache

// ---- kvcache/storage/counted.hpp ----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

/// Counters of a storage's calls.
struct storage_counts {
    std::uint64_t acquired = 0; ///< Pages acquired.
    std::uint64_t refused = 0;  ///< Pages refused.
    std::uint64_t released = 0; ///< Pages released.
    std::uint64_t most = 0;     ///< Peak number of pages acquired at once.

    [[nodiscard]] constexpr std::uint64_t out() const noexcept { return acquired - released; }
};

/// A wrapper that counts the calls to another storage. For tests that check that every page is released.
template <storage_policy Inner = heap>
struct counted {
    using role = storage_role;
    Inner inner = {}; ///< The wrapped storage.

    class state {
    public:
        explicit state(decltype(std::declval<const Inner&>().open(0, 0)) inner) : inner_(std::move(inner)) {}

        [[nodiscard]] bool acquire(page_id page) {
            const bool given = inner_.acquire(page);
            ++(given ? counts_.acquired : counts_.refused);
            counts_.most = std::max(counts_.most, counts_.out());
            return given;
        }
        void release(page_id page) noexcept {
            ++counts_.released;
            inner_.release(page);
        }
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return inner_.bytes(page); }

        [[nodiscard]] const storage_counts& counts() const noexcept { return counts_; }

    private:
        decltype(std::declval<const Inner&>().open(0, 0)) inner_;
        storage_counts counts_;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        return state(inner.open(pages, page_bytes));
    }
};

static_assert(storage_policy<counted<heap>>);

}}} // namespace kvcache::storage

// ---- kvcache/storage/external.hpp ---------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

/// A host's function that copies a block: (from, to), or (from, to, rows) with the number of leading rows in use. With
/// a mutex as locking, another thread may be writing later rows of `from` meanwhile. Returns whether it succeeded.
class block_copy {
public:
    block_copy() = default;
    template <class F>
        requires(!std::same_as<F, block_copy>)
    block_copy(F copy) {
        constexpr bool whole = std::is_invocable_r_v<bool, F&, page_id, page_id>,
                       rows = std::is_invocable_r_v<bool, F&, page_id, page_id, std::size_t>;
        static_assert((whole || rows) && std::is_copy_constructible_v<F>,
                      "external memory's copy is bool(page_id from, page_id to), or has a third parameter, the number "
                      "of rows in use, and can itself be copied");
        if constexpr (rows)
            copy_ = std::move(copy);
        else if constexpr (whole)
            if (std::function<bool(page_id, page_id)> both = std::move(copy))
                copy_ = [both = std::move(both)](page_id from, page_id to, std::size_t) { return both(from, to); };
    }

    [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(copy_); }
    [[nodiscard]] bool operator()(page_id from, page_id to, std::size_t rows) const { return copy_(from, to, rows); }

private:
    std::function<bool(page_id, page_id, std::size_t)> copy_;
};

/// Pages are blocks of the host's own tensors, numbered from 0: the cache knows which are cached, shared and free, and
/// reads and writes none of them. The codec of such a cache is codec::external. A commit may change entries of a
/// sequence's page table, and calls `on_move` for each, unless the cache merges no equal pages (cache_config). The
/// functions run while the cache is locked and must not call it. A copy that throws has failed; what the other
/// functions throw is discarded.
struct external {
    using role = storage_role;

    /// Called where a sequence is to write into a block that it shares. If it fails, so does the reservation. Required.
    block_copy copy = {};
    /// Called when a block without references is evicted; its content is unknown to the cache from now on.
    std::function<void(page_id block)> on_evict = {};
    /// Called in `commit` for each entry that changes because its block is merged with an equal one. Required, unless
    /// the cache has merge_equal_pages = false.
    std::function<void(const moved_entry& entry)> on_move = {};

    class state;
    /// Requires: `copy` is given.
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

class external::state {
public:
    explicit state(external host) : host_(std::move(host)) {
        require(static_cast<bool>(host_.copy), "external memory has a function that copies a block");
    }

    [[nodiscard]] bool acquire(page_id) noexcept { return true; }
    void release(page_id) noexcept {}
    [[nodiscard]] bool copy(page_id from, page_id to, std::size_t rows) const {
        failed_ = true; // also if the host throws
        detail::ignore_exceptions([&] { failed_ = !host_.copy(from, to, rows); });
        return !failed_;
    }
    /// Errors: io, if the last copy failed, once for each.
    [[nodiscard]] result<void> status() const {
        return std::exchange(failed_, false)
                   ? result<void>(error{error_code::io, "copy", "the host could not copy a block"})
                   : result<void>();
    }

    /// Whether the host learns of entries that a commit changes.
    [[nodiscard]] bool follows_moves() const noexcept { return static_cast<bool>(host_.on_move); }
    void on_evict(page_id block) const {
        if (host_.on_evict)
            detail::ignore_exceptions([&] { host_.on_evict(block); });
    }
    void on_move(const moved_entry& entry) const {
        if (host_.on_move)
            detail::ignore_exceptions([&] { host_.on_move(entry); });
    }

private:
    external host_;
    mutable bool failed_ = false; // changes only while the cache is locked
};

inline external::state external::open(std::size_t, std::size_t) const {
    return state{*this};
}

static_assert(storage_policy<external>);

}}} // namespace kvcache::storage

// ---- kvcache/storage/huge_pages.hpp -------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

#if KVCACHE_POSIX

/// Allocates the whole capacity as one block on huge pages. Huge pages reserved by the administrator (MAP_HUGETLB) are
/// taken at construction, all or none. If there are too few, ordinary memory is mapped and committed as it fills, and
/// the system is advised to use huge pages (madvise). The state reports which it got.
struct huge_pages {
    using role = storage_role;
    bool set_aside = true; ///< Whether to try the reserved huge pages; if not, memory is committed only as it fills.

    /// The kind of memory that backs the pages.
    enum class backing {
        set_aside, ///< Huge pages of the administrator's pool, guaranteed.
        advised,   ///< Ordinary memory; the system accepted the advice to use huge pages.
        ordinary,  ///< Ordinary memory: the system has no huge pages, or the capacity is smaller than one.
        none,      ///< No memory: every page is refused.
    };

    class state {
    public:
        state(bool from_pool, std::size_t pages, std::size_t page_bytes)
            : page_bytes_(page_bytes), stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes) {
            if (pages == 0 || stride_ == 0 || pages > (std::numeric_limits<std::size_t>::max() >> 1) / stride_)
                return;
            take(from_pool, (pages * stride_ + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes);
        }

        /// Returns false if there is no memory at all.
        [[nodiscard]] bool acquire(page_id) const noexcept { return backing_ != backing::none; }
        void release(page_id) noexcept {}
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
            return memory_.bytes().subspan(begin_ + index_of(page) * stride_, page_bytes_);
        }

        /// The kind of memory that backs the pages.
        [[nodiscard]] huge_pages::backing backing() const noexcept { return backing_; }

    private:
        using backing_type = huge_pages::backing;

        void take(bool from_pool, std::size_t size) {
            if (from_pool)
                memory_ = platform::address_range::map(size, platform::backing::huge);
            if (!memory_.empty()) {
                backing_ = backing_type::set_aside;
                return;
            }
            // One extra huge page, so that the first page can begin on a boundary.
            memory_ = platform::address_range::map(size + huge_page_bytes, platform::backing::lazy);
            if (memory_.empty())
                return;
            const auto at = reinterpret_cast<std::uintptr_t>(memory_.bytes().data());
            begin_ = (huge_page_bytes - at % huge_page_bytes) % huge_page_bytes;
            backing_ =
                want_huge_pages(memory_.bytes().data() + begin_, size) ? backing_type::advised : backing_type::ordinary;
        }

        std::size_t page_bytes_;
        std::size_t stride_; // distance between pages, in bytes
        platform::address_range memory_;
        std::size_t begin_ = 0; // offset of the first page
        backing_type backing_ = backing_type::none;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const { return {set_aside, pages, page_bytes}; }
};

/// The name of a backing.
[[nodiscard]] constexpr const char* to_string(huge_pages::backing what) noexcept {
    switch (what) {
    case huge_pages::backing::set_aside:
        return "huge pages set aside";
    case huge_pages::backing::advised:
        return "huge pages by advice";
    case huge_pages::backing::ordinary:
        return "ordinary pages";
    case huge_pages::backing::none:
        break;
    }
    return "no memory";
}

#else

/// Not on this system: see the message.
struct huge_pages {
    using role = storage_role;
    bool set_aside = true;

    template <class Number>
    [[nodiscard]] heap::state open(Number pages, std::size_t page_bytes) const {
        static_assert(!std::integral<Number>,
                      "kvcache: storage::huge_pages needs the memory mappings of POSIX, which this system lacks: use "
                      "storage::heap");
        return heap{}.open(pages, page_bytes);
    }
};

#endif

static_assert(storage_policy<huge_pages>);

}}} // namespace kvcache::storage

// ---- kvcache/core/platform/file.hpp -------------------------------------------------------------------------------

#if KVCACHE_POSIX
#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#elif KVCACHE_WINDOWS
#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <sys/stat.h>
#include <sys/types.h>
#else
#include <cstdio>
#include <new>
#endif

namespace kvcache { inline namespace KVCACHE_ABI { namespace platform {

/// Whether file_bytes maps files; if not, it reads them.
inline constexpr bool maps_files = KVCACHE_POSIX || KVCACHE_WINDOWS;

/// Why the system refused something.
struct refusal {
    const char* what = nullptr; ///< "cannot be opened"; null: it did not refuse.
    int reason = 0;             ///< An errno; zero: `what` says it all.
};

/// The number of this process, for names of temporary files.
[[nodiscard]] inline int process_number() noexcept {
#if KVCACHE_POSIX
    return ::getpid();
#elif KVCACHE_WINDOWS
    return ::_getpid();
#else
    return 0;
#endif
}

/// What the system knows of a file.
struct file_status {
    /// A moment, counted from 1970.
    struct moment {
        std::int64_t seconds = 0, nanoseconds = 0;
    };
    std::uint64_t device = 0, inode = 0, size = 0;
    std::optional<moment> modified = {},
                          changed = {}; ///< None where the system keeps no time that a program cannot set.
};

/// The descriptor of an open file, closed at the end of its scope.
class descriptor {
public:
    descriptor() = default;
    explicit descriptor(int number) noexcept : number_(number) {}
    descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    descriptor& operator=(descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~descriptor() {
#if KVCACHE_POSIX
        if (number_ >= 0)
            ::close(number_);
#elif KVCACHE_WINDOWS
        if (number_ >= 0)
            ::_close(number_);
#endif
    }

    [[nodiscard]] explicit operator bool() const noexcept {
        return number_ >= 0;
    }
    [[nodiscard]] int number() const noexcept {
        return number_;
    }

private:
    int number_ = -1;
};

#if KVCACHE_POSIX || KVCACHE_WINDOWS

/// The status of an open file; nullopt and errno if the system refuses, or if it is not a regular file (EINVAL).
KVCACHE_LAZY [[nodiscard]] inline std::optional<file_status> status_of(int file) noexcept {
#if KVCACHE_POSIX
    struct ::stat found = {};
    if (::fstat(file, &found) != 0)
        return std::nullopt;
    const bool regular = S_ISREG(found.st_mode);
#else
    struct ::_stat64 found = {};
    if (::_fstat64(file, &found) != 0)
        return std::nullopt;
    const bool regular = (found.st_mode & _S_IFMT) == _S_IFREG;
#endif
    if (!regular) {
        errno = EINVAL;
        return std::nullopt;
    }
    file_status made{.device = static_cast<std::uint64_t>(found.st_dev),
                     .inode = static_cast<std::uint64_t>(found.st_ino),
                     .size = static_cast<std::uint64_t>(found.st_size)};
#if defined(__APPLE__)
    made.modified = {found.st_mtimespec.tv_sec, found.st_mtimespec.tv_nsec};
    made.changed = {found.st_ctimespec.tv_sec, found.st_ctimespec.tv_nsec};
#elif KVCACHE_POSIX
    made.modified = {found.st_mtim.tv_sec, found.st_mtim.tv_nsec};
    made.changed = {found.st_ctim.tv_sec, found.st_ctim.tv_nsec};
#endif
    return made;
}

#endif

/// The bytes of a regular file: mapped, or read as a whole where the system has no mappings.
class file_bytes {
public:
    /// Opens a file in place of the one before.
    KVCACHE_LAZY [[nodiscard]] refusal open(const std::filesystem::path& file) {
        *this = {};
#if KVCACHE_POSIX || KVCACHE_WINDOWS
#if KVCACHE_POSIX
        // Without O_NONBLOCK, opening a pipe would wait for its writer.
        file_ = descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
#else
        file_ = descriptor(::_wopen(file.c_str(), _O_RDONLY | _O_BINARY | _O_NOINHERIT));
#endif
        if (!file_)
            return {"cannot be opened", errno};
        const auto status = status_of(file_.number());
        if (!status)
            return errno == EINVAL ? refusal{"is not a regular file"} : refusal{"has no readable status", errno};
        if (status->size > std::numeric_limits<std::size_t>::max() / 2)
            return {"is larger than this process can address", EFBIG};
        if (status->size > 0)
            begin_ = map(static_cast<std::size_t>(status->size));
        size_ = begin_ == nullptr ? 0 : static_cast<std::size_t>(status->size);
        return begin_ == nullptr && status->size > 0 ? refusal{"cannot be mapped", errno} : refusal{};
#else
        std::error_code reason;
        if (const auto kind = std::filesystem::status(file, reason).type();
            kind != std::filesystem::file_type::regular && kind != std::filesystem::file_type::not_found)
            return {"is not a regular file"};
        std::FILE* const from = std::fopen(file.c_str(), "rb");
        if (from == nullptr)
            return {"cannot be opened", errno};
        const auto bytes = std::filesystem::file_size(file, reason);
        refusal made = reason ? refusal{"has no readable status", reason.value()} : refusal{};
        if (made.what == nullptr && bytes > 0) {
            begin_ = static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), std::nothrow));
            if (begin_ == nullptr)
                made = {"cannot be read", ENOMEM};
            else if (std::fread(begin_, 1, static_cast<std::size_t>(bytes), from) != bytes)
                made = {"cannot be read", EIO};
        }
        size_ = begin_ == nullptr ? 0 : static_cast<std::size_t>(bytes);
        std::fclose(from);
        return made;
#endif
    }

    file_bytes() = default;
    file_bytes(file_bytes&& other) noexcept {
        swap(other);
    }
    file_bytes& operator=(file_bytes&& other) noexcept {
        file_bytes(std::move(other)).swap(*this);
        return *this;
    }
    ~file_bytes() {
        if (begin_ == nullptr)
            return;
#if KVCACHE_POSIX
        ::munmap(begin_, size_);
#elif KVCACHE_WINDOWS
        ::UnmapViewOfFile(begin_);
#else
        ::operator delete(begin_);
#endif
    }

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
        return {begin_, size_};
    }

    /// The file's status now; none where it was read, and where the system refuses.
    KVCACHE_LAZY [[nodiscard]] std::optional<file_status> status() const noexcept {
#if KVCACHE_POSIX || KVCACHE_WINDOWS
        return status_of(file_.number());
#else
        return std::nullopt;
#endif
    }

    /// Starts reading the file from disk, as far as the system chooses; returns at once.
    void read_ahead() const noexcept {
#if KVCACHE_POSIX
        if (begin_ != nullptr)
            ::madvise(begin_, size_, MADV_WILLNEED);
#endif
    }

    /// Drops whole pages from this process's memory. Requires: the range is a part of the file, in whole system pages.
    void forget([[maybe_unused]] std::size_t first, [[maybe_unused]] std::size_t past) const noexcept {
#if KVCACHE_POSIX
        ::madvise(begin_ + first, past - first, MADV_DONTNEED);
#elif KVCACHE_WINDOWS
        ::VirtualUnlock(begin_ + first, past - first); // of pages that are not locked: out of the working set
#endif
    }

private:
#if KVCACHE_POSIX
    KVCACHE_LAZY [[nodiscard]] std::byte* map(std::size_t size) const noexcept {
        void* const at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file_.number(), 0);
        return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
    }
#elif KVCACHE_WINDOWS
    KVCACHE_LAZY [[nodiscard]] std::byte* map(std::size_t) const noexcept {
        constexpr unsigned long read_only = 2, view_to_read = 4;
        // NOLINTNEXTLINE(performance-no-int-to-ptr): what the C library returns for a handle
        auto* const handle = reinterpret_cast<void*>(::_get_osfhandle(file_.number()));
        void* const mapping = ::CreateFileMappingW(handle, nullptr, read_only, 0, 0, nullptr);
        void* const at = mapping == nullptr ? nullptr : ::MapViewOfFile(mapping, view_to_read, 0, 0, 0);
        if (mapping != nullptr)
            ::CloseHandle(mapping); // the view keeps it
        if (at == nullptr)
            errno = EIO;
        return static_cast<std::byte*>(at);
    }
#endif
    void swap(file_bytes& other) noexcept {
        std::swap(file_, other.file_);
        std::swap(begin_, other.begin_);
        std::swap(size_, other.size_);
    }

    descriptor file_;
    std::byte* begin_ = nullptr;
    std::size_t size_ = 0;
};

/// A new file that is written from its beginning. Each member returns zero or an errno.
class new_file {
public:
    new_file() = default;
    new_file(const new_file&) = delete;
    new_file& operator=(const new_file&) = delete;
#if KVCACHE_POSIX || KVCACHE_WINDOWS
    /// Creates the file, which must not exist.
    KVCACHE_LAZY [[nodiscard]] int create(const std::filesystem::path& file) {
#if KVCACHE_POSIX
        file_ = descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
#else
        constexpr int flags = _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT;
        file_ = descriptor(::_wopen(file.c_str(), flags, _S_IREAD | _S_IWRITE));
#endif
        return file_ ? 0 : errno;
    }
    /// Appends all bytes.
    KVCACHE_LAZY [[nodiscard]] int write(std::span<const std::byte> bytes) noexcept {
        constexpr std::size_t most = std::size_t{1} << 30; // a single call takes 2 GiB at most
        while (!bytes.empty()) {
#if KVCACHE_POSIX
            const auto written = ::write(file_.number(), bytes.data(), std::min(most, bytes.size()));
#else
            const auto written =
                ::_write(file_.number(), bytes.data(), static_cast<unsigned>(std::min(most, bytes.size())));
#endif
            if (written < 0 && errno != EINTR)
                return errno;
            if (written > 0)
                bytes = bytes.subspan(static_cast<std::size_t>(written));
        }
        return 0;
    }
    /// Waits until the bytes are on the disk.
    [[nodiscard]] int sync() noexcept {
#if KVCACHE_POSIX
        return ::fsync(file_.number()) == 0 ? 0 : errno;
#else
        return ::_commit(file_.number()) == 0 ? 0 : errno;
#endif
    }

private:
    descriptor file_;
#else
    [[nodiscard]] int create(const std::filesystem::path& file) {
        file_ = std::fopen(file.c_str(), "wbx");
        return file_ != nullptr ? 0 : errno;
    }
    [[nodiscard]] int write(std::span<const std::byte> bytes) noexcept {
        return std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size() ? 0 : EIO;
    }
    [[nodiscard]] int sync() noexcept {
        return std::fflush(file_) == 0 ? 0 : errno;
    }
    ~new_file() {
        if (file_ != nullptr)
            std::fclose(file_);
    }

private:
    std::FILE* file_ = nullptr;
#endif
};

/// Waits until the names in a directory are on the disk. If the system has no such thing, a crash may undo a rename.
KVCACHE_LAZY inline void sync_directory([[maybe_unused]] const std::filesystem::path& directory) noexcept {
#if KVCACHE_POSIX
    const descriptor folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder)
        static_cast<void>(::fsync(folder.number()));
#endif
}

#if KVCACHE_POSIX

/// A file of its process alone that grows and is mapped as far as it reaches, at addresses that stay.
class growing_file {
public:
    /// Creates `file`, which must not exist and is readable for its owner alone; an empty path becomes a new name in
    /// the temporary directory.
    [[nodiscard]] refusal create(std::filesystem::path& file, bool unlink) {
        if (file.empty()) {
            std::error_code none;
            const auto folder = std::filesystem::temp_directory_path(none);
            std::string name = ((none ? std::filesystem::path("/tmp") : folder) / "kvcache-XXXXXX").string();
            file_ = descriptor(::mkstemp(name.data()));
            file = std::move(name);
        } else {
            file_ = descriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        }
        if (!file_)
            return {"cannot be created", errno};
        return unlink && ::unlink(file.c_str()) != 0 ? refusal{"cannot be unlinked", errno} : refusal{};
    }

    /// Reserves the addresses for `bytes`, whole system pages.
    [[nodiscard]] refusal reserve(std::size_t bytes) noexcept {
        memory_ = address_range::map(bytes, backing::nothing);
        return memory_.empty() ? refusal{"cannot be given addresses", errno} : refusal{};
    }

    /// The addresses; of these the first `size()` bytes can be accessed.
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return memory_.bytes(); }
    [[nodiscard]] std::size_t size() const noexcept { return memory_.empty() ? 0 : size_; }

    /// Grows the file and its mapping. Disk space is allocated first: otherwise a write would kill the process on a
    /// full disk (SIGBUS). Requires: `size` is more than now, whole system pages, and within the addresses.
    [[nodiscard]] refusal grow(std::size_t size) noexcept {
        const auto at = static_cast<::off_t>(size_), more = static_cast<::off_t>(size - size_);
        if (const int why = allocate(at, more); why != 0)
            return {"cannot grow", why};
        if (::mmap(memory_.bytes().data() + size_, size - size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   file_.number(), at) == MAP_FAILED)
            return {"cannot be mapped", errno};
        size_ = size;
        return {};
    }

private:
    [[nodiscard]] int allocate(::off_t at, ::off_t more) const noexcept {
#if defined(__APPLE__) // has no posix_fallocate
        ::fstore_t wanted = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, more, 0};
        return ::fcntl(file_.number(), F_PREALLOCATE, &wanted) == -1 || ::ftruncate(file_.number(), at + more) != 0
                   ? errno
                   : 0;
#else
        return ::posix_fallocate(file_.number(), at, more);
#endif
    }

    descriptor file_;
    address_range memory_;
    std::size_t size_ = 0;
};

#endif

}}} // namespace kvcache::platform

// ---- kvcache/storage/mapped.hpp -----------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

#if KVCACHE_POSIX

/// Pages in a mapped file: the system writes idle pages to disk, so a cache can be larger than memory. The file grows
/// with the pages in use, in steps whose disk space is allocated first. On a full disk a page is refused, and `status`
/// gives the reason. The file is scratch space: another cache cannot use its content.
struct mapped {
    using role = storage_role;
    std::filesystem::path file = {}; ///< An unused file name; empty: a new file in the temporary directory.
    bool unlink = true;              ///< Unlinks the file at once, so that nothing remains even after a crash.
    std::size_t growth = std::size_t{64} << 20; ///< Bytes that the file grows by, at least.

    class state {
    public:
        state(const mapped& how, std::size_t pages, std::size_t page_bytes)
            : page_bytes_(page_bytes),
              stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes),
              file_(how.file) {
            const std::size_t system_page = platform::system_page_bytes();
            const auto whole = [&](std::size_t bytes) { return (bytes + system_page - 1) / system_page * system_page; };
            if (pages == 0 || stride_ == 0)
                return;
            if (pages > (std::numeric_limits<std::size_t>::max() >> 1) / stride_) {
                reason_ = error{error_code::out_of_range, "pages", "the pages are past what can be addressed"};
                return;
            }
            growth_ = whole(std::max({how.growth, stride_, std::size_t{1}}));
            usable_ = succeeds(memory_.create(file_, how.unlink)) && succeeds(memory_.reserve(whole(pages * stride_)));
        }

        /// Returns false if the file cannot grow to hold the page; `status` then gives the reason. A later call tries
        /// again.
        [[nodiscard]] bool acquire(page_id page) {
            const std::size_t end = (index_of(page) + std::size_t{1}) * stride_;
            return end <= memory_.size() || grow(end);
        }
        void release(page_id) noexcept {}
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
            return memory_.bytes().subspan(index_of(page) * stride_, page_bytes_);
        }

        /// The reason why the last page was refused, if it was. Errors: io, out_of_range.
        [[nodiscard]] result<void> status() const { return reason_ ? result<void>(*reason_) : result<void>(); }
        /// The file's name, which no longer exists if `unlink` is set.
        [[nodiscard]] const std::filesystem::path& file() const noexcept { return file_; }
        /// The size of the file in bytes.
        [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }

    private:
        [[nodiscard]] bool grow(std::size_t end) {
            const std::size_t wanted = std::min(memory_.bytes().size(), (end + growth_ - 1) / growth_ * growth_);
            return usable_ && succeeds(memory_.grow(wanted));
        }

        // Notes a refusal as the reason.
        [[nodiscard]] bool succeeds(const platform::refusal& refused) {
            reason_.reset();
            if (refused.what != nullptr)
                reason_ =
                    error{error_code::io, file_.filename().string(),
                          file_.string() + " " + refused.what + ": " + std::generic_category().message(refused.reason)};
            return !reason_;
        }

        std::size_t page_bytes_;
        std::size_t stride_; // distance between pages, in bytes
        std::size_t growth_ = 1;
        bool usable_ = false; // the file is there, and has addresses
        std::filesystem::path file_;
        platform::growing_file memory_;
        std::optional<error> reason_;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const { return {*this, pages, page_bytes}; }
};

#else

/// Not on this system: see the message.
struct mapped {
    using role = storage_role;
    std::filesystem::path file = {};
    bool unlink = true;
    std::size_t growth = std::size_t{64} << 20;

    template <class Number>
    [[nodiscard]] heap::state open(Number pages, std::size_t page_bytes) const {
        static_assert(!std::integral<Number>, "kvcache: storage::mapped needs the file mappings of POSIX, which this "
                                              "system lacks: use storage::heap, and a tier for what does not fit");
        return heap{}.open(pages, page_bytes);
    }
};

#endif

static_assert(storage_policy<mapped>);

}}} // namespace kvcache::storage

// ---- kvcache/storage/zero_on_release.hpp --------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Zeroes bytes that are not read again; the compiler cannot optimize the stores away.
inline void secure_zero(std::span<std::byte> bytes) noexcept {
    if (bytes.empty())
        return;
    std::memset(bytes.data(), 0, bytes.size());
    asm volatile("" : : "r"(bytes.data()) : "memory"); // a possible read of the memory
}

}} // namespace kvcache

namespace kvcache { inline namespace KVCACHE_ABI { namespace storage {

/// A wrapper that zeroes the pages of another storage before they return to it: when they are released, when the
/// storage closes, and when another storage is move-assigned to it. The compiler cannot optimize the zeroing away. An
/// unreferenced page that stays cached for later matches is still acquired; it is zeroed when it is evicted.
template <storage_policy Inner = heap>
struct zero_on_release {
    using role = storage_role;
    Inner inner = {}; ///< The wrapped storage.

    class state {
    public:
        state(std::size_t pages, decltype(std::declval<const Inner&>().open(0, 0)) inner)
            : inner_(std::move(inner)), out_(pages, false) {}

        state(state&& other) noexcept : inner_(std::move(other.inner_)), out_(std::exchange(other.out_, {})) {}
        state& operator=(state&& other) noexcept {
            if (this != &other) {
                wipe_all();
                inner_ = std::move(other.inner_);
                out_ = std::exchange(other.out_, {});
            }
            return *this;
        }
        ~state() { wipe_all(); }

        [[nodiscard]] bool acquire(page_id page) { return out_[index_of(page)] = inner_.acquire(page); }
        void release(page_id page) noexcept {
            secure_zero(inner_.bytes(page));
            out_[index_of(page)] = false;
            inner_.release(page);
        }
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return inner_.bytes(page); }

    private:
        void wipe_all() noexcept {
            for (std::size_t page = 0; page < out_.size(); ++page)
                if (out_[page])
                    secure_zero(inner_.bytes(page_id{static_cast<std::uint32_t>(page)}));
        }

        decltype(std::declval<const Inner&>().open(0, 0)) inner_;
        std::vector<bool> out_; // by page: acquired
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        return {pages, inner.open(pages, page_bytes)};
    }
};

static_assert(storage_policy<zero_on_release<heap>>);

}}} // namespace kvcache::storage

// ---- kvcache/storage/all.hpp --------------------------------------------------------------------------------------

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every storage policy of the library that this system has, with its standard options.
using storage_policies = std::tuple<storage::heap,
#if KVCACHE_POSIX
                                    storage::huge_pages, storage::mapped,
#endif
                                    storage::zero_on_release<storage::heap>, storage::counted<storage::heap>>;

}} // namespace kvcache

#endif
