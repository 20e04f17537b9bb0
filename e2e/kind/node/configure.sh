# Runs inside the node's file system (chroot): what kind's own base image does with systemd, without a running one.
set -eu
rm -f /lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service \
    /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/* \
    /lib/systemd/system/local-fs.target.wants/* /lib/systemd/system/basic.target.wants/* \
    /lib/systemd/system/sockets.target.wants/*udev* /lib/systemd/system/sockets.target.wants/*initctl*
echo ReadKMsg=no >>/etc/systemd/journald.conf
systemctl enable kubelet.service containerd.service undo-mount-hacks.service
systemctl mask systemd-binfmt.service
ctr oci spec |
    jq '.hooks.createContainer[.hooks.createContainer | length] |= . + {path: "/kind/bin/mount-product-files.sh"} | del(.process.rlimits)' \
        >/etc/containerd/cri-base.json
