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
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>
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
#include <variant>
#include <vector>

// ---- kvcache/core/version.hpp -------------------------------------------------------------------------------------

/// The one place where the version lives; CMake reads it from here.
#define KVCACHE_VERSION_MAJOR 0
#define KVCACHE_VERSION_MINOR 1
#define KVCACHE_VERSION_PATCH 0

// ---- kvcache/core/abi.hpp -----------------------------------------------------------------------------------------

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#endif

// Contract checks: on in debug builds; define KVCACHE_CONTRACTS as 1 or 0 to choose.
#if !defined(KVCACHE_CONTRACTS)
#if defined(NDEBUG)
#define KVCACHE_CONTRACTS 0
#else
#define KVCACHE_CONTRACTS 1
#endif
#endif

// KVCACHE_ABI is the inline namespace of the whole library. Its name states what changes the library's code or layout:
// the version, the instruction set, contract checks and exceptions. Objects that are built differently therefore share
// no function, and passing a type of the library between them is a link error.
//
// A host that builds files for several processors and passes caches between them defines KVCACHE_TARGET, with one name
// for all files, and ensures that each file runs only on a processor that has its instructions. This is for the cache
// alone: the layout of arithmetic classes depends on the instruction set, so kernel/native.hpp refuses it.
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

// The same as a string literal.
#define KVCACHE_ABI_QUOTED(name) #name
#define KVCACHE_ABI_TEXT_OF(name) KVCACHE_ABI_QUOTED(name)
#define KVCACHE_ABI_TEXT KVCACHE_ABI_TEXT_OF(KVCACHE_ABI)

// ---- kvcache/core/id.hpp ------------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// A page of keys and values in a page pool.
enum class page_id : std::uint32_t {};

/// An entry that an eviction policy ranks: a page, a session, a record of a tier.
enum class slot_id : std::uint32_t {};

/// A token of a tokenizer's vocabulary.
enum class token_id : std::int32_t {};

/// A layer of a model, counted from the input.
enum class layer_id : std::uint32_t {};

/// A key and value head.
enum class head_id : std::uint32_t {};

/// The number behind an identifier.
[[nodiscard]] constexpr std::uint32_t index_of(page_id page) noexcept {
    return static_cast<std::uint32_t>(page);
}
[[nodiscard]] constexpr std::uint32_t index_of(slot_id slot) noexcept {
    return static_cast<std::uint32_t>(slot);
}
[[nodiscard]] constexpr std::int32_t index_of(token_id token) noexcept {
    return static_cast<std::int32_t>(token);
}
[[nodiscard]] constexpr std::uint32_t index_of(layer_id layer) noexcept {
    return static_cast<std::uint32_t>(layer);
}
[[nodiscard]] constexpr std::uint32_t index_of(head_id head) noexcept {
    return static_cast<std::uint32_t>(head);
}

} // namespace kvcache

// ---- kvcache/core/role.hpp ----------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

struct codec_role;
struct storage_role;
struct hash_role;
struct index_role;
struct eviction_role;
struct recompute_role;
struct tier_role;
struct observer_role;
struct locking_role;

namespace detail {

template <class Role, class... Roles>
inline constexpr bool one_of_roles = (std::same_as<Role, Roles> || ...);

template <class P>
concept names_its_role = requires {
    typename P::role;
};

} // namespace detail

/// What a policy's `open` gives for arguments of these types.
template <class P, class... Arguments>
using opened_by = decltype(std::declval<const P&>().open(std::declval<const Arguments&>()...));

/// The role a policy plays: `P::role`, unless specialised for a type you do not own.
template <class P>
struct role_of {};

template <detail::names_its_role P>
struct role_of<P> {
    using type = typename P::role;
};

/// A role that a cache has.
template <class Role>
concept known_role = detail::one_of_roles<Role, codec_role, storage_role, hash_role, index_role, eviction_role,
                                          recompute_role, tier_role, observer_role, locking_role>;

/// A type that names the role it plays.
template <class P>
concept policy = known_role<typename role_of<P>::type>;

/// A policy of the given role.
template <class P, class Role>
concept plays = policy<P> && std::same_as<typename role_of<P>::type, Role>;

} // namespace kvcache

// ---- kvcache/core/contract.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// A caller's mistake, thrown where contract checks are on.
class contract_violation : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

namespace detail {

/// Throws contract_violation. Without exceptions it calls std::terminate, whose handler the program may set.
#if defined(__GNUC__)
[[gnu::cold, gnu::noinline]]
#endif
[[noreturn]] inline void
violate([[maybe_unused]] const char* what) {
#if defined(__cpp_exceptions)
    throw contract_violation(what);
#else
    std::terminate();
#endif
}

} // namespace detail

/// Checks what a caller must hold. Off in release builds unless KVCACHE_CONTRACTS is 1.
/// Throws: contract_violation, with `what` as its words.
constexpr void expects([[maybe_unused]] bool holds, [[maybe_unused]] const char* what) {
#if KVCACHE_CONTRACTS
    if (!holds)
        detail::violate(what);
#endif
}

} // namespace kvcache

// ---- kvcache/core/shape.hpp ---------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The tokens of one tile: one SIMD vector of scores.
inline constexpr std::uint32_t tile_tokens = 16;

/// The extents of one page of keys and values.
struct page_shape {
    std::uint32_t layers = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    std::uint32_t tokens = 64; ///< Positions a page; a multiple of 16.

    friend constexpr bool operator==(const page_shape&, const page_shape&) = default;

    /// Whether a page of this shape can exist.
    [[nodiscard]] constexpr bool valid() const noexcept {
        return layers > 0 && kv_heads > 0 && head_dim > 0 && tokens > 0 && tokens % tile_tokens == 0;
    }
};

/// The memory a cache may fill with pages.
struct budget {
    std::size_t bytes = 0;
};

inline namespace literals {
[[nodiscard]] constexpr std::size_t operator""_KiB(unsigned long long n) {
    return std::size_t{n} << 10;
}
[[nodiscard]] constexpr std::size_t operator""_MiB(unsigned long long n) {
    return std::size_t{n} << 20;
}
[[nodiscard]] constexpr std::size_t operator""_GiB(unsigned long long n) {
    return std::size_t{n} << 30;
}
} // namespace literals

} // namespace kvcache

// ---- kvcache/codec/concept.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Where a row of keys and values stands inside a page.
struct page_row {
    layer_id layer = {};
    head_id head = {};
    std::uint32_t row = 0;
};

/// Where a tile of 16 rows stands inside a page.
struct page_tile {
    layer_id layer = {};
    head_id head = {};
    std::uint32_t tile = 0;
};

/// Which pages before its own a query reads as they were computed, not as they are coded.
struct exact_pages {
    std::size_t first = 0;  ///< The first pages of a sequence.
    std::size_t recent = 0; ///< The pages right before the query's own.

    /// Whether a query of page `own` reads page `page` exactly. Its own it always does.
    [[nodiscard]] constexpr bool covers(std::size_t page, std::size_t own) const noexcept {
        return page + recent >= own || page < first;
    }

    friend constexpr bool operator==(const exact_pages&, const exact_pages&) = default;
};

/// The numbers a row of values takes in a tile: head_dim, rounded up to whole vectors.
[[nodiscard]] constexpr std::size_t value_width(std::size_t head_dim) noexcept {
    return (head_dim + 15) / 16 * 16;
}

/// Gives a page's keys and values in tiles of 16 rows. `keys` and `values` return the tile, either where it lies in the
/// page or decoded into `scratch`: keys as (head_dim, 16), values as (16, value_width(head_dim)).
template <class S>
concept page_reader = requires(const S s, std::span<const std::byte> bytes, page_tile tile, std::span<float> scratch) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    { s.keys(bytes, tile, scratch) } -> std::same_as<const float*>;
    { s.values(bytes, tile, scratch) } -> std::same_as<const float*>;
};

/// Writes rows of keys and values into a page one by one, and loses nothing. `copy` takes the first `rows` rows to
/// another page and reads no byte of the rows behind them, which somebody else may be writing.
template <class S>
concept row_writer = requires(const S s, std::span<std::byte> page, std::span<const std::byte> bytes, page_row row,
                              std::span<const float> numbers, std::size_t rows) {
    s.encode(page, row, numbers, numbers);
    s.copy(bytes, page, rows);
};

/// Writes a layer's head of a page once all its rows are there, as the plain codec lays them out; what it keeps may
/// differ from what was computed. `turn_key` and `turn_value` turn a row before it is kept, exact or coded: queries are
/// turned as keys, and what attention gives is turned back as values.
template <class S>
concept page_writer = requires(const S s, std::span<std::byte> page, std::span<const std::byte> rows, layer_id layer,
                               head_id head, std::span<float> row) {
    s.encode(page, layer, head, rows);
    s.turn_key(row);
    s.turn_value(row);
    s.turn_back(row);
    { s.exact() } -> std::same_as<exact_pages>;
    { s.shape() } -> std::same_as<page_shape>;
};

/// Says how pages lie that only a backend of its own reads and writes: it names the backend and the layout, which make
/// a cache's identity another one than the host's.
template <class S>
concept far_codec_state = requires(const S s) {
    { s.page_bytes() } -> std::same_as<std::size_t>;
    { s.name() } -> std::same_as<std::string>;
    { s.layout_name() } -> std::same_as<std::string>;
    { s.backend() } -> std::same_as<std::string>;
};

/// The working state of a codec.
template <class S>
concept codec_state = (page_reader<S> && (row_writer<S> || page_writer<S>)) || far_codec_state<S>;

namespace detail {

/// Whether a codec says how a tile is coded: both sides, or neither.
template <class Codec>
inline constexpr bool gives_codes = requires(const Codec c, std::span<const std::byte> bytes, page_tile at) {
    c.codes(bytes, at);
};

} // namespace detail

/// How the numbers of a page are kept.
template <class P>
concept codec_policy = plays<P, codec_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && codec_state<opened_by<P, page_shape>>;

} // namespace kvcache

// ---- kvcache/codec/plain.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Keeps keys and values as float32, unchanged, so that what is read is what was computed, bit for bit.
/// Keys lie transposed in tiles of 16 tokens, so that one vector is 16 scores; values lie row by row, padded with
/// zeros to whole vectors:
///
///     layer, head:  [ keys: (tokens / 16, head_dim, 16) ][ values: (tokens, value_width) ]
struct plain {
    using role = codec_role;
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class plain::state {
public:
    static constexpr bool in_place = true; ///< Tiles are read where they lie.

    explicit state(page_shape shape) : shape_(shape) {}

    [[nodiscard]] std::size_t page_bytes() const noexcept {
        return std::size_t{shape_.layers} * shape_.kv_heads * head_numbers() * sizeof(float);
    }

    [[nodiscard]] std::string name() const { return "plain f32"; }

    /// Writes one row. key, value: (head_dim)
    void encode(std::span<std::byte> page, page_row at, std::span<const float> key,
                std::span<const float> value) const {
        float* keys = reinterpret_cast<float*>(page.data()) + offset(at.layer, at.head);
        float* column = keys + std::size_t{at.row / tile_tokens} * shape_.head_dim * tile_tokens + at.row % tile_tokens;
        for (std::size_t d = 0; d < shape_.head_dim; ++d)
            column[d * tile_tokens] = key[d];
        float* row = keys + key_numbers() + at.row * value_width(shape_.head_dim);
        std::memcpy(row, value.data(), shape_.head_dim * sizeof(float));
    }

    /// Takes the first rows to another page: whole tiles at once, the lanes of the last one by one.
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
            std::copy_n(source + key_numbers(), rows * value_width(shape_.head_dim), target + key_numbers());
        }
    }

    /// The keys of a tile, in place. (head_dim, 16)
    [[nodiscard]] const float* keys(std::span<const std::byte> page, page_tile at, std::span<float>) const noexcept {
        return reinterpret_cast<const float*>(page.data()) + offset(at.layer, at.head) +
               std::size_t{at.tile} * shape_.head_dim * tile_tokens;
    }

    /// The values of a tile, in place. (16, value_width)
    [[nodiscard]] const float* values(std::span<const std::byte> page, page_tile at, std::span<float>) const noexcept {
        return reinterpret_cast<const float*>(page.data()) + offset(at.layer, at.head) + key_numbers() +
               std::size_t{at.tile} * tile_tokens * value_width(shape_.head_dim);
    }

private:
    [[nodiscard]] std::size_t key_numbers() const noexcept { return std::size_t{shape_.tokens} * shape_.head_dim; }
    [[nodiscard]] std::size_t head_numbers() const noexcept {
        return key_numbers() + std::size_t{shape_.tokens} * value_width(shape_.head_dim);
    }
    [[nodiscard]] std::size_t offset(layer_id layer, head_id head) const noexcept {
        return (std::size_t{index_of(layer)} * shape_.kv_heads + index_of(head)) * head_numbers();
    }

    page_shape shape_;
};

inline plain::state plain::open(page_shape shape) const {
    return state{shape};
}

static_assert(codec_policy<plain>);

} // namespace kvcache

// ---- kvcache/core/huge_pages.hpp ----------------------------------------------------------------------------------

#include <sys/mman.h>

namespace kvcache::inline KVCACHE_ABI {

/// The larger page that most 64-bit systems offer: one entry of the address cache in place of 512.
inline constexpr std::size_t huge_page_bytes = std::size_t{1} << 21;

/// Asks the system to put the whole huge pages inside [at, at + bytes) on huge pages, at once for memory that nobody
/// touched yet and by and by for the rest. Returns whether the system takes such wishes; where it does not, nothing
/// happens. What came of it says bytes_on_huge_pages().
inline bool want_huge_pages([[maybe_unused]] void* at, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
    const auto from = reinterpret_cast<std::uintptr_t>(at);
    const std::uintptr_t first = (from + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
    const std::uintptr_t last = (from + bytes) / huge_page_bytes * huge_page_bytes;
    return first < last && ::madvise(static_cast<std::byte*>(at) + (first - from), last - first, MADV_HUGEPAGE) == 0;
#else
    return false;
#endif
}

} // namespace kvcache

// ---- kvcache/core/aligned.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// One cache line, and one AVX-512 vector.
inline constexpr std::size_t line_bytes = 64;

/// The alignment that memory of `bytes` gets: a cache line, or a huge page for what fills two of them or more.
[[nodiscard]] constexpr std::size_t alignment_for(std::size_t bytes) noexcept {
    return bytes >= 2 * huge_page_bytes ? huge_page_bytes : line_bytes;
}

/// Allocates on cache-line boundaries; what is large on huge pages, where the system has them.
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

/// A vector that begins on a cache line.
template <class T>
using aligned_vector = std::vector<T, line_allocator<T>>;

} // namespace kvcache

// ---- kvcache/codec/exact_page.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The rows of one page as they were computed, turned by its codec, until the page is coded and nobody reads them any
/// more. They lie as `Rows` keeps them.
template <class Rows>
class basic_exact_page {
public:
    /// Throws: bad_alloc.
    explicit basic_exact_page(page_shape shape)
        : shape_(shape), rows_(shape), bytes_(rows_.page_bytes()), written_(shape.layers) {}

    /// The bytes that one takes.
    [[nodiscard]] static std::size_t bytes_for(page_shape shape) noexcept { return Rows(shape).page_bytes(); }

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    /// To put rows in place that were computed elsewhere.
    [[nodiscard]] std::span<std::byte> bytes() noexcept { return bytes_; }

    /// Says that its first `rows` rows are there, in all layers, and no others.
    void begin(std::uint32_t rows) noexcept {
        for (auto& written : written_)
            written.store(rows, std::memory_order_relaxed);
    }

    /// Takes the first rows of another.
    void take(const basic_exact_page& other, std::size_t rows) { rows_.copy(other.bytes_, bytes_, rows); }

    /// Writes a row of a layer, and codes the layer into `page` with its last missing row. Rows may be written by
    /// several threads, each once a layer. keys, values: (kv_heads, head_dim)
    template <page_writer Codec>
    void write(const Codec& codec, std::span<std::byte> page, layer_id layer, std::uint32_t row,
               std::span<const float> keys, std::span<const float> values) {
        const std::size_t dim = shape_.head_dim;
        for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
            const page_tile at{layer, head_id{head}, row / tile_tokens};
            // Where the value will be, the key is turned first.
            float* const own = const_cast<float*>(rows_.values(bytes_, at, {})) + row % tile_tokens * value_width(dim);
            float* const column = const_cast<float*>(rows_.keys(bytes_, at, {})) + row % tile_tokens;
            std::copy_n(keys.data() + head * dim, dim, own);
            codec.turn_key({own, dim});
            for (std::size_t d = 0; d < dim; ++d)
                column[d * tile_tokens] = own[d];
            std::copy_n(values.data() + head * dim, dim, own);
            codec.turn_value({own, dim});
        }
        auto& written = written_[index_of(layer)];
        if (written.fetch_add(1, std::memory_order_acq_rel) + 1 < shape_.tokens)
            return;
        for (std::uint32_t head = 0; head < shape_.kv_heads; ++head)
            codec.encode(page, layer, head_id{head}, bytes_);
        written.store(0, std::memory_order_relaxed); // for the page that takes its place
    }

private:
    page_shape shape_;
    Rows rows_;
    aligned_vector<std::byte> bytes_;
    std::vector<std::atomic<std::uint32_t>> written_; // rows, by layer
};

/// Exact rows as the plain codec keeps them.
using exact_page = basic_exact_page<plain::state>;

} // namespace kvcache

// ---- kvcache/cache/exact_ring.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The exact rows of the pages that a lease writes. Rows run in ascending order and so many at once at most, so pages
/// far enough apart take one another's place; those that stay exact have a place of their own.
struct exact_ring {
    std::vector<std::shared_ptr<exact_page>> places = {};
    std::size_t first = 0; ///< The table's entry that the first place is of.
    std::size_t own = 0;   ///< Leading entries with a place of their own; the others share the places behind.

    /// The place of a table's entry, from `first` on.
    [[nodiscard]] std::size_t place_of(std::size_t entry) const noexcept {
        const std::size_t i = entry - first;
        return i < own ? i : own + (i - own) % (places.size() - own);
    }
    [[nodiscard]] exact_page* at(std::size_t entry) const noexcept { return places[place_of(entry)].get(); }

    /// Whether none of a table's later entries has taken the place of this one.
    [[nodiscard]] bool keeps(std::size_t entry, std::size_t entries) const noexcept {
        const std::size_t i = entry - first;
        return i < own || i + (places.size() - own) >= entries - first;
    }

    [[nodiscard]] std::shared_ptr<exact_page> take(std::size_t entry) noexcept {
        return std::move(places[place_of(entry)]);
    }

    /// The places that `pages` new pages need, of which the first `own` have their own, if those that `at_once`
    /// consecutive rows touch, and `recent` before them, are needed together.
    [[nodiscard]] static std::size_t places_for(std::size_t pages, std::size_t own, std::size_t at_once,
                                                std::size_t page_tokens, std::size_t recent) noexcept {
        const std::size_t touched = at_once == 0 ? 0 : (at_once - 1) / page_tokens + 2;
        return std::min(pages, own + touched + recent);
    }
};

} // namespace kvcache

// ---- kvcache/core/digest256.hpp -----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// 256 bits that stand for some bytes, also against an adversary. In the order in which FIPS 180-4 writes them.
struct digest256 {
    std::array<std::byte, 32> bytes = {};

    friend constexpr bool operator==(const digest256&, const digest256&) = default;
    friend constexpr auto operator<=>(const digest256&, const digest256&) = default;
};

/// 64 hexadecimal letters.
[[nodiscard]] inline std::string to_string(const digest256& d) {
    std::string text;
    for (const std::byte b : d.bytes)
        for (const int shift : {4, 0})
            text += "0123456789abcdef"[std::to_integer<unsigned>(b) >> shift & 15u];
    return text;
}

/// Whether two are equal, in a time that does not tell where they differ.
[[nodiscard]] constexpr bool same_in_constant_time(const digest256& a, const digest256& b) noexcept {
    std::byte difference{};
    for (std::size_t i = 0; i < a.bytes.size(); ++i)
        difference |= a.bytes[i] ^ b.bytes[i];
    return difference == std::byte{};
}

} // namespace kvcache

// ---- kvcache/core/page_table.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// One entry of a sequence's page table: the rows [first, first + count) of a page, in the sequence's order.
struct page_entry {
    page_id page = {};
    std::int64_t base = 0;   ///< The keys are rotated by (position - base); zero for a prefix computed in place.
    std::uint32_t first = 0; ///< The first row in use.
    std::uint32_t count = 0; ///< How many rows are in use.

    friend bool operator==(const page_entry&, const page_entry&) = default;
};

} // namespace kvcache

// ---- kvcache/cache/sequence_state.hpp -----------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Where a row of a woven lease lies.
struct woven_row {
    page_id page = {};
    std::uint32_t row = 0;
    bool kept = false;     ///< Computed elsewhere, and not to be written.
    std::int64_t base = 0; ///< The position its keys are rotated from.
};

/// The books of one sequence: its tokens, the pages that hold them, and what a lease has under way. Every live one is
/// on a ring of its cache, so that `check` can count every holder.
struct sequence_state {
    static constexpr std::size_t all = static_cast<std::size_t>(-1);

    std::vector<token_id> tokens = {};
    std::vector<page_entry> table = {};
    std::size_t sealed = 0;      ///< Leading pages that are full and in the index.
    std::size_t prompt = 0;      ///< Tokens of the request that it is opened for, until it has them; 0 if unknown.
    std::uint32_t tenant = 0;    ///< Whose it is; 0 in a cache without tenants.
    std::size_t exact = all;     ///< Leading tokens that attended to nothing approximate; `all` if every one.
    std::size_t cacheable = all; ///< Leading tokens that may become known to others.
    bool shares = true;          ///< False once the index had no memory for its pages: from there on they are its own.

    std::size_t stored = 0;     ///< Leading pages that were handed to the tier.
    digest256 stored_name = {}; ///< What leaves the process calls them.

    /// Where the tokens move as they grow; then where they were, until the next lease: somebody may still look there.
    std::vector<token_id> room = {};

    /// Held beside the table: the pages that approximate rows were taken from, and what those continue, first.
    std::vector<page_id> sources = {};

    // A lease: rows behind `tokens` that the table has already, and how to take them back.
    bool has_lease = false;
    std::size_t leased = 0;
    std::chrono::steady_clock::time_point leased_at = {};
    std::size_t pages_before = 0;
    std::vector<woven_row> woven = {};          ///< By row of the lease, where some are kept from elsewhere.
    std::optional<page_entry> tail_before = {}; ///< The last entry as it was; if its page differs, it is still held.

    exact_ring ring = {};                     ///< For a codec of whole pages: the exact rows of the pages it adds.
    std::vector<exact_page*> exact_rows = {}; ///< By entry: what queries may read exactly.

    sequence_state* previous = nullptr;
    sequence_state* next = nullptr;

    /// The rows in use of the last page if it has room for more; none if a next row begins a page.
    [[nodiscard]] std::optional<std::uint32_t> open_rows(std::size_t page_tokens) const noexcept {
        if (table.empty() || table.back().base != 0 || table.back().first + table.back().count == page_tokens)
            return std::nullopt;
        return table.back().first + table.back().count;
    }

    /// How many leading entries fill their pages.
    [[nodiscard]] std::size_t full_entries(std::size_t page_tokens) const noexcept {
        return table.size() - (open_rows(page_tokens) ? 1 : 0);
    }

    /// Shortens the entries to `rows` rows; returns how many entries stay, and leaves the others to the caller.
    [[nodiscard]] std::size_t cut(std::size_t rows) noexcept {
        std::size_t kept = 0;
        for (; kept < table.size() && rows > 0; ++kept) {
            table[kept].count = static_cast<std::uint32_t>(std::min<std::size_t>(table[kept].count, rows));
            rows -= table[kept].count;
        }
        return kept;
    }

    /// Keeps the first `kept` entries and leaves their pages to the caller.
    void drop_entries(std::size_t kept) noexcept {
        while (table.size() > kept)
            table.pop_back();
    }

    /// Whether a lease has put a copy in the place of the last page.
    [[nodiscard]] bool has_copied_tail() const noexcept {
        return tail_before && tail_before->page != table[pages_before - 1].page;
    }

    /// The books of a sequence that begins with the first `count` tokens and pages of this one.
    [[nodiscard]] std::unique_ptr<sequence_state> begin(std::size_t count, std::size_t page_tokens) const {
        auto copy = std::make_unique<sequence_state>();
        copy->tokens.assign(tokens.data(), tokens.data() + count);
        copy->table.assign(table.data(), table.data() + table.size());
        copy->drop_entries(copy->cut(count));
        copy->sealed = std::min(sealed, copy->full_entries(page_tokens));
        copy->tenant = tenant;
        copy->cacheable = cacheable;
        copy->shares = shares;
        if (count > exact) {
            copy->exact = exact;
            copy->sources.assign(sources.data(), sources.data() + sources.size());
        }
        return copy;
    }

    /// For the begin of `from` up to `first`: adds the tokens behind the `count` that are left out. Returns: where
    /// their rows lie, moved down; the table has room for as many. From `first` on it is approximate, and its own.
    [[nodiscard]] std::vector<page_entry> leave_out(const sequence_state& from, std::size_t first, std::size_t count) {
        std::vector<page_entry> behind;
        std::size_t row = 0;
        for (page_entry entry : from.table) {
            const std::size_t skipped = std::clamp(first + count, row, row + entry.count) - row;
            row += entry.count;
            if (skipped == entry.count)
                continue;
            entry.first += static_cast<std::uint32_t>(skipped);
            entry.count -= static_cast<std::uint32_t>(skipped);
            entry.base -= static_cast<std::int64_t>(count);
            behind.push_back(entry);
        }
        table.reserve(table.size() + behind.size());
        tokens.insert(tokens.end(), from.tokens.data() + first + count, from.tokens.data() + from.tokens.size());
        if (!behind.empty()) {
            exact = std::min(exact, first);
            shares = false;
        }
        return behind;
    }

    /// Takes room for more pages and tokens, so that adding them cannot fail. Throws: bad_alloc, and the sequence is as
    /// before then.
    void prepare(std::size_t pages, std::size_t rows) {
        if (table.capacity() - table.size() < pages)
            table.reserve(std::max(table.size() + pages, 2 * table.capacity()));
        const std::size_t needed = tokens.size() + rows;
        const bool grows = needed > tokens.capacity();
        if (grows && room.capacity() >= needed)
            return;
        room = std::vector<token_id>();
        if (grows)
            room.reserve(std::max(needed, 2 * tokens.capacity()));
    }

    /// Adds tokens that room was taken for; they may be some of its own, or of another sequence that has moved its
    /// tokens since its own lease began.
    void append(std::span<const token_id> more) noexcept {
        const std::size_t old = tokens.size(), needed = old + more.size();
        if (needed > tokens.capacity()) {
            const token_id* const own = tokens.data();
            room.assign(own, own + old);
            room.swap(tokens);
        }
        tokens.resize(needed);
        std::copy(more.begin(), more.end(), tokens.data() + old);
    }

    /// Ends a lease and forgets what it had under way.
    void end_lease() noexcept {
        has_lease = false;
        woven.clear();
        leased = 0;
        tail_before.reset();
        exact_rows.clear();
    }
};

} // namespace kvcache

// ---- kvcache/core/result.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What kind of fault of the world an error reports.
enum class error_code {
    not_found,     ///< A file, tensor or field that is not there.
    io,            ///< The system refused to open, read, map or write.
    truncated,     ///< Shorter than its own header says.
    malformed,     ///< Not of the format: syntax, offsets, encodings.
    mismatched,    ///< Well formed, but not what was asked for: dtype, shape, identity.
    unsupported,   ///< Well formed, and something this library does not run.
    out_of_memory, ///< No page or memory left, and nothing that may leave.
    out_of_range,  ///< A token, position or length past its limit.
    cancelled,     ///< Stopped on the caller's request.
};

/// A typed error: its kind, the name of the failing field or file, and words a user can act on.
struct error {
    error_code code = error_code::malformed;
    std::string field = {};   ///< "rope_scaling.type", "model.safetensors", "pages": what failed.
    std::string message = {}; ///< One sentence, with the numbers.

    friend bool operator==(const error&, const error&) = default;
};

/// A value, or the error that kept it from being made.
template <class T>
class [[nodiscard]] result {
public:
    using value_type = T;

    result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
    result(kvcache::error reason) : held_(std::in_place_index<1>, std::move(reason)) {}

    [[nodiscard]] bool has_value() const noexcept { return held_.index() == 0; }
    [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

    /// Requires: has_value().
    [[nodiscard]] T& operator*() & { return value(); }
    [[nodiscard]] const T& operator*() const& { return value(); }
    [[nodiscard]] T&& operator*() && { return std::move(value()); }
    [[nodiscard]] T* operator->() { return &value(); }
    [[nodiscard]] const T* operator->() const { return &value(); }

    /// Requires: !has_value().
    [[nodiscard]] const kvcache::error& error() const {
        expects(!has_value(), "a result is asked for its error only when it has no value");
        return *std::get_if<1>(&held_);
    }

private:
    [[nodiscard]] T& value() {
        expects(has_value(), "a result is read only when it has a value");
        return *std::get_if<0>(&held_);
    }
    [[nodiscard]] const T& value() const {
        expects(has_value(), "a result is read only when it has a value");
        return *std::get_if<0>(&held_);
    }

    std::variant<T, kvcache::error> held_;
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
        expects(!has_value(), "a result is asked for its error only when it has no value");
        return *reason_;
    }

private:
    std::optional<kvcache::error> reason_;
};

} // namespace kvcache

// ---- kvcache/cache/sequence.hpp -----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// A run of tokens and the pages that hold their keys and values, shared with other sequences where they agree.
/// Destroying it releases its pages, tail first; what the index knows stays until room is needed.
/// Requires: the cache outlives it.
template <class Cache>
class basic_sequence {
public:
    basic_sequence(basic_sequence&& other) noexcept = default;
    /// Releases the pages it held before.
    basic_sequence& operator=(basic_sequence&& other) noexcept {
        basic_sequence taken(std::move(other));
        std::swap(cache_, taken.cache_);
        std::swap(state_, taken.state_);
        return *this;
    }
    ~basic_sequence() {
        if (state_)
            cache_->release(*state_);
    }

    /// How many tokens have their keys and values in place.
    [[nodiscard]] std::size_t size() const noexcept { return state_->tokens.size(); }
    [[nodiscard]] std::span<const token_id> tokens() const noexcept { return state_->tokens; }
    /// How many leading tokens are exact: the same bits as with nothing reused. Those behind came from another past, or
    /// attended to such; nobody else is ever given them.
    [[nodiscard]] std::size_t exact() const noexcept { return std::min(state_->exact, size()); }
    [[nodiscard]] std::span<const page_entry> table() const noexcept { return state_->table; }

    /// A sequence of its own that shares the first `tokens` tokens; a page cut in the middle is copied by whoever
    /// writes to it first. Where the codec codes whole pages, a fork inside a coded one ends at that page's begin: its
    /// size() says where to go on. Requires: tokens <= size(), no lease under way. Cost: O(pages).
    [[nodiscard]] basic_sequence fork(std::size_t tokens) const { return cache_->fork(*state_, tokens); }

    /// Keeps the first `tokens` tokens, or fewer, as a fork does. Requires: tokens <= size(), no lease under way.
    void truncate(std::size_t tokens) { cache_->truncate(*state_, tokens); }

    /// Lets no page behind the first `tokens` tokens become known to other sequences; forks inherit it. What is known
    /// already stays so.
    void share_at_most(std::size_t tokens) noexcept { state_->cacheable = tokens; }
    /// How many leading tokens others may be given, at most.
    [[nodiscard]] std::size_t shared_at_most() const noexcept { return std::min(state_->exact, state_->cacheable); }

    /// A sequence of its own without `count` tokens from `first` on. Those behind move down, their keys and values as
    /// they were, in pages of their own: from `first` on it is approximate (StreamingLLM, Xiao et al. 2024). Only where
    /// the codec keeps row by row. Errors: out_of_memory. Requires: first + count <= size(), no lease under way.
    /// Cost: O(bytes of the tokens behind).
    [[nodiscard]] result<basic_sequence> without(std::size_t first,
                                                 std::size_t count) const requires Cache::writes_rows {
        return cache_->without(*state_, first, count);
    }

private:
    friend Cache;
    template <class>
    friend class basic_lease;
    basic_sequence(Cache& cache, std::unique_ptr<sequence_state> state) : cache_(&cache), state_(std::move(state)) {}

    Cache* cache_;
    std::unique_ptr<sequence_state> state_;
};

} // namespace kvcache

// ---- kvcache/recompute/concept.hpp --------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Which of a prompt's tokens run: [first, first + count); those before are reused.
struct rerun {
    std::size_t first = 0;
    std::size_t count = 0;
};

/// Tokens of a prompt whose keys and values were computed behind another past.
struct reused_run {
    std::size_t first = 0; ///< In the prompt.
    std::size_t count = 0;
    std::uint32_t row = 0; ///< The row of its page that the first one lies in.

    friend bool operator==(const reused_run&, const reused_run&) = default;
};

/// The working state of a recompute policy: of `total` tokens whose first `hit` are cached, the first that runs again.
template <class S>
concept recompute_state = requires(const S s, std::size_t tokens) {
    { s.first_rerun(tokens, tokens) } -> std::same_as<std::size_t>; // hit, total
};

/// One that also reuses chunks behind other pasts: it adds the positions that run again, ascending, to `positions`.
template <class S>
concept chunk_recompute_state = recompute_state<S> &&
    requires(const S s, std::span<const reused_run> runs, std::vector<std::size_t>& positions) {
    s.select(runs, positions);
};

/// What is compared to see how far a reused token is off.
enum class deviation_of { keys, values };

/// One that chooses by how far tokens are off: it is told the squared distance between what a token's keys or values in
/// one early layer are and what they were, run by run. All tokens go through the layers before that one.
template <class S>
concept deviation_recompute_state = recompute_state<S> &&
    requires(const S s, std::span<const reused_run> runs, std::span<const float> deviations,
             std::vector<std::size_t>& positions) {
    s.select(runs, deviations, positions);
    { s.compared() } -> std::same_as<deviation_of>;
    { s.check_layer() } -> std::convertible_to<std::size_t>;
};

/// One that judges those it chose again, in as many layers behind the first as it has filters: it is told how far each
/// of `positions` is off there once the chosen have run up to it, and keeps some.
template <class S>
concept filtering_recompute_state = deviation_recompute_state<S> &&
    requires(const S s, std::size_t number, std::span<const reused_run> runs, std::span<const float> deviations,
             std::vector<std::size_t>& positions) {
    { s.filters() } -> std::convertible_to<std::size_t>;
    s.filter(number, runs, deviations, positions);
};

/// Which reused tokens run again.
template <class P>
concept recompute_policy = plays<P, recompute_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && recompute_state<opened_by<P, page_shape>>;

} // namespace kvcache

// ---- kvcache/cache/reuse.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What is known of a span of a prompt's tokens.
enum class reuse_kind {
    exact,       ///< Their keys and values, behind the very same past.
    approximate, ///< Those that they had behind another past.
    missing,     ///< Nothing.
};

/// A span of a prompt's tokens of which one thing is known.
struct reuse_span {
    reuse_kind kind = reuse_kind::missing;
    std::size_t first = 0;
    std::size_t count = 0;

    friend bool operator==(const reuse_span&, const reuse_span&) = default;
};

/// What is known of a prompt, span by span. The spans lie end to end and cover it; approximate ones that lie side by
/// side come from different places.
struct reuse_map {
    std::vector<reuse_span> spans = {};
    std::vector<reused_run> runs = {};    ///< The approximate spans.
    std::vector<page_entry> entries = {}; ///< Where their tokens lie, in order.

    [[nodiscard]] std::size_t end() const noexcept {
        return spans.empty() ? 0 : spans.back().first + spans.back().count;
    }

    /// How many tokens are of a kind.
    [[nodiscard]] std::size_t tokens(reuse_kind kind) const noexcept {
        std::size_t all = 0;
        for (const reuse_span& one : spans)
            all += one.kind == kind ? one.count : 0;
        return all;
    }

    /// Adds a span of tokens that are not approximate.
    void add(reuse_kind kind, std::size_t count) {
        if (count > 0)
            spans.push_back({kind, end(), count});
    }

    /// Adds the tokens of these pages, which were computed elsewhere. What goes on there where the last span ended
    /// makes that longer.
    template <class Pages>
    void add_run(const Pages& pages, bool goes_on) {
        std::size_t count = 0;
        for (const page_entry& entry : pages)
            count += entry.count;
        if (count == 0)
            return;
        if (goes_on) {
            spans.back().count += count;
            runs.back().count += count;
        } else {
            runs.push_back({end(), count, pages.front().first});
            add(reuse_kind::approximate, count);
        }
        entries.insert(entries.end(), pages.begin(), pages.end());
    }
};

/// What is known of a prompt, pinned.
template <class Cache>
class basic_reuse {
public:
    [[nodiscard]] const reuse_map& map() const noexcept { return map_; }

private:
    friend Cache;
    basic_reuse(basic_sequence<Cache> pins, reuse_map map) : pins_(std::move(pins)), map_(std::move(map)) {}

    basic_sequence<Cache> pins_; // of no tokens: it holds the pages, and what they continue
    reuse_map map_;
};

} // namespace kvcache

