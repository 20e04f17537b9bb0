//! kind's node image: the stock one where the container engine can pull it, otherwise one made here from Debian
//! packages, kind's own files (out of its Go module) and a build of Kubernetes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::docker::Docker;
use crate::image::layer::{self, Image, Layer, SealedLayer};
use crate::run;
use crate::tools::{self, Inputs, Tool};

/// The stock image of the Kubernetes release line that we test with.
const STOCK: &str = "kindest/node:v1.35.0";

/// Debian packages of a node.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,containerd,runc,containernetworking-plugins,conntrack,iptables,\
    nftables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2,e2fsprogs,bash,ca-certificates,jq,procps,curl,busybox-static";

/// What a node never runs.
const UNUSED: [&str; 16] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/zoneinfo",
    "usr/share/perl5",
    "var/lib/apt",
    "usr/bin/containerd-stress",
    "usr/lib/cni/dhcp",
    "usr/lib/cni/firewall",
    "usr/lib/cni/vrf",
    "usr/lib/cni/sbr",
    "usr/lib/cni/vlan",
    "usr/lib/cni/macvlan",
    "usr/lib/cni/ipvlan",
    "usr/lib/cni/host-device",
];

/// Images of the node that are not Kubernetes' own.
const PODNET: &str = "local/podnet:1";
const PROVISIONER: &str = "local/local-path-provisioner:1";
const PROVISIONER_HELPER: &str = "local/local-path-helper:1";

/// Name of a node image that the engine has, pulled or made first where needed. `DISKLESS_NODE_IMAGE` names
/// another one.
pub fn ready(docker: &Docker) -> anyhow::Result<String> {
    let wanted = std::env::var("DISKLESS_NODE_IMAGE").ok();
    let stock = wanted.as_deref().unwrap_or(STOCK);
    if docker.has(stock) {
        return Ok(stock.to_owned());
    }
    // Our own daemon runs where there is no other: in a closed environment, which a pull would only delay.
    if wanted.is_some() || !docker.is_own() {
        run::step(format!("pulling {stock}"));
        match run::quiet(Command::new("timeout").args(["600", "docker", "pull", "-q", stock])) {
            Ok(()) => return Ok(stock.to_owned()),
            Err(error) if wanted.is_some() => return Err(error),
            Err(_) => run::step("it cannot be pulled: a node image is made here"),
        }
    }
    made_here(docker)
}

/// Folder of the sources of this image.
fn sources() -> PathBuf {
    run::root().join("e2e/kind")
}

fn made_here(docker: &Docker) -> anyhow::Result<String> {
    if !tools::is_root()? {
        bail!("making a node image needs root; or set DISKLESS_NODE_IMAGE to an image that can be pulled");
    }
    tools::need_packages(&["mmdebstrap", "gcc", "jq"])?;
    let programs = [
        Tool::Hyperkube,
        Tool::Kind,
        Tool::Crictl,
        Tool::LocalPathProvisioner,
    ];
    let mut inputs = Inputs::new()
        .text(include_str!("node_image.rs"))
        .text(include_str!("../image/layer.rs"));
    for tool in programs {
        inputs = inputs.text(&tools::path(tool)?.to_string_lossy());
    }
    for folder in ["node", "manifests", "pause"] {
        inputs = inputs.folder(&sources().join(folder))?;
    }
    let debian = debian()?;
    let key = inputs.text(&debian.to_string_lossy()).key();
    let version = kubernetes_version()?;
    let name = format!("diskless-node:{version}-{key}");
    let entry = tools::cached("node-image", &key, |entry| {
        let work = tempfile::tempdir_in(entry)?;
        Build {
            work: work.path(),
            root: work.path().join("rootfs"),
            debian: &debian,
        }
        .run(&version, &name, &entry.join("node.tar"))
    })?;
    docker.load(&name, &entry.join("node.tar"))?;
    docker.remove_older(&name)?;
    Ok(name)
}

/// Version of the Kubernetes built here, such as `v1.35.4`.
fn kubernetes_version() -> anyhow::Result<String> {
    run::output(Command::new(tools::path(Tool::Hyperkube)?).args(["kubeadm", "version", "-o", "short"]))
}

