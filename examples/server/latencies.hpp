// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>

namespace server {

/// A histogram of durations in Prometheus' format.
class histogram {
public:
    void add(double seconds) {
        for (std::size_t i = 0; i < bounds.size(); ++i)
            counts_[i] += seconds <= bounds[i];
        ++count_;
        sum_ += seconds;
    }

    void write(std::ostream& to, std::string_view name, std::string_view help, const std::string& label) const {
        to << "# HELP " << name << ' ' << help << "\n# TYPE " << name << " histogram\n";
        for (std::size_t i = 0; i < bounds.size(); ++i)
            to << name << "_bucket{" << label << ",le=\"" << bounds[i] << "\"} " << counts_[i] << '\n';
        to << name << "_bucket{" << label << ",le=\"+Inf\"} " << count_ << '\n';
        to << name << "_sum{" << label << "} " << sum_ << '\n' << name << "_count{" << label << "} " << count_ << '\n';
    }

private:
    static constexpr std::array<double, 16> bounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                                      0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0, 120.0};
    std::array<std::uint64_t, bounds.size()> counts_ = {};
    std::uint64_t count_ = 0;
    double sum_ = 0.0;
};

/// The latencies of requests, for any thread.
class latencies {
public:
    struct request {
        double first_token = 0.0; ///< Seconds from the request; 0 without a token.
        double whole = 0.0;
        std::size_t prompt = 0;
        std::size_t reused = 0;
        std::size_t approximate = 0;
        std::size_t recomputed = 0;
        std::size_t prefilled = 0;
        std::size_t generated = 0;
        bool succeeded = false;
        bool cancelled = false;
    };

    void add(const request& one) {
        const std::lock_guard guard(lock_);
        succeeded_ += one.succeeded;
        failed_ += !one.succeeded;
        prompt_ += one.prompt;
        reused_ += one.reused;
        approximate_ += one.approximate;
        recomputed_ += one.recomputed;
        approximate_answers_ += one.approximate > 0;
        generated_ += one.generated;
        if (one.cancelled) {
            ++cancelled_;
            cancelled_prefilled_ += one.prefilled;
            cancelled_generated_ += one.generated;
        }
        if (!one.succeeded)
            return;
        whole_.add(one.whole);
        if (one.generated > 0)
            first_.add(one.first_token);
        if (one.generated > 1)
            each_.add((one.whole - one.first_token) / static_cast<double>(one.generated - 1));
    }

    /// Uses vLLM's metric names where the meaning is equal.
    [[nodiscard]] std::string text(const std::string& label) const {
        const std::lock_guard guard(lock_);
        std::ostringstream to;
        const auto counter = [&](std::string_view name, std::string_view help, std::uint64_t value) {
            to << "# HELP " << name << ' ' << help << "\n# TYPE " << name << " counter\n"
               << name << '{' << label << "} " << value << '\n';
        };
        counter("vllm:request_success_total", "Requests that were answered.", succeeded_);
        counter("kvcache:request_failure_total", "Requests that were not.", failed_);
        counter("kvcache:request_cancelled_total", "Of them, those that were cancelled.", cancelled_);
        counter("kvcache:cancelled_prompt_tokens_total", "Tokens of prompts that were computed for those.",
                cancelled_prefilled_);
        counter("kvcache:cancelled_generation_tokens_total", "Tokens of answers that were computed for those.",
                cancelled_generated_);
        counter("vllm:prompt_tokens_total", "Tokens of prompts.", prompt_);
        counter("vllm:generation_tokens_total", "Tokens of answers.", generated_);
        counter("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked up.", prompt_);
        counter("vllm:prefix_cache_hits_total", "Of them, those that were known.", reused_);
        counter("kvcache:approximate_requests_total", "Requests whose answer is approximate.", approximate_answers_);
        counter("kvcache:approximate_tokens_total", "Tokens kept as they were computed elsewhere.", approximate_);
        counter("kvcache:recomputed_tokens_total", "Tokens of chunks that were computed again.", recomputed_);
        first_.write(to, "vllm:time_to_first_token_seconds", "From the request to its first token.", label);
        each_.write(to, "vllm:request_time_per_output_token_seconds", "Between two tokens, by request.", label);
        whole_.write(to, "vllm:e2e_request_latency_seconds", "From the request to its end.", label);
        return to.str();
    }

private:
    mutable std::mutex lock_;
    std::uint64_t succeeded_ = 0, failed_ = 0, prompt_ = 0, reused_ = 0, generated_ = 0;
    std::uint64_t cancelled_ = 0, cancelled_prefilled_ = 0, cancelled_generated_ = 0;
    std::uint64_t approximate_ = 0, recomputed_ = 0, approximate_answers_ = 0;
    histogram first_, each_, whole_;
};

} // namespace server
