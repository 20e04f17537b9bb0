use std::time::Duration;

/// Rules of groups; the defaults are Apache Kafka's.
#[derive(Clone, Debug)]
pub struct GroupSettings {
    /// `group.min.session.timeout.ms`
    pub min_session_timeout: Duration,
    /// `group.max.session.timeout.ms`
    pub max_session_timeout: Duration,
    /// `group.initial.rebalance.delay.ms`: how long the first member waits for others.
    pub initial_rebalance_delay: Duration,
    /// `group.max.size`
    pub max_size: usize,
    /// `offset.metadata.max.bytes`
    pub max_offset_metadata: usize,
    /// `offsets.retention.minutes`: offsets of a group without members are forgotten after this time (KIP-211).
    pub offsets_retention: Duration,
    /// Bound of what one member may send as its metadata over all protocols, in bytes.
    pub max_member_metadata: usize,
}

impl Default for GroupSettings {
    fn default() -> Self {
        GroupSettings {
            min_session_timeout: Duration::from_secs(6),
            max_session_timeout: Duration::from_secs(30 * 60),
            initial_rebalance_delay: Duration::from_secs(3),
            max_size: 10_000,
            max_offset_metadata: 4096,
            offsets_retention: Duration::from_secs(7 * 24 * 3600),
            max_member_metadata: 4 << 20,
        }
    }
}
