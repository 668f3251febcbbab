// SPDX-License-Identifier: MIT
//
// The throughput and latency of tiers: records written and read, compared with the same bytes read from files in the
// page cache and with redis-benchmark; the time to the first token of a long prompt after a restart, compared with a
// cold start; the pause of a running generation while another request's prompt is read; the most that overlapping
// reads with computation could save; and, with a model and a text, what lossless codes make of its records, and how
// long records take to come from each tier plain and compressed.

#include <kvcache/cache/compose.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/sha256_builder.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/testing/random_weights.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/lmdb.hpp>
#include <kvcache/tier/redis.hpp>
#include <kvcache/tier/run.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "support/machine.hpp"
#include "tiers/codes.hpp"
#include "tiers/pauses.hpp"
#include "tiers/redis_process.hpp"
#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace {

namespace kv = kvcache;
using bytes = std::vector<std::byte>;

struct flags {
    std::vector<std::string> parts{"rates", "restart", "pauses", "overlap"};
    std::string model, text; // of the parts codes and compressed
    std::vector<std::size_t> sizes{65536, 368640, 1 << 20, 4 << 20};
    std::string directory = "tiers-bench", json;
    std::size_t mib = 256, rounds = 5, prompt = 2000, layers = 30, threads = 1, parallel_reads = 0;
    std::uint16_t port = 16379;
};

struct row {
    std::string tier;
    std::size_t value_bytes = 0;
    double put_gbps = 0, get_gbps = 0, baseline_gbps = 0, ttft_restart_ms = 0, ttft_cold_ms = 0, pause_ms = 0,
           pause_in_step_ms = 0, read_ms = 0, pass_ms = 0, both_ms = 0;
};

void require(bool holds, const char* what) {
    if (!holds)
        throw std::runtime_error(what);
}

double median(std::vector<double> of) {
    std::ranges::sort(of);
    return of[of.size() / 2];
}

void print(const row& r) {
    if (r.both_ms > 0.0)
        std::printf("%-6s %8zu B  read %7.1f ms, last tokens %7.1f ms, of strangers at once %7.1f ms: %5.2fx at most\n",
                    r.tier.c_str(), r.value_bytes, r.read_ms, r.pass_ms, r.both_ms,
                    (r.read_ms + r.pass_ms) / r.both_ms);
    else if (r.pause_ms > 0.0)
        std::printf("%-6s %8zu B  longest pause of an answer %9.1f ms, if the tier is read in a step %9.1f ms\n",
                    r.tier.c_str(), r.value_bytes, r.pause_ms, r.pause_in_step_ms);
    else if (r.ttft_cold_ms > 0.0)
        std::printf("%-6s %8zu B  first token after a restart %9.1f ms, %7.1f of them reading; cold %9.1f ms: %6.1fx\n",
                    r.tier.c_str(), r.value_bytes, r.ttft_restart_ms, r.read_ms, r.ttft_cold_ms,
                    r.ttft_cold_ms / r.ttft_restart_ms);
    else
        std::printf("%-6s %8zu B  put %6.2f GB/s  get %6.2f GB/s  baseline %6.2f GB/s  ratio %.2f\n", r.tier.c_str(),
                    r.value_bytes, r.put_gbps, r.get_gbps, r.baseline_gbps, r.get_gbps / r.baseline_gbps);
    std::fflush(stdout);
}

// Values of one size, with their names and contents.
struct values {
    values(std::size_t size, std::size_t total) {
        for (std::uint64_t n = 0; n < std::max<std::size_t>(total / size, 4); ++n) {
            names.push_back(kv::sha256_builder().number(n).number(size).finish());
            bytes& one = content.emplace_back(size);
            for (std::size_t i = 0; i + 8 <= size; i += 8) {
                const std::uint64_t word = (n + 1) * 0x9e3779b97f4a7c15u + i;
                std::memcpy(&one[i], &word, 8);
            }
        }
    }
    explicit values(const std::vector<bytes>& records) : content(records) {
        for (std::uint64_t n = 0; n < records.size(); ++n)
            names.push_back(kv::sha256_builder().number(n).finish());
    }
    [[nodiscard]] double gigabytes() const {
        return 1e-9 * static_cast<double>(content.size()) * static_cast<double>(content[0].size());
    }

    std::vector<kv::sha256_digest> names;
    std::vector<bytes> content;
};

