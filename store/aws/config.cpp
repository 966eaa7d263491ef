#include "store/aws/config.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "store/base/error.hpp"
#include "store/os/child_process.hpp"
#include "store/os/file.hpp"

namespace weightfs {
namespace {

constexpr std::string_view kIniSpaces = " \t\r\n\f\v";

std::string_view without_spaces(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kIniSpaces);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kIniSpaces) - begin + 1);
}

std::string lower_setting(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// Reads line by line; a setting ends at the next one, at a section, or at the end of the file.
class IniReader {
 public:
  explicit IniReader(const std::string& path) : path_(path) {}

  void line(std::string_view text) {
    number_++;
    const std::string_view content = without_spaces(text);
    if (content.starts_with('#') || content.starts_with(';')) return;
    if (content.empty()) {
      if (!name_.empty()) lines_.push_back({number_, ""});
      return;
    }
    const std::size_t indent = text.find_first_not_of(kIniSpaces);
    if (!name_.empty() && indent > indent_) {
      lines_.push_back({number_, std::string(content)});
      return;
    }
    indent_ = indent;
    if (content.starts_with('[')) {
      begin_section(content);
    } else {
      begin_setting(content);
    }
  }

  AwsSections finish() {
    end_setting();
    return std::move(sections_);
  }

 private:
  struct Line {
    unsigned number;
    std::string text;
  };

  [[noreturn]] void fail(unsigned number, const std::string& problem) const {
    throw Error(ErrorCode::invalid, path_ + ", line " + std::to_string(number) + ": " + problem);
  }

  void begin_section(std::string_view content) {
    end_setting();
    const std::size_t end = content.rfind(']');
    const std::string_view name =
        end == content.npos ? "" : without_spaces(content.substr(1, end - 1));
    if (name.empty()) fail(number_, "expected a section: '[' NAME ']'");
    const auto [place, is_new] = sections_.try_emplace(std::string(name));
    if (!is_new) fail(number_, "the section [" + std::string(name) + "] occurs twice");
    section_ = &place->second;
  }

  void begin_setting(std::string_view content) {
    end_setting();
    const std::size_t sign = content.find_first_of("=:");
    const std::string name = lower_setting(without_spaces(content.substr(0, sign)));
    if (sign == content.npos || name.empty()) {
      fail(number_, "expected '[SECTION]' or 'NAME = VALUE'");
    }
    if (section_ == nullptr) fail(number_, "expected a section, as [default], before a setting");
    if (section_->contains(name)) {
      fail(number_, "the setting " + name + " occurs twice in its section");
    }
    name_ = name;
    lines_.push_back({number_, std::string(without_spaces(content.substr(sign + 1)))});
  }

  void end_setting() {
    if (name_.empty()) return;
    while (!lines_.empty() && lines_.back().text.empty() && lines_.size() > 1) lines_.pop_back();
    if (lines_.front().text.empty() && lines_.size() > 1) {
      take_nested();
    } else {
      std::string value;
      for (const Line& line : lines_) value += (value.empty() ? "" : "\n") + line.text;
      (*section_)[name_] = value;
    }
    name_.clear();
    lines_.clear();
  }

  // "s3 =" and the indented settings below it.
  void take_nested() {
    (*section_)[name_] = "";
    for (const Line& line : lines_) {
      if (line.text.empty()) continue;
      const std::size_t sign = line.text.find('=');
      if (sign == std::string::npos) fail(line.number, "expected 'NAME = VALUE' below " + name_);
      const std::string_view text = line.text;
      (*section_)[name_ + "." + std::string(without_spaces(text.substr(0, sign)))] =
          without_spaces(text.substr(sign + 1));
    }
  }

  const std::string& path_;
  AwsSections sections_;
  AwsSettings* section_ = nullptr;
  std::string name_;         // the setting to which the next lines may belong
  std::vector<Line> lines_;  // its value
  std::size_t indent_ = 0;
  unsigned number_ = 0;
};

// Expands "~/x" with HOME of the environment; empty if that is unset.
std::string aws_file_path(const Environment& environment, std::string_view variable,
                          std::string_view own) {
  const std::string path = environment(variable).value_or(std::string(own));
  if (!path.starts_with("~/")) return path;
  const std::optional<std::string> home = environment("HOME");
  return home ? *home + path.substr(1) : "";
}

AwsSections read_sections(const std::string& path) {
  struct stat found {};
  if (path.empty()) return {};
  if (stat(path.c_str(), &found) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return {};
    throw_errno(errno,
                "read " + path +
                    " (AWS settings; their location is set by HOME, or by AWS_CONFIG_FILE and "
                    "AWS_SHARED_CREDENTIALS_FILE)");
  }
  if (!S_ISREG(found.st_mode)) return {};  // like the AWS tools: /dev/null means none
  return parse_aws_file(read_file(path, kAwsFileBytesMax), path);
}

// X of a section "KIND X"; nullopt for other sections.
std::optional<std::string> name_of_section(const std::string& section, std::string_view kind) {
  if (!section.starts_with(kind)) return std::nullopt;
  std::vector<std::string> words;
  try {
    words = split_command(section);
  } catch (const Error&) {  // the AWS tools skip these too
    return std::nullopt;
  }
  if (words.size() != 2 || words[0] != kind) return std::nullopt;
  return words[1];
}

}  // namespace

