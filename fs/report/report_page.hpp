// Report page: a run as one HTML page, which needs nothing else: no script, no font, no other file.
//
// Text from a bucket (tags, URLs) is escaped, wherever it stands.
//
// Threads: a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fs/report/version_point.hpp"

namespace weightfs::fs {

/// `text` as HTML shows it, also within an attribute: & < > " ' escaped, and control characters and
/// invalid UTF-8 replaced.
std::string escape_html(std::string_view text);

struct ReportPage {
  std::string url;                         // without secrets
  std::string repository;                  // its id
  std::int64_t made = 0;                   // seconds since 1970
  std::span<const VersionPoint> versions;  // ascending
  std::uint64_t newest = 0;                // of the repository, also if it is not among them
};

/// Plots of all versions, at most 400 bars each (the largest of the versions of a bar); a table of
/// the newest 1,000.
std::string report_page(const ReportPage& page);

}  // namespace weightfs::fs