// ---- kvcache/index/concept.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Why a match went no further.
enum class match_end {
    complete,  ///< Every token was found.
    unknown,   ///< Nothing is stored behind the last token found.
    different, ///< Something is stored there, with another token.
};

/// The longest known run of tokens, and the pages that hold it in order; only the last page may be used in part.
struct index_match {
    std::vector<page_id> pages = {};
    std::size_t tokens = 0;
    match_end end = match_end::unknown;
    std::optional<token_id> stored = {}; ///< With `different`: the token stored where the match ended.
};

/// What became of an insertion.
struct insertion {
    enum class outcome {
        inserted, ///< The page is new in the index.
        extended, ///< The page was there with fewer of its rows.
        covered,  ///< `other` already holds the run, alone or at the start of a longer one; nothing changed.
    };
    outcome what = outcome::inserted;
    std::optional<page_id> other = {}; ///< covered: who holds it. Else: a page whose run this one continues; it left.
};

/// The working state of an index: which pages hold which tokens after which past. A page's run continues its parent's,
/// and a page with children is full and cannot leave. `insert` may throw bad_alloc and has changed nothing then;
/// `erase` does not throw.
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

/// A run of a prompt's tokens that is stored somewhere, behind whatever past.
struct chunk_match {
    std::size_t first = 0; ///< In the prompt.
    std::size_t count = 0; ///< Tokens.
    page_id last = {};     ///< The page of its last token; those before it are the page's ancestors.
    std::uint32_t end = 0; ///< Rows of that page up to its end.

    friend bool operator==(const chunk_match&, const chunk_match&) = default;
};

/// An index that also finds tokens by their content alone. Salts keep those apart who must not find each other's.
template <class S>
concept chunk_index_state = index_state<S> &&
    requires(S s, const S c, std::span<const token_id> tokens, std::uint64_t salt, page_id page, std::uint32_t end,
             std::size_t count) {
    { s.note(salt, page, end, count) } -> std::same_as<bool>;
    { c.chunks(salt, tokens, count) } -> std::same_as<std::vector<chunk_match>>;
};

/// How known tokens are found.
template <class P>
concept index_policy = plays<P, index_role> && requires(const P p, page_shape shape, std::size_t pages) {
    p.open(shape, pages);
} && index_state<opened_by<P, page_shape, std::size_t>>;

} // namespace kvcache

// ---- kvcache/cache/chunk_search.hpp -------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What a prompt may reuse, and the pages that must stay for it: those of the chunks, and all that they continue, from
/// the first of a prompt on.
struct chunk_search {
    reuse_map found = {};
    std::vector<page_id> sources = {};

    /// Looks for chunks behind the first `known` tokens, which are exact. The last token is never reused.
    template <class Index>
    chunk_search(const Index& index, std::uint32_t tenant, std::size_t page_tokens, std::span<const token_id> tokens,
                 std::size_t known) {
        found.add(reuse_kind::exact, known);
        std::optional<page_entry> before; // the last entry of the chunk before, uncut
        for (const chunk_match& chunk : index.chunks(tenant, tokens, known)) {
            const auto path = pages_of(index, chunk.last);
            auto entries = entries_of(path, page_tokens, chunk);
            const bool goes_on = before && chunk.first == found.end() && follows(path, *before, entries.front());
            before = entries.back();
            cut(entries, chunk.first, std::max(found.end(), chunk.first), tokens.size() - 1);
            found.add(reuse_kind::missing, std::max(found.end(), chunk.first) - found.end());
            if (entries.empty())
                continue;
            found.add_run(entries, goes_on && !found.runs.empty());
            for (const page_id page : path)
                if (std::find(sources.begin(), sources.end(), page) == sources.end())
                    sources.push_back(page);
        }
        found.add(reuse_kind::missing, tokens.size() - found.end());
    }

private:
    // A page and all that it continues, the first of the prompt first.
    template <class Index>
    [[nodiscard]] static std::vector<page_id> pages_of(const Index& index, page_id last) {
        std::vector<page_id> path{last};
        while (const auto parent = index.parent(path.back()))
            path.push_back(*parent);
        std::reverse(path.begin(), path.end());
        return path;
    }

    template <class Path>
    [[nodiscard]] static std::vector<page_entry> entries_of(const Path& path, std::size_t page_tokens,
                                                            const chunk_match& chunk) {
        const std::size_t behind = (path.size() - 1) * page_tokens + chunk.end, begin = behind - chunk.count;
        const auto base = static_cast<std::int64_t>(chunk.first) - static_cast<std::int64_t>(begin);
        std::vector<page_entry> made;
        for (std::size_t at = begin; at < behind;) {
            const std::size_t row = at % page_tokens, count = std::min(page_tokens - row, behind - at);
            made.push_back(
                {path[at / page_tokens], base, static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(count)});
            at += count;
        }
        return made;
    }

    // Whether an entry's first row lies right behind another's last one where both were computed.
    template <class Path>
    [[nodiscard]] static bool follows(const Path& path, const page_entry& before, const page_entry& next) {
        if (before.base != next.base)
            return false;
        if (before.page == next.page)
            return before.first + before.count == next.first;
        const auto at = std::find(path.begin(), path.end(), next.page);
        return next.first == 0 && at != path.begin() && *std::prev(at) == before.page;
    }

    // Keeps of entries from `position` on what lies in [first, last).
    template <class Entries>
    static void cut(Entries& entries, std::size_t position, std::size_t first, std::size_t last) {
        Entries kept;
        for (page_entry entry : entries) {
            const std::size_t begin = std::max(position, first), end = std::min(position + entry.count, last);
            entry.first += static_cast<std::uint32_t>(begin - position);
            position += entry.count;
            if (begin < end) {
                entry.count = static_cast<std::uint32_t>(end - begin);
                kept.push_back(entry);
            }
        }
        entries = std::move(kept);
    }
};

} // namespace kvcache

// ---- kvcache/storage/concept.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

namespace detail {

template <class S>
concept keeps_pages = std::movable<S> && requires(S s, page_id page) {
    { s.acquire(page) } -> std::same_as<bool>;
    { s.release(page) }
    noexcept;
};

} // namespace detail

/// A storage whose pages the host reads and writes: `bytes` is the memory of an acquired page.
template <class S>
concept host_storage_state = detail::keeps_pages<S> && requires(const S c, page_id page) {
    { c.bytes(page) } -> std::same_as<std::span<std::byte>>;
};

/// A storage whose pages lie where the host cannot look: `copy` copies an acquired page to another and says whether it
/// could; `status` is why it last refused a page or a copy.
template <class S>
concept far_storage_state = detail::keeps_pages<S> && !host_storage_state<S> && requires(const S c, page_id page) {
    { c.copy(page, page) } -> std::same_as<bool>;
    { c.status() } -> std::same_as<result<void>>;
};

/// The working state of a storage: the memory of each page. `acquire` makes a page's memory usable and says whether it
/// could; `release` says that its content is no longer needed.
template <class S>
concept storage_state = host_storage_state<S> || far_storage_state<S>;

/// Where the bytes of pages live.
template <class P>
concept storage_policy = plays<P, storage_role> && requires(const P p, std::size_t n) {
    p.open(n, n); // pages, bytes a page
} && storage_state<opened_by<P, std::size_t, std::size_t>>;

} // namespace kvcache

// ---- kvcache/attention/paged_rows.hpp -----------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

class rope;

/// The pages of one sequence as attention reads them.
template <codec_state Codec, storage_state Storage>
struct paged_rows {
    const Codec* codec = nullptr;
    const Storage* storage = nullptr;
    std::span<const page_entry> table = {};
    /// By entry, for a codec of whole pages: the rows as they were computed, where a query of this sequence may read
    /// them; null elsewhere, and behind the last.
    std::span<const exact_page* const> exact = {};
    bool woven = false; ///< Rows of one page may stand in several entries, and bases change often (see woven_tiles).
};

/// How a model attends: its heads, and its rotation (null for a model without one).
struct attention_shape {
    std::uint32_t heads = 1;
    std::uint32_t kv_heads = 1;
    std::uint32_t head_dim = 64;
    float scale = 1.0f; ///< What scores are multiplied by, usually 1 / sqrt(head_dim).
    const rope* rotation = nullptr;

    /// Query heads that read one key and value head.
    [[nodiscard]] constexpr std::uint32_t group() const noexcept { return heads / kv_heads; }
};

/// Consecutive rows of one sequence that ask. (rows, heads, head_dim)
struct query_rows {
    const float* queries = nullptr; ///< Not rotated.
    const float* rotations =
        nullptr;            ///< `rope::fill` of each row's position, for pages of base 0. (rows, 2, head_dim / 2)
    float* out = nullptr;   ///< Written. (rows, heads, head_dim)
    std::size_t stride = 0; ///< Numbers from one row of queries to the next.
    std::size_t out_stride = 0;
    std::size_t position = 0; ///< Of the first row; each row attends to [0, its position].
    std::size_t rows = 0;
    const std::size_t* positions = nullptr; ///< Of each row, ascending, where they are not consecutive.

    [[nodiscard]] std::size_t position_of(std::size_t row) const noexcept {
        return positions != nullptr ? positions[row] : position + row;
    }
};

/// Rows that ask, and the pages they ask.
template <codec_state Codec, storage_state Storage>
struct attention_part {
    paged_rows<Codec, Storage> pages;
    query_rows asked;
};

} // namespace kvcache

// ---- kvcache/cache/lease.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Rows reserved behind a sequence, to be written layer by layer and then committed. Destroyed without a commit, the
/// sequence is as it was before. Requires: the sequence outlives it; one lease a sequence.
template <class Cache>
class basic_lease {
public:
    basic_lease(basic_lease&& other) noexcept
        : cache_(other.cache_), state_(std::exchange(other.state_, nullptr)), first_(other.first_) {}
    /// Takes back what it had reserved before.
    basic_lease& operator=(basic_lease&& other) noexcept {
        basic_lease taken(std::move(other));
        std::swap(cache_, taken.cache_);
        std::swap(state_, taken.state_);
        std::swap(first_, taken.first_);
        return *this;
    }
    ~basic_lease() { rollback(); }

    /// The position of the first reserved row.
    [[nodiscard]] std::size_t first() const noexcept { return first_; }
    /// How many rows are reserved; none once the lease has ended.
    [[nodiscard]] std::size_t rows() const noexcept { return state_ != nullptr ? state_->leased : 0; }

    /// Where a reserved row lies: a row of a page, and which entry of the table that is (of rows that are not woven).
    struct place {
        page_id page = {};
        std::uint32_t row = 0;
        std::size_t entry = 0;
    };
    [[nodiscard]] place place_of(std::size_t row) const {
        expects(row < rows(), "a row that has a place was reserved");
        if (!state_->woven.empty())
            return {state_->woven[row].page, state_->woven[row].row, 0};
        const std::size_t tokens = cache_->shape().tokens;
        const std::size_t tail = state_->pages_before - (state_->tail_before ? 1 : 0);
        const std::size_t used = state_->tail_before ? state_->tail_before->first + state_->tail_before->count : 0;
        const std::size_t entry = tail + (used + row) / tokens;
        return {state_->table[entry].page, static_cast<std::uint32_t>((used + row) % tokens), entry};
    }

    /// Writes the keys (rotated by the position, where the model rotates) and values of one row.
    /// keys, values: (kv_heads, head_dim). Rows of one lease may be written by several threads; where the codec codes
    /// whole pages each is written once a layer, in ascending order but for as many as run at once.
    void write(layer_id layer, std::size_t row, std::span<const float> keys, std::span<const float> values) const {
        const page_shape& shape = cache_->shape();
        expects(row < rows(), "a written row was reserved");
        expects(index_of(layer) < shape.layers, "a written layer is one of the page shape's");
        expects(keys.size() == std::size_t{shape.kv_heads} * shape.head_dim && values.size() == keys.size(),
                "a row of keys or values has head_dim numbers for each KV head");
        expects(!keeps(row), "a row that is kept from elsewhere is not written");
        const place to = place_of(row);
        const page_id page = to.page;
        const auto bytes = cache_->bytes(page);
        const std::uint32_t at = to.row;
        if constexpr (page_writer<typename Cache::codec_type>) {
            state_->exact_rows[to.entry]->write(cache_->codec(), bytes, layer, at, keys, values);
        } else {
            for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
                cache_->codec().encode(bytes, {layer, head_id{head}, at},
                                       keys.subspan(std::size_t{head} * shape.head_dim, shape.head_dim),
                                       values.subspan(std::size_t{head} * shape.head_dim, shape.head_dim));
        }
    }

    [[nodiscard]] const page_shape& shape() const noexcept { return cache_->shape(); }

    /// Whether a row is kept as it was computed elsewhere.
    [[nodiscard]] bool keeps(std::size_t row) const noexcept {
        return state_ != nullptr && row < state_->woven.size() && state_->woven[row].kept;
    }
    /// Where the rows of a woven lease lie; empty for another.
    [[nodiscard]] std::span<const woven_row> woven() const noexcept {
        return state_ != nullptr ? std::span<const woven_row>(state_->woven) : std::span<const woven_row>();
    }

    /// The sequence's pages, reserved rows included, as attention reads them.
    [[nodiscard]] auto pages() const {
        expects(state_ != nullptr, "a lease shows its pages until it ends");
        return paged_rows<typename Cache::codec_type, typename Cache::storage_type>{
            &cache_->codec(), &cache_->storage(), state_->table, state_->exact_rows,
            state_->exact != sequence_state::all};
    }

    /// How many pages the lease has taken, for rows that were computed elsewhere and are put in place page by page: all
    /// of their bytes, as the codec keeps them. Requires: the sequence ended where a page ends.
    [[nodiscard]] std::size_t taken_pages() const {
        expects(state_ != nullptr && !state_->tail_before && state_->woven.empty(), "whole pages are put in place");
        return state_->table.size() - state_->pages_before;
    }
    /// The bytes of one of them.
    [[nodiscard]] std::span<std::byte> page_bytes(std::size_t page) const {
        expects(page < taken_pages(), "a page that is put in place was taken");
        return cache_->bytes(state_->table[state_->pages_before + page].page);
    }
    /// Where its exact rows go, as the plain codec keeps them; empty where none are kept once all rows are committed.
    [[nodiscard]] std::span<std::byte> exact_bytes(std::size_t page) const {
        expects(page < taken_pages(), "a page that is put in place was taken");
        return cache_->exact_bytes(*state_, state_->pages_before + page);
    }

    /// As commit, of all rows, for rows that were put in place: of them nothing is learned about what computing costs.
    void commit_in_place(std::span<const token_id> tokens) {
        expects(tokens.size() == rows(), "all rows that are put in place are committed");
        cache_->commit_in_place(*state_, tokens);
        state_ = nullptr;
    }

    /// Publishes the first tokens.size() rows as these tokens, gives the others back, and ends the lease.
    /// It cannot fail: the lease has all memory that it must have.
    /// Requires: tokens.size() <= rows().
    void commit(std::span<const token_id> tokens) {
        expects(state_ != nullptr, "a lease is committed once");
        expects(tokens.size() <= rows(), "no more tokens are committed than rows were reserved");
        expects(state_->woven.empty() || tokens.size() == rows(), "a woven lease is committed whole");
        cache_->commit(*state_, tokens);
        state_ = nullptr;
    }

    /// Takes the reservation back: the sequence is as it was before. Nothing happens if the lease has ended.
    void rollback() noexcept {
        if (state_ != nullptr)
            cache_->rollback(*std::exchange(state_, nullptr));
    }

private:
    friend Cache;
    basic_lease(Cache& cache, sequence_state& state) : cache_(&cache), state_(&state), first_(state.tokens.size()) {}

    Cache* cache_;
    sequence_state* state_;
    std::size_t first_;
};

} // namespace kvcache

// ---- kvcache/core/joined.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI::detail {

/// The pieces of a sentence as one string. A chain of string additions compiles several times as long.
[[nodiscard]] inline std::string joined(std::initializer_list<std::string_view> pieces) {
    std::string whole;
    for (const std::string_view piece : pieces)
        whole += piece;
    return whole;
}

} // namespace kvcache::detail

// ---- kvcache/cache/match.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The longest known run of a prompt, pinned, and why it went no further. A miss is an empty match.
template <class Cache>
class basic_match {
public:
    /// How many leading tokens are known and can be continued.
    [[nodiscard]] std::size_t tokens() const noexcept { return known_.size(); }
    /// How many tokens were looked up.
    [[nodiscard]] std::size_t of() const noexcept { return of_; }
    [[nodiscard]] match_end end() const noexcept { return end_; }
    /// With `match_end::different`: the token stored at position compared().
    [[nodiscard]] std::optional<token_id> stored() const noexcept { return stored_; }

    /// How many leading tokens are those stored; more than tokens() inside a page that a codec keeps as a whole.
    [[nodiscard]] std::size_t compared() const noexcept { return compared_; }

    /// How many of the known tokens came from the tier just now.
    [[nodiscard]] std::size_t loaded() const noexcept { return loaded_; }

    /// One sentence for people: "37 of 52 tokens known; token 37 differs from the one stored (1189)".
    [[nodiscard]] std::string explain() const {
        std::string words = detail::joined({std::to_string(tokens()), " of ", std::to_string(of_), " tokens known"});
        if (loaded_ > 0)
            words += detail::joined({", ", std::to_string(loaded_), " of them from the tier"});
        switch (end_) {
        case match_end::complete:
            break;
        case match_end::unknown:
            words += "; nothing is stored behind them";
            break;
        case match_end::different:
            words += detail::joined({"; token ", std::to_string(compared()), " differs from the one stored (",
                                     std::to_string(index_of(*stored_)), ")"});
            break;
        }
        return words;
    }

private:
    friend Cache;
    basic_match(basic_sequence<Cache> known, std::size_t of, const index_match& found)
        : known_(std::move(known)), of_(of), compared_(found.tokens), end_(found.end), stored_(found.stored) {}

    basic_sequence<Cache> known_;
    std::size_t of_;
    std::size_t compared_;
    std::size_t loaded_ = 0;
    match_end end_;
    std::optional<token_id> stored_;
};

} // namespace kvcache

// ---- kvcache/cache/tier_stats.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What a cache has asked of its tier and got.
struct tier_stats {
    std::uint64_t asked = 0;         ///< Prompts with whole pages that memory did not have.
    std::uint64_t hits = 0;          ///< Of those, prompts of which the tier had some.
    std::uint64_t loaded_tokens = 0; ///< Checked and published.
    std::uint64_t refused = 0;       ///< Records that were damaged or not what was asked for; they are erased.
    std::uint64_t failed = 0;        ///< Reads and writes that the tier refused.
    std::uint64_t no_room = 0;       ///< Prompts whose records found no pages.
    std::uint64_t slower = 0;        ///< Prompts of which the tier had some that are quicker computed.
    std::uint64_t handed_over = 0;   ///< Records.
    std::optional<error> last = {};  ///< Why the last one was refused or failed.
};

} // namespace kvcache

// ---- kvcache/core/intrinsics.hpp ----------------------------------------------------------------------------------

// GCC 12 sees uninitialised values inside its own AVX-512 intrinsics, wherever a program inlines them. A warning
// belongs to the line it points at, so it is silenced there: this header comes before whatever else includes the
// intrinsics.
#if defined(__x86_64__) || defined(__i386__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if defined(__AVX__)
#include <immintrin.h>
#else
#include <emmintrin.h> // a tenth of the lines
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// ---- kvcache/core/digest.hpp --------------------------------------------------------------------------------------

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <xxhash.h>

namespace kvcache::inline KVCACHE_ABI {

/// 128 bits that stand for some bytes.
struct digest {
    std::uint64_t low = 0;
    std::uint64_t high = 0;

    friend constexpr bool operator==(const digest&, const digest&) = default;
    friend constexpr auto operator<=>(const digest&, const digest&) = default;
};

/// 32 hexadecimal letters, the high half first.
[[nodiscard]] inline std::string to_string(const digest& d) {
    std::string text;
    for (const std::uint64_t half : {d.high, d.low})
        for (int shift = 60; shift >= 0; shift -= 4)
            text += "0123456789abcdef"[(half >> shift) & 15u];
    return text;
}

/// XXH3-64 of bytes after a past. Not for an adversary. Cost: about 10 ns and a tenth of a nanosecond a byte.
[[nodiscard]] inline std::uint64_t seeded_hash(std::uint64_t past, std::span<const std::byte> data) {
    return XXH3_64bits_withSeed(data.data(), data.size(), past);
}

/// XXH3-128 of bytes given piece by piece. Not for an adversary: equal digests are a hint that content must confirm.
class digest_builder {
public:
    digest_builder() noexcept { XXH3_128bits_reset(&state_); }

    digest_builder& bytes(std::span<const std::byte> data) {
        XXH3_128bits_update(&state_, data.data(), data.size());
        return *this;
    }

    /// Eight bytes, the lowest first.
    digest_builder& number(std::uint64_t n) {
        std::byte little[8];
        for (std::size_t i = 0; i < 8; ++i)
            little[i] = static_cast<std::byte>(n >> (8 * i) & 0xff);
        return bytes(little);
    }

    /// The length, then the bytes: two texts never run into each other.
    digest_builder& text(std::string_view words) {
        number(words.size());
        return bytes(std::as_bytes(std::span(words)));
    }

    digest_builder& nested(const digest& d) { return number(d.low).number(d.high); }

    [[nodiscard]] digest finish() const {
        const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
        return {hash.low64, hash.high64};
    }

private:
    XXH3_state_t state_;
};

} // namespace kvcache

// ---- kvcache/core/revisions.hpp -----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The revision of the numeric contract: the order of every reduction, the polynomials, the tile and split
/// lengths. It changes whenever the same inputs may give other bits, and it is part of a cache's identity.
inline constexpr unsigned numeric_contract_revision = 1;

/// The revision of the format of records: what snapshots and tiers keep (docs/format.md). It changes with every byte
/// that means something else, and it is part of a cache's identity, so that records of another one are not found.
inline constexpr unsigned record_format_revision = 1;

} // namespace kvcache

// ---- kvcache/core/identity.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// All that decides the bits of a cached page, beside its tokens. Two caches may exchange pages if and only if every
/// field is equal. A field added here is hashed by itself: `digest_of` takes the aggregate apart.
struct identity {
    digest weights = {};            ///< Of the checkpoint's names, dtypes, shapes and bytes.
    std::string adapter = {};       ///< The low-rank adapter's name and version; empty for none.
    digest tokenizer = {};          ///< Of tokenizer.json.
    std::string config = {};        ///< Architecture and extents, as canonical text.
    std::string rope = {};          ///< The rotary embedding: its base, its scaling, its frequencies.
    std::string codec = {};         ///< The page codec and its options.
    std::string layout = {};        ///< How a page is laid out.
    std::uint64_t page_tokens = 0;  ///< Positions a page.
    std::string weight_format = {}; ///< What the products compute from: "f32", "bf16", "f16".
    std::uint64_t numeric_contract = numeric_contract_revision;
    std::string backend = "cpu";   ///< The backend and its kernel revision.
    std::string lineage = "exact"; ///< "exact", or "approximate" for what attended to anything that is not.
    std::uint64_t format = record_format_revision;
    std::string tenant = {}; ///< A salt that keeps tenants apart.

    friend bool operator==(const identity&, const identity&) = default;
};

namespace detail {

inline void feed(digest_builder& to, const digest& field) {
    to.nested(field);
}
inline void feed(digest_builder& to, const std::string& field) {
    to.text(field);
}
inline void feed(digest_builder& to, std::uint64_t field) {
    to.number(field);
}

} // namespace detail

/// Calls visit(name, field) for every field, in order.
template <class Visit>
void for_each_field(const identity& id, Visit visit) {
    // Taking the aggregate apart: a field that is added and not named here does not compile.
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

/// The digest of an identity: domain-separated, every field by name, length-prefixed.
[[nodiscard]] inline digest digest_of(const identity& id) {
    digest_builder builder;
    builder.text("kvcache identity 2");
    for_each_field(id, [&](const char* name, const auto& field) {
        builder.text(name);
        detail::feed(builder, field);
    });
    return builder.finish();
}

} // namespace kvcache

// ---- kvcache/tier/concept.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What a tier is told of a record.
struct tier_entry {
    digest256 name = {};
    double cost = 0.0;       ///< What a hit saves, in seconds; 0 if nobody knows.
    std::uint32_t depth = 0; ///< Records before it in its chain.
};

/// What a tier has and has done. Of several processes on one store each counts its own doings.
struct tier_counts {
    std::size_t records = 0;   ///< There now.
    std::size_t bytes = 0;     ///< That they have.
    std::uint64_t hits = 0;    ///< Records that were read.
    std::uint64_t misses = 0;  ///< Asked for and not there.
    std::uint64_t written = 0; ///< Records written for good.
    std::uint64_t bytes_written = 0;
    std::uint64_t evicted = 0;  ///< Records that left for others.
    std::uint64_t dropped = 0;  ///< Records that were handed over and not written: no room, no time, known already.
    std::uint64_t failures = 0; ///< Calls that the world refused.

    friend bool operator==(const tier_counts&, const tier_counts&) = default;
};

/// What `read` calls with a record's bytes, which stay while it runs. It stands for any callable of this form.
struct tier_use {
    void operator()(std::span<const std::byte> bytes) const;
};

/// The working state of a tier: bytes by name, kept past the cache's memory, within a budget of its own. It never lies
/// and never vouches: what it gives back may be damaged, and whoever reads checks (record/record.hpp).
///
/// `read` calls its argument with the record's bytes and says whether it did: false is a miss. `put` hands over a
/// record in pieces, which are the tier's own when it returns; it may be written later, or never. `contains` is a hint
/// that costs little. `erase` takes a record out that its reader has refused. `flush` returns once all that was handed
/// over is written. `status` says what is wrong with the store, if anything: such a tier only misses. No call throws
/// for the world's faults, all may be made by several threads at once, and what they refuse is counted. Two things it
/// may say besides: `holds_nothing()`, if it never has a record, so that none is made for it; `readers()`, how many
/// threads are of use for reading different records, where that is more than one.
template <class S>
concept tier_state = std::movable<S> &&
    requires(S s, const S c, const tier_entry& entry, const digest256& name,
             std::span<const std::span<const std::byte>> pieces, const tier_use& use) {
    { s.read(name, use) } -> std::same_as<result<bool>>;
    { s.put(entry, pieces) } -> std::same_as<result<void>>;
    { s.contains(name) } -> std::same_as<bool>;
    { s.erase(name) } -> std::same_as<result<void>>;
    { s.flush() } -> std::same_as<result<void>>;
    { c.status() } -> std::same_as<result<void>>;
    { c.counts() } -> std::same_as<tier_counts>;
};

/// Whether a tier never has a record. Cost: O(1).
template <tier_state Tier>
[[nodiscard]] bool holds_nothing(const Tier& tier) noexcept {
    if constexpr (requires { tier.holds_nothing(); })
        return tier.holds_nothing();
    else
        return false;
}

/// How many threads are of use for reading different records of a tier: one, if it does not say.
template <tier_state Tier>
[[nodiscard]] std::size_t readers_of(const Tier& tier) noexcept {
    if constexpr (requires { tier.readers(); })
        return tier.readers();
    else
        return 1;
}

/// Where pages stay when they leave memory.
template <class P>
concept tier_policy = plays<P, tier_role> && requires(const P p) {
    p.open();
} && tier_state<opened_by<P>>;

} // namespace kvcache

// ---- kvcache/tier/no_tier.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// No tier: what leaves memory is gone.
struct no_tier {
    using role = tier_role;
    class state;
    [[nodiscard]] state open() const;
};

class no_tier::state {
public:
    template <class Use>
    [[nodiscard]] result<bool> read(const digest256&, Use&&) {
        return false;
    }
    [[nodiscard]] result<void> put(const tier_entry&, std::span<const std::span<const std::byte>>) { return {}; }
    [[nodiscard]] bool contains(const digest256&) const noexcept { return false; }
    [[nodiscard]] result<void> erase(const digest256&) { return {}; }
    [[nodiscard]] result<void> flush() { return {}; }
    [[nodiscard]] result<void> status() const { return {}; }
    [[nodiscard]] tier_counts counts() const noexcept { return {}; }
    [[nodiscard]] bool holds_nothing() const noexcept { return true; }
};

inline no_tier::state no_tier::open() const {
    return {};
}

static_assert(tier_policy<no_tier>);

} // namespace kvcache

// ---- kvcache/cache/no_tier_books.hpp ------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What a cache does with its tier: cache/tier_books.hpp, which <kvcache/tier.hpp> includes.
template <tier_state Tier>
class tier_books;

/// A cache without a tier looks prompts up in memory alone, and makes no records.
template <>
class tier_books<no_tier::state> {
public:
    tier_books(no_tier::state, const identity&, const std::string&) {}

    [[nodiscard]] no_tier::state& tier() noexcept { return none_; }
    [[nodiscard]] const no_tier::state& tier() const noexcept { return none_; }

    void set(std::size_t, const identity&) {}
    [[nodiscard]] tier_stats stats() const { return {}; }

    template <class Cache>
    [[nodiscard]] auto match(Cache& cache, std::uint32_t tenant, std::span<const token_id> tokens) {
        return cache.look_up(tenant, tokens, true, 0);
    }
    template <class Cache>
    [[nodiscard]] bool may_know(Cache&, std::uint32_t, std::span<const token_id>) {
        return false;
    }
    template <class Cache>
    std::size_t prefetch(Cache&, std::uint32_t, std::span<const token_id>) {
        return 0;
    }
    template <class Cache>
    void store(const Cache&, sequence_state&) noexcept {}

private:
    no_tier::state none_;
};

} // namespace kvcache

// ---- kvcache/cache/exact_books.hpp --------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The exact rows that a codec of whole pages needs beside the pages: which page has some, and what all of them weigh.
/// They are paid from the pages' budget: as many pages as they weigh are set aside.
/// `Coded`: whether the cache has such a codec; otherwise no page ever has exact rows.
template <bool Coded>
class exact_books {
public:
    /// For `pages` of `page_bytes`.
    exact_books(page_shape shape, std::size_t pages, std::size_t page_bytes) : shape_(shape), page_bytes_(page_bytes) {
        if constexpr (Coded)
            of_page_.resize(pages);
    }

    /// Pages' worth of memory that so many more exact pages take.
    [[nodiscard]] std::size_t more_aside(std::size_t more) const noexcept { return weight(alive_ + more) - aside(); }
    /// Pages' worth of memory that the exact rows take.
    [[nodiscard]] std::size_t aside() const noexcept { return weight(alive_); }
    [[nodiscard]] std::size_t alive() const noexcept { return alive_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return alive_ * exact_page::bytes_for(shape_); }

    /// The exact rows of a page; null if it has none.
    [[nodiscard]] exact_page* of([[maybe_unused]] page_id page) const noexcept {
        if constexpr (Coded)
            return of_page_[index_of(page)].get();
        else
            return nullptr;
    }

    /// Throws: bad_alloc.
    [[nodiscard]] std::shared_ptr<exact_page> make() {
        auto made = std::make_shared<exact_page>(shape_);
        ++alive_;
        return made;
    }
    /// Ends what was made and given to no page.
    void end(std::shared_ptr<exact_page> rows) noexcept { alive_ -= rows != nullptr; }

    void give(page_id page, std::shared_ptr<exact_page> rows) noexcept {
        end(std::exchange(of_page_[index_of(page)], std::move(rows)));
    }
    /// Ends the exact rows of a page, if it has some.
    void drop([[maybe_unused]] page_id page) noexcept {
        if constexpr (Coded)
            give(page, nullptr);
    }
    /// Gives the rows of one page to another that holds the same and has none.
    void pass_on([[maybe_unused]] page_id from, [[maybe_unused]] page_id to) noexcept {
        if constexpr (Coded)
            if (of(from) != nullptr && of(to) == nullptr)
                of_page_[index_of(to)] = std::move(of_page_[index_of(from)]);
    }

    /// Whether those of pages and `leased` others are all there are.
    [[nodiscard]] bool add_up(std::size_t leased) const noexcept {
        if constexpr (Coded)
            for (const auto& rows : of_page_)
                leased += rows != nullptr;
        return leased == alive_;
    }

private:
    [[nodiscard]] std::size_t weight(std::size_t exact) const noexcept {
        return Coded ? (exact * exact_page::bytes_for(shape_) + page_bytes_ - 1) / page_bytes_ : 0;
    }

    page_shape shape_;
    std::size_t page_bytes_;
    std::vector<std::shared_ptr<exact_page>> of_page_; // empty where the codec needs none
    std::size_t alive_ = 0;
};

} // namespace kvcache

// ---- kvcache/cache/page_pool.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// A fixed number of pages of one storage, each free or counted by its holders.
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

    /// Copies the first rows of a page to another one. False if the storage refuses.
    template <class Codec>
    [[nodiscard]] bool copy(const Codec& codec, page_id from, page_id to, std::size_t rows) const {
        if constexpr (far_storage_state<Storage>)
            return storage_.copy(from, to);
        else if constexpr (row_writer<Codec>)
            codec.copy(bytes(from), bytes(to), rows);
        return true;
    }
    /// Writes zeros, where the host reads pages: rows that nobody writes are read, with no weight.
    void clear(page_id page) const {
        if constexpr (host_storage_state<Storage>)
            std::ranges::fill(bytes(page), std::byte{});
    }

    /// A free page with one holder; none if no page is free or the storage refuses.
    [[nodiscard]] std::optional<page_id> take() {
        if (free_.empty() || !storage_.acquire(free_.back()))
            return std::nullopt;
        const page_id page = free_.back();
        free_.pop_back();
        holders_[index_of(page)] = 1;
        return page;
    }

    void hold(page_id page) noexcept { ++holders_[index_of(page)]; }

    /// Returns how many holders are left. The page stays as it is, also at zero, until `give_back`.
    std::uint32_t drop(page_id page) {
        expects(holders(page) > 0, "a dropped page was held");
        return --holders_[index_of(page)];
    }

    /// Requires: nobody holds the page.
    void give_back(page_id page) {
        expects(holders(page) == 0, "a page that is given back has no holder");
        storage_.release(page);
        free_.push_back(page);
    }

private:
    Storage storage_;
    std::vector<std::uint32_t> holders_;
    std::vector<page_id> free_;
};

} // namespace kvcache

// ---- kvcache/cache/prefill_cost.hpp -------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What a prefill takes on this machine, learned from those that were timed. A token costs its projections, wherever it
/// stands, and its attention, in proportion to its position: the two are fitted by least squares, in which old
/// measurements fade. Before the first, a token takes 0.1 ms.
///
///     seconds(rows from `first` on) = projections * rows + attention * (sum of their positions)
///
/// Cost: O(1) each.
class prefill_cost {
public:
    /// So many rows from `first` on took so long. Requires: rows > 0 and seconds >= 0.
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

    /// What so many rows from `first` on take.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return projections_ * static_cast<double>(rows) + attention_ * positions(first, rows);
    }

private:
    // Positions count from 1: a token attends to itself.
    [[nodiscard]] static double positions(std::size_t first, std::size_t rows) noexcept {
        const double n = static_cast<double>(rows);
        return n * (static_cast<double>(first) + (n + 1.0) / 2.0);
    }

    // The best pair of which neither is negative; projections alone where all measurements were alike.
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

    double projections_ = 1e-4, attention_ = 0.0;                 // seconds a row, and a row and position
    double nn_ = 0.0, np_ = 0.0, pp_ = 0.0, ns_ = 0.0, ps_ = 0.0; // sums over rows, positions and seconds
};

} // namespace kvcache

// ---- kvcache/eviction/concept.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What may be present at once. A policy that shares its room out (a tenth for newcomers) does so in bytes, which for
/// entries of one size is the same as counting them.
struct eviction_room {
    std::size_t slots = 0; ///< Entries: every slot_id is below.
    std::size_t bytes = 0; ///< Their bytes together.
};

/// What an eviction policy is told of a newcomer.
struct entry {
    std::uint64_t key = 0;              ///< Names the content, so that a ghost recognises it when it returns.
    std::size_t bytes = 0;              ///< What it takes.
    double cost = 0.0;                  ///< What a hit saves, in seconds, given that its parent is present.
    std::optional<slot_id> parent = {}; ///< The entry that it continues.
    std::uint32_t depth = 0;            ///< Entries before it in its chain.
    std::uint32_t length = 0;           ///< Entries of the request that brought it, itself included; 0 if unknown.
};

/// May this slot leave now? No while somebody holds it or an entry that continues it is present. It stands for any
/// callable of this form: a `victim` is a template over its argument.
struct leave_check {
    bool operator()(slot_id slot) const;
};

/// The working state of an eviction policy. `admit` ranks a newcomer, `touch` says it was used, `erase` forgets it
/// (withdrawn), `victim` names the next to leave among those for which its argument answers true; it takes nothing
/// away. What has no memory to admit throws bad_alloc and has changed nothing; the others do not throw.
///
/// A state may offer more, called through the functions below: `announce(entry)` before victims are asked for and the
/// newcomer is admitted, `evict(slot)` instead of `erase` for a victim, so that a ghost of it may stay, and
/// `settle(slot)` when its last holder lets go: it was in use until now, which is no use more. Whoever frees a chain
/// settles it tail first, so that children leave before parents. `cover(slot)` says that an entry continues this one
/// from now on, and `uncover(slot)` that none does any more: in between it may not leave and is not erased, and a state
/// that searches need not meet it.
template <class S>
concept eviction_state = requires(S s, slot_id slot, const entry& newcomer, const leave_check& may_leave) {
    s.admit(slot, newcomer);
    s.touch(slot);
    s.erase(slot);
    { s.victim(may_leave) } -> std::same_as<std::optional<slot_id>>;
};

