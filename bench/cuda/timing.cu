// SPDX-License-Identifier: MIT
// The speed of copies, row kernels and attention on a device, compared with limits of the same run: pinned copies, and
// copies within the device counted in bytes read and written. Also checks that attention gives a sequence the same bits
// alone, with half of the others, and in another order. bench/cuda/run builds it. It writes JSON to the first file
// given and a table to the second, and exits with 1 if an aim is missed or bits differ.
#include <kvcache/cuda/cuda_device.cuh>
#include <kvcache/cuda/device_storage.hpp>
#include <kvcache/cuda/paged_attention.hpp>
#include <kvcache/cuda/quantize_rows.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

namespace kv = kvcache;
namespace cuda = kv::cuda;
using cuda::row_format;

// Returns the value, or ends the process with the error message.
template <class T>
T got(kv::result<T> result) {
    if (!result) {
        std::printf("FAIL  %s: %s\n", result.error().field.c_str(), result.error().message.c_str());
        std::exit(1);
    }
    return std::move(*result);
}
void got(const kv::result<void>& result) {
    if (!result) {
        std::printf("FAIL  %s: %s\n", result.error().field.c_str(), result.error().message.c_str());
        std::exit(1);
    }
}

// The median seconds of a run on the device, after two warm-up runs.
template <class Run>
double seconds(cuda::cuda_device& device, cuda::stream_id stream, const Run& run, int times = 9) {
    cudaEvent_t begin = nullptr, end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<double> all;
    for (int i = -2; i < times; ++i) {
        got(device.synchronise(stream));
        cudaEventRecord(begin, device.native(stream));
        run();
        cudaEventRecord(end, device.native(stream));
        got(device.synchronise(stream));
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, begin, end);
        if (i >= 0)
            all.push_back(static_cast<double>(milliseconds) * 1e-3);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::nth_element(all.begin(), all.begin() + times / 2, all.end());
    return all[static_cast<std::size_t>(times / 2)];
}

struct rows_of_json {
    std::FILE* file;
    std::FILE* table; ///< The same rows as a Markdown table; null: no table.
    bool first = true;
    int missed = 0;
    int aims = 0;

    // Writes a row: bytes per second, the share of the limit and the aim; 0: no limit or no aim.
    void row(const std::string& name, double rate, double limit, double aim) {
        std::printf("%-52s %9.1f GB/s", name.c_str(), rate * 1e-9);
        if (limit > 0)
            std::printf("  %5.1f %% of the limit", 100 * rate / limit);
        if (aim > 0)
            std::printf(", aim %.0f %%%s", 100 * aim, rate >= aim * limit ? "" : "  BELOW");
        std::printf("\n");
        std::fflush(stdout);
        std::fprintf(file, "%s\n    {\"name\": \"%s\", \"bytes_per_second\": %.6g", first ? "" : ",", name.c_str(),
                     rate);
        if (limit > 0)
            std::fprintf(file, ", \"of_limit\": %.4f", rate / limit);
        if (aim > 0)
            std::fprintf(file, ", \"aim\": %.2f", aim);
        std::fprintf(file, "}");
        first = false;
        if (table != nullptr) {
            std::fprintf(table, "| %s | %.1f |", name.c_str(), rate * 1e-9);
            limit > 0 ? std::fprintf(table, " %.1f %% |", 100 * rate / limit) : std::fprintf(table, " |");
            aim > 0 ? std::fprintf(table, " %.0f %% |\n", 100 * aim) : std::fprintf(table, " |\n");
        }
        aims += aim > 0 ? 1 : 0;
        missed += aim > 0 && rate < aim * limit ? 1 : 0;
    }

    // Writes a condition that must hold.
    void fact(const std::string& name, bool holds) {
        std::printf("%-52s %s\n", name.c_str(), holds ? "yes" : "NO");
        std::fprintf(file, "%s\n    {\"name\": \"%s\", \"holds\": %s}", first ? "" : ",", name.c_str(),
                     holds ? "true" : "false");
        first = false;
        if (table != nullptr)
            std::fprintf(table, "| %s | %s | | |\n", name.c_str(), holds ? "yes" : "no");
        ++aims;
        missed += holds ? 0 : 1;
    }
};

constexpr std::size_t mebi = std::size_t{1} << 20;

// Fills a region with values of a magnitude that attention meets: every byte is the same, which as bf16 is 0.0115.
void set(cuda::cuda_device& device, cuda::stream_id stream, std::byte* to, std::size_t bytes) {
    got(device.fill(stream, to, std::byte{0x3C}, bytes));
    got(device.synchronise(stream));
}

