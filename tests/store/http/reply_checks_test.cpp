// What the headers of replies say.  Those about ranges: tests/store/s3/s3_bucket_test.cpp.

#include "store/http/reply_checks.hpp"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

using std::chrono::system_clock;

TEST(HttpDate, IsReadWhateverTheLocale) {
  EXPECT_EQ(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT"), system_clock::from_time_t(784111777));
  for (const char* text : {"", "06 Nov 1994", "Sun, 06 Foo 1994 08:49:37 GMT", "tomorrow"}) {
    EXPECT_EQ(parse_http_date(text), std::nullopt) << text;
  }
}

// A time_point counts nanoseconds in 64 bits: its years end in 2262.
TEST(HttpDate, AYearBeyondTheClockIsNone) {
  EXPECT_TRUE(parse_http_date("Fri, 31 Dec 2200 23:59:59 GMT"));
  for (const char* text : {"Sat, 01 Jan 2300 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT",
                           "Sat, 01 Jan 1600 00:00:00 GMT", "Sat, 01 Jan -999 00:00:00 GMT"}) {
    EXPECT_EQ(parse_http_date(text), std::nullopt) << text;
    HttpReply reply;
    reply.headers = {{"Date", text}, {"Retry-After", text}};
    EXPECT_EQ(find_retry_after(reply), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace weightfs
