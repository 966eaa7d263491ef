// Rank pieces: whether a checkpoint has whole tensors, or what the ranks of a trainer have written
// of them.
//
// torch's distributed checkpoint writer for Hugging Face puts the pieces of a tensor into several
// files, each under the tensor's full name, and notes in the header where a piece begins.  A loader
// would take any one of them for the whole tensor, with a wrong shape.  Reference:
// torch/distributed/checkpoint/hf_storage.py, DCP_SHARDING_INFO.
//
// Threads: a plain function.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "store/format/safetensors.hpp"

namespace weightfs {

struct NamedHeader {
  std::string_view path;  // in the checkpoint's directory
  const SafetensorsHeader* header = nullptr;
};

/// Looks only at files that have such a note.
/// Throws Error: corrupt, naming a tensor and its file, if a tensor lies in two of them, begins
/// anywhere but at its start, or if model.safetensors.index.json tells of more bytes than they
/// have.
void refuse_rank_pieces(const std::filesystem::path& directory,
                        const std::vector<NamedHeader>& files);

}  // namespace weightfs
