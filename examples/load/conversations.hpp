// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/formats/json.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../support/script.hpp"
#include "plan.hpp"

namespace load {

using kvcache::json;

/// The conversations of the users. One thread at a time sends the requests of a user.
class conversations {
public:
    /// Recorded turns, if given, replace generated ones; a user who has sent all of them starts again. A `cold`
    /// request begins with a unique word, so that nothing of it is cached.
    conversations(const plan& of, bool chat, bool cold, std::optional<support::script> recorded)
        : plan_(of), chat_(chat), cold_(cold), recorded_(std::move(recorded)), users_(of.sessions()) {}

    /// Returns the body of request `i`, and its index in the user's conversation in `turn`.
    [[nodiscard]] json ask(std::size_t i, std::size_t& turn) const {
        const std::size_t session = plan_.session_of(i);
        const user& who = users_[session];
        turn = who.turns;
        const std::string system = (cold_ ? "Number " + std::to_string(i) + ". " : std::string()) +
                                   (recorded_ ? recorded_->system : plan_.system_of(session));
        const std::string question =
            recorded_ ? recorded_->turns[who.turns % recorded_->turns.size()] : plan_.question_of(i);
        json body{{"max_tokens", plan_.output_of(i)},
                  {"temperature", 0.0},
                  {"ignore_eos", true},
                  {"stream", true},
                  {"stream_options", {{"include_usage", true}}}};
        if (chat_) {
            body["messages"] = json::array();
            if (!system.empty())
                body["messages"].push_back({{"role", "system"}, {"content", system}});
            for (const auto& [said, heard] : who.said) {
                body["messages"].push_back({{"role", "user"}, {"content", said}});
                body["messages"].push_back({{"role", "assistant"}, {"content", heard}});
            }
            body["messages"].push_back({{"role", "user"}, {"content", question}});
        } else {
            std::string prompt = system;
            for (const auto& [said, heard] : who.said)
                prompt += " " + said + " " + heard;
            body["prompt"] = prompt + " " + question;
        }
        return body;
    }

    /// Appends the answer to request `i`. A failed request is left out: the next one continues the last good context.
    void add_answer(std::size_t i, const std::string& answer) {
        user& who = users_[plan_.session_of(i)];
        const std::size_t turn = who.turns++;
        if (recorded_) {
            who.said.emplace_back(recorded_->turns[turn % recorded_->turns.size()], answer);
            if (who.turns % recorded_->turns.size() == 0)
                who = {};
        } else if (plan_.multi_turn)
            who.said.emplace_back(plan_.question_of(i), answer);
        else
            who.turns = 0;
    }

private:
    struct user {
        std::vector<std::pair<std::string, std::string>> said = {}; // messages and answers
        std::size_t turns = 0;
    };

    const plan& plan_;
    bool chat_, cold_;
    std::optional<support::script> recorded_;
    std::vector<user> users_;
};

} // namespace load
