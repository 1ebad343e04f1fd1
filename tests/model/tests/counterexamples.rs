//! The purpose of each protection: without it, the explorer finds a path to a broken property. With all protections
//! there is none, as the tests in `holds` show. The model found some of these defects in the programs, as the
//! comments say.
#![allow(clippy::print_stdout, reason = "figures for docs/RELIABILITY.md")]

use protocol_model::{
    bounds::{Bounds, Breakage},
    explorer::{SETTLES, explore},
    properties::{
        CLEAN_AT_HOME, CONFIRMED_STAYS, HELD_IS_GIVEN, HELD_ON_BOTH_SIDES, OF_ONE_HOST,
        ONE_ADDRESS, ONE_VF, OTHERS_UNTOUCHED, PORT_SERVES_ITS_POD, PORT_SPEAKS_FOR_ITS_POD,
        SPECULATIVE_IS_RECORDED,
    },
    protection::Protection,
    protocol::Protocol,
};

/// Checks that without `protection` the property is broken within `bounds`.
fn is_needed(protection: Protection, property: &'static str, bounds: Bounds) {
    let without = Protocol { bounds, without: vec![protection] };
    let broken = explore(&without, usize::MAX).map_err(|found| found.property);
    assert_eq!(broken.err(), Some(property), "without {protection:?}");
    println!(
        "figure: 1 protections removed from the protocol, one at a time; each time the model found an error"
    );
}

/// One fault for each kind that may break.
fn bounds<const N: usize>(adds: u8, breakable: [Breakage; N]) -> Bounds {
    let faults = breakable.iter().map(|_| 1).sum();
    Bounds { adds, faults, breakable: breakable.to_vec(), ..Bounds::default() }
}

#[test]
fn late_release_hits_a_new_sandbox() {
    let bounds = bounds(2, [Breakage::OperatorReleases]);
    is_needed(Protection::AttachmentIdFence, CONFIRMED_STAYS, bounds);
}

#[test]
fn attach_of_ended_session_leaks() {
    let bounds = bounds(1, [Breakage::CallerDies, Breakage::AgentDies]);
    is_needed(Protection::SessionCheck, SETTLES, bounds);
}

#[test]
fn unrecorded_move_loses_the_vf() {
    is_needed(Protection::RecordBeforeMove, HELD_ON_BOTH_SIDES, bounds(1, []));
}

#[test]
fn attach_answered_before_its_record_is_lost() {
    is_needed(Protection::JournalBeforeAnswer, HELD_ON_BOTH_SIDES, bounds(1, []));
}

#[test]
fn attach_answered_before_programming_has_no_network() {
    is_needed(Protection::ProgramBeforeAnswer, PORT_SERVES_ITS_POD, bounds(1, []));
}

#[test]
fn hello_releases_an_attach_in_progress() {
    let bounds = bounds(1, [Breakage::ConnectionBreaks]);
    is_needed(Protection::PendingInHello, HELD_ON_BOTH_SIDES, bounds);
}

#[test]
fn stale_inventory_frees_a_lost_vf() {
    is_needed(Protection::AsOf, HELD_ON_BOTH_SIDES, bounds(2, [Breakage::NetnsDies]));
}

/// The service used the time of a Detach only if the Detach reported the VF back.
#[test]
fn stale_inventory_frees_a_missing_vf() {
    is_needed(Protection::AsOfAbsent, HELD_ON_BOTH_SIDES, bounds(2, [Breakage::NetnsDies]));
}

#[test]
fn a_vf_still_away_would_be_given_out() {
    is_needed(Protection::FreedOnlyWhenHome, HELD_ON_BOTH_SIDES, bounds(1, [Breakage::NetnsDies]));
}

#[test]
fn inventory_frees_the_vf_of_an_attach() {
    is_needed(Protection::UnderWay, HELD_ON_BOTH_SIDES, bounds(2, [Breakage::OperatorReleases]));
}

#[test]
fn detach_without_vf_waits_for_ended_attach() {
    let bounds = bounds(2, [Breakage::AgentDies, Breakage::CallTimesOut]);
    is_needed(Protection::DetachEndsCalls, SETTLES, bounds);
}

#[test]
fn agent_without_records_loses_pods() {
    let bounds = bounds(1, [Breakage::RecordsAreLost]);
    is_needed(Protection::UnclaimedKept, CONFIRMED_STAYS, bounds);
}