template <class State>
double put(State& tier, const values& all) {
    const bench::stopwatch watch;
    for (std::size_t i = 0; i < all.names.size(); ++i) {
        const std::span<const std::byte> pieces[] = {all.content[i]};
        require(tier.put({.name = all.names[i]}, pieces).has_value(), "a put fails");
    }
    require(tier.flush().has_value(), "a flush fails");
    return all.gigabytes() / watch.seconds();
}

// Reads each value into its own buffer, as pages are read. Returns GB/s.
template <class State>
double get(State& tier, const values& all, std::vector<bytes>& to) {
    const bench::stopwatch watch;
    const auto given =
        kv::tier::read_run(tier, std::span(all.names), [&](std::size_t i, std::span<const std::byte> from) {
            std::memcpy(to[i].data(), from.data(), from.size());
            return true;
        });
    const double took = watch.seconds();
    require(given && *given == all.names.size(), "a get fails");
    return all.gigabytes() / took;
}

double read_files(const std::filesystem::path& directory, const values& all, std::vector<bytes>& to) {
    const bench::stopwatch watch;
    for (std::size_t i = 0; i < all.names.size(); ++i) {
        const int file = ::open((directory / std::to_string(i)).c_str(), O_RDONLY);
        std::size_t had = 0;
        while (file >= 0 && had < to[i].size()) {
            const auto came = ::read(file, to[i].data() + had, to[i].size() - had);
            if (came <= 0)
                break;
            had += static_cast<std::size_t>(came);
        }
        require(had == to[i].size(), "a file cannot be read");
        ::close(file);
    }
    return all.gigabytes() / watch.seconds();
}

// Measures a tier interleaved with its baseline, since the machine is noisy. The row has medians.
template <class Policy, class Baseline>
row rates(const char* name, const Policy& policy, const values& all, std::size_t rounds, Baseline baseline) {
    row made{.tier = name, .value_bytes = all.content[0].size()};
    auto tier = policy.open();
    require(tier.status().has_value(), "a tier does not open");
    std::vector<bytes> to(all.names.size(), bytes(all.content[0].size()));
    made.put_gbps = put(tier, all);
    std::vector<double> got, beside;
    for (std::size_t i = 0; i < rounds; ++i) {
        got.push_back(get(tier, all, to));
        require(to == all.content, "what was got is not what was put");
        beside.push_back(baseline(to));
    }
    made.get_gbps = median(got);
    made.baseline_gbps = median(beside);
    return made;
}

// Measures how long the records of a text take to come from a tier, plain and compressed alternately. The rates are of
// plain bytes.
template <class Policy, class Fresh>
void compare(const char* name, const std::string& codec, Fresh fresh, const values& all, std::size_t rounds) {
    const auto one = fresh("plain");
    const kv::tier::compressed<Policy> two{.inner = fresh("compressed")};
    auto plain = one.open();
    auto small = two.open();
    require(plain.status() && small.status(), "a tier does not open");
    std::vector<bytes> to(all.names.size(), bytes(all.content[0].size()));
    const double put_plain = put(plain, all), put_small = put(small, all);
    std::vector<double> plain_rates, small_rates;
    for (std::size_t i = 0; i < rounds; ++i) {
        plain_rates.push_back(get(plain, all, to));
        require(to == all.content, "what was got is not what was put");
        small_rates.push_back(get(small, all, to));
        require(to == all.content, "what was got is not what was put");
    }
    std::printf("| %s | `%s` | %zu | %zu | %.2f | %.2f | %.2f | %.2f |\n", name, codec.c_str(), plain.counts().bytes,
                small.counts().bytes, put_plain, put_small, median(plain_rates), median(small_rates));
    std::fflush(stdout);
}

kv::model_config shape(std::size_t layers) { // SmolLM2-135M
    return {.hidden_size = 576,
            .intermediate_size = 1536,
            .layers = static_cast<std::uint32_t>(layers),
            .heads = 9,
            .kv_heads = 3,
            .head_dim = 64,
            .vocabulary = 49152,
            .max_positions = 8192,
            .rope = {.theta = 100000.0},
            .tied_head = true,
            .bos = {},
            .eos = {}};
}

struct told {
    double milliseconds = 0.0;
    double reading_ms = 0.0; // of `milliseconds`
    kv::matrix logits;
    std::size_t loaded = 0;
};

