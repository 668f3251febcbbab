// SPDX-License-Identifier: MIT
//
// The kernels compared with the machine's limits: fused multiply-adds per second on registers, and bytes per second
// read from memory, measured with as many threads right after each sample. Then the GEMM interleaved with Eigen's at
// the shapes of two models, where the limit is Eigen's speed.

#include <kvcache/attention/batch_attention.hpp>
#include <kvcache/attention/paged_attention.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/kernel/gemm.hpp>
#include <kvcache/kernel/hadamard.hpp>
#include <kvcache/storage/heap.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "kernels/block_products.hpp"
#include "support/huge.hpp"
#include "support/machine.hpp"
#include "support/suite.hpp"

namespace kv = kvcache;

namespace {

constexpr std::size_t beyond_cache = std::size_t{512} << 20; // bytes

kv::thread_pool& pool_of(std::size_t threads) {
    static kv::thread_pool one(1), two(2);
    return threads == 1 ? one : two;
}

// A buffer of random values in [-1, 1), in huge pages where the system provides them.
class numbers {
public:
    explicit numbers(std::size_t size) : size_(size), memory_(bench::huge_floats(size)) { fill({memory_.get(), size}); }

    static void fill(std::span<float> with) {
        std::uint32_t x = 1;
        for (float& v : with) {
            x = x * 1664525u + 1013904223u;
            v = static_cast<float>(static_cast<std::int32_t>(x) >> 8) * 0x1p-23f;
        }
    }

    [[nodiscard]] float* data() const noexcept { return memory_.get(); }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

private:
    std::size_t size_;
    bench::huge_memory memory_;
};

// ---- the shapes of models

struct matrix_shape {
    const char* name;
    std::size_t inputs, outputs;
};
constexpr matrix_shape smollm2[] = {
    {"qkv", 576, 960}, {"output", 576, 576}, {"gate_up", 576, 3072}, {"down", 1536, 576}};
constexpr matrix_shape tinyllama[] = {{"qkv", 2048, 2560}, {"gate_up", 2048, 11264}, {"down", 5632, 2048}};

template <class Weight>
kv::packed_matrix<Weight> packed(const matrix_shape& shape) {
    kv::packed_matrix<Weight> w(shape.outputs, shape.inputs);
    std::vector<float> row(shape.inputs);
    std::vector<Weight> stored(shape.inputs);
    numbers::fill(row);
    for (std::size_t n = 0; n < shape.outputs; ++n) {
        std::rotate(row.begin(), row.begin() + 1, row.end());
        for (std::size_t k = 0; k < row.size(); ++k)
            if constexpr (sizeof(Weight) == sizeof(float))
                stored[k] = row[k];
            else
                stored[k] = {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(row[k]) >> 16)};
        w.set_row(n, stored);
    }
    return w;
}

/// The matrices of a layer, packed once.
template <class Weight>
const std::vector<kv::packed_matrix<Weight>>& layer_of(std::span<const matrix_shape> shapes) {
    static std::map<const matrix_shape*, std::vector<kv::packed_matrix<Weight>>> layers;
    auto& layer = layers[shapes.data()];
    if (layer.empty())
        for (const matrix_shape& shape : shapes)
            layer.push_back(packed<Weight>(shape));
    return layer;
}

const numbers& activations() {
    static const numbers x(2048 * kv::row_stride(5632));
    return x;
}
const numbers& results() {
    static const numbers y(2048 * kv::row_stride(11264));
    return y;
}

template <class Weight>
void multiply(const kv::packed_matrix<Weight>& w, std::size_t rows, kv::thread_pool& threads) {
    kv::gemm({activations().data(), rows, kv::row_stride(w.inputs())}, w,
             {results().data(), kv::row_stride(w.outputs())}, threads);
}

// ---- limits

// The machine's limits, in GFLOP/s and GB/s.
double peak(std::size_t threads) {
    return bench::fma_peak(pool_of(threads)) * 1e-9;
}
double streamed(std::size_t threads) {
    static bench::stream memory(beyond_cache);
    return memory(pool_of(threads)) * 1e-9;
}

