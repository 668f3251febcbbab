// SPDX-License-Identifier: MIT
// Generates load for any server with OpenAI's API, and reports the times that its clients measure.
// test: --help
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "load/client.hpp"
#include "load/conversations.hpp"
#include "load/plan.hpp"
#include "load/processes.hpp"
#include "load/report.hpp"
#include "support/bars.hpp"
#include "support/flags.hpp"
#include "support/model_directory.hpp"
#include "support/script.hpp"
#include <CLI/CLI.hpp>

namespace {

struct flags {
    load::plan plan;
    load::stage only;                // used if no stages are given
    std::vector<std::string> stages; // see load::stage_of
    std::string url = "http://127.0.0.1:8080", key, model, out, svg, replay;
    bool chat = false, cold = false;
    std::size_t processes = 1;
    std::vector<std::string> constraints; // see load::read_constraint
    load::goodput_constraints most;
};

struct under_way {
    support::progress_bar bar{"requests"};
    std::mutex lock;
    std::vector<load::measured> all;
    std::size_t done = 0;
};

// A worker of all: sessions are spread over processes, and those of a process over its workers.
struct share {
    std::size_t process = 0, processes = 1, worker = 0, workers = 1;
    [[nodiscard]] bool has(std::size_t session) const {
        return session % processes == process && session / processes % workers == worker;
    }
};

// Sends the requests of a worker's users in order, none before it is due, and passes each to `report(i, measured)`.
template <class Report>
void work(const flags& f, const load::stage& at, const share& own, load::steady::time_point zero,
          load::conversations& users, const Report& report) {
    const auto due = f.plan.schedule(at);
    load::client link(f.url, f.key);
    const double began = std::chrono::duration<double>(load::steady::now() - zero).count();
    for (std::size_t i = at.first; i < at.first + at.requests; ++i) {
        const std::size_t session = f.plan.session_of(i);
        if (!own.has(session))
            continue;
        const double when = began + due[i - at.first];
        std::this_thread::sleep_until(
            zero + std::chrono::duration_cast<load::steady::duration>(std::chrono::duration<double>(when)));
        std::size_t turn = 0;
        load::json body = users.ask(i, turn);
        if (!f.model.empty())
            body["model"] = f.model;
        const char* path = f.chat ? "/v1/chat/completions" : "/v1/completions";
        auto one = link.ask(path, body, "load-" + std::to_string(session), zero);
        one.due = at.rate > 0.0 ? when : one.sent;
        one.session = session;
        one.turn = turn;
        if (one.failure.empty())
            users.add_answer(i, one.text, one.prompt_tokens);
        else if (one.failure == "Context Window")
            users.add_overflow(i);
        report(i, std::move(one));
    }
}

// Sends the requests of a stage from threads of this process.
template <class Report>
void run_workers(const flags& f, const load::stage& at, share own, load::steady::time_point zero,
                 load::conversations& users, const Report& report) {
    own.workers = (at.workers + own.processes - 1) / own.processes;
    std::vector<std::jthread> workers;
    for (own.worker = 0; own.worker < own.workers; ++own.worker)
        workers.emplace_back([&, own] {
            (void)support::guarded("load", [&] {
                work(f, at, own, zero, users, report);
                return 0;
            });
        });
}

// Sends the requests of a stage.
void run_stage(const flags& f, const load::stage& at, load::steady::time_point zero, load::conversations& users,
               under_way& run) {
    const auto keep = [&](std::size_t i, load::measured one) {
        const std::lock_guard guard(run.lock);
        run.all[i] = std::move(one);
        run.bar(++run.done, run.all.size());
    };
    if (f.processes == 1)
        return run_workers(f, at, {}, zero, users, keep);
    for (std::size_t i = at.first; i < at.first + at.requests; ++i)
        run.all[i].failure = "process ended early"; // until it reports
    const auto send = [&](std::size_t process, const auto& report) {
        run_workers(f, at, {.process = process, .processes = f.processes}, zero, users, report);
    };
    load::run_processes(f.processes, send, [&](std::size_t i, load::measured one) {
        std::size_t turn = 0; // the next stage begins with these contexts
        (void)users.ask(i, turn);
        if (one.failure.empty())
            users.add_answer(i, one.text, one.prompt_tokens);
        keep(i, std::move(one));
    });
}

// Returns the stages, which run one after another.
std::optional<std::vector<load::stage>> stages_of(const flags& f) {
    std::vector<load::stage> made;
    for (const std::string& text : f.stages) {
        const auto one = load::stage_of(text, f.only.workers);
        if (!one)
            return std::nullopt;
        made.push_back(*one);
    }
    if (made.empty())
        made.push_back(f.only);
    for (std::size_t i = 1; i < made.size(); ++i)
        made[i].first = made[i - 1].first + made[i - 1].requests;
    return made;
}

bool draw(const std::string& file, const load::json& turns) {
    support::bar_pairs bars{.title = "Time to the first token by turn (ms)",
                            .command = "load --svg",
                            .first = "99th percentile",
                            .second = "median"};
    for (const auto& turn : turns) {
        bars.firsts.push_back(turn["time_to_first_token"]["p99"].get<double>() * 1000.0);
        bars.seconds.push_back(turn["time_to_first_token"]["median"].get<double>() * 1000.0);
    }
    return support::write_svg(file, bars);
}

int run(flags& f) {
    using kvcache::error_code;
    const auto refuse = [](const char* flag, const std::string& words) {
        return support::report("load", {error_code::io, flag, std::string(flag) + ": " + words});
    };
    std::ofstream file;
    if (!f.out.empty()) {
        file.open(f.out);
        if (!file)
            return refuse("--out", f.out + " cannot be written");
    }
    const auto stages = stages_of(f);
    if (!stages)
        return refuse("--stage", "a stage is RATE:SECONDS or xWORKERS:REQUESTS");
    for (const std::string& each : f.constraints)
        if (!load::read_constraint(each, f.most))
            return refuse("--goodput", "a constraint is NAME:SECONDS with ttft, tpot, ntpot or request_latency");
    std::optional<support::script> recorded;
    if (!f.replay.empty()) {
        auto read = support::read_script(f.replay);
        if (!read)
            return support::report("load", read.error());
        recorded = std::move(*read);
    }
    load::conversations users(f.plan, f.chat, f.cold, std::move(recorded));
    const auto zero = load::steady::now();
    under_way now;
    now.all.resize(stages->back().first + stages->back().requests);
    load::json parts = load::json::array();
    for (const load::stage& at : *stages) {
        run_stage(f, at, zero, users, now);
        const auto begin = now.all.begin() + static_cast<std::ptrdiff_t>(at.first);
        load::json part = load::report({begin, begin + static_cast<std::ptrdiff_t>(at.requests)}, f.most);
        part["load_summary"]["requested_rate"] = at.rate > 0.0 ? load::json(at.rate) : load::json();
        part["load_summary"]["workers"] = at.workers;
        parts.push_back(std::move(part));
    }
    load::json made = load::report(now.all, f.most);
    made["stages"] = std::move(parts);
    made["turns"] = load::by_turn(now.all);
    (f.out.empty() ? std::cout : file) << made.dump(2) << '\n';
    if (!f.svg.empty() && !draw(f.svg, made["turns"]))
        return refuse("--svg", f.svg + " cannot be written");
    return made["failures"]["count"].get<std::size_t>() == 0 ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
    flags f;
    CLI::App app{"Puts load on a server that speaks OpenAI's API; the report has inference-perf's names."};
    using support::whole;
    const auto some = whole(1, 1u << 20);
    const auto spread = CLI::Range(0.0, 1e6);
    app.add_option("--url", f.url)
        ->check(
            [](const std::string& url) { return url.starts_with("https:") ? "https is not supported" : std::string(); })
        ->capture_default_str();
    app.add_option("--api-key", f.key);
    app.add_option("--model", f.model, "As the server calls it");
    app.add_flag("--chat", f.chat, "Ask for chats, not for completions");
    app.add_option("--num-groups", f.plan.groups)->check(some)->capture_default_str();
    app.add_option("--num-prompts-per-group", f.plan.users, "Users")->check(some)->capture_default_str();
    app.add_option("--system-prompt-len", f.plan.system.mean, "Words")->check(some)->capture_default_str();
    app.add_option("--question-len", f.plan.question.mean, "Words")->check(some)->capture_default_str();
    app.add_option("--output-len", f.plan.output.mean, "Tokens")->check(some)->capture_default_str();
    app.add_option("--system-prompt-len-std", f.plan.system.deviation, "Their standard deviation")->check(spread);
    app.add_option("--question-len-std", f.plan.question.deviation, "Their standard deviation")->check(spread);
    app.add_option("--output-len-std", f.plan.output.deviation, "Their standard deviation")->check(spread);
    app.add_flag("--multi-turn", f.plan.multi_turn, "A user's context grows by questions and answers");
    app.add_option("--context", f.plan.context,
                   "Tokens of prompt and answer: a user's oldest turns are dropped until they fit (0: never)")
        ->check(whole());
    app.add_option("--replay", f.replay, "Each user says the turns of this file")->check(CLI::ExistingFile);
    app.add_flag("--cold", f.cold, "Begin every request with a word of its own, so that nothing of it is known");
    app.add_option("--seed", f.plan.seed)->check(whole())->capture_default_str();
    app.add_option("--requests", f.only.requests)->check(whole(1, 1u << 24))->capture_default_str();
    app.add_option("--concurrency", f.only.workers, "Workers")->check(whole(1, 4096))->capture_default_str();
    app.add_option("--num-workers", f.processes, "Processes, among which the sessions and workers are divided")
        ->check(whole(1, 256))
        ->capture_default_str();
    app.add_option("--goodput", f.constraints,
                   "NAME:SECONDS: at most that of a good request; ttft, tpot, ntpot, request_latency");
    app.add_option("--rate", f.only.rate, "Requests a second; 0: as many as can be")->check(CLI::Range(0.0, 1e6));
    app.add_flag("--poisson", f.plan.poisson, "Arrivals at random, with that rate");
    app.add_option("--stage", f.stages,
                   "Instead: RATE:SECONDS, or xWORKERS:REQUESTS for as many as they can; one after the other");
    app.add_option("--out", f.out, "Write the report here");
    app.add_option("--svg", f.svg, "Draw the times to the first token here");
    return support::guarded("load", app, argc, argv, [&] { return run(f); });
}