/// Which entry leaves when room is needed.
template <class P>
concept eviction_policy = plays<P, eviction_role> && requires(const P p, eviction_room room) {
    p.open(room);
} && eviction_state<opened_by<P, eviction_room>>;

/// Says who comes, before room is made for it.
template <eviction_state S>
void announce(S& state, const entry& newcomer) {
    if constexpr (requires { state.announce(newcomer); })
        state.announce(newcomer);
}

/// A victim leaves.
template <eviction_state S>
void evict(S& state, slot_id slot) {
    if constexpr (requires { state.evict(slot); })
        state.evict(slot);
    else
        state.erase(slot);
}

/// The last holder of an entry lets go.
template <eviction_state S>
void settle(S& state, slot_id slot) {
    if constexpr (requires { state.settle(slot); })
        state.settle(slot);
}

/// The first entry that continues this one has come.
template <eviction_state S>
void cover(S& state, slot_id slot) {
    if constexpr (requires { state.cover(slot); })
        state.cover(slot);
}

/// The last entry that continued this one has left.
template <eviction_state S>
void uncover(S& state, slot_id slot) {
    if constexpr (requires { state.uncover(slot); })
        state.uncover(slot);
}

} // namespace kvcache

// ---- kvcache/hash/concept.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The working state of a hash: `root` stands for the identity before any token, `chain` for what comes before and a
/// run of tokens after it.
template <class S>
concept hash_state = requires(const S s, digest before, std::span<const token_id> run) {
    { s.root() } -> std::same_as<digest>;
    { s.chain(before, run) } -> std::same_as<digest>;
};

/// How a run of tokens after its past is named.
template <class P>
concept hash_policy = plays<P, hash_role> && requires(const P p, const identity& id) {
    p.open(id);
} && hash_state<opened_by<P, identity>>;

} // namespace kvcache

// ---- kvcache/cache/page_ranks.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What the eviction policy is told of the pages of an index: their names, what a hit on them saves, who continues
/// whom.
template <hash_state Hash, eviction_state Eviction>
class page_ranks {
public:
    /// `roots` are pages of the index beyond those of the pool: they have names and are never ranked.
    template <class Hashes, class Evictions>
    page_ranks(page_shape shape, std::size_t pages, std::size_t page_bytes, std::size_t roots, const identity& id,
               const Hashes& hashes, const Evictions& evictions)
        : page_tokens_(shape.tokens),
          page_bytes_(page_bytes),
          hash_(hashes.open(id)),
          eviction_(evictions.open({.slots = pages, .bytes = pages * page_bytes})),
          prefixes_(pages + roots),
          depths_(pages),
          flags_(pages, 0) {}

    /// By page: the digest of all tokens up to the end of a ranked page, or of a root.
    [[nodiscard]] std::span<const digest> prefixes() const noexcept { return prefixes_; }
    void name_root(page_id root, const digest& name) { prefixes_[index_of(root)] = name; }

    [[nodiscard]] bool ranked(page_id page) const noexcept { return (flags_[index_of(page)] & is_ranked) != 0; }

    /// So many rows from `first` on were computed in so long.
    void measure(std::size_t first, std::size_t rows, double seconds) noexcept { cost_.measure(first, rows, seconds); }

    /// What computing so many rows from `first` on takes, as far as it was measured.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return cost_.seconds(first, rows);
    }

    /// Enters a page of the index, of a request of `length` pages, or of one that ends here if that is zero.
    /// Throws: bad_alloc, and the page is not ranked then.
    template <class Index>
    void rank(const Index& index, page_id page, std::size_t length) {
        if (ranked(page))
            return;
        const auto parent = index.parent(page), above = index.above(page);
        const auto run = index.run(page);
        const std::uint32_t depth = parent ? depths_[index_of(*parent)] + 1 : 0;
        depths_[index_of(page)] = depth;
        prefixes_[index_of(page)] = hash_.chain(above ? prefixes_[index_of(*above)] : hash_.root(), run);
        const entry newcomer{.key = prefixes_[index_of(page)].low,
                             .bytes = page_bytes_,
                             .cost = cost_.seconds(depth * page_tokens_, run.size()),
                             .parent = parent ? std::optional(slot_of(*parent)) : std::nullopt,
                             .depth = depth,
                             .length = length > depth ? static_cast<std::uint32_t>(length) : depth + 1};
        announce(eviction_, newcomer);
        eviction_.admit(slot_of(page), newcomer);
        flags_[index_of(page)] = is_ranked;
        follow(index, page);
    }

    /// Says whether a page is continued, after that may have changed.
    template <class Index>
    void follow(const Index& index, std::optional<page_id> page) noexcept {
        if (page && ranked(*page))
            say_covered(*page, !index.leaf(*page));
    }

    void unrank(page_id page) noexcept {
        if (!ranked(page))
            return;
        say_covered(page, false);
        eviction_.erase(slot_of(page));
        flags_[index_of(page)] = 0;
    }

    void touch(page_id page) noexcept {
        if (ranked(page))
            eviction_.touch(slot_of(page));
    }

    /// Requires: the page is ranked, as in `evict`.
    void settle(page_id page) noexcept { kvcache::settle(eviction_, slot_of(page)); }

    /// The page that is to leave, of those for which `may_leave(page)` holds.
    template <class MayLeave>
    [[nodiscard]] std::optional<page_id> victim(MayLeave&& may_leave) {
        const std::optional<slot_id> slot =
            eviction_.victim([&](slot_id candidate) { return may_leave(page_id{index_of(candidate)}); });
        return slot ? std::optional(page_id{index_of(*slot)}) : std::nullopt;
    }

    void evict(page_id page) noexcept {
        kvcache::evict(eviction_, slot_of(page));
        flags_[index_of(page)] = 0;
    }

private:
    static constexpr std::uint8_t is_ranked = 1, is_covered = 2;

    [[nodiscard]] static slot_id slot_of(page_id page) noexcept { return slot_id{index_of(page)}; }

    void say_covered(page_id page, bool covered) noexcept {
        std::uint8_t& flags = flags_[index_of(page)];
        if (covered == ((flags & is_covered) != 0))
            return;
        if (covered)
            cover(eviction_, slot_of(page));
        else
            uncover(eviction_, slot_of(page));
        flags ^= is_covered;
    }

    std::size_t page_tokens_, page_bytes_;
    Hash hash_;
    Eviction eviction_;
    prefill_cost cost_;
    std::vector<digest> prefixes_;
    std::vector<std::uint32_t> depths_; // by page: full pages before it
    std::vector<std::uint8_t> flags_;   // by page
};

} // namespace kvcache

// ---- kvcache/cache/rooted_index.hpp -------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// An index with a root for each tenant: a full page that no pool has, whose run is the tenant's number. A tenant's
/// first pages continue its root, so no tokens lead from one tenant to another, whatever they are, in any index.
template <index_state Index>
class rooted_index {
public:
    template <class Indexes>
    rooted_index(const Indexes& indexes, page_shape shape, std::size_t pages, std::size_t most_tenants)
        : page_tokens_(shape.tokens), pages_(pages), index_(indexes.open(shape, pages + most_tenants)) {}

    /// What the first page of a tenant's sequence continues: nothing, in a cache without tenants (number zero).
    [[nodiscard]] std::optional<page_id> root_of(std::uint32_t tenant) const noexcept {
        return tenant == 0 ? std::nullopt : std::optional(page_id{static_cast<std::uint32_t>(pages_ + tenant - 1)});
    }
    /// Throws: bad_alloc, and nothing has changed then.
    void add_root(std::uint32_t tenant) { index_.insert(std::nullopt, run_of(tenant), *root_of(tenant)); }

    /// The longest known run of a tenant's tokens.
    [[nodiscard]] index_match match(std::uint32_t tenant, std::span<const token_id> tokens) const {
        if (tenant == 0)
            return index_.match(tokens);
        std::vector<token_id> query = run_of(tenant);
        query.insert(query.end(), tokens.data(), tokens.data() + tokens.size());
        index_match found = index_.match(query);
        found.pages.erase(found.pages.begin());
        found.tokens -= page_tokens_;
        return found;
    }
    [[nodiscard]] index_match match(std::span<const token_id> tokens) const { return match(0, tokens); }

    /// Chunks that a tenant has noted; where the index knows chunks.
    [[nodiscard]] std::vector<chunk_match> chunks(std::uint32_t tenant, std::span<const token_id> tokens,
                                                  std::size_t known) const requires chunk_index_state<Index> {
        return index_.chunks(tenant, tokens, known);
    }
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

    /// The page that a page continues, roots included.
    [[nodiscard]] std::optional<page_id> above(page_id page) const { return index_.parent(page); }
    /// The page of the pool that a page continues.
    [[nodiscard]] std::optional<page_id> parent(page_id page) const {
        const auto found = above(page);
        return found && index_of(*found) < pages_ ? found : std::nullopt;
    }

private:
    [[nodiscard]] std::vector<token_id> run_of(std::uint32_t tenant) const {
        return std::vector<token_id>(page_tokens_, token_id{static_cast<std::int32_t>(tenant)});
    }

    std::size_t page_tokens_;
    std::size_t pages_; // of the pool
    Index index_;
};

} // namespace kvcache

// ---- kvcache/cache/tenant_books.hpp -------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What a tenant has and may have.
struct tenant_usage {
    std::size_t pages = 0;                                       ///< Taken: held by its sequences, or idle.
    std::size_t idle = 0;                                        ///< Of them: held by nobody, kept for its next match.
    std::size_t quota = std::numeric_limits<std::size_t>::max(); ///< The most pages it may take.

    friend constexpr bool operator==(const tenant_usage&, const tenant_usage&) = default;
};

/// Which tenant has which page. Tenants are numbered from one; number zero is a cache without tenants.
class tenant_books {
public:
    tenant_books(std::size_t pages, std::size_t most) : owners_(pages, 0), accounts_(1) { accounts_.reserve(most + 1); }

    [[nodiscard]] std::size_t size() const noexcept { return accounts_.size() - 1; }
    [[nodiscard]] const tenant_usage& usage(std::uint32_t tenant) const { return accounts_[tenant]; }

    /// Returns the new tenant's number. Requires: fewer than the most.
    std::uint32_t add(std::size_t quota) {
        expects(accounts_.size() < accounts_.capacity(), "there is room for one more tenant");
        accounts_.push_back({.quota = quota});
        return static_cast<std::uint32_t>(size());
    }
    void set_quota(std::uint32_t tenant, std::size_t quota) { accounts_[tenant].quota = quota; }

    void take(page_id page, std::uint32_t tenant) noexcept {
        owners_[index_of(page)] = tenant;
        ++accounts_[tenant].pages;
    }
    void give_back(page_id page) noexcept { --account(page).pages; }
    void rest(page_id page) noexcept { ++account(page).idle; }
    void wake(page_id page) noexcept { --account(page).idle; }

    /// Whether one more page is one too many.
    [[nodiscard]] bool full(std::uint32_t tenant) const noexcept {
        return accounts_[tenant].pages >= accounts_[tenant].quota;
    }
    [[nodiscard]] bool owns(std::uint32_t tenant, page_id page) const noexcept {
        return owners_[index_of(page)] == tenant;
    }

    /// Of the pages that can be had, how many the tenant may have; its own idle ones leave for it.
    [[nodiscard]] std::size_t room(std::uint32_t tenant, std::size_t available) const noexcept {
        const tenant_usage& own = accounts_[tenant];
        const std::size_t held = own.pages - own.idle;
        return std::min(available, own.quota - std::min(own.quota, held));
    }

private:
    [[nodiscard]] tenant_usage& account(page_id page) noexcept { return accounts_[owners_[index_of(page)]]; }

    std::vector<std::uint32_t> owners_; // by page
    std::vector<tenant_usage> accounts_;
};

} // namespace kvcache

// ---- kvcache/core/exceptions.hpp ----------------------------------------------------------------------------------

// The one header that throws and catches. In a program without exceptions nothing can be caught: a failed
// allocation ends the program in operator new.

namespace kvcache::inline KVCACHE_ABI::detail {

/// Calls `body`. Returns false if it threw an `Exception`; what else it throws goes on.
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

/// Calls `body`. What it throws is lost.
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

/// Calls `body`. Returns what it threw; null if nothing.
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

} // namespace kvcache::detail

// ---- kvcache/observer/concept.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What happened in a cache.
enum class event_kind {
    matched,   ///< A prompt was looked up: tokens found, of how many, in which pages.
    stored,    ///< Tokens were committed.
    published, ///< A full page can be found from now on: its run, after which page.
    copied,    ///< A shared page was copied before a write: from the first of the pages to the second.
    evicted,   ///< A page left to make room.
    refused,   ///< A reservation failed for want of pages.
};

/// One event, with its extent. What it points to is there for the call.
struct event {
    event_kind kind = event_kind::matched;
    std::size_t tokens = 0; ///< Found (matched), committed (stored), or held by the page (the others).
    std::size_t of = 0;     ///< Tokens asked for (matched, refused).
    std::size_t pages = 0;  ///< Pages concerned.

    std::span<const page_id> which = {}; ///< Those pages, in order; none with stored and refused.
    std::optional<page_id> parent = {};  ///< The page that the page continues (published, evicted).
    std::span<const token_id> run = {};  ///< The tokens of the page (published, evicted).
    std::span<const digest> names = {};  ///< By page: its name, as name_of tells it.
    std::size_t page_tokens = 0;         ///< Tokens of a full page.

    /// The digest of all tokens up to the end of a page. Requires: the page is full and can be found.
    [[nodiscard]] digest name_of(page_id page) const {
        expects(index_of(page) < names.size(), "an event names the pages that it is about");
        return names[index_of(page)];
    }
};

/// The working state of an observer: told of every event, under the cache's lock. What it throws is lost.
template <class S>
concept observer_state = requires(S s, const event& what) {
    s.on(what);
};

/// Who watches a cache.
template <class P>
concept observer_policy = plays<P, observer_role> && requires(const P p) {
    p.open();
} && observer_state<opened_by<P>>;

} // namespace kvcache

// ---- kvcache/cache/page_books.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What every page is doing: free, held by sequences, or idle: held by nobody and kept in the index until room is
/// needed. An idle page's children are idle too, since whoever holds a page holds all that comes before it.
/// `Coded`: whether the codec codes whole pages.
template <storage_state Storage, hash_state Hash, index_state Index, eviction_state Eviction, observer_state Observer,
          bool Coded>
class page_books {
public:
    static constexpr bool coded = Coded;

    template <class Storages, class Hashes, class Indexes, class Evictions, class Observers>
    page_books(page_shape shape, std::size_t pages, std::size_t page_bytes, std::size_t most_tenants,
               const identity& id, const Storages& storages, const Hashes& hashes, const Indexes& indexes,
               const Evictions& evictions, const Observers& observers)
        : shape_(shape),
          exact_(shape, pages, page_bytes),
          pool_(pages, storages.open(pages, page_bytes)),
          index_(indexes, shape, pages, most_tenants),
          ranks_(shape, pages, page_bytes, most_tenants, id, hashes, evictions),
          observer_(observers.open()),
          tenants_(pages, most_tenants) {}

    [[nodiscard]] const page_pool<Storage>& pool() const noexcept { return pool_; }
    [[nodiscard]] const rooted_index<Index>& index() const noexcept { return index_; }
    [[nodiscard]] const Observer& observer() const noexcept { return observer_; }
    [[nodiscard]] std::size_t idle() const noexcept { return idle_; }

    [[nodiscard]] exact_books<Coded>& exact() noexcept { return exact_; }
    [[nodiscard]] const exact_books<Coded>& exact() const noexcept { return exact_; }

    /// Pages that can be had: free ones, and idle ones that may leave, but for those that exact rows weigh.
    [[nodiscard]] std::size_t available() const noexcept {
        const std::size_t all = pool_.free().size() + idle_;
        return all - std::min(all, exact_.aside());
    }

    [[nodiscard]] const tenant_books& tenants() const noexcept { return tenants_; }
    void set_quota(std::uint32_t tenant, std::size_t quota) { tenants_.set_quota(tenant, quota); }
    /// Of the available pages, those that a tenant may have.
    [[nodiscard]] std::size_t room(std::uint32_t tenant) const noexcept { return tenants_.room(tenant, available()); }

    /// Adds a tenant, whose names begin with `root`. Throws: bad_alloc, and there is no tenant more.
    std::uint32_t add_tenant(const digest& root, std::size_t quota) {
        const auto number = static_cast<std::uint32_t>(tenants_.size() + 1);
        index_.add_root(number);
        ranks_.name_root(*index_.root_of(number), root);
        return tenants_.add(quota);
    }

    /// Tells the observer. What it throws is lost: watching changes nothing.
    void tell(event what) noexcept {
        what.names = ranks_.prefixes();
        what.page_tokens = shape_.tokens;
        detail::ignore_exceptions([&] { observer_.on(what); });
    }

    /// A page with one holder. Evicts where none is free, and once where the storage refuses a free one: the page that
    /// leaves has its memory already. A tenant that has its quota gives pages of its own. None if nothing may leave or
    /// the storage refuses again.
    [[nodiscard]] std::optional<page_id> allocate(std::uint32_t tenant) {
        while (tenants_.full(tenant))
            if (!evict(tenant))
                return std::nullopt;
        if (!keep_free(exact_.aside() + 1))
            return std::nullopt;
        auto page = pool_.take();
        if (!page && evict(0))
            page = pool_.take();
        if (page)
            tenants_.take(*page, tenant);
        return page;
    }

    /// Evicts until so many pages are free. False if nothing more may leave.
    [[nodiscard]] bool keep_free(std::size_t pages) {
        while (pool_.free().size() < pages)
            if (!evict(0))
                return false;
        return true;
    }

    /// The index, to note chunks in.
    [[nodiscard]] rooted_index<Index>& chunks() noexcept { return index_; }

    void hold(page_id page) noexcept {
        if (pool_.holders(page) == 0)
            wake(page);
        pool_.hold(page);
    }

    /// One holder less. The last one leaves the page idle if the index knows it, and free otherwise.
    void drop(page_id page) noexcept {
        if (pool_.drop(page) > 0)
            return;
        if (index_.contains(page) && may_idle(page)) {
            ++idle_;
            tenants_.rest(page);
            ranks_.settle(page);
        } else {
            give_back(page);
        }
    }

    /// Says that a page was used.
    void touch(page_id page) noexcept { ranks_.touch(page); }

    /// So many rows from `first` on were computed in so long: what their pages cost is learned from it. Fewer rows than
    /// a page has are decoding, which says nothing of how soon pages are computed again.
    void measure(std::size_t first, std::size_t rows, double seconds) noexcept {
        if (rows >= shape_.tokens)
            ranks_.measure(first, rows, seconds);
    }

    /// What computing rows from `first` on takes, as far as it was measured.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return ranks_.seconds(first, rows);
    }

    /// Whether the row may be written in place: nobody else holds the page, and the index has not promised the row.
    [[nodiscard]] bool writable(page_id page, std::uint32_t row) const {
        return pool_.holders(page) == 1 && index_.run(page).size() <= row;
    }

    /// Makes a held page known as `run` after `parent`, of a request of `length` full pages. Returns the page that
    /// stands for the run from now on: where another full one held it already, the caller's hold has moved to that one,
    /// and its own is given up. Throws: bad_alloc, if the index or the eviction policy has no memory; the page is then
    /// not in the index, or as it was there.
    [[nodiscard]] page_id publish(std::optional<page_id> parent, std::span<const token_id> run, page_id page,
                                  std::size_t length) {
        const bool full = run.size() == shape_.tokens;
        const insertion done = index_.insert(parent, run, page);
        if (done.what == insertion::outcome::covered) {
            if (!full || *done.other == page)
                return page;
            hold(*done.other);
            touch(*done.other);
            exact_.pass_on(page, *done.other);
            if (index_.contains(page) && pool_.holders(page) == 1)
                forget(page);
            drop(page);
            return *done.other;
        }
        if (done.other)
            unlist(*done.other);
        ranks_.unrank(page); // its run has grown, and with it its name
        ranks_.follow(index_, index_.parent(page));
        if (full) {
            detail::scope_guard undo([&] { leave_index(page); });
            ranks_.rank(index_, page, length);
            undo.dismiss();
            tell_of(event_kind::published, page);
        }
        return page;
    }

    /// Proves that every page is in one state only. `held` is how many holders each page should have.
    [[nodiscard]] result<void> check(std::span<const std::uint32_t> held) const {
        std::vector<bool> free(pool_.pages(), false);
        for (const page_id page : pool_.free()) {
            if (free[index_of(page)])
                return broken(page, "is free twice");
            free[index_of(page)] = true;
        }
        std::size_t idle = 0;
        for (std::uint32_t i = 0; i < pool_.pages(); ++i) {
            const page_id page{i};
            const bool known = index_.contains(page);
            if (pool_.holders(page) != held[i])
                return broken(page, detail::joined({"counts ", std::to_string(pool_.holders(page)), " holders and has ",
                                                    std::to_string(held[i])}));
            if (free[i] && (known || ranks_.ranked(page) || held[i] > 0))
                return broken(page, "is free and in use");
            if (!free[i] && !known && held[i] == 0)
                return broken(page, "is lost: neither free, held nor known");
            if (ranks_.ranked(page) && !known)
                return broken(page, "is ranked for eviction and not in the index");
            if (!known)
                continue;
            idle += held[i] == 0;
            if (held[i] == 0 && !ranks_.ranked(page))
                return broken(page, "is idle and can never leave");
            if (index_.run(page).empty() || index_.run(page).size() > shape_.tokens)
                return broken(page, "has a run that is not of a page");
            if (!index_.leaf(page) && index_.run(page).size() != shape_.tokens)
                return broken(page, "has children and is not full");
            if (const auto parent = index_.parent(page); parent && (!index_.contains(*parent) || index_.leaf(*parent) ||
                                                                    (held[i] > 0 && held[index_of(*parent)] == 0)))
                return broken(page, "has a parent that is gone, childless or not held with it");
        }
        if (idle != idle_)
            return error{
                error_code::malformed, "pages",
                detail::joined({std::to_string(idle), " pages are idle, the books say ", std::to_string(idle_)})};
        return {};
    }

private:
    [[nodiscard]] static error broken(page_id page, const std::string& how) {
        return {error_code::malformed, detail::joined({"page ", std::to_string(index_of(page))}),
                detail::joined({"the page ", how})};
    }

    void wake(page_id page) noexcept {
        --idle_;
        tenants_.wake(page);
    }
    void give_back(page_id page) {
        exact_.drop(page);
        tenants_.give_back(page);
        pool_.give_back(page);
    }

    void tell_of(event_kind what, page_id page) noexcept {
        const auto run = index_.run(page);
        tell({what, run.size(), 0, 1, {&page, 1}, index_.parent(page), run});
    }

    // Whether a known page can wait for its next match: it is ranked, or can be; otherwise it leaves the index.
    [[nodiscard]] bool may_idle(page_id page) noexcept {
        const bool ranked = detail::completes<std::bad_alloc>([&] { ranks_.rank(index_, page, 0); });
        if (!ranked)
            leave_index(page); // full pages are ranked as they are published, so this one is a leaf
        return ranked;
    }

    // A held page leaves the index.
    void forget(page_id page) {
        ranks_.unrank(page);
        leave_index(page);
    }

    void leave_index(page_id page) {
        const auto parent = index_.parent(page);
        index_.erase(page);
        ranks_.follow(index_, parent);
    }

    // A page that the index has dropped: without a holder it is free.
    void unlist(page_id page) {
        ranks_.unrank(page);
        if (pool_.holders(page) == 0) {
            wake(page);
            give_back(page);
        }
    }

    // Makes an idle page leave; one of this tenant's, if that is not zero.
    [[nodiscard]] bool evict(std::uint32_t tenant) {
        const auto page = ranks_.victim([this, tenant](page_id candidate) {
            return pool_.holders(candidate) == 0 && index_.leaf(candidate) &&
                   (tenant == 0 || tenants_.owns(tenant, candidate));
        });
        if (!page)
            return false;
        tell_of(event_kind::evicted, *page);
        ranks_.evict(*page);
        leave_index(*page);
        unlist(*page);
        return true;
    }

    page_shape shape_;
    exact_books<Coded> exact_;
    page_pool<Storage> pool_;
    rooted_index<Index> index_;
    page_ranks<Hash, Eviction> ranks_;
    Observer observer_;
    tenant_books tenants_;
    std::size_t idle_ = 0;
};

} // namespace kvcache

// ---- kvcache/cache/audit.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Counts the holders of every page from the sequences themselves, and compares each sequence with the index.
template <index_state Index>
class audit {
public:
    audit(const Index& index, std::size_t page_tokens, std::size_t pages)
        : index_(index), page_tokens_(page_tokens), held_(pages, 0) {}

    /// By page: how many sequences hold it.
    [[nodiscard]] std::span<const std::uint32_t> held() const noexcept { return held_; }

    /// Takes in one sequence. Errors: malformed, with what is wrong with it.
    [[nodiscard]] result<void> count(const sequence_state& state) {
        std::size_t rows = 0;
        for (std::size_t i = 0; i < state.table.size(); ++i) {
            const page_entry& entry = state.table[i];
            ++held_[index_of(entry.page)];
            const bool plain = rows < state.exact; // what is woven behind may use any rows of a page
            if (plain && i + 1 < state.table.size() && rows + page_tokens_ <= state.exact &&
                entry.count != page_tokens_)
                return broken("has a page in its middle that is not full");
            if (plain && (entry.base != 0 || entry.first != 0))
                return broken("counts a page as exact that was computed elsewhere");
            if (i < state.sealed && rows + entry.count > state.exact)
                return broken("has made an approximate page known");
            if (i < state.sealed && index_.run(entry.page).size() != page_tokens_)
                return broken("counts on a page in the index that is not there");
            if (!agree(entry, state, rows))
                return broken(detail::joined(
                    {"and the index disagree about the tokens of page ", std::to_string(index_of(entry.page))}));
            rows += entry.count;
        }
        for (const page_id page : state.sources)
            ++held_[index_of(page)];
        if (state.has_copied_tail())
            ++held_[index_of(state.tail_before->page)];
        if (rows != state.tokens.size() + state.leased)
            return broken(
                detail::joined({"has ", std::to_string(rows), " rows for ", std::to_string(state.tokens.size()),
                                " tokens and ", std::to_string(state.leased), " reserved ones"}));
        return {};
    }

private:
    // Where both know tokens of a page's rows they are the same.
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

} // namespace kvcache

// ---- kvcache/cache/exact_leases.hpp -------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What sequences and leases do with exact rows, where the codec codes whole pages: a sequence has those of its last
/// page while it is not full, of its first pages and of the pages before its end where the codec keeps those; a lease
/// has those of the pages it writes.
template <class PageBooks>
class exact_leases {
public:
    /// `coded`: what stays exact; none for a codec that writes row by row, and then nothing here does anything.
    exact_leases(PageBooks& pages, std::size_t page_tokens, std::optional<exact_pages> coded)
        : pages_(pages), page_tokens_(page_tokens), coded_(coded) {}

    /// How many of a sequence's first `tokens` tokens can be continued: to the last token before which all is there
    /// that the next query reads exactly.
    [[nodiscard]] std::size_t kept([[maybe_unused]] const sequence_state& state, std::size_t tokens) const noexcept {
        if constexpr (!PageBooks::coded)
            return tokens;
        else
            return kept_exactly(state, tokens);
    }

    /// Exact pages that a lease makes: for a copied last page, and for `fresh` new ones behind `before`.
    [[nodiscard]] std::size_t needed(bool copies, std::size_t before, std::size_t fresh, std::size_t at_once) const {
        return PageBooks::coded ? (copies ? 1 : 0) + places(before, fresh, at_once) : 0;
    }

    /// Makes the exact rows of a lease whose pages the table has already. `used` rows of the last page before are in
    /// use, or all. False if there is no memory: what was made is the lease's, and ends with it.
    [[nodiscard]] bool open([[maybe_unused]] sequence_state& state, [[maybe_unused]] std::uint32_t used,
                            [[maybe_unused]] std::size_t at_once) {
        if constexpr (!PageBooks::coded)
            return true;
        else
            return open_exactly(state, used, at_once);
    }

    /// The exact rows that a lease gives a page of its own when all its rows are committed; null if it gives none.
    [[nodiscard]] exact_page* given([[maybe_unused]] const sequence_state& state,
                                    [[maybe_unused]] std::size_t entry) const noexcept {
        if constexpr (!PageBooks::coded)
            return nullptr;
        else
            return given_exactly(state, entry);
    }

    /// Gives the pages what they keep of a lease's exact rows, and ends the others. Returns how many of the tokens
    /// stay.
    [[nodiscard]] std::size_t settle(sequence_state& state) noexcept {
        if constexpr (!PageBooks::coded)
            return state.tokens.size();
        else
            return settle_exactly(state);
    }

    /// Ends the exact rows that a lease has and no page.
    void end([[maybe_unused]] exact_ring& ring) noexcept {
        if constexpr (PageBooks::coded)
            end_exactly(ring);
    }

private:
    [[nodiscard]] std::size_t kept_exactly(const sequence_state& state, std::size_t tokens) const noexcept {
        if (tokens % page_tokens_ != 0 && !has(state, tokens / page_tokens_))
            tokens -= tokens % page_tokens_;
        while (tokens > 0) {
            const std::size_t page = tokens / page_tokens_;
            bool all = true;
            for (std::size_t i = page - std::min(page, coded_->recent); i < page; ++i)
                all = all && has(state, i);
            if (all)
                break;
            tokens = (tokens - 1) / page_tokens_ * page_tokens_;
        }
        return tokens;
    }

    [[nodiscard]] bool open_exactly(sequence_state& state, std::uint32_t used, std::size_t at_once) {
        const bool made = detail::completes<std::bad_alloc>([&] {
            if (state.has_copied_tail()) {
                const page_id own = state.table[state.pages_before - 1].page;
                pages_.exact().give(own, pages_.exact().make());
                pages_.exact().of(own)->take(*pages_.exact().of(state.tail_before->page), used);
            }
            exact_ring& ring = state.ring;
            const std::size_t fresh = state.table.size() - state.pages_before;
            ring.first = state.pages_before;
            ring.own = own_places(state.pages_before, fresh);
            for (std::size_t n = places(state.pages_before, fresh, at_once); n > 0; --n) {
                ring.places.emplace_back();
                ring.places.back() = pages_.exact().make();
                ring.places.back()->begin(0);
            }
            state.exact_rows.resize(state.table.size());
        });
        if (!made) {
            std::erase(state.ring.places, nullptr);
            return false;
        }
        for (std::size_t i = 0; i < state.table.size(); ++i)
            state.exact_rows[i] = i < state.pages_before ? pages_.exact().of(state.table[i].page) : state.ring.at(i);
        if (state.tail_before)
            state.exact_rows[state.pages_before - 1]->begin(used);
        return pages_.keep_free(pages_.exact().aside());
    }

    [[nodiscard]] exact_page* given_exactly(const sequence_state& state, std::size_t entry) const noexcept {
        const std::size_t tokens = state.tokens.size() + state.leased, last = tokens / page_tokens_;
        const bool gives = stays(entry, last) && (entry < last || tokens % page_tokens_ != 0) &&
                           state.ring.keeps(entry, state.table.size());
        return gives ? state.ring.at(entry) : nullptr;
    }

    [[nodiscard]] std::size_t settle_exactly(sequence_state& state) noexcept {
        const std::size_t entries = state.table.size(), tokens = state.tokens.size();
        const std::size_t last = tokens / page_tokens_; // the page that is not full, or would be next
        const std::size_t before = std::min(state.pages_before, entries);
        for (std::size_t i = before; i < entries && i <= last; ++i)
            if (stays(i, last) && (i < last || tokens % page_tokens_ != 0) && state.ring.keeps(i, entries))
                pages_.exact().give(state.table[i].page, state.ring.take(i));
        end(state.ring);
        const std::size_t stay = kept(state, tokens);
        // Pages that the end has passed; where another sequence holds one, it may be the end of that.
        const std::size_t first = before - std::min(before, coded_->recent + 1);
        for (std::size_t i = first; i < before && i < stay / page_tokens_; ++i)
            if (!stays(i, stay / page_tokens_) && pages_.pool().holders(state.table[i].page) == 1)
                pages_.exact().drop(state.table[i].page);
        return stay;
    }

    void end_exactly(exact_ring& ring) noexcept {
        for (auto& place : ring.places)
            pages_.exact().end(std::move(place));
        ring.places.clear();
    }

    [[nodiscard]] bool has(const sequence_state& state, std::size_t entry) const noexcept {
        return entry < state.table.size() && pages_.exact().of(state.table[entry].page) != nullptr;
    }

    // Whether page `i` stays exact for a sequence that ends in page `last`.
    [[nodiscard]] bool stays(std::size_t i, std::size_t last) const noexcept { return coded_->covers(i, last); }

    [[nodiscard]] std::size_t own_places(std::size_t before, std::size_t fresh) const noexcept {
        return std::min(fresh, coded_->first - std::min(coded_->first, before));
    }
    [[nodiscard]] std::size_t places(std::size_t before, std::size_t fresh, std::size_t at_once) const noexcept {
        return exact_ring::places_for(fresh, own_places(before, fresh), at_once, page_tokens_, coded_->recent);
    }

    PageBooks& pages_;
    std::size_t page_tokens_;
    std::optional<exact_pages> coded_;
};

} // namespace kvcache

// ---- kvcache/cache/weaver.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Puts rows of a prompt behind a sequence: those of runs that were computed elsewhere stay in their pages, which are
/// shared, not copied; the others get rows of pages of their own, at the place in the page that their position has in
/// any sequence.
///
///     run       [c0 c1 c2 c3 c4 c5 c6 c7]  in pages A B of 4, from position 40 on; c0 and c5 run again
///     table     P[0,1) A[1,4) B[0,1) Q[1,2) B[2,4)             P, Q: own pages
template <class Row>
class basic_weaver {
public:
    /// Rows [0, rows) of a lease whose first has position `first`. Rows of `rerun`, and those of no run, get pages of
    /// their own. Requires: runs and positions ascend; `entries` are the runs' pages in order.
    basic_weaver(std::size_t first, std::size_t rows, std::span<const reused_run> runs,
                 std::span<const page_entry> entries, std::span<const std::size_t> rerun)
        : first_(first), rows_(rows) {
        std::size_t of_entry = 0;
        for (const reused_run& run : runs)
            for (std::size_t i = 0; i < run.count; ++i) {
                expects(!entries.empty(), "every reused token lies in a page");
                const page_entry& entry = entries.front();
                if (run.first + i >= first && run.first + i < first + rows)
                    rows_[run.first + i - first] = {entry.page, static_cast<std::uint32_t>(entry.first + of_entry),
                                                    true, entry.base};
                if (++of_entry == entry.count) {
                    entries = entries.subspan(1);
                    of_entry = 0;
                }
            }
        for (const std::size_t position : rerun)
            if (position >= first && position < first + rows)
                rows_[position - first] = {};
    }

    /// The position of the first row that is kept; behind the last row if none is.
    [[nodiscard]] std::size_t first_kept() const {
        return first_ +
               static_cast<std::size_t>(
                   std::find_if(rows_.begin(), rows_.end(), [](const Row& one) { return one.kept; }) - rows_.begin());
    }

    /// How many pages of their own the other rows need.
    [[nodiscard]] std::size_t own_pages(std::size_t page_tokens) const {
        std::size_t pages = 0, block = 0;
        for (std::size_t row = 0; row < rows_.size(); ++row)
            if (!rows_[row].kept && (pages == 0 || (first_ + row) / page_tokens != block)) {
                block = (first_ + row) / page_tokens;
                ++pages;
            }
        return pages;
    }

    /// Gives the rows the pages taken for them, one for each block of positions that has such rows.
    void take(std::span<const page_id> pages, std::size_t page_tokens) {
        std::size_t block = 0;
        const page_id* own = nullptr;
        for (std::size_t row = 0; row < rows_.size(); ++row) {
            if (rows_[row].kept)
                continue;
            const std::size_t position = first_ + row;
            if (own == nullptr || position / page_tokens != block) {
                block = position / page_tokens;
                own = own == nullptr ? pages.data() : own + 1;
            }
            rows_[row] = {*own, static_cast<std::uint32_t>(position % page_tokens), false, 0};
        }
    }

    /// The page table of the rows. (entries)
    [[nodiscard]] std::vector<page_entry> table() const {
        std::vector<page_entry> made;
        for (const Row& one : rows_)
            if (!made.empty() && made.back().page == one.page && made.back().base == one.base &&
                made.back().first + made.back().count == one.row)
                ++made.back().count;
            else
                made.push_back({one.page, one.base, one.row, 1});
        return made;
    }

    [[nodiscard]] std::vector<Row>& rows() noexcept { return rows_; }

private:
    std::size_t first_;
    std::vector<Row> rows_;
};

using weaver = basic_weaver<woven_row>;

} // namespace kvcache