// A sample with its limit, measured right after it, so that other load affects both.
bench::sample of_peak(double value, std::size_t threads) {
    return {value, peak(threads)};
}
bench::sample of_stream(double value, std::size_t threads) {
    return {value, streamed(threads)};
}

// ---- GEMM

// The GEMM rate of `rows` rows through the matrices of a layer, whose weights stay in the cache. (GFLOP/s)
template <class Weight>
double product_rate(std::span<const matrix_shape> shapes, std::size_t rows, std::size_t threads) {
    const auto& layer = layer_of<Weight>(shapes);
    double flops = 0.0;
    const auto pass = [&] {
        for (const auto& w : layer) {
            multiply(w, rows, pool_of(threads));
            flops += 2.0 * static_cast<double>(rows * w.inputs() * w.outputs());
        }
    };
    pass(); // brings the weights into the cache
    flops = 0.0;
    const bench::stopwatch watch;
    while (watch.seconds() < 0.005)
        pass();
    return flops * 1e-9 / watch.seconds();
}

// The rate of some rows through enough matrices to exceed the cache, one row as generating a token does. (GB/s)
template <class Weight>
double streamed_rate(std::size_t rows, std::size_t threads) {
    static const auto layers = [] {
        std::vector<std::vector<kv::packed_matrix<Weight>>> made;
        for (std::size_t bytes = 0; bytes < beyond_cache;) {
            made.push_back(layer_of<Weight>(smollm2));
            for (const auto& w : made.back())
                bytes += w.bytes();
        }
        return made;
    }();
    double bytes = 0.0;
    const bench::stopwatch watch;
    for (const auto& layer : layers)
        for (const auto& w : layer) {
            multiply(w, rows, pool_of(threads));
            bytes += static_cast<double>(w.bytes());
        }
    return bytes * 1e-9 / watch.seconds();
}

// Matrices of blocks that exceed the cache.
const bench::block_layers& streamed_blocks(kv::block_format format) {
    static std::map<kv::block_format, bench::block_layers> layers;
    return layers.try_emplace(format, format, beyond_cache / 2).first->second;
}

// One row through them, in GB/s, compared with the memory; a few rows through them, as experts have, and 512 rows
// through one layer, in GOP/s, compared with the same GEMM in float32.
bench::sample blocks_streamed(kv::block_format format, bool int8, std::size_t threads) {
    const auto& of = streamed_blocks(format);
    const double seconds =
        of.seconds({activations().data(), 1, 1536}, {results().data(), 3072}, int8, pool_of(threads));
    return of_stream(of.bytes() * 1e-9 / seconds, threads);
}
bench::sample blocks_of_few_rows(kv::block_format format, std::size_t rows, std::size_t threads) {
    const auto& of = streamed_blocks(format);
    const double seconds = of.seconds({activations().data(), rows, kv::row_stride(1536)},
                                      {results().data(), kv::row_stride(3072)}, false, pool_of(threads));
    const auto operations = 2e-9 * static_cast<double>(rows);
    return {operations * of.products() / seconds,
            operations / sizeof(float) * 1e9 * streamed_rate<float>(rows, threads)};
}
bench::sample blocks_beside_f32(kv::block_format format, bool int8, std::size_t threads) {
    constexpr std::size_t rows = 512;
    static std::map<kv::block_format, bench::block_layers> layers;
    const auto& of = layers.try_emplace(format, format, 0).first->second;
    const double seconds = of.seconds({activations().data(), rows, kv::row_stride(1536)},
                                      {results().data(), kv::row_stride(3072)}, int8, pool_of(threads));
    return {2e-9 * rows * of.products() / seconds, product_rate<float>(smollm2, rows, threads)};
}

