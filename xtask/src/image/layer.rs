//! File trees as container image layers, and archives of images as `docker save` writes them: without a container
//! engine, and the same bytes from the same files (no times, sorted names).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use flate2::{Compression, write::GzEncoder};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::run;

/// The files of one layer, by absolute path. Parent folders are made as needed.
#[derive(Default)]
pub struct Layer {
    entries: BTreeMap<PathBuf, Entry>,
}

struct Entry {
    mode: u32,
    /// User and group id.
    owner: (u64, u64),
    content: Content,
}

enum Content {
    Folder,
    Bytes(Vec<u8>),
    File(PathBuf),
    Link(PathBuf),
}

impl Layer {
    fn put(&mut self, path: impl Into<PathBuf>, mode: u32, content: Content) {
        self.entries.insert(
            path.into(),
            Entry {
                mode,
                owner: (0, 0),
                content,
            },
        );
    }

    pub fn folder(&mut self, path: impl Into<PathBuf>, mode: u32, owner: (u64, u64)) {
        self.entries.insert(
            path.into(),
            Entry {
                mode,
                owner,
                content: Content::Folder,
            },
        );
    }

    pub fn text(&mut self, path: impl Into<PathBuf>, text: &str) {
        self.put(path, 0o644, Content::Bytes(text.as_bytes().to_vec()));
    }

    /// A symbolic link at `path`.
    pub fn link(&mut self, path: impl Into<PathBuf>, target: impl Into<PathBuf>) {
        self.put(path, 0o777, Content::Link(target.into()));
    }

    /// A file of this machine, executable if it is so here.
    pub fn file(&mut self, source: &Path, path: impl Into<PathBuf>) -> anyhow::Result<()> {
        let source = source
            .canonicalize()
            .with_context(|| format!("cannot find {}", source.display()))?;
        let mode = if source.metadata()?.permissions().mode() & 0o111 == 0 {
            0o644
        } else {
            0o755
        };
        self.put(path, mode, Content::File(source));
        Ok(())
    }

    /// A program with the libraries that it is linked to, each at the path where its loader looks for it.
    pub fn program(&mut self, source: &Path, path: impl Into<PathBuf>) -> anyhow::Result<()> {
        self.libraries(Path::new("/"), &[source])?;
        self.file(source, path)
    }

    /// The libraries that files below `root` are linked to, as `root`'s own loader finds them.
    pub fn libraries(&mut self, root: &Path, files: &[&Path]) -> anyhow::Result<()> {
        let mut ldd = if root == Path::new("/") {
            Command::new("ldd")
        } else {
            let mut chroot = Command::new("chroot");
            chroot.arg(root).arg("ldd");
            chroot
        };
        // Fails for a static program, with nothing on its standard output.
        let out = ldd.args(files).output().context("cannot start ldd")?;
        for line in String::from_utf8_lossy(&out.stdout).lines() {
            if line.contains("=> not found") {
                bail!("a library is missing: {}", line.trim());
            }
            // `libc.so.6 => /lib/…/libc.so.6 (0x…)` or, for the loader, `/lib64/ld-linux-x86-64.so.2 (0x…)`.
            let library = line
                .rsplit("=> ")
                .next()
                .and_then(|rest| rest.split_whitespace().next());
            if let Some(library) = library.filter(|l| l.starts_with('/') && line.contains("(0x")) {
                self.file(&root.join(library.trim_start_matches('/')), library)?;
            }
        }
        Ok(())
    }

