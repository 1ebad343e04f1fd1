//! Everything that is promised holds in every state that can be reached within these bounds.
//! `cargo run --release -p protocol-model -- --help` explores wider ones.

use protocol_model::{
    explorer::{Extent, explore},
    protocol::{Bounds, Breakage, Protocol},
};

fn explored(bounds: Bounds) -> Extent {
    let protocol = Protocol { bounds, without: Vec::new() };
    match explore(&protocol, usize::MAX) {
        Ok(extent) => extent,
        Err(found) => panic!("{found}"),
    }
}

#[test]
fn whatever_breaks_once_while_a_container_comes_and_goes_twice() {
    let extent = explored(Bounds { adds: 2, faults: 1, ..Bounds::default() });
    assert!(extent.states > 80_000, "{extent:?}");
}

#[test]
fn whatever_breaks_twice_while_a_container_comes_and_goes() {
    let extent = explored(Bounds { faults: 2, ..Bounds::default() });
    assert!(extent.states > 200_000, "{extent:?}");
}

#[test]
fn two_containers_want_the_same_vf_and_a_program_dies_or_a_connection_breaks() {
    let breakable = vec![Breakage::AgentDies, Breakage::ServiceDies, Breakage::ConnectionBreaks];
    let bounds = Bounds { containers: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(bounds);
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn two_hosts_want_the_same_address_and_something_dies() {
    let breakable = vec![Breakage::ServiceDies, Breakage::NetnsDies];
    let bounds = Bounds { hosts: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(bounds);
    assert!(extent.states > 100_000, "{extent:?}");
}
