//! S3 and what speaks its protocol.
//!
//! The SDK's own retries are off: [`crate::Retrying`] repeats requests, each time from the caller's slices, and
//! leaves alone what must not be repeated. Bodies are not hashed for the signature (`UNSIGNED-PAYLOAD`): SHA-256
//! costs more than all else on the way. Our CRC32C goes along instead, as a plain header (some stores reject trailers).
//! A store that knows it refuses other bytes and repeats it in its answer; of any other, the length of what it has
//! stored is asked before a write counts.

mod body;

use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{
    BehaviorVersion, IdentityCache, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    StalledStreamProtectionConfig, retry::RetryConfig, timeout::TimeoutConfig,
};
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::get_object::{GetObjectError, GetObjectOutput};
use aws_sdk_s3::operation::put_object::{PutObjectError, PutObjectOutput};
use aws_sdk_s3::primitives::{ByteStream, SdkBody};
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use bytes::{Bytes, BytesMut};
use env::Env;
use types::Timestamp;

use body::{Slices, crc32c_base64, crc32c_of_file};

use crate::credentials::FileCredentials;
use crate::key::{check_key, check_prefix};
use crate::{BlobError, BlobStore, ObjectMeta, PutOutcome, body_len};

/// Time for a request without a body; bodies get more by their size.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The slowest transfer that is waited for, in bytes per second.
const SLOWEST: u64 = 1024 * 1024;
/// How much of a file is read at a time, in bytes.
const FILE_PIECE: usize = 1024 * 1024;
/// The most that one request lists or deletes (S3).
const PAGE: usize = 1000;

/// Where a bucket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) bucket: String,
    /// Without slashes at its ends; may be empty.
    pub(crate) prefix: String,
    /// `None`: AWS.
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) path_style: bool,
}

/// A bucket, or the part of it below a prefix.
#[derive(Debug)]
pub(crate) struct S3Store {
    env: Env,
    client: Client,
    location: Location,
}