    /// Everything below `source`, with owners and modes, as the root of this layer. What is not a file, a folder or
    /// a link (devices, sockets) is left out, as are the contents of the folders `empty` (absolute in the layer).
    pub fn tree(&mut self, source: &Path, empty: &[&str]) -> anyhow::Result<()> {
        let mut folders = vec![(source.to_owned(), PathBuf::from("/"))];
        while let Some((folder, inside)) = folders.pop() {
            for child in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
                let child = child?;
                let path = inside.join(child.file_name());
                let metadata = child.metadata()?;
                let content = if metadata.is_dir() {
                    if !empty.iter().any(|e| path == Path::new(e)) {
                        folders.push((child.path(), path.clone()));
                    }
                    Content::Folder
                } else if metadata.is_symlink() {
                    Content::Link(fs::read_link(child.path())?)
                } else if metadata.is_file() {
                    Content::File(child.path())
                } else {
                    continue;
                };
                let owner = (u64::from(metadata.uid()), u64::from(metadata.gid()));
                self.entries.insert(
                    path,
                    Entry {
                        mode: metadata.mode() & 0o7777,
                        owner,
                        content,
                    },
                );
            }
        }
        Ok(())
    }

    /// Compresses the layer into an unnamed temporary file.
    pub fn seal(mut self, level: u32) -> anyhow::Result<SealedLayer> {
        let parents: Vec<PathBuf> = self
            .entries
            .keys()
            .flat_map(|p| p.ancestors().skip(1).map(Path::to_owned))
            .filter(|p| p.parent().is_some())
            .collect();
        for parent in parents {
            self.entries.entry(parent).or_insert(Entry {
                mode: 0o755,
                owner: (0, 0),
                content: Content::Folder,
            });
        }
        let file = tempfile::tempfile()?;
        let compressed = GzEncoder::new(io::BufWriter::new(file), Compression::new(level));
        let mut tar = tar::Builder::new(Hashed {
            inner: compressed,
            hash: Sha256::new(),
        });
        for (path, entry) in &self.entries {
            let name = path
                .strip_prefix("/")
                .with_context(|| format!("{} is not absolute", path.display()))?;
            let mut header = tar::Header::new_gnu();
            header.set_mode(entry.mode);
            header.set_uid(entry.owner.0);
            header.set_gid(entry.owner.1);
            header.set_mtime(0);
            header.set_size(0);
            match &entry.content {
                Content::Folder => {
                    header.set_entry_type(tar::EntryType::Directory);
                    tar.append_data(&mut header, name, io::empty())?;
                }
                Content::Bytes(bytes) => {
                    header.set_size(bytes.len() as u64);
                    tar.append_data(&mut header, name, bytes.as_slice())?;
                }
                Content::File(source) => {
                    let file =
                        File::open(source).with_context(|| format!("cannot read {}", source.display()))?;
                    header.set_size(file.metadata()?.len());
                    tar.append_data(&mut header, name, file)?;
                }
                Content::Link(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    tar.append_link(&mut header, name, target)?;
                }
            }
        }
        let Hashed { inner, hash } = tar.into_inner()?;
        let file = inner
            .finish()?
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        Ok(SealedLayer {
            diff_id: hex(&hash.finalize()),
            file,
        })
    }
}

/// A finished layer.
pub struct SealedLayer {
    /// SHA-256 of the layer before compression: its identity in an image's configuration.
    diff_id: String,
    file: File,
}

/// An image of one layer.
pub struct Image<'a> {
    pub name: String,
    pub layer: &'a SealedLayer,
    pub entrypoint: Vec<String>,
    /// User and group id, or empty for root.
    pub user: &'a str,
    pub env: &'a [&'a str],
    pub stop_signal: Option<&'a str>,
}

