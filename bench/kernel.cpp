// SPDX-License-Identifier: MIT
//
// The kernels beside what this machine can do at most: fused multiply-adds a second from registers, and bytes a second
// read from memory, both measured in the same run, interleaved. One thread. The last line is the summary.

#include <kvcache/attention/paged_attention.hpp>
#include <kvcache/codec/plain.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/product.hpp>
#include <kvcache/storage/heap.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

namespace kv = kvcache;
using benchmark::Counter;

namespace {

constexpr std::size_t inputs = 576, outputs = 1536;      // the gate of SmolLM2-135M
constexpr std::size_t streamed = std::size_t{192} << 20; // bytes: beyond any cache of the machine

void count_flops(benchmark::State& state, double flops) {
    state.counters["GFLOP/s"] = Counter(flops * 1e-9, Counter::kIsIterationInvariantRate);
}
void count_bytes(benchmark::State& state, double bytes) {
    state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsIterationInvariantRate);
}

std::vector<float> noise(std::size_t size) {
    std::vector<float> made(size);
    std::uint32_t x = 1;
    for (float& v : made) {
        x = x * 1664525u + 1013904223u;
        v = static_cast<float>(static_cast<std::int32_t>(x) >> 8) * 0x1p-23f;
    }
    return made;
}

// ---- the machine's limits

void peak(benchmark::State& state) {
    constexpr std::size_t chains = kv::detail::native_lanes == 16 ? 12 : 6; // hides the latency, fits the registers
    kv::f32x16 sums[chains];
    for (auto& s : sums)
        s = kv::f32x16::zero();
    const auto x = kv::f32x16::broadcast(0.999f), y = kv::f32x16::broadcast(0.001f);
    for (auto _ : state) {
        for (int round = 0; round < 1000; ++round)
            for (auto& s : sums)
                s = kv::fma(s, x, y);
        benchmark::DoNotOptimize(sums);
    }
    count_flops(state, 1000.0 * chains * 16 * 2);
}

void stream(benchmark::State& state) {
    const kv::aligned_vector<float> memory(streamed / sizeof(float), 1.0f);
    for (auto _ : state) {
        kv::f32x16 sums[8];
        for (auto& s : sums)
            s = kv::f32x16::zero();
        for (std::size_t i = 0; i < memory.size(); i += 128)
            for (std::size_t j = 0; j < 8; ++j)
                sums[j] = sums[j] + kv::f32x16::load(&memory[i + 16 * j]);
        benchmark::DoNotOptimize(sums);
    }
    count_bytes(state, static_cast<double>(streamed));
}

// ---- products

template <class Weight>
kv::packed_matrix<Weight> packed() {
    kv::packed_matrix<Weight> w(outputs, inputs);
    std::vector<Weight> row(inputs);
    for (Weight& weight : row)
        if constexpr (std::same_as<Weight, float>)
            weight = 1.0f;
        else
            weight.bits = 0x3c00;
    for (std::size_t n = 0; n < outputs; ++n)
        w.set_row(n, row);
    return w;
}

template <class Weight>
void product(benchmark::State& state) {
    const auto rows = static_cast<std::size_t>(state.range(0));
    const auto w = packed<Weight>();
    const auto x = noise(rows * inputs);
    std::vector<float> y(rows * outputs);
    kv::team alone;
    for (auto _ : state) {
        kv::product({x.data(), rows, inputs}, w, {y.data(), outputs}, alone);
        benchmark::DoNotOptimize(y.data());
    }
    count_flops(state, 2.0 * static_cast<double>(rows * inputs * outputs));
}

void product_by_eigen(benchmark::State& state) {
    const auto rows = static_cast<Eigen::Index>(state.range(0));
    const kv::matrix w = kv::matrix::Random(outputs, inputs), x = kv::matrix::Random(rows, inputs);
    kv::matrix y(rows, outputs);
    for (auto _ : state) {
        y.noalias() = x * w.transpose();
        benchmark::DoNotOptimize(y.data());
    }
    count_flops(state, 2.0 * static_cast<double>(rows * w.size()));
}