// Runs the same GEMM with Eigen, with the outputs split among the threads.
void multiply_by_eigen(const numbers& weights, const matrix_shape& shape, std::size_t rows, kv::thread_pool& threads) {
    const auto inputs = static_cast<Eigen::Index>(shape.inputs), outputs = static_cast<Eigen::Index>(shape.outputs);
    const Eigen::Map<const kv::matrix> w(weights.data(), outputs, inputs);
    const Eigen::Map<const kv::matrix> x(activations().data(), static_cast<Eigen::Index>(rows), inputs);
    Eigen::Map<kv::matrix> y(results().data(), static_cast<Eigen::Index>(rows), outputs);
    threads.parallel_for(threads.threads(), [&](std::size_t begin, std::size_t end) {
        const auto cut = [&](std::size_t part) {
            return static_cast<Eigen::Index>(shape.outputs / 16 * part / threads.threads() * 16);
        };
        const Eigen::Index from = cut(begin), to = end == threads.threads() ? outputs : cut(end);
        y.middleCols(from, to - from).noalias() = x * w.middleRows(from, to - from).transpose();
    });
}

bench::sample beside_eigen(std::span<const matrix_shape> shapes, std::size_t which, std::size_t rows,
                           std::size_t threads) {
    static std::map<const matrix_shape*, std::unique_ptr<numbers>> weights;
    const matrix_shape& shape = shapes[which];
    const auto& w = layer_of<float>(shapes)[which];
    auto& unpacked = weights[&shape];
    if (!unpacked)
        unpacked = std::make_unique<numbers>(shape.inputs * shape.outputs);
    const double flops = 2e-9 * static_cast<double>(rows * shape.inputs * shape.outputs);
    bench::sample taken;
    {
        const bench::stopwatch watch;
        multiply(w, rows, pool_of(threads));
        taken.value = flops / watch.seconds();
    }
    const bench::stopwatch watch;
    multiply_by_eigen(*unpacked, shape, rows, pool_of(threads));
    taken.limit = flops / watch.seconds();
    return taken;
}

// ---- attention: head_dim 64; 9 query heads over 3 KV heads as SmolLM2-135M, except for shared prefixes

// The pages of one or more sequences, all in one storage, filled with noise.
struct past {
    static constexpr std::uint32_t dim = 64, page_tokens = 64;

    kv::rope rotation{kv::rope::standard_frequencies(dim, 10000.0)};
    std::uint32_t layers, kv_heads;
    kv::codec::f32::state codec;
    bench::huge_memory arena;
    std::unique_ptr<std::pmr::monotonic_buffer_resource> contiguous;
    kv::storage::heap::state storage;
    std::vector<std::vector<kv::page_entry>> tables; // per sequence

    /// Fills the pages. `in_one_piece`: pages are contiguous in memory, in order.
    past(std::size_t sequences, std::uint32_t layer_count, std::uint32_t head_count, std::size_t bytes,
         bool in_one_piece)
        : layers(layer_count),
          kv_heads(head_count),
          codec(kv::codec::f32{}.open({layers, kv_heads, dim, page_tokens})),
          arena(bench::huge_floats(in_one_piece ? bytes / sizeof(float) + (1 << 20) : 1)),
          contiguous(std::make_unique<std::pmr::monotonic_buffer_resource>(
              arena.get(), in_one_piece ? bytes + (4 << 20) : 0, std::pmr::null_memory_resource())),
          storage(kv::storage::heap{in_one_piece ? contiguous.get() : nullptr}.open(bytes / codec.page_bytes(),
                                                                                    codec.page_bytes())),
          tables(sequences) {
        const std::size_t pages = bytes / codec.page_bytes() / sequences * sequences;
        for (std::size_t p = 0; p < pages; ++p) {
            const auto page = static_cast<kv::page_id>(p);
            if (!storage.acquire(page))
                throw std::bad_alloc();
            const auto raw = storage.bytes(page);
            numbers::fill({reinterpret_cast<float*>(raw.data()), raw.size() / sizeof(float)});
            tables[p / (pages / sequences)].push_back({.page = page, .count = page_tokens});
        }
    }