impl S3Store {
    pub(crate) async fn open(
        location: Location,
        credentials: Option<FileCredentials>,
        env: Env,
    ) -> Result<S3Store, BlobError> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = &location.region {
            loader = loader.region(Region::new(region.clone()));
        } else if location.endpoint.is_some() {
            // Signatures need some region; stores other than AWS accept any, by convention this one.
            loader = loader.region(Region::new("us-east-1"));
        }
        if let Some(files) = credentials {
            files.load().await.map_err(|error| {
                let text = format!("object_store.credentials_dir: {}", DisplayErrorContext(&error));
                BlobError::Denied(text)
            })?;
            // The provider caches for a second; the SDK would cache for a quarter of an hour.
            loader = loader
                .credentials_provider(files)
                .identity_cache(IdentityCache::no_cache());
        }
        let shared = loader.load().await;
        if shared.region().is_none() {
            let text = "object_store.url: parameter region is missing (AWS_REGION is not set either)";
            return Err(BlobError::Invalid(text.to_owned()));
        }
        let mut config = aws_sdk_s3::config::Builder::from(&shared)
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().connect_timeout(CONNECT_TIMEOUT).build())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .force_path_style(location.path_style);
        if let Some(endpoint) = &location.endpoint {
            config = config.endpoint_url(endpoint);
        }
        Ok(S3Store {
            env,
            client: Client::from_conf(config.build()),
            location,
        })
    }

    fn full_key(&self, key: &str) -> String {
        if self.location.prefix.is_empty() {
            key.to_owned()
        } else {
            format!("{}/{key}", self.location.prefix)
        }
    }

    fn own_key<'a>(&self, full: &'a str) -> Option<&'a str> {
        if self.location.prefix.is_empty() {
            return Some(full);
        }
        full.strip_prefix(&self.location.prefix)?.strip_prefix('/')
    }

    /// Runs a request with a time limit and translates its error. `bytes` is what it moves.
    async fn call<T, E>(
        &self,
        key: &str,
        bytes: u64,
        request: impl Future<Output = Result<T, SdkError<E>>>,
    ) -> Result<T, BlobError>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        match self.env.timeout(time_limit(bytes), request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.translate(key, error)),
            Err(_) => Err(BlobError::Timeout(self.describe(key))),
        }
    }

    fn describe(&self, key: &str) -> String {
        let endpoint = self.location.endpoint.as_deref().unwrap_or("aws");
        format!(
            "bucket {} at {endpoint}, key {}",
            self.location.bucket,
            self.full_key(key)
        )
    }

    fn translate<E>(&self, key: &str, error: SdkError<E>) -> BlobError
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let place = self.describe(key);
        let status = error.raw_response().map(|response| response.status().as_u16());
        let code = error.code().unwrap_or_default().to_owned();
        let Some(status) = status else {
            let text = format!("{place}: {}", DisplayErrorContext(&error));
            if is_about_credentials(&error) {
                let hint =
                    "no usable credentials: set object_store.credentials_dir or give the pod an identity";
                return BlobError::Denied(format!("{hint}; {text}"));
            }
            return match error {
                SdkError::ConstructionFailure(_) => BlobError::Invalid(text),
                SdkError::TimeoutError(_) => BlobError::Timeout(text),
                _ => BlobError::Unavailable(text),
            };
        };
        let message = error.message().unwrap_or_default();
        let text = format!("{place}: {status} {code} {message}")
            .trim_end()
            .to_owned();
        match (status, code.as_str()) {
            (_, "NoSuchBucket") => BlobError::Invalid(format!(
                "object_store.url: bucket {} does not exist ({text})",
                self.location.bucket
            )),
            (404, _) => BlobError::NotFound(self.full_key(key)),
            (401 | 403, _) => BlobError::Denied(text),
            (301 | 307, _) => {
                BlobError::Invalid(format!("object_store.url: wrong region or endpoint: {text}"))
            }
            (429, _) | (_, "SlowDown" | "ConditionalRequestConflict" | "OperationAborted") => {
                BlobError::Throttled(text)
            }
            (408, _) | (_, "RequestTimeout") => BlobError::Timeout(text),
            (500.., _) => BlobError::Unavailable(text),
            (200..=299, _) => BlobError::Corrupt(format!("answer not understood: {text}")),
            _ => BlobError::Invalid(text),
        }
    }

    async fn put_object(
        &self,
        key: &str,
        length: u64,
        body: ByteStream,
        checksum: &str,
        if_none_match: Option<String>,
    ) -> Result<PutObjectOutput, SdkError<PutObjectError>> {
        self.client
            .put_object()
            .bucket(&self.location.bucket)
            .key(self.full_key(key))
            .content_length(i64::try_from(length).unwrap_or(i64::MAX))
            .checksum_crc32_c(checksum)
            .set_if_none_match(if_none_match)
            .body(body)
            .customize()
            .disable_payload_signing()
            .send()
            .await
    }

    /// That what lies under `key` is what was sent. An error leaves the outcome of the write unknown.
    async fn confirm(
        &self,
        key: &str,
        length: u64,
        checksum: &str,
        answer: &PutObjectOutput,
    ) -> Result<(), BlobError> {
        let stored = match answer.checksum_crc32_c() {
            Some(stored) if stored == checksum => return Ok(()),
            Some(stored) => format!("bytes with checksum {stored} instead of {checksum}"),
            None => match self.head(key).await? {
                Some(object) if object.size == length => return Ok(()),
                Some(object) => format!("{} bytes instead of {length}", object.size),
                None => "nothing".to_owned(),
            },
        };
        let text = format!("{}: {stored} were stored", self.describe(key));
        Err(BlobError::Unavailable(text))
    }

    async fn get_object(&self, key: &str, range: Option<&Range<u64>>) -> Result<Bytes, BlobError> {
        // "bytes=a-b" includes b.
        let header = range.map(|range| format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        let request = self
            .client
            .get_object()
            .bucket(&self.location.bucket)
            .key(self.full_key(key));
        let request = request.set_range(header).send();
        let answer: Result<GetObjectOutput, SdkError<GetObjectError>> =
            match self.env.timeout(REQUEST_TIMEOUT, request).await {
                Ok(answer) => answer,
                Err(_) => return Err(BlobError::Timeout(self.describe(key))),
            };
        let answer = match answer {
            Ok(answer) => answer,
            // The range starts behind the end of the object.
            Err(error)
                if range.is_some() && error.raw_response().is_some_and(|r| r.status().as_u16() == 416) =>
            {
                return Ok(Bytes::new());
            }
            Err(error) => return Err(self.translate(key, error)),
        };
        let length = u64::try_from(answer.content_length().unwrap_or(0)).unwrap_or(0);
        match self
            .env
            .timeout(time_limit(length), self.collect(key, length, answer.body))
            .await
        {
            Ok(bytes) => bytes,
            Err(_) => Err(BlobError::Timeout(self.describe(key))),
        }
    }

    async fn collect(&self, key: &str, length: u64, mut body: ByteStream) -> Result<Bytes, BlobError> {
        // What the header claims is only believed up to a point.
        let mut bytes = BytesMut::with_capacity(usize::try_from(length.min(64 << 20)).unwrap_or(0));
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| {
                BlobError::Unavailable(format!("{}: {}", self.describe(key), DisplayErrorContext(&error)))
            })?;
            bytes.extend_from_slice(&chunk);
        }
        if bytes.len() as u64 == length {
            Ok(bytes.freeze())
        } else {
            let text = format!(
                "{}: {} bytes came instead of {length}",
                self.describe(key),
                bytes.len()
            );
            Err(BlobError::Unavailable(text))
        }
    }

    async fn delete_page(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        let invalid = |error: aws_sdk_s3::error::BuildError| BlobError::Invalid(error.to_string());
        let mut delete = Delete::builder().quiet(true);
        for key in keys {
            delete = delete.objects(
                ObjectIdentifier::builder()
                    .key(self.full_key(key))
                    .build()
                    .map_err(invalid)?,
            );
        }
        let delete = delete.build().map_err(invalid)?;
        let request = self
            .client
            .delete_objects()
            .bucket(&self.location.bucket)
            .delete(delete)
            .send();
        let first = keys.first().map_or("", String::as_str);
        let answer = self.call(first, 0, request).await?;
        let mut failed = Vec::new();
        for error in answer.errors() {
            let key = error
                .key()
                .and_then(|full| self.own_key(full))
                .unwrap_or_default();
            let code = error.code().unwrap_or_default();
            let text = format!(
                "{}: {code} {}",
                self.describe(key),
                error.message().unwrap_or_default()
            );
            match code {
                "NoSuchKey" => {}
                "AccessDenied" => failed.push((key.to_owned(), BlobError::Denied(text))),
                "SlowDown" => failed.push((key.to_owned(), BlobError::Throttled(text))),
                _ => failed.push((key.to_owned(), BlobError::Unavailable(text))),
            }
        }
        Ok(failed)
    }
}