// One row through as many matrices as lie in memory: the weights of a token.
template <class Weight>
void product_streamed(benchmark::State& state) {
    const std::vector<kv::packed_matrix<Weight>> matrices(streamed / (inputs * outputs * sizeof(Weight)),
                                                          packed<Weight>());
    const auto x = noise(inputs);
    std::vector<float> y(outputs);
    kv::team alone;
    for (auto _ : state)
        for (const auto& w : matrices) {
            kv::product({x.data(), 1, inputs}, w, {y.data(), outputs}, alone);
            benchmark::DoNotOptimize(y.data());
        }
    count_bytes(state, static_cast<double>(matrices.size() * matrices[0].bytes()));
}

// ---- attention: 9 heads over 3, head_dim 64, as SmolLM2-135M

struct past {
    static constexpr std::uint32_t heads = 9, kv_heads = 3, dim = 64, page_tokens = 64;

    kv::rope rotation{kv::rope::standard_frequencies(dim, 10000.0)};
    kv::attention_shape shape{heads, kv_heads, dim, 0.125f, &rotation};
    kv::plain::state codec;
    kv::heap::state storage;
    std::vector<kv::page_entry> table;

    explicit past(std::size_t tokens)
        : codec(kv::plain{}.open({1, kv_heads, dim, page_tokens})),
          storage(kv::heap{}.open(tokens / page_tokens, codec.page_bytes())) {
        const auto numbers = noise(tokens + 2 * dim);
        for (std::uint32_t p = 0; p < tokens / page_tokens; ++p) {
            const auto page = static_cast<kv::page_id>(p);
            if (!storage.acquire(page))
                return;
            table.push_back({.page = page, .count = page_tokens});
            for (std::uint32_t row = 0; row < page_tokens; ++row)
                for (std::uint32_t head = 0; head < kv_heads; ++head)
                    codec.encode(storage.bytes(page), {kv::layer_id{0}, kv::head_id{head}, row},
                                 {&numbers[p * page_tokens + row], dim}, {&numbers[row + head], dim});
        }
    }
};

// The last `rows` rows of so many positions.
void attend(benchmark::State& state, std::size_t positions, std::size_t rows) {
    const past p(positions);
    const std::size_t width = std::size_t{past::heads} * past::dim, first = positions - rows;
    const auto queries = noise(rows * width);
    std::vector<float> rotations(rows * past::dim), out(rows * width);
    for (std::size_t row = 0; row < rows; ++row)
        p.rotation.fill(static_cast<std::int64_t>(first + row), {&rotations[row * past::dim], past::dim});
    const kv::query_rows asked{queries.data(), rotations.data(), out.data(), width, width, first, rows};
    const kv::paged_rows<kv::plain::state, kv::heap::state> pages{&p.codec, &p.storage, p.table};
    for (auto _ : state) {
        for (std::uint32_t head = 0; head < past::kv_heads; ++head)
            kv::attend(p.shape, pages, kv::layer_id{0}, kv::head_id{head}, asked, 0, rows);
        benchmark::DoNotOptimize(out.data());
    }
    double seen = 0.0;
    for (std::size_t row = 0; row < rows; ++row)
        seen += static_cast<double>(first + row + 1);
    count_flops(state, seen * 4.0 * past::heads * past::dim);
    if (rows == 1)
        count_bytes(state, static_cast<double>(positions) * 2.0 * past::kv_heads * past::dim * sizeof(float));
}
void attention_decode(benchmark::State& state) {
    attend(state, static_cast<std::size_t>(state.range(0)), 1);
}
void attention_prefill(benchmark::State& state) {
    attend(state, static_cast<std::size_t>(state.range(0)), static_cast<std::size_t>(state.range(0)));
}

// ---- what is not a product

