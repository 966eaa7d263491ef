// Where this system keeps the certificates that programs trust.  Distributions differ, and a
// libcurl that was built on one of them, as in the wheel, does not know the others.
#pragma once

#include <filesystem>
#include <string>

namespace weightfs {

/// A file of certificates: what CURL_CA_BUNDLE or SSL_CERT_FILE names, there or not; else the first
/// that is there of those of Debian, Fedora, openSUSE, Alpine and their like below `root`.  Empty
/// if there is none: then libcurl's default holds.
std::string find_system_certificates(const std::filesystem::path& root = "/");

}  // namespace weightfs
