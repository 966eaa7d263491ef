# The program that the wheel contains: the same objects, linked with static libraries, so that it
# runs where neither Debian nor its packages are.  Nothing else changes; `cmake --build DIR --target
# weightfs_wheel` makes it.  The libraries are Debian's where it has static ones, and those that
# scripts/wheel.sh made of Debian's sources (WEIGHTFS_WHEEL).  libfuse3 stays a shared one (LGPL), in
# lib/ beside bin/; libgcc_s too, which every system with glibc has, as the static one needs glibc 2.35.
get_property(folders GLOBAL PROPERTY WEIGHTFS_FOLDERS)
list(TRANSFORM folders REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE archives)

add_executable(weightfs_wheel EXCLUDE_FROM_ALL fs/commands/main.cpp scripts/wheel/newer_calls.cpp)
add_dependencies(weightfs_wheel ${folders})
set_property(TARGET weightfs_wheel PROPERTY LINK_DEPENDS ${archives})
set(cuda "")
if(WEIGHTFS_HAS_CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(cuda CUDA::cudart_static)  # it opens the driver when it is used
endif()
target_link_libraries(weightfs_wheel PRIVATE weightfs_options
  -Wl,--start-group ${archives} -Wl,--end-group
  ${WEIGHTFS_WHEEL}/libweightfs_foreign.a ${WEIGHTFS_WHEEL}/libcurl.a
  -Wl,-Bstatic -lrocksdb -lsnappy -llz4 -lzstd -lbz2 -lgflags -lz -lpugixml -lxxhash -lssl -lcrypto
  -Wl,-Bdynamic ${cuda} -lfuse3 -ldl -lpthread)
target_link_options(weightfs_wheel PRIVATE -static-libstdc++ -s -Wl,--gc-sections -Wl,--as-needed)
set_target_properties(weightfs_wheel PROPERTIES
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../lib")