#[test]
fn new_sandbox_finds_attachment_of_former_boot() {
    is_needed(Protection::BootId, CONFIRMED_STAYS, bounds(2, [Breakage::HostReboots]));
}

#[test]
fn undelivered_release_is_lost() {
    is_needed(Protection::ReleasingUntilConfirmed, SETTLES, bounds(1, [Breakage::CallTimesOut]));
}

/// The Detach that repeats the report overtook the inventory.
#[test]
fn returned_vf_is_not_noticed() {
    is_needed(Protection::ReturnMarksFree, SETTLES, bounds(1, [Breakage::CallTimesOut]));
}

/// The service accepted a hello that had been sent before a newer one and arrived later.
#[test]
fn stale_hello_releases_unknown_attachments() {
    is_needed(Protection::NewestHello, HELD_ON_BOTH_SIDES, bounds(1, [Breakage::ConnectionBreaks]));
}

/// The service checked for attaches in progress only of held attachments.
#[test]
fn hello_frees_the_vf_of_a_released_attach() {
    let bounds = bounds(1, [Breakage::ConnectionBreaks, Breakage::OperatorReleases]);
    is_needed(Protection::PendingGetsRelease, HELD_ON_BOTH_SIDES, bounds);
}

/// The service accepted a Detach of any session, even without an attachment's id.
#[test]
fn detach_of_ended_session_hits_newer_attachment() {
    let bounds = bounds(2, [Breakage::CallTimesOut, Breakage::ConnectionBreaks]);
    is_needed(Protection::DetachSessionCheck, CONFIRMED_STAYS, bounds);
}

/// The agent reported a DEL without a record only once, and did not send the inventory again.
#[test]
fn unanswered_detach_waits_for_an_old_inventory() {
    let bounds = bounds(2, [Breakage::AgentDies, Breakage::CallTimesOut]);
    is_needed(Protection::UnrecordedIsReportedAgain, SETTLES, bounds);
}

/// The agent claimed, without knowing, that the VF was home when it abandoned a repeated ADD.
#[test]
fn abandoned_repeated_add_frees_a_pods_vf() {
    let bounds = bounds(2, [Breakage::RecordsAreLost, Breakage::CallTimesOut]);
    is_needed(Protection::DisownClaimsNothing, HELD_ON_BOTH_SIDES, bounds);
}

/// The DPU gives the VF to another attach before the host knows that its release is done.
#[test]
fn a_second_record_would_take_over_a_vf() {
    let bounds = Bounds { containers: 2, ..bounds(2, [Breakage::ConnectionBreaks]) };
    is_needed(Protection::OneRecordPerVf, ONE_VF, bounds);
}

/// After a restart, the service learned of a VF only from an inventory that reported it clean.
#[test]
fn vf_returned_after_restart_is_not_noticed() {
    let bounds = bounds(1, [Breakage::ServiceDies, Breakage::CallTimesOut]);
    is_needed(Protection::KnownWhileInUse, SETTLES, bounds);
}

#[test]
fn add_of_a_dead_caller_is_completed() {
    is_needed(Protection::CallerLookedFor, SETTLES, bounds(1, [Breakage::CallerDies]));
}

#[test]
fn next_agent_completes_an_unanswered_add() {
    let bounds = bounds(1, [Breakage::CallerDies, Breakage::AgentDies]);
    is_needed(Protection::UnansweredUndone, SETTLES, bounds);
}

#[test]
fn next_agent_undoes_an_unrecorded_answer() {
    is_needed(Protection::KeptBeforeAnswer, CONFIRMED_STAYS, bounds(1, []));
}

#[test]
fn repeat_of_dead_caller_undoes_the_answer() {
    is_needed(Protection::AnsweredStays, CONFIRMED_STAYS, bounds(2, [Breakage::CallerDies]));
}

/// The later of two calls on one connection may be served first.
#[test]
fn attach_after_its_detach_leaks() {
    let bounds = bounds(1, [Breakage::CallerDies]);
    is_needed(Protection::TombstoneReservesNothing, SETTLES, bounds);
}

