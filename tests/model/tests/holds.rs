//! All properties hold in every reachable state within these bounds. `cargo run --release -p protocol-model --
//! --help` explores wider ones.
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
fn one_failure_during_two_container_lives() {
    let extent = explored(Bounds { adds: 2, faults: 1, offers: true, ..Bounds::default() });
    assert!(extent.states > 250_000, "{extent:?}");
}

#[test]
fn two_failures_during_one_container_life() {
    let extent = explored(Bounds { faults: 2, offers: true, ..Bounds::default() });
    assert!(extent.states > 500_000, "{extent:?}");
}

#[test]
fn two_containers_race_while_service_or_connection_fails() {
    let breakable = vec![Breakage::ServiceDies, Breakage::ConnectionBreaks];
    let bounds = Bounds { containers: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(bounds);
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn two_hosts_race_while_the_service_dies() {
    let breakable = vec![Breakage::ServiceDies];
    let bounds = Bounds { hosts: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(bounds);
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn program_death_and_lost_answer() {
    let breakable = vec![Breakage::AgentDies, Breakage::CallTimesOut];
    let extent = explored(Bounds { adds: 2, faults: 2, breakable, ..Bounds::default() });
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn lost_answer_and_broken_connection() {
    let breakable = vec![Breakage::CallTimesOut, Breakage::ConnectionBreaks];
    let extent = explored(Bounds { adds: 2, faults: 2, breakable, ..Bounds::default() });
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn lost_records_and_lost_answer() {
    let breakable = vec![Breakage::RecordsAreLost, Breakage::CallTimesOut];
    let extent = explored(Bounds { adds: 2, faults: 2, breakable, ..Bounds::default() });
    assert!(extent.states > 75_000, "{extent:?}");
}

#[test]
fn callers_and_agents_die() {
    let breakable = vec![Breakage::CallerDies, Breakage::AgentDies];
    let extent = explored(Bounds { adds: 2, faults: 2, breakable, ..Bounds::default() });
    assert!(extent.states > 50_000, "{extent:?}");
}

#[test]
fn two_containers_race_while_a_caller_fails() {
    let breakable = vec![Breakage::CallerDies, Breakage::RuntimeGivesUp];
    let bounds = Bounds { containers: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(bounds);
    assert!(extent.states > 10_000, "{extent:?}");
}

#[test]
fn two_containers_race_while_a_program_is_gone() {
    let breakable = vec![Breakage::CallerDies, Breakage::ServiceDies, Breakage::RecordsAreLost];
    let bounds = Bounds { containers: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(Bounds { offers: true, ..bounds });
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn records_are_lost_with_two_offered_vfs() {
    let breakable = vec![Breakage::RecordsAreLost];
    let bounds = Bounds { vfs: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(Bounds { offers: true, ..bounds });
    assert!(extent.states > 100_000, "{extent:?}");
}

/// Two hosts that need the same address. Each suffers one of these faults.
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
fn two_hosts_lose_answers_and_late_calls() {
    let extent = two_hosts_suffer([Breakage::CallTimesOut]);
    assert!(extent.states > 150_000, "{extent:?}");
}

#[test]
fn one_failure_with_a_second_host() {
    let extent = explored(Bounds { hosts: 2, faults: 1, offers: true, ..Bounds::default() });
    assert!(extent.states > 100_000, "{extent:?}");
}

#[test]
fn a_connection_breaks_beside_that_of_another_host() {
    let breakable = vec![Breakage::ConnectionBreaks];
    let bounds = Bounds { hosts: 2, adds: 2, faults: 1, breakable, ..Bounds::default() };
    let extent = explored(bounds);
    assert!(extent.states > 300_000, "{extent:?}");
}