    [[nodiscard]] std::size_t tokens() const { return tables[0].size() * page_tokens; }
    [[nodiscard]] double bytes() const {
        return static_cast<double>(tables.size() * tables[0].size() * codec.page_bytes());
    }
};

using page_tables = std::vector<std::vector<kv::page_entry>>;

// Runs attention for the last `rows` of `positions` positions, in all layers of all sequences. Returns seconds.
double attend(const past& p, const page_tables& tables, std::uint32_t heads, std::size_t positions, std::size_t rows,
              kv::thread_pool& threads) {
    const std::size_t width = std::size_t{heads} * past::dim, first = positions - rows;
    static const numbers queries(std::size_t{1024} * 9 * past::dim), out(std::size_t{1024} * 9 * past::dim);
    const kv::attention_shape shape{heads, p.kv_heads, past::dim, 0.125f, &p.rotation};
    std::vector<float> rotations(rows * past::dim);
    for (std::size_t row = 0; row < rows; ++row)
        p.rotation.fill(static_cast<std::int64_t>(first + row),
                        std::span(rotations).subspan(row * past::dim, past::dim));
    const auto asked = [&](std::size_t sequence) {
        const std::size_t at = sequence * rows * width;
        return kv::query_rows{queries.data() + at, rotations.data(), out.data() + at, width, width, first, rows};
    };
    using attention = kv::batch_attention<kv::codec::f32::state, kv::storage::heap::state>;
    static std::map<kv::thread_pool*, attention> attentions; // kept, so that their memory is allocated once
    std::vector<kv::attention_part> parts;
    for (std::size_t sequence = 0; sequence < tables.size(); ++sequence)
        parts.push_back({{tables[sequence]}, asked(sequence)});
    attention& all = attentions[&threads];
    const bench::stopwatch watch;
    all.plan(shape, kv::page_source(p.codec, p.storage), parts, threads);
    for (std::uint32_t layer = 0; layer < p.layers; ++layer)
        all.run(kv::layer_id{layer}, threads);
    return watch.seconds();
}

double attention_decode(std::size_t threads) {
    static const past p(2, 30, 3, beyond_cache + (32 << 20), false);
    return p.bytes() * 1e-9 / attend(p, p.tables, 9, p.tokens(), 1, pool_of(threads));
}

// Attention over randomly ordered, scattered pages; the limit is attention over contiguous pages in memory order. There
// is one layer, so that the layer's rows are contiguous from page to page.
bench::sample attention_contiguous(std::size_t threads) {
    static const past scattered(2, 1, 3, beyond_cache, false), contiguous(2, 1, 3, beyond_cache, true);
    static const auto disordered = [] {
        auto tables = scattered.tables;
        std::minstd_rand random(1);
        for (auto& table : tables)
            for (std::size_t i = table.size(); i > 1; --i)
                std::swap(table[i - 1], table[random() % i]);
        return tables;
    }();
    return {
        scattered.bytes() * 1e-9 / attend(scattered, disordered, 9, scattered.tokens(), 1, pool_of(threads)),
        contiguous.bytes() * 1e-9 / attend(contiguous, contiguous.tables, 9, contiguous.tokens(), 1, pool_of(threads)),
    };
}

// The speedup of a shared prefix: 16 sequences of 4096 tokens plus one page, with `group` query heads per KV head.
// Compares the time when all share the pages of the 4096 tokens with the time when each has its own pages; the pages
// exceed the cache either way.
bench::sample attention_shared_prefix(std::uint32_t group, std::size_t threads) {
    constexpr std::size_t sequences = 16, tokens = 4096 + past::page_tokens, bytes_a_token = 2 * 2 * 64 * sizeof(float);
    static const past p(sequences, 8, 2, sequences * tokens * bytes_a_token * 8, false);
    static const auto shared = [] {
        auto tables = p.tables;
        for (auto& table : tables)
            std::copy(p.tables[0].begin(), p.tables[0].end() - 1, table.begin());
        return tables;
    }();
    const double apart = attend(p, p.tables, 2 * group, tokens, 1, pool_of(threads));
    return {apart / attend(p, shared, 2 * group, tokens, 1, pool_of(threads))};
}

