// Materialise: version N from N-1, as ratios to cp of the same files and to memcpy.
//
//     weightfs_materialize_bench [DIRECTORY [MiB [ROUNDS [ONLY]]]]
//
// ONLY: for a profiler, the part of a row's name whose work alone is repeated.
//
// Makes a repository in a bucket directory: a model of four shards of bf16 weights, and a version
// after it in which 1.1 % of them have moved by one unit in the last place.  Prints Markdown.  Also
// what a publisher's coding of N costs, without and with its changes noted.
//
// Memory that a guest never touched is ten times slower at its first use, so everything is done
// once before it is measured, files are removed after each pass so that their pages are used again,
// and what is compared alternates.  Best and median of the rounds; processor time beside the clock,
// since the first does not depend on what else the machine does.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/block/free_list.hpp"
#include "store/base/bytes.hpp"
#include "store/coding/checkpoint_reader.hpp"
#include "store/coding/delta_coder.hpp"
#include "store/format/checkpoint.hpp"
#include "store/format/layout.hpp"
#include "store/local/store.hpp"
#include "store/materialize/base_reader.hpp"
#include "store/materialize/chunk_maker.hpp"
#include "store/materialize/history.hpp"
#include "store/materialize/pack_spool.hpp"
#include "store/materialize/plan.hpp"
#include "store/materialize/take_patches.hpp"
#include "store/materialize/write_version.hpp"
#include "store/os/file.hpp"
#include "store/patches/fresh_patches.hpp"
#include "store/patches/patch_table.hpp"
#include "store/publish/publish.hpp"
#include "store/repository/repository.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

namespace filesystem = std::filesystem;

constexpr int kShards = 4, kTensorsOfShard = 8;
constexpr std::size_t kCopyBytes = 4u << 20;

