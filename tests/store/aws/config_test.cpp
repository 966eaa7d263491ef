#include "store/aws/config.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "store/base/error.hpp"
#include "store/os/child_process.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::TempDir;
using test::write_text;

Environment aws_variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](std::string_view name) -> std::optional<std::string> {
    const auto found = values.find(std::string(name));
    if (found == values.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

AwsSettings only_section(std::string_view text) {
  AwsSections sections = parse_aws_file(text, "FILE");
  EXPECT_EQ(sections.size(), 1u);
  return sections.begin()->second;
}

TEST(AwsConfig, ReadsSettingsAsTheAwsToolsDo) {
  const AwsSettings settings = only_section(
      "# comment\n\n[default]\r\n"
      "Region = eu-west-1  \n"
      "   ; comment\n"
      "plain=a # no comment\n"
      "colon : b = c\n"
      "empty =\n"
      "secret = a/b+c==\n");
  EXPECT_EQ(settings, (AwsSettings{{"region", "eu-west-1"},
                                   {"plain", "a # no comment"},
                                   {"colon", "b = c"},
                                   {"empty", ""},
                                   {"secret", "a/b+c=="}}));
}

TEST(AwsConfig, ReadsNestedAndContinuedSettings) {
  const AwsSettings settings = only_section(
      "[x]\n"
      "s3 =\n"
      "  addressing_style = path\n"
      "  # comment\n"
      "\n"
      "  endpoint_url=http://a=b\n"
      "credential_process = /bin/x\n"
      "    --flag\n"
      "  region = r\n"  // deeper than credential_process, so it continues that
      "next = 1\n\n");
  EXPECT_EQ(settings, (AwsSettings{{"s3", ""},
                                   {"s3.addressing_style", "path"},
                                   {"s3.endpoint_url", "http://a=b"},
                                   {"credential_process", "/bin/x\n--flag\nregion = r"},
                                   {"next", "1"}}));
}

TEST(AwsConfig, RefusesWhatIsNoIniWithItsLine) {
  const std::pair<const char*, const char*> bad[] = {
      {"a = SECRET\n", "FILE, line 1: expected a section"},
      {"[default]\nSECRET\n", "FILE, line 2: expected '[SECTION]' or 'NAME = VALUE'"},
      {"[default]\n= SECRET\n", "FILE, line 2: expected '[SECTION]'"},
      {"[default\n", "FILE, line 1: expected a section"},
      {"[]\n", "FILE, line 1: expected a section"},
      {"[a]\n[b]\n[a]\n", "FILE, line 3: the section [a] occurs twice"},
      {"[a]\nk = SECRET\nK = SECRET\n", "FILE, line 3: the setting k occurs twice in its section"},
      {"[a]\ns3 =\n  x = 1\n  SECRET\n", "FILE, line 4: expected 'NAME = VALUE' below s3"}};
  for (const auto& each : bad) {
    const auto& [text, message] = each;
    std::string said;
    EXPECT_EQ(code_of([&] { parse_aws_file(each.first, "FILE"); }, &said), ErrorCode::invalid)
        << text;
    EXPECT_EQ(said.find(message), 0u) << said;
    EXPECT_EQ(said.find("SECRET"), std::string::npos) << said;
  }
}

TEST(AwsConfig, SplitsWordsAsAShellDoes) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(split_command(" a  b\tc\n"), (Words{"a", "b", "c"}));
  EXPECT_EQ(split_command(R"(a "b c" 'd "e' f\ g)"), (Words{"a", "b c", "d \"e", "f g"}));
  EXPECT_EQ(split_command(R"("a\"b\\c\d" '\' x""y '')"), (Words{R"(a"b\c\d)", "\\", "xy", ""}));
  EXPECT_EQ(split_command("a $HOME ; b # c"), (Words{"a", "$HOME", ";", "b", "#", "c"}));
  EXPECT_EQ(split_command(""), Words{});
  for (const char* bad : {"'a", "\"a", "a\\"}) {
    EXPECT_EQ(code_of([&] { split_command(bad); }), ErrorCode::invalid) << bad;
  }
}

TEST(AwsConfig, FindsTheFilesBelowHomeOrWhereTheVariablesSay) {
  const TempDir home;
  write_text(home / ".aws/config", "[default]\na = 1\n[profile x]\na = 2\n[x]\na = 3\n");
  write_text(home / ".aws/credentials", "[x]\nb = 4\n[profile y]\nb = 5\n");
  write_text(home / "other", "[profile \"with space\"]\na = 6\n");
  const std::string at = home.path().string();

  const AwsFiles files = read_aws_files(aws_variables({{"HOME", at}}));
  EXPECT_EQ(files.profile("default"), (AwsSettings{{"a", "1"}}));
  EXPECT_EQ(files.profile("x"), (AwsSettings{{"a", "2"}, {"b", "4"}}));
  EXPECT_EQ(files.profile("profile y"), (AwsSettings{{"b", "5"}}));
  EXPECT_FALSE(files.has("y"));
  EXPECT_EQ(files.describe(), at + "/.aws/config and " + at + "/.aws/credentials");

  const AwsFiles others = read_aws_files(aws_variables(
      {{"HOME", at}, {"AWS_CONFIG_FILE", "~/other"}, {"AWS_SHARED_CREDENTIALS_FILE", at}}));
  EXPECT_EQ(others.profile("with space"), (AwsSettings{{"a", "6"}}));
  EXPECT_TRUE(others.credentials.empty());

  EXPECT_TRUE(read_aws_files(aws_variables({})).config.empty());
  EXPECT_TRUE(read_aws_files(aws_variables({{"AWS_CONFIG_FILE", at + "/other/x"}})).config.empty());
}

TEST(AwsConfig, CredentialsWinOverConfig) {
  const TempDir home;
  write_text(home / ".aws/config", "[default]\na = config\nb = config\n");
  write_text(home / ".aws/credentials", "[default]\na = credentials\n");
  const AwsFiles files = read_aws_files(aws_variables({{"HOME", home.path().string()}}));
  EXPECT_EQ(files.profile("default"), (AwsSettings{{"a", "credentials"}, {"b", "config"}}));
}

TEST(AwsConfig, NamesAFileThatCannotBeRead) {
  const TempDir home;
  write_text(home / "loop", "");
  std::filesystem::remove(home / "loop");
  std::filesystem::create_symlink("loop", home / "loop");
  std::string said;
  EXPECT_EQ(code_of(
                [&] {
                  read_aws_files(aws_variables({{"AWS_CONFIG_FILE", (home / "loop").string()}}));
                },
                &said),
            ErrorCode::io);
  EXPECT_NE(said.find((home / "loop").string()), std::string::npos) << said;
}

}  // namespace
}  // namespace weightfs