// ---- kvcache/cache/sequence_books.hpp -----------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The live sequences of a cache, on a ring, and what happens to their pages. Pages are touched and given back tail
/// first, so that a parent is always fresher than its children.
template <class PageBooks>
class sequence_books {
public:
    /// Requires: the pages' books outlive it. It does not move.
    sequence_books(PageBooks& pages, std::size_t page_tokens, std::optional<exact_pages> coded)
        : pages_(pages), page_tokens_(page_tokens), whole_(coded.has_value()), exact_(pages, page_tokens, coded) {
        ring_.previous = ring_.next = &ring_;
    }

    sequence_books(const sequence_books&) = delete;
    sequence_books& operator=(const sequence_books&) = delete;

    /// How many sequences live.
    [[nodiscard]] std::size_t size() const noexcept {
        std::size_t n = 0;
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next)
            ++n;
        return n;
    }

    /// The exact rows that its sequences and leases have.
    [[nodiscard]] exact_leases<PageBooks>& exact() noexcept { return exact_; }
    [[nodiscard]] const exact_leases<PageBooks>& exact() const noexcept { return exact_; }

    /// Enters a sequence, which from now on holds the pages of its table.
    void enter(sequence_state& state) noexcept {
        for (const page_id page : state.sources)
            pages_.hold(page);
        for (const page_entry& entry : state.table)
            pages_.hold(entry.page);
        for (auto entry = state.table.rbegin(); entry != state.table.rend(); ++entry)
            pages_.touch(entry->page);
        state.previous = &ring_;
        state.next = std::exchange(ring_.next, &state);
        state.next->previous = &state;
    }

    /// Takes a sequence out, and back what it holds.
    void leave(sequence_state& state) noexcept {
        undo(state);
        for (; !state.table.empty(); state.table.pop_back())
            pages_.drop(state.table.back().page);
        forget_sources(state);
        state.previous->next = state.next;
        state.next->previous = state.previous;
    }

    /// Keeps the first `tokens` tokens.
    void truncate(sequence_state& state, std::size_t tokens) noexcept {
        state.tokens.erase(state.tokens.begin() + static_cast<std::ptrdiff_t>(tokens), state.tokens.end());
        const std::size_t kept = state.cut(tokens);
        for (; state.table.size() > kept; state.table.pop_back())
            pages_.drop(state.table.back().page);
        state.sealed = std::min(state.sealed, state.full_entries(page_tokens_));
        if (state.stored > state.sealed)
            state.stored = 0; // what comes behind the cut has other names
        if (tokens <= state.exact && !state.has_lease) {
            state.exact = sequence_state::all; // what was approximate is gone
            forget_sources(state);
        }
    }

    /// Gives the table `in_tail` rows of the last page, copied if its first `copied` rows are not to be written over,
    /// and `behind` rows of new pages. False if the storage refuses.
    template <class Codec>
    [[nodiscard]] bool take_rows(sequence_state& state, const Codec& codec, std::size_t in_tail, std::size_t behind,
                                 std::size_t copied) {
        if (copied > 0) {
            const auto own = pages_.allocate(state.tenant);
            if (!own)
                return false;
            const page_id shared = std::exchange(state.table.back().page, *own);
            if (!pages_.pool().copy(codec, shared, *own, copied))
                return false;
            const page_id pair[] = {shared, *own};
            pages_.tell({event_kind::copied, copied, 0, 1, pair});
        }
        if (in_tail > 0)
            state.table.back().count += static_cast<std::uint32_t>(in_tail);
        while (behind > 0) {
            const auto page = pages_.allocate(state.tenant);
            if (!page)
                return false;
            const std::size_t count = std::min<std::size_t>(behind, page_tokens_);
            state.table.push_back({.page = *page, .count = static_cast<std::uint32_t>(count)});
            behind -= count;
        }
        return true;
    }

    /// Puts copies of rows behind a sequence: `entries` are where they lie, and what the copies' will be. False, and
    /// some are there, if the storage refuses. Requires: the table has room for them.
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
            pages_.tell({event_kind::copied, entry.count, 0, 1, pair});
            state.table.push_back({*own, entry.base, entry.first, entry.count});
        }
        return true;
    }

    /// Puts woven rows behind a sequence, as a lease, and holds what they were taken from. False, and nothing has
    /// changed, if the storage refuses. Throws: bad_alloc, likewise.
    [[nodiscard]] bool weave(sequence_state& state, weaver& woven, std::span<const page_id> sources) {
        std::vector<page_id> own;
        const std::size_t needed = woven.own_pages(page_tokens_);
        own.reserve(needed);
        const auto give_back = [&] {
            for (const page_id page : own)
                pages_.drop(page);
        };
        while (own.size() < needed) {
            const auto page = pages_.allocate(state.tenant);
            if (!page) {
                give_back();
                return false;
            }
            own.push_back(*page);
            pages_.pool().clear(*page);
        }
        detail::scope_guard undo([&] {
            state.sources.clear();
            give_back();
        });
        woven.take(own, page_tokens_);
        const std::vector<page_entry> table = woven.table();
        state.prepare(table.size(), woven.rows().size());
        state.sources.assign(sources.data(), sources.data() + sources.size());
        state.pages_before = state.table.size();
        state.table.insert(state.table.end(), table.begin(), table.end());
        undo.dismiss();
        for (const page_id page : state.sources)
            pages_.hold(page);
        for (std::size_t i = state.pages_before; i < state.table.size(); ++i)
            pages_.hold(state.table[i].page);
        give_back(); // the entries hold them now
        state.tail_before.reset();
        state.woven = std::move(woven.rows());
        state.leased = state.woven.size();
        state.exact = state.tokens.size();
        state.has_lease = true;
        return true;
    }

    /// Tells of rows that find no pages, and why.
    [[nodiscard]] error refuse(const sequence_state& state, std::size_t rows, std::size_t pages,
                               std::size_t page_bytes) {
        pages_.tell({event_kind::refused, 0, rows, pages});
        const bool over_quota = pages_.room(state.tenant) < pages_.available();
        const std::size_t all = over_quota ? pages_.tenants().usage(state.tenant).quota : pages_.pool().pages();
        return {error_code::out_of_memory, over_quota ? "quota" : "pages",
                detail::joined({std::to_string(rows), " tokens need ", std::to_string(pages), " pages of ",
                                std::to_string(page_bytes), " bytes; ", std::to_string(pages_.room(state.tenant)),
                                " of ", std::to_string(all), " can be had"})};
    }

    /// Makes tokens of a sequence known as a chunk. False if they lie in no known page, or the index has no memory.
    bool note(const sequence_state& state, std::size_t first, std::size_t count) {
        const std::size_t last = first + count - 1;
        bool known = false;
        return detail::completes<std::bad_alloc>([&] {
                   known = pages_.chunks().note(state.tenant, state.table[last / page_tokens_].page,
                                                static_cast<std::uint32_t>(last % page_tokens_ + 1), count);
               }) &&
               known;
    }

    /// Ends a lease: its first rows are these tokens, the others are given back. Of a codec of whole pages, rows of a
    /// page whose exact rows have made room for others are given back too. It cannot fail: all memory that it
    /// must have was taken with the lease.
    void commit(sequence_state& state, std::span<const token_id> tokens) {
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - state.leased_at;
        pages_.measure(state.tokens.size(), tokens.size(), took.count());
        commit_unmeasured(state, tokens);
    }

    /// As above, for rows that nobody computed.
    void commit_unmeasured(sequence_state& state, std::span<const token_id> tokens) {
        state.append(tokens);
        if (state.has_copied_tail()) {
            if (tokens.empty())
                std::swap(state.tail_before->page, state.table[state.pages_before - 1].page);
            pages_.drop(state.tail_before->page);
        }
        const std::size_t kept = exact_.settle(state);
        state.end_lease();
        truncate(state, kept);
        publish(state);
    }

    /// Takes a lease back, if there is one: the sequence is as it was before.
    void undo(sequence_state& state) noexcept {
        if (!state.has_lease)
            return;
        for (; state.table.size() > state.pages_before; state.table.pop_back())
            pages_.drop(state.table.back().page);
        if (state.has_copied_tail())
            pages_.drop(state.table.back().page);
        if (state.tail_before)
            state.table.back() = *state.tail_before;
        exact_.end(state.ring);
        state.end_lease();
        truncate(state, state.tokens.size());
    }

    /// Proves the books of sequences and pages.
    [[nodiscard]] result<void> check() const {
        audit holders(pages_.index(), page_tokens_, pages_.pool().pages());
        std::size_t leased = 0;
        for (const sequence_state* s = ring_.next; s != &ring_; s = s->next) {
            if (auto sound = holders.count(*s); !sound)
                return sound;
            leased += s->ring.places.size();
        }
        if (!pages_.exact().add_up(leased))
            return error{error_code::malformed, "exact rows", "exact rows are kept that no page and no lease has"};
        return pages_.check(holders.held());
    }

private:
    // Makes all pages of a sequence known that are not yet. Where the index has no memory left, the sequence keeps its
    // pages to itself from there on: a later match finds less.
    void publish(sequence_state& state) {
        if (state.tokens.size() >= state.prompt)
            state.prompt = 0;
        const std::size_t length = std::max(state.full_entries(page_tokens_), state.prompt / page_tokens_);
        for (std::size_t i = state.sealed; state.shares && i < state.table.size(); ++i) {
            page_entry& entry = state.table[i];
            if (whole_ && entry.count < page_tokens_)
                break;
            if (i * page_tokens_ + entry.count > std::min(state.exact, state.cacheable)) // approximate: never known
                return;
            const auto run = std::span<const token_id>(state.tokens).subspan(i * page_tokens_, entry.count);
            const auto parent = i > 0 ? std::optional(state.table[i - 1].page) : pages_.index().root_of(state.tenant);
            state.shares = detail::completes<std::bad_alloc>(
                [&] { entry.page = pages_.publish(parent, run, entry.page, length); });
            if (state.shares && entry.count == page_tokens_)
                state.sealed = i + 1;
        }
    }

    void forget_sources(sequence_state& state) noexcept {
        for (; !state.sources.empty(); state.sources.pop_back())
            pages_.drop(state.sources.back());
    }

    PageBooks& pages_;
    std::size_t page_tokens_;
    bool whole_; // whether the codec codes whole pages: only those are shared
    exact_leases<PageBooks> exact_;
    sequence_state ring_;
};

} // namespace kvcache

// ---- kvcache/cache/stats.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// How full a cache is. Every page is free, held or idle.
struct cache_stats {
    std::size_t pages = 0;      ///< That fit the budget.
    std::size_t free = 0;       ///< Never used, or given back.
    std::size_t held = 0;       ///< Held by live sequences, each counted once however many share it.
    std::size_t idle = 0;       ///< Held by nobody, kept for the next match until room is needed.
    std::size_t page_bytes = 0; ///< Bytes of a page.
    std::size_t sequences = 0;  ///< Live sequences and matches.

    std::size_t exact = 0;       ///< Pages whose exact rows are kept beside them, for a codec of whole pages.
    std::size_t exact_bytes = 0; ///< What those take of the budget.

    friend constexpr bool operator==(const cache_stats&, const cache_stats&) = default;
};

/// How full a cache of these pages is, for people.
[[nodiscard]] inline std::string describe_pages(const page_shape& shape, const std::string& codec,
                                                const cache_stats& now) {
    const auto number = [](std::size_t n) { return std::to_string(n); };
    return detail::joined({number(shape.layers),
                           " layers, ",
                           number(shape.kv_heads),
                           " KV heads of ",
                           number(shape.head_dim),
                           ", pages of ",
                           number(shape.tokens),
                           " tokens and ",
                           number(now.page_bytes),
                           " bytes (",
                           codec,
                           "); ",
                           number(now.pages),
                           " pages: ",
                           number(now.held),
                           " held by ",
                           number(now.sequences),
                           " sequences, ",
                           number(now.idle),
                           " idle, ",
                           number(now.free),
                           " free"});
}

} // namespace kvcache

// ---- kvcache/locking/concept.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The working state of a locking policy: a lockable (as std::lock_guard needs it) whose identity stays put.
template <class S>
concept locking_state = requires(S& s) {
    s.lock();
    s.unlock();
};

/// How threads share a cache.
template <class P>
concept locking_policy =
    plays<P, locking_role> && std::default_initializable<typename P::state> && locking_state<typename P::state>;

} // namespace kvcache

// ---- kvcache/cache/basic_cache.hpp --------------------------------------------------------------------------------

// Longer than 300 lines: the composition, of short functions that each join several books.

namespace kvcache::inline KVCACHE_ABI {

/// A KV cache: keys and values of past tokens, found by prefix, kept in coded pages, shared and copied on write.
/// Requires: it outlives its sequences, matches and leases. It does not move.
template <codec_policy Codec, storage_policy Storage, hash_policy Hash, index_policy Index, eviction_policy Eviction,
          recompute_policy Recompute, tier_policy Tier, observer_policy Observer, locking_policy Locking>
class basic_cache {
public:
    using codec_type = decltype(std::declval<const Codec&>().open(page_shape{}));
    using storage_type = decltype(std::declval<const Storage&>().open(0, 0));
    using sequence = basic_sequence<basic_cache>;
    using match_type = basic_match<basic_cache>;
    using lease = basic_lease<basic_cache>;
    using reuse_type = basic_reuse<basic_cache>;
    using locking_type = typename Locking::state;
    using tier_type = decltype(std::declval<const Tier&>().open());

    /// Whether pages stay in a tier when they leave memory.
    static constexpr bool has_tier = !std::same_as<tier_type, no_tier::state>;
    static_assert(
        requires { sizeof(tier_books<tier_type>); }, "a cache with a tier needs <kvcache/tier.hpp>");
    static_assert(far_codec_state<codec_type> == far_storage_state<storage_type>,
                  "pages that the host cannot read have a storage and a codec of one kind (docs/cuda.md)");
    static_assert(host_storage_state<storage_type> || !has_tier, "a tier keeps pages that the host can read");

    /// Whether the codec keeps row by row.
    static constexpr bool writes_rows = row_writer<codec_type> || far_codec_state<codec_type>;
    /// Whether the index finds chunks by their content, and the codec keeps row by row.
    static constexpr bool knows_chunks =
        row_writer<codec_type> && chunk_index_state<decltype(std::declval<const Index&>().open(page_shape{}, 0))>;

    /// `tenants` is how many there may be; zero for a cache that its user alone has.
    basic_cache(std::size_t tenants, identity id, page_shape shape, budget limit, Codec codec, Storage storage,
                Hash hash, Index index, Eviction eviction, Recompute recompute, Tier tier, Observer observer)
        : shape_(checked(shape)),
          codec_(codec.open(shape)),
          identity_(complete(std::move(id))),
          books_(shape, pages_in(limit), codec_.page_bytes(), tenants, identity_, storage, hash, index, eviction,
                 observer),
          hash_(std::move(hash)),
          sequences_(books_, shape.tokens, coded()),
          recompute_(recompute.open(shape)),
          tier_(tier.open(), identity_, secret_of(hash_)) {}

    basic_cache(const basic_cache&) = delete;
    basic_cache& operator=(const basic_cache&) = delete;

    /// The longest known run of `tokens` that can be continued, pinned: whole pages where the codec codes whole pages.
    /// Behind it, whole pages that the tier has are loaded, checked and known from then on.
    /// Cost: O(tokens), and what the tier takes.
    [[nodiscard]] match_type match(std::span<const token_id> tokens) { return match_as(0, tokens); }
    [[nodiscard]] match_type match_as(std::uint32_t tenant, std::span<const token_id> tokens) {
        return tier_.match(*this, tenant, tokens);
    }

    /// As match, of what memory knows: nothing is asked of the tier. Cost: O(tokens).
    [[nodiscard]] match_type match_in_memory(std::span<const token_id> tokens) { return look_up(0, tokens, true, 0); }

    /// Whether match would ask the tier for more of a prompt than memory knows. Cost: O(tokens).
    [[nodiscard]] bool tier_may_know(std::span<const token_id> tokens) { return tier_.may_know(*this, 0, tokens); }

    /// Loads what the tier has of a prompt behind what memory knows, for a match to come; nobody holds it then. Returns
    /// how many tokens. Cost: as match.
    std::size_t prefetch(std::span<const token_id> tokens) { return tier_.prefetch(*this, 0, tokens); }

    /// Which of the matched prompt's tokens run.
    [[nodiscard]] rerun plan(const match_type& found) const {
        std::size_t first = recompute_.first_rerun(found.tokens(), found.of());
        if constexpr (page_writer<codec_type>) {
            const std::lock_guard guard(lock_);
            first = sequences_.exact().kept(*found.known_.state_, first);
        }
        return {first, found.of() - first};
    }

    /// An empty sequence.
    [[nodiscard]] sequence open() { return open_as(0); }

    /// A sequence of the reused tokens of a match.
    [[nodiscard]] sequence open(match_type found, const rerun& plan) {
        found.known_.truncate(plan.first);
        return std::move(found.known_);
    }

    /// Room for `rows` rows behind a sequence, and the memory to commit them. Evicts idle pages where none is free.
    /// Errors: out_of_memory, with the pages needed and had; the sequence and all that others hold is as before.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows) { return reserve(to, rows, rows); }

    /// The same for rows that are written and attended at most `at_once` at a time, in ascending order: where the codec
    /// codes whole pages, no more of them need their exact rows.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, std::size_t at_once) {
        const std::lock_guard guard(lock_);
        sequence_state& state = *to.state_;
        expects(!state.has_lease, "a sequence has one lease at a time");
        const auto open_rows = state.open_rows(shape_.tokens);
        const std::uint32_t used = open_rows.value_or(shape_.tokens);
        const bool copies = open_rows && rows > 0 && !books_.writable(state.table.back().page, used);
        const std::size_t in_tail = std::min<std::size_t>(rows, shape_.tokens - used);
        const std::size_t behind = rows - in_tail;
        const std::size_t fresh = behind / shape_.tokens + (behind % shape_.tokens > 0 ? 1 : 0);
        at_once = std::min(std::max<std::size_t>(at_once, 1), rows);
        const std::size_t exact = sequences_.exact().needed(copies, state.table.size(), fresh, at_once);
        const std::size_t needed = fresh + (copies ? 1 : 0) + books_.exact().more_aside(exact);
        if (needed > books_.room(state.tenant))
            return sequences_.refuse(state, rows, needed, codec_.page_bytes());

        state.prepare(fresh, rows);
        state.pages_before = state.table.size();
        state.tail_before = open_rows ? std::optional(state.table.back()) : std::nullopt;
        state.leased = rows;
        state.has_lease = true;
        state.leased_at = std::chrono::steady_clock::now();
        const bool taken = [&] {
            detail::scope_guard undo([&] { sequences_.undo(state); });
            if (!sequences_.take_rows(state, codec_, in_tail, behind, copies ? used : 0) ||
                !sequences_.exact().open(state, used, at_once))
                return false;
            undo.dismiss();
            return true;
        }();
        if (taken)
            return lease(*this, state);
        return storage_says(sequences_.refuse(state, rows, needed, codec_.page_bytes()));
    }

    /// What is known of a prompt behind the tokens of a sequence, which begins it: chunks that `note` was told of,
    /// anywhere in it. Pinned. Cost: O(tokens).
    [[nodiscard]] reuse_type find(const sequence& behind, std::span<const token_id> tokens) requires knows_chunks {
        const std::lock_guard guard(lock_);
        chunk_search search(books_.index(), behind.state_->tenant, shape_.tokens, tokens, behind.size());
        auto pins = std::make_unique<sequence_state>();
        pins->tenant = behind.state_->tenant;
        pins->sources = std::move(search.sources);
        return {adopt(std::move(pins)), std::move(search.found)};
    }

    /// Remembers the exact tokens [first, first + count) of a sequence as a chunk, for as long as their pages stay.
    /// Returns whether it is known now: not one that is shorter than the index wants, or whose pages are not known.
    bool note(const sequence& of, std::size_t first, std::size_t count) requires knows_chunks {
        expects(count > 0 && first + count <= of.exact(), "a chunk is of exact tokens");
        const std::lock_guard guard(lock_);
        return sequences_.note(*of.state_, first, count);
    }

    /// As above for `rows` rows of which some are kept as they were found: those of its approximate spans that are not
    /// among the positions of `rerun`, which ascend. The lease writes the others. Requires: the sequence is exact, and
    /// begins the prompt that was looked for.
    [[nodiscard]] result<lease> reserve(sequence& to, std::size_t rows, const reuse_type& found,
                                        std::span<const std::size_t> rerun) {
        const std::lock_guard guard(lock_);
        sequence_state& state = *to.state_;
        expects(!state.has_lease && state.exact == sequence_state::all, "rows are woven behind an exact sequence");
        weaver woven(state.tokens.size(), rows, found.map().runs, found.map().entries, rerun);
        const std::size_t needed = woven.own_pages(shape_.tokens);
        if (needed > books_.room(state.tenant))
            return sequences_.refuse(state, rows, needed, codec_.page_bytes());
        if (sequences_.weave(state, woven, found.pins_.state_->sources))
            return lease(*this, state);
        return sequences_.refuse(state, rows, needed, codec_.page_bytes());
    }

    [[nodiscard]] const page_shape& shape() const noexcept { return shape_; }
    /// What the recompute policy has opened.
    [[nodiscard]] const auto& recompute() const noexcept { return recompute_; }
    [[nodiscard]] const identity& id() const noexcept { return identity_; }
    [[nodiscard]] const codec_type& codec() const noexcept { return codec_; }
    /// What the tier policy has opened: its status, its counts, its flush.
    [[nodiscard]] tier_type& tier() noexcept { return tier_.tier(); }
    [[nodiscard]] const tier_type& tier() const noexcept { return tier_.tier(); }
    /// What was asked of it, and what came.
    [[nodiscard]] kvcache::tier_stats tier_stats() const { return tier_.stats(); }
    [[nodiscard]] const storage_type& storage() const noexcept { return books_.pool().storage(); }
    [[nodiscard]] const auto& observer() const noexcept { return books_.observer(); }

    /// Calls `ask` with the observer, while nothing happens that it could be told of.
    template <class Ask>
    void ask_observer(Ask&& ask) const {
        const std::lock_guard guard(lock_);
        ask(books_.observer());
    }

    [[nodiscard]] cache_stats stats() const {
        const std::lock_guard guard(lock_);
        const auto& pool = books_.pool();
        const std::size_t free = pool.free().size(), idle = books_.idle();
        return {pool.pages(),
                free,
                pool.pages() - free - idle,
                idle,
                codec_.page_bytes(),
                sequences_.size(),
                books_.exact().alive(),
                books_.exact().bytes()};
    }

    /// A paragraph for people: shape, codec, how full, identity.
    [[nodiscard]] std::string describe() const {
        return detail::joined({"kvcache: ", describe_pages(shape_, codec_.name(), stats()), "; identity ",
                               to_string(digest_of(identity_))});
    }

    /// Proves the books: every page is free, held or idle, every holder is counted, every run is what its holders say.
    /// Cost: O(pages + tokens). For tests and for suspicion.
    [[nodiscard]] result<void> check() const {
        const std::lock_guard guard(lock_);
        return sequences_.check();
    }

    // For the tier.

    /// What memory knows of a prompt, of which `loaded` tokens came from the tier just now; the observer is told of it
    /// now, or by tell_of.
    [[nodiscard]] match_type look_up(std::uint32_t tenant, std::span<const token_id> tokens, bool tells,
                                     std::size_t loaded) {
        const std::lock_guard guard(lock_);
        const index_match found = books_.index().match(tenant, tokens);
        auto known = std::make_unique<sequence_state>();
        known->tenant = tenant;
        known->prompt = tokens.size();
        known->tokens.assign(tokens.data(), tokens.data() + found.tokens);
        std::size_t left = found.tokens;
        for (const page_id page : found.pages) {
            const std::size_t rows = std::min<std::size_t>(left, shape_.tokens);
            known->table.push_back({.page = page, .count = static_cast<std::uint32_t>(rows)});
            left -= rows;
        }
        const std::size_t kept = sequences_.exact().kept(*known, found.tokens);
        known->tokens.erase(known->tokens.begin() + static_cast<std::ptrdiff_t>(kept), known->tokens.end());
        known->drop_entries(known->cut(kept));
        const auto pages = std::span(found.pages).first(known->table.size());
        if (tells)
            books_.tell({event_kind::matched, kept, tokens.size(), pages.size(), pages});
        match_type made{adopt(std::move(known)), tokens.size(), found};
        made.loaded_ = std::min(loaded, kept);
        return made;
    }

    [[nodiscard]] match_type tell_of(match_type found) {
        std::vector<page_id> pages;
        for (const page_entry& entry : found.known_.table())
            pages.push_back(entry.page);
        const std::lock_guard guard(lock_);
        books_.tell({event_kind::matched, found.tokens(), found.of(), pages.size(), pages});
        return found;
    }

    // For tenants.

    std::uint32_t add_tenant(const std::string& salt, std::size_t quota) {
        const std::lock_guard guard(lock_);
        identity own = identity_;
        own.tenant = salt;
        salts_.reserve(salts_.size() + 1);
        std::string kept = salt;
        tier_.set(books_.tenants().size() + 1, own);
        const std::uint32_t number = books_.add_tenant(hash_.open(own).root(), quota);
        salts_.push_back(std::move(kept));
        return number;
    }

    /// The identity of what a tenant stores; of the cache itself for 0.
    [[nodiscard]] identity id_as(std::uint32_t tenant) const {
        const std::lock_guard guard(lock_);
        identity own = identity_;
        if (tenant > 0)
            own.tenant = salts_[tenant - 1];
        return own;
    }

    void set_quota(std::uint32_t tenant, std::size_t quota) {
        const std::lock_guard guard(lock_);
        books_.set_quota(tenant, quota);
    }

    [[nodiscard]] tenant_usage usage(std::uint32_t tenant) const {
        const std::lock_guard guard(lock_);
        return books_.tenants().usage(tenant);
    }

    [[nodiscard]] sequence open_as(std::uint32_t tenant) {
        const std::lock_guard guard(lock_);
        auto state = std::make_unique<sequence_state>();
        state->tenant = tenant;
        return adopt(std::move(state));
    }

    // For sequences and leases.

    void release(sequence_state& state) noexcept {
        const std::lock_guard guard(lock_);
        sequences_.leave(state);
    }

    [[nodiscard]] sequence fork(const sequence_state& from, std::size_t tokens) {
        expects(tokens <= from.tokens.size() && !from.has_lease, "a fork lies inside a sequence without a lease");
        const std::lock_guard guard(lock_);
        return adopt(from.begin(sequences_.exact().kept(from, tokens), shape_.tokens));
    }

    [[nodiscard]] result<sequence> without(const sequence_state& from, std::size_t first, std::size_t count) {
        expects(first <= from.tokens.size() && count <= from.tokens.size() - first && !from.has_lease,
                "what is left out lies inside a sequence without a lease");
        const std::lock_guard guard(lock_);
        auto kept = from.begin(first, shape_.tokens);
        const auto behind = kept->leave_out(from, first, count);
        sequences_.enter(*kept);
        if (behind.size() > books_.room(from.tenant) || !sequences_.copy_rows(*kept, codec_, behind)) {
            sequences_.leave(*kept);
            return sequences_.refuse(from, from.tokens.size() - first - count, behind.size(), codec_.page_bytes());
        }
        sequence made{*this, std::move(kept)};
        return made;
    }

    void truncate(sequence_state& state, std::size_t tokens) {
        expects(tokens <= state.tokens.size() && !state.has_lease,
                "a truncation lies inside a sequence without a lease");
        const std::lock_guard guard(lock_);
        sequences_.truncate(state, sequences_.exact().kept(state, tokens));
    }

    void commit(sequence_state& state, std::span<const token_id> tokens) {
        {
            const std::lock_guard guard(lock_);
            sequences_.commit(state, tokens);
            books_.tell({event_kind::stored, tokens.size(), 0, 0});
        }
        tier_.store(*this, state);
    }

    void commit_in_place(sequence_state& state, std::span<const token_id> tokens) {
        const std::lock_guard guard(lock_);
        sequences_.commit_unmeasured(state, tokens);
        books_.tell({event_kind::stored, tokens.size(), 0, 0});
    }

    void rollback(sequence_state& state) noexcept {
        const std::lock_guard guard(lock_);
        sequences_.undo(state);
    }

    [[nodiscard]] std::span<std::byte> bytes(page_id page) const requires host_storage_state<storage_type> {
        return books_.pool().bytes(page);
    }

    /// The exact rows that are kept beside a page that a sequence holds; empty if there are none.
    [[nodiscard]] std::span<const std::byte> exact_bytes(page_id page) const {
        const std::lock_guard guard(lock_);
        const exact_page* rows = books_.exact().of(page);
        return rows != nullptr ? rows->bytes() : std::span<const std::byte>();
    }
    /// Those that a lease will give a page.
    [[nodiscard]] std::span<std::byte> exact_bytes(const sequence_state& state, std::size_t entry) const {
        exact_page* rows = sequences_.exact().given(state, entry);
        return rows != nullptr ? rows->bytes() : std::span<std::byte>();
    }

    /// What computing rows is known to take, for the tier.
    [[nodiscard]] double prefill_seconds(std::size_t first, std::size_t rows) const {
        const std::lock_guard guard(lock_);
        return books_.seconds(first, rows);
    }

private:
    // Where there was room and the storage refused: a far one says why.
    [[nodiscard]] error storage_says(error full) const {
        if constexpr (far_storage_state<storage_type>)
            if (const auto well = storage().status(); !well)
                return well.error();
        return full;
    }

    // Records leave the process under the key of the names that do.
    [[nodiscard]] static std::string secret_of(const Hash& hash) {
        if constexpr (requires { std::string(hash.key); })
            return hash.key;
        else
            return {};
    }

    using books = page_books<storage_type, decltype(std::declval<const Hash&>().open(identity{})),
                             decltype(std::declval<const Index&>().open(page_shape{}, 0)),
                             decltype(std::declval<const Eviction&>().open(eviction_room{})),
                             decltype(std::declval<const Observer&>().open()), page_writer<codec_type>>;

    [[nodiscard]] static const page_shape& checked(const page_shape& shape) {
        expects(shape.valid(), "a page shape has no zero extent, and tokens is a multiple of 16");
        return shape;
    }

    // What stays exact, where the codec codes whole pages.
    [[nodiscard]] std::optional<exact_pages> coded() const {
        if constexpr (page_writer<codec_type>)
            return codec_.exact();
        else
            return std::nullopt;
    }

    [[nodiscard]] std::size_t pages_in(budget limit) const {
        return std::min<std::size_t>(limit.bytes / codec_.page_bytes(), std::size_t{1} << 31);
    }

    [[nodiscard]] identity complete(identity id) const {
        id.codec = codec_.name();
        id.layout = detail::joined({"key tiles of 16, value rows; ", std::to_string(shape_.layers), " layers, ",
                                    std::to_string(shape_.kv_heads), " KV heads of ", std::to_string(shape_.head_dim)});
        if constexpr (far_codec_state<codec_type>) {
            id.layout = codec_.layout_name();
            id.backend = codec_.backend();
        }
        id.page_tokens = shape_.tokens;
        return id;
    }

    [[nodiscard]] sequence adopt(std::unique_ptr<sequence_state> state) noexcept {
        sequences_.enter(*state);
        return {*this, std::move(state)};
    }

    page_shape shape_;
    codec_type codec_;
    identity identity_;
    std::vector<std::string> salts_; // by tenant, from 1
    books books_;
    Hash hash_;
    sequence_books<books> sequences_;
    decltype(std::declval<const Recompute&>().open(page_shape{})) recompute_;
    tier_books<tier_type> tier_;
    mutable typename Locking::state lock_;
};

} // namespace kvcache

// ---- kvcache/core/inline.hpp --------------------------------------------------------------------------------------

/// For what must become part of its caller: for the compiler to keep sums in registers, and for what does nothing but
/// prefetch, since GCC takes such a function for one without effect and drops its calls. On a lambda: after its (...).
#if defined(__GNUC__)
#define KVCACHE_INLINE __attribute__((always_inline))
#else
#define KVCACHE_INLINE
#endif

/// Before a loop of a constant number of turns, 64 at most: the loop is fully unrolled. nvcc rejects the pragma.
#if defined(__CUDACC__)
#define KVCACHE_UNROLL
#elif defined(__clang__)
#define KVCACHE_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define KVCACHE_UNROLL _Pragma("GCC unroll 64")
#else
#define KVCACHE_UNROLL
#endif

// ---- kvcache/core/prefetch.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Where number `offset` from `base` on would lie: an address to ask for, which may lie outside of any array, where a
/// pointer must not lead.
template <class T>
[[nodiscard]] inline const void* address(const T* base, std::size_t offset) noexcept {
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(base) + offset * sizeof(T));
}

/// Asks for the cache line of number `offset` from `base` on, which is soon read. Any may be asked for.
template <class T>
KVCACHE_INLINE inline void prefetch([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 3);
#endif
}

/// The same for a line that is read somewhat later, in the second cache.
template <class T>
KVCACHE_INLINE inline void prefetch_soon([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 2);
#endif
}

/// The same for a line that is soon written.
template <class T>
KVCACHE_INLINE inline void prefetch_to_write([[maybe_unused]] const T* base,
                                             [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 1, 3);
#endif
}

} // namespace kvcache

// ---- kvcache/core/mixed_bits.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The number with every bit of it in every bit of the result, for tables whose keys need not be hashes: murmur3's
/// finaliser (Appleby), which no two numbers share.
[[nodiscard]] constexpr std::uint64_t mixed_bits(std::uint64_t x) noexcept {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

} // namespace kvcache

// ---- kvcache/eviction/ghost_list.hpp ------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What is remembered of an entry that left.
struct ghost {
    std::size_t bytes = 0;  ///< What it took, rounded up to the list's grain.
    std::uint32_t mark = 0; ///< What its policy noted.
};

/// Keys of entries that left, the oldest forgotten first: a ring of nodes in the order of leaving, chained by hash. A
/// key is known by 31 bits of its hash beside those that choose its chain, so that a stranger is taken for a ghost
/// about once in 10^9 lookups. Holes that `take` leaves are closed when the ring is full.
///
///     push -> [ newest . . hole . oldest ] -> forgotten        chains_[hash] -> node -> node
///
/// Cost: O(1) amortised. At most 16 bytes a ghost, 21 with marks beside its bytes; all of it is had at construction.
class ghost_list {
public:
    enum class marks { none, kept, instead_of_bytes };

    /// Room for `most` ghosts of `most_bytes` together. Below 4 GiB bytes are counted exactly, beyond in a coarser
    /// grain.
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

    /// Enters a key. A full list forgets its oldest. A key that is in the list stays there too, and the newer of the
    /// two is taken first.
    void push(std::uint64_t key, ghost what) noexcept {
        if (most_ == 0)
            return;
        if (size_ == most_)
            pop();
        if (used_ == nodes_.size())
            close_holes();
        const std::uint32_t at = (first_ + used_++) % capacity();
        const std::uint64_t hash = mixed_bits(key);
        std::uint32_t& chain = chain_of(hash);
        nodes_[at] = {print(hash), marks_only_ ? what.mark : units(what.bytes), chain};
        if (!marks_.empty())
            marks_[at] = what.mark;
        chain = at;
        bytes_ += marks_only_ ? 0 : nodes_[at].units;
        ++size_;
    }

    /// Asks for the memory that a key is looked up in.
    KVCACHE_INLINE void prefetch(std::uint64_t key) const noexcept {
        kvcache::prefetch(chains_.data(), chain_at(mixed_bits(key)));
    }

    /// Whether the key is in the list.
    [[nodiscard]] bool contains(std::uint64_t key) const noexcept {
        const std::uint64_t hash = mixed_bits(key);
        for (std::uint32_t at = chains_[chain_at(hash)]; (at & last) == 0; at = nodes_[at].next)
            if (nodes_[at].print == print(hash))
                return true;
        return false;
    }

    /// Takes a key out.
    std::optional<ghost> take(std::uint64_t key) noexcept {
        const std::uint64_t hash = mixed_bits(key);
        for (std::uint32_t* link = &chain_of(hash); (*link & last) == 0; link = &nodes_[*link].next) {
            const std::uint32_t at = *link;
            if (nodes_[at].print != print(hash))
                continue;
            *link = nodes_[at].next;
            return leave(at);
        }
        return std::nullopt;
    }

    /// The oldest.
    /// Requires: the list is not empty.
    [[nodiscard]] ghost oldest() noexcept {
        trim();
        return at(first_);
    }

    /// Forgets the oldest.
    /// Requires: the list is not empty.
    ghost pop() noexcept {
        trim();
        prefetch_oldest();
        link_to(first_) = nodes_[first_].next;
        return leave(first_);
    }

private:
    static constexpr std::uint32_t last = 0x80000000u; // ends a chain, whose number stands beside it
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

    // Steps over the holes before the oldest.
    void trim() noexcept {
        for (; used_ > 0 && nodes_[first_].print == hole; --used_)
            first_ = (first_ + 1) % capacity();
    }

    // By the low half of the hash: the high one is the print.
    [[nodiscard]] std::size_t chain_at(std::uint64_t hash) const noexcept {
        return static_cast<std::size_t>(((hash & 0xffffffffu) * chains_.size()) >> 32);
    }
    [[nodiscard]] std::uint32_t& chain_of(std::uint64_t hash) noexcept { return chains_[chain_at(hash)]; }

