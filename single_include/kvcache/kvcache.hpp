// SPDX-License-Identifier: MIT
// Made by tools/amalgamate.py from include/kvcache/: edit there.
#pragma once

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
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <istream>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

// ---- kvcache/core/id.hpp ------------------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

// On in debug builds; define KVCACHE_CONTRACTS as 1 or 0 to choose.
#if !defined(KVCACHE_CONTRACTS)
#if defined(NDEBUG)
#define KVCACHE_CONTRACTS 0
#else
#define KVCACHE_CONTRACTS 1
#endif
#endif

namespace kvcache {

/// A caller's mistake, thrown where contract checks are on.
class contract_violation : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

/// Checks what a caller must hold. Off in release builds unless KVCACHE_CONTRACTS is 1.
/// Throws: contract_violation, with `what` as its words.
constexpr void expects([[maybe_unused]] bool holds, [[maybe_unused]] const char* what) {
#if KVCACHE_CONTRACTS
    if (!holds)
        throw contract_violation(what);
#endif
}

} // namespace kvcache

// ---- kvcache/core/shape.hpp ---------------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

/// The working state of a codec.
template <class S>
concept codec_state = page_reader<S> &&(row_writer<S> || page_writer<S>);

/// How the numbers of a page are kept.
template <class P>
concept codec_policy = plays<P, codec_role> && requires(const P p, page_shape shape) {
    p.open(shape);
} && codec_state<opened_by<P, page_shape>>;

} // namespace kvcache

// ---- kvcache/codec/plain.hpp --------------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

namespace detail {

/// The number behind the last blank-separated name of a line of /proc/self/smaps: "AnonHugePages:   2048 kB".
[[nodiscard]] inline std::size_t smaps_kilobytes(std::string_view line) {
    const std::size_t digit = line.find_first_of("0123456789");
    std::size_t number = 0;
    if (digit != line.npos)
        std::from_chars(line.data() + digit, line.data() + line.size(), number);
    return number;
}

} // namespace detail

/// How many of these bytes the system keeps on huge pages now, as far as it tells: by whole mappings, of which it says
/// only how much of each is huge. Zero where there is no /proc. Cost: reads the list of all mappings, milliseconds.
[[nodiscard]] inline std::size_t bytes_on_huge_pages(std::span<const std::byte> bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
    std::ifstream mappings("/proc/self/smaps");
    std::size_t huge = 0, inside = 0; // of the mapping at hand: how much of `bytes` lies in it
    for (std::string line; std::getline(mappings, line);) {
        std::uintptr_t from = 0, to = 0;
        const char* const end = line.data() + line.size();
        const auto [dash, wrong] = std::from_chars(line.data(), end, from, 16);
        if (wrong == std::errc() && dash != end && *dash == '-' &&
            std::from_chars(dash + 1, end, to, 16).ec == std::errc()) {
            const std::uintptr_t first = std::max(from, begin), last = std::min(to, begin + bytes.size());
            inside = first < last ? last - first : 0;
        } else if (line.starts_with("AnonHugePages:") || line.starts_with("FilePmdMapped:")) {
            const std::size_t more = std::min(inside, detail::smaps_kilobytes(line) * 1024);
            huge += more;
            inside -= more;
        }
    }
    return huge;
}

} // namespace kvcache

// ---- kvcache/core/aligned.hpp -------------------------------------------------------------------------------------

namespace kvcache {

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

/// Memory of the size asked for, aligned likewise, that goes with its last holder; its content is anything. Null as
/// `resource` means new and delete. Throws: what the resource throws.
[[nodiscard]] inline std::shared_ptr<std::byte> shared_memory(std::size_t bytes, std::pmr::memory_resource* resource) {
    std::pmr::memory_resource* const from = resource != nullptr ? resource : std::pmr::new_delete_resource();
    const std::size_t alignment = alignment_for(bytes);
    auto* const at = static_cast<std::byte*>(from->allocate(bytes, alignment));
    if (alignment == huge_page_bytes)
        want_huge_pages(at, bytes);
    return {at, [=](std::byte* mine) { from->deallocate(mine, bytes, alignment); }};
}

} // namespace kvcache

// ---- kvcache/codec/exact_page.hpp ---------------------------------------------------------------------------------

namespace kvcache {

/// The rows of one page as they were computed, turned by its codec, until the page is coded and nobody reads them any
/// more. They lie as the plain codec keeps them.
class exact_page {
public:
    /// Throws: bad_alloc.
    explicit exact_page(page_shape shape)
        : shape_(shape), rows_(shape), bytes_(rows_.page_bytes()), written_(shape.layers) {}

    /// The bytes that one takes.
    [[nodiscard]] static std::size_t bytes_for(page_shape shape) noexcept { return plain::state(shape).page_bytes(); }

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    /// To put rows in place that were computed elsewhere.
    [[nodiscard]] std::span<std::byte> bytes() noexcept { return bytes_; }

    /// Says that its first `rows` rows are there, in all layers, and no others.
    void begin(std::uint32_t rows) noexcept {
        for (auto& written : written_)
            written.store(rows, std::memory_order_relaxed);
    }

    /// Takes the first rows of another.
    void take(const exact_page& other, std::size_t rows) { rows_.copy(other.bytes_, bytes_, rows); }

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
    plain::state rows_;
    aligned_vector<std::byte> bytes_;
    std::vector<std::atomic<std::uint32_t>> written_; // rows, by layer
};

} // namespace kvcache

// ---- kvcache/cache/exact_ring.hpp ---------------------------------------------------------------------------------

namespace kvcache {

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

// ---- kvcache/core/little_endian.hpp -------------------------------------------------------------------------------

namespace kvcache {

/// The unsigned number at `at`, the lowest byte first. Requires: it lies inside.
template <std::unsigned_integral N>
[[nodiscard]] constexpr N load_little(std::span<const std::byte> bytes, std::size_t at) noexcept {
    N made = 0;
    for (std::size_t i = sizeof(N); i > 0; --i)
        made = static_cast<N>(static_cast<N>(made << (sizeof(N) > 1 ? 8 : 0)) | std::to_integer<N>(bytes[at + i - 1]));
    return made;
}

/// Puts an unsigned number at `at`, the lowest byte first. Requires: it lies inside.
template <std::unsigned_integral N>
constexpr void store_little(std::span<std::byte> bytes, std::size_t at, N number) noexcept {
    for (std::size_t i = 0; i < sizeof(N); ++i)
        bytes[at + i] = static_cast<std::byte>(number >> (8 * i) & 0xff);
}

} // namespace kvcache

// ---- kvcache/core/digest256.hpp -----------------------------------------------------------------------------------

namespace kvcache {

/// 256 bits that stand for some bytes, also against an adversary. In the order in which FIPS 180-4 writes them.
struct digest256 {
    std::array<std::byte, 32> bytes = {};

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

/// SHA-256 of bytes given piece by piece (FIPS 180-4), for names and seals of what leaves the process: here, so that
/// every host writes the same records, whatever libraries it has. Cost: about 5 ns a byte.
class sha256_builder {
public:
    sha256_builder& bytes(std::span<const std::byte> data) noexcept {
        const std::size_t held = length_ % block_.size();
        length_ += data.size();
        if (held > 0) {
            const std::size_t more = std::min(data.size(), block_.size() - held);
            std::ranges::copy(data.first(more), block_.begin() + static_cast<std::ptrdiff_t>(held));
            data = data.subspan(more);
            if (held + more < block_.size())
                return *this;
            compress(block_);
        }
        for (; data.size() >= block_.size(); data = data.subspan(block_.size()))
            compress(data.first<64>());
        std::ranges::copy(data, block_.begin());
        return *this;
    }

    /// Eight bytes, the lowest first.
    sha256_builder& number(std::uint64_t n) noexcept {
        std::array<std::byte, 8> little;
        store_little(little, 0, n);
        return bytes(little);
    }

    /// The length, then the bytes: two texts never run into each other.
    sha256_builder& text(std::string_view words) noexcept {
        return number(words.size()).bytes(std::as_bytes(std::span(words)));
    }

    sha256_builder& nested(const digest256& d) noexcept { return bytes(d.bytes); }

    [[nodiscard]] digest256 finish() const noexcept {
        sha256_builder last = *this;
        std::array<std::byte, 72> end = {std::byte{0x80}};
        const std::size_t padding = (119 - length_ % 64) % 64; // zeros, so that the length ends a block
        for (std::size_t i = 0; i < 8; ++i)
            end[1 + padding + i] = static_cast<std::byte>(length_ * 8 >> (56 - 8 * i) & 0xff);
        last.bytes(std::span(end).first(1 + padding + 8));
        digest256 made;
        for (std::size_t i = 0; i < made.bytes.size(); ++i)
            made.bytes[i] = static_cast<std::byte>(last.state_[i / 4] >> (24 - i % 4 * 8) & 0xff);
        return made;
    }

private:
    void compress(std::span<const std::byte, 64> block) noexcept {
        // The first 32 bits of the fractions of the cube roots of the first 64 primes.
        static constexpr std::uint32_t k[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        std::uint32_t w[64];
        for (std::size_t i = 0; i < 16; ++i)
            w[i] = std::to_integer<std::uint32_t>(block[4 * i]) << 24 |
                   std::to_integer<std::uint32_t>(block[4 * i + 1]) << 16 |
                   std::to_integer<std::uint32_t>(block[4 * i + 2]) << 8 |
                   std::to_integer<std::uint32_t>(block[4 * i + 3]);
        for (std::size_t i = 16; i < 64; ++i) {
            const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
            const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        auto [a, b, c, d, e, f, g, h] = state_;
        for (std::size_t i = 0; i < 64; ++i) {
            const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
            const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + k[i] + w[i];
            const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
            const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1;
            d = c, c = b, b = a, a = t1 + t2;
        }
        const std::uint32_t after[8] = {a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < 8; ++i)
            state_[i] += after[i];
    }

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> block_ = {};
    std::uint64_t length_ = 0;
};

/// HMAC-SHA-256 of bytes given piece by piece (RFC 2104, FIPS 198-1). A copy begins anew with the key already in.
class hmac_builder {
public:
    explicit hmac_builder(std::span<const std::byte> key) noexcept {
        std::array<std::byte, 64> block = {};
        if (key.size() > block.size())
            std::ranges::copy(sha256_builder().bytes(key).finish().bytes, block.begin());
        else
            std::ranges::copy(key, block.begin());
        const auto turned = [&block](std::byte pad) {
            std::array<std::byte, 64> made = block;
            for (std::byte& b : made)
                b ^= pad;
            return made;
        };
        inner_.bytes(turned(std::byte{0x36}));
        outer_.bytes(turned(std::byte{0x5c}));
    }

    hmac_builder& bytes(std::span<const std::byte> data) noexcept {
        inner_.bytes(data);
        return *this;
    }
    hmac_builder& number(std::uint64_t n) noexcept {
        inner_.number(n);
        return *this;
    }
    hmac_builder& text(std::string_view words) noexcept {
        inner_.text(words);
        return *this;
    }
    hmac_builder& nested(const digest256& d) noexcept { return bytes(d.bytes); }

    [[nodiscard]] digest256 finish() const noexcept { return sha256_builder(outer_).nested(inner_.finish()).finish(); }

private:
    sha256_builder inner_, outer_;
};

} // namespace kvcache

// ---- kvcache/core/page_table.hpp ----------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

    /// Whether a lease has put a copy in the place of the last page.
    [[nodiscard]] bool has_copied_tail() const noexcept {
        return tail_before && tail_before->page != table[pages_before - 1].page;
    }

    /// The books of a sequence that begins with the first `count` tokens and pages of this one.
    [[nodiscard]] std::unique_ptr<sequence_state> begin(std::size_t count, std::size_t page_tokens) const {
        auto copy = std::make_unique<sequence_state>();
        copy->tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
        copy->table = table;
        copy->table.resize(copy->cut(count));
        copy->sealed = std::min(sealed, copy->full_entries(page_tokens));
        copy->tenant = tenant;
        copy->cacheable = cacheable;
        copy->shares = shares;
        if (count > exact) {
            copy->exact = exact;
            copy->sources = sources;
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
        tokens.insert(tokens.end(), from.tokens.begin() + static_cast<std::ptrdiff_t>(first + count),
                      from.tokens.end());
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
            room.assign(tokens.begin(), tokens.end());
            room.swap(tokens);
        }
        tokens.resize(needed);
        std::ranges::copy(more, tokens.begin() + static_cast<std::ptrdiff_t>(old));
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

namespace kvcache {

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
    result(kvcache::error reason) : held_(std::move(reason)) {}

    [[nodiscard]] bool has_value() const noexcept { return held_.index() == 0; }
    [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

    /// Requires: !has_value().
    [[nodiscard]] const kvcache::error& error() const {
        expects(!has_value(), "a result is asked for its error only when it has no value");
        return *std::get_if<1>(&held_);
    }

private:
    std::variant<std::monostate, kvcache::error> held_;
};

} // namespace kvcache

// ---- kvcache/cache/sequence.hpp -----------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

/// One that is also told whether the hit ended at a token that differs from the one stored there.
template <class S>
concept edit_recompute_state = recompute_state<S> && requires(const S s, std::size_t tokens, bool differs) {
    { s.first_rerun(tokens, tokens, differs) } -> std::same_as<std::size_t>; // hit, total
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

namespace kvcache {

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
    void add_run(std::span<const page_entry> pages, bool goes_on) {
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

namespace kvcache {

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

namespace kvcache {

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
                if (std::ranges::find(sources, page) == sources.end())
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
        std::ranges::reverse(path);
        return path;
    }

    [[nodiscard]] static std::vector<page_entry> entries_of(std::span<const page_id> path, std::size_t page_tokens,
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
    [[nodiscard]] static bool follows(std::span<const page_id> path, const page_entry& before, const page_entry& next) {
        if (before.base != next.base)
            return false;
        if (before.page == next.page)
            return before.first + before.count == next.first;
        const auto at = std::ranges::find(path, next.page);
        return next.first == 0 && at != path.begin() && *std::prev(at) == before.page;
    }

    // Keeps of entries from `position` on what lies in [first, last).
    static void cut(std::vector<page_entry>& entries, std::size_t position, std::size_t first, std::size_t last) {
        std::vector<page_entry> kept;
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

// ---- kvcache/attention/attention_job.hpp --------------------------------------------------------------------------

namespace kvcache {

/// What a plan knows of consecutive rows that ask: their sequence's pages, and where they stand.
struct planned_rows {
    std::span<const page_entry> table = {};
    std::size_t position = 0; ///< Of the first row; each row attends to [0, its position].
    std::size_t rows = 0;
    const std::size_t* positions = nullptr; ///< Of each row, ascending, where they are not consecutive.
    bool woven = false;                     ///< As paged_rows says.

    [[nodiscard]] std::size_t position_of(std::size_t row) const noexcept {
        return positions != nullptr ? positions[row] : position + row;
    }
};

/// Consecutive rows of one part that stay together, with all query heads of a key and value head.
struct attention_run {
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    std::uint32_t part = 0;
    std::size_t first = 0; ///< Row of the part.
    std::size_t rows = 0;
    std::size_t end = 0;          ///< Positions that its last row sees.
    std::size_t queries = 0;      ///< Of all runs before it; query `queries + i` is this run's i-th.
    std::size_t partials = none;  ///< The first of its softmax partials among all, if several jobs make its output.
    std::size_t same_entries = 0; ///< Leading page-table entries that equal those of the run before.
};

/// Page-table entries that the runs [first_run, last_run) have in common.
struct attention_segment {
    std::uint32_t part = 0; ///< Whose table says what the entries are.
    std::size_t first = 0;  ///< Entries [first, last).
    std::size_t last = 0;
    std::size_t position = 0; ///< Of the first row of the first entry.
    std::size_t first_run = 0;
    std::size_t last_run = 0;
};

/// The runs [first_run, last_run) over the splits [first_split, last_split), segment by segment, for one thread.
struct attention_job {
    std::size_t first_segment = 0;
    std::size_t last_segment = 0;
    std::size_t first_run = 0;
    std::size_t last_run = 0;
    std::size_t first_split = 0;
    std::size_t last_split = 0;
    std::size_t cost = 0; ///< About, in queries times positions.
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
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// ---- kvcache/core/prefetch.hpp ------------------------------------------------------------------------------------

namespace kvcache {

/// Where number `offset` from `base` on would lie: an address to ask for, which may lie outside of any array, where a
/// pointer must not lead.
template <class T>
[[nodiscard]] inline const void* address(const T* base, std::size_t offset) noexcept {
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(base) + offset * sizeof(T));
}

/// Asks for the cache line of number `offset` from `base` on, which is soon read. Any may be asked for.
template <class T>
inline void prefetch([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 3);
#endif
}

/// The same for a line that is read somewhat later, in the second cache.
template <class T>
inline void prefetch_soon([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 0, 2);
#endif
}

/// The same for a line that is soon written.
template <class T>
inline void prefetch_to_write([[maybe_unused]] const T* base, [[maybe_unused]] std::size_t offset) noexcept {
#if defined(__GNUC__)
    __builtin_prefetch(address(base, offset), 1, 3);
#endif
}

} // namespace kvcache

// ---- kvcache/kernel/native.hpp ------------------------------------------------------------------------------------

#include <xsimd/xsimd.hpp>

/// For what must become part of its caller for the compiler to keep sums in registers. On a lambda: after its (...).
#if defined(__GNUC__)
#define KVCACHE_INLINE __attribute__((always_inline))
#else
#define KVCACHE_INLINE
#endif

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "kvcache: -ffast-math reorders sums, so a hit would no longer equal a miss; build without it"
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "kvcache: -ffinite-math-only breaks the infinities that mask scores; build without it"
#endif
#if !defined(__FMA__) && !defined(__AVX512F__) && !defined(__ARM_FEATURE_FMA) && !defined(KVCACHE_ALLOW_SLOW)
#error "kvcache: no fused multiply-add here; use -march=native or x86-64-v3, or define KVCACHE_ALLOW_SLOW"
#endif

namespace kvcache {

namespace detail {

/// Calls body(0), ..., body(N - 1) with constants: a loop that no compiler leaves rolled up.
template <std::size_t N, class Body>
KVCACHE_INLINE inline void unrolled(Body&& body) {
    [&]<std::size_t... I>(std::index_sequence<I...>) KVCACHE_INLINE {
        (body(std::integral_constant<std::size_t, I>{}), ...);
    }
    (std::make_index_sequence<N>{});
}

using native_floats = xsimd::batch<float>;
using native_integers = xsimd::batch<std::int32_t>;
inline constexpr std::size_t native_lanes = native_floats::size;
inline constexpr std::size_t native_parts = 16 / native_lanes;
static_assert(native_lanes == 4 || native_lanes == 8 || native_lanes == 16, "a vector is 4, 8 or 16 floats");

/// x * y + z, rounded once, on every target. xsimd's own is two roundings on AVX-512 and on some NEON.
[[nodiscard]] inline native_floats fused(const native_floats& x, const native_floats& y,
                                         const native_floats& z) noexcept {
#if defined(__AVX512F__)
    return native_floats(_mm512_fmadd_ps(x.data, y.data, z.data));
#elif defined(__AVX2__) && defined(__FMA__)
    return native_floats(_mm256_fmadd_ps(x.data, y.data, z.data));
#elif defined(__ARM_FEATURE_FMA) && defined(__aarch64__)
    return native_floats(vfmaq_f32(z.data, x.data, y.data));
#else
    alignas(64) float a[native_lanes], b[native_lanes], c[native_lanes];
    x.store_unaligned(a), y.store_unaligned(b), z.store_unaligned(c);
    for (std::size_t lane = 0; lane < native_lanes; ++lane)
        c[lane] = std::fma(a[lane], b[lane], c[lane]);
    return native_floats::load_unaligned(c);
#endif
}

/// Keeps a vector that several operations read in its register: GCC would load it anew for each.
inline void keep(native_floats& x) noexcept {
#if defined(__GNUC__) && defined(__SSE2__)
    asm("" : "+x"(x.data));
#elif defined(__GNUC__) && defined(__aarch64__)
    asm("" : "+w"(x.data));
#endif
}

/// x / y, rounded once. xsimd 8's own on NEON is a refined estimate.
[[nodiscard]] inline native_floats divided(const native_floats& x, const native_floats& y) noexcept {
#if defined(__aarch64__)
    return native_floats(vdivq_f32(x.data, y.data));
#else
    return x / y;
#endif
}

} // namespace detail

} // namespace kvcache

// ---- kvcache/kernel/number_format.hpp -----------------------------------------------------------------------------

namespace kvcache {

/// A bfloat16: the upper half of a binary32.
struct bfloat16 {
    std::uint16_t bits = 0;

    friend bool operator==(const bfloat16&, const bfloat16&) = default;
};

/// An IEEE binary16: a sign, 5 exponent bits, 10 of fraction, subnormals.
struct half {
    std::uint16_t bits = 0;

    friend bool operator==(const half&, const half&) = default;
};

/// The number formats that weights are kept in. Each widens to float32 exactly.
template <class T>
concept weight_format = std::same_as<T, float> || std::same_as<T, bfloat16> || std::same_as<T, half>;

[[nodiscard]] constexpr float widen(float number) noexcept {
    return number;
}

/// The float32 that a bfloat16 stands for. Every pattern keeps its bits.
[[nodiscard]] constexpr float widen(bfloat16 number) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(number.bits) << 16);
}

/// The float32 that a binary16 stands for. Exact for zeros, subnormals and infinities; a NaN keeps its sign and
/// payload and becomes quiet, as processors convert it.
[[nodiscard]] constexpr float widen(half number) noexcept {
    const std::uint32_t sign = (number.bits & 0x8000u) << 16;
    const std::uint32_t exponent = (number.bits >> 10) & 0x1Fu;
    const std::uint32_t fraction = number.bits & 0x3FFu;
    if (exponent == 31)
        return std::bit_cast<float>(sign | (fraction == 0 ? 0x7F800000u : 0x7FC00000u) | fraction << 13);
    if (exponent != 0)
        return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    if (fraction == 0)
        return std::bit_cast<float>(sign);
    // fraction * 2^-24, normalised: the leading one moves to bit 10 and goes.
    const auto shift = static_cast<std::uint32_t>(std::countl_zero(fraction)) - 21;
    return std::bit_cast<float>(sign | (113 - shift) << 23 | ((fraction << shift) & 0x3FFu) << 13);
}

/// The nearest bfloat16, of two as near the even one. What is past the largest finite number becomes that number; a NaN
/// stays one.
[[nodiscard]] constexpr bfloat16 to_bfloat16(float number) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};
    const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    const std::uint32_t size = rounded & 0x7FFFu;
    return {static_cast<std::uint16_t>((rounded & 0x8000u) | (size < 0x7F7Fu ? size : 0x7F7Fu))};
}

/// The nearest binary16, of two as near the even one. What is past the largest finite number becomes that number; a NaN
/// stays one.
[[nodiscard]] constexpr half to_half(float number) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    const std::uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u)
        return {static_cast<std::uint16_t>(sign | 0x7E00u)};
    if (size >= 0x477FE000u) // 65504
        return {static_cast<std::uint16_t>(sign | 0x7BFFu)};
    if (size < 0x33000000u) // below half of the least subnormal
        return {static_cast<std::uint16_t>(sign)};
    // The fraction with its leading one, and how many of its bits are behind the last one kept.
    const std::uint32_t exponent = size >> 23, fraction = (size & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t shift = exponent >= 113 ? 13 : 126 - exponent;
    const std::uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), middle = 1u << (shift - 1);
    const std::uint32_t up = rest > middle || (rest == middle && (kept & 1u) != 0) ? 1 : 0;
    const std::uint32_t above = exponent >= 113 ? (exponent - 113) << 10 : 0;
    return {static_cast<std::uint16_t>(sign | (above + kept + up))};
}

} // namespace kvcache

// ---- kvcache/kernel/simd.hpp --------------------------------------------------------------------------------------

namespace kvcache {

/// Sixteen float32 lanes, whatever the width of the machine's vectors: one, two or four of them.
/// Every kernel is written over this type, so that AVX2 and AVX-512 builds give the same bits.
/// A product that feeds a sum is always written fma(x, y, z): a compiler must find nothing to contract.
struct f32x16 {
    detail::native_floats part[detail::native_parts];

    static constexpr std::size_t lanes = 16;

    /// Reads 16 contiguous numbers at any alignment.
    [[nodiscard]] static f32x16 load(const float* from) noexcept {
        f32x16 v;
        for (std::size_t i = 0; i < detail::native_parts; ++i)
            v.part[i] = detail::native_floats::load_unaligned(from + i * detail::native_lanes);
        return v;
    }

    /// Reads the first `count` < 16 numbers; the other lanes are zero. Of none, `from` may be null.
    [[nodiscard]] static f32x16 load_first(const float* from, std::size_t count) noexcept {
        alignas(64) float whole[lanes] = {};
        if (count > 0)
            std::memcpy(whole, from, count * sizeof(float));
        return load(whole);
    }

    /// Reads 16 numbers where there are as many, or all there are.
    [[nodiscard]] static f32x16 load_up_to(const float* from, std::size_t count) noexcept {
        return count >= lanes ? load(from) : load_first(from, count);
    }

    /// Reads 16 bfloat16 numbers, exactly.
    [[nodiscard]] static f32x16 load(const bfloat16* from) noexcept {
#if defined(__AVX512F__)
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return {{detail::native_floats(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)))}};
#elif defined(__AVX2__)
        const auto wide = [](const bfloat16* at) {
            const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
            return detail::native_floats(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)));
        };
        return {{wide(from), wide(from + 8)}};
#else
        alignas(64) std::uint32_t bits[lanes];
        for (std::size_t lane = 0; lane < lanes; ++lane)
            bits[lane] = std::uint32_t{from[lane].bits} << 16;
        alignas(64) float whole[lanes];
        std::memcpy(whole, bits, sizeof whole);
        return load(whole);
#endif
    }

    /// Reads 16 binary16 numbers, exactly; a NaN becomes quiet.
    [[nodiscard]] static f32x16 load(const half* from) noexcept {
#if defined(__AVX512F__)
        return {{detail::native_floats(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))))}};
#elif defined(__AVX2__) && defined(__F16C__)
        const auto wide = [](const half* at) {
            return detail::native_floats(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
        };
        return {{wide(from), wide(from + 8)}};
#elif defined(__aarch64__)
        f32x16 v;
        for (std::size_t i = 0; i < detail::native_parts; ++i)
            v.part[i] = detail::native_floats(
                vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(from) + i * 4))));
        return v;
#else
        alignas(64) float whole[lanes];
        for (std::size_t lane = 0; lane < lanes; ++lane)
            whole[lane] = widen(from[lane]);
        return load(whole);
#endif
    }

    [[nodiscard]] static f32x16 broadcast(float x) noexcept {
        f32x16 v;
        for (auto& p : v.part)
            p = detail::native_floats(x);
        return v;
    }

    [[nodiscard]] static f32x16 zero() noexcept {
        return broadcast(0.0f);
    }

    void store(float* to) const noexcept {
        for (std::size_t i = 0; i < detail::native_parts; ++i)
            part[i].store_unaligned(to + i * detail::native_lanes);
    }

    /// Writes the first `count` < 16 lanes.
    void store_first(float* to, std::size_t count) const noexcept {
        alignas(64) float whole[lanes];
        store(whole);
        if (count > 0)
            std::memcpy(to, whole, count * sizeof(float));
    }

    /// Writes 16 lanes where there is room for as many, or the first that there is room for.
    void store_up_to(float* to, std::size_t count) const noexcept {
        count >= lanes ? store(to) : store_first(to, count);
    }
};

namespace detail {

template <class Op>
[[nodiscard]] inline f32x16 lanewise(const f32x16& x, const f32x16& y, Op op) noexcept {
    f32x16 v;
    for (std::size_t i = 0; i < native_parts; ++i)
        v.part[i] = op(x.part[i], y.part[i]);
    return v;
}

} // namespace detail

[[nodiscard]] inline f32x16 operator+(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return a + b; });
}
[[nodiscard]] inline f32x16 operator-(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return a - b; });
}
[[nodiscard]] inline f32x16 operator*(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return a * b; });
}
[[nodiscard]] inline f32x16 operator/(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return detail::divided(a, b); });
}
/// Each lane with its sign turned; unlike 0 - x it is exact for zeros too, and no compiler sees a sum in it.
[[nodiscard]] inline f32x16 operator-(const f32x16& x) noexcept {
    return detail::lanewise(x, f32x16::broadcast(-0.0f), [](const auto& a, const auto& b) { return a ^ b; });
}
/// The larger of two lanes; `y` where one is NaN on x86.
[[nodiscard]] inline f32x16 max(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return xsimd::max(a, b); });
}
[[nodiscard]] inline f32x16 min(const f32x16& x, const f32x16& y) noexcept {
    return detail::lanewise(x, y, [](const auto& a, const auto& b) { return xsimd::min(a, b); });
}
/// x * y + z, rounded once.
[[nodiscard]] inline f32x16 fma(const f32x16& x, const f32x16& y, const f32x16& z) noexcept {
    f32x16 v;
    for (std::size_t i = 0; i < detail::native_parts; ++i)
        v.part[i] = detail::fused(x.part[i], y.part[i], z.part[i]);
    return v;
}

/// `x` in the lanes [first, last), `other` elsewhere; a choice, not a product, so NaN in a masked lane is harmless.
[[nodiscard]] inline f32x16 within(const f32x16& x, std::size_t first, std::size_t last, float other) noexcept {
    alignas(64) static constexpr float number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const detail::native_floats from(static_cast<float>(static_cast<int>(first))),
        to(static_cast<float>(static_cast<int>(last))), rest(other);
    const f32x16 lane = f32x16::load(number);
    f32x16 v;
    for (std::size_t i = 0; i < detail::native_parts; ++i)
        v.part[i] = xsimd::select((lane.part[i] >= from) & (lane.part[i] < to), x.part[i], rest);
    return v;
}

/// `x` where `key` >= `bound`, zero elsewhere.
[[nodiscard]] inline f32x16 zero_below(const f32x16& x, const f32x16& key, float bound) noexcept {
    f32x16 v;
    const detail::native_floats limit(bound), nothing(0.0f);
    for (std::size_t i = 0; i < detail::native_parts; ++i)
        v.part[i] = xsimd::select(key.part[i] >= limit, x.part[i], nothing);
    return v;
}

/// Whether any lane is above `bound`; NaN is not.
[[nodiscard]] inline bool any_above(const f32x16& x, float bound) noexcept {
    const detail::native_floats limit(bound);
    auto above = x.part[0] > limit;
    for (std::size_t i = 1; i < detail::native_parts; ++i)
        above = above | (x.part[i] > limit);
    return xsimd::any(above);
}

/// 2 to the power n, where `shifted` is n + 1.5 * 2^23 and -126 <= n <= 127: n moves from the last bits of the
/// mantissa into the exponent.
[[nodiscard]] inline f32x16 power_of_two(const f32x16& shifted) noexcept {
    f32x16 v;
    for (std::size_t i = 0; i < detail::native_parts; ++i) {
        const auto bits = xsimd::bitwise_cast<detail::native_integers>(shifted.part[i]);
        v.part[i] = xsimd::bitwise_cast<detail::native_floats>((bits << 23) + detail::native_integers(0x3f800000));
    }
    return v;
}

namespace detail {

/// Folds 16 lanes to one by one fixed tree: i with i + 8, then i + 4, i + 2, i + 1.
template <class Op>
[[nodiscard]] inline float fold(const f32x16& x, Op op) noexcept {
#if defined(__SSE2__)
    using four_floats = xsimd::batch<float, xsimd::sse2>;
#if defined(__AVX__)
    using eight_floats = xsimd::batch<float, xsimd::avx>;
#if defined(__AVX512F__)
    const __m512d all = _mm512_castps_pd(x.part[0].data);
    const eight_floats lower(_mm256_castpd_ps(_mm512_castpd512_pd256(all)));
    const eight_floats upper(_mm256_castpd_ps(_mm512_extractf64x4_pd(all, 1)));
#else
    const eight_floats lower(x.part[0].data), upper(x.part[1].data);
#endif
    const eight_floats eight = op(lower, upper);
    const four_floats four =
        op(four_floats(_mm256_castps256_ps128(eight.data)), four_floats(_mm256_extractf128_ps(eight.data, 1)));
#else
    const four_floats four = op(op(x.part[0], x.part[2]), op(x.part[1], x.part[3]));
#endif
    const four_floats two = op(four, four_floats(_mm_movehl_ps(four.data, four.data)));
    return _mm_cvtss_f32(op(two, four_floats(_mm_shuffle_ps(two.data, two.data, 1))).data);
#else
    alignas(64) float lane[16];
    x.store(lane);
    for (std::size_t half = 8; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i)
            lane[i] = op(lane[i], lane[i + half]);
    return lane[0];
#endif
}

} // namespace detail

/// The sum of the lanes, by one fixed tree.
[[nodiscard]] inline float sum(const f32x16& x) noexcept {
    return detail::fold(x, [](const auto& a, const auto& b) { return a + b; });
}

/// The largest lane.
[[nodiscard]] inline float largest(const f32x16& x) noexcept {
    return detail::fold(x, [](const auto& a, const auto& b) {
        using xsimd::max;
        using std::max;
        return max(a, b);
    });
}

} // namespace kvcache

// ---- kvcache/kernel/code_dot.hpp ----------------------------------------------------------------------------------

/// Dot products of 16 rows of codes with whole numbers of 16 bits. Sums of int32 are exact, so every form gives the
/// same numbers, whatever its order.
///
/// Codes lie in fours: 64 bytes hold four neighbours of 16 rows, row by row, or of shorter codes as many fours as fit,
/// in ascending bits. Of 3-bit codes the lower two bits lie so, and the upper ones apart.
namespace kvcache::detail {

/// The largest size of a number that meets codes: both its bytes are int8 then, the lower one counted from -128 on.
inline constexpr std::int32_t largest_whole = 127 * 256;

/// Bytes of four numbers that meet codes.
inline constexpr std::size_t whole_quad_bytes = 8;

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

/// Rounds 16 numbers, none larger than `largest_whole`, and writes them as products of codes read them: the upper bytes
/// of four, then the lower ones, as VNNI multiplies an unsigned byte with a signed one. to: 4 * whole_quad_bytes
/// Returns: their sum.
inline std::int32_t put_whole(const f32x16& x, std::byte* to) noexcept {
    const __m512i whole = _mm512_cvtps_epi32(x.part[0].data);
    const __m128i lower = _mm512_cvtepi32_epi8(whole);
    const __m128i upper = _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8));
    auto* const at = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(at, _mm_unpacklo_epi32(upper, lower));
    _mm_storeu_si128(at + 1, _mm_unpackhi_epi32(upper, lower));
    return _mm512_reduce_add_epi32(whole);
}

#elif defined(__AVX2__)

/// Rounds 16 numbers, none larger than `largest_whole`, and writes them as products of codes read them: of each four
/// the even ones, then the odd ones. to: 4 * whole_quad_bytes. Returns: their sum.
inline std::int32_t put_whole(const f32x16& x, std::byte* to) noexcept {
#if defined(__AVX512F__)
    const __m512i all = _mm512_cvtps_epi32(x.part[0].data);
    const __m256i first = _mm512_castsi512_si256(all), last = _mm512_extracti64x4_epi64(all, 1);
#else
    const __m256i first = _mm256_cvtps_epi32(x.part[0].data), last = _mm256_cvtps_epi32(x.part[1].data);
#endif
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, last), 0b11'01'10'00);
    const __m256i turned = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0b11'01'10'00), 0b11'01'10'00);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), turned);
    const __m256i eight = _mm256_add_epi32(first, last);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

#else

/// Rounds 16 numbers, none larger than `largest_whole`, and writes them as int16. to: 4 * whole_quad_bytes
/// Returns: their sum.
inline std::int32_t put_whole(const f32x16& x, std::byte* to) noexcept {
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: what is added to it loses its fraction
    alignas(64) float each[16];
    (x + magic - magic).store(each);
    std::int32_t all = 0;
    for (std::size_t i = 0; i < 16; ++i) {
        const auto word = static_cast<std::int16_t>(each[i] >= -32768.0f && each[i] < 32768.0f ? each[i] : -32768.0f);
        std::memcpy(to + 2 * i, &word, sizeof word);
        all += word;
    }
    return all;
}

#endif

/// Where codes of `Bits` bits lie: places in a table, or the numbers themselves in 8 bits.
template <unsigned Bits>
struct code_quads {
    static constexpr unsigned part = Bits == 3 ? 2 : Bits; ///< Bits that lie together.
    static constexpr std::size_t per = 8 / part;           ///< Fours in 64 bytes.
    const std::byte* codes;
    const std::byte* upper;   ///< Of 3 bits the upper ones.
    const std::int8_t* table; ///< (16)
};

#if defined(__AVX2__)

/// Four bytes as one number.
[[nodiscard]] KVCACHE_INLINE inline std::int32_t four_bytes(const std::byte* from) noexcept {
    std::int32_t four;
    std::memcpy(&four, from, sizeof four);
    return four;
}

/// Steps that pass through here keep their order: a compiler that loads everything first has no registers for the sums.
KVCACHE_INLINE inline void keep_order(__m256i& x) noexcept {
#if defined(__GNUC__)
    asm volatile("" : "+x"(x));
#endif
}

/// Whole numbers of two halves of 16 rows as float32.
[[nodiscard]] KVCACHE_INLINE inline f32x16 floats_of(__m256i first, __m256i last) noexcept {
#if defined(__AVX512F__)
    return {{native_floats(_mm512_cvtepi32_ps(_mm512_inserti64x4(_mm512_castsi256_si512(first), last, 1)))}};
#else
    return {{native_floats(_mm256_cvtepi32_ps(first)), native_floats(_mm256_cvtepi32_ps(last))}};
#endif
}

/// A four of eight rows: the places in a table.
template <unsigned Bits, std::size_t Place>
[[nodiscard]] KVCACHE_INLINE inline __m256i quad_places(const code_quads<Bits>& of, std::size_t quad,
                                                        std::size_t half) noexcept {
    using quads = code_quads<Bits>;
    const auto load = [](const std::byte* from)
                          KVCACHE_INLINE { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); };
    __m256i x = load(of.codes + quad / quads::per * 64 + half * 32);
    if constexpr (Place > 0)
        x = _mm256_srli_epi16(x, Place * quads::part);
    x = _mm256_and_si256(x, _mm256_set1_epi8((1 << quads::part) - 1));
    if constexpr (Bits == 3) {
        const __m256i above =
            _mm256_srl_epi16(load(of.upper + quad / 8 * 64 + half * 32), _mm_cvtsi32_si128(static_cast<int>(quad % 8)));
        x = _mm256_or_si256(x, _mm256_slli_epi16(_mm256_and_si256(above, _mm256_set1_epi8(1)), 2));
    }
    return x;
}

/// A four of eight rows: each number as the table has it; of 8 bits each number, and what the table has.
template <unsigned Bits, std::size_t Place>
[[nodiscard]] KVCACHE_INLINE inline __m256i quad_codes(const code_quads<Bits>& of, std::size_t quad, std::size_t half,
                                                       __m256i table) noexcept {
    if constexpr (Bits == 8)
        return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(of.codes + quad * 64 + half * 32)),
                                table);
    else
        return _mm256_shuffle_epi8(table, quad_places<Bits, Place>(of, quad, half));
}

/// The numbers of a table, and 128; of none that 128.
template <unsigned Bits>
[[nodiscard]] KVCACHE_INLINE inline __m256i quad_table(const code_quads<Bits>& of) noexcept {
    const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
    if constexpr (Bits == 8)
        return sign;
    else
        return _mm256_xor_si256(
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of.table))), sign);
}

#else

template <unsigned Bits>
[[nodiscard]] inline std::int32_t code_at(const code_quads<Bits>& of, std::size_t quad, std::size_t byte) noexcept {
    using quads = code_quads<Bits>;
    auto code = std::to_integer<unsigned>(of.codes[quad / quads::per * 64 + byte]);
    if constexpr (Bits == 8) {
        return static_cast<std::int8_t>(code);
    } else {
        code = code >> quad % quads::per * quads::part & ((1u << quads::part) - 1);
        if constexpr (Bits == 3)
            code |= (std::to_integer<unsigned>(of.upper[quad / 8 * 64 + byte]) >> quad % 8 & 1u) << 2;
        return of.table[code];
    }
}

#endif

/// Calls body(quad, place in its 64 bytes) for the fours [begin, end). Requires: begin is the first of 64 bytes.
template <unsigned Bits, class Body>
KVCACHE_INLINE inline void for_quads(std::size_t begin, std::size_t end, const Body& body) {
    constexpr std::size_t per = code_quads<Bits>::per;
    std::size_t quad = begin;
    for (; quad + per <= end; quad += per)
        unrolled<per>([&](auto place) KVCACHE_INLINE { body(quad + place, place); });
    if constexpr (per > 1)
        unrolled<per - 1>([&](auto place) KVCACHE_INLINE {
            if (quad + place < end)
                body(quad + place, place);
        });
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

/// Sums of products of N queries with the fours [begin, end) of 16 rows. `own`: of each query its numbers' sum.
template <unsigned Bits, std::size_t N>
KVCACHE_INLINE inline void dots_of(const code_quads<Bits>& of, std::size_t begin, std::size_t end,
                                   const std::byte* const (&queries)[N], const std::int32_t (&own)[N],
                                   f32x16 (&to)[N]) noexcept {
    using vector = std::int32_t __attribute__((vector_size(64))); // GCC 12 copies a running __m512i, which is of int64
    vector upper[N], lower[N];
    unrolled<N>([&](auto i) KVCACHE_INLINE { upper[i] = vector{}, lower[i] = vector{}; });
    const __m256i table = quad_table(of);
    for_quads<Bits>(begin, end, [&](std::size_t quad, auto place) KVCACHE_INLINE {
        const __m512i x =
            _mm512_inserti64x4(_mm512_castsi256_si512(quad_codes<Bits, decltype(place)::value>(of, quad, 0, table)),
                               quad_codes<Bits, decltype(place)::value>(of, quad, 1, table), 1);
        unrolled<N>([&](auto i) KVCACHE_INLINE {
            const std::byte* const q = queries[i] + (quad - begin) * whole_quad_bytes;
            upper[i] = reinterpret_cast<vector>(
                _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(upper[i]), x, _mm512_set1_epi32(four_bytes(q))));
            lower[i] = reinterpret_cast<vector>(
                _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(lower[i]), x, _mm512_set1_epi32(four_bytes(q + 4))));
        });
    });
    unrolled<N>([&](auto i) KVCACHE_INLINE {
        const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(reinterpret_cast<__m512i>(upper[i]), 8),
                                              reinterpret_cast<__m512i>(lower[i]));
        to[i] = {{native_floats(_mm512_cvtepi32_ps(_mm512_sub_epi32(both, _mm512_set1_epi32(own[i] * 128))))}};
    });
}

#elif defined(__AVX2__)

/// Sums of products of N queries with the fours [begin, end) of 16 rows. `own`: of each query its numbers' sum.
template <unsigned Bits, std::size_t N>
KVCACHE_INLINE inline void dots_of(const code_quads<Bits>& of, std::size_t begin, std::size_t end,
                                   const std::byte* const (&queries)[N], const std::int32_t (&own)[N],
                                   f32x16 (&to)[N]) noexcept {
    __m256i sums[2 * N];
    unrolled<2 * N>([&](auto i) KVCACHE_INLINE { sums[i] = _mm256_set1_epi32(own[i / 2] * -128); });
    const __m256i table = quad_table(of);
    for_quads<Bits>(begin, end, [&](std::size_t quad, auto place) KVCACHE_INLINE {
        __m256i even[2], odd[2];
        unrolled<2>([&](auto half) KVCACHE_INLINE {
            const __m256i x = quad_codes<Bits, decltype(place)::value>(of, quad, half, table);
            even[half] = _mm256_and_si256(x, _mm256_set1_epi16(0xFF));
            odd[half] = _mm256_srli_epi16(x, 8);
        });
        unrolled<N>([&](auto i) KVCACHE_INLINE {
            const std::byte* const q = queries[i] + (quad - begin) * whole_quad_bytes;
            const __m256i of_even = _mm256_set1_epi32(four_bytes(q)), of_odd = _mm256_set1_epi32(four_bytes(q + 4));
            unrolled<2>([&](auto half) KVCACHE_INLINE {
                __m256i& sum = sums[2 * i + half];
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even[half], of_even));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(odd[half], of_odd));
                keep_order(sum);
            });
        });
    });
    unrolled<N>([&](auto i) KVCACHE_INLINE { to[i] = floats_of(sums[2 * i], sums[2 * i + 1]); });
}

#else

/// Sums of products of N queries with the fours [begin, end) of 16 rows. `own`: of each query its numbers' sum.
template <unsigned Bits, std::size_t N>
inline void dots_of(const code_quads<Bits>& of, std::size_t begin, std::size_t end,
                    const std::byte* const (&queries)[N], const std::int32_t (&)[N], f32x16 (&to)[N]) noexcept {
    std::int32_t sums[N][16] = {};
    for (std::size_t quad = begin; quad < end; ++quad)
        for (std::size_t byte = 0; byte < 64; ++byte)
            for (std::size_t i = 0; i < N; ++i) {
                std::int16_t word;
                std::memcpy(&word, queries[i] + (quad - begin) * whole_quad_bytes + byte % 4 * 2, sizeof word);
                sums[i][byte / 4] += code_at(of, quad, byte) * word;
            }
    for (std::size_t i = 0; i < N; ++i) {
        alignas(64) float whole[16];
        for (std::size_t row = 0; row < 16; ++row)
            whole[row] = static_cast<float>(sums[i][row]);
        to[i] = f32x16::load(whole);
    }
}

#endif

/// The numbers of a four: each of 16 rows.
template <unsigned Bits>
inline void numbers_of(const code_quads<Bits>& of, std::size_t quad, f32x16 (&to)[4]) noexcept {
    alignas(64) float each[4][16];
#if defined(__AVX2__)
    alignas(64) std::uint8_t bytes[64];
    const __m256i table = quad_table(of);
    const auto take = [&](auto place) {
        for (std::size_t half = 0; half < 2; ++half)
            _mm256_store_si256(reinterpret_cast<__m256i*>(bytes + 32 * half),
                               quad_codes<Bits, decltype(place)::value>(of, quad, half, table));
    };
    unrolled<code_quads<Bits>::per>([&](auto place) {
        if (quad % code_quads<Bits>::per == place)
            take(place);
    });
    for (std::size_t byte = 0; byte < 64; ++byte)
        each[byte % 4][byte / 4] = static_cast<float>(int{bytes[byte]} - 128);
#else
    for (std::size_t byte = 0; byte < 64; ++byte)
        each[byte % 4][byte / 4] = static_cast<float>(code_at(of, quad, byte));
#endif
    for (std::size_t i = 0; i < 4; ++i)
        to[i] = f32x16::load(each[i]);
}

} // namespace kvcache::detail

// ---- kvcache/kernel/byte_dot.hpp ----------------------------------------------------------------------------------

/// Dot products of 16 rows of codes of 4 bits or less with whole numbers of 8 bits: half the instructions of numbers of
/// 16 bits. What is lost is a hundredth of what such codes lose. Sums of int32 are exact, so every form gives the same
/// numbers, whatever its order.
namespace kvcache::detail {

/// The largest size of a number that meets codes of 4 bits or less.
inline constexpr std::int32_t largest_byte = 127;

/// Bytes of four numbers that meet codes of 4 bits or less.
inline constexpr std::size_t byte_quad_bytes = 4;

/// The most that numbers of a table may differ: pairs of products are int16 then.
inline constexpr int widest_table = 126;

#if defined(__AVX2__)

/// Rounds 16 numbers, none larger than `largest_byte`, and writes them as int8. to: 4 * byte_quad_bytes
/// Returns: their sum.
KVCACHE_INLINE inline std::int32_t put_bytes(const f32x16& x, std::byte* to) noexcept {
#if defined(__AVX512F__)
    const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.part[0].data));
#else
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(x.part[0].data), _mm256_cvtps_epi32(x.part[1].data)), 0b11'01'10'00);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
#endif
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    const __m128i eights =
        _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(0x80))), _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi32(eights, _mm_unpackhi_epi64(eights, eights))) - 16 * 128;
}

#else

/// Rounds 16 numbers, none larger than `largest_byte`, and writes them as int8. to: 4 * byte_quad_bytes
/// Returns: their sum.
inline std::int32_t put_bytes(const f32x16& x, std::byte* to) noexcept {
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: what is added to it loses its fraction
    alignas(64) float each[16];
    (x + magic - magic).store(each);
    std::int32_t all = 0;
    for (std::size_t i = 0; i < 16; ++i) {
        const auto byte = static_cast<std::int8_t>(each[i] >= -128.0f && each[i] < 128.0f ? each[i] : -128.0f);
        to[i] = static_cast<std::byte>(byte);
        all += byte;
    }
    return all;
}

#endif

/// Whether the places of a table are its numbers, all but the first one.
template <unsigned Bits>
[[nodiscard]] inline bool is_linear(const std::int8_t* table) noexcept {
    return Bits == 4 && table[15] - table[0] == 15;
}

#if defined(__AVX2__)

/// The numbers of a table, counted from the first.
template <unsigned Bits>
[[nodiscard]] KVCACHE_INLINE inline __m256i upward_table(const code_quads<Bits>& of) noexcept {
    return _mm256_sub_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of.table))),
                           _mm256_set1_epi8(static_cast<char>(of.table[0])));
}

#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

/// Sums of products of N queries with the fours [begin, end) of 16 rows. `own`: of each query its numbers' sum,
/// times the first number of the table. `Linear`: as is_linear says. Requires: tables ascend, and are no wider than
/// `widest_table`.
template <unsigned Bits, bool Linear, std::size_t N>
KVCACHE_INLINE inline void byte_dots_of(const code_quads<Bits>& of, std::size_t begin, std::size_t end,
                                        const std::byte* const (&queries)[N], const std::int32_t (&own)[N],
                                        f32x16 (&to)[N]) noexcept {
    using vector = std::int32_t __attribute__((vector_size(64))); // GCC 12 copies a running __m512i, which is of int64
    vector sums[N];
    unrolled<N>([&](auto i) KVCACHE_INLINE { sums[i] = reinterpret_cast<vector>(_mm512_set1_epi32(own[i])); });
    const __m256i table = upward_table(of);
    for_quads<Bits>(begin, end, [&](std::size_t quad, auto place) KVCACHE_INLINE {
        const __m512i x =
            _mm512_inserti64x4(_mm512_castsi256_si512(quad_codes<Bits, decltype(place)::value>(of, quad, 0, table)),
                               quad_codes<Bits, decltype(place)::value>(of, quad, 1, table), 1);
        unrolled<N>([&](auto i) KVCACHE_INLINE {
            const std::int32_t four = four_bytes(queries[i] + (quad - begin) * byte_quad_bytes);
            sums[i] = reinterpret_cast<vector>(
                _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums[i]), x, _mm512_set1_epi32(four)));
        });
    });
    unrolled<N>([&](auto i) KVCACHE_INLINE {
        to[i] = {{native_floats(_mm512_cvtepi32_ps(reinterpret_cast<__m512i>(sums[i])))}};
    });
}

#elif defined(__AVX2__)

/// Sums of products of N queries with the fours [begin, end) of 16 rows. `own`: of each query its numbers' sum,
/// times the first number of the table. `Linear`: as is_linear says. Requires: tables ascend, and are no wider than
/// `widest_table`.
template <unsigned Bits, bool Linear, std::size_t N>
KVCACHE_INLINE inline void byte_dots_of(const code_quads<Bits>& of, std::size_t begin, std::size_t end,
                                        const std::byte* const (&queries)[N], const std::int32_t (&own)[N],
                                        f32x16 (&to)[N]) noexcept {
    __m256i sums[2 * N];
    unrolled<2 * N>([&](auto i) KVCACHE_INLINE { sums[i] = _mm256_set1_epi32(own[i / 2]); });
    const __m256i table = upward_table(of), ones = _mm256_set1_epi16(1);
    // Of places in a linear table, eight pairs of products are int16: 8 * 2 * 15 * 127.
    constexpr std::size_t at_once = 8;
    for (std::size_t first = begin; first < end; first += at_once) {
        __m256i words[2 * N];
        if constexpr (Linear)
            unrolled<2 * N>([&](auto i) KVCACHE_INLINE { words[i] = _mm256_setzero_si256(); });
        for_quads<Bits>(first, std::min(end, first + at_once), [&](std::size_t quad, auto place) KVCACHE_INLINE {
            __m256i x[2];
            unrolled<2>([&](auto half) KVCACHE_INLINE {
                if constexpr (Linear)
                    x[half] = quad_places<Bits, decltype(place)::value>(of, quad, half);
                else
                    x[half] = quad_codes<Bits, decltype(place)::value>(of, quad, half, table);
            });
            unrolled<N>([&](auto i) KVCACHE_INLINE {
                const __m256i four = _mm256_set1_epi32(four_bytes(queries[i] + (quad - begin) * byte_quad_bytes));
                unrolled<2>([&](auto half) KVCACHE_INLINE {
                    const __m256i pairs = _mm256_maddubs_epi16(x[half], four);
                    __m256i& sum = Linear ? words[2 * i + half] : sums[2 * i + half];
                    if constexpr (Linear)
                        sum = _mm256_add_epi16(sum, pairs);
                    else
                        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
                    keep_order(sum);
                });
            });
        });
        if constexpr (Linear)
            unrolled<2 * N>(
                [&](auto i) KVCACHE_INLINE { sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(words[i], ones)); });
    }
    unrolled<N>([&](auto i) KVCACHE_INLINE { to[i] = floats_of(sums[2 * i], sums[2 * i + 1]); });
}

#else

/// Sums of products of N queries with the fours [begin, end) of 16 rows. `own`: of each query its numbers' sum,
/// times the first number of the table. `Linear`: as is_linear says. Requires: tables ascend, and are no wider than
/// `widest_table`.
template <unsigned Bits, bool Linear, std::size_t N>
inline void byte_dots_of(const code_quads<Bits>& of, std::size_t begin, std::size_t end,
                         const std::byte* const (&queries)[N], const std::int32_t (&)[N], f32x16 (&to)[N]) noexcept {
    std::int32_t sums[N][16] = {};
    for (std::size_t quad = begin; quad < end; ++quad)
        for (std::size_t byte = 0; byte < 64; ++byte)
            for (std::size_t i = 0; i < N; ++i)
                sums[i][byte / 4] +=
                    code_at(of, quad, byte) *
                    static_cast<std::int8_t>(std::to_integer<unsigned>(queries[i][(quad - begin) * 4 + byte % 4]));
    for (std::size_t i = 0; i < N; ++i) {
        alignas(64) float whole[16];
        for (std::size_t row = 0; row < 16; ++row)
            whole[row] = static_cast<float>(sums[i][row]);
        to[i] = f32x16::load(whole);
    }
}

#endif

} // namespace kvcache::detail

// ---- kvcache/attention/coded_queries.hpp --------------------------------------------------------------------------

namespace kvcache::detail {

/// How numbers meet codes of 8 bits: as whole numbers of 16. What is lost is a hundredth of what such codes lose.
struct whole_numbers {
    static constexpr std::size_t bytes = 4 * whole_quad_bytes; ///< Of sixteen.
    static constexpr std::size_t quad_bytes = whole_quad_bytes;
    static constexpr std::int32_t largest = largest_whole;
    static std::int32_t put(const f32x16& x, std::byte* to) noexcept { return put_whole(x, to); }
};

/// How numbers meet shorter codes: as whole numbers of 8 bits. What is lost is a hundredth of what 4 bits lose.
struct byte_numbers {
    static constexpr std::size_t bytes = 4 * byte_quad_bytes; ///< Of sixteen.
    static constexpr std::size_t quad_bytes = byte_quad_bytes;
    static constexpr std::int32_t largest = largest_byte;
    static std::int32_t put(const f32x16& x, std::byte* to) noexcept { return put_bytes(x, to); }
};

template <unsigned Bits>
using numbers_that_meet = std::conditional_t<Bits == 8, whole_numbers, byte_numbers>;

/// Less is nothing: its inverse would not be a number.
inline constexpr float least_size = 1e-30f;

/// Queries as whole numbers, for keys that are whole numbers too: each with a scale, its largest size over the largest
/// whole number. Sums of products of whole numbers are exact, so that their order is free.
template <class Numbers>
class coded_queries {
public:
    coded_queries(std::size_t head_dim, std::size_t capacity)
        : sixteens_((head_dim + 15) / 16),
          // So that 127 times the largest, head_dim times, is an int32.
          largest_(static_cast<float>(std::min<std::size_t>(Numbers::largest, 2147483647 / 127 / (head_dim + 1)))),
          codes_(capacity * sixteens_ * Numbers::bytes),
          sums_(capacity * (sixteens_ + 1)),
          scales_(capacity) {}

    /// The query as products of codes read it, filled up with zeros. (sixteens, Numbers::bytes)
    [[nodiscard]] const std::byte* codes(std::size_t q) const noexcept {
        return codes_.data() + q * sixteens_ * Numbers::bytes;
    }
    /// The sum of the numbers in the sixteens [begin, end).
    [[nodiscard]] std::int32_t sum(std::size_t q, std::size_t begin, std::size_t end) const noexcept {
        const std::int32_t* const before = sums_.data() + q * (sixteens_ + 1);
        return before[end] - before[begin];
    }
    [[nodiscard]] float scale(std::size_t q) const noexcept { return scales_[q]; }

    /// Codes query `q`, whose numbers are multiplied by `by` first. (head_dim, filled up with zeros to whole sixteens)
    void place(std::size_t q, const float* numbers, float by) noexcept {
        f32x16 most = f32x16::zero(), none = f32x16::zero();
        for (std::size_t d = 0; d < sixteens_ * 16; d += 16) {
            const f32x16 x = f32x16::load(numbers + d);
            most = max(max(x, -x), most);
            none = fma(x, f32x16::zero(), none); // a NaN where x is no number
        }
        const float top = kvcache::largest(most);
        const f32x16 inverse = f32x16::broadcast(top > least_size ? largest_ / top : 0.0f);
        std::byte* to = codes_.data() + q * sixteens_ * Numbers::bytes;
        std::int32_t* before = sums_.data() + q * (sixteens_ + 1);
        *before = 0;
        for (std::size_t d = 0; d < sixteens_ * 16; d += 16, to += Numbers::bytes, ++before)
            before[1] = before[0] + Numbers::put(f32x16::load(numbers + d) * inverse, to);
        scales_[q] = top / largest_ * by + kvcache::sum(none);
    }

private:
    std::size_t sixteens_;
    float largest_;
    aligned_vector<std::byte> codes_; // (capacity, sixteens, Numbers::bytes)
    std::vector<std::int32_t> sums_;  // of what is before each, and of all (capacity, sixteens + 1)
    std::vector<float> scales_;
};

} // namespace kvcache::detail

// ---- kvcache/codec/side_codes.hpp ---------------------------------------------------------------------------------

namespace kvcache {

/// How the numbers of one side of a tile lie in its bytes, so that attention reads them without decoding the tile.
enum class code_format : std::uint8_t {
    none,     ///< In no way that attention knows: the tile is decoded.
    bf16,     ///< bfloat16 in the tile's order.
    f16,      ///< binary16 in the tile's order.
    int8,     ///< int8, and a scale for each group of a row.
    four,     ///< Places in a table of int8, 4 bits each, and a scale for each group of a row.
    three,    ///< The same of 3 bits.
    two,      ///< The same of 2 bits.
    channels, ///< 4 bits, with a step and a least number for each of head_dim.
};

/// One side of a tile as it is coded.
struct side_codes {
    code_format format = code_format::none;
    const std::byte* codes = nullptr;
    const half* scales = nullptr; ///< (groups, 16); of channels: the steps, then the least numbers, (2, value_width).
    const std::int8_t* table =
        nullptr;           ///< What places stand for, ascending; of channels in steps from the middle. (16)
    std::size_t group = 0; ///< Numbers of head_dim that share a scale.
    std::size_t bytes = 0; ///< From `codes` on, about: what is fetched before the tile is read.
};

/// Both sides of a tile.
struct coded_tile {
    side_codes keys;
    side_codes values;
};

} // namespace kvcache

// ---- kvcache/attention/tile_kernels.hpp ---------------------------------------------------------------------------

namespace kvcache {

/// A tile of up to 16 keys and values, and the lanes of it that exist.
struct attention_tile {
    const float* keys = nullptr;       ///< (head_dim, 16)
    const float* values = nullptr;     ///< (16, value_width)
    std::size_t first = 0;             ///< The first lane in use.
    std::size_t last = 0;              ///< Behind the last lane in use.
    std::size_t position = 0;          ///< Of the first lane in use.
    const float* holes = nullptr;      ///< (16) Added to the scores: minus infinity for a lane that is not there.
    const float* ahead_keys = nullptr; ///< Of a tile that comes soon: fetched meanwhile; null for none.
    const float* ahead_values = nullptr;
    const std::byte* ahead_key_codes = nullptr; ///< The same of a tile that is read as it is coded.
    const std::byte* ahead_value_codes = nullptr;
    coded_tile codes = {}; ///< A side that is read as it is coded has a format, and no numbers.

    /// The position behind its last lane.
    [[nodiscard]] std::size_t end() const noexcept { return position + (last - first); }
};

namespace detail {

/// Fetches the tiles that come soon while others are computed with: a line of keys and a line of values by turns, each
/// in ascending order, as memory answers two long streams fastest. Every loop of the kernels takes the lines that it
/// has the time for.
class tile_fetch {
public:
    /// Lines of a tile's keys and values, from which on a loop fetches.
    struct lines {
        const float* keys;
        const float* values;
        std::size_t next; ///< Numbers from either's begin.

        void fetch() noexcept {
            prefetch(keys, next);
            prefetch(values, next);
            next += tile_tokens;
        }
    };

    tile_fetch(std::span<const attention_tile> tiles, std::size_t lines_a_tile) noexcept
        : tiles_(tiles), of_tile_(lines_a_tile) {}

    /// The next `count` lines of each, of one tile where `count` divides what a tile has.
    [[nodiscard]] lines take(std::size_t count) noexcept {
        const lines from{tiles_.front().ahead_keys, tiles_.front().ahead_values, taken_ * tile_tokens};
        taken_ += count;
        if (taken_ >= of_tile_ && tiles_.size() > 1) {
            taken_ -= of_tile_;
            tiles_ = tiles_.subspan(1);
        }
        return from;
    }

private:
    std::span<const attention_tile> tiles_; // not fetched yet, or not wholly
    std::size_t of_tile_, taken_ = 0;
};

// Chains of multiply-adds that run side by side hide the latency of each: so many queries, tiles and columns of values
// at once as fill the registers. None of it changes a chain.
inline constexpr bool wide_vectors = native_lanes == 16;

/// Queries that go through a kernel together, at most.
inline constexpr std::size_t most_together = wide_vectors ? 8 : 6;

/// Tiles whose weights are known before their values are read, at most.
inline constexpr std::size_t most_tiles = 4;

[[nodiscard]] constexpr std::size_t tiles_together(std::size_t queries) noexcept {
    if (wide_vectors)
        return queries <= 4 ? 4 : 2;
    return queries == 1 ? 4 : queries <= 3 ? 2 : 1;
}
[[nodiscard]] constexpr std::size_t columns_together(std::size_t queries) noexcept {
    if (wide_vectors)
        return queries <= 4 ? 4 : 2;
    return queries == 1 ? 4 : queries <= 3 ? 2 : 1;
}

/// sums(i, j) += scalar(i) * vector(j), each its own chain. Whichever of the two are fewer stay in registers; the
/// others are read one after the other, once.
template <std::size_t Rows, std::size_t Vectors, class Scalar, class Vector>
KVCACHE_INLINE inline void add_outer(native_floats (&sums)[Rows * Vectors], const Scalar& scalar,
                                     const Vector& vector) {
    constexpr bool keep_vectors = Vectors <= Rows;
    native_floats kept[keep_vectors ? Vectors : Rows];
    const auto add = [&](auto i, auto j, const native_floats& s, const native_floats& v)
                         KVCACHE_INLINE { sums[i * Vectors + j] = fused(s, v, sums[i * Vectors + j]); };
    unrolled<keep_vectors ? Vectors : Rows>([&](auto k) KVCACHE_INLINE {
        if constexpr (keep_vectors)
            kept[k] = vector(k);
        else
            kept[k] = native_floats(scalar(k));
        keep(kept[k]);
    });
    if constexpr (keep_vectors)
        unrolled<Rows>([&](auto i) KVCACHE_INLINE {
            const native_floats s(scalar(i));
            unrolled<Vectors>([&](auto j) KVCACHE_INLINE { add(i, j, s, kept[j]); });
        });
    else
        unrolled<Vectors>([&](auto j) KVCACHE_INLINE {
            native_floats v = vector(j);
            if constexpr (Rows > 1)
                keep(v);
            unrolled<Rows>([&](auto i) KVCACHE_INLINE { add(i, j, kept[i], v); });
        });
}

/// Scores of N queries with Tiles tiles, each one chain over ascending head_dim.
/// queries: (head_dim, N), scores: (N, most_tiles, 16); `Ahead`: the tiles that come soon are fetched meanwhile.
template <std::size_t N, std::size_t Tiles, bool Ahead>
inline void score(const float* queries, std::size_t head_dim, const attention_tile* tiles, float* scores,
                  tile_fetch& ahead) {
    constexpr std::size_t vectors = Tiles * native_parts;
    native_floats sums[N * vectors]; // flat: GCC 12 keeps no nested array in registers
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE { sums[i] = native_floats(0.0f); });
    const float* keys[Tiles];
    unrolled<Tiles>([&](auto t) KVCACHE_INLINE { keys[t] = tiles[t].keys; });
    const auto step = [&](std::size_t d) KVCACHE_INLINE {
        add_outer<N, vectors>(
            sums, [&](auto i) KVCACHE_INLINE { return queries[d * N + i]; },
            [&](auto j) KVCACHE_INLINE {
                return native_floats::load_unaligned(keys[j / native_parts] + d * tile_tokens +
                                                     j % native_parts * native_lanes);
            });
    };
    std::size_t d = 0;
    if constexpr (Ahead) {
        constexpr std::size_t parts = Tiles > 2 ? Tiles / 2 : 1; // each fetches a tile at most
        for (std::size_t part = 0; part < parts; ++part) {
            const std::size_t steps = head_dim / parts / 2;
            auto lines = ahead.take(steps * Tiles);
            for (std::size_t i = 0; i < steps; ++i, d += 2) {
                unrolled<Tiles>([&](auto) KVCACHE_INLINE { lines.fetch(); });
                step(d);
                step(d + 1);
            }
        }
    }
    for (; d < head_dim; ++d)
        step(d);
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i].store_unaligned(scores + (i / vectors * most_tiles) * tile_tokens + i % vectors * native_lanes);
    });
}

/// What values are weighted with.
struct tile_weights {
    alignas(64) float lanes[most_together][most_tiles][tile_tokens];
    float rescale[most_tiles][most_together]; ///< What sums are multiplied by before a tile.
    bool rescaled[most_tiles];                ///< Whether any of those is not one.
};

/// Adds the weighted values of tiles [begin, end) to the sums of N queries, in 16 * Columns numbers from `column` on:
/// one chain over ascending lanes. sums: the first query's, `stride` numbers from one to the next; `first`: the first
/// query among the weights.
template <std::size_t N, std::size_t Columns, bool Ahead>
inline void add_columns(const attention_tile* tiles, std::size_t begin, std::size_t end, std::size_t width,
                        std::size_t column, const tile_weights& weights, std::size_t first, float* to,
                        std::size_t stride, tile_fetch& ahead) {
    constexpr std::size_t vectors = Columns * native_parts;
    native_floats sums[N * vectors];
    float* const own = to + column;
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i] = native_floats::load_unaligned(own + i / vectors * stride + i % vectors * native_lanes);
    });
    const auto step = [&](const float* values, const float* of_lane) KVCACHE_INLINE {
        add_outer<N, vectors>(
            sums, [&](auto i) KVCACHE_INLINE { return of_lane[i * most_tiles * tile_tokens]; },
            [&](auto j) KVCACHE_INLINE { return native_floats::load_unaligned(values + j * native_lanes); });
    };
    for (std::size_t t = begin; t < end; ++t) {
        if (weights.rescaled[t])
            unrolled<N>([&](auto i) KVCACHE_INLINE {
                const native_floats rescale(weights.rescale[t][first + i]);
                unrolled<vectors>([&](auto j)
                                      KVCACHE_INLINE { sums[i * vectors + j] = sums[i * vectors + j] * rescale; });
            });
        const float* of_lane = weights.lanes[first][t] + tiles[t].first;
        const float* values = tiles[t].values + column + tiles[t].first * width;
        std::size_t lanes = tiles[t].last - tiles[t].first;
        if constexpr (Ahead) {
            auto lines = ahead.take(tile_tokens / 2 * Columns);
            for (; lanes >= 2; lanes -= 2, values += 2 * width, of_lane += 2) {
                unrolled<Columns>([&](auto) KVCACHE_INLINE { lines.fetch(); });
                step(values, of_lane);
                step(values + width, of_lane + 1);
            }
        } else {
            // Tiles that lie behind each other, as their weights do, are one long loop.
            for (; t + 1 < end && !weights.rescaled[t + 1] && tiles[t].last == tile_tokens && tiles[t + 1].first == 0 &&
                   tiles[t + 1].values == tiles[t].values + tile_tokens * width;
                 ++t)
                lanes += tiles[t + 1].last;
        }
        for (; lanes > 0; --lanes, values += width, ++of_lane)
            step(values, of_lane);
    }
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i].store_unaligned(own + i / vectors * stride + i % vectors * native_lanes);
    });
}

/// The same for all columns.
template <std::size_t N, bool Ahead>
inline void add_values(const attention_tile* tiles, std::size_t begin, std::size_t end, std::size_t width,
                       const tile_weights& weights, std::size_t first, float* to, std::size_t stride,
                       tile_fetch& ahead) {
    constexpr std::size_t many = columns_together(N);
    std::size_t column = 0;
    for (; column + 16 * many <= width; column += 16 * many)
        add_columns<N, many, Ahead>(tiles, begin, end, width, column, weights, first, to, stride, ahead);
    if constexpr (many > 1)
        for (; column < width; column += 16)
            add_columns<N, 1, Ahead>(tiles, begin, end, width, column, weights, first, to, stride, ahead);
}

} // namespace detail

} // namespace kvcache

// ---- kvcache/codec/page_side.hpp ----------------------------------------------------------------------------------

namespace kvcache {

/// What a coder writes: the keys of a page's heads or their values.
enum class page_side : std::uint8_t { keys, values };

/// Writes and reads one side of a page, `tokens()` rows at a time, in `bytes()` bytes. Both ways a tile of keys is
/// (head_dim, 16), one of values (16, value_width(head_dim)), tile behind tile.
template <class C>
concept side_coder = requires(const C c, const float* from, std::byte* to, const std::byte* coded, std::size_t tile,
                              float* out, std::span<float> row) {
    { c.tokens() } -> std::same_as<std::size_t>;
    { c.bytes() } -> std::same_as<std::size_t>;
    { c.name() } -> std::same_as<std::string>;
    c.encode(from, to);
    c.decode(coded, tile, out);
    c.turn(row);
    c.turn_back(row);
};

/// A codec that says how it codes either side, so that others can be made of it.
template <class P>
concept sided_codec = plays<P, codec_role> && requires(const P p, page_side side, page_shape shape) {
    { p.coder(side, shape) } -> side_coder;
};

namespace detail {

/// A tile of either side as strips of 16 tokens, one for each number of head_dim.
class tile_strips {
public:
    tile_strips(page_side side, std::size_t head_dim, const float* from) noexcept
        : side_(side), width_(value_width(head_dim)), from_(from) {}

    /// Number `d` of all 16 rows.
    [[nodiscard]] f32x16 operator()(std::size_t d) const noexcept {
        if (side_ == page_side::keys)
            return f32x16::load(from_ + d * tile_tokens);
        alignas(64) float lanes[tile_tokens];
        for (std::size_t lane = 0; lane < tile_tokens; ++lane)
            lanes[lane] = from_[lane * width_ + d];
        return f32x16::load(lanes);
    }

private:
    page_side side_;
    std::size_t width_;
    const float* from_;
};

/// The numbers of one tile of a side.
[[nodiscard]] constexpr std::size_t tile_numbers(page_side side, std::size_t head_dim) noexcept {
    return tile_tokens * (side == page_side::keys ? head_dim : value_width(head_dim));
}

} // namespace detail

} // namespace kvcache

// ---- kvcache/codec/packed_codes.hpp -------------------------------------------------------------------------------

namespace kvcache::detail {

/// Codes of `Bits` bits for one tile, in fours for dot products: of keys four neighbours of head_dim, for 16 tokens; of
/// values four tokens, for 16 neighbours of head_dim.
///
///     keys:    four d / 4                   of row token     its number d % 4
///     values:  four d / 16 * 4 + token / 4  of row d % 16    its number token % 4
///
/// A four is 64 bytes, row by row. Of 4 and 2 bits the fours 0 and 1, or 0 to 3, share 64 bytes, in ascending bits; of
/// 3 bits the lower two lie like 2 bits, and behind all of them the upper ones, eight fours in 64 bytes.
template <unsigned Bits>
class packed_codes {
    static_assert(Bits == 2 || Bits == 3 || Bits == 4 || Bits == 8, "codes have 2, 3, 4 or 8 bits");
    using quads = code_quads<Bits>;

public:
    packed_codes(page_side side, std::size_t head_dim) noexcept
        : side_(side), quads_(side == page_side::keys ? (head_dim + 3) / 4 : value_width(head_dim) / 4) {}

    [[nodiscard]] std::size_t bytes() const noexcept { return lower() + (Bits == 3 ? (quads_ + 7) / 8 * 64 : 0); }

    /// Where the fours lie in a tile's bytes.
    [[nodiscard]] quads view(const std::byte* from, const std::int8_t* table) const noexcept {
        return {from, from + lower(), table};
    }

    /// Writes the code of number `d` of token `lane`. Requires: the bytes are zero where nothing was written.
    void put(std::byte* to, std::size_t d, std::size_t lane, std::uint8_t code) const noexcept {
        const bool keys = side_ == page_side::keys;
        const std::size_t quad = keys ? d / 4 : d / 16 * 4 + lane / 4;
        const std::size_t byte = keys ? lane * 4 + d % 4 : d % 16 * 4 + lane % 4;
        const unsigned field = code & ((1u << quads::part) - 1);
        to[quad / quads::per * 64 + byte] |= static_cast<std::byte>(field << quad % quads::per * quads::part);
        if constexpr (Bits == 3)
            to[lower() + quad / 8 * 64 + byte] |= static_cast<std::byte>((code >> 2 & 1u) << quad % 8);
    }

private:
    [[nodiscard]] std::size_t lower() const noexcept { return (quads_ + quads::per - 1) / quads::per * 64; }

    page_side side_;
    std::size_t quads_;
};

/// The nearest whole number between two, of two as near the even one; `low` for a NaN.
[[nodiscard]] inline f32x16 rounded(const f32x16& x, float low, float high) noexcept {
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: what is added to it loses its fraction
    return min(max(x, f32x16::broadcast(low)), f32x16::broadcast(high)) + magic - magic;
}

} // namespace kvcache::detail

// ---- kvcache/attention/code_kernels.hpp ---------------------------------------------------------------------------

namespace kvcache::detail {

/// Strips of a tile as numbers: of keys by number of head_dim, of values by 16 neighbours of a row.
template <class Number>
struct wide_reader {
    const Number* numbers;
    std::size_t columns = 0; ///< Of values.
    [[nodiscard]] KVCACHE_INLINE f32x16 operator()(std::size_t d) const noexcept {
        return f32x16::load(numbers + d * 16);
    }
    [[nodiscard]] KVCACHE_INLINE f32x16 operator()(std::size_t lane, std::size_t column) const noexcept {
        return f32x16::load(numbers + (lane * columns + column) * 16);
    }
};

/// Scores of N queries with Tiles tiles, each one chain over ascending head_dim, as `score` has them.
/// queries: (head_dim, stride), scores: (N, most_tiles, 16)
template <std::size_t N, std::size_t Tiles, class Reader>
inline void score_strips(const float* queries, std::size_t stride, std::size_t head_dim, const Reader (&tiles)[Tiles],
                         float* scores) noexcept {
    constexpr std::size_t vectors = Tiles * native_parts;
    native_floats sums[N * vectors];
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE { sums[i] = native_floats(0.0f); });
    for (std::size_t d = 0; d < head_dim; ++d, queries += stride)
        unrolled<Tiles>([&](auto t) KVCACHE_INLINE {
            const f32x16 keys = tiles[t](d);
            unrolled<N>([&](auto i) KVCACHE_INLINE {
                const native_floats query(queries[i]);
                unrolled<native_parts>([&](auto p) KVCACHE_INLINE {
                    auto& sum = sums[i * vectors + t * native_parts + p];
                    sum = fused(query, keys.part[p], sum);
                });
            });
        });
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i].store_unaligned(scores + (i / vectors * most_tiles) * tile_tokens + i % vectors * native_lanes);
    });
}

/// What products of codes multiply the sum of a query's numbers by: the first number of a table.
template <unsigned Bits>
[[nodiscard]] KVCACHE_INLINE inline std::int32_t first_of(const code_quads<Bits>& of) noexcept {
    if constexpr (Bits == 8)
        return 1;
    else
        return of.table[0];
}

/// Sums of products of N queries with the fours [begin, end) of 16 rows, as dots_of and byte_dots_of have them. `own`:
/// of each query its numbers' sum, times first_of.
template <unsigned Bits, bool Linear, std::size_t N>
KVCACHE_INLINE inline void products_of(const code_quads<Bits>& of, std::size_t begin, std::size_t end,
                                       const std::byte* const (&queries)[N], const std::int32_t (&own)[N],
                                       f32x16 (&to)[N]) noexcept {
    if constexpr (Bits == 8)
        dots_of<Bits, N>(of, begin, end, queries, own, to);
    else
        byte_dots_of<Bits, Linear, N>(of, begin, end, queries, own, to);
}

/// Scores of N queries from `first` on with a tile of whole-number keys: one chain over ascending groups.
/// scores: (N, most_tiles, 16)
template <unsigned Bits, bool Linear, std::size_t N>
inline void score_dots(const coded_queries<numbers_that_meet<Bits>>& queries, std::size_t first, const side_codes& keys,
                       std::size_t head_dim, float* scores) noexcept {
    const auto codes = packed_codes<Bits>(page_side::keys, head_dim).view(keys.codes, keys.table);
    f32x16 sums[N];
    for (std::size_t i = 0; i < N; ++i)
        sums[i] = f32x16::zero();
    std::size_t g = 0;
    for (std::size_t begin = 0; begin < head_dim; begin += keys.group, ++g) {
        const std::size_t end = std::min(begin + keys.group, head_dim);
        const std::byte* asked[N];
        std::int32_t own[N];
        for (std::size_t i = 0; i < N; ++i) {
            asked[i] = queries.codes(first + i) + begin / 4 * numbers_that_meet<Bits>::quad_bytes;
            own[i] = queries.sum(first + i, begin / 16, (end + 15) / 16) * first_of<Bits>(codes);
        }
        f32x16 dots[N];
        products_of<Bits, Linear, N>(codes, begin / 4, (end + 3) / 4, asked, own, dots);
        const f32x16 scales = f32x16::load(keys.scales + g * tile_tokens);
        for (std::size_t i = 0; i < N; ++i)
            sums[i] = fma(dots[i], scales, sums[i]);
    }
    for (std::size_t i = 0; i < N; ++i)
        (sums[i] * f32x16::broadcast(queries.scale(first + i))).store(scores + i * most_tiles * tile_tokens);
}

/// The same where each of head_dim has a step and a middle: the steps are the queries' by now, and the products with
/// the middles are added. middle: (N)
template <std::size_t N>
inline void score_channels(const coded_queries<byte_numbers>& queries, const side_codes& keys, std::size_t head_dim,
                           const float* middle, float* scores) noexcept {
    const auto codes = packed_codes<4>(page_side::keys, head_dim).view(keys.codes, keys.table);
    const std::byte* asked[N];
    std::int32_t own[N];
    for (std::size_t i = 0; i < N; ++i) {
        asked[i] = queries.codes(i);
        own[i] = queries.sum(i, 0, (head_dim + 15) / 16) * first_of<4>(codes);
    }
    f32x16 dots[N];
    products_of<4, true, N>(codes, 0, (head_dim + 3) / 4, asked, own, dots);
    for (std::size_t i = 0; i < N; ++i)
        fma(dots[i], f32x16::broadcast(queries.scale(i)), f32x16::broadcast(middle[i]))
            .store(scores + i * most_tiles * tile_tokens);
}

/// Fetches the codes of a tile that comes soon, a line of keys and a line of values by turns, a few with each column of
/// values: what is asked for all at once is in part forgotten.
class code_fetch {
public:
    code_fetch() = default;
    /// Of tile `of`, in as many steps as it has columns.
    code_fetch(const attention_tile& of, std::size_t columns) noexcept
        : keys_(of.ahead_key_codes),
          values_(of.ahead_value_codes),
          of_keys_(keys_ == nullptr ? 0 : of.codes.keys.bytes),
          of_values_(values_ == nullptr ? 0 : of.codes.values.bytes),
          step_((std::max(of_keys_, of_values_) / columns + 63) / 64 * 64) {}

    KVCACHE_INLINE void some() noexcept {
        for (const std::size_t end = next_ + step_; next_ < end; next_ += 64) {
            if (next_ < of_keys_)
                prefetch(keys_, next_);
            if (next_ < of_values_)
                prefetch(values_, next_);
        }
    }

private:
    const std::byte *keys_ = nullptr, *values_ = nullptr;
    std::size_t of_keys_ = 0, of_values_ = 0, step_ = 0, next_ = 0;
};

/// What values of a tile are weighted with, query by query. Lanes that a query does not see weigh nothing.
template <std::size_t N>
struct code_weights {
    const float* lanes[N];
    float rescale[N]; ///< What sums are multiplied by before.
    bool rescaled;
};

/// Adds weighted values to the sums of N queries, in 16 * Columns numbers: one chain over ascending lanes.
template <std::size_t N, std::size_t Columns, class Reader>
inline void add_strips(const Reader& values, std::size_t column, const code_weights<N>& weights, float* to,
                       std::size_t stride, code_fetch& ahead) noexcept {
    unrolled<Columns>([&](auto) KVCACHE_INLINE { ahead.some(); });
    constexpr std::size_t vectors = Columns * native_parts;
    native_floats sums[N * vectors];
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i] = native_floats::load_unaligned(to + i / vectors * stride + i % vectors * native_lanes);
    });
    if (weights.rescaled)
        unrolled<N * vectors>([&](auto i)
                                  KVCACHE_INLINE { sums[i] = sums[i] * native_floats(weights.rescale[i / vectors]); });
    for (std::size_t lane = 0; lane < tile_tokens; ++lane)
        unrolled<Columns>([&](auto c) KVCACHE_INLINE {
            const f32x16 numbers = values(lane, column + c);
            unrolled<N>([&](auto i) KVCACHE_INLINE {
                const native_floats weight(weights.lanes[i][lane]);
                unrolled<native_parts>([&](auto p) KVCACHE_INLINE {
                    auto& sum = sums[i * vectors + c * native_parts + p];
                    sum = fused(weight, numbers.part[p], sum);
                });
            });
        });
    unrolled<N * vectors>([&](auto i) KVCACHE_INLINE {
        sums[i].store_unaligned(to + i / vectors * stride + i % vectors * native_lanes);
    });
}

/// The same for columns [column, last), as many at once as fit.
template <std::size_t N, std::size_t Columns, class Reader>
inline void add_columns_of(const Reader& values, std::size_t column, std::size_t last, const code_weights<N>& weights,
                           float* to, std::size_t stride, code_fetch& ahead) noexcept {
    for (; column + Columns <= last; column += Columns)
        add_strips<N, Columns>(values, column, weights, to + column * 16, stride, ahead);
    if constexpr (Columns > 1)
        add_columns_of<N, Columns / 2>(values, column, last, weights, to, stride, ahead);
}

/// What was written here is read from memory: a compiler that knows the numbers takes vectors apart for them.
inline void in_memory(const void* at) noexcept {
#if defined(__GNUC__)
    asm volatile("" : : "r"(at) : "memory");
#else
    static_cast<void>(at);
#endif
}

/// Adds weighted whole-number values to the sums of N queries: exact over the lanes of a tile, one chain over tiles.
/// Weights are whole numbers too, in units of their largest; they are multiplied by the lanes' scales of each group
/// before, or the sums by the steps of each of head_dim behind.
template <unsigned Bits, bool Linear, std::size_t N>
inline void add_dots(const side_codes& values, std::size_t head_dim, const code_weights<N>& weights, float* to,
                     std::size_t stride, code_fetch& ahead) noexcept {
    using numbers = numbers_that_meet<Bits>;
    constexpr auto limit = static_cast<float>(numbers::largest);
    const auto codes = packed_codes<Bits>(page_side::values, head_dim).view(values.codes, values.table);
    const bool channels = Linear && values.format == code_format::channels;
    const std::size_t columns = value_width(head_dim) / 16, each = channels ? columns : (values.group + 15) / 16;
    f32x16 most = f32x16::broadcast(1.0f); // the largest size of a lane's scales
    if (!channels) {
        most = f32x16::zero();
        for (std::size_t first = 0, g = 0; first < columns; first += each, ++g) {
            const f32x16 scales = f32x16::load(values.scales + g * tile_tokens);
            most = max(max(scales, -scales), most);
        }
    }
    const f32x16 eight = f32x16::broadcast(8.0f);
    f32x16 lanes[N], units[N], all[N];
    for (std::size_t i = 0; i < N; ++i) {
        lanes[i] = f32x16::load(weights.lanes[i]);
        const float top = largest(lanes[i] * most);
        units[i] = f32x16::broadcast(top / limit);
        all[i] = channels ? f32x16::broadcast(sum(lanes[i])) : f32x16::zero();
        lanes[i] = lanes[i] * f32x16::broadcast(top > least_size ? limit / top : 0.0f);
    }
    if (weights.rescaled)
        for (std::size_t i = 0; i < N; ++i)
            for (std::size_t c = 0; c < columns * 16; c += 16) {
                float* const at = to + i * stride + c;
                (f32x16::load(at) * f32x16::broadcast(weights.rescale[i])).store(at);
            }
    // Of some groups at once, so that one's weights need not wait for another's sums.
    constexpr std::size_t at_once = 8;
    alignas(64) std::byte whole[at_once][N][numbers::bytes];
    std::int32_t own[at_once][N];
    for (std::size_t begin = 0, g = 0; begin < columns; begin += at_once * each, g += at_once) {
        const std::size_t end = std::min(begin + at_once * each, columns);
        for (std::size_t first = begin, some = 0; first < end; first += each, ++some)
            for (std::size_t i = 0; i < N; ++i) {
                const f32x16 weighs =
                    channels ? lanes[i] : lanes[i] * f32x16::load(values.scales + (g + some) * tile_tokens);
                own[some][i] = numbers::put(weighs, whole[some][i]) * first_of<Bits>(codes);
            }
        in_memory(whole);
        for (std::size_t first = begin, some = 0; first < end; first += each, ++some) {
            const std::byte* asked[N];
            for (std::size_t i = 0; i < N; ++i)
                asked[i] = whole[some][i];
            for (std::size_t c = first; c < std::min(first + each, end); ++c) {
                ahead.some();
                f32x16 dots[N];
                products_of<Bits, Linear, N>(codes, c * 4, c * 4 + 4, asked, own[some], dots);
                for (std::size_t i = 0; i < N; ++i) {
                    float* const at = to + i * stride + c * 16;
                    const f32x16 sums = f32x16::load(at);
                    if (channels) {
                        const f32x16 step = f32x16::load(values.scales + c * 16);
                        const f32x16 middle = fma(
                            step, eight, f32x16::load(values.scales + columns * 16 + c * 16)); // of codes from -8 on
                        fma(dots[i] * units[i], step, fma(all[i], middle, sums)).store(at);
                    } else {
                        fma(dots[i], units[i], sums).store(at);
                    }
                }
            }
        }
    }
}

} // namespace kvcache::detail

// ---- kvcache/attention/coded_tiles.hpp ----------------------------------------------------------------------------

namespace kvcache::detail {

/// Whether keys in a format meet queries that are whole numbers, as they are or turned.
[[nodiscard]] constexpr bool wants_coded_queries(code_format format) noexcept {
    return format == code_format::int8 || format == code_format::four || format == code_format::three ||
           format == code_format::two || format == code_format::channels;
}

/// What queries do with tiles that are read as they are coded. A query's bits depend on no other, nor on how many tiles
/// come at once; formats that hold numbers, not whole numbers and scales, give the bits that the decoded tile gives.
class coded_tiles {
public:
    coded_tiles(std::size_t head_dim, std::size_t capacity)
        : head_dim_(head_dim),
          width_(value_width(head_dim)),
          plain_(capacity * width_),
          whole_(head_dim, capacity),
          bytes_(head_dim, capacity),
          turned_(head_dim, 4),
          steps_(2 * width_),
          query_(width_) {}

    /// Gives query `q` its numbers, which are multiplied by `scale`. (head_dim)
    void place(std::size_t q, const float* numbers, float scale) noexcept {
        float* const own = plain_.data() + q * width_;
        for (std::size_t d = 0; d < head_dim_; ++d)
            own[d] = numbers[d] * scale;
        whole_.place(q, own, 1.0f);
        bytes_.place(q, own, 1.0f);
    }

    /// Scores of `count` queries from `first` on with the tiles, all in the format of the first one's keys.
    /// queries: (head_dim, count), scores: (count, most_tiles, 16)
    void score(std::span<const attention_tile> tiles, const float* queries, std::size_t first, std::size_t count,
               float* scores);

    /// Adds the weighted values of tile `t` to the sums of `count` queries, the first of which is `q` among the
    /// weights; `stride` numbers from one query's sums to the next. A lane that a query does not see has a weight of
    /// zero. `ahead` is fetched meanwhile.
    void add(const side_codes& values, const tile_weights& weights, std::size_t t, std::size_t q, std::size_t count,
             float* to, std::size_t stride, code_fetch& ahead) const;

private:
    template <class Number>
    void by_numbers(std::span<const attention_tile> tiles, const float* queries, std::size_t count, float* scores);
    template <unsigned Bits>
    void by_dots(std::span<const attention_tile> tiles, std::size_t first, std::size_t count, float* scores) const;
    void by_channels(std::span<const attention_tile> tiles, std::size_t first, std::size_t count, float* scores);
    template <class Some>
    static void together(std::size_t count, const Some& some);

    std::size_t head_dim_;
    std::size_t width_;
    aligned_vector<float> plain_; // queries (capacity, width)
    coded_queries<whole_numbers> whole_;
    coded_queries<byte_numbers> bytes_;
    coded_queries<byte_numbers> turned_; // times the steps of channels
    aligned_vector<float> steps_;        // and the middles (2, width)
    aligned_vector<float> query_;
};

[[nodiscard]] inline float* scores_of(float* scores, std::size_t q, std::size_t t) noexcept {
    return scores + (q * most_tiles + t) * tile_tokens;
}

// Queries four, two and one at a time: some.operator()<N>(first).
template <class Some>
void coded_tiles::together(std::size_t count, const Some& some) {
    std::size_t q = 0;
    for (; q + 4 <= count; q += 4)
        some.template operator()<4>(q);
    for (; q + 2 <= count; q += 2)
        some.template operator()<2>(q);
    for (; q < count; ++q)
        some.template operator()<1>(q);
}

// The fewer queries, the more tiles at once.
template <class Number>
void coded_tiles::by_numbers(std::span<const attention_tile> tiles, const float* queries, std::size_t count,
                             float* scores) {
    const auto reads = [&](std::size_t t) {
        return wide_reader<Number>{reinterpret_cast<const Number*>(tiles[t].codes.keys.codes)};
    };
    together(count, [&]<std::size_t N>(std::size_t q) {
        constexpr std::size_t many = tiles_together(N);
        std::size_t t = 0;
        for (; t + many <= tiles.size(); t += many)
            [&]<std::size_t... I>(std::index_sequence<I...>) {
                const wide_reader<Number> some[] = {reads(t + I)...};
                score_strips<N, many>(queries + q, count, head_dim_, some, scores_of(scores, q, t));
            }
        (std::make_index_sequence<many>{});
        for (; many > 1 && t < tiles.size(); ++t) {
            const wide_reader<Number> alone[] = {reads(t)};
            score_strips<N, 1>(queries + q, count, head_dim_, alone, scores_of(scores, q, t));
        }
    });
}

template <unsigned Bits>
void coded_tiles::by_dots(std::span<const attention_tile> tiles, std::size_t first, std::size_t count,
                          float* scores) const {
    const auto& queries = [&]() -> const auto& {
        if constexpr (Bits == 8)
            return whole_;
        else
            return bytes_;
    }
    ();
    for (std::size_t t = 0; t < tiles.size(); ++t) {
        const side_codes& keys = tiles[t].codes.keys;
        together(count, [&]<std::size_t N>(std::size_t q) {
            if (Bits == 4 && is_linear<Bits>(keys.table))
                score_dots<Bits, Bits == 4, N>(queries, first + q, keys, head_dim_, scores_of(scores, q, t));
            else
                score_dots<Bits, false, N>(queries, first + q, keys, head_dim_, scores_of(scores, q, t));
        });
    }
}

// Queries are turned once for the tiles that share their steps.
inline void coded_tiles::by_channels(std::span<const attention_tile> tiles, std::size_t first, std::size_t count,
                                     float* scores) {
    for (std::size_t t = 0, last; t < tiles.size(); t = last) {
        const half* const steps = tiles[t].codes.keys.scales;
        for (last = t + 1; last < tiles.size() && tiles[last].codes.keys.scales == steps;)
            ++last;
        for (std::size_t d = 0; d < width_; d += 16) {
            const f32x16 step = f32x16::load(steps + d);
            step.store(steps_.data() + d);
            fma(step, f32x16::broadcast(8.0f), f32x16::load(steps + width_ + d)).store(steps_.data() + width_ + d);
        }
        together(count, [&]<std::size_t N>(std::size_t q) {
            float middle[N];
            for (std::size_t i = 0; i < N; ++i) {
                const float* const own = plain_.data() + (first + q + i) * width_;
                f32x16 sums = f32x16::zero();
                for (std::size_t d = 0; d < width_; d += 16) {
                    const f32x16 x = f32x16::load(own + d);
                    sums = fma(x, f32x16::load(steps_.data() + width_ + d), sums);
                    (x * f32x16::load(steps_.data() + d)).store(query_.data() + d);
                }
                middle[i] = sum(sums);
                turned_.place(i, query_.data(), 1.0f);
            }
            for (std::size_t each = t; each < last; ++each)
                score_channels<N>(turned_, tiles[each].codes.keys, head_dim_, middle, scores_of(scores, q, each));
        });
    }
}

inline void coded_tiles::score(std::span<const attention_tile> tiles, const float* queries, std::size_t first,
                               std::size_t count, float* scores) {
    switch (tiles.front().codes.keys.format) {
    case code_format::none:
        break;
    case code_format::bf16:
        by_numbers<bfloat16>(tiles, queries, count, scores);
        break;
    case code_format::f16:
        by_numbers<half>(tiles, queries, count, scores);
        break;
    case code_format::channels:
        by_channels(tiles, first, count, scores);
        break;
    case code_format::int8:
        by_dots<8>(tiles, first, count, scores);
        break;
    case code_format::four:
        by_dots<4>(tiles, first, count, scores);
        break;
    case code_format::three:
        by_dots<3>(tiles, first, count, scores);
        break;
    case code_format::two:
        by_dots<2>(tiles, first, count, scores);
        break;
    }
}

inline void coded_tiles::add(const side_codes& values, const tile_weights& weights, std::size_t t, std::size_t q,
                             std::size_t count, float* to, std::size_t stride, code_fetch& ahead) const {
    const auto for_some = [&](const auto& body) {
        together(count, [&]<std::size_t N>(std::size_t i) {
            code_weights<N> own;
            own.rescaled = weights.rescaled[t];
            for (std::size_t n = 0; n < N; ++n) {
                own.lanes[n] = weights.lanes[q + i + n][t];
                own.rescale[n] = weights.rescale[t][q + i + n];
            }
            body(own, to + i * stride);
        });
    };
    const auto by_numbers = [&](const auto& reader) {
        for_some([&]<std::size_t N>(const code_weights<N>& own, float* sums) {
            add_columns_of<N, columns_together(N)>(reader, 0, width_ / 16, own, sums, stride, ahead);
        });
    };
    const auto by_dots = [&](auto bits, auto linear) {
        for_some([&]<std::size_t N>(const code_weights<N>& own, float* sums) {
            add_dots<decltype(bits)::value, decltype(linear)::value, N>(values, head_dim_, own, sums, stride, ahead);
        });
    };
    switch (values.format) {
    case code_format::none:
        break;
    case code_format::bf16:
        by_numbers(wide_reader<bfloat16>{reinterpret_cast<const bfloat16*>(values.codes), width_ / 16});
        break;
    case code_format::f16:
        by_numbers(wide_reader<half>{reinterpret_cast<const half*>(values.codes), width_ / 16});
        break;
    case code_format::int8:
        by_dots(std::integral_constant<unsigned, 8>{}, std::false_type{});
        break;
    case code_format::four:
    case code_format::channels:
        if (is_linear<4>(values.table))
            by_dots(std::integral_constant<unsigned, 4>{}, std::true_type{});
        else
            by_dots(std::integral_constant<unsigned, 4>{}, std::false_type{});
        break;
    case code_format::three:
        by_dots(std::integral_constant<unsigned, 3>{}, std::false_type{});
        break;
    case code_format::two:
        by_dots(std::integral_constant<unsigned, 2>{}, std::false_type{});
        break;
    }
}

} // namespace kvcache::detail

// ---- kvcache/kernel/math.hpp --------------------------------------------------------------------------------------

namespace kvcache {

/// e to the power x, lane by lane, within 2 units in the last place; zero below -87 and for NaN, e^88 above 88.
/// Cost: 10 fused operations. Same bits on every target.
[[nodiscard]] inline f32x16 exp(const f32x16& x) noexcept {
    constexpr float lowest = -87.0f, highest = 88.0f;
    const f32x16 clamped = min(max(x, f32x16::broadcast(lowest)), f32x16::broadcast(highest));
    const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
    const f32x16 shifted = fma(clamped, f32x16::broadcast(1.44269504088896341f), magic);
    const f32x16 n = shifted - magic;
    // ln 2 in two parts, the first with trailing zeros, so that n * part is exact.
    f32x16 r = fma(n, f32x16::broadcast(-0.693359375f), clamped);
    r = fma(n, f32x16::broadcast(2.12194440e-4f), r);
    // Taylor to degree 7 on |r| <= 0.3466: the next term is under 1e-9.
    f32x16 p = f32x16::broadcast(1.0f / 5040.0f);
    p = fma(p, r, f32x16::broadcast(1.0f / 720.0f));
    p = fma(p, r, f32x16::broadcast(1.0f / 120.0f));
    p = fma(p, r, f32x16::broadcast(1.0f / 24.0f));
    p = fma(p, r, f32x16::broadcast(1.0f / 6.0f));
    p = fma(p, r, f32x16::broadcast(0.5f));
    p = fma(p, r, f32x16::broadcast(1.0f));
    p = fma(p, r, f32x16::broadcast(1.0f));
    return zero_below(p * power_of_two(shifted), x, lowest);
}

/// e to the power of one number: lane 0 of the vector form, so that scalars and vectors agree.
[[nodiscard]] inline float exp_one(float x) noexcept {
    alignas(64) float lane[16];
    exp(f32x16::broadcast(x)).store(lane);
    return lane[0];
}

/// x / (1 + e^-x), lane by lane; below -88 its value there, which is -5e-37.
[[nodiscard]] inline f32x16 silu(const f32x16& x) noexcept {
    // exp ends in a product with a power of two, which is exact: fused into this sum or not, the bits are the same.
    return max(f32x16::broadcast(-88.0f), x) / (f32x16::broadcast(1.0f) + exp(-x));
}

namespace detail {

/// Calls body(offset, count) for each run of 16 numbers and for the shorter rest.
template <class Body>
inline void by_sixteen(std::size_t size, Body body) {
    std::size_t i = 0;
    for (; i + 16 <= size; i += 16)
        body(i, std::size_t{16});
    if (i < size)
        body(i, size - i);
}

} // namespace detail

/// x / sqrt(mean(x^2) + epsilon) * weight (Zhang & Sennrich 2019). `out` may be `x`. (columns)
/// The sum runs in 16 lanes ascending, then by one fixed tree.
inline void rms_norm(std::span<const float> x, std::span<const float> weight, float epsilon, std::span<float> out) {
    f32x16 squares = f32x16::zero();
    detail::by_sixteen(x.size(), [&](std::size_t i, std::size_t n) {
        const f32x16 v = f32x16::load_up_to(x.data() + i, n);
        squares = fma(v, v, squares);
    });
    const float mean = sum(squares) / static_cast<float>(x.size());
    const f32x16 scale = f32x16::broadcast(1.0f / std::sqrt(mean + epsilon));
    detail::by_sixteen(x.size(), [&](std::size_t i, std::size_t n) {
        const f32x16 v = f32x16::load_up_to(x.data() + i, n) * scale;
        (v * f32x16::load_up_to(weight.data() + i, n)).store_up_to(out.data() + i, n);
    });
}

/// silu(gate) * up, into `out`, which may be `gate` (Shazeer 2020, SwiGLU). (columns)
inline void gated_silu(std::span<const float> gate, std::span<const float> up, std::span<float> out) {
    detail::by_sixteen(gate.size(), [&](std::size_t i, std::size_t n) {
        const f32x16 g = silu(f32x16::load_up_to(gate.data() + i, n));
        (g * f32x16::load_up_to(up.data() + i, n)).store_up_to(out.data() + i, n);
    });
}

/// to += from. (columns)
inline void add_to(std::span<float> to, std::span<const float> from) {
    detail::by_sixteen(to.size(), [&](std::size_t i, std::size_t n) {
        (f32x16::load_up_to(to.data() + i, n) + f32x16::load_up_to(from.data() + i, n)).store_up_to(to.data() + i, n);
    });
}

} // namespace kvcache

// ---- kvcache/attention/softmax_state.hpp --------------------------------------------------------------------------

namespace kvcache {

/// The partial softmax of one query over some of its positions, as it lies in memory: the weighted sums of the values,
/// the weights in 16 lanes, and the largest score. (width, 16, 1), padded to whole cache lines.
class softmax_state {
public:
    /// The numbers one takes, for values of `width` numbers.
    [[nodiscard]] static constexpr std::size_t numbers(std::size_t width) noexcept { return width + 32; }

    softmax_state(float* at, std::size_t width) noexcept : at_(at), width_(width) {}

    [[nodiscard]] float* sums() const noexcept { return at_; }
    [[nodiscard]] f32x16 weight() const noexcept { return f32x16::load(at_ + width_); }
    [[nodiscard]] float& largest() const noexcept { return at_[width_ + 16]; }
    void set_weight(const f32x16& weight) const noexcept { weight.store(at_ + width_); }

    /// Whether it has seen no position.
    [[nodiscard]] bool empty() const noexcept { return largest() == -std::numeric_limits<float>::infinity(); }

    /// Makes it empty; its sums may be anything then.
    void forget() const noexcept { largest() = -std::numeric_limits<float>::infinity(); }

    /// Makes it empty, with sums of zero.
    void clear() const noexcept {
        std::fill_n(at_, width_ + 16, 0.0f);
        forget();
    }

    /// Takes in the state of later positions. Not associative in its last bits: always merge in ascending order.
    void merge(const softmax_state& later) const noexcept {
        if (later.empty())
            return;
        if (empty()) {
            std::copy_n(later.at_, width_ + 17, at_);
            return;
        }
        const float top = std::max(later.largest(), largest());
        const f32x16 keep = f32x16::broadcast(exp_one(largest() - top));
        const f32x16 add = f32x16::broadcast(exp_one(later.largest() - top));
        largest() = top;
        for (std::size_t i = 0; i < width_ + 16; i += 16) { // the sums, and the weights behind them
            const f32x16 added = f32x16::load(later.at_ + i) * add;
            fma(f32x16::load(at_ + i), keep, added).store(at_ + i);
        }
    }

    /// Writes the output: sums over the total weight, which 16 lanes fold to by one fixed tree. (head_dim)
    void finish(std::size_t head_dim, float* out) const noexcept {
        const f32x16 total = f32x16::broadcast(sum(weight()));
        detail::by_sixteen(head_dim, [&](std::size_t d, std::size_t n) {
            (f32x16::load(sums() + d) / total).store_up_to(out + d, n);
        });
    }

private:
    float* at_;
    std::size_t width_;
};

} // namespace kvcache

// ---- kvcache/core/version.hpp -------------------------------------------------------------------------------------

/// The one place where the version lives; CMake reads it from here.
#define KVCACHE_VERSION_MAJOR 0
#define KVCACHE_VERSION_MINOR 1
#define KVCACHE_VERSION_PATCH 0

namespace kvcache {

/// The revision of the numeric contract: the order of every reduction, the polynomials, the tile and split
/// lengths. It changes whenever the same inputs may give other bits, and it is part of a cache's identity.
inline constexpr unsigned numeric_contract_revision = 1;

/// The revision of the format of records: what snapshots and tiers keep (docs/format.md). It changes with every byte
/// that means something else, and it is part of a cache's identity, so that records of another one are not found.
inline constexpr unsigned record_format_revision = 1;

} // namespace kvcache

// ---- kvcache/core/compiled.hpp ------------------------------------------------------------------------------------

// The library has two forms. Header-only, the standard: every function is defined in a header. Compiled, where
// KVCACHE_COMPILED is defined: what is expensive to compile is only declared in its header, and defined once, in the
// objects of the CMake target kvcache::compiled, which defines KVCACHE_COMPILED for itself and for whoever links it.
//
//     KVCACHE_ONCE   before a declaration: the compiled form defines this function once
//     KVCACHE_BODY   before its definition, in an impl/ header
//
// Vector instructions, contract checks and the version decide what some classes hold and what their inline functions
// do. The compiled form writes them into the names of its functions, so that objects built otherwise do not link.
#if !defined(KVCACHE_COMPILED)
#define KVCACHE_BODY inline
#define KVCACHE_ONCE
#else
#define KVCACHE_BODY
#if defined(__AVX512VNNI__)
#define KVCACHE_BUILT_FOR "avx512vnni"
#elif defined(__AVX512F__)
#define KVCACHE_BUILT_FOR "avx512"
#elif defined(__AVX2__) && defined(__FMA__)
#define KVCACHE_BUILT_FOR "avx2"
#elif defined(__AVX__)
#define KVCACHE_BUILT_FOR "avx"
#else
#define KVCACHE_BUILT_FOR "base"
#endif
#if KVCACHE_CONTRACTS
#define KVCACHE_BUILT_WITH "contracts"
#else
#define KVCACHE_BUILT_WITH "unchecked"
#endif
#define KVCACHE_TEXT(x) #x
#define KVCACHE_VERSION_TEXT(major, minor, patch)                                                                      \
    "v" KVCACHE_TEXT(major) "_" KVCACHE_TEXT(minor) "_" KVCACHE_TEXT(patch)
#define KVCACHE_BUILT_AS KVCACHE_VERSION_TEXT(KVCACHE_VERSION_MAJOR, KVCACHE_VERSION_MINOR, KVCACHE_VERSION_PATCH)
#if defined(__GNUC__)
#define KVCACHE_ONCE [[gnu::abi_tag(KVCACHE_BUILT_AS, KVCACHE_BUILT_FOR, KVCACHE_BUILT_WITH)]]
#else
#define KVCACHE_ONCE
#endif
#endif

// ---- kvcache/attention/query_block.hpp ----------------------------------------------------------------------------

// Longer than 300 lines: one block, whose tiles are numbers or codes.

namespace kvcache {

namespace detail {

/// `exp_one`, where it is called too rarely to be worth inlining.
[[nodiscard, gnu::noinline]] inline float exp_apart(float x) noexcept {
    return exp_one(x);
}

} // namespace detail

/// Queries on one key and value head that walk tiles together, each with a running softmax of its own. What a query
/// computes is a chain of its own, so the bits do not depend on which queries share a block, nor on how many tiles come
/// at once.
///
/// Scores: one chain of fused multiply-adds over head_dim. Softmax: rescaled a tile at a time, sums kept in 16 lanes
/// and folded once. At every multiple of `split` positions a new partial softmax begins; partials merge in ascending
/// order, or are kept apart for somebody who merges them (so that splits may run on several threads).
class query_block {
public:
    static constexpr std::size_t split = 1024; ///< Positions; part of the numeric contract.
    static constexpr std::size_t most_tiles = detail::most_tiles;

    /// A block of up to `capacity` queries. All its memory is taken here.
    query_block(std::size_t head_dim, std::size_t capacity)
        : head_dim_(head_dim),
          width_(value_width(head_dim)),
          stride_(softmax_state::numbers(width_)),
          capacity_(capacity),
          packed_(capacity * head_dim),
          states_(2 * capacity * stride_),
          coded_(head_dim, capacity) {
        asked_.reserve(capacity);
    }

    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::size_t size() const noexcept { return asked_.size(); }

    void clear() noexcept {
        asked_.clear();
        select(0, 0);
    }

    /// Adds a query that sees the positions up to `position`. Its partials go to `partials`, one for each split, or are
    /// merged here if that is null. (splits, softmax_state::numbers(width))
    void add(std::size_t position, float* partials = nullptr) {
        expects(asked_.size() < capacity_, "a block holds as many queries as its capacity");
        asked_.push_back({.limit = position, .partials = partials});
        running(asked_.size() - 1).clear();
        merged(asked_.size() - 1).forget();
    }

    /// From now on the queries [first, last) attend, once each is placed.
    void select(std::size_t first, std::size_t last) noexcept {
        first_ = first;
        last_ = last;
        groups_ = (last - first + detail::most_together - 1) / detail::most_together;
        each_ = groups_ == 0 ? 0 : (last - first) / groups_;
        longer_ = last - first - groups_ * each_;
    }

    /// Gives a selected query its numbers, rotated, and multiplies them by `scale`. (head_dim)
    void place(std::size_t q, std::span<const float> numbers, float scale) {
        const std::size_t selected = q - first_, of_longer = longer_ * (each_ + 1);
        const std::size_t size = selected < of_longer ? each_ + 1 : each_; // of its group
        const std::size_t place = (selected < of_longer ? selected : selected - of_longer) % size;
        float* to = packed_.data() + (selected - place) * head_dim_ + place;
        const float* from = numbers.data();
        for (std::size_t d = 0, dim = head_dim_; d < dim; ++d)
            to[d * size] = from[d] * scale;
        if (wants_whole_)
            coded_.place(selected, from, scale);
    }

    /// Whether queries that are placed from now on are to meet keys of whole numbers.
    void want_whole(bool wanted) noexcept { wants_whole_ = wanted; }

    /// The selected queries take in tiles, which ascend in position from split to split, and within a call.
    /// `Coded`: some may be read as they are coded.
    template <bool Coded = false>
    void attend(std::span<const attention_tile> tiles) {
        while (!tiles.empty()) {
            const std::size_t region = tiles.front().position / split;
            std::size_t count = 1;
            while (count < std::min(tiles.size(), most_tiles) && tiles[count].position / split == region &&
                   (!Coded || alike(tiles[count], tiles.front())))
                ++count;
            for (std::size_t q = first_; q < last_; ++q)
                if (asked_[q].region != region) {
                    leave(q);
                    asked_[q].region = region;
                }
            if constexpr (Coded)
                if (tiles.front().codes.keys.format != code_format::none) {
                    for (std::size_t g = 0; g < groups_; ++g) {
                        const auto [begin, end] = together(g);
                        take_coded(tiles.first(count), begin, end - begin);
                    }
                    tiles = tiles.subspan(count);
                    continue;
                }
            const bool ahead = std::ranges::all_of(tiles.first(count), [](const auto& t) { return t.ahead_keys; });
            const std::size_t fetching = ahead ? std::min(groups_, count) : 0;
            for (std::size_t g = 0; g < groups_; ++g) {
                const auto [begin, end] = together(g);
                if (g < fetching)
                    dispatch<detail::most_together, true>(fetched_by(g, fetching, tiles.first(count)), begin,
                                                          end - begin);
                else
                    dispatch<detail::most_together, false>(tiles.first(count), begin, end - begin);
            }
            tiles = tiles.subspan(count);
        }
    }
    void attend(const attention_tile& tile) { attend(std::span(&tile, 1)); }

    /// Ends a query that merges here: writes its output. (head_dim)
    void finish(std::size_t q, float* out) {
        leave(q);
        merged(q).finish(head_dim_, out);
    }

    /// Ends the partial softmax that a query is in.
    void leave(std::size_t q) {
        const softmax_state from = running(q);
        if (from.empty())
            return;
        if (float* partials = asked_[q].partials)
            std::copy_n(from.sums(), stride_, partials + asked_[q].region * stride_);
        else
            merged(q).merge(from);
        from.clear();
    }

private:
    struct question {
        std::size_t limit = 0;     // the last position it sees
        std::size_t region = 0;    // the split its running softmax is of
        float* partials = nullptr; // (splits, stride)
    };
    struct range {
        std::size_t begin, end; // among the selected
    };

    [[nodiscard]] softmax_state running(std::size_t q) { return {states_.data() + q * stride_, width_}; }
    [[nodiscard]] softmax_state merged(std::size_t q) { return {states_.data() + (capacity_ + q) * stride_, width_}; }

    // The tiles, and what a group fetches meanwhile: its share of all that comes, else what it has.
    [[nodiscard]] std::span<const attention_tile> fetched_by(std::size_t group, std::size_t groups,
                                                             std::span<const attention_tile> tiles) {
        std::ranges::copy(tiles, fetching_.begin());
        for (std::size_t t = 0; t < tiles.size(); ++t)
            if (t * groups / tiles.size() != group) {
                fetching_[t].ahead_keys = tiles[t].keys;
                fetching_[t].ahead_values = tiles[t].values;
            }
        return std::span(fetching_).first(tiles.size());
    }

    [[nodiscard]] range together(std::size_t group) const noexcept {
        const std::size_t begin = group * each_ + std::min(group, longer_);
        return {begin, begin + each_ + (group < longer_ ? 1 : 0)};
    }

    template <std::size_t N, bool Ahead>
    KVCACHE_ONCE void dispatch(std::span<const attention_tile> tiles, std::size_t begin, std::size_t count);

    // N selected queries from `begin` on, over up to most_tiles tiles of one split.
    template <std::size_t N, bool Ahead>
    void take(std::span<const attention_tile> tiles, std::size_t begin) {
        const std::size_t q = first_ + begin;
        std::size_t least = asked_[q].limit, most = least;
        for (std::size_t i = 1; i < N; ++i) {
            least = std::min(least, asked_[q + i].limit);
            most = std::max(most, asked_[q + i].limit);
        }
        std::size_t count = tiles.size();
        while (count > 0 && tiles[count - 1].position > most) // seen by none
            --count;
        std::size_t whole = count;
        while (whole > 0 && tiles[whole - 1].end() > least + 1) // not seen to its end by all
            --whole;

        const float* queries = packed_.data() + begin * head_dim_;
        constexpr std::size_t at_once = detail::tiles_together(N);
        detail::tile_fetch ahead(tiles, head_dim_);
        std::size_t t = 0;
        for (; t + at_once <= count; t += at_once)
            detail::score<N, at_once, Ahead>(queries, head_dim_, tiles.data() + t, weights_.lanes[0][t], ahead);
        if constexpr (at_once > 1)
            for (; t < count; ++t)
                detail::score<N, 1, Ahead>(queries, head_dim_, tiles.data() + t, weights_.lanes[0][t], ahead);

        weigh(tiles.first(count), q, N);

        float* sums = running(q).sums();
        detail::add_values<N, Ahead>(tiles.data(), 0, whole, width_, weights_, 0, sums, stride_, ahead);
        for (t = whole; t < count; ++t)
            add_ragged<N>(tiles[t], t, q, least);
    }

    // The same for tiles that are read as they are coded.
    void take_coded(std::span<const attention_tile> tiles, std::size_t begin, std::size_t group) {
        const std::size_t q = first_ + begin;
        const auto [least, most] = std::ranges::minmax(std::span(asked_).subspan(q, group), {}, &question::limit);
        std::size_t count = tiles.size();
        while (count > 0 && tiles[count - 1].position > most.limit)
            --count;
        if (count == 0)
            return;
        coded_.score(tiles.first(count), packed_.data() + begin * head_dim_, begin, group, weights_.lanes[0][0]);
        weigh(tiles.first(count), q, group);
        for (std::size_t t = 0; t < count; ++t) {
            const side_codes& values = tiles[t].codes.values;
            detail::code_fetch ahead;
            if (begin == 0)
                ahead = detail::code_fetch(tiles[t], width_ / 16);
            if (tiles[t].end() <= least.limit + 1) {
                coded_.add(values, weights_, t, 0, group, running(q).sums(), stride_, ahead);
                continue;
            }
            for (std::size_t i = 0; i < group; ++i)
                if (seen(tiles[t], asked_[q + i].limit) > tiles[t].first)
                    coded_.add(values, weights_, t, i, 1, running(q + i).sums(), stride_, ahead);
        }
    }

    // Whether two tiles are read in one way.
    [[nodiscard]] static bool alike(const attention_tile& a, const attention_tile& b) noexcept {
        return a.codes.keys.format == b.codes.keys.format;
    }

    // A tile that some see less of: the lanes of all together, then the others query by query.
    template <std::size_t N>
    void add_ragged(const attention_tile& tile, std::size_t t, std::size_t q, std::size_t least) {
        attention_tile at[most_tiles];
        detail::tile_fetch ahead({at, 1}, width_); // fetches nothing
        at[t] = tile;
        at[t].last = seen(tile, least);
        detail::add_values<N, false>(at, t, t + 1, width_, weights_, 0, running(q).sums(), stride_, ahead);
        at[t].first = at[t].last;
        weights_.rescaled[t] = false;
        for (std::size_t i = 0; i < N; ++i) {
            at[t].last = seen(tile, asked_[q + i].limit);
            if (at[t].last > at[t].first)
                detail::add_values<1, false>(at, t, t + 1, width_, weights_, i, running(q + i).sums(), stride_, ahead);
        }
    }

    // Behind the last lane that a query with this limit sees.
    [[nodiscard]] static std::size_t seen(const attention_tile& tile, std::size_t limit) noexcept {
        return limit < tile.position ? tile.first : std::min(tile.last, tile.first + limit + 1 - tile.position);
    }

    // Scores of `count` queries to weights, in place; what came before is rescaled when a larger score appears.
    [[gnu::flatten]] void weigh(std::span<const attention_tile> tiles, std::size_t q, std::size_t count) {
        std::fill_n(weights_.rescaled, tiles.size(), false);
        for (std::size_t i = 0; i < count; ++i) {
            const softmax_state own = running(q + i);
            f32x16 weight = own.weight();
            float top = own.largest();
            for (std::size_t t = 0; t < tiles.size(); ++t) {
                weights_.rescale[t][i] = 1.0f;
                const std::size_t last = seen(tiles[t], asked_[q + i].limit);
                if (last == tiles[t].first)
                    continue;
                float* lanes = weights_.lanes[i][t];
                f32x16 scores = f32x16::load(lanes);
                if (tiles[t].holes != nullptr)
                    scores = scores + f32x16::load(tiles[t].holes);
                if (tiles[t].first != 0 || last != tile_tokens)
                    scores = within(scores, tiles[t].first, last, -std::numeric_limits<float>::infinity());
                if (any_above(scores, top))
                    if (const float larger = kvcache::largest(scores); larger > top) {
                        weights_.rescale[t][i] = detail::exp_apart(top - larger);
                        weights_.rescaled[t] = true;
                        top = larger;
                    }
                if (top == -std::numeric_limits<float>::infinity()) { // holes only, up to here
                    f32x16::zero().store(lanes);
                    continue;
                }
                const f32x16 weights = exp(scores - f32x16::broadcast(top));
                weight = fma(weight, f32x16::broadcast(weights_.rescale[t][i]), weights);
                weights.store(lanes);
            }
            own.largest() = top;
            own.set_weight(weight);
        }
    }

    std::size_t head_dim_;
    std::size_t width_;
    std::size_t stride_; // numbers of a softmax state
    std::size_t capacity_;
    std::size_t first_ = 0; // of the selected
    std::size_t last_ = 0;
    // The selected go through the kernels in groups of nearly one size: 8 as 4 + 4, not 6 + 2.
    std::size_t groups_ = 0;
    std::size_t each_ = 0;   // queries a group
    std::size_t longer_ = 0; // groups that have one more
    std::vector<question> asked_;
    aligned_vector<float> packed_; // the selected, a group at a time: (head_dim, queries of the group)
    aligned_vector<float> states_; // running, then merged: (2, capacity, stride)
    std::array<attention_tile, most_tiles> fetching_;
    detail::tile_weights weights_;
    detail::coded_tiles coded_;
    bool wants_whole_ = false;
};

template <std::size_t N, bool Ahead>
void query_block::dispatch(std::span<const attention_tile> tiles, std::size_t begin, std::size_t count) {
    if (count == N)
        take<N, Ahead && (N > 1)>(tiles, begin); // one query alone: the machine's own fetching suffices
    else if constexpr (N > 1)
        dispatch<N - 1, Ahead>(tiles, begin, count);
}

#if defined(KVCACHE_COMPILED)
extern template void query_block::dispatch<detail::most_together, true>(std::span<const attention_tile>, std::size_t,
                                                                        std::size_t);
extern template void query_block::dispatch<detail::most_together, false>(std::span<const attention_tile>, std::size_t,
                                                                         std::size_t);
#endif

} // namespace kvcache

// ---- kvcache/attention/attention_plan.hpp -------------------------------------------------------------------------

namespace kvcache {

/// Who attends to what, and in which order, for the rows of a batch: once for all layers and heads.
///
/// Rows whose page tables begin alike form a tree (as in Juravsky et al. 2024 and Ye et al. 2024): what they share is
/// read once, for all of them together; then each goes on with pages of its own. Long contexts are cut at the fixed
/// splits, and rows into blocks, until the threads have enough jobs of about one cost. None of it changes a bit.
class attention_plan {
public:
    /// Positions of a woven table that are read together, base by base; a split is so many of them.
    static constexpr std::size_t woven_block = 64;
    static_assert(query_block::split % woven_block == 0);

    /// Queries that one job has, at most; more if a single row's group has more.
    static constexpr std::size_t most_queries = 72;

    /// Makes the plan anew; memory it has is used again.
    /// Cost: O(parts log parts + jobs) walks along page tables.
    void deal(std::span<const planned_rows> parts, std::size_t group, std::size_t kv_heads, std::size_t threads) {
        parts_ = parts;
        group_ = group;
        jobs_.clear();
        segments_.clear();
        partials_ = 0;
        make_runs(kv_heads, threads);
        target_ = attention_run::none;
        if (threads > 1) {
            const std::size_t all = for_roots([&](std::size_t first, std::size_t last) {
                const std::size_t cost = place(first, last, {0, splits(first, last)});
                segments_.clear();
                return cost;
            });
            target_ = std::max<std::size_t>(1, all * kv_heads / (4 * threads));
        }
        for_roots([&](std::size_t first, std::size_t last) {
            cut(first, last, {0, splits(first, last)});
            return std::size_t{0};
        });
        // The longest first, so that the threads end together.
        std::ranges::sort(jobs_, [](const attention_job& a, const attention_job& b) {
            return a.cost != b.cost ? a.cost > b.cost : a.first_segment < b.first_segment;
        });
    }

    [[nodiscard]] std::span<const attention_run> runs() const noexcept { return runs_; }
    [[nodiscard]] std::span<const attention_segment> segments() const noexcept { return segments_; }
    [[nodiscard]] std::span<const attention_job> jobs() const noexcept { return jobs_; }

    /// Softmax partials of one key and value head that the jobs leave to be merged: for each query of a run, one a
    /// split of the run's positions.
    [[nodiscard]] std::size_t partials() const noexcept { return partials_; }

    /// Queries of the largest job.
    [[nodiscard]] static std::size_t capacity(std::size_t group) noexcept { return std::max(group, most_queries); }

    /// Splits that positions [0, end) touch.
    [[nodiscard]] static std::size_t splits(std::size_t end) noexcept {
        return (end + query_block::split - 1) / query_block::split;
    }

private:
    struct range {
        std::size_t first, last;
    };

    // To read a key and value costs as much as some queries.
    static constexpr std::size_t cost_of_reading = 4;

    void make_runs(std::size_t kv_heads, std::size_t threads) {
        order_.resize(parts_.size());
        for (std::size_t p = 0; p < parts_.size(); ++p)
            order_[p] = static_cast<std::uint32_t>(p);
        std::ranges::sort(order_, [&](std::uint32_t a, std::uint32_t b) {
            const std::size_t same = common(parts_[a].table, parts_[b].table);
            if (same == std::min(parts_[a].table.size(), parts_[b].table.size()))
                return parts_[a].table.size() != parts_[b].table.size()
                           ? parts_[a].table.size() < parts_[b].table.size()
                           : a < b;
            return before(parts_[a].table[same], parts_[b].table[same]);
        });
        runs_.clear();
        std::size_t queries = 0;
        for (std::size_t i = 0; i < order_.size(); ++i) {
            const planned_rows& part = parts_[order_[i]];
            std::size_t same = i == 0 ? 0 : shared(parts_[order_[i - 1]], part);
            const std::size_t at_once = rows_together(part.rows, kv_heads, threads);
            for (std::size_t row = 0; row < part.rows; row += at_once) {
                const std::size_t rows = std::min(at_once, part.rows - row);
                runs_.push_back({.part = order_[i],
                                 .first = row,
                                 .rows = rows,
                                 .end = part.position_of(row + rows - 1) + 1,
                                 .queries = queries,
                                 .same_entries = same});
                queries += rows * group_;
                same = part.table.size();
            }
        }
    }

    // As many rows as fill a job; fewer where threads would wait, but enough to fill the kernels.
    [[nodiscard]] std::size_t rows_together(std::size_t rows, std::size_t kv_heads, std::size_t threads) const {
        const std::size_t most = std::max<std::size_t>(1, most_queries / group_);
        if (threads == 1)
            return most;
        const std::size_t least = std::max<std::size_t>(1, 24 / group_), shares = 4 * threads;
        const std::size_t some = std::clamp((rows * kv_heads + shares - 1) / shares, least, most);
        const std::size_t runs = (rows + some - 1) / some;
        return (rows + runs - 1) / runs;
    }

    [[nodiscard]] static std::size_t common(std::span<const page_entry> a, std::span<const page_entry> b) {
        return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
    }
    // Leading entries that two parts read together: what is woven is read a block at a time, so it parts between them.
    [[nodiscard]] static std::size_t shared(const planned_rows& a, const planned_rows& b) {
        const std::size_t same = common(a.table, b.table);
        if (!a.woven && !b.woven)
            return same;
        std::size_t whole = 0, position = 0;
        for (std::size_t e = 0; e < same; ++e)
            if ((position += a.table[e].count) % woven_block == 0)
                whole = e + 1;
        return whole;
    }
    [[nodiscard]] static bool before(const page_entry& a, const page_entry& b) {
        return std::tuple(index_of(a.page), a.base, a.first, a.count) <
               std::tuple(index_of(b.page), b.base, b.first, b.count);
    }

    [[nodiscard]] std::size_t splits(std::size_t first, std::size_t last) const {
        std::size_t end = 0;
        for (std::size_t r = first; r < last; ++r)
            end = std::max(end, runs_[r].end);
        return splits(end);
    }

    // Calls body(first, last) for the runs of each tree, and adds up what it returns.
    template <class Body>
    std::size_t for_roots(Body body) {
        std::size_t all = 0;
        for (std::size_t first = 0, last; first < runs_.size(); first = last) {
            for (last = first + 1; last < runs_.size() && runs_[last].same_entries > 0;)
                ++last;
            all += body(first, last);
        }
        return all;
    }

    // Makes the segments of a job, in ascending position for each run. Returns their cost.
    std::size_t place(std::size_t first, std::size_t last, range of, std::size_t entry = 0, std::size_t position = 0) {
        std::size_t shared = parts_[runs_[first].part].table.size(), end = runs_[first].end;
        for (std::size_t r = first + 1; r < last; ++r) {
            shared = std::min(shared, runs_[r].same_entries);
            end = std::max(end, runs_[r].end);
        }
        const auto table = parts_[runs_[first].part].table;
        attention_segment made{runs_[first].part, entry, entry, position, first, last};
        const std::size_t from = of.first * query_block::split, to = std::min(end, of.last * query_block::split);
        if (to <= from)
            return 0;
        std::size_t at = position;
        for (; entry < shared && at < to; at += table[entry++].count)
            if (at + table[entry].count <= from) {
                made.first = entry + 1;
                made.position = at + table[entry].count;
            }
        made.last = entry;
        std::size_t cost = 0;
        if (made.first < made.last) {
            segments_.push_back(made);
            cost = cost_of(made, std::max(from, made.position), std::min(at, to));
        }
        if (at >= to)
            return cost;
        for (std::size_t next = first, fork; next < last; next = fork) {
            for (fork = next + 1; fork < last && runs_[fork].same_entries > shared;)
                ++fork;
            if (last - first > 1)
                cost += place(next, fork, of, entry, at);
        }
        return cost;
    }

    [[nodiscard]] std::size_t cost_of(const attention_segment& segment, std::size_t from, std::size_t to) const {
        std::size_t cost = cost_of_reading * (to - from);
        for (std::size_t r = segment.first_run; r < segment.last_run; ++r)
            cost += runs_[r].rows * group_ * (std::clamp(runs_[r].end, from, to) - from);
        return cost;
    }

    // Makes jobs of runs over splits: one, or several if it is too large.
    void cut(std::size_t first, std::size_t last, range of) {
        const std::size_t mark = segments_.size();
        const std::size_t cost = place(first, last, of);
        const std::size_t queries = runs_[last - 1].queries + runs_[last - 1].rows * group_ - runs_[first].queries;
        const bool crowded = last - first > 1 && queries > most_queries;
        if (!crowded && cost > target_ && of.last - of.first > 1) {
            segments_.resize(mark);
            const std::size_t middle = (of.first + of.last) / 2;
            keep_partials(first, last);
            cut(first, last, {of.first, middle});
            cut(first, last, {middle, of.last});
            return;
        }
        if (crowded || (last - first > 1 && cost > 2 * target_)) {
            segments_.resize(mark);
            const std::size_t middle = fork(first, last);
            const std::size_t apart = place(first, middle, of) + place(middle, last, of);
            segments_.resize(mark);
            if (crowded || apart <= cost + cost / 8) {
                cut(first, middle, of);
                cut(middle, last, of);
                return;
            }
            place(first, last, of);
        }
        jobs_.push_back({mark, segments_.size(), first, last, of.first, of.last, cost});
    }

    // Where runs share least; of several such places the middlemost.
    [[nodiscard]] std::size_t fork(std::size_t first, std::size_t last) const {
        const auto off = [&](std::size_t r) {
            return r > first + last - r ? 2 * r - first - last : first + last - 2 * r;
        };
        std::size_t best = first + 1;
        for (std::size_t r = first + 2; r < last; ++r)
            if (runs_[r].same_entries < runs_[best].same_entries ||
                (runs_[r].same_entries == runs_[best].same_entries && off(r) < off(best)))
                best = r;
        return best;
    }

    void keep_partials(std::size_t first, std::size_t last) {
        for (std::size_t r = first; r < last; ++r)
            if (runs_[r].partials == attention_run::none) {
                runs_[r].partials = partials_;
                partials_ += runs_[r].rows * group_ * splits(runs_[r].end);
            }
    }

    std::span<const planned_rows> parts_;
    std::size_t group_ = 1;
    std::size_t target_ = 0; // cost of a job on one head that need not be cut
    std::size_t partials_ = 0;
    std::vector<std::uint32_t> order_; // of parts, by their tables
    std::vector<attention_run> runs_;
    std::vector<attention_segment> segments_;
    std::vector<attention_job> jobs_;
};

} // namespace kvcache

// ---- kvcache/attention/attention_scratch.hpp ----------------------------------------------------------------------

namespace kvcache {

/// Lanes of a tile in a woven table: `lanes` has a bit for each that stands there.
struct woven_tile {
    page_id page = {};
    std::uint32_t tile = 0;
    std::uint32_t lanes = 0;
    std::int64_t base = 0;
    std::int64_t origin = 0; ///< Position of lane 0, were it there.

    [[nodiscard]] std::int64_t position() const noexcept { return origin + std::countr_zero(lanes); }
};

/// The working memory of one thread that attends, taken once.
struct attention_scratch {
    attention_scratch(std::size_t head_dim, std::size_t capacity)
        : block(head_dim, capacity),
          rotation(head_dim),
          query(head_dim),
          tiles(2 * query_block::most_tiles * (head_dim + value_width(head_dim)) * tile_tokens),
          holes(2 * query_block::most_tiles * tile_tokens) {
        woven.reserve(attention_plan::woven_block);
    }

    query_block block;
    std::vector<float> rotation;
    std::vector<float> query;
    aligned_vector<float> tiles;   ///< Decoded, where a codec decodes. (2 most_tiles, keys and values of a tile)
    aligned_vector<float> holes;   ///< (2 most_tiles, 16)
    std::vector<woven_tile> woven; ///< Of the block that is read.
};

} // namespace kvcache

// ---- kvcache/kernel/elementary.hpp --------------------------------------------------------------------------------

/// Double-precision elementary functions of our own: the same bits from every compiler and C library, which libm
/// does not promise. Accurate to about 1e-15; every product that meets a sum is an explicit std::fma.
namespace kvcache::elementary {

/// Natural logarithm of a positive, finite, normal number.
[[nodiscard]] inline double log(double x) noexcept {
    constexpr double ln2_high = 0x1.62e42fefa39efp-1, ln2_low = 0x1.abc9e3b39803fp-56;
    const auto bits = std::bit_cast<std::uint64_t>(x);
    auto exponent = static_cast<double>(static_cast<int>((bits >> 52) & 0x7ff) - 1023);
    double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent += 1.0;
    }
    // log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716: the terms fall by 34 each.
    const double s = (m - 1.0) / (m + 1.0);
    const double s2 = s * s;
    double p = 1.0 / 25.0;
    for (int k = 23; k >= 1; k -= 2)
        p = std::fma(p, s2, 1.0 / k);
    const double mantissa = 2.0 * s * p;
    return std::fma(exponent, ln2_high, std::fma(exponent, ln2_low, mantissa));
}

/// e to the power x, for |x| <= 700.
[[nodiscard]] inline double exp(double x) noexcept {
    constexpr double ln2_high = 0x1.62e42fefa39efp-1, ln2_low = 0x1.abc9e3b39803fp-56;
    const double n = std::nearbyint(x / ln2_high);
    const double r = std::fma(-n, ln2_low, std::fma(-n, ln2_high, x));
    double p = 1.0;
    for (int k = 18; k >= 1; --k)
        p = std::fma(p, r / k, 1.0);
    return p * std::bit_cast<double>((static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023)) << 52);
}

/// base to the power exponent, for a positive base.
[[nodiscard]] inline double power(double base, double exponent) noexcept {
    return exp(exponent * log(base));
}

/// Sine and cosine of one angle.
struct sine_cosine {
    double sine = 0.0;
    double cosine = 1.0;
};

/// Sine and cosine, for |x| <= 2^30: reduced by pi/2 in three parts, then Taylor on |r| <= pi/4.
[[nodiscard]] inline sine_cosine sincos(double x) noexcept {
    constexpr double first = 0x1.921fb54442d18p+0, second = 0x1.1a62633145c07p-54, third = -0x1.f1976b7ed8fbcp-110;
    const double n = std::nearbyint(x * 0x1.45f306dc9c883p-1);
    double r = std::fma(-n, first, x);
    r = std::fma(-n, second, r);
    r = std::fma(-n, third, r);
    const double r2 = r * r;
    double s = 1.0, c = 1.0;
    for (int k = 18; k >= 2; k -= 2) {
        s = std::fma(s, -r2 / (k * (k + 1)), 1.0);
        c = std::fma(c, -r2 / (k * (k - 1)), 1.0);
    }
    s *= r;
    switch (static_cast<std::int64_t>(n) & 3) {
    case 0:
        return {s, c};
    case 1:
        return {c, -s};
    case 2:
        return {-s, -c};
    default:
        return {-c, s};
    }
}

} // namespace kvcache::elementary

// ---- kvcache/kernel/rope.hpp --------------------------------------------------------------------------------------

namespace kvcache {

/// Rotary position embedding (Su et al. 2021) as a pure rotation: pair i of a head, the numbers i and i + head_dim / 2,
/// turns by position * frequency(i).
class rope {
public:
    rope() = default;

    /// Angles a position adds, in radians. (head_dim / 2)
    explicit rope(std::vector<double> frequencies) : frequencies_(std::move(frequencies)) {}

    /// theta^(-2 i / head_dim). Requires: head_dim is even.
    [[nodiscard]] static std::vector<double> standard_frequencies(std::size_t head_dim, double theta) {
        expects(head_dim % 2 == 0, "a rotated head has an even number of dimensions");
        std::vector<double> f(head_dim / 2);
        for (std::size_t i = 0; i < f.size(); ++i)
            f[i] = elementary::power(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        return f;
    }

    [[nodiscard]] std::span<const double> frequencies() const noexcept { return frequencies_; }

    /// Half the numbers of a head.
    [[nodiscard]] std::size_t half() const noexcept { return frequencies_.size(); }

    /// Fills the rotation of one position: cosines, then sines. (2, head_dim / 2)
    /// The same bits from every compiler and C library. Cost: about 20 ns a pair.
    void fill(std::int64_t position, std::span<float> rotation) const {
        expects(rotation.size() == 2 * half(), "a rotation is a cosine and a sine a pair");
        for (std::size_t i = 0; i < half(); ++i) {
            const auto angle = elementary::sincos(static_cast<double>(position) * frequencies_[i]);
            rotation[i] = static_cast<float>(angle.cosine);
            rotation[half() + i] = static_cast<float>(angle.sine);
        }
    }

private:
    std::vector<double> frequencies_;
};

/// Turns one head by a rotation that `rope::fill` made; `out` may be `head`. (head_dim)
inline void rotate_head(std::span<const float> head, std::span<const float> rotation, std::span<float> out) {
    const std::size_t half = head.size() / 2;
    detail::by_sixteen(half, [&](std::size_t i, std::size_t n) {
        const f32x16 x = f32x16::load_up_to(head.data() + i, n), y = f32x16::load_up_to(head.data() + half + i, n);
        const f32x16 c = f32x16::load_up_to(rotation.data() + i, n);
        const f32x16 s = f32x16::load_up_to(rotation.data() + half + i, n);
        fma(x, c, -(y * s)).store_up_to(out.data() + i, n);
        fma(y, c, x * s).store_up_to(out.data() + half + i, n);
    });
}

} // namespace kvcache

// ---- kvcache/storage/concept.hpp ----------------------------------------------------------------------------------

namespace kvcache {

/// The working state of a storage: the memory of each page. `acquire` makes a page's memory usable and says whether it
/// could; `release` says that its content is no longer needed; `bytes` is the memory of an acquired page.
template <class S>
concept storage_state = std::movable<S> && requires(S s, const S c, page_id page) {
    { s.acquire(page) } -> std::same_as<bool>;
    { s.release(page) }
    noexcept;
    { c.bytes(page) } -> std::same_as<std::span<std::byte>>;
};

/// Where the bytes of pages live.
template <class P>
concept storage_policy = plays<P, storage_role> && requires(const P p, std::size_t n) {
    p.open(n, n); // pages, bytes a page
} && storage_state<opened_by<P, std::size_t, std::size_t>>;

} // namespace kvcache

// ---- kvcache/attention/paged_rows.hpp -----------------------------------------------------------------------------

namespace kvcache {

/// The pages of one sequence as attention reads them.
template <codec_state Codec, storage_state Storage>
struct paged_rows {
    const Codec* codec = nullptr;
    const Storage* storage = nullptr;
    std::span<const page_entry> table = {};
    /// By entry, for a codec of whole pages: the rows as they were computed, where a query of this sequence may read
    /// them; null elsewhere, and behind the last.
    std::span<const exact_page* const> exact = {};
    bool woven = false; ///< Rows of one page may stand in several entries, and bases change often (see attention_walk).
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

// ---- kvcache/attention/attention_walk.hpp -------------------------------------------------------------------------

// Longer than 300 lines: one walk over pages that are read in place, decoded, exact or woven.

namespace kvcache {

namespace detail {

/// Whether a codec's tiles lie in the page, so that looking at one costs nothing.
template <class Codec>
inline constexpr bool reads_in_place = requires {
    requires Codec::in_place;
};

/// Whether a codec says how a tile is coded: both sides, or neither.
template <class Codec>
inline constexpr bool gives_codes = requires(const Codec c, std::span<const std::byte> bytes, page_tile at) {
    c.codes(bytes, at);
};

/// One job of a plan on one key and value head of a layer.
template <codec_state Codec, storage_state Storage>
class attention_walk {
public:
    using part = attention_part<Codec, Storage>;

    attention_walk(const attention_shape& shape, std::span<const part> parts, std::span<const attention_run> runs,
                   attention_scratch& scratch)
        : shape_(shape), parts_(parts), runs_(runs), scratch_(scratch), block_(scratch.block) {}

    /// `partials`: where queries leave partials that are merged later. (query of the head, split, state)
    void run(const attention_job& job, std::span<const attention_segment> segments, layer_id layer, head_id kv_head,
             float* partials) {
        layer_ = layer;
        head_ = kv_head;
        job_ = job;
        add_queries(partials);
        for (std::size_t s = job.first_segment; s < job.last_segment; ++s)
            walk(segments[s]);
        for_queries(job.first_run, job.last_run,
                    [&](std::size_t q, const query_rows& asked, std::size_t row, std::size_t head, bool whole) {
                        if (whole)
                            finish(q, asked.out + row * asked.out_stride + head * shape_.head_dim);
                        else
                            block_.leave(q);
                    });
    }

private:
    // Calls body(query of the block, rows, row, head, whether this job makes its output).
    template <class Body>
    void for_queries(std::size_t first_run, std::size_t last_run, Body body) {
        const std::size_t group = shape_.group(), first_head = index_of(head_) * group;
        for (std::size_t r = first_run; r < last_run; ++r) {
            const attention_run& run = runs_[r];
            std::size_t q = run.queries - runs_[job_.first_run].queries;
            for (std::size_t row = run.first; row < run.first + run.rows; ++row)
                for (std::size_t head = first_head; head < first_head + group; ++head)
                    body(q++, parts_[run.part].asked, row, head, run.partials == attention_run::none);
        }
    }

    void add_queries(float* partials) {
        block_.clear();
        const std::size_t state = softmax_state::numbers(value_width(shape_.head_dim));
        for (std::size_t r = job_.first_run; r < job_.last_run; ++r) {
            const attention_run& run = runs_[r];
            const std::size_t splits = attention_plan::splits(run.end);
            for (std::size_t i = 0; i < run.rows * shape_.group(); ++i) {
                float* own = nullptr;
                if (run.partials != attention_run::none) {
                    own = partials + (run.partials + i * splits) * state;
                    for (std::size_t s = job_.first_split; s < std::min(job_.last_split, splits); ++s)
                        softmax_state(own + s * state, value_width(shape_.head_dim)).clear();
                }
                block_.add(parts_[run.part].asked.position_of(run.first + i / shape_.group()), own);
            }
        }
    }

    void finish(std::size_t q, float* out) {
        block_.finish(q, out);
        if constexpr (page_writer<Codec>)
            parts_.front().pages.codec->turn_back({out, shape_.head_dim});
    }

    // The first query of a run, among those of the block.
    [[nodiscard]] std::size_t query_of(std::size_t run) const noexcept {
        return runs_[run].queries - runs_[job_.first_run].queries;
    }

    void walk(const attention_segment& segment) {
        if constexpr (page_writer<Codec>) {
            walk_coded(segment);
            return;
        }
        const attention_run& last = runs_[segment.last_run - 1];
        block_.select(query_of(segment.first_run), query_of(segment.last_run - 1) + last.rows * shape_.group());
        std::size_t end = 0; // positions that any of them sees
        for (std::size_t r = segment.first_run; r < segment.last_run; ++r)
            end = std::max(end, runs_[r].end);

        const auto& pages = parts_[segment.part].pages;
        std::size_t start = segment.position;
        if (pages.woven)
            return walk_woven(segment, end);
        for (std::size_t e = segment.first; e < segment.last; ++e) {
            const page_entry& entry = pages.table[e];
            if (e == segment.first || entry.base != pages.table[e - 1].base) {
                flush();
                load(segment.first_run, segment.last_run, entry.base, 0, block_.size());
            }
            if (start < end)
                gather(pages, entry, start, std::min<std::size_t>(entry.count, end - start), nullptr);
            start += entry.count;
        }
        flush();
    }

    // The same where queries read some pages exactly and others coded: the rows before `coded_from` do the first.
    void walk_coded(const attention_segment& segment) {
        const auto& pages = parts_[segment.part].pages;
        const std::size_t page_tokens = pages.codec->shape().tokens;
        const exact_pages exact = pages.codec->exact();
        chosen_ = {};
        if constexpr (gives_codes<Codec>)
            block_.want_whole(detail::wants_coded_queries(
                pages.codec->codes(pages.storage->bytes(pages.table[segment.first].page), {}).keys.format));
        std::size_t start = segment.position;
        for (std::size_t e = segment.first; e < segment.last; ++e) {
            const page_entry& entry = pages.table[e];
            const std::size_t coded_from = start / page_tokens < exact.first
                                               ? std::numeric_limits<std::size_t>::max()
                                               : (start / page_tokens + exact.recent + 1) * page_tokens;
            std::size_t least = coded_from, end = 0;
            for (std::size_t r = segment.first_run; r < segment.last_run; ++r) {
                least = std::min(least, position_of(r));
                end = std::max(end, runs_[r].end);
            }
            if (least >= coded_from) {
                choose(segment.first_run, 0, segment.last_run - 1, runs_[segment.last_run - 1].rows, entry.base);
                gather(pages, entry, start, std::min<std::size_t>(entry.count, end - start), nullptr);
            } else {
                for (std::size_t r = segment.first_run; r < segment.last_run; ++r)
                    gather_apart(r, e, start, coded_from);
            }
            start += entry.count;
        }
        flush();
    }

    // The position of a run's first row.
    [[nodiscard]] std::size_t position_of(std::size_t run) const noexcept {
        return parts_[runs_[run].part].asked.position_of(runs_[run].first);
    }

    // An entry for one run, of which some rows may read it exactly and others coded.
    void gather_apart(std::size_t r, std::size_t e, std::size_t start, std::size_t coded_from) {
        const attention_run& run = runs_[r];
        const auto& pages = parts_[run.part].pages;
        const page_entry& entry = pages.table[e];
        if (run.end <= start)
            return;
        const std::size_t count = std::min<std::size_t>(entry.count, run.end - start), first = position_of(r);
        const std::size_t exactly = std::min(run.rows, coded_from - std::min(coded_from, first));
        if (exactly > 0) {
            expects(e < pages.exact.size() && pages.exact[e] != nullptr, "what a query reads exactly is there");
            choose(r, 0, r, exactly, entry.base);
            gather(pages, entry, start, count, pages.exact[e]);
        }
        if (exactly < run.rows) {
            choose(r, exactly, r, run.rows, entry.base);
            gather(pages, entry, start, count, nullptr);
        }
    }

    // From now on the queries from a row of a run to before a row of another attend, for pages of this base.
    void choose(std::size_t first_run, std::size_t first_row, std::size_t last_run, std::size_t last_row,
                std::int64_t base) {
        const std::size_t group = shape_.group();
        const chosen wanted{query_of(first_run) + first_row * group, query_of(last_run) + last_row * group, base};
        if (wanted == chosen_)
            return;
        flush();
        chosen_ = wanted;
        block_.select(wanted.first, wanted.last);
        load(first_run, last_run + 1, base, wanted.first, wanted.last);
    }

    // Entries of a woven table, a block of positions at a time: in a block the tiles of one base come together, and
    // what is left of a tile comes once, with holes. The order is a function of the table alone.
    void walk_woven(const attention_segment& segment, std::size_t end) {
        const auto& pages = parts_[segment.part].pages;
        std::size_t start = segment.position, block = 0;
        std::optional<std::int64_t> loaded;
        for (std::size_t e = segment.first; e < segment.last && start < end; start += pages.table[e++].count) {
            const page_entry& entry = pages.table[e];
            const std::size_t count = std::min<std::size_t>(entry.count, end - start), last = entry.first + count;
            for (std::size_t row = entry.first; row < last;) {
                const std::size_t tile = row / tile_tokens, behind = std::min(last, (tile + 1) * tile_tokens);
                const std::size_t position = start + row - entry.first;
                if (position / attention_plan::woven_block != block) {
                    take_block(segment, block, loaded);
                    block = position / attention_plan::woven_block;
                }
                const std::size_t split = position / query_block::split;
                if (split >= job_.first_split && split < job_.last_split)
                    add_woven(entry, tile, row % tile_tokens, behind - row, position);
                row = behind;
            }
        }
        take_block(segment, block, loaded);
        flush();
    }

    void add_woven(const page_entry& entry, std::size_t tile, std::size_t lane, std::size_t count,
                   std::size_t position) {
        const std::uint32_t lanes = ((1u << count) - 1u) << lane;
        const auto origin = static_cast<std::int64_t>(position) - static_cast<std::int64_t>(lane);
        for (woven_tile& known : scratch_.woven)
            if (known.page == entry.page && known.tile == tile && known.base == entry.base && known.origin == origin) {
                known.lanes |= lanes;
                return;
            }
        scratch_.woven.push_back({entry.page, static_cast<std::uint32_t>(tile), lanes, entry.base, origin});
    }

    // By ascending base in one block and descending base in the next, so that queries are turned half as often.
    void take_block(const attention_segment& segment, std::size_t block, std::optional<std::int64_t>& loaded) {
        std::ranges::sort(scratch_.woven, [&](const woven_tile& a, const woven_tile& b) {
            if (a.base != b.base)
                return block % 2 == 0 ? a.base < b.base : a.base > b.base;
            return a.position() < b.position();
        });
        for (const woven_tile& one : scratch_.woven) {
            if (loaded != one.base) {
                flush();
                load(segment.first_run, segment.last_run, one.base, 0, block_.size());
                loaded = one.base;
            }
            push_woven(parts_[segment.part].pages, one);
        }
        scratch_.woven.clear();
    }

    void push_woven(const paged_rows<Codec, Storage>& pages, const woven_tile& one) {
        make_room();
        const std::size_t slot = taken_ % tiles_.size(), keys = std::size_t{shape_.head_dim} * tile_tokens;
        const auto scratch =
            std::span(scratch_.tiles)
                .subspan(slot * (scratch_.tiles.size() / tiles_.size()), scratch_.tiles.size() / tiles_.size());
        const std::span<const std::byte> bytes = pages.storage->bytes(one.page);
        const page_tile at{layer_, head_, one.tile};
        attention_tile tile{.keys = pages.codec->keys(bytes, at, scratch.first(keys)),
                            .values = pages.codec->values(bytes, at, scratch.subspan(keys)),
                            .first = static_cast<std::size_t>(std::countr_zero(one.lanes)),
                            .last = static_cast<std::size_t>(std::bit_width(one.lanes))};
        tile.position = static_cast<std::size_t>(one.position());
        if (static_cast<std::size_t>(std::popcount(one.lanes)) != tile.last - tile.first) {
            float* holes = scratch_.holes.data() + slot * tile_tokens;
            for (std::size_t lane = 0; lane < tile_tokens; ++lane)
                holes[lane] = (one.lanes >> lane & 1u) != 0 ? 0.0f : -std::numeric_limits<float>::infinity();
            tile.holes = holes;
        }
        ++taken_;
        push(tile);
    }

    // Queries [first, last) of these runs rotated by (position - base), scaled: turned to their positions, and back by
    // the base.
    void load(std::size_t first_run, std::size_t last_run, std::int64_t base, std::size_t first, std::size_t last) {
        if (shape_.rotation != nullptr && base != 0)
            shape_.rotation->fill(-base, scratch_.rotation);
        for_queries(
            first_run, last_run, [&](std::size_t q, const query_rows& asked, std::size_t row, std::size_t head, bool) {
                if (q < first || q >= last)
                    return;
                const std::span from(asked.queries + row * asked.stride + head * shape_.head_dim, shape_.head_dim);
                if (shape_.rotation == nullptr)
                    std::ranges::copy(from, scratch_.query.begin());
                else
                    rotate_head(from, {asked.rotations + row * shape_.head_dim, shape_.head_dim}, scratch_.query);
                if (shape_.rotation != nullptr && base != 0)
                    rotate_head(scratch_.query, scratch_.rotation, scratch_.query);
                if constexpr (page_writer<Codec>)
                    parts_.front().pages.codec->turn_key(scratch_.query);
                block_.place(q, scratch_.query, shape_.scale);
            });
    }

    // The tiles of an entry's first `count` rows that begin in the job's splits; of `exact`, if that is not null.
    void gather(const paged_rows<Codec, Storage>& pages, const page_entry& entry, std::size_t start, std::size_t count,
                const exact_page* exact) {
        const std::span<const std::byte> bytes = pages.storage->bytes(entry.page);
        const std::size_t last = entry.first + count; // row behind the last in use
        const std::size_t keys = std::size_t{shape_.head_dim} * tile_tokens;
        for (std::uint32_t tile = entry.first / tile_tokens; tile * tile_tokens < last; ++tile) {
            const std::size_t origin = std::size_t{tile} * tile_tokens;
            const std::size_t first_lane = origin < entry.first ? entry.first - origin : 0;
            const std::size_t position = start + origin + first_lane - entry.first;
            if (const std::size_t split = position / query_block::split;
                split < job_.first_split || split >= job_.last_split)
                continue;
            make_room(); // first: the oldest tiles' scratch is decoded into next
            const auto scratch =
                std::span(scratch_.tiles).subspan(taken_++ % tiles_.size() * (scratch_.tiles.size() / tiles_.size()));
            const page_tile at{layer_, head_, tile};
            if constexpr (page_writer<Codec>)
                if (exact != nullptr) {
                    const plain::state rows(pages.codec->shape());
                    push({.keys = rows.keys(exact->bytes(), at, {}),
                          .values = rows.values(exact->bytes(), at, {}),
                          .first = first_lane,
                          .last = std::min<std::size_t>(tile_tokens, last - origin),
                          .position = position});
                    continue;
                }
            attention_tile decoded{
                .first = first_lane, .last = std::min<std::size_t>(tile_tokens, last - origin), .position = position};
            if constexpr (gives_codes<Codec>)
                decoded.codes = pages.codec->codes(bytes, at);
            if (decoded.codes.keys.format == code_format::none || decoded.codes.values.format == code_format::none) {
                decoded.codes = {};
                decoded.keys = pages.codec->keys(bytes, at, scratch.first(keys));
                decoded.values = pages.codec->values(bytes, at, scratch.subspan(keys));
            }
            push(decoded);
        }
    }

    // Tiles wait until as many follow them as go together: those are fetched from memory meanwhile.
    void make_room() {
        if (waiting_ < tiles_.size())
            return;
        block_.template attend<gives_codes<Codec>>(std::span<const attention_tile>(tiles_).first(at_once));
        std::copy(tiles_.begin() + at_once, tiles_.end(), tiles_.begin());
        waiting_ -= at_once;
    }

    void push(const attention_tile& tile) {
        if (reads_in_place<Codec> && waiting_ >= at_once) {
            tiles_[waiting_ - at_once].ahead_keys = tile.keys;
            tiles_[waiting_ - at_once].ahead_values = tile.values;
        }
        if (gives_codes<Codec> && waiting_ >= at_once && tile.codes.keys.format != code_format::none) {
            tiles_[waiting_ - at_once].ahead_key_codes = tile.codes.keys.codes;
            tiles_[waiting_ - at_once].ahead_value_codes = tile.codes.values.codes;
        }
        tiles_[waiting_++] = tile;
    }

    void flush() {
        block_.template attend<gives_codes<Codec>>(std::span<const attention_tile>(tiles_).first(waiting_));
        waiting_ = 0;
    }

    // The queries that attend now, and the base they are rotated for.
    struct chosen {
        std::size_t first = 0, last = 0;
        std::int64_t base = 0;
        friend bool operator==(const chosen&, const chosen&) = default;
    };

    const attention_shape& shape_;
    std::span<const part> parts_;
    std::span<const attention_run> runs_;
    attention_scratch& scratch_;
    query_block& block_;
    layer_id layer_ = {};
    head_id head_ = {};
    attention_job job_;
    chosen chosen_;
    static constexpr std::size_t at_once = query_block::most_tiles;
    std::array<attention_tile, 2 * at_once> tiles_; // the first waiting_ wait
    std::size_t waiting_ = 0;
    std::size_t taken_ = 0;
};

} // namespace detail

} // namespace kvcache

// ---- kvcache/attention/paged_attention.hpp ------------------------------------------------------------------------

namespace kvcache {

/// Causal attention of one key and value head over pages, for the rows [first, last) of `asked`: softmax(q k) v, each
/// row over the positions up to its own (Vaswani et al. 2017; online softmax, Milakov & Gimelshein 2018).
/// Tiles run in table order, long contexts split at fixed positions: the bits of a row depend on its own past alone,
/// never on the rows beside it, the page size or the thread. Cost: O(rows * positions * head_dim * group).
/// `scratch` is for the shape's head_dim, and as many queries as a group at least.
template <codec_state Codec, storage_state Storage>
void attend(const attention_shape& shape, const paged_rows<Codec, Storage>& pages, layer_id layer, head_id kv_head,
            const query_rows& asked, std::size_t first, std::size_t last, attention_scratch& scratch) {
    const attention_part<Codec, Storage> part{pages, asked};
    const std::size_t at_once = scratch.block.capacity() / shape.group();
    for (std::size_t row = first; row < last; row += at_once) {
        const std::size_t rows = std::min(at_once, last - row);
        const attention_run run{.first = row, .rows = rows, .end = asked.position_of(row + rows - 1) + 1};
        const attention_segment segment{.last = pages.table.size(), .last_run = 1};
        detail::attention_walk<Codec, Storage> walk(shape, {&part, 1}, {&run, 1}, scratch);
        walk.run({.last_segment = 1, .last_run = 1, .last_split = attention_plan::splits(run.end)}, {&segment, 1},
                 layer, kv_head, nullptr);
    }
}

/// The same with working memory of its own, taken for this call.
template <codec_state Codec, storage_state Storage>
void attend(const attention_shape& shape, const paged_rows<Codec, Storage>& pages, layer_id layer, head_id kv_head,
            const query_rows& asked, std::size_t first, std::size_t last) {
    attention_scratch scratch(shape.head_dim, attention_plan::capacity(shape.group()));
    attend(shape, pages, layer, kv_head, asked, first, last, scratch);
}

} // namespace kvcache

// ---- kvcache/cache/lease.hpp --------------------------------------------------------------------------------------

namespace kvcache {

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
        const std::size_t tail = state_->pages_before - (state_->tail_before ? 1 : 0);
        const std::size_t used = state_->tail_before ? state_->tail_before->first + state_->tail_before->count : 0;
        const bool woven = !state_->woven.empty();
        const page_id page = woven ? state_->woven[row].page : state_->table[tail + (used + row) / shape.tokens].page;
        const auto bytes = cache_->bytes(page);
        const auto at = woven ? state_->woven[row].row : static_cast<std::uint32_t>((used + row) % shape.tokens);
        if constexpr (page_writer<typename Cache::codec_type>) {
            state_->exact_rows[tail + (used + row) / shape.tokens]->write(cache_->codec(), bytes, layer, at, keys,
                                                                          values);
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

// ---- kvcache/cache/match.hpp --------------------------------------------------------------------------------------

namespace kvcache {

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
        std::string words = std::to_string(tokens()) + " of " + std::to_string(of_) + " tokens known";
        if (loaded_ > 0)
            words += ", " + std::to_string(loaded_) + " of them from the tier";
        switch (end_) {
        case match_end::complete:
            break;
        case match_end::unknown:
            words += "; nothing is stored behind them";
            break;
        case match_end::different:
            words += "; token " + std::to_string(compared()) + " differs from the one stored (" +
                     std::to_string(index_of(*stored_)) + ")";
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

// ---- kvcache/cache/exact_books.hpp --------------------------------------------------------------------------------

namespace kvcache {

/// The exact rows that a codec of whole pages needs beside the pages: which page has some, and what all of them weigh.
/// They are paid from the pages' budget: as many pages as they weigh are set aside.
class exact_books {
public:
    /// `coded`: whether the cache has such a codec; otherwise no page ever has exact rows. `pages` of `page_bytes`.
    exact_books(page_shape shape, std::size_t pages, std::size_t page_bytes, bool coded)
        : shape_(shape), page_bytes_(page_bytes), of_page_(coded ? pages : 0) {}

    /// Pages' worth of memory that so many more exact pages take.
    [[nodiscard]] std::size_t more_aside(std::size_t more) const noexcept { return weight(alive_ + more) - aside(); }
    /// Pages' worth of memory that the exact rows take.
    [[nodiscard]] std::size_t aside() const noexcept { return weight(alive_); }
    [[nodiscard]] std::size_t alive() const noexcept { return alive_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return alive_ * exact_page::bytes_for(shape_); }

    /// The exact rows of a page; null if it has none.
    [[nodiscard]] exact_page* of(page_id page) const noexcept {
        return of_page_.empty() ? nullptr : of_page_[index_of(page)].get();
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
    void drop(page_id page) noexcept {
        if (!of_page_.empty())
            give(page, nullptr);
    }
    /// Gives the rows of one page to another that holds the same and has none.
    void pass_on(page_id from, page_id to) noexcept {
        if (of(from) != nullptr && of(to) == nullptr)
            of_page_[index_of(to)] = std::move(of_page_[index_of(from)]);
    }

    /// Whether those of pages and `leased` others are all there are.
    [[nodiscard]] bool add_up(std::size_t leased) const noexcept {
        for (const auto& rows : of_page_)
            leased += rows != nullptr;
        return leased == alive_;
    }

private:
    [[nodiscard]] std::size_t weight(std::size_t exact) const noexcept {
        return (exact * exact_page::bytes_for(shape_) + page_bytes_ - 1) / page_bytes_;
    }

    page_shape shape_;
    std::size_t page_bytes_;
    std::vector<std::shared_ptr<exact_page>> of_page_; // empty where the codec needs none
    std::size_t alive_ = 0;
};

} // namespace kvcache

// ---- kvcache/cache/page_pool.hpp ----------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

/// 128 bits that stand for some bytes.
struct digest {
    std::uint64_t low = 0;
    std::uint64_t high = 0;

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

// ---- kvcache/core/identity.hpp ------------------------------------------------------------------------------------

namespace kvcache {

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

/// The name of the first field in which two identities differ; empty if they are equal.
[[nodiscard]] inline std::string first_difference(const identity& a, const identity& b) {
    std::vector<std::pair<std::string, digest>> fields;
    const auto digest_field = [](const auto& field) {
        digest_builder builder;
        detail::feed(builder, field);
        return builder.finish();
    };
    for_each_field(a, [&](const char* name, const auto& field) { fields.emplace_back(name, digest_field(field)); });
    std::string found;
    std::size_t i = 0;
    for_each_field(b, [&](const char*, const auto& field) {
        if (found.empty() && fields[i].second != digest_field(field))
            found = fields[i].first;
        ++i;
    });
    return found;
}

} // namespace kvcache

// ---- kvcache/eviction/concept.hpp ---------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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
        query.insert(query.end(), tokens.begin(), tokens.end());
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

namespace kvcache {

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

// ---- kvcache/observer/concept.hpp ---------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

/// What every page is doing: free, held by sequences, or idle: held by nobody and kept in the index until room is
/// needed. An idle page's children are idle too, since whoever holds a page holds all that comes before it.
template <storage_state Storage, hash_state Hash, index_state Index, eviction_state Eviction, observer_state Observer>
class page_books {
public:
    template <class Storages, class Hashes, class Indexes, class Evictions, class Observers>
    page_books(page_shape shape, std::size_t pages, std::size_t page_bytes, std::size_t most_tenants, bool coded,
               const identity& id, const Storages& storages, const Hashes& hashes, const Indexes& indexes,
               const Evictions& evictions, const Observers& observers)
        : shape_(shape),
          exact_(shape, pages, page_bytes, coded),
          pool_(pages, storages.open(pages, page_bytes)),
          index_(indexes, shape, pages, most_tenants),
          ranks_(shape, pages, page_bytes, most_tenants, id, hashes, evictions),
          observer_(observers.open()),
          tenants_(pages, most_tenants) {}

    [[nodiscard]] const page_pool<Storage>& pool() const noexcept { return pool_; }
    [[nodiscard]] const rooted_index<Index>& index() const noexcept { return index_; }
    [[nodiscard]] const Observer& observer() const noexcept { return observer_; }
    [[nodiscard]] std::size_t idle() const noexcept { return idle_; }

    [[nodiscard]] exact_books& exact() noexcept { return exact_; }
    [[nodiscard]] const exact_books& exact() const noexcept { return exact_; }

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
        try {
            observer_.on(what);
        } catch (...) {
        }
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
            try {
                ranks_.rank(index_, page, length);
            } catch (...) {
                leave_index(page);
                throw;
            }
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
                return broken(page, "counts " + std::to_string(pool_.holders(page)) + " holders and has " +
                                        std::to_string(held[i]));
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
            return error{error_code::malformed, "pages",
                         std::to_string(idle) + " pages are idle, the books say " + std::to_string(idle_)};
        return {};
    }

private:
    [[nodiscard]] static error broken(page_id page, const std::string& how) {
        return {error_code::malformed, "page " + std::to_string(index_of(page)), "the page " + how};
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
        try {
            ranks_.rank(index_, page, 0);
        } catch (const std::bad_alloc&) {
            leave_index(page); // full pages are ranked as they are published, so this one is a leaf
            return false;
        }
        return true;
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
    exact_books exact_;
    page_pool<Storage> pool_;
    rooted_index<Index> index_;
    page_ranks<Hash, Eviction> ranks_;
    Observer observer_;
    tenant_books tenants_;
    std::size_t idle_ = 0;
};

} // namespace kvcache

// ---- kvcache/cache/audit.hpp --------------------------------------------------------------------------------------

namespace kvcache {

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
                return broken("and the index disagree about the tokens of page " +
                              std::to_string(index_of(entry.page)));
            rows += entry.count;
        }
        for (const page_id page : state.sources)
            ++held_[index_of(page)];
        if (state.has_copied_tail())
            ++held_[index_of(state.tail_before->page)];
        if (rows != state.tokens.size() + state.leased)
            return broken("has " + std::to_string(rows) + " rows for " + std::to_string(state.tokens.size()) +
                          " tokens and " + std::to_string(state.leased) + " reserved ones");
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
        return std::ranges::equal(known.first(both), own.first(both));
    }

    [[nodiscard]] static error broken(const std::string& how) {
        return {error_code::malformed, "sequence", "a sequence " + how};
    }

    const Index& index_;
    std::size_t page_tokens_;
    std::vector<std::uint32_t> held_;
};

} // namespace kvcache

// ---- kvcache/cache/exact_leases.hpp -------------------------------------------------------------------------------

namespace kvcache {

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
    [[nodiscard]] std::size_t kept(const sequence_state& state, std::size_t tokens) const noexcept {
        if (!coded_)
            return tokens;
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

    /// Exact pages that a lease makes: for a copied last page, and for `fresh` new ones behind `before`.
    [[nodiscard]] std::size_t needed(bool copies, std::size_t before, std::size_t fresh, std::size_t at_once) const {
        return coded_ ? (copies ? 1 : 0) + places(before, fresh, at_once) : 0;
    }

    /// Makes the exact rows of a lease whose pages the table has already. `used` rows of the last page before are in
    /// use, or all. False if there is no memory: what was made is the lease's, and ends with it.
    [[nodiscard]] bool open(sequence_state& state, std::uint32_t used, std::size_t at_once) {
        if (!coded_)
            return true;
        try {
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
        } catch (const std::bad_alloc&) {
            std::erase(state.ring.places, nullptr);
            return false;
        }
        for (std::size_t i = 0; i < state.table.size(); ++i)
            state.exact_rows[i] = i < state.pages_before ? pages_.exact().of(state.table[i].page) : state.ring.at(i);
        if (state.tail_before)
            state.exact_rows[state.pages_before - 1]->begin(used);
        return pages_.keep_free(pages_.exact().aside());
    }

    /// The exact rows that a lease gives a page of its own when all its rows are committed; null if it gives none.
    [[nodiscard]] exact_page* given(const sequence_state& state, std::size_t entry) const noexcept {
        if (!coded_)
            return nullptr;
        const std::size_t tokens = state.tokens.size() + state.leased, last = tokens / page_tokens_;
        const bool gives = stays(entry, last) && (entry < last || tokens % page_tokens_ != 0) &&
                           state.ring.keeps(entry, state.table.size());
        return gives ? state.ring.at(entry) : nullptr;
    }

    /// Gives the pages what they keep of a lease's exact rows, and ends the others. Returns how many of the tokens
    /// stay.
    [[nodiscard]] std::size_t settle(sequence_state& state) noexcept {
        if (!coded_)
            return state.tokens.size();
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

    /// Ends the exact rows that a lease has and no page.
    void end(exact_ring& ring) noexcept {
        for (auto& place : ring.places)
            pages_.exact().end(std::move(place));
        ring.places.clear();
    }

private:
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

namespace kvcache {

/// Puts rows of a prompt behind a sequence: those of runs that were computed elsewhere stay in their pages, which are
/// shared, not copied; the others get rows of pages of their own, at the place in the page that their position has in
/// any sequence.
///
///     run       [c0 c1 c2 c3 c4 c5 c6 c7]  in pages A B of 4, from position 40 on; c0 and c5 run again
///     table     P[0,1) A[1,4) B[0,1) Q[1,2) B[2,4)             P, Q: own pages
class weaver {
public:
    /// Rows [0, rows) of a lease whose first has position `first`. Rows of `rerun`, and those of no run, get pages of
    /// their own. Requires: runs and positions ascend; `entries` are the runs' pages in order.
    weaver(std::size_t first, std::size_t rows, std::span<const reused_run> runs, std::span<const page_entry> entries,
           std::span<const std::size_t> rerun)
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
        return first_ + static_cast<std::size_t>(std::ranges::find_if(rows_, &woven_row::kept) - rows_.begin());
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
        for (const woven_row& one : rows_)
            if (!made.empty() && made.back().page == one.page && made.back().base == one.base &&
                made.back().first + made.back().count == one.row)
                ++made.back().count;
            else
                made.push_back({one.page, one.base, one.row, 1});
        return made;
    }

    [[nodiscard]] std::vector<woven_row>& rows() noexcept { return rows_; }

private:
    std::size_t first_;
    std::vector<woven_row> rows_;
};

} // namespace kvcache

// ---- kvcache/cache/sequence_books.hpp -----------------------------------------------------------------------------

namespace kvcache {

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
            if constexpr (row_writer<Codec>)
                codec.copy(pages_.pool().bytes(shared), pages_.pool().bytes(*own), copied);
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
            std::ranges::fill(pages_.pool().bytes(*own), std::byte{}); // rows nobody writes are read, with no weight
            codec.copy(pages_.pool().bytes(entry.page), pages_.pool().bytes(*own), entry.first + entry.count);
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
            std::ranges::fill(pages_.pool().bytes(*page), std::byte{}); // rows nobody writes are read, with no weight
        }
        try {
            woven.take(own, page_tokens_);
            const std::vector<page_entry> table = woven.table();
            state.prepare(table.size(), woven.rows().size());
            state.sources.assign(sources.begin(), sources.end());
            state.pages_before = state.table.size();
            state.table.insert(state.table.end(), table.begin(), table.end());
        } catch (...) {
            state.sources.clear();
            give_back();
            throw;
        }
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
                std::to_string(rows) + " tokens need " + std::to_string(pages) + " pages of " +
                    std::to_string(page_bytes) + " bytes; " + std::to_string(pages_.room(state.tenant)) + " of " +
                    std::to_string(all) + " can be had"};
    }

    /// Makes tokens of a sequence known as a chunk. False if they lie in no known page, or the index has no memory.
    bool note(const sequence_state& state, std::size_t first, std::size_t count) {
        const std::size_t last = first + count - 1;
        try {
            return pages_.chunks().note(state.tenant, state.table[last / page_tokens_].page,
                                        static_cast<std::uint32_t>(last % page_tokens_ + 1), count);
        } catch (const std::bad_alloc&) {
            return false;
        }
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
            try {
                entry.page = pages_.publish(parent, run, entry.page, length);
                if (entry.count == page_tokens_)
                    state.sealed = i + 1;
            } catch (const std::bad_alloc&) {
                state.shares = false;
            }
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

namespace kvcache {

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
    return number(shape.layers) + " layers, " + number(shape.kv_heads) + " KV heads of " + number(shape.head_dim) +
           ", pages of " + number(shape.tokens) + " tokens and " + number(now.page_bytes) + " bytes (" + codec + "); " +
           number(now.pages) + " pages: " + number(now.held) + " held by " + number(now.sequences) + " sequences, " +
           number(now.idle) + " idle, " + number(now.free) + " free";
}

} // namespace kvcache

// ---- kvcache/record/record_layout.hpp -----------------------------------------------------------------------------

namespace kvcache {

/// What a record holds.
enum class record_kind : std::uint32_t {
    page = 1,     ///< One full page of a chain.
    sequence = 2, ///< A whole sequence, from its first token.
};

/// What a part of a record holds.
enum class part_kind : std::uint32_t {
    page = 1,     ///< A page as its codec keeps it; rows behind those in use are zero.
    exact = 2,    ///< The exact rows of that page, as the plain codec keeps them.
    speaking = 3, ///< How an answer was being said (session/snapshot.hpp).
};

/// Where the fields of a record lie (docs/format.md). A record has one form only: every place follows from the counts,
/// and is written down all the same, so that a reader may look a part up without knowing how places follow.
namespace record_layout {

inline constexpr std::array<unsigned char, 8> magic = {0x89, 'k', 'v', 'c', 0x0d, 0x0a, 0x1a, 0x0a};

inline constexpr std::size_t alignment = 64;    ///< Of the payload and of every part of it.
inline constexpr std::size_t fixed_bytes = 256; ///< The fields below; the parts' entries come behind them.
inline constexpr std::size_t part_bytes = 64;   ///< An entry of the parts' table.

// In the fixed fields.
inline constexpr std::size_t format = 8, kind = 12, seal = 16, parts = 20, header_bytes = 24, total_bytes = 32,
                             first_token = 40, tokens = 48, tokens_offset = 56, identity_offset = 64,
                             identity_bytes = 72, parts_offset = 80, reserved = 88, identity = 96, before = 128,
                             name = 160, more_reserved = 192, checksum = 224;

// In an entry of the parts' table.
inline constexpr std::size_t part_kind = 0, part_index = 4, part_offset = 8, part_size = 16, part_rows = 24,
                             part_reserved = 28, part_checksum = 32;

/// The next multiple of the alignment.
[[nodiscard]] constexpr std::uint64_t aligned(std::uint64_t n) noexcept {
    return (n + alignment - 1) / alignment * alignment;
}

} // namespace record_layout

} // namespace kvcache

// ---- kvcache/record/record_names.hpp ------------------------------------------------------------------------------

namespace kvcache {

/// A field of an identity as people read it.
using identity_text = std::vector<std::pair<std::string, std::string>>;

/// How what leaves the process is named: every run of tokens by all that comes before it and by the identity, under a
/// secret that may be empty. Equal identities, secrets and tokens have equal names on every machine; without the secret
/// nobody can compute one, or tell which tenant a record is of.
///
///     identity     = HMAC(secret, "kvcache identity" | format | name and value of every field)
///     tenant's key = HMAC(secret, "kvcache tenant" | tenant)
///     name         = HMAC(tenant's key, name before, the identity at first | tokens | run)
///
/// Texts and runs after their length; numbers in 8 bytes, tokens in 4, the lowest first.
class record_names {
public:
    record_names(const identity& id, std::string_view secret)
        : run_(key_of(hmac_builder(std::as_bytes(std::span(secret))).text("kvcache tenant").text(id.tenant).finish())) {
        const hmac_builder keyed(std::as_bytes(std::span(secret)));
        hmac_builder all = keyed;
        all.text("kvcache identity").number(record_format_revision);
        for_each_field(id, [&](const char* name, const auto& field) {
            std::string value = words(field);
            if (std::string_view(name) == "tenant") // a salt is nobody else's to read
                value = to_string(hmac_builder(keyed).text("kvcache salt").text(value).finish());
            all.text(name).text(value);
            fields_.emplace_back(name, std::move(value));
        });
        root_ = all.finish();
    }

    /// The digest of the identity: what the first run of a chain comes after.
    [[nodiscard]] const digest256& root() const noexcept { return root_; }

    /// The identity's fields in order, the tenant's salt as a digest.
    [[nodiscard]] const identity_text& fields() const noexcept { return fields_; }

    /// The name of a run of tokens after what `before` names. Cost: about 200 ns for every 16 tokens, and 1 us.
    [[nodiscard]] digest256 chain(const digest256& before, std::span<const token_id> run) const noexcept {
        hmac_builder more = run_;
        more.nested(before).number(run.size());
        for (const token_id token : run) {
            std::byte little[4];
            store_little(little, 0, static_cast<std::uint32_t>(index_of(token)));
            more.bytes(little);
        }
        return more.finish();
    }

private:
    [[nodiscard]] static hmac_builder key_of(const digest256& key) noexcept { return hmac_builder(key.bytes); }

    [[nodiscard]] static std::string words(const digest& field) { return to_string(field); }
    [[nodiscard]] static std::string words(const std::string& field) { return field; }
    [[nodiscard]] static std::string words(std::uint64_t field) { return std::to_string(field); }

    hmac_builder run_;
    identity_text fields_;
    digest256 root_;
};

} // namespace kvcache

// ---- kvcache/record/record_seal.hpp -------------------------------------------------------------------------------

namespace kvcache {

/// How a record proves that its bytes are those that were written.
enum class seal_kind : std::uint32_t {
    xxh3 = 1, ///< XXH3-128, the low half first, then 16 zeros: against accidents.
    hmac = 2, ///< HMAC-SHA-256 under a secret: against forgers too.
};

/// The checksums of a record's parts and of its header.
class record_seal {
public:
    /// XXH3-128 without a secret, HMAC-SHA-256 with one.
    explicit record_seal(std::string_view secret)
        : kind_(secret.empty() ? seal_kind::xxh3 : seal_kind::hmac),
          keyed_(hmac_builder(std::as_bytes(std::span(secret))).text("kvcache seal").finish().bytes) {}

    [[nodiscard]] seal_kind kind() const noexcept { return kind_; }

    /// The checksum of these bytes, one run after the other. Cost: 0.1 ns a byte, or about 5 ns with a secret.
    [[nodiscard]] digest256 of(std::span<const std::byte> bytes, std::span<const std::byte> more = {}) const {
        if (kind_ == seal_kind::hmac)
            return hmac_builder(keyed_).bytes(bytes).bytes(more).finish();
        const digest sum = digest_builder().bytes(bytes).bytes(more).finish();
        digest256 made;
        store_little(made.bytes, 0, sum.low);
        store_little(made.bytes, 8, sum.high);
        return made;
    }

private:
    seal_kind kind_;
    hmac_builder keyed_;
};

} // namespace kvcache

// ---- kvcache/record/record.hpp ------------------------------------------------------------------------------------

namespace kvcache {

/// A part of a record, where it lies. Its bytes are sound once their checksum says so, of the copy that is used.
struct record_part {
    part_kind kind = part_kind::page;
    std::uint32_t index = 0;
    std::uint32_t rows = 0;
    std::span<const std::byte> bytes = {};
    digest256 checksum = {};
};

/// A record that lies somewhere in memory: what its header says, checked as a whole, and its parts, not yet read.
class record {
public:
    /// Takes bytes apart that may be anything. A record is accepted in its one form only: any other byte of the header,
    /// any byte more or less, is refused.
    /// Errors: truncated, malformed, unsupported (another format), mismatched (sealed otherwise), with the field's
    /// name. Cost: the header's.
    [[nodiscard]] static result<record> parse(std::span<const std::byte> bytes, const record_seal& seal) {
        record made;
        for (const auto step : {&record::take_fixed, &record::take_places, &record::take_sealed, &record::take_parts,
                                &record::take_identity, &record::take_tokens})
            if (auto fine = (made.*step)(bytes, seal); !fine)
                return fine.error();
        return made;
    }

    [[nodiscard]] record_kind kind() const noexcept { return kind_; }
    /// The position of the first token.
    [[nodiscard]] std::uint64_t first() const noexcept { return first_; }
    [[nodiscard]] const std::vector<token_id>& tokens() const noexcept { return tokens_; }
    /// The names of what comes before the tokens, and of all with them.
    [[nodiscard]] const digest256& before() const noexcept { return before_; }
    [[nodiscard]] const digest256& name() const noexcept { return name_; }
    [[nodiscard]] const std::vector<record_part>& parts() const noexcept { return parts_; }
    [[nodiscard]] const identity_text& identity() const noexcept { return fields_; }

    /// The part of this kind of a page; null if there is none.
    [[nodiscard]] const record_part* part(part_kind kind, std::uint32_t index) const noexcept {
        const auto found =
            std::ranges::find_if(parts_, [&](const record_part& p) { return p.kind == kind && p.index == index; });
        return found == parts_.end() ? nullptr : &*found;
    }

    /// Whether the record was made under this identity and secret. Errors: mismatched, with the first field that
    /// differs and both its values, or "key" where only the secret does.
    [[nodiscard]] result<void> made_under(const record_names& own) const {
        if (identity_ == own.root())
            return {};
        for (std::size_t i = 0; i < own.fields().size(); ++i) {
            const auto& [name, value] = own.fields()[i];
            if (i >= fields_.size() || fields_[i].first != name)
                return refused(error_code::mismatched, name, "the record does not say it");
            if (fields_[i].second != value)
                return refused(error_code::mismatched, name,
                               "the record was made with \"" + fields_[i].second + "\", and this cache has \"" + value +
                                   "\"");
        }
        return refused(error_code::mismatched, "key", "the record was named under another key");
    }

    /// Whether bytes are those that a part was written with: a copy of its own, which nobody changes behind the check.
    /// Errors: malformed.
    [[nodiscard]] static result<void> sound(const record_part& part, std::span<const std::byte> copy,
                                            const record_seal& seal) {
        static constexpr const char* names[] = {"part", "page", "exact", "speaking"};
        if (copy.size() == part.bytes.size() && same_in_constant_time(seal.of(copy), part.checksum))
            return {};
        return refused(error_code::malformed, names[static_cast<std::uint32_t>(part.kind)],
                       "the bytes of page " + std::to_string(part.index) + " are not those that were written");
    }

private:
    record() = default;

    [[nodiscard]] static error refused(error_code code, std::string field, const std::string& what) {
        std::string words = field + ": " + what;
        return {code, std::move(field), std::move(words)};
    }

    // Each takes a piece of the header, in this order, and may count on what those before it have checked.
    [[nodiscard]] result<void> take_fixed(std::span<const std::byte> bytes, const record_seal& seal);
    [[nodiscard]] result<void> take_places(std::span<const std::byte> bytes, const record_seal& seal);
    [[nodiscard]] result<void> take_sealed(std::span<const std::byte> bytes, const record_seal& seal);
    [[nodiscard]] result<void> take_parts(std::span<const std::byte> bytes, const record_seal& seal);
    [[nodiscard]] result<void> take_identity(std::span<const std::byte> bytes, const record_seal& seal);
    [[nodiscard]] result<void> take_tokens(std::span<const std::byte> bytes, const record_seal& seal);

    [[nodiscard]] static digest256 digest_at(std::span<const std::byte> bytes, std::size_t at) {
        digest256 made;
        std::ranges::copy(bytes.subspan(at, made.bytes.size()), made.bytes.begin());
        return made;
    }
    [[nodiscard]] static bool zero(std::span<const std::byte> bytes) noexcept {
        return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; });
    }

    record_kind kind_ = record_kind::page;
    std::uint64_t first_ = 0;
    std::uint64_t header_ = 0, token_count_ = 0, tokens_at_ = 0, identity_bytes_ = 0;
    std::uint32_t part_count_ = 0;
    digest256 identity_, before_, name_;
    identity_text fields_;
    std::vector<token_id> tokens_;
    std::vector<record_part> parts_;
};

inline result<void> record::take_fixed(std::span<const std::byte> bytes, const record_seal& seal) {
    namespace at = record_layout;
    if (bytes.size() < at::fixed_bytes)
        return refused(error_code::truncated, "header",
                       "there are " + std::to_string(bytes.size()) + " bytes, and its fixed fields alone have " +
                           std::to_string(at::fixed_bytes));
    if (!std::ranges::equal(bytes.first<at::magic.size()>(), std::as_bytes(std::span(at::magic))))
        return refused(error_code::malformed, "magic", "this is no record of a KV cache");
    if (const auto format = load_little<std::uint32_t>(bytes, at::format); format != record_format_revision)
        return refused(error_code::unsupported, "format",
                       "the record is of format " + std::to_string(format) + ", and this build reads format " +
                           std::to_string(record_format_revision));
    const auto kind = load_little<std::uint32_t>(bytes, at::kind);
    if (kind != static_cast<std::uint32_t>(record_kind::page) &&
        kind != static_cast<std::uint32_t>(record_kind::sequence))
        return refused(error_code::malformed, "kind", std::to_string(kind) + " is no kind of record");
    kind_ = static_cast<record_kind>(kind);
    const auto sealed = load_little<std::uint32_t>(bytes, at::seal);
    if (sealed != static_cast<std::uint32_t>(seal_kind::xxh3) && sealed != static_cast<std::uint32_t>(seal_kind::hmac))
        return refused(error_code::malformed, "seal", std::to_string(sealed) + " is no kind of seal");
    if (sealed != static_cast<std::uint32_t>(seal.kind()))
        return refused(error_code::mismatched, "seal",
                       seal.kind() == seal_kind::hmac ? "the record was sealed without a key, and one is asked for"
                                                      : "the record was sealed with a key, and none is given");
    const auto total = load_little<std::uint64_t>(bytes, at::total_bytes);
    if (total != bytes.size())
        return refused(total > bytes.size() ? error_code::truncated : error_code::malformed, "total_bytes",
                       "the record says it has " + std::to_string(total) + " bytes, and there are " +
                           std::to_string(bytes.size()));
    return {};
}

inline result<void> record::take_places(std::span<const std::byte> bytes, const record_seal&) {
    namespace at = record_layout;
    part_count_ = load_little<std::uint32_t>(bytes, at::parts);
    header_ = load_little<std::uint64_t>(bytes, at::header_bytes);
    first_ = load_little<std::uint64_t>(bytes, at::first_token);
    token_count_ = load_little<std::uint64_t>(bytes, at::tokens);
    tokens_at_ = load_little<std::uint64_t>(bytes, at::tokens_offset);
    identity_bytes_ = load_little<std::uint64_t>(bytes, at::identity_bytes);
    // Each fits the bytes by itself, so that no sum of them wraps.
    const std::uint64_t all = bytes.size();
    const auto place = [](const char* field, std::uint64_t is, std::uint64_t should) -> result<void> {
        if (is == should)
            return {};
        return refused(error_code::malformed, field,
                       "it is " + std::to_string(is) + ", and " + std::to_string(should) + " by the counts");
    };
    const struct {
        const char* field;
        std::uint64_t count, each;
    } counts[] = {
        {"parts", part_count_, at::part_bytes}, {"tokens", token_count_, 4}, {"identity_bytes", identity_bytes_, 1}};
    for (const auto& [field, count, each] : counts)
        if (count > all / each)
            return refused(error_code::truncated, field,
                           std::to_string(count) + " of them do not fit " + std::to_string(all) + " bytes");
    const std::uint64_t identity_at = at::fixed_bytes + std::uint64_t{part_count_} * at::part_bytes;
    const std::uint64_t tokens_at = (identity_at + identity_bytes_ + 7) / 8 * 8;
    const struct {
        const char* field;
        std::uint64_t is, should;
    } places[] = {{"parts_offset", load_little<std::uint64_t>(bytes, at::parts_offset), at::fixed_bytes},
                  {"identity_offset", load_little<std::uint64_t>(bytes, at::identity_offset), identity_at},
                  {"tokens_offset", tokens_at_, tokens_at},
                  {"header_bytes", header_, at::aligned(tokens_at + 4 * token_count_)}};
    for (const auto& [field, is, should] : places)
        if (auto fine = place(field, is, should); !fine)
            return fine;
    if (header_ > all)
        return refused(error_code::truncated, "header_bytes",
                       "the header has " + std::to_string(header_) + " bytes, and there are " + std::to_string(all));
    return {};
}

inline result<void> record::take_sealed(std::span<const std::byte> bytes, const record_seal& seal) {
    namespace at = record_layout;
    const auto behind = bytes.first(static_cast<std::size_t>(header_)).subspan(at::fixed_bytes);
    if (!same_in_constant_time(seal.of(bytes.first(at::checksum), behind), digest_at(bytes, at::checksum)))
        return refused(error_code::malformed, "header", "its checksum is that of other bytes, or under another key");
    if (!zero(bytes.subspan(at::reserved, 8)) || !zero(bytes.subspan(at::more_reserved, 32)))
        return refused(error_code::malformed, "reserved", "it is not zero");
    identity_ = digest_at(bytes, at::identity);
    before_ = digest_at(bytes, at::before);
    name_ = digest_at(bytes, at::name);
    return {};
}

inline result<void> record::take_parts(std::span<const std::byte> bytes, const record_seal&) {
    namespace at = record_layout;
    std::uint64_t end = header_;
    for (std::size_t i = 0; i < part_count_; ++i) {
        const std::size_t entry = at::fixed_bytes + i * at::part_bytes;
        const auto wrong = [&](const char* what) {
            return refused(error_code::malformed, "parts", "part " + std::to_string(i) + " " + what);
        };
        const auto kind = load_little<std::uint32_t>(bytes, entry + at::part_kind);
        if (kind < static_cast<std::uint32_t>(part_kind::page) ||
            kind > static_cast<std::uint32_t>(part_kind::speaking))
            return wrong("is of no known kind");
        record_part part{.kind = static_cast<part_kind>(kind),
                         .index = load_little<std::uint32_t>(bytes, entry + at::part_index),
                         .rows = load_little<std::uint32_t>(bytes, entry + at::part_rows),
                         .checksum = digest_at(bytes, entry + at::part_checksum)};
        if (!parts_.empty() && std::pair(parts_.back().index, parts_.back().kind) >= std::pair(part.index, part.kind))
            return wrong("is out of order");
        if (!zero(bytes.subspan(entry + at::part_reserved, 4)))
            return wrong("has reserved bytes that are not zero");
        const std::uint64_t begin = at::aligned(end);
        if (load_little<std::uint64_t>(bytes, entry + at::part_offset) != begin)
            return wrong("does not lie behind the one before it");
        const auto size = load_little<std::uint64_t>(bytes, entry + at::part_size);
        if (begin > bytes.size() || size > bytes.size() - begin)
            return refused(error_code::truncated, "parts", "part " + std::to_string(i) + " ends behind the record");
        if (!zero(bytes.subspan(static_cast<std::size_t>(end), static_cast<std::size_t>(begin - end))))
            return refused(error_code::malformed, "padding", "the bytes between parts are not zero");
        part.bytes = bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
        parts_.push_back(part);
        end = begin + size;
    }
    if (end != bytes.size())
        return refused(error_code::malformed, "total_bytes", "there is something behind the last part");
    return {};
}

inline result<void> record::take_identity(std::span<const std::byte> bytes, const record_seal&) {
    namespace at = record_layout;
    const std::size_t begin = at::fixed_bytes + std::size_t{part_count_} * at::part_bytes;
    auto rest = bytes.subspan(begin, static_cast<std::size_t>(identity_bytes_));
    const auto number = [&rest]() -> std::optional<std::uint32_t> {
        if (rest.size() < 4)
            return std::nullopt;
        const auto n = load_little<std::uint32_t>(rest, 0);
        rest = rest.subspan(4);
        return n;
    };
    const auto text = [&]() -> std::optional<std::string> {
        const auto length = number();
        if (!length || *length > rest.size())
            return std::nullopt;
        std::string made(*length, '\0');
        std::ranges::transform(rest.first(*length), made.begin(), [](std::byte b) { return static_cast<char>(b); });
        rest = rest.subspan(*length);
        return made;
    };
    const error broken = refused(error_code::malformed, "identity", "its texts do not end where it ends");
    const auto count = number();
    if (!count)
        return broken;
    for (std::uint32_t i = 0; i < *count; ++i) {
        auto name = text(), value = name ? text() : std::nullopt;
        if (!value)
            return broken;
        fields_.emplace_back(std::move(*name), std::move(*value));
    }
    const auto gap = bytes.subspan(begin + static_cast<std::size_t>(identity_bytes_),
                                   static_cast<std::size_t>(tokens_at_ - begin - identity_bytes_));
    return rest.empty() && zero(gap) ? result<void>() : result<void>(broken);
}

inline result<void> record::take_tokens(std::span<const std::byte> bytes, const record_seal&) {
    const auto all = bytes.first(static_cast<std::size_t>(header_)).subspan(static_cast<std::size_t>(tokens_at_));
    const auto count = static_cast<std::size_t>(token_count_);
    tokens_.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
        tokens_.push_back(token_id{static_cast<std::int32_t>(load_little<std::uint32_t>(all, 4 * i))});
    if (!zero(all.subspan(4 * count)))
        return refused(error_code::malformed, "padding", "the bytes behind the tokens are not zero");
    return {};
}

} // namespace kvcache

// ---- kvcache/record/record_writer.hpp -----------------------------------------------------------------------------

namespace kvcache {

/// A part of a record that is to be written.
struct part_source {
    part_kind kind = part_kind::page;
    std::uint32_t index = 0; ///< Which page of the record it is of, from 0.
    std::uint32_t rows = 0;  ///< Its rows in use.
    std::span<const std::byte> bytes = {};
};

/// A record that is to be written.
struct record_source {
    record_kind kind = record_kind::page;
    std::uint64_t first = 0; ///< The position of the first token.
    std::span<const token_id> tokens = {};
    digest256 before = {}; ///< The name of what comes before them.
    digest256 name = {};
    std::span<const part_source> parts = {};
};

/// A record as it is written: a header of its own, and parts that lie where they are. Requires: those stay.
class record_writer {
public:
    /// Cost: reads every part once.
    record_writer(const record_source& source, const record_names& names, const record_seal& seal) {
        namespace at = record_layout;
        const std::vector<std::byte> identity = text_of(names.fields());
        const std::size_t identity_at = at::fixed_bytes + source.parts.size() * at::part_bytes;
        const std::size_t tokens_at = (identity_at + identity.size() + 7) / 8 * 8;
        const std::size_t header = at::aligned(tokens_at + 4 * source.tokens.size());
        header_.resize(header);
        const std::span<std::byte> to = header_;
        std::ranges::copy(std::as_bytes(std::span(at::magic)), to.begin());
        store_little<std::uint32_t>(to, at::format, record_format_revision);
        store_little(to, at::kind, static_cast<std::uint32_t>(source.kind));
        store_little(to, at::seal, static_cast<std::uint32_t>(seal.kind()));
        store_little(to, at::parts, static_cast<std::uint32_t>(source.parts.size()));
        store_little<std::uint64_t>(to, at::header_bytes, header);
        store_little<std::uint64_t>(to, at::first_token, source.first);
        store_little<std::uint64_t>(to, at::tokens, source.tokens.size());
        store_little<std::uint64_t>(to, at::tokens_offset, tokens_at);
        store_little<std::uint64_t>(to, at::identity_offset, identity_at);
        store_little<std::uint64_t>(to, at::identity_bytes, identity.size());
        store_little<std::uint64_t>(to, at::parts_offset, at::fixed_bytes);
        put(at::identity, names.root());
        put(at::before, source.before);
        put(at::name, source.name);
        std::ranges::copy(identity, to.begin() + static_cast<std::ptrdiff_t>(identity_at));
        for (std::size_t i = 0; i < source.tokens.size(); ++i)
            store_little(to, tokens_at + 4 * i, static_cast<std::uint32_t>(index_of(source.tokens[i])));
        store_little<std::uint64_t>(to, at::total_bytes, put_parts(source.parts, seal));
        put(at::checksum, seal.of(to.first(at::checksum), to.subspan(at::fixed_bytes)));
        lay_out(source.parts);
    }

    record_writer(const record_writer&) = delete;
    record_writer& operator=(const record_writer&) = delete;

    /// The record's bytes, piece after piece.
    [[nodiscard]] std::span<const std::span<const std::byte>> pieces() const noexcept { return pieces_; }
    [[nodiscard]] std::size_t total() const noexcept { return total_; }

private:
    [[nodiscard]] static std::vector<std::byte> text_of(const identity_text& fields) {
        std::vector<std::byte> made;
        const auto number = [&made](std::size_t n) {
            made.resize(made.size() + 4);
            store_little(std::span(made), made.size() - 4, static_cast<std::uint32_t>(n));
        };
        const auto text = [&](const std::string& words) {
            number(words.size());
            const auto bytes = std::as_bytes(std::span(words));
            made.insert(made.end(), bytes.begin(), bytes.end());
        };
        number(fields.size());
        for (const auto& [name, value] : fields) {
            text(name);
            text(value);
        }
        return made;
    }

    void put(std::size_t offset, const digest256& d) {
        std::ranges::copy(d.bytes, header_.begin() + static_cast<std::ptrdiff_t>(offset));
    }

    // The table of the parts. Returns where the last one ends.
    [[nodiscard]] std::uint64_t put_parts(std::span<const part_source> parts, const record_seal& seal) {
        namespace at = record_layout;
        std::uint64_t end = header_.size();
        std::size_t entry = at::fixed_bytes;
        for (const part_source& part : parts) {
            const std::uint64_t begin = at::aligned(end);
            store_little(std::span(header_), entry + at::part_kind, static_cast<std::uint32_t>(part.kind));
            store_little(std::span(header_), entry + at::part_index, part.index);
            store_little(std::span(header_), entry + at::part_offset, begin);
            store_little<std::uint64_t>(header_, entry + at::part_size, part.bytes.size());
            store_little(std::span(header_), entry + at::part_rows, part.rows);
            put(entry + at::part_checksum, seal.of(part.bytes));
            end = begin + part.bytes.size();
            entry += at::part_bytes;
        }
        return end;
    }

    void lay_out(std::span<const part_source> parts) {
        static constexpr std::array<std::byte, record_layout::alignment> zeros = {};
        pieces_.emplace_back(header_);
        total_ = header_.size();
        for (const part_source& part : parts) {
            if (const std::size_t gap = record_layout::aligned(total_) - total_; gap > 0)
                pieces_.emplace_back(std::span(zeros).first(gap));
            pieces_.push_back(part.bytes);
            total_ = record_layout::aligned(total_) + part.bytes.size();
        }
    }

    std::vector<std::byte> header_;
    std::vector<std::span<const std::byte>> pieces_;
    std::size_t total_ = 0;
};

} // namespace kvcache

// ---- kvcache/cache/page_parts.hpp ---------------------------------------------------------------------------------

namespace kvcache {

/// The parts of a record that hold pages of a sequence. Of a page that is not full, a copy with zeros behind the rows
/// in use: nothing of an earlier sequence leaves with it. Requires: the sequence holds its pages as long as the parts
/// live.
template <class Cache>
class page_parts {
public:
    explicit page_parts(const Cache& cache) : cache_(cache) {}

    /// Adds page `page` of a sequence of `end` exact tokens, as page `index` of the record.
    void add(const page_entry& entry, std::size_t page, std::size_t end, std::uint32_t index) {
        const page_shape& shape = cache_.shape();
        const std::uint32_t rows = entry.count;
        const bool full = rows == shape.tokens;
        if constexpr (page_writer<typename Cache::codec_type>) {
            if (full) // another one is not coded yet
                parts_.push_back({part_kind::page, index, rows, cache_.bytes(entry.page)});
            const auto exact = cache_.exact_bytes(entry.page);
            if (!exact.empty() && cache_.codec().exact().covers(page, end / shape.tokens))
                parts_.push_back({part_kind::exact, index, rows, full ? exact : cut(plain::state(shape), exact, rows)});
        } else {
            const auto bytes = cache_.bytes(entry.page);
            parts_.push_back({part_kind::page, index, rows, full ? bytes : cut(cache_.codec(), bytes, rows)});
        }
    }

    void add(part_source other) { parts_.push_back(other); }

    [[nodiscard]] std::span<const part_source> parts() const noexcept { return parts_; }

private:
    template <row_writer Codec>
    [[nodiscard]] std::span<const std::byte> cut(const Codec& codec, std::span<const std::byte> bytes,
                                                 std::size_t rows) {
        auto& copy = copies_.emplace_back(bytes.size(), std::byte{});
        codec.copy(bytes, copy, rows);
        return copy;
    }

    const Cache& cache_;
    std::vector<part_source> parts_;
    std::vector<aligned_vector<std::byte>> copies_;
};

namespace detail {

// Copies a part to where it is wanted, and checks the copy.
[[nodiscard]] inline result<void> place_part(const record& from, part_kind kind, std::uint32_t index,
                                             std::uint32_t rows, std::span<std::byte> to, const record_seal& seal) {
    const char* const field = kind == part_kind::page ? "page" : "exact";
    const record_part* part = from.part(kind, index);
    if (part == nullptr)
        return error{error_code::malformed, field,
                     std::string(field) + ": page " + std::to_string(index) + " lacks its bytes"};
    if (part->rows != rows || part->bytes.size() != to.size())
        return error{error_code::mismatched, field,
                     std::string(field) + ": page " + std::to_string(index) + " has " + std::to_string(part->rows) +
                         " rows in " + std::to_string(part->bytes.size()) + " bytes, and " + std::to_string(rows) +
                         " rows in " + std::to_string(to.size()) + " are needed"};
    std::ranges::copy(part->bytes, to.begin());
    return record::sound(*part, to, seal);
}

} // namespace detail

/// Whether a page of a lease, of so many rows, has a use for parts of a kind.
template <class Codec, class Lease>
[[nodiscard]] bool places(part_kind kind, const Lease& lease, std::size_t page, std::size_t rows) {
    if (kind == part_kind::exact)
        return !lease.exact_bytes(page).empty();
    return !page_writer<Codec> || rows == lease.shape().tokens; // another one is not coded yet
}

/// Puts page `index` of a record in place as page `page` of a lease, `rows` rows, and checks what lies there then.
/// Errors: malformed, mismatched, with the field's name. Whoever is refused takes the lease back.
/// Cost: copies the page and reads the copy.
template <class Codec, class Lease>
[[nodiscard]] result<void> place_page(const record& from, std::uint32_t index, const Lease& lease, std::size_t page,
                                      std::uint32_t rows, const record_seal& seal) {
    for (const part_kind kind : {part_kind::page, part_kind::exact}) {
        if (!places<Codec>(kind, lease, page, rows))
            continue;
        const auto to = kind == part_kind::page ? lease.page_bytes(page) : lease.exact_bytes(page);
        if (auto placed = detail::place_part(from, kind, index, rows, to, seal); !placed)
            return placed;
    }
    return {};
}

} // namespace kvcache

// ---- kvcache/tier/concept.hpp -------------------------------------------------------------------------------------

namespace kvcache {

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
/// for the world's faults, all may be made by several threads at once, and what they refuse is counted. One that is
/// chosen at run time may have `is_none()`: nothing is asked of it then.
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

/// Where pages stay when they leave memory.
template <class P>
concept tier_policy = plays<P, tier_role> && requires(const P p) {
    p.open();
} && tier_state<opened_by<P>>;

} // namespace kvcache

// ---- kvcache/tier/run.hpp -----------------------------------------------------------------------------------------

namespace kvcache {

/// What `read_run` calls with the place of a record in its run and with its bytes; false: no more. It stands for any
/// callable of this form.
struct tier_run_use {
    bool operator()(std::size_t index, std::span<const std::byte> bytes) const;
};

/// A tier that is asked for a run of records at once, because every question takes a while. `leading` says how many
/// leading records are there. `read_run` reads them in turn, as long as they are there and more are wanted, and says
/// how many it gave; an error, if it gave none.
template <class S>
concept run_tier_state = tier_state<S> && requires(S s, std::span<const digest256> names, const tier_run_use& use) {
    { s.leading(names) } -> std::same_as<std::size_t>;
    { s.read_run(names, use) } -> std::same_as<result<std::size_t>>;
};

/// How many leading records a tier has.
template <tier_state Tier>
[[nodiscard]] std::size_t leading_in(Tier& tier, std::span<const digest256> names) {
    if constexpr (run_tier_state<Tier>) {
        return names.empty() ? 0 : tier.leading(names);
    } else {
        std::size_t there = 0;
        while (there < names.size() && tier.contains(names[there]))
            ++there;
        return there;
    }
}

/// Reads records in turn, as long as they are there and `use(index, bytes)` wants more. Returns how many it was given.
/// Errors: those of the tier, if it was given none.
template <tier_state Tier, class Use>
[[nodiscard]] result<std::size_t> read_run(Tier& tier, std::span<const digest256> names, Use&& use) {
    if constexpr (run_tier_state<Tier>) {
        if (names.empty())
            return std::size_t{0};
        return tier.read_run(names, use);
    } else {
        bool more = true;
        for (std::size_t i = 0; i < names.size(); ++i) {
            const auto found = tier.read(names[i], [&](std::span<const std::byte> bytes) { more = use(i, bytes); });
            if (!found && i == 0)
                return found.error();
            if (!found || !*found)
                return i;
            if (!more)
                return i + 1;
        }
        return names.size();
    }
}

} // namespace kvcache

// ---- kvcache/cache/tier_books.hpp ---------------------------------------------------------------------------------

namespace kvcache {

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

/// What a cache does with its tier: after a commit full pages are handed over; where memory knows no more of a prompt,
/// records are put in place through a lease, checked there, and committed. What fails is counted, and is a miss.
template <tier_state Tier>
class tier_books {
public:
    tier_books(Tier tier, const identity& id, const std::string& secret)
        : tier_(std::move(tier)), secret_(secret), seal_(secret) {
        set(0, id);
    }

    [[nodiscard]] Tier& tier() noexcept { return tier_; }
    [[nodiscard]] const Tier& tier() const noexcept { return tier_; }

    /// Says the identity of a tenant; of the cache itself for 0. Throws: bad_alloc.
    void set(std::size_t tenant, const identity& id) {
        auto names = std::make_unique<record_names>(id, secret_);
        const std::lock_guard guard(lock_);
        names_.resize(std::max(names_.size(), tenant + 1));
        names_[tenant] = std::move(names);
    }

    [[nodiscard]] tier_stats stats() const {
        const std::lock_guard guard(lock_);
        return stats_;
    }

    /// Puts what the tier has of `tokens` behind a sequence that begins them and ends with a page. Whole pages only.
    /// Returns how many pages.
    template <class Cache>
    [[nodiscard]] std::size_t load(Cache& cache, typename Cache::sequence& behind, std::uint32_t tenant,
                                   std::span<const token_id> tokens) {
        const std::size_t page_tokens = cache.shape().tokens;
        const std::size_t first = behind.size() / page_tokens, most = tokens.size() / page_tokens;
        if (first >= most)
            return 0;
        note([](tier_stats& s) { ++s.asked; });
        try {
            const record_names& names = names_of(tenant);
            std::vector<digest256> chain = {names.root()}; // by page: what comes before it
            for (std::size_t page = 0; page < most; ++page)
                chain.push_back(names.chain(chain.back(), tokens.subspan(page * page_tokens, page_tokens)));
            const auto wanted = std::span<const digest256>(chain).subspan(first + 1);
            std::size_t pages = leading_in(tier_, wanted);
            if (pages > 0 && !worth_loading(pages, cache.prefill_seconds(first * page_tokens, pages * page_tokens))) {
                note([](tier_stats& s) { ++s.slower; });
                return 0;
            }
            while (pages > 0) {
                const auto run = tokens.subspan(first * page_tokens, pages * page_tokens);
                const auto began = std::chrono::steady_clock::now();
                auto lease = cache.reserve(behind, run.size(), 1);
                if (!lease) {
                    note([](tier_stats& s) { ++s.no_room; });
                    pages /= 2;
                    continue;
                }
                const std::size_t placed = place(*lease, cache, names, chain, first, run);
                if (placed < pages) {
                    pages = placed; // what a shorter run keeps exactly differs, so it is put in place anew
                    continue;
                }
                lease->commit_in_place(run);
                const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
                if constexpr (requires { tier_.took(pages, took.count()); })
                    tier_.took(pages, took.count());
                note([&](tier_stats& s) { ++s.hits, s.loaded_tokens += run.size(); });
                return pages;
            }
        } catch (const std::bad_alloc&) {
            note([](tier_stats& s) { ++s.failed; });
        }
        return 0;
    }

    /// Hands over the pages [first, last) of a sequence, which are full and exact, if the tier has them not. `name` is
    /// that of all before `first`. Returns how many leading pages it is the name of then: `last`, or fewer without
    /// memory.
    template <class Cache>
    [[nodiscard]] std::size_t store(const Cache& cache, std::uint32_t tenant, std::span<const page_entry> table,
                                    std::span<const token_id> tokens, std::size_t first, std::size_t last,
                                    digest256& name) noexcept {
        const record_names& names = names_of(tenant);
        const std::size_t page_tokens = cache.shape().tokens;
        try {
            for (; first < last; ++first) {
                const auto run = tokens.subspan(first * page_tokens, page_tokens);
                const digest256 before = first == 0 ? names.root() : name, own = names.chain(before, run);
                if (!tier_.contains(own))
                    hand_over(cache, table[first], first, tokens.size(), run, before, own, names);
                name = own;
            }
        } catch (const std::bad_alloc&) {
            note([](tier_stats& s) { ++s.failed; });
        }
        return first;
    }

private:
    [[nodiscard]] const record_names& names_of(std::uint32_t tenant) const {
        const std::lock_guard guard(lock_);
        return *names_[tenant];
    }

    template <class Change>
    void note(Change change) {
        const std::lock_guard guard(lock_);
        change(stats_);
    }
    void fail(error why) {
        note([&](tier_stats& s) { ++s.failed, s.last = std::move(why); });
    }

    template <class Cache>
    void hand_over(const Cache& cache, const page_entry& entry, std::size_t page, std::size_t end,
                   std::span<const token_id> run, const digest256& before, const digest256& name,
                   const record_names& names) {
        page_parts<Cache> parts(cache);
        parts.add(entry, page, end, 0);
        const record_writer made({record_kind::page, page * run.size(), run, before, name, parts.parts()}, names,
                                 seal_);
        const auto taken = tier_.put({.name = name,
                                      .cost = cache.prefill_seconds(page * run.size(), run.size()),
                                      .depth = static_cast<std::uint32_t>(page)},
                                     made.pieces());
        if (!taken)
            fail(taken.error());
        else
            note([](tier_stats& s) { ++s.handed_over; });
    }

    // Whether reading so many pages is said to be quicker than computing them.
    [[nodiscard]] bool worth_loading(std::size_t pages, double prefill_seconds) {
        if constexpr (requires { tier_.worth(pages, prefill_seconds); })
            return tier_.worth(pages, prefill_seconds);
        else
            return true;
    }

    // Puts the pages of a run in place, from page `first` on. Returns how many: fewer, and it is counted why, if the
    // tier has no sound record of the next.
    template <class Lease, class Cache>
    [[nodiscard]] std::size_t place(const Lease& lease, const Cache& cache, const record_names& names,
                                    std::span<const digest256> chain, std::size_t first,
                                    std::span<const token_id> run) {
        const std::size_t page_tokens = cache.shape().tokens, pages = run.size() / page_tokens;
        std::size_t placed = 0;
        result<void> sound;
        const auto read =
            read_run(tier_, chain.subspan(first + 1, pages), [&](std::size_t at, std::span<const std::byte> bytes) {
                const std::size_t page = first + at;
                sound = put_in_place<typename Cache::codec_type>(lease, names, bytes, chain[page], chain[page + 1],
                                                                 page * page_tokens, at,
                                                                 run.subspan(at * page_tokens, page_tokens));
                placed += sound.has_value();
                return sound.has_value();
            });
        if (!read)
            fail(read.error());
        if (!sound) {
            note([&](tier_stats& s) { ++s.refused, s.last = sound.error(); });
            if (auto erased = tier_.erase(chain[first + placed + 1]); !erased)
                fail(erased.error());
        }
        return placed;
    }

    template <class Codec, class Lease>
    [[nodiscard]] result<void> put_in_place(const Lease& lease, const record_names& names,
                                            std::span<const std::byte> bytes, const digest256& before,
                                            const digest256& name, std::uint64_t first, std::size_t at,
                                            std::span<const token_id> run) const {
        const auto read = record::parse(bytes, seal_);
        if (!read)
            return read.error();
        if (auto own = read->made_under(names); !own)
            return own;
        const struct {
            const char* field;
            bool holds;
        } facts[] = {{"kind", read->kind() == record_kind::page},
                     {"name", read->name() == name},
                     {"before", read->before() == before},
                     {"first_token", read->first() == first},
                     {"tokens", std::ranges::equal(read->tokens(), run)}};
        for (const auto& [field, holds] : facts)
            if (!holds)
                return error{error_code::mismatched, field,
                             std::string(field) + ": the record is not the one that was asked for"};
        return place_page<Codec>(*read, 0, lease, at, static_cast<std::uint32_t>(run.size()), seal_);
    }

    Tier tier_;
    std::string secret_;
    record_seal seal_;
    mutable std::mutex lock_;                          // of what follows
    std::vector<std::unique_ptr<record_names>> names_; // by tenant
    tier_stats stats_;
};

} // namespace kvcache

// ---- kvcache/locking/concept.hpp ----------------------------------------------------------------------------------

namespace kvcache {

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

// ---- kvcache/tier/no_tier.hpp -------------------------------------------------------------------------------------

namespace kvcache {

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
};

inline no_tier::state no_tier::open() const {
    return {};
}

static_assert(tier_policy<no_tier>);

} // namespace kvcache

// ---- kvcache/cache/basic_cache.hpp --------------------------------------------------------------------------------

// Longer than 300 lines: the composition, of short functions that each join several books.

namespace kvcache {

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
    static constexpr bool has_tier = !std::same_as<Tier, no_tier>;

    /// Whether the codec keeps row by row.
    static constexpr bool writes_rows = row_writer<codec_type>;
    /// Whether the index finds chunks by their content, and the codec keeps row by row.
    static constexpr bool knows_chunks =
        row_writer<codec_type> && chunk_index_state<decltype(std::declval<const Index&>().open(page_shape{}, 0))>;

    /// `tenants` is how many there may be; zero for a cache that its user alone has.
    basic_cache(std::size_t tenants, identity id, page_shape shape, budget limit, Codec codec, Storage storage,
                Hash hash, Index index, Eviction eviction, Recompute recompute, Tier tier, Observer observer)
        : shape_(checked(shape)),
          codec_(codec.open(shape)),
          identity_(complete(std::move(id))),
          books_(shape, pages_in(limit), codec_.page_bytes(), tenants, page_writer<codec_type>, identity_, storage,
                 hash, index, eviction, observer),
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
        if constexpr (has_tier) {
            if (tier_is_none())
                return look_up(tenant, tokens, true);
            match_type known = look_up(tenant, tokens, false);
            const std::size_t whole = known.tokens() / shape_.tokens;
            if (whole == tokens.size() / shape_.tokens)
                return tell_of(std::move(known));
            sequence behind = open(std::move(known), {whole * shape_.tokens, 0});
            const std::size_t loaded = tier_.load(*this, behind, tenant, tokens) * shape_.tokens;
            match_type found = look_up(tenant, tokens, true);
            found.loaded_ = std::min(loaded, found.tokens());
            return found;
        } else {
            return look_up(tenant, tokens, true);
        }
    }

private:
    [[nodiscard]] match_type tell_of(match_type found) {
        std::vector<page_id> pages;
        for (const page_entry& entry : found.known_.table())
            pages.push_back(entry.page);
        const std::lock_guard guard(lock_);
        books_.tell({event_kind::matched, found.tokens(), found.of(), pages.size(), pages});
        return found;
    }

    [[nodiscard]] match_type look_up(std::uint32_t tenant, std::span<const token_id> tokens, bool tells) {
        const std::lock_guard guard(lock_);
        const index_match found = books_.index().match(tenant, tokens);
        auto known = std::make_unique<sequence_state>();
        known->tenant = tenant;
        known->prompt = tokens.size();
        known->tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(found.tokens));
        std::size_t left = found.tokens;
        for (const page_id page : found.pages) {
            const std::size_t rows = std::min<std::size_t>(left, shape_.tokens);
            known->table.push_back({.page = page, .count = static_cast<std::uint32_t>(rows)});
            left -= rows;
        }
        const std::size_t kept = sequences_.exact().kept(*known, found.tokens);
        known->tokens.resize(kept);
        known->table.resize(known->cut(kept));
        const auto pages = std::span(found.pages).first(known->table.size());
        if (tells)
            books_.tell({event_kind::matched, kept, tokens.size(), pages.size(), pages});
        return {adopt(std::move(known)), tokens.size(), found};
    }

public:
    /// Which of the matched prompt's tokens run.
    [[nodiscard]] rerun plan(const match_type& found) const {
        std::size_t first = first_rerun(found);
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
        try {
            if (sequences_.take_rows(state, codec_, in_tail, behind, copies ? used : 0) &&
                sequences_.exact().open(state, used, at_once))
                return lease(*this, state);
        } catch (...) {
            sequences_.undo(state);
            throw;
        }
        sequences_.undo(state);
        return sequences_.refuse(state, rows, needed, codec_.page_bytes());
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
        return "kvcache: " + describe_pages(shape_, codec_.name(), stats()) + "; identity " +
               to_string(digest_of(identity_));
    }

    /// Proves the books: every page is free, held or idle, every holder is counted, every run is what its holders say.
    /// Cost: O(pages + tokens). For tests and for suspicion.
    [[nodiscard]] result<void> check() const {
        const std::lock_guard guard(lock_);
        return sequences_.check();
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
        if constexpr (has_tier)
            store(state);
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

    [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return books_.pool().bytes(page); }

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
    [[nodiscard]] std::size_t first_rerun(const match_type& found) const {
        if constexpr (edit_recompute_state<std::remove_cvref_t<decltype(recompute_)>>)
            return recompute_.first_rerun(found.tokens(), found.of(), found.end() == match_end::different);
        else
            return recompute_.first_rerun(found.tokens(), found.of());
    }

    // A tier that is chosen at run time may be none, and says so.
    [[nodiscard]] bool tier_is_none() const noexcept {
        if constexpr (requires { tier_.tier().is_none(); })
            return tier_.tier().is_none();
        else
            return false;
    }

    // Hands the tier the pages that a sequence has made known since.
    void store(sequence_state& state) noexcept {
        if (state.stored < state.sealed && !tier_is_none())
            state.stored = tier_.store(*this, state.tenant, state.table, state.tokens, state.stored, state.sealed,
                                       state.stored_name);
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
                             decltype(std::declval<const Observer&>().open())>;

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
        id.layout = "key tiles of 16, value rows; " + std::to_string(shape_.layers) + " layers, " +
                    std::to_string(shape_.kv_heads) + " KV heads of " + std::to_string(shape_.head_dim);
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

// ---- kvcache/core/mixed_bits.hpp ----------------------------------------------------------------------------------

namespace kvcache {

/// The number with every bit of it in every bit of the result, for tables whose keys need not be hashes: murmur3's
/// finaliser (Appleby), which no two numbers share.
[[nodiscard]] constexpr std::uint64_t mixed_bits(std::uint64_t x) noexcept {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

} // namespace kvcache

// ---- kvcache/eviction/ghost_list.hpp ------------------------------------------------------------------------------

namespace kvcache {

/// What is remembered of an entry that left.
struct ghost {
    std::size_t bytes = 0;  ///< What it took, rounded up to the list's grain.
    std::uint32_t mark = 0; ///< What its policy noted.
    std::size_t since = 0;  ///< About how many came to the list after it and are there still.
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
    void prefetch(std::uint64_t key) const noexcept { kvcache::prefetch(chains_.data(), chain_at(mixed_bits(key))); }

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
        // Holes are spread evenly, about.
        const std::size_t behind = used_ - 1 - (index - first_ + (index < first_ ? capacity() : 0));
        const std::size_t since = behind * size_ / used_;
        if (marks_only_)
            return {.mark = nodes_[index].units, .since = since};
        return {std::size_t{nodes_[index].units} << grain_, marks_.empty() ? 0 : marks_[index], since};
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
    void prefetch_oldest() const noexcept {
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

// ---- kvcache/eviction/slot_queues.hpp -----------------------------------------------------------------------------

namespace kvcache {

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
    void prefetch(slot_id slot) const noexcept { kvcache::prefetch_to_write(links_.data(), index_of(slot)); }
    void prefetch_neighbours(slot_id slot) const noexcept {
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

// ---- kvcache/eviction/arc.hpp -------------------------------------------------------------------------------------

namespace kvcache {

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

// ---- kvcache/eviction/arrival_queues.hpp --------------------------------------------------------------------------

namespace kvcache {

/// The two queues of s3_fifo for entries whose marks lie elsewhere: they arrive in one of them, a touch does not move
/// them, and `first` goes through them as that policy does.
///
///     [ small, a tenth ] -> used twice -> [ main ], another round for each use
///
/// Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023.
///
/// Cost: O(1) each; `first` amortised, while a fixed share of the entries may leave. 8 bytes a slot.
class arrival_queues {
public:
    /// What these queues know of an entry: bits of a byte, of which the others are its owner's.
    static constexpr std::uint8_t fresh = 1; ///< Nobody has let go of it yet.
    static constexpr std::uint8_t main = 2;  ///< It is in the main queue.
    static constexpr std::uint8_t one_use = 64, uses = 192;

    arrival_queues(std::size_t slots, std::size_t room)
        : queues_(slots, 2), main_room_(0.9 * static_cast<double>(room)) {}

    void arrive(slot_id slot, std::uint8_t marks, double bytes) {
        const std::uint32_t to = queue(marks);
        queues_.push_front(slot, to);
        bytes_[to] += bytes;
        ++count_[to];
    }

    void leave(slot_id slot, std::uint8_t marks, double bytes) {
        queues_.remove(slot);
        bytes_[queue(marks)] -= bytes;
        --count_[queue(marks)];
    }

    static void touch(std::uint8_t& marks) noexcept {
        if ((marks & uses) != uses)
            marks = static_cast<std::uint8_t>(marks + one_use);
    }

    /// The last holder lets go: a chain that has come queues tail first.
    void settle(slot_id slot, std::uint8_t& marks) {
        if ((marks & fresh) != 0)
            queues_.move_to_front(slot, queue(marks));
        marks = static_cast<std::uint8_t>(marks & ~fresh);
    }

    /// Who leaves first. `marks_of(slot)` is an entry's marks, to be changed, `bytes_of(slot)` its size.
    template <class MayLeave, class Marks, class Bytes>
    [[nodiscard]] std::optional<slot_id> first(MayLeave&& may_leave, Marks&& marks_of, Bytes&& bytes_of) {
        // A round asks or promotes all of the small queue, and four rounds ask all of the main one.
        std::size_t small_left = count_[0];
        std::size_t main_left = (count_[0] + count_[1]) * 4;
        while (small_left > 0 || main_left > 0) {
            const bool full = bytes_[1] > main_room_ || count_[0] == 0;
            if (count_[1] > 0 && main_left > 0 && (full || small_left == 0)) {
                --main_left;
                const slot_id oldest = queues_.back(1);
                std::uint8_t& marks = marks_of(oldest);
                if ((marks & uses) == 0 && may_leave(oldest))
                    return oldest;
                if ((marks & uses) != 0)
                    marks = static_cast<std::uint8_t>(marks - one_use);
                queues_.move_to_front(oldest, 1);
            } else if (count_[0] > 0 && small_left > 0) {
                --small_left;
                const slot_id oldest = queues_.back(0);
                std::uint8_t& marks = marks_of(oldest);
                if ((marks & uses) >= 2 * one_use) {
                    leave(oldest, marks, bytes_of(oldest));
                    marks = static_cast<std::uint8_t>((marks & ~(uses | fresh)) | main);
                    arrive(oldest, marks, bytes_of(oldest));
                } else if (may_leave(oldest)) {
                    return oldest;
                } else {
                    queues_.move_to_front(oldest, 0);
                }
            } else {
                break;
            }
        }
        return queues_.oldest(1, may_leave); // what went there after its rounds
    }

private:
    [[nodiscard]] static std::uint32_t queue(std::uint8_t marks) noexcept { return (marks & main) != 0 ? 1 : 0; }

    slot_queues queues_;
    double main_room_;
    double bytes_[2] = {};
    std::size_t count_[2] = {};
};

} // namespace kvcache

// ---- kvcache/eviction/ghost_pair.hpp ------------------------------------------------------------------------------

namespace kvcache {

/// Ghosts of entries that were used once and of those that were used again, remembered beyond what arc does, and the
/// share of the room that arc would give those used once: who returns as a ghost that arc would still have moves it.
///
/// Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003.
///
/// Cost: O(1) each. 16 bytes a ghost.
class ghost_pair {
public:
    /// Who returns.
    struct returned {
        std::uint32_t mark = 0; ///< What its policy noted.
        bool again = false;     ///< It had been used again.
        bool recent = false;    ///< arc would have it still.
        std::size_t since = 0;  ///< About how many ghosts of its kind are newer.
    };

    /// `once` and `again` ghosts, and a room of so many bytes.
    ghost_pair(std::size_t once, std::size_t again, std::size_t room)
        : once_(once, 0, ghost_list::marks::instead_of_bytes),
          again_(again, 0, ghost_list::marks::instead_of_bytes),
          room_(static_cast<double>(room)) {}

    void push(std::uint64_t key, std::uint32_t mark, bool again) { (again ? again_ : once_).push(key, {.mark = mark}); }

    /// Takes a newcomer's ghost, of a cache with so many entries, so many of which were used once.
    std::optional<returned> take(const entry& newcomer, std::size_t present, std::size_t present_once) {
        // arc's lists: those used once, ghosts included, would fill the cache, and all of them two caches.
        const std::size_t of_once = std::min(once_.size(), present - present_once);
        const std::size_t of_again = std::min(again_.size(), present - of_once);
        const auto step = [&](std::size_t other, std::size_t own) {
            return static_cast<double>(newcomer.bytes) *
                   std::max(static_cast<double>(other) / static_cast<double>(std::max<std::size_t>(own, 1)), 1.0);
        };
        if (const auto ghost = once_.take(newcomer.key)) {
            const bool recent = ghost->since < of_once;
            if (recent)
                target_ = std::min(target_ + step(of_again, of_once), room_);
            return returned{ghost->mark, false, recent, ghost->since};
        }
        if (const auto ghost = again_.take(newcomer.key)) {
            const bool recent = ghost->since < of_again;
            if (recent)
                target_ = std::max(target_ - step(of_once, of_again), 0.0);
            return returned{ghost->mark, true, recent, ghost->since};
        }
        return std::nullopt;
    }

    /// The bytes that arc would give to entries that were used once.
    [[nodiscard]] double target() const noexcept { return target_; }

private:
    ghost_list once_, again_;
    double room_;
    double target_ = 0.0;
};

} // namespace kvcache

// ---- kvcache/eviction/lru.hpp -------------------------------------------------------------------------------------

namespace kvcache {

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

// ---- kvcache/eviction/reuse_ages.hpp ------------------------------------------------------------------------------

namespace kvcache {

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

// ---- kvcache/eviction/touch_ring.hpp ------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

// ---- kvcache/eviction/rounded_bytes.hpp ---------------------------------------------------------------------------

namespace kvcache {

/// A number of bytes, at least one, within 1 % in two bytes: the upper half of a float.
class rounded_bytes {
public:
    rounded_bytes() = default;
    explicit rounded_bytes(std::size_t bytes) noexcept
        : upper_(static_cast<std::uint16_t>(
              std::bit_cast<std::uint32_t>(static_cast<float>(std::max<std::size_t>(bytes, 1))) >> 16)) {}

    /// A whole number.
    [[nodiscard]] double count() const noexcept {
        return static_cast<double>(std::bit_cast<float>(std::uint32_t{upper_} << 16));
    }

private:
    std::uint16_t upper_ = 0;
};

} // namespace kvcache

// ---- kvcache/eviction/s3_fifo.hpp ---------------------------------------------------------------------------------

namespace kvcache {

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

// ---- kvcache/eviction/shadow_cache.hpp ----------------------------------------------------------------------------

namespace kvcache {

/// What a policy would keep: its state beside the keys of the entries that would be present, without their bytes.
/// Entries are not held and do not continue one another here.
///
/// Cost: a look-up and the policy's work a use. 24 bytes a slot beside the policy's own; all of it is had at
/// construction.
template <eviction_policy Policy>
class shadow_cache {
public:
    shadow_cache(const Policy& policy, eviction_room room)
        : state_(policy.open(room)),
          entries_(room.slots),
          next_(room.slots),
          chains_(std::max<std::size_t>(room.slots, 1), none),
          room_(room.bytes) {
        for (std::uint32_t slot = static_cast<std::uint32_t>(room.slots); slot > 0; --slot)
            next_[slot - 1] = std::exchange(free_, slot - 1);
    }

    /// An entry is used. Returns: whether it would have been present. It is afterwards, if it fits at all.
    bool use(const entry& used) {
        if (const std::uint32_t slot = find(used.key); slot != none) {
            state_.touch(slot_id{slot});
            return true;
        }
        if (used.bytes > room_)
            return false;
        announce(state_, used);
        while (free_ == none || used.bytes > room_ - bytes_)
            if (!make_room())
                return false;
        const std::uint32_t slot = std::exchange(free_, next_[free_]);
        std::uint32_t& chain = chain_of(used.key);
        entries_[slot] = {used.key, used.bytes};
        next_[slot] = std::exchange(chain, slot);
        bytes_ += used.bytes;
        state_.admit(slot_id{slot}, used);
        return false;
    }

    /// The last holder of an entry lets go; it need not be present.
    void settle(std::uint64_t key) {
        if (const std::uint32_t slot = find(key); slot != none)
            kvcache::settle(state_, slot_id{slot});
    }

private:
    static constexpr std::uint32_t none = 0xffffffffu;
    struct known {
        std::uint64_t key = 0;
        std::size_t bytes = 0;
    };

    [[nodiscard]] std::uint32_t& chain_of(std::uint64_t key) {
        return chains_[((mixed_bits(key) & 0xffffffffu) * chains_.size()) >> 32];
    }

    [[nodiscard]] std::uint32_t find(std::uint64_t key) {
        std::uint32_t slot = chain_of(key);
        while (slot != none && entries_[slot].key != key)
            slot = next_[slot];
        return slot;
    }

    bool make_room() {
        const std::optional<slot_id> victim = state_.victim([](slot_id) { return true; });
        if (!victim)
            return false;
        evict(state_, *victim);
        const std::uint32_t slot = index_of(*victim);
        std::uint32_t* link = &chain_of(entries_[slot].key);
        while (*link != slot)
            link = &next_[*link];
        *link = next_[slot];
        bytes_ -= entries_[slot].bytes;
        next_[slot] = std::exchange(free_, slot);
        return true;
    }

    opened_by<Policy, eviction_room> state_;
    std::vector<known> entries_;        // by slot
    std::vector<std::uint32_t> next_;   // in its chain, or among the free
    std::vector<std::uint32_t> chains_; // by hash
    std::uint32_t free_ = none;
    std::size_t bytes_ = 0;
    std::size_t room_;
};

} // namespace kvcache

// ---- kvcache/eviction/shadow_contest.hpp --------------------------------------------------------------------------

namespace kvcache {

/// Which of several policies would have the most hits here of late: each keeps a shadow of the cache over the same
/// sample of the keys, smaller than the cache in the same proportion (Waldspurger et al., "Efficient MRC construction
/// with SHARDS", FAST 2015). Two are compared by the uses that one had and the other had not, halved from time to time;
/// another leads once it is ahead by more than chance.
///
/// Cost: a hash a use, and for a use in the sample one of each shadow.
template <eviction_policy... Policies>
class shadow_contest {
public:
    static constexpr std::size_t policies = sizeof...(Policies);

    /// Shadows of so many slots, at most those of the room. None: nothing is in the sample.
    shadow_contest(eviction_room room, std::size_t slots)
        : shadows_(shadow_cache<Policies>(Policies{}, part(room, slots))...),
          sampled_(room.slots == 0 ? 0 : (std::uint64_t{slots} << 32) / room.slots),
          period_(8 * slots) {}

    /// Whether a key is in the sample.
    [[nodiscard]] bool samples(std::uint64_t key) const noexcept {
        return mixed_bits(key ^ 0x9e3779b97f4a7c15u) >> 32 < sampled_; // not the bits that shadows know keys by
    }

    /// An entry is used.
    void use(const entry& used) {
        if (!samples(used.key))
            return;
        const std::array<bool, policies> had = each([&](auto& shadow) { return shadow.use(used); });
        for (std::size_t a = 0; a < policies; ++a)
            for (std::size_t b = 0; b < policies; ++b)
                ahead_[a][b] += had[a] && !had[b] ? 1.0 : 0.0;
        if (++uses_ % period_ == 0)
            for (auto& row : ahead_)
                for (double& uses : row)
                    uses *= 0.5;
    }

    /// The last holder of an entry lets go.
    void settle(std::uint64_t key) {
        if (samples(key))
            each([&](auto& shadow) { return shadow.settle(key), true; });
    }

    /// Who of the first `candidates` leads, after this one did.
    [[nodiscard]] std::size_t leader(std::size_t before, std::size_t candidates) const {
        std::size_t next = before;
        double most = 0.0;
        for (std::size_t a = 0; a < candidates; ++a) {
            const double won = ahead_[a][before], lost = ahead_[before][a];
            if (won - lost > most && won - lost > 1.5 * std::sqrt(won + lost) + 2.0) {
                most = won - lost;
                next = a;
            }
        }
        return next;
    }

private:
    [[nodiscard]] static eviction_room part(eviction_room room, std::size_t slots) {
        const double share = room.slots == 0 ? 0.0 : static_cast<double>(slots) / static_cast<double>(room.slots);
        return {slots, static_cast<std::size_t>(static_cast<double>(room.bytes) * share)};
    }

    template <class Use>
    std::array<bool, policies> each(Use&& use) {
        return std::apply([&](auto&... shadows) { return std::array<bool, policies>{use(shadows)...}; }, shadows_);
    }

    std::tuple<shadow_cache<Policies>...> shadows_;
    std::array<std::array<double, policies>, policies> ahead_ = {}; // uses that a had and b had not
    std::uint64_t sampled_;                                         // of 2^32
    std::size_t period_, uses_ = 0;
};

} // namespace kvcache

// ---- kvcache/eviction/follow_leader.hpp ---------------------------------------------------------------------------

namespace kvcache {

/// The entry leaves that the policy of most hits of late would let go: arc or s3_fifo for entries that stand alone, for
/// chains also lru or reuse_forecast. Which one has most, shadows of the cache over a sample of the keys say. Entries
/// are in two orders at once, by use and by arrival, so that each of the four finds its victim at any time; before
/// anything is learned, and in caches too small for a sample, it is lru, and for entries that stand alone arc.
///
///     once   1, 2, 3..4, 5..8, 9 or more uses [ newest ... oldest ] -+- lru: the oldest
///     again  1, 2, 3..4, 5..8, 9 or more uses [ newest ... oldest ] -+- arc: the oldest of once or again, by a target
///                                                                    '- reuse_forecast: the least worth at its age
///     small  [ newest ... oldest ] -> used twice -> main [ newest ... oldest ] -- s3_fifo
///
/// Who lets the leader decide is an expert follower (Herbster and Warmuth, "Tracking the best expert", 1998; ACME, Ari
/// et al. 2002, for caches). docs/replay.md has its hit ratios.
struct follow_leader {
    using role = eviction_role;
    std::size_t ghosts_a_slot = 4;
    std::size_t contest_from = 256; ///< Slots from which on the policies are compared, at least 4.
    class state;
    [[nodiscard]] state open(eviction_room room) const;
};

/// Cost: O(1) each; victim amortised, while a fixed share of the entries may leave. 32 bytes a slot, 16 a ghost; the
/// shadows take at most as much as five ghosts a slot, and 1.3 MB.
class follow_leader::state {
public:
    state(const follow_leader& policy, eviction_room room)
        : recency_(room.slots, 2 * classes),
          arrival_(room.slots, room.bytes),
          entries_(room.slots),
          ghosts_(room.slots * policy.ghosts_a_slot - room.slots * policy.ghosts_a_slot / 4,
                  room.slots * policy.ghosts_a_slot / 4, room.bytes),
          contest_(room, room.slots < policy.contest_from ? 0 : std::min<std::size_t>(room.slots / 4, 4096)),
          leader_(room.slots < policy.contest_from ? by_lru : by_arc),
          period_(static_cast<std::uint32_t>(std::clamp<std::size_t>(room.slots, 2000, 1u << 24))) {}

    void announce(const entry& newcomer) {
        if (announced_ == newcomer.key)
            return;
        announced_ = newcomer.key;
        ghost_ = ghosts_.take(newcomer, present_, present_once_);
    }

    void admit(slot_id slot, const entry& newcomer) {
        apply_touches();
        expects(!recency_.contains(slot), "an entry is admitted once");
        announce(newcomer);
        if (!chained_ && newcomer.parent) {
            chained_ = true;
            leader_ = by_lru;
        }
        known& one = entries_[index_of(slot)];
        one = {.key = newcomer.key, .bytes = rounded_bytes(newcomer.bytes), .marks = arrival_queues::fresh};
        if (ghost_) {
            const std::uint32_t c = ghost_->mark & ghost_class;
            one.uses = static_cast<std::uint8_t>(c == 0 ? 1 : (1u << (c - 1)) + 1); // the least of the class
            ages_.use(c, clock_ - (ghost_->mark & ~ghost_bits));
            if (ghost_->recent)
                one.marks |= again;
            if ((ghost_->mark & ghost_main) == 0 && 10 * ghost_->since < 9 * present_)
                one.marks |= arrival_queues::main;
        }
        announced_.reset();
        ghost_.reset();
        count(one, 1);
        arrival_.arrive(slot, one.marks, one.bytes.count());
        use(slot);
    }

    void touch(slot_id slot) {
        expects(recency_.contains(slot), "a touched entry was admitted");
        touches_.add(
            slot,
            [this](slot_id one) {
                recency_.prefetch(one);
                prefetch_to_write(entries_.data(), index_of(one));
            },
            [this](slot_id one) { recency_.prefetch_neighbours(one); }, [this](slot_id one) { use_again(one); });
    }

    void settle(slot_id slot) {
        apply_touches();
        expects(recency_.contains(slot), "an entry that settles was admitted");
        known& one = entries_[index_of(slot)];
        one.used = clock_;
        recency_.move_to_front(slot, queue_of(one));
        arrival_.settle(slot, one.marks);
        contest_.settle(one.key);
    }

    void erase(slot_id slot) {
        apply_touches();
        expects(recency_.contains(slot), "an erased entry was admitted");
        const known& one = entries_[index_of(slot)];
        count(one, -1);
        recency_.remove(slot);
        arrival_.leave(slot, one.marks, one.bytes.count());
    }

    void evict(slot_id slot) {
        apply_touches();
        const known& one = entries_[index_of(slot)];
        ghosts_.push(one.key,
                     (one.used & ~ghost_bits) | class_of(one) |
                         ((one.marks & arrival_queues::main) != 0 ? ghost_main : 0),
                     (one.marks & again) != 0);
        erase(slot);
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> victim(MayLeave&& may_leave) {
        apply_touches();
        if (leader_ == by_s3_fifo)
            return arrival_.first(
                may_leave, [this](slot_id slot) -> std::uint8_t& { return entries_[index_of(slot)].marks; },
                [this](slot_id slot) { return entries_[index_of(slot)].bytes.count(); });
        for (const std::size_t most_asked : {patience, recency_.slots()})
            if (const auto found = by_use(may_leave, most_asked))
                return found;
        return std::nullopt;
    }

private:
    enum leaders : std::size_t { by_arc, by_s3_fifo, by_lru, by_forecast };
    static constexpr std::uint32_t classes = 5;
    static constexpr std::uint32_t ghost_class = 7, ghost_main = 8, ghost_bits = 15;
    static constexpr std::uint8_t again = 4;    // beside the marks of arrival_queues
    static constexpr std::size_t patience = 64; // entries of a queue that are asked about before it is passed over
    struct known {
        std::uint64_t key = 0;
        std::uint32_t used = 0; // when, on the clock
        rounded_bytes bytes;
        std::uint8_t uses = 0; // up to 255
        std::uint8_t marks = 0;
    };

    // 1, 2, 3 to 4, 5 to 8 and more uses.
    [[nodiscard]] static std::uint32_t class_of(const known& one) noexcept {
        return std::min<std::uint32_t>(static_cast<std::uint32_t>(std::bit_width(std::uint32_t{one.uses} - 1u)),
                                       classes - 1);
    }
    [[nodiscard]] static std::uint32_t queue_of(const known& one) noexcept {
        return class_of(one) + ((one.marks & again) != 0 ? classes : 0);
    }

    void count(const known& one, int by) {
        const auto more = static_cast<std::size_t>(by); // modulo 2^64
        present_ += more;
        if ((one.marks & again) != 0)
            return;
        present_once_ += more;
        once_bytes_ += by * one.bytes.count();
    }

    void apply_touches() {
        touches_.apply_all([this](slot_id slot) { use_again(slot); });
    }

    void use_again(slot_id slot) {
        known& one = entries_[index_of(slot)];
        ages_.use(class_of(one), clock_ - one.used);
        recency_.remove(slot);
        count(one, -1);
        one.marks |= again;
        count(one, 1);
        arrival_queues::touch(one.marks);
        use(slot);
    }

    void use(slot_id slot) {
        known& one = entries_[index_of(slot)];
        one.uses = static_cast<std::uint8_t>(std::min(one.uses + 1, 255));
        one.used = ++clock_;
        ages_.begin(class_of(one));
        recency_.push_front(slot, queue_of(one));
        if (contest_.samples(one.key)) {
            contest_.use({.key = one.key, .bytes = static_cast<std::size_t>(one.bytes.count())});
            leader_ = contest_.leader(leader_, chained_ ? contest_.policies : std::size_t{by_lru});
        }
        if (++since_learned_ >= next_) { // soon at first, then once in a cache's worth of uses
            ages_.learn(1.0 - 0.1 * static_cast<double>(since_learned_) / static_cast<double>(period_));
            next_ = std::min(2 * next_, period_);
            since_learned_ = 0;
        }
    }

    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> by_use(MayLeave&& may_leave, std::size_t most_asked) {
        if (leader_ == by_forecast)
            return least(may_leave, most_asked);
        if (leader_ == by_lru)
            return oldest(0, 2 * classes, may_leave, most_asked);
        const double target = ghosts_.target();
        const bool tie = once_bytes_ == target && ghost_ && ghost_->recent && ghost_->again;
        const bool from_once = once_bytes_ > target || tie;
        const std::uint32_t first = from_once ? 0 : classes, other = classes - first;
        const auto found = oldest(first, first + classes, may_leave, most_asked);
        return found ? found : oldest(other, other + classes, may_leave, most_asked);
    }

    // The oldest that may leave of some queues. Who may not leave keeps its place: a parent is to follow what continues
    // it.
    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> oldest(std::uint32_t first, std::uint32_t last, MayLeave&& may_leave,
                                                std::size_t most_asked) {
        std::optional<slot_id> found;
        std::uint32_t age = 0;
        for (std::uint32_t q = first; q < last; ++q) {
            slot_id slot = recency_.back(q);
            std::size_t asked = 0;
            while (!recency_.ends(slot) && asked++ < most_asked && !may_leave(slot))
                slot = recency_.newer(slot);
            if (recency_.ends(slot) || asked > most_asked)
                continue;
            const std::uint32_t own_age = clock_ - entries_[index_of(slot)].used;
            if (!found || own_age > age) {
                found = slot;
                age = own_age;
            }
        }
        return found;
    }

    // Who is worth the least among the oldest and the newest of each queue that may leave: the newest where all return
    // after one age, as in a loop.
    template <class MayLeave>
    [[nodiscard]] std::optional<slot_id> least(MayLeave&& may_leave, std::size_t most_asked) {
        std::optional<slot_id> found;
        double worth = 0.0;
        std::uint32_t age = 0;
        for (std::uint32_t end = 0; end < 4 * classes; ++end) { // of each queue the back and the front
            const std::uint32_t q = end / 2;
            slot_id slot = end % 2 == 0 ? recency_.back(q) : recency_.front(q);
            std::size_t asked = 0;
            while (!recency_.ends(slot) && asked++ < most_asked && !may_leave(slot))
                slot = end % 2 == 0 ? recency_.newer(slot) : recency_.older(slot);
            if (recency_.ends(slot) || asked > most_asked)
                continue;
            const known& one = entries_[index_of(slot)];
            const std::uint32_t own_age = clock_ - one.used;
            const double own = ages_.worth(q % classes, own_age) / one.bytes.count();
            if (!found || own < worth || (own == worth && own_age > age)) {
                found = slot;
                worth = own;
                age = own_age;
            }
        }
        return found;
    }

    slot_queues recency_;
    arrival_queues arrival_;
    std::vector<known> entries_;
    touch_ring touches_;
    ghost_pair ghosts_;
    reuse_ages<classes> ages_;
    shadow_contest<arc, s3_fifo, lru, reuse_forecast> contest_; // in the order of leaders
    std::size_t leader_;
    bool chained_ = false; // an entry continued another
    std::size_t present_ = 0, present_once_ = 0;
    double once_bytes_ = 0.0;
    std::optional<std::uint64_t> announced_;
    std::optional<ghost_pair::returned> ghost_; // the announced newcomer's
    std::uint32_t clock_ = 0;                   // uses of all entries, round the clock
    std::uint32_t since_learned_ = 0;
    std::uint32_t period_;
    std::uint32_t next_ = 2000;
};

inline follow_leader::state follow_leader::open(eviction_room room) const {
    return state{*this, room};
}

static_assert(eviction_policy<follow_leader>);

} // namespace kvcache

// ---- kvcache/hash/xxh3.hpp ----------------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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
        const auto place = static_cast<std::size_t>(std::ranges::find(at.pages, old) - at.pages.begin());
        if (place < places) {
            at.tags[place] = new_tag;
            at.pages[place] = page;
        }
    }

    aligned_vector<line> lines_;
};

} // namespace kvcache

// ---- kvcache/index/page_order.hpp ---------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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
        std::ranges::copy(tokens, tokens_.data() + index_of(page) * page_tokens_);
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
        const auto common = [&](std::uint32_t page) {
            const auto stored = page == none ? std::span<const token_id>() : run_of(page);
            return static_cast<std::size_t>(std::ranges::mismatch(stored, query).in1 - stored.begin());
        };
        const std::size_t earlier = common(near.before), later = common(near.after);
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
            return std::ranges::lexicographical_compare(tree->run_of(page), tokens);
        }
    };
    [[nodiscard]] comes_before before(std::span<const token_id> tokens) const { return {this, tokens}; }

    [[nodiscard]] static bool starts_with(std::span<const token_id> whole, std::span<const token_id> start) {
        return whole.size() >= start.size() && std::ranges::equal(whole.first(start.size()), start);
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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

// ---- kvcache/storage/heap.hpp -------------------------------------------------------------------------------------

namespace kvcache {

/// Takes pages from a memory resource when they are first used, on a cache line and zeroed, and keeps them until the
/// cache closes. A large budget is taken in slabs of neighbouring pages, on huge pages where the system has them, none
/// of more than an eighth of it: a budget that is never filled is never allocated. Where no slab is to be had, single
/// pages are.
struct heap {
    using role = storage_role;
    std::pmr::memory_resource* resource = nullptr; ///< Where pages come from; null means new and delete.
    class state;
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const;
};

class heap::state {
public:
    state(std::pmr::memory_resource* resource, std::size_t pages, std::size_t page_bytes)
        : resource_(resource),
          page_bytes_(page_bytes),
          stride_((page_bytes + line_bytes - 1) / line_bytes * line_bytes),
          slab_pages_(pages_a_slab(pages, stride_)),
          pages_(pages, nullptr),
          slabs_(slab_pages_ == 0 ? 0 : (pages + slab_pages_ - 1) / slab_pages_) {}

    state(state&& other) noexcept
        : resource_(other.resource_),
          page_bytes_(other.page_bytes_),
          stride_(other.stride_),
          slab_pages_(other.slab_pages_),
          pages_(std::exchange(other.pages_, {})),
          slabs_(std::exchange(other.slabs_, {})) {}
    state& operator=(state&& other) noexcept {
        std::swap(resource_, other.resource_);
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
        try {
            memory = place(index_of(page));
        } catch (const std::bad_alloc&) {
            return false;
        }
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
        try {
            own.memory = static_cast<std::byte*>(resource_->allocate(bytes, huge_page_bytes));
            want_huge_pages(own.memory, bytes);
        } catch (const std::bad_alloc&) {
            own.refused = true;
        }
    }

    std::pmr::memory_resource* resource_;
    std::size_t page_bytes_;
    std::size_t stride_;     // from one page of a slab to the next, in bytes
    std::size_t slab_pages_; // 0: pages are taken one by one
    std::vector<void*> pages_;
    std::vector<slab> slabs_;
};

inline heap::state heap::open(std::size_t pages, std::size_t page_bytes) const {
    return {resource != nullptr ? resource : std::pmr::new_delete_resource(), pages, page_bytes};
}

static_assert(storage_policy<heap>);

} // namespace kvcache

// ---- kvcache/cache/compose.hpp ------------------------------------------------------------------------------------

namespace kvcache {

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
                    typename slot<eviction_role, follow_leader, Ps...>::type,
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

// ---- kvcache/codec/coded_pages.hpp --------------------------------------------------------------------------------

namespace kvcache {

/// The state of a codec that codes whole pages, keys and values each in its own way. For each layer and head come the
/// keys, a unit of rows behind the other, then the values:
///
///     layer, head:  [ keys: (tokens / unit, bytes of a unit) ][ values: (tokens / unit, bytes of a unit) ]
template <side_coder Keys, side_coder Values>
class coded_pages {
public:
    coded_pages(page_shape shape, Keys keys, Values values, exact_pages exact = {})
        : shape_(shape), keys_(std::move(keys)), values_(std::move(values)), rows_(shape), exact_(exact) {
        expects(shape.tokens % keys_.tokens() == 0 && shape.tokens % values_.tokens() == 0,
                "a page holds whole groups of the tokens that are coded together");
    }

    [[nodiscard]] std::size_t page_bytes() const noexcept {
        return std::size_t{shape_.layers} * shape_.kv_heads * (key_bytes() + value_bytes());
    }
    [[nodiscard]] std::string name() const {
        std::string both = keys_.name();
        if (values_.name() != both)
            both = "keys " + both + ", values " + values_.name();
        if (exact_.first > 0)
            both += ", first " + std::to_string(exact_.first) + " pages exact";
        if (exact_.recent > 0)
            both += ", last " + std::to_string(exact_.recent) + " pages exact";
        return both;
    }
    [[nodiscard]] page_shape shape() const noexcept { return shape_; }
    [[nodiscard]] exact_pages exact() const noexcept { return exact_; }

    /// The same with the pages of the first `tokens` tokens exact too.
    [[nodiscard]] coded_pages with_first(std::size_t tokens) const {
        return {shape_, keys_, values_, {(tokens + shape_.tokens - 1) / shape_.tokens, exact_.recent}};
    }
    /// The same with so many pages before a query's own exact too.
    [[nodiscard]] coded_pages with_recent(std::size_t pages) const {
        return {shape_, keys_, values_, {exact_.first, pages}};
    }

    void turn_key(std::span<float> row) const noexcept { keys_.turn(row); }
    void turn_value(std::span<float> row) const noexcept { values_.turn(row); }
    void turn_back(std::span<float> row) const noexcept { values_.turn_back(row); }
    /// Undoes `turn_key`, but for rounding.
    void turn_key_back(std::span<float> row) const noexcept { keys_.turn_back(row); }

    /// `rows`: the page as the plain codec keeps it, its rows turned.
    void encode(std::span<std::byte> page, layer_id layer, head_id head, std::span<const std::byte> rows) const {
        std::byte* to = page.data() + offset(layer, head);
        for (std::size_t row = 0; row < shape_.tokens; row += keys_.tokens(), to += keys_.bytes())
            keys_.encode(rows_.keys(rows, tile_of(layer, head, row), {}), to);
        for (std::size_t row = 0; row < shape_.tokens; row += values_.tokens(), to += values_.bytes())
            values_.encode(rows_.values(rows, tile_of(layer, head, row), {}), to);
    }

    /// The sides of a tile as they are coded, where attention reads them so.
    [[nodiscard]] coded_tile codes(std::span<const std::byte> page, page_tile at) const noexcept {
        const std::byte* const from = page.data() + offset(at.layer, at.head);
        return {codes_of(keys_, from, at.tile), codes_of(values_, from + key_bytes(), at.tile)};
    }

    [[nodiscard]] const float* keys(std::span<const std::byte> page, page_tile at, std::span<float> scratch) const {
        const std::size_t tiles = keys_.tokens() / tile_tokens;
        keys_.decode(page.data() + offset(at.layer, at.head) + at.tile / tiles * keys_.bytes(), at.tile % tiles,
                     scratch.data());
        return scratch.data();
    }
    [[nodiscard]] const float* values(std::span<const std::byte> page, page_tile at, std::span<float> scratch) const {
        const std::size_t tiles = values_.tokens() / tile_tokens;
        values_.decode(page.data() + offset(at.layer, at.head) + key_bytes() + at.tile / tiles * values_.bytes(),
                       at.tile % tiles, scratch.data());
        return scratch.data();
    }

private:
    template <class Coder>
    [[nodiscard]] static side_codes codes_of(const Coder& coder, const std::byte* from, std::size_t tile) noexcept {
        if constexpr (requires { coder.codes(from, tile); }) {
            const std::size_t tiles = coder.tokens() / tile_tokens;
            return coder.codes(from + tile / tiles * coder.bytes(), tile % tiles);
        } else {
            return {};
        }
    }

    [[nodiscard]] std::size_t key_bytes() const noexcept { return shape_.tokens / keys_.tokens() * keys_.bytes(); }
    [[nodiscard]] std::size_t value_bytes() const noexcept {
        return shape_.tokens / values_.tokens() * values_.bytes();
    }
    [[nodiscard]] std::size_t offset(layer_id layer, head_id head) const noexcept {
        return (std::size_t{index_of(layer)} * shape_.kv_heads + index_of(head)) * (key_bytes() + value_bytes());
    }
    [[nodiscard]] static page_tile tile_of(layer_id layer, head_id head, std::size_t row) noexcept {
        return {layer, head, static_cast<std::uint32_t>(row / tile_tokens)};
    }

    page_shape shape_;
    Keys keys_;
    Values values_;
    plain::state rows_; // of what is coded
    exact_pages exact_;
};

namespace detail {

/// The state of a codec for both sides.
template <sided_codec Keys, sided_codec Values>
[[nodiscard]] auto open_sides(const Keys& keys, const Values& values, page_shape shape) {
    return coded_pages(shape, keys.coder(page_side::keys, shape), values.coder(page_side::values, shape));
}

} // namespace detail

} // namespace kvcache

// ---- kvcache/codec/wide_coder.hpp ---------------------------------------------------------------------------------

namespace kvcache::detail {

/// Keeps each number of a tile in 16 bits, in the tile's own order: keys (head_dim, 16), values (16, value_width).
template <class Number>
class wide_coder {
public:
    wide_coder(page_side side, std::size_t head_dim) : numbers_(tile_numbers(side, head_dim)) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return numbers_ * sizeof(Number); }
    [[nodiscard]] std::string name() const { return std::is_same_v<Number, half> ? "f16" : "bf16"; }
    void turn(std::span<float>) const noexcept {}
    void turn_back(std::span<float>) const noexcept {}

    void encode(const float* from, std::byte* to) const noexcept {
        auto* const numbers = reinterpret_cast<Number*>(to);
        for (std::size_t i = 0; i < numbers_; ++i)
            if constexpr (std::is_same_v<Number, half>)
                numbers[i] = to_half(from[i]);
            else
                numbers[i] = to_bfloat16(from[i]);
    }

    void decode(const std::byte* from, std::size_t, float* to) const noexcept {
        const auto* const numbers = reinterpret_cast<const Number*>(from);
        for (std::size_t i = 0; i < numbers_; i += 16)
            f32x16::load(numbers + i).store(to + i);
    }

    /// Where the tile's numbers lie.
    [[nodiscard]] side_codes codes(const std::byte* from, std::size_t) const noexcept {
        return {.format = std::is_same_v<Number, half> ? code_format::f16 : code_format::bf16,
                .codes = from,
                .bytes = bytes()};
    }

private:
    std::size_t numbers_;
};

} // namespace kvcache::detail

// ---- kvcache/codec/bf16.hpp ---------------------------------------------------------------------------------------

namespace kvcache {

/// Keeps keys and values as bfloat16: any size that a float32 has, to 8 bits. What is past the largest bfloat16 becomes
/// that number.
struct bf16 {
    using role = codec_role;
    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        return detail::wide_coder<bfloat16>(side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<bf16>);

} // namespace kvcache

// ---- kvcache/codec/token_coder.hpp --------------------------------------------------------------------------------

namespace kvcache::detail {

/// Codes each row by itself, in groups of neighbours that share a scale, as whole numbers from -127 to 127 times that
/// scale: the numbers themselves in 8 bits, or places in a table of a few. A tile is its codes, then the scales as
/// binary16, 16 tokens of each group together:
///
///     [ codes, as packed_codes has them ][ scales: (groups, 16) ]
///
/// The formula says `bits`, `name`, `group` (0: the whole row), `scale` that rows want, `code` of numbers divided by
/// it, and the `table`, where it has one.
template <class Formula>
class token_coder {
    static constexpr unsigned bits = Formula::bits;

public:
    token_coder(const Formula& formula, page_side side, std::size_t head_dim)
        : formula_(formula),
          side_(side),
          head_dim_(head_dim),
          group_(formula.group == 0 ? head_dim : std::min(formula.group, head_dim)),
          codes_(side, head_dim) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return codes_.bytes() + groups() * tile_tokens * sizeof(half); }
    [[nodiscard]] std::string name() const { return formula_.name(); }
    void turn(std::span<float>) const noexcept {}
    void turn_back(std::span<float>) const noexcept {}

    void encode(const float* from, std::byte* to) const noexcept {
        const tile_strips strips(side_, head_dim_, from);
        std::memset(to, 0, bytes());
        for (std::size_t g = 0; g < groups(); ++g) {
            const std::size_t first = g * group_, last = std::min(first + group_, head_dim_);
            alignas(64) float scales[tile_tokens], inverse[tile_tokens];
            formula_.scale(strips, first, last).store(scales);
            half* const kept = reinterpret_cast<half*>(to + codes_.bytes()) + g * tile_tokens;
            for (std::size_t lane = 0; lane < tile_tokens; ++lane) {
                kept[lane] = to_half(scales[lane]);
                const float scale = widen(kept[lane]);
                inverse[lane] = scale != 0.0f ? 1.0f / scale : 0.0f;
            }
            const f32x16 by = f32x16::load(inverse);
            for (std::size_t d = first; d < last; ++d) {
                alignas(64) float whole[tile_tokens];
                formula_.code(strips(d) * by).store(whole);
                for (std::size_t lane = 0; lane < tile_tokens; ++lane)
                    codes_.put(to, d, lane, static_cast<std::uint8_t>(static_cast<std::int32_t>(whole[lane])));
            }
        }
    }

    void decode(const std::byte* from, std::size_t, float* to) const noexcept {
        const auto quads = codes_.view(from, table());
        f32x16 four[4];
        if (side_ == page_side::keys) {
            for (std::size_t d = 0; d < head_dim_; d += 4) {
                numbers_of(quads, d / 4, four);
                for (std::size_t i = 0; i < 4 && d + i < head_dim_; ++i)
                    (four[i] * f32x16::load(scales_of(from, (d + i) / group_))).store(to + (d + i) * tile_tokens);
            }
            return;
        }
        const std::size_t width = value_width(head_dim_);
        for (std::size_t c = 0; c < width; c += 16) {
            alignas(64) float scales[tile_tokens];
            f32x16::load(scales_of(from, std::min(c / group_, groups() - 1))).store(scales);
            for (std::size_t lane = 0; lane < tile_tokens; lane += 4) {
                numbers_of(quads, (c + lane) / 4, four);
                for (std::size_t i = 0; i < 4; ++i)
                    (four[i] * f32x16::broadcast(scales[lane + i])).store(to + (lane + i) * width + c);
            }
        }
    }

    /// Where the tile's codes lie.
    [[nodiscard]] side_codes codes(const std::byte* from, std::size_t) const noexcept {
        constexpr auto format = bits == 8   ? code_format::int8
                                : bits == 4 ? code_format::four
                                : bits == 3 ? code_format::three
                                            : code_format::two;
        return {.format = format,
                .codes = from,
                .scales = scales_of(from, 0),
                .table = table(),
                .group = group_,
                .bytes = bytes()};
    }

private:
    [[nodiscard]] std::size_t groups() const noexcept { return (head_dim_ + group_ - 1) / group_; }
    [[nodiscard]] const half* scales_of(const std::byte* tile, std::size_t g) const noexcept {
        return reinterpret_cast<const half*>(tile + codes_.bytes()) + g * tile_tokens;
    }
    [[nodiscard]] static constexpr const std::int8_t* table() noexcept {
        if constexpr (bits == 8)
            return nullptr;
        else
            return Formula::table;
    }

    Formula formula_;
    page_side side_;
    std::size_t head_dim_;
    std::size_t group_;
    packed_codes<bits> codes_;
};

/// The largest size among numbers [first, last) of each row.
template <class Strips>
[[nodiscard]] f32x16 largest_size(const Strips& strips, std::size_t first, std::size_t last) noexcept {
    f32x16 most = f32x16::zero();
    for (std::size_t d = first; d < last; ++d) {
        const f32x16 x = strips(d);
        most = max(max(x, -x), most);
    }
    return most;
}

} // namespace kvcache::detail

// ---- kvcache/kernel/hadamard.hpp ----------------------------------------------------------------------------------

namespace kvcache {

/// The numbers that turn together in a row of `size`: the largest power of two that divides it.
[[nodiscard]] constexpr std::size_t hadamard_block(std::size_t size) noexcept {
    return size & (~size + 1);
}

namespace detail {

#if defined(__AVX2__)
// Sums and differences of lanes that lie 1, 2 and 4 apart.
[[nodiscard]] inline __m256 hadamard_of_eight(__m256 x) noexcept {
    const auto step = [](__m256 own, __m256 other, int minus) {
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i lower = _mm256_and_si256(lanes, _mm256_set1_epi32(minus));
        const __m256i sign = _mm256_slli_epi32(_mm256_cmpgt_epi32(lower, _mm256_setzero_si256()), 31);
        return _mm256_add_ps(other, _mm256_xor_ps(own, _mm256_castsi256_ps(sign)));
    };
    x = step(x, _mm256_permute_ps(x, 0b10110001), 1);
    x = step(x, _mm256_permute_ps(x, 0b01001110), 2);
    return step(x, _mm256_permute2f128_ps(x, x, 1), 4);
}
#endif

// One stage: sums and differences of numbers that lie `apart` apart.
inline void hadamard_stage(float* x, std::size_t size, std::size_t apart) noexcept {
    for (std::size_t begin = 0; begin < size; begin += 2 * apart)
        for (std::size_t i = begin; i < begin + apart; ++i) {
            const float a = x[i], b = x[i + apart];
            x[i] = a + b;
            x[i + apart] = a - b;
        }
}

// A block of a power of two, times `scale`.
inline void hadamard_turn(float* x, std::size_t size, float scale) noexcept {
    std::size_t apart = 1;
#if defined(__AVX2__)
    if (size >= 8) {
        for (std::size_t i = 0; i < size; i += 8)
            _mm256_storeu_ps(x + i, hadamard_of_eight(_mm256_loadu_ps(x + i)));
        apart = 8;
        for (; 4 * apart <= size; apart *= 4) // two stages at a time
            for (std::size_t begin = 0; begin < size; begin += 4 * apart)
                for (std::size_t i = begin; i < begin + apart; i += 8) {
                    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + apart),
                                 c = _mm256_loadu_ps(x + i + 2 * apart), d = _mm256_loadu_ps(x + i + 3 * apart);
                    const __m256 ab = _mm256_add_ps(a, b), a_b = _mm256_sub_ps(a, b), cd = _mm256_add_ps(c, d),
                                 c_d = _mm256_sub_ps(c, d);
                    _mm256_storeu_ps(x + i, _mm256_add_ps(ab, cd));
                    _mm256_storeu_ps(x + i + apart, _mm256_add_ps(a_b, c_d));
                    _mm256_storeu_ps(x + i + 2 * apart, _mm256_sub_ps(ab, cd));
                    _mm256_storeu_ps(x + i + 3 * apart, _mm256_sub_ps(a_b, c_d));
                }
    }
#endif
    for (; apart < size; apart *= 2)
        hadamard_stage(x, size, apart);
    for (std::size_t i = 0; i < size; ++i)
        x[i] *= scale;
}

} // namespace detail

/// Turns a row by the orthonormal Sylvester-Hadamard matrix, block by block where its size is no power of two: what
/// stands out in one number is shared by all of its block, lengths and dot products stay, and turning twice gives the
/// row back, all but rounding. Cost: size * log2(size) additions. (Ashkboos et al. 2024, QuaRot)
inline void hadamard(std::span<float> row) noexcept {
    const std::size_t block = hadamard_block(row.size());
    const float scale = 1.0f / std::sqrt(static_cast<float>(block));
    for (std::size_t at = 0; at < row.size(); at += block)
        detail::hadamard_turn(row.data() + at, block, scale);
}

} // namespace kvcache

// ---- kvcache/codec/codebook.hpp -----------------------------------------------------------------------------------

namespace kvcache {

namespace detail {

/// The levels that code numbers of a standard normal distribution with the least mean squared error (Max 1960, table 1,
/// recomputed), as whole numbers of units that spare most of it: 0.2 % is lost with 4 bits, 0.04 % with 3, none with 2.
/// They differ by no more than `widest_table`. The unit is in standard deviations; both signs, ascending.
template <unsigned Bits>
struct normal_levels;
template <>
struct normal_levels<2> {
    static constexpr float unit = 1.51035062f / 60.0f;
    static constexpr std::int8_t table[16] = {-60, -18, 18, 60};
};
template <>
struct normal_levels<3> {
    static constexpr float unit = 2.14745705f / 62.0f;
    static constexpr std::int8_t table[16] = {-62, -39, -22, -7, 7, 22, 39, 62};
};
template <>
struct normal_levels<4> {
    static constexpr float unit = 2.733f / 61.0f;
    static constexpr std::int8_t table[16] = {-61, -46, -36, -28, -21, -15, -9, -3, 3, 9, 15, 21, 28, 36, 46, 61};
};

/// The nearest level of a row, its root mean square being one standard deviation.
template <unsigned Bits>
struct codebook_formula {
    static constexpr unsigned bits = Bits;
    static constexpr const std::int8_t (&table)[16] = normal_levels<Bits>::table;
    std::size_t group = 0;

    [[nodiscard]] std::string name() const { return "codebook of " + std::to_string(Bits) + " bits, byte queries"; }
    template <class Strips>
    [[nodiscard]] f32x16 scale(const Strips& strips, std::size_t first, std::size_t last) const noexcept {
        f32x16 squares = f32x16::zero();
        for (std::size_t d = first; d < last; ++d) {
            const f32x16 x = strips(d);
            squares = fma(x, x, squares);
        }
        alignas(64) float each[tile_tokens];
        (squares / f32x16::broadcast(static_cast<float>(last - first))).store(each);
        for (float& size : each)
            size = std::sqrt(size) * normal_levels<Bits>::unit;
        return f32x16::load(each);
    }
    [[nodiscard]] f32x16 code(const f32x16& x) const noexcept {
        const f32x16 one = f32x16::broadcast(1.0f);
        f32x16 place = f32x16::zero();
        for (std::size_t i = 0; i + 1 < std::size_t{1} << Bits; ++i) // past the middle of two levels
            place = place + zero_below(one, x, static_cast<float>(table[i] + table[i + 1]) * 0.5f);
        return place;
    }
};

/// Codes rows whose signs a seeded draw and a Hadamard matrix have mixed.
template <unsigned Bits>
class mixing_coder : public token_coder<codebook_formula<Bits>> {
public:
    using token_coder<codebook_formula<Bits>>::token_coder;

    void turn(std::span<float> row) const noexcept {
        change_signs(row);
        hadamard(row);
    }
    void turn_back(std::span<float> row) const noexcept {
        hadamard(row);
        change_signs(row);
    }

private:
    // The upper bit of a multiplicative hash of the place: part of the page layout.
    static void change_signs(std::span<float> row) noexcept {
        for (std::size_t d = 0; d < row.size(); ++d) {
            std::uint64_t x = (d + 1) * 0x9E3779B97F4A7C15u;
            x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
            const auto sign = static_cast<std::uint32_t>(x >> 32) & 0x80000000u;
            row[d] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(row[d]) ^ sign);
        }
    }
};

} // namespace detail

/// Keeps rows as the nearest of 4, 8 or 16 levels that suit normal numbers best, in units of the row's root mean
/// square; signs drawn once and a Hadamard matrix make the numbers of any row nearly normal. Bits + 16 / head_dim bits
/// a number. (Zandieh et al. 2025, TurboQuant; its half for the mean squared error)
template <unsigned Bits = 4>
struct codebook {
    using role = codec_role;
    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        return detail::mixing_coder<Bits>(detail::codebook_formula<Bits>{}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<codebook<4>>);

} // namespace kvcache

// ---- kvcache/codec/f16.hpp ----------------------------------------------------------------------------------------

namespace kvcache {

/// Keeps keys and values as binary16: sizes from 6e-8 to 65504, to 11 bits. What is past the largest becomes that
/// number.
struct f16 {
    using role = codec_role;
    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        return detail::wide_coder<half>(side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<f16>);

} // namespace kvcache

// ---- kvcache/codec/int4.hpp ---------------------------------------------------------------------------------------

namespace kvcache {

namespace detail {

/// Sixteen steps of which the last but one to the side of the largest number is that number: -8 scales of either sign.
struct int4_formula {
    static constexpr unsigned bits = 4;
    std::size_t group = 32;

    [[nodiscard]] std::string name() const { return "int4 groups of " + std::to_string(group) + ", byte queries"; }
    template <class Strips>
    [[nodiscard]] f32x16 scale(const Strips& strips, std::size_t first, std::size_t last) const noexcept {
        f32x16 most = f32x16::zero(), least = f32x16::zero();
        for (std::size_t d = first; d < last; ++d) {
            const f32x16 x = strips(d);
            most = max(x, most);
            least = min(x, least);
        }
        // The number of the largest size, with its sign: the lower one where both are as large.
        alignas(64) float up[tile_tokens], down[tile_tokens];
        most.store(up);
        least.store(down);
        for (std::size_t lane = 0; lane < tile_tokens; ++lane)
            up[lane] = up[lane] > -down[lane] ? up[lane] : down[lane];
        return f32x16::load(up) / f32x16::broadcast(-8.0f);
    }
    [[nodiscard]] f32x16 code(const f32x16& x) const noexcept {
        return rounded(x, -8.0f, 7.0f) + f32x16::broadcast(8.0f);
    }
    static constexpr std::int8_t table[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
};

} // namespace detail

/// Keeps rows in 4 bits with a scale for each group of neighbours, as llama.cpp's q4_0 does: 4.5 bits a number for
/// groups of 32. For values; keys with a few large channels want `int4_channels` or `rotated<int4>`.
struct int4 {
    using role = codec_role;
    std::size_t group = 32; ///< Numbers a scale; a multiple of 16.

    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        expects(group > 0 && group % 16 == 0, "a group is a multiple of 16 numbers");
        return detail::token_coder(detail::int4_formula{group}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int4>);

} // namespace kvcache

// ---- kvcache/codec/int4_channels.hpp ------------------------------------------------------------------------------

namespace kvcache {

namespace detail {

/// Codes each number of head_dim over some tiles of tokens: sixteen steps from a least number on. They go from the
/// least to the largest of them, or where that has a smaller squared error as the codes' line of least squares says,
/// two times over. The codes of the tiles come first, then the steps and the least numbers as binary16:
///
///     [ codes of the first 16 tokens ][ of the next ] ... [ steps: (value_width) ][ least: (value_width) ]
class channel_coder {
public:
    static constexpr std::size_t most_tiles = 8;

    channel_coder(page_side side, std::size_t head_dim, std::size_t tokens)
        : side_(side),
          head_dim_(head_dim),
          width_(value_width(head_dim)),
          tiles_(tokens / tile_tokens),
          codes_(side, head_dim) {}

    [[nodiscard]] std::size_t tokens() const noexcept { return tiles_ * tile_tokens; }
    [[nodiscard]] std::size_t bytes() const noexcept { return tiles_ * codes_.bytes() + 2 * width_ * sizeof(half); }
    [[nodiscard]] std::string name() const {
        return "int4 channels, fitted, over " + std::to_string(tokens()) + " tokens, byte queries";
    }
    void turn(std::span<float>) const noexcept {}
    void turn_back(std::span<float>) const noexcept {}

    void encode(const float* from, std::byte* to) const noexcept {
        std::memset(to, 0, bytes());
        auto* const steps = reinterpret_cast<half*>(to + tiles_ * codes_.bytes());
        for (std::size_t d = 0; d < head_dim_; ++d) {
            f32x16 x[most_tiles], most = f32x16::broadcast(-std::numeric_limits<float>::infinity()), least = -most;
            for (std::size_t t = 0; t < tiles_; ++t) {
                x[t] = tile_strips(side_, head_dim_, from + t * tile_numbers(side_, head_dim_))(d);
                most = max(x[t], most);
                least = min(x[t], least);
            }
            const float low = -largest(-least);
            fitted best = fit(x, (largest(most) - low) / 15.0f, low), next = best;
            for (int again = 0; again < 2; ++again) {
                next = refit(x, next);
                if (next.error < best.error)
                    best = next;
            }
            steps[d] = best.step;
            steps[width_ + d] = best.least;
            for (std::size_t t = 0; t < tiles_; ++t) {
                alignas(64) float codes[tile_tokens];
                best.codes[t].store(codes);
                for (std::size_t lane = 0; lane < tile_tokens; ++lane)
                    codes_.put(to + t * codes_.bytes(), d, lane,
                               static_cast<std::uint8_t>(static_cast<std::int32_t>(codes[lane])));
            }
        }
    }

    void decode(const std::byte* from, std::size_t tile, float* to) const noexcept {
        const half* const steps = steps_of(from);
        const auto quads = codes_.view(from + tile * codes_.bytes(), table);
        f32x16 four[4];
        if (side_ == page_side::keys) {
            for (std::size_t d = 0; d < head_dim_; d += 4) {
                numbers_of(quads, d / 4, four);
                for (std::size_t i = 0; i < 4 && d + i < head_dim_; ++i)
                    fma(four[i], f32x16::broadcast(widen(steps[d + i])),
                        f32x16::broadcast(widen(steps[width_ + d + i])))
                        .store(to + (d + i) * tile_tokens);
            }
            return;
        }
        for (std::size_t c = 0; c < width_; c += 16) {
            const f32x16 step = f32x16::load(steps + c), least = f32x16::load(steps + width_ + c);
            for (std::size_t lane = 0; lane < tile_tokens; lane += 4) {
                numbers_of(quads, (c + lane) / 4, four);
                for (std::size_t i = 0; i < 4; ++i)
                    fma(four[i], step, least).store(to + (lane + i) * width_ + c);
            }
        }
    }

    /// Where a tile's codes lie.
    [[nodiscard]] side_codes codes(const std::byte* from, std::size_t tile) const noexcept {
        return {.format = code_format::channels,
                .codes = from + tile * codes_.bytes(),
                .scales = steps_of(from),
                .table = from_middle,
                .bytes = bytes() / tiles_};
    }

private:
    static constexpr std::int8_t table[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static constexpr std::int8_t from_middle[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

    // A channel's codes, and their squared error.
    struct fitted {
        half step, least;
        f32x16 codes[most_tiles];
        float error;
    };

    [[nodiscard]] fitted fit(const f32x16 (&x)[most_tiles], float step, float least) const noexcept {
        fitted made;
        made.step = to_half(step);
        made.least = to_half(least);
        const float kept = widen(made.step);
        const f32x16 scale = f32x16::broadcast(kept), from = f32x16::broadcast(widen(made.least)),
                     by = f32x16::broadcast(kept != 0.0f ? 1.0f / kept : 0.0f);
        f32x16 squares = f32x16::zero();
        for (std::size_t t = 0; t < tiles_; ++t) {
            made.codes[t] = rounded((x[t] - from) * by, 0.0f, 15.0f);
            const f32x16 off = x[t] - fma(made.codes[t], scale, from);
            squares = fma(off, off, squares);
        }
        made.error = sum(squares);
        return made;
    }

    // The line through the numbers that has the least squared error for these codes, and codes for that line.
    [[nodiscard]] fitted refit(const f32x16 (&x)[most_tiles], const fitted& last) const noexcept {
        const f32x16 from = f32x16::broadcast(widen(last.least));
        f32x16 each = f32x16::zero(), offs = each, squares = each, products = each;
        for (std::size_t t = 0; t < tiles_; ++t) {
            const f32x16 code = last.codes[t], off = x[t] - from;
            each = each + code;
            offs = offs + off;
            squares = fma(code, code, squares);
            products = fma(code, off, products);
        }
        const auto count = static_cast<float>(tokens());
        const float codes = sum(each), mean = sum(offs) / count;
        const float spread = std::fma(-codes, codes / count, sum(squares));
        if (!(spread > 0.0f))
            return last;
        const float step = std::fma(-codes, mean, sum(products)) / spread;
        return fit(x, step, widen(last.least) + std::fma(-step, codes / count, mean));
    }

    [[nodiscard]] const half* steps_of(const std::byte* from) const noexcept {
        return reinterpret_cast<const half*>(from + tiles_ * codes_.bytes());
    }

    page_side side_;
    std::size_t head_dim_;
    std::size_t width_;
    std::size_t tiles_;
    packed_codes<4> codes_;
};

} // namespace detail

/// Keeps each channel in 4 bits over groups of tokens, with a step and a least number: 5 bits a number over 32 tokens,
/// 4.5 over 64. For keys, whose large channels are large at every token; values want a scale a token:
/// `split<int4_channels, int4>`. A page holds whole groups; one that is not full yet is exact, as its page is.
/// (Liu et al. 2024, KIVI)
struct int4_channels {
    using role = codec_role;
    std::size_t group = 32; ///< Tokens a step; a multiple of 16, at most 128.

    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        expects(group > 0 && group % tile_tokens == 0 && group <= detail::channel_coder::most_tiles * tile_tokens,
                "a group is a multiple of 16 tokens, at most 128");
        return detail::channel_coder(side, shape.head_dim, group);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int4_channels>);

} // namespace kvcache

// ---- kvcache/codec/int8.hpp ---------------------------------------------------------------------------------------

namespace kvcache {

namespace detail {

/// The nearest of 255 steps, from minus to plus the largest size.
struct int8_formula {
    static constexpr unsigned bits = 8;
    std::size_t group = 0;

    [[nodiscard]] std::string name() const { return group == 0 ? "int8" : "int8 groups of " + std::to_string(group); }
    template <class Strips>
    [[nodiscard]] f32x16 scale(const Strips& strips, std::size_t first, std::size_t last) const noexcept {
        return largest_size(strips, first, last) / f32x16::broadcast(127.0f);
    }
    [[nodiscard]] f32x16 code(const f32x16& x) const noexcept { return rounded(x, -127.0f, 127.0f); }
};

} // namespace detail

/// Keeps each row of a head as int8 with one scale, its largest size / 127, as binary16: 8.125 bits a number at a
/// head_dim of 128. Of a longer row each part has one: as few parts of one size, a multiple of 16, as hold 128 each.
struct int8 {
    using role = codec_role;
    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        const std::size_t parts = (std::size_t{shape.head_dim} + 127) / 128;
        const std::size_t each = (shape.head_dim + 16 * parts - 1) / (16 * parts) * 16;
        return detail::token_coder(detail::int8_formula{parts == 1 ? 0 : each}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int8>);

} // namespace kvcache

// ---- kvcache/codec/int8_grouped.hpp -------------------------------------------------------------------------------

namespace kvcache {

/// Keeps rows as int8 with a scale for each group of neighbours, as llama.cpp's q8_0 does: 8.5 bits a number for groups
/// of 32. A large number spoils its group only.
struct int8_grouped {
    using role = codec_role;
    std::size_t group = 32; ///< Numbers a scale; a multiple of 16.

    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        expects(group > 0 && group % 16 == 0, "a group is a multiple of 16 numbers");
        return detail::token_coder(detail::int8_formula{group}, side, shape.head_dim);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

static_assert(codec_policy<int8_grouped>);

} // namespace kvcache

// ---- kvcache/codec/recent_exact.hpp -------------------------------------------------------------------------------

namespace kvcache {

/// Reads the pages right before a query's own as they were computed, whatever another codec makes of the others. A
/// sequence keeps the exact rows of its last pages, and leaves them behind when it ends: a match ends only where as
/// many exact pages are before it as a query reads.
template <codec_policy Inner = int8>
struct recent_exact {
    using role = codec_role;
    Inner inner = {};
    std::size_t pages = 1;

    [[nodiscard]] auto open(page_shape shape) const { return inner.open(shape).with_recent(pages); }
};

static_assert(codec_policy<recent_exact<int8>>);

} // namespace kvcache

// ---- kvcache/codec/rotated.hpp ------------------------------------------------------------------------------------

namespace kvcache {

namespace detail {

/// Codes rows that a Hadamard matrix has turned.
template <side_coder Inner>
class turning_coder : public Inner {
public:
    explicit turning_coder(Inner inner) : Inner(std::move(inner)) {}

    [[nodiscard]] std::string name() const { return "rotated " + Inner::name(); }
    void turn(std::span<float> row) const noexcept { hadamard(row); }
    void turn_back(std::span<float> row) const noexcept { hadamard(row); }
};

} // namespace detail

/// Turns rows by a Hadamard matrix before another codec keeps them, so that a large channel is shared by all numbers of
/// its block: the largest power of two that divides head_dim. Keys are turned behind the rotation of positions, and
/// queries with them; values are turned back in what attention gives. (Ashkboos et al. 2024, QuaRot)
template <sided_codec Inner = int4>
struct rotated {
    using role = codec_role;
    Inner inner = {};

    [[nodiscard]] auto coder(page_side side, page_shape shape) const {
        return detail::turning_coder(inner.coder(side, shape));
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(*this, *this, shape); }
};

template <class Inner>
rotated(Inner) -> rotated<Inner>;

static_assert(codec_policy<rotated<int4>>);

} // namespace kvcache

// ---- kvcache/codec/sinks_exact.hpp --------------------------------------------------------------------------------

namespace kvcache {

/// Reads the first tokens of a sequence as they were computed, whatever another codec makes of the others: a model
/// looks at them from everywhere. Whole pages, as many as hold the tokens; their exact rows live as long as the page
/// does. (Xiao et al. 2024, StreamingLLM)
template <codec_policy Inner = int8>
struct sinks_exact {
    using role = codec_role;
    Inner inner = {};
    std::size_t tokens = 4; ///< At least so many.

    [[nodiscard]] auto open(page_shape shape) const { return inner.open(shape).with_first(tokens); }
};

static_assert(codec_policy<sinks_exact<int8>>);

} // namespace kvcache

// ---- kvcache/codec/split.hpp --------------------------------------------------------------------------------------

namespace kvcache {

/// Keeps keys as one codec does and values as another.
template <sided_codec Keys, sided_codec Values>
struct split {
    using role = codec_role;
    Keys keys = {};
    Values values = {};

    [[nodiscard]] auto coder(page_side side, page_shape shape) const requires std::same_as<Keys, Values> {
        return side == page_side::keys ? keys.coder(side, shape) : values.coder(side, shape);
    }
    [[nodiscard]] auto open(page_shape shape) const { return detail::open_sides(keys, values, shape); }
};

template <class Keys, class Values>
split(Keys, Values) -> split<Keys, Values>;

static_assert(codec_policy<split<int8, int8>>);

} // namespace kvcache

// ---- kvcache/codec/all.hpp ----------------------------------------------------------------------------------------

namespace kvcache {

/// Every codec policy of the library, with its standard options.
using codec_policies =
    std::tuple<plain, bf16, f16, int8, int8_grouped, int4, int4_channels, rotated<int4>, codebook<4>, codebook<3>,
               codebook<2>, split<int4_channels, int4>, sinks_exact<int8>, recent_exact<int8>>;

} // namespace kvcache

// ---- kvcache/eviction/clock.hpp -----------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

// ---- kvcache/eviction/sieve.hpp -----------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

/// Every eviction policy of the library, with its standard options; those that wrap another, around lru.
using eviction_policies =
    std::tuple<reuse_forecast, follow_leader, lru, fifo, lfu, slru, clock, sieve, s3_fifo, arc, lirs, w_tiny_lfu, gdsf,
               lhd, tail_safe_lru, cost_aware, never, prioritised<>, expiring<>>;

} // namespace kvcache

// ---- kvcache/hash/all.hpp -----------------------------------------------------------------------------------------

namespace kvcache {

/// Every hash policy of the library, with its standard options.
using hash_policies = std::tuple<xxh3>;

} // namespace kvcache

// ---- kvcache/index/rolling_hash.hpp -------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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
        try {
            ++lengths_[made.begin][where.count];
            contents_.emplace(made.content, where);
        } catch (...) {
            forget_length(made);
            own.pop_back();
            throw;
        }
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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

/// Every index policy of the library, with its standard options.
using index_policies = std::tuple<radix, hash_chain, chunk>;

} // namespace kvcache

// ---- kvcache/locking/mutexed.hpp ----------------------------------------------------------------------------------

namespace kvcache {

/// Any number of threads use the cache; one mutex guards its books. Pages are written and read outside of it.
struct mutexed {
    using role = locking_role;
    using state = std::mutex;
};

static_assert(locking_policy<mutexed>);

} // namespace kvcache

// ---- kvcache/locking/all.hpp --------------------------------------------------------------------------------------

namespace kvcache {

/// Every locking policy of the library, with its standard options.
using locking_policies = std::tuple<unlocked, mutexed>;

} // namespace kvcache

// ---- kvcache/kernel/team.hpp --------------------------------------------------------------------------------------

namespace kvcache {

namespace detail {

/// Tells the processor that this thread spins.
inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

} // namespace detail

/// A fixed group of threads that share loops. The caller is one of them, and no thread is pinned. Ranges of a loop are
/// claimed as threads come free, so one that the system has descheduled holds up no more than the range it runs, and
/// one that sleeps holds up nothing. Which thread runs an index never changes a result: nothing is ever summed across
/// threads. Cost: under 2 us a loop while the threads are awake, which they stay for some tens of microseconds.
class team {
public:
    /// Starts `threads` - 1 threads that sleep between loops.
    explicit team(std::size_t threads = 1) : shared_(std::make_unique<state>()) {
        expects(threads > 0, "a team has at least one thread");
        members_.reserve(threads - 1);
        try {
            for (std::size_t member = 1; member < threads; ++member)
                members_.emplace_back([shared = shared_.get(), member] { serve(*shared, member); });
        } catch (...) { // the system has no more threads: those that began must end before the exception leaves
            dismiss();
            throw;
        }
    }

    team(team&&) noexcept = default;
    team& operator=(team&&) = delete;

    ~team() {
        if (shared_)
            dismiss();
    }

    [[nodiscard]] std::size_t threads() const noexcept { return members_.size() + 1; }

    /// Multiply-adds, a few microseconds of them, under which sharing costs more than it saves.
    static constexpr std::size_t worth_sharing = std::size_t{1} << 16;

    /// Calls body(begin, end) for ranges that cover [0, jobs) once, on any of the threads, several a thread. Returns
    /// when all are done. A loop of less `work` (multiply-adds, about) than is worth sharing runs on the caller alone.
    /// Throws: what a body threw, the first of them, once all have ended.
    /// Requires: one loop at a time; a body does not share again. Allocates nothing.
    template <class Body>
    void share(std::size_t jobs, std::size_t work, Body&& body) {
        share_by_member(jobs, work, [&](std::size_t, std::size_t begin, std::size_t end) { body(begin, end); });
    }
    template <class Body>
    void share(std::size_t jobs, Body&& body) {
        share(jobs, worth_sharing, std::forward<Body>(body));
    }

    /// As share, but calls body(member, begin, end) with the number of the thread, in [0, threads()): the place of its
    /// scratch memory.
    template <class Body>
    void share_by_member(std::size_t jobs, std::size_t work, Body&& body) {
        if (members_.empty() || jobs < 2 || work < worth_sharing) {
            if (jobs > 0)
                body(std::size_t{0}, std::size_t{0}, jobs);
            return;
        }
        using body_type = std::remove_reference_t<Body>;
        run_all(jobs, &body, [](const void* of, std::size_t member, std::size_t begin, std::size_t end) {
            (*static_cast<body_type*>(const_cast<void*>(of)))(member, begin, end);
        });
    }

private:
    using call = void (*)(const void* body, std::size_t member, std::size_t begin, std::size_t end);

    // A loop is cut into at most `ranges_a_thread` ranges a thread. The ticket holds the loop's number and how many
    // ranges nobody has claimed: whoever takes one off has claimed it, of that loop. The loop's description is written
    // only while none is left and all are done, so a claim that succeeds has read the right description.
    struct state {
        alignas(64) std::atomic<const void*> body{nullptr};
        std::atomic<call> function{nullptr};
        std::atomic<std::size_t> jobs{0};
        std::atomic<std::uint32_t> ranges{0};
        std::atomic<std::uint64_t> ticket{0};           // one line with what it announces
        alignas(64) std::atomic<std::uint32_t> done{0}; // ranges of this loop that have ended
        alignas(64) std::atomic<std::uint32_t> asleep{0};
        std::atomic<std::uint32_t> calls{0}; // what sleepers wait for
        std::atomic<bool> stop{false};
        std::atomic_flag failed; // guards failure
        std::exception_ptr failure;
    };

    static constexpr std::size_t ranges_a_thread = 8;
    static constexpr std::uint64_t one_round = std::uint64_t{1} << 32;

    void run_all(std::size_t jobs, const void* body, call function) {
        state& s = *shared_;
        expects(s.body.load(std::memory_order_relaxed) == nullptr, "a team shares one loop at a time");
        const auto ranges = static_cast<std::uint32_t>(std::min(jobs, threads() * ranges_a_thread));
        s.body.store(body, std::memory_order_relaxed);
        s.function.store(function, std::memory_order_relaxed);
        s.jobs.store(jobs, std::memory_order_relaxed);
        s.ranges.store(ranges, std::memory_order_relaxed);
        s.done.store(0, std::memory_order_relaxed);
        const std::uint64_t round = s.ticket.load(std::memory_order_relaxed) / one_round + 1;
        s.ticket.store(round * one_round + ranges, std::memory_order_seq_cst);
        if (s.asleep.load(std::memory_order_seq_cst) != 0)
            wake(s);

        work(s, 0);
        for (unsigned spin = 0; s.done.load(std::memory_order_acquire) != ranges; ++spin)
            spin < spins ? detail::pause() : std::this_thread::yield();
        s.body.store(nullptr, std::memory_order_relaxed);
        s.failed.clear(std::memory_order_relaxed);
        if (s.failure)
            std::rethrow_exception(std::exchange(s.failure, nullptr));
    }

    // Claims and runs ranges until the loop has none left.
    static void work(state& s, std::size_t member) {
        std::uint64_t ticket = s.ticket.load(std::memory_order_acquire);
        while (ticket % one_round != 0) {
            const void* body = s.body.load(std::memory_order_relaxed);
            const call function = s.function.load(std::memory_order_relaxed);
            const std::size_t jobs = s.jobs.load(std::memory_order_relaxed);
            const std::size_t ranges = s.ranges.load(std::memory_order_relaxed);
            if (!s.ticket.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                                std::memory_order_acquire))
                continue;
            const std::size_t range = ranges - ticket % one_round;
            try {
                function(body, member, jobs * range / ranges, jobs * (range + 1) / ranges);
            } catch (...) {
                if (!s.failed.test_and_set())
                    s.failure = std::current_exception();
            }
            s.done.fetch_add(1, std::memory_order_acq_rel);
            ticket = s.ticket.load(std::memory_order_acquire);
        }
    }

    static void wake(state& s) {
        s.calls.fetch_add(1, std::memory_order_seq_cst);
        s.calls.notify_all();
    }

    void dismiss() {
        shared_->stop.store(true);
        wake(*shared_);
        for (auto& member : members_)
            member.join();
    }

    // Between the loops of a forward pass lie microseconds: spin for longer than that before asking the system to
    // sleep.
    static constexpr unsigned spins = 2000;

    static void serve(state& s, std::size_t member) {
        for (std::uint64_t seen = 0; !s.stop.load(std::memory_order_acquire);) {
            const auto idle = [&] { return s.ticket.load(std::memory_order_seq_cst) / one_round == seen; };
            for (unsigned spin = 0; idle() && spin < spins; ++spin)
                detail::pause();
            if (idle()) {
                const std::uint32_t call = s.calls.load(std::memory_order_seq_cst);
                s.asleep.fetch_add(1, std::memory_order_seq_cst);
                if (idle() && !s.stop.load(std::memory_order_seq_cst))
                    s.calls.wait(call, std::memory_order_seq_cst);
                s.asleep.fetch_sub(1, std::memory_order_seq_cst);
            }
            seen = s.ticket.load(std::memory_order_acquire) / one_round;
            work(s, member);
        }
    }

    std::unique_ptr<state> shared_;
    std::vector<std::thread> members_;
};

} // namespace kvcache

// ---- kvcache/kernel/packed_matrix.hpp -----------------------------------------------------------------------------

namespace kvcache {

/// The weights of y = W x, packed once for the product: panels of 16 outputs, in each the inputs ascending and for
/// every input its 16 weights side by side. (outputs / 16, inputs, 16), zeros behind the last output.
///
/// It owns its memory, or looks at weights packed before (a mapped file) whose keeper it holds. A copy of an owner owns
/// a copy; copies of a view look at the same weights.
template <weight_format Weight>
class packed_matrix {
public:
    static constexpr std::size_t panel_width = 16;

    /// The panels of this many outputs.
    [[nodiscard]] static constexpr std::size_t panels_of(std::size_t outputs) noexcept {
        return (outputs + panel_width - 1) / panel_width;
    }

    packed_matrix() = default;
    packed_matrix(std::size_t outputs, std::size_t inputs)
        : outputs_(outputs), inputs_(inputs), own_(panels() * inputs * panel_width) {}

    /// Looks at weights that are packed already, on a cache line. (outputs / 16, inputs, 16)
    packed_matrix(std::size_t outputs, std::size_t inputs, const Weight* packed, std::shared_ptr<const void> keeper)
        : outputs_(outputs), inputs_(inputs), view_(packed), keeper_(std::move(keeper)) {
        expects(reinterpret_cast<std::uintptr_t>(packed) % line_bytes == 0, "packed weights begin on a cache line");
    }

    /// Places the weights of one output. (inputs) Requires: this owns its memory. Cost: a cache line a weight;
    /// pack_panel() is for many outputs.
    void set_row(std::size_t output, std::span<const Weight> weights) {
        expects(output < outputs_ && weights.size() == inputs_, "a packed row is one output's weights");
        expects(view_ == nullptr, "weights are set where they are owned");
        Weight* to = own_.data() + output / panel_width * inputs_ * panel_width + output % panel_width;
        for (std::size_t k = 0; k < inputs_; ++k)
            to[k * panel_width] = weights[k];
    }

    /// The weights of one output, widened. (inputs)
    void row(std::size_t output, std::span<float> out) const {
        expects(output < outputs_ && out.size() == inputs_, "a packed row is one output's weights");
        const Weight* from = panel(output / panel_width) + output % panel_width;
        for (std::size_t k = 0; k < inputs_; ++k)
            out[k] = widen(from[k * panel_width]);
    }

    [[nodiscard]] std::size_t outputs() const noexcept { return outputs_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
    [[nodiscard]] std::size_t panels() const noexcept { return panels_of(outputs_); }
    [[nodiscard]] std::size_t bytes() const noexcept { return panels() * inputs_ * panel_width * sizeof(Weight); }

    /// The weights of outputs [16 * index, 16 * index + 16). (inputs, 16)
    [[nodiscard]] const Weight* panel(std::size_t index) const noexcept {
        return (view_ != nullptr ? view_ : own_.data()) + index * inputs_ * panel_width;
    }

private:
    std::size_t outputs_ = 0;
    std::size_t inputs_ = 0;
    aligned_vector<Weight> own_;
    const Weight* view_ = nullptr;
    std::shared_ptr<const void> keeper_;
};

} // namespace kvcache

// ---- kvcache/kernel/product.hpp -----------------------------------------------------------------------------------

namespace kvcache {

/// Rows of activations with a fixed distance. (rows, columns)
struct rows_in {
    const float* data = nullptr;
    std::size_t rows = 0;
    std::size_t stride = 0; ///< Numbers from one row to the next.
};
struct rows_out {
    float* data = nullptr;
    std::size_t stride = 0;
};

/// A distance for rows of so many numbers at which neighbouring rows do not compete for the same lines of a cache.
[[nodiscard]] constexpr std::size_t row_stride(std::size_t columns) noexcept {
    return ((columns + 15) / 16 | 1) * 16;
}

namespace detail {

// How the machine's registers are used: a tile of `rows` x `vectors` accumulators, two columns and a broadcast.
inline constexpr std::size_t tallest_tile = native_lanes == 16 ? 12 : 6;

// Panels of 16 outputs that so many rows run side by side: enough chains to fill the pipes, few enough to stay in
// registers.
[[nodiscard]] constexpr std::size_t panels_at_once(std::size_t rows) {
    if (native_lanes == 16)
        return rows == 1 ? 8 : rows <= 5 ? 4 : 2;
    if (rows == 1)
        return native_lanes == 8 ? 6 : 4;
    return rows == 2 ? 3 : 1;
}

// Inputs that run before the next outputs do, so that their weights come from the first two caches, and rows that do,
// so that their slice stays in the second.
inline constexpr std::size_t block_inputs = 640;
inline constexpr std::size_t block_rows = 96;

// Weights that come soon, fetched meanwhile: so many lines of each of a tile's panels while 16 inputs run.
struct weights_ahead {
    const std::byte* base = nullptr;
    std::size_t at = 0;    // bytes from there on
    std::size_t panel = 0; // bytes from one panel to the next
    std::size_t lines = 0;
};

// A tile of Rows x Panels * 16 outputs, each its own chain of fused multiply-adds over ascending inputs, begun at zero
// or gone on with. Panel p's weights lie at w + p * panel. The tile decides only which chains run side by side, never
// the order inside one.
template <std::size_t Rows, std::size_t Panels, weight_format Weight>
inline void product_tile(const float* x, std::size_t x_stride, const Weight* w, std::size_t panel, std::size_t inputs,
                         float* y, std::size_t y_stride, std::size_t outputs, bool begin,
                         const weights_ahead& ahead = {}) {
    // Columns of weights in registers while all rows pass: one, but where GCC would then keep so many broadcasts for
    // the next that the 32 registers of AVX-512 overflow.
    constexpr std::size_t columns_held = native_lanes == 16 && Rows * Panels + Rows + 1 > 32 ? Panels : 1;
    native_floats sums[Rows * Panels * native_parts]; // flat: GCC 12 keeps no nested array in registers
    unrolled<Rows * Panels>([&](auto i) KVCACHE_INLINE {
        const std::size_t v = i % Panels * 16;
        f32x16 sum = f32x16::zero();
        if (!begin && v < outputs)
            sum = f32x16::load_up_to(y + i / Panels * y_stride + v, outputs - v);
        unrolled<native_parts>([&](auto part) KVCACHE_INLINE { sums[i * native_parts + part] = sum.part[part]; });
    });
    for (std::size_t r = 0; r < Rows; ++r) // those of the next tile
        prefetch_to_write(y, (Rows + r) * y_stride);
    const auto step = [&](std::size_t k) KVCACHE_INLINE {
        unrolled<Panels / columns_held>([&](auto group) KVCACHE_INLINE {
            native_floats columns[columns_held * native_parts];
            unrolled<columns_held>([&](auto p) KVCACHE_INLINE {
                f32x16 column = f32x16::load(w + (group * columns_held + p) * panel + k * 16);
                unrolled<native_parts>([&](auto part) KVCACHE_INLINE {
                    if constexpr (Rows > 1)
                        keep(column.part[part]);
                    columns[p * native_parts + part] = column.part[part];
                });
            });
            unrolled<Rows>([&](auto r) KVCACHE_INLINE {
                const native_floats a(x[r * x_stride + k]);
                unrolled<columns_held * native_parts>([&](auto c) KVCACHE_INLINE {
                    native_floats& sum = sums[(r * Panels + group * columns_held) * native_parts + c];
                    sum = fused(a, columns[c], sum);
                });
            });
        });
    };
    std::size_t k = 0;
    for (; k + 16 <= inputs; k += 16) {
        if constexpr (Rows > 3)
            for (std::size_t r = 0; r < Rows; ++r)
                prefetch(x, (Rows + r) * x_stride + k);
        for (std::size_t line = 0; line < ahead.lines; ++line)
            for (std::size_t p = 0; p < Panels; ++p)
                prefetch_soon(ahead.base, ahead.at + p * ahead.panel + (k / 16 * ahead.lines + line) * line_bytes);
        for (std::size_t i = 0; i < 16; ++i)
            step(k + i);
    }
    for (; k < inputs; ++k)
        step(k);
    unrolled<Rows * Panels>([&](auto i) KVCACHE_INLINE {
        const std::size_t v = i % Panels * 16;
        f32x16 sum;
        unrolled<native_parts>([&](auto part) KVCACHE_INLINE { sum.part[part] = sums[i * native_parts + part]; });
        if (v < outputs)
            sum.store_up_to(y + i / Panels * y_stride + v, outputs - v);
    });
}

// Calls body<N>() for the N in [1, Most] that `n` is.
template <std::size_t Most, class Body>
inline void with_rows(std::size_t n, Body body) {
    if constexpr (Most > 1)
        if (n < Most)
            return with_rows<Most - 1>(n, body);
    body.template operator()<Most>();
}

// The product of some rows with some panels of weights.
template <weight_format Weight>
class product_block {
public:
    product_block(const rows_in& x, const packed_matrix<Weight>& w, const rows_out& y) : x_(x), w_(w), y_(y) {}

    // Few rows: each weight is read once, by tiles as wide as the registers allow.
    void run_few(std::size_t panel, std::size_t last) const {
        with_rows<tallest_tile>(x_.rows, [&]<std::size_t Rows> { run_few<Rows, panels_at_once(Rows)>(panel, last); });
    }

    // Many rows: a block of inputs at a time, whose weights meet all rows.
    void run_many(std::size_t row, std::size_t last_row, std::size_t panel, std::size_t last) const {
        // One block at least: without inputs it writes the zeros.
        const std::size_t blocks = std::max<std::size_t>(1, (w_.inputs() + block_inputs - 1) / block_inputs);
        for (std::size_t b = 0; b < blocks; ++b) {
            const std::size_t k = w_.inputs() * b / blocks, inputs = w_.inputs() * (b + 1) / blocks - k;
            for (std::size_t p = panel; p < last; p += strip)
                run_strip(row, last_row, p, std::min(strip, last - p), k, inputs,
                          p + 2 * strip <= last ? w_.panel(p + strip) + k * width : nullptr);
        }
    }

private:
    static constexpr std::size_t width = packed_matrix<Weight>::panel_width;
    static constexpr std::size_t strip = panels_at_once(tallest_tile);

    // So many panels at a time, then the rest by fewer.
    template <std::size_t Rows, std::size_t Panels>
    void run_few(std::size_t panel, std::size_t last) const {
        for (; panel + Panels <= last; panel += Panels)
            product_tile<Rows, Panels>(x_.data, x_.stride, w_.panel(panel), w_.inputs() * width, w_.inputs(),
                                       y_.data + panel * width, y_.stride, w_.outputs() - panel * width, true);
        if constexpr (Panels > 1)
            if (panel < last)
                run_few<Rows, Panels / 2>(panel, last);
    }

    // BF16 and F16 weights are widened once for all rows. `soon`: the weights of the strip behind, or null.
    void run_strip(std::size_t row, std::size_t last_row, std::size_t panel, std::size_t panels, std::size_t k,
                   std::size_t inputs, const Weight* soon) const {
        const Weight* from = w_.panel(panel) + k * width;
        if constexpr (std::same_as<Weight, float>) {
            run_tiles(row, last_row, panel, panels, k, inputs, from, w_.inputs() * width, soon);
        } else {
            alignas(line_bytes) float wide[strip * block_inputs * width];
            for (std::size_t p = 0; p < panels; ++p)
                for (std::size_t i = 0; i < inputs * width; i += 16)
                    f32x16::load(from + p * w_.inputs() * width + i).store(wide + p * block_inputs * width + i);
            run_tiles(row, last_row, panel, panels, k, inputs, wide, block_inputs * width, soon);
        }
    }

    // The rows in tiles as equal as they can be: a short last tile would starve the pipes.
    void run_tiles(std::size_t row, std::size_t last_row, std::size_t panel, std::size_t panels, std::size_t k,
                   std::size_t inputs, const float* weights, std::size_t next, const Weight* soon) const {
        std::size_t tiles = (last_row - row + tallest_tile - 1) / tallest_tile;
        weights_ahead ahead{reinterpret_cast<const std::byte*>(soon), 0, w_.inputs() * width * sizeof(Weight),
                            soon != nullptr ? (4 * sizeof(Weight) + tiles - 1) / tiles : 0};
        for (; tiles > 0; --tiles) {
            const std::size_t rows = (last_row - row + tiles - 1) / tiles, output = panel * width;
            const float* x = x_.data + row * x_.stride + k;
            float* y = y_.data + row * y_.stride + output;
            with_rows<tallest_tile>(rows, [&]<std::size_t Rows> {
                const auto run = [&]<std::size_t Panels> {
                    product_tile<Rows, Panels>(x, x_.stride, weights, next, inputs, y, y_.stride, w_.outputs() - output,
                                               k == 0, ahead);
                };
                panels == strip ? run.template operator()<strip>() : run.template operator()<1>();
            });
            row += rows;
            ahead.at += inputs / 16 * ahead.lines * line_bytes;
        }
    }

    const rows_in& x_;
    const packed_matrix<Weight>& w_;
    const rows_out& y_;
};

} // namespace detail

/// y = x W^T for packed weights. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// Each output is one chain of fused multiply-adds over ascending inputs, so its bits depend neither on the number of
/// rows nor on threads nor on the vector width. Tiles follow Goto & van de Geijn 2008: weights in the first cache, rows
/// in the second. Cost: rows * inputs * outputs multiply-adds, near the machine's peak from some tens of rows on; few
/// rows cost the reading of the weights.
template <weight_format Weight>
KVCACHE_ONCE void product(const rows_in& x, const packed_matrix<Weight>& w, const rows_out& y, team& threads) {
    const detail::product_block<Weight> block(x, w, y);
    const std::size_t work = x.rows * w.inputs() * w.outputs();
    if (x.rows == 0)
        return;
    if (x.rows <= detail::tallest_tile) {
        const std::size_t wide = detail::panels_at_once(x.rows);
        threads.share((w.panels() + wide - 1) / wide, work, [&](std::size_t begin, std::size_t end) {
            block.run_few(begin * wide, std::min(end * wide, w.panels()));
        });
        return;
    }
    const std::size_t row_blocks = (x.rows + detail::block_rows - 1) / detail::block_rows;
    threads.share(row_blocks * w.panels(), work, [&](std::size_t begin, std::size_t end) {
        while (begin < end) {
            const std::size_t b = begin / w.panels(), panel = begin % w.panels();
            const std::size_t panels = std::min(end - begin, w.panels() - panel);
            block.run_many(x.rows * b / row_blocks, x.rows * (b + 1) / row_blocks, panel, panel + panels);
            begin += panels;
        }
    });
}

#if defined(KVCACHE_COMPILED)
extern template void product(const rows_in&, const packed_matrix<float>&, const rows_out&, team&);
extern template void product(const rows_in&, const packed_matrix<bfloat16>&, const rows_out&, team&);
extern template void product(const rows_in&, const packed_matrix<half>&, const rows_out&, team&);
#endif

} // namespace kvcache

// ---- kvcache/model/activations.hpp --------------------------------------------------------------------------------

namespace kvcache {

/// The numbers of a batch between two steps of a pass, on rows that do not compete for cache lines. (rows, columns)
class activations {
public:
    explicit activations(std::size_t columns) : columns_(columns), stride_(row_stride(columns)) {}

    /// Has memory for so many rows; what they hold is anything. Allocates only when there were never as many.
    void make_room(std::size_t rows) {
        if (numbers_.size() < rows * stride_)
            numbers_ = aligned_vector<float>(rows * stride_);
    }

    [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
    [[nodiscard]] std::size_t stride() const noexcept { return stride_; }

    [[nodiscard]] std::span<float> row(std::size_t i) { return {numbers_.data() + i * stride_, columns_}; }

    /// The first rows, as a product reads or writes them.
    [[nodiscard]] rows_in in(std::size_t rows) const { return {numbers_.data(), rows, stride_}; }
    [[nodiscard]] rows_out out() { return {numbers_.data(), stride_}; }

private:
    std::size_t columns_;
    std::size_t stride_;
    aligned_vector<float> numbers_;
};

} // namespace kvcache

// ---- kvcache/attention/batch_attention.hpp ------------------------------------------------------------------------

namespace kvcache {

/// Causal attention of a batch: rows of many sequences over their pages, on all threads. Sequences that share pages
/// read them once. The bits of a row are those it has alone, on one thread.
template <codec_state Codec, storage_state Storage>
class batch_attention {
public:
    using part = attention_part<Codec, Storage>;

    /// Plans the attention of a batch, for any number of layers. Memory from batches before is used again.
    /// Requires: all parts have one codec and one storage, since pages are shared by their ids; page tables stay as
    /// they are, and what the parts point to stays where it is, until the next `deal`.
    void deal(const attention_shape& shape, std::span<const part> parts, const team& threads) {
        expects(std::ranges::all_of(parts,
                                    [&](const part& one) {
                                        return one.pages.codec == parts.front().pages.codec &&
                                               one.pages.storage == parts.front().pages.storage;
                                    }),
                "the parts of a batch have one codec and one storage");
        shape_ = shape;
        parts_.assign(parts.begin(), parts.end());
        planned_.clear();
        work_ = 0;
        for (const part& one : parts_) {
            planned_.push_back(
                {one.pages.table, one.asked.position, one.asked.rows, one.asked.positions, one.pages.woven});
            const std::size_t seen = one.asked.rows > 0 ? one.asked.position_of(one.asked.rows - 1) + 1 : 0;
            work_ += one.asked.rows * seen * shape.heads * shape.head_dim;
        }
        const bool alone = work_ < team::worth_sharing;
        plan_.deal(planned_, shape.group(), shape.kv_heads, alone ? 1 : threads.threads());
        partials_.resize(plan_.partials() * shape.kv_heads * state());
        const std::size_t capacity = attention_plan::capacity(shape.group());
        if (head_dim_ != shape.head_dim || (!scratch_.empty() && scratch_.front().block.capacity() < capacity))
            scratch_.clear();
        head_dim_ = shape.head_dim;
        while (scratch_.size() < threads.threads())
            scratch_.emplace_back(shape.head_dim, capacity);
    }

    /// All rows of the batch, in one layer, whose keys and values are in the pages.
    void attend(layer_id layer, team& threads) {
        const auto jobs = plan_.jobs();
        threads.share_by_member(
            jobs.size() * shape_.kv_heads, work_, [&](std::size_t member, std::size_t begin, std::size_t end) {
                detail::attention_walk<Codec, Storage> walk(shape_, parts_, plan_.runs(), scratch_[member]);
                for (std::size_t j = begin; j < end; ++j) {
                    const std::size_t head = j % shape_.kv_heads;
                    walk.run(jobs[j / shape_.kv_heads], plan_.segments(), layer,
                             head_id{static_cast<std::uint32_t>(head)}, partials_of(head));
                }
            });
        if (plan_.partials() > 0)
            threads.share(plan_.runs().size() * shape_.kv_heads, partials_.size(),
                          [&](std::size_t begin, std::size_t end) {
                              for (std::size_t j = begin; j < end; ++j)
                                  merge(plan_.runs()[j / shape_.kv_heads], j % shape_.kv_heads);
                          });
    }

private:
    [[nodiscard]] std::size_t width() const noexcept { return value_width(shape_.head_dim); }
    [[nodiscard]] std::size_t state() const noexcept { return softmax_state::numbers(width()); }
    [[nodiscard]] float* partials_of(std::size_t head) { return partials_.data() + head * plan_.partials() * state(); }

    // What jobs over several splits left, in ascending order.
    void merge(const attention_run& run, std::size_t kv_head) {
        if (run.partials == attention_run::none)
            return;
        const query_rows& asked = parts_[run.part].asked;
        const std::size_t group = shape_.group(), splits = attention_plan::splits(run.end);
        for (std::size_t i = 0; i < run.rows * group; ++i) {
            float* partials = partials_of(kv_head) + (run.partials + i * splits) * state();
            const softmax_state all(partials, width());
            for (std::size_t s = 1; s < splits; ++s)
                all.merge({partials + s * state(), width()});
            float* const out = asked.out + (run.first + i / group) * asked.out_stride +
                               (kv_head * group + i % group) * shape_.head_dim;
            all.finish(shape_.head_dim, out);
            if constexpr (page_writer<Codec>)
                parts_.front().pages.codec->turn_back({out, shape_.head_dim});
        }
    }

    attention_shape shape_;
    std::vector<part> parts_;
    std::vector<planned_rows> planned_;
    attention_plan plan_;
    std::size_t work_ = 0; // multiply-adds, about
    std::size_t head_dim_ = 0;
    std::vector<attention_scratch> scratch_; // by thread
    aligned_vector<float> partials_;         // (kv_heads, queries and their splits, state)
};

} // namespace kvcache

// ---- kvcache/model/batch_part.hpp ---------------------------------------------------------------------------------

namespace kvcache {

/// Which rows of a part want logits.
enum class logits_of { none, last, all };

/// Rows of one sequence in a batch: tokens that run at the lease's rows [row, row + tokens.size()), or at `rows`.
template <class Lease>
struct batch_part {
    const Lease* lease = nullptr;
    std::size_t row = 0;
    std::span<const token_id> tokens = {};
    logits_of wanted = logits_of::last;
    std::span<const std::size_t> rows = {};   ///< The lease's rows, ascending, where they are not consecutive.
    std::span<const std::size_t> limits = {}; ///< The last position each token sees; none: its own, which is right.

    /// The lease's row of its token `i`.
    [[nodiscard]] std::size_t row_of(std::size_t i) const noexcept { return rows.empty() ? row + i : rows[i]; }
    /// The position of its token `i`.
    [[nodiscard]] std::size_t position(std::size_t i) const { return lease->first() + row_of(i); }
    /// The last position that its token `i` sees.
    [[nodiscard]] std::size_t limit(std::size_t i) const { return limits.empty() ? position(i) : limits[i]; }

    /// How many of its last rows want logits.
    [[nodiscard]] std::size_t wanted_rows() const noexcept {
        return wanted == logits_of::all ? tokens.size() : wanted == logits_of::last && !tokens.empty() ? 1 : 0;
    }
};

} // namespace kvcache

// ---- kvcache/model/attention_jobs.hpp -----------------------------------------------------------------------------

namespace kvcache {

/// The attention of a forward pass, planned once for all its layers.
template <class Lease>
class attention_jobs {
public:
    /// `rows`: all rows of the batch side by side, whose position and number are not read.
    /// Requires: the leases, and what `rows` points to, stay as they are while it attends. An object that deals again
    /// uses its memory again.
    void deal(const attention_shape& shape, std::span<const batch_part<Lease>> batch, const query_rows& rows,
              const team& threads) {
        parts_.clear();
        limits_.clear();
        std::size_t scattered = 0;
        for (const auto& part : batch)
            scattered += part.rows.empty() ? 0 : part.tokens.size();
        limits_.reserve(scattered); // so that they stay where they are
        query_rows asked = rows;
        for (const auto& part : batch) {
            asked.position = part.position(0);
            asked.rows = part.tokens.size();
            asked.positions = part.rows.empty() ? nullptr : limits_.data() + limits_.size();
            for (std::size_t i = 0; i < part.rows.size(); ++i)
                limits_.push_back(part.limit(i));
            parts_.push_back({part.lease->pages(), asked});
            asked.queries += asked.rows * asked.stride;
            asked.rotations += asked.rows * shape.head_dim;
            asked.out += asked.rows * asked.out_stride;
        }
        attention_.deal(shape, parts_, threads);
    }

    /// All rows in one layer, whose keys and values are in the leases.
    void attend(layer_id layer, team& threads) { attention_.attend(layer, threads); }

private:
    template <class Codec, class Storage>
    static batch_attention<Codec, Storage> over(const paged_rows<Codec, Storage>&);
    using attention = decltype(over(std::declval<const Lease&>().pages()));

    std::vector<typename attention::part> parts_;
    std::vector<std::size_t> limits_; // of the rows of parts that are not consecutive
    attention attention_;
};

} // namespace kvcache

// ---- kvcache/model/config.hpp -------------------------------------------------------------------------------------

namespace kvcache {

/// How positions turn into rotations. Every kind is a pure rotation: no factor on the scores.
///
/// The inverse frequency of pair i is f(i) = theta^(-2 i / head_dim), scaled as `scaling` says:
///
///     none     f
///     linear   f / factor
///     llama3   by wavelength w = 2 pi / f against original_max_positions L:
///                w < L / high_freq_factor    f
///                w > L / low_freq_factor     f / factor
///                between                     (1 - s) f / factor + s f,
///                                            s = (L / w - low_freq_factor) / (high_freq_factor - low_freq_factor)
///
/// Dimension i of a head is rotated with dimension i + head_dim / 2.
struct rope_config {
    enum class kind { none, linear, llama3 };

    double theta = 10000.0;
    kind scaling = kind::none;
    double factor = 1.0;                    ///< linear and llama3.
    double low_freq_factor = 1.0;           ///< llama3.
    double high_freq_factor = 4.0;          ///< llama3.
    double original_max_positions = 8192.0; ///< llama3: the context it was trained with before scaling.

    friend bool operator==(const rope_config&, const rope_config&) = default;
};

/// The extents and switches of a Llama-family decoder: pre-norm blocks of RMS norm, grouped-query attention with
/// RoPE, and a SiLU-gated MLP.
///
/// Weight shapes follow from it, as stored (out, in):
///
///     embedding (vocabulary, hidden_size)           head  the same, or the embedding itself when tied_head
///     q (heads * head_dim, hidden_size)             k, v  (kv_heads * head_dim, hidden_size)
///     o (hidden_size, heads * head_dim)             q_norm, k_norm (head_dim)
///     gate, up (intermediate_size, hidden_size)     down  (hidden_size, intermediate_size)
struct model_config {
    std::string architecture = "llama"; ///< The checkpoint's own name: llama, mistral, qwen2, qwen3.
    std::size_t hidden_size = 0;
    std::size_t intermediate_size = 0;
    std::size_t layers = 0;
    std::size_t heads = 0;
    std::size_t kv_heads = 0;
    std::size_t head_dim = 0;
    std::size_t vocabulary = 0;
    std::size_t max_positions = 2048; ///< What it was trained for; RoPE itself has no end.
    float rms_norm_eps = 1e-6F;
    rope_config rope = {};
    bool tied_head = false;   ///< The output head is the embedding.
    bool qkv_bias = false;    ///< q, k and v have biases.
    bool output_bias = false; ///< o has a bias.
    bool mlp_bias = false;    ///< gate, up and down have biases.
    bool qk_norm = false;     ///< Each head of q and k is RMS-normalised over head_dim before RoPE.
    std::vector<token_id> bos = {};
    std::vector<token_id> eos = {};

    friend bool operator==(const model_config&, const model_config&) = default;

    /// Whether a model of these extents can exist and all products of two extents fit 48 bits.
    /// Returns: an error that names the first field at fault.
    [[nodiscard]] result<void> check() const;
};

namespace detail {

[[nodiscard]] inline result<void> check_extent(std::string_view field, std::size_t value, std::size_t most) {
    if (value == 0 || value > most)
        return error{error_code::out_of_range, std::string(field),
                     std::string(field) + " is " + std::to_string(value) + "; it must be 1 to " + std::to_string(most)};
    return {};
}

[[nodiscard]] inline result<void> check_number(std::string_view field, double value, double least, double most) {
    if (!(std::isfinite(value) && value >= least && value <= most))
        return error{error_code::out_of_range, std::string(field),
                     std::string(field) + " is " + std::to_string(value) + "; it must be " + std::to_string(least) +
                         " to " + std::to_string(most)};
    return {};
}

} // namespace detail

inline result<void> model_config::check() const {
    // The largest extents leave an order of magnitude above any published dense model, and keep a product of two
    // extents, in bytes, far from the end of 64 bits.
    const struct {
        std::string_view name;
        std::size_t value, most;
    } extents[] = {
        {"hidden_size", hidden_size, 1u << 20}, {"intermediate_size", intermediate_size, 1u << 22},
        {"layers", layers, 1u << 13},           {"heads", heads, 1u << 13},
        {"kv_heads", kv_heads, 1u << 13},       {"head_dim", head_dim, 1u << 12},
        {"vocabulary", vocabulary, 1u << 24},   {"max_positions", max_positions, 1u << 30},
    };
    for (const auto& [name, value, most] : extents)
        if (auto fine = detail::check_extent(name, value, most); !fine)
            return fine;
    if (heads % kv_heads != 0)
        return error{error_code::mismatched, "kv_heads",
                     std::to_string(heads) + " heads do not share " + std::to_string(kv_heads) + " kv_heads evenly"};
    if (head_dim % 2 != 0)
        return error{error_code::mismatched, "head_dim",
                     "head_dim is " + std::to_string(head_dim) + "; RoPE rotates pairs, so it must be even"};

    if (!(std::isfinite(rms_norm_eps) && rms_norm_eps > 0 && rms_norm_eps < 1))
        return error{error_code::out_of_range, "rms_norm_eps",
                     "rms_norm_eps is " + std::to_string(rms_norm_eps) + "; it must be above 0 and below 1"};
    const struct {
        std::string_view name;
        double value, least, most;
    } numbers[] = {
        {"rope.theta", rope.theta, 1.0, 1e15},
        {"rope.factor", rope.factor, 1e-3, 1e6},
        {"rope.low_freq_factor", rope.low_freq_factor, 1e-6, 1e6},
        {"rope.high_freq_factor", rope.high_freq_factor, 1e-6, 1e6},
        {"rope.original_max_positions", rope.original_max_positions, 1.0, 1073741824.0},
    };
    for (const auto& [name, value, least, most] : numbers)
        if (auto fine = detail::check_number(name, value, least, most); !fine)
            return fine;
    if (rope.scaling == rope_config::kind::llama3 && !(rope.high_freq_factor > rope.low_freq_factor))
        return error{error_code::mismatched, "rope.high_freq_factor",
                     "rope.high_freq_factor must be above rope.low_freq_factor"};

    for (const token_id token : bos)
        if (index_of(token) < 0)
            return error{error_code::out_of_range, "bos", "a bos id is negative"};
    for (const token_id token : eos)
        if (index_of(token) < 0)
            return error{error_code::out_of_range, "eos", "an eos id is negative"};
    return {};
}

} // namespace kvcache

// ---- kvcache/kernel/int8_dot.hpp ----------------------------------------------------------------------------------

/// Dot products of four bytes for 16 outputs at once. Sums of int32 are exact, so every form gives the same numbers.
namespace kvcache::detail {

#if defined(__AVX512VNNI__)

/// An activation as the machine's dot product reads it: VNNI wants one side unsigned, so 128 is added, and 128 times
/// the sum of the weights comes off the result.
using int8_activation = std::uint8_t;
inline constexpr std::int32_t activation_offset = 128;

/// How four inputs of 16 outputs lie in vectors, and their running sums.
inline constexpr std::size_t int8_parts = 1;
/// Rows that meet one load of weights, so that their sums stay in registers.
inline constexpr std::size_t int8_rows_together = 12;
/// Of int32: GCC 12 copies a running __m512i, which is of int64, before and behind each dot product.
using int8_vector = std::int32_t __attribute__((vector_size(64)));

[[nodiscard]] KVCACHE_INLINE inline int8_vector no_sums() noexcept {
    return int8_vector{};
}
[[nodiscard]] KVCACHE_INLINE inline __m512i load_weights(const std::int8_t* from, std::size_t) noexcept {
    return _mm512_loadu_si512(from);
}
/// The same four activations for all outputs.
[[nodiscard]] KVCACHE_INLINE inline __m512i load_four(const int8_activation* x) noexcept {
    std::int32_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}
[[nodiscard]] KVCACHE_INLINE inline int8_vector add_dots(int8_vector sums, __m512i weights, __m512i four) noexcept {
    return reinterpret_cast<int8_vector>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), four, weights));
}
inline void store_sums(const int8_vector* sums, std::int32_t* to) noexcept {
    _mm512_storeu_si512(to, reinterpret_cast<__m512i>(sums[0]));
}

#elif defined(__AVX2__)

using int8_activation = std::int16_t; // products of 16-bit pairs: VPMADDUBSW of bytes would saturate
inline constexpr std::int32_t activation_offset = 0;

inline constexpr std::size_t int8_parts = 4; // four outputs each: the sums of even and of odd pairs of inputs
using int8_vector = __m256i;

inline constexpr std::size_t int8_rows_together = 2; // with weights, a row and a product that is 11 of 16 registers

/// Steps that pass through here keep their order: a compiler that loads everything first has no registers for the sums.
[[nodiscard]] KVCACHE_INLINE inline int8_vector in_order(int8_vector x) noexcept {
#if defined(__GNUC__)
    asm volatile("" : "+x"(x));
#endif
    return x;
}

[[nodiscard]] KVCACHE_INLINE inline int8_vector no_sums() noexcept {
    return _mm256_setzero_si256();
}
[[nodiscard]] KVCACHE_INLINE inline int8_vector load_weights(const std::int8_t* from, std::size_t part) noexcept {
    __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * part)));
    return in_order(words);
}
[[nodiscard]] KVCACHE_INLINE inline int8_vector load_four(const int8_activation* x) noexcept {
    std::int64_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm256_set1_epi64x(four);
}
[[nodiscard]] KVCACHE_INLINE inline int8_vector add_dots(int8_vector sums, int8_vector weights,
                                                         int8_vector four) noexcept {
    return in_order(_mm256_add_epi32(sums, _mm256_madd_epi16(weights, four)));
}
inline void store_sums(const int8_vector* sums, std::int32_t* to) noexcept {
    for (std::size_t i = 0; i < int8_parts; ++i) {
        const __m256i folded = _mm256_add_epi32(sums[i], _mm256_srli_epi64(sums[i], 32));
        const __m256i four = _mm256_permutevar8x32_epi32(folded, _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 4 * i), _mm256_castsi256_si128(four));
    }
}

#else

using int8_activation = std::int8_t;
inline constexpr std::int32_t activation_offset = 0;

inline constexpr std::size_t int8_parts = 1;
struct int8_vector {
    std::int32_t lanes[16];
};

inline constexpr std::size_t int8_rows_together = 2;

[[nodiscard]] inline int8_vector no_sums() noexcept {
    return {};
}
struct int8_weights {
    const std::int8_t* bytes;
};
[[nodiscard]] inline int8_weights load_weights(const std::int8_t* from, std::size_t) noexcept {
    return {from};
}
[[nodiscard]] inline const int8_activation* load_four(const int8_activation* x) noexcept {
    return x;
}
[[nodiscard]] inline int8_vector add_dots(int8_vector sums, int8_weights w, const int8_activation* four) noexcept {
    for (std::size_t output = 0; output < 16; ++output)
        for (std::size_t i = 0; i < 4; ++i)
            sums.lanes[output] += std::int32_t{w.bytes[output * 4 + i]} * four[i];
    return sums;
}
inline void store_sums(const int8_vector* sums, std::int32_t* to) noexcept {
    std::memcpy(to, sums->lanes, sizeof sums->lanes);
}

#endif

} // namespace kvcache::detail

// ---- kvcache/kernel/int8_matrix.hpp -------------------------------------------------------------------------------

namespace kvcache {

/// The weights of y = W x as int8 with one scale an output: w = q * scale, |q| <= 127. Packed in panels of 16 outputs,
/// in each the inputs in ascending fours and for every four its 16 x 4 weights, as the dot-product instructions of x86
/// (VNNI) and ARM read them. (outputs / 16, inputs / 4, 16, 4), zeros behind the last output and input.
class int8_matrix {
public:
    static constexpr std::size_t panel_width = 16;
    static constexpr std::size_t most_inputs = 65536; ///< For which no int32 sum of products of bytes overflows.

    int8_matrix() = default;

    /// Requires: inputs <= most_inputs.
    int8_matrix(std::size_t outputs, std::size_t inputs)
        : outputs_(outputs),
          inputs_(inputs),
          numbers_(panels() * panel_bytes()),
          scales_(panels() * panel_width),
          sums_(panels() * panel_width) {
        expects(inputs <= most_inputs, "an int8 matrix has at most 65536 inputs");
    }

    /// Rounds the weights of one output to the nearest of 255 levels, ties to even. (inputs)
    /// Errors of a weight: at most half a level, max |weight| / 254. With a weight that is not finite the scale is NaN
    /// and every level zero. Different outputs may be set by several threads.
    void set_row(std::size_t output, std::span<const float> weights) {
        expects(output < outputs_ && weights.size() == inputs_, "a packed row is one output's weights");
        float largest = 0.0f;
        bool finite = true;
        for (const float w : weights) {
            largest = std::max(largest, std::fabs(w));
            finite = finite && std::isfinite(w);
        }
        const float scale = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
        std::int8_t* to =
            numbers_.data() + output / panel_width * panel_bytes() + output % panel_width * inputs_together;
        std::int32_t sum = 0;
        for (std::size_t k = 0; k < inputs_; ++k) {
            const float level = scale > 0.0f ? std::nearbyint(weights[k] / scale) : 0.0f;
            const auto q = static_cast<std::int8_t>(std::clamp(level, -127.0f, 127.0f));
            to[k / inputs_together * panel_width * inputs_together + k % inputs_together] = q;
            sum += q;
        }
        scales_[output] = scale;
        sums_[output] = sum;
    }

    /// The weights of one output, as they are used. (inputs)
    void row(std::size_t output, std::span<float> out) const {
        expects(output < outputs_ && out.size() == inputs_, "a packed row is one output's weights");
        const std::int8_t* from = panel(output / panel_width) + output % panel_width * inputs_together;
        for (std::size_t k = 0; k < inputs_; ++k)
            out[k] =
                static_cast<float>(from[k / inputs_together * panel_width * inputs_together + k % inputs_together]) *
                scales_[output];
    }

    [[nodiscard]] std::size_t outputs() const noexcept { return outputs_; }
    [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
    [[nodiscard]] std::size_t panels() const noexcept { return (outputs_ + panel_width - 1) / panel_width; }
    /// Fours of inputs.
    [[nodiscard]] std::size_t fours() const noexcept { return (inputs_ + inputs_together - 1) / inputs_together; }
    [[nodiscard]] std::size_t bytes() const noexcept {
        return numbers_.size() + scales_.size() * sizeof(float) + sums_.size() * sizeof(std::int32_t);
    }

    /// The weights of outputs [16 * index, 16 * index + 16). (inputs / 4, 16, 4)
    [[nodiscard]] const std::int8_t* panel(std::size_t index) const noexcept {
        return numbers_.data() + index * panel_bytes();
    }
    /// What one level of an output is worth, from output 16 * index on. (16)
    [[nodiscard]] const float* scales(std::size_t index) const noexcept { return scales_.data() + index * panel_width; }
    /// The sum of an output's levels, from output 16 * index on. (16)
    [[nodiscard]] const std::int32_t* sums(std::size_t index) const noexcept {
        return sums_.data() + index * panel_width;
    }

private:
    static constexpr std::size_t inputs_together = 4;

    [[nodiscard]] std::size_t panel_bytes() const noexcept { return fours() * inputs_together * panel_width; }

    std::size_t outputs_ = 0;
    std::size_t inputs_ = 0;
    aligned_vector<std::int8_t> numbers_;
    aligned_vector<float> scales_;
    aligned_vector<std::int32_t> sums_;
};

} // namespace kvcache

// ---- kvcache/kernel/int8_product.hpp ------------------------------------------------------------------------------

namespace kvcache {

/// Activations as int8 with one scale a row, made anew for each product; keeps its memory for the next one.
class int8_rows {
public:
    /// Takes in rows: x = q * scale, |q| <= 127, rounded to the nearest, ties to even. A row of zeros, or of numbers
    /// too small to divide by, has no levels but zero; one with a number that is not finite has the scale NaN besides.
    /// (rows, inputs) Cost: every number is read twice.
    void quantize(const rows_in& x, std::size_t inputs, team& threads) {
        stride_ = (inputs + 3) / 4 * 4 + line_bytes / sizeof(number); // rows begin on lines of different sets
        if (numbers_.size() < x.rows * stride_)
            numbers_ = aligned_vector<number>(x.rows * stride_);
        if (scales_.size() < x.rows)
            scales_ = aligned_vector<float>(x.rows);
        threads.share(x.rows, x.rows * inputs * 4, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                quantize_row(x.data + row * x.stride, inputs, row);
        });
    }

    /// Behind the last input up to four zeros. (inputs)
    [[nodiscard]] const detail::int8_activation* row(std::size_t i) const noexcept {
        return numbers_.data() + i * stride_;
    }
    /// Numbers from one row to the next.
    [[nodiscard]] std::size_t stride() const noexcept { return stride_; }
    [[nodiscard]] float scale(std::size_t i) const noexcept { return scales_[i]; }

private:
    using number = detail::int8_activation;

    void quantize_row(const float* x, std::size_t inputs, std::size_t row) {
        f32x16 top = f32x16::zero(), poison = f32x16::zero(); // NaN from a number on that is not finite: max loses it
        detail::by_sixteen(inputs, [&](std::size_t i, std::size_t n) {
            const f32x16 v = f32x16::load_up_to(x + i, n);
            top = max(top, max(v, -v));
            poison = fma(v, f32x16::zero(), poison);
        });
        const float most = largest(top) + sum(poison), level_of_one = 127.0f / most;
        number* to = numbers_.data() + row * stride_;
        scales_[row] = most / 127.0f;
        if (!std::isfinite(level_of_one)) {
            std::fill_n(to, (inputs + 3) / 4 * 4, static_cast<number>(detail::activation_offset));
            return;
        }
        const f32x16 levels = f32x16::broadcast(level_of_one);
        const f32x16 magic = f32x16::broadcast(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
        detail::by_sixteen(inputs, [&](std::size_t i, std::size_t n) {
            alignas(line_bytes) float level[16];
            (fma(f32x16::load_up_to(x + i, n), levels, magic) - magic).store(level);
            for (std::size_t lane = 0; lane < n; ++lane)
                to[i + lane] = static_cast<number>(static_cast<std::int32_t>(level[lane]) + detail::activation_offset);
        });
        for (std::size_t i = inputs; i % 4 != 0; ++i)
            to[i] = static_cast<number>(detail::activation_offset);
    }

    std::size_t stride_ = 0;
    aligned_vector<number> numbers_;
    aligned_vector<float> scales_;
};

namespace detail {

// Rows [row, row + Rows) with the 16 outputs of a panel.
template <std::size_t Rows>
inline void int8_tile(const int8_rows& x, std::size_t row, const int8_matrix& w, std::size_t panel, const rows_out& y) {
    int8_vector sums[Rows * int8_parts]; // flat: GCC 12 keeps no nested array in registers
    unrolled<Rows * int8_parts>([&](auto i) KVCACHE_INLINE { sums[i] = no_sums(); });
    const int8_activation* from = x.row(row);
    const std::size_t stride = x.stride();
    const std::int8_t* weights = w.panel(panel);
    for (std::size_t four = 0; four < w.fours(); ++four, from += 4, weights += 64)
        unrolled<int8_parts>([&](auto part) KVCACHE_INLINE {
            const auto these = load_weights(weights, part);
            unrolled<Rows>([&](auto r) KVCACHE_INLINE {
                auto& sum = sums[r * int8_parts + part];
                sum = add_dots(sum, these, load_four(from + r * stride));
            });
        });
    const std::size_t output = panel * 16, left = std::min<std::size_t>(16, w.outputs() - output);
    for (std::size_t r = 0; r < Rows; ++r) {
        std::int32_t exact[16];
        store_sums(sums + r * int8_parts, exact);
        for (std::size_t i = 0; i < left; ++i)
            y.data[(row + r) * y.stride + output + i] =
                static_cast<float>(exact[i] - activation_offset * w.sums(panel)[i]) *
                (x.scale(row + r) * w.scales(panel)[i]);
    }
}

// Rows [row, last) with the 16 outputs of a panel, in tiles of at most Tall rows, as equal as they can be.
template <std::size_t Tall>
KVCACHE_ONCE void int8_tiles(const int8_rows& x, std::size_t row, std::size_t last, const int8_matrix& w,
                             std::size_t panel, const rows_out& y) {
    for (std::size_t tiles = (last - row + Tall - 1) / Tall; tiles > 0; --tiles) {
        const std::size_t rows = (last - row + tiles - 1) / tiles;
        with_rows<Tall>(rows, [&]<std::size_t Rows> { int8_tile<Rows>(x, row, w, panel, y); });
        row += rows;
    }
}

#if defined(KVCACHE_COMPILED)
extern template void int8_tiles<int8_rows_together>(const int8_rows&, std::size_t, std::size_t, const int8_matrix&,
                                                    std::size_t, const rows_out&);
#endif

} // namespace detail

/// y = x W^T with int8 weights and activations. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// Sums are exact integers and each output is rounded once and scaled, so its bits depend neither on the number of rows
/// nor on threads nor on the machine (weights a channel and activations a token: Yao et al. 2022, ZeroQuant).
/// `scratch` takes the rows as int8.
inline void product(const rows_in& x, const int8_matrix& w, const rows_out& y, team& threads, int8_rows& scratch) {
    if (x.rows == 0)
        return;
    scratch.quantize(x, w.inputs(), threads);
    constexpr std::size_t tall = detail::int8_rows_together;
    const std::size_t block = 32 * tall, blocks = (x.rows + block - 1) / block;
    threads.share(blocks * w.panels(), x.rows * w.inputs() * w.outputs(), [&](std::size_t begin, std::size_t end) {
        for (std::size_t job = begin; job < end; ++job) {
            const std::size_t first = job / w.panels() * block, last = std::min(first + block, x.rows);
            detail::int8_tiles<tall>(scratch, first, last, w, job % w.panels(), y);
        }
    });
}

} // namespace kvcache

// ---- kvcache/kernel/pack_panel.hpp --------------------------------------------------------------------------------

namespace kvcache {

namespace detail {

/// Sixteen bytes of weights, whose bits are moved and never computed with.
using four_words = std::uint32_t __attribute__((vector_size(16)));
using eight_words = std::uint16_t __attribute__((vector_size(16)));

/// The lower halves of two vectors, alternating; and the upper ones.
[[nodiscard]] inline four_words zip_lower(four_words a, four_words b) noexcept {
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
[[nodiscard]] inline four_words zip_upper(four_words a, four_words b) noexcept {
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
[[nodiscard]] inline eight_words zip_lower(eight_words a, eight_words b) noexcept {
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
[[nodiscard]] inline eight_words zip_upper(eight_words a, eight_words b) noexcept {
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

/// Transposes a square of N vectors of N numbers: each round zips the first half of them with the second.
template <class Vector, std::size_t N, std::size_t... Pair>
inline void transpose(std::array<Vector, N>& square, std::index_sequence<Pair...>) noexcept {
    for (std::size_t round = 1; round < N; round *= 2) {
        std::array<Vector, N> zipped;
        ((zipped[2 * Pair] = zip_lower(square[Pair], square[Pair + N / 2]),
          zipped[2 * Pair + 1] = zip_upper(square[Pair], square[Pair + N / 2])),
         ...);
        square = zipped;
    }
}

/// Writes a square of the numbers at `rows` + `offset` bytes, transposed, into a panel. (N, N)
template <class Vector, weight_format Weight, std::size_t... Row>
inline void pack_square(const std::byte* const* rows, std::size_t offset, Weight* panel,
                        std::index_sequence<Row...>) noexcept {
    constexpr std::size_t n = sizeof...(Row);
    std::array<Vector, n> square = {};
    ((rows[Row] != nullptr ? void(std::memcpy(&square[Row], rows[Row] + offset, sizeof(Vector))) : void()), ...);
    transpose(square, std::make_index_sequence<n / 2>());
    (std::memcpy(static_cast<void*>(panel + Row * packed_matrix<Weight>::panel_width), &square[Row], sizeof(Vector)),
     ...);
}

} // namespace detail

/// Packs the rows of 16 outputs, each `inputs` numbers in memory order at any alignment; null is a row of zeros.
/// (16, inputs) -> (inputs, 16). Cost: every cache line is read once and written once.
template <weight_format Weight>
inline void pack_panel(std::span<const std::byte* const, packed_matrix<Weight>::panel_width> rows, std::size_t inputs,
                       Weight* panel) noexcept {
    using vector = std::conditional_t<sizeof(Weight) == 4, detail::four_words, detail::eight_words>;
    constexpr std::size_t width = packed_matrix<Weight>::panel_width;
    constexpr std::size_t side = sizeof(vector) / sizeof(Weight);
    constexpr std::size_t block = 4 * line_bytes / sizeof(Weight); // of each row, before the next rows
    const std::size_t squares = inputs / side * side;
    for (std::size_t begin = 0; begin < inputs; begin += block) {
        const std::size_t end = std::min(begin + block, inputs), whole = std::min(end, squares);
        for (std::size_t row = 0; row < width; row += side) {
            for (std::size_t k = begin; k < whole; k += side)
                detail::pack_square<vector>(&rows[row], k * sizeof(Weight), panel + k * width + row,
                                            std::make_index_sequence<side>());
            for (std::size_t k = std::max(begin, whole); k < end; ++k)
                for (std::size_t r = row; r < row + side; ++r) {
                    Weight weight{};
                    if (rows[r] != nullptr)
                        std::memcpy(static_cast<void*>(&weight), rows[r] + k * sizeof(Weight), sizeof(Weight));
                    panel[k * width + r] = weight;
                }
        }
    }
}

} // namespace kvcache

// ---- kvcache/model/tensor_view.hpp --------------------------------------------------------------------------------

namespace kvcache {

/// The number formats that weights are read from.
enum class dtype : std::uint8_t {
    f32,  ///< IEEE binary32.
    f16,  ///< IEEE binary16: 5 exponent bits, 10 of fraction, subnormals.
    bf16, ///< The upper half of a binary32.
};

/// The bytes of one number.
[[nodiscard]] constexpr std::size_t bytes_of(dtype type) noexcept {
    return type == dtype::f32 ? 4 : 2;
}

/// The name as checkpoints spell it.
[[nodiscard]] constexpr std::string_view name_of(dtype type) noexcept {
    switch (type) {
    case dtype::f32:
        return "F32";
    case dtype::f16:
        return "F16";
    case dtype::bf16:
        return "BF16";
    }
    return "?";
}

/// A weight where it lies, in little-endian bytes that need no alignment. It owns only its shape: the bytes belong to
/// the checkpoint that gave it.
struct tensor_view {
    kvcache::dtype dtype = kvcache::dtype::f32;
    std::vector<std::size_t> shape = {};   ///< Outermost first, row-major.
    std::span<const std::byte> bytes = {}; ///< bytes_of(dtype) times the product of the shape.

    /// The numbers in it.
    [[nodiscard]] std::size_t size() const noexcept { return bytes.size() / bytes_of(dtype); }

    /// Number `index` in row-major order, as float32, exactly. Requires: index < size().
    [[nodiscard]] float operator[](std::size_t index) const {
        expects(index < size(), "a tensor view is read only inside its bytes");
        switch (dtype) {
        case kvcache::dtype::f32:
            return number<kvcache::dtype::f32>(index);
        case kvcache::dtype::f16:
            return number<kvcache::dtype::f16>(index);
        case kvcache::dtype::bf16:
            return number<kvcache::dtype::bf16>(index);
        }
        return 0.0F;
    }

    /// The 16 bits of number `index`. Requires: index < size(), and a format of 16 bits.
    [[nodiscard]] std::uint16_t bits(std::size_t index) const {
        expects(index < size() && bytes_of(dtype) == 2, "bits are read inside a view of 16-bit numbers");
        return static_cast<std::uint16_t>(halfword(index));
    }

    /// Fills `out` with the numbers from `first` on, as float32, exactly. Requires: first + out.size() <= size().
    void read(std::size_t first, std::span<float> out) const {
        expects(first <= size() && out.size() <= size() - first, "a tensor view is read only inside its bytes");
        switch (dtype) {
        case kvcache::dtype::f32:
            return fill<kvcache::dtype::f32>(first, out);
        case kvcache::dtype::f16:
            return fill<kvcache::dtype::f16>(first, out);
        case kvcache::dtype::bf16:
            return fill<kvcache::dtype::bf16>(first, out);
        }
    }

private:
    template <kvcache::dtype Type>
    [[nodiscard]] float number(std::size_t index) const {
        if constexpr (Type == kvcache::dtype::f32)
            return std::bit_cast<float>(halfword(index * 2) | halfword(index * 2 + 1) << 16);
        else if constexpr (Type == kvcache::dtype::f16)
            return widen(half{static_cast<std::uint16_t>(halfword(index))});
        else
            return widen(bfloat16{static_cast<std::uint16_t>(halfword(index))});
    }

    template <kvcache::dtype Type>
    void fill(std::size_t first, std::span<float> out) const {
        for (std::size_t i = 0; i != out.size(); ++i)
            out[i] = number<Type>(first + i);
    }

    // Bytes 2 n and 2 n + 1, by arithmetic, so that neither alignment nor the machine's byte order matters.
    [[nodiscard]] std::uint32_t halfword(std::size_t n) const {
        return std::to_integer<std::uint32_t>(bytes[2 * n]) | std::to_integer<std::uint32_t>(bytes[2 * n + 1]) << 8;
    }
};

} // namespace kvcache

// ---- kvcache/model/packing.hpp ------------------------------------------------------------------------------------

namespace kvcache {

/// The format in which matrices below one another are packed: their own if they share one, else F32. F32 too on a
/// machine whose byte order is not the checkpoint's.
[[nodiscard]] inline dtype packed_format(std::span<const tensor_view> parts) {
    const bool alike = std::ranges::all_of(parts, [&](const tensor_view& p) { return p.dtype == parts[0].dtype; });
    return alike && !parts.empty() && std::endian::native == std::endian::little ? parts[0].dtype : dtype::f32;
}

/// The bytes of packed weights.
[[nodiscard]] constexpr std::size_t packed_bytes(dtype format, std::size_t outputs, std::size_t inputs) noexcept {
    constexpr std::size_t width = packed_matrix<float>::panel_width;
    return packed_matrix<float>::panels_of(outputs) * width * inputs * bytes_of(format);
}

namespace detail {

/// The first byte of a row of matrices that lie below one another; null behind the last.
[[nodiscard]] inline const std::byte* row_in(std::span<const tensor_view> parts, std::size_t row) {
    for (const tensor_view& part : parts) {
        if (row < part.shape[0])
            return part.bytes.data() + row * part.shape[1] * bytes_of(part.dtype);
        row -= part.shape[0];
    }
    return nullptr;
}

/// The same row as float32. (inputs)
inline void read_row_in(std::span<const tensor_view> parts, std::size_t row, std::span<float> out) {
    for (const tensor_view& part : parts) {
        if (row < part.shape[0])
            return part.read(row * out.size(), out);
        row -= part.shape[0];
    }
    std::ranges::fill(out, 0.0F);
}

template <weight_format Weight>
inline void pack_as(std::span<const tensor_view> parts, bool as_stored, Weight* to, std::size_t begin,
                    std::size_t end) {
    constexpr std::size_t width = packed_matrix<Weight>::panel_width;
    const std::size_t inputs = parts[0].shape[1];
    std::vector<float> widened(as_stored ? 0 : width * inputs);
    std::array<const std::byte*, width> rows = {};
    for (std::size_t panel = begin; panel < end; ++panel) {
        for (std::size_t r = 0; r < width; ++r)
            if (as_stored) {
                rows[r] = row_in(parts, panel * width + r);
            } else {
                const std::span row(widened.data() + r * inputs, inputs);
                read_row_in(parts, panel * width + r, row);
                rows[r] = std::as_bytes(row).data();
            }
        pack_panel<Weight>(rows, inputs, to + panel * width * inputs);
    }
}

} // namespace detail

/// Packs matrices of the same inputs below one another into `to`, a cache line's multiple of packed_bytes(). Each
/// (outputs, inputs), as stored. Requires: `format` is packed_format(parts), or F32.
/// Cost: every weight is read and written once, by all threads.
inline void pack_rows(std::span<const tensor_view> parts, dtype format, std::byte* to, team& threads) {
    expects(!parts.empty(), "a linear map has a matrix");
    std::size_t outputs = 0;
    for (const tensor_view& part : parts) {
        expects(part.shape.size() == 2 && part.shape[1] == parts[0].shape[1], "matrices below one another are as wide");
        outputs += part.shape[0];
    }
    // Bytes move as they are; only a machine of the other byte order has to look at the numbers.
    const bool as_stored = std::endian::native == std::endian::little &&
                           std::ranges::all_of(parts, [&](const tensor_view& part) { return part.dtype == format; });
    expects(as_stored || format == dtype::f32, "weights are packed as stored or as F32");
    const auto pack = [&](auto* weights) {
        threads.share(
            packed_matrix<float>::panels_of(outputs), outputs * parts[0].shape[1],
            [&](std::size_t begin, std::size_t end) { detail::pack_as(parts, as_stored, weights, begin, end); });
    };
    switch (format) {
    case dtype::f32:
        return pack(reinterpret_cast<float*>(to));
    case dtype::f16:
        return pack(reinterpret_cast<half*>(to));
    case dtype::bf16:
        return pack(reinterpret_cast<bfloat16*>(to));
    }
}

} // namespace kvcache

// ---- kvcache/model/linear.hpp -------------------------------------------------------------------------------------

namespace kvcache {

/// y = x W^T + b with packed weights, kept in the format they are stored in: F32, BF16 or F16. All three widen exactly,
/// so the format decides speed and memory, never bits of the product. Or in int8, which is another, coarser map. Copies
/// share the weights, but those in int8.
class linear {
public:
    linear() = default;

    /// Packs matrices of the same inputs below one another; parts of different formats become F32. Each
    /// (outputs, inputs), as stored.
    [[nodiscard]] static linear pack(std::span<const tensor_view> parts, team& threads) {
        expects(!parts.empty(), "a linear map has a matrix");
        const dtype format = packed_format(parts);
        std::size_t outputs = 0;
        for (const tensor_view& part : parts)
            outputs += part.shape.at(0);
        const auto memory = shared_memory(packed_bytes(format, outputs, parts[0].shape.at(1)), nullptr);
        pack_rows(parts, format, memory.get(), threads);
        return packed(format, outputs, parts[0].shape[1], memory);
    }
    [[nodiscard]] static linear pack(std::span<const tensor_view> parts) {
        team alone;
        return pack(parts, alone);
    }

    /// Looks at weights that pack_rows() has packed, and keeps them alive. (outputs / 16, inputs, 16)
    [[nodiscard]] static linear packed(dtype format, std::size_t outputs, std::size_t inputs,
                                       const std::shared_ptr<const std::byte>& weights) {
        linear made;
        switch (format) {
        case dtype::f32:
            made.weights_ = looking_at<float>(outputs, inputs, weights);
            break;
        case dtype::bf16:
            made.weights_ = looking_at<bfloat16>(outputs, inputs, weights);
            break;
        case dtype::f16:
            made.weights_ = looking_at<half>(outputs, inputs, weights);
            break;
        }
        return made;
    }

    /// The same map with weights in int8, one scale an output. Cost: every weight is read once, by all threads.
    [[nodiscard]] linear in_int8(team& threads) const {
        int8_matrix rounded(outputs(), inputs());
        threads.share(outputs(), outputs() * inputs(), [&](std::size_t begin, std::size_t end) {
            std::vector<float> weights(inputs());
            for (std::size_t output = begin; output < end; ++output) {
                row(output, weights);
                rounded.set_row(output, weights);
            }
        });
        linear made;
        made.weights_ = std::move(rounded);
        made.bias_ = bias_;
        return made;
    }

    void set_bias(std::vector<float> bias) {
        expects(bias.size() == outputs(), "a bias has one number an output");
        bias_ = std::move(bias);
    }

    [[nodiscard]] std::size_t outputs() const {
        return std::visit([](const auto& w) { return w.outputs(); }, weights_);
    }
    [[nodiscard]] std::size_t inputs() const {
        return std::visit([](const auto& w) { return w.inputs(); }, weights_);
    }
    [[nodiscard]] std::size_t bytes() const {
        return std::visit([](const auto& w) { return w.bytes(); }, weights_);
    }
    [[nodiscard]] const char* format() const { return std::array{"f32", "bf16", "f16", "int8"}[weights_.index()]; }

    /// (rows, inputs) -> (rows, outputs) `scratch` takes activations where they are rounded.
    void apply(const rows_in& x, const rows_out& y, team& threads, int8_rows& scratch) const {
        std::visit(
            [&](const auto& w) {
                if constexpr (std::same_as<decltype(w), const int8_matrix&>)
                    product(x, w, y, threads, scratch);
                else
                    product(x, w, y, threads);
            },
            weights_);
        if (!bias_.empty())
            for (std::size_t row = 0; row < x.rows; ++row)
                add_to({y.data + row * y.stride, bias_.size()}, bias_);
    }

    /// The weights of one output: an embedding's row. (inputs)
    void row(std::size_t output, std::span<float> out) const {
        std::visit([&](const auto& w) { w.row(output, out); }, weights_);
    }

private:
    template <weight_format Weight>
    [[nodiscard]] static packed_matrix<Weight> looking_at(std::size_t outputs, std::size_t inputs,
                                                          const std::shared_ptr<const std::byte>& weights) {
        return {outputs, inputs, reinterpret_cast<const Weight*>(weights.get()), weights};
    }

    std::variant<packed_matrix<float>, packed_matrix<bfloat16>, packed_matrix<half>, int8_matrix> weights_;
    std::vector<float> bias_;
};

} // namespace kvcache

// ---- kvcache/model/weight_names.hpp -------------------------------------------------------------------------------

namespace kvcache {

/// A weight that a model needs: its name in a Hugging Face checkpoint, and its shape.
struct weight_name {
    std::string name = {};
    std::vector<std::size_t> shape = {}; ///< Outermost first; a product's is (out, in).

    friend bool operator==(const weight_name&, const weight_name&) = default;
};

inline constexpr std::string_view embedding_name = "model.embed_tokens.weight";
inline constexpr std::string_view final_norm_name = "model.norm.weight";
inline constexpr std::string_view head_name = "lm_head.weight";

/// The name of a part of layer `layer`: "model.layers.3.self_attn.q_proj.weight" for "self_attn.q_proj.weight".
[[nodiscard]] inline std::string layer_weight_name(std::size_t layer, std::string_view part) {
    return "model.layers." + std::to_string(layer) + "." + std::string(part);
}

/// The weights of layer `layer`, with those biases and norms that `config` has. Requires: layer < config.layers.
[[nodiscard]] inline std::vector<weight_name> layer_weights(const model_config& config, std::size_t layer) {
    expects(layer < config.layers, "a layer is one of the model's");
    const std::size_t hidden = config.hidden_size;
    const std::size_t inner = config.intermediate_size;
    const std::size_t query = config.heads * config.head_dim;
    const std::size_t shared = config.kv_heads * config.head_dim;

    std::vector<weight_name> weights;
    const auto vector = [&](std::string_view part, std::size_t extent) {
        weights.push_back({layer_weight_name(layer, part), {extent}});
    };
    const auto product = [&](const std::string& part, std::size_t out, std::size_t in, bool bias) {
        weights.push_back({layer_weight_name(layer, part + ".weight"), {out, in}});
        if (bias)
            vector(part + ".bias", out);
    };
    vector("input_layernorm.weight", hidden);
    product("self_attn.q_proj", query, hidden, config.qkv_bias);
    product("self_attn.k_proj", shared, hidden, config.qkv_bias);
    product("self_attn.v_proj", shared, hidden, config.qkv_bias);
    if (config.qk_norm) {
        vector("self_attn.q_norm.weight", config.head_dim);
        vector("self_attn.k_norm.weight", config.head_dim);
    }
    product("self_attn.o_proj", hidden, query, config.output_bias);
    vector("post_attention_layernorm.weight", hidden);
    product("mlp.gate_proj", inner, hidden, config.mlp_bias);
    product("mlp.up_proj", inner, hidden, config.mlp_bias);
    product("mlp.down_proj", hidden, inner, config.mlp_bias);
    return weights;
}

/// All weights of a model, in the order of its computation; without lm_head when the head is tied.
[[nodiscard]] inline std::vector<weight_name> weights_of(const model_config& config) {
    std::vector<weight_name> weights;
    weights.push_back({std::string(embedding_name), {config.vocabulary, config.hidden_size}});
    for (std::size_t layer = 0; layer != config.layers; ++layer)
        for (weight_name& weight : layer_weights(config, layer))
            weights.push_back(std::move(weight));
    weights.push_back({std::string(final_norm_name), {config.hidden_size}});
    if (!config.tied_head)
        weights.push_back({std::string(head_name), {config.vocabulary, config.hidden_size}});
    return weights;
}

} // namespace kvcache

// ---- kvcache/model/weight_image.hpp -------------------------------------------------------------------------------

namespace kvcache {

/// Where weights come from: a tensor by its Hugging Face name, of the shape asked for, or why not.
template <class S>
concept weight_source = requires(const S s, std::string_view name, std::initializer_list<std::size_t> shape) {
    { s.tensor(name, shape) } -> std::same_as<result<tensor_view>>;
};

/// Tensors that are kept as one: matrices below one another for one product, or vectors behind one another.
struct weight_group {
    std::vector<weight_name> parts = {};
    bool ends_layer = false; ///< With it, a layer is whole.
};

/// Where a group lies in the image of a model's weights.
struct weight_place {
    dtype format = dtype::f32;
    std::size_t outputs = 0;
    std::size_t inputs = 0; ///< 0 for a vector of `outputs` float32 numbers.
    std::size_t offset = 0; ///< In bytes, a cache line's multiple.
    std::size_t bytes = 0;
};

/// Where all packed weights of a model lie in one block of memory, or in the payload of a file: a function of the
/// groups and of the formats they are stored in.
class weight_layout {
public:
    /// Asks `source` for every tensor, and reads none. Errors: the source's, naming the tensor.
    template <weight_source Source>
    [[nodiscard]] static result<weight_layout> plan(std::vector<weight_group> groups, const Source& source) {
        weight_layout made;
        for (const weight_group& group : groups) {
            auto views = views_of(group, source);
            if (!views)
                return views.error();
            weight_place place{.offset = made.bytes_};
            for (const tensor_view& view : *views)
                place.outputs += view.shape[0];
            if (views->front().shape.size() == 2) {
                place.format = packed_format(*views);
                place.inputs = views->front().shape[1];
                place.bytes = packed_bytes(place.format, place.outputs, place.inputs);
            } else {
                place.bytes = place.outputs * sizeof(float);
            }
            made.bytes_ += (place.bytes + line_bytes - 1) / line_bytes * line_bytes;
            made.places_.push_back(place);
        }
        made.groups_ = std::move(groups);
        return made;
    }

    [[nodiscard]] std::span<const weight_group> groups() const noexcept { return groups_; }
    [[nodiscard]] std::span<const weight_place> places() const noexcept { return places_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    /// Of every group's tensors and place.
    [[nodiscard]] kvcache::digest digest() const {
        digest_builder builder;
        builder.text("kvcache weight layout 1").number(places_.size());
        for (std::size_t i = 0; i < places_.size(); ++i) {
            builder.number(groups_[i].parts.size());
            for (const weight_name& part : groups_[i].parts) {
                builder.text(part.name).number(part.shape.size());
                for (const std::size_t extent : part.shape)
                    builder.number(extent);
            }
            const weight_place& at = places_[i];
            builder.text(name_of(at.format)).number(at.outputs).number(at.inputs).number(at.offset).number(at.bytes);
        }
        return builder.finish();
    }

    /// The tensors of a group. Errors: the source's.
    template <weight_source Source>
    [[nodiscard]] static result<std::vector<tensor_view>> views_of(const weight_group& group, const Source& source) {
        std::vector<tensor_view> views;
        for (const weight_name& part : group.parts) {
            auto view = part.shape.size() == 1 ? source.tensor(part.name, {part.shape[0]})
                                               : source.tensor(part.name, {part.shape[0], part.shape[1]});
            if (!view)
                return view.error();
            views.push_back(std::move(*view));
        }
        return views;
    }

private:
    std::vector<weight_group> groups_;
    std::vector<weight_place> places_;
    std::size_t bytes_ = 0;
};

/// Packs all weights of a layout into `image`, of layout.bytes() on a cache line. `packed(group, views)` is called with
/// each group and its tensors once they are packed, in order. Errors: the source's.
/// Cost: every weight is read once and written once, by all threads.
template <weight_source Source, class Packed>
[[nodiscard]] result<void> pack_weights(const weight_layout& layout, const Source& source, std::span<std::byte> image,
                                        team& threads, Packed packed) {
    expects(image.size() == layout.bytes(), "an image is as long as its layout says");
    for (std::size_t i = 0; i < layout.places().size(); ++i) {
        const weight_place& place = layout.places()[i];
        const auto views = weight_layout::views_of(layout.groups()[i], source);
        if (!views)
            return views.error();
        std::byte* to = image.data() + place.offset;
        if (place.inputs != 0) {
            pack_rows(*views, place.format, to, threads);
        } else {
            for (const tensor_view& view : *views) {
                view.read(0, {reinterpret_cast<float*>(to), view.size()});
                to += view.size() * sizeof(float);
            }
            // What lies before the next cache line is zeros, so that equal weights are equal images.
            const std::size_t end = (place.offset + place.bytes + line_bytes - 1) / line_bytes * line_bytes;
            std::memset(to, 0, end - (place.offset + place.bytes));
        }
        packed(layout.groups()[i], std::span<const tensor_view>(*views));
    }
    return {};
}

/// The packed weights of a model in one block, in memory or in a mapped file, and where each lies.
class weight_image {
public:
    weight_image(weight_layout layout, std::shared_ptr<const std::byte> memory)
        : layout_(std::move(layout)), memory_(std::move(memory)) {}

    [[nodiscard]] const weight_layout& layout() const noexcept { return layout_; }
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {memory_.get(), layout_.bytes()}; }

    /// A copy of group `index`, which must be one of vectors.
    [[nodiscard]] std::vector<float> vector(std::size_t index) const {
        const weight_place& place = layout_.places()[index];
        expects(place.inputs == 0, "a vector is read from a group of vectors");
        std::vector<float> numbers(place.outputs);
        std::memcpy(numbers.data(), memory_.get() + place.offset, place.bytes);
        return numbers;
    }

    /// The product of group `index`, which must be one of matrices. It keeps the block alive.
    [[nodiscard]] linear product(std::size_t index) const {
        const weight_place& place = layout_.places()[index];
        expects(place.inputs != 0, "a product is made from a group of matrices");
        return linear::packed(place.format, place.outputs, place.inputs,
                              std::shared_ptr<const std::byte>(memory_, memory_.get() + place.offset));
    }

private:
    weight_layout layout_;
    std::shared_ptr<const std::byte> memory_;
};

} // namespace kvcache

// ---- kvcache/model/weights.hpp ------------------------------------------------------------------------------------

namespace kvcache {

/// The weights of one block, packed.
struct block_weights {
    std::vector<float> attention_norm; // (hidden)
    linear qkv;                        // (q + k + v, hidden)
    std::vector<float> q_norm;         // (head_dim), empty without QK norm
    std::vector<float> k_norm;         // (head_dim)
    linear output;                     // (hidden, q)
    std::vector<float> mlp_norm;       // (hidden)
    linear gate_up;                    // (2 intermediate, hidden)
    linear down;                       // (hidden, intermediate)
};

/// The weights of a decoder, packed.
struct model_weights {
    linear embedding; // (vocabulary, hidden); empty if the head is tied to it
    std::vector<block_weights> layers;
    std::vector<float> final_norm; // (hidden)
    linear head;                   // (vocabulary, hidden)

    /// The same with every matrix in int8.
    [[nodiscard]] model_weights in_int8(team& threads) const {
        model_weights rounded = *this;
        for (linear* each : {&rounded.embedding, &rounded.head})
            if (each->outputs() > 0)
                *each = each->in_int8(threads);
        for (block_weights& layer : rounded.layers)
            for (linear* each : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
                *each = each->in_int8(threads);
        return rounded;
    }
};

namespace detail {

/// Calls visit.product(to, names, inputs, biased) and visit.vector(to, name, size) for every member of `weights`, in
/// the order of an image; visit.layer_done() behind each layer. A product's names are its matrices', without ".weight".
template <class Visit>
void for_each_weight(const model_config& config, model_weights& weights, Visit visit) {
    const std::size_t hidden = config.hidden_size, inner = config.intermediate_size;
    const std::size_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
    const std::string embedding = "model.embed_tokens";

    visit.product(weights.head, {{config.tied_head ? embedding : "lm_head", config.vocabulary}}, hidden, false);
    if (!config.tied_head)
        visit.product(weights.embedding, {{embedding, config.vocabulary}}, hidden, false);
    visit.vector(weights.final_norm, std::string(final_norm_name), hidden);

    weights.layers.resize(config.layers);
    for (std::size_t i = 0; i < config.layers; ++i) {
        block_weights& layer = weights.layers[i];
        const auto name = [&](std::string_view part) { return layer_weight_name(i, part); };
        visit.vector(layer.attention_norm, name("input_layernorm.weight"), hidden);
        visit.product(layer.qkv,
                      {{name("self_attn.q_proj"), q}, {name("self_attn.k_proj"), kv}, {name("self_attn.v_proj"), kv}},
                      hidden, config.qkv_bias);
        if (config.qk_norm) {
            visit.vector(layer.q_norm, name("self_attn.q_norm.weight"), config.head_dim);
            visit.vector(layer.k_norm, name("self_attn.k_norm.weight"), config.head_dim);
        }
        visit.product(layer.output, {{name("self_attn.o_proj"), hidden}}, q, config.output_bias);
        visit.vector(layer.mlp_norm, name("post_attention_layernorm.weight"), hidden);
        visit.product(layer.gate_up, {{name("mlp.gate_proj"), inner}, {name("mlp.up_proj"), inner}}, hidden,
                      config.mlp_bias);
        visit.product(layer.down, {{name("mlp.down_proj"), hidden}}, inner, config.mlp_bias);
        visit.layer_done();
    }
}

using product_names = std::vector<std::pair<std::string, std::size_t>>; // a matrix, and its outputs

struct group_lister {
    std::vector<weight_group>& groups;

    void product(linear&, const product_names& names, std::size_t inputs, bool biased) {
        weight_group matrices, biases;
        for (const auto& [name, outputs] : names) {
            matrices.parts.push_back({name + ".weight", {outputs, inputs}});
            biases.parts.push_back({name + ".bias", {outputs}});
        }
        groups.push_back(std::move(matrices));
        if (biased)
            groups.push_back(std::move(biases));
    }
    void vector(std::vector<float>&, std::string name, std::size_t size) {
        weight_group one;
        one.parts.push_back({std::move(name), {size}});
        groups.push_back(std::move(one));
    }
    void layer_done() { groups.back().ends_layer = true; }
};

struct image_reader {
    const weight_image& image;
    std::size_t next = 0;

    void product(linear& to, const product_names&, std::size_t, bool biased) {
        to = image.product(next++);
        if (biased)
            to.set_bias(image.vector(next++));
    }
    void vector(std::vector<float>& to, const std::string&, std::size_t) { to = image.vector(next++); }
    void layer_done() {}
};

} // namespace detail

/// The groups of a model's weights, in the order of its image.
[[nodiscard]] inline std::vector<weight_group> weight_groups(const model_config& config) {
    std::vector<weight_group> groups;
    model_weights unused;
    detail::for_each_weight(config, unused, detail::group_lister{groups});
    return groups;
}

/// The weights that an image of weight_groups(config) holds: vectors copied, products in place.
[[nodiscard]] inline model_weights weights_in(const model_config& config, const weight_image& image) {
    model_weights weights;
    detail::for_each_weight(config, weights, detail::image_reader{image});
    return weights;
}

/// Reads all weights of a checkpoint by their Hugging Face names, and packs them into one block taken from `memory`
/// (null: new and delete), on huge pages where the system has them. `packed(group, views)` is called for each group
/// and its tensors once they are packed, `progress(done, of)` after each layer.
/// Errors: the source's, naming the tensor; out_of_memory. Cost: every weight is read and written once, by all threads;
/// one block of layout().bytes(), and nothing beside it that grows with the model.
template <weight_source Source, class Packed, class Progress>
[[nodiscard]] result<weight_image> pack_image(const model_config& config, const Source& source,
                                              std::pmr::memory_resource* memory, team& threads, Packed packed,
                                              Progress progress) {
    auto layout = weight_layout::plan(weight_groups(config), source);
    if (!layout)
        return layout.error();
    std::shared_ptr<std::byte> block;
    try {
        block = shared_memory(layout->bytes(), memory);
    } catch (const std::bad_alloc&) {
        return error{error_code::out_of_memory, "weights",
                     "the packed weights take " + std::to_string(layout->bytes()) + " bytes, which are not to be had"};
    }
    std::size_t layers = 0;
    const auto done = [&](const weight_group& group, std::span<const tensor_view> views) {
        packed(group, views);
        if (group.ends_layer)
            progress(++layers, config.layers);
    };
    if (auto filled = pack_weights(*layout, source, {block.get(), layout->bytes()}, threads, done); !filled)
        return filled.error();
    return weight_image(*std::move(layout), std::move(block));
}

/// The same, ready to compute with. Errors: as pack_image.
template <weight_source Source, class Progress>
[[nodiscard]] result<model_weights> load_weights(const model_config& config, const Source& source, team& threads,
                                                 Progress progress) {
    const auto ignore = [](const weight_group&, std::span<const tensor_view>) {};
    const auto image = pack_image(config, source, nullptr, threads, ignore, progress);
    if (!image)
        return image.error();
    return weights_in(config, *image);
}

/// The same on one thread.
template <weight_source Source, class Progress>
[[nodiscard]] result<model_weights> load_weights(const model_config& config, const Source& source, Progress progress) {
    team alone;
    return load_weights(config, source, alone, progress);
}

} // namespace kvcache

// ---- kvcache/model/forward_pass.hpp -------------------------------------------------------------------------------

namespace kvcache {

/// What a pass reads of its model.
struct model_parts {
    const model_config& config;
    const model_weights& weights;
    attention_shape attention;
};

/// Forward passes over ragged batches of sequences: begin, then layer by layer, then logits. Rows of strangers go
/// through the products together and never meet in a sum. A pass that begins again uses the memory of the one before:
/// nothing is allocated for a batch of no more rows and parts.
template <class Lease>
class forward_pass {
public:
    /// Requires: the model and the threads outlive it.
    forward_pass(const model_parts& model, team& threads)
        : model_(model),
          threads_(threads),
          q_(model.config.heads * model.config.head_dim),
          kv_(model.config.kv_heads * model.config.head_dim),
          x_(model.config.hidden_size),
          normed_(model.config.hidden_size),
          qkv_(q_ + 2 * kv_),
          attended_(q_),
          inner_(2 * model.config.intermediate_size) {}

    /// Embeds the tokens of a batch. Requires: what it points to stays as it is until the logits are made.
    void begin(std::span<const batch_part<Lease>> batch) {
        batch_.assign(batch.begin(), batch.end());
        rows_.clear();
        for (std::size_t p = 0; p < batch_.size(); ++p)
            for (std::size_t i = 0; i < batch_[p].tokens.size(); ++i)
                rows_.push_back({p, i});
        for (activations* each : {&x_, &normed_, &qkv_, &attended_, &inner_})
            each->make_room(rows_.size());
        if (rotations_.size() < rows_.size() * model_.config.head_dim)
            rotations_ = aligned_vector<float>(rows_.size() * model_.config.head_dim);
        embed();
        attention_.deal(model_.attention, batch_,
                        {.queries = qkv_.row(0).data(),
                         .rotations = rotations_.data(),
                         .out = attended_.row(0).data(),
                         .stride = qkv_.stride(),
                         .out_stride = attended_.stride()},
                        threads_);
    }

    /// Makes the keys and values of one block, and writes them nowhere. Behind it, no other block can run.
    void project(layer_id layer) {
        const block_weights& w = model_.weights.layers[index_of(layer)];
        for_rows(x_.columns(), [&](std::size_t row) { norm(row, w.attention_norm); });
        w.qkv.apply(normed_.in(rows_.size()), qkv_.out(), threads_, int8_);
        if (model_.config.qk_norm)
            for_rows(qkv_.columns(), [&](std::size_t row) {
                norm_heads(qkv_.row(row).first(q_), w.q_norm);
                norm_heads(qkv_.row(row).subspan(q_, kv_), w.k_norm);
            });
    }

    /// What `project` made of a row of the batch, not rotated. (kv_heads, head_dim)
    [[nodiscard]] std::span<const float> keys(std::size_t row) { return qkv_.row(row).subspan(q_, kv_); }
    [[nodiscard]] std::span<const float> values(std::size_t row) { return qkv_.row(row).subspan(q_ + kv_); }

    /// Runs one block: writes its keys and values into the leases, and attends to them and all before. A row that its
    /// lease keeps from elsewhere is not written: it asks.
    void forward(layer_id layer) {
        const block_weights& w = model_.weights.layers[index_of(layer)];
        const std::size_t rows = rows_.size(), inner = model_.config.intermediate_size;
        project(layer);
        for_rows(qkv_.columns(), [&](std::size_t row) { place(layer, row); });
        attention_.attend(layer, threads_);
        w.output.apply(attended_.in(rows), normed_.out(), threads_, int8_);
        for_rows(2 * x_.columns(), [&](std::size_t row) {
            add_to(x_.row(row), normed_.row(row));
            norm(row, w.mlp_norm);
        });
        w.gate_up.apply(normed_.in(rows), inner_.out(), threads_, int8_);
        for_rows(4 * inner, [&](std::size_t row) {
            const auto gate = inner_.row(row).first(inner);
            gated_silu(gate, inner_.row(row).subspan(inner), gate);
        });
        w.down.apply(inner_.in(rows), normed_.out(), threads_, int8_);
        for_rows(x_.columns(), [&](std::size_t row) { add_to(x_.row(row), normed_.row(row)); });
    }

    /// How many rows want logits.
    [[nodiscard]] std::size_t wanted() const {
        std::size_t n = 0;
        for (const auto& part : batch_)
            n += part.wanted_rows();
        return n;
    }

    /// Writes the logits of the rows that want them, in batch order. (wanted(), vocabulary)
    void logits(std::span<float> out) {
        const std::size_t wanted_rows = wanted();
        expects(out.size() == wanted_rows * model_.config.vocabulary, "logits have room for the rows that want them");
        std::size_t behind = 0, to = 0; // the rows of the parts so far, and those of them that want logits
        for (const auto& part : batch_) {
            behind += part.tokens.size();
            for (std::size_t row = behind - part.wanted_rows(); row < behind; ++row)
                rms_norm(x_.row(row), model_.weights.final_norm, model_.config.rms_norm_eps, normed_.row(to++));
        }
        model_.weights.head.apply(normed_.in(wanted_rows), {out.data(), model_.config.vocabulary}, threads_, int8_);
    }

private:
    // Where a row of the batch comes from.
    struct origin {
        std::size_t part = 0;
        std::size_t row = 0;
    };

    // What a number of a row costs that is not part of a product, in multiply-adds.
    static constexpr std::size_t operations = 4;

    template <class Body>
    void for_rows(std::size_t columns, Body body) {
        threads_.share(rows_.size(), rows_.size() * columns * operations, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                body(row);
        });
    }

    void embed() {
        const linear& table = model_.config.tied_head ? model_.weights.head : model_.weights.embedding;
        for (const origin& from : rows_)
            expects(static_cast<std::size_t>(index_of(token(from))) < model_.config.vocabulary,
                    "a token is in the vocabulary");
        for_rows(8 * x_.columns(), [&](std::size_t row) {
            const origin& from = rows_[row];
            table.row(static_cast<std::size_t>(index_of(token(from))), x_.row(row));
            model_.attention.rotation->fill(static_cast<std::int64_t>(batch_[from.part].position(from.row)),
                                            rotation(row));
        });
    }

    void norm(std::size_t row, std::span<const float> weight) {
        rms_norm(x_.row(row), weight, model_.config.rms_norm_eps, normed_.row(row));
    }

    // Rotates the keys, and writes keys and values into the pages.
    void place(layer_id layer, std::size_t row) {
        const std::size_t dim = model_.config.head_dim;
        const auto& part = batch_[rows_[row].part];
        const std::size_t to = part.row_of(rows_[row].row);
        if (part.lease->keeps(to))
            return;
        const auto keys = qkv_.row(row).subspan(q_, kv_), values = qkv_.row(row).subspan(q_ + kv_);
        for (std::size_t at = 0; at < kv_; at += dim)
            rotate_head(keys.subspan(at, dim), rotation(row), keys.subspan(at, dim));
        part.lease->write(layer, to, keys, values);
    }

    void norm_heads(std::span<float> heads, std::span<const float> weight) const {
        for (std::size_t at = 0; at < heads.size(); at += weight.size()) {
            const auto head = heads.subspan(at, weight.size());
            rms_norm(head, weight, model_.config.rms_norm_eps, head);
        }
    }

    [[nodiscard]] token_id token(const origin& from) const { return batch_[from.part].tokens[from.row]; }
    [[nodiscard]] std::span<float> rotation(std::size_t row) {
        return {rotations_.data() + row * model_.config.head_dim, model_.config.head_dim};
    }

    model_parts model_;
    team& threads_;
    std::size_t q_;
    std::size_t kv_;
    std::vector<batch_part<Lease>> batch_;
    std::vector<origin> rows_;
    attention_jobs<Lease> attention_;
    activations x_;                   // (rows, hidden): the residual stream
    activations normed_;              // (rows, hidden)
    activations qkv_;                 // (rows, q + 2 kv)
    activations attended_;            // (rows, q)
    activations inner_;               // (rows, 2 intermediate)
    int8_rows int8_;                  // (rows, columns of a product): its rows rounded, where its weights are
    aligned_vector<float> rotations_; // (rows, 2, head_dim / 2)
};

} // namespace kvcache

// ---- kvcache/model/rope_frequencies.hpp ---------------------------------------------------------------------------

namespace kvcache {

/// The rotation a configuration describes, its scaling worked into the frequencies (formulas at rope_config).
[[nodiscard]] inline rope make_rope(const rope_config& config, std::size_t head_dim) {
    constexpr double two_pi = 6.283185307179586;
    std::vector<double> frequencies = rope::standard_frequencies(head_dim, config.theta);
    for (double& f : frequencies) {
        switch (config.scaling) {
        case rope_config::kind::none:
            break;
        case rope_config::kind::linear:
            f /= config.factor;
            break;
        case rope_config::kind::llama3: {
            const double turns = config.original_max_positions * f / two_pi; // over the trained context
            if (turns < config.low_freq_factor) {
                f /= config.factor;
            } else if (turns <= config.high_freq_factor) {
                const double span = config.high_freq_factor - config.low_freq_factor;
                const double s = (turns - config.low_freq_factor) / span;
                f = std::fma(1.0 - s, f / config.factor, s * f);
            }
            break;
        }
        }
    }
    return rope(std::move(frequencies));
}

} // namespace kvcache

// ---- kvcache/model/transformer.hpp --------------------------------------------------------------------------------

namespace kvcache {

/// The reference transformer: a Llama-family decoder whose every reduction has one fixed order (the numeric contract),
/// so that a token's logits depend on its own past alone. Immutable once made; any number of passes may share it.
class transformer {
public:
    transformer(model_config config, model_weights weights)
        : config_(std::move(config)), weights_(std::move(weights)), rope_(make_rope(config_.rope, config_.head_dim)) {
        for (std::size_t i = 0; i < config_.layers; ++i)
            layers_.push_back(layer_id{static_cast<std::uint32_t>(i)});
    }

    [[nodiscard]] const model_config& config() const noexcept { return config_; }
    [[nodiscard]] std::span<const layer_id> layers() const noexcept { return layers_; }
    [[nodiscard]] std::size_t vocabulary() const noexcept { return config_.vocabulary; }

    /// Positions it was trained for; a pipeline refuses to go past them.
    [[nodiscard]] std::size_t max_positions() const noexcept { return config_.max_positions; }

    /// The pages this model needs, `tokens` positions each.
    [[nodiscard]] page_shape shape(std::uint32_t tokens) const {
        return {static_cast<std::uint32_t>(config_.layers), static_cast<std::uint32_t>(config_.kv_heads),
                static_cast<std::uint32_t>(config_.head_dim), tokens};
    }

    /// Whether keys that were rotated for one position can serve at another: where positions only ever rotate.
    /// Errors: unsupported, with what stands against it.
    [[nodiscard]] result<void> keys_can_move() const {
        switch (config_.rope.scaling) {
        case rope_config::kind::none:
        case rope_config::kind::linear:
        case rope_config::kind::llama3:
            return {};
        }
        return error{error_code::unsupported, "rope.scaling",
                     "this scaling of RoPE is not known to be a pure rotation"};
    }
    /// What rotates its queries and keys.
    [[nodiscard]] const rope& rotation() const noexcept { return rope_; }

    /// What makes this model's pages its own; `weights` is the digest of its checkpoint.
    [[nodiscard]] identity id(digest weights) const {
        return {.weights = weights,
                .config = canonical_config(),
                .rope = canonical_rope(),
                .weight_format = weights_.head.format()};
    }

    /// The same model with weights and activations in int8: another model, coarser and half the size of BF16, whose
    /// pages are its own. Cost: every weight is read once, by all threads.
    [[nodiscard]] transformer in_int8(team& threads) const { return {config_, weights_.in_int8(threads)}; }

    /// Forward passes over rows that leases of this type hold. Requires: this and the threads outlive it.
    template <class Lease>
    [[nodiscard]] forward_pass<Lease> passes(team& threads) const {
        return forward_pass<Lease>({config_, weights_, attention()}, threads);
    }

private:
    [[nodiscard]] attention_shape attention() const {
        return {.heads = static_cast<std::uint32_t>(config_.heads),
                .kv_heads = static_cast<std::uint32_t>(config_.kv_heads),
                .head_dim = static_cast<std::uint32_t>(config_.head_dim),
                .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                .rotation = &rope_};
    }

    [[nodiscard]] std::string canonical_config() const {
        std::string text = config_.architecture;
        for (const std::size_t extent : {config_.hidden_size, config_.intermediate_size, config_.layers, config_.heads,
                                         config_.kv_heads, config_.head_dim, config_.vocabulary})
            text += ' ' + std::to_string(extent);
        for (const bool flag :
             {config_.tied_head, config_.qkv_bias, config_.output_bias, config_.mlp_bias, config_.qk_norm})
            text += flag ? " 1" : " 0";
        return text + ' ' + std::to_string(std::bit_cast<std::uint32_t>(config_.rms_norm_eps));
    }

    // In words for people; what decides are the frequencies.
    [[nodiscard]] std::string canonical_rope() const {
        static constexpr const char* kinds[] = {"none", "linear", "llama3"};
        digest_builder numbers;
        for (const double f : rope_.frequencies())
            numbers.number(std::bit_cast<std::uint64_t>(f));
        char theta[32]; // as no locale writes it
        const auto end = std::to_chars(std::begin(theta), std::end(theta), config_.rope.theta).ptr;
        return "theta " + std::string(theta, end) + ", scaling " +
               kinds[static_cast<std::size_t>(config_.rope.scaling)] + ", frequencies " + to_string(numbers.finish());
    }

    model_config config_;
    model_weights weights_;
    rope rope_;
    std::vector<layer_id> layers_;
};

} // namespace kvcache

// ---- kvcache/observer/counting.hpp --------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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
        try {
            if (how_.write)
                how_.write("\n]\n");
        } catch (...) { // a trace that cannot be closed is still read
        }
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

namespace kvcache {

/// Every observer policy of the library, with its standard options.
using observer_policies = std::tuple<silent, counting, events, metrics, tracing>;

} // namespace kvcache

// ---- kvcache/recompute/all_or_nothing.hpp -------------------------------------------------------------------------

namespace kvcache {

/// Reuses a known text only where the prompt goes on behind its end: one edited token, and everything runs (DarkHal's
/// chat sessions). Exact, and never better than `exact_prefix`: for comparisons.
struct all_or_nothing {
    using role = recompute_role;
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class all_or_nothing::state : public exact_prefix::state {
public:
    using exact_prefix::state::first_rerun;
    [[nodiscard]] std::size_t first_rerun(std::size_t hit, std::size_t total, bool differs) const noexcept {
        return differs ? 0 : first_rerun(hit, total);
    }
};

inline all_or_nothing::state all_or_nothing::open(page_shape) const {
    return {};
}

static_assert(recompute_policy<all_or_nothing> && edit_recompute_state<all_or_nothing::state>);

} // namespace kvcache

// ---- kvcache/recompute/furthest_off.hpp ---------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

// ---- kvcache/recompute/random_rows.hpp ----------------------------------------------------------------------------

namespace kvcache {

/// Runs a share of the reused tokens again that are drawn by lot: what any choice has to beat. The lots are a function
/// of the seed and the token's position.
struct random_rows {
    using role = recompute_role;
    double fraction = 0.15; ///< Of the reused tokens.
    std::uint64_t seed = 1;
    class state;
    [[nodiscard]] state open(page_shape shape) const;
};

class random_rows::state : public exact_prefix::state {
public:
    state(double fraction, std::uint64_t seed) : fraction_(fraction), seed_(seed) {}

    void select(std::span<const reused_run> runs, std::vector<std::size_t>& positions) const {
        std::vector<std::pair<std::uint64_t, std::size_t>> lots;
        for (const reused_run& run : runs)
            for (std::size_t at = run.first; at < run.first + run.count; ++at) {
                const std::array<std::uint64_t, 1> drawn{at};
                lots.emplace_back(seeded_hash(seed_, std::as_bytes(std::span(drawn))), at);
            }
        std::ranges::sort(lots);
        lots.resize(static_cast<std::size_t>(std::clamp(fraction_, 0.0, 1.0) * static_cast<double>(lots.size())));
        const std::size_t old = positions.size();
        for (const auto& lot : lots)
            positions.push_back(lot.second);
        std::sort(positions.begin() + static_cast<std::ptrdiff_t>(old), positions.end());
    }

private:
    double fraction_;
    std::uint64_t seed_;
};

inline random_rows::state random_rows::open(page_shape) const {
    return {fraction, seed};
}

static_assert(recompute_policy<random_rows> && chunk_recompute_state<random_rows::state>);

} // namespace kvcache

// ---- kvcache/recompute/seam.hpp -----------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

/// Every recompute policy of the library, with its standard options.
using recompute_policies =
    std::tuple<exact_prefix, all_or_nothing, none, seam, head, blend, gradual_blend, random_rows, everything>;

} // namespace kvcache

// ---- kvcache/session/token_counts.hpp -----------------------------------------------------------------------------

namespace kvcache {

/// How often tokens were said in an answer, and which stood in its prompt: what the penalties of a sampler go by.
class token_counts {
public:
    struct count {
        token_id token = {};
        bool in_prompt = false;
        std::uint32_t said = 0; ///< Times in the answer.
    };

    /// Nothing was said yet.
    token_counts() = default;
    explicit token_counts(std::span<const token_id> prompt) {
        for (const token_id token : prompt)
            of(token).in_prompt = true;
    }

    /// The answer goes on with `token`. Cost: O(1).
    void say(token_id token) { ++of(token).said; }

    /// Every token that occurs, once, in the order of its first place.
    [[nodiscard]] std::span<const count> all() const noexcept { return counts_; }

private:
    [[nodiscard]] count& of(token_id token) {
        const auto [at, is_new] = places_.try_emplace(index_of(token), counts_.size());
        if (is_new)
            counts_.push_back({.token = token});
        return counts_[at->second];
    }

    std::vector<count> counts_;
    std::unordered_map<std::int32_t, std::size_t> places_;
};

} // namespace kvcache

// ---- kvcache/session/sampler.hpp ----------------------------------------------------------------------------------

namespace kvcache {

/// What is added to a token's logit.
struct token_bias {
    token_id token = {};
    float bias = 0.0f; ///< Minus infinity: never said.
};

/// Chooses tokens from logits. Token i of choice c is drawn with a number that is a function of (seed, c, i) alone, so
/// neither batching nor a cancelled draft changes what is said. In this order: bias, penalties, temperature, top_k,
/// top_p of what is left, min_p. A limit that cuts nothing changes no draw.
struct sampler {
    float temperature = 0.0f; ///< Zero or less: always the most likely token.
    std::uint64_t seed = 0;
    std::uint64_t choice = 0;        ///< Which of several answers to one prompt.
    std::size_t top_k = 0;           ///< Only the k likeliest, of equals the first; zero for all.
    float top_p = 1.0f;              ///< Only the fewest likeliest with this share together (Holtzman et al. 2020).
    float min_p = 0.0f;              ///< Only those with this share of the likeliest's probability.
    float repetition_penalty = 1.0f; ///< Divides the logits of what was said or asked (Keskar et al. 2019).
    float frequency_penalty = 0.0f;  ///< Taken from a logit for each time the answer said the token.
    float presence_penalty = 0.0f;   ///< Taken from a logit if the answer said the token.
    std::vector<token_bias> bias = {};

    /// Whether the options are of this world. Errors: out_of_range, with the option's name.
    [[nodiscard]] result<void> check(std::size_t vocabulary) const {
        const auto refuse = [](const char* field, const char* must) {
            return error{error_code::out_of_range, field, std::string(field) + " must be " + must};
        };
        if (!std::isfinite(temperature) || temperature < 0.0f)
            return refuse("temperature", "zero or more");
        if (!(top_p > 0.0f && top_p <= 1.0f))
            return refuse("top_p", "above 0 and at most 1");
        if (!(min_p >= 0.0f && min_p <= 1.0f))
            return refuse("min_p", "from 0 to 1");
        if (!std::isfinite(repetition_penalty) || !(repetition_penalty > 0.0f))
            return refuse("repetition_penalty", "above 0");
        if (!std::isfinite(frequency_penalty))
            return refuse("frequency_penalty", "a number");
        if (!std::isfinite(presence_penalty))
            return refuse("presence_penalty", "a number");
        for (const token_bias& one : bias) {
            if (index_of(one.token) < 0 || static_cast<std::size_t>(index_of(one.token)) >= vocabulary)
                return refuse("logit_bias", "for tokens of the vocabulary");
            if (!(one.bias < std::numeric_limits<float>::infinity()))
                return refuse("logit_bias", "a number, or minus infinity");
        }
        return {};
    }

    /// Whether a draw depends on what was said before.
    [[nodiscard]] bool penalises() const noexcept {
        return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
    }

    /// The token at place `index` of the answer. Requires: logits is not empty. Cost: O(vocabulary).
    [[nodiscard]] token_id draw(std::span<const float> logits, std::uint64_t index) const {
        return draw(logits, index, token_counts());
    }
    /// The same after what `before` counts.
    [[nodiscard]] token_id draw(std::span<const float> logits, std::uint64_t index, const token_counts& before) const {
        expects(!logits.empty(), "a token is drawn from logits");
        if (bias.empty() && !penalises())
            return pick(logits, index);
        std::vector<float> adjusted(logits.begin(), logits.end());
        adjust(adjusted, before);
        return pick(adjusted, index);
    }

    /// The number in [0, 1) that decides place `index`.
    [[nodiscard]] double uniform(std::uint64_t index) const noexcept {
        const std::uint64_t bits = mix(mix(mix(seed) ^ choice) ^ index);
        return static_cast<double>(bits >> 11) * 0x1p-53;
    }

private:
    // The finaliser of splitmix64 (Steele, Lea & Flood 2014).
    [[nodiscard]] static std::uint64_t mix(std::uint64_t x) noexcept {
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }

    // Products are fused on purpose: their bits do not hang on the compiler's -ffp-contract.
    void adjust(std::span<float> logits, const token_counts& before) const {
        for (const token_bias& one : bias)
            if (static_cast<std::size_t>(index_of(one.token)) < logits.size())
                logits[static_cast<std::size_t>(index_of(one.token))] += one.bias;
        if (!penalises())
            return;
        for (const auto& seen : before.all()) {
            if (static_cast<std::size_t>(index_of(seen.token)) >= logits.size())
                continue;
            float& logit = logits[static_cast<std::size_t>(index_of(seen.token))];
            logit = logit > 0.0f ? logit / repetition_penalty : logit * repetition_penalty;
            if (seen.said > 0)
                logit = std::fma(-frequency_penalty, static_cast<float>(seen.said), logit - presence_penalty);
        }
    }

    [[nodiscard]] token_id pick(std::span<const float> logits, std::uint64_t index) const {
        const auto top = std::max_element(logits.begin(), logits.end());
        const auto best = static_cast<std::int32_t>(top - logits.begin());
        if (!(temperature > 0.0f) || !std::isfinite(*top))
            return token_id{best};

        std::vector<float> weights(logits.size());
        const f32x16 scale = f32x16::broadcast(1.0f / temperature), largest = f32x16::broadcast(*top);
        detail::by_sixteen(logits.size(), [&](std::size_t i, std::size_t n) {
            const f32x16 x = f32x16::load_up_to(logits.data() + i, n);
            exp((x - largest) * scale).store_up_to(weights.data() + i, n);
        });
        if ((top_k > 0 && top_k < logits.size()) || top_p < 1.0f || min_p > 0.0f)
            limit(logits, weights);
        double total = 0.0;
        for (const float w : weights)
            total += static_cast<double>(w);
        const double target = uniform(index) * total;
        double below = 0.0; // compared with the target, not taken from it: nothing to contract
        for (std::size_t i = 0; i < weights.size(); ++i) {
            below += static_cast<double>(weights[i]);
            if (target < below)
                return token_id{static_cast<std::int32_t>(i)};
        }
        return token_id{best};
    }

    // Takes the weight of every token that the limits cut. The likeliest always stays.
    void limit(std::span<const float> logits, std::span<float> weights) const {
        std::vector<std::uint32_t> kept(logits.size());
        std::iota(kept.begin(), kept.end(), 0u);
        const auto likelier = [&](std::uint32_t a, std::uint32_t b) {
            return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
        };
        if (top_k > 0 && top_k < kept.size()) {
            std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(top_k) - 1, kept.end(), likelier);
            kept.resize(top_k);
            std::ranges::sort(kept);
        }
        if (top_p < 1.0f) {
            double total = 0.0;
            for (const std::uint32_t i : kept)
                total += static_cast<double>(weights[i]);
            const double enough = static_cast<double>(top_p) * total;
            const auto later = [&](std::uint32_t a, std::uint32_t b) { return likelier(b, a); };
            std::ranges::make_heap(kept, later);
            auto end = kept.end();
            for (double share = 0.0; end != kept.begin() && share < enough;) {
                std::pop_heap(kept.begin(), end--, later);
                share += static_cast<double>(weights[*end]);
            }
            kept.erase(kept.begin(), end);
        }
        std::vector<float> cut(weights.size(), 0.0f);
        for (const std::uint32_t i : kept)
            if (weights[i] >= min_p) // the likeliest weighs one
                cut[i] = weights[i];
        std::ranges::copy(cut, weights.begin());
    }
};

} // namespace kvcache

// ---- kvcache/session/answering.hpp --------------------------------------------------------------------------------

namespace kvcache {

/// When an answer ends.
struct stopping {
    std::size_t max_tokens = 256;    ///< Or as many as the model has positions for.
    std::vector<token_id> stop = {}; ///< Ends the answer, and is its last token.
};

/// Draws an answer's tokens, and knows when it ends. The caller runs each token but the last, which has no keys.
/// Requires: `draw` and `until` outlive it.
class answering {
public:
    /// Of a prompt for which the model has `positions` positions in all.
    answering(const sampler& draw, const stopping& until, std::span<const token_id> prompt, std::size_t positions)
        : draw_(draw), until_(until), most_(std::min(until.max_tokens, positions - prompt.size() + 1)) {
        if (draw.penalises())
            counts_ = token_counts(prompt);
    }

    /// Whether no further token is drawn.
    [[nodiscard]] bool over() const noexcept { return stopped_ || drawn_ >= most_; }
    /// Whether a stop token ended it.
    [[nodiscard]] bool stopped() const noexcept { return stopped_; }

    /// The next token, from the logits of the one before it, (vocabulary). Requires: !over().
    /// Errors: malformed, for a logit that is no finite number. Cost: O(vocabulary).
    [[nodiscard]] result<token_id> next(std::span<const float> logits) {
        if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }))
            return error{error_code::malformed, "logits",
                         "the model gave a logit that is no finite number; its weights are damaged"};
        const token_id token = draw_.draw(logits, drawn_++, counts_);
        if (draw_.penalises())
            counts_.say(token);
        stopped_ = std::ranges::find(until_.stop, token) != until_.stop.end();
        return token;
    }

private:
    const sampler& draw_;
    const stopping& until_;
    std::size_t most_;
    std::size_t drawn_ = 0;
    bool stopped_ = false;
    token_counts counts_;
};

} // namespace kvcache

// ---- kvcache/core/tensor.hpp --------------------------------------------------------------------------------------

#include <Eigen/Core>

namespace kvcache {

/// A dense row-major matrix of float32. (rows, columns)
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Somebody else's row-major matrix, to read. (rows, columns)
using matrix_view = Eigen::Ref<const matrix>;

/// Row `row` of `m` as contiguous numbers. (columns)
[[nodiscard]] inline std::span<const float> row_of(const matrix& m, std::size_t row) {
    return {m.data() + row * static_cast<std::size_t>(m.cols()), static_cast<std::size_t>(m.cols())};
}
[[nodiscard]] inline std::span<float> row_of(matrix& m, std::size_t row) {
    return {m.data() + row * static_cast<std::size_t>(m.cols()), static_cast<std::size_t>(m.cols())};
}

} // namespace kvcache

// ---- kvcache/session/log_probabilities.hpp ------------------------------------------------------------------------

namespace kvcache {

/// A token and the natural logarithm of its probability.
struct token_score {
    token_id token = {};
    float log_probability = 0.0f;

    friend bool operator==(const token_score&, const token_score&) = default;
};

namespace detail {

/// The natural logarithm of a positive normal number, within a few units in the last place: the same bits from every
/// C library.
[[nodiscard]] inline double logarithm(double x) {
    int exponent = 0;
    double m = std::frexp(x, &exponent); // exact; [0.5, 1)
    if (m < 0.70710678118654752) {
        m += m;
        --exponent;
    }
    // 2 atanh s by its series; s is at most 0.1716, so the term after the last is under 1e-18.
    const double s = (m - 1.0) / (m + 1.0), square = s * s;
    double series = 1.0 / 23.0;
    for (int odd = 21; odd >= 1; odd -= 2)
        series = std::fma(series, square, 1.0 / odd);
    return std::fma(static_cast<double>(exponent), 0.69314718055994531, (s + s) * series);
}

} // namespace detail

/// What the model gives each token, before any bias, penalty or temperature. Requires: the logits stay where they are.
class log_probabilities {
public:
    /// Cost: O(vocabulary), one exponential each.
    explicit log_probabilities(std::span<const float> logits) : logits_(logits) {
        expects(!logits.empty(), "probabilities are those of some tokens");
        const float top = *std::max_element(logits.begin(), logits.end());
        const f32x16 largest = f32x16::broadcast(top);
        double total = 0.0;
        alignas(64) float lanes[16];
        detail::by_sixteen(logits.size(), [&](std::size_t i, std::size_t n) {
            exp(f32x16::load_up_to(logits.data() + i, n) - largest).store(lanes);
            for (std::size_t lane = 0; lane < n; ++lane)
                total += static_cast<double>(lanes[lane]);
        });
        log_total_ = static_cast<double>(top) + detail::logarithm(total);
    }

    [[nodiscard]] float of(token_id token) const { return static_cast<float>(precise(token)); }
    /// As of, before it is rounded: for sums.
    [[nodiscard]] double precise(token_id token) const {
        expects(static_cast<std::size_t>(index_of(token)) < logits_.size(), "a token has a logit");
        return static_cast<double>(logits_[static_cast<std::size_t>(index_of(token))]) - log_total_;
    }

    /// The `n` likeliest, in order; of equals the first.
    [[nodiscard]] std::vector<token_score> top(std::size_t n) const {
        std::vector<std::int32_t> ids(logits_.size());
        std::iota(ids.begin(), ids.end(), 0);
        const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(n, ids.size()));
        std::partial_sort(ids.begin(), end, ids.end(), [&](std::int32_t a, std::int32_t b) {
            const float x = logits_[static_cast<std::size_t>(a)], y = logits_[static_cast<std::size_t>(b)];
            return x != y ? x > y : a < b;
        });
        std::vector<token_score> made;
        for (auto at = ids.begin(); at != end; ++at)
            made.push_back({token_id{*at}, of(token_id{*at})});
        return made;
    }

private:
    std::span<const float> logits_;
    double log_total_ = 0.0;
};

} // namespace kvcache

// ---- kvcache/session/pipeline.hpp ---------------------------------------------------------------------------------

namespace kvcache {

/// A prompt that has run: its sequence, to be continued, and the logits that were asked for.
template <class Cache>
struct fed {
    typename Cache::sequence sequence;
    matrix logits;             ///< (rows wanted, vocabulary)
    std::size_t reused = 0;    ///< Tokens whose keys and values were known.
    std::size_t prefilled = 0; ///< Tokens that ran.
    std::string explanation;   ///< Why no more was known.
};

/// Tokens to run behind a sequence.
template <class Cache>
struct extension {
    typename Cache::sequence* sequence = nullptr;
    std::span<const token_id> tokens = {};
    logits_of wanted = logits_of::last;
};

/// Tokens in, logits out: match, plan, reserve, forward, commit. The bits of a row's logits are the same whatever was
/// reused, however the prompt is split, whoever shares the batch, on any number of threads. One call at a time.
template <class Cache, class Model>
class pipeline {
public:
    using lease = typename Cache::lease;

    /// At most `split` rows run in one forward pass; the scratch memory grows with it, the bits do not change.
    pipeline(Cache& cache, const Model& model, team& threads, std::size_t split = 256)
        : cache_(cache), model_(model), split_(split), pass_(model.template passes<lease>(threads)) {
        expects(split > 0, "a forward pass has at least one row");
    }

    /// Runs a prompt on top of what the cache knows of it.
    /// Errors: out_of_range, for no token, one outside the vocabulary, or more than the model has positions;
    /// out_of_memory. Nothing has changed then.
    [[nodiscard]] result<fed<Cache>> feed(std::span<const token_id> tokens, logits_of wanted = logits_of::last) {
        if (auto valid = check(0, tokens); !valid)
            return valid.error();
        auto found = cache_.match(tokens);     // index: the longest known run, and why it ended
        const rerun plan = cache_.plan(found); // recompute: which tokens still run
        std::string explanation = found.explain();
        auto sequence = cache_.open(std::move(found), plan); // the known pages, shared
        auto logits = extend(sequence, tokens.subspan(plan.first), wanted);
        if (!logits)
            return logits.error();
        return fed<Cache>{std::move(sequence), std::move(*logits), plan.first, plan.count, std::move(explanation)};
    }

    /// Runs tokens behind a sequence. Errors: as feed; the sequence is as before.
    [[nodiscard]] result<matrix> extend(typename Cache::sequence& sequence, std::span<const token_id> tokens,
                                        logits_of wanted = logits_of::last) {
        matrix logits;
        if (auto ran = extend(sequence, tokens, wanted, logits); !ran)
            return ran.error();
        return logits;
    }

    /// As above, into `logits`, which is given the shape: where it has it already, and the sequence has room, a token
    /// allocates nothing.
    [[nodiscard]] result<void> extend(typename Cache::sequence& sequence, std::span<const token_id> tokens,
                                      logits_of wanted, matrix& logits) {
        const extension<Cache> one{&sequence, tokens, wanted};
        return extend(std::span(&one, 1), logits);
    }

    /// Runs tokens behind several different sequences in shared forward passes. (rows wanted, vocabulary), in order.
    /// Tokens may be those of the sequences themselves. Errors, and what is thrown: as feed; every sequence is as
    /// before.
    [[nodiscard]] result<matrix> extend(std::span<const extension<Cache>> batch) {
        matrix logits;
        if (auto ran = extend(batch, logits); !ran)
            return ran.error();
        return logits;
    }

    /// As above, into `logits`.
    [[nodiscard]] result<void> extend(std::span<const extension<Cache>> batch, matrix& logits) {
        const ending at_the_end{leases_};
        if (auto reserved = reserve(batch); !reserved) // storage: pages; eviction says which leave
            return reserved;
        run(batch, logits);
        for (std::size_t i = 0; i < batch.size(); ++i)
            leases_[i].commit(batch[i].tokens); // none fails: all of the batch is committed, or nothing was
        return {};
    }

    /// Whether tokens can run behind `before` others. Errors: out_of_range.
    [[nodiscard]] result<void> check(std::size_t before, std::span<const token_id> tokens) const {
        if (tokens.empty())
            return error{error_code::out_of_range, "tokens", "there is no token to run"};
        if (tokens.size() > max_positions() - std::min(before, max_positions()))
            return error{error_code::out_of_range, "max_positions",
                         std::to_string(before + tokens.size()) + " tokens are past the model's " +
                             std::to_string(max_positions()) + " positions"};
        for (const token_id token : tokens)
            if (index_of(token) < 0 || static_cast<std::size_t>(index_of(token)) >= model_.vocabulary())
                return error{error_code::out_of_range, "tokens",
                             "token " + std::to_string(index_of(token)) + " is outside the vocabulary of " +
                                 std::to_string(model_.vocabulary())};
        return {};
    }

    /// Positions the model can tell apart.
    [[nodiscard]] std::size_t max_positions() const noexcept { return model_.max_positions(); }

private:
    // Takes back, however a call ends, the leases that were not committed.
    struct ending {
        std::vector<lease>& leases;
        ~ending() { leases.clear(); }
    };

    // A lease for each of the batch. Errors: some have none.
    [[nodiscard]] result<void> reserve(std::span<const extension<Cache>> batch) {
        for (const auto& one : batch) {
            if (auto valid = check(one.sequence->size(), one.tokens); !valid)
                return valid;
            auto reserved = cache_.reserve(*one.sequence, one.tokens.size(), split_);
            if (!reserved)
                return reserved.error();
            leases_.push_back(std::move(*reserved));
        }
        return {};
    }

    // All rows of the batch in passes of at most split_ rows, in order.
    void run(std::span<const extension<Cache>> batch, matrix& logits) {
        std::size_t wanted = 0;
        for (const auto& one : batch)
            wanted += batch_part<lease>{nullptr, 0, one.tokens, one.wanted}.wanted_rows();
        logits.resize(static_cast<Eigen::Index>(wanted), static_cast<Eigen::Index>(model_.vocabulary()));
        float* to = logits.data();
        parts_.clear();
        std::size_t rows = 0;
        for (std::size_t i = 0; i < batch.size(); ++i)
            for (std::size_t row = 0; row < batch[i].tokens.size();) {
                const std::size_t n = std::min(batch[i].tokens.size() - row, split_ - rows);
                const bool last = row + n == batch[i].tokens.size();
                const logits_of which = batch[i].wanted == logits_of::last && !last ? logits_of::none : batch[i].wanted;
                parts_.push_back({&leases_[i], row, batch[i].tokens.subspan(row, n), which});
                row += n;
                rows += n;
                if (rows == split_) {
                    to = forward(to);
                    rows = 0;
                }
            }
        if (!parts_.empty())
            forward(to);
    }

    // Runs the parts and forgets them. Returns where the logits end.
    float* forward(float* logits) {
        pass_.begin(parts_);
        for (const layer_id layer : model_.layers())
            pass_.forward(layer); // codec writes, attention reads the pages
        std::size_t numbers = 0;
        for (const auto& part : parts_)
            numbers += part.wanted_rows() * model_.vocabulary();
        pass_.logits({logits, numbers});
        parts_.clear();
        return logits + numbers;
    }

    Cache& cache_;
    const Model& model_;
    std::size_t split_;
    decltype(std::declval<const Model&>().template passes<lease>(std::declval<team&>())) pass_;
    std::vector<lease> leases_; // of the call that runs
    std::vector<batch_part<lease>> parts_;
};

} // namespace kvcache

// ---- kvcache/session/beam_search.hpp ------------------------------------------------------------------------------

namespace kvcache {

/// How widely answers are searched, and how they are ranked.
struct beam_options {
    std::size_t beams = 4;       ///< Unended answers that are followed at once.
    std::size_t best = 1;        ///< Answers wanted.
    double length_penalty = 1.0; ///< The score is the log-probability over the length to this power.
};

/// An answer that was found.
struct beam_answer {
    std::vector<token_id> ids = {};
    double log_probability = 0.0; ///< Of all its tokens, the stop token too, by the model's own logits.
    double score = 0.0;
    bool stopped = false; ///< By a stop token, not by the length.
};

/// The likeliest answers that were found, best first, and what the prompt took.
struct beam_answers {
    std::vector<beam_answer> answers = {}; ///< As many as were wanted, or fewer if fewer were met.
    std::size_t reused = 0;                ///< Tokens of the prompt.
    std::size_t prefilled = 0;             ///< Tokens of the prompt.
};

namespace detail {

// Unended answers of one length, each with a sequence of its own that shares the pages of what it has in common.
template <class Cache, class Model>
class beam_search {
public:
    beam_search(pipeline<Cache, Model>& through, std::span<const token_id> prompt, const stopping& until,
                const beam_options& how)
        : through_(through),
          until_(until),
          how_(how),
          prompt_(prompt.size()),
          most_(std::min(until.max_tokens, through.max_positions() - prompt.size() + 1)) {}

    [[nodiscard]] result<std::vector<beam_answer>> run(std::span<const token_id> prompt,
                                                       typename Cache::sequence sequence, matrix logits) {
        beams_.push_back({{prompt.begin(), prompt.end()}, 0.0, std::move(sequence)});
        for (std::size_t length = 0; length < most_; ++length) {
            auto chosen = choose(logits);
            if (!chosen)
                return chosen.error();
            if (chosen->empty() || hopeless(chosen->front().sum, length + 1)) {
                beams_.clear();
                break;
            }
            follow(*chosen);
            if (length + 1 == most_)
                break; // the last tokens are said and never run
            std::vector<extension<Cache>> batch;
            for (beam& each : beams_)
                batch.push_back(
                    {&each.sequence, std::span(each.tokens).subspan(each.sequence.size()), logits_of::last});
            if (auto ran = through_.extend(batch, logits); !ran)
                return ran.error();
        }
        for (const beam& each : beams_)
            keep({each.tokens.begin() + static_cast<std::ptrdiff_t>(prompt_), each.tokens.end()}, each.sum, false);
        return std::move(found_);
    }

private:
    struct beam {
        std::vector<token_id> tokens; // the prompt and the answer so far
        double sum;
        typename Cache::sequence sequence;
    };
    struct step {
        std::size_t from; // beam
        token_id token;
        double sum;
    };

    // The likeliest steps, in order; of equals that of the first beam, then the one with the larger logit, then the
    // first token. Those with a stop token that come before the last of them end their answers.
    [[nodiscard]] result<std::vector<step>> choose(const matrix& logits) {
        std::vector<step> all, made;
        for (std::size_t i = 0; i < beams_.size(); ++i) {
            const auto row = row_of(logits, i);
            if (!std::ranges::all_of(row, [](float x) { return std::isfinite(x); }))
                return error{error_code::malformed, "logits",
                             "the model gave a logit that is no finite number; its weights are damaged"};
            const log_probabilities scores(row);
            for (const token_score& each : scores.top(how_.beams + until_.stop.size()))
                all.push_back({i, each.token, beams_[i].sum + scores.precise(each.token)});
        }
        std::ranges::stable_sort(all, [](const step& a, const step& b) { return a.sum > b.sum; });
        for (const step& each : all) {
            if (made.size() == how_.beams)
                break;
            if (std::ranges::find(until_.stop, each.token) == until_.stop.end()) {
                made.push_back(each);
                continue;
            }
            std::vector<token_id> ids(beams_[each.from].tokens.begin() + static_cast<std::ptrdiff_t>(prompt_),
                                      beams_[each.from].tokens.end());
            ids.push_back(each.token);
            keep(std::move(ids), each.sum, true);
        }
        return made;
    }

    // A beam's last step takes its sequence over, the others share its pages.
    void follow(const std::vector<step>& steps) {
        std::vector<beam> next;
        for (std::size_t i = 0; i < steps.size(); ++i) {
            beam& from = beams_[steps[i].from];
            const bool last = std::none_of(steps.begin() + static_cast<std::ptrdiff_t>(i) + 1, steps.end(),
                                           [&](const step& later) { return later.from == steps[i].from; });
            next.push_back({from.tokens, steps[i].sum,
                            last ? std::move(from.sequence) : from.sequence.fork(from.sequence.size())});
            next.back().tokens.push_back(steps[i].token);
        }
        beams_ = std::move(next);
    }

    void keep(std::vector<token_id> ids, double sum, bool stopped) {
        const double score = score_of(sum, ids.size());
        const auto place = std::ranges::find_if(found_, [&](const beam_answer& other) { return other.score < score; });
        if (place == found_.end() && found_.size() == how_.best)
            return;
        found_.insert(place, {std::move(ids), sum, score, stopped});
        found_.resize(std::min(found_.size(), how_.best));
    }

    // Whether nothing that goes on from an answer of this length can be among the best.
    [[nodiscard]] bool hopeless(double sum, std::size_t length) const {
        return found_.size() == how_.best && length < most_ &&
               score_of(sum, how_.length_penalty >= 0.0 ? most_ : length + 1) <= found_.back().score;
    }

    [[nodiscard]] double score_of(double sum, std::size_t length) const {
        return length == 0 ? sum : sum / std::pow(static_cast<double>(length), how_.length_penalty);
    }

    pipeline<Cache, Model>& through_;
    const stopping& until_;
    const beam_options& how_;
    std::size_t prompt_;
    std::size_t most_;
    std::vector<beam> beams_;
    std::vector<beam_answer> found_;
};

} // namespace detail

/// Runs a prompt on top of what the cache knows of it, and searches its likeliest answers: of all that go on with one
/// token the `beams` likeliest are followed, in one forward pass a token, until no better answer can come of them.
/// Log-probabilities are summed in double precision. Errors: those of pipeline::feed; no page is kept then, nor after.
/// Requires: beams > 0, best > 0. Cost: `beams` rows a token; pages are shared up to where answers part.
template <class Cache, class Model>
[[nodiscard]] result<beam_answers> search_beams(pipeline<Cache, Model>& through, std::span<const token_id> prompt,
                                                const stopping& until, const beam_options& how) {
    expects(how.beams > 0 && how.best > 0, "a search follows at least one answer, and gives one");
    auto begun = through.feed(prompt);
    if (!begun)
        return begun.error();
    beam_answers made{.reused = begun->reused, .prefilled = begun->prefilled};
    auto found = detail::beam_search<Cache, Model>(through, prompt, until, how)
                     .run(prompt, std::move(begun->sequence), std::move(begun->logits));
    if (!found)
        return found.error();
    made.answers = std::move(*found);
    return made;
}

} // namespace kvcache

// ---- kvcache/index/chunking.hpp -----------------------------------------------------------------------------------

namespace kvcache {

/// Consecutive tokens of a text.
struct token_run {
    std::size_t first = 0;
    std::size_t count = 0;

    friend bool operator==(const token_run&, const token_run&) = default;
};

/// Where a text is cut into chunks: before every document's marker; then after so many tokens, or after the nearest
/// token that ends a sentence, if one is near.
struct chunking {
    std::size_t size = 128;            ///< Tokens of a chunk; zero for whole documents.
    std::size_t least = 32;            ///< No sentence's end makes a chunk shorter than this.
    std::size_t window = 0;            ///< How far from `size` a sentence's end is looked for; at most half of it.
    std::vector<token_id> ends = {};   ///< Tokens that end a sentence: those of ". \n ; ? !". Sorted.
    std::vector<token_id> marker = {}; ///< Tokens that a document begins with; empty for none.

    /// The chunks, which lie end to end and cover the text. Cost: O(n log ends).
    [[nodiscard]] std::vector<token_run> split(std::span<const token_id> text) const {
        expects(std::ranges::is_sorted(ends), "the tokens that end a sentence are sorted");
        std::vector<token_run> chunks;
        for (std::size_t first = 0, behind; first < text.size(); first = behind) {
            behind = next_document(text, first);
            cut(text, first, behind, chunks);
        }
        return chunks;
    }

private:
    // Where the next document begins, or the text ends.
    [[nodiscard]] std::size_t next_document(std::span<const token_id> text, std::size_t first) const {
        if (marker.empty())
            return text.size();
        const auto rest = text.subspan(first + 1);
        return first + 1 +
               static_cast<std::size_t>(std::search(rest.begin(), rest.end(), marker.begin(), marker.end()) -
                                        rest.begin());
    }

    void cut(std::span<const token_id> text, std::size_t first, std::size_t last, std::vector<token_run>& to) const {
        while (size > 0 && last - first > size) {
            const std::size_t behind = sentence_end(text, first, last);
            to.push_back({first, behind - first});
            first = behind;
        }
        if (first < last) // no sentence ended right there
            to.push_back({first, last - first});
    }

    // Behind the token that ends a sentence nearest to first + size, the earlier of two; there if none is near.
    [[nodiscard]] std::size_t sentence_end(std::span<const token_id> text, std::size_t first, std::size_t last) const {
        const std::size_t target = first + size, near = std::min(window, size / 2);
        const auto ends_one = [&](std::size_t behind) {
            return behind >= first + std::max<std::size_t>(1, least) && behind <= last &&
                   std::ranges::binary_search(ends, text[behind - 1]);
        };
        for (std::size_t off = 0; off <= near; ++off) {
            if (ends_one(target - off))
                return target - off;
            if (ends_one(target + off))
                return target + off;
        }
        return target;
    }
};

} // namespace kvcache

// ---- kvcache/session/weaving.hpp ----------------------------------------------------------------------------------

namespace kvcache {

/// Forward passes over some rows of a lease, those between them being kept. Rows run in ascending order, at most
/// `split` a pass; each sees what comes before it.
template <class Lease, class Model>
class weaving {
public:
    weaving(const Model& model, team& threads, std::size_t split)
        : model_(model), split_(split), pass_(model.template passes<Lease>(threads)) {}

    /// Rows times layers that have run so far.
    [[nodiscard]] std::size_t layer_rows() const noexcept { return layer_rows_; }

    /// Runs the rows that the lease does not keep, and writes the logits of the last. `tokens` are those of the lease's
    /// rows. With `bottom_right` the j-th of m rows from the end sees all but the last m - j positions, later ones
    /// included, as CacheBlend has it; then all rows go in one pass.
    void run(const Lease& lease, std::span<const token_id> tokens, bool bottom_right, std::span<float> logits) {
        rows_.clear();
        for (std::size_t row = 0; row < tokens.size(); ++row)
            if (!lease.keeps(row))
                rows_.push_back(row);
        limits_.clear();
        for (std::size_t j = 0; bottom_right && j < rows_.size(); ++j)
            limits_.push_back(lease.first() + tokens.size() - rows_.size() + j);
        const std::size_t most = bottom_right ? rows_.size() : split_;
        for (std::size_t at = 0; at < rows_.size(); at += most) {
            const bool last = at + most >= rows_.size();
            begin(lease, tokens, at, most, last ? logits_of::last : logits_of::none);
            for (const layer_id layer : model_.layers())
                pass_.forward(layer);
            layer_rows_ += part_.tokens.size() * model_.layers().size();
            if (last)
                pass_.logits(logits);
        }
    }

    /// How far rows that `known` keeps are off in one layer, if all layers before it had run: the squared distances of
    /// their keys or values to those kept, in ascending order of rows. `known` are the lease's rows, or were those of
    /// one for the same tokens that kept more. All that this lease does not keep runs up to the layer, with the rows
    /// between; where it keeps every row of `known`, all of them do.
    [[nodiscard]] std::vector<float> deviations(const Lease& lease, std::span<const token_id> tokens,
                                                std::span<const woven_row> known, std::size_t layer,
                                                deviation_of compared, const rope* rotation) {
        expects(layer < model_.layers().size(), "the layer that is compared is one of the model's");
        rows_.clear();
        limits_.clear();
        bool all = true;
        std::size_t behind = 0;
        for (std::size_t row = 0; row < known.size(); ++row)
            if (known[row].kept) {
                all = all && lease.keeps(row);
                behind = row + 1;
            }
        for (std::size_t row = 0; row < behind; ++row)
            if (all || !lease.keeps(row))
                rows_.push_back(row);
        std::vector<float> made;
        for (std::size_t at = 0; at < rows_.size(); at += split_) {
            begin(lease, tokens, at, split_, logits_of::none);
            for (std::size_t i = 0; i < layer; ++i)
                pass_.forward(model_.layers()[i]);
            pass_.project(model_.layers()[layer]);
            layer_rows_ += part_.tokens.size() * layer;
            for (std::size_t i = 0; i < part_.rows.size(); ++i)
                if (known[part_.rows[i]].kept)
                    made.push_back(distance(lease, part_.rows[i], known[part_.rows[i]], model_.layers()[layer],
                                            compared == deviation_of::keys ? pass_.keys(i) : pass_.values(i), compared,
                                            rotation));
        }
        return made;
    }

private:
    void begin(const Lease& lease, std::span<const token_id> tokens, std::size_t at, std::size_t most,
               logits_of wanted) {
        const std::size_t count = std::min(most, rows_.size() - at);
        ids_.clear();
        for (std::size_t i = at; i < at + count; ++i)
            ids_.push_back(tokens[rows_[i]]);
        part_ = {.lease = &lease,
                 .row = rows_[at],
                 .tokens = ids_,
                 .wanted = wanted,
                 .rows = std::span(rows_).subspan(at, count),
                 .limits = limits_.empty() ? std::span<const std::size_t>() : std::span(limits_).subspan(at, count)};
        pass_.begin(std::span(&part_, 1));
    }

    // fresh: (kv_heads, head_dim), keys not rotated.
    [[nodiscard]] float distance(const Lease& lease, std::size_t row, const woven_row& at, layer_id layer,
                                 std::span<const float> fresh, deviation_of compared, const rope* rotation) {
        const auto pages = lease.pages();
        const std::size_t heads = lease.shape().kv_heads, dim = lease.shape().head_dim;
        const std::size_t lane = at.row % tile_tokens;
        scratch_.resize(std::max(dim, value_width(dim)) * tile_tokens);
        turn_.resize(dim);
        fresh_.resize(dim);
        const bool keys = compared == deviation_of::keys;
        if (keys && rotation != nullptr)
            rotation->fill(static_cast<std::int64_t>(lease.first() + row) - at.base, turn_);
        float sum = 0.0f;
        for (std::size_t head = 0; head < heads; ++head) {
            const auto now = fresh.subspan(head * dim, dim);
            const page_tile tile{layer, head_id{static_cast<std::uint32_t>(head)}, at.row / tile_tokens};
            const auto bytes = std::span<const std::byte>(pages.storage->bytes(at.page));
            const float* stored =
                keys ? pages.codec->keys(bytes, tile, scratch_) : pages.codec->values(bytes, tile, scratch_);
            if (keys && rotation != nullptr)
                rotate_head(now, turn_, fresh_);
            else
                std::ranges::copy(now, fresh_.begin());
            for (std::size_t d = 0; d < dim; ++d) {
                const float off =
                    fresh_[d] - (keys ? stored[d * tile_tokens + lane] : stored[lane * value_width(dim) + d]);
                sum = std::fma(off, off, sum);
            }
        }
        return sum;
    }

    const Model& model_;
    std::size_t split_;
    decltype(std::declval<const Model&>().template passes<Lease>(std::declval<team&>())) pass_;
    std::size_t layer_rows_ = 0;
    batch_part<Lease> part_;
    std::vector<std::size_t> rows_, limits_;
    std::vector<token_id> ids_;
    std::vector<float> scratch_, turn_, fresh_;
};

} // namespace kvcache

// ---- kvcache/session/chunk_pipeline.hpp ---------------------------------------------------------------------------

namespace kvcache {

/// What of a prompt may come from the cache.
enum class reuse_mode {
    baseline, ///< Nothing.
    prefix,   ///< What is exact: its longest known beginning.
    chunks,   ///< Chunks too, wherever they stand; what follows one is approximate.
};

/// What a prompt took, in tokens.
struct reuse_counts {
    std::size_t prompt = 0;
    std::size_t exact = 0;       ///< Reused, the same bits as if computed.
    std::size_t approximate = 0; ///< Reused as they were elsewhere.
    std::size_t recomputed = 0;  ///< Known from elsewhere, and run again.
    std::size_t prefilled = 0;   ///< Not known, and run.
    std::size_t layer_rows = 0;  ///< Rows times layers that ran, for repair too.
};

/// A prompt that has run, parts of it reused from anywhere.
template <class Cache>
struct woven_prompt {
    typename Cache::sequence sequence;
    matrix logits; ///< Of the last token. (1, vocabulary)
    reuse_counts counts = {};
    std::vector<reuse_span> spans = {}; ///< What was found; empty for the baseline.
};

/// How a text's chunks are run before they are stored.
struct warming {
    bool alone = true;           ///< Each by itself; else in the text, behind what comes before it.
    std::size_t sink_tokens = 0; ///< Alone: behind the text's first tokens, which are not stored with it.
    std::size_t overlap = 0;     ///< Alone: behind the last tokens before it, likewise.
};

/// What `warm` has stored.
struct warmed {
    std::size_t chunks = 0;
    std::size_t tokens = 0;    ///< Of the text.
    std::size_t left_over = 0; ///< Tokens of chunks that are too short to be found again.
    std::string warning = {};  ///< What somebody should change; empty if all is stored.
};

/// A pipeline that also reuses chunks: tokens in, logits out. What a prompt shares with the cache's index of prefixes
/// is exact, as in `pipeline`; chunks that stand elsewhere are woven in, and the cache's recompute policy says which of
/// their tokens run again. The repair is part of the call. One call at a time.
template <class Cache, class Model>
    requires(Cache::knows_chunks)
class chunk_pipeline {
public:
    struct options {
        chunking split = {};
        bool store = true;         ///< Remember the chunks of what was computed exactly.
        std::size_t rows = 256;    ///< Of one forward pass, at most.
        bool bottom_right = false; ///< The mask of CacheBlend, for comparisons: tokens that run again see later ones.
    };

    chunk_pipeline(Cache& cache, const Model& model, team& threads, options how)
        : cache_(cache),
          model_(model),
          how_(std::move(how)),
          exact_(cache, model, threads, how_.rows),
          weaving_(model, threads, how_.rows) {}

    /// What has been asked of prompts before, and of their answers.
    [[nodiscard]] pipeline<Cache, Model>& exact() noexcept { return exact_; }

    /// Runs a prompt on top of what is known of it; of its own tokens the first `cacheable` may become known to later
    /// prompts. Errors: as pipeline::feed; unsupported, in the mode chunks, if the model's keys cannot move. Then no
    /// more is stored than exact tokens.
    [[nodiscard]] result<woven_prompt<Cache>> feed(std::span<const token_id> tokens, reuse_mode mode,
                                                   std::size_t cacheable = static_cast<std::size_t>(-1)) {
        if (auto valid = exact_.check(0, tokens); !valid)
            return valid.error();
        if (mode == reuse_mode::chunks)
            if (auto can = movable(); !can)
                return can.error();
        auto sequence = mode == reuse_mode::baseline ? cache_.open() : known_prefix(tokens);
        sequence.share_at_most(cacheable);
        woven_prompt<Cache> made{std::move(sequence), {}, {.prompt = tokens.size()}, {}};
        made.counts.exact = made.sequence.size();
        const std::size_t before = weaving_.layer_rows();
        auto ran = mode == reuse_mode::chunks ? weave(made, tokens) : finish(made, tokens);
        if (!ran)
            return ran.error();
        made.counts.layer_rows += weaving_.layer_rows() - before;
        made.counts.prefilled = tokens.size() - made.counts.exact - made.counts.approximate - made.counts.recomputed;
        if (how_.store)
            store(made.sequence, std::min(made.sequence.exact(), cacheable));
        return made;
    }

    /// Runs a text's chunks and stores them, to be found in any prompt. Errors: as feed.
    [[nodiscard]] result<warmed> warm(std::span<const token_id> text, const warming& how) {
        if (auto valid = exact_.check(0, text); !valid)
            return valid.error();
        warmed done{.tokens = text.size()};
        for (const token_run& chunk : how_.split.split(text)) {
            std::vector<token_id> prompt;
            if (how.alone) {
                const std::size_t sinks = std::min(how.sink_tokens, chunk.first);
                const std::size_t overlap = std::min(how.overlap, chunk.first - sinks);
                prompt.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(sinks));
                append(prompt, text.subspan(chunk.first - overlap, overlap + chunk.count));
            } else {
                append(prompt, text.first(chunk.first + chunk.count));
            }
            auto ran = exact_.feed(prompt);
            if (!ran)
                return ran.error();
            if (cache_.note(ran->sequence, prompt.size() - chunk.count, chunk.count))
                ++done.chunks;
            else
                done.left_over += chunk.count;
        }
        if (done.left_over > 0)
            done.warning = std::to_string(done.left_over) + " of " + std::to_string(done.tokens) +
                           " tokens are in chunks too short to be found again; they run with every prompt";
        return done;
    }

private:
    static void append(std::vector<token_id>& to, std::span<const token_id> more) {
        to.insert(to.end(), more.begin(), more.end());
    }

    [[nodiscard]] result<void> movable() const {
        if constexpr (requires { model_.keys_can_move(); })
            return model_.keys_can_move();
        else
            return error{error_code::unsupported, "rope",
                         "the model does not say whether keys of one position can serve at another (keys_can_move)"};
    }

    [[nodiscard]] typename Cache::sequence known_prefix(std::span<const token_id> tokens) {
        auto found = cache_.match(tokens);
        const rerun plan = cache_.plan(found);
        return cache_.open(std::move(found), plan);
    }

    // Runs what is left of the tokens, exactly.
    [[nodiscard]] result<void> finish(woven_prompt<Cache>& made, std::span<const token_id> tokens) {
        return extend(made, tokens, tokens.size());
    }

    // Runs the tokens up to `last`, behind the sequence.
    [[nodiscard]] result<void> extend(woven_prompt<Cache>& made, std::span<const token_id> tokens, std::size_t last) {
        const std::size_t first = made.sequence.size();
        if (first >= last)
            return {};
        made.counts.layer_rows += (last - first) * model_.layers().size();
        return exact_.extend(made.sequence, tokens.subspan(first, last - first),
                             last == tokens.size() ? logits_of::last : logits_of::none, made.logits);
    }

    [[nodiscard]] result<void> weave(woven_prompt<Cache>& made, std::span<const token_id> tokens) {
        const typename Cache::reuse_type found = cache_.find(made.sequence, tokens);
        const reuse_map& map = found.map();
        made.spans = map.spans;
        if (map.runs.empty())
            return finish(made, tokens);
        // What runs before the first token that is kept is exact, and becomes known.
        if (auto ran = extend(made, tokens, map.runs.front().first); !ran)
            return ran;
        std::vector<std::size_t> again;
        if (auto chosen = choose(made, tokens, found, again); !chosen)
            return chosen;
        made.counts.recomputed = again.size();
        made.counts.approximate = map.tokens(reuse_kind::approximate) - again.size();
        if (auto ran = extend(made, tokens, first_kept(map, again, tokens.size())); !ran)
            return ran;
        if (made.sequence.size() == tokens.size())
            return {};
        auto lease = cache_.reserve(made.sequence, tokens.size() - made.sequence.size(), found, again);
        if (!lease)
            return lease.error();
        made.logits.resize(1, static_cast<Eigen::Index>(model_.vocabulary()));
        const auto rest = tokens.subspan(lease->first());
        weaving_.run(*lease, rest, how_.bottom_right, {made.logits.data(), model_.vocabulary()});
        lease->commit(rest);
        return {};
    }

    // Asks the recompute policy which tokens run again.
    [[nodiscard]] result<void> choose(woven_prompt<Cache>& made, std::span<const token_id> tokens,
                                      const typename Cache::reuse_type& found, std::vector<std::size_t>& again) {
        const auto& policy = cache_.recompute();
        using state = std::remove_cvref_t<decltype(policy)>;
        if constexpr (deviation_recompute_state<state>) {
            std::vector<woven_row> known;
            auto off = judge(made, tokens, found, again, 0, known); // everything kept, for now
            if (!off)
                return off.error();
            policy.select(found.map().runs, *off, again);
            if constexpr (filtering_recompute_state<state>)
                for (std::size_t i = 0; i < policy.filters() && !again.empty(); ++i) {
                    off = judge(made, tokens, found, again, i + 1, known);
                    if (!off)
                        return off.error();
                    policy.filter(i, found.map().runs, *off, again);
                }
        } else if constexpr (chunk_recompute_state<state>) {
            policy.select(found.map().runs, again);
        } else {
            for (const reused_run& run : found.map().runs) // a policy of exact prefixes keeps nothing else
                for (std::size_t i = 0; i < run.count; ++i)
                    again.push_back(run.first + i);
        }
        return {};
    }

    // How far reused tokens are off, `deeper` layers behind the first that is compared: all of them while none runs
    // again, else those. `known` is filled the first time.
    [[nodiscard]] result<std::vector<float>> judge(woven_prompt<Cache>& made, std::span<const token_id> tokens,
                                                   const typename Cache::reuse_type& found,
                                                   std::span<const std::size_t> again, std::size_t deeper,
                                                   std::vector<woven_row>& known) {
        auto lease = cache_.reserve(made.sequence, tokens.size() - made.sequence.size(), found, again);
        if (!lease)
            return lease.error();
        if (known.empty())
            known.assign(lease->woven().begin(), lease->woven().end());
        const auto& policy = cache_.recompute();
        return weaving_.deviations(*lease, tokens.subspan(lease->first()), known, policy.check_layer() + deeper,
                                   policy.compared(), &model_.rotation());
    }

    [[nodiscard]] static std::size_t first_kept(const reuse_map& map, std::span<const std::size_t> again,
                                                std::size_t none) {
        for (const reused_run& run : map.runs)
            for (std::size_t at = run.first; at < run.first + run.count; ++at) {
                if (again.empty() || again.front() != at)
                    return at;
                again = again.subspan(1);
            }
        return none;
    }

    void store(const typename Cache::sequence& from, std::size_t tokens) {
        for (const token_run& chunk : how_.split.split(from.tokens()))
            if (chunk.first + chunk.count <= tokens)
                static_cast<void>(cache_.note(from, chunk.first, chunk.count));
    }

    Cache& cache_;
    const Model& model_;
    options how_;
    pipeline<Cache, Model> exact_;
    weaving<typename Cache::lease, Model> weaving_;
};

} // namespace kvcache

// ---- kvcache/session/generate.hpp ---------------------------------------------------------------------------------

namespace kvcache {

/// An answer and what it took. The last token of `ids` has no keys yet: it was said, and never run.
template <class Cache>
struct answer {
    fed<Cache> prompt;
    std::vector<token_id> ids = {};
    bool stopped = false; ///< By a stop token, not by the length or the caller.
};

/// Says tokens one by one behind a sequence whose last logits are `next`, (1, vocabulary), and adds them to `ids`,
/// which is empty: each is drawn, handed to `say`, and run, unless it is the last. Returns whether a stop token ended
/// them. Errors: as generate.
template <class Cache, class Model, class Say>
[[nodiscard]] result<bool> say_on(pipeline<Cache, Model>& through, typename Cache::sequence& behind, matrix next,
                                  const sampler& draw, const stopping& until, std::vector<token_id>& ids, Say say) {
    answering under_way(draw, until, behind.tokens(), through.max_positions());
    while (!under_way.over()) {
        const auto logits = row_of(std::as_const(next), 0);
        const auto token = under_way.next(logits);
        if (!token)
            return token.error();
        ids.push_back(*token);
        if (!say(*token, logits) || under_way.over())
            break;
        if (auto ran = through.extend(behind, {&ids.back(), 1}, logits_of::last, next); !ran)
            return ran.error();
    }
    return under_way.stopped();
}

/// Says tokens one by one behind a prompt that has run: each is drawn, handed to `say`, and run, unless it is the last.
/// `say(token, logits)` is given the logits it was drawn from, (vocabulary), and returns whether to go on. Errors:
/// those of pipeline::extend; an error after some tokens were said (no page left) is returned too.
/// Requires: the sequence holds the whole prompt, and the last row of its logits is the one behind it.
template <class Cache, class Model, class Say>
[[nodiscard]] result<answer<Cache>> generate(pipeline<Cache, Model>& through, fed<Cache> begun, const sampler& draw,
                                             const stopping& until, Say say) {
    answer<Cache> made{std::move(begun)};
    const auto said =
        say_on(through, made.prompt.sequence, made.prompt.logits.bottomRows(1), draw, until, made.ids, std::move(say));
    if (!said)
        return said.error();
    made.stopped = *said;
    return made;
}

/// Runs a prompt on top of what the cache knows of it, and answers it as above. Errors: also those of pipeline::feed.
template <class Cache, class Model, class Say>
[[nodiscard]] result<answer<Cache>> generate(pipeline<Cache, Model>& through, std::span<const token_id> prompt,
                                             const sampler& draw, const stopping& until, Say say,
                                             logits_of wanted = logits_of::last) {
    auto begun = through.feed(prompt, wanted == logits_of::none ? logits_of::last : wanted);
    if (!begun)
        return begun.error();
    return generate(through, std::move(*begun), draw, until, std::move(say));
}

} // namespace kvcache

// ---- kvcache/session/chunk_generate.hpp ---------------------------------------------------------------------------

namespace kvcache {

/// An answer and what it took: one clock, from the request in, look-up and repair included.
struct timed_answer {
    std::vector<token_id> ids = {};
    bool stopped = false;     ///< By a stop token, not by the length or the caller.
    reuse_counts counts = {}; ///< Of the prompt.
    double first_token = 0.0; ///< Seconds until the first token was drawn.
    double total = 0.0;       ///< Seconds until the last was.

    /// Of the answer, those behind the first.
    [[nodiscard]] double tokens_a_second() const noexcept {
        return ids.size() > 1 && total > first_token ? static_cast<double>(ids.size() - 1) / (total - first_token)
                                                     : 0.0;
    }
};

/// An answer to a prompt that reused chunks, to be continued.
template <class Cache>
struct woven_answer : timed_answer {
    explicit woven_answer(woven_prompt<Cache> fed) : prompt(std::move(fed)) { counts = prompt.counts; }

    woven_prompt<Cache> prompt;
};

/// As the other `generate`, with what `mode` lets the prompt reuse.
template <class Cache, class Model, class Say>
[[nodiscard]] result<woven_answer<Cache>> generate(chunk_pipeline<Cache, Model>& through,
                                                   std::span<const token_id> prompt, reuse_mode mode,
                                                   const sampler& draw, const stopping& until, Say say) {
    const auto began = std::chrono::steady_clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    auto fed = through.feed(prompt, mode);
    if (!fed)
        return fed.error();
    woven_answer<Cache> made{std::move(*fed)};
    const auto timed = [&](token_id token, std::span<const float> logits) {
        made.total = seconds();
        if (made.ids.size() == 1)
            made.first_token = made.total;
        return static_cast<bool>(say(token, logits));
    };
    const auto said = say_on(through.exact(), made.prompt.sequence, made.prompt.logits, draw, until, made.ids, timed);
    if (!said)
        return said.error();
    made.stopped = *said;
    return made;
}

} // namespace kvcache

// ---- kvcache/session/engine_request.hpp ---------------------------------------------------------------------------

namespace kvcache {

/// A request of an engine, in the order of arrival.
enum class request_id : std::uint64_t {};

/// A token of an answer, as it is said.
struct said_token {
    std::size_t choice = 0;
    std::size_t index = 0; ///< Its place in the answer.
    token_id token = {};
    std::optional<float> log_probability = {}; ///< By the model's own logits, where the request asked.
    std::vector<token_score> top = {};         ///< The likeliest instead.
};

/// What a listener says to a token.
enum class hearing {
    go_on,
    enough, ///< This answer ends here, and is complete.
    cancel, ///< The whole request ends here.
};

/// Why an answer ended.
enum class finish_reason {
    stopped,   ///< By a stop token, or because the listener had enough.
    length,    ///< By max_tokens, or the model's last position.
    cancelled, ///< On the caller's request.
    expired,   ///< Its deadline passed.
    failed,    ///< See the error.
};

/// One of a request's answers. Its last token was said and never run, so the sequence ends before it.
template <class Cache>
struct engine_answer {
    std::vector<token_id> ids = {};
    finish_reason why = finish_reason::cancelled;
    std::optional<typename Cache::sequence> sequence = {}; ///< What of prompt and answer ran.
};

/// How a request ended.
template <class Cache>
struct engine_outcome {
    std::vector<engine_answer<Cache>> answers = {};
    std::optional<error> failure = {};
    std::size_t reused = 0;    ///< Tokens of the prompt whose keys and values were known.
    std::size_t prefilled = 0; ///< Tokens of the prompt that ran, again after it had to make way too.
    std::size_t drafted = 0;
    std::size_t accepted = 0; ///< Of the drafted tokens.
};

/// What an engine is asked. The listeners are called by the thread that steps the engine, and must not throw.
template <class Cache>
struct engine_request {
    std::vector<token_id> prompt = {};
    /// Holds the first tokens of the prompt, not all; or none. If it is approximate so is the answer, unless pages run
    /// out and the request runs again from its tokens.
    std::optional<typename Cache::sequence> known = {};
    sampler draw = {}; ///< Answer c draws as its choice + c.
    stopping until = {};
    std::size_t choices = 1;
    std::size_t draft = 0; ///< Most tokens that are guessed ahead by prompt lookup; they change no token.
    std::optional<std::size_t> log_probabilities = {}; ///< Wanted, with so many of the likeliest tokens.
    std::optional<std::chrono::steady_clock::time_point> deadline = {};
    std::function<hearing(const said_token&)> hear = {};
    std::function<void(engine_outcome<Cache>&&)> done = {}; ///< Called once, whatever happens.
};

/// Bounds of an engine.
struct engine_limits {
    std::size_t rows = 256;    ///< Of a step's forward pass.
    std::size_t lanes = 64;    ///< Answers under way at once.
    std::size_t waiting = 256; ///< Requests in the queue; more are refused.
};

/// What an engine has done.
struct engine_stats {
    std::size_t waiting = 0; ///< Requests.
    std::size_t running = 0; ///< Requests.
    std::size_t finished = 0;
    std::size_t refused = 0;
    std::size_t preempted = 0; ///< Times a request made way for an older one, to run again.
    std::size_t steps = 0;
    std::size_t reused = 0; ///< Tokens, from here on.
    std::size_t prefilled = 0;
    std::size_t said = 0;
    std::size_t drafted = 0;
    std::size_t accepted = 0;
};

} // namespace kvcache

// ---- kvcache/session/prompt_lookup.hpp ----------------------------------------------------------------------------

namespace kvcache {

/// Guesses how a text goes on: as it did behind the latest earlier place where its last three tokens stood, or two, or
/// one (Saxena 2023, prompt lookup decoding). Returns: at most `most` of the text's own tokens. Cost: O(tokens).
[[nodiscard]] inline std::span<const token_id> prompt_lookup(std::span<const token_id> text, std::size_t most) {
    for (std::size_t n = std::min<std::size_t>(3, text.size()); n > 0; --n) {
        const auto tail = text.last(n);
        const auto before = text.first(text.size() - 1); // an earlier place ends before the text does
        const auto found = std::find_end(before.begin(), before.end(), tail.begin(), tail.end());
        if (found != before.end()) {
            const auto at = static_cast<std::size_t>(found - before.begin()) + n;
            return text.subspan(at, std::min(most, text.size() - at));
        }
    }
    return {};
}

} // namespace kvcache

// ---- kvcache/session/engine_job.hpp -------------------------------------------------------------------------------

namespace kvcache::detail {

/// An answer under way: its tokens, and the sequence that holds the first of them.
template <class Cache>
struct engine_lane {
    std::vector<token_id> tokens = {}; // the prompt and the answer so far
    std::optional<typename Cache::sequence> sequence = {};
    sampler draw = {};
    token_counts counts = {};
    std::optional<finish_reason> ended = {};

    // Rows of the step under way.
    std::size_t rows = 0;               // of tokens
    std::vector<token_id> drafted = {}; // the last token, and what is guessed behind it; empty without a guess

    [[nodiscard]] std::size_t held() const { return sequence ? sequence->size() : 0; }
    [[nodiscard]] std::size_t pending() const { return tokens.size() - held(); }
    [[nodiscard]] bool active() const { return !ended && sequence.has_value(); }

    /// The rows of the step that has run.
    std::size_t run_rows = 0;

    /// What runs in this step.
    [[nodiscard]] std::span<const token_id> run() const {
        return drafted.empty() ? std::span(tokens).subspan(held(), rows) : std::span<const token_id>(drafted);
    }
};

/// A request under way.
template <class Cache>
struct engine_job {
    request_id id = {};
    engine_request<Cache> request = {};
    std::size_t most = 0; // tokens of an answer
    std::vector<engine_lane<Cache>> lanes = {};
    engine_outcome<Cache> outcome = {};
    bool counted = false; // what it reused

    engine_job(request_id name, engine_request<Cache> asked, std::size_t max_positions)
        : id(name), request(std::move(asked)) {
        most = std::min(request.until.max_tokens, max_positions - request.prompt.size() + 1);
        lanes.resize(request.choices);
        for (auto& lane : lanes) {
            lane.tokens = request.prompt;
            lane.draw = request.draw;
            lane.draw.choice += static_cast<std::uint64_t>(&lane - lanes.data());
            if (request.draw.penalises())
                lane.counts = token_counts(request.prompt);
        }
    }

    [[nodiscard]] std::size_t said(const engine_lane<Cache>& lane) const {
        return lane.tokens.size() - request.prompt.size();
    }
    [[nodiscard]] bool over() const {
        return std::ranges::all_of(lanes, [](const auto& lane) { return lane.ended.has_value(); });
    }
    /// A further answer takes its prompt from the first, once that has run.
    [[nodiscard]] bool follows(std::size_t choice) const { return choice > 0 && said(lanes[choice]) == 0; }

    void end(finish_reason why) {
        for (auto& lane : lanes)
            if (!lane.ended)
                lane.ended = why;
    }
    void fail(error reason) {
        end(finish_reason::failed);
        if (!outcome.failure)
            outcome.failure = std::move(reason);
    }

    /// Guesses how a lane goes on, `room` tokens at most.
    void draft(engine_lane<Cache>& lane, std::size_t room) const {
        lane.drafted.clear();
        const std::size_t left = most - said(lane); // the last of them is never run
        if (request.draft == 0 || left < 2)
            return;
        const auto guess = prompt_lookup(lane.tokens, std::min({request.draft, room, left - 1}));
        if (guess.empty())
            return;
        lane.drafted.push_back(lane.tokens.back());
        lane.drafted.insert(lane.drafted.end(), guess.begin(), guess.end());
    }

    /// The rows of a lane have run, and `logits` are those of the rows from `first` on that it asked for.
    void hear(std::size_t choice, const matrix& logits, std::size_t first) {
        auto& lane = lanes[choice];
        const std::size_t drafts = lane.drafted.empty() ? 0 : lane.drafted.size() - 1;
        const std::vector<token_id> guess = std::exchange(lane.drafted, {});
        if (lane.held() < lane.tokens.size())
            return; // its prompt goes on in a next step
        outcome.drafted += drafts;
        for (std::size_t i = 0; i <= drafts; ++i) {
            say(choice, row_of(logits, first + i));
            if (lane.ended || i == drafts || lane.tokens.back() != guess[i + 1])
                break;
            ++outcome.accepted;
        }
        if (lane.held() >= lane.tokens.size() && said(lane) > 0)
            lane.sequence->truncate(lane.tokens.size() - 1);
    }

    /// The request has ended: hands everything over.
    void tell() {
        for (auto& lane : lanes) {
            if (lane.held() > lane.tokens.size())
                lane.sequence->truncate(lane.tokens.size()); // guesses of a step that was cancelled
            const auto answer = std::span(std::as_const(lane.tokens)).subspan(request.prompt.size());
            outcome.answers.push_back({{answer.begin(), answer.end()}, *lane.ended, std::move(lane.sequence)});
        }
        if (request.done)
            request.done(std::move(outcome));
    }

    /// The first lane has run the prompt: the others fork from it and say their first token.
    void follow(const matrix& logits, std::size_t row) {
        for (std::size_t choice = 1; choice < lanes.size(); ++choice)
            if (follows(choice) && !lanes[choice].ended) {
                lanes[choice].sequence = lanes[0].sequence->fork(request.prompt.size());
                say(choice, row_of(logits, row));
            }
    }

private:
    // Draws a lane's next token and lets it be heard.
    void say(std::size_t choice, std::span<const float> logits) {
        auto& lane = lanes[choice];
        if (said(lane) == most) {
            lane.ended = finish_reason::length;
            return;
        }
        if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); })) {
            fail({error_code::malformed, "logits",
                  "the model gave a logit that is no finite number; its weights are damaged"});
            return;
        }
        said_token token{.choice = choice, .index = said(lane)};
        token.token = lane.draw.draw(logits, token.index, lane.counts);
        if (lane.draw.penalises())
            lane.counts.say(token.token);
        if (request.log_probabilities) {
            const kvcache::log_probabilities scores(logits);
            token.log_probability = scores.of(token.token);
            token.top = scores.top(*request.log_probabilities);
        }
        lane.tokens.push_back(token.token);
        const hearing heard = request.hear ? request.hear(token) : hearing::go_on;
        if (heard == hearing::cancel)
            end(finish_reason::cancelled);
        else if (heard == hearing::enough ||
                 std::ranges::find(request.until.stop, token.token) != request.until.stop.end())
            lane.ended = finish_reason::stopped;
        else if (said(lane) == most)
            lane.ended = finish_reason::length;
    }
};

} // namespace kvcache::detail

// ---- kvcache/session/engine_schedule.hpp --------------------------------------------------------------------------

namespace kvcache::detail {

/// The requests under way, and what of them runs in a forward pass. Of one thread.
template <class Cache, class Model>
class engine_schedule {
public:
    using job = engine_job<Cache>;
    using job_list = std::deque<std::unique_ptr<job>>; // in order of arrival

    engine_schedule(Cache& cache, const Model& model, pipeline<Cache, Model>& through, std::size_t rows)
        : cache_(cache), model_(model), through_(through), rows_(rows) {}

    [[nodiscard]] job_list& running() noexcept { return running_; }
    /// Requests that gave their pages back, to wait.
    [[nodiscard]] job_list& made_way() noexcept { return made_way_; }
    void set_relief(std::function<bool()> relief) { relief_ = std::move(relief); }

    /// Runs what fits a step. Where there is no page, idle sessions go, then the youngest request waits.
    void run() {
        while (true) {
            std::optional<error> short_of;
            try {
                if (!plan())
                    return;
                if (auto ran = through_.extend(batch_, logits_); !ran)
                    short_of = ran.error();
            } catch (const std::bad_alloc&) {
                short_of = no_memory();
            }
            if (!short_of)
                return hear();
            if (short_of->code == error_code::out_of_memory && relief_ && relief_())
                continue;
            make_way(std::move(*short_of));
        }
    }

private:
    using lane = engine_lane<Cache>;
    struct part {
        job* of = nullptr;
        std::size_t choice = 0;
        std::size_t wanted = 0; // rows of logits
    };

    // The batch of a step; false if nothing is to run.
    [[nodiscard]] bool plan() {
        parts_.clear();
        batch_.clear();
        std::size_t left = rows_;
        const auto lanes_do = [&](auto&& body) {
            for (std::size_t i = 0; i < running_.size(); ++i) {
                job& each = *running_[(i + turn_) % running_.size()];
                for (std::size_t c = 0; c < each.lanes.size(); ++c)
                    if (each.lanes[c].active() && each.lanes[c].pending() == 1)
                        body(each, c);
            }
        };
        // A quarter of the rows is for prompts, so that answers never keep them out.
        const bool prompts = std::ranges::any_of(running_, [](const auto& each) {
            return std::ranges::any_of(each->lanes, [](const lane& l) { return !l.ended && l.pending() > 1; });
        });
        std::size_t for_answers = prompts ? left - std::max<std::size_t>(1, left / 4) : left, answers = 0;
        lanes_do([&](job&, std::size_t) { ++answers; });
        lanes_do([&](job& each, std::size_t c) {
            if (for_answers == 0)
                return;
            --answers;
            lane& one = each.lanes[c];
            const std::size_t spare = for_answers - 1 > answers ? for_answers - 1 - answers : 0;
            one.rows = 1;
            each.draft(one, std::min(spare, model_.max_positions() - one.tokens.size()));
            const std::size_t rows = one.run().size();
            add(each, c, rows);
            for_answers -= rows;
            left -= rows;
        });
        ++turn_;
        for (auto& each : running_)
            for (std::size_t c = 0; c < each->lanes.size() && left > 0; ++c) {
                lane& one = each->lanes[c];
                if (one.ended || each->follows(c) || (!one.sequence && !start(*each, c)) ||
                    (one.pending() == 1 && in_batch(one)))
                    continue;
                one.rows = std::min(left, one.pending());
                one.drafted.clear();
                add(*each, c, one.rows == one.pending() ? 1 : 0);
                left -= one.rows;
            }
        return !batch_.empty();
    }

    void add(job& each, std::size_t choice, std::size_t wanted) {
        lane& one = each.lanes[choice];
        one.run_rows = one.run().size();
        parts_.push_back({&each, choice, wanted});
        batch_.push_back({&*one.sequence, one.run(),
                          wanted == 0   ? logits_of::none
                          : wanted == 1 ? logits_of::last
                                        : logits_of::all});
    }

    [[nodiscard]] bool in_batch(const lane& one) const {
        return std::ranges::any_of(batch_, [&](const auto& each) { return each.sequence == &*one.sequence; });
    }

    // Gives a lane the longest known begin of its tokens: of its session, the index, or another lane. False while an
    // older prompt is running more of it.
    [[nodiscard]] bool start(job& each, std::size_t choice) {
        lane& one = each.lanes[choice];
        auto found = cache_.match(one.tokens);
        const rerun plan = cache_.plan(found);
        auto& given = each.request.known;
        const bool own = given && given->size() >= plan.first && given->size() < one.tokens.size();
        const std::size_t known = own ? given->size() : plan.first;
        const lane* nearest = nullptr;
        std::size_t held = known, coming = known; // tokens in common
        for (const auto& other : running_)
            for (const lane& its : other->lanes) {
                if (&its == &one || !its.active())
                    continue;
                const std::size_t common = in_common(its, one);
                if (std::min(common, shared(its.held())) > held) {
                    held = std::min(common, shared(its.held()));
                    nearest = &its;
                }
                if (its.pending() > 1)
                    coming = std::max(coming, common);
            }
        // To wait is a step lost for both, so it must save a page, or most of what is left.
        if (coming > held && (coming - held >= cache_.shape().tokens || 2 * coming >= held + one.tokens.size()))
            return false;
        if (nearest != nullptr)
            one.sequence = nearest->sequence->fork(held);
        else
            one.sequence = own ? std::move(*given) : cache_.open(std::move(found), plan);
        given.reset();
        if (!each.counted)
            each.outcome.reused = std::min(held, each.request.prompt.size());
        each.counted = true;
        return true;
    }

    // Tokens, of `n`, that another can go on from: whole pages where the codec codes whole pages.
    [[nodiscard]] std::size_t shared(std::size_t n) const {
        return page_writer<typename Cache::codec_type> ? n - n % cache_.shape().tokens : n;
    }

    // Tokens that a lane can have from another: those that it shares, and not its last, which always runs.
    [[nodiscard]] std::size_t in_common(const lane& its, const lane& one) const {
        const auto same = std::ranges::mismatch(its.tokens, one.tokens);
        return shared(std::min({static_cast<std::size_t>(same.in2 - one.tokens.begin()), one.tokens.size() - 1,
                                its.sequence->shared_at_most()}));
    }

    [[nodiscard]] static error no_memory() {
        return {error_code::out_of_memory, "memory", "the system has not that much memory"};
    }

    // Hands out the logits of a step. Whoever cannot take them for want of memory has failed.
    void hear() {
        try {
            hand_out();
        } catch (const std::bad_alloc&) {
            for (const part& one : parts_)
                one.of->fail(no_memory());
        }
    }

    void hand_out() {
        std::size_t row = 0;
        for (const part& one : parts_) {
            lane& heard = one.of->lanes[one.choice];
            const std::size_t before = heard.held() - heard.run_rows;
            const std::size_t prompt = one.of->request.prompt.size();
            one.of->outcome.prefilled += std::min(heard.held(), prompt) - std::min(before, prompt);
            const bool first = one.wanted > 0 && one.choice == 0 && one.of->said(heard) == 0;
            if (!heard.ended)
                one.of->hear(one.choice, logits_, row);
            if (first)
                one.of->follow(logits_, row);
            row += one.wanted;
        }
    }

    // The youngest request gives its pages back and waits; alone, it has failed.
    void make_way(error reason) {
        const auto youngest = std::ranges::max_element(running_, {}, [](const auto& each) {
            return std::ranges::any_of(each->lanes, &lane::active) ? index(each->id) + 1 : 0;
        });
        const auto holders = std::ranges::count_if(
            running_, [](const auto& each) { return std::ranges::any_of(each->lanes, &lane::active); });
        expects(youngest != running_.end(), "a step that failed was somebody's");
        if (reason.code != error_code::out_of_memory || holders < 2) {
            (*youngest)->fail(std::move(reason));
            for (lane& one : (*youngest)->lanes)
                one.sequence.reset();
            return;
        }
        for (lane& one : (*youngest)->lanes)
            if (!one.ended)
                one.sequence.reset();
        made_way_.push_back(std::move(*youngest));
        running_.erase(youngest);
    }

    [[nodiscard]] static std::uint64_t index(request_id id) noexcept { return static_cast<std::uint64_t>(id); }

    Cache& cache_;
    const Model& model_;
    pipeline<Cache, Model>& through_;
    std::size_t rows_;
    std::function<bool()> relief_;
    job_list running_;
    job_list made_way_;
    std::vector<part> parts_;
    std::vector<extension<Cache>> batch_;
    matrix logits_; // (rows wanted, vocabulary)
    std::size_t turn_ = 0;
};

} // namespace kvcache::detail

// ---- kvcache/session/engine.hpp -----------------------------------------------------------------------------------

namespace kvcache {

/// Answers many requests in shared forward passes. A step runs one row of every answer under way, and with the rows
/// left the prompts, in order of arrival and in pieces: a long prompt never stops an answer. Prompts that begin alike
/// are run once, also when they arrive together. Where pages run out the youngest request makes way and runs again
/// later. None of it changes a bit of what a request is answered: not its company, nor what was reused or guessed.
///
/// submit, cancel and stats are for any thread; step and run for one. Requires: the cache outlives it; it alone uses
/// the pipeline; a cache that others use too is `mutexed`.
template <class Cache, class Model>
class engine {
public:
    using clock = std::chrono::steady_clock;
    using request = engine_request<Cache>;

    engine(Cache& cache, const Model& model, pipeline<Cache, Model>& through, engine_limits limits = {})
        : model_(model), limits_(limits), schedule_(cache, model, through, limits.rows) {
        expects(limits.rows > 1 && limits.lanes > 0, "an engine has a row for an answer and one for a prompt");
    }

    /// Called when pages are short: gives some back, and says whether it did. For whoever keeps idle sessions.
    void set_relief(std::function<bool()> relief) { schedule_.set_relief(std::move(relief)); }

    /// Queues a request. Errors: out_of_range, for one that can never run; out_of_memory, when the queue is full;
    /// cancelled, once it is closed. `done` is not called then.
    [[nodiscard]] result<request_id> submit(request asked) {
        if (auto valid = check(asked); !valid)
            return valid.error();
        const std::lock_guard guard(lock_);
        if (closed_)
            return error{error_code::cancelled, "engine", "the engine takes no more requests"};
        if (stats_.waiting >= limits_.waiting) {
            ++stats_.refused;
            return error{error_code::out_of_memory, "queue",
                         "the queue is full: " + std::to_string(stats_.waiting) + " requests wait"};
        }
        const request_id id{next_++};
        inbox_.push_back(std::make_unique<job>(id, std::move(asked), model_.max_positions()));
        ++stats_.waiting;
        arrived_.notify_one();
        return id;
    }

    /// Ends a request at the next step. Nothing happens if it has ended.
    void cancel(request_id id) {
        const std::lock_guard guard(lock_);
        cancelled_.push_back(id);
        arrived_.notify_one();
    }

    [[nodiscard]] engine_stats stats() const {
        const std::lock_guard guard(lock_);
        return stats_;
    }

    /// One forward pass, and all that comes of it. Returns: whether there is more to do. Where memory is short an
    /// answer fails; the others go on.
    bool step(clock::time_point now) {
        take_in(now);
        admit();
        schedule_.run();
        queue_again();
        settle();
        return !schedule_.running().empty() || !queue_.empty();
    }

    /// Steps until asked to stop, and sleeps where there is nothing to do. What is under way then is cancelled.
    void run(const std::stop_token& stop) {
        const std::stop_callback wake(stop, [this] {
            const std::lock_guard guard(lock_);
            arrived_.notify_one();
        });
        while (!stop.stop_requested())
            if (!step(clock::now())) {
                std::unique_lock guard(lock_);
                arrived_.wait(guard, [&] { return stop.stop_requested() || !inbox_.empty() || !cancelled_.empty(); });
            }
        close();
    }

    /// Cancels all there is, and refuses all that is asked from now on. For the thread that steps.
    void close() {
        {
            const std::lock_guard guard(lock_);
            closed_ = true;
        }
        take_in(clock::time_point::min());
        for (auto* list : {&schedule_.running(), &queue_})
            for (auto& each : *list)
                each->end(finish_reason::cancelled);
        settle();
    }

private:
    using job = detail::engine_job<Cache>;

    [[nodiscard]] result<void> check(const request& asked) const {
        const auto refuse = [](const char* field, std::string words) {
            return error{error_code::out_of_range, field, std::move(words)};
        };
        if (asked.prompt.empty())
            return refuse("prompt", "there is no token to run");
        if (asked.prompt.size() > model_.max_positions())
            return refuse("max_positions", "the maximum context length is " + std::to_string(model_.max_positions()) +
                                               " tokens; the prompt takes " + std::to_string(asked.prompt.size()));
        for (const token_id token : asked.prompt)
            if (index_of(token) < 0 || static_cast<std::size_t>(index_of(token)) >= model_.vocabulary())
                return refuse("prompt", "token " + std::to_string(index_of(token)) + " is outside the vocabulary of " +
                                            std::to_string(model_.vocabulary()));
        if (asked.known &&
            (asked.known->size() >= asked.prompt.size() ||
             !std::ranges::equal(asked.known->tokens(), std::span(asked.prompt).first(asked.known->size()))))
            return refuse("known", "a known sequence holds the first tokens of the prompt, and not all");
        if (asked.choices == 0 || asked.choices > limits_.lanes)
            return refuse("n", "1 to " + std::to_string(limits_.lanes) + " answers can be had");
        return asked.draw.check(model_.vocabulary());
    }

    // What arrived, was cancelled, or is late.
    void take_in(clock::time_point now) {
        std::vector<request_id> cancelled;
        {
            const std::lock_guard guard(lock_);
            for (auto& each : inbox_)
                queue_.push_back(std::move(each));
            inbox_.clear();
            cancelled.swap(cancelled_);
        }
        for (auto* list : {&schedule_.running(), &queue_})
            for (auto& each : *list) {
                if (std::ranges::find(cancelled, each->id) != cancelled.end())
                    each->end(finish_reason::cancelled);
                if (each->request.deadline && now >= *each->request.deadline)
                    each->end(finish_reason::expired);
            }
    }

    // From the queue, while lanes are free. Whoever made way waits until another request has ended.
    void admit() {
        std::size_t lanes = 0;
        for (const auto& each : schedule_.running())
            lanes += each->lanes.size();
        while (!queue_.empty() && !crowded_ && lanes + queue_.front()->lanes.size() <= limits_.lanes) {
            lanes += queue_.front()->lanes.size();
            schedule_.running().push_back(std::move(queue_.front()));
            queue_.pop_front();
        }
    }

    // Whoever made way waits at its place, before those who came later.
    void queue_again() {
        const std::size_t many = schedule_.made_way().size();
        for (auto& each : schedule_.made_way()) {
            const auto later = std::ranges::find_if(queue_, [&](const auto& other) { return other->id > each->id; });
            queue_.insert(later, std::move(each));
        }
        schedule_.made_way().clear();
        crowded_ = crowded_ || many > 0;
        const std::lock_guard guard(lock_);
        stats_.preempted += many;
    }

    // Tells those who have ended.
    void settle() {
        std::vector<std::unique_ptr<job>> over;
        for (auto* list : {&schedule_.running(), &queue_}) {
            const auto ended =
                std::stable_partition(list->begin(), list->end(), [](const auto& each) { return !each->over(); });
            std::move(ended, list->end(), std::back_inserter(over));
            list->erase(ended, list->end());
        }
        if (!over.empty() || schedule_.running().empty())
            crowded_ = false;
        {
            const std::lock_guard guard(lock_);
            ++stats_.steps;
            stats_.waiting = queue_.size() + inbox_.size();
            stats_.running = schedule_.running().size();
            stats_.finished += over.size();
            for (const auto& each : over) {
                stats_.reused += each->outcome.reused;
                stats_.prefilled += each->outcome.prefilled;
                stats_.drafted += each->outcome.drafted;
                stats_.accepted += each->outcome.accepted;
                for (const auto& one : each->lanes)
                    stats_.said += each->said(one);
            }
        }
        for (auto& each : over)
            each->tell();
    }

    const Model& model_;
    engine_limits limits_;

    // Of the thread that steps.
    detail::engine_schedule<Cache, Model> schedule_;
    std::deque<std::unique_ptr<job>> queue_; // in order of arrival
    bool crowded_ = false;                   // somebody made way, and nobody has ended since

    // Of all.
    mutable std::mutex lock_;
    std::condition_variable arrived_;
    std::vector<std::unique_ptr<job>> inbox_;
    std::vector<request_id> cancelled_;
    engine_stats stats_;
    std::uint64_t next_ = 0;
    bool closed_ = false;
};

} // namespace kvcache

// ---- kvcache/session/generate_many.hpp ----------------------------------------------------------------------------

namespace kvcache {

/// Answers to several prompts, in the prompts' order; one that could not be had does not keep the others.
using timed_answers = std::vector<result<timed_answer>>;

namespace detail {

// Prompts of a batch, whose answers are said in shared forward passes.
template <class Cache, class Model>
class answers_together {
public:
    using ending = std::optional<result<timed_answer>>;

    answers_together(chunk_pipeline<Cache, Model>& through, const sampler& draw, const stopping& until)
        : through_(through), draw_(draw), until_(until), began_(std::chrono::steady_clock::now()) {}

    /// Runs a prompt, whose answer goes to `to`. False, and nothing has changed, if pages are short that others of the
    /// batch hold.
    [[nodiscard]] bool feed(std::size_t prompt, std::span<const token_id> tokens, reuse_mode mode, ending& to) {
        auto fed = through_.feed(tokens, mode);
        if (!fed && fed.error().code == error_code::out_of_memory && !lanes_.empty())
            return false;
        if (!fed) {
            to.emplace(fed.error());
            return true;
        }
        timed_answer made;
        made.counts = fed->counts;
        lanes_.push_back({prompt, to, std::move(fed->sequence), std::move(made),
                          answering(draw_, until_, tokens, through_.exact().max_positions())});
        lane& one = lanes_.back();
        if (!one.under_way.over())
            say(one, row_of(std::as_const(fed->logits), 0));
        settle();
        return true;
    }

    /// Says all answers to their ends, a token of each in a pass. Returns: the prompts that made way for others of the
    /// batch, because pages were short.
    [[nodiscard]] std::vector<std::size_t> run() {
        std::vector<std::size_t> again;
        for (std::vector<extension<Cache>> batch; !lanes_.empty(); batch.clear()) {
            for (lane& one : lanes_)
                batch.push_back({&one.sequence, {&one.made.ids.back(), 1}, logits_of::last});
            const auto ran = through_.exact().extend(batch, logits_);
            if (ran) {
                std::size_t row = 0;
                for (lane& one : lanes_)
                    say(one, row_of(std::as_const(logits_), row++));
            } else if (ran.error().code == error_code::out_of_memory && lanes_.size() > 1) {
                again.push_back(lanes_.back().prompt);
                lanes_.pop_back();
            } else {
                for (lane& one : lanes_)
                    one.failed = ran.error();
            }
            settle();
        }
        return again;
    }

private:
    struct lane {
        std::size_t prompt;
        ending& to;
        typename Cache::sequence sequence;
        timed_answer made;
        answering under_way;
        std::optional<error> failed = {};
    };

    void say(lane& one, std::span<const float> logits) {
        const auto token = one.under_way.next(logits);
        if (!token) {
            one.failed = token.error();
            return;
        }
        one.made.ids.push_back(*token);
        one.made.total = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
        if (one.made.ids.size() == 1)
            one.made.first_token = one.made.total;
    }

    // Hands out what has ended.
    void settle() {
        lanes_.remove_if([](lane& one) {
            if (!one.failed && !one.under_way.over())
                return false;
            one.made.stopped = one.under_way.stopped();
            if (one.failed)
                one.to.emplace(*one.failed);
            else
                one.to.emplace(std::move(one.made));
            return true;
        });
    }

    chunk_pipeline<Cache, Model>& through_;
    const sampler& draw_;
    const stopping& until_;
    std::chrono::steady_clock::time_point began_;
    std::list<lane> lanes_;
    matrix logits_;
};

} // namespace detail

/// Answers prompts, at most `lanes` at a time: those that begin alike come together and run what they share once, and
/// the answers are said in shared forward passes, each with the bits and tokens that it has alone. Where pages are
/// short the last of a batch makes way, and is answered later; one that was answered keeps none. Seconds count from the
/// beginning of the prompt's batch. Errors, each in its prompt's place: those of chunk_pipeline::feed. Requires: lanes
/// > 0.
template <class Cache, class Model>
[[nodiscard]] timed_answers generate_many(chunk_pipeline<Cache, Model>& through,
                                          std::span<const std::vector<token_id>> prompts, reuse_mode mode,
                                          const sampler& draw, const stopping& until, std::size_t lanes) {
    expects(lanes > 0, "an answer needs a lane");
    std::vector<std::size_t> left(prompts.size()); // the next one last
    std::iota(left.rbegin(), left.rend(), std::size_t{0});
    std::stable_sort(left.rbegin(), left.rend(), [&](std::size_t a, std::size_t b) { return prompts[a] < prompts[b]; });
    std::vector<std::optional<result<timed_answer>>> made(prompts.size());
    while (!left.empty()) {
        detail::answers_together<Cache, Model> batch(through, draw, until);
        for (std::size_t taken = 0; taken < lanes && !left.empty(); ++taken) {
            if (!batch.feed(left.back(), prompts[left.back()], mode, made[left.back()]))
                break;
            left.pop_back();
        }
        const auto again = batch.run();
        left.insert(left.end(), again.begin(), again.end());
    }
    timed_answers all;
    all.reserve(made.size());
    for (auto& one : made)
        all.push_back(std::move(*one));
    return all;
}

/// Answers prompts all at once, as above.
template <class Cache, class Model>
[[nodiscard]] timed_answers generate_batch(chunk_pipeline<Cache, Model>& through,
                                           std::span<const std::vector<token_id>> prompts, reuse_mode mode,
                                           const sampler& draw, const stopping& until) {
    return generate_many(through, prompts, mode, draw, until, std::max<std::size_t>(prompts.size(), 1));
}

} // namespace kvcache

// ---- kvcache/session/presets.hpp ----------------------------------------------------------------------------------

namespace kvcache {

/// How a published system reuses what it has computed, as policies of a cache and options of a `chunk_pipeline`: to
/// compare systems in one program, on one model. Numbers stay exact where theirs are coded.
template <class Recompute>
struct preset {
    std::string_view name;
    std::string_view differs; ///< In what it is not theirs.
    Recompute recompute = {};
    chunk index = {};
    lru eviction = {};
    chunking split = {};
    warming warm = {};
    reuse_mode mode = reuse_mode::chunks;
};

namespace presets {

/// KVBoost with recompute off: chunks of 128, each read alone, placed as they are.
[[nodiscard]] inline preset<none> kvboost_none() {
    return {.name = "KVBoost none",
            .differs = "it repairs every prompt that has an approximate chunk",
            .index = {.least = 32}};
}

/// KVBoost's standard, selective: the last 16 tokens before every seam run again.
[[nodiscard]] inline preset<seam> kvboost_selective() {
    return {.name = "KVBoost selective",
            .differs = "it encodes those tokens without the chunks before the one they end",
            .recompute = {.rows = 16},
            .index = {.least = 32}};
}

/// KVBoost's cacheblend: the 15 % of tokens whose keys are furthest off.
[[nodiscard]] inline preset<blend> kvboost_cacheblend() {
    return {.name = "KVBoost cacheblend",
            .differs = "it runs every token in every layer to find them, and compares by cosine",
            .recompute = {.fraction = 0.15, .compares = deviation_of::keys},
            .index = {.least = 32}};
}

/// CacheBlend (Yao et al. 2025): whole documents, 15 % of their tokens by the second layer's values.
[[nodiscard]] inline preset<blend> cacheblend() {
    return {.name = "CacheBlend",
            .differs = "its kernel lets tokens that run again see later ones; see chunk_pipeline's bottom_right",
            .recompute = {.fraction = 0.15, .compares = deviation_of::values},
            .split = {.size = 0}};
}

/// EPIC's LegoLink (Hu et al. 2025): the first tokens of every document, however they lie in pages.
[[nodiscard]] inline preset<head> epic() {
    return {.name = "EPIC",
            .differs = "its link tokens are 2 to 32; here 32",
            .recompute = {.rows = 32, .page_aligned = false},
            .split = {.size = 0}};
}

/// MEPIC (2025): the first page of every document, so that all the others stay shared.
[[nodiscard]] inline preset<head> mepic() {
    return {.name = "MEPIC",
            .differs = "its pages are of 16 and 32 tokens",
            .recompute = {.rows = 16},
            .split = {.size = 0}};
}

/// quant.cpp's sessions: what a conversation's last request began with, and no more.
[[nodiscard]] inline preset<exact_prefix> quant_cpp() {
    return {.name = "quant.cpp",
            .differs = "it keeps 16 histories, one a user, and shares none; here prefixes are shared",
            .mode = reuse_mode::prefix};
}

/// DarkHal's chat sessions: all of the last prompt if the next one goes on behind it, else nothing.
[[nodiscard]] inline preset<all_or_nothing> darkhal() {
    return {.name = "DarkHal",
            .differs = "it compares words, runs the last token of an answer never, and drops what ends badly",
            .mode = reuse_mode::prefix};
}

/// llm-rag-ds-optimizer's map of prefixes.
[[nodiscard]] inline preset<exact_prefix> llmds() {
    return {.name = "llmds",
            .differs = "it knows a prefix by its first 100 tokens, and takes others with the same for it",
            .mode = reuse_mode::prefix};
}

} // namespace presets

/// Calls `ask(preset)` for each of them.
template <class Ask>
void for_presets(Ask ask) {
    ask(presets::kvboost_none());
    ask(presets::kvboost_selective());
    ask(presets::kvboost_cacheblend());
    ask(presets::cacheblend());
    ask(presets::epic());
    ask(presets::mepic());
    ask(presets::quant_cpp());
    ask(presets::darkhal());
    ask(presets::llmds());
}

} // namespace kvcache

// ---- kvcache/session/session_limits.hpp ---------------------------------------------------------------------------

namespace kvcache {

/// Bounds of a session table.
struct session_limits {
    std::size_t sessions = 64;
    std::size_t bytes = std::numeric_limits<std::size_t>::max(); ///< Of idle sessions, as their holders told.
};

/// A session as a list shows it.
struct session_entry {
    std::string key = {};
    std::size_t uses = 0; ///< Requests so far.
    std::size_t bytes = 0;
    bool in_use = false;
};

/// Least recently used, and sessions that were used once before those that were used again: a stray request evicts no
/// conversation.
using conversations_last = prioritised<lru>;
[[nodiscard]] inline conversations_last conversations_stay() {
    return {.rule = {{{{.first = 1, .count = std::numeric_limits<std::uint32_t>::max() - 1, .level = 1}}}}};
}

} // namespace kvcache

// ---- kvcache/session/session_table.hpp ----------------------------------------------------------------------------

namespace kvcache {

/// Sessions by model and key, within bounds of count and bytes, evicted by any eviction policy: an entry's depth is 0
/// at its first use, and 1 once it was used again. One request holds a session at a time; others wait, in the order of
/// their arrival. Any thread may call it.
template <class Session, eviction_policy Eviction = conversations_last>
class session_table {
    struct slot;

public:
    /// A session in use. Lets the next request have it when it goes.
    class hold {
    public:
        hold(hold&& other) noexcept
            : table_(std::exchange(other.table_, nullptr)), slot_(other.slot_), bytes_(other.bytes_) {}
        /// Lets go of the session it held before.
        hold& operator=(hold&& other) noexcept {
            hold taken(std::move(other));
            std::swap(table_, taken.table_);
            std::swap(slot_, taken.slot_);
            std::swap(bytes_, taken.bytes_);
            return *this;
        }
        ~hold() {
            if (table_ != nullptr)
                table_->release(slot_, bytes_);
        }

        [[nodiscard]] Session& operator*() const noexcept { return *slot_->session; }
        [[nodiscard]] Session* operator->() const noexcept { return slot_->session.get(); }

        /// How much the session keeps when it is let go.
        void set_bytes(std::size_t bytes) noexcept { bytes_ = bytes; }

    private:
        friend session_table;
        hold(session_table& table, slot& of) : table_(&table), slot_(&of), bytes_(of.bytes) {}

        session_table* table_;
        slot* slot_;
        std::size_t bytes_;
    };

    explicit session_table(session_limits limits, Eviction eviction)
        : limits_(limits), order_(eviction.open({limits.sessions, limits.sessions})), slots_(limits.sessions) {
        expects(limits.sessions > 0, "a table has room for a session");
    }
    explicit session_table(session_limits limits = {}) requires std::same_as<Eviction, conversations_last>
        : session_table(limits, conversations_stay()) {}

    /// The session of a key, once those before have let it go; a new one, `make()` as a unique_ptr, if there is none.
    /// Errors: out_of_memory, where all sessions are in use.
    template <class Make>
    [[nodiscard]] result<hold> acquire(const digest& model, std::string_view key, Make make) {
        std::unique_ptr<Session> gone; // destroyed when the lock is free
        std::unique_lock guard(lock_);
        auto found = names_.find({model, std::string(key)});
        if (found == names_.end()) {
            const auto free = room(gone);
            if (!free)
                return error{error_code::out_of_memory, "sessions",
                             "all " + std::to_string(limits_.sessions) + " sessions are in use"};
            found = enter(*free, model, key);
        } else
            again(found->second);
        slot& of = *slots_[index_of(found->second)];
        wait(of, guard);
        if (!of.session)
            try {
                of.session = make();
            } catch (...) {
                leave(of, gone);
                throw;
            }
        return hold(*this, of);
    }

    /// As acquire, but returns nothing where somebody holds the session or no room can be made.
    template <class Make>
    [[nodiscard]] std::optional<hold> try_acquire(const digest& model, std::string_view key, Make make) {
        {
            const std::lock_guard guard(lock_);
            const auto found = names_.find({model, std::string(key)});
            if (found != names_.end() && slots_[index_of(found->second)]->busy())
                return std::nullopt;
        }
        auto held = acquire(model, key, std::move(make)); // it may wait here for one who came between
        return held ? std::optional<hold>(std::move(*held)) : std::nullopt;
    }

    /// Takes a session away, after those who wait for it. False if there is none.
    bool remove(const digest& model, std::string_view key) {
        std::unique_ptr<Session> gone;
        std::unique_lock guard(lock_);
        const auto found = names_.find({model, std::string(key)});
        if (found == names_.end())
            return false;
        slot& of = *slots_[index_of(found->second)];
        wait(of, guard);
        gone = std::move(of.session);
        bytes_ -= std::exchange(of.bytes, 0);
        std::unique_ptr<Session> none;
        leave(of, none);
        return true;
    }

    /// Takes the session away that the policy names. False if all are in use.
    bool evict() {
        std::unique_ptr<Session> gone;
        const std::lock_guard guard(lock_);
        return evict_one(gone);
    }

    /// Takes away all that nobody uses.
    void clear() {
        while (evict()) {
        }
    }

    /// The sessions of a model, by key.
    [[nodiscard]] std::vector<session_entry> list(const digest& model) const {
        const std::lock_guard guard(lock_);
        std::vector<session_entry> made;
        for (const auto& [whose, place] : names_)
            if (whose.first == model) {
                const slot& of = *slots_[index_of(place)];
                made.push_back({whose.second, of.uses, of.bytes, of.busy()});
            }
        return made;
    }

    [[nodiscard]] std::size_t size() const {
        const std::lock_guard guard(lock_);
        return names_.size();
    }
    [[nodiscard]] std::size_t bytes() const {
        const std::lock_guard guard(lock_);
        return bytes_;
    }

private:
    using name = std::pair<digest, std::string>;
    using names = std::map<name, slot_id>;

    struct slot {
        typename names::iterator place = {};
        std::unique_ptr<Session> session = {};
        std::size_t bytes = 0;
        std::size_t uses = 0;
        std::uint64_t next = 0;    // ticket of the next to come
        std::uint64_t serving = 0; // ticket of who holds it

        [[nodiscard]] bool busy() const noexcept { return next != serving; }
    };

    // A slot that is free, made so if need be.
    [[nodiscard]] std::optional<slot_id> room(std::unique_ptr<Session>& gone) {
        if (names_.size() == limits_.sessions && !evict_one(gone))
            return std::nullopt;
        for (std::size_t i = 0; i < slots_.size(); ++i)
            if (!slots_[i])
                return slot_id{static_cast<std::uint32_t>(i)};
        return std::nullopt;
    }

    [[nodiscard]] typename names::iterator enter(slot_id at, const digest& model, std::string_view key) {
        auto made = std::make_unique<slot>();
        const auto place = names_.emplace(name{model, std::string(key)}, at).first;
        try {
            admit(at, 0);
        } catch (...) {
            names_.erase(place);
            throw;
        }
        made->place = place;
        made->uses = 1;
        slots_[index_of(at)] = std::move(made);
        return place;
    }

    void admit(slot_id at, std::uint32_t depth) {
        const entry newcomer{.key = index_of(at), .bytes = 1, .cost = 1.0, .depth = depth};
        announce(order_, newcomer);
        order_.admit(at, newcomer);
    }

    // A session is used again.
    void again(slot_id at) {
        slot& of = *slots_[index_of(at)];
        if (++of.uses == 2) {
            order_.erase(at);
            try {
                admit(at, 1);
            } catch (...) {
                of.uses = 1;
                admit(at, 0); // where it was: the memory is there
                throw;
            }
        }
        order_.touch(at);
    }

    void wait(slot& of, std::unique_lock<std::mutex>& guard) {
        const std::uint64_t ticket = of.next++;
        free_.wait(guard, [&] { return of.serving == ticket; });
    }

    // Whoever holds a slot is done with it; without a session and a next it is free.
    void leave(slot& of, std::unique_ptr<Session>& gone) {
        ++of.serving;
        free_.notify_all();
        if (!of.session && !of.busy()) {
            const slot_id at = of.place->second;
            order_.erase(at);
            forget(at, gone);
        }
    }

    void release(slot* of, std::size_t bytes) {
        std::vector<std::unique_ptr<Session>> gone;
        const std::lock_guard guard(lock_);
        bytes_ = bytes_ - of->bytes + bytes;
        of->bytes = bytes;
        settle(order_, of->place->second);
        std::unique_ptr<Session> none;
        leave(*of, none);
        while (bytes_ > limits_.bytes) {
            gone.emplace_back();
            if (!evict_one(gone.back()))
                break;
        }
    }

    bool evict_one(std::unique_ptr<Session>& gone) {
        const auto victim = order_.victim([&](slot_id at) { return !slots_[index_of(at)]->busy(); });
        if (!victim)
            return false;
        kvcache::evict(order_, *victim);
        forget(*victim, gone);
        return true;
    }

    void forget(slot_id at, std::unique_ptr<Session>& gone) {
        slot& of = *slots_[index_of(at)];
        bytes_ -= of.bytes;
        gone = std::move(of.session);
        names_.erase(of.place);
        slots_[index_of(at)].reset();
    }

    session_limits limits_;
    mutable std::mutex lock_;
    std::condition_variable free_;
    decltype(std::declval<const Eviction&>().open(eviction_room{})) order_;
    names names_;
    std::vector<std::unique_ptr<slot>> slots_;
    std::size_t bytes_ = 0;
};

} // namespace kvcache

// ---- kvcache/core/mapped_file.hpp ---------------------------------------------------------------------------------

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvcache {

/// A regular file, mapped read-only as a whole. Movable; the bytes stay where they are.
///
/// The pages are the file's own: whoever shortens the file while it is mapped takes them away, and reading them then
/// kills the process (SIGBUS). intact() tells before reading; replacing a file by rename is safe.
class mapped_file {
public:
    /// Maps `file`.
    /// Errors: not_found; io, when it is no regular file or the system refuses.
    /// Cost: no bytes are read before they are used.
    [[nodiscard]] static result<mapped_file> open(const std::filesystem::path& file) {
        mapped_file opened;
        opened.path_ = file;
        // Without O_NONBLOCK the open of a pipe would wait for its writer.
        opened.descriptor_ = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (opened.descriptor_ < 0)
            return opened.failure("cannot be opened", errno);
        struct ::stat status = {};
        if (::fstat(opened.descriptor_, &status) != 0)
            return opened.failure("has no readable status", errno);
        if (!S_ISREG(status.st_mode))
            return kvcache::error{error_code::io, opened.name(), file.string() + " is not a regular file"};
        opened.size_ = static_cast<std::size_t>(status.st_size);
        if (opened.size_ != 0) {
            void* at = ::mmap(nullptr, opened.size_, PROT_READ, MAP_PRIVATE, opened.descriptor_, 0);
            if (at == MAP_FAILED)
                return opened.failure("cannot be mapped", errno);
            opened.begin_ = static_cast<const std::byte*>(at);
        }
        return opened;
    }

    mapped_file() = default;
    mapped_file(mapped_file&& other) noexcept { swap(other); }
    mapped_file& operator=(mapped_file&& other) noexcept {
        mapped_file(std::move(other)).swap(*this);
        return *this;
    }
    ~mapped_file() {
        if (begin_ != nullptr)
            ::munmap(const_cast<std::byte*>(begin_), size_);
        if (descriptor_ >= 0)
            ::close(descriptor_);
    }

    /// The whole file. Empty for an empty file.
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {begin_, begin_ == nullptr ? 0 : size_}; }

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

    /// The last part of the path, as errors name it.
    [[nodiscard]] std::string name() const { return path_.filename().string(); }

    /// Begins to read the file from the disk, in order, as far as the system likes; returns at once.
    void read_ahead() const noexcept {
        if (begin_ != nullptr)
            ::madvise(const_cast<std::byte*>(begin_), size_, MADV_WILLNEED);
    }

    /// Takes the whole pages of these bytes out of this process's memory; who reads them again gets them again. The
    /// system's own copy stays while it has room. Requires: the bytes are this file's.
    void forget(std::span<const std::byte> bytes) const noexcept {
        const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        const auto begin = static_cast<std::size_t>(bytes.data() - begin_);
        const std::size_t first = (begin + page - 1) / page * page, last = (begin + bytes.size()) / page * page;
        if (begin_ != nullptr && first < last && last <= size_)
            ::madvise(const_cast<std::byte*>(begin_ + first), last - first, MADV_DONTNEED);
    }

    /// The file as the system describes it: device, inode, size, and the times of the last change of its content and of
    /// its description, the latter of which no program can set. None if the system does not say, or if a change was so
    /// little before `now`, the system's clock, that a second one might not show.
    [[nodiscard]] std::optional<digest> description(std::chrono::system_clock::time_point now) const {
        struct ::stat status = {};
        if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0)
            return std::nullopt;
        // Two seconds: the coarsest clock that a common file system keeps.
        const auto changed = std::chrono::seconds(std::max(status.st_mtim.tv_sec, status.st_ctim.tv_sec));
        if (changed + std::chrono::seconds(3) > now.time_since_epoch())
            return std::nullopt;
        digest_builder builder;
        builder.text("kvcache file 1").text(name());
        for (const auto number : {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
                                  static_cast<std::uint64_t>(status.st_size)})
            builder.number(number);
        for (const ::timespec& time : {status.st_mtim, status.st_ctim})
            builder.number(static_cast<std::uint64_t>(time.tv_sec)).number(static_cast<std::uint64_t>(time.tv_nsec));
        return builder.finish();
    }

    /// Whether every mapped byte is still in the file. Errors: truncated.
    [[nodiscard]] result<void> intact() const {
        struct ::stat status = {};
        if (descriptor_ >= 0 && ::fstat(descriptor_, &status) != 0)
            return failure("has no readable status", errno);
        if (descriptor_ >= 0 && static_cast<std::size_t>(status.st_size) < size_)
            return kvcache::error{error_code::truncated, name(),
                                  path_.string() + " shrank from " + std::to_string(size_) + " to " +
                                      std::to_string(status.st_size) + " bytes since it was opened"};
        return {};
    }

private:
    void swap(mapped_file& other) noexcept {
        std::swap(path_, other.path_);
        std::swap(descriptor_, other.descriptor_);
        std::swap(begin_, other.begin_);
        std::swap(size_, other.size_);
    }

    [[nodiscard]] kvcache::error failure(const char* what, int reason) const {
        const auto code = reason == ENOENT || reason == ENOTDIR ? error_code::not_found : error_code::io;
        return {code, name(), path_.string() + " " + what + ": " + std::generic_category().message(reason)};
    }

    std::filesystem::path path_;
    int descriptor_ = -1;
    const std::byte* begin_ = nullptr;
    std::size_t size_ = 0;
};

} // namespace kvcache

// ---- kvcache/core/write_file.hpp ----------------------------------------------------------------------------------

#include <fcntl.h>
#include <unistd.h>

namespace kvcache {

namespace detail {

/// An open file descriptor, closed at the end of the scope.
struct open_descriptor {
    int number = -1;

    explicit open_descriptor(int n) noexcept : number(n) {}
    open_descriptor(const open_descriptor&) = delete;
    open_descriptor& operator=(const open_descriptor&) = delete;
    ~open_descriptor() {
        if (number >= 0)
            ::close(number);
    }
};

/// Writes all bytes. Returns 0, or the system's reason.
[[nodiscard]] inline int write_all(int descriptor, std::span<const std::byte> bytes) noexcept {
    constexpr std::size_t most = std::size_t{1} << 30; // a single call takes 2 GiB at most
    while (!bytes.empty()) {
        const auto written = ::write(descriptor, bytes.data(), std::min(most, bytes.size()));
        if (written < 0 && errno != EINTR)
            return errno;
        if (written > 0)
            bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return 0;
}

} // namespace detail

/// Writes a file of these parts as a whole or not at all: to a temporary name in the same directory, through to the
/// disk, and then to its own name. Whoever opens `file` at any time, a crash included, finds what was there before or
/// all of the parts. A crash may leave the temporary file, NAME.part-NUMBERS, which nobody reads.
/// Errors: io, with the file's name.
[[nodiscard]] inline result<void> write_file(const std::filesystem::path& file,
                                             std::span<const std::span<const std::byte>> parts) {
    const auto ticks = std::chrono::steady_clock::now().time_since_epoch().count();
    const std::filesystem::path part =
        file.string() + ".part-" + std::to_string(::getpid()) + "-" + std::to_string(ticks);
    const auto failed = [&](const char* what, int reason) {
        return error{error_code::io, file.filename().string(),
                     file.string() + " " + what + ": " + std::generic_category().message(reason)};
    };
    {
        const detail::open_descriptor out(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
        if (out.number < 0)
            return failed("cannot be created", errno);
        int reason = 0;
        for (const auto bytes : parts)
            if (reason == 0)
                reason = detail::write_all(out.number, bytes);
        if (reason == 0 && ::fsync(out.number) != 0)
            reason = errno;
        if (reason != 0) {
            ::unlink(part.c_str());
            return failed("cannot be written", reason);
        }
    }
    if (std::error_code reason; std::filesystem::rename(part, file, reason), reason) {
        ::unlink(part.c_str());
        return failed("cannot be put in its place", reason.value());
    }
    // The new name itself goes to the disk; where it cannot, a crash may bring back what was there before.
    const auto beside = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
    const detail::open_descriptor folder(::open(beside.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.number >= 0)
        static_cast<void>(::fsync(folder.number));
    return {};
}

} // namespace kvcache

// ---- kvcache/session/speaking.hpp ---------------------------------------------------------------------------------

namespace kvcache {

/// How an answer is being said: what draws its tokens, and how far it is.
struct speaking {
    sampler draw = {};
    std::uint64_t next = 0;          ///< The place in the answer of the token that is drawn next.
    std::vector<token_id> said = {}; ///< Tokens that were drawn and have not run: the last one, or none.
};

/// As a record keeps it (docs/format.md).
[[nodiscard]] inline std::vector<std::byte> bytes_of(const speaking& state) {
    std::vector<std::byte> made(40 + 4 * state.said.size());
    const std::span<std::byte> to = made;
    store_little(to, 0, std::bit_cast<std::uint32_t>(state.draw.temperature));
    store_little(to, 8, state.draw.seed);
    store_little(to, 16, state.draw.choice);
    store_little(to, 24, state.next);
    store_little<std::uint64_t>(to, 32, state.said.size());
    for (std::size_t i = 0; i < state.said.size(); ++i)
        store_little(to, 40 + 4 * i, static_cast<std::uint32_t>(index_of(state.said[i])));
    return made;
}

/// Errors: malformed.
[[nodiscard]] inline result<speaking> speaking_of(std::span<const std::byte> bytes) {
    const error broken{error_code::malformed, "speaking", "speaking: it is not how an answer is said"};
    if (bytes.size() < 40 || (bytes.size() - 40) % 4 != 0 || load_little<std::uint32_t>(bytes, 4) != 0 ||
        load_little<std::uint64_t>(bytes, 32) != (bytes.size() - 40) / 4)
        return broken;
    speaking made{.draw = {.temperature = std::bit_cast<float>(load_little<std::uint32_t>(bytes, 0)),
                           .seed = load_little<std::uint64_t>(bytes, 8),
                           .choice = load_little<std::uint64_t>(bytes, 16)},
                  .next = load_little<std::uint64_t>(bytes, 24)};
    for (std::size_t at = 40; at < bytes.size(); at += 4)
        made.said.push_back(token_id{static_cast<std::int32_t>(load_little<std::uint32_t>(bytes, at))});
    return made;
}

} // namespace kvcache

// ---- kvcache/session/snapshot.hpp ---------------------------------------------------------------------------------

namespace kvcache {

/// A sequence that was saved, and how its answer was being said.
template <class Cache>
struct restored {
    typename Cache::sequence sequence;
    speaking state;
};

namespace detail {

// The name of all of a sequence's tokens.
[[nodiscard]] inline digest256 name_of(const record_names& names, std::span<const token_id> tokens,
                                       std::size_t page_tokens) {
    digest256 name = names.root();
    for (; !tokens.empty(); tokens = tokens.subspan(std::min(tokens.size(), page_tokens)))
        name = names.chain(name, tokens.first(std::min(tokens.size(), page_tokens)));
    return name;
}

[[nodiscard]] inline error refused_snapshot(error_code code, std::string field, const std::string& what) {
    std::string words = field + ": " + what;
    return {code, std::move(field), std::move(words)};
}

} // namespace detail

/// Hands a snapshot of a sequence to `write(std::span<const std::span<const std::byte>>)`, which returns result<void>:
/// a record of its tokens, its pages and how its answer was being said, named and sealed under `secret`
/// (docs/format.md). Of a sequence that goes on elsewhere, save a fork. Requires: no lease under way. Errors:
/// unsupported, for one that is not exact: its first exact() tokens can be saved by a fork. And those of `write`. Cost:
/// reads every page twice.
template <class Cache, class Write>
[[nodiscard]] result<void> write_snapshot(const Cache& cache, const typename Cache::sequence& of, const speaking& state,
                                          std::string_view secret, Write write) {
    if (of.exact() < of.size())
        return detail::refused_snapshot(error_code::unsupported, "lineage",
                                        "only " + std::to_string(of.exact()) + " of " + std::to_string(of.size()) +
                                            " tokens are exact");
    const record_names names(cache.id(), secret);
    page_parts<Cache> pages(cache);
    const auto table = of.table();
    for (std::uint32_t i = 0; i < table.size(); ++i)
        pages.add(table[i], i, of.size(), i);
    const std::vector<std::byte> said = bytes_of(state);
    pages.add({part_kind::speaking, static_cast<std::uint32_t>(table.size()), 0, said});
    const record_writer made({record_kind::sequence, 0, of.tokens(), names.root(),
                              detail::name_of(names, of.tokens(), cache.shape().tokens), pages.parts()},
                             names, record_seal(secret));
    return write(made.pieces());
}

/// Saves a snapshot to a file, as a whole or not at all (write_file). Errors: write_snapshot's; io.
template <class Cache>
[[nodiscard]] result<void> save_snapshot(const Cache& cache, const typename Cache::sequence& of, const speaking& state,
                                         const std::filesystem::path& file, std::string_view secret = {}) {
    return write_snapshot(cache, of, state, secret, [&](auto pieces) { return write_file(file, pieces); });
}

/// Takes a snapshot that lies in memory into the cache, for any machine and process of this cache's identity. What the
/// cache knows already is shared. All is checked before any of it is published: whatever is refused changes nothing.
/// Errors: those of record::parse and record::made_under; mismatched or malformed, with the field's name;
/// out_of_memory. Cost: copies the pages and reads the copies.
template <class Cache>
[[nodiscard]] result<restored<Cache>> read_snapshot(Cache& cache, std::span<const std::byte> bytes,
                                                    std::string_view secret = {}) {
    using codec = typename Cache::codec_type;
    const record_seal seal(secret);
    const auto saved = record::parse(bytes, seal);
    if (!saved)
        return saved.error();
    const record_names names(cache.id(), secret);
    if (auto own = saved->made_under(names); !own)
        return own.error();
    const auto refuse = [](const char* field, const char* what) {
        return detail::refused_snapshot(error_code::malformed, field, what);
    };
    const std::span<const token_id> tokens = saved->tokens();
    const std::size_t page_tokens = cache.shape().tokens;
    const std::size_t pages = (tokens.size() + page_tokens - 1) / page_tokens;
    if (saved->kind() != record_kind::sequence)
        return refuse("kind", "this is a page, and a sequence is asked for");
    if (saved->first() != 0 || saved->before() != names.root())
        return refuse("before", "a sequence begins with its first token");
    if (saved->name() != detail::name_of(names, tokens, page_tokens))
        return refuse("name", "it is not that of the tokens");
    const auto& parts = saved->parts();
    const auto behind = std::ranges::count_if(parts, [&](const record_part& part) { return part.index >= pages; });
    if (behind != 1 || parts.back().kind != part_kind::speaking || parts.back().index != pages)
        return refuse("parts", "they are not those of the tokens");
    auto state = speaking_of(parts.back().bytes);
    if (!state)
        return state.error();

    auto found = cache.match(tokens);
    const std::size_t known = found.tokens() == tokens.size() ? pages : found.tokens() / page_tokens;
    auto sequence = cache.open(std::move(found), {std::min(known * page_tokens, tokens.size()), 0});
    const std::size_t first = (sequence.size() + page_tokens - 1) / page_tokens; // it may keep less
    const auto check = [&](const record_part& part) { return record::sound(part, part.bytes, seal); };
    for (const record_part& part : parts)
        if (part.index < first || part.index == pages)
            if (auto sound = check(part); !sound)
                return sound.error();
    if (sequence.size() < tokens.size()) {
        auto lease = cache.reserve(sequence, tokens.size() - sequence.size(), 1);
        if (!lease)
            return lease.error();
        for (std::size_t page = first; page < pages; ++page) {
            const auto index = static_cast<std::uint32_t>(page);
            const std::size_t rows = std::min(page_tokens, tokens.size() - page * page_tokens);
            if (auto placed =
                    place_page<codec>(*saved, index, *lease, page - first, static_cast<std::uint32_t>(rows), seal);
                !placed)
                return placed.error();
            for (const part_kind kind : {part_kind::page, part_kind::exact}) // what the page has no use for
                if (const record_part* part = saved->part(kind, index);
                    part && !places<codec>(kind, *lease, page - first, rows))
                    if (auto sound = check(*part); !sound)
                        return sound.error();
        }
        lease->commit_in_place(tokens.subspan(sequence.size()));
    }
    return restored<Cache>{std::move(sequence), std::move(*state)};
}

/// Loads a snapshot from a file. Errors: mapped_file::open's, and read_snapshot's.
template <class Cache>
[[nodiscard]] result<restored<Cache>> load_snapshot(Cache& cache, const std::filesystem::path& file,
                                                    std::string_view secret = {}) {
    const auto mapped = mapped_file::open(file);
    if (!mapped)
        return mapped.error();
    if (auto whole = mapped->intact(); !whole)
        return whole.error();
    return read_snapshot(cache, mapped->bytes(), secret);
}

/// Loads a snapshot from a stream, to its end. Errors: io, when the stream fails; out_of_range, when there is more than
/// `most` bytes; read_snapshot's.
template <class Cache>
[[nodiscard]] result<restored<Cache>> load_snapshot(Cache& cache, std::istream& from, std::size_t most,
                                                    std::string_view secret = {}) {
    std::vector<std::byte> bytes;
    std::vector<char> piece(std::size_t{1} << 16);
    while (from.read(piece.data(), static_cast<std::streamsize>(piece.size())), from.gcount() > 0) {
        const auto read = std::as_bytes(std::span(piece).first(static_cast<std::size_t>(from.gcount())));
        if (read.size() > most - bytes.size())
            return detail::refused_snapshot(error_code::out_of_range, "total_bytes",
                                            "there are more than " + std::to_string(most) + " bytes");
        bytes.insert(bytes.end(), read.begin(), read.end());
    }
    if (from.bad())
        return error{error_code::io, "stream", "the stream could not be read"};
    return read_snapshot(cache, bytes, secret);
}

} // namespace kvcache

// ---- kvcache/session/stop_strings.hpp -----------------------------------------------------------------------------

namespace kvcache {

/// Ends a text before the first of some strings, and holds back only what could still become one of them. Which string
/// ends it, and where, does not depend on how the text is cut into pieces: the one that is complete first, of those the
/// longest. Whole code points stay whole.
class stop_strings {
public:
    /// Ends nothing.
    stop_strings() = default;
    /// Empty strings are left out.
    explicit stop_strings(const std::vector<std::string>& strings) {
        for (const std::string& each : strings)
            if (!each.empty())
                patterns_.push_back(make(each));
    }

    /// Takes the next piece. Returns: the text that is now sure, nothing once the text has ended.
    /// Cost: O(bytes x strings).
    [[nodiscard]] std::string push(std::string_view piece) {
        for (std::size_t i = 0; i < piece.size() && !stopped_; ++i) {
            held_ += piece[i];
            std::size_t longest = 0;
            for (pattern& each : patterns_)
                if (each.take(piece[i])) {
                    longest = std::max(longest, each.text.size());
                    stopped_ = true;
                }
            held_.resize(held_.size() - longest);
        }
        std::size_t keep = 0;
        for (const pattern& each : patterns_)
            keep = std::max(keep, stopped_ ? 0 : each.matched);
        std::string sure = held_.substr(0, held_.size() - keep);
        held_.erase(0, sure.size());
        return sure;
    }

    /// The text is over. Returns: what was held back.
    [[nodiscard]] std::string flush() {
        for (pattern& each : patterns_)
            each.matched = 0;
        return std::exchange(held_, std::string());
    }

    /// Whether one of the strings has ended the text.
    [[nodiscard]] bool stopped() const noexcept { return stopped_; }
    /// Bytes held back.
    [[nodiscard]] std::size_t held() const noexcept { return held_.size(); }

private:
    // Knuth, Morris & Pratt 1977: the longest suffix of the text that begins the string.
    struct pattern {
        std::string text;
        std::vector<std::size_t> border; // of the first i bytes
        std::size_t matched = 0;

        // Whether the string is complete.
        bool take(char next) {
            while (matched > 0 && text[matched] != next)
                matched = border[matched];
            matched += text[matched] == next;
            return matched == text.size();
        }
    };

    [[nodiscard]] static pattern make(const std::string& text) {
        pattern made{text, std::vector<std::size_t>(text.size() + 1, 0)};
        for (std::size_t i = 1, k = 0; i < text.size(); ++i) {
            while (k > 0 && text[k] != text[i])
                k = made.border[k];
            k += text[k] == text[i];
            made.border[i + 1] = k;
        }
        return made;
    }

    std::vector<pattern> patterns_;
    std::string held_;
    bool stopped_ = false;
};

} // namespace kvcache

// ---- kvcache/session/verify.hpp -----------------------------------------------------------------------------------

namespace kvcache {

/// What a mode of reuse did to the logits of a prompt's last token and of all tokens of its answer.
struct verification {
    bool same_bits = false;        ///< They are, bit for bit, those of a prefill of everything.
    double kl = 0.0;               ///< Mean Kullback-Leibler divergence from those, in nats a token.
    double argmax_agreement = 0.0; ///< The share of tokens whose likeliest successor is the same.
    std::size_t tokens = 0;        ///< That were compared.
    reuse_counts counts = {};      ///< What was reused: a comparison in which nothing was says nothing.
};

/// KL(p || q) of two rows of logits, in nats. Cost: O(vocabulary).
[[nodiscard]] inline double divergence(std::span<const float> p, std::span<const float> q) {
    expects(p.size() == q.size() && !p.empty(), "distributions over one vocabulary are compared");
    const auto log_total = [](std::span<const float> row) {
        const auto top = static_cast<double>(*std::ranges::max_element(row));
        double sum = 0.0;
        for (const float x : row)
            sum += std::exp(static_cast<double>(x) - top);
        return top + std::log(sum);
    };
    const double of_p = log_total(p), of_q = log_total(q);
    double sum = 0.0;
    for (std::size_t i = 0; i < p.size(); ++i) {
        const double log_p = static_cast<double>(p[i]) - of_p;
        sum += std::exp(log_p) * (log_p - (static_cast<double>(q[i]) - of_q));
    }
    return std::max(sum, 0.0);
}

/// Runs a prompt and an answer with reuse, then again without any, and compares. The prompt is known afterwards.
/// Errors: those of chunk_pipeline::feed. Cost: a prefill more than the answer takes.
template <class Cache, class Model>
[[nodiscard]] result<verification> verify(chunk_pipeline<Cache, Model>& through, std::span<const token_id> prompt,
                                          std::span<const token_id> answer, reuse_mode mode) {
    const auto run = [&](reuse_mode how, reuse_counts& counts) -> result<matrix> {
        auto fed = through.feed(prompt, how);
        if (!fed)
            return fed.error();
        counts = fed->counts;
        if (answer.empty())
            return std::move(fed->logits);
        auto behind = through.exact().extend(fed->sequence, answer, logits_of::all);
        if (!behind)
            return behind.error();
        matrix all(behind->rows() + 1, behind->cols());
        all << fed->logits, *behind;
        return all;
    };
    verification made{.tokens = answer.size() + 1};
    reuse_counts nothing;
    const auto reused = run(mode, made.counts);
    if (!reused)
        return reused.error();
    const auto truth = run(reuse_mode::baseline, nothing);
    if (!truth)
        return truth.error();
    made.same_bits =
        std::memcmp(reused->data(), truth->data(), static_cast<std::size_t>(truth->size()) * sizeof(float)) == 0;
    for (Eigen::Index i = 0; i < truth->rows(); ++i) {
        const auto row = static_cast<std::size_t>(i);
        const auto p = row_of(*truth, row), q = row_of(*reused, row);
        made.kl += divergence(p, q);
        const bool agree = std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin();
        made.argmax_agreement += agree ? 1.0 : 0.0;
    }
    made.kl /= static_cast<double>(made.tokens);
    made.argmax_agreement /= static_cast<double>(made.tokens);
    return made;
}

} // namespace kvcache

// ---- kvcache/storage/counted_storage.hpp --------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

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

namespace kvcache {

/// Zeroes bytes for good: the compiler may not drop it, although nobody reads them again.
inline void wipe(std::span<std::byte> bytes) noexcept {
    if (bytes.empty())
        return;
    std::memset(bytes.data(), 0, bytes.size());
    asm volatile("" : : "r"(bytes.data()) : "memory"); // says that somebody may read them
}

} // namespace kvcache

// ---- kvcache/storage/zeroising.hpp --------------------------------------------------------------------------------

namespace kvcache {

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

namespace kvcache {

/// Every storage policy of the library, with its standard options.
using storage_policies = std::tuple<heap, huge_pages, mapped, zeroising<heap>, counted_storage<heap>, failing<heap>>;

} // namespace kvcache

// ---- kvcache/testing/violations.hpp -------------------------------------------------------------------------------

namespace kvcache::testing {

/// The laws that a policy has broken, each named once. Empty: all hold.
using violations = std::vector<std::string>;

namespace detail {

inline void law(violations& broken, bool holds, const char* words) {
    if (!holds && std::ranges::find(broken, words) == broken.end())
        broken.emplace_back(words);
}

// Choices from a seed (splitmix64).
class choices {
public:
    explicit choices(std::uint64_t seed) : state_(seed) {}

    /// 64 bits.
    [[nodiscard]] std::uint64_t bits() {
        std::uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        return x ^ (x >> 31);
    }
    /// A number below `bound`; zero if that is zero.
    [[nodiscard]] std::size_t below(std::size_t bound) { return bound == 0 ? 0 : bits() % bound; }
    /// One time in n.
    [[nodiscard]] bool one_in(std::size_t n) { return below(n) == 0; }

private:
    std::uint64_t state_;
};

} // namespace detail

} // namespace kvcache::testing

// ---- kvcache/testing/page_codec_laws.hpp --------------------------------------------------------------------------

namespace kvcache::testing {

namespace detail {

// A page that is written and coded, and the numbers it should hold.
template <codec_policy Policy>
class page_codec_trial {
public:
    page_codec_trial(const Policy& policy, page_shape shape, double tolerance, violations& broken)
        : shape_(shape),
          state_(policy.open(shape)),
          tolerance_(tolerance),
          truth_(std::size_t{2} * shape.layers * shape.kv_heads * shape.tokens * shape.head_dim),
          broken_(broken) {
        law(broken, state_.page_bytes() > 0, "a page has bytes");
        law(broken, !state_.name().empty() && state_.name() == policy.open(shape).name(), "a codec has one name");
        law(broken, state_.shape() == shape, "a codec knows its pages' shape");
    }

    void run(choices& choose) {
        for (float& number : truth_)
            number = static_cast<float>(static_cast<std::int32_t>(choose.bits() >> 40) - (1 << 23)) * 0x1p-21f;
        turns();
        const auto page = coded(choose, std::byte{0});
        compare(page);
        law(broken_, coded(choose, std::byte{0xff}) == page,
            "the bytes of a page depend on its rows alone, written in any order");
        one_head(page);
    }

private:
    static constexpr std::byte guard{0xa5};
    using bytes = aligned_vector<std::byte>;

    // (2, head_dim): the key and the value of a row.
    [[nodiscard]] std::span<const float> row(std::uint32_t layer, std::uint32_t head, std::uint32_t at) const {
        const std::size_t width = std::size_t{2} * shape_.head_dim;
        return std::span(truth_).subspan(((std::size_t{layer} * shape_.kv_heads + head) * shape_.tokens + at) * width,
                                         width);
    }

    // Exact rows, written in a random order, and the page that they are coded into behind a filler.
    [[nodiscard]] bytes coded(choices& choose, std::byte filler) {
        rows_.emplace_back(shape_);
        exact_page& rows = rows_.back();
        rows.begin(0);
        bytes page(state_.page_bytes() + 64, guard);
        const auto own = std::span(page).first(state_.page_bytes());
        std::ranges::fill(own, filler);
        std::vector<std::uint32_t> order(shape_.tokens);
        std::iota(order.begin(), order.end(), 0u);
        for (std::size_t i = order.size(); i > 1; --i)
            std::swap(order[i - 1], order[choose.below(i)]);
        std::vector<float> keys(std::size_t{shape_.kv_heads} * shape_.head_dim), values(keys.size());
        for (std::uint32_t layer = 0; layer < shape_.layers; ++layer)
            for (const std::uint32_t at : order) {
                for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
                    const auto numbers = row(layer, head, at);
                    std::ranges::copy(numbers.first(shape_.head_dim), keys.begin() + head * shape_.head_dim);
                    std::ranges::copy(numbers.last(shape_.head_dim), values.begin() + head * shape_.head_dim);
                }
                rows.write(state_, own, layer_id{layer}, at, keys, values);
            }
        law(broken_, std::ranges::count(std::span(page).subspan(state_.page_bytes()), guard) == 64,
            "nothing is written behind a page");
        page.resize(state_.page_bytes());
        return page;
    }

    // What a page gives back is what was turned, but for the tolerance; `Keys`: of keys, else of values.
    void compare(const bytes& page) {
        const std::size_t dim = shape_.head_dim, width = value_width(dim);
        aligned_vector<float> keys(dim * tile_tokens), values(tile_tokens * width);
        std::vector<float> key(dim), value(dim);
        double size[2] = {}, error[2] = {};
        for (std::uint32_t layer = 0; layer < shape_.layers; ++layer)
            for (std::uint32_t head = 0; head < shape_.kv_heads; ++head)
                for (std::uint32_t at = 0; at < shape_.tokens; ++at) {
                    const page_tile tile{layer_id{layer}, head_id{head}, at / tile_tokens};
                    const float* k = state_.keys(page, tile, keys);
                    const float* v = state_.values(page, tile, values);
                    const auto numbers = row(layer, head, at);
                    std::ranges::copy(numbers.first(dim), key.begin());
                    std::ranges::copy(numbers.last(dim), value.begin());
                    state_.turn_key(key);
                    state_.turn_value(value);
                    for (std::size_t d = 0; d < dim; ++d) {
                        const double got[] = {k[d * tile_tokens + at % tile_tokens], v[at % tile_tokens * width + d]};
                        const double wanted[] = {key[d], value[d]};
                        for (std::size_t i = 0; i < 2; ++i) {
                            size[i] += wanted[i] * wanted[i];
                            error[i] += (got[i] - wanted[i]) * (got[i] - wanted[i]);
                        }
                    }
                }
        for (std::size_t i = 0; i < 2; ++i)
            law(broken_, std::sqrt(error[i]) <= tolerance_ * std::sqrt(size[i]),
                "what is coded is read, within the tolerance");
    }

    // Turning keeps products of queries and keys, and is undone for values.
    void turns() {
        const std::size_t dim = shape_.head_dim;
        const auto numbers = row(0, 0, 0);
        std::vector<float> a(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(dim)),
            b(numbers.begin() + static_cast<std::ptrdiff_t>(dim), numbers.end());
        const std::vector<float> value = b;
        const auto product = [&] { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); };
        const double before = product();
        state_.turn_key(a);
        state_.turn_key(b);
        law(broken_, std::abs(product() - before) <= 1e-4 * static_cast<double>(dim),
            "turned queries and keys have the product they had");
        b = value;
        state_.turn_value(b);
        state_.turn_back(b);
        bool same = true;
        for (std::size_t d = 0; d < dim; ++d)
            same = same && std::abs(b[d] - value[d]) <= 1e-5f;
        law(broken_, same, "turned values are turned back");
    }

    // Coding one head again leaves the others as they are.
    void one_head(const bytes& page) {
        bytes other = page;
        const auto head = head_id{shape_.kv_heads - 1};
        state_.encode(other, layer_id{0}, head, rows_.front().bytes());
        law(broken_, other == page, "coding the same rows again changes nothing");
        const exact_page none(shape_);
        state_.encode(other, layer_id{0}, head, none.bytes());
        const std::size_t each = state_.page_bytes() / (std::size_t{shape_.layers} * shape_.kv_heads);
        bool same = true;
        for (std::size_t i = 0; i < page.size(); ++i)
            same = same && (i / each == shape_.kv_heads - 1 || other[i] == page[i]);
        law(broken_, same, "coding a head leaves the others as they are");
    }

    page_shape shape_;
    decltype(std::declval<const Policy&>().open(page_shape{})) state_;
    double tolerance_;
    std::vector<float> truth_; // (layers, kv_heads, tokens, 2, head_dim)
    std::vector<exact_page> rows_;
    violations& broken_;
};

} // namespace detail

} // namespace kvcache::testing

// ---- kvcache/testing/codec_laws.hpp -------------------------------------------------------------------------------

namespace kvcache::testing {

namespace detail {

// The numbers of one page as a codec gives them back: keys, then values, of each (layer, head, row).
template <row_writer State>
[[nodiscard]] std::vector<float> decoded(const State& state, page_shape shape, std::span<const std::byte> page) {
    const std::size_t width = value_width(shape.head_dim);
    aligned_vector<float> keys(std::size_t{shape.head_dim} * tile_tokens), values(tile_tokens * width);
    std::vector<float> numbers;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
        for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
            for (std::uint32_t row = 0; row < shape.tokens; ++row) {
                const page_tile tile{layer_id{layer}, head_id{head}, row / tile_tokens};
                const float* k = state.keys(page, tile, keys);
                const float* v = state.values(page, tile, values);
                for (std::size_t d = 0; d < shape.head_dim; ++d)
                    numbers.push_back(k[d * tile_tokens + row % tile_tokens]);
                for (std::size_t d = 0; d < shape.head_dim; ++d)
                    numbers.push_back(v[row % tile_tokens * width + d]);
            }
    return numbers;
}

[[nodiscard]] inline bool same_bits(std::span<const float> a, std::span<const float> b) {
    return std::ranges::equal(
        a, b, [](float x, float y) { return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y); });
}

// A page that is written row by row, and the numbers it should hold.
template <codec_policy Policy>
class codec_trial {
public:
    codec_trial(const Policy& policy, page_shape shape, double tolerance, violations& broken)
        : shape_(shape),
          state_(policy.open(shape)),
          tolerance_(tolerance),
          page_(state_.page_bytes() + 64),
          truth_(std::size_t{2} * shape.layers * shape.kv_heads * shape.tokens * shape.head_dim),
          broken_(broken) {
        std::ranges::fill(std::span(page_).subspan(state_.page_bytes()), guard);
        law(broken, state_.page_bytes() > 0, "a page has bytes");
        law(broken, !state_.name().empty() && state_.name() == policy.open(shape).name(), "a codec has one name");
    }

    void run(choices& choose) {
        for (std::uint32_t row = 0; row < shape_.tokens; ++row)
            write(row, choose);
        compare(0, truth_.size());
        for (std::size_t again = 6; again > 0; --again) { // a row alone changes
            const auto before = decoded(state_, shape_, bytes());
            const auto row = static_cast<std::uint32_t>(choose.below(shape_.tokens));
            write(row, choose);
            const auto after = decoded(state_, shape_, bytes());
            for (std::size_t i = 0; i < truth_.size(); ++i)
                law(broken_, row_of(i) == row || same_bits({&before[i], 1}, {&after[i], 1}),
                    "a row that is written leaves its neighbours as they are");
        }
        compare(0, truth_.size());
        copies(choose.below(shape_.tokens + 1));
        for (const std::size_t rows : {0u, 1u, 15u, 16u})
            copies(rows);
        law(broken_, std::ranges::count(std::span(page_).subspan(state_.page_bytes()), guard) == 64,
            "nothing is written behind a page");
    }

private:
    static constexpr std::byte guard{0xa5};

    [[nodiscard]] std::span<std::byte> bytes() { return std::span(page_).first(state_.page_bytes()); }
    [[nodiscard]] std::size_t row_of(std::size_t number) const {
        return number / (std::size_t{2} * shape_.head_dim) % shape_.tokens;
    }

    [[nodiscard]] float number(choices& choose) const {
        if (tolerance_ == 0.0 && choose.one_in(8)) { // what only an exact codec keeps
            constexpr float odd[] = {-0.0f, 1e-41f, -3.4028235e38f, 1.17549435e-38f};
            return odd[choose.below(4)];
        }
        return static_cast<float>(static_cast<std::int32_t>(choose.bits() >> 40) - (1 << 23)) * 0x1p-21f;
    }

    void write(std::uint32_t row, choices& choose) {
        for (std::uint32_t layer = 0; layer < shape_.layers; ++layer)
            for (std::uint32_t head = 0; head < shape_.kv_heads; ++head) {
                const std::size_t at =
                    ((std::size_t{layer} * shape_.kv_heads + head) * shape_.tokens + row) * 2 * shape_.head_dim;
                const auto numbers = std::span(truth_).subspan(at, std::size_t{2} * shape_.head_dim);
                std::ranges::generate(numbers, [&] { return number(choose); });
                state_.encode(bytes(), {layer_id{layer}, head_id{head}, row}, numbers.first(shape_.head_dim),
                              numbers.last(shape_.head_dim));
            }
    }

    void compare(std::size_t first, std::size_t count) {
        const auto numbers = decoded(state_, shape_, bytes());
        const auto got = std::span(numbers).subspan(first, count);
        const auto wanted = std::span<const float>(truth_).subspan(first, count);
        if (tolerance_ == 0.0) {
            law(broken_, same_bits(got, wanted), "what is written is read, bit for bit");
            return;
        }
        for (std::size_t i = 0; i < count; ++i) // the numbers lie within four of zero
            law(broken_, std::abs(double{got[i]} - double{wanted[i]}) <= 4 * tolerance_,
                "what is written is read, within the tolerance");
    }

    void copies(std::size_t rows) {
        aligned_vector<std::byte> other(state_.page_bytes() + 64, guard);
        const auto target = std::span(other).first(state_.page_bytes());
        std::ranges::fill(target, std::byte{});
        state_.copy(bytes(), target, rows);
        const auto from = decoded(state_, shape_, bytes()), to = decoded(state_, shape_, target);
        for (std::size_t i = 0; i < truth_.size(); ++i)
            law(broken_, row_of(i) >= rows || same_bits({&from[i], 1}, {&to[i], 1}), "copied rows read as before");
        law(broken_, std::ranges::count(std::span(other).subspan(state_.page_bytes()), guard) == 64,
            "nothing is copied behind a page");
    }

    page_shape shape_;
    decltype(std::declval<const Policy&>().open(page_shape{})) state_;
    double tolerance_;
    aligned_vector<std::byte> page_; // with a guard behind it
    std::vector<float> truth_;       // (layers, kv_heads, tokens, 2, head_dim)
    violations& broken_;
};

} // namespace detail

/// The laws of a codec. One that writes row by row keeps every bit with a tolerance of zero; else each number within
/// that share of the largest. One of whole pages keeps them within that share of their root mean square, on average.
template <codec_policy Policy>
[[nodiscard]] violations codec_laws(const Policy& policy, std::uint64_t seed, double tolerance) {
    violations broken;
    detail::choices choose(seed);
    if constexpr (page_writer<opened_by<Policy, page_shape>>) {
        for (const page_shape shape : {page_shape{1, 1, 16, 32}, page_shape{2, 3, 64, 32}, page_shape{3, 1, 8, 64},
                                       page_shape{1, 2, 80, 64}, page_shape{1, 1, 5, 32}})
            detail::page_codec_trial<Policy>(policy, shape, tolerance, broken).run(choose);
        return broken;
    } else {
        for (const page_shape shape : {page_shape{1, 1, 16, 16}, page_shape{2, 3, 64, 32}, page_shape{3, 1, 8, 64},
                                       page_shape{1, 2, 80, 48}, page_shape{1, 1, 5, 16}})
            detail::codec_trial<Policy>(policy, shape, tolerance, broken).run(choose);
        return broken;
    }
}

} // namespace kvcache::testing

// ---- kvcache/testing/eviction_laws.hpp ----------------------------------------------------------------------------

namespace kvcache::testing {

namespace detail {

// An eviction state beside the plain truth of who is in it.
template <eviction_policy Policy>
class eviction_trial {
public:
    eviction_trial(const Policy& policy, std::size_t slots, violations& broken)
        : state_(policy.open({.slots = slots, .bytes = slots * 256})),
          twin_(policy.open({.slots = slots, .bytes = slots * 256})),
          parents_(slots),
          depths_(slots),
          children_(slots),
          present_(slots, false),
          broken_(broken) {}

    void run(choices& choose, std::size_t rounds, bool names_victims) {
        for (; rounds > 0; --rounds) {
            const slot_id slot{static_cast<std::uint32_t>(choose.below(present_.size()))};
            if (!present_[index_of(slot)]) {
                admit(slot, choose);
            } else if (choose.one_in(8)) {
                if (childless(slot))
                    erase(slot);
            } else if (choose.one_in(4)) {
                settle(state_, slot);
                settle(twin_, slot);
            } else {
                state_.touch(slot);
                twin_.touch(slot);
            }
            if (choose.one_in(3)) {
                std::vector<bool> held(present_.size());
                const std::size_t share = choose.below(4);
                for (std::size_t i = 0; i < held.size(); ++i)
                    held[i] = choose.below(4) < share;
                if (const auto gone = victim(held, names_victims); gone && choose.one_in(4))
                    erase(*gone);
                else if (gone && choose.one_in(2))
                    evict(*gone);
            }
        }
        drain(names_victims);
    }

    void admit(slot_id slot, choices& choose) {
        entry newcomer{choose.below(40), 64 + choose.below(4) * 64, 1.0 + static_cast<double>(choose.below(8)), {}};
        const slot_id parent{static_cast<std::uint32_t>(choose.below(present_.size()))};
        if (present_[index_of(parent)] && choose.one_in(2)) {
            newcomer.parent = parent;
            newcomer.depth = depths_[index_of(parent)] + 1;
        }
        if (choose.one_in(2))
            newcomer.length = newcomer.depth + 1 + static_cast<std::uint32_t>(choose.below(4));
        parents_[index_of(slot)] = newcomer.parent;
        depths_[index_of(slot)] = newcomer.depth;
        if (choose.one_in(4)) { // somebody who does not come after all
            const entry other{choose.below(40), 64, 1.0, {}};
            announce(state_, other);
            announce(twin_, other);
        }
        if (!choose.one_in(4)) {
            announce(state_, newcomer);
            announce(twin_, newcomer);
        }
        state_.admit(slot, newcomer);
        twin_.admit(slot, newcomer);
        present_[index_of(slot)] = true;
        if (newcomer.parent && ++children_[index_of(parent)] == 1) {
            cover(state_, parent);
            cover(twin_, parent);
        }
    }

    // Everything leaves, each entry once, leaves before parents.
    void drain(bool names_victims) {
        std::size_t left = 0;
        for (const bool one : present_)
            left += one;
        const std::vector<bool> nobody(present_.size(), false);
        for (; left > 0 && names_victims; --left) {
            const auto gone = victim(nobody, names_victims);
            law(broken_, gone.has_value(), "every admitted entry leaves when all may");
            if (!gone || !present_[index_of(*gone)])
                return;
            evict(*gone);
        }
        if (left == 0)
            law(broken_, !victim(nobody, false), "an empty policy has no victim");
    }

private:
    [[nodiscard]] bool childless(slot_id slot) const { return children_[index_of(slot)] == 0; }

    void leave(slot_id slot) {
        present_[index_of(slot)] = false;
        const std::optional<slot_id> parent = parents_[index_of(slot)];
        if (parent && --children_[index_of(*parent)] == 0) {
            uncover(state_, *parent);
            uncover(twin_, *parent);
        }
    }

    void erase(slot_id slot) {
        state_.erase(slot);
        twin_.erase(slot);
        leave(slot);
    }

    void evict(slot_id slot) {
        kvcache::evict(state_, slot);
        kvcache::evict(twin_, slot);
        leave(slot);
    }

    std::optional<slot_id> victim(const std::vector<bool>& held, bool names_victims) {
        bool strangers = false, any = false;
        std::size_t asked = 0;
        const auto allowed = [&](slot_id slot) {
            return index_of(slot) < present_.size() && present_[index_of(slot)] && !held[index_of(slot)] &&
                   childless(slot);
        };
        const auto may_leave = [&](slot_id slot) {
            strangers = strangers || index_of(slot) >= present_.size() || !present_[index_of(slot)];
            ++asked;
            return allowed(slot);
        };
        for (std::size_t i = 0; i < present_.size(); ++i)
            any = any || allowed(slot_id{static_cast<std::uint32_t>(i)});

        const std::optional<slot_id> found = state_.victim(may_leave);
        law(broken_, !strangers, "only entries that are present are asked about");
        law(broken_, asked <= 16 * present_.size(), "a search asks about an entry a few times at most");
        law(broken_, !found || (index_of(*found) < present_.size() && present_[index_of(*found)]),
            "a victim was admitted and has not left");
        law(broken_, !found || allowed(*found), "a victim may leave");
        law(broken_, found || !any || !names_victims, "there is a victim while an entry may leave");
        law(broken_, twin_.victim(may_leave) == found, "the same history has the same victim");
        return found && allowed(*found) ? found : std::nullopt;
    }

    decltype(std::declval<const Policy&>().open(eviction_room{})) state_;
    decltype(std::declval<const Policy&>().open(eviction_room{})) twin_;
    std::vector<std::optional<slot_id>> parents_;
    std::vector<std::uint32_t> depths_;
    std::vector<std::uint32_t> children_;
    std::vector<bool> present_;
    violations& broken_;
};

// Whether a policy ever names a victim: one that never does is a policy too.
template <eviction_policy Policy>
[[nodiscard]] bool names_victims(const Policy& policy) {
    auto state = policy.open({.slots = 1, .bytes = 256});
    state.admit(slot_id{0}, {.key = 1, .bytes = 64, .cost = 1.0});
    const auto always = [](slot_id) { return true; };
    return std::optional<slot_id>(state.victim(always)).has_value();
}

} // namespace detail

/// The laws of an eviction policy, tried over random histories in which some entries are held and some continue others.
template <eviction_policy Policy>
[[nodiscard]] violations eviction_laws(const Policy& policy, std::uint64_t seed) {
    violations broken;
    detail::choices choose(seed);
    const bool names = detail::names_victims(policy);
    for (const std::size_t slots : {1u, 2u, 3u, 8u, 50u}) {
        detail::eviction_trial<Policy> one(policy, slots, broken);
        one.drain(names);
        for (const std::size_t rounds : {1u, 10u, 100u, 600u})
            one.run(choose, rounds, names);
    }
    return broken;
}

} // namespace kvcache::testing

// ---- kvcache/testing/hash_laws.hpp --------------------------------------------------------------------------------

namespace kvcache::testing {

/// For each field of an identity, its name and an identity that differs from the standard one in it alone.
[[nodiscard]] inline std::vector<std::pair<std::string, identity>> changed_identities() {
    return {{"weights", {.weights = {1, 0}}},
            {"adapter", {.adapter = "a"}},
            {"tokenizer", {.tokenizer = {1, 0}}},
            {"config", {.config = "a"}},
            {"rope", {.rope = "a"}},
            {"codec", {.codec = "a"}},
            {"layout", {.layout = "a"}},
            {"page_tokens", {.page_tokens = 16}},
            {"weight_format", {.weight_format = "a"}},
            {"numeric_contract", {.numeric_contract = numeric_contract_revision + 1}},
            {"backend", {.backend = "a"}},
            {"lineage", {.lineage = "a"}},
            {"format", {.format = record_format_revision + 1}},
            {"tenant", {.tenant = "a"}}};
}

/// The laws of a hash: what it names differently, over every run of up to seven tokens of three.
template <hash_policy Policy>
[[nodiscard]] violations hash_laws(const Policy& policy, std::uint64_t seed) {
    violations broken;
    std::set<digest> names;
    std::set<std::uint64_t> low_halves;
    const auto fresh = [&](digest name) { return names.insert(name).second && low_halves.insert(name.low).second; };

    std::size_t fields = 0;
    for_each_field(identity{}, [&](const char*, const auto&) { ++fields; });
    const auto changed = changed_identities();
    detail::law(broken, fields == changed.size(), "changed_identities() changes every field");
    (void)fresh(policy.open({}).root());
    for (const auto& [field, id] : changed)
        detail::law(broken, fresh(policy.open(id).root()), "the root depends on every field of the identity");

    const auto state = policy.open({}), twin = policy.open({});
    detail::law(broken, state.root() == twin.root(), "equal identities have one root");
    std::vector<std::vector<token_id>> runs = {{}};
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const std::vector<token_id> run = runs[i];
        if (!run.empty()) {
            const digest name = state.chain(state.root(), run);
            detail::law(broken, name == twin.chain(twin.root(), run), "equal runs have one name");
            detail::law(broken, fresh(name), "every token, its place and their number matter");
        }
        if (run.size() < 7)
            for (const std::int32_t token : {0, 1, -1}) {
                runs.push_back(run);
                runs.back().push_back(token_id{token});
            }
    }

    detail::choices choose(seed);
    digest before = state.root();
    for (std::size_t link = 0; link < 500; ++link) {
        std::vector<token_id> run(1 + choose.below(80));
        std::ranges::generate(run, [&] { return token_id{static_cast<std::int32_t>(choose.below(50000))}; });
        const digest next = state.chain(before, run);
        detail::law(broken, fresh(next), "a long chain never comes back");
        detail::law(broken,
                    state.chain({before.low ^ 1, before.high}, run) != next &&
                        state.chain({before.low, before.high ^ 1}, run) != next,
                    "what comes before a run matters");
        before = next;
    }
    return broken;
}

} // namespace kvcache::testing

// ---- kvcache/testing/index_laws.hpp -------------------------------------------------------------------------------

namespace kvcache::testing {

namespace detail {

// An index beside a plain list of pages, each with its parent and run.
template <index_policy Policy>
class index_trial {
public:
    index_trial(const Policy& policy, page_shape shape, std::size_t pages, violations& broken)
        : state_(policy.open(shape, pages)), tokens_(shape.tokens), truth_(pages), broken_(broken) {}

    void run(choices& choose, std::size_t rounds) {
        for (; rounds > 0; --rounds) {
            const page_id page{static_cast<std::uint32_t>(choose.below(truth_.size()))};
            if (choose.one_in(4) && known(page) && childless(page))
                erase(page);
            else if (!known(page) || run_of(page).size() < tokens_)
                insert(page, choose);
            compare(choose);
        }
        for (bool gone = true; std::exchange(gone, false);)
            for (std::uint32_t i = 0; i < truth_.size(); ++i)
                if (known(page_id{i}) && childless(page_id{i})) {
                    erase(page_id{i});
                    gone = true;
                }
        law(broken_, state_.match(chain_of(choose)).tokens == 0, "an emptied index knows nothing");
    }

private:
    using tokens = std::vector<token_id>;
    struct held {
        bool known = false;
        std::optional<page_id> parent = {};
        tokens run = {};
    };

    [[nodiscard]] bool known(page_id page) const { return truth_[index_of(page)].known; }
    [[nodiscard]] const tokens& run_of(page_id page) const { return truth_[index_of(page)].run; }
    [[nodiscard]] bool childless(page_id page) const {
        return std::ranges::none_of(truth_, [&](const held& one) { return one.known && one.parent == page; });
    }

    [[nodiscard]] static bool begins(const tokens& whole, std::span<const token_id> start) {
        return whole.size() >= start.size() && std::equal(start.begin(), start.end(), whole.begin());
    }

    void erase(page_id page) {
        state_.erase(page);
        truth_[index_of(page)] = {};
        law(broken_, !state_.contains(page) && state_.run(page).empty(), "an erased page is forgotten");
    }

    // A random run, most often one that begins like another.
    [[nodiscard]] tokens any_run(choices& choose, std::size_t longest) {
        tokens run;
        if (const held& like = truth_[choose.below(truth_.size())]; like.known && !choose.one_in(3))
            run.assign(like.run.begin(),
                       like.run.begin() + static_cast<std::ptrdiff_t>(choose.below(like.run.size() + 1)));
        const std::size_t length = choose.one_in(2) ? longest : 1 + choose.below(longest);
        while (run.size() < length)
            run.push_back(token_id{static_cast<std::int32_t>(choose.below(2))});
        return run;
    }

    void insert(page_id page, choices& choose) {
        tokens run = any_run(choose, tokens_);
        std::optional<page_id> parent;
        if (known(page)) { // its own rows, and more
            parent = truth_[index_of(page)].parent;
            tokens longer = run_of(page);
            if (run.size() > longer.size())
                std::copy(longer.begin(), longer.end(), run.begin());
            else
                run.assign(longer.begin(), longer.begin() + static_cast<std::ptrdiff_t>(run.size()));
        } else if (const page_id above{static_cast<std::uint32_t>(choose.below(truth_.size()))};
                   known(above) && run_of(above).size() == tokens_) {
            parent = above;
        }

        std::vector<page_id> longer, shorter;
        for (std::uint32_t i = 0; i < truth_.size(); ++i)
            if (truth_[i].known && truth_[i].parent == parent) {
                if (begins(truth_[i].run, run))
                    longer.push_back(page_id{i});
                else if (page_id{i} != page && begins(run, truth_[i].run))
                    shorter.push_back(page_id{i});
            }

        const insertion done = state_.insert(parent, run, page);
        if (!longer.empty()) {
            law(broken_, done.what == insertion::outcome::covered, "a run that is known is covered");
            law(broken_, done.other && std::ranges::find(longer, *done.other) != longer.end(),
                "who covers a run begins with it and has its parent");
            return;
        }
        law(broken_, done.what == (known(page) ? insertion::outcome::extended : insertion::outcome::inserted),
            "a new run is inserted, and a page's longer run extends it");
        law(broken_, shorter.empty() ? !done.other : done.other == shorter.front(),
            "a shorter form of a run leaves for it and is named");
        for (const page_id gone : shorter)
            truth_[index_of(gone)] = {};
        truth_[index_of(page)] = {true, parent, std::move(run)};
    }

    [[nodiscard]] tokens chain_to(std::optional<page_id> page) const {
        tokens chain;
        for (; page; page = truth_[index_of(*page)].parent)
            chain.insert(chain.begin(), run_of(*page).begin(), run_of(*page).end());
        return chain;
    }

    [[nodiscard]] tokens chain_of(choices& choose) {
        const page_id page{static_cast<std::uint32_t>(choose.below(truth_.size()))};
        tokens query = chain_to(known(page) ? std::optional(page) : std::nullopt);
        if (choose.one_in(3))
            query.resize(choose.below(query.size() + 1));
        if (choose.one_in(2) && !query.empty())
            query[choose.below(query.size())] = token_id{static_cast<std::int32_t>(choose.below(3))};
        if (choose.one_in(2))
            for (std::size_t n = choose.below(20); n > 0; --n)
                query.push_back(token_id{static_cast<std::int32_t>(choose.below(2))});
        return query;
    }

    void compare(choices& choose) {
        for (std::uint32_t i = 0; i < truth_.size(); ++i) {
            const held& one = truth_[i];
            law(broken_, state_.contains(page_id{i}) == one.known, "it contains what was inserted and not erased");
            if (!one.known)
                continue;
            law(broken_, std::ranges::equal(state_.run(page_id{i}), one.run), "a page's run is what was inserted");
            law(broken_, state_.parent(page_id{i}) == one.parent, "a page's parent is what was given");
            law(broken_, state_.leaf(page_id{i}) == childless(page_id{i}), "a leaf is a page without children");
        }

        const tokens query = chain_of(choose);
        std::size_t longest = 0;
        std::vector<token_id> next; // what is stored behind the longest
        for (std::uint32_t i = 0; i < truth_.size(); ++i) {
            if (!truth_[i].known)
                continue;
            const tokens chain = chain_to(page_id{i});
            const auto same = static_cast<std::size_t>(std::ranges::mismatch(chain, query).in1 - chain.begin());
            if (same > longest) {
                longest = same;
                next.clear();
            }
            if (same == longest && same < chain.size())
                next.push_back(chain[same]);
        }
        const index_match found = state_.match(query);
        law(broken_, found.tokens == longest, "a match is the longest known run, counted in tokens");
        law(broken_, found.pages.size() == (found.tokens + tokens_ - 1) / tokens_, "a match names the pages it needs");
        for (std::size_t i = 0; i < found.pages.size(); ++i) {
            law(broken_, known(found.pages[i]), "a matched page is in the index");
            law(broken_, state_.parent(found.pages[i]) == (i > 0 ? std::optional(found.pages[i - 1]) : std::nullopt),
                "matched pages are a chain, in order");
            const auto rest = std::span(query).subspan(i * tokens_);
            const auto used = rest.first(std::min({rest.size(), tokens_, found.tokens - i * tokens_}));
            law(broken_, begins(run_of(found.pages[i]), used), "a matched page holds the tokens it is matched for");
        }
        const match_end end = longest == query.size() ? match_end::complete
                              : next.empty()          ? match_end::unknown
                                                      : match_end::different;
        law(broken_, found.end == end, "a match says why it ended");
        law(broken_,
            end == match_end::different ? found.stored && std::ranges::find(next, *found.stored) != next.end()
                                        : !found.stored,
            "a match names the token that is stored where it ended");
    }

    decltype(std::declval<const Policy&>().open(page_shape{}, 0)) state_;
    std::size_t tokens_;
    std::vector<held> truth_;
    violations& broken_;
};

// Thousands of siblings whose runs begin with one token.
template <index_policy Policy>
void hostile_siblings(const Policy& policy, violations& broken) {
    constexpr std::uint32_t siblings = 3000, length = 16;
    auto state = policy.open({.tokens = length}, siblings);
    const auto run_of = [](std::uint32_t i) {
        std::vector<token_id> run(length, token_id{7});
        for (std::uint32_t digit = 1; digit < length; ++digit, i /= 2)
            run[length - digit] = token_id{static_cast<std::int32_t>(i % 2)};
        return run;
    };
    for (std::uint32_t i = 0; i < siblings; ++i)
        (void)state.insert(std::nullopt, run_of(i), page_id{i});
    for (std::uint32_t i = 0; i < siblings; ++i)
        law(broken, state.match(run_of(i)).pages == std::vector{page_id{i}}, "thousands of siblings are told apart");
    for (std::uint32_t i = 0; i < siblings; i += 2)
        state.erase(page_id{i});
    for (std::uint32_t i = 1; i < siblings; i += 2)
        law(broken, state.match(run_of(i)).tokens == length, "a sibling stays when others leave");
}

} // namespace detail

/// The laws of an index, tried against a plain list of pages.
template <index_policy Policy>
[[nodiscard]] violations index_laws(const Policy& policy, std::uint64_t seed) {
    violations broken;
    detail::choices choose(seed);
    for (const std::uint32_t tokens : {16u, 32u})
        for (const std::size_t pages : {1u, 2u, 5u, 14u})
            detail::index_trial<Policy>(policy, {.tokens = tokens}, pages, broken).run(choose, 400);
    detail::hostile_siblings(policy, broken);
    return broken;
}

} // namespace kvcache::testing

// ---- kvcache/testing/locking_laws.hpp -----------------------------------------------------------------------------

namespace kvcache::testing {

/// The laws of a locking policy that promises to keep threads apart.
template <locking_policy Policy>
[[nodiscard]] violations locking_laws(const Policy&, std::size_t threads) {
    violations broken;
    typename Policy::state lock;
    constexpr std::size_t rounds = 2000;
    std::size_t inside = 0, most = 0, sum = 0;
    std::vector<std::thread> workers;
    for (std::size_t i = 0; i < threads; ++i)
        workers.emplace_back([&] {
            for (std::size_t round = 0; round < rounds; ++round) {
                const std::lock_guard guard(lock);
                most = ++inside > most ? inside : most;
                ++sum;
                --inside;
            }
        });
    for (std::thread& worker : workers)
        worker.join();
    detail::law(broken, most <= 1, "one thread is inside at a time");
    detail::law(broken, sum == threads * rounds, "what one thread has done the next one sees");
    return broken;
}

} // namespace kvcache::testing

// ---- kvcache/testing/recompute_laws.hpp ---------------------------------------------------------------------------

namespace kvcache::testing {

/// The laws of a recompute policy, over every hit of every short prompt and some long ones.
template <recompute_policy Policy>
[[nodiscard]] violations recompute_laws(const Policy& policy, std::uint64_t seed) {
    violations broken;
    detail::choices choose(seed);
    for (const std::uint32_t tokens : {16u, 64u}) {
        const auto state = policy.open({.tokens = tokens});
        const auto tried = [&](std::size_t hit, std::size_t total) {
            const std::size_t first = state.first_rerun(hit, total);
            detail::law(broken, first <= hit, "no token behind the hit is reused");
            detail::law(broken, total == 0 || first < total, "at least one token runs");
            detail::law(broken, first == state.first_rerun(hit, total), "the same hit has the same plan");
            if constexpr (edit_recompute_state<opened_by<Policy, page_shape>>)
                for (const bool differs : {false, true})
                    detail::law(broken, state.first_rerun(hit, total, differs) <= first,
                                "knowing of an edit reuses no more");
        };
        for (std::size_t total = 0; total <= 200; ++total)
            for (std::size_t hit = 0; hit <= total; ++hit)
                tried(hit, total);
        for (std::size_t rounds = 1000; rounds > 0; --rounds) {
            const std::size_t total = choose.below(1'000'000);
            tried(choose.below(total + 1), total);
        }
    }
    return broken;
}

} // namespace kvcache::testing

// ---- kvcache/testing/storage_laws.hpp -----------------------------------------------------------------------------

namespace kvcache::testing {

/// The laws of a storage. Pages that it refuses are left alone: to refuse is its right.
template <storage_policy Policy>
[[nodiscard]] violations storage_laws(const Policy& policy, std::uint64_t seed) {
    violations broken;
    detail::choices choose(seed);
    for (const std::size_t page_bytes : {64u, 100u, 4096u, 20480u}) {
        constexpr std::uint32_t pages = 9;
        auto born = policy.open(pages, page_bytes);
        std::vector<std::byte> mark(pages);
        std::vector<bool> usable(pages, false);
        const auto whole = [&](const auto& state, std::uint32_t i) {
            return std::ranges::all_of(state.bytes(page_id{i}), [&](std::byte b) { return b == mark[i]; });
        };
        const auto fill = [&](const auto& state, std::uint32_t i) {
            mark[i] = static_cast<std::byte>(choose.bits());
            std::ranges::fill(state.bytes(page_id{i}), mark[i]);
        };
        const auto all_whole = [&](const auto& state) {
            for (std::uint32_t i = 0; i < pages; ++i)
                if (usable[i] && !whole(state, i))
                    return false;
            return true;
        };
        for (std::uint32_t i = 0; i < pages; ++i)
            if (usable[i] = born.acquire(page_id{i}); usable[i]) {
                const std::span<std::byte> bytes = born.bytes(page_id{i});
                detail::law(broken, bytes.data() != nullptr && bytes.size() == page_bytes,
                            "an acquired page has its bytes");
                detail::law(broken, reinterpret_cast<std::uintptr_t>(bytes.data()) % line_bytes == 0,
                            "a page begins on a cache line");
                if (bytes.data() == nullptr || bytes.size() != page_bytes)
                    return broken;
                fill(born, i);
            }
        detail::law(broken, all_whole(born), "pages do not overlap");

        auto moved = std::move(born);
        detail::law(broken, all_whole(moved), "bytes stay when the storage moves");
        for (std::size_t rounds = 200; rounds > 0; --rounds) {
            const auto i = static_cast<std::uint32_t>(choose.below(pages));
            if (usable[i])
                moved.release(page_id{i});
            usable[i] = !usable[i] && moved.acquire(page_id{i});
            if (usable[i])
                fill(moved, i);
            detail::law(broken, all_whole(moved), "bytes stay while other pages come and go");
        }
    }
    return broken;
}

} // namespace kvcache::testing

// ---- kvcache/testing/tier_laws.hpp --------------------------------------------------------------------------------

namespace kvcache::testing {

namespace detail {

/// A made-up record, the same whenever it is asked for.
[[nodiscard]] inline std::vector<std::byte> tier_record(std::uint64_t number) {
    choices choose(number);
    std::vector<std::byte> made(1 + choose.below(9000));
    std::ranges::generate(made, [&] { return static_cast<std::byte>(choose.bits()); });
    return made;
}

[[nodiscard]] inline tier_entry tier_name(std::uint64_t number) {
    return {.name = sha256_builder().number(number).finish(),
            .cost = 1e-3 * static_cast<double>(number % 7),
            .depth = static_cast<std::uint32_t>(number % 50)};
}

/// Hands a record over in three pieces, one of them empty.
template <class State>
[[nodiscard]] bool put_record(State& state, std::uint64_t number) {
    const auto record = tier_record(number);
    const std::span<const std::byte> all(record);
    const std::span<const std::byte> pieces[] = {all.first(all.size() / 3), {}, all.subspan(all.size() / 3)};
    return state.put(tier_name(number), pieces).has_value();
}

enum class tier_answer { miss, right, wrong, failed };

template <class State>
[[nodiscard]] tier_answer read_record(State& state, std::uint64_t number) {
    bool right = false, called = false;
    const auto found = state.read(tier_name(number).name, [&](std::span<const std::byte> bytes) {
        called = true;
        right = std::ranges::equal(bytes, tier_record(number));
    });
    if (!found)
        return tier_answer::failed;
    return *found != called ? tier_answer::wrong
           : !called        ? tier_answer::miss
                            : (right ? tier_answer::right : tier_answer::wrong);
}

} // namespace detail

/// The laws of a tier that is asked for no faults: what it gives back is what it was given, or nothing. A tier may have
/// room for few records, or for none. It is opened once, and begins empty.
template <tier_policy Policy>
[[nodiscard]] violations tier_laws(const Policy& policy, std::uint64_t seed) {
    using detail::law, detail::tier_answer;
    violations broken;
    detail::choices choose(seed);
    auto born = policy.open();
    law(broken, born.status().has_value(), "a tier that could open says so");
    auto state = std::move(born);
    std::map<std::uint64_t, bool> put; // whether it may be there
    std::uint64_t reads = 0;
    for (std::size_t round = 0; round < 60; ++round) {
        const std::uint64_t number = choose.below(20);
        const std::uint64_t what = choose.below(4);
        if (what < 2) {
            law(broken, detail::put_record(state, number), "what is handed over is taken");
            put[number] = true;
        } else if (what == 2) {
            law(broken, state.erase(detail::tier_name(number).name).has_value(),
                "a record that is not there can be erased");
            law(broken, state.flush().has_value(), "a flush ends");
            law(broken, detail::read_record(state, number) == tier_answer::miss, "an erased record is a miss");
            law(broken, !state.contains(detail::tier_name(number).name), "an erased record is not said to be there");
            ++reads;
            put[number] = false;
        } else {
            const auto answer = detail::read_record(state, number);
            ++reads;
            law(broken, answer != tier_answer::wrong && answer != tier_answer::failed,
                "what is read is what was written");
            law(broken, answer != tier_answer::right || put[number], "nothing is read that was not written");
        }
    }
    law(broken, state.flush().has_value(), "a flush ends");
    for (std::uint64_t number = 0; number < 20; ++number) {
        const bool there = state.contains(detail::tier_name(number).name);
        const auto answer = detail::read_record(state, number);
        ++reads;
        law(broken, there == (answer == tier_answer::right), "what is said to be there can be read");
    }
    const tier_counts now = state.counts();
    law(broken, now.failures == 0 && now.hits + now.misses == reads * (now.hits + now.misses > 0),
        "every read is a hit or a miss");
    law(broken, now.written >= now.records && now.written - now.records >= now.evicted,
        "records that are there were written");

    // Threads that read and write the same names.
    std::vector<std::thread> threads;
    std::vector<std::uint64_t> wrong(4, 0);
    for (std::size_t t = 0; t < wrong.size(); ++t)
        threads.emplace_back([&, t] {
            detail::choices own(seed + t);
            for (std::size_t i = 0; i < 40; ++i) {
                const std::uint64_t number = own.below(20);
                if (own.below(2) == 0)
                    wrong[t] += !detail::put_record(state, number);
                else
                    wrong[t] += detail::read_record(state, number) == tier_answer::wrong;
            }
        });
    for (std::thread& thread : threads)
        thread.join();
    law(broken, std::ranges::all_of(wrong, [](std::uint64_t n) { return n == 0; }), "threads may share a tier");
    return broken;
}

} // namespace kvcache::testing

// ---- kvcache/testing/all.hpp --------------------------------------------------------------------------------------

// The laws of every role, for policies of the library and yours. Each takes a policy and gives back the laws it broke.

// ---- kvcache/tier/record_ranks.hpp --------------------------------------------------------------------------------

namespace kvcache {

/// A name is as good as its own hash.
struct name_hash {
    [[nodiscard]] std::size_t operator()(const digest256& name) const noexcept {
        return static_cast<std::size_t>(load_little<std::uint64_t>(name.bytes, 0));
    }
};

/// The records of a tier and what an eviction policy makes of them: which are there, how large, who leaves first. Not
/// for several threads. Records of one chain leave in any order: a chain that has a hole ends there.
template <eviction_policy Eviction>
class record_ranks {
public:
    /// At most `records` of them, of at most `bytes` together.
    record_ranks(Eviction eviction, std::size_t records, std::size_t bytes)
        : eviction_(eviction.open({.slots = records, .bytes = bytes})), most_bytes_(bytes), records_(records) {
        free_.reserve(records);
        for (std::size_t slot = records; slot > 0; --slot)
            free_.push_back(slot_id{static_cast<std::uint32_t>(slot - 1)});
    }

    [[nodiscard]] std::size_t size() const noexcept { return slots_.size(); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] bool contains(const digest256& name) const { return slots_.contains(name); }

    /// Whether there could ever be a record of this size.
    [[nodiscard]] bool fits(std::size_t bytes) const noexcept { return bytes <= most_bytes_ && !records_.empty(); }

    /// The record that is to leave before a newcomer comes; none if there is room.
    /// Requires: the newcomer fits, and is not here. Whoever is named must be evicted or erased.
    [[nodiscard]] std::optional<digest256> victim_for(const tier_entry& newcomer, std::size_t bytes) {
        if (!announced_) {
            announce(eviction_, entry_of(newcomer, bytes));
            announced_ = true;
        }
        if (!free_.empty() && bytes_ + bytes <= most_bytes_)
            return std::nullopt;
        const auto slot = eviction_.victim([](slot_id) { return true; });
        return slot ? std::optional(records_[index_of(*slot)].name) : std::nullopt;
    }

    /// Takes a newcomer in. Requires: victim_for() named nobody any more. Throws: bad_alloc, and it is not in.
    void admit(const tier_entry& newcomer, std::size_t bytes) {
        announced_ = false;
        const slot_id slot = free_.back();
        slots_.emplace(newcomer.name, slot);
        try {
            eviction_.admit(slot, entry_of(newcomer, bytes));
        } catch (...) {
            slots_.erase(newcomer.name);
            throw;
        }
        free_.pop_back();
        records_[index_of(slot)] = {newcomer.name, bytes};
        bytes_ += bytes;
    }

    void touch(const digest256& name) {
        if (const auto found = slots_.find(name); found != slots_.end())
            eviction_.touch(found->second);
    }

    /// A record leaves: as a victim, of whom a ghost may stay, or because it is gone.
    void leave(const digest256& name, bool as_victim) {
        const auto found = slots_.find(name);
        if (found == slots_.end())
            return;
        const slot_id slot = found->second;
        if (as_victim)
            evict(eviction_, slot);
        else
            eviction_.erase(slot);
        bytes_ -= records_[index_of(slot)].bytes;
        records_[index_of(slot)] = {};
        slots_.erase(found);
        free_.push_back(slot);
    }

    /// Calls visit(name) for every record, in no order.
    template <class Visit>
    void for_each(Visit visit) const {
        for (const auto& [name, slot] : slots_)
            visit(name);
    }

private:
    struct place {
        digest256 name = {};
        std::size_t bytes = 0;
    };

    [[nodiscard]] static entry entry_of(const tier_entry& record, std::size_t bytes) noexcept {
        return {.key = load_little<std::uint64_t>(record.name.bytes, 8),
                .bytes = bytes,
                .cost = record.cost,
                .depth = record.depth,
                .length = record.depth + 1};
    }

    opened_by<Eviction, eviction_room> eviction_;
    std::size_t most_bytes_;
    std::size_t bytes_ = 0;
    bool announced_ = false;     // the newcomer that room is being made for
    std::vector<place> records_; // by slot
    std::vector<slot_id> free_;
    std::unordered_map<digest256, slot_id, name_hash> slots_;
};

} // namespace kvcache

// ---- kvcache/tier/chain_copies.hpp --------------------------------------------------------------------------------

namespace kvcache {

/// The records of one tier that a second one is to get later, and the thread that carries them there.
template <tier_state First, tier_state Second>
class chain_copies {
public:
    /// As many as `room` records wait, each for `delay` before it is carried; 0: there is no thread, and none does.
    chain_copies(First& first, Second& second, std::size_t room, std::chrono::milliseconds delay, bool on_touch)
        : first_(first), second_(second), room_(room), delay_(delay), on_touch_(on_touch) {
        if (room_ > 0)
            carrier_ = std::thread([this] { run(); });
    }
    ~chain_copies() {
        {
            const std::lock_guard guard(lock_);
            stop_ = true;
        }
        wake_.notify_all();
        if (carrier_.joinable())
            carrier_.join(); // what waits is carried first
    }

    chain_copies(const chain_copies&) = delete;
    chain_copies& operator=(const chain_copies&) = delete;

    /// The first tier was handed a record: it is carried after the delay, or once it is touched. Throws: bad_alloc.
    void put(const tier_entry& entry) {
        if (room_ == 0)
            return;
        {
            const std::lock_guard guard(lock_);
            known& one = note(entry.name);
            one.entry = entry;
            if (!on_touch_)
                enqueue(one);
        }
        wake_.notify_all();
    }

    /// A record was read from the first tier. Throws: bad_alloc.
    void touch(const digest256& name) {
        if (room_ == 0 || !on_touch_)
            return;
        {
            const std::lock_guard guard(lock_);
            enqueue(note(name));
        }
        wake_.notify_all();
    }

    /// A record is erased from both tiers, right after this: it is carried no more.
    void forget(const digest256& name) noexcept {
        if (room_ == 0)
            return;
        const std::lock_guard guard(lock_);
        known_.erase(name);
        std::erase_if(queue_, [&](const job& one) { return one.entry.name == name; });
        forgotten_ = forgotten_ || (busy_ && carried_ == name);
    }

    /// What is known of a record.
    [[nodiscard]] tier_entry entry_of(const digest256& name) const {
        const std::lock_guard guard(lock_);
        const auto found = known_.find(name);
        return found == known_.end() ? tier_entry{.name = name} : found->second.entry;
    }

    /// Waits until all that waits has been carried.
    void flush() {
        std::unique_lock guard(lock_);
        hurry_ = true;
        wake_.notify_all();
        idle_.wait(guard, [this] { return queue_.empty() && !busy_; });
        hurry_ = false;
    }

    /// Records that found no room, or were gone when their turn came.
    [[nodiscard]] std::uint64_t dropped() const {
        const std::lock_guard guard(lock_);
        return dropped_;
    }

private:
    using clock = std::chrono::steady_clock;

    struct known {
        tier_entry entry = {};
        bool queued = false; // now, or once
    };
    struct job {
        tier_entry entry = {};
        clock::time_point due = {};
    };

    [[nodiscard]] known& note(const digest256& name) {
        if (known_.size() >= most_known && !known_.contains(name))
            known_.clear();
        known& one = known_[name];
        one.entry.name = name;
        return one;
    }

    void enqueue(known& one) {
        if (one.queued)
            return;
        if (queue_.size() >= room_) {
            ++dropped_;
            return;
        }
        queue_.push_back({one.entry, clock::now() + delay_});
        one.queued = true;
    }

    void run() {
        std::unique_lock guard(lock_);
        for (;;) {
            wake_.wait(guard, [this] { return stop_ || !queue_.empty(); });
            if (queue_.empty())
                return;
            wake_.wait_until(guard, queue_.front().due, [this] { return stop_ || hurry_; });
            const tier_entry entry = queue_.front().entry;
            queue_.pop_front();
            carried_ = entry.name;
            busy_ = true;
            guard.unlock();
            bool done = carry(entry);
            guard.lock();
            if (std::exchange(forgotten_, false)) { // meanwhile
                guard.unlock();
                done = second_.erase(entry.name).has_value();
                guard.lock();
            }
            dropped_ += !done;
            busy_ = false;
            idle_.notify_all();
        }
    }

    [[nodiscard]] bool carry(const tier_entry& entry) {
        bool taken = false;
        const auto use = [&](std::span<const std::byte> bytes) {
            const std::span<const std::byte> pieces[] = {bytes};
            taken = second_.put(entry, pieces).has_value();
        };
        try {
            const auto there = first_.read(entry.name, use);
            if (there && !*there && first_.flush()) // it may not be written yet
                static_cast<void>(first_.read(entry.name, use));
        } catch (const std::bad_alloc&) {
            return false;
        }
        return taken;
    }

    static constexpr std::size_t most_known = std::size_t{1} << 16;

    First& first_;
    Second& second_;
    const std::size_t room_;
    const std::chrono::milliseconds delay_;
    const bool on_touch_;

    mutable std::mutex lock_; // of all that follows
    std::condition_variable wake_, idle_;
    std::unordered_map<digest256, known, name_hash> known_;
    std::deque<job> queue_;
    digest256 carried_ = {};
    bool stop_ = false, hurry_ = false, busy_ = false, forgotten_ = false;
    std::uint64_t dropped_ = 0;
    std::thread carrier_;
};

} // namespace kvcache

// ---- kvcache/tier/memory.hpp --------------------------------------------------------------------------------------

namespace kvcache {

/// Records in the memory of this process: what a host's tests need where a disk would stand, and a second chance for
/// pages that a small cache evicts. Written at once.
template <eviction_policy Eviction = lru>
struct memory {
    using role = tier_role;
    std::size_t bytes = std::size_t{64} << 20; ///< Of all records together.
    std::size_t records = 1024;                ///< How many there may be.
    Eviction eviction = {};                    ///< Which record leaves when room is needed.
    class state;
    [[nodiscard]] state open() const;
};

template <eviction_policy Eviction>
class memory<Eviction>::state {
public:
    explicit state(const memory& how) : held_(std::make_unique<held>(how)) {}

    template <class Use>
    [[nodiscard]] result<bool> read(const digest256& name, Use&& use) {
        std::shared_ptr<const std::vector<std::byte>> found;
        {
            const std::lock_guard guard(held_->lock);
            const auto at = held_->content.find(name);
            ++(at == held_->content.end() ? held_->counts.misses : held_->counts.hits);
            if (at == held_->content.end())
                return false;
            held_->ranks.touch(name);
            found = at->second;
        }
        use(std::span<const std::byte>(*found));
        return true;
    }

    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        std::size_t size = 0;
        for (const auto piece : pieces)
            size += piece.size();
        const std::lock_guard guard(held_->lock);
        if (!held_->ranks.fits(size) || held_->ranks.contains(entry.name)) {
            ++held_->counts.dropped;
            return {};
        }
        try {
            auto whole = std::make_shared<std::vector<std::byte>>();
            whole->reserve(size);
            for (const auto piece : pieces)
                whole->insert(whole->end(), piece.begin(), piece.end());
            while (const auto victim = held_->ranks.victim_for(entry, size)) {
                held_->ranks.leave(*victim, true);
                held_->content.erase(*victim);
                ++held_->counts.evicted;
            }
            const auto at = held_->content.emplace(entry.name, std::move(whole)).first;
            try {
                held_->ranks.admit(entry, size);
            } catch (...) {
                held_->content.erase(at);
                throw;
            }
        } catch (const std::bad_alloc&) {
            ++held_->counts.failures;
            return error{error_code::out_of_memory, "memory", "there is no memory for a record"};
        }
        ++held_->counts.written;
        held_->counts.bytes_written += size;
        return {};
    }

    [[nodiscard]] bool contains(const digest256& name) const {
        const std::lock_guard guard(held_->lock);
        return held_->ranks.contains(name);
    }

    [[nodiscard]] result<void> erase(const digest256& name) {
        const std::lock_guard guard(held_->lock);
        held_->ranks.leave(name, false);
        held_->content.erase(name);
        return {};
    }

    [[nodiscard]] result<void> flush() { return {}; }
    [[nodiscard]] result<void> status() const { return {}; }
    [[nodiscard]] tier_counts counts() const {
        const std::lock_guard guard(held_->lock);
        tier_counts now = held_->counts;
        now.records = held_->ranks.size();
        now.bytes = held_->ranks.bytes();
        return now;
    }

private:
    struct held {
        explicit held(const memory& how) : ranks(how.eviction, how.records, how.bytes) {}

        std::mutex lock;
        record_ranks<Eviction> ranks;
        std::unordered_map<digest256, std::shared_ptr<const std::vector<std::byte>>, name_hash> content;
        tier_counts counts;
    };
    std::unique_ptr<held> held_;
};

template <eviction_policy Eviction>
typename memory<Eviction>::state memory<Eviction>::open() const {
    return state(*this);
}

static_assert(tier_policy<memory<>>);

} // namespace kvcache

// ---- kvcache/tier/chain.hpp ---------------------------------------------------------------------------------------

namespace kvcache {

/// When the second tier of two gets a record.
enum class chain_write {
    through,      ///< With the first.
    back,         ///< Later, from the first, off the request path: after a while, at a flush and at the end.
    second_touch, ///< Once it is read from the first, off the request path: what is asked for once stays here.
};

/// Two tiers, the first asked first: a disk before a server, say. What only the second has is handed to the first when
/// it is read. A tier that fails is passed over. Longer chains nest: tiers{memory<>{}, tiers{lmdb<>{}, redis{}}}.
template <tier_policy First = memory<>, tier_policy Second = memory<>>
struct tiers {
    using role = tier_role;
    First first = {};
    Second second = {};
    chain_write write = chain_write::through;
    std::chrono::milliseconds delay = std::chrono::seconds(1); ///< `back`: how long a record waits.
    std::size_t waiting = 4096; ///< Records that may wait for the second; more are dropped there.
    class state;
    [[nodiscard]] state open() const { return state(*this); }
};

template <tier_policy First, tier_policy Second>
tiers(First, Second) -> tiers<First, Second>;
template <tier_policy First, tier_policy Second>
tiers(First, Second, chain_write) -> tiers<First, Second>;

template <tier_policy First, tier_policy Second>
class tiers<First, Second>::state {
public:
    explicit state(const tiers& how) : held_(std::make_unique<held>(how)) {}

    template <class Use>
    [[nodiscard]] result<bool> read(const digest256& name, Use&& use) {
        const auto given = read_run(std::span(&name, 1), [&](std::size_t, std::span<const std::byte> bytes) {
            use(bytes);
            return true;
        });
        if (!given)
            return given.error();
        return *given == 1;
    }

    /// As read_run of a tier that is asked for runs; wherever each record is. Errors: the first tier's, or the
    /// second's, if neither gave one.
    template <class Use>
    [[nodiscard]] result<std::size_t> read_run(std::span<const digest256> names, Use&& use) {
        std::size_t at = 0;
        bool more = true;
        result<void> fault;
        const auto go_on = [&](auto& tier, bool first) {
            const std::size_t there = leading_in(tier, names.subspan(at));
            const auto given =
                kvcache::read_run(tier, names.subspan(at, there), [&](std::size_t i, std::span<const std::byte> bytes) {
                    more = use(at + i, bytes);
                    if (first)
                        held_->copies.touch(names[at + i]);
                    else
                        promote(names[at + i], bytes);
                    return more;
                });
            if (!given)
                fault = given.error();
            at += given ? *given : 0;
            return more && at < names.size();
        };
        for (std::size_t before = names.size(); before != at;) {
            before = at;
            if (!go_on(held_->first, true) || !go_on(held_->second, false))
                break;
        }
        held_->hits += at;
        held_->misses += more && at < names.size();
        if (at == 0 && !fault)
            return fault.error();
        return at;
    }
    [[nodiscard]] std::size_t leading(std::span<const digest256> names) {
        std::size_t at = 0;
        for (std::size_t before = names.size(); before != at && at < names.size();) {
            before = at;
            at += leading_in(held_->first, names.subspan(at));
            at += leading_in(held_->second, names.subspan(at));
        }
        return at;
    }

    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        const auto first = held_->first.put(entry, pieces);
        if (held_->how.write != chain_write::through) {
            held_->copies.put(entry);
            return first;
        }
        const auto second = held_->second.put(entry, pieces);
        return first ? second : first;
    }
    [[nodiscard]] bool contains(const digest256& name) {
        return held_->first.contains(name) || held_->second.contains(name);
    }
    [[nodiscard]] result<void> erase(const digest256& name) {
        held_->copies.forget(name);
        const auto first = held_->first.erase(name), second = held_->second.erase(name);
        return first ? second : first;
    }
    [[nodiscard]] result<void> flush() {
        const auto first = held_->first.flush();
        held_->copies.flush();
        const auto second = held_->second.flush();
        return first ? second : first;
    }
    /// What is wrong with both, if neither can be used.
    [[nodiscard]] result<void> status() const {
        const auto first = held_->first.status();
        return first ? first : held_->second.status();
    }
    /// Of both together, but for hits and misses, which are the chain's; see first() and second().
    [[nodiscard]] tier_counts counts() const {
        tier_counts all = held_->first.counts();
        const tier_counts more = held_->second.counts();
        all.records += more.records, all.bytes += more.bytes;
        all.hits = held_->hits, all.misses = held_->misses;
        all.written += more.written, all.bytes_written += more.bytes_written;
        all.evicted += more.evicted, all.dropped += more.dropped + held_->copies.dropped();
        all.failures += more.failures;
        return all;
    }

    [[nodiscard]] auto& first() noexcept { return held_->first; }
    [[nodiscard]] auto& second() noexcept { return held_->second; }

private:
    using first_state = decltype(std::declval<const First&>().open());
    using second_state = decltype(std::declval<const Second&>().open());

    // A record of the second tier goes to the first too.
    void promote(const digest256& name, std::span<const std::byte> bytes) {
        const std::span<const std::byte> pieces[] = {bytes};
        static_cast<void>(held_->first.put(held_->copies.entry_of(name), pieces)); // it counts what it refuses
    }

    struct held {
        explicit held(const tiers& options)
            : how(options),
              first(options.first.open()),
              second(options.second.open()),
              copies(first, second, options.write == chain_write::through ? 0 : options.waiting,
                     options.write == chain_write::back ? options.delay : std::chrono::milliseconds(0),
                     options.write == chain_write::second_touch) {}
        const tiers how;
        first_state first;
        second_state second;
        std::atomic<std::uint64_t> hits{0}, misses{0};
        chain_copies<first_state, second_state> copies;
    };
    std::unique_ptr<held> held_;
};

static_assert(tier_policy<tiers<>>);

} // namespace kvcache

// ---- kvcache/tier/faulty.hpp --------------------------------------------------------------------------------------

namespace kvcache {

/// Another tier that goes wrong: what a host's tests need to see that no fault of a store becomes a wrong token. Every
/// fault strikes every n-th call it can strike, counted from one; 0 means never.
template <tier_policy Inner = memory<>>
struct faulty {
    using role = tier_role;
    std::uint64_t fail = 0;    ///< Calls that are refused, and do nothing.
    std::uint64_t lose = 0;    ///< Writes that are taken and never seen again.
    std::uint64_t repeat = 0;  ///< Writes that are done twice.
    std::uint64_t cut = 0;     ///< Reads that end early.
    std::uint64_t flip = 0;    ///< Reads with a flipped bit.
    std::uint64_t confuse = 0; ///< Reads that give the record that was read before.
    std::uint64_t delay = 0;   ///< Reads that come late, by `pause`.
    std::chrono::milliseconds pause = std::chrono::milliseconds(1); ///< How late.
    std::uint64_t disconnect = 0;                                   ///< From this call on all are refused.
    std::uint64_t seed = 0;                                         ///< Of where bits flip and reads end.
    Inner inner = {};                                               ///< The tier that does the rest.
    class state;
    [[nodiscard]] state open() const { return state(*this); }
};

template <tier_policy Inner>
class faulty<Inner>::state {
public:
    explicit state(const faulty& how) : held_(std::make_unique<held>(how)), inner_(how.inner.open()) {}

    template <class Use>
    [[nodiscard]] result<bool> read(const digest256& name, Use&& use) {
        if (auto fine = begin(); !fine)
            return fine.error();
        std::vector<std::byte> copy;
        const auto found =
            inner_.read(name, [&](std::span<const std::byte> bytes) { copy.assign(bytes.begin(), bytes.end()); });
        if (!found || !*found)
            return found;
        bool late = false;
        {
            const std::lock_guard guard(held_->lock);
            const faulty& how = held_->how;
            const std::uint64_t n = ++held_->reads;
            std::vector<std::byte> whole = copy;
            if (strikes(how.confuse, n) && !held_->before.empty())
                copy = held_->before;
            if (strikes(how.cut, n))
                copy.resize(static_cast<std::size_t>(draw() % (copy.size() + 1)));
            if (strikes(how.flip, n) && !copy.empty()) {
                const std::uint64_t bit = draw() % (8 * copy.size());
                copy[static_cast<std::size_t>(bit / 8)] ^= static_cast<std::byte>(1u << bit % 8);
            }
            late = strikes(how.delay, n);
            held_->before = std::move(whole);
        }
        if (late)
            std::this_thread::sleep_for(held_->how.pause);
        use(std::span<const std::byte>(copy));
        return true;
    }

    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        if (auto fine = begin(); !fine)
            return fine;
        std::uint64_t n = 0;
        {
            const std::lock_guard guard(held_->lock);
            n = ++held_->writes;
        }
        if (strikes(held_->how.lose, n))
            return {};
        if (strikes(held_->how.repeat, n))
            if (auto once = inner_.put(entry, pieces); !once)
                return once;
        return inner_.put(entry, pieces);
    }

    [[nodiscard]] bool contains(const digest256& name) { return inner_.contains(name); }
    [[nodiscard]] result<void> erase(const digest256& name) {
        if (auto fine = begin(); !fine)
            return fine;
        return inner_.erase(name);
    }
    [[nodiscard]] result<void> flush() {
        if (auto fine = begin(); !fine)
            return fine;
        return inner_.flush();
    }
    [[nodiscard]] result<void> status() const { return inner_.status(); }
    [[nodiscard]] tier_counts counts() const { return inner_.counts(); }

private:
    struct held {
        explicit held(const faulty& options) : how(options) {}
        const faulty how;
        std::mutex lock;
        std::uint64_t calls = 0, reads = 0, writes = 0, drawn = 0;
        std::vector<std::byte> before = {};
    };

    [[nodiscard]] static bool strikes(std::uint64_t every, std::uint64_t n) noexcept {
        return every != 0 && n % every == 0;
    }
    [[nodiscard]] std::uint64_t draw() noexcept { return mixed_bits(held_->how.seed * 1000003 + ++held_->drawn); }

    [[nodiscard]] result<void> begin() {
        const std::lock_guard guard(held_->lock);
        const std::uint64_t n = ++held_->calls;
        if (strikes(held_->how.fail, n) || (held_->how.disconnect != 0 && n >= held_->how.disconnect))
            return error{error_code::io, "tier", "a fault that was asked for"};
        return {};
    }

    std::unique_ptr<held> held_;
    decltype(std::declval<const Inner&>().open()) inner_;
};

static_assert(tier_policy<faulty<>>);

} // namespace kvcache

// ---- kvcache/tier/load_cost.hpp -----------------------------------------------------------------------------------

namespace kvcache {

/// What reading a run of records takes on this machine, learned from the reads that were timed: a wait, and a time for
/// each record. The two are fitted by least squares, in which old measurements fade. Before the first, a read takes
/// nothing, so that one is tried.
///
///     seconds(records) = wait + each * records
///
/// Cost: O(1) each.
class load_cost {
public:
    /// So many records took so long. Requires: records > 0 and seconds >= 0.
    void measure(std::size_t records, double seconds) {
        expects(records > 0 && seconds >= 0.0, "a measurement has records, and a time that is not negative");
        const double n = static_cast<double>(records);
        const auto fade = [n](double& sum, double product) { sum = 0.9 * sum + product / n; }; // noise grows with them
        fade(one_, 1.0);
        fade(n_, n);
        fade(nn_, n * n);
        fade(s_, seconds);
        fade(ns_, n * seconds);
        doubt_ = 1.0;
        fit();
    }

    /// What so many records take.
    [[nodiscard]] double seconds(std::size_t records) const noexcept {
        return doubt_ * (wait_ + each_ * static_cast<double>(records));
    }

    /// What was measured is held a little less likely, until something is measured anew.
    void doubt() noexcept { doubt_ *= 0.95; }

private:
    // The best pair of which neither is negative; a time for each record alone where all measurements were alike.
    void fit() noexcept {
        const double independent = one_ * nn_ - n_ * n_;
        wait_ = 0.0;
        each_ = ns_ / nn_;
        if (independent <= 1e-6 * one_ * nn_)
            return;
        const double each = (one_ * ns_ - n_ * s_) / independent;
        const double wait = (nn_ * s_ - n_ * ns_) / independent;
        if (wait <= 0.0)
            return;
        wait_ = each > 0.0 ? wait : s_ / one_;
        each_ = std::max(each, 0.0);
    }

    double wait_ = 0.0, each_ = 0.0, doubt_ = 1.0;
    double one_ = 0.0, n_ = 0.0, nn_ = 0.0, s_ = 0.0, ns_ = 0.0; // sums over records and seconds
};

} // namespace kvcache

// ---- kvcache/tier/if_faster.hpp -----------------------------------------------------------------------------------

namespace kvcache {

/// Another tier that is read where that is quicker than computing anew: what loads have taken on this host is set
/// against what prefills have. A run that is not taken is counted (tier_stats::slower), and makes the next one
/// likelier, so that a tier that was slow for a while is tried again.
template <tier_policy Inner = memory<>>
struct if_faster {
    using role = tier_role;
    Inner inner = {};
    double margin = 1.0; ///< Of the time of a prefill, what a load may take.
    class state;
    [[nodiscard]] state open() const { return state(*this); }
};

template <tier_policy Inner>
class if_faster<Inner>::state {
public:
    explicit state(const if_faster& how) : held_(std::make_unique<held>(how.margin)), inner_(how.inner.open()) {}

    /// Whether so many records are worth reading in place of a prefill that is known to take so long.
    [[nodiscard]] bool worth(std::size_t records, double prefill_seconds) {
        const std::lock_guard guard(held_->lock);
        const bool is = held_->cost.seconds(records) <= held_->margin * prefill_seconds;
        if (!is)
            held_->cost.doubt();
        return is;
    }
    /// Reading so many has taken so long, checks and all.
    void took(std::size_t records, double seconds) {
        const std::lock_guard guard(held_->lock);
        held_->cost.measure(records, seconds);
    }

    template <class Use>
    [[nodiscard]] result<bool> read(const digest256& name, Use&& use) {
        return inner_.read(name, use);
    }
    template <class Use>
    [[nodiscard]] result<std::size_t> read_run(std::span<const digest256> names, Use&& use) {
        return kvcache::read_run(inner_, names, use);
    }
    [[nodiscard]] std::size_t leading(std::span<const digest256> names) { return leading_in(inner_, names); }
    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        return inner_.put(entry, pieces);
    }
    [[nodiscard]] bool contains(const digest256& name) { return inner_.contains(name); }
    [[nodiscard]] result<void> erase(const digest256& name) { return inner_.erase(name); }
    [[nodiscard]] result<void> flush() { return inner_.flush(); }
    [[nodiscard]] result<void> status() const { return inner_.status(); }
    [[nodiscard]] tier_counts counts() const { return inner_.counts(); }

private:
    struct held {
        explicit held(double share) : margin(share) {}
        const double margin;
        std::mutex lock;
        load_cost cost;
    };
    std::unique_ptr<held> held_;
    decltype(std::declval<const Inner&>().open()) inner_;
};

static_assert(tier_policy<if_faster<>>);

} // namespace kvcache

// ---- kvcache/tier/all.hpp -----------------------------------------------------------------------------------------

namespace kvcache {

/// Every tier that needs no library of its own, with its standard options.
using tier_policies = std::tuple<no_tier, memory<>, faulty<>, tiers<>, if_faster<>>;

} // namespace kvcache

// ---- kvcache/kvcache.hpp ------------------------------------------------------------------------------------------

// Everything that needs only Eigen, xsimd and xxhash. Checkpoints are read by <kvcache/model/huggingface/load.hpp>
// (component json); text is read by <kvcache/text/...>, and conversations are held by
// <kvcache/session/chat_session.hpp> (component text).