double attention_prefill(std::size_t depth, std::size_t rows, std::size_t threads) {
    static const past p(1, 1, 3, std::size_t{9216} * 3 * past::dim * 2 * sizeof(float), false);
    double pairs = 0.0;
    for (std::size_t row = 0; row < rows; ++row)
        pairs += static_cast<double>(depth + row + 1);
    return pairs * 4e-9 * 9 * past::dim / attend(p, p.tables, 9, depth + rows, rows, pool_of(threads));
}

// ---- the thread pool

bench::sample dispatch(std::size_t threads) {
    constexpr std::size_t loops = 1000;
    std::vector<std::size_t> met(threads * 8);
    const bench::stopwatch watch;
    for (std::size_t i = 0; i < loops; ++i)
        pool_of(threads).parallel_for(threads, [&](std::size_t begin, std::size_t) { met[begin * 8] += i; });
    return {watch.seconds() * 1e6 / loops};
}

// ---- the transform before quantization

// Transforms rows of 128 values in the L1 cache.
bench::sample hadamard_row() {
    constexpr std::size_t rows = 32, turns = 200;
    static const numbers x(rows * 128);
    const bench::stopwatch watch;
    for (std::size_t i = 0; i < turns * rows; ++i)
        kv::hadamard(std::span(x.data() + i % rows * 128, 128));
    return {watch.seconds() * 1e9 / (turns * rows)};
}

void add_limits(bench::suite& suite, std::size_t threads) {
    suite.add({.name = "fma_peak", .threads = threads, .unit = "GFLOP/s", .take = [threads] {
                   return bench::sample{peak(threads)};
               }});
    suite.add({.name = "stream", .threads = threads, .unit = "GB/s", .take = [threads] {
                   return bench::sample{streamed(threads)};
               }});
}

void add_block_products(bench::suite& suite, std::size_t threads) {
    for (const kv::block_format format : kv::block_formats) {
        for (const std::size_t rows : {2u, 4u, 8u, 9u})
            if (kv::is_quantized(format))
                suite.add({.name = "product_" + std::string(kv::name_of(format)) + "_m" + std::to_string(rows),
                           .threads = threads,
                           .unit = "GOP/s",
                           .take = [=] { return blocks_of_few_rows(format, rows, threads); },
                           .aim = 0.9,
                           .repetitions = 3});
        for (const bool int8 : {false, true}) {
            if (!kv::is_quantized(format))
                continue;
            const std::string name = std::string("product_") + std::string(kv::name_of(format)) + (int8 ? "_int8" : "");
            suite.add({.name = name + "_m1", .threads = threads, .unit = "GB/s", .take = [=] {
                           return blocks_streamed(format, int8, threads);
                       }});
            suite.add({.name = name + "_m512", .threads = threads, .unit = "GOP/s", .take = [=] {
                           return blocks_beside_f32(format, int8, threads);
                       }});
        }
    }
}

void add_products(bench::suite& suite, std::size_t threads) {
    const auto add = [&](std::string name, double aim, auto weight, std::span<const matrix_shape> shapes,
                         std::size_t rows) {
        suite.add({.name = std::move(name),
                   .threads = threads,
                   .unit = "GFLOP/s",
                   .take = [=] { return of_peak(product_rate<decltype(weight)>(shapes, rows, threads), threads); },
                   .open = [=] { product_rate<decltype(weight)>(shapes, 16, threads); },
                   .aim = aim,
                   .scored = true,
                   .repetitions = shapes.data() == tinyllama ? 3 : 5});
    };
    suite.add({.name = "product_f32_m1",
               .threads = threads,
               .unit = "GB/s",
               .take = [=] { return of_stream(streamed_rate<float>(1, threads), threads); },
               .aim = 0.85,
               .scored = true});
    suite.add({.name = "product_bf16_m1",
               .threads = threads,
               .unit = "GB/s",
               .take = [=] { return of_stream(streamed_rate<kv::bfloat16>(1, threads), threads); },
               .aim = 0.85,
               .scored = true});
    add("product_f32_m8", 0.0, 0.0f, smollm2, 8);
    add("product_f32_m128", 0.90, 0.0f, smollm2, 128);
    add("product_f32_m512", 0.90, 0.0f, smollm2, 512);
    add("product_bf16_m128", 0.85, kv::bfloat16{}, smollm2, 128);
    add("product_bf16_m512", 0.85, kv::bfloat16{}, smollm2, 512);
    add("product_f32_m128_tinyllama", 0.90, 0.0f, tinyllama, 128);
    add("product_f32_m512_tinyllama", 0.90, 0.0f, tinyllama, 512);
    add("product_bf16_m512_tinyllama", 0.85, kv::bfloat16{}, tinyllama, 512);
}