/// Built anew for whoever asks, so that no attempt ever sends a body that another one has used up.
fn slices(body: Vec<Bytes>) -> ByteStream {
    ByteStream::new(SdkBody::retryable(move || {
        SdkBody::from_body_1_x(Slices::new(body.clone()))
    }))
}

fn time_limit(bytes: u64) -> Duration {
    REQUEST_TIMEOUT + Duration::from_secs(bytes / SLOWEST)
}

fn is_about_credentials(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<CredentialsError>() {
            return true;
        }
        next = error.source();
    }
    false
}

fn timestamp(time: Option<&aws_sdk_s3::primitives::DateTime>) -> Timestamp {
    Timestamp(time.and_then(|time| time.to_millis().ok()).unwrap_or(-1))
}

#[async_trait]
impl BlobStore for S3Store {
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<(), BlobError> {
        check_key(key)?;
        let (length, checksum) = (body_len(&body), crc32c_base64(&body));
        let request = self.put_object(key, length, slices(body), &checksum, None);
        let answer = self.call(key, length, request).await?;
        self.confirm(key, length, &checksum, &answer).await
    }

    /// In one request: S3 takes up to 5 GiB.
    async fn put_file(&self, key: &str, path: &Path) -> Result<(), BlobError> {
        check_key(key)?;
        let unreadable = |error: String| BlobError::Unavailable(format!("{}: {error}", path.display()));
        let file = path.to_owned();
        let summed = self.env.blocking(move || crc32c_of_file(&file)).await;
        let (length, checksum) = summed.map_err(|error| unreadable(error.to_string()))?;
        let body = ByteStream::read_from().path(path).buffer_size(FILE_PIECE);
        let body = body
            .build()
            .await
            .map_err(|error| unreadable(error.to_string()))?;
        let request = self.put_object(key, length, body, &checksum, None);
        let answer = self.call(key, length, request).await?;
        self.confirm(key, length, &checksum, &answer).await
    }

