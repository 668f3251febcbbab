// SPDX-License-Identifier: MIT
#include <kvcache/model/impl/load.hpp>
