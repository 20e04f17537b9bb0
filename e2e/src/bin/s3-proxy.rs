//! `s3-proxy LISTEN UPSTREAM SEED`: S3 Standard's latencies in front of a local store; see `e2e::s3_proxy`.

use anyhow::{Context, bail};
use e2e::s3_proxy::{Profile, serve};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [listen, upstream, seed] = args.as_slice() else {
        bail!("usage: s3-proxy LISTEN UPSTREAM SEED")
    };
    serve(
        listen,
        upstream,
        Profile::S3_STANDARD,
        seed.parse().context("SEED is a number")?,
    )
    .await
}