    async fn put_if_absent(&self, key: &str, body: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        check_key(key)?;
        let (length, checksum) = (body_len(&body), crc32c_base64(&body));
        let request = self.put_object(key, length, slices(body), &checksum, Some("*".to_owned()));
        match self.env.timeout(time_limit(length), request).await {
            Ok(Ok(answer)) => {
                self.confirm(key, length, &checksum, &answer).await?;
                Ok(PutOutcome::Created)
            }
            Ok(Err(error)) if error.raw_response().is_some_and(|r| r.status().as_u16() == 412) => {
                Ok(PutOutcome::Exists)
            }
            Ok(Err(error)) => Err(self.translate(key, error)),
            Err(_) => Err(BlobError::Timeout(self.describe(key))),
        }
    }

    async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        check_key(key)?;
        self.get_object(key, None).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, BlobError> {
        check_key(key)?;
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        self.get_object(key, Some(&range)).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, BlobError> {
        check_key(key)?;
        let request = self
            .client
            .head_object()
            .bucket(&self.location.bucket)
            .key(self.full_key(key))
            .send();
        match self.call(key, 0, Box::pin(request)).await {
            Ok(answer) => Ok(Some(ObjectMeta {
                key: key.to_owned(),
                size: u64::try_from(answer.content_length().unwrap_or(0)).unwrap_or(0),
                last_modified: timestamp(answer.last_modified()),
            })),
            Err(BlobError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, BlobError> {
        check_prefix(prefix)?;
        let mut found = Vec::new();
        let mut after = start_after.map(|key| self.full_key(key));
        while found.len() < limit {
            let page = i32::try_from(PAGE.min(limit - found.len())).unwrap_or(i32::MAX);
            let request = self.client.list_objects_v2().bucket(&self.location.bucket);
            let request = request
                .prefix(self.full_key(prefix))
                .set_start_after(after.clone())
                .max_keys(page);
            let answer = self.call(prefix, 0, Box::pin(request.send())).await?;
            for object in answer.contents() {
                let Some(full) = object.key() else { continue };
                after = Some(full.to_owned());
                if let Some(key) = self.own_key(full) {
                    found.push(ObjectMeta {
                        key: key.to_owned(),
                        size: u64::try_from(object.size().unwrap_or(0)).unwrap_or(0),
                        last_modified: timestamp(object.last_modified()),
                    });
                }
            }
            if !answer.is_truncated().unwrap_or(false) || answer.contents().is_empty() {
                break;
            }
        }
        Ok(found)
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Vec<(String, BlobError)>, BlobError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        let mut failed = Vec::new();
        for page in keys.chunks(PAGE) {
            failed.extend(self.delete_page(page).await?);
        }
        Ok(failed)
    }
}