/// Splitmix64: the data need not be good, but there is much of it.
std::uint64_t next_random() {
  static std::uint64_t state = 1;
  std::uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// ---- the model ----

/// Normally distributed, sigma 0.02.
std::vector<std::uint16_t> make_weights(std::size_t count) {
  std::vector<std::uint16_t> table(1 << 16), weights(count);
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  for (std::uint16_t& bits : table) {
    const float value = normal(rng);
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    bits = static_cast<std::uint16_t>(word >> 16);
  }
  for (std::uint16_t& bits : weights) {
    const std::uint64_t draw = next_random();
    bits = static_cast<std::uint16_t>((table[draw & 0xFFFF] & 0xFF80) | (draw >> 20 & 0x7F));
  }
  return weights;
}

/// Moves 1.1 % of the weights by one unit: small ones far more often than large ones, as training
/// does.
void train(std::vector<std::uint16_t>& weights) {
  constexpr double kShareChanged = 0.011;
  std::vector<double> chance(256), share(256);
  for (const std::uint16_t bits : weights) share[bits >> 7 & 0xFF] += 1.0;
  double low = 0, high = 1;
  for (int i = 0; i < 60; i++) {
    const double scale = (low + high) / 2;
    double changed = 0;
    for (int e = 0; e < 256; e++) {
      const auto at = static_cast<std::size_t>(e);
      chance[at] = std::min(1.0, std::ldexp(scale, 127 - e));
      changed += chance[at] * share[at];
    }
    (changed < kShareChanged * static_cast<double>(weights.size()) ? low : high) = scale;
  }
  for (std::uint16_t& bits : weights) {
    const std::uint64_t draw = next_random();
    const double unit = static_cast<double>(draw >> 11) * 0x1p-53;
    if (unit < chance[bits >> 7 & 0xFF]) bits = static_cast<std::uint16_t>(bits ^ 1U);
  }
}

void write_shards(const filesystem::path& directory, const std::vector<std::uint16_t>& weights) {
  filesystem::create_directories(directory);
  const std::size_t of_tensor = weights.size() / kShards / kTensorsOfShard;
  const auto* from = reinterpret_cast<const char*>(weights.data());
  for (int shard = 0; shard < kShards; shard++) {
    std::string header = "{";
    for (std::size_t i = 0; i < kTensorsOfShard; i++) {
      const std::string name = "layer." + std::to_string(shard) + "." + std::to_string(i);
      header += (i == 0 ? "\"" : ",\"") + name + R"(":{"dtype":"BF16","shape":[)" +
                std::to_string(of_tensor) + R"(],"data_offsets":[)" +
                std::to_string(i * of_tensor * 2) + "," + std::to_string((i + 1) * of_tensor * 2) +
                "]}";
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t size = header.size();
    const auto path = directory / ("model-" + std::to_string(shard) + ".safetensors");
    const File file = File::open(path, O_WRONLY | O_CREAT | O_TRUNC);
    write_at(file.fd(), 0, std::as_bytes(std::span(&size, 1)), path);
    write_at(file.fd(), 8, as_bytes(header), path);
    const std::string_view data(from, kTensorsOfShard * of_tensor * 2);
    write_at(file.fd(), 8 + size, as_bytes(data), path);
    from += data.size();
  }
}

// ---- measuring ----

struct Spent {
  double wall_s = 0, cpu_s = 0;
};

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct Measured {
  std::string name;
  std::function<void()> prepare, work, clean;
  std::vector<Spent> spent = {};

  void once() {
    if (prepare) prepare();
    const auto begin = std::chrono::steady_clock::now();
    const double cpu = cpu_seconds();
    work();
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    spent.push_back({wall.count(), cpu_seconds() - cpu});
    if (clean) clean();
  }

  [[nodiscard]] double at(double share, double Spent::*what) const {
    std::vector<double> values;
    for (const Spent& one : spent) values.push_back(one.*what);
    std::sort(values.begin(), values.end());
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  }
  [[nodiscard]] double best() const { return at(0, &Spent::wall_s); }
  [[nodiscard]] double cpu() const { return at(0, &Spent::cpu_s); }
};

void copy_file(const filesystem::path& from, const filesystem::path& to, std::span<std::byte> by) {
  const File in = File::open(from, O_RDONLY), out = File::open(to, O_WRONLY | O_CREAT, 0600);
  const std::uint64_t size = filesystem::file_size(from);
  for (std::uint64_t at = 0; at < size; at += by.size()) {
    const auto part =
        by.first(static_cast<std::size_t>(std::min<std::uint64_t>(by.size(), size - at)));
    if (!read_at(in.fd(), at, part, from)) std::abort();
    write_at(out.fd(), at, part, to);
  }
}

/// Reads, decodes and hashes every chunk, on all cores, and writes nothing.
void decode_all(const Plan& plan, Repository& repository, const PackSpool& spool) {
  static kernels::FreeList<Bytes> buffers;
  const Context context;
  const auto coder = kernels::make_cpu_coder();
  const auto& tensors = plan.layout->tensors();
  parallel_for(tensors.size(), 0, context, [&](std::size_t number) {
    const LayoutTensor& tensor = tensors[number];
    ChunkMaker maker(plan, spool, open_base_reader(plan, repository, context), *coder);
    const auto lent =
        buffers.borrow([] { return std::make_unique<Bytes>(kernels::kChunkBytesMax); });
    Bytes& memory = *lent;
    for (std::uint32_t i = 0; i < tensor.chunk_count; i++) {
      const WantedChunk wanted{static_cast<std::uint32_t>(number), i,
                               std::span(memory).first(tensor.chunk_size_bytes(i))};
      maker.make({&wanted, 1});
    }
  });
}

void print(const std::vector<Measured>& all, double bytes) {
  const Measured &memcpy = all[0], &cp = all[1];
  std::printf("| what | best, s | median, s | CPU, s | GB/s | / cp | / memcpy | CPU / cp |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  for (const Measured& one : all) {
    std::printf("| %s | %.4f | %.4f | %.4f | %.2f | %.2f | %.2f | %.2f |\n", one.name.c_str(),
                one.best(), one.at(0.5, &Spent::wall_s), one.cpu(), bytes / one.best() / 1e9,
                one.best() / cp.best(), one.best() / memcpy.best(), one.cpu() / cp.cpu());
  }
}

void run(const filesystem::path& directory, std::size_t size_bytes, int rounds,
         const std::string& only) {
  const Context context;
  std::vector<std::uint16_t> weights = make_weights(size_bytes / 2);
  const std::string url = "file://" + (directory / "bucket").string();
  bool created = false;
  const auto repository = Repository::init(url, created, context);
  const auto store = Store::open(directory / "store", repository->id(), repository->url(),
                                 StoreLimits{std::nullopt, 0});
  History history(*repository, store.get());
  for (const char* name : {"one", "two"}) {
    write_shards(directory / name, weights);
    PublishOptions options;
    options.directory = directory / name;
    publish(history, *store, options, context, {});
    train(weights);
    filesystem::remove_all(directory / name);
  }

  const auto write = [&](const Plan& plan, const filesystem::path& to,
                         FreshChunks* fresh = nullptr) {
    filesystem::create_directories(to);
    WriteOptions options;
    options.directory = to;
    options.spool = directory;
    options.sync = false;
    options.noted.fresh = fresh;
    write_version(plan, *repository, options, context, {});
  };
  const Plan first = make_plan(history, history.get(1, context), {}, context);
  write(first, directory / "base");
  const std::vector<Base> bases = {{first.version, first.layout, directory / "base", first.hashes}};
  const Plan plan = make_plan(history, history.get(2, context), bases, context);
  if (!plan.base || plan.steps.size() != 1) std::abort();
  std::uint64_t coded = 0;
  for (const auto& pack : plan.steps[0].packs) coded += pack->data_size_bytes();

  Bytes from(size_bytes), to(size_bytes), buffer(kCopyBytes);
  const auto reset = [&] { filesystem::remove_all(directory / "new"); };
  std::unique_ptr<PackSpool> spool;
  const auto new_spool = [&] {
    spool = std::make_unique<PackSpool>(plan, *repository, directory, context);
  };
  const PatchTable& patches = store->patches();
  const Base after{plan.version, plan.layout, directory / "new", plan.hashes};
  const SpanEnds ends = *span_between(bases[0], after);
  std::unique_ptr<FreshSpan> fresh;
  const auto write_noted = [&] {
    const auto chunks = std::make_shared<FreshChunks>(size_bytes);
    fresh = std::make_unique<FreshSpan>(FreshEnd{ends.first, bases[0].layout},
                                        FreshEnd{ends.last, plan.layout},
                                        std::vector<FreshPart>{{chunks, 0}});
    write(plan, directory / "new", chunks.get());
  };
  // The same two versions for who publishes the second one.
  write(plan, directory / "published");
  const Checkpoint checkpoint = scan_checkpoint(directory / "published", {});
  const auto layout = Layout::from_checkpoint(checkpoint);
  const CheckpointReader reader(checkpoint, *layout);
  const auto code = [&](FreshChunks* noted) {
    CodeOptions options;
    options.spool = directory;
    options.fresh = noted;
    static_cast<void>(code_delta(reader, bases[0], options, context, {}));
  };
  const auto code_noted = [&] {
    FreshChunks noted(size_bytes);
    code(&noted);
    if (!noted.is_wanted()) std::abort();
  };
  std::vector<Measured> all = {
      {"memcpy", {}, [&] { std::memcpy(to.data(), from.data(), to.size()); }, {}},
      {"cp, 4 MiB", [&] { filesystem::create_directories(directory / "new"); },
       [&] {
         for (const auto& file : plan.layout->files()) {
           copy_file(directory / "base" / file.path, directory / "new" / file.path, buffer);
         }
       },
       reset},
      {"N from N-1", {}, [&] { write(plan, directory / "new"); }, reset},
      {"the same, changes noted", {}, write_noted, reset},
      {"patches of what was noted", write_noted,
       [&] { static_cast<void>(write_patches(patches, ends, *fresh, context)); }, reset},
      {"patches by comparing", [&] { write(plan, directory / "new"); },
       [&] { static_cast<void>(take_patches(patches, ends, bases[0], after, context)); }, reset},
      {"of that: fetch", new_spool, [&] { spool->fetch_all(0, {}); }, {}},
      {"of that: read, decode, hash", {}, [&] { decode_all(plan, *repository, *spool); }, {}},
      {"publishing: N coded against N-1", {}, [&] { code(nullptr); }, {}},
      {"publishing: the same, changes noted", {}, code_noted, {}},
      {"unlink", [&] { write(plan, directory / "new"); }, reset, {}},
  };
  for (Measured& one : all) one.once();  // first uses
  for (Measured& one : all) one.spent.clear();
  for (int i = 0; i < rounds; i++) {
    for (Measured& one : all) {
      if (one.name.find(only) != std::string::npos) one.once();
    }
  }
  if (!only.empty()) return;
  std::printf("%zu MiB in %d shards, %.2f %% of them coded, %d rounds\n\n", size_bytes >> 20,
              kShards, 100.0 * static_cast<double>(coded) / static_cast<double>(size_bytes),
              rounds);
  print(all, static_cast<double>(size_bytes));
}

}  // namespace
}  // namespace weightfs

int main(int argc, char** argv) {
  namespace filesystem = std::filesystem;
  const filesystem::path parent = argc > 1 ? argv[1] : filesystem::temp_directory_path().string();
  const std::size_t mebibytes = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 512;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 9;
  std::string directory = (parent / "weightfs-bench-XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) return 1;
  int failed = 0;
  try {
    weightfs::run(directory, mebibytes << 20, rounds, argc > 4 ? argv[4] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    failed = 1;
  }
  filesystem::remove_all(directory);
  return failed;
}
