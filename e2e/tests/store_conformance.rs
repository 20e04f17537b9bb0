//! The conformance suites of `blob` and `metalog` against a real S3 server.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "nothing here runs in the simulation"
)]

use std::sync::Arc;

use blob::{BlobError, Operation, ProbeError, conformance, probe};
use bytes::Bytes;
use e2e::s3::S3Server;
use e2e::s3_proxy::{Fault, Proxy, Rule, Verb};
use env::Env;
use metalog::{MetadataLog, ObjectLog, Options};

async fn open(server: &S3Server, url: &str) -> anyhow::Result<blob::Opened> {
    Ok(blob::open(url, Some(&server.credentials_dir()), Env::production()).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_conforms_and_passes_the_probe() -> anyhow::Result<()> {
    let server = S3Server::start()?;
    let env = Env::production();
    let mut counted = 0;
    for prefix in ["", "deep/prefix"] {
        let opened = open(&server, &server.url(prefix)).await?;
        probe(&*opened.store, &env).await?;
        conformance::run(&*opened.store, &env)
            .await
            .map_err(anyhow::Error::msg)?;
        assert_eq!(
            opened.store.list("", None, 10).await?,
            vec![],
            "nothing is left behind"
        );
        counted += opened
            .metrics
            .snapshot()
            .iter()
            .filter(|o| o.operation == Operation::List)
            .map(|o| o.requests)
            .sum::<u64>();
    }
    let served = server.requests("s3_ListObjectsV2") as u64;
    assert_eq!(counted, served, "requests are counted as they are billed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_metadata_log_on_s3_conforms() -> anyhow::Result<()> {
    let server = S3Server::start()?;
    let env = Env::production();
    let store = open(&server, &server.url("logs")).await?.store;
    let logs = |name: &str| -> Arc<dyn MetadataLog> {
        Arc::new(ObjectLog::new(
            store.clone(),
            name,
            Options::default(),
            env.clone(),
        ))
    };
    metalog::conformance::run(&logs, &env)
        .await
        .map_err(anyhow::Error::msg)
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_is_wrong() -> anyhow::Result<()> {
    let server = S3Server::start()?;
    let (env, credentials) = (Env::production(), server.credentials_dir());
    let result = async |url: &str| -> anyhow::Result<ProbeError> {
        let opened = open(&server, url).await?;
        Ok(probe(&*opened.store, &env).await.unwrap_err())
    };

    let url = server.url("p").replace(server.bucket(), "no-such-bucket");
    let error = result(&url).await?;
    assert!(
        matches!(
            &error,
            ProbeError::Failed {
                error: BlobError::Invalid(_),
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("object_store.url: bucket no-such-bucket does not exist"),
        "{error}"
    );

    let nobody = format!("http://127.0.0.1:{}", e2e::node::free_port());
    let error = result(&server.url_through(&nobody, "p")).await?;
    assert!(
        matches!(
            &error,
            ProbeError::Failed {
                error: BlobError::Unavailable(_),
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains(&nobody), "{error}");

    std::fs::write(credentials.join("secret_access_key"), "wrong")?;
    let error = result(&server.url("p")).await?;
    assert!(
        matches!(
            &error,
            ProbeError::Failed {
                error: BlobError::Denied(_),
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains(server.bucket()), "{error}");

    std::fs::remove_file(credentials.join("secret_access_key"))?;
    let error = open(&server, &server.url("p")).await.unwrap_err().to_string();
    assert!(
        error.contains("object_store.credentials_dir") && error.contains("secret_access_key"),
        "{error}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_request_is_repeated_with_its_whole_body() -> anyhow::Result<()> {
    let server = S3Server::start()?;
    // Cuts the first connections while or after the body is sent, then passes everything on.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let (address, target) = (listener.local_addr()?, server.endpoint().replace("http://", ""));
    let proxy = tokio::spawn(async move {
        for number in 0u32.. {
            let (mut near, _) = listener.accept().await?;
            if number < 2 {
                let mut taken = vec![0; 100_000];
                let _ = tokio::io::AsyncReadExt::read(&mut near, &mut taken).await?;
                continue;
            }
            let mut far = tokio::net::TcpStream::connect(&target).await?;
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
        Ok::<_, std::io::Error>(())
    });
    let opened = open(&server, &server.url_through(&format!("http://{address}"), "p")).await?;
    let slices: Vec<Bytes> = (0..40u8).map(|i| Bytes::from(vec![i; 50_000])).collect();
    opened.store.put("big", slices.clone()).await?;
    assert_eq!(opened.store.get("big").await?, slices.concat());
    let put = opened
        .metrics
        .snapshot()
        .into_iter()
        .find(|o| o.operation == Operation::Put);
    assert_eq!(put.map(|put| (put.requests, put.errors)), Some((3, 2)));
    proxy.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_fails_in_part_says_which_part() -> anyhow::Result<()> {
    let server = S3Server::start()?;
    let proxy = Proxy::start("127.0.0.1", &server.endpoint(), None, 1)?;
    let opened = open(&server, &server.url_through(&proxy.endpoint(), "p")).await?;
    let keys: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    for key in &keys {
        opened.store.put(key, vec![Bytes::from_static(b"x")]).await?;
    }
    proxy.set_rules(vec![Rule::new(Fault::RefuseSome).on(Verb::Delete, "")]);
    let failed = opened.store.delete_many(&keys).await?;
    let failed: Vec<&str> = failed
        .iter()
        .filter(|(_, error)| error.is_transient())
        .map(|(key, _)| key.as_str())
        .collect();
    assert_eq!(failed, ["a", "c"]);
    proxy.set_rules(Vec::new());
    // What is gone may be deleted again.
    assert_eq!(opened.store.delete_many(&keys).await?, vec![]);
    assert_eq!(opened.store.list("", None, 10).await?, vec![]);
    Ok(())
}
