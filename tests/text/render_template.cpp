// SPDX-License-Identifier: MIT
//
// Renders chat templates for real_templates.py, which compares them with Jinja's renderings. Reads JSON lines
//
//     {"template", "special_tokens", "messages", "add_generation_prompt", "variables", "now"}
//
// where `now` is [year, month, day, hour, minute, second], and writes one line for each: {"text"}, {"error"} if the
// rendering fails, or {"refused"} if the template is not opened.
#include <kvcache/formats/json.hpp>
#include <kvcache/text/chat_template.hpp>

#include <ctime>
#include <iostream>
#include <map>
#include <string>

namespace {

using kvcache::json;

std::tm date_of(const json& numbers) {
    std::tm made{};
    made.tm_year = numbers[0].get<int>() - 1900;
    made.tm_mon = numbers[1].get<int>() - 1;
    made.tm_mday = numbers[2].get<int>();
    made.tm_hour = numbers[3].get<int>();
    made.tm_min = numbers[4].get<int>();
    made.tm_sec = numbers[5].get<int>();
    made.tm_isdst = -1;
    (void)std::mktime(&made); // fills in the day of the week
    return made;
}

json answer(const json& line) {
    const auto chat = kvcache::chat_template::parse(line["template"].get<std::string>(),
                                                    line["special_tokens"].get<std::map<std::string, std::string>>());
    if (!chat)
        return {{"refused", chat.error().message}};
    const auto rendered =
        chat->render(line["messages"], {.add_generation_prompt = line["add_generation_prompt"].get<bool>(),
                                        .now = date_of(line["now"]),
                                        .variables = line["variables"]});
    if (!rendered)
        return {{"error", rendered.error().message}};
    return {{"text", rendered->text()}};
}

} // namespace

int main() {
    for (std::string line; std::getline(std::cin, line);)
        std::cout << answer(json::parse(line)).dump() << std::endl;
}
