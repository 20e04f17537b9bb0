//! The one error of everything in this crate that reads bytes somebody else wrote.

/// Why bytes could not be decoded. A connection that sends such bytes is closed; nothing here is retriable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ends before the value does.
    #[error("input ends early: {needed} bytes wanted, {remaining} left")]
    Truncated {
        /// Bytes the next value takes.
        needed: usize,
        /// Bytes that are left.
        remaining: usize,
    },
    /// An array or a tagged section announces more elements than the bytes that are left can hold.
    #[error("count {count} does not fit in {remaining} remaining bytes")]
    Count {
        /// The announced number of elements (negative when a signed length was).
        count: i64,
        /// Bytes that are left.
        remaining: usize,
    },
    /// The decoded request would take more memory than its frame justifies.
    #[error("decoded request would exceed {limit} bytes of memory")]
    Memory {
        /// The bound, in bytes.
        limit: usize,
    },
    /// A length that is negative, or null where null is not allowed.
    #[error("invalid length {0}")]
    Length(i64),
    /// A variable-length integer of more than five bytes or 32 bits.
    #[error("variable-length integer is longer than 32 bits")]
    VarInt,
    /// A string that is not UTF-8.
    #[error("string is not valid utf-8")]
    Utf8,
    /// A boolean, presence marker or enum discriminant with a value it cannot have.
    #[error("{what} cannot be {value}")]
    Tag {
        /// What was read.
        what: &'static str,
        /// The value found.
        value: i64,
    },
    /// Bytes are left after the value that should fill the input.
    #[error("{0} bytes left after the value")]
    Trailing(usize),
    /// An API key outside the table of served APIs.
    #[error("unknown api key {0}")]
    UnknownApi(i16),
    /// A version outside the range that is served for this API.
    #[error("unsupported version {version} of api key {api_key}")]
    UnsupportedVersion {
        /// The API key of the request.
        api_key: i16,
        /// The version asked for.
        version: i16,
    },
    /// The protocol crate refused the body.
    #[error("malformed body: {0}")]
    Malformed(String),
}

impl From<bytes::TryGetError> for DecodeError {
    fn from(error: bytes::TryGetError) -> Self {
        Self::Truncated {
            needed: error.requested,
            remaining: error.available,
        }
    }
}

/// Why a message could not be written: a value that the chosen version cannot carry, which is a bug of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The protocol crate refused the value.
    #[error("message cannot be encoded in version {version}: {reason}")]
    Message {
        /// The version asked for.
        version: i16,
        /// The protocol crate's words.
        reason: String,
    },
    /// The frame would exceed the 2 GiB that its length prefix can say.
    #[error("frame of {0} bytes is too large")]
    TooLarge(usize),
    /// A record batch of a fetch response whose header cannot be read.
    #[error("stored record batch is corrupt: {0}")]
    Batch(#[from] crate::batch::BatchError),
}
