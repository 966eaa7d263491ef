# The program and what it needs to run, 45 MB: no package manager, no Python, no compiler.
#
#   docker build -f scripts/docker/weightfs.Dockerfile -t weightfs .
#   docker run --rm weightfs doctor s3://BUCKET/PREFIX
#
# A mount that the host and other containers see: the folder above it must be shared (mount --make-rshared, which is
# what systemd does with /), and the store must lie on a disk of the host, where passthrough works.  That folder is
# the volume, and not the mount point: Docker begins no container with a volume whose daemon was killed.
#
#   mkdir -p /mnt/weightfs/w /var/lib/weightfs
#   docker run --rm --pid host --device /dev/fuse --cap-add SYS_ADMIN --cap-add SYS_PTRACE \
#     --security-opt apparmor=unconfined \
#     -v /mnt/weightfs:/mnt/weightfs:rshared -v /var/lib/weightfs:/var/lib/weightfs \
#     weightfs mount s3://BUCKET/PREFIX /mnt/weightfs/w --store /var/lib/weightfs/run --foreground
#
# SYS_ADMIN mounts, and hands files to the kernel for passthrough; --pid host and SYS_PTRACE show the daemon who
# reads which version.  `weightfs sync` needs none of these.  In Kubernetes: docs/engines/kubernetes.md.
#
# The size was measured without Docker: collect.sh in a root made by debootstrap, 44 MB in files, in which
# weightfs init, mount --writer, mount and wait were run by chroot.
FROM debian:bookworm-slim AS build
SHELL ["/bin/bash", "-c"]
COPY scripts/lib.sh /weightfs/scripts/lib.sh
RUN source /weightfs/scripts/lib.sh && need_packages "${BUILD_PACKAGES[@]}" busybox-static
COPY . /weightfs
RUN source /weightfs/scripts/lib.sh \
    && build /build weightfs -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIGHTFS_TESTS=OFF -DWEIGHTFS_BENCH=OFF \
    && cmake --install /build --prefix /installed --strip \
    && /weightfs/scripts/docker/collect.sh /installed/bin/weightfs /image \
    && chroot /image weightfs --version

# For `weightfs sync` alone: no root, nothing that is setuid, and one folder that it may write to.
#
#   docker build -f scripts/docker/weightfs.Dockerfile --target sync -t weightfs-sync .
#   docker run --rm --read-only --cap-drop ALL --security-opt no-new-privileges -v weights:/weights \
#     weightfs-sync sync s3://BUCKET/PREFIX /weights/run
#
# No stage of this file has been built by Docker here.
FROM build AS unprivileged
RUN rm /image/usr/bin/fusermount3 && mkdir /image/weights && chown 65532:65532 /image/weights

FROM scratch AS sync
COPY --from=unprivileged /image /
COPY --from=unprivileged --chown=65532:65532 /image/weights /weights
USER 65532:65532
VOLUME /weights
ENTRYPOINT ["weightfs"]

# The last stage is what is built without --target.
FROM scratch
COPY --from=build /image /
ENTRYPOINT ["weightfs"]