/// A file system of Debian packages, from the package sources of this machine.
fn debian() -> anyhow::Result<PathBuf> {
    let release = fs::read_to_string("/etc/os-release")?;
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .filter(|_| release.lines().any(|line| line == "ID=debian"))
        .context(
            "a node image can only be made on Debian; set DISKLESS_NODE_IMAGE to one that can be pulled",
        )?;
    let key = Inputs::new().text(PACKAGES).text(codename).key();
    let entry = tools::cached("node-debian", &key, |entry| {
        run::step("collecting the node's Debian packages (once)");
        let mut strap = Command::new("mmdebstrap");
        strap.args(["--mode=root", "--variant=minbase", "--format=directory"]);
        strap.arg(format!("--include={PACKAGES}"));
        strap.args([
            "--aptopt=APT::Install-Recommends \"false\"",
            "--aptopt=Acquire::Languages \"none\"",
        ]);
        for path in ["doc", "man", "locale"] {
            strap.arg(format!("--dpkgopt=path-exclude=/usr/share/{path}/*"));
        }
        strap.arg(
            "--customize-hook=rm -rf \"$1\"/etc/apt/sources.list* \"$1\"/var/lib/apt/lists \"$1\"/var/cache/apt \
             \"$1\"/var/cache/debconf",
        );
        strap.arg(codename).arg(entry.join("rootfs"));
        for list in ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"] {
            if fs::metadata(list).is_ok_and(|m| m.len() > 0) {
                strap.arg(list);
            }
        }
        run::logged(&mut strap, &tools::cache()?.join("node-debian/build.log"))
    })?;
    Ok(entry.join("rootfs"))
}

/// One making of the image.
struct Build<'a> {
    /// Scratch folder.
    work: &'a Path,
    /// The node's file system, within `work`.
    root: PathBuf,
    debian: &'a Path,
}

