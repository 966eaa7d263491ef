# The .deb (scripts/deb.sh): what is installed besides the program, and its package.
include(GNUInstallDirs)
set(package ${PROJECT_SOURCE_DIR}/scripts/deb)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/weightfs RENAME copyright)
# What the program itself writes.  The pages are packed as Debian wants them, without a time.
install(CODE "
  set(root \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  set(program \"$<TARGET_FILE:weightfs>\")
  # A file that an administrator has changed is not replaced by `cmake --install`, and whoever installs
  # to a prefix of their own, and not into /etc, has none.
  set(no_etc 0)
  if(\"\$ENV{DESTDIR}\" STREQUAL \"\")
    execute_process(COMMAND test -w /etc RESULT_VARIABLE no_etc)
  endif()
  if(no_etc EQUAL 0 AND NOT EXISTS \"\$ENV{DESTDIR}/etc/weightfs/weightfs.toml\")
    file(INSTALL \"${package}/weightfs.toml\" DESTINATION /etc/weightfs)
  endif()
  foreach(unit weightfs@.service weightfs-sync@.service)
    file(READ \"${PROJECT_SOURCE_DIR}/scripts/systemd/\${unit}\" text)
    string(REPLACE /usr/bin/ \"\${CMAKE_INSTALL_PREFIX}/bin/\" text \"\${text}\")
    file(WRITE \"\${root}/lib/systemd/system/\${unit}\" \"\${text}\")
  endforeach()
  function(write_completion shell file)
    execute_process(COMMAND \"\${program}\" completion \${shell} OUTPUT_VARIABLE text
                    COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE \"\${root}/share/\${file}\" \"\${text}\")
  endfunction()
  write_completion(bash bash-completion/completions/weightfs)
  write_completion(zsh zsh/vendor-completions/_weightfs)
  write_completion(fish fish/vendor_completions.d/weightfs.fish)
  file(MAKE_DIRECTORY \"\${root}/share/man/man1\" \"\${root}/share/man/man8\" \"\${root}/sbin\")
  execute_process(COMMAND \"\${program}\" help --man \"\${root}/share/man/man1\" --quiet OUTPUT_QUIET
                  COMMAND_ERROR_IS_FATAL ANY)
  file(RENAME \"\${root}/share/man/man1/mount.weightfs.8\" \"\${root}/share/man/man8/mount.weightfs.8\")
  file(GLOB pages \"\${root}/share/man/man1/weightfs*.1\" \"\${root}/share/man/man8/mount.weightfs.8\")
  execute_process(COMMAND gzip -9nf \${pages} COMMAND_ERROR_IS_FATAL ANY)
  file(CREATE_LINK ../bin/weightfs \"\${root}/sbin/mount.weightfs\" SYMBOLIC)
")

set(CPACK_GENERATOR DEB)
set(CPACK_SET_DESTDIR ON)  # for what goes to /etc
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME weightfs)
set(CPACK_PACKAGE_CONTACT "weightfs <weightfs@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "file system that follows the checkpoints of a training run")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "A path that always holds a complete, immutable checkpoint: a publisher uploads only what changed
 between two versions, and each host rebuilds the files from the changes.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "mount, passwd")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "fuse3, ca-certificates")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    ${package}/conffiles ${package}/postinst ${package}/prerm ${package}/postrm)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
include(CPack)
