//! The chart as its users have it: rendered and installed by `helm`.
#![allow(dead_code, reason = "not every test file uses all of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use e2e::apiserver::ApiServer;
use e2e::clients::tool;
use serde_json::Value;

/// Folder of the chart.
pub fn chart() -> PathBuf {
    e2e::root().join("charts/diskless-operator")
}

/// `helm`, without what the user may have configured.
pub fn helm(home: &Path) -> Command {
    let mut command = Command::new(tool("helm").expect("helm"));
    command.env("HOME", home).env_remove("KUBECONFIG");
    command.current_dir(home);
    command
}

/// `helm` speaking to `server`.
pub fn helm_at(server: &ApiServer) -> Command {
    let kubeconfig = server.kubeconfig();
    let mut command = helm(kubeconfig.parent().expect("a folder"));
    command.env("KUBECONFIG", kubeconfig);
    command
}

/// Objects of a release as YAML.
pub fn render(release: &str, namespace: &str, values: &Value) -> Result<String, String> {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).expect("values");
    let mut command = helm(folder.path());
    command.args([
        "template",
        release,
        "--namespace",
        namespace,
        "--kube-version",
        "1.35.0",
    ]);
    let output = command
        .arg("--values")
        .arg(&file)
        .arg(chart())
        .output()
        .expect("helm");
    text(&output)
}

/// Creates the objects of `yaml`.
pub fn kubectl_apply(server: &ApiServer, yaml: &str) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&file, yaml).expect("yaml");
    run(server.kubectl().args(["apply", "-f"]).arg(file.path()));
}

/// Standard output of a command that ended well, the standard error of one that did not.
pub fn text(output: &Output) -> Result<String, String> {
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Runs a command that has to end well.
pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("started");
    text(&output).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
