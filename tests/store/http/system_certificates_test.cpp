#include "store/http/system_certificates.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/support.hpp"

namespace weightfs::test {
namespace {

class SystemCertificates : public testing::Test {
 protected:
  void SetUp() override { forget_variables(); }
  void TearDown() override { forget_variables(); }

  static void forget_variables() {
    ::unsetenv("CURL_CA_BUNDLE");
    ::unsetenv("SSL_CERT_FILE");
  }

  std::string add(const std::string& file) {
    const std::filesystem::path path = root_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "certificates";
    return path;
  }

  [[nodiscard]] std::string found() const { return find_system_certificates(root_.path()); }

  TempDir root_;
};

TEST_F(SystemCertificates, AreFoundWhereEachDistributionKeepsThem) {
  EXPECT_EQ(found(), "");
  for (const char* file :
       {"etc/ssl/cert.pem", "etc/ssl/ca-bundle.pem", "etc/pki/tls/certs/ca-bundle.crt",
        "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "etc/ssl/certs/ca-certificates.crt"}) {
    const std::string added = add(file);
    EXPECT_EQ(found(), added);
  }
}

TEST_F(SystemCertificates, AreThoseOfTheVariablesFirst) {
  add("etc/ssl/cert.pem");
  ::setenv("SSL_CERT_FILE", "/of/openssl.pem", 1);
  EXPECT_EQ(found(), "/of/openssl.pem");
  ::setenv("CURL_CA_BUNDLE", "/of/curl.pem", 1);
  EXPECT_EQ(found(), "/of/curl.pem");
  ::setenv("CURL_CA_BUNDLE", "", 1);
  EXPECT_EQ(found(), "/of/openssl.pem");
}

TEST_F(SystemCertificates, AreNoDirectory) {
  std::filesystem::create_directories(root_.path() / "etc/ssl/certs/ca-certificates.crt");
  const std::string file = add("etc/ssl/cert.pem");
  EXPECT_EQ(found(), file);
}

}  // namespace
}  // namespace weightfs::test
