// SPDX-License-Identifier: MIT
#include <kvcache/adapters/tensors.hpp>
#include <kvcache/cache.hpp>
#include <kvcache/chunk/chunk_reuse.hpp>
#include <kvcache/codec/row_major.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/recompute/none.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr kv::layer_id layer0{0};

template <class Number>
constexpr kv::tensor_type type_of = std::is_same_v<Number, float>      ? kv::tensor_type::f32
                                    : std::is_same_v<Number, kv::half> ? kv::tensor_type::f16
                                                                       : kv::tensor_type::bf16;

/// A finite number of any size, normal or not.
template <class Number>
Number finite(std::uint64_t random) {
    Number made;
    do {
        random = mix(random);
        std::memcpy(&made, reinterpret_cast<const std::byte*>(&random), sizeof made);
    } while (!std::isfinite(kv::widen(made)));
    return made;
}

/// Unpadded or padded, in either order.
template <class Number>
kv::tensor_layout any_layout(seeded& random, std::size_t tokens, const kv::page_shape& shape) {
    const bool hnd = random(2) == 0;
    kv::tensor_layout made = hnd ? kv::tensor_layout::hnd(type_of<Number>, tokens, shape.head_dim)
                                 : kv::tensor_layout::nhd(type_of<Number>, tokens, shape.kv_heads, shape.head_dim);
    if (random(2) == 0)
        return made;
    std::size_t &inner = hnd ? made.token_stride : made.head_stride,
                &outer = hnd ? made.head_stride : made.token_stride;
    made.tokens += random(5);
    inner = shape.head_dim + random(4);
    outer = inner * (hnd ? made.tokens : shape.kv_heads) + random(4);
    return made;
}

/// The keys and values of a layer in a runtime's memory, of any alignment.
template <class Number>
class tensor_memory {
public:
    tensor_memory(seeded& random, std::size_t tokens, std::size_t first, const kv::page_shape& shape)
        : shape_(shape), layout_(any_layout<Number>(random, tokens, shape)), first_(first), offset_(random(3)) {
        const std::size_t numbers =
            layout_.tokens * layout_.token_stride + std::size_t{shape.kv_heads} * layout_.head_stride;
        for (auto& side : sides_)
            side.assign(numbers * sizeof(Number) + offset_, std::byte{0xa5});
    }

    [[nodiscard]] kv::past_tensors past() {
        return {sides_[0].data() + offset_, sides_[1].data() + offset_, layout_, first_};
    }
    [[nodiscard]] kv::present_tensors present() const {
        return {sides_[0].data() + offset_, sides_[1].data() + offset_, layout_, first_};
    }

    void set(std::size_t position, std::size_t head, std::size_t d, std::array<Number, 2> key_and_value) {
        for (std::size_t side = 0; side < 2; ++side)
            std::memcpy(at(side, position, head, d), &key_and_value[side], sizeof(Number));
    }
    [[nodiscard]] std::array<Number, 2> get(std::size_t position, std::size_t head, std::size_t d) {
        std::array<Number, 2> made;
        for (std::size_t side = 0; side < 2; ++side)
            std::memcpy(&made[side], at(side, position, head, d), sizeof(Number));
        return made;
    }

    void reset(std::size_t position, std::size_t head, std::size_t d) {
        for (std::size_t side = 0; side < 2; ++side)
            std::memset(at(side, position, head, d), 0xa5, sizeof(Number));
    }
    /// Whether it is as it was made, or reset.
    [[nodiscard]] bool untouched() const {
        return std::all_of(sides_.begin(), sides_.end(), [](const std::vector<std::byte>& side) {
            return std::all_of(side.begin(), side.end(), [](std::byte one) { return one == std::byte{0xa5}; });
        });
    }

    [[nodiscard]] std::size_t first() const { return first_; }
    [[nodiscard]] const kv::page_shape& shape() const { return shape_; }

private:
    std::byte* at(std::size_t side, std::size_t position, std::size_t head, std::size_t d) {
        const std::size_t number = (position - first_) * layout_.token_stride + head * layout_.head_stride + d;
        return sides_[side].data() + offset_ + number * sizeof(Number);
    }

