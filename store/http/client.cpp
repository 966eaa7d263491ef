#include "store/http/client.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "store/base/ranked_mutex.hpp"
#include "store/http/system_certificates.hpp"
#include "store/http/transfer.hpp"

namespace weightfs {

namespace {

bool same_header_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

struct MultiCleanup {
  void operator()(CURLM* multi) const noexcept { curl_multi_cleanup(multi); }
};
using Multi = std::unique_ptr<CURLM, MultiCleanup>;

Multi make_multi(unsigned connections_max) {
  static std::once_flag once;
  std::call_once(once, [] {
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
      throw Error(ErrorCode::io, "libcurl cannot be set up");
    }
  });
  Multi multi(curl_multi_init());
  if (!multi) throw std::bad_alloc();
  // Includes idle connections: a new host evicts the least recently used one.
  curl_multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS, static_cast<long>(connections_max));
  curl_multi_setopt(multi.get(), CURLMOPT_MAX_TOTAL_CONNECTIONS,
                    static_cast<long>(connections_max));
  return multi;
}

/// This thread, and those that it starts, receive no signals.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

/// Starts a thread that receives no signals: those are for the main thread, and SIGPIPE is for
/// none.
std::jthread start_without_signals(std::function<void()> body) {
  const BlockedSignals blocked;
  return std::jthread(std::move(body));
}

}  // namespace

std::optional<std::string_view> HttpReply::find(std::string_view name) const noexcept {
  for (const HttpHeader& header : headers) {
    if (same_header_name(header.name, name)) return header.value;
  }
  return std::nullopt;
}

/// The thread that drives the transfers.  libcurl gets at most connections_max at a time. The rest
/// wait here, so that their time limits do not start before they have a connection.
class HttpClient::Loop {
 public:
  explicit Loop(HttpOptions options)
      : options_(std::move(options)),
        running_max_(std::max(1u, options_.connections_max)),
        multi_(make_multi(running_max_)) {
    running_.reserve(running_max_);  // the thread does not survive a lack of memory
    thread_ = start_without_signals([this] { run(); });
  }

  ~Loop() {
    ending_ = true;
    wake();
    thread_.join();
  }

  HttpReply send(const HttpRequest& request, const Context& context) {
    Job job(request, options_, sockets_, context.deadline);
    const std::string what = "waiting for " + job.transfer.name();
    context.check(what);
    {
      const std::stop_callback on_stop(context.stop, [&] {
        job.stopped = true;
        wake();
      });
      std::unique_lock lock(mutex_);
      waiting_.push_back(&job);
      wake();
      job.ended.wait(lock, [&] { return job.end != End::none; });
    }
    if (job.end == End::given_up) context.check(what);  // throws
    if (job.end == End::stalled) throw job.transfer.stall_error();
    return job.transfer.take_reply(job.code);
  }

 private:
  enum class End { none, done, given_up, stalled };

  struct Job {
    Job(const HttpRequest& request, const HttpOptions& options, HttpSockets& sockets,
        Clock::time_point until)
        : transfer(request, options, sockets), deadline(until) {
      curl_easy_setopt(transfer.easy(), CURLOPT_PRIVATE, this);
    }

    HttpTransfer transfer;
    const Clock::time_point deadline;
    std::atomic<bool> stopped{false};

    // Guarded by mutex_.
    End end = End::none;
    CURLcode code = CURLE_OK;
    std::condition_variable_any ended;
  };

  void wake() { curl_multi_wakeup(multi_.get()); }

  void run() {
    while (!ending_) {
      int running = 0;
      if (curl_multi_perform(multi_.get(), &running) != CURLM_OK) end_all(CURLE_OUT_OF_MEMORY);
      take_ended();
      const Clock::time_point now = Clock::now();
      Clock::time_point until = now + std::chrono::minutes(1);
      give_up_running(now, until);
      look_after_waiting(now, until);
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(until - now);
      curl_multi_poll(multi_.get(), nullptr, 0,
                      static_cast<int>(std::max<std::int64_t>(0, wait.count())), nullptr);
    }
  }

  /// Tells the sending thread.  The job does not exist after this.
  void end(Job& job, End how, CURLcode code = CURLE_OK) {
    curl_multi_remove_handle(multi_.get(), job.transfer.easy());
    const std::lock_guard lock(mutex_);
    tell(job, how, code);
  }

  static void tell(Job& job, End how, CURLcode code) {
    job.end = how;
    job.code = code;
    job.ended.notify_one();  // under the lock, because the job is on the other thread's stack
  }

  void take_ended() {
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;  // before the handle is removed
      Job* job = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &job);
      std::erase(running_, job);
      end(*job, End::done, code);
    }
  }

  void end_all(CURLcode code) {
    for (Job* job : running_) end(*job, End::done, code);
    running_.clear();
  }

  /// Ends transfers that are stopped, too late or stalled; lowers `until` to the time of the next
  /// check.
  void give_up_running(Clock::time_point now, Clock::time_point& until) {
    std::erase_if(running_, [&](Job* job) {
      const bool given_up = job->stopped || now >= job->deadline;
      if (given_up || job->transfer.stalled(now)) {
        end(*job, given_up ? End::given_up : End::stalled);
        return true;
      }
      until = std::min({until, job->deadline, job->transfer.look_again_at()});
      return false;
    });
  }

  void look_after_waiting(Clock::time_point now, Clock::time_point& until) {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](Job* job) {
      if (job->stopped || now >= job->deadline) {
        tell(*job, End::given_up, CURLE_OK);
      } else if (running_.size() < running_max_) {
        start(*job);
      } else {
        until = std::min(until, job->deadline);
        return false;
      }
      return true;
    });
  }

  void start(Job& job) {
    if (curl_multi_add_handle(multi_.get(), job.transfer.easy()) != CURLM_OK) {
      tell(job, End::done, CURLE_OUT_OF_MEMORY);
      return;
    }
    running_.push_back(&job);
  }

  const HttpOptions options_;
  const unsigned running_max_;
  HttpSockets sockets_;  // outlives multi_, which closes them
  Multi multi_;
  std::vector<Job*> running_;  // used by the thread only
  // Guards waiting_ and the results of jobs.
  RankedMutex mutex_{LockRank::leaf, "HttpClient::Loop::mutex_"};
  std::deque<Job*> waiting_;  // oldest first
  std::atomic<bool> ending_{false};
  std::jthread thread_;
};

HttpClient::HttpClient(HttpOptions options) {
  if (options.ca_bundle.empty()) options.ca_bundle = find_system_certificates();
  loop_ = std::make_unique<Loop>(std::move(options));
}
HttpClient::~HttpClient() = default;

HttpReply HttpClient::send(const HttpRequest& request, const Context& context) {
  check_lock_order(LockRank::bucket, "an HTTP request");
  return loop_->send(request, context);
}

}  // namespace weightfs
