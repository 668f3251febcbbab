// SPDX-License-Identifier: MIT
#pragma once

// Layer groups: layers::grouped, for models whose layers keep different things of a sequence.

#include <kvcache/cache/group_leases.hpp>
#include <kvcache/cache/owned_blocks.hpp>
#include <kvcache/cache/snapshot_places.hpp>
#include <kvcache/codec/by_group.hpp>
#include <kvcache/layers/grouped.hpp>