    // Asks for what forgetting the next oldest ones reads: the chain of one, and where the chain of a nearer one leads.
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

    // What points to a node. Its chain's end knows the chain's start.
    [[nodiscard]] std::uint32_t& link_to(std::uint32_t index) noexcept {
        std::uint32_t end = nodes_[index].next;
        while ((end & last) == 0)
            end = nodes_[end].next;
        std::uint32_t* link = &chains_[end & ~last];
        while (*link != index)
            link = &nodes_[*link].next;
        return *link;
    }

    ghost leave(std::uint32_t index) noexcept {
        const ghost left = at(index);
        bytes_ -= marks_only_ ? 0 : nodes_[index].units;
        nodes_[index] = {};
        --size_;
        return left;
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
    std::vector<std::uint32_t> marks_; // beside them
    bool marks_only_;
    std::vector<std::uint32_t> chains_; // by hash
    std::size_t most_;
    std::size_t size_ = 0;
    std::uint32_t used_ = 0;
    std::size_t bytes_ = 0; // in grains
    std::uint32_t first_ = 0;
    int grain_;
};

} // namespace kvcache

// ---- kvcache/eviction/reuse_ages.hpp ------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// At what age entries were used again, by class, and what that says of one that has reached an age: the hits it is
/// good for by the room and time it takes, over the horizon that is best for it (Gittins 1979; hit density, Beckmann,
/// Chen and Cidon 2018). Ages are counted in uses of any entry.
///
///     index(age) = max over h of  P(used again in (age, age + h]) / E[time until then, at most h]
///
/// Cost: O(1) to record; `learn` O(classes * bins^2), to be called once in a cache's worth of uses.
template <std::size_t Classes>
class reuse_ages {
public:
    /// An entry of a class begins to wait for its next use.
    void begin(std::size_t of) noexcept { begun_[of] += 1.0; }

    /// An entry of a class was used again at an age.
    void use(std::size_t of, std::uint32_t age) noexcept { used_[of][bin(age)] += 1.0; }

    /// What an entry of a class is worth at an age; zero before anything is learned.
    [[nodiscard]] double worth(std::size_t of, std::uint32_t age) const noexcept { return index_[of][bin(age)]; }

    /// Takes in what was recorded, and keeps such a share of it for the next time.
    void learn(double kept) noexcept {
        std::array<double, bins> all{};
        double begun = 0.0;
        for (std::size_t c = 0; c < Classes; ++c) {
            begun += begun_[c];
            for (std::size_t b = 0; b < bins; ++b)
                all[b] += used_[c][b];
        }
        for (std::size_t c = 0; c < Classes; ++c) {
            std::array<double, bins> chance; // a class that is hardly known is as all together
            for (std::size_t b = 0; b < bins; ++b)
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

    static void index(const std::array<double, bins>& chance, std::array<double, bins>& out) noexcept {
        std::array<double, bins + 1> waiting; // the share that still waits at the begin of a bin
        waiting[0] = 1.0;
        for (std::size_t b = 0; b < bins; ++b)
            waiting[b + 1] = std::max(1e-9, waiting[b] - chance[b]);
        for (std::size_t age = 0; age < bins; ++age) {
            double hits = 0.0, time = 0.0, best = 0.0;
            for (std::size_t b = age; b < bins; ++b) {
                hits += chance[b];
                time += (first_age(b + 1) - first_age(b)) * (waiting[b] + waiting[b + 1]) / 2.0;
                best = std::max(best, hits / time);
            }
            out[age] = best;
        }
    }

    std::array<double, Classes> begun_{};
    std::array<std::array<double, bins>, Classes> used_{};
    std::array<std::array<double, bins>, Classes> index_{};
};

} // namespace kvcache

// ---- kvcache/eviction/slot_queues.hpp -----------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Queues of slots, a slot in one of them at most: rings of 32-bit links through a sentinel for each queue.
///
///     front: newest <-> ... <-> oldest :back        newer() leads to the front
///
/// Cost: O(1) each. 8 bytes a slot, and 8 a queue.
class slot_queues {
public:
    slot_queues(std::size_t slots, std::size_t queues)
        : links_(slots + queues), slots_(static_cast<std::uint32_t>(slots)) {
        for (std::size_t q = slots; q < links_.size(); ++q)
            links_[q] = {static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(q)};
    }

    [[nodiscard]] std::size_t slots() const noexcept { return slots_; }

    /// Whether the slot is in a queue.
    [[nodiscard]] bool contains(slot_id slot) const noexcept { return links_[index_of(slot)].newer != nowhere; }
    [[nodiscard]] bool empty(std::uint32_t queue) const noexcept {
        return links_[slots_ + queue].newer == slots_ + queue;
    }

    /// The ends of a queue.
    /// Requires: it is not empty.
    [[nodiscard]] slot_id front(std::uint32_t queue) const noexcept { return slot_id{links_[slots_ + queue].older}; }
    [[nodiscard]] slot_id back(std::uint32_t queue) const noexcept { return slot_id{links_[slots_ + queue].newer}; }

    /// The neighbour on the way to the front, and to the back; past either end it is no slot: `ends` holds of it.
    [[nodiscard]] slot_id newer(slot_id slot) const noexcept { return slot_id{links_[index_of(slot)].newer}; }
    [[nodiscard]] slot_id older(slot_id slot) const noexcept { return slot_id{links_[index_of(slot)].older}; }
    [[nodiscard]] bool ends(slot_id slot) const noexcept { return index_of(slot) >= slots_; }

    /// Asks for the memory of a slot's links, and of its neighbours'.
    KVCACHE_INLINE void prefetch(slot_id slot) const noexcept {
        kvcache::prefetch_to_write(links_.data(), index_of(slot));
    }
    KVCACHE_INLINE void prefetch_neighbours(slot_id slot) const noexcept {
        const auto [newer, older] = links_[index_of(slot)];
        kvcache::prefetch_to_write(links_.data(), newer);
        kvcache::prefetch_to_write(links_.data(), older);
    }

    /// Requires: the slot is in no queue.
    void push_front(slot_id slot, std::uint32_t queue) noexcept {
        const std::uint32_t end = slots_ + queue, second = links_[end].older, at = index_of(slot);
        links_[at] = {end, second};
        links_[second].newer = at;
        links_[end].older = at;
    }

    /// Requires: the slot is in a queue.
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

    /// The oldest of a queue that may leave. Those before it move to the front: who may not leave is in use now.
    /// Cost: amortised O(1), while a fixed share may leave.
    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> oldest(std::uint32_t queue, MayLeave&& may_leave) {
        return oldest(queue, may_leave, slots_);
    }

    /// The same among the oldest `most`: a search that goes on where the one before ended.
    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> oldest(std::uint32_t queue, MayLeave&& may_leave, std::size_t most) {
        if (empty(queue))
            return std::nullopt;
        const slot_id last = front(queue);
        for (bool all = false; !all && most > 0; --most) {
            const slot_id slot = back(queue);
            if (may_leave(slot))
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

} // namespace kvcache

// ---- kvcache/eviction/touch_ring.hpp ------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The last few touches of a policy that moves what is touched: each waits while the memory that it needs comes, and
/// they are applied in their order. Whoever asks the policy for anything else applies the rest before.
///
///     touch -> [ fetch: its own links .  .  reach: its neighbours' .  .  apply ]
///
/// Cost: O(1) each. 64 bytes.
class touch_ring {
public:
    /// Enters a touch. `fetch(slot)` asks for a slot's own memory, `reach(slot)` reads it and asks for what it leads
    /// to, and `apply(slot)` is done with the oldest once the ring is full.
    template <class Fetch, class Reach, class Apply>
    void add(slot_id slot, Fetch&& fetch, Reach&& reach, Apply&& apply) {
        if (end_ - begin_ == ring_.size())
            apply(ring_[begin_++ % ring_.size()]);
        fetch(slot);
        ring_[end_++ % ring_.size()] = slot;
        if (end_ - begin_ > ring_.size() / 2)
            reach(ring_[(end_ - 1 - ring_.size() / 2) % ring_.size()]);
    }

    /// Applies all that wait.
    template <class Apply>
    void apply_all(Apply&& apply) {
        while (begin_ != end_)
            apply(ring_[begin_++ % ring_.size()]);
    }

private:
    std::array<slot_id, 16> ring_ = {};
    std::uint32_t begin_ = 0, end_ = 0; // touches applied, and entered
};

} // namespace kvcache

// ---- kvcache/eviction/reuse_forecast.hpp --------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The entry whose next use is worth the least leaves first, as learned from when entries were used again that had been
/// used as often. Entries wait in a queue for each such class, the least recently used first; of the oldest of each the
/// one leaves that is good for the fewest hits by room and time at its age. Ghosts, several to a slot, remember uses
/// beyond an entry's stay, so that what is learned does not depend on what the policy kept; before anything is learned
/// it is lru.
///
///     used once     [ newest ... oldest ] -+
///     twice         [ newest ... oldest ] -+-> least worth at its age: victim -> ghosts
///     3..4, 5..8, 9 or more times   ...   -+
///
/// The index is that of Gittins 1979 for a hazard learned online; hit density by class and age is from Beckmann, Chen
/// and Cidon, "LHD", NSDI 2018, use counts beyond the stay from "LFU with history". docs/replay.md has its hit ratios.
struct reuse_forecast {
    using role = eviction_role;
    std::size_t ghosts_a_slot = 4;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 32 bytes a slot, 16 a ghost, 5 KB.
class reuse_forecast::state {
public:
    state(const reuse_forecast& policy, eviction_room room)
        : queues_(room.slots, classes),
          entries_(room.slots),
          ghosts_(room.slots * policy.ghosts_a_slot, 0, ghost_list::marks::instead_of_bytes),
          period_(static_cast<std::uint32_t>(std::clamp<std::size_t>(room.slots, 2000, 1u << 24))) {}

    void admit(slot_id slot, const entry& newcomer) {
        apply_touches();
        expects(!queues_.contains(slot), "an entry is admitted once");
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
        expects(queues_.contains(slot), "a touched entry was admitted");
        touches_.add(
            slot,
            [this](slot_id one) {
                queues_.prefetch(one);
                prefetch_to_write(entries_.data(), index_of(one));
            },
            [this](slot_id one) { queues_.prefetch_neighbours(one); }, [this](slot_id one) { use_again(one); });
    }

    void settle(slot_id slot) {
        apply_touches();
        expects(queues_.contains(slot), "an entry that settles was admitted");
        queues_.move_to_front(slot, class_of(entries_[index_of(slot)]));
    }

    void erase(slot_id slot) {
        apply_touches();
        expects(queues_.contains(slot), "an erased entry was admitted");
        queues_.remove(slot);
    }

    void evict(slot_id slot) {
        apply_touches();
        const known& one = entries_[index_of(slot)];
        ghosts_.push(one.key, {.mark = (one.used & ~class_bits) | class_of(one)});
        erase(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        apply_touches();
        const auto found = least(may_leave, patience);
        return found ? found : least(may_leave, queues_.slots());
    }

private:
    static constexpr std::uint32_t classes = 5, class_bits = 7;
    static constexpr std::size_t patience = 64; // entries of a queue that are asked about before it is passed over
    struct known {
        std::uint64_t key = 0;
        float bytes = 1.0f;
        std::uint32_t used = 0; // when, on the clock
        std::uint8_t uses = 0;  // up to 255
    };

    // 1, 2, 3 to 4, 5 to 8 and more uses.
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
        if (++since_learned_ >= next_) { // soon at first, then once in a cache's worth of uses
            ages_.learn(1.0 - 0.1 * static_cast<double>(since_learned_) / static_cast<double>(period_));
            next_ = std::min(2 * next_, period_);
            since_learned_ = 0;
        }
    }

    // Who is worth the least among the oldest and the newest of each queue that may leave: the newest where all return
    // after one age, as in a loop. Who may not leave keeps its place: a parent is to follow what continues it.
    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> least(MayLeave&& may_leave, std::size_t most_asked) {
        std::optional<slot_id> found;
        double worth = 0.0;
        std::uint32_t age = 0;
        const auto weigh = [&](std::uint32_t c, slot_id slot, auto next) {
            for (std::size_t asked = 0; !queues_.ends(slot); slot = next(slot), ++asked) {
                if (asked == most_asked)
                    return;
                if (!may_leave(slot))
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
            weigh(c, queues_.back(c), [this](slot_id slot) { return queues_.newer(slot); });
            weigh(c, queues_.front(c), [this](slot_id slot) { return queues_.older(slot); });
        }
        return found;
    }

    slot_queues queues_;
    std::vector<known> entries_;
    touch_ring touches_;
    ghost_list ghosts_;
    reuse_ages<classes> ages_;
    std::uint32_t clock_ = 0; // uses of all entries, round the clock
    std::uint32_t since_learned_ = 0;
    std::uint32_t period_;
    std::uint32_t next_ = 2000;
};

inline reuse_forecast::state reuse_forecast::open(eviction_room room) const {
    return state{*this, room};
}

static_assert(eviction_policy<reuse_forecast>);

} // namespace kvcache

// ---- kvcache/hash/xxh3.hpp ----------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Chained XXH3-128 (xxhash.com) from the identity's digest. Fast, and not for an adversary: an index compares tokens
/// on every hit, and what leaves the process is named by another hash.
struct xxh3 {
    using role = hash_role;
    class state;
    [[nodiscard]] state open(const identity& id) const;
};

class xxh3::state {
public:
    explicit state(digest root) : root_(root) {}

    [[nodiscard]] digest root() const noexcept { return root_; }

    /// Cost: about 20 ns and 0.1 ns a token.
    [[nodiscard]] digest chain(digest before, std::span<const token_id> run) const {
        digest_builder builder;
        builder.nested(before).number(run.size());
        return builder.bytes(std::as_bytes(run)).finish();
    }

private:
    digest root_;
};

inline xxh3::state xxh3::open(const identity& id) const {
    return state{digest_of(id)};
}

static_assert(hash_policy<xxh3>);

} // namespace kvcache

// ---- kvcache/index/page_hints.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Which page a hash may stand for: a table that forgets. A hash belongs to one cache line of eight places; a page that
/// finds them taken is not remembered, and of two pages under one hash either is the answer. So the caller compares,
/// and has another way to look. Nothing is allocated after construction. 16 bytes a page.
class page_hints {
public:
    static constexpr std::uint32_t none = 0xffffffffu;

    explicit page_hints(std::size_t pages) : lines_(2 * pages / places + 1) {}

    /// A page that was remembered under this hash or one like it; `none` if there is none.
    [[nodiscard]] std::uint32_t find(std::uint64_t hash) const noexcept {
        const line& at = lines_[home(hash)];
        std::uint32_t found = none; // without a branch, as nobody can foresee the place
        for (std::size_t i = 0; i < places; ++i)
            found = std::min(found, at.tags[i] == tag(hash) ? at.pages[i] : none);
        return found;
    }

    /// Asks for the line that `find` will read.
    void expect(std::uint64_t hash) const noexcept { prefetch(lines_.data(), home(hash)); }

    /// Remembers a page that is not none, if there is a place for it.
    void insert(std::uint64_t hash, std::uint32_t page) noexcept { replace(hash, none, tag(hash), page); }

    /// Forgets a page that may have been remembered under this hash.
    void erase(std::uint64_t hash, std::uint32_t page) noexcept { replace(hash, page, 0, none); }

private:
    static constexpr std::size_t places = 8;

    struct alignas(line_bytes) line {
        line() { pages.fill(none); }
        std::array<std::uint32_t, places> tags = {};
        std::array<std::uint32_t, places> pages;
    };

    [[nodiscard]] static std::uint32_t tag(std::uint64_t hash) noexcept { return static_cast<std::uint32_t>(hash); }
    [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept { return (hash >> 32) * lines_.size() >> 32; }

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

} // namespace kvcache

// ---- kvcache/index/page_order.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Many small sets of page numbers in one array, each page in one set at most, each set ordered by what is asked. A
/// set is a treap whose priorities are mixed page numbers: O(log n) expected, whatever the order of insertion, and
/// nothing is allocated after construction. 8 bytes a page.
class page_order {
public:
    static constexpr std::uint32_t none = 0xffffffffu;

    /// A set: the page at its top.
    struct set {
        std::uint32_t top = none;
        [[nodiscard]] bool empty() const noexcept { return top == none; }
    };

    explicit page_order(std::size_t pages) : links_(pages) {}

    /// The last page for which `before(page)` holds and the first for which it does not, where `before` holds for the
    /// first pages of the order and no others. `none` where there is no such page.
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

    /// Puts a page behind all for which `before` holds. Requires: the page is in no set.
    template <class Before>
    void insert(set& into, std::uint32_t page, Before&& before) {
        std::uint32_t* at = &into.top;
        while (*at != none && priority(*at) > priority(page))
            at = before(*at) ? &links_[*at].right : &links_[*at].left;
        // The rest is split below the page: who comes before it to the left.
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

    /// Takes a page out, where `before` holds for exactly those in front of it. Requires: the page is in the set.
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

    // A mixed page number (a bijection, so no two are equal).
    [[nodiscard]] static constexpr std::uint32_t priority(std::uint32_t page) noexcept {
        page = (page ^ (page >> 16)) * 0x7feb352du;
        page = (page ^ (page >> 15)) * 0x846ca68bu;
        return page ^ (page >> 16);
    }

    std::vector<link> links_;
};

} // namespace kvcache

// ---- kvcache/index/page_tree.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Pages, each with the run of tokens it holds and the page that it continues. Siblings are ordered by their runs, so
/// the one that shares most with a query is beside the query's place: every step is exact at any token, also inside a
/// page, and costs O(log siblings). All memory is taken at the beginning: 4 bytes a token, 20 a page.
class page_tree {
public:
    static constexpr std::uint32_t none = page_order::none;

    page_tree(page_shape shape, std::size_t pages)
        : page_tokens_(shape.tokens), tokens_(pages * page_tokens_), nodes_(pages), order_(pages) {}

    [[nodiscard]] std::size_t page_tokens() const noexcept { return page_tokens_; }
    [[nodiscard]] bool contains(page_id page) const { return node_of(page).count > 0; }
    [[nodiscard]] bool full(page_id page) const { return node_of(page).count == page_tokens_; }
    [[nodiscard]] bool leaf(page_id page) const { return node_of(page).children.empty(); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const {
        const std::uint32_t above = node_of(page).parent;
        return above == none ? std::nullopt : std::optional(page_id{above});
    }

    /// The tokens a page holds; empty for a page that is not in the tree.
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return run_of(index_of(page)); }

    /// Requires: the parent is in the tree and full; the run has 1 to page-tokens tokens and, where the page is in the
    /// tree already, begins with the page's run or is the beginning of it.
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
            done.other = page_id{near.before}; // a shorter form of the same run gives way
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
        expects(contains(page) && leaf(page), "only a leaf leaves the index");
        unlink(index_of(page));
        nodes_[index_of(page)] = {};
    }

    /// Whether a page is in the tree, full, and continues a page, or none, with this run of a page's length.
    [[nodiscard]] bool continues(std::uint32_t page, std::uint32_t last, std::span<const token_id> run) const {
        return nodes_[page].count == page_tokens_ && nodes_[page].parent == last &&
               std::memcmp(tokens_.data() + page * page_tokens_, run.data(), run.size_bytes()) == 0;
    }

    /// Asks for what `continues` will read.
    void expect(std::uint32_t page) const noexcept {
        prefetch(nodes_.data(), page);
        for (std::size_t i = 0; i < page_tokens_; i += line_bytes / sizeof(token_id))
            prefetch(tokens_.data(), page * page_tokens_ + i);
    }

    /// Goes on by one page, whole or in part: the child of the last one that shares most with the query, which is a
    /// page's length or less. Returns whether a whole page was found; if not, the match says why it ended.
    bool step(index_match& found, std::span<const token_id> query) const {
        const page_order::set& level = found.pages.empty() ? roots_ : node_of(found.pages.back()).children;
        if (query.empty())
            found.end = match_end::complete;
        if (query.empty() || level.empty())
            return false;
        // In lexicographic order nobody shares more with a query than its two neighbours.
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
        page_order::set children = {};
        std::uint32_t parent = none;
        std::uint32_t count = 0;
    };

    // Holds for the pages whose runs come before these tokens.
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

    // How many leading tokens are the same.
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
    [[nodiscard]] const node& node_of(page_id page) const { return nodes_[index_of(page)]; }
    [[nodiscard]] page_order::set& children(std::uint32_t above) {
        return above == none ? roots_ : nodes_[above].children;
    }

    void unlink(std::uint32_t page) { order_.erase(children(nodes_[page].parent), page, before(run_of(page))); }

    std::size_t page_tokens_;
    aligned_vector<token_id> tokens_; // (pages, page_tokens)
    aligned_vector<node> nodes_;      // by page
    page_order order_;                // children of one page, and the roots
    page_order::set roots_;
};

} // namespace kvcache

// ---- kvcache/index/radix.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// A tree of pages. A node is a page with the run of tokens it holds; its children continue it, ordered by their runs,
/// so a match is exact at any token, also inside a page. Beside the tree, a table hints at full pages under the chained
/// hash of all tokens up to their end: a prompt's hashes are known before its pages are, so sixteen steps fetch their
/// lines at once. A hint is compared with the tree before it counts, and the tree is asked where there is none.
///
///     root -+- [The cat sat on] -+- [the mat .]      a partial page is a leaf
///           |                    +- [the mouse]
///           +- [The dog]                             hints: h(The cat sat on) -> its page
struct radix {
    using role = index_role;
    unsigned hash_bits = 64; ///< How much of a hash is used; with fewer, more pages are looked for in the tree.
    class state;
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const;
};

/// Cost: match O(n) expected, at most O(n log siblings); insert and erase O(page tokens * log siblings). 4 bytes a
/// token, 44 a page, all of it taken at the beginning.
class radix::state {
public:
    state(unsigned hash_bits, page_shape shape, std::size_t pages)
        : used_bits_(hash_bits >= 64 ? ~std::uint64_t{} : (std::uint64_t{1} << hash_bits) - 1),
          tree_(shape, pages),
          hints_(pages),
          hashes_(pages) {}

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const {
        index_match found;
        std::uint64_t hash = 0;
        const std::size_t length = tree_.page_tokens(), whole = tokens.size() / length;
        for (std::size_t first = 0; first < whole; first += ahead) {
            const std::size_t pages = std::min(ahead, whole - first);
            const auto run = [&](std::size_t i) { return tokens.subspan((first + i) * length, length); };
            std::array<std::uint64_t, ahead> hashes;
            std::array<std::uint32_t, ahead> hints;
            for (std::size_t i = 0; i < pages; ++i) {
                hashes[i] = hash = chain(hash, run(i));
                hints_.expect(hash);
            }
            for (std::size_t i = 0; i < pages; ++i)
                if (hints[i] = hints_.find(hashes[i]); hints[i] != none)
                    tree_.expect(hints[i]);
            if (first == 0 && hints[0] != none)
                found.pages.reserve(whole + 1);
            for (std::size_t i = 0; i < pages; ++i) {
                const std::uint32_t last = found.pages.empty() ? none : index_of(found.pages.back());
                if (hints[i] != none && tree_.continues(hints[i], last, run(i))) {
                    found.pages.push_back(page_id{hints[i]});
                    found.tokens += length;
                } else if (!tree_.step(found, run(i))) {
                    return found;
                }
            }
        }
        tree_.step(found, tokens.subspan(whole * length));
        return found;
    }

    /// Requires: the parent is in the index and full; the run has 1 to page-tokens tokens and, where the page is in the
    /// index already, begins with the page's run or is the beginning of it.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        const insertion done = tree_.insert(parent, tokens, page);
        if (done.what != insertion::outcome::covered && tree_.full(page)) {
            const std::uint64_t hash = chain(parent ? hashes_[index_of(*parent)] : 0, tokens);
            hashes_[index_of(page)] = hash;
            hints_.insert(hash, index_of(page));
        }
        return done;
    }

    /// Requires: the page is a leaf of the index.
    void erase(page_id page) {
        const bool hinted = tree_.full(page);
        tree_.erase(page);
        if (hinted)
            hints_.erase(hashes_[index_of(page)], index_of(page));
    }

    [[nodiscard]] bool contains(page_id page) const { return tree_.contains(page); }
    [[nodiscard]] bool leaf(page_id page) const { return tree_.leaf(page); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const { return tree_.parent(page); }

    /// The tokens a page holds for the index; empty for a page that is not in it.
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return tree_.run(page); }

private:
    static constexpr std::uint32_t none = page_tree::none;
    static_assert(none == page_hints::none);
    static constexpr std::size_t ahead = 16; // pages: about as many lines as a core can wait for at once

    [[nodiscard]] std::uint64_t chain(std::uint64_t past, std::span<const token_id> run) const {
        return seeded_hash(past, std::as_bytes(run)) & used_bits_;
    }

    std::uint64_t used_bits_;
    page_tree tree_;
    page_hints hints_;                  // full pages
    std::vector<std::uint64_t> hashes_; // by full page: of all tokens up to its end
};

inline radix::state radix::open(page_shape shape, std::size_t pages) const {
    return {hash_bits, shape, pages};
}

static_assert(index_policy<radix>);

} // namespace kvcache

// ---- kvcache/locking/unlocked.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// One thread at a time uses the cache; nothing is locked.
struct unlocked {
    using role = locking_role;
    struct state {
        void lock() noexcept {}
        void unlock() noexcept {}
    };
};

static_assert(locking_policy<unlocked>);

} // namespace kvcache

// ---- kvcache/observer/silent.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Watches nothing, at no cost.
struct silent {
    using role = observer_role;
    struct state {
        void on(const event&) noexcept {}
    };
    [[nodiscard]] state open() const { return {}; }
};

static_assert(observer_policy<silent>);

} // namespace kvcache

// ---- kvcache/recompute/exact_prefix.hpp ---------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Reuses the longest known prefix and runs the rest. A full hit is cut by one token, so that logits are always
/// computed, never stale. Exact: the result is the same bits as with nothing reused.
struct exact_prefix {
    using role = recompute_role;
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class exact_prefix::state {
public:
    [[nodiscard]] std::size_t first_rerun(std::size_t hit, std::size_t total) const noexcept {
        return total == 0 ? 0 : std::min(hit, total - 1);
    }
};

inline exact_prefix::state exact_prefix::open(page_shape) const {
    return {};
}

static_assert(recompute_policy<exact_prefix>);

} // namespace kvcache

// ---- kvcache/core/zeroed_memory.hpp -------------------------------------------------------------------------------

#include <sys/mman.h>

namespace kvcache::inline KVCACHE_ABI {

/// Memory of which every byte is zero. What is asked for on the boundary of a huge page comes straight from the system,
/// which clears it when it is first written to: whoever writes waits for that then, and nobody before. The rest is
/// cleared here. For any thread.
class zeroed_memory : public std::pmr::memory_resource {
public:
    /// The one that all share.
    [[nodiscard]] static zeroed_memory* shared() noexcept {
        static zeroed_memory all;
        return &all;
    }

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        if (alignment != huge_page_bytes)
            return std::memset(std::pmr::new_delete_resource()->allocate(bytes, alignment), 0, bytes);
        if (bytes > (std::numeric_limits<std::size_t>::max() >> 1))
            detail::throw_bad_alloc();
        // One huge page more, so that a boundary lies in it; what is not needed goes back.
        const std::size_t size = mapped(bytes), all = size + huge_page_bytes;
        void* const from = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (from == MAP_FAILED)
            detail::throw_bad_alloc();
        auto* const first = static_cast<std::byte*>(from);
        const std::size_t past = reinterpret_cast<std::uintptr_t>(from) % huge_page_bytes;
        const std::size_t before = past == 0 ? 0 : huge_page_bytes - past;
        if (before > 0)
            ::munmap(first, before);
        ::munmap(first + before + size, huge_page_bytes - before);
        return first + before;
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t alignment) override {
        if (alignment != huge_page_bytes)
            std::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
        else
            ::munmap(at, mapped(bytes));
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

    [[nodiscard]] static std::size_t mapped(std::size_t bytes) noexcept {
        return bytes / huge_page_bytes * huge_page_bytes + (bytes % huge_page_bytes > 0 ? huge_page_bytes : 0);
    }
};

} // namespace kvcache

// ---- kvcache/storage/heap.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Takes pages from a memory resource when they are first used, on a cache line and zeroed, and keeps them until the
/// cache closes. A large budget is taken in slabs of neighbouring pages, on huge pages where the system has them, none
/// of more than an eighth of it: a budget that is never filled is never allocated. Where no slab is to be had, single
/// pages are.
struct heap {
    using role = storage_role;
    std::pmr::memory_resource* resource = nullptr; ///< Where pages come from; null means the system: zeroed_memory.
    bool zeroed = false; ///< Whether all that the resource gives is zero already, so that no page is touched here.
    class state;
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

class heap::state {
public:
    state(std::pmr::memory_resource* resource, bool zeroed, std::size_t pages, std::size_t page_bytes)
        : resource_(resource),
          zeroed_(zeroed),
          page_bytes_(page_bytes),
          stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes),
          slab_pages_(pages_a_slab(pages, stride_)),
          pages_(pages, nullptr),
          slabs_(slab_pages_ == 0 ? 0 : (pages + slab_pages_ - 1) / slab_pages_) {}

    state(state&& other) noexcept
        : resource_(other.resource_),
          zeroed_(other.zeroed_),
          page_bytes_(other.page_bytes_),
          stride_(other.stride_),
          slab_pages_(other.slab_pages_),
          pages_(std::exchange(other.pages_, {})),
          slabs_(std::exchange(other.slabs_, {})) {}
    state& operator=(state&& other) noexcept {
        std::swap(resource_, other.resource_);
        std::swap(zeroed_, other.zeroed_);
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

    /// False if the resource has no memory left.
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

    void release(page_id) noexcept {}

    [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
        return {static_cast<std::byte*>(pages_[index_of(page)]), page_bytes_};
    }

private:
    struct slab {
        std::byte* memory = nullptr;
        bool refused = false; // once: its pages are then taken one by one
    };

    // Sixteen huge pages: what lies on small ones, at the end of a slab, is then a sixteenth at most. None for a budget
    // so small that its slabs would not fill two huge pages each.
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

    // Throws: std::bad_alloc, if neither a slab nor a page is to be had.
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

    std::pmr::memory_resource* resource_;
    bool zeroed_; // what it gives
    std::size_t page_bytes_;
    std::size_t stride_;     // from one page of a slab to the next, in bytes
    std::size_t slab_pages_; // 0: pages are taken one by one
    std::vector<void*> pages_;
    std::vector<slab> slabs_;
};

inline heap::state heap::open(std::size_t pages, std::size_t page_bytes) const {
    if (resource == nullptr)
        return {zeroed_memory::shared(), true, pages, page_bytes};
    return {resource, zeroed, pages, page_bytes};
}

static_assert(storage_policy<heap>);

} // namespace kvcache

// ---- kvcache/cache/compose.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

namespace detail {

// The policy among Ps that plays Role, or Standard when none does.
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

template <class... Ps>
struct compose {
    using type =
        basic_cache<typename slot<codec_role, plain, Ps...>::type, typename slot<storage_role, heap, Ps...>::type,
                    typename slot<hash_role, xxh3, Ps...>::type, typename slot<index_role, radix, Ps...>::type,
                    typename slot<eviction_role, reuse_forecast, Ps...>::type,
                    typename slot<recompute_role, exact_prefix, Ps...>::type,
                    typename slot<tier_role, no_tier, Ps...>::type, typename slot<observer_role, silent, Ps...>::type,
                    typename slot<locking_role, unlocked, Ps...>::type>;
};

template <class P, class... Ps>
inline constexpr bool alone = (0 + ... + int(plays<Ps, typename role_of<P>::type>)) == 1;

template <class T, class... Us>
inline constexpr bool one_of = (std::is_same_v<T, Us> || ...);

// The Wanted among the given policies, or one with its standard options.
template <class Wanted, class... Given>
[[nodiscard]] constexpr Wanted take(const std::tuple<Given...>& given) {
    if constexpr (one_of<Wanted, Given...>)
        return std::get<Wanted>(given);
    else
        return Wanted{};
}

template <class Cache>
struct opener;
template <class Codec, class Storage, class Hash, class Index, class Eviction, class Recompute, class Tier,
          class Observer, class Locking>
struct opener<basic_cache<Codec, Storage, Hash, Index, Eviction, Recompute, Tier, Observer, Locking>> {
    using cache = basic_cache<Codec, Storage, Hash, Index, Eviction, Recompute, Tier, Observer, Locking>;

    template <class... Given>
    [[nodiscard]] static cache open(std::size_t tenants, identity id, page_shape shape, budget limit,
                                    const std::tuple<Given...>& given) {
        return cache(tenants, std::move(id), shape, limit, take<Codec>(given), take<Storage>(given), take<Hash>(given),
                     take<Index>(given), take<Eviction>(given), take<Recompute>(given), take<Tier>(given),
                     take<Observer>(given));
    }
};

} // namespace detail

/// No two policies play one role.
template <class... Ps>
concept one_policy_a_role = (detail::alone<Ps, Ps...> && ...);

/// The cache made of these policies, in any order; a role left out keeps its standard policy.
template <policy... Ps>
    requires one_policy_a_role<Ps...>
using cache = typename detail::compose<Ps...>::type;

/// Opens a cache for pages of this shape, within a budget, from policies given by value in any order.
template <policy... Ps>
    requires one_policy_a_role<Ps...>
[[nodiscard]] typename detail::compose<Ps...>::type make_cache(page_shape shape, budget limit, Ps... policies) {
    return detail::opener<cache<Ps...>>::open(0, {}, shape, limit, std::tuple(std::move(policies)...));
}

/// The same for a model whose identity names everything that decides a page's bits.
template <policy... Ps>
    requires one_policy_a_role<Ps...>
[[nodiscard]] typename detail::compose<Ps...>::type make_cache(identity id, page_shape shape, budget limit,
                                                               Ps... policies) {
    return detail::opener<cache<Ps...>>::open(0, std::move(id), shape, limit, std::tuple(std::move(policies)...));
}

} // namespace kvcache

// ---- kvcache/eviction/lru.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The least recently used entry leaves first. Admission and every touch move an entry to the front of one queue; the
/// victim is the last that may leave. One that may not leave is in use now, so it moves to the front as it is met.
///
///     touch, admit -> [ newest ... oldest ] -> victim
struct lru {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 8 bytes a slot.
class lru::state {
public:
    explicit state(std::size_t slots) : queue_(slots, 1) {}

    void admit(slot_id slot, const entry&) {
        expects(!queue_.contains(slot), "an entry is admitted once");
        queue_.push_front(slot, 0);
    }

    void touch(slot_id slot) {
        expects(queue_.contains(slot), "a touched entry was admitted");
        queue_.move_to_front(slot, 0);
    }

    void settle(slot_id slot) { touch(slot); }

    void erase(slot_id slot) {
        expects(queue_.contains(slot), "an erased entry was admitted");
        queue_.remove(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        return queue_.oldest(0, may_leave);
    }

private:
    slot_queues queue_;
};

inline lru::state lru::open(eviction_room room) const {
    return state{room.slots};
}

static_assert(eviction_policy<lru>);

} // namespace kvcache

// ---- kvcache/locking/mutexed.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Any number of threads use the cache; one mutex guards its books. Pages are written and read outside of it.
struct mutexed {
    using role = locking_role;
    using state = std::mutex;
};

static_assert(locking_policy<mutexed>);

} // namespace kvcache

// ---- kvcache/cache.hpp --------------------------------------------------------------------------------------------

// The cache alone, with the standard policy of every role: pages, index, sequences, leases. Needs xxHash, and no Eigen,
// no xsimd, no compiler flag, no exceptions and no RTTI. A policy has a header of its own,
// <kvcache/eviction/s3_fifo.hpp>; all of a role are in <kvcache/eviction/all.hpp>.

// ---- kvcache/eviction/arc.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Two least-recently-used queues, of entries used once and of entries used again, share the room by a target that
/// learns. A newcomer whose ghost stayed from the first queue raises the target, one from the second lowers it, and
/// both join the second queue. The oldest of the first leaves while it is above the target, else the oldest of the
/// second; one that may not leave is in use now, so it moves to the front of its queue.
///
///     admit -> [ once  ] -> victim -> [ ghosts ] -- returns: target + --.
///                 '- touch -.                                           |
///     admit -> [ again ] <--+-> victim -> [ ghosts ] -- returns: - -----'-> again
///
/// Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003.
struct arc {
    using role = eviction_role;
    std::size_t step = 0; ///< Bytes by which a returning ghost moves the target at least; 0: those of its entry.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 25 bytes a slot and 16 a ghost, of
/// which there are at most two a slot.
class arc::state {
public:
    state(const arc& policy, eviction_room room)
        : queues_(room.slots, 2),
          entries_(room.slots),
          places_(room.slots),
          ghosts_{ghost_list(room.slots, room.bytes), ghost_list(room.slots, room.bytes)},
          room_(room.bytes),
          step_(policy.step) {}