impl Build<'_> {
    fn run(&self, version: &str, name: &str, archive: &Path) -> anyhow::Result<()> {
        run::step("making a node image: files");
        self.files(version)?;
        run::step("making a node image: images of Kubernetes");
        self.images(version)?;
        run::step("making a node image: archive");
        let mut node = Layer::default();
        node.tree(&self.root, &["/dev", "/proc", "/sys", "/run", "/tmp"])?;
        let node = node.seal(1)?;
        let image = Image {
            name: name.to_owned(),
            layer: &node,
            entrypoint: vec!["/usr/local/bin/entrypoint".into(), "/sbin/init".into()],
            user: "",
            env: &["container=docker"],
            stop_signal: Some("SIGRTMIN+3"),
        };
        layer::save(archive, &[image])
    }

    fn files(&self, version: &str) -> anyhow::Result<()> {
        let root = &self.root;
        run::quiet(
            Command::new("cp")
                .args(["-a", "--reflink=auto"])
                .arg(self.debian)
                .arg(root),
        )?;
        for path in UNUSED {
            let path = root.join(path);
            if path.is_dir() {
                fs::remove_dir_all(path)?
            } else {
                drop(fs::remove_file(path))
            }
        }
        let kind = kind_source()?;
        // Files of the module cache are read-only; the programs among them lost their execute bit in the module.
        let base = kind.join("images/base/files");
        for folder in ["etc", "kind", "usr"] {
            run::quiet(
                Command::new("cp")
                    .args(["-r", "--no-preserve=mode"])
                    .arg(base.join(folder))
                    .arg(root),
            )?;
        }
        for folder in ["usr/local/bin", "kind/bin"] {
            for program in fs::read_dir(root.join(folder))? {
                fs::set_permissions(program?.path(), fs::Permissions::from_mode(0o755))?;
            }
        }
        fs::copy(tools::path(Tool::Hyperkube)?, root.join("usr/bin/hyperkube"))?;
        for part in ["kubelet", "kubeadm", "kubectl"] {
            symlink("hyperkube", root.join("usr/bin").join(part))?;
        }
        fs::copy(tools::path(Tool::Crictl)?, root.join("usr/local/bin/crictl"))?;
        for program in ["containerd", "ctr"] {
            symlink(
                Path::new("/usr/bin").join(program),
                root.join("usr/local/bin").join(program),
            )?;
        }
        for folder in [
            "opt/cni",
            "kind/manifests",
            "etc/kubernetes/manifests",
            "etc/cni/net.d",
        ] {
            fs::create_dir_all(root.join(folder))?;
        }
        symlink("/usr/lib/cni", root.join("opt/cni/bin"))?;
        fs::write(root.join("kind/version"), version)?;
        fs::copy(
            sources().join("manifests/default-cni.yaml"),
            root.join("kind/manifests/default-cni.yaml"),
        )?;
        fs::write(
            root.join("kind/manifests/default-storage.yaml"),
            storage_manifest(&kind)?,
        )?;

        let names = kubernetes_images(version)?;
        let pause = image_of(&names, "pause")?;
        edit(&root.join("etc/containerd/config.toml"), |text| {
            let mut lines = Vec::new();
            let mut skipping = false;
            for line in text.lines() {
                // The snapshotter of a rootless node, which is not in this image.
                skipping = line.starts_with("[proxy_plugins") || (skipping && !line.starts_with('['));
                if skipping {
                    continue;
                }
                lines.push(match line.trim_start() {
                    l if l.starts_with("sandbox_image =") => format!("  sandbox_image = \"{pause}\""),
                    // The root of a container may lack CAP_SYS_RESOURCE.
                    l if l.starts_with("restrict_oom_score_adj =") => {
                        "  restrict_oom_score_adj = true".to_owned()
                    }
                    _ => line.to_owned(),
                });
            }
            lines.join("\n") + "\n"
        })?;
        // Kubernetes 1.35 refuses version 1 of cgroups unless told.
        edit(&root.join("etc/default/kubelet"), |text| {
            text.lines()
                .map(|line| {
                    if line.starts_with("KUBELET_EXTRA_ARGS=") {
                        format!("{line} --fail-cgroupv1=false\n")
                    } else {
                        format!("{line}\n")
                    }
                })
                .collect()
        })?;
        let script = fs::read_to_string(sources().join("node/configure.sh"))?;
        run::logged(
            Command::new("chroot").arg(root).args(["sh", "-c", &script]),
            &self.work.join("configure.log"),
        )
    }

    /// Makes the images that a new node needs and puts them into its image store.
    fn images(&self, version: &str) -> anyhow::Result<()> {
        let names = kubernetes_images(version)?;
        let pause_program = self.work.join("pause");
        let mut gcc = Command::new("gcc");
        gcc.args(["-Os", "-static", "-s", "-o"])
            .arg(&pause_program)
            .arg(sources().join("pause/pause.c"));
        run::quiet(&mut gcc)?;

        let mut pause = Layer::default();
        pause.file(&pause_program, "/pause")?;
        let pause = pause.seal(3)?;
        let kubernetes = self.kubernetes_layer()?;
        let mut provisioner = Layer::default();
        provisioner.file(
            &tools::path(Tool::LocalPathProvisioner)?,
            "/usr/local/bin/local-path-provisioner",
        )?;
        provisioner.folder("/tmp", 0o1777, (0, 0));
        let provisioner = provisioner.seal(3)?;
        let mut helper = Layer::default();
        helper.file(&self.root.join("bin/busybox"), "/bin/busybox")?;
        for applet in ["sh", "mkdir", "rm", "cat", "ls"] {
            helper.link(Path::new("/bin").join(applet), "busybox");
        }
        let helper = helper.seal(3)?;

        let mut images = vec![
            plain(image_of(&names, "pause")?, &pause, &["/pause"]),
            plain(PODNET, &kubernetes, &["/usr/local/bin/podnet"]),
            plain(
                PROVISIONER,
                &provisioner,
                &["/usr/local/bin/local-path-provisioner"],
            ),
            plain(PROVISIONER_HELPER, &helper, &[]),
        ];
        for part in [
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-proxy",
            "etcd",
            "coredns",
        ] {
            images.push(plain(
                image_of(&names, part)?,
                &kubernetes,
                &[&format!("/usr/local/bin/{part}")],
            ));
        }
        layer::save(&self.root.join("images.tar"), &images)?;
        let script = fs::read_to_string(sources().join("node/preload.sh"))?;
        let mut preload = Command::new("unshare");
        preload.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
        ]);
        preload.args(["sh", "-c", &script, "preload"]).arg(&self.root);
        run::logged(&mut preload, &self.work.join("preload.log"))?;
        fs::remove_file(self.root.join("images.tar"))?;
        Ok(())
    }

    /// All parts of Kubernetes, with the programs that kube-proxy and podnet start.
    fn kubernetes_layer(&self) -> anyhow::Result<SealedLayer> {
        let mut layer = Layer::default();
        layer.folder("/tmp", 0o1777, (0, 0));
        layer.folder("/run", 0o755, (0, 0));
        layer.text("/etc/passwd", "root:x:0:0::/:\nnonroot:x:65532:65532::/:\n");
        layer.file(&tools::path(Tool::Hyperkube)?, "/usr/local/bin/hyperkube")?;
        for part in [
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-proxy",
            "etcd",
            "coredns",
            "podnet",
            "kubectl",
        ] {
            layer.link(Path::new("/usr/local/bin").join(part), "hyperkube");
        }
        let mut linked: Vec<PathBuf> = vec!["/usr/sbin/xtables-nft-multi".into(), "/usr/sbin/nft".into()];
        for program in linked.clone() {
            layer.file(&self.inside(&program), program)?;
        }
        for command in ["iptables", "ip6tables"] {
            for operation in ["", "-save", "-restore"] {
                layer.link(format!("/usr/sbin/{command}{operation}"), "xtables-nft-multi");
            }
        }
        let plugins = PathBuf::from(format!("/usr/lib/{}-linux-gnu/xtables", std::env::consts::ARCH));
        for plugin in fs::read_dir(self.inside(&plugins))? {
            let path = plugins.join(plugin?.file_name());
            layer.file(&self.inside(&path), &path)?;
            // The plug-ins need libraries that the programs do not: without libm, a Service of two endpoints fails.
            linked.push(path);
        }
        let linked: Vec<&Path> = linked.iter().map(PathBuf::as_path).collect();
        layer.libraries(&self.root, &linked)?;
        layer.seal(3)
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

fn plain<'a>(name: &str, layer: &'a SealedLayer, entrypoint: &[&str]) -> Image<'a> {
    let entrypoint = entrypoint.iter().map(|&word| word.to_owned()).collect();
    Image {
        name: name.to_owned(),
        layer,
        entrypoint,
        user: "",
        env: &[],
        stop_signal: None,
    }
}

