//! One request on its way through the APIs.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_wire::frame::RequestHeader;
use kafka_wire::rope::Rope;
use kafka_wire::{EncodeError, ResponseKind, StrBytes, response};

use crate::net::{Answer, Peer};

/// A request: who sent it, its header and its bytes.
pub(super) struct Call {
    pub(super) peer: Peer,
    pub(super) header: RequestHeader,
    /// Header and body, as they came in.
    pub(super) frame: Bytes,
}

impl Call {
    /// Lets go of the request's bytes: what is needed for an answer remains.
    pub(super) fn let_go(&mut self) {
        // Emptied, they would keep the rest alive.
        self.frame = Bytes::new();
        self.header.client_id = None;
    }

    pub(super) fn version(&self) -> i16 {
        self.header.api_version
    }

    /// The answer in the version of the request.
    pub(super) fn reply(&self, response: impl Into<ResponseKind>) -> Answer {
        self.send(response::encode(
            self.version(),
            self.header.correlation_id,
            &response.into(),
        ))
    }

    /// A frame that was encoded elsewhere.
    pub(super) fn send(&self, frame: Result<Rope, EncodeError>) -> Answer {
        match frame {
            Ok(frame) => Answer::Reply(frame),
            Err(error) => {
                // Our own answer does not fit the protocol: the client must not wait for it.
                tracing::error!(%error, api = self.header.api_key, version = self.version(), "cannot encode an answer");
                Answer::Close
            }
        }
    }

    /// An answer that came from its owner, header and body.
    pub(super) fn pass_back(&self, answer: Bytes) -> Answer {
        let mut prefix = BytesMut::with_capacity(4);
        prefix.put_u32(u32::try_from(answer.len()).unwrap_or(u32::MAX));
        let mut frame = Rope::from(prefix.freeze());
        frame.push(answer);
        Answer::Reply(frame)
    }
}

/// A string for a response.
pub(super) fn text(value: impl Into<String>) -> StrBytes {
    StrBytes::from_string(value.into())
}
