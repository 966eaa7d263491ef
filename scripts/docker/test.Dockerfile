# What scripts/test.sh needs, and a checkout to run it in.
#
#   docker build -f scripts/docker/test.Dockerfile -t weightfs-test .
#   docker run --rm --privileged -v "$PWD:/weightfs" weightfs-test [options of scripts/test.sh]
#
# --privileged: the tests mount FUSE, bind mounts and disks in files, and make network namespaces.  The build
# folders stay in the checkout, so a second run is quick.  Python packages and engines come from PyPI at the
# first run; PIP_INDEX_URL and PIP_FIND_LINKS are passed on with `-e`.
FROM debian:bookworm-slim
SHELL ["/bin/bash", "-c"]
COPY scripts/lib.sh /tmp/scripts/lib.sh
RUN source /tmp/scripts/lib.sh \
    && need_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}" "${FUZZ_PACKAGES[@]}" \
    && rm -rf /var/lib/apt/lists/* /tmp/scripts
# The checkout belongs to somebody else than root.
RUN git config --system --add safe.directory /weightfs
WORKDIR /weightfs
ENTRYPOINT ["scripts/test.sh"]
