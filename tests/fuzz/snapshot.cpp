// SPDX-License-Identifier: MIT
//
// Edits a sound snapshot as the input says, puts its checksums right or leaves them, and loads it into a cache that
// knows nothing, or the beginning. What is refused changes nothing; what is accepted is what it says it is.
//
//     clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iinclude -isystem /usr/include/eigen3
//         tests/fuzz/snapshot.cpp -o fuzz
//     ./fuzz -max_len=256 -max_total_time=60

#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/codec/keep_exact.hpp>
#include <kvcache/session/snapshot.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

namespace {

namespace kv = kvcache;
namespace at = kvcache::record_layout;

constexpr kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 4, .tokens = 16};
constexpr std::size_t length = 39;
using bytes = std::vector<std::byte>;

void require(bool holds) {
    if (!holds)
        std::abort();
}

template <class Codec>
auto made(const Codec& codec) {
    return kv::make_cache({shape, {.bytes = 1 << 16}, kv::identity{.weights = {1, 2}}}, codec);
}

template <class Cache>
auto told(Cache& cache, std::size_t count) {
    std::vector<kv::token_id> tokens;
    for (std::size_t i = 0; i < count; ++i)
        tokens.push_back(kv::token_id{static_cast<std::int32_t>(i * i % 29)});
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, count);
    require(lease.has_value());
    for (std::size_t i = 0; i < count; ++i) {
        const std::vector<float> row(shape.head_dim, static_cast<float>(i));
        lease->write(kv::layer_id{0}, i, row, row);
    }
    lease->commit(tokens);
    return sequence;
}

template <class Codec>
bytes snapshot_of(const Codec& codec) {
    auto cache = made(codec);
    const auto sequence = told(cache, length);
    bytes all;
    require(kv::write_snapshot(cache, sequence, {.next = 3, .pending = {kv::token_id{1}}}, "",
                               [&](auto pieces) -> kv::result<void> {
                                   for (const auto piece : pieces)
                                       all.insert(all.end(), piece.begin(), piece.end());
                                   return {};
                               })
                .has_value());
    return all;
}

// Puts the checksums right, as far as there are places for them.
void auth(std::span<std::byte> record) {
    static const kv::record_authenticator own("");
    if (record.size() < at::fixed_bytes)
        return;
    const auto put = [&](std::size_t offset, const kv::sha256_digest& sum) {
        std::ranges::copy(sum.bytes, record.begin() + static_cast<std::ptrdiff_t>(offset));
    };
    const auto parts = kv::load_little<std::uint32_t>(record, at::parts);
    for (std::size_t i = 0, entry = at::fixed_bytes; i < parts && entry + at::part_bytes <= record.size();
         ++i, entry += at::part_bytes) {
        const auto offset = kv::load_little<std::uint64_t>(record, entry + at::part_offset);
        const auto size = kv::load_little<std::uint64_t>(record, entry + at::part_size);
        if (offset <= record.size() && size <= record.size() - offset)
            put(entry + at::part_checksum, own.of(record.subspan(offset, size)));
    }
    const auto header = std::clamp<std::uint64_t>(kv::load_little<std::uint64_t>(record, at::header_bytes),
                                                  at::fixed_bytes, record.size());
    put(at::checksum, own.of(record.first(at::checksum), record.first(header).subspan(at::fixed_bytes)));
}

template <class Codec>
void load(const Codec& codec, std::span<const std::uint8_t> edits, bool sealed, bool knows) {
    static const bytes sound = snapshot_of(codec);
    bytes edited = sound;
    while (edits.size() >= 4) { // where, and what
        const std::size_t where = edits[0] | static_cast<std::size_t>(edits[1]) << 8;
        if (edits[2] == 0xff)
            edited.resize(where % (sound.size() + 64));
        else if (!edited.empty())
            edited[where % edited.size()] ^= static_cast<std::byte>(edits[3]);
        edits = edits.subspan(4);
    }
    if (sealed)
        auth(edited);
    auto cache = made(codec);
    std::size_t before = 0;
    {
        if (knows)
            static_cast<void>(told(cache, 20));
        before = cache.stats().in_use;
        const auto read = kv::read_snapshot(cache, edited);
        if (!read)
            require(!read.error().field.empty() && !read.error().message.empty() && cache.stats().in_use == before);
        if (read && !sealed)
            require(edited == sound);
        if (read) {
            const auto record = kv::record::parse(edited, kv::record_authenticator(""));
            require(record && std::ranges::equal(record->tokens(), read->sequence.tokens()));
        }
        require(cache.check().has_value());
    }
    require(cache.check().has_value());
    require(cache.stats().in_use == 0);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0)
        return 0;
    const auto edits = std::span(data, size).subspan(1);
    const bool sealed = (data[0] & 1) != 0, knows = (data[0] & 2) != 0;
    if ((data[0] & 4) != 0)
        load(kv::codec::keep_recent<kv::codec::int8>{}, edits, sealed, knows);
    else
        load(kv::codec::f32{}, edits, sealed, knows);
    return 0;
}
