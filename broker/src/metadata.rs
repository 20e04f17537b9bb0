//! This node's copy of the cluster's metadata.

use std::sync::Arc;

use cluster::image::{ImageChanges, ImageRecord, MetadataImage};
use tokio::sync::watch;
use types::NodeId;

/// The newest [`MetadataImage`] that the controller has sent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metadata {
    current: watch::Receiver<Arc<MetadataImage>>,
}

/// Where the heartbeat puts a new image.
#[derive(Debug)]
pub struct MetadataWriter {
    current: watch::Sender<Arc<MetadataImage>>,
}

/// An empty picture to begin with, and its writer.
pub fn metadata() -> (MetadataWriter, Metadata) {
    let empty = MetadataImage::new(ImageRecord {
        version: 0,
        controller_epoch: 0,
        cluster_id: String::new(),
        controller: NodeId(-1),
        controller_address: String::new(),
        brokers: Vec::new(),
        topics: Vec::new(),
        shards: Vec::new(),
        group_shards: 0,
        feature_level: None,
        default_partitions: None,
    });
    let (writer, reader) = watch::channel(Arc::new(empty));
    (MetadataWriter { current: writer }, Metadata { current: reader })
}

impl MetadataWriter {
    /// Controller epoch and version of the present picture.
    pub fn version(&self) -> (u64, u64) {
        let current = self.current.borrow();
        (current.record().controller_epoch, current.record().version)
    }

    /// Takes a picture over if it is newer than the present one.
    pub fn update(&self, record: ImageRecord) {
        self.current.send_if_modified(|current| {
            let present = current.record();
            let newer =
                (record.controller_epoch, record.version) > (present.controller_epoch, present.version);
            if newer {
                *current = Arc::new(MetadataImage::new(record));
            }
            newer
        });
    }

    /// Takes changes of the present picture over; false if they are not for this one.
    pub fn change(&self, changes: &ImageChanges) -> bool {
        self.current
            .send_if_modified(|current| match current.changed(changes) {
                Some(changed) => {
                    *current = Arc::new(changed);
                    true
                }
                None => false,
            })
    }
}

impl Metadata {
    /// The present picture; empty (no cluster id) until the node has reached the controller for the first time.
    pub fn image(&self) -> Arc<MetadataImage> {
        self.current.borrow().clone()
    }

    /// True once the controller has sent a picture.
    pub fn is_known(&self) -> bool {
        self.current.borrow().record().controller_epoch > 0
    }

    /// Resolves when the controller has sent a picture.
    pub async fn known(mut self) {
        while !self.is_known() {
            self.changed().await;
        }
    }

    /// Resolves at the next change after the last call on this clone (at once, if there was one).
    pub async fn changed(&mut self) {
        if self.current.changed().await.is_err() {
            // The writer is gone: the node is ending, nothing will change any more.
            std::future::pending::<()>().await;
        }
    }
}