    void announce(const entry& newcomer) {
        announced_ = newcomer.key;
        bytes_to_come_ = newcomer.bytes;
        returns_ = nowhere;
        const auto of_once = static_cast<double>(ghosts_[once].bytes());
        const auto of_again = static_cast<double>(ghosts_[again].bytes());
        const auto least = static_cast<double>(step_ > 0 ? step_ : newcomer.bytes);
        if (ghosts_[once].take(newcomer.key)) {
            returns_ = once;
            target_ = std::min(target_ + least * std::max(of_again / std::max(of_once, 1.0), 1.0),
                               static_cast<double>(room_));
        } else if (ghosts_[again].take(newcomer.key)) {
            returns_ = again;
            target_ = std::max(target_ - least * std::max(of_once / std::max(of_again, 1.0), 1.0), 0.0);
        }
    }

    void admit(slot_id slot, const entry& newcomer) {
        expects(!queues_.contains(slot), "an entry is admitted once");
        if (announced_ != newcomer.key)
            announce(newcomer);
        entries_[index_of(slot)] = {newcomer.key, newcomer.bytes};
        enter(slot, returns_ == nowhere ? once : again);
        announced_.reset();
        returns_ = nowhere;
    }

    void touch(slot_id slot) {
        expects(queues_.contains(slot), "a touched entry was admitted");
        leave(slot);
        enter(slot, again);
    }

    void settle(slot_id slot) {
        expects(queues_.contains(slot), "a settled entry was admitted");
        queues_.move_to_front(slot, places_[index_of(slot)]);
    }

    void erase(slot_id slot) {
        expects(queues_.contains(slot), "an erased entry was admitted");
        leave(slot);
    }

    void evict(slot_id slot) {
        expects(queues_.contains(slot), "an evicted entry was admitted");
        const bool without_ghost = places_[index_of(slot)] == once && all_are_once();
        if (returns_ == nowhere) {
            if (first_is_full()) {
                if (ghosts_[once].size() > 0)
                    ghosts_[once].pop();
            } else if (bytes_[once] + bytes_[again] + ghosts_[once].bytes() + ghosts_[again].bytes() >= 2 * room_) {
                if (ghosts_[again].size() > 0)
                    ghosts_[again].pop();
            }
        }
        leave(slot);
        const auto [key, bytes] = entries_[index_of(slot)];
        if (!without_ghost && !ghosts_[once].contains(key) && !ghosts_[again].contains(key))
            ghosts_[places_[index_of(slot)]].push(key, {.bytes = bytes});
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        const auto of_once = static_cast<double>(bytes_[once]);
        const bool from_once = !queues_.empty(once) && (all_are_once() || queues_.empty(again) || of_once > target_ ||
                                                        (of_once == target_ && returns_ == again));
        if (const auto found = queues_.oldest(from_once ? once : again, may_leave))
            return found;
        return queues_.oldest(from_once ? again : once, may_leave);
    }

private:
    static constexpr std::uint8_t once = 0, again = 1, nowhere = 2;
    struct known {
        std::uint64_t key = 0;
        std::size_t bytes = 0;
    };

    // The first queue and its ghosts would fill the room with the newcomer.
    [[nodiscard]] bool first_is_full() const { return bytes_[once] + ghosts_[once].bytes() + bytes_to_come_ > room_; }
    [[nodiscard]] bool all_are_once() const {
        return returns_ == nowhere && first_is_full() && ghosts_[once].size() == 0;
    }

    void enter(slot_id slot, std::uint8_t queue) {
        queues_.push_front(slot, queue);
        places_[index_of(slot)] = queue;
        bytes_[queue] += entries_[index_of(slot)].bytes;
    }

    void leave(slot_id slot) {
        queues_.remove(slot);
        bytes_[places_[index_of(slot)]] -= entries_[index_of(slot)].bytes;
    }

    slot_queues queues_;
    std::vector<known> entries_;
    std::vector<std::uint8_t> places_;
    ghost_list ghosts_[2];
    std::size_t bytes_[2] = {};
    std::size_t room_;
    std::size_t step_;
    double target_ = 0.0; // bytes of the first queue
    std::optional<std::uint64_t> announced_;
    std::size_t bytes_to_come_ = 0;
    std::uint8_t returns_ = nowhere; // the queue whose ghost the announced newcomer was
};

inline arc::state arc::open(eviction_room room) const {
    return state{*this, room};
}

static_assert(eviction_policy<arc>);

} // namespace kvcache

// ---- kvcache/eviction/clock.hpp -----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// First in, first out, with another round for each use. A touch counts up to 2^bits - 1; an entry that is met at the
/// end with a count loses one and queues up anew, one without leaves. One that may not leave queues up anew as well.
///
///     admit -> [ newest ... oldest ] -> count 0: victim
///                ^----- count - 1 -----'
///
/// Corbato, "A paging experiment with the Multics system", 1968; with more bits, FIFO-Reinsertion.
struct clock {
    using role = eviction_role;
    std::uint32_t bits = 1; ///< Of the count, 1 to 6.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 9 bytes a slot.
class clock::state {
public:
    state(const clock& policy, std::size_t slots)
        : queue_(slots, 1), counts_(slots), most_(static_cast<std::uint8_t>((1u << policy.bits) - 1)) {
        expects(policy.bits >= 1 && policy.bits <= 6, "clock counts in 1 to 6 bits");
    }

    void admit(slot_id slot, const entry&) {
        expects(!queue_.contains(slot), "an entry is admitted once");
        queue_.push_front(slot, 0);
        counts_[index_of(slot)] = fresh;
    }

    void touch(slot_id slot) {
        expects(queue_.contains(slot), "a touched entry was admitted");
        std::uint8_t& count = counts_[index_of(slot)];
        if ((count & uses) < most_)
            ++count;
    }

    void settle(slot_id slot) {
        expects(queue_.contains(slot), "a settled entry was admitted");
        if ((counts_[index_of(slot)] & fresh) != 0) // it has come now: a chain queues tail first
            queue_.move_to_front(slot, 0);
        counts_[index_of(slot)] &= uses;
    }

    void erase(slot_id slot) {
        expects(queue_.contains(slot), "an erased entry was admitted");
        queue_.remove(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        // After most_ rounds every count is zero, and the next one asks every entry.
        for (std::size_t met = 0; met < queue_.slots() * (most_ + 1u) && !queue_.empty(0); ++met) {
            const slot_id oldest = queue_.back(0);
            std::uint8_t& count = counts_[index_of(oldest)];
            if ((count & uses) == 0 && may_leave(oldest))
                return oldest;
            if ((count & uses) != 0)
                --count;
            queue_.move_to_front(oldest, 0);
        }
        return std::nullopt;
    }

private:
    static constexpr std::uint8_t fresh = 0x80; // nobody has let go of it yet
    static constexpr std::uint8_t uses = 0x7f;

    slot_queues queue_;
    std::vector<std::uint8_t> counts_;
    std::uint8_t most_;
};

inline clock::state clock::open(eviction_room room) const {
    return state{*this, room.slots};
}

static_assert(eviction_policy<clock>);

} // namespace kvcache

// ---- kvcache/eviction/slot_heap.hpp -------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Slots by a rank that can change, the lowest first; of one rank, the one that has had it longest. A binary heap that
/// knows where each slot stands. A slot can be set aside: it keeps its rank and does not come out.
///
/// Cost: O(log n) each. 20 bytes a slot.
class slot_heap {
public:
    explicit slot_heap(std::size_t slots) : heap_(slots), places_(slots, nowhere), ranks_(slots), turns_(slots) {}

    /// Slots that are not set aside.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] bool contains(slot_id slot) const noexcept { return places_[index_of(slot)] != nowhere; }
    [[nodiscard]] double rank(slot_id slot) const noexcept { return ranks_[index_of(slot)]; }

    /// The slot at a place of the heap, the lowest at 0; the others are in no order of use to a caller but exist once
    /// each, unless set aside. Requires: place < size().
    [[nodiscard]] slot_id at(std::size_t place) const noexcept { return slot_id{heap_[place]}; }

    /// Whether `a` comes out before `b`.
    [[nodiscard]] bool before(slot_id a, slot_id b) const noexcept { return before(index_of(a), index_of(b)); }

    /// Enters a slot, or gives it another rank.
    void rank(slot_id slot, double rank) noexcept {
        const std::uint32_t at = index_of(slot);
        ranks_[at] = rank;
        turns_[at] = turn_++;
        if (places_[at] == nowhere)
            enter(at);
        else if (places_[at] != aside)
            sink(rise(places_[at]));
    }

    /// Requires: the slot is in the heap.
    void remove(slot_id slot) noexcept {
        if (places_[index_of(slot)] != aside)
            take_out(index_of(slot));
        places_[index_of(slot)] = nowhere;
    }

    /// Requires: the slot is in the heap.
    void set_aside(slot_id slot) noexcept {
        if (places_[index_of(slot)] != aside)
            take_out(index_of(slot));
        places_[index_of(slot)] = aside;
    }

    /// Puts a slot back that was set aside.
    void put_back(slot_id slot) noexcept {
        if (places_[index_of(slot)] == aside)
            enter(index_of(slot));
    }

private:
    static constexpr std::uint32_t nowhere = 0xffffffffu, aside = 0xfffffffeu;

    void enter(std::uint32_t slot) noexcept {
        heap_[size_] = slot;
        places_[slot] = size_;
        rise(size_++);
    }

    void take_out(std::uint32_t slot) noexcept {
        const std::uint32_t place = places_[slot];
        swap(place, --size_);
        if (place < size_)
            sink(rise(place));
    }

    // Turns may wrap: of two, the earlier is the one that the other is less than 2^31 turns ahead of.
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
    std::vector<std::uint32_t> places_; // by slot: in the heap
    std::vector<double> ranks_;         // by slot
    std::vector<std::uint32_t> turns_;  // by slot: when it got its rank
    std::uint32_t size_ = 0;
    std::uint32_t turn_ = 0;
};

} // namespace kvcache

// ---- kvcache/eviction/greedy_dual.hpp -----------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Slots ranked by a clock and their worth: a slot is ranked at the clock's time plus its worth, the lowest leaves, and
/// the clock moves on to the rank of what left. So worth that is not renewed loses to newcomers in time.
///
/// Cao and Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997.
///
/// Cost: O(log n) each; a search without refusals O(1). 20 bytes a slot.
class greedy_dual {
public:
    explicit greedy_dual(std::size_t slots) : heap_(slots) {}

    [[nodiscard]] bool contains(slot_id slot) const noexcept { return heap_.contains(slot); }

    /// Enters a slot, or says that it is worth this much as of now.
    void rank(slot_id slot, double worth) noexcept { heap_.rank(slot, clock_ + worth); }

    /// Requires: the slot is ranked, as in all below.
    void remove(slot_id slot) noexcept { heap_.remove(slot); }

    /// A slot that cannot leave keeps its rank, and none is met that cannot leave.
    void cover(slot_id slot) noexcept { heap_.set_aside(slot); }
    void uncover(slot_id slot) noexcept { heap_.put_back(slot); }

    /// Removes a victim, and moves the clock.
    void evict(slot_id slot) noexcept {
        clock_ = heap_.rank(slot);
        heap_.remove(slot);
    }

    /// The lowest that may leave. One that may not is in use now: it is ranked anew, as if the clock stood at its rank.
    template <class MayLeave, class Worth>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave, Worth&& worth) {
        for (std::size_t met = 0; met < heap_.size(); ++met) {
            const slot_id lowest = heap_.at(0);
            if (may_leave(lowest))
                return lowest;
            heap_.rank(lowest, heap_.rank(lowest) + worth(lowest));
        }
        // Entries of little worth may have been met again before one of great worth was met at all.
        std::optional<slot_id> found;
        for (std::size_t place = 0; place < heap_.size(); ++place)
            if (const slot_id slot = heap_.at(place); (!found || heap_.before(slot, *found)) && may_leave(slot))
                found = slot;
        return found;
    }

private:
    slot_heap heap_;
    double clock_ = 0.0;
};

} // namespace kvcache

// ---- kvcache/eviction/cost_aware.hpp ------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// An entry is worth the time that its next hit is expected to save, by its bytes; each hit ranks it anew. A hit saves
/// the entry's cost, given that its parent is present, so that depth as such makes nothing dearer; how likely one is
/// was learned from what became of the entries that had as many uses before, and age weighs it down as in gdsf. The
/// lowest leaves; one that may not leave is ranked anew, as if it had just been used; one that others continue is not
/// met.
///
///     rank = clock + chance of a hit after so many uses * cost / bytes
///
/// The cost is the caller's, in seconds on its own machine. Cherkasova's greedy dual size frequency (HP Labs 1998) with
/// the reuse learned per class as in "KVCache cache in the wild", USENIX ATC 2025, and the cost as in Marconi, MLSys
/// 2025.
struct cost_aware {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(log n) each; victim amortised, while a fixed share of the entries may leave. 25 bytes a slot.
class cost_aware::state {
public:
    explicit state(std::size_t slots) : ranks_(slots), savings_(slots), uses_(slots) { seen_.fill({1.0, 1.0}); }

    void admit(slot_id slot, const entry& newcomer) {
        expects(!ranks_.contains(slot), "an entry is admitted once");
        uses_[index_of(slot)] = 1;
        savings_[index_of(slot)] =
            static_cast<float>(newcomer.cost / static_cast<double>(std::max<std::size_t>(newcomer.bytes, 1)));
        ranks_.rank(slot, worth(slot));
    }

    void touch(slot_id slot) {
        expects(ranks_.contains(slot), "a touched entry was admitted");
        std::uint8_t& uses = uses_[index_of(slot)];
        learn(uses, 1.0, 0.0);
        uses = static_cast<std::uint8_t>(std::min(uses + 1, 255));
        ranks_.rank(slot, worth(slot));
    }

    void settle(slot_id slot) {
        expects(ranks_.contains(slot), "a settled entry was admitted");
        ranks_.rank(slot, worth(slot));
    }

    void cover(slot_id slot) {
        expects(ranks_.contains(slot), "a covered entry was admitted");
        ranks_.cover(slot);
    }
    void uncover(slot_id slot) {
        expects(ranks_.contains(slot), "an uncovered entry was admitted");
        ranks_.uncover(slot);
    }

    void erase(slot_id slot) {
        expects(ranks_.contains(slot), "an erased entry was admitted");
        ranks_.remove(slot);
    }

    void evict(slot_id slot) {
        expects(ranks_.contains(slot), "an evicted entry was admitted");
        learn(uses_[index_of(slot)], 0.0, 1.0);
        ranks_.evict(slot);
    }

    /// How likely an entry of so many uses is to be used again before it leaves.
    [[nodiscard]] double chance_of_hit(std::uint32_t uses) const {
        const outcomes& seen = seen_[group(uses)];
        return seen.hits / (seen.hits + seen.leaves);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        return ranks_.victim(may_leave, [this](slot_id slot) { return worth(slot); });
    }

private:
    struct outcomes {
        double hits = 1.0;
        double leaves = 1.0;
    };

    // 1, 2, 3, 4 to 7, 8 to 15 ... uses
    [[nodiscard]] static std::size_t group(std::uint32_t uses) {
        return uses < 4 ? uses - 1 : static_cast<std::size_t>(std::bit_width(uses));
    }

    void learn(std::uint32_t uses, double hits, double leaves) {
        outcomes& seen = seen_[group(uses)];
        seen.hits += hits;
        seen.leaves += leaves;
        if (seen.hits + seen.leaves > 4096.0) { // the last few thousand count
            seen.hits *= 0.5;
            seen.leaves = std::max(0.5 * seen.leaves, 1.0);
        }
    }

    [[nodiscard]] double worth(slot_id slot) const {
        return chance_of_hit(uses_[index_of(slot)]) * static_cast<double>(savings_[index_of(slot)]);
    }

    greedy_dual ranks_;
    std::vector<float> savings_; // seconds a byte
    std::vector<std::uint8_t> uses_;
    std::array<outcomes, 9> seen_ = {}; // by group of uses
};

inline cost_aware::state cost_aware::open(eviction_room room) const {
    return state{room.slots};
}

static_assert(eviction_policy<cost_aware>);

} // namespace kvcache

// ---- kvcache/eviction/expiring.hpp --------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Milliseconds of the machine's steady clock.
struct steady_milliseconds {
    [[nodiscard]] std::uint64_t operator()() const noexcept {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
    }
};

/// Says what time it is, in milliseconds that never go back.
template <class C>
concept millisecond_clock = requires(const C clock) {
    { clock() } -> std::convertible_to<std::uint64_t>;
};

/// What nobody has used for a time leaves first; while there is no such entry, another policy decides. Who wants to
/// take expired entries away before their room is needed asks for them. One that may not leave is in use now: its time
/// starts anew as it is met.
///
///     touch, settle, admit -> [ newest ... oldest ] -> expired: victim
///                             [ Inner             ] -> else its victim
///
///     expiring<s3_fifo>{.milliseconds = 300'000}
template <eviction_policy Inner = lru, millisecond_clock Clock = steady_milliseconds>
struct expiring {
    using role = eviction_role;
    Inner inner = {};
    std::uint32_t milliseconds = 300'000; ///< Five minutes, as prompt caches of public services do; below 2^31.
    Clock clock = {};
    class state;
    [[nodiscard]] state open(eviction_room room) const { return state{*this, room}; }
};

/// Cost: that of Inner, and O(1) each. Inner's bytes a slot, and 12.
template <eviction_policy Inner, millisecond_clock Clock>
class expiring<Inner, Clock>::state {
public:
    state(const expiring& policy, eviction_room room)
        : inner_(policy.inner.open(room)),
          clock_(policy.clock),
          queue_(room.slots, 1),
          times_(room.slots),
          lifetime_(policy.milliseconds) {}

    void announce(const entry& newcomer) { kvcache::announce(inner_, newcomer); }

    void admit(slot_id slot, const entry& newcomer) {
        inner_.admit(slot, newcomer);
        queue_.push_front(slot, 0);
        times_[index_of(slot)] = now();
    }

    void touch(slot_id slot) {
        inner_.touch(slot);
        renew(slot);
    }

    void settle(slot_id slot) {
        kvcache::settle(inner_, slot);
        renew(slot);
    }

    void cover(slot_id slot) { kvcache::cover(inner_, slot); }
    void uncover(slot_id slot) { kvcache::uncover(inner_, slot); }

    void erase(slot_id slot) {
        inner_.erase(slot);
        queue_.remove(slot);
    }

    void evict(slot_id slot) {
        kvcache::evict(inner_, slot);
        queue_.remove(slot);
    }

    /// The next that may leave because its time is over.
    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> expired(MayLeave&& may_leave) {
        for (std::size_t met = 0; met < queue_.slots() && !queue_.empty(0); ++met) {
            const slot_id oldest = queue_.back(0);
            if (now() - times_[index_of(oldest)] < lifetime_)
                return std::nullopt;
            if (may_leave(oldest))
                return oldest;
            renew(oldest);
        }
        return std::nullopt;
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        if (const auto found = expired(may_leave))
            return found;
        return inner_.victim(may_leave);
    }

private:
    // Times may wrap: an entry's age does not, while it is below 49 days.
    [[nodiscard]] std::uint32_t now() const { return static_cast<std::uint32_t>(clock_()); }

    void renew(slot_id slot) {
        queue_.move_to_front(slot, 0);
        times_[index_of(slot)] = now();
    }

    decltype(std::declval<const Inner&>().open(eviction_room{})) inner_;
    Clock clock_;
    slot_queues queue_;                // in the order of use
    std::vector<std::uint32_t> times_; // of use
    std::uint32_t lifetime_;
};

static_assert(eviction_policy<expiring<lru>>);

} // namespace kvcache

// ---- kvcache/eviction/fifo.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The entry that came first leaves first, used or not. It has come when its first holder lets go, so that a chain
/// queues tail first and leaves so. One that may not leave queues up anew as it is met.
///
///     admit, first settle -> [ newest ... oldest ] -> victim
struct fifo {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 9 bytes a slot.
class fifo::state {
public:
    explicit state(std::size_t slots) : queue_(slots, 1), settled_(slots) {}

    void admit(slot_id slot, const entry&) {
        expects(!queue_.contains(slot), "an entry is admitted once");
        queue_.push_front(slot, 0);
        settled_[index_of(slot)] = 0;
    }

    void touch([[maybe_unused]] slot_id slot) { expects(queue_.contains(slot), "a touched entry was admitted"); }

    void settle(slot_id slot) {
        expects(queue_.contains(slot), "a settled entry was admitted");
        if (settled_[index_of(slot)] == 0)
            queue_.move_to_front(slot, 0);
        settled_[index_of(slot)] = 1;
    }

    void erase(slot_id slot) {
        expects(queue_.contains(slot), "an erased entry was admitted");
        queue_.remove(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        return queue_.oldest(0, may_leave);
    }

private:
    slot_queues queue_;
    std::vector<std::uint8_t> settled_; // whether it has been let go once
};

inline fifo::state fifo::open(eviction_room room) const {
    return state{room.slots};
}

static_assert(eviction_policy<fifo>);

} // namespace kvcache

// ---- kvcache/eviction/gdsf.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Greedy dual size frequency: an entry's worth is its uses times its cost, by its bytes, counted from a clock that
/// moves on to the rank of each entry that leaves. The lowest rank leaves. One that may not leave is ranked anew, as if
/// it had just come with the uses it has; one that others continue keeps its rank and is not met.
///
///     rank = clock + uses * cost / bytes
///
/// With one cost and one size this is LFU with dynamic aging. Cherkasova, "Improving WWW proxies performance with
/// greedy dual size frequency caching policy", HP Labs 1998.
struct gdsf {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(log n) each; victim amortised, while a fixed share of the entries may leave. 32 bytes a slot.
class gdsf::state {
public:
    explicit state(std::size_t slots) : ranks_(slots), uses_(slots), costs_(slots), bytes_(slots) {}

    void admit(slot_id slot, const entry& newcomer) {
        expects(!ranks_.contains(slot), "an entry is admitted once");
        const std::uint32_t at = index_of(slot);
        uses_[at] = 1;
        costs_[at] = static_cast<float>(newcomer.cost);
        bytes_[at] = static_cast<float>(newcomer.bytes);
        ranks_.rank(slot, worth(slot));
    }

    void touch(slot_id slot) {
        expects(ranks_.contains(slot), "a touched entry was admitted");
        ++uses_[index_of(slot)];
        ranks_.rank(slot, worth(slot));
    }

    void settle(slot_id slot) {
        expects(ranks_.contains(slot), "a settled entry was admitted");
        ranks_.rank(slot, worth(slot));
    }

    void cover(slot_id slot) {
        expects(ranks_.contains(slot), "a covered entry was admitted");
        ranks_.cover(slot);
    }
    void uncover(slot_id slot) {
        expects(ranks_.contains(slot), "an uncovered entry was admitted");
        ranks_.uncover(slot);
    }

    void erase(slot_id slot) {
        expects(ranks_.contains(slot), "an erased entry was admitted");
        ranks_.remove(slot);
    }

    void evict(slot_id slot) {
        expects(ranks_.contains(slot), "an evicted entry was admitted");
        ranks_.evict(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        return ranks_.victim(may_leave, [this](slot_id slot) { return worth(slot); });
    }

private:
    [[nodiscard]] double worth(slot_id slot) const {
        const std::uint32_t at = index_of(slot);
        return static_cast<double>(uses_[at]) * static_cast<double>(costs_[at]) / static_cast<double>(bytes_[at]);
    }

    greedy_dual ranks_;
    std::vector<std::uint32_t> uses_;
    std::vector<float> costs_;
    std::vector<float> bytes_;
};

inline gdsf::state gdsf::open(eviction_room room) const {
    return state{room.slots};
}

static_assert(eviction_policy<gdsf>);

} // namespace kvcache

// ---- kvcache/eviction/lfu.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The least often used entry leaves first; of those used equally often, the least recently used. Uses count up to 255.
/// With a history the count of one that left is remembered by a ghost, and goes on where it stopped when it returns.
/// One that may not leave is in use now, so it moves to the front of its queue.
///
///     admit -> [ used once ] -> victim -> [ ghosts ]
///       touch: [ twice     ]                  |
///              [ ...       ] <-- returns -----'
struct lfu {
    using role = eviction_role;
    double history = 0.0; ///< Ghosts a slot.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 9 bytes a slot; with a history 17,
/// and 21 a ghost.
class lfu::state {
public:
    state(const lfu& policy, std::size_t slots)
        : queues_(slots, most + 1),
          counts_(slots),
          keys_(policy.history > 0 ? slots : 0),
          ghosts_(static_cast<std::size_t>(static_cast<double>(slots) * policy.history), 0, ghost_list::marks::kept) {}

    void admit(slot_id slot, const entry& newcomer) {
        expects(!queues_.contains(slot), "an entry is admitted once");
        std::uint32_t count = 1;
        if (!keys_.empty()) {
            keys_[index_of(slot)] = newcomer.key;
            if (const auto returns = ghosts_.take(newcomer.key))
                count = std::min(returns->mark + 1, most);
        }
        enter(slot, count);
    }

    void touch(slot_id slot) {
        expects(queues_.contains(slot), "a touched entry was admitted");
        const std::uint32_t count = counts_[index_of(slot)];
        leave(slot);
        enter(slot, std::min(count + 1, most));
    }

    void settle(slot_id slot) {
        expects(queues_.contains(slot), "a settled entry was admitted");
        queues_.move_to_front(slot, counts_[index_of(slot)]);
    }

    void erase(slot_id slot) {
        expects(queues_.contains(slot), "an erased entry was admitted");
        leave(slot);
    }

    void evict(slot_id slot) {
        erase(slot);
        if (keys_.empty())
            return;
        ghosts_.take(keys_[index_of(slot)]); // of an entry of the same key
        ghosts_.push(keys_[index_of(slot)], {.mark = counts_[index_of(slot)]});
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        for (std::uint32_t word = 0; word < 4; ++word)
            for (std::uint64_t left = filled_[word]; left != 0; left &= left - 1)
                if (const auto found =
                        queues_.oldest(64 * word + static_cast<std::uint32_t>(std::countr_zero(left)), may_leave))
                    return found;
        return std::nullopt;
    }

private:
    static constexpr std::uint32_t most = 255;

    void enter(slot_id slot, std::uint32_t count) {
        counts_[index_of(slot)] = static_cast<std::uint8_t>(count);
        queues_.push_front(slot, count);
        filled_[count / 64] |= std::uint64_t{1} << count % 64;
    }

    void leave(slot_id slot) {
        const std::uint32_t count = counts_[index_of(slot)];
        queues_.remove(slot);
        if (queues_.empty(count))
            filled_[count / 64] &= ~(std::uint64_t{1} << count % 64);
    }

    slot_queues queues_; // by count
    std::vector<std::uint8_t> counts_;
    std::vector<std::uint64_t> keys_;
    ghost_list ghosts_;            // marked with their counts
    std::uint64_t filled_[4] = {}; // a bit a queue
};

inline lfu::state lfu::open(eviction_room room) const {
    return state{*this, room.slots};
}

static_assert(eviction_policy<lfu>);

} // namespace kvcache

// ---- kvcache/eviction/hit_density.hpp -----------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The hits that an entry can expect by the time it will stay, by its group and age: learned from the ages at which
/// entries were hit and left, in histograms that decay. Time is counted in uses, ages in steps of a power of two of
/// them.
///
///     density(age) = hits at `age` and later / sum over the events at `age` and later of the age that is to come
///
/// Beckmann, Chen and Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018.
///
/// Cost: O(1) each, amortised. 192 bytes an age, and an age for 32 slots, at least 256 and at most 4,096.
class hit_density {
public:
    explicit hit_density(std::size_t slots)
        : ages_(static_cast<std::uint32_t>(std::clamp<std::size_t>(slots / 32, 256, 4096))),
          period_(static_cast<std::uint32_t>(std::clamp<std::size_t>(std::bit_ceil(slots) * 16, 1u << 10, 1u << 20))),
          hits_(std::size_t{groups} * ages_),
          leaves_(std::size_t{groups} * ages_),
          densities_(std::size_t{groups} * ages_),
          shift_(steps(slots)) {
        for (std::uint32_t g = 0; g < groups; ++g) // about greedy dual size frequency, until something is learned
            for (std::uint32_t a = 0; a < ages_; ++a)
                densities_[g * ages_ + a] = static_cast<float>(groups + g + 1) / static_cast<float>(a + 1);
    }

    /// How many ages are told apart; the greatest stands for all beyond it.
    [[nodiscard]] std::uint16_t ages() const noexcept { return static_cast<std::uint16_t>(ages_); }

    /// Whether little has been learned yet.
    [[nodiscard]] bool young() const noexcept { return rounds_ < 50; }

    [[nodiscard]] std::uint32_t now() const noexcept { return now_; }

    /// The age of what was used `then`.
    [[nodiscard]] std::uint16_t age(std::uint32_t then) const noexcept {
        return static_cast<std::uint16_t>(std::min((now_ - then) >> shift_, ages_ - 1));
    }

    /// The group of entries whose last two ages sum up to this: by powers of two, the shortest highest.
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
    void left(std::uint32_t group, std::uint16_t age) noexcept { leaves_[group * ages_ + age] += 1.0f; }

    /// A use has passed, with so many entries present. Learns from time to time.
    void pass(std::uint32_t entries) noexcept {
        if (++now_ % period_ != 0)
            return;
        for (float& count : hits_)
            count *= decay;
        for (float& count : leaves_)
            count *= decay;
        // Twice, near the start, when it is known how many entries the room holds.
        if (rounds_ == 5 || rounds_ == 25)
            rescale(steps(entries));
        ++rounds_;
        learn();
    }

private:
    static constexpr std::uint32_t groups = 16;
    static constexpr float decay = 0.9f; // the paper's

    // The power of two of uses that is a step, so that all ages reach as far as 32 to 64 uses an entry.
    [[nodiscard]] std::uint32_t steps(std::size_t entries) const noexcept {
        return static_cast<std::uint32_t>(std::bit_width(std::max<std::size_t>(32 * entries / ages_, 1))) - 1;
    }

    void learn() noexcept {
        for (std::uint32_t g = 0; g < groups; ++g) {
            const std::size_t first = std::size_t{g} * ages_;
            float hits = 0.0f, events = 0.0f, time = 0.0f;
            for (std::size_t at = first + ages_; at-- > first;) {
                hits += hits_[at];
                events += hits_[at] + leaves_[at];
                time += events;
                densities_[at] = events > 1e-5f ? hits / time : 0.0f;
            }
        }
    }

    // Ages in other steps: counts move to the age that now stands for theirs.
    void rescale(std::uint32_t shift) noexcept {
        for (std::vector<float>* counts : {&hits_, &leaves_})
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
    std::uint32_t period_;                         // uses between two lessons
    std::vector<float> hits_, leaves_, densities_; // (groups, ages)
    std::uint32_t shift_;                          // of uses to ages
    std::uint32_t now_ = 0;
    std::uint32_t rounds_ = 0;
};

} // namespace kvcache

// ---- kvcache/eviction/lhd.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Least hit density: of a sample of entries, the one leaves that expects the fewest hits for the room and time that it
/// will take. The expectation is learned from the ages at which entries were hit and left, by class of how soon they
/// were hit before. A few entries are spared to see what would have become of them, and newcomers of little worth stand
/// in every sample for a while; those that may not leave do not stand in it, and those that others continue are not
/// drawn.
///
///     8, later 32 entries at random + 8 newcomers -> lowest hits / (age to come * bytes): victim
///
/// Beckmann, Chen and Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018.
struct lhd {
    using role = eviction_role;
    std::uint64_t seed = 1; ///< Of the samples.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each, while a fixed share of the entries may leave; O(n) where a whole sample may not. At most 32 bytes a
/// slot, and 50 KB.
class lhd::state {
public:
    state(const lhd& policy, eviction_room room)
        : entries_(room.slots),
          places_(room.slots, nowhere),
          sampled_(room.slots),
          densities_(room.slots),
          explorer_budget_(static_cast<double>(room.bytes) * 0.01), // the paper's
          random_(policy.seed) {}

    void admit(slot_id slot, const entry& newcomer) {
        expects(places_[index_of(slot)] == nowhere, "an entry is admitted once");
        enter(index_of(slot));
        ++present_;
        entries_[index_of(slot)] = {.bytes = static_cast<float>(newcomer.bytes), .before = densities_.ages()};
        const bool spared = use(slot);
        if (!spared && density(slot) < victims_density_)
            newcomers_[next_newcomer_++ % newcomers_.size()] = slot;
    }

    void touch(slot_id slot) {
        expects(places_[index_of(slot)] != nowhere, "a touched entry was admitted");
        known& one = entries_[index_of(slot)];
        const std::uint16_t age = densities_.age(one.used);
        densities_.hit(group(one), age);
        give_up_sparing(one);
        one.before = one.last;
        one.last = age;
        use(slot);
    }

    void cover(slot_id slot) {
        expects(places_[index_of(slot)] != nowhere, "a covered entry was admitted");
        take_out(index_of(slot));
        places_[index_of(slot)] = covered;
    }

    void uncover(slot_id slot) {
        expects(places_[index_of(slot)] != nowhere, "an uncovered entry was admitted");
        if (places_[index_of(slot)] == covered)
            enter(index_of(slot));
    }

    void erase(slot_id slot) {
        expects(places_[index_of(slot)] != nowhere, "an erased entry was admitted");
        give_up_sparing(entries_[index_of(slot)]);
        take_out(index_of(slot));
        places_[index_of(slot)] = nowhere;
        --present_;
    }

