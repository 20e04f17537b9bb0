//! Where we mean to answer otherwise than Apache Kafka, and why.

/// Fields that may differ. All that is given must fit; `*` at an end stands for anything.
pub struct Intended {
    pub case: &'static str,
    pub step: &'static str,
    pub path: &'static str,
    /// Kafka's answer and ours.
    pub answers: (&'static str, &'static str),
    pub reason: &'static str,
}

impl Intended {
    pub fn fits(&self, case: &str, step: &str, path: &str, answers: (&str, &str)) -> bool {
        fits(self.case, case)
            && fits(self.step, step)
            && fits(self.path, path)
            && fits(self.answers.0, answers.0)
            && fits(self.answers.1, answers.1)
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        _ if pattern == "*" => true,
        (Some(_), Some(_)) => text.contains(pattern.trim_matches('*')),
        (Some(end), None) => text.ends_with(end),
        (None, Some(start)) => text.starts_with(start),
        (None, None) => text == pattern,
    }
}

const fn intended(
    case: &'static str,
    step: &'static str,
    path: &'static str,
    answers: (&'static str, &'static str),
    reason: &'static str,
) -> Intended {
    Intended {
        case,
        step,
        path,
        answers,
        reason,
    }
}

#[rustfmt::skip]
pub const INTENDED: &[Intended] = &[
    intended("*", "*", "*error_message", ("*", "*"),
        "errors may be told in words, or not: programs go by the code"),
    intended("cluster/versions", "ApiVersions, *", "", ("*", "*"),
        "ApiVersions 4 is the highest served, and any higher one hears so"),
    intended("cluster/metadata", "no id *", "*", ("*", "*"),
        "Kafka fails at a topic id of zeros"),
    intended("cluster/describe", "*transaction*", "*", ("*", "*"),
        "no transactions"),
    intended("cluster/create", "Kafka's own topic*", "*", ("*", "*"),
        "offsets of groups are in no topic"),
    intended("cluster/create", "more replicas than brokers*", "*", ("*", "*"),
        "the object store replicates: any replication factor is taken"),
    intended("cluster/create-configs", "compaction *", "*", ("*", "*"),
        "no compaction"),
    intended("cluster/create-configs", "recompression *", "*", ("*", "*"),
        "batches stay as the producer compressed them"),
    intended("cluster/create-configs", "no policy *", "*", ("*", "*"),
        "`delete` is the only cleanup policy, and there is always one"),
    intended("cluster/create-configs", "throttled replicas that are none *", "*", ("*", "*"),
        "of keys without effect only the type is checked"),
    intended("cluster/create-configs", "minimum lag over maximum *", "*", ("*", "*"),
        "of keys without effect only the type is checked"),
    intended("configs/*", "*", "*read_only", ("false", "true"),
        "keys of brokers and keys with one possible value cannot be changed"),
    intended("configs/every-key", "*", "*: read only", ("false", "true"),
        "keys of brokers and keys with one possible value cannot be changed"),
    intended("configs/alter", "unknown operation*", "*error_code", ("-1", "42"),
        "Kafka fails at an operation that it does not know"),
    intended("configs/describe", "all brokers*", "*", ("*", "*"),
        "no defaults of all brokers that change while they run"),
    intended("configs/describe", "*", "*synonyms*", ("*", "*"),
        "times are set in milliseconds alone, not in hours"),
    intended("configs/describe", "a broker, *", "*.value", ("None", "*"),
        "times are set in milliseconds alone, not in hours"),
    intended("configs/every-key", "*", "*s: synonyms", ("", "*"),
        "times are set in milliseconds alone, not in hours"),
    intended("configs/every-key", "*", "min.insync.replicas: *", ("*", "*"),
        "no defaults of all brokers that change while they run"),
    intended("configs/every-key", "*", "diskless.enable: *", ("nothing", "*"),
        "a key of our own (KIP-1163)"),
    intended("configs/list", "*", "*", ("*", "*"),
        "loggers of brokers have no configuration"),
    intended("configs/lists", "keys after append n*", "*value", ("*", "*"),
        "Kafka keeps an empty item"),
    intended("configs/lists", "*append what is none*", "*", ("*", "*"),
        "of keys without effect only the type is checked"),
    intended("configs/lists", "*subtract the only policy*", "*", ("*", "*"),
        "`delete` is the only cleanup policy, and there is always one"),
    intended("*", "*", "*log_start_offset", ("0", "-1"),
        "a batch is refused before its partition is asked"),
    intended("produce/attributes", "*attribute bit 3*", "*", ("*", "*"),
        "no producer may claim LogAppendTime; Kafka looks only where the topic has it"),
    intended("produce/attributes", "attribute bit 4 *", "*error_code", ("53", "87"),
        "no transactions"),
    intended("produce/attributes", "codec *", "*error_code", ("-1", "76"),
        "Kafka fails at a codec that it does not know"),
    intended("produce/producers", "transactional*", "*error_code", ("53", "*"),
        "no transactions"),
    intended("produce/producers", "*no epoch*", "*", ("*", "*"),
        "an idempotent producer has an epoch"),
    intended("produce/producers", "epoch below none *", "*error_code", ("47", "87"),
        "an idempotent producer has an epoch"),
    intended("produce/*", "stored: *", "batches[0].max_timestamp", ("*", "*"),
        "a header that says the wrong maximum timestamp stays so"),
    intended("produce/records", "*offset delta*", "*", ("*", "*"),
        "offsets count up in every batch; Kafka lets others in, or fails at them"),
    intended("produce/records", "*a record of length zero, compressed*", "*", ("*", "*"),
        "a record that no consumer could read; Kafka lets it in"),
    intended("produce/records", "an endless number *", "*error_code", ("-1", "87"),
        "Kafka fails at bytes that are no record"),
    intended("produce/several", "*one and a half batches*", "*", ("*", "*"),
        "one whole batch for each partition; Kafka drops half of one behind it"),
    intended("produce/several", "*a batch and five bytes*", "*", ("*", "*"),
        "one whole batch for each partition; Kafka drops half of one behind it"),
    intended("*", "no partitions*", "*", ("*", "*"),
        "a topic without partitions is answered as it was asked"),
    intended("offsets/requests", "nothing *", "*", ("*", "*"),
        "a topic without partitions is answered as it was asked"),
    intended("settings/append-time", "that says LogAppendTime itself *", "*record_errors*", ("*", "*"),
        "it is the batch that is wrong, not one of its records"),
    intended("settings/codecs", "*", "*error_code", ("-1", "87"),
        "Kafka fails at bytes that cannot be decompressed"),
    intended("idempotence/*", "*", "*log_append_time_ms", ("*", "-1"),
        "a repeat under CreateTime gets its first answer, without a time of the log"),
    intended("idempotence/*", "producers of the topic*", "*last_timestamp", ("*", "*"),
        "a producer's last time is when it last wrote, not what its record says"),
    intended("fetch/epochs", "fetched epoch *", "*", ("*", "*"),
        "epochs that were fetched are the word of followers; there are none"),
    intended("fetch/limits", "*", "*.batches", ("* behind 1 batches", "nothing"),
        "whole batches only; Kafka fills up with part of one"),
    intended("fetch/limits", "-1 bytes *", "*", ("*", "*"),
        "Kafka fails at a negative limit"),
    intended("fetch/versions", "isolation level 7 *", "*", ("*", "*"),
        "Kafka fails at an isolation level that it does not know"),
    intended("fetch/session-errors", "opened with nothing*", "session_id", ("*", "0"),
        "no session of nothing"),
    intended("offsets/epochs", "*: epoch -2, *", "*", ("*", "*"),
        "no epoch is -2; Kafka gives it an end"),
    intended("offsets/special", "-3, all deleted *", "*", ("*", "*"),
        "the latest time is that of a record that is there"),
];
