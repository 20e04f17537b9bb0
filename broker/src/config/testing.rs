use std::path::Path;

use super::{Config, Role};

impl Config {
    /// Of a coordinator on a simulated host, beside others.
    pub(crate) fn coordinator(data_dir: &Path, host: &str, id: i32, secret_file: &Path) -> Config {
        let mut config = Config::dev(data_dir, 9092, Some("memory://"));
        config.alone = false;
        config.node.id = Some(id);
        config.node.roles = vec![Role::Coordinator];
        config.listeners = None;
        (config.internal.host, config.internal.port) = (host.to_owned(), 9190);
        config.internal.advertised_host = Some(host.to_owned());
        config.internal.secret_file = Some(secret_file.to_owned());
        config.admin.host = host.to_owned();
        config
    }
}
