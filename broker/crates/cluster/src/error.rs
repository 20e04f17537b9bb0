use kafka_wire::ResponseError;

/// Why an admin request, or one item of it, is refused: Kafka's code and a text for the person who asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}: {message}")]
pub struct ApiError {
    /// The code.
    pub error: ResponseError,
    /// What is wrong, naming the key or object.
    pub message: String,
}

impl ApiError {
    pub(crate) fn new(error: ResponseError, message: impl Into<String>) -> ApiError {
        ApiError {
            error,
            message: message.into(),
        }
    }

    pub(crate) fn invalid_request(message: impl Into<String>) -> ApiError {
        ApiError::new(ResponseError::InvalidRequest, message)
    }
}