// Simulates a process start: a new cache, and the tier opened anew.
template <class Policy>
told start(const Policy& policy, const kv::transformer& model, kv::thread_pool& pool,
           std::span<const kv::token_id> prompt) {
    const auto page = model.shape(64);
    const bench::stopwatch watch;
    auto cache =
        kv::make_cache({.shape = page,
                        .limit = {.bytes = (prompt.size() / 64 + 8) * kv::codec::f32{}.open(page).page_bytes()},
                        .id = model.id({1, 2})},
                       policy);
    kv::pipeline pipeline(cache, model, pool, 256);
    const double opened = watch.seconds();
    static_cast<void>(cache.prefetch(prompt));
    const double read = watch.seconds();
    auto filled = pipeline.prefill(prompt);
    require(filled.has_value(), "a prompt fails");
    told made{1e3 * watch.seconds(), 1e3 * (read - opened), std::move(filled->logits),
              kv::tier_stats_of(cache).loaded_tokens};
    require(cache.tier().flush().has_value(), "a flush fails");
    return made;
}

template <class Policy>
row restart(const char* name, const Policy& policy, const kv::transformer& model, const flags& f) {
    kv::thread_pool pool(f.threads);
    std::vector<kv::token_id> prompt;
    for (std::uint64_t i = 0; i < f.prompt; ++i)
        prompt.push_back(kv::token_id{static_cast<std::int32_t>(kv::mix64(i) % 49152)});
    const told cold = start(policy, model, pool, prompt);
    require(cold.loaded == 0, "the tier was not empty");
    std::vector<double> times, reading;
    for (std::size_t i = 0; i < f.rounds; ++i) {
        const told warm = start(policy, model, pool, prompt);
        require(warm.loaded == (prompt.size() - 1) / 64 * 64 || warm.loaded == prompt.size() / 64 * 64,
                "the tier had not all");
        require(warm.logits == cold.logits, "the bits differ");
        times.push_back(warm.milliseconds);
        reading.push_back(warm.reading_ms);
    }
    return {.tier = name,
            .value_bytes = kv::codec::f32{}.open(model.shape(64)).page_bytes(),
            .ttft_restart_ms = median(times),
            .ttft_cold_ms = cold.milliseconds,
            .read_ms = median(reading)};
}

// Measures the pauses of a generation while a prompt that the tier holds is read.
template <class Policy>
row pause(const char* name, const Policy& policy, const kv::transformer& model, const flags& f) {
    kv::thread_pool pool(f.threads);
    std::vector<kv::token_id> prompt;
    for (std::uint64_t i = 0; i < f.prompt; ++i)
        prompt.push_back(kv::token_id{static_cast<std::int32_t>(kv::mix64(i) % 49152)});
    static_cast<void>(start(policy, model, pool, prompt));
    std::vector<double> ahead, in_step;
    for (std::size_t i = 0; i < f.rounds; ++i) {
        const auto a = bench::pauses_of(policy, kv::locking::mutex{}, model, pool, prompt);
        const auto b = bench::pauses_of(policy, kv::locking::none{}, model, pool, prompt);
        require(a.loaded == b.loaded && a.loaded >= (prompt.size() - 1) / 64 * 64, "the tier had not all");
        ahead.push_back(a.longest_ms);
        in_step.push_back(b.longest_ms);
    }
    return {.tier = name,
            .value_bytes = kv::codec::f32{}.open(model.shape(64)).page_bytes(),
            .pause_ms = median(ahead),
            .pause_in_step_ms = median(in_step)};
}

