//! Agent and service with a peer of the next protocol version, which a relay between them simulates.

mod relay;

use std::time::Duration;

use e2e::{
    Lab, Netns, Program, Settings, Timeouts,
    scenarios::{life::check, several},
    wait_for,
};
use offload_proto::{PROTOCOL_HIGHEST, PROTOCOL_LOWEST, Reason};

use relay::{NEXT, Peer, Relay};

const LIMIT: Duration = Duration::from_secs(60);

/// A lab whose agent reaches its service by a relay that simulates a later `peer` for each side.
fn lab_beside(peer: Peer) -> (Lab, Relay) {
    let timeouts = Timeouts { grace: 0, ..Timeouts::default() };
    let settings = Settings { timeouts, relayed: true, ..Settings::default() };
    let lab = Lab::start(&settings);
    let relay = Relay::start(&lab, &settings.endpoint(), peer);
    (lab, relay)
}

#[test]
fn later_peers_speak_the_highest_common_version() {
    let (lab, relay) = lab_beside(Peer::OfBothVersions);
    let pod = Netns::new("pod");
    lab.wait_until_good();
    let result = lab.add("blue", &pod, "eth0").result();
    check(&lab, "blue", &pod, &result).nothing();
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();

    let seen = relay.seen();
    assert_eq!(seen.from_agent, Some((PROTOCOL_LOWEST, PROTOCOL_HIGHEST)));
    assert_eq!(seen.from_service, Some(PROTOCOL_HIGHEST));
    assert_eq!(seen.sessions, 1, "a session ended over what a later peer adds");
    for call in ["Session", "Attach", "Check", "Detach"] {
        assert!(seen.calls.contains(call), "no {call} in {:?}", seen.calls);
    }
}

/// Waits until a program's log has a line with all these words.
fn wait_for_line(program: &Program, words: &[&str]) {
    wait_for(&format!("a line of {words:?}"), LIMIT, || {
        let log = program.log();
        log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
    });
}

#[test]
fn peers_of_later_versions_alone_are_refused() {
    let (refusal, next) = (Reason::Unsupported.as_str(), NEXT.to_string());
    for peer in [Peer::LaterAgent, Peer::LaterService] {
        let (lab, relay) = lab_beside(peer);
        wait_for_line(&lab.agent, &[refusal, &next]);
        let answer = lab.add("blue", &Netns::new("pod"), "eth0");
        answer.fails(109, &[refusal, &next]);
        lab.status().fails(50, &[refusal, &next]);
        if peer == Peer::LaterAgent {
            wait_for_line(&lab.service, &["node-1", &next]);
        }
        assert!(!relay.seen().calls.contains("Attach"), "{peer:?}");
        lab.assert_clean_slate();
    }
}

/// If the call were ignored, the pod would run without its second network.
#[test]
fn missing_service_call_is_refused_by_name() {
    let (lab, _relay) = lab_beside(Peer::ServiceWithoutAttachAll);
    lab.wait_until_good();
    let pod = Netns::new("pod");
    several::add(&lab, &pod, "green").fails(109, &[Reason::Unsupported.as_str(), "upgrade it"]);
    lab.assert_clean_slate();
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.assert_invariants();
}
