// Early coding: codes one file of a checkpoint before the checkpoint is handed over, and uploads
// the result.  PreEncoder (store/publish/pre_encoder.hpp) says which file, and when.
//
// A file that is still written is coded as it grows (store/coding/growing_file.hpp), and announced
// in pieces, to the last.  When it is closed, it is read once more, and the result is of use only
// if all its bytes are those that were coded; if not, it is coded as it is now, unless it ends with
// an error.
//
// Threads: run() is called once, by one thread, and starts its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/block/chunk_coder.hpp"
#include "store/base/context.hpp"
#include "store/coding/growing_file.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/early_record.hpp"
#include "store/format/layout.hpp"
#include "store/materialize/history.hpp"
#include "store/publish/early_packs.hpp"
#include "store/publish/pre_encoded.hpp"

namespace weightfs {

/// Of a file that is still written, what is coded and uploaded.
struct BegunFile {
  EarlyRecord::File file;  // by the name that it will have
  Sha256 parent_sha256{};
  bool needs_xr = false;
};

/// Where the file comes from, and where its results go.  Called by any thread of the coding.
class EarlyJob {
 public:
  virtual ~EarlyJob() = default;

  /// After waiting for so long, or until it is not.
  /// Throws Error: cancelled, if nobody waits any more for what is still to come; as
  /// Context::check().
  [[nodiscard]] virtual bool is_still_written(std::chrono::milliseconds wait,
                                              const Context& context) const = 0;
  /// Returns: the name that the file has then, below the checkpoint's directory.
  /// Throws Error: as is_still_written().
  virtual std::string wait_until_closed(const Context& context) = 0;
  /// The file is uploaded now, for a first version.
  /// Returns: the nonce of the snapshot.  Throws Error: cancelled.
  virtual std::string begin_snapshot_file() = 0;
  /// There is enough of it: it is coded as it grows.
  virtual void grows() = 0;
  virtual void begun(BegunFile file) = 0;
  /// The file is coded.  Returns: false if nobody wants it any more.
  virtual bool put(const std::shared_ptr<EarlyResult>& result) = 0;
  /// ... and its result is uploaded.
  virtual void uploaded() = 0;
  /// "grown", "coded": see EarlyOptions::at.
  virtual void reached(std::string_view point) = 0;
};

/// What is the same for all files.
struct EarlyCoder {
  History& history;
  Store& store;
  unsigned threads = 0;          // of a complete file; 0: work_threads()
  unsigned growing_threads = 0;  // of one that is still written
  kernels::SharedCoder coder;
  GrowingFile::Pauses pauses = {};
};

class EarlyCoding {
 public:
  /// `path`: below the checkpoint's directory, as far as it is known.  `parent`: the version to
  /// code against; 0: none, this is for a first version.  Keeps the references.
  EarlyCoding(const EarlyCoder& coder, EarlyJob& job, std::filesystem::path source,
              std::string path, std::uint64_t parent, const Context& context);

  /// `is_written`: still.
  /// Throws Error: cancelled, timed_out, busy (what was coded of it was written again), no_space,
  /// not_found, corrupt, io; as Bucket::put().
  void run(bool is_written);

 private:
  void code_complete(const Checkpoint& checkpoint);
  void code_growing();
  void check_grown(const Checkpoint& checkpoint);
  void hash(const CheckpointReader& reader);
  void code(const NewChunks& chunks);
  void announce_pieces(CodeOptions& coding);
  void announce_rest();
  [[nodiscard]] BegunFile begun_file(const LayoutFile& before, std::span<const PackRef> uploaded,
                                     const CodedSoFar& so_far) const;
  void number_tensors();
  bool upload(const CheckpointReader& reader);
  void upload_file(const CheckpointReader& reader);

  const EarlyCoder& coder_;
  EarlyJob& job_;
  const std::filesystem::path source_;
  std::string path_;
  const std::uint64_t parent_;
  const Context context_;
  std::shared_ptr<EarlyResult> result_;
  std::shared_ptr<const Layout> parent_layout_;  // once it was coded
  std::optional<EarlyPacks> packs_;              // once one may be uploaded
};

}  // namespace weightfs