    kv::page_shape shape_;
    kv::tensor_layout layout_;
    std::size_t first_, offset_;
    std::array<std::vector<std::byte>, 2> sides_;
};

/// The type in which the cache keeps the rows of a group.
template <class Codec>
struct kept {
    using pages = float;
    using blocks = float;
};
template <class Number, kv::codec::kv_layout Layout>
struct kept<kv::codec::row_major<Number, Layout>> {
    using pages = Number;
    using blocks = Number;
};
template <class Pages, class Blocks>
struct kept<kv::codec::by_group<Pages, Blocks>> {
    using pages = typename kept<Pages>::pages;
    using blocks = typename kept<Blocks>::blocks;
};

/// A runtime whose model computes rows from the names of their tokens. It checks each past that it is given.
template <class Number, class Codec>
struct named_runtime {
    using memory = tensor_memory<Number>;

    seeded& random;
    const kv::cache_layout& layout;
    kvcache_test::past prompt = {};
    bool fails = false, forgets = false; // its run, its present tensors
    std::size_t reused = 0, runs = 0;
    std::map<std::pair<std::size_t, std::uint32_t>, memory> pasts = {}, presents = {}; // by group and layer

    /// A number as the model computes it.
    [[nodiscard]] static std::array<Number, 2> computed(std::uint64_t name, std::size_t group, std::uint32_t layer,
                                                        std::size_t head, std::size_t d) {
        const std::uint64_t key = mix(name ^ mix(group * 1000 + layer) ^ mix(head * 4096 + d));
        return {finite<Number>(key), finite<Number>(~key)};
    }
    /// The same as the cache gives it back.
    [[nodiscard]] static std::array<Number, 2> cached(std::uint64_t name, std::size_t group, std::uint32_t layer,
                                                      std::size_t head, std::size_t d) {
        auto made = computed(name, group, layer, head, d);
        for (Number& one : made)
            one = group == 0 ? through<typename kept<Codec>::pages>(one) : through<typename kept<Codec>::blocks>(one);
        return made;
    }

    kv::past_tensors past(std::size_t group, kv::layer_id layer, std::size_t tokens) {
        const kv::layer_group& of = layout.groups[group];
        const std::size_t first = of.window > 0 && random(2) == 0 ? of.first_read(tokens) : 0;
        pasts.erase({group, kv::index_of(layer)});
        return pasts.emplace(std::pair{group, kv::index_of(layer)}, memory(random, tokens, first, layout.shape(group)))
            .first->second.past();
    }
    kv::result<void> run(std::span<const kv::token_id> tokens, std::size_t first) {
        if (fails)
            return kv::error{kv::error_code::cancelled, "run", "it was asked to fail"};
        ++runs;
        reused += pasts.empty() ? 0 : first;
        REQUIRE(std::equal(tokens.begin(), tokens.end(), prompt.tokens.begin() + static_cast<std::ptrdiff_t>(first)));
        for (auto& [key, filled] : pasts)
            check_past(key.first, key.second, filled, first);
        presents.clear();
        for (std::size_t group = 0; group < layout.groups.size(); ++group)
            for (std::uint32_t layer = 0; layout.groups[group].has_rows() && layer < layout.groups[group].layers;
                 ++layer) {
                const std::size_t begin = random(2) == 0 ? 0 : random(first + 1);
                memory made(random, first + tokens.size() - begin, begin, layout.shape(group));
                for (std::size_t position = first; position < first + tokens.size(); ++position)
                    for (std::size_t head = 0; head < made.shape().kv_heads; ++head)
                        for (std::size_t d = 0; d < made.shape().head_dim; ++d)
                            made.set(position, head, d, computed(prompt.names[position], group, layer, head, d));
                presents.emplace(std::pair{group, layer}, std::move(made));
            }
        pasts.clear();
        return {};
    }
    kv::present_tensors present(std::size_t group, kv::layer_id layer) {
        return forgets ? kv::present_tensors{} : presents.at({group, kv::index_of(layer)}).present();
    }

private:
    template <class Kept>
    [[nodiscard]] static Number through(Number one) {
        if constexpr (std::is_same_v<Kept, float> || std::is_same_v<Kept, Number>)
            return one; // the same bits
        else
            return kv::narrow<Number>(kv::widen(kv::narrow<Kept>(kv::widen(one))));
    }