// Measures copies of scattered pages between the device and pinned memory, in one call.
void pages(rows_of_json& to, std::size_t page_bytes, double in_limit, double out_limit) {
    const std::size_t count = 256 * mebi / page_bytes;
    for (const auto& [way, engine_bytes] :
         {std::pair{"", cuda::cuda_options{}.engine_bytes}, std::pair{", kernel", ~std::size_t{}},
          std::pair{", engines", std::size_t{}}}) {
        auto device = got(cuda::cuda_device::open({.engine_bytes = engine_bytes}));
        const auto stream = got(device.open_stream());
        auto storage = cuda::device_storage<cuda::cuda_device>{.device = &device}.open(count, page_bytes);
        std::byte* const pinned = got(device.allocate_pinned(count * page_bytes));
        std::vector<std::uint32_t> order(count);
        std::iota(order.begin(), order.end(), 0u);
        std::shuffle(order.begin(), order.end(), std::mt19937(1));
        std::vector<cuda::page_part> parts;
        for (std::size_t i = 0; i < count; ++i) {
            if (!storage.acquire(kv::page_id{order[i]}))
                got(storage.status());
            parts.push_back({kv::page_id{order[i]}, 0, {pinned + i * page_bytes, page_bytes}});
        }
        const double bytes = static_cast<double>(count * page_bytes);
        const std::string name = "pages of " + std::to_string(page_bytes / 1024) + " KiB";
        const double aim = *way == '\0' ? 0.85 : 0.0; // the aim is for the default setting
        to.row(name + " to the device" + way,
               bytes / seconds(device, stream, [&] { got(storage.load(stream, parts)); }), in_limit, aim);
        to.row(name + " to the host" + way, bytes / seconds(device, stream, [&] { got(storage.store(stream, parts)); }),
               out_limit, aim);
        device.deallocate_pinned(pinned);
    }
}

template <row_format Format>
void rows(rows_of_json& to, cuda::cuda_device& device, cuda::kv_layout order, const char* name, double limit) {
    constexpr std::uint32_t tokens = 65536, page_tokens = 16;
    const auto stream = got(device.open_stream());
    const cuda::page_layout layout{{.kv_heads = 8, .head_dim = 128, .tokens = page_tokens}, order, Format};
    auto storage =
        cuda::device_storage<cuda::cuda_device>{.device = &device}.open(tokens / page_tokens, layout.page_bytes());
    if (!storage.acquire(kv::page_id{0}))
        got(storage.status());
    std::vector<std::uint32_t> pages(tokens / page_tokens);
    std::iota(pages.begin(), pages.end(), 0u);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(2));
    std::vector<cuda::row_slot> slots;
    for (std::uint32_t token = 0; token < tokens; ++token)
        slots.push_back({pages[token / page_tokens], token % page_tokens});
    cuda::device_array<cuda::row_slot, cuda::cuda_device> table(device);
    got(table.assign(stream, slots));
    const std::size_t side = std::size_t{tokens} * 8 * 128 * 2;
    std::byte* const outside = got(device.allocate(2 * side));
    set(device, stream, outside, 2 * side);
    set(device, stream, storage.address(kv::page_id{0}), tokens / page_tokens * layout.page_bytes());
    const cuda::token_rows given{outside, outside + side, row_format::bf16};
    const double bytes = static_cast<double>(2 * side + tokens / page_tokens * layout.page_bytes());
    constexpr auto in = cuda::row_way::into_pages, back = cuda::row_way::out_of_pages;
    const double aim = Format == row_format::bf16 ? 0.8 : 0.0;
    const auto kernel = [&]<cuda::row_way Way>(std::integral_constant<cuda::row_way, Way>) {
        if constexpr (Format == row_format::bf16)
            got(device.launch(stream, cuda::copy_rows<Way>{layout, storage.pool(), 0, tokens, table.data(), given}));
        else
            got(device.launch(stream, cuda::quantize_rows<Way, Format>::make(layout, storage.pool(), 0, tokens,
                                                                             table.data(), given)));
    };
    to.row(std::string("append ") + name,
           bytes / seconds(device, stream, [&] { kernel(std::integral_constant<cuda::row_way, in>{}); }), limit, aim);
    to.row(std::string("gather ") + name,
           bytes / seconds(device, stream, [&] { kernel(std::integral_constant<cuda::row_way, back>{}); }), limit, aim);
    device.deallocate(outside);
    device.close(stream);
}