// Measures the most that reading layer by layer during the pass over the last tokens could save: the read and the pass
// are independent, so that neither waits for the other. `other` opens the same store a second time, or a copy.
template <class Policy, class Copy>
row overlap(const char* name, const Policy& policy, Copy other, const kv::transformer& model, const flags& f) {
    kv::thread_pool pool(f.threads);
    std::vector<kv::token_id> prompt;
    for (std::uint64_t i = 0; i < f.prompt; ++i)
        prompt.push_back(kv::token_id{static_cast<std::int32_t>(kv::mix64(i) % 49152)});
    static_cast<void>(start(policy, model, pool, prompt));
    const Policy second = other();
    const auto page = model.shape(64);
    const kv::cache_limits room{.bytes = (f.prompt / 64 + 8) * kv::codec::f32{}.open(page).page_bytes()};
    auto here = kv::make_cache({.shape = page, .limit = room, .id = model.id({1, 2})}, policy);
    kv::pipeline pipeline(here, model, pool, 256);
    const std::size_t whole = (prompt.size() - 1) / 64 * 64;
    const auto known = here.core().find(0, std::span(prompt).first(whole), false);
    require(known.found.loaded_tokens == whole, "the tier had not all");
    std::vector<double> reads, passes, both;
    const auto pass = [&] {
        const bench::stopwatch watch;
        auto behind = known.sequence.fork(whole);
        require(pipeline.extend(behind, std::span(prompt).subspan(whole)).has_value(), "a pass fails");
        return 1e3 * watch.seconds();
    };
    for (std::size_t i = 0; i < f.rounds; ++i) {
        passes.push_back(pass());
        for (const bool beside : {false, true}) {
            auto there = kv::make_cache({.shape = page, .limit = room, .id = model.id({1, 2})}, second);
            const bench::stopwatch watch;
            {
                const std::jthread reader([&] { static_cast<void>(there.prefetch(prompt)); });
                if (beside)
                    static_cast<void>(pass());
            }
            (beside ? both : reads).push_back(1e3 * watch.seconds());
            require(kv::tier_stats_of(there).loaded_tokens >= whole, "the tier had not all");
        }
    }
    return {.tier = name,
            .value_bytes = kv::codec::f32{}.open(page).page_bytes(),
            .read_ms = median(reads),
            .pass_ms = median(passes),
            .both_ms = median(both)};
}

int run(const flags& f) {
    std::filesystem::remove_all(f.directory);
    const std::filesystem::path files = f.directory + "/files";
    std::filesystem::create_directories(files);
    std::vector<row> rows;
    std::vector<bench::code_cost> codes;
    const auto add = [&](row made) {
        print(made);
        rows.push_back(std::move(made));
    };
    const bench::redis_process server(f.port);
    const auto wanted = [&](const char* part) { return std::ranges::find(f.parts, part) != f.parts.end(); };
    for (const std::size_t size : wanted("rates") ? f.sizes : std::vector<std::size_t>()) {
        const values all(size, f.mib << 20);
        for (std::size_t i = 0; i < all.content.size(); ++i)
            std::ofstream(files / std::to_string(i), std::ios::binary)
                .write(reinterpret_cast<const char*>(all.content[i].data()), static_cast<std::streamsize>(size));
        const kv::tier::lmdb<> disk{.directory = f.directory + "/lmdb" + std::to_string(size),
                                    .bytes = 2 * (f.mib << 20),
                                    .queue_bytes = 2 * (f.mib << 20)};
        add(rates("lmdb", disk, all, f.rounds, [&](std::vector<bytes>& to) { return read_files(files, all, to); }));
        std::filesystem::remove_all(disk.directory);
        const kv::tier::redis remote{.port = f.port,
                                     .ttl = std::chrono::minutes(1),
                                     .timeout = std::chrono::seconds(5),
                                     .queue_bytes = 2 * (f.mib << 20)};
        add(rates("redis", remote, all, f.rounds, [&](std::vector<bytes>&) {
            return 1e-9 * server.benchmark(size, std::max<std::size_t>(all.names.size(), 64));
        }));
    }
    if (wanted("restart") || wanted("pauses") || wanted("overlap")) {
        const kv::transformer model = kv::make_random_model(shape(f.layers), 7);
        kv::tier::lmdb<> disk{.directory = f.directory + "/restart"};
        const kv::tier::redis remote{.port = f.port, .timeout = std::chrono::seconds(5)};
        if (f.parallel_reads > 0)
            disk.parallel_reads = f.parallel_reads;
        if (wanted("restart")) {
            add(restart("lmdb", disk, model, f));
            add(restart("redis", remote, model, f));
        }
        if (wanted("pauses")) {
            add(pause("lmdb", disk, model, f));
            add(pause("redis", remote, model, f));
        }
        if (wanted("overlap")) {
            const auto copied = [&] { // a process can open a directory only once
                const std::string to = f.directory + "/copied";
                std::filesystem::copy(disk.directory, to);
                return kv::tier::lmdb<>{.directory = to, .parallel_reads = disk.parallel_reads};
            };
            add(overlap("lmdb", disk, copied, model, f));
            add(overlap(
                "redis", remote, [&] { return remote; }, model, f));
        }
    }
    if (wanted("codes") || wanted("compressed")) {
        const auto from = bench::load_model_and_text(f.model, f.text, f.prompt);
        if (wanted("codes"))
            codes = bench::code_costs(from, f.rounds);
        if (wanted("compressed"))
            bench::for_records(from, [&](const std::string& codec, const std::vector<bytes>& records) {
                const values all(records);
                const std::size_t room = 2 * records.size() * records[0].size();
                const auto on_disk = [&](const char* which) {
                    const std::string directory = f.directory + "/" + codec + which;
                    return kv::tier::lmdb<>{.directory = directory, .bytes = room + (1 << 20), .queue_bytes = room};
                };
                const auto on_server = [&](const char* which) {
                    return kv::tier::redis{.port = f.port,
                                           .prefix = codec + which,
                                           .ttl = std::chrono::minutes(1),
                                           .timeout = std::chrono::seconds(5),
                                           .queue_bytes = room};
                };
                compare<kv::tier::lmdb<>>("lmdb", codec, on_disk, all, f.rounds);
                compare<kv::tier::redis>("redis", codec, on_server, all, f.rounds);
            });
    }
    std::filesystem::remove_all(f.directory);
    if (f.json.empty())
        return 0;
    auto list = nlohmann::json::array();
    for (const row& r : rows)
        list.push_back({{"tier", r.tier},
                        {"value_bytes", r.value_bytes},
                        {"put_gbps", r.put_gbps},
                        {"get_gbps", r.get_gbps},
                        {"baseline_gbps", r.baseline_gbps},
                        {"ratio", r.baseline_gbps > 0.0 ? r.get_gbps / r.baseline_gbps : 0.0},
                        {"ttft_restart_ms", r.ttft_restart_ms},
                        {"ttft_cold_ms", r.ttft_cold_ms},
                        {"pause_ms", r.pause_ms},
                        {"pause_in_step_ms", r.pause_in_step_ms},
                        {"read_ms", r.read_ms},
                        {"pass_ms", r.pass_ms},
                        {"both_ms", r.both_ms}});
    for (const bench::code_cost& c : codes)
        list.push_back({{"codec", c.codec},
                        {"code", c.code},
                        {"value_bytes", c.record_bytes},
                        {"times_smaller", c.times_smaller},
                        {"encode_gbps", c.encode_gbps},
                        {"decode_gbps", c.decode_gbps},
                        {"pays_below_gbps", c.pays_below()}});
    std::ofstream out(f.json);
    out << list.dump(1) << '\n';
    out.close();
    return out.fail() ? (std::fprintf(stderr, "tiers: %s cannot be written\n", f.json.c_str()), 1) : 0;
}

