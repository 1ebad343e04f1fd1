//! Everything that is promised holds in every state that can be reached within these bounds.
//! `cargo run --release -p protocol-model -- --help` explores wider ones.
#![allow(clippy::print_stdout, reason = "figures for docs/RELIABILITY.md")]

use protocol_model::{
    bounds::{Bounds, Breakage},
    explorer::{Extent, explore},
    protocol::Protocol,
};

fn explored(bounds: Bounds) -> Extent {
    let protocol = Protocol { bounds, without: Vec::new() };
    let explored = explore(&protocol, usize::MAX);
    let found = explored.as_ref().err().map(ToString::to_string);
    assert!(found.is_none(), "{}", found.unwrap_or_default());
    let extent = explored.unwrap_or_default();
    println!("figure: {} states of the protocol explored", extent.states);
    println!("figure: {} steps of the protocol between them explored", extent.transitions);
    extent
}

#[test]
fn whatever_breaks_once_while_a_container_comes_and_goes_twice() {
    let extent = explored(Bounds { adds: 2, faults: 1, promises: true, ..Bounds::default() });
    assert!(extent.states > 250_000, "{extent:?}");
}

#[test]
fn whatever_breaks_twice_while_a_container_comes_and_goes() {
    let extent = explored(Bounds { faults: 2, promises: true, ..Bounds::default() });
    assert!(extent.states > 500_000, "{extent:?}");
}

#[test]
fn two_containers_want_the_same_vf_and_the_service_dies_or_a_connection_breaks() {
    let breakable = vec![Breakage::ServiceDies, Breakage::ConnectionBreaks];
    let bounds = Bounds { containers: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(bounds);
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn two_hosts_want_the_same_address_and_the_service_dies() {
    let breakable = vec![Breakage::ServiceDies];
    let bounds = Bounds { hosts: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(bounds);
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn a_program_dies_and_a_call_gets_no_answer_while_a_container_comes_and_goes_twice() {
    let breakable = vec![Breakage::AgentDies, Breakage::CallTimesOut];
    let extent = explored(Bounds { adds: 2, faults: 2, breakable, ..Bounds::default() });
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn a_call_gets_no_answer_and_a_connection_breaks_while_a_container_comes_and_goes_twice() {
    let breakable = vec![Breakage::CallTimesOut, Breakage::ConnectionBreaks];
    let extent = explored(Bounds { adds: 2, faults: 2, breakable, ..Bounds::default() });
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn records_are_lost_and_a_call_gets_no_answer_while_a_container_comes_and_goes_twice() {
    let breakable = vec![Breakage::RecordsAreLost, Breakage::CallTimesOut];
    let extent = explored(Bounds { adds: 2, faults: 2, breakable, ..Bounds::default() });
    assert!(extent.states > 75_000, "{extent:?}");
}

#[test]
fn callers_and_agents_die_while_a_container_comes_and_goes_twice() {
    let breakable = vec![Breakage::CallerDies, Breakage::AgentDies];
    let extent = explored(Bounds { adds: 2, faults: 2, breakable, ..Bounds::default() });
    assert!(extent.states > 50_000, "{extent:?}");
}

#[test]
fn two_containers_want_the_same_vf_and_a_caller_dies_or_gives_up() {
    let breakable = vec![Breakage::CallerDies, Breakage::RuntimeGivesUp];
    let bounds = Bounds { containers: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(bounds);
    assert!(extent.states > 10_000, "{extent:?}");
}

#[test]
fn two_containers_take_one_vf_and_a_caller_the_service_or_an_agent_and_its_records_are_gone() {
    let breakable = vec![Breakage::CallerDies, Breakage::ServiceDies, Breakage::RecordsAreLost];
    let bounds = Bounds { containers: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(Bounds { promises: true, ..bounds });
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn one_of_two_promised_vfs_is_taken_and_records_are_lost() {
    let breakable = vec![Breakage::RecordsAreLost];
    let bounds = Bounds { vfs: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(Bounds { promises: true, ..bounds });
    assert!(extent.states > 100_000, "{extent:?}");
}

/// Two hosts that want the same address, and each suffers one of these faults.
fn two_hosts_suffer<const N: usize>(breakable: [Breakage; N]) -> Extent {
    let breakable = breakable.to_vec();
    explored(Bounds { hosts: 2, faults: 1, each: true, breakable, ..Bounds::default() })
}

#[test]
fn two_hosts_lose_the_records_of_their_agents() {
    let extent = two_hosts_suffer([Breakage::RecordsAreLost]);
    assert!(extent.states > 200_000, "{extent:?}");
}

#[test]
fn two_hosts_lose_power() {
    let extent = two_hosts_suffer([Breakage::PowerFails]);
    assert!(extent.states > 50_000, "{extent:?}");
}

#[test]
fn calls_of_two_hosts_get_no_answer_and_are_served_late() {
    let extent = two_hosts_suffer([Breakage::CallTimesOut]);
    assert!(extent.states > 150_000, "{extent:?}");
}

#[test]
fn whatever_breaks_once_at_a_host_beside_another() {
    let extent = explored(Bounds { hosts: 2, faults: 1, promises: true, ..Bounds::default() });
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn a_connection_breaks_beside_that_of_another_host() {
    let breakable = vec![Breakage::ConnectionBreaks];
    let bounds = Bounds { hosts: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(bounds);
    assert!(extent.states > 300_000, "{extent:?}");
}
