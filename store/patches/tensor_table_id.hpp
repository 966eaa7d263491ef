// TensorTableId: names a tensor table, as far as patches depend on it.
//
// Two layouts have the same id if their files have the same paths and their tensors the same names,
// dtypes, shapes and places: file, and number within the version.  Then tensor and chunk numbers
// mean the same in both, and chunks have the same sizes.  Headers are left out: a safetensors file
// may carry the step in its metadata, which changes where its tensors begin, but not them.
//
// Threads: pure functions.
#pragma once

#include "store/base/sha256.hpp"
#include "store/format/layout.hpp"

namespace weightfs {

using TensorTableId = Sha256;

TensorTableId tensor_table_id(const Layout& layout);

}  // namespace weightfs