    // Every byte, so those between rows too.
    void check_past(std::size_t group, std::uint32_t layer, memory& filled, std::size_t end) {
        const std::size_t kept_from = layout.groups[group].first_read(end);
        bool same = true;
        for (std::size_t position = filled.first(); position < end; ++position)
            for (std::size_t head = 0; head < filled.shape().kv_heads; ++head)
                for (std::size_t d = 0; d < filled.shape().head_dim; ++d) {
                    const auto want = position < kept_from ? std::array<Number, 2>{}
                                                           : cached(prompt.names[position], group, layer, head, d);
                    const auto got = filled.get(position, head, d);
                    same = same && std::memcmp(&want, &got, sizeof want) == 0;
                    filled.reset(position, head, d);
                }
        INFO("group " << group << ", layer " << layer << ", " << end << " tokens");
        REQUIRE(same);
        REQUIRE(filled.untouched());
    }
};

template <class Number, class Codec>
void play(std::uint64_t seed, const Codec& codec, const kv::cache_layout& layout, bool grouped, std::size_t& reused) {
    seeded random(seed);
    INFO("seed " << seed << "\n" << layout.describe());
    named_runtime<Number, Codec> runtime{random, layout};
    const auto ask = [&](auto& cache) {
        std::vector<past> seen;
        for (int round = 0; round < 12; ++round) {
            past prompt;
            if (!seen.empty() && random(4) > 0) {
                const past& old = seen[random(seen.size())];
                prompt = old.first(random(old.size() + 1));
            }
            for (std::size_t more = 1 + random(50); more > 0; --more)
                prompt.push(kv::token_id{static_cast<std::int32_t>(random(1000))});
            runtime.prompt = prompt;
            auto sequence = kv::run_prompt(cache, std::span<const kv::token_id>(prompt.tokens), runtime);
            REQUIRE(sequence.has_value());
            for (std::size_t more = random(3); more > 0; --more) { // tokens of an answer
                const std::size_t count = 1 + random(3);
                for (std::size_t i = 0; i < count; ++i)
                    prompt.push(kv::token_id{static_cast<std::int32_t>(random(1000))});
                runtime.prompt = prompt;
                auto lease = cache.reserve(*sequence, count);
                REQUIRE(lease.has_value());
                REQUIRE(kv::run_tokens(*lease, std::span<const kv::token_id>(prompt.tokens).last(count), runtime));
            }
            REQUIRE(sequence->size() == prompt.size());
            seen.push_back(prompt);
        }
        REQUIRE(cache.check());
    };
    if (grouped) {
        auto cache = kv::make_cache({.limit = {.bytes = 1u << 22}}, codec, kv::layers::grouped{.layout = layout});
        ask(cache);
    } else if constexpr (kv::codec_policy<Codec> && !requires { codec.blocks; }) {
        auto cache = kv::make_cache({.shape = layout.shape(0), .limit = {.bytes = 1u << 22}}, codec);
        ask(cache);
    }
    reused += runtime.reused;
}

template <class Codec>
kv::cache_layout random_layout(seeded& random, bool grouped) {
    const auto some = [&](std::size_t most) { return static_cast<std::uint32_t>(1 + random(most)); };
    kv::cache_layout made{.tokens = 16};
    if (grouped && random(2) == 0)
        made.tokens = 32;
    made.groups.push_back({.layers = some(3), .kv_heads = some(3), .head_dim = some(20)});
    if (grouped) {
        made.groups.push_back({.layers = some(2), .kv_heads = some(3), .head_dim = some(20), .window = some(60)});
        made.groups.push_back({.layers = 2, .alias_of = 0});
        made.groups.push_back({.layers = some(2), .kv_heads = some(2), .head_dim = some(20)});
    }
    return made;
}

template <class Codec>
void play_types(const Codec& codec, bool grouped) {
    std::size_t reused = 0;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        seeded random(seed);
        const kv::cache_layout layout = random_layout<Codec>(random, grouped);
        play<float>(seed, codec, layout, grouped, reused);
        play<kv::half>(seed, codec, layout, grouped, reused);
        play<kv::bfloat16>(seed, codec, layout, grouped, reused);
    }
    CHECK(reused > 3000);
}

