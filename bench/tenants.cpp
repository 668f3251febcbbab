// SPDX-License-Identifier: MIT
//
// A timing side-channel test between tenants. In each trial tenant A stores one of two prompts of the same length,
// chosen by a hidden coin, and tenant B looks one of them up, from its own memory. The score is how well B's times
// predict the coin: the area under the ROC curve, 0.5 for no information. The same trial within one tenant, where the
// time must predict the coin, shows that the clock can detect it. Exits with 1 if the score across tenants exceeds
// 0.55.

#include <kvcache/cache.hpp>
#include <kvcache/index/all.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../examples/support/guarded.hpp"

namespace kv = kvcache;

namespace {

constexpr kv::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 16, .tokens = 16};
constexpr std::size_t page_bytes = std::size_t{16} * 16 * 2 * sizeof(float), length = 512;

using tokens = std::vector<kv::token_id>;

tokens prompt(std::mt19937_64& random) {
    tokens made(length);
    for (kv::token_id& token : made)
        token = kv::token_id{static_cast<std::int32_t>(random() % 50000)};
    return made;
}

template <class Cache>
void store(Cache& cache, const kv::tenant& tenant, const tokens& wanted) {
    auto sequence = cache.open(tenant);
    auto lease = cache.reserve(sequence, wanted.size());
    if (!lease)
        std::exit(2);
    lease->declare_written(); // the rows do not matter here
    lease->commit(wanted);
}

// The area under the ROC curve of labeled times, whichever direction separates them.
double area(std::vector<std::pair<double, bool>> times) {
    std::ranges::sort(times);
    double ranks = 0.0, hits = 0.0;
    for (std::size_t i = 0; i < times.size();) { // tied times share their mean rank
        std::size_t end = i;
        while (end < times.size() && times[end].first == times[i].first)
            ++end;
        for (std::size_t k = i; k < end; ++k)
            if (times[k].second) {
                ranks += static_cast<double>(i + end + 1) / 2.0;
                ++hits;
            }
        i = end;
    }
    const double misses = static_cast<double>(times.size()) - hits;
    const double a = (ranks - hits * (hits + 1.0) / 2.0) / (hits * misses);
    return std::max(a, 1.0 - a);
}

// Runs trials in which `asker` looks up a prompt that `storer` may have stored. Returns the area under the ROC curve.
template <class Cache>
double trials(Cache& cache, const kv::tenant& storer, const kv::tenant& asker, std::size_t number,
              std::mt19937_64& random) {
    std::vector<std::pair<double, bool>> times;
    for (std::size_t i = 0; i < number; ++i) {
        const tokens one = prompt(random), other = prompt(random);
        const bool coin = random() % 2 == 0;
        store(cache, storer, coin ? one : other);
        const tokens asked(one.begin(), one.end()); // its own memory, equally warm for either side of the coin
        static_cast<void>(cache.open(prompt(random), asker));
        const auto begin = std::chrono::steady_clock::now();
        { const auto found = cache.open(asked, asker); }
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
        times.emplace_back(taken.count(), coin);
    }
    return area(std::move(times));
}

struct row {
    std::string name;
    double area = 0.0;
};

template <class Index>
void measure(const char* name, const Index& index, std::size_t number, std::vector<row>& rows) {
    std::mt19937_64 random(1);
    const std::size_t pages = 64 * length / shape.tokens;
    auto cache = kv::make_cache({.shape = shape, .limit = {pages * page_bytes}, .tenants = 2}, index);
    const auto a = *cache.open_tenant(kv::tenant_salt("a"), pages / 2),
               b = *cache.open_tenant(kv::tenant_salt("b"), pages / 2);
    static_cast<void>(trials(cache, a, b, number / 10, random)); // warm-up, until both tenants reach their quota
    rows.push_back({std::string("other_tenant_") + name, trials(cache, a, b, number, random)});
    rows.push_back({std::string("own_") + name, trials(cache, b, b, number, random)});
}

int program(int count, char** words) {
    std::size_t number = 20000;
    std::string json;
    for (int i = 1; i + 1 < count; i += 2)
        if (std::strcmp(words[i], "--trials") == 0)
            number = std::strtoull(words[i + 1], nullptr, 10);
        else if (std::strcmp(words[i], "--json") == 0)
            json = words[i + 1];
    if (number < 100)
        return std::fprintf(stderr, "tenants [--trials N, at least 100] [--json FILE]\n"), 2;

    std::vector<row> rows;
    measure("radix", kv::index::radix{}, number, rows);
    measure("hash_chain", kv::index::hash_chain{}, number, rows);

    double worst = 0.0;
    std::string text = "[";
    for (const row& r : rows) {
        if (r.name.starts_with("other"))
            worst = std::max(worst, r.area);
        std::printf("%-28s AUC %.3f\n", r.name.c_str(), r.area);
        text += (text.size() > 1 ? ",\n " : "") + std::string("{\"name\": \"") + r.name +
                "\", \"unit\": \"AUC\", \"value\": " + std::to_string(r.area) + "}";
    }
    std::printf("\ntenants: %.3f at most, of 0.550 that may be told (%zu trials a row)\n", worst, number);
    if (!json.empty()) {
        std::FILE* const file = std::fopen(json.c_str(), "w");
        if (file == nullptr)
            return std::fprintf(stderr, "tenants: cannot write %s\n", json.c_str()), 2;
        std::fputs((text + "]\n").c_str(), file);
        std::fclose(file);
    }
    return worst <= 0.55 ? 0 : 1;
}

} // namespace

int main(int count, char** words) {
    return support::guarded("tenants", [&] { return program(count, words); });
}