/// Writes images to one archive that `docker load`, `ctr images import` and `kind load image-archive` take. Images
/// may share a layer, which is then stored once.
pub fn save(archive: &Path, images: &[Image]) -> anyhow::Result<()> {
    let file = File::create(archive).with_context(|| format!("cannot write {}", archive.display()))?;
    let mut tar = tar::Builder::new(io::BufWriter::new(file));
    let mut manifest = Vec::new();
    let mut written: Vec<&str> = Vec::new();
    for image in images {
        let layer = format!("{}/layer.tar", image.layer.diff_id);
        if !written.contains(&image.layer.diff_id.as_str()) {
            written.push(&image.layer.diff_id);
            let mut file = &image.layer.file;
            let size = file.metadata()?.len();
            file.rewind()?;
            append(&mut tar, &layer, size, file)?;
        }
        let mut env = vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];
        env.extend(image.env);
        let mut settings = json!({
            "Entrypoint": image.entrypoint,
            "Env": env,
            "User": image.user,
        });
        if let (Some(signal), Some(object)) = (image.stop_signal, settings.as_object_mut()) {
            object.insert("StopSignal".into(), signal.into());
        }
        let config = serde_json::to_vec(&json!({
            "architecture": match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other },
            "os": "linux",
            "config": settings,
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", image.layer.diff_id)] },
            // Tells apart images that share layer and settings: an image's id is the hash of this text.
            "comment": image.name,
        }))?;
        let config_name = format!("{}.json", hex(&Sha256::digest(&config)));
        append(&mut tar, &config_name, config.len() as u64, config.as_slice())?;
        manifest.push(json!({ "Config": config_name, "RepoTags": [image.name], "Layers": [layer] }));
    }
    let manifest = serde_json::to_vec(&manifest)?;
    append(
        &mut tar,
        "manifest.json",
        manifest.len() as u64,
        manifest.as_slice(),
    )?;
    tar.into_inner()?.flush()?;
    Ok(())
}

fn append(tar: &mut tar::Builder<impl Write>, name: &str, size: u64, data: impl io::Read) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_size(size);
    tar.append_data(&mut header, name, data)
}

/// The image names in an archive.
pub fn names(archive: &Path) -> anyhow::Result<Vec<String>> {
    let manifest = run::output(Command::new("tar").arg("-xOf").arg(archive).arg("manifest.json"))?;
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Entry {
        repo_tags: Vec<String>,
    }
    let entries: Vec<Entry> = serde_json::from_str(&manifest)
        .with_context(|| format!("{} is no image archive", archive.display()))?;
    Ok(entries.into_iter().flat_map(|e| e.repo_tags).collect())
}

/// Passes bytes on and hashes them.
struct Hashed<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hash.update(bytes.get(..n).unwrap_or_default());
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer() -> SealedLayer {
        let mut layer = Layer::default();
        layer.text("/etc/passwd", "root:x:0:0::/:\n");
        layer.folder("/data", 0o750, (7, 8));
        layer.link("/bin/sh", "busybox");
        layer.seal(3).unwrap()
    }

    #[test]
    fn the_same_files_give_the_same_layer() {
        assert_eq!(layer().diff_id, layer().diff_id);
    }

    #[test]
    fn a_shared_layer_is_stored_once() {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("i.tar");
        let layer = layer();
        let image = |name: &str| Image {
            name: name.into(),
            layer: &layer,
            entrypoint: vec!["/x".into()],
            user: "",
            env: &[],
            stop_signal: None,
        };
        save(&archive, &[image("a:1"), image("b:1")]).unwrap();
        let mut tar = tar::Archive::new(File::open(&archive).unwrap());
        let paths: Vec<String> = tar
            .entries()
            .unwrap()
            .map(|e| e.unwrap().path().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(paths.iter().filter(|p| p.ends_with("/layer.tar")).count(), 1);
        assert_eq!(paths.iter().filter(|p| p.ends_with(".json")).count(), 3);
        assert_eq!(names(&archive).unwrap(), ["a:1", "b:1"]);
    }

    #[test]
    fn layers_keep_owners_modes_and_links() {
        let layer = layer();
        let mut file = &layer.file;
        file.rewind().unwrap();
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let seen: Vec<_> = tar
            .entries()
            .unwrap()
            .map(|e| {
                let e = e.unwrap();
                let h = e.header();
                (
                    e.path().unwrap().to_string_lossy().into_owned(),
                    h.mode().unwrap(),
                    h.uid().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("bin".to_owned(), 0o755, 0),
                ("bin/sh".to_owned(), 0o777, 0),
                ("data".to_owned(), 0o750, 7),
                ("etc".to_owned(), 0o755, 0),
                ("etc/passwd".to_owned(), 0o644, 0)
            ]
        );
    }
}