/// A cache of one layer of 2 KV heads of 4 numbers, and a prompt of 40 tokens of which 20 are cached.
struct small_cache {
    static constexpr kv::page_shape shape{.layers = 1, .kv_heads = 2, .head_dim = 4, .tokens = 4};
    using cache_type = kv::cache<kv::codec::hnd_f32>;

    small_cache() {
        auto lease = cache.acquire(std::span(prompt).first(20));
        REQUIRE(lease.has_value());
        const auto tensors = of(numbers, 20);
        REQUIRE(kv::write_rows(lease->lease, layer0, {tensors.keys, tensors.values, tensors.layout}));
        lease->lease.commit(std::span(prompt).first(20));
    }
    /// Tensors with all their memory in `memory`, which is given room.
    static kv::past_tensors of(std::vector<float>& memory, std::size_t tokens) {
        memory.resize(2 * tokens * 8, 1.0f);
        return {memory.data(), memory.data() + tokens * 8, kv::tensor_layout::hnd(kv::tensor_type::f32, tokens, 4)};
    }

    std::vector<float> numbers = {};
    std::vector<kv::token_id> prompt = std::vector<kv::token_id>(40, kv::token_id{5});
    cache_type cache = kv::make_cache({.shape = shape, .limit = {.pages = 64}}, kv::codec::hnd_f32{});
};

void refuses(const kv::result<void>& made, kv::error_code code, const char* field) {
    REQUIRE_FALSE(made.has_value());
    CHECK(made.error().code == code);
    CHECK(made.error().field == field);
    CHECK_FALSE(made.error().message.empty());
}

} // namespace

TEMPLATE_TEST_CASE("a runtime's rows come back with the same bits, rounded only by a narrower type", "", kv::codec::f32,
                   kv::codec::nhd_f32, kv::codec::hnd_f16, kv::codec::nhd_bf16) {
    play_types(TestType{}, false);
}

TEST_CASE("rows of layer groups come back, and rows before a window are zero") {
    play_types(kv::codec::f32{}, true);
    play_types(kv::codec::by_group{kv::codec::hnd_bf16{}, kv::codec::nhd_f16{}}, true);
}

TEST_CASE("reading keeps the bits of infinities and NaN; 16-bit pages saturate infinities") {
    small_cache one;
    const auto nan = kv::bit_cast<float>(0x7fa12345u);
    std::vector<float> wrote, read;
    const auto from = small_cache::of(wrote, 24), to = small_cache::of(read, 24);
    for (std::size_t i = 0; i < wrote.size(); ++i)
        wrote[i] = i % 3 == 0 ? nan : i % 3 == 1 ? -std::numeric_limits<float>::infinity() : static_cast<float>(i);
    const auto tokens = std::span(one.prompt).first(24);
    auto request = one.cache.acquire(tokens);
    REQUIRE(request.has_value());
    REQUIRE(request->lease.first() == 20);
    REQUIRE(kv::write_rows(request->lease, layer0, {from.keys, from.values, from.layout}));
    request->lease.commit(tokens.last(4));
    auto next = one.cache.reserve(request->sequence, 1);
    REQUIRE(next.has_value());
    REQUIRE(kv::read_rows(*next, layer0, to));
    for (std::size_t head = 0; head < 4; ++head) // two of keys, two of values
        CHECK(std::memcmp(&wrote[head * 96 + 80], &read[head * 96 + 80], 16 * sizeof(float)) == 0);

    auto halves = kv::make_cache({.shape = small_cache::shape, .limit = {.pages = 8}}, kv::codec::nhd_f16{});
    std::vector<kv::half> sides(16, kv::half{0xfc00}); // minus infinity
    auto rows = halves.acquire(std::span(one.prompt).first(1));
    const auto layout = kv::tensor_layout::nhd(kv::tensor_type::f16, 1, 2, 4);
    REQUIRE(kv::write_rows(rows->lease, layer0, {sides.data(), sides.data() + 8, layout}));
    rows->lease.commit(std::span(one.prompt).first(1));
    auto more = halves.reserve(rows->sequence, 1);
    REQUIRE(kv::read_rows(*more, layer0, {sides.data(), sides.data() + 8, layout}));
    CHECK(std::all_of(sides.begin(), sides.end(), [](kv::half x) { return x.bits == 0xfbff; }));
}

