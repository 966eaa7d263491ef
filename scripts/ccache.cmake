# Read before project() by CMakePresets.json: compiles through ccache, where it is installed.  Its
# folder-independent keys come from CCACHE_BASEDIR in the build presets (scripts/lib.sh sets the same).
find_program(WEIGHTFS_CCACHE ccache)
mark_as_advanced(WEIGHTFS_CCACHE)
if(WEIGHTFS_CCACHE)
  foreach(language CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER ccache CACHE STRING "Runs before the compiler")
  endforeach()
endif()
