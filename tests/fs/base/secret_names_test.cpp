#include "fs/base/secret_names.hpp"

#include <gtest/gtest.h>

namespace weightfs::fs {
namespace {

TEST(SecretNames, AreKnownByTheirSound) {
  for (const char* name :
       {"AWS_SECRET_KEY", "AWS_BEARER_TOKEN_BEDROCK", "github_token", "DB_PASSWORD",
        "SSH_AUTH_SOCK", "PGPASSWORD", "GPG_PASSPHRASE", "AWS_VAULT_FILE_PASSPHRASE"}) {
    EXPECT_TRUE(is_secret_name(name)) << name;
  }
  for (const char* name : {"", "AWS_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "PATH"}) {
    EXPECT_FALSE(is_secret_name(name)) << name;
  }
}

}  // namespace
}  // namespace weightfs::fs
