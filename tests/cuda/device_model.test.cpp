// SPDX-License-Identifier: MIT
// The reference transformer with its pages and attention on a device: a hit equals a miss, bit for bit, and the results
// are as close to a double-precision reference as the host's.
#include <kvcache/cache/compose.hpp>
#include <kvcache/cuda/device_model.hpp>
#include <kvcache/cuda/device_rows.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/testing/emulated_device.hpp>
#include <kvcache/testing/random_weights.hpp>
#include <kvcache/testing/reference_attention.hpp>

#include "device_host.hpp"
#include <catch2/catch.hpp>

using namespace device_host;

namespace {

// Reference: attention of a forward pass in double precision, with unmodified rows. One sequence, from its start, in
// one pass.
template <class Lease>
class referee {
public:
    void plan(std::span<const kv::attention_kind> kinds, std::span<const kv::batch_slice<Lease>>,
              const kv::thread_pool&) {
        REQUIRE(kinds.size() == 1);
        shape_ = kinds[0].shape;
        shape_.rotation = nullptr; // keys arrive rotated, and queries are rotated here
        rotation_ = kinds[0].shape.rotation;
        asked_ = kinds[0].rows;
        keys_.clear();
    }
    void write(const Lease& lease, std::size_t to, std::size_t, const kv::attended_layer&, std::span<const float> keys,
               std::span<const float> values) {
        lease.declare_written(); // it keeps the rows itself
        const std::size_t side = keys.size();
        if (keys_.size() < (to + 1) * side) {
            keys_.resize((to + 1) * side);
            values_.resize((to + 1) * side);
        }
        std::ranges::copy(keys, keys_.begin() + static_cast<std::ptrdiff_t>(to * side));
        std::ranges::copy(values, values_.begin() + static_cast<std::ptrdiff_t>(to * side));
    }
    void run(const kv::attended_layer&, kv::thread_pool&) {
        const std::size_t width = std::size_t{shape_.heads} * shape_.head_dim;
        const std::size_t rows = keys_.size() / (std::size_t{shape_.kv_heads} * shape_.head_dim);
        std::vector<float> queries, turned(shape_.head_dim), rotation(shape_.head_dim);
        for (std::size_t row = 0; row < rows; ++row) {
            rotation_->fill(static_cast<std::int64_t>(row), rotation);
            for (std::size_t at = 0; at < width; at += shape_.head_dim) {
                kv::rotate_head({asked_.data + row * asked_.stride + at, shape_.head_dim}, rotation, turned);
                queries.insert(queries.end(), turned.begin(), turned.end());
            }
        }
        const auto out = kv::reference_attention(shape_, {queries, keys_, values_, 0});
        for (std::size_t i = 0; i < out.size(); ++i)
            asked_.out[i / width * asked_.out_stride + i % width] = static_cast<float>(out[i]);
    }

private:
    kv::attention_shape shape_;
    const kv::rope* rotation_ = nullptr;
    kv::query_rows asked_;
    std::vector<float> keys_, values_;
};

struct refereed {
    const kv::transformer& model;
    [[nodiscard]] auto layers() const { return model.layers(); }
    [[nodiscard]] std::size_t vocabulary() const { return model.vocabulary(); }
    [[nodiscard]] std::size_t max_positions() const { return model.max_positions(); }
    template <class Lease>
    [[nodiscard]] auto make_forward_pass(kv::thread_pool& threads) const {
        return model.make_forward_pass<Lease>(threads, referee<Lease>{});
    }
};

template <class Model>
kv::matrix on_host(const Model& model, const tokens& prompt) {
    kv::thread_pool threads(1);
    auto cache = kv::make_cache({small_model().shape(16), {.bytes = 4u << 20}});
    kv::pipeline pipeline(cache, model, threads, prompt.size());
    auto done = pipeline.prefill(prompt, kv::logits_mode::all);
    REQUIRE(done.has_value());
    return std::move(done->logits);
}

double furthest(const kv::matrix& a, const kv::matrix& b) {
    REQUIRE(a.size() == b.size());
    double most = 0;
    for (Eigen::Index i = 0; i < a.size(); ++i)
        most = std::max(most, std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i])));
    return most;
}

} // namespace

