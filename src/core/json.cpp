// SPDX-License-Identifier: MIT
#include <kvcache/core/json.hpp>

namespace kvcache {

template result<json> parse_json_as(std::string_view, std::string);
template result<nlohmann::json> parse_json_as(std::string_view, std::string);

} // namespace kvcache