AwsSections parse_aws_file(std::string_view text, const std::string& path) {
  IniReader reader(path);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    reader.line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return reader.finish();
}

bool AwsFiles::has(const std::string& profile) const {
  return config.contains(profile) || credentials.contains(profile);
}

AwsSettings AwsFiles::profile(const std::string& name) const {
  AwsSettings settings;
  if (const auto found = credentials.find(name); found != credentials.end()) {
    settings = found->second;
  }
  if (const auto found = config.find(name); found != config.end()) {
    settings.insert(found->second.begin(), found->second.end());  // keeps existing settings
  }
  return settings;
}

std::string AwsFiles::describe() const {
  if (config_path.empty() && credentials_path.empty()) return "no files (HOME is not set)";
  if (config_path.empty() || credentials_path.empty()) return config_path + credentials_path;
  return config_path + " and " + credentials_path;
}

AwsFiles read_aws_files(const Environment& environment) {
  AwsFiles files;
  files.config_path = aws_file_path(environment, "AWS_CONFIG_FILE", "~/.aws/config");
  files.credentials_path =
      aws_file_path(environment, "AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials");
  files.credentials = read_sections(files.credentials_path);
  for (auto& [section, settings] : read_sections(files.config_path)) {
    if (section == "default") files.config[section] = settings;
    if (const auto name = name_of_section(section, "profile")) files.config[*name] = settings;
    if (const auto name = name_of_section(section, "services")) files.services[*name] = settings;
  }
  return files;
}

std::string find_configured_endpoint(std::string_view service, const AwsProfile& profile,
                                     const Environment& environment) {
  const auto ignored = environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
  if (is_on(ignored ? ignored : profile.find("ignore_configured_endpoint_urls"))) return {};
  std::string variable = "AWS_ENDPOINT_URL_";
  for (const char c : service) {
    variable += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  if (const auto url = environment(variable)) return *url;
  if (const auto url = environment("AWS_ENDPOINT_URL")) return *url;
  const auto own = profile.find("services." + std::string(service) + ".endpoint_url");
  if (own && !own->empty()) return *own;
  return profile.find("endpoint_url").value_or("");
}

bool is_on(const std::optional<std::string>& value) {
  return value && lower_setting(*value) == "true";
}

Environment process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr || *value == 0) return std::nullopt;
    return value;
  };
}

std::optional<std::string> AwsProfile::find(std::string_view setting) const {
  const auto found = settings.find(std::string(setting));
  if (found == settings.end()) return std::nullopt;
  return found->second;
}

AwsProfile read_aws_profile(const std::string& name, bool named, const Environment& environment) {
  const AwsFiles files = read_aws_files(environment);
  AwsProfile profile{name, files.profile(name), files.describe()};
  if (named && !files.has(name)) {
    throw Error(ErrorCode::invalid,
                "the AWS profile '" + name + "' is not in " + profile.files +
                    ": see --profile and AWS_PROFILE (aws configure list-profiles names them)");
  }
  const auto services = profile.find("services");
  if (!services) return profile;
  const auto found = files.services.find(*services);
  if (found == files.services.end()) {
    throw Error(ErrorCode::invalid, "the AWS profile '" + name + "' says services = " + *services +
                                        ", but " + files.config_path +
                                        " has no section [services " + *services + "]");
  }
  for (const auto& [setting, value] : found->second) {
    profile.settings["services." + setting] = value;
  }
  return profile;
}

}  // namespace weightfs