TEST_CASE("logits from a device are as near to a double-precision referee as the host's, and its tokens are the same") {
    const tokens prompt = some_tokens(70, 1);
    const kv::matrix truth = on_host(refereed{small_model()}, prompt);
    const kv::matrix host = on_host(small_model(), prompt);
    const kv::matrix there = cold<f32>(prompt);
    CAPTURE(furthest(host, truth), furthest(there, truth), furthest(there, host));
    CHECK(furthest(host, truth) <= 1e-5);
    CHECK(furthest(there, truth) <= 1e-5);
    CHECK(furthest(cold<bf16>(prompt), truth) <= 0.1);
    CHECK(furthest(cold<int8>(prompt), truth) <= 0.2);

    const auto say = [](auto& pipeline) {
        const auto made = kv::generate(pipeline, some_tokens(20, 2), kv::sampler{}, {.max_tokens = 24},
                                       [](kv::token_id, std::span<const float>) { return true; });
        REQUIRE(made.has_value());
        return made->ids;
    };
    kv::thread_pool threads(1);
    auto cache = kv::make_cache({small_model().shape(16), {.bytes = 4u << 20}});
    kv::pipeline pipeline(cache, small_model(), threads);
    on_device<f32> device;
    CHECK(say(device.pipeline) == say(pipeline));
}

TEMPLATE_TEST_CASE("on a device a full, a partial and an edited hit give the bits of a miss", "", f32, bf16, int8) {
    const tokens prompt = some_tokens(40, 3);
    const kv::matrix want = cold<TestType>(prompt);
    for (const std::size_t known : {1u, 15u, 16u, 17u, 31u, 39u, 40u}) {
        on_device<TestType> here;
        (void)here.prefill(first(prompt, known));
        const auto warm = here.prefill(prompt);
        CHECK(warm.reused == std::min<std::size_t>(known, 39));
        CHECK(same_bits(warm.logits, want));
    }
    on_device<TestType> here;
    (void)here.prefill(prompt);
    for (const std::size_t place : {5u, 16u, 33u}) {
        tokens edited = prompt;
        edited[place] = kv::token_id{(kv::index_of(edited[place]) + 1) % 67};
        const auto warm = here.prefill(edited);
        CHECK(warm.reused == place);
        CHECK(same_bits(warm.logits, cold<TestType>(edited)));
    }
    CHECK(same_bits(here.prefill(prompt).logits, want));
}

TEMPLATE_TEST_CASE("on a device every split, page size and thread count gives the same bits", "", f32, int8) {
    const tokens prompt = some_tokens(53, 4);
    const kv::matrix want = cold<TestType>(prompt);
    for (const std::size_t split : {1u, 2u, 3u, 7u, 16u, 17u, 64u}) {
        on_device<TestType> here({.page = split % 2 == 0 ? 32u : 16u, .threads = 1 + split % 2, .split = split});
        const auto cut = here.prefill(first(prompt, 21));
        CHECK(same_bits(cut.logits, first_rows(want, 21)));
        CHECK(same_bits(here.prefill(prompt).logits, want));
    }
}

TEST_CASE("on a device a context past the split of long ones gives the bits of a miss") {
    const tokens prompt = some_tokens(560, 14);
    const kv::matrix want = cold<bf16>(prompt);
    on_device<bf16> here({.split = 100, .seed = 5});
    (void)here.prefill(first(prompt, 515));
    const auto warm = here.prefill(prompt);
    CHECK(warm.reused == 515);
    CHECK(same_bits(warm.logits, want));
    CHECK(furthest(first_rows(cold<f32>(prompt), 560), on_host(refereed{small_model()}, prompt)) <= 1e-5);
}

TEMPLATE_TEST_CASE("on a device forks and truncations copy on write and keep their bits", "", f32, bf16) {
    const tokens prompt = some_tokens(37, 5), left = some_tokens(14, 6), right = some_tokens(14, 7);
    for (const std::size_t at : {3u, 16u, 29u, 37u}) {
        on_device<TestType> here;
        auto trunk = here.prefill(prompt);
        auto branch = trunk.sequence.fork(at);
        const std::size_t copied = here.device.counts().within;
        CHECK(same_bits(here.extend(branch, right), cold<TestType>(joined(first(prompt, at), right))));
        CHECK((here.device.counts().within > copied) == (at % 16 != 0));
        CHECK(same_bits(here.extend(trunk.sequence, left), cold<TestType>(joined(prompt, left))));
        branch.truncate(at / 2);
        CHECK(same_bits(here.extend(branch, left), cold<TestType>(joined(first(prompt, at / 2), left))));
    }
}

TEST_CASE("on a device what was evicted and computed again has the same bits") {
    on_device<f32> here({.pages = 6});
    std::size_t again = 0;
    for (int round = 0; round < 2; ++round)
        for (unsigned i = 0; i < 3; ++i) {
            const tokens prompt = some_tokens(40 + 9 * i, 20 + i);
            const auto turn = here.prefill(prompt);
            again += turn.prefilled;
            CHECK(same_bits(turn.logits, cold<f32>(prompt)));
        }
    CHECK(again > 200);
}