void rms_norm(benchmark::State& state) {
    const auto x = noise(inputs), weight = noise(inputs);
    std::vector<float> out(inputs);
    for (auto _ : state) {
        kv::rms_norm(x, weight, 1e-6f, out);
        benchmark::DoNotOptimize(out.data());
    }
    count_bytes(state, static_cast<double>(inputs * 3 * sizeof(float)));
}

void gated_silu(benchmark::State& state) {
    const auto gate = noise(outputs), up = noise(outputs);
    std::vector<float> out(outputs);
    for (auto _ : state) {
        kv::gated_silu(gate, up, out);
        benchmark::DoNotOptimize(out.data());
    }
    count_bytes(state, static_cast<double>(outputs * 3 * sizeof(float)));
}

BENCHMARK(peak);
BENCHMARK(stream)->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(product, float)->Arg(1)->Arg(8)->Arg(512)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(product, kv::bfloat16)->Arg(1)->Arg(8)->Arg(512)->Unit(benchmark::kMicrosecond);
BENCHMARK(product_by_eigen)->Arg(1)->Arg(8)->Arg(512)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(product_streamed, float)->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(product_streamed, kv::bfloat16)->Unit(benchmark::kMillisecond);
BENCHMARK(attention_decode)->Arg(1024)->Arg(8192)->Arg(65536)->Unit(benchmark::kMicrosecond);
BENCHMARK(attention_prefill)->Arg(128)->Arg(1024)->Unit(benchmark::kMillisecond);
BENCHMARK(rms_norm);
BENCHMARK(gated_silu);

// Prints as usual and keeps the medians for the summary.
class summary : public benchmark::ConsoleReporter {
public:
    void ReportRuns(const std::vector<Run>& runs) override {
        for (const Run& run : runs)
            if (run.aggregate_name == "median")
                for (const auto& [unit, counter] : run.counters)
                    medians_[run.run_name.function_name + "/" + run.run_name.args + " " + unit] = counter.value;
        ConsoleReporter::ReportRuns(runs);
    }

    void last_line() {
        const double flops = medians_["peak/ GFLOP/s"], bytes = medians_["stream/ GB/s"];
        if (medians_.size() < 20)
            return; // a filter left some out
        std::printf("of %.0f GFLOP/s: product of 512 rows %.0f %%, of 8 rows %.0f %%, Eigen's %.0f %% and %.0f %%, "
                    "prefill attention %.0f %%; of %.1f GB/s: product of 1 row %.0f %%, attention over 65536 %.0f %%\n",
                    flops, 100 * medians_["product<float>/512 GFLOP/s"] / flops,
                    100 * medians_["product<float>/8 GFLOP/s"] / flops,
                    100 * medians_["product_by_eigen/512 GFLOP/s"] / flops,
                    100 * medians_["product_by_eigen/8 GFLOP/s"] / flops,
                    100 * medians_["attention_prefill/1024 GFLOP/s"] / flops, bytes,
                    100 * medians_["product_streamed<float>/ GB/s"] / bytes,
                    100 * medians_["attention_decode/65536 GB/s"] / bytes);
    }

private:
    std::map<std::string, double> medians_;
};

} // namespace

int main(int count, char** words) {
    // Interleaved, so that a noisy neighbour meets all alike; a flag of the user's comes later and wins.
    std::string standard[] = {"--benchmark_repetitions=5", "--benchmark_enable_random_interleaving=true",
                              "--benchmark_report_aggregates_only=true", "--benchmark_min_time=0.05"};
    std::vector<char*> arguments{words[0]};
    for (std::string& flag : standard)
        arguments.push_back(flag.data());
    arguments.insert(arguments.end(), words + 1, words + count);
    int size = static_cast<int>(arguments.size());
    benchmark::Initialize(&size, arguments.data());
    if (benchmark::ReportUnrecognizedArguments(size, arguments.data()))
        return 1;
    summary reporter;
    benchmark::RunSpecifiedBenchmarks(&reporter);
    reporter.last_line();
}