TEST_CASE("a wrong description of tensors is an error with its field, and nothing is written") {
    small_cache one;
    auto request = one.cache.acquire(one.prompt);
    REQUIRE(request.has_value());
    const auto& lease = request->lease;
    REQUIRE(lease.first() == 20);
    std::vector<float> memory, before;
    const kv::past_tensors right = small_cache::of(memory, 40);
    before = memory;
    constexpr auto range = kv::error_code::out_of_range;
    const auto both = [&](kv::error_code code, const char* field, auto&& change) {
        kv::past_tensors wrong = right;
        change(wrong);
        refuses(kv::read_rows(lease, layer0, wrong), code, field);
        refuses(kv::write_rows(lease, layer0, {wrong.keys, wrong.values, wrong.layout, wrong.first}), code, field);
    };
    both(kv::error_code::malformed, "keys", [](auto& of) { of.keys = nullptr; });
    both(kv::error_code::malformed, "values", [](auto& of) { of.values = nullptr; });
    both(kv::error_code::unsupported, "type", [](auto& of) { of.layout.type = static_cast<kv::tensor_type>(9); });
    both(range, "tokens", [](auto& of) { of.layout.tokens = 19; });
    both(range, "tokens", [](auto& of) { of.layout.tokens = 0; });
    both(range, "first", [](auto& of) { of.first = 21; });
    both(range, "first", [](auto& of) { of.first = static_cast<std::size_t>(-1); });
    both(range, "token_stride", [](auto& of) { of.layout.token_stride = 0; });
    both(range, "token_stride", [](auto& of) { of.layout.token_stride = 3; });
    both(range, "token_stride", [](auto& of) { of.layout.token_stride = static_cast<std::size_t>(-4); });
    both(range, "head_stride", [](auto& of) { of.layout.head_stride = 0; });
    both(range, "head_stride", [](auto& of) { of.layout.head_stride = static_cast<std::size_t>(-4); });
    both(range, "head_stride", [](auto& of) { of.layout.head_stride = 4; }); // rows overlap
    both(range, "token_stride", [](auto& of) { of.layout.tokens = static_cast<std::size_t>(-1); });
    kv::past_tensors most = right;
    most.layout.tokens = 39; // enough to read, one too few to write
    refuses(kv::write_rows(lease, layer0, {most.keys, most.values, most.layout}), range, "tokens");
    refuses(kv::read_rows(lease, kv::layer_id{1}, right), range, "layer");
    refuses(kv::write_rows(lease, kv::layer_id{1}, {right.keys, right.values, right.layout}), range, "layer");
    refuses(kv::read_rows(lease, 1, layer0, right), range, "group");
    refuses(kv::write_rows(lease, 1, layer0, {right.keys, right.values, right.layout}), range, "group");
    CHECK(memory == before);
    CHECK(kv::read_rows(lease, layer0, most).has_value());

    kv::past_tensors part = right; // the last four cached rows
    part.first = 16;
    part.layout.tokens = 4;
    CHECK(kv::read_rows(lease, layer0, part).has_value());
}

TEST_CASE("without cached tokens the past tensors may be empty") {
    small_cache one;
    auto request = one.cache.acquire(std::vector<kv::token_id>(3, kv::token_id{8}));
    REQUIRE(request.has_value());
    REQUIRE(request->lease.first() == 0);
    CHECK(kv::read_rows(request->lease, layer0, {nullptr, nullptr, kv::tensor_layout::hnd(kv::tensor_type::f32, 0, 4)})
              .has_value());
}

TEST_CASE("keys that moved to another position are refused") {
    small_cache one;
    auto known = one.cache.open(one.prompt);
    auto shorter = known.erase_range(4, 8);
    REQUIRE(shorter.has_value());
    auto lease = one.cache.reserve(*shorter, 1);
    REQUIRE(lease.has_value());
    std::vector<float> memory;
    refuses(kv::read_rows(*lease, layer0, small_cache::of(memory, lease->first())), kv::error_code::unsupported,
            "base");
}

