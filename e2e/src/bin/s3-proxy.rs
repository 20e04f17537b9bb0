//! `s3-proxy LISTEN UPSTREAM SEED [PROFILE [ADMIN]]`: an unreliable S3 in front of a local store; see `e2e::s3_proxy`.

use anyhow::{Context, bail};
use e2e::s3_proxy::{Profile, serve};

const USAGE: &str = "usage: s3-proxy LISTEN UPSTREAM SEED [PROFILE [ADMIN]]\n\
     PROFILE: s3-standard (default) or none; ADMIN: address of GET /counts, PUT /rules";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [listen, upstream, seed, more @ ..] = args.as_slice() else {
        bail!(USAGE)
    };
    let (profile, admin) = match more {
        [] => ("s3-standard", None),
        [profile] => (profile.as_str(), None),
        [profile, admin] => (profile.as_str(), Some(admin.as_str())),
        _ => bail!(USAGE),
    };
    let profile = Profile::named(profile).with_context(|| format!("profile {profile} is unknown"))?;
    serve(
        listen,
        upstream,
        admin,
        profile,
        seed.parse().context("SEED is a number")?,
    )
    .await
}