/// Source folder of the kind module that was built.
fn kind_source() -> anyhow::Result<PathBuf> {
    let version = run::output(Command::new(tools::path(Tool::Kind)?).arg("version"))?;
    let version = version
        .split_whitespace()
        .nth(1)
        .with_context(|| format!("strange version of kind: {version}"))?;
    let module = format!("sigs.k8s.io/kind@{version}");
    let json = run::output(
        Command::new("go")
            .args(["mod", "download", "-json", &module])
            .current_dir("/"),
    )?;
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Download {
        dir: PathBuf,
    }
    let Download { dir } = serde_json::from_str(&json)?;
    Ok(dir)
}

/// kind's manifest of the storage class `standard`: a constant of its source, into which it writes image names.
fn storage_manifest(kind: &Path) -> anyhow::Result<String> {
    let source = fs::read_to_string(kind.join("pkg/build/nodeimage/const_storage.go"))?;
    let manifest = source
        .split_once("const defaultStorageManifest = `")
        .and_then(|(_, rest)| rest.split_once("\n`"))
        .map(|(manifest, _)| manifest)
        .context("kind's source has no defaultStorageManifest")?;
    Ok(manifest
        .replace("` + storageProvisionerImage + `", PROVISIONER)
        .replace("` + storageHelperImage + `", PROVISIONER_HELPER))
}

/// The image names that kubeadm will ask for.
fn kubernetes_images(version: &str) -> anyhow::Result<String> {
    let mut list = Command::new(tools::path(Tool::Hyperkube)?);
    list.args([
        "kubeadm",
        "config",
        "images",
        "list",
        "--kubernetes-version",
        version,
    ]);
    run::output(&mut list)
}

fn image_of<'a>(names: &'a str, part: &str) -> anyhow::Result<&'a str> {
    let infix = format!("/{part}:");
    names
        .lines()
        .find(|name| name.contains(&infix))
        .with_context(|| format!("kubeadm names no image of {part}"))
}

fn edit(path: &Path, change: impl FnOnce(String) -> String) -> anyhow::Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    fs::write(path, change(text))?;
    Ok(())
}
