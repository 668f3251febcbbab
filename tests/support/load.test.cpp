// SPDX-License-Identifier: MIT
// The parts of examples/load that need no server.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../examples/load/conversations.hpp"
#include "../../examples/load/goodput.hpp"
#include "../../examples/load/processes.hpp"
#include "../../examples/load/report.hpp"
#include <catch2/catch.hpp>

namespace {

load::plan growing(std::size_t context) {
    return {.groups = 2,
            .users = 2,
            .system = {.mean = 30},
            .question = {.mean = 10},
            .output = {.mean = 20},
            .multi_turn = true,
            .context = context,
            .seed = 4};
}

std::string prompt_of(load::conversations& users, std::size_t i) {
    std::size_t turn = 0;
    return users.ask(i, turn)["prompt"].get<std::string>();
}

// Three tokens a word.
std::size_t tokens_of(const std::string& text) {
    return 3 * (1 + static_cast<std::size_t>(std::count(text.begin(), text.end(), ' ')));
}

load::measured some(std::mt19937& dice) {
    const auto time = [&] { return static_cast<double>(dice() % 1000) / 1000.0; };
    load::measured made{.sent = time(), .prompt_tokens = dice() % 50, .session = dice() % 5, .turn = dice() % 9};
    made.ended = made.sent;
    made.output_tokens = dice() % 5;
    for (std::size_t i = 0; i < made.output_tokens; ++i)
        made.tokens.push_back(made.ended += time());
    made.text = std::string(dice() % 3, 'x') + "\n\"";
    made.failure = dice() % 4 == 0 ? "HTTP 503" : "";
    return made;
}

} // namespace

TEST_CASE("a failed turn is skipped, and the next one continues the last good context") {
    const load::plan plan = growing(0);
    load::conversations users(plan, false, false, std::nullopt);
    const std::string first = prompt_of(users, 0);
    users.add_answer(0, "one", 0);
    const std::string failed = prompt_of(users, 4);
    CHECK(failed == first + " one " + plan.question_of(4));
    CHECK(prompt_of(users, 8) == first + " one " + plan.question_of(8)); // nothing of request 4
    users.add_answer(8, "two", 0);
    CHECK(prompt_of(users, 12) == first + " one " + plan.question_of(8) + " two " + plan.question_of(12));
    CHECK(prompt_of(users, 1) == plan.system_of(1) + " " + plan.question_of(1)); // nor of another user
}

TEST_CASE("a growing context loses its oldest turns so that prompt and answer fit, and keeps its system prompt") {
    for (const std::size_t context : {std::size_t{260}, std::size_t{1000}, std::size_t{5000}}) {
        const load::plan plan = growing(context);
        load::conversations users(plan, false, false, std::nullopt);
        std::size_t refused = 0, longest = 0;
        for (std::size_t i = 0; i < 400; ++i) {
            const std::string prompt = prompt_of(users, i);
            REQUIRE(prompt.starts_with(plan.system_of(plan.session_of(i)) + " "));
            REQUIRE(prompt.ends_with(" " + plan.question_of(i)));
            if (tokens_of(prompt) + plan.output_of(i) > context) {
                ++refused;
                users.add_overflow(i);
                continue;
            }
            longest = std::max(longest, tokens_of(prompt) + plan.output_of(i));
            users.add_answer(i, "answer number " + std::to_string(i) + ".", tokens_of(prompt));
        }
        CAPTURE(context);
        CHECK(refused == 0);
        CHECK(longest > context / 2); // it is not dropped too early
    }
    // Without a limit nothing is dropped.
    const load::plan unlimited = growing(0);
    load::conversations users(unlimited, false, false, std::nullopt);
    std::size_t before = 0;
    for (std::size_t i = 0; i < 400; i += 4) {
        const std::size_t now = prompt_of(users, i).size();
        CHECK(now > before);
        before = now;
        users.add_answer(i, "answer", 1000);
    }
}

TEST_CASE("goodput counts the successful requests that meet every constraint") {
    CHECK_FALSE([] {
        load::goodput_constraints none;
        return load::read_constraint("ttft", none) || load::read_constraint("ttft:", none) ||
               load::read_constraint("ttft:0", none) || load::read_constraint("ttft:1s", none) ||
               load::read_constraint("itl:1", none) || load::read_constraint(":1", none);
    }());
    load::goodput_constraints most;
    REQUIRE(load::read_constraint("ttft:0.5", most));
    REQUIRE(load::read_constraint("tpot:0.4", most));
    REQUIRE(load::read_constraint("request_latency:1.5", most));
    const unsigned seed = 11;
    CAPTURE(seed);
    std::mt19937 dice(seed);
    std::vector<load::measured> all;
    for (int i = 0; i < 500; ++i)
        all.push_back(some(dice));
    std::size_t good = 0, total = 0, first = 0, tokens = 0;
    for (const load::measured& one : all) {
        if (!one.failure.empty())
            continue;
        ++total;
        const bool soon = one.tokens.empty() || one.tokens.front() - one.sent <= 0.5;
        const bool fast =
            one.output_tokens < 2 ||
            (one.tokens.back() - one.tokens.front()) / (static_cast<double>(one.output_tokens) - 1.0) <= 0.4;
        first += soon;
        if (soon && fast && one.ended - one.sent <= 1.5) {
            ++good;
            tokens += one.prompt_tokens + one.output_tokens;
        }
    }
    const load::json made = load::goodput(all, most, 2.0);
    REQUIRE(good > 0);
    REQUIRE(good < total);
    CHECK(made["good_requests"] == good);
    CHECK(made["total_requests"] == total);
    CHECK(made["goodput_percentage"].get<double>() ==
          Approx(100.0 * static_cast<double>(good) / static_cast<double>(total)));
    CHECK(made["request_goodput"].get<double>() == Approx(static_cast<double>(good) / 2.0));
    CHECK(made["token_goodput"].get<double>() == Approx(static_cast<double>(tokens) / 2.0));
    CHECK(made["ttft_attainment_percentage"].get<double>() ==
          Approx(100.0 * static_cast<double>(first) / static_cast<double>(total)));
    CHECK(load::report(all, most)["successes"]["goodput_metrics"]["good_requests"] == good);
    CHECK_FALSE(load::report(all, {})["successes"].contains("goodput_metrics"));
    CHECK(load::goodput({}, most, 1.0)["goodput_percentage"].is_null());
}

TEST_CASE("processes report what their threads measured, and one that ends early loses only its own") {
    std::vector<load::measured> all(200);
    {
        std::mt19937 dice(3);
        for (auto& each : all)
            each = some(dice);
    }
    std::vector<std::size_t> heard(all.size(), 0);
    load::run_processes(
        4,
        [&](std::size_t process, const auto& report) {
            std::vector<std::jthread> threads;
            for (std::size_t thread = 0; thread < 3; ++thread)
                threads.emplace_back([&, thread] {
                    for (std::size_t i = process; i < all.size(); i += 4)
                        if (i / 4 % 3 == thread)
                            report(i, all[i]);
                });
            threads.clear();
            if (process == 1)
                ::_exit(9);
        },
        [&](std::size_t i, const load::measured& one) {
            ++heard[i];
            CHECK(load::line_of(i, one) == load::line_of(i, all[i]));
        });
    CHECK(heard == std::vector<std::size_t>(all.size(), 1));
}
