// SPDX-License-Identifier: MIT
#include <kvcache/tier.hpp>

int main() {}
