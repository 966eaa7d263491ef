// HubSettings: how the Hugging Face Hub is reached, found where huggingface_hub finds it.
//
//     endpoint    HF_ENDPOINT; default https://huggingface.co
//     token       HF_TOKEN, HUGGING_FACE_HUB_TOKEN, then the file HF_TOKEN_PATH, or `token` below
//                 HF_HOME, XDG_CACHE_HOME/huggingface or ~/.cache/huggingface; none at all with
//                 HF_HUB_DISABLE_IMPLICIT_TOKEN
//     trust       SSL_CERT_FILE or REQUESTS_CA_BUNDLE, a file of certificates
//     attempts    AWS_MAX_ATTEMPTS, as for a bucket
//
// Threads: pure functions.
#pragma once

#include <string>

#include "store/aws/config.hpp"

namespace weightfs {

inline constexpr std::string_view kHubEndpoint = "https://huggingface.co";

struct HubSettings {
  std::string endpoint;   // "https://host[:port][/path]"
  std::string ca_bundle;  // empty: the system's
  unsigned attempts_max = 10;
};

/// Throws Error: invalid (HF_ENDPOINT is no URL; AWS_MAX_ATTEMPTS is no number).
HubSettings find_hub_settings(const Environment& environment);

/// Never logged or shown.
struct HubToken {
  std::string token;   // empty: there is none
  std::string source;  // for messages: "HF_TOKEN", or the path of a file; why there is none
};

HubToken find_hub_token(const Environment& environment);

}  // namespace weightfs