TEST_CASE("a lease with rows of a chunk is refused") {
    using cache_type = kv::cache<kv::index::chunk, kv::recompute::none, kv::codec::nhd_f32>;
    const kv::page_shape shape{.layers = 1, .kv_heads = 2, .head_dim = 4, .tokens = 16};
    auto cache = kv::make_cache({.shape = shape, .limit = {.pages = 32}, .id = {.rope = "none"}},
                                kv::index::chunk{.least = 8}, kv::recompute::none{}, kv::codec::nhd_f32{});
    seeded random(1);
    const auto layout = kv::cache_layout::of(shape);
    named_runtime<float, kv::codec::nhd_f32> runtime{random, layout};
    for (int i = 0; i < 48; ++i)
        runtime.prompt.push(kv::token_id{i});
    const std::vector<kv::token_id> prompt = runtime.prompt.tokens;
    const auto sequence = kv::run_prompt(cache, std::span(prompt), runtime);
    REQUIRE(sequence.has_value());
    kv::chunk_reuse<cache_type> chunks(cache);
    REQUIRE(chunks.add(*sequence, 16, 32) == 32);
    std::vector<kv::token_id> other(16, kv::token_id{99});
    other.insert(other.end(), prompt.begin() + 16, prompt.end());
    auto empty = cache.open();
    const auto found = chunks.match(empty, other);
    REQUIRE(found.map().tokens(kv::reuse_kind::approximate) == 31); // the last token is computed
    auto lease = chunks.reserve(empty, other.size(), found, {});
    REQUIRE(lease.has_value());
    std::vector<float> memory;
    const auto tensors = small_cache::of(memory, other.size());
    refuses(kv::write_rows(*lease, layer0, {tensors.keys, tensors.values, tensors.layout}), kv::error_code::unsupported,
            "lease");
}

TEST_CASE("a run that fails leaves the cache as it was") {
    small_cache one;
    seeded random(1);
    const auto layout = kv::cache_layout::of(small_cache::shape);
    named_runtime<float, kv::codec::hnd_f32> runtime{random, layout};
    for (int i = 0; i < 30; ++i)
        runtime.prompt.push(kv::token_id{i});
    const std::span<const kv::token_id> prompt = runtime.prompt.tokens;
    runtime.fails = true;
    const auto failed = kv::run_prompt(one.cache, prompt, runtime);
    REQUIRE_FALSE(failed.has_value());
    CHECK(failed.error().code == kv::error_code::cancelled);
    CHECK(one.cache.lookup(prompt).cached_tokens == 0);
    runtime.fails = false;
    runtime.forgets = true; // its present tensors have no rows
    const auto lost = kv::run_prompt(one.cache, prompt, runtime);
    REQUIRE_FALSE(lost.has_value());
    CHECK(lost.error().field == "tokens");
    CHECK(one.cache.lookup(prompt).cached_tokens == 0);
    CHECK(one.cache.check());
    runtime.forgets = false;
    auto sequence = kv::run_prompt(one.cache, prompt, runtime);
    REQUIRE(sequence.has_value());
    auto lease = one.cache.reserve(*sequence, 2);
    refuses(kv::run_tokens(*lease, prompt.first(1), runtime), kv::error_code::out_of_range, "tokens");
    CHECK(runtime.runs == 2);
}

TEST_CASE("layers with a recurrent state are refused") {
    seeded random(1);
    const kv::cache_layout layout{
        .tokens = 4, .groups = {{.layers = 1, .kv_heads = 1, .head_dim = 4}, {.layers = 1, .state_bytes = 16}}};
    auto cache =
        kv::make_cache({.limit = {.bytes = 1u << 16}}, kv::codec::nhd_f32{}, kv::layers::grouped{.layout = layout});
    named_runtime<float, kv::codec::nhd_f32> runtime{random, layout};
    const std::vector<kv::token_id> prompt(5, kv::token_id{1});
    const auto made = kv::run_prompt(cache, prompt, runtime);
    REQUIRE_FALSE(made.has_value());
    CHECK(made.error().code == kv::error_code::unsupported);
    CHECK(runtime.runs == 0);
}