// Fills a whole region with random values of either sign and a magnitude near one, as bf16 or as arbitrary bytes: a
// block of 64 MiB, repeated.
void scatter(cuda::cuda_device& device, cuda::stream_id stream, std::byte* to, std::size_t bytes) {
    const std::size_t block = std::min(bytes, 64 * mebi);
    std::byte* const pinned = got(device.allocate_pinned(block));
    auto* const numbers = reinterpret_cast<std::uint16_t*>(pinned);
    std::mt19937 random(5);
    for (std::size_t i = 0; i < block / 2; ++i) {
        const std::uint32_t bits = random();
        numbers[i] = static_cast<std::uint16_t>((bits & 0x8000) | 0x3E00 | (bits & 0x01FF)); // 0.125 to 1
    }
    for (std::size_t at = 0; at < bytes; at += block) {
        const cuda::copy_piece piece{pinned, to + at, std::min(block, bytes - at)};
        got(device.copy(stream, cuda::copy_way::to_device, {&piece, 1}));
    }
    got(device.synchronise(stream));
    device.deallocate_pinned(pinned);
}

// Runs attention for some sequences of a batch, in the given order. Returns the output, for a bitwise comparison.
template <row_format Format>
[[nodiscard]] std::vector<float> attended(cuda::cuda_device& device, cuda::stream_id stream,
                                          const cuda::attention_options& options, const cuda::device_page_pool& pool,
                                          const std::vector<std::vector<kv::page_entry>>& tables,
                                          const std::vector<std::uint32_t>& order, const std::byte* queries) {
    const std::size_t width = std::size_t{options.heads} * 128;
    cuda::attention_table table;
    for (const std::uint32_t sequence : order)
        got(table.add(tables[sequence], 0));
    cuda::paged_attention<cuda::cuda_device, Format, 128, 4> attention(device, options);
    got(attention.plan(stream, table));
    std::byte* const asked = got(device.allocate(order.size() * width * 2));
    std::byte* const out = got(device.allocate(order.size() * width * 4));
    std::byte* const pinned = got(device.allocate_pinned(order.size() * width * 4));
    std::vector<cuda::copy_piece> pieces;
    for (std::size_t i = 0; i < order.size(); ++i)
        pieces.push_back({queries + order[i] * width * 2, asked + i * width * 2, width * 2});
    got(device.copy(stream, cuda::copy_way::within_device, pieces));
    got(attention.run(stream, pool, 0, asked, row_format::bf16, reinterpret_cast<float*>(out)));
    const cuda::copy_piece home{out, pinned, order.size() * width * 4};
    got(device.copy(stream, cuda::copy_way::to_host, {&home, 1}));
    got(device.synchronise(stream));
    std::vector<float> numbers(order.size() * width);
    std::memcpy(numbers.data(), pinned, numbers.size() * 4);
    device.deallocate(asked);
    device.deallocate(out);
    device.deallocate_pinned(pinned);
    return numbers;
}

template <row_format Format>
void attention(rows_of_json& to, cuda::cuda_device& device, cuda::kv_layout order, std::uint32_t batch,
               std::uint32_t page_tokens, const char* name, double limit, double aim) {
    constexpr std::uint32_t context = 8192, heads = 32;
    const auto stream = got(device.open_stream());
    const cuda::page_layout layout{{.kv_heads = 8, .head_dim = 128, .tokens = page_tokens}, order, Format};
    const std::uint32_t each = context / page_tokens, count = batch * each;
    auto storage = cuda::device_storage<cuda::cuda_device>{.device = &device}.open(count, layout.page_bytes());
    if (!storage.acquire(kv::page_id{0}))
        got(storage.status());
    scatter(device, stream, storage.address(kv::page_id{0}), count * layout.page_bytes());
    std::vector<std::uint32_t> pages(count);
    std::iota(pages.begin(), pages.end(), 0u);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(3));
    std::vector<std::vector<kv::page_entry>> tables;
    cuda::attention_table table;
    for (std::uint32_t i = 0; i < batch; ++i) {
        std::vector<kv::page_entry> entries;
        for (std::uint32_t page = 0; page < each; ++page)
            entries.push_back({.page = kv::page_id{pages[i * each + page]}, .count = page_tokens});
        got(table.add(entries, 0));
        tables.push_back(std::move(entries));
    }
    const cuda::attention_options options{.layout = layout, .heads = heads, .scale = 0.08838835f, .steps = {}};
    cuda::paged_attention<cuda::cuda_device, Format, 128, 4> attention(device, options);
    got(attention.plan(stream, table));
    std::byte* const queries = got(device.allocate(batch * heads * 128 * 2));
    std::byte* const out = got(device.allocate(batch * heads * 128 * 4));
    scatter(device, stream, queries, batch * heads * 128 * 2);
    const double bytes = static_cast<double>(batch) * context * 8 * 2 *
                         static_cast<double>(layout.row_bytes() + 2 * layout.row_scales());
    const double took = seconds(device, stream, [&] {
        got(attention.run(stream, storage.pool(), 0, queries, row_format::bf16, reinterpret_cast<float*>(out)));
    });
    to.row(name, bytes / took, limit, aim);
    if (aim > 0) {
        std::vector<std::uint32_t> all(batch), back;
        std::iota(all.begin(), all.end(), 0u);
        back.assign(all.rbegin(), all.rend());
        const std::vector<std::uint32_t> half(all.begin(), all.begin() + batch / 2), one(1, batch - 1);
        const auto whole = attended<Format>(device, stream, options, storage.pool(), tables, all, queries);
        bool same = std::any_of(whole.begin(), whole.end(), [](float x) { return x != 0.0f; });
        for (const auto& order : {back, half, one}) {
            const auto part = attended<Format>(device, stream, options, storage.pool(), tables, order, queries);
            for (std::size_t i = 0; i < order.size(); ++i)
                same = same && std::memcmp(part.data() + i * heads * 128, whole.data() + order[i] * heads * 128,
                                           heads * 128 * sizeof(float)) == 0;
        }
        to.fact(std::string(name) + ": the same bits alone, with half, reversed", same);
    }
    device.deallocate(queries);
    device.deallocate(out);
    device.close(stream);
}

} // namespace

