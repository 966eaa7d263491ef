#include "store/staging/types.hpp"

namespace weightfs {

PosixError::PosixError(int number, const std::string& what)
    : Error(code_of_errno(number), describe_errno(number, what)), number_(number) {}

}  // namespace weightfs
