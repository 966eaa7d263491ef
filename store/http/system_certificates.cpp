#include "store/http/system_certificates.hpp"

#include <cstdlib>
#include <system_error>

namespace weightfs {

namespace {

constexpr const char* kCertificateVariables[] = {"CURL_CA_BUNDLE", "SSL_CERT_FILE"};

constexpr const char* kCertificateFiles[] = {
    "etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Gentoo, Alpine
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, RHEL
    "etc/pki/tls/certs/ca-bundle.crt",                   // older ones, Amazon Linux
    "etc/ssl/ca-bundle.pem",                             // openSUSE
    "etc/ssl/cert.pem",                                  // Alpine
};

}  // namespace

std::string find_system_certificates(const std::filesystem::path& root) {
  for (const char* variable : kCertificateVariables) {
    const char* named = std::getenv(variable);
    if (named != nullptr && *named != '\0') return named;
  }
  for (const char* file : kCertificateFiles) {
    std::error_code error;
    const std::filesystem::path path = root / file;
    if (std::filesystem::is_regular_file(path, error)) return path;
  }
  return {};
}

}  // namespace weightfs