int main(int count, char** words) {
    auto opened = cuda::cuda_device::open();
    if (!opened) {
        std::printf("SKIPPED: no CUDA device to time (%s)\n", opened.error().message.c_str());
        return 77;
    }
    auto& device = *opened;
    rows_of_json to{std::fopen(count > 1 ? words[1] : "cuda.json", "w"),
                    count > 2 ? std::fopen(words[2], "w") : nullptr};
    if (to.file == nullptr || (count > 2 && to.table == nullptr)) {
        std::printf("FAIL  a file of results cannot be written\n");
        return 1;
    }
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    std::printf("device: %s, runtime %d, driver %d\n", device.name().c_str(), runtime, driver);
    std::fprintf(to.file, "{\n  \"device\": \"%s\", \"runtime\": %d, \"driver\": %d,\n  \"rows\": [",
                 device.name().c_str(), runtime, driver);
    if (to.table != nullptr)
        std::fprintf(to.table,
                     "%s, CUDA runtime %d, driver %d, `bench/cuda/run`:\n\n| What | GB/s | Of the limit | Aim "
                     "|\n|---|---|---|---|\n",
                     device.name().c_str(), runtime, driver);

    const auto stream = got(device.open_stream());
    double in = 0, out = 0, within = 0;
    {
        std::byte* const pinned = got(device.allocate_pinned(256 * mebi));
        std::byte* const one = got(device.allocate(1024 * mebi));
        std::byte* const other = got(device.allocate(1024 * mebi));
        const auto copy = [&](std::byte* target, const std::byte* source, std::size_t bytes) {
            return static_cast<double>(bytes) / seconds(device, stream, [&] {
                       cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, device.native(stream));
                   });
        };
        in = copy(one, pinned, 256 * mebi);
        out = copy(pinned, one, 256 * mebi);
        within = 2 * copy(other, one, 1024 * mebi); // read and written
        to.row("pinned copy to the device", in, 0, 0);
        to.row("pinned copy to the host", out, 0, 0);
        to.row("copy within the device, read and written", within, 0, 0);
        device.deallocate_pinned(pinned);
        device.deallocate(one);
        device.deallocate(other);
    }
    for (const std::size_t kibi : {64u, 256u, 1024u, 2048u})
        pages(to, kibi * 1024, in, out);
    constexpr auto nhd = cuda::kv_layout::nhd, hnd = cuda::kv_layout::hnd;
    rows<row_format::bf16>(to, device, nhd, "bf16, NHD", within);
    rows<row_format::bf16>(to, device, hnd, "bf16, HND", within);
    rows<row_format::int8>(to, device, nhd, "int8 from bf16, NHD", within);
    rows<row_format::int4_hadamard>(to, device, nhd, "int4 turned from bf16, NHD", within);
    attention<row_format::bf16>(to, device, nhd, 64, 16, "attention bf16, 64 x 8192, pages of 16, NHD", within, 0.8);
    attention<row_format::bf16>(to, device, hnd, 64, 16, "attention bf16, 64 x 8192, pages of 16, HND", within, 0.8);
    attention<row_format::bf16>(to, device, nhd, 64, 64, "attention bf16, 64 x 8192, pages of 64, NHD", within, 0);
    attention<row_format::bf16>(to, device, nhd, 1, 16, "attention bf16, 1 x 8192, pages of 16, NHD", within, 0);
    attention<row_format::int8>(to, device, nhd, 64, 16, "attention int8, 64 x 8192, pages of 16, NHD", within, 0);
    std::fprintf(to.file, "\n  ]\n}\n");
    std::fclose(to.file);
    if (to.table != nullptr)
        std::fclose(to.table);
    std::printf("%s: %d of %d aims were missed\n", device.name().c_str(), to.missed, to.aims);
    return to.missed == 0 ? 0 : 1;
}