/// An abandoned Detach may be served after the next ADD was answered.
#[test]
fn detach_after_a_later_attach_releases_it() {
    let faults = Bounds { faults: 2, ..bounds(2, [Breakage::CallTimesOut]) };
    is_needed(Protection::DetachBeforeLaterAttach, CONFIRMED_STAYS, faults);
}

/// Bounds with offered VFs and this many calls of ADD.
fn offers<const N: usize>(adds: u8, breakable: [Breakage; N]) -> Bounds {
    Bounds { offers: true, ..bounds(adds, breakable) }
}

/// Bounds with offered VFs and two containers that need one each.
fn offers_to_two<const N: usize>(breakable: [Breakage; N]) -> Bounds {
    Bounds { containers: 2, addresses: 2, ..offers(2, breakable) }
}

#[test]
fn unrecorded_speculative_move_loses_the_vf() {
    is_needed(Protection::SpeculativeRecordFirst, SPECULATIVE_IS_RECORDED, offers(1, []));
}

#[test]
fn attach_beside_speculative_move_leaks() {
    let bounds = offers(1, [Breakage::CallerDies]);
    is_needed(Protection::SpeculativeReleasedByKey, SETTLES, bounds);
}

#[test]
fn moved_vf_is_given_to_another_attach() {
    is_needed(Protection::OfferedNeedsName, CLEAN_AT_HOME, offers_to_two([]));
}

/// A repeated Attach was answered, whichever VF it named.
#[test]
fn speculative_vf_stays_beside_the_answered_one() {
    let bounds = Bounds { vfs: 2, ..offers(2, [Breakage::RecordsAreLost]) };
    is_needed(Protection::NamedOrNone, SETTLES, bounds);
}

/// A late Attach arrives after its VF was offered again.
#[test]
fn attach_with_ended_offer_gets_a_held_vf() {
    let bounds = offers(2, [Breakage::RuntimeGivesUp]);
    is_needed(Protection::OfferNumbers, HELD_IS_GIVEN, bounds);
}

#[test]
fn offers_of_an_ended_session_leak() {
    is_needed(Protection::OffersEnd, SETTLES, offers(0, [Breakage::ConnectionBreaks]));
}

#[test]
fn held_vf_is_reported_clean_by_a_hello() {
    let bounds = offers_to_two([Breakage::ConnectionBreaks]);
    is_needed(Protection::ClosedBeforeHello, HELD_IS_GIVEN, bounds);
}

#[test]
fn hello_reports_the_vf_of_an_add() {
    let bounds = offers_to_two([Breakage::ConnectionBreaks]);
    is_needed(Protection::HeldInUse, HELD_IS_GIVEN, bounds);
}

/// The DPU was not informed of a VF whose Attach had not arrived.
#[test]
fn declined_vf_is_never_offered_again() {
    is_needed(Protection::DeclinedIsReported, SETTLES, offers(1, [Breakage::CallTimesOut]));
}

#[test]
fn returned_vf_is_never_offered_again() {
    is_needed(Protection::ReturnedIsOfferedAgain, SETTLES, offers(1, []));
}

#[test]
fn moved_vf_has_an_unprogrammed_representor() {
    let bounds = offers_to_two([Breakage::ServiceDies]);
    is_needed(Protection::ClearedBeforeServing, PORT_SPEAKS_FOR_ITS_POD, bounds);
}

/// Two hosts, each with this many calls of ADD, without faults.
fn two_hosts(adds: u8) -> Bounds {
    Bounds { hosts: 2, each: true, ..bounds(adds, []) }
}

#[test]
fn call_changes_another_hosts_attachment() {
    is_needed(Protection::HostInKey, OTHERS_UNTOUCHED, two_hosts(1));
}

#[test]
fn hello_ends_another_hosts_session() {
    is_needed(Protection::SessionOfEachHost, OTHERS_UNTOUCHED, two_hosts(0));
}

#[test]
fn hello_judges_another_hosts_attachments() {
    is_needed(Protection::HelloJudgesItsOwn, OTHERS_UNTOUCHED, two_hosts(1));
}

#[test]
fn a_host_would_get_the_vf_of_another() {
    is_needed(Protection::OwnVfsOnly, OF_ONE_HOST, two_hosts(1));
}

#[test]
fn releasing_address_is_allocated_to_another_host() {
    is_needed(Protection::AddressFreedLast, ONE_ADDRESS, two_hosts(1));
}
