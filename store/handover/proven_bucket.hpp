// Proven bucket: runs the probe of a bucket (store/repository/probe.hpp) once per store.
//
// Threads: all calls may run in parallel.
#pragma once

#include <string_view>

#include "store/base/context.hpp"
#include "store/local/store.hpp"
#include "store/repository/repository.hpp"

namespace weightfs {

/// Calls require_put_if_absent() once per store: a success is recorded there, for this URL and
/// endpoint.
void require_put_if_absent_once(Repository& repository, Store& store, std::string_view endpoint_url,
                                const Context& context);

}  // namespace weightfs
