# preload.sh ROOT: puts the images of ROOT/images.tar into the image store of ROOT's own containerd. Runs in mount and
# process namespaces of its own, which take the mounts and the daemon with them when it ends.
set -eu
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/run"
mount --rbind /dev "$1/dev"
chroot "$1" sh -eu -c '
    containerd --log-level warn &
    until ctr version >/dev/null 2>&1; do sleep 0.1; done
    ctr --namespace=k8s.io images import --all-platforms --no-unpack --digests /images.tar
    ctr --namespace=k8s.io images ls -q
    kill $!
    wait $! || true'
