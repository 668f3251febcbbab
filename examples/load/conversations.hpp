// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/json.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../support/script.hpp"
#include "plan.hpp"

namespace load {

using kvcache::json;

/// What the users have said and heard. Each user is asked for by one thread at a time.
class conversations {
public:
    /// Recorded turns, if given, are said instead of made ones; a user who has said them all begins anew. A `cold`
    /// request begins with a word that no other has, so that nothing of it is known.
    conversations(const plan& of, bool chat, bool cold, std::optional<support::script> recorded)
        : plan_(of), chat_(chat), cold_(cold), recorded_(std::move(recorded)), users_(of.sessions()) {}

    /// What request `i` says; its place in the conversation of its user in `turn`.
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

    /// Request `i` was answered. One that was not is left out: the next goes on from the last good context.
    void hear(std::size_t i, const std::string& answer) {
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
        std::vector<std::pair<std::string, std::string>> said = {}; // and heard
        std::size_t turns = 0;
    };

    const plan& plan_;
    bool chat_, cold_;
    std::optional<support::script> recorded_;
    std::vector<user> users_;
};

} // namespace load