    void evict(slot_id slot) {
        expects(places_[index_of(slot)] != nowhere, "an evicted entry was admitted");
        const known& one = entries_[index_of(slot)];
        densities_.left(group(one), densities_.age(one.used));
        erase(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        std::optional<slot_id> found;
        float lowest = std::numeric_limits<float>::max();
        const auto consider = [&](slot_id slot) {
            if (const float here = density(slot); (!found || here < lowest) && may_leave(slot)) {
                found = slot;
                lowest = here;
            }
        };
        const std::uint32_t samples = densities_.young() ? 8 : 32; // few, to learn fast from mistakes
        if (count_ > samples) {
            std::array<std::uint32_t, 32> drawn; // places, then slots: all are on their way before the first is read
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
        std::uint32_t used = 0;   // when
        std::uint16_t last = 0;   // the age at the last hit, zero before the first
        std::uint16_t before = 0; // at the one before, the greatest age if there was none
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

    // Starts an age. One in 32 is spared while their budget lasts: says whether it would be.
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

    void enter(std::uint32_t slot) {
        places_[slot] = count_;
        sampled_[count_++] = slot;
    }

    void take_out(std::uint32_t slot) {
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
    std::vector<std::uint32_t> places_;  // by slot: among the sampled, or covered
    std::vector<std::uint32_t> sampled_; // slots without gaps
    hit_density densities_;
    std::array<std::optional<slot_id>, 8> newcomers_ = {};
    std::size_t next_newcomer_ = 0;
    float victims_density_ = 0.0f; // a mean that decays
    double explorer_budget_;       // bytes that may be spared
    std::uint64_t random_;
    std::uint32_t count_ = 0;   // of the sampled
    std::uint32_t present_ = 0; // and of the covered
};

inline lhd::state lhd::open(eviction_room room) const {
    return state{*this, room};
}

static_assert(eviction_policy<lhd>);

} // namespace kvcache

// ---- kvcache/eviction/lirs.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Entries used at short intervals are kept, and the others pass through a small queue whose oldest leaves. An interval
/// is short if the entry was used before since the longest-idle kept one was: then it joins the kept ones, and the
/// longest idle of them go to the queue instead. Ghosts of what left the queue take part until they are older than
/// every kept entry, or all together stand for more than twice the room.
///
///     used twice -> [ kept: newest ... idle ] --.      recent: used since the idle one was
///     admit ------> [ passing: newest ... oldest ] <-' -> victim -> [ ghosts, while recent ]
///     touch, or return, while recent: -> kept
///
/// Where one that may not leave is the oldest, it moves to the front of its queue. Jiang and Zhang, "LIRS: an efficient
/// low inter-reference recency set replacement policy", SIGMETRICS 2002. There the recent ones stand in a stack that is
/// pruned from below; here their last use is compared with that of the idle one, which says the same.
struct lirs {
    using role = eviction_role;
    double passing_fraction = 0.01; ///< The share of the room that is passed through.
    bool eager_demotion = false;    ///< A touch that is not recent makes room among the kept, as in libCacheSim.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 29 bytes a slot and 21 a ghost, of
/// which there is at most one a slot.
class lirs::state {
public:
    state(const lirs& policy, eviction_room room)
        : queues_(room.slots, 2),
          entries_(room.slots),
          times_(room.slots),
          marks_(room.slots),
          ghosts_(room.slots + 1, 2 * room.bytes, ghost_list::marks::kept),
          first_recent_(slot_id{static_cast<std::uint32_t>(room.slots)}),
          room_(room.bytes),
          passing_share_(std::min(room.bytes,
                                  std::max<std::size_t>(1, static_cast<std::size_t>(policy.passing_fraction *
                                                                                    static_cast<double>(room.bytes))))),
          kept_share_(room.bytes - passing_share_),
          eager_(policy.eager_demotion) {}

    void announce(const entry& newcomer) {
        announced_ = newcomer.key;
        bytes_to_come_ = newcomer.bytes;
        const std::optional<ghost> known_before = ghosts_.take(newcomer.key);
        returns_ = known_before && !before_all_kept(known_before->mark);
        if (returns_)
            make_room_among_kept(newcomer.bytes);
    }

    void admit(slot_id slot, const entry& newcomer) {
        expects(!queues_.contains(slot), "an entry is admitted once");
        if (announced_ != newcomer.key)
            announce(newcomer);
        entries_[index_of(slot)] = {newcomer.key, newcomer.bytes};
        enter(slot, returns_ || bytes_[kept] + newcomer.bytes <= kept_share_ ? kept : passing, true);
        announced_.reset();
        returns_ = false;
        prune();
        forget_beyond_the_limit();
    }

    void touch(slot_id slot) {
        expects(queues_.contains(slot), "a touched entry was admitted");
        const std::size_t bytes = entries_[index_of(slot)].bytes;
        if (is_kept(slot)) {
            renew(slot);
        } else if (is_recent(slot)) {
            leave(slot);
            make_room_among_kept(bytes);
            enter(slot, kept, true);
            prune();
        } else {
            leave(slot);
            enter(slot, passing, true);
            if (eager_)
                make_room_among_kept(bytes);
        }
        forget_beyond_the_limit();
    }

    void settle(slot_id slot) {
        expects(queues_.contains(slot), "a settled entry was admitted");
        if (is_kept(slot))
            renew(slot);
        else
            to_front_of_passing(slot);
    }

    void erase(slot_id slot) {
        expects(queues_.contains(slot), "an erased entry was admitted");
        leave(slot);
        prune();
    }

    void evict(slot_id slot) {
        expects(queues_.contains(slot), "an evicted entry was admitted");
        const bool leaves_ghost = !is_kept(slot) && is_recent(slot);
        leave(slot);
        const auto [key, bytes] = entries_[index_of(slot)];
        if (leaves_ghost && !ghosts_.contains(key))
            ghosts_.push(key, {.bytes = bytes, .mark = times_[index_of(slot)]});
        prune();
        forget_beyond_the_limit();
    }

    /// Whether the passing ones, with the announced newcomer where it is to join them, are above their share. Published
    /// counts in bytes come from caches that evict then, though there is room.
    [[nodiscard]] bool crowded() const {
        const bool joins = announced_ && !returns_ && bytes_[kept] + bytes_to_come_ > kept_share_;
        return !queues_.empty(passing) && bytes_[passing] + (joins ? bytes_to_come_ : 0) > passing_share_;
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        for (std::size_t left = count_passing_; left > 0; --left) {
            const slot_id oldest = queues_.back(passing);
            if (may_leave(oldest))
                return oldest;
            to_front_of_passing(oldest);
        }
        const slot_id last = queues_.empty(kept) ? slot_id{} : queues_.front(kept);
        for (bool all = queues_.empty(kept); !all;) {
            const slot_id idle = queues_.back(kept);
            if (may_leave(idle))
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

    // Whether a time lies before the last use of the idle kept entry. Times may wrap.
    [[nodiscard]] bool before_all_kept(std::uint32_t time) const {
        return !queues_.empty(kept) && static_cast<std::int32_t>(time - times_[index_of(queues_.back(kept))]) < 0;
    }
    [[nodiscard]] bool is_recent(slot_id slot) const {
        return (marks_[index_of(slot)] & recent) != 0 && !before_all_kept(times_[index_of(slot)]);
    }

    void enter(slot_id slot, std::uint8_t queue, bool used) {
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

    void leave(slot_id slot) {
        if (!is_kept(slot)) {
            mark_not_recent(slot);
            if (first_recent_ == slot)
                first_recent_ = queues_.newer(slot);
            --count_passing_;
        }
        queues_.remove(slot);
        bytes_[is_kept(slot) ? kept : passing] -= entries_[index_of(slot)].bytes;
    }

    // A kept entry was used.
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

    // The longest idle of the kept pass, until `bytes` more can be kept.
    void make_room_among_kept(std::size_t bytes) {
        while (!queues_.empty(kept) && bytes_[kept] + bytes > kept_share_) {
            const slot_id idle = queues_.back(kept);
            leave(idle);
            enter(idle, passing, false);
        }
        prune();
    }

    // What is older than every kept entry is recent no more. The passing ones and the ghosts stand in the order of
    // their last use, but for those that were not recent anyway or could not leave.
    void prune() {
        if (queues_.empty(kept))
            return;
        for (; !queues_.ends(first_recent_) && !is_recent(first_recent_); first_recent_ = queues_.newer(first_recent_))
            mark_not_recent(first_recent_);
        while (ghosts_.size() > 0 && before_all_kept(ghosts_.oldest().mark))
            ghosts_.pop();
    }

    void forget_beyond_the_limit() {
        while (ghosts_.size() > 0 && bytes_[kept] + recent_bytes_ + ghosts_.bytes() > 2 * room_)
            ghosts_.pop();
    }

    slot_queues queues_;
    std::vector<known> entries_;
    std::vector<std::uint32_t> times_; // by slot: of the last use
    std::vector<std::uint8_t> marks_;
    ghost_list ghosts_;    // marked with the time of their last use
    slot_id first_recent_; // of the passing ones: what is older is not recent
    std::size_t room_;
    std::size_t passing_share_;
    std::size_t kept_share_;
    bool eager_;
    std::size_t bytes_[2] = {};
    std::size_t recent_bytes_ = 0; // of the passing ones
    std::size_t count_passing_ = 0;
    std::uint32_t now_ = 0; // uses so far
    std::optional<std::uint64_t> announced_;
    std::size_t bytes_to_come_ = 0;
    bool returns_ = false; // the announced newcomer had a ghost
};

inline lirs::state lirs::open(eviction_room room) const {
    return state{*this, room};
}

static_assert(eviction_policy<lirs>);

} // namespace kvcache

// ---- kvcache/eviction/never.hpp -----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Nothing leaves. A cache that is full refuses what does not fit instead, so that what it holds is there to stay. Its
/// owner makes room by taking entries away.
struct never {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each. 0 bytes a slot.
class never::state {
public:
    void admit(slot_id, const entry&) {}
    void touch(slot_id) {}
    void erase(slot_id) {}

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&&) {
        return std::nullopt;
    }
};

inline never::state never::open(eviction_room) const {
    return {};
}

static_assert(eviction_policy<never>);

} // namespace kvcache

// ---- kvcache/eviction/prioritised.hpp -----------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The priorities of entries by their depth: `first` and `count` of them have `level`, and what no range names has 0.
struct depth_ranges {
    struct range {
        std::uint32_t first = 0;
        std::uint32_t count = 0;
        std::uint32_t level = 0;
    };
    std::array<range, 4> ranges = {}; ///< The first that fits counts.

    [[nodiscard]] constexpr std::uint32_t operator()(const entry& newcomer) const noexcept {
        for (const range& one : ranges)
            if (newcomer.depth >= one.first && newcomer.depth - one.first < one.count)
                return one.level;
        return 0;
    }
};

/// Says how dear an entry is: a level from 0 up.
template <class R>
concept priority_rule = requires(const R rule, const entry& newcomer) {
    { rule(newcomer) } -> std::convertible_to<std::uint32_t>;
};

/// Entries of low priority leave before those of higher. Each level is a policy of its own over its entries, and the
/// lowest that has one that may leave names the victim. Priorities come from a rule: by depth in the chain, so that the
/// first pages of each prompt stay, or by anything an entry says.
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
    std::uint32_t levels = 2; ///< 1 to 255; what a rule says beyond counts as the highest.
    class state;
    [[nodiscard]] state open(eviction_room room) const { return state{*this, room}; }
};

/// Cost: that of Inner, O(levels) for a victim. Inner's bytes a slot for each level, and one.
template <eviction_policy Inner, priority_rule Rule>
class prioritised<Inner, Rule>::state {
public:
    state(const prioritised& policy, eviction_room room) : rule_(policy.rule), levels_(room.slots) {
        expects(policy.levels >= 1 && policy.levels <= 255, "there are 1 to 255 levels of priority");
        inner_.reserve(policy.levels);
        for (std::uint32_t level = 0; level < policy.levels; ++level)
            inner_.push_back(policy.inner.open(room));
    }

    void announce(const entry& newcomer) { kvcache::announce(inner_[level_of(newcomer)], newcomer); }

    void admit(slot_id slot, const entry& newcomer) {
        const std::uint32_t level = level_of(newcomer);
        inner_[level].admit(slot, newcomer);
        levels_[index_of(slot)] = static_cast<std::uint8_t>(level);
    }

    void touch(slot_id slot) { at(slot).touch(slot); }
    void settle(slot_id slot) { kvcache::settle(at(slot), slot); }
    void cover(slot_id slot) { kvcache::cover(at(slot), slot); }
    void uncover(slot_id slot) { kvcache::uncover(at(slot), slot); }
    void erase(slot_id slot) { at(slot).erase(slot); }
    void evict(slot_id slot) { kvcache::evict(at(slot), slot); }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        for (auto& level : inner_)
            if (const std::optional<slot_id> found = level.victim(may_leave))
                return found;
        return std::nullopt;
    }

private:
    using inner_state = decltype(std::declval<const Inner&>().open(eviction_room{}));

    [[nodiscard]] std::uint32_t level_of(const entry& newcomer) const {
        return std::min(static_cast<std::uint32_t>(rule_(newcomer)), static_cast<std::uint32_t>(inner_.size() - 1));
    }
    [[nodiscard]] inner_state& at(slot_id slot) { return inner_[levels_[index_of(slot)]]; }

    Rule rule_;
    std::vector<inner_state> inner_; // by level
    std::vector<std::uint8_t> levels_;
};

static_assert(eviction_policy<prioritised<lru>>);

} // namespace kvcache

// ---- kvcache/eviction/s3_fifo.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Newcomers queue in a small queue, and those used `threshold` times by its end go on to the main one; the others
/// leave, and a ghost stays. Who returns while its ghost stays joins the main queue at once. At the main queue's end an
/// entry gets another round for each use, at most three; one that may not leave gets another round in either queue.
///
///     admit -> [ small ] -> victim -> [ ghosts ] -.
///                  '- used -> [ main ] -> victim   |
///     admit ------------------^ <-- returns -------'
///
/// Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
struct s3_fifo {
    using role = eviction_role;
    double small_fraction = 0.1; ///< The share of the room that newcomers queue in.
    double ghost_fraction = 0.9; ///< The bytes that ghosts stand for, to those of the room.
    std::uint32_t threshold = 2; ///< Uses in the small queue that lead to the main one, 1 to 3.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 25 bytes a slot and 16 a ghost, of
/// which there are at most `ghost_fraction` a slot.
class s3_fifo::state {
public:
    state(const s3_fifo& policy, eviction_room room)
        : queues_(room.slots, 2),
          entries_(room.slots),
          marks_(room.slots),
          ghosts_(share(room.slots, policy.ghost_fraction) + 1, room.bytes),
          ghost_bytes_(share(room.bytes, policy.ghost_fraction)),
          main_bytes_(room.bytes - std::min(room.bytes, share(room.bytes, policy.small_fraction))),
          threshold_(policy.threshold) {
        expects(policy.threshold >= 1 && policy.threshold <= most, "s3_fifo counts one to three uses");
    }

    void announce(const entry& newcomer) {
        announced_ = newcomer.key;
        returns_ = ghosts_.take(newcomer.key).has_value();
    }

    void admit(slot_id slot, const entry& newcomer) {
        expects(!queues_.contains(slot), "an entry is admitted once");
        if (announced_ != newcomer.key)
            announce(newcomer);
        entries_[index_of(slot)] = {newcomer.key, newcomer.bytes};
        enter(slot, returns_ ? main : small);
        marks_[index_of(slot)] = returns_ ? main : fresh;
        announced_.reset();
    }

    void touch(slot_id slot) {
        expects(queues_.contains(slot), "a touched entry was admitted");
        std::uint8_t& marks = marks_[index_of(slot)];
        if (uses(marks) < most)
            marks = static_cast<std::uint8_t>(marks + one_use);
    }

    void settle(slot_id slot) {
        expects(queues_.contains(slot), "a settled entry was admitted");
        if ((marks_[index_of(slot)] & fresh) != 0) // it has come now: a chain queues tail first
            queues_.move_to_front(slot, queue_of(slot));
        marks_[index_of(slot)] &= static_cast<std::uint8_t>(~fresh);
    }

    void erase(slot_id slot) {
        expects(queues_.contains(slot), "an erased entry was admitted");
        leave(slot);
    }

    void evict(slot_id slot) {
        expects(queues_.contains(slot), "an evicted entry was admitted");
        leave(slot);
        if (count_[small] > 0) // who may leave next
            ghosts_.prefetch(entries_[index_of(queues_.back(small))].key);
        const auto [key, bytes] = entries_[index_of(slot)];
        if (queue_of(slot) != small || bytes > ghost_bytes_ || ghosts_.contains(key))
            return;
        while (ghosts_.size() > 0 && ghosts_.bytes() + bytes > ghost_bytes_)
            ghosts_.pop();
        ghosts_.push(key, {.bytes = bytes});
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        // A round asks or promotes all of the small queue, and most + 1 rounds ask all of the main one.
        std::size_t small_left = count_[small];
        std::size_t main_left = (count_[main] + count_[small]) * (most + 1);
        while (small_left > 0 || main_left > 0) {
            const bool full = bytes_[main] > main_bytes_ || count_[small] == 0;
            if (count_[main] > 0 && main_left > 0 && (full || small_left == 0)) {
                --main_left;
                const slot_id oldest = queues_.back(main);
                std::uint8_t& marks = marks_[index_of(oldest)];
                if (uses(marks) == 0 && may_leave(oldest))
                    return oldest;
                if (uses(marks) > 0)
                    marks = static_cast<std::uint8_t>(marks - one_use);
                queues_.move_to_front(oldest, main);
            } else if (count_[small] > 0 && small_left > 0) {
                --small_left;
                const slot_id oldest = queues_.back(small);
                if (uses(marks_[index_of(oldest)]) >= threshold_)
                    promote(oldest);
                else if (may_leave(oldest))
                    return oldest;
                else
                    queues_.move_to_front(oldest, small);
            } else {
                break;
            }
        }
        return queues_.oldest(main, may_leave); // what went there after its rounds
    }

private:
    static constexpr std::uint8_t small = 0, main = 1; // queues
    static constexpr std::uint8_t fresh = 2;           // nobody has let go of it yet
    static constexpr std::uint8_t one_use = 4;         // marks: uses, fresh, queue
    static constexpr std::uint32_t most = 3;           // uses that count
    struct known {
        std::uint64_t key = 0;
        std::size_t bytes = 0;
    };

    [[nodiscard]] static std::size_t share(std::size_t whole, double fraction) {
        return static_cast<std::size_t>(static_cast<double>(whole) * fraction);
    }
    [[nodiscard]] static std::uint32_t uses(std::uint8_t marks) { return marks / one_use; }
    [[nodiscard]] std::uint8_t queue_of(slot_id slot) const { return marks_[index_of(slot)] & main; }

    void enter(slot_id slot, std::uint8_t queue) {
        queues_.push_front(slot, queue);
        bytes_[queue] += entries_[index_of(slot)].bytes;
        ++count_[queue];
    }

    void leave(slot_id slot) {
        queues_.remove(slot);
        bytes_[queue_of(slot)] -= entries_[index_of(slot)].bytes;
        --count_[queue_of(slot)];
    }

    void promote(slot_id slot) {
        leave(slot);
        enter(slot, main);
        marks_[index_of(slot)] = main;
    }

    slot_queues queues_;
    std::vector<known> entries_;
    std::vector<std::uint8_t> marks_;
    ghost_list ghosts_;
    std::size_t ghost_bytes_;
    std::size_t main_bytes_; // the main queue's share
    std::uint32_t threshold_;
    std::size_t bytes_[2] = {};
    std::size_t count_[2] = {};
    std::optional<std::uint64_t> announced_;
    bool returns_ = false; // the announced newcomer had a ghost
};

inline s3_fifo::state s3_fifo::open(eviction_room room) const {
    return state{*this, room};
}

static_assert(eviction_policy<s3_fifo>);

} // namespace kvcache

// ---- kvcache/eviction/sieve.hpp -----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// A hand walks a first-in, first-out queue from its oldest entry to its newest and around again. It spares an entry
/// that was used since it last came by, and takes the mark; the first without a mark leaves. Nothing moves: newcomers
/// queue behind the hand's next round, and one that may not leave is passed over.
///
///     admit -> [ newest  .  .  used  .  .  oldest ]
///                         <-- hand
///
/// Zhang et al., "SIEVE is simpler than LRU", NSDI 2024.
struct sieve {
    using role = eviction_role;
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 9 bytes a slot.
class sieve::state {
public:
    explicit state(std::size_t slots)
        : queue_(slots, 1), marks_(slots), hand_(slot_id{static_cast<std::uint32_t>(slots)}) {}

    void admit(slot_id slot, const entry&) {
        expects(!queue_.contains(slot), "an entry is admitted once");
        queue_.push_front(slot, 0);
        marks_[index_of(slot)] = fresh;
    }

    void touch(slot_id slot) {
        expects(queue_.contains(slot), "a touched entry was admitted");
        marks_[index_of(slot)] |= used;
    }

    void settle(slot_id slot) {
        expects(queue_.contains(slot), "a settled entry was admitted");
        if ((marks_[index_of(slot)] & fresh) != 0) { // it has come now: a chain queues tail first
            step_off(slot);
            queue_.move_to_front(slot, 0);
        }
        marks_[index_of(slot)] &= used;
    }

    void erase(slot_id slot) {
        expects(queue_.contains(slot), "an erased entry was admitted");
        step_off(slot);
        queue_.remove(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        // One round takes every mark, the next asks every entry.
        for (std::size_t met = 0; met < 2 * queue_.slots() && !queue_.empty(0); ++met) {
            if (queue_.ends(hand_))
                hand_ = queue_.back(0);
            std::uint8_t& marks = marks_[index_of(hand_)];
            if ((marks & used) == 0 && may_leave(hand_))
                return hand_;
            marks &= fresh;
            hand_ = queue_.newer(hand_);
        }
        return std::nullopt;
    }

private:
    static constexpr std::uint8_t used = 1;  // since the hand came by
    static constexpr std::uint8_t fresh = 2; // nobody has let go of it yet

    void step_off(slot_id slot) {
        if (hand_ == slot)
            hand_ = queue_.newer(slot);
    }

    slot_queues queue_;
    std::vector<std::uint8_t> marks_;
    slot_id hand_; // past the front: at the oldest
};

inline sieve::state sieve::open(eviction_room room) const {
    return state{room.slots};
}

static_assert(eviction_policy<sieve>);

} // namespace kvcache

// ---- kvcache/eviction/slru.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Least recently used in segments of one size: newcomers enter the lowest that has room, and a touch lifts an entry
/// into the next. A segment above its share lets its oldest down to the front of the one below. The oldest of the
/// lowest leaves; one that may not leave is in use now, so it moves to the front of its segment.
///
///     admit -> [ lowest ] -> victim      touch: up one,      above its share: down one
///              [  next  ]
///              [ highest]
///
/// Karedla, Love and Wherry, "Caching strategies to improve disk system performance", IEEE Computer 1994.
struct slru {
    using role = eviction_role;
    std::uint32_t segments = 4; ///< 1 to 255; with one this is lru.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(segments) each; victim amortised, while a fixed share of the entries may leave. 16 bytes a slot.
class slru::state {
public:
    state(const slru& policy, eviction_room room)
        : queues_(room.slots, policy.segments),
          entries_(room.slots),
          filled_(policy.segments),
          share_(room.bytes / policy.segments) {
        expects(policy.segments >= 1 && policy.segments <= 255, "slru has 1 to 255 segments");
    }

    void admit(slot_id slot, const entry& newcomer) {
        apply_touches();
        expects(!queues_.contains(slot), "an entry is admitted once");
        expects(newcomer.bytes >> 56 == 0, "an entry is smaller than 2^56 bytes");
        std::uint32_t lowest = 0;
        while (lowest < filled_.size() && filled_[lowest] + newcomer.bytes > share_)
            ++lowest;
        entries_[index_of(slot)].bytes = newcomer.bytes & most_bytes;
        enter(slot, lowest < filled_.size() ? lowest : 0);
        let_down_ = false;
    }

    void touch(slot_id slot) {
        expects(queues_.contains(slot), "a touched entry was admitted");
        touches_.add(
            slot,
            [this](slot_id one) {
                queues_.prefetch(one);
                prefetch_to_write(entries_.data(), index_of(one));
            },
            [this](slot_id one) { queues_.prefetch_neighbours(one); }, [this](slot_id one) { lift(one); });
    }

    void settle(slot_id slot) {
        apply_touches();
        expects(queues_.contains(slot), "a settled entry was admitted");
        queues_.move_to_front(slot, segment_of(slot));
    }

    void erase(slot_id slot) {
        apply_touches();
        expects(queues_.contains(slot), "an erased entry was admitted");
        leave(slot);
    }

    /// Whether the last touch let entries down into a lowest segment that is above its share, as entries of many sizes
    /// can. Published counts in bytes come from caches that evict then, though there is room.
    [[nodiscard]] bool crowded() {
        apply_touches();
        return let_down_ && filled_[0] > share_;
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        apply_touches();
        for (std::uint32_t s = 0; s < filled_.size(); ++s)
            if (const auto found = queues_.oldest(s, may_leave))
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
        leave(slot);
        enter(slot, highest ? from : from + 1);
        let_down_ = false;
        for (std::uint32_t s = from + 1; !highest && s > 0; --s) {
            while (filled_[s] > share_) {
                const slot_id oldest = queues_.back(s);
                leave(oldest);
                enter(oldest, s - 1);
                let_down_ = s == 1;
            }
            if (const slot_id next = queues_.back(s); !queues_.ends(next)) { // to be let down by some later touch
                prefetch_to_write(entries_.data(), index_of(next));
                queues_.prefetch_neighbours(next);
            }
        }
    }

    void enter(slot_id slot, std::uint32_t segment) {
        queues_.push_front(slot, segment);
        known& one = entries_[index_of(slot)];
        one.segment = segment & 0xffu;
        filled_[segment] += one.bytes;
    }

    void leave(slot_id slot) {
        queues_.remove(slot);
        const known one = entries_[index_of(slot)];
        filled_[one.segment] -= one.bytes;
    }

    slot_queues queues_; // a segment each
    std::vector<known> entries_;
    touch_ring touches_;
    std::vector<std::size_t> filled_; // by segment: bytes
    std::size_t share_;               // of each
    bool let_down_ = false;           // by the last touch, into the lowest
};

inline slru::state slru::open(eviction_room room) const {
    return state{*this, room};
}

static_assert(eviction_policy<slru>);

} // namespace kvcache

// ---- kvcache/eviction/tail_safe_lru.hpp ---------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Keeps of a conversation only what its next turn needs to answer in time. Of the entries that the turn will consist
/// of, those of its last request and `next_turn` new ones, `budget` can be computed within the time to first token; so
/// the last `budget - next_turn` of its entries are safe to lose, and the safe ones leave first, the least recently
/// used of them before the others. A longer request of the conversation makes its earlier entries needed again.
///
///     conversation: [ needed  needed  needed  needed | safe  safe ] [ next turn ]
///                                                    '------- budget -----------'
///     [ needed: newest ... oldest ]   [ safe: newest ... oldest ] -> victim, and needed ones after them
///
/// One that may not leave is in use now, so it moves to the front of its queue. "Tail-optimized caching
/// for LLM inference", arXiv 2510.15152.
struct tail_safe_lru {
    using role = eviction_role;
    std::uint32_t budget = 64;    ///< Entries that can be computed within the time to first token.
    std::uint32_t next_turn = 32; ///< Entries that the next turn is expected to add.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each, the admission of a request's last entry O(length of the request); victim amortised, while a fixed
/// share of the entries may leave. 17 bytes a slot.
class tail_safe_lru::state {
public:
    state(const tail_safe_lru& policy, std::size_t slots)
        : queues_(slots, 2),
          parents_(slots, nowhere),
          depths_(slots),
          places_(slots),
          losable_(policy.budget > policy.next_turn ? policy.budget - policy.next_turn : 0) {}

    void admit(slot_id slot, const entry& newcomer) {
        expects(!queues_.contains(slot), "an entry is admitted once");
        const std::uint32_t at = index_of(slot);
        parents_[at] = newcomer.parent ? index_of(*newcomer.parent) : nowhere;
        depths_[at] = newcomer.depth;
        const bool is_safe = newcomer.length > 0 && std::size_t{newcomer.depth} + losable_ >= newcomer.length;
        places_[at] = is_safe ? safe : needed;
        queues_.push_front(slot, places_[at]);
        if (newcomer.depth + 1 == newcomer.length)
            need_before(slot, newcomer.length);
    }

    void touch(slot_id slot) {
        expects(queues_.contains(slot), "a touched entry was admitted");
        queues_.move_to_front(slot, places_[index_of(slot)]);
    }

    void settle(slot_id slot) { touch(slot); }

    void erase(slot_id slot) {
        expects(queues_.contains(slot), "an erased entry was admitted");
        queues_.remove(slot);
    }

    /// Whether the entry may be lost without the next turn being late.
    [[nodiscard]] bool is_safe(slot_id slot) const { return places_[index_of(slot)] == safe; }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        if (const auto found = queues_.oldest(safe, may_leave))
            return found;
        return queues_.oldest(needed, may_leave);
    }

private:
    static constexpr std::uint32_t nowhere = 0xffffffffu;
    static constexpr std::uint8_t needed = 0, safe = 1; // queues

    // The last entry of a request has come: what is not among its last ones is needed.
    void need_before(slot_id last, std::uint32_t length) {
        std::uint32_t depth = depths_[index_of(last)];
        for (std::uint32_t at = parents_[index_of(last)]; at != nowhere; at = parents_[at]) {
            if (!queues_.contains(slot_id{at}) || depths_[at] + 1 != depth)
                return; // not the chain it was
            depth = depths_[at];
            if (std::size_t{depth} + losable_ >= length || places_[at] == needed)
                continue;
            places_[at] = needed;
            queues_.move_to_front(slot_id{at}, needed);
        }
    }

    slot_queues queues_;
    std::vector<std::uint32_t> parents_; // slots
    std::vector<std::uint32_t> depths_;
    std::vector<std::uint8_t> places_;
    std::size_t losable_; // entries at the end of a conversation
};

inline tail_safe_lru::state tail_safe_lru::open(eviction_room room) const {
    return state{*this, room.slots};
}

static_assert(eviction_policy<tail_safe_lru>);

} // namespace kvcache

// ---- kvcache/eviction/frequency_sketch.hpp ------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// About how often each key was used lately, at most 16 times. The first use of a key sets a bit of the doorkeeper, a
/// Bloom filter; later ones count in a count-min sketch of four rows of 4-bit counters. After ten uses a slot all
/// counts are halved and the doorkeeper starts anew.
///
/// Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy", ACM Transactions on Storage
/// 2017.
///
/// Cost: O(1) each, amortised. At most 8 + 2 bytes a slot, and at least 40 together.
class frequency_sketch {
public:
    explicit frequency_sketch(std::size_t slots)
        : words_(std::max<std::size_t>(std::bit_ceil(slots) / 2, 4)),
          door_(std::max<std::size_t>(std::bit_ceil(slots) / 8, 1)),
          period_(std::max<std::size_t>(10 * slots, 40)) {}

    /// A use of the key.
    void add(std::uint64_t key) noexcept {
        const std::uint64_t hash = mixed_bits(key);
        if (!pass_door(hash))
            for (std::uint32_t row = 0; row < 4; ++row)
                if (const place at = counter(hash, row); (words_[at.word] >> at.bit & 15) < 15)
                    words_[at.word] += std::uint64_t{1} << at.bit;
        if (++uses_ == period_)
            age();
    }

    /// Its uses, never fewer than they were since the last halving, as far as that is within 16.
    [[nodiscard]] std::uint32_t uses(std::uint64_t key) const noexcept {
        const std::uint64_t hash = mixed_bits(key);
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

    // A row has four counters of each word, and its own hash: the high half times an odd number of the row's.
    [[nodiscard]] place counter(std::uint64_t hash, std::uint32_t row) const noexcept {
        const std::uint64_t own = (hash | 1) * (0x9e3779b97f4a7c15ull + 2 * row * 0xd1b54a32d192ed03ull);
        return {own >> 34 & (words_.size() - 1), 16 * row + 4 * static_cast<std::uint32_t>(own >> 32 & 3)};
    }

    [[nodiscard]] std::size_t door_bits() const noexcept { return 64 * door_.size(); }
    [[nodiscard]] bool behind_door(std::uint64_t hash) const noexcept {
        const std::size_t a = hash & (door_bits() - 1), b = hash >> 32 & (door_bits() - 1);
        return (door_[a / 64] >> a % 64 & 1) != 0 && (door_[b / 64] >> b % 64 & 1) != 0;
    }
    // Whether the use is a key's first, which the door remembers.
    [[nodiscard]] bool pass_door(std::uint64_t hash) noexcept {
        if (behind_door(hash))
            return false;
        const std::size_t a = hash & (door_bits() - 1), b = hash >> 32 & (door_bits() - 1);
        door_[a / 64] |= std::uint64_t{1} << a % 64;
        door_[b / 64] |= std::uint64_t{1} << b % 64;
        return true;
    }

    void age() noexcept {
        for (std::uint64_t& word : words_)
            word = word >> 1 & 0x7777777777777777ull;
        std::ranges::fill(door_, 0);
        uses_ = 0;
    }

    std::vector<std::uint64_t> words_; // 16 counters each
    std::vector<std::uint64_t> door_;
    std::size_t period_;
    std::size_t uses_ = 0;
};

} // namespace kvcache

// ---- kvcache/eviction/w_tiny_lfu.hpp ------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Newcomers live in a window, least recently used; its oldest enters the main part only by being used more often, of
/// late, than the one that would leave it. The main part is least recently used in two segments: a touch protects, and
/// four fifths of it can be protected. The window grows or shrinks for as long as that brings more hits.
///
///     admit -> [ window ] -> oldest --> used more than? --> [ probation ] <-> [ protected ]
///                               '- no: victim   yes: oldest of probation is the victim
///
/// One that may not leave is in use now, so it moves to the front of its queue. Einziger, Eytan, Friedman and Manes,
/// "Adaptive software cache management", Middleware 2018.
struct w_tiny_lfu {
    using role = eviction_role;
    double window = 0.01; ///< The share of the room that newcomers live in, at first.
    bool adaptive = true; ///< Whether it changes.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. At most 32 bytes a slot: 22 and the
/// sketch.
class w_tiny_lfu::state {
public:
    state(const w_tiny_lfu& policy, eviction_room room)
        : queues_(room.slots, 3),
          keys_(room.slots),
          sizes_(room.slots),
          places_(room.slots),
          sketch_(room.slots),
          room_(room.bytes),
          window_share_(static_cast<std::size_t>(static_cast<double>(room.bytes) * policy.window)),
          step_(static_cast<double>(room.bytes) / 16),
          period_(policy.adaptive ? std::max<std::size_t>(10 * room.slots, 40) : 0),
          grain_(std::bit_width(room.bytes) > 32 ? static_cast<int>(std::bit_width(room.bytes)) - 32 : 0) {}

    void announce(const entry& newcomer) { bytes_to_come_ = newcomer.bytes; }

    void admit(slot_id slot, const entry& newcomer) {
        expects(!queues_.contains(slot), "an entry is admitted once");
        bytes_to_come_ = newcomer.bytes;
        keys_[index_of(slot)] = newcomer.key;
        sizes_[index_of(slot)] =
            static_cast<std::uint32_t>((newcomer.bytes + (std::size_t{1} << grain_) - 1) >> grain_);
        enter(slot, window);
        count_use(newcomer.key, false);
    }

    void touch(slot_id slot) {
        expects(queues_.contains(slot), "a touched entry was admitted");
        if (places_[index_of(slot)] == window) {
            queues_.move_to_front(slot, window);
        } else {
            leave(slot);
            enter(slot, guarded);
            while (bytes_[guarded] > (room_ - window_share_) / 5 * 4) {
                const slot_id oldest = queues_.back(guarded);
                leave(oldest);
                enter(oldest, probation);
            }
        }
        count_use(keys_[index_of(slot)], true);
    }

    void settle(slot_id slot) {
        expects(queues_.contains(slot), "a settled entry was admitted");
        queues_.move_to_front(slot, places_[index_of(slot)]);
    }

    void erase(slot_id slot) {
        expects(queues_.contains(slot), "an erased entry was admitted");
        leave(slot);
    }

    /// The bytes that newcomers may live in, as far as that is known by now.
    [[nodiscard]] std::size_t window_share() const noexcept { return window_share_; }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        while (bytes_[window] + bytes_to_come_ > window_share_) {
            const auto candidate = queues_.oldest(window, may_leave, patience);
            if (!candidate)
                break;
            if (bytes_[probation] + bytes_[guarded] + size(*candidate) > room_ - window_share_) {
                const auto other = oldest_of_main(may_leave, patience);
                if (!other || sketch_.uses(keys_[index_of(*candidate)]) <= sketch_.uses(keys_[index_of(*other)]))
                    return candidate;
                to_main(*candidate);
                return other;
            }
            to_main(*candidate);
        }
        if (const auto found = oldest_of_main(may_leave, patience))
            return found;
        if (const auto found = queues_.oldest(window, may_leave))
            return found;
        return oldest_of_main(may_leave, queues_.slots());
    }

private:
    static constexpr std::uint8_t window = 0, probation = 1, guarded = 2; // queues
    static constexpr std::size_t patience = 64; // entries of a queue that are asked about before it is passed over

    [[nodiscard]] std::size_t size(slot_id slot) const { return std::size_t{sizes_[index_of(slot)]} << grain_; }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> oldest_of_main(MayLeave&& may_leave, std::size_t most) {
        if (const auto found = queues_.oldest(probation, may_leave, most))
            return found;
        return queues_.oldest(guarded, may_leave, most);
    }

    void enter(slot_id slot, std::uint8_t queue) {
        queues_.push_front(slot, queue);
        places_[index_of(slot)] = queue;
        bytes_[queue] += size(slot);
    }

    void leave(slot_id slot) {
        queues_.remove(slot);
        bytes_[places_[index_of(slot)]] -= size(slot);
    }

    void to_main(slot_id slot) {
        leave(slot);
        enter(slot, probation);
    }

    // After each period the window goes on as it went if there were more hits than in the one before, else back; by
    // less each time, until the hits change by a twentieth, as they do when the uses change their nature (Caffeine's
    // numbers).
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
            std::clamp(static_cast<double>(window_share_) + step_, 0.0, 0.8 * static_cast<double>(room_));
        window_share_ = static_cast<std::size_t>(bytes);
        const double whole = static_cast<double>(room_) / 16;
        step_ = change >= 0.05 || change <= -0.05 ? (step_ < 0 ? -whole : whole) : 0.98 * step_;
        last_rate_ = rate;
        uses_ = hits_ = 0;
    }

    slot_queues queues_;
    std::vector<std::uint64_t> keys_;
    std::vector<std::uint32_t> sizes_; // in grains
    std::vector<std::uint8_t> places_;
    frequency_sketch sketch_;
    std::size_t room_;
    std::size_t window_share_;
    double step_; // of the window
    std::size_t period_;
    int grain_;
    std::size_t bytes_[3] = {};
    std::size_t bytes_to_come_ = 0;
    std::size_t uses_ = 0, hits_ = 0; // in this period
    double last_rate_ = 0.0;
};

inline w_tiny_lfu::state w_tiny_lfu::open(eviction_room room) const {
    return state{*this, room};
}

static_assert(eviction_policy<w_tiny_lfu>);

} // namespace kvcache

// ---- kvcache/eviction/all.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Every eviction policy of the library, with its standard options; those that wrap another, around lru.
using eviction_policies = std::tuple<reuse_forecast, lru, fifo, lfu, slru, clock, sieve, s3_fifo, arc, lirs, w_tiny_lfu,
                                     gdsf, lhd, tail_safe_lru, cost_aware, never, prioritised<>, expiring<>>;

} // namespace kvcache

// ---- kvcache/hash/all.hpp -----------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Every hash policy of the library, with its standard options.
using hash_policies = std::tuple<xxh3>;

} // namespace kvcache

// ---- kvcache/index/rolling_hash.hpp -------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The hash of any run of some tokens, known once those of all beginnings are: a polynomial modulo 2^64, then mixed.
/// Not for an adversary: equal hashes are a hint that tokens must confirm. Cost: O(n), then O(1) a run.
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

    /// Of the tokens [first, last).
    [[nodiscard]] std::uint64_t operator()(std::size_t first, std::size_t last) const noexcept {
        return mix((sums_[last] - sums_[first] * powers_[last - first]) ^ salt_);
    }

private:
    static constexpr std::uint64_t factor = 0x9e3779b97f4a7c15u;

    // The finaliser of splitmix64 (Steele, Lea & Flood 2014).
    [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
        x += factor;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }

    std::uint64_t salt_;
    std::vector<std::uint64_t> sums_, powers_;
};

} // namespace kvcache

// ---- kvcache/index/chunk_table.hpp --------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Chunks by their content: where they end in a tree of pages, under a hash of all their tokens, and which lengths
/// begin with which first tokens. It remembers no token: those of the tree are compared on every hit.
class chunk_table {
public:
    chunk_table(std::size_t least, std::size_t page_tokens, std::size_t pages)
        : least_(least), page_tokens_(page_tokens), of_page_(pages) {
        expects(least > 0, "the shortest chunk has a token");
    }