void add_attention(bench::suite& suite, std::size_t threads) {
    suite.add({.name = "attention_decode",
               .threads = threads,
               .unit = "GB/s",
               .take = [=] { return of_stream(attention_decode(threads), threads); },
               .aim = 0.85,
               .scored = true});
    suite.add({.name = "attention_contiguous",
               .threads = threads,
               .unit = "GB/s",
               .take = [=] { return attention_contiguous(threads); },
               .aim = 0.97});
    suite.add({.name = "attention_prefill",
               .threads = threads,
               .unit = "GFLOP/s",
               .take = [=] { return of_peak(attention_prefill(0, 1024, threads), threads); },
               .aim = 0.50,
               .scored = true});
    suite.add({.name = "attention_prefill_at_8192",
               .threads = threads,
               .unit = "GFLOP/s",
               .take = [=] { return of_peak(attention_prefill(8192, 256, threads), threads); },
               .aim = 0.50,
               .scored = true});
    for (const std::uint32_t group : {4u, 1u})
        suite.add({.name = group == 4 ? "attention_shared_prefix" : "attention_shared_prefix_group1",
                   .threads = threads,
                   .unit = "x",
                   .take = [=] { return attention_shared_prefix(group, threads); },
                   .limit = group == 4 ? 3.5 : 8.0,
                   .aim = group == 4 ? 2.5 / 3.5 : 1.0});
}

void add_beside_eigen(bench::suite& suite, std::size_t threads) {
    const auto add = [&](const char* model, std::span<const matrix_shape> shapes, std::size_t rows) {
        for (std::size_t which = 0; which < shapes.size(); ++which)
            suite.add({.name = "eigen_m" + std::to_string(rows) + "_" + model + "_" + shapes[which].name,
                       .threads = threads,
                       .unit = "GFLOP/s",
                       .take = [=] { return beside_eigen(shapes, which, rows, threads); },
                       .open = [=] { beside_eigen(shapes, which, std::min<std::size_t>(rows, 16), threads); },
                       .aim = 1.0,
                       .repetitions = 1,
                       .seconds = 0.08});
    };
    for (const std::size_t rows : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 12u, 16u, 31u, 32u, 64u, 128u, 512u, 2048u}) {
        add("smollm2", smollm2, rows);
        add("tinyllama", tinyllama, rows);
    }
}

int program(int count, char** words) {
    bench::suite suite("kernels", count, words);
    for (const std::size_t threads : {1u, 2u}) {
        add_limits(suite, threads);
        add_products(suite, threads);
        add_block_products(suite, threads);
        add_attention(suite, threads);
        add_beside_eigen(suite, threads);
    }
    suite.add(
        {.name = "dispatch", .threads = 2, .unit = "us", .take = [] { return dispatch(2); }, .limit = 2.0, .aim = 1.0});
    suite.add({.name = "hadamard_128", .threads = 1, .unit = "ns", .take = hadamard_row, .limit = 60.0, .aim = 1.0});
    return suite.run();
}

} // namespace

int main(int count, char** words) {
    return support::guarded("kernels", [&] { return program(count, words); });
}
