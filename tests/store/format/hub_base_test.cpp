#include "store/format/hub_base.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weightfs {
namespace {

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

TEST(HubBase, ComesBackAsItWasWritten) {
  for (const std::string& model : std::vector<std::string>{"org/model", "Org-1/Model_2.5-0.5B",
                                                           "_/x", "a/" + std::string(96, 'm')}) {
    const std::string text = "hub:" + model + "@" + kCommit;
    const auto base = HubBase::parse(text);
    ASSERT_TRUE(base) << text;
    EXPECT_EQ(base->model, model);
    EXPECT_EQ(base->revision, kCommit);
    EXPECT_EQ(base->text(), text);
    EXPECT_EQ(base->key("sub/m.safetensors"), model + "/resolve/" + kCommit + "/sub/m.safetensors");
  }
}

TEST(HubBase, IsNoneUnlessItNamesOneModelAtOneCommit) {
  for (const std::string& text : std::vector<std::string>{
           "",
           "org/model@" + kCommit,
           "hf:org/model@" + kCommit,
           "hub:model@" + kCommit,
           "hub:org/model",
           "hub:org/model@",
           "hub:org/model@main",
           "hub:org/model@" + kCommit.substr(1),
           "hub:org/model@" + kCommit + "0",
           "hub:org/model@0123456789ABCDEF0123456789abcdef01234567",
           "hub:org/model@" + kCommit + "@" + kCommit,
           "hub:org/@" + kCommit,
           "hub:/model@" + kCommit,
           "hub:a/b/c@" + kCommit,
           "hub:../model@" + kCommit,
           "hub:org/..@" + kCommit,
           "hub:org/.git@" + kCommit,
           "hub:org/a..b@" + kCommit,
           "hub:org/a--b@" + kCommit,
           "hub:org/a-@" + kCommit,
           "hub:-org/a@" + kCommit,
           "hub:org/a b@" + kCommit,
           "hub:org/a?b@" + kCommit,
           "hub:org/a%2e@" + kCommit,
           "hub://host/org/model@" + kCommit,
           "hub:org/\xC3\xA9@" + kCommit,
           "hub:org/" + std::string(97, 'm') + "@" + kCommit,
       }) {
    EXPECT_FALSE(HubBase::parse(text)) << text;
  }
}

}  // namespace
}  // namespace weightfs