    /// Whether the chunk is known now. Throws: bad_alloc, and nothing has changed then.
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

    /// What ended in one page ends in another from now on, at the same rows.
    void move(page_id from, page_id to) {
        auto records = std::exchange(of_page_[index_of(from)], {});
        for (record& one : records) {
            place(one)->second.last = to;
            one.where.last = to;
        }
        of_page_[index_of(to)] = std::move(records); // a page that takes over is new in the tree
    }

    template <index_state Tree>
    [[nodiscard]] std::vector<chunk_match> find(const Tree& tree, std::uint64_t salt, std::span<const token_id> tokens,
                                                std::size_t known) const {
        std::vector<chunk_match> found;
        if (contents_.empty() || tokens.size() < least_)
            return found;
        const rolling_hash hashes(tokens, salt);
        std::size_t covered = known; // a chunk may begin before
        for (std::size_t at = 0; at + least_ <= tokens.size();) {
            const auto begin = lengths_.find(hashes(at, at + least_));
            std::optional<chunk_match> best;
            if (begin != lengths_.end())
                for (auto length = begin->second.rbegin(); !best && length != begin->second.rend(); ++length)
                    if (at + length->first > covered && at + length->first <= tokens.size())
                        best = look_up(tree, hashes(at, at + length->first), tokens.subspan(at, length->first),
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

    // Of the chunks with these tokens one that continues `before`, or any.
    template <index_state Tree>
    [[nodiscard]] std::optional<chunk_match>
    look_up(const Tree& tree, std::uint64_t hash, std::span<const token_id> tokens, const chunk_match* before) const {
        std::optional<chunk_match> best;
        const auto [first, last] = contents_.equal_range(hash);
        for (auto one = first; one != last; ++one) {
            if (one->second.count != tokens.size() || !std::ranges::equal(tokens_of(tree, one->second), tokens))
                continue;
            if (before != nullptr && continues(tree, one->second, *before))
                return one->second;
            best = one->second;
        }
        return best;
    }

    // The tokens that lie at a chunk's place; none if there are not as many.
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
            std::ranges::copy(tree.run(*page).subspan(end - rows, rows),
                              tokens.begin() + static_cast<std::ptrdiff_t>(left));
            if (left > 0 && !tree.parent(*page))
                return {};
        }
        return tokens;
    }

    // Whether a chunk's first token lies right behind the last one of another.
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
    std::vector<std::vector<record>> of_page_; // by page: chunks that end there
    contents contents_;
    std::unordered_map<std::uint64_t, std::map<std::size_t, std::size_t>> lengths_; // by first tokens: how many
};

} // namespace kvcache

// ---- kvcache/index/chunk.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// A radix index that also finds runs of tokens by their content alone, behind whatever past they stand. A chunk is
/// noted where it lies: the page of its last token, whose ancestors hold the rest; it is forgotten when that page
/// leaves. In a prompt every place is looked at, under the rolling hash of as many tokens as the shortest chunk has; a
/// hash only leads to candidates, whose tokens are compared (Rabin & Karp 1987).
///
///     noted: [... Norvik lies | near the sea .]     prompt: [Q : | Norvik lies near the sea . | Who ...]
///                  a chunk of two pages                            found, five rows on
struct chunk {
    using role = index_role;
    std::size_t least = 32; ///< Tokens of the shortest chunk.
    class state;
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const;
};

/// Cost: as radix; `note` O(chunk tokens); `chunks` O(n), and for a place where chunks begin, their lengths.
class chunk::state {
public:
    state(std::size_t least, page_shape shape, std::size_t pages)
        : tree_(radix{}.open(shape, pages)), table_(least, shape.tokens, pages) {}

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const { return tree_.match(tokens); }

    /// Requires: as radix.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        const insertion done = tree_.insert(parent, tokens, page);
        if (done.what != insertion::outcome::covered && done.other)
            table_.move(*done.other, page); // whose run goes on in this one
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

    /// Remembers the `count` tokens up to row `end` of a page as a chunk, for whoever asks with the same salt. Returns
    /// whether it is known now: not one that is too short, longer than what lies there, or of no page.
    /// Throws: bad_alloc, and nothing has changed then.
    bool note(std::uint64_t salt, page_id last, std::uint32_t end, std::size_t count) {
        return table_.insert(tree_, salt, {.count = count, .last = last, .end = end});
    }

    /// The chunks of a prompt that end behind its first `known` tokens, in order, none over another: at each place the
    /// longest, and of several with one content the one that goes on where the chunk before ended.
    [[nodiscard]] std::vector<chunk_match> chunks(std::uint64_t salt, std::span<const token_id> tokens,
                                                  std::size_t known) const {
        return table_.find(tree_, salt, tokens, known);
    }

private:
    radix::state tree_;
    chunk_table table_;
};

inline chunk::state chunk::open(page_shape shape, std::size_t pages) const {
    return {least, shape, pages};
}

static_assert(index_policy<chunk> && chunk_index_state<chunk::state>);

} // namespace kvcache

// ---- kvcache/index/hash_slots.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Page numbers under hashes, in one open-addressed table with linear probing, at most half full. Who has a hash in
/// common with another is a candidate, and no more: the caller compares. Nothing is allocated after construction.
class hash_slots {
public:
    explicit hash_slots(std::size_t pages) : slots_(std::bit_ceil(2 * pages + 2)) {}

    /// The first page under this hash of which `is_it(page)` says so; `none` if there is none.
    template <class IsIt>
    [[nodiscard]] std::uint32_t find(std::uint64_t hash, IsIt&& is_it) const {
        const std::uint32_t tag = tag_of(hash);
        for (std::size_t at = home(tag); slots_[at].page != none; at = next(at))
            if (slots_[at].tag == tag && is_it(slots_[at].page))
                return slots_[at].page;
        return none;
    }

    /// Requires: no more pages than the table was made for.
    void insert(std::uint64_t hash, std::uint32_t page) {
        std::size_t at = home(tag_of(hash));
        while (slots_[at].page != none)
            at = next(at);
        slots_[at] = {tag_of(hash), page};
    }

    /// Requires: the page is there under this hash.
    void erase(std::uint64_t hash, std::uint32_t page) {
        std::size_t hole = home(tag_of(hash));
        while (slots_[hole].page != page)
            hole = next(hole);
        // What follows moves up, unless that would put it before its home.
        for (std::size_t at = next(hole); slots_[at].page != none; at = next(at))
            if (((at - home(slots_[at].tag)) & mask()) >= ((at - hole) & mask())) {
                slots_[hole] = slots_[at];
                hole = at;
            }
        slots_[hole] = {};
    }

    static constexpr std::uint32_t none = 0xffffffffu;

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

} // namespace kvcache

// ---- kvcache/index/hash_chain.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// A table of full pages under the chained hash of all tokens up to their end, so a page of a long prompt is found by
/// one look, however many siblings it has. Parent and tokens are compared on every hit: a match is exact, and no hash
/// is trusted. What is left at the end of a match is looked for among the children of the last page, which are ordered
/// by their tokens. All memory is taken at the beginning.
///
///     [The cat sat on] -> h1 -> page      h1 [the mat . It] -> h2 -> page      then the tail among the children
struct hash_chain {
    using role = index_role;
    unsigned hash_bits = 32; ///< How much of a hash is used; fewer make more candidates that tokens must refute.
    class state;
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const;
};

/// Cost: match O(n + log siblings); insert and erase O(page tokens * log siblings). 4 bytes a token, 44 to 60 a page.
class hash_chain::state {
public:
    state(unsigned hash_bits, page_shape shape, std::size_t pages)
        : used_bits_(hash_bits >= 64 ? ~std::uint64_t{} : (std::uint64_t{1} << hash_bits) - 1),
          tree_(shape, pages),
          table_(pages),
          hashes_(pages) {}

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const {
        index_match found;
        std::uint32_t last = none;
        std::uint64_t hash = 0;
        const std::size_t length = tree_.page_tokens();
        auto rest = tokens;
        for (; rest.size() >= length; rest = rest.subspan(length)) {
            hash = chain(hash, rest.first(length));
            const std::uint32_t page =
                table_.find(hash, [&](std::uint32_t one) { return tree_.continues(one, last, rest.first(length)); });
            if (page == none)
                break;
            found.pages.push_back(page_id{page});
            found.tokens += length;
            last = page;
        }
        tree_.step(found, rest.first(std::min(rest.size(), length)));
        return found;
    }

    /// Requires: the parent is in the index and full; the run has 1 to page-tokens tokens and, where the page is in the
    /// index already, begins with the page's run or is the beginning of it.
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        const insertion done = tree_.insert(parent, tokens, page);
        if (done.what != insertion::outcome::covered && tree_.full(page)) {
            const std::uint64_t hash = chain(parent ? hashes_[index_of(*parent)] : 0, tokens);
            hashes_[index_of(page)] = hash;
            table_.insert(hash, index_of(page));
        }
        return done;
    }

    /// Requires: the page is a leaf of the index.
    void erase(page_id page) {
        const bool listed = tree_.full(page);
        tree_.erase(page);
        if (listed)
            table_.erase(hashes_[index_of(page)], index_of(page));
    }

    [[nodiscard]] bool contains(page_id page) const { return tree_.contains(page); }
    [[nodiscard]] bool leaf(page_id page) const { return tree_.leaf(page); }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const { return tree_.parent(page); }

    /// The tokens a page holds for the index; empty for a page that is not in it.
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return tree_.run(page); }

private:
    static constexpr std::uint32_t none = page_tree::none;
    static_assert(none == hash_slots::none);

    [[nodiscard]] std::uint64_t chain(std::uint64_t past, std::span<const token_id> run) const {
        return seeded_hash(past, std::as_bytes(run)) & used_bits_;
    }

    std::uint64_t used_bits_;
    page_tree tree_;
    hash_slots table_;                  // full pages
    std::vector<std::uint64_t> hashes_; // by full page: of all tokens up to its end
};

inline hash_chain::state hash_chain::open(page_shape shape, std::size_t pages) const {
    return {hash_bits, shape, pages};
}

static_assert(index_policy<hash_chain>);

} // namespace kvcache

// ---- kvcache/index/all.hpp ----------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Every index policy of the library, with its standard options.
using index_policies = std::tuple<radix, hash_chain, chunk>;

} // namespace kvcache

// ---- kvcache/locking/all.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Every locking policy of the library, with its standard options.
using locking_policies = std::tuple<unlocked, mutexed>;

} // namespace kvcache

// ---- kvcache/observer/counting.hpp --------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Sums of the events of a cache's life.
struct event_counts {
    std::uint64_t lookups = 0;
    std::uint64_t tokens_looked_up = 0;
    std::uint64_t tokens_found = 0;
    std::uint64_t tokens_stored = 0;
    std::uint64_t pages_published = 0;
    std::uint64_t pages_copied = 0;
    std::uint64_t pages_evicted = 0;
    std::uint64_t refusals = 0;
};

/// Counts events. Cost: an addition or three an event.
struct counting {
    using role = observer_role;
    class state;
    [[nodiscard]] state open() const;
};

class counting::state {
public:
    void on(const event& what) noexcept {
        switch (what.kind) {
        case event_kind::matched:
            ++counts_.lookups;
            counts_.tokens_looked_up += what.of;
            counts_.tokens_found += what.tokens;
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

private:
    event_counts counts_;
};

inline counting::state counting::open() const {
    return {};
}

static_assert(observer_policy<counting>);

} // namespace kvcache

// ---- kvcache/observer/events.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Tells routers which blocks a cache has, one JSON object a line, in the shape of vLLM's KV event batches, which
/// Dynamo's routers read too: BlockStored when a full page can be found, BlockRemoved when it leaves. A block's hash is
/// the low half of its name, the same on every host whose identity and hash policy are equal. BlockHit and BlockCopied
/// are not among vLLM's; leave them out for a reader that refuses what it does not know.
struct events {
    using role = observer_role;
    std::function<void(std::string_view)> write = {}; ///< Takes one line, with its end; none: nothing is told.
    std::function<double()> seconds = {};             ///< The time; none: the system clock's, since 1970.
    bool routers_only = false;                        ///< Only BlockStored and BlockRemoved.
    int rank = 0;                                     ///< Which of several caches this is ("data_parallel_rank").
    std::string medium = "CPU";                       ///< Where the blocks lie.
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
            if (what.tokens == what.page_tokens) // part of a page was never told of
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
        case event_kind::stored:
        case event_kind::refused:
            break;
        }
    }

private:
    [[nodiscard]] static std::string hash(const event& what, page_id page) {
        return std::to_string(what.name_of(page).low);
    }

    // Of the full pages that were found, in order.
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

} // namespace kvcache

// ---- kvcache/observer/exposition.hpp ------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Text in Prometheus' exposition format, version 0.0.4: for each metric its help, its type and one sample.
class exposition {
public:
    /// Names with values. A name has letters, digits and underscores, and begins with no digit and not with "__".
    using labels = std::vector<std::pair<std::string, std::string>>;

    explicit exposition(const labels& on_every_sample) {
        for (const auto& [name, value] : on_every_sample) {
            expects(is_name(name), "a label's name has letters, digits and underscores");
            labels_ += (labels_.empty() ? "" : ",") + name + "=\"" + escaped(value, true) + '"';
        }
        if (!labels_.empty())
            labels_ = "{" + labels_ + "}";
    }

    /// A number that only grows.
    void counter(std::string_view name, std::string_view help, std::integral auto value) {
        sample(name, help, "counter", std::to_string(value));
    }
    /// A number that goes up and down.
    void gauge(std::string_view name, std::string_view help, std::integral auto value) {
        sample(name, help, "gauge", std::to_string(value));
    }
    void gauge(std::string_view name, std::string_view help, double value) {
        sample(name, help, "gauge", number(value));
    }

    [[nodiscard]] const std::string& text() const& noexcept { return text_; }
    [[nodiscard]] std::string text() && noexcept { return std::move(text_); }

    /// Backslashes and line ends as the format wants them, and quotes where the text stands in quotes.
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
               std::ranges::all_of(name, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
    }

    [[nodiscard]] static std::string number(double value) {
        if (std::isnan(value))
            return "NaN";
        if (std::isinf(value))
            return value > 0 ? "+Inf" : "-Inf";
        char digits[32];
        return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
    }

    void sample(std::string_view name, std::string_view help, std::string_view type, const std::string& value) {
        text_.append("# HELP ").append(name).append(" ").append(escaped(help, false)).append("\n# TYPE ");
        text_.append(name).append(" ").append(type).append("\n");
        text_.append(name).append(labels_).append(" ").append(value).append("\n");
    }

    std::string labels_;
    std::string text_;
};

} // namespace kvcache

// ---- kvcache/observer/metrics.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Counts events as `counting` does and tells them in Prometheus' text format. `cache/metrics_text.hpp` adds how full
/// the cache is.
struct metrics {
    using role = observer_role;
    exposition::labels labels = {}; ///< On every sample: {{"model", "llama"}}.
    class state;
    [[nodiscard]] state open() const;
};

class metrics::state {
public:
    explicit state(exposition::labels labels) : labels_(std::move(labels)) {}

    void on(const event& what) noexcept { counting_.on(what); }

    [[nodiscard]] const event_counts& counts() const noexcept { return counting_.counts(); }
    [[nodiscard]] const exposition::labels& labels() const noexcept { return labels_; }

    /// The counters, in Prometheus' text format. Requires: names of labels are names.
    [[nodiscard]] std::string text() const {
        const event_counts& now = counts();
        exposition to(labels_);
        to.counter("kvcache_lookups_total", "Prompts looked up.", now.lookups);
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

inline metrics::state metrics::open() const {
    return state(labels);
}

static_assert(observer_policy<metrics>);

} // namespace kvcache

// ---- kvcache/observer/words.hpp -----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The word for a kind of event.
[[nodiscard]] constexpr std::string_view name_of(event_kind kind) noexcept {
    switch (kind) {
    case event_kind::matched:
        return "matched";
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

} // namespace kvcache

// ---- kvcache/observer/tracing.hpp ---------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Writes every event as one of a Chrome trace (JSON array format; chrome://tracing and Perfetto read it): an instant
/// with its extent, and a counter of the pages that can be found. The array is closed with the cache.
struct tracing {
    using role = observer_role;
    std::function<void(std::string_view)> write = {}; ///< Takes the text, piece by piece; none: nothing is traced.
    std::function<std::uint64_t()> microseconds = {}; ///< The time; none: the steady clock's.
    class state;
    [[nodiscard]] state open() const;
};

class tracing::state {
public:
    explicit state(const tracing& how) : how_(how) {
        if (how_.write)
            how_.write("[");
    }
    state(const state&) = delete; // whoever opens the array closes it
    state& operator=(const state&) = delete;
    ~state() {
        detail::ignore_exceptions([&] { // a trace that cannot be closed is still read
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

} // namespace kvcache

// ---- kvcache/observer/all.hpp -------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Every observer policy of the library, with its standard options.
using observer_policies = std::tuple<silent, counting, events, metrics, tracing>;

} // namespace kvcache

// ---- kvcache/recompute/furthest_off.hpp ---------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The indices of the `most` largest deviations, ascending; of equal ones the earlier. Cost: O(n log n).
[[nodiscard]] inline std::vector<std::size_t> furthest_off(std::span<const float> deviations, std::size_t most) {
    std::vector<std::size_t> order(deviations.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return deviations[a] > deviations[b]; });
    order.resize(std::min(order.size(), most));
    std::ranges::sort(order);
    return order;
}

/// How many of `total` tokens a share of them is: at least one, unless it is none of them.
[[nodiscard]] inline std::size_t share_of(double fraction, std::size_t total) {
    const auto most = static_cast<std::size_t>(fraction * static_cast<double>(total));
    return std::min(total, std::max<std::size_t>(most, fraction > 0.0 ? 1 : 0));
}

} // namespace kvcache

// ---- kvcache/recompute/blend.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Runs those tokens again whose keys or values are furthest off in the second layer (CacheBlend, Yao et al. 2025): the
/// first layer's depend on nothing but the token and its place, so all tokens go through that one, and its output says
/// what the second's should be. Of equal tokens the earlier runs.
struct blend {
    using role = recompute_role;
    double fraction = 0.15;                     ///< Of the reused tokens.
    deviation_of compares = deviation_of::keys; ///< What says how far off a token is.
    std::size_t layer = 1;                      ///< Whose: all tokens go through those before it.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class blend::state : public exact_prefix::state {
public:
    explicit state(const blend& options) : options_(options) {}

    [[nodiscard]] deviation_of compared() const noexcept { return options_.compares; }
    [[nodiscard]] std::size_t check_layer() const noexcept { return options_.layer; }

    void select(std::span<const reused_run> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        const auto order = furthest_off(deviations, share_of(options_.fraction, deviations.size()));
        auto next = order.begin();
        std::size_t before = 0; // tokens of the runs before
        for (const reused_run& run : runs) {
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

} // namespace kvcache

// ---- kvcache/recompute/everything.hpp -----------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Runs every token again that is not exact: the same bits as with no chunk reused, and as slow. For comparisons.
struct everything {
    using role = recompute_role;
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class everything::state : public exact_prefix::state {
public:
    void select(std::span<const reused_run> runs, std::vector<std::size_t>& positions) const {
        for (const reused_run& run : runs)
            for (std::size_t i = 0; i < run.count; ++i)
                positions.push_back(run.first + i);
    }
};

inline everything::state everything::open(page_shape) const {
    return {};
}

static_assert(recompute_policy<everything> && chunk_recompute_state<everything::state>);

} // namespace kvcache

// ---- kvcache/recompute/gradual_blend.hpp --------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Chooses as `blend` does, but more than it wants, and lets these run on: in every layer that follows those stay that
/// are furthest off there (CacheBlend's gradual filtering, Yao et al. 2025). What is left runs again in all layers.
struct gradual_blend {
    using role = recompute_role;
    double fraction = 0.15;                     ///< Of the reused tokens, in the end.
    double wider = 2.0;                         ///< How many times as many are chosen first.
    std::size_t filters = 2;                    ///< Layers that filter; fewer if the model has not as many.
    deviation_of compares = deviation_of::keys; ///< What says how far off a token is.
    std::size_t layer = 1;                      ///< Whose first: all tokens go through those before it.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class gradual_blend::state : public exact_prefix::state {
public:
    state(const gradual_blend& options, std::size_t layers) : options_(options) {
        const std::size_t behind = layers > options.layer + 1 ? layers - options.layer - 1 : 0;
        options_.filters = std::min(options.filters, behind);
    }

    [[nodiscard]] deviation_of compared() const noexcept { return options_.compares; }
    [[nodiscard]] std::size_t check_layer() const noexcept { return options_.layer; }
    [[nodiscard]] std::size_t filters() const noexcept { return options_.filters; }

    void select(std::span<const reused_run> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        blend{.fraction = fraction_after(0)}.open({}).select(runs, deviations, positions);
    }

    /// Filter `number` of them: keeps of `positions` those that are furthest off in the next layer.
    void filter(std::size_t number, std::span<const reused_run> runs, std::span<const float> deviations,
                std::vector<std::size_t>& positions) const {
        std::size_t total = 0;
        for (const reused_run& run : runs)
            total += run.count;
        std::vector<std::size_t> kept;
        for (const std::size_t i : furthest_off(deviations, share_of(fraction_after(number + 1), total)))
            kept.push_back(positions[i]);
        positions = std::move(kept);
    }

private:
    // Even steps down, as ratios.
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

} // namespace kvcache

// ---- kvcache/recompute/head.hpp -----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Runs the first tokens of every reused run again: read alone a run makes them a sink of attention, which they are not
/// behind others (EPIC's LegoLink, Hu et al. 2025). Up to the end of a page, so that the pages behind stay whole and
/// shared (MEPIC).
struct head {
    using role = recompute_role;
    std::size_t rows = 32;    ///< Of each run, at least.
    bool page_aligned = true; ///< Go on to the end of the last one's page.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class head::state : public exact_prefix::state {
public:
    state(std::size_t rows, std::size_t page) : rows_(rows), page_(page) {}

    void select(std::span<const reused_run> runs, std::vector<std::size_t>& positions) const {
        for (const reused_run& run : runs) {
            const std::size_t behind = (run.row + rows_ + page_ - 1) / page_ * page_; // row of the first page
            const std::size_t count = rows_ == 0 ? 0 : std::min(run.count, behind - run.row);
            for (std::size_t i = 0; i < count; ++i)
                positions.push_back(run.first + i);
        }
    }

private:
    std::size_t rows_;
    std::size_t page_; // rows are rounded up to so many
};

inline head::state head::open(page_shape shape) const {
    return {rows, page_aligned ? shape.tokens : 1};
}

static_assert(recompute_policy<head> && chunk_recompute_state<head::state>);

} // namespace kvcache

// ---- kvcache/recompute/none.hpp -----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Reuses every chunk as it is: its keys are moved to their place, and it has never seen what comes before it now.
/// Approximate, the cheapest and the worst.
struct none {
    using role = recompute_role;
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class none::state : public exact_prefix::state {
public:
    void select(std::span<const reused_run>, std::vector<std::size_t>&) const {}
};

inline none::state none::open(page_shape) const {
    return {};
}

static_assert(recompute_policy<none> && chunk_recompute_state<none::state>);

} // namespace kvcache

// ---- kvcache/recompute/seam.hpp -----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Runs the last tokens of every reused run again, those before the seam to what follows (KVBoost's selective
/// recompute). It mends the wrong side: see `head`.
struct seam {
    using role = recompute_role;
    std::size_t rows = 16; ///< Before each seam.
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class seam::state : public exact_prefix::state {
public:
    explicit state(std::size_t rows) : rows_(rows) {}

    void select(std::span<const reused_run> runs, std::vector<std::size_t>& positions) const {
        for (const reused_run& run : runs)
            for (std::size_t left = std::min(rows_, run.count); left > 0; --left)
                positions.push_back(run.first + run.count - left);
    }

private:
    std::size_t rows_;
};

inline seam::state seam::open(page_shape) const {
    return state(rows);
}

static_assert(recompute_policy<seam> && chunk_recompute_state<seam::state>);

} // namespace kvcache

// ---- kvcache/recompute/all.hpp ------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Every recompute policy of the library, with its standard options.
using recompute_policies = std::tuple<exact_prefix, none, seam, head, blend, gradual_blend, everything>;

} // namespace kvcache

// ---- kvcache/storage/counted_storage.hpp --------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// What a storage was asked for.
struct storage_counts {
    std::uint64_t acquired = 0; ///< Pages given.
    std::uint64_t refused = 0;  ///< Pages asked for and not given.
    std::uint64_t released = 0; ///< Pages taken back.
    std::uint64_t most = 0;     ///< Pages that were out at one time.

    [[nodiscard]] constexpr std::uint64_t out() const noexcept { return acquired - released; }
};

/// Another storage, with a count of what it was asked for: what a host's tests need to see that every page comes back.
template <storage_policy Inner = heap>
struct counted_storage {
    using role = storage_role;
    Inner inner = {}; ///< The storage that serves.

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

static_assert(storage_policy<counted_storage<heap>>);

} // namespace kvcache

// ---- kvcache/storage/failing.hpp ----------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Another storage that refuses every n-th page it is asked for: what a host's tests need to see the error paths.
template <storage_policy Inner = heap>
struct failing {
    using role = storage_role;
    std::uint64_t every = 1; ///< Which call to acquire fails, counted from one; 0 means none.
    Inner inner = {};        ///< The storage that serves the others.

    class state {
    public:
        state(std::uint64_t every, decltype(std::declval<const Inner&>().open(0, 0)) inner)
            : every_(every), inner_(std::move(inner)) {}

        [[nodiscard]] bool acquire(page_id page) {
            ++calls_;
            return (every_ == 0 || calls_ % every_ != 0) && inner_.acquire(page);
        }
        void release(page_id page) noexcept { inner_.release(page); }
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return inner_.bytes(page); }

    private:
        std::uint64_t every_;
        std::uint64_t calls_ = 0;
        decltype(std::declval<const Inner&>().open(0, 0)) inner_;
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        return {every, inner.open(pages, page_bytes)};
    }
};

static_assert(storage_policy<failing<heap>>);

} // namespace kvcache

// ---- kvcache/core/address_range.hpp -------------------------------------------------------------------------------

#include <sys/mman.h>

namespace kvcache::inline KVCACHE_ABI {

/// A range of addresses of this process, unmapped when it goes. Movable; the bytes stay where they are.
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

    /// What mmap gives for these; empty, with the reason in errno, where it refuses. Requires: size > 0.
    [[nodiscard]] static address_range map(std::size_t size, int protection, int flags) noexcept {
        address_range made;
        void* const at = ::mmap(nullptr, size, protection, flags, -1, 0);
        if (at != MAP_FAILED) {
            made.begin_ = static_cast<std::byte*>(at);
            made.size_ = size;
        }
        return made;
    }

    [[nodiscard]] bool empty() const noexcept { return begin_ == nullptr; }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {begin_, size_}; }

private:
    std::byte* begin_ = nullptr;
    std::size_t size_ = 0;
};

} // namespace kvcache

// ---- kvcache/storage/huge_pages.hpp -------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// The whole budget in one piece on huge pages. Those that the administrator has set aside (MAP_HUGETLB) are taken at
/// once, all or none; where there are too few, ordinary memory is taken as it is filled, and the system is asked to
/// put it on huge pages (madvise). The state says which it got.
struct huge_pages {
    using role = storage_role;
    bool set_aside = true; ///< Whether to try those set aside; if not, the budget is never taken before it is filled.

    /// What the pages lie on.
    enum class backing {
        set_aside, ///< Huge pages of the administrator's pool, for certain.
        advised,   ///< Ordinary memory that the system was asked to put on huge pages, and took the wish.
        ordinary,  ///< Ordinary memory: the system has no huge pages, or the budget is smaller than one.
        none,      ///< No memory: every page is refused.
    };
    class state;
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

class huge_pages::state {
public:
    state(bool from_pool, std::size_t pages, std::size_t page_bytes)
        : page_bytes_(page_bytes), stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes) {
        if (pages == 0 || stride_ == 0 || pages > (std::numeric_limits<std::size_t>::max() >> 1) / stride_)
            return;
        take(from_pool, (pages * stride_ + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes);
    }

    /// False if there is no memory at all.
    [[nodiscard]] bool acquire(page_id) const noexcept { return backing_ != backing::none; }
    void release(page_id) noexcept {}
    [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
        return memory_.bytes().subspan(begin_ + index_of(page) * stride_, page_bytes_);
    }

    /// What the pages lie on.
    [[nodiscard]] huge_pages::backing backing() const noexcept { return backing_; }

private:
    using backing_type = huge_pages::backing;

    void take(bool from_pool, std::size_t size) {
        constexpr int readable = PROT_READ | PROT_WRITE, own = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_HUGETLB)
        // Without MAP_NORESERVE: the system then keeps that many aside for us, or says now that it cannot.
        if (from_pool)
            memory_ = address_range::map(size, readable, own | MAP_HUGETLB);
        if (!memory_.empty()) {
            backing_ = backing_type::set_aside;
            return;
        }
#endif
        // One huge page more than needed, so that the first can begin on a boundary.
        memory_ = address_range::map(size + huge_page_bytes, readable, own | MAP_NORESERVE);
        if (memory_.empty())
            return;
        const auto at = reinterpret_cast<std::uintptr_t>(memory_.bytes().data());
        begin_ = (huge_page_bytes - at % huge_page_bytes) % huge_page_bytes;
        backing_ =
            want_huge_pages(memory_.bytes().data() + begin_, size) ? backing_type::advised : backing_type::ordinary;
    }

    std::size_t page_bytes_;
    std::size_t stride_; // from one page to the next, in bytes
    address_range memory_;
    std::size_t begin_ = 0; // of the first page in it
    backing_type backing_ = backing_type::none;
};

inline huge_pages::state huge_pages::open(std::size_t pages, std::size_t page_bytes) const {
    return {set_aside, pages, page_bytes};
}

/// The word for a backing.
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

static_assert(storage_policy<huge_pages>);

} // namespace kvcache

// ---- kvcache/storage/mapped.hpp -----------------------------------------------------------------------------------

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace kvcache::inline KVCACHE_ABI {

/// Pages in a mapped file: the system writes out what is not in use, so a cache can be larger than memory. The file
/// grows with the pages that are used, by whole steps that the disk has promised; a full disk is a refused page, and
/// `status` says why. Scratch space: what the file holds means nothing to another cache.
struct mapped {
    using role = storage_role;
    std::filesystem::path file = {};            ///< A name that is free; empty: one of its own in the temporary folder.
    bool unlink = true;                         ///< Takes the name away at once: nothing stays, whatever happens.
    std::size_t growth = std::size_t{64} << 20; ///< Bytes that the file grows by, at least.
    class state;
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

class mapped::state {
public:
    state(const mapped& how, std::size_t pages, std::size_t page_bytes)
        : page_bytes_(page_bytes), stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes), file_(how.file) {
        const auto system_page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        const auto whole = [&](std::size_t bytes) { return (bytes + system_page - 1) / system_page * system_page; };
        if (pages == 0 || stride_ == 0)
            return;
        if (pages > (std::numeric_limits<std::size_t>::max() >> 1) / stride_) {
            reason_ = error{error_code::out_of_range, "pages", "the pages are past what can be addressed"};
            return;
        }
        growth_ = whole(std::max({how.growth, stride_, std::size_t{1}}));
        create(how.unlink);
        if (!reason_) {
            memory_ =
                address_range::map(whole(pages * stride_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
            if (memory_.empty())
                reason_ = failure("cannot be given addresses", errno);
        }
    }

    state(state&& other) noexcept
        : page_bytes_(other.page_bytes_),
          stride_(other.stride_),
          growth_(other.growth_),
          usable_(std::exchange(other.usable_, 0)),
          descriptor_(std::exchange(other.descriptor_, -1)),
          file_(std::move(other.file_)),
          memory_(std::move(other.memory_)),
          reason_(std::move(other.reason_)) {}
    state& operator=(state&& other) noexcept {
        std::swap(page_bytes_, other.page_bytes_);
        std::swap(stride_, other.stride_);
        std::swap(growth_, other.growth_);
        std::swap(usable_, other.usable_);
        std::swap(descriptor_, other.descriptor_);
        std::swap(file_, other.file_);
        std::swap(memory_, other.memory_);
        std::swap(reason_, other.reason_);
        return *this;
    }
    ~state() {
        if (descriptor_ >= 0)
            ::close(descriptor_);
    }

    /// False if the file cannot grow to hold the page; `status` then says why. A later call tries again.
    [[nodiscard]] bool acquire(page_id page) {
        const std::size_t end = (index_of(page) + std::size_t{1}) * stride_;
        return end <= usable_ || grow(end);
    }
    void release(page_id) noexcept {}
    [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
        return memory_.bytes().subspan(index_of(page) * stride_, page_bytes_);
    }

    /// Why the last page was refused, if one was. Errors: io, out_of_range.
    [[nodiscard]] result<void> status() const { return reason_ ? result<void>(*reason_) : result<void>(); }
    /// The file's name; it is gone if it was to be unlinked.
    [[nodiscard]] const std::filesystem::path& file() const noexcept { return file_; }
    /// Bytes that the file has now.
    [[nodiscard]] std::size_t size() const noexcept { return usable_; }

private:
    void create(bool nameless) {
        if (file_.empty()) {
            std::error_code none;
            const auto folder = std::filesystem::temp_directory_path(none);
            std::string name = ((none ? std::filesystem::path("/tmp") : folder) / "kvcache-XXXXXX").string();
            descriptor_ = ::mkstemp(name.data());
            file_ = std::move(name);
        } else {
            descriptor_ = ::open(file_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        }
        if (descriptor_ < 0)
            reason_ = failure("cannot be created", errno);
        else if (nameless && ::unlink(file_.c_str()) != 0)
            reason_ = failure("cannot be unlinked", errno);
    }

    // Promised by the disk before it is mapped: otherwise a full disk would kill whoever writes (SIGBUS).
    [[nodiscard]] bool grow(std::size_t end) {
        if (descriptor_ < 0 || memory_.empty())
            return false;
        const std::size_t all = memory_.bytes().size();
        const std::size_t wanted = std::min(all, (end + growth_ - 1) / growth_ * growth_);
        const std::size_t more = wanted - usable_;
        if (const int why = ::posix_fallocate(descriptor_, static_cast<::off_t>(usable_), static_cast<::off_t>(more));
            why != 0) {
            reason_ = failure("cannot grow", why);
            return false;
        }
        if (::mmap(memory_.bytes().data() + usable_, more, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor_,
                   static_cast<::off_t>(usable_)) == MAP_FAILED) {
            reason_ = failure("cannot be mapped", errno);
            return false;
        }
        usable_ = wanted;
        reason_.reset();
        return true;
    }

    [[nodiscard]] error failure(const char* what, int why) const {
        return {error_code::io, file_.filename().string(),
                file_.string() + " " + what + ": " + std::generic_category().message(why)};
    }

    std::size_t page_bytes_;
    std::size_t stride_; // from one page to the next, in bytes
    std::size_t growth_ = 1;
    std::size_t usable_ = 0; // bytes of the file, all of them mapped
    int descriptor_ = -1;
    std::filesystem::path file_;
    address_range memory_;
    std::optional<error> reason_;
};

inline mapped::state mapped::open(std::size_t pages, std::size_t page_bytes) const {
    return {*this, pages, page_bytes};
}

static_assert(storage_policy<mapped>);

} // namespace kvcache

// ---- kvcache/core/wipe.hpp ----------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Zeroes bytes for good: the compiler may not drop it, although nobody reads them again.
inline void wipe(std::span<std::byte> bytes) noexcept {
    if (bytes.empty())
        return;
    std::memset(bytes.data(), 0, bytes.size());
    asm volatile("" : : "r"(bytes.data()) : "memory"); // says that somebody may read them
}

} // namespace kvcache

// ---- kvcache/storage/zeroising.hpp --------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Another storage whose pages are zeroed before they go back to it: when they are released, when the storage closes,
/// and when another storage is moved into its place. The compiler may not drop the zeroing. What a cache keeps idle
/// for the next match is still in use, and is zeroed when it is evicted.
template <storage_policy Inner = heap>
struct zeroising {
    using role = storage_role;
    Inner inner = {}; ///< The storage that serves.

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
            wipe(inner_.bytes(page));
            out_[index_of(page)] = false;
            inner_.release(page);
        }
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return inner_.bytes(page); }

    private:
        void wipe_all() noexcept {
            for (std::size_t page = 0; page < out_.size(); ++page)
                if (out_[page])
                    wipe(inner_.bytes(page_id{static_cast<std::uint32_t>(page)}));
        }

        decltype(std::declval<const Inner&>().open(0, 0)) inner_;
        std::vector<bool> out_; // by page
    };

    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const {
        return {pages, inner.open(pages, page_bytes)};
    }
};

static_assert(storage_policy<zeroising<heap>>);

} // namespace kvcache

// ---- kvcache/storage/all.hpp --------------------------------------------------------------------------------------

namespace kvcache::inline KVCACHE_ABI {

/// Every storage policy of the library, with its standard options.
using storage_policies = std::tuple<heap, huge_pages, mapped, zeroising<heap>, counted_storage<heap>, failing<heap>>;

} // namespace kvcache

#endif