int program(int count, char** words) {
    flags f;
    CLI::App app("What tiers carry, and what they save after a restart");
    app.add_option("--part", f.parts)
        ->delimiter(',')
        ->check(CLI::IsMember({"rates", "restart", "pauses", "overlap", "codes", "compressed"}))
        ->capture_default_str();
    app.add_option("--model", f.model, "Model directory or GGUF file, for the parts codes and compressed");
    app.add_option("--text", f.text, "Text whose first tokens, as many as --prompt says, are its prompt");
    app.add_option("--sizes", f.sizes, "Bytes of a value")
        ->delimiter(',')
        ->check(CLI::Range(64, 1 << 26))
        ->capture_default_str();
    app.add_option("--mib", f.mib, "Of all values of a size")->check(CLI::Range(1, 4096))->capture_default_str();
    app.add_option("--rounds", f.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    app.add_option("--prompt", f.prompt, "Tokens")->check(CLI::Range(65, 8000))->capture_default_str();
    app.add_option("--layers", f.layers, "Of the model, as wide as SmolLM2-135M")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--threads", f.threads)->check(CLI::Range(1, 1024))->capture_default_str();
    app.add_option("--readers", f.parallel_reads,
                   "Threads that read a prompt from the disk; 0: as many as the tier has by itself")
        ->check(CLI::Range(0, 64))
        ->capture_default_str();
    app.add_option("--directory", f.directory, "Made and removed")->capture_default_str();
    app.add_option("--port", f.port, "Where the Redis server of this run listens at loopback")
        ->check(CLI::Range(1024, 65535))
        ->capture_default_str();
    app.add_option("--json", f.json, "Writes the rows here");
    CLI11_PARSE(app, count, words);
    return run(f);
}

} // namespace

int main(int count, char** words) {
    return support::guarded("tiers", [&] { return program(count, words); });
}