TEMPLATE_TEST_CASE("on a device the sequences of a batch do not mix", "", f32, bf16) {
    for (const std::size_t split : {5u, 64u}) {
        on_device<TestType> here({.page = 32, .threads = 2, .split = split});
        std::vector<tokens> past, more;
        std::vector<typename on_device<TestType>::prefill_result> users;
        for (unsigned i = 0; i < 4; ++i) {
            past.push_back(some_tokens(3 + 11 * i, 30 + i));
            more.push_back(some_tokens(1 + 5 * i % 7, 40 + i));
            users.push_back(here.prefill(past[i]));
        }
        std::vector<kv::batch_entry<typename on_device<TestType>::cache>> batch;
        for (unsigned i = 0; i < 4; ++i)
            batch.push_back({&users[i].sequence, more[i], kv::logits_mode::all});
        kv::matrix rows;
        REQUIRE(here.pipeline.extend(batch, rows).has_value());
        Eigen::Index at = 0;
        for (unsigned i = 0; i < 4; ++i) {
            const auto n = static_cast<Eigen::Index>(more[i].size());
            CHECK(same_bits(rows.middleRows(at, n), cold<TestType>(joined(past[i], more[i]))));
            at += n;
        }
    }
}

TEST_CASE("a sequence on a device that loses its middle keeps the rows after it") {
    on_device<f32> here;
    const tokens prompt = some_tokens(50, 8), more = some_tokens(5, 9);
    auto turn = here.prefill(prompt);
    auto shorter = turn.sequence.erase_range(10, 13);
    REQUIRE(shorter.has_value());
    const kv::matrix once = here.extend(*shorter, more);
    auto other = turn.sequence.erase_range(10, 13);
    REQUIRE(other.has_value());
    CHECK(same_bits(here.extend(*other, more), once)); // approximate, and the same each time
    CHECK(same_bits(here.prefill(prompt).logits, cold<f32>(prompt)));
}

TEST_CASE("whatever call to the device fails, the prompt is refused, typed, and nothing is lost") {
    const tokens prompt = some_tokens(20, 10), more = some_tokens(9, 11);
    const kv::matrix want = cold<f32>(joined(prompt, more));
    std::size_t failures = 0;
    for (std::uint64_t n = 1; n < 100; ++n) {
        on_device<f32> here({.split = 5});
        auto turn = here.prefill(prompt);
        auto branch = turn.sequence.fork(20); // it writes into a shared page
        const std::size_t idle = here.store.stats().free;
        here.device.fail_next(n);
        const auto refused = here.pipeline.extend(branch, more, kv::logits_mode::all);
        here.device.fail_next(0);
        CHECK(here.store.check().has_value());
        if (refused.has_value())
            break; // no more fallible calls
        ++failures;
        CHECK(refused.error().code == kv::error_code::io);
        CHECK(branch.size() == 20);
        CHECK(here.store.stats().free == idle);
        CHECK(same_bits(here.extend(branch, more), want));
    }
    CHECK(failures > 10);
}

TEST_CASE("windows, soft caps and sinks are refused on a device, typed") {
    using device = on_device<f32>;
    testing::emulated_device made({.bytes = 1 << 20, .seed = 1});
    cuda::device_attention<device::cache::lease, testing::emulated_device, cuda::row_format::f32, 16, 4> attention(
        made, 2048);
    const kv::thread_pool one(1);
    const kv::batch_slice<device::cache::lease> row;
    const float sinks[6] = {};
    for (const kv::attention_shape& shape :
         {kv::attention_shape{.heads = 6, .kv_heads = 2, .head_dim = 16, .window = 8},
          kv::attention_shape{.heads = 6, .kv_heads = 2, .head_dim = 16, .soft_cap = 30.0f},
          kv::attention_shape{.heads = 6, .kv_heads = 2, .head_dim = 16, .sinks = sinks}}) {
        const kv::attention_kind kind{.shape = shape};
        attention.plan({&kind, 1}, {&row, 1}, one);
        REQUIRE_FALSE(attention.status().has_value());
        CHECK(attention.status().error().code == kv::error_code::unsupported);
    }
}

TEST_CASE("a device without memory refuses a prompt, typed, and serves what fits") {
    on_device<f32> here({.pages = 8, .device_bytes = 1 << 10});
    const auto refused = here.pipeline.prefill(some_tokens(20, 12));
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == kv::error_code::out_of_memory);
    CHECK(refused.error().field == "device memory");
    CHECK(here.store.stats().free == 8);
    const auto too_long = here.pipeline.prefill(some_tokens(200, 13));
    REQUIRE_FALSE(too_long.has_value());
    CHECK(too_long.error().field == "pages");
}
