//! In which zone a client is.

use std::collections::BTreeSet;

/// Markers that a client may carry in its client id: the one of KIP-1163, and the one in use elsewhere.
const MARKERS: [&str; 2] = ["diskless_rack_id=", "diskless_az="];

/// The zone of a client: a marker in its client id, else the rack it names (`client.rack`), else the zone of the port
/// it came in through. `known` are the zones in which there are brokers: another one is no help to the client.
pub fn client_zone<'a>(
    client_id: Option<&'a str>,
    rack: Option<&'a str>,
    port_zone: Option<&'a str>,
    known: &BTreeSet<&str>,
) -> Option<&'a str> {
    let marked = client_id
        .and_then(marked_zone)
        .and_then(|zone| resolve(zone, known));
    let rack = rack.filter(|rack| known.contains(rack));
    marked.or(rack).or(port_zone)
}

/// The value of a marker at the start of `client_id` or after a comma, a space or a bar. It ends at one of them or at
/// an equals sign.
fn marked_zone(client_id: &str) -> Option<&str> {
    MARKERS.iter().find_map(|marker| {
        let starts = client_id.match_indices(marker).find(|(at, _)| {
            let before = client_id.get(..*at).and_then(|before| before.chars().next_back());
            before.is_none_or(|c| matches!(c, ',' | ' ' | '|'))
        });
        let value = client_id.get(starts?.0 + marker.len()..)?;
        let value = value.split(['=', ',', '|', ' ']).next()?;
        (!value.is_empty()).then_some(value)
    })
}

/// Clients append to their id (`-producer-1`): what is not a zone is shortened at the last dash until it is one.
fn resolve<'a>(mut zone: &'a str, known: &BTreeSet<&str>) -> Option<&'a str> {
    loop {
        if known.contains(zone) {
            return Some(zone);
        }
        zone = zone.rsplit_once('-')?.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone<'a>(client_id: &'a str, rack: Option<&'a str>, port: Option<&'a str>) -> Option<&'a str> {
        client_zone(
            Some(client_id),
            rack,
            port,
            &BTreeSet::from(["a", "b", "us-east-1a"]),
        )
    }

    #[test]
    fn the_marker_wins_over_rack_and_port() {
        assert_eq!(zone("diskless_az=a", Some("b"), Some("b")), Some("a"));
        assert_eq!(zone("app,diskless_rack_id=b", Some("a"), None), Some("b"));
        assert_eq!(zone("app diskless_az=b,x=y", None, None), Some("b"));
        assert_eq!(zone("app|diskless_az=b|mirror-1", None, None), Some("b"));
        assert_eq!(
            zone("diskless_az=us-east-1a-producer-1", None, None),
            Some("us-east-1a")
        );
    }

    #[test]
    fn what_is_not_a_marker_is_ignored() {
        assert_eq!(zone("xdiskless_az=a", None, None), None);
        assert_eq!(zone("diskless_az=", None, Some("b")), Some("b"));
        assert_eq!(zone("diskless_az=nowhere", None, Some("b")), Some("b"));
        assert_eq!(zone("plain", None, None), None);
    }

    #[test]
    fn then_the_rack_then_the_port() {
        assert_eq!(zone("plain", Some("a"), Some("b")), Some("a"));
        assert_eq!(zone("plain", Some("elsewhere"), Some("b")), Some("b"));
    }
}
